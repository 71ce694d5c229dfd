"""MATH-500: five hundred problems of Hendrycks' MATH, chosen by Lightman et al. 2023; any expression for an answer.

From the hub, or from a file of your own.
"""

from __future__ import annotations

from ponder.tasks._benchmark import Maths


class Math500(Maths):
    dataset = "HuggingFaceH4/MATH-500"
    count = 500
