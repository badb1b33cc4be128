"""Real data: CDNOW purchases made into a pull-forward experiment, ACTG 320, and the Rossi trial."""

from __future__ import annotations

import numpy as np
import pandas as pd

from stats_design._data import missing_package, package_file
from stats_design.delayed_outcomes.simulate import potential_frame

CDNOW_CAP = 100.0
CDNOW_LAST_DAY = 545
_CDNOW_START = pd.Timestamp("1997-01-01")


def cdnow_purchases() -> pd.DataFrame:
    """The CDNOW log by customer and day, from the file that `lifetimes` carries.

    Returns
    -------
    pandas.DataFrame
        `customer`, `day` (days since 1 January 1997) and `spend` (dollars, the day's sum).

    Raises
    ------
    FileNotFoundError
        With the command that installs the file.
    """
    path = package_file("lifetimes", "0.11.3", "lifetimes/datasets/CDNOW_master.txt")
    log = pd.read_csv(path, sep=r"\s+", header=0, names=["customer", "date", "count", "spend"])
    day = (pd.to_datetime(log["date"].astype(str), format="%Y%m%d") - _CDNOW_START).dt.days
    return log.assign(day=day).groupby(["customer", "day"])[["spend"]].sum().reset_index()


def cdnow_customers(purchases: pd.DataFrame) -> pd.DataFrame:
    """One row a customer: first purchase day, second purchase day (or missing) and its spend."""
    ordered = purchases.sort_values(["customer", "day"])
    rank = ordered.groupby("customer").cumcount()
    first = ordered[rank == 0].set_index("customer")
    second = ordered[rank == 1].set_index("customer")
    return pd.DataFrame(
        {
            "entry": first["day"],
            "second": second["day"].reindex(first.index).astype(float),
            "spend": second["spend"].reindex(first.index),
        }
    ).reset_index()


def pull_forward(customers: pd.DataFrame, seed: int | np.random.Generator = 0) -> pd.DataFrame:
    """A semi-synthetic experiment: a treatment that brings second purchases forward.

    Control is what happened: the day of the second purchase and its spend, capped at 100 dollars.
    Under treatment the delay is 0.7 times as long (whole days, at least one), the spend 0.95 times
    as high, and 6% of those who never bought again do, with the delay of a random buyer and 0.95
    times its spend.

    Returns
    -------
    pandas.DataFrame
        Potential outcomes, as `simulate_dataset` returns them; propensity 1/2.
    """
    rng = np.random.default_rng(seed)
    entry = customers["entry"].to_numpy(dtype=np.float64)
    second = customers["second"].to_numpy(dtype=np.float64)
    bought = np.isfinite(second)
    delay = second - entry
    spend = np.minimum(customers["spend"].to_numpy(dtype=np.float64), CDNOW_CAP)
    converts = ~bought & (rng.random(len(entry)) < 0.06)
    donors = rng.choice(np.flatnonzero(bought), size=int(converts.sum()))
    delay1, spend1 = np.maximum(1.0, np.round(0.7 * delay)), spend.copy()
    delay1[converts], spend1[converts] = delay[donors], spend[donors]
    buys = bought | converts
    time1 = np.full(len(entry), np.inf)
    time1[buys] = entry[buys] + delay1[buys]
    return potential_frame(
        entry,
        (np.where(bought, second, np.inf), time1),
        (np.where(bought, spend, 0.0), np.where(buys, 0.95 * spend1, 0.0)),
        0.5,
    )


def synthetic_customers(n: int = 23_570, seed: int | np.random.Generator = 0) -> pd.DataFrame:
    """A stand-in for `cdnow_customers` where the file is missing, of the same shape."""
    rng = np.random.default_rng(seed)
    entry = rng.integers(0, 84, n).astype(float)
    delay = np.ceil(rng.exponential(150.0, n))
    second = np.where(
        (rng.random(n) < 0.53) & (entry + delay <= CDNOW_LAST_DAY), entry + delay, np.nan
    )
    spend = np.where(np.isfinite(second), rng.lognormal(3.2, 0.7, n), np.nan)
    return pd.DataFrame(
        {"customer": np.arange(n), "entry": entry, "second": second, "spend": spend}
    )


def actg320() -> pd.DataFrame:
    """ACTG 320: 1151 patients randomised to two or three drugs; time to AIDS or death.

    The data have no calendar time: everybody enters at time 0 of the study clock, and a patient
    who leaves early counts as "no event recorded".

    Returns
    -------
    pandas.DataFrame
        Units as `delayed_confseq` takes them; times in days, 1 an event; propensity 1/2.
    """
    try:
        from sksurv.datasets import load_aids  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        raise missing_package("scikit-survival", "0.28.0") from None
    features, outcome = load_aids(endpoint="aids")
    event = np.asarray(outcome["censor"], dtype=bool)
    return _trial(
        (features["tx"].astype(str) == "1").to_numpy(), np.asarray(outcome["time"]), event
    )


def rossi() -> pd.DataFrame:
    """The Rossi trial: 432 released men, financial aid or none; weeks to the first arrest.

    Returns
    -------
    pandas.DataFrame
        As `actg320`; times in weeks.
    """
    try:
        from lifelines.datasets import load_rossi  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        raise missing_package("lifelines", "0.30.3") from None
    men = load_rossi()
    return _trial(
        (men["fin"] == 1).to_numpy(), men["week"].to_numpy(), (men["arrest"] == 1).to_numpy()
    )


def _trial(treated: np.ndarray, time: np.ndarray, event: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "entry_time": np.zeros(len(time)),
            "treatment": treated.astype(np.int64),
            "propensity": 0.5,
            "outcome_time": np.where(event, time.astype(np.float64), np.inf),
            "outcome_value": np.where(event, 1.0, 0.0),
        }
    )
