"""Both layers against the packages that people use: 64 samples, forward and backward."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CASES = {
    "entropic": {
        "text": "KL layer, 10 x 10 doubly stochastic, float32, temperature .2",
        "peer": "linsatnet 0.1.3",
        "requirements": "linsatnet.txt",
        "target": 8.0,
        "repeats": 5,
    },
    "entropic-violation": {
        "text": "the same, largest violation of a rule",
        "peer": "linsatnet 0.1.3",
        "requirements": "linsatnet.txt",
        "target": 100.0,
        "repeats": 3,
        "quantity": "violation",
    },
    "sinkhorn": {
        "text": "KL layer against 200 recorded sweeps of log-Sinkhorn",
        "peer": "torch, unrolled",
        "requirements": None,
        "target": None,
        "repeats": 5,
    },
    "euclidean-qpth": {
        "text": "Euclidean layer with x >= 0, 10 x 10 doubly stochastic, float64",
        "peer": "qpth 0.0.18",
        "requirements": "qpth.txt",
        "target": 20.0,
        "repeats": 5,
    },
    "euclidean-cvxpylayers": {
        "text": "the same",
        "peer": "cvxpylayers 1.2, Clarabel",
        "requirements": "cvxpylayers.txt",
        "target": 20.0,
        "repeats": 3,
    },
    "closed-form": {
        "text": "Euclidean layer, equalities alone, float32",
        "peer": "torch.linalg.lstsq a call",
        "requirements": None,
        "target": None,
        "repeats": 5,
    },
}
SAMPLES, SIDE, TEMPERATURE = 64, 10, 0.2


def inputs(path: Path) -> None:
    """Standard normal scores and an upstream gradient, as text that every environment reads."""
    import random

    rng = random.Random(0)
    size = SAMPLES * SIDE * SIDE
    draws = {name: [rng.gauss(0, 1) for _ in range(size)] for name in ("y", "g")}
    (path / "inputs.json").write_text(json.dumps(draws))


def ours(path: Path) -> dict[str, float]:
    import torch

    from theory_probes.constraint_layers import (
        BinaryLinearConstraintLayer,
        GeneralLinearConstraintLayer,
        LinearConstraints,
        doubly_stochastic,
    )

    rules = doubly_stochastic(SIDE)
    layer: Any
    if path.name.startswith("euclidean"):
        layer, dtype = GeneralLinearConstraintLayer(rules), torch.float64
    elif path.name == "closed-form":
        equal = LinearConstraints(rules.n, rules.A_eq, rules.b_eq)
        layer, dtype = GeneralLinearConstraintLayer(equal), torch.float32
    else:
        layer, dtype = BinaryLinearConstraintLayer(rules, TEMPERATURE), torch.float32
    return measure(path, layer, dtype, "ours")


def peer(path: Path) -> dict[str, float]:
    import torch

    n = SIDE * SIDE
    A, b = sums(torch.float64)
    layer: Callable[[Any], Any]
    dtype = torch.float64
    if path.name.startswith("entropic"):
        from LinSATNet import linsat_layer

        dtype = torch.float32
        E, f = A.float(), b.float()

        def layer(y: Any) -> Any:
            return linsat_layer(y, E=E, f=f, tau=TEMPERATURE, max_iter=100, no_warning=True)

    elif path.name == "sinkhorn":
        dtype = torch.float32

        def layer(y: Any) -> Any:
            z = y.view(-1, SIDE, SIDE) / TEMPERATURE
            for _ in range(200):
                z = z - z.logsumexp(-1, keepdim=True)
                z = z - z.logsumexp(-2, keepdim=True)
            return z.exp().flatten(1)

    elif path.name == "euclidean-qpth":
        from qpth.qp import QPFunction

        Q, G, h = torch.eye(n).double(), -torch.eye(n).double(), torch.zeros(n).double()

        def layer(y: Any) -> Any:
            # qpth wants equalities of full rank: the last one follows from the others.
            return QPFunction(verbose=-1)(Q, -y, G, h, A[:-1], b[:-1])

    elif path.name == "closed-form":
        dtype = torch.float32
        W, right = A.float(), b.float()

        def layer(y: Any) -> Any:
            return y - torch.linalg.lstsq(W, (y @ W.T - right).T, driver="gelsd").solution.T

    else:
        import cvxpy as cp
        from cvxpylayers.torch import CvxpyLayer

        x, target = cp.Variable(n), cp.Parameter(n)
        problem = cp.Problem(
            cp.Minimize(0.5 * cp.sum_squares(x - target)),
            [A[:-1].numpy() @ x == b[:-1].numpy(), x >= 0],
        )
        made = CvxpyLayer(problem, parameters=[target], variables=[x])

        def layer(y: Any) -> Any:
            # Its default solver is off by 3e-2 here; this one by 6e-4, and is no slower.
            return made(y, solver_args={"solve_method": "Clarabel"})[0]

    return measure(path, layer, dtype, "peer")


def measure(path: Path, layer: Callable[[Any], Any], dtype: Any, side: str) -> dict[str, float]:
    """Time one forward and one backward call; compare with what the other side found last."""
    import torch

    torch.set_num_threads(1)
    drawn = json.loads((path / "inputs.json").read_text())
    y, g = (torch.tensor(drawn[k], dtype=dtype).view(SAMPLES, -1) for k in ("y", "g"))
    y.requires_grad_()
    started = time.perf_counter()
    x = layer(y)
    forward = time.perf_counter()
    x.backward(g.to(x.dtype))
    ended = time.perf_counter()
    A, b = sums(x.dtype)
    found = x.detach()
    torch.save(found.double(), path / f"{side}.pt")
    other = path / f"{'peer' if side == 'ours' else 'ours'}.pt"
    difference = float("nan")
    if other.exists():
        difference = float((torch.load(other, weights_only=True) - found.double()).abs().max())
    violation = torch.maximum((found @ A.T - b).abs().amax(), -found.amin()).item()
    facts = {
        "seconds": ended - started,
        "forward": forward - started,
        "backward": ended - forward,
        "violation": violation,
    }
    if difference == difference:
        facts["difference"] = difference
    return facts


def sums(dtype: Any) -> tuple[Any, Any]:
    """The rows and columns of a matrix flattened row by row, and ones."""
    import torch

    eye, ones = torch.eye(SIDE, dtype=dtype), torch.ones(1, SIDE, dtype=dtype)
    A = torch.cat([torch.kron(eye, ones), torch.kron(ones, eye)])
    return A, torch.ones(2 * SIDE, dtype=dtype)
