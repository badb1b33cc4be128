import datetime
import json

import dateutil.tz
import numpy as np
import pandas as pd
import pytest

from stats_design.delayed_outcomes import (
    DelayedOutcomeMonitor,
    DuplicateOutcomeError,
    LateEventError,
    delayed_confseq,
)

NUMBERS = ["n_entered", "events_0", "events_1", "estimate_0", "estimate_1", "lower_0", "upper_1"]
NUMBERS += ["effect", "effect_lower", "effect_upper", "p_value"]


def small(**settings):
    return DelayedOutcomeMonitor(
        **{"propensity": 0.5, "value_range": (0, 5), "target_clock": 10.0, **settings}
    )


def started(**settings):
    monitor = small(**settings)
    monitor.enter("a", 0.0, "control")
    monitor.enter("b", 1.0, "treatment")
    return monitor


def in_order(entries, outcomes):
    """Records of both logs in the order of time, as (time, is outcome, row)."""
    rows = [(r.time, 0, r) for r in entries.itertuples()]
    rows += [(r.time, 1, r) for r in outcomes.itertuples()]
    return sorted(rows, key=lambda r: r[:2])


@pytest.mark.parametrize("method", ["exact", "asymptotic"])
def test_streaming_equals_batch_at_random_times(staggered, logs, settings, method):
    settings["method"] = method
    looks = np.sort(np.random.default_rng(5).uniform(0, 60, 50))
    expected = delayed_confseq(staggered, looks, **settings)
    monitor = DelayedOutcomeMonitor((0, 1), **settings)
    records, k = in_order(*logs), 0
    for look, row in zip(looks, expected.itertuples(), strict=True):
        while k < len(records) and records[k][0] <= look:
            record = records[k][2]
            if records[k][1]:
                monitor.event(record.unit, record.time, record.value)
            else:
                monitor.enter(record.unit, record.time, record.arm)
            k += 1
        now = monitor.snapshot(float(look))
        found = [now.n_entered, now.events[0], now.events[1], now.estimate[0], now.estimate[1]]
        found += [now.lower[0], now.upper[1], now.effect, now.effect_lower, now.effect_upper]
        found += [now.p_value]
        assert found == pytest.approx([getattr(row, c) for c in NUMBERS], rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("method", ["exact", "asymptotic"])
def test_streaming_equals_batch_with_propensities_by_unit(staggered, logs, method):
    entries, outcomes = logs
    propensity = np.random.default_rng(6).uniform(0.2, 0.7, len(entries))
    kw = {"method": method, "value_range": (0, 12), "target_clock": (900.0, 2500.0)}
    expected = delayed_confseq(
        staggered.assign(propensity=propensity), [60.0], smallest_propensity=(0.3, 0.2), **kw
    ).iloc[0]
    monitor = DelayedOutcomeMonitor((0, 1), smallest_propensity=(0.3, 0.2), **kw)
    monitor.update(entries.assign(propensity=propensity), outcomes)
    now = monitor.snapshot(60.0)
    found = [now.effect, now.effect_lower, now.effect_upper, now.p_value]
    columns = ["effect", "effect_lower", "effect_upper", "p_value"]
    assert found == pytest.approx([expected[c] for c in columns], rel=1e-9)
    # The clock as the definition has it: (1 - p) y^2 / p^2 with the probability of the own arm.
    happened = np.isfinite(staggered.outcome_time.to_numpy())
    treated = staggered.treatment.to_numpy() == 1
    for w, mine, p in ((0, ~treated, 1 - propensity), (1, treated, propensity)):
        rows = mine & happened
        y = staggered.outcome_value.to_numpy()[rows]
        clock = np.sum((1 - p[rows]) * y**2 / p[rows] ** 2)
        assert monitor._ledger.clock[w] == pytest.approx(clock, rel=1e-9)


def test_history_equals_batch(staggered, logs, settings):
    monitor = DelayedOutcomeMonitor((0, 1), **settings)
    monitor.update(*logs)
    history = monitor.history()
    pd.testing.assert_frame_equal(
        history.drop(columns="revised"), delayed_confseq(staggered, **settings)
    )
    assert not history.revised.any()


@pytest.mark.parametrize("portions", [1, 7, 40])
def test_any_portions_give_the_same(logs, settings, portions):
    entries, outcomes = logs
    whole = DelayedOutcomeMonitor((0, 1), **settings)
    whole.update(entries, outcomes)
    monitor = DelayedOutcomeMonitor((0, 1), **settings)
    edges = np.linspace(-1, 61, portions + 1)
    for start, end in zip(edges, edges[1:], strict=False):
        monitor.update(
            entries[(entries.time > start) & (entries.time <= end)].sample(frac=1, random_state=0),
            outcomes[(outcomes.time > start) & (outcomes.time <= end)],
        )
    a, b = whole.snapshot(), monitor.snapshot()
    assert b.effect == pytest.approx(a.effect, rel=1e-12)
    assert b.effect_lower == pytest.approx(a.effect_lower, rel=1e-9)
    pd.testing.assert_frame_equal(whole.history(every=5.0), monitor.history(every=5.0))


@pytest.mark.parametrize("method", ["exact", "asymptotic"])
def test_saved_and_loaded_in_the_middle_is_identical(logs, settings, method):
    entries, outcomes = logs
    monitor = DelayedOutcomeMonitor((0, 1), **{**settings, "method": method})
    monitor.update(entries[entries.time <= 20], outcomes[outcomes.time <= 20])
    other = DelayedOutcomeMonitor.from_json(monitor.to_json())
    rest = entries[entries.time > 20], outcomes[outcomes.time > 20]
    for each in (monitor, other):
        each.update(*rest)
    assert other.snapshot() == monitor.snapshot()
    assert other.to_json() == monitor.to_json()


def test_labels_keep_their_type_through_json():
    monitor = small(arms=(0, 1), propensity={0: 0.4, 1: 0.6})
    monitor.enter(7, pd.Timestamp("2026-01-01", tz="UTC"), 0)
    other = DelayedOutcomeMonitor.from_json(monitor.to_json())
    assert other.design == monitor.design
    other.event(7, pd.Timestamp("2026-01-02", tz="UTC"), 1.0)
    assert other.snapshot().time == pd.Timestamp("2026-01-02", tz="UTC")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 99}', "no json"])
def test_other_text_is_no_state(text):
    with pytest.raises(ValueError, match="allowed"):
        DelayedOutcomeMonitor.from_json(text)


def test_ties_all_count_at_their_time():
    monitor = started()
    monitor.event("a", 3.0, 1.0)
    monitor.enter("c", 3.0, "treatment")
    monitor.event("c", 3.0, 2.0)
    assert monitor.snapshot().events == {"control": 1, "treatment": 1}


def test_earlier_snapshot_reads_the_records():
    monitor = started()
    monitor.event("a", 3.0, 1.0)
    monitor.event("b", 5.0, 1.0)
    then = monitor.snapshot(4.0)
    assert then.events == {"control": 1, "treatment": 0}
    assert monitor.watermark == 5.0


def test_snapshot_before_anything():
    now = small().snapshot()
    assert (now.time, now.n_entered, now.effect, now.p_value) == (None, 0, 0.0, 1.0)
    assert (now.lower["control"], now.upper["control"]) == (0, 0)


def test_per_entered_divides_by_the_entered():
    monitor = started()
    monitor.event("b", 2.0, 3.0)
    assert monitor.snapshot().per_entered[0] == pytest.approx(6.0 / 2)


def test_small_samples_are_noted_for_the_asymptotic_method_only():
    assert "below 100" in small(value_range=None).snapshot().warnings[0]
    assert small().snapshot().warnings == ()


# Errors


def test_outcome_before_entry():
    with pytest.raises(ValueError, match="before its entry"):
        started().event("b", 0.5)


def test_outcome_of_an_unknown_unit():
    with pytest.raises(KeyError, match="has not entered"):
        started().event("z", 2.0)


def test_second_outcome():
    monitor = started()
    monitor.event("a", 2.0)
    with pytest.raises(DuplicateOutcomeError, match="has an outcome already"):
        monitor.event("a", 3.0)


def test_second_entry():
    with pytest.raises(ValueError, match="has entered already"):
        started().enter("a", 2.0, "control")


@pytest.mark.parametrize("value", [-1.0, 5.1, np.nan, np.inf])
def test_value_outside_the_range(value):
    with pytest.raises(ValueError, match="value of unit 'a'"):
        started().event("a", 2.0, value)


def test_unknown_arm():
    with pytest.raises(ValueError, match="arm is 'placebo'"):
        started().enter("c", 2.0, "placebo")


@pytest.mark.parametrize("propensity", [0.0, 1.0, 1.5])
def test_propensity_outside_its_range(propensity):
    with pytest.raises(ValueError, match="propensity"):
        started().enter("c", 2.0, "control", propensity)


def test_propensity_below_the_declared_smallest():
    with pytest.raises(ValueError, match="smallest_propensity"):
        started().enter("c", 2.0, "control", 0.4)


def test_missing_propensity():
    monitor = small(propensity=None, smallest_propensity=0.2)
    with pytest.raises(ValueError, match="propensity is missing"):
        monitor.enter("c", 2.0, "control")


@pytest.mark.parametrize("time", [np.nan, np.inf])
def test_missing_entry_time(time):
    with pytest.raises(ValueError, match="finite time"):
        started().enter("c", time, "control")


def test_time_going_backwards():
    monitor = started()
    with pytest.raises(LateEventError, match=r"watermark 1\.0"):
        monitor.enter("c", 0.5, "control")
    monitor.event("a", 4.0)
    with pytest.raises(LateEventError):
        monitor.event("b", 3.0)


def test_missing_outcome_time_changes_nothing():
    monitor = started()
    for time in (np.nan, np.inf, None):
        monitor.event("a", time)
    assert sum(monitor.snapshot().events.values()) == 0


def test_tuning_after_the_first_event():
    monitor = started()
    monitor.tune(target_clock=20.0)
    assert monitor.design.target_clock == (20.0, 20.0)
    monitor.event("a", 2.0)
    with pytest.raises(RuntimeError, match="before the first event"):
        monitor.tune(target_clock=5.0)


def test_datetimes_and_numbers_do_not_mix():
    with pytest.raises(TypeError, match="allowed: one kind"):
        started().enter("c", pd.Timestamp("2026-01-01"), "control")
    monitor = small()
    monitor.enter("a", pd.Timestamp("2026-01-01"), "control")
    with pytest.raises(TypeError, match="time zone"):
        monitor.event("a", pd.Timestamp("2026-01-02", tz="UTC"))


@pytest.mark.parametrize(
    "settings",
    [
        {"late": "drop"},
        {"recurrent": "sum"},
        {"window": 3.0},
        {"recurrent": "sum_window"},
        {"adaptive": True},
    ],
)
def test_bad_settings(settings):
    with pytest.raises(ValueError, match="allowed"):
        small(**settings)


def test_a_bad_row_undoes_the_whole_table(logs, settings):
    entries, outcomes = logs
    monitor = DelayedOutcomeMonitor((0, 1), **settings)
    monitor.update(entries[entries.time <= 20], outcomes[outcomes.time <= 20])
    before = monitor.to_json()
    late = outcomes[outcomes.time > 20].copy()
    late.iloc[-1, late.columns.get_loc("value")] = 99.0
    with pytest.raises(ValueError, match="allowed: within"):
        monitor.update(entries[entries.time > 20], late)
    assert monitor.to_json() == before


def test_first_table_may_fail_and_be_given_again():
    monitor = small()
    entries = pd.DataFrame({"unit": ["a", "a"], "time": [0.0, 1.0], "arm": ["control"] * 2})
    with pytest.raises(ValueError, match="has entered already"):
        monitor.update(entries)
    assert monitor.watermark is None
    assert monitor.update(entries.iloc[:1]) == 1


# Late records


def test_revise_counts_at_the_own_time_and_flags_the_history(logs, settings):
    entries, outcomes = logs
    outcomes = outcomes[outcomes.unit < 300]
    entries = entries[entries.unit < 300]
    held = outcomes.iloc[::5]
    monitor = DelayedOutcomeMonitor((0, 1), **settings, late="revise")
    monitor.update(entries, outcomes.drop(held.index))
    monitor.update(outcomes=held)
    plain = DelayedOutcomeMonitor((0, 1), **settings)
    plain.update(entries, outcomes)
    assert monitor.snapshot().effect == pytest.approx(plain.snapshot().effect, rel=1e-12)
    a, b = monitor.history(), plain.history()
    pd.testing.assert_frame_equal(a.drop(columns="revised"), b.drop(columns="revised"))
    assert a.revised.any()
    assert not b.revised.any()
    assert "late records" in monitor.snapshot().warnings[0]


def test_ingest_counts_now_and_leaves_the_history():
    monitor = started(late="ingest")
    monitor.event("a", 6.0, 1.0)
    before = monitor.history([2.0, 4.0])
    monitor.event("b", 3.0, 2.0)
    pd.testing.assert_frame_equal(monitor.history([2.0, 4.0]), before)
    assert monitor.history([6.0]).events_treatment.tolist() == [1]


# Recurrent outcomes


def test_first_outcome_only():
    monitor = started(recurrent="first")
    monitor.event("a", 2.0, 1.0)
    monitor.event("a", 3.0, 4.0)
    assert monitor.snapshot().estimate["control"] == 2.0


def test_sum_within_a_window_counts_once_when_it_closes():
    monitor = started(recurrent="sum_window", window=5.0)
    monitor.event("a", 2.0, 1.0)
    monitor.event("a", 4.0, 1.5)
    monitor.event("b", 4.5, 1.0)
    assert sum(monitor.snapshot().events.values()) == 0
    monitor.event("a", 5.5, 3.0)
    now = monitor.snapshot()
    assert (now.events["control"], now.estimate["control"]) == (1, 5.0)
    # Clock (1 - .5) (2.5 / .5)^2: one event of 2.5, not two.
    assert monitor._ledger.clock[0] == pytest.approx(12.5)
    assert monitor.snapshot(6.0).estimate["treatment"] == 2.0
    assert monitor.history([5.0, 6.0]).estimate_treatment.tolist() == [0.0, 2.0]


def test_sum_beyond_the_range():
    monitor = started(recurrent="sum_window", window=5.0)
    monitor.event("a", 2.0, 3.0)
    with pytest.raises(ValueError, match="add up to"):
        monitor.event("a", 3.0, 3.0)


def test_windows_survive_json_and_late_revision():
    monitor = started(recurrent="sum_window", window=5.0, late="revise")
    monitor.event("a", 2.0, 1.0)
    monitor = DelayedOutcomeMonitor.from_json(monitor.to_json())
    monitor.enter("c", 8.0, "control")
    assert monitor.snapshot().estimate["control"] == 2.0
    monitor.event("a", 3.0, 1.0)
    assert monitor.snapshot().estimate["control"] == 4.0
    assert monitor.snapshot().events["control"] == 1


def test_datetime_windows():
    monitor = small(recurrent="sum_window", window="2D")
    monitor.enter("a", pd.Timestamp("2026-01-01"), "control")
    monitor.event("a", pd.Timestamp("2026-01-02"), 1.0)
    monitor.event("a", pd.Timestamp("2026-01-05"), 1.0)
    assert monitor.history().time.tolist() == [pd.Timestamp("2026-01-03")]


# Logs given again


@pytest.mark.parametrize("recurrent", ["error", "first", "sum_window"])
def test_a_growing_log_given_again_and_again(logs, settings, recurrent):
    entries, outcomes = logs
    entries, outcomes = entries[entries.unit < 500], outcomes[outcomes.unit < 500]
    extra = {"window": 40.0, "recurrent": recurrent} if recurrent == "sum_window" else {}
    extra = extra or {"recurrent": recurrent}
    if recurrent != "error":
        again = outcomes.assign(time=outcomes.time + 0.25, value=0.5)
        twice = pd.concat([outcomes, again, again])
        outcomes = twice.sort_values("time", kind="stable")
    settings["value_range"] = (0, 14)
    whole = DelayedOutcomeMonitor((0, 1), **settings, **extra)
    whole.update(entries, outcomes)
    monitor = DelayedOutcomeMonitor((0, 1), **settings, **extra)
    for day in (3, 3, 17, 31, 45, 62, 62):
        monitor.update(
            entries[entries.time <= day], outcomes[outcomes.time <= day], redelivered="skip"
        )
    pd.testing.assert_frame_equal(whole.history(every=3.0), monitor.history(every=3.0))


def test_a_record_given_again_with_other_content():
    monitor = small()
    entries = pd.DataFrame({"unit": ["a"], "time": [0.0], "arm": ["control"]})
    monitor.update(entries)
    assert monitor.update(entries, redelivered="skip") == 0
    with pytest.raises(ValueError, match="never re-assigned"):
        monitor.update(entries.assign(arm="treatment"), redelivered="skip")
    with pytest.raises(ValueError, match="has entered already"):
        monitor.update(entries)


@pytest.mark.parametrize(
    ("entries", "outcomes", "match"),
    [
        ({"unit": ["a"], "time": [0.0]}, None, "lacks the columns"),
        ({"unit": [None], "time": [0.0], "arm": ["control"]}, None, "unit is missing"),
        ({"unit": ["a"], "time": [np.nan], "arm": ["control"]}, None, "finite time"),
        (None, {"unit": ["a"]}, "lacks the columns"),
    ],
)
def test_bad_tables(entries, outcomes, match):
    frames = [None if t is None else pd.DataFrame(t) for t in (entries, outcomes)]
    with pytest.raises(ValueError, match=match):
        small().update(*frames)


# Several arms, rules, pictures


def test_three_arms():
    monitor = DelayedOutcomeMonitor(
        ("a", "b", "c"), propensity=(0.5, 0.25, 0.25), target_clock=10.0, value_range=(0, 1)
    )
    for k, arm in enumerate("abc"):
        monitor.enter(k, float(k), arm)
    monitor.event(1, 5.0)
    now = monitor.snapshot()
    assert now.contrasts["b", "a"].effect == 4.0
    assert now.contrasts["c", "b"].effect == -4.0
    with pytest.raises(ValueError, match="several contrasts"):
        _ = now.effect


def test_alerts_are_the_rows_where_the_rule_holds(logs, settings):
    monitor = DelayedOutcomeMonitor((0, 1), **settings)
    monitor.update(*logs)
    frame = monitor.history(every=1.0)
    found = monitor.alerts("effect_lower > 0", every=1.0)
    assert found.time.tolist() == frame.time[frame.effect_lower > 0].tolist()
    assert 0 < len(found) < len(frame)


@pytest.mark.parametrize("rule", ["effect", "effect > x", "__import__('os') > 0", "effect > 1 2"])
def test_no_rule(rule):
    with pytest.raises(ValueError, match=r"rule (is|names)"):
        started().alerts(rule)


def test_rule_with_an_unknown_column():
    with pytest.raises(ValueError, match="rule names the column 'profit'"):
        started().alerts("profit > 0")


def test_picture_has_three_panels(logs, settings, tmp_path):
    pytest.importorskip("matplotlib")
    monitor = DelayedOutcomeMonitor((0, 1), **settings)
    monitor.update(*logs)
    figure = monitor.plot(every=2.0)
    assert [ax.get_yscale() for ax in figure.axes] == ["linear", "linear", "log"]
    figure.savefig(tmp_path / "x.png")


def test_numpy_integers_are_units():
    monitor = small()
    monitor.enter(np.int64(7), 0.0, "treatment")
    monitor.event(7, 1.0, 2)
    again = DelayedOutcomeMonitor.from_json(monitor.to_json())
    assert again.snapshot().effect == 4.0


@pytest.mark.parametrize("unit", [True, 1.5, None])
def test_other_identifiers_are_refused(unit):
    with pytest.raises(TypeError, match="unit is"):
        small().enter(unit, 0.0, "treatment")


@pytest.mark.parametrize("value", ["3", None, pd.NA, [1.0]])
def test_a_value_that_is_no_number_is_named(value):
    with pytest.raises(TypeError, match="value of unit 'a' is"):
        started().event("a", 2.0, value)


def test_a_propensity_that_is_no_number_is_named():
    with pytest.raises(TypeError, match=r"propensity is '0\.5'"):
        small().enter("a", 0.0, "treatment", "0.5")


def test_values_whose_squares_overflow_are_refused():
    monitor = DelayedOutcomeMonitor(propensity=0.5, eta2=1.0)
    monitor.enter("a", 0.0, "treatment")
    with pytest.raises(ValueError, match=r"value of unit 'a' is 1e\+200"):
        monitor.event("a", 1.0, 1e200)
    monitor.event("a", 1.0, 1e60)
    now = monitor.snapshot()
    assert np.isfinite([now.effect_lower, now.effect_upper]).all()
    with pytest.raises(ValueError, match="value_range is"):
        small(value_range=(0, 1e200))


@pytest.mark.parametrize("arm", ["treatment", "unknown"])
def test_a_refused_first_record_does_not_fix_the_kind_of_times(arm):
    monitor = small(propensity=None, smallest_propensity=0.1)
    with pytest.raises(ValueError, match="allowed"):
        monitor.enter("a", 1.0, arm)
    monitor.enter("a", pd.Timestamp("2026-01-01"), "treatment", 0.5)
    assert monitor.watermark == pd.Timestamp("2026-01-01")


def test_the_propensity_stays_once_units_have_entered():
    monitor = started()
    with pytest.raises(RuntimeError, match="units have entered"):
        monitor.tune(propensity=0.1)
    small().tune(propensity=0.1)


def test_tuning_may_not_exclude_units_that_have_entered():
    monitor = DelayedOutcomeMonitor(target_clock=10.0)
    monitor.enter("a", 0.0, "control", 0.05)
    exact = {"value_range": (0, 5), "method": "exact"}
    with pytest.raises(ValueError, match="not below smallest_propensity"):
        monitor.tune(**exact, smallest_propensity=0.1)
    monitor.tune(**exact, smallest_propensity=0.05)
    assert monitor.design.method == "exact"


@pytest.mark.parametrize(
    "damage",
    [
        lambda state: state.pop("settings"),
        lambda state: state["settings"].pop("arms"),
        lambda state: state.update(late="never"),
        lambda state: state.update(recurrent="never"),
        lambda state: state.update(growth=[]),
        lambda state: state.update(unit="ab", event=["x", 1]),
        lambda state: state["entry"].pop(),
        lambda state: state.update(timeline={"kind": "numbers", "zon": None}),
    ],
)
def test_a_damaged_state_is_refused(damage):
    state = json.loads(started().to_json())
    damage(state)
    with pytest.raises(ValueError, match="the state is damaged"):
        DelayedOutcomeMonitor.from_json(json.dumps(state))


@pytest.mark.parametrize(
    "zone",
    [
        datetime.timezone(datetime.timedelta(hours=5, minutes=30), "X"),
        dateutil.tz.tzoffset("foo", 19_800),
        "Asia/Kolkata",
    ],
)
def test_times_in_any_zone_come_back_as_the_same_instant(zone):
    time = pd.Timestamp("2026-01-01 12:00", tz="UTC").tz_convert(zone)
    monitor = small()
    monitor.enter("a", time, "treatment")
    again = DelayedOutcomeMonitor.from_json(monitor.to_json())
    assert again.snapshot().time == monitor.snapshot().time == time


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_times_of_arrow_keep_their_zone(zone):
    arrow = pytest.importorskip("pyarrow")
    times = pd.date_range("2026-01-01", periods=2, tz=zone)
    column = pd.Series(times).astype(pd.ArrowDtype(arrow.timestamp("us", tz=zone)))
    monitor = small()
    monitor.update(pd.DataFrame({"unit": [1, 2], "time": column, "arm": ["control", "treatment"]}))
    assert monitor.watermark == times[1]


@pytest.mark.parametrize("values", [[0.0], [3.0, -3.0]])
def test_a_late_sum_of_zero_is_no_event_as_one_in_time(values):
    settings = {"value_range": (-5, 5), "recurrent": "sum_window", "window": 2.0, "late": "revise"}
    late, early = started(**settings), started(**settings)
    for value in values:
        early.event("a", 1.5, value)
    for value in values:
        late.snapshot(9.0)
        late.event("a", 1.5, value)
    assert late.snapshot(9.0).events == early.snapshot(9.0).events == {"control": 0, "treatment": 0}
