"""Which tokens figures count, in numbers, on axes and in words; and what budget forcing counts as
thinking.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, replace
from typing import Any

import made_up
import pytest
from endpoint_calls import request
from test_figures import every, puzzles, rollout, spec
from test_frontier import outcome as answer

from ponder.core import Completion, Figure, Outcome, Request
from ponder.figures._units import token_columns, token_kind
from ponder.figures.accuracy import Accuracy
from ponder.figures.budget import Budget
from ponder.figures.effort import Effort
from ponder.figures.frontier import Frontier
from ponder.figures.tradeoff import Tradeoff
from ponder.methods.budget_force import BudgetForce
from ponder.models.oracle import Oracle


def in_reply(outcomes: list[Outcome], model: str = "chat") -> list[Outcome]:
    """The same attempts by a model that reasons in its reply."""
    return [
        made_up.changed(
            o, model=model, thinking_tokens=0, answer_tokens=o.thinking_tokens + o.answer_tokens
        )
        for o in outcomes
    ]


def titles(figure: Figure, outcomes: list[Outcome]) -> set[str]:
    """The titles of all axes."""
    return {t for t in every(spec(figure, outcomes), "title") if isinstance(t, str)}


def test_auto_counts_thinking_only_if_every_model_reports_it() -> None:
    thinker = puzzles("thinker")
    assert token_kind(thinker, "auto") == "thinking"
    assert token_kind([*thinker, *in_reply(thinker)], "auto") == "output"
    assert (
        token_kind([*thinker, *(o._replace(ended="failed") for o in in_reply(thinker))], "auto")
        == "thinking"
    )
    assert token_kind(in_reply(thinker), "thinking") == "thinking"
    # Of a chat model under budget forcing only the replies that were cut have thinking.
    forced = [*thinker[:16], *in_reply(thinker[16:], "thinker")]
    assert token_kind(forced, "auto") == "output"
    assert (
        token_columns(forced, "auto")["token_kind_why"]
        == "thinker reports thinking tokens in only 50% of its attempts"
    )
    # it skipped one
    assert token_kind([*thinker[:-1], *in_reply(thinker[-1:], "thinker")], "auto") == "thinking"


def test_effort_of_a_model_that_reasons_in_its_reply() -> None:
    rows = [*puzzles("thinker"), *in_reply(puzzles())]
    tables = Effort().estimate(rows)
    solved = [f for f in tables["fits"] if f["fitted_to"] == "solved, as published"]
    # Ten tokens of thinking per cell, and 20 of answer.
    assert [(f["tokens_per_size"], f["tokens_at_zero"]) for f in solved] == [
        pytest.approx((10, 20), abs=1e-9)
    ] * 2
    assert {p["tokens"] for p in tables["attempts"]} == {180, 270, 380, 510}
    assert "output tokens (thinking + answer)" in titles(Effort(), rows)
    why, first, _ = Effort().findings(tables)
    assert (
        why
        == "Tokens are output tokens (thinking + answer) for all models: chat reports no thinking tokens."
    )
    assert "output tokens per unit of size" in first
    assert {p["tokens"] for p in Effort(tokens="answer").estimate(puzzles())["attempts"]} == {20}
    assert {
        p["tokens"] for p in Effort(tokens="thinking").estimate(in_reply(puzzles()))["attempts"]
    } == {0}
    assert (
        Effort(tokens="thinking")
        .findings(Effort(tokens="thinking").estimate(rows))[0]
        .startswith("thinker: ")
    )


def test_effort_of_models_that_report_thinking_is_in_thinking_tokens() -> None:
    tables = Effort(overlay="tents_effort").estimate(puzzles())
    assert {p["tokens"] for p in tables["attempts"]} == {160, 250, 360, 490}
    assert "thinking tokens" in titles(Effort(), puzzles())
    assert "Published" not in " ".join(Effort(overlay="tents_effort").findings(tables))


@pytest.mark.parametrize(
    ("figure", "rows", "note"),
    [
        (
            Effort(overlay="tents_effort"),
            in_reply(puzzles()),
            "thinking tokens, on an axis of output tokens",
        ),
        (
            Tradeoff(overlay="execution_tradeoff", tokens="thinking"),
            [made_up.changed(rollout(k, None, p), size=180) for k in (1, 2) for p in range(4)],
            "output tokens (thinking + answer), on an axis of thinking tokens",
        ),
    ],
)
def test_an_overlay_in_other_tokens_says_so(figure: Any, rows: list[Outcome], note: str) -> None:
    assert any(f"Published: {note}" in said for said in figure.findings(figure.estimate(rows)))
    assert f"published: {note}".replace(" ", "") in json.dumps(spec(figure, rows)).replace(
        '", "', ""
    ).replace(" ", "")


def test_the_table_of_accuracy_counts_output_for_a_chat_model() -> None:
    assert [r["tokens"] for r in Accuracy().estimate(puzzles())["sizes"]] == [160, 250, 360, 490]
    assert [r["tokens"] for r in Accuracy().estimate(in_reply(puzzles()))["sizes"]] == [
        180,
        270,
        380,
        510,
    ]
    assert Accuracy().estimate(in_reply(puzzles()))["summary"][0]["token_kind"] == "output"


@pytest.mark.parametrize(
    ("kind", "tokens"), [("output", 270), ("thinking", 250), ("answer", 20), ("auto", 250)]
)
def test_tradeoff_counts_what_it_is_asked_to(kind: Any, tokens: int) -> None:
    [point] = Tradeoff(tokens=kind).estimate([rollout(4, None, 0) for _ in range(4)])["points"]
    assert point["tokens"] == tokens


def test_tradeoff_draws_a_model_without_such_tokens_and_says_so() -> None:
    rows = in_reply([rollout(k, None, p) for k in (1, 2) for p in range(4)])
    assert "at 1: no thinking tokens reported" in json.dumps(
        spec(Tradeoff(tokens="thinking"), rows)
    )
    assert "reported" not in json.dumps(spec(Tradeoff(tokens="auto"), rows))


@pytest.mark.parametrize(
    ("kind", "tokens"), [("output", 109), ("thinking", 100), ("answer", 9), ("auto", 100)]
)
def test_frontier_and_budget_count_what_they_are_asked_to(kind: Any, tokens: int) -> None:
    rows = [answer("a", f"p{i}", 109, True) for i in range(5)]
    title = {"output": "output tokens (thinking + answer)", "answer": "answer tokens"}.get(
        kind, "thinking tokens"
    )
    [variant] = Frontier(tokens=kind).estimate(rows)["variants"]
    assert variant["tokens"] == tokens
    assert f"mean {title} per answer" in titles(Frontier(tokens=kind), rows)
    assert Budget(tokens=kind).estimate(rows)["panels"][0]["most"] == tokens
    assert f"budget in {title}, log scale" in titles(Budget(tokens=kind), rows)
    assert (
        f"up to {tokens} {title}"
        in Budget(tokens=kind).findings(Budget(tokens=kind).estimate(rows))[0]
    )


def test_frontier_and_budget_count_output_unless_asked() -> None:
    rows = [answer("a", f"p{i}", 109, True) for i in range(5)]
    assert Frontier().estimate(rows)["variants"][0]["tokens"] == 109
    assert Budget().estimate(rows)["panels"][0]["most"] == 109
    chat = [*rows, *in_reply(rows, "b")]
    for figure in (Frontier(tokens="auto"), Budget(tokens="auto")):
        assert "b reports no thinking tokens." in figure.findings(figure.estimate(chat))[0]


@dataclass(kw_only=True)
class Chat(Oracle):
    """An oracle that reasons in its reply."""

    async def complete(self, request: Request) -> Completion:
        said = await super().complete(request)
        bill = replace(
            said.bill,
            thinking_tokens=0,
            answer_tokens=said.bill.thinking_tokens + said.bill.answer_tokens,
        )
        return replace(said, thinking="", answer=f"{said.thinking} {said.answer}", bill=bill)


def test_what_budget_forcing_cuts_counts_as_thinking() -> None:
    chat = Chat(tokens_at_zero=150, tokens_per_size=0, spread=0)
    whole = asyncio.run(chat.complete(request()))
    forced = asyncio.run(BudgetForce(think=100, answer=400).apply(chat).complete(request()))
    assert forced.bill.thinking_tokens == 100  # the first reply, cut
    assert forced.bill.answer_tokens == whole.bill.answer_tokens  # the second, whole
    assert forced.thinking
    uncut = asyncio.run(BudgetForce(think=1000).apply(chat).complete(request()))
    assert (uncut.bill.thinking_tokens, uncut.bill.answer_tokens) == (0, whole.bill.answer_tokens)
