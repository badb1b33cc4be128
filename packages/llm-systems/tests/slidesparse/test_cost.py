"""The roofline model in its limits, where it is known in closed form."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from llm_systems.slidesparse import Pattern, cost_model


def test_the_bound_is_reached_where_only_products_count(pattern: Pattern) -> None:
    # Infinite bandwidth, K a multiple of all blocks.
    cost = cost_model(4096, 4096, 1680, pattern, peak_dense=1e15, bandwidth=1e30)
    assert cost.speedup == pytest.approx(pattern.max_speedup)
    assert cost.dense_s == pytest.approx(2 * 4096 * 4096 * 1680 / 1e15)


def test_stored_bytes_rule_where_only_the_weight_counts(pattern: Pattern) -> None:
    # One token, a wide weight: everything is the reading of the weight.
    cost = cost_model(1, 10**7, 16800, pattern, peak_dense=1e30, bandwidth=1e12)
    assert cost.speedup == pytest.approx(1 / pattern.bytes_ratio(torch.int8), rel=1e-3)


@pytest.mark.parametrize(
    "change",
    [
        {"M": 0},
        {"K": 2.5},
        {"bandwidth": 0.0},
        {"peak_dense": float("nan")},
        {"peak_dense": None},
        {"bandwidth": True},
        {"peak_sparse": -1.0},
        {"dtype": "int8"},
    ],
)
def test_bad_numbers_are_refused(change: dict[str, float]) -> None:
    sizes = {"M": 1, "O": 8, "K": 8, "peak_dense": 1e12, "bandwidth": 1e12}
    with pytest.raises((ValueError, TypeError), match=rf"{next(iter(change))} is .*; allowed"):
        cost_model(pattern="6:8", **(sizes | change))  # type: ignore[arg-type]


def test_numbers_of_numpy_are_numbers() -> None:
    # 2 M O K is beyond 64 bits, in which numpy's integers would wrap.
    size = 2**21
    plain = cost_model(size, size, size, "6:8", peak_dense=1e12, bandwidth=1e9)
    sizes = [np.int64(size)] * 3
    found = cost_model(*sizes, "6:8", peak_dense=np.float32(1e12), bandwidth=np.float64(1e9))  # type: ignore[arg-type]
    assert found.dense_s == pytest.approx(plain.dense_s, rel=1e-6)
