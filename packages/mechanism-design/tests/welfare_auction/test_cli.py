"""The command: what it writes, what it refuses, and that nothing is ever half written."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from mechanism_design._files import read_table, write_text, write_whole
from mechanism_design.cli import app
from mechanism_design.welfare_auction import AccuracyAuction
from mechanism_design.welfare_auction.features import Encoding

ROOM = "welfare-auction"


def run(*arguments):
    return CliRunner().invoke(app, [ROOM, *map(str, arguments)])


@pytest.fixture
def table(tmp_path, random_users):
    X, y, bids = random_users(120, 2, seed=61, shift=0.3)
    frame = pd.DataFrame(X, columns=["age", "income"])
    frame["job"] = np.where(np.arange(120) % 3 == 0, "clerk", "smith")
    frame["served"] = np.where(y > 0, "yes", "no")
    frame["bid"] = bids
    frame.to_csv(tmp_path / "users.csv", index=False)
    frame.to_parquet(tmp_path / "users.parquet")
    return tmp_path, frame


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_fit_writes_the_auction(suffix, table):
    folder, frame = table
    out = folder / "out"
    found = run(
        "fit", folder / f"users.{suffix}", "--label", "served", "--bid", "bid", "--out", out,
        "--lam", 0.05,
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    report = read_table(out / f"report.{suffix}")
    encoding = Encoding.of(frame, ["age", "income", "job"])
    auction = AccuracyAuction(lam=0.05).fit(
        encoding.transform(frame), frame["served"], frame["bid"]
    )
    np.testing.assert_allclose(report["payment"], auction.payments_)
    assert (report["payment"] > 0).any()
    assert f"{auction.revenue_:,.6g}" in found.output
    model = json.loads((out / "model.json").read_text())
    assert model["features"] == ["age", "income", "job=clerk", "job=smith"]
    np.testing.assert_array_equal(model["coefficients"], auction.coef_[0])
    assert (out / "auction.svg").read_text().startswith("<?xml")
    assert {p.name for p in out.iterdir()} == {f"report.{suffix}", "model.json", "auction.svg"}


def test_predict_gives_the_classifier_to_new_users(table):
    folder, frame = table
    data, out = folder / "users.csv", folder / "out"
    run("fit", data, "--label", "served", "--bid", "bid", "--out", out)
    found = run("predict", out / "model.json", data, "--out", folder / "new.csv")
    assert found.exit_code == 0, found.output
    report, new = pd.read_csv(out / "report.csv"), pd.read_csv(folder / "new.csv")
    assert new["label"].tolist() == report["predicted"].tolist()
    assert np.abs(new["score"]).tolist() == pytest.approx(np.abs(report["margin"]).tolist())
    assert len(frame) == len(new)


def test_audit_finds_no_lie_that_pays(table):
    folder, _ = table
    found = run(
        "audit", folder / "users.csv", "--label", "served", "--bid", "bid", "--users", 5,
        "--lam", 0.05,
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    assert "0 of them profitable" in found.output


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        ({}, ["--label", "nope", "--bid", "bid"], "no column 'nope'"),
        ({}, ["--label", "served", "--bid", "job"], "column 'job' holds 'clerk' in row 0"),
        ({}, ["--label", "served", "--bid", "bid", "--lam", "0"], "strong convexity"),
        ({}, ["--label", "served", "--bid", "bid", "--loss", "zero-one"], "loss is 'zero-one'"),
        ({}, ["--label", "served", "--bid", "bid", "--cap", "0.1"], "in [0, 0.1]"),
        ({}, ["--label", "served", "--bid", "bid", "--drop", "x"], "no column 'x' to drop"),
        ({}, ["--label", "served", "--bid", "bid", "--features", "bid"], "cannot be features"),
        ({"age": None}, ["--label", "served", "--bid", "bid"], "column 'age' holds nan in row 7"),
        ({"job": None}, ["--label", "served", "--bid", "bid"], "column 'job' is empty in row 7"),
        ({"bid": -1.0}, ["--label", "served", "--bid", "bid"], "in row 7; allowed"),
        ({"served": "maybe"}, ["--label", "served", "--bid", "bid"], "Theorem 1"),
        ({"served": None}, ["--label", "served", "--bid", "bid"], "column 'served' is empty"),
    ],
)
def test_bad_input_is_one_line_and_status_2(change, arguments, message, table):
    folder, frame = table
    for column, value in change.items():
        frame[column] = frame[column].astype(object)
        frame.loc[7, column] = value
    frame.to_csv(folder / "bad.csv", index=False)
    found = run("fit", folder / "bad.csv", *arguments, "--out", folder / "out")
    assert found.exit_code == 2
    assert message in found.output
    assert len(found.output.strip().splitlines()) == 1
    assert not (folder / "out").exists()


@pytest.mark.parametrize("below", ["", "deeper/still"])
def test_where_nothing_can_be_written_is_refused_before_the_auction(below, table):
    folder, _ = table
    data = folder / "users.csv"
    found = run("fit", data, "--label", "served", "--bid", "bid", "--out", data / below)
    assert found.exit_code == 2
    assert "is no folder" in found.output
    assert len(found.output.strip().splitlines()) == 1


def test_files_that_are_no_tables(tmp_path):
    (tmp_path / "x.csv").write_text("")
    (tmp_path / "x.parquet").write_text("no")
    (tmp_path / "x.txt").write_text("a,b\n1,2\n")
    for name in ("missing.csv", "x.csv", "x.parquet", "x.txt"):
        found = run("fit", tmp_path / name, "--label", "a", "--bid", "b", "--out", tmp_path)
        assert found.exit_code == 2
        assert len(found.output.strip().splitlines()) == 1
    (tmp_path / "model.json").write_text("{}")
    (tmp_path / "y.csv").write_text("a,b\n1,2\n")
    found = run("predict", tmp_path / "model.json", tmp_path / "y.csv", "--out", tmp_path / "z.csv")
    assert found.exit_code == 2
    assert "not a model" in found.output


def test_an_interrupted_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "report.csv"
    write_text(path, "old")

    def interrupted(temporary):
        temporary.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_whole(path, interrupted)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["report.csv"]


def test_the_method_imports_neither_heavy_extras_nor_the_bench():
    code = (
        "import sys, mechanism_design.welfare_auction, mechanism_design.welfare_auction.cli; "
        "print([m for m in ('numba', 'matplotlib', 'repro_bench', 'torch') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
