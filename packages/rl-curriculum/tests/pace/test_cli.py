"""The command: a run, going on with it, looking at it, and bad input."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from rl_curriculum.pace import random_levels
from rl_curriculum.pace.cli import app
from rl_curriculum.pace.sources import level_generator, named_levels

SMALL = ["--num-envs", "4", "--rollout", "16", "--max-steps", "16", "--capacity", "8"]
SMALL += ["--every", "4", "--test", "prefabs"]


def call(*arguments: object, status: int = 0):
    done = CliRunner().invoke(app, [str(a) for a in arguments])
    assert done.exit_code == status, done.output
    return done


def arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path / "checkpoint.npz", allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def test_a_run_in_two_parts_is_the_run_in_one(tmp_path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    call("train", *SMALL, "--steps", 1280, "--out", whole)
    call("train", *SMALL, "--steps", 640, "--out", parts)
    done = call("train", *SMALL, "--steps", 1280, "--out", parts)
    assert "Going on at 640 steps" in done.output
    first, second = arrays(whole), arrays(parts)
    assert set(first) == set(second)
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name], err_msg=name)
    rows = list(csv.DictReader((parts / "history.csv").open()))
    assert [int(r["steps"]) for r in rows] == list(range(64, 1281, 64))
    # Again is nothing more to do.
    assert "1280 steps" in call("train", *SMALL, "--steps", 1280, "--out", parts).output
    call("train", *SMALL, "--steps", 1280, "--out", parts, "--seed", 1, status=2)
    call("train", *SMALL, "--steps", 64, "--out", parts, "--seed", 1, "--fresh")


def test_looking_at_a_run(tmp_path) -> None:
    run = tmp_path / "run"
    call("train", *SMALL, "--steps", 1280, "--out", run, "--levels", "frontier")
    found = json.loads(call("eval", run, "--episodes", 2, "--max-steps", 20, "--json").output)
    assert found["levels"] == 8
    assert found["optimality_gap"] == pytest.approx(1 - found["success"])
    assert set(found["cvar"]) == {"0.01", "0.05", "0.1"}
    assert "optimality gap" in call("eval", run, "--episodes", 1, "--max-steps", 9).output
    shown = call("inspect", run, "--top", 3, "--text", "--out", tmp_path / "x.png").output
    assert "of the replays on levels without a way" in shown
    assert shown.count("G") >= 3


def test_own_levels(tmp_path) -> None:
    own = tmp_path / "levels"
    own.mkdir()
    for i, grid in enumerate(random_levels(3, 5, (6, 8), seed=0).to_text()):
        (own / f"{i}.txt").write_text(grid)
    run = tmp_path / "run"
    small = [*SMALL[:-2], "--test", own]
    call("train", *small, "--steps", 320, "--out", run, "--levels", own)
    found = json.loads(call("eval", run, "--levels", own, "--episodes", 1, "--json").output)
    assert found["levels"] == 3


def test_named_sets() -> None:
    assert len(named_levels("seeds:5-9")) == 5
    drawn = level_generator("seeds:5-9")(np.random.default_rng(0), 40)
    assert len({w.tobytes() for w in drawn.walls}) == 5
    assert named_levels("perfect-19", 3).size == (19, 19)
    assert len(named_levels("four-rooms", 4)) == 4
    with pytest.raises(ValueError, match="allowed: 1 to 1,000,000 seeds"):
        named_levels("seeds:9-5")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--levels", "nowhere"], "levels is 'nowhere'"),
        (["train", "--method", "best"], "method is 'best'"),
        (["train", "--capacity", "3"], "capacity is 3"),
        (["train", "--rollout", "1"], "steps is 1"),
        (["train", "--every", "0"], "every is 0"),
        (["train", "--steps", "-5"], "steps is -5"),
        (["train", "--steps", "nan"], "steps is nan"),
        (["train", "--seed", "-1"], "seed is -1"),
        (["train", "--out", __file__], "is no folder"),
        (["eval", "nowhere"], "nowhere is not a file"),
        (["inspect", "nowhere"], "nowhere is not a file"),
    ],
)
def test_bad_input_is_one_line_and_status_2(arguments, message, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    output = call(*arguments, status=2).output
    assert message in " ".join(output.split())
    assert "Traceback" not in output


def test_a_file_that_is_no_checkpoint(tmp_path) -> None:
    (tmp_path / "checkpoint.npz").write_text("no")
    assert "no checkpoint" in call("eval", tmp_path, status=2).output
    assert "no checkpoint" in call("inspect", tmp_path, status=2).output


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_run_goes_on_to_the_same_end(number, tmp_path) -> None:
    code = "from rl_curriculum.cli import main; main()"
    command = [sys.executable, "-c", code, "pace", "train", *SMALL, "--steps", "12800", "--out"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([*command, str(tmp_path / "a")], env=env, cwd=tmp_path)
    while not (tmp_path / "a" / "run.json").exists():
        time.sleep(0.01)
    process.send_signal(number)
    assert process.wait() == (130 if number == signal.SIGINT else -signal.SIGKILL)
    subprocess.run([*command, str(tmp_path / "a")], env=env, cwd=tmp_path, check=True)
    subprocess.run([*command, str(tmp_path / "b")], env=env, cwd=tmp_path, check=True)
    first, second = arrays(tmp_path / "a"), arrays(tmp_path / "b")
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name], err_msg=name)
    assert not list((tmp_path / "a").glob(".part-*")) or number == signal.SIGKILL
