"""The report in a real browser: on a desk and a phone, by day and by night, and on paper."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    command = [str(Path(sys.executable).with_name("repro")), "run", "--all", "--preset", "smoke"]
    subprocess.run([*command, "--quiet"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return folder / "repro-out" / "report.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    assert chromium, "needs Chromium on the path"
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(
            executable_path=chromium,
            args=["--disable-gpu", "--disable-background-networking", "--disable-component-update"],
            chromium_sandbox=hasattr(os, "getuid") and os.getuid() != 0,
        )
        yield found
        found.close()


@pytest.mark.parametrize("width", [360, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_readable(browser: Any, report: Path, width: int, scheme: str) -> None:
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text))
    page.on("request", lambda r: None if r.url.startswith("file:") else problems.append(r.url))
    page.goto(report.as_uri())
    # Nothing sticks out sideways, however wide the tables are.
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("#verdicts tbody tr").count() > 0
    for figure in page.locator("figure svg").all():
        box = figure.bounding_box()
        assert box is not None
        assert box["width"] > 200
        assert box["height"] > 80
    text, background = page.evaluate(
        """() => {
            const tick = document.querySelector("figure svg text");
            return [getComputedStyle(tick).fill, getComputedStyle(document.body).backgroundColor];
        }"""
    )
    assert contrast(text, background) > 7
    assert problems == []
    page.close()


def test_the_page_prints(browser: Any, report: Path, tmp_path: Path) -> None:
    page = browser.new_page()
    page.goto(report.as_uri())
    page.pdf(path=tmp_path / "report.pdf")
    assert (tmp_path / "report.pdf").stat().st_size > 10_000
    page.close()


def contrast(first: str, second: str) -> float:
    """The contrast ratio of two CSS colours, as WCAG 2 defines it."""

    def luminance(colour: str) -> float:
        channels = [int(part) / 255 for part in colour[4:-1].split(",")]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(first), luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)
