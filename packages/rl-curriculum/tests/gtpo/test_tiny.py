"""The small transformer and its trainer: exactness, reproducibility, and the shortcut."""

from __future__ import annotations

import copy
import re

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from rl_curriculum.gtpo import (
    BuggyCarry,
    ConfidentShortcut,
    TinyRLTrainer,
    TinyTransformer,
    decode,
    encode,
    evaluate_tiny,
    imitate,
    named_method,
    token_entropy,
)

SHORT = ConfidentShortcut(0.5)


@pytest.fixture(scope="module")
def started() -> TinyTransformer:
    torch.set_num_threads(1)
    model = TinyTransformer(32, 1, 2, seed=1)
    imitate(model, SHORT, steps=120, batch=64, seed=1)
    return model


def test_texts_come_back() -> None:
    texts = ["12+34=", ";46#46.", "~.", "="]
    assert decode(encode(texts)) == texts
    with pytest.raises(ValueError, match="'x'"):
        encode(["1x"])
    assert encode([]).shape == (0, 0)
    assert decode(encode([])) == []
    with pytest.raises(TypeError, match="texts is '12'; allowed: a list"):
        encode("12")
    with pytest.raises(TypeError, match="tokens is a list"):
        decode([[1, 2]])
    for wrong in (torch.tensor([[99]]), torch.tensor([[-1]]), torch.tensor([1])):
        with pytest.raises(ValueError, match="tokens has shape"):
            decode(wrong)


def test_the_cache_changes_nothing(started) -> None:
    prompts = encode(SHORT.prompts(np.random.default_rng(0), 20))
    drawn = started.sample(prompts, 9, torch.Generator().manual_seed(0))
    logp, entropy = started.score(prompts, drawn.tokens)
    live = drawn.mask
    torch.testing.assert_close(logp[live].detach(), drawn.logp[live], rtol=0, atol=2e-5)
    torch.testing.assert_close(entropy[live].detach(), drawn.entropy[live], rtol=0, atol=2e-5)
    whole = started(torch.cat([prompts, drawn.tokens], 1))[:, prompts.shape[1] - 1 : -1]
    torch.testing.assert_close(token_entropy(whole)[live], drawn.entropy[live], rtol=0, atol=2e-5)


def test_attention_is_causal_and_equal_to_the_plain_formula() -> None:
    model = TinyTransformer(16, 1, 2, seed=0).double()
    tokens = encode(["1234=", "9876="])
    got = model(tokens)
    later = tokens.clone()
    later[:, 3:] = 5
    torch.testing.assert_close(model(later)[:, :3], got[:, :3])
    block = model.blocks[0]
    x = model.token(tokens) + model.position.weight[:5]
    q, k, v = block.attend(block.norm1(x)).chunk(3, -1)
    mixed = torch.zeros_like(x)
    for head in (slice(0, 8), slice(8, 16)):
        scores = q[..., head] @ k[..., head].transpose(1, 2) / 8**0.5
        scores = scores.masked_fill(~torch.ones(5, 5, dtype=torch.bool).tril(), -torch.inf)
        mixed[..., head] = scores.softmax(-1) @ v[..., head]
    x = x + block.project(mixed)
    x = x + block.down(F.gelu(block.up(block.norm2(x))))
    torch.testing.assert_close(model.head(model.norm(x))[..., 1:], got[..., 1:])


def test_samples_follow_the_policy(started) -> None:
    prompt = encode(["1230="]).expand(4000, -1)
    drawn = started.sample(prompt, 1, torch.Generator().manual_seed(0))
    p = started(prompt[:1])[0, -1].softmax(-1)
    frequency = torch.bincount(drawn.tokens[:, 0], minlength=len(p)) / 4000
    assert float((frequency - p).abs().max()) < 5 * 0.5 / 4000**0.5
    assert p[0] == 0  # padding is never drawn


def test_completions_stop_at_the_end(started) -> None:
    prompts = encode(SHORT.prompts(np.random.default_rng(1), 30))
    drawn = started.sample(prompts, 20, torch.Generator().manual_seed(0))
    for text, live in zip(decode(drawn.tokens), drawn.mask, strict=True):
        assert len(text) == int(live.sum())
        assert "." not in text[:-1]
    # The model has learned to end; nobody waits for the limit.
    assert drawn.tokens.shape[1] < 20
    with pytest.raises(ValueError, match="32 together"):
        started.sample(prompts, 30, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("task", [ConfidentShortcut(1.0, 0.0), BuggyCarry(0.0, 2)])
def test_faultless_demonstrations_are_right(task) -> None:
    rng = np.random.default_rng(0)
    prompts = task.prompts(rng, 300)
    demos = task.demos(rng, prompts)
    assert task.verify(prompts, demos) == [1.0] * 300
    assert max(map(len, demos)) <= task.max_new_tokens
    assert len({len(p) for p in prompts}) == 1
    wrong = [re.sub(r"#\d", "#", text) for text in demos]
    assert sum(task.verify(prompts, wrong)) == 0


def test_rates_of_the_demonstrations() -> None:
    rng = np.random.default_rng(0)
    n, error = 6000, 5 * 0.5 / 6000**0.5

    def rate(task) -> float:
        prompts = task.prompts(rng, n)
        return float(np.mean(task.verify(prompts, task.demos(rng, prompts))))

    assert rate(ConfidentShortcut(0.0)) == pytest.approx(0.5 + 0.5 / 10, abs=error)
    # Three steps without a slip, or ten slips that come round again, which three steps cannot.
    assert rate(ConfidentShortcut(1.0, 0.4)) == pytest.approx(0.6**3, abs=error)
    # No carry in 55 of 100 pairs of last digits.
    assert rate(BuggyCarry(1.0)) == pytest.approx(0.55, abs=error)


def test_without_weight_gtpo_is_dapo_to_the_last_bit(started) -> None:
    models = {}
    for method in ("dapo", "gtpo:0"):
        models[method] = copy.deepcopy(started)
        TinyRLTrainer(models[method], SHORT, method, seed=3).learn(5)
    pairs = zip(models["dapo"].parameters(), models["gtpo:0"].parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    pairs = zip(models["dapo"].parameters(), started.parameters(), strict=True)
    assert not all(torch.equal(a, b) for a, b in pairs)
    shaped = copy.deepcopy(started)
    TinyRLTrainer(shaped, SHORT, "gtpo:0.5", seed=3).learn(5)
    pairs = zip(models["dapo"].parameters(), shaped.parameters(), strict=True)
    assert not all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize(
    "method", ["grpo", "gspo", "grpo-s", "top-entropy", "entropy-bonus", "multiplicative"]
)
def test_every_method_takes_a_step_of_its_own(started, method) -> None:
    models = [copy.deepcopy(started) for _ in range(2)]
    TinyRLTrainer(models[0], SHORT, method, seed=3, epochs=2).learn(2)
    TinyRLTrainer(models[1], SHORT, "dapo", seed=3, epochs=2).learn(2)
    flat = [torch.nn.utils.parameters_to_vector(m.parameters()) for m in models]
    assert torch.isfinite(flat[0]).all()
    assert not torch.equal(flat[0], flat[1])


def test_baselines_by_their_formulas() -> None:
    g = torch.Generator().manual_seed(0)
    entropy, mask = torch.rand(8, 5, generator=g), torch.ones(8, 5, dtype=torch.bool)
    rewards = torch.tensor([1.0, 0, 0, 0, 1, 1, 0, 0])
    plain, _ = named_method("dapo").advantages(rewards, entropy, mask, 4)
    weighted, _ = named_method("multiplicative:0.3").advantages(rewards, entropy, mask, 4)
    torch.testing.assert_close(weighted, plain * (1 + 0.3 * (entropy / entropy.mean() - 1)))
    _, kept = named_method("top-entropy").advantages(rewards, entropy, mask, 4)
    assert int(kept.sum()) == 8  # a fifth of 40
    assert entropy[kept].min() > entropy[~kept].max()
    # Where nothing is uncertain, or nothing lives, all tokens are alike.
    for h, live in ((entropy * 0, mask), (entropy, ~mask)):
        for name in ("multiplicative:0.3", "top-entropy"):
            got, kept = named_method(name).advantages(rewards, h, live, 4)
            torch.testing.assert_close(got, plain.expand_as(got))
            assert torch.equal(kept, live)


def test_the_most_uncertain_fifth_of_many_tokens() -> None:
    """More than torch.quantile takes, and as many as it would keep of few."""
    g = torch.Generator().manual_seed(0)
    for n in (1, 2, 5, 6, 7, 33, 1000):
        entropy = torch.rand(1, n, generator=g)
        mask = torch.ones(1, n, dtype=torch.bool)
        _, kept = named_method("top-entropy").advantages(torch.ones(1), entropy, mask, 1)
        assert torch.equal(kept, entropy >= torch.quantile(entropy, 0.8))
    many = torch.arange(2**24 + 100, dtype=torch.float64)[None] / 2**24
    _, kept = named_method("top-entropy").advantages(
        torch.ones(1), many, torch.ones_like(many, dtype=torch.bool), 1
    )
    assert float(kept.double().mean()) == pytest.approx(0.2, abs=1e-6)


def test_a_batch_without_contrast_changes_nothing() -> None:
    model = TinyTransformer(16, 1, 2)
    before = copy.deepcopy(model.state_dict())
    row = TinyRLTrainer(model, SHORT, "gtpo", prompts=2, group=3).step()
    assert row["reward"] == 0  # an untrained policy gives no answers
    assert row["no_contrast"] == 1
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_learning_raises_the_reward(started) -> None:
    model = copy.deepcopy(started)
    TinyRLTrainer(model, SHORT, "gtpo:0.5", seed=0).learn(25)
    before = evaluate_tiny(started, SHORT, prompts=200)
    after = evaluate_tiny(model, SHORT, prompts=200)
    # Two standard errors of 200 prompts.
    assert after.success > before.success + 2 * 0.5 / 200**0.5
    assert after == evaluate_tiny(model, SHORT, prompts=200)


def test_bad_input_is_refused_by_name(started) -> None:
    with pytest.raises(ValueError, match="group is 1"):
        TinyRLTrainer(started, SHORT, group=1)
    with pytest.raises(ValueError, match="method is 'ppo'"):
        TinyRLTrainer(started, SHORT, "ppo")
    with pytest.raises(ValueError, match="slip is 2"):
        ConfidentShortcut(slip=2)
    with pytest.raises(ValueError, match="fillers is 9"):
        BuggyCarry(fillers=9)
    with pytest.raises(ValueError, match="allowed: a multiple of heads"):
        TinyTransformer(10, 1, 4)
    with pytest.raises(ValueError, match="steps is 0"):
        imitate(started, SHORT, steps=0)
    with pytest.raises(ValueError, match="prompts is 0"):
        evaluate_tiny(started, SHORT, prompts=0)


@pytest.mark.slow
def test_grpo_s_leaves_the_shortcut_behind_where_dapo_stays() -> None:
    # Known of six seeds: 5 of GRPO-S and 1 of DAPO leave the shortcut. Which ones do hangs on the
    # last bits of a processor, so the mean success is compared; the experiment counts 12 seeds.
    task = ConfidentShortcut(p_reason=0.3)
    start = TinyTransformer(seed=0)
    imitate(start, task)
    success = {}
    for method in ("dapo", "grpo-s:0.5"):
        found = []
        for seed in range(6):
            model = copy.deepcopy(start)
            TinyRLTrainer(model, task, method, seed=seed).learn(200)
            found.append(evaluate_tiny(model, task).success)
        success[method] = sum(found) / len(found)
    # Taking the shortcut always is right on 0.55 of the prompts.
    assert success["grpo-s:0.5"] > max(0.56, success["dapo"])
