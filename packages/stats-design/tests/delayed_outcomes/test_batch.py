import numpy as np
import pandas as pd
import pytest

from stats_design.delayed_outcomes import (
    SmallSampleWarning,
    assign,
    boundary,
    delayed_confseq,
    eta2_for,
    make_design,
    simulate_dataset,
    target_clock_from_pilot,
)

LOOKS = np.array([5.0, 10.0, 20.0, 40.0, 60.0])
BOUNDS = ("estimate_0", "estimate_1", "lower_0", "upper_0", "lower_1", "upper_1")
EFFECTS = ("effect", "effect_lower", "effect_upper")


def units_of(**columns):
    base = {
        "entry_time": [0.0, 1.0],
        "treatment": [0, 1],
        "outcome_time": [2.0, np.nan],
        "outcome_value": [1.0, np.nan],
    }
    return pd.DataFrame({**base, **columns})


KW = {"propensity": 0.5, "value_range": (0, 5), "target_clock": 10.0}


@pytest.mark.parametrize("method", ["exact", "asymptotic"])
def test_multiplying_all_values_multiplies_every_bound(staggered, settings, method):
    settings["method"] = method
    frame = delayed_confseq(staggered, LOOKS, **settings)
    scaled = delayed_confseq(
        staggered.assign(outcome_value=staggered.outcome_value * 100),
        LOOKS,
        **{**settings, "value_scale": 120.0, "value_range": (0, 1200)},
    )
    for column in (*BOUNDS, *EFFECTS):
        assert scaled[column].to_numpy() == pytest.approx(100 * frame[column].to_numpy(), rel=1e-9)
    assert scaled.p_value.to_numpy() == pytest.approx(frame.p_value.to_numpy(), rel=1e-7)


def test_any_increasing_map_of_time_leaves_the_intervals(staggered, settings):
    frame = delayed_confseq(staggered, LOOKS, **settings)
    mapped = staggered.assign(
        entry_time=np.exp(staggered.entry_time / 10),
        outcome_time=np.exp(staggered.outcome_time / 10),
    )
    other = delayed_confseq(mapped, np.exp(LOOKS / 10), **settings)
    pd.testing.assert_frame_equal(frame.drop(columns="time"), other.drop(columns="time"))


def test_swapping_the_arms_negates_the_effect(staggered, settings):
    settings["propensity"] = 0.3
    frame = delayed_confseq(staggered, LOOKS, **settings)
    swapped = staggered.assign(treatment=1 - staggered.treatment)
    other = delayed_confseq(swapped, LOOKS, **{**settings, "propensity": 0.7})
    assert other.effect.to_numpy() == pytest.approx(-frame.effect.to_numpy(), rel=1e-12)
    assert other.effect_lower.to_numpy() == pytest.approx(-frame.effect_upper.to_numpy(), rel=1e-9)
    assert other.p_value.to_numpy() == pytest.approx(frame.p_value.to_numpy(), rel=1e-6)


@pytest.mark.parametrize("method", ["exact", "asymptotic"])
def test_the_interval_excludes_zero_exactly_where_p_is_below_alpha(staggered, settings, method):
    frame = delayed_confseq(staggered, **{**settings, "method": method})
    excluded = (frame.effect_lower > 0) | (frame.effect_upper < 0)
    assert excluded.any()
    assert (excluded == (frame.p_value < 0.05)).mean() == 1
    assert frame.p_global.to_numpy() == pytest.approx(np.minimum.accumulate(frame.p_value))


def test_before_any_event_the_interval_is_the_possible_range():
    units = units_of(outcome_time=[9.0, 9.0], outcome_value=[1.0, 1.0])
    frame = delayed_confseq(units, [0.0, 1.0], **KW)
    # Nothing has happened, so r is in [0, 5 n] and the upper bound may be tighter.
    assert frame.lower_0.tolist() == [0, 0]
    assert np.all(frame.upper_0 <= 5 * frame.n_entered)
    assert frame.n_entered.tolist() == [1, 2]
    assert np.all(np.isfinite(frame[["effect_lower", "effect_upper"]]))
    assert frame.p_value.tolist() == [1, 1]


def test_an_arm_without_events_has_the_boundary_at_clock_zero():
    with pytest.warns(SmallSampleWarning, match="an arm has 0 events"):
        frame = delayed_confseq(units_of(), [3.0], propensity=0.5, eta2=0.1)
    assert frame.estimate_1[0] == 0
    assert frame.upper_1[0] == pytest.approx(float(boundary(0, 0.025, 0.1)))


def test_no_units_at_all():
    frame = delayed_confseq(units_of().iloc[:0], [1.0], **KW)
    assert frame[["n_entered", "effect", "effect_upper", "p_value"]].iloc[0].tolist() == [
        0,
        0,
        0,
        1,
    ]


def test_control_uses_its_own_propensity():
    units = units_of(outcome_time=[2.0, 2.0], outcome_value=[1.0, 1.0])
    with pytest.warns(SmallSampleWarning):
        frame = delayed_confseq(units, propensity=0.2, eta2=(0.1, 0.1))
    # Weights 1/.8 and 1/.2; clocks .2/.64 and .8/.04.
    assert frame[["estimate_0", "estimate_1"]].iloc[0].tolist() == pytest.approx([1.25, 5.0])
    width = float(boundary(0.2 / 0.64, 0.025, 0.1)), float(boundary(0.8 / 0.04, 0.025, 0.1))
    assert frame.upper_0[0] - 1.25 == pytest.approx(width[0])
    assert frame.upper_1[0] - 5.0 == pytest.approx(width[1])


def test_propensities_by_unit_equal_one_shared(staggered, settings):
    shared = delayed_confseq(staggered, LOOKS, **settings)
    settings.pop("propensity")
    clock = 1500 * 1.44
    settings = {"value_range": (0, 12), "target_clock": clock}
    own = delayed_confseq(staggered, LOOKS, **settings)
    pd.testing.assert_frame_equal(shared, own)


def test_lift_contains_every_ratio_of_the_bounds(staggered, settings):
    row = delayed_confseq(staggered, [60.0], **settings).iloc[0]
    assert row.lift_lower == pytest.approx(row.lower_1 / row.upper_0 - 1)
    assert row.lift_upper == pytest.approx(row.upper_1 / row.lower_0 - 1)


def test_datetimes_give_the_numbers_of_their_seconds(staggered, settings):
    start = pd.Timestamp("2026-03-01", tz="Europe/Berlin")
    seconds = staggered.assign(
        entry_time=(staggered.entry_time * 86400).round(),
        outcome_time=(staggered.outcome_time * 86400).round(),
    )
    stamped = seconds.assign(
        entry_time=start + pd.to_timedelta(seconds.entry_time, unit="s"),
        outcome_time=start
        + pd.to_timedelta(seconds.outcome_time.replace(np.inf, np.nan), unit="s"),
    )
    numbers = delayed_confseq(seconds, **settings)
    stamps = delayed_confseq(stamped, **settings)
    assert str(stamps.time.dt.tz) == "Europe/Berlin"
    expected = start + pd.to_timedelta(numbers.time, unit="s")
    assert (stamps.time == expected).all()
    pd.testing.assert_frame_equal(numbers.drop(columns="time"), stamps.drop(columns="time"))


def test_missing_outcome_time_of_datetimes_means_not_yet():
    units = units_of(
        entry_time=pd.to_datetime(["2026-01-01", "2026-01-02"]),
        outcome_time=pd.to_datetime(["2026-01-03", None]),
    )
    frame = delayed_confseq(units, **KW)
    assert frame[["events_0", "events_1"]].iloc[0].tolist() == [1, 0]


def test_regular_looks_cover_the_last_event(staggered, settings):
    frame = delayed_confseq(staggered, every=7.0, **settings)
    assert np.diff(frame.time) == pytest.approx(7.0)
    last = staggered.outcome_time[np.isfinite(staggered.outcome_time)].max()
    assert frame.time.iloc[-2] < last <= frame.time.iloc[-1]


def test_three_arms_spend_a_third_each():
    units = pd.DataFrame(
        {
            "entry_time": np.zeros(6),
            "treatment": list("abcabc"),
            "outcome_time": np.arange(1.0, 7.0),
            "outcome_value": np.ones(6),
        }
    )
    with pytest.warns(SmallSampleWarning):
        frame = delayed_confseq(
            units, [6.0], arms=("a", "b", "c"), propensity=(0.5, 0.25, 0.25), eta2=1.0, alpha=0.06
        )
    row = frame.iloc[0]
    widths = [float(boundary(v, 0.02, 1.0)) for v in (4.0, 24.0, 24.0)]
    assert row.effect_c_vs_b_upper - row.effect_c_vs_b == pytest.approx(widths[1] + widths[2])
    assert row.effect_b_vs_a == pytest.approx(8 - 4)
    assert [c for c in frame if c.startswith("p_value")] == [
        "p_value_b_vs_a",
        "p_value_c_vs_a",
        "p_value_c_vs_b",
    ]


def test_pilot_gives_its_own_clock(staggered):
    clocks = target_clock_from_pilot(staggered, 2 * len(staggered))
    happened = np.isfinite(staggered.outcome_time) & (staggered.treatment == 1)
    # (1 - .5) / .25 y^2 of the treated, twice as many entries.
    assert clocks[1] == pytest.approx(2 * 2 * np.sum(staggered.outcome_value[happened] ** 2))


def test_large_level_split(staggered, settings):
    frame = delayed_confseq(staggered, LOOKS, **{**settings, "alpha_split": (0.01, 0.04)})
    even = delayed_confseq(staggered, LOOKS, **settings)
    assert np.all(frame.upper_0 - frame.lower_0 > even.upper_0 - even.lower_0)
    assert np.all(frame.upper_1 - frame.lower_1 < even.upper_1 - even.lower_1)


@pytest.mark.parametrize(
    ("change", "settings", "match"),
    [
        ({"entry_time": [np.nan, 1.0]}, {}, "entry_time is missing in row 0"),
        ({"entry_time": [3.0, 1.0]}, {}, "outcome_time is before entry_time in row 0"),
        ({"treatment": [0, 2]}, {}, "treatment is 2 in row 1"),
        ({"outcome_value": [np.nan, 1.0]}, {}, "outcome_value is nan in row 0"),
        ({"outcome_value": [np.inf, 1.0]}, {}, "outcome_value is inf"),
        ({"outcome_value": [6.0, 1.0]}, {}, "within value_range"),
        ({"propensity": [0.5, 1.0]}, {"propensity": None}, "propensity is 1.0 in row 1"),
        ({}, {"propensity": 1.0}, "propensity is 1.0"),
        ({}, {"propensity": None}, "lacks the columns"),
        ({}, {"alpha": 0.0}, "alpha"),
        ({}, {"alpha": 1.0}, "alpha"),
        ({}, {"method": "exact", "value_range": None}, "without value_range"),
        ({}, {"method": "guess"}, "method"),
        ({}, {"value_range": (5, 0)}, "value_range"),
        ({}, {"target_clock": None}, "tuning is given by nothing"),
        ({}, {"eta2": 1.0}, "exactly one"),
        ({}, {"target_clock": None, "eta2": 0.0}, "eta2"),
        ({}, {"target_clock": None, "expected_events": 10}, "value_scale is missing"),
        ({}, {"alpha_split": (0.01, 0.01)}, "alpha_split adds up"),
        ({}, {"arms": (0, 0)}, "arms"),
        ({}, {"times": [2.0, 1.0]}, "backwards"),
        ({}, {"times": [1.0], "every": 1.0}, "times and every"),
        ({}, {"every": -1.0}, "every"),
    ],
)
def test_bad_input(change, settings, match):
    with pytest.raises(ValueError, match=match):
        delayed_confseq(units_of(**change), **{**KW, **settings})


def test_missing_columns_are_named():
    with pytest.raises(ValueError, match=r"\['outcome_time'\]"):
        delayed_confseq(units_of().drop(columns="outcome_time"), **KW)


@pytest.mark.parametrize(
    "change",
    [
        {"entry_time": ["2026-01-01", "2026-01-02"]},
        {"outcome_time": pd.to_datetime(["2026-01-03", None])},
        {
            "entry_time": pd.to_datetime(["2026-01-01", "2026-01-02"]),
            "outcome_time": pd.to_datetime(["2026-01-03", None], utc=True),
        },
    ],
)
def test_times_of_mixed_kinds(change):
    with pytest.raises(TypeError, match="allowed"):
        delayed_confseq(units_of(**change), **KW)


def test_the_running_clock_is_no_tuning():
    # eta2_for(current clock) at every look would be accepted by no function: settings are scalars.
    with pytest.raises(ValueError, match="one an arm"):
        delayed_confseq(units_of(), propensity=0.5, eta2=eta2_for(np.arange(1, 5), 0.05))


COLUMNS = {
    "entry_time": [0.0, 0.0, 1.0, 2.0],
    "treatment": [1, 0, 1, 0],
    "propensity": [0.5] * 4,
    "outcome_time": [3.0, 5.0, None, 4.0],
    "outcome_value": [1.0, 1.0, None, 1.0],
}


@pytest.mark.parametrize("column", ["propensity", "outcome_value"])
def test_a_column_that_is_not_numbers_is_named(column):
    units = pd.DataFrame({**COLUMNS, column: ["1", "x", "0.5", "1"]})
    with pytest.raises(ValueError, match=f"{column} is not all numbers: .*'x'"):
        delayed_confseq(units, [5.0], eta2=1.0)


def test_a_column_given_twice_is_named():
    units = pd.DataFrame(COLUMNS)
    units = pd.concat([units, units[["entry_time"]]], axis=1)
    with pytest.raises(ValueError, match=r"units has the columns \['entry_time'\] twice"):
        delayed_confseq(units, [5.0], eta2=1.0)


def test_values_whose_squares_overflow_are_refused():
    units = pd.DataFrame({**COLUMNS, "outcome_value": [1e200, 1.0, None, 1.0]})
    with pytest.raises(ValueError, match=r"outcome_value is 1e\+200 in row 0"):
        delayed_confseq(units, [5.0], eta2=1.0)


def rare_arm():
    """100 units that have a chance of 1% of arm "a" each, and none of them is in it."""
    return pd.DataFrame(
        {
            "entry_time": 0.0,
            "treatment": ["b", "c"] * 50,
            "propensity": 0.495,
            "outcome_time": 1.0,
            "outcome_value": 1.0,
        }
    )


RARE = {"arms": ("a", "b", "c"), "value_range": (0, 1), "target_clock": 100.0}


def test_three_arms_need_their_smallest_propensities_declared():
    # The chances that units show are those of their own arms. Taken for the smallest ones of arm
    # "a" they would give an upper bound far below its total of 100, in 37% of the assignments.
    units = rare_arm()
    with pytest.raises(ValueError, match="smallest_propensity"):
        delayed_confseq(units, [1.0], **RARE)
    assert delayed_confseq(units, [1.0], **RARE, smallest_propensity=0.495)["upper_a"][0] < 20
    found = delayed_confseq(units, [1.0], **RARE, smallest_propensity=(0.01, 0.495, 0.495))
    assert found["upper_a"][0] >= 100


def test_three_arms_may_show_less_than_another_arm_declares():
    units = rare_arm()
    units.loc[0, ["treatment", "propensity"]] = ["a", 0.01]
    declared = (0.01, 0.495, 0.495)
    assert delayed_confseq(units, [1.0], **RARE, smallest_propensity=declared)["events_a"][0] == 1
    with pytest.raises(ValueError, match="goes down to"):
        delayed_confseq(units, [1.0], **RARE, smallest_propensity=(0.02, 0.495, 0.495))


def test_a_smallest_propensity_above_the_shared_one_is_refused():
    with pytest.raises(ValueError, match="at most the propensity of each arm"):
        make_design(
            arms=(0, 1), propensity=0.1, smallest_propensity=0.5, value_range=(0, 1), eta2=1.0
        )


@pytest.mark.parametrize("expected", [0, -1, float("nan"), float("inf")])
def test_a_pilot_is_scaled_to_a_positive_number_of_entries(expected):
    with pytest.raises(ValueError, match="expected_entries is"):
        target_clock_from_pilot(pd.DataFrame(COLUMNS), expected)


@pytest.mark.parametrize("assigned", [[1, 0], [0, 1, 2]])
def test_an_assignment_that_is_none_is_refused(assigned):
    with pytest.raises(ValueError, match="assigned is"):
        assign(simulate_dataset("null", 3, 0), assigned=assigned)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"arms": None}, "arms is None"),
        ({"arms": ([1], [2])}, "arms is"),
        ({"propensity": ".5"}, r"propensity is '\.5'"),
        ({"value_range": "ab"}, "value_range is 'ab'"),
        ({"value_range": 5}, "value_range is 5"),
        ({"value_range": (0, 1, 2)}, "value_range is"),
        ({"eta2": "x"}, "eta2 is 'x'"),
        ({"eta2": [None, 1]}, "eta2 is"),
        ({"eta2": 1e-320}, "eta2 is 1e-320"),
        ({"eta2": None, "expected_events": 3, "value_scale": "x"}, "value_scale is 'x'"),
    ],
)
def test_odd_settings_are_named(settings, match):
    base = {"arms": ("a", "b"), "propensity": 0.5, "eta2": 1.0}
    with pytest.raises((ValueError, TypeError), match=match):
        make_design(**{**base, **settings})
