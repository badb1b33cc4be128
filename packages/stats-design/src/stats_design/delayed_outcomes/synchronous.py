r"""Outcomes read at times fixed beforehand: one sequence for the difference, with predictions.

If a unit's outcome is read at a predetermined `due_time` in whichever arm it is (a week after
entry, say), the error of the difference is itself a martingale. No union of two arms is needed, and
predictions $m_i(w)$ made from data before the due time may be subtracted:

.. math::

    \hat\Delta_t = \sum_{i:\, due_i \le t} m_i(1) - m_i(0)
        + \frac{w_i (y_i - m_i(1))}{\pi_i} - \frac{(1 - w_i)(y_i - m_i(0))}{1 - \pi_i}

with the clock $\sum w_i (y_i - m_i(1))^2/\pi_i^2 + (1 - w_i)(y_i - m_i(0))^2/(1 - \pi_i)^2$.

Without a due time this is not available: a term switched on at the unit's event time needs the
event times of units in the other arm, which nobody observes, and one switched on at entry is no
martingale.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from stats_design.delayed_outcomes.batch import (
    arm_indices,
    check_columns,
    check_values,
    look_times,
    number_column,
)
from stats_design.delayed_outcomes.boundary import Floats, boundary, check_alpha, eta2_for
from stats_design.delayed_outcomes.design import Arm
from stats_design.delayed_outcomes.timeline import Timeline


def synchronous_confseq(
    units: pd.DataFrame,
    times: Any = None,
    *,
    every: Any = None,
    arms: Sequence[Arm] = (0, 1),
    propensity: float | None = None,
    alpha: float = 0.05,
    target_clock: float | None = None,
    eta2: float | None = None,
    augmentation: Mapping[Any, str] | None = None,
) -> pd.DataFrame:
    r"""Confidence sequence of the effect on outcomes read at predetermined times.

    Parameters
    ----------
    units
        One row a unit: `due_time`, `treatment`, `outcome_value` (read at the due time, 0 if nothing
        happened; may be missing while the due time lies after the last look) and, unless given
        here, `propensity` of the second arm.
    times, every
        Times to look at; default: every due time with a known outcome.
    arms, propensity, alpha
        As in `delayed_confseq`; two arms.
    target_clock, eta2
        Exactly one: clock at which the interval should be narrowest, or the mixing variance. The
        clock of residuals: about `n * (rms_1^2 / pi + rms_0^2 / (1 - pi))`.
    augmentation
        From each arm to a column of predictions of the outcome under that arm, made from data
        before the unit's due time; see `forward_cross_fit`.

    Returns
    -------
    pandas.DataFrame
        `time`, `n_due`, `effect`, `effect_lower`, `effect_upper`, `p_value`, `clock`.

    Examples
    --------
    >>> units = pd.DataFrame({"due_time": [1.0, 2.0], "treatment": [1, 0],
    ...                       "outcome_value": [3.0, 1.0]})
    >>> synchronous_confseq(units, propensity=0.5, eta2=1.0)[["effect", "clock"]].values.tolist()
    [[6.0, 36.0], [4.0, 40.0]]
    """
    level = check_alpha(alpha)
    labels = tuple(arms)
    if len(labels) != 2:
        raise ValueError(f"arms is {arms!r}; allowed: two arms")
    if (target_clock is None) == (eta2 is None):
        raise ValueError("allowed: exactly one of target_clock and eta2")
    tuning = eta2 if target_clock is None else target_clock
    if not isinstance(tuning, (int, float, np.number)):
        raise TypeError(f"target_clock or eta2 is {tuning!r}; allowed: a number")
    mixing = float(tuning if target_clock is None else eta2_for(target_clock, level))
    wanted = ["due_time", "treatment", "outcome_value"]
    wanted += [] if propensity is not None else ["propensity"]
    if augmentation is not None:
        if set(augmentation) != set(labels):
            raise ValueError(f"augmentation names {list(augmentation)}; allowed: {labels}")
        wanted += [augmentation[label] for label in labels]
    check_columns(units.columns, wanted, "units")
    timeline = Timeline.of(units["due_time"], "due_time")
    due = _due(units, timeline)
    treated = arm_indices(units["treatment"], labels, "treatment") == 1
    if propensity is not None:
        check_alpha(propensity, "propensity")
    chance = (
        np.full(len(units), propensity)
        if propensity is not None
        else number_column(units, "propensity")
    )
    if not np.all((chance > 0) & (chance < 1)):
        raise ValueError("propensity is outside (0, 1) in a row; allowed: numbers in (0, 1)")
    value = number_column(units, "outcome_value")
    looks = look_times(timeline, times, every, due, np.where(np.isnan(value), np.inf, due))
    end = looks[-1] if len(looks) else -np.inf
    check_values(value, due <= end, None, "outcome_value")
    predicted = np.zeros((2, len(units)))
    if augmentation is not None:
        for k, label in enumerate(labels):
            predicted[k] = number_column(units, augmentation[label])
            check_values(predicted[k], due <= end, None, augmentation[label])
    residual = np.where(treated, value - predicted[1], predicted[0] - value)
    residual /= np.where(treated, chance, 1 - chance)
    read = np.flatnonzero(due <= end)
    look = np.searchsorted(looks, due[read], side="left")

    def totals(weights: Floats) -> Floats:
        per_look = np.bincount(look, weights[read], minlength=len(looks))
        return np.asarray(np.cumsum(per_look, dtype=np.float64))

    effect, clock = totals(predicted[1] - predicted[0] + residual), totals(residual**2)
    width = boundary(clock, level, mixing)
    return pd.DataFrame(
        {
            "time": timeline.back(looks),
            "n_due": totals(np.ones(len(units))).astype(np.int64),
            "effect": effect,
            "effect_lower": effect - width,
            "effect_upper": effect + width,
            "p_value": _p_value(effect, clock, mixing),
            "clock": clock,
        }
    )


def _due(units: pd.DataFrame, timeline: Timeline) -> Floats:
    due = timeline.numbers(units["due_time"], "due_time")
    if not np.all(np.isfinite(due)):
        raise ValueError("due_time is missing in a row; allowed: a time for every unit")
    return due


def _p_value(effect: Floats, clock: Floats, eta2: float) -> Floats:
    r"""Where `|effect| = boundary(clock, p, eta2)`: the inverse of a normal mixture, at most 1."""
    grown = clock * eta2 + 1
    return np.asarray(np.minimum(1.0, np.sqrt(grown) * np.exp(-(effect**2) * eta2 / grown / 2)))


def augmented(
    units: pd.DataFrame,
    times: Any,
    every: Any,
    augmentation: Mapping[Any, str],
    settings: Mapping[str, Any],
) -> pd.DataFrame:
    """`delayed_confseq` with predictions: only where every outcome has a due time."""
    if "due_time" not in units.columns:
        raise NotImplementedError(
            "augmentation without due_time: its term would need the event times of units in the "
            "other arm, which are not observed, and switched on at entry it is no martingale; "
            "allowed: outcomes read at a predetermined due_time"
        )
    for name in ("expected_events", "value_scale", "value_range", "alpha_split"):
        if settings[name] is not None:
            raise ValueError(f"{name} has no meaning with due_time; allowed: target_clock or eta2")
    if settings["method"] == "exact":
        raise ValueError("method is 'exact' with augmentation; allowed: 'asymptotic'")
    return synchronous_confseq(
        units,
        times,
        every=every,
        arms=settings["arms"],
        propensity=settings["propensity"],
        alpha=settings["alpha"],
        target_clock=settings["target_clock"],
        eta2=settings["eta2"],
        augmentation=augmentation,
    )


def forward_cross_fit(
    units: pd.DataFrame,
    features: Sequence[str],
    fit: Any,
    *,
    arms: Sequence[Arm] = (0, 1),
    blocks: int = 10,
    least: int = 20,
) -> pd.DataFrame:
    r"""Predictions of each unit's outcome under each arm, from units due before it alone.

    The units are cut into blocks of due time. The model for a block is fitted on the units of one
    arm in the blocks before it, so that no prediction knows an outcome that is read at its own
    due time or later; ordinary cross-fitting, which trains on later units, would void the
    guarantee.

    Parameters
    ----------
    units
        As in `synchronous_confseq`, with the feature columns, known at the due time at the latest.
    features
        Names of the feature columns.
    fit
        A scikit-learn regressor (copied and fitted), or a function of (features as a DataFrame,
        outcomes as a Series) that returns a fitted model with `predict`, such as
        `lambda X, y: sm.OLS(y, sm.add_constant(X)).fit()` together with features that hold the
        constant already.
    arms
        The two labels.
    blocks
        Number of blocks; more of them use more data, each costs a fit.
    least
        Units of an arm that have to be there before a model is fitted; until then predictions
        are 0.

    Returns
    -------
    pandas.DataFrame
        One column of predictions an arm, named by its label, in the rows' order.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> units = pd.DataFrame({"due_time": np.arange(200.0), "visits": rng.normal(size=200)})
    >>> units["treatment"] = rng.integers(0, 2, 200)
    >>> units["outcome_value"] = 3.0 * units["visits"]

    >>> class Slope:
    ...     def __init__(self, X, y):
    ...         self.slope = float((X["visits"] * y).sum() / (X["visits"] ** 2).sum())
    ...     def predict(self, X):
    ...         return self.slope * X["visits"]

    >>> predicted = forward_cross_fit(units, ["visits"], Slope)
    >>> bool(np.allclose(predicted[1].iloc[100:], 3.0 * units["visits"].iloc[100:]))
    True
    """
    wanted = ["due_time", "treatment", "outcome_value", *features]
    check_columns(units.columns, wanted, "units")
    if blocks < 2 or least < 1:
        raise ValueError(f"blocks is {blocks}, least is {least}; allowed: blocks >= 2, least >= 1")
    if not (hasattr(fit, "fit") or callable(fit)):
        raise TypeError(f"fit is {fit!r}; allowed: a regressor with fit, or a function")
    train: Callable[[Any, Any], Any] = (
        (lambda x, y: copy.deepcopy(fit).fit(x, y)) if hasattr(fit, "fit") else fit
    )
    timeline = Timeline.of(units["due_time"], "due_time")
    due = _due(units, timeline)
    known = units["outcome_value"].notna().to_numpy()
    arm = arm_indices(units["treatment"], tuple(arms), "treatment")
    if not len(due):
        return pd.DataFrame(index=units.index, columns=list(arms), dtype=np.float64)
    edges = np.unique(np.quantile(due, np.linspace(0, 1, blocks + 1)[1:-1], method="lower"))
    # A unit due exactly at an edge belongs to the block that ends there.
    block = np.searchsorted(edges, due, side="left")
    predictions = np.zeros((len(units), len(arms)))
    for b in range(1, len(edges) + 1):
        rows = np.flatnonzero(block == b)
        if not len(rows):
            continue
        for k in range(len(arms)):
            past = np.flatnonzero((block < b) & (arm == k) & known)
            if len(past) >= least:
                model = train(units[list(features)].iloc[past], units["outcome_value"].iloc[past])
                predictions[rows, k] = np.asarray(
                    model.predict(units[list(features)].iloc[rows]), dtype=np.float64
                )
    return pd.DataFrame(predictions, index=units.index, columns=list(arms))
