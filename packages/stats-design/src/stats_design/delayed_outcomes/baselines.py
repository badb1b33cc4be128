"""What people do instead; for comparison, and to show what it costs.

None of these but `variance_bound` and `matured_window` is valid at every look.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.special import ndtri

from stats_design.delayed_outcomes.batch import Units, look_times, read_units
from stats_design.delayed_outcomes.boundary import Floats, boundary, check_alpha
from stats_design.delayed_outcomes.design import arm_propensities
from stats_design.delayed_outcomes.synchronous import synchronous_confseq
from stats_design.delayed_outcomes.timeline import Timeline


def z_width(square_sum: ArrayLike, alpha: float) -> Floats:
    r"""Half-width of a fixed-look interval on the variance bound $\sum y^2/\pi^2$ of both arms."""
    return np.asarray(-ndtri(check_alpha(alpha) / 2) * np.sqrt(square_sum))


def _effect_and_squares(
    units: pd.DataFrame, times: Any, propensity: float | None
) -> tuple[Units, Timeline, Floats, Floats, Floats]:
    arrays, timeline = read_units(units, (0, 1), arm_propensities(propensity, (0, 1)))
    looks = look_times(timeline, times, None, arrays.entry, arrays.event)
    end = looks[-1] if len(looks) else -np.inf
    happened = np.isfinite(arrays.event) & (arrays.event <= end)
    look = np.searchsorted(looks, arrays.event[happened], side="left")
    weighted = arrays.value[happened] / arrays.chance[happened]
    signed = np.where(arrays.arm[happened] == 1, weighted, -weighted)
    effect: Floats = np.bincount(look, signed, minlength=len(looks)).astype(np.float64)
    squares: Floats = np.bincount(look, weighted**2, minlength=len(looks)).astype(np.float64)
    return arrays, timeline, looks, np.cumsum(effect), np.cumsum(squares)


def _frame(timeline: Timeline, looks: Floats, effect: Floats, width: Floats) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "time": timeline.back(looks),
            "effect": effect,
            "effect_lower": effect - width,
            "effect_upper": effect + width,
        }
    )


def naive_z(
    units: pd.DataFrame, times: Any = None, *, propensity: float | None = None, alpha: float = 0.05
) -> pd.DataFrame:
    """The fixed-look interval, read at every look: too narrow by far when looked at repeatedly."""
    _, timeline, looks, effect, squares = _effect_and_squares(units, times, propensity)
    return _frame(timeline, looks, effect, z_width(squares, alpha))


def bonferroni(
    units: pd.DataFrame, times: Any, *, propensity: float | None = None, alpha: float = 0.05
) -> pd.DataFrame:
    """The fixed-look interval at `alpha` over the number of looks, planned beforehand."""
    _, timeline, looks, effect, squares = _effect_and_squares(units, times, propensity)
    return _frame(timeline, looks, effect, z_width(squares, alpha / max(len(looks), 1)))


def variance_bound(
    units: pd.DataFrame,
    times: Any = None,
    *,
    eta2: float,
    propensity: float | None = None,
    alpha: float = 0.05,
) -> pd.DataFrame:
    """One normal mixture on the variance bound of the difference.

    Valid only where both potential times of a unit coincide; wider than the two-arm sequence when
    the treatment changes how much has happened by now.
    """
    _, timeline, looks, effect, squares = _effect_and_squares(units, times, propensity)
    return _frame(timeline, looks, effect, boundary(squares, alpha, eta2))


def matured_window(
    units: pd.DataFrame,
    window: float,
    times: Any = None,
    *,
    target_clock: float,
    propensity: float | None = None,
    alpha: float = 0.05,
) -> pd.DataFrame:
    """Only units that entered at least `window` ago, and only their outcomes within it.

    Valid, but silent until the first window closes, and about the effect per window rather than
    the total so far. Numeric times.
    """
    entry = units["entry_time"].to_numpy(dtype=np.float64)
    event = units["outcome_time"].to_numpy(dtype=np.float64)
    within = event <= entry + window
    matured = units.assign(
        due_time=entry + window, outcome_value=np.where(within, units["outcome_value"], 0.0)
    )
    return synchronous_confseq(
        matured, times, propensity=propensity, alpha=alpha, target_clock=target_clock
    )


def observed_msprt(
    units: pd.DataFrame,
    times: Any = None,
    *,
    eta2: float,
    propensity: float | None = None,
    alpha: float = 0.05,
) -> pd.DataFrame:
    """A mixture sequence on the difference of the arms' mean rewards so far, times the entered.

    It treats what each unit has brought so far as its final, independent and identically
    distributed outcome; under delay it is neither, so nothing guarantees its level here.
    """
    arrays, timeline, looks, _, _ = _effect_and_squares(units, times, propensity)
    effect, clock = np.zeros(len(looks)), np.zeros(len(looks))
    entered = np.searchsorted(np.sort(arrays.entry), looks, side="right")
    for w, sign in ((0, -1.0), (1, 1.0)):
        mine = arrays.arm == w
        n = np.searchsorted(np.sort(arrays.entry[mine]), looks, side="right")
        event, value = arrays.event[mine], arrays.value[mine]
        order = np.argsort(event, kind="stable")
        index = np.searchsorted(event[order], looks, side="right")
        sums = np.concatenate([[0.0], np.cumsum(value[order])])[index]
        squares = np.concatenate([[0.0], np.cumsum(value[order] ** 2)])[index]
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = np.where(n > 0, sums / n, 0.0)
            variance = np.where(n > 0, (squares / n - mean**2) / n, 0.0)
        effect += sign * entered * mean
        clock += entered**2 * np.maximum(variance, 0.0)
    return _frame(timeline, looks, effect, boundary(clock, alpha, eta2))
