"""`ponder tune`: the verdict, what it asks, and the setting to deploy."""

from __future__ import annotations

import json
import math
import os
import re
import tomllib
from dataclasses import replace
from typing import Any

import pytest

import ponder
from ponder import Study
from ponder.core import UserError
from ponder.results.deploy import MESSAGES, REQUEST, deploy
from ponder.results.tuning import with_goal
from ponder.store.store import Store

# Higher efforts take more tokens; `low` and `medium` are equally good, and `tiny` is not.
SWEEP = """
title = "Which effort?"
problems = 300
seed = 5
[[task]]
name = "chain_sum"
size = [4, 8]
[[model]]
name = "oracle"
label = "tiny"
critical_size = 5
tokens_at_zero = 50
tokens_per_size = 5
prices = { input = 1.0, output = 2.0 }
[[model]]
name = "oracle"
label = "low"
critical_size = 100
tokens_at_zero = 400
prices = { input = 1.0, output = 2.0 }
[[model]]
name = "oracle"
label = "high"
critical_size = 120
tokens_at_zero = 2000
prices = { input = 1.0, output = 2.0 }
[[figure]]
name = "accuracy"
"""


def tuned(ponder_command: Any, *words: str, code: int = 0) -> dict[str, Any]:
    result = ponder_command("tune", *words, "--json")
    assert result.exit_code == code, result.stderr
    data: dict[str, Any] = json.loads(result.stdout)
    return data


def choices(data: dict[str, Any]) -> dict[str, str]:
    return {setting["setting"]: setting["choice"] for setting in data["settings"]}


def test_the_verdict_the_table_and_what_it_took(write, ponder, folder) -> None:
    write("s.toml", SWEEP)
    data = tuned(ponder, "s.toml", "--margin", "0.05", "--volume", "1000")
    assert choices(data) == {"tiny": "too weak", "low": "chosen", "high": "good"}
    assert data["by"] == "cost"
    low, high = data["settings"][1], data["settings"][2]
    saving = high["saving"]
    # 760 and 2,360 thinking tokens on average, and an answer and a prompt that cost the same
    assert saving["low"] < 0.66 < saving["high"]
    assert low["difference"]["low"] > -0.05
    assert low["cost"]["value"] == pytest.approx(low["tokens"]["value"] * 2e-6, rel=0.1)
    sentences = data["verdict"]
    assert sentences[0].startswith("`low` costs 66.0 % [")
    assert "less than `high`, and its accuracy is not worse by more than 5 points" in sentences[0]
    assert sentences[1].startswith("At 1,000 requests a day that is about ")
    assert " USD a month instead of " in sentences[1]
    assert data["attempts"] < 0.6 * data["full_plan"] == 0.6 * 1800
    # `tiny` loses problems against `low`, and each leads to its attempts.
    step = data["steps"][0]
    assert (step["first"], step["second"]) == ("tiny", "low")
    assert len(step["gained"]) > 20
    assert not step["lost"]
    with Store(folder / "ponder.db") as store:
        change = step["gained"][0]
        before = store.attempt(change["first"][0])
        after = store.attempt(change["second"][0])
    assert before is not None
    assert after is not None
    assert before.attempt.problem.id == after.attempt.problem.id == change["problem"]
    assert (before.attempt.ended, after.attempt.ended) == ("wrong", "right")


def test_the_text_has_two_sentences_a_table_and_the_model(write, ponder) -> None:
    write("s.toml", SWEEP)
    result = ponder("tune", "s.toml", "--margin", "0.05")
    assert result.exit_code == 0
    assert result.stdout.startswith("`low` costs ")
    assert "good, but more expensive" in result.stdout
    assert "tiny → low: gains " in result.stdout
    assert "ponder compare s.toml tiny low --disagree 8" in result.stdout
    assert '[[model]]\nname = "oracle"\n' in result.stdout
    assert "of the full plan's 1,800 attempts" in result.stdout
    shown = ponder("compare", "s.toml", "tiny", "low", "--disagree", "8")
    assert shown.exit_code == 0


def test_a_run_resumes_and_a_stored_one_asks_nothing(write, ponder, folder) -> None:
    write("s.toml", SWEEP)
    first = tuned(ponder, "s.toml", "--margin", "0.05")
    assert tuned(ponder, "s.toml", "--margin", "0.05") == first
    assert tuned(ponder, "s.toml", "--margin", "0.05", "--stored") == first
    with Store(folder / "ponder.db") as store:
        stored = sum(store.spent([cell])[0] for cell in Study.load("s.toml").cells)
    assert stored == first["attempts"]


def test_a_cap_holds_and_what_is_known_so_far_is_said(write, ponder) -> None:
    write("s.toml", f"max_tokens = 1_100_000\n{SWEEP}")
    result = ponder("tune", "s.toml", "--margin", "0.05")
    assert result.exit_code == 1, result.stdout
    assert "Can't tell yet" in result.stdout
    assert "to go on, raise max_tokens and run again" in result.stderr


def test_a_complete_store_is_analysed_once(write, ponder) -> None:
    """There were no interim analyses, so the intervals are narrower."""
    write("s.toml", SWEEP)
    assert ponder("run", "s.toml").exit_code == 0
    data = tuned(ponder, "s.toml", "--margin", "0.05", "--stored")
    assert not data["adaptive"]
    assert data["attempts"] == data["full_plan"]
    assert choices(data)["low"] == "chosen"


def test_a_floor(write, ponder) -> None:
    write("s.toml", SWEEP)
    data = tuned(ponder, "s.toml", "--floor", "0.9")
    assert choices(data)["low"] == "chosen"
    assert data["verdict"][0].startswith("`low` is right in at least 90% (accuracy ")


def test_a_floor_that_nobody_reaches(write, ponder) -> None:
    write("s.toml", SWEEP.replace("critical_size = 1", "error = 0.3\ncritical_size = 1"))
    data = tuned(ponder, "s.toml", "--floor", "0.95", code=1)
    assert data["chosen"] is None
    assert data["verdict"] == [
        f"No setting is right in 95%: the most accurate, `{best(data)}`, is right in {percent(data)}."
    ]


def best(data: dict[str, Any]) -> str:
    setting = max(data["settings"], key=lambda setting: setting["accuracy"]["value"])
    return str(setting["setting"])


def percent(data: dict[str, Any]) -> str:
    sentence = str(data["verdict"][0])
    return sentence.partition("is right in ")[2].partition("is right in ")[2].rstrip(".")


def test_the_reference_may_be_named(write, ponder) -> None:
    write("s.toml", SWEEP)
    data = tuned(ponder, "s.toml", "--reference", "tiny", "--margin", "0.02")
    assert data["chosen"] == "tiny"  # nothing is cheaper


def test_tokens_and_seconds_can_be_saved_too(write, ponder) -> None:
    write("s.toml", SWEEP.replace("prices = { input = 1.0, output = 2.0 }\n", ""))
    tokens = tuned(ponder, "s.toml", "--margin", "0.05")
    assert tokens["by"] == "tokens"
    assert "uses 66.4 % [" in tokens["verdict"][0]
    assert "fewer output tokens than `high`" in tokens["verdict"][0]
    seconds = tuned(ponder, "s.toml", "--margin", "0.05", "--by", "seconds", "--stored")
    assert seconds["by"] == "seconds"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--margin", "0"), "margin must be between 0 and 1, not 0.0"),
        (("--margin", "0.02", "--floor", "0.9"), "by a margin or by a floor, not both"),
        (("--floor", "1.5"), "floor is an accuracy between 0 and 1, not 1.5"),
        (("--reference", "hgih"), "did you mean `high`?"),
        (("--set", "model[0].label=x", "--model", "oracle"), 'such as effort = ["low", "high"]'),
        (("--stored",), "there is no store"),
    ],
)
def test_mistakes_are_explained(write, ponder, words, message) -> None:
    write("s.toml", SWEEP)
    result = ponder("tune", "s.toml", *words)
    assert result.exit_code == 2
    assert message in result.stderr


def test_money_needs_prices(write, ponder) -> None:
    write("s.toml", SWEEP.replace("prices = { input = 1.0, output = 2.0 }\n", "", 1))
    result = ponder("tune", "s.toml", "--by", "cost")
    assert result.exit_code == 2
    assert "the prices of `tiny` are unknown" in result.stderr
    assert "prices = { input" in result.stderr


def test_prompts_are_settings_too(write, ponder) -> None:
    """Tasks that ask the same problems with other instructions are compared, not pooled."""
    rows = [{"prompt": f"{n} + 1?", "answer": n + 1} for n in range(40)]
    write("rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    write(
        "p.toml",
        """
[[task]]
name = "jsonl"
file = "rows.jsonl"
instruction = ["", "Be brief."]
[[model]]
name = "oracle"
tokens_at_zero = [100, 1000]
""",
    )
    data = tuned(ponder, "p.toml", "--margin", "0.2")
    assert len(data["settings"]) == 4
    assert data["chosen"].startswith("oracle tokens_at_zero=100, jsonl")
    text = ponder("tune", "p.toml", "--margin", "0.2", "--stored").stdout
    assert "Asked as\njsonl" in text


def test_a_dial_without_effect_is_not_chosen_again(write, ponder, serve) -> None:
    server = serve(lengths={"median": 300, "sigma": 0.2}, ignores=True)
    write(
        "s.toml",
        f"""
problems = 60
[[task]]
name = "chain_sum"
size = 4
[[model]]
name = "endpoint"
id = "m"
url = "{server.url}"
budget = 4000
send_seed = false
effort = ["low", "high"]
prices = {{ input = 1.0, output = 2.0 }}
""",
    )
    data = tuned(ponder, "s.toml", "--margin", "0.2")
    assert sorted(choices(data).values()) == ["chosen", "no effect"]


def test_from_python(folder) -> None:
    study = Study(
        task={"name": "chain_sum", "size": 4},
        model=[
            {"name": "oracle", "label": "short", "tokens_at_zero": 100},
            {"name": "oracle", "label": "long", "tokens_at_zero": 1000},
        ],
        problems=200,
    )
    result = ponder.tune(study, margin=0.1, progress=False)
    assert result.chosen is not None
    assert result.chosen.label == "short"
    assert "`short` uses" in repr(result)
    assert "<table>" in result._repr_html_()
    with pytest.raises(UserError, match="not both"):
        ponder.tune(study, margin=0.1, floor=0.9)


# --- What to deploy ---

ENDPOINTS = {
    "chat": 'provider = "vllm"\nthink = 1024\ntemperature = 0.6',
    "responses": 'protocol = "responses"\nkey = "$TEST_KEY"\neffort = "low"',
    "anthropic": 'protocol = "anthropic"\nkey = "$TEST_KEY"\nthink = 1024',
    "gemini": 'protocol = "gemini"\nkey = "$TEST_KEY"\nthink = 1024',
}


@pytest.mark.parametrize("instruction", ["", "Be brief."])
@pytest.mark.parametrize("protocol", ENDPOINTS)
def test_the_line_of_python_sends_the_request_that_was_measured(
    protocol, instruction, write, serve, monkeypatch
) -> None:
    monkeypatch.setenv("TEST_KEY", "k-test")
    server = serve()
    url = server.url
    model = "gpt-5-mini"
    if protocol == "gemini":
        url = url.replace("/v1", "/v1beta")
        model = "gemini-2.5-flash"
    if protocol == "anthropic":
        model = "claude-haiku-4-5"
    write(
        "s.toml",
        f"""
[[task]]
name = "chain_sum"
size = 4
[[model]]
name = "endpoint"
id = "{model}"
url = "{url}"
budget = 4096
{ENDPOINTS[protocol]}
{f'method = [{{ name = "prompt", text = "{instruction}" }}]' if instruction else ""}
""",
    )
    deployment = deploy(Study.load("s.toml").cells[0])
    assert deployment.body is not None
    names = _packages(protocol)
    exec(deployment.python, names)
    (sent,) = server.state()["bodies"]
    for field, value in deployment.body.items():
        if field not in MESSAGES:
            assert camel(sent[field]) == value, field
    assert "model_name" in deployment.litellm
    (messages,) = [value for field, value in sent.items() if field in MESSAGES]
    text = "1 + 1?"
    if instruction:
        text = f"1 + 1?\n\n{instruction}"
        body = json.dumps(deployment.body)
        assert json.dumps(f"{REQUEST}\n\n{instruction}") in body
        assert "which LiteLLM's entry can't hold" in deployment.note
    assert json.dumps(text) in json.dumps(messages)
    assert set(MESSAGES).isdisjoint(deployment.body) != bool(instruction)


def camel(value: Any) -> Any:
    """Return a value with its fields in camel case: Google's API takes either."""
    if not isinstance(value, dict):
        return value
    table = {}
    for name, inner in value.items():
        first, *words = name.split("_")
        table["".join([first, *(word.capitalize() for word in words)])] = inner
    if table.keys() & {"budgetTokens", "enableThinking"}:  # fields of other providers
        return value
    return {name: camel(inner) for name, inner in table.items()}


def _packages(protocol: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": "1 + 1?"}]
    names: dict[str, Any] = {"os": os, "messages": messages, "contents": "1 + 1?"}
    if protocol == "anthropic":
        names["Anthropic"] = pytest.importorskip("anthropic").Anthropic
    elif protocol == "gemini":
        names["genai"] = pytest.importorskip("google.genai")
    else:
        names["OpenAI"] = pytest.importorskip("openai").OpenAI
    return names


def test_the_model_to_deploy_keeps_its_label_and_prices(write, ponder) -> None:
    write("s.toml", SWEEP)
    printed = ponder("tune", "s.toml", "--margin", "0.05").stdout
    table = tomllib.loads("[[model]]" + printed.partition("[[model]]")[2].partition("\n\n")[0])
    assert table["model"][0]["label"] == "low"
    assert table["model"][0]["prices"] == {"input": 1.0, "output": 2.0}


# --- What it would take, and what went wrong ---

UNDECIDED = """
problems = 30
[[task]]
name = "chain_sum"
size = [4, 8, 16]
[[model]]
name = "oracle"
label = "low"
critical_size = 9
[[model]]
name = "oracle"
label = "high"
critical_size = 10
tokens_per_size = 90
"""


def test_problems_that_would_decide_are_of_all_sizes_and_rounded(write, folder) -> None:
    write("s.toml", UNDECIDED)
    result = ponder.tune(Study.load("s.toml"), progress=False)
    undecided = next(setting for setting in result.settings if setting.more_problems)
    [state] = with_goal(Study.load("s.toml"), None, None, "", None).results().replayed
    i = state.trial.names.index(undecided.label)
    per_size = state.trial.design.problems_to_decide(state.scores, i, 1 - i)
    assert undecided.more_problems == 3 * per_size
    text = " ".join(result.verdict())
    [needed] = re.findall(r"about ([\d,]+) more problems would decide", text)
    assert len(needed.replace(",", "").rstrip("0")) <= 2
    assert int(needed.replace(",", "")) >= undecided.more_problems


def test_a_hopeless_setting_does_not_speak_for_the_others(write, folder) -> None:
    write("s.toml", UNDECIDED)
    result = ponder.tune(Study.load("s.toml"), progress=False)
    low, high = result.settings
    settings = (
        replace(low, choice="undecided", more_problems=math.inf),
        replace(high, choice="undecided", more_problems=123.0),
    )
    text = replace(result, settings=settings).verdict()[0]
    assert "about 130 more problems would decide about `high`, and take about " in text
    assert "`low` is so close to the margin that 100 times the problems wouldn't" in text


def test_where_there_is_nothing_to_ask_there_is_no_progress(write, ponder) -> None:
    write("s.toml", SWEEP)
    assert "540" in ponder("tune", "s.toml", "--margin", "0.05").stderr
    assert ponder("tune", "s.toml", "--margin", "0.05").stderr == ""


def test_a_setting_that_never_answers_ends_the_run_and_is_not_chosen(write, ponder, serve) -> None:
    server = serve(always=503)
    model = f'name = "endpoint"\nid = "m"\nurl = "{server.url}"\nretries = 0'
    write(
        "s.toml",
        UNDECIDED.replace('name = "oracle"\nlabel = "high"', f'{model}\nlabel = "high"').replace(
            "critical_size = 10\ntokens_per_size = 90\n", ""
        ),
    )
    result = ponder("tune", "s.toml", "--reference", "high")
    assert result.exit_code == 1
    assert "Can't tell yet: `high` has no answers yet." in result.stdout
    assert "18 of the full plan's 180 attempts; 9 of them failed and are left out" in result.stdout
    assert "failed 9: HTTP 503" in result.stderr


@pytest.mark.parametrize("volume", ["nan", "inf"])
def test_a_volume_is_a_number(write, ponder, volume) -> None:
    write("s.toml", UNDECIDED)
    result = ponder("tune", "s.toml", "--volume", volume)
    assert result.exit_code == 2
    assert "is not a number of requests" in result.stderr


def test_a_log_needs_no_stored(write, ponder) -> None:
    rows = []
    for n in range(12):
        for effort in ("low", "high"):
            rows.append(
                {
                    "request": {
                        "model": "m",
                        "reasoning_effort": effort,
                        "messages": [{"role": "user", "content": f"{n} + 1?"}],
                    },
                    "response": {
                        "choices": [{"message": {"content": str(n + 1)}, "finish_reason": "stop"}],
                        "usage": {"prompt_tokens": 5, "completion_tokens": 9},
                    },
                    "right": True,
                }
            )
    write("log.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert ponder("import", "log.jsonl").exit_code == 0
    result = ponder("tune", "log.toml", "--margin", "0.3")
    assert result.exit_code in (0, 1), result.stderr
    assert "from 24 attempts, all that there are" in result.stdout
