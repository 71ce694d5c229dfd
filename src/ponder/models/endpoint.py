"""Asks any OpenAI-compatible chat endpoint: a hosted API, vLLM, SGLang, llama.cpp's server.

Thinking is read from `reasoning_content`, `reasoning`, or `<think>` tags in the content, whichever the server uses.
Thinking tokens are taken from the server's `usage` if it counts them; else they are counted with `tokenizer`; else the
completion's tokens are split in proportion to characters, and the bill says `estimate`.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self

import aiohttp
import msgspec

from ponder.core import Bill, Completion, EnvVar, Model, ModelFailure, Request, UserError, not_in_key
from ponder.core.answers import split_thinking

RETRIED = {408, 409, 425, 429}  # HTTP statuses that are retried, besides every 5xx
MAX_WAIT = 60.0  # seconds between two tries, unless the server asks for more


@dataclass(kw_only=True)
class Endpoint(Model):
    id: str  # the model's name on the server
    url: str = "http://127.0.0.1:8000/v1"  # without /chat/completions
    budget: int | None = None  # completion tokens, thinking included; default: the server's limit
    temperature: float | None = None  # default: the server's
    top_p: float | None = None  # default: the server's
    effort: str | None = None  # sent as `reasoning_effort`; default: the server's
    send_seed: bool = True  # send a different seed with every attempt
    body: dict[str, Any] = field(default_factory=dict)  # additional fields of the request's body
    budget_field: Literal["max_tokens", "max_completion_tokens"] = not_in_key("max_tokens")  # its name there
    key: EnvVar | None = not_in_key(None)  # $NAME of the environment variable with the API key
    tokenizer: str = not_in_key("")  # a tokenizer.json or a hub id, to count thinking tokens if the server doesn't
    concurrency: int = not_in_key(32)  # requests in progress at once
    timeout: float = not_in_key(1800.0)  # seconds for one reply
    retries: int = not_in_key(8)  # after errors that may pass (429, 5xx, timeouts), before the attempt is `failed`
    requests_per_minute: float | None = not_in_key(None)  # rate limit
    tokens_per_minute: float | None = not_in_key(None)  # rate limit, prompt tokens included

    example: ClassVar[dict[str, Any]] = {"id": "model", "retries": 0}

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise UserError(f"`{self.url}` is not an http or https URL", hint='url = "http://127.0.0.1:8000/v1"')
        for name in ("concurrency", "timeout", "budget", "requests_per_minute", "tokens_per_minute"):
            if (value := getattr(self, name)) is not None and value <= 0:
                raise UserError(f"{name} must be more than 0, not {value}")

    def title(self) -> str:
        return self.id

    async def __aenter__(self) -> Self:
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key.read()}"
        self._count = _load_tokenizer(self.tokenizer) if self.tokenizer else None
        self._pace = _Pace(self.requests_per_minute, self.tokens_per_minute)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self.concurrency),
            timeout=aiohttp.ClientTimeout(total=self.timeout, sock_connect=30),
            headers=headers,
            # Looking up a proxy costs CPU on every request, so only if one is set.
            trust_env=any(k.lower().endswith("_proxy") for k in os.environ),
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._session.close()

    def max_tokens(self) -> int | None:
        return self.budget

    def at_temperature(self, temperature: float) -> Endpoint:
        return replace(self, temperature=temperature)

    async def complete(self, request: Request) -> Completion:
        payload = msgspec.json.encode(self._payload(request))
        for tries in range(self.retries + 1):
            await self._pace.start()
            started = time.monotonic()
            try:
                reply = await self._post(payload)
                completion = self._completion(reply, time.monotonic() - started)
            except _TryAgain as trouble:
                self._pace.end(0)
                if tries == self.retries:
                    raise ModelFailure(f"{trouble} ({tries + 1} tries)") from trouble
                # Exponential back-off, times 0.5 to 1.5, so that many clients don't return at the same moment.
                wait = trouble.wait or min(MAX_WAIT, 0.5 * 2**tries) * (0.5 + random.random())
                await asyncio.sleep(wait)
            else:
                self._pace.end(completion.bill.tokens)
                return completion
        raise AssertionError("unreachable")

    def _payload(self, request: Request) -> dict[str, Any]:
        budgets = [b for b in (self.budget, request.budget) if b is not None]
        optional = {
            self.budget_field: min(budgets, default=None),
            "temperature": self.temperature,
            "top_p": self.top_p,
            "reasoning_effort": self.effort,
            "seed": request.seed % 2**31 if self.send_seed else None,
        }
        given = {k: v for k, v in optional.items() if v is not None}
        return {"model": self.id, "messages": request.messages, **given, **self.body}

    async def _post(self, payload: bytes) -> Reply:
        """One HTTP request. An error that may pass raises `_TryAgain`; a wrong setting raises `UserError`."""
        try:
            async with self._session.post(f"{self.url.rstrip('/')}/chat/completions", data=payload) as response:
                content = await response.read()
        except TimeoutError:
            raise _TryAgain(f"no reply within {self.timeout:g} seconds") from None
        except (aiohttp.ClientError, OSError) as error:
            raise _TryAgain(f"no connection to {self.url}: {error or type(error).__name__}") from None
        if response.status != 200:
            self._refused(response.status, content, response.headers.get("Retry-After"))
        reply = _decode(content)
        if reply.error or not reply.choices:
            raise _TryAgain(f"the endpoint's reply has no choices: {str(reply.error)[:200]}")
        return reply

    def _refused(self, status: int, content: bytes, retry_after: str | None) -> None:
        error = f"HTTP {status}: {content[:300].decode('utf-8', 'replace')}"
        if status in RETRIED or status >= 500:
            raise _TryAgain(error, _seconds(retry_after))
        if status in (401, 403):
            raise UserError(
                f"{self.url} refuses the key: {error}", hint='key = "$NAME" names the variable that holds it'
            )
        if status == 404:
            hint = f"does {self.url} end in /v1, and does the server know the model `{self.id}`?"
            raise UserError(f"{self.url} knows no such page or model: {error}", hint=hint)
        raise ModelFailure(error)  # 400, 413, 422: the request itself is wrong, so a retry won't help

    def _completion(self, reply: Reply, seconds: float) -> Completion:
        choice = reply.choices[0]
        if choice.finish_reason == "error":
            raise _TryAgain("the endpoint reports finish_reason = error")
        message = choice.message
        answer = message.content if isinstance(message.content, str) else _joined(message.content)
        thinking = message.reasoning_content or message.reasoning or ""
        if not thinking:
            thinking, answer = split_thinking(answer)
        stop: Literal["end", "length"] = "length" if choice.finish_reason == "length" else "end"
        return Completion(thinking, answer, stop, self._bill(reply.usage, thinking, answer, seconds))

    def _bill(self, usage: Usage | None, thinking: str, answer: str, seconds: float) -> Bill:
        usage = usage or Usage()
        total = usage.completion_tokens
        details = usage.completion_tokens_details
        if total and (not thinking or (details and details.reasoning_tokens)):
            # Some servers include the thinking in completion_tokens, some don't.
            thought = (details and details.reasoning_tokens) or 0
            answered = total - thought if total >= thought else total
            return Bill(usage.prompt_tokens, thought, answered, seconds, "server")
        if self._count:
            thought = self._count(thinking)
            answered = max(0, total - thought) if total else self._count(answer)
            return Bill(usage.prompt_tokens, thought, answered, seconds, "tokenizer")
        total = total or (len(thinking) + len(answer)) // 4
        thought = round(total * len(thinking) / max(1, len(thinking) + len(answer)))
        return Bill(usage.prompt_tokens, thought, total - thought, seconds, "estimate")


class _TryAgain(Exception):
    """An error that may pass, and how many seconds the server asks to wait."""

    def __init__(self, why: str, wait: float = 0.0) -> None:
        super().__init__(why)
        self.wait = wait


class UsageDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    completion_tokens_details: UsageDetails | None = None


class ReplyMessage(msgspec.Struct):
    content: Any = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class Choice(msgspec.Struct):
    message: ReplyMessage
    finish_reason: str | None = None


class Reply(msgspec.Struct):
    choices: list[Choice] = []
    usage: Usage | None = None
    error: Any = None


_decoder = msgspec.json.Decoder(Reply)


def _decode(content: bytes) -> Reply:
    try:
        return _decoder.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:  # a reply with invalid UTF-8 or half a surrogate pair is still a reply
        return msgspec.convert(json.loads(content.decode("utf-8", "replace")), Reply)
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        raise _TryAgain(f"the endpoint's reply is malformed JSON: {str(error)[:200]}") from None


def _joined(content: Any) -> str:
    """The text of a content that is a list of parts."""
    if not isinstance(content, list):
        return ""
    return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))


def _seconds(retry_after: str | None) -> float:
    """Seconds that a Retry-After header (a number or a date) asks to wait; 0 if it asks nothing."""
    if not retry_after:
        return 0.0
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time())
    except ValueError:
        return 0.0


def _load_tokenizer(name: str) -> Callable[[str], int]:
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError:
        raise UserError(
            "counting with a tokenizer needs a package that isn't installed: tokenizers", hint="pip install tokenizers"
        ) from None
    try:
        tokenizer = Tokenizer.from_file(name) if name.endswith(".json") else Tokenizer.from_pretrained(name)
    except Exception as error:  # its errors have no common type
        raise UserError(
            f"can't load the tokenizer `{name}`: {error}", hint="a tokenizer.json, or a model's id on the hub"
        ) from None
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


class _Pace:
    """Keeps the rate limits. A request is charged the mean number of tokens until its own is known."""

    def __init__(self, requests: float | None, tokens: float | None) -> None:
        self._requests, self._tokens = requests, tokens
        self._next = 0.0  # when the next request may start
        self._level, self._filled = tokens or 0.0, time.monotonic()  # token bucket: negative if overdrawn
        self._mean = 0.0

    async def start(self) -> None:
        if self._requests:
            slot = self._next = max(self._next, time.monotonic()) + 60 / self._requests
            await asyncio.sleep(slot - 60 / self._requests - time.monotonic())
        if self._tokens:
            # Taken before the wait, so that the next request waits behind this one.
            self._level = self._refill(self._tokens) - self._mean
            await asyncio.sleep(max(0.0, -self._level) * 60 / self._tokens)

    def end(self, tokens: int) -> None:
        self._level -= tokens - self._mean
        if tokens:
            self._mean += 0.1 * (tokens - self._mean) if self._mean else tokens

    def _refill(self, per_minute: float) -> float:
        now = time.monotonic()
        self._level = min(per_minute, self._level + (now - self._filled) * per_minute / 60)
        self._filled = now
        return self._level
