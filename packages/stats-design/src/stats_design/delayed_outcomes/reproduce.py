"""The paper's comparison: coverage, martingales, widths, and three data sets."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from repro_bench import Claim, Experiment, Outcome, Results
from stats_design.delayed_outcomes.baselines import z_width
from stats_design.delayed_outcomes.batch import delayed_confseq
from stats_design.delayed_outcomes.boundary import boundary, eta2_for, optimal_growth, union_ratio
from stats_design.delayed_outcomes.coverage import arms_of, evaluate_coverage
from stats_design.delayed_outcomes.datasets import (
    CDNOW_LAST_DAY,
    actg320,
    cdnow_customers,
    cdnow_purchases,
    pull_forward,
    rossi,
    synthetic_customers,
)
from stats_design.delayed_outcomes.intervals import SmallSampleWarning
from stats_design.delayed_outcomes.simulate import clocks, potential_frame, simulate_dataset, totals

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Cell = tuple[int, float]
CELLS: tuple[Cell, ...] = ((50, 0.5), (200, 0.5), (1000, 0.5), (200, 0.2))
POPULATION_SEED = 1
ALPHA = 0.05


@dataclass(frozen=True)
class Sizes:
    """Seeds of each part; assignments a seed and cell; draws of the moments; CDNOW runs a seed."""

    seeds: Mapping[str, int]
    assignments: int
    draws: int
    runs: int
    cells: tuple[Cell, ...] = CELLS


def _cell(cell: Cell) -> str:
    return f"n={cell[0]} pi={cell[1]:g}"


def _coverage(method: str, seed: int, sizes: Sizes) -> Outcome:
    methods = {
        "exact-arm": ["exact_0", "exact_1"],
        "asymptotic-arm": ["asymptotic_0", "asymptotic_1"],
    }
    wanted = methods.get(method, [method.replace("-", "_")])
    metrics: dict[str, float | tuple[int, int]] = {}
    for k, (n, propensity) in enumerate(sizes.cells):
        potential = simulate_dataset("staggered", n, POPULATION_SEED, propensity=propensity)
        table = evaluate_coverage(
            potential,
            sizes.assignments,
            wanted,
            alpha=ALPHA,
            seed=np.random.default_rng([seed, k]),
        )
        for row in table.to_dict("records"):
            arm = f" arm {row['method'][-1]}" if len(wanted) == 2 else ""
            metrics[f"miss {_cell((n, propensity))}{arm}"] = (row["misses"], row["reps"])
            metrics[f"width {_cell((n, propensity))}{arm}"] = row["width"]
    return Outcome(metrics)


def _enumerated_gaps(potential: pd.DataFrame, part: str) -> float:
    """Largest |Cov(D_s, D_t) / Var(D_s) - 1| over pairs of event times, by enumeration."""
    arms, times = arms_of(potential)
    p = potential["propensity"].to_numpy()
    n = len(p)
    assigned = ((np.arange(2**n)[:, None] >> np.arange(n)) & 1).astype(bool)
    weights = np.prod(np.where(assigned, p, 1 - p), axis=1)
    paths = [
        arm.path(who, arm.value / arm.chance)[:, arm.index] - truth
        for arm, who, truth in zip(
            arms, (~assigned, assigned), totals(potential, times), strict=True
        )
    ]
    error = paths[1] if part == "arm" else paths[1] - paths[0]
    moments = (weights[:, None] * error).T @ error
    variance = np.diag(moments)
    seen = np.flatnonzero(variance > 0)
    gaps = [abs(moments[s, t] / variance[s] - 1) for i, s in enumerate(seen) for t in seen[i:]]
    return float(max(gaps))


def _martingale(part: str, seed: int, sizes: Sizes) -> Outcome:
    rng = np.random.default_rng(seed)
    n = 8
    entry = np.sort(rng.uniform(0, 4, n))
    small = potential_frame(
        entry,
        (entry + rng.exponential(2, n), entry + rng.exponential(1, n)),
        (rng.uniform(0.5, 2, n), rng.uniform(0.5, 2, n)),
        rng.uniform(0.2, 0.8, n),
    )
    one = potential_frame([0.0], ([2.0], [1.0]), ([1.0], [1.0]), [0.5])
    large = simulate_dataset("staggered", 400, seed)
    arms, times = arms_of(large)
    middle = len(times) // 2
    error = np.zeros((sizes.draws, 2))
    assigned = rng.random((sizes.draws, 400)) < 0.5
    truth = totals(large, times)
    for w, (arm, who) in enumerate(zip(arms, (~assigned, assigned), strict=True)):
        if part == "arm" and w == 0:
            continue
        path = arm.path(who, arm.value / arm.chance)[:, arm.index[[middle, -1]]]
        error += (1 if w else -1) * (path - truth[w][[middle, -1]])
    products = error[:, 0] * (error[:, 1] - error[:, 0])
    z = products.mean() / (products.std(ddof=1) / math.sqrt(sizes.draws))
    return Outcome(
        {
            "relative gap of 8 units": _enumerated_gaps(small, part),
            "relative gap of one unit": _enumerated_gaps(one, part),
            "z of Cov - Var at n=400": float(z),
            "Cov / Var at n=400": float(
                np.mean(error[:, 0] * error[:, 1]) / np.mean(error[:, 0] ** 2)
            ),
        }
    )


def _width(part: str, seed: int, sizes: Sizes) -> Outcome:
    if part == "limits":
        return Outcome(
            {
                "equal clocks, pi=0.25": float(union_ratio(0.25, 1e18, 1e18, ALPHA, 1.0)),
                "one clock, pi=0.5": float(union_ratio(0.5, 1e-6, 1e18, ALPHA, 1.0)),
                "clocks 1:10, pi=0.5": float(union_ratio(0.5, 1e17, 1e18, ALPHA, 1.0)),
                "clocks 1:100, pi=0.5": float(union_ratio(0.5, 10, 1000, ALPHA, 1.0)),
                "clocks 100, pi=0.2": float(union_ratio(0.2, 100, 100, ALPHA, 1.0)),
            }
        )
    metrics: dict[str, float] = {}
    for k, (n, propensity) in enumerate(sizes.cells):
        potential = simulate_dataset("staggered", n, POPULATION_SEED, propensity=propensity)
        table = evaluate_coverage(
            potential,
            sizes.assignments,
            [f"{part}_0", f"{part}_1"],
            alpha=ALPHA,
            seed=np.random.default_rng([seed, k]),
        )
        metrics[f"width {_cell((n, propensity))}"] = float(table["width"].sum())
    return Outcome(metrics)


def _cdnow_population() -> tuple[pd.DataFrame, str]:
    try:
        return pull_forward(cdnow_customers(cdnow_purchases()), POPULATION_SEED), "CDNOW"
    except FileNotFoundError:
        return (
            pull_forward(synthetic_customers(seed=POPULATION_SEED), POPULATION_SEED),
            "synthetic stand-in for CDNOW: lifetimes 0.11.3 is not installed",
        )


def _cdnow(method: str, seed: int, sizes: Sizes) -> Outcome:
    potential, source = _cdnow_population()
    days = np.arange(CDNOW_LAST_DAY + 1.0)
    truth = totals(potential, days)
    effect = truth[1] - truth[0]
    if method == "matured-window":
        return _matured(potential, effect, source)
    targets = clocks(potential, CDNOW_LAST_DAY)
    rng = np.random.default_rng(seed)
    size = len(days)
    day = [np.minimum(potential[f"time_{w}"].to_numpy(), size).astype(np.int64) for w in (0, 1)]
    value = [potential[f"value_{w}"].to_numpy() for w in (0, 1)]
    events = np.cumsum(np.bincount(np.concatenate(day), minlength=size + 1)[:size])
    started = events >= 0.05 * events[-1]
    counts = dict.fromkeys(("miss", "detected by day 90", "covers truth and 0 at day 545"), 0)
    first: list[float] = []
    shares: list[float] = []
    widths: list[np.ndarray] = []
    curve: dict[str, list[float]] = {}
    for run in range(sizes.runs):
        treated = rng.random(len(potential)) < 0.5
        sums = np.zeros((2, 2, size))
        for w, mine in ((0, ~treated), (1, treated)):
            weighted = value[w][mine] / 0.5
            for power in (1, 2):
                per_day = np.bincount(day[w][mine], weighted**power, minlength=size + 1)[:size]
                sums[w, power - 1] = np.cumsum(per_day)
        estimate = sums[1, 0] - sums[0, 0]
        if method == "union":
            width = sum(
                boundary(0.5 * sums[w, 1], ALPHA / 2, eta2_for(targets[w], ALPHA / 2))
                for w in (0, 1)
            )
        elif method == "variance-bound":
            width = boundary(sums[:, 1].sum(axis=0), ALPHA, eta2_for(2 * sum(targets), ALPHA))
        else:
            width = np.where(started, z_width(sums[:, 1].sum(axis=0), ALPHA), np.inf)
        width = np.asarray(width)
        missed = np.abs(estimate - effect) > width
        excluded = np.abs(estimate) > width
        counts["miss"] += int(missed.any())
        counts["detected by day 90"] += int(excluded[:91].any())
        counts["covers truth and 0 at day 545"] += int(not missed.any() and not excluded[-1])
        first.append(float(np.argmax(excluded)) if excluded.any() else math.inf)
        shares.append(float(excluded[60:201].mean()))
        widths.append(width)
        if run == 0:
            kept = np.flatnonzero(np.isfinite(width))
            curve = {
                "day": kept.astype(float).tolist(),
                "truth": effect[kept].tolist(),
                "effect": estimate[kept].tolist(),
                "lower": (estimate - width)[kept].tolist(),
                "upper": (estimate + width)[kept].tolist(),
            }
    mean = np.mean(widths, axis=0)
    quantiles = np.quantile(first, [0.1, 0.5, 0.9], method="lower")
    metrics: dict[str, float | tuple[int, int]] = {k: (v, sizes.runs) for k, v in counts.items()}
    for name, number in zip(("10%", "50%", "90%"), quantiles, strict=True):
        metrics[f"first detection day, {name}"] = (
            float(number) if math.isfinite(number) else math.nan
        )
    metrics["share of days 60-200 excluding 0"] = float(np.mean(shares))
    for look in (60, 90, 180, 545):
        metrics[f"half-width day {look}"] = float(mean[look])
        metrics[f"true effect day {look}"] = float(effect[look])
    return Outcome(metrics, {"run": curve}, {"data": source})


def _matured(potential: pd.DataFrame, effect: np.ndarray, source: str) -> Outcome:
    """What an analysis of closed 90-day windows can say, and when."""
    entry = potential["entry_time"].to_numpy()
    within = [
        float(potential[f"value_{w}"][potential[f"time_{w}"] <= entry + 90].sum()) for w in (0, 1)
    ]
    return Outcome(
        {
            "first report day": float(entry.min() + 90),
            "its effect": within[1] - within[0],
            "its effect minus the total at day 545": within[1] - within[0] - float(effect[-1]),
        },
        notes={"data": source},
    )


def _trials(name: str) -> Outcome:
    try:
        units = actg320() if name == "actg-320" else rossi()
    except ModuleNotFoundError as error:
        return Outcome({"events": math.nan}, notes={"data": f"not measured: {error}"})
    target = 115.1 if name == "actg-320" else 129.6
    metrics: dict[str, float] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmallSampleWarning)
        asymptotic = delayed_confseq(units, propensity=0.5, eta2=optimal_growth(ALPHA / 2) / target)
    exact = delayed_confseq(units, propensity=0.5, target_clock=target, value_range=(0, 1))
    excluded = (asymptotic.effect_upper < 0) | (asymptotic.effect_lower > 0)
    excluded_exact = (exact.effect_upper < 0) | (exact.effect_lower > 0)
    metrics["looks excluding 0"] = float(excluded.sum())
    metrics["looks excluding 0, exact"] = float(excluded_exact.sum())
    metrics["first time excluding 0"] = (
        float(asymptotic.time[excluded].iloc[0]) if excluded.any() else math.nan
    )
    last = asymptotic.iloc[-1]
    metrics["treated total"] = float(last.estimate_1)
    metrics["control total"] = float(last.estimate_0)
    metrics["half-width"] = float(last.effect_upper - last.effect)
    metrics["exact lower"] = float(exact.effect_lower.iloc[-1])
    metrics["exact upper"] = float(exact.effect_upper.iloc[-1])
    columns = {"time": "time", "effect": "effect", "lower": "effect_lower", "upper": "effect_upper"}
    curve = {name: asymptotic[column].tolist() for name, column in columns.items()}
    return Outcome(metrics, {"effect": curve}, {"data": name})


def trial(arm: str, seed: int, sizes: Sizes) -> Outcome:
    """One seed of one arm."""
    part, name = arm.split("/")
    if part == "coverage":
        return _coverage(name, seed, sizes)
    if part == "martingale":
        return _martingale(name, seed, sizes)
    if part == "width":
        return _width(name, seed, sizes)
    if part == "cdnow":
        return _cdnow(name, seed, sizes)
    return _trials(name)


ARMS = {
    "coverage/union": "the effect's sequence: one of each arm at alpha / 2",
    "coverage/variance-bound": "one normal mixture on the variance bound of the difference",
    "coverage/naive": "fixed-look 95% interval at every event after the first 5%",
    "coverage/bonferroni": "fixed-look intervals at 30 looks, each at alpha / 30",
    "coverage/exact-arm": "exact finite-sample sequence of one arm at alpha / 2",
    "coverage/asymptotic-arm": "asymptotic sequence of one arm at alpha / 2",
    "martingale/arm": "error of one arm's estimate",
    "martingale/difference": "error of the estimated difference",
    "width/exact": "exact finite-sample sequences of both arms",
    "width/asymptotic": "asymptotic sequences of both arms",
    "width/limits": "width of the union relative to the variance bound, in closed form",
    "cdnow/union": "second purchases brought forward: the effect's sequence, daily",
    "cdnow/variance-bound": "the same, one mixture on the variance bound",
    "cdnow/naive": "the same, fixed-look 95% interval every day",
    "cdnow/matured-window": "the same, customers with a closed 90-day window only",
    "trials/actg-320": "AIDS or death in 1151 patients, study clock",
    "trials/rossi": "arrests of 432 men, financial aid or none, study clock",
}


def _claims() -> list[Claim]:
    claims = []
    for cell in CELLS:
        name = f"miss {_cell(cell)}"
        claims += [
            Claim(
                text=f"The effect's sequence ever misses the truth at most 5% ({_cell(cell)})",
                metric=name,
                arm="coverage/union",
                at_most=0.05,
            ),
            Claim(
                text=f"A fixed-look interval at every event misses at least 15% ({_cell(cell)})",
                metric=name,
                arm="coverage/naive",
                at_least=0.15,
            ),
        ]
    for w in (0, 1):
        claims += [
            Claim(
                text=f"The exact sequence of arm {w} keeps its level 2.5% on 50 units",
                metric=f"miss n=50 pi=0.5 arm {w}",
                arm="coverage/exact-arm",
                at_most=0.025,
            ),
            Claim(
                text=f"The asymptotic sequence of arm {w} at 2.5% misses at least 4% on 50 units",
                metric=f"miss n=50 pi=0.5 arm {w}",
                arm="coverage/asymptotic-arm",
                at_least=0.04,
            ),
        ]
    claims += [
        Claim(
            text="An arm's error has the covariances of a martingale (8 units, enumerated)",
            metric="relative gap of 8 units",
            arm="martingale/arm",
            at_most=1e-10,
            exact=True,
        ),
        Claim(
            text="The difference has not: one unit whose event times differ, Cov = 2 Var",
            metric="relative gap of one unit",
            arm="martingale/difference",
            at_least=1.0,
            exact=True,
        ),
        Claim(
            text="The difference has not: Cov exceeds Var by 5 standard errors at n = 400",
            metric="z of Cov - Var at n=400",
            arm="martingale/difference",
            at_least=5.0,
        ),
        Claim(
            text="With equal clocks and pi = 1/4 the union has about 2 sqrt(pi(1-pi)) = 0.866 "
            "of the variance bound's width",
            metric="equal clocks, pi=0.25",
            arm="width/limits",
            at_most=0.8645,
            exact=True,
        ),
        Claim(
            text="With one clock alone and pi = 1/2 it has about sqrt(1-pi) = 0.707 of it",
            metric="one clock, pi=0.5",
            arm="width/limits",
            at_most=0.7132,
            exact=True,
        ),
    ]
    for cell in CELLS:
        claims.append(
            Claim(
                text=f"Exactness costs at most 10% of the final width ({_cell(cell)})",
                metric=f"width {_cell(cell)}",
                arm="width/exact",
                than="width/asymptotic",
                direction="lower",
                scale="ratio",
                by=1 / 1.1,
            )
        )
    claims += [
        Claim(
            text="CDNOW: the sequence misses the truth on any of 546 days at most 5%",
            metric="miss",
            arm="cdnow/union",
            at_most=0.05,
        ),
        Claim(
            text="CDNOW: a fixed-look interval read daily misses at least 15%",
            metric="miss",
            arm="cdnow/naive",
            at_least=0.15,
        ),
        Claim(
            text="CDNOW: the pull-forward is seen by day 90 in at least 90% of runs",
            metric="detected by day 90",
            arm="cdnow/union",
            at_least=0.9,
        ),
        Claim(
            text="CDNOW: the truth is covered on all days, and 0 at day 545, in 95% of runs",
            metric="covers truth and 0 at day 545",
            arm="cdnow/union",
            at_least=0.95,
        ),
        Claim(
            text="CDNOW: an analysis of closed 90-day windows says nothing before day 90",
            metric="first report day",
            arm="cdnow/matured-window",
            at_least=90.0,
            exact=True,
        ),
        Claim(
            text="CDNOW: and its effect is above the total at day 545 by more than 10,000 dollars",
            metric="its effect minus the total at day 545",
            arm="cdnow/matured-window",
            at_least=10_000.0,
            exact=True,
        ),
        Claim(
            text="ACTG 320: zero is first excluded by day 233 ...",
            metric="first time excluding 0",
            arm="trials/actg-320",
            at_most=233.0,
            exact=True,
        ),
        Claim(
            text="ACTG 320: ... and not before",
            metric="first time excluding 0",
            arm="trials/actg-320",
            at_least=233.0,
            exact=True,
        ),
        Claim(
            text="Rossi: no look excludes zero",
            metric="looks excluding 0",
            arm="trials/rossi",
            at_most=0.0,
            exact=True,
        ),
    ]
    return claims


def plot_miss(results: Results) -> Figure:
    """Miss rates of the methods in each cell."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    methods = [a for a in results.arms if a.startswith("coverage/") and not a.endswith("-arm")]
    cells = [_cell(c) for c in CELLS]
    for k, arm in enumerate(methods):
        rates = []
        for cell in cells:
            pooled = [o.metrics.get(f"miss {cell}") for o in results.of(arm).values()]
            pairs = [p for p in pooled if isinstance(p, tuple)]
            total = sum(n for _, n in pairs)
            rates.append(sum(s for s, _ in pairs) / total if total else math.nan)
        at = np.arange(len(cells)) + (k - (len(methods) - 1) / 2) * 0.2
        axes.bar(at, rates, width=0.18, label=arm.removeprefix("coverage/"))
    axes.axhline(ALPHA, color="grey", lw=0.8, ls="--", label="alpha")
    axes.set_xticks(range(len(cells)), cells)
    axes.set_ylabel("misses the truth at any time")
    axes.legend()
    return figure


def plot_cdnow(results: Results) -> Figure:
    """One CDNOW run: truth, estimate and both intervals."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    for k, arm in enumerate(("cdnow/union", "cdnow/naive")):
        for outcome in list(results.of(arm).values())[:1]:
            curve = outcome.curves["run"]
            axes.fill_between(
                curve["day"], curve["lower"], curve["upper"], color=f"C{k}", alpha=0.25, lw=0,
                label=arm.removeprefix("cdnow/"),
            )  # fmt: skip
            if k == 0:
                axes.plot(curve["day"], curve["effect"], color="C0", label="estimate")
                axes.plot(curve["day"], curve["truth"], color="C3", ls="--", label="truth")
    axes.axhline(0, color="grey", lw=0.8)
    axes.set_xlabel("day")
    axes.set_ylabel("effect on total spend so far, dollars")
    axes.legend()
    return figure


def plot_trials(results: Results) -> Figure:
    """The effect over the study clock in both trials."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    panels = figure.subplots(1, 2)
    for axes, arm in zip(panels, ("trials/actg-320", "trials/rossi"), strict=True):
        for outcome in list(results.of(arm).values())[:1]:
            if "effect" in outcome.curves:
                curve = outcome.curves["effect"]
                axes.step(curve["time"], curve["effect"], where="post", color="C0")
                axes.fill_between(
                    curve["time"], curve["lower"], curve["upper"], step="post", alpha=0.25, lw=0
                )
        axes.axhline(0, color="grey", lw=0.8)
        axes.set_title(arm.removeprefix("trials/"))
        axes.set_xlabel("days" if "actg" in arm else "weeks")
    panels[0].set_ylabel("effect on events, had all been in the arm")
    return figure


EXPERIMENT = Experiment(
    name="delayed-outcomes",
    version=1,
    field="stats-design",
    paper="Lindon and Kallus, Design-Based Anytime-Valid Inference for Randomized Experiments with "
    "Delayed Outcomes and Staggered Entry, ICML 2026, arXiv 2603.25971",
    arms=ARMS,
    claims=_claims(),
    trial=trial,
    presets={
        "smoke": Sizes(
            {"coverage": 1, "martingale": 1, "width": 1, "cdnow": 1, "trials": 1}, 20, 500, 2
        ),
        "quick": Sizes(
            {"coverage": 5, "martingale": 5, "width": 5, "cdnow": 5, "trials": 1}, 100, 4000, 10
        ),
        "standard": Sizes(
            {"coverage": 8, "martingale": 8, "width": 8, "cdnow": 8, "trials": 1}, 1250, 20_000, 100
        ),
        "full": Sizes(
            {"coverage": 20, "martingale": 20, "width": 20, "cdnow": 20, "trials": 1},
            5000,
            20_000,
            200,
            tuple((n, p) for n in (50, 200, 1000, 5000) for p in (0.1, 0.2, 0.5)),
        ),
    },
    plots={
        "How often each method misses the truth at any time": plot_miss,
        "CDNOW, one run: a pull-forward that vanishes": plot_cdnow,
        "ACTG 320 and Rossi: the effect over the study clock": plot_trials,
    },
)
