"""Asks any OpenAI-compatible chat endpoint: a hosted API, vLLM, SGLang, llama.cpp's server.

Thinking is read from `reasoning_content`, `reasoning`, or `<think>` tags in the content, whichever the server uses.
Thinking tokens are taken from the server's `usage` if it counts them; else they are counted with `tokenizer`; else with
the server's own tokenizer, if it has a page for that; else the completion's tokens are split in proportion to
characters, and the bill says `estimate`.

Several servers of one model share its requests: `url = ["http://one:8000/v1", "http://two:8000/v1"]`. One that gives no
answer is set aside until it is back. The first of them is in the attempts' keys. A server that answers as another model
than `id` is a warning.

Secrets are the names of environment variables: `$NAME` as `key`, in `url` and `headers`, or as a value in `body`.
"""

from __future__ import annotations

import math
import os
import random
import time
from asyncio import Semaphore, sleep
from base64 import b64encode
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal, NoReturn, Self

import aiohttp
import msgspec
from yarl import URL

from ponder.core import Completion, EnvVar, Model, ModelFailure, Request, Retry, UserError, not_in_key
from ponder.core.secrets import REFERENCE, Secrets, check_body, check_headers, check_sendable, check_url
from ponder.core.text import encodable
from ponder.models._counting import ServerTokenizer
from ponder.models._failures import NoAnswer, WrongServer, broken, refused
from ponder.models._pace import Pace
from ponder.models._reply import (
    Malformed,
    Reply,
    Said,
    TooLong,
    bill,
    decode,
    decode_json,
    load_tokenizer,
    read,
    rejected,
    whole,
)
from ponder.models._served_names import ServedNames, alike
from ponder.models._servers import Server, Servers
from ponder.models._stream import assemble

BACK_OFF = 60.0  # seconds between two tries at most, unless the server asks for more
ANOTHER_SERVER = 0.01  # seconds until the next try if another server can be asked
ABOVE_ZERO = (
    "concurrency", "timeout", "idle_timeout", "max_wait", "budget", "requests_per_minute", "tokens_per_minute",
)  # fmt: skip
# Fields of a request that a body must not override, because the caps, the bills and the answers depend on them.
OWN_SETTINGS = {
    "model": "id = …",
    "messages": "the task writes them: ponder list tasks",
    "max_tokens": "budget = …",
    "max_completion_tokens": 'budget = …, with budget_field = "max_completion_tokens"',
    "n": "samples = … in the study asks several times",
    "stream": "stream = true",
}
SHORTEST_KEY = 12  # characters: shorter ones ("EMPTY", "1234") stay in replies, where they may be part of an answer


class Listed(msgspec.Struct):
    """A server's list of models."""

    data: list[Any] = []


_listed = msgspec.json.Decoder(Listed)


@dataclass(kw_only=True)
class Endpoint(Model):
    id: str  # the model's name on the server
    url: str | tuple[str, ...] = "http://127.0.0.1:8000/v1"  # without /chat/completions; a list: they share the load
    budget: int | None = None  # completion tokens, thinking included; default: the server's limit
    temperature: float | None = None  # default: the server's
    top_p: float | None = None  # default: the server's
    effort: str | None = None  # sent as `reasoning_effort`; default: the server's
    served_as: str = not_in_key("")  # in an attempt's key instead of `url`, for a model that has moved
    send_seed: bool = True  # send a different seed with every attempt
    body: dict[str, Any] = field(default_factory=dict)  # additional fields of the request's body
    budget_field: Literal["max_tokens", "max_completion_tokens"] = not_in_key("max_tokens")  # its name there
    key: EnvVar | None = not_in_key(None)  # $NAME of the environment variable with the API key
    headers: dict[str, str] = field(
        default_factory=dict, metadata={"not_in_key": True}
    )  # additional ones; values may contain $NAME
    tokenizer: str = not_in_key("")  # a tokenizer.json or a hub id, to count thinking tokens if the server doesn't
    concurrency: int = not_in_key(32)  # requests in progress at once, at all servers together
    probe: bool = not_in_key(
        True
    )  # check that the server can be reached when a run starts; false: only ask for replies
    stream: bool = not_in_key(False)  # stream replies: records the seconds to the first token, keeps proxies waiting
    timeout: float = not_in_key(1800.0)  # seconds for one reply
    idle_timeout: float = not_in_key(600.0)  # seconds without any data, if replies are streamed
    retries: int = not_in_key(8)  # after errors that may pass (429, 5xx, timeouts), before the attempt is `failed`
    max_wait: float = not_in_key(300.0)  # seconds; if the server asks to wait longer, the attempt is `failed`
    requests_per_minute: float | None = not_in_key(None)  # rate limit
    tokens_per_minute: float | None = not_in_key(None)  # rate limit, prompt tokens included

    example: ClassVar[dict[str, Any]] = {"id": "model", "retries": 0}
    reports_calls: ClassVar[bool] = True
    page: ClassVar[str] = "chat/completions"
    proxies: ClassVar[bool] = True  # whether to ask through the proxy that the environment names, if any

    def __post_init__(self) -> None:
        for url in (*self.urls, self.served_as):
            check_url(url)
        check_headers(self.headers)
        check_body(self.body)
        for url in self.urls:
            if not url.startswith(("http://", "https://")):
                raise UserError(f"`{url}` is not an http or https URL", hint='url = "http://127.0.0.1:8000/v1"')
            if url.rstrip("/").endswith("/chat/completions"):
                raise UserError(f"`{url}` is the address of a page", hint="url = without /chat/completions")
        if not self.urls or len(set(self.urls)) < len(self.urls):
            hint = "name each server once" if self.urls else 'url = "http://127.0.0.1:8000/v1", or leave it out'
            raise UserError("`url` must name one server, or several different ones", hint=hint)
        for name, instead in OWN_SETTINGS.items():
            if name in self.body:
                raise UserError(f"`{name}` can't be a field of the body: it has a setting of its own", hint=instead)
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
        identity["url"] = self.served_as or self.urls[0]  # so that a server more or less is the same model
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
            raise UserError(f"{given} is not a valid URL", hint='url = "http://127.0.0.1:8000/v1"') from None
        if not url.host:
            raise UserError(f"{given} names no server", hint='url = "http://127.0.0.1:8000/v1"')
        if url.user or url.password:
            if "Authorization" in headers:
                raise UserError("a request has one login: that in `url` or the key", hint="leave out one of the two")
            login = b64encode(f"{url.user or ''}:{url.password or ''}".encode()).decode()
            headers["Authorization"] = f"Basic {secrets.hide(login, 'LOGIN')}"
            url = url.with_user(None)
        if REFERENCE.search(given.partition("?")[2]):
            secrets.hide(url.raw_query_string, "QUERY")  # percent-encoded as in the errors of aiohttp
        check_sendable(headers)
        return url, headers

    async def __aenter__(self) -> Self:
        self._secrets = Secrets()
        connections = [(url, *self._connect(url, self._secrets)) for url in self.urls]
        self._body = self._secrets.fill_json(self.body)
        self._count = load_tokenizer(self.tokenizer) if self.tokenizer else None
        self._pace = Pace(self.requests_per_minute, self.tokens_per_minute)
        self._free = Semaphore(self.concurrency)  # a method may ask several times at once
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),  # `_free` is the limit; counting doesn't wait for other replies
            timeout=aiohttp.ClientTimeout(
                total=self.timeout,
                sock_connect=min(30.0, 0.9 * self.timeout),  # less than the total, so that the two can be told apart
                sock_read=self.idle_timeout if self.stream else None,
            ),
            # Looking up a proxy costs CPU on every request, so only if one is set.
            trust_env=self.proxies and any(k.lower().endswith("_proxy") for k in os.environ),
        )
        self._servers = Servers([self._server(*connection) for connection in connections])
        self._names = ServedNames(self.id)
        return self

    def _server(self, name: str, url: URL, headers: dict[str, str]) -> Server:
        asked, models = ((url / page).with_query(url.query) for page in (self.page, "models"))
        return Server(name, asked, models, headers, ServerTokenizer(self._session, url, headers, self.id))

    async def __aexit__(self, *error: object) -> None:
        await self._session.close()

    async def reach(self) -> None:
        """Ask for the model list. Many servers have none, so only if no server can be reached is that an error."""
        if self.probe:
            self._servers.check([await self._reach(server) for server in self._servers.all])

    async def _reach(self, server: Server) -> UserError | None:
        """Why a server can't be reached; None if it can."""
        why = ""
        for tries in range(2):
            try:
                # A server that is busy may take longer than this, but not to accept a connection.
                limit = aiohttp.ClientTimeout(total=10, sock_connect=5)
                async with self._session.get(
                    server.models, headers=server.headers, timeout=limit, allow_redirects=False
                ) as response:
                    # Not 403: a key that may not list models may still use them.
                    if response.status == 401 or 300 <= response.status < 400:
                        self._refused(server, response, await whole(response.content.iter_any()))
                    return None
            except TooLong:
                return None
            except WrongServer as error:
                server.set_aside(0.0)
                return error
            except (aiohttp.ClientError, OSError) as error:
                if isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ConnectionTimeoutError):
                    return None
                why = self._unreachable(server, error)
                if not tries:
                    await sleep(0.5)
        server.set_aside(0.0)
        hint = "is the server running, and is `url` right? probe = false starts the run without this check"
        return UserError(why, hint=hint)

    async def complete(self, request: Request) -> Completion:
        budget = min((b for b in (self.budget, request.budget) if b is not None), default=None)
        payload = msgspec.json.encode(self._payload(request, budget))
        for tries in range(self.retries + 1):
            try:
                return await self._try(payload, budget, request)
            except NoAnswer as failure:
                wait, why = self._back_off(failure, tries)
                request.on_retry(request, Retry(failure.kind, why, failure.billed, wait))
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
            return 0.0, f"{failure} ({tries + 1} tries)"
        if self._servers.another():
            return ANOTHER_SERVER, str(failure)
        # Exponential back-off, times 0.5 to 1.5, so that many clients don't return at the same moment.
        return failure.wait or min(BACK_OFF, 0.5 * 2.0 ** min(tries, 10)) * (0.5 + random.random()), str(failure)

    async def _try(self, payload: bytes, budget: int | None, request: Request) -> Completion:
        prompt = len(payload) // 3  # estimated
        async with self._free:
            charge = await self._pace.start(prompt, budget, partial(request.on_send, request))
            started = time.monotonic()
            with self._servers.chosen() as server:
                try:
                    reply, first_token = await self._ask(server, payload, request)
                    said, usage = self._read(request, reply)
                except Malformed as error:
                    passing = not isinstance(error, TooLong)  # another one would be too long as well
                    server.set_aside(0.0)
                    raise NoAnswer(self._shown(str(error)), billed=True, passing=passing) from None
                except NoAnswer as failure:
                    if not failure.billed:
                        self._pace.end(charge, None)
                    if failure.passing:
                        server.set_aside(failure.wait)
                    raise
                server.answered()
            cost = bill(usage, said, time.monotonic() - started, self._count, prompt)
            self._pace.end(charge, cost)
        if cost.counted_by == "estimate" and self.probe:
            usage, prompt = await server.tokenizer.fill(usage, said, request.messages, payload, prompt)
            cost = bill(usage, said, cost.seconds, self._count, prompt)
        await self._check_name(server, reply, request)
        # A refusal stands where the transcript shows it and no grader reads it.
        texts = (said.thinking or said.refusal, said.answer)
        thinking, answer = (self._secrets.redact(text, SHORTEST_KEY) for text in texts)
        measures = {"first_token_seconds": first_token - started} if first_token else {}
        return Completion(thinking, answer, said.stop, cost, measures, **self._ids(reply), note=said.note)

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
            alias = not alike(name, self.id) and self.probe and await self._lists(server)
            if warning := self._names.warning(server.url, name, alias=alias):
                request.on_warning(warning)

    async def _lists(self, server: Server) -> bool:
        """Whether a server's model list has the model that is asked for."""
        limit = aiohttp.ClientTimeout(total=10, sock_connect=5)
        try:
            async with self._session.get(
                server.models, headers=server.headers, timeout=limit, allow_redirects=False
            ) as response:
                listed = decode_json(await whole(response.content.iter_any()), _listed)
        except (aiohttp.ClientError, OSError, Malformed):
            return False
        return any(isinstance(one, dict) and one.get("id") == self.id for one in listed.data)

    async def _ask(self, server: Server, payload: bytes, request: Request) -> tuple[Reply, float | None]:
        """`_post`, where one of several servers that can't be asked as the study says gives no answer."""
        try:
            return await self._post(server, payload)
        except WrongServer as error:
            warned, server.wrong = server.wrong, error
            self._servers.check([one.wrong for one in self._servers.all])
            if not warned:
                request.on_warning(f"{error.what}; this server is set aside")
            raise NoAnswer(error.what) from None

    async def _post(self, server: Server, payload: bytes) -> tuple[Reply, float | None]:
        """One HTTP request: the reply, and when its first token came, if it is streamed.

        Raises `NoAnswer`, `Malformed`, or `WrongServer`.
        """
        try:
            async with self._session.post(
                server.asked, data=payload, headers=server.headers, allow_redirects=False
            ) as response:
                if self.stream and response.status == 200 and "json" not in response.content_type:
                    return await assemble(response.content.iter_any())
                content = await whole(response.content.iter_any())
        except (aiohttp.ClientError, OSError) as error:
            raise broken(error, self._unreachable(server, error)) from None
        if response.status != 200 and not (response.status in (400, 403) and rejected(content)):
            self._refused(server, response, content)
        return decode(content), None

    def _unreachable(self, server: Server, error: Exception) -> str:
        if isinstance(error, aiohttp.SocketTimeoutError):
            return f"no data for {self.idle_timeout:g} seconds"
        if isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ConnectionTimeoutError):
            return f"no reply within {self.timeout:g} seconds"
        what = "no connection to" if isinstance(error, aiohttp.ClientConnectorError) else "lost the connection to"
        return f"{what} {server.url}: {self._shown(str(error) or type(error).__name__)}"

    def _shown(self, text: str) -> str:
        """A text from outside as users may see it: short, and without secrets."""
        return self._secrets.redact(encodable(text))[:300]

    def _refused(self, server: Server, response: aiohttp.ClientResponse, content: bytes) -> NoReturn:
        status = response.status
        error = f"HTTP {status}: {self._shown(content.decode('utf-8', 'replace'))}"
        if status in (401, 403):
            hint = 'key = "$NAME" names the variable that holds it'
            raise WrongServer(f"{server.url} {'refuses the' if self.key else 'wants a'} key: {error}", hint=hint)
        if status == 404:
            hint = f"does {server.url} end in /v1, and does the server know the model `{self.id}`?"
            raise WrongServer(f"{server.url} knows no such page or model: {error}", hint=hint)
        if 300 <= status < 400:
            # Not followed: the key would be sent wherever the server says.
            to = self._shown(response.headers.get("Location", "an unknown place"))
            raise WrongServer(f"{server.url} redirects to {to}", hint="if you trust that address, make it the `url`")
        raise refused(status, error, response.headers.get("Retry-After"))
