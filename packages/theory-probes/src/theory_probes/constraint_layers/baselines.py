"""What people use instead, for comparison."""

from __future__ import annotations

import torch
from torch import Tensor

from .constraints import LinearConstraints
from .projection import SolveInfo, kl_project


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


def linsat(y: Tensor, rules: LinearConstraints, temperature: float, sweeps: int = 100) -> Tensor:
    """LinSATNet's answer on variables in [0, 1], with its stopping rule of 1e-3.

    Its iteration normalises each rule against a dummy variable for every x and 1 - x, so its fixed
    point is the Fermi-Dirac projection; here that point is approached by the same cyclic sweeps.
    """
    t = torch.as_tensor
    return kl_project(
        y,
        t(rules.A_eq).to(y),
        t(rules.b_eq).to(y),
        t(rules.A_ub).to(y),
        t(rules.b_ub).to(y),
        upper=1.0,
        temperature=temperature,
        engine="bregman",
        tol=1e-3,
        max_iter=sweeps,
        info=SolveInfo(),
    )
