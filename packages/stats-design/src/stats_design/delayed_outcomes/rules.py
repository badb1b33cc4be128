"""Rules such as `effect_lower > 0`, read without executing anything."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_RULE = re.compile(r"\s*(\S.*?)\s*(<=|>=|<|>)\s*([-+]?[\d.]+(?:[eE][-+]?\d+)?)\s*")


@dataclass(frozen=True)
class Rule:
    """A column of the history compared with a number.

    Examples
    --------
    >>> Rule.parse("effect_lower > 0")
    Rule(column='effect_lower', comparison='>', number=0.0)
    """

    column: str
    comparison: str
    number: float

    @classmethod
    def parse(cls, text: str) -> Rule:
        """Read a rule; ValueError if it is none."""
        found = _RULE.fullmatch(text)
        try:
            if found is None:
                raise ValueError
            return cls(found[1], found[2], float(found[3]))
        except ValueError:
            raise ValueError(
                f"rule is {text!r}; allowed: COLUMN < NUMBER (or <=, >, >=), as in "
                "'effect_lower > 0'"
            ) from None

    def holds(self, frame: pd.DataFrame) -> pd.Series[bool]:
        """Which rows satisfy it; a missing value never does."""
        if self.column not in frame.columns:
            raise ValueError(
                f"rule names the column {self.column!r}; allowed: one of {list(frame.columns)}"
            )
        found: pd.Series[bool] = _COMPARE[self.comparison](frame[self.column], self.number)
        return found
