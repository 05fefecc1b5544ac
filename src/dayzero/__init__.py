"""dayzero: read a model release, check it, plan it, run it, prove it, and say how to launch it."""

__version__ = "0.1.0"
