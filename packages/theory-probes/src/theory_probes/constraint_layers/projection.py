r"""Projections with exact gradients: the functional form of both layers.

The forward solve is not recorded. At the optimum :math:`x = \varphi(z_0 + W^\top\lambda)`,
:math:`Wx = b` on the binding rows, so with :math:`D = \mathrm{diag}(\varphi'(z))` an upstream
gradient g gives

.. math:: (W D W^\top)\mu = W D g, \quad
          \bar z_0 = D g - D W^\top\mu, \quad \bar b = \mu, \quad
          \bar W = \lambda\,\bar z_0^\top - \mu\,x^\top,

one m x m system a sample, whatever the number of iterations. With redundant rows :math:`\mu` is the
solution of least norm up to the ridge; :math:`\bar z_0` does not depend on the choice. At a point
where a rule binds without force (a kink) this is a one-sided derivative.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from .dual import Solution, normal_matrix, row_products, shifted, solve_rows
from .entropic import solve_entropic
from .euclidean import affine_project, solve_euclidean
from .links import Clipped, Entropic, Link

Engine = Literal["auto", "newton", "bregman", "admm"]
_ACTIVE = -1e-10


@dataclass
class SolveInfo:
    """What the last solve took.

    Attributes
    ----------
    iterations
        Of the sample that took most; 0 where there is a closed form.
    converged
        (B,) bool, with the leading dimensions flattened.
    max_violation
        Of a rule, over the batch, in the rules' own units. Layers fill it in.
    multipliers
        (B, m), of the rows scaled to norm 1: a `start` for the same samples.
    """

    iterations: int = 0
    converged: Tensor = field(default_factory=lambda: torch.ones(0, dtype=torch.bool))
    max_violation: float = 0.0
    multipliers: Tensor | None = None


@dataclass(frozen=True)
class _Problem:
    """All of a projection that carries no gradient."""

    solve: Callable[[Tensor, Tensor, Tensor], Solution]
    link: Callable[[Tensor], Link]
    equalities: int
    info: SolveInfo


class _Projection(torch.autograd.Function):
    """(B, n), (m, n) or (B, m, n), (B, m) -> (B, n), with the gradients of the module's
    docstring."""

    @staticmethod
    def forward(z0: Tensor, W: Tensor, b: Tensor, problem: _Problem) -> tuple[Tensor, Tensor]:
        if not bool(torch.isfinite(z0).all()):
            raise ValueError("y has NaN or infinity; allowed: finite numbers")
        solution = problem.solve(z0.double(), W.double(), b.double())
        info = problem.info
        info.iterations = solution.iterations
        info.converged = solution.converged
        info.multipliers = solution.multipliers
        return solution.x.to(z0.dtype), solution.multipliers

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        z0, W, _, problem = inputs
        x, multipliers = output
        ctx.mark_non_differentiable(multipliers)
        ctx.save_for_backward(z0, W, x, multipliers)
        ctx.problem = problem

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        z0, W, x, multipliers = ctx.saved_tensors
        work = multipliers.dtype
        w = W.to(work)
        z = shifted(z0.to(work), w, multipliers)
        link = ctx.problem.link(z)
        slope = link.slope(z, link.value(z))
        active = (multipliers < _ACTIVE) | (
            torch.arange(w.shape[-2], device=z.device) < ctx.problem.equalities
        )
        scaled = slope * g.to(work)
        right = scaled @ w.mT if w.ndim == 2 else torch.einsum("bmn,bn->bm", w, scaled)
        mu = solve_rows(normal_matrix(w, slope, row_products(w)), right, active)
        grad_z = scaled - slope * (mu @ w if w.ndim == 2 else torch.einsum("bm,bmn->bn", mu, w))
        grad_W = None
        if ctx.needs_input_grad[1]:
            lam, here = multipliers * active, x.to(work)
            if w.ndim == 2:
                grad_W = (lam.mT @ grad_z - mu.mT @ here).to(W.dtype)
            else:
                outer = lam[:, :, None] * grad_z[:, None, :] - mu[:, :, None] * here[:, None, :]
                grad_W = outer.to(W.dtype)
        return grad_z.to(z0.dtype), grad_W, mu.to(z0.dtype), None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        z0: Tensor,
        W: Tensor,
        b: Tensor,
        problem: _Problem,
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        """Fold the mapped dimension into the batch."""
        size = info.batch_size
        z0, W, b = (
            t.movedim(dim, 0) if dim is not None else t.expand(size, *t.shape)
            for t, dim in zip((z0, W, b), in_dims[:3], strict=True)
        )
        batch = z0.shape[1]
        if in_dims[1] is None and W.ndim == 3:
            W = W[0]
        else:
            W = W if W.ndim == 4 else W[:, None].expand(size, batch, *W.shape[1:])
            W = W.reshape(size * batch, *W.shape[2:])
        x, multipliers = _Projection.apply(z0.flatten(0, 1), W, b.flatten(0, 1), problem)
        return (x.view(size, batch, -1), multipliers.view(size, batch, -1)), (0, 0)


def kl_project(
    y: Tensor,
    A_eq: Tensor | None = None,
    b_eq: Tensor | None = None,
    A_ub: Tensor | None = None,
    b_ub: Tensor | None = None,
    *,
    lower: Tensor | float = 0.0,
    upper: Tensor | float | None = None,
    temperature: Tensor | float = 1.0,
    inequality: Literal["exact", "slack"] = "exact",
    engine: Engine = "auto",
    tol: float | None = None,
    max_iter: int | None = None,
    start: Tensor | None = None,
    info: SolveInfo | None = None,
) -> Tensor:
    r"""Entropic projection: the feasible point nearest to :math:`e^{y/\tau}` in Kullback-Leibler.

    Positive everywhere, hard as the temperature goes to 0, soft as it grows. Variables with an
    upper bound take the Fermi-Dirac entropy instead, which keeps them inside.

    Parameters
    ----------
    y
        (..., n), float32 or float64: scores, larger is more.
    A_eq, A_ub
        (p, n) and (q, n), or with the leading dimensions of y for rules of its own for each sample.
    b_eq, b_ub
        (p,) and (q,), or (..., p) and (..., q).
    lower, upper
        A number or (n,). A finite lower bound shifts the variables.
    temperature
        Positive; a tensor may be trained.
    inequality
        `"exact"`, or `"slack"`: a slack variable with an entropy of its own, smooth, but it moves x
        even where the rule does not bind.
    engine
        `"newton"` (also `"auto"`) or `"bregman"`.
    tol
        Largest residual on rows of norm 1, relative to 1 + |b| (and |y| in `euclidean_project`); by
        default 1e-8 in float32 and 1e-10 in float64. The solve itself is always in float64.
    start
        (..., p + q) multipliers of an earlier solve.
    info
        Filled with what the solve took.

    Returns
    -------
    Tensor
        Of the shape and dtype of y.

    Raises
    ------
    ValueError
        If y is not finite, shapes do not fit, or an option is not one of the above.

    Source: the BLCLayer of the paper; degenerations: softmax, Sinkhorn, sigmoid, tanh, soft top-k.

    Examples
    --------
    >>> y = torch.tensor([1.0, 2.0, 3.0])
    >>> kl_project(y, torch.ones(1, 3), torch.ones(1))
    tensor([0.0900, 0.2447, 0.6652])
    """
    _one_of("inequality", inequality, ("exact", "slack"))
    _one_of("engine", engine, ("auto", "newton", "bregman"))
    _check_temperature(temperature)
    n = _check_y(y)
    W, b, equalities = _stack(y, A_eq, b_eq, A_ub, b_ub)
    floor = torch.as_tensor(lower, dtype=y.dtype, device=y.device).expand(n)
    cap = None if upper is None else torch.as_tensor(upper, dtype=y.dtype, device=y.device)
    cap = None if cap is None else cap.expand(n) - floor
    b = b - row_sums(W, floor)
    z0 = y / temperature
    slacks = W.shape[-2] - equalities if inequality == "slack" else 0
    if slacks:
        eye = torch.eye(W.shape[-2], dtype=W.dtype, device=W.device)[:, equalities:]
        W = torch.cat([W, eye.expand(*W.shape[:-2], *eye.shape)], -1)
        z0 = torch.cat([z0, z0.new_zeros(*z0.shape[:-1], slacks)], -1)
        cap = None if cap is None else torch.cat([cap, cap.new_full((slacks,), math.inf)])
        equalities = W.shape[-2]
    tolerance = tol or (1e-10 if y.dtype == torch.float64 else 1e-8)
    limit = max_iter or (5000 if engine == "bregman" else 100)

    def solve(z: Tensor, w: Tensor, right: Tensor) -> Solution:
        u = None if cap is None else cap.detach().to(z.dtype)
        first = None if start is None else _start(start, z, right)
        limits = tolerance * (1 + right.abs().amax(1)) if right.shape[1] else right.new_ones(len(z))
        return solve_entropic(
            z, w, right, u, equalities, engine=engine, tol=limits, max_iter=limit, start=first
        )

    def link(z: Tensor) -> Link:
        return Entropic(None if cap is None else cap.detach().to(z.dtype))

    problem = _Problem(solve, link, equalities, info or SolveInfo())
    x = _project(z0, W, b, problem)
    return floor + x[..., :n]


def euclidean_project(
    y: Tensor,
    A_eq: Tensor | None = None,
    b_eq: Tensor | None = None,
    A_ub: Tensor | None = None,
    b_ub: Tensor | None = None,
    *,
    lower: Tensor | float | None = None,
    upper: Tensor | float | None = None,
    engine: Engine = "auto",
    rho: float = 3.0,
    polish: bool = True,
    tol: float | None = None,
    max_iter: int | None = None,
    start: Tensor | None = None,
    info: SolveInfo | None = None,
) -> Tensor:
    r"""Euclidean projection: the feasible point that changes y least.

    Any sign, exact zeros at bounds. A variable at a bound has a zero gradient, as after a ReLU.

    Parameters
    ----------
    y, A_eq, b_eq, A_ub, b_ub, lower, upper, tol, start, info
        As in `kl_project`; no bounds unless given.
    engine
        `"auto"`, `"newton"` or `"admm"`; irrelevant where there are equalities alone, which have a
        closed form.
    rho, polish
        ADMM's penalty, and whether its active set is polished until equalities and bounds both
        hold.

    Returns
    -------
    Tensor
        Of the shape and dtype of y.

    Raises
    ------
    ValueError
        If y is not finite, shapes do not fit, or an option is not one of the above.

    Source: the GLCLayer of the paper; degenerations: sparsemax, ReLU, clipping, centring.

    Examples
    --------
    >>> y = torch.tensor([1.0, 2.0, 3.0])
    >>> euclidean_project(y, torch.ones(1, 3), torch.full((1,), 3.0), lower=0.0)
    tensor([0., 1., 2.])
    """
    _one_of("engine", engine, ("auto", "newton", "admm"))
    n = _check_y(y)
    W, b, equalities = _stack(y, A_eq, b_eq, A_ub, b_ub)
    if lower is None and upper is None and equalities == W.shape[-2]:
        pinv = torch.linalg.pinv(W)
        if W.ndim == 2:
            return affine_project(y, W, b, pinv)
        return y - torch.einsum("...nm,...m->...n", pinv, row_sums(W, y) - b)
    low = torch.as_tensor(-math.inf if lower is None else lower, dtype=y.dtype, device=y.device)
    high = torch.as_tensor(math.inf if upper is None else upper, dtype=y.dtype, device=y.device)
    low, high = low.detach().expand(n), high.detach().expand(n)
    # The dual is piecewise quadratic: the last digits cost one more step.
    tolerance = tol or 1e-13

    def solve(z: Tensor, w: Tensor, right: Tensor) -> Solution:
        first = None if start is None else _start(start, z, right)
        size = torch.cat([right, z], 1).abs().amax(1)
        return solve_euclidean(
            z,
            w,
            right,
            low.to(z.dtype),
            high.to(z.dtype),
            equalities,
            engine=engine,
            tol=tolerance * (1 + size),
            max_iter=max_iter or 2000,
            rho=rho,
            polish=polish,
            start=first,
        )

    def link(z: Tensor) -> Link:
        return Clipped(low.to(z.dtype), high.to(z.dtype))

    problem = _Problem(solve, link, equalities, info or SolveInfo())
    return _project(y, W, b, problem)


def _project(z0: Tensor, W: Tensor, b: Tensor, problem: _Problem) -> Tensor:
    """Scale rows to norm 1, flatten the leading dimensions, and solve."""
    norm = torch.linalg.vector_norm(W.detach(), dim=-1)
    scale = torch.where(norm > 0, 1 / norm, 1.0)
    W, b = W * scale[..., None], b * scale
    lead, n = z0.shape[:-1], z0.shape[-1]
    m = W.shape[-2]
    count = math.prod(lead)
    right = b.expand(*lead, m).reshape(count, m)
    if W.ndim > 2:
        W = W.expand(*lead, m, n).reshape(count, m, n)
    x, _ = _Projection.apply(z0.reshape(count, n), W, right, problem)
    found: Tensor = x.reshape(*lead, n)
    return found


def _stack(
    y: Tensor,
    A_eq: Tensor | None,
    b_eq: Tensor | None,
    A_ub: Tensor | None,
    b_ub: Tensor | None,
) -> tuple[Tensor, Tensor, int]:
    """All rows as one matrix, equalities first, and their number."""
    n = y.shape[-1]
    rows, rights = [], []
    for name, A, b in (("eq", A_eq, b_eq), ("ub", A_ub, b_ub)):
        if (A is None) != (b is None):
            raise ValueError(f"A_{name} and b_{name} must be given together")
        if A is None or b is None:
            rows.append(y.new_zeros(0, n))
            rights.append(y.new_zeros(0))
            continue
        if A.ndim < 2 or A.shape[-1] != n or b.shape[-1:] != A.shape[-2:-1]:
            raise ValueError(
                f"A_{name} and b_{name} have the shapes {tuple(A.shape)}, {tuple(b.shape)};"
                f" allowed: (..., rows, {n}) and (..., rows)"
            )
        rows.append(A.to(y))
        rights.append(b.to(y))
    lead = np.broadcast_shapes(*(r.shape[:-2] for r in rows))
    W = torch.cat([r.expand(*lead, *r.shape[-2:]) for r in rows], -2)
    lead = np.broadcast_shapes(*(r.shape[:-1] for r in rights))
    b = torch.cat([r.expand(*lead, r.shape[-1]) for r in rights], -1)
    return W, b, rows[0].shape[-2]


def row_sums(W: Tensor, x: Tensor) -> Tensor:
    """W x for x of shape (n,) or (..., n) and W of shape (..., m, n)."""
    return (W @ x[..., None])[..., 0]


def _start(start: Tensor, z: Tensor, right: Tensor) -> Tensor:
    return start.detach().to(z).expand(right.shape).reshape(right.shape)


def _check_y(y: Tensor) -> int:
    if not isinstance(y, Tensor) or y.dtype not in (torch.float32, torch.float64):
        kind = y.dtype if isinstance(y, Tensor) else type(y).__name__
        raise TypeError(f"y is {kind}; allowed: a float32 or float64 tensor")
    if y.ndim == 0:
        raise ValueError("y is a scalar; allowed: (..., n)")
    return y.shape[-1]


def _check_temperature(temperature: Tensor | float) -> None:
    if isinstance(temperature, Tensor):
        if temperature.ndim > 0 and temperature.shape[-1] != 1:
            shape = tuple(temperature.shape)
            raise ValueError(f"temperature has the shape {shape}; allowed: a scalar or (..., 1)")
    elif not (math.isfinite(temperature) and temperature > 0):
        raise ValueError(f"temperature is {temperature!r}; allowed: a positive number")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}; allowed: {', '.join(map(repr, allowed))}")
