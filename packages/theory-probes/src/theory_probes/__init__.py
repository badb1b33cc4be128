"""Layers, probes and design algorithms that put theory from ICML 2026 to the test on your own model."""

from importlib.metadata import version

__version__ = version("theory-probes")
