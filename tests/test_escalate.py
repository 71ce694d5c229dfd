"""`escalate`: which signs send a request on, what is billed, and what caps and plans count."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ponder.core import (
    Bill,
    Completion,
    Message,
    Model,
    ModelFailure,
    Prices,
    Request,
    SignedMessage,
    UserError,
)
from ponder.core.nouns import cost_of
from ponder.methods.escalate import Escalate
from ponder.methods.vote import Vote
from ponder.models.pocket import Pocket
from ponder.store.store import Store
from ponder.study.study import StudySpec
from ponder.tasks.chain_sum import ChainSum
from ponder.tasks.tents import Tents

BILL = Bill(10, 100, 5)


@dataclass(kw_only=True)
class Scripted(Model):
    """Gives its replies in turn, and remembers what it was asked."""

    replies: Sequence[Completion | ModelFailure] = ()
    asked: list[Request] = field(default_factory=list)

    async def complete(self, request: Request) -> Completion:
        reply = self.replies[len(self.asked) % len(self.replies)]
        self.asked.append(request)
        if isinstance(reply, ModelFailure):
            raise reply
        return reply


def reply(answer: str, stop: str = "end", thinking: int = 100) -> Completion:
    return Completion("", answer, stop, Bill(10, thinking, 5), {"seconds_per_token": 1.0})  # type: ignore[arg-type]


def request(size: int = 4) -> Request:
    task = ChainSum()
    return Request.first_turn(task, next(task.problems(size, 0)))


def answered(when: Sequence[str], *first: Completion, size: int = 4, n: int = 2) -> Completion:
    """What a model with these replies answers; the other one answers `777`."""
    other = Scripted(replies=[reply("<answer>777</answer>")], prices=Prices(0.0, 100.0))
    escalating = Escalate(to=other, when=tuple(when), n=n).apply(Scripted(replies=first))
    return asyncio.run(escalating.complete(request(size)))


RIGHT = reply("<answer>1</answer>")
WRONG = reply("<answer>2</answer>")
NOTHING = reply("I can't say.")
CUT = reply("<answer>1</answer>", "length")


@pytest.mark.parametrize(
    ("when", "first", "is_sent_on"),
    [
        (["unparsed"], [NOTHING], True),
        (["unparsed"], [RIGHT], False),
        (["unparsed"], [reply("", "length")], False),
        (["truncated"], [CUT], True),
        (["truncated"], [NOTHING], False),
        (["truncated", "unparsed"], [NOTHING], True),
        (["disagree"], [RIGHT, WRONG], True),
        (["disagree"], [RIGHT, RIGHT], False),
        (["disagree"], [RIGHT, NOTHING], True),
        (["disagree"], [RIGHT, CUT], True),
        (["thinking_tokens >= 100"], [RIGHT], True),
        (["thinking_tokens >= 101"], [RIGHT], False),
    ],
)
def test_signs_of_the_first_answer(when, first, is_sent_on) -> None:
    completion = answered(when, *first)
    calls = len(first) + is_sent_on
    assert ("777" in completion.answer) == is_sent_on
    assert completion.measures["escalated"] == completion.measures["second_calls"] == is_sent_on
    assert completion.bill.tokens == calls * BILL.tokens
    assert completion.bill.other_prompt_tokens == 10 * is_sent_on
    # 1 and 10 per million of the first model, 100 of the other
    cost = len(first) * (10 * 1 + 105 * 10) + is_sent_on * 105 * 100
    assert Prices(1.0, 10.0).cost(completion.bill) == pytest.approx(cost / 1e6)


@pytest.mark.parametrize(
    ("when", "size", "is_sent_on"),
    [
        ("size >= 5", 4, False),
        ("size >= 4", 4, True),
        ("prompt_tokens >= 5", 4, True),
        ("prompt_tokens >= 5000", 4, False),
    ],
)
def test_what_is_known_before_asking_sends_on_without_a_first_call(when, size, is_sent_on) -> None:
    completion = answered([when], RIGHT, size=size)
    assert ("777" in completion.answer) == is_sent_on
    assert completion.measures["escalated"] == is_sent_on
    assert completion.measures["second_calls"] == 0
    assert completion.bill.tokens == BILL.tokens


def test_the_length_of_a_prompt_is_what_a_local_model_is_billed_for_it() -> None:
    other = Scripted(replies=[RIGHT])
    task = Tents()
    asked = Request.first_turn(task, next(task.problems(16, 0)))

    async def complete(when: str) -> Completion:
        async with Escalate(to=other, when=(when,)).apply(Pocket(budget=20)) as model:
            return await model.complete(asked)

    billed = asyncio.run(complete("size >= 99")).bill.prompt_tokens
    assert asyncio.run(complete(f"prompt_tokens >= {billed + 1}")).measures["escalated"] == 0
    assert asyncio.run(complete(f"prompt_tokens >= {billed}")).measures["escalated"] == 1


def test_models_without_prices_have_no_cost() -> None:
    """Local ones: 0 would be a price."""
    other = Scripted(replies=[RIGHT])
    for when in ("size >= 1", "truncated"):
        model = Escalate(to=other, when=(when,)).apply(Scripted(replies=[CUT]))
        assert cost_of(asyncio.run(model.complete(request())).bill, None) is None
    # A paid model behind a local one costs what it costs.
    paid = Escalate(to=Scripted(replies=[RIGHT], prices=Prices(1e6, 0.0)))
    bill = asyncio.run(paid.apply(Scripted(replies=[CUT])).complete(request())).bill
    assert cost_of(bill, None) == 10


def test_the_agreement_of_a_vote() -> None:
    other = Scripted(replies=[reply("<answer>777</answer>")])
    method = Escalate(to=other, when=("agreement < 0.6",))
    for replies, answer in (([RIGHT, RIGHT, WRONG], "1"), ([RIGHT, WRONG, NOTHING], "777")):
        model = method.apply(Vote(3).apply(Scripted(replies=replies)))
        assert f">{answer}<" in asyncio.run(model.complete(request())).answer
    with pytest.raises(UserError, match="`agreement` is what the method `vote` measures"):
        asyncio.run(method.apply(Scripted(replies=[RIGHT])).complete(request()))


def test_a_failed_second_call_bills_the_first() -> None:
    other = Scripted(replies=[ModelFailure("HTTP 500", Bill(7))], prices=Prices(1e6, 0.0))
    model = Escalate(to=other).apply(Scripted(replies=[CUT]))
    with pytest.raises(ModelFailure, match="the second model: HTTP 500") as failure:
        asyncio.run(model.complete(request()))
    bill = failure.value.bill
    assert bill is not None
    assert bill.tokens == BILL.tokens + 7
    assert Prices(0.0, 0.0).cost(bill) == 7


def test_the_other_model_gets_no_signed_blocks_and_another_seed() -> None:
    first = Scripted(replies=[CUT])
    other = Scripted(replies=[Completion("", "1", "end", BILL, blocks="[signed]")])
    asked = request()
    signed = (*asked.messages, SignedMessage("assistant", "2", "[blocks]"))
    asked = Request(asked.task, asked.problem, signed, seed=5)
    model = Escalate(to=other).apply(first)
    assert asyncio.run(model.complete(asked)).blocks == ""
    (sent,) = model._other.asked  # type: ignore[attr-defined]
    assert sent.messages[-1] == Message("assistant", "2")
    assert type(sent.messages[-1]) is Message
    assert sent.seed != 5


STUDY = """
problems = {problems}
{caps}
[[task]]
name = "chain_sum"
size = 3
[[model]]
name = "endpoint"
id = "small"
url = "{url}"
budget = 100
concurrency = 8
prices = {{ input = 1.0, output = 10.0 }}
method = {{ name = "escalate", to = {to} }}
"""
OTHER = """{{ name = "endpoint", id = "large", url = "{url}", budget = 2000, retries = 0, \
prices = {{ input = 100.0, output = 200.0 }} }}"""
LENGTHS = {"lengths": {"median": 100, "sigma": 0.8}}


def write_study(write, served, other: str, problems: int = 20, caps: str = "") -> None:
    write("s.toml", STUDY.format(url=served.url, to=other, problems=problems, caps=caps))


def summary(result) -> dict:
    assert result.exit_code in (0, 1), result.stderr
    return json.loads(result.stdout)


def stored() -> list[dict]:
    with closing(sqlite3.connect("ponder.db")) as db:
        rows = db.execute(
            "SELECT prompt_tokens, thinking_tokens + answer_tokens, details FROM attempt"
        )
        return [
            {"prompt": row[0], "output": row[1], **json.loads(row[2])} for row in rows.fetchall()
        ]


def test_both_calls_are_billed_at_their_own_prices(serve, write, ponder) -> None:
    small, large = serve(**LENGTHS), serve(**LENGTHS)
    write_study(write, small, OTHER.format(url=large.url), problems=40)
    tally = summary(ponder("run", "s.toml", "--json"))
    billed = small.state()["billed_tokens"], large.state()["billed_tokens"]
    assert tally["tokens"] == sum(billed)
    attempts = stored()
    second = [attempt for attempt in attempts if attempt["second_calls"]]
    assert 0 < len(second) == large.state()["billed"] < len(attempts) == small.state()["billed"]
    other_tokens = 0
    cost = 0.0
    for attempt in attempts:
        prompt = attempt.get("other_prompt_tokens", 0)
        output = attempt.get("other_completion_tokens", 0)
        other_tokens += prompt + output
        first_cost = attempt["prompt"] - prompt + 10 * (attempt["output"] - output)
        cost += first_cost + 100 * prompt + 200 * output
    assert other_tokens == billed[1]
    assert tally["cost"] == pytest.approx(cost / 1e6)
    # Statistics read the same from the store, without texts.
    cells = StudySpec.load("s.toml").cells
    with Store(Path("ponder.db")) as store:
        outcomes = list(store.outcomes(cells))
    prices = outcomes[0].cell.model.prices
    assert sum(prices.cost(o.bill) for o in outcomes) == pytest.approx(cost / 1e6)


def test_a_plan_counts_both(serve, write, ponder) -> None:
    small, large = serve(**LENGTHS), serve(**LENGTHS)
    write_study(write, small, OTHER.format(url=large.url), problems=10)
    plan = json.loads(ponder("plan", "s.toml", "--json").stdout)
    bound = plan["total"]
    assert bound["calls"] == 20
    assert bound["tokens"]["at_most"] > 10 * 2100
    assert bound["cost"]["at_most"] > 10 * (100 * 10 + 2000 * 200) / 1e6
    assert "large 100.00/200.00 USD" in ponder("plan", "s.toml").output
    paid = summary(ponder("run", "s.toml", "--json"))
    write_study(write, small, OTHER.format(url=large.url), problems=20)
    expected = json.loads(ponder("plan", "s.toml", "--json").stdout)["total"]
    assert expected["tokens"]["expected"] == pytest.approx(paid["tokens"], abs=10)
    assert expected["cost"]["expected"] == pytest.approx(paid["cost"])


@pytest.mark.parametrize(
    ("cap", "name"), [("max_tokens = 30_000", "tokens"), ("max_cost = 2.0", "cost")]
)
def test_a_cap_holds(serve, write, ponder, cap, name) -> None:
    lengths = {**LENGTHS, "seconds_per_token": 2e-5}
    small, large = serve(**lengths), serve(**lengths)
    write_study(write, small, OTHER.format(url=large.url), problems=400, caps=cap)
    tally = summary(ponder("run", "s.toml", "--json"))
    assert tally["capped"]
    assert large.state()["billed"] > 0
    assert tally["tokens"] == small.state()["billed_tokens"] + large.state()["billed_tokens"]
    limit = float(cap.split("=")[1])
    assert 0.5 * limit < tally[name] <= limit


def test_an_attempt_fails_if_the_second_call_does(serve, write, ponder) -> None:
    small, large = serve(**LENGTHS), serve(**LENGTHS, **{"500": 0.5})
    write_study(write, small, OTHER.format(url=large.url), problems=40)
    tally = summary(ponder("run", "s.toml", "--json"))
    assert any(why.startswith("the second model: HTTP 500") for why in tally["reasons"]["failed"])
    assert tally["tokens"] == small.state()["billed_tokens"] + large.state()["billed_tokens"]


def test_the_same_model_with_other_settings_repeats_nothing(
    serve, write, ponder, monkeypatch
) -> None:
    monkeypatch.setenv("SECRET_KEY", "abc")
    served = serve(**LENGTHS)
    write_study(write, served, '{ effort = "high", budget = 900 }', problems=10)
    ponder("run", "s.toml", "--set", "model.key=$SECRET_KEY", "--json")
    bodies = served.state()["bodies"]
    assert {body["authorization"] for body in bodies} == {"Bearer abc"}
    second = [body for body in bodies if body["max_tokens"] == 900]
    assert 0 < len(second) < 10
    assert {(body["model"], body["reasoning_effort"]) for body in second} == {("small", "high")}
    assert all("reasoning_effort" not in body for body in bodies if body["max_tokens"] == 100)
    assert "escalate to effort=high budget=900" in ponder("plan", "s.toml").stdout


def test_a_conversation_escalates_turn_by_turn(serve, write, ponder) -> None:
    served = serve(lengths={"median": 60, "sigma": 1.0})
    write(
        "s.toml",
        f"""
problems = 6
[[task]]
name = "execution"
size = 8
per_turn = 1
[[model]]
name = "endpoint"
id = "small"
url = "{served.url}"
budget = 80
concurrency = 8
method = {{ name = "escalate", to = {{ budget = 4000 }} }}
""",
    )
    bound = json.loads(ponder("plan", "s.toml", "--json").stdout)["total"]["tokens"]["at_most"]
    tally = summary(ponder("run", "s.toml", "--json"))
    assert tally["tokens"] == served.state()["billed_tokens"] < bound
    (cell,) = StudySpec.load("s.toml").cells
    assert cell.reply_limit == 80 + 4000  # a later turn may show a reply of the other model
    fractions = {attempt["escalated"] for attempt in stored()}
    assert all(8 * fraction == int(8 * fraction) for fraction in fractions)
    assert len(fractions) > 1


def test_another_model_without_a_budget_bills_nothing_above_it(serve, write, ponder) -> None:
    small, large = serve(**LENGTHS), serve(**LENGTHS)
    other = OTHER.format(url=large.url).replace("budget = 2000, ", "")
    write_study(write, small, other)
    result = ponder("run", "s.toml")
    assert result.exit_code == 0
    assert large.state()["billed"] > 0
    assert "warning" not in result.output


@pytest.mark.parametrize(
    ("to", "settings", "message"),
    [
        ("{ budget = 100 }", [], "`to` is the model itself"),
        ("{ efort = 'high' }", [], "model[0].method[0].to.efort: model `endpoint` has no key"),
        ("{}", [], "needs a name"),
        ("{ budget = 900 }", ["model.method.when=['unsure']"], "`unsure` is not a sign"),
        ("{ budget = 900 }", ["model.method.when=['size >= x']"], "`size >= x` is not a sign"),
        ("{ budget = 900 }", ["model.method.when=[]"], "does nothing"),
        ("{ budget = 900 }", ["model.method.n=1"], "at least 2, not 1"),
        ('{ name = "endpoint", id = "b" }', ["max_tokens=9000"], "`b`, which"),
        ('{ name = "endpoint", id = "b", budget = 9 }', ["max_cost=1"], "`b` has no prices"),
    ],
)
def test_mistakes_are_refused_before_anything_is_asked(
    serve, write, ponder, to, settings, message
) -> None:
    served = serve()
    write_study(write, served, to)
    words = [word for setting in settings for word in ("--set", setting)]
    result = ponder("run", "s.toml", *words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "billed" not in served.state()
