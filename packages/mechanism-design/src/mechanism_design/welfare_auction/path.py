r"""Exact critical bids of the hinge, by following the solution as one bid falls.

With `z` the bid of user `i`, the hinge solution is piecewise linear in `z`. While nobody changes
side,

.. math:: \frac{dw}{dz} = C P z_i, \qquad
          \frac{da_E}{dz} = -(Z_E Z_E^\top)^{-1} Z_E z_i,

where `E` are the users exactly on the margin and `P` projects away their rows. So the own margin
falls at the rate `C ||P z_i||^2`, and the critical bid is where it reaches 0. Only users near the
margin can change side on the way, and how many they are does not grow with `m`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from .losses import Floats
from .solvers import Solution

RIGHT, LEFT, ELBOW = 0, 1, 2
MAX_EVENTS = 5_000

# How many users beside the elbow a walk looks at before it has moved.
FIRST_LOOK = 32

# How a walk ended.
FAILED, PRICED, FREE = -1, 1, 0


def walk(
    own: Floats,
    margin: float,
    level: float,
    rows: Floats,
    margins: Floats,
    duals: Floats,
    bids: Floats,
    states: NDArray[np.int64],
    distances: Floats,
    inverse: Floats,
    elbow_size: int,
    scale: float,
    max_events: int,
) -> tuple[float, int, int]:
    """Lower one user's bid from `level` until its margin or its bid is 0.

    Written in the part of numpy that numba compiles; both run this very function.

    Parameters
    ----------
    own
        (d,) the signed row of the user.
    margin, level
        Its margin at the base solution, and its dual, where its bid starts to matter.
    rows, margins, duals, bids, states
        The users who can change side: (n, d) signed rows and (n,) margins, duals, bids, and sides,
        the elbow first. Working copies that are overwritten.
    distances
        (n,) how far the weights must move before each can reach the margin, increasing; 0 on the
        elbow. Users are looked at only once the walk has come that far.
    inverse
        (n + 1, n + 1) working space; its leading block is the inverse Gram matrix of the elbow.
    elbow_size
        The size of the elbow.
    scale
        `C`.
    max_events
        The most changes of side.

    Returns
    -------
    price, outcome, events
        The critical bid, `PRICED`, `FREE` (still right at bid 0) or `FAILED`, changes of side.
    """
    n, dimension = rows.shape
    elbow = np.arange(n)
    size = elbow_size
    # Which way a margin must move to reach 1: up from the left, down from the right.
    toward = np.where(states == LEFT, 1.0, -1.0)
    toward[:size] = 0.0
    on = np.zeros((n + 1, dimension))
    on[:size] = rows[:size]
    start_margins = margins.copy()
    start_duals = duals.copy()
    start_margin = margin
    bid = level
    moved = np.zeros(dimension)
    smallest = 1e-13 * scale * np.dot(own, own)
    outcome = FAILED
    events = 0
    travelled = 0.0
    active = min(n, size + FIRST_LOOK)
    while events <= max_events:
        if size > 0:
            exchange = np.dot(np.ascontiguousarray(inverse[:size, :size]), np.dot(on[:size], own))
            free = own - np.dot(exchange, on[:size])
        else:
            exchange = np.zeros(0)
            free = own.copy()
        speed = scale * np.dot(free, free)
        step = bid
        event = -1
        kind = FREE
        if speed > smallest and margin <= speed * step:
            step = margin / speed
            kind = PRICED
        if size > 0:
            held = duals[elbow[:size]]
            bound = np.where(exchange > 0, bids[elbow[:size]] - held, -held)
            turning = np.abs(exchange) > 1e-13
            leaving = np.where(turning, bound / np.where(turning, exchange, 1.0), np.inf)
            first = int(np.argmin(leaving))
            if leaving[first] < step:
                step = max(leaving[first], 0.0)
                event = first
                kind = 3
        before, ends_before, before_kind = step, event, kind
        pace = scale * np.sqrt(np.dot(free, free))
        while True:
            step, event, kind = before, ends_before, before_kind
            rates = -scale * np.dot(rows[:active], free)
            if active > 0:
                turning = toward[:active] * rates > smallest
                gaps = 1.0 - margins[:active]
                coming = np.where(turning, gaps / np.where(turning, rates, 1.0), np.inf)
                first = int(np.argmin(coming))
                if coming[first] < step:
                    step = max(coming[first], 0.0)
                    event = first
                    kind = 2
            horizon = (travelled + step * pace) * (1.0 + 1e-9) + 1e-12
            if active == n or distances[active] > horizon:
                break
            wider = min(n, 2 * active + FIRST_LOOK)
            margins[active:wider] += np.dot(rows[active:wider], moved)
            active = wider
        travelled += step * pace
        margins[:active] += step * rates
        margin -= step * speed
        bid -= step
        moved -= (step * scale) * free
        duals[elbow[:size]] += step * exchange
        if kind in (PRICED, FREE):
            outcome = kind
            break
        events += 1
        if kind == 2:
            if size >= dimension:
                break
            row = rows[event]
            cross = np.dot(on[:size], row)
            shadow = np.dot(np.ascontiguousarray(inverse[:size, :size]), cross)
            length = np.dot(row, row)
            rest = length - np.dot(cross, shadow)
            if rest <= 1e-10 * length:
                break
            inverse[:size, :size] += np.outer(shadow, shadow / rest)
            inverse[:size, size] = -shadow / rest
            inverse[size, :size] = -shadow / rest
            inverse[size, size] = 1.0 / rest
            on[size] = row
            elbow[size] = event
            duals[event] = bids[event] if states[event] == LEFT else 0.0
            states[event] = ELBOW
            toward[event] = 0.0
            margins[event] = 1.0
            size += 1
        else:
            j = elbow[event]
            if exchange[event] > 0:
                duals[j], states[j], toward[j] = bids[j], LEFT, 1.0
            else:
                duals[j], states[j], toward[j] = 0.0, RIGHT, -1.0
            margins[j] = 1.0
            last = size - 1
            if event != last:
                elbow[event] = elbow[last]
                on[event] = on[last]
                swap = inverse[event, :size].copy()
                inverse[event, :size] = inverse[last, :size]
                inverse[last, :size] = swap
                swap = inverse[:size, event].copy()
                inverse[:size, event] = inverse[:size, last]
                inverse[:size, last] = swap
            corner = inverse[last, last]
            column = inverse[:last, last].copy()
            inverse[:last, :last] -= np.outer(column, column / corner)
            size = last
    if outcome == FAILED:
        return np.nan, FAILED, events
    # The end point is checked against the optimality conditions, not against the walk.
    shift = np.dot(duals - start_duals, rows) * scale - (level - bid) * scale * own
    tolerance = 1e-9 * (1.0 + np.abs(start_margin))
    off = np.abs(start_margin + np.dot(own, shift) - margin)
    final = start_margins + np.dot(rows, shift)
    if n > 0:
        side = np.where(states == LEFT, final - 1.0, 1.0 - final)
        side = np.where(states == ELBOW, np.abs(final - 1.0), side)
        off = max(off, side.max())
    for p in range(size):
        off = max(off, -duals[elbow[p]], duals[elbow[p]] - bids[elbow[p]])
    if not off <= tolerance:
        return np.nan, FAILED, events
    if outcome == FREE:
        return 0.0, FREE, events
    return bid, PRICED, events


@lru_cache(maxsize=1)
def compiled_walk() -> Callable[..., Any] | None:
    """The walk compiled by numba, or None where the extra `fast` is not installed."""
    if find_spec("numba") is None:
        return None
    import numba

    compiled: Callable[..., Any] = numba.njit(cache=True, nogil=True)(walk)
    return compiled


def path_prices(
    rows: Floats,
    norms: Floats,
    bids: Floats,
    scale: float,
    base: Solution,
    candidates: NDArray[np.intp],
    *,
    compiled: bool | None = None,
    on_priced: Callable[[int], None] | None = None,
) -> tuple[Floats, NDArray[np.bool_]]:
    """Critical bids of the candidates at a hinge solution (route E).

    Parameters
    ----------
    rows, norms
        (m, d) dense signed rows and their norms.
    bids
        (m,) bids.
    scale
        `C = 1 / (2 lam m)`.
    base
        The solution at these bids.
    candidates
        (k,) users to price; each has a positive margin.
    compiled
        Whether to run the numba version; if None, where it is installed.
    on_priced
        Called with 1 after each candidate.

    Returns
    -------
    prices, solved
        (k,) critical bids and whether each end point passed its optimality check. The others need
        another route (duplicated or one-hot rows make the elbow degenerate).
    """
    prices = np.full(len(candidates), np.nan)
    solved = np.zeros(len(candidates), dtype=bool)
    if len(candidates) == 0:
        return prices, solved
    chosen: Callable[..., Any] | None = None if compiled is False else compiled_walk()
    if compiled and chosen is None:
        raise ValueError(
            "compiled is True but numba is not installed; install mechanism-design[fast]"
        )
    step: Callable[..., Any] = chosen or walk
    dimension = rows.shape[1]
    duals = base.duals
    on_elbow = (duals > 0) & (duals < bids)
    elbow = np.flatnonzero(on_elbow)
    if elbow.size > dimension:
        return prices, solved
    on = rows[elbow]
    try:
        inverse = linalg.inv(on @ on.T) if elbow.size else np.zeros((0, 0))
    except linalg.LinAlgError:
        return prices, solved
    states = np.where(duals >= bids, LEFT, RIGHT).astype(np.int64)
    states[on_elbow] = ELBOW
    # Ties: a user whose bid is 0 never pulls, and never matters.
    with np.errstate(divide="ignore", invalid="ignore"):
        distance = np.abs(base.margins - 1.0) / norms
    distance[(bids <= 0) | (norms <= 0) | on_elbow] = np.inf
    reach = scale * bids * norms * (1 + 1e-9) + 1e-12
    near = np.flatnonzero(distance <= reach[candidates].max())
    near = near[np.argsort(distance[near], kind="stable")]
    sorted_distance = distance[near]
    ordered = np.concatenate([elbow, near])
    pool = (rows[ordered], base.margins[ordered], duals[ordered], bids[ordered], states[ordered])
    pool[1][: elbow.size] = 1.0
    ordered_distance = np.concatenate([np.zeros(elbow.size), sorted_distance])
    place = np.full(len(bids), -1)
    place[ordered] = np.arange(len(ordered))
    for position, user in enumerate(candidates):
        if duals[user] <= 0:
            # Beyond the margin the bid does not pull at all.
            prices[position], solved[position] = 0.0, True
        else:
            size = elbow.size
            count = size + int(np.searchsorted(sorted_distance, reach[user], side="right"))
            keep = np.arange(count)
            inner = inverse
            if 0 <= place[user] < count:
                keep = np.delete(keep, place[user])
                if place[user] < size:
                    inner = _without(inverse, int(place[user]))
                    size -= 1
            space = (
                np.zeros((len(keep) + 1, len(keep) + 1))
                if len(keep) < dimension
                else np.zeros((dimension + 1, dimension + 1))
            )
            space[:size, :size] = inner
            price, outcome, _ = step(
                rows[user],
                1.0 if on_elbow[user] else float(base.margins[user]),
                float(duals[user]),
                *(part[keep] for part in pool),
                ordered_distance[keep],
                space,
                size,
                scale,
                MAX_EVENTS,
            )
            prices[position], solved[position] = price, outcome != FAILED
        if on_priced is not None:
            on_priced(1)
    return prices, solved


def _without(inverse: Floats, position: int) -> Floats:
    """The inverse of a matrix with one row and column left out, from the inverse of the whole."""
    rest = np.delete(np.arange(len(inverse)), position)
    column = inverse[rest, position]
    block = inverse[np.ix_(rest, rest)]
    return np.asarray(block - np.outer(column, column) / inverse[position, position])
