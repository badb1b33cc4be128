"""Designing and reading experiments: sequential inference and other methods from ICML 2026."""

from importlib.metadata import version

__version__ = version("stats-design")
