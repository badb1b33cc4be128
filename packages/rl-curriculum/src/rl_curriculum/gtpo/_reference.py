"""The equations written out token by token, for one group of responses, in plain Python."""

from __future__ import annotations

import math
from collections.abc import Sequence

Rows = Sequence[Sequence[float]]


def shaped_rewards(
    rewards: Sequence[float], entropy: Rows, alpha: tuple[float, float]
) -> list[list[float]]:
    """Eq. 3 and 5 for rewards of 0 and 1; `entropy[i]` has one number a token of response i."""
    a1, a2 = alpha
    shaped = []
    for i, row in enumerate(entropy):
        tokens = []
        for t, h in enumerate(row):
            side = [
                k for k, r in enumerate(rewards) if r == rewards[i] and len(entropy[k]) > t
            ]  # O+ or O-, where still alive
            if rewards[i] == 1:
                share = h / sum(entropy[k][t] for k in side)
                tokens.append(a1 + a2 * share * len(side))
            else:
                share = (1 / h) / sum(1 / entropy[k][t] for k in side)
                tokens.append(-a1 - a2 * share * len(side))
        shaped.append(tokens)
    return shaped


def advantages(
    rewards: Sequence[float], entropy: Rows, alpha: tuple[float, float], normalization: str
) -> list[list[float]]:
    """Eq. 6 in its four readings."""
    shaped = shaped_rewards(rewards, entropy, alpha)
    if normalization == "outcome":
        mean, std = _moments(rewards)
        scale = [abs(r - mean) / std for r in rewards]
        return [[scale[i] * value for value in row] for i, row in enumerate(shaped)]
    result: list[list[float]] = []
    for i, row in enumerate(shaped):
        same = [r == rewards[i] for r in rewards]
        population = {
            "joint": [v if same[k] else 0.0 for k, other in enumerate(shaped) for v in other],
            "pooled": [v for other in shaped for v in other],
            "polarity": [v for k, other in enumerate(shaped) if same[k] for v in other],
        }[normalization]
        mean, std = _moments(population)
        result.append([(value - mean) / std for value in row])
    return result


def sequence_advantages(
    rewards: Sequence[float], mean_entropy: Sequence[float], beta: tuple[float, float], mode: str
) -> list[float]:
    """Eq. 8 and 9: the same with one number a response."""
    return [row[0] for row in advantages(rewards, [[h] for h in mean_entropy], beta, mode)]


def objective(
    logp: Rows,
    old_logp: Rows,
    advantage: Rows,
    low: float = 0.2,
    high: float = 0.28,
) -> float:
    """Eq. 7, to be maximised."""
    terms = []
    for new, old, adv in zip(logp, old_logp, advantage, strict=True):
        for p, q, a in zip(new, old, adv, strict=True):
            w = math.exp(p - q)
            terms.append(min(w * a, min(max(w, 1 - low), 1 + high) * a))
    return sum(terms) / len(terms)


def sequence_objective(
    logp: Rows, old_logp: Rows, advantage: Sequence[float], low: float = 0.2, high: float = 0.28
) -> float:
    """Eq. 11, to be maximised."""
    total = 0.0
    for new, old, a in zip(logp, old_logp, advantage, strict=True):
        w = sum(math.exp(p - q) for p, q in zip(new, old, strict=True)) / len(new)
        total += min(w * a, min(max(w, 1 - low), 1 + high) * a)
    return total / len(advantage)


def _moments(values: Sequence[float]) -> tuple[float, float]:
    mean = sum(values) / len(values)
    return mean, math.sqrt(sum((v - mean) ** 2 for v in values) / len(values))
