"""No text of a model stops a run: every task grades it, and what it finds can be stored."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import assume, given
from texts import texts

from ponder.core import Bill, Completion, Memory, Task, plugins
from ponder.core.capabilities import grade_turns, history_message, parse_answer, solve_turns
from ponder.core.settings import build
from ponder.rewards import judge
from ponder.tasks import reading
from ponder.tasks.reading.markup import marked
from ponder.tasks.tents.grid_text import last_grid
from ponder.traces.split import paragraphs, sentences

# one task of each way to grade: the benchmarks of mathematics share theirs
TASKS: dict[object, Task] = {}
for name in plugins.names("tasks"):
    made = build("tasks", {"name": name, **plugins.load("tasks", name).example}, name, Path())
    TASKS.setdefault(type(made).grade, made)


@pytest.mark.parametrize("task", TASKS.values(), ids=Task.title)
@given(text=texts)
def test_every_task_grades_any_text(task: Task, text: str) -> None:
    problem = task.problem(task.sizes()[0], seed=1)
    grade = task.grade(problem, text)
    assert grade == task.grade(problem, text)
    assert grade.why or grade.correct
    assert grade.parsed is not None or not grade.correct
    grade.why.encode()
    json.dumps(grade.details, allow_nan=False).encode()  # as the store has it
    json.dumps(parse_answer(task, problem, text))  # as methods compare it
    completion = Completion("", text, "end", Bill())
    history_message(task, Memory("answers"), completion).content.encode("utf-8", "surrogatepass")


@pytest.mark.parametrize("task", TASKS.values(), ids=Task.title)
@given(before=texts)
def test_a_right_answer_after_any_text_is_right(task: Task, before: str) -> None:
    """As long as nothing before it is left open."""
    problem = task.problem(task.sizes()[0], seed=1)
    assume(not any(opening in before for opening in ("answer>", "\\boxed{", "[", '"')))
    replies = [f"{before}\n{solution}" for solution in solve_turns(task, problem)]
    assert grade_turns(task, problem, replies).correct


@given(texts)
def test_tags_are_those_that_a_regex_finds(text: str) -> None:
    """The obvious regex takes quadratic time; a loop over characters is slow."""
    # An open tag ends with its paragraph, and a closing tag that closes nothing opens: neither is
    # in the regex.
    text = re.sub(
        r"</answer>(?=(?:(?!<answer>).)*</answer>)", "", f"<answer>{text}</answer>", flags=re.DOTALL
    )
    found = [
        one.strip()
        for one in re.findall(
            r"<answer>(?!<answer>)((?:(?!<answer>).)*?)(?=<answer>|</answer>)", text, re.DOTALL
        )
    ]
    inside = next((one for one in reversed(found) if re.sub(r"[\s.…*_`$]", "", one)), None)
    assume("\\boxed{" not in text)
    assert (marked(text) or (None,))[0] == inside


@given(texts)
def test_thinking_ends_at_the_last_closing_tag(text: str) -> None:
    thinking, answer = reading.split_thinking(text)
    *_, last = re.split(r"</think(?:ing)?>", text)
    assert answer == re.split(r"<think(?:ing)?>", last)[0].strip()
    assert not re.search(r"</think(?:ing)?>", answer)
    if not re.search(r"</?think(?:ing)?>", text):
        assert not thinking


@given(texts)
def test_the_last_line_with_content_is_the_final_answer(text: str) -> None:
    marks = (
        "\\boxed{",
        "answer",
        "Answer",
        "*",
        "#",
        "$",
        "`",
        "_",
        "\\",
        '"',
        "”",
        "-",
        "sum",
        ">",
        "?",
    )
    assume(not any(mark in text for mark in marks))
    lines = [line for line in text.splitlines() if any(map(str.isalnum, line))]
    final = reading.final("\n".join(lines))
    assert (final is None) == (not lines)
    if final is not None:
        assert final in lines[-1]


@given(texts)
def test_readers_accept_any_text(text: str) -> None:
    assert isinstance(reading.number(text), Fraction | None)
    assert reading.choice(text, dict.fromkeys("ABCD", "x")) in (None, *"ABCD")
    assert reading.same(text, text)
    grid = last_grid(text)
    assert grid is None or isinstance(grid[0], list)
    assert all(sentences(text)) or not text
    assert all(paragraphs(text)) or not text
    try:
        scores, whole = judge.parse(text, 3)
    except ValueError:
        return
    assert len(scores) == 3
    assert all(0 <= score <= 1 for score in (*scores, whole))
