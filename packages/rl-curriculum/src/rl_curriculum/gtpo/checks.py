"""Refusal of arguments that are of another kind than the functions take."""

from __future__ import annotations

import math
from numbers import Integral, Real

import torch
from torch import Tensor


def require_tensors(**values: object) -> None:
    """Every value is a tensor."""
    for name, value in values.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} is a {type(value).__name__}; allowed: a torch.Tensor")


def require_whole(least: int, **values: object) -> None:
    """Every value is a whole number of at least `least`."""
    for name, value in values.items():
        if not isinstance(value, Integral) or isinstance(value, bool):
            raise TypeError(f"{name} is {value!r}; allowed: a whole number")
        if value < least:
            raise ValueError(f"{name} is {value}; allowed: at least {least}")


def require_finite(least: float = -math.inf, **values: object) -> None:
    """Every value is a finite number of at least `least`."""
    for name, value in values.items():
        if not is_number(value):
            raise TypeError(f"{name} is {value!r}; allowed: a number")
        if not (math.isfinite(value) and value >= least):  # type: ignore[arg-type, operator]
            bound = "" if least == -math.inf else f" and at least {least:g}"
            raise ValueError(f"{name} is {value!r}; allowed: finite{bound}")


def require_probabilities(**values: object) -> None:
    """Every value is a number between 0 and 1."""
    for name, value in values.items():
        if not is_number(value) or not 0 <= value <= 1:  # type: ignore[operator]
            raise ValueError(f"{name} is {value!r}; allowed: a probability")


def is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def require_pair(name: str, value: object, second_none: bool = False) -> None:
    """The value is a tuple or a list of two numbers; the second may be None if that is said."""
    pair = list(value) if isinstance(value, tuple | list) else []
    if not (
        len(pair) == 2
        and is_number(pair[0])
        and (is_number(pair[1]) or (second_none and pair[1] is None))
    ):
        also = ", or a number and None" if second_none else ""
        raise TypeError(f"{name} is {value!r}; allowed: two numbers{also}")


def live_tokens(mask: Tensor) -> Tensor:
    """The mask as booleans; it holds nothing but 0 and 1."""
    if mask.dtype == torch.bool:
        return mask
    live = mask.bool()
    if not (mask == live).all():
        value = mask[mask != live].flatten()[0].item()
        raise ValueError(f"mask holds {value}; allowed: 0 and 1, or booleans")
    return live
