"""The method `prompt`: where its instruction goes, and that its tokens are reserved and billed."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from ponder import Study
from ponder.core import Cell, Completion, Message, Method, Problem, Request, UserError
from ponder.methods.budget_force import DEMAND, BudgetForce
from ponder.methods.prompt import INSTRUCTIONS, Prompt
from ponder.methods.vote import Vote
from ponder.models.endpoint import Endpoint
from ponder.tasks.chain_sum import ChainSum

BRIEF = Prompt(text="Be brief.")
STUDY = """
problems = {problems}
max_tokens = {cap}
[[task]]
{task}
[[model]]
name = "endpoint"
id = "served"
url = "{url}"
budget = 200
concurrency = 8
method = {method}
"""
SUM = 'name = "chain_sum"\nsize = 2'
TURNS = 'name = "execution"\nsize = 10\nper_turn = 2\ndictionary = 6'


def request(seed: int = 1) -> Request:
    task = ChainSum()
    return Request.first_turn(task, task.problem(2, seed), seed)


def ask(model: Endpoint, *methods: Method, n: int = 1) -> list[Completion]:
    applied: Any = model
    for method in methods:
        applied = method.apply(applied)

    async def together() -> list[Completion]:
        async with applied:
            return [await applied.complete(request(seed)) for seed in range(n)]

    return asyncio.run(together())


def users(body: dict[str, Any]) -> list[str]:
    return [message["content"] for message in body["messages"] if message["role"] == "user"]


def test_only_the_question_changes() -> None:
    task = ChainSum()
    problem = Problem(
        id="p", size=2, turns=("1 + 1?",), system="Add.", history=(Message("user", "0 + 1?"),)
    )
    changed = BRIEF.added_to(Request.first_turn(task, problem))
    assert [message.content for message in changed.messages] == [
        "Add.",
        "0 + 1?",
        "1 + 1?\n\nBe brief.",
    ]


def test_styles_are_the_published_instructions() -> None:
    assert Prompt(style="words", n=45).instruction.endswith("limit the answer length to 45 words.")
    for style in ("concise", "draft", "direct"):
        assert Prompt(style=style).instruction == INSTRUCTIONS[style]


@pytest.mark.parametrize("methods", [(BRIEF, Vote(n=3)), (Vote(n=3), BRIEF)])
def test_every_sample_of_a_vote_is_prompted_and_billed(serve, methods) -> None:
    served = serve(lengths={"median": 100, "sigma": 0.5})
    replies = ask(Endpoint(id="m", url=served.url), *methods, n=4)
    state = served.state()
    assert len(state["bodies"]) == 12
    for body in state["bodies"]:
        (text,) = users(body)
        assert text.startswith("What is ")
        assert text.endswith("\n\nBe brief.")
        assert text.count("Be brief.") == 1
    assert sum(reply.bill.tokens for reply in replies) == state["billed_tokens"]


FORCE = BudgetForce(think=300, answer=5000)


@pytest.mark.parametrize("methods", [(BRIEF, FORCE), (FORCE, BRIEF)])
def test_the_demand_for_an_answer_is_not_prompted(serve, methods) -> None:
    served = serve(lengths={"median": 400, "sigma": 0.5})
    replies = ask(Endpoint(id="m", url=served.url), *methods, n=8)
    state = served.state()
    demanded = 0
    for body in state["bodies"]:
        question, *demands = users(body)
        assert question.endswith("\n\nBe brief.")
        assert demands in ([], [DEMAND])
        demanded += len(demands)
    assert 0 < demanded < 8
    assert sum(reply.bill.tokens for reply in replies) == state["billed_tokens"]


@pytest.mark.parametrize("methods", [(BRIEF, FORCE), (FORCE, BRIEF)])
def test_a_server_with_a_budget_of_its_own_still_forces_in_one_call(serve, methods) -> None:
    served = serve(lengths={"median": 400, "sigma": 0.5}, honours=True)
    ask(Endpoint(id="m", url=served.url, provider="vllm"), *methods, n=4)
    bodies = served.state()["bodies"]
    assert [body["thinking_token_budget"] for body in bodies] == [300] * 4
    assert all(users(body)[0].endswith("\n\nBe brief.") for body in bodies)


def run(ponder: Any, write: Any, **settings: Any) -> dict[str, Any]:
    write("s.toml", STUDY.format(**settings))
    result = ponder("run", "s.toml", "--json")
    assert result.exit_code in (0, 1), result.stderr
    tally: dict[str, Any] = json.loads(result.stdout)
    return tally


@pytest.mark.parametrize("chain", ["{prompt}", "{prompt}, {vote}", "{vote}, {prompt}"])
def test_a_long_instruction_is_reserved_under_a_cap(serve, write, ponder, chain) -> None:
    """Its 2,000 tokens are ten times what the rest of a call can take."""
    served = serve(lengths={"median": 100, "sigma": 1.0}, seconds_per_token=2e-5)
    vote = '{ name = "vote", n = 2 }'
    prompt = '{ name = "prompt", text = "' + "Be brief. " * 800 + '" }'
    method = "[" + chain.replace("{prompt}", prompt).replace("{vote}", vote) + "]"
    tally = run(ponder, write, problems=200, cap=100_000, task=SUM, url=served.url, method=method)
    assert tally["capped"]
    assert tally["tokens"] == served.state()["billed_tokens"]
    assert 60_000 < tally["tokens"] <= 100_000


def test_every_turn_of_a_conversation_ends_with_it(serve, write, ponder) -> None:
    served = serve(lengths={"median": 60, "sigma": 0.1})
    method = '[{ name = "prompt", style = "concise" }]'
    tally = run(ponder, write, problems=4, cap=10**6, task=TURNS, url=served.url, method=method)
    assert tally["done"] == tally["right"] == 4
    bodies = served.state()["bodies"]
    assert len(bodies) == 4 * 5
    transcript = next(Study.load("s.toml").results().attempts())
    sent = json.loads(transcript.request())["messages"]
    assert sent in [body["messages"] for body in bodies]
    for body in bodies:
        *earlier, last = users(body)
        assert last.endswith("\n\nBe concise.")
        assert not any("concise" in text for text in earlier)
    assert tally["tokens"] == served.state()["billed_tokens"]


def test_the_text_that_is_sent_is_in_the_key() -> None:
    def key(*methods: Method) -> bytes:
        return Cell(ChainSum(), 2, Endpoint(id="m"), methods).key

    assert key(Prompt(style="concise")) == key(Prompt(text="Be concise. "))
    texts = [Prompt(style="words", n=20), Prompt(style="words", n=40), BRIEF]
    assert len({key(), *[key(text) for text in texts]}) == 4


@pytest.mark.parametrize(
    ("model", "chain"),
    [
        ('name = "oracle"', "{prompt}"),
        ('name = "oracle"', '{ name = "vote", n = 2 }, {prompt}'),
        ('name = "replay"\nfile = "r.jsonl"', "{prompt}"),
        ('name = "text_tutor"', "{prompt}"),
    ],
)
def test_models_that_ignore_messages_are_refused(write, ponder, model, chain) -> None:
    write("r.jsonl", "")
    method = chain.replace("{prompt}", '{ name = "prompt", style = "concise" }')
    write("s.toml", f"[[task]]\n{SUM}\n[[model]]\n{model}\nmethod = [{method}]\n")
    result = ponder("run", "s.toml")
    assert result.exit_code == 2
    assert "can't be prompted" in result.stderr
    assert 'name = "endpoint"' in result.stderr


def test_the_pocket_model_is_refused_too(write, ponder) -> None:
    method = '[{ name = "prompt", style = "concise" }]'
    write(
        "s.toml",
        f'[[task]]\nname = "tents"\nsize = 16\n[[model]]\nname = "pocket"\nmethod = {method}\n',
    )
    result = ponder("plan", "s.toml")
    assert result.exit_code == 2
    assert "`pocket` answers from the problem itself" in result.stderr


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "either a style or a text"),
        ({"style": "draft", "text": "x"}, "either a style or a text"),
        ({"text": " "}, "either a style or a text"),
        ({"style": "words"}, "takes a number of words"),
        ({"style": "words", "n": 0}, "takes a number of words"),
        ({"style": "draft", "n": 5}, 'of the style "words"'),
    ],
)
def test_mistakes_are_explained(settings, message) -> None:
    with pytest.raises(UserError, match=message):
        Prompt(**settings)


def test_a_sweep_has_short_labels_and_its_own_forecasts(write, ponder) -> None:
    method = (
        '[[], [{ name = "prompt", style = ["concise", "draft"] }], '
        '[{ name = "prompt", style = "words", n = [20, 40] }]]'
    )
    write(
        "s.toml",
        STUDY.format(problems=4, cap=10**6, task=SUM, url="http://127.0.0.1:9/v1", method=method),
    )
    labels = [cell.label.model for cell in Study.load("s.toml").cells]
    assert labels == [
        "served",
        "served + concise",
        "served + draft",
        "served + words n=20",
        "served + words n=40",
    ]
    forecasts = json.loads(ponder("plan", "s.toml", "--json").stdout)["forecasts"]
    plain, concise, draft, *_ = [forecast["tokens"] for forecast in forecasts]
    assert plain["low"] < concise["low"] < draft["low"]
    added = len("\n\nBe concise.")  # at most one token per byte, in each of four attempts
    assert concise["at_most"] >= plain["at_most"] + 4 * added


def test_try_shows_each_request(serve, ponder, folder) -> None:
    model = f"endpoint id=m url={serve().url} budget=100"
    method = 'method=\'{name="prompt",style=["concise","draft"]}\''
    result = ponder("try", "chain_sum", "-n", 1, "--model", f"{model} {method}")
    assert result.exit_code == 0, result.stderr
    shown = result.stdout + result.stderr
    assert shown.count("POST http") == 2
    assert "\\n\\nBe concise." in shown
    assert "5 words at most." in shown


def test_room_for_a_prompt_is_checked_with_the_instruction(write, ponder) -> None:
    write(
        "roomless.py",
        """
'''Has no room for a prompt, and says which.'''
from dataclasses import dataclass
from ponder.core import ChecksPrompts, Method, UserError

@dataclass(frozen=True)
class Roomless(Method, ChecksPrompts):
    def apply(self, model):
        return model

    def check_prompt(self, model, request):
        raise UserError(f"no room for {request.messages[-1].content!r}")
""",
    )
    method = '[{ name = "./roomless.py" }, { name = "prompt", style = "concise" }]'
    settings = {"problems": 1, "cap": 10**6, "task": SUM, "url": "http://127.0.0.1:9/v1"}
    write("s.toml", STUDY.format(method=method, **settings))
    assert "Be concise.'" in ponder("run", "s.toml").stderr
