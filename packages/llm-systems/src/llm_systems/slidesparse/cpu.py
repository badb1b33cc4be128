"""The CPU kernel: float32 weights whose zeros are neither stored nor multiplied.

A CPU needs no lifting: the slots of all windows are read at their own inputs. The kernel is a C
extension that is built with the package where a compiler is found; nothing is compiled at import.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .patterns import Pattern, check_matrix, without_negative_zeros

try:
    from . import _kernel
except ImportError:  # built without a compiler
    _kernel = None  # type: ignore[assignment]

ISAS = {2: "avx512", 1: "avx2"}
_OPERATION = "llm_systems::slidesparse_cpu_linear"


def available() -> str | None:
    """The instruction set that the kernel would use, `"avx512"` or `"avx2"`; None: no kernel.

    Examples
    --------
    >>> available() in ("avx512", "avx2", None)
    True
    """
    return None if _kernel is None else ISAS.get(_kernel.isa())


def require_kernel() -> None:
    """Raise `RuntimeError` without the kernel."""
    if available() is None:
        raise RuntimeError("the CPU kernel is not built, or this processor lacks AVX2")


def pays(total: int, tokens: int, inputs: int) -> bool:
    """Whether the kernel is worth it against PyTorch's dense product, as measured on two cores.

    On AMD (Zen 4) with weights that come from memory, as a model's do, 2:4 was 1.2 to 2.5 times as
    fast, 6:8 1.0 to 2.1, 14:16 0.9 to 2.3: at 1 to 1024 tokens of layers of 0.9 to 4 million
    weights, with less than 1 at four tokens only. On Intel (AVX-512), where MKL comes nearer to the
    peak, mild patterns gain only with few tokens or with many inputs, which share what it costs to
    pack the tokens.

    Examples
    --------
    >>> pays(4, 256, 768)
    True
    """
    gains_anywhere = tokens <= 64 or total <= 4 or (total <= 8 and inputs >= 1536)
    return gains_anywhere or bool(_kernel.AMD)


@dataclass(frozen=True)
class CpuWeight:
    """A weight [O, K] as the streams that the kernel reads."""

    values: Tensor
    masks: Tensor
    rows: Tensor
    starts: Tensor
    outputs: int
    inputs: int
    tile: int
    total: int

    @property
    def nbytes(self) -> int:
        """Bytes of all streams."""
        streams = (self.values, self.masks, self.rows, self.starts)
        return sum(s.numel() * s.dtype.itemsize for s in streams)


def encode(weight: Tensor, pattern: str | Pattern) -> CpuWeight:
    """Put a float32 weight [O, K] into the kernel's order.

    Zeros beyond the pattern's are skipped too. Tiles hold as many whole blocks as fit into 64
    inputs, so that every row of a pruned weight has equally many values in each.

    Raises
    ------
    RuntimeError
        Without the kernel.
    """
    pattern = Pattern.parse(pattern)
    require_kernel()
    check_matrix(weight, "weight")
    if weight.dtype != torch.float32 or weight.device.type != "cpu":
        raise ValueError(f"weight is {weight.dtype} on {weight.device}; allowed: float32 on cpu")
    weight = without_negative_zeros(weight.detach()).contiguous()
    outputs, inputs = weight.shape
    tile = 64 // pattern.total * pattern.total or 64
    tiles, chunks = -(-inputs // tile), -(-outputs // _kernel.ROWS)
    last = (outputs - 1) % _kernel.ROWS + 1
    pairs = tiles * ((chunks - 1) * (_kernel.ROWS // 2) + -(-last // 2))
    values = torch.empty(int(torch.count_nonzero(weight)), dtype=torch.float32)
    masks = torch.empty(pairs * 3, dtype=torch.int64)
    rows = torch.empty(pairs * 2, dtype=torch.int16)
    starts = torch.empty(chunks, dtype=torch.int64)
    _kernel.encode(
        weight.data_ptr(), values.data_ptr(), masks.data_ptr(), rows.data_ptr(), starts.data_ptr(),
        inputs, outputs, tile,
    )  # fmt: skip
    return CpuWeight(values, masks, rows, starts, outputs, inputs, tile, pattern.total)


@torch.library.custom_op(_OPERATION, mutates_args=(), device_types="cpu")
def cpu_linear(
    x: Tensor,
    dense: Tensor | None,
    values: Tensor,
    masks: Tensor,
    rows: Tensor,
    starts: Tensor,
    bias: Tensor | None,
    outputs: int,
    tile: int,
    total: int,
    isa: int = 0,
) -> Tensor:
    """`x W^T + bias` [M, O] for tokens x [M, K], float32, from the streams of `encode`.

    With the dense weight it takes that where the kernel does not pay: the choice stands here
    because a traced graph must not depend on the number of tokens.
    """
    tokens = x.shape[0]
    if dense is not None and not pays(total, tokens, x.shape[1]):
        return torch.nn.functional.linear(x, dense, bias)
    y = torch.empty((tokens, outputs), dtype=torch.float32)
    if not tokens:
        return y
    if x.stride(1) != 1 or x.stride(0) < x.shape[1]:
        x = x.contiguous()
    _kernel.linear(
        x.data_ptr(), values.data_ptr(), masks.data_ptr(), rows.data_ptr(), starts.data_ptr(),
        0 if bias is None else bias.data_ptr(), y.data_ptr(),
        tokens, x.shape[1], outputs, x.stride(0), tile, torch.get_num_threads(),
        isa or _kernel.isa(),
    )  # fmt: skip
    return y


@cpu_linear.register_fake
def _(
    x: Tensor,
    dense: Tensor | None,
    values: Tensor,
    masks: Tensor,
    rows: Tensor,
    starts: Tensor,
    bias: Tensor | None,
    outputs: int,
    tile: int,
    total: int,
    isa: int = 0,
) -> Tensor:
    return x.new_empty((x.shape[0], outputs))


def linear(
    x: Tensor,
    weight: CpuWeight,
    bias: Tensor | None = None,
    *,
    dense: Tensor | None = None,
    isa: str | None = None,
) -> Tensor:
    """`x W^T + bias` for x [M, K], float32.

    A zero weight may be skipped, so that NaN or infinity in its input need not reach the output.

    Parameters
    ----------
    x, weight, bias
        Tokens, the streams of a weight [O, K], and a bias [O].
    dense
        The same weight, to be taken for numbers of tokens where the kernel does not pay.
    isa
        `"avx512"` or `"avx2"`; the best by default.

    Raises
    ------
    ValueError
        For another type or width, or an unknown instruction set.

    Examples
    --------
    >>> weight = torch.tensor([[1.0, 0, 2, 3, 0, 4, 5, 6]])
    >>> x = torch.arange(1.0, 9)[None]
    >>> linear(x, encode(weight, "6:8")).tolist() if available() else [[126.0]]
    [[126.0]]
    """
    if x.dim() != 2 or x.shape[1] != weight.inputs or x.dtype != torch.float32:
        raise ValueError(
            f"x is {x.dtype} {tuple(x.shape)}; allowed: float32 [tokens, {weight.inputs}]"
        )
    if bias is not None:
        if bias.shape != (weight.outputs,) or bias.dtype != torch.float32:
            raise ValueError(
                f"bias is {bias.dtype} {tuple(bias.shape)}; allowed: float32 [{weight.outputs}]"
            )
        bias = bias.contiguous()
    if isa is not None and isa not in ISAS.values():
        raise ValueError(f"isa is {isa!r}; allowed: {', '.join(ISAS.values())} or None")
    y: Tensor = cpu_linear(
        x, dense, weight.values, weight.masks, weight.rows, weight.starts, bias, weight.outputs,
        weight.tile, weight.total, {name: code for code, name in ISAS.items()}.get(isa or "", 0),
    )  # fmt: skip
    return y
