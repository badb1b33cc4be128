"""Quantise and lift in one Triton kernel; scale the accumulators in another.

One program handles one token. It reads the token twice: once for the largest entry, once, by output
word, for the four neighbours of each window, which it rounds and packs into 32 bits. No padded copy
of the input is made: loads past the end are masked.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .lifting import LARGEST, TYPES
from .patterns import Pattern

# Read by Triton when a kernel is defined.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@triton.jit  # type: ignore[untyped-decorator]
def _quantize_lift(  # type: ignore[no-untyped-def]
    x, out, scales, K, words, stride_x, stride_out,
    L: tl.constexpr, Q: tl.constexpr, FP8: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_OUT: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    x += token * stride_x
    out += token * stride_out
    largest = tl.zeros([BLOCK_K], tl.float32)
    bad = tl.zeros([BLOCK_K], tl.float32)
    for start in range(0, K, BLOCK_K):
        at = start + tl.arange(0, BLOCK_K)
        part = tl.load(x + at, mask=at < K, other=0.0).to(tl.float32)
        # A maximum ignores NaN, the scale must not: NaN and infinity times zero are NaN.
        bad += part * 0.0
        largest = tl.maximum(largest, tl.abs(part))
    absmax = tl.max(largest, axis=0)
    scale = tl.maximum(tl.div_rn(absmax, Q * 1.0), 1.0 / (512.0 * Q)) + tl.sum(bad, axis=0)
    inverse = tl.div_rn(1.0, scale)
    tl.store(scales + token, scale)
    windows: tl.constexpr = L // 2 - 1
    for start in range(0, words, BLOCK_OUT):
        word = start + tl.arange(0, BLOCK_OUT)
        base = word // windows * L + word % windows * 2
        packed = tl.zeros([BLOCK_OUT], tl.int32)
        for lane in tl.static_range(4):
            inside = (base + lane < K) & (word < words)
            value = tl.load(x + base + lane, mask=inside, other=0.0).to(tl.float32)
            # The clamp also keeps product and sum from being fused, which would round only once.
            value = tl.minimum(tl.maximum(value * inverse, -Q * 1.0), Q * 1.0)
            if FP8:
                bits = value.to(tl.float8e4nv).to(tl.uint8, bitcast=True).to(tl.int32)
            else:
                # Adding 1.5 * 2^23 rounds to the nearest integer, halves to even.
                bits = ((value + 12582912.0) - 12582912.0).to(tl.int32) & 0xFF
            packed |= bits << (8 * lane)
        tl.store(out + word, packed, mask=word < words)


@triton.jit  # type: ignore[untyped-decorator]
def _rescale(  # type: ignore[no-untyped-def]
    sums, tokens, channels, bias, out, outputs, stride_sums, stride_out,
    HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < outputs
    value = tl.load(sums + row * stride_sums + at, mask=inside, other=0).to(tl.float32)
    value = value * tl.load(tokens + row) * tl.load(channels + at, mask=inside, other=0.0)
    if HAS_BIAS:
        value += tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * stride_out + at, value.to(out.dtype.element_ty), mask=inside)


def quantize_lift_fused(
    x: Tensor, pattern: Pattern, dtype: str, *, rows: int = 1, columns: int = 1
) -> tuple[Tensor, Tensor]:
    """The fused kernel: [M, K] to [M', K''] and scales [M'], padded up to multiples.

    Padding rows have the scale 1 and, like padding columns, zeros.
    """
    if not x.is_cuda and not INTERPRETED:
        raise ValueError(f"backend 'triton' is for CUDA and x is on {x.device}; allowed: 'torch'")
    tokens, inputs = x.shape
    if x.stride(-1) != 1:
        x = x.contiguous()
    slid = pattern.slid_columns(inputs)
    padded = (-(-tokens // rows) * rows, -(-slid // columns) * columns)
    empty = torch.empty if padded == (tokens, slid) else torch.zeros
    out = empty((padded[0], padded[1] // 4), dtype=torch.int32, device=x.device)
    scales = torch.ones(padded[0], dtype=torch.float32, device=x.device)
    if tokens:
        block_out = 128 if tokens <= 64 else 256 if tokens <= 1024 else 512
        arguments: dict[str, Any] = {
            "L": pattern.total,
            "Q": int(LARGEST[dtype]),
            "FP8": dtype == "fp8",
            "BLOCK_K": 2048 if inputs <= 2048 else 4096,
            "BLOCK_OUT": block_out,
            "num_warps": 4 if tokens <= 64 else 8,
        }
        _quantize_lift[(tokens,)](
            x, out, scales, inputs, slid // 4, x.stride(0), out.stride(0), **arguments
        )
    return out.view(torch.int8).view(TYPES[dtype]), scales


def rescale(
    sums: Tensor, tokens: Tensor, channels: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """`sums * tokens[:, None] * channels + bias` in one pass, [M, O]."""
    rows, outputs = sums.shape
    if sums.stride(-1) != 1:
        sums = sums.contiguous()
    out = torch.empty((rows, outputs), dtype=dtype, device=sums.device)
    if rows:
        grid = (rows, triton.cdiv(outputs, 1024))
        _rescale[grid](
            sums, tokens, channels, bias if bias is not None else channels, out, outputs,
            sums.stride(0), out.stride(0), HAS_BIAS=bias is not None, BLOCK=1024,
        )  # fmt: skip
    return out
