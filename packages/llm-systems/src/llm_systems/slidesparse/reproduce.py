"""The paper's comparison: exactness, accuracy by pattern, speed by pattern, and serving.

Perplexity is that of SmolLM2-135M-Instruct on the help texts of CPython; speed is that of the CPU
kernel against `torch.nn.functional.linear`, packing included, one thread, CPU time.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from repro_bench import Claim, Experiment, Outcome, Results

from . import cpu
from .checkpoint import token_chunks
from .conversion import prune_model
from .directory import convert_directory
from .lifting import lift
from .patterns import Pattern
from .pruning import prune_
from .windows import slide

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PATTERNS = ("14:16", "8:10", "6:8", "4:6", "2:4")
PRUNED = ("14:16", "6:8", "4:6", "2:4")
CALIBRATION = 8


@dataclass(frozen=True)
class Sizes:
    """How much each part does; `chunks` of `length` tokens are scored for each seed."""

    seeds: dict[str, int]
    arms: tuple[str, ...] | None = None
    model: str = "smollm2"
    length: int = 256
    chunks: int = 2
    shapes: tuple[tuple[str, tuple[int, int, int]], ...] = (
        ("square", (256, 2048, 2048)),
        ("wide", (256, 3072, 768)),
        ("few", (64, 2048, 2048)),
    )
    turns: int = 31
    layers: int = 40


ARMS = {
    "exact/all": "random integer layers of all patterns, slid and lifted against dense",
    "perplexity/dense": "SmolLM2-135M as it is",
    **{
        f"perplexity/{method}-{pattern}": f"pruned to {pattern} by {method}"
        for method in ("magnitude", "wanda")
        for pattern in PRUNED
    },
    "perplexity/sparsegpt-6:8": "pruned to 6:8 by SparseGPT",
    "perplexity/random-6:8": "pruned to 6:8 at random, a control",
    **{f"speed/{p}": f"the CPU kernel at {p} against a dense float32 product" for p in PATTERNS},
    "engine/plugin": "a tiny model at 6:8 in vLLM with the plugin against stock vLLM",
}


def _perplexity_claims() -> list[Claim]:
    found = []
    order = ("dense", *PRUNED)
    for method in ("magnitude", "wanda"):
        names = ["dense", *(f"{method}-{p}" for p in PRUNED)]
        for better, worse, a, b in zip(order, order[1:], names, names[1:], strict=False):
            found.append(
                Claim(
                    text=f"{method}: {better} is more accurate than {worse}",
                    metric="perplexity",
                    arm=f"perplexity/{a}",
                    than=f"perplexity/{b}",
                    direction="lower",
                    scale="ratio",
                )
            )
        found.append(
            Claim(
                text=f"{method}: 2:4 has at least three times the perplexity of dense",
                metric="perplexity",
                arm="perplexity/dense",
                than=f"perplexity/{method}-2:4",
                direction="lower",
                scale="ratio",
                by=3.0,
            )
        )
    found += [
        Claim(
            text=f"Wanda is more accurate than magnitude at {pattern}",
            metric="perplexity",
            arm=f"perplexity/wanda-{pattern}",
            than=f"perplexity/magnitude-{pattern}",
            direction="lower",
            scale="ratio",
        )
        for pattern in PRUNED
    ]
    return found


CLAIMS = [
    Claim(
        text="Sliding and lifting change no result: integer layers of all patterns agree",
        metric="mismatches",
        arm="exact/all",
        at_most=0.0,
        exact=True,
    ),
    *_perplexity_claims(),
    Claim(
        text="6:8 is at least 1.2 times as fast as dense on a CPU, 256 tokens, 2048 x 2048",
        metric="ratio_square",
        arm="speed/6:8",
        at_least=1.2,
    ),
    Claim(
        text="6:8 reaches 90% of its bound of 4/3 on a CPU, 256 tokens, 3072 x 768",
        metric="ratio_wide",
        arm="speed/6:8",
        at_least=1.2,
    ),
    Claim(
        text="6:8 is at least 1.2 times as fast as dense on a CPU, 64 tokens, 2048 x 2048",
        metric="ratio_few",
        arm="speed/6:8",
        at_least=1.2,
    ),
    *(
        Claim(
            text=f"{faster} is faster than {slower} on a CPU, 256 tokens, {shape}",
            metric=f"ratio_{name}",
            arm=f"speed/{faster}",
            than=f"speed/{slower}",
        )
        for name, shape in (("square", "2048 x 2048"), ("wide", "3072 x 768"))
        for slower, faster in zip(PATTERNS, PATTERNS[1:], strict=False)
    ),
    Claim(
        text="14:16 is at least 0.95 times as fast as dense on a CPU, 256 tokens, 2048 x 2048",
        metric="ratio_square",
        arm="speed/14:16",
        at_least=0.95,
    ),
    Claim(
        text="vLLM with the plugin gives the tokens of stock vLLM on the pruned weights",
        metric="mismatches",
        arm="engine/plugin",
        at_most=0.0,
        exact=True,
    ),
]

PRESETS = {
    "smoke": Sizes(
        seeds={"exact": 1, "perplexity": 1, "speed": 1, "engine": 1},
        arms=("exact", "perplexity/dense", "perplexity/wanda-6:8", "speed/6:8"),
        model="tiny",
        length=32,
        chunks=1,
        shapes=(("square", (64, 256, 256)), ("wide", (64, 256, 256)), ("few", (16, 256, 256))),
        turns=3,
        layers=5,
    ),
    "quick": Sizes(
        seeds={"exact": 1, "perplexity": 2, "speed": 5, "engine": 1},
        arms=(
            "exact", "perplexity/dense", "perplexity/magnitude-6:8", "perplexity/wanda-6:8",
            "speed/6:8", "engine",
        ),
        chunks=1,
        turns=7,
    ),
    "standard": Sizes(seeds={"exact": 1, "perplexity": 6, "speed": 8, "engine": 1}),
    "full": Sizes(
        seeds={"exact": 3, "perplexity": 12, "speed": 12, "engine": 1},
        length=512, chunks=4, turns=61,
    ),
}  # fmt: skip


def trial(arm: str, seed: int, sizes: Sizes) -> Outcome:
    """Measure one arm."""
    part, _, what = arm.partition("/")
    if part == "exact":
        return _exactness(seed, sizes)
    if part == "perplexity":
        return _perplexity(what, seed, sizes)
    if part == "speed":
        return _speed(Pattern.parse(what), seed, sizes)
    return _engine()


def _exactness(seed: int, sizes: Sizes) -> Outcome:
    generator = torch.Generator().manual_seed(seed)
    mismatches = 0
    for place in range(sizes.layers):
        pattern = Pattern.parse(PATTERNS[place % len(PATTERNS)])
        inputs = int(torch.randint(1, 200, (1,), generator=generator))
        weight = torch.randint(-127, 128, (64, inputs), generator=generator).float()
        prune_(weight, pattern, "random", seed=generator)
        x = torch.randint(-127, 128, (16, inputs), generator=generator)
        slid = slide(weight.to(torch.int8), pattern)
        got = lift(x, pattern) @ slid.to_2to4().to(torch.int64).T
        mismatches += int((got != x @ weight.to(torch.int64).T).sum())
        mismatches += int((slid.to_dense() != weight).sum())
    return Outcome({"mismatches": float(mismatches)})


def help_text() -> str:
    """The help texts of this CPython, half a million characters of English prose."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


@functools.lru_cache(maxsize=1)
def _data(model: str, length: int, count: int) -> tuple[Path | None, list[Tensor], str]:
    """The model's folder (None: a random stand-in), chunks of tokens, and what they are."""
    if model == "smollm2":
        from .._data import smollm2

        try:
            folder = smollm2()
        except FileNotFoundError as error:
            note = f"random stand-in: {error}"
        else:
            chunks = token_chunks(folder, help_text(), length, count)
            version = ".".join(map(str, sys.version_info[:2]))
            return folder, chunks, f"SmolLM2-135M-Instruct (Q4_1), help texts of CPython {version}"
    else:
        note = "random stand-in for the model"
    generator = torch.Generator().manual_seed(0)
    return None, list(torch.randint(0, 256, (count, 1, length), generator=generator)), note


def _model(folder: Path | None) -> nn.Module:
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    if folder is not None:
        shown = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        found: nn.Module = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True
        )
        if shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
        return found.eval()
    config = LlamaConfig(
        vocab_size=256, hidden_size=48, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return LlamaForCausalLM(config).eval()  # type: ignore[no-untyped-call, no-any-return]


@functools.lru_cache(maxsize=64)
def _losses(what: str, model: str, length: int, count: int) -> tuple[tuple[float, ...], float]:
    """The loss on every chunk after calibration, and the pruned energy.

    All chunks are scored while the pruned model is there; the other seeds of the arm read theirs.
    """
    folder, chunks, _ = _data(model, length, count)
    made = _model(folder)
    energy = 0.0
    if what != "dense":
        method, _, pattern = what.partition("-")
        report = prune_model(made, pattern, method, calib_loader=chunks[:CALIBRATION])  # type: ignore[arg-type]
        energy = statistics.fmean(layer.pruned_energy for layer in report.layers)
    losses = []
    with torch.inference_mode():
        for chunk in chunks[CALIBRATION:]:
            logits = made(chunk).logits[0, :-1]
            losses.append(float(F.cross_entropy(logits.float(), chunk[0, 1:])))
    return tuple(losses), energy


def _perplexity(what: str, seed: int, sizes: Sizes) -> Outcome:
    # Calibration comes first; each seed has chunks of its own.
    seeds = sizes.seeds["perplexity"]
    count = CALIBRATION + sizes.chunks * seeds
    losses, energy = _losses(what, sizes.model, sizes.length, count)
    start = seed % seeds * sizes.chunks
    loss = statistics.fmean(losses[start : start + sizes.chunks])
    note = _data(sizes.model, sizes.length, count)[2]
    return Outcome(
        {"perplexity": math.exp(loss), "loss": loss, "pruned_energy": energy}, notes={"data": note}
    )


def _speed(pattern: Pattern, seed: int, sizes: Sizes) -> Outcome:
    names = [name for name, _ in sizes.shapes]
    if cpu.available() is None:
        missing = {f"ratio_{name}": math.nan for name in names}
        return Outcome(missing, notes={"kernel": "not built, or the processor lacks AVX2"})
    found: dict[str, float] = {}
    generator = torch.Generator().manual_seed(seed)
    for name, (tokens, outputs, inputs) in sizes.shapes:
        weight = torch.randn(outputs, inputs, generator=generator)
        prune_(weight, pattern)
        streams = cpu.encode(weight, pattern)
        x = torch.randn(tokens, inputs, generator=generator)
        times = []
        for _ in range(sizes.turns + 1):
            start = time.thread_time()
            F.linear(x, weight)
            middle = time.thread_time()
            cpu.linear(x, streams)
            times.append((middle - start, time.thread_time() - middle))
        # The shortest of each: other work on the machine only adds time, to MKL more than to us.
        dense, skipping = (min(column[1:]) for column in zip(*times, strict=True))
        found[f"ratio_{name}"] = dense / skipping
        # Of the operations that each does: how near to the core's peak it comes.
        found[f"dense_gflops_{name}"] = 2e-9 * tokens * weight.numel() / dense
        found[f"kernel_gflops_{name}"] = 2e-9 * tokens * int(weight.count_nonzero()) / skipping
    return Outcome(found, notes={"kernel": str(cpu.available())})


_SERVE = """
import json, sys
from vllm import LLM, SamplingParams
tokens = {}
for folder in sys.argv[1:]:
    llm = LLM(folder, skip_tokenizer_init=True, dtype="float32", enforce_eager=True,
              max_model_len=128)
    how = SamplingParams(temperature=0, detokenize=False, ignore_eos=True, max_tokens=16)
    prompts = [{"prompt_token_ids": p} for p in ([1, 2, 3, 4], [9, 8, 7])]
    tokens[folder] = [list(o.outputs[0].token_ids) for o in llm.generate(prompts, how)]
    del llm
print(json.dumps(list(tokens.values())))
"""


def _engine() -> Outcome:
    """Tokens of both in one vLLM process, of the Python that LLM_SYSTEMS_VLLM_PYTHON names."""
    python = os.environ.get("LLM_SYSTEMS_VLLM_PYTHON")
    if python is None and importlib.util.find_spec("vllm") is not None:
        python = sys.executable
    if python is None:
        return Outcome({"mismatches": math.nan}, notes={"vllm": "not installed: not measured"})
    environment = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    with tempfile.TemporaryDirectory() as scratch:
        source, pruned, stock = (Path(scratch, n) for n in ("source", "pruned", "stock"))
        tiny_model().save_pretrained(source)
        convert_directory(source, pruned, "6:8")
        # The same weights, for stock vLLM.
        convert_directory(pruned, stock, "6:8", "keep")
        config = json.loads((stock / "config.json").read_text(encoding="utf-8"))
        del config["quantization_config"]
        (stock / "config.json").write_text(json.dumps(config), encoding="utf-8")
        done = subprocess.run(
            [python, "-c", _SERVE, str(stock), str(pruned)], env=os.environ | environment,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"vLLM failed: {done.stderr[-2000:]}")
    first, second = json.loads(done.stdout.strip().splitlines()[-1])
    pairs = [(a, b) for x, y in zip(first, second, strict=True) for a, b in zip(x, y, strict=True)]
    return Outcome(
        {"mismatches": float(sum(a != b for a, b in pairs)), "tokens": float(len(pairs))}
    )


def tiny_model() -> Any:
    """A random Qwen2 of two layers."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
        tie_word_embeddings=False, architectures=["Qwen2ForCausalLM"],
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Qwen2ForCausalLM(config).eval()  # type: ignore[no-untyped-call]


def plot_perplexity(results: Results) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.5))
    axes = figure.subplots()
    dense = list(results.values("perplexity/dense", "perplexity").values())
    if dense:
        axes.axhline(statistics.geometric_mean(dense), linestyle=":", label="dense")
    for method in ("magnitude", "wanda", "sparsegpt", "random"):
        points = []
        for place, pattern in enumerate(PRUNED):
            values = list(results.values(f"perplexity/{method}-{pattern}", "perplexity").values())
            if values:
                points.append((place, statistics.geometric_mean(values)))
        if points:
            axes.plot(*zip(*points, strict=True), "o-", label=method)
    axes.set_xticks(range(len(PRUNED)), PRUNED)
    axes.set_yscale("log")
    axes.set_xlabel("pattern")
    axes.set_ylabel("perplexity")
    axes.legend()
    return figure


def plot_speed(results: Results) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.5))
    axes = figure.subplots()
    for name in ("square", "wide", "few"):
        for place, pattern in enumerate(PATTERNS):
            values = list(results.values(f"speed/{pattern}", f"ratio_{name}").values())
            colour = {"square": "C0", "wide": "C1", "few": "C2"}[name]
            label = {"square": "256 tokens, 2048 x 2048", "wide": "256 tokens, 3072 x 768",
                     "few": "64 tokens, 2048 x 2048"}[name]  # fmt: skip
            axes.plot(
                [place] * len(values), values, "o", color=colour, alpha=0.5,
                label=label if not place else None,
            )  # fmt: skip
    bounds = [Pattern.parse(p).max_speedup for p in PATTERNS]
    axes.plot(range(len(PATTERNS)), bounds, "_", markersize=24, color="C3", label="bound")
    axes.axhline(1, linestyle=":")
    axes.set_xticks(range(len(PATTERNS)), PATTERNS)
    axes.set_xlabel("pattern")
    axes.set_ylabel("times as fast as dense")
    axes.legend()
    return figure


EXPERIMENT = Experiment(
    name="slidesparse",
    version=2,
    field="llm-systems",
    paper="SlideSparse: fast and flexible (2N-2):2N structured sparsity. ICML 2026,"
    " arXiv 2603.05232.",
    arms=ARMS,
    claims=CLAIMS,
    trial=trial,
    presets=PRESETS,
    plots={
        "Perplexity by pattern and method of pruning": plot_perplexity,
        "Speed of the CPU kernel against a dense float32 product": plot_speed,
    },
)
