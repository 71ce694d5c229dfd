"""Asks vLLM servers as `endpoint` does, and reads the token ids that they return.

Models with a chat template are asked for a chat, those with a codec by token ids. Thinking tokens
are counted in the reply's ids, up to and including `</think>`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from ponder.core import Codec, Request, UserError, plugins
from ponder.models.endpoint import Endpoint
from ponder.models.endpoint.failures import NoAnswer
from ponder.models.endpoint.reply import Choice, Malformed, Reply, Said, read
from ponder.models.endpoint.servers import Server
from ponder.models.vllm.servers import ServerGroup


@dataclass(kw_only=True)
class VllmClient(Endpoint):
    """Asks for a chat or, if the weights have a codec, for a completion of the token ids that it
    renders.
    """

    servers: ServerGroup
    top_k: int = 0
    template: dict[str, Any] = field(default_factory=dict)  # values for the chat template
    count_prompt: Callable[[Request], int | None]  # how long a prompt is, if that is known
    # the model plugin whose codec renders prompts and reads replies; "": the chat template
    codec_of: str = ""

    proxies: ClassVar[bool] = False  # the servers are on this machine

    def __post_init__(self) -> None:
        super().__post_init__()
        first = self.servers.each[0]
        self._reviving = asyncio.Lock()
        self._begin, self._end = (_one_id(first, self.id, tag) for tag in ("<think>", "</think>"))
        self._room = int(
            first.post("/tokenize", {"model": self.id, "prompt": "a"})["max_model_len"]
        )

    def _page(self) -> str:
        return "completions" if self.codec_of else super()._page()

    def _payload(self, request: Request, budget: int | None) -> dict[str, Any]:
        payload = super()._payload(request, self._fitting(request, budget))
        # Special tokens stay in the text: in some vocabularies `</think>` is one.
        payload |= {"top_k": self.top_k, "return_token_ids": True, "skip_special_tokens": False}
        if self.template:
            payload["chat_template_kwargs"] = self.template
        if self.codec_of:
            del payload["messages"]
            payload["prompt"] = self._codec(request).prompt_ids(request)
        return payload

    def _codec(self, request: Request) -> Codec:
        codec = plugins.codec(self.codec_of, request.task.plugin_name())
        assert codec is not None
        return codec

    def _fitting(self, request: Request, budget: int | None) -> int | None:
        """The budget, or what the prompt leaves of the server's longest text, as a model in this
        process stops there.

        vLLM refuses a budget that is larger; without one it uses what is left.
        """
        if budget is None or budget + request.prompt_limit <= self._room:  # fits without counting
            return budget
        left = self._room - (self.count_prompt(request) or 0)
        return budget if budget <= left else left if left > 0 else None

    async def _post(self, server: Server, payload: bytes) -> tuple[Reply, float | None]:
        try:
            return await super()._post(server, payload)
        except NoAnswer as failure:
            if failure.passing:
                async with self._reviving:
                    await asyncio.to_thread(self.servers.revive)
            raise

    def _read(self, request: Request, reply: Reply) -> tuple[Said, Any]:
        if reply.model != self.id:
            what = f"the server at {' or '.join(self.urls)} answers as `{str(reply.model)[:100]}`, not as `{self.id}`"
            raise UserError(what, hint="another server has taken the port: leave out `port`")
        ids = _reply_ids(reply)
        prompt = self._prompt_ids(reply)
        if self.codec_of:
            said, thought = self._read_codec(request, reply, ids, prompt)
        else:
            said, thought = self._read_chat(reply, ids, prompt)
        usage = reply.usage if isinstance(reply.usage, dict) else {}
        counts = {
            "prompt_tokens": len(prompt),
            "completion_tokens": len(ids),
            "total_tokens": len(prompt) + len(ids),
        }
        return said, {**usage, **counts, "completion_tokens_details": {"reasoning_tokens": thought}}

    def _read_chat(self, reply: Reply, ids: list[int], prompt: list[int]) -> tuple[Said, int]:
        """Return what a reply says, and how many thinking tokens it has; 0 if that must be counted
        in its text.
        """
        said = read(reply)
        if self._end is not None and self._end in ids:
            return said, ids.index(self._end) + 1
        if self._begin is not None and self._begin in prompt[-4:] and not said.thinking:
            # The template has opened the thinking, and the reply hasn't ended it.
            said = Said(said.answer.strip(), "", said.stop, said.note, written=said.written)
        return said, len(ids) if said.thinking and not said.answer else 0

    def _read_codec(
        self, request: Request, reply: Reply, ids: list[int], prompt: list[int]
    ) -> tuple[Said, int]:
        """Return what the codec reads in a reply, and how many thinking tokens it has."""
        codec = self._codec(request)
        sent = codec.prompt_ids(request)
        if prompt != sent:
            raise UserError(
                f"vLLM was sent the prompt {sent[:8]}… and read {prompt[:8]}…: its token ids don't match"
            )
        thinking, answer, thought = codec.reply(request, ids)
        stop: Literal["end", "length"] = (
            "length" if _choice(reply).finish_reason == "length" else "end"
        )
        note = "" if thinking or answer or stop == "length" else "empty reply"
        return Said(thinking, answer, stop, note), thought

    def _ids(self, reply: Reply) -> dict[str, Any]:
        return {"tokens": _reply_ids(reply), "prompt": self._prompt_ids(reply)}

    def _prompt_ids(self, reply: Reply) -> list[int]:
        return _ids(_choice(reply).prompt_token_ids if self.codec_of else reply.prompt_token_ids)


def _choice(reply: Reply) -> Choice:
    return (reply.choices or [Choice()])[0]


def _reply_ids(reply: Reply) -> list[int]:
    return _ids(_choice(reply).token_ids)


def _one_id(server: Any, model: str, tag: str) -> int | None:
    """The token that a tag is, if it is one."""
    tokens = server.post("/tokenize", {"model": model, "prompt": tag, "add_special_tokens": False})[
        "tokens"
    ]
    return tokens[0] if len(tokens) == 1 else None


def _ids(given: Any) -> list[int]:
    if not isinstance(given, list) or not all(isinstance(one, int) for one in given):
        raise Malformed("vLLM returned no token ids")
    return given
