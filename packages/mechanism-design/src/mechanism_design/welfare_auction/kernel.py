r"""The accuracy auction over kernel classifiers.

A kernel auction is the linear auction on the rows of a factor of the Gram matrix,
:math:`K = F F^\top`, so screens, paths and certificates carry over with `K(x, x)` for `||x||^2`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.linalg import lapack
from sklearn.metrics.pairwise import pairwise_kernels
from sklearn.utils.validation import check_is_fitted, validate_data

from .auction import AccuracyAuction, _check_positive
from .losses import Floats, Loss
from .pricing import Payments
from .solvers import row_norms

KERNELS = ("linear", "poly", "rbf", "sigmoid", "laplacian", "cosine")


class KernelAccuracyAuction(AccuracyAuction):
    """The auction over a kernel's functions; see `AccuracyAuction` for what it returns.

    Parameters
    ----------
    kernel : {"rbf", "linear", "poly", "sigmoid", "laplacian", "cosine"}
        A positive semidefinite kernel of scikit-learn.
    gamma : float, optional
        Of the kernels that have it; `1 / d` if absent. It must not depend on the bids.
    degree, coef0 : float
        Of the polynomial and sigmoid kernels.
    fit_intercept : bool
        Add 1 to the kernel, a penalised constant.
    max_kernel_rows : int
        More users than this are refused: the Gram matrix is (m, m).
    loss, lam, C, payments, n_draws, mu, value_cap, tol, max_iter, random_state, n_jobs
        As in `AccuracyAuction`.

    Attributes
    ----------
    dual_coef_ : ndarray (n_support,)
        Coefficients of the support users.
    support_ : ndarray (n_support,)
        Their row numbers.

    Examples
    --------
    >>> X = np.array([[0.0, 0.0], [1.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    >>> auction = KernelAccuracyAuction(gamma=2.0, lam=0.01).fit(X, [0, 0, 1, 1], [1, 2, 1, 1])
    >>> auction.allocation_.tolist()
    [True, True, True, True]
    """

    def __init__(
        self,
        kernel: str = "rbf",
        gamma: float | None = None,
        degree: float = 3,
        coef0: float = 1.0,
        loss: Loss = "hinge",
        lam: float = 1.0,
        C: float | None = None,
        fit_intercept: bool = True,
        payments: Payments = "exact",
        n_draws: int = 1,
        mu: float = 0.5,
        value_cap: float | None = None,
        tol: float = 1e-9,
        max_iter: int = 200,
        random_state: int | np.random.Generator | None = None,
        n_jobs: int | None = None,
        max_kernel_rows: int = 20_000,
    ) -> None:
        super().__init__(
            loss=loss,
            lam=lam,
            C=C,
            fit_intercept=fit_intercept,
            payments=payments,
            n_draws=n_draws,
            mu=mu,
            value_cap=value_cap,
            tol=tol,
            max_iter=max_iter,
            random_state=random_state,
            n_jobs=n_jobs,
        )
        self.kernel = kernel
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.max_kernel_rows = max_kernel_rows

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.kernel not in KERNELS:
            raise ValueError(f"kernel is {self.kernel!r}; allowed: one of {KERNELS}")
        if self.gamma is not None:
            _check_positive(self.gamma, "gamma", "a positive number, or None for 1/d")

    def _gram(self, X: Any, Y: Any) -> Floats:
        matrix = pairwise_kernels(
            X,
            Y,
            metric=self.kernel,
            filter_params=True,
            gamma=self.gamma,
            degree=self.degree,
            coef0=self.coef0,
        )
        return np.asarray(matrix, dtype=np.float64) + float(self.fit_intercept)

    def _signed(self, X: Any, signs: Floats) -> tuple[Any, Floats]:
        count = X.shape[0]
        if count > self.max_kernel_rows:
            raise ValueError(
                f"X has {count} rows; allowed: max_kernel_rows = {self.max_kernel_rows} "
                f"(the Gram matrix takes {8 * count**2 / 2**30:.1f} GiB)"
            )
        rows = factor_gram(self._gram(X, X)) * signs[:, None]
        return rows, row_norms(rows)

    def _keep_classifier(self, X: Any, signs: Floats) -> None:
        duals = self.scale_ * self._result.fit.duals * signs
        self.support_ = np.flatnonzero(duals)
        self.dual_coef_ = duals[self.support_]
        self._support_rows = X[self.support_]

    def decision_function(self, X: Any) -> Floats:
        """Signed scores (n,); positive means `classes_[1]`."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        found = np.empty(X.shape[0])
        block = max(1, 2**24 // max(1, len(self.support_)))
        for first in range(0, X.shape[0], block):
            part = slice(first, first + block)
            found[part] = self._gram(X[part], self._support_rows) @ self.dual_coef_
        return found


def factor_gram(matrix: Floats) -> Floats:
    """Rows `F` with `F @ F.T` the Gram matrix, by pivoted Cholesky, no wider than its rank.

    Parameters
    ----------
    matrix
        (m, m) symmetric positive semidefinite.

    Returns
    -------
    ndarray (m, rank)

    Raises
    ------
    ValueError
        If the matrix is not positive semidefinite.

    Examples
    --------
    >>> factor_gram(np.ones((3, 3))).tolist()
    [[1.0], [1.0], [1.0]]
    """
    top = float(np.max(np.diag(matrix)))
    if top <= 0:
        raise ValueError("the kernel is 0 on every user; allowed: a positive semidefinite kernel")
    lower, pivots, rank, _ = lapack.dpstrf(matrix, lower=1, tol=1e-14 * top)
    factor = np.empty((len(matrix), rank))
    factor[pivots - 1] = np.tril(lower)[:, :rank]
    some = slice(None, None, max(1, len(matrix) // 500))
    off = float(np.abs(factor[some] @ factor.T - matrix[some]).max())
    if off > 1e-8 * top:
        raise ValueError(
            f"the kernel is not positive semidefinite here (off by {off:.2g}); allowed: kernel "
            "parameters that make it so"
        )
    return factor
