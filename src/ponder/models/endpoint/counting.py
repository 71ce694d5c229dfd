"""Counts tokens with the server's own tokenizer, where its `usage` leaves something out.

`POST /tokenize`, beside `/v1`, is understood by llama.cpp, vLLM and SGLang. Thinking tokens are
those of the thinking's text. The rest of the completion is the answer's: its text, the tags around
the thinking, and the token that ends the turn. A total in `usage` stays the total, because the
counts of two texts don't always add up to that of both together.

The first reply that needs a count finds out whether the server has such a page, while others wait.
Nothing that goes wrong here is an error: the bill is then estimated, as for a server without such a
page.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
import msgspec
from yarl import URL

from ponder.core import Message
from ponder.models.endpoint.reply import (
    Malformed,
    Said,
    as_count,
    completion_tokens,
    decode_json,
    output_tokens,
    prompt_tokens,
    reasoning_tokens,
    whole,
)

SECONDS = 5.0  # for all counts of one reply; a tokenizer takes milliseconds
# characters: a longer text would block other calls while it is sent, and take the server seconds
LONGEST = 250_000
MOST_MISSES = 3  # timeouts in a row after which the server isn't asked again


class Tokenized(msgspec.Struct):
    """A response of /tokenize or /apply-template: llama.cpp gives no count, vLLM and SGLang do."""

    count: Any = None
    tokens: Any = None
    prompt: Any = None


_decoder = msgspec.json.Decoder(Tokenized)


def beside_v1(url: URL, page: str) -> URL:
    """Return the address of a page that a server has beside /v1."""
    root = url.with_path(url.raw_path.rstrip("/").removesuffix("/v1"), encoded=True)
    return (root / page).with_query(url.query)


class ServerTokenizer:
    def __init__(
        self, session: aiohttp.ClientSession, url: URL, headers: Mapping[str, str], model: str
    ) -> None:
        self._session, self._headers, self._model = session, headers, model
        self._tokenize = beside_v1(url, "tokenize")
        self._template = beside_v1(url, "apply-template")
        self._known, self._misses = False, 0
        self._first = asyncio.Lock()

    async def fill(
        self, usage: Any, said: Said, messages: Sequence[Message], payload: bytes, sent: int
    ) -> tuple[dict[str, Any], int]:
        """A reply's `usage` with what it lacks, as far as the server counts it, and an estimate of
        its prompt.
        """
        filled = dict(usage) if isinstance(usage, dict) else {}
        if not self._known:
            async with self._first:
                if not self._known:
                    return filled, await self._fill(filled, said, messages, payload, sent)
        return filled, await self._fill(filled, said, messages, payload, sent)

    async def _fill(
        self,
        usage: dict[str, Any],
        said: Said,
        messages: Sequence[Message],
        payload: bytes,
        sent: int,
    ) -> int:
        if (
            self._misses >= MOST_MISSES
            or max(len(payload), *map(len, said.written), len(said.thinking)) > LONGEST
        ):
            return sent
        try:
            async with asyncio.timeout(SECONDS):
                await self._fill_completion(usage, said)
                if not prompt_tokens(usage):
                    # it would make any error of this count a part of the reply
                    usage.pop("total_tokens", None)
                    usage["prompt_tokens"] = await self._prompt(payload)
                if not prompt_tokens(usage):
                    # Without what the chat template adds, so no more than an estimate.
                    sent = (
                        await self._text("\n".join(message.content for message in messages)) or sent
                    )
            self._known, self._misses = True, 0
        except (aiohttp.ClientError, OSError, Malformed) as error:
            absent = isinstance(error, Malformed) and not self._known
            self._misses += MOST_MISSES if absent else 1
        return sent

    async def _fill_completion(self, usage: dict[str, Any], said: Said) -> None:
        output = output_tokens(usage)
        if not output and any(said.written):
            ended = said.stop == "end"  # with a token of its own, which servers count
            output = sum([await self._text(text) for text in said.written]) + ended
        if said.thinking and not reasoning_tokens(usage):
            thought = min(output, await self._text(said.thinking))
            usage["completion_tokens_details"] = {"reasoning_tokens": thought}
        if not completion_tokens(usage):
            usage["completion_tokens"] = output

    async def _prompt(self, payload: bytes) -> int:
        """Tokens of a request's messages in the model's chat template; 0 if the server doesn't say."""
        try:
            if tokens := _tokens(await self._post(self._tokenize, payload)):  # vLLM
                return tokens
        except Malformed:
            pass
        try:
            prompt = (await self._post(self._template, payload)).prompt  # llama.cpp
        except Malformed:
            return 0
        return await self._text(prompt, special=True) if isinstance(prompt, str) else 0

    async def _text(self, text: str, *, special: bool = False) -> int:
        """Tokens of a text; `special` adds a token for its beginning if the model wants one."""
        if not text:
            return 0
        # llama.cpp reads `content`, the others `prompt`; each ignores the other's.
        special_too = {"add_special": special, "add_special_tokens": special}
        body = {"model": self._model, "content": text, "prompt": text, **special_too}
        if tokens := _tokens(await self._post(self._tokenize, msgspec.json.encode(body))):
            return tokens
        raise Malformed("a text has no tokens")

    async def _post(self, url: URL, content: bytes) -> Tokenized:
        async with self._session.post(
            url, data=content, headers=self._headers, allow_redirects=False
        ) as response:
            if response.status != 200:
                raise Malformed(f"HTTP {response.status}")
            return decode_json(await whole(response.content.iter_any()), _decoder)


def _tokens(response: Tokenized) -> int:
    return as_count(response.count) or (
        len(response.tokens) if isinstance(response.tokens, list) else 0
    )
