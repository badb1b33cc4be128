"""A roofline model: whether a pattern pays at a shape on given hardware."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass

import torch

from .patterns import Pattern, bytes_of, check_size


def _check_rate(value: float, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 < value < math.inf:
        raise ValueError(f"{name} is {value!r}; allowed: a positive number")
    return float(value)


@dataclass(frozen=True)
class Cost:
    """Predicted seconds of a layer, dense and slid, their quotient, and the pattern's bound."""

    dense_s: float
    sparse_s: float
    speedup: float
    bound: float


def cost_model(
    M: int,
    O: int,  # noqa: E741
    K: int,
    pattern: str | Pattern,
    *,
    peak_dense: float,
    bandwidth: float,
    peak_sparse: float | None = None,
    dtype: torch.dtype = torch.int8,
) -> Cost:
    r"""Roofline of `y = W x` for `M` tokens, dense against slid.

    Dense takes `max(2 M O K / P_d, (O K b + M K b + 2 M O) / BW)`. Slid, it is
    `max(2 M O K gamma / P_s, (O K b r + M K gamma b + 2 M O) / BW)` and the lifting
    `M K (2 + gamma b) / BW`, with `b` bytes an entry, the expansion `gamma`, and the stored bytes
    `r`; activations come in and go out at 16 bits.

    Parameters
    ----------
    M, O, K
        Tokens, outputs, inputs.
    peak_dense, peak_sparse
        Operations a second of dense and of 2:4 products (counting skipped ones); twice the dense
        peak unless given.
    bandwidth
        Bytes a second of memory.
    dtype
        Of the weights.

    Raises
    ------
    TypeError, ValueError
        For sizes below 1, rates that are no positive numbers, or what is no type.

    Notes
    -----
    Source: the roofline model with the paper's expansion `gamma` and the bytes of its 2:4 form.

    Examples
    --------
    >>> cost = cost_model(16384, 37888, 3584, "6:8", peak_dense=624e12, bandwidth=2e12)
    >>> round(cost.speedup, 2), round(cost.bound, 2)
    (1.31, 1.33)
    """
    pattern = Pattern.parse(pattern)
    M, O, K = check_size(M, "M"), check_size(O, "O"), check_size(K, "K")  # noqa: E741
    peak_dense = _check_rate(peak_dense, "peak_dense")
    bandwidth = _check_rate(bandwidth, "bandwidth")
    peak_sparse = 2 * peak_dense if peak_sparse is None else _check_rate(peak_sparse, "peak_sparse")
    size = bytes_of(dtype)
    columns = pattern.slid_columns(K)
    out = 2 * M * O
    dense = max(2 * M * O * K / peak_dense, (O * K * size + M * K * size + out) / bandwidth)
    weight = O * columns / 2 * (size + 0.25)
    multiply = max(
        2 * M * O * columns / peak_sparse, (weight + M * columns * size + out) / bandwidth
    )
    # 2:4 at 16 bits reads the inputs as they are; everything else is quantised or lifted first.
    lifts = pattern.total > 4 or size == 1
    lifting = M * (2 * K + columns * size) / bandwidth if lifts else 0.0
    sparse = multiply + lifting
    return Cost(dense, sparse, dense / sparse, pattern.max_speedup)
