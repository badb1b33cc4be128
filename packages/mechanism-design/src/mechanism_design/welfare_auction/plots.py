"""A picture of an auction (extra `plots`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = {"hopeless": "#b0413e", "easy": "#4a7fb5", "candidate": "#8a8a8a", "pivotal": "#e0a100"}
_MOST_DOTS = 20_000


def plot_auction(report: pd.DataFrame) -> Figure:
    """Margins against bids by status, and the payments of those who pay.

    Parameters
    ----------
    report
        As `AccuracyAuction.report` returns it; of more than 20,000 users a part is drawn.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    payers = report[report["payment"] > 0]
    shown = report if len(report) <= _MOST_DOTS else report.sample(_MOST_DOTS, random_state=0)
    for status, colour in _COLOURS.items():
        part = payers if status == "pivotal" else shown[shown["status"] == status]
        if len(part):
            size = 20 if status == "pivotal" else 4
            count = int((report["status"] == status).sum())
            left.scatter(
                part["margin"], part["bid"], s=size, c=colour, label=f"{status} ({count:,})"
            )
    left.axvline(0, linewidth=0.8, color="#8a8a8a")
    left.set(xlabel="margin y f(x)", ylabel="bid", title="Who is served")
    left.legend(frameon=False, fontsize=8)
    ranked = payers.sort_values("payment", ascending=False).head(60)
    places = range(len(ranked))
    right.bar(places, ranked["bid"], color="#8a8a8a", alpha=0.35, label="bid")
    right.bar(places, ranked["payment"], color=_COLOURS["pivotal"], label="payment")
    right.set(xlabel="users who pay, highest first", ylabel="amount", title="What they pay")
    right.legend(frameon=False, fontsize=8)
    return figure
