"""Where a policy is tried: worlds drawn from a prior, or a labelled data set replayed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from .bandit import KINDS, RCB
from .prior import GaussianPrior, as_contexts

Array = NDArray[np.float64]
_BLOCK = 65_536
_KIND = pd.CategoricalDtype([*KINDS, "policy"])


class Environment(Protocol):
    """What `simulate` needs: a world at a time, contexts, rewards of the arms that are played."""

    n_arms: int

    def reset(self, rng: np.random.Generator) -> None:
        """Begin another world."""

    def contexts(self, n: int, rng: np.random.Generator) -> Array:
        """The next n contexts, (n, d)."""

    def reward(self, X: Array, arms: NDArray[np.int64], rng: np.random.Generator) -> Array:
        """Rewards of the arms played, (n,)."""

    def regret(self, X: Array, arms: NDArray[np.int64]) -> Array:
        """Expected rewards lost against the best arm, (n,)."""


class LinearEnv:
    """Linear rewards with Gaussian noise; each world draws its coefficients from the prior.

    Parameters
    ----------
    prior
        Of the coefficients; what the policy believes may differ.
    sampler
        From a number and a generator to contexts (n, d); or an array of contexts to draw from.
    sigma
        Standard deviation of the noise.

    Examples
    --------
    >>> prior = GaussianPrior([[0.5, 0.0], [0.0, 0.0]], 0.25)
    >>> env = LinearEnv(prior, np.array([[1.0, 0.5], [1.0, -0.5]]), sigma=0.1)
    >>> rng = np.random.default_rng(0)
    >>> env.reset(rng)
    >>> env.contexts(3, rng).shape, env.beta.shape
    ((3, 2), (2, 2))
    """

    def __init__(
        self,
        prior: GaussianPrior,
        sampler: ArrayLike | Callable[[int, np.random.Generator], Array],
        sigma: float,
    ) -> None:
        self.prior, self.sigma, self.n_arms = prior, sigma, prior.n_arms
        self._pool = None if callable(sampler) else as_contexts(sampler, prior.dim)
        self._sampler = sampler if callable(sampler) else None
        self.beta = prior.mean

    def reset(self, rng: np.random.Generator) -> None:
        self.beta = self.prior.sample(1, rng)[0]

    def contexts(self, n: int, rng: np.random.Generator) -> Array:
        if self._sampler is not None:
            return as_contexts(self._sampler(n, rng), self.prior.dim)
        assert self._pool is not None
        drawn: Array = self._pool[rng.integers(len(self._pool), size=n)]
        return drawn

    def reward(self, X: Array, arms: NDArray[np.int64], rng: np.random.Generator) -> Array:
        means = np.einsum("nd,nd->n", X, self.beta[arms])
        return np.asarray(means + self.sigma * rng.standard_normal(len(X)))

    def regret(self, X: Array, arms: NDArray[np.int64]) -> Array:
        means = self.beta @ X.T
        return np.asarray(means.max(0) - means[arms, np.arange(len(X))])


class ReplayClassificationEnv:
    """A labelled data set as a bandit: reward 1 if the arm is the label; a permutation a world.

    Parameters
    ----------
    X, y
        (n, d) and (n,) integer labels from 0.
    n_arms
        K; the number of labels if None.

    Examples
    --------
    >>> env = ReplayClassificationEnv([[1.0], [1.0], [1.0]], [0, 1, 1])
    >>> rng = np.random.default_rng(0)
    >>> env.reset(rng)
    >>> X = env.contexts(3, rng)
    >>> float(env.reward(X, np.ones(3, dtype=int), rng).sum())
    2.0
    """

    def __init__(self, X: ArrayLike, y: ArrayLike, n_arms: int | None = None) -> None:
        self.X = as_contexts(X, None)
        self.y = np.asarray(y)
        if self.y.shape != (len(self.X),) or not np.issubdtype(self.y.dtype, np.integer):
            raise ValueError(
                f"y is {self.y.dtype} of shape {self.y.shape}; allowed: integers, (n,)"
            )
        self.n_arms = int(self.y.max()) + 1 if n_arms is None else n_arms
        if self.y.min() < 0 or self.y.max() >= self.n_arms:
            raise ValueError(f"y has labels outside 0 to {self.n_arms - 1}")
        self._order = np.arange(len(self.X))
        self._at = 0

    def __len__(self) -> int:
        return len(self.X)

    def reset(self, rng: np.random.Generator) -> None:
        self._order, self._at = rng.permutation(len(self.X)), 0

    def contexts(self, n: int, rng: np.random.Generator) -> Array:
        if self._at + n > len(self.X):
            raise ValueError(f"T is more than the {len(self.X)} rows that can be replayed")
        self._now = self._order[self._at : self._at + n]
        self._at += n
        self._served = 0
        rows: Array = self.X[self._now]
        return rows

    def reward(self, X: Array, arms: NDArray[np.int64], rng: np.random.Generator) -> Array:
        # Rewards are asked for in the order of the contexts, in as many parts as the policy likes.
        labels = self.y[self._now[self._served : self._served + len(arms)]]
        self._served += len(arms)
        return np.asarray(labels == arms, dtype=np.float64)

    def regret(self, X: Array, arms: NDArray[np.int64]) -> Array:
        return np.asarray(self.y[self._now] != arms, dtype=np.float64)


def simulate(
    policy: RCB | Callable[[int], Any],
    env: Environment,
    T: int,
    n_worlds: int = 1,
    seed: int | np.random.Generator = 0,
) -> pd.DataFrame:
    """Run a policy in worlds of its own, every user complying and heard of at once.

    Parameters
    ----------
    policy
        A fresh `RCB`, copied for each world; or a function from the world's number to any object
        with `recommend(x) -> arm` and `update(x, arm, reward)`.
    env
        The environment.
    T, n_worlds
        Users a world, worlds.
    seed
        Of worlds, contexts, noise and coins.

    Returns
    -------
    pandas.DataFrame
        One row a user: `world`, `t`, `arm`, `kind`, `prob` (of the arm), `reward`, `regret`.

    Examples
    --------
    >>> prior = GaussianPrior([[0.5, 0.0], [0.0, 0.0]], 0.25)
    >>> env = LinearEnv(prior, np.array([[1.0, 0.5], [1.0, -0.5]]), sigma=0.1)
    >>> table = simulate(RCB(prior, N=5, L=3, sigma=0.1), env, T=200, n_worlds=2)
    >>> len(table), sorted(table["kind"].unique())
    (400, ['ipgs', 'organic', 'prior', 'promoted'])
    """
    if T < 1 or n_worlds < 1:
        raise ValueError(f"T and n_worlds are {T}, {n_worlds}; allowed: at least 1")
    rng = np.random.default_rng(seed)
    if isinstance(policy, RCB) and policy.N_.any():
        raise ValueError("policy has samples already; give a fresh one")
    blocks: list[tuple[NDArray[Any], ...]] = []
    for world in range(n_worlds):
        env.reset(rng)
        agent = policy.fresh(rng) if isinstance(policy, RCB) else policy(world)
        for start in range(0, T, _BLOCK):
            n = min(_BLOCK, T - start)
            X = env.contexts(n, rng)
            if isinstance(agent, RCB):
                served = agent.serve(
                    X, rng.random((n, 2)), lambda rows, arms: env.reward(rows, arms, rng)
                )
                arms, rewards, probabilities = served.arms, served.rewards, served.probabilities
                kinds = served.kinds
            else:
                arms, rewards = _one_by_one(agent, env, X, rng)
                kinds, probabilities = np.full(n, len(KINDS)), np.full(n, np.nan)
            when = np.arange(start, start + n)
            regret = env.regret(X, arms)
            whose = np.full(n, world)
            blocks.append((whose, when, arms, kinds, probabilities, rewards, regret))
    names = ("world", "t", "arm", "kind", "prob", "reward", "regret")
    columns: dict[str, Any] = {
        name: np.concatenate(parts) for name, *parts in zip(names, *blocks, strict=True)
    }
    columns["kind"] = pd.Categorical.from_codes(columns["kind"], dtype=_KIND)
    return pd.DataFrame(columns, copy=False)


def _one_by_one(
    agent: Any, env: Environment, X: Array, rng: np.random.Generator
) -> tuple[NDArray[np.int64], Array]:
    arms, rewards = np.empty(len(X), dtype=np.int64), np.empty(len(X))
    for i, x in enumerate(X):
        arms[i] = int(agent.recommend(x))
        rewards[i] = env.reward(x[None], arms[i : i + 1], rng)[0]
        agent.update(x, int(arms[i]), float(rewards[i]))
    return arms, rewards


def to_obp_feedback(X: ArrayLike, table: pd.DataFrame, n_arms: int) -> dict[str, Any]:
    """Logged feedback in the form that off-policy evaluation packages (obp) read.

    Parameters
    ----------
    X
        (n, d) contexts of the rows of `table`.
    table
        With columns `arm`, `reward` and `prob`, such as one world of `simulate`.
    n_arms
        K.

    Raises
    ------
    ValueError
        If the lengths differ or a propensity is not in (0, 1].

    Examples
    --------
    >>> log = pd.DataFrame({"arm": [0, 1], "reward": [1.0, 0.0], "prob": [0.5, 0.25]})
    >>> to_obp_feedback([[1.0], [2.0]], log, n_arms=2)["pscore"]
    array([0.5 , 0.25])
    """
    rows = as_contexts(X, None)
    if len(rows) != len(table):
        raise ValueError(f"X has {len(rows)} rows, table {len(table)}; allowed: as many")
    scores = table["prob"].to_numpy(dtype=np.float64)
    if not ((scores > 0) & (scores <= 1)).all():
        raise ValueError("prob has entries that are not propensities; allowed: above 0, at most 1")
    return {
        "n_rounds": len(rows),
        "n_actions": n_arms,
        "context": rows,
        "action": table["arm"].to_numpy(dtype=np.int64),
        "reward": table["reward"].to_numpy(dtype=np.float64),
        "pscore": scores,
        "position": None,
    }
