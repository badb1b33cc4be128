"""The scikit-learn side: its own checks, the report, and what is refused."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.utils.estimator_checks import parametrize_with_checks

from mechanism_design.welfare_auction import (
    AccuracyAuction,
    BlackBoxAuction,
    KernelAccuracyAuction,
    KNNAccuracyAuction,
)
from mechanism_design.welfare_auction.checks import MulticlassRefused


@parametrize_with_checks(
    [
        AccuracyAuction(),
        AccuracyAuction(loss="logistic"),
        AccuracyAuction(loss="squared_hinge", payments="one_shot", random_state=0),
        KernelAccuracyAuction(),
        KNNAccuracyAuction(),
        BlackBoxAuction(LogisticRegression(), payments="none"),
    ]
)
def test_scikit_learn_contract(estimator, check):
    check(estimator)


def test_report_is_indexed_like_X(random_users):
    X, y, bids = random_users(40, 2, seed=51)
    index = pd.Index([f"user-{i}" for i in range(40)])
    frame = pd.DataFrame(X, index=index, columns=["a", "b"])
    labels = np.where(y > 0, "yes", "no")
    auction = AccuracyAuction(lam=0.1).fit(frame, labels, pd.Series(bids, index=index))
    report = auction.report()
    assert report.index.tolist() == index.tolist()
    assert list(report.columns) == [
        "bid", "label", "predicted", "correct", "status", "margin", "band", "payment",
        "utility_if_truthful", "route", "certified",
    ]  # fmt: skip
    np.testing.assert_array_equal(report["predicted"], auction.predict(frame))
    np.testing.assert_array_equal(report["correct"], report["predicted"] == report["label"])
    assert auction.score(frame, labels) == report["correct"].mean()
    worth = float((bids * report["correct"]).sum() / bids.sum())
    assert auction.welfare(frame, labels, bids) == pytest.approx(worth)
    assert auction.welfare_ == pytest.approx(worth * bids.sum())


def test_bids_indexed_otherwise_are_refused(random_users):
    X, y, bids = random_users(10, 2, seed=52)
    shuffled = pd.Series(bids, index=range(10, 20))
    with pytest.raises(ValueError, match="indexed differently"):
        AccuracyAuction().fit(pd.DataFrame(X), y, shuffled)


def test_missing_bids_are_ones(random_users):
    X, y, _ = random_users(40, 2, seed=53)
    np.testing.assert_array_equal(
        AccuracyAuction().fit(X, y).coef_, AccuracyAuction().fit(X, y, np.ones(40)).coef_
    )


def test_single_precision_is_raised(random_users):
    X, y, bids = random_users(40, 2, seed=54)
    auction = AccuracyAuction().fit(X.astype(np.float32), y, bids.astype(np.float32))
    assert auction.coef_.dtype == np.float64
    assert auction.payments_.dtype == np.float64


@pytest.mark.parametrize(
    ("bids", "message"),
    [
        ([1, -2, 1, 1], r"bids\[1\] is -2"),
        ([1, 1, np.nan, 1], r"bids\[2\] is nan"),
        ([1, 1, 1, np.inf], r"bids\[3\] is inf"),
        ([1, 1, 1], r"shape \(3,\)"),
        ([0, 0, 0, 0], "all 0"),
        ([1, 1, 1, 9], r"bids\[3\] is 9.*in \[0, 5\]"),
        (["a", 1, 1, 1], "no number"),
    ],
)
def test_bids_that_are_refused(bids, message):
    with pytest.raises(ValueError, match=message):
        AccuracyAuction(value_cap=5).fit([[0.0], [1.0], [2.0], [3.0]], [0, 1, 0, 1], bids)


def test_bids_whose_squares_overflow_are_refused():
    with pytest.raises(ValueError, match=r"bids\[2\] is 1e\+160.*1e\+100"):
        AccuracyAuction().fit([[0.0], [1.0], [2.0]], [0, 1, 0], [1, 1, 1e160])


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"lam": 0}, "strong convexity"),
        ({"lam": -1.0}, "strong convexity"),
        ({"lam": np.nan}, "lam is nan"),
        ({"C": 0}, "C is 0"),
        ({"loss": "log"}, "loss is 'log'"),
        ({"payments": "vcg"}, "payments is 'vcg'"),
        ({"mu": 1.0}, "mu is 1.0"),
        ({"n_draws": 0}, "n_draws is 0"),
        ({"tol": 0.0}, "tol is 0.0"),
        ({"max_iter": 0}, "max_iter is 0"),
        ({"n_jobs": 0}, "n_jobs is 0"),
        ({"value_cap": -1}, "value_cap is -1"),
    ],
)
def test_parameters_that_are_refused(parameters, message):
    with pytest.raises(ValueError, match=message):
        AccuracyAuction(**parameters).fit([[0.0], [1.0]], [0, 1])


def test_labels_that_are_refused():
    X = [[0.0], [1.0], [2.0]]
    with pytest.raises(ValueError, match="one class"):
        AccuracyAuction().fit(X, [1, 1, 1])
    with pytest.raises(NotImplementedError, match="Theorem 1"):
        AccuracyAuction().fit(X, [0, 1, 2])
    assert issubclass(MulticlassRefused, ValueError)


def test_unfitted_auctions_refuse_everything():
    auction = AccuracyAuction()
    for call in (
        lambda: auction.predict([[0.0]]),
        auction.report,
        lambda: auction.critical_bid(0),
        lambda: auction.utilities([1.0]),
        auction.forecast_payers,
    ):
        with pytest.raises(NotFittedError):
            call()


@pytest.mark.parametrize("loss", ["hinge", "logistic"])
def test_fits_that_stop_early_say_so_and_certify_nothing(loss, random_users):
    X, y, bids = random_users(300, 5, seed=55)
    with pytest.warns(ConvergenceWarning, match="raise max_iter"):
        auction = AccuracyAuction(loss=loss, lam=0.01, max_iter=1, payments="none").fit(X, y, bids)
    assert not auction.certified_.any()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        full = AccuracyAuction(loss=loss, lam=0.01).fit(X, y, bids)
    assert full.certified_.mean() > 0.99
    # The certificate holds: scores lie within ||x|| sqrt(2 gap) of the minimiser's.
    norms = np.sqrt((X**2).sum(axis=1) + 1)
    off = np.abs(auction.margins_ - full.margins_)
    assert (off <= norms * np.sqrt(2 * auction.duality_gap_) + 1e-9).all()


def test_ties_are_wrong_and_not_certified():
    # Two opposite users of equal weight leave the boundary exactly on both.
    auction = AccuracyAuction(fit_intercept=False).fit([[1.0], [1.0]], [1, -1], [1.0, 1.0])
    assert not auction.allocation_.any()
    assert not auction.certified_.any()
    assert auction.payments_.tolist() == [0, 0]


def test_critical_bid_agrees_with_the_payments(random_users):
    X, y, bids = random_users(100, 3, seed=56, shift=0.3)
    auction = AccuracyAuction(lam=0.05).fit(X, y, bids)
    served = np.flatnonzero(auction.allocation_)
    found = [auction.critical_bid(int(i)) for i in served]
    np.testing.assert_allclose(found, auction.payments_[served], atol=1e-9)
    with pytest.raises(ValueError, match="row number below 100"):
        auction.critical_bid(100)


def test_progress_counts_every_candidate(random_users):
    X, y, bids = random_users(200, 3, seed=57, shift=0.3)
    for loss, payments in (("hinge", "exact"), ("logistic", "exact"), ("hinge", "bisect")):
        seen = []
        auction = AccuracyAuction(loss=loss, lam=0.05, payments=payments)
        auction.fit(X, y, bids, progress=lambda done, total, seen=seen: seen.append((done, total)))
        assert seen[-1][0] == seen[-1][1] > 0


def test_clones_carry_every_parameter():
    auction = KernelAccuracyAuction("poly", degree=2, loss="logistic", lam=0.3, mu=0.1)
    assert clone(auction).get_params() == auction.get_params()
