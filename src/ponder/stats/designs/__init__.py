"""Adaptive designs: which cells to ask next, and when a study's question is answered.

A design holds settings only. `next(scores)` returns how many more problems to ask of each arm,
zeros at the end.
"""
