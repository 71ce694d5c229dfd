"""What replies are made of: loops, hesitations, where the answer is first stated, and the figure's
sentence about truncated attempts.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ponder.core import Bill, Completion
from ponder.figures.effort import Effort
from ponder.results.results import Results
from ponder.results.study import Study
from ponder.traces.anatomy import anatomy, first_statement, loops


def passage(start: int, length: int) -> str:
    """Return distinct words."""
    return "".join(f"word{number} " for number in range(start, start + length))


def reply(thinking: str, answer: str = "", **bill: Any) -> Completion:
    return Completion(thinking, answer, "end", Bill(**{"thinking_tokens": 500, **bill}))


@settings(max_examples=60, deadline=None)
@given(words=st.integers(10, 400), copies=st.integers(3, 40), before=st.integers(0, 300))
def test_k_passes_of_a_text_are_repeated_but_for_the_first(words, copies, before) -> None:
    looped = passage(10_000, words)
    intro = passage(0, before)
    text = intro + looped * copies
    assume(not 195 < (copies - 1) * len(looped) < 200)  # space at the end is not counted
    expected = 0.0
    if (copies - 1) * len(looped) >= 200:
        expected = (copies - 1) * len(looped) / len(text)
    assert loops(text).mean() == pytest.approx(expected, abs=20 / len(text))
    assert not loops(intro + looped).any()
    assert not loops(intro + looped * 2).any()  # a second look is not a loop


@pytest.mark.parametrize(
    "text",
    [
        "".join(f"| {n} | {n * n} | {n % 7} |\n" for n in range(400)),
        "".join(f"Step {n}: we add the next number, which gives the total.\n" for n in range(300)),
        "".join(f"    def test_{n}(self):\n        assert self.f({n}) is None\n\n" for n in range(90)),
        "1 0 0 0 0 0 1 0 0 0\n" * 5,
        "",
        "yes",
    ],
    ids=["table", "enumeration", "code", "grid", "nothing", "short"],
)  # fmt: skip
def test_regular_texts_are_no_loops(text: str) -> None:
    assert not loops(text).any()


def test_loops_of_any_shape() -> None:
    x, y, z = passage(0, 30), "then ", "otherwise "
    inner = (x + y + x + z) * 4  # the passage has a repetition inside
    assert loops(inner).mean() == pytest.approx(0.75, abs=0.01)
    assert loops("so " + "!" * 400).mean() > 0.98
    assert loops("因为所以，" * 80).mean() > 0.98
    one = anatomy([reply(passage(0, 50) + passage(90, 20) * 9)])
    assert one
    assert one.in_loop
    assert one.loops > 0.6
    # A loop that the model got out of, and one that it reached in its answer.
    left = anatomy([reply(passage(90, 20) * 9 + passage(0, 50), "7")])
    assert left
    assert left.loops > 0.5
    assert not left.in_loop
    answered = anatomy([reply(passage(0, 50), passage(90, 20) * 9)])
    assert answered
    assert answered.in_loop


def test_hesitations_and_restarts_are_whole_words_per_thousand_tokens() -> None:
    text = "Wait, WAIT! Hmm... I await it. Let\u2019s\ndouble-check. Waiter? Let me start over; try again."
    measured = anatomy([reply(text, "wait wait", thinking_tokens=100)])
    assert measured
    assert measured.hesitations == pytest.approx(1000 * 4 / 100)
    assert measured.restarts == pytest.approx(1000 * 2 / 100)
    # Without thinking, the reply is what is measured, and its tokens are counted.
    plain = anatomy([reply("", "wait", thinking_tokens=0, answer_tokens=10)])
    assert plain
    assert plain.hesitations == 100


@pytest.mark.parametrize(
    ("answer", "text", "position"),
    [
        ("12", "112, 120, 1.12, 12.5 and 12,000, so 12.", 36),
        ("1234", "a total of 1,234 apples", 11),
        (3.5, "it is 3.5", 6),
        ([42], "is 42", 3),
        ("New  York", "in new\nyork", 3),
        (r"\frac{1}{2}", r"so \frac{1}{2}.", 3),
        ("-4", "3-4 is not it, -4 is", 15),
        ("7", "there are 17 of them", -1),
        ("B", "A or B", None),
        (True, "True", None),
        ({"a": 1}, "1", None),
        ("x" * 201, "x" * 300, None),
        (None, "None", None),
        ("", "", None),
    ],
)
def test_first_statement(answer: Any, text: str, position: int | None) -> None:
    assert first_statement(text, answer) == position


def test_tokens_around_the_first_statement_add_up() -> None:
    thinking = "a" * 299 + " 42 " + "b" * 697
    measured = anatomy([reply(thinking, "42")], "42")
    assert measured
    assert measured.states_answer is True
    assert measured.tokens_before_answer == pytest.approx(150)
    assert measured.tokens_after_answer == pytest.approx(350)
    never = anatomy([reply("no idea", "42")], "42")
    assert never
    assert never[-3:] == (False, None, None)


def test_what_is_unknown_is_not_measured() -> None:
    assert anatomy([reply("", "42")]) is None  # the server hides the thinking
    summary = Completion("in short", "42", "end", Bill(thinking_tokens=5), {"summarized": 1.0})
    assert anatomy([summary]) is None
    assert anatomy([]) is None
    # The bill of a vote is that of all its samples.
    of_several = anatomy([reply("wait, 42", "42")], "42", one_call=False)
    assert of_several is not None
    assert of_several[2:] == (None,) * 5
    conversation = anatomy([reply("wait 42"), reply("42")], "42")
    assert conversation is not None
    assert conversation.hesitations == 1
    assert conversation.states_answer is None


STUDY = """
samples = 2
[[task]]
name = "jsonl"
file = "problems.jsonl"
[[model]]
name = "replay"
file = "answers.jsonl"
label = "m"
[[figure]]
name = "effort"
"""


@pytest.fixture
def results(write, ponder) -> Results:
    """Twelve problems with two samples each: of the first eight all are truncated, six in loops."""
    lines: list[dict[str, Any]] = []
    for number in range(12):
        for sample in range(2):
            line: dict[str, Any] = {"problem": f"p{number}", "sample": sample}
            line |= {"thinking": passage(0, 80), "thinking_tokens": 200, "answer": ""}
            if number < 6:
                line["thinking"] += passage(500, 20) * 10
            if number < 8:
                line["stop"] = "length"
            else:
                line |= {"thinking": "wait, 1 or 2", "answer": "1", "answer_tokens": 1}
            lines.append(line)
    write("answers.jsonl", "\n".join(map(json.dumps, lines)))
    problems = [{"id": f"p{n}", "prompt": f"what is {n}?", "answer": "1", "size": 1} for n in range(12)]  # fmt: skip
    write("problems.jsonl", "\n".join(map(json.dumps, problems)))
    write("s.toml", STUDY)
    assert ponder("run", "s.toml").exit_code == 0
    return Results(Study.load("s.toml"), Path("ponder.db"))


def test_effort_says_how_many_truncated_attempts_were_in_a_loop(results: Results) -> None:
    tables = results.estimates("effort")
    [sentence] = [text for text in results.findings("effort") if text.startswith("m:")]
    # The interval is that of 8 problems; 16 independent attempts would have [51, 90].
    assert sentence.endswith("; of the 16 truncated attempts, 75 % [33, 95] were in a loop.")
    truncated, solved = (
        next(row for row in tables["thinking"] if row["outcome"] == outcome)
        for outcome in ("truncated", "solved")
    )
    assert (truncated["attempts"], truncated["measured"], truncated["problems"]) == (16, 16, 8)
    assert truncated["loops"] == pytest.approx(0.75 * 0.6, abs=0.1)
    assert truncated["states_answer"] is None
    assert (solved["in_loop"], solved["hesitations"], solved["states_answer"]) == (0, 5, 1)
    assert solved["tokens_before_answer"] == pytest.approx(200 * 6 / 12)
    # Without texts, the other tables are the same and there is no sentence.
    without = Effort().estimate(results.outcomes)
    assert without.pop("thinking") == []
    tables.pop("thinking")
    assert without == tables
    assert "loop" not in " ".join(Effort().findings({**without, "thinking": []}))


def test_exports_and_transcripts_have_the_measures(results: Results, ponder) -> None:
    assert ponder("export", "s.toml", "--format", "csv").exit_code == 0
    with Path("s.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    in_loop = [row["in_loop"] for row in rows if row["ended"] == "truncated"]
    assert in_loop.count("True") == 12
    assert in_loop.count("False") == 4
    solved = next(row for row in rows if row["ended"] == "right")
    assert (solved["hesitations"], solved["states_answer"]) == ("5.0", "True")
    transcript = next(results.attempts())
    assert transcript.anatomy
    assert transcript.anatomy.in_loop
