"""Stands in for vLLM's server in tests: the same flags and pages, a child process like its engine,
and real weights.

Pocket weights are run by Ponder's own engine, asked by token ids. A chat is answered with the sum
that it asks for, encoded by the folder's tokenizer. The variable FAKE_VLLM holds faults, as JSON:
`fail` (lines of a log, and it ends), `die_after` (answers until it is killed, as if memory ran out;
only where `die_once` names no file yet), `hold_after` (answers until it gives no more), `no_reload`
(a status), `no_adapter`, `other_name`, `answers_as`, `other_ids`, `other_prompt`, `no_ids`.
`record` names a file to which each start and page is written.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from aiohttp import web

FAULTS: dict[str, Any] = json.loads(os.environ.get("FAKE_VLLM", "{}"))


def record(*what: Any) -> None:
    if path := FAULTS.get("record"):
        with Path(path).open("a") as file:
            file.write(json.dumps(what) + "\n")


def flags(words: list[str]) -> dict[str, str]:
    """The flags that Ponder gives; those without a value are `true`."""
    given: dict[str, str] = {}
    for word, after in zip(words, [*words[1:], "--"], strict=True):
        if word.startswith("--"):
            given[word[2:]] = "true" if after.startswith("--") else after
    return given


class Server:
    def __init__(self, given: dict[str, str]) -> None:
        self.given, self.name = given, FAULTS.get("other_name") or given["served-model-name"]
        self.names, self.answers, self.room = {self.name}, 0, int(given.get("max-model-len", 2048))
        self.load(Path(given["model"]))

    def load(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        self.folder, self.tokenizer = folder, Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.weights = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()

    def ids(self, text: str) -> list[int]:
        return [
            n + bool(FAULTS.get("other_ids"))
            for n in self.tokenizer.encode(text, add_special_tokens=False).ids
        ]

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": name} for name in sorted(self.names)]})

    async def health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def tokenize(self, request: web.Request) -> web.Response:
        ids = self.ids((await request.json())["prompt"])
        return web.json_response({"count": len(ids), "max_model_len": self.room, "tokens": ids})

    async def collective_rpc(self, request: web.Request) -> web.Response:
        body = await request.json()
        record("reload", body["kwargs"]["weights_path"])
        if status := FAULTS.get("no_reload"):
            return web.Response(status=status, text="no")
        assert body["method"] == "reload_weights"
        self.load(Path(body["kwargs"]["weights_path"]))
        return web.json_response({"results": [None]})

    async def reset_prefix_cache(self, request: web.Request) -> web.Response:
        record("reset")
        return web.json_response({"success": True})

    async def load_lora_adapter(self, request: web.Request) -> web.Response:
        body = await request.json()
        assert self.given["enable-lora"] == "true"
        record("adapter", body["lora_path"], self.given["max-lora-rank"])
        if FAULTS.get("no_adapter") or body["lora_name"] in self.names:
            return web.Response(status=400, text="no, or it is there")
        self.names.add(body["lora_name"])
        return web.json_response({})

    async def unload_lora_adapter(self, request: web.Request) -> web.Response:
        name = (await request.json())["lora_name"]
        record("unloaded", name)
        self.names.remove(name)
        return web.json_response({})

    def refused(self, body: dict[str, Any], prompt: list[int]) -> web.Response | None:
        if body["model"] not in self.names:
            return web.Response(status=404, text="no such model")
        if len(prompt) + (body.get("max_tokens") or 1) > self.room:
            return web.Response(status=400, text="longer than max_model_len")
        self.answers += 1
        once = FAULTS.get("die_once")
        if self.answers > FAULTS.get("die_after", 10**9) and not (once and Path(once).exists()):
            if once:
                Path(once).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return None

    def reply(
        self, body: dict[str, Any], prompt: list[int], ids: list[int], text: str
    ) -> dict[str, Any]:
        record("asked", body["model"], self.weights, body.get("chat_template_kwargs"))
        most = body.get("max_tokens") or self.room - len(prompt)
        finish = "length" if len(ids) > most else "stop"
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish}
        prompt = [0, *prompt] if FAULTS.get("other_prompt") else prompt
        known: dict[str, Any] = {"token_ids": ids[:most], "prompt_token_ids": prompt}
        if body.get("return_token_ids") and not FAULTS.get("no_ids"):
            choice |= known
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ids[:most])}
        message = {"message": {"role": "assistant", "content": text}, "text": text}
        whole = (
            {"prompt_token_ids": choice.pop("prompt_token_ids")} if "chat" in body and known else {}
        )
        return {
            "model": FAULTS.get("answers_as", body["model"]),
            "choices": [choice | message],
            "usage": usage,
            **whole,
        }

    async def chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        prompt = self.ids("".join(m["content"] for m in body["messages"]))
        if refused := self.refused(body, prompt):
            return refused
        numbers = re.search(r"What is ([\d +-]+)\?", body["messages"][-1]["content"])
        total = (
            sum(map(int, numbers[1].replace(" ", "").replace("-", "+-").split("+")))
            if numbers
            else 0
        )
        text = f"We add.</think>\n<answer>{total}</answer>"
        end = self.ids(self.tokenizer.id_to_token(0) or "")[:1]
        return web.json_response(
            self.reply({**body, "chat": 1}, prompt, self.ids(text) + end, text)
        )

    async def completions(self, request: web.Request) -> web.Response:
        from ponder.models._batch import Generation, generate_all
        from ponder.models.pocket.engine import NumpyEngine

        body = await request.json()
        if refused := self.refused(body, body["prompt"]):
            return refused
        if self.answers > FAULTS.get("hold_after", 10**9):
            await asyncio.Event().wait()
        most = body.get("max_tokens") or self.room - len(body["prompt"])
        generation = Generation(body["prompt"], most, body["temperature"], body["seed"])
        for _ in generate_all(NumpyEngine(self.folder, 1), [generation]):
            pass
        record("prompt", len(generation.tokens), body["prompt"])
        reply = self.reply(body, body["prompt"], generation.tokens, "")
        reply["choices"][0]["finish_reason"] = "stop" if generation.ended else "length"
        return web.json_response(reply)


async def serve(given: dict[str, str]) -> None:
    server = Server(given)
    app = web.Application()
    app.router.add_get("/health", server.health)
    app.router.add_get("/v1/models", server.models)
    for handler in (server.tokenize, server.collective_rpc, server.reset_prefix_cache):
        app.router.add_post(f"/{handler.__name__}", handler)
    for handler in (server.load_lora_adapter, server.unload_lora_adapter, server.completions):
        app.router.add_post(f"/v1/{handler.__name__}", handler)
    app.router.add_post("/v1/chat/completions", server.chat)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, given["host"], int(given["port"])).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    given = flags(sys.argv[1:])
    if lines := FAULTS.get("fail"):
        sys.exit("\n".join(lines))
    # Like vLLM's engine: a process in the same group, which SIGKILL of this one leaves behind.
    engine = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    record("environment", sorted(os.environ))
    record("started", os.getpid(), engine.pid, given)
    signal.signal(signal.SIGTERM, lambda *_: (engine.terminate(), os._exit(0)))
    asyncio.run(serve(given))
