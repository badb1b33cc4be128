"""The sets that decisions most often live in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .constraints import LinearConstraints, check_count
from .projection import check_positive


def simplex(n: int) -> LinearConstraints:
    """Non-negative numbers that add to 1.

    Examples
    --------
    >>> simplex(3)
    LinearConstraints(n=3, equalities=1, inequalities=0, bounded=3, rank=1)
    """
    return budget(n, 1.0)


def budget(n: int, total: float) -> LinearConstraints:
    """Non-negative numbers that add to `total`.

    Examples
    --------
    >>> budget(4, 100.0).b_eq
    array([100.])
    """
    check_positive("total", total)
    check_count("n", n)
    return LinearConstraints(n, np.ones((1, n)), [total], lower=0.0)


def capped_simplex(n: int, k: float) -> LinearConstraints:
    """Numbers between 0 and 1 that add to `k`: the relaxed choice of k items out of n.

    Examples
    --------
    >>> capped_simplex(5, 2).upper
    array([1., 1., 1., 1., 1.])
    """
    check_positive("k", k)
    check_count("n", n)
    return LinearConstraints(n, np.ones((1, n)), [k], lower=0.0, upper=1.0)


def doubly_stochastic(n: int) -> LinearConstraints:
    """An n x n matrix, flattened row by row, whose rows and columns each add to 1.

    One of the 2n rules is redundant.

    Examples
    --------
    >>> doubly_stochastic(3).rank
    5
    """
    check_count("n", n)
    return transport(np.ones(n), np.ones(n))


def transport(rows: ArrayLike, columns: ArrayLike) -> LinearConstraints:
    """A non-negative matrix, flattened row by row, with given row and column sums.

    Examples
    --------
    >>> transport([2, 1], [1, 1, 1]).n
    6
    """
    r, c = np.asarray(rows, dtype=np.float64), np.asarray(columns, dtype=np.float64)
    if r.ndim != 1 or c.ndim != 1 or not r.size or not c.size:
        raise ValueError(f"rows and columns have the shapes {r.shape}, {c.shape}; allowed: vectors")
    sums = np.vstack([_row_sums(r.size, c.size), _column_sums(r.size, c.size)])
    return LinearConstraints(r.size * c.size, sums, np.concatenate([r, c]), lower=0.0)


def partial_matching(rows: int, columns: int, k: float) -> LinearConstraints:
    """A rows x columns matching matrix, flattened: each row and column at most 1, `k` in all.

    Examples
    --------
    >>> partial_matching(3, 4, 2)
    LinearConstraints(n=12, equalities=1, inequalities=7, bounded=12, rank=1)
    """
    check_count("rows", rows)
    check_count("columns", columns)
    n = rows * columns
    sums = np.vstack([_row_sums(rows, columns), _column_sums(rows, columns)])
    return LinearConstraints(n, np.ones((1, n)), [k], sums, np.ones(rows + columns), lower=0.0)


def group_at_least(n: int, index: Sequence[int], p: float) -> LinearConstraints:
    """Weights that add to 1, of which the group `index` has at least the share `p`.

    Examples
    --------
    >>> group_at_least(5, [0, 1], 0.9).b_ub
    array([-0.9])
    """
    check_count("n", n)
    chosen = np.unique(np.asarray(index))
    if not chosen.size or chosen.dtype.kind not in "iu" or not 0 <= chosen[0] <= chosen[-1] < n:
        raise ValueError(f"index is {index!r}; allowed: positions from 0 to {n - 1}")
    check_positive("p", p)
    row = np.zeros((1, n))
    row[0, chosen] = -1.0
    return LinearConstraints(n, np.ones((1, n)), [1.0], row, [-p], lower=0.0)


def flow_conservation(
    edges: Sequence[tuple[int, int]], supply: ArrayLike, capacity: ArrayLike | None = None
) -> LinearConstraints:
    """Flows on directed edges: what leaves a node less what enters it is its supply.

    Parameters
    ----------
    edges
        (tail, head) pairs of node numbers from 0.
    supply
        (nodes,), adding to 0: positive at sources.
    capacity
        A number or one for each edge; none if absent.

    Examples
    --------
    >>> flow_conservation([(0, 1), (1, 2), (0, 2)], [1, 0, -1]).rank
    2
    """
    given = np.asarray(supply, dtype=np.float64)
    incidence = np.zeros((given.size, len(edges)))
    for e, (tail, head) in enumerate(edges):
        if not (0 <= tail < given.size and 0 <= head < given.size) or tail == head:
            raise ValueError(
                f"edges[{e}] is {(tail, head)}; allowed: two nodes from 0 to {given.size - 1}"
            )
        incidence[tail, e], incidence[head, e] = 1.0, -1.0
    return LinearConstraints(len(edges), incidence, given, lower=0.0, upper=capacity)


def _row_sums(rows: int, columns: int) -> NDArray[np.float64]:
    return np.asarray(np.kron(np.eye(rows), np.ones((1, columns))), dtype=np.float64)


def _column_sums(rows: int, columns: int) -> NDArray[np.float64]:
    return np.asarray(np.kron(np.ones((1, rows)), np.eye(columns)), dtype=np.float64)
