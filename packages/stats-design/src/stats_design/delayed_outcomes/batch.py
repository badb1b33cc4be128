"""Confidence sequences over a finished table, one row a unit."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from stats_design.delayed_outcomes.boundary import Floats
from stats_design.delayed_outcomes.design import (
    LARGEST_VALUE,
    Arm,
    Design,
    Method,
    PerArm,
    arm_propensities,
    check_arms,
    make_design,
)
from stats_design.delayed_outcomes.exact import log_growth
from stats_design.delayed_outcomes.intervals import (
    SmallSampleWarning,
    Sums,
    small_sample_note,
    table,
)
from stats_design.delayed_outcomes.timeline import Timeline, regular_times

COLUMNS = ("entry_time", "treatment", "outcome_time", "outcome_value")


@dataclass(frozen=True)
class Units:
    """One row a unit, as arrays: what was assigned, and what has happened to it.

    Attributes
    ----------
    entry, event
        Times of entry and of the event (infinity: not yet), shape (n,).
    arm
        Index of the arm, shape (n,).
    chance
        The unit's probability of the arm it is in, shape (n,).
    value
        Value of the event, 0 where there is none, shape (n,).
    """

    entry: Floats
    event: Floats
    arm: NDArray[np.int64]
    chance: Floats
    value: Floats


def sums_at(units: Units, times: Floats, design: Design) -> Sums:
    """Sums of a table of units at increasing times; an event counts at its own time already."""
    arms, looks = len(design.arms), len(times)
    grids = design.lambdas()
    end = times[-1] if looks else -np.inf
    entered = np.searchsorted(np.sort(units.entry), times, side="right").astype(np.float64)
    happened = np.flatnonzero(np.isfinite(units.event) & (units.event <= end))
    look = np.searchsorted(times, units.event[happened], side="left")
    arm, y, pi = units.arm[happened], units.value[happened], units.chance[happened]
    cell = arm * looks + look

    def totals(weights: Floats | None) -> Floats:
        per_look = np.bincount(cell, weights, minlength=arms * looks).reshape(arms, looks)
        return np.asarray(np.cumsum(per_look, axis=1, dtype=np.float64))

    growth = np.zeros((arms, looks, len(grids[0])))
    if len(grids[0]):
        for a, lambdas in enumerate(grids):
            mine = np.flatnonzero(arm == a)
            for j in range(len(lambdas)):
                terms = log_growth(y[mine], pi[mine], lambdas[j : j + 1])[:, 0]
                growth[a, :, j] = np.bincount(look[mine], terms, minlength=looks)
        np.cumsum(growth, axis=1, out=growth)
    return Sums(entered, totals(None), totals(y / pi), totals((1 - pi) * (y / pi) ** 2), growth)


def check_columns(columns: Iterable[str], wanted: Sequence[str], name: str) -> None:
    """Refuse a table that lacks a column, or has it twice."""
    counts = Counter(columns)
    missing = [c for c in wanted if not counts[c]]
    if missing:
        raise ValueError(f"{name} lacks the columns {missing}; allowed: a table with {wanted}")
    twice = [c for c in wanted if counts[c] > 1]
    if twice:
        raise ValueError(f"{name} has the columns {twice} twice; allowed: each once")


def number_column(frame: pd.DataFrame, name: str) -> Floats:
    """A column as float64, missing values as NaN; ValueError if it is not all numbers."""
    try:
        return np.asarray(frame[name].to_numpy(dtype=np.float64, na_value=np.nan))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{name} is not all numbers: {error}; allowed: numbers") from None


def check_values(
    values: Floats,
    happened: NDArray[np.bool_],
    value_range: tuple[float, float] | None,
    name: str,
) -> None:
    """Refuse values of events that are missing, infinite or outside the declared range."""
    bad = happened & ~(np.abs(values) <= LARGEST_VALUE)
    if bad.any():
        row = np.flatnonzero(bad)[0]
        raise ValueError(
            f"{name} is {values[row]} in row {row}, where there is an event; allowed: a number "
            f"within {LARGEST_VALUE:g} of 0"
        )
    if value_range is not None:
        bad = happened & ((values < value_range[0]) | (values > value_range[1]))
        if bad.any():
            row = np.flatnonzero(bad)[0]
            raise ValueError(
                f"{name} is {values[row]} in row {row}; allowed: within value_range = {value_range}"
            )


def arm_indices(labels: pd.Series[Any], arms: tuple[Arm, ...], name: str) -> NDArray[np.int64]:
    """Positions of labels among the arms; ValueError for an unknown one."""
    index = pd.Index(arms, dtype=object).get_indexer(pd.Index(labels.astype(object)))
    unknown = np.flatnonzero(index < 0)
    if len(unknown):
        label = labels.astype(object).iloc[unknown[0]]
        raise ValueError(f"{name} is {label!r} in row {unknown[0]}; allowed: one of {arms}")
    return np.asarray(index, dtype=np.int64)


def read_units(units: pd.DataFrame, arms: tuple[Arm, ...], shared: Any) -> tuple[Units, Timeline]:
    """Check a table of units and turn it into arrays.

    `shared` is the propensity that all units have (anything not None), or None if the table has a
    column `propensity`: the probability of the second of two arms, or of the unit's own arm if
    there are more.
    """
    wanted = [*COLUMNS, *([] if shared is not None else ["propensity"])]
    check_columns(units.columns, wanted, "units")
    timeline = Timeline.of(units["entry_time"], "entry_time")
    entry = timeline.numbers(units["entry_time"], "entry_time")
    if not np.all(np.isfinite(entry)):
        row = np.flatnonzero(~np.isfinite(entry))[0]
        raise ValueError(f"entry_time is missing in row {row}; allowed: a time for every unit")
    event = timeline.numbers(units["outcome_time"], "outcome_time")
    event = np.where(np.isnan(event), np.inf, event)
    if np.any(event < entry):
        row = np.flatnonzero(event < entry)[0]
        raise ValueError(f"outcome_time is before entry_time in row {row}; allowed: not before")
    arm = arm_indices(units["treatment"], arms, "treatment")
    if shared is None:
        chance = number_column(units, "propensity")
        bad = ~((chance > 0) & (chance < 1))
        if bad.any():
            row = np.flatnonzero(bad)[0]
            raise ValueError(f"propensity is {chance[row]} in row {row}; allowed: in (0, 1)")
        if len(arms) == 2:
            chance = np.where(arm == 1, chance, 1 - chance)
    else:
        chance = np.asarray(shared, dtype=np.float64)[arm]
    value = np.where(np.isfinite(event), number_column(units, "outcome_value"), 0.0)
    return Units(entry, event, arm, chance, value), timeline


def smallest_by_arm(units: Units, arms: int) -> tuple[float, ...]:
    """Smallest probability of each arm that the units show.

    With two arms a unit shows both probabilities, whatever its assignment. With more it shows only
    that of its own arm: these smallest ones depend on the assignment, and can refute what was
    declared but not replace it.
    """
    if arms == 2:
        second = np.where(units.arm == 1, units.chance, 1 - units.chance)
        return (float(np.min(1 - second, initial=0.5)), float(np.min(second, initial=0.5)))
    return tuple(float(np.min(units.chance[units.arm == k], initial=1.0)) for k in range(arms))


def check_smallest(units: Units, declared: tuple[float, ...]) -> None:
    """Refuse units whose probabilities are below the declared smallest ones."""
    seen = smallest_by_arm(units, len(declared))
    if any(have < least - 1e-12 for have, least in zip(seen, declared, strict=True)):
        raise ValueError(
            f"propensity goes down to {seen} in the arms; allowed: not below "
            f"smallest_propensity = {declared}"
        )


def target_clock_from_pilot(
    pilot: pd.DataFrame,
    expected_entries: float,
    *,
    arms: Sequence[Arm] = (0, 1),
    propensity: float | Sequence[float] | Mapping[Any, float] | None = None,
) -> dict[Arm, float]:
    """Target clocks from an earlier experiment, scaled to the number of entries expected.

    Parameters
    ----------
    pilot
        Units as in `delayed_confseq`; none of them may be part of the run that is tuned.
    expected_entries
        Units expected to enter over the run, in all arms together.
    arms, propensity
        As in `delayed_confseq`.

    Returns
    -------
    dict
        From arm to the clock to give as `target_clock`.

    Examples
    --------
    >>> from stats_design.delayed_outcomes import assign, simulate_dataset
    >>> pilot = assign(simulate_dataset("staggered", 300, seed=0), seed=1)
    >>> once = target_clock_from_pilot(pilot, expected_entries=300)
    >>> twice = target_clock_from_pilot(pilot, expected_entries=600)
    >>> round(twice[1] / once[1], 6)
    2.0
    """
    labels = check_arms(arms)
    if not (np.isfinite(expected_entries) and expected_entries > 0):
        raise ValueError(
            f"expected_entries is {expected_entries!r}; allowed: a positive finite number"
        )
    units, _ = read_units(pilot, labels, arm_propensities(propensity, labels))
    check_values(units.value, np.isfinite(units.event), None, "outcome_value")
    terms = (1 - units.chance) * (units.value / units.chance) ** 2
    clocks = np.bincount(units.arm, terms, minlength=len(labels)) / max(len(pilot), 1)
    clocks *= expected_entries
    if not np.all(clocks > 0):
        raise ValueError("pilot has an arm without events; allowed: events in every arm")
    return dict(zip(labels, clocks.tolist(), strict=True))


def delayed_confseq(
    units: pd.DataFrame | str | Path | Any,
    times: Any = None,
    *,
    every: Any = None,
    arms: Sequence[Arm] = (0, 1),
    propensity: float | Sequence[float] | Mapping[Any, float] | None = None,
    alpha: float = 0.05,
    method: Method = "auto",
    value_range: tuple[float, float] | None = None,
    expected_events: PerArm = None,
    value_scale: float | None = None,
    target_clock: PerArm = None,
    eta2: PerArm = None,
    alpha_split: PerArm = None,
    smallest_propensity: PerArm = None,
    augmentation: Mapping[Any, str] | None = None,
    connection: Any = None,
) -> pd.DataFrame:
    r"""Intervals, valid at every look, for the reward recorded so far under each arm.

    At time t: how much reward would have been recorded by t had all units entered so far been in
    this arm, and how do the arms differ? Units are fixed and only the assignment is random; there
    is no model of the delay, and a unit without an event counts as 0 so far. All arms and contrasts
    hold at all times together with probability at least `1 - alpha`.

    Parameters
    ----------
    units
        One row a unit: `entry_time`, `treatment` (a label of `arms`), `outcome_time` (missing or
        infinite: not yet), `outcome_value` (ignored where there is no outcome) and, unless
        `propensity` is given, `propensity` (probability of the second of two arms; of the unit's
        own arm if there are more). A DataFrame; or, aggregated inside DuckDB (extra `duckdb`): a
        DuckDB relation, the path of a Parquet file or folder, or a SQL query.
    times
        Times to look at. Default: every time with an event, or regular ones with `every`.
    every
        Spacing of regular times from the first entry on, such as `"1D"` or a number.
    arms, propensity, alpha, method, value_range, expected_events, value_scale, target_clock, \
eta2, alpha_split, smallest_propensity
        See `make_design`.
    augmentation
        From arm labels to columns of predictions; only with a column `due_time`, the predetermined
        time at which a unit's outcome is read. See `synchronous_confseq`.
    connection
        DuckDB connection for a SQL query that refers to its tables.

    Returns
    -------
    pandas.DataFrame
        One row a time; see `intervals.table` for its columns.

    Raises
    ------
    ValueError, TypeError
        Naming the argument or column, what came and what is allowed.
    NotImplementedError
        For `augmentation` without `due_time`.

    Source: Theorems 4.4, 4.6 and 4.9; the exact method extends them to finite samples.

    Examples
    --------
    >>> units = pd.DataFrame({
    ...     "entry_time": [0.0, 0.0, 1.0, 2.0],
    ...     "treatment": [1, 0, 1, 0],
    ...     "outcome_time": [3.0, 5.0, None, 4.0],
    ...     "outcome_value": [1.0, 1.0, None, 1.0],
    ... })
    >>> frame = delayed_confseq(
    ...     units, [3, 5], propensity=0.5, value_range=(0, 1), expected_events=4, value_scale=1
    ... )
    >>> frame[["time", "estimate_0", "estimate_1", "effect", "p_value"]].values.tolist()
    [[3.0, 0.0, 2.0, 2.0, 1.0], [5.0, 4.0, 2.0, -2.0, 1.0]]
    """
    labels = check_arms(arms)
    settings: dict[str, Any] = {
        "arms": labels,
        "propensity": propensity,
        "alpha": alpha,
        "method": method,
        "value_range": value_range,
        "expected_events": expected_events,
        "value_scale": value_scale,
        "target_clock": target_clock,
        "eta2": eta2,
        "alpha_split": alpha_split,
    }
    if not isinstance(units, pd.DataFrame):
        if augmentation is not None:
            raise NotImplementedError("augmentation needs the units in memory, as a DataFrame")
        from stats_design.delayed_outcomes.relation import confseq_of_relation

        return confseq_of_relation(
            units, times, every, connection, smallest_propensity=smallest_propensity, **settings
        )
    if augmentation is not None:
        from stats_design.delayed_outcomes.synchronous import augmented

        return augmented(units, times, every, augmentation, settings)
    arrays, timeline = read_units(units, labels, arm_propensities(propensity, labels))
    if propensity is None and smallest_propensity is None and len(labels) == 2:
        smallest_propensity = smallest_by_arm(arrays, 2)
    design = make_design(smallest_propensity=smallest_propensity, **settings)
    if propensity is None and design.method == "exact" and design.smallest_propensity is not None:
        check_smallest(arrays, design.smallest_propensity)
    happened = np.isfinite(arrays.event)
    check_values(arrays.value, happened, design.value_range, "outcome_value")
    looks = look_times(timeline, times, every, arrays.entry, arrays.event)
    sums = sums_at(arrays, looks, design)
    if len(looks):
        note = small_sample_note(design, sums.events[:, -1])
        if note:
            warnings.warn(note, SmallSampleWarning, stacklevel=2)
    return table(design, sums, timeline.back(looks))


def look_times(timeline: Timeline, times: Any, every: Any, entry: Floats, event: Floats) -> Floats:
    """The times to look at as increasing numbers."""
    if times is not None and every is not None:
        raise ValueError("times and every are both given; allowed: one of them")
    if times is not None:
        listed = times if np.ndim(times) else [times]
        looks = timeline.numbers(listed, "times")
        if not np.all(np.isfinite(looks)):
            raise ValueError("times has missing or infinite ones; allowed: finite times")
        if np.any(np.diff(looks) < 0):
            raise ValueError("times go backwards; allowed: increasing times")
        return looks
    happened = event[np.isfinite(event)]
    if every is None:
        return np.unique(happened)
    step = timeline.step(every)
    if not len(entry):
        return np.empty(0)
    end = max(float(np.max(happened, initial=-np.inf)), float(entry.max()))
    return regular_times(float(entry.min()), end, step)
