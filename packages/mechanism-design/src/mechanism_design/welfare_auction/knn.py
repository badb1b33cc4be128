r"""The accuracy auction over nearest-neighbour votes, in closed form.

A user is one of its own `k` neighbours. With :math:`S_i` the bid-weighted vote of the `k - 1`
nearest others, it is served iff :math:`y_i (S_i + y_i b_i) > 0`, and pays
:math:`\max(0, -y_i S_i)` then. Unlike with a regularised linear class, the number of payers grows
with the number of users wherever labels are noisy.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.neighbors import NearestNeighbors
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from .checks import check_amounts, check_bids, signed_labels
from .losses import Floats


class KNNAccuracyAuction(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """The auction over `k`-nearest-neighbour votes weighted by bids.

    Parameters
    ----------
    k : int
        The neighbours that vote, the user itself among them.
    value_cap : float, optional
        The largest bid allowed.

    Attributes
    ----------
    allocation_, payments_, status_, bids_, welfare_, revenue_, n_payers_, classes_
        As in `AccuracyAuction`.

    Notes
    -----
    Source: Theorems 3 and 6. Distances must not depend on the bids.

    Examples
    --------
    >>> X = np.array([[0.0], [0.1], [5.0], [5.2]])
    >>> KNNAccuracyAuction(k=2).fit(X, [1, 0, 1, 1], bids=[3.0, 2.0, 1.0, 1.0]).payments_.tolist()
    [2.0, 0.0, 0.0, 0.0]
    """

    def __init__(self, k: int = 5, value_cap: float | None = None) -> None:
        self.k = k
        self.value_cap = value_cap

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def fit(self, X: Any, y: ArrayLike, bids: ArrayLike | None = None) -> Self:
        """Hold the auction among the training users.

        Parameters
        ----------
        X : array-like (m, d)
            Features.
        y : array-like (m,)
            Labels of two classes.
        bids : array-like (m,), optional
            Reported values; without any, everyone bids 1.

        Returns
        -------
        self
        """
        given = X
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        if not isinstance(self.k, int | np.integer) or not 1 <= self.k <= len(X):
            raise ValueError(
                f"k is {self.k!r}; allowed: a whole number from 1 to n_samples = {len(X)}"
            )
        self.bids_ = check_bids(bids, len(X), cap=self.value_cap, rows=given)
        self.classes_, signs = signed_labels(y)
        self._index = NearestNeighbors(n_neighbors=self.k).fit(X)
        others = np.zeros(len(X))
        self._votes = self.bids_ * signs
        if self.k > 1:
            near = self._index.kneighbors(n_neighbors=self.k - 1, return_distance=False)
            others = self._votes[near].sum(axis=1)
        against = -signs * others
        self.allocation_ = self.bids_ > against
        self.payments_ = np.where(self.allocation_, np.maximum(against, 0.0), 0.0)
        self.status_ = np.where(
            ~self.allocation_, "hopeless", np.where(self.payments_ > 0, "pivotal", "easy")
        )
        self.welfare_ = float(self.bids_ @ self.allocation_)
        self.revenue_ = float(self.payments_.sum())
        self.n_payers_ = int((self.payments_ > 0).sum())
        return self

    def decision_function(self, X: Any) -> Floats:
        """The bid-weighted vote (n,) of the `k` nearest training users."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        near = self._index.kneighbors(X, return_distance=False)
        votes: Floats = self._votes[near].sum(axis=1)
        return votes

    def predict(self, X: Any) -> NDArray[Any]:
        """The label (n,) of each row."""
        scores = self.decision_function(X)
        labels: NDArray[Any] = self.classes_[(scores > 0).astype(int)]
        return labels

    def utilities(self, values: ArrayLike) -> Floats:
        """What each training user gains (m,): value if served, minus payment."""
        check_is_fitted(self)
        worth = check_amounts(values, len(self.bids_), "values")
        return np.asarray(worth * self.allocation_ - self.payments_)
