"""The paper's headline comparisons: the plateau of payers, the frontier, and truthful prices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mechanism_design._data import DataNotInstalled
from repro_bench.experiment import Claim, Experiment, Outcome, Results

from .auction import AccuracyAuction
from .audit import audit_truthfulness
from .bidding import simulate_bidding
from .data import Users, load_adult, make_gaussian_users, values_from_hours, values_from_labels
from .forecast import gaussian_payer_limit
from .frontier import welfare_accuracy_frontier
from .knn import KNNAccuracyAuction

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Sizes:
    """The sizes of a run."""

    seeds: int | Mapping[str, int]
    m_grid: tuple[int, ...] = (4096, 8192, 16384, 32768, 65536)
    repeats: int = 4
    separation_m: int = 500
    price_m: int = 600
    one_shot_draws: int = 1
    adult: tuple[int, int] = (18_000, 12_000)
    alphas: int = 20
    strategic_m: int = 400
    audit_users: int = 20
    arms: tuple[str, ...] | None = None


_SDS = {"sd-0.2": 0.2, "sd-0.5": 0.5, "sd-1": 1.0, "sd-2": 2.0}
_D, _DISTANCE, _LAM = 16, 0.5, 1.0
_DRAWS = {"sampled-1": 1, "sampled-3": 3, "sampled-6": 6, "sampled-9": 9}
_MU = {"one-shot-0.25": 0.25, "one-shot-0.5": 0.5, "one-shot-0.75": 0.75}


def trial(arm: str, seed: int, sizes: Sizes) -> Outcome:
    """One arm on one draw of its users."""
    part, _, variant = arm.partition("/")
    if part == "plateau":
        return _plateau(variant, seed, sizes)
    if part == "separation":
        return _separation(variant, seed, sizes)
    if part == "prices":
        return _prices(variant, seed, sizes)
    if part == "frontier":
        return _frontier(variant, seed, sizes)
    return _strategic(variant, seed, sizes)


def _plateau(variant: str, seed: int, sizes: Sizes) -> Outcome:
    sd = _SDS.get(variant, 1.0)
    payers, revenue = [], []
    for step, m in enumerate(sizes.m_grid):
        found = []
        # Payers among neighbours are so many that one draw is precise.
        for repeat in range(1 if variant == "knn" else sizes.repeats):
            rng = np.random.default_rng([seed, step, repeat])
            X, y, values = make_gaussian_users(m, _D, _DISTANCE, sd, seed=rng)
            if variant == "knn":
                # Unit values tie; how many pay is a matter of the neighbours, not of the amounts.
                auction = KNNAccuracyAuction(k=5).fit(X, y, rng.uniform(size=m))
            else:
                auction = AccuracyAuction(loss="hinge", lam=_LAM).fit(X, y, values)
            found.append((auction.n_payers_, auction.revenue_))
        payers.append(float(np.mean([n for n, _ in found])))
        revenue.append(float(np.mean([r for _, r in found])))
    metrics = {"payers": payers[-1], "revenue": revenue[-1]}
    if len(payers) > 2:
        # Half a payer keeps the logarithm of an empty draw finite.
        logs = np.log(np.maximum(payers, 0.5))
        metrics["slope"] = float(np.polyfit(np.log(sizes.m_grid), logs, 1)[0])
    if variant != "knn":
        limit = gaussian_payer_limit(_D, _DISTANCE, sd, _LAM)
        metrics["payers_over_limit"] = float(np.mean(payers)) / limit
        metrics["revenue_over_limit"] = float(np.mean(revenue)) / (limit / 2)
    curve = {"users": [float(m) for m in sizes.m_grid], "payers": payers, "revenue": revenue}
    return Outcome(metrics, {"growth": curve})


def _separation(variant: str, seed: int, sizes: Sizes) -> Outcome:
    distance = {"close": 0.5, "far": 3.0}[variant]
    rng = np.random.default_rng([seed, 1])
    X, y, values = make_gaussian_users(2 * sizes.separation_m, _D, distance, 1.0, seed=rng)
    half = sizes.separation_m
    auction = AccuracyAuction(loss="hinge", lam=_LAM).fit(X[:half], y[:half], values[:half])
    return Outcome(
        {
            "share_of_payers": auction.n_payers_ / half,
            "held_out_accuracy": float(auction.score(X[half:], y[half:])),
        }
    )


def _prices(variant: str, seed: int, sizes: Sizes) -> Outcome:
    rng = np.random.default_rng([seed, 2])
    X, y, values = make_gaussian_users(
        sizes.price_m, 8, _DISTANCE, 1.0, values="gamma", variance=1.0, seed=rng
    )
    common = {"loss": "hinge", "lam": 0.02}
    exact = AccuracyAuction(**common).fit(X, y, values)  # type: ignore[arg-type]
    total = max(exact.revenue_, 1e-12)
    metrics = {"revenue": exact.revenue_, "payers": float(exact.n_payers_)}
    errors, welfare = [], []
    for _ in range(sizes.one_shot_draws):
        if variant == "exact":
            judge = AccuracyAuction(payments="bisect", **common)  # type: ignore[arg-type]
            found = judge.fit(X, y, values)
        elif variant in _DRAWS:
            found = AccuracyAuction(
                payments="sampled",
                n_draws=_DRAWS[variant],
                random_state=rng,
                **common,  # type: ignore[arg-type]
            ).fit(X, y, values)
        else:
            found = AccuracyAuction(
                payments="one_shot",
                mu=_MU[variant],
                random_state=rng,
                **common,  # type: ignore[arg-type]
            ).fit(X, y, values)
        errors.append(float(np.abs(found.payments_ - exact.payments_).sum()) / total)
        welfare.append(found.welfare_ / float(values.sum()))
    metrics["price_error"] = float(np.mean(errors))
    metrics["welfare"] = float(np.mean(welfare))
    return Outcome(metrics)


def _census(seed: int) -> tuple[Users, str]:
    try:
        return load_adult(), "Adult (UCI)"
    except DataNotInstalled as missing:
        rng = np.random.default_rng([seed, 3])
        X, y, _ = make_gaussian_users(40_000, 10, 1.5, 1.0, seed=rng)
        keep = (y < 0) | (rng.random(len(y)) < 1 / 3)
        import pandas as pd

        hours = rng.choice([30.0, 40.0, 50.0], p=[0.22, 0.47, 0.31], size=int(keep.sum()))
        labels = y[keep] > 0
        users = Users(pd.DataFrame(X[keep]), labels, values_from_hours(hours), hours)
        return users, f"synthetic Gaussian users, because {missing}"


def _frontier(variant: str, seed: int, sizes: Sizes) -> Outcome:
    users, data = _census(seed)
    values = (
        users.values
        if variant == "hours"
        else values_from_labels(users.y, float(variant.removeprefix("label-")))
    )
    order = np.random.default_rng([seed, 4]).permutation(len(values))
    train = order[: sizes.adult[0]]
    test = order[sizes.adult[0] : sum(sizes.adult)]
    X = users.X.to_numpy()
    curve = welfare_accuracy_frontier(
        X[train],
        users.y[train],
        values[train],
        sizes.alphas,
        test=(X[test], users.y[test], values[test]),
    )
    end = curve.iloc[-1]
    columns = {str(name): curve[name].tolist() for name in curve.columns}
    return Outcome(
        {
            "welfare_change": float(end["welfare_change"]),
            "accuracy_change": float(end["accuracy_change"]),
            "welfare": float(end["welfare"]),
            "accuracy": float(end["accuracy"]),
        },
        {"frontier": columns},
        {"data": data},
    )


def _strategic(variant: str, seed: int, sizes: Sizes) -> Outcome:
    rng = np.random.default_rng([seed, 5])
    X, y, _ = make_gaussian_users(sizes.strategic_m, 8, _DISTANCE, 1.0, seed=rng)
    values = rng.gamma(1.0, 1.0, len(y)) * np.where(y > 0, 6.0, 1.0)
    payments = "exact" if variant == "auction" else "none"
    mechanism = AccuracyAuction(loss="logistic", lam=0.02, payments=payments)  # type: ignore[arg-type]
    strategy = "truthful" if variant == "auction" else "cap"
    found = simulate_bidding(mechanism, X, y, values, strategy)  # type: ignore[arg-type]
    audit = audit_truthfulness(mechanism, X, y, values, n_users=sizes.audit_users, seed=rng)
    gains = int((audit.table["gain"] > 1e-9).sum())
    uniform = AccuracyAuction(
        loss="logistic", C=float(found.mechanism.scale_ * values.max()), payments="none"
    ).fit(X, y)
    differ = int((found.mechanism.predict(X) != uniform.predict(X)).sum())
    return Outcome(
        {
            "welfare": found.welfare,
            "profitable_misreports": (gains, len(audit.table)),
            "largest_gain": audit.max_gain,
            "differs_from_uniform": float(differ),
        }
    )


def _plot_growth(results: Results) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for arm in results.arms:
        if not arm.startswith("plateau/"):
            continue
        curves = [o.curves["growth"] for o in results.of(arm).values()]
        if curves:
            mean = np.mean([c["payers"] for c in curves], axis=0)
            (line,) = axes.plot(curves[0]["users"], mean, marker="o", label=arm.split("/")[1])
            sd = _SDS.get(arm.split("/")[1])
            if sd is not None:
                limit = gaussian_payer_limit(_D, _DISTANCE, sd, _LAM)
                axes.axhline(limit, linestyle=":", color=line.get_color(), linewidth=1)
    axes.set(xscale="log", yscale="log", xlabel="users", ylabel="users who pay (mean)")
    axes.legend(frameon=False)
    return figure


def _plot_frontier(results: Results) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    panels = figure.subplots(1, 2)
    for arm in results.arms:
        if not arm.startswith("frontier/"):
            continue
        curves = [o.curves["frontier"] for o in results.of(arm).values()]
        for axes, name in zip(panels, ("welfare", "accuracy"), strict=True):
            if curves:
                mean = np.mean([c[name] for c in curves], axis=0)
                axes.plot(curves[0]["alpha"], mean, marker=".", label=arm.split("/")[1])
            axes.set(xlabel="weight on values (alpha)", ylabel=f"held-out {name}")
    panels[0].legend(frameon=False)
    return figure


def _plot_prices(results: Results) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    shown = [arm for arm in results.arms if arm.startswith("prices/") and arm != "prices/exact"]
    places = np.arange(len(shown))
    means = [np.mean(list(results.values(a, "price_error").values()) or [np.nan]) for a in shown]
    axes.bar(places, means)
    axes.set_xticks(places, [arm.split("/")[1] for arm in shown], rotation=30)
    axes.set(ylabel="sum of price errors / revenue", yscale="log")
    return figure


EXPERIMENT = Experiment(
    name="welfare-auction",
    version=1,
    field="mechanism-design",
    paper='Sadi, Saig, Rosenfeld, "Welfare-Optimal Classification with Accuracy Auctions", '
    "ICML 2026 (arXiv 2606.02435)",
    arms={
        **{
            f"plateau/{name}": f"linear auction, hinge, lam 1, 16 Gaussian features of sd {sd}"
            for name, sd in _SDS.items()
        },
        "plateau/knn": "5-nearest-neighbour auction on the users of sd 1",
        "separation/close": "class means 0.5 apart, 500 users",
        "separation/far": "class means 3 apart, 500 users",
        "prices/exact": "critical bids from the path, judged by bisection with exact refits",
        **{f"prices/{name}": f"sampled prices, {n} refits a user" for name, n in _DRAWS.items()},
        **{
            f"prices/{name}": f"one training run on bids resampled with chance {mu}"
            for name, mu in _MU.items()
        },
        "frontier/label-12": "census users, value 12 for the positive class",
        "frontier/label-4": "census users, value 4 for the positive class",
        "frontier/hours": "census users, values from weekly hours",
        "strategic/auction": "exact prices; users report the truth, which is dominant",
        "strategic/free": "no prices; users report the cap, which never hurts them",
    },
    claims=[
        Claim(
            text="The number of payers stays flat as users grow (log-log slope below 0.15)",
            metric="slope",
            arm="plateau/sd-1",
            at_most=0.15,
        ),
        Claim(
            text="It does so with wider features too",
            metric="slope",
            arm="plateau/sd-2",
            at_most=0.15,
        ),
        Claim(
            text="Payers do not fall below 0.88 of the limit derived for Gaussian users",
            metric="payers_over_limit",
            arm="plateau/sd-1",
            at_least=0.88,
        ),
        Claim(
            text="Payers do not exceed 1.12 of that limit",
            metric="payers_over_limit",
            arm="plateau/sd-1",
            at_most=1.12,
        ),
        Claim(
            text="With nearest neighbours payers grow in proportion (slope above 0.9)",
            metric="slope",
            arm="plateau/knn",
            at_least=0.9,
        ),
        Claim(
            text="The better the classes separate, the fewer pay",
            metric="share_of_payers",
            arm="separation/far",
            than="separation/close",
            direction="lower",
        ),
        Claim(
            text="Values tied to labels lift welfare by at least 15%",
            metric="welfare_change",
            arm="frontier/label-12",
            at_least=0.15,
        ),
        Claim(
            text="That costs accuracy",
            metric="accuracy_change",
            arm="frontier/label-12",
            at_most=0.0,
        ),
        Claim(
            text="Larger differences in value gain more",
            metric="welfare_change",
            arm="frontier/label-12",
            than="frontier/label-4",
        ),
        Claim(
            text="Values tied to labels gain more than values tied to a feature",
            metric="welfare_change",
            arm="frontier/label-4",
            than="frontier/hours",
        ),
        Claim(
            text="Values tied to a feature lift welfare",
            metric="welfare_change",
            arm="frontier/hours",
            at_least=0.0,
        ),
        Claim(
            text="Under the auction no misreport pays",
            metric="profitable_misreports",
            arm="strategic/auction",
            at_most=0.0,
            exact=True,
        ),
        Claim(
            text="Without prices users report the cap, and the classifier is the unweighted one",
            metric="differs_from_uniform",
            arm="strategic/free",
            at_most=0.0,
            exact=True,
        ),
        Claim(
            text="So the auction yields more welfare than asking for values without charging",
            metric="welfare",
            arm="strategic/auction",
            than="strategic/free",
        ),
        Claim(
            text="Prices from one path equal those from bisection (relative error 1e-6)",
            metric="price_error",
            arm="prices/exact",
            at_most=1e-6,
            exact=True,
        ),
        Claim(
            text="More draws make sampled prices more precise",
            metric="price_error",
            arm="prices/sampled-9",
            than="prices/sampled-1",
            direction="lower",
            skewed=True,
        ),
        Claim(
            text="One-shot prices are far noisier than a single draw of sampled prices",
            metric="price_error",
            arm="prices/sampled-1",
            than="prices/one-shot-0.5",
            direction="lower",
            skewed=True,
        ),
        Claim(
            text="One-shot welfare falls as more bids are resampled",
            metric="welfare",
            arm="prices/one-shot-0.25",
            than="prices/one-shot-0.75",
        ),
    ],
    trial=trial,
    presets={
        "smoke": Sizes(
            seeds=1,
            m_grid=(256, 512, 1024),
            repeats=1,
            price_m=150,
            adult=(1500, 1000),
            alphas=2,
            strategic_m=80,
            audit_users=2,
        ),
        "quick": Sizes(
            seeds=5,
            m_grid=(4096, 8192, 16384, 32768),
            price_m=300,
            alphas=6,
            audit_users=10,
        ),
        "standard": Sizes(seeds=10, one_shot_draws=3),
        "full": Sizes(
            seeds={"plateau": 50, "plateau/knn": 6, "separation": 50, "prices": 50}
            | {"frontier": 20, "strategic": 20},
            m_grid=(2**18, 2**20, 2**22, 2**24),
            repeats=1,
            price_m=4000,
            one_shot_draws=10,
            strategic_m=2000,
            audit_users=100,
        ),
    },
    plots={
        "Users who pay against users in the auction; dotted, the limit for Gaussian users": (
            _plot_growth
        ),
        "Held-out welfare and accuracy as training weights move from 1 to values": _plot_frontier,
        "Error of random prices against exact ones": _plot_prices,
    },
)
