"""Sums, moments and contrasts over the responses of each prompt."""

from __future__ import annotations

import torch
from torch import Tensor

from .checks import require_tensors, require_whole


def group_index(
    size: int, group_size: int | None, group_ids: Tensor | None, device: torch.device
) -> Tensor:
    """(B,) numbers of the groups, from 0."""
    if (group_size is None) == (group_ids is None):
        raise ValueError("allowed: exactly one of group_size and group_ids")
    if group_ids is None:
        assert group_size is not None
        require_whole(1, group_size=group_size)
        if size % group_size:
            raise ValueError(
                f"there are {size} responses and group_size is {group_size}; "
                "allowed: a multiple of the group size"
            )
        return torch.arange(size, device=device) // group_size
    require_tensors(group_ids=group_ids)
    whole = not (group_ids.is_floating_point() or group_ids.is_complex())
    if group_ids.shape != (size,) or not whole:
        raise ValueError(
            f"group_ids has shape {tuple(group_ids.shape)} and type {group_ids.dtype}; "
            f"allowed: whole numbers of shape ({size},)"
        )
    index: Tensor = torch.unique(group_ids.to(device), return_inverse=True)[1]
    return index


def group_sum(values: Tensor, index: Tensor) -> Tensor:
    """(B, T) sums over each row's group at every position."""
    groups = int(index.max()) + 1 if len(index) else 0
    total: Tensor = values.new_zeros(groups, values.shape[1]).index_add(0, index, values)
    return total[index]


def moments(
    values: Tensor, live: Tensor, index: Tensor, ddof: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """(B, 1) mean, deviation and number of the live entries of each row's group."""
    weight = live.to(values.dtype)

    def total(x: Tensor) -> Tensor:
        return group_sum((x * weight).sum(1, keepdim=True), index)

    count = total(torch.ones_like(values))
    mean = total(values) / count.clamp(min=1)
    variance = total((values - mean).square()) / (count - ddof).clamp(min=1)
    return mean, variance.sqrt(), count


def varies(values: Tensor, valid: Tensor, index: Tensor) -> Tensor:
    """(B,) whether the valid values of each row's group differ at all."""
    groups = int(index.max()) + 1 if len(index) else 0
    filled = torch.where(valid, values, torch.inf)
    low = values.new_full((groups,), torch.inf).scatter_reduce(0, index, filled, "amin")
    filled = torch.where(valid, values, -torch.inf)
    high = values.new_full((groups,), -torch.inf).scatter_reduce(0, index, filled, "amax")
    differs: Tensor = high > low
    return differs[index]
