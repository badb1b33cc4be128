"""The policy: a cold start that people accept, then inverse-gap weights, for use online."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .gap_weights import exploitation_gamma, inverse_gap_weights, ridge_mspe, sufficient_gamma
from .planning import (
    ColdStartPlan,
    Rule,
    check_number,
    first_epoch,
    minimal_promotion,
    plan_cold_start,
)
from .prior import GaussianPrior, as_contexts
from .samples import Constant, Rows

Array = NDArray[np.float64]
KINDS = ("prior", "promoted", "organic", "ipgs")
PRIOR, PROMOTED, ORGANIC, IPGS = range(4)


class Served(NamedTuple):
    """Users served in turn: arms, kinds, the probability of the arm, and rewards, (n,) each."""

    arms: NDArray[np.int64]
    kinds: NDArray[np.int64]
    probabilities: Array
    rewards: Array


class RCB:
    """Incentive-compatible recommendations in a linear contextual bandit.

    Stage 1 recommends what people would choose by themselves until one arm has N samples, then
    promotes an unpopular arm to one user in L until all arms have N; stage 2 recommends by
    inverse-gap weights in doubling epochs, with one regression an arm fitted at the start of each.

    Parameters
    ----------
    prior
        What people believe about the arms.
    contexts
        (n, d), a sample of users, for the sizes that are `"auto"` and for adaptive promotion.
    eps
        The expected loss that a person tolerates, in units of reward.
    sigma
        Standard deviation of the noise.
    N, L
        Samples an arm and the rarity of promotions; `"auto"` takes them from `plan_cold_start`.
    rule
        Of the plan. With `"exact"` L is renewed from the samples at hand whenever an arm has
        filled.
    oracle
        Any scikit-learn regressor, copied for each arm, or a function from the arm to one; if None,
        Bayesian ridge with the prior.
    mspe
        Prediction error of the oracle from n samples: `"ridge"`, `"holdout"` (measured on a fifth
        of the training rows), or a function of n.
    c
        Constant of gamma.
    phi0
        Least eigenvalue of E[x x^T] for the error bound; of the contexts, or 1/d without any, if
        None. 1 is the value for independent standardised features.
    train_on
        `"previous"` epoch, as the theory has it, or `"all"` samples, those of the cold start
        included.
    gamma_floor
        `"bic"` raises gamma to what is sufficient for compatibility; less exploration, no bound on
        regret.
    promotion
        `"fixed"`: one user in L. `"adaptive"`: each user with the probability that its own context
        allows by the exact formula.
    seed
        Of the coins.

    Attributes
    ----------
    stage_ : {"prior", "promotion", "exploitation"}
    N_ : (K,) int, stored samples an arm
    epoch_, gamma_ : the current epoch of exploitation and its gamma, None before
    coef_ : (K, d), None for an oracle that is not linear
    plan_ : ColdStartPlan, or None if N and L were given

    Examples
    --------
    >>> prior = GaussianPrior([[0.5, 0.0], [0.3, 0.1]], 0.25)
    >>> bandit = RCB(prior, N=2, L=3, sigma=0.1, seed=0)
    >>> arms = bandit.recommend([[1.0, 0.2], [1.0, -0.4]])
    >>> bandit.update([[1.0, 0.2], [1.0, -0.4]], arms, [0.6, 0.4])
    >>> bandit.stage_, bandit.N_.tolist()
    ('promotion', [2, 0])
    """

    def __init__(
        self,
        prior: GaussianPrior,
        *,
        contexts: ArrayLike | None = None,
        eps: float = 0.025,
        sigma: float = 1.0,
        N: int | Literal["auto"] = "auto",
        L: float | Literal["auto"] = "auto",
        rule: Rule = "conditional",
        oracle: Any = None,
        mspe: Literal["ridge", "holdout"] | Callable[[int], float] = "ridge",
        c: float = 4.0,
        phi0: float | None = None,
        train_on: Literal["previous", "all"] = "previous",
        gamma_floor: Literal["bic"] | None = None,
        promotion: Literal["fixed", "adaptive"] = "fixed",
        seed: int | np.random.Generator | None = None,
    ) -> None:
        check_number("eps", eps, 0.0)
        check_number("sigma", sigma, 0.0, open_=True)
        check_number("c", c, 0.0, open_=True)
        if N != "auto" and (not isinstance(N, int | np.integer) or N < 1):
            raise ValueError(f"N is {N!r}; allowed: 'auto' or an integer of at least 1")
        if L != "auto":
            check_number("L", L, 1.0)
        for name, value, allowed in (
            ("train_on", train_on, ("previous", "all")),
            ("gamma_floor", gamma_floor, (None, "bic")),
            ("promotion", promotion, ("fixed", "adaptive")),
        ):
            if value not in allowed:
                raise ValueError(f"{name} is {value!r}; allowed: {allowed}")
        if not callable(mspe) and mspe not in ("ridge", "holdout"):
            raise ValueError(f"mspe is {mspe!r}; allowed: 'ridge', 'holdout' or a function of n")
        if oracle is None:
            if mspe == "holdout":
                raise ValueError("mspe is 'holdout'; allowed: with an oracle only")
        else:
            made = oracle(0) if _is_factory(oracle) else oracle
            if not (hasattr(made, "fit") and hasattr(made, "predict")):
                raise ValueError(f"oracle {oracle!r} has no fit and predict")
        self.prior, self.eps, self.sigma, self.c = prior, float(eps), float(sigma), float(c)
        self.rule, self.oracle, self.mspe, self.train_on = rule, oracle, mspe, train_on
        self.gamma_floor, self.promotion = gamma_floor, promotion
        self.contexts = None if contexts is None else as_contexts(contexts, prior.dim)
        self.plan_: ColdStartPlan | None = None
        if "auto" in (N, L):
            if self.contexts is None:
                raise ValueError("contexts is None; N or L 'auto' needs a sample of users")
            fixed = None if N == "auto" else int(N)
            self.plan_ = plan_cold_start(prior, self.contexts, eps, sigma, rule=rule, N=fixed)
            for note in self.plan_.warnings:
                warnings.warn(note, stacklevel=2)
        self.N = self.plan_.N if self.plan_ is not None and N == "auto" else int(N)
        self._fixed_L = None if L == "auto" else float(L)
        if gamma_floor is not None and self.contexts is None:
            raise ValueError("contexts is None; gamma_floor needs a sample of users")
        if phi0 is not None:
            check_number("phi0", phi0, 0.0, open_=True)
        self._phi0 = self._smallest_eigenvalue() if phi0 is None else float(phi0)
        self.rng = np.random.default_rng(seed)
        self._forget()

    def _forget(self) -> None:
        K, d = self.prior.n_arms, self.prior.dim
        self.N_ = np.zeros(K, dtype=np.int64)
        self.epoch_: int | None = None
        self.gamma_: float | None = None
        self._clock = 0
        self._L = self._L_now()
        self._cold_grams, self._cold_moments = np.zeros((K, d, d)), np.zeros((K, d))
        self._cold = Rows(d)
        self._believed: Array | None = None
        self._rows, self._training = Rows(d), Rows(d)
        self._grams, self._moments = np.zeros((K, d, d)), np.zeros((K, d))
        self._coef: Array | None = None
        self._models: list[Any] = []
        self._pending: dict[Hashable, tuple[int, int]] = {}
        self._next_id = 0
        self.last_ids_: list[Hashable] = []
        self.last_probabilities_ = np.zeros((0, K))
        self.last_kind_: list[str] = []

    def fresh(self, seed: int | np.random.Generator | None = None) -> RCB:
        """The same policy before its first user."""
        other = copy.copy(self)
        other.rng = np.random.default_rng(seed)
        other._forget()
        return other

    # What the policy is doing.

    @property
    def n_arms(self) -> int:
        """K."""
        return self.prior.n_arms

    @property
    def saturated(self) -> NDArray[np.bool_]:
        """(K,): whether an arm has its N samples."""
        return self.N_ >= self.N

    @property
    def stage_(self) -> str:
        """ "prior", "promotion" or "exploitation"."""
        if self.epoch_ is not None or self.saturated.all():
            return "exploitation"
        return "promotion" if self.saturated.any() else "prior"

    @property
    def L_(self) -> float:
        """The rarity of promotions now."""
        return self._L

    @property
    def coef_(self) -> Array | None:
        """(K, d) of the fitted oracle; the prior's before there is one."""
        if self._models:
            found = [getattr(model, "coef_", None) for model in self._models]
            return None if any(c is None for c in found) else np.array(found, dtype=np.float64)
        return self.prior.mean if self._coef is None else self._coef

    # Recommending.

    def recommend(self, X: ArrayLike, ids: Sequence[Hashable] | None = None) -> NDArray[np.int64]:
        """Recommend an arm to each user.

        Parameters
        ----------
        X
            (d,) or (n, d).
        ids
            Names for these recommendations, to be given to `update`; numbers from 0 by default, in
            `last_ids_`.

        Returns
        -------
        numpy.ndarray
            (n,). `last_probabilities_` (n, K) and `last_kind_` say how they came about.

        Raises
        ------
        ValueError
            If a context does not fit or an id is in use; nothing has changed then.
        """
        rows = as_contexts(X, self.prior.dim)
        if ids is None:
            names: list[Hashable] = list(range(self._next_id, self._next_id + len(rows)))
        else:
            names = list(ids)
            if len(names) != len(rows) or len(set(names)) != len(names):
                raise ValueError(f"ids has {len(names)} names; allowed: {len(rows)} distinct ones")
            for name in names:
                if name in self._pending:
                    raise ValueError(f"id {name!r} still waits for its update")
        if len(rows) == 1 and self.epoch_ is not None:
            return self._recommend_one(rows, names)
        coins = self.rng.random((len(rows), 2))
        arms = np.empty(len(rows), dtype=np.int64)
        kinds = np.empty(len(rows), dtype=np.int64)
        probabilities = np.empty((len(rows), self.n_arms))
        done = 0
        while done < len(rows):
            count = self._enter(len(rows) - done)
            part = slice(done, done + count)
            arms[part], kinds[part], probabilities[part] = self._choose(rows[part], coins[part])
            if self.epoch_ is not None:
                self._clock += count
            done += count
        self._next_id += len(rows)
        for name, arm, kind in zip(names, arms.tolist(), kinds.tolist(), strict=True):
            self._pending[name] = (arm, kind)
        self.last_ids_, self.last_probabilities_ = names, probabilities
        self.last_kind_ = [KINDS[kind] for kind in kinds]
        return arms

    def _recommend_one(self, rows: Array, names: list[Hashable]) -> NDArray[np.int64]:
        """What `_choose` does in stage 2, for one user and without arrays of one element."""
        coin = self.rng.random(2)[1]
        self._enter(1)
        scores = self._scores(rows)[0].tolist()
        gamma, K = self.gamma_ or 0.0, self.n_arms
        highest = max(scores)
        best = scores.index(highest)
        gaps = [highest - score for score in scores]
        weights = [1.0 / (K + gamma * gap if gap else K) for gap in gaps]
        weights[best] = 0.0
        weights[best] = 1.0 - sum(weights)
        arm, total = 0, weights[0]
        while coin > total and arm < K - 1:
            arm += 1
            total += weights[arm]
        self._clock += 1
        self._next_id += 1
        self._pending[names[0]] = (arm, IPGS)
        self.last_ids_, self.last_probabilities_ = names, np.array([weights])
        self.last_kind_ = ["ipgs"]
        return np.array([arm])

    def predict(self, X: ArrayLike) -> Array:
        """Estimated rewards (n, K): of the fitted oracle, of the prior in the cold start."""
        return self._scores(as_contexts(X, self.prior.dim))

    def predict_proba(self, X: ArrayLike) -> Array:
        """The probabilities (n, K) with which each arm would be recommended now."""
        rows = as_contexts(X, self.prior.dim)
        if self.stage_ == "exploitation":
            self._enter(0)
        weights: Array = self._distribution(rows)[1]
        return weights

    # Learning.

    def update(
        self,
        X: ArrayLike,
        arms: ArrayLike,
        rewards: ArrayLike,
        ids: Sequence[Hashable] | None = None,
    ) -> None:
        """Take in what happened, in any order and as late as it comes.

        Parameters
        ----------
        X, arms, rewards
            (n, d), (n,) the arms that were *played*, (n,).
        ids
            Of the recommendations; those of the last call of `recommend` by default.

        Raises
        ------
        ValueError
            If anything does not fit, or an id is unknown or was updated before; nothing has changed
            then.
        """
        rows = as_contexts(X, self.prior.dim)
        names = list(self.last_ids_ if ids is None else ids)
        if len(rows) == len(names) == 1:
            self._update_one(rows, arms, rewards, names[0])
            return
        played, gained = np.atleast_1d(np.asarray(arms)), np.atleast_1d(np.asarray(rewards, float))
        if not (len(rows) == len(played) == len(gained) == len(names)):
            raise ValueError(
                f"X, arms, rewards and ids have {len(rows)}, {len(played)}, {len(gained)},"
                f" {len(names)} entries; allowed: as many each"
            )
        if not np.issubdtype(played.dtype, np.integer):
            raise ValueError(f"arms has the dtype {played.dtype}; allowed: integers")
        if len(played) and (played.min() < 0 or played.max() >= self.n_arms):
            raise ValueError(f"arms has entries outside 0 to {self.n_arms - 1}")
        if not np.isfinite(gained).all():
            raise ValueError("rewards has NaN or infinity; allowed: finite numbers")
        if len(set(names)) != len(names):
            raise ValueError("ids names a recommendation twice")
        for name in names:
            if name not in self._pending:
                raise ValueError(f"id {name!r} is unknown or was updated before")
        told = [self._pending.pop(name) for name in names]
        advised = np.array([arm for arm, _ in told], dtype=np.int64)
        kinds = np.array([kind for _, kind in told], dtype=np.int64)
        self._learn(rows, played, gained, advised, kinds)

    def _update_one(self, rows: Array, arms: ArrayLike, rewards: ArrayLike, name: Hashable) -> None:
        """What the general case does, for one user."""
        arm, reward = _only(arms, "arms"), float(_only(rewards, "rewards"))
        if not isinstance(arm, int | np.integer):
            raise ValueError(f"arms has the entry {arm!r}; allowed: integers")
        if not 0 <= arm < self.n_arms:
            raise ValueError(f"arms has entries outside 0 to {self.n_arms - 1}")
        if not math.isfinite(reward):
            raise ValueError("rewards has NaN or infinity; allowed: finite numbers")
        if name not in self._pending:
            raise ValueError(f"id {name!r} is unknown or was updated before")
        advised, kind = self._pending.pop(name)
        if kind == ORGANIC and advised == arm:
            return
        if self.epoch_ is None:
            self._learn(
                rows, np.array([arm]), np.array([reward]), np.array([advised]), np.array([kind])
            )
            return
        if self.oracle is not None or self.mspe == "holdout":
            self._rows.append(rows, np.array([arm]), np.array([reward]))
        self._grams[arm] += rows.T.dot(rows)
        self._moments[arm] += reward * rows[0]

    def _learn(
        self,
        rows: Array,
        played: NDArray[np.int64],
        gained: Array,
        advised: NDArray[np.int64],
        kinds: NDArray[np.int64],
    ) -> None:
        """Store samples: of the cold start only those that it asked for and got."""
        # A played arm that was not the advised one teaches about itself, and counts nowhere.
        taught = (kinds != ORGANIC) | (played != advised)
        if self.epoch_ is None:
            keep = np.flatnonzero(taught)
            if not len(keep):
                return
            self._believed = None
            counted = (kinds != ORGANIC) & (kinds != IPGS) & (played == advised)
            before = self.saturated
            for k in np.unique(played[keep]):
                own = keep[played[keep] == k]
                asked = own[counted[own]][: max(0, self.N - int(self.N_[k]))]
                self.N_[k] += len(asked)
                own = np.sort(np.concatenate([asked, own[~counted[own]]]))
                self._cold_grams[k] += rows[own].T @ rows[own]
                self._cold_moments[k] += rows[own].T @ gained[own]
                if self.oracle is not None:
                    self._cold.append(rows[own], played[own], gained[own])
            if (self.saturated != before).any():
                self._L = self._L_now()
            return
        if self.oracle is not None or self.mspe == "holdout":
            self._rows.append(rows[taught], played[taught], gained[taught])
        for k in np.unique(played[taught]):
            own = taught & (played == k)
            self._grams[k] += rows[own].T @ rows[own]
            self._moments[k] += rows[own].T @ gained[own]

    # The state machine.

    def _enter(self, wanted: int) -> int:
        """Start an epoch if its time has come; how many of `wanted` users the state serves."""
        if self.epoch_ is None:
            if not self.saturated.all():
                return wanted
            self.epoch_ = first_epoch(self.N)
            self._clock = 2 ** (self.epoch_ - 1)
            self._fit(self._cold_grams, self._cold_moments, self._cold, int(self.N_.sum()))
        elif self._clock >= 2**self.epoch_:
            length = 2 ** (self.epoch_ - 1)
            self.epoch_ += 1
            if self.train_on == "all":
                self._cold_grams += self._grams
                self._cold_moments += self._moments
                self._cold.extend(self._rows)
                self._fit(self._cold_grams, self._cold_moments, self._cold, length)
            else:
                self._fit(self._grams, self._moments, self._rows, length)
            self._grams = np.zeros_like(self._grams)
            self._moments = np.zeros_like(self._moments)
            self._rows = Rows(self.prior.dim)
        return min(wanted, int(2**self.epoch_) - self._clock)

    def serve(self, rows: Array, coins: Array, reward: Callable[[Array, Any], Array]) -> Served:
        """Recommend to users in turn, each of whom complies and is heard of before the next.

        What one call of `recommend` and of `update` a user would do, in blocks between changes of
        state.

        Parameters
        ----------
        rows, coins
            (n, d) contexts and (n, 2) uniform numbers.
        reward
            From contexts and arms to rewards.
        """
        parts = []
        done = 0
        while done < len(rows):
            count = self._enter(len(rows) - done)
            X = rows[done : done + count]
            arms, kinds, probabilities = self._choose(X, coins[done : done + count])
            if self.epoch_ is None:
                count = self._until_full(arms, kinds)
                X, arms, kinds = X[:count], arms[:count], kinds[:count]
                probabilities = probabilities[:count]
            else:
                self._clock += count
            gained = reward(X, arms)
            self._learn(X, arms, gained, arms, kinds)
            parts.append((arms, kinds, probabilities[np.arange(count), arms], gained))
            done += count
        return Served(*(np.concatenate(part) for part in zip(*parts, strict=True)))

    def _until_full(self, arms: NDArray[np.int64], kinds: NDArray[np.int64]) -> int:
        """How many users are served before an arm has its N samples, that one included."""
        count = len(arms)
        for k in np.flatnonzero(~self.saturated):
            stored = np.flatnonzero((arms == k) & (kinds != ORGANIC))
            left = self.N - int(self.N_[k])
            if len(stored) >= left:
                count = min(count, int(stored[left - 1]) + 1)
        return count

    def _choose(
        self, rows: Array, coins: Array
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], Array]:
        """Arms, kinds and probabilities of users served by the present state."""
        chances, probabilities, promoted, organic = self._distribution(rows, full=True)
        if chances is None:
            cumulative = probabilities.cumsum(1)
            arms = (coins[:, 1:] > cumulative[:, :-1]).sum(1)
            return arms, np.full(len(rows), IPGS), probabilities
        if promoted is None:
            return organic, np.full(len(rows), PRIOR), probabilities
        chosen = coins[:, 0] < chances
        arms = np.where(chosen, promoted, organic)
        return arms, np.where(chosen, PROMOTED, ORGANIC), probabilities

    def _distribution(self, rows: Array, *, full: bool = False) -> Any:
        """Chance of promotion, (n, K) probabilities, and the promoted and organic arms."""
        n = len(rows)
        if self.epoch_ is not None:
            weights = inverse_gap_weights(self._scores(rows), self.gamma_ or 0.0)
            return (None, weights, None, None) if full else (None, weights)
        means = rows @ self.prior.mean.T
        sampled = self.saturated
        probabilities = np.zeros((n, self.n_arms))
        index = np.arange(n)
        if not sampled.any():
            organic = means.argmax(1)
            probabilities[index, organic] = 1.0
            ones = np.ones(n)
            return (ones, probabilities, None, organic) if full else (ones, probabilities)
        if self._believed is None:
            self._believed, _ = self.prior.posterior(
                self._cold_grams, self._cold_moments, self.sigma
            )
        believed = np.where(sampled, rows @ self._believed.T, means)
        organic = believed.argmax(1)
        promoted = np.where(sampled, -np.inf, means).argmax(1)
        if self.promotion == "adaptive":
            grams = {int(j): self._cold_grams[j] for j in np.flatnonzero(sampled)}
            _, least = minimal_promotion(rows, self.prior, grams, self.sigma, self.eps)
            chances = 1.0 / least
        else:
            chances = np.full(n, 1.0 / self._L)
        probabilities[index, promoted] += chances
        probabilities[index, organic] += 1 - chances
        return (chances, probabilities, promoted, organic) if full else (chances, probabilities)

    def _scores(self, rows: Array) -> Array:
        if self._models:
            found = []
            for k, model in enumerate(self._models):
                try:
                    found.append(np.asarray(model.predict(rows), dtype=np.float64))
                except Exception as error:
                    raise RuntimeError(
                        f"the oracle of arm {k} failed to predict: {error}"
                    ) from error
            return np.stack(found, axis=1)
        coef = self.prior.mean if self._coef is None else self._coef
        scores: Array = rows.dot(coef.T)  # for a single row half the time of `@`
        return scores

    def _fit(self, grams: Array, moments: Array, data: Rows, n: int) -> None:
        """One regression an arm, and the gamma of the epoch; `n` is the length of the last one."""
        posterior, _ = self.prior.posterior(grams, moments, self.sigma)
        if self.oracle is None:
            self._coef = posterior
        else:
            self._training = Rows.of_arrays(data.arrays())
            self._models = [self._fit_arm(k, *data.of(k)) for k in range(self.n_arms)]
        self.gamma_ = self._gamma(grams, n, data)

    def _gamma(self, grams: Array, n: int, data: Rows) -> float:
        """Gamma of an epoch after one of `n` samples with these designs."""
        gamma = exploitation_gamma(self.n_arms, self._mspe(n, data), self.c)
        if self.gamma_floor == "bic" and self.contexts is not None:
            worlds = _posterior_worlds(
                self.prior, grams, self.sigma, self.contexts, self.epoch_ or 0
            )
            gamma = max(gamma, sufficient_gamma(worlds, self.eps))
        return gamma

    def _fit_arm(self, k: int, X: Array, y: Array) -> Any:
        if not len(X):
            return Constant(self.prior.mean[k])
        try:
            return self._new_model(k).fit(X, y)
        except Exception as error:
            raise RuntimeError(f"the oracle of arm {k} failed to fit: {error}") from error

    def _new_model(self, arm: int) -> Any:
        return self.oracle(arm) if _is_factory(self.oracle) else copy.deepcopy(self.oracle)

    def _mspe(self, n: int, data: Rows) -> float:
        if callable(self.mspe):
            error = float(self.mspe(n))
            check_number("mspe(n)", error, 0.0, open_=True)
            return error
        if self.mspe == "holdout" and len(data.y) >= 10 * self.n_arms:
            errors = []
            for k in range(self.n_arms):
                X, y = data.of(k)
                cut = max(1, len(X) // 5)
                if len(X) > 2 * cut:
                    model = self._new_model(k).fit(X[:-cut], y[:-cut])
                    errors.append(np.mean((model.predict(X[-cut:]) - y[-cut:]) ** 2))
            if errors:
                return max(float(np.mean(errors)), 1e-9)
        return ridge_mspe(n, self.sigma, self.prior.dim, self._phi0)

    def _smallest_eigenvalue(self) -> float:
        if self.plan_ is not None:
            return self.plan_.phi0
        if self.contexts is not None:
            second = self.contexts.T @ self.contexts / len(self.contexts)
            return max(float(np.linalg.eigvalsh(second)[0]), 1e-6)
        return 1.0 / self.prior.dim

    def _L_now(self) -> float:
        """L for the arms that are sampled now."""
        if self._fixed_L is not None:
            return self._fixed_L
        assert self.plan_ is not None
        sampled = np.flatnonzero(self.saturated)
        if self.rule != "exact" or not 0 < len(sampled) < self.n_arms:
            return self.plan_.L
        grams = {int(j): self._cold_grams[j] for j in sampled}
        _, least = minimal_promotion(self.contexts, self.prior, grams, self.sigma, self.eps)  # type: ignore[arg-type]
        worst = float(least.max())
        return worst if math.isfinite(worst) else self.plan_.L

    # Keeping.

    def save(self, folder: str | Path) -> None:
        """Save into a folder as JSON and npz.

        What is code (an oracle, a function as `mspe`) is given again to `load`, which fits the
        oracle once more to the samples that it was fitted to.

        Raises
        ------
        ValueError
            If an id that waits for its update is neither a string nor an integer.
        """
        from .keeping import save

        save(self, Path(folder))

    @classmethod
    def load(
        cls, folder: str | Path, *, oracle: Any = None, mspe: Callable[[int], float] | None = None
    ) -> RCB:
        """Load what `save` wrote; the stream of recommendations goes on as if never interrupted.

        Raises
        ------
        ValueError
            If the folder holds no such state.
        """
        from .keeping import load

        return load(Path(folder), oracle, mspe)


def _is_factory(oracle: Any) -> bool:
    return callable(oracle) and not hasattr(oracle, "fit")


def _only(value: Any, name: str) -> Any:
    """The one entry of a scalar or of a sequence of length 1."""
    if isinstance(value, np.ndarray):
        value = value.tolist() if value.ndim else [value.item()]
    if not isinstance(value, list | tuple):
        return value
    if len(value) != 1:
        raise ValueError(f"{name} has {len(value)} entries for one context; allowed: 1")
    return value[0]


def _posterior_worlds(
    prior: GaussianPrior, grams: Array, sigma: float, contexts: Array, seed: int
) -> Array:
    """Posterior means (worlds, n, K) that data with these designs may leave."""
    after = np.linalg.inv(prior.precision + grams / sigma**2)
    rng = np.random.default_rng(seed)
    spread = prior.cov - after
    values, vectors = np.linalg.eigh(spread)
    root = vectors * np.sqrt(np.maximum(values, 0))[:, None, :]
    draws = rng.standard_normal((512, prior.n_arms, prior.dim, 1))
    means = prior.mean + (root @ draws)[..., 0]
    chosen = contexts[rng.integers(len(contexts), size=min(len(contexts), 32))]
    return np.asarray(np.einsum("wkd,nd->wnk", means, chosen))
