import numpy as np
import pandas as pd
import pytest

from stats_design.delayed_outcomes import simulate_dataset
from stats_design.delayed_outcomes.simulate import assign, potential_frame

SETTINGS = {"value_range": (0, 12), "expected_events": 1500, "value_scale": 1.2, "propensity": 0.5}


@pytest.fixture
def settings():
    return dict(SETTINGS)


@pytest.fixture(scope="session")
def staggered():
    """5,000 units with values cut at 12, one assignment, outcomes by day 60."""
    potential = simulate_dataset("staggered", 5000, 3)
    units = assign(potential, 4)
    late = units["outcome_time"] > 60
    units.loc[late, "outcome_time"] = np.inf
    units["outcome_value"] = units["outcome_value"].clip(upper=12.0)
    return units


@pytest.fixture(scope="session")
def logs(staggered):
    """The same as logs of entries and outcomes."""
    unit = np.arange(len(staggered))
    entries = pd.DataFrame(
        {"unit": unit, "time": staggered["entry_time"], "arm": staggered["treatment"]}
    )
    happened = np.isfinite(staggered["outcome_time"])
    outcomes = pd.DataFrame(
        {
            "unit": unit,
            "time": staggered["outcome_time"],
            "value": staggered["outcome_value"],
        }
    )[happened]
    return entries, outcomes


@pytest.fixture(scope="session")
def six_units():
    """Six units with distinct times, values and propensities, for enumeration."""
    rng = np.random.default_rng(11)
    entry = np.sort(rng.uniform(0, 2, 6))
    return potential_frame(
        entry,
        (entry + rng.exponential(1, 6), entry + rng.exponential(1, 6)),
        (rng.uniform(0.5, 2, 6), rng.uniform(-1, 2, 6)),
        rng.uniform(0.2, 0.8, 6),
    )
