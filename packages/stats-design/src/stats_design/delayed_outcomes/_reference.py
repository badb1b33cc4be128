"""The definitions written out: loops, bisection, enumeration; for tests and benchmarks only."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from stats_design.delayed_outcomes.boundary import boundary as checked_boundary


def arm_sums(
    event: Sequence[float],
    arm: Sequence[int],
    chance: Sequence[float],
    value: Sequence[float],
    which: int,
    t: float,
) -> tuple[int, float, float]:
    """Events, estimate and clock of one arm at time t; `chance` is the unit's own arm's."""
    events, estimate, clock = 0, 0.0, 0.0
    for i in range(len(event)):
        if arm[i] == which and event[i] <= t:
            events += 1
            estimate += value[i] / chance[i]
            clock += (1 - chance[i]) * value[i] ** 2 / chance[i] ** 2
    return events, estimate, clock


def boundary(clock: float, alpha: float, eta2: float) -> float:
    """The normal-mixture boundary."""
    grown = clock * eta2 + 1
    return math.sqrt(grown / eta2 * math.log(grown / alpha**2))


def p_value(effect: float, clock0: float, clock1: float, eta2: float) -> float:
    """The level at which the interval touches zero, by 80 bisections on the log scale."""

    def excluded(log_p: float) -> bool:
        # Written with log p, so that levels below the smallest float do not underflow.
        width = 0.0
        for clock in (clock0, clock1):
            grown = clock * eta2 + 1
            width += math.sqrt(grown / eta2 * (math.log(grown) - 2 * (log_p - math.log(2))))
        return abs(effect) > width

    if not excluded(0.0):
        return 1.0
    low, high = -1e6, 0.0
    for _ in range(80):
        middle = (low + high) / 2
        if excluded(middle):
            high = middle
        else:
            low = middle
    return math.exp((low + high) / 2)


def p_value_in_steps(effect: float, clock0: float, clock1: float, eta2: float) -> float:
    """The same by 80 halvings of the level itself, each over a checked array boundary.

    The work that published code does for every row; levels below about 1e-24 are not resolved.
    """

    def width(level: float) -> float:
        return float(checked_boundary(clock0, level / 2, eta2)) + float(
            checked_boundary(clock1, level / 2, eta2)
        )

    if abs(effect) <= width(1.0):
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(80):
        middle = (low + high) / 2
        if width(middle) > abs(effect):
            low = middle
        else:
            high = middle
    return high


def log_growth(events: Sequence[tuple[float, float]], total: float, rate: float) -> float:
    """Logarithm of the exact martingale after events (value, chance) at the true total."""
    return sum(math.log1p(math.expm1(rate * y) / p) for y, p in events) - rate * total


def exact_bound(
    events: Sequence[tuple[float, float]], rates: Sequence[float], tail: float
) -> float:
    """Where the equal-weight mixture over `rates` equals 1/tail, by bisection in the total."""

    def mixture(total: float) -> float:
        logs = [log_growth(events, total, rate) for rate in rates]
        top = max(logs)
        return top + math.log(sum(math.exp(v - top) for v in logs) / len(logs))

    target = -math.log(tail)
    sign = 1 if rates[0] > 0 else -1
    low, high = -1.0, 1.0
    while mixture(sign * low) < target:
        low *= 2
    while mixture(sign * high) > target:
        high = 2 * high
    for _ in range(200):
        middle = (low + high) / 2
        if mixture(sign * middle) > target:
            low = middle
        else:
            high = middle
    return sign * (low + high) / 2


def assignments(chance: Sequence[float]) -> Iterator[tuple[float, tuple[int, ...]]]:
    """All assignments of two arms with their probabilities; `chance` is that of arm 1."""
    for assigned in itertools.product((0, 1), repeat=len(chance)):
        yield math.prod(p if w else 1 - p for p, w in zip(chance, assigned, strict=True)), assigned


def rows_with_p_values(
    entry: Sequence[float],
    event: Sequence[float],
    arm: Sequence[int],
    chance: Sequence[float],
    value: Sequence[float],
    alpha: float,
    eta2: float,
) -> np.ndarray:
    """One row an entry time: effect, half-width and p-value by bisection, row after row."""
    order = np.argsort(event, kind="stable")
    rows = np.empty((len(entry), 3))
    estimate, clock = [0.0, 0.0], [0.0, 0.0]
    done = 0
    for k, t in enumerate(np.sort(entry)):
        while done < len(order) and event[order[done]] <= t:
            i = order[done]
            estimate[arm[i]] += value[i] / chance[i]
            clock[arm[i]] += (1 - chance[i]) * value[i] ** 2 / chance[i] ** 2
            done += 1
        effect = estimate[1] - estimate[0]
        width = boundary(clock[0], alpha / 2, eta2) + boundary(clock[1], alpha / 2, eta2)
        rows[k] = effect, width, p_value(effect, clock[0], clock[1], eta2)
    return rows
