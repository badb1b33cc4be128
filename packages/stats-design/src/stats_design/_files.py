"""Tables read from files, and files written so that an interruption leaves the old one whole."""

from __future__ import annotations

import os
import tempfile
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import pandas as pd


def read_table(path: str | Path, text: Collection[str] = ()) -> pd.DataFrame:
    """Read a table from CSV (`.csv`, `.csv.gz`, `.tsv`) or Parquet (`.parquet`).

    Parameters
    ----------
    path
        The file.
    text
        Columns of which a CSV file's cells are kept as they are written: 007 is not 7, and None is
        a word. Only an empty cell is missing.

    Raises
    ------
    ValueError
        For a missing or empty file, another ending, or content that is no table.
    ModuleNotFoundError
        For Parquet without pyarrow.
    """
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"{file} is not a file; allowed: a CSV or Parquet file")
    name = file.name.lower().removesuffix(".gz")
    separator = {".csv": ",", ".tsv": "\t"}.get(name[-4:])
    try:
        if separator is not None:
            converters = dict.fromkeys(text, str)
            frame = pd.read_csv(file, sep=separator, low_memory=False, converters=converters)
            for column in frame.columns.intersection(list(text)):
                frame[column] = frame[column].where(frame[column] != "")
            return frame
        if name.endswith(".parquet"):
            return _read_parquet(file)
    except pd.errors.EmptyDataError:
        raise ValueError(f"{file} is empty; allowed: a table with a header") from None
    except (pd.errors.ParserError, UnicodeDecodeError, EOFError, zlib.error) as error:
        raise ValueError(f"{file} cannot be read as a table: {error}") from None
    raise ValueError(f"{file} has an unknown ending; allowed: .csv, .csv.gz, .tsv, .parquet")


def _read_parquet(file: Path) -> pd.DataFrame:
    try:
        import pyarrow as pa
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "Parquet files need pyarrow: pip install 'stats-design[parquet]'"
        ) from error
    try:
        return pd.read_parquet(file, engine="pyarrow")
    except pa.ArrowException as error:
        raise ValueError(f"{file} cannot be read as Parquet: {error}") from None


def write_atomically(path: str | Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `path`, then put it in its place in one step.

    The temporary file keeps the ending of `path`, by which libraries choose a format.
    """
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{file.stem}-", suffix=file.suffix, dir=file.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        # mkstemp makes the file private; the result has the permissions of any new file.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write a text file in one step."""
    write_atomically(path, lambda file: file.write_text(text, encoding="utf-8"))


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder for one process; the system lets go of it when the process ends or is killed.

    A folder that was not there is made, and taken away again if nothing was written into it.

    Raises
    ------
    BlockingIOError
        If another process holds it.
    """
    made = [part for part in (folder, *folder.parents) if not part.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    lock = folder / ".lock"
    try:
        with lock.open("w") as file:
            _hold(file, lock)
            try:
                yield
            finally:
                if made and os.listdir(folder) == [lock.name]:
                    lock.unlink()
    finally:
        for part in made:
            # What has something in it stays.
            with suppress(OSError):
                part.rmdir()


def _hold(file: IO[Any], lock: Path) -> None:
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows has no such lock.
        return
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if not (lock.exists() and os.path.samestat(os.fstat(file.fileno()), lock.stat())):
        raise BlockingIOError("the lock was taken away by the process that held it")
