"""The tabular studies: what is exact in them, and what they are for."""

from __future__ import annotations

import math

import pytest
import torch

from rl_curriculum.gtpo import Method, TokenChain, TokenTrap, train_tabular

REPLICAS = 32


def solved(task, method: str, **more) -> tuple[float, float]:
    study = train_tabular(task, method, steps=300, replicas=REPLICAS, seed=0, **more)
    return float((study.final > 0.8).double().mean()), float(study.final.mean())


@pytest.mark.parametrize(
    "task", [TokenTrap(3, 0.6, 0.4), TokenTrap(3, 0.5, 0.5, noise=0.3), TokenChain(2, 2, 0.6, 0.9)]
)
def test_rewards_have_the_exact_mean(task) -> None:
    p = torch.tensor([task.start], dtype=torch.float64)
    batch = task.sample(p, 4000, 8, torch.Generator().manual_seed(0))
    mean, n = float(batch.rewards.mean()), batch.rewards.numel()
    # Responses to one prompt are alike: a standard error as if each prompt were one draw.
    assert mean == pytest.approx(float(task.success(p)), abs=5 * 0.5 / math.sqrt(n / 8))
    assert (batch.entropy[batch.mask] >= 0).all()


def test_shapes_of_chains() -> None:
    chain = TokenChain(segments=2, copies=1, p_filler=0.5, max_filler=3)
    p = torch.tensor([chain.start], dtype=torch.float64)
    batch = chain.sample(p, 500, 4, torch.Generator().manual_seed(0))
    lengths = batch.mask.sum(-1)
    # One to three tokens for the filler of a segment (the last says stop), and two more.
    assert lengths.min() == 6
    assert lengths.max() == 10
    alive = torch.arange(batch.mask.shape[-1]) < lengths[..., None]
    assert torch.equal(batch.mask, alive)
    # Fillers go on with probability 1/2: 1 + 1/2 + 1/4 tokens in the mean.
    assert float(lengths.double().mean()) == pytest.approx(2 * (1.75 + 2), abs=0.15)
    assert set(batch.state[batch.mask].tolist()) == set(range(6))


def test_steps_follow_the_gradient_of_success() -> None:
    """In groups of two the advantage is the difference of the rewards, which has no bias."""
    trap, lr = TokenTrap(2, 0.7, 0.4), 1e-2
    study = train_tabular(trap, "dapo", steps=1, replicas=400, seed=0, prompts=512, group=2, lr=lr)
    logit = torch.logit(torch.tensor(trap.start, dtype=torch.float64)).requires_grad_()
    (exact,) = torch.autograd.grad(trap.success(torch.sigmoid(logit)[None]).sum(), logit)
    # The sum over 3 tokens a response is divided by the number of tokens.
    gain = float((study.curve[1] - study.curve[0]).mean())
    assert gain == pytest.approx(lr * float(exact.square().sum()) / 3, rel=0.05)


def test_normalisation_by_polarity_does_not_learn_where_dapo_does() -> None:
    settings = {"steps": 120, "replicas": 24, "seed": 0, "optimizer": "adam", "lr": 0.1}
    final = {
        method: float(train_tabular(TokenChain(), method, **settings).final.mean())
        for method in ("dapo", "gtpo:0.1", "gtpo-polarity:0.1", "gtpo-polarity:0.5")
    }
    assert final["dapo"] >= 0.95
    assert final["gtpo:0.1"] >= 0.95
    assert final["gtpo-polarity:0.1"] <= 0.05
    assert final["gtpo-polarity:0.5"] <= 0.05


def test_entropy_keeps_the_uncertain_path_alive() -> None:
    corner = TokenTrap(3, 0.5, 0.3)
    assert solved(corner, "grpo-s:0.5")[0] >= 0.9
    assert solved(corner, "dapo")[0] <= 0.1
    even = TokenTrap(3, 0.5, 0.5)
    assert solved(even, "gtpo:0.5")[0] - solved(even, "dapo")[0] >= 0.2


def test_entropy_is_not_virtue() -> None:
    fork = TokenTrap(3, 0.5, 0.5, noise=0.3)
    assert solved(fork, "grpo-s:0.5")[1] <= 0.40
    assert solved(fork, "dapo")[1] >= 0.47


def test_same_seed_same_numbers() -> None:
    studies = [
        train_tabular(TokenTrap(), "grpo-s:0.5", steps=5, replicas=3, seed=s) for s in (1, 1, 2)
    ]
    assert torch.equal(studies[0].curve, studies[1].curve)
    assert not torch.equal(studies[0].curve, studies[2].curve)


def test_bad_input_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="method is 'gtpa'"):
        train_tabular(TokenTrap(), "gtpa", steps=1, replicas=1, seed=0)
    with pytest.raises(ValueError, match=r"number after the colon: a2 is 1.5"):
        train_tabular(TokenTrap(), "gtpo:1.5", steps=1, replicas=1, seed=0)
    with pytest.raises(ValueError, match="replicas is 0"):
        train_tabular(TokenTrap(), "dapo", steps=1, replicas=0, seed=0)
    with pytest.raises(TypeError, match="method is 5; allowed: a Method, or a name"):
        train_tabular(TokenTrap(), 5, steps=1, replicas=1, seed=0)
    for name in ("gtpo:", "dapo:0.5", "gspo:0.1"):
        with pytest.raises(ValueError, match=f"method is '{name}'; the number after the colon"):
            train_tabular(TokenTrap(), name, steps=1, replicas=1, seed=0)
    for bad, message in (
        ({"credit": "both"}, "credit is 'both'; allowed: response, token"),
        ({"ratio": "mean"}, "ratio is 'mean'"),
        ({"aggregation": "mean"}, "aggregation is 'mean'"),
        ({"normalization": "both"}, "normalization is 'both'"),
        ({"alpha": (0, 0)}, "alpha is"),
        ({"eps": 0.2}, "eps is 0.2"),
        ({"top_entropy": 0.0}, "top_entropy is 0.0"),
        ({"entropy_bonus": math.nan}, "entropy_bonus is nan"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            Method(**bad)
    for task, message in (
        (lambda: TokenTrap(0), "decisions is 0"),
        (lambda: TokenTrap(p_path=1.5), "p_path is 1.5; allowed: a probability"),
        (lambda: TokenTrap(noise=-0.1), "noise is -0.1"),
        (lambda: TokenChain(segments=0), "segments is 0"),
        (lambda: TokenChain(p_copy=math.nan), "p_copy is nan"),
    ):
        with pytest.raises(ValueError, match=message):
            task()
    with pytest.raises(ValueError, match="optimizer is 'lion'"):
        train_tabular(TokenTrap(), "dapo", steps=1, replicas=1, seed=0, optimizer="lion")
