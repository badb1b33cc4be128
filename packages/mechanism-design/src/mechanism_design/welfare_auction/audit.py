"""Does a mechanism keep its promise? Lies that pay, and allocations that fall as bids rise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from sklearn.base import clone

from .checks import check_amounts
from .losses import Floats

# Multiples of the true value, then amounts.
MULTIPLES = (0.0, 0.5, 0.9, 1.1, 2.0)


class TruthfulnessAudit(NamedTuple):
    """Every deviation tried, and the most that one of them gained (0 if none did)."""

    table: pd.DataFrame
    max_gain: float


class MonotonicityAudit(NamedTuple):
    """Violations (user, low bid, high bid), how many, and how many pairs of bids were compared."""

    table: pd.DataFrame
    violations: int
    comparisons: int


def _users(
    count: int, n_users: int | None, seed: int | np.random.Generator
) -> np.ndarray[Any, Any]:
    if n_users is None or n_users >= count:
        return np.arange(count)
    if n_users < 1:
        raise ValueError(f"n_users is {n_users!r}; allowed: a whole number >= 1, or None for all")
    return np.sort(np.random.default_rng(seed).choice(count, n_users, replace=False))


def outcome_of(mechanism: Any, X: Any, y: ArrayLike, bids: Floats, user: int) -> tuple[bool, float]:
    """Whether one user is served at these bids, and what it pays.

    Mechanisms that can price a single user (`critical_bid`) are not asked to price the others.
    """
    fresh = clone(mechanism)
    alone = getattr(fresh, "payments", None) in ("exact", "bisect") and hasattr(
        fresh, "critical_bid"
    )
    if alone:
        fresh.set_params(payments="none")
    fresh.fit(X, y, bids)
    served = bool(fresh.allocation_[user])
    if not alone:
        return served, float(fresh.payments_[user])
    return served, fresh.critical_bid(int(user)) if served else 0.0


def audit_truthfulness(
    mechanism: Any,
    X: Any,
    y: ArrayLike,
    values: ArrayLike,
    n_users: int | None = None,
    reports: Sequence[float] | None = None,
    seed: int | np.random.Generator = 0,
) -> TruthfulnessAudit:
    """Let users misreport, one at a time, and see whether any of them gains.

    Parameters
    ----------
    mechanism
        An auction of this package, or anything with `fit(X, y, bids)`, `allocation_` and
        `payments_` that `sklearn.base.clone` can copy. It must not draw at random.
    X, y
        Features and labels of the users.
    values : array-like (m,)
        Their true values; the others report theirs.
    n_users
        How many users to audit, drawn at random; all if None.
    reports
        The amounts to report. If None, `MULTIPLES` of the own value and the largest value.
    seed
        Draws the users.

    Returns
    -------
    TruthfulnessAudit
        A table with columns `user`, `value`, `report`, `served`, `payment`, `utility`, `gain` over
        the truth, and the largest gain.

    Examples
    --------
    >>> from mechanism_design.welfare_auction import AccuracyAuction
    >>> X, y = [[1.0], [1.0], [0.5]], [1, -1, 1]
    >>> audit_truthfulness(AccuracyAuction(), X, y, [3.0, 2.0, 1.0]).max_gain < 1e-9
    True
    """
    rows = len(np.asarray(y))
    worth = check_amounts(values, rows, "values", rows=X)
    top = float(worth.max())
    lines = []
    for user in _users(rows, n_users, seed):
        served, payment = outcome_of(mechanism, X, y, worth, user)
        truthful = worth[user] * served - payment
        wanted = [m * worth[user] for m in MULTIPLES] + [top] if reports is None else list(reports)
        for report in wanted:
            bids = worth.copy()
            bids[user] = report
            if not bids.any():
                continue
            served, payment = outcome_of(mechanism, X, y, bids, user)
            utility = worth[user] * served - payment
            lines.append(
                (
                    int(user),
                    worth[user],
                    float(report),
                    served,
                    payment,
                    utility,
                    utility - truthful,
                )
            )
    table = pd.DataFrame(
        lines, columns=["user", "value", "report", "served", "payment", "utility", "gain"]
    )
    return TruthfulnessAudit(table, float(max(0.0, table["gain"].max())) if lines else 0.0)


def audit_monotone(
    mechanism: Any,
    X: Any,
    y: ArrayLike,
    bids: ArrayLike,
    n_users: int | None = None,
    grid: Sequence[float] | None = None,
    seed: int | np.random.Generator = 0,
) -> MonotonicityAudit:
    """Raise one user's bid step by step and count where it goes from served to not served.

    A single violation means that critical bids are no truthful prices for this mechanism.

    Parameters
    ----------
    mechanism, X, y, n_users, seed
        As in `audit_truthfulness`; prices are not asked for.
    bids : array-like (m,)
        The others' bids.
    grid
        Increasing bids to try; if None, ten from 0 to twice the largest bid.

    Examples
    --------
    >>> from mechanism_design.welfare_auction import AccuracyAuction
    >>> audit_monotone(AccuracyAuction(), [[1.0], [1.0], [0.5]], [1, -1, 1], [3, 2, 1]).violations
    0
    """
    rows = len(np.asarray(y))
    base = check_amounts(bids, rows, "bids", rows=X)
    tried = np.linspace(0, 2 * base.max(), 10) if grid is None else np.asarray(grid, dtype=float)
    if (np.diff(tried) <= 0).any():
        raise ValueError("grid is not increasing; allowed: strictly increasing bids")
    silent = clone(mechanism)
    if "payments" in silent.get_params():
        silent.set_params(payments="none")
    found, comparisons = [], 0
    for user in _users(rows, n_users, seed):
        before: tuple[float, bool] | None = None
        for bid in tried:
            changed = base.copy()
            changed[user] = bid
            if not changed.any():
                continue
            served = bool(clone(silent).fit(X, y, changed).allocation_[user])
            if before is not None:
                comparisons += 1
                if before[1] and not served:
                    found.append((int(user), before[0], float(bid)))
            before = (float(bid), served)
    table = pd.DataFrame(found, columns=["user", "low", "high"])
    return MonotonicityAudit(table, len(found), comparisons)
