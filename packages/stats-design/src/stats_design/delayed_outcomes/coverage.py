"""How often each method misses the truth at any time, over random assignments of one population."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from stats_design.delayed_outcomes.baselines import z_width
from stats_design.delayed_outcomes.boundary import (
    Floats,
    boundary,
    check_alpha,
    eta2_for,
)
from stats_design.delayed_outcomes.exact import lambda_grid, log_growth
from stats_design.delayed_outcomes.simulate import check_potential, clocks, event_times, totals

METHODS = (
    "union",
    "variance_bound",
    "naive",
    "bonferroni",
    "asymptotic_0",
    "asymptotic_1",
    "exact_0",
    "exact_1",
)
_LOOKS = 30
_CELLS = 4_000_000


@dataclass(frozen=True)
class Arm:
    """One arm of a population, its events in the order of time."""

    order: NDArray[np.int64]
    chance: Floats
    value: Floats
    # Number of the arm's events by each time of both arms together.
    index: NDArray[np.int64]

    def path(self, assigned: NDArray[np.bool_], terms: Floats) -> Floats:
        """Sums of `terms` over the assigned units' events, at its own events: (reps, 1 + m)."""
        sums = np.zeros((len(assigned), len(self.order) + 1))
        np.cumsum(assigned[:, self.order] * terms, axis=1, out=sums[:, 1:])
        return sums


def arms_of(potential: pd.DataFrame) -> tuple[list[Arm], Floats]:
    """Both arms of a population, and the times of all potential events."""
    times = event_times(potential)
    found = []
    for w in (0, 1):
        moments = potential[f"time_{w}"].to_numpy()
        order = np.argsort(moments, kind="stable")
        order = order[: int(np.isfinite(moments).sum())]
        p = potential["propensity"].to_numpy()[order]
        found.append(
            Arm(
                order,
                p if w else 1 - p,
                potential[f"value_{w}"].to_numpy()[order],
                np.searchsorted(moments[order], times, side="right"),
            )
        )
    return found, times


def evaluate_coverage(
    potential: pd.DataFrame,
    reps: int,
    methods: Sequence[str] = METHODS,
    *,
    alpha: float = 0.05,
    seed: int | np.random.Generator = 0,
) -> pd.DataFrame:
    """Uniform miss rates over random assignments, checked at every potential event time.

    All sequences are tuned at the population's true total clock. The arms' own sequences run at
    `alpha / 2`, as they do inside the union. `naive` starts after 5% of the events; `bonferroni`
    looks 30 times.

    Parameters
    ----------
    potential
        From `simulate_dataset` or `potential_frame`.
    reps
        Number of assignments.
    methods
        Some of `coverage.METHODS`.
    alpha
        Total level.
    seed
        Seed or generator of the assignments.

    Returns
    -------
    pandas.DataFrame
        `method`, `misses`, `reps`, `miss`, `nominal`, `width` (mean width at the last event).

    Examples
    --------
    >>> from stats_design.delayed_outcomes import simulate_dataset
    >>> table = evaluate_coverage(simulate_dataset("staggered", 50, 0), 200, ["union", "naive"])
    >>> bool(table.miss[0] <= 0.05 < table.miss[1])
    True
    """
    check_potential(potential)
    check_alpha(alpha)
    unknown = [methods] if isinstance(methods, str) else [m for m in methods if m not in METHODS]
    if unknown:
        raise ValueError(f"methods has {unknown}; allowed: a list of some of {METHODS}")
    if not isinstance(reps, (int, np.integer)) or reps < 1:
        raise ValueError(f"reps is {reps!r}; allowed: an integer of at least 1")
    rng = np.random.default_rng(seed)
    p = potential["propensity"].to_numpy()
    arms, times = arms_of(potential)
    if not all(len(arm.order) for arm in arms):
        raise ValueError("potential has an arm without events; allowed: at least one in each")
    misses = dict.fromkeys(methods, 0)
    widths = dict.fromkeys(methods, 0.0)
    block = max(1, _CELLS // (2 * len(times)))
    for start in range(0, reps, block):
        assigned = rng.random((min(block, reps - start), len(p))) < p
        for method in methods:
            missed, width = _missed(method, potential, arms, times, assigned, alpha)
            misses[method] += int(missed.sum())
            widths[method] += float(width.sum())
    rows = [
        {
            "method": m,
            "misses": misses[m],
            "reps": reps,
            "miss": misses[m] / reps,
            "nominal": alpha / 2 if m.endswith(("_0", "_1")) else alpha,
            "width": widths[m] / reps,
        }
        for m in methods
    ]
    return pd.DataFrame(rows)


def _missed(
    method: str,
    potential: pd.DataFrame,
    arms: list[Arm],
    times: Floats,
    assigned: NDArray[np.bool_],
    alpha: float,
) -> tuple[NDArray[np.bool_], Floats]:
    """Which assignments the method misses at some time, and its width at the last event."""
    mine = (~assigned, assigned)
    targets = clocks(potential)
    if method.endswith(("_0", "_1")):
        w = int(method[-1])
        if method.startswith("exact"):
            return _missed_exact(arms[w], mine[w], targets[w], alpha / 2)
        arm = arms[w]
        error = arm.path(mine[w], arm.value / arm.chance)[:, 1:] - np.cumsum(arm.value)
        clock = arm.path(mine[w], (1 - arm.chance) * (arm.value / arm.chance) ** 2)[:, 1:]
        width = boundary(clock, alpha / 2, eta2_for(targets[w], alpha / 2))
        return np.any(np.abs(error) > width, axis=1), 2 * width[:, -1]
    truth = totals(potential, times)
    paths = [
        arm.path(who, arm.value / arm.chance)[:, arm.index]
        for arm, who in zip(arms, mine, strict=True)
    ]
    error = np.abs(paths[1] - paths[0] - (truth[1] - truth[0]))
    if method == "union":
        total = np.zeros_like(error)
        for arm, who, target in zip(arms, mine, targets, strict=True):
            clock = arm.path(who, (1 - arm.chance) * (arm.value / arm.chance) ** 2)
            total += boundary(clock, alpha / 2, eta2_for(target, alpha / 2))[:, arm.index]
        return np.any(error > total, axis=1), 2 * total[:, -1]
    squares = np.zeros_like(error)
    expected = 0.0
    for arm, who in zip(arms, mine, strict=True):
        squares += arm.path(who, (arm.value / arm.chance) ** 2)[:, arm.index]
        expected += float(np.sum(arm.value**2 / arm.chance))
    if method == "variance_bound":
        width = boundary(squares, alpha, eta2_for(expected, alpha))
        return np.any(error > width, axis=1), 2 * width[:, -1]
    if method == "naive":
        looks = np.arange(math.ceil(0.05 * len(times)), len(times))
        width = z_width(squares, alpha)
    else:
        looks = np.unique(np.linspace(0, len(times) - 1, _LOOKS + 1).round().astype(int)[1:])
        width = z_width(squares, alpha / _LOOKS)
    return np.any((error > width)[:, looks], axis=1), 2 * width[:, -1]


def _missed_exact(
    arm: Arm, assigned: NDArray[np.bool_], target: float, level: float
) -> tuple[NDArray[np.bool_], Floats]:
    from stats_design.delayed_outcomes.exact import lower_bound, upper_bound

    bounds = (min(0.0, float(arm.value.min())), max(0.0, float(arm.value.max())))
    lambdas = lambda_grid(target, level, float(arm.chance.min()), bounds)
    half = len(lambdas) // 2
    terms = log_growth(arm.value, arm.chance, lambdas)
    truth = np.cumsum(arm.value)
    threshold = math.log(2 / level) + math.log(half)
    evidence = np.zeros((2, len(assigned), len(truth)))
    final = np.empty((len(assigned), len(lambdas)))
    for j, rate in enumerate(lambdas):
        growth = arm.path(assigned, terms[:, j])[:, 1:]
        final[:, j] = growth[:, -1]
        # Sums of exponentials of at most a threshold matter; cut off far above it.
        evidence[int(j >= half)] += np.exp(np.minimum(growth - rate * truth, 600.0))
    missed = np.any(evidence > math.exp(threshold), axis=(0, 2))
    low = lower_bound(final[:, :half], lambdas[:half], level / 2)
    high = upper_bound(final[:, half:], lambdas[half:], level / 2)
    return missed, np.minimum(high, bounds[1] * len(assigned[0])) - np.maximum(low, 0.0)
