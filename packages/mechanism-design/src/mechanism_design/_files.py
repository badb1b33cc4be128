"""Tables in, files out: CSV and Parquet by their ending, and writes that are never half done."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pandas as pd

_PARQUET = {".parquet", ".pq"}
_CSV = {".csv", ".gz", ".zip", ".bz2", ".xz", ".zst"}


def read_table(path: str | Path) -> pd.DataFrame:
    """Read a CSV (plain or compressed) or a Parquet file.

    Parameters
    ----------
    path
        A file whose name ends in `.csv`, `.csv.gz`, ..., `.parquet` or `.pq`.

    Raises
    ------
    ValueError
        If there is no such file, its ending is another, or it does not parse.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    if path.suffix.lower() in _PARQUET:
        try:
            return pd.read_parquet(path)
        except ImportError:
            raise ValueError(
                f"reading {path.name} needs pyarrow; install it with the extra `parquet`"
            ) from None
        except (OSError, ValueError) as error:
            raise ValueError(f"{path} is not a Parquet file that can be read: {error}") from error
    if path.suffix.lower() in _CSV:
        try:
            # Bids must arrive as they were written, to the last digit.
            return pd.read_csv(path, float_precision="round_trip")
        except (ValueError, EOFError, OSError) as error:
            raise ValueError(f"{path} is not a CSV file that can be read: {error}") from error
    raise ValueError(f"{path.name} ends in {path.suffix!r}; allowed: .csv, .csv.gz, .parquet")


def check_writable(folder: str | Path) -> None:
    """Refuse a folder for results that cannot be made or written, before the work.

    Raises
    ------
    ValueError
        If it, or the nearest folder above it that exists, is a file or cannot be written.
    """
    place = Path(folder).absolute()
    while not os.path.lexists(place):
        place = place.parent
    if not place.is_dir():
        raise ValueError(f"nothing can be written to {folder}: {place} is no folder")
    if not os.access(place, os.W_OK | os.X_OK):
        raise ValueError(f"nothing can be written to {folder}: no permission in {place}")


def write_whole(path: str | Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file in the same folder, then rename it to `path`.

    An interrupted write leaves what stood there before.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write a text file whole or not at all."""
    write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
