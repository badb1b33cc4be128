import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from stats_design.delayed_outcomes import assign
from stats_design.delayed_outcomes.cli import app
from stats_design.delayed_outcomes.datasets import pull_forward, synthetic_customers

START = pd.Timestamp("1997-01-01")
OPTIONS = ["--propensity", "0.5", "--value-range", "0,100", "--value-scale", "37"]
OPTIONS += ["--expected-events", "12000", "--no-picture"]


def call(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def write_logs(units, folder, name=""):
    unit = np.arange(len(units))
    arm = np.where(units.treatment == 1, "treatment", "control")
    stamp = START + pd.to_timedelta(units.entry_time, unit="D")
    entries = pd.DataFrame({"unit": unit, "time": stamp, "arm": arm})
    happened = (units.outcome_time <= 545).to_numpy()
    stamp = START + pd.to_timedelta(units.outcome_time[happened], unit="D")
    outcomes = pd.DataFrame(
        {"unit": unit[happened], "time": stamp, "value": units.outcome_value[happened]}
    )
    paths = folder / f"entries{name}.csv", folder / f"outcomes{name}.csv"
    entries.to_csv(paths[0], index=False)
    outcomes.to_csv(paths[1], index=False)
    return entries, outcomes, *paths


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs")
    units = assign(pull_forward(synthetic_customers(2000, 0), 0), 1)
    return folder, *write_logs(units, folder)


def increments(entries, outcomes, folder, days):
    """Daily parts of both logs, the last with all that remains."""
    edges = [START - pd.Timedelta("1D"), *days, pd.Timestamp("2100-01-01")]
    for k, (start, end) in enumerate(zip(edges, edges[1:], strict=False)):
        paths = folder / f"e{k}.csv", folder / f"o{k}.csv"
        for frame, path in zip((entries, outcomes), paths, strict=True):
            frame[(frame.time > start) & (frame.time <= end)].to_csv(path, index=False)
        yield paths


def test_one_run_writes_everything(run, tmp_path):
    pytest.importorskip("matplotlib")
    _, _, outcomes, e, o = run
    found = call("monitor", e, o, "--out", tmp_path / "out", *OPTIONS, "--picture")
    assert found.exit_code == 0, found.output
    assert "2,000 units entered" in found.output
    assert {"history.csv", "history.png", "summary.txt", "state.json"} <= {
        p.name for p in (tmp_path / "out").iterdir()
    }
    history = pd.read_csv(tmp_path / "out" / "history.csv")
    assert history.events_control.iloc[-1] + history.events_treatment.iloc[-1] == len(outcomes)


@pytest.mark.parametrize("growing", [False, True])
def test_ten_daily_parts_equal_one_run(run, tmp_path, growing):
    _, entries, outcomes, e, o = run
    call("monitor", e, o, "--out", tmp_path / "whole", *OPTIONS)
    days = [START + pd.Timedelta(days=k) for k in (60, 61, 62, 63, 64, 65, 66, 67, 68)]
    for k, paths in enumerate(increments(entries, outcomes, tmp_path, days)):
        if growing:
            end = days[k] if k < len(days) else pd.Timestamp("2100-01-01")
            entries[entries.time <= end].to_csv(paths[0], index=False)
            outcomes[outcomes.time <= end].to_csv(paths[1], index=False)
        found = call("monitor", *paths, "--out", tmp_path / "parts", *OPTIONS)
        assert found.exit_code == 0, found.output
    frames = [pd.read_csv(tmp_path / name / "history.csv") for name in ("whole", "parts")]
    pd.testing.assert_frame_equal(*frames, rtol=1e-12)
    summaries = [(tmp_path / name / "summary.txt").read_text() for name in ("whole", "parts")]
    assert summaries[0] == summaries[1]


def test_cdnow_in_ten_daily_parts_equals_one_run(tmp_path):
    from stats_design.delayed_outcomes.datasets import cdnow_customers, cdnow_purchases

    try:
        customers = cdnow_customers(cdnow_purchases())
    except FileNotFoundError as error:
        pytest.skip(str(error))
    units = assign(pull_forward(customers, 0), 1)
    entries, outcomes, e, o = write_logs(units, tmp_path)
    call("monitor", e, o, "--out", tmp_path / "whole", *OPTIONS)
    days = [START + pd.Timedelta(days=k) for k in range(60, 69)]
    for paths in increments(entries, outcomes, tmp_path, days):
        assert call("monitor", *paths, "--out", tmp_path / "parts", *OPTIONS).exit_code == 0
    frames = [pd.read_csv(tmp_path / name / "history.csv") for name in ("whole", "parts")]
    pd.testing.assert_frame_equal(*frames, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGINT])
def test_killed_at_any_moment_loses_nothing(run, tmp_path, kind):
    _, entries, outcomes, e, o = run
    call("monitor", e, o, "--out", tmp_path / "whole", *OPTIONS)
    days = [START + pd.Timedelta(days=k) for k in (40, 60, 80, 200)]
    code = "from stats_design.cli import main; main()"
    base = [sys.executable, "-c", code, "delayed-outcomes", "monitor"]
    killed = 0
    rng = np.random.default_rng(0)
    for paths in increments(entries, outcomes, tmp_path, days):
        command = [*base, *map(str, paths), "--out", str(tmp_path / "parts"), *OPTIONS]
        for _ in range(4):
            process = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ
            )
            time.sleep(float(rng.uniform(0.5, 2.5)))
            process.send_signal(kind)
            killed += process.wait() != 0
            state = tmp_path / "parts" / "state.json"
            if state.exists():
                json.loads(state.read_text())
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert killed > 0
    frames = [pd.read_csv(tmp_path / name / "history.csv") for name in ("whole", "parts")]
    pd.testing.assert_frame_equal(*frames, rtol=1e-12)


def test_a_write_that_fails_leaves_the_old_state(run, tmp_path, monkeypatch):
    from stats_design import _files

    _, _, _, e, o = run
    out = tmp_path / "out"
    call("monitor", e, o, "--out", out, *OPTIONS)
    before = {p.name: p.read_bytes() for p in out.iterdir()}

    def interrupted(self, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(_files.Path, "replace", interrupted)
    found = call("monitor", e, o, "--out", out, *OPTIONS)
    assert found.exit_code == 130
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before


def test_parquet_and_one_log_with_a_kind(run, tmp_path):
    pytest.importorskip("pyarrow")
    _, entries, outcomes, e, o = run
    call("monitor", e, o, "--out", tmp_path / "csv", *OPTIONS)
    log = pd.concat([entries.assign(kind="entry"), outcomes.assign(kind="outcome")])
    log = log.rename(columns={"unit": "user_id"}).sample(frac=1, random_state=0)
    log.to_parquet(tmp_path / "log.parquet")
    found = call(
        "monitor", tmp_path / "log.parquet", "--column", "unit=user_id", "--out",
        tmp_path / "parquet", *OPTIONS,
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    frames = [pd.read_csv(tmp_path / name / "history.csv") for name in ("csv", "parquet")]
    pd.testing.assert_frame_equal(*frames, rtol=1e-9)


def test_exit_status_for_a_scheduler(run, tmp_path):
    _, _, _, e, o = run
    arguments = ["monitor", e, o, "--out", tmp_path / "out", *OPTIONS, "--fail-when"]
    assert call(*arguments, "p_value <= 1").exit_code == 1
    assert call(*arguments, "effect_lower > 1e9").exit_code == 0
    assert call(*arguments, "profit > 0").exit_code == 2
    assert call(*arguments, "profit").exit_code == 2


def test_a_rule_on_the_global_p_value_remembers_earlier_looks(tmp_path):
    # 200 outcomes a side, those of the treatment a day before those of the control.
    arms = ["control", "treatment"] * 200
    entries = pd.DataFrame({"unit": range(400), "time": 0.0, "arm": arms})
    outcomes = pd.DataFrame({"unit": range(400), "time": [2.0, 1.0] * 200})
    entries.to_csv(tmp_path / "e.csv", index=False)
    outcomes.to_csv(tmp_path / "o.csv", index=False)
    arguments = ["monitor", tmp_path / "e.csv", tmp_path / "o.csv", "--out", tmp_path / "out"]
    arguments += ["--propensity", 0.5, "--expected-events", 400, "--no-picture", "--fail-when"]
    assert call(*arguments, "p_value < 0.05").exit_code == 0
    assert call(*arguments, "p_global < 0.05").exit_code == 1


def test_json_output(run, tmp_path):
    _, entries, _, e, o = run
    found = call("monitor", e, o, "--out", tmp_path / "out", *OPTIONS, "--json")
    shown = json.loads(found.stdout)
    assert shown["n_entered"] == len(entries)
    assert shown["contrasts"][0]["arm"] == "treatment"


def test_the_shortest_call_counts_events(tmp_path):
    (tmp_path / "e.csv").write_text("unit,time,arm\n1,0,0\n2,0.5,1\n3,1,1\n")
    (tmp_path / "o.csv").write_text("unit,time\n2,3\n")
    found = call(
        "monitor", tmp_path / "e.csv", tmp_path / "o.csv", "--propensity", 0.5, "--alpha", 0.05,
        "--out", tmp_path / "out",
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    history = pd.read_csv(tmp_path / "out" / "history.csv")
    assert history.estimate_1.tolist() == [2.0]
    assert "expected_events 3" in found.output


def test_a_run_may_begin_before_the_first_outcome(tmp_path):
    pytest.importorskip("matplotlib")
    e, first, later = (tmp_path / name for name in ("e.csv", "first.csv", "later.csv"))
    e.write_text("unit,time,arm\na,2026-03-01T12:00Z,control\nb,2026-03-02T12:00Z,treatment\n")
    first.write_text("unit,time,value\n")
    later.write_text("unit,time,value\nb,2026-03-09T00:00Z,30\n")
    options = ("--propensity", 0.5, "--value-scale", 25, "--out", tmp_path / "out")
    found = call("monitor", e, first, *options)
    assert found.exit_code == 0, found.output
    assert (tmp_path / "out" / "history.png").is_file()
    found = call("monitor", e, later, *options)
    assert found.exit_code == 0, found.output
    assert pd.read_csv(tmp_path / "out" / "history.csv").estimate_treatment.tolist() == [60.0]


def test_offsets_that_change_with_daylight_saving(tmp_path):
    (tmp_path / "e.csv").write_text(
        "unit,time,arm\n1,2026-03-28T12:00:00+01:00,0\n2,2026-03-30T12:00:00+02:00,1\n"
    )
    (tmp_path / "o.csv").write_text("unit,time\n2,2026-03-30T10:00:00Z\n")
    found = call(
        "monitor", tmp_path / "e.csv", tmp_path / "o.csv", "--propensity", 0.5, "--out",
        tmp_path / "out", "--json",
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    # 12:00+02:00 is 10:00 UTC: the outcome is not before the entry.
    assert json.loads(found.stdout)["events"] == {"0": 0, "1": 1}


@pytest.mark.parametrize(
    ("entries", "outcomes", "options", "match"),
    [
        ("unit,time,arm\n1,0,control\n", "unit,time,value\n1,1,3\n", [], "value_scale is missing"),
        ("unit,time,arm\n1,0,control\n", "unit,time,value\n", [], "value_scale is missing"),
        ("unit,time,arm\n1,0,control\n", "unit,time,value\n1,1,much\n", ["--value-scale", "2"],
         "value of outcomes is not all numbers"),
        ("user,time,arm\n1,0,control\n", "unit,time\n", [], "--column unit=THEIRS"),
        ("unit,time,arm\n1,soon,control\n", "unit,time\n", [], "cannot be read as ISO8601"),
        ("unit,time,arm\n1,19970101,control\n", "unit,time\n", ["--time-format", "%d.%m.%Y"],
         "cannot be read as %d.%m.%Y"),
        ("unit,time,arm\n1,2026-01-01T00:00Z,control\n2,2026-01-02,control\n", "unit,time\n", [],
         "with and without an offset"),
        ("unit,time,arm\n1,0,placebo\n", "unit,time\n", [], "arm is 'placebo'"),
        ("unit,time,arm\n1,0,control\n", "unit,time\n2,1\n", [], "unit '2' has not entered"),
        ("unit,time,arm\n1,2,control\n", "unit,time\n1,1\n", [], "before its entry"),
        ("", "unit,time\n", [], "is empty"),
        ("unit,time,arm\n1,0,control\n", "unit,time\n", ["--alpha", "2"], "alpha is 2"),
        ("unit,time,arm\n1,0,control\n", "unit,time\n", ["--every", "x"], "every is 'x'"),
        ("unit,time,arm\n1,0,control\n", "unit,time\n", ["--value-range", "5"], "two numbers"),
        ("unit,time,arm\n1,0,control\n", "unit,time\n", ["--column", "x"], "column is 'x'"),
        ("unit,time,arm\n1,0,control\n", "unit,time\n1,1\n", ["--every", "1D"],
         "every is '1D', the times are numbers"),
        ("unit,time,arm\n1,0,control\n", "unit,time\n1,1\n", ["--every", "0"], "every is 0.0"),
        ("unit,time,arm\n1,0,control\n", "unit,time\n1,1\n", ["--every", "1e-12"],
         "every gives"),
        ("unit,time,arm\n1,0,control\n", "unit,time\n", ["--recurrent", "sum_window", "--window",
         "x"], "window is 'x'"),
        ("unit,time,arm\n1,0,control\n", "unit,time\n", ["--recurrent", "sum_window", "--window",
         "-3"], "window is -3.0"),
        ("unit,time,arm\n,0,control\n", "unit,time\n", [], "unit is missing in a row of entries"),
        ("unit,time,arm\n1,0,control\n", "unit,time\n", ["--propensity", "a"], "propensity is 'a'"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_status_two(tmp_path, entries, outcomes, options, match):
    (tmp_path / "e.csv").write_text(entries)
    (tmp_path / "o.csv").write_text(outcomes)
    arguments = [] if "--propensity" in options else ["--propensity", 0.5]
    found = call(
        "monitor", tmp_path / "e.csv", tmp_path / "o.csv", "--out", tmp_path / "out", *arguments,
        *options,
    )  # fmt: skip
    assert found.exit_code == 2
    assert match in found.output
    assert "Traceback" not in found.output
    assert sorted(p.name for p in tmp_path.iterdir()) == ["e.csv", "o.csv"]


def test_a_refused_run_takes_away_only_what_it_made(tmp_path):
    (tmp_path / "e.csv").write_text("unit,time,arm\n1,0,placebo\n")
    (tmp_path / "kept").mkdir()
    folder = tmp_path / "kept" / "new" / "newer"
    found = call("monitor", tmp_path / "e.csv", tmp_path / "e.csv", "--out", folder, *OPTIONS)
    assert found.exit_code == 2
    assert list((tmp_path / "kept").iterdir()) == []
    call("monitor", tmp_path / "e.csv", tmp_path / "e.csv", "--out", tmp_path / "kept", *OPTIONS)
    assert (tmp_path / "kept").is_dir()


def test_a_file_that_was_cut_short_is_bad_input(run, tmp_path):
    _, entries, _, _, o = run
    entries.to_csv(tmp_path / "e.csv.gz", index=False)
    whole = (tmp_path / "e.csv.gz").read_bytes()
    (tmp_path / "e.csv.gz").write_bytes(whole[: len(whole) // 2])
    found = call("monitor", tmp_path / "e.csv.gz", o, "--out", tmp_path / "out", *OPTIONS)
    assert found.exit_code == 2
    assert "e.csv.gz cannot be read as a table" in found.output


@pytest.mark.parametrize("text", ['{"format":1}', "{", "\xff"])
def test_a_damaged_state_is_named_and_left(run, tmp_path, text):
    _, _, _, e, o = run
    file = tmp_path / "out" / "state.json"
    file.parent.mkdir()
    file.write_text(text, encoding="latin-1")
    found = call("monitor", e, o, "--out", tmp_path / "out", *OPTIONS)
    assert found.exit_code == 2
    assert f"{file} cannot be read" in found.output
    assert file.read_text(encoding="latin-1") == text


def test_units_are_the_same_whatever_else_a_file_holds(tmp_path):
    # A file in which all identifiers are digits, and one in which some are not.
    days = [("unit,time,arm\n1,0,control\n007,0,treatment\n", "unit,time\n"),
            ("unit,time,arm\nNA,2,control\n", "unit,time\n1,3\n007,3\nNA,3\n"),
            ("unit,time,arm\n7,4,control\n", "unit,time\n7,5\n")]  # fmt: skip
    for entries, outcomes in days:
        (tmp_path / "e.csv").write_text(entries)
        (tmp_path / "o.csv").write_text(outcomes)
        found = call(
            "monitor", tmp_path / "e.csv", tmp_path / "o.csv", "--out", tmp_path / "out",
            "--propensity", 0.5, "--json", "--no-picture",
        )  # fmt: skip
        assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["events"] == {"control": 3, "treatment": 1}


def test_units_of_a_parquet_file_and_of_a_csv_file_are_the_same(tmp_path):
    pytest.importorskip("pyarrow")
    entries = pd.DataFrame({"unit": [1, 2], "time": [0, 0], "arm": ["control", "treatment"]})
    entries.to_parquet(tmp_path / "e.parquet")
    (tmp_path / "o.csv").write_text("unit,time\n1,1\n")
    found = call(
        "monitor", tmp_path / "e.parquet", tmp_path / "o.csv", "--out", tmp_path / "out",
        "--propensity", 0.5, "--json", "--no-picture",
    )  # fmt: skip
    assert json.loads(found.stdout)["events"] == {"control": 1, "treatment": 0}


@pytest.mark.parametrize("labels", ["None,new", "false, true", "0.10,0.20", "v1 (old),v2+<b>"])
def test_arms_are_read_as_they_are_written(tmp_path, labels):
    control, treatment = (label.strip() for label in labels.split(","))
    (tmp_path / "e.csv").write_text(f"unit,time,arm\n1,0,{control}\n2,0,{treatment}\n")
    (tmp_path / "o.csv").write_text("unit,time\n2,1\n")
    found = call(
        "monitor", tmp_path / "e.csv", tmp_path / "o.csv", "--out", tmp_path / "out",
        "--propensity", 0.5, "--json", "--no-picture", "--arms", labels,
        "--fail-when", f"estimate_{treatment} >= 2",
    )  # fmt: skip
    assert found.exit_code == 1, found.output
    assert json.loads(found.stdout)["events"] == {control: 0, treatment: 1}


def test_another_setting_than_before_is_refused(run, tmp_path):
    _, _, _, e, o = run
    call("monitor", e, o, "--out", tmp_path / "out", *OPTIONS)
    found = call("monitor", e, o, "--out", tmp_path / "out", "--alpha", 0.1)
    assert found.exit_code == 2
    assert "was started with 0.05" in found.output
    assert call("monitor", e, o, "--out", tmp_path / "out").exit_code == 0


def test_two_runs_at_once(run, tmp_path):
    fcntl = pytest.importorskip("fcntl")
    _, _, _, e, o = run
    (tmp_path / "out").mkdir()
    with (tmp_path / "out" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = call("monitor", e, o, "--out", tmp_path / "out", *OPTIONS)
    assert found.exit_code == 2
    assert "another run holds" in found.output
