"""Servers that answer as another model than the one that was asked for."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from endpoint_calls import request, watched

from ponder.models.endpoint import Endpoint
from ponder.models.endpoint.servers import MAX_NAMES, ServedNames, alike

STUDY = 'problems = 8\n[[task]]\nname = "chain_sum"\nsize = 2\n[[model]]\nname = "endpoint"\nid = "m"\nconcurrency = 4\n'


@pytest.mark.parametrize(
    ("asked", "answers"),
    [
        ("m", "m"),
        ("gpt-4o", "gpt-4o-2024-08-06"),
        ("gpt-4", "gpt-4-0613"),
        ("gemini-1.5-pro", "gemini-1.5-pro-002"),
        ("claude-sonnet-4", "claude-sonnet-4@20250514"),
        ("command-r", "command-r-08-2024"),
        ("chat-latest", "chat-2025-01-02"),
        ("qwen3", "qwen3:latest"),
        ("Qwen/QwQ-32B", "qwq-32b"),
        ("qwq-32b", "accounts/fireworks/models/qwq-32b"),
        ("qwen3-4b", "/models/Qwen3-4B.gguf"),
        ("gpt-4o-2024-08-06", "gpt-4o"),
    ],
)
def test_names_of_one_model(asked, answers) -> None:
    assert alike(asked, answers)


@pytest.mark.parametrize(
    ("asked", "answers"),
    [
        ("m", "other"),
        ("gpt-4o", "gpt-4o-mini"),
        ("gpt-4o-2024-05-13", "gpt-4o-2024-08-06"),
        ("qwen3:4b", "qwen3:32b"),
        ("org/a", "org/b"),
        ("claude-3", "claude-3-5"),
    ],
)
def test_names_of_two_models(asked, answers) -> None:
    assert not alike(asked, answers)


def warned(times: int = 2, **settings: Any) -> list[str]:
    """What an endpoint warns of while it is asked a few times, one by one and all at once."""
    warnings: list[str] = []

    async def ask() -> None:
        async with Endpoint(id="m", **settings) as model:
            for _ in range(times):
                asked = [watched(request(seed), warned=warnings.append) for seed in range(4)]
                await asyncio.gather(*map(model.complete, asked))

    asyncio.run(ask())
    return warnings


@pytest.mark.parametrize("stream", [False, True])
def test_another_model_is_told_once(serve, stream) -> None:
    url = serve(model="other").url
    (warning,) = warned(url=url, stream=stream)
    assert warning == f"{url} answers as `other`, and its answers are stored as those of `m`"


def test_an_alias_is_no_other_model(serve) -> None:
    assert warned(url=serve(model="resolved", lists=["resolved", "m"]).url) == []
    assert len(warned(url=serve(model="resolved", lists=["resolved"]).url)) == 1
    assert len(warned(url=serve(model="resolved", models=404).url)) == 1


@pytest.mark.parametrize("name", [None, "", 3, ["m"]])
def test_a_server_that_gives_no_name(serve, name) -> None:
    assert warned(1, url=serve(model=name).url) == []


def test_servers_that_disagree_are_named(serve) -> None:
    one, two = (serve(model=name, together=2).url for name in ("m-2024-05-13", "m-2024-08-06"))
    (warning,) = warned(1, url=(one, two))
    assert warning.startswith("the servers of `m` answer as different models: ")
    assert f"{one} as `m-2024-05-13`" in warning
    assert f"{two} as `m-2024-08-06`" in warning


def test_names_from_outside_are_limited() -> None:
    names = ServedNames("m")
    assert sum(names.new("http://a", f"{n}") for n in range(1000)) == MAX_NAMES


def test_a_run_says_which_server_is_the_wrong_one(serve, write, ponder) -> None:
    right, wrong = serve(together=2), serve(model="other\x1b[2J", together=2)
    write("s.toml", STUDY + f'url = ["{right.url}", "{wrong.url}"]\n')
    result = ponder("run", "s.toml", "--json")
    assert result.exit_code == 0
    assert result.stderr.count("warning: ") == 1
    assert f"warning: {wrong.url} answers as `other\\x1b[2J`, and its" in result.stderr
    assert len(json.loads(result.stdout)["warnings"]) == 1
