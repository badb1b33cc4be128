"""The paper's comparison at the size of one processor core: mazes of unequal use, noisy rewards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy import stats

from repro_bench import Claim, Experiment, Outcome, Results
from rl_curriculum.pace import generators
from rl_curriculum.pace.evaluation import cvar_success, evaluate, iqm, optimality_gap
from rl_curriculum.pace.fidelity import closed_form_errors, unbiased_lengths
from rl_curriculum.pace.maze_env import MazeVecEnv
from rl_curriculum.pace.mazes import MazeLevels, mutate_levels, solvable
from rl_curriculum.pace.paired import PAIREDTrainer
from rl_curriculum.pace.policies import MLPPolicy
from rl_curriculum.pace.ppo import collect
from rl_curriculum.pace.prefabs import PREFABS
from rl_curriculum.pace.scores import level_gradients
from rl_curriculum.pace.trainer import PACETrainer, Row, config_for

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEVELS, CAP, TEST_CAP = 32, 128, 250
TEST_SEED = 20_260


@dataclass(frozen=True)
class Sizes:
    """Seeds of each part or arm; environment steps of each part; test levels and episodes."""

    seeds: Mapping[str, int]
    steps: Mapping[str, int]
    arms: tuple[str, ...] = ()
    test_levels: int = 300
    episodes: int = 2
    fidelity_levels: int = 96
    fidelity_rollouts: int = 16


def trial(arm: str, seed: int, sizes: Sizes) -> Outcome:
    part, method = arm.split("/")
    if method == "closed-forms":
        errors = closed_form_errors()
        return Outcome({**errors, "largest error": max(errors.values())})
    if part == "fidelity":
        return _fidelity(int(method.removeprefix("steps-")), seed, sizes)
    return _training(part, method, seed, sizes)


def _training(part: str, method: str, seed: int, sizes: Sizes) -> Outcome:
    generator = {
        "noisy": generators.noisy,
        "frontier": generators.frontier,
        "standard": generators.standard,
    }[part]
    policy = MLPPolicy(79, 3, seed=seed)
    curve: dict[str, list[float]] = {"steps": [], "noise": [], "unsolvable": []}
    metrics: dict[str, float | tuple[int, int]] = {}
    if method == "paired":
        paired = PAIREDTrainer(policy, LEVELS, CAP, seed=seed).learn(sizes.steps[part])
        metrics |= {"steps": paired.steps, "updates": paired.updates}
        policy = paired.student
    else:
        trainer = PACETrainer(
            policy,
            MazeVecEnv(LEVELS, CAP),
            generator,
            config_for(method),
            mutator=lambda levels, rng, edits: mutate_levels(levels, edits, seed=rng),
            callbacks=[lambda trainer, row: _log_mass(curve, trainer, row)],
            seed=seed,
        ).learn(total_steps=sizes.steps[part])
        metrics |= {"steps": trainer.steps, "updates": trainer.updates}
        if len(trainer.sampler):
            noise, unsolvable = _mass(trainer)
            metrics["unsolvable mass"] = unsolvable
            if part == "noisy":
                metrics["noise mass"] = noise
    tests = generators.real_levels(sizes.test_levels, seed=TEST_SEED)
    env = MazeVecEnv(min(sizes.test_levels, 512), TEST_CAP)
    first, second = (
        evaluate(policy, env, tests, sizes.episodes, seed=2 * seed + k) for k in range(2)
    )
    metrics["success"] = float(first.rates.mean())
    metrics["worst tenth"] = cvar_success(first.rates, second.rates, [0.1])[0.1]
    if part == "standard":
        prefabs = MazeLevels.concatenate(list(PREFABS.values()))
        rates = evaluate(policy, MazeVecEnv(8, TEST_CAP), prefabs, 10, seed=seed).rates
        metrics["prefab mean"] = float(rates.mean())
        metrics["prefab iqm"] = iqm(rates)
        metrics["prefab gap"] = optimality_gap(rates)
    return Outcome(metrics, {"buffer": curve} if curve["steps"] else {})


def _mass(trainer: PACETrainer) -> tuple[float, float]:
    """Replay mass on the levels with reward noise and on those without solution."""
    weights, levels = trainer.sampler.weights(), trainer.sampler.levels
    noise = float(weights[levels.noise > 1].sum())
    return noise, float(weights[solvable(levels) < 0].sum())


def _log_mass(curve: dict[str, list[float]], trainer: PACETrainer, row: Row) -> None:
    if trainer.iterations % 10 == 0 and len(trainer.sampler):
        noise, unsolvable = _mass(trainer)
        curve["steps"].append(row["steps"])
        curve["noise"].append(noise)
        curve["unsolvable"].append(unsolvable)


def _fidelity(steps: int, seed: int, sizes: Sizes) -> Outcome:
    """How well one rollout's score ranks levels by the length of the expected gradient."""
    n, rounds = sizes.fidelity_levels, sizes.fidelity_rollouts
    policy = MLPPolicy(79, 3, seed=seed)
    PACETrainer(
        policy, MazeVecEnv(LEVELS, CAP), generators.standard, config_for("dr"), seed=seed
    ).learn(total_steps=sizes.steps["fidelity"])
    levels = generators.real_levels(n, 60, 2, seed=seed)
    env = MazeVecEnv(n, CAP)
    actions = torch.Generator().manual_seed(seed)

    def gradients(k: int) -> torch.Tensor:
        rollout = collect(policy, env, env.assign(levels, seed + k), steps, actions)
        return level_gradients(policy, rollout)

    truth, noise = unbiased_lengths(gradients(k) for k in range(rounds))
    # Of rollouts that the yardstick has not seen.
    scores = [gradients(k).double().square().sum(1).numpy() for k in range(rounds, rounds + 4)]
    return Outcome(
        {
            "spearman": float(stats.spearmanr(scores[0], truth).statistic),
            "spearman of 4": float(stats.spearmanr(np.mean(scores, axis=0), truth).statistic),
            "noise share": float(noise),
        }
    )


METHOD_TEXT = {
    "pace": "squared parameter change, advantages normalised on each level",
    "pace-none": "squared parameter change, advantages as they are",
    "robust-plr-maxmc": "best return minus value",
    "robust-plr-pvl": "positive value loss",
    "random": "replay by a random score",
    "dr": "domain randomisation: every batch new",
    "plr-maxmc": "best return minus value, updates on new levels too",
    "robust-plr-l1": "mean absolute advantage",
    "accel": "best return minus value, and mutations of what was replayed",
    "sfl": "half of each batch from the most learnable of 256 candidates",
    "paired": "an adversary places walls, goal and start for the regret of two students",
}
MAIN = ("pace", "robust-plr-maxmc", "robust-plr-pvl", "pace-none", "random", "dr")
OTHERS = ("plr-maxmc", "robust-plr-l1", "accel", "sfl")
PARTS = {
    "noisy": "reward noise on the trivial levels",
    "frontier": "45% trivial, 45% unsolvable, 10% real levels",
    "standard": "60 wall draws",
}
ARMS = {
    **{f"noisy/{m}": f"{METHOD_TEXT[m]}; {PARTS['noisy']}" for m in MAIN},
    **{f"frontier/{m}": f"{METHOD_TEXT[m]}; {PARTS['frontier']}" for m in MAIN},
    **{f"standard/{m}": f"{METHOD_TEXT[m]}; {PARTS['standard']}" for m in ("pace", "dr")},
    "fidelity/closed-forms": "scores with known values",
    "fidelity/steps-128": "ranking of 96 levels by a rollout of 128 steps each",
    "fidelity/steps-512": "ranking of 96 levels by a rollout of 512 steps each",
    **{
        f"{part}/{m}": f"{METHOD_TEXT[m]}; {PARTS[part]}"
        for part in ("noisy", "frontier")
        for m in OTHERS
    },
    **{
        f"standard/{m}": f"{METHOD_TEXT[m]}; {PARTS['standard']}"
        for m in ("pace-none", "robust-plr-maxmc", "robust-plr-pvl", "accel", "sfl", "paired")
    },
}

CLAIMS = [
    Claim(
        text="PACE replays levels whose reward is noise at most 5% of the time",
        metric="noise mass",
        arm="noisy/pace",
        at_most=0.05,
    ),
    Claim(
        text="MaxMC replays them at least 90% of the time",
        metric="noise mass",
        arm="noisy/robust-plr-maxmc",
        at_least=0.9,
    ),
    Claim(
        text="Positive value loss replays them at least 90% of the time",
        metric="noise mass",
        arm="noisy/robust-plr-pvl",
        at_least=0.9,
    ),
    Claim(
        text="With noise PACE succeeds more often than MaxMC",
        metric="success",
        arm="noisy/pace",
        than="noisy/robust-plr-maxmc",
        skewed=True,
    ),
    Claim(
        text="With noise PACE succeeds more often than positive value loss",
        metric="success",
        arm="noisy/pace",
        than="noisy/robust-plr-pvl",
        skewed=True,
    ),
    Claim(
        text="With noise PACE succeeds at least twice as often as MaxMC",
        metric="success",
        arm="noisy/pace",
        than="noisy/robust-plr-maxmc",
        scale="ratio",
        by=2.0,
        skewed=True,
    ),
    Claim(
        text="With noise PACE succeeds at least twice as often as positive value loss",
        metric="success",
        arm="noisy/pace",
        than="noisy/robust-plr-pvl",
        scale="ratio",
        by=2.0,
        skewed=True,
    ),
    Claim(
        text="Without noise PACE beats replay by a random score",
        metric="success",
        arm="frontier/pace-none",
        than="frontier/random",
        skewed=True,
    ),
    Claim(
        text="Without noise replay by a random score beats domain randomisation",
        metric="success",
        arm="frontier/random",
        than="frontier/dr",
        skewed=True,
    ),
    Claim(
        text="Without noise PACE succeeds at least three times as often as domain randomisation",
        metric="success",
        arm="frontier/pace-none",
        than="frontier/dr",
        scale="ratio",
        by=3.0,
        skewed=True,
    ),
    Claim(
        text="Without noise PACE is at least as good as positive value loss",
        metric="success",
        arm="frontier/pace-none",
        than="frontier/robust-plr-pvl",
        skewed=True,
    ),
    Claim(
        text="Without noise PACE is better than MaxMC",
        metric="success",
        arm="frontier/pace-none",
        than="frontier/robust-plr-maxmc",
        skewed=True,
    ),
    Claim(
        text="On uniform mazes PACE is not worse than domain randomisation by more than .1",
        metric="success",
        arm="standard/pace",
        than="standard/dr",
        by=-0.1,
    ),
    Claim(
        text="Scores meet their closed forms to 1e-6",
        metric="largest error",
        arm="fidelity/closed-forms",
        at_most=1e-6,
        exact=True,
    ),
    Claim(
        text="Longer rollouts rank levels better",
        metric="spearman",
        arm="fidelity/steps-512",
        than="fidelity/steps-128",
    ),
]


def plot_success(results: Results) -> Figure:
    from matplotlib.figure import Figure

    parts = [p for p in PARTS if any(arm.startswith(p + "/") for arm in results.arms)]
    figure = Figure(figsize=(8, 4))
    for axes, part in zip(figure.subplots(1, len(parts), squeeze=False)[0], parts, strict=True):
        arms = [arm for arm in results.arms if arm.startswith(part + "/")]
        for place, arm in enumerate(arms):
            values = list(results.values(arm, "success").values())
            axes.plot(values, [place] * len(values), "o", alpha=0.6)
        axes.set_yticks(range(len(arms)), [arm.split("/")[1] for arm in arms], fontsize=8)
        axes.invert_yaxis()
        axes.set_xlabel(f"success, {part}")
    figure.tight_layout()
    return figure


def plot_mass(results: Results) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.5))
    columns = ("noise", "unsolvable")
    for axes, column in zip(figure.subplots(1, 2), columns, strict=True):
        for arm in (a for a in results.arms if a.startswith("noisy/")):
            curves = [o.curves["buffer"] for o in results.of(arm).values() if "buffer" in o.curves]
            curves = [c for c in curves if c["steps"]]
            if curves:
                length = min(len(c["steps"]) for c in curves)
                mean = np.mean([c[column][:length] for c in curves], axis=0)
                axes.plot(curves[0]["steps"][:length], mean, label=arm.split("/")[1])
        axes.set_xlabel("environment steps")
        axes.set_ylabel(f"replay mass, {column} levels")
    if axes.lines:
        axes.legend(fontsize=8)
    figure.tight_layout()
    return figure


FULL = {"noisy": 2_000_000, "frontier": 2_000_000, "standard": 10_000_000, "fidelity": 1_000_000}
USUAL = {"noisy": 800_000, "frontier": 800_000, "standard": 1_000_000, "fidelity": 200_000}
SHORT = {"noisy": 250_000, "frontier": 250_000, "standard": 250_000, "fidelity": 50_000}
TINY = {"noisy": 30_000, "frontier": 30_000, "standard": 30_000, "fidelity": 10_000}

PRESETS = {
    "smoke": Sizes(
        {"noisy": 1, "frontier": 1, "standard": 1, "fidelity": 1},
        TINY,
        ("noisy/pace", "noisy/robust-plr-maxmc", "frontier/random", "standard/dr", "fidelity"),
        20,
        1,
        8,
        3,
    ),
    "quick": Sizes(
        {"noisy": 2, "frontier": 1, "standard": 1, "fidelity": 1},
        SHORT,
        (
            "noisy/pace",
            "noisy/robust-plr-maxmc",
            "noisy/robust-plr-pvl",
            "frontier/pace-none",
            "frontier/random",
            "frontier/dr",
            "fidelity",
        ),
        100,
    ),
    "standard": Sizes(
        {
            "noisy": 6,
            "frontier": 6,
            "standard": 6,
            "fidelity": 6,
            **{f"noisy/{m}": 16 for m in ("pace", "robust-plr-maxmc", "robust-plr-pvl")},
            **{f"frontier/{m}": 20 for m in ("pace-none", "random", "dr")},
            "fidelity/closed-forms": 1,
            "noisy/random": 1,
            "noisy/dr": 1,
            **{f"{part}/{m}": 1 for part in ("noisy", "frontier") for m in OTHERS},
            **{
                f"standard/{m}": 1
                for m in (
                    "pace-none",
                    "robust-plr-maxmc",
                    "robust-plr-pvl",
                    "accel",
                    "sfl",
                    "paired",
                )
            },
        },
        USUAL,
    ),
    "full": Sizes(
        {"noisy": 20, "frontier": 20, "standard": 20, "fidelity": 20}, FULL, (), 1000, 10
    ),
}

EXPERIMENT = Experiment(
    name="pace",
    version=1,
    field="rl-curriculum",
    paper="Yuan, Yin, Shen, Xie, Yang, Qin, Zeng, Li: PACE, Parameter Change for Unsupervised"
    " Environment Design. ICML 2026, arXiv 2605.01358.",
    arms=ARMS,
    claims=CLAIMS,
    trial=trial,
    presets=PRESETS,
    plots={
        "Success on real mazes that were not trained on, a dot a seed": plot_success,
        "Where the replay goes when rewards are noisy, mean over seeds": plot_mass,
    },
)
