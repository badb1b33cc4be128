"""Hand-made mazes of the benchmark, for evaluation only, and families drawn at random."""

from __future__ import annotations

import dataclasses

import numpy as np

from .mazes import MazeLevels, random_levels

_SIXTEEN_ROOMS = (
    "...#..#..#.../.>.......#.../...#..#....../#.###.##.###./...#........./......#..#.../"
    "##.#.##.###.#/...#.....#.../...#..#....../.####.##.#.##/...#..#..#.../......#....G./"
    "...#.....#..."
)
_LABYRINTH = (
    "............./.###########./.#.........#./.#.#######.#./.#.#.....#.#./.#.#.###.#.#./"
    ".#.#.#G#.#.#./.#.#.#.#.#.#./.#...#...#.#./.#########.#./.....#.....#./####.#.#####./"
    ">....#......."
)
_STANDARD_MAZE = (
    ".....#>...#../.###.####.##./.#.........../.########.###/........#..../######.#####./"
    "....#..#...../.##...##.####/..#.#..#...#./#.#.##.###.#./#.#..#...#.../#.##.###.###./"
    "...#..G#.#..."
)
_SIXTEEN_ROOMS_2 = (
    "...#.....#.../.>....#..#.../...#..#..#.../####.##.###.#/...#..#....../......#..#.../"
    "#.#####.#####/...#..#..#.../...#........./##.##.##.####/...#..#..#.../......#....G./"
    "...#..#..#..."
)
_LABYRINTH_2 = (
    ">#.........../.#.#########./.#.#.......#./.#.#.#####.#./.#.#.#...#.#./...#.#.#.#.#./"
    "####.#G#.#.#./...#.###.#.#./.#.#.....#.#./.#.#######.#./.#.........#./.###########./"
    "............."
)
_STANDARD_MAZE_2 = (
    "...#.#....#../.#.#.####...#/.#........#../.########.###/...#..#.#.#.G/##.#.##.#.#../"
    ">#.#....#.##./.#.##.###..#./.#..#..###.#./.##.##.#.#.#./.#...#.#.#.#./.#.#.#.#.#.#./"
    "...#...#....."
)
_STANDARD_MAZE_3 = (
    "...>#.#....../.####.#.####./.#....#.#..../...####.#.#.#/##.#....#.#../...#.##.#.##./"
    ".#.#.#..#..#G/.#.#.#.###.##/.#...#.#.#.../.###.#.#.###./.#...#.#...#./.#.###.#.#.#./"
    ".#...#...#..."
)


def _mirrored(grid: str) -> str:
    turned = str.maketrans("<>", "><")
    return "/".join(row[::-1].translate(turned) for row in grid.split("/"))


PREFABS: dict[str, MazeLevels] = {
    name: MazeLevels.from_text([grid])
    for name, grid in {
        "SixteenRooms": _SIXTEEN_ROOMS,
        "SixteenRooms2": _SIXTEEN_ROOMS_2,
        "Labyrinth": _LABYRINTH,
        "LabyrinthFlipped": _mirrored(_LABYRINTH),
        "Labyrinth2": _LABYRINTH_2,
        "StandardMaze": _STANDARD_MAZE,
        "StandardMaze2": _STANDARD_MAZE_2,
        "StandardMaze3": _STANDARD_MAZE_3,
    }.items()
}
"""The eight mazes of 13 x 13 cells, one level each: facts of the published benchmark."""


def perfect_mazes(n: int, size: int = 13, *, seed: int | np.random.Generator = 0) -> MazeLevels:
    """Mazes with exactly one way between any two free cells, by depth-first carving.

    Parameters
    ----------
    n
        The number of levels.
    size
        Height and width, odd.
    seed
        An integer or a numpy generator.

    Returns
    -------
    levels
        With start and goal at random rooms.

    Examples
    --------
    >>> from rl_curriculum.pace import solvable
    >>> bool((solvable(perfect_mazes(4, 19, seed=0)) > 0).all())
    True
    """
    if size < 3 or size % 2 == 0:
        raise ValueError(f"size is {size!r}; allowed: odd, at least 3")
    rng = np.random.default_rng(seed)
    rooms = (size + 1) // 2
    walls = np.ones((n, size, size), dtype=bool)
    ends = np.empty((n, 2), dtype=np.int64)
    for k in range(n):
        walls[k, ::2, ::2] = False
        seen = np.zeros((rooms, rooms), dtype=bool)
        path = [(int(rng.integers(rooms)), int(rng.integers(rooms)))]
        seen[path[0]] = True
        while path:
            r, c = path[-1]
            near = [(r + 1, c), (r - 1, c), (r, c + 1), (r, c - 1)]
            near = [p for p in near if 0 <= min(p) <= max(p) < rooms and not seen[p]]
            if not near:
                path.pop()
                continue
            chosen = near[int(rng.integers(len(near)))]
            walls[k, r + chosen[0], c + chosen[1]] = False
            seen[chosen] = True
            path.append(chosen)
        start, goal = rng.choice(rooms * rooms, 2, replace=False)
        for j, room in enumerate((start, goal)):
            row, column = divmod(int(room), rooms)
            ends[k, j] = 2 * row * size + 2 * column
    return MazeLevels(walls, ends[:, 0], rng.integers(0, 4, n), ends[:, 1])


def four_rooms(n: int, size: int = 13, *, seed: int | np.random.Generator = 0) -> MazeLevels:
    """Four rooms with one door in each wall between them.

    Parameters
    ----------
    n
        The number of levels.
    size
        Height and width, odd, at least 5.
    seed
        An integer or a numpy generator.

    Returns
    -------
    levels
        With start and goal at random free cells.

    Examples
    --------
    >>> from rl_curriculum.pace import solvable
    >>> bool((solvable(four_rooms(4, seed=0)) > 0).all())
    True
    """
    if size < 5 or size % 2 == 0:
        raise ValueError(f"size is {size!r}; allowed: odd, at least 5")
    rng = np.random.default_rng(seed)
    middle = size // 2
    open_levels = random_levels(n, 0, (size, size), seed=rng)
    walls = np.zeros((n, size, size), dtype=bool)
    walls[:, middle], walls[:, :, middle] = True, True
    for k, doors in enumerate(rng.integers(0, middle, (n, 4))):
        walls[k, middle, [doors[0], middle + 1 + doors[1]]] = False
        walls[k, [doors[2], middle + 1 + doors[3]], middle] = False
    free = np.where(walls.reshape(n, -1), -1.0, rng.random((n, size * size)))
    ends = np.argsort(-free, axis=1, kind="stable")[:, :2]
    return dataclasses.replace(open_levels, walls=walls, agent=ends[:, 0], goal=ends[:, 1])
