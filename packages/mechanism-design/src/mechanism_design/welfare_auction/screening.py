r"""Which users can have a price at all.

Between a user's bid and its critical bid the solution moves by at most `||D||` with
:math:`\lVert D\rVert^2 \le C b_i (\ell(0) - \ell(M_i))`, from adding the two optimality
inequalities. So a user who pays has

.. math:: M_i^2 \le C b_i \lVert x_i \rVert^2 \,(\ell(0) - \ell(M_i)),

and everyone else who is served pays nothing, known without a single refit. For the hinge this is
the stability band `M_i <= C b_i ||x_i||^2` of the paper's Lemma 8.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .losses import SLOPE_AT_ZERO, Floats, Loss, loss_pull, loss_value


def pivotal_candidates(
    loss: Loss,
    margins: Floats,
    bids: Floats,
    norms: Floats,
    scale: float,
    floor: Floats | float = 0.0,
) -> NDArray[np.bool_]:
    """The served users whom the screen cannot clear.

    Parameters
    ----------
    loss
        The margin loss.
    margins, bids, norms
        (m,) margins at the solution, bids, and norms of the rows with the constant feature.
    scale
        `C = 1 / (2 lam m)`.
    floor
        Margins at or below it count as wrong.

    Returns
    -------
    ndarray of bool
        (m,) True where the price may be positive.

    Examples
    --------
    >>> pivotal_candidates("hinge", np.array([0.2, 0.7, -0.1]), np.array([1.0, 1.0, 1.0]),
    ...                    np.ones(3), 0.5).tolist()
    [True, False, False]
    """
    served = margins > floor
    room = scale * bids * norms**2 * (loss_value(loss, np.zeros(1)) - loss_value(loss, margins))
    inside: NDArray[np.bool_] = served & (margins**2 <= room * (1 + 1e-9) + 1e-18) & (bids > 0)
    return inside


def stability_band(loss: Loss, bids: Floats, norms: Floats, scale: float) -> Floats:
    r"""The largest margin that a user who pays can have.

    The positive root of `M^2 = C b ||x||^2 (l(0) - l(M))`; for the hinge `C b ||x||^2` up to 1.

    Parameters
    ----------
    loss
        The margin loss.
    bids, norms
        (m,) bids and norms of the rows.
    scale
        `C = 1 / (2 lam m)`.

    Examples
    --------
    >>> stability_band("hinge", np.array([3.0]), np.array([1.0]), 1 / 6).tolist()
    [0.5]
    """
    room = scale * bids * norms**2
    if loss == "hinge":
        return np.where(room <= 1.0, room, np.sqrt(room))
    if loss == "squared_hinge":
        # Below margin 1: M = room (2 - M). Beyond it the loss is flat: M^2 = room.
        inside = 2 * room / (1 + room)
        return np.where(inside <= 1.0, inside, np.sqrt(room))
    # l(0) - l(M) <= M/2, so the root lies in [0, room / 2]; the excess M^2 - room(...) is convex.
    band = SLOPE_AT_ZERO[loss] * room
    for _ in range(60):
        excess = band**2 - room * (np.log(2.0) - loss_value(loss, band))
        slope = 2 * band - room * loss_pull(loss, band)
        with np.errstate(divide="ignore", invalid="ignore"):
            moved = np.where(slope > 0, band - excess / slope, 0.0)
        if np.allclose(moved, band, rtol=1e-14, atol=0):
            break
        band = moved
    return np.maximum(band, 0.0)
