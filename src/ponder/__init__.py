"""Ponder measures what a right answer costs in thinking tokens, and makes it cost less."""

__version__ = "0.1.0"
