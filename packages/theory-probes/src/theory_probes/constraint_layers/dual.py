r"""Newton's method on the dual of a projection, for a batch at once.

Minimises :math:`F(\lambda)` of `links` over :math:`\lambda_k \in \mathbb R` for equality rows and
:math:`\lambda_k \le 0` for inequality rows. Works for any real W; the steps are

.. math:: \lambda \leftarrow \lambda - t\,(W D W^\top + \varepsilon I)^{-1}(Wx - b),
          \qquad D = \mathrm{diag}(\varphi'(z)),

restricted to the rows that are not held at 0, with Armijo's rule for t sample by sample.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .links import Link

_MAX_PAIRS = 1 << 22
_HALVINGS = 60
# Keeps redundant rows from stopping the factorisation of a matrix with unit diagonal.
RIDGE = 1e-12
# Curvature assumed where there is none: the line search shortens a step that is too long.
_FLAT = 1e-4
_BAND = 0.1
_DAMPING = 1e-3


@dataclass(frozen=True)
class Solution:
    """Dual values with what is known of them, for a batch of size B.

    `multipliers` is (B, m); `z` (B, n) is z0 + W^T multipliers, summed step by step, which keeps
    digits that the multipliers of a large z0 have lost; `x` is (B, n); `residual` and `converged`
    are (B,).
    """

    multipliers: Tensor
    z: Tensor
    x: Tensor
    residual: Tensor
    converged: Tensor
    iterations: int


def merge(base: Solution, chosen: Tensor, other: Solution) -> Solution:
    """`base` with the samples in `chosen` replaced by those of `other`, in order."""
    merged = {}
    for name in ("multipliers", "z", "x", "residual", "converged"):
        merged[name] = getattr(base, name).clone()
        merged[name][chosen] = getattr(other, name)
    return Solution(**merged, iterations=base.iterations + other.iterations)


def row_combination(multipliers: Tensor, W: Tensor) -> Tensor:
    """W^T lambda (..., n), for W of shape (m, n) or (..., m, n)."""
    if W.ndim == 2:
        return multipliers @ W
    return (multipliers[..., None, :] @ W)[..., 0, :]


def row_values(x: Tensor, W: Tensor) -> Tensor:
    """W x (..., m), for W of shape (m, n) or (..., m, n)."""
    if W.ndim == 2:
        return x @ W.mT
    return (W @ x[..., None])[..., 0]


def normal_matrix(W: Tensor, slope: Tensor, pairs: Tensor | None) -> Tensor:
    """W diag(slope) W^T, shape (B, m, m); `pairs` is W's row products if they are at hand."""
    if pairs is not None:
        m = W.shape[0]
        return (slope @ pairs).view(-1, m, m)
    return (W * slope[:, None, :]) @ W.mT


def row_products(W: Tensor) -> Tensor | None:
    """(n, m * m) products of all pairs of rows, so that a normal matrix is one GEMM; None if
    large."""
    if W.ndim != 2 or W.shape[1] * W.shape[0] ** 2 > _MAX_PAIRS:
        return None
    return torch.einsum("jn,kn->njk", W, W).reshape(W.shape[1], -1)


def solve_rows(H: Tensor, right: Tensor, free: Tensor, damping: Tensor | float = RIDGE) -> Tensor:
    """Solve H mu = right on the rows in `free`, 0 elsewhere; H is (B, m, m), semidefinite.

    Rows are scaled to a unit diagonal first, so that one small ridge serves every problem;
    redundant rows get a solution of nearly least norm. A row that sees no free variable gets a
    long gradient step.
    """
    mask = free.to(H.dtype)
    diagonal = H.diagonal(dim1=-2, dim2=-1)
    seen = free & (diagonal > 0)
    scale = torch.where(seen, diagonal, 1.0).rsqrt() * mask
    H = H * scale[:, :, None] * scale[:, None, :]
    lifted = torch.where(seen, damping, torch.where(free, _FLAT, 1.0))
    factor, _ = torch.linalg.cholesky_ex(H + torch.diag_embed(lifted))
    return torch.cholesky_solve((right * scale)[:, :, None], factor)[:, :, 0] * scale


def free_rows(multipliers: Tensor, gradient: Tensor, near: Tensor, equalities: int) -> Tensor:
    """Rows that Newton's step may move: all but inequalities `near` 0 and on their way to it."""
    free = torch.ones_like(gradient, dtype=torch.bool)
    inner = multipliers[:, equalities:]
    free[:, equalities:] = ~((inner >= -near[:, None]) & (gradient[:, equalities:] < 0))
    return free


def residual_of(multipliers: Tensor, gradient: Tensor, equalities: int) -> Tensor:
    """Largest violation of the optimality conditions: of a rule, or of complementarity."""
    natural = torch.maximum(multipliers[:, equalities:], gradient[:, equalities:])
    parts = torch.cat([gradient[:, :equalities], natural], dim=1)
    return parts.abs().amax(1) if parts.shape[1] else parts.new_zeros(len(parts))


def capped_change(change: Tensor, multipliers: Tensor, equalities: int) -> Tensor:
    """`change` (B, m) cut so that the multipliers of inequality rows stay at most 0."""
    if equalities == change.shape[1]:
        return change
    room = -multipliers[:, equalities:]
    return torch.cat([change[:, :equalities], torch.minimum(change[:, equalities:], room)], dim=1)


def newton(
    z: Tensor,
    W: Tensor,
    b: Tensor,
    link: Link,
    start: Tensor,
    equalities: int,
    tol: Tensor,
    max_iter: int,
    pairs: Tensor | None = None,
    relative: float = 0.0,
) -> Solution:
    """Minimise the dual from `start`.

    Parameters
    ----------
    z
        (B, n): z0 + W^T start.
    W
        (m, n) or (B, m, n), the first `equalities` rows equalities.
    b
        (B, m).
    start
        (B, m), at most 0 for inequality rows.
    tol, relative
        (B,) and a number: samples whose residual is at most tol + relative * max|x| are done and
        no longer computed.
    """
    lam = start
    multipliers, reached, residual = start.clone(), z.clone(), z.new_zeros(len(z))
    converged = torch.ones(len(z), dtype=torch.bool, device=z.device)
    # Samples leave the working arrays as they are done; `todo` says who is left.
    todo = torch.arange(len(z), device=z.device)
    w, iterations = W, 0
    while len(todo) and W.shape[-2]:
        x = link.value(z)
        gradient = row_values(x, w) - b
        left = residual_of(lam, gradient, equalities)
        open_ = ~(left <= tol + relative * x.abs().amax(1))
        last = iterations == max_iter or not bool(open_.any())
        if last or not bool(open_.all()):
            out = torch.ones_like(open_) if last else ~open_
            done = todo[out]
            multipliers[done], reached[done], residual[done] = lam[out], z[out], left[out]
            converged[done] = ~open_[out]
            if last:
                break
            todo, lam, z, x, b = todo[open_], lam[open_], z[open_], x[open_], b[open_]
            gradient, left, tol = gradient[open_], left[open_], tol[open_]
            w = W if W.ndim == 2 else w[open_]
        # Both fade with the residual, so that the last steps are Newton's own: Bertsekas' band of
        # rows that count as held, without which steps zigzag along a sign, and a damping, without
        # which they run off where more rows bind than variables are free.
        free = free_rows(lam, gradient, left.clamp(max=_BAND), equalities)
        H = normal_matrix(w, link.slope(z, x), pairs)
        damping = RIDGE + _DAMPING * left.clamp(max=1)[:, None]
        step = torch.where(free, -solve_rows(H, gradient, free, damping), -lam)
        lam, z = _line_search(w, b, link, lam, z, x, gradient, step, equalities)
        iterations += 1
    return Solution(multipliers, reached, link.value(reached), residual, converged, iterations)


def _line_search(
    W: Tensor,
    b: Tensor,
    link: Link,
    lam: Tensor,
    z: Tensor,
    x: Tensor,
    gradient: Tensor,
    step: Tensor,
    equalities: int,
) -> tuple[Tensor, Tensor]:
    """The longest halved step, projected on the signs, that lowers F enough; sample by sample."""
    best, best_z, pending = lam, z, None
    length: Tensor | float = 1.0
    noise = 16 * torch.finfo(lam.dtype).eps
    for _ in range(_HALVINGS):
        change = capped_change(length * step, lam, equalities)
        trial, change_z = lam + change, row_combination(change, W)
        trial_z = z + change_z
        # Differences first, sums after: near the optimum F itself has no digits left to compare.
        moved = b * change
        rise = link.rise(z, x, change_z).sum(1) - moved.sum(1)
        scale = (x.abs() * change_z.abs().clamp(min=1)).sum(1) + moved.abs().sum(1)
        good = rise <= 1e-4 * (gradient * change).sum(1) + noise * scale
        if pending is None:
            if bool(good.all()):
                return trial, trial_z
            pending = torch.ones_like(good)
        accepted = (pending & good)[:, None]
        best, best_z = torch.where(accepted, trial, best), torch.where(accepted, trial_z, best_z)
        pending = pending & ~good
        if not bool(pending.any()):
            break
        length = 0.5 * length
    return best, best_z
