"""What a result was computed with: versions, machine, commit."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from .catalog import find_checkout


def describe(field: str) -> dict[str, Any]:
    """Versions of a field and of what it depends on, the machine, the date and the commit."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "versions": versions(field),
        "machine": machine(),
        "commit": commit(find_checkout(), field),
    }


def versions(field: str) -> dict[str, str]:
    """The installed versions of a distribution and of its direct requirements, extras included."""
    names = [field, "repro-bench"]
    try:
        for requirement in requires(field) or ():
            match = re.match(r"[A-Za-z0-9._-]+", requirement)
            if match:
                names.append(match.group())
    except PackageNotFoundError:
        pass
    found = {}
    for name in dict.fromkeys(names):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def machine() -> str:
    """Processor, cores and memory, as one line."""
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            models = [line.split(":", 1)[1].strip() for line in file if "model name" in line]
        model = models[0] if models else model
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
        return f"{model}, {os.cpu_count()} cores, {memory:.0f} GiB"
    except (OSError, ValueError):
        return f"{model}, {os.cpu_count()} cores"


def commit(checkout: Path | None, field: str) -> str | None:
    """The commit of the checkout, with a plus sign if the source of the field differs from it."""
    if checkout is None:
        return None
    try:
        head = _git(checkout, "rev-parse", "--short=12", "HEAD")
        folders = [f"{folder}/**/*.py" for folder in (f"packages/{field}", "shared")]
        specs = [f":(glob){pattern}" for pattern in folders]
        changed = _git(checkout, "status", "--porcelain", "--untracked-files=no", "--", *specs)
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("+" if changed else "")


def _git(checkout: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(checkout), *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()
