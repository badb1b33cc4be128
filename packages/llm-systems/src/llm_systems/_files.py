"""Files and folders written so that an interruption leaves the old ones whole."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


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


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder that becomes `path` when the block ends well, and vanishes when it does not.

    Raises
    ------
    ValueError
        If `path` is a file, a folder with something in it, or the current folder.
    """
    refuse_full(path)
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}-"))
    try:
        umask = os.umask(0)
        os.umask(umask)
        part.chmod(0o777 & ~umask)
        yield part
        if path.exists():
            path.rmdir()
        part.rename(path)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def refuse_full(path: Path) -> None:
    """Refuse a place for a new folder that has something in it, or in which somebody is."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ValueError(f"{path} exists and is not empty; allowed: a new folder")
    if path.resolve() == Path.cwd():
        raise ValueError(f"{path} is the current folder; allowed: a new folder")
