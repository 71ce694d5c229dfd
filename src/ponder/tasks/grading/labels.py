"""People's verdicts on stored replies, which show how often a judge is wrong.

    {"problem": "ticket-17", "answer": "Sent to billing.", "right": false}

`problem` and `answer` are those of a line that `ponder export STUDY --format jsonl` writes; its
other fields may stay. A label holds for every reply with the same text.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TypeAlias

import msgspec

from ponder.core import UserError, digest, plugins
from ponder.core.jsonl import records

LINE = '{"problem": "its id", "answer": "the reply", "right": true}'
# Verdicts by problem and text.
Labels: TypeAlias = dict[tuple[str, bytes], bool]


class ReplyLabel(msgspec.Struct):
    """One line of the file."""

    problem: str
    answer: str
    right: bool


def read_labels(file: Path, problems: Collection[str]) -> Labels:
    """Read a file of labels; `problems` are the ids of the task's problems."""
    labels: Labels = {}
    for where, label in records(file, ReplyLabel, LINE):
        if label.problem not in problems:
            raise UserError(
                f"there is no problem `{label.problem}`",
                where=where,
                hint=plugins.nearest(label.problem, problems),
            )
        earlier = labels.setdefault(key(label.problem, label.answer), label.right)
        if earlier != label.right:
            raise UserError(
                "an earlier line says the opposite of the same reply",
                where=where,
                hint="keep one of the two",
            )
    return labels


def key(problem: str, reply: str) -> tuple[str, bytes]:
    """Return the key of a label: the problem, and a digest of the reply."""
    return problem, digest(reply.strip())
