"""`mechanism-design welfare-auction`: price a table of users, apply the classifier, audit it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from mechanism_design._files import check_writable, read_table, write_text, write_whole

from .auction import AccuracyAuction
from .audit import audit_truthfulness
from .features import Encoding

app = typer.Typer(
    help="Accuracy auctions: be right about the users who value it most, at truthful prices.",
    no_args_is_help=True,
)
_out = Console(highlight=False)
_err = Console(stderr=True, highlight=False)

FORMAT = "mechanism-design/welfare-auction/1"

Data = Annotated[Path, typer.Argument(help="A CSV or Parquet file, one row a user.")]
Label = Annotated[str, typer.Option(help="Column of the verified labels (two classes).")]
Bid = Annotated[str, typer.Option(help="Column of the bids (reported values, >= 0).")]
Features = Annotated[
    str | None, typer.Option(help="Feature columns, comma-separated; all the others if absent.")
]
Drop = Annotated[str, typer.Option(help="Columns to leave out, comma-separated.")]
Raw = Annotated[
    bool,
    typer.Option("--raw", help="Do not standardise numbers (slow if large)."),
]
LossName = Annotated[str, typer.Option(help="hinge, logistic or squared_hinge.")]
Lam = Annotated[float, typer.Option(help="Regularisation; choose it without looking at bids.")]


@contextmanager
def _refusals() -> Iterator[None]:
    """Bad input ends in one line and exit status 2."""
    try:
        yield
    except (ValueError, TypeError, NotImplementedError, OSError) as error:
        _err.print(f"[red]error:[/red] {escape(' '.join(str(error).split()))}", soft_wrap=True)
        raise typer.Exit(2) from None


@contextmanager
def _progress(text: str) -> Iterator[Callable[[int, int], None] | None]:
    if not _err.is_terminal:
        yield None
        return
    columns = (TextColumn(text), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=_err, transient=True) as bar:
        task = bar.add_task(text, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _read(
    data: Path, label: str, bid: str, features: str | None, drop: str, raw: bool
) -> tuple[pd.DataFrame, Encoding]:
    table = read_table(data)
    if len(table) == 0:
        raise ValueError(f"{data.name} has no rows")
    for name in (label, bid):
        if name not in table:
            raise ValueError(f"there is no column {name!r}; allowed: {list(table.columns)}")
    if table[label].isna().any():
        row = int(np.argmax(table[label].isna()))
        raise ValueError(f"column {label!r} is empty in row {row}; allowed: a label in every row")
    left_out = {label, bid, *(name.strip() for name in drop.split(",") if name.strip())}
    unknown = left_out - set(table.columns)
    if unknown:
        raise ValueError(f"there is no column {sorted(unknown)[0]!r} to drop")
    if features is None:
        names = [str(name) for name in table.columns if name not in left_out]
    else:
        names = [name.strip() for name in features.split(",") if name.strip()]
        if {label, bid} & set(names):
            raise ValueError("the label and the bid columns cannot be features too")
    return table, Encoding.of(table, names, standardise=not raw)


@app.command()
def fit(
    data: Data,
    label: Label,
    bid: Bid,
    out: Annotated[Path, typer.Option(help="Folder for the report, the model and the picture.")],
    loss: LossName = "hinge",
    lam: Lam = 1.0,
    payments: Annotated[
        str, typer.Option(help="exact, bisect, sampled, one_shot or none.")
    ] = "exact",
    features: Features = None,
    drop: Drop = "",
    raw: Raw = False,
    cap: Annotated[float | None, typer.Option(help="Largest bid allowed.")] = None,
    seed: Annotated[int, typer.Option(help="For sampled and one-shot payments.")] = 0,
    jobs: Annotated[int, typer.Option(help="Threads over the users to price.")] = 1,
) -> None:
    """Hold the auction: who is served, and what each pays."""
    with _refusals():
        check_writable(out)
        table, encoding = _read(data, label, bid, features, drop, raw)
        auction = AccuracyAuction(
            loss=loss,  # type: ignore[arg-type]
            lam=lam,
            payments=payments,  # type: ignore[arg-type]
            value_cap=cap,
            random_state=seed,
            n_jobs=jobs,
        )
        X = encoding.transform(table)
        with _progress("pricing") as progress:
            auction.fit(X, table[label].to_numpy(), _amounts(table[bid]), progress=progress)
        report = auction.report()
        suffix = ".parquet" if data.suffix.lower() in {".parquet", ".pq"} else ".csv"
        report_file, model_file = out / f"report{suffix}", out / "model.json"
        if suffix == ".parquet":
            write_whole(report_file, report.to_parquet)
        else:
            write_whole(report_file, report.to_csv)
        write_text(model_file, json.dumps(_model(auction, encoding, label), indent=1) + "\n")
        picture = _draw(report, out / "auction.svg")
    lines = Table(show_header=False, box=None, pad_edge=False)
    counts = report["status"].value_counts()
    for name, value in {
        "users": f"{len(report):,}",
        "served": f"{int(report['correct'].sum()):,}",
        **{status: f"{int(counts[status]):,}" for status in counts.index},
        "who pay": f"{auction.n_payers_:,}",
        "welfare (bids of the served)": f"{auction.welfare_:,.6g} of {auction.bids_.sum():,.6g}",
        "revenue": f"{auction.revenue_:,.6g}",
        "not certified": f"{int((~report['certified']).sum()):,}",
        "report": str(report_file),
        "model": str(model_file),
        "picture": picture,
    }.items():
        lines.add_row(name, value)
    _out.print(lines, soft_wrap=True)
    if payments == "one_shot":
        _out.print(
            "one_shot: these payments are one random draw, and bids were resampled for training.",
            soft_wrap=True,
        )


def _amounts(series: pd.Series[Any]) -> np.ndarray[Any, Any]:
    numbers = pd.to_numeric(series, errors="coerce").to_numpy(dtype=np.float64)
    wrong = ~np.isfinite(numbers) | (numbers < 0)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueError(
            f"column {series.name!r} holds {series.tolist()[row]!r} in row {row}; allowed: finite "
            "numbers >= 0"
        )
    return numbers


def _model(auction: AccuracyAuction, encoding: Encoding, label: str) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "label": label,
        "classes": auction.classes_.tolist(),
        "loss": auction.loss,
        "lam": auction.lam,
        "features": encoding.names,
        "coefficients": auction.coef_[0].tolist(),
        "intercept": float(auction.intercept_[0]),
        "encoding": encoding.to_json(),
    }


def _draw(report: pd.DataFrame, path: Path) -> str:
    if find_spec("matplotlib") is None:
        return "none drawn: matplotlib is not installed (extra `plots`)"
    from .plots import plot_auction

    figure = plot_auction(report)
    write_whole(path, lambda temporary: figure.savefig(temporary, format="svg"))
    return str(path)


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(help="The model.json that `fit` wrote.")],
    data: Data,
    out: Annotated[Path, typer.Option(help="CSV or Parquet file for scores and labels.")],
) -> None:
    """Apply the classifier to new users, who neither bid nor pay."""
    with _refusals():
        if out.suffix.lower() not in {".csv", ".parquet"}:
            raise ValueError(f"out ends in {out.suffix!r}; allowed: .csv or .parquet")
        check_writable(out.parent)
        try:
            stored = json.loads(model.read_text(encoding="utf-8"))
            if stored["format"] != FORMAT:
                raise KeyError("format")
            encoding = Encoding.from_json(stored["encoding"])
            weights = np.asarray(stored["coefficients"], dtype=np.float64)
            intercept, classes = float(stored["intercept"]), list(stored["classes"])
        except (KeyError, TypeError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ValueError(f"{model} is not a model that `fit` wrote: {error}") from None
        score = encoding.transform(read_table(data)).to_numpy() @ weights + intercept
        found = pd.DataFrame({"score": score, "label": np.where(score > 0, classes[1], classes[0])})
        if out.suffix.lower() == ".parquet":
            write_whole(out, found.to_parquet)
        else:
            write_whole(out, lambda temporary: found.to_csv(temporary, index=False))
    _out.print(f"{len(found):,} users: {out}", soft_wrap=True)


@app.command()
def audit(
    data: Data,
    label: Label,
    bid: Bid,
    users: Annotated[int, typer.Option(help="How many users to audit.")] = 50,
    loss: LossName = "hinge",
    lam: Lam = 1.0,
    features: Features = None,
    drop: Drop = "",
    raw: Raw = False,
    seed: Annotated[int, typer.Option(help="Draws the users.")] = 0,
) -> None:
    """Let some users misreport, and show the most that any of them gains."""
    with _refusals():
        table, encoding = _read(data, label, bid, features, drop, raw)
        found = audit_truthfulness(
            AccuracyAuction(loss=loss, lam=lam),  # type: ignore[arg-type]
            encoding.transform(table),
            table[label].to_numpy(),
            _amounts(table[bid]),
            n_users=users,
            seed=seed,
        )
    gains = int((found.table["gain"] > 1e-9).sum())
    _out.print(f"{len(found.table):,} misreports, {gains} of them profitable beyond 1e-9")
    _out.print(f"largest gain: {found.max_gain:.3g}")
    if gains:
        raise typer.Exit(1)
