"""Checks the sums that a text states, such as `12 + 7 - 3 = 16`, for tasks of arithmetic."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

_NUMBER = r"\d{1,3}(?:,\d{3})+|\d+"
_SUM = re.compile(
    rf"(?<![\w.)*/^])([-−]?\s*(?:{_NUMBER})(?:\s*[-−+]\s*(?:{_NUMBER}))+)\s*="
    rf"\s*([-−]?\s*(?:{_NUMBER}))(?![\w.]*\d)"
)


def true_sums(text: str) -> bool:
    """Return whether every sum that a text states is right; a text that states none is."""
    return all(_value(terms) == _value(result) for terms, result in _SUM.findall(text))


def states_a_sum(text: str) -> bool:
    return _SUM.search(text) is not None


def up_to_the_first_error(steps: Sequence[str], right: Callable[[str], bool]) -> list[bool]:
    """Return for each step whether it and all before it are right."""
    verdicts = []
    right_so_far = True
    for step in steps:
        right_so_far = right_so_far and right(step)
        verdicts.append(right_so_far)
    return verdicts


def _value(text: str) -> int:
    """Return the value of a sum such as `12 + 7 - 3`."""
    total = 0
    for sign, digits in re.findall(rf"([-−+]?)\s*({_NUMBER})", text):
        number = int(digits.replace(",", ""))
        if sign in ("-", "−"):
            total -= number
        else:
            total += number
    return total
