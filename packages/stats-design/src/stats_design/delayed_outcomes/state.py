"""A monitor's state as JSON, bit for bit."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from stats_design.delayed_outcomes.design import make_design
from stats_design.delayed_outcomes.ledger import Ledger
from stats_design.delayed_outcomes.records import Seen
from stats_design.delayed_outcomes.timeline import Timeline

FORMAT = 1
_COLUMNS = ("entry", "arm", "chance", "event", "value")


def dump(ledger: Ledger, settings: Mapping[str, Any], window: Any, seen: Seen) -> str:
    """The state as text."""
    ledger.flush()
    state = {
        "format": FORMAT,
        "settings": {name: _plain(value) for name, value in settings.items()},
        "late": ledger.late,
        "recurrent": ledger.recurrent,
        "window": _plain(window),
        "timeline": asdict(ledger.timeline) if ledger.timeline else None,
        "now": ledger.now if math.isfinite(ledger.now) else None,
        "unit": list(ledger.row),
        "entry": ledger.entry.tolist(),
        "arm": ledger.arm.tolist(),
        "chance": ledger.chance.tolist(),
        "event": [t if t < math.inf else None for t in ledger.event],
        "value": ledger.value.tolist(),
        "events": ledger.events,
        "estimate": ledger.estimate,
        "clock": ledger.clock,
        "growth": ledger.growth.tolist(),
        "revised": ledger.revised,
        "partial": list(ledger.partial.items()),
        "seen": list(seen.items()),
    }
    return json.dumps(state, allow_nan=False, separators=(",", ":"))


def load(text: str) -> tuple[Ledger, dict[str, Any], Any, Seen]:
    """What `dump` was given; ValueError for anything else."""
    try:
        state = json.loads(text)
        found = state["format"]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            "text is not the state of a monitor; allowed: what to_json wrote"
        ) from error
    if found != FORMAT:
        raise ValueError(f"the state has the format {found!r}; allowed: {FORMAT}")
    try:
        return _restore(state)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise ValueError(
            f"the state is damaged ({type(error).__name__}: {error}); allowed: what to_json wrote"
        ) from error


def _restore(state: dict[str, Any]) -> tuple[Ledger, dict[str, Any], Any, Seen]:
    settings = {name: _from_plain(value) for name, value in state["settings"].items()}
    ledger = Ledger(make_design(**settings), state["late"], state["recurrent"])
    window = state["window"]
    if state["timeline"]:
        ledger.timeline = Timeline(**state["timeline"])
        ledger.span = math.nan if window is None else ledger.timeline.step(window)
    ledger.now = -math.inf if state["now"] is None else state["now"]
    ledger.row = {unit: row for row, unit in enumerate(state["unit"])}
    if {len(state[c]) for c in _COLUMNS} != {len(ledger.row)}:
        raise ValueError("the state has columns of different lengths; allowed: what to_json wrote")
    ledger.entry, ledger.arm = array("d", state["entry"]), array("q", state["arm"])
    ledger.chance, ledger.value = array("d", state["chance"]), array("d", state["value"])
    ledger.event = array("d", [math.inf if t is None else t for t in state["event"]])
    ledger.events, ledger.estimate = state["events"], state["estimate"]
    ledger.clock = state["clock"]
    ledger.growth = np.array(state["growth"], dtype=np.float64).reshape(ledger.growth.shape)
    ledger.revised = [(start, end) for start, end in state["revised"]]
    ledger.partial = {int(row): float(total) for row, total in state["partial"]}
    ledger.open = sorted((ledger.entry[row] + ledger.span, row) for row in ledger.partial)
    seen = {int(row): [(t, v) for t, v in outcomes] for row, outcomes in state["seen"]}
    return ledger, settings, window, seen


def _plain(value: Any) -> Any:
    """A setting as JSON; a mapping as pairs, so that labels keep their type."""
    if isinstance(value, Mapping):
        return {"pairs": [[key, _plain(v)] for key, v in value.items()]}
    if isinstance(value, (tuple, list, np.ndarray)):
        return [_plain(v) for v in value]
    if isinstance(value, (np.integer, np.floating)):
        return value.item()
    return value if value is None or isinstance(value, (str, int, float)) else str(value)


def _from_plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _from_plain(v) for key, v in value["pairs"]}
    return tuple(value) if isinstance(value, list) else value
