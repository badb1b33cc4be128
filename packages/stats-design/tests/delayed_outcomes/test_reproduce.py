import dataclasses

import pytest

pytest.importorskip("repro_bench")

from stats_design.delayed_outcomes import datasets, reproduce
from stats_design.delayed_outcomes.reproduce import EXPERIMENT, trial

SIZES = dataclasses.replace(EXPERIMENT.presets["smoke"], assignments=5, draws=50, runs=1)


@pytest.mark.parametrize("arm", ["coverage/exact-arm", "martingale/difference", "cdnow/union"])
def test_a_seed_gives_the_same_numbers(arm):
    assert trial(arm, 1, SIZES) == trial(arm, 1, SIZES)


def test_claims_read_metrics_that_their_arms_report():
    reported = {arm: set(trial(arm, 0, SIZES).metrics) for arm in EXPERIMENT.arms}
    for claim in EXPERIMENT.claims:
        for arm in filter(None, (claim.arm, claim.than)):
            assert claim.metric in reported[arm]


def test_missing_data_fall_back_and_say_so(monkeypatch):
    def missing(*_):
        raise FileNotFoundError("no file")

    monkeypatch.setattr(reproduce, "cdnow_purchases", missing)
    small = datasets.synthetic_customers(500, 0)
    monkeypatch.setattr(reproduce, "synthetic_customers", lambda seed: small)
    assert "stand-in" in trial("cdnow/union", 0, SIZES).notes["data"]


def test_missing_trials_are_not_measured(monkeypatch):
    def missing():
        raise ModuleNotFoundError("no package")

    monkeypatch.setattr(reproduce, "rossi", missing)
    assert "not measured" in trial("trials/rossi", 0, SIZES).notes["data"]


def test_pictures():
    pytest.importorskip("matplotlib")
    from repro_bench import Results

    arms = ("coverage/union", "cdnow/union", "cdnow/naive", "trials/actg-320", "trials/rossi")
    results = Results({(arm, 0): trial(arm, 0, SIZES) for arm in arms}, {}, SIZES)
    for plot in EXPERIMENT.plots.values():
        assert plot(results).axes
