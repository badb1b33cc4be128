"""What was seen on a batch of levels, and the advantages and returns that follow from it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Rollout:
    """`T` steps on each of `N` levels, time first.

    Parameters
    ----------
    obs
        Observations, shape (T, N, ...).
    actions
        Actions, shape (T, N) or (T, N, ...).
    logp
        Log-probabilities of the actions when they were taken, shape (T, N).
    values
        The critic's values of `obs`, shape (T, N).
    rewards
        Shape (T, N).
    terminated, truncated
        Whether the episode ended after the step, by itself or by a limit; shape (T, N), bool. A
        level goes on with its own next episode.
    last_value
        The critic's value after the last step, shape (N,).
    hidden0
        For recurrent policies: the state before the first step, tensors with levels on axis 1.
    final_values
        The critic's values of the last observations of truncated episodes, shape (T, N). Where
        given, a truncated episode's return goes on with it; otherwise truncation ends an episode
        like termination, as in the maze benchmarks.
    max_returns
        The best return seen on each level before, shape (N,); NaN where none was.
    gamma, gae_lambda
        Discount and trace decay.

    Raises
    ------
    ValueError
        If a shape does not fit or a number is not finite.

    Examples
    --------
    >>> flags = np.array([[False], [True]])
    >>> batch = Rollout(
    ...     obs=np.zeros((2, 1, 3)), actions=np.zeros((2, 1), int), logp=np.zeros((2, 1)),
    ...     values=np.array([[0.5], [0.5]]), rewards=np.array([[0.0], [1.0]]), terminated=flags,
    ...     truncated=~flags & False, last_value=np.zeros(1), gamma=1.0, gae_lambda=1.0)
    >>> batch.advantages.tolist()
    [[0.5], [0.5]]
    >>> batch.episode_returns
    [array([1.])]
    """

    obs: Tensor
    actions: Tensor
    logp: Tensor
    values: Floats
    rewards: Floats
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    last_value: Floats
    hidden0: tuple[Tensor, ...] | None = None
    final_values: Floats | None = None
    max_returns: Floats | None = None
    gamma: float = 0.995
    gae_lambda: float = 0.95

    def __post_init__(self) -> None:
        rewards = _numbers(self.rewards)
        if rewards.ndim != 2:
            raise ValueError(f"rewards has shape {rewards.shape}; allowed: (T, N)")
        T, N = rewards.shape
        if T < 2 or N < 1:
            raise ValueError(f"rewards has shape {rewards.shape}; allowed: T >= 2 and N >= 1")
        for name in ("obs", "actions", "logp"):
            value = torch.as_tensor(getattr(self, name))
            if value.shape[:2] != (T, N) or (name == "logp" and value.ndim != 2):
                raise ValueError(
                    f"{name} has shape {tuple(value.shape)}, which does not fit the rewards of "
                    f"shape {(T, N)}"
                )
            object.__setattr__(self, name, value)
        shapes = {
            "values": (T, N),
            "rewards": (T, N),
            "terminated": (T, N),
            "truncated": (T, N),
            "last_value": (N,),
            "final_values": (T, N),
            "max_returns": (N,),
        }
        for name, shape in shapes.items():
            if getattr(self, name) is None:
                continue
            array = _numbers(getattr(self, name))
            if array.shape != shape:
                raise ValueError(f"{name} has shape {array.shape}; allowed: {shape}")
            if name in ("terminated", "truncated"):
                object.__setattr__(self, name, array.astype(bool))
                continue
            if name != "max_returns" and not np.isfinite(array).all():
                where = np.argwhere(~np.isfinite(array))[0].tolist()
                raise ValueError(f"{name} has a number that is not finite at {where}")
            object.__setattr__(self, name, array)
        for name in ("gamma", "gae_lambda"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)!r}; allowed: from 0 to 1")

    @property
    def shape(self) -> tuple[int, int]:
        """`(T, N)`."""
        return self.rewards.shape[0], self.rewards.shape[1]

    @cached_property
    def done(self) -> NDArray[np.bool_]:
        """Whether the episode ended after the step, shape (T, N)."""
        return self.terminated | self.truncated

    @cached_property
    def starts(self) -> Tensor:
        """Whether an episode starts at the step, shape (T, N), bool."""
        starts = np.ones_like(self.done)
        starts[1:] = self.done[:-1]
        return torch.from_numpy(starts)

    @cached_property
    def advantages(self) -> Floats:
        """Generalised advantage estimates, shape (T, N)."""
        return gae(
            self.rewards,
            self.values,
            self.done,
            self.last_value,
            self.gamma,
            self.gae_lambda,
            None if self.final_values is None else self.final_values * ~self.terminated,
        )

    @cached_property
    def episode_returns(self) -> list[Floats]:
        """The undiscounted returns of the episodes that ended, one array a level."""
        N = self.shape[1]
        total = np.cumsum(self.rewards, axis=0)
        found = []
        for i in range(N):
            ends = np.flatnonzero(self.done[:, i])
            found.append(np.diff(total[ends, i], prepend=0.0))
        return found

    @cached_property
    def best_returns(self) -> Floats:
        """The best return of each level, those seen before included; NaN where none is; (N,)."""
        before = np.full(self.shape[1], np.nan) if self.max_returns is None else self.max_returns
        now = [r.max() if len(r) else np.nan for r in self.episode_returns]
        best: Floats = np.fmax(before, np.array(now))
        return best

    def take(self, index: ArrayLike) -> Rollout:
        """The same rollout on the levels at `index` alone."""
        i = np.atleast_1d(np.asarray(index, dtype=np.intp))
        parts: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        for name in ("obs", "actions", "logp"):
            parts[name] = parts[name][:, torch.from_numpy(i)]
        for name in ("values", "rewards", "terminated", "truncated", "final_values"):
            parts[name] = None if parts[name] is None else parts[name][:, i]
        for name in ("last_value", "max_returns"):
            parts[name] = None if parts[name] is None else parts[name][i]
        if self.hidden0 is not None:
            parts["hidden0"] = tuple(h[:, torch.from_numpy(i)] for h in self.hidden0)
        return Rollout(**parts)


def gae(
    rewards: Floats,
    values: Floats,
    done: NDArray[np.bool_],
    last_value: Floats,
    gamma: float,
    gae_lambda: float,
    final_values: Floats | None = None,
) -> Floats:
    r"""Generalised advantage estimates.

    .. math:: \delta_t = r_t + \gamma V(s_{t+1}) - V(s_t), \qquad
              A_t = \delta_t + \gamma \lambda A_{t+1},

    where an episode that ended at `t` has no `A_{t+1}`, and its `V(s_{t+1})` is `final_values[t]`,
    or 0.

    Parameters
    ----------
    rewards, values, done
        Shape (T, N).
    last_value
        Shape (N,).
    gamma, gae_lambda
        Discount and trace decay.
    final_values
        The values with which ended episodes go on, shape (T, N).

    Returns
    -------
    advantages
        Shape (T, N), float64.

    Examples
    --------
    >>> one = np.ones((1, 1))
    >>> gae(one, 0 * one, one > 2, np.array([2.0]), 0.5, 1.0).tolist()
    [[2.0]]
    """
    T = len(rewards)
    following = np.concatenate([values[1:], last_value[None]])
    following = np.where(done, 0.0 if final_values is None else final_values, following)
    delta = rewards + gamma * following - values
    decay = gamma * gae_lambda * ~done
    advantages = np.empty_like(delta)
    carried = np.zeros_like(last_value)
    for t in range(T - 1, -1, -1):
        carried = delta[t] + decay[t] * carried
        advantages[t] = carried
    return advantages


def _numbers(value: Any) -> Floats:
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    return np.asarray(value, dtype=np.float64)
