"""Trials on disk: resumed, recomputed when corrupt, kept through a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

Repro = Callable[..., "subprocess.CompletedProcess[str]"]


def trial_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("repro-out/*/*/trials/*.json"))


def test_a_second_run_repeats_nothing_and_fresh_repeats_all(repro: Repro, tmp_path: Path) -> None:
    log = tmp_path / "log"
    first = repro("run", "good", DEMO_LOG=str(log))
    assert first.returncode == 0, first.stderr
    assert len(log.read_text().splitlines()) == 12
    second = repro("run", "good", DEMO_LOG=str(log))
    assert second.returncode == 0
    assert "done before" in second.stderr
    assert len(log.read_text().splitlines()) == 12
    repro("run", "good", "--fresh", DEMO_LOG=str(log))
    assert len(log.read_text().splitlines()) == 24


def test_more_seeds_reuse_the_trials_of_fewer(repro: Repro, tmp_path: Path) -> None:
    log = tmp_path / "log"
    repro("run", "good", "--seeds", "2", DEMO_LOG=str(log))
    repro("run", "good", "--seeds", "3", DEMO_LOG=str(log))
    assert Counter(log.read_text().splitlines()) == {
        f"{arm} {seed}": 1 for arm in ("treated", "control") for seed in range(3)
    }


def test_a_corrupt_file_is_reported_and_computed_again(repro: Repro, tmp_path: Path) -> None:
    before = json.loads(repro("run", "good", "--json").stdout)
    files = trial_files(tmp_path)
    files[0].write_text(files[0].read_text()[:40])
    files[1].write_text("{}")
    files[2].write_bytes(b"\xff\xfe\x00")
    files[3].write_text(files[4].read_text())  # another trial's content
    again = repro("run", "good", "--json")
    assert again.stderr.count("corrupt") == 4
    assert json.loads(again.stdout)[0]["claims"] == before[0]["claims"]
    for file in files:
        assert json.loads(file.read_text())["error"] is None


def test_the_numbers_do_not_depend_on_the_number_of_jobs(repro: Repro) -> None:
    one = json.loads(repro("run", "good", "--jobs", "1", "--json", "--out", "one").stdout)
    two = json.loads(repro("run", "good", "--jobs", "2", "--json", "--out", "two").stdout)
    assert one[0]["claims"] == two[0]["claims"]


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_killed_run_loses_at_most_the_trials_in_flight(
    demo_env: dict[str, str], repro: Repro, tmp_path: Path, jobs: str
) -> None:
    log = tmp_path / "log"
    command = "from repro_bench.cli import main; main()"
    arguments = ["run", "good", "--preset", "standard", "--jobs", jobs]
    running = subprocess.Popen(
        [sys.executable, "-c", command, *arguments],
        env=demo_env | {"DEMO_LOG": str(log)},
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while len(trial_files(tmp_path)) < 4:
        assert time.monotonic() < deadline
        assert running.poll() is None
        time.sleep(0.02)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    kept = {file: file.read_text() for file in trial_files(tmp_path)}
    assert 4 <= len(kept) < 24
    for text in kept.values():
        assert json.loads(text)["error"] is None  # whole, or not there at all
    finished = repro(*arguments, DEMO_LOG=str(log))
    assert finished.returncode == 0, finished.stderr
    assert len(trial_files(tmp_path)) == 24
    for file, text in kept.items():
        assert file.read_text() == text
    # A trial in flight is logged and then lost; nothing else ran twice.
    runs = Counter(log.read_text().splitlines())
    assert sum(runs.values()) - 24 <= int(jobs)


def test_an_interrupt_ends_the_run_in_one_line(demo_env: dict[str, str], tmp_path: Path) -> None:
    command = "from repro_bench.cli import main; main()"
    running = subprocess.Popen(
        [sys.executable, "-c", command, "run", "good", "--preset", "standard", "--jobs", "1"],
        env=demo_env,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while len(trial_files(tmp_path)) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    running.send_signal(signal.SIGINT)
    _, stderr = running.communicate(timeout=30)
    assert running.returncode == 130
    assert "interrupted" in stderr
    assert "Traceback" not in stderr


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["dask", "ray"])
def test_a_cluster_gives_the_same_numbers(repro: Repro, backend: str) -> None:
    here = json.loads(repro("run", "good", "--json", "--out", "here").stdout)
    there = repro("run", "good", "--json", "--out", "there", "--jobs", "2", "--backend", backend)
    assert there.returncode == 0, there.stderr
    assert json.loads(there.stdout)[0]["claims"] == here[0]["claims"]
