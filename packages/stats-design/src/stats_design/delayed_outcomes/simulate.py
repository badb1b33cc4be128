"""Populations with known potential outcomes, their assignment, and their truth over time."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from stats_design.delayed_outcomes.boundary import Floats, check_alpha

Kind = Literal["staggered", "pull_forward", "null", "sparse", "heavy_tail"]
KINDS = ("staggered", "pull_forward", "null", "sparse", "heavy_tail")
POTENTIAL = ("entry_time", "time_0", "time_1", "value_0", "value_1", "propensity")


def potential_frame(
    entry: ArrayLike,
    times: tuple[ArrayLike, ArrayLike],
    values: tuple[ArrayLike, ArrayLike],
    propensity: ArrayLike,
) -> pd.DataFrame:
    """A table of potential outcomes: `entry_time`, `time_w`, `value_w` and `propensity`."""
    n = len(np.asarray(entry))
    columns = (entry, times[0], times[1], values[0], values[1], propensity)
    return pd.DataFrame(
        {
            name: np.broadcast_to(np.asarray(column, dtype=np.float64), n)
            for name, column in zip(POTENTIAL, columns, strict=True)
        }
    )


def simulate_dataset(
    kind: Kind, n: int, seed: int | np.random.Generator, *, propensity: float = 0.5
) -> pd.DataFrame:
    """Units entering over 30 days whose outcome times and values depend on the arm.

    Parameters
    ----------
    kind
        `"staggered"`: the treatment makes more outcomes happen, sooner, and each is worth less,
        with weekly cycles of delay and value. `"pull_forward"`: the same outcomes, sooner.
        `"null"`: no difference. `"sparse"`: as staggered, with 3% and 5% of outcomes.
        `"heavy_tail"`: as staggered, with values of infinite fourth moment.
    n
        Number of units, at least 1.
    seed
        Seed or generator.
    propensity
        Probability of treatment of every unit.

    Returns
    -------
    pandas.DataFrame
        One row a unit, in the order of entry; times infinite where the outcome never happens.

    Examples
    --------
    >>> simulate_dataset("null", 3, 0).shape
    (3, 6)
    """
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}; allowed: one of {KINDS}")
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1:
        raise ValueError(f"n is {n!r}; allowed: an integer of at least 1")
    check_alpha(propensity, "propensity")
    rng = np.random.default_rng(seed)
    entry = np.sort(rng.uniform(0, 30, n))
    season = np.sin(2 * np.pi * entry / 7)
    uniform = rng.random(n)
    delay = rng.exponential(size=n) * (1 + 0.5 * season)
    if kind == "heavy_tail":
        value = (1 + rng.pareto(3.0, n)) * (1 + 0.3 * season)
    else:
        value = np.exp(rng.normal(0, 0.5, n)) * (1 + 0.3 * season)
    shares = {"pull_forward": (0.7, 0.7), "null": (0.7, 0.7), "sparse": (0.03, 0.05)}
    share0, share1 = shares.get(kind, (0.70, 0.85))
    slow, quick = (8.0, 8.0) if kind == "null" else (8.0, 4.0)
    factor = 1.0 if kind in ("null", "pull_forward") else 0.8
    time0 = np.where(uniform < share0, entry + slow * delay, np.inf)
    time1 = np.where(uniform < share1, entry + quick * delay, np.inf)
    return potential_frame(entry, (time0, time1), (value, factor * value), propensity)


def check_potential(potential: pd.DataFrame) -> None:
    """Refuse a table that is not one of potential outcomes."""
    missing = [c for c in POTENTIAL if c not in potential.columns]
    if missing:
        raise ValueError(
            f"potential lacks the columns {missing}; allowed: a table with {POTENTIAL}"
        )


def assign(
    potential: pd.DataFrame,
    seed: int | np.random.Generator | None = None,
    *,
    assigned: ArrayLike | None = None,
) -> pd.DataFrame:
    """Assign every unit and keep what would then be observed.

    Parameters
    ----------
    potential
        From `simulate_dataset` or `potential_frame`.
    seed
        For a random assignment with the units' propensities.
    assigned
        A given assignment instead, 0 or 1 a unit.

    Returns
    -------
    pandas.DataFrame
        Units as `delayed_confseq` takes them.

    Examples
    --------
    >>> units = assign(simulate_dataset("staggered", 100, seed=0), seed=1)
    >>> sorted(units["treatment"].unique().tolist())
    [0, 1]
    """
    check_potential(potential)
    if (seed is None) == (assigned is None):
        raise ValueError("allowed: exactly one of seed and assigned")
    p = potential["propensity"].to_numpy()
    if assigned is None:
        arm = (np.random.default_rng(seed).random(len(p)) < p).astype(np.int64)
    else:
        arm = np.asarray(assigned, dtype=np.int64)
        if arm.shape != p.shape or not np.all((arm == 0) | (arm == 1)):
            raise ValueError(f"assigned is {assigned!r}; allowed: {len(p)} numbers, each 0 or 1")
    treated = arm == 1
    return pd.DataFrame(
        {
            "entry_time": potential["entry_time"].to_numpy(),
            "treatment": arm,
            "propensity": p,
            "outcome_time": np.where(treated, potential["time_1"], potential["time_0"]),
            "outcome_value": np.where(treated, potential["value_1"], potential["value_0"]),
        }
    )


def totals(potential: pd.DataFrame, times: ArrayLike) -> tuple[Floats, Floats]:
    """True total rewards of arms 0 and 1 by each time, each of shape (T,)."""
    looks = np.atleast_1d(np.asarray(times, dtype=np.float64))
    found = []
    for w in (0, 1):
        moments = potential[f"time_{w}"].to_numpy()
        order = np.argsort(moments, kind="stable")
        sums = np.concatenate([[0.0], np.cumsum(potential[f"value_{w}"].to_numpy()[order])])
        found.append(sums[np.searchsorted(moments[order], looks, side="right")])
    return found[0], found[1]


def clocks(potential: pd.DataFrame, time: float = np.inf) -> tuple[float, float]:
    r"""True variance clocks $\sum \frac{1-\pi}{\pi} y^2$ of arms 0 and 1 by a time."""
    found = []
    for w in (0, 1):
        p = potential["propensity"].to_numpy()
        p = p if w else 1 - p
        moments = potential[f"time_{w}"].to_numpy()
        happened = np.isfinite(moments) & (moments <= time)
        found.append(float(np.sum(((1 - p) / p * potential[f"value_{w}"] ** 2)[happened])))
    return found[0], found[1]


def event_times(potential: pd.DataFrame) -> NDArray[np.float64]:
    """All finite potential event times of both arms, increasing, without repetition."""
    both = np.concatenate([potential["time_0"].to_numpy(), potential["time_1"].to_numpy()])
    return np.unique(both[np.isfinite(both)])
