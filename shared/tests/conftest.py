"""A small field, installed as any field would be: a module and its metadata."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

DEMO = """
import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from repro_bench import Claim, Experiment, Outcome


@dataclass(frozen=True)
class Sizes:
    seeds: int
    pause: float = 0.0
    arms: tuple[str, ...] | None = None


def trial(arm, seed, sizes):
    time.sleep(sizes.pause)
    if "DEMO_LOG" in os.environ:
        with open(os.environ["DEMO_LOG"], "a") as log:
            log.write(f"{arm} {seed}\\\\n")
    if arm == "raises" and seed == 1:
        raise RuntimeError("no luck at seed 1")
    lift = {"treated": 5.0}.get(arm, 0.0)
    score = float(np.random.default_rng(seed).normal() + lift)
    return Outcome({"score": score, "covered": (19, 20)}, {"walk": {"x": [0, 1], "y": [0, score]}})


def picture(results):
    from matplotlib.figure import Figure

    figure = Figure()
    axes = figure.subplots()
    for seed, outcome in results.of("treated").items():
        axes.plot(outcome.curves["walk"]["x"], outcome.curves["walk"]["y"])
    axes.set_xlabel("a legible axis label")
    return figure


PRESETS = {
    "smoke": Sizes(1),
    "quick": Sizes(6),
    "standard": Sizes(12, pause=0.25),
    "full": Sizes(20),
}
ARMS = {"treated": "with the effect", "control": "without"}
CLAIMS = [Claim(text="Treatment helps", metric="score", arm="treated", than="control")]
GOOD = Experiment("good", 1, "demo", "A Paper (2026)", ARMS, CLAIMS, trial, PRESETS,
                  {"The walks": picture})
WRONG = Experiment("wrong", 1, "demo", "A Paper (2026)", ARMS,
                   [Claim(text="Treatment hurts", metric="score", arm="control", than="treated")],
                   trial, PRESETS)
FAILING = Experiment("failing", 1, "demo", "A Paper (2026)", {**ARMS, "raises": "fails once"},
                     CLAIMS, trial, PRESETS)
"""
ENTRY_POINTS = """
[repro_bench.experiments]
good = demo_field:GOOD
wrong = demo_field:WRONG
failing = demo_field:FAILING
absent = demo_field.nowhere:EXPERIMENT
"""


@pytest.fixture(scope="session")
def demo_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that, on the path, is an installed field."""
    site = tmp_path_factory.mktemp("site")
    (site / "demo_field.py").write_text(textwrap.dedent(DEMO).replace("\\\\n", "\\n"))
    info = site / "demo-0.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: demo\nVersion: 0.3\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    return site


# What else is installed beside the demonstration is not the matter of these tests.
COMMAND = """
from repro_bench import catalog
everything = catalog.entry_points
catalog.entry_points = lambda group: [
    point for point in everything(group=group) if point.value.startswith("demo_field")
]
from repro_bench.cli import main
main()
"""

Repro = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def demo_env(demo_site: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(demo_site), "COLUMNS": "200"}


@pytest.fixture
def repro(demo_env: dict[str, str], tmp_path: Path) -> Repro:
    """Call the command `repro` in an empty folder."""

    def call(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", COMMAND, *arguments],
            env=demo_env | env,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return call
