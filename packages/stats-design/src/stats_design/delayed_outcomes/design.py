"""What is fixed before the first event: arms, levels, tuning, and the range of values."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from stats_design.delayed_outcomes.boundary import (
    Floats,
    check_alpha,
    eta2_for,
    optimal_growth,
    target_clock_for,
)
from stats_design.delayed_outcomes.exact import lambda_grid

Arm = str | int
Method = Literal["auto", "exact", "asymptotic"]
PerArm = float | Sequence[float] | Mapping[Any, float] | None

# Fourth powers of values, over powers of probabilities, stay finite up to here.
LARGEST_VALUE = 1e60


@dataclass(frozen=True)
class Design:
    """The settings of one analysis, resolved arm by arm in the order of `arms`.

    Attributes
    ----------
    arms
        Labels of the arms; the first is the one the others are compared with.
    propensity
        Probability of each arm, None if it varies between units.
    smallest_propensity
        Smallest probability of each arm over all units; only the exact method needs it.
    alpha, levels
        Total level, and each arm's part of it.
    method
        `"exact"` or `"asymptotic"`.
    target_clock, eta2
        Tuning of each arm.
    value_range
        Smallest and largest possible value of an event, None if unknown.
    """

    arms: tuple[Arm, ...]
    propensity: tuple[float, ...] | None
    smallest_propensity: tuple[float, ...] | None
    alpha: float
    levels: tuple[float, ...]
    method: Literal["exact", "asymptotic"]
    target_clock: tuple[float, ...]
    eta2: tuple[float, ...]
    value_range: tuple[float, float] | None

    @property
    def shares(self) -> tuple[float, ...]:
        """Each arm's fraction of the total level."""
        return tuple(level / self.alpha for level in self.levels)

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Indices (treated, control) of all contrasts, the first arm as control first."""
        n = len(self.arms)
        return [(b, a) for a in range(n) for b in range(a + 1, n)]

    def lambdas(self) -> list[Floats]:
        """One grid an arm for the exact method, empty grids for the asymptotic one."""
        if (
            self.method == "asymptotic"
            or self.smallest_propensity is None
            or self.value_range is None
        ):
            return [np.empty(0) for _ in self.arms]
        return [
            lambda_grid(clock, level, smallest, self.value_range)
            for clock, level, smallest in zip(
                self.target_clock, self.levels, self.smallest_propensity, strict=True
            )
        ]

    def effect_name(self, pair: tuple[int, int]) -> str:
        """`effect` for two arms, `effect_B_vs_A` for more."""
        if len(self.arms) == 2:
            return "effect"
        return f"effect_{self.arms[pair[0]]}_vs_{self.arms[pair[1]]}"


def _per_arm(
    value: float | Sequence[float] | Mapping[Any, float], arms: tuple[Arm, ...], name: str
) -> tuple[float, ...]:
    if isinstance(value, Mapping):
        if set(value) != set(arms):
            raise ValueError(f"{name} names the arms {sorted(map(str, value))}; allowed: {arms}")
        found = [value[arm] for arm in arms]
    elif isinstance(value, (int, float, np.number)):
        found = [float(value)] * len(arms)
    elif isinstance(value, (Sequence, np.ndarray)) and not isinstance(value, str):
        found = list(value)
        if len(found) != len(arms):
            raise ValueError(f"{name} has {len(found)} numbers; allowed: {len(arms)}, one an arm")
    else:
        raise TypeError(f"{name} is {value!r}; allowed: a number, or one an arm")
    try:
        numbers = tuple(float(v) for v in found)
    except (TypeError, ValueError):
        raise TypeError(f"{name} is {value!r}; allowed: numbers") from None
    if not all(math.isfinite(v) and v > 0 for v in numbers):
        raise ValueError(f"{name} is {value!r}; allowed: positive finite numbers")
    return numbers


def check_arms(arms: Sequence[Arm]) -> tuple[Arm, ...]:
    """Labels as a tuple, if there are at least two and all differ."""
    labels = tuple(arms) if isinstance(arms, Iterable) and not isinstance(arms, str) else ()
    if not all(isinstance(label, Hashable) for label in labels) or len(set(labels)) < max(
        len(labels), 2
    ):
        raise ValueError(f"arms is {arms!r}; allowed: at least two different labels")
    return labels


def arm_propensities(
    propensity: float | Sequence[float] | Mapping[Any, float] | None, arms: tuple[Arm, ...]
) -> tuple[float, ...] | None:
    """Probabilities of the arms; one number is the probability of the second of two arms."""
    if propensity is None:
        return None
    if isinstance(propensity, (int, float, np.number)):
        if len(arms) != 2:
            raise ValueError(
                f"propensity is {propensity!r} with {len(arms)} arms; allowed: one number an arm"
            )
        p = float(propensity)
        if not 0 < p < 1:
            raise ValueError(f"propensity is {propensity!r}; allowed: a number in (0, 1)")
        return (1 - p, p)
    numbers = _per_arm(propensity, arms, "propensity")
    if not all(p < 1 for p in numbers) or not math.isclose(sum(numbers), 1, abs_tol=1e-9):
        raise ValueError(f"propensity is {propensity!r}; allowed: numbers in (0, 1) adding up to 1")
    return numbers


def make_design(
    *,
    arms: Sequence[Arm],
    propensity: float | Sequence[float] | Mapping[Any, float] | None = None,
    alpha: float = 0.05,
    method: Method = "auto",
    value_range: tuple[float, float] | None = None,
    expected_events: PerArm = None,
    value_scale: float | None = None,
    target_clock: PerArm = None,
    eta2: PerArm = None,
    alpha_split: PerArm = None,
    smallest_propensity: PerArm = None,
    adaptive: bool = False,
) -> Design:
    """Resolve and check the settings of an analysis.

    The tuning is given in one of three ways: `expected_events` with `value_scale`, `target_clock`,
    or `eta2`. None of them changes the guarantee; they decide where the intervals are narrow.

    Parameters
    ----------
    arms
        Labels, at least two; the first is the control.
    propensity
        Probability of the second of two arms, or one number an arm; None if it differs between
        units.
    alpha
        Total level: all arms and all contrasts hold together with probability 1 - alpha.
    method
        `"exact"` holds at any sample size and needs `value_range`; `"asymptotic"` needs many
        events; `"auto"` is exact where a range is given.
    value_range
        Smallest and largest possible value of an event; 0 (no event) is always possible.
    expected_events
        Events expected over the run in an arm if all units were in it.
    value_scale
        Root mean square of an event's value; 1 for plain counts.
    target_clock
        Variance clock of each arm where the intervals should be narrowest.
    eta2
        Mixing variance of each arm, instead of `target_clock`.
    alpha_split
        Level of each arm, adding up to `alpha`; equal parts by default.
    smallest_propensity
        Smallest probability of each arm over all units, for the exact method with propensities
        that differ between units. `delayed_confseq` finds it itself for two arms; with more a unit
        shows only the probability of the arm it is in.
    adaptive
        Must stay False: propensities that depend on other units' outcomes or assignments break the
        guarantee.

    Raises
    ------
    ValueError, TypeError
        Naming the argument, what came and what is allowed.

    Examples
    --------
    >>> design = make_design(
    ...     arms=("a", "b", "c"), propensity=(0.5, 0.3, 0.2), value_range=(0, 1), target_clock=100.0
    ... )
    >>> design.arms
    ('a', 'b', 'c')
    """
    labels = check_arms(arms)
    if adaptive:
        raise ValueError(
            "adaptive is True; allowed: False (an assignment that depends on earlier units reveals "
            "them before their event, and the sequence loses its guarantee)"
        )
    level = check_alpha(alpha)
    if method not in ("auto", "exact", "asymptotic"):
        raise ValueError(f"method is {method!r}; allowed: 'auto', 'exact', 'asymptotic'")
    bounds = None
    if value_range is not None:
        try:
            low, high = (float(v) for v in value_range)
        except (TypeError, ValueError):
            raise ValueError(
                f"value_range is {value_range!r}; allowed: two numbers, (smallest, largest)"
            ) from None
        if not -LARGEST_VALUE <= low < high <= LARGEST_VALUE:
            raise ValueError(
                f"value_range is {value_range!r}; allowed: smallest < largest, both within "
                f"{LARGEST_VALUE:g} of 0"
            )
        bounds = (low, high)
    if method == "exact" and bounds is None:
        raise ValueError("method is 'exact' without value_range; allowed: with (smallest, largest)")
    chosen: Literal["exact", "asymptotic"] = (
        "asymptotic" if method == "asymptotic" or bounds is None else "exact"
    )
    equal = tuple(level / len(labels) for _ in labels)
    levels = equal if alpha_split is None else _per_arm(alpha_split, labels, "alpha_split")
    if not math.isclose(sum(levels), level, rel_tol=1e-9):
        raise ValueError(f"alpha_split adds up to {sum(levels)!r}; allowed: alpha = {level}")
    chances = arm_propensities(propensity, labels)
    smallest = chances
    if smallest_propensity is not None:
        smallest = _per_arm(smallest_propensity, labels, "smallest_propensity")
        if not all(p < 1 for p in smallest):
            raise ValueError(f"smallest_propensity is {smallest_propensity!r}; allowed: in (0, 1)")
        if chances is not None and any(
            have < least - 1e-12 for have, least in zip(chances, smallest, strict=True)
        ):
            raise ValueError(
                f"smallest_propensity is {smallest_propensity!r} with propensity {chances}; "
                "allowed: at most the propensity of each arm"
            )
    if chosen == "exact" and smallest is None:
        raise ValueError(
            "propensity and smallest_propensity are missing; the exact method needs one of them"
        )
    clocks, mixing = _tuning(
        labels, chances, levels, expected_events, value_scale, target_clock, eta2
    )
    return Design(labels, chances, smallest, level, levels, chosen, clocks, mixing, bounds)


def _tuning(
    arms: tuple[Arm, ...],
    chances: tuple[float, ...] | None,
    levels: tuple[float, ...],
    expected_events: PerArm,
    value_scale: float | None,
    target_clock: PerArm,
    eta2: PerArm,
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    given = [
        name
        for name, value in (
            ("expected_events", expected_events),
            ("target_clock", target_clock),
            ("eta2", eta2),
        )
        if value is not None
    ]
    if len(given) != 1:
        raise ValueError(
            f"the tuning is given by {given or 'nothing'}; allowed: exactly one of expected_events "
            "(with value_scale), target_clock and eta2, fixed before the first event"
        )
    if value_scale is not None and expected_events is None:
        raise ValueError("value_scale belongs to expected_events, which is missing")
    if eta2 is not None:
        mixing = _per_arm(eta2, arms, "eta2")
        clocks = tuple(optimal_growth(a) / e for a, e in zip(levels, mixing, strict=True))
        if not all(map(math.isfinite, clocks)):
            raise ValueError(f"eta2 is {eta2!r}; allowed: large enough for a finite target clock")
        return clocks, mixing
    if target_clock is not None:
        clocks = _per_arm(target_clock, arms, "target_clock")
    elif expected_events is not None:
        if value_scale is None:
            raise ValueError(
                "value_scale is missing; allowed: the root mean square of an event's value, or 1 "
                "if events are only counted"
            )
        if chances is None:
            raise ValueError(
                "expected_events needs a propensity that all units share; allowed otherwise: "
                "target_clock (see target_clock_for)"
            )
        events = _per_arm(expected_events, arms, "expected_events")
        clocks = tuple(
            float(target_clock_for(n, p, value_scale)) for n, p in zip(events, chances, strict=True)
        )
    return clocks, tuple(float(eta2_for(v, a)) for v, a in zip(clocks, levels, strict=True))
