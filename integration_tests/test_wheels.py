"""Each wheel alone in a clean environment, where a dependency that nobody listed is missing."""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.wheels

ROOT = Path(__file__).parent.parent
MEMBERS = [path.parent for path in sorted(ROOT.glob("packages/*/pyproject.toml"))]
# The fields without torch are small enough for pip; the others come from uv's cache.
PLAIN_PIP = ("mechanism-design", "stats-design")


def call(*command: str | Path, cwd: Path | None = None) -> str:
    env = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTHONPATH")}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel of every member."""
    folder = tmp_path_factory.mktemp("wheels")
    call("uv", "build", "--all-packages", "--wheel", "--out-dir", folder, cwd=ROOT)
    return folder


@pytest.fixture
def install(wheels: Path, tmp_path: Path):
    """Install the wheel of one member, with extras if wanted, and return the new Python."""

    def into_clean_environment(member: str, extras: str = "") -> Path:
        (wheel,) = wheels.glob(f"{member.replace('-', '_')}-*.whl")
        venv = tmp_path / member
        python = venv / "bin" / "python"
        if member in PLAIN_PIP:
            call("uv", "venv", "--quiet", "--seed", venv)
            call(python, "-m", "pip", "install", "--quiet", f"{wheel}{extras}")
        else:
            call("uv", "venv", "--quiet", venv)
            call("uv", "pip", "install", "--quiet", "--python", python, f"{wheel}{extras}")
        return python

    return into_clean_environment


@pytest.mark.parametrize("member", [path.name for path in MEMBERS])
def test_a_field_installs_alone_and_works(install, member: str, tmp_path: Path) -> None:
    python = install(member)
    present = call("uv", "pip", "list", "--python", python).split()
    assert "repro-bench" not in present
    if member in PLAIN_PIP:
        assert "torch" not in present
    module = member.replace("-", "_")
    source = ROOT / "packages" / member / "src" / module
    rooms = sorted(path.parent.name for path in source.glob("*/__init__.py"))
    imports = [f"import {module}.{room}" for room in rooms]
    call(python, "-c", "\n".join([f"import {module}", *imports]), cwd=tmp_path)
    helped = call(python.with_name(member), "--help", cwd=tmp_path)
    for room in rooms:
        call(python.with_name(member), room.replace("_", "-"), "--help", cwd=tmp_path)
        assert room.replace("_", "-") in helped
    example = ROOT / "packages" / member / "tests" / "installed.py"
    if rooms:
        call(python, example, cwd=tmp_path)


def project_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return found


def bounds(project: dict[str, Any]) -> list[str]:
    """What a member requires, its extras included but vLLM, the clusters and its own kind."""
    extras = project.get("optional-dependencies", {})
    listed = list(project["dependencies"])
    for name, requirements in extras.items():
        if name not in ("vllm", "dask", "ray", "all", "repro"):
            listed += requirements
    return listed


def test_the_bench_installs_alone_and_lists_nothing(install, tmp_path: Path) -> None:
    python = install("repro-bench")
    assert "No experiment is installed" in call(python.with_name("repro"), "list", cwd=tmp_path)


@pytest.mark.parametrize("member", [path.name for path in MEMBERS])
def test_the_lowest_versions_run_the_experiments(wheels: Path, member: str, tmp_path: Path) -> None:
    module = member.replace("-", "_")
    project = project_of(ROOT / "packages" / member)
    experiments = project.get("entry-points", {}).get("repro_bench.experiments", {})
    assert experiments
    venv = tmp_path / member
    python = venv / "bin" / "python"
    call("uv", "venv", "--quiet", venv)
    own = [str(next(wheels.glob(f"{name}-*.whl"))) for name in (module, "repro_bench")]
    # Named on the command line, they are what the lowest version is taken of.
    wanted = [*bounds(project), *bounds(project_of(ROOT / "shared"))]
    call(
        *("uv", "pip", "install", "--quiet", "--python", python, "--resolution", "lowest-direct"),
        *own,
        *wanted,
    )
    done = call(
        venv / "bin" / "repro",
        *("run", *experiments, "--preset", "smoke", "--jobs", "1", "--quiet", "--json"),
        cwd=tmp_path,
    )
    runs = json.loads(done[done.index("[") :])
    assert {run["experiment"] for run in runs} == set(experiments)
    assert all(run["trials"]["failed"] == 0 for run in runs)
