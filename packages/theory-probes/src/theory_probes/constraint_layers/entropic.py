r"""The entropic (Kullback-Leibler) projection: exact, or Fermi-Dirac where variables have upper
bounds.

.. math:: \min_{0 \le x \le u} \sum_i x_i(\log x_i - 1) - \langle x, z_0\rangle
          \quad\text{s.t.}\quad W_{eq}x = b_{eq},\ W_{ub}x \le b_{ub}, \qquad z_0 = y/\tau,

whose optimum is :math:`x = \exp(z_0 + W^\top\lambda)` with :math:`\lambda_{ub} \le 0`.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from .bregman import Group, bregman, group_rows, sweep
from .dual import Solution, merge, newton, row_combination, row_products
from .links import Entropic

# Beyond this |z0| the temperature is annealed; what is left open is annealed from the second.
_SAFE, _GENTLE = 50.0, 4.0
_WARM_UP = 3
_STAGE_TOL = 1e-4


def solve_entropic(
    z0: Tensor,
    W: Tensor,
    b: Tensor,
    upper: Tensor | None,
    equalities: int,
    *,
    engine: str,
    tol: Tensor,
    max_iter: int,
    start: Tensor | None = None,
) -> Solution:
    """Solve a batch: z0 (B, n), W (m, n) or (B, m, n), b (B, m), upper (n,) or None,
    tol (B,).

    `engine` is `"auto"` or `"newton"` (a few sweeps, then Newton, annealed where z0 is large) or
    `"bregman"` (sweeps alone).
    """
    link = Entropic(upper)
    groups = group_rows(W, upper) if W.ndim == 2 else []
    if engine == "bregman":
        first = b.new_zeros(b.shape) if start is None else start
        return bregman(z0, W, b, link, first, equalities, tol, max_iter, groups)
    closed = [group for group in groups if group.closed_form]

    def anneal(chosen: Tensor | None, safe: float, first: Tensor | None) -> Solution:
        z, w, right, limit = z0, W, b, tol
        if chosen is not None:
            z, w, right, limit = z0[chosen], W if W.ndim == 2 else W[chosen], b[chosen], tol[chosen]
        return _anneal(z, w, right, link, equalities, closed, limit, max_iter, safe, first)

    solution = anneal(None, _SAFE, start)
    left = ~solution.converged
    if bool(left.any()):
        solution = merge(solution, left, anneal(left, _GENTLE, None))
    return solution


def _anneal(
    z0: Tensor,
    W: Tensor,
    b: Tensor,
    link: Entropic,
    equalities: int,
    groups: list[Group],
    tol: Tensor,
    max_iter: int,
    safe: float,
    start: Tensor | None,
) -> Solution:
    """Newton at temperatures halved until z0 is the true one; each stage starts at the last."""
    multipliers = b.new_zeros(b.shape) if start is None else start
    pairs = row_products(W)
    largest = float(z0.abs().amax()) if z0.numel() and start is None else 0.0
    stages = max(0, math.ceil(math.log2(largest / safe))) if largest > safe else 0
    iterations = 0
    z = z0 / 2.0**stages + row_combination(multipliers, W)
    for stage in range(stages, -1, -1):
        if start is None and groups:
            z, multipliers = _warm_up(z, b, multipliers, groups, link, equalities)
        last = stage == 0
        solution = newton(
            z,
            W,
            b,
            link,
            multipliers,
            equalities,
            tol if last else tol.clamp(min=_STAGE_TOL),
            max_iter if last else min(max_iter, 30),
            pairs,
        )
        iterations += solution.iterations
        # The dual values in units of y stay; in units of z they double with 1/tau, as z does.
        z, multipliers = 2.0 * solution.z, 2.0 * solution.multipliers
    return replace(solution, iterations=iterations)


def _warm_up(
    z: Tensor,
    b: Tensor,
    multipliers: Tensor,
    groups: list[Group],
    link: Entropic,
    equalities: int,
) -> tuple[Tensor, Tensor]:
    swept_z, swept = z.clone(), multipliers.clone()
    for _ in range(_WARM_UP):
        sweep(swept_z, b, swept, groups, link, equalities)
    # A sample whose right-hand side has no logarithm is left to Newton, which will say so.
    good = swept.isfinite().all(1, keepdim=True)
    return torch.where(good, swept_z, z), torch.where(good, swept, multipliers)
