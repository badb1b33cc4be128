"""The committed records of a checkout, and the two pages that are made from them alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .experiment import Experiment
from .report import notes, number
from .runner import Run, claim_document
from .store import sizes_of, write_json, write_text
from .verdict import summarise

SCHEMA = 1
_RESULTS_HEAD = (
    "# Results",
    "",
    "Made by `repro report --markdown` from the records in `packages/*/results/`.",
    "A claim holds or is refuted when the whole 95% interval over the seeds lies on that side of",
    "its threshold; otherwise it is inconclusive.",
    "",
)
_BENCHMARKS_HEAD = (
    "# Benchmarks",
    "",
    "Made by `repro bench --markdown` from the records in `packages/*/results/`.",
    "Ours and the peer run by turns in one sitting, the same inputs, one thread each. A ratio is",
    "the peer's quantity by ours, the median of the turns with its range: above 1 is better.",
    "",
)


def room_of(name: str) -> str:
    """The module of an experiment, as its files are named."""
    return name.replace("-", "_")


def record_run(checkout: Path, run: Run) -> Path:
    """Write the compact record of a run into its field's results."""
    experiment, results = run.experiment, run.results
    arms: dict[str, Any] = {}
    for arm in results.arms:
        measured = {}
        for metric in results.metrics():
            interval = summarise(results, arm, metric)
            if interval.estimate is not None:
                measured[metric] = {
                    "estimate": interval.estimate,
                    "ci_low": interval.low,
                    "ci_high": interval.high,
                    "seeds": interval.n,
                }
        arms[arm] = measured
    document = {
        "schema": SCHEMA,
        "experiment": experiment.name,
        "version": experiment.version,
        "field": experiment.field,
        "paper": experiment.paper,
        "preset": run.preset,
        "sizes": sizes_of(experiment, run.preset),
        "claims": [claim_document(v) for v in run.verdicts],
        "arms": arms,
        "notes": dict(notes(results)),
        "trials": {"ok": len(results.outcomes), "failed": len(results.failed)},
        "trial_seconds": round(run.trial_seconds, 1),
        "environment": run.environment,
    }
    path = results_folder(checkout, experiment) / f"{room_of(experiment.name)}.json"
    write_json(path, document)
    return path


def results_folder(checkout: Path, experiment: Experiment) -> Path:
    """Where a field keeps its records.

    Raises
    ------
    ValueError
        If the checkout has no such field.
    """
    folder = checkout / "packages" / experiment.field
    if not folder.is_dir():
        raise ValueError(f"{checkout} has no packages/{experiment.field} to keep the record in")
    return folder / "results"


def read_records(checkout: Path, kind: str) -> list[dict[str, Any]]:
    """All records of a kind, `"run"` or `"bench"`, by field and name."""
    found = []
    for path in sorted(checkout.glob("packages/*/results/*.json")):
        if path.name.startswith("bench_") == (kind == "bench"):
            try:
                found.append(json.loads(path.read_text(encoding="utf-8")))
            except ValueError as error:
                raise ValueError(f"{path} is not a record: {error}") from None
    return found


def write_results_page(checkout: Path) -> Path:
    """Make RESULTS.md from the records of runs."""
    lines = [
        *_RESULTS_HEAD,
    ]
    for record in read_records(checkout, "run"):
        environment = record["environment"]
        lines += [
            f"## {record['experiment']} ({record['field']})",
            "",
            record["paper"],
            "",
            "| claim | verdict | estimate | 95% interval | threshold | seeds |",
            "|---|---|---|---|---|---|",
        ]
        for claim in record["claims"]:
            why = f" ({claim['reason']})" if claim["reason"] else ""
            lines.append(
                f"| {_cell(claim['text'])} | **{claim['verdict']}**{_cell(why)} |"
                f" {number(claim['estimate'])} | {number(claim['ci_low'])} …"
                f" {number(claim['ci_high'])} | {number(claim['threshold'])} | {claim['seeds']} |"
            )
        told = "; ".join(f"{kind}: {', '.join(texts)}" for kind, texts in record["notes"].items())
        trials = record["trials"]
        size = (
            f"Preset `{record['preset']}`: {trials['ok']} trials ({trials['failed']} failed),"
            f" {number(record['trial_seconds'])} s of them."
        )
        lines += ["", " ".join([size, *([told + "."] if told else []), _where(environment)]), ""]
    path = checkout / "RESULTS.md"
    write_text(path, "\n".join(lines).rstrip() + "\n")
    return path


def write_benchmarks_page(checkout: Path) -> Path:
    """Make BENCHMARKS.md from the records of benchmarks."""
    lines = [
        *_BENCHMARKS_HEAD,
    ]
    for record in read_records(checkout, "bench"):
        environment = record["environment"]
        lines += [
            f"## {record['benchmark']} ({record['field']})",
            "",
            "| case | peer | ours | peer's | ratio | range | target | also |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for name, case in record["cases"].items():
            lines.append(_bench_row(name, case))
        lines += ["", _where(environment), ""]
    path = checkout / "BENCHMARKS.md"
    write_text(path, "\n".join(lines).rstrip() + "\n")
    return path


def _bench_row(name: str, case: dict[str, Any]) -> str:
    label = f"{name}: {_cell(case['text'])}"
    if case["missing"]:
        return f"| {label} | {case['peer']} | – | – | missing: {_cell(case['missing'])} | | | |"
    target = "–"
    if case["target"] is not None:
        target = f"{number(case['target'])} {'met' if case['met'] else 'not met'}"
    also = "; ".join(
        f"{key} {number(case['ours'].get(key))} / {number(case['theirs'].get(key))}"
        for key in dict.fromkeys([*case["ours"], *case["theirs"]])
        if key != case["quantity"]
    )
    unit = " s" if case["quantity"] == "seconds" else f" {case['quantity']}"
    ours, theirs = case["ours"][case["quantity"]], case["theirs"][case["quantity"]]
    spread = f"{number(case['ratio_low'])} … {number(case['ratio_high'])}"
    return (
        f"| {label} | {case['peer']} | {number(ours)}{unit} | {number(theirs)}{unit} |"
        f" **{number(case['ratio'])}** | {spread} | {target} | {also} |"
    )


def _where(environment: dict[str, Any]) -> str:
    commit = environment["commit"] or "unknown"
    return f"{environment['date'][:10]}, {environment['machine']}, commit {commit}."


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
