r"""Exact minimisers of bid-weighted regularised risk.

The problem, in the scaling of scikit-learn's ``LinearSVC``, with signed rows
:math:`z_j = y_j x_j` and :math:`C = 1/(2 \lambda m)`:

.. math:: \min_w \tfrac12 \lVert w \rVert^2 + C \sum_j b_j\, \ell(z_j^\top w).

Prices are read off the solution, so it must be exact to rounding: the hinge is solved by an
augmented Lagrangian with semismooth Newton steps, which ends in finitely many steps because the
problem is piecewise quadratic, and is then polished to its vertex; the smooth losses by damped
Newton.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from scipy import linalg, sparse

from .losses import Floats, Loss, loss_curvature, loss_pull, loss_value

# A dense array or a CSR matrix of signed rows, (m, d).
Rows: TypeAlias = Any

MAX_DENSE_HESSIAN = 20_000

# Hinge problems up to this many rows are solved whole; larger ones start from every
# `_THINNING`-th row.
_SMALL = 2_000
_THINNING = 6
# Width in margins over which a start rounds the kink of the hinge.
_WIDTH = 0.1


@dataclass(frozen=True)
class Solution:
    """A minimiser and what is needed to price from it.

    Parameters
    ----------
    weights
        (d,) the minimiser.
    margins
        (m,) signed scores `y f(x)`.
    duals
        (m,) the share of the bid that pulls, `b_j (-l'(margin_j))`; for the hinge in `[0, b_j]`.
    gap
        The duality gap in the scaling `0.5 ||w||^2`: no score is off by more than
        `||x|| sqrt(2 gap)`.
    converged
        Whether the solver reached its accuracy.
    iterations
        Newton steps taken.
    """

    weights: Floats
    margins: Floats
    duals: Floats
    gap: float
    converged: bool
    iterations: int


def is_sparse(rows: Rows) -> bool:
    """Whether the rows are a scipy sparse matrix or array."""
    return bool(sparse.issparse(rows))


def row_norms(rows: Rows) -> Floats:
    """The Euclidean norm of each row of a dense or CSR matrix."""
    if is_sparse(rows):
        return np.asarray(np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).ravel()))
    return np.asarray(np.sqrt(np.einsum("ij,ij->i", rows, rows)))


def scores(rows: Rows, weights: Floats) -> Floats:
    """Rows times weights, a flat array."""
    return np.asarray(rows @ weights, dtype=np.float64).ravel()


def combine(rows: Rows, coefficients: Floats) -> Floats:
    """The sum of the rows with these coefficients."""
    return np.asarray(rows.T @ coefficients, dtype=np.float64).ravel()


def gram(rows: Rows, curvatures: Floats | None = None) -> Floats:
    """`rows.T @ diag(curvatures) @ rows`, dense."""
    if curvatures is not None:
        root = np.sqrt(curvatures)
        rows = rows.multiply(root[:, None]).tocsr() if is_sparse(rows) else rows * root[:, None]
    product = rows.T @ rows
    return np.asarray(product.toarray() if is_sparse(product) else product)


def solve(
    loss: Loss,
    rows: Rows,
    bids: Floats,
    scale: float,
    *,
    start: Solution | None = None,
    max_iter: int = 200,
) -> Solution:
    """The minimiser of bid-weighted regularised risk.

    Parameters
    ----------
    loss
        `"hinge"`, `"logistic"` or `"squared_hinge"`.
    rows
        (m, d) signed rows `y_j x_j`, dense or CSR, with the constant feature where wanted.
    bids
        (m,) weights, non-negative.
    scale
        `C = 1 / (2 lam m)`.
    start
        A solution of a neighbouring problem to start from.
    max_iter
        The most Newton steps.

    Returns
    -------
    Solution
        The minimiser with margins, duals and duality gap.

    Notes
    -----
    Source: equations 4 and 5 of the paper.

    Examples
    --------
    >>> rows = np.array([[1.0], [-1.0], [0.5]])
    >>> found = solve("hinge", rows, np.array([3.0, 2.0, 1.0]), 1 / 6)
    >>> round(float(found.weights[0]), 12)
    0.25
    """
    if loss == "hinge":
        return _solve_hinge(rows, bids, scale, start, max_iter)
    return _solve_smooth(loss, rows, bids, scale, start, max_iter)


# --- smooth losses ---------------------------------------------------------------------------


def _solve_smooth(
    loss: Loss, rows: Rows, bids: Floats, scale: float, start: Solution | None, max_iter: int
) -> Solution:
    if rows.shape[1] > MAX_DENSE_HESSIAN:
        raise ValueError(
            f"X has {rows.shape[1]} features; allowed: at most {MAX_DENSE_HESSIAN} for the loss "
            f"{loss!r}, which factors a (d, d) Hessian (the hinge has no such limit)"
        )
    weights = np.zeros(rows.shape[1]) if start is None else start.weights.copy()
    weight = scale * bids
    margins = scores(rows, weights)
    value = float(0.5 * weights @ weights + weight @ loss_value(loss, margins))
    residual, iterations, converged = np.inf, 0, False
    while True:
        pull = weight * loss_pull(loss, margins)
        pulled = combine(rows, pull)
        gradient = weights - pulled
        previous, residual = residual, float(np.linalg.norm(gradient))
        level = max(float(np.linalg.norm(pulled)), 1e-300)
        converged = residual <= 1e-10 * level
        # Below this level Newton only moves rounding errors about.
        if residual <= 4e-16 * level or (residual <= 1e-12 * level and residual > 0.5 * previous):
            break
        if iterations >= max_iter:
            break
        hessian = gram(rows, weight * loss_curvature(loss, margins))
        hessian[np.diag_indices_from(hessian)] += 1.0
        direction = -linalg.cho_solve(linalg.cho_factor(hessian, overwrite_a=True), gradient)
        along = scores(rows, direction)
        slope, step = float(gradient @ direction), 1.0
        while True:
            moved = weights + step * direction
            moved_margins = margins + step * along
            moved_value = float(0.5 * moved @ moved + weight @ loss_value(loss, moved_margins))
            slack = 1e-13 * abs(value)
            if moved_value <= value + 1e-4 * step * slope + slack or step < 1e-10:
                break
            step *= 0.5
        weights, value = moved, moved_value
        margins = scores(rows, weights)
        iterations += 1
    return Solution(
        weights=weights,
        margins=margins,
        duals=bids * loss_pull(loss, margins),
        # With duals at the loss's own derivative the Fenchel-Young terms cancel and this is exact.
        gap=0.5 * residual**2,
        converged=converged,
        iterations=iterations,
    )


# --- the hinge -------------------------------------------------------------------------------


def hinge_gap(
    weights: Floats, margins: Floats, pulled: Floats, duals: Floats, caps: Floats
) -> float:
    """The duality gap of a hinge fit, as a sum of terms that are never negative.

    `duals` in `[0, caps]` and `pulled = rows.T @ duals` are in the solver's scaling.
    """
    difference = weights - pulled
    shortfall = 1.0 - margins
    slack = caps * np.maximum(shortfall, 0.0) - duals * shortfall
    return float(0.5 * difference @ difference + np.maximum(slack, 0.0).sum())


def _solve_hinge(
    rows: Rows, bids: Floats, scale: float, start: Solution | None, max_iter: int
) -> Solution:
    caps = scale * bids
    everyone = combine(rows, caps)
    margins = scores(rows, everyone)
    if (margins[bids > 0] < 1.0).all():
        # Linear regime: every bid pulls in full, so the minimiser is a weighted vote.
        return Solution(everyone, margins, bids.copy(), 0.0, True, 1)
    duals: Floats | None = None
    if start is not None:
        weights, duals = start.weights, np.minimum(scale * start.duals, caps)
    elif rows.shape[0] > _SMALL:
        weights = _rough_start(rows, caps, max_iter)
    else:
        weights = np.zeros(rows.shape[1])
    weights, duals, iterations = _solve_near(rows, caps, weights, duals, max_iter)
    margins = scores(rows, weights)
    pulled = combine(rows, duals)
    gap = hinge_gap(weights, margins, pulled, duals, caps)
    off = _violation(1.0 - margins, duals, caps) / max(1.0, float(np.abs(margins).max()))
    level = max(float(duals @ row_norms(rows)), 1e-300)
    off += float(np.linalg.norm(weights - pulled)) / level
    # On the caps exactly, so that rounding never makes an interior user of a full one.
    shares = np.where(duals >= caps, bids, np.clip(duals / scale, 0.0, bids))
    value = float(0.5 * weights @ weights + caps @ np.maximum(1.0 - margins, 0.0))
    converged = off <= 1e-10 or gap <= 1e-14 * value
    return Solution(weights, margins, shares, gap, converged, iterations)


def _rough_start(rows: Rows, caps: Floats, max_iter: int) -> Floats:
    """Weights close enough to see who is near the margin, from a smoothed hinge.

    Half the cap as a multiplier rounds the kink over a margin's width of `caps / penalty`. Each
    level starts from a thinned problem of the same shape, so few steps see all rows.
    """
    count, dimension = rows.shape
    weights, width = np.zeros(dimension), 1.0
    if count > max(_SMALL, 20 * dimension):
        lifted = _THINNING * caps[::_THINNING]
        weights, width = _rough_start(rows[::_THINNING], lifted, max_iter), _WIDTH
    if not caps.any():
        return weights
    ones, nothing = np.ones(count), np.zeros(dimension)
    penalty = float(np.median(caps[caps > 0])) / width
    weights, *_ = _newton(
        rows, caps, ones, nothing, weights, 0.5 * caps, penalty, 1e-2 * width, max_iter
    )
    return weights


def _violation(short: Floats, duals: Floats, caps: Floats) -> float:
    """How far targets are missed on the side that the duals forbid."""
    full = duals >= caps
    wrong = np.where(full, -short, np.where(duals > 0, np.abs(short), short))
    return float(wrong[caps > 0].max(initial=0.0))


def _solve_near(
    rows: Rows,
    caps: Floats,
    weights: Floats,
    duals: Floats | None,
    max_iter: int,
) -> tuple[Floats, Floats, int]:
    """Solve over the users near the margin, and let in those who turn out to be misplaced.

    Everyone else is taken to pull in full or not at all; that guess is checked on all rows, so the
    end point is the minimiser of the whole problem.
    """
    margins = scores(rows, weights)
    left = margins < 1.0
    count = rows.shape[0]
    if count <= _SMALL and duals is None:
        middle = np.where(left, 0.5 * caps, 0.0)
        return solve_box(rows, caps, np.ones(count), weights, middle, max_iter=max_iter)
    norms = np.maximum(row_norms(rows), 1e-300)
    wanted = max(_SMALL // 2, count // 30, 4 * rows.shape[1])
    if duals is None:
        duals = np.where(left, caps, 0.0)
    else:
        wanted = max(wanted, 2 * int(((duals > 0) & (duals < caps)).sum()))
    iterations = 0
    while True:
        wanted = min(count, wanted)
        near = np.zeros(count, dtype=bool)
        near[np.argpartition(np.abs(margins - 1.0) / norms, wanted - 1)[:wanted]] = True
        inside = np.flatnonzero(near)
        outside = np.where(near | ~left, 0.0, caps)
        weights, found, steps = solve_box(
            rows[inside],
            caps[inside],
            np.ones(wanted),
            weights,
            duals[inside],
            fixed=combine(rows, outside),
            max_iter=max_iter - iterations,
        )
        iterations += steps
        duals = outside
        duals[inside] = found
        margins = scores(rows, weights)
        wrong = ~near & (caps > 0) & np.where(left, margins > 1.0, margins < 1.0)
        if not wrong.any() or iterations >= max_iter:
            return weights, duals, max(iterations, 1)
        left = margins < 1.0
        wanted *= 2


def _exact_level(on: Floats, wanted: Floats, level: Floats) -> Floats:
    """Solve `on @ on.T @ level = wanted`; of many solutions, the one nearest to `level`."""
    matrix = on @ on.T
    if len(on) <= on.shape[1]:
        try:
            factor = linalg.cho_factor(matrix)
        except linalg.LinAlgError:
            pass
        else:
            found = linalg.cho_solve(factor, wanted)
            return np.asarray(found + linalg.cho_solve(factor, wanted - matrix @ found))
    for _ in range(2):
        move = linalg.lstsq(on, wanted - on @ (on.T @ level), cond=1e-12)[0]
        level = level + linalg.lstsq(on.T, move, cond=1e-12)[0]
    return level


def _polish(
    rows: Rows, caps: Floats, targets: Floats, duals: Floats, fixed: Floats
) -> tuple[Floats, Floats, float] | None:
    """Solve for the users on their targets exactly, given who is inside and who is outside.

    Returns weights, duals and the largest violation of the optimality conditions, or None where
    those on their targets leave their bounds.
    """
    between = (duals > 0) & (duals < caps)
    elbow = np.flatnonzero(between)
    if elbow.size > max(4 * rows.shape[1], 1_000):
        return None
    full = (duals >= caps) & (caps > 0)
    fresh = np.where(full, caps, 0.0)
    weights = combine(rows, fresh) + fixed
    if elbow.size:
        on = rows[elbow].toarray() if is_sparse(rows) else rows[elbow]
        level = _exact_level(on, targets[elbow] - on @ weights, duals[elbow])
        if not (np.isfinite(level).all() and (level >= 0).all() and (level <= caps[elbow]).all()):
            return None
        fresh[elbow] = level
        weights = weights + on.T @ level
    short = targets - scores(rows, weights)
    return weights, fresh, _violation(short, fresh, caps)


def solve_box(
    rows: Rows,
    caps: Floats,
    targets: Floats,
    weights: Floats,
    duals: Floats,
    *,
    fixed: Floats | None = None,
    max_iter: int = 200,
) -> tuple[Floats, Floats, int]:
    r"""Minimise a strongly convex piecewise quadratic by an augmented Lagrangian.

    .. math:: \min_w \tfrac12 \lVert w \rVert^2 - f^\top w
              + \sum_j \max_{0 \le a \le c_j} a\,(t_j - z_j^\top w)

    With targets 1 and caps `C b_j` it is the hinge; a row with target 0 and an infinite cap is the
    constraint `z_j w >= 0`, and its dual the multiplier.

    Parameters
    ----------
    rows
        (m, d) rows `z_j`.
    caps, targets
        (m,) `c_j`, which may be infinite, and `t_j`.
    weights, duals
        (d,) and (m,) where to start.
    fixed
        (d,) the linear term `f`; zero if absent.
    max_iter
        The most Newton steps.

    Returns
    -------
    weights, duals, iterations
        The minimiser, its multipliers in `[0, c_j]`, and the Newton steps taken.
    """
    pull = np.zeros(rows.shape[1]) if fixed is None else fixed
    finite = caps[np.isfinite(caps) & (caps > 0)]
    penalty = float(np.median(finite)) if finite.size else 1.0
    iterations = 0
    for outer in range(60):
        # Inner problem: smooth in w once the multipliers are moved by the penalty. Early ones
        # need not be solved further than the multipliers are right.
        inner = max(1e-13, 10.0 ** (-2 - 2 * outer))
        weights, steps = _newton(
            rows, caps, targets, pull, weights, duals, penalty, inner, max_iter - iterations
        )
        iterations += steps
        margins = scores(rows, weights)
        updated = np.clip(duals + penalty * (targets - margins), 0.0, caps)
        change = float(np.abs(updated - duals).max(initial=0.0)) / penalty
        duals = updated
        largest = max(1.0, float(np.abs(margins).max(initial=0.0)))
        if change <= 4e-15 * largest and inner <= 1e-13:
            break
        if change < 0.1 * largest:
            polished = _polish(rows, caps, targets, duals, pull)
            if polished is not None and polished[2] <= 1e-13 * largest:
                return polished[0], polished[1], iterations
        if iterations >= max_iter:
            break
        penalty *= 10.0
        if penalty > 1e12 * max(1.0, float(np.linalg.norm(weights))):
            break
    return weights, duals, iterations


def _newton(
    rows: Rows,
    caps: Floats,
    targets: Floats,
    pull: Floats,
    weights: Floats,
    duals: Floats,
    penalty: float,
    tolerance: float,
    max_steps: int,
) -> tuple[Floats, int]:
    """Semismooth Newton on the augmented Lagrangian at fixed multipliers."""
    shifted = duals + penalty * (targets - scores(rows, weights))
    clipped = np.clip(shifted, 0.0, caps)
    level = max(float(np.linalg.norm(pull)), float(np.linalg.norm(weights)), 1e-12)
    steps = 0
    while steps < max_steps:
        pulled = combine(rows, clipped) + pull
        gradient = weights - pulled
        level = max(level, float(np.linalg.norm(pulled)))
        if np.linalg.norm(gradient) <= tolerance * level:
            break
        near = rows[np.flatnonzero((shifted > 0) & (shifted < caps))]
        direction = -_shifted_solve(near, penalty, gradient)
        along = scores(rows, direction)
        step = _line_search(weights, direction, pull, shifted, along, penalty, caps)
        if step == 0.0:
            break
        weights = weights + step * direction
        shifted = shifted - (step * penalty) * along
        clipped = np.clip(shifted, 0.0, caps)
        steps += 1
    return weights, steps


def _shifted_solve(near: Rows, penalty: float, gradient: Floats) -> Floats:
    """Solve `(I + penalty near.T near) x = gradient` on the smaller side."""
    count, dimension = near.shape
    if count == 0:
        return gradient
    if count >= dimension:
        matrix = penalty * gram(near)
        matrix[np.diag_indices_from(matrix)] += 1.0
        return np.asarray(linalg.solve(matrix, gradient, assume_a="pos"))
    inner = near @ near.T
    matrix = np.asarray(inner.toarray() if is_sparse(inner) else inner)
    matrix[np.diag_indices_from(matrix)] += 1.0 / penalty
    return gradient - combine(near, linalg.solve(matrix, scores(near, gradient), assume_a="pos"))


def _line_search(
    weights: Floats,
    direction: Floats,
    pull: Floats,
    shifted: Floats,
    along: Floats,
    penalty: float,
    caps: Floats,
) -> float:
    """The exact minimiser along the direction, where the full step overshoots.

    The derivative along the direction is piecewise linear and increasing, so bracketing its sign
    is enough.
    """
    base, square = float((weights - pull) @ direction), float(direction @ direction)

    def slope(step: float) -> float:
        moved = np.clip(shifted - (step * penalty) * along, 0.0, caps)
        return base + step * square - float(moved @ along)

    first = slope(0.0)
    if not first < 0.0:
        return 0.0
    last = slope(1.0)
    if last <= 1e-10 * abs(first):
        return 1.0
    low, high, at_low, at_high, step = 0.0, 1.0, first, last, 1.0
    for _ in range(40):
        step = low + (high - low) * at_low / (at_low - at_high)
        here = slope(step)
        if abs(here) <= 0.3 * abs(first):
            break
        # Halving the value kept at the other end makes false position converge from both sides.
        if here > 0:
            high, at_high, at_low = step, here, 0.5 * at_low
        else:
            low, at_low, at_high = step, here, 0.5 * at_high
    return step
