"""AMC 2023: forty problems of the year's American Mathematics Competitions 12, asked for a number, without choices.

From the hub, or from a file of your own.
"""

from __future__ import annotations

from ponder.tasks._benchmark import Maths


class Amc23(Maths):
    dataset = "math-ai/amc23"
    count = 40
