"""`mechanism-design rcb`: size a cold start from logged data, replay a labelled data set."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mechanism_design._files import check_writable, read_table, write_text, write_whole

from .audit import bic_audit
from .bandit import RCB
from .environments import ReplayClassificationEnv, simulate
from .planning import plan_cold_start
from .prior import GaussianPrior
from .tables import codes_of, contexts_of

app = typer.Typer(
    help="Recommendations that people have a reason to follow while you still learn.",
    no_args_is_help=True,
)
_out = Console(highlight=False)
_err = Console(stderr=True, highlight=False)

Eps = Annotated[
    float, typer.Option(help="Expected loss that a person tolerates, in units of reward.")
]
Features = Annotated[
    str | None, typer.Option(help="Feature columns, comma-separated; all the others if absent.")
]


@contextmanager
def _refusals() -> Iterator[None]:
    """Bad input ends in one line and exit status 2; warnings are lines too."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            yield
        except (ValueError, TypeError, OSError) as error:
            _err.print(f"[red]error:[/red] {escape(' '.join(str(error).split()))}", soft_wrap=True)
            raise typer.Exit(2) from None
    for warning in caught:
        _err.print(f"[yellow]note:[/yellow] {escape(str(warning.message))}", soft_wrap=True)


def _count(users: float) -> str:
    return f"{users:,.0f}" if users < 1e9 else f"{users:.2g}"


def _columns(frame: Any, features: str | None, others: set[str]) -> list[str]:
    if features is None:
        return [c for c in frame.columns if c not in others]
    return [c.strip() for c in features.split(",") if c.strip()]


@app.command()
def plan(
    history: Annotated[Path, typer.Argument(help="CSV or Parquet: a row for each past user.")],
    arm: Annotated[str, typer.Option(help="Column of the option that was taken.")],
    reward: Annotated[str, typer.Option(help="Column of what came of it, a number.")],
    features: Features = None,
    eps: Eps = 0.025,
    sigma: Annotated[
        float | None, typer.Option(help="Noise of a reward; measured on the history if absent.")
    ] = None,
    rule: Annotated[str, typer.Option(help="exact, conditional or paper.")] = "exact",
    samples: Annotated[
        int | None,
        typer.Option("--samples", "-N", help="Samples an arm; the published N if absent."),
    ] = None,
    quantile: Annotated[
        float, typer.Option(help="Share of users that the exact rule must cover.")
    ] = 0.99,
    users: Annotated[
        int | None, typer.Option(min=1, help="Users that will come, for a warning.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="JSON file for the plan.")] = None,
) -> None:
    """How long a cold start would be, from logged standard-of-care data."""
    with _refusals():
        if out is not None:
            if out.is_dir():
                raise ValueError(f"out is {str(out)!r}, a folder; allowed: a JSON file")
            check_writable(out.parent)
        frame = read_table(history)
        columns = _columns(frame, features, {arm, reward})
        X, names = contexts_of(frame, columns)
        arms, levels = codes_of(frame, arm)
        if reward not in frame.columns:
            raise ValueError(f"there is no column {reward!r}; there are {list(frame.columns)}")
        rewards = frame[reward].to_numpy(dtype=np.float64)
        prior = GaussianPrior.from_history(X, arms, rewards)
        if sigma is None:
            left = rewards - np.einsum("nd,nd->n", X, prior.mean[arms])
            sigma = float(max(left.std(), 1e-6))
        found = plan_cold_start(
            prior,
            X,
            eps,
            sigma,
            rule=rule,  # type: ignore[arg-type]
            N=samples,
            quantile=quantile,
            horizon=users,
        )
        means = (X @ prior.mean.T).mean(0)
    table = Table("arm", "history", "believed mean", "expected promotions")
    for k, level in enumerate(levels):
        table.add_row(
            escape(level),
            f"{np.sum(arms == k):,}",
            f"{means[k]:.3g}",
            _count(found.promotions[k]),
        )
    _out.print(table)
    stages = ", ".join(f"{value:.3g}" for value in found.L_by_stage)
    _out.print(
        f"N = {found.N:,} samples an arm; one user in L is promoted, L = {stages} by stage"
        f" ({found.rule} rule); about {_count(found.expected_rounds)} users in all.\n"
        f"{len(frame):,} rows, {len(names)} features, sigma {sigma:.3g}, phi0 {found.phi0:.2g},"
        f" tau {found.tau:.3g} with probability {found.rho:.2g}, eps {eps:g}."
    )
    for note in found.warnings:
        _err.print(f"[yellow]note:[/yellow] {escape(note)}", soft_wrap=True)
    if out is not None:
        document = asdict(found)
        document["promotions"] = dict(zip(levels, found.promotions.tolist(), strict=True))
        document.pop("L_by_context")
        write_text(out, json.dumps(document, indent=1) + "\n")


@app.command()
def replay(
    data: Annotated[Path, typer.Argument(help="CSV or Parquet: a row for each user.")],
    label: Annotated[str, typer.Option(help="Column of the right option.")],
    features: Features = None,
    samples: Annotated[int, typer.Option("--samples", "-N", help="Samples an arm.")] = 30,
    rarity: Annotated[
        float, typer.Option("--rarity", "-L", help="One user in L is promoted.")
    ] = 4.0,
    eps: Eps = 0.025,
    sigma: Annotated[float, typer.Option(help="Noise of a reward of 0 or 1.")] = 0.3,
    phi0: Annotated[
        float, typer.Option(help="Least eigenvalue of E[x x^T]; 1 for independent features.")
    ] = 1.0,
    permutations: Annotated[int, typer.Option(min=1, help="Orders of the users.")] = 10,
    seed: Annotated[int, typer.Option(help="Of the orders and coins.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("rcb-replay"),
) -> None:
    """Replay a labelled data set: error, regret, incentive gain, and a picture."""
    with _refusals():
        check_writable(out)
        frame = read_table(data)
        X, _ = contexts_of(frame, _columns(frame, features, {label}))
        y, levels = codes_of(frame, label)
        shares = np.bincount(y) / len(y)
        mean = np.zeros((len(levels), X.shape[1]))
        mean[:, 0] = shares
        prior = GaussianPrior(mean, 0.05)
        policy = RCB(
            prior,
            contexts=X,
            N=samples,
            L=rarity,
            eps=eps,
            sigma=sigma,
            phi0=phi0,
            train_on="all",
        )
        env = ReplayClassificationEnv(X, y, len(levels))
        table = simulate(policy, env, len(X), permutations, seed)
        chosen = X[np.random.default_rng(seed).integers(len(X), size=16)]
        gains = {
            stage: bic_audit(policy, prior, chosen, stage, 2000, L=rarity, seed=seed).worst
            for stage in ("cold", "exploitation")
        }
    by_world = table.groupby("world")
    error = 1 - by_world["reward"].mean()
    half = 1 - table[table["t"] >= len(X) // 2].groupby("world")["reward"].mean()
    cold = (table["kind"] != "ipgs").groupby(table["world"]).sum()
    shown = Table("", "value", "over orders")
    for name, values in (
        ("error", error),
        ("error, second half", half),
        ("regret", by_world["regret"].sum()),
        ("rounds of the cold start", cold),
    ):
        shown.add_row(name, f"{values.mean():.4g}", f"{values.min():.4g} to {values.max():.4g}")
    shown.add_row("always the most frequent", f"{1 - shares.max():.4g}", "")
    for stage, gain in gains.items():
        shown.add_row(
            f"worst incentive gain, {stage}", f"{gain:.3g}", "pays" if gain >= 0 else "does not pay"
        )
    _out.print(shown)
    summary = {
        "error": error.tolist(),
        "cold_rounds": cold.tolist(),
        "gain": gains,
        "arms": levels,
        "N": samples,
        "L": rarity,
    }
    write_text(out / "summary.json", json.dumps(summary, indent=1) + "\n")
    write_whole(out / "rounds.csv", lambda path: table.to_csv(path, index=False))
    try:
        from .plots import plot_replay

        figure = plot_replay(table, 1 - shares.max())
        write_whole(out / "regret.svg", lambda path: figure.savefig(path, format="svg"))
    except ImportError:
        _err.print("no picture was drawn; matplotlib comes with the extra plots")
    _out.print(f"results in {out}", soft_wrap=True)
