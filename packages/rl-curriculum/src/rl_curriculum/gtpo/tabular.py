"""Tabular studies, many replicas at once: what each way of giving credit makes of a policy.

A policy is a table of two-way choices, one logit in each state. Responses are sequences of such
choices and of choices that cannot be learned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from .checks import require_finite, require_probabilities, require_whole
from .methods import Method, named_method


@dataclass(frozen=True)
class Responses:
    """Responses of all replicas: (R, B, T) each but `rewards` (R, B).

    `state` is the row of the table that a choice was made in, -1 where nothing is learned;
    `choice` the first of the two (true) or the second; `entropy` of the policy there in nats;
    `mask` the tokens that exist.
    """

    state: Tensor
    choice: Tensor
    entropy: Tensor
    mask: Tensor
    rewards: Tensor


class TabularTask(Protocol):
    """What `train_tabular` needs of a task."""

    @property
    def start(self) -> list[float]:
        """Probabilities of the first choice at the start, one a state."""

    def sample(self, p: Tensor, prompts: int, group: int, generator: torch.Generator) -> Responses:
        """Responses under the (R, S) probabilities of the first choice."""

    def success(self, p: Tensor) -> Tensor:
        """(R,) exact probabilities of a reward."""


@dataclass(frozen=True)
class TokenTrap:
    """A confident shortcut beside an uncertain path that is better once it has been learned.

    The first choice leads to a path of `decisions` choices, all of which must be right, or to a
    shortcut whose tokens are almost certain and which ends in a guess: right with 0.97 on one half
    of the prompts and 0.03 on the other, whatever is learned. In the false fork (`noise`) the
    path's choices mean nothing, and it succeeds with that probability.

    Parameters
    ----------
    decisions
        Choices on the path, and tokens on the shortcut.
    p_right, p_path
        Probabilities at the start of a right choice and of the path.
    noise
        The path's success in the false fork, or None.

    Examples
    --------
    >>> trap = TokenTrap(3, 0.5, 0.3)
    >>> trap.success(torch.tensor([[0.3, 0.5, 0.5, 0.5]]))  # .3 / 8 + .7 / 2
    tensor([0.3875])
    """

    decisions: int = 3
    p_right: float = 0.5
    p_path: float = 0.5
    noise: float | None = None

    def __post_init__(self) -> None:
        require_whole(1, decisions=self.decisions)
        require_probabilities(p_right=self.p_right, p_path=self.p_path)
        if self.noise is not None:
            require_probabilities(noise=self.noise)

    @property
    def start(self) -> list[float]:
        learned = 0 if self.noise is not None else self.decisions
        return [self.p_path] + [self.p_right] * learned

    def success(self, p: Tensor) -> Tensor:
        path = p[:, 1:].prod(1) if self.noise is None else self.noise
        return p[:, 0] * path + (1 - p[:, 0]) / 2

    def sample(self, p: Tensor, prompts: int, group: int, generator: torch.Generator) -> Responses:
        replicas, rows, k = len(p), prompts * group, self.decisions
        draws = torch.rand(replicas, rows, k + 2, generator=generator, dtype=p.dtype)
        easy = torch.rand(replicas, prompts, generator=generator) < 0.5
        table = p if self.noise is None else torch.cat([p, p.new_full((replicas, k), 0.5)], 1)
        table = table[:, None]
        choice = draws[..., : k + 1] < table
        path = choice[..., :1]
        entropy = _binary_entropy(table).expand(replicas, rows, k + 1).clone()
        # The shortcut's own tokens: almost certain, then the guess.
        shortcut = torch.full((k,), 0.02, dtype=p.dtype)
        shortcut[-1] = _binary_entropy(torch.tensor(0.97, dtype=p.dtype))
        entropy[..., 1:] = torch.where(path, entropy[..., 1:], shortcut)
        guess = draws[..., -1] < torch.where(
            easy.repeat_interleave(group, 1), torch.tensor(0.97), torch.tensor(0.03)
        )
        right = choice[..., 1:].all(-1) if self.noise is None else draws[..., -1] < self.noise
        state = torch.arange(k + 1).expand(replicas, rows, k + 1).clone()
        learned = path if self.noise is None else torch.zeros_like(path)
        state[..., 1:] = torch.where(learned, state[..., 1:], -1)
        rewards = torch.where(path[..., 0], right, guess)
        return Responses(state, choice, entropy, torch.ones_like(choice), rewards.to(p.dtype))


@dataclass(frozen=True)
class TokenChain:
    """Segments of filler of random length, a decision, and tokens to be copied.

    A response is right if every decision and every copied token is. Its length varies, so that the
    same decision stands at different positions in different responses.

    Parameters
    ----------
    segments, copies
        How many segments, and copied tokens in each.
    p_decision, p_copy, p_filler
        Probabilities at the start of a right decision, of a right copy, and of one more filler.
    max_filler
        The longest filler.

    Examples
    --------
    >>> chain = TokenChain(segments=1, copies=2)
    >>> chain.success(torch.tensor([[0.5, 0.5, 0.9, 0.9]])).round(decimals=3)
    tensor([0.4050])
    """

    segments: int = 3
    copies: int = 3
    p_decision: float = 0.15
    p_copy: float = 0.98
    p_filler: float = 0.5
    max_filler: int = 4

    def __post_init__(self) -> None:
        require_whole(1, segments=self.segments, max_filler=self.max_filler)
        require_whole(0, copies=self.copies)
        require_probabilities(
            p_decision=self.p_decision, p_copy=self.p_copy, p_filler=self.p_filler
        )

    @property
    def start(self) -> list[float]:
        return [self.p_filler, self.p_decision, *[self.p_copy] * self.copies] * self.segments

    def success(self, p: Tensor) -> Tensor:
        return p.view(len(p), self.segments, -1)[..., 1:].prod(-1).prod(-1)

    def sample(self, p: Tensor, prompts: int, group: int, generator: torch.Generator) -> Responses:
        replicas, rows, width = len(p), prompts * group, self.copies + 2
        # A segment as max_filler + 1 places for filler (the last of them stops) and the rest.
        places = [0] * self.max_filler + list(range(1, width))
        state = torch.cat([torch.tensor(places) + width * s for s in range(self.segments)])
        table = p[:, state][:, None]
        draws = torch.rand(replicas, rows, len(state), generator=generator, dtype=p.dtype)
        choice = draws < table
        filler = (state % width == 0).view(self.segments, -1)
        alive = torch.ones_like(choice).view(replicas, rows, self.segments, -1)
        going = choice.view_as(alive)[..., : self.max_filler].cumprod(-1).bool()
        alive[..., 1 : self.max_filler] = going[..., :-1]
        mask = alive.flatten(2)
        right = (choice | filler.flatten()).all(-1)
        batch = Responses(
            state.expand_as(mask),
            choice,
            _binary_entropy(table).expand_as(draws),
            mask,
            right.to(p.dtype),
        )
        return _left_aligned(batch)


@dataclass(frozen=True)
class Study:
    """What became of every replica: (R,) success at the end, (steps + 1, R) on the way."""

    final: Tensor
    curve: Tensor


def train_tabular(
    task: TabularTask,
    method: str | Method,
    *,
    steps: int,
    replicas: int,
    seed: int,
    prompts: int = 16,
    group: int = 8,
    optimizer: Literal["sgd", "adam"] = "sgd",
    lr: float = 1.0,
) -> Study:
    """Train `replicas` tables on-policy, each from samples of its own.

    The gradient is the sum over tokens of advantage times the gradient of the log-probability,
    divided by the number of tokens.

    Raises
    ------
    TypeError, ValueError
        If a number is not allowed or there is no such method.

    Examples
    --------
    >>> study = train_tabular(TokenTrap(), "dapo", steps=5, replicas=4, seed=0)
    >>> study.curve[0].tolist()  # at the start .5 / 8 + .5 / 2
    [0.3125, 0.3125, 0.3125, 0.3125]
    """
    require_whole(0, steps=steps)
    require_whole(1, replicas=replicas, prompts=prompts, group=group)
    require_finite(0, lr=lr)
    if optimizer not in ("sgd", "adam"):
        raise ValueError(f"optimizer is {optimizer!r}; allowed: 'sgd' or 'adam'")
    how = named_method(method)
    generator = torch.Generator().manual_seed(seed)
    start = torch.tensor(task.start, dtype=torch.float64)
    logit = torch.logit(start).expand(replicas, -1).clone()
    adam = torch.optim.Adam([logit], lr=lr)
    curve = [task.success(torch.sigmoid(logit))]
    for _ in range(steps):
        p = torch.sigmoid(logit)
        batch = task.sample(p, prompts, group, generator)
        shape = (replicas * prompts * group, batch.mask.shape[-1])
        credit, kept = how.advantages(
            batch.rewards.flatten(),
            batch.entropy.reshape(shape),
            batch.mask.reshape(shape),
            group,
        )
        credit = (credit * kept).view_as(batch.entropy)
        learned = batch.state >= 0
        index = batch.state.clamp(min=0).flatten(1)
        score = batch.choice.to(p.dtype).flatten(1) - p.gather(1, index)
        terms = credit.flatten(1) * score * learned.flatten(1)
        tokens = batch.mask.flatten(1).sum(1, keepdim=True)
        gradient = torch.zeros_like(logit).scatter_add_(1, index, terms) / tokens
        if optimizer == "adam":
            logit.grad = -gradient
            adam.step()
        else:
            logit += lr * gradient
        curve.append(task.success(torch.sigmoid(logit)))
    return Study(curve[-1], torch.stack(curve))


def _binary_entropy(p: Tensor) -> Tensor:
    return -(torch.xlogy(p, p) + torch.xlogy(1 - p, 1 - p))


def _left_aligned(batch: Responses) -> Responses:
    """The same responses with their tokens moved together."""
    order = (~batch.mask).to(torch.uint8).argsort(dim=-1, stable=True)
    return Responses(
        batch.state.gather(-1, order),
        batch.choice.gather(-1, order),
        batch.entropy.gather(-1, order),
        batch.mask.gather(-1, order),
        batch.rewards,
    )
