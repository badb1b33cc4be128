"""From tables to contexts: a history of advice, and a labelled data set."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Array = NDArray[np.float64]


def contexts_of(frame: pd.DataFrame, columns: Sequence[str]) -> tuple[Array, list[str]]:
    """A constant, numbers standardised, and one indicator for each further level of a text.

    Returns
    -------
    X, names
        (n, d), the names of the columns of X.

    Raises
    ------
    ValueError
        If a column is missing, holds gaps, or is constant.
    """
    parts, names = [np.ones(len(frame))], ["constant"]
    for column in columns:
        if column not in frame.columns:
            raise ValueError(f"there is no column {column!r}; there are {list(frame.columns)}")
        values = frame[column]
        if values.isna().any():
            row = int(values.isna().to_numpy().argmax())
            raise ValueError(f"column {column!r} has a gap in row {row}; fill or drop it")
        if pd.api.types.is_numeric_dtype(values):
            numbers = values.to_numpy(dtype=np.float64)
            if not np.isfinite(numbers).all():
                raise ValueError(f"column {column!r} has infinity; allowed: finite numbers")
            spread = numbers.std()
            if spread == 0:
                raise ValueError(f"column {column!r} is constant; name the others as features")
            parts.append((numbers - numbers.mean()) / spread)
            names.append(column)
        else:
            levels = sorted(values.astype(str).unique())
            if len(levels) > 50:
                raise ValueError(f"column {column!r} has {len(levels)} levels; allowed: 50")
            for level in levels[1:]:
                parts.append((values.astype(str) == level).to_numpy(dtype=np.float64))
                names.append(f"{column}={level}")
    return np.column_stack(parts), names


def codes_of(frame: pd.DataFrame, column: str) -> tuple[NDArray[np.int64], list[str]]:
    """Integers from 0 for the levels of a column, in sorted order, and the levels.

    Raises
    ------
    ValueError
        If the column is missing, has gaps, or fewer than 2 or more than 50 levels.
    """
    if column not in frame.columns:
        raise ValueError(f"there is no column {column!r}; there are {list(frame.columns)}")
    if frame[column].isna().any():
        row = int(frame[column].isna().to_numpy().argmax())
        raise ValueError(f"column {column!r} has a gap in row {row}")
    codes, levels = pd.factorize(frame[column], sort=True)
    if not 2 <= len(levels) <= 50:
        raise ValueError(
            f"column {column!r} has {len(levels)} level{'s' * (len(levels) != 1)}; allowed: 2 to 50"
        )
    return codes.astype(np.int64), [str(level) for level in levels]
