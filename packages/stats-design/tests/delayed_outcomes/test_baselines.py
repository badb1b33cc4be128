import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from stats_design.delayed_outcomes import boundary, simulate_dataset
from stats_design.delayed_outcomes.baselines import (
    bonferroni,
    matured_window,
    naive_z,
    observed_msprt,
    variance_bound,
)
from stats_design.delayed_outcomes.simulate import KINDS, assign, event_times, totals

UNITS = pd.DataFrame(
    {
        "entry_time": [0.0, 0.0, 1.0, 2.0],
        "treatment": [1, 0, 1, 0],
        "outcome_time": [3.0, 5.0, np.inf, 4.0],
        "outcome_value": [1.0, 2.0, 0.0, 3.0],
    }
)


def half(frame):
    return (frame.effect_upper - frame.effect).to_numpy()


def test_fixed_look_intervals_by_hand():
    # Events of weight 1/.5: squares 4, then 4 + 36, then 40 + 16.
    frame = naive_z(UNITS, propensity=0.5)
    assert frame.effect.tolist() == [2.0, -4.0, -8.0]
    assert half(frame) == pytest.approx(norm.ppf(0.975) * np.sqrt([4, 40, 56]))
    frame = bonferroni(UNITS, [3.0, 5.0], propensity=0.5)
    assert half(frame) == pytest.approx(norm.ppf(1 - 0.0125) * np.sqrt([4, 56]))
    frame = variance_bound(UNITS, eta2=0.1, propensity=0.5)
    assert half(frame) == pytest.approx(boundary([4, 40, 56], 0.05, 0.1))


def test_matured_window_is_silent_until_the_first_window_closes():
    frame = matured_window(UNITS, 4.0, [3.0, 4.0, 6.0], propensity=0.5, target_clock=10.0)
    # Windows close at 4, 4, 5, 6; the outcome at 5 is outside the window of its unit.
    assert frame.n_due.tolist() == [0, 2, 4]
    assert frame.effect.tolist() == [0.0, 2.0, -4.0]


def test_observed_means_by_hand():
    frame = observed_msprt(UNITS, [5.0], eta2=0.1, propensity=0.5)
    # Means 1/2 and 5/2 of 4 entered; variances 1/4 and 1/4 of means of two.
    assert frame.effect[0] == pytest.approx(-8.0)
    assert half(frame)[0] == pytest.approx(float(boundary(16 * (0.125 + 0.125), 0.05, 0.1)))


@pytest.mark.parametrize("kind", KINDS)
def test_simulated_populations(kind):
    potential = simulate_dataset(kind, 2000, 0, propensity=0.3)
    happens = np.isfinite(potential[["time_0", "time_1"]]).mean()
    low, high = {"sparse": (0.02, 0.06)}.get(kind, (0.65, 0.9))
    assert happens.between(low, high).all()
    for w in (0, 1):
        assert (potential[f"time_{w}"] >= potential.entry_time).all()
    effect = np.subtract(*totals(potential, event_times(potential))[::-1])
    if kind == "null":
        assert np.all(effect == 0)
    elif kind == "pull_forward":
        assert effect.max() > 100
        # The treated values are 0.8 times as high as for the other kinds; here they are equal.
        assert abs(effect[-1]) < 1e-6
    units = assign(potential, 1)
    assert units.treatment.mean() == pytest.approx(0.3, abs=0.04)


def test_bad_simulation():
    with pytest.raises(ValueError, match="kind is 'x'"):
        simulate_dataset("x", 5, 0)
    with pytest.raises(ValueError, match="n is 0"):
        simulate_dataset("null", 0, 0)
    with pytest.raises(ValueError, match="exactly one"):
        assign(simulate_dataset("null", 5, 0))
