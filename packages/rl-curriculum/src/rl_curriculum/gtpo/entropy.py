"""Entropy of next-token distributions, in pieces where the vocabulary is large."""

from __future__ import annotations

import torch
from torch import Tensor

from .checks import require_tensors, require_whole


@torch.no_grad()
def token_entropy(logits: Tensor, chunk: int = 1024) -> Tensor:
    r"""Entropy in nats at every token, $H = -\sum_v p_v \log p_v$.

    Parameters
    ----------
    logits
        (..., V) of any floating type; -inf forbids a token.
    chunk
        Tokens at a time: the working memory is about `2 * chunk * V * 4` bytes, however many there
        are.

    Returns
    -------
    (...) float32 (float64 for float64 logits), without gradient; NaN where a logit is NaN or
    infinite, or every token is forbidden.

    Raises
    ------
    TypeError, ValueError
        If `logits` is not a floating tensor with at least one token in the vocabulary, or `chunk`
        no whole number from 1.

    Notes
    -----
    Source: the entropy of Eq. 3; without gradient by Remark 2.5. It is the entropy of the
    distribution, not the surprisal of the token that was drawn.

    Examples
    --------
    >>> token_entropy(torch.zeros(1, 2, 4))
    tensor([[1.3863, 1.3863]])
    """
    require_tensors(logits=logits)
    if not logits.is_floating_point() or logits.ndim < 1 or logits.shape[-1] == 0:
        raise ValueError(
            f"logits has shape {tuple(logits.shape)} and type {logits.dtype}; "
            "allowed: floats of shape (..., V)"
        )
    require_whole(1, chunk=chunk)
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    flat = logits.reshape(-1, logits.shape[-1])
    result = torch.empty(len(flat), dtype=dtype, device=logits.device)
    for start in range(0, len(flat), chunk):
        result[start : start + chunk] = _entropy(flat[start : start + chunk], dtype)
    return result.reshape(logits.shape[:-1])


def _entropy(logits: Tensor, dtype: torch.dtype) -> Tensor:
    # Half precision is promoted by the difference, without a copy of its own.
    shifted = logits - logits.amax(-1, keepdim=True).to(dtype)
    weight = shifted.exp()
    total = weight.sum(-1)
    # A forbidden token has weight 0, and 0 times -inf is no number.
    shifted.clamp_(min=torch.finfo(dtype).min)
    mean: Tensor = weight.mul_(shifted).sum(-1) / total
    return total.log() - mean
