"""Replayed answers: found by problem, sample and turn, with the bill that the file states."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from ponder.core import Bill, Completion, ModelFailure, Request, UserError
from ponder.models.replay import Replay
from ponder.tasks.chain_sum import ChainSum

TASK = ChainSum()


def ask(file: Path, *requests: Request) -> list[Completion]:
    async def in_turn() -> list[Completion]:
        async with Replay(file=file) as model:
            return [await model.complete(request) for request in requests]

    return asyncio.run(in_turn())


@pytest.fixture
def file(tmp_path) -> Path:
    rows = [
        {"problem": "a", "answer": "first"},
        {"problem": "a", "answer": "zwölf", "thinking": "…", "sample": 1, "stop": "length"},
        {
            "problem": "a",
            "answer": "later",
            "turn": 2,
            "prompt_tokens": 3,
            "thinking_tokens": 5,
            "answer_tokens": 7,
        },
        {"problem": "b", "answer": "other", "seconds": 2.5, "counted_by": "server", "unknown": 1},
    ]
    path = tmp_path / "answers.jsonl"
    path.write_text("\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows), "utf-8")
    return path


def request(problem: str, **more: int) -> Request:
    return replace(Request.first_turn(TASK, replace(TASK.problem(2, 1), id=problem)), **more)


def test_an_answer_is_that_of_its_problem_sample_and_turn(file) -> None:
    replies = ask(file, request("b"), request("a", turn=2), request("a", sample=1), request("a"))
    assert [reply.answer for reply in replies] == ["other", "later", "zwölf", "first"]
    assert [reply.stop for reply in replies] == ["end", "end", "length", "end"]
    assert replies[2].thinking == "…"
    assert replies[0].bill == Bill(seconds=2.5, counted_by="server")
    assert replies[1].bill == Bill(3, 5, 7, 0.0, "estimate")


@pytest.mark.parametrize("missing", [{"sample": 2}, {"turn": 1}, {"sample": 1, "turn": 2}])
def test_a_missing_answer_is_a_failure_not_a_wrong_answer(file, missing) -> None:
    with pytest.raises(ModelFailure, match=r"answers\.jsonl has no answer"):
        ask(file, request("a", **missing))


def test_a_wrong_line_is_an_error_with_its_place(file) -> None:
    file.write_text(file.read_text("utf-8") + '\n{"problem": "c"}', "utf-8")
    with pytest.raises(UserError, match="the field `answer` is missing") as caught:
        ask(file)
    assert caught.value.where == f"{file}:8"
    with pytest.raises(UserError, match="can't read"):
        ask(file.with_name("none.jsonl"))
