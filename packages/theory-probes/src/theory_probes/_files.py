"""Tables in and files out: CSV or Parquet by the name's ending, written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


def read_table(path: Path) -> pd.DataFrame:
    """Read a CSV or Parquet file.

    Raises
    ------
    ValueError
        If the file is missing, empty or not what its name says.
    """
    try:
        import pandas as pd
    except ImportError:
        message = "tables need the extra 'tables': pip install theory-probes[tables]"
        raise ValueError(message) from None
    if not path.is_file():
        raise ValueError(f"{path} is not a file")
    try:
        if path.suffix.lower() in (".parquet", ".pq"):
            return pd.read_parquet(path)
        return pd.read_csv(path)
    except Exception as error:
        raise ValueError(f"{path} cannot be read as a table: {error}") from None


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


def write_atomic(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `path`, then rename it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".part-", suffix=path.suffix)
    os.close(handle)
    try:
        write(Path(name))
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
