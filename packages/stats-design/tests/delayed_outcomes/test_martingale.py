"""Moments over all assignments, by enumeration through the package's own simulator."""

import numpy as np
import pytest

from stats_design.delayed_outcomes import _reference, assign, delayed_confseq
from stats_design.delayed_outcomes.batch import read_units, sums_at
from stats_design.delayed_outcomes.design import make_design
from stats_design.delayed_outcomes.simulate import clocks, potential_frame, totals

DESIGN = make_design(arms=(0, 1), eta2=1.0)


def moments(potential, times):
    """Probabilities, and errors (W, 2, T) and clocks (W, 2, T) of all assignments."""
    truth = np.stack(totals(potential, times))
    probabilities, errors, clock = [], [], []
    for probability, assigned in _reference.assignments(potential["propensity"].tolist()):
        units, _ = read_units(assign(potential, assigned=assigned), (0, 1), None)
        sums = sums_at(units, np.asarray(times, dtype=float), DESIGN)
        probabilities.append(probability)
        errors.append(sums.estimate - truth)
        clock.append(sums.clock)
    return np.array(probabilities), np.stack(errors), np.stack(clock)


def covariance(weights, a, b):
    return np.sum(weights * a * b) - np.sum(weights * a) * np.sum(weights * b)


def test_estimates_and_clocks_are_unbiased(six_units):
    times = np.sort(np.concatenate([six_units["time_0"], six_units["time_1"]]))
    weights, errors, clock = moments(six_units, times)
    assert np.tensordot(weights, errors, 1) == pytest.approx(np.zeros((2, 12)), abs=1e-12)
    expected = np.array([clocks(six_units, t) for t in times]).T
    assert np.tensordot(weights, clock, 1) == pytest.approx(expected, abs=1e-12)
    for w in (0, 1):
        variance = np.array(
            [covariance(weights, errors[:, w, k], errors[:, w, k]) for k in range(12)]
        )
        assert variance == pytest.approx(expected[w], abs=1e-12)


def test_other_clocks_are_biased(six_units):
    # Negative controls: pi(1 - pi) y^2 / pi^2 without the right power, and the square alone.
    last = np.array([100.0])
    true = np.array(clocks(six_units))
    squares, product = np.zeros(2), np.zeros(2)
    for probability, assigned in _reference.assignments(six_units["propensity"].tolist()):
        units, _ = read_units(assign(six_units, assigned=assigned), (0, 1), None)
        for w in (0, 1):
            mine = units.arm == w
            y, p = units.value[mine], units.chance[mine]
            squares[w] += probability * np.sum((y / p) ** 2)
            product[w] += probability * np.sum(p * (1 - p) * (y / p) ** 2)
    assert len(last) == 1
    assert np.all(np.abs(squares / true - 1) > 0.1)
    assert np.all(np.abs(product / true - 1) > 0.1)


def test_an_arm_has_martingale_covariances(six_units):
    for w in (0, 1):
        times = np.sort(six_units[f"time_{w}"].to_numpy())
        weights, errors, _ = moments(six_units, times)
        for s in range(6):
            for t in range(s, 6):
                gap = covariance(weights, errors[:, w, s], errors[:, w, t]) - covariance(
                    weights, errors[:, w, s], errors[:, w, s]
                )
                assert abs(gap) < 1e-12


def test_the_difference_is_no_martingale_with_one_unit():
    potential = potential_frame([0.0], ([2.0], [1.0]), ([1.0], [1.0]), [0.5])
    weights, errors, _ = moments(potential, [1.0, 2.0])
    d = errors[:, 1] - errors[:, 0]
    assert np.sum(weights * d[:, 0]) == 0
    assert covariance(weights, d[:, 0], d[:, 1]) == 2
    assert covariance(weights, d[:, 0], d[:, 0]) == 1


def test_the_gap_of_the_difference_with_three_units():
    potential = potential_frame(
        [0.0] * 3, ([3, 1.5, 4], [1, 2, 5]), ([0.5, 1, 3], [1, 2, -1]), [0.5, 0.3, 0.6]
    )
    weights, errors, _ = moments(potential, [2.5, 4.5])
    d = errors[:, 1] - errors[:, 0]
    cov = covariance(weights, d[:, 0], d[:, 1])
    var = covariance(weights, d[:, 0], d[:, 0])
    assert (cov, var) == pytest.approx((15.26190476, 14.76190476), abs=5e-9)
    # Only the first unit straddles 2.5 within (1, 4.5]: y1 y0 = .5 by the closed form.
    assert cov - var == pytest.approx(0.5, abs=1e-12)


def test_times_that_coincide_close_the_gap(six_units):
    potential = six_units.assign(time_0=six_units["time_1"])
    times = np.sort(potential["time_1"].to_numpy())
    weights, errors, _ = moments(potential, times)
    d = errors[:, 1] - errors[:, 0]
    for s in range(6):
        for t in range(s, 6):
            gap = covariance(weights, d[:, s], d[:, t]) - covariance(weights, d[:, s], d[:, s])
            assert abs(gap) < 1e-12


def test_adaptive_assignment_reveals_earlier_units():
    # If the second unit is treated with .9 or .1 after the first one's arm and its event comes
    # first, its arm shifts the first one's mean: E[Z_1 | w_2 = 1] = .8, not 0.
    joint = {(w1, w2): 0.5 * (0.9 if w1 == w2 else 0.1) for w1 in (0, 1) for w2 in (0, 1)}
    given = joint[0, 1] + joint[1, 1]
    mean = sum(p * (w1 / 0.5 - 1) for (w1, w2), p in joint.items() if w2 == 1) / given
    assert mean == pytest.approx(0.8)
    with pytest.raises(ValueError, match="adaptive is True"):
        make_design(arms=(0, 1), eta2=1.0, adaptive=True)


def test_public_table_agrees_with_the_definitions(six_units):
    units = assign(six_units, assigned=[1, 0, 1, 1, 0, 0])
    with pytest.warns(UserWarning, match="below 100"):
        frame = delayed_confseq(units, eta2=0.5, alpha=0.1)
    chance = np.where(units.treatment == 1, units.propensity, 1 - units.propensity)
    rows = (units.outcome_time, units.treatment, chance, units.outcome_value)
    for _, row in frame.iterrows():
        width = 0.0
        for w in (0, 1):
            n, estimate, clock = _reference.arm_sums(*map(list, rows), w, row.time)
            half = _reference.boundary(clock, 0.05, 0.5)
            width += half
            assert row[f"events_{w}"] == n
            assert row[f"estimate_{w}"] == pytest.approx(estimate, rel=1e-12)
            assert row[f"lower_{w}"] == pytest.approx(estimate - half, rel=1e-12)
            assert row[f"upper_{w}"] == pytest.approx(estimate + half, rel=1e-12)
        assert row.effect_upper - row.effect == pytest.approx(width, rel=1e-12)
