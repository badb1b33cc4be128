"""Many mazes at once in numpy, with the dynamics and views of MiniGrid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from .mazes import STEPS, MazeLevels

if TYPE_CHECKING:
    from minigrid.minigrid_env import MiniGridEnv

VIEW = 5
_MARGIN = VIEW - 1
Observation = NDArray[np.float32]


class MazeVecEnv(VectorEnv[Observation, NDArray[np.int64], NDArray[Any]]):
    """Mazes of one size, stepped together; each goes on with its own level until `assign`.

    Actions are 0 turn left, 1 turn right, 2 forward. Reaching the goal gives `1 - 0.9 t / T` after
    `t` of at most `T` steps and ends the episode; `T` steps cut it off. The next observation is
    then the first of the next episode on the same level.

    An observation has the 5 x 5 cells ahead of the agent, seen through walls, from far to near and
    from left to right: walls (25), the goal (25), with `visits` how often the cell was visited in
    this episode (25, a quarter a visit, at most 1), and the direction (4).

    Parameters
    ----------
    num_envs
        The number of mazes.
    max_steps
        `T`.
    size
        Height and width of the mazes.
    visits
        Whether to show visits, with which a policy without memory can explore.
    levels
        The first assignment; otherwise `assign` comes before `step`.

    Examples
    --------
    >>> env = MazeVecEnv(1, 10, (1, 3))
    >>> env.assign(MazeLevels.from_text([">.G"])).shape
    (1, 79)
    >>> _ = env.step(np.array([2]))
    >>> obs, reward, terminated, truncated, info = env.step(np.array([2]))
    >>> round(float(reward[0]), 6), bool(terminated[0]), bool(truncated[0])
    (0.82, True, False)
    """

    def __init__(
        self,
        num_envs: int,
        max_steps: int = 250,
        size: tuple[int, int] = (13, 13),
        *,
        visits: bool = True,
        levels: MazeLevels | None = None,
    ) -> None:
        for name, value in (("num_envs", num_envs), ("max_steps", max_steps)):
            if value < 1:
                raise ValueError(f"{name} is {value!r}; allowed: at least 1")
        self.num_envs = num_envs
        self.max_steps = max_steps
        self.size = size
        self.visits = visits
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self._channels = (3 if visits else 2) * VIEW * VIEW + 4
        self.single_observation_space = gym.spaces.Box(0, 1, (self._channels,), np.float32)
        self.single_action_space = gym.spaces.Discrete(3)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._rng = np.random.default_rng(0)
        self._width = size[1] + 2 * _MARGIN
        self._cells = (size[0] + 2 * _MARGIN) * self._width
        self._step = np.array([down * self._width + right for down, right in STEPS])
        self._offsets = _view_offsets(self._width)
        self._base = np.arange(num_envs) * self._cells
        self._compass = np.eye(4, dtype=np.float32)
        self._levels: MazeLevels | None = None
        if levels is not None:
            self.assign(levels)

    @property
    def levels(self) -> MazeLevels | None:
        """The levels in play."""
        return self._levels

    def assign(self, levels: MazeLevels, seed: int | None = None) -> Observation:
        """Put each environment into its level at a first step, and return the observations.

        Parameters
        ----------
        levels
            As many as environments.
        seed
            Of the reward noise from here on; it goes on as it was if None.

        Raises
        ------
        ValueError
            If number or size differ.
        """
        if not isinstance(levels, MazeLevels):
            raise TypeError(f"levels is a {type(levels).__name__}; allowed: MazeLevels")
        if len(levels) != self.num_envs or levels.size != self.size:
            raise ValueError(
                f"levels are {len(levels)} of size {levels.size}; allowed: {self.num_envs} of "
                f"size {self.size}"
            )
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._levels = levels
        height = self.size[0]
        padded = np.ones((self.num_envs, height + 2 * _MARGIN, self._width), dtype=np.float32)
        padded[:, _MARGIN:-_MARGIN, _MARGIN:-_MARGIN] = levels.walls
        self._walls = padded.ravel()
        self._start = self._padded(levels.agent) + self._base
        self._goal = self._padded(levels.goal) + self._base
        self._noisy = bool((levels.noise > 1).any())
        self._seen = np.zeros(self.num_envs * self._cells, dtype=np.float32)
        self._at = self._start.copy()
        self._direction = levels.direction.copy()
        self._time = np.zeros(self.num_envs, dtype=np.int64)
        self._seen[self._at] = 0.25
        return self._observe()

    def _padded(self, cells: NDArray[np.int64]) -> NDArray[np.int64]:
        row, column = np.divmod(cells, self.size[1])
        padded: NDArray[np.int64] = (row + _MARGIN) * self._width + column + _MARGIN
        return padded

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start all episodes anew, on `options["levels"]` if given."""
        levels = (options or {}).get("levels", self._levels)
        if levels is None:
            raise ValueError("options['levels'] is missing and no levels were assigned before")
        return self.assign(levels, seed if isinstance(seed, int) else None), {}

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[
        Observation, NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]
    ]:
        """Act in every environment."""
        levels = self._levels
        if levels is None:
            raise ValueError("no level is assigned; call assign or reset first")
        actions = np.asarray(actions)
        if actions.shape != (self.num_envs,):
            raise ValueError(f"actions has shape {actions.shape}; allowed: ({self.num_envs},)")
        forward = actions == 2
        self._direction = (self._direction + (actions == 1) - (actions == 0)) & 3
        ahead = self._at + self._step[self._direction]
        moves = forward & (self._walls[ahead] == 0)
        self._at = np.where(moves, ahead, self._at)
        self._time += 1
        self._seen[self._at] += np.float32(0.25) * moves
        terminated = moves & (self._at == self._goal)
        truncated = self._time >= self.max_steps
        reward = np.zeros(self.num_envs, dtype=np.float32)
        done = terminated | truncated
        info: dict[str, Any] = {}
        if terminated.any():
            paid = 1 - 0.9 * self._time / self.max_steps
            if self._noisy:
                luck = self._rng.random(self.num_envs) * levels.noise < 1
                paid = paid * levels.noise * luck
            reward[terminated] = paid[terminated]
        if done.any():
            ended = np.flatnonzero(done)
            if truncated.any():
                info["final_obs"] = self._observe()
            self._at[ended] = self._start[ended]
            self._direction[ended] = levels.direction[ended]
            self._time[ended] = 0
            self._seen.reshape(self.num_envs, -1)[ended] = 0
            self._seen[self._at[ended]] = 0.25
        return self._observe(), reward, terminated, truncated, info

    def _observe(self) -> Observation:
        cells = self._at[:, None] + self._offsets[self._direction]
        n = VIEW * VIEW
        obs = np.empty((self.num_envs, self._channels), np.float32)
        obs[:, :n] = self._walls[cells]
        obs[:, n : 2 * n] = cells == self._goal[:, None]
        if self.visits:
            np.minimum(self._seen[cells], 1, out=obs[:, 2 * n : 3 * n])
        obs[:, -4:] = self._compass[self._direction]
        return obs


def _view_offsets(width: int) -> NDArray[np.int64]:
    """Flat steps from the agent to the cells of its view, shape (4, 25)."""
    offsets = np.empty((4, VIEW * VIEW), dtype=np.int64)
    for direction, (down, right) in enumerate(STEPS):
        # Right of the heading (down, right) is (right, -down) in rows and columns.
        for k in range(VIEW):
            for j in range(VIEW):
                far, side = VIEW - 1 - k, j - VIEW // 2
                row, column = far * down + side * right, far * right - side * down
                offsets[direction, k * VIEW + j] = row * width + column
    return offsets


def to_minigrid(
    levels: MazeLevels, index: int = 0, max_steps: int = 250, **more: Any
) -> MiniGridEnv:
    """One maze as MiniGrid's own environment, to render it or to run other agents on it.

    Parameters
    ----------
    levels
        The mazes.
    index
        Which of them.
    max_steps
        Length of an episode.
    more
        Arguments of `MiniGridEnv`, such as `render_mode="rgb_array"`.

    Returns
    -------
    env
        With a view of 5 x 5 cells, through walls.

    Examples
    --------
    >>> env = to_minigrid(MazeLevels.from_text([">.G"]))
    >>> observation, _ = env.reset()
    >>> observation["image"].shape
    (5, 5, 3)
    """
    from minigrid.core.grid import Grid
    from minigrid.core.mission import MissionSpace
    from minigrid.core.world_object import Goal, Wall
    from minigrid.minigrid_env import MiniGridEnv

    if not 0 <= index < len(levels):
        raise ValueError(f"index is {index!r}; allowed: 0 to {len(levels) - 1}")
    height, width = levels.size
    walls = levels.walls[index]
    start, goal = divmod(int(levels.agent[index]), width), divmod(int(levels.goal[index]), width)

    class Maze(MiniGridEnv):
        def _gen_grid(self, grid_width: int, grid_height: int) -> None:
            self.grid = Grid(grid_width, grid_height)
            self.grid.wall_rect(0, 0, grid_width, grid_height)
            for row, column in np.argwhere(walls):
                self.grid.set(int(column) + 1, int(row) + 1, Wall())
            self.grid.set(goal[1] + 1, goal[0] + 1, Goal())
            self.agent_pos = (start[1] + 1, start[0] + 1)
            self.agent_dir = int(levels.direction[index])
            self.mission = "get to the goal"

    given: dict[str, Any] = {"agent_view_size": VIEW, "see_through_walls": True, **more}
    return Maze(
        mission_space=MissionSpace(mission_func=lambda: "get to the goal"),
        width=width + 2,
        height=height + 2,
        max_steps=max_steps,
        **given,
    )
