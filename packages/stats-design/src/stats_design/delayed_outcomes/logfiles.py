"""Logs in files, and a run over them that continues where the last one stood.

The folder of a run holds `state.json`, everything the monitor knows; `history.csv`; `summary.txt`;
and `history.png`. Each is written beside its place and renamed. Records that are in already are
passed over, so that a run that was killed is simply started again, with the same files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from stats_design._files import locked, read_table, write_atomically, write_text
from stats_design.delayed_outcomes.conclusion import conclude
from stats_design.delayed_outcomes.monitor import DelayedOutcomeMonitor
from stats_design.delayed_outcomes.plots import history_figure
from stats_design.delayed_outcomes.rules import Rule
from stats_design.delayed_outcomes.snapshot import Snapshot

_MOST_ROWS = 2000
_OFFSET = r"[T ]\d\d.*(?:Z|[+-]\d\d(?::?\d\d)?)$"


@dataclass(frozen=True)
class Report:
    """The last look, what it means, what a reader should know, and the rules that hold."""

    snapshot: Snapshot
    summary: str
    notes: list[str]
    held: list[Rule]


def parse_times(column: pd.Series[Any], time_format: str | None, name: str) -> pd.Series[Any]:
    """Times of a file: numbers as they are, text as ISO 8601 unless a format is given."""
    if time_format is None and (
        pd.api.types.is_numeric_dtype(column) or pd.api.types.is_datetime64_any_dtype(column)
    ):
        return column
    if column.isna().all():
        return column.astype("float64")
    known = column.dropna()
    text = known.astype("int64") if pd.api.types.is_float_dtype(column) else known
    if time_format is None and isinstance(known.iloc[0], str):
        text, layout = known, "ISO8601"
    elif time_format is None:
        return column
    else:
        layout = time_format
    text = text.astype(str)
    # Offsets may change with daylight saving; in UTC they name the same instants.
    offset = text.str.contains(_OFFSET) if layout == "ISO8601" else pd.Series([False])
    if offset.any() and not offset.all():
        raise ValueError(f"{name} mixes times with and without an offset; allowed: one kind")
    try:
        parsed = pd.to_datetime(text, format=layout, utc=bool(offset.all()))
    except ValueError as error:
        reason = str(error).split(". You might want")[0]
        raise ValueError(f"{name} cannot be read as {layout}: {reason}") from None
    return parsed.reindex(column.index)


def read_log(
    path: Path, columns: Mapping[str, str], time_format: str | None, name: str
) -> pd.DataFrame:
    """A log from a file, with the columns `unit`, `time` and what else it has.

    Parameters
    ----------
    path
        CSV or Parquet.
    columns
        From our names to the file's, where they differ.
    time_format
        As in `datetime.strptime`; None for numbers and ISO 8601.
    name
        What to call it in errors.
    """
    named = [columns.get(name, name) for name in ("unit", "arm")]
    frame = read_table(path, text=named)
    present = {theirs: ours for ours, theirs in columns.items() if theirs in frame.columns}
    frame = frame.rename(columns=present)
    if frame.columns.has_duplicates:
        raise ValueError(f"{name} has a column twice after renaming; allowed: each once")
    missing = [c for c in ("unit", "time") if c not in frame.columns]
    if missing:
        raise ValueError(
            f"{name} ({path}) lacks the columns {missing}, it has {list(frame.columns)}; allowed: "
            "unit and time, or --column unit=THEIRS"
        )
    frame["time"] = parse_times(frame["time"], time_format, f"time of {name}")
    for label in {"unit", "arm"} & set(frame.columns):
        frame[label] = _as_text(frame[label])
    return frame


def _as_text(labels: pd.Series[Any]) -> pd.Series[Any]:
    """Labels as text whatever their type in this file; missing ones stay missing."""
    if pd.api.types.is_float_dtype(labels) and bool((labels.dropna() % 1 == 0).all()):
        labels = labels.astype("Int64")
    return labels.astype(object).where(labels.isna(), labels.astype(str))


def split_log(log: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Entries and outcomes of one long log with a column `kind`."""
    if "kind" not in log:
        raise ValueError("the log lacks the column kind; allowed: 'entry' and 'outcome' in it")
    unknown = sorted(set(log["kind"].astype(str)) - {"entry", "outcome"})
    if unknown:
        raise ValueError(f"kind is {unknown[0]!r} in a row; allowed: 'entry' or 'outcome'")
    return log[log["kind"] == "entry"], log[log["kind"] == "outcome"]


def _same(given: Any, saved: Any) -> bool:
    def plain(value: Any) -> Any:
        return [plain(v) for v in value] if isinstance(value, (list, tuple)) else value

    return bool(plain(given) == plain(saved))


def open_monitor(folder: Path, given: Mapping[str, Any]) -> DelayedOutcomeMonitor | None:
    """The monitor of an earlier run, None if there was none.

    Raises
    ------
    ValueError
        If a setting is given that differs from the one the run was started with.
    """
    file = folder / "state.json"
    if not file.is_file():
        return None
    try:
        monitor = DelayedOutcomeMonitor.from_json(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} cannot be read: {error}") from error
    for name, value in given.items():
        saved = monitor.settings[name]
        if value is not None and not _same(value, saved):
            raise ValueError(
                f"{name} is {value!r}, the run in {folder} was started with {saved!r}; "
                "allowed: the same, or another folder"
            )
    return monitor


def start_monitor(
    given: Mapping[str, Any], entries: pd.DataFrame, outcomes: pd.DataFrame
) -> tuple[DelayedOutcomeMonitor, list[str]]:
    """A monitor with what was given, and what was taken for the rest, in words."""
    settings = {name: value for name, value in given.items() if value is not None}
    notes = []
    if "arms" not in settings:
        numbered = "arm" in entries and set(entries["arm"]) <= {"0", "1"}
        settings["arms"] = ("0", "1") if numbered else ("control", "treatment")
    tuned = {"target_clock", "eta2"} & set(settings)
    if not tuned and "value_scale" not in settings:
        if "value_range" in settings:
            # Half the largest value: fixed beforehand, which is all that the guarantee asks for.
            settings["value_scale"] = max(abs(v) for v in settings["value_range"]) / 2
            notes.append(f"value_scale {settings['value_scale']:g}, half of the largest value")
        elif "value" in outcomes and not (len(outcomes) and outcomes["value"].dropna().eq(1).all()):
            raise ValueError(
                "value_scale is missing: the outcomes have values; allowed: --value-scale (their "
                "expected root mean square) or --value-range, fixed without looking at them"
            )
        else:
            settings["value_scale"] = 1.0
    if not tuned and "expected_events" not in settings:
        # The number of entries does not depend on the assignment.
        settings["expected_events"] = float(max(len(entries), 1))
        notes.append(f"expected_events {len(entries):,}, the entries of the first run")
    arms = settings.pop("arms")
    return DelayedOutcomeMonitor(arms, **settings), notes


def history_of(monitor: DelayedOutcomeMonitor, every: Any) -> pd.DataFrame:
    """The history at regular times, or at every event if there are not too many."""
    if every is not None:
        return monitor.history(every=every)
    frame = monitor.history()
    if len(frame) > _MOST_ROWS:
        rows = np.unique(np.linspace(0, len(frame) - 1, _MOST_ROWS).round().astype(int))
        frame = frame.iloc[rows].reset_index(drop=True)
    return frame


def write_picture(history: pd.DataFrame, monitor: DelayedOutcomeMonitor, folder: Path) -> bool:
    """Write the picture; False without matplotlib."""
    try:
        figure = history_figure(history, monitor.design)
    except ModuleNotFoundError:
        return False
    write_atomically(folder / "history.png", lambda file: figure.savefig(file, dpi=120))
    return True


def run(
    entries: pd.DataFrame,
    outcomes: pd.DataFrame,
    folder: Path,
    given: Mapping[str, Any],
    every: Any = None,
    rules: Sequence[Rule] = (),
    *,
    picture: bool = True,
) -> Report:
    """Take in new rows and renew the files of the folder.

    Raises
    ------
    ValueError, KeyError, TypeError
        For rows or settings that are not allowed; the folder is then as it was.
    """
    try:
        with locked(folder):
            monitor = open_monitor(folder, given)
            notes: list[str] = []
            if monitor is None:
                monitor, notes = start_monitor(given, entries, outcomes)
                notes = [f"Taken, since it was not given: {note}." for note in notes]
            columns = monitor.history(times=[])
            for rule in rules:
                rule.holds(columns)
            new = monitor.update(entries, outcomes, redelivered="skip")
            history = history_of(monitor, every)
            summary = conclude(monitor.snapshot(), history, monitor.design)
            write_text(folder / "state.json", monitor.to_json())
            write_atomically(folder / "history.csv", lambda file: history.to_csv(file, index=False))
            write_text(folder / "summary.txt", summary + "\n")
            notes.append(f"{new:,} new records.")
            if picture and not write_picture(history, monitor, folder):
                notes.append("No picture was drawn: pip install 'stats-design[plots]'.")
            last = monitor.history(times=[monitor.watermark]) if len(monitor) else columns
            for name in last.columns[last.columns.str.startswith("p_global")]:
                # The least p-value is that of all looks, not of the last alone.
                last[name] = np.fmin(last[name], history[name].min())
            held = [rule for rule in rules if bool(rule.holds(last).any())]
            return Report(monitor.snapshot(), summary, notes, held)
    except BlockingIOError:
        raise ValueError(f"another run holds {folder}; allowed: one at a time") from None
