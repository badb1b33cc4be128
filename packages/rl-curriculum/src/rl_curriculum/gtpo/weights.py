r"""Weights of tokens from the entropies of a group, and the rewards shaped with them.

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

import torch
from torch import Tensor

from .checks import live_tokens, require_finite, require_pair, require_tensors
from .groups import group_index, group_sum

# Sums of entropies and of their inverses stay finite in float32 between this and its inverse.
LEAST_ENTROPY = 1e-30


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
        Entropies are clipped to these bounds first. The lower one is at least 1e-30; it takes the
        place of the small constants that the paper adds to denominators (Remark 2.1).
    weight_clip
        The largest weight, or None. Clipping gives up the mean of 1.

    Returns
    -------
    (B, T) weights of the right responses, 0 elsewhere, and the same of the wrong ones.

    Raises
    ------
    TypeError
        If what is to be a tensor or a number is none.
    ValueError
        If shapes differ, a live entropy is negative, above 1e30 or no number, or a bound is not
        allowed.

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
    low, high = checked_clips(entropy_clip, weight_clip)
    entropy, live = _checked(entropy, mask)
    require_tensors(positive=positive)
    if positive.shape != entropy.shape[:1] or positive.dtype != torch.bool:
        raise ValueError(
            f"positive has shape {tuple(positive.shape)} and type {positive.dtype}; "
            f"allowed: booleans of shape ({len(entropy)},)"
        )
    index = group_index(len(entropy), group_size, group_ids, entropy.device)
    clipped = entropy.clamp(low, high)
    sides = []
    for side, score in ((positive, clipped), (~positive, clipped.reciprocal())):
        here = live & side[:, None]
        score = torch.where(here, score, 0)
        total, count = group_sum(score, index), group_sum(here.to(score.dtype), index)
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
    TypeError, ValueError
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
    a1, a2 = checked_alpha(alpha)
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


def mean_entropy(entropy: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Mean entropy of each response, (B, 1), and whether it has a live token, (B, 1).

    Raises
    ------
    TypeError, ValueError
        As `gtpo_weights`.

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


def checked_alpha(alpha: tuple[float, float], name: str = "alpha") -> tuple[float, float]:
    require_pair(name, alpha)
    a1, a2 = alpha
    if not (a1 >= 0 and a2 >= 0 and 0 < a1 + a2 < math.inf):
        raise ValueError(f"{name} is {alpha!r}; allowed: two non-negative numbers, not both 0")
    return a1, a2


def checked_clips(
    entropy_clip: tuple[float, float | None], weight_clip: float | None, name: str = "entropy_clip"
) -> tuple[float, float | None]:
    require_pair(name, entropy_clip, second_none=True)
    low, high = entropy_clip
    if not LEAST_ENTROPY <= low < (1 / LEAST_ENTROPY if high is None else high):
        raise ValueError(
            f"{name} is {entropy_clip!r}; allowed: {LEAST_ENTROPY:g} <= low < high, or high None"
        )
    if weight_clip is not None:
        require_finite(weight_clip=weight_clip)
        if weight_clip <= 0:
            raise ValueError(f"weight_clip is {weight_clip!r}; allowed: a positive number or None")
    return low, high


def at_least_single(values: Tensor) -> Tensor:
    """In float32 unless in float64: sums of 1/H and of squares leave the range of float16."""
    return values if values.dtype == torch.float64 else values.float()


def checked_mask(entropy: Tensor, mask: Tensor) -> Tensor:
    """(B, T) booleans of the tokens that count."""
    require_tensors(entropy=entropy, mask=mask)
    if entropy.ndim != 2 or entropy.shape != mask.shape or entropy.is_complex():
        raise ValueError(
            f"entropy has shape {tuple(entropy.shape)} and type {entropy.dtype}, and mask has "
            f"{tuple(mask.shape)}; allowed: (B, T) both, of real numbers"
        )
    return live_tokens(mask)


def _checked(entropy: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Entropies without gradient, and the mask as booleans."""
    live = checked_mask(entropy, mask)
    entropy = at_least_single(entropy.detach())
    # Float noise may put the entropy of a certain token a little below 0.
    bad = live & ~((entropy >= -1e-3) & (entropy <= 1 / LEAST_ENTROPY))
    if bad.any():
        row, column = (int(i) for i in bad.nonzero()[0])
        raise ValueError(
            f"entropy is {float(entropy[row, column])} at row {row}, token {column}; "
            f"allowed: between 0 and {1 / LEAST_ENTROPY:g}"
        )
    return entropy, live
