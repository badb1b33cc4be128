"""The optional C extension; everything else stands in pyproject.toml."""

from __future__ import annotations

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext


class BuildWithOpenMPIfPossible(build_ext):
    """Build with OpenMP, or without it where the compiler has none; skip it without a compiler."""

    def build_extension(self, ext: Extension) -> None:
        try:
            ext.extra_compile_args, ext.extra_link_args = ["-O3", "-fopenmp"], ["-fopenmp"]
            super().build_extension(ext)
        except Exception:
            ext.extra_compile_args, ext.extra_link_args = ["-O3"], []
            super().build_extension(ext)


setup(
    ext_modules=[
        Extension(
            "llm_systems.slidesparse._kernel",
            ["src/llm_systems/slidesparse/_kernel.c"],
            py_limited_api=True,
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildWithOpenMPIfPossible},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
