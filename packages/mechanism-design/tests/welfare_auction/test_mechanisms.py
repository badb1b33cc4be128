"""Nearest neighbours, finite classes, kernels, black boxes, and random prices."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

from mechanism_design.welfare_auction import (
    AccuracyAuction,
    BlackBoxAuction,
    FiniteClassAuction,
    KernelAccuracyAuction,
    KNNAccuracyAuction,
    clarke_payments,
)
from mechanism_design.welfare_auction.kernel import factor_gram
from mechanism_design.welfare_auction.pricing import Problem, sampled_prices

# --- a finite class --------------------------------------------------------------------------


def thresholds(x):
    """All labelings of points on a line by thresholds in both directions."""
    cuts = np.concatenate([[x.min() - 1], (x[1:] + x[:-1]) / 2, [x.max() + 1]])
    up = [np.where(x > cut, 1, -1) for cut in cuts]
    return np.unique([*up, *(-labels for labels in up)], axis=0)


def test_six_users_on_a_line():
    # Worked by enumeration of the 12 labelings; welfare 9.5 = 2 + 1 + 2.5 + 4.
    x = np.arange(1.0, 7.0)
    y, bids = np.array([1, -1, 1, 1, -1, 1]), np.array([2, 3, 1, 2.5, 4, 1.5])
    table = thresholds(x)
    assert len(table) == 12
    auction = FiniteClassAuction(predictions=table).fit(x[:, None], y, bids)
    assert auction.welfare_ == 9.5
    assert auction.allocation_.tolist() == [True, False, True, True, True, False]
    np.testing.assert_allclose(auction.payments_, [1, 0, 0.5, 2, 2.5, 0], atol=1e-12)
    np.testing.assert_allclose(clarke_payments(table == y, bids), auction.payments_, atol=1e-12)


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 12), st.integers(1, 8), st.integers(0, 10_000))
def test_critical_bids_of_a_finite_class_are_clarke_payments_and_thresholds(h, m, seed):
    rng = np.random.default_rng(seed)
    correct, bids = rng.random((h, m)) < 0.5, rng.gamma(1, 1, m)
    auction = FiniteClassAuction(predictions=correct.astype(int)).fit(
        np.zeros((m, 1)), np.ones(m), bids
    )
    np.testing.assert_allclose(auction.payments_, clarke_payments(correct, bids), atol=1e-12)
    for user in np.flatnonzero(auction.payments_ > 1e-6):
        for factor, served in ((1 + 1e-6, True), (1 - 1e-6, False)):
            changed = bids.copy()
            changed[user] = auction.payments_[user] * factor
            again = FiniteClassAuction(predictions=correct.astype(int)).fit(
                np.zeros((m, 1)), np.ones(m), changed
            )
            assert again.allocation_[user] == served


def test_finite_class_predicts_with_the_chosen_hypothesis_only():
    rules = [lambda X: X[:, 0] > 0, lambda X: X[:, 0] <= 0]
    X, y = np.array([[1.0], [-1.0]]), np.array([True, False])
    assert FiniteClassAuction(rules).fit(X, y).predict(np.array([[3.0]])).tolist() == [True]
    with pytest.raises(ValueError, match="hypotheses"):
        FiniteClassAuction(predictions=[[True, False]]).fit(X, y).predict(X)
    with pytest.raises(ValueError, match="exactly one"):
        FiniteClassAuction().fit(X, y)
    with pytest.raises(ValueError, match=r"allowed: \(H, 2\)"):
        FiniteClassAuction(predictions=[[True]]).fit(X, y)


# --- nearest neighbours ----------------------------------------------------------------------


def test_knn_share_and_revenue_have_their_closed_form():
    # Coin labels, values U(0,1), k = 3: half the users face two others against, or one each way;
    # integrating over |v1 +- v2| < v gives 5/24 of users paying and 1/16 a user.
    revenue = {}
    for m in (20_000, 40_000):
        rng = np.random.default_rng(2)
        y, values = rng.integers(0, 2, m), rng.uniform(size=m)
        auction = KNNAccuracyAuction(k=3).fit(rng.uniform(size=(m, 2)), y, values)
        revenue[m] = auction.revenue_
        assert auction.n_payers_ / m == pytest.approx(5 / 24, rel=0.03)
        assert auction.revenue_ / m == pytest.approx(1 / 16, rel=0.03)
    assert revenue[40_000] / revenue[20_000] == pytest.approx(2, rel=0.05)


@settings(max_examples=40, deadline=None)
@given(st.integers(4, 30), st.integers(1, 4), st.integers(0, 10_000))
def test_knn_prices_are_thresholds(m, k, seed):
    rng = np.random.default_rng(seed)
    X, bids = rng.normal(size=(m, 2)), rng.gamma(1, 1, m)
    y = np.arange(m) % 2
    auction = KNNAccuracyAuction(k=k).fit(X, y, bids)
    assert (auction.payments_[~auction.allocation_] == 0).all()
    np.testing.assert_array_equal(auction.predict(X) == y, auction.allocation_)
    for user in np.flatnonzero(auction.payments_ > 1e-6):
        for factor, served in ((1 + 1e-6, True), (1 - 1e-6, False)):
            changed = bids.copy()
            changed[user] = auction.payments_[user] * factor
            assert KNNAccuracyAuction(k=k).fit(X, y, changed).allocation_[user] == served


# --- kernels ---------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["hinge", "logistic", "squared_hinge"])
def test_linear_kernel_is_the_linear_auction(loss, random_users):
    X, y, bids = random_users(150, 4, seed=31, shift=0.3)
    linear = AccuracyAuction(loss=loss, lam=0.05).fit(X, y, bids)
    kernel = KernelAccuracyAuction("linear", loss=loss, lam=0.05).fit(X, y, bids)
    assert linear.n_payers_ > 0
    np.testing.assert_allclose(kernel.payments_, linear.payments_, atol=1e-8)
    np.testing.assert_allclose(kernel.decision_function(X), linear.decision_function(X), atol=1e-9)


def test_rbf_auction_is_the_weighted_svm(random_users):
    # SVC with its unpenalised constant removed by a precomputed kernel that carries a penalised
    # one differs only in that constant, so compare with fit_intercept=False on balanced duals.
    X, y, bids = random_users(120, 3, seed=32)
    auction = KernelAccuracyAuction(gamma=0.5, lam=0.01, fit_intercept=False, payments="none")
    auction.fit(X, y, bids)
    gram = rbf_kernel(X, gamma=0.5)
    signed = auction.scale_ * auction._result.fit.duals * y
    # Optimality in the kernel's own terms: margins of the users between their bounds are 1.
    margins = y * (gram @ signed)
    inside = (auction._result.fit.duals > 0) & (auction._result.fit.duals < bids)
    assert inside.sum() > 5
    np.testing.assert_allclose(margins[inside], 1, atol=1e-6)
    np.testing.assert_allclose(margins, auction.margins_, atol=1e-6)
    np.testing.assert_allclose(auction.decision_function(X), gram @ signed, atol=1e-9)
    assert SVC(gamma=0.5).fit(X, y).score(X, y) > 0.5


def test_kernel_prices_equal_refits(random_users):
    X, y, bids = random_users(100, 2, seed=33, shift=0.3)
    common = {"gamma": 0.5, "lam": 0.01}
    exact = KernelAccuracyAuction(**common).fit(X, y, bids)
    refits = KernelAccuracyAuction(payments="bisect", **common).fit(X, y, bids)
    assert exact.n_payers_ > 0
    np.testing.assert_allclose(exact.payments_, refits.payments_, atol=1e-6)


def test_kernel_refuses_what_it_cannot_hold(random_users):
    X, y, bids = random_users(30, 2, seed=34)
    with pytest.raises(ValueError, match="max_kernel_rows = 20"):
        KernelAccuracyAuction(max_kernel_rows=20).fit(X, y, bids)
    with pytest.raises(ValueError, match="semidefinite"):
        factor_gram(np.array([[1.0, 2.0], [2.0, 1.0]]))
    with pytest.raises(ValueError, match="kernel is 'nope'"):
        KernelAccuracyAuction("nope").fit(X, y, bids)


# --- black boxes -----------------------------------------------------------------------------


def test_black_box_around_an_exact_learner_finds_the_exact_prices(random_users):
    X, y, bids = random_users(60, 2, seed=35, shift=0.3)
    scale = 1 / (2 * 0.05 * 60)
    learner = LogisticRegression(C=scale, fit_intercept=False, tol=1e-12, max_iter=10_000)
    boxed = BlackBoxAuction(learner).fit(X, y, bids)
    exact = AccuracyAuction("logistic", lam=0.05, fit_intercept=False).fit(X, y, bids)
    assert exact.n_payers_ > 0
    np.testing.assert_allclose(boxed.payments_, exact.payments_, atol=1e-4)


def test_black_box_refuses_learners_without_weights():
    from sklearn.neighbors import KNeighborsClassifier

    with pytest.raises(TypeError, match="sample_weight"):
        BlackBoxAuction(KNeighborsClassifier()).fit([[0.0], [1.0]], [0, 1])


def test_black_box_fixes_the_seed_of_its_estimator(random_users):
    X, y, bids = random_users(40, 3, seed=36)
    tree = DecisionTreeClassifier(max_depth=2, max_features=1)
    first, second = (BlackBoxAuction(tree).fit(X, y, bids) for _ in range(2))
    np.testing.assert_array_equal(first.payments_, second.payments_)


# --- random prices ---------------------------------------------------------------------------


def test_sampled_prices_are_unbiased(eight_users):
    # Each draw charges the whole bid 1.5 with the chance critical bid / bid.
    X, y, bids = eight_users
    problem = Problem.of("hinge", X * y[:, None], bids, 1 / (2 * 0.2 * 8))
    draws = np.random.default_rng(0).uniform(0, bids[2], (1, 4000))
    fit = problem.fit()
    # The same user 4,000 times over, one draw each.
    prices = sampled_prices(problem, fit, np.full(4000, 2), draws.T)
    assert set(prices) == {0.0, 1.5}
    assert np.mean(prices) == pytest.approx(1.3333, abs=0.04)
    some = sampled_prices(problem, fit, np.array([2]), draws[:, :50])
    assert some[0] == pytest.approx(np.mean(prices[:50]))


def test_sampled_payments_never_exceed_the_bid(random_users):
    X, y, bids = random_users(200, 4, seed=37, shift=0.2)
    auction = AccuracyAuction(lam=0.05, payments="sampled", n_draws=3, random_state=5)
    first = auction.fit(X, y, bids).payments_
    assert ((first >= 0) & (first <= bids)).all()
    assert (first > 0).any()
    np.testing.assert_array_equal(first, auction.fit(X, y, bids).payments_)
    assert set(auction.status_) <= {"easy", "hopeless", "candidate"}


@pytest.mark.parametrize(
    ("mu", "payments", "welfare"),
    [(0.5, (0.763, 0.234, 0.023), 3.488), (0.25, (1.167, 0.145, 0.013), 3.741)],
)
def test_one_shot_is_the_resampled_weighted_vote(mu, payments, welfare, three_users):
    # Example A is a weighted vote, so the definition is one line: its means over four million
    # draws are the published ones, and the auction equals it draw by draw.
    X, y, bids = three_users
    z = y * X[:, 0]

    def definition(rng, size):
        resampled = rng.uniform(size=(size, 3)) < mu
        kept = np.where(resampled, rng.uniform(size=(size, 3)) ** (1 / (1 - mu)), 1.0)
        served = z * ((kept * bids) @ z)[:, None] > 0
        return bids * served * np.where(resampled, 1 - 1 / mu, 1.0), served @ bids

    paid, worth = definition(np.random.default_rng(0), 4_000_000)
    np.testing.assert_allclose(paid.mean(axis=0), payments, atol=0.02)
    assert worth.mean() == pytest.approx(welfare, abs=0.01)
    for seed in range(200):
        auction = AccuracyAuction(
            lam=1.0, fit_intercept=False, payments="one_shot", mu=mu, random_state=seed
        ).fit(X, y, bids)
        paid, worth = definition(np.random.default_rng(seed), 1)
        np.testing.assert_allclose(auction.payments_, paid[0])
        assert auction.welfare_ == worth[0]


def test_one_shot_pays_rebates_to_the_resampled(three_users):
    X, y, bids = three_users
    auctions = [
        AccuracyAuction(fit_intercept=False, payments="one_shot", mu=0.4, random_state=s).fit(
            X, y, bids
        )
        for s in range(30)
    ]
    for auction in auctions:
        factor = np.where(auction.resampled_, 1 - 1 / 0.4, 1.0)
        np.testing.assert_allclose(auction.payments_, bids * auction.allocation_ * factor)
    assert any((a.payments_ < 0).any() for a in auctions)


def test_every_report_of_a_random_auction_is_well_formed(random_users):
    X, y, bids = random_users(50, 2, seed=38)
    for payments, loss in itertools.product(
        ("exact", "bisect", "sampled", "one_shot", "none"), ("hinge", "logistic")
    ):
        report = (
            AccuracyAuction(loss=loss, payments=payments, random_state=0).fit(X, y, bids).report()
        )
        assert len(report) == 50
        assert not report.isna().any().any()
        assert (report["payment"] <= report["bid"] + 1e-12).all()
