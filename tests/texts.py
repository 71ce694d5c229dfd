"""Texts that a model might write on a bad day: made of the pieces that readers look for."""

from __future__ import annotations

from hypothesis import strategies as st

PIECES = (
    "<answer>", "</answer>", "<think>", "</think>", "</thinking>", "\\boxed{", "\\text{", "\\frac{3}{4}", "{", "}",
    "[[", "[", "]", "]]", ",", ":", '"', "'", "(", ")", ".", "...", "。", "”", "-", "−", "/", "+", "*", "_", "$", "#",
    "0", "1", "42", "1,234", "٣", "1e400", "NaN", "null", "true", "answer", "Answer: ", " is ", "the sum =", "A", "B)",
    '{"steps": [1, 0.5, 0], "whole": 1}', '"steps":', '{"score": 1}', "Dr", "e.g", "x", " ", "\t", "\n", "\r\n", "\v",
    "\x85", "\u2028", "\u202f", "\x00", "\x1b[31m", "\ud800", "\\ud800", "\u0300", "é", "漢", "\U0001f600",
)  # fmt: skip

texts = st.lists(st.sampled_from(PIECES) | st.text(st.characters(), max_size=3), max_size=30).map(
    "".join
)
