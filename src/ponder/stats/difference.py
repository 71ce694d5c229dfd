"""The difference of two accuracies with Newcombe's (1998) square-and-add interval.

It combines the two intervals, so clustering by problem carries over. The two must not share problems.
"""

from __future__ import annotations

import math

from ponder.core import Estimate


def difference(first: Estimate, second: Estimate) -> Estimate:
    """`first` minus `second`."""
    value = first.value - second.value
    below = math.hypot(first.value - first.low, second.high - second.value)
    above = math.hypot(first.high - first.value, second.value - second.low)
    attempts, problems = first.attempts + second.attempts, first.problems + second.problems
    return Estimate(value, value - below, value + above, attempts, problems)
