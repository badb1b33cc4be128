"""Samples as they come in, and what stands in for a regression without any."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Rows:
    """Samples in the order in which they came."""

    def __init__(self, dim: int) -> None:
        self._parts: list[tuple[Array, NDArray[np.int64], Array]] = []
        self._dim = dim

    def append(self, X: Array, arms: NDArray[np.int64], y: Array) -> None:
        if len(X):
            self._parts.append((X.copy(), arms.copy(), y.copy()))

    def extend(self, other: Rows) -> None:
        self._parts += other._parts

    @property
    def y(self) -> Array:
        return self.arrays()["y"]

    def arrays(self) -> dict[str, NDArray[Any]]:
        if not self._parts:
            empty = np.zeros(0)
            return {"X": np.zeros((0, self._dim)), "arms": empty.astype(np.int64), "y": empty}
        X, arms, y = (np.concatenate(part) for part in zip(*self._parts, strict=True))
        self._parts = [(X, arms, y)]
        return {"X": X, "arms": arms, "y": y}

    def of(self, arm: int) -> tuple[Array, Array]:
        found = self.arrays()
        own = found["arms"] == arm
        return found["X"][own], found["y"][own]

    @classmethod
    def of_arrays(cls, arrays: dict[str, NDArray[Any]], prefix: str = "") -> Rows:
        rows = cls(arrays[f"{prefix}X"].shape[1])
        rows.append(arrays[f"{prefix}X"], arrays[f"{prefix}arms"], arrays[f"{prefix}y"])
        return rows


class Constant:
    """Stands in for the oracle of an arm without a sample: the prior mean."""

    def __init__(self, coef: Array) -> None:
        self.coef_ = coef

    def predict(self, X: Array) -> Array:
        return np.asarray(X @ self.coef_)
