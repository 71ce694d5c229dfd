"""Checks the sums that a text states, such as `12 + 7 - 3 = 16`: what tasks of arithmetic know about single steps."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import accumulate

_NUMBER = r"\d{1,3}(?:,\d{3})+|\d+"
_SUM = re.compile(
    rf"(?<![\w.)*/^])([-−]?\s*(?:{_NUMBER})(?:\s*[-−+]\s*(?:{_NUMBER}))+)\s*=\s*([-−]?\s*(?:{_NUMBER}))(?![\w.]*\d)"
)


def true_sums(text: str) -> bool:
    """Whether every sum that a text states is right; a text that states none is."""
    return all(_value(stated[1]) == _value(stated[2]) for stated in _SUM.finditer(text))


def states_a_sum(text: str) -> bool:
    return _SUM.search(text) is not None


def up_to_the_first_error(steps: Sequence[str], right: Callable[[str], bool]) -> list[bool]:
    """For each step whether it and all before it are right: what builds on an error is wrong too."""
    return list(accumulate((right(step) for step in steps), lambda before, now: before and now))


def _value(text: str) -> int:
    terms = re.findall(rf"([-−+]?)\s*({_NUMBER})", text)
    return sum((-1 if sign in ("-", "−") else 1) * int(digits.replace(",", "")) for sign, digits in terms)
