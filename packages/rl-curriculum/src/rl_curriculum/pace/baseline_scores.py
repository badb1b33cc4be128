"""The other scores of level replay, with the signature of `pace_scores`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from .gradients import each_level, named_trainable
from .rollout import Rollout
from .scores import normalised

Floats = NDArray[np.float64]


def positive_value_loss(policy: nn.Module | None, batch: Rollout) -> Floats:
    """Mean over finished episodes of the mean of `max(A_t, 0)`; NaN without one.

    Parameters
    ----------
    policy
        Not used.
    batch
        The rollout.

    Returns
    -------
    scores
        Shape (N,).

    Notes
    -----
    Source: Jiang et al., *Replay-Guided Adversarial Environment Design*, 2021.

    Examples
    --------
    >>> positive_value_loss(None, _example()).tolist()
    [0.1875]
    """
    positive = np.maximum(batch.advantages, 0)
    return _mean_over_episodes(batch, positive)


def max_mc(policy: nn.Module | None, batch: Rollout) -> Floats:
    """Mean over finished episodes of the mean of `R_max - V(s_t)`; NaN without one.

    `R_max` is the best return ever seen on the level: the rollout's `max_returns` and its own.

    Parameters
    ----------
    policy
        Not used.
    batch
        The rollout.

    Returns
    -------
    scores
        Shape (N,).

    Notes
    -----
    Source: Jiang et al., *Replay-Guided Adversarial Environment Design*, 2021.

    Examples
    --------
    >>> max_mc(None, _example()).tolist()
    [0.75]
    """
    return _mean_over_episodes(batch, batch.best_returns[None] - batch.values)


def l1_value_loss(policy: nn.Module | None, batch: Rollout) -> Floats:
    """Mean of `|A_t|` over all steps.

    Parameters
    ----------
    policy
        Not used.
    batch
        The rollout.

    Returns
    -------
    scores
        Shape (N,).

    Examples
    --------
    >>> l1_value_loss(None, _example()).tolist()
    [0.25]
    """
    size: Floats = np.abs(batch.advantages).mean(axis=0)
    return size


def learnability(
    policy: nn.Module | None,
    batch: Rollout,
    *,
    success_return: float = 0.0,
    min_episodes: int = 5,
) -> Floats:
    """`p (1 - p)` of the finished episodes' success rate `p`; NaN below `min_episodes` of them.

    A rollout as long as one episode makes `p` 0 or 1: it takes several episodes a level.

    Parameters
    ----------
    policy
        Not used.
    batch
        The rollout.
    success_return
        An episode with a higher return is a success.
    min_episodes
        The least number of finished episodes.

    Returns
    -------
    scores
        Shape (N,).

    Notes
    -----
    Source: Rutherford et al., *No Regrets*, 2024.

    Examples
    --------
    >>> learnability(None, _example(), min_episodes=2).tolist()
    [0.25]
    """
    if min_episodes < 1:
        raise ValueError(f"min_episodes is {min_episodes!r}; allowed: at least 1")
    found = np.full(batch.shape[1], np.nan)
    for i, returns in enumerate(batch.episode_returns):
        if len(returns) >= min_episodes:
            p = float(np.mean(returns > success_return))
            found[i] = p * (1 - p)
    return found


def marginal_benefit(
    policy: nn.Module,
    batch: Rollout,
    *,
    rerollout: Callable[[nn.Module, int], float],
    step_size: float = 1.0,
) -> Floats:
    """The gain in mean return that a provisional step on a level brings on that level.

    It needs a new rollout after each provisional step, which PACE does without.

    Parameters
    ----------
    policy
        The policy; it is put back as it was.
    batch
        The rollout before the step; NaN on levels without a finished episode.
    rerollout
        From the stepped policy and the number of the level to its mean return there.
    step_size
        Of the plain gradient step, with advantages normalised on the level.

    Returns
    -------
    scores
        Shape (N,).

    Examples
    --------
    >>> from rl_curriculum.pace import MLPPolicy
    >>> marginal_benefit(MLPPolicy(1, 2), _example(), rerollout=lambda policy, i: 0.75).tolist()
    [0.25]
    """
    data = {
        "advantages": torch.as_tensor(
            normalised(batch.advantages, "level"), dtype=next(policy.parameters()).dtype
        )
    }
    own = named_trainable(policy)
    flows = each_level(
        policy,
        lambda logp, entropy, value, d: -(d["advantages"] * logp).mean(),
        list(own),
        batch.obs,
        batch.actions,
        batch.starts,
        batch.hidden0,
        data,
        method="loop",
    )
    before = [r.mean() if len(r) else np.nan for r in batch.episode_returns]
    found = np.empty(len(before))
    kept = {name: p.detach().clone() for name, p in own.items()}
    try:
        for i, mean in enumerate(before):
            with torch.no_grad():
                for name, p in own.items():
                    p.copy_(kept[name] - step_size * flows[name][i])
            found[i] = rerollout(policy, i) - mean
    finally:
        with torch.no_grad():
            for name, p in own.items():
                p.copy_(kept[name])
    return found


def random_score(
    policy: nn.Module | None, batch: Rollout, *, seed: int | np.random.Generator = 0
) -> Floats:
    """Uniform scores: what replay does by itself, whatever the score.

    Parameters
    ----------
    policy
        Not used.
    batch
        The rollout.
    seed
        An integer, or a generator that goes on from call to call.

    Returns
    -------
    scores
        Shape (N,), in [0, 1).

    Examples
    --------
    >>> random_score(None, _example(), seed=0).round(3).tolist()
    [0.637]
    """
    return np.random.default_rng(seed).random(batch.shape[1])


def _mean_over_episodes(batch: Rollout, per_step: Floats) -> Floats:
    found = np.full(batch.shape[1], np.nan)
    for i in range(batch.shape[1]):
        episodes = [per_step[part, i].mean() for part in _episodes(batch, i)]
        if episodes:
            found[i] = np.mean(episodes)
    return found


def _episodes(batch: Rollout, level: int) -> Iterator[slice]:
    start = 0
    for end in np.flatnonzero(batch.done[:, level]) + 1:
        yield slice(start, int(end))
        start = int(end)


def _example() -> Rollout:
    """Two episodes on one level, the second a success; for the examples of this file."""
    done = np.array([[False], [True], [False], [True]])
    return Rollout(
        obs=torch.zeros(4, 1, 1),
        actions=torch.zeros(4, 1, dtype=torch.long),
        logp=torch.zeros(4, 1),
        values=np.array([[0.25], [0.25], [0.25], [0.25]]),
        rewards=np.array([[0.0], [0.0], [0.0], [1.0]]),
        terminated=done,
        truncated=~done & done,
        last_value=np.zeros(1),
        gamma=1.0,
        gae_lambda=0.0,
    )
