"""One auction from signed rows and bids to prices, whatever the features came from.

The steps: fit once, screen, and find the critical bid of each user left by the first route that
proves its answer - the path (hinge, dense rows), the constrained fit, bisection.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .constrained import constrained_prices
from .losses import Floats, Loss
from .path import path_prices
from .screening import pivotal_candidates, stability_band
from .solvers import Rows, Solution, is_sparse, row_norms, solve

Payments: TypeAlias = Literal["exact", "bisect", "sampled", "one_shot", "none"]
PAYMENTS: tuple[Payments, ...] = ("exact", "bisect", "sampled", "one_shot", "none")

# From this many users to price on, compiling (seconds, once a machine) pays.
COMPILE_FROM = 200


@dataclass(frozen=True)
class Problem:
    """The data of an auction in the solver's terms.

    Parameters
    ----------
    loss
        The margin loss.
    rows
        (m, d) signed rows `y_j x_j`, dense or CSR.
    norms
        (m,) their norms.
    bids
        (m,) bids.
    scale
        `C = 1 / (2 lam m)`.
    tie
        Margins up to `tie ||w|| ||x_i||` count as 0, that is as wrong.
    max_iter
        The most Newton steps of a fit.
    """

    loss: Loss
    rows: Rows
    norms: Floats
    bids: Floats
    scale: float
    tie: float = 1e-11
    max_iter: int = 200

    @classmethod
    def of(cls, loss: Loss, rows: Rows, bids: Floats, scale: float) -> Problem:
        """The problem with the norms worked out."""
        return cls(loss=loss, rows=rows, norms=row_norms(rows), bids=bids, scale=scale)

    def fit(self, bids: Floats | None = None, start: Solution | None = None) -> Solution:
        """The minimiser, at other bids if given."""
        return solve(
            self.loss,
            self.rows,
            self.bids if bids is None else bids,
            self.scale,
            start=start,
            max_iter=self.max_iter,
        )

    def floor(self, fit: Solution) -> Floats:
        """(m,) the margins that still count as 0."""
        return self.tie * float(np.linalg.norm(fit.weights)) * self.norms

    def right_at(self, user: int, bid: float, start: Solution) -> bool:
        """Whether the user is served when only its own bid is another."""
        bids = self.bids.copy()
        bids[user] = bid
        fit = self.fit(bids, start)
        floor = self.tie * float(np.linalg.norm(fit.weights)) * self.norms[user]
        return bool(fit.margins[user] > floor)


@dataclass(frozen=True)
class Result:
    """An auction that was held; all arrays are (m,).

    Parameters
    ----------
    fit
        The classifier's solution.
    served
        Who is classified correctly.
    payments
        What each pays.
    status
        `"easy"`, `"pivotal"`, `"hopeless"`, or `"candidate"` where no critical bid was computed.
    route
        How each price was found: `"wrong"`, `"screen"`, `"path"`, `"constrained"`, `"bisect"`,
        `"sampled"`, `"one_shot"` or `"none"`.
    certified
        Whether the sign of the margin is beyond doubt and the price proved.
    band
        The largest margin at which a user could still pay.
    """

    fit: Solution
    served: NDArray[np.bool_]
    payments: Floats
    status: NDArray[np.str_]
    route: NDArray[np.str_]
    certified: NDArray[np.bool_]
    band: Floats
    resampled: NDArray[np.bool_] | None = None


def hold_auction(
    problem: Problem,
    payments: Payments,
    *,
    n_draws: int = 1,
    mu: float = 0.5,
    width: float = 1e-9,
    generator: np.random.Generator | None = None,
    n_jobs: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Result:
    """Fit, serve and price.

    Parameters
    ----------
    problem
        Rows, bids and loss.
    payments
        `"exact"` critical bids, `"bisect"` the same by refits, `"sampled"` unbiased draws of
        them, `"one_shot"` a single fit on resampled bids, or `"none"`.
    n_draws
        Refits averaged by a sampled price.
    mu
        The chance that a one-shot auction resamples a bid.
    width
        Where bisection stops, relative to the bid (absolute for bids below 1).
    generator
        The randomness of sampled and one-shot prices.
    n_jobs
        Threads over the users to price; None is 1 and -1 every core.
    progress
        Called with the number of users priced so far and the number to price.
    """
    count = len(problem.bids)
    generator = np.random.default_rng() if generator is None else generator
    trained, resampled = problem, None
    if payments == "one_shot":
        trained, resampled = _resample(problem, mu, generator)
    fit = trained.fit()
    floor = problem.floor(fit)
    served = fit.margins > floor
    certified = np.abs(fit.margins) > np.maximum(floor, problem.norms * np.sqrt(2 * fit.gap))
    certified &= fit.converged
    open_ = served & pivotal_candidates(
        problem.loss, fit.margins, trained.bids, problem.norms, problem.scale, floor
    )
    status = np.where(served, "easy", "hopeless").astype("U9")
    route = np.where(served, "screen", "wrong").astype("U11")
    prices = np.zeros(count)
    if payments == "none":
        status[open_], route[:] = "candidate", "none"
    elif payments == "one_shot" and resampled is not None:
        status[open_], route[:] = "candidate", "one_shot"
        prices = problem.bids * served * np.where(resampled, 1.0 - 1.0 / mu, 1.0)
    elif payments == "sampled":
        users = np.flatnonzero(open_)
        draws = generator.uniform(0.0, problem.bids[users, None], (len(users), n_draws))
        prices[users] = sampled_prices(problem, fit, users, draws, n_jobs, progress)
        status[users], route[users] = "candidate", "sampled"
    else:
        users = np.flatnonzero(open_)
        prices[users], route[users], proved = critical_bids(
            problem,
            fit,
            users,
            bisect=payments == "bisect",
            width=width,
            n_jobs=n_jobs,
            progress=progress,
        )
        certified[users] &= proved
        status[prices > 0] = "pivotal"
    band = stability_band(problem.loss, trained.bids, problem.norms, problem.scale)
    return Result(fit, served, prices, status, route, certified, band, resampled)


def _resample(
    problem: Problem, mu: float, generator: np.random.Generator
) -> tuple[Problem, NDArray[np.bool_]]:
    """Bids with each, at the chance `mu`, scaled down by `gamma^(1/(1-mu))`, gamma uniform."""
    count = len(problem.bids)
    resampled = generator.uniform(size=count) < mu
    shrink = generator.uniform(size=count) ** (1.0 / (1.0 - mu))
    return replace(problem, bids=np.where(resampled, shrink, 1.0) * problem.bids), resampled


def critical_bids(
    problem: Problem,
    fit: Solution,
    users: NDArray[np.intp],
    *,
    bisect: bool = False,
    width: float = 1e-9,
    n_jobs: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Floats, NDArray[np.str_], NDArray[np.bool_]]:
    """The critical bids of served users, the route of each, and whether it is proved."""
    total = len(users)
    prices, proved = np.zeros(total), np.zeros(total, dtype=bool)
    route = np.full(total, "bisect", dtype="U11")
    done = 0

    def tick(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    def price(chosen: NDArray[np.intp]) -> None:
        ids = users[chosen]
        left = np.ones(len(ids), dtype=bool)
        if not bisect and problem.loss == "hinge" and not is_sparse(problem.rows):
            found, solved = path_prices(
                problem.rows,
                problem.norms,
                problem.bids,
                problem.scale,
                fit,
                ids,
                compiled=None if total >= COMPILE_FROM else False,
                on_priced=tick,
            )
            sound = solved & (found <= problem.bids[ids] * (1 + 1e-9))
            prices[chosen[sound]], route[chosen[sound]] = found[sound], "path"
            proved[chosen[sound]], left[sound] = True, False
        if not bisect and left.any():
            rest = np.flatnonzero(left)
            found, solved = constrained_prices(
                problem.loss,
                problem.rows,
                problem.norms,
                problem.bids,
                problem.scale,
                fit,
                ids[rest],
                on_priced=None if problem.loss == "hinge" and len(rest) < len(ids) else tick,
            )
            for position, value, fine in zip(rest, found, solved, strict=True):
                user = int(ids[position])
                if fine and value <= problem.bids[user] * (1 + 1e-9):
                    # The multiplier of a degenerate hinge fit need not be unique.
                    if problem.loss == "hinge" and not _crosses(problem, fit, user, value):
                        continue
                    place = chosen[position]
                    prices[place], route[place], proved[place] = value, "constrained", True
                    left[position] = False
        for position in np.flatnonzero(left):
            user = int(ids[position])
            prices[chosen[position]] = bisected_price(problem, fit, user, width)
            proved[chosen[position]] = fit.converged
            if bisect:
                tick(1)

    parts = _threads(n_jobs, total)
    if parts <= 1:
        price(np.arange(total))
    else:
        with ThreadPoolExecutor(parts) as pool:
            list(pool.map(price, np.array_split(np.arange(total), parts)))
    return np.minimum(prices, problem.bids[users]), route, proved


def _threads(n_jobs: int | None, total: int) -> int:
    wanted = 1 if n_jobs is None else n_jobs if n_jobs > 0 else (os.cpu_count() or 1) + 1 + n_jobs
    return max(1, min(wanted, total))


def _crosses(problem: Problem, fit: Solution, user: int, price: float) -> bool:
    """Whether the user is right just above the price and wrong just below it."""
    step = 1e-6 * max(1.0, price)
    above = problem.right_at(user, price + step, fit)
    return above and (price <= step or not problem.right_at(user, price - step, fit))


def bisected_price(problem: Problem, fit: Solution, user: int, width: float) -> float:
    """The critical bid by refits (route A): one at bid 0, then about 30 for a payer."""
    if problem.right_at(user, 0.0, fit):
        return 0.0
    low, high = 0.0, float(problem.bids[user])
    width *= max(1.0, high)
    while high - low > width:
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        if problem.right_at(user, middle, fit):
            high = middle
        else:
            low = middle
    return high


def sampled_prices(
    problem: Problem,
    fit: Solution,
    users: NDArray[np.intp],
    draws: Floats,
    n_jobs: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Floats:
    """Unbiased prices from refits at random bids (route B).

    A user wrong at the drawn bid is charged its whole bid, which happens with probability
    `critical bid / bid`.

    Parameters
    ----------
    problem, fit
        The auction and its base solution.
    users
        (k,) whom to price.
    draws
        (k, r) bids drawn uniformly from `[0, b_i]`; the prices are averages over the r draws.
    n_jobs, progress
        As in `hold_auction`.
    """
    done = 0

    def price(position: int) -> float:
        nonlocal done
        user = int(users[position])
        wrong = [not problem.right_at(user, float(bid), fit) for bid in draws[position]]
        done += 1
        if progress is not None:
            progress(done, len(users))
        return float(problem.bids[user] * np.mean(wrong))

    parts = _threads(n_jobs, len(users))
    if parts <= 1:
        return np.array([price(position) for position in range(len(users))])
    with ThreadPoolExecutor(parts) as pool:
        return np.array(list(pool.map(price, range(len(users)))))
