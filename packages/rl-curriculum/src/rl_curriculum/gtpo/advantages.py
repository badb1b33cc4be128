r"""Credit for the tokens of a group of responses, from one outcome reward each.

With $d_t$ right and $h_t$ wrong responses of a group still alive at position $t$ and $H$ the
entropy of the sampling policy, the weights are (Eq. 3 and 5)

$$ s_{i,t} = \frac{H_{i,t}}{\sum_k H_{k,t}} d_t \;\text{(right)}, \qquad
   s_{j,t} = \frac{1/H_{j,t}}{\sum_k 1/H_{k,t}} h_t \;\text{(wrong)}, $$

with sums over the live responses of the same side. Their mean at a position is 1: credit moves
between responses at a position, never between positions. GRPO-S (Eq. 8) is the same on one number
a response, its mean entropy.
"""

from __future__ import annotations

import math
import warnings
from typing import Literal, get_args

import torch
from torch import Tensor

Normalization = Literal["outcome", "joint", "pooled", "polarity"]


def grpo_advantages(
    rewards: Tensor,
    group_size: int | None = None,
    *,
    group_ids: Tensor | None = None,
    std_eps: float = 1e-6,
    ddof: int = 0,
) -> Tensor:
    r"""Advantages of responses: $(r_i - \text{mean}) / (\text{std} + \epsilon)$ in each group.

    Parameters
    ----------
    rewards
        (B,) floats. A response whose reward is NaN has advantage 0 and is left out of the
        statistics.
    group_size, group_ids
        Exactly one of them: the responses of a prompt stand together in blocks of `group_size`, or
        `group_ids` (B,) of whole numbers says which belong together.
    std_eps, ddof
        Added to the standard deviation, which is the population's (`ddof=0`) or the sample's
        (`ddof=1`; TRL has `ddof=1, std_eps=1e-4`).

    Returns
    -------
    (B,) floats; 0 throughout a group whose rewards are all equal.

    Raises
    ------
    ValueError
        If B is no multiple of `group_size`, or shapes do not fit.

    Notes
    -----
    Source: GRPO; the response-level half of Eq. 6.

    Examples
    --------
    >>> grpo_advantages(torch.tensor([1.0, 1.0, 0.0, 0.0]), 4, std_eps=0.0)
    tensor([ 1.,  1., -1., -1.])
    """
    if rewards.ndim != 1 or not rewards.is_floating_point():
        raise ValueError(
            f"rewards has shape {tuple(rewards.shape)} and type {rewards.dtype}; "
            "allowed: floats of shape (B,)"
        )
    if torch.isinf(rewards).any():
        raise ValueError("rewards holds an infinity; allowed: finite numbers, or NaN for none")
    index = _group_index(len(rewards), group_size, group_ids, rewards.device)
    valid = ~rewards.isnan()
    known = torch.where(valid, rewards, 0)
    mean, std, count = _moments(known[:, None], valid[:, None], index, ddof)
    result = (known[:, None] - mean) / (std + std_eps)
    varies = _varies(rewards, valid, index) & (count[:, 0] > ddof)
    return torch.where(valid & varies, result[:, 0], 0)


def gtpo_weights(
    entropy: Tensor,
    mask: Tensor,
    positive: Tensor,
    group_size: int | None = None,
    *,
    group_ids: Tensor | None = None,
    entropy_clip: tuple[float, float | None] = (1e-4, None),
    weight_clip: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Weights of the tokens of right and of wrong responses.

    Parameters
    ----------
    entropy
        (B, T) entropies in nats of the sampling policy. No gradient reaches them.
    mask
        (B, T); true, or 1, on tokens that the policy chose.
    positive
        (B,) booleans: the response is right.
    group_size, group_ids
        As in `grpo_advantages`.
    entropy_clip
        Entropies are clipped to these bounds first. The lower one is positive; it takes the place
        of the small constants that the paper adds to denominators (Remark 2.1).
    weight_clip
        The largest weight, or None. Clipping gives up the mean of 1.

    Returns
    -------
    (B, T) weights of the right responses, 0 elsewhere, and the same of the wrong ones.

    Raises
    ------
    ValueError
        If shapes differ, a live entropy is negative or not finite, or a bound is not allowed.

    Notes
    -----
    Source: Eq. 3 and 5, Remarks 2.1 and 2.5. At bounds of 0.2 and 0.28, which one
    re-implementation uses and which are DAPO's bounds for ratios, all weights are nearly equal.

    Examples
    --------
    >>> entropy = torch.tensor([[0.6, 0.2], [0.3, 0.6]])
    >>> gtpo_weights(entropy, torch.ones(2, 2), torch.tensor([True, True]), 2)[0]
    tensor([[1.3333, 0.5000],
            [0.6667, 1.5000]])
    """
    low, high = entropy_clip
    if not (low > 0 and math.isfinite(low)) or (high is not None and not high > low):
        raise ValueError(f"entropy_clip is {entropy_clip!r}; allowed: 0 < low < high, or high None")
    if weight_clip is not None and not weight_clip > 0:
        raise ValueError(f"weight_clip is {weight_clip!r}; allowed: a positive number or None")
    entropy, live = _checked(entropy, mask)
    if positive.shape != entropy.shape[:1] or positive.dtype != torch.bool:
        raise ValueError(
            f"positive has shape {tuple(positive.shape)} and type {positive.dtype}; "
            f"allowed: booleans of shape ({len(entropy)},)"
        )
    index = _group_index(len(entropy), group_size, group_ids, entropy.device)
    clipped = entropy.clamp(low, high)
    sides = []
    for side, score in ((positive, clipped), (~positive, clipped.reciprocal())):
        here = live & side[:, None]
        score = torch.where(here, score, 0)
        total, count = _group_sum(score, index), _group_sum(here.to(score.dtype), index)
        weight = torch.where(here, score / total * count, 0)
        sides.append(weight if weight_clip is None else weight.clamp(max=weight_clip))
    return sides[0], sides[1]


def gtpo_shaped_rewards(
    positive: Tensor,
    entropy: Tensor,
    mask: Tensor,
    group_size: int | None = None,
    *,
    group_ids: Tensor | None = None,
    alpha: tuple[float, float] = (0.9, 0.1),
    entropy_clip: tuple[float, float | None] = (1e-4, None),
    weight_clip: float | None = None,
) -> Tensor:
    """Shaped rewards of tokens, $a_1 + a_2 s$ where right and $-(a_1 + a_2 s)$ where wrong.

    Parameters are those of `gtpo_weights`; `alpha` is $(a_1, a_2)$. Returns (B, T), 0 off the mask.

    Raises
    ------
    ValueError
        As `gtpo_weights`, or if `alpha` is negative.

    Notes
    -----
    Source: Eq. 3 and 5. With $a_1 + a_2 = 1$ the sum over the right responses at every position is
    their number, as with a reward of 1 each (Prop. 2.2).

    Examples
    --------
    >>> entropy = torch.tensor([[0.6, 0.2], [0.3, 0.6]])
    >>> gtpo_shaped_rewards(torch.tensor([True, True]), entropy, torch.ones(2, 2), 2)
    tensor([[1.0333, 0.9500],
            [0.9667, 1.0500]])
    """
    a1, a2 = _checked_alpha(alpha)
    s_pos, s_neg = gtpo_weights(
        entropy,
        mask,
        positive,
        group_size,
        group_ids=group_ids,
        entropy_clip=entropy_clip,
        weight_clip=weight_clip,
    )
    value = a1 + a2 * (s_pos + s_neg)
    return torch.where(mask.bool(), torch.where(positive[:, None], value, -value), 0)


def shape_advantages(
    advantages: Tensor,
    entropy: Tensor,
    mask: Tensor,
    group_size: int | None = None,
    *,
    group_ids: Tensor | None = None,
    positive: Tensor | None = None,
    alpha: tuple[float, float] = (0.9, 0.1),
    normalization: Normalization = "outcome",
    std_eps: float = 1e-6,
    entropy_clip: tuple[float, float | None] = (1e-4, None),
    weight_clip: float | None = None,
) -> Tensor:
    r"""Spread advantages of responses over their tokens.

    Parameters
    ----------
    advantages
        (B,) advantages of the responses, whatever made them; NaN means that there is no reward.
    entropy, mask, group_size, group_ids, entropy_clip, weight_clip
        As in `gtpo_weights`.
    positive
        (B,) booleans, the side that a response is on; by default a positive advantage.
    alpha
        $(a_1, a_2)$. A sum other than 1 changes the total credit, and a warning says so.
    normalization
        `"outcome"`: $A_{i,t} = A_i (a_1 + a_2 s_{i,t})$. Keeps the sign and the size of the outcome
        advantage; at $a_2 = 0$ it is DAPO's. The other three take only the side from `advantages`
        and standardise the shaped rewards over the tokens of a group:
        `"joint"` each side with zeros on the other one, `"pooled"` both sides together,
        `"polarity"` each side alone. The last one loses the outcome, half of each side's tokens
        getting the wrong sign, and does not learn; it is here to show that.
    std_eps
        Added to the standard deviations of the last three.

    Returns
    -------
    (B, T) advantages, 0 off the mask and throughout groups without contrast.

    Raises
    ------
    ValueError
        On shapes that do not fit and values that are not allowed.

    Notes
    -----
    Source: Eq. 6, which leaves open over what mean and deviation are taken; `"outcome"` is the
    shaped reward of Eq. 3 and 5 after GRPO's normalisation.

    Examples
    --------
    >>> entropy = torch.tensor([[0.6, 0.2], [0.3, 0.6], [0.4, 0.4], [0.4, 0.4]])
    >>> outcome = torch.tensor([1.0, 1.0, -1.0, -1.0])
    >>> shape_advantages(outcome, entropy, torch.ones(4, 2), 4, alpha=(0.5, 0.5))
    tensor([[ 1.1667,  0.7500],
            [ 0.8333,  1.2500],
            [-1.0000, -1.0000],
            [-1.0000, -1.0000]])
    """
    if normalization not in get_args(Normalization):
        raise ValueError(
            f"normalization is {normalization!r}; allowed: {', '.join(get_args(Normalization))}"
        )
    a1, a2 = _checked_alpha(alpha)
    if not math.isclose(a1 + a2, 1.0, abs_tol=1e-9):
        warnings.warn(
            f"alpha sums to {a1 + a2:g}, not 1: the total credit of a group changes", stacklevel=2
        )
    if advantages.shape != entropy.shape[:1]:
        raise ValueError(
            f"advantages has shape {tuple(advantages.shape)}; allowed: ({len(entropy)},)"
        )
    valid = ~advantages.isnan()
    advantages = torch.where(valid, advantages, 0)
    positive = advantages > 0 if positive is None else positive
    live = mask.bool() & valid[:, None]
    index = _group_index(len(entropy), group_size, group_ids, entropy.device)
    shaped = gtpo_shaped_rewards(
        positive,
        entropy,
        live,
        group_ids=index,
        alpha=alpha,
        entropy_clip=entropy_clip,
        weight_clip=weight_clip,
    )
    if normalization == "outcome":
        return advantages[:, None] * shaped.abs()
    contrast = _varies(advantages, valid, index)
    live = live & contrast[:, None]
    side = positive[:, None]
    if normalization == "pooled":
        mean, std, _ = _moments(shaped, live, index)
        result = (shaped - mean) / (std + std_eps)
    else:
        result = torch.zeros_like(shaped)
        for here in (side, ~side):
            among = live if normalization == "joint" else live & here
            mean, std, _ = _moments(torch.where(here, shaped, 0), among, index)
            result = torch.where(here, (shaped - mean) / (std + std_eps), result)
    return torch.where(live, result, 0)


def gtpo_advantages(
    rewards: Tensor,
    entropy: Tensor,
    mask: Tensor,
    group_size: int | None = None,
    *,
    group_ids: Tensor | None = None,
    alpha: tuple[float, float] = (0.9, 0.1),
    normalization: Normalization = "outcome",
    threshold: float | None = None,
    std_eps: float = 1e-6,
    ddof: int = 0,
    entropy_clip: tuple[float, float | None] = (1e-4, None),
    weight_clip: float | None = None,
) -> Tensor:
    """Advantages of tokens (GTPO) from rewards of responses.

    Parameters
    ----------
    rewards
        (B,) floats, one a response, as in `grpo_advantages`.
    threshold
        A response is right if its reward is above it; by default the mean of its group, which for
        two values of the reward is the same as any number between them.
    entropy, mask, group_size, group_ids, alpha, normalization, std_eps, ddof
        As in `shape_advantages` and `grpo_advantages`.
    entropy_clip, weight_clip
        As in `gtpo_weights`.

    Returns
    -------
    (B, T) advantages for the token-level loss (`clipped_loss`).

    Raises
    ------
    ValueError
        On shapes that do not fit and values that are not allowed.

    Notes
    -----
    Source: Eq. 3, 5 and 6.

    Examples
    --------
    >>> entropy = torch.tensor([[0.6, 0.2], [0.3, 0.6], [0.4, 0.4], [0.4, 0.4]])
    >>> gtpo_advantages(torch.tensor([1.0, 1.0, 0.0, 0.0]), entropy, torch.ones(4, 2), 4)
    tensor([[ 1.0333,  0.9500],
            [ 0.9667,  1.0500],
            [-1.0000, -1.0000],
            [-1.0000, -1.0000]])
    """
    index = _group_index(len(rewards), group_size, group_ids, rewards.device)
    outcome = grpo_advantages(rewards, group_ids=index, std_eps=std_eps, ddof=ddof)
    return shape_advantages(
        torch.where(rewards.isnan(), torch.nan, outcome),
        entropy,
        mask,
        group_ids=index,
        positive=None if threshold is None else rewards > threshold,
        alpha=alpha,
        normalization=normalization,
        std_eps=std_eps,
        entropy_clip=entropy_clip,
        weight_clip=weight_clip,
    )


def grpo_s_advantages(
    rewards: Tensor,
    entropy: Tensor,
    mask: Tensor,
    group_size: int | None = None,
    *,
    group_ids: Tensor | None = None,
    beta: tuple[float, float] = (0.9, 0.1),
    normalization: Normalization = "joint",
    threshold: float | None = None,
    std_eps: float = 1e-6,
    ddof: int = 0,
    entropy_clip: tuple[float, float | None] = (1e-4, None),
    weight_clip: float | None = None,
) -> Tensor:
    """Advantages of responses (GRPO-S) from rewards and mean entropies.

    Parameters are those of `gtpo_advantages`, `beta` in the place of `alpha`. The default is the
    reading `"joint"`, in which entropy counts for more than in `"outcome"`: the constant part of
    the shaped rewards goes into the mean.

    Returns
    -------
    (B,) advantages for `clipped_loss(..., ratio="seq_arith", aggregation="sequence")`.

    Raises
    ------
    ValueError
        On shapes that do not fit and values that are not allowed.

    Notes
    -----
    Source: Eq. 8 and 9.

    Examples
    --------
    >>> entropy = torch.tensor([[0.4], [0.2], [0.1], [0.5]])
    >>> rewards = torch.tensor([1.0, 0.0, 0.0, 0.0])
    >>> grpo_s_advantages(rewards, entropy, torch.ones(4, 1), 4)
    tensor([ 1.7320, -0.5465, -0.7489, -0.4250])
    """
    mean, answered = mean_entropy(entropy, mask)
    return gtpo_advantages(
        rewards,
        mean,
        answered,
        group_size,
        group_ids=group_ids,
        alpha=beta,
        normalization=normalization,
        threshold=threshold,
        std_eps=std_eps,
        ddof=ddof,
        entropy_clip=entropy_clip,
        weight_clip=weight_clip,
    )[:, 0]


def mean_entropy(entropy: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Mean entropy of each response, (B, 1), and whether it has a live token, (B, 1).

    Raises
    ------
    ValueError
        If shapes differ or a live entropy is negative or not finite.

    Notes
    -----
    Source: the mean of Eq. 8.

    Examples
    --------
    >>> mean_entropy(torch.tensor([[0.2, 0.4]]), torch.tensor([[1, 1]]))[0]
    tensor([[0.3000]])
    """
    entropy, live = _checked(entropy, mask)
    count = live.sum(1, keepdim=True)
    return torch.where(live, entropy, 0).sum(1, keepdim=True) / count.clamp(min=1), count > 0


def _checked(entropy: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Entropies without gradient, and the mask as booleans."""
    if entropy.ndim != 2 or entropy.shape != mask.shape:
        raise ValueError(
            f"entropy has shape {tuple(entropy.shape)} and mask {tuple(mask.shape)}; "
            "allowed: (B, T) both"
        )
    entropy, live = entropy.detach(), mask.bool()
    # Float noise may put the entropy of a certain token a little below 0.
    bad = live & ~((entropy >= -1e-3) & entropy.isfinite())
    if bad.any():
        row, column = (int(i) for i in bad.nonzero()[0])
        raise ValueError(
            f"entropy is {float(entropy[row, column])} at row {row}, token {column}; "
            "allowed: finite and not negative"
        )
    return entropy, live


def _checked_alpha(alpha: tuple[float, float]) -> tuple[float, float]:
    a1, a2 = alpha
    if not (a1 >= 0 and a2 >= 0 and 0 < a1 + a2 < math.inf):
        raise ValueError(
            f"the weights are {alpha!r}; allowed: two non-negative numbers, not both 0"
        )
    return a1, a2


def _group_index(
    size: int, group_size: int | None, group_ids: Tensor | None, device: torch.device
) -> Tensor:
    """(B,) numbers of the groups, from 0."""
    if (group_size is None) == (group_ids is None):
        raise ValueError("allowed: exactly one of group_size and group_ids")
    if group_ids is None:
        assert group_size is not None
        if group_size < 1 or size % group_size:
            raise ValueError(
                f"there are {size} responses and group_size is {group_size}; "
                "allowed: a multiple of the group size"
            )
        return torch.arange(size, device=device) // group_size
    if group_ids.shape != (size,) or group_ids.is_floating_point():
        raise ValueError(
            f"group_ids has shape {tuple(group_ids.shape)} and type {group_ids.dtype}; "
            f"allowed: whole numbers of shape ({size},)"
        )
    index: Tensor = torch.unique(group_ids.to(device), return_inverse=True)[1]
    return index


def _group_sum(values: Tensor, index: Tensor) -> Tensor:
    """(B, T) sums over each row's group at every position."""
    groups = int(index.max()) + 1 if len(index) else 0
    total: Tensor = values.new_zeros(groups, values.shape[1]).index_add(0, index, values)
    return total[index]


def _moments(
    values: Tensor, live: Tensor, index: Tensor, ddof: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """(B, 1) mean, deviation and number of the live entries of each row's group."""
    weight = live.to(values.dtype)

    def total(x: Tensor) -> Tensor:
        return _group_sum((x * weight).sum(1, keepdim=True), index)

    count = total(torch.ones_like(values))
    mean = total(values) / count.clamp(min=1)
    variance = total((values - mean).square()) / (count - ddof).clamp(min=1)
    return mean, variance.sqrt(), count


def _varies(values: Tensor, valid: Tensor, index: Tensor) -> Tensor:
    """(B,) whether the valid values of each row's group differ at all."""
    groups = int(index.max()) + 1 if len(index) else 0
    filled = torch.where(valid, values, torch.inf)
    low = values.new_full((groups,), torch.inf).scatter_reduce(0, index, filled, "amin")
    filled = torch.where(valid, values, -torch.inf)
    high = values.new_full((groups,), -torch.inf).scatter_reduce(0, index, filled, "amax")
    differs: Tensor = high > low
    return differs[index]
