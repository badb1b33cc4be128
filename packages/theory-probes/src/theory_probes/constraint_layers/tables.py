"""Rules for tables: a score for each column in, feasible allocations out."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from .constraints import LinearConstraints
from .layers import BinaryLinearConstraintLayer, GeneralLinearConstraintLayer

if TYPE_CHECKING:
    import pandas as pd

_TOP = {"total", "lower", "upper", "rules"}
_RULE = {"name", "columns", "equals", "at_least", "at_most"}


def read_rules(path: str | Path) -> dict[str, Any]:
    """Read rules from a TOML file.

    The file has `total` (all columns add to it), `lower` and `upper` (a number for every column),
    all optional, and any number of tables `[[rules]]` with `columns` (names, or a table from names
    to coefficients), one or more of `equals`, `at_least` and `at_most`, and a `name` if wanted.

    Raises
    ------
    ValueError
        If the file is not TOML or has a key that means nothing.

    Examples
    --------
    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = os.path.join(folder, "rules.toml")
    ...     text = "total = 1\\n[[rules]]\\ncolumns = ['a']\\nat_least = 0.5"
    ...     _ = open(file, "w").write(text)
    ...     read_rules(file)
    {'total': 1, 'rules': [{'columns': ['a'], 'at_least': 0.5}]}
    """
    try:
        rules = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from None
    _known(rules, _TOP, str(path))
    return rules


def constraints_for(columns: Sequence[str], rules: Mapping[str, Any]) -> LinearConstraints:
    """Turn rules on named columns into constraints on their positions.

    Parameters
    ----------
    columns
        The names, in order.
    rules
        As `read_rules` returns them.

    Raises
    ------
    ValueError
        If a rule names a column that is not there, bounds nothing, or the rules contradict each
        other.
    """
    _known(rules, _TOP, "rules")
    names = [str(c) for c in columns]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"two columns are called {twice!r}; allowed: distinct names")
    place = {name: i for i, name in enumerate(names)}
    n = len(names)
    equal: list[tuple[np.ndarray[Any, Any], float]] = []
    below: list[tuple[np.ndarray[Any, Any], float]] = []
    if "total" in rules:
        equal.append((np.ones(n), _number("total", rules["total"])))
    listed = rules.get("rules", [])
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        raise ValueError("rules is not a list of tables; write [[rules]]")
    for k, rule in enumerate(listed):
        label = (
            f"rule {rule.get('name', k + 1)!r}" if isinstance(rule, Mapping) else f"rule {k + 1}"
        )
        if not isinstance(rule, Mapping) or "columns" not in rule:
            raise ValueError(f"{label} has no columns")
        _known(rule, _RULE, label)
        given = rule["columns"]
        if isinstance(given, str):
            given = [given]
        if not isinstance(given, Mapping) and not (
            isinstance(given, list | tuple) and all(isinstance(name, str) for name in given)
        ):
            raise ValueError(
                f"{label}: columns is {given!r}; allowed: names, or a table from names to numbers"
            )
        weights = given if isinstance(given, Mapping) else dict.fromkeys(given, 1.0)
        row = np.zeros(n)
        for name, weight in weights.items():
            if name not in place:
                raise ValueError(f"{label} names the column {name!r}; there are {names}")
            row[place[name]] = _number(f"{label}: the coefficient of {name!r}", weight)
        if not {"equals", "at_least", "at_most"} & set(rule):
            raise ValueError(f"{label} gives none of equals, at_least and at_most")
        if "equals" in rule:
            equal.append((row, _number(f"{label}: equals", rule["equals"])))
        if "at_most" in rule:
            below.append((row, _number(f"{label}: at_most", rule["at_most"])))
        if "at_least" in rule:
            below.append((-row, -_number(f"{label}: at_least", rule["at_least"])))
    return LinearConstraints(
        n,
        A_eq=[row for row, _ in equal] if equal else None,
        b_eq=[side for _, side in equal] if equal else None,
        A_ub=[row for row, _ in below] if below else None,
        b_ub=[side for _, side in below] if below else None,
        lower=_number("lower", rules["lower"]) if "lower" in rules else None,
        upper=_number("upper", rules["upper"]) if "upper" in rules else None,
    )


def constrained_weights(
    scores: pd.DataFrame,
    rules: Mapping[str, Any] | LinearConstraints,
    *,
    method: Literal["entropic", "euclidean"] = "entropic",
    temperature: float = 1.0,
) -> pd.DataFrame:
    """Turn a table of scores into a table of allocations that obey rules, row by row.

    Parameters
    ----------
    scores
        (rows, columns) of finite numbers: larger is more.
    rules
        As `read_rules` returns them, on the names of the columns; or constraints on their
        positions.
    method
        `"entropic"` for positive shares, soft or hard by `temperature`; `"euclidean"` for the
        smallest change, when the scores are a plan already.

    Returns
    -------
    pandas.DataFrame
        float64, with the index and the columns of `scores`.

    Raises
    ------
    ValueError
        If a score is missing or not a number, or the rules do not fit.
    NotConverged
        If a row does not reach the tolerance.

    Examples
    --------
    >>> import pandas as pd
    >>> scores = pd.DataFrame({"a": [1.0, 0.0], "b": [0.0, 3.0]}, index=["mon", "tue"])
    >>> rules = {"total": 1, "rules": [{"columns": ["a"], "at_least": 0.5}]}
    >>> constrained_weights(scores, rules).round(3)
             a      b
    mon  0.731  0.269
    tue  0.500  0.500
    """
    import pandas as pd

    if method not in ("entropic", "euclidean"):
        raise ValueError(f"method is {method!r}; allowed: 'entropic' or 'euclidean'")
    values = scores.apply(pd.to_numeric, errors="coerce").to_numpy(dtype=np.float64)
    if not np.isfinite(values).all():
        i, j = np.argwhere(~np.isfinite(values))[0]
        shown = scores.iloc[i, j]
        raise ValueError(
            f"row {scores.index[i]!r}, column {scores.columns[j]!r} is {shown!r}; allowed: numbers"
        )
    constraints = (
        rules
        if isinstance(rules, LinearConstraints)
        else constraints_for([str(c) for c in scores.columns], rules)
    )
    if constraints.n != values.shape[1]:
        raise ValueError(
            f"the rules have {constraints.n} variables, scores {values.shape[1]} columns"
        )
    layer: torch.nn.Module
    if method == "entropic":
        layer = BinaryLinearConstraintLayer(constraints, temperature, on_failure="raise")
    else:
        layer = GeneralLinearConstraintLayer(constraints, on_failure="raise")
    with torch.no_grad():
        weights = layer(torch.from_numpy(values)).numpy()
    return pd.DataFrame(weights, index=scores.index, columns=scores.columns)


def _known(table: Mapping[str, Any], allowed: set[str], where: str) -> None:
    strange = sorted(set(table) - allowed)
    if strange:
        raise ValueError(
            f"{where} has the key {strange[0]!r}; allowed: {', '.join(sorted(allowed))}"
        )


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
        raise ValueError(f"{name} is {value!r}; allowed: a finite number")
    return float(value)
