"""Grid mazes as arrays: drawing, changing, solving, reading and writing them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

HEADINGS = ">v<^"
# Row and column steps of the directions right, down, left, up.
STEPS = ((0, 1), (1, 0), (0, -1), (-1, 0))


@dataclasses.dataclass(frozen=True, eq=False)
class MazeLevels:
    """A batch of mazes of one size.

    Parameters
    ----------
    walls
        Shape (N, height, width), bool. The border of MiniGrid is not part of it.
    agent
        The start, a flat index `row * width + column`; shape (N,).
    direction
        Of the start: 0 right, 1 down, 2 left, 3 up; shape (N,).
    goal
        A flat index, shape (N,).
    noise
        The reward for the goal is multiplied by this number with probability one over it, and by 0
        otherwise, whatever the agent does; at least 1; shape (N,), or (1,) for all. 1, without
        noise, is the default.

    Raises
    ------
    ValueError
        If shapes differ, a place is outside or on a wall, or agent and goal coincide.

    Examples
    --------
    >>> levels = MazeLevels.from_text(["..#/>.G"])
    >>> len(levels), levels.walls.shape, levels.goal.tolist()
    (1, (1, 2, 3), [5])
    >>> print(levels.to_text()[0])
    ..#
    >.G
    """

    walls: Bools
    agent: Ints
    direction: Ints
    goal: Ints
    noise: NDArray[np.float64] = dataclasses.field(default_factory=lambda: np.ones(1))

    def __post_init__(self) -> None:
        walls = np.asarray(self.walls)
        if walls.ndim != 3:
            raise ValueError(f"walls has shape {walls.shape}; allowed: (N, height, width)")
        if walls.dtype != np.bool_ and not np.isin(walls, (0, 1)).all():
            raise ValueError("walls has other values than 0 and 1")
        n, height, width = walls.shape
        object.__setattr__(self, "walls", walls.astype(bool))
        limits = {"agent": height * width, "direction": 4, "goal": height * width}
        for name, limit in limits.items():
            given = np.asarray(getattr(self, name))
            if given.shape != (n,):
                raise ValueError(f"{name} has shape {given.shape}; allowed: ({n},)")
            if n and (not np.issubdtype(given.dtype, np.integer)):
                raise ValueError(f"{name} is of type {given.dtype}; allowed: integers")
            if n and not 0 <= given.min() <= given.max() < limit:
                raise ValueError(f"{name} goes up to {given.max()}; allowed: 0 to {limit - 1}")
            object.__setattr__(self, name, given.astype(np.int64))
        noise = np.asarray(self.noise, dtype=np.float64)
        if noise.shape == (1,):
            noise = np.repeat(noise, n)
        if noise.shape != (n,) or not (np.isfinite(noise) & (noise >= 1)).all():
            raise ValueError(f"noise is {noise!r}; allowed: ({n},) finite numbers of at least 1")
        object.__setattr__(self, "noise", noise)
        flat, rows = self.walls.reshape(n, height * width), np.arange(n)
        for name in ("agent", "goal"):
            blocked = flat[rows, getattr(self, name)]
            if blocked.any():
                raise ValueError(f"{name} of level {int(np.argmax(blocked))} is on a wall")
        if (self.agent == self.goal).any():
            raise ValueError(f"level {int(np.argmax(self.agent == self.goal))} starts on its goal")

    def __len__(self) -> int:
        return len(self.walls)

    @property
    def size(self) -> tuple[int, int]:
        """`(height, width)`."""
        return self.walls.shape[1], self.walls.shape[2]

    def take(self, index: ArrayLike) -> MazeLevels:
        """The levels at `index`."""
        i = np.atleast_1d(np.asarray(index))
        i = i if i.size else i.astype(np.int64)
        return dataclasses.replace(
            self, **{f.name: getattr(self, f.name)[i] for f in dataclasses.fields(self)}
        )

    @classmethod
    def concatenate(cls, parts: Sequence[MazeLevels]) -> MazeLevels:
        """Several batches of one size as one."""
        names = [f.name for f in dataclasses.fields(cls)]
        arrays: Any = {n: np.concatenate([getattr(p, n) for p in parts]) for n in names}
        return cls(**arrays)

    @classmethod
    def from_text(cls, grids: Sequence[str]) -> MazeLevels:
        """Read grids of `.` free, `#` wall, `G` goal and `>`, `v`, `<` or `^` start.

        Rows are separated by newlines or `/`.
        """
        parsed = [[row.strip() for row in g.replace("/", "\n").split("\n")] for g in grids]
        parsed = [[row for row in rows if row] for rows in parsed]
        sizes = {(len(rows), len(row)) for rows in parsed for row in rows}
        if len(sizes) != 1:
            raise ValueError(f"the grids have rows and sizes {sorted(sizes)}; allowed: one size")
        cells = np.array([[list(row) for row in rows] for rows in parsed])
        strange = set(np.unique(cells).tolist()) - set(".#G" + HEADINGS)
        if strange:
            raise ValueError(
                f"the grids have the characters {sorted(strange)}; allowed: . # G > v < ^"
            )
        flat = cells.reshape(len(cells), -1)
        headings = np.isin(flat, list(HEADINGS))
        for name, found in (("start", headings), ("goal", flat == "G")):
            wrong = found.sum(axis=1) != 1
            if wrong.any():
                i = int(np.argmax(wrong))
                raise ValueError(f"grid {i} has {int(found[i].sum())} {name}s; allowed: 1")
        agent = headings.argmax(axis=1)
        start = flat[np.arange(len(flat)), agent]
        direction = np.array([HEADINGS.index(str(s)) for s in start], dtype=np.int64)
        return cls(cells == "#", agent, direction, (flat == "G").argmax(axis=1))

    def to_text(self) -> list[str]:
        """The grids that `from_text` reads, rows separated by newlines."""
        height, width = self.size
        grids = np.where(self.walls.reshape(len(self), math.prod(self.size)), "#", ".")
        rows = np.arange(len(self))
        grids[rows, self.agent] = np.array(list(HEADINGS))[self.direction]
        grids[rows, self.goal] = "G"
        return ["\n".join("".join(row) for row in g.reshape(height, width)) for g in grids]


def random_levels(
    n: int,
    walls: int = 60,
    size: tuple[int, int] = (13, 13),
    *,
    seed: int | np.random.Generator = 0,
) -> MazeLevels:
    """Mazes with walls at random cells, drawn with replacement, and a random start and goal.

    Parameters
    ----------
    n
        The number of levels.
    walls
        Draws of a wall cell.
    size
        Height and width.
    seed
        An integer or a numpy generator.

    Returns
    -------
    levels
        Not all can be solved; see `solvable`.

    Examples
    --------
    >>> levels = random_levels(100, 60, seed=0)
    >>> levels.size
    (13, 13)
    """
    height, width = size
    cells = height * width
    if n < 1 or height < 1 or width < 1 or cells < 2:
        raise ValueError(f"n is {n!r} and size {size!r}; allowed: at least 1, and two cells")
    if not walls >= 0:
        raise ValueError(f"walls is {walls!r}; allowed: at least 0")
    rng = np.random.default_rng(seed)
    blocked = np.zeros((n, cells), dtype=bool)
    if walls:
        np.put_along_axis(blocked, rng.integers(0, cells, (n, walls)), True, axis=1)
    # Start and goal need two free cells: a level without them loses walls at random.
    for i in np.flatnonzero(blocked.sum(axis=1) > cells - 2):
        blocked[i, rng.choice(cells, 2, replace=False)] = False
    order = np.where(blocked, -1.0, rng.random((n, cells)))
    agent = order.argmax(axis=1)
    order[np.arange(n), agent] = -1
    return MazeLevels(
        blocked.reshape(n, height, width), agent, rng.integers(0, 4, n), order.argmax(axis=1)
    )


def mutate_levels(
    levels: MazeLevels, edits: int = 5, *, seed: int | np.random.Generator = 0
) -> MazeLevels:
    """Copies with some cells changed, as ACCEL does: a wall more or less, or the goal elsewhere.

    Parameters
    ----------
    levels
        The parents.
    edits
        Changes to each level. One of five moves the goal to a free cell, the others turn a cell
        that is neither start nor goal from free to wall or back.
    seed
        An integer or a numpy generator.

    Returns
    -------
    children
        As many as parents.

    Examples
    --------
    >>> parents = random_levels(3, 0, seed=0)
    >>> children = mutate_levels(parents, 5, seed=1)
    >>> bool((children.walls.sum((1, 2)) <= 5).all())
    True
    """
    if edits < 0:
        raise ValueError(f"edits is {edits!r}; allowed: at least 0")
    rng = np.random.default_rng(seed)
    n, cells = len(levels), math.prod(levels.size)
    walls = levels.walls.reshape(n, cells).copy()
    goal, rows = levels.goal.copy(), np.arange(n)
    for _ in range(edits):
        cell = rng.integers(0, cells, n)
        moves = rng.random(n) < 0.2
        apart = cell != levels.agent
        free = ~walls[rows, cell]
        goal = np.where(moves & apart & free, cell, goal)
        turned = ~moves & apart & (cell != goal)
        walls[rows[turned], cell[turned]] ^= True
    return dataclasses.replace(levels, walls=walls.reshape(levels.walls.shape), goal=goal)


def solvable(levels: MazeLevels) -> Ints:
    """Moves from start to goal along a shortest way, -1 where there is none.

    Parameters
    ----------
    levels
        The mazes.

    Returns
    -------
    distance
        In cells, shape (N,).

    Examples
    --------
    >>> solvable(MazeLevels.from_text([">.G", ">#G"])).tolist()
    [2, -1]
    """
    n = len(levels)
    height, width = levels.size
    distance = np.full(n, -1, dtype=np.int64)
    free = np.zeros((n, height + 2, width + 2), dtype=bool)
    free[:, 1:-1, 1:-1] = ~levels.walls
    row, column = np.divmod(levels.agent, width)
    goal_row, goal_column = np.divmod(levels.goal, width)
    left = np.arange(n)
    reached = np.zeros_like(free)
    reached[left, row + 1, column + 1] = True
    for step in range(1, height * width + 1):
        grown = reached.copy()
        grown[:, 1:] |= reached[:, :-1]
        grown[:, :-1] |= reached[:, 1:]
        grown[:, :, 1:] |= reached[:, :, :-1]
        grown[:, :, :-1] |= reached[:, :, 1:]
        grown &= free
        found = grown[np.arange(len(left)), goal_row[left] + 1, goal_column[left] + 1]
        distance[left[found]] = step
        going = ~found & (grown != reached).any(axis=(1, 2))
        if not going.any():
            break
        left, reached, free = left[going], grown[going], free[going]
    return distance


def shortest_actions(levels: MazeLevels) -> Ints:
    """Actions, turns included, from start to goal along a quickest way; -1 where there is none.

    Parameters
    ----------
    levels
        The mazes.

    Returns
    -------
    actions
        Shape (N,).

    Examples
    --------
    >>> shortest_actions(MazeLevels.from_text([">.G", "G.>"])).tolist()
    [2, 4]
    """
    n = len(levels)
    height, width = levels.size
    actions = np.full(n, -1, dtype=np.int64)
    free = np.zeros((n, 1, height + 2, width + 2), dtype=bool)
    free[:, 0, 1:-1, 1:-1] = ~levels.walls
    row, column = np.divmod(levels.agent, width)
    goal_row, goal_column = np.divmod(levels.goal, width)
    left = np.arange(n)
    reached = np.zeros((n, 4, height + 2, width + 2), dtype=bool)
    reached[left, levels.direction, row + 1, column + 1] = True
    for step in range(1, 4 * height * width + 1):
        grown = reached | np.roll(reached, 1, axis=1) | np.roll(reached, -1, axis=1)
        for direction, (down, right) in enumerate(STEPS):
            grown[:, direction] |= np.roll(reached[:, direction], (down, right), axis=(1, 2))
        grown &= free
        found = grown[np.arange(len(left)), :, goal_row[left] + 1, goal_column[left] + 1].any(1)
        actions[left[found]] = step
        going = ~found & (grown != reached).any(axis=(1, 2, 3))
        if not going.any():
            break
        left, reached, free = left[going], grown[going], free[going]
    return actions


def read_levels(source: str | Path) -> MazeLevels:
    """Read mazes from a text file, a folder of text files, or an `.npz` file.

    Parameters
    ----------
    source
        A text file holds grids separated by empty lines; an `.npz` file the arrays `walls`,
        `agent`, `goal` and, if wanted, `direction` and `noise`. Places are flat indices, or rows
        and columns of shape (N, 2).

    Raises
    ------
    ValueError
        If there is nothing to read or it is no maze.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.txt").write_text(">.G\\n\\n>#G\\n")
    ...     len(read_levels(folder))
    2
    """
    path = Path(source)
    if path.is_dir():
        files = sorted(path.glob("*.txt"))
        if not files:
            raise ValueError(f"{path} holds no .txt file")
        return MazeLevels.from_text([grid for file in files for grid in _grids(file)])
    if not path.is_file():
        raise ValueError(f"{path} is neither a file nor a folder")
    if path.suffix == ".txt":
        return MazeLevels.from_text(_grids(path))
    if path.suffix != ".npz":
        raise ValueError(f"{path} is no .txt or .npz file")
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except Exception:
        raise ValueError(f"{path} is no archive of arrays") from None
    missing = {"walls", "agent", "goal"} - set(arrays)
    if missing:
        raise ValueError(f"{path} lacks the arrays {sorted(missing)}")
    width = arrays["walls"].shape[-1]
    for name in ("agent", "goal"):
        if arrays[name].ndim == 2:
            arrays[name] = arrays[name][:, 0] * width + arrays[name][:, 1]
    arrays.setdefault("direction", np.zeros(len(arrays["walls"]), dtype=np.int64))
    return MazeLevels(
        arrays["walls"],
        arrays["agent"],
        arrays["direction"],
        arrays["goal"],
        arrays.get("noise", np.ones(1)),
    )


def _grids(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is no text") from None
    grids = [grid for grid in text.replace("\r\n", "\n").split("\n\n") if grid.strip()]
    if not grids:
        raise ValueError(f"{path} is empty")
    return grids
