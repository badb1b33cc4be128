"""The CPU kernel against PyTorch's dense product, one thread, CPU time, packing included."""

from __future__ import annotations

import time
from pathlib import Path

CASES = {
    "6:8-256x2048x2048": {
        "text": "6:8, 256 tokens, 2048 outputs, 2048 inputs, float32",
        "peer": "torch.nn.functional.linear",
        "requirements": None,
        "target": 1.2,
        "repeats": 9,
    },
    "6:8-256x3072x768": {
        "text": "6:8, 256 tokens, 3072 outputs, 768 inputs, float32",
        "peer": "torch.nn.functional.linear",
        "requirements": None,
        "target": 1.2,
        "repeats": 9,
    },
    "6:8-256x2048x2048-numpy": {
        "text": "6:8, 256 tokens, 2048 outputs, 2048 inputs, float32",
        "peer": "numpy.matmul (OpenBLAS)",
        "requirements": None,
        "target": 1.2,
        "repeats": 9,
    },
    "6:8-256x3072x768-numpy": {
        "text": "6:8, 256 tokens, 3072 outputs, 768 inputs, float32",
        "peer": "numpy.matmul (OpenBLAS)",
        "requirements": None,
        "target": 1.2,
        "repeats": 9,
    },
    "6:8-64x2048x2048": {
        "text": "6:8, 64 tokens, 2048 outputs, 2048 inputs, float32",
        "peer": "torch.nn.functional.linear",
        "requirements": None,
        "target": None,
        "repeats": 9,
    },
    "6:8-4x2048x2048": {
        "text": "6:8, 4 tokens, 2048 outputs, 2048 inputs, float32",
        "peer": "torch.nn.functional.linear",
        "requirements": None,
        "target": None,
        "repeats": 9,
    },
    "2:4-256x2048x2048": {
        "text": "2:4, 256 tokens, 2048 outputs, 2048 inputs, float32",
        "peer": "torch.nn.functional.linear",
        "requirements": None,
        "target": None,
        "repeats": 9,
    },
    "14:16-256x2048x2048": {
        "text": "14:16, 256 tokens, 2048 outputs, 2048 inputs, float32",
        "peer": "torch.nn.functional.linear",
        "requirements": None,
        "target": None,
        "repeats": 9,
    },
}
_ready: dict[str, dict] = {}


def inputs(path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    from llm_systems.slidesparse import prune_

    pattern, shape = path.name.split("-")[:2]
    tokens, outputs, columns = map(int, shape.split("x"))
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(outputs, columns, generator=generator)
    prune_(weight, pattern)
    x = torch.randn(tokens, columns, generator=generator)
    save_file({"weight": weight, "x": x}, path / "layer.safetensors")


def _timed(call) -> dict[str, float]:
    """CPU seconds of a call, repeated to last a tenth of a second, and a check of its result."""
    out = call()
    repeats = 0
    start = time.thread_time()
    while not repeats or time.thread_time() - start < 0.1:
        call()
        repeats += 1
    return {"seconds": (time.thread_time() - start) / repeats, "norm": float(out.norm())}


def _load(path: Path):
    import torch
    from safetensors.torch import load_file

    torch.set_num_threads(1)
    if path.name not in _ready:
        _ready[path.name] = load_file(path / "layer.safetensors")
    return _ready[path.name]


def ours(path: Path) -> dict[str, float]:
    from llm_systems.slidesparse import cpu

    layer = _load(path)
    if "streams" not in layer:
        layer["streams"] = cpu.encode(layer["weight"], path.name.split("-")[0])
    return _timed(lambda: cpu.linear(layer["x"], layer["streams"]))


def peer(path: Path) -> dict[str, float]:
    import torch

    layer = _load(path)
    x, weight = layer["x"], layer["weight"]
    if path.name.endswith("-numpy"):
        x, weight = x.numpy(), weight.numpy().T
        return _timed(lambda: torch.from_numpy(x @ weight))
    return _timed(lambda: torch.nn.functional.linear(x, weight))
