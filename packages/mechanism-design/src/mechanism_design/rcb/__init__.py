"""Recommendations that people have a reason to follow while the recommender still learns.

For a platform whose users are free to ignore its advice. Unpopular options are recommended just
rarely enough, mixed into advice that pays, until all have been tried; then a contextual bandit
takes over. The sizes come from what people believe, and an audit shows that following pays.

Paper: Li, Cheng, Dai, "Incentivized Exploration with Stochastic Covariates: A Two-Stage Mechanism
Design for Recommender System", ICML 2026, arXiv 2406.04374.

Examples
--------
>>> import numpy as np
>>> from mechanism_design.rcb import RCB, GaussianPrior
>>> users = np.column_stack([np.ones(500), np.random.default_rng(0).uniform(-1, 1, 500)])
>>> prior = GaussianPrior(mean=[[0.6, 0.0], [0.4, 0.0]], cov=0.25)
>>> bandit = RCB(prior, contexts=users, sigma=0.2, N=30, L="auto", rule="exact", seed=0)
>>> arms = bandit.recommend(users[:10])
>>> bandit.update(users[:10], arms, rewards=np.zeros(10))
>>> bandit.last_probabilities_.shape
(10, 2)
"""

from .audit import BicAudit, bic_audit
from .bandit import RCB
from .environments import LinearEnv, ReplayClassificationEnv, simulate, to_obp_feedback
from .gap_weights import inverse_gap_weights, sufficient_gamma
from .planning import (
    ColdStartPlan,
    IncentiveInfeasible,
    conditional_promotion,
    minimal_promotion,
    plan_cold_start,
    published_promotion,
    published_samples,
)
from .prior import GaussianPrior
from .warfarin import dose_buckets, load_iwpc, make_warfarin_like, warfarin_task

__all__ = [
    "RCB",
    "BicAudit",
    "ColdStartPlan",
    "GaussianPrior",
    "IncentiveInfeasible",
    "LinearEnv",
    "ReplayClassificationEnv",
    "bic_audit",
    "conditional_promotion",
    "dose_buckets",
    "inverse_gap_weights",
    "load_iwpc",
    "make_warfarin_like",
    "minimal_promotion",
    "plan_cold_start",
    "published_promotion",
    "published_samples",
    "simulate",
    "sufficient_gamma",
    "to_obp_feedback",
    "warfarin_task",
]
