"""Counts tokens that a server's `usage` leaves out: with a local tokenizer, or with the server's.

`POST /tokenize`, next to `/v1`, is understood by llama.cpp, vLLM and SGLang. Thinking tokens are
those of the thinking's text. The other tokens of the completion are the answer's: its text, the
tags around the thinking, and the token that ends the turn. A total in `usage` stays the total,
because the counts of two texts don't always add up to that of both together.

The first reply that needs a count finds out whether the server has such a page, while others wait.
Nothing that goes wrong here is an error: the bill is then estimated, as for a server without such a
page.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import aiohttp
import msgspec
from yarl import URL

from ponder.core import Message, UserError
from ponder.models.endpoint.reply import Malformed, Reply, Usage, as_count, decode_json
from ponder.models.endpoint.stream import read_all

SECONDS = 5.0  # for all counts of one reply; a tokenizer takes milliseconds
# characters: a longer text would block other calls while it is sent, and take the server seconds
MAX_TEXT = 250_000
MAX_FAILURES = 3  # in a row; then the server's tokenizer is not used again


def load_tokenizer(name: str) -> Callable[[str], int]:
    """Return a function that counts the tokens of a text, from a tokenizer.json or a hub id."""
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError:
        message = "counting with a tokenizer needs a package that isn't installed: tokenizers"
        raise UserError(message, hint="pip install tokenizers") from None
    try:
        if name.endswith(".json"):
            tokenizer = Tokenizer.from_file(name)
        else:
            tokenizer = Tokenizer.from_pretrained(name)
    except Exception as error:  # its errors have no common type
        message = f"can't load the tokenizer `{name}`: {error}"
        raise UserError(message, hint="a tokenizer.json, or a model's id on the hub") from None
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


class Tokenized(msgspec.Struct):
    """A response of /tokenize or /apply-template: vLLM and SGLang send a count, llama.cpp none."""

    count: Any = None
    tokens: Any = None
    prompt: Any = None


_decoder = msgspec.json.Decoder(Tokenized)


def beside_v1(url: URL, page: str) -> URL:
    """Return the address of a page that a server has next to /v1."""
    root = url.with_path(url.raw_path.rstrip("/").removesuffix("/v1"), encoded=True)
    return (root / page).with_query(url.query)


class ServerTokenizer:
    """The tokenizer of one server."""

    def __init__(
        self, session: aiohttp.ClientSession, url: URL, headers: Mapping[str, str], model: str
    ) -> None:
        self._session = session
        self._headers = headers
        self._model = model
        self._tokenize = beside_v1(url, "tokenize")
        self._template = beside_v1(url, "apply-template")
        self._has_page = False
        self._failures = 0
        self._first = asyncio.Lock()

    async def fill(
        self, reply: Reply, messages: Sequence[Message], payload: bytes, prompt_estimate: int
    ) -> tuple[Usage, int]:
        """Return a reply's token counts with the missing ones, and an estimate of its prompt.

        `payload` is the request. The estimate is the given one if the server counts no text.
        """
        if not self._has_page:
            async with self._first:
                if not self._has_page:
                    return await self._fill(reply, messages, payload, prompt_estimate)
        return await self._fill(reply, messages, payload, prompt_estimate)

    async def _fill(
        self, reply: Reply, messages: Sequence[Message], payload: bytes, prompt_estimate: int
    ) -> tuple[Usage, int]:
        usage = reply.usage
        longest = max(len(text) for text in (payload, reply.thinking, *reply.written))
        if self._failures >= MAX_FAILURES or longest > MAX_TEXT:
            return usage, prompt_estimate
        try:
            async with asyncio.timeout(SECONDS):
                usage = await self._count_completion(reply)
                if not usage.prompt:
                    usage = replace(usage, prompt=await self._count_prompt(payload))
                if not usage.prompt:
                    # Without what the chat template adds, so no more than an estimate.
                    text = "\n".join(message.content for message in messages)
                    prompt_estimate = await self._count_text(text) or prompt_estimate
            self._has_page = True
            self._failures = 0
        except (aiohttp.ClientError, OSError, Malformed) as error:
            if isinstance(error, Malformed) and not self._has_page:
                self._failures = MAX_FAILURES
            else:
                self._failures += 1
        return usage, prompt_estimate

    async def _count_completion(self, reply: Reply) -> Usage:
        """Return a reply's token counts with those of its completion and of its thinking."""
        usage = reply.usage
        output = usage.output
        if not output and any(reply.written):
            for text in reply.written:
                output += await self._count_text(text)
            if reply.stop == "end":
                output += 1  # the token that ends the turn, which servers count
        reasoning = usage.reasoning
        if reply.summarized and usage.output and not reasoning:
            answer = await self._count_text(reply.answer or reply.refusal)
            reasoning = max(0, output - answer)
        elif reply.thinking and not reasoning:
            reasoning = min(output, await self._count_text(reply.thinking))
        completion = usage.completion or output
        return replace(usage, output=output, reasoning=reasoning, completion=completion)

    async def _count_prompt(self, payload: bytes) -> int:
        """Return the tokens of a request in the model's chat template; 0 if the server can't."""
        try:
            tokens = _tokens(await self._post(self._tokenize, payload))  # vLLM
            if tokens:
                return tokens
        except Malformed:
            pass
        try:
            prompt = (await self._post(self._template, payload)).prompt  # llama.cpp
        except Malformed:
            return 0
        if not isinstance(prompt, str):
            return 0
        return await self._count_text(prompt, special=True)

    async def _count_text(self, text: str, *, special: bool = False) -> int:
        """Return a text's tokens; `special`: with the model's token for the beginning, if any."""
        if not text:
            return 0
        # llama.cpp reads `content` and `add_special`, the others `prompt` and `add_special_tokens`;
        # each ignores the other's.
        body = {
            "model": self._model,
            "content": text,
            "prompt": text,
            "add_special": special,
            "add_special_tokens": special,
        }
        tokens = _tokens(await self._post(self._tokenize, msgspec.json.encode(body)))
        if not tokens:
            raise Malformed("a text has no tokens")
        return tokens

    async def _post(self, url: URL, content: bytes) -> Tokenized:
        async with self._session.post(
            url, data=content, headers=self._headers, allow_redirects=False
        ) as response:
            if response.status != 200:
                raise Malformed(f"HTTP {response.status}")
            return decode_json(await read_all(response.content.iter_any()), _decoder)


def _tokens(response: Tokenized) -> int:
    count = as_count(response.count)
    if not count and isinstance(response.tokens, list):
        count = len(response.tokens)
    return count
