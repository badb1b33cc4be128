"""Benchmarks: by turns, the peer in its own environment, a missing peer reported as missing."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest

Repro = Callable[..., "subprocess.CompletedProcess[str]"]

BENCH = """
import json
import os
from pathlib import Path

CASES = {
    "halving": {"text": "twice the work", "peer": "slow 1.0", "requirements": REQUIREMENTS,
                "target": 1.5, "repeats": 3},
}


def inputs(path):
    (path / "work.json").write_text(json.dumps({"work": 4}))


def _turn(path, who):
    with open(path / "turns", "a") as turns:
        turns.write(who)
    return (path / "turns").read_text()


def ours(path):
    print("a library that prints must not disturb")
    turns = _turn(path, "o")
    return {"seconds": json.loads((path / "work.json").read_text())["work"] / 4,
            "error": 0.0, "alternates": float("oo" not in turns and "pp" not in turns)}


def peer(path):
    turns = _turn(path, "p")
    return {"seconds": json.loads((path / "work.json").read_text())["work"] / 2, "error": 1.0}
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "packages" / "demo" / "benchmarks"
    folder.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[tool.uv.workspace]\nmembers = ["packages/*"]\n')
    (folder / "bench_half_time.py").write_text(BENCH.replace("REQUIREMENTS", "None"))
    return tmp_path


def test_the_ratio_is_the_peers_time_by_ours(repro: Repro, checkout: Path) -> None:
    done = repro("bench", "half-time", "--record", "--markdown")
    assert done.returncode == 0, done.stderr
    path = checkout / "packages" / "demo" / "results" / "bench_half_time.json"
    record = json.loads(path.read_text())
    jsonschema.validate(
        record, json.loads((files("repro_bench") / "bench.schema.json").read_text())
    )
    case = record["cases"]["halving"]
    assert (case["ratio"], case["ratio_low"], case["ratio_high"]) == (2.0, 2.0, 2.0)
    assert case["met"] is True
    assert case["ours"]["alternates"] == 1.0
    assert "**2**" in (checkout / "BENCHMARKS.md").read_text()


def test_a_side_that_fails_is_an_error_when_it_is_ours(repro: Repro, checkout: Path) -> None:
    file = checkout / "packages" / "demo" / "benchmarks" / "bench_half_time.py"
    file.write_text(file.read_text().replace('"work"] / 4', '"play"] / 4'))
    done = repro("bench", "half-time")
    assert done.returncode == 1
    assert "KeyError" in done.stderr


def test_a_file_without_cases_is_refused(repro: Repro, checkout: Path) -> None:
    file = checkout / "packages" / "demo" / "benchmarks" / "bench_half_time.py"
    file.write_text("def ours(path): ...\n")
    done = repro("bench", "--all")
    assert done.returncode == 1
    assert "CASES" in done.stderr


@pytest.mark.peers
def test_a_peer_that_does_not_install_is_missing_with_its_command(
    repro: Repro, checkout: Path
) -> None:
    folder = checkout / "packages" / "demo" / "benchmarks"
    (folder / "bench_half_time.py").write_text(BENCH.replace("REQUIREMENTS", "'gone.txt'"))
    (folder / "peers").mkdir()
    (folder / "peers" / "gone.txt").write_text("numpy==0.0.0.dev1\n")
    done = repro("bench", "half-time", "--record")
    assert done.returncode == 0, done.stderr
    path = checkout / "packages" / "demo" / "results" / "bench_half_time.json"
    missing = json.loads(path.read_text())["cases"]["halving"]["missing"]
    assert "uv run" in missing
    assert "gone.txt" in missing


@pytest.mark.peers
def test_a_peer_runs_in_an_environment_of_its_own(repro: Repro, checkout: Path) -> None:
    folder = checkout / "packages" / "demo" / "benchmarks"
    probing = BENCH.replace("REQUIREMENTS", "'six.txt'").replace(
        '    turns = _turn(path, "p")',
        "    import six, importlib.util\n"
        '    assert importlib.util.find_spec("numpy") is None\n'
        '    turns = _turn(path, "p")',
    )
    (folder / "bench_half_time.py").write_text(probing)
    (folder / "peers").mkdir()
    (folder / "peers" / "six.txt").write_text("six>=1.16\n")
    done = repro("bench", "half-time", "--record")
    assert done.returncode == 0, done.stderr
    path = checkout / "packages" / "demo" / "results" / "bench_half_time.json"
    assert json.loads(path.read_text())["cases"]["halving"]["missing"] == ""
