"""Ours against the ways of computing the same that are in use."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

CASES = {
    "p-values": {
        "text": "always-valid p-values of 12,000 rows",
        "peer": "80 bisections a row over arrays, as in the authors' function",
        "requirements": None,
        "target": 1000.0,
        "repeats": 2,
    },
    "batch": {
        "text": "1,000,000 units with an event, 1,000 looks, asymptotic intervals",
        "peer": "pandas: sort, cumulative sums, merge_asof",
        "requirements": None,
        "target": None,
        "repeats": 5,
    },
    "batch-all-looks": {
        "text": "200,000 units with an event, a look at every event, asymptotic intervals",
        "peer": "pandas: sort, cumulative sums, merge_asof",
        "requirements": None,
        "target": None,
        "repeats": 5,
    },
    "stream": {
        "text": "1,000,000 events one call at a time into entered units, asymptotic",
        "peer": "bare Python: a dictionary and sums, no checks, no history",
        "requirements": None,
        "target": None,
        "repeats": 3,
    },
    "dashboard": {
        "text": "100,000 units streamed with 200 snapshots on the way, asymptotic",
        "peer": "pandas: all rows so far summed anew at every snapshot",
        "requirements": None,
        "target": None,
        "repeats": 3,
    },
}
_SIZES = {"batch": 1_000_000, "batch-all-looks": 200_000, "stream": 1_000_000, "dashboard": 100_000}
ALPHA, ETA2 = 0.05, 1e-5


def inputs(path: Path) -> None:
    rng = np.random.default_rng(0)
    if path.name == "p-values":
        clock0, clock1 = rng.uniform(1, 1e5, 12_000), rng.uniform(1, 1e5, 12_000)
        effect = rng.normal(0, 4, 12_000) * np.sqrt(clock0 + clock1)
        np.savez(path / "rows.npz", effect=effect, clock0=clock0, clock1=clock1)
        return
    n = _SIZES[path.name]
    entry = np.sort(rng.uniform(0, 30, n))
    event = entry + rng.exponential(5, n)
    np.savez(
        path / "units.npz",
        entry=entry,
        arm=rng.integers(0, 2, n),
        event=event,
        value=rng.lognormal(0, 0.5, n),
        looks=np.unique(event) if path.name == "batch-all-looks" else np.linspace(0.06, 60, 1000),
    )


def _load(path: Path) -> dict[str, np.ndarray]:
    with np.load(next(path.glob("*.npz")), allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def ours(path: Path) -> dict[str, float]:
    import pandas as pd

    from stats_design.delayed_outcomes import (
        DelayedOutcomeMonitor,
        delayed_confseq,
        sequential_p,
    )

    data = _load(path)
    if path.name == "p-values":
        start = time.perf_counter()
        p = sequential_p(data["effect"], data["clock0"], data["clock1"], ETA2)
        return {"seconds": time.perf_counter() - start, "sum of p": float(p.sum())}
    if path.name.startswith("batch"):
        units = pd.DataFrame(
            {
                "entry_time": data["entry"],
                "treatment": data["arm"],
                "outcome_time": data["event"],
                "outcome_value": data["value"],
            }
        )
        start = time.perf_counter()
        frame = delayed_confseq(units, data["looks"], propensity=0.5, alpha=ALPHA, eta2=ETA2)
        return {
            "seconds": time.perf_counter() - start,
            "upper": float(frame.effect_upper.iloc[-1]),
        }
    monitor = DelayedOutcomeMonitor((0, 1), propensity=0.5, alpha=ALPHA, eta2=ETA2)
    n = len(data["entry"])
    if path.name == "stream":
        monitor.update(pd.DataFrame({"unit": np.arange(n), "time": 0.0, "arm": data["arm"]}))
        order = np.argsort(data["event"])
        records = list(
            zip(
                order.tolist(),
                data["event"][order].tolist(),
                data["value"][order].tolist(),
                strict=True,
            )
        )
        event = monitor.event
        start = time.perf_counter()
        for unit, at, value in records:
            event(unit, at, value)
        seconds = time.perf_counter() - start
        return {
            "seconds": seconds,
            "events per second": n / seconds,
            "upper": monitor.snapshot().effect_upper,
        }
    entries = pd.DataFrame({"unit": np.arange(n), "time": data["entry"], "arm": data["arm"]})
    outcomes = pd.DataFrame(
        {"unit": np.arange(n), "time": data["event"], "value": data["value"]}
    ).sort_values("time")
    looks = np.linspace(0.3, 60, 200)
    parts = [
        (
            entries[slice(*np.searchsorted(entries.time, (low, high), side="right"))],
            outcomes[slice(*np.searchsorted(outcomes.time, (low, high), side="right"))],
        )
        for low, high in zip(np.r_[-1.0, looks[:-1]], looks, strict=True)
    ]
    start = time.perf_counter()
    for look, part in zip(looks, parts, strict=True):
        monitor.update(*part)
        snapshot = monitor.snapshot(float(look))
    return {"seconds": time.perf_counter() - start, "upper": snapshot.effect_upper}


def _boundary(clock: np.ndarray | float) -> np.ndarray:
    grown = np.asarray(clock) * ETA2 + 1
    return np.sqrt(grown / ETA2 * np.log(grown / (ALPHA / 2) ** 2))


def peer(path: Path) -> dict[str, float]:
    import pandas as pd

    data = _load(path)
    if path.name == "p-values":
        from stats_design.delayed_outcomes._reference import p_value_in_steps

        rows = list(zip(*(data[k].tolist() for k in ("effect", "clock0", "clock1")), strict=True))
        start = time.perf_counter()
        total = sum(p_value_in_steps(e, v0, v1, ETA2) for e, v0, v1 in rows)
        return {"seconds": time.perf_counter() - start, "sum of p": total}
    units = pd.DataFrame({k: data[k] for k in ("entry", "arm", "event", "value")})
    if path.name.startswith("batch"):
        start = time.perf_counter()
        ordered = units.sort_values("event")
        at = pd.DataFrame({"event": data["looks"]})
        effect, width = np.zeros(len(at)), np.zeros(len(at))
        for arm, sign in ((0, -1.0), (1, 1.0)):
            mine = ordered[ordered["arm"] == arm]
            weighted = mine["value"] / 0.5
            sums = pd.DataFrame(
                {
                    "event": mine["event"],
                    "estimate": weighted.cumsum(),
                    "clock": (0.5 * weighted**2).cumsum(),
                }
            )
            found = pd.merge_asof(at, sums, on="event").fillna(0.0)
            effect += sign * found["estimate"].to_numpy()
            width += _boundary(found["clock"].to_numpy())
        return {"seconds": time.perf_counter() - start, "upper": float((effect + width)[-1])}
    if path.name == "stream":
        order = np.argsort(data["event"])
        arm_of = dict(enumerate(data["arm"].tolist()))
        records = list(zip(order.tolist(), data["value"][order].tolist(), strict=True))
        estimate, clock = [0.0, 0.0], [0.0, 0.0]
        start = time.perf_counter()
        for unit, value in records:
            arm = arm_of[unit]
            weighted = value / 0.5
            estimate[arm] += weighted
            clock[arm] += 0.5 * weighted * weighted
        seconds = time.perf_counter() - start
        upper = estimate[1] - estimate[0] + float(_boundary(np.array(clock)).sum())
        return {"seconds": seconds, "events per second": len(records) / seconds, "upper": upper}
    start = time.perf_counter()
    for look in np.linspace(0.3, 60, 200):
        now = units[units["event"] <= look]
        weighted = now["value"] / 0.5
        estimate = weighted.groupby(now["arm"]).sum().reindex([0, 1], fill_value=0.0)
        clock = (0.5 * weighted**2).groupby(now["arm"]).sum().reindex([0, 1], fill_value=0.0)
        upper = estimate[1] - estimate[0] + float(_boundary(clock.to_numpy()).sum())
    return {"seconds": time.perf_counter() - start, "upper": float(upper)}
