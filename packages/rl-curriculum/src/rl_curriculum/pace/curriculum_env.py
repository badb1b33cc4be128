"""Any gymnasium environment as one that takes levels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import ArrayLike, NDArray

from . import levels as batches
from .generators import Generator
from .levels import Levels
from .sampler import LevelSampler

SetLevel = Callable[[gym.Env[Any, Any], Any], None]


class LevelWrapper(gym.Wrapper[Any, Any, Any, Any]):
    """An environment whose every `reset` starts in the level that stands in its attribute `level`.

    Parameters
    ----------
    env
        The environment.
    set_level
        `set_level(env, level)` prepares the environment before each reset. Without it an integer
        level is the seed of the reset, and any other one is passed as
        `reset(options={"level": level})`.

    Examples
    --------
    >>> env = LevelWrapper(gym.make("CartPole-v1"))
    >>> env.level = 7
    >>> bool((env.reset()[0] == env.reset()[0]).all())
    True
    """

    def __init__(self, env: gym.Env[Any, Any], set_level: SetLevel | None = None) -> None:
        super().__init__(env)
        self.level: Any = None
        self._set_level = set_level

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode in the level; `seed` is for what the level leaves open."""
        level = self.level
        if level is None:
            return self.env.reset(seed=seed, options=options)
        if self._set_level is not None:
            try:
                self._set_level(self.env, level)
            except (AttributeError, KeyError) as error:
                raise TypeError(
                    f"set_level cannot write the level {level!r} into {self.env}: {error}"
                ) from error
            return self.env.reset(seed=seed, options=options)
        if isinstance(level, int | np.integer):
            return self.env.reset(seed=int(level), options=options)
        return self.env.reset(seed=seed, options={**(options or {}), "level": level})


class CurriculumVectorEnv(VectorEnv[Any, Any, Any]):
    """A vector environment in which each part replays its own level until it is given another.

    Parameters
    ----------
    env_fns
        Functions that make the environments, or a `SyncVectorEnv` or `AsyncVectorEnv` of
        environments wrapped into `LevelWrapper`, with `autoreset_mode=AutoresetMode.DISABLED`.
    sampler, generator
        For `advance` and `report`, with which any training loop gets its levels from here. A
        `PACETrainer` has its own and needs neither.
    set_level
        As in `LevelWrapper`.
    asynchronous
        Whether the environments run in processes of their own.

    Notes
    -----
    After an episode's end `step` returns the first observation of the next one, the last one of
    the old in `info["final_obs"]`, and `info["level_id"]` numbers the assigned levels.

    Examples
    --------
    >>> env = CurriculumVectorEnv(
    ...     [lambda: gym.make("CartPole-v1")] * 2, LevelSampler(8, seed=0),
    ...     lambda rng, n: rng.integers(0, 1000, n).tolist())
    >>> obs, info = env.reset(seed=0)
    >>> obs, reward, terminated, truncated, info = env.step(np.array([0, 1]))
    >>> env.report([0.5, 0.1]).tolist()
    [0, 1]
    >>> obs = env.advance()  # the next levels, new or replayed
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gym.Env[Any, Any]]] | VectorEnv[Any, Any, Any],
        sampler: LevelSampler | None = None,
        generator: Generator | None = None,
        set_level: SetLevel | None = None,
        *,
        asynchronous: bool = False,
    ) -> None:
        if isinstance(env_fns, VectorEnv):
            if not isinstance(env_fns, SyncVectorEnv | AsyncVectorEnv):
                raise TypeError(
                    f"env_fns is a {type(env_fns).__name__}; allowed: SyncVectorEnv, "
                    "AsyncVectorEnv or functions that make environments"
                )
            if env_fns.metadata.get("autoreset_mode") != AutoresetMode.DISABLED:
                raise ValueError(
                    f"env_fns resets by itself ({env_fns.metadata.get('autoreset_mode')}); "
                    "allowed: autoreset_mode=AutoresetMode.DISABLED"
                )
            if set_level is not None:
                raise ValueError("set_level belongs to the LevelWrapper of each environment")
            try:
                env_fns.get_attr("level")
            except AttributeError:
                raise TypeError("env_fns holds environments without LevelWrapper") from None
            inner: Any = env_fns
        else:
            makers = [_Wrapped(make, set_level) for make in env_fns]
            if not makers:
                raise ValueError("env_fns is empty; allowed: at least one function")
            for make in env_fns:
                if not callable(make):
                    raise TypeError(
                        f"env_fns holds {make!r}; allowed: functions that make an environment"
                    )
            kind: Any = AsyncVectorEnv if asynchronous else SyncVectorEnv
            inner = kind(makers, autoreset_mode=AutoresetMode.DISABLED)
        if (sampler is None) != (generator is None):
            raise ValueError("sampler and generator are given both or not at all")
        if sampler is not None and sampler.capacity < inner.num_envs:
            raise ValueError(
                f"sampler has the capacity {sampler.capacity}; allowed: at least "
                f"{inner.num_envs}, one batch"
            )
        self._inner = inner
        self.num_envs = inner.num_envs
        self.single_observation_space = inner.single_observation_space
        self.single_action_space = inner.single_action_space
        self.observation_space = inner.observation_space
        self.action_space = inner.action_space
        self.metadata = {**inner.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}
        self.sampler, self.generator = sampler, generator
        self._rng = np.random.default_rng(0)
        self._levels: Levels = None
        self._ids: NDArray[np.int64] | None = None
        self._assigned = 0
        self._level_ids = np.full(self.num_envs, -1)

    @property
    def levels(self) -> Levels:
        """The levels in play, None before the first assignment."""
        return self._levels

    def assign(self, levels: Levels, seed: int | None = None) -> Any:
        """Put the environments into these levels and return their first observations.

        Parameters
        ----------
        levels
            One for each environment.
        seed
            Of what the levels leave open.
        """
        n = self.num_envs
        if batches.count(levels) != n:
            raise ValueError(f"levels are {batches.count(levels)}; allowed: {n}, one a part")
        self._levels = levels
        self._level_ids = np.arange(self._assigned, self._assigned + n)
        self._assigned += n
        self._inner.set_attr("level", [_one(levels, i) for i in range(n)])
        return self._inner.reset(seed=seed)[0]

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start on `options["levels"]`, on a first batch of the curriculum, or as before."""
        if isinstance(seed, int):
            self._rng = np.random.default_rng(seed)
        number = seed if isinstance(seed, int) else None
        given = (options or {}).get("levels")
        if given is not None:
            self._ids = None
            obs = self.assign(given, number)
        elif self._levels is not None:
            obs = self._inner.reset(seed=seed)[0]
        elif self.generator is not None:
            obs = self.advance(number)
        else:
            obs = self._inner.reset(seed=seed)[0]
        return obs, {"level_id": self._level_ids.copy()}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Act in every environment; ended episodes go on with their own level."""
        obs, reward, terminated, truncated, info = self._inner.step(actions)
        done = terminated | truncated
        info = dict(info)
        if done.any():
            info["final_obs"], info["final_info"] = _copied(obs), dict(info)
            obs = self._inner.reset(options={"reset_mask": done})[0]
        info["level_id"] = self._level_ids.copy()
        return obs, reward, terminated, truncated, info

    def advance(self, seed: int | None = None) -> Any:
        """Go on to the next batch of levels, new or replayed, and return first observations."""
        sampler, generator = self._curriculum()
        if sampler.should_replay():
            self._ids, levels = sampler.sample(self.num_envs)
        else:
            self._ids, levels = None, generator(self._rng, self.num_envs)
        return self.assign(levels, seed)

    @property
    def replaying(self) -> bool:
        """Whether the levels in play are replayed ones: PACE learns from these alone."""
        return self._ids is not None

    def report(self, scores: ArrayLike) -> NDArray[np.int64]:
        """Hand in the scores of the levels in play, and return their places in the buffer.

        Parameters
        ----------
        scores
            Shape (N,); a score that is not finite changes nothing.
        """
        sampler, _ = self._curriculum()
        if self._levels is None:
            raise ValueError("no levels are in play; call reset first")
        if self._ids is None:
            return sampler.insert(self._levels, scores)
        sampler.update(self._ids, scores)
        return self._ids

    def _curriculum(self) -> tuple[LevelSampler, Generator]:
        if self.sampler is None or self.generator is None:
            raise ValueError("sampler and generator are missing; give both to CurriculumVectorEnv")
        return self.sampler, self.generator

    def close_extras(self, **more: Any) -> None:
        """Close the environments."""
        self._inner.close(**more)


class _Wrapped:
    """Makes one wrapped environment; a class so that it can be sent to another process."""

    def __init__(self, make: Callable[[], gym.Env[Any, Any]], set_level: SetLevel | None) -> None:
        self.make, self.set_level = make, set_level

    def __call__(self) -> gym.Env[Any, Any]:
        return LevelWrapper(self.make(), self.set_level)


def _one(levels: Levels, i: int) -> Any:
    """One level: a number or array without the leading axis, or a batch of one of a dataclass."""
    if isinstance(levels, list | np.ndarray):
        level = levels[i]
        return level.item() if isinstance(level, np.generic) else level
    if isinstance(levels, dict):
        return {name: _one(part, i) for name, part in levels.items()}
    if isinstance(levels, tuple):
        return tuple(_one(part, i) for part in levels)
    return batches.take(levels, [i])


def _copied(obs: Any) -> Any:
    if isinstance(obs, dict):
        return {name: _copied(part) for name, part in obs.items()}
    if isinstance(obs, tuple):
        return tuple(_copied(part) for part in obs)
    return np.array(obs)
