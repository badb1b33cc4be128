"""The clipped objective: worked terms, the definition, ratios, and penalties on length."""

from __future__ import annotations

import pytest
import torch

from rl_curriculum.gtpo import (
    clipped_loss,
    dapo_overlong_penalty,
    group_overlong_penalty,
    gtpo_advantages,
    importance_ratio,
)
from rl_curriculum.gtpo._reference import objective, sequence_objective


def one_token(ratio: float, advantage: float) -> tuple[float, float]:
    logp = torch.tensor([[ratio]], dtype=torch.float64).log().requires_grad_()
    loss, _ = clipped_loss(
        logp, torch.zeros(1, 1, dtype=torch.float64), torch.tensor([[advantage]]), torch.ones(1, 1)
    )
    loss.backward()
    return -float(loss.detach()), float(logp.grad)


@pytest.mark.parametrize(
    ("ratio", "advantage", "term", "flat"),
    [
        (1.3, 2.0, 1.28 * 2.0, True),
        (0.7, -2.0, 0.8 * -2.0, True),
        (1.5, -2.0, 1.5 * -2.0, False),
        (0.7, 2.0, 0.7 * 2.0, False),
    ],
)
def test_clipping(ratio, advantage, term, flat) -> None:
    value, gradient = one_token(ratio, advantage)
    assert value == pytest.approx(term, abs=1e-6)
    # The derivative of -w A by log w.
    assert gradient == pytest.approx(0.0 if flat else -ratio * advantage, abs=1e-6)


def test_sequence_ratios() -> None:
    logp = torch.tensor([[2.0, 0.5, 9.0]], dtype=torch.float64).log()
    mask = torch.tensor([[1, 1, 0]])
    old = torch.zeros(1, 3, dtype=torch.float64)
    assert float(importance_ratio(logp, old, mask, "seq_arith")) == pytest.approx(1.25, abs=1e-12)
    assert float(importance_ratio(logp, old, mask, "seq_geom")) == pytest.approx(1.0, abs=1e-12)
    grads = []
    for ratio in ("seq_arith", "seq_geom"):
        start = torch.full((1, 3), -0.7, dtype=torch.float64, requires_grad=True)
        importance_ratio(start, start.detach(), mask, ratio).sum().backward()
        grads.append(start.grad)
    torch.testing.assert_close(grads[0], grads[1], rtol=0, atol=1e-7)
    torch.testing.assert_close(grads[0], torch.tensor([[0.5, 0.5, 0.0]], dtype=torch.float64))


def test_gradient_is_that_of_the_formula() -> None:
    logits = torch.tensor([[0.3, -1.0, 0.5]], dtype=torch.float64, requires_grad=True)
    logp = torch.nn.functional.logsigmoid(logits)
    old = logp.detach() - torch.tensor([[0.1, -0.4, 0.5]], dtype=torch.float64)
    advantage = torch.tensor([[1.5, -0.5, 2.0]], dtype=torch.float64)
    loss, _ = clipped_loss(logp, old, advantage, torch.ones(1, 3))
    (got,) = torch.autograd.grad(loss, logits)
    # By hand: w = e^.1, e^-.4, e^.5; the second is below .8 with A < 0 and the third above 1.28
    # with A > 0, so only the first has a gradient, -w A / 3 times d log sigmoid = sigmoid(-x).
    first = -torch.exp(torch.tensor(0.1, dtype=torch.float64)) * 1.5 / 3
    expected = torch.zeros_like(logits)
    expected[0, 0] = first * torch.sigmoid(-logits[0, 0])
    torch.testing.assert_close(got, expected.detach(), rtol=1e-12, atol=1e-12)


def test_equal_to_the_definition_and_to_its_pieces() -> None:
    g = torch.Generator().manual_seed(0)
    logp, old = (-3 * torch.rand(6, 7, generator=g, dtype=torch.float64) for _ in range(2))
    old = logp + (old - logp) * 0.2
    lengths = torch.tensor([7, 1, 3, 5, 2, 7])
    mask = torch.arange(7) < lengths[:, None]
    tokens = torch.randn(6, 7, generator=g, dtype=torch.float64)
    parts = [
        [row[:n].tolist() for row, n in zip(x, lengths.tolist(), strict=True)]
        for x in (logp, old, tokens)
    ]
    whole, stats = clipped_loss(logp, old, tokens, mask)
    assert -float(whole) == pytest.approx(objective(*parts), abs=1e-12)
    assert 0 < stats["clipped_high"] < 1
    assert 0 < stats["clipped_low"] < 1
    split = sum(
        clipped_loss(logp[p], old[p], tokens[p], mask[p], normalizer=mask.sum())[0]
        for p in (slice(0, 2), slice(2, 6))
    )
    torch.testing.assert_close(split, whole)
    sequence, _ = clipped_loss(
        logp, old, tokens[:, 0], mask, ratio="seq_arith", aggregation="sequence"
    )
    expected = sequence_objective(parts[0], parts[1], tokens[:, 0].tolist())
    assert -float(sequence) == pytest.approx(expected, abs=1e-12)


def test_what_is_off_the_mask_reaches_neither_value_nor_gradient() -> None:
    for ratio in ("token", "seq_arith", "seq_geom"):
        logp = torch.tensor([[-1.0, torch.nan], [torch.inf, 3.0]], requires_grad=True)
        mask = torch.tensor([[1, 0], [0, 0]])
        loss, _ = clipped_loss(logp, torch.zeros(2, 2), torch.ones(2), mask, ratio=ratio)
        loss.backward()
        assert torch.isfinite(loss)
        assert (logp.grad[~mask.bool()] == 0).all()
        assert logp.grad[0, 0] != 0
        for wild in (torch.nan, torch.inf):
            logp = torch.tensor([[-1.0, -2.0], [-1.0, -2.0]], requires_grad=True)
            advantages = torch.where(mask.bool(), 1.0, wild)
            loss, _ = clipped_loss(logp, torch.full((2, 2), -1.0), advantages, mask, ratio=ratio)
            loss.backward()
            assert float(loss.detach()) == -1  # one live token, of ratio 1 and advantage 1
            assert torch.isfinite(logp.grad).all()


@pytest.mark.parametrize("ratio", ["token", "seq_arith", "seq_geom"])
@pytest.mark.parametrize("old", [-500.0, -torch.inf])
def test_a_ratio_beyond_float32_is_clipped_without_a_gradient(ratio, old) -> None:
    logp = torch.tensor([[-1.0], [-2.0]], requires_grad=True)
    before = torch.tensor([[old], [-2.0]])
    loss, _ = clipped_loss(logp, before, torch.tensor([1.0, 1.0]), torch.ones(2, 1), ratio=ratio)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(-(1.28 + 1) / 2)
    assert logp.grad.tolist() == [[0.0], [-0.5]]


@pytest.mark.parametrize("ratio", ["token", "seq_arith", "seq_geom"])
@pytest.mark.parametrize("aggregation", ["token", "sequence"])
def test_a_batch_without_contrast_has_loss_zero_and_a_graph(ratio, aggregation) -> None:
    logp = torch.full((4, 3), -0.5, requires_grad=True)
    advantages = gtpo_advantages(torch.ones(4), torch.full((4, 3), 0.3), torch.ones(4, 3), 4)
    for mask in (torch.ones(4, 3), torch.zeros(4, 3)):
        loss, _ = clipped_loss(
            logp, logp.detach(), advantages, mask, ratio=ratio, aggregation=aggregation
        )
        loss.backward()
        assert float(loss.detach()) == 0
        assert logp.grad is not None
        assert logp.grad.abs().sum() == 0


def test_soft_overlong_punishment() -> None:
    got = dapo_overlong_penalty(torch.tensor([3, 16, 17, 18, 20, 21]), 20, 4)
    assert got.tolist() == [0, 0, -0.25, -0.5, -1, -1]
    with pytest.raises(ValueError, match="cache is 0"):
        dapo_overlong_penalty(torch.tensor([1]), 20, 0)


def test_group_overlong_punishment() -> None:
    lengths = torch.tensor([9, 15, 30, 20])

    def call(*right: bool) -> list[float]:
        return group_overlong_penalty(lengths, torch.tensor(right), 4, 10).tolist()

    # Knee 10: lengths 9, 15, 30, 20 cost 0, .25, .5, .5 where their side is punished.
    assert call(True, True, True, True) == [0, -0.25, -0.5, -0.5]
    assert call(True, True, True, False) == [0, -0.25, -0.5, 0]
    assert call(False, False, False, True) == [0, 0, 0, 0]
    assert call(False, False, True, True) == [0, -0.25, 0, 0]
    with pytest.raises(ValueError, match="4 responses and group_size is 3"):
        group_overlong_penalty(lengths, torch.ones(4, dtype=torch.bool), 3, 10)


def test_bad_input_is_refused_by_name() -> None:
    x = torch.zeros(2, 3)
    with pytest.raises(ValueError, match="ratio is 'mean'"):
        clipped_loss(x, x, x, x, ratio="mean")
    with pytest.raises(ValueError, match="aggregation is 'mean'"):
        clipped_loss(x, x, x, x, aggregation="mean")
    with pytest.raises(ValueError, match="shapes"):
        clipped_loss(x, x[:, :2], x, x)
    with pytest.raises(ValueError, match="advantages has shape"):
        clipped_loss(x, x, x[:1], x)
    with pytest.raises(ValueError, match="eps is"):
        clipped_loss(x, x, x, x, eps=(1.5, 0.2))


def test_other_kinds_than_tensors_and_numbers_are_refused_by_name() -> None:
    x, right = torch.zeros(2, 3), torch.tensor([True, False])
    given = {"logp": x, "old_logp": x, "advantages": x, "mask": x}
    for name in given:
        for other in (x.tolist(), x.numpy()):
            with pytest.raises(TypeError, match=f"{name} is a .*; allowed: a torch.Tensor"):
                clipped_loss(**{**given, name: other})
    for bad, message in (
        ({"eps": 0.2}, "eps is 0.2; allowed: two numbers"),
        ({"normalizer": 0}, "normalizer is 0; allowed: a positive number"),
        ({"normalizer": -3.0}, "normalizer is -3.0"),
        ({"normalizer": "4"}, "normalizer is '4'"),
        ({"mask": x + 0.5}, "mask holds 0.5"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            clipped_loss(**{**given, **bad})
    for lengths, message in (([3], "lengths is a list"), (torch.tensor([3, -1]), "holds -1.0")):
        with pytest.raises((TypeError, ValueError), match=message):
            dapo_overlong_penalty(lengths, 20, 4)
        with pytest.raises((TypeError, ValueError), match=message):
            group_overlong_penalty(lengths, right, 2, 10)
    with pytest.raises(TypeError, match=r"cache is 4.5; allowed: a whole number"):
        dapo_overlong_penalty(torch.tensor([3]), 20, 4.5)
    with pytest.raises(TypeError, match="positive is a list"):
        group_overlong_penalty(torch.tensor([3, 4]), [True, False], 2, 10)
    with pytest.raises(ValueError, match=r"easy is 0.5; allowed: 0.5 < easy"):
        group_overlong_penalty(torch.tensor([3, 4]), right, 2, 10, easy=0.5)
