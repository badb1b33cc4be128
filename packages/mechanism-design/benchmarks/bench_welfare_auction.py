"""Exact prices of the hinge auction against bisection with LinearSVC refits."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np

LAM = 0.02

CASES = {
    "hinge-20k": {
        "text": "fit and exact prices, hinge, m = 20,000, d = 17, lam = 0.02, compiled",
        "peer": "scikit-learn LinearSVC, bisection",
        "requirements": None,
        "target": 100.0,
        "repeats": 3,
    },
    "hinge-20k-numpy": {
        "text": "the same without numba",
        "peer": "scikit-learn LinearSVC, bisection",
        "requirements": None,
        "target": 25.0,
        "repeats": 3,
    },
    "hinge-100k-growth": {
        "text": "seconds at m = 20,000 (as peer) over seconds at m = 100,000: above 0.5 is less "
        "than twice the time for five times the users",
        "peer": "ours at m = 20,000",
        "requirements": None,
        "target": 0.5,
        "repeats": 5,
    },
}


def inputs(path: Path) -> None:
    for m in (20_000, 100_000) if path.name == "hinge-100k-growth" else (20_000,):
        rng = np.random.default_rng(1)
        y = np.where(np.arange(m) < m // 2, -1.0, 1.0)
        X = rng.normal(0, 1, (m, 16))
        X[:, 0] += 0.25 * y
        np.savez(path / f"{m}.npz", X=np.column_stack([X, np.ones(m)]), y=y, b=rng.gamma(1, 1, m))


def _auction(path: Path, m: int, compiled: bool | None) -> dict[str, float]:
    from mechanism_design.welfare_auction.path import path_prices
    from mechanism_design.welfare_auction.screening import pivotal_candidates
    from mechanism_design.welfare_auction.solvers import row_norms, solve

    with np.load(path / f"{m}.npz", allow_pickle=False) as data:
        X, y, bids = data["X"], data["y"], data["b"]
    scale = 1 / (2 * LAM * m)
    start = time.perf_counter()
    rows = X * y[:, None]
    norms = row_norms(rows)
    fit = solve("hinge", rows, bids, scale)
    users = np.flatnonzero(pivotal_candidates("hinge", fit.margins, bids, norms, scale))
    prices, solved = path_prices(rows, norms, bids, scale, fit, users, compiled=compiled)
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "revenue": float(prices.sum()),
        "candidates": float(len(users)),
        "payers": float((prices > 0).sum()),
        "unsolved": float((~solved).sum()),
    }


def ours(path: Path) -> dict[str, float]:
    if path.name == "hinge-100k-growth":
        return _auction(path, 100_000, True)
    return _auction(path, 20_000, path.name == "hinge-20k")


def peer(path: Path) -> dict[str, float]:
    if path.name == "hinge-100k-growth":
        return _auction(path, 20_000, True)
    return _bisection(path)


def _bisection(path: Path) -> dict[str, float]:
    """One fit, a stability band, and about 20 refits for each user whom bid 0 would lose."""
    from sklearn.svm import LinearSVC

    with np.load(path / "20000.npz", allow_pickle=False) as data:
        X, y, bids = data["X"], data["y"], data["b"]
    m = len(y)
    scale = 1 / (2 * LAM * m)
    model = LinearSVC(
        loss="hinge", C=scale, fit_intercept=False, tol=1e-3, max_iter=100_000, random_state=0
    )
    start = time.perf_counter()

    def margins(weights: np.ndarray) -> np.ndarray:
        return y * (X @ model.fit(X, y, sample_weight=weights).coef_[0])

    first = margins(bids)
    band = scale * bids * (X**2).sum(axis=1)
    users = np.flatnonzero((first > 0) & (first <= band))
    fits, prices = 1, []
    for user in users:
        changed = bids.copy()
        changed[user] = 0.0
        fits += 1
        if margins(changed)[user] > 0:
            prices.append(0.0)
            continue
        low, high = 0.0, float(bids[user])
        while high - low > 1e-6:
            changed[user] = 0.5 * (low + high)
            fits += 1
            if margins(changed)[user] > 0:
                high = changed[user]
            else:
                low = changed[user]
        prices.append(high)
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "revenue": float(np.sum(prices)),
        "candidates": float(len(users)),
        "payers": float((np.array(prices) > 0).sum()),
        "fits": float(fits),
    }


if __name__ == "__main__":
    import tempfile

    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / case
            place.mkdir()
            inputs(place)
            ours(place)
            print(case, json.dumps({"ours": ours(place), "peer": peer(place)}))
