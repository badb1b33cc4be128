"""Uses the field from an installed wheel, with nothing but what it requires."""

from stats_design.delayed_outcomes import DelayedOutcomeMonitor

monitor = DelayedOutcomeMonitor(
    arms=("control", "treatment"),
    propensity=0.5,
    value_range=(0, 200),
    expected_events=3000,
    value_scale=25,
)
monitor.enter("ann", time=0.0, arm="treatment")
monitor.enter("bob", time=0.5, arm="control")
monitor.event("ann", time=4.5, value=30.0)
# The inverse-propensity estimate of the treatment's total: 30 / 0.5.
assert monitor.snapshot(time=7.0).effect == 60.0
