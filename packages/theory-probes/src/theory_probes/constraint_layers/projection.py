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

from .constraints import check_count
from .dual import Solution, normal_matrix, row_combination, row_products, row_values, solve_rows
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
        (B,) bool, with the leading dimensions flattened: the solve reached its tolerance, and what
        is returned obeys the rules to that tolerance or to half the digits of its dtype.
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
    tol: float
    info: SolveInfo
    # (n,), float64: what is solved for is x less this.
    floor: Tensor


class _Projection(torch.autograd.Function):
    """(B, n), (m, n) or (B, m, n), (B, m) -> (B, n), with the gradients of the module's
    docstring."""

    @staticmethod
    def forward(
        z0: Tensor, W: Tensor, b: Tensor, problem: _Problem
    ) -> tuple[Tensor, Tensor, Tensor]:
        _require_finite(z0, W, b)
        w, right = W.double(), b.double()
        solution = problem.solve(z0.double(), w, right)
        x = solution.x.to(z0.dtype)
        whole = problem.floor.to(z0) + x
        given = right + row_values(problem.floor, w)
        info = problem.info
        info.iterations = solution.iterations
        info.converged = solution.converged & obeyed(
            whole, w, given, problem.equalities, problem.tol
        )
        info.multipliers = solution.multipliers
        return x, solution.multipliers, solution.z

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _, W, b, problem = inputs
        x, multipliers, z = output
        ctx.mark_non_differentiable(multipliers, z)
        ctx.save_for_backward(W, x, multipliers, z)
        ctx.problem, ctx.side_dtype = problem, b.dtype

    @staticmethod
    def backward(ctx: Any, g: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        W, x, multipliers, z = ctx.saved_tensors
        work = multipliers.dtype
        w = W.to(work)
        link = ctx.problem.link(z)
        slope = link.slope(z, link.value(z))
        active = (multipliers < _ACTIVE) | (
            torch.arange(w.shape[-2], device=z.device) < ctx.problem.equalities
        )
        scaled = slope * g.to(work)
        mu = solve_rows(normal_matrix(w, slope, row_products(w)), row_values(scaled, w), active)
        grad_z = scaled - slope * row_combination(mu, w)
        grad_W = None
        if ctx.needs_input_grad[1]:
            lam, here = multipliers * active, x.to(work)
            if w.ndim == 2:
                grad_W = (lam.mT @ grad_z - mu.mT @ here).to(W.dtype)
            else:
                outer = lam[:, :, None] * grad_z[:, None, :] - mu[:, :, None] * here[:, None, :]
                grad_W = outer.to(W.dtype)
        return grad_z.to(x.dtype), grad_W, mu.to(ctx.side_dtype), None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        z0: Tensor,
        W: Tensor,
        b: Tensor,
        problem: _Problem,
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
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
        found = _Projection.apply(z0.flatten(0, 1), W, b.flatten(0, 1), problem)
        return tuple(t.view(size, batch, -1) for t in found), (0, 0, 0)


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
        Largest residual on rows of norm 1, relative to 1 + |b| (1 + |b| + |x| in
        `euclidean_project`); by default 1e-8 in float32 and 1e-10 in float64 (1e-13 in
        `euclidean_project`). The solve itself is always in float64.
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
    TypeError
        If y is no float32 or float64 tensor, or a rule is no tensor.
    ValueError
        If y or a rule is not finite, shapes do not fit, bounds cross, or an option is not one of
        the above.

    Source: the BLCLayer of the paper; degenerations: softmax, Sinkhorn, sigmoid, tanh, soft top-k.

    Examples
    --------
    >>> y = torch.tensor([1.0, 2.0, 3.0])
    >>> kl_project(y, torch.ones(1, 3), torch.ones(1))
    tensor([0.0900, 0.2447, 0.6652])
    """
    _one_of("inequality", inequality, ("exact", "slack"))
    _one_of("engine", engine, ("auto", "newton", "bregman"))
    check_solver(tol, max_iter)
    check_temperature(temperature)
    n = check_scores(y)
    floor = _bound("lower", lower, y)
    cap = None if upper is None else _bound("upper", upper, y) - floor
    if not bool(torch.isfinite(floor).all()):
        raise ValueError(f"lower is {lower}; allowed: finite numbers, which an entropy needs")
    if cap is not None and bool((cap < 0).any()):
        raise ValueError("upper is below lower; allowed: bounds with room between them")
    W, b, equalities = _stack(y, A_eq, b_eq, A_ub, b_ub)
    b = b.double() - row_values(floor.double(), W.double())
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
        first = None if start is None else _start(start, right, equalities)
        limits = tolerance * (1 + _largest(right))
        return solve_entropic(
            z, w, right, u, equalities, engine=engine, tol=limits, max_iter=limit, start=first
        )

    def link(z: Tensor) -> Link:
        return Entropic(None if cap is None else cap.detach().to(z.dtype))

    base = floor.detach().double()
    base = torch.cat([base, base.new_zeros(slacks)])
    problem = _Problem(solve, link, equalities, tolerance, info or SolveInfo(), base)
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
    TypeError, ValueError
        As `kl_project`.

    Source: the GLCLayer of the paper; degenerations: sparsemax, ReLU, clipping, centring.

    Examples
    --------
    >>> y = torch.tensor([1.0, 2.0, 4.0])
    >>> euclidean_project(y, torch.ones(1, 3), torch.full((1,), 3.0), lower=0.0)
    tensor([0.0000, 0.5000, 2.5000])
    """
    _one_of("engine", engine, ("auto", "newton", "admm"))
    check_solver(tol, max_iter, rho)
    n = check_scores(y)
    W, b, equalities = _stack(y, A_eq, b_eq, A_ub, b_ub)
    if lower is None and upper is None and equalities == W.shape[-2]:
        return closed_form(y, W, b, None, tol, info or SolveInfo())
    low = _bound("lower", -math.inf if lower is None else lower, y).detach()
    high = _bound("upper", math.inf if upper is None else upper, y).detach()
    if bool((low > high).any()):
        raise ValueError("upper is below lower; allowed: lower at most upper")
    # The dual is piecewise quadratic: the last digits cost one more step.
    tolerance = tol or 1e-13

    def solve(z: Tensor, w: Tensor, right: Tensor) -> Solution:
        first = None if start is None else _start(start, right, equalities)
        return solve_euclidean(
            z,
            w,
            right,
            low.to(z.dtype),
            high.to(z.dtype),
            equalities,
            engine=engine,
            tol=tolerance * (1 + _largest(right)),
            relative=tolerance,
            max_iter=max_iter or 2000,
            rho=rho,
            polish=polish,
            start=first,
        )

    def link(z: Tensor) -> Link:
        return Clipped(low.to(z.dtype), high.to(z.dtype))

    base = torch.zeros(n, dtype=torch.float64, device=y.device)
    problem = _Problem(solve, link, equalities, tolerance, info or SolveInfo(), base)
    return _project(y, W, b, problem)


def closed_form(
    y: Tensor, W: Tensor, b: Tensor, pinv: Tensor | None, tol: float | None, info: SolveInfo
) -> Tensor:
    """The Euclidean projection on Wx = b; checked and reported where values may be looked at."""
    look = can_look()
    if pinv is None:
        if look:
            _require_finite(y, W, b)
        pinv = torch.linalg.pinv(W)
    x = affine_project(y, W, b, pinv)
    if look:
        with torch.no_grad():
            size = torch.linalg.vector_norm(W, dim=-1) + b.abs()
            limit = max(tol or 0.0, math.sqrt(torch.finfo(x.dtype).eps))
            info.converged = ((row_values(x, W) - b).abs() <= limit * size).all(-1).flatten()
            if bool(info.converged.all()):
                return x
            _require_finite(y, W, b)
    # An unrecorded projection of the result takes away its rounding, which grows with y.
    x = x + (affine_project(x, W, b, pinv) - x).detach()
    if look:
        with torch.no_grad():
            info.converged = obeyed(x, *_unit_rows(W, b), W.shape[-2], tol or 0.0).flatten()
    return x


def obeyed(x: Tensor, W: Tensor, b: Tensor, equalities: int, tol: float) -> Tensor:
    """Whether x (..., n) keeps to rows of norm 1, as far as its dtype can say it; (...).

    The limit is `tol`, or half the digits of the dtype, relative to 1 + |b|.
    """
    broken = row_values(x.to(W.dtype), W) - b
    broken = torch.cat([broken[..., :equalities].abs(), broken[..., equalities:]], -1)
    limit = max(tol, math.sqrt(torch.finfo(x.dtype).eps))
    return (broken <= limit * (1 + _largest(b))[..., None]).all(-1)


def _project(z0: Tensor, W: Tensor, b: Tensor, problem: _Problem) -> Tensor:
    """Scale rows to norm 1, flatten the leading dimensions, and solve."""
    W, b = _unit_rows(W.double(), b.double())
    lead, n = z0.shape[:-1], z0.shape[-1]
    m = W.shape[-2]
    count = math.prod(lead)
    right = b.expand(*lead, m).reshape(count, m)
    if W.ndim > 2:
        W = W.expand(*lead, m, n).reshape(count, m, n)
    found: Tensor = _Projection.apply(z0.reshape(count, n), W, right, problem)[0]
    return found.reshape(*lead, n)


def _unit_rows(W: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of norm 1, and their right-hand sides; in two steps, since squares may overflow."""
    for order in (math.inf, 2.0):
        norm = torch.linalg.vector_norm(W.detach(), ord=order, dim=-1)
        norm = torch.where(norm > 0, norm, 1.0)
        W, b = W / norm[..., None], b / norm
    return W, b


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
        for side, value in ((f"A_{name}", A), (f"b_{name}", b)):
            if value is not None:
                check_tensor(side, value)
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
    for A, b in zip(rows, rights, strict=True):
        for shape in (A.shape[:-2], b.shape[:-1]):
            if not _broadcasts(shape, y.shape[:-1]):
                raise ValueError(
                    f"rules have the leading shape {tuple(shape)}; allowed: none, or that of y,"
                    f" {tuple(y.shape[:-1])}"
                )
    lead = np.broadcast_shapes(*(r.shape[:-2] for r in rows))
    W = torch.cat([r.expand(*lead, *r.shape[-2:]) for r in rows], -2)
    lead = np.broadcast_shapes(*(r.shape[:-1] for r in rights))
    b = torch.cat([r.expand(*lead, r.shape[-1]) for r in rights], -1)
    return W, b, rows[0].shape[-2]


def _broadcasts(lead: tuple[int, ...], to: tuple[int, ...]) -> bool:
    return len(lead) <= len(to) and all(
        a in (1, b) for a, b in zip(reversed(lead), reversed(to), strict=False)
    )


def _largest(b: Tensor) -> Tensor:
    return b.abs().amax(-1) if b.shape[-1] else b.new_zeros(b.shape[:-1])


def _start(start: Tensor, right: Tensor, equalities: int) -> Tensor:
    check_tensor("start", start)
    if start.shape[-1:] != right.shape[-1:] or math.prod(start.shape[:-1]) not in (1, len(right)):
        raise ValueError(
            f"start has the shape {tuple(start.shape)}; allowed: (..., {right.shape[1]})"
        )
    first = start.detach().to(right).reshape(-1, right.shape[1]).expand(right.shape)
    return torch.cat([first[:, :equalities], first[:, equalities:].clamp(max=0)], 1)


def _bound(name: str, value: Tensor | float, y: Tensor) -> Tensor:
    """(n,), of the dtype of y."""
    n = y.shape[-1]
    if not isinstance(value, Tensor):
        try:
            value = torch.as_tensor(value, dtype=y.dtype, device=y.device)
        except (TypeError, ValueError, RuntimeError):
            kind = type(value).__name__
            raise TypeError(f"{name} is a {kind}; allowed: a number or ({n},)") from None
    if value.shape not in ((), (n,)):
        raise ValueError(f"{name} has the shape {tuple(value.shape)}; allowed: a number or ({n},)")
    if bool(value.isnan().any()):
        raise ValueError(f"{name} has NaN; allowed: numbers")
    return value.to(y).expand(n)


def can_look() -> bool:
    """Whether values may be looked at: not while a compiler or torch.func traces them."""
    return not torch.compiler.is_compiling() and torch._C._functorch.maybe_current_level() is None


def _require_finite(y: Tensor, A: Tensor, b: Tensor) -> None:
    for name, value in (("y", y), ("A_eq or A_ub", A), ("b_eq or b_ub", b)):
        if not bool(torch.isfinite(value).all()):
            raise ValueError(f"{name} has NaN or infinity; allowed: finite numbers")


def check_tensor(name: str, value: Tensor) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} is a {type(value).__name__}; allowed: a tensor")


def check_scores(y: Tensor) -> int:
    """Refuse what is no (..., n) float32 or float64 tensor; n."""
    if not isinstance(y, Tensor) or y.dtype not in (torch.float32, torch.float64):
        kind = f"of {y.dtype}" if isinstance(y, Tensor) else f"a {type(y).__name__}"
        raise TypeError(f"y is {kind}; allowed: a float32 or float64 tensor")
    if y.ndim == 0 or y.shape[-1] == 0:
        raise ValueError(
            f"y has the shape {tuple(y.shape)}; allowed: (..., n) with n of at least 1"
        )
    return y.shape[-1]


def check_temperature(temperature: Tensor | float) -> None:
    if isinstance(temperature, Tensor):
        if temperature.ndim > 0 and temperature.shape[-1] != 1:
            shape = tuple(temperature.shape)
            raise ValueError(f"temperature has the shape {shape}; allowed: a scalar or (..., 1)")
        if can_look() and not bool((temperature > 0).all()):
            low = float(temperature.min())
            raise ValueError(f"temperature has the entry {low:g}; allowed: positive numbers")
    else:
        check_positive("temperature", temperature)


def check_solver(tol: float | None, max_iter: int | None, rho: float = 1.0) -> None:
    if tol is not None:
        check_positive("tol", tol)
    if max_iter is not None:
        check_count("max_iter", max_iter)
    check_positive("rho", rho)


def check_positive(name: str, value: float) -> None:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float | np.integer | np.floating)
        or not (math.isfinite(value) and value > 0)
    ):
        raise ValueError(f"{name} is {value!r}; allowed: a positive number")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}; allowed: {', '.join(map(repr, allowed))}")
