r"""The Euclidean projection: a closed form for equalities, Newton or ADMM with bounds.

.. math:: \min_x \tfrac12\lVert x - y\rVert^2 \quad\text{s.t.}\quad
          W_{eq}x = b_{eq},\ W_{ub}x \le b_{ub},\ l \le x \le u.

With equalities alone, :math:`x = y - W^+(Wy - b)`. Otherwise the dual is piecewise quadratic and
Newton's method on it is an active-set method; ADMM is the first-order method of the paper, whose
result the same Newton polishes until equalities and bounds hold together.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .dual import RIDGE, Solution, merge, newton, row_combination, row_products, row_values
from .links import Clipped

_CHECK_EVERY = 10
_POLISH = 100


def affine_project(y: Tensor, W: Tensor, b: Tensor, pinv: Tensor) -> Tensor:
    """Project y (..., n) on Wx = b, with the pseudo-inverse (..., n, m) of W at hand."""
    return y - row_values(row_values(y, W) - b, pinv)


def solve_euclidean(
    y: Tensor,
    W: Tensor,
    b: Tensor,
    lower: Tensor,
    upper: Tensor,
    equalities: int,
    *,
    engine: str,
    tol: Tensor,
    relative: float,
    max_iter: int,
    rho: float = 3.0,
    polish: bool = True,
    start: Tensor | None = None,
) -> Solution:
    """Solve a batch: y (B, n), W (m, n) or (B, m, n), b (B, m), bounds (n,), tol (B,).

    Newton's residual is at most tol + relative * max|x|; ADMM's, which keeps no more digits than y
    has, tol + relative * max|y|.
    `engine` is `"newton"`, `"admm"`, or `"auto"`: Newton, and ADMM first for what Newton left.
    """
    link = Clipped(lower, upper)
    pairs = row_products(W)
    zero = b.new_zeros(b.shape)
    if engine != "admm":
        steps = min(max_iter, _POLISH)
        first = zero if start is None else start
        z = y + row_combination(first, W)
        solution = newton(z, W, b, link, first, equalities, tol, steps, pairs, relative)
        if engine == "newton" or bool(solution.converged.all()):
            return solution
        left = ~solution.converged
        w = W if W.ndim == 2 else W[left]
        again = solve_euclidean(
            y[left],
            w,
            b[left],
            lower,
            upper,
            equalities,
            engine="admm",
            tol=tol[left],
            relative=relative,
            max_iter=max_iter,
            rho=rho,
        )
        return merge(solution, left, again)
    reach = tol + relative * y.abs().amax(1)
    solution = admm(y, W, b, link, equalities, reach, max_iter, rho)
    if not polish or W.shape[-2] == 0:
        return solution
    polished = newton(
        solution.z, W, b, link, solution.multipliers, equalities, tol, _POLISH, pairs, relative
    )
    better = polished.converged | (polished.residual <= solution.residual)
    return merge(solution, better, _select(polished, better))


def admm(
    y: Tensor,
    W: Tensor,
    b: Tensor,
    link: Clipped,
    equalities: int,
    tol: Tensor,
    limit: int,
    rho: float,
) -> Solution:
    r"""Split the rules from the bounds; an inequality row gets a slack of weight zero.

    The affine half-step is taken in the metric :math:`1+\rho` on variables and :math:`\rho` on
    slacks.
    """
    m, q = W.shape[-2], W.shape[-2] - equalities
    slack_low, no_cap = y.new_zeros(q), y.new_full((q,), torch.inf)
    lower, upper = torch.cat([link.lower, slack_low]), torch.cat([link.upper, no_cap])
    wide = torch.cat(
        [
            W,
            torch.eye(m, dtype=W.dtype, device=W.device)[:, equalities:].expand(
                *W.shape[:-2], m, q
            ),
        ],
        dim=-1,
    )
    z = torch.cat(
        [link.value(y), (b - row_values(link.value(y), W))[:, equalities:].clamp(min=0)], 1
    )
    target = torch.cat([y, y.new_zeros(len(y), q)], 1)
    weight = torch.cat([torch.ones_like(link.lower), slack_low])
    v = torch.zeros_like(z)
    lam = torch.zeros_like(b)
    factor = _factor(wide, weight + rho)
    iterations = 0
    for iterations in range(1, limit + 1):
        t = (weight * target + rho * (z - v)) / (weight + rho)
        lam = -_apply(factor, row_values(t, wide) - b)
        x = t + row_combination(lam, wide) / (weight + rho)
        z_old = z
        z = torch.minimum(torch.maximum(x + v, lower), upper)
        v = v + x - z
        if iterations % _CHECK_EVERY == 0 or iterations == limit:
            primal, dual = (x - z).abs().amax(1), (z - z_old).abs().amax(1)
            if bool((torch.maximum(primal, dual) <= tol).all()):
                break
            gap = float((primal / (rho * dual).clamp(min=1e-30)).median())
            if gap > 10 or gap < 0.1:
                new = rho * 2 if gap > 10 else rho / 2
                v, rho = v * (rho / new), new
                factor = _factor(wide, weight + rho)
    lam = torch.cat([lam[:, :equalities], lam[:, equalities:].clamp(max=0)], 1)
    x = z[:, : y.shape[1]]
    broken = row_values(x, W) - b
    broken = torch.cat([broken[:, :equalities].abs(), broken[:, equalities:].clamp(min=0)], 1)
    residual = broken.amax(1) if m else y.new_zeros(len(y))
    # ADMM's own test bounds the distance to the optimum only up to its rate: ten times the
    # tolerance.
    dual_z = y + row_combination(lam, W)
    return Solution(lam, dual_z, x, residual, residual <= 10 * tol, iterations)


def _factor(W: Tensor, metric: Tensor) -> Tensor:
    H = (W / metric) @ W.mT
    size = H.diagonal(dim1=-2, dim2=-1).mean(-1) if H.shape[-1] else H.new_zeros(H.shape[:-2])
    eye = torch.eye(H.shape[-1], dtype=H.dtype, device=H.device)
    factor: Tensor = torch.linalg.cholesky(H + RIDGE * (size + 1e-30)[..., None, None] * eye)
    return factor


def _apply(factor: Tensor, right: Tensor) -> Tensor:
    columns = right.mT if factor.ndim == 2 else right[:, :, None]
    solved = torch.cholesky_solve(columns, factor)
    return solved.mT if factor.ndim == 2 else solved[:, :, 0]


def _select(solution: Solution, chosen: Tensor) -> Solution:
    return Solution(
        solution.multipliers[chosen],
        solution.z[chosen],
        solution.x[chosen],
        solution.residual[chosen],
        solution.converged[chosen],
        solution.iterations,
    )
