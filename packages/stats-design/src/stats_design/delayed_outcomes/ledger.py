"""The records of a stream and their running sums; times are numbers here."""

from __future__ import annotations

import heapq
import math
from array import array
from typing import Any, Literal

import numpy as np

from stats_design.delayed_outcomes.batch import Units, sums_at
from stats_design.delayed_outcomes.design import LARGEST_VALUE, Design
from stats_design.delayed_outcomes.exact import log_growth
from stats_design.delayed_outcomes.intervals import Sums
from stats_design.delayed_outcomes.timeline import NUMBER, Timeline

Late = Literal["error", "revise", "ingest"]
Recurrent = Literal["error", "first", "sum_window"]
_BUFFER = 1024


def _real(value: Any, what: str) -> float:
    """A single number as a float; TypeError for text and what else is none."""
    try:
        if not isinstance(value, str):
            return float(value)
    except (TypeError, ValueError):
        pass
    raise TypeError(f"{what} is {value!r}; allowed: a number")


class LateEventError(ValueError):
    """A time before the watermark: intervals that should have counted it may be out already."""


class DuplicateOutcomeError(ValueError):
    """A second outcome for a unit whose assignment its first outcome has revealed."""


class Ledger:
    """Units and their events by row, with the sums that a snapshot needs kept up to date.

    Columns by row: `entry`, `arm`, `chance` (probability of the unit's own arm), `event` (infinity:
    not yet) and `value`. Sums by arm: `events`, `estimate`, `clock`, `growth`.
    """

    def __init__(self, design: Design, late: Late, recurrent: Recurrent) -> None:
        if late not in ("error", "revise", "ingest"):
            raise ValueError(f"late is {late!r}; allowed: 'error', 'revise', 'ingest'")
        if recurrent not in ("error", "first", "sum_window"):
            raise ValueError(f"recurrent is {recurrent!r}; allowed: 'error', 'first', 'sum_window'")
        self.design = design
        self.late: Late = late
        self.recurrent: Recurrent = recurrent
        self.timeline: Timeline | None = None
        self.span = math.nan
        self.now = -math.inf
        self.row: dict[str | int, int] = {}
        self.entry = array("d")
        self.arm = array("q")
        self.chance = array("d")
        self.event = array("d")
        self.value = array("d")
        self.revised: list[tuple[float, float]] = []
        # Units with an outcome in a window that has not closed, as (closing time, row).
        self.open: list[tuple[float, int]] = []
        self.partial: dict[int, float] = {}
        # Former (event, value) of rows changed since `begin`, so that `undo` can restore them.
        self._journal: dict[int, tuple[float, float]] | None = None
        self._saved: tuple[Any, ...] = ()
        self.retune(design)

    def retune(self, design: Design) -> None:
        """Take other settings; only before the first event."""
        self.design = design
        self._lambdas = design.lambdas()
        arms = len(design.arms)
        self.events = [0] * arms
        self.estimate = [0.0] * arms
        self.clock = [0.0] * arms
        self.growth = np.zeros((arms, len(self._lambdas[0])))
        # Events whose growth is not in `growth` yet: a vectorised block is much cheaper.
        self._buffer: list[tuple[list[float], list[float]]] = [([], []) for _ in range(arms)]

    def chance_of(self, arm: int, propensity: float | None) -> float:
        """Probability of a unit's own arm; ValueError if it is not allowed."""
        design = self.design
        if propensity is not None:
            propensity = _real(propensity, "propensity")
        if propensity is None or math.isnan(propensity):
            if design.propensity is None:
                raise ValueError("propensity is missing; allowed: one for the monitor or each unit")
            return design.propensity[arm]
        if not 0 < propensity < 1:
            raise ValueError(f"propensity is {propensity!r}; allowed: a number in (0, 1)")
        two = len(design.arms) == 2
        if design.method == "exact" and design.smallest_propensity is not None:
            chances = {0: 1 - propensity, 1: propensity} if two else {arm: propensity}
            for k, chance in chances.items():
                if chance < design.smallest_propensity[k] - 1e-12:
                    raise ValueError(
                        f"propensity is {propensity!r}; allowed: not below smallest_propensity = "
                        f"{design.smallest_propensity}"
                    )
        return 1 - propensity if two and arm == 0 else propensity

    def enter(self, unit: str | int, at: float, arm: int, propensity: float | None) -> None:
        """Add a unit."""
        if isinstance(unit, np.integer):
            unit = int(unit)
        if isinstance(unit, bool) or not isinstance(unit, (str, int)):
            raise TypeError(f"unit is {unit!r}; allowed: text or an integer")
        if not math.isfinite(at):
            raise ValueError(f"time of entry of unit {unit!r} is missing; allowed: a finite time")
        if unit in self.row:
            raise ValueError(f"unit {unit!r} has entered already; allowed: one entry a unit")
        chance = self.chance_of(arm, propensity)
        if at < self.now:
            at = self._late_time(at, f"entry of unit {unit!r}")
        elif at > self.now:
            self.advance(at)
        self.row[unit] = len(self.entry)
        self.entry.append(at)
        self.arm.append(arm)
        self.chance.append(chance)
        self.event.append(math.inf)
        self.value.append(0.0)

    def shown(self, at: float) -> Any:
        """A time as the user writes it, None if there is none."""
        if self.timeline is None or not math.isfinite(at):
            return None
        found = self.timeline.back(np.array([at]))[0]
        return float(found) if self.timeline.kind == NUMBER else found

    def _late_time(self, at: float, what: str) -> float:
        if self.late == "error":
            raise LateEventError(
                f"{what} is not after the watermark {self.shown(self.now)}; allowed: times in "
                "order, or late='revise' or 'ingest'"
            )
        if self.late == "ingest":
            return self.now
        self.revised.append((at, self.now))
        return at

    def outcome(self, unit: str | int, row: int, at: float, value: float) -> None:
        """Add an outcome of a unit at a finite time."""
        if at < self.entry[row]:
            raise ValueError(f"outcome of unit {unit!r} is before its entry; allowed: not before")
        if type(value) is not float:
            value = _real(value, f"value of unit {unit!r}")
        # The comparison is false for NaN too.
        if not -LARGEST_VALUE <= value <= LARGEST_VALUE:
            raise ValueError(
                f"value of unit {unit!r} is {value!r}; allowed: within {LARGEST_VALUE:g} of 0"
            )
        if self.recurrent == "sum_window":
            self._outcome_in_window(unit, row, at, value)
            return
        bounds = self.design.value_range
        if bounds is not None and not bounds[0] <= value <= bounds[1]:
            raise ValueError(f"value of unit {unit!r} is {value!r}; allowed: within {bounds}")
        if self.event[row] < math.inf:
            if self.recurrent == "first":
                return
            raise DuplicateOutcomeError(
                f"unit {unit!r} has an outcome already; allowed: one a unit, or recurrent='first' "
                "or 'sum_window'"
            )
        if at < self.now:
            at = self._late_time(at, f"outcome of unit {unit!r}")
        else:
            self.now = at
        self._count(row, at, value)

    def _note(self, row: int) -> None:
        if self._journal is not None:
            self._journal.setdefault(row, (self.event[row], self.value[row]))

    def _count(self, row: int, at: float, value: float) -> None:
        self._note(row)
        self.event[row] = at
        self.value[row] = value
        arm, chance = self.arm[row], self.chance[row]
        weighted = value / chance
        self.events[arm] += 1
        self.estimate[arm] += weighted
        self.clock[arm] += (1 - chance) * weighted * weighted
        if self.growth.shape[1]:
            values, chances = self._buffer[arm]
            values.append(value)
            chances.append(chance)
            if len(values) >= _BUFFER:
                self.flush()

    def flush(self) -> None:
        """Bring `growth` up to date."""
        for arm, (values, chances) in enumerate(self._buffer):
            if values:
                self.growth[arm] += log_growth(values, chances, self._lambdas[arm]).sum(axis=0)
                self._buffer[arm] = ([], [])

    def _outcome_in_window(self, unit: str | int, row: int, at: float, value: float) -> None:
        closes = self.entry[row] + self.span
        if at > closes:
            self.advance(at)
            return
        closed = self.event[row] < math.inf or closes < self.now
        if closed or at < self.now:
            self._late_time(at, f"outcome of unit {unit!r}")
        else:
            self.advance(at)
        total = value + (self.value[row] if closed else self.partial.get(row, 0.0))
        bounds = self.design.value_range
        if bounds is not None and not bounds[0] <= total <= bounds[1]:
            raise ValueError(
                f"outcomes of unit {unit!r} add up to {total!r} so far; allowed: within {bounds}"
            )
        if closed:
            # Under "ingest" a sum that has been counted stays: more would be a second event.
            if self.late == "revise":
                self._note(row)
                # As when a window closes: a sum of 0 is no event.
                self.event[row] = closes if total != 0 else math.inf
                self.value[row] = total
                self._recount()
            return
        if row not in self.partial:
            heapq.heappush(self.open, (closes, row))
        self.partial[row] = total

    def _recount(self) -> None:
        """Sums anew from the units, after the value of a counted event has changed."""
        sums = sums_at(self.units(), np.array([math.inf]), self.design)
        self.events = sums.events[:, 0].astype(int).tolist()
        self.estimate = sums.estimate[:, 0].tolist()
        self.clock = sums.clock[:, 0].tolist()
        self.growth = sums.growth[:, 0].copy()
        self._buffer = [([], []) for _ in self._buffer]

    def advance(self, to: float, *, inclusive: bool = False) -> None:
        """Move the watermark and count the windows that close before it."""
        while self.open and (self.open[0][0] < to or (inclusive and self.open[0][0] == to)):
            closes, row = heapq.heappop(self.open)
            total = self.partial.pop(row)
            if total != 0:
                self._count(row, closes, total)
        self.now = max(self.now, to)

    def units(self) -> Units:
        """The records as arrays."""
        return Units(
            np.array(self.entry, dtype=np.float64),
            np.array(self.event, dtype=np.float64),
            np.array(self.arm, dtype=np.int64),
            np.array(self.chance, dtype=np.float64),
            np.array(self.value, dtype=np.float64),
        )

    def sums(self) -> Sums:
        """The running sums, as of the watermark."""
        self.flush()
        return Sums(
            np.array([float(len(self.entry))]),
            np.array(self.events, dtype=np.float64)[:, None],
            np.array(self.estimate)[:, None],
            np.array(self.clock)[:, None],
            self.growth[:, None, :].copy(),
        )

    def begin(self) -> None:
        """Remember the state, so that `undo` can return to it."""
        self.flush()
        self._journal = {}
        self._saved = (
            len(self.entry),
            self.now,
            list(self.events),
            list(self.estimate),
            list(self.clock),
            self.growth.copy(),
            len(self.revised),
            list(self.open),
            dict(self.partial),
        )

    def undo(self) -> None:
        """Return to the state of `begin`."""
        size, self.now, self.events, self.estimate, self.clock, self.growth = self._saved[:6]
        revised, self.open, self.partial = self._saved[6:]
        for row, (event, value) in (self._journal or {}).items():
            self.event[row], self.value[row] = event, value
        for unit in list(self.row)[size:]:
            del self.row[unit]
        for column in (self.entry, self.arm, self.chance, self.event, self.value):
            del column[size:]
        del self.revised[revised:]
        self._buffer = [([], []) for _ in self._buffer]

    def end(self) -> None:
        """Forget the state of `begin`."""
        self._journal, self._saved = None, ()
