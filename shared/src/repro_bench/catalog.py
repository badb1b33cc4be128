"""The experiments that are installed, and the checkout that they may stand in."""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from .experiment import Experiment

GROUP = "repro_bench.experiments"


@dataclass(frozen=True)
class Broken:
    """An entry point that could not be imported, and why."""

    name: str
    target: str
    error: str


class UnknownNameError(ValueError):
    """A name that is not installed."""


def installed() -> dict[str, EntryPoint]:
    """The entry points of all installed experiments, by name; nothing is imported."""
    return {point.name: point for point in sorted(entry_points(group=GROUP))}


def load(point: EntryPoint) -> Experiment | Broken:
    """Import one experiment; whatever goes wrong there is that experiment's matter alone."""
    try:
        experiment = point.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return Broken(point.name, point.value, f"{type(error).__name__}: {error}")
    if not isinstance(experiment, Experiment):
        kind = type(experiment).__name__
        return Broken(point.name, point.value, f"names a {kind}, not an Experiment")
    if experiment.name != point.name:
        return Broken(point.name, point.value, f"the experiment calls itself {experiment.name!r}")
    return experiment


def resolve(names: list[str], known: list[str], kind: str = "experiment") -> None:
    """Refuse names that are not known, with the nearest that are.

    Raises
    ------
    UnknownNameError
        Naming the first unknown name and its neighbours.
    """
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3, cutoff=0.4) or known
            listed = ", ".join(near) if near else "none is installed"
            raise UnknownNameError(f"no {kind} is called {name!r}; nearest: {listed}")


def find_checkout(start: Path | None = None) -> Path | None:
    """The root of the workspace's checkout at or above `start` (the current folder), if any."""
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents):
        pyproject = folder / "pyproject.toml"
        if (folder / "packages").is_dir() and pyproject.is_file():
            tool = tomllib.loads(pyproject.read_text(encoding="utf-8")).get("tool", {})
            if "workspace" in tool.get("uv", {}):
                return folder
    return None
