"""The definitions written out, one level at a time."""

from __future__ import annotations

from collections import deque

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

Floats = NDArray[np.float64]


def gae_by_sums(
    rewards: Floats, values: Floats, done: NDArray[np.bool_], last: float, gamma: float, lam: float
) -> Floats:
    """Advantages of one level as the discounted sums of the later errors of its episode."""
    T = len(rewards)
    following = [*values[1:], last]
    delta = [rewards[t] + (0.0 if done[t] else gamma * following[t]) - values[t] for t in range(T)]
    advantages = np.zeros(T)
    for t in range(T):
        for k in range(t, T):
            advantages[t] += (gamma * lam) ** (k - t) * delta[k]
            if done[k]:
                break
    return advantages


def score_by_autograd(
    policy: nn.Module,
    obs: torch.Tensor,
    actions: torch.Tensor,
    advantages: Floats,
    hidden0: tuple[torch.Tensor, ...] | None = None,
    starts: torch.Tensor | None = None,
) -> Floats:
    """The squared gradient length of each level's mean policy loss, level after level."""
    scores = []
    for i in range(obs.shape[1]):
        one = slice(i, i + 1)
        hidden = None if hidden0 is None else tuple(h[:, one] for h in hidden0)
        first = None if starts is None else starts[:, one]
        logp = policy.evaluate(obs[:, one], actions[:, one], hidden, first)[0]  # type: ignore[operator]
        weight = torch.as_tensor(advantages[:, one], dtype=logp.dtype)
        parts = torch.autograd.grad(
            -(weight * logp).mean(), list(policy.parameters()), allow_unused=True
        )
        scores.append(sum(float((p.double() ** 2).sum()) for p in parts if p is not None))
    return np.array(scores)


def replay_weights(
    scores: list[float], ages: list[float], staleness: float, temperature: float
) -> Floats:
    """Rank by counting, mixed with staleness."""
    n = len(scores)
    by_rank = []
    for i in range(n):
        above = sum(scores[j] > scores[i] or (scores[j] == scores[i] and j < i) for j in range(n))
        by_rank.append((1 / (above + 1)) ** (1 / temperature))
    stale = [age / sum(ages) if sum(ages) > 0 else 1 / n for age in ages]
    return np.array(
        [
            (1 - staleness) * r / sum(by_rank) + staleness * s
            for r, s in zip(by_rank, stale, strict=True)
        ]
    )


def breadth_first(walls: NDArray[np.bool_], start: int, goal: int) -> int:
    """Moves from one flat cell to another around walls; -1 if there is no way."""
    height, width = walls.shape
    seen = {start: 0}
    queue = deque([start])
    while queue:
        cell = queue.popleft()
        if cell == goal:
            return seen[cell]
        row, column = divmod(cell, width)
        for r, c in ((row, column + 1), (row + 1, column), (row, column - 1), (row - 1, column)):
            inside = 0 <= r < height and 0 <= c < width
            if inside and not walls[r, c] and r * width + c not in seen:
                seen[r * width + c] = seen[cell] + 1
                queue.append(r * width + c)
    return -1


def iqm_by_sorting(values: Floats) -> float:
    """The mean without the lowest and the highest quarter."""
    ordered = sorted(np.asarray(values).ravel().tolist())
    cut = int(0.25 * len(ordered))
    middle = ordered[cut : len(ordered) - cut]
    return float(sum(middle) / len(middle))


def bandit_score(p: float, n: int | None = None) -> float:
    """E |ghat|^2 for one decision that succeeds with probability p; exact for n = None."""
    exact = (p * (1 - p)) ** 2
    return exact if n is None else exact + p * (1 - p) * (1 - 2 * p) ** 2 / n
