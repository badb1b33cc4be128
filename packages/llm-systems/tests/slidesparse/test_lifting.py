"""Lifting and quantisation, which commute."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from llm_systems.slidesparse import Pattern, lift, lift_index, quantize_lift
from llm_systems.slidesparse import _reference as reference
from llm_systems.slidesparse.lifting import quantize


def test_lifting_repeats_what_windows_share() -> None:
    assert lift(torch.arange(1, 9), "6:8").tolist() == [1, 2, 3, 4, 3, 4, 5, 6, 5, 6, 7, 8]


@given(half=st.integers(2, 9), inputs=st.integers(1, 60))
def test_lifting_is_its_definition(half: int, inputs: int) -> None:
    x = torch.arange(1, inputs + 1)
    pattern = Pattern(2 * half - 2, 2 * half)
    assert torch.equal(lift(x, pattern), reference.lift(x, 2 * half))


@pytest.mark.parametrize("dtype", ["int8", "fp8"])
def test_quantising_and_lifting_commute(dtype: str, pattern: Pattern) -> None:
    x = torch.randn(9, 5 * pattern.total + 3, generator=torch.Generator().manual_seed(0)) * 3
    x[4] = 0.0
    first, scale = quantize_lift(x, pattern, dtype, "torch")  # type: ignore[arg-type]
    second, lifted_scale = quantize(lift(x, pattern), dtype)  # type: ignore[arg-type]
    assert torch.equal(first.view(torch.uint8), second.view(torch.uint8))
    assert torch.equal(scale, lifted_scale)
    largest = {"int8": 127, "fp8": 448}[dtype]
    assert float(scale[4]) == pytest.approx(1 / (512 * largest), rel=1e-6)
    assert not first[4].view(torch.uint8).any()


def test_halves_are_rounded_to_even() -> None:
    # A largest entry of 127 makes the scale 1.
    x = torch.tensor([[-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.5, 127.0]])
    q, scale = quantize(x)
    assert scale.tolist() == [1.0]
    assert q.tolist() == [[-2, -2, 0, 0, 2, 2, 4, 127]]


def test_bad_arguments_are_refused() -> None:
    x = torch.ones(2, 8)
    with pytest.raises(ValueError, match="dtype is 'int4'"):
        quantize_lift(x, "6:8", "int4")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="backend is 'cuda'"):
        quantize_lift(x, "6:8", backend="cuda")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="floating"):
        quantize_lift(x.long(), "6:8")
    with pytest.raises(ValueError, match="inputs is 0"):
        lift_index(0, "6:8")
    with pytest.raises(ValueError, match="'triton' is for CUDA and x is on cpu"):
        quantize_lift(x, "6:8", backend="triton")
    with pytest.raises(TypeError, match="x is a list"):
        lift([1.0], "6:8")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no dimension"):
        lift(torch.tensor(1.0), "6:8")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", ["int8", "fp8"])
def test_what_is_no_number_shows_in_the_scale(value: float, dtype: str) -> None:
    x = torch.ones(2, 8)
    x[1, 3] = value
    q, scale = quantize_lift(x, "6:8", dtype)  # type: ignore[arg-type]
    outputs = (q.float() * scale[:, None]).sum(1)
    assert outputs.isfinite().tolist() == [True, False]


_INTERPRETED = """
import torch
from llm_systems.slidesparse import Pattern, quantize_lift
from llm_systems.slidesparse.fused import quantize_lift_fused, rescale
generator = torch.Generator().manual_seed(0)
for total in (4, 6, 8, 10):
    for inputs in (64, 240, 250):
        for dtype in (torch.float32, torch.bfloat16)[:1 + (total == inputs % 16 - 2)]:
            x = torch.randn(5, inputs, generator=generator).to(dtype)
            x[1] = 0
            x[2, :8] = torch.tensor([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 126.5, 127.0])
            x[3] *= 1e-4
            pattern = Pattern(total - 2, total)
            q, scale = quantize_lift(x, pattern, "int8", "torch")
            got, got_scale = quantize_lift(x, pattern, "int8", "triton")
            assert torch.equal(q, got), (total, inputs, dtype)
            assert torch.equal(scale, got_scale), (total, inputs, dtype)
            for value in (float("nan"), float("inf")):
                wrong = x.clone()
                wrong[3, inputs - 1] = value
                spoilt = quantize_lift(wrong, pattern, "int8", "triton")[1]
                assert spoilt.isfinite().tolist() == [True, True, True, False, True]
            if inputs < 250:
                continue
            padded, scales = quantize_lift_fused(x.t().contiguous().t(), pattern, "int8", rows=16,
                                                 columns=32)
            assert padded.shape[0] == 16 and padded.shape[1] % 32 == 0
            assert torch.equal(padded[:5, :q.shape[1]], q)
            assert not padded[5:].any() and not padded[:, q.shape[1]:].any()
            assert torch.equal(scales[5:], torch.ones(11))
sums = torch.randint(-9999, 9999, (3, 37), generator=generator, dtype=torch.int32)
tokens, channels = torch.rand(3, generator=generator), torch.rand(37, generator=generator)
bias = torch.rand(37, generator=generator)
got = rescale(sums, tokens, channels, bias, torch.float32)
torch.testing.assert_close(got, sums * tokens[:, None] * channels + bias)
print("equal")
"""


def test_the_fused_kernel_is_bit_equal_to_its_definition() -> None:
    # Triton's interpreter runs the kernel on the CPU; it must be chosen before Triton is imported.
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, "-c", _INTERPRETED],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "equal", done.stderr[-3000:]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["int8", "fp8"])
def test_the_fused_kernel_on_a_gpu(dtype: str, pattern: Pattern) -> None:
    x = torch.randn(33, 1001, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    got, scale = quantize_lift(x, pattern, dtype, "triton")  # type: ignore[arg-type]
    expected, expected_scale = quantize_lift(x, pattern, dtype, "torch")  # type: ignore[arg-type]
    assert torch.equal(got.view(torch.uint8), expected.view(torch.uint8))
    assert torch.equal(scale, expected_scale)
