"""Layers, probes and design algorithms from ICML 2026, for your own model."""

from importlib.metadata import version

__version__ = version("theory-probes")
