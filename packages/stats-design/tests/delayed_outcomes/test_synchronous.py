import numpy as np
import pandas as pd
import pytest

from stats_design.delayed_outcomes import (
    boundary,
    delayed_confseq,
    eta2_for,
    forward_cross_fit,
    synchronous_confseq,
)
from stats_design.delayed_outcomes.synchronous import _p_value


def population(n, seed, explained=0.75):
    """Outcomes due 7 days after entry; a covariate explains a share of their variance."""
    rng = np.random.default_rng(seed)
    entry = np.sort(rng.uniform(0, 30, n))
    x = rng.normal(size=n)
    noise = np.sqrt(1 - explained) * rng.normal(size=n)
    y0 = 1 + np.sqrt(explained) * x + noise
    return pd.DataFrame({"due_time": entry + 7, "x": x, "y0": y0, "y1": y0 + 0.3})


def observed(potential, assigned):
    return potential.assign(
        treatment=assigned.astype(int),
        outcome_value=np.where(assigned, potential.y1, potential.y0),
    )


@pytest.mark.parametrize("propensity", [0.5, 0.25])
def test_uniform_miss_is_below_the_level(propensity):
    # Vectorised over assignments with the estimator's formula; 3 standard errors allowed.
    potential = population(400, 1)
    rng = np.random.default_rng(2)
    w = rng.random((2000, 400)) < propensity
    terms = np.where(w, potential.y1 / propensity, -potential.y0 / (1 - propensity))
    error = np.cumsum(terms, axis=1) - np.cumsum(potential.y1 - potential.y0).to_numpy()
    clock = np.cumsum(terms**2, axis=1)
    target = float(np.sum(potential.y1**2 / propensity + potential.y0**2 / (1 - propensity)))
    width = boundary(clock, 0.05, eta2_for(target, 0.05))
    miss = np.any(np.abs(error) > width, axis=1).mean()
    assert miss <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 2000)
    # One of these assignments through the public function gives the same numbers.
    frame = synchronous_confseq(
        observed(potential, w[0]), propensity=propensity, target_clock=target
    )
    assert frame.effect.to_numpy() == pytest.approx(np.cumsum(terms[0]), rel=1e-9)
    assert frame.effect_upper.to_numpy() - frame.effect.to_numpy() == pytest.approx(width[0])


def test_good_predictions_narrow_the_interval():
    potential = population(4000, 3)
    rng = np.random.default_rng(4)
    units = observed(potential, rng.random(4000) < 0.5).assign(
        m0=1 + np.sqrt(0.75) * potential.x, m1=1.3 + np.sqrt(0.75) * potential.x
    )
    plain = synchronous_confseq(units, propensity=0.5, target_clock=4000 * 2 * 4.3)
    better = synchronous_confseq(
        units, propensity=0.5, target_clock=4000 * 4 * 0.25, augmentation={0: "m0", 1: "m1"}
    )
    ratio = (better.effect_upper - better.effect_lower) / (plain.effect_upper - plain.effect_lower)
    assert ratio.iloc[-1] < 0.7
    truth = (potential.y1 - potential.y0).sum()
    assert better.effect_lower.iloc[-1] <= truth <= better.effect_upper.iloc[-1]


def test_without_due_time_augmentation_is_refused():
    units = pd.DataFrame(
        {
            "entry_time": [0.0],
            "treatment": [0],
            "outcome_time": [1.0],
            "outcome_value": [1.0],
            "m": [0.5],
        }
    )
    with pytest.raises(NotImplementedError, match="no martingale"):
        delayed_confseq(units, propensity=0.5, eta2=1.0, augmentation={0: "m", 1: "m"})


def test_through_delayed_confseq():
    units = observed(population(50, 5), np.arange(50) % 2 == 0).assign(m0=1.0, m1=1.3)
    kw = {"propensity": 0.5, "eta2": 0.01}
    pd.testing.assert_frame_equal(
        delayed_confseq(units, augmentation={0: "m0", 1: "m1"}, **kw),
        synchronous_confseq(units, augmentation={0: "m0", 1: "m1"}, **kw),
    )


def test_p_value_is_where_the_interval_touches_zero():
    p = _p_value(np.array([30.0]), np.array([80.0]), 0.02)
    assert boundary(80.0, float(p[0]), 0.02) == pytest.approx(30.0)


def test_predictions_come_from_the_past_alone():
    units = observed(population(300, 6), np.arange(300) % 2 == 0)
    sm = pytest.importorskip("statsmodels.api")
    units["const"] = 1.0

    def fit(x, y):
        return sm.OLS(y, x).fit()

    whole = forward_cross_fit(units, ["const", "x"], fit)
    # What is read within a block, here of 30 units, changes no prediction in it or before it.
    changed = units.copy()
    changed.loc[165:, "outcome_value"] = 1e6
    other = forward_cross_fit(changed, ["const", "x"], fit)
    pd.testing.assert_frame_equal(whole.iloc[:180], other.iloc[:180])
    assert not np.allclose(whole.iloc[200:], other.iloc[200:])
    assert (whole.iloc[:20] == 0).all(axis=None)
    # OLS on these data finds the slope sqrt(.75).
    slope = np.polyfit(units.x[200:], whole[1][200:], 1)[0]
    assert slope == pytest.approx(np.sqrt(0.75), abs=0.2)


def test_statsmodels_and_scikit_learn_agree():
    sm = pytest.importorskip("statsmodels.api")
    linear = pytest.importorskip("sklearn.linear_model")
    units = observed(population(300, 7), np.arange(300) % 2 == 0).assign(const=1.0)
    a = forward_cross_fit(units, ["const", "x"], lambda x, y: sm.OLS(y, x).fit())
    b = forward_cross_fit(units, ["x"], linear.LinearRegression())
    assert a.to_numpy() == pytest.approx(b.to_numpy(), abs=1e-9)


def test_predictions_of_ols_narrow_the_interval():
    sm = pytest.importorskip("statsmodels.api")
    units = observed(population(3000, 8), np.random.default_rng(9).random(3000) < 0.5)
    units["const"] = 1.0
    predicted = forward_cross_fit(units, ["const", "x"], lambda x, y: sm.OLS(y, x).fit())
    units["m0"], units["m1"] = predicted[0], predicted[1]
    target = 3000 * 4 * 0.5
    plain = synchronous_confseq(units, propensity=0.5, target_clock=target)
    better = synchronous_confseq(
        units, propensity=0.5, target_clock=target, augmentation={0: "m0", 1: "m1"}
    )
    width = [f.effect_upper.iloc[-1] - f.effect_lower.iloc[-1] for f in (better, plain)]
    assert width[0] < 0.7 * width[1]


@pytest.mark.parametrize(
    ("change", "settings", "match"),
    [
        ({"due_time": [np.nan, 1.0]}, {}, "due_time is missing"),
        ({"outcome_value": [np.nan, 1.0]}, {"times": [2.0]}, "outcome_value is nan"),
        ({}, {"propensity": None}, "lacks the columns"),
        ({}, {"propensity": 1.0}, r"propensity is 1\.0"),
        ({}, {"eta2": None}, "exactly one"),
        ({}, {"arms": (0, 1, 2)}, "two arms"),
        ({}, {"augmentation": {0: "m"}}, "augmentation names"),
    ],
)
def test_bad_input(change, settings, match):
    units = pd.DataFrame(
        {"due_time": [0.0, 1.0], "treatment": [0, 1], "outcome_value": [1.0, 1.0], **change}
    )
    with pytest.raises(ValueError, match=match):
        synchronous_confseq(units, **{"propensity": 0.5, "eta2": 1.0, **settings})
