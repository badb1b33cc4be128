r"""Exact critical bids by one constrained fit a user (route D).

At the critical bid the boundary passes through the user's own row. Let `G` be the objective with
that user's bid at 0. Minimise `G` subject to `z_i w >= 0`; with the multiplier `nu` of that
constraint the stationarity condition is the one of the auction's objective at the bid

.. math:: z^*_i = \nu / (C\,(-\ell'(0))),

so the multiplier is the price, and the user is right for free where the constraint is idle.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from .losses import SLOPE_AT_ZERO, Floats, Loss, loss_curvature, loss_pull, loss_value
from .solvers import Rows, Solution, combine, gram, is_sparse, scores, solve_box

# Doubles in one block of margins (rows x candidates): 64 MiB.
_BLOCK = 2**23


def constrained_prices(
    loss: Loss,
    rows: Rows,
    norms: Floats,
    bids: Floats,
    scale: float,
    base: Solution,
    users: NDArray[np.intp],
    *,
    on_priced: Callable[[int], None] | None = None,
) -> tuple[Floats, NDArray[np.bool_]]:
    """Critical bids by one constrained convex fit a user.

    Parameters
    ----------
    loss
        The margin loss.
    rows, norms
        (m, d) signed rows, dense or CSR, and their norms.
    bids
        (m,) bids.
    scale
        `C = 1 / (2 lam m)`.
    base
        The solution at these bids.
    users
        (k,) whom to price. A user who is wrong at its own bid gets the higher bid at which it
        would be right.
    on_priced
        Called with the number of users that have just been finished.

    Returns
    -------
    prices, solved
        (k,) critical bids, and whether each fit converged.

    Examples
    --------
    >>> from mechanism_design.welfare_auction.solvers import row_norms, solve
    >>> rows, bids = np.array([[1.0], [-1.0], [0.5]]), np.array([3.0, 2.0, 1.0])
    >>> base = solve("logistic", rows, bids, 1 / 6)
    >>> prices, solved = constrained_prices("logistic", rows, row_norms(rows), bids, 1 / 6, base,
    ...                                     np.array([0]))
    >>> prices.round(9).tolist()
    [1.5]
    """
    if loss == "hinge":
        return _hinge(rows, norms, bids, scale, base, users, on_priced)
    return _smooth(loss, rows, norms, bids, scale, base, users, on_priced)


def _dense_row(rows: Rows, user: int) -> Floats:
    return np.asarray(rows[[user]].toarray() if is_sparse(rows) else rows[user]).ravel()


def _hinge(
    rows: Rows,
    norms: Floats,
    bids: Floats,
    scale: float,
    base: Solution,
    users: NDArray[np.intp],
    on_priced: Callable[[int], None] | None,
) -> tuple[Floats, NDArray[np.bool_]]:
    prices, solved = np.full(len(users), np.nan), np.zeros(len(users), dtype=bool)
    caps = scale * bids
    start = scale * base.duals
    on_elbow = (base.duals > 0) & (base.duals < bids)
    for position, user in enumerate(users):
        if norms[user] == 0:
            prices[position], solved[position] = np.inf, True
            continue
        # A served user's bid only falls, so nobody far from the margin changes side. One who is
        # wrong may have to raise it without a known limit.
        served = base.margins[user] > 0
        if served:
            reach = caps[user] * norms[user] * norms * (1 + 1e-9) + 1e-12
            near = (np.abs(base.margins - 1.0) <= reach) | on_elbow
        else:
            near = np.ones(len(bids), dtype=bool)
        near[user] = False
        chosen = np.append(np.flatnonzero(near), user)
        part = rows[chosen]
        upper, targets, duals = caps[chosen], np.ones(len(chosen)), start[chosen]
        upper[-1], targets[-1] = np.inf, 0.0
        fixed = base.weights - combine(part, duals) if served else np.zeros(len(base.weights))
        weights, found, _ = solve_box(
            part, upper, targets, base.weights, duals, fixed=fixed, max_iter=500
        )
        prices[position] = found[-1] / scale
        pulled = combine(part, found) + fixed
        own = float(scores(part, weights)[-1])
        off = float(np.linalg.norm(weights - pulled)) * norms[user] + max(-own, 0.0)
        slack = min(found[-1], abs(own))
        solved[position] = bool(max(off, slack) <= 1e-9 * max(1.0, abs(base.margins[user])))
        if on_priced is not None:
            on_priced(1)
    return prices, solved


def _smooth(
    loss: Loss,
    rows: Rows,
    norms: Floats,
    bids: Floats,
    scale: float,
    base: Solution,
    users: NDArray[np.intp],
    on_priced: Callable[[int], None] | None,
) -> tuple[Floats, NDArray[np.bool_]]:
    prices, solved = np.full(len(users), np.nan), np.zeros(len(users), dtype=bool)
    if len(users) == 0:
        return prices, solved
    weight = scale * bids
    hessian = gram(rows, weight * loss_curvature(loss, base.margins))
    hessian[np.diag_indices_from(hessian)] += 1.0
    factor = linalg.cho_factor(hessian)
    block = max(1, _BLOCK // max(1, rows.shape[0]))
    for first in range(0, len(users), block):
        part = slice(first, min(first + block, len(users)))
        chosen = users[part]
        prices[part], solved[part] = _chord(
            loss, rows, weight, scale, base, chosen, factor, norms[chosen]
        )
        for position in range(part.start, part.stop):
            if not solved[position]:
                prices[position], solved[position] = _newton(
                    loss,
                    rows,
                    weight,
                    scale,
                    base,
                    int(users[position]),
                    float(norms[users[position]]),
                )
        if on_priced is not None:
            on_priced(len(chosen))
    return prices, solved


def _chord(
    loss: Loss,
    rows: Rows,
    weight: Floats,
    scale: float,
    base: Solution,
    users: NDArray[np.intp],
    factor: tuple[Floats, bool],
    norms: Floats,
) -> tuple[Floats, NDArray[np.bool_]]:
    """All users of a block at once, with the Hessian of the shared base fit.

    One user moves the Hessian by O(1/m), so a handful of gradients replaces a Newton fit each.
    Within the constraint the user's own term is constant, so its curvature does not matter.
    """
    count = len(users)
    own = rows[users].toarray() if is_sparse(rows) else rows[users]
    lifted = linalg.cho_solve(factor, own.T).T
    stiffness = np.einsum("ij,ij->i", own, lifted)
    prices, done = np.full(count, np.nan), norms == 0
    prices[done] = np.inf
    # Start on the constraint, as close to the base as the Hessian's metric allows.
    safe = np.where(stiffness > 0, stiffness, 1.0)
    weights = (
        base.weights - (np.einsum("ij,ij->i", own, base.weights[None]) / safe)[:, None] * lifted
    )
    open_ = np.flatnonzero(~done)
    before = np.full(count, np.inf)
    for _ in range(25):
        if open_.size == 0:
            break
        margins = rows @ weights[open_].T
        pull = loss_pull(loss, margins)
        pull *= weight[:, None]
        # Take the own term out: on the constraint its margin is 0.
        pull[users[open_], np.arange(open_.size)] = 0.0
        gradient = weights[open_] - np.asarray(rows.T @ pull).T
        newton = linalg.cho_solve(factor, gradient.T).T
        level = np.einsum("ij,ij->i", own[open_], weights[open_])
        nu = (np.einsum("ij,ij->i", own[open_], newton) - level) / stiffness[open_]
        free = gradient - nu[:, None] * own[open_]
        residual = np.sqrt(np.einsum("ij,ij->i", free, free))
        scale_of = np.maximum(np.linalg.norm(base.weights), 1e-300)
        finished = residual <= 1e-13 * scale_of
        # Contraction slower than this is left to a full Newton fit.
        stalled = (residual > 0.5 * before[open_]) & ~finished
        finished |= stalled & (residual <= 1e-11 * scale_of)
        prices[open_[finished]] = np.maximum(nu[finished], 0.0) / (scale * SLOPE_AT_ZERO[loss])
        done[open_[finished]] = True
        before[open_] = residual
        weights[open_] -= newton - nu[:, None] * lifted[open_]
        open_ = open_[~finished & ~stalled]
    return prices, done


def _newton(
    loss: Loss, rows: Rows, weight: Floats, scale: float, base: Solution, user: int, norm: float
) -> tuple[float, bool]:
    """One user by damped Newton in the hyperplane where its margin is 0."""
    own = _dense_row(rows, user)
    others = weight.copy()
    others[user] = 0.0
    weights = base.weights - (own @ base.weights) / norm**2 * own
    margins = scores(rows, weights)
    value = float(0.5 * weights @ weights + others @ loss_value(loss, margins))
    level = max(float(np.linalg.norm(combine(rows, others * loss_pull(loss, margins)))), 1e-300)
    previous = np.inf
    nu, residual = 0.0, np.inf
    for _ in range(100):
        gradient = weights - combine(rows, others * loss_pull(loss, margins))
        hessian = gram(rows, others * loss_curvature(loss, margins))
        hessian[np.diag_indices_from(hessian)] += 1.0
        factor = linalg.cho_factor(hessian, overwrite_a=True)
        newton, lifted = linalg.cho_solve(factor, gradient), linalg.cho_solve(factor, own)
        nu = float(own @ newton) / float(own @ lifted)
        flat = float(own @ gradient) / norm**2
        residual = float(np.linalg.norm(gradient - flat * own))
        if residual <= 1e-14 * level or (residual <= 1e-11 * level and residual > 0.5 * previous):
            nu = flat
            break
        previous = residual
        direction = nu * lifted - newton
        direction -= (own @ direction) / norm**2 * own
        along = scores(rows, direction)
        slope, step = float(gradient @ direction), 1.0
        while True:
            moved = weights + step * direction
            moved_margins = margins + step * along
            moved_value = float(0.5 * moved @ moved + others @ loss_value(loss, moved_margins))
            if moved_value <= value + 1e-4 * step * slope + 1e-13 * abs(value) or step < 1e-10:
                break
            step *= 0.5
        weights, margins, value = moved, moved_margins, moved_value
    price = max(nu, 0.0) / (scale * SLOPE_AT_ZERO[loss])
    return price, bool(residual <= 1e-10 * level)
