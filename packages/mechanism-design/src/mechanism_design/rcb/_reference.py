"""The algorithm as it stands in the paper: one user at a time, plain loops, no shared state
tricks."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def inverse_gap_weights(scores: list[float], gamma: float) -> list[float]:
    """The definition, arm by arm."""
    K = len(scores)
    best = max(range(K), key=lambda i: scores[i])
    p = [0.0 if i == best else 1 / (K + gamma * (scores[best] - scores[i])) for i in range(K)]
    p[best] = 1 - sum(p)
    return p


def posterior_mean(b: Array, S: Array, X: list[Array], y: list[float], sigma: float) -> Array:
    """The Gaussian posterior mean, from its normal equations."""
    left, right = np.linalg.inv(S), np.linalg.inv(S) @ b
    for x, value in zip(X, y, strict=True):
        left = left + np.outer(x, x) / sigma**2
        right = right + x * value / sigma**2
    return np.linalg.solve(left, right)


def run(
    means: Array,
    covs: Array,
    contexts: Array,
    coins: Array,
    reward: Array,
    N: int,
    L: float,
    sigma: float,
    phi0: float,
    c: float = 4.0,
) -> tuple[list[int], list[str]]:
    """Arms and kinds for contexts (T, d), coins (T, 2) and the rewards (T, K) of all arms.

    Only the reward of the arm that is played is looked at. Epochs train on the one before.
    """
    K, d = means.shape
    stored: list[list[tuple[Array, float]]] = [[] for _ in range(K)]
    fitted = means.copy()
    now: list[list[tuple[Array, float]]] = [[] for _ in range(K)]
    epoch, clock, gamma = 0, 0, 0.0
    arms, kinds = [], []

    def fit(samples: list[list[tuple[Array, float]]]) -> Array:
        return np.array(
            [
                posterior_mean(
                    means[k], covs[k], [x for x, _ in samples[k]], [v for _, v in samples[k]], sigma
                )
                for k in range(K)
            ]
        )

    for t, x in enumerate(contexts):
        full = [k for k in range(K) if len(stored[k]) >= N]
        if len(full) < K:
            if not full:
                arm, kind = int(np.argmax(means @ x)), "prior"
            elif coins[t, 0] < 1 / L:
                open_ = [k for k in range(K) if k not in full]
                arm, kind = max(open_, key=lambda k: means[k] @ x), "promoted"
            else:
                believed = fit(stored)
                values = [(believed[k] if k in full else means[k]) @ x for k in range(K)]
                arm, kind = int(np.argmax(values)), "organic"
            if kind != "organic":
                stored[arm].append((x, float(reward[t, arm])))
        else:
            if epoch == 0 or clock >= 2**epoch:
                last = N * K if epoch == 0 else 2 ** (epoch - 1)
                samples = stored if epoch == 0 else now
                epoch = math.ceil(2 + math.log2(N)) if epoch == 0 else epoch + 1
                clock = 2 ** (epoch - 1)
                fitted = fit(samples)
                now = [[] for _ in range(K)]
                gamma = c * math.sqrt(K / ((sigma**2 * d + 1) / (phi0 * last)))
            p = inverse_gap_weights([float(fitted[k] @ x) for k in range(K)], gamma)
            arm, total = 0, p[0]
            while coins[t, 1] > total and arm < K - 1:
                arm += 1
                total += p[arm]
            kind = "ipgs"
            clock += 1
            now[arm].append((x, float(reward[t, arm])))
        arms.append(arm)
        kinds.append(kind)
    return arms, kinds
