"""Mazes and their engine, against MiniGrid and a plain search."""

from __future__ import annotations

import numpy as np
import pytest

from rl_curriculum.pace import _reference
from rl_curriculum.pace.generators import (
    frontier,
    noisy,
    real_levels,
    trivial_levels,
    walled_in_levels,
)
from rl_curriculum.pace.maze_env import MazeVecEnv, to_minigrid
from rl_curriculum.pace.mazes import (
    MazeLevels,
    mutate_levels,
    random_levels,
    read_levels,
    shortest_actions,
    solvable,
)
from rl_curriculum.pace.prefabs import PREFABS, four_rooms, perfect_mazes


def test_the_engine_is_minigrid() -> None:
    # 40 levels x 250 random actions: views, ends and rewards of MiniGrid 3.
    n, steps, cap = 40, 250, 90
    levels = random_levels(n, 40, seed=0)
    env = MazeVecEnv(n, cap, levels=levels)
    obs, _ = env.reset()
    theirs = [to_minigrid(levels, i, cap) for i in range(n)]
    seen = [their.reset()[0] for their in theirs]
    rng = np.random.default_rng(1)
    ends = 0

    def views(images: list[dict]) -> np.ndarray:
        # Their image is (column, row, channel): object 2 is a wall, 8 the goal.
        cells = np.stack([image["image"][..., 0].T.ravel() for image in images])
        return np.concatenate([cells == 2, cells == 8], axis=1)

    for _ in range(steps):
        np.testing.assert_array_equal(obs[:, :50], views(seen))
        np.testing.assert_array_equal(obs[:, -4:].argmax(1), [s["direction"] for s in seen])
        # Forward more often than not, so that goals are reached.
        actions = rng.choice(3, n, p=(0.2, 0.2, 0.6))
        obs, reward, terminated, truncated, _ = env.step(actions)
        for i, their in enumerate(theirs):
            seen[i], r, end, cut, _ = their.step(int(actions[i]))
            assert (end, cut) == (terminated[i], truncated[i])
            assert abs(r - reward[i]) < 1e-6
            if end or cut:
                ends += end
                seen[i], _ = their.reset()
    assert ends >= 10


def test_visits_count_within_an_episode() -> None:
    env = MazeVecEnv(1, 100, (1, 4), levels=MazeLevels.from_text([">..G"]))
    obs, _ = env.reset()
    # The agent's own cell is the middle of the near row.
    assert obs[0, 50 + 22] == 0.25
    for action in (2, 1, 1, 2, 1, 1):
        obs, *_ = env.step(np.array([action]))
    # Back at the start: twice there, once ahead; turning is no visit.
    assert obs[0, 50 + 22] == 0.5
    assert obs[0, 50 + 17] == 0.25
    for _ in range(3):
        obs, reward, *_ = env.step(np.array([2]))
    assert reward[0] == pytest.approx(1 - 0.9 * 9 / 100)
    assert obs[0, 50 + 22] == 0.25
    assert obs[0, 50:75].sum() == 0.25
    assert MazeVecEnv(1, visits=False).single_observation_space.shape == (54,)


def test_an_episode_ends_with_the_same_level_again() -> None:
    levels = random_levels(64, 30, seed=3)
    env = MazeVecEnv(64, 7, levels=levels)
    first, _ = env.reset()
    for _ in range(7):
        obs, _, _, truncated, info = env.step(np.full(64, 0))
    assert truncated.all()
    np.testing.assert_array_equal(obs, first)
    # The last observation of the episode: seven turns left are one turn right.
    np.testing.assert_array_equal(
        info["final_obs"][:, -4:].argmax(1), (first[:, -4:].argmax(1) + 1) % 4
    )


def test_noise_multiplies_the_reward_and_nothing_else() -> None:
    levels = MazeLevels.from_text([">G"] * 4000)
    for factor in (2.0, 3.0):
        levels.noise[:] = factor
        env = MazeVecEnv(4000, 10, (1, 2), levels=levels)
        env.reset(seed=1)
        _, reward, terminated, _, _ = env.step(np.full(4000, 2))
        assert terminated.all()
        paid = 0.91 * factor
        assert np.isin(reward.astype(float).round(5), [0, round(paid, 5)]).all()
        chance = 1 / factor
        assert abs((reward > 0).mean() - chance) < 4 * np.sqrt(chance * (1 - chance) / 4000)


def test_it_is_a_vector_environment_of_gymnasium() -> None:
    env = MazeVecEnv(3, 10)
    with pytest.raises(ValueError, match="no levels were assigned"):
        env.reset()
    with pytest.raises(ValueError, match="no level is assigned"):
        env.step(np.zeros(3, int))
    obs, _ = env.reset(options={"levels": random_levels(3, seed=0)})
    assert env.observation_space.contains(obs)
    with pytest.raises(ValueError, match="actions has shape"):
        env.step(np.zeros(2, int))
    with pytest.raises(ValueError, match="levels are 2 of size"):
        env.assign(random_levels(2, seed=0))
    with pytest.raises(TypeError, match="MazeLevels"):
        env.assign([1, 2, 3])


def test_distances_are_those_of_a_plain_search() -> None:
    levels = random_levels(2000, 70, seed=0)
    distance = solvable(levels)
    wanted = [
        _reference.breadth_first(levels.walls[i], int(levels.agent[i]), int(levels.goal[i]))
        for i in range(2000)
    ]
    np.testing.assert_array_equal(distance, wanted)
    assert {-1} < set(distance.tolist())


def test_the_share_of_solvable_mazes() -> None:
    # Published for 60 draws: 84.9%, a mean path of 10.7.
    distance = solvable(random_levels(20_000, 60, seed=0))
    assert abs((distance >= 0).mean() - 0.849) < 0.008
    assert abs(distance[distance >= 0].mean() - 10.7) < 0.15
    few = solvable(random_levels(20_000, 25, seed=1))
    assert abs((few >= 0).mean() - 0.995) < 0.003


@pytest.mark.parametrize(
    ("name", "cells", "actions"),
    [
        ("SixteenRooms", 20, 26),
        ("Labyrinth", 96, 113),
        ("LabyrinthFlipped", 96, 113),
        ("StandardMaze", 40, 54),
        ("SixteenRooms2", 22, 28),
        ("Labyrinth2", 96, 113),
        ("StandardMaze2", 56, 73),
        ("StandardMaze3", 39, 54),
    ],
)
def test_the_prefabs_have_their_published_distances(name, cells, actions) -> None:
    assert solvable(PREFABS[name]).tolist() == [cells]
    assert shortest_actions(PREFABS[name]).tolist() == [actions]


def test_a_quickest_way_can_be_driven() -> None:
    # A quickest way by search over the engine itself.
    levels = random_levels(12, 6, (4, 4), seed=5)
    quickest = shortest_actions(levels)
    for i in range(12):
        reached = {(int(levels.agent[i]), int(levels.direction[i]))}
        found = -1
        for step in range(1, 40):
            nxt = set()
            for cell, direction in reached:
                for action in range(3):
                    one = MazeLevels(
                        levels.walls[i : i + 1],
                        np.array([cell]),
                        np.array([direction]),
                        levels.goal[i : i + 1],
                    )
                    env = MazeVecEnv(1, 9, (4, 4), levels=one)
                    _, _, terminated, _, _ = env.step(np.array([action]))
                    if terminated[0]:
                        found = step
                        break
                    at = int(env._at[0])
                    row, column = divmod(at, 12)
                    nxt.add(((row - 4) * 4 + column - 4, int(env._direction[0])))
            if found > 0 or nxt <= reached:
                break
            reached |= nxt
        assert quickest[i] == found


def test_families_of_mazes() -> None:
    assert (solvable(four_rooms(50, seed=0)) > 0).all()
    perfect = perfect_mazes(10, 13, seed=0)
    assert (solvable(perfect) > 0).all()
    # A tree on 49 rooms: 49 + 48 free cells.
    assert ((~perfect.walls).sum((1, 2)) == 97).all()
    assert set(solvable(trivial_levels(200, seed=0)).tolist()) == {1, 2}
    assert (solvable(walled_in_levels(500, seed=0)) == -1).all()
    assert (solvable(real_levels(100, seed=0)) >= 8).all()
    assert (shortest_actions(trivial_levels(200, seed=0)) <= 2).all()


def test_the_mixture_has_its_shares() -> None:
    n = 4000
    levels = noisy(np.random.default_rng(0), n)
    distance = solvable(levels)
    for share, part in ((0.45, distance == -1), (0.1, distance >= 8), (0.45, levels.noise == 2)):
        assert abs(part.mean() - share) < 4 * np.sqrt(share * (1 - share) / n)
    np.testing.assert_array_equal(levels.noise > 1, (distance >= 1) & (distance <= 2))
    assert (frontier(np.random.default_rng(0), 50).noise == 1).all()


def test_mutations_keep_a_level_whole() -> None:
    parents = random_levels(300, 60, seed=0)
    children = mutate_levels(parents, 8, seed=1)
    changed = (children.walls ^ parents.walls).sum((1, 2))
    assert changed.max() <= 8
    assert changed.mean() > 4
    moved = (children.goal != parents.goal).mean()
    assert 0.3 < moved < 0.9
    same = mutate_levels(parents, 0)
    np.testing.assert_array_equal(same.walls, parents.walls)


def test_crowded_levels_still_have_two_free_cells() -> None:
    levels = random_levels(200, 1000, (3, 3), seed=0)
    assert ((~levels.walls).sum((1, 2)) >= 2).all()


def test_levels_from_files(tmp_path) -> None:
    levels = random_levels(5, 20, (6, 7), seed=0)
    (tmp_path / "a.txt").write_text("\n\n".join(levels.to_text()[:3]))
    (tmp_path / "b.txt").write_text("\r\n".join(levels.to_text()[3].split("\n")) + "\n")
    got = read_levels(tmp_path)
    for name in ("walls", "agent", "direction", "goal"):
        np.testing.assert_array_equal(getattr(got, name), getattr(levels.take(range(4)), name))
    places = np.stack(np.divmod(levels.agent, 7), 1)
    np.savez(tmp_path / "c.npz", walls=levels.walls, agent=places, goal=levels.goal)
    from_arrays = read_levels(tmp_path / "c.npz")
    np.testing.assert_array_equal(from_arrays.agent, levels.agent)


@pytest.mark.parametrize(
    ("grids", "message"),
    [
        ([">.G", ">..G"], "one size"),
        ([">.x"], "characters"),
        ([">.."], "0 goals"),
        ([">.>G"], "2 starts"),
    ],
)
def test_grids_that_are_no_maze_are_refused(grids, message) -> None:
    with pytest.raises(ValueError, match=message):
        MazeLevels.from_text(grids)


def test_impossible_levels_are_refused() -> None:
    walls = np.zeros((1, 2, 2), bool)
    one = np.array([0])
    with pytest.raises(ValueError, match="starts on its goal"):
        MazeLevels(walls, one, one, one)
    with pytest.raises(ValueError, match="goal goes up to 4"):
        MazeLevels(walls, one, one, np.array([4]))
    with pytest.raises(ValueError, match="agent of level 0 is on a wall"):
        MazeLevels(~walls, one, one, np.array([1]))
    with pytest.raises(ValueError, match="noise"):
        MazeLevels(walls, one, one, np.array([1]), np.array([0.5]))


def test_missing_and_broken_files_are_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match="neither"):
        read_levels(tmp_path / "none.txt")
    with pytest.raises(ValueError, match=r"no \.txt"):
        read_levels(tmp_path)
    (tmp_path / "bad.npz").write_bytes(b"no archive")
    with pytest.raises(ValueError, match="no archive of arrays"):
        read_levels(tmp_path / "bad.npz")
    np.savez(tmp_path / "part.npz", walls=np.zeros((1, 2, 2)))
    with pytest.raises(ValueError, match="lacks the arrays"):
        read_levels(tmp_path / "part.npz")


def test_no_levels_at_all_are_a_batch_like_any_other() -> None:
    none = random_levels(5, 60, seed=0).take([])
    assert len(none) == 0
    assert len(mutate_levels(none, 3, seed=0)) == 0
    assert solvable(none).tolist() == shortest_actions(none).tolist() == none.to_text() == []
    assert len(MazeLevels.concatenate([none, none])) == 0


def test_real_levels_are_found_where_a_whole_draw_holds_none() -> None:
    # With so many walls most draws of a few mazes hold none with a way of 8 cells.
    rng = np.random.default_rng(0)
    for _ in range(200):
        assert solvable(real_levels(1, 110, seed=rng))[0] >= 8
