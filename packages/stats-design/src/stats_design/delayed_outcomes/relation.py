"""Confidence sequences over tables larger than memory: one plain SQL query, then the aggregate.

`aggregate_query` writes the query. DuckDB runs it here; any warehouse can run it elsewhere, since
it uses nothing but `CASE`, comparisons, `LN`, `EXP`, `ABS`, `SUM` and `COUNT`. Its result has a row
for each arm and look, whatever the number of units; `confseq_of_aggregate` turns it into intervals.

The look of a record is found by a balanced tree of `CASE` over the times to look at, so that times
may be irregular and of any type, and a record counts at its own time as in memory.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd

from stats_design.delayed_outcomes.batch import check_columns, look_times
from stats_design.delayed_outcomes.boundary import Floats
from stats_design.delayed_outcomes.design import (
    LARGEST_VALUE,
    Arm,
    Design,
    PerArm,
    make_design,
)
from stats_design.delayed_outcomes.intervals import (
    SmallSampleWarning,
    Sums,
    small_sample_note,
    table,
)
from stats_design.delayed_outcomes.sources import fetch, open_relation, with_timeline
from stats_design.delayed_outcomes.timeline import AWARE, NUMBER, Timeline

_LARGEST = "1.7976931348623157e308"
# The year 2223, in microseconds: later timestamps, such as 'infinity', mean "not yet".
_FOREVER = 8e15
_PROBLEMS = {
    "bad_entry": "a missing or infinite entry_time",
    "bad_arm": "a treatment that is no arm",
    "bad_propensity": "a propensity outside (0, 1) or below smallest_propensity",
    "bad_order": "an outcome_time before the entry_time",
    "bad_value": "an outcome whose value is missing, too large or outside value_range",
}
_MOST_LOOKS = 20_000


def _number(value: float) -> str:
    # The exponent makes it a double everywhere; a plain 0.1 is a decimal in some dialects.
    text = repr(float(value))
    return text if "e" in text else text + "e0"


def _label(arm: Arm) -> str:
    return str(arm) if isinstance(arm, int) else "'" + str(arm).replace("'", "''") + "'"


def _moment(timeline: Timeline, at: float) -> str:
    if timeline.kind == NUMBER:
        return _number(at)
    text = str(np.datetime64(int(at), "us")).replace("T", " ")
    return (
        f"CAST('{text}+00:00' AS TIMESTAMPTZ)" if timeline.kind == AWARE else f"TIMESTAMP '{text}'"
    )


def _tree(column: str, moments: list[str], first: int = 0) -> str:
    """The index of the first moment at or after a column that is at most the last moment."""
    if len(moments) == 1:
        return str(first)
    half = (len(moments) + 1) // 2
    left, right = _tree(column, moments[:half], first), _tree(column, moments[half:], first + half)
    return f"CASE WHEN {column} <= {moments[half - 1]} THEN {left} ELSE {right} END"


def aggregate_query(source: str, times: Any, design: Design) -> str:
    r"""The SQL query that sums a table of units per arm and look.

    Parameters
    ----------
    source
        What stands after `FROM`: a table's name or a query in parentheses, with the columns
        `entry_time`, `treatment`, `outcome_time`, `outcome_value` and, unless the design fixes it,
        `propensity`.
    times
        Increasing times to look at, at most 20,000.
    design
        From `make_design`.

    Returns
    -------
    str
        A query in DuckDB's dialect (tools such as sqlglot write it in others). Its rows have the
        columns `arm` and `look` (indices), `entered`, `events`, `estimate`, `clock`, `growth_0` ...
        and the counts of rows that are not allowed, `bad_...`. A row counts the records between the
        look before and this one.

    Examples
    --------
    >>> design = make_design(arms=("a", "b"), propensity=0.5, eta2=1.0)
    >>> query = aggregate_query("units", [1.0, 2.0], design)
    >>> "GROUP BY arm, look" in query
    True
    """
    timeline = Timeline.of(times if np.ndim(times) else [times], "times")
    looks = look_times(timeline, times, None, np.empty(0), np.empty(0))
    return _query(source, timeline, looks, design)


def _query(source: str, timeline: Timeline, looks: Floats, design: Design) -> str:
    if not 1 <= len(looks) <= _MOST_LOOKS:
        raise ValueError(f"times has {len(looks)} times; allowed: 1 to {_MOST_LOOKS}")
    moments = [_moment(timeline, at) for at in looks.tolist()]
    arms = " ".join(f"WHEN {_label(arm)} THEN {k}" for k, arm in enumerate(design.arms))
    if design.propensity is not None:
        cases = " ".join(
            f"WHEN {_label(arm)} THEN {_number(p)}"
            for arm, p in zip(design.arms, design.propensity, strict=True)
        )
        chance = f"CASE treatment {cases} END"
    elif len(design.arms) == 2:
        chance = (
            f"CASE treatment WHEN {_label(design.arms[1])} THEN propensity ELSE 1 - propensity END"
        )
    else:
        chance = "propensity"
    numeric = timeline.kind == NUMBER
    bad_entry = "entry_time IS NULL" + (
        f" OR NOT (ABS(entry_time) <= {_LARGEST})" if numeric else ""
    )
    happened = "outcome_time IS NOT NULL" + (
        f" AND ABS(outcome_time) <= {_LARGEST}"
        if numeric
        else f" AND outcome_time <= {_moment(timeline, _FOREVER)}"
    )
    bad_value = f"y IS NULL OR NOT (ABS(y) <= {_number(LARGEST_VALUE)})"
    if design.value_range is not None:
        low, high = design.value_range
        bad_value += f" OR y < {_number(low)} OR y > {_number(high)}"
    bad_chance = "p IS NULL OR NOT (p > 0 AND p < 1)"
    if design.propensity is None and design.method == "exact" and design.smallest_propensity:
        for k, least in enumerate(design.smallest_propensity):
            bad_chance += f" OR (arm = {k} AND p < {_number(least - 1e-12)})"
            if len(design.arms) == 2:
                bad_chance += f" OR (arm = {1 - k} AND 1 - p < {_number(least - 1e-12)})"
    grids = design.lambdas()
    growth = []
    for j in range(len(grids[0])):
        rate = "CASE arm " + " ".join(f"WHEN {k} THEN {_number(g[j])}" for k, g in enumerate(grids))
        x = f"({rate} END * y)"
        # log(1 + (e^x - 1)/p) without the overflow of e^x for large x.
        growth.append(f"SUM({x} + LN((1 - (1 - p) * EXP(-{x})) / p)) AS growth_{j}")
    zeros = ["CAST(0 AS DOUBLE) AS estimate", "CAST(0 AS DOUBLE) AS clock"]
    zeros += [f"CAST(0 AS DOUBLE) AS growth_{j}" for j in range(len(growth))]
    bad = {
        "bad_entry": bad_entry,
        "bad_arm": "arm IS NULL",
        "bad_propensity": f"arm IS NOT NULL AND ({bad_chance})",
        "bad_order": "outcome_time < entry_time",
        "bad_value": f"({happened}) AND ({bad_value})",
    }
    counts = [f"SUM(CASE WHEN {test} THEN 1 ELSE 0 END) AS {name}" for name, test in bad.items()]
    within = f"<= {moments[-1]}"
    sums = ["SUM(y / p) AS estimate", "SUM((1 - p) * (y / p) * (y / p)) AS clock", *growth]
    comma = ",\n    "
    return f"""WITH assigned AS (
  SELECT
    entry_time,
    outcome_time,
    CAST(outcome_value AS DOUBLE) AS y,
    CASE treatment {arms} END AS arm,
    CAST({chance} AS DOUBLE) AS p
  FROM {source}
),
happened AS (
  SELECT arm, p, y, {_tree("outcome_time", moments)} AS look
  FROM assigned
  WHERE outcome_time {within} AND p > 0 AND p < 1 AND NOT ({bad_value})
),
entered AS (
  SELECT
    entry_time, outcome_time, y, arm, p,
    CASE WHEN entry_time {within} THEN {_tree("entry_time", moments)} END AS look
  FROM assigned
)
SELECT
    arm, look, 0 AS entered, COUNT(*) AS events,
    {comma.join(sums)},
    {comma.join(f"0 AS {name}" for name in bad)}
FROM happened
GROUP BY arm, look
UNION ALL
SELECT
    arm, look, COUNT(*) AS entered, 0 AS events,
    {comma.join(zeros)},
    {comma.join(counts)}
FROM entered
GROUP BY arm, look"""


def confseq_of_aggregate(aggregate: pd.DataFrame, times: Any, design: Design) -> pd.DataFrame:
    """Intervals from the result of `aggregate_query`, wherever it was run.

    Parameters
    ----------
    aggregate
        The query's rows, in any order; column names in any case.
    times, design
        Those that the query was written for.

    Returns
    -------
    pandas.DataFrame
        As `delayed_confseq`.

    Raises
    ------
    ValueError
        If the table of units had rows that are not allowed, with their numbers.

    Examples
    --------
    >>> import duckdb
    >>> from stats_design.delayed_outcomes import assign, make_design, simulate_dataset
    >>> units = assign(simulate_dataset("staggered", 200, seed=0), seed=1)
    >>> design = make_design(
    ...     arms=(0, 1), propensity=0.5, method="asymptotic", target_clock=300.0
    ... )
    >>> rows = duckdb.sql(aggregate_query("units", [10.0, 40.0], design)).df()
    >>> confseq_of_aggregate(rows, [10.0, 40.0], design)["time"].tolist()
    [10.0, 40.0]
    """
    timeline = Timeline.of(times if np.ndim(times) else [times], "times")
    looks = look_times(timeline, times, None, np.empty(0), np.empty(0))
    return _finish(aggregate, timeline, looks, design)


def _finish(
    aggregate: pd.DataFrame, timeline: Timeline, looks: Floats, design: Design
) -> pd.DataFrame:
    frame = aggregate.rename(columns=str.lower)
    width = len(design.lambdas()[0])
    wanted = ["arm", "look", "entered", "events", "estimate", "clock", *_PROBLEMS]
    wanted += [f"growth_{j}" for j in range(width)]
    missing = [c for c in wanted if c not in frame.columns]
    if missing:
        raise ValueError(f"aggregate lacks the columns {missing}; allowed: what the query returns")
    counts = {name: int(frame[name].sum()) for name in _PROBLEMS} if len(frame) else {}
    found = [f"{n} rows with {_PROBLEMS[name]}" for name, n in counts.items() if n]
    if found:
        raise ValueError(f"the table of units has {', '.join(found)}; allowed: none")
    frame = frame[frame["look"].notna()]
    arms, size = len(design.arms), len(looks)
    for name, most in (("arm", arms), ("look", size)):
        if not frame[name].between(0, most - 1).all():
            raise ValueError(
                f"aggregate has {name} up to {frame[name].max()}; allowed: 0 to {most - 1}, the "
                f"{name}s that the query was written for"
            )
    cell = frame["arm"].to_numpy(np.int64) * size + frame["look"].to_numpy(np.int64)

    def totals(column: str) -> Floats:
        weights = frame[column].astype(np.float64).to_numpy()
        per_look = np.bincount(cell, weights, minlength=arms * size).reshape(arms, size)
        # Of no rows at all bincount makes integers.
        return np.asarray(np.cumsum(per_look, axis=1, dtype=np.float64))

    growth = np.zeros((arms, size, width))
    for j in range(width):
        growth[:, :, j] = totals(f"growth_{j}")
    sums = Sums(
        totals("entered").sum(axis=0), totals("events"), totals("estimate"), totals("clock"), growth
    )
    note = small_sample_note(design, sums.events[:, -1])
    if note:
        warnings.warn(note, SmallSampleWarning, stacklevel=4)
    return table(design, sums, timeline.back(looks))


def confseq_of_relation(
    source: Any,
    times: Any,
    every: Any,
    connection: Any,
    *,
    smallest_propensity: PerArm,
    **settings: Any,
) -> pd.DataFrame:
    """`delayed_confseq` over what DuckDB can read, aggregated there."""
    relation = open_relation(source, connection)
    wanted = ["entry_time", "treatment", "outcome_time", "outcome_value"]
    wanted += [] if settings["propensity"] is not None else ["propensity"]
    check_columns(relation.columns, wanted, "units")
    if (times is None) == (every is None):
        raise ValueError(
            "a table outside memory needs the times to look at; allowed: exactly one of times and "
            "every"
        )
    two = len(settings["arms"]) == 2
    if settings["propensity"] is None and smallest_propensity is None and two:
        smallest_propensity = _smallest(relation)
    design = make_design(smallest_propensity=smallest_propensity, **settings)
    relation, timeline = with_timeline(relation)
    if every is None:
        looks = look_times(timeline, times, None, np.empty(0), np.empty(0))
    else:
        bounds = fetch(
            relation,
            "SELECT MIN(entry_time) AS first, MAX(entry_time) AS last, MAX(CASE WHEN outcome_time "
            f"<= {_moment(timeline, _FOREVER)} THEN outcome_time END) AS final FROM units",
        )
        first, last, final = (timeline.numbers(bounds[c], c) for c in ("first", "last", "final"))
        if not np.isfinite(first).all():
            raise ValueError("the table of units is empty; allowed: at least one row")
        looks = look_times(timeline, None, every, np.array([first[0], last[0]]), final)
    result = fetch(relation, _query("units", timeline, looks, design))
    return _finish(result, timeline, looks, design)


def _smallest(relation: Any) -> tuple[float, float] | None:
    found = fetch(relation, "SELECT MIN(propensity) AS low, MAX(propensity) AS high FROM units")
    try:
        low, high = float(found["low"][0]), float(found["high"][0])
    except ValueError:
        raise ValueError(
            f"propensity is not all numbers, such as {found['low'][0]!r}; allowed: numbers"
        ) from None
    if np.isnan(low):
        # No row, or none with a propensity, which the aggregation refuses.
        return (0.5, 0.5)
    if not 0 < low <= high < 1:
        raise ValueError(f"propensity goes from {low} to {high}; allowed: within (0, 1)")
    return (1 - high, low)
