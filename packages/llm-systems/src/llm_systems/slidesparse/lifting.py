"""Activation lifting: inputs repeated so that the slid weight meets each where it expects it."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from .patterns import Pattern, check_size, raw

# The largest value of each type, to which a token's largest entry is scaled.
LARGEST = {"int8": 127.0, "fp8": 448.0}
TYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}


def lift_index(inputs: int, pattern: str | Pattern) -> Tensor:
    """The input that each of the K' columns of the slid weight reads; K and above are padding.

    Raises
    ------
    ValueError
        For fewer inputs than 1.

    Notes
    -----
    Source: the paper's activation lifting.

    Examples
    --------
    >>> lift_index(8, "6:8").tolist()
    [0, 1, 2, 3, 2, 3, 4, 5, 4, 5, 6, 7]
    """
    pattern = Pattern.parse(pattern)
    inputs = check_size(inputs, "inputs")
    block = torch.arange(pattern.blocks(inputs))[:, None, None] * pattern.total
    window = torch.arange(pattern.windows)[:, None] * 2
    return (block + window + torch.arange(4)).flatten()


def lift(x: Tensor, pattern: str | Pattern) -> Tensor:
    """Inputs [..., K] lifted to [..., K'], zeros where the padding of the last block is read.

    Raises
    ------
    TypeError, ValueError
        For what is no tensor, or has no inputs.

    Examples
    --------
    >>> lift(torch.arange(1, 9), "6:8").tolist()
    [1, 2, 3, 4, 3, 4, 5, 6, 5, 6, 7, 8]
    """
    pattern = Pattern.parse(pattern)
    if not isinstance(x, Tensor):
        raise TypeError(f"x is a {type(x).__name__}; allowed: a torch.Tensor")
    if not x.dim():
        raise ValueError("x has no dimension; allowed: [..., inputs]")
    inputs = x.shape[-1]
    index = lift_index(inputs, pattern).to(x.device)
    bits = raw(x)
    if inputs % pattern.total:
        inside = index < inputs
        lifted = bits.index_select(-1, index.clamp(max=inputs - 1))
        lifted = lifted.masked_fill(~inside, 0)
    else:
        lifted = bits.index_select(-1, index)
    # A view of the same type would cut the gradient.
    return lifted if lifted.dtype == x.dtype else lifted.view(x.dtype)


def quantize(x: Tensor, dtype: Literal["int8", "fp8"] = "int8") -> tuple[Tensor, Tensor]:
    """Symmetric quantisation of each token [M, K] to the largest value `Q` of the type, 127 or 448.

    The scale is `max(absmax / Q, 1 / (512 Q))`; integers are rounded half to even. A token with NaN
    or infinity gets a scale that is none either, so that its outputs show it.

    Returns
    -------
    tuple
        The quantised tokens [M, K] in int8 or float8_e4m3fn, and their scales [M] in float32.
    """
    if dtype not in LARGEST:
        raise ValueError(f"dtype is {dtype!r}; allowed: 'int8' or 'fp8'")
    largest = LARGEST[dtype]
    wide = x.to(torch.float32)
    absmax = wide.abs().amax(-1) if x.shape[-1] else wide.new_zeros(x.shape[:-1])
    scale = (absmax / largest).clamp(min=1 / (512 * largest))
    scaled = (wide * (1 / scale)[..., None]).clamp(-largest, largest)
    return (scaled.round() if dtype == "int8" else scaled).to(TYPES[dtype]), scale


def quantize_lift(
    x: Tensor,
    pattern: str | Pattern,
    dtype: Literal["int8", "fp8"] = "int8",
    backend: Literal["auto", "torch", "triton"] = "auto",
) -> tuple[Tensor, Tensor]:
    """Quantise tokens [M, K] and lift them in one go.

    Every input is read by at least one window, so that lifting changes no token's scale, and
    quantising before or after it gives the same bits.

    Parameters
    ----------
    x
        [M, K], floating.
    backend
        `"torch"` is the definition, `"triton"` the fused kernel for CUDA, `"auto"` takes it there.

    Returns
    -------
    tuple
        [M, K'] in int8 or float8_e4m3fn, and the scales [M] in float32.

    Raises
    ------
    TypeError, ValueError
        For what is no floating matrix, an unknown type or backend, or Triton without CUDA.

    Notes
    -----
    Source: the paper's fused kernel for quantisation and lifting.

    Examples
    --------
    >>> q, scale = quantize_lift(torch.tensor([[0.0, 1, 2, 3, 4, 5, 6, 127]]), "6:8")
    >>> q.tolist(), scale.tolist()
    ([[0, 1, 2, 3, 2, 3, 4, 5, 4, 5, 6, 127]], [1.0])
    """
    pattern = Pattern.parse(pattern)
    if not isinstance(x, Tensor):
        raise TypeError(f"x is a {type(x).__name__}; allowed: a torch.Tensor")
    if x.dim() != 2 or not x.is_floating_point():
        raise ValueError(f"x is {x.dtype} {tuple(x.shape)}; allowed: floating [tokens, inputs]")
    if backend not in ("auto", "torch", "triton"):
        raise ValueError(f"backend is {backend!r}; allowed: 'auto', 'torch' or 'triton'")
    if dtype not in LARGEST:
        raise ValueError(f"dtype is {dtype!r}; allowed: 'int8' or 'fp8'")
    if backend == "triton" or (backend == "auto" and x.is_cuda):
        from .fused import quantize_lift_fused

        return quantize_lift_fused(x, pattern, dtype)
    q, scale = quantize(x, dtype)
    return lift(q, pattern), scale
