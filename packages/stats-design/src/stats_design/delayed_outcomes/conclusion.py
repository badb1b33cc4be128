"""One screen of plain words: what may be concluded now."""

from __future__ import annotations

import pandas as pd

from stats_design.delayed_outcomes.design import Design
from stats_design.delayed_outcomes.snapshot import Contrast, Snapshot


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1e5 else f"{value:,.6g}"


def _verdict(treated: object, control: object, contrast: Contrast, level: float) -> str:
    span = f"between {_number(contrast.lower)} and {_number(contrast.upper)}"
    if contrast.lower > 0:
        return f"{treated} has brought MORE than {control} by now: {span}."
    if contrast.upper < 0:
        return f"{treated} has brought LESS than {control} by now: {span}."
    return (
        f"No conclusion between {treated} and {control} yet: the effect by now is {span}, "
        f"and 0 is among the possible values (p = {contrast.p_value:.3g}, needed: {level:g})."
    )


def _excluded_before(history: pd.DataFrame, name: str) -> str | None:
    """A sentence on earlier looks that excluded zero, if the last one does not."""
    low, high = history[f"{name}_lower"], history[f"{name}_upper"]
    excluded = (low > 0) | (high < 0)
    if not excluded.any() or excluded.iloc[-1]:
        return None
    first, last = history["time"][excluded].iloc[[0, -1]]
    sign = "positive" if (low[excluded] > 0).iloc[-1] else "negative"
    return (
        f"It was {sign} at looks between {first} and {last}: an effect that came and may have gone "
        "again, such as rewards brought forward. Both statements hold."
    )


def conclude(snapshot: Snapshot, history: pd.DataFrame, design: Design) -> str:
    """Text for a person who decides, at most a screen.

    Parameters
    ----------
    snapshot
        The last look.
    history
        The looks before it, as `DelayedOutcomeMonitor.history` returns them.
    design
        The settings of both.
    """
    if snapshot.time is None:
        return "Nothing has come in yet."
    percent = f"{100 * (1 - design.alpha):g}%"
    lines = [
        f"Reward recorded by {snapshot.time}, {snapshot.n_entered:,} units entered",
        f"({design.method} intervals, {percent} together at all looks)",
        "",
        f"{'':<26}{'events':>10}{'estimate':>16}{'from':>16}{'to':>16}",
    ]
    for arm in design.arms:
        bounds = (snapshot.estimate[arm], snapshot.lower[arm], snapshot.upper[arm])
        numbers = "".join(f"{_number(v):>16}" for v in bounds)
        lines += [f"{'all in ' + str(arm):<26}{snapshot.events[arm]:>10,}{numbers}"]
    n = max(snapshot.n_entered, 1)
    for (treated, control), c in snapshot.contrasts.items():
        for label, scale in ((f"{treated} - {control}", 1), ("  per unit entered", n)):
            numbers = "".join(f"{_number(v / scale):>16}" for v in (c.effect, c.lower, c.upper))
            lines.append(f"{label:<26}{'':>10}{numbers}")
    if snapshot.lift is not None:
        low, high = (f"{100 * v:+.2f}%" for v in snapshot.lift)
        lines.append(f"{'  relative':<26}{'':>10}{'':>16}{low:>16}{high:>16}")
    lines.append("")
    for pair, ((treated, control), contrast) in zip(
        design.pairs, snapshot.contrasts.items(), strict=True
    ):
        lines.append(_verdict(treated, control, contrast, design.alpha))
        before = _excluded_before(history, design.effect_name(pair)) if len(history) else None
        if before:
            lines.append(before)
    lines.append("These statements stay valid however often and whenever you look or stop.")
    lines += [f"Note: {note}." for note in snapshot.warnings]
    return "\n".join(lines)
