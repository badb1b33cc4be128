r"""How long the cold start must be and how rarely it may promote.

The published sizes are

.. math:: N \ge \frac{(\sigma^2 d + 1) K^3}{\phi_0 (\tau + \epsilon)^2}, \qquad
          L \ge 1 + \frac{1 - \epsilon}{\tau\rho + \epsilon}.

The second bounds :math:`E[\mathrm{gap}\,1\{I = i\}]`; the definition of incentive compatibility
conditions on the recommendation, which for :math:`\epsilon > 0` needs

.. math:: L \ge 1 + \frac{1 - \epsilon}{\rho(\tau + \epsilon)}.

For Gaussian priors the smallest L is known exactly: see `minimal_promotion`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr

from .prior import GaussianPrior, as_contexts

Array = NDArray[np.float64]
Rule = Literal["conditional", "paper", "exact"]
_MONTE_CARLO = 2000
_LARGE_N = 1_000_000
_LARGE_ROUNDS = 1e9


class IncentiveInfeasible(ValueError):
    """No cold start can make people accept an arm, because it can never look best to them.

    Attributes
    ----------
    arm : int
    """

    def __init__(self, arm: int, message: str) -> None:
        super().__init__(message)
        self.arm = arm


@dataclass(frozen=True)
class ColdStartPlan:
    """What the cold start takes.

    Attributes
    ----------
    N
        Samples to be stored for each arm.
    L
        One user in L is promoted an unpopular arm. With the exact rule the largest of `L_by_stage`.
    L_by_stage
        With the exact rule: L while 1, 2, ... arms have their samples.
    L_by_context
        (n,) with the exact rule: the least L of each context in the last stage, else None.
    tau, rho, phi0, m0
        Fighting chance, its probability, least eigenvalue of E[x x^T], first epoch of exploitation.
    expected_rounds
        Of the cold start.
    promotions
        Expected number of users promoted to each arm, (K,).
    rule, eps, sigma
        As asked for.
    warnings
        What a planner should know.
    """

    N: int
    L: float
    L_by_stage: tuple[float, ...]
    L_by_context: Array | None
    tau: float
    rho: float
    phi0: float
    m0: int
    expected_rounds: float
    promotions: Array
    rule: Rule
    eps: float
    sigma: float
    warnings: tuple[str, ...] = field(default=())


def published_samples(
    sigma: float, dim: int, n_arms: int, phi0: float, tau: float, eps: float
) -> int:
    """N of the paper.

    Examples
    --------
    >>> published_samples(sigma=0.5, dim=4, n_arms=3, phi0=1 / 3, tau=0.1, eps=0.1)
    4050
    """
    needed = (sigma**2 * dim + 1) * n_arms**3 / (phi0 * (tau + eps) ** 2)
    return math.ceil(needed * (1 - 1e-12))


def published_promotion(tau: float, rho: float, eps: float) -> float:
    """L of the paper, which bounds the joint expectation.

    Examples
    --------
    >>> round(published_promotion(tau=0.2, rho=0.5, eps=0.025), 9)
    8.8
    """
    return max(1.0, 1 + (1 - eps) / (tau * rho + eps))


def conditional_promotion(tau: float, rho: float, eps: float) -> float:
    """L for the conditional expectation of the definition.

    Examples
    --------
    >>> round(conditional_promotion(tau=0.2, rho=0.5, eps=0.025), 4)
    9.6667
    """
    return max(1.0, 1 + (1 - eps) / (rho * (tau + eps)))


def first_epoch(N: int) -> int:
    """m0 = ceil(2 + log2 N).

    Examples
    --------
    >>> first_epoch(4050)
    14
    """
    return math.ceil(2 + math.log2(N))


def minimal_promotion(
    X: ArrayLike,
    prior: GaussianPrior,
    grams: Mapping[int, Array],
    sigma: float,
    eps: float,
) -> tuple[NDArray[np.int64], Array]:
    r"""The promoted arm at each context, and the least L at which its promotion is compatible.

    The sampled arms B have `grams`; the promoted arm i is the best of the others by prior mean c.
    The posterior mean of a sampled arm j is :math:`N(x^\top b_j, s_j^2)` with
    :math:`s_j^2 = x^\top(S_j - S_j^{post})x`, and i is recommended organically where all of them
    lie below c. With :math:`u_j = (c - x^\top b_j)/s_j` and :math:`P = \prod_j \Phi(u_j)`,

    .. math:: A_j = \big[(c - x^\top b_j)\Phi(u_j) + s_j\varphi(u_j)\big]\prod_{l \ne j}\Phi(u_l),
              \qquad
              L = 1 + \max_{j \in B} \frac{(x^\top b_j - c - \epsilon)_+}{A_j + \epsilon P}.

    Arms neither sampled nor promoted are worse by prior mean and bind never.

    Parameters
    ----------
    X
        (n, d).
    grams
        From sampled arm to X_j^T X_j, (d, d).
    sigma, eps
        Noise and incentive budget.

    Returns
    -------
    promoted, L
        (n,) each; L is infinite where no promotion is compatible.

    Examples
    --------
    >>> prior = GaussianPrior([[0.5], [0.0]], 1.0)
    >>> promoted, L = minimal_promotion([[1.0]], prior, {0: np.array([[20.0]])}, 1.0, 0.0)
    >>> int(promoted[0]), round(float(L[0]), 6)
    (1, 3.640781)
    """
    rows = as_contexts(X, prior.dim)
    sampled = sorted(grams)
    rest = [k for k in range(prior.n_arms) if k not in grams]
    means = rows @ prior.mean.T
    promoted = np.array(rest, dtype=np.int64)[means[:, rest].argmax(1)]
    c = means[np.arange(len(rows)), promoted]
    tails, products, gaps, spreads = [], np.ones(len(rows)), [], []
    for j in sampled:
        after = np.linalg.inv(prior.precision[j] + grams[j] / sigma**2)
        s = np.sqrt(np.maximum(np.einsum("nd,de,ne->n", rows, prior.cov[j] - after, rows), 0.0))
        gap = c - means[:, j]
        with np.errstate(divide="ignore", invalid="ignore"):
            u = np.where(s > 0, gap / s, np.where(gap >= 0, np.inf, -np.inf))
        tails.append(ndtr(u))
        products = products * tails[-1]
        gaps.append(gap)
        density = np.exp(-0.5 * np.minimum(u * u, 1e4)) / math.sqrt(2 * math.pi)
        spreads.append(gap * tails[-1] + s * density)
    least = np.ones(len(rows))
    for position in range(len(sampled)):
        others = np.ones(len(rows))
        for other in range(len(sampled)):
            if other != position:
                others = others * tails[other]
        gain = np.maximum(spreads[position], 0.0) * others + eps * products
        cost = np.maximum(-gaps[position] - eps, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            least = np.maximum(least, np.where(cost > 0, 1 + cost / gain, 1.0))
    return promoted, least


def plan_cold_start(
    prior: GaussianPrior,
    contexts: ArrayLike,
    eps: float = 0.025,
    sigma: float = 1.0,
    *,
    rule: Rule = "conditional",
    N: int | None = None,
    tau: float | None = None,
    rho: float | None = None,
    phi0: float | None = None,
    quantile: float = 1.0,
    horizon: int | None = None,
    seed: int | np.random.Generator = 0,
) -> ColdStartPlan:
    """Size the cold start before the first user arrives.

    Parameters
    ----------
    prior
        What people believe.
    contexts
        (n, d): a sample of users.
    eps
        The expected loss that a person tolerates, in units of reward.
    sigma
        Standard deviation of the noise.
    rule
        `"conditional"` and `"paper"` size L from `tau` and `rho`; `"exact"` from the Gaussian
        formula at the contexts.
    N
        Samples an arm instead of the published number.
    tau, rho
        Fighting chance: every arm leads by `tau` with probability `rho`. Estimated by simulation of
        the prior if not given.
    phi0
        Least eigenvalue of E[x x^T]; of the contexts if not given.
    quantile
        With the exact rule: the share of the contexts that L must cover.
    horizon
        Users that will come, for the warnings.
    seed
        Of the simulation.

    Raises
    ------
    IncentiveInfeasible
        If an arm leads nowhere: no L makes people accept it.
    ValueError
        If a number is out of range.

    Examples
    --------
    >>> prior = GaussianPrior([[0.5], [0.0]], 1.0)
    >>> plan = plan_cold_start(prior, [[1.0]], eps=0.0, N=20, rule="exact")
    >>> plan.N, round(plan.L, 3), round(plan.expected_rounds, 1)
    (20, 3.641, 92.8)
    """
    rows = as_contexts(contexts, prior.dim)
    check_number("eps", eps, 0.0)
    check_number("sigma", sigma, 0.0, open_=True)
    if rule not in ("conditional", "paper", "exact"):
        raise ValueError(f"rule is {rule!r}; allowed: 'conditional', 'paper' or 'exact'")
    if not 0 < quantile <= 1:
        raise ValueError(f"quantile is {quantile!r}; allowed: more than 0, at most 1")
    if N is not None and N < 1:
        raise ValueError(f"N is {N!r}; allowed: an integer of at least 1")
    if not len(rows):
        raise ValueError("contexts has no rows; allowed: a sample of users")
    for name, value in (("tau", tau), ("rho", rho), ("phi0", phi0)):
        if value is not None:
            check_number(name, value, 0.0, open_=True)
    notes = []
    second = rows.T @ rows / len(rows)
    if phi0 is None:
        phi0 = float(np.linalg.eigvalsh(second)[0])
        if phi0 <= 1e-9:
            raise ValueError(
                f"E[x x^T] of the contexts has the least eigenvalue {phi0:.2g}; drop redundant"
                " features or give phi0"
            )
    if phi0 < 0.01:
        notes.append(f"phi0 is {phi0:.2g}, which makes N large: standardise the features")
    rng = np.random.default_rng(seed)
    chance = fighting_chance(prior, rows, rng)
    if tau is None or rho is None:
        tau = chance[0] if tau is None else tau
        rho = chance[1] if rho is None else rho
    K = prior.n_arms
    if N is None:
        N = published_samples(sigma, prior.dim, K, phi0, tau, eps)
        if N > _LARGE_N:
            notes.append(
                f"the published N is {N:.2g}: it grows with the cube of the number of arms; give N"
                " and use rule='exact', or group arms"
            )
    by_context = None
    if rule == "exact":
        stages, by_context = _exact_stages(prior, rows, second, N, sigma, eps, quantile)
        L = max(stages)
        if not math.isfinite(L):
            share = float(np.isfinite(by_context).mean())
            raise ValueError(
                f"promotion is compatible at {100 * share:.0f}% of the contexts when the last arm"
                f" is due, quantile asks for {100 * quantile:.0f}%; raise eps, or lower quantile"
            )
    else:
        make = conditional_promotion if rule == "conditional" else published_promotion
        L = make(tau, rho, eps)
        stages = (L,) * (K - 1)
    rounds = N + N * sum(stages)
    promotions = np.full(K, float(N))
    promotions[int((rows @ prior.mean.T).mean(0).argmax())] = 0.0
    if horizon is not None and rounds > horizon:
        notes.append(
            f"the cold start takes about {rounds:.3g} users, more than the {horizon} that will come"
        )
    elif rounds > _LARGE_ROUNDS:
        notes.append(
            f"the cold start takes about {rounds:.2g} users: the least popular arm is hardly ever"
            " worth following; raise eps, lower N or quantile, or leave that arm out"
        )
    return ColdStartPlan(
        N,
        float(L),
        tuple(float(v) for v in stages),
        by_context,
        tau,
        rho,
        phi0,
        first_epoch(N),
        float(rounds),
        promotions,
        rule,
        eps,
        sigma,
        tuple(notes),
    )


def fighting_chance(
    prior: GaussianPrior, rows: Array, rng: np.random.Generator
) -> tuple[float, float]:
    """The pair (tau, rho) with the largest product that every arm has.

    Raises
    ------
    IncentiveInfeasible
        If an arm leads in no simulated world at any context.
    """
    chosen = rows[rng.integers(len(rows), size=_MONTE_CARLO)]
    worlds = prior.sample(_MONTE_CARLO, rng)
    values = np.einsum("nd,nkd->nk", chosen, worlds)
    leads = values - np.array([np.delete(values, k, 1).max(1) for k in range(prior.n_arms)]).T
    worst = np.sort(leads, axis=0)[::-1]
    share = np.arange(1, _MONTE_CARLO + 1) / _MONTE_CARLO
    best = (0.0, 0.0, -1)
    for k in range(prior.n_arms):
        if worst[0, k] <= 0:
            raise IncentiveInfeasible(
                k,
                f"arm {k} is best in none of {_MONTE_CARLO} worlds of the prior: nobody can be"
                " persuaded to take it; widen its prior or leave it out",
            )
    grid = np.unique(np.concatenate([worst[worst[:, k] > 0, k] for k in range(prior.n_arms)]))
    for tau in grid[:: max(1, len(grid) // 400)]:
        rho = min(
            float(share[np.sum(worst[:, k] >= tau) - 1]) if worst[0, k] >= tau else 0.0
            for k in range(prior.n_arms)
        )
        if tau * rho > best[0] * best[1]:
            best = (float(tau), rho, 0)
    return best[0], best[1]


def _exact_stages(
    prior: GaussianPrior,
    rows: Array,
    second: Array,
    N: int,
    sigma: float,
    eps: float,
    quantile: float,
) -> tuple[tuple[float, ...], Array]:
    """L while 1, 2, ... arms are sampled, in the order in which they fill, with N E[x x^T] each."""
    order = [int((rows @ prior.mean.T).mean(0).argmax())]
    stages = []
    least = np.ones(len(rows))
    while len(order) < prior.n_arms:
        grams = dict.fromkeys(order, N * second)
        promoted, least = minimal_promotion(rows, prior, grams, sigma, eps)
        stages.append(float(np.quantile(least, quantile, method="inverted_cdf")))
        order.append(int(np.bincount(promoted, minlength=prior.n_arms).argmax()))
    return tuple(stages), least


def check_number(name: str, value: float, low: float, *, open_: bool = False) -> None:
    """Refuse what is not a finite number of at least (with `open_`: above) `low`."""
    fine = isinstance(value, int | float | np.number) and math.isfinite(value)
    if not fine or value < low or (open_ and value == low):
        relation = "above" if open_ else "of at least"
        raise ValueError(f"{name} is {value!r}; allowed: a number {relation} {low:g}")
