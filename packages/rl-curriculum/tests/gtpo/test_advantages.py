"""Weights, shaped rewards and advantages: worked values, identities, and the definition."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_curriculum.gtpo import (
    grpo_advantages,
    grpo_s_advantages,
    gtpo_advantages,
    gtpo_shaped_rewards,
    gtpo_weights,
    shape_advantages,
)
from rl_curriculum.gtpo._reference import advantages, sequence_advantages, shaped_rewards

MODES = ("outcome", "joint", "pooled", "polarity")
EXACT = {"rtol": 0, "atol": 1e-6}


def rows(matrix: torch.Tensor, mask: torch.Tensor) -> list[list[float]]:
    return [row[live.bool()].tolist() for row, live in zip(matrix, mask, strict=True)]


def flat(nested) -> list[float]:
    return [value for row in nested for value in row]


def live(matrix: torch.Tensor, mask: torch.Tensor) -> list[float]:
    return flat(rows(matrix, mask))


def test_weights_of_the_worked_group(group) -> None:
    rewards, entropy, mask = group
    s_pos, s_neg = gtpo_weights(entropy, mask, rewards > 0.5, 4)
    third, fifth = 1 / 3, 1 / 5
    right = [4 * third, 0.5, 1, 2 * third, 1.5]  # .6/.9*2, .2/.8*2, alone, .3/.9*2, .6/.8*2
    wrong = [2 * third, 8 * fifth, 1, 4 * third, 2 * fifth]  # (1/.5)/(1/.5+1/.25)*2 = 2/6*2 ...
    assert live(s_pos[:2], mask[:2]) == pytest.approx(right, abs=1e-6)
    assert live(s_neg[2:], mask[2:]) == pytest.approx(wrong, abs=1e-6)
    assert s_pos[2:].abs().sum() == s_neg[:2].abs().sum() == 0
    assert s_pos[~mask.bool()].abs().sum() == 0


def test_shaped_rewards_of_the_worked_group(group) -> None:
    rewards, entropy, mask = group
    shaped = gtpo_shaped_rewards(rewards > 0.5, entropy, mask, 4)
    expected = [1.033333, 0.95, 1, 0.966667, 1.05, -0.966667, -1.06, -1, -1.033333, -0.94]
    assert live(shaped, mask) == pytest.approx(expected, abs=1e-6)


WORKED = {
    ("outcome", (0.5, 0.5)): [
        *(1.166667, 0.75, 1, 0.833333, 1.25),
        *(-0.833333, -1.3, -1, -1.166667, -0.7),
    ],
    ("outcome", (1.0, 0.0)): [1] * 5 + [-1] * 5,
    ("joint", (0.9, 0.1)): [
        *(1.065129, 0.898703, 0.998559, 0.931988, 1.098415),
        *(-0.931579, -1.117895, -0.998121, -1.064662, -0.878346),
    ],
    **{
        ("polarity", alpha): [
            *(0.877058, -1.315587, 0, -0.877058, 1.315587),
            *(0.767869, -1.382164, 0, -0.767869, 1.382164),
        ]
        for alpha in ((0.9, 0.1), (0.5, 0.5))
    },
}


@pytest.mark.parametrize(("normalization", "alpha"), WORKED)
def test_advantages_of_the_worked_group(group, normalization, alpha) -> None:
    rewards, entropy, mask = group
    got = gtpo_advantages(
        rewards, entropy, mask, 4, alpha=alpha, normalization=normalization, std_eps=0.0
    )
    assert live(got, mask) == pytest.approx(WORKED[normalization, alpha], abs=1e-6)
    assert got[~mask.bool()].abs().sum() == 0


def test_the_usual_constant_in_the_deviation_moves_little(group) -> None:
    rewards, entropy, mask = group
    got = gtpo_advantages(rewards, entropy, mask, 4, alpha=(0.5, 0.5))
    # The deviation of the rewards is 1/2, so the factor is 1 / (1 + 2e-6).
    expected = [v / (1 + 2e-6) for v in (7 / 6, 0.75, 1, 5 / 6, 1.25)]
    assert live(got[:2], mask[:2]) == pytest.approx(expected, abs=1e-9)


def test_conservation_at_every_position() -> None:
    for seed in range(200):
        g = torch.Generator().manual_seed(seed)
        entropy = torch.rand(7, 11, generator=g, dtype=torch.float64) * 4 + 1e-3
        mask = torch.arange(11) < torch.randint(1, 12, (7,), generator=g)[:, None]
        positive = torch.rand(7, generator=g) < 0.5
        shaped = gtpo_shaped_rewards(positive, entropy, mask, 7, alpha=(0.7, 0.6))
        for side, sign in ((positive, 1.3), (~positive, -1.3)):
            alive = mask[side].sum(0).to(torch.float64)
            torch.testing.assert_close(shaped[side].sum(0), sign * alive, **EXACT)
        rewards = positive.double()
        if 0 < positive.sum() < 7:
            got = gtpo_advantages(rewards, entropy, mask, 7, alpha=(0.4, 0.6))
            outcome = grpo_advantages(rewards, 7)
            for side in (positive, ~positive):
                alive = mask[side].sum(0)
                torch.testing.assert_close(got[side].sum(0), outcome[side][0] * alive, **EXACT)


def test_equal_entropies_and_single_right_answers_are_not_shaped(group) -> None:
    rewards, entropy, mask = group
    entropy[:, 0] = 0.3  # the common prompt makes the first token's entropy equal
    got = gtpo_advantages(rewards, entropy, mask, 4, alpha=(0.5, 0.5), std_eps=0.0)
    assert got[:, 0].tolist() == pytest.approx([1, 1, -1, -1], abs=1e-12)
    one = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64)
    got = gtpo_advantages(one, entropy, mask, 4, alpha=(0.5, 0.5), std_eps=0.0)
    assert got[0].tolist() == pytest.approx([math.sqrt(3)] * 3, abs=1e-12)


def test_joint_removes_the_length_bias_that_outcome_keeps() -> None:
    rewards = torch.tensor([1.0, 0.0], dtype=torch.float64)
    entropy = torch.full((2, 3), 0.4, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    joint, outcome = (
        gtpo_advantages(
            rewards, entropy, mask, 2, alpha=(1.0, 0.0), normalization=mode, std_eps=0.0
        )
        for mode in ("joint", "outcome")
    )
    assert live(joint, mask) == pytest.approx([0.577350] * 3 + [-1.732051], abs=1e-6)
    assert float(joint.sum()) == pytest.approx(0, abs=1e-12)
    assert live(outcome, mask) == pytest.approx([1, 1, 1, -1], abs=1e-12)


def test_grpo_s_of_the_worked_group() -> None:
    rewards = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64)
    # Two tokens each, with the given mean; a third one off the mask.
    mean = torch.tensor([0.4, 0.2, 0.1, 0.5], dtype=torch.float64)
    entropy = torch.stack([mean * 0.5, mean * 1.5, mean + 9], 1)
    mask = torch.tensor([[1, 1, 0]]).expand(4, 3)
    shaped = gtpo_shaped_rewards(rewards > 0.5, mean[:, None], torch.ones(4, 1), 4)
    expected = [1, -0.988235, -1.076471, -0.935294]
    assert shaped[:, 0].tolist() == pytest.approx(expected, abs=1e-6)
    got = grpo_s_advantages(rewards, entropy, mask, 4, std_eps=0.0)
    assert got.tolist() == pytest.approx([1.732051, -0.546487, -0.748890, -0.425045], abs=1e-6)
    plain = grpo_advantages(rewards, 4, std_eps=0.0)
    assert plain.tolist() == pytest.approx([1.732051] + [-0.577350] * 3, abs=1e-6)
    outcome = grpo_s_advantages(rewards, entropy, mask, 4, normalization="outcome", std_eps=0.0)
    assert outcome.tolist() == pytest.approx((plain * shaped.abs()[:, 0]).tolist(), abs=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_equal_to_the_definition_on_random_groups(random_groups, mode) -> None:
    for seed in range(20):
        rewards, entropy, mask = random_groups(3, 5, 8, seed)
        got = gtpo_advantages(
            rewards, entropy, mask, 5, alpha=(0.6, 0.4), normalization=mode, std_eps=0.0
        )
        shaped = gtpo_shaped_rewards(rewards > 0.5, entropy, mask, 5, alpha=(0.6, 0.4))
        sequence = grpo_s_advantages(
            rewards, entropy, mask, 5, beta=(0.6, 0.4), normalization=mode, std_eps=0.0
        )
        for g in range(3):
            part = slice(5 * g, 5 * g + 5)
            r, alive = rewards[part].tolist(), mask[part]
            h = rows(entropy[part], alive)
            expected = flat(shaped_rewards(r, h, (0.6, 0.4)))
            assert live(shaped[part], alive) == pytest.approx(expected, abs=1e-9)
            if len(set(r)) == 1:
                assert got[part].abs().sum() == sequence[part].abs().sum() == 0
                continue
            means = [sum(row) / len(row) for row in h]
            if mode != "polarity" or all(r.count(side) > 1 for side in (0.0, 1.0)):
                expected = sequence_advantages(r, means, (0.6, 0.4), mode)
                assert sequence[part].tolist() == pytest.approx(expected, abs=1e-9)
            if mode == "polarity" and 1.0 in (r.count(0.0), r.count(1.0)):
                continue  # a side of one response has deviation 0: the definition divides by it
            expected = flat(advantages(r, h, (0.6, 0.4), mode))
            assert live(got[part], alive) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("mode", MODES)
def test_order_padding_and_company_do_not_matter(random_groups, mode) -> None:
    rewards, entropy, mask = random_groups(2, 6, 9, seed=3)
    assert len(set(rewards[:6].tolist())) == len(set(rewards[6:].tolist())) == 2

    def call(r, h, m, size=6, **more):
        return gtpo_advantages(r, h, m, size, alpha=(0.5, 0.5), normalization=mode, **more)

    whole = call(rewards, entropy, mask)
    torch.testing.assert_close(call(rewards[:6], entropy[:6], mask[:6]), whole[:6])
    torch.testing.assert_close(call(rewards[6:], entropy[6:], mask[6:]), whole[6:])
    order = torch.randperm(6, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        call(rewards[:6][order], entropy[:6][order], mask[:6][order]), whole[:6][order]
    )
    shuffled = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    ids = torch.tensor([40] * 6 + [7] * 6)[shuffled]
    mixed = call(rewards[shuffled], entropy[shuffled], mask[shuffled], None, group_ids=ids)
    torch.testing.assert_close(mixed, whole[shuffled])
    padded = torch.cat([entropy, torch.zeros(12, 4, dtype=torch.float64)], 1)
    wide = call(rewards, padded, torch.cat([mask, torch.zeros(12, 4, dtype=torch.bool)], 1))
    torch.testing.assert_close(wide[:, :9], whole)
    assert wide[:, 9:].abs().sum() == 0
    for junk in (0.0, 1e9, torch.nan, -5.0):
        dirty = torch.where(mask, entropy, junk)
        torch.testing.assert_close(call(rewards, dirty, mask), whole, rtol=0, atol=0)


def test_no_gradient_reaches_the_entropies(group) -> None:
    rewards, entropy, mask = group
    logits = torch.zeros(4, 3, dtype=torch.float64, requires_grad=True)
    entropy.requires_grad_()
    got = gtpo_advantages(rewards, entropy, mask, 4, alpha=(0.5, 0.5))
    (got * logits.log_softmax(1)).sum().backward()
    assert entropy.grad is None
    assert logits.grad.abs().sum() > 0


@pytest.mark.parametrize("mode", MODES)
def test_groups_without_contrast_have_no_credit(mode) -> None:
    g = torch.Generator().manual_seed(0)
    entropy, mask = torch.rand(8, 5, generator=g), torch.ones(8, 5)
    for rewards in (torch.zeros(8), torch.ones(8), torch.tensor([0.1] * 4 + [0.7] * 4)):
        for got in (
            gtpo_advantages(rewards, entropy, mask, 4, normalization=mode),
            grpo_s_advantages(rewards, entropy, mask, 4, normalization=mode)[:, None],
        ):
            assert got.tolist() == torch.zeros_like(got).tolist()


def test_unscored_responses_leave_the_statistics(group) -> None:
    rewards, entropy, mask = group
    whole = gtpo_advantages(rewards, entropy, mask, 4, alpha=(0.5, 0.5))
    more = torch.cat([rewards, torch.tensor([torch.nan], dtype=torch.float64)])
    wider = torch.cat([entropy, torch.full((1, 3), 0.01, dtype=torch.float64)])
    alive = torch.cat([mask, torch.ones(1, 3, dtype=mask.dtype)])
    for mode in MODES:
        expected = gtpo_advantages(rewards, entropy, mask, 4, alpha=(0.5, 0.5), normalization=mode)
        got = gtpo_advantages(more, wider, alive, 5, alpha=(0.5, 0.5), normalization=mode)
        torch.testing.assert_close(got[:4], expected)
        assert got[4].tolist() == [0, 0, 0]
    assert whole.abs().sum() > 0


def test_sides_of_real_rewards_are_split_at_the_mean_of_the_group() -> None:
    rewards = torch.tensor([0.9, 0.8, 0.1, 0.6, -1.0, 1.0, 1.0, -1.0])
    entropy = torch.rand(8, 4, generator=torch.Generator().manual_seed(0))
    got = gtpo_advantages(rewards, entropy, torch.ones(8, 4), 4, alpha=(0.5, 0.5))
    assert (got > 0).tolist() == [[side] * 4 for side in (1, 1, 0, 0, 0, 1, 1, 0)]
    s_pos = gtpo_weights(entropy[:4], torch.ones(4, 4), torch.tensor([True, True, False, True]), 4)[
        0
    ]
    got = gtpo_advantages(
        rewards[:4], entropy[:4], torch.ones(4, 4), 4, alpha=(0.0, 1.0), threshold=0.5
    )
    outcome = grpo_advantages(rewards[:4], 4)
    torch.testing.assert_close(got[3], outcome[3] * s_pos[3])


def test_outcome_keeps_sign_and_polarity_forgets_it(random_groups) -> None:
    rewards, entropy, mask = random_groups(40, 8, 12, seed=1)
    plain = grpo_advantages(rewards, 8)[:, None].expand_as(entropy)
    got = {
        mode: gtpo_advantages(rewards, entropy, mask, 8, alpha=(0.5, 0.5), normalization=mode)
        for mode in MODES
    }

    def correlation(mode: str) -> float:
        return float(torch.corrcoef(torch.stack([got[mode][mask], plain[mask]]))[0, 1])

    assert ((got["outcome"] * plain)[mask] >= 0).all()
    # Each side of a group has mean 0: nothing of the outcome is left.
    assert abs(correlation("polarity")) < 1e-6
    assert min(correlation(m) for m in ("outcome", "joint", "pooled")) > 0.5
    other = gtpo_advantages(
        rewards, entropy, mask, 8, alpha=(0.9, 0.1), normalization="polarity", std_eps=0.0
    )
    same = gtpo_advantages(
        rewards, entropy, mask, 8, alpha=(0.2, 0.8), normalization="polarity", std_eps=0.0
    )
    several = torch.tensor(
        [rewards[8 * (i // 8) : 8 * (i // 8) + 8].eq(rewards[i]).sum() > 1 for i in range(320)]
    )
    torch.testing.assert_close(other[several], same[several], **EXACT)


def test_clips() -> None:
    entropy, mask = torch.tensor([[1e-9], [0.4], [0.5], [0.6]]), torch.ones(4, 1)
    wrong = torch.zeros(4, dtype=torch.bool)
    # 1/H of a certain token takes all the blame: its weight is the number of wrong responses.
    assert float(gtpo_weights(entropy, mask, wrong, 4)[1][0]) == pytest.approx(4, rel=1e-2)
    assert gtpo_weights(entropy, mask, wrong, 4, weight_clip=2.0)[1].max() == 2
    flat_weights = gtpo_weights(entropy, mask, wrong, 4, entropy_clip=(0.2, 0.28))[1]
    # All but the first are clipped to .28: 1/.2 against three of 1/.28.
    assert float(flat_weights[0]) == pytest.approx(4 * 5 / (5 + 3 / 0.28), abs=1e-6)


@given(
    st.lists(st.booleans(), min_size=2, max_size=6),
    st.integers(1, 5),
    st.integers(0, 10_000),
)
@settings(max_examples=60, deadline=None)
def test_weights_have_mean_one_on_each_side_at_each_position(sides, length, seed) -> None:
    g = torch.Generator().manual_seed(seed)
    positive = torch.tensor(sides)
    entropy = torch.rand(len(sides), length, generator=g, dtype=torch.float64) * 12
    mask = torch.rand(len(sides), length, generator=g) < 0.7
    s_pos, s_neg = gtpo_weights(entropy, mask, positive, len(sides))
    for weights, side in ((s_pos, positive), (s_neg, ~positive)):
        count = (mask & side[:, None]).sum(0).to(torch.float64)
        torch.testing.assert_close(weights.sum(0), count, rtol=1e-9, atol=1e-9)


def test_bad_input_is_refused_by_name(group) -> None:
    rewards, entropy, mask = group
    with pytest.raises(ValueError, match=r"4 responses and group_size is 3"):
        gtpo_advantages(rewards, entropy, mask, 3)
    with pytest.raises(ValueError, match=r"entropy has shape \(4, 3\) .* mask has \(4, 2\)"):
        gtpo_advantages(rewards, entropy, mask[:, :2], 4)
    for value in (torch.nan, -0.2, torch.inf):
        bad = entropy.clone()
        bad[2, 1] = value
        with pytest.raises(ValueError, match="row 2, token 1"):
            gtpo_advantages(rewards, bad, mask, 4)
    with pytest.raises(ValueError, match="exactly one of group_size and group_ids"):
        grpo_advantages(rewards)
    with pytest.raises(ValueError, match="infinity"):
        grpo_advantages(torch.tensor([1.0, torch.inf]), 2)
    with pytest.raises(ValueError, match="group_ids has shape"):
        grpo_advantages(rewards, group_ids=torch.zeros(3, dtype=torch.long))
    with pytest.raises(ValueError, match="rewards has shape"):
        grpo_advantages(rewards.long(), 4)
    with pytest.raises(ValueError, match="normalization is 'both'"):
        gtpo_advantages(rewards, entropy, mask, 4, normalization="both")
    with pytest.raises(ValueError, match="two non-negative numbers"):
        gtpo_advantages(rewards, entropy, mask, 4, alpha=(1.1, -0.1))
    with pytest.raises(ValueError, match="entropy_clip"):
        gtpo_advantages(rewards, entropy, mask, 4, entropy_clip=(0.0, None))
    with pytest.raises(ValueError, match="weight_clip"):
        gtpo_advantages(rewards, entropy, mask, 4, weight_clip=0.0)
    with pytest.raises(ValueError, match="advantages has shape"):
        shape_advantages(rewards[:3], entropy, mask, 4)
    with pytest.raises(ValueError, match="positive has shape"):
        gtpo_weights(entropy, mask, rewards, 4)
    with pytest.raises(ValueError, match="there are 2 rewards; allowed: 4"):
        gtpo_advantages(rewards[:2], entropy, mask, 2)
    with pytest.raises(ValueError, match=r"mask has \(3,\)"):
        shape_advantages(rewards, entropy, torch.ones(3), 4)
    for value in (0.5, -torch.inf, torch.nan, 2):
        with pytest.raises(ValueError, match=f"mask holds {value}"):
            gtpo_advantages(rewards, entropy, mask * value, 4)
    with pytest.raises(ValueError, match="advantages holds an infinity"):
        shape_advantages(rewards * torch.inf, entropy, mask, 4)
    with pytest.warns(UserWarning, match="alpha sums to 1.5"):
        gtpo_advantages(rewards, entropy, mask, 4, alpha=(1.0, 0.5))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_does_not_lose_the_blame_of_certain_tokens(dtype) -> None:
    size = 600
    entropy, mask = torch.full((size, 1), 1e-6, dtype=dtype), torch.ones(size, 1)
    right = torch.arange(size) == 0
    weights = gtpo_weights(entropy, mask, right, size)
    # All are alike, so every weight is 1; the sum of 1/H is beyond float16.
    assert (weights[0] + weights[1]).tolist() == [[1.0]] * size
    rewards = 256.0 * (torch.arange(size) % 2).to(dtype)
    assert grpo_advantages(rewards, size, std_eps=0.0).tolist() == [-1.0, 1.0] * (size // 2)


def test_other_kinds_than_tensors_and_numbers_are_refused_by_name(group) -> None:
    rewards, entropy, mask = group
    right = rewards > 0
    tensors = {"rewards": rewards, "entropy": entropy, "mask": mask}
    for name, value in tensors.items():
        for other in (value.tolist(), value.numpy(), None):
            for function in (gtpo_advantages, grpo_s_advantages):
                with pytest.raises(TypeError, match=f"{name} is a .*; allowed: a torch.Tensor"):
                    function(**{**tensors, name: other}, group_size=4)
    with pytest.raises(TypeError, match="positive is a list"):
        gtpo_weights(entropy, mask, right.tolist(), 4)
    with pytest.raises(TypeError, match="advantages is a list"):
        shape_advantages(rewards.tolist(), entropy, mask, 4)
    with pytest.raises(TypeError, match="group_ids is a list"):
        grpo_advantages(rewards, group_ids=[0, 0, 1, 1])
    for bad, message in (
        ({"group_size": 4.0}, "group_size is 4.0; allowed: a whole number"),
        ({"group_size": True}, "group_size is True; allowed: a whole number"),
        ({"group_size": 0}, "group_size is 0; allowed: at least 1"),
        ({"alpha": 0.5}, "alpha is 0.5; allowed: two numbers"),
        ({"alpha": (0.5, 0.4, 0.1)}, "alpha is .*; allowed: two numbers"),
        ({"alpha": ("0.5", "0.5")}, "alpha is .*; allowed: two numbers"),
        ({"entropy_clip": 0.1}, "entropy_clip is 0.1; allowed: two numbers"),
        ({"entropy_clip": (1e-40, None)}, "entropy_clip is .*; allowed: 1e-30 <= low"),
        ({"weight_clip": "4"}, "weight_clip is '4'; allowed: a number"),
        ({"weight_clip": -1}, "weight_clip is -1"),
        ({"threshold": math.nan}, "threshold is nan; allowed: finite"),
        ({"threshold": "0"}, "threshold is '0'; allowed: a number"),
        ({"std_eps": -1e-6}, "std_eps is -1e-06; allowed: finite and at least 0"),
        ({"std_eps": math.nan}, "std_eps is nan"),
        ({"ddof": -1}, "ddof is -1; allowed: at least 0"),
        ({"ddof": 0.5}, "ddof is 0.5; allowed: a whole number"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            gtpo_advantages(**tensors, **{"group_size": 4, **bad})
    with pytest.raises(ValueError, match=r"beta is \(-0.1, 1\)"):
        grpo_s_advantages(rewards, entropy, mask, 4, beta=(-0.1, 1))


def test_rewards_beyond_the_squares_of_their_type_are_refused() -> None:
    for size, std_eps in ((1e30, 1e-6), (1e-30, 0.0)):
        rewards = torch.tensor([size, 0.0, 0.0, size])
        with pytest.raises(ValueError, match="squares are neither infinite nor 0"):
            grpo_advantages(rewards, 4, std_eps=std_eps)
        wide = grpo_advantages(rewards.double(), 4, std_eps=std_eps)
        assert wide.tolist() == pytest.approx([1, -1, -1, 1], rel=1e-6)
    # Where a group's rewards are equal there is nothing to divide by.
    assert grpo_advantages(torch.full((4,), 1e30), 4).tolist() == [0] * 4


def test_entropies_beyond_sums_are_refused() -> None:
    mask = torch.ones(4, 1)
    with pytest.raises(ValueError, match=r"entropy is .* at row 0, token 0; allowed: between 0"):
        gtpo_weights(torch.full((4, 1), 3e38), mask, mask[:, 0] > 0, 4)
    for entropy in (torch.full((4, 1), 1e30), torch.zeros(4, 1)):
        for right in (True, False):
            side = torch.full((4,), right)
            weights = gtpo_weights(entropy, mask, side, 4, entropy_clip=(1e-30, None))
            assert (weights[0] + weights[1]).tolist() == [[1.0]] * 4
