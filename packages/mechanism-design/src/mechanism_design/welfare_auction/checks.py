"""What is refused before any work: bids, values and labels that make no auction."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import sparse

from .losses import Floats
from .solvers import Rows, is_sparse

# Of an amount: sums of squares of larger ones overflow.
LARGEST = 1e100


class MulticlassRefused(NotImplementedError, ValueError):
    """More than two classes: Theorem 1 covers one binary classifier only."""


def check_amounts(
    amounts: ArrayLike, count: int, name: str, *, cap: float | None = None, rows: Any = None
) -> Floats:
    """Bids or values as float64, one finite non-negative number a user.

    Parameters
    ----------
    amounts
        (count,) array-like.
    count
        How many users there are.
    name
        What to call the argument in an error.
    cap
        The largest amount allowed.
    rows
        The features; where these and the amounts are both pandas, their indexes must agree.

    Raises
    ------
    ValueError
        Naming the first row that is wrong.

    Examples
    --------
    >>> check_amounts([1, 2.5], 2, "bids").tolist()
    [1.0, 2.5]
    """
    if (
        isinstance(amounts, pd.Series)
        and isinstance(rows, pd.DataFrame)
        and len(amounts) == len(rows)
        and not amounts.index.equals(rows.index)
    ):
        raise ValueError(
            f"{name} and X are indexed differently; allowed: the same index in the same order "
            f"(or {name}.to_numpy() if the order is right)"
        )
    try:
        array = np.asarray(amounts, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} holds something that is no number: {error}") from None
    if array.shape != (count,):
        raise ValueError(f"{name} has shape {array.shape}; allowed: ({count},), one a user")
    top = LARGEST if cap is None else cap
    wrong = ~((array >= 0) & (array <= top))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueError(f"{name}[{row}] is {array[row]}; allowed: finite and in [0, {top:g}]")
    return array


def check_bids(
    bids: ArrayLike | None, count: int, *, cap: float | None = None, rows: Any = None
) -> Floats:
    """Bids as float64; without any, everyone bids 1.

    Raises
    ------
    ValueError
        If a bid is not allowed, or all are 0.
    """
    if bids is None:
        array = np.ones(count)
        if cap is not None and cap < 1:
            array *= cap
        return array
    array = check_amounts(bids, count, "bids", cap=cap, rows=rows)
    if not array.any():
        raise ValueError("bids are all 0; allowed: at least one positive bid")
    return array


def signed_labels(y: Any) -> tuple[np.ndarray[Any, np.dtype[Any]], Floats]:
    """The two classes in order, and +1 for the second and -1 for the first.

    Raises
    ------
    ValueError
        If there is one class only.
    MulticlassRefused
        If there are more than two.
    """
    classes, codes = np.unique(y, return_inverse=True)
    if len(classes) > 2:
        raise MulticlassRefused(
            "Only binary classification is supported. The type of the target is multiclass "
            f"({len(classes)} classes). One-vs-rest over several auctions is not covered by "
            "Theorem 1: a user would be served by one auction through its bid in another."
        )
    if len(classes) < 2:
        raise ValueError(f"y holds one class only, {classes[0]!r}; allowed: two classes")
    return classes, np.where(codes == 1, 1.0, -1.0)


def signed_rows(X: Any, signs: Floats, constant: bool) -> Any:
    """Rows `y_j x_j` as float64, with the constant feature 1 appended where wanted."""
    if is_sparse(X):
        if constant:
            X = sparse.hstack([X, sparse.csr_array(np.ones((X.shape[0], 1)))])
        signed: Rows = sparse.diags_array(signs) @ sparse.csr_array(X)
        return signed
    rows = np.empty((X.shape[0], X.shape[1] + int(constant)))
    np.multiply(X, signs[:, None], out=rows[:, : X.shape[1]])
    if constant:
        rows[:, -1] = signs
    return rows
