"""Asks any OpenAI-compatible chat endpoint: a hosted API, vLLM, SGLang, llama.cpp's server.

Thinking is read from `reasoning_content`, `reasoning`, or `<think>` tags in the content, whichever
the server uses. Thinking tokens are taken from the server's `usage` if it counts them; else they
are counted with `tokenizer`; else with the server's own tokenizer, if it has a page for that; else
the completion's tokens are split in proportion to characters, and the bill says `estimate`.

Several servers of one model share its requests: `url = ["http://one:8000/v1",
"http://two:8000/v1"]`. One that gives no answer is set aside until it is back. The first of them is
in the attempts' keys. A server that answers as another model than `id` is a warning.

Secrets are the names of environment variables: `$NAME` as `key`, in `url` and `headers`, or as a
value in `body`.
"""

from __future__ import annotations

import math
import os
import random
import re
import time
from asyncio import Lock, Semaphore, sleep
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal, Self

import aiohttp
import msgspec
from yarl import URL

from ponder.core import (
    Completion,
    EnvVar,
    Model,
    ModelFailure,
    Request,
    Retry,
    Sampled,
    Served,
    UserError,
    not_in_key,
)
from ponder.core.plugins import closest
from ponder.core.secrets import (
    REFERENCE,
    Secrets,
    check_body,
    check_headers,
    check_sendable,
    check_url,
)
from ponder.core.text import count, encodable
from ponder.models.endpoint.counting import ServerTokenizer, beside_v1
from ponder.models.endpoint.failures import (
    NoAnswer,
    Refusal,
    WrongServer,
    broken,
    connection_hint,
    is_web_page,
    no_connection,
    read_refusal,
    refused,
    room_for_reply,
    setting_to_change,
    speaks_https,
    status_inside,
)
from ponder.models.endpoint.rate_limit import RateLimit
from ponder.models.endpoint.reply import (
    Malformed,
    NoChoices,
    Reply,
    Said,
    TooLong,
    as_count,
    bill,
    decode,
    decode_json,
    load_tokenizer,
    read,
    rejected,
    slack,
    whole,
)
from ponder.models.endpoint.served_names import ServedNames, alike
from ponder.models.endpoint.servers import Server, Servers
from ponder.models.endpoint.stream import Deadline, assemble

BACK_OFF = 60.0  # seconds between two tries at most, unless the server asks for more
ANOTHER_SERVER = 0.01  # seconds until the next try if another server can be asked
ABOVE_ZERO = (
    "concurrency", "timeout", "idle_timeout", "max_wait", "budget", "requests_per_minute", "tokens_per_minute",
)  # fmt: skip
# Fields of a request that a body must not override, because the caps, the bills and the answers
# depend on them.
OWN_SETTINGS = {
    "model": "id = …",
    "messages": "the task writes them: ponder list tasks",
    "max_tokens": "budget = …",
    "max_completion_tokens": 'budget = …, with budget_field = "max_completion_tokens"',
    "n": "samples = … in the study asks several times",
    "stream": "stream = true",
}
LONGEST_MESSAGE = 2000  # characters of a server's text that a user is shown
# characters: shorter ones ("EMPTY", "1234") stay in replies, where they may be part of an answer
SHORTEST_KEY = 12


class Listed(msgspec.Struct):
    """A server's list of models."""

    data: list[Any] = []


class Props(msgspec.Struct):
    """What llama.cpp's server says about itself."""

    total_slots: Any = None  # requests that it works on at once; others wait in its queue


_listed = msgspec.json.Decoder(Listed)
_props = msgspec.json.Decoder(Props)


@dataclass(kw_only=True)
class Endpoint(Model, Served, Sampled):
    id: str  # the model's name on the server
    # without /chat/completions; a list: they share the load
    url: str | tuple[str, ...] = "http://127.0.0.1:8000/v1"
    budget: int | None = None  # completion tokens, thinking included; default: the server's limit
    temperature: float | None = None  # default: the server's
    top_p: float | None = None  # default: the server's
    effort: str | None = None  # sent as `reasoning_effort`; default: the server's
    # in an attempt's key instead of `url`, for a model that has moved
    served_as: str = not_in_key("")
    send_seed: bool = True  # send a different seed with every attempt
    body: dict[str, Any] = field(default_factory=dict)  # additional fields of the request's body
    # its name there
    budget_field: Literal["max_tokens", "max_completion_tokens"] = not_in_key("max_tokens")
    key: EnvVar | None = not_in_key(None)  # $NAME of the environment variable with the API key
    headers: dict[str, str] = field(
        default_factory=dict, metadata={"not_in_key": True}
    )  # additional ones; values may contain $NAME
    # a tokenizer.json or a hub id, to count thinking tokens if the server doesn't
    tokenizer: str = not_in_key("")
    concurrency: int = not_in_key(
        32
    )  # requests in progress at once, at all servers together; at most llama.cpp's slots
    probe: bool = not_in_key(
        True
    )  # check that the server can be reached when a run starts; false: only ask for replies
    # stream replies: records the seconds to the first token, keeps proxies waiting
    stream: bool = not_in_key(False)
    timeout: float = not_in_key(
        1800.0
    )  # seconds for one reply; if streamed, until its first token and again from there
    # seconds without any data after the first token, if replies are streamed
    idle_timeout: float = not_in_key(600.0)
    # after errors that may pass (429, 5xx, timeouts), before the attempt is `failed`
    retries: int = not_in_key(8)
    # seconds; if the server asks to wait longer, the attempt is `failed`
    max_wait: float = not_in_key(300.0)
    requests_per_minute: float | None = not_in_key(None)  # rate limit
    tokens_per_minute: float | None = not_in_key(None)  # rate limit, prompt tokens included

    example: ClassVar[dict[str, Any]] = {"id": "model", "retries": 0}
    # whether to ask through the proxy that the environment names, if any
    proxies: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for url in (*self.urls, self.served_as):
            check_url(url)
        check_headers(self.headers)
        check_body(self.body)
        for url in self.urls:
            if not url.startswith(("http://", "https://")):
                raise UserError(
                    f"`{url}` is not an http or https URL", hint='url = "http://127.0.0.1:8000/v1"'
                )
            if url.rstrip("/").endswith("/chat/completions"):
                raise UserError(
                    f"`{url}` is the address of a page", hint="url = without /chat/completions"
                )
        if not self.urls or len(set(self.urls)) < len(self.urls):
            hint = (
                "name each server once"
                if self.urls
                else 'url = "http://127.0.0.1:8000/v1", or leave it out'
            )
            raise UserError("`url` must name one server, or several different ones", hint=hint)
        for name, instead in OWN_SETTINGS.items():
            if name in self.body:
                raise UserError(
                    f"`{name}` can't be a field of the body: it has a setting of its own",
                    hint=instead,
                )
        for name in ("temperature", "top_p"):
            if name in self.body and getattr(self, name) is not None:
                raise UserError(f"{name} is given twice", hint="leave it out of `body`")
        self._check_numbers()

    def _check_numbers(self) -> None:
        for name in ABOVE_ZERO:
            if (value := getattr(self, name)) is not None and not 0 < value < math.inf:
                raise UserError(f"{name} must be a number above 0, not {value}")
        for name in ("retries", "temperature", "top_p"):
            if (value := getattr(self, name)) is not None and not 0 <= value < math.inf:
                raise UserError(f"{name} must be 0 or more, not {value}")

    @property
    def urls(self) -> tuple[str, ...]:
        return (self.url,) if isinstance(self.url, str) else self.url

    def identity(self) -> dict[str, Any]:
        identity = super().identity()
        # so that a server more or less is the same model
        identity["url"] = self.served_as or self.urls[0]
        if identity["url"] == type(self).url:  # as in every key, a default is left out
            del identity["url"]
        return identity

    def title(self) -> str:
        return self.id

    def server(self) -> str:
        return f"{' '.join(self.urls)} {self.id}"

    def max_tokens(self) -> int | None:
        return self.budget

    def at_temperature(self, temperature: float) -> Endpoint:
        return replace(self, temperature=temperature)

    def ready(self) -> None:
        secrets = Secrets()
        for url in self.urls:
            self._connect(url, secrets)
        secrets.fill_json(self.body)

    def _connect(self, given: str, secrets: Secrets) -> tuple[URL, dict[str, str]]:
        """A server's URL and the headers to send, with the secrets filled in."""
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {secrets.fill(self.key)}"
        headers |= {name: secrets.fill(value) for name, value in self.headers.items()}
        try:
            url = URL(secrets.fill_url(given))
        except ValueError:  # its text contains the URL
            raise UserError(
                f"{given} is not a valid URL", hint='url = "http://127.0.0.1:8000/v1"'
            ) from None
        if not url.host:
            raise UserError(f"{given} names no server", hint='url = "http://127.0.0.1:8000/v1"')
        if url.user or url.password:
            if "Authorization" in headers:
                raise UserError(
                    "a request has one login: that in `url` or the key",
                    hint="leave out one of the two",
                )
            login = b64encode(f"{url.user or ''}:{url.password or ''}".encode()).decode()
            headers["Authorization"] = f"Basic {secrets.hide(login, 'LOGIN')}"
            url = url.with_user(None)
        if REFERENCE.search(given.partition("?")[2]):
            # percent-encoded as in the errors of aiohttp
            secrets.hide(url.raw_query_string, "QUERY")
        check_sendable(headers)
        return url, headers

    async def __aenter__(self) -> Self:
        self._secrets = Secrets()
        connections = [(url, *self._connect(url, self._secrets)) for url in self.urls]
        self._body = self._secrets.fill_json(self.body)
        self._count = load_tokenizer(self.tokenizer) if self.tokenizer else None
        self._rate_limit = RateLimit(self.requests_per_minute, self.tokens_per_minute)
        self._places: Semaphore | None = None
        self._first = Lock()
        self._session = aiohttp.ClientSession(
            # `_free` limits requests; counting doesn't wait for other replies
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(
                total=None if self.stream else self.timeout,  # a stream has a `Deadline`
                # less than the total, so that the two can be told apart
                sock_connect=min(30.0, 0.9 * self.timeout),
                sock_read=self.timeout if self.stream else None,
            ),
            # Looking up a proxy costs CPU on every request, so only if one is set.
            trust_env=self.proxies and any(k.lower().endswith("_proxy") for k in os.environ),
        )
        self._servers = Servers([self._server(*connection) for connection in connections])
        self._names = ServedNames(self.id)
        return self

    def _page(self) -> str:
        """Return the page that answers, below `url`."""
        return "chat/completions"

    def _server(self, name: str, url: URL, headers: dict[str, str]) -> Server:
        asked, models = ((url / page).with_query(url.query) for page in (self._page(), "models"))
        tokenizer = ServerTokenizer(self._session, url, headers, self.id)
        return Server(name, asked, models, headers, tokenizer, beside_v1(url, "props"))

    async def __aexit__(self, *error: object) -> None:
        await self._session.close()

    async def reach(self) -> None:
        """Ask for the model list.

        Many servers have none, so only if no server can be reached is that an error.
        """
        if self.probe:
            self._servers.check([await self._reach(server) for server in self._servers.all])

    async def _reach(self, server: Server) -> UserError | None:
        """Why a server can't be reached; None if it can."""
        why = hint = ""
        for tries in range(2):
            try:
                # A server that is busy may take longer than this, but not to accept a connection.
                limit = aiohttp.ClientTimeout(total=10, sock_connect=5)
                async with self._session.get(
                    server.models, headers=server.headers, timeout=limit, allow_redirects=False
                ) as response:
                    # Not 403: a key that may not list models may still use them.
                    if response.status == 401 or 300 <= response.status < 400:
                        content = await whole(response.content.iter_any())
                        raise await self._refused(
                            server, read_refusal(response.status, content), response.headers
                        )
                    return None
            except TooLong:
                return None
            except WrongServer as error:
                server.set_aside(0.0)
                return error
            except (aiohttp.ClientError, OSError) as error:
                if isinstance(error, TimeoutError) and not isinstance(
                    error, aiohttp.ConnectionTimeoutError
                ):
                    return None
                why = self._unreachable(server, error)
                hint = connection_hint(error, server.url)
                if not tries:
                    await sleep(0.5)
        server.set_aside(0.0)
        return UserError(why, hint=hint)

    async def complete(self, request: Request) -> Completion:
        async with request.observer.alone or nullcontext():
            completion = await self._complete(request)
            request.observer.billed(request, completion.bill)
        return completion

    async def _complete(self, request: Request) -> Completion:
        budget = min((b for b in (self.budget, request.budget) if b is not None), default=None)
        payload = msgspec.json.encode(self._payload(request, budget))
        for tries in range(self.retries + 1):
            try:
                return await self._try(payload, budget, request)
            except NoAnswer as failure:
                wait, why = self._back_off(failure, tries)
                request.observer.retried(request, Retry(failure.kind, why, failure.billed, wait))
                if not wait:
                    raise ModelFailure(why) from None
            await sleep(wait)
        raise AssertionError("unreachable")

    def _payload(self, request: Request, budget: int | None) -> dict[str, Any]:
        optional = {
            self.budget_field: budget,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "reasoning_effort": self.effort,
            "seed": request.seed % 2**31 if self.send_seed else None,
        }
        given: dict[str, Any] = {k: v for k, v in optional.items() if v is not None}
        if self.stream:
            given |= {"stream": True, "stream_options": {"include_usage": True}}
        return {"model": self.id, "messages": request.messages, **given, **self._body}

    def _back_off(self, failure: NoAnswer, tries: int) -> tuple[float, str]:
        """Seconds until the next try, 0 if there is none; and why there is no answer."""
        if not failure.passing:
            return 0.0, str(failure)
        if failure.wait > self.max_wait and not self._servers.another():
            asked = f"the server asks to wait {failure.wait:.0f} seconds, more than max_wait = {self.max_wait:g}"
            return 0.0, f"{failure} ({asked})"
        if tries == self.retries:
            return 0.0, f"{failure} ({count(tries + 1, 'try')})"
        if self._servers.another():
            return ANOTHER_SERVER, str(failure)
        # Exponential back-off, times 0.5 to 1.5, so that many clients don't return at the same
        # moment.
        return failure.wait or min(BACK_OFF, 0.5 * 2.0 ** min(tries, 10)) * (
            0.5 + random.random()
        ), str(failure)

    async def _try(self, payload: bytes, budget: int | None, request: Request) -> Completion:
        prompt = len(payload) // 3  # estimated
        async with await self._free():
            charge = await self._rate_limit.start(
                prompt, budget, partial(request.observer.sent, request)
            )
            started = time.monotonic()
            with self._servers.chosen() as server:
                try:
                    reply, first_token = await self._ask(server, payload, request)
                    said, usage = self._read(request, reply)
                except Malformed as error:
                    # another one would be too long as well
                    passing = not isinstance(error, TooLong)
                    server.set_aside(0.0)
                    raise NoAnswer(self._shown(str(error)), billed=True, passing=passing) from None
                except NoAnswer as failure:
                    if not failure.billed:
                        self._rate_limit.end(charge, None)
                    if failure.passing:
                        server.set_aside(failure.wait)
                    raise
                server.answered()
            cost = bill(usage, said, time.monotonic() - started, self._count, prompt)
            self._rate_limit.end(charge, cost)
        if cost.counted_by == "estimate" and self.probe:
            usage, prompt = await server.tokenizer.fill(
                usage, said, request.messages, payload, prompt
            )
            cost = bill(usage, said, cost.seconds, self._count, prompt)
        cost = replace(cost, slack=slack(usage, said, cost, budget, request.prompt_limit))
        await self._check_name(server, reply, request)
        # A refusal stands where the transcript shows it and no grader reads it.
        texts = (said.thinking or said.refusal, said.answer)
        thinking, answer = (self._secrets.redact(text, SHORTEST_KEY) for text in texts)
        measures = {"first_token_seconds": first_token - started} if first_token else {}
        return Completion(
            thinking, answer, said.stop, cost, measures, **self._ids(reply), note=said.note
        )

    async def _free(self) -> Semaphore:
        """Return what limits the requests in progress: `concurrency`, or the slots of llama.cpp's
        servers if fewer.

        More would wait in a server's queue, where `timeout` runs. A method may ask several times at
        once.
        """
        async with self._first:
            if self._places is None:
                slots = (
                    [await self._slots(server) for server in self._servers.all]
                    if self.probe
                    else []
                )
                known = bool(slots) and all(slots)
                self._places = Semaphore(
                    min(self.concurrency, sum(slots)) if known else self.concurrency
                )
        return self._places

    async def _slots(self, server: Server) -> int:
        """Return how many requests a server works on at once; 0 if it doesn't say."""
        if server.props is None:
            return 0
        limit = aiohttp.ClientTimeout(total=5)
        try:
            async with self._session.get(
                server.props, headers=server.headers, timeout=limit, allow_redirects=False
            ) as response:
                if response.status != 200:
                    return 0
                props = decode_json(await whole(response.content.iter_any()), _props)
        except (aiohttp.ClientError, OSError, Malformed):
            return 0
        return as_count(props.total_slots)

    def _read(self, request: Request, reply: Reply) -> tuple[Said, Any]:  # noqa: ARG002 for subclasses
        """What a reply says, and its bill as the server counts it."""
        return read(reply), reply.usage

    def _ids(self, reply: Reply) -> dict[str, Any]:  # noqa: ARG002 for subclasses
        """The token ids of a completion."""
        return {}

    async def _check_name(self, server: Server, reply: Reply, request: Request) -> None:
        """Warn once if a server answers as another model."""
        name = self._shown(reply.model)[:100] if isinstance(reply.model, str) else ""
        if name and self._names.new(server.url, name):
            alias = not alike(name, self.id) and self.id in await self._listed(server)
            if warning := self._names.warning(server.url, name, alias=alias):
                request.observer.warned(warning)

    async def _listed(self, server: Server) -> list[str]:
        """Return the names in a server's model list; none if it has no list, or isn't asked for it."""
        if not self.probe:
            return []
        limit = aiohttp.ClientTimeout(total=10, sock_connect=5)
        try:
            async with self._session.get(
                server.models, headers=server.headers, timeout=limit, allow_redirects=False
            ) as response:
                listed = decode_json(await whole(response.content.iter_any()), _listed)
        except (aiohttp.ClientError, OSError, Malformed):
            return []
        names = [model.get("id") for model in listed.data if isinstance(model, dict)]
        return [name for name in names if isinstance(name, str)]

    async def _ask(
        self, server: Server, payload: bytes, request: Request
    ) -> tuple[Reply, float | None]:
        """`_post`, where one of several servers that can't be asked as the study says gives no
        answer.
        """
        try:
            return await self._post(server, payload)
        except WrongServer as error:
            warned, server.wrong = server.wrong, error
            self._servers.check([one.wrong for one in self._servers.all])
            if not warned:
                request.observer.warned(f"{error.what}; this server is set aside")
            raise NoAnswer(error.what) from None

    async def _post(self, server: Server, payload: bytes) -> tuple[Reply, float | None]:
        """One HTTP request: the reply, and when its first token came, if it is streamed.

        Raises `NoAnswer`, `Malformed`, or `WrongServer`.
        """
        deadline = Deadline(self.timeout, self.idle_timeout)
        try:
            async with self._session.post(
                server.asked, data=payload, headers=server.headers, allow_redirects=False
            ) as response:
                chunks: AsyncIterator[bytes] = response.content.iter_any()
                if self.stream:
                    chunks = deadline.watch(chunks)
                    streamed = response.status == 200 and "json" not in response.content_type
                    if streamed and response.content_type != "text/html":
                        return await assemble(chunks, deadline.begin)
                content = await whole(chunks)
        except (aiohttp.ClientError, OSError) as error:
            raise broken(error, self._unreachable(server, error)) from None
        status = response.status
        if status == 200:
            if is_web_page(response.content_type, content):
                raise self._not_a_chat(server, read_refusal(status, content).message)
            try:
                return decode(content), None
            except NoChoices as error:
                status = status_inside(error.error)
                if not error.error and not error.empty:
                    raise self._not_a_chat(server, content.decode("utf-8", "replace")) from None
                if not status:
                    raise
        elif status in (400, 403) and rejected(content):
            return decode(content), None
        raise await self._refused(server, read_refusal(status, content), response.headers, payload)

    def _unreachable(self, server: Server, error: Exception) -> str:
        if isinstance(error, TimeoutError) and not isinstance(
            error, aiohttp.ConnectionTimeoutError
        ):
            if not self.stream:
                queue = "the wait in its queue counts: lower `concurrency`, or `stream = true` to count from the reply"
                return f"no reply within {self.timeout:g} seconds ({queue})"
            waiting = isinstance(error, aiohttp.SocketTimeoutError)  # for a response to begin
            return f"no reply began within {self.timeout:g} seconds" if waiting else str(error)
        if isinstance(error, aiohttp.ClientConnectorError):
            return f"no connection to {server.url}: {self._shown(no_connection(error))}"
        return f"lost the connection to {server.url}: {self._shown(str(error) or type(error).__name__)}"

    def _shown(self, text: str) -> str:
        """A text from outside as users may see it: of bounded length, and without secrets."""
        text = self._secrets.redact(encodable(text))
        return text if len(text) <= LONGEST_MESSAGE else f"{text[:LONGEST_MESSAGE]}…"

    def _not_a_chat(self, server: Server, text: str) -> NoAnswer | WrongServer:
        """Return the error for a page that isn't a chat endpoint's; one that has answered before
        may be back soon.
        """
        what = f"{server.url} answers with {self._shown(text)[:200]}, not with a chat completion"
        if server.has_answered:
            return NoAnswer(what)
        return WrongServer(what, hint=self._url_hint(server))

    def _url_hint(self, server: Server) -> str:
        url = server.url.rstrip("/")
        if url.endswith("/v1") or "?" in url:
            return f"is {server.url} the address of an OpenAI-compatible chat server?"
        return f'most addresses end in /v1: url = "{re.sub(r"/v[0-9]+$", "", url)}/v1"'

    async def _no_such_page_or_model(self, server: Server, refusal: Refusal) -> WrongServer:
        """Return the error for a page that a server doesn't have, or a model that it doesn't know."""
        error = self._shown(str(refusal))
        names = await self._listed(server)
        if names and self.id not in names:
            hint = f"the server lists {', '.join(names[:10])}{', …' if len(names) > 10 else ''}"
            nearest = closest(self.id, names)
            if len(names) == 1:
                nearest = names[0]
            if nearest:
                hint = f'id = "{nearest}"; {hint}'
            hint = self._shown(hint)
            return WrongServer(
                f"{server.url} does not know the model `{self.id}`: {error}", hint=hint
            )
        hint = self._url_hint(server)
        if hint.endswith("?"):
            hint = f"{hint} does it know the model `{self.id}`?"
        return WrongServer(f"{server.url} knows no such page or model: {error}", hint=hint)

    async def _refused(
        self, server: Server, refusal: Refusal, headers: Mapping[str, str], payload: bytes = b"{}"
    ) -> NoAnswer | WrongServer:
        """Return the error for a response with an HTTP status that isn't 200; `payload` is what was
        sent.
        """
        status, error = refusal.status, self._shown(str(refusal))
        if status in (404, 405):
            return await self._no_such_page_or_model(server, refusal)
        if change := setting_to_change(refusal, msgspec.json.decode(payload), self.budget_field):
            problem, hint = change
            return WrongServer(f"{server.url} {problem}: {error}", hint=hint)
        if status in (401, 403):
            hint = 'key = "$NAME" names the environment variable that holds it'
            return WrongServer(
                f"{server.url} {'refuses the' if self.key else 'wants a'} key: {error}", hint=hint
            )
        if 300 <= status < 400:
            # Not followed: the key would be sent wherever the server says.
            to = self._shown(headers.get("Location", "an unknown place"))
            return WrongServer(
                f"{server.url} redirects to {to}",
                hint="if you trust that address, make it the `url`",
            )
        if status == 400 and server.url.startswith("http://") and speaks_https(refusal.message):
            return WrongServer(
                f"{server.url}: {error}", hint=f'url = "https{server.url.removeprefix("http")}"'
            )
        if status in (400, 413, 422) and (room := room_for_reply(refusal.message)):
            error = f"{error} ({room.hint})"
        return refused(status, error, headers.get("Retry-After"))
