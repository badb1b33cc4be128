"""A network that answers linear programs with feasible points, and the reader of their files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linprog
from torch import Tensor, nn

from .constraints import LinearConstraints
from .layers import BinaryLinearConstraintLayer, GeneralLinearConstraintLayer


@dataclass(frozen=True)
class LinearProgram:
    """Minimise `objective @ x + offset` over `constraints`; `names` are the variables'."""

    objective: NDArray[np.float64]
    offset: float
    constraints: LinearConstraints
    names: list[str]

    def optimum(self) -> float:
        """The optimal objective, by HiGHS.

        Raises
        ------
        ValueError
            If HiGHS finds no optimum, such as for an unbounded program.
        """
        rules = self.constraints
        found = linprog(
            self.objective,
            A_eq=rules.A_eq if len(rules.b_eq) else None,
            b_eq=rules.b_eq if len(rules.b_eq) else None,
            A_ub=rules.A_ub if len(rules.b_ub) else None,
            b_ub=rules.b_ub if len(rules.b_ub) else None,
            bounds=list(zip(rules.lower, rules.upper, strict=True)),
            method="highs",
        )
        if found.x is None:
            raise ValueError(f"no optimum: {found.message}")
        return float(self.objective @ found.x) + self.offset


def read_mps(path: str | Path) -> LinearProgram:
    """Read a linear program from an MPS (or LP) file, through HiGHS.

    Integer marks are dropped: what is read is the relaxation. A maximisation is turned around.

    Raises
    ------
    ImportError
        Without the extra `lp`.
    FileNotFoundError, ValueError
        If there is no such file or HiGHS cannot read it.

    Examples
    --------
    >>> text = '''NAME
    ... ROWS
    ...  N  cost
    ...  L  room
    ... COLUMNS
    ...  a  cost  -1.0  room  1.0
    ...  b  cost  -2.0  room  1.0
    ... RHS
    ...  RHS  room  1.0
    ... ENDATA
    ... '''
    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = os.path.join(folder, "tiny.mps")
    ...     _ = open(file, "w").write(text)
    ...     program = read_mps(file)
    >>> program.constraints, program.optimum()
    (LinearConstraints(n=2, equalities=0, inequalities=1, bounded=2, rank=0), -2.0)
    """
    try:
        import highspy
    except ImportError:
        message = "reading MPS files needs the extra 'lp': pip install theory-probes[lp]"
        raise ImportError(message) from None
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file")
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    if solver.readModel(str(path)) == highspy.HighsStatus.kError:
        raise ValueError(f"{path} is not an MPS or LP file that HiGHS can read")
    model = solver.getLp()
    n, m = model.num_col_, model.num_row_
    if n == 0:
        raise ValueError(f"{path} has no variables")
    A = np.zeros((m, n))
    matrix = model.a_matrix_
    starts, index = (np.asarray(part, dtype=np.int64) for part in (matrix.start_, matrix.index_))
    value = np.asarray(matrix.value_, dtype=np.float64)
    major = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    if matrix.format_ == highspy.MatrixFormat.kColwise:
        A[index, major] = value
    else:
        A[major, index] = value
    low, high = np.asarray(model.row_lower_), np.asarray(model.row_upper_)
    equal = low == high
    below, above = ~equal & np.isfinite(high), ~equal & np.isfinite(low)
    constraints = LinearConstraints(
        n,
        A[equal],
        low[equal],
        np.vstack([A[below], -A[above]]),
        np.concatenate([high[below], -low[above]]),
        np.asarray(model.col_lower_),
        np.asarray(model.col_upper_),
    )
    sign = -1.0 if model.sense_ == highspy.ObjSense.kMaximize else 1.0
    names = list(model.col_names_) or [f"x{i}" for i in range(n)]
    objective = sign * np.asarray(model.col_cost_, dtype=np.float64)
    return LinearProgram(objective, sign * float(model.offset_), constraints, names)


class LinearProgramNet(nn.Module):
    r"""Backbone, then a constraint layer: learns to answer :math:`\max_x \langle c, x\rangle`.

    Parameters
    ----------
    constraints
        The rules of all programs of the family; their objectives c differ.
    backbone
        `"mlp"`, or `"gnn"`: two rounds of messages between variables and rows, whose size does not
        depend on the number of either.
    projection
        `"euclidean"` (GLCNet) or `"entropic"` (BLCNet).
    hidden
        Width of the backbone.
    temperature
        Of the entropic layer.
    seed
        Of the initial weights.

    Examples
    --------
    >>> from theory_probes.constraint_layers import capped_simplex
    >>> net = LinearProgramNet(capped_simplex(4, 2), projection="entropic", seed=0)
    >>> x = net.solve(torch.tensor([[3.0, 1.0, 2.0, 0.0]]))
    >>> x.shape, round(float(x.sum()), 4)
    (torch.Size([1, 4]), 2.0)
    """

    def __init__(
        self,
        constraints: LinearConstraints,
        backbone: Literal["mlp", "gnn"] = "mlp",
        projection: Literal["euclidean", "entropic"] = "euclidean",
        hidden: int = 256,
        temperature: float = 0.05,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if backbone not in ("mlp", "gnn"):
            raise ValueError(f"backbone is {backbone!r}; allowed: 'mlp' or 'gnn'")
        if projection not in ("euclidean", "entropic"):
            raise ValueError(f"projection is {projection!r}; allowed: 'euclidean' or 'entropic'")
        n = constraints.n
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.backbone: nn.Module
            if backbone == "mlp":
                self.backbone = nn.Sequential(
                    nn.Linear(n, hidden),
                    nn.ReLU(),
                    nn.Linear(hidden, hidden),
                    nn.ReLU(),
                    nn.Linear(hidden, n),
                )
            else:
                self.backbone = _MessagePassing(constraints, hidden)
        self.layer: nn.Module
        if projection == "euclidean":
            self.layer = GeneralLinearConstraintLayer(constraints)
        else:
            self.layer = BinaryLinearConstraintLayer(constraints, temperature=temperature)

    def forward(self, c: Tensor) -> Tensor:
        """Feasible points for objectives c (..., n)."""
        # The objective itself is the untrained answer; the backbone learns what to add to it.
        answer: Tensor = self.layer(c + self.backbone(c))
        return answer

    @staticmethod
    def objective_loss(x: Tensor, c: Tensor) -> Tensor:
        """Minus the mean objective, to be minimised in training."""
        return -(x * c).sum(-1).mean()

    @torch.no_grad()
    def solve(self, c: Tensor) -> Tensor:
        """Feasible points for objectives c (..., n), without gradients."""
        answer: Tensor = self(c)
        return answer


class _MessagePassing(nn.Module):
    """Variables tell rows, rows tell variables, twice; the weights are shared by all of them."""

    A: Tensor
    b: Tensor

    def __init__(self, constraints: LinearConstraints, hidden: int) -> None:
        super().__init__()
        A = np.vstack([constraints.A_eq, constraints.A_ub])
        right = np.concatenate([constraints.b_eq, constraints.b_ub])
        norm = np.maximum(np.linalg.norm(A, axis=1, keepdims=True), 1e-12)
        dtype = torch.get_default_dtype()
        self.register_buffer("A", torch.from_numpy(A / norm).to(dtype))
        self.register_buffer("b", torch.from_numpy(right / norm[:, 0]).to(dtype))
        width = max(8, hidden // 8)
        self.lift = nn.Linear(1, width)
        self.rows = nn.ModuleList(nn.Linear(width + 1, width) for _ in range(2))
        self.columns = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(2))
        self.read = nn.Linear(width, 1)

    def forward(self, c: Tensor) -> Tensor:
        h = self.lift(c[..., None])
        side = self.b[:, None].expand(*c.shape[:-1], -1, 1)
        for to_row, to_column in zip(self.rows, self.columns, strict=True):
            message = torch.relu(to_row(torch.cat([self.A @ h, side], -1)))
            h = torch.relu(to_column(torch.cat([h, self.A.mT @ message], -1)))
        out: Tensor = self.read(h)[..., 0]
        return out
