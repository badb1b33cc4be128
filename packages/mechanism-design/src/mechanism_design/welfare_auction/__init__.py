"""Accuracy auctions: be right about the users who value it most, and charge so that nobody lies.

A platform trains a classifier on users who gain when their own label is predicted correctly. It
cannot be right about all of them. An accuracy auction weighs each user by its reported value and
charges the critical bid, so reporting the true value is a dominant strategy - and almost everybody
served pays nothing.

Sadi, Saig and Rosenfeld, "Welfare-Optimal Classification with Accuracy Auctions", ICML 2026
(arXiv 2606.02435).

Examples
--------
>>> X, y, values = make_gaussian_users(2000, d=4, values="gamma", seed=0)
>>> auction = AccuracyAuction(loss="hinge", lam=0.1).fit(X, y, bids=values)
>>> payers = auction.report().query("payment > 0")
>>> bool((payers.payment <= payers.bid).all() and len(payers) < 40)
True
>>> audit_truthfulness(auction, X, y, values, n_users=5).max_gain < 1e-9
True
"""

from .auction import AccuracyAuction, PayerForecast
from .audit import audit_monotone, audit_truthfulness
from .bidding import BiddingOutcome, simulate_bidding
from .blackbox import BlackBoxAuction
from .data import (
    Users,
    load_acs_income,
    load_adult,
    make_gaussian_users,
    values_from_hours,
    values_from_labels,
)
from .finite import FiniteClassAuction, clarke_payments
from .forecast import gaussian_payer_limit
from .frontier import welfare_accuracy_frontier
from .kernel import KernelAccuracyAuction
from .knn import KNNAccuracyAuction

__all__ = [
    "AccuracyAuction",
    "BiddingOutcome",
    "BlackBoxAuction",
    "FiniteClassAuction",
    "KNNAccuracyAuction",
    "KernelAccuracyAuction",
    "PayerForecast",
    "Users",
    "audit_monotone",
    "audit_truthfulness",
    "clarke_payments",
    "gaussian_payer_limit",
    "load_acs_income",
    "load_adult",
    "make_gaussian_users",
    "simulate_bidding",
    "values_from_hours",
    "values_from_labels",
    "welfare_accuracy_frontier",
]
