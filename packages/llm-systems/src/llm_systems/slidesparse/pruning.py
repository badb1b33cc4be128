"""Pruning to (2N-2):2N: which two weights of every block go, and how the others make up for it."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from .patterns import Pattern, check_matrix, is_nonzero, raw, require_pattern

Method = Literal["magnitude", "wanda", "sparsegpt", "random", "keep"]
METHODS = get_args(Method)


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
    return smallest_two(weight.to(torch.float32).abs(), pattern)


def random_mask(weight: Tensor, pattern: Pattern, seed: int | torch.Generator) -> Tensor:
    """Drop two positions of each block at random: a control, not a method."""
    if not isinstance(seed, (int, torch.Generator)):
        raise TypeError(f"seed is {seed!r}; allowed: an integer or a torch.Generator")
    generator = seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(seed)
    scores = torch.rand(weight.shape, generator=generator, device=generator.device)
    return smallest_two(scores.to(weight.device), pattern)


def wanda_mask(weight: Tensor, pattern: Pattern, norms: Tensor) -> Tensor:
    """Drop the two lowest `|w_ij| ||X_j||`, where `||X_j||` [K] is over calibration tokens."""
    return smallest_two(weight.to(torch.float32).abs() * norms.to(torch.float32), pattern)


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
        Times the mean of its diagonal, added to the diagonal.

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
    unused = h.diagonal() == 0
    h.diagonal()[unused] = 1.0
    h.diagonal().add_(damping * h.diagonal().mean())
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
    scores = master.to(torch.float32).abs()
    scores = torch.where(is_nonzero(weight), scores, torch.full_like(scores, -1.0))
    return smallest_two(scores, pattern) & is_nonzero(weight)


def prune_(
    layer: nn.Linear | Tensor,
    pattern: str | Pattern,
    method: Method = "magnitude",
    *,
    calib: Tensor | None = None,
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
        For NaN or infinity, an unknown method, or calibration that is missing, empty, or has
        another shape.
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
    updated: Tensor | None = None
    if method == "keep":
        require_pattern(weight, pattern)
        return is_nonzero(weight)
    if method == "magnitude":
        mask = magnitude_mask(weight, pattern)
    elif method == "random":
        mask = random_mask(weight, pattern, seed)
    elif method == "wanda":
        mask = wanda_mask(weight, pattern, _norms(calib, weight.shape[1]))
    else:
        if not weight.dtype.is_floating_point:
            raise TypeError(f"weight is {weight.dtype}; allowed with 'sparsegpt': a floating type")
        updated, mask = sparsegpt(weight, pattern, _hessian(calib, weight.shape[1]))
    bits = raw(weight)
    if updated is not None:
        weight.copy_(updated.to(weight.dtype))
    bits.mul_(mask.to(bits.dtype))
    return mask


def _norms(calib: Tensor | None, inputs: int) -> Tensor:
    allowed = f"[tokens, {inputs}] or norms [{inputs}]"
    calib = _calibration(calib, allowed)
    if calib.dim() not in (1, 2) or calib.shape[-1] != inputs:
        raise ValueError(f"calib is {tuple(calib.shape)}; allowed: {allowed}")
    if calib.dim() == 1 and (calib < 0).any():
        raise ValueError("calib holds negative norms; allowed: from 0")
    return calib if calib.dim() == 1 else calib.norm(dim=0)


def _hessian(calib: Tensor | None, inputs: int) -> Tensor:
    allowed = f"[tokens, {inputs}] or X^T X [{inputs}, {inputs}]"
    calib = _calibration(calib, allowed)
    if calib.dim() != 2 or calib.shape[1] != inputs:
        raise ValueError(f"calib is {tuple(calib.shape)}; allowed: {allowed}")
    if calib.shape[0] == inputs and torch.allclose(calib, calib.T, rtol=1e-4):
        return calib
    return calib.T @ calib


def _calibration(calib: Tensor | None, allowed: str) -> Tensor:
    if calib is None:
        raise ValueError(f"calib is missing; this method needs inputs {allowed}")
    if not isinstance(calib, Tensor):
        raise TypeError(f"calib is a {type(calib).__name__}; allowed: a torch.Tensor")
    if not calib.numel():
        raise ValueError(f"calib is empty, {tuple(calib.shape)}; allowed: {allowed}")
    if not torch.isfinite(calib).all():
        raise ValueError("calib holds NaN or infinity; allowed: finite values")
    return calib.to(torch.float32)
