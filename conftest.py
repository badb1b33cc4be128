"""Runs the Python examples of every README, and keeps tests to one thread a worker."""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def _enter(namespace: MutableMapping[str, Any]) -> None:
    """Run a page's examples in an empty folder, where they may write."""
    namespace["_before"], namespace["_folder"] = Path.cwd(), TemporaryDirectory()
    os.chdir(namespace["_folder"].name)


def _leave(namespace: MutableMapping[str, Any]) -> None:
    os.chdir(namespace["_before"])
    namespace["_folder"].cleanup()


@pytest.fixture(autouse=True)
def _same_weights_in_every_run() -> None:
    """A new layer draws its weights from torch's global generator."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser(), SkipParser()],
    patterns=["README.md"],
    setup=_enter,
    teardown=_leave,
).pytest()
