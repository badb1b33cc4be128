r"""How many users pay as the population grows.

For a regularised linear class the number of payers settles at a constant: with own-margin effects
:math:`v (-\ell'(0)) x^\top H^{-1} x / m` and `H` the Hessian of the risk,

.. math:: E[\#\text{payers}] \to E_{\text{boundary}}[v (-\ell'(0)) x^\top H^{-1} x]
          \cdot (\text{density of the margin at } 0),

and given `v` the critical bid is uniform on `(0, v)`, so revenue has a further factor `v / 2`.
"""

from __future__ import annotations

import math

from scipy.stats import norm


def gaussian_payer_limit(d: int, distance: float, sd: float, lam: float) -> float:
    r"""The limit of the number of payers among Gaussian users of unit value, hinge loss.

    With every margin below 1 (`lam` of order 1), `H = 2 lam I` and the weights along the first
    axis are `distance / (4 lam)`. The features are those of `make_gaussian_users` with a constant
    appended. Revenue tends to half of it.

    Parameters
    ----------
    d, distance, sd
        As in `make_gaussian_users`.
    lam
        Regularisation.

    Examples
    --------
    >>> round(gaussian_payer_limit(d=16, distance=0.5, sd=1.0, lam=1.0), 2)
    24.75
    """
    if not (distance > 0 and sd > 0 and lam > 0 and math.isfinite(distance / (sd * lam))):
        raise ValueError(
            f"distance, sd, lam are {distance}, {sd}, {lam}; allowed: positive finite numbers"
        )
    weight = distance / (4 * lam)
    density = float(norm.pdf(distance / (2 * sd))) / (sd * weight)
    return density * ((d - 1) * sd**2 + 1) / (2 * lam)
