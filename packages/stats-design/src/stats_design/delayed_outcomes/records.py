"""Tables of records taken into a ledger, in the order of their times."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from stats_design.delayed_outcomes.batch import arm_indices, check_columns
from stats_design.delayed_outcomes.design import Arm
from stats_design.delayed_outcomes.ledger import Ledger
from stats_design.delayed_outcomes.timeline import Timeline

Seen = dict[int, list[tuple[float, float]]]


@dataclass(frozen=True)
class Records:
    """Entries and outcomes in the order of time, entries first at the same time.

    `arm` is the index of an entry's arm and -1 for an outcome; `number` is an entry's propensity
    (None: the shared one) or an outcome's value.
    """

    unit: list[Any]
    time: list[float]
    arm: list[int]
    number: list[Any]


def timeline_of(entries: pd.DataFrame | None, outcomes: pd.DataFrame | None) -> Timeline | None:
    """The timeline of the first table that has a time."""
    for frame, name in ((entries, "entries"), (outcomes, "outcomes")):
        if frame is not None and "time" in frame and frame["time"].notna().any():
            return Timeline.of(frame["time"], f"time of {name}")
    return None


def read_records(
    entries: pd.DataFrame | None,
    outcomes: pd.DataFrame | None,
    arms: tuple[Arm, ...],
    timeline: Timeline,
) -> Records:
    """Check the tables' columns and put their rows into one order."""
    units: list[Any] = []
    times: list[np.ndarray[Any, Any]] = []
    indices: list[int] = []
    numbers: list[Any] = []
    for frame, name, wanted in (
        (entries, "entries", ["unit", "time", "arm"]),
        (outcomes, "outcomes", ["unit", "time"]),
    ):
        if frame is None or (frame.empty and not len(frame.columns)):
            continue
        check_columns(frame.columns, wanted, name)
        if frame["unit"].isna().any():
            raise ValueError(f"unit is missing in a row of {name}; allowed: text or integers")
        units += frame["unit"].tolist()
        times.append(timeline.numbers(frame["time"], f"time of {name}"))
        if name == "entries":
            indices += arm_indices(frame["arm"], arms, "arm").tolist()
            column, default = "propensity", None
        else:
            indices += [-1] * len(frame)
            column, default = "value", 1.0
        if column in frame:
            try:
                numbers += pd.to_numeric(frame[column]).astype(float).tolist()
            except (ValueError, TypeError, OverflowError) as error:
                raise ValueError(
                    f"{column} of {name} is not all numbers: {error}; allowed: finite numbers"
                ) from None
        else:
            numbers += [default] * len(frame)
    if not units:
        return Records([], [], [], [])
    at = np.concatenate(times)
    order = np.lexsort((np.array(indices) < 0, at)).tolist()
    moments = at.tolist()
    return Records(
        [units[i] for i in order],
        [moments[i] for i in order],
        [indices[i] for i in order],
        [numbers[i] for i in order],
    )


def take_in(ledger: Ledger, records: Records, seen: Seen, *, skip: bool) -> int:
    """Add records to a ledger; return how many were new.

    With `skip`, a record that is in already with the same content is passed over. `seen` holds the
    single outcomes behind the sums of windows, which the ledger does not keep; it is extended.
    """
    new = 0
    windows = ledger.recurrent == "sum_window"
    ingest = ledger.late == "ingest"
    # Two equal outcomes of a unit may both be genuine: only as many as are in already are passed
    # over.
    earlier = {row: Counter(found) for row, found in seen.items()} if skip and windows else {}
    now: Counter[tuple[int, float, float]] = Counter()
    none: Counter[tuple[float, float]] = Counter()
    for unit, at, arm, number in zip(
        records.unit, records.time, records.arm, records.number, strict=True
    ):
        row = ledger.row.get(unit)
        if arm >= 0:
            if skip and row is not None:
                _check_same(ledger, unit, row, at, arm, number)
                continue
            ledger.enter(unit, at, arm, number)
            new += 1
            continue
        if row is None:
            if any(u == unit and a >= 0 for u, a in zip(records.unit, records.arm, strict=True)):
                raise ValueError(
                    f"outcome of unit {unit!r} is before its entry; allowed: not before"
                )
            raise KeyError(f"unit {unit!r} has not entered; allowed: outcomes of entered units")
        if not -math.inf < at < math.inf:
            continue
        if windows:
            if skip:
                now[row, at, number] += 1
                if now[row, at, number] <= earlier.get(row, none)[at, number]:
                    continue
            seen.setdefault(row, []).append((at, number))
        elif skip:
            event = ledger.event[row]
            same_time = event == at or (ingest and at < event < math.inf)
            if same_time and ledger.value[row] == number:
                continue
        ledger.outcome(unit, row, at, number)
        new += 1
    return new


def _check_same(
    ledger: Ledger, unit: Any, row: int, at: float, arm: int, propensity: float | None
) -> None:
    entry = ledger.entry[row]
    same_time = entry == at or (ledger.late == "ingest" and entry > at)
    chance = ledger.chance_of(arm, propensity)
    if not (same_time and ledger.arm[row] == arm and ledger.chance[row] == chance):
        raise ValueError(
            f"unit {unit!r} has entered already with another time, arm or propensity; allowed: one "
            "entry a unit, never re-assigned"
        )
