"""Asks MATH-500: 500 problems of MATH (Hendrycks et al. 2021), selected by Lightman et al. 2023.

Answers are mathematical expressions. Read from the hub or from a local file.
"""

from __future__ import annotations

from ponder.tasks._benchmark import Benchmark, Maths


class Math500(Maths, Benchmark):
    dataset = "HuggingFaceH4/MATH-500"
    count = 500
