"""The definitions, position by position: the authors' greedy rule, and lifting by the index."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor


def greedy_windows(
    block: Sequence[float], zeros: int = 2, hw: int = 4
) -> tuple[list[list[float]], int]:
    """Fill the windows of a block from left to right; also how many nonzeros found no place."""
    keep = hw - zeros
    taken = [False] * len(block)
    windows = []
    for start in range(0, len(block) - hw + 1, keep):
        window: list[float] = [0] * hw
        used = 0
        for lane in range(hw):
            p = start + lane
            if block[p] != 0 and not taken[p] and used < keep:
                window[lane], taken[p], used = block[p], True, used + 1
        windows.append(window)
    return windows, sum(1 for p, v in enumerate(block) if v != 0 and not taken[p])


def greedy_slide(weight: Tensor, total: int) -> Tensor:
    """The greedy 2:4 form [O, K'] of a weight [O, K], padded to whole blocks."""
    rows = []
    for row in weight.tolist():
        row = row + [0] * (-len(row) % total)
        out: list[float] = []
        for g in range(0, len(row), total):
            for window in greedy_windows(row[g : g + total])[0]:
                out += window
        rows.append(out)
    return torch.tensor(rows, dtype=weight.dtype)


def lift(x: Tensor, total: int) -> Tensor:
    """Lift a vector [K] window by window."""
    values = x.tolist()
    values += [0] * (-len(values) % total)
    out = []
    for g in range(0, len(values), total):
        for start in range(0, total - 3, 2):
            out += values[g + start : g + start + 4]
    return torch.tensor(out, dtype=x.dtype)


def valid_masks(total: int, zeros: int) -> Iterator[tuple[int, ...]]:
    """All masks of a block with at least so many zeros."""
    for mask in itertools.product((0, 1), repeat=total):
        if sum(mask) <= total - zeros:
            yield mask
