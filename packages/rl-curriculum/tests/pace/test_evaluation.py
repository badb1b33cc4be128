"""Evaluation on held-out levels and its aggregates."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from rl_curriculum.pace import (
    MazeLevels,
    MazeVecEnv,
    MLPPolicy,
    cvar_success,
    evaluate,
    iqm,
    optimality_gap,
    random_levels,
    stratified_bootstrap,
)
from rl_curriculum.pace._reference import iqm_by_sorting


class Forward(nn.Module):
    """Always goes forward."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))

    def act(self, obs, hidden, starts, generator):
        n = len(obs)
        return torch.full((n,), 2), torch.zeros(n), torch.zeros(n), None


def test_the_first_episodes_of_every_level_count() -> None:
    levels = MazeLevels.from_text([">G...", ">...G", ">#..G", ">..G.", ">.#.G"])
    # In chunks of two, so that the last one is filled up.
    found = evaluate(Forward(), MazeVecEnv(2, 10, (1, 5)), levels, 3)
    assert found.rates.tolist() == [1, 1, 0, 1, 0]
    assert found.lengths[:, 0].tolist() == [1, 4, 10, 3, 10]
    np.testing.assert_allclose(found.returns[1], 1 - 0.9 * 4 / 10, rtol=1e-6)


def test_an_evaluation_is_repeatable_and_leaves_the_policy_as_it_was() -> None:
    levels = random_levels(10, 20, seed=0)
    policy = MLPPolicy(79, 3, seed=0)
    env = MazeVecEnv(4, 30)
    first, second = (evaluate(policy, env, levels, 2, seed=5) for _ in range(2))
    np.testing.assert_array_equal(first.lengths, second.lengths)
    other = evaluate(policy, env, levels, 2, seed=6)
    assert (other.lengths != first.lengths).any()
    assert policy.training
    greedy = evaluate(policy, env, levels, 2, seed=1, greedy=True)
    np.testing.assert_array_equal(greedy.lengths[:, 0], greedy.lengths[:, 1])


def test_open_episodes_are_failures() -> None:
    levels = MazeLevels.from_text([">...G"])
    found = evaluate(Forward(), MazeVecEnv(1, 10, (1, 5)), levels, 2, max_steps=5)
    assert found.success.tolist() == [[True, False]]


def test_cvar_reports_the_worst_on_a_second_evaluation() -> None:
    # Chosen by the first evaluation, 0 and .1, whose own mean .05 would be biased low.
    b = np.full(10, 0.9)
    b[:2] = 0.3, 0.2
    got = cvar_success(np.arange(10) / 10, b, [0.2, 1.0])
    assert got[0.2] == pytest.approx(0.25)
    assert got[1.0] == pytest.approx(b.mean())
    assert cvar_success([0.5, 0.1], [0.7, 0.2], [0.01]) == {0.01: 0.2}


def test_interquartile_mean_and_gap_by_hand() -> None:
    scores = (0, 0.1, 0.4, 0.5, 0.6, 0.7, 0.9, 1)
    assert iqm(scores) == pytest.approx(0.55)
    assert optimality_gap(scores) == pytest.approx(0.475)
    assert optimality_gap([1.5, 0.5]) == pytest.approx(0.25)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-5, 5), min_size=1, max_size=40))
def test_interquartile_mean_is_its_definition(values) -> None:
    assert iqm(values) == pytest.approx(iqm_by_sorting(np.array(values)), abs=1e-12)


def test_interquartile_mean_is_scipys() -> None:
    # rliable's IQM is scipy.stats.trim_mean(scores, 0.25, axis=None).
    from scipy import stats

    matrix = np.random.default_rng(0).random((10, 8))
    assert iqm(matrix) == pytest.approx(stats.trim_mean(matrix, 0.25, axis=None), abs=1e-12)


@pytest.mark.skipif(importlib.util.find_spec("rliable") is None, reason="rliable is not installed")
def test_aggregates_are_rliables() -> None:
    from rliable import metrics

    matrix = np.random.default_rng(0).random((10, 8)) * 1.3
    assert iqm(matrix) == pytest.approx(metrics.aggregate_iqm(matrix), abs=1e-12)
    assert optimality_gap(matrix) == pytest.approx(
        metrics.aggregate_optimality_gap(matrix), abs=1e-12
    )


def test_the_bootstrap_interval_has_about_its_level() -> None:
    # Means of 20 seeds on 4 tasks: the percentile interval covers 95% up to its known shortfall.
    rng = np.random.default_rng(0)
    hits = 0
    for k in range(200):
        low, high = stratified_bootstrap(
            rng.normal(size=(20, 4)), lambda s: float(s.mean()), draws=200, seed=k
        )
        hits += low <= 0 <= high
    assert 0.86 < hits / 200 < 0.99


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="one shape"):
        cvar_success([0.1], [0.1, 0.2])
    with pytest.raises(ValueError, match="alphas has 0"):
        cvar_success([0.1], [0.1], [0])
    with pytest.raises(ValueError, match="not finite"):
        iqm([0.1, np.nan])
    with pytest.raises(ValueError, match="empty"):
        optimality_gap([])
    with pytest.raises(ValueError, match=r"\(seeds, tasks\)"):
        stratified_bootstrap([0.1, 0.2])
    with pytest.raises(ValueError, match="episodes is 0"):
        evaluate(Forward(), MazeVecEnv(1, 10), random_levels(1), 0)
