"""Layers whose output obeys linear rules, with exact gradients.

For a network that predicts a decision (shares, a matching, a flow, a schedule) which must keep to
budgets, sums, capacities or balances. `BinaryLinearConstraintLayer` projects in Kullback-Leibler
divergence, `GeneralLinearConstraintLayer` in Euclidean distance; both sit in every training step.

Paper: "Linear-constraint layers by implicit convex optimisation" (Yan, Liu, Tu, Zhou, Pan, Gui,
Shi; ICML 2026): BLCLayer and GLCLayer.

Examples
--------
>>> import torch
>>> from theory_probes.constraint_layers import BinaryLinearConstraintLayer, group_at_least
>>> rules = group_at_least(5, index=[0, 1], p=0.9)          # weights add to 1, 90% in the group
>>> layer = BinaryLinearConstraintLayer(rules, temperature=0.2)
>>> layer(torch.tensor([0.5, 0.1, -0.2, 0.3, 0.0]))
tensor([0.7927, 0.1073, 0.0063, 0.0766, 0.0171])
"""

from .constraints import LinearConstraints
from .layers import BinaryLinearConstraintLayer, GeneralLinearConstraintLayer, NotConverged
from .linear_program import LinearProgramNet, read_mps
from .projection import SolveInfo, euclidean_project, kl_project
from .sets import (
    budget,
    capped_simplex,
    doubly_stochastic,
    flow_conservation,
    group_at_least,
    partial_matching,
    simplex,
    transport,
)
from .tables import constrained_weights, read_rules

__all__ = [
    "BinaryLinearConstraintLayer",
    "GeneralLinearConstraintLayer",
    "LinearConstraints",
    "LinearProgramNet",
    "NotConverged",
    "SolveInfo",
    "budget",
    "capped_simplex",
    "constrained_weights",
    "doubly_stochastic",
    "euclidean_project",
    "flow_conservation",
    "group_at_least",
    "kl_project",
    "partial_matching",
    "read_mps",
    "read_rules",
    "simplex",
    "transport",
]
