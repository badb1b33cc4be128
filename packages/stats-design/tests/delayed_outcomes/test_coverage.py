"""How often sequences and their wrong variants miss, over random assignments."""

import numpy as np
import pandas as pd
import pytest

from stats_design.delayed_outcomes import (
    boundary,
    delayed_confseq,
    eta2_for,
    evaluate_coverage,
    simulate_dataset,
)
from stats_design.delayed_outcomes.coverage import METHODS, arms_of
from stats_design.delayed_outcomes.simulate import assign, clocks, potential_frame, totals

REPS = 2000


def allowed(level, reps=REPS):
    """The level plus three standard errors."""
    return level + 3 * np.sqrt(level * (1 - level) / reps)


@pytest.mark.parametrize(("n", "propensity"), [(50, 0.5), (200, 0.5), (1000, 0.5), (200, 0.2)])
def test_coverage_table(n, propensity):
    potential = simulate_dataset("staggered", n, 1, propensity=propensity)
    table = evaluate_coverage(potential, REPS).set_index("method")
    assert table.miss["union"] <= 0.05
    assert table.miss["naive"] >= 0.15
    for w in (0, 1):
        assert table.miss[f"exact_{w}"] <= allowed(0.025)
        width = table.width[f"exact_{w}"] / table.width[f"asymptotic_{w}"]
        assert 0.95 <= width <= 1.10
        if n == 50:
            assert table.miss[f"asymptotic_{w}"] > 0.04


def test_one_assignment_equals_the_public_function():
    # The vectorised check of an assignment against delayed_confseq on the same one.
    potential = simulate_dataset("staggered", 60, 2, propensity=0.4)
    seeds = np.random.default_rng(5)
    table = evaluate_coverage(potential, 40, ["union", "exact_0", "exact_1"], seed=5)
    assigned = seeds.random((40, 60)) < 0.4
    target = clocks(potential)
    low, high = {}, {}
    for w in (0, 1):
        values = potential[f"value_{w}"][np.isfinite(potential[f"time_{w}"])]
        low[w], high[w] = 0.0, float(values.max())
    misses = {"union": 0, "exact_0": 0, "exact_1": 0}
    widths = []
    _, times = arms_of(potential)
    truth = totals(potential, times)
    for row in assigned:
        units = assign(potential, assigned=row)
        with pytest.warns(UserWarning, match="below 100"):
            frame = delayed_confseq(units, times, target_clock=target)
        effect = truth[1] - truth[0]
        widths.append(frame.effect_upper.iloc[-1] - frame.effect_lower.iloc[-1])
        misses["union"] += np.any((frame.effect_lower > effect) | (frame.effect_upper < effect))
        for w in (0, 1):
            kept = units.assign(outcome_value=units.outcome_value.where(units.treatment == w, 0.0))
            exact = delayed_confseq(kept, times, target_clock=target, value_range=(low[w], high[w]))
            misses[f"exact_{w}"] += np.any(
                (exact[f"lower_{w}"] > truth[w]) | (exact[f"upper_{w}"] < truth[w])
            )
    assert dict(zip(table.method, table.misses, strict=True)) == misses
    assert table.width[0] == pytest.approx(np.mean(widths))


def test_unknown_method_and_no_repetitions():
    potential = simulate_dataset("null", 5, 0)
    with pytest.raises(ValueError, match="methods has"):
        evaluate_coverage(potential, 1, ["magic"])
    with pytest.raises(ValueError, match="reps is 0"):
        evaluate_coverage(potential, 0)
    assert len(METHODS) == 8


def arm_paths(potential, reps, seed, w=1):
    """Truth, errors and clocks of one arm at its own events, over random assignments."""
    arms, _ = arms_of(potential)
    arm = arms[w]
    p = potential["propensity"].to_numpy()
    assigned = np.random.default_rng(seed).random((reps, len(p))) < p
    mine = assigned if w else ~assigned
    truth = np.cumsum(arm.value)
    estimate = arm.path(mine, arm.value / arm.chance)[:, 1:]
    clock = arm.path(mine, (1 - arm.chance) * (arm.value / arm.chance) ** 2)[:, 1:]
    return arm, mine, truth, estimate, clock


# Negative controls: variants that look reasonable and are wrong. A right one stands beside each.


def test_running_intersection_misses_nearly_always():
    # The total grows, so the intersection of intervals so far loses it.
    potential = simulate_dataset("staggered", 1000, 1)
    _, _, truth, estimate, clock = arm_paths(potential, 300, 0)
    width = boundary(clock, 0.05, eta2_for(clocks(potential)[1], 0.05))
    pointwise = np.any(np.abs(estimate - truth) > width, axis=1).mean()
    upper = np.minimum.accumulate(estimate + width, axis=1)
    lower = np.maximum.accumulate(estimate - width, axis=1)
    crossed = np.any((truth > upper) | (truth < lower), axis=1).mean()
    assert pointwise <= allowed(0.05, 300)
    assert crossed > 0.9


def test_purchases_of_one_unit_as_separate_events_miss_too_often():
    # Six equal purchases of each of 100 units: the first one reveals the assignment.
    rng = np.random.default_rng(0)
    unit = np.repeat(np.arange(100), 6)
    order = rng.permutation(600)
    assigned = rng.random((REPS, 100)) < 0.5
    error = np.cumsum((assigned[:, unit[order]] / 0.5 - 1), axis=1)
    clock = np.cumsum(assigned[:, unit[order]] * 0.5 / 0.25, axis=1)
    width = boundary(clock, 0.05, eta2_for(600.0, 0.05))
    assert np.any(np.abs(error) > width, axis=1).mean() > 0.2
    # Only the first purchase of each unit keeps the level.
    _, first = np.unique(unit[order], return_index=True)
    first = np.sort(first)
    columns = unit[order][first]
    error = np.cumsum(assigned[:, columns] / 0.5 - 1, axis=1)
    clock = np.cumsum(assigned[:, columns] * 0.5 / 0.25, axis=1)
    width = boundary(clock, 0.05, eta2_for(100.0, 0.05))
    assert np.any(np.abs(error) > width, axis=1).mean() <= allowed(0.05)


def test_predictions_frozen_at_entry_miss_nearly_always():
    # Predictions switched on when a unit enters move the error before its event; the oracle that
    # switches them on at the event keeps the level and is narrower than without predictions.
    n, p = 1000, 0.5
    rng = np.random.default_rng(1)
    entry = np.sort(rng.uniform(0, 30, n))
    event = entry + rng.exponential(8, n)
    value = 1 + 0.4 * rng.normal(size=n)
    prediction = np.ones(n)
    z = (rng.random((500, n)) < p) / p - 1
    both = np.concatenate([entry, event])
    kind = np.argsort(both, kind="stable")
    steps = np.concatenate([-prediction * z, (value * z)], axis=1)[:, kind]
    frozen = np.cumsum(steps, axis=1)
    order = np.argsort(event)
    residual = (value - prediction)[order]
    mine = z[:, order] > 0
    oracle = np.cumsum(z[:, order] * residual, axis=1)
    clock = np.cumsum(mine * (1 - p) / p**2 * residual**2, axis=1)
    target = (1 - p) / p * float(np.sum(residual**2))
    width = boundary(clock, 0.05, eta2_for(target, 0.05))
    # At each step of either kind the clock of the events so far.
    done = np.cumsum(kind >= n)
    at = np.concatenate([np.full((500, 1), boundary(0.0, 0.05, eta2_for(target, 0.05))), width], 1)
    assert np.any(np.abs(frozen) > at[:, done], axis=1).mean() > 0.5
    assert np.any(np.abs(oracle) > width, axis=1).mean() <= allowed(0.05, 500)
    plain = boundary(float(np.sum(value**2)), 0.05, eta2_for(float(np.sum(value**2)), 0.05))
    assert width[:, -1].mean() / plain < 0.6


def test_dropping_units_without_an_outcome_answers_another_question():
    # Outcomes of 1 for 30% and 60%: the means of those with an outcome are equal, the effect is
    # 300 of 1000 units.
    n = np.arange(1000)
    times = [np.where(n < share, 1.0, np.inf) for share in (300, 600)]
    potential = potential_frame(np.zeros(1000), tuple(times), (1.0, 1.0), 0.5)
    units = assign(potential, 0)
    converted = units[np.isfinite(units.outcome_time)]
    means = converted.groupby("treatment").outcome_value.mean()
    assert means[1] - means[0] == 0
    row = delayed_confseq(units, propensity=0.5, target_clock=450.0).iloc[-1]
    assert row.effect_lower > 0
    assert row.effect_lower <= 300 <= row.effect_upper


def test_realised_share_instead_of_the_propensity_is_biased():
    # Two units, one outcome of 1 in arm 1: E[1{w=1} 1{t<=t} y / share] is not 1 over the 3
    # assignments with a treated unit, while the design propensity gives exactly 1.
    found = {"design": 0.0, "realised": 0.0}
    for first in (0, 1):
        for second in (0, 1):
            share = (first + second) / 2
            found["design"] += 0.25 * first / 0.5
            found["realised"] += 0.25 * (first / share if share else 0.0)
    assert found["design"] == 1
    assert found["realised"] == pytest.approx(0.75)


def test_three_arms_hold_together():
    # Three arms and three contrasts at once, 1000 assignments of 300 units.
    rng = np.random.default_rng(7)
    n, p, alpha = 300, np.array([0.5, 0.25, 0.25]), 0.05
    entry = np.sort(rng.uniform(0, 30, n))
    times = [entry + rng.exponential(scale, n) for scale in (8, 6, 4)]
    values = [np.exp(rng.normal(0, 0.5, n)) * f for f in (1.0, 1.1, 0.9)]
    moments = np.unique(np.concatenate(times))
    assigned = rng.choice(3, size=(1000, n), p=p)
    missed = np.zeros(1000, dtype=bool)
    errors, widths = [], []
    for w in range(3):
        order = np.argsort(times[w])
        y = values[w][order]
        mine = assigned[:, order] == w
        index = np.searchsorted(times[w][order], moments, side="right")
        zeros = np.zeros((1000, 1))
        error = np.concatenate([zeros, np.cumsum((mine / p[w] - 1) * y, axis=1)], axis=1)
        clock = np.cumsum(mine * (1 - p[w]) * (y / p[w]) ** 2, axis=1)
        clock = np.concatenate([zeros, clock], axis=1)
        target = float((1 - p[w]) / p[w] * np.sum(y**2))
        width = boundary(clock, alpha / 3, eta2_for(target, alpha / 3))
        errors.append(error[:, index])
        widths.append(width[:, index])
        missed |= np.any(np.abs(errors[-1]) > widths[-1], axis=1)
    for b, a in ((1, 0), (2, 0), (2, 1)):
        missed |= np.any(np.abs(errors[b] - errors[a]) > widths[a] + widths[b], axis=1)
    assert missed.mean() <= allowed(alpha, 1000)
    # The public function spends the same widths on the first of these assignments.
    arm = assigned[0]
    units = pd.DataFrame(
        {
            "entry_time": entry,
            "treatment": arm,
            "outcome_time": np.choose(arm, times),
            "outcome_value": np.choose(arm, values),
        }
    )
    with pytest.warns(UserWarning, match="below 100"):
        frame = delayed_confseq(
            units,
            moments,
            arms=(0, 1, 2),
            propensity=tuple(p),
            method="asymptotic",
            target_clock=[float((1 - p[w]) / p[w] * np.sum(values[w] ** 2)) for w in range(3)],
        )
    found = frame.effect_2_vs_1_upper - frame.effect_2_vs_1
    assert found.to_numpy() == pytest.approx((widths[2] + widths[1])[0])


def test_bad_requests_are_named():
    potential = simulate_dataset("null", 20, 0)
    with pytest.raises(ValueError, match="methods has"):
        evaluate_coverage(potential, 10, "union")
    with pytest.raises(ValueError, match=r"reps is 2\.5"):
        evaluate_coverage(potential, 2.5)
    with pytest.raises(ValueError, match="an arm without events"):
        evaluate_coverage(potential.assign(time_1=np.inf), 10)
