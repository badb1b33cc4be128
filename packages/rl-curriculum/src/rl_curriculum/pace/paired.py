"""PAIRED: an adversary builds mazes for the regret between two students."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .maze_env import MazeVecEnv
from .mazes import MazeLevels
from .policies import MLPPolicy
from .ppo import PPOConfig, collect, update
from .rollout import Rollout

Floats = NDArray[np.float64]


class PAIREDTrainer:
    """Trains two students on mazes of an adversary, which is paid for their difference.

    The adversary chooses `walls` cells for walls, one at a time, then the goal's and the start's
    cell, which a wall gives way to; a start on the goal goes to the next cell. Its reward at the
    end is the regret: the best return of the antagonist minus the mean return of the protagonist on
    the maze.

    Parameters
    ----------
    student
        The protagonist, the policy that is wanted.
    num_envs
        Mazes in a batch.
    steps
        Steps on each maze, and the length of an episode.
    walls
        Choices of a wall.
    ppo
        Settings of all three learners.
    seed
        Of everything random.

    Notes
    -----
    Source: Dennis et al., *Emergent Complexity and Zero-shot Transfer via Unsupervised Environment
    Design*, 2020.

    Examples
    --------
    >>> trainer = PAIREDTrainer(MLPPolicy(79, 3, seed=0), 4, 16, walls=5)
    >>> trainer.learn(200).updates
    2
    """

    size = (13, 13)

    def __init__(
        self,
        student: MLPPolicy,
        num_envs: int = 32,
        steps: int = 128,
        walls: int = 60,
        ppo: PPOConfig | None = None,
        seed: int = 0,
    ) -> None:
        if walls < 0:
            raise ValueError(f"walls is {walls!r}; allowed: at least 0")
        self.student = student
        self.antagonist = MLPPolicy(79, 3, seed=seed + 1)
        cells = self.size[0] * self.size[1]
        self.adversary = MLPPolicy(2 * cells + 1, cells, seed=seed + 2)
        self.num_envs, self.rollout_steps, self.walls = num_envs, steps, walls
        self.ppo = ppo or PPOConfig()
        self._rng = np.random.default_rng(seed)
        self._torch_rng = torch.Generator().manual_seed(seed)
        self._learners: list[tuple[nn.Module, torch.optim.Optimizer]] = [
            (p, torch.optim.Adam(p.parameters(), lr=self.ppo.learning_rate, eps=1e-5, fused=True))
            for p in (self.student, self.antagonist, self.adversary)
        ]
        self._env = MazeVecEnv(num_envs, steps, self.size)
        self.steps = self.updates = 0
        self.regrets: list[float] = []

    def learn(self, total_steps: int) -> PAIREDTrainer:
        """Train until both students together made so many environment steps.

        Parameters
        ----------
        total_steps
            The adversary's own choices are not counted.
        """
        while self.steps < total_steps:
            obs, actions, logp, values, levels = self.build()
            rollouts = [
                collect(
                    policy,
                    self._env,
                    self._env.assign(levels, int(self._rng.integers(2**31))),
                    self.rollout_steps,
                    self._torch_rng,
                    gamma=self.ppo.gamma,
                    gae_lambda=self.ppo.gae_lambda,
                )
                for policy in (self.student, self.antagonist)
            ]
            self.steps += sum(r.rewards.size for r in rollouts)
            mean = np.array([r.mean() if len(r) else 0.0 for r in rollouts[0].episode_returns])
            regret = np.nan_to_num(rollouts[1].best_returns) - mean
            rewards = np.zeros(logp.shape)
            rewards[-1] = regret
            ended = np.zeros(logp.shape, dtype=bool)
            ended[-1] = True
            design = Rollout(
                obs=obs,
                actions=actions,
                logp=logp,
                values=values.numpy(),
                rewards=rewards,
                terminated=ended,
                truncated=np.zeros_like(ended),
                last_value=np.zeros(self.num_envs),
                gamma=1.0,
                gae_lambda=self.ppo.gae_lambda,
            )
            for (policy, optimizer), batch in zip(self._learners, [*rollouts, design], strict=True):
                update(policy, optimizer, batch, self.ppo, self._torch_rng)
            self.updates += 1
            self.regrets.append(float(regret.mean()))
        return self

    def build(self) -> tuple[Tensor, Tensor, Tensor, Tensor, MazeLevels]:
        """Let the adversary build a batch of mazes: what it saw, chose, and the mazes."""
        n, cells, length = self.num_envs, self.size[0] * self.size[1], self.walls + 2
        rows = np.arange(n)
        blocked = np.zeros((n, cells), dtype=bool)
        goal = np.full(n, -1)
        agent = np.full(n, -1)
        store: list[list[Tensor]] = [[], [], [], []]
        for k in range(length):
            marks = np.zeros((n, 2 * cells + 1), dtype=np.float32)
            marks[:, :cells] = blocked
            if k == self.walls + 1:
                marks[rows, cells + goal] = 1
            marks[:, -1] = k / length
            obs = torch.from_numpy(marks)
            with torch.no_grad():
                logits, value = self.adversary(obs)
                waits = torch.empty_like(logits).exponential_(generator=self._torch_rng)
                action = (logits - waits.log()).argmax(-1)
                logp = logits.gather(-1, action.unsqueeze(-1)).squeeze(-1)
            for kept, part in zip(store, (obs, action, logp, value), strict=True):
                kept.append(part)
            chosen = action.numpy()
            if k < self.walls:
                blocked[rows, chosen] = True
            elif k == self.walls:
                goal = chosen.copy()
                blocked[rows, goal] = False
            else:
                taken = chosen == goal
                agent = np.where(taken, (chosen + 1) % cells, chosen)
                blocked[rows, agent] = False
        levels = MazeLevels(
            blocked.reshape(n, *self.size), agent, self._rng.integers(0, 4, n), goal
        )
        stacked = [torch.stack(parts) for parts in store]
        return stacked[0], stacked[1], stacked[2], stacked[3], levels
