"""Matching of points with outliers, by a small network and a layer: the paper's partial
matching."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn


@dataclass(frozen=True)
class Clouds:
    """Pairs of point clouds and the true matches.

    `left` and `right` are (B, n, 2), `match` is (B, n, n) with 1 where a left point is a right one.
    """

    left: Tensor
    right: Tensor
    match: Tensor


def make_clouds(
    samples: int, inliers: int, outliers: int, noise: float, rng: np.random.Generator
) -> Clouds:
    """Points in the unit square seen twice, with noise, shuffled, among points seen once."""
    n = inliers + outliers
    left = rng.uniform(size=(samples, n, 2))
    right = rng.uniform(size=(samples, n, 2))
    right[:, :inliers] = left[:, :inliers] + noise * rng.normal(size=(samples, inliers, 2))
    match = np.zeros((samples, n, n))
    for b in range(samples):
        order = rng.permutation(n)
        right[b] = right[b, order]
        where = np.argsort(order)[:inliers]
        match[b, np.arange(inliers), where] = 1.0
    return Clouds(*(torch.from_numpy(a.astype(np.float32)) for a in (left, right, match)))


class Affinity(nn.Module):
    """Minus the squared distance over a learned scale, plus a network on both points."""

    def __init__(self, seed: int, hidden: int = 32) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.features = nn.Sequential(nn.Linear(5, hidden), nn.ReLU(), nn.Linear(hidden, 1))
        self.log_scale = nn.Parameter(torch.tensor(3.0))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """(B, n, 2) twice -> (B, n, n)."""
        a, b = left[:, :, None].expand(-1, -1, right.shape[1], -1), right[:, None]
        b = b.expand_as(a)
        distance = (a - b).square().sum(-1, keepdim=True)
        extra = self.features(torch.cat([a, b, distance], -1))
        affinity: Tensor = (extra - self.log_scale.exp() * distance)[..., 0]
        return affinity


def train(
    layer: Callable[[Tensor], Tensor], clouds: Clouds, steps: int, batch: int, seed: int
) -> Affinity:
    """Fit the affinity so that the layer's answer agrees with the true matches (cross-entropy)."""
    net = Affinity(seed)
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-2)
    rng = np.random.default_rng([seed, 1])
    for _ in range(steps):
        chosen = torch.from_numpy(rng.integers(len(clouds.left), size=batch))
        answer = layer(net(clouds.left[chosen], clouds.right[chosen]).flatten(1))
        target = clouds.match[chosen].flatten(1)
        loss = nn.functional.binary_cross_entropy(answer.clamp(1e-6, 1 - 1e-6), target)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return net


def f1_of_best(answer: NDArray[np.float64], match: NDArray[np.float64], k: int) -> float:
    """Mean F1 when the k strongest pairs of the best assignment are taken; (B, n, n) twice."""
    scores = []
    for x, truth in zip(answer, match, strict=True):
        i, j = linear_sum_assignment(x, maximize=True)
        best = np.argsort(-x[i, j])[:k]
        scores.append(2 * truth[i[best], j[best]].sum() / (k + truth.sum()))
    return float(np.mean(scores))
