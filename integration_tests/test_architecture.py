"""The rules that keep the fields apart: who may import whom, and what an import may bring."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import is_dataclass
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FIELDS = {path.parent.name: path.parent for path in sorted(ROOT.glob("packages/*/pyproject.toml"))}
MODULES = {name: name.replace("-", "_") for name in FIELDS}
HEAVY = ("torch", "jax", "transformers", "matplotlib", "trl", "vllm", "duckdb", "repro_bench")


def rooms(field: str) -> list[Path]:
    """The folder of each method of a field."""
    source = FIELDS[field] / "src" / MODULES[field]
    return sorted(path.parent for path in source.glob("*/__init__.py"))


ROOMS = [(field, room) for field in FIELDS for room in rooms(field)]


def imported(file: Path) -> Iterator[str]:
    """The top-level modules that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.split(".")[0]


@pytest.mark.parametrize("field", FIELDS)
def test_no_field_imports_another(field: str) -> None:
    others = set(MODULES.values()) - {MODULES[field]}
    for file in (FIELDS[field] / "src").rglob("*.py"):
        assert not others & set(imported(file)), file


@pytest.mark.parametrize("field", FIELDS)
def test_only_the_experiments_import_repro_bench(field: str) -> None:
    for file in (FIELDS[field] / "src").rglob("*.py"):
        if file.name != "reproduce.py":
            assert "repro_bench" not in imported(file), file


@pytest.mark.parametrize("field", FIELDS)
def test_only_tests_and_benchmarks_import_the_references(field: str) -> None:
    for file in (FIELDS[field] / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                names = [node.module or "", *(alias.name for alias in node.names)]
                assert not any(name.split(".")[-1] == "_reference" for name in names), file


@pytest.mark.parametrize("field", FIELDS)
def test_an_import_brings_only_what_is_required(field: str) -> None:
    project = tomllib.loads((FIELDS[field] / "pyproject.toml").read_text())["project"]
    required = {d.split(">")[0].split("=")[0].strip() for d in project["dependencies"]}
    barred = [name for name in HEAVY if name.replace("_", "-") not in required]
    imports = [MODULES[field], *(f"{MODULES[field]}.{room.name}" for room in rooms(field))]
    code = (
        f"import sys, {', '.join(imports)}\n"
        f"print([name for name in {barred} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("field", FIELDS)
def test_the_command_shows_its_methods_without_importing_them(field: str) -> None:
    code = (
        f"import sys\nfrom {MODULES[field]}.cli import app\n"
        "try:\n    app(['--help'])\nexcept SystemExit:\n    pass\n"
        "print([name for name in ('torch', 'pandas', 'scipy', 'sklearn') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]")
    for room in rooms(field):
        if (room / "cli.py").exists():
            assert room.name.replace("_", "-") in done.stdout


@pytest.mark.parametrize(("field", "room"), ROOMS, ids=[room.name for _, room in ROOMS])
def test_public_names_are_documented(field: str, room: Path) -> None:
    module = import_module(f"{MODULES[field]}.{room.name}")
    assert module.__doc__
    for name in module.__all__:
        public = getattr(module, name)
        if inspect.isclass(public) or inspect.isroutine(public):
            assert public.__doc__, name
            is_result = is_dataclass(public) or (
                isinstance(public, type) and issubclass(public, (BaseException, tuple))
            )
            assert is_result or ">>>" in public.__doc__, f"{name}: no example"
