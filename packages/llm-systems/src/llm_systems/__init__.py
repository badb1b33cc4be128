"""Language models made smaller and faster: methods from ICML 2026."""

from importlib.metadata import version

__version__ = version("llm-systems")
