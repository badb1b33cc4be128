"""What a reinforcement learner should see next, and what it should be credited for: methods from ICML 2026."""

from importlib.metadata import version

__version__ = version("rl-curriculum")
