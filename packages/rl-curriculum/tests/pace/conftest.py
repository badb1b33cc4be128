"""Rollouts with random numbers, which no test here takes an expected value from."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rl_curriculum.pace import Rollout


@pytest.fixture
def random_rollout():
    def make(T=12, N=7, inputs=5, actions=3, seed=0, dtype=torch.float64, ends=0.2, **more):
        rng = np.random.default_rng(seed)
        terminated = rng.random((T, N)) < ends
        return Rollout(
            obs=torch.from_numpy(rng.normal(size=(T, N, inputs))).to(dtype),
            actions=torch.from_numpy(rng.integers(0, actions, (T, N))),
            logp=torch.full((T, N), -1.0, dtype=dtype),
            values=rng.normal(size=(T, N)),
            rewards=rng.normal(size=(T, N)),
            terminated=terminated,
            truncated=np.zeros((T, N), bool),
            last_value=rng.normal(size=N),
            **more,
        )

    return make
