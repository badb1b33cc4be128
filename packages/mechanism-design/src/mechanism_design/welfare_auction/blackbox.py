"""The auction around any classifier that takes sample weights, priced by bisection.

Critical bids are truthful only where a user's own bid never turns right into wrong. That holds for
exact minimisers of a margin loss and fails for trees, early stopping and tuned models: audit it
with `audit_monotone` before charging anybody.
"""

from __future__ import annotations

from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils import get_tags
from sklearn.utils.validation import (
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    has_fit_parameter,
)

from .checks import check_amounts, check_bids
from .losses import Floats


class BlackBoxAuction(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Prices by refits around an estimator with `sample_weight`.

    Parameters
    ----------
    estimator : classifier
        Its `fit` must take `sample_weight` and be deterministic; a `random_state` of None is
        replaced by `random_state`.
    payments : {"bisect", "none"}
        One refit a served user, and about `log2(bid / width)` more for those who pay.
    width : float
        Where bisection stops.
    random_state : int
        For estimators that have one.

    Attributes
    ----------
    estimator_ : classifier
        Fitted on the bids.
    allocation_, payments_, status_, bids_, welfare_, revenue_, n_payers_, classes_
        As in `AccuracyAuction`.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> X = np.array([[1.0], [1.0], [0.5]])
    >>> auction = BlackBoxAuction(LogisticRegression(fit_intercept=False, C=1 / 6, tol=1e-10))
    >>> auction.fit(X, [1, 0, 1], bids=[3.0, 2.0, 1.0]).payments_.round(4).tolist()
    [1.5, 0.0, 0.0]
    """

    def __init__(
        self,
        estimator: Any,
        payments: Literal["bisect", "none"] = "bisect",
        width: float = 1e-6,
        random_state: int = 0,
    ) -> None:
        self.estimator = estimator
        self.payments = payments
        self.width = width
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = get_tags(self.estimator)
        tags.input_tags = inner.input_tags
        tags.classifier_tags = inner.classifier_tags
        return tags

    def _fitted(self, X: Any, y: NDArray[Any], bids: Floats) -> Any:
        model = clone(self.estimator)
        if model.get_params().get("random_state", 0) is None:
            model.set_params(random_state=self.random_state)
        return model.fit(X, y, sample_weight=bids)

    def fit(self, X: Any, y: ArrayLike, bids: ArrayLike | None = None) -> Self:
        """Hold the auction among the training users.

        Parameters
        ----------
        X : array-like (m, d)
            Features, passed to the estimator as they are.
        y : array-like (m,)
            Labels.
        bids : array-like (m,), optional
            Reported values; without any, everyone bids 1.

        Returns
        -------
        self
        """
        if self.payments not in ("bisect", "none"):
            raise ValueError(f"payments is {self.payments!r}; allowed: 'bisect' or 'none'")
        if not self.width > 0:
            raise ValueError(f"width is {self.width!r}; allowed: a positive number")
        if not has_fit_parameter(self.estimator, "sample_weight"):
            raise TypeError(
                f"estimator is {self.estimator!r}, whose fit takes no sample_weight; allowed: one "
                "that does"
            )
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None")
        labels = column_or_1d(y, warn=True)
        check_consistent_length(X, labels)
        self.bids_ = check_bids(bids, len(labels), rows=X)
        self.estimator_ = self._fitted(X, labels, self.bids_)
        self.classes_ = np.unique(labels)
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))
        self.allocation_ = np.asarray(self.estimator_.predict(X)) == labels
        self.payments_ = np.zeros(len(labels))
        if self.payments == "bisect":
            for user in np.flatnonzero(self.allocation_ & (self.bids_ > 0)):
                self.payments_[user] = self._price(X, labels, int(user))
        self.status_ = np.where(
            ~self.allocation_, "hopeless", np.where(self.payments_ > 0, "pivotal", "easy")
        )
        self.welfare_ = float(self.bids_ @ self.allocation_)
        self.revenue_ = float(self.payments_.sum())
        self.n_payers_ = int((self.payments_ > 0).sum())
        return self

    def _price(self, X: Any, labels: NDArray[Any], user: int) -> float:
        def right(bid: float) -> bool:
            bids = self.bids_.copy()
            bids[user] = bid
            return bool(np.asarray(self._fitted(X, labels, bids).predict(X))[user] == labels[user])

        if right(0.0):
            return 0.0
        low, high = 0.0, float(self.bids_[user])
        while high - low > self.width:
            middle = 0.5 * (low + high)
            low, high = (low, middle) if right(middle) else (middle, high)
        return high

    def predict(self, X: Any) -> NDArray[Any]:
        """The label (n,) of each row."""
        check_is_fitted(self)
        return np.asarray(self.estimator_.predict(X))

    def utilities(self, values: ArrayLike) -> Floats:
        """What each training user gains (m,): value if served, minus payment."""
        check_is_fitted(self)
        worth = check_amounts(values, len(self.bids_), "values")
        return np.asarray(worth * self.allocation_ - self.payments_)
