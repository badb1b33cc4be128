"""Trials on disk: one JSON file each, named by what defines it, written whole or not at all."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .experiment import Experiment, Outcome


@dataclass(frozen=True)
class TrialRecord:
    """A finished trial: its outcome, or the traceback of what it raised."""

    arm: str
    seed: int
    outcome: Outcome | None
    error: str | None
    seconds: float


class CorruptRecordError(ValueError):
    """A trial's file does not hold what its name says."""


def sizes_of(experiment: Experiment, preset: str) -> dict[str, Any]:
    """The sizes of a preset as JSON, without what only says which trials are run."""
    sizes = dataclasses.asdict(experiment.presets[preset])
    return {name: value for name, value in sizes.items() if name not in ("seeds", "arms")}


def key_of(experiment: Experiment, arm: str, seed: int, preset: str) -> str:
    """A hash of everything that defines a trial."""
    definition = {
        "experiment": experiment.name,
        "version": experiment.version,
        "arm": arm,
        "seed": seed,
        "preset": preset,
        "sizes": sizes_of(experiment, preset),
    }
    canonical = json.dumps(definition, sort_keys=True, default=_plain)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def folder_of(out: Path, experiment: str, preset: str) -> Path:
    """Where the trials and the summary of one experiment at one preset lie."""
    return out / experiment / preset


def path_of(out: Path, experiment: Experiment, arm: str, seed: int, preset: str) -> Path:
    """The file of one trial."""
    key = key_of(experiment, arm, seed, preset)
    name = f"{arm.replace('/', '.')}-{seed}-{key}.json"
    return folder_of(out, experiment.name, preset) / "trials" / name


def write_json(path: Path, document: object) -> None:
    """Write a JSON document under a temporary name and rename it; NaN becomes null."""
    write_text(path, json.dumps(_without_nan(document), indent=1, default=_plain, allow_nan=False))


def write_text(path: Path, text: str) -> None:
    """Write a text file under a temporary name in the same folder and rename it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.", suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text + "\n" if not text.endswith("\n") else text)
        # mkstemp keeps the file to its owner; a report is for whoever may read the folder.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def save(path: Path, record: TrialRecord) -> None:
    """Save one trial."""
    outcome = record.outcome
    write_json(
        path,
        {
            "arm": record.arm,
            "seed": record.seed,
            "metrics": dict(outcome.metrics) if outcome else None,
            "curves": {k: dict(v) for k, v in outcome.curves.items()} if outcome else None,
            "notes": dict(outcome.notes) if outcome else None,
            "error": record.error,
            "seconds": record.seconds,
        },
    )


def load(path: Path, arm: str, seed: int) -> TrialRecord | None:
    """Load one trial; None if it was never finished.

    Raises
    ------
    CorruptRecordError
        If the file is not a whole record of this trial.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise CorruptRecordError(f"{path}: {error}") from None
    try:
        found = json.loads(text)
        if found["arm"] != arm or found["seed"] != seed:
            raise ValueError(f"holds the trial ({found['arm']}, {found['seed']})")
        outcome = None
        if found["error"] is None:
            outcome = Outcome(
                metrics={k: _metric(v) for k, v in found["metrics"].items()},
                curves={
                    name: {c: [_number(v) for v in values] for c, values in curve.items()}
                    for name, curve in found["curves"].items()
                },
                notes={str(k): str(v) for k, v in found["notes"].items()},
            )
        return TrialRecord(arm, seed, outcome, found["error"], float(found["seconds"]))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptRecordError(f"{path}: {error}") from None


def _metric(value: Any) -> float | tuple[int, int]:
    if isinstance(value, list):
        successes, n = value
        return int(successes), int(n)
    return _number(value)


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _without_nan(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): _without_nan(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(v) for v in value]
    if hasattr(value, "tolist"):
        return _without_nan(value.tolist())
    return value


def _plain(value: Any) -> Any:
    """Paths and the like, as they stand in a preset."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
