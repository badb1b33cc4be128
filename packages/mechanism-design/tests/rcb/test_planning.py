"""Sizes, posteriors and weights against closed forms and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from mechanism_design.rcb import (
    GaussianPrior,
    IncentiveInfeasible,
    bic_audit,
    conditional_promotion,
    inverse_gap_weights,
    minimal_promotion,
    plan_cold_start,
    published_promotion,
    published_samples,
    sufficient_gamma,
)
from mechanism_design.rcb import _reference as reference
from mechanism_design.rcb.audit import gains_of
from mechanism_design.rcb.gap_weights import exploitation_gamma, ridge_mspe, second_best
from mechanism_design.rcb.planning import first_epoch


class TestInverseGapWeights:
    def test_by_hand(self) -> None:
        found = inverse_gap_weights([1.0, 0.8, 0.5], 10.0)
        np.testing.assert_allclose(found, [0.675, 0.2, 0.125], atol=1e-15)
        np.testing.assert_allclose(inverse_gap_weights([1.0, 0.8, 0.5], 0.0), [1 / 3] * 3)
        found = inverse_gap_weights([1.0, 1.0, 0.0], 7.0)
        np.testing.assert_allclose(found, [1 - 1 / 3 - 0.1, 1 / 3, 0.1])
        with np.errstate(all="raise"):
            found = inverse_gap_weights([1.0, 1.0, 0.0], np.inf)
        np.testing.assert_allclose(found, [2 / 3, 1 / 3, 0.0])

    @given(
        st.lists(st.floats(-100, 100), min_size=2, max_size=12),
        st.floats(0, 1e6),
    )
    def test_properties(self, scores: list[float], gamma: float) -> None:
        p = inverse_gap_weights(scores, gamma)
        assert abs(p.sum() - 1) < 1e-12
        assert (p > 0).all()
        assert p[int(np.argmax(scores))] >= 1 / len(scores) - 1e-15
        order = np.argsort(scores, kind="stable")
        rest = [i for i in order if i != int(np.argmax(scores))]
        assert (np.diff(p[rest]) >= -1e-15).all()
        np.testing.assert_allclose(p, reference.inverse_gap_weights(scores, gamma), atol=1e-12)


def test_published_formulas() -> None:
    assert published_samples(sigma=0.5, dim=4, n_arms=3, phi0=1 / 3, tau=0.1, eps=0.1) == 4050
    assert first_epoch(4050) == 14
    assert published_promotion(0.2, 0.5, 0.025) == pytest.approx(8.8)
    assert conditional_promotion(0.2, 0.5, 0.025) == pytest.approx(1 + 0.975 / (0.5 * 0.225))
    assert exploitation_gamma(3, 0.12) == pytest.approx(20)


def test_gaussian_posterior() -> None:
    X, y = np.array([[1.0, 0], [1, 1], [1, -1]]), np.array([1.0, 2, 0.5])
    prior = GaussianPrior([[0.5, 0]] * 2, np.diag([1, 0.25]))
    mean, cov = prior.posterior(np.stack([X.T @ X] * 2), np.stack([X.T @ y] * 2), 0.5)
    np.testing.assert_allclose(mean[0], [1.115385, 0.5], atol=1e-6)
    np.testing.assert_allclose(cov[0], np.diag([0.0769231, 0.0833333]), atol=1e-7)
    by_hand = reference.posterior_mean(prior.mean[0], prior.cov[0], list(X), list(y), 0.5)
    np.testing.assert_allclose(mean[0], by_hand)


def closed_form(gap: float, N: int) -> tuple[float, float]:
    """E[(c - M)_+] and P(M < c) for M ~ N(c + gap, N/(N+1)), prior variance and noise 1."""
    s = math.sqrt(N / (N + 1))
    lead = s * norm.pdf(gap / s) - gap * norm.cdf(-gap / s)
    return float(lead), float(norm.cdf(-gap / s))


@pytest.mark.parametrize(("scale", "gain"), [(1.0, 0.0), (0.8, -0.0872), (1.2, 0.0681)])
def test_the_least_promotion_of_two_arms(scale: float, gain: float) -> None:
    prior = GaussianPrior([[0.5], [0.0]], 1.0)
    lead, _ = closed_form(0.5, 20)
    assert lead == pytest.approx(0.1893379, abs=5e-8)
    _, L = minimal_promotion([[1.0]], prior, {0: np.array([[20.0]])}, 1.0, 0.0)
    assert L[0] == pytest.approx(1 + 0.5 / lead)
    assert L[0] == pytest.approx(3.640781, abs=5e-7)
    plan = plan_cold_start(prior, [[1.0]], 0.0, N=20, rule="exact")
    audit = bic_audit(plan, prior, [[1.0]], "cold", 400_000, L=scale * float(L[0]), seed=1)
    assert audit.worst == pytest.approx(gain, abs=0.003)


@pytest.mark.parametrize(
    ("gap", "eps", "joint", "gain_joint", "conditional"),
    [(0.5, 0.1, 2.382466, -0.16772, 2.820181), (1.0, 0.1, 6.06884, -0.34204, 10.69506)],
)
def test_the_published_rule_bounds_the_joint_expectation(
    gap: float, eps: float, joint: float, gain_joint: float, conditional: float
) -> None:
    prior = GaussianPrior([[gap], [0.0]], 1.0)
    lead, share = closed_form(gap, 20)
    # (1 - 1/L) E[lead] - gap / L = -eps P(I) as a joint and as a conditional statement.
    L_joint = 1 + (gap - eps) / (lead + eps)
    L_conditional = 1 + (gap - eps) / (lead + eps * share)
    assert L_joint == pytest.approx(joint, abs=5e-6)
    assert L_conditional == pytest.approx(conditional, abs=5e-5)
    _, L = minimal_promotion([[1.0]], prior, {0: np.array([[20.0]])}, 1.0, eps)
    assert L[0] == pytest.approx(L_conditional)
    plan = plan_cold_start(prior, [[1.0]], eps, N=20, rule="exact")
    for value, expected in ((L_joint, gain_joint), (L_conditional, -eps)):
        exact = ((1 - 1 / value) * lead - gap / value) / (1 / value + (1 - 1 / value) * share)
        assert exact == pytest.approx(expected, abs=5e-5)
        audit = bic_audit(plan, prior, [[1.0]], "cold", 400_000, L=value, seed=2)
        # The audit adds the budget to the gain.
        assert audit.worst - eps == pytest.approx(expected, abs=0.004)


@pytest.mark.parametrize("sampled", [(0,), (0, 1)])
def test_the_least_promotion_with_the_design_at_hand(sampled: tuple[int, ...]) -> None:
    prior = GaussianPrior([[0.6, 0.1], [0.35, 0], [0.1, -0.1]], 0.25)
    x, sigma, eps, N, W = np.array([1.0, 0.4]), 0.5, 0.05, 30, 400_000
    rng = np.random.default_rng(3)
    grams, means = {}, np.empty((W, 3))
    means[:] = prior.mean @ x
    for j in sampled:
        X = np.column_stack([np.ones(N), rng.uniform(-1, 1, N)])
        grams[j] = X.T @ X
        beta = prior.mean[j] + 0.5 * rng.standard_normal((W, 2))
        y = beta @ X.T + sigma * rng.standard_normal((W, N))
        cov = np.linalg.inv(4 * np.eye(2) + grams[j] / sigma**2)
        means[:, j] = (4 * prior.mean[j] + y @ X / sigma**2) @ cov @ x
    promoted, L = minimal_promotion(x, prior, grams, sigma, eps)
    arm = int(promoted[0])
    assert arm == len(sampled)
    weight = 1 / L[0] + (1 - 1 / L[0]) * (means.argmax(1) == arm)
    gains = [
        np.sum(weight * (means[:, arm] - means[:, j])) / weight.sum() for j in range(3) if j != arm
    ]
    assert min(gains) == pytest.approx(-eps, abs=0.003)


def test_a_large_budget_promotes_everybody() -> None:
    prior = GaussianPrior([[0.5], [0.0]], 1.0)
    plan = plan_cold_start(prior, [[1.0]], eps=0.6, N=20, rule="exact")
    assert plan.L == 1.0
    assert plan_cold_start(prior, [[1.0]], eps=1.5, N=20).L == 1.0


@pytest.mark.parametrize("K", [3, 10])
@pytest.mark.parametrize("N", [5, 20, 100])
def test_the_sufficient_gamma_is_sufficient(K: int, N: int) -> None:
    mean = np.zeros((K, 4))
    mean[:, 0] = -0.1 * np.arange(K)
    prior = GaussianPrior(mean, 0.25)
    rng = np.random.default_rng([K, N])
    W = 4000

    def contexts(n: int) -> np.ndarray:
        return np.column_stack([np.ones(n), rng.uniform(-1, 1, (n, 3))]) / 2

    beta = prior.sample(W, rng)
    grams, moments = np.zeros((K, 4, 4)), np.zeros((W, K, 4))
    for k in range(K):
        X = contexts(N)
        grams[k] = X.T @ X
        moments[:, k] = (beta[:, k] @ X.T + 0.1 * rng.standard_normal((W, N))) @ X
    audited = contexts(8)
    means = np.einsum("wkd,nd->wnk", prior.posterior(grams, moments, 0.1)[0], audited)
    gamma = sufficient_gamma(means)
    assert gains_of(inverse_gap_weights(means, gamma), means, 0.0)["gain"].min() >= -0.002
    published = exploitation_gamma(K, ridge_mspe(N * K, 0.1, 4, 1 / 12))
    gain = gains_of(inverse_gap_weights(means, published), means, 0.0)["gain"].min()
    if K == 10 and N == 5:
        assert gain <= -0.15
    if K == 3:
        assert gain > 0
    by_loop = [[max(np.delete(row, k)) for k in range(K)] for row in means[0]]
    np.testing.assert_array_equal(second_best(means)[0], by_loop)


def test_an_arm_that_can_never_win_is_named() -> None:
    prior = GaussianPrior([[1.0], [0.0], [0.9]], [[[0.01]], [[1e-6]], [[0.01]]])
    with pytest.raises(IncentiveInfeasible, match="arm 1") as caught:
        plan_cold_start(prior, [[1.0]], eps=0.0, N=20)
    assert caught.value.arm == 1


def test_a_plan_warns_of_what_will_hurt() -> None:
    mean = np.zeros((50, 10))
    prior = GaussianPrior(mean, 0.25)
    X = np.random.default_rng(0).normal(size=(500, 10))
    plan = plan_cold_start(prior, X, eps=0.0, sigma=1.0, horizon=1000)
    assert any("cube" in note for note in plan.warnings)
    assert any("more than the 1000 that will come" in note for note in plan.warnings)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: GaussianPrior([[1.0]], 1.0), "mean"),
        (lambda: GaussianPrior([[1.0], [0.0]], -1.0), "cov"),
        (lambda: GaussianPrior([[1.0, 0], [0.0, 0]], [[1.0, 2], [2, 1]]), "positive definite"),
        (lambda: GaussianPrior([[1.0], [math.nan]], 1.0), "mean"),
        (lambda: plan_cold_start(GaussianPrior([[1.0], [0.0]], 1.0), [[1.0]], eps=-0.1), "eps"),
        (lambda: plan_cold_start(GaussianPrior([[1.0], [0.0]], 1.0), [[1.0]], N=0), "N"),
        (lambda: plan_cold_start(GaussianPrior([[1.0], [0.0]], 1.0), [[math.nan]]), "X"),
        (lambda: plan_cold_start(GaussianPrior([[1.0], [0.0]], 1.0), [[1.0, 2.0]]), "X"),
        (lambda: plan_cold_start(GaussianPrior([[1.0], [0.0]], 1.0), [[1.0]], sigma=0.0), "sigma"),
        (
            lambda: plan_cold_start(GaussianPrior([[1.0], [0.0]], 1.0), [[1.0]], rule="x"),  # type: ignore[arg-type]
            "rule",
        ),
    ],
)
def test_bad_input_is_refused_by_name(call: object, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        call()  # type: ignore[operator]


def test_history_becomes_a_prior() -> None:
    rng = np.random.default_rng(0)
    X = np.column_stack([np.ones(4000), rng.normal(size=4000)])
    beta = np.array([[1.0, 0.5], [0.2, -0.3]])
    arms = rng.integers(0, 2, 4000)
    y = np.einsum("nd,nd->n", X, beta[arms]) + 0.1 * rng.normal(size=4000)
    prior = GaussianPrior.from_history(X, arms, y, n_arms=3)
    np.testing.assert_allclose(prior.mean[:2], beta, atol=0.01)
    np.testing.assert_allclose(prior.mean[2], 0)
    np.testing.assert_allclose(prior.cov[2], np.eye(2) * np.mean(y**2))
    # The posterior variance of a coefficient is about sigma^2 / n.
    assert prior.cov[0, 0, 0] == pytest.approx(0.01 / 2000, rel=0.1)


@pytest.mark.parametrize("unit", [1e-3, 1e6])
def test_beliefs_scale_with_the_unit_of_reward(unit: float) -> None:
    rng = np.random.default_rng(1)
    X = np.column_stack([np.ones(60), rng.normal(size=60)])
    arms, y = rng.integers(0, 3, 60), rng.normal(1, 0.5, 60)
    plain, scaled = (GaussianPrior.from_history(X, arms, u * y) for u in (1.0, unit))
    np.testing.assert_allclose(scaled.mean, unit * plain.mean, rtol=1e-9)
    np.testing.assert_allclose(scaled.cov, unit**2 * plain.cov, rtol=1e-9)


def test_a_cold_start_that_nobody_lives_to_see_is_noted() -> None:
    prior = GaussianPrior([[1.0], [0.0]], np.array([[[0.01]], [[1.0]]]))
    plan = plan_cold_start(prior, [[1.0]], eps=0.0, sigma=0.1, N=20, rule="exact")
    assert plan.expected_rounds > 1e9
    assert any("users" in note for note in plan.warnings)
    assert not plan_cold_start(prior, [[1.0]], eps=1.5, sigma=0.1, N=20, rule="exact").warnings
