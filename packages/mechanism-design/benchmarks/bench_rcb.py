"""Rounds a second, online and simulated, on the warfarin stream or one like it, one thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

CASES = {
    "online-mabwiser": {
        "text": "recommend and update a patient at a time, 3 arms, 21 features",
        "peer": "mabwiser LinUCB",
        "requirements": "mabwiser.txt",
        "target": 20.0,
        "repeats": 3,
    },
    "online-contextualbandits": {
        "text": "the same",
        "peer": "contextualbandits LinUCB",
        "requirements": "contextualbandits.txt",
        "target": None,
        "repeats": 3,
    },
    "online-vowpalwabbit": {
        "text": "the same",
        "peer": "vowpalwabbit SquareCB",
        "requirements": "vowpalwabbit.txt",
        "target": 1.0,
        "repeats": 3,
    },
    "error-vowpalwabbit": {
        "text": "share of wrong doses after the cold start, mean over 5 orders",
        "peer": "vowpalwabbit SquareCB",
        "requirements": "vowpalwabbit.txt",
        "target": 1.0,
        "repeats": 1,
        "quantity": "error_after_cold_start",
    },
    "simulation-mabwiser": {
        "text": "simulated rounds, 3 arms, 4 features, a round",
        "peer": "mabwiser LinUCB",
        "requirements": "mabwiser.txt",
        "target": 1000.0,
        "repeats": 3,
    },
}
ROUNDS, ORDERS, COLD = 3000, 5, 263


def inputs(path: Path) -> None:
    """Contexts and rewards of all arms; the peers see the reward of the arm that they play."""
    import numpy as np

    from mechanism_design.rcb import warfarin_task

    rng = np.random.default_rng(0)
    if path.name.startswith("simulation"):
        X = np.column_stack([np.ones(ROUNDS), rng.uniform(-1, 1, (ROUNDS, 3))]) / 2
        beta = np.array([[0.8, 0, 0, 0], [0.4, 0, 0, 0], [0, 0, 0, 0]])
        beta = beta + 0.5 * rng.standard_normal((3, 4))
        rewards = X @ beta.T + 0.1 * rng.standard_normal((ROUNDS, 3))
    else:
        X, y, _ = warfarin_task()
        rewards = (y[:, None] == np.arange(3)).astype(np.float64)
    np.savez(path / "stream.npz", X=X, rewards=rewards)


def ours(path: Path) -> dict[str, float]:
    import numpy as np

    from mechanism_design.rcb import RCB, GaussianPrior, LinearEnv, simulate

    X, _ = load(path)
    d = X.shape[1]
    if path.name.startswith("simulation"):
        mean = np.zeros((3, d))
        mean[:, 0] = (0.8, 0.4, 0.0)
        prior = GaussianPrior(mean, 0.25)

        def contexts(n: int, rng: np.random.Generator) -> np.ndarray:
            return np.column_stack([np.ones(n), rng.uniform(-1, 1, (n, 3))]) / 2

        policy = RCB(prior, N=50, L=5, sigma=0.1, phi0=1 / 12)
        env = LinearEnv(prior, contexts, 0.1)
        rounds = 1_000_000
        started = time.perf_counter()
        simulate(policy, env, rounds, seed=0)
        spent = time.perf_counter() - started
        return {"seconds": spent / rounds, "rounds_per_second": rounds / spent}
    mean = np.zeros((3, d))
    mean[:, 0] = (0.27, 0.60, 0.13)

    def make(
        seed: int,
    ) -> tuple[Callable[[np.ndarray], int], Callable[[np.ndarray, int, float], None]]:
        bandit = RCB(
            GaussianPrior(mean, 0.05), N=30, L=4, sigma=0.3, phi0=1.0, train_on="all", seed=seed
        )
        return (
            lambda x: int(bandit.recommend(x)[0]),
            lambda x, arm, reward: bandit.update(x, arm, reward),
        )

    return online(path, make)


def peer(path: Path) -> dict[str, float]:
    name = path.name.split("-", 1)[1]
    return online(
        path,
        {
            "mabwiser": mabwiser,
            "contextualbandits": contextualbandits,
            "vowpalwabbit": vowpalwabbit,
        }[name],
    )


def mabwiser(seed: int):
    from mabwiser.mab import MAB, LearningPolicy

    mab = MAB(arms=[0, 1, 2], learning_policy=LearningPolicy.LinUCB(alpha=0.5), seed=seed)
    started = False

    def recommend(x):
        return mab.predict(x[None]) if started else seed % 3

    def update(x, arm, reward):
        nonlocal started
        (mab.partial_fit if started else mab.fit)([arm], [reward], x[None])
        started = True

    return recommend, update


def contextualbandits(seed: int):
    import numpy as np
    from contextualbandits.online import LinUCB

    policy = LinUCB(nchoices=3, alpha=0.5, random_state=seed + 1)

    def recommend(x):
        return int(policy.predict(x[None])[0]) if policy.is_fitted else seed % 3

    def update(x, arm, reward):
        policy.partial_fit(x[None], np.array([arm]), np.array([reward]))

    return recommend, update


def vowpalwabbit(seed: int):
    import random

    import vowpalwabbit

    workspace = vowpalwabbit.Workspace(
        f"--cb_explore 3 --squarecb --gamma_scale 10 --quiet --random_seed {seed + 1}"
    )
    rng = random.Random(seed)
    last = [0.0, 0.0, 0.0]

    def recommend(x):
        nonlocal last
        text = "| " + " ".join(f"{i}:{v:.6g}" for i, v in enumerate(x.tolist()))
        last = workspace.predict(text)
        draw, arm = rng.random(), 0
        while arm < 2 and draw > last[arm]:
            draw -= last[arm]
            arm += 1
        return arm

    def update(x, arm, reward):
        features = " ".join(f"{i}:{v:.6g}" for i, v in enumerate(x.tolist()))
        workspace.learn(f"{arm + 1}:{-reward}:{last[arm]} | {features}")

    return recommend, update


def online(path: Path, make) -> dict[str, float]:
    """Play a stream round by round; the time is of `recommend` and `update` alone."""
    import numpy as np

    X, rewards = load(path)
    wrong, spent, count = [], 0.0, 0
    whole = path.name.startswith("error")
    for order_seed in range(ORDERS if whole else 1):
        order = np.random.default_rng(order_seed).permutation(len(X))
        order = order if whole else order[:ROUNDS]
        recommend, update = make(order_seed)
        recommend(X[order[0]])
        recommend, update = make(order_seed)
        right = []
        for i in order:
            x, row = X[i], rewards[i]
            started = time.perf_counter()
            arm = recommend(x)
            spent += time.perf_counter() - started
            reward = float(row[arm])
            started = time.perf_counter()
            update(x, arm, reward)
            spent += time.perf_counter() - started
            right.append(reward)
        count += len(order)
        wrong.append(1 - float(np.mean(right[COLD:])))
    return {
        "seconds": spent / count,
        "rounds_per_second": count / spent,
        "error_after_cold_start": float(np.mean(wrong)),
    }


def load(path: Path):
    import numpy as np

    with np.load(path / "stream.npz") as file:
        return file["X"], file["rewards"]
