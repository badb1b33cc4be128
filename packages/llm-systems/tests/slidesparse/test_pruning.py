"""Which weights go, and how SparseGPT makes up for them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from llm_systems.slidesparse import Pattern, PatternViolation, check, prune_
from llm_systems.slidesparse.pruning import ternary_mask


def test_magnitude_drops_the_two_smallest() -> None:
    layer = nn.Linear(8, 1)
    layer.weight.data = torch.tensor([[5.0, -1, 3, 0.5, 8, -7, 2, 6]])
    mask = prune_(layer, "6:8")
    assert layer.weight.tolist() == [[5, 0, 3, 0, 8, -7, 2, 6]]
    assert mask.sum() == 6


def test_of_equal_scores_the_first_go() -> None:
    weight = torch.tensor([[2.0, 1, 1, 1, 3, 3, 3, 3], [1, 1, 1, 1, 1, 1, 1, 1]])
    mask = prune_(weight, "6:8")
    assert mask.int().tolist() == [[1, 0, 0, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 1, 1]]


def test_scores_beyond_the_largest_number_are_equal() -> None:
    weight = torch.full((1, 8), 100.0)
    mask = prune_(weight, "6:8", "wanda", calib=torch.full((8,), 3e38))
    assert mask.int().tolist() == [[0, 0, 1, 1, 1, 1, 1, 1]]


@pytest.mark.parametrize("method", ["magnitude", "random", "wanda", "sparsegpt"])
@pytest.mark.parametrize("inputs", [1, 7, 40, 130, 300])
def test_every_method_gives_the_pattern(method: str, inputs: int, pattern: Pattern) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(9, inputs, generator=generator)
    calib = torch.randn(2 * inputs + 5, inputs, generator=generator)
    mask = prune_(weight, pattern, method, calib=calib, seed=1)  # type: ignore[arg-type]
    assert check(weight, pattern).ok
    assert torch.equal(weight != 0, mask)
    # Padding counts as zeros: only a last block with fewer than two of them loses anything.
    left = inputs % pattern.total
    expected = inputs // pattern.total * pattern.keep + min(left, pattern.keep)
    assert (mask.sum(1) == expected).all()


def test_wanda_with_equal_norms_is_magnitude(pattern: Pattern) -> None:
    weight = torch.randn(8, 100, generator=torch.Generator().manual_seed(0))
    expected = prune_(weight.clone(), pattern)
    assert torch.equal(prune_(weight, pattern, "wanda", calib=torch.full((100,), 3.0)), expected)


def test_wanda_weighs_by_the_norms_of_the_inputs() -> None:
    weight = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    x = torch.tensor([[3.0, 1, 0, 1], [4.0, 0, 1, 0]])  # norms 5, 1, 1, 1: scores 5, 2, 3, 4
    prune_(weight, "2:4", "wanda", calib=x)
    assert weight.tolist() == [[1, 0, 0, 4]]


def test_sparsegpt_with_white_inputs_is_magnitude(pattern: Pattern) -> None:
    weight = torch.randn(8, 260, generator=torch.Generator().manual_seed(0))
    expected = weight.clone()
    mask = prune_(expected, pattern)
    got = prune_(weight, pattern, "sparsegpt", calib=torch.eye(260))
    assert torch.equal(got, mask)
    torch.testing.assert_close(weight, expected, atol=1e-6, rtol=0)


def test_sparsegpt_is_the_least_squares_update() -> None:
    # One block: what is kept to the right of the dropped columns solves the normal equations, up
    # to the damping; the columns to the left of the first dropped one cannot change.
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(500, 8, generator=generator) @ torch.randn(8, 8, generator=generator)
    weight = torch.randn(1, 8, generator=generator)
    before = weight.clone().double()
    mask = prune_(weight, "6:8", "sparsegpt", calib=x)[0]
    first, second = (~mask).nonzero()[:, 0].tolist()
    assert torch.equal(weight[0, :first].double(), before[0, :first])
    h = (x.T @ x).double()
    h.diagonal().add_(0.01 * h.diagonal().mean())
    right = list(range(first + 1, 8))
    change = torch.zeros(8, dtype=torch.float64)
    change[first] = -before[0, first]
    change[right] = (
        -torch.linalg.solve(h[right][:, right], h[right][:, [first]])[:, 0] * change[first]
    )
    after = before[0] + change
    right = list(range(second + 1, 8))
    if right:
        step = -torch.linalg.solve(h[right][:, right], h[right][:, [second]])[:, 0]
        after[right] += step * -after[second]
    after[second] = 0
    torch.testing.assert_close(weight[0].double(), after, atol=1e-4, rtol=1e-4)


def test_sparsegpt_beats_magnitude_on_its_own_inputs() -> None:
    # It minimises the error of the outputs, which magnitude ignores.
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2000, 96, generator=generator) @ torch.randn(96, 96, generator=generator)
    weight = torch.randn(32, 96, generator=generator)
    errors = {}
    for method in ("magnitude", "sparsegpt"):
        pruned = weight.clone()
        prune_(pruned, "4:6", method, calib=x)  # type: ignore[arg-type]
        errors[method] = float((x @ (pruned - weight).T).norm())
    assert errors["sparsegpt"] < 0.8 * errors["magnitude"]


def test_random_depends_on_the_seed_alone() -> None:
    masks = [prune_(torch.ones(16, 64), "6:8", "random", seed=s) for s in (1, 1, 2)]
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2])


def test_ternary_weights_keep_their_zeros() -> None:
    weight = torch.tensor([[1.0, 0, 0, -1, 0, 1, 1, 1], [1, 1, 1, -1, 0, 1, 1, 1]])
    master = torch.tensor([[9.0, 0.1, 0.1, 9, 0.1, 9, 9, 9], [9, 8, 0.6, 9, 0.1, 9, 9, 9]])
    mask = ternary_mask(weight, master, Pattern.parse("6:8"))
    # The first row has three zeros; the second one, so that its smallest master weight goes too.
    assert torch.equal(mask[0], weight[0] != 0)
    assert mask[1].tolist() == [True, True, False, True, False, True, True, True]


def test_keep_refuses_what_is_not_pruned() -> None:
    with pytest.raises(PatternViolation, match="row 0"):
        prune_(torch.ones(2, 8), "6:8", "keep")


@pytest.mark.parametrize("method", ["wanda", "sparsegpt"])
def test_calibration_is_asked_for(method: str) -> None:
    weight = torch.ones(2, 8)
    with pytest.raises(ValueError, match="calib is missing"):
        prune_(weight, "6:8", method)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="allowed"):
        prune_(weight, "6:8", method, calib=torch.ones(4, 9))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="NaN"):
        prune_(weight, "6:8", method, calib=torch.full((8, 8), torch.nan))  # type: ignore[arg-type]
    assert torch.equal(weight, torch.ones(2, 8))


def test_calibration_of_other_kinds_is_refused() -> None:
    weight = torch.ones(2, 8)
    for calib, error, match in (
        ([1.0], TypeError, "calib is a list"),
        (torch.ones(()), ValueError, "allowed"),
        (torch.ones(0, 8), ValueError, "calib is empty"),
        (-torch.ones(8), ValueError, "negative norms"),
    ):
        with pytest.raises(error, match=match):
            prune_(weight, "6:8", "wanda", calib=calib)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"int8; allowed with 'sparsegpt'"):
        prune_(weight.to(torch.int8), "6:8", "sparsegpt", calib=torch.ones(9, 8))
    with pytest.raises(TypeError, match="seed is 'a'"):
        prune_(weight, "6:8", "random", seed="a")  # type: ignore[arg-type]
    for seed in (2**64, -(2**63) - 1):
        with pytest.raises(ValueError, match=f"seed is {seed}; allowed: from"):
            prune_(weight, "6:8", "random", seed=seed)
    with pytest.raises(ValueError, match="finite values of float32"):
        prune_(weight, "6:8", "wanda", calib=torch.full((8,), 1e300, dtype=torch.float64))
    with pytest.raises(TypeError, match="weight is a Conv2d"):
        prune_(nn.Conv2d(3, 3, 3), "6:8")  # type: ignore[arg-type]
    assert torch.equal(weight, torch.ones(2, 8))


def test_the_smallest_integer_is_large() -> None:
    # |-128| is no int8.
    weight = torch.tensor([[-128, 1, 2, 127]], dtype=torch.int8)
    prune_(weight, "2:4")
    assert weight.tolist() == [[-128, 0, 0, 127]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("method", ["magnitude", "sparsegpt"])
def test_pruned_weights_are_zeros_without_sign(dtype: torch.dtype, method: str) -> None:
    weight = torch.full((3, 8), -1.0).to(dtype)
    mask = prune_(weight, "6:8", method, calib=torch.eye(8))  # type: ignore[arg-type]
    assert not torch.signbit(weight.float()[~mask]).any()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint32, torch.int16])
def test_integers_of_all_kinds_are_pruned(dtype: torch.dtype) -> None:
    weight = torch.tensor([[1, 4, 2, 3]]).to(dtype)
    prune_(weight, "2:4")
    assert weight.tolist() == [[0, 4, 0, 3]]


def test_scores_tell_weights_apart_that_float32_does_not() -> None:
    huge = torch.tensor([[3e300, 1e300, 5e300, 2e300]], dtype=torch.float64)
    assert prune_(huge, "2:4").tolist() == [[True, False, True, False]]
    # All four are 2^25 in float32.
    near = torch.tensor([[2**25, 2**25 - 1, 2**25 + 1, 2**25 - 1]])
    assert prune_(near, "2:4").tolist() == [[True, False, True, False]]


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_calibration_of_any_size_ranks_weights(size: float) -> None:
    weight = torch.tensor([[4.0, 3, 2, 1]])
    prune_(weight, "2:4", "wanda", calib=torch.full((5, 4), size))
    assert weight.tolist() == [[4, 3, 0, 0]]


def test_small_inputs_are_no_hessian() -> None:
    # As many tokens as inputs; the result does not depend on the size of the inputs.
    x = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    weights = [torch.arange(1.0, 9)[None] for _ in range(2)]
    for weight, size in zip(weights, (1.0, 1e-9), strict=True):
        prune_(weight, "6:8", "sparsegpt", calib=size * x)
    torch.testing.assert_close(weights[1], weights[0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("size", [1e-3, 1e3])
def test_sparsegpt_drops_what_no_input_reaches(size: float) -> None:
    x = size * torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
    x[:, [3, 6]] = 0
    mask = prune_(torch.ones(1, 8), "6:8", "sparsegpt", calib=x)
    assert (~mask[0]).nonzero()[:, 0].tolist() == [3, 6]
    # Without any input, all that is left is the magnitude.
    weight = torch.tensor([[4.0, 1, 3, 2]])
    prune_(weight, "2:4", "sparsegpt", calib=torch.zeros(9, 4))
    assert weight.tolist() == [[4, 0, 3, 0]]


def test_an_update_that_does_not_fit_is_refused() -> None:
    # Both inputs are the same, so that what is dropped is added to the other: 1.2e5 is no float16.
    x = torch.ones(50, 1) * torch.tensor([[1.0, 1, 1, 1]])
    weight = torch.full((1, 4), 6e4, dtype=torch.float16)
    with pytest.raises(ValueError, match=r"grows out of torch\.float16"):
        prune_(weight, "2:4", "sparsegpt", calib=x)
    assert (weight == 6e4).all()


def test_ternary_weights_are_pruned_by_their_masters() -> None:
    master = torch.tensor([[9, 8, 0.6, 9, 0.1, 9, 9, 9], [9, 0.1, 0.1, 9, 0.1, 9, 9, 9]])
    weight = torch.tensor([[1.0, 1, 1, -1, 0, 1, 1, 1], [1, 0, 0, -1, 0, 1, 1, 1]])
    prune_(weight, "6:8", master=master)
    assert weight.tolist() == [[1, 1, 0, -1, 0, 1, 1, 1], [1, 0, 0, -1, 0, 1, 1, 1]]
    with pytest.raises(ValueError, match=r"master is \(2, 7\); allowed: \(2, 8\)"):
        prune_(weight, "6:8", master=master[:, :7])
    with pytest.raises(ValueError, match="master is for method 'magnitude', not 'random'"):
        prune_(weight, "6:8", "random", master=master)


def test_rows_that_share_memory_are_refused() -> None:
    weight = torch.arange(1.0, 9)[None].expand(4, 8)
    with pytest.raises(ValueError, match="share memory"):
        prune_(weight, "6:8")
    assert weight[0].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]


def test_unknown_methods_are_refused() -> None:
    with pytest.raises(ValueError, match="magnitude, wanda, sparsegpt, random, keep"):
        prune_(torch.ones(2, 8), "6:8", "best")  # type: ignore[arg-type]
