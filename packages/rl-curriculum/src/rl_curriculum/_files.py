"""Files written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path


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
