"""Pruning to (2N-2):2N: which two weights of every block go, and how the others make up for it."""

from __future__ import annotations

import numbers
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from .patterns import Pattern, check_matrix, is_nonzero, raw, require_pattern

Method = Literal["magnitude", "wanda", "sparsegpt", "random", "keep"]
METHODS = get_args(Method)
CALIBRATED = ("wanda", "sparsegpt")


def wide(weight: Tensor) -> Tensor:
    """A weight in a type that tells its entries apart: float32, or float64 where that does not."""
    exact = weight.dtype.itemsize <= 2 or weight.dtype == torch.float32
    return weight.to(torch.float32 if exact else torch.float64)


def new_generator(seed: int | torch.Generator) -> torch.Generator:
    """A generator from a seed; a generator is returned as it is."""
    if isinstance(seed, torch.Generator):
        return seed
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral):
        raise TypeError(f"seed is {seed!r}; allowed: an integer or a torch.Generator")
    if not -(2**63) <= seed < 2**64:
        raise ValueError(f"seed is {seed}; allowed: from -2^63 to 2^64 - 1")
    return torch.Generator().manual_seed(int(seed))


def smallest_two(scores: Tensor, pattern: Pattern) -> Tensor:
    """The mask [O, K] that keeps all but the two lowest scores of each block of a row.

    The padding of the last block counts as zeros, so that fewer of its inputs are dropped.
    """
    outputs, inputs = scores.shape
    padding = -inputs % pattern.total
    low = scores.new_full((outputs, padding), -torch.inf)
    # Infinity marks what is dropped already.
    finite = scores.clamp(max=torch.finfo(scores.dtype).max)
    blocks = torch.cat([finite, low], 1).unflatten(1, (-1, pattern.total))
    for _ in range(2):
        # Of equal scores the first goes.
        blocks.scatter_(-1, blocks.argmin(-1, keepdim=True), torch.inf)
    kept: Tensor = blocks != torch.inf
    return kept.flatten(1)[:, :inputs]


def magnitude_mask(weight: Tensor, pattern: Pattern) -> Tensor:
    """Drop the two smallest |w| of each block."""
    return smallest_two(wide(weight).abs(), pattern)


def random_mask(weight: Tensor, pattern: Pattern, seed: int | torch.Generator) -> Tensor:
    """Drop two positions of each block at random: a control, not a method."""
    generator = new_generator(seed)
    scores = torch.rand(weight.shape, generator=generator, device=generator.device)
    return smallest_two(scores.to(weight.device), pattern)


def wanda_mask(weight: Tensor, pattern: Pattern, norms: Tensor) -> Tensor:
    """Drop the two lowest `|w_ij| ||X_j||`, where `||X_j||` [K] is over calibration tokens."""
    return smallest_two(wide(weight).abs() * norms.to(torch.float32), pattern)


def sparsegpt(
    weight: Tensor, pattern: Pattern, hessian: Tensor, damping: float = 0.01
) -> tuple[Tensor, Tensor]:
    """Drop columns left to right and let the columns to the right make up for the error.

    Parameters
    ----------
    weight
        [O, K].
    hessian
        `X^T X` [K, K] over calibration tokens.
    damping
        Times the mean of its diagonal, added to the diagonal; 1 is added to a Hessian of zeros.

    Returns
    -------
    tuple
        The new weight [O, K] in float32 and the mask of what is kept.

    Raises
    ------
    ValueError
        If the damped Hessian is not positive definite.

    Notes
    -----
    With `U` the upper Cholesky factor of the inverse of the damped Hessian, a block drops the two
    columns with the lowest `w^2 / U_jj^2`, and column `j` passes `(w_j - q_j) / U_jj U_{j, j:}` on.

    Source: Frantar and Alistarh, SparseGPT, 2023.
    """
    w = weight.to(torch.float32).clone()
    outputs, inputs = w.shape
    h = hessian.to(torch.float32).clone()
    added = damping * h.diagonal().mean()
    h.diagonal().add_(added if added else 1.0)
    # Computed in double precision: the inverse of a Hessian from few tokens is badly conditioned.
    lower, failed = torch.linalg.cholesky_ex(h.double())
    if failed:
        raise ValueError("hessian is not positive definite; allowed: X^T X of finite activations")
    factor = torch.linalg.cholesky(torch.cholesky_inverse(lower), upper=True).to(torch.float32)
    kept = torch.ones_like(w, dtype=torch.bool)
    total = pattern.total
    # A group must not straddle two batches of columns: 128 is no multiple of 6 or 10.
    batch = max(128 - 128 % total, total)
    for start in range(0, inputs, batch):
        end = min(start + batch, inputs)
        local = factor[start:end, start:end]
        part, errors = w[:, start:end], torch.zeros(outputs, end - start, device=w.device)
        for j in range(end - start):
            if j % total == 0:
                group = slice(j, min(j + total, end - start))
                scores = part[:, group] ** 2 / local.diagonal()[group] ** 2
                kept[:, start:end][:, group] = smallest_two(scores, pattern)
            column = part[:, j]
            error = torch.where(kept[:, start + j], 0.0, column) / local[j, j]
            part[:, j:] -= error[:, None] * local[j, j:]
            errors[:, j] = error
        w[:, end:] -= errors @ factor[start:end, end:]
    return w * kept, kept


def ternary_mask(weight: Tensor, master: Tensor, pattern: Pattern) -> Tensor:
    """For weights in {-1, 0, 1}: zeros stay, and only a block with too few loses its smallest.

    Parameters
    ----------
    weight
        [O, K], ternary.
    master
        [O, K], the weights that were rounded to it; the smallest |master| go first.
    """
    scores = wide(master).abs()
    scores = torch.where(is_nonzero(weight), scores, torch.full_like(scores, -1.0))
    return smallest_two(scores, pattern) & is_nonzero(weight)


def prune_(
    layer: nn.Linear | Tensor,
    pattern: str | Pattern,
    method: Method = "magnitude",
    *,
    calib: Tensor | None = None,
    master: Tensor | None = None,
    seed: int | torch.Generator = 0,
) -> Tensor:
    """Prune a weight in place.

    Parameters
    ----------
    layer
        A linear layer, or its weight [O, K].
    pattern
        Such as `"6:8"`.
    method
        `"magnitude"`, `"wanda"`, `"sparsegpt"`, `"random"` (a control), or `"keep"` for a weight
        that obeys the pattern already.
    calib
        For `"wanda"` the inputs [tokens, K] or their norms [K]; for `"sparsegpt"` the inputs or
        `X^T X` [K, K], which must be symmetric.
    master
        With `"magnitude"`, for a ternary weight: the weight [O, K] that was rounded to it. Zeros
        stay, and a block with too few of them loses those with the smallest `|master|`.
    seed
        For `"random"`.

    Returns
    -------
    Tensor
        The mask [O, K] of what is kept.

    Raises
    ------
    TypeError
        For what is no real matrix, or integers with `"sparsegpt"`.
    ValueError
        For NaN or infinity, an unknown method, a seed beyond 64 bits, a weight whose rows share
        memory, or calibration that is missing, empty, or has another shape.
    PatternViolation
        With `"keep"`, for a weight that does not obey the pattern.

    Notes
    -----
    Source: the paper's offline pipeline. Wanda: Sun et al., A Simple and Effective Pruning Approach
    for Large Language Models, 2024. SparseGPT: Frantar and Alistarh, 2023.

    Examples
    --------
    >>> weight = torch.tensor([[4.0, 1, 3, 2]])
    >>> prune_(weight, "2:4").tolist(), weight.tolist()
    ([[True, False, True, False]], [[4.0, 0.0, 3.0, 0.0]])
    """
    pattern = Pattern.parse(pattern)
    weight = check_matrix(
        layer.weight if isinstance(layer, nn.Linear) else layer, "weight"
    ).detach()
    if method not in METHODS:
        raise ValueError(f"method is {method!r}; allowed: {', '.join(METHODS)}")
    if any(step == 0 and n > 1 for step, n in zip(weight.stride(), weight.shape, strict=True)):
        raise ValueError("weight has entries that share memory; allowed: a tensor of its own")
    if master is not None:
        if method != "magnitude":
            raise ValueError(f"master is for method 'magnitude', not {method!r}; allowed: None")
        if check_matrix(master, "master").shape != weight.shape:
            raise ValueError(
                f"master is {tuple(master.shape)}; allowed: {tuple(weight.shape)}, as the weight"
            )
    updated: Tensor | None = None
    if method == "keep":
        require_pattern(weight, pattern)
        return is_nonzero(weight)
    if master is not None:
        mask = ternary_mask(weight, master, pattern)
    elif method == "magnitude":
        mask = magnitude_mask(weight, pattern)
    elif method == "random":
        mask = random_mask(weight, pattern, seed)
    elif method == "wanda":
        mask = wanda_mask(weight, pattern, _norms(calib, weight.shape[1]))
    else:
        if not weight.dtype.is_floating_point:
            raise TypeError(f"weight is {weight.dtype}; allowed with 'sparsegpt': a floating type")
        updated, mask = sparsegpt(weight, pattern, _hessian(calib, weight.shape[1]))
        if not torch.isfinite(updated.to(weight.dtype).to(torch.float32)).all():
            raise ValueError(
                f"weight grows out of {weight.dtype} or float32 by the update of 'sparsegpt'; "
                "allowed: smaller weights, or another method"
            )
    if updated is not None:
        weight.copy_(updated.to(weight.dtype))
    bits = raw(weight)
    bits.mul_(mask.to(bits.dtype))
    if bits.dtype.is_floating_point:
        # Negative weights have become -0.0, which compressors take for a nonzero.
        bits.add_(0.0)
    return mask


def _norms(calib: Tensor | None, inputs: int) -> Tensor:
    allowed = f"[tokens, {inputs}] or norms [{inputs}]"
    calib = _calibration(calib, allowed)
    if calib.dim() not in (1, 2) or calib.shape[-1] != inputs:
        raise ValueError(f"calib is {tuple(calib.shape)}; allowed: {allowed}")
    if calib.dim() == 1 and (calib < 0).any():
        raise ValueError("calib holds negative norms; allowed: from 0")
    # Squares of float32 leave its range where norms do not.
    return calib if calib.dim() == 1 else torch.linalg.vector_norm(calib.double(), dim=0)


def _hessian(calib: Tensor | None, inputs: int) -> Tensor:
    allowed = f"[tokens, {inputs}] or X^T X [{inputs}, {inputs}]"
    calib = _calibration(calib, allowed)
    if calib.dim() != 2 or calib.shape[1] != inputs:
        raise ValueError(f"calib is {tuple(calib.shape)}; allowed: {allowed}")
    close = 1e-6 * float(calib.abs().max())
    if calib.shape[0] == inputs and torch.allclose(calib, calib.T, rtol=1e-4, atol=close):
        return calib
    return calib.T @ calib


def _calibration(calib: Tensor | None, allowed: str) -> Tensor:
    if calib is None:
        raise ValueError(f"calib is missing; this method needs inputs {allowed}")
    if not isinstance(calib, Tensor):
        raise TypeError(f"calib is a {type(calib).__name__}; allowed: a torch.Tensor")
    if not calib.numel():
        raise ValueError(f"calib is empty, {tuple(calib.shape)}; allowed: {allowed}")
    calib = calib.to(torch.float32)
    if not torch.isfinite(calib).all():
        raise ValueError("calib holds NaN or infinity; allowed: finite values of float32")
    return calib
