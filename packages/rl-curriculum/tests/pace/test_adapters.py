"""Policies of stable-baselines3 and CleanRL under the contract of the scores and the trainer."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3 import A2C, PPO
from torch import nn

from rl_curriculum.pace import (
    MazeVecEnv,
    MLPPolicy,
    PACEConfig,
    PACETrainer,
    generators,
    pace_scores,
)
from rl_curriculum.pace._reference import score_by_autograd
from rl_curriculum.pace.adapters import CleanRLAgent, StableBaselines3Policy


class Spaces(gym.Env):
    """All that stable-baselines3 asks of an environment before it learns."""

    def __init__(self, inputs: int, actions: int) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (inputs,), np.float32)
        self.action_space = gym.spaces.Discrete(actions)


class Agent(nn.Module):
    """The actor-critic of CleanRL's scripts."""

    def __init__(self, inner: MLPPolicy) -> None:
        super().__init__()
        self.inner = inner

    def get_action_and_value(self, x, action=None):
        logs, value = self.inner(x)
        distribution = torch.distributions.Categorical(logits=logs)
        action = distribution.sample() if action is None else action
        return action, distribution.log_prob(action), distribution.entropy(), value.unsqueeze(-1)


def sb3(algorithm, inputs, actions):
    return algorithm("MlpPolicy", Spaces(inputs, actions), device="cpu", seed=0)


ADAPTED = {
    "ppo": lambda n, k: StableBaselines3Policy(sb3(PPO, n, k).policy),
    "a2c": lambda n, k: StableBaselines3Policy(sb3(A2C, n, k).policy),
    "cleanrl": lambda n, k: CleanRLAgent(Agent(MLPPolicy(n, k, (8,), seed=0))),
}


@pytest.mark.parametrize("kind", ADAPTED)
@pytest.mark.parametrize("method", ["auto", "vmap", "loop"])
def test_the_score_is_the_squared_gradient_of_each_level(random_rollout, kind, method) -> None:
    policy = ADAPTED[kind](5, 3)
    # stable-baselines3 turns every observation into single precision.
    batch = random_rollout(dtype=torch.float32)
    np.testing.assert_allclose(
        pace_scores(policy, batch, method=method, advantage_norm="none"),
        score_by_autograd(policy, batch.obs, batch.actions, batch.advantages),
        rtol=1e-5,
    )


def test_stable_baselines3_gives_the_same_numbers_through_its_own_calls(random_rollout) -> None:
    policy = sb3(PPO, 5, 3).policy
    batch = random_rollout(dtype=torch.float32)
    logp, entropy, value = StableBaselines3Policy(policy).evaluate(batch.obs, batch.actions)
    for t in range(len(batch.obs)):
        theirs = policy.evaluate_actions(batch.obs[t], batch.actions[t])
        for ours, other in zip(
            (value[t], logp[t], entropy[t]), (theirs[0].squeeze(-1), *theirs[1:]), strict=True
        ):
            torch.testing.assert_close(ours, other)
    actions = StableBaselines3Policy(policy).act(batch.obs[0], None, None, None)[0]
    greedy, _ = policy.predict(batch.obs[0].numpy(), deterministic=True)
    assert actions.tolist() == greedy.tolist()


@pytest.mark.parametrize("kind", ADAPTED)
def test_an_adapted_policy_trains_the_same_way_twice(kind) -> None:
    def train(global_seed: int):
        policy = ADAPTED[kind](79, 3)
        first = [p.detach().clone() for p in policy.parameters()]
        torch.manual_seed(global_seed)
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
        last = [p.detach().clone() for p in trainer.policy.parameters()]
        assert not all(torch.equal(a, b) for a, b in zip(first, last, strict=True))
        return last

    assert all(torch.equal(a, b) for a, b in zip(train(2), train(3), strict=True))


def test_a_trained_policy_stays_with_its_model(tmp_path) -> None:
    model = sb3(PPO, 79, 3)
    PACETrainer(
        StableBaselines3Policy(model.policy),
        MazeVecEnv(8, 16),
        generators.standard,
        PACEConfig(steps=16, capacity=16),
    ).learn(total_updates=1)
    model.save(tmp_path / "model.zip")
    again = PPO.load(tmp_path / "model.zip", device="cpu")
    for ours, theirs in zip(model.policy.parameters(), again.policy.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_other_modules_are_refused() -> None:
    with pytest.raises(TypeError, match="evaluate_actions"):
        StableBaselines3Policy(nn.Linear(2, 2))
    with pytest.raises(TypeError, match="get_action_and_value"):
        CleanRLAgent(nn.Linear(2, 2))
