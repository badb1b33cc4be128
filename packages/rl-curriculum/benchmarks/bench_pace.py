"""The maze engine, whole training, the cost of the score, and gradients a level."""

from __future__ import annotations

import time
from pathlib import Path

CASES = {
    "engine": {
        "text": "seconds per 10,000 steps of random actions in 13 x 13 mazes, 128 at once",
        "peer": "minigrid 3.2.0, its environment",
        "requirements": "minigrid.txt",
        "target": 100.0,
        "repeats": 3,
    },
    "training": {
        "text": "seconds per 10,000 steps of training, domain randomisation, 2 x 128 tanh network",
        "peer": "stable-baselines3 2.9.0 PPO on minigrid 3.2.0, 32 at once",
        "requirements": "stable-baselines3.txt",
        "target": 10.0,
        "repeats": 3,
    },
    "score": {
        "text": "a scored and a replayed batch of 32 levels x 128 steps with one update",
        "peer": "the same without scores; 0.65 means that they take 35% of the time",
        "requirements": None,
        "target": 0.65,
        "repeats": 9,
    },
    "gradients": {
        "text": "gradients of 32 levels x 128 steps, one backward pass, 2 x 128 tanh network",
        "peer": "a loop of torch.autograd.grad over levels",
        "requirements": None,
        "target": None,
        "repeats": 9,
    },
}
STEPS, LEVELS = 128, 32


def inputs(path: Path) -> None:
    import numpy as np

    from rl_curriculum.pace import random_levels, solvable

    drawn = random_levels(400, 60, seed=0)
    drawn = drawn.take(np.flatnonzero(solvable(drawn) > 0)[:128])
    np.savez(
        path / "mazes.npz",
        walls=drawn.walls,
        agent=drawn.agent,
        direction=drawn.direction,
        goal=drawn.goal,
    )


def ours(path: Path) -> dict[str, float]:
    import numpy as np
    import torch

    from rl_curriculum.pace import (
        MazeVecEnv,
        MLPPolicy,
        PACETrainer,
        config_for,
        pace_scores,
        read_levels,
    )

    torch.set_num_threads(1)
    levels = read_levels(path / "mazes.npz")
    if path.name == "engine":
        rng = np.random.default_rng(0)
        env = MazeVecEnv(128, 250, levels=levels)
        actions = rng.integers(0, 3, (2000, 128))
        start = time.perf_counter()
        for action in actions:
            env.step(action)
        seconds = time.perf_counter() - start
        steps = actions.size
    elif path.name == "training":
        trainer = PACETrainer(
            MLPPolicy(79, 3),
            MazeVecEnv(LEVELS, STEPS),
            lambda rng, n: levels.take(rng.integers(0, len(levels), n)),
            config_for("dr"),
        )
        trainer.learn(total_updates=1)
        before, start = trainer.steps, time.perf_counter()
        trainer.learn(total_updates=11)
        seconds = time.perf_counter() - start
        steps = trainer.steps - before
    else:
        policy, batch, iterate = _iteration()
        if path.name == "gradients":
            start = time.perf_counter()
            for _ in range(10):
                scores = pace_scores(policy, batch, advantage_norm="none")
            return {
                "seconds": (time.perf_counter() - start) / 10,
                "sum of scores": float(scores.sum()),
            }
        start = time.perf_counter()
        for _ in range(5):
            iterate(pace_scores)
        return {"seconds": (time.perf_counter() - start) / 5}
    return {"seconds": seconds * 10_000 / steps, "steps per second": steps / seconds}


def _iteration():
    """A policy, a rollout of it, and a scored and a replayed batch with whatever score is given."""
    import torch

    from rl_curriculum.pace import MazeVecEnv, MLPPolicy, PPOConfig, generators
    from rl_curriculum.pace.ppo import collect, update

    policy = MLPPolicy(79, 3)
    env = MazeVecEnv(LEVELS, STEPS)
    levels = generators.real_levels(LEVELS, seed=0)
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(policy.parameters(), lr=5e-4, fused=True)

    def iterate(score):
        for _ in range(2):
            batch = collect(policy, env, env.assign(levels, 0), STEPS, generator)
            if score is not None:
                score(policy, batch)
        update(policy, optimizer, batch, PPOConfig(), generator)
        return batch

    return policy, iterate(None), iterate


def peer(path: Path) -> dict[str, float]:
    if path.name == "score":
        import torch

        torch.set_num_threads(1)
        _, _, iterate = _iteration()
        start = time.perf_counter()
        for _ in range(5):
            iterate(None)
        return {"seconds": (time.perf_counter() - start) / 5}
    if path.name == "gradients":
        import torch

        from rl_curriculum.pace._reference import score_by_autograd

        torch.set_num_threads(1)
        policy, batch, _ = _iteration()
        start = time.perf_counter()
        scores = score_by_autograd(policy, batch.obs, batch.actions, batch.advantages)
        return {
            "seconds": time.perf_counter() - start,
            "sum of scores": float(scores.sum()),
        }
    return _minigrid_engine(path) if path.name == "engine" else _stable_baselines(path)


def _minigrid(path: Path, index: int, max_steps: int):
    import numpy as np
    from minigrid.core.grid import Grid
    from minigrid.core.mission import MissionSpace
    from minigrid.core.world_object import Goal, Wall
    from minigrid.minigrid_env import MiniGridEnv

    with np.load(path / "mazes.npz", allow_pickle=False) as file:
        walls = file["walls"][index]
        agent, goal = (divmod(int(file[name][index]), 13) for name in ("agent", "goal"))
        direction = int(file["direction"][index])

    class Maze(MiniGridEnv):
        def _gen_grid(self, width, height):
            self.grid = Grid(width, height)
            self.grid.wall_rect(0, 0, width, height)
            for row, column in np.argwhere(walls):
                self.grid.set(int(column) + 1, int(row) + 1, Wall())
            self.grid.set(goal[1] + 1, goal[0] + 1, Goal())
            self.agent_pos = (agent[1] + 1, agent[0] + 1)
            self.agent_dir = direction
            self.mission = ""

    return Maze(
        mission_space=MissionSpace(mission_func=lambda: ""),
        width=15,
        height=15,
        max_steps=max_steps,
        agent_view_size=5,
        see_through_walls=True,
    )


def _minigrid_engine(path: Path) -> dict[str, float]:
    import numpy as np

    env = _minigrid(path, 0, 250)
    env.reset()
    steps = 4000
    actions = np.random.default_rng(0).integers(0, 3, steps).tolist()
    start = time.perf_counter()
    for action in actions:
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()
    seconds = time.perf_counter() - start
    return {"seconds": seconds * 10_000 / steps, "steps per second": steps / seconds}


def _stable_baselines(path: Path) -> dict[str, float]:
    import gymnasium as gym
    import numpy as np
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import DummyVecEnv

    torch.set_num_threads(1)

    class Observed(gym.ObservationWrapper):
        """Walls, goal and direction of the view, without the visits that MiniGrid lacks."""

        observation_space = gym.spaces.Box(0, 1, (54,), np.float32)

        def observation(self, observation):
            cells = observation["image"][..., 0].T.ravel()
            compass = np.eye(4)[observation["direction"]]
            return np.concatenate([cells == 2, cells == 8, compass]).astype(np.float32)

    class Three(gym.ActionWrapper):
        action_space = gym.spaces.Discrete(3)

        def action(self, action):
            return int(action)

    envs = DummyVecEnv(
        [lambda i=i: Three(Observed(_minigrid(path, i, STEPS))) for i in range(LEVELS)]
    )
    model = PPO(
        "MlpPolicy",
        envs,
        learning_rate=5e-4,
        n_steps=STEPS,
        batch_size=STEPS * LEVELS // 4,
        n_epochs=4,
        gamma=0.995,
        policy_kwargs={"net_arch": [128, 128], "activation_fn": torch.nn.Tanh},
        device="cpu",
    )
    steps = STEPS * LEVELS
    start = time.perf_counter()
    model.learn(steps)
    seconds = time.perf_counter() - start
    return {"seconds": seconds * 10_000 / steps, "steps per second": steps / seconds}
