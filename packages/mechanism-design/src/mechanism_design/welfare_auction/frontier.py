"""From accuracy to welfare: what weighting users by value buys and costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from sklearn.base import clone

from .auction import AccuracyAuction
from .checks import check_amounts


def welfare_accuracy_frontier(
    X: Any,
    y: ArrayLike,
    values: ArrayLike,
    alphas: Sequence[float] | int = 20,
    *,
    test: tuple[Any, ArrayLike, ArrayLike] | None = None,
    mechanism: AccuracyAuction | None = None,
) -> pd.DataFrame:
    """Train on the weights `(1 - alpha) + alpha v` and measure welfare and accuracy.

    Parameters
    ----------
    X, y, values
        Training users: features (m, d), labels (m,), true values (m,).
    alphas
        Weights between 0 (accuracy) and 1 (welfare), or how many evenly spaced ones.
    test
        Held-out users as `(X, y, values)`; the training users if None.
    mechanism
        The classifier; its prices are not computed. Logistic loss with `C=1` if None.

    Returns
    -------
    DataFrame
        A row for each alpha: `alpha`, `welfare` (share of the true value that is served),
        `accuracy`, and both relative to `alpha = 0` as `welfare_change`, `accuracy_change`.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 2))
    >>> y = X[:, 0] + rng.normal(size=200) > 0
    >>> frontier = welfare_accuracy_frontier(X, y, np.where(y, 9.0, 1.0), alphas=3)
    >>> bool(frontier.welfare.iloc[-1] >= frontier.welfare.iloc[0])
    True
    """
    worth = check_amounts(values, len(np.asarray(y)), "values", rows=X)
    grid = np.linspace(0, 1, alphas) if isinstance(alphas, int) else np.asarray(alphas, dtype=float)
    if len(grid) == 0 or not ((grid >= 0) & (grid <= 1)).all():
        raise ValueError(f"alphas are {alphas!r}; allowed: numbers in [0, 1], at least one")
    base = AccuracyAuction(loss="logistic", C=1.0) if mechanism is None else mechanism
    held_X, held_y, held_values = (X, y, worth) if test is None else test
    held_labels = np.asarray(held_y)

    def measure(alpha: float) -> tuple[float, float]:
        model = clone(base).set_params(payments="none", value_cap=None)
        model.fit(X, y, (1 - alpha) + alpha * worth)
        return (
            model.welfare(held_X, held_labels, held_values),
            float(np.mean(model.predict(held_X) == held_labels)),
        )

    found = [measure(float(alpha)) for alpha in grid]
    start = found[int(np.argmin(grid))] if (grid == 0).any() else measure(0.0)
    table = pd.DataFrame(found, columns=["welfare", "accuracy"])
    table.insert(0, "alpha", grid)
    table["welfare_change"] = table["welfare"] / start[0] - 1
    table["accuracy_change"] = table["accuracy"] / start[1] - 1
    return table
