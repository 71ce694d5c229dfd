"""Which answers are read from a model's text, and when two of them are equal."""

from __future__ import annotations

from fractions import Fraction

import pytest

from ponder.core import answers


@pytest.mark.parametrize(
    ("text", "thinking", "answer"),
    [
        ("just this", "", "just this"),
        ("<think>a</think>b", "a", "b"),
        ("a</think>b", "a", "b"),  # the prompt opened the tag
        ("<think>never ends", "never ends", ""),
        ("<think>a<think>b</think>c</think>d", "abc", "d"),
        ("<think>a</think>b<think>c", "ac", "b"),
        ("<thinking>a</thinking>\n\nb", "a", "b"),
        ("</think></think>x", "", "x"),
        ("", "", ""),
    ],
)
def test_split_thinking(text, thinking, answer) -> None:
    assert answers.split_thinking(text) == (thinking, answer)


@pytest.mark.parametrize(
    ("text", "grid"),
    [
        ("[[0, 1], [2, 3]]", [[0, 1], [2, 3]]),
        ("Sure:\n```json\n[[0, 1],\n [2, 3]]\n```\nDone [sic].", [[0, 1], [2, 3]]),
        ("first [[1]] then [[2]]", [[2]]),
        ("an open [ bracket, then [[1]]", [[1]]),
        ("[[1, 2], [3, 4]", None),
        ("[[1, 2],]", None),
        ("nothing", None),
        ("[1, 2]", None),
        ("[[[1]]]", [[[1]]]),
    ],
)
def test_last_json_grid(text, grid) -> None:
    assert answers.last_json_grid(text) == grid


@pytest.mark.parametrize(
    ("text", "final"),
    [
        ("<answer>4</answer>", "4"),
        ("<answer>3</answer> no, <answer> 4 </answer>", "4"),
        ("so \\boxed{\\frac{1}{2}}.", "\\frac{1}{2}"),
        ("The answer is 42.", "42"),
        ("**Answer:** 42", "42"),
        ("We add.\n\n42\n", "42"),
        ("", None),
        ("\n \n", None),
    ],
)
def test_final(text, final) -> None:
    assert answers.final(text) == final


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("42", 42), ("-7", -7), ("−7", -7), ("1,234,567", 1_234_567), ("0.5", Fraction(1, 2)), ("3/4", Fraction(3, 4)),
        ("$12$", 12), ("12,34", None), ("1e5", None), ("4 apples", None), ("", None), ("1/0", None), ("9" * 2000, None),
        ("nan", None), ("٣", 3),
    ],
)  # fmt: skip
def test_number(text, number) -> None:
    assert answers.number(text) == number


def test_same() -> None:
    assert answers.same("27.0", "27")
    assert answers.same("  New  York ", "new york")
    assert not answers.same("27", "28")
    assert not answers.same("9.11", "9.9")
