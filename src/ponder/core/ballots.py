"""Counts which samples gave the same answer, for majority votes: while a run asks, and from stored attempts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ponder.core.capabilities import same_answer
from ponder.core.contracts import Task


def ballots(task: Task, parsed: Sequence[Any]) -> list[int | None]:
    """For each parsed answer the index of the first that is the same; None where there is no answer."""
    firsts: list[int] = []
    votes: list[int | None] = []
    for index, answer in enumerate(parsed):
        if answer is None:
            votes.append(None)
            continue
        first = next((i for i in firsts if same_answer(task, answer, parsed[i])), index)
        firsts += [index] if first == index else []
        votes.append(first)
    return votes
