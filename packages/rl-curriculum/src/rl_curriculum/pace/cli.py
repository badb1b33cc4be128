"""The command `rl-curriculum pace`."""

from __future__ import annotations

import csv
import json
import math
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .policies import MLPPolicy
    from .trainer import PACETrainer

app = typer.Typer(help="Train on the levels that still move the policy.", no_args_is_help=True)
console = Console()
errors = Console(stderr=True)

Levels = Annotated[
    str,
    typer.Option(help="standard, frontier, noisy, a .txt or .npz file, a folder, or seeds:0-999."),
]


def _fail(message: object) -> NoReturn:
    errors.print(f"[red]error:[/red] {escape(str(message))}", highlight=False, soft_wrap=True)
    raise typer.Exit(2)


@app.command()
def train(
    levels: Levels = "standard",
    out: Annotated[Path, typer.Option(help="Folder of the run.")] = Path("pace-run"),
    method: Annotated[
        str, typer.Option(help="pace, pace-none, dr, sfl, accel, random, plr-maxmc, ...")
    ] = "pace",
    steps: Annotated[float, typer.Option(help="Environment steps in all, such as 8e5.")] = 800_000,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    num_envs: Annotated[int, typer.Option(help="Levels in a batch.")] = 32,
    rollout: Annotated[int, typer.Option(help="Steps on each level of a batch.")] = 128,
    max_steps: Annotated[int, typer.Option(help="Length of an episode.")] = 128,
    capacity: Annotated[int, typer.Option(help="Levels in the buffer.")] = 500,
    test: Annotated[str, typer.Option(help="Levels to evaluate on, as in eval.")] = "real",
    every: Annotated[int, typer.Option(help="Iterations between evaluations and saves.")] = 50,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start anew where a run was.")] = False,
) -> None:
    """Train a policy on mazes; go on where an earlier run of the same settings stopped."""
    import torch

    from .._files import check_writable, write_atomic
    from .evaluation import evaluate
    from .maze_env import MazeVecEnv
    from .mazes import mutate_levels
    from .policies import MLPPolicy
    from .sources import level_generator, named_levels
    from .trainer import PACETrainer, config_for

    settings = {
        "levels": levels,
        "method": method,
        "seed": seed,
        "num_envs": num_envs,
        "rollout": rollout,
        "max_steps": max_steps,
        "capacity": capacity,
        "test": test,
        "every": every,
    }
    checkpoint, note = out / "checkpoint.npz", out / "run.json"
    torch.set_num_threads(1)
    try:
        _check_counts(every=every, steps=steps)
        if seed < 0:
            raise ValueError(f"seed is {seed}; allowed: at least 0")
        check_writable(out)
        generator, held_out = level_generator(levels), named_levels(test, 100)
        policy = MLPPolicy(79, 3, seed=seed)
        import numpy as np

        size = generator(np.random.default_rng(0), 1).size
        env = MazeVecEnv(num_envs, max_steps, size)
        more: dict[str, Any] = {
            "mutator": lambda parents, rng, edits: mutate_levels(parents, edits, seed=rng)
        }
        before: dict[str, Any] = {}
        if checkpoint.exists() and note.exists() and not fresh:
            before = json.loads(note.read_text(encoding="utf-8"))
            other = {k for k, v in settings.items() if before.get("settings", {}).get(k) != v}
            if other:
                raise ValueError(
                    f"{out} holds a run with other settings of {', '.join(sorted(other))}; "
                    "allowed: the same settings, another --out, or --fresh"
                )
            trainer = PACETrainer.load(checkpoint, policy, env, generator, **more)
        else:
            config = config_for(method, steps=rollout, capacity=capacity)
            trainer = PACETrainer(policy, env, generator, config, seed=seed, **more)
    except (ValueError, TypeError, OSError) as error:
        _fail(error)
    if trainer.steps:
        console.print(f"Going on at {trainer.steps} steps.", highlight=False)
    evaluations = [(int(s), float(r)) for s, r in before.get("evaluations", [])]
    test_env = MazeVecEnv(min(len(held_out), 128), 250, held_out.size)

    def save() -> None:
        trainer.save(checkpoint)
        text = json.dumps({"settings": settings, "evaluations": evaluations}, indent=1)
        write_atomic(note, lambda path: path.write_text(text, encoding="utf-8"))

    stopped: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, frame: stopped.append(number))
    try:
        with _progress() as progress:
            task = progress.add_task("training", total=steps, completed=trainer.steps)

            def watch(_: PACETrainer, row: dict[str, Any]) -> bool:
                if trainer.iterations % every == 0 or trainer.steps >= steps:
                    found = evaluate(policy, test_env, held_out, 2, seed=seed)
                    evaluations.append((trainer.steps, float(found.rates.mean())))
                    save()
                last = f", held out {evaluations[-1][1]:.2f}" if evaluations else ""
                progress.update(
                    task,
                    completed=trainer.steps,
                    description=f"{row['phase']:9} success {row['success']:.2f}{last}",
                )
                return not stopped

            trainer.callbacks = (watch,)
            trainer.learn(total_steps=int(steps))
            save()
    except (ValueError, OSError) as error:
        _fail(error)
    finally:
        signal.signal(signal.SIGINT, handler)
    write_atomic(out / "history.csv", lambda path: _write_csv(path, trainer.history))
    if stopped:
        errors.print("Interrupted: saved; the same command goes on from here.")
        raise typer.Exit(130)
    from . import pictures

    _draw(out / "curves.png", lambda: pictures.learning_curves(trainer.history, evaluations))
    if len(trainer.sampler):
        _draw(out / "levels.png", lambda: _buffer_picture(trainer))
    console.print(
        f"{trainer.steps} steps, {trainer.updates} updates; held-out success "
        f"{evaluations[-1][1] if evaluations else float('nan'):.3f}; written to {out}",
        highlight=False,
    )


@app.command("craftax")
def craftax_command(
    steps: Annotated[float, typer.Option(help="Environment steps in all.")] = 2e5,
    method: Annotated[str, typer.Option(help="As in train.")] = "accel-pace",
    num_envs: Annotated[int, typer.Option(help="Worlds in a batch.")] = 64,
    length: Annotated[int, typer.Option(help="Steps in a world, and the episode's limit.")] = 64,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
) -> None:
    """Train on worlds of Craftax-Classic for two minutes; compare on worlds that it never saw."""
    import numpy as np
    import torch

    from .craftax import CraftaxVecEnv, swap
    from .evaluation import evaluate
    from .policies import MLPPolicy
    from .trainer import PACETrainer, config_for

    torch.set_num_threads(1)
    clock = time.perf_counter()
    try:
        _check_counts(steps=steps)
        config = config_for(method, steps=length, capacity=8 * num_envs, mutations=10)
        env = CraftaxVecEnv(num_envs, max_steps=length)
        held_out = env.sample(np.random.default_rng(2**32 + seed), 2 * num_envs)
        inputs = int(np.prod(env.single_observation_space.shape or ()))
        actions = int(env.single_action_space.n)  # type: ignore[attr-defined]
        policy = MLPPolicy(inputs, actions, (256, 256), seed=seed)
        trainer = PACETrainer(policy, env, env.sample, config, mutator=swap, seed=seed)
        before = evaluate(policy, env, held_out, 1, seed=seed).returns.mean()
        compiled = time.perf_counter() - clock
        with _progress() as progress:
            task = progress.add_task("training", total=steps)
            trainer.callbacks = (
                lambda trainer, row: progress.update(
                    task, completed=trainer.steps, description=f"{row['phase']:9}"
                ),
            )
            clock = time.perf_counter()
            trainer.learn(total_steps=int(steps))
        seconds = time.perf_counter() - clock
        after = evaluate(policy, env, held_out, 1, seed=seed).returns.mean()
    except (ImportError, ValueError) as error:
        _fail(error)
    table = Table("measure", "value")
    table.add_row("return on unseen worlds, before", f"{before:.2f}")
    table.add_row("return on unseen worlds, after", f"{after:.2f}")
    table.add_row("worlds in the buffer", str(len(trainer.sampler)))
    table.add_row("environment steps, updates", f"{trainer.steps}, {trainer.updates}")
    table.add_row("steps per second", f"{trainer.steps / seconds:.0f}")
    table.add_row("seconds to compile, to train", f"{compiled:.0f}, {seconds:.0f}")
    console.print(table)


@app.command("eval")
def evaluate_command(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint or the folder of a run.")],
    levels: Annotated[
        str,
        typer.Option(
            help="prefabs, real, standard, frontier, four-rooms, perfect-19, a file, a folder, "
            "or seeds:0-999."
        ),
    ] = "prefabs",
    episodes: Annotated[int, typer.Option(help="Episodes on each level.")] = 10,
    max_steps: Annotated[int, typer.Option(help="Length of an episode.")] = 250,
    seed: Annotated[int, typer.Option(help="Of the actions.")] = 0,
    greedy: Annotated[bool, typer.Option("--greedy", help="Take the likeliest action.")] = False,
    print_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Evaluate a trained policy: success, the worst levels on a second evaluation, IQM, gap."""
    import torch

    from .evaluation import cvar_success, evaluate, iqm, optimality_gap
    from .maze_env import MazeVecEnv
    from .prefabs import PREFABS
    from .sources import named_levels

    torch.set_num_threads(1)
    try:
        policy = _policy(_checkpoint(checkpoint))
        chosen = named_levels(levels, seed=seed)
        env = MazeVecEnv(min(len(chosen), 512), max_steps, chosen.size)
        first, second = (
            evaluate(policy, env, chosen, episodes, seed=2 * seed + k, greedy=greedy)
            for k in range(2)
        )
    except (ValueError, TypeError, OSError) as error:
        _fail(error)
    rates = first.rates
    found: dict[str, Any] = {
        "levels": len(chosen),
        "success": float(rates.mean()),
        "iqm": iqm(rates),
        "optimality_gap": optimality_gap(rates),
        "cvar": {f"{a:g}": v for a, v in cvar_success(rates, second.rates).items()},
    }
    if levels == "prefabs":
        found["by_level"] = dict(zip(PREFABS, rates.tolist(), strict=True))
    if print_json:
        print(json.dumps(found))
        return
    table = Table("measure", "value")
    table.add_row(f"mean success, {len(chosen)} levels", f"{found['success']:.3f}")
    table.add_row("interquartile mean", f"{found['iqm']:.3f}")
    table.add_row("optimality gap", f"{found['optimality_gap']:.3f}")
    for alpha, value in found["cvar"].items():
        table.add_row(f"worst {float(alpha):.0%}, second evaluation", f"{value:.3f}")
    for name, rate in found.get("by_level", {}).items():
        table.add_row(name, f"{rate:.2f}")
    console.print(table)


@app.command()
def inspect(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint or the folder of a run.")],
    top: Annotated[int, typer.Option(help="Levels to show.")] = 8,
    out: Annotated[Path | None, typer.Option(help="Picture of the levels.")] = None,
    text: Annotated[bool, typer.Option("--text", help="Print the mazes too.")] = False,
) -> None:
    """Show the best levels of a run's buffer, with their scores over time as a picture."""
    from .mazes import random_levels, solvable
    from .trainer import read_checkpoint

    try:
        if top < 1:
            raise ValueError(f"top is {top}; allowed: at least 1")
        path = _checkpoint(checkpoint)
        arrays, meta = read_checkpoint(path)
        names = [k for k in arrays if k.startswith("levels/")]
        if not names:
            raise ValueError(f"{path} holds no levels: method without a buffer, or nothing trained")
        from .levels import rebuild
        from .sampler import LevelSampler
        from .trainer import config_from

        found = {k.removeprefix("levels/"): arrays[k] for k in names}
        stored = rebuild(random_levels(1), found)
        config = config_from(meta["config"])
    except (ValueError, KeyError, TypeError, OSError) as error:
        _fail(error)
    sampler = LevelSampler(
        config.capacity, staleness=config.staleness, temperature=config.temperature
    )
    sampler.load_state_dict(
        {
            "levels": stored,
            **{name: arrays[f"sampler/{name}"] for name in ("scores", "stamps", "uids")},
            "extras": {},
            "clock": meta["clock"],
            "inserted": meta["inserted"],
            "rng": meta["sampler_rng"],
        }
    )
    import numpy as np

    weights, distance = sampler.weights(), solvable(stored)
    order = np.argsort(-sampler.scores, kind="stable")[:top]
    shown = Table("level", "score", "replay", "age", "walls", "distance")
    for i in order:
        shown.add_row(
            str(sampler.uids[i]),
            f"{sampler.scores[i]:.3g}",
            f"{weights[i]:.2%}",
            str(sampler.ages[i]),
            str(int(stored.walls[i].sum())),
            str(distance[i]) if distance[i] >= 0 else "no way",
        )
    console.print(shown)
    console.print(
        f"{len(sampler)} levels; {float(weights[distance < 0].sum()):.0%} of the replays on levels "
        f"without a way; {meta['steps']} steps, {meta['updates']} updates.",
        highlight=False,
    )
    if text:
        for i in order:
            print(f"\n{sampler.uids[i]}\n{stored.to_text()[i]}")
    from . import pictures

    log = [(int(i), int(u), float(s)) for i, u, s in arrays["score_log"]]
    target = out or path.parent / "levels.png"
    _draw(
        target,
        lambda: pictures.buffer_levels(
            stored, sampler.scores.tolist(), sampler.uids.tolist(), log, top
        ),
    )


def _check_counts(**counts: float) -> None:
    for name, value in counts.items():
        if not 1 <= value < math.inf:
            raise ValueError(f"{name} is {value:g}; allowed: at least 1")


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    return Progress(*columns, console=errors, disable=not sys.stderr.isatty())


def _checkpoint(path: Path) -> Path:
    found = path / "checkpoint.npz" if path.is_dir() else path
    if not found.is_file():
        raise ValueError(f"{found} is not a file; allowed: what train wrote")
    return found


def _policy(path: Path) -> MLPPolicy:
    from .policies import MLPPolicy
    from .trainer import load_policy, read_checkpoint

    arrays, _ = read_checkpoint(path)
    shapes = [
        value.shape
        for key, value in arrays.items()
        if key.startswith("policy/trunk.") and key.endswith("weight")
    ]
    head = arrays.get("policy/actor_head.weight")
    if not shapes or head is None:
        raise ValueError(f"{path} holds no MLPPolicy")
    policy = MLPPolicy(shapes[0][1], len(head), [s[0] for s in shapes])
    load_policy(policy, arrays)
    return policy


def _buffer_picture(trainer: PACETrainer) -> Figure:
    from . import pictures

    sampler = trainer.sampler
    return pictures.buffer_levels(
        sampler.levels, sampler.scores.tolist(), sampler.uids.tolist(), trainer.score_log
    )


def _write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)


def _draw(path: Path, make: Any) -> None:
    from .._files import write_atomic

    try:
        figure = make()
    except ModuleNotFoundError:
        errors.print("No picture was drawn: that needs the extra plots.")
        return
    try:
        write_atomic(path, lambda part: figure.savefig(part, dpi=120))
    except OSError as error:
        _fail(error)
    errors.print(f"Picture: {path}", highlight=False, soft_wrap=True)
