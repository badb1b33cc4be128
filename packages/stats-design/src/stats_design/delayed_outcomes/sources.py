"""Tables of units that DuckDB can read: opening them, the kind of their times, and queries."""

from __future__ import annotations

import glob
import re
from pathlib import Path
from typing import Any

import pandas as pd

from stats_design.delayed_outcomes.timeline import AWARE, NAIVE, NUMBER, Timeline

# A query, after comments and parentheses.
_SQL = re.compile(r"(?:\s|\(|--[^\n]*\n|/\*.*?\*/)*(?:SELECT|WITH|FROM)\b", re.I | re.S)
_NUMBERS = re.compile(r"U?(TINY|SMALL|BIG|HUGE)?INT$|U?INTEGER$|DECIMAL\(.*\)$|FLOAT$|DOUBLE$")


def open_relation(source: Any, connection: Any) -> Any:
    """The relation of a source as `delayed_confseq` takes it, refused if it is none."""
    try:
        import duckdb
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "tables outside memory need duckdb: pip install 'stats-design[duckdb]'"
        ) from error
    runner = duckdb if connection is None else connection
    if isinstance(source, duckdb.DuckDBPyRelation):
        return source
    if not isinstance(source, (str, Path)):
        raise TypeError(
            f"units is a {type(source).__name__}; allowed: a DataFrame, a DuckDB relation, the "
            "path of a Parquet file or folder, or a SQL query"
        )
    text = str(source)
    try:
        if isinstance(source, str) and _SQL.match(text):
            return runner.sql(text)
        files = _files(text)
        # Folders such as treatment=1/ hold a column in their names.
        return runner.read_parquet(files, hive_partitioning=True, union_by_name=True)
    except duckdb.Error as error:
        raise ValueError(f"units is {text!r}, which DuckDB cannot read: {error}") from error


def _files(text: str) -> list[str]:
    path = Path(text)
    try:
        found = sorted(path.rglob("*.parquet")) if text and path.is_dir() else [path]
        if found and text and all(file.is_file() for file in found):
            return [glob.escape(str(file)) for file in found]
    except OSError:
        pass
    raise ValueError(
        f"units is {text!r}; allowed: an existing Parquet file, a folder with such files, or SELECT"
    )


def _kind(column: str, duck_type: str) -> str:
    if duck_type.startswith("TIMESTAMP WITH TIME ZONE"):
        return AWARE
    if duck_type.startswith(("TIMESTAMP", "DATE")):
        return NAIVE
    if _NUMBERS.match(duck_type):
        return NUMBER
    raise TypeError(f"{column} is {duck_type}; allowed: numbers, dates or timestamps")


def with_timeline(relation: Any) -> tuple[Any, Timeline]:
    """The kind of times, and the relation with an `outcome_time` of the same kind."""
    types = dict(zip(relation.columns, (str(t) for t in relation.types), strict=True))
    kind = _kind("entry_time", types["entry_time"])
    if types["outcome_time"] != types["entry_time"]:
        # A column that is missing in every row has whatever type its writer chose.
        if not relation.filter("outcome_time IS NOT NULL").limit(1).fetchall():
            others = [f'"{c}"' for c in relation.columns if c != "outcome_time"]
            empty = f"CAST(NULL AS {types['entry_time']}) AS outcome_time"
            relation = relation.project(", ".join([*others, empty]))
        elif _kind("outcome_time", types["outcome_time"]) != kind:
            raise TypeError(
                f"entry_time is {types['entry_time']}, outcome_time is {types['outcome_time']}; "
                "allowed: one kind"
            )
    return relation, Timeline(kind, "UTC" if kind == AWARE else None)


def fetch(relation: Any, query: str) -> pd.DataFrame:
    """The rows of a query in which the relation is called `units`."""
    import duckdb

    try:
        frame: pd.DataFrame = relation.query("units", query).df()
    except duckdb.Error as error:
        raise ValueError(f"DuckDB cannot aggregate the units: {error}") from error
    return frame
