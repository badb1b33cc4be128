"""The command `stats-design delayed-outcomes`."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import numpy as np
import pandas as pd
import typer
from rich.console import Console

from stats_design.delayed_outcomes import logfiles
from stats_design.delayed_outcomes.rules import Rule
from stats_design.delayed_outcomes.snapshot import Snapshot

app = typer.Typer(
    help="Confidence sequences for outcomes that come late.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
_errors = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)


@app.callback()
def _root() -> None:
    pass


def _refuse(message: object) -> NoReturn:
    _errors.print(f"error: {message}")
    raise typer.Exit(2)


def _numbers(text: str | None, name: str) -> float | tuple[float, ...] | None:
    if text is None:
        return None
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{name} is {text!r}; allowed: a number, or one an arm: 0.2,0.8") from None
    return found[0] if len(found) == 1 else found


def _span(text: str | None, name: str) -> Any:
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        try:
            pd.Timedelta(text)
        except ValueError:
            raise ValueError(f"{name} is {text!r}; allowed: a number, or such as 1D, 6h") from None
        return text


def as_json(snapshot: Snapshot) -> str:
    """A snapshot as JSON; missing and infinite numbers as null."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {str(k): plain(v) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(v) for v in value]
        if isinstance(value, float):
            return value if np.isfinite(value) else None
        return value if value is None or isinstance(value, (str, int)) else str(value)

    contrasts = [
        {"arm": a, "control": b, **dataclasses.asdict(c)}
        for (a, b), c in snapshot.contrasts.items()
    ]
    fields = {
        f.name: getattr(snapshot, f.name)
        for f in dataclasses.fields(snapshot)
        if f.name != "contrasts"
    }
    return json.dumps(plain({**fields, "contrasts": contrasts}), indent=2)


@app.command()
def monitor(
    entries: Annotated[
        Path, typer.Argument(help="Entries: unit, time, arm[, propensity]; or one log with kind.")
    ],
    outcomes: Annotated[Path | None, typer.Argument(help="Outcomes: unit, time[, value].")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the run; a second run continues it.")] = Path(
        "delayed-outcomes"
    ),
    propensity: Annotated[
        str | None,
        typer.Option(
            help="Probability of the second arm, or one an arm; else a column of entries."
        ),
    ] = None,
    alpha: Annotated[float | None, typer.Option(help="Total level; 0.05 by default.")] = None,
    arms: Annotated[
        str | None, typer.Option(help="Labels, the control first: control,treatment.")
    ] = None,
    value_range: Annotated[
        str | None, typer.Option(help="Smallest and largest possible value, 0,200: exact method.")
    ] = None,
    expected_events: Annotated[
        str | None, typer.Option(help="Events expected over the run if all units were in an arm.")
    ] = None,
    value_scale: Annotated[
        float | None, typer.Option(help="Expected root mean square of a value.")
    ] = None,
    target_clock: Annotated[str | None, typer.Option(help="Tuning, instead of these two.")] = None,
    method: Annotated[str | None, typer.Option(help="auto, exact or asymptotic.")] = None,
    smallest_propensity: Annotated[
        str | None, typer.Option(help="With a column propensity and the exact method: 0.1,0.1.")
    ] = None,
    late: Annotated[
        str | None, typer.Option(help="Records before the last time seen: error, revise, ingest.")
    ] = None,
    recurrent: Annotated[
        str | None, typer.Option(help="Further outcomes of a unit: error, first, sum_window.")
    ] = None,
    window: Annotated[
        str | None, typer.Option(help="With sum_window: a number, or such as 30D.")
    ] = None,
    time_format: Annotated[
        str | None, typer.Option(help="Such as %Y%m%d; else numbers or ISO 8601.")
    ] = None,
    column: Annotated[
        list[str] | None, typer.Option(help="A column of another name: unit=user_id; repeatable.")
    ] = None,
    every: Annotated[
        str | None, typer.Option(help="Spacing of the history: a number, or 1D, 6h.")
    ] = None,
    fail_when: Annotated[
        list[str] | None,
        typer.Option(help="Exit with 1 if the last look satisfies it: 'effect_upper < 0'."),
    ] = None,
    picture: Annotated[bool, typer.Option(help="Draw history.png.")] = True,
    print_json: Annotated[
        bool, typer.Option("--json", help="Print the last look as JSON.")
    ] = False,
) -> None:
    """Take in new rows, say what may be concluded now, and keep the state for the next run.

    Rows that are in already are passed over: give the whole growing log, or only its new part. A
    run that was killed is started again with the same files. Exit status: 0; 1 if a --fail-when
    rule holds; 2 for wrong use or bad input, with the folder left as it was; 130 if interrupted.
    """
    try:
        rules = [Rule.parse(text) for text in fail_when or []]
        spacing = _span(every, "every")
        given: dict[str, Any] = {
            "arms": tuple(arm.strip() for arm in arms.split(",")) if arms else None,
            "propensity": _numbers(propensity, "propensity"),
            "alpha": alpha,
            "value_range": _numbers(value_range, "value_range"),
            "expected_events": _numbers(expected_events, "expected_events"),
            "value_scale": value_scale,
            "target_clock": _numbers(target_clock, "target_clock"),
            "method": method,
            "smallest_propensity": _numbers(smallest_propensity, "smallest_propensity"),
            "late": late,
            "recurrent": recurrent,
            "window": _span(window, "window"),
        }
        if given["value_range"] is not None and not isinstance(given["value_range"], tuple):
            raise ValueError(f"value_range is {value_range!r}; allowed: two numbers, such as 0,200")
        names = _columns(column or [])
        with _errors.status("reading") if sys.stderr.isatty() else _Quiet():
            first = logfiles.read_log(entries, names, time_format, "entries")
            if outcomes is None:
                first, second = logfiles.split_log(first)
            else:
                second = logfiles.read_log(outcomes, names, time_format, "outcomes")
        with _errors.status("computing") if sys.stderr.isatty() else _Quiet():
            report = logfiles.run(first, second, out, given, spacing, rules, picture=picture)
    except (ValueError, TypeError, KeyError, ModuleNotFoundError, OSError) as error:
        _refuse(error.args[0] if isinstance(error, KeyError) else error)
    except KeyboardInterrupt:
        _errors.print("Interrupted: nothing is lost, run it again with the same files.")
        raise typer.Exit(130) from None
    print(as_json(report.snapshot) if print_json else report.summary)
    for note in report.notes:
        _errors.print(note)
    if not print_json:
        _errors.print(f"Written to {out}: history.csv, summary.txt, state.json.")
    if report.held:
        held = (f"{r.column} {r.comparison} {r.number:g}" for r in report.held)
        _errors.print(f"Holds now: {'; '.join(held)}")
        raise typer.Exit(1)


class _Quiet:
    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


def _columns(pairs: list[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        ours, sign, theirs = pair.partition("=")
        if not sign or ours not in ("unit", "time", "arm", "propensity", "value", "kind"):
            raise ValueError(
                f"column is {pair!r}; allowed: NAME=THEIRS with NAME one of unit, time, arm, "
                "propensity, value, kind"
            )
        found[ours] = theirs
    return found
