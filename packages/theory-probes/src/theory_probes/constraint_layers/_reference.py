r"""The definitions written out: one sample, dense, float64, slow and plain.

The entropic projection is Dykstra's algorithm with Bregman projections found by bisection; the
Euclidean one tries every set of active rules (so for a handful of rules only).
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def kl_project(
    z0: Array, W: Array, b: Array, equalities: int, upper: Array | None = None, sweeps: int = 20_000
) -> Array:
    """Cyclic projections on one row at a time, each found by bisection, until nothing moves."""
    upper = np.full(len(z0), np.inf) if upper is None else upper
    capped = np.isfinite(upper)

    def value(z: Array) -> Array:
        with np.errstate(over="ignore"):
            return np.where(capped, np.where(capped, upper, 0) / (1 + np.exp(-z)), np.exp(z))

    lam = np.zeros(len(b))
    for _ in range(sweeps):
        before = lam.copy()
        for k in range(len(b)):
            z = z0 + W.T @ lam
            low, high = -60.0, 60.0
            for _ in range(100):
                t = 0.5 * (low + high)
                if W[k] @ value(z + t * W[k]) < b[k]:
                    low = t
                else:
                    high = t
            lam[k] += 0.5 * (low + high)
            if k >= equalities:
                lam[k] = min(lam[k], 0.0)
        if np.abs(lam - before).max(initial=0) < 1e-13:
            break
    return value(z0 + W.T @ lam)


def euclidean_project(
    y: Array, W: Array, b: Array, equalities: int, lower: Array, upper: Array
) -> Array:
    """The nearest point over all choices of which inequalities bind."""
    n = len(y)
    rules = [(W[k], b[k]) for k in range(equalities, len(b))]
    rules += [(-np.eye(n)[i], -lower[i]) for i in range(n) if np.isfinite(lower[i])]
    rules += [(np.eye(n)[i], upper[i]) for i in range(n) if np.isfinite(upper[i])]
    best, distance = None, np.inf
    for size in range(len(rules) + 1):
        for active in itertools.combinations(rules, size):
            A = np.vstack([W[:equalities], *[row for row, _ in active]])
            right = np.concatenate([b[:equalities], [side for _, side in active]])
            x = y - np.linalg.pinv(A) @ (A @ y - right) if len(A) else y.copy()
            feasible = np.abs(A @ x - right).max(initial=0) < 1e-9 and all(
                row @ x <= side + 1e-9 for row, side in rules
            )
            if feasible and np.sum((x - y) ** 2) < distance - 1e-15:
                best, distance = x, float(np.sum((x - y) ** 2))
    if best is None:
        raise ValueError("no point satisfies the rules")
    return best
