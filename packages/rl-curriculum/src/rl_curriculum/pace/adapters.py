"""Policies of other libraries under the contract of the scores and the trainer.

Neither library is imported: what counts is the methods that the policy has.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .policies import Hidden


class StableBaselines3Policy(nn.Module):
    """An `ActorCriticPolicy` of stable-baselines3.

    Parameters
    ----------
    policy
        `model.policy` of PPO or A2C; it has `evaluate_actions(obs, actions)` and is called with
        observations. Its parameters are shared, not copied.

    Examples
    --------
    >>> class Policy(nn.Module):  # stands for model.policy
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.action_net = nn.Linear(4, 2)
    ...     def evaluate_actions(self, obs, actions):
    ...         logs = torch.log_softmax(self.action_net(obs), -1)
    ...         return obs[:, :1], logs.gather(-1, actions.unsqueeze(-1)).squeeze(-1), None
    >>> adapted = StableBaselines3Policy(Policy())
    >>> adapted.evaluate(torch.zeros(5, 2, 4), torch.zeros(5, 2).long())[0].shape
    torch.Size([5, 2])
    """

    def __init__(self, policy: nn.Module) -> None:
        super().__init__()
        if not callable(getattr(policy, "evaluate_actions", None)):
            raise TypeError(
                f"policy is a {type(policy).__name__} without evaluate_actions; allowed: an "
                "ActorCriticPolicy of stable-baselines3"
            )
        self.policy = policy

    @property
    def actor_head(self) -> nn.Module:
        """The layer that gives the action's distribution."""
        head: nn.Module = self.policy.action_net  # type: ignore[assignment]
        return head

    def act(
        self, obs: Tensor, hidden: Hidden, starts: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor, Tensor, Hidden]:
        """Actions, their log-probabilities and the values, each (N,); greedy without generator."""
        with _drawing_from(generator):
            action, value, logp = self.policy(obs, deterministic=generator is None)
        return action, logp, value.squeeze(-1), None

    def evaluate(
        self, obs: Tensor, actions: Tensor, hidden: Hidden = None, starts: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities of actions, entropies and values, each (T, N)."""
        T, N = actions.shape[:2]
        evaluate: Any = self.policy.evaluate_actions
        value, logp, entropy = evaluate(
            obs.reshape(T * N, *obs.shape[2:]), actions.reshape(T * N, *actions.shape[2:])
        )
        # Without an analytic entropy stable-baselines3 takes the negative log-probability.
        entropy = -logp if entropy is None else entropy
        return logp.view(T, N), entropy.view(T, N), value.view(T, N)


class CleanRLAgent(nn.Module):
    """An agent in the style of CleanRL's PPO.

    Parameters
    ----------
    agent
        It has `get_action_and_value(obs, action=None) -> (action, logp, entropy, value)`. Its
        parameters are shared, not copied.

    Examples
    --------
    >>> class Agent(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.actor, self.critic = nn.Linear(4, 2), nn.Linear(4, 1)
    ...     def get_action_and_value(self, x, action=None):
    ...         probs = torch.distributions.Categorical(logits=self.actor(x))
    ...         action = probs.sample() if action is None else action
    ...         return action, probs.log_prob(action), probs.entropy(), self.critic(x)
    >>> adapted = CleanRLAgent(Agent())
    >>> adapted.evaluate(torch.zeros(5, 2, 4), torch.zeros(5, 2).long())[2].shape
    torch.Size([5, 2])
    """

    def __init__(self, agent: nn.Module) -> None:
        super().__init__()
        if not callable(getattr(agent, "get_action_and_value", None)):
            raise TypeError(
                f"agent is a {type(agent).__name__} without get_action_and_value; allowed: an "
                "agent in the style of CleanRL"
            )
        self.agent = agent

    def act(
        self, obs: Tensor, hidden: Hidden, starts: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor, Tensor, Hidden]:
        """Actions, their log-probabilities and the values, each (N,); always drawn."""
        call: Any = self.agent.get_action_and_value
        with _drawing_from(generator):
            action, logp, _, value = call(obs)
        return action, logp, value.view(-1), None

    def evaluate(
        self, obs: Tensor, actions: Tensor, hidden: Hidden = None, starts: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities of actions, entropies and values, each (T, N)."""
        T, N = actions.shape[:2]
        call: Any = self.agent.get_action_and_value
        _, logp, entropy, value = call(
            obs.reshape(T * N, *obs.shape[2:]), actions.reshape(T * N, *actions.shape[2:])
        )
        return logp.view(T, N), entropy.view(T, N), value.view(T, N)


class _drawing_from:
    """Draws of torch's global generator follow `generator` inside, and are as before outside."""

    def __init__(self, generator: torch.Generator | None) -> None:
        self._generator = generator

    def __enter__(self) -> None:
        self._before = torch.get_rng_state()
        if self._generator is not None:
            device = self._generator.device
            seed = torch.randint(2**62, (1,), generator=self._generator, device=device)
            torch.default_generator.manual_seed(int(seed))

    def __exit__(self, *_: object) -> None:
        torch.set_rng_state(self._before)
