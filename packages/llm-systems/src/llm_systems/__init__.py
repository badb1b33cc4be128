"""Making language models smaller and faster: structured sparsity and other systems methods from ICML 2026."""

from importlib.metadata import version

__version__ = version("llm-systems")
