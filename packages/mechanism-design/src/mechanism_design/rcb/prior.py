r"""Public beliefs about the arms: independent Gaussian coefficients, and what data make of them.

Arm k has mean reward :math:`x^\top\beta_k` with :math:`\beta_k \sim N(b_k, S_k)`. After rows X with
rewards y the coefficients are Gaussian with covariance
:math:`(S_k^{-1} + X^\top X/\sigma^2)^{-1}` and mean
:math:`S_k^{post}(S_k^{-1}b_k + X^\top y/\sigma^2)`.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


class GaussianPrior:
    """Independent Gaussian priors on the coefficients of K arms.

    Parameters
    ----------
    mean
        (K, d).
    cov
        (K, d, d), or (d, d) or a number for all arms; symmetric and positive definite.

    Raises
    ------
    ValueError
        If there are fewer than two arms, shapes do not fit, or a covariance is not one.

    Examples
    --------
    >>> prior = GaussianPrior([[0.5, 0.0], [0.0, 0.0]], cov=0.25)
    >>> prior.n_arms, prior.dim
    (2, 2)
    """

    def __init__(self, mean: ArrayLike, cov: ArrayLike) -> None:
        self.mean = np.array(mean, dtype=np.float64)
        if self.mean.ndim != 2 or self.mean.shape[0] < 2 or self.mean.shape[1] < 1:
            shape = self.mean.shape
            raise ValueError(f"mean has the shape {shape}; allowed: (K, d) with at least two arms")
        if not np.isfinite(self.mean).all():
            raise ValueError("mean has NaN or infinity; allowed: finite numbers")
        arms, d = self.mean.shape
        given = np.array(cov, dtype=np.float64)
        if given.ndim == 0:
            given = given * np.eye(d)
        if given.shape not in ((d, d), (arms, d, d)):
            raise ValueError(
                f"cov has the shape {given.shape}; allowed: a number, {(d, d)} or {(arms, d, d)}"
            )
        self.cov = np.broadcast_to(given, (arms, d, d)).copy()
        if not np.isfinite(self.cov).all() or not np.allclose(
            self.cov, self.cov.transpose(0, 2, 1)
        ):
            raise ValueError("cov is not finite and symmetric")
        lowest = np.linalg.eigvalsh(self.cov)[:, 0]
        if (lowest <= 0).any():
            k = int(np.argmin(lowest))
            raise ValueError(
                f"cov of arm {k} has the eigenvalue {lowest[k]:.3g}; allowed: positive definite"
            )
        self.precision = np.linalg.inv(self.cov)

    @property
    def n_arms(self) -> int:
        """K."""
        return int(self.mean.shape[0])

    @property
    def dim(self) -> int:
        """d."""
        return int(self.mean.shape[1])

    @classmethod
    def from_history(
        cls,
        X: ArrayLike,
        arms: ArrayLike,
        rewards: ArrayLike,
        ridge: float | None = None,
        n_arms: int = 0,
    ) -> GaussianPrior:
        """The beliefs that logged standard-of-care data leave people with.

        Each arm's posterior from a wide prior N(0, I / ridge) and a pooled noise variance; arms
        that history never tried keep the wide prior around 0.

        Parameters
        ----------
        X, arms, rewards
            (n, d), (n,) integers from 0, (n,).
        ridge
            Precision of the wide prior. If None, one over the mean square of the rewards, so that
            beliefs scale with the unit of reward.
        n_arms
            K, where the history does not show all arms.

        Examples
        --------
        >>> X = [[1.0], [1.0], [1.0], [1.0]]
        >>> prior = GaussianPrior.from_history(X, [0, 0, 0, 1], [1.0, 1.0, 1.0, 0.0])
        >>> prior.mean.round(2).tolist()
        [[0.96], [0.0]]
        """
        rows = as_contexts(X, None)
        chosen, y = np.asarray(arms), np.asarray(rewards, dtype=np.float64)
        if ridge is not None and not (np.isfinite(ridge) and ridge > 0):
            raise ValueError(f"ridge is {ridge!r}; allowed: a positive number")
        if chosen.shape != (len(rows),) or y.shape != (len(rows),):
            raise ValueError(
                f"arms and rewards have the shapes {chosen.shape}, {y.shape}; allowed:"
                f" ({len(rows)},)"
            )
        if not np.issubdtype(chosen.dtype, np.integer) or (len(chosen) and chosen.min() < 0):
            raise ValueError("arms has entries that are not integers from 0")
        if not np.isfinite(y).all():
            raise ValueError("rewards has NaN or infinity; allowed: finite numbers")
        if not len(rows):
            raise ValueError("X has no rows; allowed: a history")
        power = float(np.mean(y**2)) or 1.0
        ridge = 1.0 / power if ridge is None else ridge
        total = max(n_arms, int(chosen.max(initial=-1)) + 1, 2)
        d = rows.shape[1]
        residual, freedom = 0.0, 0
        grams, moments = np.zeros((total, d, d)), np.zeros((total, d))
        for k in range(total):
            own = rows[chosen == k]
            grams[k], moments[k] = own.T @ own, own.T @ y[chosen == k]
            # The mean square of the rewards bounds the noise, which is not known yet.
            fit = np.linalg.solve(grams[k] + ridge * power * np.eye(d), moments[k])
            residual += float(np.sum((y[chosen == k] - own @ fit) ** 2))
            freedom += max(len(own) - d, 0)
        noise = max(residual / freedom, 1e-6 / ridge) if freedom else 1.0 / ridge
        wide = cls(np.zeros((total, d)), 1.0 / ridge)
        mean, cov = wide.posterior(grams, moments, noise**0.5)
        return cls(mean, 0.5 * (cov + cov.transpose(0, 2, 1)))

    def posterior(self, grams: Array, moments: Array, sigma: float) -> tuple[Array, Array]:
        """Means (K, d) and covariances (K, d, d) after data.

        Parameters
        ----------
        grams, moments
            (..., K, d, d) of X^T X and (..., K, d) of X^T y; leading dimensions are kept.
        sigma
            Standard deviation of the noise.

        Examples
        --------
        >>> import numpy as np
        >>> X, y = np.array([[1.0, 0], [1, 1], [1, -1]]), np.array([1.0, 2, 0.5])
        >>> prior = GaussianPrior([[0.5, 0.0]] * 2, np.diag([1.0, 0.25]))
        >>> grams, moments = np.stack([X.T @ X] * 2), np.stack([X.T @ y] * 2)
        >>> mean, cov = prior.posterior(grams, moments, 0.5)
        >>> mean[0].round(6).tolist(), np.diag(cov[0]).round(6).tolist()
        ([1.115385, 0.5], [0.076923, 0.083333])
        """
        cov = np.linalg.inv(self.precision + grams / sigma**2)
        right = (self.precision @ self.mean[:, :, None])[:, :, 0] + moments / sigma**2
        return (cov @ right[..., None])[..., 0], np.asarray(cov, dtype=np.float64)

    def sample(self, worlds: int, rng: np.random.Generator) -> Array:
        """Coefficients of `worlds` independent worlds, (worlds, K, d)."""
        root = np.linalg.cholesky(self.cov)
        draws = rng.standard_normal((worlds, self.n_arms, self.dim, 1))
        return self.mean + (root @ draws)[..., 0]


def as_contexts(X: ArrayLike, dim: int | None) -> Array:
    """Contexts as (n, d) float64, one row for a single context.

    Raises
    ------
    ValueError
        If they have another width, NaN or infinity.
    """
    rows = np.asarray(X, dtype=np.float64)
    rows = rows[None] if rows.ndim == 1 else rows
    if rows.ndim != 2 or (dim is not None and rows.shape[1] != dim):
        wanted = "d" if dim is None else dim
        raise ValueError(f"X has the shape {rows.shape}; allowed: (n, {wanted})")
    # Finite squares have a finite sum unless it overflows; for a single row that is found sooner.
    flat = rows.ravel()
    if not math.isfinite(flat.dot(flat)) and not np.isfinite(rows).all():
        bad = int(np.argmax(~np.isfinite(rows).all(1)))
        raise ValueError(f"X has NaN or infinity in row {bad}; allowed: finite numbers")
    return rows
