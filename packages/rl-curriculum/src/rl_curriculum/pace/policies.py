"""Small actor-critics that follow the contract of the scores and the trainer."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

Hidden = tuple[Tensor, ...] | None


class MLPPolicy(nn.Module):
    """A dense actor-critic with a shared trunk for discrete actions.

    Parameters
    ----------
    inputs
        Length of an observation; other shapes are flattened.
    actions
        The number of actions.
    width
        Sizes of the hidden layers, tanh between them.
    seed
        Of the orthogonal initial weights.

    Examples
    --------
    >>> policy = MLPPolicy(4, 3, seed=0)
    >>> logp, entropy, value = policy.evaluate(torch.zeros(5, 2, 4), torch.zeros(5, 2).long())
    >>> logp.shape, entropy.shape, value.shape
    (torch.Size([5, 2]), torch.Size([5, 2]), torch.Size([5, 2]))
    """

    def __init__(
        self, inputs: int, actions: int, width: Sequence[int] = (128, 128), seed: int = 0
    ) -> None:
        super().__init__()
        self.inputs = inputs
        sizes = [inputs, *width]
        layers: list[nn.Module] = []
        for a, b in zip(sizes, sizes[1:], strict=False):
            layers += [nn.Linear(a, b), nn.Tanh()]
        self.trunk = nn.Sequential(*layers)
        self.actor_head = nn.Linear(sizes[-1], actions)
        self.critic_head = nn.Linear(sizes[-1], 1)
        _orthogonal(self, seed)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities (..., actions) and values (...) of observations."""
        h = self.trunk(obs.to(self.critic_head.weight.dtype))
        return torch.log_softmax(self.actor_head(h), -1), self.critic_head(h).squeeze(-1)

    def initial_hidden(self, n: int) -> Hidden:
        """None: there is no state."""
        return None

    def act(
        self, obs: Tensor, hidden: Hidden, starts: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor, Tensor, Hidden]:
        """Actions, their log-probabilities and the values, each (N,); greedy without generator."""
        logits, value = self(_flat(obs, self.inputs, 1))
        action, logp = draw(logits, generator)
        return action, logp, value, None

    def evaluate(
        self, obs: Tensor, actions: Tensor, hidden: Hidden = None, starts: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities of actions, entropies and values, each (T, N)."""
        logits, value = self(_flat(obs, self.inputs, 2))
        return (*chances(logits, actions), value)


class LSTMPolicy(nn.Module):
    """A recurrent actor-critic for discrete actions; its state starts anew with each episode.

    Parameters
    ----------
    inputs
        Length of an observation; other shapes are flattened.
    actions
        The number of actions.
    width
        Units of the dense layer and of the LSTM cell.
    seed
        Of the orthogonal initial weights.

    Examples
    --------
    >>> policy = LSTMPolicy(4, 3, 8, seed=0)
    >>> starts = torch.zeros(5, 2, dtype=torch.bool)
    >>> seen = policy.evaluate(
    ...     torch.zeros(5, 2, 4), torch.zeros(5, 2).long(), policy.initial_hidden(2), starts)
    >>> seen[0].shape
    torch.Size([5, 2])
    """

    def __init__(self, inputs: int, actions: int, width: int = 128, seed: int = 0) -> None:
        super().__init__()
        self.inputs = inputs
        self.encoder = nn.Linear(inputs, width)
        self.input_gates = nn.Linear(width, 4 * width)
        self.state_gates = nn.Linear(width, 4 * width, bias=False)
        self.actor_head = nn.Linear(width, actions)
        self.critic_head = nn.Linear(width, 1)
        _orthogonal(self, seed)

    def initial_hidden(self, n: int) -> tuple[Tensor, Tensor]:
        """Zero state for `n` levels, levels on axis 1."""
        zeros = self.encoder.weight.new_zeros(1, n, self.encoder.out_features)
        return zeros, zeros.clone()

    def _cell(self, gates: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        h, c = state
        into, forget, out, new = (gates + self.state_gates(h)).chunk(4, -1)
        c = torch.sigmoid(forget + 1) * c + torch.sigmoid(into) * torch.tanh(new)
        return torch.sigmoid(out) * torch.tanh(c), c

    def act(
        self, obs: Tensor, hidden: Hidden, starts: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor, Tensor, Hidden]:
        """Actions, their log-probabilities and the values, each (N,), and the next state."""
        if hidden is None:
            hidden = self.initial_hidden(len(obs))
        keep = (~starts).to(hidden[0].dtype).unsqueeze(-1)
        gates = self.input_gates(torch.tanh(self.encoder(_flat(obs, self.inputs, 1))))
        h, c = self._cell(gates, (hidden[0][0] * keep, hidden[1][0] * keep))
        action, logp = draw(torch.log_softmax(self.actor_head(h), -1), generator)
        return action, logp, self.critic_head(h).squeeze(-1), (h.unsqueeze(0), c.unsqueeze(0))

    def evaluate(
        self, obs: Tensor, actions: Tensor, hidden: Hidden = None, starts: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities of actions, entropies and values, each (T, N)."""
        T, N = obs.shape[:2]
        if hidden is None:
            hidden = self.initial_hidden(N)
        gates = self.input_gates(torch.tanh(self.encoder(_flat(obs, self.inputs, 2))))
        h, c = hidden[0][0], hidden[1][0]
        states = []
        for t in range(T):
            if starts is not None:
                keep = (~starts[t]).to(h.dtype).unsqueeze(-1)
                h, c = h * keep, c * keep
            h, c = self._cell(gates[t], (h, c))
            states.append(h)
        together = torch.stack(states)
        logits = torch.log_softmax(self.actor_head(together), -1)
        return (*chances(logits, actions), self.critic_head(together).squeeze(-1))


def draw(log_probs: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Actions drawn from log-probabilities (N, actions), or the likeliest ones, and their logs."""
    if generator is None:
        action = log_probs.argmax(-1)
    else:
        # The largest of log p + Gumbel noise is a draw from p.
        waits = torch.empty_like(log_probs).exponential_(generator=generator)
        action = (log_probs - waits.log()).argmax(-1)
    return action, log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)


def chances(log_probs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the actions taken, and entropies."""
    logp = log_probs.gather(-1, actions.long().unsqueeze(-1)).squeeze(-1)
    return logp, -(log_probs.exp() * log_probs).sum(-1)


def _flat(obs: Tensor, inputs: int, lead: int) -> Tensor:
    return obs if obs.ndim == lead + 1 else obs.reshape(*obs.shape[:lead], inputs)


def _orthogonal(policy: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in policy.named_parameters():
        if parameter.ndim < 2:
            nn.init.zeros_(parameter)
            continue
        gain = math.sqrt(2)
        if name.startswith("actor_head"):
            gain = 0.01
        elif name.startswith("critic_head"):
            gain = 1.0
        nn.init.orthogonal_(parameter, gain, generator=generator)
