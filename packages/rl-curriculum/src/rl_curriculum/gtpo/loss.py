"""The clipped objective of GTPO, GRPO-S and their relatives, and penalties on length."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from .checks import is_number, live_tokens, require_pair, require_tensors, require_whole
from .groups import group_index

Ratio = Literal["token", "seq_arith", "seq_geom"]
Aggregation = Literal["token", "sequence"]
# The exponential of more is infinite in float32, and the gradient of what was clipped then NaN.
_LARGEST_LOG_RATIO = 80.0


def importance_ratio(logp: Tensor, old_logp: Tensor, mask: Tensor, ratio: Ratio) -> Tensor:
    r"""The ratio $w$ of probabilities now and when the response was sampled.

    `"token"` gives $w_{i,t}$ of shape (B, T). The other two give (B, 1): `"seq_arith"` is
    $\frac{1}{|o_i|} \sum_t w_{i,t}$ (GRPO-S) and `"seq_geom"` is $\exp \frac{1}{|o_i|} \sum_t \log
    w_{i,t}$ (GSPO). All are 1 where nothing is live. A ratio above $e^{80}$ counts as that.

    Raises
    ------
    TypeError, ValueError
        If `ratio` is none of these, what is to be a tensor is none, or shapes differ.

    Notes
    -----
    Source: the ratios of Eq. 7 and 11.

    Examples
    --------
    >>> logp, mask = torch.tensor([[2.0, 0.5]]).log(), torch.ones(1, 2)
    >>> importance_ratio(logp, torch.zeros(1, 2), mask, "seq_arith")
    tensor([[1.2500]])
    """
    if ratio not in get_args(Ratio):
        raise ValueError(f"ratio is {ratio!r}; allowed: {', '.join(get_args(Ratio))}")
    require_tensors(logp=logp, old_logp=old_logp, mask=mask)
    if not logp.shape == old_logp.shape == mask.shape or logp.ndim != 2:
        raise ValueError(
            f"logp, old_logp and mask have shapes {tuple(logp.shape)}, {tuple(old_logp.shape)} and "
            f"{tuple(mask.shape)}; allowed: one shape (B, T)"
        )
    live = live_tokens(mask)
    log_ratio = torch.where(live, logp - old_logp, 0).clamp(max=_LARGEST_LOG_RATIO)
    if ratio == "token":
        return log_ratio.exp()
    count = live.sum(1, keepdim=True).clamp(min=1)
    if ratio == "seq_geom":
        return (log_ratio.sum(1, keepdim=True) / count).exp()
    mean = torch.where(live, log_ratio.exp(), 0).sum(1, keepdim=True) / count
    return torch.where(live.any(1, keepdim=True), mean, 1)


def clipped_loss(
    logp: Tensor,
    old_logp: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    eps: tuple[float, float] = (0.2, 0.28),
    ratio: Ratio = "token",
    aggregation: Aggregation = "token",
    normalizer: Tensor | float | None = None,
) -> tuple[Tensor, dict[str, float]]:
    r"""Minus the clipped objective, a mean of $\min(w A, \text{clip}(w, 1-e_l, 1+e_h) A)$.

    Parameters
    ----------
    logp, old_logp
        (B, T) log-probabilities of the tokens, now and when they were sampled.
    advantages
        (B, T), or (B,) for one a response; no gradient reaches them.
    mask
        (B, T); true, or 1, on tokens that count.
    eps
        $(e_l, e_h)$.
    ratio
        As in `importance_ratio`.
    aggregation
        `"token"`: sum over tokens divided by their number (DAPO, GTPO). `"sequence"`: mean over
        tokens of a response, then over responses (GRPO, GSPO, GRPO-S).
    normalizer
        What the sum is divided by, for a batch in several pieces: the live tokens, or the
        responses, of the whole optimiser step. By default those of this call.

    Returns
    -------
    The loss, a scalar that has a gradient even where every advantage is 0, and the shares of live
    terms clipped below and above.

    Raises
    ------
    TypeError, ValueError
        On shapes that do not fit and values that are not allowed.

    Notes
    -----
    Source: Eq. 7 (`ratio="token", aggregation="token"`) and Eq. 11 (`ratio="seq_arith",
    aggregation="sequence"`). At `logp == old_logp` the value says nothing about the method: look
    at gradients.

    Examples
    --------
    >>> logp, old, mask = torch.tensor([[1.3]]).log(), torch.zeros(1, 1), torch.ones(1, 1)
    >>> clipped_loss(logp, old, torch.tensor([1.0]), mask)[0]
    tensor(-1.2800)
    """
    if aggregation not in get_args(Aggregation):
        raise ValueError(
            f"aggregation is {aggregation!r}; allowed: {', '.join(get_args(Aggregation))}"
        )
    require_pair("eps", eps)
    low, high = eps
    if not (0 <= low <= 1 and high >= 0):
        raise ValueError(f"eps is {eps!r}; allowed: 0 <= low <= 1 and high >= 0")
    require_tensors(old_logp=old_logp, advantages=advantages)
    if normalizer is not None and not isinstance(normalizer, Tensor):
        if not is_number(normalizer):
            raise TypeError(f"normalizer is {normalizer!r}; allowed: a number, a tensor or None")
        if not 0 < normalizer < float("inf"):
            raise ValueError(f"normalizer is {normalizer!r}; allowed: a positive number")
    weight = importance_ratio(logp, old_logp.detach(), mask, ratio)
    if advantages.shape not in (mask.shape, mask.shape[:1], (len(mask), 1)):
        raise ValueError(
            f"advantages has shape {tuple(advantages.shape)}; "
            f"allowed: {tuple(mask.shape)} or ({len(mask)},)"
        )
    advantages = advantages.detach()
    if advantages.ndim == 1:
        advantages = advantages[:, None]
    live = mask.bool()
    # NaN off the mask would reach the gradient of the ratio.
    used = live if advantages.shape == live.shape else live.any(1, keepdim=True)
    advantages = torch.where(used, advantages, 0)
    term = torch.minimum(weight * advantages, weight.clamp(1 - low, 1 + high) * advantages)
    term = torch.where(live, term, 0)
    if aggregation == "token":
        total, count = term.sum(), live.sum()
    else:
        total = (term.sum(1) / live.sum(1).clamp(min=1)).sum()
        count = live.any(1).sum()
    loss = -total / (count.clamp(min=1) if normalizer is None else normalizer)
    with torch.no_grad():
        tokens = live.sum().clamp(min=1)
        below = (live & (weight < 1 - low) & (advantages < 0)).sum() / tokens
        above = (live & (weight > 1 + high) & (advantages > 0)).sum() / tokens
    return loss, {"clipped_low": float(below), "clipped_high": float(above)}


def dapo_overlong_penalty(lengths: Tensor, max_length: int, cache: int) -> Tensor:
    """Soft punishment of long responses, to be added to rewards.

    Parameters
    ----------
    lengths
        (B,) numbers of tokens.
    max_length, cache
        The penalty is 0 up to `max_length - cache`, falls linearly to -1 at `max_length`, and is
        -1 beyond.

    Returns
    -------
    (B,) float32.

    Raises
    ------
    TypeError, ValueError
        If `lengths` is no tensor or holds what is no length, or unless 0 < cache <= max_length.

    Notes
    -----
    Source: DAPO's soft overlong punishment.

    Examples
    --------
    >>> dapo_overlong_penalty(torch.tensor([16, 17, 18, 20, 21]), 20, 4)
    tensor([ 0.0000, -0.2500, -0.5000, -1.0000, -1.0000])
    """
    _check_lengths(lengths)
    require_whole(1, max_length=max_length, cache=cache)
    if cache > max_length:
        raise ValueError(
            f"max_length is {max_length} and cache {cache}; allowed: 0 < cache <= max_length"
        )
    return (((max_length - cache) - lengths.float()) / cache).clamp(-1.0, 0.0) + 0.0


def group_overlong_penalty(
    lengths: Tensor, positive: Tensor, group_size: int, knee: int, easy: float = 0.75
) -> Tensor:
    """Punishment of length that depends on how hard a group's prompt was.

    Parameters
    ----------
    lengths
        (B,) numbers of tokens, the responses of a prompt in blocks of `group_size`.
    positive
        (B,) booleans: the response is right.
    knee
        The penalty is 0 below `knee` tokens, -0.5 from twice as many, and linear between.
    easy
        Groups with at least this share right punish their right responses; groups with at most
        `1 - easy` right punish none; in between the more frequent side is punished, the wrong one
        in a tie.

    Returns
    -------
    (B,) float32, to be added to rewards.

    Raises
    ------
    TypeError, ValueError
        On shapes that do not fit and values that are not allowed.

    Notes
    -----
    Source: appendix D.

    Examples
    --------
    >>> lengths, right = torch.tensor([15, 15, 15, 15]), torch.tensor([True, True, True, False])
    >>> group_overlong_penalty(lengths, right, 4, 10)
    tensor([-0.2500, -0.2500, -0.2500,  0.0000])
    """
    _check_lengths(lengths)
    require_tensors(positive=positive)
    if lengths.shape != positive.shape or lengths.ndim != 1 or positive.dtype != torch.bool:
        raise ValueError(
            f"lengths and positive have shapes {tuple(lengths.shape)} and {tuple(positive.shape)}; "
            "allowed: (B,) both, positive of booleans"
        )
    index = group_index(len(lengths), group_size, None, lengths.device)
    require_whole(1, knee=knee)
    if not is_number(easy) or not 0.5 < easy <= 1:
        raise ValueError(f"easy is {easy!r}; allowed: 0.5 < easy <= 1")
    share = positive.reshape(-1, group_size).float().mean(1)[index]
    punish_right = share > 0.5
    punished = torch.where(positive, punish_right, ~punish_right) & (share > 1 - easy)
    slope = (-0.5 * (lengths.float() - knee) / knee).clamp(-0.5, 0.0) + 0.0
    return torch.where(punished, slope, 0.0)


def _check_lengths(lengths: Tensor) -> None:
    require_tensors(lengths=lengths)
    if not (lengths >= 0).all():
        raise ValueError(f"lengths holds {float(lengths.min())}; allowed: 0 and more")
