import numpy as np
import pytest
from scipy.stats import expon

from stats_design.delayed_outcomes import plan

KW = {
    "enrolment": 30.0,
    "horizon": 60.0,
    "event_probability": (0.2, 0.4),
    "delay": expon(scale=5),
    "reps": 40,
}


def test_effect_is_the_expected_difference():
    # All entered by 30, delays of mean 5: by 60 at least 99.7% of the outcomes are in.
    table = plan(2000, **{**KW, "horizon": 90.0})
    assert table.effect.iloc[-1] == pytest.approx(2000 * 0.2, rel=0.05)


def test_no_effect_is_seldom_detected():
    table = plan(500, **{**KW, "event_probability": (0.3, 0.3), "reps": 200})
    assert table.detected.iloc[-1] <= 0.05
    assert not table.reached.any()


def test_more_entries_detect_earlier():
    few, many = plan(1000, **KW), plan(8000, **KW)
    first = [t.time[t.reached].min() for t in (few, many)]
    assert first[1] < first[0]


def test_a_later_arm_is_seen_as_a_passing_effect():
    # The same outcomes, later: the effect comes and goes.
    later = {"event_probability": (0.5, 0.5), "delay": (expon(scale=15), expon(scale=3))}
    table = plan(4000, **{**KW, **later, "horizon": 150.0})
    assert table.effect.max() > 300
    assert abs(table.effect.iloc[-1]) < 60


def test_delays_may_be_a_sample_or_a_function():
    sample = expon(scale=5).ppf((np.arange(2000) + 0.5) / 2000)
    a = plan(1000, **KW)
    b = plan(1000, **{**KW, "delay": sample})
    c = plan(1000, **{**KW, "delay": lambda u: -5 * np.log1p(-u)})
    assert b.effect.to_numpy() == pytest.approx(a.effect.to_numpy(), rel=0.05, abs=2)
    assert c.effect.to_numpy() == pytest.approx(a.effect.to_numpy(), rel=1e-9)


def test_values_have_the_stated_moments():
    constant = plan(1000, **KW)
    varied = plan(1000, **{**KW, "value_mean": (3.0, 3.0), "value_rms": (5.0, 5.0)})
    assert varied.effect.iloc[-1] == pytest.approx(3 * constant.effect.iloc[-1], rel=0.2)
    ratio = varied.half_width.iloc[-1] / constant.half_width.iloc[-1]
    assert ratio == pytest.approx(5.0, rel=0.1)


@pytest.mark.parametrize(
    "change",
    [
        {"enrolment": 0.0},
        {"horizon": np.inf},
        {"event_probability": (0.0, 0.0)},
        {"event_probability": (0.2, 1.2)},
        {"delay": []},
        {"delay": [-1.0]},
        {"value_mean": (2.0, 2.0), "value_rms": (1.0, 2.0)},
        {"alpha": 0.0},
        {"power": 1.0},
        {"looks": 2.5},
        {"reps": "5"},
        {"horizon": "long"},
        {"event_probability": 0.3},
        {"event_probability": (0.2, 0.3, 0.4)},
        {"event_probability": (np.nan, 0.4)},
        {"value_mean": 2.0},
        {"value_rms": (np.inf, np.inf)},
        {"delay": (1.0, 2.0)},
        {"delay": "soon"},
        {"delay": lambda u: -u},
        {"delay": lambda u: np.nan * u},
    ],
)
def test_bad_input(change):
    with pytest.raises(ValueError, match="allowed"):
        plan(100, **{**KW, **change})


@pytest.mark.parametrize("entries", [0, 0.5, 2.5, "many", None])
def test_entries_are_a_whole_number(entries):
    with pytest.raises(ValueError, match="expected_entries is"):
        plan(entries, **KW)
