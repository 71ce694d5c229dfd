"""The oracle scores by a trace's labels or by the codec it names, which finds the first wrong step."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

pytest.importorskip("torch")

from msgspec import to_builtins
from reward_cases import TRACES

from ponder.core import Request, Scores, Steps
from ponder.models.pocket import CODECS
from ponder.models.pocket.codec import ANSWER
from ponder.recipes.faults import traces
from ponder.rewards.oracle import Oracle
from ponder.tasks._equations import true_sums
from ponder.tasks.chain_sum import ChainSum
from ponder.tasks.execution import Execution, dictionary
from ponder.tasks.tents import Tents


def test_the_oracle_takes_the_labels_of_a_trace() -> None:
    def known(**facts) -> Scores:
        return Oracle().score([Steps("t", "q", ("a", "b"), ("c",), facts)])[0]

    assert known(labels=[True, 0.5, 0]).steps == (1.0, 0.5, 0.0)
    assert known(label=1).steps == (1.0, 0.0, 0.0)
    assert known(label=-1, correct=True) == Scores((1.0, 1.0, 1.0), 1.0, 2.0)
    assert known().why == "it has no labels"
    assert known(labels=["good"] * 3).total is None
    assert known(labels=[1, 1]).why == "the reward returned 2 scores for 3 steps"
    assert Oracle(tells=lambda trace: [0.25] * 3).score([TRACES[0]])[0].total == 0.25


def right_steps(codec, request: Request, style: str = "plain") -> list[str]:
    """The pocket model's thinking without an error."""
    said = codec.lesson(request, style).reply
    return codec.split(" ".join(said[: said.index(ANSWER)]))


def test_a_codec_finds_the_first_wrong_step() -> None:
    task, codec = Execution(dictionary=8, per_turn=0), CODECS["execution"]
    request = Request.first_turn(task, task.problem(6, seed=4))
    right = right_steps(codec, request)
    assert len(right) == 7
    assert codec.sound(request, right) == [True] * 7
    assert codec.sound(request, right[:4]) == [True] * 4
    assert codec.sound(request, [*right, right[-1]]) == [True] * 7 + [False]
    wrong = [*right[:3], right[3].rsplit(" ", 1)[0] + " k9", *right[4:]]
    assert codec.sound(request, wrong) == [True] * 3 + [False] * 4
    again = [*wrong, f"<again> {right[0]}", *right[1:]]
    assert codec.sound(request, again) == [True] * 3 + [False] * 4 + [True] * 7


def test_the_oracle_asks_the_codec_that_a_trace_names() -> None:
    task, codec = Execution(dictionary=8, per_turn=0), CODECS["execution"]
    request = Request.first_turn(task, task.problem(6, seed=4))
    right = right_steps(codec, request)
    wrong = (*right[:3], right[3].rsplit(" ", 1)[0] + " k9", *right[4:])
    facts = {"codec": "pocket", "task": "execution", "problem": to_builtins(request.problem)}
    trace = Steps("t", "q", wrong, (task.solve(request.problem),), facts)
    assert Oracle().score([trace])[0].steps == (1.0,) * 3 + (0.0,) * 4 + (1.0,)
    assert Oracle(of="thinking").score([trace])[0].steps == (1.0,) * 3 + (0.0,) * 4
    assert Oracle(of="answer").score([trace])[0].steps == (1.0,)
    missaid = dataclasses.replace(trace, answer=("<answer>123456</answer>",))
    assert Oracle(of="answer").score([missaid])[0].steps == (0.0,)
    # Traces from before they named their codec: not scored, and the key is named.
    del facts["codec"]
    assert Oracle().score([dataclasses.replace(trace, facts=facts)])[0] == Scores(
        why="no labels, and no key `codec` to check it with"
    )
    # a model without a codec
    unknown = dataclasses.replace(trace, facts={**facts, "codec": "endpoint"})
    assert Oracle().score([unknown])[0].why == "it has no labels"


def test_the_oracle_knows_every_style_without_being_told() -> None:
    """In `best_of` nobody says in which style a model writes: a right sample of the short style
    must not score .3.
    """
    task, codec = Execution(dictionary=8, per_turn=0), CODECS["execution"]
    request = Request.first_turn(task, task.problem(6, seed=4))
    facts = {"codec": "pocket", "task": "execution", "problem": request.problem}
    answer = (task.solve(request.problem),)
    for style in codec.styles:
        right = tuple(right_steps(codec, request, style))
        assert Oracle().score([Steps("t", "q", right, answer, facts)])[0].total == 1.0, style
        wrong = (*right[:3], right[3].rsplit(" ", 1)[0] + " k9", *right[4:])
        assert Oracle().score([Steps("t", "q", wrong, answer, facts)])[0].steps[2:4] == (
            1.0,
            0.0,
        ), style


def test_injected_errors_are_those_that_the_codec_finds() -> None:
    for trace in itertools.islice(traces(3), 40):
        found = dataclasses.replace(
            trace, facts={k: v for k, v in trace.facts.items() if k != "labels"}
        )
        assert Oracle().score([found])[0].steps == tuple(map(float, trace.facts["labels"]))


def test_a_codec_checks_tents() -> None:
    task, codec = Tents(), CODECS["tents"]
    request = Request.first_turn(task, task.problem(16, seed=1))
    right = right_steps(codec, request)
    assert len(right) > 10
    assert codec.sound(request, right) == [True] * len(right)
    at = next(n for n, step in enumerate(right) if step.endswith("A"))
    wrong = [*right[:at], right[at][:-1] + ".", *right[at + 1 :]]
    assert codec.sound(request, wrong)[at - 1 : at + 2] == [True, False, False]


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("12 + 7 - 3 = 16", True),
        ("So 12 + 7 − 3 = 17.", False),
        ("-5 + 1,205 = 1,200, then 1200 + 1 = 1201", True),
        ("3 - 10 = -7 and 3 + 4 = 8", False),
        ("x = 7, 2*3 + 4 = 10, 3.5 + 4 = 7.5", True),  # not a plain sum of whole numbers
        ("no sum here", True),
    ],
)
def test_stated_sums_are_checked(text: str, right: bool) -> None:
    assert true_sums(text) is right


def test_a_task_checks_the_steps_of_any_models_text() -> None:
    chain = ChainSum()
    problem = chain.problem(3, seed=2)
    answer = chain.solve(problem)
    facts = {"task": "chain_sum", "problem": problem}

    def labels(thinking, answer=(answer,), **more):
        return Oracle(**more).score([Steps("t", "q", thinking, answer, facts)])[0].steps

    assert labels(("Let me add.", "1 + 2 = 3", "3 + 3 = 7", "So.")) == (1, 1, 0, 0, 1)
    assert labels((), ("1 + 2 = 4", "Hm.", "<answer>999999</answer>")) == (0, 0, 0)
    assert labels(("1 + 2 = 4",), of="thinking") == (0,)
    plans = Execution(per_turn=0, dictionary=3, mode="cot")
    problem = plans.problem(2, seed=1)
    key, value = next(iter(dictionary(problem).items()))
    facts = {"task": "execution", "problem": problem}
    assert labels(
        (f"{key} is {value}: 0 + 1 = 1.", f"{key} is {value + 1}."), (plans.solve(problem),)
    ) == (1, 0, 1)
    facts = {"task": "tents", "problem": problem}
    assert labels(("1 + 2 = 3",)) == ()  # a task that knows no steps
