"""The definitions, written out: a general-purpose optimiser and bisection, slow and plain."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import minimize

from .losses import Floats


def fit(loss: str, rows: Floats, bids: Floats, scale: float) -> Floats:
    """The weights minimising `0.5 ||w||^2 + C sum_j b_j l(z_j w)`."""
    if loss == "hinge":
        # The dual box QP: max sum a - 0.5 ||Z^T a||^2, 0 <= a <= C b, by bounded quasi-Newton
        # with projected coordinate passes to finish.
        upper = scale * bids
        matrix = rows @ rows.T

        def dual(a: Any) -> Any:
            return 0.5 * a @ matrix @ a - a.sum(), matrix @ a - 1

        found: Any = minimize(
            dual,
            0.5 * upper,
            jac=True,
            method="L-BFGS-B",
            bounds=[(0.0, u) for u in upper],
            options={"maxiter": 100_000, "maxfun": 100_000, "ftol": 1e-16, "gtol": 1e-12},
        )
        duals = found.x
        for _ in range(20_000):
            largest = 0.0
            for j in range(len(bids)):
                if matrix[j, j] > 0:
                    new = min(max(duals[j] - (matrix[j] @ duals - 1) / matrix[j, j], 0.0), upper[j])
                    largest = max(largest, abs(new - duals[j]))
                    duals[j] = new
            if largest < 1e-15:
                break
        return np.asarray(rows.T @ duals)

    def objective(weights: Any) -> Any:
        margins = rows @ weights
        if loss == "logistic":
            value, slope = np.logaddexp(0, -margins), -1 / (1 + np.exp(margins))
        else:
            short = np.maximum(1 - margins, 0)
            value, slope = short**2, -2 * short
        return (
            float(0.5 * weights @ weights + scale * bids @ value),
            weights + scale * rows.T @ (bids * slope),
        )

    found = minimize(
        objective,
        np.zeros(rows.shape[1]),
        jac=True,
        method="BFGS",
        options={"gtol": 1e-12, "maxiter": 100_000},
    )
    return np.asarray(found.x)


def critical_bid(
    loss: str, rows: Floats, bids: Floats, scale: float, user: int, width: float = 1e-7
) -> float:
    """`inf {z in [0, b_i] : right at (z, b_-i)}` by bisection; the user is right at its own bid."""

    def right(bid: float) -> bool:
        changed = bids.copy()
        changed[user] = bid
        return bool(rows[user] @ fit(loss, rows, changed, scale) > 0)

    if right(0.0):
        return 0.0
    low, high = 0.0, float(bids[user])
    while high - low > width:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if right(middle) else (middle, high)
    return high


def payments(loss: str, rows: Floats, bids: Floats, scale: float) -> Floats:
    """Equation 7: the critical bid of each user who is right, 0 for the others."""
    margins = rows @ fit(loss, rows, bids, scale)
    return np.array(
        [
            critical_bid(loss, rows, bids, scale, i) if margins[i] > 1e-9 else 0.0
            for i in range(len(bids))
        ]
    )
