"""Distributions of mazes to learn from, with levels of different use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .mazes import STEPS, MazeLevels, random_levels, solvable

Generator = Callable[[np.random.Generator, int], Any]

TRIVIAL, UNSOLVABLE, REAL = 0, 1, 2


def standard(rng: np.random.Generator, n: int) -> MazeLevels:
    """13 x 13 mazes with 60 draws of a wall, a part of them without solution.

    Parameters
    ----------
    rng
        The generator.
    n
        The number of levels.

    Returns
    -------
    levels

    Examples
    --------
    >>> len(standard(np.random.default_rng(0), 5))
    5
    """
    return random_levels(n, 60, seed=rng)


def frontier(rng: np.random.Generator, n: int) -> MazeLevels:
    """45% trivial levels, 45% without solution, 10% real ones.

    Trivial: no walls, the goal one or two cells straight ahead. Without solution: 60 draws of a
    wall and the goal walled in. Real: 60 draws and a way of at least 8 cells.

    Parameters
    ----------
    rng
        The generator.
    n
        The number of levels.

    Returns
    -------
    levels

    Examples
    --------
    >>> levels = frontier(np.random.default_rng(0), 500)
    >>> bool(0.35 < (solvable(levels) < 0).mean() < 0.55)
    True
    """
    kinds = rng.choice(3, n, p=(0.45, 0.45, 0.1))
    return _of_kinds(rng, kinds)


def noisy(rng: np.random.Generator, n: int, factor: float = 2.0) -> MazeLevels:
    """`frontier`, with reward noise on the trivial levels that no action can change.

    Parameters
    ----------
    rng
        The generator.
    n
        The number of levels.
    factor
        The reward is multiplied by it with probability one over it, by 0 otherwise.

    Returns
    -------
    levels

    Examples
    --------
    >>> levels = noisy(np.random.default_rng(0), 500)
    >>> bool((solvable(levels)[levels.noise > 1] <= 2).all())
    True
    """
    if not factor >= 1:
        raise ValueError(f"factor is {factor!r}; allowed: at least 1")
    kinds = rng.choice(3, n, p=(0.45, 0.45, 0.1))
    levels = _of_kinds(rng, kinds)
    levels.noise[kinds == TRIVIAL] = factor
    return levels


def real_levels(
    n: int, walls: int = 60, shortest: int = 8, *, seed: int | np.random.Generator = 0
) -> MazeLevels:
    """13 x 13 mazes with a way of at least so many cells.

    Parameters
    ----------
    n
        The number of levels.
    walls
        Draws of a wall.
    shortest
        The least length of the shortest way.
    seed
        An integer or a numpy generator.

    Returns
    -------
    levels

    Examples
    --------
    >>> bool((solvable(real_levels(20, seed=0)) >= 8).all())
    True
    """
    rng = np.random.default_rng(seed)
    found: list[MazeLevels] = []
    have = 0
    while have < n:
        drawn = random_levels(2 * (n - have) + 8, walls, seed=rng)
        good = drawn.take(np.flatnonzero(solvable(drawn) >= shortest))
        if len(good):
            found.append(good)
            have += len(good)
    return MazeLevels.concatenate(found).take(np.arange(n))


def trivial_levels(n: int, *, seed: int | np.random.Generator = 0) -> MazeLevels:
    """13 x 13 cells without walls, the goal one or two cells straight ahead.

    Parameters
    ----------
    n
        The number of levels.
    seed
        An integer or a numpy generator.

    Returns
    -------
    levels

    Examples
    --------
    >>> set(solvable(trivial_levels(50, seed=0)).tolist()) == {1, 2}
    True
    """
    rng = np.random.default_rng(seed)
    direction = rng.integers(0, 4, n)
    ahead = rng.integers(1, 3, n)
    step = np.array(STEPS)[direction] * ahead[:, None]
    low, high = np.maximum(0, -step), 13 - np.maximum(0, step)
    start = rng.integers(low, high)
    goal = start + step
    return MazeLevels(
        np.zeros((n, 13, 13), dtype=bool),
        start[:, 0] * 13 + start[:, 1],
        direction,
        goal[:, 0] * 13 + goal[:, 1],
    )


def walled_in_levels(n: int, *, seed: int | np.random.Generator = 0) -> MazeLevels:
    """13 x 13 mazes with 60 draws of a wall and walls all around the goal.

    Parameters
    ----------
    n
        The number of levels.
    seed
        An integer or a numpy generator.

    Returns
    -------
    levels

    Examples
    --------
    >>> set(solvable(walled_in_levels(20, seed=0)).tolist())
    {-1}
    """
    rng = np.random.default_rng(seed)
    drawn = random_levels(n, 60, seed=rng)
    agent = np.array(np.divmod(drawn.agent, 13))
    row, column = np.divmod(drawn.goal, 13)
    rows = np.arange(n)
    # A goal beside the start cannot be walled in: the start moves to the far corner.
    beside = np.abs(agent - np.array([row, column])).sum(axis=0) == 1
    far = np.where(row > 6, 0, 12) * 13 + np.where(column > 6, 0, 12)
    start = np.where(beside, far, drawn.agent)
    walls = drawn.walls.copy()
    for down, right in STEPS:
        r, c = row + down, column + right
        inside = (r >= 0) & (r < 13) & (c >= 0) & (c < 13)
        walls[rows[inside], r[inside], c[inside]] = True
    walls.reshape(n, -1)[rows, start] = False
    return MazeLevels(walls, start, drawn.direction, drawn.goal)


def _of_kinds(rng: np.random.Generator, kinds: np.ndarray[Any, Any]) -> MazeLevels:
    makers = (trivial_levels, walled_in_levels, real_levels)
    parts, places = [], []
    for kind, make in enumerate(makers):
        where = np.flatnonzero(kinds == kind)
        if len(where):
            parts.append(make(len(where), seed=rng))
            places.append(where)
    return MazeLevels.concatenate(parts).take(np.argsort(np.concatenate(places)))
