r"""The auction over a finite class: the welfare maximiser itself, at Clarke prices.

Over an enumerated class the allocation maximises :math:`\sum_i b_i 1\{h(x_i) = y_i\}` without a
surrogate. With :math:`M^1_i` and :math:`M^0_i` the best welfare of the others among the hypotheses
right and wrong about `i`, the critical bid is :math:`\max(0, M^0_i - M^1_i)`, and equals the
Clarke (VCG) payment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from .checks import check_amounts, check_bids
from .losses import Floats

Hypothesis = Callable[[Any], ArrayLike]


def clarke_payments(correct: NDArray[np.bool_], bids: Floats) -> Floats:
    """The Clarke payment (m,) of each user: the welfare that its presence costs the others.

    Parameters
    ----------
    correct
        (H, m) whether each hypothesis is right about each user.
    bids
        (m,) bids.

    Examples
    --------
    >>> clarke_payments(np.array([[True, False], [False, True]]), np.array([3.0, 2.0])).tolist()
    [2.0, 0.0]
    """
    worth = correct * bids
    totals = worth.sum(axis=1)
    chosen = int(np.argmax(totals))
    without = totals[:, None] - worth
    paid: Floats = without.max(axis=0) - without[chosen]
    return paid


class FiniteClassAuction(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """The welfare-maximising hypothesis of a finite class, and critical bids.

    Parameters
    ----------
    hypotheses : sequence of callables, optional
        Each maps features (n, d) to labels (n,).
    predictions : array-like (H, m), optional
        Instead, the labels that each hypothesis gives the training users; `predict` is then not
        available. Ties go to the hypothesis that comes first.

    Attributes
    ----------
    best_ : int
        The chosen hypothesis.
    allocation_, payments_, status_, bids_, welfare_, revenue_, n_payers_
        As in `AccuracyAuction`.

    Examples
    --------
    >>> auction = FiniteClassAuction(predictions=[[1, 1], [0, 0]])
    >>> auction.fit([[0.0], [0.0]], [1, 0], bids=[3.0, 2.0]).payments_.tolist()
    [2.0, 0.0]
    """

    def __init__(
        self,
        hypotheses: Sequence[Hypothesis] | None = None,
        predictions: ArrayLike | None = None,
    ) -> None:
        self.hypotheses = hypotheses
        self.predictions = predictions

    def fit(self, X: Any, y: ArrayLike, bids: ArrayLike | None = None) -> Self:
        """Hold the auction among the training users.

        Parameters
        ----------
        X : array-like (m, d)
            Features, passed to the hypotheses as they are.
        y : array-like (m,)
            Labels, of any number of classes.
        bids : array-like (m,), optional
            Reported values; without any, everyone bids 1.

        Returns
        -------
        self
        """
        labels = np.asarray(y)
        if labels.ndim != 1 or len(labels) == 0:
            raise ValueError(f"y has shape {labels.shape}; allowed: (m,) with at least one user")
        if (self.hypotheses is None) == (self.predictions is None):
            raise ValueError("give exactly one of hypotheses and predictions")
        if self.hypotheses is not None:
            table = np.stack([np.asarray(h(X)) for h in self.hypotheses])
        else:
            table = np.asarray(self.predictions)
        if table.ndim != 2 or table.shape[1] != len(labels) or len(table) == 0:
            raise ValueError(
                f"predictions have shape {table.shape}; allowed: (H, {len(labels)}) with H >= 1"
            )
        self.bids_ = check_bids(bids, len(labels), rows=X)
        self.classes_ = np.unique(labels)
        correct = table == labels
        totals = correct @ self.bids_
        self.best_ = int(np.argmax(totals))
        best_right = np.where(correct, totals[:, None], -np.inf).max(axis=0) - self.bids_
        best_wrong = np.where(correct, -np.inf, totals[:, None]).max(axis=0)
        self.allocation_ = correct[self.best_]
        with np.errstate(invalid="ignore"):
            price = np.maximum(best_wrong - best_right, 0.0)
        self.payments_ = np.where(self.allocation_, np.minimum(price, self.bids_), 0.0)
        self.status_ = np.where(
            ~self.allocation_, "hopeless", np.where(self.payments_ > 0, "pivotal", "easy")
        )
        self.welfare_ = float(totals[self.best_])
        self.revenue_ = float(self.payments_.sum())
        self.n_payers_ = int((self.payments_ > 0).sum())
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """The label (n,) that the chosen hypothesis gives each row."""
        check_is_fitted(self)
        if self.hypotheses is None:
            raise ValueError("predict needs the hypotheses; only predictions were given")
        return np.asarray(self.hypotheses[self.best_](X))

    def utilities(self, values: ArrayLike) -> Floats:
        """What each training user gains (m,): value if served, minus payment."""
        check_is_fitted(self)
        worth = check_amounts(values, len(self.bids_), "values")
        return np.asarray(worth * self.allocation_ - self.payments_)
