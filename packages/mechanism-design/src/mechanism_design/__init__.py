"""Learning where people respond to incentives: truthful accuracy auctions, incentive-compatible bandits and other mechanisms from ICML 2026."""

from importlib.metadata import version

__version__ = version("mechanism-design")
