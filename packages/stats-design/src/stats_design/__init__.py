"""Designing and reading experiments: confidence sequences for delayed outcomes and other statistical methods from ICML 2026."""

from importlib.metadata import version

__version__ = version("stats-design")
