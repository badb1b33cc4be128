"""The face of the stream: records come in as they happen, intervals come out on demand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from stats_design.delayed_outcomes import state
from stats_design.delayed_outcomes.batch import check_smallest, look_times, sums_at
from stats_design.delayed_outcomes.design import Arm, Design, Method, PerArm, make_design
from stats_design.delayed_outcomes.intervals import table
from stats_design.delayed_outcomes.ledger import (
    DuplicateOutcomeError,
    Late,
    LateEventError,
    Ledger,
    Recurrent,
)
from stats_design.delayed_outcomes.records import Seen, read_records, take_in, timeline_of
from stats_design.delayed_outcomes.rules import Rule
from stats_design.delayed_outcomes.snapshot import Snapshot, snapshot_of
from stats_design.delayed_outcomes.timeline import NUMBER, Timeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["DelayedOutcomeMonitor", "DuplicateOutcomeError", "LateEventError"]

_TUNING = ("expected_events", "value_scale", "target_clock", "eta2")


class DelayedOutcomeMonitor:
    """Always-valid intervals on the reward so far under each arm, fed one record at a time.

    A record costs a dictionary look-up and a few additions, whatever came before; boundaries are
    computed only when a snapshot is asked for. The same records give the same numbers in whatever
    portions they come.

    Parameters
    ----------
    arms
        Labels of the arms; the first is the control.
    propensity, alpha, method, value_range, expected_events, value_scale, target_clock, eta2, \
alpha_split, smallest_propensity, adaptive
        See `make_design`.
    late
        What to do with a record older than the watermark, the latest time seen: `"error"`;
        `"revise"`: count it at its own time, so that the history changes and is flagged;
        `"ingest"`: count it now, so that every interval stays valid for the reward *recorded* by
        then.
    recurrent
        What to do with a second outcome of a unit: `"error"`; `"first"`: ignore it; `"sum_window"`:
        add up the outcomes within `window` after entry and count the sum when the window closes.
    window
        A number, or a timedelta such as `"30D"`.

    Raises
    ------
    ValueError, TypeError
        Naming the argument, what came and what is allowed.

    Source: Theorems 4.4, 4.6 and 4.9.

    Examples
    --------
    >>> monitor = DelayedOutcomeMonitor(propensity=0.5, value_range=(0, 1), expected_events=100,
    ...                                 value_scale=1)
    >>> monitor.enter("ann", 0.0, "treatment")
    >>> monitor.enter("bob", 0.5, "control")
    >>> monitor.event("ann", 3.0)
    >>> now = monitor.snapshot()
    >>> now.effect, now.p_value, now.upper
    (2.0, 1.0, {'control': 2.0, 'treatment': 2.0})
    """

    def __init__(
        self,
        arms: Sequence[Arm] = ("control", "treatment"),
        *,
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
        adaptive: bool = False,
        late: Late = "error",
        recurrent: Recurrent = "error",
        window: Any = None,
    ) -> None:
        self._settings: dict[str, Any] = {
            "arms": tuple(arms),
            "propensity": propensity,
            "alpha": alpha,
            "method": method,
            "value_range": value_range,
            "expected_events": expected_events,
            "value_scale": value_scale,
            "target_clock": target_clock,
            "eta2": eta2,
            "alpha_split": alpha_split,
            "smallest_propensity": smallest_propensity,
            "adaptive": adaptive,
        }
        design = make_design(**self._settings)
        self._ledger = Ledger(design, late, recurrent)
        if (window is not None) != (recurrent == "sum_window"):
            raise ValueError(
                f"window is {window!r} with recurrent={recurrent!r}; allowed: a window with "
                "'sum_window', and with nothing else"
            )
        self._window = window
        self._index = {label: k for k, label in enumerate(design.arms)}
        # Outcomes behind the sums of windows, so that records given again can be recognised.
        self._seen: Seen = {}

    @property
    def design(self) -> Design:
        """The resolved settings."""
        return self._ledger.design

    @property
    def settings(self) -> dict[str, Any]:
        """The settings as they were given, with `late`, `recurrent` and `window`."""
        return {
            **self._settings,
            "late": self._ledger.late,
            "recurrent": self._ledger.recurrent,
            "window": self._window,
        }

    @property
    def watermark(self) -> Any:
        """The latest time seen, None before anything has entered."""
        return self._ledger.shown(self._ledger.now)

    def __len__(self) -> int:
        """Units entered."""
        return len(self._ledger.entry)

    def tune(self, **settings: Any) -> None:
        """Change settings of `make_design`; refused once an event has come in.

        Raises
        ------
        RuntimeError
            After the first event: a tuning that knows outcomes voids the guarantee. For the
            `propensity` after the first entry: it is the one that units were assigned with.
        ValueError
            As `make_design`; or if units have entered that the new settings do not allow.
        """
        ledger = self._ledger
        if sum(ledger.events) or ledger.partial:
            raise RuntimeError("an event has come in; allowed: tuning before the first event")
        if "propensity" in settings and len(self):
            raise RuntimeError("units have entered; allowed: another propensity before the first")
        if "arms" in settings and tuple(settings["arms"]) != self.design.arms:
            raise ValueError("arms cannot change; allowed: a new monitor")
        base = dict(self._settings)
        if set(_TUNING) & set(settings):
            base.update(dict.fromkeys(_TUNING))
        base.update(settings)
        design = make_design(**base)
        declared = design.smallest_propensity
        if len(self) and design.propensity is None and design.method == "exact" and declared:
            check_smallest(ledger.units(), declared)
        ledger.retune(design)
        self._settings = base

    def enter(self, unit: str | int, time: Any, arm: Arm, propensity: float | None = None) -> None:
        """Record that a unit entered and was assigned.

        Parameters
        ----------
        unit
            Identifier, text or integer.
        time
            Time of entry, not before the watermark.
        arm
            Label of the arm it was assigned to.
        propensity
            Where it differs between units: probability of the second of two arms, or of `arm` if
            there are more.

        Raises
        ------
        ValueError
            For a unit that has entered already, an unknown arm or a propensity outside (0, 1).
        LateEventError
            For a time before the watermark, if `late="error"`.
        """
        if arm not in self._index:
            raise ValueError(f"arm is {arm!r}; allowed: one of {self.design.arms}")
        ledger = self._ledger
        before = ledger.timeline
        at = self._time(time, "time")
        try:
            ledger.enter(unit, at, self._index[arm], propensity)
        except (ValueError, TypeError):
            # A refused record does not decide what kind of times the others have.
            ledger.timeline = before
            raise

    def _set_timeline(self, timeline: Timeline) -> None:
        if self._window is not None:
            self._ledger.span = timeline.step(self._window, "window")
        self._ledger.timeline = timeline

    def _time(self, time: Any, name: str) -> float:
        timeline = self._ledger.timeline
        if timeline is None:
            timeline = Timeline.of([time], name)
            self._set_timeline(timeline)
        return timeline.number(time, name)

    def event(self, unit: str | int, time: Any, value: float = 1.0) -> None:
        """Record a unit's outcome.

        Parameters
        ----------
        unit
            Identifier of a unit that has entered.
        time
            Time of the outcome; a missing or infinite one means "not yet" and changes nothing.
        value
            Value of the outcome.

        Raises
        ------
        KeyError
            For a unit that has not entered.
        DuplicateOutcomeError
            For a second outcome, if `recurrent="error"`.
        LateEventError
            For a time before the watermark, if `late="error"`.
        ValueError
            For a time before the entry, or a value that is missing or outside `value_range`.
        """
        ledger = self._ledger
        row = ledger.row.get(unit)
        if row is None:
            raise KeyError(f"unit {unit!r} has not entered; allowed: outcomes of entered units")
        timeline = ledger.timeline
        if type(time) is float and timeline is not None and timeline.kind == NUMBER:
            at = time
        else:
            at = self._time(time, "time")
        if -math.inf < at < math.inf:
            ledger.outcome(unit, row, at, value)
            if self._window is not None:
                self._seen.setdefault(row, []).append((at, float(value)))

    def update(
        self,
        entries: pd.DataFrame | None = None,
        outcomes: pd.DataFrame | None = None,
        *,
        redelivered: Literal["error", "skip"] = "error",
    ) -> int:
        """Take in tables of records, in the order of their times; all of them or none.

        Parameters
        ----------
        entries
            Columns `unit`, `time`, `arm` and, where it differs between units, `propensity`.
        outcomes
            Columns `unit`, `time` and, unless every outcome counts 1, `value`.
        redelivered
            `"skip"` passes over records that are in already with the same content, so that a log
            can be given again with new rows at its end; `"error"` treats them as duplicates.

        Returns
        -------
        int
            Records that were new.

        Raises
        ------
        ValueError, KeyError, TypeError
            As `enter` and `event`; the monitor is then as it was before the call.
        """
        if redelivered not in ("error", "skip"):
            raise ValueError(f"redelivered is {redelivered!r}; allowed: 'error', 'skip'")
        ledger = self._ledger
        timeline = ledger.timeline or timeline_of(entries, outcomes) or Timeline("numbers")
        records = read_records(entries, outcomes, self.design.arms, timeline)
        if not records.unit:
            return 0
        before = ledger.timeline
        seen = {row: list(found) for row, found in self._seen.items()}
        ledger.begin()
        try:
            self._set_timeline(timeline)
            return take_in(ledger, records, self._seen, skip=redelivered == "skip")
        except BaseException:
            ledger.undo()
            ledger.timeline, self._seen = before, seen
            raise
        finally:
            ledger.end()

    def snapshot(self, time: Any = None) -> Snapshot:
        """Intervals at one time.

        Parameters
        ----------
        time
            Default: the watermark. A later time moves the watermark there: it says that everything
            up to it has come in. An earlier one is answered from the records.

        Returns
        -------
        Snapshot
        """
        ledger = self._ledger
        at = ledger.now if time is None else self._time(time, "time")
        if time is not None and not math.isfinite(at):
            raise ValueError(f"time is {time!r}; allowed: a finite time")
        if at >= ledger.now:
            ledger.advance(at, inclusive=True)
            sums = ledger.sums()
        else:
            sums = sums_at(ledger.units(), np.array([at]), self.design)
        late = sum(start <= at for start, _ in ledger.revised)
        return snapshot_of(self.design, sums, ledger.shown(at), late)

    def history(self, times: Any = None, *, every: Any = None) -> pd.DataFrame:
        """Intervals at many times up to the watermark; all of them hold together.

        Parameters
        ----------
        times
            Times to look at, none after the watermark. Default: every time with an event.
        every
            Spacing of regular times from the first entry on, such as `"1D"` or a number; the last
            row is the watermark.

        Returns
        -------
        pandas.DataFrame
            See `intervals.table`; with a column `revised` that is True where a late record changed
            a row that had been out already.
        """
        ledger = self._ledger
        timeline = ledger.timeline or Timeline("numbers")
        units = ledger.units()
        looks = look_times(timeline, times, every, units.entry, units.event)
        if times is not None and len(looks) and looks[-1] > ledger.now:
            raise ValueError(f"times go beyond the watermark {self.watermark}; allowed: up to it")
        if every is not None:
            looks = np.append(looks[looks < ledger.now], ledger.now) if len(looks) else looks
        frame = table(self.design, sums_at(units, looks, self.design), timeline.back(looks))
        revised = np.zeros(len(looks), dtype=bool)
        for start, end in ledger.revised:
            revised |= (looks >= start) & (looks < end)
        frame["revised"] = revised
        return frame

    def alerts(self, rule: str, times: Any = None, *, every: Any = None) -> pd.DataFrame:
        """Rows of the history at which a rule such as `"effect_lower > 0"` holds.

        Parameters
        ----------
        rule
            A column, one of `<`, `<=`, `>`, `>=`, and a number.
        times, every
            As in `history`.
        """
        parsed = Rule.parse(rule)
        frame = self.history(times, every=every)
        return frame[parsed.holds(frame)].reset_index(drop=True)

    def plot(self, times: Any = None, *, every: Any = None) -> Figure:
        """Three panels over time: the arms, the effect, the p-value on a log scale.

        Needs the extra `plots`.
        """
        from stats_design.delayed_outcomes.plots import history_figure

        return history_figure(self.history(times, every=every), self.design)

    def to_json(self) -> str:
        """The whole state as JSON text; `from_json` continues exactly where this one stands."""
        return state.dump(self._ledger, self._settings, self._window, self._seen)

    @classmethod
    def from_json(cls, text: str) -> DelayedOutcomeMonitor:
        """The monitor that `to_json` wrote.

        Raises
        ------
        ValueError
            If the text is not such a state, or of another format.
        """
        monitor = cls.__new__(cls)
        ledger, monitor._settings, monitor._window, monitor._seen = state.load(text)
        monitor._ledger = ledger
        monitor._index = {label: k for k, label in enumerate(ledger.design.arms)}
        return monitor
