"""The CUDA path: quantise and lift, then cuSPARSELt's 2:4 product through PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from .lifting import lift
from .patterns import Pattern, pad_columns, raw, without_negative_zeros

_OPERATION = "llm_systems::slidesparse_cuda_linear"
# The algorithm found fastest for (device, outputs, columns, tokens rounded up, type), and whether
# it writes the result transposed.
_algorithms: dict[tuple[int, int, int, int, torch.dtype], tuple[int, bool]] = {}


def compress(slid: Tensor) -> Tensor:
    """Pack a 2:4 weight [O, K'] for cuSPARSELt, padded to the multiples that it wants."""
    multiple = 32 if slid.dtype.itemsize == 1 else 16
    padded = pad_columns(slid, multiple)
    missing = -padded.shape[0] % multiple
    if missing:
        bits = raw(padded)
        zeros = bits.new_zeros((missing, padded.shape[1]))
        padded = torch.cat([bits, zeros]).view(slid.dtype)
    packed: Tensor = torch._cslt_compress(without_negative_zeros(padded).contiguous())
    return packed


def multiply(packed: Tensor, lifted: Tensor, outputs: int, out_dtype: torch.dtype) -> Tensor:
    """`lifted W^T` [M, O'] from the packed weight; the algorithm is searched for once a shape.

    The library computes [O', M]. It is asked to write that transposed, which saves a copy of the
    result, and where it cannot for a type, the transpose is a view.
    """
    # The library takes a type for the result with 8-bit inputs only.
    asked = out_dtype if lifted.dtype.itemsize == 1 else None
    tokens = 1 << max(lifted.shape[0] - 1, 1).bit_length()
    key = (lifted.get_device(), outputs, lifted.shape[1], tokens, lifted.dtype)
    if key not in _algorithms and not torch.cuda.is_current_stream_capturing():
        _algorithms[key] = _search(packed, lifted, asked)
    algorithm, transposed = _algorithms.get(key, (0, False))
    result: Tensor = torch._cslt_sparse_mm(
        packed, lifted.t(), out_dtype=asked, transpose_result=transposed, alg_id=algorithm
    )
    return result if transposed else result.t()


def _search(packed: Tensor, lifted: Tensor, asked: torch.dtype | None) -> tuple[int, bool]:
    search = torch._cslt_sparse_mm_search
    try:
        return search(packed, lifted.t(), out_dtype=asked, transpose_result=True), True
    except RuntimeError:
        return search(packed, lifted.t(), out_dtype=asked), False


@torch.library.custom_op(_OPERATION, mutates_args=(), device_types="cuda")
def sparse_linear(
    x: Tensor,
    packed: Tensor,
    scales: Tensor | None,
    bias: Tensor | None,
    outputs: int,
    total: int,
    activation: str,
) -> Tensor:
    """`x W^T + bias` [M, O] for tokens x [M, K]."""
    pattern = Pattern(total - 2, total)
    tokens = x.shape[0]
    if not tokens:
        return x.new_empty((0, outputs))
    if activation == "none":
        lifted = pad_columns(lift(x, pattern), 16)
        rows = -tokens % 16
        if rows:
            lifted = torch.cat([lifted, lifted.new_zeros((rows, lifted.shape[1]))])
        out = multiply(packed, lifted, outputs, x.dtype)[:tokens, :outputs]
        return out.contiguous() if bias is None else out + bias
    from .fused import quantize_lift_fused, rescale

    assert scales is not None
    q, token_scales = quantize_lift_fused(x, pattern, activation, rows=16, columns=32)
    sums = multiply(packed, q, outputs, torch.int32 if activation == "int8" else torch.bfloat16)
    return rescale(sums[:tokens, :outputs], token_scales, scales, bias, x.dtype)


@sparse_linear.register_fake
def _(
    x: Tensor,
    packed: Tensor,
    scales: Tensor | None,
    bias: Tensor | None,
    outputs: int,
    total: int,
    activation: str,
) -> Tensor:
    return x.new_empty((x.shape[0], outputs))
