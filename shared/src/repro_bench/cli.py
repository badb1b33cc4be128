"""The command `repro`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from . import bench as benches
from . import records
from .catalog import Broken, UnknownNameError, find_checkout, installed, load, resolve
from .experiment import PRESETS, Experiment
from .report import interval_text, latest_runs, number, write_report
from .runner import BACKENDS, Run, run
from .runner import Progress as TrialProgress

TRIAL_FAILED, WRONG_USE, REFUTED = 1, 2, 3
_COLOURS = {"holds": "green", "refuted": "red", "inconclusive": "yellow"}

app = typer.Typer(
    help="Test a paper's headline claim against baselines and read an honest verdict.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
console = Console()
errors = Console(stderr=True)

Out = Annotated[Path, typer.Option(help="The folder of trials and of the report.")]
Names = Annotated[list[str] | None, typer.Argument(metavar="NAME...", show_default=False)]


def _fail(message: str) -> NoReturn:
    errors.print(f"[red]error:[/red] {escape(message)}", highlight=False, soft_wrap=True)
    raise typer.Exit(WRONG_USE)


def _chosen(names: list[str] | None, every: bool, known: list[str], kind: str) -> list[str]:
    if every == bool(names):
        _fail(f"name the {kind}s to run, or give --all")
    if names:
        try:
            resolve(names, known, kind)
        except UnknownNameError as error:
            _fail(str(error))
        return list(dict.fromkeys(names))
    return known


def _experiment(name: str) -> Experiment:
    found = load(installed()[name])
    if isinstance(found, Broken):
        _fail(f"{name} ({found.target}) cannot be imported: {found.error}")
    return found


@app.command("list")
def list_(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    out: Out = Path("repro-out"),
) -> None:
    """Every installed experiment with its field, paper, claims and last verdicts."""
    last = latest_runs(out)
    found: list[dict[str, Any]] = []
    for name, point in installed().items():
        experiment = load(point)
        if isinstance(experiment, Broken):
            found.append({"name": name, "broken": experiment.error, "target": experiment.target})
            continue
        verdicts = {c["text"]: c["verdict"] for c in last.get(name, {}).get("claims", [])}
        claims = [{"text": c.text, "verdict": verdicts.get(c.text)} for c in experiment.claims]
        about = {"name": name, "field": experiment.field, "paper": experiment.paper}
        found.append({**about, "claims": claims})
    if as_json:
        print(json.dumps(found, indent=1))
        return
    if not found:
        console.print("No experiment is installed; install a field with its extra 'repro'.")
    table = Table("experiment", "field", "claim", "last verdict")
    for row in found:
        if "broken" in row:
            table.add_row(row["name"], "[red]broken[/red]", escape(str(row["broken"])), "")
            continue
        for i, claim in enumerate(row["claims"]):
            shown = _coloured(claim["verdict"]) if claim["verdict"] else "–"
            head = (row["name"], row["field"]) if i == 0 else ("", "")
            table.add_row(*head, escape(claim["text"]), shown)
    console.print(table)


@app.command()
def show(name: Annotated[str, typer.Argument()]) -> None:
    """One experiment: its paper, arms, claims and presets."""
    _chosen([name], False, list(installed()), "experiment")
    experiment = _experiment(name)
    console.print(f"[bold]{name}[/bold] ({experiment.field})\n{escape(experiment.paper)}\n")
    console.print("[bold]Arms[/bold]")
    for arm, meaning in experiment.arms.items():
        console.print(f"  {escape(arm)}: {escape(meaning)}", highlight=False)
    console.print("\n[bold]Claims[/bold]")
    for claim in experiment.claims:
        console.print(f"  {escape(claim.text)}", highlight=False)
    console.print("\n[bold]Presets[/bold]")
    for preset in PRESETS:
        sizes = experiment.presets[preset]
        shown = ", ".join(f"{f.name} = {getattr(sizes, f.name)}" for f in fields(sizes))
        console.print(f"  {preset}: {escape(shown)}", highlight=False)


@app.command("run")
def run_(
    names: Names = None,
    every: Annotated[bool, typer.Option("--all", help="Run all installed experiments.")] = False,
    preset: Annotated[str, typer.Option(help=f"One of {', '.join(PRESETS)}.")] = "quick",
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds of every arm.")] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes at a time; all cores if not given.")
    ] = None,
    backend: Annotated[str | None, typer.Option(help="dask or ray, for a cluster.")] = None,
    out: Out = Path("repro-out"),
    fresh: Annotated[bool, typer.Option("--fresh", help="Run finished trials again.")] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 3 when a claim is refuted.")
    ] = False,
    record: Annotated[
        bool, typer.Option("--record", help="Write the compact record into the checkout.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Run experiments, resuming what was begun, and judge their claims."""
    known = installed()
    chosen = _chosen(names, every, list(known), "experiment")
    if preset not in PRESETS:
        _fail(f"preset is {preset!r}; allowed: {', '.join(PRESETS)}")
    if backend is not None and backend not in BACKENDS:
        _fail(f"backend is {backend!r}; allowed: {', '.join(BACKENDS)}")
    try:
        out.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=out).close()
    except OSError as error:
        _fail(f"out is {str(out)!r}, where nothing can be written: {error.strerror}")
    checkout = find_checkout()
    if record and checkout is None:
        _fail("--record works in a checkout of the workspace only")
    loaded = {name: load(known[name]) for name in chosen}
    broken = [found for found in loaded.values() if isinstance(found, Broken)]
    for found in broken:
        errors.print(f"[red]broken:[/red] {found.name}: {escape(found.error)}", highlight=False)
    experiments = [found for found in loaded.values() if isinstance(found, Experiment)]
    if broken and not every:
        raise typer.Exit(WRONG_USE)
    runs: list[Run] = []
    try:
        for experiment in experiments:
            with _listener(quiet) as listen:
                done = run(
                    experiment,
                    preset,
                    out,
                    seeds=seeds,
                    jobs=jobs or os.cpu_count() or 1,
                    backend=backend,
                    fresh=fresh,
                    listen=listen,
                )
            runs.append(done)
            if not as_json:
                _print_verdicts(done)
            if record and checkout is not None:
                path = records.record_run(checkout, done)
                errors.print(f"record: {path}", highlight=False, soft_wrap=True)
    except KeyboardInterrupt:
        errors.print("interrupted; the same command goes on where this one stopped")
        raise typer.Exit(130) from None
    except (ValueError, OSError) as error:
        _fail(str(error))
    page = write_report(out)
    if as_json:
        print(json.dumps([done.document() for done in runs], indent=1))
    else:
        console.print(f"report: {page}", highlight=False, soft_wrap=True)
    if broken or any(done.results.failed for done in runs):
        raise typer.Exit(TRIAL_FAILED)
    if strict and any(v.verdict == "refuted" for done in runs for v in done.verdicts):
        raise typer.Exit(REFUTED)


@app.command()
def report(
    out: Out = Path("repro-out"),
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Make RESULTS.md from the committed records.")
    ] = False,
) -> None:
    """Write the HTML page of what was run into a folder."""
    if markdown:
        checkout = find_checkout()
        if checkout is None:
            _fail("--markdown works in a checkout of the workspace only")
        console.print(str(records.write_results_page(checkout)), highlight=False, soft_wrap=True)
        return
    if not out.is_dir():
        _fail(f"out is {str(out)!r}, which is not a folder; run something first")
    console.print(str(write_report(out)), highlight=False, soft_wrap=True)


@app.command()
def bench(
    names: Names = None,
    every: Annotated[bool, typer.Option("--all", help="Run all benchmarks.")] = False,
    record: Annotated[
        bool, typer.Option("--record", help="Write the record into the checkout.")
    ] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Make BENCHMARKS.md from the records.")
    ] = False,
) -> None:
    """Measure ours against a peer, by turns; in a checkout only."""
    checkout = find_checkout()
    if checkout is None:
        _fail("benchmarks stand in a checkout of the workspace only")
    if names or every:
        known = benches.benchmarks(checkout)
        for name in _chosen(names, every, list(known), "benchmark"):
            try:
                found = benches.run_benchmark(known[name], errors.out)
            except (benches.SideError, ValueError) as error:
                errors.print(f"[red]failed:[/red] {name}: {escape(str(error))}", soft_wrap=True)
                raise typer.Exit(TRIAL_FAILED) from None
            _print_benchmark(found)
            if record:
                path = benches.record_benchmark(checkout, found)
                errors.print(f"record: {path}", highlight=False, soft_wrap=True)
    elif not markdown:
        _fail("name the benchmarks to run, or give --all or --markdown")
    if markdown:
        console.print(str(records.write_benchmarks_page(checkout)), highlight=False, soft_wrap=True)


@contextmanager
def _listener(quiet: bool) -> Iterator[Any]:
    """Show progress on standard error: a bar on a terminal, a line a trial when piped."""
    if quiet:
        yield lambda _: None
    elif not errors.is_terminal:
        yield lambda event: errors.out(_line(event))
    else:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=errors) as progress:
            task = progress.add_task("", total=None)

            def update(event: TrialProgress) -> None:
                progress.update(
                    task,
                    description=f"{event.experiment}  {event.arm}, seed {event.seed}",
                    completed=event.done,
                    total=event.total,
                )
                if event.state in ("failed", "corrupt"):
                    progress.console.out(_line(event))

            yield update


def _line(event: TrialProgress) -> str:
    states = {"corrupt": "file is corrupt, runs again", "ok": f"{event.seconds:.1f} s"}
    state = states.get(event.state, event.state)
    return f"{event.experiment} [{event.done}/{event.total}] {event.arm} seed {event.seed}: {state}"


def _coloured(verdict: str) -> str:
    return f"[{_COLOURS[verdict]}]{verdict}[/]"


def _print_verdicts(done: Run) -> None:
    table = Table("claim", "verdict", "estimate [95% interval]", "threshold", "seeds")
    for v in done.verdicts:
        text = escape(v.claim.text + (f" ({v.reason})" if v.reason else ""))
        interval = escape(interval_text(v.interval))
        threshold = number(v.claim.threshold)
        table.add_row(text, _coloured(v.verdict), interval, threshold, str(v.interval.n))
    ok, failed = len(done.results.outcomes), len(done.results.failed)
    console.print(
        f"\n[bold]{done.experiment.name}[/bold], preset {done.preset}: {ok} trials finished,"
        f" {failed} failed, {done.seconds:.0f} s",
        highlight=False,
    )
    console.print(table)


def _print_benchmark(record: dict[str, Any]) -> None:
    table = Table("case", "peer", "ours", "peer's", "ratio", "target")
    for name, case in record["cases"].items():
        if case["missing"]:
            table.add_row(name, case["peer"], "", "", f"missing: {escape(case['missing'])}", "")
            continue
        quantity = case["quantity"]
        spread = f"{number(case['ratio_low'])} … {number(case['ratio_high'])}"
        target = "" if case["target"] is None else f"{'met' if case['met'] else 'not met'}"
        table.add_row(
            name,
            case["peer"],
            number(case["ours"][quantity]),
            number(case["theirs"][quantity]),
            f"{number(case['ratio'])} ({spread})",
            f"{number(case['target'])} {target}" if target else "",
        )
    console.print(table)


def main() -> None:
    """Run the command."""
    app()
