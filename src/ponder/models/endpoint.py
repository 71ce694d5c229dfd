"""Any OpenAI-compatible chat endpoint: a hosted API, vLLM, SGLang, llama.cpp's server.

Thinking is found wherever servers put it: `reasoning_content`, `reasoning`, or `<think>` tags in the content. Its
tokens come from `usage` where the server counts them; else from `tokenizer`; else the completion's tokens are split in
proportion to the characters, and the bill says `estimate`.
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

RETRIED = {408, 409, 425, 429}  # and every 5xx
MAX_WAIT = 60.0


@dataclass(kw_only=True)
class Endpoint(Model):
    id: str  # the model's name, as the server knows it
    url: str = "http://127.0.0.1:8000/v1"  # up to, but without, /chat/completions
    budget: int | None = None  # completion tokens, thinking included; the server's own limit if not given
    temperature: float | None = None  # the server's default if not given, as for the next two
    top_p: float | None = None
    effort: str | None = None  # sent as `reasoning_effort`
    send_seed: bool = True  # a seed of its own with every attempt
    body: dict[str, Any] = field(default_factory=dict)  # more fields for the request's body
    budget_field: Literal["max_tokens", "max_completion_tokens"] = not_in_key("max_tokens")  # what the server calls it
    key: EnvVar | None = not_in_key(None)  # $NAME of the variable that holds the API key
    tokenizer: str = not_in_key("")  # a tokenizer.json, or a model's id on the hub
    concurrency: int = not_in_key(32)  # requests at once
    timeout: float = not_in_key(1800.0)  # seconds for one answer
    retries: int = not_in_key(8)  # after busy, broken or late answers, before the attempt counts as failed
    requests_per_minute: float | None = not_in_key(None)
    tokens_per_minute: float | None = not_in_key(None)

    example: ClassVar[dict[str, Any]] = {"id": "model", "retries": 0}

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise UserError(f"`{self.url}` is no address", hint='url = "http://127.0.0.1:8000/v1"')
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
            # Looking for a proxy costs CPU on every request, so only where there is one.
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
                # Half to one and a half times the doubling wait, so that many clients don't return at once.
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
        """One call. Trouble that may pass raises `_TryAgain`; trouble with the settings raises `UserError`."""
        try:
            async with self._session.post(f"{self.url.rstrip('/')}/chat/completions", data=payload) as response:
                content = await response.read()
        except TimeoutError:
            raise _TryAgain(f"no answer within {self.timeout:g} seconds") from None
        except (aiohttp.ClientError, OSError) as error:
            raise _TryAgain(f"no connection to {self.url}: {error or type(error).__name__}") from None
        if response.status != 200:
            self._refused(response.status, content, response.headers.get("Retry-After"))
        reply = _decode(content)
        if reply.error or not reply.choices:
            raise _TryAgain(f"the endpoint answered without a choice: {str(reply.error)[:200]}")
        return reply

    def _refused(self, status: int, content: bytes, retry_after: str | None) -> None:
        said = f"HTTP {status}: {content[:300].decode('utf-8', 'replace')}"
        if status in RETRIED or status >= 500:
            raise _TryAgain(said, _seconds(retry_after))
        if status in (401, 403):
            raise UserError(
                f"{self.url} refuses the key: {said}", hint='key = "$NAME" names the variable that holds it'
            )
        if status == 404:
            hint = f"does {self.url} end in /v1, and does the server know the model `{self.id}`?"
            raise UserError(f"{self.url} knows no such page or model: {said}", hint=hint)
        raise ModelFailure(said)  # 400, 413, 422: this request is at fault, and asking again won't help

    def _completion(self, reply: Reply, seconds: float) -> Completion:
        choice = reply.choices[0]
        if choice.finish_reason == "error":
            raise _TryAgain("the endpoint stopped with an error")
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
            # Some servers count the thinking inside the completion's tokens, some beside them.
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
    def __init__(self, why: str, wait: float = 0.0) -> None:
        super().__init__(why)
        self.wait = wait


class Details(msgspec.Struct):
    reasoning_tokens: int | None = None


class Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    completion_tokens_details: Details | None = None


class Said(msgspec.Struct):
    content: Any = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class Choice(msgspec.Struct):
    message: Said
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
    try:  # text that isn't clean UTF-8, or holds half a surrogate pair, is still an answer
        return msgspec.convert(json.loads(content.decode("utf-8", "replace")), Reply)
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        raise _TryAgain(f"the endpoint answered with malformed JSON: {str(error)[:200]}") from None


def _joined(content: Any) -> str:
    """The text of a content that comes in parts."""
    if not isinstance(content, list):
        return ""
    return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))


def _seconds(retry_after: str | None) -> float:
    """What a Retry-After header asks for, as seconds or as a date; 0 if nothing."""
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
            "counting with a tokenizer needs the package tokenizers", hint="pip install tokenizers"
        ) from None
    try:
        tokenizer = Tokenizer.from_file(name) if name.endswith(".json") else Tokenizer.from_pretrained(name)
    except Exception as error:  # its errors have no common type
        raise UserError(
            f"can't load the tokenizer `{name}`: {error}", hint="give a tokenizer.json or a hub id"
        ) from None
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


class _Pace:
    """Spaces requests out under the limits a minute. A request is charged the mean bill until its own is known."""

    def __init__(self, requests: float | None, tokens: float | None) -> None:
        self._requests, self._tokens = requests, tokens
        self._next = 0.0  # when the next request may start
        self._level, self._filled = tokens or 0.0, time.monotonic()
        self._mean = 0.0

    async def start(self) -> None:
        if self._requests:
            slot = self._next = max(self._next, time.monotonic()) + 60 / self._requests
            await asyncio.sleep(slot - 60 / self._requests - time.monotonic())
        if self._tokens:
            # Taken before the wait, so that whoever comes next waits behind.
            self._level = self._refill(self._tokens) - self._mean
            await asyncio.sleep(max(0.0, -self._level) * 60 / self._tokens)

    def end(self, tokens: int) -> None:
        self._level -= tokens - self._mean
        if tokens:
            self._mean += 0.1 * (tokens - self._mean) if self._mean else tokens

    def _refill(self, a_minute: float) -> float:
        now = time.monotonic()
        self._level = min(a_minute, self._level + (now - self._filled) * a_minute / 60)
        self._filled = now
        return self._level
