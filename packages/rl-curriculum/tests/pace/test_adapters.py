"""Policies of stable-baselines3 and CleanRL under the contract, by what their methods return."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from rl_curriculum.pace import (
    MazeVecEnv,
    MLPPolicy,
    PACEConfig,
    PACETrainer,
    generators,
    pace_scores,
)
from rl_curriculum.pace.adapters import CleanRLAgent, StableBaselines3Policy


class ActorCritic(nn.Module):
    """The methods of stable-baselines3's ActorCriticPolicy that count, over an MLPPolicy."""

    def __init__(self, inner: MLPPolicy) -> None:
        super().__init__()
        self.inner = inner
        self.action_net = inner.actor_head

    def forward(self, obs, deterministic=False):
        logs, value = self.inner(obs)
        distribution = torch.distributions.Categorical(logits=logs)
        action = logs.argmax(-1) if deterministic else distribution.sample()
        return action, value.unsqueeze(-1), distribution.log_prob(action)

    def evaluate_actions(self, obs, actions):
        logs, value = self.inner(obs)
        distribution = torch.distributions.Categorical(logits=logs)
        return value.unsqueeze(-1), distribution.log_prob(actions), distribution.entropy()


class Agent(nn.Module):
    def __init__(self, inner: MLPPolicy) -> None:
        super().__init__()
        self.inner = inner

    def get_action_and_value(self, x, action=None):
        logs, value = self.inner(x)
        distribution = torch.distributions.Categorical(logits=logs)
        action = distribution.sample() if action is None else action
        return action, distribution.log_prob(action), distribution.entropy(), value.unsqueeze(-1)


ADAPTED = [
    lambda inner: StableBaselines3Policy(ActorCritic(inner)),
    lambda inner: CleanRLAgent(Agent(inner)),
]


@pytest.mark.parametrize("adapt", ADAPTED, ids=["sb3", "cleanrl"])
def test_an_adapted_policy_scores_as_the_policy_itself(random_rollout, adapt) -> None:
    inner = MLPPolicy(5, 3, (8,), seed=0).double()
    batch = random_rollout()
    for method in ("auto", "vmap", "loop"):
        np.testing.assert_allclose(
            pace_scores(adapt(inner), batch, method=method), pace_scores(inner, batch), rtol=1e-9
        )
    for theirs, ours in zip(
        adapt(inner).evaluate(batch.obs, batch.actions),
        inner.evaluate(batch.obs, batch.actions),
        strict=True,
    ):
        torch.testing.assert_close(theirs, ours)


@pytest.mark.parametrize("adapt", ADAPTED, ids=["sb3", "cleanrl"])
def test_an_adapted_policy_trains_the_same_way_twice(adapt) -> None:
    def train():
        torch.manual_seed(int(np.random.default_rng().integers(1000)))
        policy = adapt(MLPPolicy(79, 3, (8,), seed=0))
        before = torch.get_rng_state()
        trainer = PACETrainer(
            policy,
            MazeVecEnv(8, 16),
            generators.standard,
            PACEConfig(steps=16, capacity=16),
            seed=1,
        ).learn(total_updates=2)
        # Their draws come from torch's global generator, which is left as it was.
        assert torch.equal(before, torch.get_rng_state())
        return [p.detach().clone() for p in trainer.policy.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(train(), train(), strict=True))


def test_other_modules_are_refused() -> None:
    with pytest.raises(TypeError, match="evaluate_actions"):
        StableBaselines3Policy(nn.Linear(2, 2))
    with pytest.raises(TypeError, match="get_action_and_value"):
        CleanRLAgent(nn.Linear(2, 2))
