"""Uses the field from an installed wheel, with nothing but what it requires."""

import numpy as np

from mechanism_design.welfare_auction import AccuracyAuction

# Three users on a line with y x = (1, -1, 0.5) and bids (3, 2, 1): by hand the first pays 1.5.
X, y = np.array([[1.0], [-1.0], [-0.5]]), np.array([1, 1, -1])
auction = AccuracyAuction(loss="hinge", lam=1.0, fit_intercept=False)
auction.fit(X, y, bids=np.array([3.0, 2.0, 1.0]))
assert auction.allocation_.tolist() == [True, False, True]
assert np.allclose(auction.payments_, [1.5, 0, 0])
