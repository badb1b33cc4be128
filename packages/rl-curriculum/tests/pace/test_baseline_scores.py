"""The other scores, by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rl_curriculum.pace import MLPPolicy, Rollout
from rl_curriculum.pace.baseline_scores import (
    l1_value_loss,
    learnability,
    marginal_benefit,
    max_mc,
    positive_value_loss,
    random_score,
)


def rollout(rewards, done, values=None, **more) -> Rollout:
    rewards = np.array(rewards, float)
    T, N = rewards.shape
    return Rollout(
        obs=torch.zeros(T, N, 2),
        actions=torch.zeros(T, N, dtype=torch.long),
        logp=torch.zeros(T, N),
        values=np.zeros((T, N)) if values is None else np.array(values, float),
        rewards=rewards,
        terminated=np.array(done, bool),
        truncated=np.zeros((T, N), bool),
        last_value=np.zeros(N),
        gamma=1.0,
        gae_lambda=0.0,
        **more,
    )


# Level 0: episodes of 1 and 2 steps, then one that does not end. Level 1: none ends.
DONE = [[1, 0], [0, 0], [1, 0], [0, 0]]
REWARDS = [[1, 0], [0, 0], [0.5, 0], [9, 0]]
VALUES = [[0.25, 0], [1, 0], [1, 0], [0, 0]]


def test_positive_value_loss_is_a_mean_of_episode_means() -> None:
    # Errors with lambda 0: 0.75; then 0 + 1 - 1 = 0 and 0.5 - 1 = -0.5; the last episode is open.
    got = positive_value_loss(None, rollout(REWARDS, DONE, VALUES))
    np.testing.assert_allclose(got, [(0.75 + 0) / 2, np.nan])


def test_max_mc_takes_the_best_return_ever_seen() -> None:
    # Returns 1 and 0.5. R_max 1: episode means 0.75 and 0; with an earlier best of 2 one more.
    batch = rollout(REWARDS, DONE, VALUES)
    np.testing.assert_allclose(max_mc(None, batch), [0.375, np.nan])
    earlier = rollout(REWARDS, DONE, VALUES, max_returns=np.array([2.0, np.nan]))
    np.testing.assert_allclose(max_mc(None, earlier), [1.375, np.nan])
    np.testing.assert_allclose(earlier.best_returns, [2.0, np.nan])


def test_l1_counts_every_step() -> None:
    # 0.75, 0, 0.5 and 9.
    got = l1_value_loss(None, rollout(REWARDS, DONE, VALUES))
    np.testing.assert_allclose(got, [10.25 / 4, 0])


def test_learnability_needs_whole_episodes() -> None:
    rewards = np.zeros((8, 3))
    rewards[[0, 2], 0] = 1
    done = np.ones((8, 3))
    done[4:, 1] = 0
    rewards[:, 2] = 1
    batch = rollout(rewards, done)
    got = learnability(None, batch)
    # 2 of 8 succeed; 4 episodes are too few; all succeed.
    np.testing.assert_allclose(got, [0.25 * 0.75, np.nan, 0.0])
    np.testing.assert_allclose(learnability(None, batch, min_episodes=4)[1], 0.0)
    with pytest.raises(ValueError, match="min_episodes"):
        learnability(None, batch, min_episodes=0)


def test_marginal_benefit_rolls_out_again_and_puts_the_policy_back(random_rollout) -> None:
    batch = random_rollout(ends=0.5)
    policy = MLPPolicy(5, 3, (4,), seed=0).double()
    before = [p.clone() for p in policy.parameters()]
    moved = []

    def rerollout(stepped, level):
        change = [
            (p - b).detach().square().sum()
            for p, b in zip(stepped.parameters(), before, strict=True)
        ]
        moved.append(float(sum(change)))
        return 2.0

    got = marginal_benefit(policy, batch, rerollout=rerollout)
    np.testing.assert_allclose(got, [2 - r.mean() for r in batch.episode_returns])
    # The provisional step is the one whose squared length PACE scores.
    from rl_curriculum.pace import pace_scores

    np.testing.assert_allclose(moved, pace_scores(policy, batch), rtol=1e-9)
    assert all(torch.equal(p, b) for p, b in zip(policy.parameters(), before, strict=True))


def test_random_scores_go_on_with_their_generator() -> None:
    batch = rollout(REWARDS, DONE)
    rng = np.random.default_rng(0)
    first, second = random_score(None, batch, seed=rng), random_score(None, batch, seed=rng)
    assert (first != second).all()
    np.testing.assert_array_equal(random_score(None, batch, seed=0), first)
