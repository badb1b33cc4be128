"""GTPO, GRPO-S and what they are compared with, each as settings of the same parts."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from .advantages import (
    Normalization,
    grpo_advantages,
    grpo_s_advantages,
    gtpo_advantages,
)
from .checks import require_finite, require_pair
from .loss import Aggregation, Ratio
from .weights import checked_alpha, checked_mask

Credit = Literal["response", "token", "sequence", "multiplicative"]


@dataclass(frozen=True)
class Method:
    r"""How rewards of responses become a loss.

    Parameters
    ----------
    credit
        `"response"`: every token has the advantage of its response. `"token"`: GTPO.
        `"sequence"`: GRPO-S. `"multiplicative"`: $A_i (1 + a_2 (H_{i,t} / \bar H - 1))$ with the
        mean over the batch, often taken for GTPO.
    alpha
        $(a_1, a_2)$, or $(b_1, b_2)$ of GRPO-S; the multiplicative method reads $a_2$ alone.
    normalization
        As in `shape_advantages`.
    ratio, aggregation, eps
        As in `clipped_loss`.
    top_entropy
        The share of tokens, those of the highest entropy, that enter the loss.
    entropy_bonus
        How much of the mean entropy is added to the objective.

    Raises
    ------
    TypeError, ValueError
        If a value is not allowed.

    Examples
    --------
    >>> METHODS["gtpo"].alpha
    (0.9, 0.1)
    >>> METHODS["gtpo"].with_weight(0.5).alpha
    (0.5, 0.5)
    """

    credit: Credit = "response"
    alpha: tuple[float, float] = (0.9, 0.1)
    normalization: Normalization = "outcome"
    ratio: Ratio = "token"
    aggregation: Aggregation = "token"
    eps: tuple[float, float] = (0.2, 0.28)
    top_entropy: float = 1.0
    entropy_bonus: float = 0.0

    def __post_init__(self) -> None:
        for name, kind in (
            ("credit", Credit),
            ("normalization", Normalization),
            ("ratio", Ratio),
            ("aggregation", Aggregation),
        ):
            if getattr(self, name) not in get_args(kind):
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}; allowed: {', '.join(get_args(kind))}"
                )
        checked_alpha(self.alpha)
        require_pair("eps", self.eps)
        require_finite(top_entropy=self.top_entropy, entropy_bonus=self.entropy_bonus)
        if not 0 < self.top_entropy <= 1:
            raise ValueError(f"top_entropy is {self.top_entropy}; allowed: above 0 and at most 1")

    def with_weight(self, a2: float) -> Method:
        """The same with $(1 - a_2, a_2)$, so that the total credit is kept.

        Raises
        ------
        ValueError
            If `a2` is not between 0 and 1, or the method has no weights.
        """
        if self.credit == "response":
            raise ValueError("the method gives every token the same credit; allowed: no weight")
        if not 0 <= a2 <= 1:
            raise ValueError(f"a2 is {a2}; allowed: between 0 and 1")
        return replace(self, alpha=(1 - a2, a2))

    def advantages(
        self, rewards: Tensor, entropy: Tensor, mask: Tensor, group_size: int
    ) -> tuple[Tensor, Tensor]:
        """Advantages of tokens or of responses, and the tokens that enter the loss.

        Parameters are those of `gtpo_advantages`.

        Returns
        -------
        (B, T) or (B, 1) advantages and a (B, T) mask.

        Raises
        ------
        TypeError, ValueError
            On shapes that do not fit and values that are not allowed.

        Examples
        --------
        >>> rewards, entropy = torch.tensor([1.0, 0.0]), torch.tensor([[0.5, 0.1], [0.4, 0.2]])
        >>> named_method("top-entropy").advantages(rewards, entropy, torch.ones(2, 2), 2)[1]
        tensor([[ True, False],
                [False, False]])
        """
        mask = checked_mask(entropy, mask)
        if self.credit == "token":
            result = gtpo_advantages(
                rewards,
                entropy,
                mask,
                group_size,
                alpha=self.alpha,
                normalization=self.normalization,
            )
        elif self.credit == "sequence":
            result = grpo_s_advantages(
                rewards,
                entropy,
                mask,
                group_size,
                beta=self.alpha,
                normalization=self.normalization,
            )[:, None]
        else:
            result = grpo_advantages(rewards, group_size)[:, None]
            if self.credit == "multiplicative":
                mean = entropy[mask].mean()
                relative = torch.where(mean > 0, entropy / mean, 1)
                result = result * (1 + self.alpha[1] * (relative - 1))
        live = entropy[mask]
        if self.top_entropy < 1 and len(live):
            below = math.ceil((1 - self.top_entropy) * (len(live) - 1))
            mask = mask & (entropy >= live.kthvalue(below + 1).values)
        return result, mask


_DAPO = Method()
METHODS = {
    "grpo": replace(_DAPO, aggregation="sequence", eps=(0.2, 0.2)),
    "dapo": _DAPO,
    "gspo": replace(_DAPO, ratio="seq_geom", aggregation="sequence"),
    "gtpo": replace(_DAPO, credit="token"),
    "gtpo-joint": replace(_DAPO, credit="token", normalization="joint"),
    "gtpo-pooled": replace(_DAPO, credit="token", normalization="pooled"),
    "gtpo-polarity": replace(_DAPO, credit="token", normalization="polarity"),
    "grpo-s": replace(
        _DAPO, credit="sequence", normalization="joint", ratio="seq_arith", aggregation="sequence"
    ),
    "grpo-s-outcome": replace(_DAPO, credit="sequence", ratio="seq_arith", aggregation="sequence"),
    "top-entropy": replace(_DAPO, top_entropy=0.2),
    "entropy-bonus": replace(_DAPO, entropy_bonus=0.01),
    "multiplicative": replace(_DAPO, credit="multiplicative"),
}


def named_method(name: str | Method) -> Method:
    """A method by its name; a number after a colon is $a_2$, as in `"grpo-s:0.5"`.

    Raises
    ------
    TypeError, ValueError
        If there is no such method, it has no weight, or the number is not between 0 and 1.

    Examples
    --------
    >>> named_method("grpo-s:0.5").alpha
    (0.5, 0.5)
    """
    if isinstance(name, Method):
        return name
    if not isinstance(name, str):
        raise TypeError(f"method is {name!r}; allowed: a Method, or a name")
    head, colon, weight = name.partition(":")
    if head not in METHODS:
        raise ValueError(f"method is {name!r}; allowed: {', '.join(METHODS)}, and :NUMBER after it")
    try:
        return METHODS[head].with_weight(float(weight)) if colon else METHODS[head]
    except ValueError as error:
        raise ValueError(f"method is {name!r}; the number after the colon: {error}") from None
