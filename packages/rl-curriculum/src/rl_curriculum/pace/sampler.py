"""Which levels to keep and which to replay: rank of the score mixed with staleness."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import levels as batches
from .levels import Levels

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class LevelSampler:
    r"""A buffer of levels with scores, and the distribution that they are replayed from.

    Level `i` has score `S_i`, and `C_i` counts the draws and insertions up to its last one; `c`
    counts all of them. The replay distribution is

    .. math:: P = (1-\rho) P_S + \rho P_C, \qquad P_S(i) \propto (1/\mathrm{rank}_i)^{1/\beta},
              \qquad P_C(i) \propto c - C_i .

    Parameters
    ----------
    capacity
        The number of levels kept.
    replay_prob
        Probability that `should_replay` says yes once the buffer is filled enough.
    staleness
        `rho`, the part of the replays that goes by staleness.
    temperature
        `beta`. At 0.3 nearly nine tenths of the replays by rank are of the single top level, which
        with noisy scores is the luckiest one: 1 is the default.
    min_fill
        The filled part of the buffer from which levels are replayed.
    prioritization
        `"rank"`; `"proportional"`, `P_S(i) ∝ S_i^(1/beta)`, for scores of at least 0; or `"topk"`,
        uniform over the `top_k` best.
    top_k
        For `"topk"`.
    evict
        What leaves a full buffer: the lowest `"score"`, or the lowest sampling `"weight"`. Either
        is replaced only by a higher score.
    duplicate_key
        A function from a batch of levels to one hashable value each; levels of equal value are the
        same level. By default levels are the same when they are identical.
    score_ema
        The weight of a new score against the old one, in (0, 1]; 1 overwrites.
    seed
        An integer or a numpy generator.

    Raises
    ------
    ValueError
        If a parameter is out of its range.

    Notes
    -----
    Source: Jiang et al., *Prioritized Level Replay*, 2021, for the distribution; PACE for the
    replacement of the lowest score.

    Examples
    --------
    >>> sampler = LevelSampler(3, staleness=0.0, min_fill=1.0, seed=0)
    >>> sampler.insert([101, 102, 103], [3.0, 1.0, 2.0]).tolist()
    [0, 1, 2]
    >>> sampler.weights().round(4).tolist()
    [0.5455, 0.1818, 0.2727]
    >>> sampler.insert([104, 105], [0.5, 2.5]).tolist()  # refused; instead of the lowest score
    [-1, 1]
    >>> ids, seeds = sampler.sample(2)
    """

    def __init__(
        self,
        capacity: int,
        replay_prob: float = 0.5,
        staleness: float = 0.3,
        temperature: float = 1.0,
        min_fill: float = 0.25,
        prioritization: Literal["rank", "proportional", "topk"] = "rank",
        evict: Literal["score", "weight"] = "score",
        duplicate_key: Callable[[Levels], list[Any]] | None = None,
        score_ema: float = 1.0,
        top_k: int = 32,
        seed: int | np.random.Generator = 0,
    ) -> None:
        for name, value, least in (("capacity", capacity, 1), ("top_k", top_k, 1)):
            if not isinstance(value, int | np.integer) or value < least:
                raise ValueError(f"{name} is {value!r}; allowed: an integer of at least {least}")
        for name, part in (
            ("replay_prob", replay_prob),
            ("staleness", staleness),
            ("min_fill", min_fill),
        ):
            if not 0 <= part <= 1:
                raise ValueError(f"{name} is {part!r}; allowed: from 0 to 1")
        if not (temperature > 0 and np.isfinite(temperature)):
            raise ValueError(f"temperature is {temperature!r}; allowed: a positive number")
        if not 0 < score_ema <= 1:
            raise ValueError(f"score_ema is {score_ema!r}; allowed: above 0, at most 1")
        if prioritization not in ("rank", "proportional", "topk"):
            raise ValueError(
                f"prioritization is {prioritization!r}; allowed: 'rank', 'proportional', 'topk'"
            )
        if evict not in ("score", "weight"):
            raise ValueError(f"evict is {evict!r}; allowed: 'score' or 'weight'")
        self.capacity = int(capacity)
        self.replay_prob = replay_prob
        self.staleness = staleness
        self.temperature = temperature
        self.min_fill = min_fill
        self.prioritization = prioritization
        self.evict = evict
        self.score_ema = score_ema
        self.top_k = int(top_k)
        self.rng = np.random.default_rng(seed)
        self._keys_of = duplicate_key or batches.keys
        self._scores = np.zeros(self.capacity)
        self._stamps = np.zeros(self.capacity, dtype=np.int64)
        self._uids = np.zeros(self.capacity, dtype=np.int64)
        self._extras: dict[str, Floats] = {}
        self._size = 0
        self._clock = 0
        self._inserted = 0
        self._store: batches.Store | None = None
        self._keys: list[Any] = []
        self._place: dict[Any, int] = {}

    def __len__(self) -> int:
        return self._size

    @property
    def levels(self) -> Levels:
        """The levels in the buffer, copied; None if there are none."""
        return None if self._store is None else self._store.take(np.arange(self._size))

    @property
    def scores(self) -> Floats:
        """The score of each level, copied."""
        return self._scores[: self._size].copy()

    @property
    def uids(self) -> Ints:
        """A number for each level that no later level has: the count of insertions before it."""
        return self._uids[: self._size].copy()

    @property
    def ages(self) -> Ints:
        """Draws and insertions since each level's own last one, `c - C_i`."""
        ages: Ints = self._clock - self._stamps[: self._size]
        return ages

    def extra(self, name: str) -> Floats:
        """What was stored under `name` for each level, copied; NaN where nothing was."""
        if name not in self._extras:
            return np.full(self._size, np.nan)
        return self._extras[name][: self._size].copy()

    def should_replay(self) -> bool:
        """Whether the next batch is a replay: a coin flip once the buffer is filled enough."""
        coin = self.rng.random()
        enough = self._size > 0 and self._size >= self.min_fill * self.capacity
        return bool(enough and coin < self.replay_prob)

    def weights(self) -> Floats:
        """The replay distribution over the levels in the buffer; it sums to 1.

        Raises
        ------
        ValueError
            If the buffer is empty.
        """
        if not self._size:
            raise ValueError("the buffer is empty; insert levels first")
        mixed: Floats = (
            1 - self.staleness
        ) * self._score_part() + self.staleness * self._stale_part()
        return mixed

    def _score_part(self) -> Floats:
        scores = self._scores[: self._size]
        if self.prioritization == "proportional":
            top = scores.max()
            # Divided by the largest first, so that a small temperature does not overflow.
            part = (scores / top) ** (1 / self.temperature) if top > 0 else np.ones(self._size)
        else:
            # A stable sort gives equal scores their order in the buffer on every numpy.
            rank = np.empty(self._size)
            rank[np.argsort(-scores, kind="stable")] = np.arange(1, self._size + 1)
            if self.prioritization == "topk":
                part = (rank <= self.top_k).astype(np.float64)
            else:
                part = (1 / rank) ** (1 / self.temperature)
        shares: Floats = part / part.sum()
        return shares

    def _stale_part(self) -> Floats:
        ages = self.ages.astype(np.float64)
        total = ages.sum()
        return ages / total if total > 0 else np.full(self._size, 1 / self._size)

    def sample(self, n: int) -> tuple[Ints, Levels]:
        """Draw `n` levels one after the other.

        Each draw sets the level's staleness to 0 before the next one, so that a batch does not
        repeat a stale level.

        Parameters
        ----------
        n
            The number of draws.

        Returns
        -------
        ids
            Places in the buffer, shape (n,), valid until the next insertion.
        levels
            Copies of the levels.
        """
        if self._store is None or not self._size:
            raise ValueError("the buffer is empty; insert levels first")
        if n < 1:
            raise ValueError(f"n is {n!r}; allowed: at least 1")
        by_score = np.cumsum(self._score_part())
        by_score /= by_score[-1]
        ids = np.empty(n, dtype=np.int64)
        for k in range(n):
            which, where = self.rng.random(2)
            below = by_score
            if which < self.staleness:
                below = np.cumsum(self._stale_part())
                below /= below[-1]
            ids[k] = np.searchsorted(below, where, side="right")
            self._clock += 1
            self._stamps[ids[k]] = self._clock
        return ids, self._store.take(ids)

    def insert(
        self, levels: Levels, scores: ArrayLike, extras: Mapping[str, ArrayLike] | None = None
    ) -> Ints:
        """Offer levels to the buffer, in order.

        A level that is in the buffer already gets the new score. A full buffer gives up its worst
        level for a better one. A score that is not finite is never stored.

        Parameters
        ----------
        levels
            A batch of levels.
        scores
            Shape (N,).
        extras
            Other numbers to keep with each level, shape (N,) each.

        Returns
        -------
        ids
            The place of each level, -1 for the refused; shape (N,).
        """
        given, more = self._checked(batches.count(levels), scores, extras)
        if not len(given):
            return np.zeros(0, dtype=np.int64)
        if self._store is None:
            self._store = batches.Store(levels, self.capacity)
        self._store.check(levels)
        ids = np.full(len(given), -1, dtype=np.int64)
        keys = self._keys_of(levels)
        for k, key in enumerate(keys):
            score = given[k]
            if not np.isfinite(score):
                continue
            place = self._place.get(key)
            if place is not None:
                self._write(place, score, more, k)
            elif self._size < self.capacity:
                place = self._size
                self._size += 1
                self._keys.append(None)
                self._fill(place, levels, k, key, score, more)
            else:
                ranked = self._scores if self.evict == "score" else self.weights()
                place = int(np.argmin(ranked))
                if not score > self._scores[place]:
                    continue
                del self._place[self._keys[place]]
                self._fill(place, levels, k, key, score, more)
            ids[k] = place
        # A later level of the same batch may have taken the place of an earlier one.
        for k, at in enumerate(ids):
            if at >= 0 and self._keys[at] != keys[k]:
                ids[k] = -1
        return ids

    def _fill(
        self, place: int, levels: Levels, k: int, key: Any, score: float, more: dict[str, Floats]
    ) -> None:
        assert self._store is not None
        self._store.put(place, levels, k)
        self._keys[place] = key
        self._place[key] = place
        self._uids[place] = self._inserted
        self._inserted += 1
        for values in self._extras.values():
            values[place] = np.nan
        self._write(place, score, more, k, fresh=True)

    def _write(
        self, place: int, score: float, more: dict[str, Floats], k: int, fresh: bool = False
    ) -> None:
        share = 1.0 if fresh else self.score_ema
        self._scores[place] = (1 - share) * self._scores[place] + share * score
        self._clock += 1
        self._stamps[place] = self._clock
        for name, values in more.items():
            self._extras.setdefault(name, np.full(self.capacity, np.nan))[place] = values[k]

    def update(
        self, ids: ArrayLike, scores: ArrayLike, extras: Mapping[str, ArrayLike] | None = None
    ) -> None:
        """Write new scores of levels in the buffer.

        A level whose new score is not finite keeps its old one. Of a level that was drawn twice
        the last score counts.

        Parameters
        ----------
        ids
            Places from `sample`, shape (N,); -1 is passed over.
        scores
            Shape (N,).
        extras
            Other numbers to keep with each level, shape (N,) each.
        """
        places = np.asarray(ids, dtype=np.int64)
        given, more = self._checked(len(places), scores, extras)
        if len(places) and not -1 <= places.min() <= places.max() < self._size:
            raise ValueError(f"ids are {places.tolist()}; allowed: -1 to {self._size - 1}")
        for k, place in enumerate(places):
            if place < 0:
                continue
            if np.isfinite(given[k]):
                old = self._scores[place]
                self._scores[place] = (1 - self.score_ema) * old + self.score_ema * given[k]
            for name, values in more.items():
                if np.isfinite(values[k]):
                    stored = self._extras.setdefault(name, np.full(self.capacity, np.nan))
                    stored[place] = values[k]

    def _checked(
        self, n: int, scores: ArrayLike, extras: Mapping[str, ArrayLike] | None
    ) -> tuple[Floats, dict[str, Floats]]:
        given = np.asarray(scores, dtype=np.float64)
        more = {name: np.asarray(v, dtype=np.float64) for name, v in (extras or {}).items()}
        for name, values in {"scores": given, **more}.items():
            if values.shape != (n,):
                raise ValueError(f"{name} has shape {values.shape}; allowed: ({n},), one a level")
        if self.prioritization == "proportional" and (given < 0).any():
            raise ValueError(
                f"scores have the negative value {given.min()}; allowed with "
                "prioritization='proportional': at least 0"
            )
        return given, more

    def state_dict(self) -> dict[str, Any]:
        """All that a later `load_state_dict` needs to go on identically."""
        return {
            "levels": self.levels,
            "scores": self.scores,
            "stamps": self._stamps[: self._size].copy(),
            "uids": self.uids,
            "extras": {name: values[: self._size].copy() for name, values in self._extras.items()},
            "clock": self._clock,
            "inserted": self._inserted,
            "rng": self.rng.bit_generator.state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict` of a sampler of at most this capacity."""
        size = len(state["scores"])
        if size > self.capacity:
            raise ValueError(f"the state holds {size} levels; allowed: at most {self.capacity}")
        if not np.isfinite(state["scores"]).all():
            raise ValueError("the state holds scores that are not finite")
        self._size = size
        self._clock = int(state["clock"])
        self._inserted = int(state["inserted"])
        self._scores[:size] = state["scores"]
        self._stamps[:size] = state["stamps"]
        self._uids[:size] = state["uids"]
        self._extras = {}
        for name, values in state["extras"].items():
            self._extras[name] = np.full(self.capacity, np.nan)
            self._extras[name][:size] = values
        self.rng.bit_generator.state = state["rng"]
        self._store, self._keys, self._place = None, [], {}
        if size:
            self._store = batches.Store(state["levels"], self.capacity)
            for place in range(size):
                self._store.put(place, state["levels"], place)
            self._keys = list(self._keys_of(state["levels"]))
            self._place = {key: place for place, key in enumerate(self._keys)}
