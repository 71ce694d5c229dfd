"""Secrets are named, not written: they reach the server and nothing else."""

from __future__ import annotations

import asyncio
import html
import json
import re
import socket
import threading
from base64 import b32encode, b64encode, urlsafe_b64encode
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from endpoint_calls import ask, reached, request, retries
from test_endpoint_stream import assembled

from ponder.core import ModelFailure, UserError
from ponder.core.secrets import Secrets, check_body, check_headers, check_url
from ponder.core.settings import build
from ponder.models.endpoint import Endpoint
from ponder.models.endpoint.reply import Malformed
from ponder.study.study import StudySpec

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
        "https://host/v1?subscription-key=hunter2",
        "https://host/v1?access_key=hunter2",
        "https://host/v1?code=hunter2",
        "https://host/v1?sv=2&sig=hunter2",
        "https://host/v1?token=hunter2",
        "https://host/v1?hf_token=hunter2",
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
    [
        "https://user:$MY_KEY@host/v1",
        "https://${MY_KEY}@host/v1",
        "https://host/v1?key=$MY_KEY&v=1",
        "https://host/v1?api-version=2024-10-21&eos_token=x",
        "http://h/v1",
    ],
)
def test_a_url_may_name_variables(url) -> None:
    check_url(url)


@pytest.mark.parametrize(
    "name",
    [
        "Authorization",
        "api-key",
        "X-API-Key",
        "cookie",
        "X-Auth",
        "my-token",
        "Secret",
        "X-Credential",
    ],
)
def test_a_secret_header_is_refused_and_not_repeated(name) -> None:
    with pytest.raises(UserError, match=name) as error:
        Endpoint(id="m", headers={name: "Bearer hunter2"})
    assert "hunter2" not in str(error.value)
    for value in ("$MY_KEY", "${MY_KEY}", "Bearer $MY_KEY", "Basic $MY_KEY", "Token ${MY_KEY}"):
        check_headers({name: value, "X-Title": "a study"})
    for value in (
        "hunter2=$MY_KEY",
        "hunter2 $MY_KEY",
        "hunter2$MY_KEY",
        "Bearer $MY_KEY hunter2",
        "$MY_KEY=hunter2",
    ):
        with pytest.raises(UserError) as error:
            check_headers({name: value})
        assert "hunter2" not in str(error.value)


@pytest.mark.parametrize(
    "name",
    [
        "api_key", "apiKey", "password", "auth_token", "token", "api_token", "hf_token", "hfToken", "HF-TOKEN", "secret",
        "private_key", "client_secret", "access_token", "backend_token", "subscription-key", "credentials",
    ],
)  # fmt: skip
def test_a_secret_in_the_body_is_refused_and_not_repeated(name) -> None:
    for value in (
        "hunter2",
        ["hunter2"],
        {"value": "hunter2"},
        {"deep": ["$MY_KEY", {"value": "hunter2"}]},
    ):
        body = {"extra": [{name: value}]}
        with pytest.raises(UserError, match=name) as error:
            Endpoint(id="m", body=body)
        assert "hunter2" not in str(error.value)
        check_body(json.loads(json.dumps(body).replace("hunter2", "$MY_KEY")))
    check_body({name: 7})
    check_body({name: [True, None]})


def test_ordinary_fields_are_allowed() -> None:
    check_body(
        {
            "min_tokens": 5,
            "eos_token": "</s>",
            "logit_bias": {"50256": -100},
            "prompt_cache_key": "a study",
        }
    )
    check_body(
        {
            "token_ids": [1],
            "stop_token_ids": [2],
            "skip_special_tokens": False,
            "tokenizer": "gpt2",
            "key": "k",
        }
    )
    check_body(
        {
            "stop_token": "###",
            "include_stop_str_in_output": True,
            "tokens": "all",
            "return_tokens_as": "text",
        }
    )
    check_body({"credentials": {"type": "aws", "region": "eu-1", "access_key": "$MY_KEY"}})
    check_body(
        {
            "response_format": {
                "json_schema": {"schema": {"properties": {"token": {"type": "string"}}}}
            }
        }
    )


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
    assert (
        state["headers"]["Authorization"]
        == "Basic " + b64encode(f"user:{PASSWORD}".encode()).decode()
    )
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
    model = Endpoint(
        id="m", url=serve(echo=status).url, key="$MY_KEY", headers={"X-Auth": "$SHORT"}, retries=0
    )
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
    _, failure = retries(
        Endpoint(id="m", url=serve(always=400, text="x" * 290 + KEY).url, key="$MY_KEY")
    )
    assert KEY[:4] not in failure


@pytest.mark.parametrize(
    "faults",
    [
        {"always": 400, "text": "{}"},
        {"raw": '{{"error": {{"message": "bad key {}"}}}}'},
        {
            "raw": '{{"choices": [{{"message": {{}}, "finish_reason": "error"}}], "error": "bad key {}"}}'
        },
        {"models": 401, "always": 401, "text": "{}"},
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_no_part_of_a_long_key_is_shown(serve, monkeypatch, tmp_path, faults, stream) -> None:
    key = "sk-" + "0123456789" * 800
    monkeypatch.setenv("MY_KEY", key)
    faults = {
        name: text.format(key) if isinstance(text, str) else text for name, text in faults.items()
    }
    if raw := faults.pop("raw", ""):
        (tmp_path / "raw").write_text(raw)
        faults["raw_file"] = str(tmp_path / "raw")
    model = Endpoint(id="m", url=serve(**faults).url, key="$MY_KEY", retries=0, stream=stream)
    try:
        _, shown = retries(model)
    except UserError as error:
        shown = str(error)
    assert "$MY_KEY" in shown
    assert "0123" not in shown


BROKEN = {
    "status": b"HTTP/1.1 KEY OK\r\n\r\n",
    "no HTTP": b"KEY\r\n\r\n",
    "name of a header": b"HTTP/1.1 200 OK\r\nX KEY: 1\r\nContent-Length: 0\r\n\r\n",
    "control character": b"HTTP/1.1 200 OK\r\nX-Echo: \x01KEY\r\nContent-Length: 0\r\n\r\n",
    "length": b"HTTP/1.1 200 OK\r\nContent-Length: KEY\r\n\r\n",
    "chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nKEY\r\n",
    "long header": b"HTTP/1.1 200 OK\r\nX: " + b"KEY" * 900 + b"\r\n\r\n",
    "reason": b"HTTP/1.1 500 KEY\r\nContent-Length: 3\r\n\r\nKEY",
}


def answering(content: bytes) -> tuple[str, socket.socket]:
    """Return the address of a server that gives this answer to each connection, and its socket."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:  # closed
                return
            with connection:
                connection.recv(65536)
                connection.sendall(content)

    threading.Thread(target=serve, daemon=True).start()
    return f"http://127.0.0.1:{listening.getsockname()[1]}/v1", listening


@pytest.mark.parametrize(
    "key",
    [
        'sk-"abcd"-0123456789',
        "sk-a'b\"cd-0123456789",
        'sk-ü"d-0123456789',
        'sk-proj-"' + "abcd01234" * 20,
    ],
)
@pytest.mark.parametrize("case", BROKEN)
def test_broken_http_shows_no_part_of_a_key(monkeypatch, case, key) -> None:
    monkeypatch.setenv("MY_KEY", key)
    url, listening = answering(BROKEN[case].replace(b"KEY", key.encode()))
    with listening:
        _, failure = retries(Endpoint(id="m", url=url, key="$MY_KEY", retries=0, probe=False))
    assert not any(part in failure for part in ("abcd", "0123"))


def test_an_error_in_a_stream_shows_no_part_of_a_long_key() -> None:
    secrets = Secrets()
    key = secrets.hide("k" * 5000, "KEY")
    with pytest.raises(Malformed) as error:
        assembled(b'data: {"error": "' + key.encode() + b'"}\n\n')
    assert "kk" not in secrets.redact(str(error.value))


def percented(text: str) -> str:
    """Return a text with every character percent-encoded."""
    return "".join(f"%{byte:02X}" for byte in text.encode())


ODD_KEY = "sk+a/b=c&d\"e'f\\g<hü z"


@pytest.mark.parametrize(
    "form",
    [
        json.dumps(ODD_KEY)[1:-1],
        json.dumps(ODD_KEY, ensure_ascii=False)[1:-1],
        json.dumps(ODD_KEY)[1:-1].replace("/", "\\/"),
        json.dumps(json.dumps(ODD_KEY)[1:-1])[1:-1],
        json.dumps(ODD_KEY)[1:-1]
        .replace("+", "\\u002B")
        .replace("=", "\\u003d")
        .replace("<", "\\u003C"),
        "".join(f"\\u{ord(c):04x}" for c in ODD_KEY),
        repr({"key": ODD_KEY})[9:-2],
        quote(ODD_KEY, safe=""),
        quote(ODD_KEY),
        quote_plus(ODD_KEY),
        quote(ODD_KEY, safe="").lower(),
        ODD_KEY.upper(),
        ODD_KEY.lower(),
        percented(ODD_KEY),
        percented(ODD_KEY).lower(),
        quote(percented(ODD_KEY), safe=""),
        html.escape(ODD_KEY),
        html.escape(html.escape(ODD_KEY)),
        "".join(f"&#{ord(c)};" for c in ODD_KEY),
        repr(ODD_KEY.encode())[2:-1],
        repr(repr(ODD_KEY.encode()))[4:-3],
        "".join(f"\\x{byte:02x}" for byte in ODD_KEY.encode()),
        ODD_KEY.encode().hex(),
        ODD_KEY.encode().hex().upper(),
        ODD_KEY.encode().hex(" "),
        ODD_KEY.encode().hex(":"),
        b64encode(ODD_KEY.encode()).decode(),
        urlsafe_b64encode(ODD_KEY.encode()).decode(),
    ],
)
def test_a_key_in_another_notation_is_redacted(form) -> None:
    secrets = Secrets()
    secrets.hide(ODD_KEY, "KEY")
    assert (
        secrets.redact(f"The key <{form}> is wrong, 50% \\of it.", 12)
        == "The key <$KEY> is wrong, 50% \\of it."
    )


@pytest.mark.parametrize(
    "around", [("user:", ""), ("a", "b"), ("Bearer ", "!"), ("{", "}}"), ("", "more")]
)
def test_a_key_inside_a_text_in_base64_is_redacted(around) -> None:
    secrets = Secrets()
    secrets.hide(KEY, "KEY")
    coded = b64encode(KEY.join(around).encode()).decode()
    shown = secrets.redact(f"Authorization: Basic {coded}; {coded.lower()}", 12)
    left = shown.partition(";")[0].removeprefix("Authorization: Basic ").replace("$KEY", " ")
    assert "$KEY" in shown
    assert all(word in coded for word in left.split())
    assert len(left) < 12  # what stands around it


@pytest.mark.parametrize(
    "cut", [ODD_KEY[:8], ODD_KEY[:15], json.dumps(ODD_KEY)[1:20], repr(ODD_KEY.encode())[2:20]]
)
def test_the_start_of_a_key_is_redacted_in_an_error_but_not_in_an_answer(cut) -> None:
    secrets = Secrets()
    secrets.hide(ODD_KEY, "KEY")
    assert secrets.redact(f"Got too much: {cut}...") == "Got too much: $KEY..."
    assert secrets.redact(f"Got too much: {cut}...", 12) == f"Got too much: {cut}..."


def test_words_of_an_answer_are_not_taken_for_a_short_value() -> None:
    secrets = Secrets()
    secrets.hide("EMPTY", "KEY")
    assert secrets.redact("the set is empty: EMPTY") == "the set is empty: $KEY"


def test_redacting_takes_linear_time() -> None:
    for key in ("\\" * 60, "/" * 60, "a\\/" * 30, "\\u0061" * 20):
        secrets = Secrets()
        secrets.hide(key, "KEY")
        for text in (
            "\\",
            "/",
            "a\\/",
            "\\u0061",
            "%2f",
            "\\\\u005c",
            "%25",
            "%2525",
            "&amp;",
            "&amp;#47;",
            "\\x5c",
        ):
            assert secrets.redact(text * 100_000 + "!").endswith("!")


HEX = "0123456789abcdef" * 4
LITERAL = [
    "sk-proj-" + "aB3dE6gH9" * 10,
    "sk-ant-api03-" + "aB3dE6gH9-_" * 8,
    f"sk-or-v1-{HEX}",
    "AIza" + "SyA1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q",
    "gsk_" + "a1B2c3D4" * 6,
    "hf_" + "aBcDeF1234" * 3,
    "xai-" + "aBcDeF1234" * 6,
    "ghp_" + "aBcDeF123456" * 3,
    "AKIAIOSFODNN7EXAMPLE",
    "Bearer aBcDeF123456",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.c2lnbmF0dXJl",
]


@pytest.mark.parametrize("key", LITERAL)
def test_a_literal_key_is_refused_under_any_name_and_not_repeated(key) -> None:
    tables = [
        {"headers": {"X-Foo": key}},
        {"headers": {"X-Foo": f"id={key}; v=1"}},
        {"body": {"extra": {"deep": ["a", key]}}},
        {"url": f"https://host/v1?route={key}"},
        {"url": f"https://host/{key}/v1"},
        {"id": key},
        {"tokenizer": key},
        {"label": key},
    ]
    for table in tables:
        if " " in key and "url" in table:
            continue
        with pytest.raises(UserError) as error:
            build("models", {"name": "endpoint", "id": "m", **table}, "model", Path())
        assert "NAME" in error.value.hint
        assert key[6:18] not in str(error.value)
    for name in ("vllm", "transformers"):
        setting = {"args": {"x": key}} if name == "vllm" else {"revision": key}
        with pytest.raises(UserError, match="looks like an API key"):
            build("models", {"name": name, "id": "pocket", **setting}, "model", Path())


@pytest.mark.parametrize(
    "value",
    [HEX, HEX[:32], "aB3dE6gH9" * 4, "v1 aB3dE6gH9aB3dE6gH9aB3dE6gH9aB3dE6", "Bearer hunter2"],
)
def test_a_random_header_is_refused(value) -> None:
    with pytest.raises(UserError, match="`X-Foo` looks like a key") as error:
        check_headers({"X-Foo": value})
    assert value not in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "org-aBcDeF1234aBcDeF1234aBcD",
        "proj_aBcDeF1234aBcDeF1234aBcD",
        "https://docs.example/d/1aB2cD3eF4gH5iJ6kL7mN8oP9qR0sT1uV2wX3yZ4/edit",
        "550e8400-e29b-41d4-a716-446655440000",
        "da39a3ee5e6b4b0d3255bfef95601890afd80709",  # a commit
        "reasoning-economics-of-large-models-2024-2025-v2",
        "ponder/0.1 (https://github.com/lab/ponder; mailto:me@lab.org)",
        "2024-10-21-preview",
        "Bearer $MY_KEY",
        "sk-your-key-goes-here",
        "a" * 64,
        "1" * 64,
    ],
)
def test_what_only_resembles_a_key_is_allowed(text) -> None:
    check_headers({"X-Foo": text})
    check_body({"extra": text})


@pytest.mark.parametrize(
    "name",
    [
        "Qwen/Qwen2.5-Math-PRM-7B",
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B-GGUF",
        "models/hf_smollm2_135m_instruct_run17",
        "sk-learn-baseline-model-2024",
        "us.anthropic.claude-3-7-sonnet-20250219-v1:0",
        "ft:gpt-4o-mini-2024-07-18:lab::AbCdEf12",
        "accounts/fireworks/models/llama-v3p1-405b-instruct",
        "Basic arithmetic",
    ],
)
def test_ids_of_models_and_revisions_are_allowed(name) -> None:
    table = {
        "name": "vllm",
        "id": name,
        "revision": "da39a3ee5e6b4b0d3255bfef95601890afd80709",
        "label": name,
    }
    build("models", table, "model", Path())
    build("models", {"name": "endpoint", "id": name, "body": {"grammar": HEX}}, "model", Path())


@pytest.mark.parametrize(
    "value", ["hunter2\nX-Other: 1", "hunter2\r\n", "hunter2\x1b[0m", "hunter2\x7f"]
)
def test_a_header_that_cant_be_sent_is_said_before_a_run_and_not_repeated(
    monkeypatch, value
) -> None:
    monkeypatch.setenv("MY_KEY", f"a{value}b")
    for settings in (
        {"key": "$MY_KEY"},
        {"headers": {"X-Key": "Bearer $MY_KEY"}},
        {"headers": {"X-Title": value}},
    ):
        with pytest.raises(UserError, match=r"header `[\w-]+` contains a line break or") as error:
            Endpoint(id="m", **settings).ready()
        assert "hunter2" not in str(error.value)
    with pytest.raises(UserError, match="name of a header"):
        Endpoint(id="m", headers={"X Title": "a study"}).ready()


def test_a_variable_that_is_not_utf8_is_said_before_a_run(monkeypatch) -> None:
    monkeypatch.setenv("MY_KEY", "a\udcff")
    for settings in ({"key": "$MY_KEY"}, {"body": {"api_key": "$MY_KEY"}}):
        with pytest.raises(UserError, match="MY_KEY is not UTF-8"):
            Endpoint(id="m", **settings).ready()


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
            (server,) = model._client.servers.all
            assert server.page.query == {"key": PASSWORD, "v": "1"}
            return model._client.shown(f"400, message='Bad status line', url='{server.page}'")

    assert "ss/w:rd" not in asyncio.run(shown())


def test_a_redirect_shows_no_secrets(serve) -> None:
    with pytest.raises(UserError, match=r"redirects to https://evil/\?key=\$MY_KEY") as error:
        ask(Endpoint(id="m", url=serve(redirect=f"https://evil/?key={KEY}").url, key="$MY_KEY"), 1)
    assert KEY not in str(error.value)


def test_a_model_that_repeats_the_key_is_redacted_but_short_values_stay_in_answers(
    serve, tmp_path
) -> None:
    message = {"content": f"The key is {KEY}. The set is EMPTY.", "reasoning": f"{KEY}!"}
    (tmp_path / "raw").write_text(json.dumps({"choices": [{"message": message}]}))
    model = Endpoint(
        id="m",
        url=serve(raw_file=str(tmp_path / "raw")).url,
        key="$MY_KEY",
        headers={"X-Auth": "$SHORT"},
    )
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


RANDOM_KEY = "sk-or-v1-9f8Ab37c2dE41x06Zq55_7b-Kw81"


@pytest.mark.parametrize(
    "written",
    [
        RANDOM_KEY[:10] + "\n" + RANDOM_KEY[10:],
        " ".join(RANDOM_KEY),
        b64encode(RANDOM_KEY.encode()).decode()[:20]
        + "\n"
        + b64encode(RANDOM_KEY.encode()).decode()[20:],
        b32encode(RANDOM_KEY.encode()).decode(),
        RANDOM_KEY.encode().hex("-"),
        ", ".join(f"0x{octet:02x}" for octet in RANDOM_KEY.encode()),
        "".join(f"\\u{{{octet:x}}}" for octet in RANDOM_KEY.encode()),
        "".join(f"\\{octet:03o}" for octet in RANDOM_KEY.encode()),
        str(list(RANDOM_KEY.encode())),
    ],
)
def test_a_key_with_something_between_its_letters_is_redacted(written) -> None:
    secrets = Secrets()
    secrets.hide(RANDOM_KEY, "KEY")
    for text in (f"It is {written}\nand so on", f"It is {written}, or {written}!"):
        redacted = secrets.redact(text, 12)
        assert redacted.count("$KEY") == text.count(written)
        assert redacted.startswith("It is ")
        assert not re.search("[0-9]{2}|9f8|Kw81", redacted)


def test_a_key_that_the_budget_cut_off_is_redacted() -> None:
    secrets = Secrets()
    secrets.hide(RANDOM_KEY, "KEY")
    for length in (12, 20, len(RANDOM_KEY) - 1):
        assert secrets.redact(f"The key is {RANDOM_KEY[:length]}", 12) == "The key is $KEY"
    assert (
        secrets.redact(f"Keys begin with {RANDOM_KEY[:9]}", 12)
        == f"Keys begin with {RANDOM_KEY[:9]}"
    )


def test_ordinary_text_is_not_redacted() -> None:
    secrets = Secrets()
    for key in (RANDOM_KEY, KEY, "hf_abcdefghijKLMNOP1234567890qrstuv"):
        secrets.hide(key, "KEY")
    folder = Path(__file__).parent.parent
    text = "\n".join(path.read_text("utf-8") for path in sorted((folder / "src").rglob("*.py")))
    assert len(text) > 1_000_000
    assert secrets.redact(text, 12) == text


@pytest.mark.parametrize("key", ["title", "question"])
def test_a_literal_key_in_a_title_is_refused_and_not_repeated(key) -> None:
    with pytest.raises(UserError, match="looks like an API key") as error:
        StudySpec.from_table(
            {"task": [{"name": "tents"}], "model": [{"name": "oracle"}], key: f"with {RANDOM_KEY}"}
        )
    assert RANDOM_KEY not in error.value.in_terminal()
