"""What can be said at one look."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from stats_design.delayed_outcomes.design import Arm, Design
from stats_design.delayed_outcomes.intervals import Sums, small_sample_note, table


@dataclass(frozen=True)
class Contrast:
    """The effect of one arm against another, at one look."""

    effect: float
    lower: float
    upper: float
    p_value: float


@dataclass(frozen=True)
class Snapshot:
    """Everything that can be said at one time; all intervals hold together at all looks.

    Attributes
    ----------
    time
        The time it speaks of, None before anything has entered.
    n_entered
        Units entered by then.
    events, estimate, lower, upper
        From arm to its events, estimated total reward and bounds.
    contrasts
        From (arm, control) to the effect; `effect`, `effect_lower`, `effect_upper` and `p_value`
        read the only one of two arms.
    lift
        Bounds on the relative effect, None unless the control's lower bound is positive.
    warnings
        Sentences that a reader should see with the numbers.
    """

    time: Any
    n_entered: int
    events: dict[Arm, int]
    estimate: dict[Arm, float]
    lower: dict[Arm, float]
    upper: dict[Arm, float]
    contrasts: dict[tuple[Arm, Arm], Contrast]
    lift: tuple[float, float] | None
    warnings: tuple[str, ...]

    @property
    def _only(self) -> Contrast:
        if len(self.contrasts) != 1:
            raise ValueError("there are several contrasts; allowed: read `contrasts`")
        return next(iter(self.contrasts.values()))

    @property
    def effect(self) -> float:
        """Estimated effect of the second of two arms against the first."""
        return self._only.effect

    @property
    def effect_lower(self) -> float:
        """Lower bound on it."""
        return self._only.lower

    @property
    def effect_upper(self) -> float:
        """Upper bound on it."""
        return self._only.upper

    @property
    def p_value(self) -> float:
        """Always-valid p-value of "the effect is zero now"."""
        return self._only.p_value

    @property
    def per_entered(self) -> tuple[float, float, float]:
        """The effect and its bounds, divided by the number of units entered."""
        n = self.n_entered or math.nan
        return self.effect / n, self.effect_lower / n, self.effect_upper / n


def snapshot_of(design: Design, sums: Sums, time: Any, late_records: int) -> Snapshot:
    """Intervals from the sums of a single time.

    Parameters
    ----------
    design
        The settings.
    sums
        Sums of one time, T = 1.
    time
        The time to show.
    late_records
        How many records came late and were counted at their own time.
    """
    row: dict[Any, Any] = table(design, sums, [time]).iloc[0].to_dict()
    notes = [small_sample_note(design, sums.events[:, 0])]
    if late_records:
        notes.append(
            f"{late_records} late records were counted at their own time: intervals shown before "
            "they came used incomplete data"
        )
    contrasts = {}
    for pair in design.pairs:
        name = design.effect_name(pair)
        tail = name.removeprefix("effect")
        contrasts[design.arms[pair[0]], design.arms[pair[1]]] = Contrast(
            float(row[name]),
            float(row[f"{name}_lower"]),
            float(row[f"{name}_upper"]),
            float(row[f"p_value{tail}"]),
        )
    lift = None
    if len(design.arms) == 2 and not math.isnan(row["lift_lower"]):
        lift = (float(row["lift_lower"]), float(row["lift_upper"]))

    def by_arm(prefix: str) -> dict[Arm, float]:
        return {label: float(row[f"{prefix}_{label}"]) for label in design.arms}

    return Snapshot(
        time,
        int(row["n_entered"]),
        {label: int(row[f"events_{label}"]) for label in design.arms},
        by_arm("estimate"),
        by_arm("lower"),
        by_arm("upper"),
        contrasts,
        lift,
        tuple(note for note in notes if note),
    )
