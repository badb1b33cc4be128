"""Prices are critical bids: closed forms, the published examples, and all routes against refits."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import brentq

from mechanism_design.welfare_auction import AccuracyAuction, _reference
from mechanism_design.welfare_auction.constrained import constrained_prices
from mechanism_design.welfare_auction.losses import LOSSES, loss_value
from mechanism_design.welfare_auction.path import compiled_walk, path_prices
from mechanism_design.welfare_auction.pricing import (
    COMPILE_FROM,
    Problem,
    bisected_price,
    critical_bids,
)
from mechanism_design.welfare_auction.screening import pivotal_candidates, stability_band
from mechanism_design.welfare_auction.solvers import row_norms

needs_numba = pytest.mark.skipif(compiled_walk() is None, reason="the extra `fast` is missing")


def problem_of(loss, X, y, bids, lam):
    return Problem.of(loss, X * y[:, None].astype(float), bids, 1 / (2 * lam * len(y)))


# Examples worked by hand: in Example A every dual is full, so theta = sum of b y x / (2 lam m).


@pytest.mark.parametrize("loss", LOSSES)
def test_example_a(loss, three_users):
    X, y, bids = three_users
    auction = AccuracyAuction(loss=loss, lam=1.0, fit_intercept=False).fit(X, y, bids)
    assert auction.allocation_.tolist() == [True, False, True]
    # Margin 0 where z - 2 + 1/2 = 0: the pulls at margin 0 are all equal, whatever the loss.
    np.testing.assert_allclose(auction.payments_, [1.5, 0, 0], atol=1e-9)
    if loss == "hinge":
        assert auction.coef_[0, 0] == pytest.approx(0.25, abs=1e-12)
    assert auction.status_.tolist() == ["pivotal", "hopeless", "easy"]


def test_example_a_with_a_payer_outside_the_half_band(three_users):
    X, y, _ = three_users
    auction = AccuracyAuction(lam=1.0, fit_intercept=False).fit(X, y, [3.0, 2.0, 2.0])
    np.testing.assert_allclose(auction.payments_, [1, 0, 0], atol=1e-9)
    assert auction.coef_[0, 0] == pytest.approx(1 / 3, abs=1e-12)
    # The band is C b ||x||^2 = 3/6; half of it and a tolerance of 0.05 would miss this payer.
    assert auction.stability_band_[0] == pytest.approx(0.5)
    assert 0.25 + 0.05 < auction.margins_[0] <= 0.5


@pytest.mark.parametrize(
    ("lam", "theta", "payments"),
    [
        (0.2, (0.459375, -0.4125), {2: 1.333322, 3: 0.091218}),
        (0.05, (0.476190, -0.952381), {2: 1.144800}),
        (0.02, (1.111111, -1.111111), {1: 0.206132, 2: 0.732850}),
    ],
)
def test_example_c_hinge(lam, theta, payments, eight_users):
    X, y, bids = eight_users
    auction = AccuracyAuction(lam=lam, fit_intercept=False).fit(X, y, bids)
    np.testing.assert_allclose(auction.coef_[0], theta, atol=1e-5)
    expected = [payments.get(i, 0.0) for i in range(8)]
    np.testing.assert_allclose(auction.payments_, expected, atol=1e-5)
    # The elbow is degenerate at lam = 0.02, where three users tie on the margin in two dimensions.
    assert auction.certified_[[2]].all()


@pytest.mark.parametrize(
    ("lam", "theta", "payments"),
    [
        (0.05, (0.574804, -0.508845), {2: 1.088841}),
        (0.2, (0.244154, -0.261952), {1: 0.051182, 2: 0.908954}),
    ],
)
def test_example_c_logistic(lam, theta, payments, eight_users):
    X, y, bids = eight_users
    auction = AccuracyAuction(loss="logistic", lam=lam, fit_intercept=False).fit(X, y, bids)
    np.testing.assert_allclose(auction.coef_[0], theta, atol=1e-5)
    expected = [payments.get(i, 0.0) for i in range(8)]
    np.testing.assert_allclose(auction.payments_, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("loss", "theta", "payments"),
    [
        ("squared_hinge", (0.569436, -0.961650), {2: 0.063830, 3: 0.260000}),
        ("logistic", (0.503168, -0.976129), {2: 0.122342, 3: 0.466054}),
    ],
)
def test_example_b(loss, theta, payments, six_users):
    X, y, bids = six_users
    auction = AccuracyAuction(loss=loss, lam=0.1, fit_intercept=False).fit(X, y, bids)
    np.testing.assert_allclose(auction.coef_[0], theta, atol=1e-5)
    expected = [payments.get(i, 0.0) for i in range(6)]
    np.testing.assert_allclose(auction.payments_, expected, atol=1e-5)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("lam", [0.5, 0.05])
def test_payments_equal_the_definition(loss, lam, random_users):
    # Every served user is bisected with a general-purpose optimiser, without any screen.
    X, y, bids = random_users(24, 2, seed=15)
    rows, scale = X * y[:, None], 1 / (2 * lam * 24)
    expected = _reference.payments(loss, rows, bids, scale)
    auction = AccuracyAuction(loss=loss, lam=lam, fit_intercept=False).fit(X, y, bids)
    np.testing.assert_allclose(auction.payments_, expected, atol=1e-5)
    assert (expected > 0).any()


@pytest.mark.parametrize("seed", range(50))
def test_routes_agree_and_every_payer_lies_in_the_band(seed, random_users):
    rng = np.random.default_rng(seed)
    m, d, lam = int(rng.integers(20, 301)), int(rng.integers(1, 9)), 10 ** rng.uniform(-2.5, 0)
    loss = LOSSES[seed % 3]
    X, y, bids = random_users(m, d, seed=100 + seed, shift=0.3)
    problem = problem_of(loss, X, y, bids, lam)
    fit = problem.fit()
    users = np.flatnonzero(
        pivotal_candidates(loss, fit.margins, bids, problem.norms, problem.scale)
    )
    exact, route, proved = critical_bids(problem, fit, users)
    assert proved.all()
    constrained, solved = constrained_prices(
        loss, problem.rows, problem.norms, bids, problem.scale, fit, users
    )
    assert solved.all()
    np.testing.assert_allclose(constrained, exact, rtol=1e-6, atol=1e-9)
    payers = np.flatnonzero(exact > 0)
    for position in payers[:6]:
        bisected = bisected_price(problem, fit, int(users[position]), 1e-10)
        assert bisected == pytest.approx(exact[position], rel=1e-6, abs=1e-8)
    band = stability_band(loss, bids, problem.norms, problem.scale)
    assert (fit.margins[users[payers]] <= band[users[payers]] * (1 + 1e-9)).all()
    if loss == "hinge":
        assert (route == "path").all()


@pytest.mark.parametrize("loss", LOSSES)
def test_nobody_outside_the_screen_pays(loss, random_users):
    # Leave-one-out of every served user: those the screen clears stay right at bid 0.
    X, y, bids = random_users(250, 4, seed=23, shift=0.3)
    problem = problem_of(loss, X, y, bids, 0.05)
    fit = problem.fit()
    inside = pivotal_candidates(loss, fit.margins, bids, problem.norms, problem.scale)
    cleared = np.flatnonzero((fit.margins > 0) & ~inside)
    assert len(cleared) > 50
    assert inside.sum() > 0
    assert all(problem.right_at(int(user), 0.0, fit) for user in cleared)


@pytest.mark.parametrize("loss", LOSSES)
def test_stability_band_is_the_root_of_its_equation(loss):
    room = np.array([1e-4, 0.03, 0.5, 0.99, 1.7, 30.0])
    band = stability_band(loss, room, np.ones(6), 1.0)

    def excess(margin, r):
        zero, own = loss_value(loss, np.array([0.0, margin]))
        return margin**2 - r * (zero - own)

    expected = [brentq(excess, 1e-9, 100, args=(r,)) for r in room]
    np.testing.assert_allclose(band, expected, rtol=1e-6)


@needs_numba
@pytest.mark.parametrize("seed", range(6))
def test_compiled_walk_equals_the_plain_one(seed, random_users):
    X, y, bids = random_users(400, 6, seed=seed, shift=0.3)
    problem = problem_of("hinge", X, y, bids, 0.03)
    fit = problem.fit()
    users = np.flatnonzero(
        pivotal_candidates("hinge", fit.margins, bids, problem.norms, problem.scale)
    )
    found = [
        path_prices(problem.rows, problem.norms, bids, problem.scale, fit, users, compiled=compiled)
        for compiled in (True, False)
    ]
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-10, atol=1e-12)
    assert found[0][1].all()
    assert found[1][1].all()


@pytest.mark.parametrize("m", [2_500, 20_000])
def test_published_revenue_of_a_large_auction(m):
    # m = 20,000: 233 candidates, 48 payers and revenue 52.6317 are known from an independent
    # pricing by refits; at m = 2,500 the constrained fit, which shares no code, is the judge.
    rng = np.random.default_rng(1)
    y = np.where(np.arange(m) < m // 2, -1.0, 1.0)
    X = rng.normal(0, 1, (m, 16))
    X[:, 0] += 0.25 * y
    bids = rng.gamma(1, 1, m)
    auction = AccuracyAuction(lam=0.02).fit(X, y, bids)
    if m == 20_000:
        assert (auction.price_route_ == "path").sum() == 233
        assert auction.n_payers_ == 48
        assert auction.revenue_ == pytest.approx(52.6317, abs=1e-3)
        return
    payers = np.flatnonzero(auction.payments_ > 0)
    problem = auction._problem
    prices, solved = constrained_prices(
        "hinge", problem.rows, problem.norms, bids, problem.scale, auction._result.fit, payers
    )
    assert solved.all()
    np.testing.assert_allclose(auction.payments_[payers], prices, rtol=1e-8)


@pytest.mark.parametrize("loss", LOSSES)
def test_sparse_features_give_the_dense_prices(loss, random_users):
    X, y, bids = random_users(300, 6, seed=8, shift=0.3)
    X[np.abs(X) < 0.7] = 0
    dense = AccuracyAuction(loss=loss, lam=0.05).fit(X, y, bids)
    thin = AccuracyAuction(loss=loss, lam=0.05).fit(sparse.csr_matrix(X), y, bids)
    assert dense.n_payers_ > 0
    np.testing.assert_allclose(thin.payments_, dense.payments_, atol=1e-7)
    assert "path" not in thin.price_route_
    np.testing.assert_array_equal(thin.predict(sparse.csr_matrix(X)), dense.predict(X))


def test_integer_features_with_duplicates_fall_back_and_still_price(random_users):
    # Margins tie exactly at 1 and 0; bisection without any screen is the judge.
    rng = np.random.default_rng(11)
    X = rng.integers(0, 2, (120, 5)).astype(float)
    y = np.where(X[:, 0] + 0.7 * rng.normal(size=120) > 0.5, 1, -1)
    bids = rng.gamma(1, 1, 120)
    auction = AccuracyAuction(lam=0.01).fit(X, y, bids)
    problem, fit = auction._problem, auction._result.fit
    for user in np.flatnonzero(auction.allocation_)[::6]:
        expected = bisected_price(problem, fit, int(user), 1e-9)
        assert auction.payments_[user] == pytest.approx(expected, abs=1e-6)


def test_threads_do_not_change_prices(random_users):
    X, y, bids = random_users(300, 4, seed=9, shift=0.2)
    for loss in LOSSES:
        one = AccuracyAuction(loss=loss, lam=0.05).fit(X, y, bids)
        two = AccuracyAuction(loss=loss, lam=0.05, n_jobs=3).fit(X, y, bids)
        np.testing.assert_allclose(one.payments_, two.payments_, atol=1e-10)


@pytest.mark.parametrize("loss", LOSSES)
def test_critical_bid_of_those_who_are_not_served(loss, random_users):
    # Just above it they are served, just below they are not.
    X, y, bids = random_users(60, 3, seed=10, shift=0.3)
    auction = AccuracyAuction(loss=loss, lam=0.05).fit(X, y, bids)
    wrong = np.flatnonzero(~auction.allocation_)[:4]
    assert len(wrong)
    for user in wrong:
        bid = auction.critical_bid(int(user))
        assert bid >= bids[user]
        for factor, served in ((1 + 1e-5, True), (1 - 1e-5, False)):
            changed = bids.copy()
            changed[user] = bid * factor
            again = AccuracyAuction(loss=loss, lam=0.05, payments="none").fit(X, y, changed)
            assert again.allocation_[user] == served


def test_user_without_features_is_never_served():
    auction = AccuracyAuction(fit_intercept=False).fit(
        [[1.0], [-1.0], [0.0]], [1, -1, 1], [1.0, 1.0, 5.0]
    )
    assert not auction.allocation_[2]
    assert not auction.certified_[2]
    assert auction.critical_bid(2) == np.inf


def test_norms_count_the_constant_feature():
    rows = np.array([[3.0, 4.0, 1.0]])
    assert row_norms(rows)[0] == pytest.approx(np.sqrt(26))
    auction = AccuracyAuction(lam=0.5).fit([[3.0, 4.0], [-3.0, -4.0]], [1, -1], [1.0, 1.0])
    # C = 1/2 and ||x||^2 = 26: room 13 > 1, where the hinge is flat and the band its root.
    assert auction.stability_band_[0] == pytest.approx(np.sqrt(13))


@needs_numba
def test_prices_are_the_same_where_numba_is_missing():
    # More candidates than COMPILE_FROM, once in a process that cannot import numba.
    code = """
import json, sys
if sys.argv[1] == "without":
    sys.modules["numba"] = None
from mechanism_design.welfare_auction import AccuracyAuction, make_gaussian_users
X, y, values = make_gaussian_users(1500, d=12, values="gamma", seed=3)
auction = AccuracyAuction(lam=0.01).fit(X, y, values)
used = sys.modules.get("numba") is not None
print(json.dumps([int((auction.price_route_ == "path").sum()), used, auction.payments_.tolist()]))
"""
    found = [
        json.loads(
            subprocess.run(
                [sys.executable, "-c", code, which], capture_output=True, text=True, check=True
            ).stdout
        )
        for which in ("with", "without")
    ]
    assert found[0][0] == found[1][0] >= COMPILE_FROM
    assert [found[0][1], found[1][1]] == [True, False]
    np.testing.assert_allclose(found[0][2], found[1][2], rtol=1e-9, atol=1e-12)
