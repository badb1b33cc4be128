"""From an arm's running sums to intervals, effects and p-values; shared by every way in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from stats_design.delayed_outcomes.boundary import Floats, boundary, sequential_p
from stats_design.delayed_outcomes.design import Design
from stats_design.delayed_outcomes.exact import exact_p, lower_bound, upper_bound

SMALL = 100


class SmallSampleWarning(UserWarning):
    """The asymptotic sequence was used on few events, where it can miss more often than alpha."""


@dataclass(frozen=True)
class Sums:
    """Sums over the units entered and the events recorded by each of T times.

    Attributes
    ----------
    entered
        Units entered, shape (T,).
    events
        Events recorded in each arm, shape (K, T).
    estimate
        $\\sum y_i / \\pi_i$ of each arm, shape (K, T).
    clock
        $\\sum (1 - \\pi_i) y_i^2 / \\pi_i^2$ of each arm, shape (K, T).
    growth
        Sums of `exact.log_growth` of each arm, shape (K, T, 2J); J is 0 for the asymptotic method.
    """

    entered: Floats
    events: Floats
    estimate: Floats
    clock: Floats
    growth: Floats


def arm_bounds(design: Design, sums: Sums) -> tuple[Floats, Floats]:
    """Lower and upper bounds on each arm's total reward, each of shape (K, T).

    They hold for all arms at all times together with probability at least `1 - design.alpha`.
    """
    lower, upper = np.empty(sums.estimate.shape), np.empty(sums.estimate.shape)
    for arm, (level, lambdas) in enumerate(zip(design.levels, design.lambdas(), strict=True)):
        if design.method == "exact":
            half = len(lambdas) // 2
            growth = sums.growth[arm]
            lower[arm] = lower_bound(growth[:, :half], lambdas[:half], level / 2)
            upper[arm] = upper_bound(growth[:, half:], lambdas[half:], level / 2)
        else:
            width = boundary(sums.clock[arm], level, design.eta2[arm])
            lower[arm], upper[arm] = sums.estimate[arm] - width, sums.estimate[arm] + width
    if design.value_range is not None:
        low, high = design.value_range
        # Units without an event count as 0, so the range of a unit's reward includes 0.
        lower = np.maximum(lower, min(low, 0.0) * sums.entered)
        upper = np.minimum(upper, max(high, 0.0) * sums.entered)
    return lower, upper


def contrast_p(design: Design, sums: Sums, pair: tuple[int, int]) -> Floats:
    """P-values of "no effect" between a treated and a control arm, shape (T,)."""
    treated, control = pair
    shares = (design.shares[control], design.shares[treated])
    if design.method == "exact":
        grids = design.lambdas()
        return exact_p(
            sums.growth[control], sums.growth[treated], grids[control], grids[treated], shares
        )
    return sequential_p(
        sums.estimate[treated] - sums.estimate[control],
        sums.clock[control],
        sums.clock[treated],
        (design.eta2[control], design.eta2[treated]),
        shares,
    )


def table(design: Design, sums: Sums, times: object) -> pd.DataFrame:
    """The intervals at all times as a table, one row a time.

    Columns: `time`, `n_entered`; for each arm `events_`, `estimate_`, `lower_`, `upper_` and its
    label; for each contrast `effect`, `effect_lower`, `effect_upper`, `p_value` and `p_global` (the
    least p-value of the rows so far, a test of "there never was an effect"); for two arms also
    `lift_lower` and `lift_upper`, missing where the control's lower bound is not positive.
    """
    lower, upper = arm_bounds(design, sums)
    columns: dict[str, object] = {"time": times, "n_entered": sums.entered.astype(np.int64)}
    for arm, label in enumerate(design.arms):
        columns[f"events_{label}"] = sums.events[arm].astype(np.int64)
        columns[f"estimate_{label}"] = sums.estimate[arm]
        columns[f"lower_{label}"] = lower[arm]
        columns[f"upper_{label}"] = upper[arm]
    for pair in design.pairs:
        treated, control = pair
        name = design.effect_name(pair)
        p = contrast_p(design, sums, pair)
        tail = name.removeprefix("effect")
        columns[name] = sums.estimate[treated] - sums.estimate[control]
        columns[f"{name}_lower"] = lower[treated] - upper[control]
        columns[f"{name}_upper"] = upper[treated] - lower[control]
        columns[f"p_value{tail}"] = p
        columns[f"p_global{tail}"] = np.minimum.accumulate(p) if len(p) else p
    if len(design.arms) == 2:
        positive = lower[0] > 0
        with np.errstate(divide="ignore", invalid="ignore"):
            # A negative numerator is furthest from zero over the smallest denominator.
            low = np.minimum(lower[1] / upper[0], lower[1] / lower[0])
            high = np.maximum(upper[1] / lower[0], upper[1] / upper[0])
        columns["lift_lower"] = np.where(positive, low - 1, np.nan)
        columns["lift_upper"] = np.where(positive, high - 1, np.nan)
    return pd.DataFrame(columns)


def small_sample_note(design: Design, events: Floats) -> str | None:
    """A sentence for the reader if the asymptotic method rests on few events."""
    if design.method == "exact" or np.min(events) >= SMALL:
        return None
    return (
        f"an arm has {int(np.min(events))} events: below {SMALL} the asymptotic interval can miss "
        "more often than alpha; give value_range for the exact method"
    )
