r"""From the trials of an experiment to an honest verdict on each claim.

Trials are paired by seed. A verdict compares a 95% interval with the claim's threshold: `holds`
when the whole interval lies on the claimed side, `refuted` when it lies on the other,
`inconclusive` otherwise, and never from the point estimate. So a false `holds` has a probability of
at most 2.5% wherever the interval keeps its level:

- a difference, or a log-ratio, between paired arms, and the mean of one arm: Student's t over
  seeds, :math:`\bar d \pm t_{0.975, n-1}\, s / \sqrt n`, exact for normal values;
- a rate of one arm: Clopper-Pearson over the pooled `(successes, n)`, exact whatever the rate, for
  independent draws.

A verdict needs `MIN_SEEDS` seeds. With two or three the t interval is formally right for normal
values and useless for all others: a lucky pair of equal differences makes it narrow. Measured at 5
seeds without any effect, the rate of false `holds` is 2.5% for normal and 3.3% for uniform
differences, but 11% where they are skewed against the claim (exponential, sign turned). A claim on
such a metric says `skewed=True`: then the sign-flip permutation test with the mean as its statistic
must agree. It enumerates all :math:`2^n` sign patterns of the differences to the threshold and is
exact if they are symmetric about it. Its smallest one-sided level is :math:`2^{-n}`, so it needs 6
seeds to reach 2.5%. It does not repair the t interval where the asymmetry itself is the effect.

Seeds that all agree to the last bit leave nothing to estimate a spread from; then, too, 6 seeds are
asked for, as a sign test would.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

from .experiment import Claim, Results

LEVEL = 0.95
MIN_SEEDS = 5
MIN_SEEDS_SIGN = 6

VerdictName = Literal["holds", "refuted", "inconclusive"]


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95% interval from `n` replications; the ends are None if unknown."""

    estimate: float | None
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True)
class Verdict:
    """The verdict on one claim and what it was read from.

    `dropped` counts the seeds of which one half failed or was not measured.
    """

    claim: Claim
    verdict: VerdictName
    interval: Interval
    dropped: int = 0
    reason: str = ""


def mean_interval(values: NDArray[np.float64]) -> Interval:
    """Student's t interval of the mean of `values`, shape (n,), all finite."""
    n = len(values)
    if n == 0:
        return Interval(None, None, None, 0)
    mean = float(np.mean(values))
    if n == 1:
        return Interval(mean, None, None, 1)
    quantile = float(special.stdtrit(n - 1, (1 + LEVEL) / 2))
    half = quantile * float(np.std(values, ddof=1)) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def rate_interval(successes: int, n: int, seeds: int) -> Interval:
    """Clopper-Pearson interval of a rate; `seeds` is reported as the number of replications."""
    if n == 0:
        return Interval(None, None, None, seeds)
    tail = (1 - LEVEL) / 2
    low = special.betaincinv(successes, n - successes + 1, tail) if successes else 0.0
    high = special.betaincinv(successes + 1, n - successes, 1 - tail) if successes < n else 1.0
    return Interval(successes / n, float(low), float(high), seeds)


def summarise(results: Results, arm: str, metric: str) -> Interval:
    """The estimate and interval of one metric in one arm, as the report's tables show it."""
    pooled = _pooled_rate(results, arm, metric)
    if pooled is not None:
        return rate_interval(*pooled)
    return mean_interval(np.array(list(results.values(arm, metric).values())))


def judge(claim: Claim, results: Results) -> Verdict:
    """The verdict on `claim` from the finished and the failed trials in `results`."""
    if claim.than is None:
        return _judge_bound(claim, results)
    return _judge_comparison(claim, results, claim.than)


def _judge_bound(claim: Claim, results: Results) -> Verdict:
    values = results.values(claim.arm, claim.metric)
    dropped = len(_seeds(results, claim.arm)) - len(values)
    array = np.array(list(values.values()))
    upper = claim.at_most is not None
    if claim.exact:
        satisfied = array <= claim.threshold if upper else array >= claim.threshold
        return _judge_exact(claim, array, satisfied, dropped)
    interval = summarise(results, claim.arm, claim.metric)
    is_rate = _pooled_rate(results, claim.arm, claim.metric) is not None
    few = _too_few(array, claim, constant_is_suspect=not is_rate)
    if few:
        return Verdict(claim, "inconclusive", interval, dropped, few)
    assert interval.low is not None
    assert interval.high is not None
    if upper:
        holds, refuted = interval.high <= claim.threshold, interval.low > claim.threshold
    else:
        holds, refuted = interval.low >= claim.threshold, interval.high < claim.threshold
    if claim.skewed and not is_rate and (holds or refuted):
        sign = -1.0 if upper else 1.0
        return _with_sign_flips(claim, sign * (array - claim.threshold), interval, holds, dropped)
    return Verdict(claim, _name(holds, refuted), interval, dropped)


def _judge_comparison(claim: Claim, results: Results, than: str) -> Verdict:
    arm, other = results.values(claim.arm, claim.metric), results.values(than, claim.metric)
    paired = sorted(set(arm) & set(other))
    dropped = len(_seeds(results, claim.arm) | _seeds(results, than)) - len(paired)
    better = np.array([arm[seed] for seed in paired])
    worse = np.array([other[seed] for seed in paired])
    if claim.direction == "lower":
        better, worse = worse, better
    ratio = claim.scale == "ratio"
    if ratio and not bool(np.all((better > 0) & (worse > 0))):
        reason = "a ratio needs positive values in both arms"
        return Verdict(claim, "inconclusive", Interval(None, None, None, len(paired)), 0, reason)
    effect = np.log(better) - np.log(worse) if ratio else better - worse
    threshold = math.log(claim.threshold) if ratio else claim.threshold
    if claim.exact:
        shown = np.exp(effect) if ratio else effect
        return _judge_exact(claim, shown, effect > threshold, dropped)
    raw = mean_interval(effect)
    interval = _exponential(raw) if ratio else raw
    few = _too_few(effect, claim, constant_is_suspect=True)
    if few:
        return Verdict(claim, "inconclusive", interval, dropped, few)
    assert raw.low is not None
    assert raw.high is not None
    holds, refuted = raw.low > threshold, raw.high < threshold
    if claim.skewed and (holds or refuted):
        return _with_sign_flips(claim, effect - threshold, interval, holds, dropped)
    return Verdict(claim, _name(holds, refuted), interval, dropped)


def _judge_exact(
    claim: Claim, values: NDArray[np.float64], satisfied: NDArray[np.bool_], dropped: int
) -> Verdict:
    if len(values) == 0:
        reason = "no finished trial reports the metric"
        return Verdict(claim, "inconclusive", Interval(None, None, None, 0), dropped, reason)
    interval = Interval(
        float(np.mean(values)), float(np.min(values)), float(np.max(values)), len(values)
    )
    if not satisfied.all():
        return Verdict(claim, "refuted", interval, dropped)
    if dropped:
        return Verdict(claim, "inconclusive", interval, dropped, "a trial failed")
    return Verdict(claim, "holds", interval, dropped)


def _with_sign_flips(
    claim: Claim, shifted: NDArray[np.float64], interval: Interval, holds: bool, dropped: int
) -> Verdict:
    """Let the t interval's verdict stand only if the exact sign-flip test agrees."""
    p = sign_flip_p(shifted if holds else -shifted)
    if p > (1 - LEVEL) / 2:
        reason = f"the sign-flip test does not agree (one-sided p = {p:.3f})"
        return Verdict(claim, "inconclusive", interval, dropped, reason)
    return Verdict(claim, _name(holds, not holds), interval, dropped)


def sign_flip_p(differences: NDArray[np.float64]) -> float:
    """One-sided p-value that the differences, shape (n,), are symmetric about 0.

    Enumerates all sign patterns up to n = 16 and draws 65,535 beyond that.

    Examples
    --------
    >>> sign_flip_p(np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))  # only one pattern of 64 is as high
    0.015625
    """
    from scipy.stats import permutation_test  # takes a second to import, and few claims ask

    if not differences.any():
        return 1.0

    def mean(sample: NDArray[np.float64], axis: int = -1) -> NDArray[np.float64]:
        return np.asarray(np.mean(sample, axis=axis))

    test = permutation_test(
        (differences,),
        mean,
        permutation_type="samples",
        alternative="greater",
        n_resamples=2**16 if len(differences) <= 16 else 2**16 - 1,
        vectorized=True,
        batch=2**12,
        rng=np.random.default_rng(0),
    )
    return float(test.pvalue)


def _too_few(values: NDArray[np.float64], claim: Claim, *, constant_is_suspect: bool) -> str:
    """Why these values cannot carry a verdict, or an empty string."""
    n = len(values)
    if n < MIN_SEEDS:
        return f"{n} of the {MIN_SEEDS} seeds that a verdict needs"
    if n >= MIN_SEEDS_SIGN:
        return ""
    if claim.skewed:
        return f"{n} of the {MIN_SEEDS_SIGN} seeds that the sign-flip test needs"
    if constant_is_suspect and np.ptp(values) == 0:
        return f"equal at all {n} seeds, where {MIN_SEEDS_SIGN} are needed"
    return ""


def _pooled_rate(results: Results, arm: str, metric: str) -> tuple[int, int, int] | None:
    """Successes, n and seeds of a metric that every outcome of the arm reports as a rate."""
    found = [o.metrics[metric] for o in results.of(arm).values() if metric in o.metrics]
    pairs = [value for value in found if isinstance(value, tuple)]
    if not pairs or len(pairs) != len(found):
        return None
    return sum(k for k, _ in pairs), sum(n for _, n in pairs), len(pairs)


def _seeds(results: Results, arm: str) -> set[int]:
    return {seed for a, seed in [*results.outcomes, *results.failed] if a == arm}


def _exponential(interval: Interval) -> Interval:
    def exp(value: float | None) -> float | None:
        return None if value is None else math.exp(min(value, 700.0))

    return Interval(exp(interval.estimate), exp(interval.low), exp(interval.high), interval.n)


def _name(holds: bool, refuted: bool) -> VerdictName:
    return "holds" if holds else "refuted" if refuted else "inconclusive"
