"""How a pruned weight is multiplied on this device: prepared once, applied to tokens.

| backend | where | what it does |
|---|---|---|
| `cpu` | float32 on a CPU with AVX-512 or AVX2 | skips the zeros (`cpu.py`) |
| `cusparselt` | CUDA | quantises, lifts, and multiplies with 2:4 units |
| `torch` | anywhere | the definition of the above: lifts, and multiplies the slid weight densely |
| `dense` | anywhere | multiplies the pruned weight densely |
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from . import cpu
from .lifting import LARGEST, TYPES, lift, quantize, quantize_lift
from .patterns import Pattern, require_pattern
from .windows import slide

Activation = Literal["int8", "fp8"] | None
Backend = Literal["auto", "cpu", "cusparselt", "torch", "dense"]
BACKENDS = get_args(Backend)
INFERENCE_ONLY = ("cpu", "cusparselt")


def read_activation(text: object) -> Activation:
    """What `config.json` and the command line write: `none`, `int8` or `fp8`."""
    if text not in ("none", "int8", "fp8"):
        raise ValueError(f"activation is {text!r}; allowed: 'none', 'int8' or 'fp8'")
    return None if text == "none" else text  # type: ignore[return-value]


def check_choices(activation: str | None, backend: str) -> None:
    """Refuse unknown names."""
    if activation not in (None, "int8", "fp8"):
        raise ValueError(f"activation is {activation!r}; allowed: None, 'int8' or 'fp8'")
    if backend not in BACKENDS:
        raise ValueError(f"backend is {backend!r}; allowed: {', '.join(BACKENDS)}")


def quantize_weight(weight: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """Symmetric quantisation of each output channel; zeros stay zeros."""
    largest = LARGEST[activation]
    wide = weight.to(torch.float32)
    scale = wide.abs().amax(1) / largest
    scale = torch.where(scale > 0, scale, 1.0)
    scaled = (wide / scale[:, None]).clamp(-largest, largest)
    return (scaled.round() if activation == "int8" else scaled).to(TYPES[activation]), scale


@dataclass
class Prepared:
    """A weight ready to be multiplied; which fields are set depends on the backend."""

    backend: str
    pattern: Pattern
    activation: Activation
    outputs: int
    inputs: int
    weight: Tensor | None = None
    scales: Tensor | None = None
    packed: Tensor | None = None
    streams: cpu.CpuWeight | None = None

    @property
    def name(self) -> str:
        """The backend, with the instruction set on a CPU."""
        return f"cpu-{cpu.available()}" if self.backend == "cpu" else self.backend


def prepare(
    weight: Tensor, pattern: Pattern, activation: Activation = None, backend: Backend = "auto"
) -> Prepared:
    """Check a pruned weight [O, K] and put it into the form of a backend.

    Raises
    ------
    PatternViolation
        For a weight that does not obey the pattern.
    ValueError
        For a backend that is not for this device, type or activation.
    RuntimeError
        For a backend that is not there.
    """
    check_backend(weight, activation, backend)
    require_pattern(weight, pattern)
    outputs, inputs = weight.shape
    if backend == "auto":
        backend = _best(weight, activation)
    done = Prepared(backend, pattern, activation, outputs, inputs)
    if activation is not None:
        weight, done.scales = quantize_weight(weight, activation)
    if backend == "cpu":
        done.weight, done.streams = weight, cpu.encode(weight, pattern)
    elif backend == "dense":
        done.weight = weight
    elif backend == "torch":
        done.weight = slide(weight, pattern).to_2to4()
    else:
        from .semi_structured import compress

        done.packed = compress(slide(weight, pattern).to_2to4())
    return done


def check_backend(weight: Tensor, activation: Activation, backend: Backend) -> None:
    """Refuse a backend that is unknown, not for this weight or activation, or not there."""
    check_choices(activation, backend)
    if not weight.dtype.is_floating_point:
        raise ValueError(f"weight is {weight.dtype}; allowed: a floating type")
    if backend == "cpu" and (
        activation is not None or weight.dtype != torch.float32 or weight.device.type != "cpu"
    ):
        raise ValueError(
            f"backend 'cpu' is for float32 on a CPU without quantised activations, not "
            f"{weight.dtype} on {weight.device} with {activation}; allowed: 'dense' or 'auto'"
        )
    if backend == "cusparselt":
        if not weight.is_cuda:
            raise ValueError(
                f"backend 'cusparselt' is for CUDA and the weight is on {weight.device}; move it "
                "there first, or take 'auto'"
            )
        if not torch.backends.cusparselt.is_available():
            raise RuntimeError("this PyTorch or GPU has no cuSPARSELt; take backend 'dense'")
    if backend == "cpu":
        cpu.require_kernel()


def _best(weight: Tensor, activation: Activation) -> Backend:
    if weight.is_cuda and torch.backends.cusparselt.is_available():
        if activation is not None or weight.dtype in (torch.float16, torch.bfloat16):
            return "cusparselt"
    elif weight.device.type == "cpu" and weight.dtype == torch.float32 and activation is None:
        return "cpu" if cpu.available() else "dense"
    return "dense"


def apply(prepared: Prepared, x: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x W^T + bias` for tokens x [M, K]."""
    if prepared.backend == "cusparselt":
        from .semi_structured import sparse_linear

        assert prepared.packed is not None
        out: Tensor = sparse_linear(
            x, prepared.packed, prepared.scales, bias, prepared.outputs,
            prepared.pattern.total, prepared.activation or "none",
        )  # fmt: skip
        return out
    assert prepared.weight is not None
    if prepared.backend == "cpu":
        assert prepared.streams is not None
        return cpu.linear(x, prepared.streams, bias, dense=prepared.weight)
    literal = prepared.backend == "torch"
    if prepared.activation is None:
        return F.linear(lift(x, prepared.pattern) if literal else x, prepared.weight, bias)
    if literal:
        q, tokens = quantize_lift(x, prepared.pattern, prepared.activation, "torch")
    else:
        q, tokens = quantize(x, prepared.activation)
    assert prepared.scales is not None
    out = _accumulate(q, prepared.weight) * tokens[:, None] * prepared.scales
    return (out if bias is None else out + bias).to(x.dtype)


def _accumulate(q: Tensor, weight: Tensor) -> Tensor:
    """`q weight^T` of quantised values, in float32 (from int32 sums for int8)."""
    if q.dtype == torch.int8:
        sums: Tensor = integer_product(q, weight)
        return sums.to(torch.float32)
    return q.to(torch.float32) @ weight.to(torch.float32).t()


@torch.library.custom_op("llm_systems::slidesparse_integer_product", mutates_args=())
def integer_product(q: Tensor, weight: Tensor) -> Tensor:
    """`q weight^T` [M, O] of int8 values in int32."""
    if not q.shape[0]:
        return torch.empty((0, weight.shape[0]), dtype=torch.int32, device=q.device)
    if q.is_cuda:
        # The library wants more than 16 rows, and multiples of 8 of everything.
        tokens, outputs, columns = q.shape[0], weight.shape[0], -q.shape[1] % 8
        rows = max(32, -(-tokens // 8) * 8)
        padded = F.pad(weight, (0, columns, 0, -outputs % 8))
        sums = torch._int_mm(F.pad(q, (0, columns, 0, rows - tokens)), padded.t())
        return sums[:tokens, :outputs].contiguous()
    columns = q.shape[1]
    if columns > 1 and _is_exact():
        return torch._int_mm(q.contiguous(), weight.t())
    # The sum of 1024 products is a whole number of at most 2^24, which float32 holds.
    sums = torch.zeros((q.shape[0], weight.shape[0]), dtype=torch.int32)
    for start in range(0, columns, 1024):
        part = slice(start, start + 1024)
        sums += (q[:, part].float() @ weight[:, part].float().t()).int()
    return sums


@functools.cache
def _is_exact() -> bool:
    """Whether PyTorch's int8 product is right on this processor.

    Without VNNI it adds pairs of products in 16 bits, where they saturate; with one column it
    returns memory that nobody wrote.
    """
    ones = torch.full((16, 64), 127, dtype=torch.int8)
    return bool((torch._int_mm(ones, ones.t()) == 64 * 127**2).all())


@integer_product.register_fake
def _(q: Tensor, weight: Tensor) -> Tensor:
    return q.new_empty((q.shape[0], weight.shape[0]), dtype=torch.int32)
