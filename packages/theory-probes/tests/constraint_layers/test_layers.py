"""The layers as a torch user meets them: modules, compile, memory, warm starts, failures."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import cvxpy as cp
import numpy as np
import pytest
import torch
from scipy import sparse

from theory_probes.constraint_layers import (
    BinaryLinearConstraintLayer,
    GeneralLinearConstraintLayer,
    LinearConstraints,
    LinearProgramNet,
    NotConverged,
    baselines,
    budget,
    capped_simplex,
    doubly_stochastic,
    flow_conservation,
    group_at_least,
    partial_matching,
    simplex,
    transport,
)

RULES = [
    simplex(6),
    budget(6, 30.0),
    capped_simplex(6, 2),
    doubly_stochastic(3),
    partial_matching(3, 4, 2),
    transport([2, 1], [1, 1, 1]),
    group_at_least(6, [0, 3], 0.7),
    flow_conservation([(0, 1), (1, 2), (0, 2), (2, 0)], [1, 0, -1], 2.0),
]
LAYERS = [BinaryLinearConstraintLayer, GeneralLinearConstraintLayer]


@pytest.mark.parametrize("rules", RULES, ids=lambda rules: f"n{rules.n}-{len(rules.b_ub)}")
@pytest.mark.parametrize("layer_type", LAYERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_set_is_obeyed_in_every_shape(
    rules: LinearConstraints, layer_type: type, dtype: torch.dtype
) -> None:
    layer = layer_type(rules, on_failure="raise").to(dtype)
    for shape in ((rules.n,), (5, rules.n), (2, 3, rules.n), (0, rules.n)):
        y = torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(1))
        x = layer(y)
        assert x.shape == y.shape
        assert x.dtype == dtype
        size = max(1.0, float(np.abs(rules.b_eq).max(initial=0)))
        limit = (1e-5 if dtype == torch.float32 else 1e-8) * size
        assert rules.violation(x.numpy()).max(initial=0) <= limit


@pytest.mark.parametrize("layer_type", LAYERS)
def test_a_layer_survives_state_dict_and_casts(layer_type: type) -> None:
    layer = layer_type(group_at_least(6, [0, 3], 0.7)).double()
    other = layer_type(group_at_least(6, [1, 2], 0.2)).double()
    y = torch.randn(4, 6, dtype=torch.float64)
    assert not torch.equal(layer(y), other(y))
    other.load_state_dict(layer.state_dict())
    assert torch.equal(layer(y), other(y))
    single = layer.float()(y.float())
    torch.testing.assert_close(single, other(y).float(), atol=1e-6, rtol=1e-6)


def test_the_closed_form_compiles_whole() -> None:
    rules = LinearConstraints(4, A_eq=[[1, 1, 1, 1], [1, -1, 0, 2]], b_eq=[1, 0.5])
    layer = GeneralLinearConstraintLayer(rules)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    y = torch.randn(3, 4, requires_grad=True)
    torch.testing.assert_close(compiled(y), layer(y))
    # Twice is once, and the gradient is the projection on the null space.
    torch.testing.assert_close(layer(layer(y)), layer(y), atol=1e-5, rtol=0)
    (grad,) = torch.autograd.grad(compiled(y), y, torch.ones(3, 4))
    A = torch.from_numpy(rules.A_eq).float()
    torch.testing.assert_close(grad @ A.T, torch.zeros(3, 2), atol=1e-5, rtol=0)


def test_cvxpy_models_are_taken_over() -> None:
    x = cp.Variable((2, 3))
    model = [cp.sum(x, axis=1) == 1, x >= 0, 2 * x[0, 1] + x[1, 2] <= 0.8]
    layer = GeneralLinearConstraintLayer(LinearConstraints.from_cvxpy(model))
    y = np.random.default_rng(0).normal(size=(2, 3))
    cp.Problem(cp.Minimize(cp.sum_squares(x - y)), model).solve(solver="CLARABEL")
    found = layer(torch.from_numpy(y.ravel(order="F")))
    np.testing.assert_allclose(found.numpy(), x.value.ravel(order="F"), atol=1e-6)
    z = cp.Variable(2)
    with pytest.raises(ValueError, match="variables"):
        LinearConstraints.from_cvxpy([z[0] + x[0, 0] == 1])
    with pytest.raises(ValueError, match="affine"):
        LinearConstraints.from_cvxpy([cp.square(z) <= 1])


@pytest.mark.parametrize("kind", ["dense", "scipy", "torch"])
def test_matrices_come_dense_or_sparse(kind: str) -> None:
    dense = np.array([[1.0, 0, 2], [0, 1, 0]])
    A = {
        "dense": dense,
        "scipy": sparse.csr_matrix(dense),
        "torch": torch.from_numpy(dense).to_sparse(),
    }[kind]
    np.testing.assert_array_equal(LinearConstraints(3, A, [1, 1]).A_eq, dense)


@pytest.mark.parametrize(
    ("rules", "named"),
    [
        ({"A_eq": [[1, 1], [1, 1]], "b_eq": [1, 2]}, r"A_eq\[0\].*A_eq\[1\]"),
        ({"A_eq": [[1, 1]], "b_eq": [3], "lower": 0, "upper": 1}, r"A_eq\[0\].*upper"),
        ({"A_ub": [[1, 0], [-1, 0]], "b_ub": [1, -2]}, r"A_ub\[0\].*A_ub\[1\]"),
        ({"A_eq": [[1, 1, 1]], "b_eq": [1]}, r"A_eq.*shape"),
        ({"A_eq": [[1, 1]], "b_eq": [1, 2]}, r"b_eq.*shape"),
        ({"A_eq": [[1, 1]]}, "b_eq"),
        ({"A_eq": [[1, math.nan]], "b_eq": [1]}, "NaN"),
        ({"lower": 2, "upper": 1}, r"lower\[0\]"),
        ({"lower": [0, 0, 0]}, "lower"),
    ],
)
def test_rules_that_cannot_be_are_refused_by_name(rules: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        LinearConstraints(2, **rules)  # type: ignore[arg-type]


@pytest.mark.parametrize("layer_type", LAYERS)
def test_layers_refuse_what_does_not_fit(layer_type: type) -> None:
    layer = layer_type(simplex(3))
    with pytest.raises(ValueError, match=r"\(\.\.\., 3\)"):
        layer(torch.zeros(2, 4))
    with pytest.raises(ValueError, match="b_eq"):
        layer(torch.zeros(2, 3), b_eq=torch.ones(3, 1))
    with pytest.raises(ValueError, match="NaN"):
        layer(torch.tensor([1.0, math.nan, 0.0]))
    with pytest.raises(TypeError, match="LinearConstraints"):
        layer_type([[1, 1]])
    for option in ({"tol": 0.0}, {"max_iter": 0}, {"on_failure": "cry"}, {"engine": "magic"}):
        with pytest.raises(ValueError, match=next(iter(option))):
            layer_type(simplex(3), **option)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: simplex(2.5), "n is 2.5"),  # type: ignore[arg-type]
        (lambda: simplex(-1), "n is -1"),
        (lambda: budget(3, "x"), "total is 'x'"),  # type: ignore[arg-type]
        (lambda: doubly_stochastic(2.5), "n is 2.5"),  # type: ignore[arg-type]
        (lambda: partial_matching(0, 3, 1), "rows is 0"),
        (lambda: group_at_least(5, [0.7], 0.5), "index"),  # type: ignore[list-item]
        (lambda: group_at_least(5, [True, False], 0.5), "index"),
        (lambda: group_at_least(5, [], 0.5), "index"),
        (lambda: group_at_least(5, [5], 0.5), "index"),
        (lambda: group_at_least(5, [0], -1.0), "p is -1.0"),
    ],
)
def test_sets_refuse_sizes_that_are_none(make: Callable[[], object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        make()


AFFINE = LinearConstraints(3, A_eq=[[1, 1, 1]], b_eq=[1])


@pytest.mark.parametrize(
    "layer",
    [
        BinaryLinearConstraintLayer(simplex(3)),
        GeneralLinearConstraintLayer(simplex(3)),
        GeneralLinearConstraintLayer(AFFINE),
    ],
    ids=["entropic", "euclidean", "closed form"],
)
def test_layers_refuse_what_is_no_tensor_or_no_number(
    layer: BinaryLinearConstraintLayer | GeneralLinearConstraintLayer,
) -> None:
    for y, said in (
        ([1.0, 2.0, 3.0], "y is a list; allowed: a float32 or float64 tensor"),
        (np.ones(3), "y is a ndarray"),
        (None, "y is a NoneType"),
        (torch.ones(3, dtype=torch.int64), "y is of torch.int64"),
        (torch.ones(3, dtype=torch.float16), "y is of torch.float16"),
    ):
        with pytest.raises(TypeError, match=said):
            layer(y)
    with pytest.raises(ValueError, match="y has NaN"):
        layer(torch.tensor([1.0, math.inf, 0.0]))
    with pytest.raises(TypeError, match="b_eq is a list"):
        layer(torch.ones(3), b_eq=[1.0])
    with pytest.raises(ValueError, match="b_eq"):
        layer(torch.ones(3), b_eq=torch.tensor([math.nan]))
    assert layer(torch.ones(0, 3), sample_ids=torch.zeros(0, dtype=torch.int64)).shape == (0, 3)


HUGE = [1e8, 1e16, 1e30, 1e100, 1e160, 1e300]


@pytest.mark.parametrize("size", HUGE)
@pytest.mark.parametrize(
    ("make", "options"),
    [
        (BinaryLinearConstraintLayer, {}),
        (BinaryLinearConstraintLayer, {"engine": "bregman", "max_iter": 50}),
        (GeneralLinearConstraintLayer, {}),
        (GeneralLinearConstraintLayer, {"engine": "newton"}),
        (GeneralLinearConstraintLayer, {"engine": "admm"}),
        (GeneralLinearConstraintLayer, {"engine": "admm", "polish": False}),
    ],
)
def test_rules_are_obeyed_or_reported_whatever_the_size_of_the_scores(
    size: float, make: type, options: dict[str, object]
) -> None:
    sets = [
        simplex(3),
        capped_simplex(3, 2),
        group_at_least(3, [1, 2], 0.5),
        LinearConstraints(3, A_ub=[[1, 1, 1]], b_ub=[1]),
    ]
    if make is GeneralLinearConstraintLayer:
        sets += [AFFINE, LinearConstraints(3, A_eq=[[1, 0, 0]], b_eq=[1])]
    for rules in sets:
        layer = make(rules, on_failure="ignore", **options)
        for dtype in (torch.float64, torch.float32):
            if size > torch.finfo(dtype).max:
                continue
            y = torch.tensor([[size, 1.0, 2.0], [-1.0, 1.0, 0.5]], dtype=dtype)
            x = layer(y)
            # Half the digits of the dtype, relative to 1 + |b|, for rows of norm at most 3 ** .5.
            limit = 10 * math.sqrt(torch.finfo(dtype).eps)
            good = torch.from_numpy(rules.violation(x.double().numpy()) <= limit)
            assert bool((good | ~layer.last_info.converged).all()), rules
            if "polish" not in options:
                assert bool(layer.last_info.converged[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e4, 1e16, 1e30, 1e37])
def test_huge_scores_have_the_answer_of_the_limit(dtype: torch.dtype, size: float) -> None:
    y = torch.tensor([[size, 1.0, 2.0]], dtype=dtype, requires_grad=True)
    euclidean = GeneralLinearConstraintLayer(simplex(3), on_failure="raise")
    assert euclidean(y).tolist()[0] == pytest.approx([1, 0, 0])
    capped = GeneralLinearConstraintLayer(capped_simplex(3, 2), on_failure="raise")
    # One unit goes to the first, the other is the projection of (1, 2) on a capped simplex of 1.
    assert capped(y).tolist()[0] == pytest.approx([1, 0, 1])
    fixed = LinearConstraints(3, A_eq=[[1, 0, 0]], b_eq=[1])
    found = GeneralLinearConstraintLayer(fixed, on_failure="raise")(y)
    assert found.tolist()[0] == pytest.approx([1, 1, 2])
    (grad,) = torch.autograd.grad(found.sum(), y)
    assert grad.tolist()[0] == pytest.approx([0, 1, 1])
    entropic = BinaryLinearConstraintLayer(simplex(3), on_failure="raise")
    assert entropic(y).tolist()[0] == pytest.approx([1, 0, 0])
    soft = BinaryLinearConstraintLayer(capped_simplex(3, 2), on_failure="raise")
    # What is left after the first is the Fermi-Dirac projection of (1, 2) on a sum of 1: sigmoids
    # of -1/2 and 1/2.
    s = 1 / (1 + math.exp(0.5))
    x = soft(y)
    assert x.tolist()[0] == pytest.approx([1, s, 1 - s], abs=1e-6)
    (grad,) = torch.autograd.grad(x[0, 2], y)
    assert grad.tolist()[0] == pytest.approx([0, -s * (1 - s) / 2, s * (1 - s) / 2], abs=1e-6)


def test_the_closed_form_reports_what_it_could_not_hold() -> None:
    layer = GeneralLinearConstraintLayer(AFFINE)
    y = torch.tensor([[1.0, 2.0, 3.0], [1e30, 1.0, 2.0]], dtype=torch.float64)
    with pytest.warns(RuntimeWarning, match=r"1 of 2 .*samples 1"):
        x = layer(y)
    assert x[0].tolist() == pytest.approx([-2 / 3, 1 / 3, 4 / 3])
    assert layer.last_info.converged.tolist() == [True, False]
    assert layer.last_info.max_violation > 0.5
    mapped = torch.func.vmap(layer)(y)
    torch.testing.assert_close(mapped, x)


def test_the_entropic_layer_refuses_variables_without_room() -> None:
    forced = LinearConstraints(3, [[1, 1, 0], [0, 0, 1]], [0, 1], lower=0)
    with pytest.raises(ValueError, match=r"A_eq\[0\].*\[0, 1\]"):
        BinaryLinearConstraintLayer(forced)
    with pytest.raises(ValueError, match="temperature"):
        BinaryLinearConstraintLayer(simplex(3), temperature=0.0)
    with pytest.raises(ValueError, match=r"upper\[0\]"):
        BinaryLinearConstraintLayer(LinearConstraints(1, upper=-1.0))
    shifted = BinaryLinearConstraintLayer(LinearConstraints(2, [[1, 1]], [0], lower=-1))
    # With x = -1 + x', x' adds to 2: a softmax of 2 less 1.
    y = torch.tensor([0.3, -0.2], dtype=torch.float64)
    torch.testing.assert_close(shifted(y), 2 * torch.softmax(y, -1) - 1)


def test_samples_that_fail_are_reported() -> None:
    rules = simplex(2)
    y, b = torch.zeros(3, 2), torch.tensor([[1.0], [-1.0], [2.0]])
    with pytest.warns(RuntimeWarning, match=r"1 of 3 .*samples 1"):
        BinaryLinearConstraintLayer(rules)(y, b_eq=b)
    with pytest.raises(NotConverged) as caught:
        GeneralLinearConstraintLayer(rules, on_failure="raise")(y, b_eq=b)
    assert caught.value.info.converged.tolist() == [True, False, True]
    layer = BinaryLinearConstraintLayer(rules, on_failure="ignore")
    layer(y, b_eq=b)
    assert layer.last_info.max_violation > 0.5


def test_a_second_visit_starts_where_the_first_ended() -> None:
    layer = BinaryLinearConstraintLayer(doubly_stochastic(6), temperature=0.2)
    y = torch.randn(8, 36, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ids = torch.arange(8)
    cold = layer(y, sample_ids=ids)
    first = layer.last_info.iterations
    warm = layer(y + 1e-4, sample_ids=ids)
    assert layer.last_info.iterations < first
    torch.testing.assert_close(warm, layer(y + 1e-4), atol=1e-9, rtol=0)
    torch.testing.assert_close(cold, layer(y), atol=1e-9, rtol=0)
    with pytest.raises(ValueError, match="sample_ids"):
        layer(y, sample_ids=torch.arange(7))


def test_right_hand_sides_and_temperature_are_trained_through() -> None:
    layer = BinaryLinearConstraintLayer(simplex(3))
    y = torch.randn(4, 3, dtype=torch.float64)
    b = torch.rand(4, 1, dtype=torch.float64).requires_grad_()
    tau = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)

    def scaled(b: torch.Tensor, tau: torch.Tensor) -> torch.Tensor:
        return b * torch.softmax(y / tau, -1)

    g = torch.randn(4, 3, dtype=torch.float64)
    found = torch.autograd.grad(layer(y, b_eq=b, temperature=tau), (b, tau), g)
    expected = torch.autograd.grad(scaled(b, tau), (b, tau), g)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-9, rtol=1e-9)


MEMORY = """
import resource, sys, torch
from theory_probes.constraint_layers import *
torch.set_num_threads(1)
layer = GeneralLinearConstraintLayer(
    doubly_stochastic(12), engine="admm", polish=False, tol=1e-300, max_iter=int(sys.argv[1]),
    on_failure="ignore")
y = torch.randn(256, 144, requires_grad=True)
layer(y).square().sum().backward()
assert layer.last_info.iterations == int(sys.argv[1])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_memory_does_not_grow_with_the_iterations() -> None:
    peaks = []
    for iterations in (50, 1500):
        command = [sys.executable, "-c", MEMORY, str(iterations)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout))
    assert peaks[1] < 1.05 * peaks[0]


@pytest.mark.parametrize("backbone", ["mlp", "gnn"])
@pytest.mark.parametrize("projection", ["euclidean", "entropic"])
def test_the_network_answers_feasibly_and_learns(backbone: str, projection: str) -> None:
    rng = np.random.default_rng(0)
    A = (rng.random((6, 15)) < 0.3).astype(float)
    rules = LinearConstraints(15, A_ub=A, b_ub=np.full(6, 1.5), lower=0.0, upper=1.0)
    net = LinearProgramNet(rules, backbone=backbone, projection=projection, hidden=32, seed=0)  # type: ignore[arg-type]
    c = torch.from_numpy(rng.uniform(size=(32, 15))).float()
    before = net.objective_loss(net.solve(c), c)
    optimiser = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(40):
        loss = net.objective_loss(net(c), c)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss < before
    assert rules.violation(net.solve(c).numpy()).max() <= 1e-5


def test_the_baselines_are_what_they_say() -> None:
    rules = doubly_stochastic(4)
    y = torch.randn(5, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    sinkhorn = baselines.unrolled_sinkhorn(y.view(-1, 4, 4), 0.5, 2000).flatten(1)
    layer = BinaryLinearConstraintLayer(rules, temperature=0.5)
    torch.testing.assert_close(sinkhorn, layer(y), atol=1e-8, rtol=0)
    # Its fixed point on equalities is the Fermi-Dirac projection.
    capped = BinaryLinearConstraintLayer(
        LinearConstraints(16, rules.A_eq, rules.b_eq, lower=0.0, upper=1.0), temperature=0.5
    )
    found = baselines.linsat(y, rules, 0.5, sweeps=2000, tol=1e-10)
    torch.testing.assert_close(found, capped(y), atol=1e-8, rtol=0)
    for inequality in (group_at_least(16, [0, 3], 0.7), partial_matching(4, 4, 3)):
        x = baselines.linsat(y, inequality, 0.5, sweeps=2000, tol=1e-6)
        assert inequality.violation(x.numpy()).max() <= 1e-5
    fixed = baselines.affine_correction(y, LinearConstraints(16, rules.A_eq, rules.b_eq))
    np.testing.assert_allclose(fixed @ torch.from_numpy(rules.A_eq).T, np.ones((5, 8)), atol=1e-9)
    assert float(baselines.penalty(layer(y), rules)) < 1e-12
    assert float(baselines.penalty(y, rules)) > 0.1
    assert baselines.clip_and_renormalise(y, 3.0).sum(-1) == pytest.approx(3.0)


PACKAGE = """
import json, sys, torch
from LinSATNet import linsat_layer
given = json.load(sys.stdin)
t = {k: torch.tensor(v) for k, v in given.items() if k != "tau"}
x = linsat_layer(t.pop("y"), tau=given["tau"], max_iter=100, no_warning=True, **t)
json.dump(x.tolist(), sys.stdout)
"""


@pytest.mark.peers
@pytest.mark.parametrize("kind", ["equalities", "at most", "at least"])
def test_the_linsat_baseline_is_the_package(kind: str) -> None:
    y = torch.randn(3, 16, generator=torch.Generator().manual_seed(4))
    if kind == "equalities":
        rules = doubly_stochastic(4)
        sides = {"E": rules.A_eq, "f": rules.b_eq}
    elif kind == "at most":
        rules = partial_matching(4, 4, 3)
        sides = {"E": rules.A_eq, "f": rules.b_eq, "A": rules.A_ub, "b": rules.b_ub}
    else:
        rules = group_at_least(16, [0, 3], 0.7)
        sides = {"E": rules.A_eq, "f": rules.b_eq, "C": -rules.A_ub, "d": -rules.b_ub}
    given = {"y": y.tolist(), "tau": 0.5, **{k: v.tolist() for k, v in sides.items()}}
    peers = Path(__file__).parents[2] / "benchmarks" / "peers" / "linsatnet.txt"
    command = ["uv", "run", "-q", "--isolated", "--no-project", "--python", "3.11"]
    done = subprocess.run(
        [*command, "--with-requirements", str(peers), "python", "-c", PACKAGE],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=True,
    )
    package = torch.tensor(json.loads(done.stdout))
    # Both stop when rules hold to 1e-3, in another order of the rules.
    torch.testing.assert_close(baselines.linsat(y, rules, 0.5), package, atol=5e-3, rtol=0)
