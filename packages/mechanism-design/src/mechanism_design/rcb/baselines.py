r"""Other policies, in many worlds at once that share contexts, with regret and incentive gain.

Every policy is a function from what it knows to recommendation probabilities, so that the same
arithmetic gives its rewards and, through `audit.gains_of`, whether following it pays. Two things
are known in each world: the policy's own estimate, and the Bayes posterior from the same data,
which is what a user reasons with. Both are kept by rank-one updates,

.. math:: C \leftarrow C - \frac{Cx x^\top C}{\sigma^2 + x^\top C x}, \qquad
          m \leftarrow m + \frac{Cx\,(y - x^\top m)}{\sigma^2 + x^\top C x}.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .audit import gains_of
from .gap_weights import exploitation_gamma, inverse_gap_weights, ridge_mspe
from .planning import first_epoch
from .prior import GaussianPrior

Array = NDArray[np.float64]

POLICIES = {
    "rcb": "cold start, then inverse-gap weights",
    "prior-greedy": "what users do alone: the best arm by prior mean",
    "posterior-greedy": "the best arm by posterior mean",
    "eps-greedy": "the same, a random arm one time in ten",
    "linucb": "upper confidence bounds, ridge without a prior",
    "lints": "Thompson sampling, ridge without a prior",
    "squarecb": "inverse-gap weights from the first user on",
    "explore-then-commit": "every arm N times in turn, then greedy",
    "hidden-exploration": "one exploration hidden in every L rounds, else greedy",
    "warm-thompson": "cold start, then Thompson sampling with the prior",
}


@dataclass(frozen=True)
class Trace:
    """What a policy did.

    Attributes
    ----------
    arms, rewards, regret
        (worlds, T).
    gains
        The worst incentive gain at each audited round, by round.
    cold_rounds
        Rounds of the cold start; 0 for policies without one.
    """

    arms: NDArray[np.int64]
    rewards: Array
    regret: Array
    gains: dict[int, float]
    cold_rounds: int


class Estimate:
    """Gaussian estimates of K arms in W worlds, updated by one sample a world."""

    def __init__(self, mean: Array, cov: Array, sigma: float, worlds: int) -> None:
        self.mean = np.broadcast_to(mean, (worlds, *mean.shape)).copy()
        self.cov = np.broadcast_to(cov, (worlds, *cov.shape)).copy()
        self.variance = sigma**2
        self._index = np.arange(worlds)

    def update(self, x: Array, arms: NDArray[np.int64], y: Array, use: Array | None = None) -> None:
        """One sample (W,) of the arms played (W,) at x (d,); `use` (W,) masks worlds."""
        cov = self.cov[self._index, arms]
        u = cov @ x
        factor = 1.0 / (self.variance + u @ x)
        if use is not None:
            factor = factor * use
        error = y - np.einsum("wd,d->w", self.mean[self._index, arms], x)
        self.mean[self._index, arms] += (factor * error)[:, None] * u
        self.cov[self._index, arms] -= factor[:, None, None] * u[:, :, None] * u[:, None, :]

    def scores(self, X: Array) -> Array:
        """(W, n, K) means at contexts (n, d)."""
        return np.asarray(np.einsum("wkd,nd->wnk", self.mean, X))

    def widths(self, X: Array) -> Array:
        """(W, n, K) standard deviations."""
        return np.asarray(np.sqrt(np.einsum("nd,wkde,ne->wnk", X, self.cov, X)))

    def draws(self, X: Array, rng: np.random.Generator) -> Array:
        """(W, n, K) scores of one draw of the coefficients."""
        return self.scores(X) + self.widths(X) * rng.standard_normal((*self.mean.shape[:1], 1, 1))


def run_policy(
    name: str,
    prior: GaussianPrior,
    contexts: Array,
    reward: Callable[[int, NDArray[np.int64]], tuple[Array, Array]],
    *,
    worlds: int,
    sigma: float,
    rng: np.random.Generator,
    N: int = 20,
    L: float = 5.0,
    eps: float = 0.0,
    alpha: float = 0.5,
    phi0: float | None = None,
    audit: Array | None = None,
    audit_at: tuple[int, ...] = (),
    train_on: str = "all",
) -> Trace:
    """Run one policy in all worlds.

    Parameters
    ----------
    name
        One of `POLICIES`.
    contexts
        (T, d), shared by the worlds, so that schedules that depend on contexts and coins alone are
        shared too.
    reward
        From a round and arms (worlds,) to rewards and regrets (worlds,).
    alpha
        Width of the confidence bounds and scale of the sampler without prior.
    audit, audit_at
        (n, d) contexts and the rounds before which the incentive gain is taken.
    train_on
        For the policies with epochs: `"all"` or `"previous"`.
    """
    if name not in POLICIES:
        raise ValueError(f"name is {name!r}; allowed: {', '.join(POLICIES)}")
    T, d = contexts.shape
    K = prior.n_arms
    if phi0 is None:
        phi0 = max(float(np.linalg.eigvalsh(contexts.T @ contexts / T)[0]), 1e-6)
    bayes = Estimate(prior.mean, prior.cov, sigma, worlds)
    own = bayes
    if name in ("linucb", "lints"):
        eye = np.broadcast_to(np.eye(d), (K, d, d))
        own = Estimate(np.zeros((K, d)), eye, 1.0 if name == "linucb" else alpha, worlds)
    cold = _ColdStart(prior, N, L, worlds, sigma) if name in ("rcb", "warm-thompson") else None
    epochs = _Epochs(prior, sigma, worlds, phi0, train_on) if name in ("rcb", "squarecb") else None
    if name == "squarecb" and epochs is not None:
        epochs.begin(2, None, 2)
    arms_out, rewards_out = np.empty((worlds, T), dtype=np.int64), np.empty((worlds, T))
    regret_out = np.empty((worlds, T))
    gains: dict[int, float] = {}
    cold_rounds = 0

    def probabilities(t: int, X: Array) -> Array:
        if cold is not None and not cold.over:
            return cold.probabilities(X)
        if epochs is not None:
            return epochs.probabilities(X)
        if name == "prior-greedy":
            return _one_hot(np.broadcast_to(X @ prior.mean.T, (worlds, len(X), K)))
        if name in ("warm-thompson", "lints"):
            return _one_hot(own.draws(X, rng))
        if name == "linucb":
            return _one_hot(own.scores(X) + alpha * own.widths(X))
        greedy = _one_hot(own.scores(X))
        if name == "eps-greedy":
            return 0.9 * greedy + 0.1 / K
        turn = np.zeros(K)
        if name == "explore-then-commit" and t < N * K:
            turn[t % K] = 1.0
            return np.broadcast_to(turn, greedy.shape)
        if name == "hidden-exploration" and t < N * K * L:
            turn[int(t // L) % K] = 1.0
            return (1 - 1 / L) * greedy + turn / L
        return greedy

    for t in range(T):
        x = contexts[t]
        if audit is not None and t in audit_at:
            table = gains_of(probabilities(t, audit), bayes.scores(audit), eps)
            gains[t] = float(table["gain"].min())
        was_cold = cold is not None and not cold.over
        if was_cold and cold is not None:
            arms, stored = cold.recommend(x, rng)
            cold_rounds += 1
        else:
            weights = probabilities(t, x[None])[:, 0]
            cumulative = weights.cumsum(1)
            arms = (rng.random((worlds, 1)) > cumulative[:, :-1]).sum(1)
            stored = True
        y, lost = reward(t, arms)
        arms_out[:, t], rewards_out[:, t], regret_out[:, t] = arms, y, lost
        bayes.update(x, arms, y)
        if own is not bayes:
            own.update(x, arms, y)
        if was_cold and cold is not None:
            if stored:
                cold.store(x, arms, y)
            if cold.over and epochs is not None:
                epochs.begin(first_epoch(N), cold.estimate, N * K)
        elif epochs is not None:
            epochs.step(x, arms, y)
    return Trace(arms_out, rewards_out, regret_out, gains, cold_rounds)


def linear_worlds(
    prior: GaussianPrior, contexts: Array, sigma: float, worlds: int, rng: np.random.Generator
) -> Callable[[int, NDArray[np.int64]], tuple[Array, Array]]:
    """Rewards and regrets of worlds drawn from the prior."""
    beta = prior.sample(worlds, rng)
    means = np.einsum("wkd,td->wtk", beta, contexts)
    noise = sigma * rng.standard_normal((worlds, len(contexts)))
    index = np.arange(worlds)

    def reward(t: int, arms: NDArray[np.int64]) -> tuple[Array, Array]:
        found = means[index, t, arms]
        return found + noise[:, t], means[:, t].max(1) - found

    return reward


class _ColdStart:
    """Stage 1 in worlds that share contexts and coins, and therefore the schedule."""

    def __init__(self, prior: GaussianPrior, N: int, L: float, worlds: int, sigma: float) -> None:
        self.prior, self.N, self.L, self.worlds = prior, N, L, worlds
        self.counts = np.zeros(prior.n_arms, dtype=np.int64)
        self.estimate = Estimate(prior.mean, prior.cov, sigma, worlds)

    @property
    def over(self) -> bool:
        return bool((self.counts >= self.N).all())

    def _organic(self, X: Array) -> NDArray[np.int64]:
        sampled = self.counts >= self.N
        believed = np.where(sampled, self.estimate.scores(X), X @ self.prior.mean.T)
        return np.asarray(believed.argmax(2))

    def _promoted(self, X: Array) -> NDArray[np.int64]:
        means = X @ self.prior.mean.T
        return np.asarray(np.where(self.counts >= self.N, -np.inf, means).argmax(1))

    def probabilities(self, X: Array) -> Array:
        organic = _one_hot_of(self._organic(X), self.prior.n_arms)
        if not (self.counts >= self.N).any():
            return organic
        promoted = _one_hot_of(self._promoted(X), self.prior.n_arms)
        return (1 - 1 / self.L) * organic + promoted / self.L

    def recommend(self, x: Array, rng: np.random.Generator) -> tuple[NDArray[np.int64], bool]:
        if not (self.counts >= self.N).any():
            return self._organic(x[None])[:, 0], True
        if rng.random() < 1 / self.L:
            return np.full(self.worlds, self._promoted(x[None])[0]), True
        return self._organic(x[None])[:, 0], False

    def store(self, x: Array, arms: NDArray[np.int64], y: Array) -> None:
        # Stored rounds promote, or recommend by prior means: one arm in all worlds.
        self.counts[arms[0]] += 1
        self.estimate.update(x, arms, y)


class _Epochs:
    """Stage 2: estimates frozen at the start of each epoch."""

    def __init__(
        self, prior: GaussianPrior, sigma: float, worlds: int, phi0: float, train_on: str
    ) -> None:
        self.prior, self.sigma, self.worlds, self.phi0 = prior, sigma, worlds, phi0
        self.train_on = train_on

    def begin(self, epoch: int, estimate: Estimate | None, n: int) -> None:
        self.epoch, self.clock = epoch, 2 ** (epoch - 1)
        self.data = estimate or self._empty()
        self._freeze(n)

    def _empty(self) -> Estimate:
        return Estimate(self.prior.mean, self.prior.cov, self.sigma, self.worlds)

    def _freeze(self, n: int) -> None:
        self.frozen = self.data.mean.copy()
        error = ridge_mspe(max(n, 1), self.sigma, self.prior.dim, self.phi0)
        self.gamma = exploitation_gamma(self.prior.n_arms, error)
        if self.train_on == "previous":
            self.data = self._empty()

    def probabilities(self, X: Array) -> Array:
        scores = np.einsum("wkd,nd->wnk", self.frozen, X)
        return inverse_gap_weights(scores, self.gamma)

    def step(self, x: Array, arms: NDArray[np.int64], y: Array) -> None:
        self.data.update(x, arms, y)
        self.clock += 1
        if self.clock >= 2**self.epoch:
            self.epoch += 1
            self._freeze(2 ** (self.epoch - 2))


def _one_hot(scores: Array) -> Array:
    return _one_hot_of(scores.argmax(2), scores.shape[2])


def _one_hot_of(best: NDArray[np.int64], arms: int) -> Array:
    return np.asarray(best[..., None] == np.arange(arms), dtype=np.float64)


def risk_score(y: NDArray[np.int64], arms: NDArray[np.int64]) -> float:
    r""":math:`\sum_k p_k(2\,\mathrm{acc}_k - 1)`, which is twice the accuracy less 1."""
    shares = [float(np.mean(y == k)) for k in np.unique(y)]
    right = [float(np.mean(arms[y == k] == k)) for k in np.unique(y)]
    return math.fsum(p * (2 * a - 1) for p, a in zip(shares, right, strict=True))
