"""What users would report, and what that does to welfare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import clone

from .audit import outcome_of
from .checks import check_amounts
from .losses import Floats

STRATEGIES = ("truthful", "cap", "best_response")


@dataclass(frozen=True)
class BiddingOutcome:
    """Reports and what came of them.

    Parameters
    ----------
    reports
        (m,) what each user reported.
    mechanism
        The mechanism fitted on the reports.
    welfare
        The share of the true value that goes to users classified correctly.
    utilities
        (m,) true value if served, minus payment.
    """

    reports: Floats
    mechanism: Any
    welfare: float
    utilities: Floats


def simulate_bidding(
    mechanism: Any,
    X: Any,
    y: ArrayLike,
    values: ArrayLike,
    strategy: Literal["truthful", "cap", "best_response"] = "truthful",
    *,
    cap: float | None = None,
    grid: Sequence[float] | None = None,
    rounds: int = 3,
) -> BiddingOutcome:
    """Hold a mechanism on what its users choose to report.

    Without prices it never hurts to report the cap, whereupon all weights are equal: the paper's
    motivation for charging at all.

    Parameters
    ----------
    mechanism
        As in `audit_truthfulness`.
    X, y
        Features and labels of the users.
    values : array-like (m,)
        True values.
    strategy
        `"truthful"`; `"cap"`: everyone reports `cap`; `"best_response"`: starting from the truth,
        users in turn choose what pays best from `grid`, the truth and the cap, until nobody wants
        to change (at most `rounds` times round; one fit per user and report, so for small m).
        Among reports that pay the same, a user keeps the truth with prices and takes the cap
        without.
    cap
        The largest report allowed; the largest value if None.
    grid
        Reports to consider besides.
    rounds
        How often everyone may respond.

    Examples
    --------
    >>> from mechanism_design.welfare_auction import AccuracyAuction
    >>> X, y, values = [[1.0], [1.0], [0.5]], [1, -1, 1], [3.0, 2.0, 1.0]
    >>> simulate_bidding(AccuracyAuction(payments="none"), X, y, values, "cap").reports.tolist()
    [3.0, 3.0, 3.0]
    """
    worth = check_amounts(values, len(np.asarray(y)), "values", rows=X)
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy is {strategy!r}; allowed: one of {STRATEGIES}")
    if not worth.any():
        raise ValueError("values are all 0; allowed: at least one positive value")
    top = float(worth.max()) if cap is None else float(cap)
    if not np.isfinite(top) or top < worth.max():
        raise ValueError(f"cap is {cap!r}; allowed: at least the largest value, {worth.max():g}")
    reports = worth.copy()
    if strategy == "cap":
        reports[:] = top
    elif strategy == "best_response":
        reports = _respond(mechanism, X, y, worth, top, list(grid or ()), rounds)
    fitted = clone(mechanism).fit(X, y, reports)
    served = fitted.allocation_
    return BiddingOutcome(
        reports=reports,
        mechanism=fitted,
        welfare=float(worth @ served / worth.sum()),
        utilities=worth * served - fitted.payments_,
    )


def _respond(
    mechanism: Any, X: Any, y: ArrayLike, worth: Floats, top: float, grid: list[float], rounds: int
) -> Floats:
    reports = worth.copy()
    free = getattr(mechanism, "payments", None) == "none"
    for _ in range(rounds):
        changed = False
        for user in range(len(worth)):
            favourite = top if free else worth[user]
            best, gained = reports[user], -np.inf
            for report in dict.fromkeys([favourite, worth[user], *grid, top]):
                bids = reports.copy()
                bids[user] = report
                if not bids.any():
                    continue
                served, payment = outcome_of(mechanism, X, y, bids, user)
                utility = worth[user] * served - payment
                if utility > gained + 1e-9:
                    best, gained = report, utility
            if best != reports[user]:
                reports[user], changed = best, True
        if not changed:
            break
    return reports
