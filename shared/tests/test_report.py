"""The page and the records that a run leaves."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest

from repro_bench.store import write_text

Repro = Callable[..., "subprocess.CompletedProcess[str]"]


class _Page(HTMLParser):
    """Collects what a reader would need to fetch, and the tags that stay open."""

    void = frozenset({"meta", "br", "use", "path", "image", "rect", "circle", "line", "stop"})

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("src", "href") and value and not value.startswith("#"):
                self.fetched.append(value)
        if tag not in self.void:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.void:
            assert self.open.pop() == tag


def test_the_page_is_whole_and_stands_alone(repro: Repro, tmp_path: Path) -> None:
    repro("run", "good", "wrong")
    text = (tmp_path / "repro-out" / "report.html").read_text()
    page = _Page()
    page.feed(text)
    assert page.open == []
    assert page.fetched == []
    assert text.index('id="verdicts"') < text.index('<section id="good">')
    assert text.count("<figure>") == 1
    assert "a legible axis label" in text  # a figure's text is text
    assert "not drawn" not in text
    assert "#000000" not in text
    for expected in ("prefers-color-scheme: dark", "@media print", "width=device-width"):
        assert expected in text
    assert re.search(r'class="verdict holds">holds<', text)
    assert re.search(r'class="verdict refuted">refuted<', text)


def test_failed_trials_show_their_traceback_escaped(repro: Repro, tmp_path: Path) -> None:
    repro("run", "failing")
    text = (tmp_path / "repro-out" / "report.html").read_text()
    assert "no luck at seed 1" in text
    assert "RuntimeError(&#34;no luck" in text


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "packages" / "demo").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[tool.uv.workspace]\nmembers = ["packages/*"]\n')
    return tmp_path


def test_a_record_follows_its_schema_and_makes_the_results_page(
    repro: Repro, checkout: Path
) -> None:
    done = repro("run", "good", "--record")
    assert done.returncode == 0, done.stderr
    record = json.loads((checkout / "packages" / "demo" / "results" / "good.json").read_text())
    schema = json.loads((files("repro_bench") / "run.schema.json").read_text())
    jsonschema.validate(record, schema)
    assert record["environment"]["versions"]["demo"] == "0.3"
    assert record["arms"]["treated"]["covered"]["estimate"] == pytest.approx(0.95)
    assert repro("report", "--markdown").returncode == 0
    page = (checkout / "RESULTS.md").read_text()
    assert "| Treatment helps | **holds** | 5 |" in page


def test_an_interrupted_write_leaves_the_old_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "new \ud800")
    assert path.read_text() == "old\n"
    assert list(tmp_path.iterdir()) == [path]
