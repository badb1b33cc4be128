"""The level buffer and its replay distribution."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from rl_curriculum.pace import LevelSampler
from rl_curriculum.pace._reference import replay_weights


def filled(scores, ages=None, **more) -> LevelSampler:
    sampler = LevelSampler(len(scores), **{"staleness": 0.0, **more})
    sampler.insert(list(range(len(scores))), scores)
    if ages is not None:
        state = sampler.state_dict()
        state["clock"] = 100
        state["stamps"] = 100 - np.array(ages)
        sampler.load_state_dict(state)
    return sampler


@pytest.mark.parametrize(
    ("temperature", "ages", "staleness", "weights"),
    [
        (1.0, None, 0.0, (6 / 11, 2 / 11, 3 / 11)),
        (0.3, None, 0.0, (0.888974, 0.022829, 0.088197)),
        (1.0, (0, 6, 3), 0.3, (0.381818, 0.327273, 0.290909)),
    ],
)
def test_the_worked_distributions(temperature, ages, staleness, weights) -> None:
    # Ranks 1, 3, 2: (1, 1/3, 1/2)^(1/beta) normalised; staleness shares 0, 2/3, 1/3.
    sampler = filled((3, 1, 2), ages, temperature=temperature, staleness=staleness)
    np.testing.assert_allclose(sampler.weights(), weights, atol=5e-7)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), min_size=1, max_size=12),
    st.floats(0, 1),
    st.floats(0.2, 3),
)
def test_the_distribution_is_the_definition(pairs, staleness, temperature) -> None:
    scores, ages = [float(s) for s, _ in pairs], [a for _, a in pairs]
    sampler = filled(scores, ages, staleness=staleness, temperature=temperature)
    weights = sampler.weights()
    np.testing.assert_allclose(
        weights, replay_weights(scores, ages, staleness, temperature), rtol=1e-10
    )
    assert weights.sum() == pytest.approx(1, abs=1e-12)


def test_proportional_and_topk() -> None:
    proportional = filled((3.0, 1.0, 0.0), prioritization="proportional", temperature=0.5)
    np.testing.assert_allclose(proportional.weights(), [0.9, 0.1, 0.0])
    nothing = filled((0.0, 0.0), prioritization="proportional")
    np.testing.assert_allclose(nothing.weights(), [0.5, 0.5])
    top = filled((3.0, 1.0, 2.0), prioritization="topk", top_k=2)
    np.testing.assert_allclose(top.weights(), [0.5, 0.0, 0.5])
    with pytest.raises(ValueError, match="negative value -1"):
        proportional.insert([9], [-1.0])


def test_a_full_buffer_gives_up_its_lowest_score() -> None:
    sampler = filled((5, 1, 3))
    assert sampler.insert([10], [0.5]).tolist() == [-1]
    assert sampler.insert([10], [1.0]).tolist() == [-1]
    assert sampler.insert([10], [2.0]).tolist() == [1]
    assert sampler.levels == [0, 10, 2]
    assert sampler.scores.tolist() == [5, 2, 3]


def test_evicting_by_weight_spares_a_stale_level() -> None:
    # Level 1 has the lowest score and nearly all the staleness, level 2 the lowest weight.
    ages = (1, 90, 0)
    assert filled((5, 1, 3), ages, staleness=0.5).insert([10], [4.0]).tolist() == [1]
    by_weight = filled((5, 1, 3), ages, staleness=0.5, evict="weight")
    assert by_weight.insert([10], [4.0]).tolist() == [2]


@pytest.mark.parametrize("staleness", [0.0, 0.3, 1.0])
def test_draws_follow_the_weights(staleness) -> None:
    sampler = filled((3.0, 1.0, 2.0, 0.5), (4, 1, 0, 7), staleness=staleness, seed=3)
    weights = sampler.weights()
    stamps, n = sampler._stamps.copy(), 100_000
    counts = np.zeros(4)
    for _ in range(n):
        sampler._stamps[:], sampler._clock = stamps, 100
        counts[sampler.sample(1)[0][0]] += 1
    spread = np.sqrt(n * weights * (1 - weights))
    assert (np.abs(counts - n * weights) <= 4 * spread + 1e-9).all()
    possible = weights > 0
    assert stats.chisquare(counts[possible], n * weights[possible]).pvalue > 1e-4


def test_a_drawn_level_is_fresh_before_the_next_draw() -> None:
    sampler = filled((1.0, 1.0, 1.0), (0, 0, 50), staleness=1.0)
    ids, levels = sampler.sample(2)
    # All staleness is level 2's, and after its draw the others are one step old.
    assert ids[0] == 2
    assert levels[0] == 2
    assert ids[1] != 2
    assert sampler.ages[ids[1]] == 0


def test_a_level_in_the_buffer_is_scored_anew() -> None:
    sampler = LevelSampler(4, seed=0)
    walls = np.eye(3, dtype=bool)[:, None]
    sampler.insert({"walls": walls}, [1.0, 2.0, 3.0], {"best": [0.1, 0.2, 0.3]})
    assert sampler.insert({"walls": walls[1:2]}, [9.0]).tolist() == [1]
    assert len(sampler) == 3
    assert sampler.scores.tolist() == [1, 9, 3]
    assert sampler.ages.tolist() == [3, 0, 1]
    assert sampler.extra("best").tolist() == [0.1, 0.2, 0.3]
    assert np.isnan(sampler.extra("worst")).all()


def test_a_moving_average_of_scores() -> None:
    sampler = filled((1.0, 2.0), score_ema=0.25)
    sampler.update([0], [5.0])
    assert sampler.scores.tolist() == [2.0, 2.0]


def test_scores_that_are_not_finite_are_never_stored() -> None:
    sampler = LevelSampler(3)
    assert sampler.insert([0, 1, 2], [1.0, np.nan, -np.inf]).tolist() == [0, -1, -1]
    sampler.update([0], [-np.inf])
    assert sampler.scores.tolist() == [1.0]


def test_a_level_pushed_out_within_its_own_batch_has_no_place() -> None:
    sampler = LevelSampler(1)
    assert sampler.insert([7, 8], [1.0, 2.0]).tolist() == [-1, 0]


def test_the_coin() -> None:
    sampler = LevelSampler(4, min_fill=0.5, replay_prob=1.0)
    assert not sampler.should_replay()
    sampler.insert([1, 2], [1.0, 1.0])
    assert sampler.should_replay()
    half = LevelSampler(1, min_fill=0.0, replay_prob=0.5, seed=0)
    half.insert([1], [1.0])
    heads = sum(half.should_replay() for _ in range(4000))
    assert abs(heads - 2000) < 4 * np.sqrt(1000)


def test_going_on_from_a_saved_state_is_identical() -> None:
    def work(sampler, rounds):
        rng = np.random.default_rng(5)
        seen = []
        for k in range(rounds):
            if sampler.should_replay():
                ids, levels = sampler.sample(3)
                sampler.update(ids, rng.random(3))
                seen.append((ids.tolist(), levels["x"].tolist()))
            else:
                new = {"x": rng.integers(0, 50, (3, 2)), "y": np.arange(3) + k}
                seen.append(sampler.insert(new, rng.random(3), {"r": rng.random(3)}).tolist())
        return seen

    first, second = LevelSampler(8, seed=1), LevelSampler(8, seed=99)
    work(first, 20)
    second.load_state_dict(first.state_dict())
    assert work(first, 30) == work(second, 30)
    np.testing.assert_array_equal(first.weights(), second.weights())
    np.testing.assert_array_equal(first.extra("r"), second.extra("r"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"capacity": 0}, "capacity is 0"),
        ({"replay_prob": 1.5}, "replay_prob is 1.5"),
        ({"staleness": -0.1}, "staleness is -0.1"),
        ({"temperature": 0.0}, "temperature is 0.0"),
        ({"score_ema": 0.0}, "score_ema is 0.0"),
        ({"prioritization": "best"}, "prioritization is 'best'"),
        ({"evict": "oldest"}, "evict is 'oldest'"),
    ],
)
def test_bad_settings_are_refused(settings, message) -> None:
    with pytest.raises(ValueError, match=message):
        LevelSampler(**{"capacity": 3, **settings})


def test_bad_input_is_refused() -> None:
    sampler = LevelSampler(3)
    with pytest.raises(ValueError, match="empty"):
        sampler.weights()
    with pytest.raises(ValueError, match="empty"):
        sampler.sample(1)
    with pytest.raises(ValueError, match=r"scores has shape \(2,\); allowed: \(1,\)"):
        sampler.insert([1], [1.0, 2.0])
    with pytest.raises(TypeError, match="levels is a int"):
        sampler.insert(5, [1.0])
    with pytest.raises(ValueError, match="parts of lengths"):
        sampler.insert((np.zeros(2), np.zeros(3)), [1.0, 2.0])
    sampler.insert(np.zeros((1, 4)), [1.0])
    with pytest.raises(ValueError, match="shape"):
        sampler.insert(np.zeros((1, 5)), [1.0])
    with pytest.raises(ValueError, match="kind"):
        sampler.insert([3], [1.0])
    with pytest.raises(ValueError, match="ids are"):
        sampler.update([1], [1.0])
