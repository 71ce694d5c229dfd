"""AIME 2025: the thirty problems of the year's two American Invitational Mathematics Examinations; whole numbers.

From the hub, or from a file of your own.
"""

from __future__ import annotations

from ponder.tasks._benchmark import Maths


class Aime25(Maths):
    dataset = "opencompass/AIME2025"
    count = 30
