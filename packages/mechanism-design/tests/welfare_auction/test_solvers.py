"""The fits are the minimisers: against a general optimiser, scikit-learn, and optimality."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from mechanism_design.welfare_auction import _reference
from mechanism_design.welfare_auction.losses import LOSSES, loss_curvature, loss_pull, loss_value
from mechanism_design.welfare_auction.solvers import combine, hinge_gap, solve, solve_box


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("lam", [1.0, 0.1, 0.01])
@pytest.mark.parametrize(("m", "d"), [(7, 1), (31, 3), (60, 9)])
def test_solve_equals_the_reference(loss, lam, m, d, random_users):
    X, y, bids = random_users(m, d, seed=m)
    rows, scale = X * y[:, None], 1 / (2 * lam * m)
    expected = _reference.fit(loss, rows, bids, scale)
    found = solve(loss, rows, bids, scale)
    assert found.converged
    np.testing.assert_allclose(found.weights, expected, atol=2e-7)


@pytest.mark.parametrize("loss", LOSSES)
def test_solve_reaches_stationarity_and_its_gap_says_so(loss, random_users):
    # From convexity: w = C sum of duals times rows, with duals in the subdifferential.
    X, y, bids = random_users(5000, 8, seed=3)
    rows, scale = X * y[:, None], 1 / (2 * 0.01 * 5000)
    found = solve(loss, rows, bids, scale)
    np.testing.assert_allclose(combine(rows, scale * found.duals), found.weights, atol=1e-11)
    pull = bids * loss_pull(loss, found.margins)
    interior = np.abs(found.margins - 1) > 1e-9 if loss == "hinge" else np.ones(5000, bool)
    np.testing.assert_allclose(found.duals[interior], pull[interior], atol=1e-12)
    assert ((found.duals >= 0) & (found.duals <= bids * (2 if loss != "hinge" else 1) * 10)).all()
    assert found.gap < 1e-13


@settings(max_examples=60, deadline=None)
@given(
    m=st.integers(2, 40),
    d=st.integers(1, 6),
    lam=st.sampled_from([1.0, 0.1, 0.01, 0.001]),
    seed=st.integers(0, 10_000),
    integers=st.booleans(),
)
def test_hinge_is_optimal_even_with_ties_and_duplicates(m, d, lam, seed, integers):
    # Optimality certificate: the duality gap bounds the distance to the minimiser.
    rng = np.random.default_rng(seed)
    rows = rng.integers(-2, 3, (m, d)).astype(float) if integers else rng.normal(size=(m, d))
    bids = rng.integers(0, 3, m).astype(float) if integers else rng.gamma(1, 1, m)
    scale = 1 / (2 * lam * m)
    found = solve("hinge", rows, bids, scale, max_iter=1000)
    duals = scale * found.duals
    gap = hinge_gap(found.weights, rows @ found.weights, rows.T @ duals, duals, scale * bids)
    assert found.converged
    # Rounding of the margins, about 1e-13, times what pulls on them.
    assert gap <= 1e-12 * max(1.0, scale * bids.sum())


def test_large_hinge_fit_agrees_with_one_solved_whole(random_users):
    # Thinning and the near set are shortcuts to the same minimiser.
    X, y, bids = random_users(9000, 5, seed=4)
    rows, caps = X * y[:, None], bids / (2 * 0.02 * 9000)
    whole, _, _ = solve_box(rows, caps, np.ones(9000), np.zeros(5), 0.5 * caps, max_iter=1000)
    np.testing.assert_allclose(
        solve("hinge", rows, bids, 1 / (2 * 0.02 * 9000)).weights, whole, atol=1e-10
    )


@pytest.mark.parametrize("loss", LOSSES)
def test_csr_rows_give_the_dense_minimiser(loss, random_users):
    X, y, bids = random_users(300, 12, seed=5)
    rows = X * y[:, None]
    rows[np.abs(rows) < 1] = 0
    dense = solve(loss, rows, bids, 0.1)
    thin = solve(loss, sparse.csr_array(rows), bids, 0.1)
    np.testing.assert_allclose(thin.weights, dense.weights, atol=1e-10)


@pytest.mark.parametrize("loss", ["hinge", "logistic"])
def test_more_features_than_users(loss, random_users):
    X, y, bids = random_users(25, 120, seed=6)
    rows = X * y[:, None]
    found = solve(loss, rows, bids, 0.05)
    np.testing.assert_allclose(found.weights, _reference.fit(loss, rows, bids, 0.05), atol=1e-7)


def test_solver_scaling_is_that_of_scikit_learn(random_users):
    # LinearSVC and LogisticRegression minimise 0.5 ||w||^2 + C sum of weight times loss.
    X, y, bids = random_users(200, 4, seed=7)
    rows = X * y[:, None]
    common = {"fit_intercept": False, "C": 0.2, "tol": 1e-10, "max_iter": 1_000_000}
    for loss, model in (
        ("hinge", LinearSVC(loss="hinge", random_state=0, **common)),
        ("squared_hinge", LinearSVC(random_state=0, **common)),
        ("logistic", LogisticRegression(**common)),
    ):
        expected = model.fit(X, y, sample_weight=bids).coef_[0]
        np.testing.assert_allclose(solve(loss, rows, bids, 0.2).weights, expected, atol=1e-6)


@pytest.mark.parametrize("loss", ["logistic", "squared_hinge"])
def test_loss_derivatives_are_difference_quotients(loss):
    margins = np.array([-30.0, -1.3, 0.0, 0.4, 0.93, 1.7, 30.0])
    h = 1e-5
    slope = (loss_value(loss, margins + h) - loss_value(loss, margins - h)) / (2 * h)
    np.testing.assert_allclose(loss_pull(loss, margins), -slope, atol=1e-8)
    bend = -(loss_pull(loss, margins + h) - loss_pull(loss, margins - h)) / (2 * h)
    np.testing.assert_allclose(loss_curvature(loss, margins), bend, atol=1e-8)


def test_hinge_has_no_curvature():
    with pytest.raises(ValueError, match="hinge"):
        loss_curvature("hinge", np.zeros(1))
