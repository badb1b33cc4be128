"""Runs a paper's headline claim against baselines and gives an honest verdict.

>>> from repro_bench import Claim, Experiment, Outcome
"""

from importlib.metadata import version

from .experiment import Claim, Experiment, Outcome, Results

__all__ = ["Claim", "Experiment", "Outcome", "Results", "__version__"]

__version__ = version("repro-bench")
