r"""Does it pay to follow? The incentive gain of a recommendation, over the worlds of the prior.

With p_w(i | x) the probability of recommending arm i in world w and m_w the posterior means,

.. math:: G(i, j; x) = \frac{\sum_w p_w(i \mid x)\,(m_{w,i}(x) - m_{w,j}(x))}{\sum_w p_w(i \mid x)}
          + \epsilon,

which replaces draws of recommendations and rewards by their expectations. Compatible means that
every G is at least 0. The rewards of one world say nothing about it: that is regret.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from .bandit import RCB
from .gap_weights import exploitation_gamma, inverse_gap_weights, ridge_mspe
from .planning import ColdStartPlan
from .prior import GaussianPrior, as_contexts
from .samples import Rows

Array = NDArray[np.float64]
# Arms recommended in a smaller share of worlds are not judged: their mean is noise.
_LEAST_SHARE = 2e-3


@dataclass(frozen=True)
class BicAudit:
    """The table of gains, one row for each context, arm and alternative, and the worst gain."""

    table: pd.DataFrame

    @property
    def worst(self) -> float:
        """The least gain."""
        return float(self.table["gain"].min())

    @property
    def ok(self) -> bool:
        """Whether no gain is below 0 by more than three standard errors."""
        return bool(self.table["ok"].all())


def gains_of(probabilities: Array, means: Array, eps: float) -> pd.DataFrame:
    """The gains from probabilities and posterior means, (worlds, n, K) each.

    Returns
    -------
    pandas.DataFrame
        `context`, `arm`, `alternative`, `gain`, `se`, `ok`.
    """
    worlds, _, K = probabilities.shape
    rows = []
    for i in range(K):
        weight = probabilities[:, :, i]
        total = weight.sum(0)
        judged = total >= _LEAST_SHARE * worlds
        for j in range(K):
            if i == j:
                continue
            difference = means[:, :, i] - means[:, :, j]
            with np.errstate(invalid="ignore", divide="ignore"):
                gain = (weight * difference).sum(0) / total
                # The delta method for a ratio of means over worlds.
                spread = np.sqrt((weight**2 * (difference - gain) ** 2).sum(0)) / total
            for x in np.flatnonzero(judged):
                value, se = float(gain[x] + eps), float(spread[x])
                rows.append((int(x), i, j, value, se, value >= -3 * se - 1e-12))
    return pd.DataFrame(rows, columns=["context", "arm", "alternative", "gain", "se", "ok"])


def bic_audit(
    policy: RCB | ColdStartPlan,
    prior: GaussianPrior,
    contexts: ArrayLike,
    stage: Literal["cold", "exploitation"] = "exploitation",
    n_worlds: int = 4000,
    *,
    saturated: Sequence[int] | None = None,
    gamma: float | None = None,
    L: float | None = None,
    seed: int | np.random.Generator = 0,
) -> BicAudit:
    """Audit a stage by simulating what it will know in worlds drawn from the prior.

    Parameters
    ----------
    policy
        A policy or a plan, for N, L, eps and sigma.
    prior
        What people believe.
    contexts
        (n, d): the users audited; samples are drawn from them too.
    stage
        `"cold"` with the arms `saturated` sampled, or `"exploitation"` in its first epoch.
    n_worlds
        Worlds.
    saturated
        Sampled arms of the cold start; the arm that is best by prior mean if None.
    gamma, L
        Instead of the policy's, whose floor of gamma counts.
    seed
        Of worlds and samples.

    Returns
    -------
    BicAudit

    Examples
    --------
    >>> from mechanism_design.rcb import plan_cold_start
    >>> prior = GaussianPrior([[0.5], [0.0]], 1.0)
    >>> plan = plan_cold_start(prior, [[1.0]], eps=0.0, N=20, rule="exact")
    >>> abs(bic_audit(plan, prior, [[1.0]], "cold", 20_000).worst) < 0.02
    True
    """
    rows = as_contexts(contexts, prior.dim)
    rng = np.random.default_rng(seed)
    N, eps, sigma = policy.N, policy.eps, policy.sigma
    K = prior.n_arms
    if stage not in ("cold", "exploitation"):
        raise ValueError(f"stage is {stage!r}; allowed: 'cold' or 'exploitation'")
    best = int((rows @ prior.mean.T).mean(0).argmax())
    sampled = [best] if saturated is None else sorted(saturated)
    known = range(K) if stage == "exploitation" else sampled
    beta = prior.sample(n_worlds, rng)
    grams, moments = np.zeros((K, prior.dim, prior.dim)), np.zeros((n_worlds, K, prior.dim))
    for k in known:
        X = rows[rng.integers(len(rows), size=N)]
        noise = sigma * rng.standard_normal((n_worlds, N))
        grams[k] = X.T @ X
        moments[:, k] = (beta[:, k] @ X.T + noise) @ X
    posterior, _ = prior.posterior(grams, moments, sigma)
    means = np.einsum("wkd,nd->wnk", posterior, rows)
    if stage == "exploitation":
        if gamma is None:
            if isinstance(policy, RCB):
                gamma = policy._gamma(grams, N * K, Rows(prior.dim))
            else:
                gamma = exploitation_gamma(K, ridge_mspe(N * K, sigma, prior.dim, policy.phi0))
        return BicAudit(gains_of(inverse_gap_weights(means, gamma), means, eps))
    if L is None:
        L = policy.L_ if isinstance(policy, RCB) else policy.L_by_stage[len(sampled) - 1]
    probabilities = np.zeros_like(means)
    worlds, index = np.arange(n_worlds)[:, None], np.arange(len(rows))
    np.add.at(probabilities, (worlds, index, means.argmax(2)), 1 - 1 / L)
    prior_means = rows @ prior.mean.T
    prior_means[:, sampled] = -np.inf
    probabilities[:, index, prior_means.argmax(1)] += 1 / L
    return BicAudit(gains_of(probabilities, means, eps))
