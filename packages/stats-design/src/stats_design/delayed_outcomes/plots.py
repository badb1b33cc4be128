"""Pictures of a history; needs the extra `plots`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from stats_design.delayed_outcomes.design import Design

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def history_figure(history: pd.DataFrame, design: Design) -> Figure:
    """Three panels over time: the arms' totals, the effects, the p-values on a log scale.

    Parameters
    ----------
    history
        As `DelayedOutcomeMonitor.history` and `delayed_confseq` return it.
    design
        The settings it was made with.

    Raises
    ------
    ModuleNotFoundError
        Without matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "pictures need matplotlib: pip install 'stats-design[plots]'"
        ) from error
    figure = Figure(figsize=(8, 9), layout="constrained")
    arms, effects, p_values = figure.subplots(3, 1, sharex=True)
    # Matplotlib finds no unit in a column of dates without rows.
    time = history["time"] if len(history) else pd.Series(dtype="float64")
    for k, label in enumerate(design.arms):
        color = f"C{k}"
        arms.plot(time, history[f"estimate_{label}"], color=color, label=str(label))
        arms.fill_between(
            time, history[f"lower_{label}"], history[f"upper_{label}"], color=color, alpha=0.2, lw=0
        )
    arms.set_ylabel("total reward so far,\nhad all units been in the arm")
    arms.legend()
    for k, pair in enumerate(design.pairs):
        name, color = design.effect_name(pair), f"C{k + len(design.arms)}"
        treated, control = (str(design.arms[i]) for i in pair)
        text = f"{treated} - {control}"
        effects.plot(time, history[name], color=color, label=text)
        effects.fill_between(
            time, history[f"{name}_lower"], history[f"{name}_upper"], color=color, alpha=0.2, lw=0
        )
        p = history[f"p_value{name.removeprefix('effect')}"].clip(lower=1e-300)
        p_values.plot(time, p, color=color, label=text)
    effects.axhline(0, color="grey", lw=0.8)
    effects.set_ylabel("effect so far")
    effects.legend()
    p_values.axhline(design.alpha, color="grey", lw=0.8, ls="--", label=f"alpha = {design.alpha:g}")
    p_values.set_yscale("log")
    p_values.set_ylabel("always-valid p-value")
    p_values.set_xlabel("time")
    p_values.legend()
    if isinstance(time.dtype, pd.DatetimeTZDtype) or pd.api.types.is_datetime64_any_dtype(time):
        figure.autofmt_xdate()
    return figure
