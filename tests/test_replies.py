"""Replies of chat models are read as a person reads them.

`data/replies.jsonl` has replies of two real models, and others written by hand in the manner of
larger ones. Each was labelled by reading it, without knowing how Ponder reads: right, wrong, or
none if it gives no final answer. Doubtful ones are left out. `data/prose.jsonl` has answers in
plain sentences, written and labelled by hand.

`data/blind_*.jsonl` are two sets of 300 replies, written and labelled by people who knew neither
the reader nor these tests. The rules were improved on the first; the second was held out, so its
figures are what to expect of new replies. `data/blind_short.jsonl` has 60 short replies that the
author of the present rules wrote before them and ran once after them.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ponder.core import Problem, Task, plugins
from ponder.core.settings import build
from ponder.tasks import reading
from ponder.tasks.reading.values import numerals


class Reply(msgspec.Struct):
    task: str
    size: int
    gold: Any
    reply: str
    label: str
    writer: str
    prompt: str = ""
    settings: dict[str, Any] = {}


LINES = (Path(__file__).parent / "data" / "replies.jsonl").read_bytes().splitlines()
REPLIES = [msgspec.json.decode(line, type=Reply) for line in LINES]


@cache
def task_of(name: str, dataset: str) -> Task:
    settings = {"dataset": dataset} if dataset else plugins.load("tasks", name).example
    return build("tasks", {"name": name, **settings}, name, Path())


def graded(reply: Reply) -> str:
    task = task_of(reply.task, reply.settings.get("dataset", ""))
    if reply.task == "execution":  # one turn of a conversation
        gold = {"sums": [reply.gold], "start": 0}
        problem = Problem("p", reply.size, (reply.prompt,), gold, facts={"per_turn": 1})
    else:
        problem = Problem("p", reply.size, (reply.prompt,), reply.gold)
    grade = task.grade(problem, reply.reply)
    return "none" if grade.parsed is None else "right" if grade.correct else "wrong"


@pytest.fixture(scope="module")
def table() -> Counter[tuple[str, str]]:
    return Counter((reply.label, graded(reply)) for reply in REPLIES)


def test_there_are_enough_replies_of_every_kind() -> None:
    real = [reply for reply in REPLIES if reply.writer != "hand"]
    assert len({reply.writer for reply in real}) == 2
    assert len(REPLIES) - len(real) > 200
    assert min(Counter(reply.task for reply in REPLIES).values()) >= 40
    assert min(Counter(reply.label for reply in REPLIES).values()) >= 50


def test_no_answer_is_right_that_a_person_finds_wrong(table: Counter[tuple[str, str]]) -> None:
    assert table["wrong", "right"] + table["none", "right"] == 0


def test_right_answers_are_found(table: Counter[tuple[str, str]]) -> None:
    missed = table["right", "wrong"] + table["right", "none"]
    assert missed <= 0.01 * sum(n for (label, _), n in table.items() if label == "right")


def test_a_wrong_answer_is_rarely_called_unparsed(table: Counter[tuple[str, str]]) -> None:
    assert table["wrong", "none"] <= 0.05 * sum(
        n for (label, _), n in table.items() if label == "wrong"
    )


class Prose(msgspec.Struct):
    """A reply in prose to a line of a user's own file."""

    prompt: str
    answer: str
    reply: str
    label: str


PROSE_LINES = (Path(__file__).parent / "data" / "prose.jsonl").read_bytes().splitlines()
PROSE = [msgspec.json.decode(line, type=Prose) for line in PROSE_LINES]


@pytest.fixture(scope="module")
def prose() -> Counter[tuple[str, str]]:
    """Count the replies in prose by their label and by how `jsonl` grades them."""
    task = task_of("jsonl", "")
    counts: Counter[tuple[str, str]] = Counter()
    for line in PROSE:
        grade = task.grade(Problem("p", 0, (line.prompt,), line.answer), line.reply)
        verdict = "right" if grade.correct else "wrong"
        if grade.parsed is None:
            verdict = "none"
        counts[line.label, verdict] += 1
    return counts


def test_sentences_are_never_read_as_right_if_they_are_wrong(
    prose: Counter[tuple[str, str]],
) -> None:
    assert prose["wrong", "right"] + prose["none", "right"] == 0


def test_right_sentences_are_found(prose: Counter[tuple[str, str]]) -> None:
    assert prose["right", "right"] >= 842  # of 892


@pytest.mark.parametrize(
    ("name", "fewest_found", "most_misread"),
    [("blind_development", 168, 0), ("blind_held_out", 143, 4), ("blind_short", 32, 0)],
)
def test_blind_sets_are_read_no_worse(name: str, fewest_found: int, most_misread: int) -> None:
    """Hold the reader to the right replies it finds, and to the wrong ones it takes for right.

    The sets have 180, 180 and 40 right replies, 110, 110 and 15 wrong, 10, 10 and 5 ambiguous.
    """
    task = task_of("jsonl", "")
    counts: Counter[tuple[str, bool]] = Counter()
    for line in (Path(__file__).parent / "data" / f"{name}.jsonl").read_bytes().splitlines():
        blind = msgspec.json.decode(line, type=Prose)
        grade = task.grade(Problem("p", 0, (blind.prompt,), blind.answer), blind.reply)
        counts[blind.label, grade.correct] += 1
    assert counts["right", True] >= fewest_found
    assert counts["wrong", True] <= most_misread
    assert counts["ambiguous", True] == 0


def test_no_sentence_gives_another_of_its_numbers() -> None:
    """With another number of a right reply as the right answer, it is nearly always wrong."""
    checked = 0
    misread = 0
    for line in PROSE:
        gold = reading.number(line.answer)
        if line.label != "right" or gold is None or "%" in line.reply:
            continue
        written = {numeral.written for numeral in numerals(line.reply) if numeral.value != gold}
        others = [text for text in written if reading.number(text) is not None]
        for other in others:
            verdict = reading.read(line.reply, other, line.prompt)
            misread += verdict is not None and verdict.right
        checked += len(others)
    assert checked > 400
    assert misread <= 9
