"""Secrets are named, not written: they reach the server and nothing else."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode

import pytest
from endpoint_calls import ask, reached, request, retries

from ponder.core import ModelFailure, UserError
from ponder.core.secrets import Secrets, check_body, check_headers, check_url
from ponder.models.endpoint import Endpoint

KEY, PASSWORD = "sk-verysecret-0123456789", "p@ss/w:rd?&=ü"


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    monkeypatch.setenv("MY_PASSWORD", PASSWORD)
    monkeypatch.setenv("SHORT", "EMPTY")


@pytest.mark.parametrize(
    "url",
    [
        "https://user:hunter2@host/v1",
        "https://hunter2@host/v1",
        "https://:hunter2@host/v1",
        "https://user:hunter2$MY_KEY@host/v1",
        "https://host/v1?key=hunter2",
        "https://host/v1?a=1&api_key=hunter2",
        "ftp://user:hunter2@host",
    ],
)
def test_a_password_in_a_url_is_refused_and_not_repeated(url) -> None:
    with pytest.raises(UserError) as error:
        Endpoint(id="m", url=url)
    assert "$NAME" in error.value.hint
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize(
    "url",
    ["https://user:$MY_KEY@host/v1", "https://${MY_KEY}@host/v1", "https://host/v1?key=$MY_KEY&v=1", "http://h/v1"],
)
def test_a_url_may_name_variables(url) -> None:
    check_url(url)


@pytest.mark.parametrize("name", ["Authorization", "api-key", "X-API-Key", "cookie", "X-Auth", "my-token", "Secret"])
def test_a_secret_header_is_refused_and_not_repeated(name) -> None:
    with pytest.raises(UserError, match=name) as error:
        Endpoint(id="m", headers={name: "Bearer hunter2"})
    assert "hunter2" not in str(error.value)
    for value in ("$MY_KEY", "${MY_KEY}", "Bearer $MY_KEY"):
        check_headers({name: value, "X-Title": "a study"})


@pytest.mark.parametrize(
    "body", [{"api_key": "hunter2"}, {"extra": [{"password": "hunter2"}]}, {"auth_token": "hunter2"}]
)
def test_a_secret_in_the_body_is_refused_and_not_repeated(body) -> None:
    with pytest.raises(UserError) as error:
        Endpoint(id="m", body=body)
    assert "hunter2" not in str(error.value)
    check_body(json.loads(json.dumps(body).replace("hunter2", "$MY_KEY")))
    check_body({"max_tokens": 5, "eos_token": "</s>", "logit_bias": {"50256": -100}, "prompt_cache_key": "a study"})


def test_secrets_are_sent_and_stay_out_of_the_key(serve) -> None:
    served = serve()
    model = Endpoint(
        id="m",
        url=served.url.replace("://", "://user:$MY_PASSWORD@") + "?version=1&key=$MY_KEY",
        headers={"X-Api-Key": "$MY_KEY", "X-Auth": "Token ${SHORT}", "X-Title": "a study"},
        body={"account": {"api_key": "$MY_KEY"}, "note": "costs $MY_KEY"},
    )
    ask(model, 1)
    state = served.state()
    assert state["headers"]["X-Api-Key"] == KEY
    assert (state["headers"]["X-Auth"], state["headers"]["X-Title"]) == ("Token EMPTY", "a study")
    assert state["headers"]["Authorization"] == "Basic " + b64encode(f"user:{PASSWORD}".encode()).decode()
    (body,) = state["bodies"]
    assert body["account"] == {"api_key": KEY}
    assert body["note"] == "costs $MY_KEY"  # only a value that is nothing else
    assert state["query"] == {"version": "1", "key": KEY}
    kept = json.dumps(model.identity())
    assert "$MY_KEY" in kept
    assert not any(secret in kept for secret in (KEY, PASSWORD))


@pytest.mark.parametrize(
    "settings",
    [
        {"key": "$NOT_SET"},
        {"headers": {"X-Key": "Bearer $NOT_SET"}},
        {"body": {"deep": ["$NOT_SET"]}},
        {"url": "https://u:$NOT_SET@host/v1"},
    ],
)
def test_a_variable_that_is_not_set_is_said_before_a_run(settings) -> None:
    with pytest.raises(UserError, match="the environment variable NOT_SET is not set"):
        Endpoint(id="m", **settings).ready()
    Endpoint(id="m", key="$MY_KEY", headers={"A": "$SHORT"}).ready()


@pytest.mark.parametrize("status", [400, 500])
def test_a_key_that_the_server_repeats_is_redacted(serve, status) -> None:
    model = Endpoint(id="m", url=serve(echo=status).url, key="$MY_KEY", headers={"X-Auth": "$SHORT"}, retries=0)
    seen, failure = retries(model)
    assert "Bearer $MY_KEY" in failure
    assert all(secret not in text for secret in (KEY, "EMPTY") for text in (failure, seen[0].why))


def test_a_login_that_the_server_repeats_is_redacted(serve) -> None:
    url = serve(echo=401).url.replace("://", "://user:$MY_PASSWORD@")
    with pytest.raises(UserError, match=r"Basic \$LOGIN") as error:
        ask(Endpoint(id="m", url=url), 1)
    assert b64encode(f"user:{PASSWORD}".encode()).decode() not in str(error.value)


def test_a_request_has_one_login() -> None:
    with pytest.raises(UserError, match="one login"):
        Endpoint(id="m", url="https://user:$MY_PASSWORD@host/v1", key="$MY_KEY").ready()


def test_a_key_at_the_end_of_what_is_shown_is_not_shown_in_part(serve) -> None:
    _, failure = retries(Endpoint(id="m", url=serve(always=400, text="x" * 290 + KEY).url, key="$MY_KEY"))
    assert KEY[:4] not in failure


def test_an_address_that_cant_be_reached_shows_no_secrets(slept) -> None:
    url = "http://user:$MY_PASSWORD@127.0.0.1:9/v1?key=$MY_KEY"
    with pytest.raises(UserError, match=r"no connection to http://user:\$MY_PASSWORD@") as error:
        reached(url=url)
    with pytest.raises(ModelFailure) as failure:
        ask(Endpoint(id="m", url=url, retries=0), 1)
    for text in (str(error.value), str(failure.value)):
        assert KEY not in text
        assert "p%40ss" not in text
        assert PASSWORD not in text


def test_the_address_as_aiohttp_writes_it_shows_no_secrets() -> None:
    async def shown() -> str:
        async with Endpoint(id="m", url="http://host/v1?key=$MY_PASSWORD&v=1") as model:
            assert model._chat.query == {"key": PASSWORD, "v": "1"}
            return model._shown(f"400, message='Bad status line', url='{model._chat}'")

    assert "ss/w:rd" not in asyncio.run(shown())


def test_a_redirect_shows_no_secrets(serve) -> None:
    with pytest.raises(UserError, match=r"redirects to https://evil/\?key=\$MY_KEY") as error:
        ask(Endpoint(id="m", url=serve(redirect=f"https://evil/?key={KEY}").url, key="$MY_KEY"), 1)
    assert KEY not in str(error.value)


def test_a_model_that_repeats_the_key_is_redacted_but_short_values_stay_in_answers(serve, tmp_path) -> None:
    message = {"content": f"The key is {KEY}. The set is EMPTY.", "reasoning": f"{KEY}!"}
    (tmp_path / "raw").write_text(json.dumps({"choices": [{"message": message}]}))
    model = Endpoint(id="m", url=serve(raw_file=str(tmp_path / "raw")).url, key="$MY_KEY", headers={"X-Auth": "$SHORT"})
    (answer,) = ask(model, 1)
    assert (answer.thinking, answer.answer) == ("$MY_KEY!", "The key is $MY_KEY. The set is EMPTY.")


def test_a_secret_inside_another_is_redacted_whole(monkeypatch) -> None:
    monkeypatch.setenv("LONG", "abcdefgh")
    monkeypatch.setenv("PART", "abcd")
    monkeypatch.setenv("TINY", "abc")
    secrets = Secrets()
    secrets.fill("$PART $LONG $TINY")
    assert secrets.redact("abcdefgh abcd abc") == "$LONG $PART abc"


def test_a_variable_with_a_newline_at_its_end_is_still_a_header(serve, monkeypatch) -> None:
    monkeypatch.setenv("MY_KEY", KEY + "\n")
    served = serve()

    async def once() -> None:
        async with Endpoint(id="m", url=served.url, key="$MY_KEY") as model:
            await model.complete(request())

    asyncio.run(once())
    assert served.state()["bodies"][0]["authorization"] == f"Bearer {KEY}"
