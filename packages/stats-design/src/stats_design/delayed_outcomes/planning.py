"""How long until an effect shows: the detection time of a planned run, by simulation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from stats_design.delayed_outcomes.boundary import Floats, boundary, check_alpha, eta2_for

Delay = Callable[[Floats], Floats] | Sequence[float] | Any


def _quantile(delay: Delay, name: str) -> Callable[[Floats], Floats]:
    if hasattr(delay, "ppf"):
        return lambda u: np.asarray(delay.ppf(u), dtype=np.float64)
    if callable(delay):
        return lambda u: np.asarray(delay(u), dtype=np.float64)
    try:
        sample = np.asarray(delay, dtype=np.float64)
    except (ValueError, TypeError):
        sample = np.empty(0)
    if sample.ndim != 1 or not len(sample) or not np.all(np.isfinite(sample) & (sample >= 0)):
        raise ValueError(f"{name} is {delay!r}; allowed: delays >= 0, or a distribution with ppf")
    return lambda u: np.asarray(np.quantile(sample, u))


def _check_pair(value: Any, name: str) -> tuple[float, float]:
    try:
        first, second = (float(v) for v in value)
    except (ValueError, TypeError):
        raise ValueError(
            f"{name} is {value!r}; allowed: two numbers, of control and treatment"
        ) from None
    if not (np.isfinite(first) and np.isfinite(second)):
        raise ValueError(f"{name} is {value!r}; allowed: finite numbers")
    return first, second


def plan(
    expected_entries: int,
    *,
    enrolment: float,
    horizon: float,
    event_probability: tuple[float, float],
    delay: tuple[Delay, Delay] | Delay,
    value_mean: tuple[float, float] = (1.0, 1.0),
    value_rms: tuple[float, float] | None = None,
    propensity: float = 0.5,
    alpha: float = 0.05,
    power: float = 0.8,
    looks: int = 100,
    reps: int = 500,
    seed: int | np.random.Generator = 0,
) -> pd.DataFrame:
    """When the sequence of the effect first excludes zero, and how wide it is, before a run.

    Parameters
    ----------
    expected_entries
        Units that will enter, evenly over `enrolment`.
    enrolment, horizon
        Length of the entry period, and of the run; the unit of time is the caller's.
    event_probability
        Probability that a unit's outcome ever happens, in control and treatment.
    delay
        From entry to outcome, given that it happens, for both arms or a pair: observed delays, a
        frozen scipy distribution, or a quantile function.
    value_mean, value_rms
        Mean and root mean square of an outcome's value in each arm; the root mean square is the
        mean by default (constant values). Values are drawn from gamma distributions.
    propensity, alpha
        As in `make_design`.
    power
        The detection time at this probability is reported.
    looks
        Evenly spaced looks up to the horizon.
    reps
        Simulated runs.
    seed
        Seed or generator.

    Returns
    -------
    pandas.DataFrame
        One row a look: `time`, `effect` (mean true effect by then), `half_width` (mean), `detected`
        (share of runs that have excluded zero by then) and `reached` (`detected >= power`).

    Examples
    --------
    >>> from scipy.stats import expon
    >>> table = plan(2000, enrolment=30, horizon=60, event_probability=(0.2, 0.4),
    ...              delay=expon(scale=5), reps=50)
    >>> bool(table.reached.iloc[-1]), bool(table.detected.is_monotonic_increasing)
    (True, True)
    """
    check_alpha(alpha)
    check_alpha(propensity, "propensity")
    check_alpha(power, "power")
    for name, count in (("expected_entries", expected_entries), ("looks", looks), ("reps", reps)):
        if not isinstance(count, (int, np.integer)) or count < 1:
            raise ValueError(f"{name} is {count!r}; allowed: an integer of at least 1")
    for name, length in (("enrolment", enrolment), ("horizon", horizon)):
        if not isinstance(length, (int, float, np.number)) or not 0 < length < np.inf:
            raise ValueError(f"{name} is {length!r}; allowed: a positive number")
    shares = _check_pair(event_probability, "event_probability")
    if not all(0 <= q <= 1 for q in shares) or not any(shares):
        raise ValueError(
            f"event_probability is {event_probability!r}; allowed: in [0, 1], not all 0"
        )
    mean = _check_pair(value_mean, "value_mean")
    rms = mean if value_rms is None else _check_pair(value_rms, "value_rms")
    if not all(0 < m <= s * (1 + 1e-12) for m, s in zip(mean, rms, strict=True)):
        raise ValueError(f"value_rms is {rms!r}; allowed: at least value_mean = {value_mean!r} > 0")
    pair = delay if isinstance(delay, tuple) and len(delay) == 2 else (delay, delay)
    quantiles = [_quantile(d, "delay") for d in pair]
    for quantile in quantiles:
        some = quantile(np.linspace(0.005, 0.995, 100))
        if some.shape != (100,) or not np.all(some >= 0):
            raise ValueError("delay has negative or missing quantiles; allowed: delays >= 0")
    rng = np.random.default_rng(seed)
    times = np.linspace(0, horizon, looks + 1)[1:]
    n = expected_entries
    chances = (1 - propensity, propensity)
    mixing = []
    for w in (0, 1):
        expected = max(n * shares[w], 1.0)
        target = expected * (1 - chances[w]) / chances[w] * rms[w] ** 2
        mixing.append(float(eta2_for(target, alpha / 2)))
    excluded = np.zeros((reps, looks), dtype=bool)
    truths, widths = np.zeros(looks), np.zeros(looks)
    for r in range(reps):
        entry = rng.uniform(0, enrolment, n)
        u, happens, treated = rng.random(n), rng.random(n), rng.random(n) < propensity
        effect, width, truth = np.zeros(looks), np.zeros(looks), np.zeros(looks)
        for w, sign in ((0, -1.0), (1, 1.0)):
            event = entry + quantiles[w](u)
            value = _values(rng, mean[w], rms[w], n)
            counted = (happens < shares[w]) & (event <= horizon)
            truth += sign * _sums(times, event[counted], value[counted])
            mine = counted & (treated == bool(w))
            weighted = value[mine] / chances[w]
            effect += sign * _sums(times, event[mine], weighted)
            clock = (1 - chances[w]) * _sums(times, event[mine], weighted**2)
            width += boundary(clock, alpha / 2, mixing[w])
        excluded[r] = np.maximum.accumulate(np.abs(effect) > width)
        truths += truth / reps
        widths += width / reps
    detected = excluded.mean(axis=0)
    return pd.DataFrame(
        {
            "time": times,
            "effect": truths,
            "half_width": widths,
            "detected": detected,
            "reached": detected >= power,
        }
    )


def _sums(times: Floats, event: Floats, terms: Floats) -> Floats:
    look = np.searchsorted(times, event, side="left")
    return np.cumsum(np.bincount(look, terms, minlength=len(times) + 1)[: len(times)])


def _values(rng: np.random.Generator, mean: float, rms: float, n: int) -> Floats:
    variance = rms**2 - mean**2
    if variance <= 1e-12 * mean**2:
        return np.full(n, mean)
    return rng.gamma(mean**2 / variance, variance / mean, n)
