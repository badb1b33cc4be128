"""Tables, rule files, MPS files and the command, as a practitioner uses them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner, Result

from theory_probes.constraint_layers import constrained_weights, read_mps, read_rules
from theory_probes.constraint_layers.cli import app
from theory_probes.constraint_layers.matching import f1_of_best, make_clouds
from theory_probes.constraint_layers.portfolio import load_returns, windows

RULES = """
total = 1.0
lower = 0.0
upper = 0.6

[[rules]]
name = "growth"
columns = ["a", "b"]
at_least = 0.7

[[rules]]
columns = { a = 1.0, c = -1.0 }
at_most = 0.1
"""


@pytest.fixture
def scores(tmp_path: Path) -> Path:
    path = tmp_path / "scores.csv"
    path.write_text("day,a,b,c\nmon,1,0,0\ntue,0,0,5\nwed,0.2,0.1,0.3\n")
    return path


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "rules.toml"
    path.write_text(RULES)
    return path


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_the_installed_command_reaches_the_method() -> None:
    command = Path(sys.executable).with_name("theory-probes")
    done = subprocess.run(
        [command, "constraint-layers", "project", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "--rules" in done.stdout


@pytest.mark.parametrize("method", ["entropic", "euclidean"])
def test_every_row_obeys_every_rule(rules: Path, method: str) -> None:
    table = pd.DataFrame(np.random.default_rng(0).normal(size=(50, 3)), columns=list("abc"))
    x = constrained_weights(table, read_rules(rules), method=method)  # type: ignore[arg-type]
    assert x.index.equals(table.index)
    np.testing.assert_allclose(x.sum(axis=1), 1, atol=1e-9)
    assert (x[["a", "b"]].sum(axis=1) >= 0.7 - 1e-9).all()
    assert (x["a"] - x["c"] <= 0.1 + 1e-9).all()
    assert x.to_numpy().min() >= -1e-12
    assert x.to_numpy().max() <= 0.6 + 1e-12


def test_the_command_writes_allocations_and_a_report(
    scores: Path, rules: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = run("project", scores, "--rules", rules, "--index", "day", "--out", out)
    assert done.exit_code == 0, done.stderr
    table = pd.read_csv(out / "allocations.csv", index_col="day")
    assert list(table.index) == ["mon", "tue", "wed"]
    np.testing.assert_allclose(table.sum(axis=1), 1, atol=1e-9)
    report = pd.read_csv(out / "rules.csv")
    assert (report["largest_violation"] <= 1e-8).all()
    assert sorted(path.name for path in out.iterdir()) == ["allocations.csv", "rules.csv"]
    parquet = tmp_path / "scores.parquet"
    pd.read_csv(scores).drop(columns="day").to_parquet(parquet)
    again = run("project", parquet, "--rules", rules, "--out", tmp_path / "second")
    assert again.exit_code == 0, again.stderr


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("a", "at_leest = 1", "at_least = 0.7"), "at_leest"),
        (("a", 'columns = ["z", "b"]', 'columns = ["a", "b"]'), "'z'"),
        (("a", "total = 5.0", "total = 1.0"), "contradict"),
        (("a", "total = 1.0 1", "total = 1.0"), "TOML"),
        (("a", "columns = 3", 'columns = ["a", "b"]'), "columns is 3"),
        (("a", 'columns = [["a"]]', 'columns = ["a", "b"]'), "columns is [['a']]"),
    ],
)
def test_rules_that_are_wrong_end_in_one_line(
    scores: Path, rules: Path, change: tuple[str, str, str], said: str
) -> None:
    rules.write_text(rules.read_text().replace(change[2], change[1], 1))
    done = run("project", scores, "--rules", rules, "--index", "day")
    assert done.exit_code == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_tables_that_are_wrong_end_in_one_line(scores: Path, rules: Path, tmp_path: Path) -> None:
    for call, said in (
        (("project", scores, "--rules", rules), "'day'"),
        (("project", tmp_path / "no.csv", "--rules", rules), "not a file"),
        (("project", scores, "--rules", tmp_path / "no.toml"), "not a file"),
        (("project", scores, "--rules", rules, "--index", "week"), "week"),
        (("project", scores, "--rules", rules, "--index", "day", "--method", "x"), "method"),
        (("lp", tmp_path / "no.mps"), "not a file"),
        (("lp", scores), "HiGHS can read"),
    ):
        done = run(*call)
        assert done.exit_code == 2, call
        assert said in done.stderr
        assert "Traceback" not in done.stderr
    scores.write_text("a,b,c\n1,,2\n")
    assert "row 0, column 'b'" in run("project", scores, "--rules", rules).stderr


def test_a_place_that_cannot_be_written_is_refused_before_the_work(
    scores: Path, rules: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(*_: object, **__: object) -> None:
        raise AssertionError("the work began")

    monkeypatch.setattr("theory_probes.constraint_layers.tables.constrained_weights", work)
    file, taken = tmp_path / "file", tmp_path / "taken"
    file.write_text("kept")
    (taken / "rules.csv").mkdir(parents=True)
    for out, said in ((file, "no folder"), (file / "below", "no folder"), (taken, "a folder")):
        done = run("project", scores, "--rules", rules, "--index", "day", "--out", out)
        assert done.exit_code == 2
        assert said in done.stderr
    # Permissions do not bind a superuser, so the system is asked in its place.
    monkeypatch.setattr("os.access", lambda _, mode, **__: not mode & os.W_OK)
    done = run("project", scores, "--rules", rules, "--index", "day", "--out", tmp_path / "new")
    assert done.exit_code == 2
    assert "no permission" in done.stderr
    assert file.read_text() == "kept"
    assert not (tmp_path / "new").exists()


MPS = """NAME          mix
OBJSENSE
    MAX
ROWS
 N  profit
 L  wood
 G  least
 E  pair
COLUMNS
    x  profit  3.0  wood  1.0
    x  least   1.0
    y  profit  2.0  wood  2.0
    y  least   1.0  pair  1.0
    z  profit  1.0  pair  -1.0
RHS
    RHS  wood  4.0  least  1.0
BOUNDS
 UP BND  x  2.0
 UP BND  y  5.0
 UP BND  z  5.0
ENDATA
"""


def test_an_mps_file_is_read_as_it_says(tmp_path: Path) -> None:
    path = tmp_path / "mix.mps"
    path.write_text(MPS)
    program = read_mps(path)
    assert program.names == ["x", "y", "z"]
    # maximise 3x + 2y + z, x + 2y <= 4, x + y >= 1, y = z, x <= 2: (2, 1, 1) gives 9.
    assert program.optimum() == pytest.approx(-9.0)
    assert program.constraints.violation([2.0, 1, 1]) == 0
    assert program.constraints.violation([2.0, 2, 2]) == pytest.approx(2)
    assert program.constraints.violation([0.0, 0, 0]) == pytest.approx(1)
    done = run("lp", path)
    assert done.exit_code == 0, done.stderr
    assert "HiGHS" in done.stdout
    gap = float(done.stdout.split("gap ")[1].split("%")[0])
    assert 0 <= gap < 5


def test_a_program_without_rows_is_read(tmp_path: Path) -> None:
    path = tmp_path / "box.mps"
    path.write_text("NAME\nROWS\n N cost\nCOLUMNS\n a cost 1.0\nBOUNDS\n LO BND a 2\nENDATA\n")
    assert read_mps(path).optimum() == pytest.approx(2.0)
    done = run("lp", path, "--temperature", "0")
    assert done.exit_code == 2
    assert "temperature is 0" in done.stderr


def test_clouds_hold_the_matches_that_they_claim() -> None:
    clouds = make_clouds(20, 5, 2, 0.0, np.random.default_rng(0))
    truth = clouds.match.numpy()
    assert (truth.sum((1, 2)) == 5).all()
    b, i, j = np.nonzero(truth)
    np.testing.assert_array_equal(clouds.left.numpy()[b, i], clouds.right.numpy()[b, j])
    assert f1_of_best(truth, truth, 5) == 1.0
    assert f1_of_best(1 - truth, truth, 5) < 0.5


def test_the_prices_of_twenty_stocks_are_there() -> None:
    returns = load_returns()
    assert returns.values.shape == (8312, 20)
    assert returns.dates[-1] == "2022-12-28"
    assert "MSFT" in returns.tickers
    past, future, days = windows(returns, 60, 30, 30)
    np.testing.assert_allclose(past[1, 30:], future[0], atol=1e-7)
    assert days[0] == returns.dates[60]
