"""AIME 2024: the thirty problems of the year's two American Invitational Mathematics Examinations; whole numbers.

From the hub, where it is a parquet file and needs polars, or from a file of your own.
"""

from __future__ import annotations

from ponder.tasks._benchmark import Maths


class Aime24(Maths):
    dataset = "HuggingFaceH4/aime_2024"
    count = 30
