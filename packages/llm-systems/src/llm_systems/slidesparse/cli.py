"""The command `llm-systems slidesparse`."""

from __future__ import annotations

import math
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

if TYPE_CHECKING:
    from torch import Tensor

app = typer.Typer(
    help="Prune to patterns such as 6:8, check them, and see what they gain.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
console = Console()
errors = Console(stderr=True)

# (outputs, inputs) of the fused projections: qkv, output, gate and up, down.
SHAPES = {
    "smollm2-135m": [(960, 576), (576, 576), (3072, 576), (576, 1536)],
    "qwen2.5-7b": [(4608, 3584), (3584, 3584), (37888, 3584), (3584, 18944)],
    "llama3.1-8b": [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)],
}
# Dense operations a second and bytes a second, from the makers' data sheets.
HARDWARE = {
    "a100-int8": (624e12, 2.0e12),
    "a100-bf16": (312e12, 2.0e12),
    "h100-int8": (1979e12, 3.35e12),
    "h100-bf16": (989e12, 3.35e12),
    "h200-int8": (1979e12, 4.8e12),
}


# Of tokens, outputs and inputs.
MOST = 999_999_999
# What a model or its files may meet; PyTorch and transformers raise RuntimeError.
REFUSED = (ValueError, TypeError, OSError, RuntimeError, MemoryError, ModuleNotFoundError)


@app.callback()
def _root() -> None:
    pass


def _fail(message: object) -> NoReturn:
    errors.print(f"[red]error:[/red] {escape(str(message))}", highlight=False, soft_wrap=True)
    raise typer.Exit(2)


@app.command()
def convert(
    model: Annotated[Path, typer.Argument(help="Folder of a Hugging Face model (safetensors).")],
    out: Annotated[Path, typer.Argument(help="New folder for the pruned model.")],
    pattern: Annotated[str, typer.Option(help="keep:total, such as 6:8.")] = "6:8",
    method: Annotated[
        str, typer.Option(help="magnitude, wanda, sparsegpt, random, or keep if pruned already.")
    ] = "magnitude",
    calib: Annotated[Path | None, typer.Option(help="Text file for wanda and sparsegpt.")] = None,
    chunks: Annotated[int, typer.Option(min=1, help="Calibration chunks.")] = 16,
    length: Annotated[int, typer.Option(min=1, help="Tokens of a chunk.")] = 256,
    activation: Annotated[
        str, typer.Option(help="none, int8 or fp8: how inputs are quantised when it is run.")
    ] = "none",
    ignore: Annotated[list[str] | None, typer.Option(help="A layer to leave; repeatable.")] = None,
    targets: Annotated[
        str | None, typer.Option(help="Regular expression that layer names must match.")
    ] = None,
    seed: Annotated[int, typer.Option(help="For random.")] = 0,
) -> None:
    """Prune a checkpoint tensor by tensor; an interrupted run is continued by the same command."""
    from .backends import read_activation
    from .directory import convert_directory
    from .pruning import CALIBRATED, METHODS

    try:
        calibration = None
        if calib is not None:
            if method in METHODS and method not in CALIBRATED:
                raise ValueError(f"calib is for {' and '.join(CALIBRATED)}, not for {method!r}")
            calibration = partial(_tokens, model, _read_text(calib), length, chunks)
        elif method in CALIBRATED:
            raise ValueError(f"method {method!r} needs a text: --calib FILE")
        with _progress() as show:
            task = show.add_task("pruning", total=None)
            report = convert_directory(
                model, out, pattern, method,  # type: ignore[arg-type]
                calibration=calibration, ignore=ignore or ["lm_head"], targets=targets,
                activation=read_activation(activation), seed=seed,
                progress=lambda name, done, of: show.update(
                    task, completed=done, total=of, description=name
                ),
            )  # fmt: skip
    except REFUSED as error:
        _fail(error)
    console.print(f"{report}; in {out}", highlight=False, soft_wrap=True, markup=False)


@app.command()
def check(
    model: Annotated[Path, typer.Argument(help="Folder of a model.")],
    pattern: Annotated[
        str | None, typer.Option(help="keep:total; by default what config.json names.")
    ] = None,
) -> None:
    """Check every linear layer against the pattern; exit with 1 if one does not obey it."""
    from .checkpoint import check_directory

    try:
        reports = check_directory(model, pattern)
    except REFUSED as error:
        _fail(error)
    bad = {name: report for name, report in reports.items() if not report.ok}
    if bad:
        table = Table(_whole("layer"), "bad blocks", "most nonzeros", "first (row, block)")
        for name, report in bad.items():
            table.add_row(
                escape(name), str(report.bad_blocks), str(report.worst_nnz), str(report.first_bad)
            )
        console.print(table)
    console.print(f"{len(reports) - len(bad)} of {len(reports)} layers obey the pattern")
    if bad:
        raise typer.Exit(1)


@app.command()
def bench(
    shapes: Annotated[
        str, typer.Option(help="A model's name, or outputs x inputs: 2048x2048,3072x768.")
    ] = "smollm2-135m",
    patterns: Annotated[str, typer.Option(help="keep:total, comma-separated.")] = "2:4,6:8",
    tokens: Annotated[str, typer.Option(help="Token counts, comma-separated.")] = "1,64,256",
    repeats: Annotated[int, typer.Option(min=1)] = 7,
) -> None:
    """Time layers with this machine's backend against dense float32 ones, by turns, on one core."""
    import torch
    import torch.nn.functional as F

    from .backends import apply, prepare
    from .patterns import Pattern
    from .pruning import prune_

    try:
        sizes = _shapes(shapes)
        kinds = [Pattern.parse(text) for text in patterns.split(",")]
        counts = [_positive(text, "tokens") for text in tokens.split(",")]
        for outputs, inputs in sizes:
            # Weight, mask, streams, and what pruning takes; tokens in, packed and out.
            needed = 24 * outputs * inputs + 12 * max(counts) * (outputs + inputs)
            if needed > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
                raise ValueError(
                    f"shapes has {outputs}x{inputs}, with {max(counts)} tokens {needed / 1e9:.0f} "
                    "GB; allowed: what fits into this machine's memory"
                )
    except (ValueError, TypeError) as error:
        _fail(error)
    names = ("outputs", "inputs", "tokens", "pattern", "backend", "dense", "ratio", "bound")
    table = Table(*(_whole(name) for name in names))
    # Written between calls, so that weights come from memory as those of a model do.
    others = torch.empty(1 << 25)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    with torch.inference_mode(), _progress() as show:
        task = show.add_task("timing", total=len(sizes) * len(kinds) * len(counts))
        for outputs, inputs in sizes:
            for kind in kinds:
                weight = torch.randn(outputs, inputs, generator=generator)
                prune_(weight, kind)
                prepared = prepare(weight, kind)
                for count in counts:
                    x = torch.randn(count, inputs, generator=generator)
                    ways = (partial(F.linear, x, weight), partial(apply, prepared, x))
                    times: list[list[float]] = [[], []]
                    for _ in range(repeats + 1):
                        for way, found in zip(ways, times, strict=True):
                            others.fill_(0.0)
                            start = time.thread_time()
                            way()
                            found.append(time.thread_time() - start)
                    # The shortest of each: other work on the machine only adds time.
                    dense, ours = (min(found[1:]) for found in times)
                    table.add_row(
                        str(outputs), str(inputs), str(count), str(kind), prepared.name,
                        f"{2 * count * outputs * inputs / dense / 1e9:.0f} GFLOP/s",
                        f"{dense / ours:.2f}", f"{kind.max_speedup:.2f}",
                    )  # fmt: skip
                    show.advance(task)
    torch.set_num_threads(threads)
    console.print(table)


@app.command()
def predict(
    m: Annotated[int, typer.Option("--m", min=1, max=MOST, help="Tokens.")] = 4096,
    shapes: Annotated[str, typer.Option(help="As of bench.")] = "qwen2.5-7b",
    patterns: Annotated[
        str, typer.Option(help="keep:total, comma-separated.")
    ] = "2:4,4:6,6:8,8:10,14:16",
    hardware: Annotated[
        str, typer.Option(help=f"One of {', '.join(HARDWARE)}, or int8 operations/s:bytes/s.")
    ] = "a100-int8",
) -> None:
    """Predict from a roofline whether a pattern pays; an upper bound, not a measurement."""
    import torch

    from .cost import cost_model
    from .patterns import Pattern

    try:
        sizes = _shapes(shapes)
        kinds = [Pattern.parse(text) for text in patterns.split(",")]
        peak, bandwidth = HARDWARE.get(hardware) or _rates(hardware)
        dtype = torch.bfloat16 if hardware.endswith("bf16") else torch.int8
        rows = [
            (outputs, inputs, kind, cost_model(
                m, outputs, inputs, kind, peak_dense=peak, bandwidth=bandwidth, dtype=dtype
            ))
            for outputs, inputs in sizes
            for kind in kinds
        ]  # fmt: skip
    except (ValueError, TypeError) as error:
        _fail(error)
    table = Table("outputs", "inputs", "pattern", "dense", "slid", "speed-up", "bound")
    for outputs, inputs, kind, cost in rows:
        table.add_row(
            str(outputs), str(inputs), str(kind), f"{cost.dense_s * 1e3:.3g} ms",
            f"{cost.sparse_s * 1e3:.3g} ms", f"{cost.speedup:.2f}", f"{cost.bound:.2f}",
        )  # fmt: skip
    console.print(table)


def _whole(name: str) -> Column:
    """A column that goes on in the next line where a terminal is narrow."""
    return Column(name, overflow="fold")


def _progress() -> Any:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    return Progress(*columns, console=errors, disable=not sys.stderr.isatty(), transient=True)


def _positive(text: str, name: str) -> int:
    text = text.strip()
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text)):
        raise ValueError(f"{name} has {text!r}; allowed: whole numbers from 1 to {MOST}")
    return int(text)


def _tokens(model: Path, text: str, length: int, count: int) -> list[Tensor]:
    from .checkpoint import token_chunks, transformers_module

    # Its bars go to pipes too, and ours shows what takes long.
    transformers_module().utils.logging.disable_progress_bar()
    return token_chunks(model, text, length, count)


def _read_text(path: Path) -> str:
    if not path.is_file():
        raise ValueError(f"calib is {str(path)!r}, which is not a file")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"calib is {str(path)!r}; allowed: a text in UTF-8: {error}") from None


def _shapes(text: str) -> list[tuple[int, int]]:
    if text.lower() in SHAPES:
        return SHAPES[text.lower()]
    found = []
    for part in text.split(","):
        outputs, x, inputs = part.partition("x")
        if not x:
            raise ValueError(
                f"shapes is {text!r}; allowed: {', '.join(SHAPES)} or 2048x2048,3072x768"
            )
        found.append((_positive(outputs, "shapes"), _positive(inputs, "shapes")))
    return found


def _rates(text: str) -> tuple[float, float]:
    peak, _, bandwidth = text.partition(":")
    try:
        rates = float(peak), float(bandwidth)
    except ValueError:
        rates = 0.0, 0.0
    if not all(0 < rate < math.inf for rate in rates):
        allowed = f"{', '.join(HARDWARE)}, or positive numbers such as 624e12:2e12"
        raise ValueError(f"hardware is {text!r}; allowed: {allowed}")
    return rates
