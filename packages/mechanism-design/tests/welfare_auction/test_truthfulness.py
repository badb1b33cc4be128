"""Dominant strategies, individual rationality and the invariances that the proof rests on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier

from mechanism_design.welfare_auction import (
    AccuracyAuction,
    BlackBoxAuction,
    audit_monotone,
    audit_truthfulness,
    gaussian_payer_limit,
    make_gaussian_users,
    simulate_bidding,
)
from mechanism_design.welfare_auction.losses import LOSSES


@pytest.mark.parametrize("loss", LOSSES)
def test_no_misreport_pays(loss, random_users):
    X, y, values = random_users(400, 6, seed=41, shift=0.2)
    audit = audit_truthfulness(AccuracyAuction(loss=loss, lam=0.02), X, y, values, n_users=50)
    assert (audit.table["payment"] > 0).any()
    assert audit.max_gain <= 1e-9


@pytest.mark.slow
def test_no_misreport_of_anybody_pays(random_users):
    # All 400 users with eight reports each: 3,200 deviations.
    X, y, values = random_users(400, 6, seed=41, shift=0.2)
    mechanism = AccuracyAuction(lam=0.02)
    audits = [
        audit_truthfulness(mechanism, X, y, values),
        audit_truthfulness(mechanism, X, y, values, reports=(5.0, 50.0)),
    ]
    assert sum(len(audit.table) for audit in audits) == 3200
    profitable = sum(int((audit.table["gain"] > 1e-9).sum()) for audit in audits)
    assert profitable == 0


def test_without_prices_somebody_gains_by_over_reporting(random_users):
    X, y, values = random_users(400, 6, seed=41, shift=0.2)
    audit = audit_truthfulness(
        AccuracyAuction(lam=0.02, payments="none"), X, y, values, n_users=150, reports=(50.0,)
    )
    assert audit.max_gain > 0


def test_exact_learners_are_monotone_and_trees_are_not():
    exact, tree = 0, 0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(12, 2))
        y = np.where(rng.random(12) < 0.5, 1, -1)
        y[:2] = (-1, 1)
        bids = rng.gamma(1, 1, 12)
        for loss in LOSSES:
            exact += audit_monotone(AccuracyAuction(loss=loss, lam=0.05), X, y, bids).violations
        boxed = BlackBoxAuction(DecisionTreeClassifier(max_depth=2))
        tree += audit_monotone(boxed, X, y, bids).violations
    assert exact == 0
    assert tree > 0


def test_audit_names_the_violation():
    class Contrary(BlackBoxAuction):
        def fit(self, X, y, bids=None):
            self.allocation_, self.payments_ = np.asarray(bids) < 1, np.zeros(len(bids))
            return self

    found = audit_monotone(
        Contrary(LogisticRegression()), np.zeros((2, 1)), [0, 1], [1, 1], grid=[0.5, 2]
    )
    assert found.table.to_numpy().tolist() == [[0, 0.5, 2], [1, 0.5, 2]]
    assert (found.violations, found.comparisons) == (2, 2)


@settings(max_examples=30, deadline=None)
@given(
    loss=st.sampled_from(LOSSES),
    m=st.integers(4, 40),
    d=st.integers(1, 4),
    lam=st.sampled_from([1.0, 0.1, 0.01]),
    seed=st.integers(0, 10_000),
)
def test_payments_are_individually_rational(loss, m, d, lam, seed):
    rng = np.random.default_rng(seed)
    X, y, bids = rng.normal(size=(m, d)), np.arange(m) % 2, rng.gamma(1, 1, m)
    auction = AccuracyAuction(loss=loss, lam=lam).fit(X, y, bids)
    assert ((auction.payments_ >= 0) & (auction.payments_ <= bids)).all()
    assert auction.payments_[auction.status_ != "pivotal"].sum() == 0
    assert (auction.payments_[auction.status_ == "pivotal"] > 0).all()
    assert (auction.utilities(bids) >= 0).all()


@pytest.mark.parametrize("loss", LOSSES)
def test_scaling_bids_and_lam_scales_prices(loss, random_users):
    # The objective is multiplied by c as a whole, so the minimiser stays.
    X, y, bids = random_users(150, 3, seed=42, shift=0.3)
    once = AccuracyAuction(loss=loss, lam=0.05).fit(X, y, bids)
    scaled = AccuracyAuction(loss=loss, lam=0.35).fit(X, y, 7 * bids)
    assert once.n_payers_ > 0
    np.testing.assert_allclose(scaled.coef_, once.coef_, atol=1e-9)
    np.testing.assert_array_equal(scaled.allocation_, once.allocation_)
    np.testing.assert_allclose(scaled.payments_, 7 * once.payments_, rtol=1e-7, atol=1e-8)


def test_equal_bids_are_a_larger_C_in_scikit_learn(random_users):
    X, y, _ = random_users(200, 3, seed=43)
    auction = AccuracyAuction(loss="logistic", C=0.1, payments="none").fit(X, y, np.full(200, 3.0))
    # The constant is penalised here, so it is an ordinary feature there.
    wide = np.column_stack([X, np.ones(200)])
    model = LogisticRegression(C=0.3, fit_intercept=False, tol=1e-10, max_iter=10_000).fit(wide, y)
    np.testing.assert_allclose(auction.coef_[0], model.coef_[0, :3], atol=1e-6)
    np.testing.assert_allclose(auction.intercept_[0], model.coef_[0, 3], atol=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_splitting_a_user_in_two_halves_changes_nothing(loss, random_users):
    X, y, bids = random_users(80, 3, seed=44)
    whole = AccuracyAuction(loss=loss, C=0.2, payments="none").fit(X, y, bids)
    split = bids.copy()
    split[5] /= 2
    halves = AccuracyAuction(loss=loss, C=0.2, payments="none").fit(
        np.vstack([X, X[5]]), np.append(y, y[5]), np.append(split, split[5])
    )
    np.testing.assert_allclose(halves.coef_, whole.coef_, atol=1e-9)


def test_everybody_at_the_cap_is_uniform_training(random_users):
    X, y, values = random_users(200, 3, seed=45)
    free = AccuracyAuction(loss="logistic", C=0.1, payments="none")
    found = simulate_bidding(free, X, y, values, "cap", cap=8.0)
    uniform = AccuracyAuction(loss="logistic", C=0.8, payments="none").fit(X, y)
    np.testing.assert_array_equal(found.mechanism.predict(X), uniform.predict(X))
    np.testing.assert_allclose(found.mechanism.coef_, uniform.coef_, atol=1e-12)


def test_best_responses_are_the_truth_with_prices_and_the_cap_without(random_users):
    X, y, values = random_users(25, 2, seed=46, shift=0.3)
    priced = simulate_bidding(AccuracyAuction(lam=0.1), X, y, values, "best_response", rounds=2)
    np.testing.assert_array_equal(priced.reports, values)
    free = AccuracyAuction(lam=0.1, payments="none")
    unpriced = simulate_bidding(free, X, y, values, "best_response", rounds=4)
    np.testing.assert_array_equal(unpriced.reports, np.full(25, values.max()))


def test_payers_of_gaussian_users_are_at_their_limit():
    # phi(D/2s)/(s theta) ((d-1)s^2+1)/(2 lam) = 24.75 payers, revenue half of that.
    limit = gaussian_payer_limit(16, 0.5, 1.0, 1.0)
    assert limit == pytest.approx(24.75, abs=0.005)
    found = []
    for seed in range(60):
        X, y, values = make_gaussian_users(4096, seed=seed)
        auction = AccuracyAuction(lam=1.0).fit(X, y, values)
        found.append((auction.n_payers_, auction.revenue_))
    payers, revenue = np.mean(found, axis=0)
    assert payers == pytest.approx(limit, rel=0.12)
    assert revenue == pytest.approx(limit / 2, rel=0.12)


def test_payers_do_not_grow_with_users():
    limit = gaussian_payer_limit(16, 0.5, 1.0, 1.0)
    payers = [
        AccuracyAuction(lam=1.0).fit(*make_gaussian_users(65_536, seed=seed)).n_payers_
        for seed in range(12)
    ]
    assert np.mean(payers) == pytest.approx(limit, rel=0.2)


@pytest.mark.parametrize(("sd", "limit"), [(0.2, 5.84), (0.5, 13.38), (1.0, 24.75), (2.0, 48.29)])
def test_published_limits(sd, limit):
    assert gaussian_payer_limit(16, 0.5, sd, 1.0) == pytest.approx(limit, abs=0.01)


@pytest.mark.parametrize("loss", LOSSES)
def test_forecast_is_near_the_average_number_of_payers(loss):
    # Both estimate the same expectation; 20 draws leave a standard error of about 6%.
    lam = 0.5 if loss != "squared_hinge" else 1.0
    counts, forecasts = [], []
    for seed in range(20):
        X, y, values = make_gaussian_users(3000, d=8, values="gamma", seed=seed)
        auction = AccuracyAuction(loss=loss, lam=lam).fit(X, y, values)
        counts.append(auction.n_payers_)
        forecasts.append(auction.forecast_payers().payers)
    assert np.mean(forecasts) == pytest.approx(np.mean(counts), rel=0.25)
