"""The layer and the CPU kernel against the dense product."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llm_systems.slidesparse import (
    Pattern,
    PatternViolation,
    SlideLinear,
    cpu,
    prune_,
    semi_structured,
)
from llm_systems.slidesparse.backends import quantize_weight
from llm_systems.slidesparse.lifting import quantize

needs_kernel = pytest.mark.skipif(cpu.available() is None, reason="the CPU kernel is not built")


@pytest.fixture
def layer() -> Callable[..., nn.Linear]:
    def make(inputs: int, outputs: int, pattern: str, *, bias: bool = True) -> nn.Linear:
        generator = torch.Generator().manual_seed(0)
        made = nn.Linear(inputs, outputs, bias=bias)
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        prune_(made, pattern)
        return made

    return make


@needs_kernel
@pytest.mark.parametrize("isa", ["avx512", "avx2"])
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 7, 9, 33, 64, 128, 129, 300])
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (7, 9), (65, 250), (1025, 64)])
def test_the_kernel_is_the_dense_product(
    isa: str, tokens: int, outputs: int, inputs: int, pattern: Pattern,
    pruned: Callable[..., Tensor],
) -> None:  # fmt: skip
    if isa == "avx512" and cpu.available() != "avx512":
        pytest.skip("no AVX-512 here")
    weight = pruned(outputs, inputs, pattern)
    x = torch.randn(tokens, inputs, generator=torch.Generator().manual_seed(1))
    bias = torch.randn(outputs, generator=torch.Generator().manual_seed(2))
    got = cpu.linear(x, cpu.encode(weight, pattern), bias, isa=isa)
    expected = F.linear(x.double(), weight.double(), bias.double())
    torch.testing.assert_close(got.double(), expected, atol=1e-4, rtol=0)


@needs_kernel
def test_the_kernel_skips_whatever_is_zero() -> None:
    # Rows that keep unequally many values, empty rows and empty tiles.
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(130, 200, generator=generator)
    weight *= torch.rand(130, 200, generator=generator) < torch.rand(130, 1, generator=generator)
    prune_(weight, "6:8")
    weight[5] = 0
    weight[:, 64:128] = 0
    streams = cpu.encode(weight, "6:8")
    assert len(streams.values) == int((weight != 0).sum())
    for tokens in (3, 10, 100):
        x = torch.randn(tokens, 200, generator=generator)
        expected = x.double() @ weight.double().T
        torch.testing.assert_close(
            cpu.linear(x, streams).double(), expected, atol=1e-4, rtol=0
        )  # fmt: skip


@needs_kernel
def test_several_threads_give_the_same_numbers(pruned: Callable[..., Tensor]) -> None:
    weight = pruned(2500, 96, Pattern.parse("6:8"))
    streams = cpu.encode(weight, "6:8")
    x = torch.randn(300, 96, generator=torch.Generator().manual_seed(1))
    threads = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2):
            torch.set_num_threads(count)
            results.append((cpu.linear(x, streams), cpu.linear(x[:4], streams)))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


@needs_kernel
def test_the_kernel_reads_strided_tokens(pruned: Callable[..., Tensor]) -> None:
    weight = pruned(16, 64, Pattern.parse("6:8"))
    streams = cpu.encode(weight, "6:8")
    wide = torch.randn(40, 128, generator=torch.Generator().manual_seed(1))
    for x in (wide[:, :64], wide[::2, 32:96], wide.t()[:64, :40].t(), wide[:1, :64].expand(9, 64)):
        torch.testing.assert_close(cpu.linear(x, streams), x @ weight.T, atol=1e-4, rtol=0)


@needs_kernel
def test_the_kernel_refuses_what_it_cannot_read(pruned: Callable[..., Tensor]) -> None:
    weight = pruned(16, 64, Pattern.parse("6:8"))
    streams = cpu.encode(weight, "6:8")
    x = torch.ones(3, 64)
    for bad in (torch.ones(3, 63), torch.ones(64), x.double()):
        with pytest.raises(ValueError, match=r"allowed: float32 \[tokens, 64\]"):
            cpu.linear(bad, streams)
    for bias in (torch.ones(15), torch.ones(16).double()):
        with pytest.raises(ValueError, match=r"bias is .*allowed: float32 \[16\]"):
            cpu.linear(x, streams, bias)
    with pytest.raises(ValueError, match="isa is 'sse'"):
        cpu.linear(x, streams, isa="sse")
    with pytest.raises(ValueError, match="allowed: float32 on cpu"):
        cpu.encode(weight.double(), "6:8")


@needs_kernel
def test_stored_bytes_of_the_kernel(pruned: Callable[..., Tensor]) -> None:
    # Values 4 * 6/8 bytes, and 14 bytes a row and tile of 64 inputs: 0.75 + 14/256.
    streams = cpu.encode(pruned(1024, 1024, Pattern.parse("6:8")), "6:8")
    assert streams.nbytes / (4 * 1024**2) == pytest.approx(0.75 + 14 / 256, rel=0.01)


@pytest.mark.parametrize("backend", ["auto", "dense", "torch"])
@pytest.mark.parametrize("shape", [(64,), (3, 64), (2, 5, 64), (0, 64)])
def test_the_layer_is_the_dense_layer(
    backend: str, shape: tuple[int, ...], layer: Callable[..., nn.Linear]
) -> None:
    dense = layer(64, 48, "6:8")
    slid = SlideLinear.from_linear(dense, "6:8", backend=backend)  # type: ignore[arg-type]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        torch.testing.assert_close(slid(x), dense(x), rtol=1e-5, atol=1e-5)
        assert torch.equal(slid.dense_reference(x), dense(x))


@pytest.mark.parametrize("backend", ["dense", "torch"])
def test_int8_sums_are_exact(
    backend: str, pattern: Pattern, layer: Callable[..., nn.Linear]
) -> None:
    dense = layer(250, 40, str(pattern))
    slid = SlideLinear.from_linear(dense, pattern, "int8", backend)  # type: ignore[arg-type]
    x = torch.randn(33, 250, generator=torch.Generator().manual_seed(1))
    q, tokens = quantize(x, "int8")
    weight, channels = quantize_weight(dense.weight.data, "int8")
    sums = q.long() @ weight.long().T
    expected = sums.float() * tokens[:, None] * channels + dense.bias
    assert torch.equal(slid(x), expected)


_SUMS = """
import itertools, torch
from llm_systems.slidesparse.backends import integer_product
generator = torch.Generator().manual_seed(0)
for tokens, outputs, columns in itertools.product((1, 2, 17), (1, 3, 33), (1, 2, 250, 2500)):
    for low in (-127, 120):
        q, weight = (
            torch.randint(low, 128, (rows, columns), generator=generator, dtype=torch.int8)
            for rows in (tokens, outputs)
        )
        assert torch.equal(integer_product(q, weight), (q.long() @ weight.long().T).int())
print("equal")
"""


@pytest.mark.parametrize("instructions", ["DEFAULT", "AVX2"])
def test_int8_sums_are_exact_on_every_processor(instructions: str) -> None:
    # PyTorch's own product saturates without VNNI, and is garbage for one column.
    done = subprocess.run(
        [sys.executable, "-c", _SUMS],
        env=os.environ | {"ONEDNN_MAX_CPU_ISA": instructions},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "equal", done.stderr[-3000:]


def test_fp8_is_the_dense_product_of_the_same_values(layer: Callable[..., nn.Linear]) -> None:
    dense = layer(64, 40, "6:8")
    x = torch.randn(33, 64, generator=torch.Generator().manual_seed(1))
    results = [
        SlideLinear.from_linear(dense, "6:8", "fp8", b)(x)  # type: ignore[arg-type]
        for b in ("dense", "torch")
    ]
    # Products of two fp8 values are exact in float32; only the order of the sums differs.
    torch.testing.assert_close(results[0], results[1], rtol=1e-5, atol=1e-4)
    # Three mantissa bits: each product is off by at most about 2^-3, the sum by far less.
    with torch.inference_mode():
        expected = dense(x)
    assert float((results[0] - expected).norm() / expected.norm()) < 0.06


@pytest.mark.parametrize("transposes", [True, False])
@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16])
def test_results_of_cusparselt_are_turned_round(
    transposes: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for the library: W B, transposed if it can; a type for results of int8 only."""
    searches = []

    def product(
        packed: Tensor, dense: Tensor, *, out_dtype: torch.dtype | None,
        transpose_result: bool = False, alg_id: int = 0,
    ) -> Tensor:  # fmt: skip
        if transpose_result and not transposes:
            raise RuntimeError("not supported")
        assert (out_dtype is None) == (dtype != torch.int8)
        assert alg_id == (7 if len(searches) else 0)
        out = (packed.float() @ dense.float()).to(out_dtype or dtype)
        return out.t().contiguous() if transpose_result else out

    def search(packed: Tensor, dense: Tensor, **options: Any) -> int:
        product(packed, dense, **options)
        searches.append(options)
        return 7

    monkeypatch.setattr(torch, "_cslt_sparse_mm", product)
    monkeypatch.setattr(torch, "_cslt_sparse_mm_search", search)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(semi_structured, "_algorithms", {})
    generator = torch.Generator().manual_seed(0)
    weight = torch.randint(-9, 9, (32, 64), generator=generator).to(dtype)
    x = torch.randint(-9, 9, (16, 64), generator=generator).to(dtype)
    wanted = torch.int32 if dtype == torch.int8 else dtype
    for _ in range(2):
        got = semi_structured.multiply(weight, x, 32, wanted)
        assert torch.equal(got, (x.float() @ weight.float().T).to(wanted))
    assert len(searches) == 1


def test_the_state_is_that_of_a_linear_layer(layer: Callable[..., nn.Linear]) -> None:
    dense = layer(64, 48, "6:8")
    slid = SlideLinear.from_linear(dense, "6:8")
    assert {k: v.shape for k, v in slid.state_dict().items()} == {
        k: v.shape for k, v in dense.state_dict().items()
    }
    empty = SlideLinear(64, 48, "6:8")
    empty.load_state_dict(dense.state_dict())
    x = torch.ones(20, 64)
    assert torch.equal(empty(x), slid(x))
    with pytest.raises(PatternViolation):
        empty.load_state_dict(nn.Linear(64, 48).state_dict())


def test_the_layer_is_moved_and_copied(layer: Callable[..., nn.Linear]) -> None:
    dense = layer(64, 48, "6:8")
    slid = SlideLinear.from_linear(dense, "6:8")
    x = torch.ones(20, 64)
    assert torch.equal(copy.deepcopy(slid)(x), slid(x))
    half = copy.deepcopy(slid).to(torch.bfloat16)
    assert half.backend_in_use == "dense"
    torch.testing.assert_close(half(x.bfloat16()).float(), slid(x), rtol=0.05, atol=0.3)
    back = half.to(torch.float32)
    torch.testing.assert_close(back(x), slid(x), rtol=0.05, atol=0.3)
    with pytest.raises(RuntimeError, match="no weight yet"):
        SlideLinear(64, 48, "6:8", device="meta")(x)


@pytest.mark.parametrize("activation", [None, "int8", "fp8"])
def test_the_layer_compiles_into_one_graph(
    activation: str | None, layer: Callable[..., nn.Linear]
) -> None:
    slid = SlideLinear.from_linear(layer(64, 48, "6:8"), "6:8", activation)  # type: ignore[arg-type]
    compiled = torch.compile(slid, backend="eager", fullgraph=True, dynamic=True)
    with torch.inference_mode():
        for tokens in (2, 100, 9):
            x = torch.randn(tokens, 64, generator=torch.Generator().manual_seed(tokens))
            assert torch.equal(compiled(x), slid(x))


@needs_kernel
def test_the_operation_is_sound(pruned: Callable[..., Tensor]) -> None:
    # torch's own check of schema, fake implementation and tracing.
    streams = cpu.encode(pruned(48, 64, Pattern.parse("6:8")), "6:8")
    torch.library.opcheck(
        cpu.cpu_linear,
        (torch.ones(20, 64), None, streams.values, streams.masks, streams.rows, streams.starts,
         torch.ones(48), 48, streams.tile, 8),
    )  # fmt: skip


def test_bad_inputs_are_refused(layer: Callable[..., nn.Linear]) -> None:
    dense = layer(64, 48, "6:8")
    slid = SlideLinear.from_linear(dense, "6:8")
    with pytest.raises(ValueError, match=r"63 inputs; allowed: 64"):
        slid(torch.ones(2, 63))
    with pytest.raises(TypeError, match=r"x is a list; allowed: a torch.Tensor"):
        slid([1.0] * 64)
    with pytest.raises(ValueError, match=r"dtype is torch.int8; allowed: a floating type"):
        SlideLinear(64, 48, "6:8", dtype=torch.int8)
    with pytest.raises(ValueError, match="bfloat16 and the weight"):
        slid(torch.ones(2, 64).bfloat16())
    with pytest.raises(ValueError, match="'cusparselt' is for CUDA"):
        SlideLinear.from_linear(dense, "6:8", backend="cusparselt")
    with pytest.raises(ValueError, match="backend is 'gpu'"):
        SlideLinear(64, 48, "6:8", backend="gpu")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="in_features is 0"):
        SlideLinear(0, 48, "6:8")
    with pytest.raises(TypeError, match="linear is a Conv2d"):
        SlideLinear.from_linear(nn.Conv2d(3, 3, 3), "6:8")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="activation is 'int4'"):
        SlideLinear(64, 48, "6:8", activation="int4")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="without quantised"):
        SlideLinear.from_linear(dense, "6:8", "int8", "cpu")
    with pytest.raises(PatternViolation):
        SlideLinear.from_linear(nn.Linear(64, 48), "6:8")


@needs_kernel
def test_gradients_need_another_backend(layer: Callable[..., nn.Linear]) -> None:
    dense = layer(64, 48, "6:8")
    x = torch.randn(20, 64, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"no gradient.*inference_mode"):
        SlideLinear.from_linear(dense, "6:8")(x)
    for backend in ("dense", "torch"):
        slid = SlideLinear.from_linear(dense, "6:8", backend=backend)  # type: ignore[arg-type]
        (found,) = torch.autograd.grad(slid(x).sum(), x)
        (expected,) = torch.autograd.grad(dense(x).sum(), x)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("activation", ["int8", "fp8"])
@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_rounded_inputs_have_no_gradient(
    activation: str, backend: str, layer: Callable[..., nn.Linear]
) -> None:
    # Autograd would give one, that of the scale alone.
    slid = SlideLinear.from_linear(layer(64, 48, "6:8"), "6:8", activation, backend)  # type: ignore[arg-type]
    x = torch.randn(20, 64, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"rounds, which has no gradient.*inference_mode"):
        slid(x)
    with torch.no_grad():
        assert slid(x).isfinite().all()


def test_memory_without_a_weight_waits_for_one(layer: Callable[..., nn.Linear]) -> None:
    dense = layer(64, 48, "6:8")
    slid = SlideLinear(64, 48, "6:8", device="meta")
    # Memory of another tensor that does not obey, as `to_empty` may find it.
    slid._apply(lambda _: torch.ones(48, 64) if _.dim() == 2 else torch.ones(48))
    assert slid.backend_in_use == "none"
    slid.load_state_dict(dense.state_dict())
    x = torch.ones(20, 64)
    torch.testing.assert_close(slid(x), dense(x))


def test_without_the_extension_the_dense_path_runs(
    monkeypatch: pytest.MonkeyPatch, layer: Callable[..., nn.Linear]
) -> None:
    monkeypatch.setattr(cpu, "_kernel", None)
    dense = layer(64, 48, "6:8")
    slid = SlideLinear.from_linear(dense, "6:8")
    assert slid.backend_in_use == "dense"
    x = torch.ones(20, 64)
    assert torch.equal(slid(x), dense(x))
    with pytest.raises(RuntimeError, match="not built"):
        SlideLinear.from_linear(dense, "6:8", backend="cpu")
