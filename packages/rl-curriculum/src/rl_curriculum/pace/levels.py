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
Index: TypeAlias = "NDArray[np.intp] | Sequence[int]"


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


def leaves(levels: Levels, prefix: str = "") -> dict[str, NDArray[Any]]:
    """The arrays of a batch by their path, such as `{"walls": ..., "goal.x": ...}`."""
    if isinstance(levels, np.ndarray):
        if levels.ndim == 0:
            raise TypeError("levels is an array without axes; allowed: a leading axis of levels")
        return {prefix or ".": levels}
    if isinstance(levels, list):
        return {prefix or ".": np.array([json.dumps(level) for level in levels], dtype=np.str_)}
    found: dict[str, NDArray[Any]] = {}
    for name, part in _parts(levels).items():
        found |= leaves(part, f"{prefix}.{name}" if prefix else name)
    if not found:
        raise TypeError(f"levels is {levels!r}, which holds no array")
    return found


def rebuild(like: Levels, arrays: dict[str, NDArray[Any]], prefix: str = "") -> Levels:
    """The batch whose `leaves` are `arrays`, of the same kind as `like`."""
    if isinstance(like, np.ndarray):
        return np.array(arrays[prefix or "."])
    if isinstance(like, list):
        return [_hashable(json.loads(str(text))) for text in arrays[prefix or "."]]
    return _join(
        like,
        {
            name: rebuild(part, arrays, f"{prefix}.{name}" if prefix else name)
            for name, part in _parts(like).items()
        },
    )


def take(levels: Levels, index: Index) -> Levels:
    """The levels at `index`, copied."""
    if isinstance(levels, np.ndarray):
        return levels[np.asarray(index, dtype=np.intp)]
    if isinstance(levels, list):
        return [levels[i] for i in index]
    return _join(levels, {name: take(part, index) for name, part in _parts(levels).items()})


def put(store: Levels, index: int, levels: Levels, source: int) -> None:
    """Write level `source` of `levels` into place `index` of `store`."""
    if isinstance(store, np.ndarray | list):
        store[index] = levels[source]
        return
    theirs = _parts(levels)
    for name, part in _parts(store).items():
        put(part, index, theirs[name], source)


def room(levels: Levels, capacity: int) -> Levels:
    """An empty store for `capacity` levels like these."""
    if isinstance(levels, np.ndarray):
        return np.zeros((capacity, *levels.shape[1:]), dtype=levels.dtype)
    if isinstance(levels, list):
        return [None] * capacity
    return _join(levels, {name: room(part, capacity) for name, part in _parts(levels).items()})


def keys(levels: Levels) -> list[object]:
    """A hashable value for each level, equal for identical levels only."""
    if isinstance(levels, list):
        for level in levels:
            hash(level)
        return list(levels)
    parts = [np.ascontiguousarray(leaf) for leaf in leaves(levels).values()]
    return [tuple(part[i].tobytes() for part in parts) for i in range(count(levels))]


def check_like(store: Levels, levels: Levels) -> None:
    """Refuse a batch that does not fit into a store.

    Raises
    ------
    ValueError
        If its kind, its shapes or its types differ.
    """
    if isinstance(store, list) != isinstance(levels, list):
        raise ValueError("levels differ in kind from those stored: a list against arrays")
    if isinstance(store, list):
        return
    ours, theirs = leaves(store), leaves(levels)
    if set(ours) != set(theirs):
        raise ValueError(f"levels have the parts {sorted(theirs)}; allowed: {sorted(ours)}")
    for name, leaf in ours.items():
        if leaf.shape[1:] != theirs[name].shape[1:]:
            raise ValueError(
                f"levels have {name} of shape {theirs[name].shape[1:]} each; "
                f"allowed: {leaf.shape[1:]}, as those stored"
            )


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


def _join(like: Levels, parts: dict[str, Any]) -> Levels:
    if isinstance(like, dict):
        return parts
    if isinstance(like, tuple):
        return tuple(parts.values())
    return dataclasses.replace(like, **parts)


def _hashable(value: Any) -> Any:
    return tuple(_hashable(part) for part in value) if isinstance(value, list) else value
