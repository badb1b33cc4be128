"""Levels for any gymnasium environment."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rl_curriculum.pace import LevelSampler, MazeLevels, MLPPolicy, random_levels, to_minigrid
from rl_curriculum.pace.curriculum_env import CurriculumVectorEnv, LevelWrapper
from rl_curriculum.pace.trainer import PACEConfig, PACETrainer


def set_physics(env: gym.Env, level: dict) -> None:
    env.unwrapped.length = level["length"]
    env.unwrapped.gravity = level["gravity"]


def set_physics_from_seed(env: gym.Env, level: int) -> None:
    """A procedure that makes a level of a seed, as in a procedurally generated game."""
    rng = np.random.default_rng(level)
    set_physics(env, {"length": rng.uniform(0.2, 2.0), "gravity": rng.uniform(5, 15)})


class Corridor(gym.Env):
    """Reports the level that it was reset to."""

    observation_space = gym.spaces.Box(-1, 100, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.length = int((options or {}).get("level", (-1,))[0])
        self.at = 0
        return np.array([self.length], np.float32), {"length": self.length}

    def step(self, action):
        self.at += 1
        end = self.at >= self.length
        return np.array([-1], np.float32), float(end), end, False, {"at": self.at}


def test_every_episode_replays_its_own_level() -> None:
    env = CurriculumVectorEnv([Corridor] * 3)
    obs = env.assign((np.array([2, 3, 5]),))
    assert obs[:, 0].tolist() == [2, 3, 5]
    seen = []
    for _ in range(6):
        obs, reward, terminated, _, info = env.step(np.zeros(3, int))
        seen.append(terminated.tolist())
        assert info["level_id"].tolist() == [0, 1, 2]
        # The next episode begins in the same level, the old one's last observation is kept.
        assert (obs[terminated, 0] == np.array([2, 3, 5])[terminated]).all()
        if terminated.any():
            assert (info["final_obs"][terminated] == -1).all()
        assert (reward == terminated).all()
    ends = np.array(seen).sum(0)
    assert ends.tolist() == [3, 2, 1]
    env.assign((np.array([1, 1, 1]),))
    assert env.step(np.zeros(3, int))[4]["level_id"].tolist() == [3, 4, 5]
    env.close()


def test_a_seed_is_a_level() -> None:
    env = CurriculumVectorEnv([lambda: gym.make("CartPole-v1")] * 2)
    first = env.assign([11, 12])
    np.testing.assert_array_equal(first[0], gym.make("CartPole-v1").reset(seed=11)[0])
    for _ in range(80):
        obs, _, terminated, _, _ = env.step(np.ones(2, int))
        for i in np.flatnonzero(terminated):
            np.testing.assert_array_equal(obs[i], first[i])
    assert first[0].tolist() != first[1].tolist()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_parameters_of_the_physics_are_a_level(asynchronous) -> None:
    env = CurriculumVectorEnv(
        [lambda: gym.make("CartPole-v1")] * 2, set_level=set_physics, asynchronous=asynchronous
    )
    env.assign({"length": np.array([0.5, 2.0]), "gravity": np.array([9.8, 5.0])}, seed=3)
    env.step(np.zeros(2, int))
    assert env._inner.call("get_wrapper_attr", "length") == (0.5, 2.0)
    env.close()


def test_mazes_of_minigrid_through_the_wrapper() -> None:
    levels = random_levels(2, 20, seed=0)

    class Maze(gym.ObservationWrapper):
        """MiniGrid's environment made anew for each level."""

        def __init__(self):
            super().__init__(to_minigrid(levels, 0, 20))
            self.observation_space = gym.spaces.Box(0, 255, (5, 5, 3), np.uint8)

        def observation(self, observation):
            return observation["image"]

    def set_level(env: gym.Env, level: MazeLevels) -> None:
        env.env = to_minigrid(level, 0, 20)

    env = CurriculumVectorEnv([Maze] * 2, set_level=set_level)
    obs = env.assign(levels)
    for i in range(2):
        wanted = to_minigrid(levels, i, 20).reset()[0]["image"]
        np.testing.assert_array_equal(obs[i], wanted)


def test_any_training_loop_gets_its_levels() -> None:
    sampler = LevelSampler(16, seed=0, min_fill=0.2)
    env = CurriculumVectorEnv(
        [lambda: gym.make("CartPole-v1")] * 4,
        sampler,
        lambda rng, n: rng.integers(0, 50, n).tolist(),
        set_physics_from_seed,
    )
    env.reset(seed=1)
    kinds = []
    for _ in range(20):
        kinds.append(env.replaying)
        before = dict(zip(sampler.levels or [], sampler.scores, strict=True))
        scores = np.arange(4.0) + len(kinds)
        ids = env.report(scores)
        if env.replaying:
            assert set(env.levels) <= set(before)
            last = dict(zip(env.levels, scores, strict=True))
            found = dict(zip(sampler.levels, sampler.scores, strict=True))
            assert all(found[level] == score for level, score in last.items())
        assert len(ids) == 4
        env.advance()
    assert {True, False} == set(kinds)


def test_the_trainer_takes_any_environment() -> None:
    env = CurriculumVectorEnv(
        [lambda: gym.make("CartPole-v1", max_episode_steps=30)] * 4,
        set_level=set_physics_from_seed,
    )
    trainer = PACETrainer(
        MLPPolicy(4, 2, (16,), seed=0),
        env,
        lambda rng, n: rng.integers(0, 1000, n).tolist(),
        PACEConfig(steps=64, capacity=8, bootstrap=True),
        seed=0,
    )
    trainer.learn(total_updates=6)
    assert {"new", "replay"} == {row["phase"] for row in trainer.history}
    assert len(trainer.sampler) == 8
    assert all(isinstance(level, int) for level in trainer.sampler.levels)


def test_wrong_use_is_refused() -> None:
    def make() -> gym.Env:
        return gym.make("CartPole-v1")

    with pytest.raises(ValueError, match="empty"):
        CurriculumVectorEnv([])
    with pytest.raises(TypeError, match="functions that make an environment"):
        CurriculumVectorEnv([gym.make("CartPole-v1")])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="both or not at all"):
        CurriculumVectorEnv([make], LevelSampler(3))
    with pytest.raises(ValueError, match="capacity 1"):
        CurriculumVectorEnv([make] * 2, LevelSampler(1), lambda rng, n: [0] * n)
    with pytest.raises(ValueError, match="resets by itself"):
        CurriculumVectorEnv(SyncVectorEnv([make]))
    with pytest.raises(TypeError, match="without LevelWrapper"):
        CurriculumVectorEnv(SyncVectorEnv([make], autoreset_mode=AutoresetMode.DISABLED))
    with pytest.raises(TypeError, match="set_level cannot write the level 3"):
        CurriculumVectorEnv([make], set_level=lambda env, level: level.walls).assign([3])
    env = CurriculumVectorEnv(
        SyncVectorEnv([lambda: LevelWrapper(make())], autoreset_mode=AutoresetMode.DISABLED)
    )
    with pytest.raises(ValueError, match="levels are 2; allowed: 1"):
        env.assign([1, 2])
    with pytest.raises(ValueError, match="sampler and generator are missing"):
        env.advance()
