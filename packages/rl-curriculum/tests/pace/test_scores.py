"""The score of PACE against closed forms, autograd loops and the paper's inequality."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from rl_curriculum.pace import LSTMPolicy, MLPPolicy, Rollout, pace_scores
from rl_curriculum.pace._reference import bandit_score, gae_by_sums, score_by_autograd
from rl_curriculum.pace.gradients import each_level, named_trainable
from rl_curriculum.pace.scores import normalised, warn_without_episodes


class Bandit(nn.Module):
    """One logit: action 1 has probability sigmoid(theta)."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.tensor(math.log(p / (1 - p)), dtype=torch.float64))

    def evaluate(self, obs, actions, hidden=None, starts=None):
        z = self.theta * (2.0 * actions.double() - 1.0)
        return nn.functional.logsigmoid(z), 0 * z, 0 * z


class Linear(nn.Module):
    def __init__(self, inputs: int = 2, bias: bool = True) -> None:
        super().__init__()
        self.actor_head = nn.Linear(inputs, 2, bias=bias, dtype=torch.float64)
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def evaluate(self, obs, actions, hidden=None, starts=None):
        logs = torch.log_softmax(self.actor_head(obs), -1)
        return (
            logs.gather(-1, actions.unsqueeze(-1)).squeeze(-1),
            0 * logs[..., 0],
            0 * logs[..., 0],
        )


def batch_of(actions, obs=None, **more) -> Rollout:
    actions = torch.as_tensor(np.asarray(actions))
    T, N = actions.shape
    zeros = np.zeros((T, N))
    return Rollout(
        obs=torch.zeros(T, N, 1, dtype=torch.float64) if obs is None else obs,
        actions=actions,
        logp=torch.zeros(T, N),
        values=zeros,
        rewards=zeros,
        terminated=zeros > 1,
        truncated=zeros > 1,
        last_value=np.zeros(N),
        **more,
    )


def worked_example() -> tuple[Rollout, np.ndarray]:
    obs = torch.tensor([3.0, 4.0], dtype=torch.float64).expand(4, 1, 2)
    return batch_of([[0], [1], [0], [0]], obs), np.array([[1.0], [1.0], [-1.0], [2.0]])


@pytest.mark.parametrize(("p", "score"), [(0.5, 0.0625), (0.9, 0.0081), (0.8, 0.0256)])
def test_the_bandit_scores_the_square_of_its_learnability(p: float, score: float) -> None:
    # With successes in proportion p, reward minus baseline p is an exact sample of the gradient.
    n = 10
    actions = np.zeros((n, 1), int)
    actions[: round(p * n)] = 1
    advantages = actions - p
    got = pace_scores(Bandit(p), batch_of(actions), advantage_norm="none", advantages=advantages)
    assert got[0] == pytest.approx(score, abs=1e-15)
    assert bandit_score(p) == pytest.approx(score, abs=1e-15)


@pytest.mark.parametrize(("p", "n", "mean"), [(0.8, 4, 0.0400), (0.9, 16, 0.0117)])
def test_few_samples_add_their_variance_to_the_score(p: float, n: int, mean: float) -> None:
    # |g|^2 + p (1-p) (1-2p)^2 / n: 0.0256 + 0.0576 / 4 = 0.0400 and 0.0081 + 0.0576 / 16 = 0.0117.
    rng = np.random.default_rng(0)
    actions = (rng.random((n, 400_000)) < p).astype(int)
    batch = batch_of(actions)
    # One logit, so that a level's gradient is its mean of advantage times slope; computed by the
    # library on a part of the draws, and by hand on all.
    hand = ((actions - p) * np.where(actions == 1, 1 - p, -p)).mean(0) ** 2
    few = pace_scores(
        Bandit(p),
        batch.take(np.arange(500)),
        advantage_norm="none",
        advantages=actions[:, :500] - p,
    )
    np.testing.assert_allclose(few, hand[:500], rtol=1e-9, atol=1e-15)
    assert hand.mean() == pytest.approx(mean, abs=3e-4)
    assert bandit_score(p, n) == pytest.approx(mean, abs=1e-12)


def test_a_single_sample_makes_the_score_bimodal() -> None:
    # p(1-p)(1-3p(1-p)) has its maxima where p(1-p) = 1/6: p = (1 -+ sqrt(1/3)) / 2.
    grid = np.linspace(0.01, 0.49, 4801)
    best = grid[np.argmax([bandit_score(p, 1) for p in grid])]
    assert best == pytest.approx((1 - math.sqrt(1 / 3)) / 2, abs=1e-3)
    assert bandit_score(best, 1) > bandit_score(0.5, 1)


def test_the_worked_softmax_example() -> None:
    # By hand: gradients at the two logits are -+0.125, the input (3, 4) has square 25.
    batch, advantages = worked_example()

    def score(bias: bool = True, **more: object) -> float:
        return float(pace_scores(Linear(bias=bias), batch, advantages=advantages, **more)[0])

    assert score(advantage_norm="none") == pytest.approx(0.8125, abs=1e-12)
    assert score(bias=False, advantage_norm="none") == pytest.approx(0.78125, abs=1e-12)
    # Centred by 0.75 the signed sum is -0.5, halved and by 4 steps; divided by sqrt(1.1875).
    assert score() == pytest.approx(52 * (0.5 / 8) ** 2 / 1.1875, rel=1e-7)
    assert score() == pytest.approx(0.171053, abs=1e-6)
    assert score(advantage_norm="none", debias="split") == 0.0
    assert score(advantage_norm="none", step_size=3.0) == pytest.approx(9 * 0.8125)
    assert score(advantage_norm="none", params="actor_head") == pytest.approx(0.8125)
    named = score(advantage_norm="none", params=lambda name: name.endswith("bias"))
    assert named == pytest.approx(0.03125)


def test_the_split_estimate_is_the_inner_product_of_the_halves() -> None:
    batch, advantages = worked_example()
    advantages = advantages * np.array([[2.0], [1.0], [1.0], [1.0]])
    # Halves: mean logit gradients -+(2-1)/2/2 = 0.25 and -+(-1+2)/2/2 = 0.25, so 2 * 26 * 0.0625.
    got = pace_scores(Linear(), batch, advantages=advantages, advantage_norm="none", debias="split")
    assert got[0] == pytest.approx(2 * 26 * 0.25 * 0.25)


def test_the_split_estimate_has_no_bias_and_may_be_negative() -> None:
    # E <ghat_A, ghat_B> = (p (1-p))^2 = 0.0256, whatever n.
    p, n = 0.8, 4
    rng = np.random.default_rng(1)
    actions = (rng.random((n, 20_000)) < p).astype(int)
    gradient = (actions - p) * np.where(actions == 1, 1 - p, -p)
    hand = gradient[:2].mean(0) * gradient[2:].mean(0)
    got = pace_scores(
        Bandit(p),
        batch_of(actions[:, :300]),
        advantages=(actions - p)[:, :300],
        advantage_norm="none",
        debias="split",
    )
    np.testing.assert_allclose(got, hand[:300], atol=1e-14)
    assert hand.mean() == pytest.approx(0.0256, abs=4 * hand.std() / math.sqrt(20_000))


def test_taylor_the_score_is_the_first_order_gain() -> None:
    p = 0.3
    theta = math.log(p / (1 - p))

    def quotient(eta: float) -> float:
        actions = np.array([1] * 3 + [0] * 7)[:, None]
        score = pace_scores(
            Bandit(p),
            batch_of(actions),
            advantages=actions - p,
            advantage_norm="none",
            step_size=eta,
        )[0]
        stepped = 1 / (1 + math.exp(-(theta + math.sqrt(score))))
        return (stepped - p) / (score / eta)

    # The next term of the series is J''/2 * eta = p(1-p)(1-2p)/2 * eta = 0.042 eta.
    assert quotient(1e-3) == pytest.approx(1.0000420, abs=2e-7)
    assert quotient(0.1) == pytest.approx(1.0042, abs=3e-4)


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize("norm", ["none", "level", "batch"])
@pytest.mark.parametrize("method", ["auto", "hooks", "vmap", "loop"])
def test_all_ways_equal_a_loop_of_autograd(random_rollout, dtype, rtol, norm, method) -> None:
    batch = random_rollout(dtype=dtype)
    policy = MLPPolicy(5, 3, (16, 8), seed=1).to(dtype)
    nn.init.normal_(policy.actor_head.weight, generator=torch.Generator().manual_seed(0))
    wanted = score_by_autograd(policy, batch.obs, batch.actions, normalised(batch.advantages, norm))
    got = pace_scores(policy, batch, advantage_norm=norm, method=method)
    np.testing.assert_allclose(got, wanted, rtol=rtol)


@pytest.mark.parametrize("method", ["auto", "loop"])
def test_a_recurrent_policy_keeps_each_level_its_own_states(random_rollout, method) -> None:
    policy = LSTMPolicy(5, 3, 6, seed=2).double()
    generator = torch.Generator().manual_seed(0)
    hidden = tuple(torch.randn(1, 7, 6, generator=generator, dtype=torch.float64) for _ in "hc")
    batch = random_rollout(hidden0=hidden)
    wanted = score_by_autograd(
        policy, batch.obs, batch.actions, batch.advantages, batch.hidden0, batch.starts
    )
    got = pace_scores(policy, batch, advantage_norm="none", method=method, chunk=3)
    np.testing.assert_allclose(got, wanted, rtol=1e-10)
    # A level's score does not depend on which others are in the batch.
    alone = pace_scores(policy, batch.take([3]), advantage_norm="none", method=method)
    np.testing.assert_allclose(alone, got[3:4], rtol=1e-10)


class Convolutional(nn.Module):
    """Not made of dense layers: convolution, normalisation and an embedding-like parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 4, 2)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 3)
        self.scale = nn.Parameter(torch.ones(()))

    def evaluate(self, obs, actions, hidden=None, starts=None):
        T, N = obs.shape[:2]
        h = torch.tanh(self.conv(obs.reshape(T * N, 1, -1))).reshape(T * N, -1)
        logs = torch.log_softmax(self.scale * self.head(self.norm(h)), -1).reshape(T, N, 3)
        logp = logs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
        return logp, 0 * logp, 0 * logp


def test_other_networks_are_mapped_or_looped_over(random_rollout) -> None:
    torch_generator = torch.Generator().manual_seed(0)
    policy = Convolutional().double()
    for parameter in policy.parameters():
        nn.init.normal_(parameter, std=0.5, generator=torch_generator)
    batch = random_rollout()
    wanted = score_by_autograd(policy, batch.obs, batch.actions, batch.advantages)
    for method in ("auto", "loop"):
        got = pace_scores(policy, batch, advantage_norm="none", method=method, chunk=2)
        np.testing.assert_allclose(got, wanted, rtol=1e-9)
    with pytest.raises(ValueError, match="dense layers alone"):
        pace_scores(policy, batch, method="hooks")


class Tied(nn.Module):
    """One parameter in two layers, and one layer under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 5)
        nn.init.normal_(self.first.weight, generator=torch.Generator().manual_seed(0))
        self.second.weight = self.first.weight
        self.head = nn.Linear(5, 3)
        self.alias = self.head

    def evaluate(self, obs, actions, hidden=None, starts=None):
        logs = torch.log_softmax(self.alias(torch.tanh(self.second(self.first(obs)))), -1)
        logp = logs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
        return logp, 0 * logp, 0 * logp


def test_shared_parameters_are_one(random_rollout) -> None:
    batch = random_rollout()
    policy = Tied().double()
    wanted = score_by_autograd(policy, batch.obs, batch.actions, batch.advantages)
    for method in ("auto", "vmap", "loop", "auto"):
        got = pace_scores(policy, batch, advantage_norm="none", method=method)
        np.testing.assert_allclose(got, wanted, rtol=1e-9)
    again = score_by_autograd(policy, batch.obs, batch.actions, batch.advantages)
    np.testing.assert_array_equal(again, wanted)


class LevelMajor(nn.Module):
    """Rows that only look like (T * N): they are in the order of levels."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(5, 3)
        nn.init.normal_(self.head.weight, generator=torch.Generator().manual_seed(0))

    def evaluate(self, obs, actions, hidden=None, starts=None):
        T, N = obs.shape[:2]
        logs = torch.log_softmax(self.head(obs.transpose(0, 1).reshape(T * N, -1)), -1)
        logs = logs.reshape(N, T, 3).transpose(0, 1)
        logp = logs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
        return logp, 0 * logp, 0 * logp


def test_rows_in_another_order_are_noticed(random_rollout) -> None:
    batch = random_rollout()
    policy = LevelMajor().double()
    wanted = score_by_autograd(policy, batch.obs, batch.actions, batch.advantages)
    np.testing.assert_allclose(pace_scores(policy, batch, advantage_norm="none"), wanted, rtol=1e-9)
    with pytest.raises(ValueError, match="other gradients"):
        pace_scores(LevelMajor().double(), batch, method="hooks")


def test_the_levels_gradients_add_up_to_the_batchs(random_rollout) -> None:
    batch = random_rollout()
    policy = MLPPolicy(5, 3, (16,), seed=0).double()
    weight = torch.from_numpy(batch.advantages)

    def loss(logp, entropy, value, data):
        return -(data["a"] * logp).sum()

    names = [name for name in named_trainable(policy) if not name.startswith("critic")]
    parts = each_level(
        policy, loss, names, batch.obs, batch.actions, batch.starts, None, {"a": weight}
    )
    together = -(weight * policy.evaluate(batch.obs, batch.actions)[0]).sum()
    own = named_trainable(policy)
    for name, flow in zip(
        names, torch.autograd.grad(together, [own[n] for n in names]), strict=True
    ):
        torch.testing.assert_close(parts[name].sum(0), flow, rtol=1e-10, atol=1e-12)


def test_levels_without_advantages_score_zero(random_rollout) -> None:
    batch = random_rollout()
    advantages = batch.advantages.copy()
    advantages[:, 2] = 0
    advantages[:, 4] = 0.3
    policy = MLPPolicy(5, 3, seed=0).double()
    none = pace_scores(policy, batch, advantage_norm="none", advantages=advantages)
    level = pace_scores(policy, batch, advantages=advantages)
    assert none[2] == 0
    assert level[2] == level[4] == 0
    assert (none[[0, 1, 3, 5, 6]] > 0).all()
    assert np.isfinite(level).all()


def test_the_scale_of_a_levels_rewards(random_rollout) -> None:
    batch = random_rollout()
    scale = np.ones(7)
    scale[3] = 10.0
    larger = Rollout(
        **{
            **vars_of(batch),
            "rewards": batch.rewards * scale,
            "values": batch.values * scale,
            "last_value": batch.last_value * scale,
        }
    )
    policy = MLPPolicy(5, 3, seed=0).double()
    plain, grown = (pace_scores(policy, b, advantage_norm="none") for b in (batch, larger))
    np.testing.assert_allclose(grown / plain, scale**2, rtol=1e-9)
    plain, grown = (pace_scores(policy, b) for b in (batch, larger))
    np.testing.assert_allclose(grown, plain, rtol=1e-5)


def vars_of(batch: Rollout) -> dict[str, object]:
    from dataclasses import fields

    return {f.name: getattr(batch, f.name) for f in fields(batch)}


def test_adam_needs_the_learners_moments() -> None:
    batch, advantages = worked_example()
    policy = Linear()
    learner = torch.optim.Adam(policy.parameters(), lr=0.1)
    for state in (None, learner, torch.optim.SGD(policy.parameters(), lr=0.1)):
        with pytest.raises(ValueError, match="opt_state"):
            pace_scores(policy, batch, optimizer="adam", opt_state=state)
    # Moments of zero: the first step is the learning rate in each of the 6 parameters.
    for parameter in policy.parameters():
        learner.state[parameter] = {
            "step": torch.tensor(0.0),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    for scale in (1.0, 7.0):
        got = pace_scores(
            policy,
            batch,
            optimizer="adam",
            opt_state=learner,
            epochs=1,
            advantages=scale * advantages,
            advantage_norm="none",
            max_grad_norm=None,
        )
        assert got[0] == pytest.approx(6 * 0.1**2, rel=1e-5)
    assert all(not p.grad for p in policy.parameters() if p.grad is not None)


@pytest.mark.parametrize("loss", ["policy", "policy+value"])
def test_adam_equals_the_learners_own_update_thrown_away(random_rollout, loss) -> None:
    import copy

    policy = MLPPolicy(5, 3, (8,), seed=0).double()
    learner = torch.optim.Adam(policy.parameters(), lr=0.01)
    warm, batch = random_rollout(seed=5), random_rollout(seed=6)
    seen = policy.evaluate(warm.obs, warm.actions)
    (seen[0].mean() + seen[2].mean()).backward()
    learner.step()
    batch = Rollout(
        **{**vars_of(batch), "logp": policy.evaluate(batch.obs, batch.actions)[0].detach()}
    )
    got = pace_scores(
        policy, batch, optimizer="adam", opt_state=learner, epochs=3, loss=loss, max_grad_norm=0.5
    )
    for i in (0, 4):
        one = batch.take([i])
        twin = copy.deepcopy(policy)
        moved = torch.optim.Adam(twin.parameters(), lr=0.01)
        moved.load_state_dict(copy.deepcopy(learner.state_dict()))
        weight = torch.from_numpy(normalised(batch.advantages, "level")[:, [i]])
        returns = torch.from_numpy((batch.advantages + batch.values)[:, [i]])
        actor = [p for n, p in twin.named_parameters() if not n.startswith("critic")]
        for _ in range(3):
            logp, _, value = twin.evaluate(one.obs, one.actions)
            ratio = (logp - one.logp).exp()
            total = -torch.minimum(ratio * weight, ratio.clamp(0.8, 1.2) * weight).mean()
            if loss == "policy+value":
                total = total + 0.5 * 0.5 * (value - returns).square().mean()
            moved.zero_grad()
            total.backward()
            for name, p in twin.named_parameters():
                if name.startswith("critic"):
                    p.grad = None
            nn.utils.clip_grad_norm_(actor, 0.5)
            moved.step()
        before = dict(policy.named_parameters())
        change = sum(
            float((p - before[n]).detach().square().sum())
            for n, p in twin.named_parameters()
            if not n.startswith("critic")
        )
        assert got[i] == pytest.approx(change, rel=1e-6)


def test_the_critics_loss_counts_if_wanted(random_rollout) -> None:
    batch = random_rollout()
    policy = MLPPolicy(5, 3, seed=0).double()
    both = pace_scores(policy, batch, loss="policy+value", params=lambda name: True)
    split = pace_scores(policy, batch, loss="policy+value", params=lambda name: True, method="loop")
    np.testing.assert_allclose(both, split, rtol=1e-9)
    assert (both != pace_scores(policy, batch)).all()


def test_dropout_is_off_while_scored_and_on_again(random_rollout) -> None:
    class Dropping(MLPPolicy):
        def forward(self, obs):
            return super().forward(nn.functional.dropout(obs, 0.5, self.training))

    batch = random_rollout()
    policy = Dropping(5, 3, seed=0).double()
    plain = MLPPolicy(5, 3, seed=0).double()
    np.testing.assert_allclose(pace_scores(policy, batch), pace_scores(plain, batch), rtol=1e-12)
    assert policy.training


def test_scoring_leaves_the_policy_alone(random_rollout) -> None:
    policy = MLPPolicy(5, 3, seed=0).double()
    before = {n: p.clone() for n, p in policy.state_dict().items()}
    pace_scores(policy, random_rollout())
    assert all(torch.equal(before[n], p) for n, p in policy.state_dict().items())
    assert all(p.grad is None for p in policy.parameters())


def test_bad_input_is_refused(random_rollout) -> None:
    batch = random_rollout()
    policy = MLPPolicy(5, 3, seed=0).double()
    broken = batch.advantages.copy()
    broken[3, 5] = np.nan
    for kwargs, message in (
        ({"advantages": broken}, "advantages at level 5"),
        ({"advantages": broken[:, :2]}, r"advantages has shape \(12, 2\)"),
        ({"advantage_norm": "levels"}, "advantage_norm is 'levels'"),
        ({"optimizer": "rmsprop"}, "optimizer is 'rmsprop'"),
        ({"debias": "half"}, "debias is 'half'"),
        ({"step_size": 0.0}, "step_size is 0.0"),
        ({"min_adv_std": -1.0}, "min_adv_std is -1.0"),
        ({"params": "critic"}, "params is 'critic'"),
        ({"params": lambda name: False}, "chooses no parameter"),
        ({"method": "magic"}, "method is 'magic'"),
    ):
        with pytest.raises(ValueError, match=message):
            pace_scores(policy, batch, **kwargs)
    frozen = MLPPolicy(5, 3, seed=0).requires_grad_(False)
    with pytest.raises(ValueError, match="no parameter that requires a gradient"):
        pace_scores(frozen, batch)
    coupled = MLPPolicy(5, 3, seed=0)
    coupled.trunk.append(nn.BatchNorm1d(128))
    with pytest.raises(ValueError, match="batch normalisation"):
        pace_scores(coupled, batch)
    with pytest.raises(TypeError, match="evaluate"):
        pace_scores(nn.Linear(2, 2), batch)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("rewards", np.zeros(12), r"\(T, N\)"),
        ("rewards", np.zeros((1, 7)), "T >= 2"),
        ("values", np.zeros((12, 6)), r"values has shape \(12, 6\); allowed: \(12, 7\)"),
        ("values", np.full((12, 7), np.inf), "not finite"),
        ("last_value", np.zeros(6), "last_value"),
        ("actions", np.zeros((11, 7)), "actions has shape"),
        ("gamma", 1.5, "gamma is 1.5"),
    ],
)
def test_a_rollout_that_does_not_fit_is_refused(random_rollout, name, value, message) -> None:
    with pytest.raises(ValueError, match=message):
        Rollout(**{**vars_of(random_rollout()), name: value})


@pytest.mark.parametrize("seed", range(3))
def test_advantages_are_sums_of_later_errors(random_rollout, seed) -> None:
    batch = random_rollout(seed=seed, gamma=0.9, gae_lambda=0.7)
    for i in range(7):
        wanted = gae_by_sums(
            batch.rewards[:, i],
            batch.values[:, i],
            batch.done[:, i],
            batch.last_value[i],
            0.9,
            0.7,
        )
        np.testing.assert_allclose(batch.advantages[:, i], wanted, rtol=1e-12, atol=1e-12)


def test_a_truncated_episode_goes_on_with_its_final_value() -> None:
    # One step, reward 1, cut off, value 4 afterwards: 1 + 0.5 * 4 - 0 = 3, against 1 if it ends.
    flags = np.array([[True], [True]])
    parts = {
        "obs": torch.zeros(2, 1, 1),
        "actions": torch.zeros(2, 1),
        "logp": torch.zeros(2, 1),
        "values": np.zeros((2, 1)),
        "rewards": np.ones((2, 1)),
        "terminated": np.array([[False], [True]]),
        "truncated": flags & [[True], [False]],
        "last_value": np.zeros(1),
        "gamma": 0.5,
    }
    assert Rollout(**parts).advantages.tolist() == [[1.0], [1.0]]
    going_on = Rollout(**parts, final_values=np.array([[4.0], [4.0]]))
    assert going_on.advantages.tolist() == [[3.0], [1.0]]


def test_a_rollout_without_an_end_warns(random_rollout) -> None:
    with pytest.warns(UserWarning, match="no episode ended"):
        warn_without_episodes(random_rollout(ends=0.0))
