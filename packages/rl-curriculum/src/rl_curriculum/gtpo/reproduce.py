"""What weights of entropy do to learning, where every success probability can be known.

The paper's own models, data and tables are not reproduced; no figure of AIME or MATH is claimed.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from repro_bench import Claim, Experiment, Outcome, Results
from rl_curriculum.gtpo.tabular import TokenChain, TokenTrap, train_tabular
from rl_curriculum.gtpo.tasks import BuggyCarry, ConfidentShortcut, Task
from rl_curriculum.gtpo.tiny import TinyTransformer
from rl_curriculum.gtpo.tiny_trainer import TinyRLTrainer, evaluate_tiny, imitate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Decisions, and the probabilities at the start of a right decision and of the path.
CORNERS = {
    "K3 .5 .5": TokenTrap(3, 0.5, 0.5),
    "K3 .6 .2": TokenTrap(3, 0.6, 0.2),
    "K3 .5 .3": TokenTrap(3, 0.5, 0.3),
    "K4 .6 .5": TokenTrap(4, 0.6, 0.5),
    "K4 .6 .3": TokenTrap(4, 0.6, 0.3),
}
FORK = TokenTrap(3, 0.5, 0.5, noise=0.3)
SOLVED = 0.8
# Taking the shortcut always is right on 0.55 of the prompts.
ESCAPED = 0.58


@dataclass(frozen=True)
class Sizes:
    """Seeds of each part or arm; replicas and steps of the tables; steps of the transformer."""

    seeds: int | Mapping[str, int]
    arms: tuple[str, ...] = ()
    replicas: int = 16
    chain_steps: int = 120
    trap_steps: int = 300
    imitation: int = 600
    steps_30: int = 200
    steps_50: int = 160
    steps_carry: int = 120
    test_prompts: int = 400


def trial(arm: str, seed: int, sizes: Sizes) -> Outcome:
    part, _, rest = arm.partition("/")
    if part == "a":
        study = train_tabular(
            TokenChain(),
            rest,
            steps=sizes.chain_steps,
            replicas=sizes.replicas,
            seed=seed,
            optimizer="adam",
            lr=0.1,
        )
        curve = study.curve.mean(1)
        return Outcome(
            {"final": float(study.final.mean()), "area": float(curve.mean())},
            {"chain": {"step": list(range(len(curve))), "success": curve.tolist()}},
        )
    if part == "b":
        return _traps(rest, seed, sizes)
    if part == "d":
        return _tiny("carry", rest, seed, sizes.steps_carry, sizes)
    setting, _, method = rest.partition("/")
    steps = {"30": sizes.steps_30, "50": sizes.steps_50}[setting]
    return _tiny(setting, method, seed, steps, sizes)


def _traps(method: str, seed: int, sizes: Sizes) -> Outcome:
    metrics: dict[str, float] = {}
    curves = {}
    for name, trap in [*CORNERS.items(), ("false fork", FORK)]:
        study = train_tabular(
            trap, method, steps=sizes.trap_steps, replicas=sizes.replicas, seed=seed
        )
        if name != "false fork":
            metrics[f"solved {name}"] = float((study.final > SOLVED).double().mean())
        metrics[f"final {name}"] = float(study.final.mean())
        mean = study.curve.mean(1)
        curves[name] = {"step": list(range(len(mean))), "success": mean.tolist()}
    return Outcome(metrics, curves)


@functools.cache
def _started(setting: str, imitation: int) -> tuple[Task, TinyTransformer]:
    """The task and a policy that has seen its demonstrations, the same for all seeds."""
    torch.set_num_threads(1)
    model = TinyTransformer(seed=0)
    if setting == "carry":
        task: Task = BuggyCarry()
        # As many steps more as 800 are to 600, on half the batch.
        imitate(model, task, steps=imitation * 4 // 3, batch=128)
    else:
        task = ConfidentShortcut(p_reason=int(setting) / 100)
        imitate(model, task, steps=imitation)
    return task, model


def _tiny(setting: str, method: str, seed: int, steps: int, sizes: Sizes) -> Outcome:
    task, start = _started(setting, sizes.imitation)
    model = copy.deepcopy(start)
    trainer = TinyRLTrainer(model, task, method, seed=seed).learn(steps)
    found = evaluate_tiny(model, task, prompts=sizes.test_prompts)
    metrics: dict[str, float | tuple[int, int]] = {
        "success": found.success,
        "pass@4": found.pass_at_n,
        "length": found.length,
        "entropy": found.entropy,
    }
    if setting != "carry":
        metrics["escaped"] = float(found.success > ESCAPED)
    rows = trainer.history
    curve = {
        "step": [float(s) for s in range(len(rows))],
        "reward": [row["reward"] for row in rows],
        "entropy": [row["entropy"] for row in rows],
    }
    return Outcome(metrics, {"training": curve})


METHOD_TEXT = {
    "grpo": "GRPO",
    "dapo": "DAPO without its resampling of prompts",
    "gtpo:0.1": "GTPO, weights .9 and .1",
    "gtpo:0.5": "GTPO, weights .5 and .5",
    "gtpo-joint:0.5": "GTPO, advantages over both sides with zeros",
    "gtpo-pooled:0.5": "GTPO, advantages over all tokens",
    "gtpo-polarity:0.1": "GTPO, advantages over each side alone, .9 and .1",
    "gtpo-polarity:0.5": "GTPO, advantages over each side alone, .5 and .5",
    "grpo-s:0.1": "GRPO-S, weights .9 and .1",
    "grpo-s:0.5": "GRPO-S, weights .5 and .5",
    "grpo-s-outcome:0.5": "GRPO-S with the outcome's size kept, .5 and .5",
    "top-entropy": "loss on the fifth of the tokens with the highest entropy",
    "entropy-bonus": "DAPO and .01 of the entropy",
    "multiplicative:0.5": "advantage times 1 + .5 (H / mean - 1)",
    "gspo": "geometric mean of ratios",
}
PARTS = {
    "a": (
        "segments of filler, decision and copies, in a table",
        (
            *("dapo", "gtpo:0.1", "gtpo:0.5", "gtpo-joint:0.5", "gtpo-pooled:0.5"),
            *("gtpo-polarity:0.1", "gtpo-polarity:0.5"),
        ),
    ),
    "b": (
        "an uncertain path beside a confident shortcut, in a table",
        ("dapo", "gtpo:0.1", "gtpo:0.5", "grpo-s:0.1", "grpo-s:0.5", "grpo-s-outcome:0.5"),
    ),
    "c/30": (
        "digit sums, transformer, 30% of demonstrations reason",
        (
            *("grpo", "dapo", "gtpo:0.1", "gtpo:0.5", "grpo-s:0.1", "grpo-s:0.5"),
            "grpo-s-outcome:0.5",
        ),
    ),
    "c/50": (
        "digit sums, transformer, 50% of demonstrations reason",
        (
            *("dapo", "gtpo:0.1", "gtpo:0.5", "grpo-s:0.5", "gtpo-polarity:0.5"),
            *("top-entropy", "entropy-bonus", "multiplicative:0.5", "gspo"),
        ),
    ),
    "d": ("sums in columns, transformer", ("dapo", "gtpo:0.5")),
}
ARMS = {
    f"{part}/{method}": f"{METHOD_TEXT[method]}; {text}"
    for part, (text, methods) in PARTS.items()
    for method in methods
}

CLAIMS = [
    Claim(
        text="Normalised over each polarity alone, GTPO does not learn: success at most .05",
        metric="final",
        arm="a/gtpo-polarity:0.5",
        at_most=0.05,
    ),
    Claim(
        text="DAPO learns the same task: success at least .95",
        metric="final",
        arm="a/dapo",
        at_least=0.95,
    ),
    Claim(
        text="GTPO normalised by the outcome learns it too, within .01 of DAPO",
        metric="final",
        arm="a/gtpo:0.5",
        than="a/dapo",
        by=-0.01,
    ),
    Claim(
        text="K3 .5 .5: GTPO(.5) solves the trap in at least .2 more of the runs than DAPO",
        metric="solved K3 .5 .5",
        arm="b/gtpo:0.5",
        than="b/dapo",
        by=0.2,
    ),
    Claim(
        text="K3 .5 .3: GRPO-S(.5) solves the trap in at least .9 of the runs",
        metric="solved K3 .5 .3",
        arm="b/grpo-s:0.5",
        at_least=0.9,
    ),
    Claim(
        text="K3 .5 .3: DAPO solves it in at most .1",
        metric="solved K3 .5 .3",
        arm="b/dapo",
        at_most=0.1,
    ),
    Claim(
        text="K4 .6 .3: GRPO-S(.5) solves it in at least half more of the runs than DAPO",
        metric="solved K4 .6 .3",
        arm="b/grpo-s:0.5",
        than="b/dapo",
        by=0.5,
    ),
    Claim(
        text="K3 .6 .2: GTPO(.1) solves it more often than DAPO",
        metric="solved K3 .6 .2",
        arm="b/gtpo:0.1",
        than="b/dapo",
        skewed=True,
    ),
    Claim(
        text="False fork: where the uncertain path is noise, GRPO-S(.5) is as good as DAPO to .05",
        metric="final false fork",
        arm="b/grpo-s:0.5",
        than="b/dapo",
        by=-0.05,
    ),
    Claim(
        text="False fork: GTPO(.5) is as good as DAPO to .05",
        metric="final false fork",
        arm="b/gtpo:0.5",
        than="b/dapo",
        by=-0.05,
    ),
    Claim(
        text="30% reasoning: GRPO-S(.5) leaves the shortcut in more of the runs than DAPO",
        metric="escaped",
        arm="c/30/grpo-s:0.5",
        than="c/30/dapo",
        skewed=True,
    ),
    Claim(
        text="30% reasoning: GRPO-S(.5) succeeds more often than DAPO",
        metric="success",
        arm="c/30/grpo-s:0.5",
        than="c/30/dapo",
        skewed=True,
    ),
    Claim(
        text="30% reasoning: GTPO(.5) succeeds more often than DAPO",
        metric="success",
        arm="c/30/gtpo:0.5",
        than="c/30/dapo",
        skewed=True,
    ),
    Claim(
        text="50% reasoning: GTPO(.5) succeeds more often than DAPO",
        metric="success",
        arm="c/50/gtpo:0.5",
        than="c/50/dapo",
    ),
    Claim(
        text="50% reasoning: GTPO(.5) solves at least .03 more of the prompts in four tries",
        metric="pass@4",
        arm="c/50/gtpo:0.5",
        than="c/50/dapo",
        by=0.03,
    ),
    Claim(
        text="50% reasoning: GRPO-S(.5) succeeds more often than DAPO",
        metric="success",
        arm="c/50/grpo-s:0.5",
        than="c/50/dapo",
    ),
    Claim(
        text="50% reasoning: GTPO(.5) succeeds more often than it does normalised by polarity",
        metric="success",
        arm="c/50/gtpo:0.5",
        than="c/50/gtpo-polarity:0.5",
        skewed=True,
    ),
    Claim(
        text="Sums in columns: GTPO(.5) succeeds more often than DAPO",
        metric="success",
        arm="d/gtpo:0.5",
        than="d/dapo",
    ),
]


def plot_traps(results: Results) -> Figure:
    from matplotlib.figure import Figure

    arms = [arm for arm in results.arms if arm.startswith("b/")]
    names = [m.removeprefix("final ") for m in results.metrics() if m.startswith("final ")]
    figure = Figure(figsize=(9, max(3.0, 1 + 0.4 * len(arms))))
    axes = figure.subplots()
    table = [
        [np.mean(list(results.values(arm, f"final {name}").values()) or [np.nan]) for name in names]
        for arm in arms
    ]
    if not table or not names:
        return figure
    axes.imshow(table, vmin=0.3, vmax=1.0, cmap="RdYlGn", aspect="auto")
    for row, values in enumerate(table):
        for column, value in enumerate(values):
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=8)
    axes.set_xticks(range(len(names)), names, fontsize=8)
    axes.set_yticks(range(len(arms)), [arm.removeprefix("b/") for arm in arms], fontsize=8)
    figure.tight_layout()
    return figure


def plot_tiny(results: Results) -> Figure:
    from matplotlib.figure import Figure

    parts = [p for p in ("c/30", "c/50", "d") if any(a.startswith(p + "/") for a in results.arms)]
    figure = Figure(figsize=(10, 3.6))
    columns = figure.subplots(1, max(1, len(parts)), squeeze=False)[0]
    for axes, part in zip(columns, parts, strict=False):
        arms = [arm for arm in results.arms if arm.startswith(part + "/")]
        for place, arm in enumerate(arms):
            values = list(results.values(arm, "success").values())
            axes.plot(values, [place] * len(values), "o", alpha=0.5)
        if part != "d":
            axes.axvline(0.55, color="grey", linewidth=1)
        labels = [arm.removeprefix(part + "/") for arm in arms]
        axes.set_yticks(range(len(arms)), labels, fontsize=7)
        axes.invert_yaxis()
        axes.set_xlabel(f"success, {part}")
    figure.tight_layout()
    return figure


def plot_chain(results: Results) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.5))
    axes = figure.subplots()
    for arm in (a for a in results.arms if a.startswith("a/")):
        curves = [o.curves["chain"]["success"] for o in results.of(arm).values()]
        axes.plot(np.mean(curves, axis=0), label=arm.removeprefix("a/"))
    axes.set_xlabel("step")
    axes.set_ylabel("success")
    if axes.lines:
        axes.legend(fontsize=7)
    figure.tight_layout()
    return figure


# A verdict needs at least 6 seeds; what no claim is about is shown once.
STANDARD = {
    **dict.fromkeys(ARMS, 1),
    **dict.fromkeys(("a/dapo", "a/gtpo:0.5", "a/gtpo-polarity:0.5"), 6),
    **dict.fromkeys(("b/dapo", "b/gtpo:0.1", "b/gtpo:0.5", "b/grpo-s:0.5"), 6),
    **dict.fromkeys(("c/30/grpo", "c/30/gtpo:0.5"), 6),
    **dict.fromkeys(("c/30/dapo", "c/30/grpo-s:0.5"), 12),
    **dict.fromkeys(("c/50/grpo-s:0.5", "c/50/gtpo-polarity:0.5"), 6),
    **dict.fromkeys(("c/50/dapo", "c/50/gtpo:0.5"), 16),
    **dict.fromkeys(("d/dapo", "d/gtpo:0.5"), 8),
}
PRESETS = {
    "smoke": Sizes(
        1,
        ("a/dapo", "a/gtpo-polarity:0.5", "b/dapo", "b/grpo-s:0.5", "c/50/dapo", "c/50/gtpo:0.5"),
        replicas=4,
        chain_steps=20,
        trap_steps=20,
        imitation=10,
        steps_50=2,
        test_prompts=20,
    ),
    "quick": Sizes(
        {"a": 2, "b": 2, "c": 1},
        (
            *("a/dapo", "a/gtpo:0.5", "a/gtpo-polarity:0.5"),
            *("b/dapo", "b/gtpo:0.5", "b/grpo-s:0.5", "c/30/dapo", "c/30/grpo-s:0.5"),
        ),
        replicas=8,
        imitation=300,
        steps_30=100,
    ),
    "standard": Sizes(STANDARD),
    "full": Sizes(32, replicas=32, test_prompts=2000),
}

EXPERIMENT = Experiment(
    name="gtpo",
    version=1,
    field="rl-curriculum",
    paper="Tan, Wang, Pan, Lin, Wang, Wu, Chen, Zheng, Tang, Yang: GTPO and GRPO-S, Token and"
    " Sequence-Level Reward Shaping with Policy Entropy. ICML 2026, arXiv 2508.04349.",
    arms=ARMS,
    claims=CLAIMS,
    trial=trial,
    presets=PRESETS,
    plots={
        "Exact success of tables on the trap and the false fork, mean over runs": plot_traps,
        "Success of the transformer, a dot a seed; the line is what the shortcut gives": plot_tiny,
        "Exact success while learning the chain, mean over runs": plot_chain,
    },
)
