"""The entry point through which vLLM finds converted models; it needs no flags.

vLLM calls `register` in each of its processes, possibly more than once.
"""

from __future__ import annotations


def register() -> None:
    """Make vLLM know the quantisation method `slidesparse`; calling it again does nothing."""
    from . import vllm_method  # noqa: F401
