import numpy as np
import pandas as pd
import pytest

from stats_design.delayed_outcomes import (
    SmallSampleWarning,
    aggregate_query,
    confseq_of_aggregate,
    delayed_confseq,
    make_design,
)

duckdb = pytest.importorskip("duckdb")
LOOKS = np.sort(np.random.default_rng(8).uniform(0, 70, 50))


def assert_same(found, expected):
    pd.testing.assert_frame_equal(found, expected, check_exact=False, rtol=1e-9, atol=1e-9)


@pytest.fixture
def stamped(staggered):
    start = pd.Timestamp("2026-03-01")
    return staggered.assign(
        entry_time=start + pd.to_timedelta(staggered.entry_time, unit="D").dt.floor("us"),
        outcome_time=start
        + pd.to_timedelta(staggered.outcome_time.replace(np.inf, np.nan), unit="D").dt.ceil("us"),
    )


@pytest.mark.parametrize("method", ["exact", "asymptotic"])
@pytest.mark.parametrize("own", [False, True])
def test_relation_equals_memory(staggered, settings, method, own):
    settings["method"] = method
    if own:
        settings = {"method": method, "value_range": (0, 12), "target_clock": 2000.0}
        staggered = staggered.assign(
            propensity=np.random.default_rng(0).uniform(0.2, 0.7, len(staggered))
        )
    found = delayed_confseq(duckdb.from_df(staggered), LOOKS, **settings)
    assert_same(found, delayed_confseq(staggered, LOOKS, **settings))


def test_parquet_file_folder_and_query(staggered, settings, tmp_path):
    expected = delayed_confseq(staggered, LOOKS, **settings)
    for k in range(3):
        (tmp_path / f"day={k}").mkdir()
        staggered.iloc[k::3].to_parquet(tmp_path / f"day={k}" / "part.parquet")
    whole = tmp_path / "it's.parquet"
    staggered.to_parquet(whole)
    assert_same(delayed_confseq(str(whole), LOOKS, **settings), expected)
    whole.unlink()
    assert_same(delayed_confseq(tmp_path, LOOKS, **settings), expected)
    with duckdb.connect() as connection:
        connection.register("log", staggered.rename(columns={"treatment": "w"}))
        query = "SELECT * RENAME (w AS treatment) FROM log"
        found = delayed_confseq(query, LOOKS, connection=connection, **settings)
    assert_same(found, expected)


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_timestamps(stamped, settings, zone):
    looks = pd.date_range("2026-03-02", periods=40, freq="36h", tz=zone)
    if zone:
        stamped = stamped.assign(
            entry_time=stamped.entry_time.dt.tz_localize(zone),
            outcome_time=stamped.outcome_time.dt.tz_localize(zone),
        )
    found = delayed_confseq(duckdb.from_df(stamped), looks, **settings)
    assert_same(found, delayed_confseq(stamped, looks, **settings))


def test_regular_looks(stamped, settings):
    found = delayed_confseq(duckdb.from_df(stamped), every="1D", **settings)
    assert_same(found, delayed_confseq(stamped, every="1D", **settings))


def test_an_event_at_a_look_counts_there(settings):
    units = pd.DataFrame(
        {
            "entry_time": [0.0, 0.1],
            "treatment": [0, 1],
            "outcome_time": [0.3, 0.7],
            "outcome_value": 1.0,
        }
    )
    # 0.1 + 0.2 is above 0.3 in binary; the look 0.3 has the event, the look below has not.
    looks = [0.1, np.nextafter(0.3, 0), 0.3, 0.1 + 0.2, 0.7]
    found = delayed_confseq(duckdb.from_df(units), looks, **settings)
    assert found.events_0.tolist() == [0, 0, 1, 1, 1]
    assert found.n_entered.tolist() == [2, 2, 2, 2, 2]
    assert_same(found, delayed_confseq(units, looks, **settings))


def test_text_labels_with_quotes_and_three_arms():
    units = pd.DataFrame(
        {
            "entry_time": np.zeros(300),
            "treatment": ["it's", "b", "c"] * 100,
            "outcome_time": np.arange(300.0),
            "outcome_value": 1.0,
            "propensity": 1 / 3,
        }
    )
    kw = {"arms": ("it's", "b", "c"), "value_range": (0, 1), "target_clock": 100.0}
    kw["smallest_propensity"] = 1 / 3
    found = delayed_confseq(duckdb.from_df(units), [100.0, 299.0], **kw)
    assert_same(found, delayed_confseq(units, [100.0, 299.0], **kw))


def test_the_query_alone_gives_the_aggregate_for_another_engine(staggered, settings):
    design = make_design(arms=(0, 1), **settings)
    query = aggregate_query("my_units", LOOKS, design)
    with duckdb.connect() as connection:
        connection.register("my_units", staggered)
        aggregate = connection.sql(query).df()
    # Other engines return upper-case names, decimals and any order.
    aggregate = aggregate.sample(frac=1, random_state=0).rename(columns=str.upper)
    found = confseq_of_aggregate(aggregate, LOOKS, design)
    assert_same(found, delayed_confseq(staggered, LOOKS, **settings))


@pytest.mark.parametrize("dialect", ["spark", "bigquery"])
@pytest.mark.parametrize("kind", ["numbers", "naive", "aware"])
def test_the_query_can_be_written_for_warehouses(dialect, kind, settings):
    sqlglot = pytest.importorskip("sqlglot")
    times = {
        "numbers": [1.0, 2.5, 1e9],
        "naive": pd.date_range("2026-01-01", periods=3),
        "aware": pd.date_range("2026-01-01", periods=3, tz="Europe/Berlin"),
    }[kind]
    settings.pop("propensity")
    settings = {"value_range": (0, 12), "target_clock": 10.0, "smallest_propensity": 0.1}
    query = aggregate_query("units", times, make_design(arms=("a", "b"), **settings))
    (written,) = sqlglot.transpile(
        query, read="duckdb", write=dialect, unsupported_level=sqlglot.ErrorLevel.RAISE
    )
    tree = sqlglot.parse_one(written, read=dialect)
    names = {f.sql_name() for f in tree.find_all(sqlglot.exp.Func)}
    # Nothing but what every warehouse has.
    assert names <= {
        "CASE", "IF", "NULLIF", "SUM", "COUNT", "LN", "EXP", "ABS", "CAST", "TRY_CAST", "AND", "OR",
        "TIMESTAMP", "STR_TO_TIME",
    }  # fmt: skip


def test_the_written_query_gives_the_same_after_the_round_trip(staggered, settings):
    sqlglot = pytest.importorskip("sqlglot")
    design = make_design(arms=(0, 1), **settings)
    query = aggregate_query("units", LOOKS, design)
    for dialect in ("spark", "bigquery"):
        (there,) = sqlglot.transpile(query, read="duckdb", write=dialect)
        (back,) = sqlglot.transpile(there, read=dialect, write="duckdb")
        with duckdb.connect() as connection:
            connection.register("units", staggered)
            found = confseq_of_aggregate(connection.sql(back).df(), LOOKS, design)
        assert_same(found, delayed_confseq(staggered, LOOKS, **settings))


def test_large_values_do_not_overflow():
    # lambda y is above 1000 for the largest lambda, where e^x alone is infinite.
    units = pd.DataFrame(
        {
            "entry_time": np.zeros(4),
            "treatment": [0, 1, 0, 1],
            "outcome_time": [1.0, 2.0, 3.0, 4.0],
            "outcome_value": [1e6, 2e6, 1e3, 1.0],
        }
    )
    kw = {"propensity": 0.5, "value_range": (0, 1e7), "target_clock": 1e7}
    found = delayed_confseq(duckdb.from_df(units), [4.0], **kw)
    assert np.isfinite(found.lower_1).all()
    assert_same(found, delayed_confseq(units, [4.0], **kw))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"entry_time": [np.nan, 0.0]}, "1 rows with a missing or infinite entry_time"),
        ({"treatment": [2, 1]}, "1 rows with a treatment that is no arm"),
        ({"outcome_time": [-1.0, 2.0]}, "1 rows with an outcome_time before"),
        ({"outcome_value": [np.nan, 99.0]}, "2 rows with an outcome whose value"),
        ({"propensity": [0.5, 1.5]}, "propensity"),
    ],
)
def test_rows_that_are_not_allowed_are_counted(change, match):
    units = pd.DataFrame(
        {
            "entry_time": [0.0, 0.0],
            "treatment": [0, 1],
            "outcome_time": [1.0, 2.0],
            "outcome_value": [1.0, 1.0],
            "propensity": [0.5, 0.5],
            **change,
        }
    )
    with pytest.raises(ValueError, match=match):
        delayed_confseq(duckdb.from_df(units), [3.0], value_range=(0, 5), target_clock=1.0)


@pytest.mark.parametrize("time", ["nan", "inf", "-inf"])
def test_entry_times_that_are_no_numbers(time, settings):
    query = (
        f"SELECT '{time}'::DOUBLE AS entry_time, 0 AS treatment, NULL::DOUBLE AS outcome_time, "
        "1.0 AS outcome_value"
    )
    with pytest.raises(ValueError, match="1 rows with a missing or infinite entry_time"):
        delayed_confseq(query, [1.0], **settings)


def test_infinite_outcome_times_mean_not_yet(settings):
    query = (
        "SELECT 0.0 AS entry_time, 0 AS treatment, 'inf'::DOUBLE AS outcome_time, "
        "'nan'::DOUBLE AS outcome_value"
    )
    assert delayed_confseq(query, [1.0], **settings).events_0.tolist() == [0]


def test_small_samples_are_warned_of(staggered):
    with pytest.warns(SmallSampleWarning):
        delayed_confseq(duckdb.from_df(staggered.iloc[:20]), [60.0], propensity=0.5, eta2=1.0)


@pytest.mark.parametrize(
    ("source", "times", "error", "match"),
    [
        ("no/such/file.parquet", [1.0], ValueError, "existing Parquet file"),
        (42, [1.0], TypeError, "DataFrame, a DuckDB relation"),
        ("SELECT 1 AS entry_time", [1.0], ValueError, "lacks the columns"),
        (
            "SELECT 0.0 AS entry_time, 0 AS treatment, 1.0 AS outcome_time, 1 AS outcome_value",
            None,
            ValueError,
            "exactly one of times and every",
        ),
        (
            "SELECT 'x' AS entry_time, 0 AS treatment, 'y' AS outcome_time, 1 AS outcome_value",
            [1.0],
            TypeError,
            "entry_time is VARCHAR",
        ),
    ],
)
def test_bad_sources(source, times, error, match, settings):
    with pytest.raises(error, match=match):
        delayed_confseq(source, times, **settings)


DAY = pd.Timestamp("2026-01-01")
FOUR = pd.DataFrame(
    {
        "entry_time": [0.0, 0.0, 1.0, 2.0],
        "treatment": [1, 0, 1, 0],
        "propensity": 0.5,
        "outcome_time": [3.0, 5.0, np.nan, 4.0],
        "outcome_value": [1.0, 1.0, np.nan, 1.0],
    }
)


def both(units, times, **kw):
    kw = {"eta2": 1.0, **kw}
    return delayed_confseq(duckdb.from_df(units), times, **kw), delayed_confseq(units, times, **kw)


@pytest.mark.filterwarnings("ignore::stats_design.delayed_outcomes.SmallSampleWarning")
@pytest.mark.parametrize("units", [FOUR.iloc[:0], FOUR.assign(entry_time=9.0, outcome_time=np.nan)])
def test_nobody_by_the_last_look_as_in_memory(units):
    assert_same(*both(units, [3.0, 5.0]))


@pytest.mark.filterwarnings("ignore::stats_design.delayed_outcomes.SmallSampleWarning")
@pytest.mark.parametrize("missing", [np.nan, None, pd.NaT])
def test_no_outcome_yet_whatever_type_the_empty_column_has(missing):
    entry = DAY + pd.to_timedelta(FOUR["entry_time"], unit="D")
    units = FOUR.assign(entry_time=entry, outcome_time=missing)
    assert_same(*both(units, [DAY, DAY + pd.Timedelta("3D")]))


@pytest.mark.filterwarnings("ignore::stats_design.delayed_outcomes.SmallSampleWarning")
def test_an_infinite_timestamp_is_not_yet():
    table = duckdb.sql(
        "SELECT DATE '2026-01-01' AS entry_time, 0 AS treatment, NULL::DOUBLE AS outcome_value, "
        "'infinity'::TIMESTAMP AS outcome_time"
    )
    found = delayed_confseq(table, [DAY], propensity=0.5, eta2=1.0)
    assert found[["n_entered", "events_0"]].to_numpy().tolist() == [[1, 0]]


@pytest.mark.filterwarnings("ignore::stats_design.delayed_outcomes.SmallSampleWarning")
def test_folders_that_hold_a_column_in_their_names(tmp_path):
    pytest.importorskip("pyarrow")
    # Brackets in a name are no pattern.
    folder = tmp_path / "units [1]"
    for arm, part in FOUR.groupby("treatment"):
        (folder / f"treatment={arm}").mkdir(parents=True)
        # One file lacks a column in which it has nothing.
        empty = ["outcome_value"] if part["outcome_value"].isna().all() else []
        part.drop(columns=["treatment", *empty]).to_parquet(
            folder / f"treatment={arm}" / "a.parquet"
        )
    found = delayed_confseq(str(folder), [3.0, 5.0], eta2=1.0)
    assert_same(found, delayed_confseq(FOUR, [3.0, 5.0], eta2=1.0))


@pytest.mark.filterwarnings("ignore::stats_design.delayed_outcomes.SmallSampleWarning")
@pytest.mark.parametrize("start", ["", "-- units\n", " /* the units */ (", "("])
def test_a_query_may_begin_with_a_comment(start):
    end = ")" if "(" in start else ""
    with duckdb.connect() as connection:
        connection.register("four", FOUR)
        query = f"{start}select * from four{end}"
        found = delayed_confseq(query, [3.0], eta2=1.0, connection=connection)
    assert_same(found, delayed_confseq(FOUR, [3.0], eta2=1.0))


@pytest.mark.parametrize(
    ("units", "message"),
    [
        ("", "allowed: an existing Parquet file"),
        ("x" * 5000, "allowed: an existing Parquet file"),
        ("SELECT * FROM nowhere", "DuckDB cannot read"),
        (".", "a folder with such files"),
    ],
)
def test_a_source_that_is_none_is_refused(units, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        delayed_confseq(units, [3.0], eta2=1.0)


def test_a_file_that_is_not_parquet_is_refused(tmp_path):
    file = tmp_path / "units.parquet"
    FOUR.to_csv(file)
    with pytest.raises(ValueError, match="DuckDB cannot read"):
        delayed_confseq(file, [3.0], eta2=1.0)


@pytest.mark.parametrize(
    ("columns", "error", "message"),
    [
        ({"outcome_time": "soon"}, TypeError, "outcome_time is VARCHAR"),
        ({"entry_time": pd.Timedelta("1D")}, TypeError, "entry_time is INTERVAL"),
        ({"propensity": "half"}, ValueError, "propensity is not all numbers"),
        ({"outcome_value": "much"}, ValueError, "DuckDB cannot aggregate .*'much'"),
        ({"treatment": "new"}, ValueError, "DuckDB cannot aggregate .*'new'"),
        ({"outcome_value": 1e200}, ValueError, "an outcome whose value is missing, too large"),
    ],
)
def test_columns_of_another_type_are_refused(columns, error, message):
    with pytest.raises(error, match=message):
        delayed_confseq(duckdb.from_df(FOUR.assign(**columns)), [3.0, 5.0], eta2=1.0)


def test_three_arms_need_their_smallest_propensities_declared():
    kw = {"arms": (0, 1, 2), "value_range": (0, 1)}
    with pytest.raises(ValueError, match="smallest_propensity"):
        delayed_confseq(duckdb.from_df(FOUR), [5.0], eta2=1.0, **kw)


@pytest.mark.parametrize("times", [[5.0], [1.0, 2.0]])
def test_an_aggregate_of_other_looks_is_refused(times):
    design = make_design(arms=(0, 1), propensity=0.5, eta2=1.0)
    units = duckdb.from_df(FOUR)
    aggregate = units.query("units", aggregate_query("units", [3.0, 4.0, 5.0], design)).df()
    with pytest.raises(ValueError, match="look up to 2"):
        confseq_of_aggregate(aggregate, times, design)
