r"""Cyclic Bregman projections: the classical engine, and the warm-up of Newton's.

The projection on one row, :math:`\langle w, x\rangle = b`, moves the dual value of that row alone:
:math:`z \leftarrow z + t w` with :math:`\sum_i w_i \varphi_i(z_i + t w_i) = b`. For a row with one
distinct coefficient c and no upper bounds, :math:`t = (\log b - \log c\sum_i x_i)/c`: on row and
column sums this is Sinkhorn's iteration in the log domain. Rows whose supports are disjoint commute
and are projected on together. An inequality row keeps :math:`\lambda_k \le 0`, which is Dykstra's
(Hildreth's) correction.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .dual import Solution, residual_of, row_combination, row_values
from .links import Entropic

_CHECK_EVERY = 10


@dataclass(frozen=True)
class Group:
    """Rows with disjoint supports.

    `rows` is (r,); `variables`, `segment` and `weight` are (k,): the variables in the supports, the
    position in `rows` of the row that each belongs to, and its coefficient.
    """

    rows: Tensor
    variables: Tensor
    segment: Tensor
    weight: Tensor
    closed_form: bool


def group_rows(W: Tensor, upper: Tensor | None) -> list[Group]:
    """Colour the rows of W (m, n) greedily so that no two of a colour share a variable."""
    support = (W != 0).cpu().numpy()
    taken: list[NDArray[np.bool_]] = []
    colours: list[list[int]] = []
    for k, row in enumerate(support):
        for used, members in zip(taken, colours, strict=True):
            if not (used & row).any():
                used |= row
                members.append(k)
                break
        else:
            taken.append(row.copy())
            colours.append([k])
    groups = []
    for members in colours:
        rows = torch.tensor(members, device=W.device)
        segment, variables = torch.nonzero(W[rows], as_tuple=True)
        weight = W[rows][segment, variables]
        first = W[rows].max(1).values
        plain = bool((weight > 0).all()) and torch.equal(weight, first[segment])
        uncapped = upper is None or not bool(torch.isfinite(upper[variables]).any())
        groups.append(Group(rows, variables, segment, weight, plain and uncapped))
    return groups


def sweep(
    z: Tensor, b: Tensor, multipliers: Tensor, groups: list[Group], link: Entropic, equalities: int
) -> None:
    """Project on every row once; `z` (B, n) and `multipliers` (B, m) change in place."""
    for group in groups:
        values = z[:, group.variables]
        right = b[:, group.rows]
        if group.closed_form:
            total = _segment_logsumexp(values, group)
            coefficient = _per_row(group.weight, group)
            t = (right.log() - coefficient.log() - total) / coefficient
        else:
            t = _root(values, right, group, link)
        now = multipliers[:, group.rows]
        change = torch.where(group.rows >= equalities, torch.minimum(t, -now), t)
        multipliers[:, group.rows] = now + change
        z[:, group.variables] = values + change[:, group.segment] * group.weight


def bregman(
    z0: Tensor,
    W: Tensor,
    b: Tensor,
    link: Entropic,
    start: Tensor,
    equalities: int,
    tol: Tensor,
    max_iter: int,
    groups: list[Group],
) -> Solution:
    """Sweep until every sample's residual is at most `tol` (B,); shapes as in `dual.newton`."""
    multipliers = start.clone()
    z = z0 + row_combination(multipliers, W)
    residual = z0.new_full((len(z0),), torch.inf)
    sweeps = 0
    while sweeps < max_iter:
        for _ in range(min(_CHECK_EVERY, max_iter - sweeps)):
            sweep(z, b, multipliers, groups, link, equalities)
            sweeps += 1
        residual = residual_of(multipliers, row_values(link.value(z), W) - b, equalities)
        if bool((residual <= tol).all()):
            break
    return Solution(multipliers, z, link.value(z), residual, residual <= tol, sweeps)


def _per_row(values: Tensor, group: Group) -> Tensor:
    """The (constant) coefficient of each row of a group, shape (r,)."""
    return values.new_zeros(len(group.rows)).scatter(0, group.segment, values)


def _segment_logsumexp(values: Tensor, group: Group) -> Tensor:
    """Log-sum-exp over the support of each row: (B, k) -> (B, r)."""
    shape = (len(values), len(group.rows))
    index = group.segment.expand_as(values)
    top = values.new_full(shape, -torch.inf).scatter_reduce(1, index, values, "amax")
    total = values.new_zeros(shape).index_add(
        1, group.segment, (values - top[:, group.segment]).exp()
    )
    return top + total.log()


def _root(values: Tensor, right: Tensor, group: Group, link: Entropic) -> Tensor:
    """t with sum_i w_i phi_i(z_i + t w_i) = b for each row of a group, by safeguarded Newton."""
    local = link.of(group.variables)
    t = torch.zeros_like(right)
    low, high = torch.full_like(right, -torch.inf), torch.full_like(right, torch.inf)
    for _ in range(100):
        z = values + t[:, group.segment] * group.weight
        x = local.value(z)
        height = torch.zeros_like(right).index_add(1, group.segment, group.weight * x) - right
        rise = torch.zeros_like(right).index_add(
            1, group.segment, group.weight**2 * local.slope(z, x)
        )
        low = torch.where(height < 0, t, low)
        high = torch.where(height > 0, t, high)
        # A bracket without an end grows by at most 8 at a time, which keeps exp in range.
        newton = (t - height / rise.clamp(min=torch.finfo(t.dtype).tiny)).clamp(t - 8, t + 8)
        middle = torch.where((low + high).isfinite(), 0.5 * (low + high), newton)
        inside = (newton > low) & (newton < high)
        t_next = torch.where(inside, newton, middle)
        if bool(((t_next - t).abs() <= torch.finfo(t.dtype).eps * t.abs().clamp(min=1)).all()):
            break
        t = t_next
    return t
