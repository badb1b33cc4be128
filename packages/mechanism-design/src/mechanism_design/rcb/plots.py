"""A picture of a replay (extra `plots`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_replay(table: pd.DataFrame, baseline: float) -> Figure:
    """Share of wrong recommendations so far, an order each, and the error of a constant advice.

    Parameters
    ----------
    table
        As `simulate` returns it.
    baseline
        Error of recommending the most frequent option.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for _, world in table.groupby("world"):
        wrong = (1 - world["reward"].to_numpy()).cumsum() / np.arange(1, len(world) + 1)
        marks = np.unique(np.geomspace(10, len(world), 200).astype(int)) - 1
        axes.plot(marks + 1, wrong[marks], color="#4a7fb5", alpha=0.4, linewidth=1)
    axes.axhline(baseline, color="#8a8a8a", linewidth=1, label="always the most frequent")
    axes.set(xlabel="users", ylabel="share of wrong recommendations", xscale="log")
    axes.legend(frameon=False)
    return figure
