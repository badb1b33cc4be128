"""Learning where people respond to incentives: truthful accuracy auctions and other mechanisms."""

from importlib.metadata import version

__version__ = version("mechanism-design")
