"""What people use instead, for comparison."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .bregman import group_rows
from .constraints import LinearConstraints


def softmax(y: Tensor, temperature: float) -> Tensor:
    """The simplex alone, whatever the other rules."""
    return torch.softmax(y / temperature, dim=-1)


def penalty(x: Tensor, rules: LinearConstraints) -> Tensor:
    """Mean squared violation of rows and bounds, to be added to a loss."""
    t = torch.as_tensor
    total = x.new_zeros(x.shape[:-1])
    if len(rules.b_eq):
        total = total + (x @ t(rules.A_eq).to(x).mT - t(rules.b_eq).to(x)).square().sum(-1)
    if len(rules.b_ub):
        total = total + torch.relu(x @ t(rules.A_ub).to(x).mT - t(rules.b_ub).to(x)).square().sum(
            -1
        )
    beyond = torch.relu(t(rules.lower).to(x) - x) + torch.relu(x - t(rules.upper).to(x))
    return (total + beyond.square().sum(-1)).mean()


def clip_and_renormalise(y: Tensor, total: float) -> Tensor:
    """Negative parts cut, the rest scaled to the total."""
    positive = torch.relu(y) + 1e-12
    return total * positive / positive.sum(-1, keepdim=True)


def unrolled_sinkhorn(y: Tensor, temperature: float, sweeps: int) -> Tensor:
    """Rows and columns of (..., n, n) normalised in turn, all of it recorded for the gradient."""
    z = y / temperature
    for _ in range(sweeps):
        z = z - z.logsumexp(-1, keepdim=True)
        z = z - z.logsumexp(-2, keepdim=True)
    return z.exp()


def affine_correction(y: Tensor, rules: LinearConstraints) -> Tensor:
    """HardNet's one-shot correction: y less the pseudo-inverse times what is broken.

    Exact for equalities; with inequalities it repairs each broken row as if it were alone with the
    equalities, and bounds are not looked at.
    """
    t = torch.as_tensor
    A_eq, A_ub = t(rules.A_eq).to(y), t(rules.A_ub).to(y)
    W = torch.cat([A_eq, A_ub])
    broken = torch.cat(
        [y @ A_eq.mT - t(rules.b_eq).to(y), torch.relu(y @ A_ub.mT - t(rules.b_ub).to(y))], -1
    )
    corrected: Tensor = y - broken @ torch.linalg.pinv(W).mT
    return corrected


def linsat(
    y: Tensor, rules: LinearConstraints, temperature: float, sweeps: int = 100, tol: float = 1e-3
) -> Tensor:
    r"""LinSATNet: Sinkhorn over rules on variables in [0, 1], recorded for the gradient.

    A rule with weights :math:`w \ge 0` becomes :math:`\sum_i w_i x_i = T`, with a dummy variable
    for the slack of an inequality. Normalising the row of the :math:`w_i x_i` to T and that of the
    :math:`w_i(1 - x_i)` to the rest, then each pair to its sum, shifts the logits of the rule's
    variables by

    .. math:: \log\frac{T}{\sum_i w_i x_i} - \log\frac{\sum_i w_i - T}{\sum_i w_i (1 - x_i)}.

    Stops when no rule is broken by more than `tol`. Upper bounds are 1 whatever the rules say.

    Raises
    ------
    ValueError
        If a rule has weights of both signs, which the method does not take.
    """
    n, rows, totals, dummies = rules.n, [], [], 0
    for w, b in zip(rules.A_eq, rules.b_eq, strict=True):
        rows.append((w, 0.0))
        totals.append(b)
    for w, b in zip(rules.A_ub, rules.b_ub, strict=True):
        if (w >= 0).all():  # sum + b * dummy = b
            rows.append((w, b))
            totals.append(b)
        else:  # a sum of at least d: with g of the d fitting in, sum + g d * dummy = (g + 1) d
            w, d = -w, -b
            fitting = np.floor(w.sum() / d)
            rows.append((w, fitting * d))
            totals.append((fitting + 1) * d)
        dummies += 1
    weights = torch.zeros(len(rows), n + dummies, dtype=y.dtype)
    for k, (w, slack) in enumerate(rows):
        if (w < 0).any():
            raise ValueError(f"rule {k} has weights of both signs; allowed: one sign")
        weights[k, :n] = torch.from_numpy(w)
        if slack:
            weights[k, n + k - len(rules.b_eq)] = slack
    target = torch.tensor(totals, dtype=y.dtype)
    groups = group_rows(weights, None)
    z = torch.cat([y / temperature, y.new_zeros(*y.shape[:-1], dummies)], -1)
    for sweep in range(sweeps):
        for group in groups:
            T, S = target[group.rows], weights[group.rows].sum(1)
            filled = torch.sigmoid(z) @ weights[group.rows].mT
            empty = torch.sigmoid(-z) @ weights[group.rows].mT
            shift = (T / filled).log() - ((S - T) / empty).log()
            z = z.index_add(-1, group.variables, shift[..., group.segment])
        if sweep % 10 == 9:
            broken = (torch.sigmoid(z.detach()) @ weights.mT - target).abs()
            if bool((broken <= tol).all()):
                break
    return torch.sigmoid(z)[..., :n]
