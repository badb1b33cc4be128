"""Every installed experiment runs at its smallest size, and its records are sound."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest

from repro_bench import Experiment, records
from repro_bench.bench import benchmarks
from repro_bench.catalog import installed, load
from repro_bench.report import section
from repro_bench.runner import run

ROOT = Path(__file__).parent.parent
RECORDS = sorted(ROOT.glob("packages/*/results/*.json"))


def experiment_of(name: str) -> Experiment:
    experiment = load(installed()[name])
    assert isinstance(experiment, Experiment), experiment
    return experiment


@pytest.mark.parametrize("name", installed())
def test_the_smoke_preset_runs_and_draws(name: str, tmp_path: Path) -> None:
    experiment = experiment_of(name)
    done = run(experiment, "smoke", tmp_path, jobs=1)
    assert done.results.failed == {}
    for verdict in done.verdicts:
        for arm in verdict.claim.arms:
            assert all(verdict.claim.metric in o.metrics for o in done.results.of(arm).values())
    summary = json.loads((tmp_path / name / "smoke" / "run.json").read_text())
    for caption, svg in section(experiment, summary, tmp_path).figures:
        assert svg.startswith("<svg"), (caption, svg)


@pytest.mark.parametrize("name", installed())
def test_an_experiment_is_named_after_its_room(name: str) -> None:
    experiment = experiment_of(name)
    room = installed()[name].value.split(":")[0].removesuffix(".reproduce")
    assert room == f"{experiment.field.replace('-', '_')}.{name.replace('-', '_')}"
    assert any(claim.arms <= set(experiment.arms_at("standard")) for claim in experiment.claims)


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_record_follows_its_schema(path: Path) -> None:
    kind = "bench" if path.name.startswith("bench_") else "run"
    schema = json.loads((files("repro_bench") / f"{kind}.schema.json").read_text())
    jsonschema.validate(json.loads(path.read_text()), schema)


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_record_belongs_to_what_is_installed(path: Path) -> None:
    record = json.loads(path.read_text())
    if path.name.startswith("bench_"):
        assert set(record["cases"]) == set(benchmarks(ROOT)[record["benchmark"]].cases())
    else:
        experiment = experiment_of(record["experiment"])
        assert record["version"] == experiment.version, "raised since: record it again"
        assert {c["text"] for c in record["claims"]} <= {c.text for c in experiment.claims}


def test_the_pages_are_made_from_the_records(tmp_path: Path) -> None:
    for path in RECORDS:
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(path.read_text())
    for write, name in (
        (records.write_results_page, "RESULTS.md"),
        (records.write_benchmarks_page, "BENCHMARKS.md"),
    ):
        assert write(tmp_path).read_text() == (ROOT / name).read_text(), f"{name} is out of date"
