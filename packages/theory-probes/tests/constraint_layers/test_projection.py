"""Both projections against closed forms, the definitions, cvxpy, and finite differences."""

from __future__ import annotations

import math
from collections.abc import Callable

import cvxpy as cp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.autograd import gradcheck

from theory_probes.constraint_layers import (
    LinearConstraints,
    SolveInfo,
    capped_simplex,
    doubly_stochastic,
    euclidean_project,
    group_at_least,
    kl_project,
)
from theory_probes.constraint_layers import _reference as reference

# The conic solver's own defaults leave 1e-5 in problems with exponential cones.
TIGHT = {"tol_gap_abs": 1e-11, "tol_gap_rel": 1e-11, "tol_feas": 1e-11}


def vec(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def rows(*values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def matrices(c: LinearConstraints) -> dict[str, Tensor]:
    return {name: torch.from_numpy(getattr(c, name)) for name in ("A_eq", "b_eq", "A_ub", "b_ub")}


def ones(n: int) -> Tensor:
    return torch.ones(1, n, dtype=torch.float64)


def close(found: Tensor, expected: Tensor, tol: float = 1e-7) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=tol)


class TestClosedForms:
    """Values worked out by hand; where a formula is known it stands in the test."""

    def test_one_sum_is_softmax(self) -> None:
        y = vec(1, 2, 3).requires_grad_()
        x = kl_project(y, ones(3), vec(1))
        close(x, vec(0.0900306, 0.2447285, 0.6652410), 5e-8)
        (grad,) = torch.autograd.grad(x, y, vec(1, 0, 0))
        close(grad, vec(0.0819251, -0.0220330, -0.0598921), 1e-7)
        soft = torch.softmax(y.detach(), -1)
        close(grad, soft[0] * (vec(1, 0, 0) - soft), 1e-10)

    def test_two_by_two_doubly_stochastic_is_a_sigmoid(self) -> None:
        y = vec(1, 0.2, 0.3, 0.7).requires_grad_()
        x = kl_project(y, **matrices(doubly_stochastic(2)), temperature=0.5)
        s = 1 / (1 + math.exp(-1.2))
        assert x[0].item() == pytest.approx(s, abs=1e-9)
        (grad,) = torch.autograd.grad(x[0], y)
        assert grad[0].item() == pytest.approx(s * (1 - s), abs=1e-9)
        assert s * (1 - s) == pytest.approx(0.1778944, abs=5e-8)

    @pytest.mark.parametrize(
        ("w", "x", "db"),
        [
            # 2 t^2 + t = 1 and t - 1/t = 1 with t = e^lambda.
            ([1.0, 2.0], [0.5, 0.25], [1 / 3, 1 / 3]),
            ([1.0, -1.0], [1.6180340, 0.6180340], [0.7236068, -0.2763932]),
        ],
    )
    def test_general_coefficients(self, w: list[float], x: list[float], db: list[float]) -> None:
        b = vec(1).requires_grad_()
        found = kl_project(vec(0, 0), rows(w), b)
        close(found, vec(*x), 5e-8)
        for i in range(2):
            (grad,) = torch.autograd.grad(found[i], b, retain_graph=True)
            assert grad.item() == pytest.approx(db[i], abs=5e-8)

    def test_upper_bounds_are_fermi_dirac(self) -> None:
        close(kl_project(vec(0, 0, 0, 0, 0), ones(5), vec(2), upper=1.0), vec(*[0.4] * 5))
        y = vec(5, 4, 3, 2, 1) / 5
        hard = vec(1, 1, 0, 0, 0)
        close(kl_project(y, ones(5), vec(2), upper=1.0, temperature=0.01), hard, 1e-4)
        close(kl_project(y, ones(5), vec(2), upper=1.0, temperature=0.005), hard, 1e-8)

    def test_pairs_are_the_sigmoid_and_tanh(self) -> None:
        y = torch.from_numpy(np.random.default_rng(0).uniform(-15, 15, 1000))
        for logits, expected in (
            (torch.stack([y, torch.zeros_like(y)], -1), torch.sigmoid(y)),
            (torch.stack([y, -y], -1), torch.tanh(y)),
        ):
            x = kl_project(logits, ones(2), vec(1), tol=1e-15)
            found = x[:, 0] if expected is not None and (expected >= 0).all() else x[:, 0] - x[:, 1]
            close(found, expected, 1e-12)

    @pytest.mark.parametrize(
        ("b", "exact", "slack"), [(6.0, 1.0, 2.0), (1.0, 0.5, 1 / 3), (3.0, 1.0, 1.0)]
    )
    def test_exact_and_slack_inequalities_differ(
        self, b: float, exact: float, slack: float
    ) -> None:
        y = vec(0, 0)
        close(kl_project(y, A_ub=ones(2), b_ub=vec(b)), vec(exact, exact))
        found = kl_project(y, A_ub=ones(2), b_ub=vec(b), inequality="slack")
        close(found, vec(slack, slack))

    def test_a_group_rule_rescales_both_groups(self) -> None:
        y = vec(0.5, 0.1, -0.2, 0.3, 0)
        soft = torch.softmax(y / 0.2, -1)
        assert soft[:2].sum().item() == pytest.approx(0.7027777, abs=5e-8)
        binding = kl_project(y, **matrices(group_at_least(5, [0, 1], 0.9)), temperature=0.2)
        expected = torch.cat([0.9 * soft[:2] / soft[:2].sum(), 0.1 * soft[2:] / soft[2:].sum()])
        close(binding, expected, 1e-9)
        close(binding, vec(0.7927, 0.1073, 0.0063, 0.0766, 0.0171), 5e-5)
        loose = kl_project(y, **matrices(group_at_least(5, [0, 1], 0.5)), temperature=0.2)
        close(loose, soft, 1e-9)

    def test_euclidean_sums(self) -> None:
        y = vec(1, 2, 3)
        close(euclidean_project(y, ones(3), vec(1)), vec(-2 / 3, 1 / 3, 4 / 3))
        close(euclidean_project(y, ones(3), vec(1), lower=0.0), vec(0, 0, 1))
        close(euclidean_project(y, ones(3), vec(3), lower=0.0), vec(0, 1, 2))
        close(euclidean_project(vec(0, 0), rows([1, 2]), vec(3)), vec(0.6, 1.2))

    @pytest.mark.parametrize("engine", ["newton", "admm"])
    def test_euclidean_capped(self, engine: str) -> None:
        x = euclidean_project(
            vec(3, 0.2, 0.1, 0), ones(4), vec(2), lower=0.0, upper=1.0, engine=engine
        )
        close(x, vec(1, 13 / 30, 1 / 3, 7 / 30))

    def test_euclidean_gradient_lives_on_the_free_variables(self) -> None:
        y, b = vec(1, 2, -4).requires_grad_(), vec(3).requires_grad_()
        x = euclidean_project(y, ones(3), b, lower=0.0)
        close(x, vec(1, 2, 0))
        grad_y, grad_b = torch.autograd.grad(x, (y, b), vec(1, 0, 0))
        close(grad_y, vec(0.5, -0.5, 0))
        close(grad_b, vec(0.5))

    @given(st.lists(st.floats(-10, 10), min_size=2, max_size=8))
    def test_the_simplex_is_sparsemax(self, values: list[float]) -> None:
        # The sort algorithm: the largest k with 1 + k y_(k) > sum of the k largest.
        y = np.sort(values)[::-1]
        k = max(j for j in range(1, len(y) + 1) if 1 + j * y[j - 1] > y[:j].sum())
        expected = np.maximum(np.array(values) - (y[:k].sum() - 1) / k, 0)
        found = euclidean_project(vec(*values), ones(len(values)), vec(1), lower=0.0)
        close(found, torch.from_numpy(expected), 1e-9)

    def test_bounds_alone_are_relu_and_clipping(self) -> None:
        y = vec(-2, -0.5, 0.5, 3)
        close(euclidean_project(y, lower=0.0), torch.relu(y))
        close(euclidean_project(y, lower=-1.0, upper=1.0), y.clamp(-1, 1))


def random_problem(
    rng: np.random.Generator, bounded: bool
) -> tuple[np.ndarray, np.ndarray, int, np.ndarray, np.ndarray, np.ndarray]:
    """Feasible by construction around an inner point; mixed signs; (W, b, equalities, l, u, y)."""
    n = int(rng.integers(2, 13))
    m = int(rng.integers(1, min(6, n) + 1))
    equalities = int(rng.integers(0, m + 1))
    equalities = min(equalities, n - 1)
    W = rng.normal(size=(m, n)).round(2)
    inner = rng.uniform(0.2, 0.8, n)
    b = W @ inner
    b[equalities:] += rng.uniform(-0.0, 0.3, m - equalities) + 0.05
    upper = np.where(rng.random(n) < 0.5, 1.0, np.inf) if bounded else np.full(n, np.inf)
    return W, b, equalities, np.zeros(n), upper, rng.normal(size=n)


def split(W: np.ndarray, b: np.ndarray, equalities: int) -> dict[str, Tensor]:
    t = torch.from_numpy
    return {
        "A_eq": t(W[:equalities]),
        "b_eq": t(b[:equalities]),
        "A_ub": t(W[equalities:]),
        "b_ub": t(b[equalities:]),
    }


def violation(x: np.ndarray, W: np.ndarray, b: np.ndarray, equalities: int) -> float:
    r = W @ x - b
    return float(
        max(np.abs(r[:equalities]).max(initial=0), r[equalities:].max(initial=0), (-x).max())
    )


@pytest.mark.parametrize("seed", range(100))
def test_kl_matches_the_conic_solver_and_its_gradient(seed: int) -> None:
    rng = np.random.default_rng([1, seed])
    W, b, p, _, _, y = random_problem(rng, bounded=False)
    tau = float(rng.uniform(0.3, 2))
    x = cp.Variable(len(y))
    objective = cp.sum(-cp.entr(x)) - cp.sum(x) - (y / tau) @ x
    cp.Problem(cp.Minimize(objective), [W[:p] @ x == b[:p], W[p:] @ x <= b[p:]]).solve(
        solver="CLARABEL", **TIGHT
    )
    info = SolveInfo()
    tensors = split(W, b, p)
    found = kl_project(torch.from_numpy(y), **tensors, temperature=tau, info=info)
    assert bool(info.converged.all())
    assert violation(found.numpy(), W, b, p) <= 1e-8
    np.testing.assert_allclose(found.numpy(), x.value, atol=1e-5 * (1 + x.value.max()))
    check_gradient("kl", y, tensors, info, p, W, found, tau=tau)


@pytest.mark.parametrize("seed", range(100))
def test_euclid_matches_the_conic_solver_and_its_gradient(seed: int) -> None:
    rng = np.random.default_rng([2, seed])
    W, b, p, lower, upper, y = random_problem(rng, bounded=True)
    x = cp.Variable(len(y))
    rules = [W[:p] @ x == b[:p], W[p:] @ x <= b[p:], x >= 0]
    capped = np.isfinite(upper)
    if capped.any():
        rules.append(x[capped] <= upper[capped])
    cp.Problem(cp.Minimize(0.5 * cp.sum_squares(x - y)), rules).solve(solver="CLARABEL", **TIGHT)
    info = SolveInfo()
    tensors = split(W, b, p)
    bounds = {"lower": torch.from_numpy(lower), "upper": torch.from_numpy(upper)}
    found = euclidean_project(torch.from_numpy(y), **tensors, **bounds, info=info)
    assert bool(info.converged.all())
    assert violation(found.numpy(), W, b, p) <= 1e-8
    np.testing.assert_allclose(found.numpy(), x.value, atol=1e-5)
    z = found.numpy()
    if np.min(np.abs(np.where(z < 1e-9, np.inf, z))) > 1e-3:
        check_gradient("euclid", y, tensors, info, p, W, found, **bounds)


def check_gradient(
    kind: str,
    y: np.ndarray,
    tensors: dict[str, Tensor],
    info: SolveInfo,
    equalities: int,
    W: np.ndarray,
    x: Tensor,
    tau: float = 1.0,
    **bounds: Tensor,
) -> None:
    """Finite differences, where no rule is near the kink between binding and not."""
    assert info.multipliers is not None
    force = info.multipliers[0, equalities:].abs()
    room = (tensors["b_ub"] - tensors["A_ub"] @ x).abs()
    if bool(((force < 1e-3) & (room < 1e-3)).any()):
        return
    if kind == "euclid":
        z = torch.from_numpy(y) + info.multipliers[0] @ torch.from_numpy(
            W / np.linalg.norm(W, axis=1, keepdims=True)
        )
        edges = torch.stack([z - bounds["lower"], z - bounds["upper"]]).abs()
        if bool((edges < 1e-3).any()):
            return
    leaves = [
        torch.from_numpy(y).clone().requires_grad_(),
        *(tensors[k].clone().requires_grad_() for k in ("A_eq", "b_eq", "A_ub", "b_ub")),
    ]
    if kind == "kl":
        leaves.append(vec(tau)[0].requires_grad_())
        assert gradcheck(
            lambda *a: kl_project(*a[:5], temperature=a[5], tol=1e-13), leaves, atol=1e-4
        )
    else:
        assert gradcheck(lambda *a: euclidean_project(*a, **bounds), leaves, atol=1e-4)


@pytest.mark.parametrize("seed", range(6))
def test_both_equal_the_definitions(seed: int) -> None:
    rng = np.random.default_rng([3, seed])
    W, b, p, lower, upper, y = random_problem(rng, bounded=True)
    W, b, y = W[:3, :4], b[:3], y[:4]
    lower, upper = lower[:4], upper[:4]
    inner = rng.uniform(0.2, 0.8, W.shape[1])
    p = min(p, 1, len(b))
    b = W @ inner + np.where(np.arange(len(b)) < p, 0.0, 0.1)
    bounds = {"lower": torch.from_numpy(lower), "upper": torch.from_numpy(upper)}
    found = euclidean_project(torch.from_numpy(y), **split(W, b, p), **bounds)
    expected = reference.euclidean_project(y, W, b, p, lower, upper)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-8)
    for engine in ("newton", "bregman"):
        found = kl_project(
            torch.from_numpy(y),
            **split(W, b, p),
            upper=bounds["upper"],
            engine=engine,
            max_iter=20_000,
        )
        expected = reference.kl_project(y, W, b, p, upper)
        np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("engine", ["newton", "admm"])
def test_the_euclidean_projection_is_idempotent_and_does_not_expand(engine: str) -> None:
    rng = np.random.default_rng(4)
    c = matrices(doubly_stochastic(4))
    y = torch.from_numpy(rng.normal(size=(40, 16)))
    x = euclidean_project(y, **c, lower=0.0, engine=engine)
    close(euclidean_project(x, **c, lower=0.0, engine=engine), x, 1e-9)
    before = torch.linalg.vector_norm(y[:, None] - y[None], dim=-1)
    after = torch.linalg.vector_norm(x[:, None] - x[None], dim=-1)
    assert bool((after <= before + 1e-9).all())


def test_kl_returns_a_feasible_point_given_its_logarithm() -> None:
    x = kl_project(torch.randn(8, 9, dtype=torch.float64), **matrices(doubly_stochastic(3)))
    close(kl_project(0.3 * x.log(), **matrices(doubly_stochastic(3)), temperature=0.3), x, 1e-9)


def test_the_entropic_gap_of_an_assignment_shrinks_with_the_temperature() -> None:
    n = 6
    c = torch.from_numpy(np.random.default_rng(5).uniform(size=(n, n)))
    i, j = linear_sum_assignment(c.numpy(), maximize=True)
    optimum = c.numpy()[i, j].sum()
    gaps = []
    for tau in (0.5, 0.1, 0.02, 0.005):
        x = kl_project(c.flatten(), **matrices(doubly_stochastic(n)), temperature=tau)
        gaps.append(optimum - float((c.flatten() * x).sum()))
        assert -1e-9 <= gaps[-1] <= tau * n * math.log(n)
    assert gaps == sorted(gaps, reverse=True)


def test_redundant_rows_change_nothing() -> None:
    y = torch.randn(5, 4, dtype=torch.float64).requires_grad_()
    W, b = rows([1, 1, 0, 0], [0, 1, 2, 1]), vec(1, 1.5)
    twice, right = torch.cat([W, W[:1]]), torch.cat([b, b[:1]])
    g = torch.randn(5, 4, dtype=torch.float64)
    for project in (kl_project, lambda *a: euclidean_project(*a, lower=0.0), euclidean_project):
        x, x2 = project(y, W, b), project(y, twice, right)
        close(x2, x, 1e-9)
        (grad,), (grad2,) = torch.autograd.grad(x, y, g), torch.autograd.grad(x2, y, g)
        close(grad2, grad, 1e-9)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.floats(-4, 4), st.floats(-4, 4))
def test_scaling_and_permuting_rows_changes_nothing(seed: int, s1: float, s2: float) -> None:
    rng = np.random.default_rng([6, seed])
    W, b, p, _, upper, y = random_problem(rng, bounded=True)
    factors = 10.0 ** np.resize([s1, s2], len(b))
    order = rng.permutation(len(y))
    t = torch.from_numpy
    for project in (
        lambda y, r, u: kl_project(t(y), **r, upper=t(u)),
        lambda y, r, u: euclidean_project(t(y), **r, lower=0.0, upper=t(u)),
    ):
        x = project(y, split(W, b, p), upper)
        scaled = project(y, split(W * factors[:, None], b * factors, p), upper)
        close(scaled, x, 1e-7)
        permuted = project(y[order], split(W[:, order], b, p), upper[order])
        close(permuted, x[order], 1e-7)


def test_a_batch_equals_a_loop_also_with_rules_of_its_own_for_each_sample() -> None:
    rng = np.random.default_rng(7)
    t = torch.from_numpy
    y = t(rng.normal(size=(5, 6)))
    A = t(rng.uniform(0.2, 1, size=(5, 2, 6)))
    b = (A @ t(rng.uniform(0.2, 0.8, size=(5, 6, 1))))[..., 0]
    for project in (kl_project, lambda *a: euclidean_project(*a, lower=0.0)):
        together = project(y, A, b)
        alone = torch.stack([project(y[i], A[i], b[i]) for i in range(5)])
        close(together, alone, 1e-9)
    shaped = kl_project(y.view(5, 1, 6), A[0], b[:, None])
    assert shaped.shape == (5, 1, 6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rules", [doubly_stochastic(5), capped_simplex(25, 4)], ids=repr)
def test_huge_scores_at_a_tiny_temperature_stay_finite(
    dtype: torch.dtype, rules: LinearConstraints
) -> None:
    y = 1e4 * torch.randn(16, rules.n, dtype=dtype, generator=torch.Generator().manual_seed(0))
    y.requires_grad_()
    info = SolveInfo()
    upper = torch.from_numpy(rules.upper) if np.isfinite(rules.upper).any() else None
    x = kl_project(y, **matrices(rules), upper=upper, temperature=0.01, info=info)
    assert bool(x.isfinite().all())
    assert rules.violation(x.detach().numpy()).max() <= 1e-6
    x.sum().backward()
    assert bool(y.grad.isfinite().all())


def test_a_far_shift_that_costs_the_digits_of_a_rule_is_reported() -> None:
    info = SolveInfo()
    y = vec(0.5, -0.5)
    x = kl_project(y, ones(2), vec(0), lower=-1e12, info=info)
    assert abs(float(x.sum())) > 1e-7 or bool(info.converged.all())
    near = kl_project(y, ones(2), vec(0), lower=-1.0, info=info)
    assert info.converged.tolist() == [True]
    close(near, 2 * torch.softmax(y, -1) - 1, 1e-9)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_whose_squares_leave_the_range_still_count(dtype: torch.dtype, scale: float) -> None:
    y, A, b = vec(1, 2, 3).to(dtype), (ones(3) * scale).to(dtype), vec(scale).to(dtype)
    for x, expected in (
        (kl_project(y, A, b), torch.softmax(y, -1)),
        (euclidean_project(y, A, b, lower=0.0), vec(0, 0, 1).to(dtype)),
    ):
        torch.testing.assert_close(x, expected, atol=1e-6, rtol=0)


def test_one_infeasible_sample_leaves_the_others_right() -> None:
    y = torch.zeros(3, 2, dtype=torch.float64)
    b = torch.tensor([[1.0], [-1.0], [3.0]], dtype=torch.float64)
    for project in (kl_project, lambda *a, **k: euclidean_project(*a, **k, lower=0.0)):
        info = SolveInfo()
        x = project(y, ones(2), b, info=info)
        assert info.converged.tolist() == [True, False, True]
        close(x[[0, 2]], torch.tensor([[0.5, 0.5], [1.5, 1.5]], dtype=torch.float64))


def test_vmap_and_functional_gradients() -> None:
    y = torch.randn(7, 4, dtype=torch.float64)
    b = torch.rand(7, 1, dtype=torch.float64) + 0.5
    for project in (kl_project, lambda *a: euclidean_project(*a, lower=0.0)):
        mapped = torch.func.vmap(lambda y, b: project(y, ones(4), b))(y, b)  # noqa: B023
        # Each may leave 1e-10 (1 + |b|) of the sum, |b| < 1.5; no entry moves more than the sum.
        close(mapped, project(y, ones(4), b), 5e-10)
        jacobian = torch.func.vmap(torch.func.jacrev(lambda y: project(y, ones(4), vec(1))))(y)  # noqa: B023
        x = project(y, ones(4), vec(1))
        if project is kl_project:
            expected = torch.diag_embed(x) - x[:, :, None] * x[:, None, :]  # of softmax
            close(jacobian, expected, 1e-9)
        assert jacobian.shape == (7, 4, 4)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: kl_project(vec(1, math.nan), ones(2), vec(1)), "y"),
        (lambda: euclidean_project(vec(1, math.inf), ones(2), vec(1), lower=0.0), "y"),
        (lambda: kl_project(vec(1, 2), ones(3), vec(1)), "A_eq"),
        (lambda: kl_project(vec(1, 2), ones(2)), "b_eq"),
        (lambda: kl_project(vec(1, 2), ones(2), vec(1), temperature=0.0), "temperature"),
        (lambda: kl_project(vec(1, 2), ones(2), vec(1), inequality="soft"), "inequality"),
        (lambda: kl_project(vec(1, 2), ones(2), vec(1), engine="admm"), "engine"),
        (lambda: euclidean_project(vec(1, 2), ones(2), vec(1), engine="bregman"), "engine"),
        (lambda: euclidean_project(vec(1, math.nan), ones(2), vec(1)), "y has NaN"),
        (lambda: kl_project(vec(1, 2), ones(2) * math.nan, vec(1)), "A_eq"),
        (lambda: euclidean_project(vec(1, 2), ones(2), vec(math.inf)), "b_eq"),
        (lambda: kl_project(vec(1, 2), ones(2), vec(1), tol=0.0), "tol is 0.0"),
        (lambda: euclidean_project(vec(1, 2), ones(2), vec(1), max_iter=0), "max_iter is 0"),
        (lambda: euclidean_project(vec(1, 2), ones(2), vec(1), rho=-1.0), "rho is -1.0"),
        (lambda: kl_project(vec(1, 2), ones(2), vec(1), temperature=vec(-1)[0]), "temperature"),
        (lambda: kl_project(vec(1, 2), ones(2), vec(1), temperature="a"), "temperature"),
        (lambda: kl_project(vec(1, 2), ones(2), vec(1), lower=-math.inf), "lower is -inf"),
        (lambda: kl_project(vec(1, 2), ones(2), vec(1), lower=vec(0, 0, 0)), "lower has the shape"),
        (lambda: kl_project(vec(1, 2), ones(2), vec(1), upper=-1.0), "upper is below lower"),
        (lambda: euclidean_project(vec(1, 2), lower=1.0, upper=0.0), "upper is below lower"),
        (lambda: euclidean_project(vec(1, 2), lower=math.nan), "lower has NaN"),
        (lambda: kl_project(vec(1, 2), ones(2), vec(1), start=vec(0, 0)), "start has the shape"),
        (lambda: kl_project(vec(1, 2), ones(2), torch.ones(3, 1)), "leading shape"),
        (lambda: kl_project(torch.ones(0), None), "n of at least 1"),
    ],
)
def test_bad_input_is_refused_by_name(call: object, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        call()  # type: ignore[operator]


@pytest.mark.parametrize("kind", [list, np.asarray])
def test_what_is_no_tensor_is_refused_by_name(kind: Callable[[object], object]) -> None:
    one = kind([1.0])
    for name, call in (
        ("y", lambda: kl_project(kind([1.0, 2.0]), ones(2), vec(1))),
        ("A_eq", lambda: kl_project(vec(1, 2), kind([[1.0, 1.0]]), one)),
        ("b_ub", lambda: euclidean_project(vec(1, 2), A_ub=ones(2), b_ub=one)),
    ):
        with pytest.raises(TypeError, match=f"{name} is a .*; allowed: a .*tensor"):
            call()


def test_a_dtype_that_is_not_floating_is_refused() -> None:
    with pytest.raises(TypeError, match="float32"):
        kl_project(torch.tensor([1, 2]), ones(2), vec(1))
