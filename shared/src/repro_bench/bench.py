"""Ours against a peer, by turns, the peer in an environment of its own.

A field's `benchmarks/bench_<paper>.py` describes its `CASES` and has three functions:
`inputs(path)` writes the files that both sides read into the folder `path`, whose name is the case;
`ours(path)` and `peer(path)` each do the work once and return what they measured,
`{"seconds": s, ...}`.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from . import environment
from .store import write_json

SCHEMA = 1
_CHILD = Path(__file__).with_name("_bench_child.py")
_CASE_KEYS = {"text", "peer", "requirements", "target", "repeats", "quantity"}
_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
)


class SideError(RuntimeError):
    """One side of a benchmark could not be started or failed."""


@dataclass(frozen=True)
class Benchmark:
    """A benchmark file of a field."""

    name: str
    field: str
    file: Path

    def cases(self) -> dict[str, dict[str, Any]]:
        """Read `CASES`, which is a literal, without running the file.

        Raises
        ------
        ValueError
            If the file has no such literal or a case lacks a key or has an unknown one.
        """
        cases: dict[str, dict[str, Any]] | None = None
        for node in ast.parse(self.file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CASES":
                cases = ast.literal_eval(node.value)
        if cases is None:
            raise ValueError(f"{self.file} has no literal CASES")
        for name, case in cases.items():
            if not {"text", "peer", "requirements"} <= set(case) <= _CASE_KEYS:
                raise ValueError(f"{self.file}: case {name!r} has the keys {sorted(case)}")
        return cases


def benchmarks(checkout: Path) -> dict[str, Benchmark]:
    """All benchmarks of a checkout, by the name of their experiment."""
    found = {}
    for file in sorted(checkout.glob("packages/*/benchmarks/bench_*.py")):
        name = file.stem.removeprefix("bench_").replace("_", "-")
        found[name] = Benchmark(name, file.parent.parent.name, file)
    return found


def run_benchmark(
    benchmark: Benchmark, listen: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Run all cases of a benchmark and return its record."""
    cases = {}
    for name, case in benchmark.cases().items():
        listen(f"{benchmark.name} {name}: against {case['peer']}")
        cases[name] = _run_case(benchmark, name, case, listen)
    return {
        "schema": SCHEMA,
        "benchmark": benchmark.name,
        "field": benchmark.field,
        "cases": cases,
        "environment": environment.describe(benchmark.field),
    }


def record_benchmark(checkout: Path, record: dict[str, Any]) -> Path:
    """Write a benchmark's record into its field's results."""
    file = f"bench_{record['benchmark'].replace('-', '_')}.json"
    path: Path = checkout / "packages" / record["field"] / "results" / file
    write_json(path, record)
    return path


def peer_command(benchmark: Benchmark, case: dict[str, Any]) -> list[str]:
    """The Python of the peer's side: an environment of its own, or ours if it needs none."""
    if case["requirements"] is None:
        return [sys.executable]
    requirements = benchmark.file.parent / "peers" / case["requirements"]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return [
        *("uv", "run", "--quiet", "--isolated", "--no-project", "--python", version),
        *("--with-requirements", str(requirements), "python"),
    ]


def _run_case(
    benchmark: Benchmark, name: str, case: dict[str, Any], listen: Callable[[str], None]
) -> dict[str, Any]:
    quantity = case.get("quantity", "seconds")
    known: dict[str, Any] = {
        "text": case["text"],
        "peer": case["peer"],
        "quantity": quantity,
        "target": case.get("target"),
        "missing": "",
    }
    with tempfile.TemporaryDirectory(prefix="repro-bench-") as scratch:
        folder = Path(scratch) / name
        folder.mkdir()
        with _Side([sys.executable], benchmark.file, "inputs", folder) as side:
            side.call()
        command = peer_command(benchmark, case)
        try:
            with (
                _Side([sys.executable], benchmark.file, "ours", folder) as ours,
                _Side(command, benchmark.file, "peer", folder) as peer,
            ):
                ours.call()
                peer.call()
                turns = []
                for turn in range(case.get("repeats", 5)):
                    turns.append((ours.call(), peer.call()))
                    listen(f"  turn {turn + 1}: {turns[-1][0]} against {turns[-1][1]}")
        except SideError as error:
            if case["requirements"] is None or "ours" in str(error).split(":")[0]:
                raise
            shown = [part.replace(str(benchmark.file.parent), "benchmarks") for part in command]
            return {**known, "missing": f"{error}; install with: {shlex.join(shown)}"}
    ratios = [theirs[quantity] / mine[quantity] for mine, theirs in turns]
    ratio = statistics.median(ratios)
    return {
        **known,
        "repeats": len(turns),
        "ours": _medians([mine for mine, _ in turns]),
        "theirs": _medians([theirs for _, theirs in turns]),
        "ratio": ratio,
        "ratio_low": min(ratios),
        "ratio_high": max(ratios),
        "met": None if known["target"] is None else ratio >= known["target"],
    }


def _medians(turns: list[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(turn[key] for turn in turns) for key in turns[0]}


class _Side:
    """A child process that does one side's work whenever it is asked."""

    def __init__(self, python: list[str], file: Path, side: str, folder: Path) -> None:
        self.side = side
        kept = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTHONPATH")}
        self.log = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115
        try:
            self.process = subprocess.Popen(
                [*python, str(_CHILD), str(file), side, str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.log,
                env=kept | _ONE_THREAD,
                cwd=folder,
                text=True,
            )
        except OSError as error:
            self.log.close()
            raise SideError(f"{side}: {error}") from None

    def call(self) -> dict[str, float]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write("run\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise SideError(f"{self.side}: {self._last_words()}")
        answer = json.loads(line)
        if "error" in answer:
            raise SideError(f"{self.side}: {answer['error']}")
        return answer["facts"] or {}

    def _last_words(self) -> str:
        self.process.wait()
        self.log.seek(0)
        lines = [line.strip() for line in self.log.read().splitlines() if line.strip()]
        return " ".join(lines[-3:]) or f"ended with status {self.process.returncode}"

    def __enter__(self) -> _Side:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.stdin is not None and not self.process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        if kind is not None:
            self.process.kill()
        self.process.wait()
        self.log.close()
