"""Names and numbers of the patterns."""

from __future__ import annotations

import pytest
import torch

from llm_systems.slidesparse import Pattern, check


@pytest.mark.parametrize(
    ("text", "expansion", "bound", "int8", "bf16"),
    [
        # The paper's gamma = 2 - 2/N and N/(N-1); bytes are values and 2 bits a slot.
        ("2:4", 1.0, 2.0, 0.625, 0.5625),
        ("4:6", 4 / 3, 1.5, 5 / 6, 0.75),
        ("6:8", 1.5, 4 / 3, 0.9375, 0.84375),
        ("8:10", 1.6, 1.25, 1.0, 0.9),
        ("14:16", 1.75, 8 / 7, 1.09375, 0.984375),
    ],
)
def test_the_numbers_of_a_pattern(
    text: str, expansion: float, bound: float, int8: float, bf16: float
) -> None:
    pattern = Pattern.parse(text)
    assert str(pattern) == text
    assert pattern.expansion == pytest.approx(expansion)
    assert pattern.max_speedup == pytest.approx(bound)
    assert pattern.bytes_ratio(torch.int8) == pytest.approx(int8)
    assert pattern.bytes_ratio(torch.float8_e4m3fn) == pytest.approx(int8)
    assert pattern.bytes_ratio(torch.bfloat16) == pytest.approx(bf16)
    assert pattern.bytes_ratio(torch.float16) == pytest.approx(bf16)


@pytest.mark.parametrize(
    ("text", "inputs", "columns"),
    [
        # K' = 4 (N-1) ceil(K / 2N), by hand.
        ("6:8", 4096, 6144),
        ("4:6", 576, 768),
        ("6:8", 576, 864),
        ("14:16", 576, 1008),
        ("8:10", 576, 928),
        ("2:4", 576, 576),
    ],
)
def test_the_columns_after_sliding(text: str, inputs: int, columns: int) -> None:
    assert Pattern.parse(text).slid_columns(inputs) == columns


@pytest.mark.parametrize("text", ["2:8", "3:8", "8:8", "5:7", "0:2", "6-8", "", "6:8:10", "６:８"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="allowed"):
        Pattern.parse(text)


def test_the_other_reading_is_named() -> None:
    with pytest.raises(ValueError, match=r"did you mean 6:8 \(keep:total\).*2:8 when.*zeros:total"):
        Pattern.parse("2:8")


def test_other_types_are_refused() -> None:
    with pytest.raises(TypeError, match="allowed"):
        Pattern.parse(68)  # type: ignore[arg-type]


def test_check_finds_the_first_bad_block() -> None:
    weight = torch.zeros(3, 20)
    weight[1, 8:15] = 1.0
    weight[2, :8] = 1.0
    report = check(weight, "6:8")
    assert (report.ok, report.bad_blocks, report.worst_nnz) == (False, 2, 8)
    assert report.first_bad == (1, 1)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("place", [0, 21, 79])
def test_values_that_are_no_numbers_are_refused(
    value: float, dtype: torch.dtype, place: int
) -> None:
    weight = torch.zeros(80, dtype=dtype)
    weight[place] = value
    with pytest.raises(ValueError, match="NaN or infinity"):
        check(weight.view(2, 40), "2:4")


def test_eight_bit_floats_that_are_no_numbers_are_refused() -> None:
    weight = torch.tensor([[float("nan"), 0, 0, 0]]).to(torch.float8_e4m3fn)
    with pytest.raises(ValueError, match="NaN or infinity"):
        check(weight, "2:4")


def test_a_weight_without_rows_obeys() -> None:
    assert check(torch.zeros(0, 8), "6:8").ok


@pytest.mark.parametrize(
    "weight",
    [
        torch.eye(8).to_sparse(),
        torch.ones(2, 8, device="meta"),
        torch.ones(2, 8).to(torch.float8_e8m0fnu),  # no zero and no sign
        torch.ones(2, 8).bool(),
        torch.ones(2, 8) * 1j,
        [[1.0]],
    ],
)
def test_what_is_no_weight_is_refused(weight: torch.Tensor) -> None:
    with pytest.raises(TypeError, match=r"weight is .*; allowed"):
        check(weight, "6:8")


def test_bytes_need_a_type() -> None:
    with pytest.raises(TypeError, match=r"dtype is .int8.; allowed: a torch\.dtype"):
        Pattern.parse("6:8").bytes_ratio("int8")  # type: ignore[arg-type]
