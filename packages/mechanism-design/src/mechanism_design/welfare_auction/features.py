"""From a table's columns to numeric features, the same way for training and for new users.

The encoding looks at the features alone, never at the bids: one that did would break the proof of
truthfulness.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from .losses import Floats

MAX_LEVELS = 200


@dataclass(frozen=True)
class Column:
    """How one column becomes features.

    Parameters
    ----------
    name
        The column.
    mean, spread
        A number becomes `(number - mean) / spread`.
    levels
        A category becomes one 0/1 feature a level; None for numbers.
    """

    name: str
    mean: float = 0.0
    spread: float = 1.0
    levels: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Encoding:
    """The columns that make the features, in order."""

    columns: tuple[Column, ...]

    @classmethod
    def of(cls, table: pd.DataFrame, names: Sequence[str], standardise: bool = True) -> Encoding:
        """Read an encoding off the training users.

        Parameters
        ----------
        table
            The training users.
        names
            The feature columns; those that do not hold numbers are taken as categories.
        standardise
            Bring numbers to mean 0 and standard deviation 1.

        Examples
        --------
        >>> table = pd.DataFrame({"age": [20.0, 40.0], "job": ["a", "b"]})
        >>> Encoding.of(table, ["age", "job"]).names
        ['age', 'job=a', 'job=b']
        """
        if not names:
            raise ValueError("there is no feature column left; allowed: at least one")
        columns = []
        for name in names:
            if name not in table:
                raise ValueError(f"there is no column {name!r}; allowed: {list(table.columns)}")
            series = table[name]
            if pd.api.types.is_numeric_dtype(series):
                numbers = _numbers(series)
                spread = float(numbers.std())
                usable = standardise and spread > 0
                columns.append(
                    Column(name, float(numbers.mean()), spread) if usable else Column(name)
                )
                continue
            levels = tuple(sorted({str(level) for level in _filled(series)}))
            if len(levels) > MAX_LEVELS:
                raise ValueError(
                    f"column {name!r} has {len(levels)} categories; allowed: at most {MAX_LEVELS} "
                    "(drop the column, or group them)"
                )
            columns.append(Column(name, levels=levels))
        return cls(tuple(columns))

    @property
    def names(self) -> list[str]:
        """The features' names."""
        found = []
        for column in self.columns:
            if column.levels is None:
                found.append(column.name)
            else:
                found += [f"{column.name}={level}" for level in column.levels]
        return found

    def transform(self, table: pd.DataFrame) -> pd.DataFrame:
        """The features (n, d) of a table's users; a category never seen is all zeros."""
        parts: dict[str, Any] = {}
        for column in self.columns:
            if column.name not in table:
                raise ValueError(f"there is no column {column.name!r} in the table")
            series = table[column.name]
            if column.levels is None:
                if not pd.api.types.is_numeric_dtype(series):
                    raise ValueError(f"column {column.name!r} does not hold numbers")
                parts[column.name] = (_numbers(series) - column.mean) / column.spread
                continue
            filled = _filled(series).astype(str)
            for level in column.levels:
                parts[f"{column.name}={level}"] = (filled == level).to_numpy(dtype=np.float64)
        return pd.DataFrame(parts, index=table.index)

    def to_json(self) -> list[dict[str, Any]]:
        """Plain data for a JSON file."""
        return [
            {"name": c.name, "levels": list(c.levels)}
            if c.levels is not None
            else {"name": c.name, "mean": c.mean, "spread": c.spread}
            for c in self.columns
        ]

    @classmethod
    def from_json(cls, columns: Sequence[dict[str, Any]]) -> Encoding:
        """The encoding that `to_json` wrote."""
        return cls(
            tuple(
                Column(str(c["name"]), levels=tuple(map(str, c["levels"])))
                if "levels" in c
                else Column(str(c["name"]), float(c["mean"]), float(c["spread"]))
                for c in columns
            )
        )


def _numbers(series: pd.Series[Any]) -> Floats:
    numbers = series.to_numpy(dtype=np.float64, na_value=np.nan)
    wrong = ~np.isfinite(numbers)
    if wrong.any():
        raise ValueError(
            f"column {series.name!r} holds {numbers[np.argmax(wrong)]} in row "
            f"{int(np.argmax(wrong))}; allowed: finite numbers (fill or drop it first)"
        )
    return np.asarray(numbers)


def _filled(series: pd.Series[Any]) -> pd.Series[Any]:
    missing = series.isna()
    if missing.any():
        raise ValueError(
            f"column {series.name!r} is empty in row {int(np.argmax(missing))}; allowed: a value "
            "in every row (fill or drop it first)"
        )
    return series
