"""The small auctions that several tests read, and random ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest


@pytest.fixture
def three_users():
    """Example A: one feature, no constant, `y x` = (1, -1, 1/2), bids (3, 2, 1), lam = 1."""
    return np.array([[1.0], [1.0], [0.5]]), np.array([1, -1, 1]), np.array([3.0, 2.0, 1.0])


@pytest.fixture
def six_users():
    """Example B."""
    X = np.array([(1, 0), (0, 1), (-1, -1), (2, 1), (-1, 0.5), (0.5, -2)], dtype=float)
    return X, np.array([1, -1, 1, 1, -1, 1]), np.array([1, 2, 1.5, 0.5, 1, 0.8])


@pytest.fixture
def eight_users():
    """Example C."""
    X = np.array(
        [1.1, 0.2, 0.3, 1.2, -0.9, -1.3, 1.7, 0.8, -1.2, 0.45, 0.65, -1.9, -0.4, 0.15, 0.25, 0.9]
    ).reshape(8, 2)
    y = np.array([1, -1, 1, 1, -1, 1, 1, 1])
    return X, y, np.array([1, 2, 1.5, 0.5, 1, 0.8, 1.2, 3])


@pytest.fixture
def random_users() -> Callable[..., tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Noisy Gaussian users with gamma bids."""

    def make(m: int, d: int, seed: int, shift: float = 0.5):
        rng = np.random.default_rng(seed)
        y = np.where(rng.random(m) < 0.5, -1, 1)
        y[:2] = (-1, 1)
        X = rng.normal(size=(m, d))
        X[:, 0] += shift * y
        return X, y, rng.gamma(1.0, 1.0, m)

    return make
