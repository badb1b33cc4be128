"""Entropies against closed forms and another library, in pieces of any size."""

from __future__ import annotations

import math

import pytest
import torch

from rl_curriculum.gtpo import token_entropy


@pytest.mark.parametrize("chunk", [1, 3, 7, 1024])
def test_equal_to_torch_distributions(chunk) -> None:
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 5, 11, generator=g, dtype=torch.float64) * 5
    expected = torch.distributions.Categorical(logits=logits).entropy()
    torch.testing.assert_close(token_entropy(logits, chunk), expected, rtol=1e-12, atol=1e-12)


def test_closed_forms() -> None:
    forbidden = torch.tensor([0.0, 0.0, -torch.inf, 0.0, -torch.inf])
    assert float(token_entropy(forbidden)) == pytest.approx(math.log(3), abs=1e-6)
    certain = torch.tensor([0.0, -torch.inf, -torch.inf])
    assert float(token_entropy(certain)) == 0
    assert float(token_entropy(torch.tensor([1e4, 0.0]))) == 0
    p = 0.97
    logits = torch.tensor([math.log(p), math.log(1 - p)])
    binary = -p * math.log(p) - (1 - p) * math.log(1 - p)
    assert float(token_entropy(logits + 1e3)) == pytest.approx(binary, abs=1e-4)


def test_half_precision_is_computed_in_single() -> None:
    logits = torch.randn(4, 1000, generator=torch.Generator().manual_seed(1)).bfloat16()
    got = token_entropy(logits)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, token_entropy(logits.float()), rtol=0, atol=0)


def test_no_gradient() -> None:
    logits = torch.zeros(2, 3, requires_grad=True)
    assert not token_entropy(logits).requires_grad


def test_bad_input_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="chunk is 0"):
        token_entropy(torch.zeros(2, 3), 0)
    with pytest.raises(TypeError, match=r"chunk is 2.5; allowed: a whole number"):
        token_entropy(torch.zeros(2, 3), 2.5)
    for other in ([[0.0, 0.0]], torch.zeros(2, 3).numpy()):
        with pytest.raises(TypeError, match=r"logits is a .*; allowed: a torch.Tensor"):
            token_entropy(other)
    with pytest.raises(ValueError, match="logits has shape"):
        token_entropy(torch.zeros(2, 3, dtype=torch.long))
