r"""The normal-mixture boundary, its tuning, the split of the error budget and the p-value.

Every interval is an estimate plus or minus

.. math:: b(V; a) = \sqrt{\frac{V\eta^2 + 1}{\eta^2}\,\log\frac{V\eta^2 + 1}{a^2}}

where $V$ is the variance clock of an arm: the variance that the random assignment has brought into
the arm's estimate so far. $\eta^2$ decides at which clock the boundary is narrowest; it has to be
fixed before the first event, never from the running clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import lambertw

Floats = NDArray[np.float64]


def check_alpha(alpha: float, name: str = "alpha") -> float:
    """Return `alpha` as a float if it is a level in (0, 1)."""
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float, np.floating)):
        raise TypeError(f"{name} is {alpha!r}; allowed: a number in (0, 1)")
    if not 0 < alpha < 1:
        raise ValueError(f"{name} is {alpha!r}; allowed: a number in (0, 1)")
    return float(alpha)


def _array(values: ArrayLike, name: str) -> Floats:
    try:
        return np.asarray(values, dtype=np.float64)
    except (ValueError, TypeError):
        raise TypeError(f"{name} is {values!r}; allowed: numbers") from None


def _positive(values: ArrayLike, name: str) -> Floats:
    array = _array(values, name)
    if not np.all(np.isfinite(array) & (array > 0)):
        raise ValueError(f"{name} is {values!r}; allowed: positive finite numbers")
    return array


def _clock(values: ArrayLike, name: str) -> Floats:
    array = _array(values, name)
    if not np.all(array >= 0):
        raise ValueError(f"{name} has negative or missing values; allowed: variance clocks >= 0")
    return array


def boundary(clock: ArrayLike, alpha: float, eta2: ArrayLike) -> Floats:
    r"""Half-width of the two-sided normal-mixture confidence sequence.

    Parameters
    ----------
    clock
        Variance clock $V \ge 0$, any shape; in squared units of the outcome.
    alpha
        Level in (0, 1) of the two-sided sequence.
    eta2
        Mixing variance $\eta^2 > 0$, in inverse squared units of the outcome; broadcast against
        `clock`. See `eta2_for`.

    Returns
    -------
    ndarray of float64
        Half-widths, in units of the outcome. At `clock` 0 it is `sqrt(log(1/alpha^2)/eta2)`, not 0.

    Raises
    ------
    ValueError
        If an argument is out of range.

    Source: Theorems 4.6 and 4.9; the boundary is Robbins' normal mixture (Howard et al. 2021).

    Examples
    --------
    >>> round(float(boundary(100, 0.05, 1)), 8)
    32.73018624
    """
    level = check_alpha(alpha)
    v, e = _clock(clock, "clock"), _positive(eta2, "eta2")
    grown = v * e + 1
    return np.asarray(np.sqrt(grown / e * (np.log(grown) - 2 * math.log(level))))


def optimal_growth(alpha: float) -> float:
    r"""The product $x^* = V^*\eta^2$ at which the boundary is narrowest at the clock $V^*$.

    It solves $x - \log(1 + x) = \log(1/\alpha^2)$.

    Examples
    --------
    >>> round(optimal_growth(0.05), 8)
    8.21196806
    """
    level = check_alpha(alpha)
    argument = -(level**2) * math.exp(-1)
    if argument > -1e-300:
        # Lambert's function underflows here; the fixed point converges from any start.
        x = -2 * math.log(level)
        for _ in range(100):
            x = -2 * math.log(level) + math.log1p(x)
        return x
    return float(-lambertw(argument, -1).real - 1)


def eta2_for(target_clock: ArrayLike, alpha: float) -> Floats:
    r"""The $\eta^2$ that makes `boundary` narrowest at a target clock.

    Parameters
    ----------
    target_clock
        Clock $V^*$ at which the answer is wanted, such as its expected value at the end of the
        run; see `target_clock_for`.
    alpha
        Level of the sequence that will use it (an arm's share, not the total).

    Returns
    -------
    ndarray of float64
        $x^*(\alpha) / V^*$; at it, `boundary(target_clock) == sqrt(target_clock * (1 + x*))`.

    Examples
    --------
    >>> round(float(eta2_for(115.1, 0.025)), 8)
    0.08473447
    """
    return optimal_growth(alpha) / _positive(target_clock, "target_clock")


def target_clock_for(
    expected_events: ArrayLike, propensity: ArrayLike, value_scale: float = 1.0
) -> Floats:
    r"""The variance clock to expect at the end of a run, from quantities known before it.

    Parameters
    ----------
    expected_events
        Events expected in an arm over the run if all units were in that arm.
    propensity
        Probability of that arm.
    value_scale
        Root mean square of an event's value.

    Returns
    -------
    ndarray of float64
        $n \frac{1-\pi}{\pi} E[y^2]$.

    Examples
    --------
    >>> float(target_clock_for(3000, 0.5, value_scale=2.0))
    12000.0
    """
    pi = _array(propensity, "propensity")
    if not np.all((pi > 0) & (pi < 1)):
        raise ValueError(f"propensity is {propensity!r}; allowed: numbers in (0, 1)")
    scale = _positive(value_scale, "value_scale")
    return np.asarray(_positive(expected_events, "expected_events") * (1 - pi) / pi * scale**2)


def optimal_alpha_split(target_clocks: ArrayLike, eta2: float, alpha: float) -> Floats:
    r"""Shares of the error budget that make the effect's interval narrowest at target clocks.

    With a common $\eta^2$ and $s_w = \sqrt{V^*_w + 1/\eta^2}$ the shares are
    $\alpha_w = \alpha s_w / \sum_v s_v$. They have to be fixed before the first event.

    Parameters
    ----------
    target_clocks
        One target clock an arm, shape (K,).
    eta2
        The common mixing variance.
    alpha
        Total level, below $e^{-1/2}$ (where the total width stops being convex in the shares).

    Returns
    -------
    ndarray of float64, shape (K,)
        Levels that add up to `alpha`.

    Examples
    --------
    >>> optimal_alpha_split([100, 1600], 0.01, 0.05).round(8).tolist()
    [0.01276984, 0.03723016]
    """
    level = check_alpha(alpha)
    if level >= math.exp(-0.5):
        raise ValueError(f"alpha is {alpha!r}; allowed: below exp(-1/2) = 0.6065")
    sizes = np.sqrt(_clock(target_clocks, "target_clocks") + 1 / _positive(eta2, "eta2"))
    return np.asarray(level * sizes / sizes.sum())


def sequential_p(
    effect: ArrayLike,
    clock0: ArrayLike,
    clock1: ArrayLike,
    eta2: ArrayLike | tuple[ArrayLike, ArrayLike],
    shares: Sequence[float] = (0.5, 0.5),
) -> Floats:
    r"""Always-valid p-value of "the effect is zero", in closed form.

    It is the level $p$ at which the effect's interval just touches zero: the root of
    $|\hat\Delta| = b(V_0; s_0 p) + b(V_1; s_1 p)$, 1 where the interval at level 1 covers zero.
    With $S_w = V_w + 1/\eta_w^2$, $C_w = \log((V_w\eta_w^2 + 1)/s_w^2)$, $u = -2\log p$ and
    $q = \sqrt{S_0 (C_0 + u)}$ the equation is a quadratic in $q$.

    Parameters
    ----------
    effect
        Estimated effects, any shape.
    clock0, clock1
        Variance clocks of the two arms, broadcast against `effect`.
    eta2
        Mixing variance, or a pair of them, one an arm.
    shares
        The arms' shares of the level, as in `optimal_alpha_split(...) / alpha`.

    Returns
    -------
    ndarray of float64
        P-values in (0, 1]; 0 where the number is below the smallest float.

    Examples
    --------
    >>> round(float(sequential_p(80, 100, 300, 0.02)), 10)
    0.1581577465
    """
    e = np.abs(_array(effect, "effect"))
    if not np.all(np.isfinite(e)):
        raise ValueError("effect has missing or infinite values; allowed: finite numbers")
    e0, e1 = eta2 if isinstance(eta2, tuple) else (eta2, eta2)
    eta0, eta1 = _positive(e0, "eta2"), _positive(e1, "eta2")
    if len(shares) != 2 or not all(0 < s < 1 for s in shares) or sum(shares) > 1 + 1e-9:
        raise ValueError(
            f"shares is {shares!r}; allowed: two numbers in (0, 1), together at most 1"
        )
    v0, v1 = _clock(clock0, "clock0"), _clock(clock1, "clock1")
    s0, s1 = v0 + 1 / eta0, v1 + 1 / eta1
    c0 = np.log((v0 * eta0 + 1) / shares[0] ** 2)
    c1 = np.log((v1 * eta1 + 1) / shares[1] ** 2)
    slack = e**2 - s1 * (c1 - c0)
    # e^2 + (S1/S0 - 1) slack, without the difference of nearly equal numbers for S1 << S0.
    ratio = s1 / s0
    root = np.sqrt(np.maximum(ratio * e**2 + (1 - ratio) * s1 * (c1 - c0), 0.0))
    excluded = e > np.sqrt(s0 * c0) + np.sqrt(s1 * c1)
    # The form with the root in the denominator keeps its digits when S0 and S1 are close.
    q = np.where(excluded, slack, 0.0) / np.where(excluded, e + root, 1.0)
    u = np.where(excluded, q**2 / s0 - c0, 0.0)
    return np.asarray(np.exp(-np.maximum(u, 0.0) / 2))


def union_ratio(
    propensity: float, clock0: ArrayLike, clock1: ArrayLike, alpha: float, eta2: ArrayLike
) -> Floats:
    r"""Width of the two-arm sequence relative to one on the traditional variance bound.

    The denominator uses $V_1/(1-\pi) + V_0/\pi$, the sum of $y_1^2/\pi + y_0^2/(1-\pi)$.

    Source: Proposition 4.12.

    Examples
    --------
    >>> round(float(union_ratio(0.5, 10, 1000, 0.05, 1.0)), 7)
    0.7837867
    """
    check_alpha(propensity, "propensity")
    v0, v1 = _clock(clock0, "clock0"), _clock(clock1, "clock1")
    union = boundary(v0, alpha / 2, eta2) + boundary(v1, alpha / 2, eta2)
    return np.asarray(union / boundary(v1 / (1 - propensity) + v0 / propensity, alpha, eta2))
