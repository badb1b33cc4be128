"""The command `theory-probes constraint-layers`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

app = typer.Typer(help="Make scores obey linear rules.", no_args_is_help=True)
console = Console()
errors = Console(stderr=True)

RESULTS = ("allocations.csv", "rules.csv")
Temperature = Annotated[float, typer.Option(help="Small is hard, large is soft.")]


def _fail(message: str) -> NoReturn:
    errors.print(f"[red]error:[/red] {escape(message)}", highlight=False, soft_wrap=True)
    raise typer.Exit(2)


@app.command()
def project(
    data: Annotated[Path, typer.Argument(help="CSV or Parquet: a column of scores for each item.")],
    rules: Annotated[Path, typer.Option(help="TOML file of rules.")],
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("allocations"),
    method: Annotated[str, typer.Option(help="entropic or euclidean.")] = "entropic",
    temperature: Temperature = 1.0,
    index: Annotated[str | None, typer.Option(help="Column that names the rows.")] = None,
) -> None:
    """Turn a table of scores into feasible allocations, with a report of every rule."""
    try:
        from .._files import check_writable, read_table, write_atomic
        from .tables import constrained_weights, constraints_for, read_rules

        check_writable(out)
        for name in RESULTS:
            if (out / name).is_dir():
                raise ValueError(f"nothing can be written to {out / name}: it is a folder")
        if not rules.is_file():
            raise ValueError(f"rules is {str(rules)!r}, which is not a file")
        table = read_table(data)
        if not len(table):
            raise ValueError(f"{data} has no rows; allowed: at least one")
        if index is not None:
            if index not in table.columns:
                raise ValueError(f"index is {index!r}; allowed: one of {list(table.columns)}")
            table = table.set_index(index)
        given = read_rules(rules)
        constraints = constraints_for([str(c) for c in table.columns], given)
        weights = constrained_weights(table, constraints, method=method, temperature=temperature)  # type: ignore[arg-type]
        report = violations(weights.to_numpy(), constraints, given)
        keep = index is not None
        allocations, rules_report = (out / name for name in RESULTS)
        write_atomic(allocations, lambda path: weights.to_csv(path, index=keep))
        write_atomic(rules_report, lambda path: path.write_text(_csv(report), encoding="utf-8"))
    except (TypeError, ValueError, OSError, RuntimeError) as error:
        _fail(str(error))
    shown = Table("rule", "rows at its bound", "largest violation")
    for name, binding, violation in report:
        shown.add_row(escape(name), str(binding), f"{violation:.1e}")
    console.print(shown)
    console.print(f"{len(weights)} rows in {allocations}", highlight=False, markup=False)


@app.command()
def lp(
    file: Annotated[Path, typer.Argument(help="MPS or LP file.")],
    temperature: Temperature = 0.02,
) -> None:
    """Answer a linear program with the entropic layer: distance to the optimum, and time."""
    try:
        import torch

        from .layers import BinaryLinearConstraintLayer
        from .linear_program import read_mps
        from .projection import check_positive

        check_positive("temperature", temperature)
        program = read_mps(file)
        rules = program.constraints
        started = time.perf_counter()
        optimum = program.optimum()
        exact = time.perf_counter() - started
        started = time.perf_counter()
        layer = BinaryLinearConstraintLayer(rules, temperature, on_failure="ignore")
        compiled = time.perf_counter() - started
        scale = abs(program.objective).max() or 1.0
        started = time.perf_counter()
        x = layer(torch.from_numpy(-program.objective / scale)).numpy()
        spent = time.perf_counter() - started
    except (TypeError, ValueError, OSError, ImportError, RuntimeError) as error:
        _fail(str(error))
    reached = float(program.objective @ x) + program.offset
    table = Table("", "objective", "seconds")
    table.add_row("HiGHS", f"{optimum:.6g}", f"{exact:.3g}")
    table.add_row("entropic layer", f"{reached:.6g}", f"{spent:.3g} (compiled in {compiled:.3g})")
    console.print(table)
    gap = (reached - optimum) / max(abs(optimum), 1e-12)
    console.print(
        f"{rules.n} variables, {len(rules.b_eq) + len(rules.b_ub)} rows;"
        f" gap {100 * gap:.3g}% of the optimum, largest violation {float(rules.violation(x)):.1e}",
        highlight=False,
    )
    if not bool(layer.last_info.converged.all()):
        console.print("[yellow]not converged: raise the temperature[/yellow]")


def violations(
    weights: object, constraints: object, rules: dict[str, object]
) -> list[tuple[str, int, float]]:
    """Each rule with the number of rows in which it binds and its largest violation."""
    import numpy as np

    from .constraints import LinearConstraints

    assert isinstance(constraints, LinearConstraints)
    x = np.asarray(weights, dtype=np.float64)
    found = []
    sums = np.abs(x @ constraints.A_eq.T - constraints.b_eq)
    for k in range(sums.shape[1]):
        name = "total" if k == 0 and "total" in rules else f"equality {k + 1}"
        found.append((name, len(x), float(sums[:, k].max(initial=0))))
    slack = constraints.b_ub - x @ constraints.A_ub.T
    for k in range(slack.shape[1]):
        binding = int(np.sum(slack[:, k] < 1e-7))
        found.append((f"inequality {k + 1}", binding, float((-slack[:, k]).max(initial=0))))
    beyond = np.maximum(constraints.lower - x, x - constraints.upper)
    at_bound = int(np.sum((beyond > -1e-9).any(1)))
    found.append(("bounds", at_bound, float(beyond.max(initial=0))))
    return found


def _csv(report: list[tuple[str, int, float]]) -> str:
    lines = ["rule,rows_at_bound,largest_violation"]
    return "\n".join(lines + [f"{name},{rows},{v:.17g}" for name, rows, v in report]) + "\n"
