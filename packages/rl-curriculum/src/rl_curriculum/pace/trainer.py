"""Training on a curriculum: new levels are scored, stored ones replayed and learnt from."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from .._files import write_atomic
from . import baseline_scores as others
from . import levels as batches
from .generators import Generator
from .levels import Levels
from .ppo import LevelEnv, PPOConfig, collect, update
from .rollout import Rollout
from .sampler import LevelSampler
from .scores import pace_scores, warn_without_episodes

Floats = NDArray[np.float64]
Score = Callable[[nn.Module, Rollout], Floats]
Row = dict[str, Any]
Callback = Callable[["PACETrainer", Row], "bool | None"]

FORMAT = 1
SCORES = ("pace", "max_mc", "pvl", "l1", "learnability", "random")


@dataclass(frozen=True)
class PACEConfig:
    """What to train on, and how; `config_for` gives the settings of each method.

    Parameters
    ----------
    steps
        Steps a level in a batch, at least a few episodes for a score without much noise.
    curriculum
        `"replay"`: from a level buffer. `"uniform"`: every batch new, domain randomisation.
        `"learnability"`: SFL, half of each batch from the most learnable of many candidates.
    score
        `"pace"`, `"max_mc"`, `"pvl"`, `"l1"`, `"learnability"` or `"random"`.
    score_options
        Of `pace_scores` or `learnability`, such as `{"advantage_norm": "none"}`. With
        `{"optimizer": "adam"}` the first batch is learnt from and not scored, for the moments.
    exploratory_updates
        Whether the policy learns from new levels too; off in PACE and robust PLR.
    mutations
        Edits of ACCEL's mutation after each replay; 0 is without.
    capacity, min_fill, replay_prob, staleness, temperature, prioritization, evict, score_ema
        Of the `LevelSampler`.
    candidates, kept, refresh, candidate_episodes
        SFL: levels tried, levels kept, updates between trials, episodes on each.
    bootstrap
        Whether a truncated episode goes on with the critic's value.
    ppo
        Settings of the update.

    Examples
    --------
    >>> PACEConfig(steps=256).score
    'pace'
    """

    steps: int = 128
    curriculum: Literal["replay", "uniform", "learnability"] = "replay"
    score: str = "pace"
    score_options: Mapping[str, Any] = field(default_factory=dict)
    exploratory_updates: bool = False
    mutations: int = 0
    capacity: int = 500
    min_fill: float = 0.25
    replay_prob: float = 0.5
    staleness: float = 0.3
    temperature: float = 1.0
    prioritization: Literal["rank", "proportional", "topk"] = "rank"
    evict: Literal["score", "weight"] = "score"
    score_ema: float = 1.0
    candidates: int = 256
    kept: int = 64
    refresh: int = 50
    candidate_episodes: int = 5
    bootstrap: bool = False
    ppo: PPOConfig = field(default_factory=PPOConfig)

    def __post_init__(self) -> None:
        if self.curriculum not in ("replay", "uniform", "learnability"):
            raise ValueError(
                f"curriculum is {self.curriculum!r}; allowed: 'replay', 'uniform', 'learnability'"
            )
        if self.score not in SCORES:
            raise ValueError(f"score is {self.score!r}; allowed: one of {SCORES}")
        for name, least in (
            ("steps", 2),
            ("mutations", 0),
            ("candidates", 1),
            ("kept", 1),
            ("refresh", 1),
            ("candidate_episodes", 1),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)!r}; allowed: at least {least}")
        if self.kept > self.candidates:
            raise ValueError(f"kept is {self.kept}; allowed: at most candidates, {self.candidates}")


METHODS: dict[str, dict[str, Any]] = {
    "pace": {},
    "pace-none": {"score_options": {"advantage_norm": "none"}},
    "dr": {"curriculum": "uniform"},
    "plr-maxmc": {"score": "max_mc", "exploratory_updates": True},
    "plr-pvl": {"score": "pvl", "exploratory_updates": True},
    "robust-plr-maxmc": {"score": "max_mc"},
    "robust-plr-pvl": {"score": "pvl"},
    "robust-plr-l1": {"score": "l1"},
    "accel": {"score": "max_mc", "mutations": 5},
    "accel-pace": {"mutations": 5},
    "sfl": {"curriculum": "learnability"},
    "random": {"score": "random"},
}
"""The settings in which each method differs from PACE."""


def config_for(method: str, **changes: Any) -> PACEConfig:
    """The settings of a method by name, all else as given or by default.

    Parameters
    ----------
    method
        `"pace"`, `"pace-none"` (advantages not normalised), `"dr"`, `"plr-maxmc"`, `"plr-pvl"`,
        `"robust-plr-maxmc"`, `"robust-plr-pvl"`, `"robust-plr-l1"`, `"accel"`, `"accel-pace"`,
        `"sfl"`, or `"random"`, replay by a random score.
    changes
        Other fields of `PACEConfig`.

    Returns
    -------
    config

    Examples
    --------
    >>> config_for("robust-plr-maxmc", capacity=100).score
    'max_mc'
    """
    if method not in METHODS:
        raise ValueError(f"method is {method!r}; allowed: one of {', '.join(METHODS)}")
    return PACEConfig(**{**METHODS[method], **changes})


class PACETrainer:
    """Trains a policy on levels that it chooses.

    Parameters
    ----------
    policy
        A module with `act(obs, hidden, starts, generator) -> (action, logp, value, hidden)` and
        `evaluate(obs, actions, hidden, starts) -> (logp, entropy, value)`, such as `MLPPolicy`.
    env
        A vector environment that takes levels: `MazeVecEnv`, `CurriculumVectorEnv`.
    generator
        `generator(rng, n) -> levels`.
    config
        The settings; PACE's own if None.
    mutator
        `mutator(levels, rng, edits) -> levels`, for ACCEL.
    score
        A function `score(policy, rollout) -> (N,)` in place of the one that `config.score` names.
    callbacks
        Each called as `callback(trainer, row)` after every iteration; False ends the training.
    seed
        Of everything random; the policy's initial weights are its own.

    Attributes
    ----------
    history
        One dictionary an iteration, which `pandas.DataFrame(history)` takes: environment steps,
        updates, phase, mean return and success of the batch, mean score, losses.
    sampler
        The level buffer.
    seconds
        Time spent on rollouts, scores and updates.

    Examples
    --------
    >>> from rl_curriculum.pace import MazeVecEnv, MLPPolicy, generators
    >>> trainer = PACETrainer(
    ...     MLPPolicy(79, 3), MazeVecEnv(8, 32), generators.standard,
    ...     PACEConfig(steps=32, capacity=16))
    >>> trainer.learn(total_steps=2000).steps
    2048
    """

    def __init__(
        self,
        policy: nn.Module,
        env: LevelEnv,
        generator: Generator,
        config: PACEConfig | None = None,
        *,
        mutator: Callable[[Levels, np.random.Generator, int], Levels] | None = None,
        score: Score | None = None,
        callbacks: Sequence[Callback] = (),
        seed: int = 0,
    ) -> None:
        self.config = config or PACEConfig()
        for name in ("act", "evaluate"):
            if not callable(getattr(policy, name, None)):
                raise TypeError(f"policy has no method {name}; see MLPPolicy for the contract")
        if not callable(getattr(env, "assign", None)):
            raise TypeError(
                "env has no method assign(levels); wrap environments into CurriculumVectorEnv"
            )
        if self.config.curriculum == "replay" and self.config.capacity < env.num_envs:
            raise ValueError(
                f"capacity is {self.config.capacity}; allowed: at least the {env.num_envs} levels "
                "of a batch"
            )
        if self.config.mutations and mutator is None:
            raise ValueError("mutator is missing; config.mutations asks for one")
        self.policy, self.env, self.generator, self.mutator = policy, env, generator, mutator
        self.callbacks = tuple(callbacks)
        level_seed, buffer_seed, action_seed = np.random.SeedSequence(seed).spawn(3)
        self._rng = np.random.default_rng(level_seed)
        self._torch_rng = torch.Generator(next(policy.parameters()).device)
        self._torch_rng.manual_seed(int(action_seed.generate_state(1)[0]))
        self.optimizer = torch.optim.Adam(
            [p for p in policy.parameters() if p.requires_grad],
            lr=self.config.ppo.learning_rate,
            eps=1e-5,
            fused=True,
        )
        self.sampler = LevelSampler(
            self.config.capacity,
            self.config.replay_prob,
            self.config.staleness,
            self.config.temperature,
            self.config.min_fill,
            self.config.prioritization,
            self.config.evict,
            score_ema=self.config.score_ema,
            seed=np.random.default_rng(buffer_seed),
        )
        self._given_score = score
        self.score = score or self._named_score()
        self.steps = self.updates = self.iterations = 0
        self.history: list[Row] = []
        self.score_log: list[tuple[int, int, float]] = []
        self.seconds = {"rollout": 0.0, "score": 0.0, "update": 0.0}
        self._next: Literal["mutate"] | None = None
        self._parents: Levels = None
        self._learnable: Levels = None
        self._refreshed = 0
        self._warned = False

    def _named_score(self) -> Score:
        options = dict(self.config.score_options)
        name = self.config.score
        if name == "pace":
            if options.get("optimizer") == "adam":
                options["opt_state"] = self.optimizer
            return partial(pace_scores, **options)
        if name == "random":
            return partial(others.random_score, seed=self._rng, **options)
        found = {
            "max_mc": others.max_mc,
            "pvl": others.positive_value_loss,
            "l1": others.l1_value_loss,
            "learnability": others.learnability,
        }[name]
        return partial(found, **options)

    def learn(
        self, total_steps: int | None = None, total_updates: int | None = None
    ) -> PACETrainer:
        """Train until so many environment steps or updates were made in all.

        Steps count all phases, those without update included. Totals are absolute, so that a
        loaded trainer does what is left.

        Parameters
        ----------
        total_steps, total_updates
            At least one; the first one reached ends the training.

        Returns
        -------
        trainer
            This one.
        """
        if total_steps is None and total_updates is None:
            raise ValueError("total_steps and total_updates are missing; allowed: at least one")
        while (total_steps is None or self.steps < total_steps) and (
            total_updates is None or self.updates < total_updates
        ):
            row = self.iterate()
            answers = [callback(self, row) for callback in self.callbacks]
            if False in answers:
                break
        return self

    def iterate(self) -> Row:
        """One phase: levels, rollout, scores, and an update where the phase has one."""
        config = self.config
        n = self.env.num_envs
        ids: NDArray[np.int64] | None = None
        phase = "new"
        if config.curriculum == "replay":
            if config.score_options.get("optimizer") == "adam" and not self.optimizer.state:
                phase = "warm-up"
            elif self._next == "mutate":
                phase = "mutate"
            elif self.sampler.should_replay():
                phase = "replay"
        elif config.curriculum == "learnability":
            phase = "learnable"
        if phase == "mutate":
            assert self.mutator is not None
            levels = self.mutator(self._parents, self._rng, config.mutations)
            self._next = self._parents = None
        elif phase == "replay":
            ids, levels = self.sampler.sample(n)
        elif phase == "learnable":
            levels = self._learnable_batch(n)
        else:
            levels = self.generator(self._rng, n)
        if batches.count(levels) != n:
            raise ValueError(f"generator gave {batches.count(levels)} levels; asked for {n}")
        clock = time.perf_counter()
        batch = self._rollout(levels, ids)
        clock = self._spent("rollout", clock)
        scores = np.full(n, np.nan)
        if config.curriculum == "replay" and phase != "warm-up":
            # Before any update: the score is about the policy that collected the rollout.
            scores = np.asarray(self.score(self.policy, batch), dtype=np.float64)
            best = {"max_return": batch.best_returns}
            if ids is None:
                ids = self.sampler.insert(levels, scores, best)
            else:
                self.sampler.update(ids, scores, best)
            uids = self.sampler.uids
            kept = np.flatnonzero((ids >= 0) & np.isfinite(scores))
            self.score_log += [(self.iterations, int(uids[ids[k]]), float(scores[k])) for k in kept]
        clock = self._spent("score", clock)
        losses = dict.fromkeys(("policy_loss", "value_loss", "entropy"), float("nan"))
        learns = phase in ("replay", "learnable", "warm-up") or (
            phase == "new" and (config.exploratory_updates or config.curriculum == "uniform")
        )
        if learns:
            losses = update(self.policy, self.optimizer, batch, config.ppo, self._torch_rng)
            self.updates += 1
        self._spent("update", clock)
        if phase == "replay" and config.mutations:
            self._next, self._parents = "mutate", levels
        self.iterations += 1
        ended = np.concatenate(batch.episode_returns)
        row: Row = {
            "iteration": self.iterations,
            "steps": self.steps,
            "updates": self.updates,
            "phase": phase,
            "mean_return": float(ended.mean()) if len(ended) else float("nan"),
            "success": float((ended > 0).mean()) if len(ended) else float("nan"),
            "mean_score": float(scores[np.isfinite(scores)].mean())
            if np.isfinite(scores).any()
            else float("nan"),
            "buffer": len(self.sampler),
            **losses,
        }
        self.history.append(row)
        return row

    def _spent(self, what: str, since: float) -> float:
        now = time.perf_counter()
        self.seconds[what] += now - since
        return now

    def _rollout(self, levels: Levels, ids: NDArray[np.int64] | None) -> Rollout:
        config = self.config
        obs = self.env.assign(levels, int(self._rng.integers(2**31)))
        batch = collect(
            self.policy,
            self.env,
            obs,
            config.steps,
            self._torch_rng,
            gamma=config.ppo.gamma,
            gae_lambda=config.ppo.gae_lambda,
            bootstrap=config.bootstrap,
            max_returns=None if ids is None else self.sampler.extra("max_return")[ids],
        )
        self.steps += batch.rewards.size
        if not self._warned and not batch.done.any():
            self._warned = True
            warn_without_episodes(batch)
        return batch

    def _learnable_batch(self, n: int) -> Levels:
        """Half from the most learnable candidates, half new."""
        config = self.config
        if self._learnable is None or self.updates - self._refreshed >= config.refresh:
            self._refreshed = self.updates
            drawn: list[Levels] = []
            rates: list[Floats] = []
            while sum(map(len, rates)) < config.candidates:
                levels = self.generator(self._rng, n)
                drawn.append(levels)
                rates.append(self._success_rates(levels))
            p = np.concatenate(rates)
            best = np.argsort(-p * (1 - p), kind="stable")[: config.kept]
            self._learnable = batches.take(batches.concatenate(drawn), best)
        chosen = self._rng.integers(0, config.kept, n - n // 2)
        mixed = [batches.take(self._learnable, chosen)]
        if n // 2:
            mixed.append(batches.take(self.generator(self._rng, n), np.arange(n // 2)))
        return batches.concatenate(mixed)

    def _success_rates(self, levels: Levels) -> Floats:
        """Success rates over full episodes; the steps count."""
        from .evaluation import evaluate

        found = evaluate(
            self.policy,
            self.env,
            levels,
            self.config.candidate_episodes,
            seed=int(self._rng.integers(2**31)),
        )
        self.steps += int(found.lengths.sum())
        return found.rates

    def save(self, path: str | Path) -> None:
        """Write everything that `load` needs to go on identically, as one `.npz` file."""
        sampler = self.sampler.state_dict()
        arrays: dict[str, NDArray[Any]] = {
            f"policy/{name}": value.detach().cpu().numpy()
            for name, value in self.policy.state_dict().items()
        }
        for i, state in self.optimizer.state_dict()["state"].items():
            for name, value in state.items():
                arrays[f"optimizer/{i}/{name}"] = torch.as_tensor(value).cpu().numpy()
        for name in ("scores", "stamps", "uids"):
            arrays[f"sampler/{name}"] = sampler[name]
        for name, value in sampler["extras"].items():
            arrays[f"extras/{name}"] = value
        kinds = {"levels": sampler["levels"], "learnable": self._learnable}
        for kind, levels in {**kinds, "parents": self._parents}.items():
            if levels is not None and batches.count(levels):
                for leaf, value in batches.leaves(levels).items():
                    arrays[f"{kind}/{leaf}"] = value
        for name in self.history[0] if self.history else ():
            arrays[f"history/{name}"] = np.array([row[name] for row in self.history])
        arrays["score_log"] = np.array(self.score_log, dtype=np.float64).reshape(-1, 3)
        arrays["torch_rng"] = self._torch_rng.get_state().numpy()
        meta = {
            "format": FORMAT,
            "config": dataclasses.asdict(self.config),
            "steps": self.steps,
            "updates": self.updates,
            "iterations": self.iterations,
            "refreshed": self._refreshed,
            "next": self._next,
            "clock": sampler["clock"],
            "inserted": sampler["inserted"],
            "rng": self._rng.bit_generator.state,
            "sampler_rng": sampler["rng"],
        }
        arrays["meta"] = np.array(json.dumps(meta))

        def write(part: Path) -> None:
            with part.open("wb") as file:
                np.savez_compressed(file, allow_pickle=False, **arrays)

        write_atomic(Path(path), write)

    @classmethod
    def load(
        cls,
        path: str | Path,
        policy: nn.Module,
        env: LevelEnv,
        generator: Generator,
        **more: Any,
    ) -> PACETrainer:
        """A trainer that goes on where another was saved.

        Parameters
        ----------
        path
            What `save` wrote.
        policy, env, generator
            Made like those of the saved trainer; the weights are overwritten.
        more
            `mutator`, `score`, `callbacks`, as at the start.

        Returns
        -------
        trainer

        Raises
        ------
        ValueError
            If the file cannot be read or does not fit.
        """
        arrays, meta = read_checkpoint(path)
        trainer = cls(policy, env, generator, config_from(meta["config"]), **more)
        load_policy(policy, arrays)
        state: dict[int, dict[str, torch.Tensor]] = {}
        for name in [key for key in arrays if key.startswith("optimizer/")]:
            _, i, key = name.split("/")
            state.setdefault(int(i), {})[key] = torch.from_numpy(arrays[name])
        groups = trainer.optimizer.state_dict()["param_groups"]
        trainer.optimizer.load_state_dict({"state": state, "param_groups": groups})
        like = generator(np.random.default_rng(0), 1)

        def levels(kind: str) -> Levels:
            found = {
                key.removeprefix(f"{kind}/"): value
                for key, value in arrays.items()
                if key.startswith(f"{kind}/")
            }
            return batches.rebuild(like, found) if found else None

        trainer.sampler.load_state_dict(
            {
                "levels": levels("levels"),
                **{name: arrays[f"sampler/{name}"] for name in ("scores", "stamps", "uids")},
                "extras": {
                    key.removeprefix("extras/"): value
                    for key, value in arrays.items()
                    if key.startswith("extras/")
                },
                "clock": meta["clock"],
                "inserted": meta["inserted"],
                "rng": meta["sampler_rng"],
            }
        )
        trainer._learnable, trainer._parents = levels("learnable"), levels("parents")
        trainer._next, trainer._refreshed = meta["next"], meta["refreshed"]
        trainer._rng.bit_generator.state = meta["rng"]
        trainer._torch_rng.set_state(torch.from_numpy(arrays["torch_rng"]))
        trainer.steps, trainer.updates = meta["steps"], meta["updates"]
        trainer.iterations = meta["iterations"]
        columns = {k.removeprefix("history/"): v for k, v in arrays.items() if "history/" in k}
        trainer.history = [
            {name: column[i].item() for name, column in columns.items()}
            for i in range(trainer.iterations)
        ]
        trainer.score_log = [(int(i), int(u), float(s)) for i, u, s in arrays["score_log"]]
        return trainer


def read_checkpoint(path: str | Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """The arrays and the settings in a file that `PACETrainer.save` wrote.

    Raises
    ------
    ValueError
        If it is none.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        meta = json.loads(str(arrays.pop("meta")))
    except FileNotFoundError:
        raise ValueError(f"there is no file {path}") from None
    except Exception:
        raise ValueError(f"{path} is no checkpoint of PACETrainer") from None
    if meta.get("format") != FORMAT:
        raise ValueError(f"{path} has the format {meta.get('format')!r}; allowed: {FORMAT}")
    return arrays, meta


def config_from(saved: dict[str, Any]) -> PACEConfig:
    """The settings as they stand in a checkpoint."""
    return PACEConfig(**{**saved, "ppo": PPOConfig(**saved["ppo"])})


def load_policy(policy: nn.Module, arrays: dict[str, NDArray[Any]]) -> None:
    """Write the weights of a checkpoint into a policy of the same shape."""
    weights = {
        key.removeprefix("policy/"): torch.from_numpy(value)
        for key, value in arrays.items()
        if key.startswith("policy/")
    }
    try:
        policy.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(f"policy does not fit the checkpoint: {error}") from None
