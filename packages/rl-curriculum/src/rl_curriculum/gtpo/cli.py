"""The command `rl-curriculum gtpo`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

app = typer.Typer(help="Credit tokens and responses by entropy.", no_args_is_help=True)
console = Console()
errors = Console(stderr=True)


def _fail(message: object) -> NoReturn:
    text = " ".join(str(message).split())
    errors.print(f"[red]error:[/red] {escape(text)}", highlight=False, soft_wrap=True)
    raise typer.Exit(2)


@app.command()
def train(
    config: Annotated[Path, typer.Argument(help="A YAML file; see the README.")],
    fresh: Annotated[bool, typer.Option("--fresh", help="Remove the run that was there.")] = False,
) -> None:
    """Train a language model on problems with known answers, with TRL; go on from a checkpoint."""
    try:
        from .run import train as run
        from .settings import read_settings

        settings = read_settings(config)
        trainer = run(settings, fresh=fresh)
    except (ValueError, TypeError, OSError, ImportError, RuntimeError) as error:
        _fail(error)
    console.print(
        f"{trainer.state.global_step} steps; the model is in {settings.output_dir / 'model'}",
        highlight=False,
        soft_wrap=True,
    )


@app.command()
def explain(
    run: Annotated[Path, typer.Argument(help="A JSONL file with a group of responses a line.")],
    method: Annotated[
        str, typer.Option(help="gtpo, gtpo:0.5, grpo-s, dapo, gtpo-joint, ...")
    ] = "gtpo",
    group: Annotated[int, typer.Option(help="The group to show, from 0.")] = 0,
    picture: Annotated[
        Path | None, typer.Option("--html", help="Write all groups to this page.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One row a token, as JSON.")] = False,
) -> None:
    """Show every token of a group with its entropy, weight and advantage."""
    from .._files import write_atomic
    from .explain import as_html, as_rows, explain_group, read_groups

    try:
        groups = read_groups(run)
        if not 0 <= group < len(groups):
            raise ValueError(f"--group is {group}; allowed: 0 to {len(groups) - 1}")
        if picture is not None and (picture.is_dir() or picture.resolve() == run.resolve()):
            raise ValueError(f"--html is {str(picture)!r}; allowed: a file that is not the run")
        explained = explain_group(groups[group], method)
        if picture is not None:
            page = as_html([explain_group(g, method) for g in groups])
            write_atomic(picture, lambda path: path.write_text(page, encoding="utf-8"))
    except (ValueError, OSError) as error:
        _fail(error)
    rows = as_rows(explained)
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    table = Table(title=escape(repr(explained.group.prompt)), title_justify="left")
    for name in ("response", "reward", "token"):
        table.add_column(name)
    for name in ("entropy", "weight", "advantage"):
        table.add_column(name, justify="right")
    before = None
    for row in rows:
        first = row["response"] != before
        if first and before is not None:
            table.add_section()
        before = row["response"]
        reward = "none" if row["reward"] is None else f"{row['reward']:g}"
        table.add_row(
            str(before) if first else "",
            reward if first else "",
            escape(repr(row["token"])),
            f"{row['entropy']:.3f}",
            f"{row['weight']:.3f}",
            f"{row['advantage']:+.3f}",
        )
    console.print(table, highlight=False)
