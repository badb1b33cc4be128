"""Training on a curriculum: phases, identical repetition, saving, and what must reproduce."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rl_curriculum.pace import (
    LSTMPolicy,
    MazeVecEnv,
    MLPPolicy,
    PACEConfig,
    PACETrainer,
    config_for,
    evaluate,
    generators,
    mutate_levels,
)
from rl_curriculum.pace.paired import PAIREDTrainer
from rl_curriculum.pace.ppo import PPOConfig, collect, update
from rl_curriculum.pace.trainer import METHODS


def mutator(levels, rng, edits):
    return mutate_levels(levels, edits, seed=rng)


def trainer(method="pace", *, seed=0, policy=None, **changes) -> PACETrainer:
    settings = {"steps": 32, "capacity": 24, "candidates": 16, "kept": 8, "refresh": 3, **changes}
    return PACETrainer(
        policy or MLPPolicy(79, 3, (16,), seed=seed),
        MazeVecEnv(8, 32),
        generators.noisy,
        config_for(method, **settings),
        mutator=mutator,
        seed=seed,
    )


def weights(module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in module.parameters()]


def same(a: PACETrainer, b: PACETrainer) -> None:
    """Equal to the bit in everything that a further iteration depends on."""
    assert all(torch.equal(x, y) for x, y in zip(weights(a.policy), weights(b.policy), strict=True))
    np.testing.assert_equal(a.history, b.history)
    np.testing.assert_array_equal(a.sampler.scores, b.sampler.scores)
    np.testing.assert_array_equal(a.sampler.ages, b.sampler.ages)
    if len(a.sampler):
        np.testing.assert_array_equal(a.sampler.levels.walls, b.sampler.levels.walls)
        np.testing.assert_array_equal(a.sampler.levels.noise, b.sampler.levels.noise)
    assert (a.steps, a.updates, a.score_log) == (b.steps, b.updates, b.score_log)


def test_new_levels_are_scored_without_learning_from_them() -> None:
    run = trainer()
    while True:
        before = weights(run.policy)
        row = run.iterate()
        changed = any(
            not torch.equal(a, b) for a, b in zip(before, weights(run.policy), strict=True)
        )
        assert changed == (row["phase"] == "replay")
        assert (run.updates > 0) == any(r["phase"] == "replay" for r in run.history)
        if run.updates == 3:
            break
    assert {"new", "replay"} == {row["phase"] for row in run.history}
    assert run.steps == 8 * 32 * run.iterations


def test_exploratory_updates_learn_from_new_levels_too() -> None:
    run = trainer(exploratory_updates=True)
    before = weights(run.policy)
    assert run.iterate()["phase"] == "new"
    assert any(not torch.equal(a, b) for a, b in zip(before, weights(run.policy), strict=True))
    assert run.updates == 1


def test_scores_are_of_the_policy_that_collected_the_rollout() -> None:
    seen = []
    run = trainer()

    def score(policy, batch):
        # The log-probabilities of the rollout are those of the policy that is scored.
        logp = policy.evaluate(batch.obs, batch.actions)[0]
        torch.testing.assert_close(logp, batch.logp, rtol=1e-4, atol=1e-5)
        seen.append(batch)
        return np.ones(batch.shape[1])

    run.score = score
    run.learn(total_updates=2)
    assert len(seen) == run.iterations


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_trains_and_goes_on_identically_from_a_file(method, tmp_path) -> None:
    whole = trainer(method).learn(total_updates=6)
    again = trainer(method).learn(total_updates=6)
    same(whole, again)
    first = trainer(method).learn(total_updates=3)
    first.save(tmp_path / "run.npz")
    loaded = PACETrainer.load(
        tmp_path / "run.npz",
        MLPPolicy(79, 3, (16,), seed=77),
        MazeVecEnv(8, 32),
        generators.noisy,
        mutator=mutator,
    )
    same(first, loaded)
    same(whole, loaded.learn(total_updates=6))
    other = trainer(method, seed=1).learn(total_updates=6)
    assert any(
        not torch.equal(a, b)
        for a, b in zip(weights(whole.policy), weights(other.policy), strict=True)
    )


def test_a_file_in_the_middle_of_mutations_goes_on_identically(tmp_path) -> None:
    whole, first = trainer("accel"), trainer("accel")
    while first._next != "mutate":
        first.iterate()
        whole.iterate()
    first.save(tmp_path / "run.npz")
    loaded = PACETrainer.load(
        tmp_path / "run.npz",
        MLPPolicy(79, 3, (16,)),
        MazeVecEnv(8, 32),
        generators.noisy,
        mutator=mutator,
    )
    assert loaded.iterate()["phase"] == "mutate"
    whole.iterate()
    same(whole, loaded)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_recurrent_policy_trains(optimizer) -> None:
    def run():
        return trainer(
            policy=LSTMPolicy(79, 3, 8, seed=0),
            steps=40,
            score_options={"optimizer": optimizer, "epochs": 1},
            ppo=PPOConfig(epochs=2, minibatches=2),
        ).learn(total_updates=2)

    same(run(), run())


def test_the_adam_score_begins_when_the_learner_has_moments() -> None:
    run = trainer("pace", score_options={"optimizer": "adam", "epochs": 2, "chunk": 4})
    assert run.iterate()["phase"] == "warm-up"
    assert (run.updates, len(run.sampler)) == (1, 0)
    assert run.iterate()["phase"] == "new"
    assert len(run.sampler) == 8
    assert (run.sampler.scores > 0).all()


def test_a_step_of_ppo_improves_its_objective() -> None:
    policy = MLPPolicy(79, 3, (16,), seed=0)
    env = MazeVecEnv(16, 32)
    generator = torch.Generator().manual_seed(0)
    batch = collect(policy, env, env.assign(generators.trivial_levels(16, seed=0)), 64, generator)
    before = policy.evaluate(batch.obs, batch.actions)[2]
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    update(policy, optimizer, batch, PPOConfig(), generator)
    logp, _, after = policy.evaluate(batch.obs, batch.actions)
    weight = torch.from_numpy(batch.advantages)
    assert ((logp - batch.logp) * weight).mean() > 0
    returns = torch.from_numpy(batch.advantages + batch.values)
    assert (after - returns).square().mean() < (before - returns).square().mean()


def test_callbacks_see_every_iteration_and_may_stop() -> None:
    seen = []
    run = trainer()
    run.callbacks = (lambda t, row: seen.append(row["iteration"]) or len(seen) < 4,)
    run.learn(total_steps=10**9)
    assert seen == [1, 2, 3, 4]


def test_steps_of_trying_candidates_are_counted() -> None:
    run = trainer("sfl")
    run.iterate()
    assert run.steps > 8 * 32 + 16 * 5


def test_a_rollout_without_an_end_warns_once() -> None:
    run = PACETrainer(
        MLPPolicy(79, 3, (8,)),
        MazeVecEnv(4, 1000),
        lambda rng, n: generators.walled_in_levels(n, seed=rng),
        PACEConfig(steps=8, capacity=8),
    )
    with pytest.warns(UserWarning, match="no episode ended") as caught:
        run.learn(total_steps=200)
    assert len(caught) == 1
    assert len(run.sampler) == 8


def test_wrong_use_is_refused(tmp_path) -> None:
    policy, env = MLPPolicy(79, 3, (8,)), MazeVecEnv(8, 32)
    with pytest.raises(ValueError, match="capacity is 4"):
        PACETrainer(policy, env, generators.noisy, PACEConfig(capacity=4))
    with pytest.raises(ValueError, match="mutator is missing"):
        PACETrainer(policy, env, generators.noisy, config_for("accel"))
    with pytest.raises(TypeError, match="no method act"):
        PACETrainer(torch.nn.Linear(2, 2), env, generators.noisy)
    with pytest.raises(TypeError, match="no method assign"):
        PACETrainer(policy, object(), generators.noisy)
    with pytest.raises(ValueError, match="method is 'best'"):
        config_for("best")
    with pytest.raises(ValueError, match="score is 'x'"):
        PACEConfig(score="x")
    with pytest.raises(ValueError, match="total_steps and total_updates are missing"):
        trainer().learn()
    with pytest.raises(ValueError, match="generator gave 3 levels"):
        PACETrainer(policy, env, lambda rng, n: generators.noisy(rng, 3)).iterate()
    (tmp_path / "x.npz").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="is no checkpoint"):
        PACETrainer.load(tmp_path / "x.npz", policy, env, generators.noisy)
    trainer().save(tmp_path / "y.npz")
    with pytest.raises(ValueError, match="policy does not fit"):
        PACETrainer.load(tmp_path / "y.npz", policy, env, generators.noisy)


def test_paired_pays_its_adversary_the_regret() -> None:
    first, second = (
        PAIREDTrainer(MLPPolicy(79, 3, (16,), seed=0), 6, 24, walls=10, seed=3).learn(600)
        for _ in range(2)
    )
    assert first.regrets == second.regrets
    # Two students, six mazes, 24 steps: 288 a batch, so three batches.
    assert first.steps == 3 * 288
    levels = first.build()[4]
    assert len(levels) == 6
    assert (levels.walls.sum((1, 2)) <= 10).all()
    # Return of the antagonist's best episode less the protagonist's mean: from -1 to 1.
    assert all(-1 <= regret <= 1 for regret in first.regrets)


@pytest.mark.slow
def test_reward_noise_drowns_values_and_not_parameter_changes() -> None:
    # Published at this size: replay mass on the noise at most .1 for PACE, at least .8 for others.
    for seed in range(2):
        for method in ("pace", "robust-plr-pvl", "robust-plr-maxmc"):
            run = PACETrainer(
                MLPPolicy(79, 3, seed=seed),
                MazeVecEnv(32, 128),
                generators.noisy,
                config_for(method),
                seed=seed,
            ).learn(total_steps=400_000)
            mass = run.sampler.weights()[run.sampler.levels.noise > 1].sum()
            assert mass <= 0.1 if method == "pace" else mass >= 0.8, (method, seed, mass)


@pytest.mark.slow
def test_replay_by_parameter_change_finds_the_real_levels() -> None:
    # Known at 8e5 steps: PACE .34, a random score .17, domain randomisation .06, on levels whose
    # unsolvable share is drawn in a way that is not written down. With ours domain randomisation
    # does better. Four seeds tell PACE from both; the experiment has 20, the order of the other two
    # and the factors.
    tests = generators.real_levels(300, seed=20_260)
    success = {}
    for method in ("pace-none", "random", "dr"):
        rates = []
        for seed in range(4):
            run = PACETrainer(
                MLPPolicy(79, 3, seed=seed),
                MazeVecEnv(32, 128),
                generators.frontier,
                config_for(method),
                seed=seed,
            ).learn(total_steps=800_000)
            rates.append(evaluate(run.policy, MazeVecEnv(300, 250), tests, 2, seed=seed).rates)
        success[method] = float(np.mean(rates))
    assert success["pace-none"] > success["random"], success
    assert success["pace-none"] > 1.3 * success["dr"], success
