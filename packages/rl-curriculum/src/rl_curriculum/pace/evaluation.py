"""Success on held-out levels, and aggregates that do not flatter: CVaR, IQM, optimality gap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from . import levels as batches
from .levels import Levels
from .ppo import LevelEnv, _tensor

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Evaluation:
    """Returns and lengths of the episodes, shape (levels, episodes), and the success rates."""

    returns: Floats
    lengths: NDArray[np.int64]
    success: NDArray[np.bool_]

    @property
    def rates(self) -> Floats:
        """The success rate of each level, shape (levels,)."""
        rates: Floats = self.success.mean(axis=1)
        return rates


def evaluate(
    policy: nn.Module,
    env: LevelEnv,
    levels: Levels,
    episodes: int = 2,
    *,
    seed: int = 0,
    greedy: bool = False,
    success_return: float = 0.0,
    max_steps: int | None = None,
) -> Evaluation:
    """Run a policy for some episodes on every level.

    Parameters
    ----------
    policy
        With `act`.
    env
        An environment that takes levels; it works through them in chunks of `env.num_envs`.
    levels
        The held-out levels.
    episodes
        Episodes a level; the first ones that end count.
    seed
        Of the actions and of the environment.
    greedy
        Whether to take the likeliest action instead of a draw.
    success_return
        An episode with a higher return is a success.
    max_steps
        Stops after so many steps a chunk; episodes that did not end by then are failures.

    Returns
    -------
    evaluation

    Examples
    --------
    >>> from rl_curriculum.pace import MazeVecEnv, MLPPolicy, PREFABS
    >>> found = evaluate(MLPPolicy(79, 3), MazeVecEnv(1, 20), PREFABS["Labyrinth"], seed=0)
    >>> found.success.shape, found.rates.tolist()
    ((1, 2), [0.0])
    """
    if episodes < 1:
        raise ValueError(f"episodes is {episodes!r}; allowed: at least 1")
    total, n = batches.count(levels), env.num_envs
    if total < 1:
        raise ValueError("levels is empty; allowed: at least one level")
    device = next(policy.parameters()).device
    act: Any = policy.act
    begin: Any = getattr(policy, "initial_hidden", None)
    generator = torch.Generator(device).manual_seed(seed)
    rng = np.random.default_rng(seed)
    returns = np.full((total, episodes), -np.inf)
    lengths = np.zeros((total, episodes), dtype=np.int64)
    was_training = policy.training
    policy.eval()
    try:
        for low in range(0, total, n):
            # The last chunk is filled up with levels whose episodes are not counted.
            chosen = np.arange(low, low + n) % total
            real = np.arange(low, low + n) < total
            obs = env.assign(batches.take(levels, chosen), int(rng.integers(2**31)))
            hidden = begin(n) if begin is not None else None
            starts = torch.ones(n, dtype=torch.bool, device=device)
            done_count = np.where(real, 0, episodes)
            gained, taken = np.zeros(n), np.zeros(n, dtype=np.int64)
            for _ in range(max_steps if max_steps is not None else 2**62):
                with torch.inference_mode():
                    action, _, _, hidden = act(
                        _tensor(obs, device), hidden, starts, None if greedy else generator
                    )
                obs, reward, terminated, truncated, _ = env.step(action.cpu().numpy())
                gained += reward
                taken += 1
                done = np.asarray(terminated) | np.asarray(truncated)
                counted = np.flatnonzero(done & (done_count < episodes))
                returns[chosen[counted], done_count[counted]] = gained[counted]
                lengths[chosen[counted], done_count[counted]] = taken[counted]
                done_count[counted] += 1
                gained[done], taken[done] = 0, 0
                starts = torch.from_numpy(done).to(device)
                if (done_count >= episodes).all():
                    break
    finally:
        policy.train(was_training)
    return Evaluation(returns, lengths, returns > success_return)


def cvar_success(
    rates_a: ArrayLike, rates_b: ArrayLike, alphas: Sequence[float] = (0.01, 0.05, 0.1)
) -> dict[float, float]:
    """Mean success on the worst levels, chosen on one evaluation and reported on a second.

    One evaluation for both is biased low: it picks the unlucky levels too.

    Parameters
    ----------
    rates_a
        Success rates of the levels in the first evaluation, shape (levels,).
    rates_b
        The same levels in the second.
    alphas
        Parts of the levels that count as the worst, each in (0, 1]; at least one level is taken.

    Returns
    -------
    cvar
        By alpha.

    Notes
    -----
    Source: Rutherford et al., *No Regrets*, 2024.

    Examples
    --------
    >>> b = np.zeros(10); b[:2] = 0.3, 0.2
    >>> cvar_success(np.arange(10) / 10, b, [0.2])
    {0.2: 0.25}
    """
    first, second = np.asarray(rates_a, dtype=float), np.asarray(rates_b, dtype=float)
    if first.ndim != 1 or first.shape != second.shape or not len(first):
        raise ValueError(
            f"rates_a and rates_b have shapes {first.shape} and {second.shape}; allowed: one "
            "shape (levels,)"
        )
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        raise ValueError("rates_a and rates_b hold numbers that are not finite")
    order = np.argsort(first, kind="stable")
    found = {}
    for alpha in alphas:
        if not 0 < alpha <= 1:
            raise ValueError(f"alphas has {alpha!r}; allowed: above 0, at most 1")
        worst = order[: max(1, round(alpha * len(order)))]
        found[float(alpha)] = float(second[worst].mean())
    return found


def iqm(scores: ArrayLike) -> float:
    """Interquartile mean of all scores: without the lowest and the highest quarter.

    It hides total failure on a quarter of the tasks: give `optimality_gap` beside it.

    Parameters
    ----------
    scores
        Any shape, such as (seeds, levels).

    Returns
    -------
    mean

    Examples
    --------
    >>> round(iqm([0, 0.1, 0.4, 0.5, 0.6, 0.7, 0.9, 1]), 12)
    0.55
    """
    ordered = np.sort(_finite(scores).ravel())
    cut = int(0.25 * len(ordered))
    return float(ordered[cut : len(ordered) - cut].mean())


def optimality_gap(scores: ArrayLike, target: float = 1.0) -> float:
    """Mean shortfall from `target`, scores above it counting as reaching it.

    Parameters
    ----------
    scores
        Any shape.
    target
        The score that is good enough.

    Returns
    -------
    gap

    Examples
    --------
    >>> round(optimality_gap([0, 0.1, 0.4, 0.5, 0.6, 0.7, 0.9, 1]), 12)
    0.475
    """
    return float(target - np.minimum(_finite(scores), target).mean())


def stratified_bootstrap(
    scores: ArrayLike,
    statistic: Callable[[Floats], float] = iqm,
    *,
    level: float = 0.95,
    draws: int = 2000,
    seed: int | np.random.Generator = 0,
) -> tuple[float, float]:
    """Percentile interval of a statistic, seeds drawn anew within each task.

    Parameters
    ----------
    scores
        Shape (seeds, tasks).
    statistic
        From scores of that shape to a number.
    level
        Of the interval.
    draws
        Bootstrap samples.
    seed
        An integer or a numpy generator.

    Returns
    -------
    low, high

    Notes
    -----
    Source: Agarwal et al., *Deep RL at the Edge of the Statistical Precipice*, 2021.

    Examples
    --------
    >>> stratified_bootstrap(np.full((5, 3), 0.5))
    (0.5, 0.5)
    """
    matrix = _finite(scores)
    if matrix.ndim != 2:
        raise ValueError(f"scores has shape {matrix.shape}; allowed: (seeds, tasks)")
    if not 0 < level < 1:
        raise ValueError(f"level is {level!r}; allowed: between 0 and 1")
    if draws < 1:
        raise ValueError(f"draws is {draws!r}; allowed: at least 1")
    rng = np.random.default_rng(seed)
    seeds, tasks = matrix.shape
    columns = np.arange(tasks)
    found = [
        statistic(matrix[rng.integers(0, seeds, (seeds, tasks)), columns]) for _ in range(draws)
    ]
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _finite(scores: ArrayLike) -> Floats:
    values = np.asarray(scores, dtype=np.float64)
    if not values.size or not np.isfinite(values).all():
        raise ValueError("scores is empty or holds numbers that are not finite")
    return values
