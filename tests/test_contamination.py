"""Evaluation problems among traces are known by their words or their id, and a phrase in common is
chance.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import msgspec
from scored_traces import WORDS, text

from ponder.core import Problem
from ponder.tasks.chain_sum import ChainSum
from ponder.traces import Trace
from ponder.traces.contamination import EvaluationSet, problems
from ponder.traces.ngrams import ngrams, words
from ponder.traces.selection import Choice, Scored, select

ASKED = (
    "Find the number of ordered pairs of positive integers $(a, b)$ such that the least common multiple of $a$ and $b$ "
    "is $2^3 \\cdot 5^7$ and their sum is odd."
)


def holds(question: str, *problems: str, **settings) -> bool:
    evaluation = EvaluationSet([Problem("", 0, (p,)) for p in problems or (ASKED,)], **settings)
    return evaluation.contains(Trace(question, "", "so"))


def test_an_evaluation_problem_is_known_by_its_words() -> None:
    assert holds(ASKED)
    assert holds(
        "PROBLEM 4 —  "
        + ASKED.replace("$", "").replace("(a, b)", r"\((a,b)\)").upper()
        + " Think step by step."
    )
    assert holds(ASKED.replace("multiple", "MULTIPLES"))  # one word edited
    assert holds(ASKED[: len(ASKED) * 3 // 4])
    assert holds("Ｆind" + ASKED[4:])
    assert not holds(ASKED[: len(ASKED) // 3])


def test_overlap_is_a_fraction_of_the_problems_words() -> None:
    """Of twenty words, ten are shared in one run: exactly half."""
    asked, other = WORDS[:20], WORDS[100:]

    def shares(count: int, **settings) -> bool:
        return holds(" ".join([*asked[:count], *other[: 20 - count]]), " ".join(asked), **settings)

    assert shares(10)
    assert not shares(9)
    assert shares(9, overlap=0.45)
    assert not shares(10, overlap=0.55)
    assert not shares(10, min_run=11)  # no run is long enough
    assert shares(5, min_run=5, overlap=0.25)
    assert not shares(5, overlap=0.25)
    # Two runs of eight, apart from each other: 16 of 20 words, but half of them if only one counts.
    apart = " ".join([*asked[:8], *other[:5], *asked[12:]])
    assert holds(apart, " ".join(asked), overlap=0.8)
    assert not holds(apart, " ".join(asked), overlap=0.81)


def test_a_phrase_in_common_is_chance() -> None:
    chance = "Find the number of ordered pairs of positive integers $(x, y)$ such that $x^2 + y^2 = 2025$ and $x < y$."
    assert not holds(chance)
    assert holds(chance, overlap=0.2)
    assert not holds("Compute the least common multiple of 12 and 18.")


def test_short_questions_must_be_the_same() -> None:
    assert holds("what is  2 + 2?", "What is 2 + 2?")
    assert not holds("What is 2 - 2?", "What is 2 + 2?")
    assert not holds("What is 2 + 2 + 3?", "What is 2 + 2?")


def test_a_prompt_that_all_problems_share_is_none_of_them() -> None:
    prompt = "Please reason step by step and put your final answer within the box at the end."
    asked = [f"What is {text(n, 9)}? {prompt}" for n in range(10)]
    assert not holds(f"Why {text(77, 9)}? {prompt}", *asked)
    assert holds(asked[3].replace("?", " now?"), *asked)


def test_chinese_problems() -> None:
    asked = "一个长方形的长是宽的三倍，它的周长是四十八厘米，求这个长方形的面积。"
    assert holds(asked.replace("，", " ").replace("。", ""), asked)
    assert not holds("一个圆的半径是三厘米，求这个圆的面积和周长各是多少。", asked)


def test_generated_problems_are_known_by_their_id() -> None:
    asked = list(islice(ChainSum().problems(6, 0), 3))
    practised = next(ChainSum().problems(6, 1))
    assert {p.id for p in asked} < {p.id for p in problems("chain_sum:6", Path())}
    assert {p.id for p in asked}.isdisjoint(p.id for p in problems("chain_sum:6:1", Path()))
    traces = [
        Scored(
            Trace(
                "In pocket words",
                text(1),
                "so",
                id="whole",
                extra={"problem": msgspec.to_builtins(asked[0])},
            ),
            1.0,
        ),
        Scored(
            Trace("In other words", text(2), "so", id="named", extra={"problem_id": asked[1].id}),
            1.0,
        ),
        Scored(Trace(asked[2].turns[0], text(3), "so", id="quoted"), 1.0),
        Scored(
            Trace(
                practised.turns[0], text(4), "so", id="another", extra={"problem_id": practised.id}
            ),
            1.0,
        ),
    ]
    found = select(traces, Choice(without=("chain_sum:6",)))
    assert [one.id for one in found.kept] == ["another"]
    assert found.counts == {"in the evaluation set": 3}
    # as a method passes them
    assert [one.id for one in select(traces, Choice(), asked).kept] == ["another"]


def test_ngrams_of_words() -> None:
    left, right = ngrams(words("one two three four"), 3), ngrams(words("ONE, two: three! five"), 3)
    assert len(left) == 2
    assert left[0] == right[0]
    assert left[1] != right[1]
    assert ngrams(words("one"), 3)[0] != ngrams(words("two"), 3)[0]
    assert len(ngrams([], 3)) == 0
    assert ngrams(words("one two"), 2)[0] != ngrams(words("two one"), 2)[0]


def test_a_trace_of_a_task_is_known_by_its_problem_as_it_is_in_memory() -> None:
    """A trace that a method draws holds the problem itself, not its record."""
    problem = ChainSum().problem(4, 1)
    trace = Trace("In pocket words.", "", "so", extra={"problem": problem})
    assert EvaluationSet([problem]).contains(trace)
    assert not EvaluationSet([ChainSum().problem(4, 2)]).contains(trace)
