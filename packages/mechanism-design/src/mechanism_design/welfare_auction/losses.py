"""The margin losses of the auction: hinge, squared hinge and logistic.

Every loss is a decreasing convex function of the margin `y f(x)`; that alone makes the allocation
monotone in a user's own bid.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

Loss: TypeAlias = Literal["hinge", "logistic", "squared_hinge"]
Floats: TypeAlias = NDArray[np.float64]

LOSSES: tuple[Loss, ...] = ("hinge", "logistic", "squared_hinge")
SLOPE_AT_ZERO: dict[str, float] = {"hinge": 1.0, "logistic": 0.5, "squared_hinge": 2.0}


def loss_value(loss: Loss, margins: Floats) -> Floats:
    """The loss at each margin.

    Examples
    --------
    >>> loss_value("hinge", np.array([-1.0, 0.5, 2.0])).tolist()
    [2.0, 0.5, 0.0]
    """
    if loss == "logistic":
        return np.asarray(np.logaddexp(0.0, -margins), dtype=np.float64)
    shortfall = np.maximum(1.0 - margins, 0.0)
    return np.asarray(shortfall if loss == "hinge" else shortfall**2)


def loss_pull(loss: Loss, margins: Floats) -> Floats:
    """How hard a user of unit bid pulls the classifier: minus the derivative of the loss.

    At the kink of the hinge (margin 1) the pull is reported as 0; the solver knows the true value.
    """
    if loss == "logistic":
        return np.asarray(expit(-margins), dtype=np.float64)
    if loss == "hinge":
        return (margins < 1.0).astype(np.float64)
    return np.asarray(2.0 * np.maximum(1.0 - margins, 0.0))


def loss_curvature(loss: Loss, margins: Floats) -> Floats:
    """The second derivative of a smooth loss, almost everywhere."""
    if loss == "logistic":
        probability = expit(-margins)
        return np.asarray(probability * (1.0 - probability), dtype=np.float64)
    if loss == "hinge":
        raise ValueError("loss is 'hinge', which has no curvature; allowed: the smooth losses")
    return np.where(margins < 1.0, 2.0, 0.0)
