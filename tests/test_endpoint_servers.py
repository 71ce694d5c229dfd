"""Several servers of one model: they share its requests, one that dies is set aside, and it is
taken back.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator

import pytest
import virtual_time
from endpoint_calls import ask, reached, request, watched

from ponder.core import Completion, ModelFailure, Retry, UserError
from ponder.models.endpoint import Endpoint
from ponder.models.endpoint.servers import Server, Servers

STUDY = 'problems = {}\n[[task]]\nname = "chain_sum"\nsize = 2\n[[model]]\nname = "endpoint"\nid = "served"\n'


@pytest.fixture
def nobody() -> Iterator[str]:
    """The URL of a port at which nobody listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}/v1"


def pool(*urls: str, **settings: object) -> Endpoint:
    return Endpoint(id="served", url=urls, **settings)  # type: ignore[arg-type]


def test_they_share_the_load(serve) -> None:
    # Each answers only once four requests are in flight there, so that none can be left out.
    one, two = serve(together=4), serve(together=4)
    assert len(ask(pool(one.url, two.url, concurrency=8), *range(8))) == 8
    assert (one.state()["requests"], two.state()["requests"]) == (4, 4)


def test_one_that_is_down_costs_no_waiting_and_no_answer(serve, nobody, slept) -> None:
    alive, seen = serve(), list[Retry]()

    async def all_at_once() -> list[Completion]:
        async with pool(nobody, alive.url, concurrency=6) as model:
            asked = [watched(request(seed), retried=seen.append) for seed in range(20)]
            return await asyncio.gather(*(model.complete(one) for one in asked))

    assert all(completion.answer for completion in asyncio.run(all_at_once()))
    assert alive.state()["requests"] == 20
    assert {retry.billed for retry in seen} == {False}
    assert all(f"no connection to {nobody}" in retry.why for retry in seen)
    assert set(slept) == {0.01}  # the next try is at the other server, at once


def test_one_that_fails_fast_does_not_attract_the_load(serve, slept) -> None:
    broken, alive = serve(always=500), serve()
    assert len(ask(pool(broken.url, alive.url, concurrency=4), *range(40))) == 40
    assert alive.state()["requests"] == 40
    assert broken.state()["requests"] < 12


def test_one_that_returns_is_taken_back(serve) -> None:
    lost, other = serve(busy_first=1, retry_after="250"), serve()

    async def one_by_one() -> None:
        async with pool(lost.url, other.url) as model:
            await model.complete(request(1))
            assert (lost.state()["requests"], other.state()["requests"]) == (1, 1)
            (server, _) = model._client.servers.all
            server.back -= 250
            await model.complete(request(2))  # both are idle, so the first is asked
            assert (lost.state()["answered"], server.failures) == (1, 0)

    asyncio.run(one_by_one())


def test_choosing() -> None:
    async def choices() -> None:
        one, two = (Server(name, None, None, {}, None) for name in "ab")  # type: ignore[arg-type]
        servers = Servers([one, two])
        with servers.chosen() as first, servers.chosen() as second:
            assert (first, second) == (one, two)
        one.set_aside(100)
        with servers.chosen() as first, servers.chosen() as second:
            assert first is second is two
        two.set_aside(50)
        assert not servers.another()
        with servers.chosen() as back_first:
            assert back_first is two
        one.back = two.back = 0.0
        with servers.chosen() as first, servers.chosen() as second, servers.chosen() as third:
            # Each failed, so each gets one request until it answers.
            assert (first, second, third) == (one, two, one)
        one.answered()
        with servers.chosen() as first, servers.chosen() as second, servers.chosen() as third:
            assert (first, second, third) == (one, two, one)
        aside = []
        for _ in range(12):
            two.set_aside(0.0)
            aside.append(two.back - asyncio.get_running_loop().time())
        assert aside[:4] == [1, 2, 4, 8]
        assert aside[-1] == 60

    virtual_time.run(choices())


def test_all_down_is_an_error_and_one_down_is_not(serve, nobody, slept) -> None:
    with pytest.raises(
        UserError, match=f"no connection to {nobody}.*; no connection to {nobody}x"
    ) as error:
        reached(url=(nobody, f"{nobody}x"))
    assert "is the server running" in error.value.hint
    reached(url=(nobody, serve().url))

    async def once() -> None:
        async with pool(nobody, f"{nobody}x", retries=2) as model:
            await model.complete(request())

    with pytest.raises(ModelFailure, match=r"\(3 tries\)"):
        asyncio.run(once())


def test_a_study_survives_the_loss_of_a_server_and_knows_its_attempts(
    serve, write, ponder, nobody
) -> None:
    one, two = serve(), serve()
    write("s.toml", STUDY.format(5) + f'url = "{one.url}"\n')
    assert ponder("run", "s.toml").exit_code == 0
    # A second server is no other model: nothing is asked again.
    write("s.toml", STUDY.format(5) + f'url = ["{one.url}", "{two.url}"]\n')
    assert ponder("run", "s.toml").exit_code == 0
    assert (one.state()["requests"], "requests" in two.state()) == (5, False)
    # Nor is another first server, if the study says so.
    moved = STUDY.format(12) + f'url = ["{nobody}", "{two.url}"]\nserved_as = "{one.url}"\n'
    write("s.toml", moved)
    assert ponder("run", "s.toml").exit_code == 0
    assert (one.state()["requests"], two.state()["answered"]) == (5, 7)
    assert '"failed": 0' in ponder("run", "s.toml", "--json").stdout


def test_a_cap_and_a_rate_limit_hold_over_all_servers(serve, write, ponder) -> None:
    one, two = serve(), serve()
    both = f'url = ["{one.url}", "{two.url}"]\nbudget = 150\n'
    write("s.toml", "max_tokens = 1000\n" + STUDY.format(50) + both)
    assert ponder("run", "s.toml").exit_code in (0, 3)
    billed = sum(served.state()["billed_tokens"] for served in (one, two))
    assert 0 < billed <= 1000
    assert all(served.state()["billed_tokens"] for served in (one, two))


@pytest.mark.parametrize(
    ("status", "text"), [(404, "The model `served` does not exist"), (401, "no such key")]
)
def test_one_that_does_not_know_the_model_is_set_aside(serve, write, ponder, status, text) -> None:
    wrong, right = serve(always=status, text=text), serve()
    write("s.toml", STUDY.format(12) + f'url = ["{wrong.url}", "{right.url}"]\nconcurrency = 4\n')
    result = ponder("run", "s.toml", "--json")
    assert (result.exit_code, json.loads(result.stdout)["right"]) == (0, 12)
    (warning,) = json.loads(result.stdout)["warnings"]
    assert warning.startswith(wrong.url)
    assert warning.endswith(f"HTTP {status}: {text}; this server is set aside")
    assert result.stderr.count(f"warning: {wrong.url} ") == 1


def test_if_none_knows_the_model_the_run_ends(serve, write, ponder) -> None:
    one, two = serve(always=404, text="no such model"), serve(always=404, text="nor here")
    write("s.toml", STUDY.format(12) + f'url = ["{one.url}", "{two.url}"]\n')
    result = ponder("run", "s.toml")
    assert result.exit_code == 2
    both = f"{one.url} knows no such page or model: HTTP 404: no such model; {two.url} knows"
    assert f"\ns.toml: model `served`: {both}" in result.stderr
    assert "does it know the model `served`?" in result.stderr


def test_a_key_that_one_server_refuses_does_not_keep_a_run_from_starting(serve) -> None:
    refusing = serve(models=401).url
    reached(url=(refusing, serve().url))
    with pytest.raises(UserError, match="wants a key") as error:
        reached(url=(refusing, serve(models=401).url))
    assert 'key = "$NAME"' in error.value.hint


@pytest.mark.parametrize(
    ("urls", "why", "hint"),
    [
        ((), "must name one server", 'url = "http://127.0.0.1:8000/v1"'),
        (("http://a/v1", "http://a/v1"), "several different ones", "name each server once"),
        (("http://a/v1", "b"), "`b` is not an http", "url = "),
        (("http://a/v1", "http://user:secret@b/v1"), "must not contain a password", "$"),
    ],
)
def test_what_is_refused(urls, why, hint) -> None:
    with pytest.raises(UserError, match=why) as error:
        pool(*urls)
    assert hint in error.value.hint
