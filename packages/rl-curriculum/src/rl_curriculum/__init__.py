"""What a reinforcement learner sees next and is credited for: ICML 2026 methods."""

from importlib.metadata import version

__version__ = version("rl-curriculum")
