"""Times as numbers: plain numbers, datetimes without a zone, or datetimes with one; never mixed."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from stats_design.delayed_outcomes.boundary import Floats

NUMBER, NAIVE, AWARE = "numbers", "datetimes without a time zone", "datetimes with a time zone"


def _kind_of_dtype(dtype: Any) -> str | None:
    if isinstance(dtype, pd.DatetimeTZDtype):
        return AWARE
    if pd.api.types.is_datetime64_any_dtype(dtype):
        return NAIVE
    if pd.api.types.is_numeric_dtype(dtype) and not pd.api.types.is_bool_dtype(dtype):
        return NUMBER
    return None


def _zone_name(zone: datetime.tzinfo) -> str:
    """A name that pandas reads back; UTC for a zone that has none."""
    offset = zone.utcoffset(None)
    name = str(zone) if offset is None else str(datetime.timezone(offset))
    try:
        pd.Timestamp(0, tz=name)
    except (ValueError, KeyError, AttributeError, OSError):
        return "UTC"
    return name


@dataclass(frozen=True)
class Timeline:
    """The kind of an experiment's times, and the way from them to numbers and back.

    Datetimes become microseconds since 1970 (UTC for those with a zone), which a float64 holds
    exactly until the year 2255; what is finer than a microsecond is cut off.
    """

    kind: str
    zone: str | None = None

    @classmethod
    def of(cls, values: Any, name: str) -> Timeline:
        """The timeline on which `values` lie; TypeError if they are no times."""
        series = _as_series(values, name)
        kind = _kind_of_dtype(series.dtype)
        if kind is None:
            raise TypeError(
                f"{name} has the type {series.dtype}; allowed: numbers or datetimes "
                "(parse text with pandas.to_datetime and an explicit format first)"
            )
        return cls(kind, _zone_name(series.dt.tz) if kind == AWARE else None)

    def numbers(self, values: Any, name: str) -> Floats:
        """`values` as float64, missing ones as NaN; TypeError if they are of another kind."""
        series = _as_series(values, name)
        if series.isna().all():
            return np.full(len(series), np.nan)
        kind = Timeline.of(series, name).kind
        if kind != self.kind:
            raise TypeError(
                f"{name} has {kind}, the other times are {self.kind}; allowed: one kind"
            )
        if kind == NUMBER:
            return np.asarray(series.to_numpy(dtype=np.float64, na_value=np.nan))
        if kind == AWARE:
            series = series.dt.tz_convert("UTC").dt.tz_localize(None)
        micro = series.to_numpy().astype("datetime64[us]")
        return np.where(np.isnat(micro), np.nan, micro.astype(np.int64).astype(np.float64))

    def number(self, value: Any, name: str) -> float:
        """One time as a float."""
        if self.kind == NUMBER and isinstance(value, (int, float, np.integer, np.floating)):
            return float(value)
        return float(self.numbers([value], name)[0])

    def back(self, numbers: Floats) -> Any:
        """Numbers as times again: float64, or datetime64 in the original zone."""
        if self.kind == NUMBER:
            return numbers
        known = np.isfinite(numbers)
        micro = np.where(known, numbers, 0).astype(np.int64).astype("datetime64[us]")
        stamps = pd.DatetimeIndex(np.where(known, micro, np.datetime64("NaT")))
        return stamps if self.kind == NAIVE else stamps.tz_localize("UTC").tz_convert(self.zone)

    def step(self, every: Any, name: str = "every") -> float:
        """A spacing such as `"1D"`, a timedelta or a number as a number; positive."""
        if self.kind == NUMBER:
            if isinstance(every, (str, datetime.timedelta, pd.Timedelta)):
                raise TypeError(f"{name} is {every!r}, the times are numbers; allowed: a number")
            size = float(every)
        else:
            if isinstance(every, (int, float)):
                raise TypeError(
                    f"{name} is {every!r}, the times are datetimes; allowed: '1D', '1h'"
                )
            try:
                size = pd.Timedelta(every) / pd.Timedelta(microseconds=1)
            except ValueError:
                raise ValueError(f"{name} is {every!r}; allowed: such as '1D', '1h'") from None
        if not (np.isfinite(size) and size > 0):
            raise ValueError(f"{name} is {every!r}; allowed: a positive spacing")
        return size


def _as_series(values: Any, name: str) -> pd.Series[Any]:
    series = values if isinstance(values, pd.Series) else pd.Series(values)
    if isinstance(series.dtype, pd.ArrowDtype) and _kind_of_dtype(series.dtype) != NUMBER:
        # Arrow's times do not say in the way of pandas whether they have a zone.
        series = series.astype(object)
    if series.dtype != object:
        return series
    known = series.dropna()
    if known.empty:
        return series.astype("float64")
    if all(isinstance(v, (datetime.date, np.datetime64)) for v in known):
        aware = {getattr(v, "tzinfo", None) is not None for v in known}
        if len(aware) > 1:
            raise TypeError(
                f"{name} mixes datetimes with and without a time zone; allowed: one kind"
            )
        return pd.to_datetime(series, utc=True) if aware == {True} else pd.to_datetime(series)
    if all(isinstance(v, (int, float, np.number)) and not isinstance(v, bool) for v in known):
        return series.astype("float64")
    raise TypeError(
        f"{name} has the type object, such as {known.iloc[0]!r}; allowed: numbers or datetimes "
        "(parse text with pandas.to_datetime and an explicit format first)"
    )


def regular_times(start: float, end: float, step: float) -> Floats:
    """`start + step`, `start + 2 step`, ... up to and including the first one at or after `end`."""
    count = max(1, int(np.ceil((end - start) / step - 1e-12)))
    if count > 10_000_000:
        raise ValueError(f"every gives {count} times between the first and the last; allowed: 1e7")
    return np.asarray(start + step * np.arange(1, count + 1), dtype=np.float64)
