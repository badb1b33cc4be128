r"""Inverse-gap weights, and how strongly to weigh.

With estimated rewards :math:`\hat\mu_i`, b the best of them and K arms,

.. math:: p(i) = \frac{1}{K + \gamma(\hat\mu_b - \hat\mu_i)} \quad (i \ne b), \qquad
          p(b) = 1 - \sum_{i \ne b} p(i) \ge 1/K.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def inverse_gap_weights(scores: ArrayLike, gamma: float) -> Array:
    """Probabilities (..., K) from scores (..., K); the first of tied best arms takes the rest.

    `gamma` may be infinite: then a worse arm has probability 0.

    Source: the paper's stage 2; SquareCB.

    Examples
    --------
    >>> inverse_gap_weights([1.0, 0.8, 0.5], gamma=10.0)
    array([0.675, 0.2  , 0.125])
    """
    values = np.asarray(scores, dtype=np.float64)
    arms = values.shape[-1]
    best = values.argmax(-1)[..., None]
    highest = np.take_along_axis(values, best, -1)
    gaps = highest - values
    # No gap times an infinite gamma is 0.
    weights = 1.0 / (arms + np.where(gaps > 0, gamma, 0.0) * gaps)
    np.put_along_axis(weights, best, 0.0, -1)
    np.put_along_axis(weights, best, 1.0 - weights.sum(-1, keepdims=True), -1)
    return np.asarray(weights)


def ridge_mspe(n: float, sigma: float, dim: int, phi0: float) -> float:
    r"""Mean squared prediction error of ridge regression from n samples.

    :math:`(\sigma^2 d + 1)/(\phi_0 n)`, with :math:`\phi_0` the least eigenvalue of E[x x^T].
    """
    return (sigma**2 * dim + 1.0) / (phi0 * n)


def exploitation_gamma(n_arms: int, mspe: float, c: float = 4.0) -> float:
    r""":math:`\gamma = c\sqrt{K / \mathcal E}`.

    Examples
    --------
    >>> round(exploitation_gamma(3, 0.12), 9)
    20.0
    """
    return float(c * np.sqrt(n_arms / mspe))


def sufficient_gamma(posterior_means: Array, eps: float = 0.0) -> float:
    r"""The least gamma at which inverse-gap weights are incentive compatible, whatever the data.

    From :math:`\mathrm{gap}/(K + \gamma\,\mathrm{gap}) \le 1/\gamma`: it suffices that
    :math:`1/\gamma \le E[(m_i - \max_{l \ne i} m_l)_+]/K + \epsilon P(I = i)` for every arm, where
    the probability of an arm is at least its share as the best arm by 1/K.

    Parameters
    ----------
    posterior_means
        (worlds, n, K): of each world, at each context. The gamma holds at every context.
    eps
        The incentive budget.

    Returns
    -------
    float
        Infinite where an arm is never the best.

    Examples
    --------
    Each arm leads by 1 in half of the worlds, so 1/gamma may be 0.5/2:

    >>> round(sufficient_gamma(np.array([[[1.0, 0.0]], [[0.0, 1.0]]])), 6)
    4.0
    """
    arms = posterior_means.shape[-1]
    others = second_best(posterior_means)
    lead = np.maximum(posterior_means - others, 0.0).mean(0)
    share = (posterior_means >= others).mean(0) / arms
    with np.errstate(divide="ignore"):
        return float(np.max(1.0 / (lead / arms + eps * share)))


def second_best(values: Array) -> Array:
    """For each arm the best of the others, along the last axis."""
    top2 = np.partition(values, -2, axis=-1)[..., -2:]
    best = values == top2[..., 1:]
    return np.where(best, top2[..., :1], top2[..., 1:])
