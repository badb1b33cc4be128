r"""Sliding windows: a weight with (2N-2):2N zeros as one with 2:4 zeros, without loss.

A block of `L = 2N` inputs becomes `N - 1` windows of four inputs with stride two. Drop two zeros of
the block; the kept position `p` that is the k-th one kept has `p - k` in {0, 1, 2}, so that it lies
in window `k // 2` at lane `p - 2 (k // 2)` in {0, ..., 3}, and every window gets exactly two slots
with rising lanes. Which two zeros are dropped does not matter; here it is the last two.

Hardware that skips `Z` zeros of every `H` inputs, keeping `n = H - Z`, takes blocks of
`L = H + m n` with `Z` zeros in the same way: `p - k` is in {0, ..., Z}, the window is `k // n`, the
lane `p - n (k // n)`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from .patterns import (
    Pattern,
    check_matrix,
    check_size,
    first_above,
    is_nonzero,
    pad_columns,
    raw,
    refuse_excess,
    without_negative_zeros,
)


def kept_slots(mask: Tensor, zeros: int, keep: int) -> tuple[Tensor, Tensor, Tensor]:
    """The windows' slots of blocks with nonzeros `mask` [..., L], `L = zeros + kept`.

    Parameters
    ----------
    mask
        Where the blocks are not zero.
    zeros, keep
        What a window of the hardware skips, and what it computes.

    Returns
    -------
    tuple
        The nonzeros [...] of each block; the kept positions [..., L - zeros] in rising order; and
        their lanes in their windows: slot `k` belongs to window `k // keep`. Positions and lanes
        mean nothing for a block with fewer than `zeros` zeros.
    """
    total = mask.shape[-1]
    if total > _TABLE:
        return _kept_slots(mask, zeros, keep)
    # Every mask of a block is looked up by the number whose bits it is.
    bits = torch.pow(2.0, torch.arange(total, device=mask.device))
    code = (mask.to(torch.float32) @ bits).to(torch.int64).flatten()
    count, position, lane = (
        table.index_select(0, code) for table in _tables(total, zeros, keep, str(mask.device))
    )
    shape, kept = mask.shape[:-1], total - zeros
    return count.view(shape), position.view(*shape, kept), lane.view(*shape, kept)


_TABLE = 16


@functools.lru_cache(maxsize=32)
def _tables(total: int, zeros: int, keep: int, device: str) -> tuple[Tensor, Tensor, Tensor]:
    codes = torch.arange(2**total, device=device)[:, None]
    masks = (codes >> torch.arange(total, device=device)) & 1
    return _kept_slots(masks.bool(), zeros, keep)


def _kept_slots(mask: Tensor, zeros: int, keep: int) -> tuple[Tensor, Tensor, Tensor]:
    free = ~mask
    # Zeros from here to the end of the block: the last `zeros` of them are dropped.
    to_the_end = free.flip(-1).cumsum(-1).flip(-1)
    dropped = free & (to_the_end <= zeros)
    kept = mask.shape[-1] - zeros
    # Each kept position goes to its rank, the dropped ones to a place past the end.
    place = (~dropped).cumsum(-1) - 1
    place = torch.where(dropped, kept, place).clamp(max=kept)
    position = place.new_zeros((*mask.shape[:-1], kept + 1))
    position.scatter_(-1, place, torch.arange(mask.shape[-1], device=mask.device).expand_as(place))
    position = position[..., :kept]
    rank = torch.arange(kept, device=mask.device)
    return mask.sum(-1), position, (position - keep * (rank // keep)).to(torch.uint8)


def decompose(weight: Tensor, *, zeros: int, hw: int, total: int) -> Tensor:
    """Slide a weight [O, K] for hardware that skips `zeros` of every `hw` inputs.

    Parameters
    ----------
    weight
        At least `zeros` zeros in every block of `total` inputs; `K` is a multiple of `total`.
    zeros, hw, total
        `total = hw + m (hw - zeros)` for a whole `m >= 0`.

    Returns
    -------
    Tensor
        [O, K'], with at most `hw - zeros` nonzeros in every `hw` columns, where
        `K' = hw (total - zeros) / (hw - zeros)` for each block.

    Raises
    ------
    ValueError
        For sizes that do not fit together, or a block with too many nonzeros.

    Examples
    --------
    >>> decompose(torch.tensor([[1, 0, 2, 3, 0, 4, 5, 6]]), zeros=2, hw=4, total=8).tolist()
    [[1, 0, 2, 0, 0, 3, 0, 4, 0, 0, 5, 6]]
    """
    zeros, hw = check_size(zeros, "zeros"), check_size(hw, "hw")
    total = check_size(total, "total")
    keep = hw - zeros
    if not zeros < hw:
        raise ValueError(f"zeros is {zeros} of {hw}; allowed: 1 to {hw - 1}")
    if total < hw or (total - hw) % keep:
        raise ValueError(f"total is {total}; allowed: {hw} + m * {keep}, m >= 0")
    check_matrix(weight, "weight")
    if weight.shape[1] % total:
        raise ValueError(f"weight has {weight.shape[1]} inputs; allowed: a multiple of {total}")
    blocks = raw(weight).unflatten(1, (-1, total))
    mask = is_nonzero(weight).unflatten(1, (-1, total))
    count, position, lane = kept_slots(mask, zeros, keep)
    first = first_above(count, total - zeros)
    if first is not None:
        raise ValueError(
            f"row {first[0]}, block {first[1]} has {int(count[first])} nonzeros; "
            f"allowed: {total - zeros} of {total}"
        )
    window = torch.arange(total - zeros, device=weight.device) // keep
    values = blocks.gather(-1, position)
    out = torch.zeros(
        (*blocks.shape[:2], (total - zeros) // keep * hw), dtype=blocks.dtype, device=weight.device
    )
    out.scatter_(-1, window * hw + lane.long(), values)
    return without_negative_zeros(out.flatten(1).view(weight.dtype))


@dataclass(frozen=True)
class SlidWeight:
    """A weight [O, K] as two slots a window: values and lanes, both [O, G, N-1, 2].

    Lanes are 0 to 3 and rise within a window; slot `s` of window `w` of block `g` belongs to the
    input `g L + 2 w + lane`.

    Examples
    --------
    >>> slid = slide(torch.tensor([[1, 0, 2, 3, 0, 4, 5, 6]]), "6:8")
    >>> slid.to_dense().tolist()
    [[1, 0, 2, 3, 0, 4, 5, 6]]
    """

    values: Tensor
    lanes: Tensor
    K: int
    pattern: Pattern

    @property
    def K_padded(self) -> int:
        """Inputs with the padding of the last block."""
        return self.pattern.blocks(self.K) * self.pattern.total

    @property
    def nbytes(self) -> int:
        """Bytes of the values and of the lanes at two bits each."""
        return self.values.numel() * self.values.dtype.itemsize + -(-self.lanes.numel() // 4)

    def to_2to4(self) -> Tensor:
        """The slid weight [O, K'] with 2:4 zeros."""
        out = torch.zeros(
            (*self.values.shape[:3], 4), dtype=raw(self.values).dtype, device=self.values.device
        )
        out.scatter_(-1, self.lanes.long(), raw(self.values))
        return out.flatten(1).view(self.values.dtype)

    def to_dense(self) -> Tensor:
        """The weight [O, K] that was slid."""
        outputs, blocks, windows, _ = self.values.shape
        step = 2 * torch.arange(windows, device=self.values.device)[:, None]
        out = torch.zeros(
            (outputs, blocks, self.pattern.total),
            dtype=raw(self.values).dtype,
            device=self.values.device,
        )
        out.scatter_(-1, (self.lanes.long() + step).flatten(2), raw(self.values).flatten(2))
        return out.flatten(1)[:, : self.K].contiguous().view(self.values.dtype)

    def state_dict(self) -> dict[str, Tensor]:
        """Values, lanes packed four a byte, and the sizes, for safetensors."""
        lanes = self.lanes.flatten()
        lanes = torch.cat([lanes, lanes.new_zeros(-len(lanes) % 4)]).view(-1, 4)
        shift = torch.tensor([0, 2, 4, 6], dtype=torch.uint8, device=lanes.device)
        return {
            "values": self.values,
            "lanes": (lanes << shift).sum(1).to(torch.uint8),
            "sizes": torch.tensor([self.K, self.pattern.keep, self.pattern.total]),
        }

    @classmethod
    def from_state_dict(cls, state: dict[str, Tensor]) -> SlidWeight:
        """The inverse of `state_dict`.

        Raises
        ------
        ValueError
            If a tensor is missing, or the sizes do not fit together.
        """
        missing = sorted({"values", "lanes", "sizes"} - set(state))
        if missing:
            raise ValueError(f"state has no {missing[0]!r}; allowed: what state_dict gives")
        values, packed, sizes = state["values"], state["lanes"], state["sizes"]
        if sizes.shape != (3,):
            raise ValueError(f"sizes has the shape {tuple(sizes.shape)}; allowed: (3,)")
        inputs, keep, total = sizes.tolist()
        pattern = Pattern(keep, total)
        shape = (pattern.blocks(inputs), pattern.windows, 2)
        if values.shape[1:] != shape or packed.shape != (-(-values.numel() // 4),):
            raise ValueError(
                f"values {tuple(values.shape)} and lanes {tuple(packed.shape)} are not those of "
                f"{inputs} inputs at {pattern}; allowed: what state_dict gives"
            )
        shift = torch.tensor([0, 2, 4, 6], dtype=torch.uint8, device=packed.device)
        lanes = (packed[:, None] >> shift & 3).flatten()[: values.numel()]
        return cls(values, lanes.view(values.shape), inputs, pattern)


def slide(weight: Tensor, pattern: str | Pattern, *, pad: bool = True) -> SlidWeight:
    """Cut a weight that obeys the pattern into windows of 2:4, bit for bit.

    Parameters
    ----------
    weight
        [O, K], any real type; -0.0 becomes 0.0.
    pattern
        Such as `"6:8"`.
    pad
        Whether a last block of fewer inputs is filled with zeros; if not, it is refused.

    Raises
    ------
    PatternViolation
        For a block with more nonzeros than the pattern allows: nothing is ever dropped.
    ValueError
        For NaN or infinity, or a `K` that is no multiple of the block without `pad`.

    Notes
    -----
    Source: the paper's sliding window decomposition; the closed form is described in this module.

    Examples
    --------
    >>> slide(torch.tensor([[1, 0, 2, 3, 0, 4, 5, 6]]), "6:8").to_2to4().tolist()
    [[1, 0, 2, 0, 0, 3, 0, 4, 0, 0, 5, 6]]
    """
    pattern = Pattern.parse(pattern)
    check_matrix(weight, "weight")
    outputs, inputs = weight.shape
    if inputs % pattern.total and not pad:
        raise ValueError(
            f"weight has {inputs} inputs, no multiple of {pattern.total}; allowed with pad=True"
        )
    full = pad_columns(weight, pattern.total)
    blocks = (outputs, full.shape[1] // pattern.total, pattern.total)
    counts, position, lane = kept_slots(is_nonzero(full).view(blocks), 2, 2)
    refuse_excess(counts, pattern)
    values = without_negative_zeros(raw(full).view(blocks).gather(-1, position).view(weight.dtype))
    shape = (*blocks[:2], pattern.windows, 2)
    return SlidWeight(values.view(shape), lane.view(shape), inputs, pattern)
