"""What an experiment is: arms, claims, one trial function, plots and sizes.

A field's `reproduce.py` builds one `Experiment` and names it in the entry-point group
`repro_bench.experiments`; everything else (running, resuming, verdicts, reports) follows from it.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Metric: TypeAlias = "float | tuple[int, int]"
Curve: TypeAlias = Mapping[str, Sequence[float]]

PRESETS = ("smoke", "quick", "standard", "full")
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@dataclass(frozen=True)
class Outcome:
    """What one trial found.

    Parameters
    ----------
    metrics
        Each a float, or a `(successes, n)` pair of integers for a rate. NaN means "not measured in
        this trial" and is stored as null; pairs of trials with such a half are dropped and counted.
    curves
        Each a mapping from column names to equally long sequences, for the plots.
    notes
        Short facts for the report, such as which data were used.
    """

    metrics: Mapping[str, Metric]
    curves: Mapping[str, Curve] = dataclasses.field(default_factory=dict)
    notes: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in self.metrics.items():
            if isinstance(value, tuple):
                successes, n = value
                if not 0 <= successes <= n:
                    raise ValueError(
                        f"metric {name!r} is a rate {value!r}; allowed: (successes, n) with "
                        "0 <= successes <= n"
                    )
        for name, curve in self.curves.items():
            lengths = {column: len(values) for column, values in curve.items()}
            if len(set(lengths.values())) > 1:
                raise ValueError(f"curve {name!r} has columns of different lengths: {lengths}")


@dataclass(frozen=True, kw_only=True)
class Claim:
    r"""One sentence of a paper as a comparison of two arms or as a bound on one arm.

    A comparison names `than`. Its effect is `arm - than` (or `than - arm` when lower is better) on
    the scale `"difference"`, and the quotient in the same order on the scale `"ratio"`; the claim
    is that the effect exceeds `by` (0 for a difference and 1 for a ratio unless given). A bound
    names `at_least` or `at_most` for the arm's mean, or for its pooled rate.

    Parameters
    ----------
    text
        The claim in plain words.
    metric
        The name of the metric that the arms report.
    arm
        The arm that the claim is about.
    than, direction, scale, by
        The comparison: the other arm, whether `"higher"` or `"lower"` is better, the scale, and
        the least effect.
    at_least, at_most
        The bound. Exactly one of `than`, `at_least` and `at_most` is given.
    exact
        The claim is deterministic by construction: every run must satisfy it, and one run is
        enough for a verdict.
    skewed
        Differences between seeds may be skewed: the exact sign-flip test must agree too.

    Examples
    --------
    >>> Claim(text="A beats B by 10%", metric="score", arm="a", than="b", scale="ratio", by=1.1).by
    1.1
    """

    text: str
    metric: str
    arm: str
    than: str | None = None
    direction: Literal["higher", "lower"] = "higher"
    scale: Literal["difference", "ratio"] = "difference"
    by: float | None = None
    at_least: float | None = None
    at_most: float | None = None
    exact: bool = False
    skewed: bool = False

    def __post_init__(self) -> None:
        given = [n for n in ("than", "at_least", "at_most") if getattr(self, n) is not None]
        if len(given) != 1:
            raise ValueError(
                f"claim {self.text!r} gives {given or 'none'} of than, at_least and at_most; "
                "allowed: exactly one"
            )
        if self.direction not in ("higher", "lower"):
            raise ValueError(f"direction is {self.direction!r}; allowed: 'higher' or 'lower'")
        if self.scale not in ("difference", "ratio"):
            raise ValueError(f"scale is {self.scale!r}; allowed: 'difference' or 'ratio'")
        if self.than is None and (self.by is not None or self.scale == "ratio"):
            raise ValueError(f"claim {self.text!r} is a bound: by and scale belong to comparisons")
        if not math.isfinite(self.threshold):
            raise ValueError(f"the threshold is {self.threshold!r}; allowed: a finite number")
        if self.scale == "ratio" and self.threshold <= 0:
            raise ValueError(f"by is {self.by!r}; a ratio must exceed a positive number")

    @property
    def arms(self) -> set[str]:
        """The one or two arms that the claim is about."""
        return {self.arm} if self.than is None else {self.arm, self.than}

    @property
    def threshold(self) -> float:
        """The number that the effect, or the arm's mean, is held against."""
        if self.at_least is not None:
            return self.at_least
        if self.at_most is not None:
            return self.at_most
        if self.by is not None:
            return self.by
        return 1.0 if self.scale == "ratio" else 0.0


@dataclass(frozen=True)
class Results:
    """The finished trials of one experiment at one preset, as plots and verdicts read them."""

    outcomes: Mapping[tuple[str, int], Outcome]
    failed: Mapping[tuple[str, int], str] = dataclasses.field(default_factory=dict)
    sizes: Any = None

    @property
    def arms(self) -> list[str]:
        """The arms that were run, in the order of the experiment."""
        return list(dict.fromkeys(arm for arm, _ in [*self.outcomes, *self.failed]))

    def of(self, arm: str) -> dict[int, Outcome]:
        """The outcomes of one arm by seed."""
        return {seed: o for (a, seed), o in sorted(self.outcomes.items()) if a == arm}

    def values(self, arm: str, metric: str) -> dict[int, float]:
        """One metric of one arm by seed, a rate as its fraction; missing and NaN are left out."""
        found: dict[int, float] = {}
        for seed, outcome in self.of(arm).items():
            value = outcome.metrics.get(metric, math.nan)
            if isinstance(value, tuple):
                value = value[0] / value[1] if value[1] else math.nan
            if math.isfinite(value):
                found[seed] = float(value)
        return found

    def metrics(self) -> list[str]:
        """The names of all metrics reported, in order of appearance."""
        return list(dict.fromkeys(m for o in self.outcomes.values() for m in o.metrics))


@dataclass(frozen=True)
class Experiment:
    """A paper's headline comparison.

    Parameters
    ----------
    name
        Lower-case words joined by hyphens; the module's name with hyphens.
    version
        Raised whenever a change alters what a trial computes: finished trials of another version
        are not reused.
    field
        The distribution it belongs to, such as `"stats-design"`.
    paper
        The citation.
    arms
        What is compared, with a sentence on each. An experiment of several parts names its arms
        `part/arm`.
    claims
        The paper's sentences.
    trial
        `trial(arm, seed, sizes) -> Outcome`, a pure module-level function; `sizes` is the preset.
    presets
        From `smoke`, `quick`, `standard`, `full` to a frozen dataclass of sizes. It has the field
        `seeds`: the number of seeds, or a mapping from arms or parts to it. It may have `arms`: the
        arms or parts to run, all if absent.
    plots
        From a caption to `plot(results) -> matplotlib Figure`.
    """

    name: str
    version: int
    field: str
    paper: str
    arms: Mapping[str, str]
    claims: Sequence[Claim]
    trial: Callable[[str, int, Any], Outcome]
    presets: Mapping[str, Any]
    plots: Mapping[str, Callable[[Results], Figure]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"name is {self.name!r}; allowed: lower-case words joined by hyphens")
        if set(self.presets) != set(PRESETS):
            raise ValueError(f"presets are {sorted(self.presets)}; allowed: exactly {PRESETS}")
        for preset, sizes in self.presets.items():
            if not dataclasses.is_dataclass(sizes) or not hasattr(sizes, "seeds"):
                raise TypeError(f"preset {preset!r} is {sizes!r}; allowed: a dataclass with seeds")
            for wanted in getattr(sizes, "arms", None) or ():
                if not any(_matches(wanted, arm) for arm in self.arms):
                    raise ValueError(f"preset {preset!r} names the arm {wanted!r}, not an arm")
            for arm in self.arms_at(preset):
                if self.seeds_of(arm, preset) < 1:
                    raise ValueError(f"preset {preset!r} gives the arm {arm!r} no seed")
        for claim in self.claims:
            for named in claim.arms:
                if named not in self.arms:
                    raise ValueError(f"claim {claim.text!r} names {named!r}, not an arm")

    def arms_at(self, preset: str) -> list[str]:
        """The arms that a preset runs."""
        wanted = getattr(self.presets[preset], "arms", None) or tuple(self.arms)
        return [arm for arm in self.arms if any(_matches(w, arm) for w in wanted)]

    def seeds_of(self, arm: str, preset: str) -> int:
        """The number of seeds that a preset gives an arm."""
        seeds = self.presets[preset].seeds
        if not isinstance(seeds, Mapping):
            return int(seeds)
        found = [n for wanted, n in seeds.items() if _matches(wanted, arm)]
        if not found:
            raise ValueError(f"preset {preset!r} gives no number of seeds for the arm {arm!r}")
        return int(found[-1])


def _matches(wanted: str, arm: str) -> bool:
    """Whether `wanted` is the arm or the part that it belongs to."""
    return arm == wanted or arm.startswith(wanted + "/")
