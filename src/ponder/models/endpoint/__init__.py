"""Asks a model behind an API: OpenAI, Anthropic, Google, xAI, OpenRouter, or your own server.

It speaks four protocols: chat completions, OpenAI's Responses, Anthropic's Messages and Google's
generateContent. `effort`, `think` and `thinking` say how hard the model may think, in any of them.

Thinking tokens are taken from the server's `usage` if it counts them; else they are counted with
`tokenizer`; else with the server's own tokenizer, if it has a page for that; else the completion's
tokens are split in proportion to characters, and the bill says `estimate`.

Several servers of one model share its requests: `url = ["http://one:8000/v1",
"http://two:8000/v1"]`. One that gives no answer is set aside until it is back. The first of them is
in the attempts' keys. A server that answers as another model than `id` is a warning.

Secrets are the names of environment variables: `$NAME` as `key`, in `url` and `headers`, or as a
value in `body`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self

from ponder.core import (
    Batched,
    Completion,
    EnvVar,
    Model,
    Prices,
    Request,
    Sampled,
    Served,
    UserError,
    not_in_key,
)
from ponder.core.capabilities import BudgetsThinking, CatalogEntry
from ponder.core.secrets import Secrets, check_body, check_headers, check_url
from ponder.models.endpoint.anthropic import Anthropic
from ponder.models.endpoint.chat import Chat
from ponder.models.endpoint.client import Client
from ponder.models.endpoint.dials import HARD_BUDGETS, Dial
from ponder.models.endpoint.gemini import Gemini
from ponder.models.endpoint.http_request import Preview, connect, preview
from ponder.models.endpoint.protocol import Protocol
from ponder.models.endpoint.providers import (
    PROVIDERS,
    ProtocolName,
    ProviderName,
    is_private,
    protocol_of,
    provider_of,
)
from ponder.models.endpoint.responses import Responses

PROTOCOLS: dict[str, type[Protocol]] = {
    "chat": Chat,
    "responses": Responses,
    "anthropic": Anthropic,
    "gemini": Gemini,
}
LOCAL = "http://127.0.0.1:8000/v1"  # where vLLM and SGLang listen by default
# The providers with batch jobs, and their protocols.
BATCH_ROUTES = {("openai", "chat"), ("openai", "responses"), ("anthropic", "anthropic")}
# Requests in progress at least: a job takes as long with one as with all.
BATCH_CONCURRENCY = 10_000

POSITIVE = (
    "concurrency",
    "timeout",
    "idle_timeout",
    "max_wait",
    "budget",
    "think",
    "requests_per_minute",
    "tokens_per_minute",
)
NOT_NEGATIVE = ("retries", "temperature", "top_p")


@dataclass(kw_only=True)
class Endpoint(Model, Served, Sampled, BudgetsThinking, Batched):
    id: str  # the model's name on the server
    # the server's address, without the page; a list: they share the load
    url: str | tuple[str, ...] = LOCAL
    budget: int | None = None  # completion tokens, thinking included; default: the server's limit
    temperature: float | None = None  # default: the server's
    top_p: float | None = None  # default: the server's
    effort: str | None = None  # how hard the model thinks: low, medium, high; default: the server's
    think: int | None = None  # budget for the thinking alone, in tokens; default: the server's
    thinking: bool | None = None  # whether the model thinks; default: the server's
    # chat, responses (OpenAI), anthropic or gemini; default: that of the provider
    protocol: ProtocolName | None = None
    # who runs the server, which decides how dials are sent; default: known by the url's host
    provider: ProviderName | None = None
    # in an attempt's key instead of `url`, for a model that has moved
    served_as: str = not_in_key("")
    send_seed: bool = True  # send a different seed with every attempt
    body: dict[str, Any] = field(default_factory=dict)  # additional fields of the request's body
    # the name of the budget in a chat's body; default: max_completion_tokens at OpenAI, else max_tokens
    budget_field: Literal["max_tokens", "max_completion_tokens"] | None = not_in_key(None)
    key: EnvVar | None = not_in_key(None)  # $NAME of the environment variable with the API key
    # additional headers; values may contain $NAME
    headers: dict[str, str] = field(default_factory=dict, metadata={"not_in_key": True})
    # a tokenizer.json or a hub id, to count thinking tokens if the server doesn't
    tokenizer: str = not_in_key("")
    # send requests in batch jobs, at half the price: answers within 24 hours (OpenAI, Anthropic)
    batch: bool = not_in_key(False)
    # requests in progress at once, at all servers together; at most llama.cpp's slots. With
    # `batch`, at least 10,000
    concurrency: int = not_in_key(32)
    # check that the server can be reached when a run starts; false: only ask for replies
    probe: bool = not_in_key(True)
    # stream replies: records the seconds to the first token, keeps proxies waiting
    stream: bool = not_in_key(False)
    # seconds for one reply; if streamed, until its first token and again from there
    timeout: float = not_in_key(1800.0)
    # seconds without any data after the first token, if replies are streamed
    idle_timeout: float = not_in_key(600.0)
    # after errors that may pass (429, 5xx, timeouts), before the attempt is `failed`
    retries: int = not_in_key(8)
    # seconds; if the server asks to wait longer, the attempt is `failed`
    max_wait: float = not_in_key(300.0)
    requests_per_minute: float | None = not_in_key(None)  # rate limit
    tokens_per_minute: float | None = not_in_key(None)  # rate limit, prompt tokens included

    example: ClassVar[dict[str, Any]] = {"id": "model", "retries": 0}

    def __post_init__(self) -> None:
        for url in (*self.urls, self.served_as):
            check_url(url)
        check_headers(self.headers)
        self._check_urls()
        self._check_provider()
        self._check_body()
        self._check_dials()
        if self.batch:
            self._check_batch()
            self.concurrency = max(self.concurrency, BATCH_CONCURRENCY)
            if self.prices:
                self.prices = replace(self.prices, discount=self.batch_discount)
        self._check_numbers()

    def _check_numbers(self) -> None:
        for name in POSITIVE:
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                hint = "thinking = false turns it off" if name == "think" else ""
                raise UserError(f"{name} must be a number above 0, not {value}", hint=hint)
        for name in NOT_NEGATIVE:
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise UserError(f"{name} must be 0 or more, not {value}")

    def _check_provider(self) -> None:
        """Raise `UserError` if url, provider and protocol don't fit together."""
        provider = self.provider_name
        host = provider_of(self.urls[0])
        if host and host != provider:
            message = f"{self.urls[0]} is {host}'s, not {provider}'s"
            raise UserError(message, hint="leave out `provider`, or set the `url` of its server")
        if provider and self.protocol_name not in PROVIDERS[provider].protocols:
            names = " or ".join(f'protocol = "{name}"' for name in PROVIDERS[provider].protocols)
            message = f"{provider} has no protocol `{self.protocol_name}`"
            raise UserError(message, hint=names)

    def _check_dials(self) -> None:
        """Raise `UserError` for a dial that the route lacks, or that `body` sets too."""
        if self.think is not None and self.budget is not None and self.think >= self.budget:
            message = f"think = {self.think} leaves no room for an answer in budget = {self.budget}"
            raise UserError(message, hint="budget counts thinking and answer: set a larger one")
        protocol = PROTOCOLS[self.protocol_name](self)
        for name in protocol.dials():
            if name in self.body and not isinstance(self.body[name], dict):
                raise UserError(f"`{name}` is given twice", hint="leave it out of `body`")

    def _check_body(self) -> None:
        """Raise `UserError` for a field of `body` that has a setting of its own."""
        check_body(self.body)
        for name, setting in PROTOCOLS[self.protocol_name].reserved_fields.items():
            if _has_field(self.body, name):
                message = f"`{name}` can't be a field of the body: it has a setting of its own"
                raise UserError(message, hint=setting)
        for name in ("temperature", "top_p"):
            if name in self.body and getattr(self, name) is not None:
                raise UserError(f"{name} is given twice", hint="leave it out of `body`")

    def _check_batch(self) -> None:
        if not self.can_batch():
            name = self.provider_name or self.urls[0]
            message = f"{name} has no batch jobs in the protocol `{self.protocol_name}`"
            hint = 'batch = true is for OpenAI and Anthropic: provider = "openai" or "anthropic"'
            raise UserError(message, hint=hint)
        if self.stream:
            raise UserError("a batch job can't be streamed", hint="leave out `stream` or `batch`")
        if len(self.urls) > 1:
            raise UserError("batch jobs go to one server", hint="name one `url`")

    def sends_batches(self) -> bool:
        return self.batch

    def can_batch(self) -> bool:
        return (self.provider_name, self.protocol_name) in BATCH_ROUTES

    def _check_urls(self) -> None:
        example = 'url = "http://127.0.0.1:8000/v1"'
        for url in self.urls:
            if not url.startswith(("http://", "https://")):
                raise UserError(f"`{url}` is not an http or https URL", hint=example)
            if url.rstrip("/").endswith("/chat/completions"):
                message = f"`{url}` is the address of a page"
                raise UserError(message, hint="url = without /chat/completions")
        message = "`url` must name one server, or several different ones"
        if not self.urls:
            raise UserError(message, hint=f"{example}, or leave it out")
        if len(set(self.urls)) < len(self.urls):
            raise UserError(message, hint="name each server once")

    @property
    def urls(self) -> tuple[str, ...]:
        if not isinstance(self.url, str):
            return self.url
        if self.url == LOCAL and self.provider and PROVIDERS[self.provider].url:
            return (PROVIDERS[self.provider].url,)
        return (self.url,)

    @property
    def provider_name(self) -> str:
        """Who runs the server; "" if unknown."""
        return self.provider or provider_of(self.urls[0])

    @property
    def protocol_name(self) -> ProtocolName:
        return self.protocol or protocol_of(self.provider_name, self.urls[0])

    @property
    def dial(self) -> Dial:
        """How hard the model may think."""
        return Dial(self.effort, self.think, self.thinking)

    def identity(self) -> dict[str, Any]:
        identity = super().identity()
        # so that a server more or less is the same model
        identity["url"] = self.served_as or self.urls[0]
        if identity["url"] == LOCAL:  # as in every key, a default is left out
            del identity["url"]
        # The protocol may be guessed from the url; before there were others, it was `chat`.
        identity.pop("protocol", None)
        if self.provider == provider_of(self.urls[0]):  # the url says it already
            identity.pop("provider", None)
        if self.protocol_name != "chat":
            identity["protocol"] = self.protocol_name
        return identity

    def title(self) -> str:
        return self.id

    def server(self) -> str:
        return f"{' '.join(self.urls)} {self.id}"

    def max_tokens(self) -> int | None:
        return self.budget

    def at_temperature(self, temperature: float) -> Endpoint:
        return replace(self, temperature=temperature)

    def with_think(self, tokens: int) -> Endpoint | None:
        # A provider with such a server is never guessed from a url, so it is in the attempts' keys.
        if self.provider not in HARD_BUDGETS or self.protocol_name != "chat":
            return None
        if self.thinking is False:
            return None
        if self.think is not None:
            tokens = min(tokens, self.think)
        return replace(self, think=tokens, budget=None)

    def ready(self) -> None:
        secrets = Secrets()
        protocol = PROTOCOLS[self.protocol_name](self)
        for url in self.urls:
            connect(self, protocol, url, secrets)
        secrets.fill_json(self.body)

    def preview(self, request: Request) -> Preview:
        """Return the HTTP request that `complete` would send, without secrets."""
        return preview(self, PROTOCOLS[self.protocol_name](self), request)

    async def __aenter__(self) -> Self:
        self._client = await Client(self, PROTOCOLS[self.protocol_name](self)).__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.__aexit__(*error)

    async def reach(self) -> None:
        await self._client.reach()

    async def listed_prices(self) -> Prices | None:
        if not self.probe or self._is_own_server:
            return None
        async with Client(self, PROTOCOLS[self.protocol_name](self)) as client:
            return await client.listed_prices()

    def catalogued(self) -> CatalogEntry | None:
        # A catalog that knows no such address needn't be loaded, which takes 12 MB.
        if self._is_own_server or (not self.provider_name and is_private(self.urls[0])):
            return None
        return CatalogEntry(self.id, self.provider_name, self.urls[0])

    @property
    def _is_own_server(self) -> bool:
        """Whether the server is a program on the user's own machines, which has no prices."""
        provider = self.provider_name
        return bool(provider) and not PROVIDERS[provider].host

    async def complete(self, request: Request) -> Completion:
        return await self._client.complete(request)


def _has_field(body: Mapping[str, Any], name: str) -> bool:
    """Return whether a body has a field; a dot in the name leads into a table."""
    outer, _, inner = name.partition(".")
    if not inner:
        return outer in body
    return isinstance(body.get(outer), dict) and _has_field(body[outer], inner)
