"""Asks AIME 2025: 30 competition problems from the year's two AIME papers, each with an integer
answer.

Read from the hub or from a local file.
"""

from __future__ import annotations

from ponder.tasks._benchmark import Benchmark, Maths


class Aime25(Maths, Benchmark):
    dataset = "opencompass/AIME2025"
    count = 30
