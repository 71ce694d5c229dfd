"""Asks AIME 2024: 30 competition problems from the year's two AIME papers, each with an integer
answer.

Read from the hub (a parquet file, so polars must be installed) or from a local file.
"""

from __future__ import annotations

from ponder.tasks._benchmark import Benchmark, Maths


class Aime24(Maths, Benchmark):
    dataset = "HuggingFaceH4/aime_2024"
    count = 30
