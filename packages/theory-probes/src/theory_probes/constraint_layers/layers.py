"""The layers: a network's output goes in, a point that obeys the rules comes out."""

from __future__ import annotations

import math
import warnings
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from .constraints import LinearConstraints
from .projection import (
    Engine,
    SolveInfo,
    can_look,
    check_positive,
    check_scores,
    check_solver,
    check_tensor,
    closed_form,
    euclidean_project,
    kl_project,
)

OnFailure = Literal["warn", "raise", "ignore"]


class NotConverged(RuntimeError):
    """Some samples did not reach the tolerance; `info` says which.

    Attributes
    ----------
    info : SolveInfo
    """

    def __init__(self, message: str, info: SolveInfo) -> None:
        super().__init__(message)
        self.info = info


class _ConstraintLayer(nn.Module):
    """What both layers share: the rules as buffers, right-hand sides by sample, warm starts."""

    A_eq: Tensor
    b_eq: Tensor
    A_ub: Tensor
    b_ub: Tensor
    lower: Tensor
    upper: Tensor

    def __init__(
        self,
        constraints: LinearConstraints,
        tol: float | None,
        max_iter: int | None,
        on_failure: str,
    ) -> None:
        super().__init__()
        if not isinstance(constraints, LinearConstraints):
            kind = type(constraints).__name__
            raise TypeError(f"constraints is a {kind}; allowed: LinearConstraints")
        check_solver(tol, max_iter)
        if on_failure not in ("warn", "raise", "ignore"):
            raise ValueError(f"on_failure is {on_failure!r}; allowed: 'warn', 'raise' or 'ignore'")
        self.n = constraints.n
        self.tol, self.max_iter, self.on_failure = tol, max_iter, on_failure
        for name in ("A_eq", "b_eq", "A_ub", "b_ub", "lower", "upper"):
            self.register_buffer(name, torch.from_numpy(getattr(constraints, name).copy()))
        self.last_info = SolveInfo()
        self._memory: Tensor | None = None

    def extra_repr(self) -> str:
        return f"n={self.n}, equalities={len(self.b_eq)}, inequalities={len(self.b_ub)}"

    def _check(self, y: Tensor, b_eq: Tensor | None, b_ub: Tensor | None) -> tuple[Tensor, Tensor]:
        if check_scores(y) != self.n:
            raise ValueError(f"y has the shape {tuple(y.shape)}; allowed: (..., {self.n})")
        sides = []
        for name, given, own in (("b_eq", b_eq, self.b_eq), ("b_ub", b_ub, self.b_ub)):
            side = own if given is None else given
            check_tensor(name, side)
            if side.shape[-1:] != own.shape or side.shape[:-1] not in ((), y.shape[:-1]):
                raise ValueError(
                    f"{name} has the shape {tuple(side.shape)}; allowed: ({len(own)},) or"
                    f" {(*y.shape[:-1], len(own))}"
                )
            sides.append(side.to(y))
        return sides[0], sides[1]

    def _finish(
        self, x: Tensor, b_eq: Tensor, b_ub: Tensor, info: SolveInfo, sample_ids: Tensor | None
    ) -> Tensor:
        """Report what the solve took, remember the multipliers, and complain if asked to."""
        with torch.no_grad():
            parts = [x.new_zeros(1)]
            if len(self.b_eq):
                parts.append((x @ self.A_eq.to(x).mT - b_eq).abs().flatten())
            if len(self.b_ub):
                parts.append((x @ self.A_ub.to(x).mT - b_ub).flatten())
            info.max_violation = float(torch.cat(parts).amax())
        self.last_info = info
        if sample_ids is not None and sample_ids.numel() and info.multipliers is not None:
            self._remember(sample_ids, info)
        if self.on_failure != "ignore" and not bool(info.converged.all()):
            bad = torch.nonzero(~info.converged).flatten().tolist()
            shown = ", ".join(map(str, bad[:8])) + (" ..." if len(bad) > 8 else "")
            message = (
                f"{len(bad)} of {len(info.converged)} samples did not converge in {info.iterations}"
                f" iterations (samples {shown}); the largest violation is {info.max_violation:.1e}"
            )
            if self.on_failure == "raise":
                raise NotConverged(message, info)
            warnings.warn(message, RuntimeWarning, stacklevel=3)
        return x

    def _start(self, y: Tensor, sample_ids: Tensor | None) -> Tensor | None:
        """The multipliers of the last time that these samples came by, if all of them did."""
        if sample_ids is None:
            return None
        check_tensor("sample_ids", sample_ids)
        count = math.prod(y.shape[:-1])
        if sample_ids.numel() != count or sample_ids.dtype not in (torch.int32, torch.int64):
            raise ValueError(
                f"sample_ids is {sample_ids.dtype} of {sample_ids.numel()} entries; allowed: one"
                f" integer for each of the {count} samples"
            )
        memory, ids = self._memory, sample_ids.flatten().long()
        if bool((ids < 0).any()):
            raise ValueError("sample_ids has negative entries; allowed: integers from 0")
        if memory is None or not count or int(ids.max()) >= len(memory):
            return None
        start = memory[ids.to(memory.device)]
        return start if bool(start.isfinite().all()) else None

    def _remember(self, sample_ids: Tensor, info: SolveInfo) -> None:
        assert info.multipliers is not None
        found = info.multipliers.detach()
        ids = sample_ids.flatten().long().to(found.device)
        size = int(ids.max()) + 1
        if self._memory is None:
            self._memory = found.new_full((size, found.shape[1]), torch.nan)
        elif size > len(self._memory):
            more = found.new_full((size - len(self._memory), found.shape[1]), torch.nan)
            self._memory = torch.cat([self._memory.to(found), more])
        kept = torch.where(info.converged[:, None], found, torch.nan)
        self._memory[ids] = kept.to(self._memory)


class BinaryLinearConstraintLayer(_ConstraintLayer):
    r"""Entropic projection on the rules (BLCLayer): positive, from soft to hard by temperature.

    Solves :math:`\min_x \sum_i x_i(\log x_i - 1) - \langle x, y\rangle/\tau` over the rules, with
    the Fermi-Dirac entropy for variables that have an upper bound. Any real coefficients are
    allowed; 0/1 rows are the case in which the paper's Bregman projections have a closed form.

    Choose it for shares, matchings, flows and schedules; choose `GeneralLinearConstraintLayer`
    where signs are free or exact zeros are wanted. As the temperature goes to 0 gradients vanish:
    anneal.

    Parameters
    ----------
    constraints
        The rules. Variables without a lower bound get 0.
    temperature
        Positive. Small is hard.
    inequality
        `"exact"`, or `"slack"` for the paper's rewriting with slack variables, which have an
        entropy of their own and move x even where the rule does not bind.
    engine
        `"auto"` (Newton after a few sweeps), `"newton"` or `"bregman"`.
    tol, max_iter
        As in `kl_project`.
    on_failure
        What to do when a sample does not converge: `"warn"`, `"raise"` (NotConverged) or
        `"ignore"`.

    Raises
    ------
    ValueError
        If a variable is forced to a bound by the rules, where an entropy has no optimum: remove it.

    Source: the paper's BLCLayer; exact inequalities and bounds as in section 2.3 of its theory.

    Examples
    --------
    >>> from theory_probes.constraint_layers import simplex
    >>> layer = BinaryLinearConstraintLayer(simplex(3))
    >>> layer(torch.tensor([[1.0, 2.0, 3.0]]))
    tensor([[0.0900, 0.2447, 0.6652]])
    """

    def __init__(
        self,
        constraints: LinearConstraints,
        temperature: float = 1.0,
        inequality: Literal["exact", "slack"] = "exact",
        engine: Engine = "auto",
        tol: float | None = None,
        max_iter: int | None = None,
        on_failure: OnFailure = "warn",
    ) -> None:
        super().__init__(constraints, tol, max_iter, on_failure)
        check_positive("temperature", temperature)
        if inequality not in ("exact", "slack"):
            raise ValueError(f"inequality is {inequality!r}; allowed: 'exact' or 'slack'")
        if engine not in ("auto", "newton", "bregman"):
            raise ValueError(f"engine is {engine!r}; allowed: 'auto', 'newton' or 'bregman'")
        self.temperature, self.inequality, self.engine = float(temperature), inequality, engine
        floor = np.where(np.isneginf(constraints.lower), 0.0, constraints.lower)
        if (floor > constraints.upper).any():
            i = int(np.argmax(floor > constraints.upper))
            raise ValueError(
                f"upper[{i}] is {constraints.upper[i]:g} and lower[{i}] is absent,"
                " which means 0 here; give a lower bound below it"
            )
        self.lower = torch.from_numpy(floor)
        forced = constraints.forced_to_bound(floor)
        if forced is not None:
            row, variables = forced
            shown = f" variables {variables.tolist()}" if len(variables) else " some variables"
            raise ValueError(
                f"{row} leaves{shown} no room between their bounds (or below 0),"
                " where an entropy has no optimum; remove them or loosen the rule"
            )

    def forward(
        self,
        y: Tensor,
        b_eq: Tensor | None = None,
        b_ub: Tensor | None = None,
        *,
        temperature: Tensor | float | None = None,
        sample_ids: Tensor | None = None,
    ) -> Tensor:
        """Project scores y (..., n) on the rules.

        Parameters
        ----------
        b_eq, b_ub
            Right-hand sides instead of the rules' own, (p,) or (..., p): they get gradients.
        temperature
            Instead of the layer's own; a tensor gets a gradient.
        sample_ids
            (...) integers: the solve starts where it ended when the same samples last came by.

        Returns
        -------
        Tensor
            Of the shape and dtype of y.
        """
        right_eq, right_ub = self._check(y, b_eq, b_ub)
        info = SolveInfo()
        capped = bool(torch.isfinite(self.upper).any())
        x = kl_project(
            y,
            self.A_eq.to(y),
            right_eq,
            self.A_ub.to(y),
            right_ub,
            lower=self.lower.to(y),
            upper=self.upper.to(y) if capped else None,
            temperature=self.temperature if temperature is None else temperature,
            inequality=self.inequality,
            engine=self.engine,
            tol=self.tol,
            max_iter=self.max_iter,
            start=self._start(y, sample_ids),
            info=info,
        )
        return self._finish(x, right_eq, right_ub, info, sample_ids)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, temperature={self.temperature}"


class GeneralLinearConstraintLayer(_ConstraintLayer):
    r"""Euclidean projection on the rules (GLCLayer): any sign, the smallest change, exact zeros.

    With equalities alone it is the closed form :math:`x = y - W^+(Wy - b)`, two matrix products
    with a pseudo-inverse made once, which `torch.compile` takes whole. With bounds or inequalities
    it is Newton's method on the dual, or the paper's ADMM with a polish.

    A variable at a bound has a zero gradient, like a unit behind a ReLU; where that stalls
    training, start with a warm `BinaryLinearConstraintLayer`.

    Parameters
    ----------
    constraints
        The rules.
    engine
        `"auto"` (Newton, ADMM for what it leaves), `"newton"` or `"admm"`.
    rho, polish
        ADMM's penalty and whether its active set is polished.
    tol, max_iter, on_failure
        As in `BinaryLinearConstraintLayer`.

    Source: the paper's GLCLayer.

    Examples
    --------
    >>> from theory_probes.constraint_layers import simplex
    >>> layer = GeneralLinearConstraintLayer(simplex(3))
    >>> layer(torch.tensor([1.0, 2.0, 2.5]))
    tensor([0.0000, 0.2500, 0.7500])
    """

    pinv: Tensor

    def __init__(
        self,
        constraints: LinearConstraints,
        engine: Engine = "auto",
        rho: float = 3.0,
        polish: bool = True,
        tol: float | None = None,
        max_iter: int | None = None,
        on_failure: OnFailure = "warn",
    ) -> None:
        super().__init__(constraints, tol, max_iter, on_failure)
        if engine not in ("auto", "newton", "admm"):
            raise ValueError(f"engine is {engine!r}; allowed: 'auto', 'newton' or 'admm'")
        check_positive("rho", rho)
        if not isinstance(polish, bool):
            raise ValueError(f"polish is {polish!r}; allowed: True or False")
        self.engine, self.rho, self.polish = engine, rho, polish
        bounded = np.isfinite(constraints.lower).any() or np.isfinite(constraints.upper).any()
        self.closed_form = not bounded and not len(constraints.b_ub)
        pinv = np.linalg.pinv(constraints.A_eq) if self.closed_form else np.zeros((0, 0))
        self.register_buffer("pinv", torch.from_numpy(pinv))

    def forward(
        self,
        y: Tensor,
        b_eq: Tensor | None = None,
        b_ub: Tensor | None = None,
        *,
        sample_ids: Tensor | None = None,
    ) -> Tensor:
        """Project y (..., n) on the rules; parameters as in
        `BinaryLinearConstraintLayer.forward`."""
        right_eq, right_ub = self._check(y, b_eq, b_ub)
        info = SolveInfo()
        if self.closed_form:
            x = closed_form(y, self.A_eq.to(y), right_eq, self.pinv.to(y), self.tol, info)
            return self._finish(x, right_eq, right_ub, info, None) if can_look() else x
        x = euclidean_project(
            y,
            self.A_eq.to(y),
            right_eq,
            self.A_ub.to(y),
            right_ub,
            lower=self.lower.to(y),
            upper=self.upper.to(y),
            engine=self.engine,
            rho=self.rho,
            polish=self.polish,
            tol=self.tol,
            max_iter=self.max_iter,
            start=self._start(y, sample_ids),
            info=info,
        )
        return self._finish(x, right_eq, right_ub, info, sample_ids)
