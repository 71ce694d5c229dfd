"""The chat protocol with vLLM's token ids, and a client that restarts servers that died.

Models with a chat template are sent a chat, those with a codec the token ids that it renders.
Thinking tokens are counted in the reply's ids, up to and including `</think>`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from ponder.core import Codec, Request, UserError, plugins
from ponder.models.endpoint import Endpoint
from ponder.models.endpoint.chat import Chat, ChatResponse, read, read_usage
from ponder.models.endpoint.client import Client
from ponder.models.endpoint.failures import NoAnswer
from ponder.models.endpoint.reply import Malformed, Reply
from ponder.models.endpoint.servers import Server
from ponder.models.endpoint.timing import StreamTimes
from ponder.models.vllm.pool import ServerGroup
from ponder.models.vllm.server import VllmServer


class VllmChat(Chat):
    """Requests a chat or, if the weights have a codec, a completion of token ids."""

    def __init__(
        self,
        endpoint: Endpoint,
        server: VllmServer,
        *,
        top_k: int,
        template: dict[str, Any],
        count_prompt: Callable[[Request], int | None],
        codec_of: str,
    ) -> None:
        super().__init__(endpoint)
        self._top_k = top_k
        self._template = template  # values for the chat template
        self._count_prompt = count_prompt  # None if the length of a prompt is unknown
        # the model plugin whose codec renders prompts and reads replies; "": the chat template
        self._codec_of = codec_of
        self._think_id = _single_id(server, endpoint.id, "<think>")
        self._end_think_id = _single_id(server, endpoint.id, "</think>")
        probe = server.post("/tokenize", {"model": endpoint.id, "prompt": "a"})
        self._max_length = int(probe["max_model_len"])

    @property
    def page(self) -> str:
        if self._codec_of:
            return "completions"
        return super().page

    def payload(self, request: Request, budget: int | None) -> dict[str, Any]:
        payload = super().payload(request, self._fitting(request, budget))
        payload["top_k"] = self._top_k
        payload["return_token_ids"] = True
        # Special tokens stay in the text: in some vocabularies `</think>` is one.
        payload["skip_special_tokens"] = False
        if self._template:
            payload["chat_template_kwargs"] = self._template
        if self._codec_of:
            del payload["messages"]
            payload["prompt"] = self._codec(request).prompt_ids(request)
        return payload

    def _codec(self, request: Request) -> Codec:
        codec = plugins.codec(self._codec_of, request.task.plugin_name())
        assert codec is not None
        return codec

    def _fitting(self, request: Request, budget: int | None) -> int | None:
        """Return the budget, or what the prompt leaves of the server's longest text if less.

        A model in this process stops there too. vLLM refuses a budget that is larger; without one
        it uses what is left.
        """
        if budget is None or budget + request.prompt_limit <= self._max_length:
            return budget  # fits without counting
        room = self._max_length - (self._count_prompt(request) or 0)
        if room <= 0:
            return None
        return min(budget, room)

    def read(self, request: Request, response: ChatResponse) -> Reply:
        endpoint = self._endpoint
        if response.model != endpoint.id:
            urls = " or ".join(endpoint.urls)
            name = str(response.model)[:100]
            message = f"the server at {urls} answers as `{name}`, not as `{endpoint.id}`"
            raise UserError(message, hint="another server has taken the port: leave out `port`")
        tokens = _token_ids(response.choice().token_ids)
        if self._codec_of:
            prompt = _token_ids(response.choice().prompt_token_ids)
            reply, thinking_tokens = self._read_codec(request, response, tokens, prompt)
        else:
            prompt = _token_ids(response.prompt_token_ids)
            reply, thinking_tokens = self._read_chat(response, tokens, prompt)
        usage = replace(
            reply.usage,
            prompt=len(prompt),
            completion=len(tokens),
            output=len(tokens),
            reasoning=thinking_tokens,
            reported=True,
        )
        return replace(reply, usage=usage, model=endpoint.id, tokens=tokens, prompt=prompt)

    def _read_chat(
        self, response: ChatResponse, tokens: list[int], prompt: list[int]
    ) -> tuple[Reply, int]:
        """Return the reply and its thinking tokens; 0 if its text must be counted."""
        reply = read(response)
        if self._end_think_id is not None and self._end_think_id in tokens:
            return reply, tokens.index(self._end_think_id) + 1
        opened = self._think_id is not None and self._think_id in prompt[-4:]
        if opened and not reply.thinking:
            # The template has opened the thinking, and the reply hasn't ended it.
            reply = replace(reply, thinking=reply.answer.strip(), answer="", refusal="")
        if reply.thinking and not reply.answer:
            return reply, len(tokens)
        return reply, 0

    def _read_codec(
        self, request: Request, response: ChatResponse, tokens: list[int], prompt: list[int]
    ) -> tuple[Reply, int]:
        """Return the reply as the codec reads it, and its thinking tokens."""
        codec = self._codec(request)
        sent = codec.prompt_ids(request)
        if prompt != sent:
            raise UserError(
                f"vLLM was sent the prompt {sent[:8]}… and read {prompt[:8]}…:"
                " its token ids don't match"
            )
        thinking, answer, thinking_tokens = codec.reply(request, tokens)
        stop: Literal["end", "length"] = "end"
        if response.choice().finish_reason == "length":
            stop = "length"
        note = ""
        if not thinking and not answer and stop == "end":
            note = "empty reply"
        usage = read_usage(response.usage)
        return Reply(thinking, answer, stop, note, usage=usage), thinking_tokens


class VllmClient(Client):
    """Sends requests to vLLM servers of this machine, and restarts those that died."""

    def __init__(self, endpoint: Endpoint, protocol: VllmChat, group: ServerGroup) -> None:
        super().__init__(endpoint, protocol, proxies=False)
        self.group = group
        self._restarting = asyncio.Lock()

    async def _post(
        self, server: Server, payload: bytes, request: Request
    ) -> tuple[Reply, StreamTimes | None]:
        try:
            return await super()._post(server, payload, request)
        except NoAnswer as failure:
            if failure.passing:
                async with self._restarting:
                    await asyncio.to_thread(self.group.revive)
            raise


def _single_id(server: VllmServer, model: str, tag: str) -> int | None:
    """Return the id of a tag's token; None if the tag is not a single token."""
    body = {"model": model, "prompt": tag, "add_special_tokens": False}
    tokens = server.post("/tokenize", body)["tokens"]
    if len(tokens) != 1:
        return None
    token: int = tokens[0]
    return token


def _token_ids(value: Any) -> list[int]:
    if not isinstance(value, list) or not all(isinstance(item, int) for item in value):
        raise Malformed("vLLM returned no token ids")
    return value
