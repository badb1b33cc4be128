"""Batches of levels of any kind: arrays with a leading axis, nested at will, or hashable values.

A batch is a numpy array, a dictionary, tuple or dataclass of batches, or a list of hashable values
such as seeds.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Levels: TypeAlias = Any
Arrays: TypeAlias = dict[str, NDArray[Any]]


def count(levels: Levels) -> int:
    """The number of levels in a batch.

    Raises
    ------
    ValueError
        If the parts of the batch differ in length.
    TypeError
        If it is no batch of levels.
    """
    if isinstance(levels, list):
        return len(levels)
    lengths = {len(leaf) for leaf in leaves(levels).values()}
    if len(lengths) != 1:
        raise ValueError(f"levels have parts of lengths {sorted(lengths)}; allowed: one length")
    return lengths.pop()


def leaves(levels: Levels, prefix: str = "") -> Arrays:
    """The arrays of a batch by their path, such as `{"walls": ..., "goal.x": ...}`."""
    if isinstance(levels, np.ndarray):
        if levels.ndim == 0:
            raise TypeError("levels is an array without axes; allowed: a leading axis of levels")
        return {prefix or ".": levels}
    if isinstance(levels, list) and not prefix:
        return {".": np.array([json.dumps(level) for level in levels], dtype=np.str_)}
    found: Arrays = {}
    for name, part in _parts(levels).items():
        found |= leaves(part, f"{prefix}.{name}" if prefix else name)
    if not found:
        raise TypeError(f"levels is {levels!r}, which holds no array")
    return found


def rebuild(like: Levels, arrays: Arrays, prefix: str = "") -> Levels:
    """The batch whose `leaves` are `arrays`, of the same kind as `like`."""
    if isinstance(like, np.ndarray):
        return arrays[prefix or "."]
    if isinstance(like, list):
        return [_hashable(json.loads(str(text))) for text in arrays["."]]
    parts = {
        name: rebuild(part, arrays, f"{prefix}.{name}" if prefix else name)
        for name, part in _parts(like).items()
    }
    if isinstance(like, dict):
        return parts
    if isinstance(like, tuple):
        return tuple(parts.values())
    return dataclasses.replace(like, **parts)


def take(levels: Levels, index: NDArray[np.integer[Any]] | Sequence[int]) -> Levels:
    """The levels at `index`, copied."""
    if isinstance(levels, list):
        return [levels[int(i)] for i in index]
    at = np.asarray(index, dtype=np.intp)
    return rebuild(levels, {path: leaf[at] for path, leaf in leaves(levels).items()})


def concatenate(batches: Sequence[Levels]) -> Levels:
    """Several batches as one."""
    if isinstance(batches[0], list):
        return [level for batch in batches for level in batch]
    parts = [leaves(batch) for batch in batches]
    return rebuild(batches[0], {p: np.concatenate([part[p] for part in parts]) for p in parts[0]})


def keys(levels: Levels) -> list[Any]:
    """A hashable value for each level, equal for identical levels only."""
    if isinstance(levels, list):
        for level in levels:
            hash(level)
        return list(levels)
    parts = [np.ascontiguousarray(leaf) for leaf in leaves(levels).values()]
    return [tuple(part[i].tobytes() for part in parts) for i in range(count(levels))]


class Store:
    """Room for a fixed number of levels like the first ones."""

    def __init__(self, like: Levels, capacity: int) -> None:
        self._like = take(like, [0])
        self._list: list[Any] | None = [None] * capacity if isinstance(like, list) else None
        self._arrays: Arrays = {}
        if self._list is None:
            self._arrays = {
                path: np.zeros((capacity, *leaf.shape[1:]), dtype=leaf.dtype)
                for path, leaf in leaves(like).items()
            }

    def check(self, levels: Levels) -> None:
        """Refuse a batch of another kind or of other shapes."""
        if isinstance(levels, list) != (self._list is not None):
            raise ValueError("levels differ in kind from those stored: a list against arrays")
        if self._list is not None:
            return
        theirs = leaves(levels)
        if set(self._arrays) != set(theirs):
            raise ValueError(
                f"levels have the parts {sorted(theirs)}; allowed: {sorted(self._arrays)}"
            )
        for path, store in self._arrays.items():
            if store.shape[1:] != theirs[path].shape[1:]:
                raise ValueError(
                    f"levels have {path} of shape {theirs[path].shape[1:]} each; "
                    f"allowed: {store.shape[1:]}, as those stored"
                )

    def put(self, place: int, levels: Levels, source: int) -> None:
        """Write level `source` of a batch into a place."""
        if self._list is not None:
            self._list[place] = levels[source]
            return
        for path, leaf in leaves(levels).items():
            self._arrays[path][place] = leaf[source]

    def take(self, places: NDArray[np.integer[Any]]) -> Levels:
        """The levels at these places, copied."""
        if self._list is not None:
            return [self._list[int(i)] for i in places]
        return rebuild(self._like, {path: store[places] for path, store in self._arrays.items()})


def _parts(levels: Levels) -> dict[str, Any]:
    if isinstance(levels, dict):
        return {str(name): part for name, part in levels.items()}
    if isinstance(levels, tuple):
        return {str(i): part for i, part in enumerate(levels)}
    if dataclasses.is_dataclass(levels) and not isinstance(levels, type):
        return {f.name: getattr(levels, f.name) for f in dataclasses.fields(levels)}
    raise TypeError(
        f"levels is a {type(levels).__name__}; allowed: numpy arrays with a leading axis, a dict, "
        "tuple or dataclass of them, or a list of hashable values"
    )


def _hashable(value: Any) -> Any:
    return tuple(_hashable(part) for part in value) if isinstance(value, list) else value
