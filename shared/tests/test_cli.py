"""What a user of `repro` sees: exit status, standard output, messages."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest

Repro = Callable[..., "subprocess.CompletedProcess[str]"]


def test_a_run_prints_its_verdict_and_the_path_of_the_report(repro: Repro) -> None:
    done = repro("run", "good")
    assert done.returncode == 0
    assert "holds" in done.stdout
    assert "report.html" in done.stdout
    assert len([line for line in done.stderr.splitlines() if "seed" in line]) == 12
    assert repro("run", "good", "--quiet").stderr == ""


def test_json_is_the_only_thing_on_standard_output(repro: Repro) -> None:
    done = repro("run", "good", "wrong", "--json")
    document = json.loads(done.stdout)
    assert [run["experiment"] for run in document] == ["good", "wrong"]
    run = document[0]
    assert {"experiment", "field", "preset", "seeds", "claims", "trials", "seconds"} <= set(run)
    assert run["trials"] == {"ok": 12, "failed": 0}
    assert run["seeds"] == 6
    claim = run["claims"][0]
    # The arms share their noise, so the estimate is the effect that was put in.
    assert claim["estimate"] == pytest.approx(5.0)
    assert claim["verdict"] == "holds"
    assert claim["ci_low"] <= claim["estimate"] <= claim["ci_high"]


def test_strict_exits_with_3_when_a_claim_is_refuted(repro: Repro) -> None:
    assert repro("run", "wrong").returncode == 0
    strict = repro("run", "wrong", "--strict")
    assert strict.returncode == 3
    assert "refuted" in strict.stdout


def test_a_trial_that_raises_is_recorded_and_the_others_go_on(repro: Repro) -> None:
    done = repro("run", "failing", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)[0]["trials"] == {"ok": 17, "failed": 1}
    assert "failed" in done.stderr


def test_an_unknown_name_is_answered_with_its_neighbours(repro: Repro) -> None:
    done = repro("run", "godo")
    assert done.returncode == 2
    assert "good" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["run"],
        ["run", "good", "--all"],
        ["run", "good", "--preset", "huge"],
        ["run", "good", "--seeds", "0"],
        ["run", "good", "--jobs", "0"],
        ["run", "good", "--backend", "slurm"],
        ["run", "good", "--record"],
        ["run", "good", "--out", __file__],
        ["run", "good", "--out", f"{__file__}/below"],
        ["run", "absent"],
        ["report"],
        ["report", "--markdown"],
        ["bench", "good"],
        ["show", "nothing"],
        ["fly"],
    ],
)
def test_wrong_use_exits_with_2_and_says_why(repro: Repro, arguments: list[str]) -> None:
    done = repro(*arguments)
    assert done.returncode == 2
    assert done.stderr.strip()
    assert "Traceback" not in done.stderr


def test_a_broken_entry_point_is_listed_and_breaks_nothing(repro: Repro) -> None:
    listed = repro("list")
    assert listed.returncode == 0
    assert "broken" in listed.stdout
    assert "Treatment helps" in listed.stdout
    found = {row["name"]: row for row in json.loads(repro("list", "--json").stdout)}
    assert "nowhere" in found["absent"]["broken"]
    assert found["good"]["claims"] == [{"text": "Treatment helps", "verdict": None}]


def test_the_list_shows_the_last_verdict(repro: Repro) -> None:
    repro("run", "good")
    found = {row["name"]: row for row in json.loads(repro("list", "--json").stdout)}
    assert found["good"]["claims"] == [{"text": "Treatment helps", "verdict": "holds"}]


def test_all_runs_what_works_and_reports_what_is_broken(repro: Repro) -> None:
    done = repro("run", "--all", "--preset", "smoke", "--json")
    assert done.returncode == 1
    names = [run["experiment"] for run in json.loads(done.stdout)]
    assert names == ["failing", "good", "wrong"]
    assert "absent" in done.stderr


def test_show_names_arms_claims_and_presets(repro: Repro) -> None:
    shown = repro("show", "good").stdout
    for expected in ("A Paper (2026)", "control: without", "Treatment helps", "seeds = 6"):
        assert expected in shown
