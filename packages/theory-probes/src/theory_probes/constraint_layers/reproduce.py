"""The paper's comparisons: projections, linear programs, partial matching, portfolios."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.optimize import linprog
from torch import Tensor

from repro_bench import Claim, Experiment, Outcome, Results

from . import baselines, matching, portfolio
from .constraints import LinearConstraints
from .layers import BinaryLinearConstraintLayer, GeneralLinearConstraintLayer
from .linear_program import LinearProgramNet
from .sets import doubly_stochastic, partial_matching

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RISK_FREE = 0.03


@dataclass(frozen=True)
class Sizes:
    """How much of each part is run."""

    seeds: int | dict[str, int]
    side: int = 10
    batch: int = 64
    lp_rows: int = 50
    lp_columns: int = 200
    lp_steps: int = 500
    lp_tests: int = 64
    match_samples: int = 512
    match_steps: int = 150
    portfolio_epochs: int = 10
    arms: tuple[str, ...] | None = None


PRESETS = {
    "smoke": Sizes(1, 4, 4, 6, 12, 3, 4, 16, 3, 1),
    "quick": Sizes(
        {"projection": 5, "lp": 5, "matching": 2, "portfolio": 2},
        lp_steps=0,
        match_samples=128,
        match_steps=60,
        portfolio_epochs=2,
        arms=(
            "projection",
            "lp/untrained-.05",
            "lp/untrained-.02",
            "matching",
            "portfolio",
        ),
    ),
    "standard": Sizes(6),
    "full": Sizes(20, 20, 512, 100, 1000, 5000, 256, 2048, 2000, 50),
}

ARMS = {
    "projection/entropic": "the KL layer on doubly stochastic matrices, float32",
    "projection/euclidean": "the Euclidean layer on them",
    "projection/linsat": "LinSATNet's iteration, stopped at 1e-3",
    "projection/sinkhorn": "200 unrolled sweeps of Sinkhorn's",
    "projection/clip": "clipped and renormalised, rows and columns ignored",
    "lp/glcnet": "MLP and Euclidean layer, trained on the objective",
    "lp/blcnet": "MLP and KL layer at temperature .05, trained on the objective",
    "lp/untrained-.05": "the KL layer on the objective itself, temperature .05",
    "lp/untrained-.02": "the same at .02",
    "lp/slack": "the same at .05 with slack variables",
    "lp/one-shot": "HardNet's closed-form correction of the objective itself",
    "matching/blc": "KL layer: rows and columns at most 1, as many matches as inliers",
    "matching/linsat": "LinSATNet's iteration on the same rules",
    "matching/sinkhorn": "doubly stochastic, outliers matched too",
    "portfolio/blc": "KL layer: weights add to 1, half of them in preferred stocks",
    "portfolio/linsat": "LinSATNet's iteration on the same rules",
    "portfolio/softmax-penalty": "softmax, the preferred share as a penalty",
}

CLAIMS = [
    Claim(
        text="The KL layer obeys its rules to 1e-5",
        metric="violation",
        arm="projection/entropic",
        at_most=1e-5,
        exact=True,
    ),
    Claim(
        text="The Euclidean layer obeys its rules to 1e-5",
        metric="violation",
        arm="projection/euclidean",
        at_most=1e-5,
        exact=True,
    ),
    Claim(
        text="The KL layer's violation is at most a hundredth of LinSATNet's",
        metric="violation",
        arm="projection/entropic",
        than="projection/linsat",
        direction="lower",
        scale="ratio",
        by=100.0,
    ),
    Claim(
        text="GLCNet's answers to linear programs are feasible to 1e-5",
        metric="violation",
        arm="lp/glcnet",
        at_most=1e-5,
        exact=True,
    ),
    Claim(
        text="GLCNet reaches 90% of the optimum",
        metric="ratio",
        arm="lp/glcnet",
        at_least=0.90,
    ),
    Claim(
        text="BLCNet at temperature .05 reaches 95% of the optimum",
        metric="ratio",
        arm="lp/blcnet",
        at_least=0.95,
    ),
    Claim(
        text="The KL layer alone reaches 95% at temperature .05",
        metric="ratio",
        arm="lp/untrained-.05",
        at_least=0.95,
    ),
    Claim(
        text="The KL layer alone is feasible to 1e-5",
        metric="violation",
        arm="lp/untrained-.05",
        at_most=1e-5,
        exact=True,
    ),
    Claim(
        text="With outliers BLC matches better than Sinkhorn by .05 in F1",
        metric="f1",
        arm="matching/blc",
        than="matching/sinkhorn",
        by=0.05,
    ),
    Claim(
        text="BLC matches as well as LinSATNet, to .02 in F1",
        metric="f1",
        arm="matching/blc",
        than="matching/linsat",
        by=-0.02,
    ),
    Claim(
        text="Portfolio weights obey the rules to 1e-6",
        metric="violation",
        arm="portfolio/blc",
        at_most=1e-6,
        exact=True,
    ),
    Claim(
        text="A softmax with a penalty breaks them by more than 1e-2",
        metric="violation",
        arm="portfolio/softmax-penalty",
        at_least=1e-2,
    ),
    Claim(
        text="The Sharpe ratio is not worse than LinSATNet's by more than .1",
        metric="sharpe",
        arm="portfolio/blc",
        than="portfolio/linsat",
        by=-0.1,
    ),
]


def trial(arm: str, seed: int, sizes: Sizes) -> Outcome:
    part, method = arm.split("/")
    run = {"projection": _projection, "lp": _lp, "matching": _matching, "portfolio": _portfolio}
    with warnings.catch_warnings():
        # What is not converged shows in the violation, which is a metric of every part.
        warnings.simplefilter("ignore", RuntimeWarning)
        return run[part](method, seed, sizes)


def _projection(method: str, seed: int, sizes: Sizes) -> Outcome:
    n = sizes.side
    rules = doubly_stochastic(n)
    generator = torch.Generator().manual_seed(seed)
    y = torch.randn(sizes.batch, n * n, generator=generator)
    layers: dict[str, Callable[[Tensor], Tensor]] = {
        "entropic": BinaryLinearConstraintLayer(rules, temperature=0.2),
        "euclidean": GeneralLinearConstraintLayer(rules),
        "linsat": lambda y: baselines.linsat(y, rules, 0.2),
        "sinkhorn": lambda y: baselines.unrolled_sinkhorn(y.view(-1, n, n), 0.2, 200).flatten(1),
        "clip": lambda y: baselines.clip_and_renormalise(y, float(n)),
    }
    layer = layers[method]
    y.requires_grad_()
    started = time.process_time()
    x = layer(y)
    forward = time.process_time()
    x.square().sum().backward()
    return Outcome(
        {
            "violation": float(rules.violation(x.detach().numpy()).max()),
            "forward_ms": 1e3 * (forward - started),
            "backward_ms": 1e3 * (time.process_time() - forward),
        }
    )


def _lp(method: str, seed: int, sizes: Sizes) -> Outcome:
    m, n = sizes.lp_rows, sizes.lp_columns
    rng = np.random.default_rng(seed)
    A = (rng.random((m, n)) < 0.1).astype(np.float64)
    rules = LinearConstraints(n, A_ub=A, b_ub=np.full(m, 2.0), lower=0.0, upper=1.0)
    tests = rng.uniform(size=(sizes.lp_tests, n))
    optima, highs_ms = [], []
    for c in tests:
        started = time.process_time()
        best = linprog(-c, A_ub=A, b_ub=rules.b_ub, bounds=(0, 1), method="highs").x
        optima.append(float(c @ best))
        highs_ms.append(1e3 * (time.process_time() - started))
    curve: dict[str, list[float]] = {"step": [], "objective": []}
    answer: Callable[[Tensor], Tensor]
    if method in ("glcnet", "blcnet"):
        kind = "euclidean" if method == "glcnet" else "entropic"
        net = LinearProgramNet(rules, projection=kind, seed=seed)  # type: ignore[arg-type]
        optimiser = torch.optim.Adam(net.parameters(), lr=1e-3)
        for step in range(sizes.lp_steps):
            c = torch.from_numpy(rng.uniform(size=(32, n))).float()
            loss = net.objective_loss(net(c), c)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            if step % 50 == 0:
                curve["step"].append(step)
                curve["objective"].append(-loss.item())
        answer = net.solve
    elif method == "one-shot":
        answer = lambda c: baselines.affine_correction(c, rules)  # noqa: E731
    else:
        slack = method == "slack"
        tau = 0.05 if slack else float(method.removeprefix("untrained-"))
        answer = BinaryLinearConstraintLayer(
            rules, temperature=tau, inequality="slack" if slack else "exact"
        )
    c = torch.from_numpy(tests).float()
    started = time.process_time()
    with torch.no_grad():
        x = answer(c).numpy().astype(np.float64)
    spent = 1e3 * (time.process_time() - started) / len(tests)
    return Outcome(
        {
            "ratio": float(np.mean((x * tests).sum(1) / np.array(optima))),
            "violation": float(rules.violation(x).max()),
            "instance_ms": spent,
            "highs_ms": float(np.mean(highs_ms)),
        },
        {"training": curve},
    )


def _matching(method: str, seed: int, sizes: Sizes) -> Outcome:
    inliers, outliers = 12, 4
    n = inliers + outliers
    rng = np.random.default_rng(seed)
    clouds = matching.make_clouds(sizes.match_samples, inliers, outliers, 0.05, rng)
    fresh = matching.make_clouds(200, inliers, outliers, 0.05, rng)
    rules = partial_matching(n, n, inliers)
    layers: dict[str, Callable[[Tensor], Tensor]] = {
        "blc": BinaryLinearConstraintLayer(rules),
        "linsat": lambda y: baselines.linsat(y, rules, 1.0),
        "sinkhorn": BinaryLinearConstraintLayer(doubly_stochastic(n)),
    }
    layer = layers[method]
    started = time.process_time()
    net = matching.train(layer, clouds, sizes.match_steps, 32, seed)
    spent = time.process_time() - started
    with torch.no_grad():
        x = layer(net(fresh.left, fresh.right).flatten(1)).view(-1, n, n).numpy()
    truth = fresh.match.numpy()
    return Outcome(
        {
            "f1": matching.f1_of_best(x, truth, inliers),
            "f1_all": matching.f1_of_best(x, truth, n),
            "step_ms": 1e3 * spent / max(1, sizes.match_steps),
        }
    )


def _portfolio(method: str, seed: int, sizes: Sizes) -> Outcome:
    try:
        returns = portfolio.load_returns()
    except FileNotFoundError:
        returns = portfolio.synthetic_returns(2500, 20, seed)
    past, future, days = portfolio.windows(returns, 60, 30, 5)
    training = torch.tensor([day < "2020-06-01" for day in days])
    n = len(returns.tickers)
    chosen = np.isin(returns.tickers, portfolio.PREFERRED)
    rules = LinearConstraints(
        n, np.ones((1, n)), [1.0], -chosen[None].astype(float), [-0.5], lower=0.0
    )
    layers: dict[str, Callable[[Tensor], Tensor]] = {
        "blc": BinaryLinearConstraintLayer(rules, temperature=0.1),
        "linsat": lambda y: baselines.linsat(y, rules, 0.1),
        "softmax-penalty": lambda y: baselines.softmax(y, 0.1),
    }
    layer = layers[method]
    started = time.process_time()
    net = portfolio.train(
        layer,
        past[training],
        future[training],
        epochs=sizes.portfolio_epochs,
        hidden=64,
        risk_free=RISK_FREE,
        seed=seed,
        extra_loss=(lambda w: baselines.penalty(w, rules)) if method == "softmax-penalty" else None,
    )
    spent = time.process_time() - started
    # Tested from 2021 on, rebalanced every 30 days.
    test_past, test_future, test_days = portfolio.windows(returns, 60, 30, 30)
    later = torch.tensor([day >= "2021-01-01" for day in test_days])
    with torch.no_grad():
        weights = layer(net(test_past[later])[1])
    daily = (test_future[later] * weights[:, None]).sum(-1).flatten().double()
    low, high = portfolio.block_bootstrap(daily.numpy(), RISK_FREE, 30, np.random.default_rng(seed))
    return Outcome(
        {
            "sharpe": float(portfolio.sharpe(daily, RISK_FREE)),
            "sharpe_low": low,
            "sharpe_high": high,
            "violation": float(rules.violation(weights.numpy()).max()),
            "seconds": spent,
        },
        {"wealth": {"day": list(range(len(daily))), "wealth": (1 + daily).cumprod(0).tolist()}},
        {"prices": f"{returns.source}, {n} stocks, {returns.dates[0]} to {returns.dates[-1]}"},
    )


def plot_violations(results: Results) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.5))
    axes = figure.subplots()
    arms = [arm for arm in results.arms if results.values(arm, "violation")]
    for place, arm in enumerate(arms):
        values = np.maximum(list(results.values(arm, "violation").values()), 1e-17)
        axes.plot(values, [place] * len(values), "o", alpha=0.6)
    axes.set_yticks(range(len(arms)), arms)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("largest violation of a rule")
    return figure


def plot_ratios(results: Results) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.5))
    left, right = figure.subplots(1, 2)
    arms = [arm for arm in results.arms if arm.startswith("lp/")]
    for arm in arms:
        values = list(results.values(arm, "ratio").values())
        left.plot(values, [arm.removeprefix("lp/")] * len(values), "o", alpha=0.6)
        for outcome in list(results.of(arm).values())[:1]:
            curve = outcome.curves["training"]
            if curve["step"]:
                right.plot(curve["step"], curve["objective"], label=arm.removeprefix("lp/"))
    left.set_xlabel("objective by optimum")
    right.set_xlabel("step")
    right.set_ylabel("objective in training")
    if right.lines:
        right.legend()
    figure.tight_layout()
    return figure


def plot_wealth(results: Results) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.5))
    axes = figure.subplots()
    for arm in (arm for arm in results.arms if arm.startswith("portfolio/")):
        curves = [o.curves["wealth"] for o in results.of(arm).values()]
        if curves:
            mean = np.mean([c["wealth"] for c in curves], axis=0)
            axes.plot(curves[0]["day"], mean, label=arm.removeprefix("portfolio/"))
    axes.set_xlabel("trading days from 2021 on")
    axes.set_ylabel("wealth, mean over seeds")
    if axes.lines:
        axes.legend()
    return figure


EXPERIMENT = Experiment(
    name="constraint-layers",
    version=1,
    field="theory-probes",
    paper="Yan, Liu, Tu, Zhou, Pan, Gui, Shi: Linear-constraint layers by implicit convex"
    " optimisation (BLCLayer, GLCLayer). ICML 2026.",
    arms=ARMS,
    claims=CLAIMS,
    trial=trial,
    presets=PRESETS,
    plots={
        "How far each method breaks its rules": plot_violations,
        "Linear programs: objective by optimum, and training": plot_ratios,
        "Portfolios on the test years": plot_wealth,
    },
)
