"""The worked group of four responses, and random groups that no expected value is taken from."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture
def group():
    """Rewards, entropies and mask; what stands off the mask must not matter."""
    rewards = torch.tensor([1.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    entropy = torch.tensor(
        [[0.6, 0.2, 0.9], [0.3, 0.6, 7.0], [0.5, 0.1, 0.4], [0.25, 0.4, 7.0]],
        dtype=torch.float64,
    )
    mask = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 1, 1], [1, 1, 0]])
    return rewards, entropy, mask


@pytest.fixture
def random_groups():
    def make(groups=5, size=6, length=9, seed=0, dtype=torch.float64):
        g = torch.Generator().manual_seed(seed)
        rows = groups * size
        rewards = torch.randint(0, 2, (rows,), generator=g).to(dtype)
        entropy = torch.rand(rows, length, generator=g, dtype=dtype) * 3 + 1e-3
        lengths = torch.randint(1, length + 1, (rows,), generator=g)
        mask = torch.arange(length) < lengths[:, None]
        return rewards, entropy, mask

    return make
