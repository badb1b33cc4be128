"""One self-contained HTML page from the trials in a folder."""

from __future__ import annotations

import io
import json
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import escape

from .catalog import Broken, installed, load
from .experiment import Experiment, Results
from .runner import reload
from .store import write_text
from .verdict import Interval, summarise

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE = "report.html"
_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#000000",
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "savefig.bbox": "tight",
    "legend.frameon": False,
}


@dataclass(frozen=True)
class Table:
    """The arms that report the same metrics: a row each, a text for every metric."""

    metrics: list[str]
    rows: list[tuple[str, str, list[str]]]


@dataclass(frozen=True)
class Section:
    """One experiment as the page shows it."""

    summary: dict[str, Any]
    experiment: Experiment
    tables: list[Table]
    figures: list[tuple[str, str]]
    notes: list[tuple[str, list[str]]]
    failed: list[tuple[str, int, str]]


def latest_runs(out: Path) -> dict[str, dict[str, Any]]:
    """The summary of the last run of each experiment in a folder, by name."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(out.glob("*/*/run.json")):
        try:
            summary = json.loads(path.read_text(encoding="utf-8"))
            name, date = summary["experiment"], summary["environment"]["date"]
        except (ValueError, KeyError, TypeError):
            warnings.warn(f"{path} is not a run's summary and is left out", stacklevel=2)
            continue
        if name not in found or date >= found[name]["environment"]["date"]:
            found[name] = summary
    return found


def write_report(out: Path) -> Path:
    """Write the page for all that was run into `out` and return its path."""
    points = installed()
    sections = []
    for name, summary in latest_runs(out).items():
        if name not in points:
            continue
        experiment = load(points[name])
        if not isinstance(experiment, Broken):
            sections.append(section(experiment, summary, out))
    loader = jinja2.PackageLoader("repro_bench", ".")
    environment = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["number"] = number
    page = environment.get_template("report.html.j2").render(sections=sections)
    write_text(out / PAGE, page)
    return out / PAGE


def section(experiment: Experiment, summary: dict[str, Any], out: Path) -> Section:
    """Read one experiment's trials and draw its figures."""
    results = reload(experiment, summary["preset"], out, summary["planned"])
    return Section(
        summary=summary,
        experiment=experiment,
        tables=tables(experiment, results),
        figures=[(caption, draw(plot, results)) for caption, plot in experiment.plots.items()],
        notes=notes(results),
        failed=[(arm, seed, error) for (arm, seed), error in results.failed.items()],
    )


def tables(experiment: Experiment, results: Results) -> list[Table]:
    """The arms, grouped by the metrics that they report, with 95% intervals."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for arm in results.arms:
        reported = {metric for outcome in results.of(arm).values() for metric in outcome.metrics}
        metrics = tuple(metric for metric in results.metrics() if metric in reported)
        groups.setdefault(metrics, []).append(arm)
    return [
        Table(
            list(metrics),
            [
                (
                    arm,
                    experiment.arms.get(arm, ""),
                    [interval_text(summarise(results, arm, metric)) for metric in metrics],
                )
                for arm in arms
            ],
        )
        for metrics, arms in groups.items()
    ]


def notes(results: Results) -> list[tuple[str, list[str]]]:
    """Every kind of note once, with the distinct texts."""
    found: dict[str, dict[str, None]] = {}
    for outcome in results.outcomes.values():
        for kind, text in outcome.notes.items():
            found.setdefault(kind, {})[text] = None
    return [(kind, list(texts)) for kind, texts in found.items()]


def draw(plot: Callable[[Results], Figure], results: Results) -> str:
    """A figure as inline SVG whose black takes the page's text colour."""
    import matplotlib as mpl

    style = _STYLE | {"svg.hashsalt": plot.__name__}
    with mpl.rc_context(style):  # type: ignore[arg-type]  # the stubs want literal keys
        try:
            figure = plot(results)
            buffer = io.StringIO()
            figure.savefig(buffer, format="svg", metadata={"Date": None})
        except Exception as error:
            return str(escape(f"not drawn: {type(error).__name__}: {error}"))
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<svg([^>]*?) width="[^"]*"', r"<svg\1", svg, count=1)
    svg = re.sub(r'<svg([^>]*?) height="[^"]*"', r"<svg\1", svg, count=1)
    svg = svg.replace("#000000", "currentColor")
    # A text without a fill of its own is black in SVG whatever the page's colour.
    return svg.replace("<svg", '<svg fill="currentColor"', 1)


def number(value: float | None) -> str:
    """A number with four significant digits; a dash for none."""
    if value is None:
        return "–"
    return f"{value:.4g}"


def interval_text(interval: Interval) -> str:
    """An estimate with its interval and, for a single run, without."""
    if interval.estimate is None:
        return "–"
    if interval.low is None or interval.low == interval.high:
        return number(interval.estimate)
    return f"{number(interval.estimate)} [{number(interval.low)}, {number(interval.high)}]"
