"""Confidence sequences for randomised experiments whose outcomes come late.

Users enter continuously; a treatment changes whether, when and how much a later outcome is; the
team looks whenever it likes. The question at any time: how much more reward would have been
recorded by now had all units entered so far been treated rather than controlled? Only the
assignment is random: no model of the delay, no maturation window, no stationarity.

Source: Lindon and Kallus, "Design-Based Anytime-Valid Inference for Randomized Experiments with
Delayed Outcomes and Staggered Entry", ICML 2026, arXiv 2603.25971. The exact finite-sample method
is an extension of it.

Examples
--------
>>> monitor = DelayedOutcomeMonitor(
...     propensity=0.5, value_range=(0, 200), expected_events=3000, value_scale=25)
>>> monitor.enter("ann", time=0.0, arm="treatment")
>>> monitor.event("ann", time=4.5, value=30.0)
>>> monitor.snapshot().effect
60.0
"""

from stats_design.delayed_outcomes.batch import delayed_confseq, target_clock_from_pilot
from stats_design.delayed_outcomes.boundary import (
    boundary,
    eta2_for,
    optimal_alpha_split,
    sequential_p,
    target_clock_for,
    union_ratio,
)
from stats_design.delayed_outcomes.coverage import evaluate_coverage
from stats_design.delayed_outcomes.design import Design, make_design
from stats_design.delayed_outcomes.intervals import SmallSampleWarning
from stats_design.delayed_outcomes.monitor import (
    DelayedOutcomeMonitor,
    DuplicateOutcomeError,
    LateEventError,
)
from stats_design.delayed_outcomes.planning import plan
from stats_design.delayed_outcomes.relation import aggregate_query, confseq_of_aggregate
from stats_design.delayed_outcomes.simulate import assign, simulate_dataset
from stats_design.delayed_outcomes.snapshot import Snapshot
from stats_design.delayed_outcomes.synchronous import forward_cross_fit, synchronous_confseq

__all__ = [
    "DelayedOutcomeMonitor",
    "Design",
    "DuplicateOutcomeError",
    "LateEventError",
    "SmallSampleWarning",
    "Snapshot",
    "aggregate_query",
    "assign",
    "boundary",
    "confseq_of_aggregate",
    "delayed_confseq",
    "eta2_for",
    "evaluate_coverage",
    "forward_cross_fit",
    "make_design",
    "optimal_alpha_split",
    "plan",
    "sequential_p",
    "simulate_dataset",
    "synchronous_confseq",
    "target_clock_for",
    "target_clock_from_pilot",
    "union_ratio",
]
