"""The accuracy auction over linear classifiers."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import linalg
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from .checks import check_amounts, check_bids, signed_labels, signed_rows
from .constrained import constrained_prices
from .losses import LOSSES, SLOPE_AT_ZERO, Floats, Loss, loss_curvature
from .pricing import PAYMENTS, Payments, Problem, critical_bids, hold_auction
from .solvers import gram, is_sparse, row_norms


class PayerForecast(NamedTuple):
    """Expected number of paying users and expected revenue."""

    payers: float
    revenue: float


class AccuracyAuction(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    r"""A linear classifier that is right about the users who value it most, and what they pay.

    Bids weigh a regularised risk; the users classified correctly are served, and each pays the
    smallest bid at which it would still be served (its critical bid, mostly 0):

    .. math:: \hat w = \arg\min_w \frac1m \sum_j b_j\,\ell(y_j w^\top x_j)
              + \lambda \lVert w \rVert^2, \qquad
              p_i = \inf\{z \in [0, b_i] : i \text{ is served at } (z, b_{-i})\}.

    Bidding one's true value is then a dominant strategy, and no user pays more than its bid.

    Parameters
    ----------
    loss : {"hinge", "logistic", "squared_hinge"}
        The margin loss.
    lam : float
        Regularisation of the averaged loss. It must not depend on the bids.
    C : float, optional
        Instead of `lam`, the factor of the summed loss as in `LinearSVC`: `C = 1 / (2 lam m)`.
    fit_intercept : bool
        Append the constant feature 1, penalised like the others.
    payments : {"exact", "bisect", "sampled", "one_shot", "none"}
        `"exact"`: critical bids, to about 1e-9. `"bisect"`: the same by refits. `"sampled"`:
        unbiased random prices, `n_draws` refits a candidate. `"one_shot"`: one fit on resampled
        bids, truthful in expectation only. `"none"`: no prices, and so no truthfulness.
    n_draws : int
        Refits averaged by a sampled price.
    mu : float
        In (0, 1): the chance that a one-shot auction resamples a bid. Larger means less variable
        payments and less welfare.
    value_cap : float, optional
        The largest bid allowed, the `V` of the paper.
    tol : float
        Where bisection stops, relative to the bid. A margin below `tol / 100`, relative to
        `||w|| ||x||`, counts as 0 and so as wrong.
    max_iter : int
        The most Newton steps of a fit.
    random_state : int, Generator or None
        The randomness of sampled and one-shot prices.
    n_jobs : int, optional
        Threads over the users to price.

    Attributes
    ----------
    coef_, intercept_ : ndarray (1, d) and (1,)
        The classifier.
    classes_ : ndarray (2,)
        The labels.
    allocation_ : ndarray of bool (m,)
        Who is served, that is classified correctly.
    payments_ : ndarray (m,)
        Prices in units of the bids; a draw for `"sampled"` and `"one_shot"`, which may then hold
        rebates below 0.
    status_ : ndarray of str (m,)
        `"easy"` (served even at bid 0), `"pivotal"` (served, but not at bid 0), `"hopeless"` (not
        served), or `"candidate"` (may be pivotal; its critical bid was not computed).
    margins_ : ndarray (m,)
        Signed scores.
    stability_band_ : ndarray (m,)
        The largest margin at which a user could still pay.
    price_route_ : ndarray of str (m,)
        How each price was found.
    certified_ : ndarray of bool (m,)
        Whether the margin's sign is beyond the solver's error and the price proved. A tie (margin
        0, as integer features give) is not certified.
    duality_gap_ : float
        In the scaling `0.5 ||w||^2`; scores are exact to `||x|| sqrt(2 gap)`.
    welfare_, revenue_, n_payers_ : float, float, int
        Sum of the bids of the served users, sum of the payments, number of positive payments.
    resampled_ : ndarray of bool (m,)
        Whose bids a one-shot auction resampled.
    bids_, n_iter_, n_features_in_
        The bids, Newton steps, number of features.

    Notes
    -----
    Source: sections 2 to 4 and equation 7 of Sadi, Saig and Rosenfeld, "Welfare-Optimal
    Classification with Accuracy Auctions" (ICML 2026). Theorem 1 asks for the exact minimiser, so
    `lam`, features and scaling must not be chosen with the bids. Misreported features or labels,
    collusion and users who come or go are not covered.

    Examples
    --------
    >>> X = np.array([[1.0], [1.0], [0.5]])
    >>> auction = AccuracyAuction(loss="hinge", lam=1.0, fit_intercept=False)
    >>> auction.fit(X, [1, -1, 1], bids=[3.0, 2.0, 1.0]).payments_.round(9).tolist()
    [1.5, 0.0, 0.0]
    """

    def __init__(
        self,
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
    ) -> None:
        self.loss = loss
        self.lam = lam
        self.C = C
        self.fit_intercept = fit_intercept
        self.payments = payments
        self.n_draws = n_draws
        self.mu = mu
        self.value_cap = value_cap
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state
        self.n_jobs = n_jobs

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.classifier_tags.multi_class = False
        return tags

    def _check_parameters(self) -> None:
        if self.loss not in LOSSES:
            raise ValueError(f"loss is {self.loss!r}; allowed: one of {LOSSES}")
        if self.payments not in PAYMENTS:
            raise ValueError(f"payments is {self.payments!r}; allowed: one of {PAYMENTS}")
        _check_positive(self.lam, "lam", "a positive number: prices need strong convexity")
        if self.C is not None:
            _check_positive(self.C, "C", "a positive number, or None to use lam")
        if self.value_cap is not None:
            _check_positive(self.value_cap, "value_cap", "a positive number or None")
        _check_positive(self.tol, "tol", "a small positive number")
        if not 0 < self.mu < 1:
            raise ValueError(f"mu is {self.mu!r}; allowed: a chance strictly between 0 and 1")
        for name in ("n_draws", "max_iter"):
            count = getattr(self, name)
            if not isinstance(count, int | np.integer) or count < 1:
                raise ValueError(f"{name} is {count!r}; allowed: a whole number >= 1")
        if self.n_jobs is not None and (
            not isinstance(self.n_jobs, int | np.integer) or self.n_jobs == 0
        ):
            raise ValueError(f"n_jobs is {self.n_jobs!r}; allowed: a whole number but 0, or None")

    def _signed(self, X: Any, signs: Floats) -> tuple[Any, Floats]:
        """Signed rows of the training users and their norms."""
        rows = signed_rows(X, signs, self.fit_intercept)
        return rows, row_norms(rows)

    def _keep_classifier(self, X: Any, signs: Floats) -> None:
        weights = self._result.fit.weights
        last = len(weights) - int(self.fit_intercept)
        self.coef_ = weights[None, :last].copy()
        self.intercept_ = weights[last:].copy() if self.fit_intercept else np.zeros(1)

    def fit(
        self,
        X: Any,
        y: ArrayLike,
        bids: ArrayLike | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Self:
        """Hold the auction among the training users.

        Parameters
        ----------
        X : array-like, DataFrame or CSR matrix (m, d)
            Features, finite. CSR is not densified; its hinge prices take the constrained fit.
        y : array-like (m,)
            Verified labels of two classes.
        bids : array-like (m,), optional
            Reported values, in `[0, value_cap]`. Without any, everyone bids 1 and this is accuracy
            training. Bids are not sample weights: they are what a user pays up to.
        progress : callable, optional
            Called as `progress(priced, to_price)`.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If a bid, label, feature or parameter is not allowed; the first bad row is named.
        NotImplementedError
            If `y` has more than two classes.
        """
        self._check_parameters()
        given = X
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64)
        check_classification_targets(y)
        self.bids_ = check_bids(bids, X.shape[0], cap=self.value_cap, rows=given)
        self.classes_, signs = signed_labels(y)
        rows, norms = self._signed(X, signs)
        self.scale_ = float(self.C) if self.C is not None else 1.0 / (2.0 * self.lam * X.shape[0])
        self._problem = Problem(
            loss=self.loss,
            rows=rows,
            norms=norms,
            bids=self.bids_,
            scale=self.scale_,
            tie=1e-2 * self.tol,
            max_iter=self.max_iter,
        )
        result = hold_auction(
            self._problem,
            self.payments,
            n_draws=self.n_draws,
            mu=self.mu,
            width=self.tol,
            generator=np.random.default_rng(self.random_state),
            n_jobs=self.n_jobs,
            progress=progress,
        )
        if not result.fit.converged:
            warnings.warn(
                f"the {self.loss} fit stopped after {result.fit.iterations} Newton steps with a "
                f"duality gap of {result.fit.gap:.2g}; prices near the boundary are not certified "
                "(certified_); raise max_iter",
                ConvergenceWarning,
                stacklevel=2,
            )
        self._result = result
        self._signs = signs
        self._index = given.index if isinstance(given, pd.DataFrame) else pd.RangeIndex(len(signs))
        self._keep_classifier(X, signs)
        self.allocation_, self.payments_ = result.served, result.payments
        self.status_, self.price_route_ = result.status, result.route
        self.certified_, self.stability_band_ = result.certified, result.band
        self.margins_, self.duality_gap_ = result.fit.margins, result.fit.gap
        self.n_iter_ = max(1, result.fit.iterations)
        if result.resampled is not None:
            self.resampled_ = result.resampled
        self.welfare_ = float(self.bids_ @ result.served)
        self.revenue_ = float(result.payments.sum())
        self.n_payers_ = int((result.payments > 0).sum())
        return self

    def decision_function(self, X: Any) -> Floats:
        """Signed scores (n,); positive means `classes_[1]`."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        return np.asarray(np.asarray(X @ self.coef_[0]).ravel() + self.intercept_[0])

    def predict(self, X: Any) -> NDArray[Any]:
        """The label (n,) of each row."""
        scores = self.decision_function(X)
        labels: NDArray[Any] = self.classes_[(scores > 0).astype(int)]
        return labels

    def welfare(self, X: Any, y: ArrayLike, values: ArrayLike) -> float:
        """The share of the users' total value that goes to those classified correctly.

        Parameters
        ----------
        X : array-like (n, d)
            Features of any users.
        y : array-like (n,)
            Their labels.
        values : array-like (n,)
            Their true values.
        """
        right = self.predict(X) == np.asarray(y)
        worth = check_amounts(values, len(right), "values", rows=X)
        if not worth.any():
            raise ValueError("values are all 0; allowed: at least one positive value")
        return float(worth @ right / worth.sum())

    def utilities(self, values: ArrayLike) -> Floats:
        """What each training user gains (m,): value if served, minus payment."""
        check_is_fitted(self)
        worth = check_amounts(values, len(self.bids_), "values")
        return np.asarray(worth * self.allocation_ - self.payments_)

    def report(self) -> pd.DataFrame:
        """One line a training user, indexed like `X`.

        Returns
        -------
        DataFrame
            Columns `bid`, `label`, `predicted`, `correct`, `status`, `margin`, `band`, `payment`,
            `utility_if_truthful`, `route`, `certified`; the index is named `user`.
        """
        check_is_fitted(self)
        positive = (self._signs > 0).astype(int)
        return pd.DataFrame(
            {
                "bid": self.bids_,
                "label": self.classes_[positive],
                "predicted": self.classes_[np.where(self.allocation_, positive, 1 - positive)],
                "correct": self.allocation_,
                "status": self.status_,
                "margin": self.margins_,
                "band": self.stability_band_,
                "payment": self.payments_,
                "utility_if_truthful": self.utilities(self.bids_),
                "route": self.price_route_,
                "certified": self.certified_,
            },
            index=self._index.rename("user"),
        )

    def critical_bid(self, i: int) -> float:
        """The smallest bid at which training user `i` (a row number) is served.

        A user who is not served gets the higher bid that would have served it, infinity if its
        features are all 0. For a one-shot auction this is the critical bid of the auction without
        resampling.
        """
        check_is_fitted(self)
        count = len(self.bids_)
        if not isinstance(i, int | np.integer) or not -count <= i < count:
            raise ValueError(f"i is {i!r}; allowed: a row number below {count}")
        i = int(i) % count
        problem, fit = self._problem, self._result.fit
        if self.payments == "one_shot":
            fit = problem.fit()
        floor = problem.floor(fit)[i]
        if fit.margins[i] > floor:
            # A bid of 0 has nothing to lower.
            if self.bids_[i] == 0:
                return 0.0
            prices, _, _ = critical_bids(problem, fit, np.array([i]), width=self.tol)
            return float(prices[0])
        prices, _ = constrained_prices(
            problem.loss,
            problem.rows,
            problem.norms,
            problem.bids,
            problem.scale,
            fit,
            np.array([i]),
        )
        return float(max(prices[0], self.bids_[i]))

    def forecast_payers(self) -> PayerForecast:
        r"""How many users would pay, and how much, in another sample of this population.

        The plug-in of the large-sample limit: own-margin effects
        :math:`v (-\ell'(0)) x^\top H^{-1} x` of the users near the boundary, with densities
        estimated by a Gaussian kernel. The limit does not depend on the number of users.
        """
        check_is_fitted(self)
        problem, fit = self._problem, self._result.fit
        if is_sparse(problem.rows):
            raise ValueError("the forecast factors a dense Hessian; allowed: dense X")
        margins, weight = fit.margins, problem.scale * problem.bids
        spread = float(np.std(margins)) or 1.0
        bandwidth = 0.5 * spread * len(margins) ** -0.2

        def density(center: float) -> Floats:
            return np.asarray(
                np.exp(-0.5 * ((margins - center) / bandwidth) ** 2)
                / (bandwidth * math.sqrt(2 * math.pi))
            )

        curvature = (
            density(1.0) if problem.loss == "hinge" else loss_curvature(problem.loss, margins)
        )
        hessian = gram(problem.rows, weight * curvature)
        hessian[np.diag_indices_from(hessian)] += 1.0
        lifted = linalg.solve(hessian, problem.rows.T, assume_a="pos")
        effect = weight * SLOPE_AT_ZERO[problem.loss] * np.einsum("ij,ji->i", problem.rows, lifted)
        at_boundary = density(0.0) * effect
        return PayerForecast(float(at_boundary.sum()), float(at_boundary @ problem.bids / 2))


def _check_positive(number: Any, name: str, allowed: str) -> None:
    if not isinstance(number, float | int | np.number) or not math.isfinite(number) or number <= 0:
        raise ValueError(f"{name} is {number!r}; allowed: {allowed}")
