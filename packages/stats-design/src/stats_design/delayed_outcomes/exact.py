r"""The finite-sample confidence sequence of one arm, for outcomes in a known range.

For a fixed $\lambda$ with $e^{\lambda y} > 1 - \pi$ for every possible value $y$,

.. math::

    N_t(\lambda) = e^{-\lambda r_t} \prod_{i:\, w_i = w,\ t_i \le t}
        \Big(1 + \frac{e^{\lambda y_i} - 1}{\pi_i}\Big)

is a nonnegative martingale with mean 1 in the arm's event-time filtration: the factor of a unit is
$e^{-\lambda y}$ or $e^{-\lambda y}(e^{\lambda y} - 1 + \pi)/\pi$, and its mean is 1. Ville's
inequality turns it into bounds on the total reward $r_t$ that hold at all times with probability at
least $1 - a$, at any sample size. Its logarithm is a sum over observed events, so it streams:
`log_growth` gives one event's term for each $\lambda$, `lower_bound` and `upper_bound` invert
the equal-weight mixture over a grid of $\lambda$.

To second order in $\lambda$ the logarithm is $\lambda (\hat r - r) - \lambda^2 \hat V / 2$: the
exact and the normal-mixture sequence agree in large samples.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from stats_design.delayed_outcomes.boundary import Floats, check_alpha

# Factors around the single best lambda, evenly spaced on the log scale.
_SPREAD = 2.0 ** np.linspace(-1.5, 3.0, 9)
_WITHIN = 0.9
_PRECISION = 1e-13


def lambda_limits(
    smallest_propensity: float, value_range: tuple[float, float]
) -> tuple[float, float]:
    """Largest admissible |lambda| on the positive and on the negative side.

    Parameters
    ----------
    smallest_propensity
        Smallest probability of the arm over all units.
    value_range
        Smallest and largest possible value of an event.

    Returns
    -------
    (float, float)
        Infinite on the positive side when values are nonnegative: lower bounds need no upper limit.

    Examples
    --------
    >>> positive, negative = lambda_limits(0.5, (0.0, 1.0))
    >>> positive, round(negative, 4)
    (inf, 0.6931)
    """
    check_alpha(smallest_propensity, "smallest_propensity")
    low, high = value_range
    room = -math.log1p(-smallest_propensity)
    return (room / -low if low < 0 else math.inf, room / high if high > 0 else math.inf)


def lambda_grid(
    target_clock: float,
    alpha: float,
    smallest_propensity: float,
    value_range: tuple[float, float],
) -> Floats:
    """The fixed grid of lambdas of one arm: nine positive ones, then nine negative ones.

    Parameters
    ----------
    target_clock
        Variance clock around which the bounds should be tight.
    alpha
        Level of the arm; each side gets half.
    smallest_propensity, value_range
        As in `lambda_limits`.

    Returns
    -------
    ndarray of float64, shape (18,)

    Examples
    --------
    >>> lambda_grid(115.1, 0.025, 0.5, (0.0, 1.0)).round(3)[[0, 8, 9, 17]].tolist()
    [0.098, 2.208, -0.098, -0.624]
    """
    if not (math.isfinite(target_clock) and target_clock > 0):
        raise ValueError(f"target_clock is {target_clock!r}; allowed: a positive number")
    best = math.sqrt(2 * math.log(2 / check_alpha(alpha)) / target_clock)
    up, down = lambda_limits(smallest_propensity, value_range)
    return np.concatenate(
        [np.minimum(best * _SPREAD, _WITHIN * up), -np.minimum(best * _SPREAD, _WITHIN * down)]
    )


def log_growth(values: ArrayLike, propensity: ArrayLike, lambdas: Floats) -> Floats:
    r"""Terms $\log(1 + (e^{\lambda y} - 1)/\pi)$ of observed events.

    Parameters
    ----------
    values, propensity
        Values of the events and the units' probabilities of the arm they are in, shape (m,).
    lambdas
        Shape (J,).

    Returns
    -------
    ndarray of float64, shape (m, J)

    Examples
    --------
    >>> log_growth([1.0], [0.5], np.array([0.5])).round(6).tolist()
    [[0.831797]]
    """
    y = np.asarray(values, dtype=np.float64)[:, None]
    pi = np.asarray(propensity, dtype=np.float64)[:, None]
    exponent = y * lambdas
    # Beyond this expm1 would overflow, and e^x / pi agrees to the last digit.
    large = exponent > 700
    if np.any(large):
        grown = np.log1p(np.expm1(np.where(large, 0.0, exponent)) / pi)
        return np.asarray(np.where(large, exponent - np.log(pi), grown))
    return np.asarray(np.log1p(np.expm1(exponent) / pi))


def _root(growth: Floats, lambdas: Floats, threshold: Floats) -> Floats:
    """Where the equal-weight mixture falls to `threshold`; all lambdas positive.

    `logsumexp(growth - lambda r)` is convex and decreasing in r, and each term alone gives a point
    left of the root. From there Newton's method climbs to the root and never jumps over it.
    """
    target = threshold + math.log(len(lambdas))
    r = np.max((growth - target[..., None]) / lambdas, axis=-1)
    for _ in range(100):
        terms = growth - lambdas * r[..., None]
        top = terms.max(axis=-1, keepdims=True)
        weights = np.exp(terms - top)
        total = weights.sum(axis=-1)
        step = (np.log(total) + top[..., 0] - target) * total / (weights @ lambdas)
        r = r + step
        # Steps are positive until rounding; 1 / lambda is the scale of r when it is near 0.
        if np.all(step <= _PRECISION * (np.abs(r) + 1 / lambdas.max())):
            break
    return np.asarray(r)


def lower_bound(growth: Floats, lambdas: Floats, tail: float) -> Floats:
    """Lower confidence bound on an arm's total reward.

    Parameters
    ----------
    growth
        Sums of `log_growth` over the observed events, shape (..., J).
    lambdas
        The positive lambdas, shape (J,).
    tail
        Level of this side.

    Returns
    -------
    ndarray of float64, shape (...)

    Examples
    --------
    >>> growth = log_growth([1, 2, 1.5], [0.5] * 3, np.array([0.5])).sum(axis=0)
    >>> round(float(lower_bound(growth, np.array([0.5]), 0.05)), 10)
    0.9993283785
    """
    g = np.asarray(growth, dtype=np.float64)
    threshold = np.full(g.shape[:-1], -math.log(check_alpha(tail, "tail")))
    return _root(g, lambdas, threshold)


def upper_bound(growth: Floats, lambdas: Floats, tail: float) -> Floats:
    """Upper confidence bound on an arm's total reward; as `lower_bound`, with negative lambdas."""
    g = np.asarray(growth, dtype=np.float64)
    threshold = np.full(g.shape[:-1], -math.log(check_alpha(tail, "tail")))
    return -_root(g, -lambdas, threshold)


def _mixture(growth: Floats, lambdas: Floats, r: Floats) -> tuple[Floats, Floats]:
    """Logarithm of the equal-weight mixture at r, and its slope."""
    terms = growth - lambdas * r[:, None]
    top = terms.max(axis=-1)
    weights = np.exp(terms - top[:, None])
    total = weights.sum(axis=-1)
    return np.log(total) + top - math.log(len(lambdas)), -(weights @ lambdas) / total


def _evidence(growth_low: Floats, low: Floats, growth_high: Floats, high: Floats) -> Floats:
    """Height at which the first arm's lower bound meets the second arm's upper bound; (T,).

    The first mixture falls in r, the second rises; their crossing is found by Newton's method
    inside a bracket that halves where Newton leaves it.
    """
    # At height 0 the two bounds are the tightest that any level allows. If they do not cross even
    # there, no level excludes zero.
    zero = np.zeros(len(growth_low))
    left, right = -_root(growth_high, -high, zero), _root(growth_low, low, zero)
    found = np.zeros(len(growth_low))
    rows = np.flatnonzero(right > left)
    falling, rising = growth_low[rows], growth_high[rows]
    left, right = left[rows], right[rows]
    r = (left + right) / 2
    for _ in range(100):
        f, f_slope = _mixture(falling, low, r)
        g, g_slope = _mixture(rising, high, r)
        left, right = np.where(f > g, r, left), np.where(f > g, right, r)
        new = r - (f - g) / (f_slope - g_slope)
        new = np.where((new > left) & (new < right), new, (left + right) / 2)
        done = np.all(np.abs(new - r) <= _PRECISION * (np.abs(r) + 1 / low.max()))
        r = new
        if done:
            break
    found[rows] = np.minimum(_mixture(falling, low, r)[0], _mixture(rising, high, r)[0])
    return found


def exact_p(
    growth0: Floats,
    growth1: Floats,
    lambdas0: Floats,
    lambdas1: Floats,
    shares: tuple[float, float] = (0.5, 0.5),
) -> Floats:
    """Always-valid p-value of "the effect is zero" from the exact sequences of two arms.

    The smallest level at which `[L1 - U0, U1 - L0]` excludes zero, for a fixed grid of lambdas.

    Parameters
    ----------
    growth0, growth1
        Sums of `log_growth`, shape (T, 2J): positive lambdas, then negative ones.
    lambdas0, lambdas1
        The grids of `lambda_grid`, shape (2J,).
    shares
        The arms' shares of the level.

    Returns
    -------
    ndarray of float64, shape (T,)
    """
    half = len(lambdas0) // 2
    # Each arm spends half of its share on each side: log(share / 2) shifts its evidence.
    shift0, shift1 = (math.log(s / 2) for s in shares)
    more = _evidence(
        growth1[..., :half] + shift1, lambdas1[:half], growth0[..., half:] + shift0, lambdas0[half:]
    )
    less = _evidence(
        growth0[..., :half] + shift0, lambdas0[:half], growth1[..., half:] + shift1, lambdas1[half:]
    )
    return np.asarray(np.exp(-np.maximum(np.maximum(more, less), 0.0)))
