"""Sliding loses nothing: by enumeration of all masks, and on random weights of all types."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save
from torch import Tensor

from llm_systems.slidesparse import (
    Pattern,
    PatternViolation,
    SlidWeight,
    decompose,
    lift,
    prune_,
    slide,
)
from llm_systems.slidesparse import _reference as reference
from llm_systems.slidesparse.patterns import raw
from llm_systems.slidesparse.windows import _kept_slots, kept_slots


@pytest.mark.parametrize(("half", "valid"), [(2, 11), (3, 57), (4, 247), (5, 1013), (6, 4083)])
def test_every_mask_of_a_block_slides_without_loss(half: int, valid: int) -> None:
    # The number of masks with at least two zeros is 2^L - L - 1.
    total = 2 * half
    assert 2**total - total - 1 == valid
    masks = torch.tensor(list(reference.valid_masks(total, 2)))
    assert len(masks) == valid
    weight = masks * torch.arange(1, total + 1)
    slid = slide(weight, Pattern(total - 2, total))
    windows = slid.to_2to4().view(valid, half - 1, 4)
    assert int((windows != 0).sum(-1).max()) <= 2
    # Values name their positions, so that each nonzero is there exactly once.
    for row, block in zip(windows, weight, strict=True):
        assert sorted(row[row != 0].tolist()) == block[block != 0].tolist()
    x = torch.arange(3, 3 + total) ** 2
    assert torch.equal(slid.to_2to4() @ lift(x, slid.pattern), weight @ x)
    assert torch.equal(slid.to_dense(), weight)


@pytest.mark.parametrize("half", [2, 3, 4, 5, 6])
def test_greedy_loses_what_exceeds_the_pattern(half: int) -> None:
    # Theorem: max(0, nnz - (2N - 2)) nonzeros of a block find no window.
    total = 2 * half
    for mask in reference.valid_masks(total, 0):
        assert reference.greedy_windows(mask)[1] == max(0, sum(mask) - (total - 2))


@pytest.mark.parametrize("half", [2, 3, 4, 5])
def test_full_blocks_slide_as_the_greedy_rule_does(half: int) -> None:
    total = 2 * half
    masks = [m for m in reference.valid_masks(total, 2) if sum(m) == total - 2]
    weight = torch.tensor(masks) * torch.arange(1, total + 1)
    expected = reference.greedy_slide(weight, total)
    assert torch.equal(slide(weight, Pattern(total - 2, total)).to_2to4(), expected)


def test_the_example_of_the_paper() -> None:
    # Overlapping windows copied without assigning each weight once would give 168.
    weight = torch.tensor([[1, 0, 2, 3, 0, 4, 5, 6]])
    slid = slide(weight, "6:8").to_2to4()
    assert slid.tolist() == [[1, 0, 2, 0, 0, 3, 0, 4, 0, 0, 5, 6]]
    assert int(slid[0] @ lift(torch.arange(1, 9), "6:8")) == 126


def test_a_block_with_too_many_nonzeros_is_refused() -> None:
    weight = torch.zeros(3, 24)
    weight[2, 8:16] = 1.0
    with pytest.raises(PatternViolation, match=r"row 2, inputs 8 to 15 .*8 nonzeros") as caught:
        slide(weight, "6:8")
    assert (caught.value.row, caught.value.block, caught.value.nnz) == (2, 1, 8)
    assert reference.greedy_windows([1.0] * 8)[1] == 2


@pytest.mark.parametrize(
    ("zeros", "hw", "total", "valid"),
    # Masks with at least `zeros` zeros, from binomial coefficients: 2^7 - 1, 2^5 - 1, ...
    [(1, 4, 7, 127), (1, 2, 5, 31), (4, 8, 12, 3797), (2, 4, 8, 247), (3, 4, 6, 42)],
)
def test_other_hardware(zeros: int, hw: int, total: int, valid: int) -> None:
    masks = torch.tensor(list(reference.valid_masks(total, zeros)))
    assert len(masks) == valid
    weight = masks * torch.arange(1, total + 1)
    slid = decompose(weight, zeros=zeros, hw=hw, total=total)
    keep = hw - zeros
    count = (total - zeros) // keep
    windows = slid.view(valid, count, hw)
    assert int((windows != 0).sum(-1).max()) <= keep
    x = torch.arange(1, total + 1) ** 2
    lifted = torch.cat([x[keep * j : keep * j + hw] for j in range(count)])
    assert torch.equal(slid @ lifted, weight @ x)


def test_sizes_that_do_not_fit_are_refused() -> None:
    weight = torch.zeros(1, 24)
    for zeros, hw, total in ((0, 4, 8), (4, 4, 8), (2, 4, 7), (2, 4, 2), (2.0, 4, 8)):
        with pytest.raises(ValueError, match="allowed"):
            decompose(weight, zeros=zeros, hw=hw, total=total)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="row 0, block 1 has 3 nonzeros; allowed: 2 of 4"):
        decompose(torch.tensor([[1, 0, 1, 0, 1, 1, 1, 0]]), zeros=2, hw=4, total=4)
    with pytest.raises(ValueError, match="multiple of 10"):
        decompose(weight, zeros=2, hw=4, total=10)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.float8_e4m3fn]
)
def test_sliding_keeps_every_bit(
    dtype: torch.dtype, pattern: Pattern, pruned: Callable[..., Tensor]
) -> None:
    weight = (pruned(33, 5 * pattern.total + 3, pattern) * 20).to(dtype)
    slid = slide(weight, pattern)
    bits = slid.to_dense().view(torch.uint8)
    # Rounding to 8 bits may give -0.0, which becomes 0.0.
    expected = torch.where(raw(weight) == 0, 0, raw(weight))
    if dtype == torch.float8_e4m3fn:
        expected = torch.where(raw(weight) == 0x80, 0, raw(weight))
    assert torch.equal(bits, expected.view(torch.uint8))
    with pytest.raises(ValueError, match="no 'lanes'"):
        SlidWeight.from_state_dict({"values": slid.values, "sizes": torch.zeros(3)})
    back = SlidWeight.from_state_dict(slid.state_dict())
    assert torch.equal(back.to_dense().view(torch.uint8), bits)


def test_negative_zeros_become_zeros() -> None:
    weight = torch.tensor([[-0.0, 1.0, -0.0, 2.0]])
    slid = slide(weight, "2:4")
    assert slid.to_2to4().view(torch.int32).tolist()[0][0] == 0
    assert torch.equal(slid.to_2to4(), weight)


def test_exact_2to4_is_left_as_it_is(pruned: Callable[..., Tensor]) -> None:
    weight = pruned(16, 576, Pattern.parse("2:4"))
    assert torch.equal(slide(weight, "2:4").to_2to4(), weight)


def test_stored_bytes(pattern: Pattern, pruned: Callable[..., Tensor]) -> None:
    # 1.25 (N-1)/N at 8 bits and 1.125 (N-1)/N at 16, up to the padding of the last block.
    inputs = 60 * pattern.total
    weight = pruned(512, inputs, pattern)
    ratio = (pattern.N - 1) / pattern.N
    for dtype, factor in ((torch.int8, 1.25), (torch.float16, 1.125)):
        slid = slide(weight.to(dtype), pattern)
        dense = 512 * inputs * dtype.itemsize
        assert slid.nbytes / dense == pytest.approx(factor * ratio, rel=0.01)
        assert len(save(slid.state_dict())) / dense == pytest.approx(factor * ratio, rel=0.01)


@pytest.mark.parametrize("total", [8, 20])
def test_weights_without_rows_slide(total: int) -> None:
    slid = slide(torch.zeros(0, 40), Pattern(total - 2, total))
    assert slid.to_2to4().shape == (0, slid.pattern.slid_columns(40))
    assert slid.to_dense().shape == (0, 40)
    assert SlidWeight.from_state_dict(slid.state_dict()).values.shape == slid.values.shape
    assert decompose(torch.zeros(0, 16), zeros=2, hw=4, total=8).shape == (0, 24)


@pytest.mark.parametrize(
    "change",
    [
        {"lanes": torch.zeros(1, dtype=torch.uint8)},
        {"sizes": torch.tensor([800, 6, 8])},
        {"sizes": torch.tensor([8, 6])},
        {"values": torch.zeros(6)},
    ],
)
def test_states_that_do_not_fit_together_are_refused(change: dict[str, Tensor]) -> None:
    state = slide(torch.tensor([[1.0, 0, 2, 3, 0, 4, 5, 6]]), "6:8").state_dict()
    with pytest.raises(ValueError, match="allowed"):
        SlidWeight.from_state_dict(state | change)


def test_padding_can_be_refused() -> None:
    with pytest.raises(ValueError, match="no multiple of 8"):
        slide(torch.zeros(2, 12), "6:8", pad=False)


def test_int8_layers_agree_exactly(pattern: Pattern) -> None:
    # 64 outputs, 12 blocks, and the zeros of the pattern: 12.5% at 14:16, 25% at 6:8.
    generator = torch.Generator().manual_seed(0)
    inputs = 12 * pattern.total
    weight = torch.randint(-127, 128, (64, inputs), generator=generator, dtype=torch.int8)
    prune_(weight, pattern, "random", seed=generator)
    x = torch.randint(-127, 128, (16, inputs), generator=generator)
    slid = slide(weight, pattern).to_2to4()
    assert slid.dtype == torch.int8
    assert torch.equal(lift(x, pattern) @ slid.long().T, x @ weight.long().T)


@given(
    half=st.integers(2, 12),
    blocks=st.integers(1, 4),
    less=st.integers(0, 7),
    seed=st.integers(0, 2**32 - 1),
)
def test_integer_layers_agree(half: int, blocks: int, less: int, seed: int) -> None:
    total = 2 * half
    inputs = max(1, total * blocks - less)
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randint(-5, 6, (7, inputs), generator=generator).float()
    prune_(weight, Pattern(total - 2, total), "random", seed=generator)
    x = torch.randint(-99, 100, (3, inputs), generator=generator)
    slid = slide(weight.long(), Pattern(total - 2, total))
    assert torch.equal(lift(x, slid.pattern) @ slid.to_2to4().T, x @ weight.long().T)


def test_the_table_of_masks_is_the_closed_form() -> None:
    masks = torch.tensor(list(reference.valid_masks(10, 2))).bool()
    looked_up, computed = kept_slots(masks, 2, 2), _kept_slots(masks, 2, 2)
    assert all(map(torch.equal, looked_up, computed))
