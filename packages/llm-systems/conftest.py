"""Keeps doctest from importing modules whose libraries are not there."""

from importlib.util import find_spec

collect_ignore_glob: list[str] = []
if find_spec("triton") is None:
    collect_ignore_glob += ["src/llm_systems/slidesparse/fused.py"]
if find_spec("vllm") is None:
    collect_ignore_glob += ["src/llm_systems/slidesparse/vllm_method.py"]
if find_spec("repro_bench") is None:
    collect_ignore_glob += ["src/llm_systems/*/reproduce.py"]
