"""Learning curves, and the levels of a buffer with their scores over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .mazes import MazeLevels

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def learning_curves(
    history: Sequence[dict[str, Any]], evaluations: Sequence[tuple[int, float]] = ()
) -> Figure:
    """Success on new and on replayed levels, and the mean score, over environment steps.

    Parameters
    ----------
    history
        Of a `PACETrainer`.
    evaluations
        Pairs of environment steps and success on held-out levels.

    Returns
    -------
    figure

    Examples
    --------
    >>> row = {"steps": 10, "phase": "new", "success": 0.5, "mean_score": 1.0}
    >>> len(learning_curves([row]).axes)
    2
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.5))
    left, right = figure.subplots(1, 2)
    for phase in dict.fromkeys(row["phase"] for row in history):
        rows = [row for row in history if row["phase"] == phase]
        steps = [row["steps"] for row in rows]
        left.plot(steps, _smooth([row["success"] for row in rows]), label=phase, alpha=0.8)
        scores = [row["mean_score"] for row in rows]
        if np.isfinite(scores).any():
            right.plot(steps, _smooth(scores), label=phase, alpha=0.8)
    if evaluations:
        left.plot(*zip(*evaluations, strict=True), "o-", label="held out")
    left.set_xlabel("environment steps")
    left.set_ylabel("success")
    left.legend(fontsize=8)
    right.set_xlabel("environment steps")
    right.set_ylabel("mean score")
    if right.lines:
        right.legend(fontsize=8)
        if all(value > 0 for line in right.lines for value in np.asarray(line.get_ydata())):
            right.set_yscale("log")
    figure.tight_layout()
    return figure


def buffer_levels(
    levels: MazeLevels,
    scores: Sequence[float],
    uids: Sequence[int],
    score_log: Sequence[tuple[int, int, float]],
    shown: int = 8,
) -> Figure:
    """The best levels of a buffer, each above its scores over the iterations.

    Parameters
    ----------
    levels, scores, uids
        Of a `LevelSampler`.
    score_log
        Of a `PACETrainer`: iteration, level and score.
    shown
        The number of levels.

    Returns
    -------
    figure

    Examples
    --------
    >>> from rl_curriculum.pace import random_levels
    >>> log = [(0, 0, 1.0), (5, 0, 0.5), (3, 1, 0.2)]
    >>> len(buffer_levels(random_levels(2), [0.5, 0.2], [0, 1], log).axes)
    4
    """
    from matplotlib.figure import Figure

    best = np.argsort(-np.asarray(scores), kind="stable")[:shown]
    seen: dict[int, list[tuple[int, float]]] = {int(uids[i]): [] for i in best}
    for iteration, uid, score in score_log:
        if uid in seen:
            seen[uid].append((iteration, score))
    figure = Figure(figsize=(1.6 * len(best) + 1, 3.6))
    rows = figure.subplots(2, len(best), squeeze=False, height_ratios=(3, 2))
    top = max((s for pairs in seen.values() for _, s in pairs), default=1.0)
    width = levels.size[1]
    for column, i in enumerate(best):
        maze, curve = rows[0][column], rows[1][column]
        maze.imshow(levels.walls[i], cmap="binary", vmin=0, vmax=2)
        for name, marker, colour in (("agent", "o", "C0"), ("goal", "*", "C2")):
            row, col = divmod(int(getattr(levels, name)[i]), width)
            maze.plot(col, row, marker, color=colour, markersize=5)
        maze.set_title(f"{scores[i]:.2g}", fontsize=8)
        maze.set_xticks([])
        maze.set_yticks([])
        if seen[int(uids[i])]:
            curve.plot(*zip(*seen[int(uids[i])], strict=True), ".-", markersize=3)
        curve.set_ylim(0, 1.05 * top)
        curve.tick_params(labelsize=6)
        if column:
            curve.set_yticklabels([])
        curve.set_xlabel("iteration", fontsize=7)
    figure.tight_layout()
    return figure


def _smooth(values: Sequence[float], window: int = 9) -> list[float]:
    padded = np.asarray(values, dtype=float)
    return [
        float(np.nanmean(part)) if np.isfinite(part).any() else float("nan")
        for part in (padded[max(0, i - window + 1) : i + 1] for i in range(len(padded)))
    ]
