"""The policy against its definition, its schedule, its learning and its disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from mechanism_design.rcb import (
    RCB,
    GaussianPrior,
    LinearEnv,
    ReplayClassificationEnv,
    bic_audit,
    simulate,
    to_obp_feedback,
)
from mechanism_design.rcb import _reference as reference
from mechanism_design.rcb.bandit import KINDS

PRIOR = GaussianPrior([[0.8, 0, 0, 0], [0.4, 0, 0, 0], [0, 0, 0, 0]], 0.25)


def contexts(n: int, rng: np.random.Generator) -> np.ndarray:
    return np.column_stack([np.ones(n), rng.uniform(-1, 1, (n, 3))]) / 2


def stream(T: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = contexts(T, rng)
    beta = PRIOR.sample(1, rng)[0]
    return X, rng.random((T, 2)), X @ beta.T + 0.1 * rng.standard_normal((T, 3))


@pytest.mark.parametrize(("N", "L"), [(1, 1.0), (7, 3.0), (20, 4.0)])
@pytest.mark.parametrize("seed", [0, 1])
def test_it_is_the_algorithm_of_the_paper(N: int, L: float, seed: int) -> None:
    X, coins, rewards = stream(900, seed)
    bandit = RCB(PRIOR, N=N, L=L, sigma=0.1, phi0=1 / 12)
    at = 0

    def reward(rows: np.ndarray, arms: np.ndarray) -> np.ndarray:
        nonlocal at
        part = rewards[at : at + len(arms)]
        at += len(arms)
        return part[np.arange(len(arms)), arms]

    served = bandit.serve(X, coins, reward)
    arms, kinds = reference.run(PRIOR.mean, PRIOR.cov, X, coins, rewards, N, L, 0.1, 1 / 12)
    np.testing.assert_array_equal(served.arms, arms)
    assert [KINDS[k] for k in served.kinds] == kinds
    assert set(kinds) >= {"prior", "ipgs"}


class Coins:
    """A generator that hands out given coins."""

    def __init__(self, coins: np.ndarray) -> None:
        self.coins, self.at = coins, 0

    def random(self, size: int | tuple[int, int]) -> np.ndarray:
        n = 1 if isinstance(size, int) else size[0]
        part = self.coins[self.at : self.at + n]
        self.at += n
        return part[0] if isinstance(size, int) else part


def test_one_by_one_online_is_the_same_stream() -> None:
    X, coins, rewards = stream(400, 2)
    bandit = RCB(PRIOR, N=5, L=3, sigma=0.1, phi0=1 / 12)
    bandit.rng = Coins(coins)  # type: ignore[assignment]
    arms, kinds = [], []
    for x, all_rewards in zip(X, rewards, strict=True):
        arm = bandit.recommend(x)
        kinds += bandit.last_kind_
        arms.append(int(arm[0]))
        assert bandit.last_probabilities_.sum() == pytest.approx(1)
        bandit.update(x, arm, all_rewards[arm])
    expected, expected_kinds = reference.run(
        PRIOR.mean, PRIOR.cov, X, coins, rewards, 5, 3.0, 0.1, 1 / 12
    )
    assert arms == expected
    assert kinds == expected_kinds


def test_blocks_within_an_epoch_give_the_same_arms() -> None:
    X, _, rewards = stream(2000, 3)
    alone, blocks = (RCB(PRIOR, N=5, L=3, sigma=0.1, phi0=1 / 12, seed=4) for _ in range(2))
    for bandit in (alone, blocks):
        while bandit.stage_ != "exploitation":
            i = int(bandit.N_.sum())
            arm = bandit.recommend(X[i])
            bandit.update(X[i], arm, rewards[i, arm])
    first = [int(alone.recommend(x)[0]) for x in X[:15]]
    assert blocks.recommend(X[:15]).tolist() == first


@pytest.mark.slow
def test_the_length_of_the_cold_start() -> None:
    prior = GaussianPrior([[0.3], [0.2], [0.1]], 0.01)
    lengths = []
    rng = np.random.default_rng(5)
    for _ in range(2000):
        bandit = RCB(prior, N=50, L=4, sigma=1.0, seed=rng)
        served = bandit.serve(
            np.ones((1200, 1)), rng.random((1200, 2)), lambda rows, arms: np.zeros(len(arms))
        )
        lengths.append(int((served.kinds != KINDS.index("ipgs")).sum()))
        assert bandit.N_.tolist() == [50, 50, 50]
    # N + (K-1) N L and its standard deviation sqrt((K-1) N L (L-1)).
    assert np.mean(lengths) == pytest.approx(450, abs=3)
    assert np.std(lengths) == pytest.approx(np.sqrt(2 * 50 * 4 * 3), abs=2)


def test_organic_samples_change_nothing() -> None:
    X, coins, rewards = stream(600, 6)
    fitted = []
    for lure in (0.0, 1000.0):
        bandit = RCB(PRIOR, N=10, L=4, sigma=0.1, phi0=1 / 12)
        bandit.rng = Coins(coins)  # type: ignore[assignment]
        for x, all_rewards in zip(X, rewards, strict=True):
            arm = bandit.recommend(x)
            extra = lure if bandit.last_kind_ == ["organic"] else 0.0
            bandit.update(x, arm, all_rewards[arm] + extra)
            if bandit.epoch_ is not None:
                break
        fitted.append(bandit.coef_)
    np.testing.assert_array_equal(fitted[0], fitted[1])


def test_who_does_not_comply_teaches_and_does_not_count() -> None:
    bandit = RCB(PRIOR, N=3, L=2, sigma=0.1)
    x = np.array([0.5, 0, 0, 0])
    assert bandit.recommend(x).tolist() == [0]
    bandit.update(x, [2], [5.0])
    assert bandit.N_.tolist() == [0, 0, 0]
    before = bandit._cold_moments[2].copy()
    assert before[0] == pytest.approx(2.5)


def test_delays_and_batches_in_any_order() -> None:
    X, _, rewards = stream(60, 7)
    bandit = RCB(PRIOR, N=10, L=3, sigma=0.1, seed=0)
    first = bandit.recommend(X[:20], ids=[f"u{i}" for i in range(20)])
    second = bandit.recommend(X[20:40], ids=[f"u{i}" for i in range(20, 40)])
    bandit.update(
        X[20:40], second, rewards[np.arange(20, 40), second], [f"u{i}" for i in range(20, 40)]
    )
    bandit.update(X[:20], first, rewards[np.arange(20), first], [f"u{i}" for i in range(20)])
    # All 40 were recommended by the prior; an arm stores N of them at the most.
    assert bandit.N_.tolist() == [10, 0, 0]


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda b, x: b.update(x, [0], [1.0], ids=["nobody"]), "nobody"),
        (lambda b, x: b.update(x, [9], [1.0]), "arms"),
        (lambda b, x: b.update(x, [0], [np.nan]), "rewards"),
        (lambda b, x: b.update(x, [0.5], [1.0]), "arms"),
        (lambda b, x: b.update(x[:2], [0], [1.0]), "X"),
        (lambda b, x: b.update(x, [0, 1], [1.0]), "entries"),
        (lambda b, x: b.recommend(np.append(x, 1.0)), "X"),
        (lambda b, x: b.recommend([np.nan, 0, 0, 0]), "X"),
        (lambda b, x: b.recommend(x, ids=["a", "b"]), "ids"),
    ],
)
def test_bad_calls_are_refused_and_change_nothing(call: object, named: str) -> None:
    bandit = RCB(PRIOR, N=3, L=2, sigma=0.1, seed=0)
    x = np.array([0.5, 0, 0, 0])
    bandit.recommend(x)
    state = (bandit.N_.tolist(), dict(bandit._pending), bandit.rng.bit_generator.state)
    with pytest.raises(ValueError, match=named):
        call(bandit, x)  # type: ignore[operator]
    assert (bandit.N_.tolist(), dict(bandit._pending), bandit.rng.bit_generator.state) == state
    bandit.update(x, [0], [1.0])
    with pytest.raises(ValueError, match="unknown or was updated"):
        bandit.update(x, [0], [1.0])
    assert bandit.N_.tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"N": 0}, "N"),
        ({"L": 0.5}, "L"),
        ({"eps": -1.0}, "eps"),
        ({"sigma": 0.0}, "sigma"),
        ({"train_on": "some"}, "train_on"),
        ({"promotion": "never"}, "promotion"),
        ({"oracle": object()}, "oracle"),
        ({"oracle": lambda arm: None}, "oracle"),
        ({"mspe": "guess"}, "mspe"),
        ({"mspe": "holdout"}, "mspe"),
        ({"N": "auto"}, "contexts"),
    ],
)
def test_settings_that_cannot_be_are_refused(options: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        RCB(PRIOR, **{"N": 3, "L": 2.0, **options})  # type: ignore[arg-type]


def test_any_regressor_is_the_oracle() -> None:
    X, coins, rewards = stream(300, 8)
    unit = GaussianPrior(np.zeros((3, 4)), 1.0)

    def reward_of(bandit: RCB) -> RCB:
        at = 0

        def reward(rows: np.ndarray, arms: np.ndarray) -> np.ndarray:
            nonlocal at
            part = rewards[at : at + len(arms)]
            at += len(arms)
            return part[np.arange(len(arms)), arms]

        bandit.serve(X, coins, reward)
        return bandit

    # A unit prior with unit noise is ridge regression with penalty 1.
    ridge = reward_of(RCB(unit, N=10, L=3, sigma=1.0, oracle=Ridge(1.0, fit_intercept=False)))
    closed = reward_of(RCB(unit, N=10, L=3, sigma=1.0))
    assert closed.epoch_ == ridge.epoch_
    np.testing.assert_allclose(ridge.coef_, closed.coef_, atol=1e-10)

    penalties = (0.1, 1.0, 10.0)
    made = reward_of(RCB(unit, N=10, L=3, sigma=1.0, oracle=lambda arm: Ridge(penalties[arm])))
    assert [model.alpha for model in made._models] == list(penalties)

    class Breaks(Ridge):
        def fit(self, X: np.ndarray, y: np.ndarray) -> Ridge:
            raise ArithmeticError("no")

    with pytest.raises(RuntimeError, match="arm 0"):
        reward_of(RCB(unit, N=10, L=3, sigma=1.0, oracle=Breaks()))


@pytest.mark.parametrize("at", [15, 60, 200])
@pytest.mark.parametrize("oracle", [None, Ridge(0.1)])
def test_a_saved_policy_goes_on_as_if_never_stopped(
    tmp_path: Path, at: int, oracle: Ridge | None
) -> None:
    X, _, rewards = stream(400, 9)

    def step(bandit: RCB, i: int) -> int:
        arm = bandit.recommend(X[i])
        bandit.update(X[i], arm, rewards[i, arm])
        return int(arm[0])

    whole = RCB(PRIOR, N=8, L=3, sigma=0.1, oracle=oracle, seed=1)
    expected = [step(whole, i) for i in range(400)]
    bandit = RCB(PRIOR, N=8, L=3, sigma=0.1, oracle=oracle, seed=1)
    found = [step(bandit, i) for i in range(at)]
    bandit.save(tmp_path / "policy")
    bandit.save(tmp_path / "policy")
    assert len(list((tmp_path / "policy").iterdir())) == 2
    again = RCB.load(tmp_path / "policy", oracle=oracle)
    assert found + [step(again, i) for i in range(at, 400)] == expected
    if oracle is not None and again._models:
        again.save(tmp_path / "policy")
        with pytest.raises(ValueError, match="oracle"):
            RCB.load(tmp_path / "policy")


def test_what_is_not_a_saved_policy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no saved policy"):
        RCB.load(tmp_path)
    (tmp_path / "state.json").write_text(json.dumps({"version": 99}))
    with pytest.raises(ValueError, match="version 99"):
        RCB.load(tmp_path)


SAVING = """
import sys
import numpy as np
from mechanism_design.rcb import RCB, GaussianPrior
bandit = RCB(GaussianPrior([[0.5] * 40, [0.0] * 40], 1.0), N=3, L=2, sigma=1.0)
print("ready", flush=True)
while True:
    bandit.save(sys.argv[1])
"""


def test_a_kill_while_saving_leaves_a_whole_policy(tmp_path: Path) -> None:
    for moment in range(4):
        running = subprocess.Popen(
            [sys.executable, "-c", SAVING, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        while not (tmp_path / "state.json").exists():
            time.sleep(0.001)
        time.sleep(0.003 * moment)
        os.kill(running.pid, signal.SIGKILL)
        running.wait()
        assert RCB.load(tmp_path).prior.dim == 40


def test_simulation_is_reproducible_and_complete() -> None:
    env = LinearEnv(PRIOR, contexts, 0.1)
    policy = RCB(PRIOR, N=5, L=3, sigma=0.1)
    a = simulate(policy, env, 500, n_worlds=3, seed=1)
    b = simulate(policy, env, 500, n_worlds=3, seed=1)
    assert a.equals(b)
    assert len(a) == 1500
    assert (a["regret"] >= 0).all()
    feedback = to_obp_feedback(np.zeros((500, 4)), a[a["world"] == 0], 3)
    assert feedback["n_rounds"] == 500
    assert feedback["pscore"].min() > 0


def test_users_alone_regret_in_proportion_to_time() -> None:
    env = LinearEnv(PRIOR, contexts, 0.1)
    rng = np.random.default_rng(0)
    X = contexts(40_000, rng)
    totals = []
    for _ in range(40):
        env.reset(rng)
        regret = env.regret(X, (X @ PRIOR.mean.T).argmax(1))
        totals.append((regret[:20_000].sum(), regret.sum()))
    half, whole = np.sum(totals, axis=0)
    assert whole / half == pytest.approx(2, abs=0.05)


def test_a_replay_rewards_the_label_and_nothing_else() -> None:
    y = np.arange(30) % 3
    env = ReplayClassificationEnv(np.ones((30, 1)), y)
    table = simulate(RCB(GaussianPrior([[0.3], [0.2], [0.1]], 1.0), N=2, L=2, sigma=0.5), env, 30)
    assert set(table["reward"]) <= {0.0, 1.0}
    np.testing.assert_array_equal(table["regret"], 1 - table["reward"])
    with pytest.raises(ValueError, match="30 rows"):
        simulate(RCB(GaussianPrior([[0.3], [0.2], [0.1]], 1.0), N=2, L=2), env, 31)
    with pytest.raises(ValueError, match="labels"):
        ReplayClassificationEnv(np.ones((2, 1)), [0, 5], n_arms=3)


def test_adaptive_promotion_is_compatible_at_every_context() -> None:
    from mechanism_design.rcb import minimal_promotion

    rng = np.random.default_rng(1)
    pool = contexts(400, rng)
    bandit = RCB(
        PRIOR, contexts=pool, N=20, L=2.0, eps=0.05, sigma=0.1, promotion="adaptive", seed=0
    )
    X, _, rewards = stream(2000, 10)
    i = 0
    while bandit.stage_ == "prior":
        arm = bandit.recommend(X[i])
        bandit.update(X[i], arm, rewards[i, arm])
        i += 1
    sampled = int(np.flatnonzero(bandit.saturated)[0])
    grams = {sampled: bandit._cold_grams[sampled]}
    promoted, L = minimal_promotion(pool, PRIOR, grams, 0.1, 0.05)
    p = bandit.predict_proba(pool)
    organic = p[np.arange(len(pool)), promoted]
    assert (organic >= 1 / L - 1e-12).all()
    np.testing.assert_allclose(p.sum(1), 1)


def test_the_floor_of_gamma_keeps_exploitation_compatible() -> None:
    mean = np.zeros((10, 4))
    mean[:, 0] = -0.1 * np.arange(10)
    prior = GaussianPrior(mean, 0.25)
    X = contexts(12, np.random.default_rng(3))
    options = {"contexts": X, "N": 5, "L": 2, "sigma": 0.1, "phi0": 1 / 12, "eps": 0.0}
    published = bic_audit(RCB(prior, **options), prior, X, seed=0)
    assert published.worst < -0.1
    assert bic_audit(RCB(prior, gamma_floor="bic", **options), prior, X, seed=0).worst > -0.01


def test_an_arm_that_cannot_lead_makes_the_floor_infinite_and_is_not_explored() -> None:
    prior = GaussianPrior([[1.0], [0.0]], np.array([[[1e-12]], [[1e-12]]]))
    bandit = RCB(prior, contexts=[[1.0]], N=1, L=1, sigma=0.1, gamma_floor="bic", eps=0.0, seed=0)
    ones = np.ones((40, 1))
    with np.errstate(all="raise"):
        bandit.serve(ones, np.full((40, 2), 0.5), lambda rows, arms: np.zeros(len(arms)))
        assert bandit.gamma_ == np.inf
        assert bandit.recommend([1.0]).tolist() == [0]
        np.testing.assert_array_equal(bandit.last_probabilities_, [[1.0, 0.0]])
        np.testing.assert_array_equal(bandit.predict_proba([1.0]), [[1.0, 0.0]])


def test_the_exact_rule_renews_the_rarity_from_the_samples() -> None:
    rng = np.random.default_rng(2)
    pool = contexts(300, rng)
    bandit = RCB(PRIOR, contexts=pool, N=15, rule="exact", eps=0.05, sigma=0.1, seed=0)
    X, _, rewards = stream(20_000, 11)
    seen = set()
    for x, row in zip(X, rewards, strict=True):
        arm = bandit.recommend(x)
        bandit.update(x, arm, row[arm])
        seen.add(round(bandit.L_, 6))
        if bandit.stage_ == "exploitation":
            break
    assert len(seen) >= 3


def test_a_larger_budget_shortens_the_cold_start_and_regret_grows_as_a_root() -> None:
    from mechanism_design.rcb import published_promotion, published_samples

    env = LinearEnv(PRIOR, contexts, 0.1)
    lengths = []
    for eps in (0.0, 0.1, 0.3):
        N = published_samples(0.1, 4, 3, 1 / 12, 0.3, eps)
        L = published_promotion(0.3, 0.3, eps)
        policy = RCB(PRIOR, N=N, L=L, sigma=0.1, phi0=1 / 12)
        table = simulate(policy, env, 200_000, n_worlds=2, seed=1)
        cold = table["kind"] != "ipgs"
        lengths.append(cold.sum() / 2)
        # N + N L (K - 1) expected rounds.
        assert lengths[-1] == pytest.approx(N * (1 + 2 * L), rel=0.05)
    assert lengths[0] > lengths[1] > lengths[2]
    policy = RCB(PRIOR, N=50, L=5, sigma=0.1, phi0=1 / 12)
    table = simulate(policy, env, 200_000, n_worlds=6, seed=2)
    regret = table["regret"].where(table["kind"] == "ipgs", 0.0).groupby(table["world"]).cumsum()
    at = {t: regret[table["t"] == t].mean() for t in (49_999, 199_999)}
    assert 0.40 <= np.log2(at[199_999] / at[49_999]) / 2 <= 0.70
