"""Mazes by a short name, as the command line takes them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from . import generators
from .generators import Generator
from .mazes import MazeLevels, random_levels, read_levels
from .prefabs import PREFABS, four_rooms, perfect_mazes

DISTRIBUTIONS: dict[str, Generator] = {
    "standard": generators.standard,
    "frontier": generators.frontier,
    "noisy": generators.noisy,
}
_SEEDS = re.compile(r"seeds:(\d+)-(\d+)")


def level_generator(source: str) -> Generator:
    """A generator of levels from a distribution's name, a file, a folder or a range of seeds.

    Parameters
    ----------
    source
        `standard`, `frontier`, `noisy`; a `.txt` or `.npz` file or a folder, whose mazes are drawn
        uniformly; or `seeds:0-999`, the mazes of these seeds.

    Returns
    -------
    generator

    Raises
    ------
    ValueError
        If it is none of them.

    Examples
    --------
    >>> len(level_generator("seeds:0-9")(np.random.default_rng(0), 5))
    5
    """
    if source in DISTRIBUTIONS:
        return DISTRIBUTIONS[source]
    levels = named_levels(source)

    def draw(rng: np.random.Generator, n: int) -> MazeLevels:
        return levels.take(rng.integers(0, len(levels), n))

    return draw


def named_levels(source: str, n: int = 300, seed: int = 0) -> MazeLevels:
    """A fixed set of levels.

    Parameters
    ----------
    source
        `prefabs`, `real`, `standard`, `frontier`, `noisy`, `four-rooms`, `perfect`,
        `perfect-19`, `perfect-51`, a file, a folder, or `seeds:0-999`.
    n, seed
        For the sets that are drawn at random.

    Returns
    -------
    levels

    Examples
    --------
    >>> len(named_levels("prefabs"))
    8
    """
    if source == "prefabs":
        return MazeLevels.concatenate(list(PREFABS.values()))
    if source == "real":
        return generators.real_levels(n, seed=seed)
    if source in DISTRIBUTIONS:
        drawn = DISTRIBUTIONS[source](np.random.default_rng(seed), n)
        assert isinstance(drawn, MazeLevels)
        return drawn
    if source == "four-rooms":
        return four_rooms(n, seed=seed)
    if found := re.fullmatch(r"perfect(?:-(\d+))?", source):
        return perfect_mazes(n, int(found[1] or 13), seed=seed)
    if found := _SEEDS.fullmatch(source):
        low, high = int(found[1]), int(found[2])
        if not 0 <= high - low < 1_000_000:
            raise ValueError(f"levels is {source!r}; allowed: 1 to 1,000,000 seeds")
        return MazeLevels.concatenate([random_levels(1, 60, seed=s) for s in range(low, high + 1)])
    if Path(source).exists():
        return read_levels(source)
    raise ValueError(
        f"levels is {source!r}; allowed: a .txt or .npz file, a folder of .txt files, seeds:A-B, "
        "standard, frontier, noisy and, for evaluation, prefabs, real, four-rooms, perfect"
    )
