"""Credit for the tokens of a group of responses, from one outcome reward each."""

from __future__ import annotations

import math
import warnings
from typing import Literal, get_args

import torch
from torch import Tensor

from .checks import require_finite, require_tensors, require_whole
from .groups import group_index, moments, varies
from .weights import (
    at_least_single,
    checked_alpha,
    checked_mask,
    gtpo_shaped_rewards,
    mean_entropy,
)

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
    TypeError
        If what is to be a tensor or a number is none.
    ValueError
        If B is no multiple of `group_size`, shapes do not fit, or rewards lie so far from each
        other, or so close, that the squares of their differences are infinite, or 0.

    Notes
    -----
    Source: GRPO; the response-level half of Eq. 6.

    Examples
    --------
    >>> grpo_advantages(torch.tensor([1.0, 1.0, 0.0, 0.0]), 4, std_eps=0.0)
    tensor([ 1.,  1., -1., -1.])
    """
    _check_rewards(rewards)
    require_finite(0, std_eps=std_eps)
    require_whole(0, ddof=ddof)
    index = group_index(len(rewards), group_size, group_ids, rewards.device)
    rewards = at_least_single(rewards)
    valid = ~rewards.isnan()
    known = torch.where(valid, rewards, 0)
    mean, std, count = moments(known[:, None], valid[:, None], index, ddof)
    contrast = varies(rewards, valid, index) & (count[:, 0] > ddof)
    scale = (std + std_eps)[:, 0]
    if not (scale.isfinite() & (scale > 0))[contrast].all():
        raise ValueError(
            f"rewards lie between {float(known.min())} and {float(known.max())}; "
            f"allowed: differences whose squares are neither infinite nor 0 in {rewards.dtype}"
        )
    return torch.where(valid & contrast, (known - mean[:, 0]) / scale, 0)


def _check_rewards(rewards: Tensor) -> None:
    require_tensors(rewards=rewards)
    if rewards.ndim != 1 or not rewards.is_floating_point():
        raise ValueError(
            f"rewards has shape {tuple(rewards.shape)} and type {rewards.dtype}; "
            "allowed: floats of shape (B,)"
        )
    if torch.isinf(rewards).any():
        raise ValueError("rewards holds an infinity; allowed: finite numbers, or NaN for none")


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
    TypeError, ValueError
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
    a1, a2 = checked_alpha(alpha)
    if not math.isclose(a1 + a2, 1.0, abs_tol=1e-9):
        warnings.warn(
            f"alpha sums to {a1 + a2:g}, not 1: the total credit of a group changes", stacklevel=2
        )
    require_finite(0, std_eps=std_eps)
    live = checked_mask(entropy, mask)
    require_tensors(advantages=advantages)
    if advantages.shape != entropy.shape[:1] or not advantages.is_floating_point():
        raise ValueError(
            f"advantages has shape {tuple(advantages.shape)} and type {advantages.dtype}; "
            f"allowed: floats of shape ({len(entropy)},)"
        )
    if torch.isinf(advantages).any():
        raise ValueError("advantages holds an infinity; allowed: finite numbers, or NaN for none")
    valid = ~advantages.isnan()
    advantages = torch.where(valid, advantages, 0)
    positive = advantages > 0 if positive is None else positive
    live = live & valid[:, None]
    index = group_index(len(entropy), group_size, group_ids, entropy.device)
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
    contrast = varies(advantages, valid, index)
    live = live & contrast[:, None]
    side = positive[:, None]
    if normalization == "pooled":
        mean, std, _ = moments(shaped, live, index)
        result = (shaped - mean) / (std + std_eps)
    else:
        result = torch.zeros_like(shaped)
        for here in (side, ~side):
            among = live if normalization == "joint" else live & here
            mean, std, _ = moments(torch.where(here, shaped, 0), among, index)
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
    TypeError, ValueError
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
    _check_rewards(rewards)
    live = checked_mask(entropy, mask)
    if len(rewards) != len(entropy):
        raise ValueError(f"there are {len(rewards)} rewards; allowed: {len(entropy)}, as entropies")
    if threshold is not None:
        require_finite(threshold=threshold)
    index = group_index(len(rewards), group_size, group_ids, rewards.device)
    outcome = grpo_advantages(rewards, group_ids=index, std_eps=std_eps, ddof=ddof)
    return shape_advantages(
        torch.where(rewards.isnan(), torch.nan, outcome),
        entropy,
        live,
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
    TypeError, ValueError
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
    checked_alpha(beta, "beta")
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
