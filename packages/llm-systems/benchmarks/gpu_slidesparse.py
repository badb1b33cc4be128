"""SlideSparse on a GPU: correctness of the fused kernel, its time, and products of a 7B model.

    python packages/llm-systems/benchmarks/gpu_slidesparse.py --out gpu_slidesparse.json

Needs torch with CUDA and Triton and takes less than ten minutes on one data-centre GPU; it stops
starting new measurements when `--minutes` are over. On a machine without a GPU, `--interpret` runs
the part (a) for int8 through Triton's interpreter, for correctness only.

(a) Is the Triton kernel bit-equal to its definition, for int8 and fp8, L = 4 ... 16, odd K?
(b) What does quantising and lifting cost beside quantising alone? Expected: at most 1.2 gamma.
(c) Dense products against 2:4 products of the slid weights: speed-up, bound, the efficiency
    (speed-up by 2:4's speed-up) / (ideal quotient), and the speed-up of whole layers, which
    quantise and lift their inputs and scale the sums. Expected on Hopper: efficiency 0.85 to 1.2
    from 4096 tokens on, int8 6:8 around 1.0 to 1.3, fp8 and bf16 around 0.9 to 1.1; not 4/3.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SHAPES = [(4608, 3584), (3584, 3584), (37888, 3584), (3584, 18944)]
TOKENS = [512, 2048, 4096, 16384]
PATTERNS = ["2:4", "4:6", "6:8", "8:10"]


def equal(device: str, kinds: list[str]) -> dict[str, bool]:
    """(a) Whether kernel and definition agree bit for bit."""
    import torch

    from llm_systems.slidesparse import Pattern, quantize_lift

    generator = torch.Generator().manual_seed(0)
    found = {}
    for total in (4, 6, 8, 10, 16):
        for inputs in (64, 250, 999):
            for kind in kinds:
                x = torch.randn(7, inputs, generator=generator)
                x[1] = 0
                x[2, :8] = torch.tensor([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 126.5, 127.0])
                x = x.to(device)
                pattern = Pattern(total - 2, total)
                q, scale = quantize_lift(x, pattern, kind, "torch")  # type: ignore[arg-type]
                got, got_scale = quantize_lift(x, pattern, kind, "triton")  # type: ignore[arg-type]
                same = torch.equal(q.view(torch.uint8), got.view(torch.uint8))
                found[f"{kind} {pattern} K={inputs}"] = same and torch.equal(scale, got_scale)
    return found


def seconds(call: Callable[..., object], *arguments: object, repeats: int = 20) -> float:
    """The median time of a call on the GPU."""
    import torch

    for _ in range(3):
        call(*arguments)
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call(*arguments)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return sorted(times)[len(times) // 2]


def lifting(until: float) -> list[dict[str, Any]]:
    """(b) Quantising and lifting against quantising in the same kernel without lifting.

    A pattern of 2:4 has one window a block and lifts nothing.
    """
    import torch

    from llm_systems.slidesparse import Pattern
    from llm_systems.slidesparse.fused import quantize_lift_fused

    rows = []
    for tokens in (512, 4096, 16384):
        x = torch.randn(tokens, 3584, device="cuda", dtype=torch.bfloat16)
        alone = seconds(quantize_lift_fused, x, Pattern(2, 4), "int8")
        for text in PATTERNS[1:]:
            if time.monotonic() > until:
                return rows
            pattern = Pattern.parse(text)
            taken = seconds(quantize_lift_fused, x, pattern, "int8")
            rows.append(
                {"tokens": tokens, "pattern": text, "ratio": taken / alone,
                 "expected_at_most": 1.2 * pattern.expansion}
            )  # fmt: skip
    return rows


def dense_layer(x: Any, weight: Any, channels: Any, kind: str) -> Any:
    """A quantised dense layer: the kernel quantises alone at 2:4, which lifts nothing."""
    import torch

    from llm_systems.slidesparse import Pattern
    from llm_systems.slidesparse.fused import quantize_lift_fused, rescale

    q, scale = quantize_lift_fused(x, Pattern(2, 4), kind)
    if kind == "int8":
        sums = torch._int_mm(q, weight.t())
        return rescale(sums, scale, channels, None, torch.bfloat16)
    return torch._scaled_mm(q, weight.t(), scale[:, None], channels[None], out_dtype=torch.bfloat16)


def products(until: float) -> list[dict[str, Any]]:
    """(c) The layers of Qwen2.5-7B: products alone, and layers with all that goes before and after.

    A layer quantises its inputs (and lifts them, if sparse), multiplies, and scales the sums.
    """
    import torch

    from llm_systems.slidesparse import Pattern, lift, prune_
    from llm_systems.slidesparse.backends import apply, prepare, quantize_weight
    from llm_systems.slidesparse.fused import quantize_lift_fused
    from llm_systems.slidesparse.patterns import pad_columns
    from llm_systems.slidesparse.semi_structured import multiply

    rows: list[dict[str, Any]] = []
    for tokens in reversed(TOKENS):
        for kind in ("int8", "fp8", "bf16"):
            for outputs, inputs in SHAPES:
                if time.monotonic() > until:
                    return rows
                x = torch.randn(tokens, inputs, device="cuda", dtype=torch.bfloat16)
                weight = torch.randn(outputs, inputs, device="cuda", dtype=torch.bfloat16)
                product: Callable[..., torch.Tensor]
                layer: Callable[..., torch.Tensor]
                if kind == "bf16":
                    product = layer = functools.partial(torch.nn.functional.linear, x, weight)
                else:
                    q, scale = quantize_lift_fused(x, Pattern(2, 4), kind)
                    w, channel = quantize_weight(weight, kind)
                    if kind == "int8":
                        product = functools.partial(torch._int_mm, q, w.t())
                    else:
                        product = functools.partial(
                            torch._scaled_mm, q, w.t(), scale[:, None], channel[None],
                            out_dtype=torch.bfloat16,
                        )  # fmt: skip

                    layer = functools.partial(dense_layer, x, w, channel, kind)
                dense, dense_whole = seconds(product), seconds(layer)
                base = 0.0
                for text in PATTERNS:
                    pattern = Pattern.parse(text)
                    pruned = weight.clone()
                    prune_(pruned, pattern)
                    activation = None if kind == "bf16" else kind
                    row = {"tokens": tokens, "type": kind, "pattern": text,
                           "shape": [outputs, inputs]}  # fmt: skip
                    try:
                        ready = prepare(pruned, pattern, activation, "cusparselt")
                        got = apply(ready, x)
                        taken_layer = seconds(apply, ready, x)
                        if kind == "bf16":
                            lifted = pad_columns(lift(x, pattern), 16)
                        else:
                            lifted, _ = quantize_lift_fused(x, pattern, kind, rows=16, columns=32)
                        sums = torch.int32 if kind == "int8" else torch.bfloat16
                        taken = seconds(multiply, ready.packed, lifted, outputs, sums)
                    except RuntimeError as error:
                        rows.append(row | {"error": str(error)[:200]})
                        continue
                    expected = torch.nn.functional.linear(x, pruned)
                    speedup, bound = dense / taken, pattern.max_speedup
                    base = speedup if text == "2:4" else base
                    rows.append(
                        row
                        | {
                            "dense_tflops": 2e-12 * tokens * outputs * inputs / dense,
                            "speedup": speedup, "bound": bound,
                            "efficiency": 2 * speedup / base / bound if base else None,
                            "layer_speedup": dense_whole / taken_layer,
                            "relative_error": float((got - expected).norm() / expected.norm()),
                        }
                    )  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("gpu_slidesparse.json"))
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--interpret", action="store_true")
    given = parser.parse_args()
    if given.interpret:
        # Must be set before Triton is imported.
        os.environ["TRITON_INTERPRET"] = "1"
    import torch

    until = time.monotonic() + 60 * given.minutes
    if given.interpret:
        result: dict[str, Any] = {"device": "interpreter", "equal": equal("cpu", ["int8"])}
    elif not torch.cuda.is_available():
        raise SystemExit("needs a CUDA device, or --interpret for correctness alone")
    else:
        result = {
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "equal": equal("cuda", ["int8", "fp8"]),
            "lifting": lifting(until),
            "products": products(until),
        }
    part = given.out.with_suffix(".part")
    part.write_text(json.dumps(result, indent=1))
    part.replace(given.out)
    bad = [name for name, same in result["equal"].items() if not same]
    print(f"{result['device']}: {len(result['equal']) - len(bad)} of {len(result['equal'])} equal")
    for row in result.get("products", []):
        if "error" not in row:
            text = (
                "{type} {pattern} M={tokens} {shape}: {speedup:.2f} of {bound:.2f}, efficiency "
                "{efficiency}, whole layer {layer_speedup:.2f}, dense {dense_tflops:.0f} TFLOP/s"
            )
            print(text.format(**row))
    if bad:
        raise SystemExit(f"not bit-equal: {', '.join(bad)}")


if __name__ == "__main__":
    main()
