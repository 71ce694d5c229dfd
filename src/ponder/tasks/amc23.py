"""Asks AMC 2023: 40 problems of the American Mathematics Competitions 12, without their choices,
for a number.

Read from the hub or from a local file.
"""

from __future__ import annotations

from ponder.tasks._benchmark import Benchmark, Maths


class Amc23(Maths, Benchmark):
    dataset = "math-ai/amc23"
    count = 40
