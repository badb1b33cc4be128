r"""Linear rules on a vector of decisions, compiled once: checked, proved feasible, ranked, scaled.

The set is :math:`\{x \in \mathbb R^n : A_{eq} x = b_{eq},\ A_{ub} x \le b_{ub},\ l \le x \le u\}`,
in the names of `scipy.optimize.linprog`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.optimize import linprog

if TYPE_CHECKING:
    import cvxpy

Matrix = Any  # dense array-like, torch tensor (dense or sparse) or scipy sparse matrix
_FEASIBILITY_TOL = 1e-7


class LinearConstraints:
    r"""A polyhedron in :math:`\mathbb R^n`, checked when it is made.

    Parameters
    ----------
    n
        The number of variables.
    A_eq, b_eq
        (p, n) and (p,): equality rows. Matrices are dense, torch sparse or scipy sparse.
    A_ub, b_ub
        (q, n) and (q,): rows of `A_ub @ x <= b_ub`.
    lower, upper
        A number or (n,): bounds, `None` for none. Infinite entries are no bounds either.

    Attributes
    ----------
    A_eq, b_eq, A_ub, b_ub, lower, upper : numpy.ndarray
        float64; `lower` and `upper` hold infinities where there is no bound.
    rank : int
        The rank of `A_eq`; rows beyond it are redundant, and consistent.

    Raises
    ------
    ValueError
        If shapes do not fit, a number is not finite, a lower bound exceeds the upper one, or no
        point satisfies all rules. The message names the rows that contradict each other.

    Examples
    --------
    >>> LinearConstraints(3, A_eq=[[1, 1, 1]], b_eq=[1], lower=0)
    LinearConstraints(n=3, equalities=1, inequalities=0, bounded=3, rank=1)
    """

    def __init__(
        self,
        n: int,
        A_eq: Matrix = None,
        b_eq: ArrayLike | None = None,
        A_ub: Matrix = None,
        b_ub: ArrayLike | None = None,
        lower: ArrayLike | None = None,
        upper: ArrayLike | None = None,
    ) -> None:
        check_count("n", n)
        self.n = int(n)
        self.A_eq, self.b_eq = _rows("eq", A_eq, b_eq, self.n)
        self.A_ub, self.b_ub = _rows("ub", A_ub, b_ub, self.n)
        self.lower = _bound("lower", lower, self.n, -np.inf)
        self.upper = _bound("upper", upper, self.n, np.inf)
        crossed = np.flatnonzero(self.lower > self.upper)
        if crossed.size:
            i = int(crossed[0])
            raise ValueError(
                f"lower[{i}] is {self.lower[i]:g}, above upper[{i}] = {self.upper[i]:g}"
            )
        _require_feasible(self)
        self.rank = int(np.linalg.matrix_rank(self.A_eq)) if len(self.A_eq) else 0

    def __repr__(self) -> str:
        bounded = int(np.sum(np.isfinite(self.lower) | np.isfinite(self.upper)))
        return (
            f"LinearConstraints(n={self.n}, equalities={len(self.b_eq)},"
            f" inequalities={len(self.b_ub)}, bounded={bounded}, rank={self.rank})"
        )

    @classmethod
    def from_cvxpy(cls, constraints: Sequence[cvxpy.Constraint]) -> LinearConstraints:
        """Take over the constraints of a cvxpy model in one vector variable.

        Parameters
        ----------
        constraints
            Affine equalities and inequalities in a single variable without parameters. A matrix
            variable is read in column order, as cvxpy flattens it.

        Raises
        ------
        ValueError
            If there is not exactly one variable, or a constraint is not affine.

        Examples
        --------
        >>> import cvxpy as cp
        >>> x = cp.Variable(3)
        >>> LinearConstraints.from_cvxpy([cp.sum(x) == 1, x >= 0])
        LinearConstraints(n=3, equalities=1, inequalities=3, bounded=0, rank=1)
        """
        import cvxpy as cp

        variables = {v.id: v for c in constraints for v in c.variables()}
        if len(variables) != 1:
            raise ValueError(f"the constraints have {len(variables)} variables; allowed: one")
        (variable,) = variables.values()
        problem = cp.Problem(cp.Minimize(0), list(constraints))
        if problem.parameters():
            raise ValueError("the constraints have parameters; give them values as constants")
        equal: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = []
        below: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = []
        for constraint in constraints:
            kind = type(constraint).__name__
            if kind not in ("Equality", "Zero", "Inequality", "NonPos", "NonNeg"):
                raise ValueError(f"{constraint} is a {kind}; allowed: == , <= and >=")
            # cvxpy writes a <= b as a - b <= 0 and keeps the difference in `expr`.
            residual = constraint.expr if kind != "NonNeg" else -constraint.expr
            if not residual.is_affine():
                raise ValueError(f"{constraint} is not affine")
            rows, offset = _affine(residual, variable)
            (equal if kind in ("Equality", "Zero") else below).append((rows, -offset))
        return cls(
            variable.size,
            *(_stack(equal) if equal else (None, None)),
            *(_stack(below) if below else (None, None)),
        )

    def violation(self, x: ArrayLike) -> NDArray[np.float64]:
        """How far each row of `x`, shape (..., n), breaks its worst rule, in the rules' own units.

        Examples
        --------
        >>> float(LinearConstraints(2, A_eq=[[1, 1]], b_eq=[1]).violation([0.5, 0.75]))
        0.25
        """
        x = np.asarray(x, dtype=np.float64)
        if x.shape[-1:] != (self.n,):
            raise ValueError(f"x has the shape {x.shape}; allowed: (..., {self.n})")
        worst = np.zeros(x.shape[:-1])
        if len(self.b_eq):
            worst = np.maximum(worst, np.abs(x @ self.A_eq.T - self.b_eq).max(-1))
        if len(self.b_ub):
            worst = np.maximum(worst, (x @ self.A_ub.T - self.b_ub).max(-1))
        beyond = np.maximum(self.lower - x, x - self.upper).max(-1)
        return np.asarray(np.maximum(worst, beyond))

    def forced_to_bound(self, lower: NDArray[np.float64]) -> tuple[str, NDArray[np.int64]] | None:
        """Variables that no feasible point has strictly inside `(lower, upper)`, and the row why.

        An entropy has no minimum there, because its gradient is infinite at a bound. Variables
        whose bounds are equal are fixed and do not count.
        """
        free = lower < self.upper
        # One LP decides: the largest t with x at least t inside all bounds.
        edges = [-np.eye(self.n)[free]]
        limits = [-lower[free]]
        capped = free & np.isfinite(self.upper)
        edges.append(np.eye(self.n)[capped])
        limits.append(self.upper[capped])
        inside = np.vstack([np.hstack([e, np.ones((len(e), 1))]) for e in edges])
        rules = np.hstack([self.A_ub, np.zeros((len(self.b_ub), 1))])
        found = linprog(
            np.append(np.zeros(self.n), -1.0),
            A_ub=np.vstack([rules, inside]),
            b_ub=np.concatenate([self.b_ub, *limits]),
            A_eq=np.hstack([self.A_eq, np.zeros((len(self.b_eq), 1))]) if len(self.b_eq) else None,
            b_eq=self.b_eq if len(self.b_eq) else None,
            bounds=[
                *zip(
                    np.where(free, -np.inf, lower), np.where(free, np.inf, self.upper), strict=True
                ),
                (None, 1.0),
            ],
            method="highs",
        )
        if found.x is not None and found.x[-1] > 1e-9:
            return None
        floor = np.where(np.isfinite(lower), lower, 0.0)
        for kind, A, b in (("A_eq", self.A_eq, self.b_eq), ("A_ub", self.A_ub, self.b_ub)):
            for k, (row, right) in enumerate(zip(A, b, strict=True)):
                if (row >= 0).all() and right - row @ floor <= 1e-12:
                    return f"{kind}[{k}]", np.flatnonzero((row > 0) & free)
        return "the rules together", np.array([], dtype=np.int64)


def check_count(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name} is {value!r}; allowed: an integer of at least 1")


def _rows(
    name: str, A: Matrix, b: ArrayLike | None, n: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    if (A is None) != (b is None):
        raise ValueError(f"A_{name} and b_{name} must be given together")
    if A is None:
        return np.zeros((0, n)), np.zeros(0)
    if isinstance(A, torch.Tensor):
        A = A.detach().cpu().to_dense().numpy()
    elif sparse.issparse(A):
        A = _dense(A)
    matrix = np.array(A, dtype=np.float64, ndmin=2)
    right = np.array(
        b.detach().cpu().numpy() if isinstance(b, torch.Tensor) else b, dtype=np.float64, ndmin=1
    )
    if matrix.ndim != 2 or matrix.shape[1] != n:
        raise ValueError(f"A_{name} has the shape {matrix.shape}; allowed: (rows, {n})")
    if right.shape != (len(matrix),):
        raise ValueError(f"b_{name} has the shape {right.shape}; allowed: ({len(matrix)},)")
    if not np.isfinite(matrix).all() or not np.isfinite(right).all():
        raise ValueError(f"A_{name} or b_{name} has NaN or infinity; allowed: finite numbers")
    return matrix, right


def _bound(name: str, value: ArrayLike | None, n: int, absent: float) -> NDArray[np.float64]:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    bound = np.array(absent if value is None else value, dtype=np.float64)
    if bound.shape not in ((), (n,)):
        raise ValueError(f"{name} has the shape {bound.shape}; allowed: a number or ({n},)")
    if np.isnan(bound).any() or (bound == -absent).any():
        raise ValueError(f"{name} has NaN or the wrong infinity; allowed: numbers or {absent}")
    return np.broadcast_to(bound, (n,)).copy()


def _require_feasible(rules: LinearConstraints) -> None:
    """Refuse an empty set, naming the rows of a proof that it is empty."""
    p, q, n = len(rules.b_eq), len(rules.b_ub), rules.n
    if not p + q:
        return
    # Every row may be broken at a price: the multipliers of the cheapest way are Farkas' proof.
    scale = np.linalg.norm(np.vstack([rules.A_eq, rules.A_ub]), axis=1)
    scale[scale == 0] = 1.0
    equal, below = rules.A_eq / scale[:p, None], rules.A_ub / scale[p:, None]
    found = linprog(
        np.concatenate([np.zeros(n), np.ones(2 * p + q)]),
        A_eq=np.hstack([equal, np.eye(p), -np.eye(p), np.zeros((p, q))]) if p else None,
        b_eq=rules.b_eq / scale[:p] if p else None,
        A_ub=np.hstack([below, np.zeros((q, 2 * p)), -np.eye(q)]) if q else None,
        b_ub=rules.b_ub / scale[p:] if q else None,
        bounds=[*zip(rules.lower, rules.upper, strict=True), *[(0, None)] * (2 * p + q)],
        method="highs",
    )
    if found.status != 0:
        raise ValueError(f"the rules could not be checked: {found.message}")
    size = 1.0 + max(np.abs(rules.b_eq / scale[:p]).max(initial=0), 0.0)
    if found.fun <= _FEASIBILITY_TOL * size:
        return
    guilty = []
    if p:
        guilty += [f"A_eq[{k}]" for k in np.flatnonzero(np.abs(found.eqlin.marginals) > 1e-9)]
    if q:
        guilty += [f"A_ub[{k}]" for k in np.flatnonzero(np.abs(found.ineqlin.marginals) > 1e-9)]
    pushed = np.abs(found.lower.marginals[:n]) > 1e-9
    guilty += [f"lower[{i}]" for i in np.flatnonzero(pushed & np.isfinite(rules.lower))]
    pushed = np.abs(found.upper.marginals[:n]) > 1e-9
    guilty += [f"upper[{i}]" for i in np.flatnonzero(pushed & np.isfinite(rules.upper))]
    listed = ", ".join(guilty[:12]) + (f" and {len(guilty) - 12} more" if len(guilty) > 12 else "")
    raise ValueError(f"no point satisfies the rules; these contradict each other: {listed}")


def _affine(expression: Any, variable: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Rows and offset of an affine cvxpy expression, by its own derivative."""
    before = variable.value
    variable.save_value(np.zeros(variable.shape))
    offset = np.asarray(expression.value, dtype=np.float64).ravel(order="F")
    gradient = expression.grad[variable]
    variable.save_value(before)
    dense = _dense(gradient) if sparse.issparse(gradient) else np.asarray(gradient, dtype=float)
    return dense.reshape(variable.size, offset.size).T, offset


def _stack(
    blocks: list[tuple[NDArray[np.float64], NDArray[np.float64]]],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return np.vstack([rows for rows, _ in blocks]), np.concatenate([right for _, right in blocks])


def _dense(matrix: Any) -> NDArray[np.float64]:
    return np.asarray(matrix.toarray(), dtype=np.float64)
