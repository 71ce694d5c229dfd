"""Serves local weights with vLLM and asks them: for models and numbers of samples that need GPUs.

Ponder starts vLLM's OpenAI server on this machine, waits until it answers, and stops it at the end.
Models that differ only in their weights, such as the variants of a sweep or the iterations of a
training, use the same server one after another: new weights are loaded into it. A LoRA adapter is
served without merging, and replaced while the server runs. Replies come with their token ids, so
thinking tokens are exact, and samples can be trained on as they were written.

vLLM may be installed elsewhere: `python` names the interpreter that has it. Any other flag of vLLM
goes into `args`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from ponder.core import (
    Completion,
    ModelFailure,
    Progress,
    Request,
    Served,
    Source,
    Task,
    UserError,
    digest,
    fingerprint,
    not_in_key,
    weights_fingerprint,
)
from ponder.models._local_weights import LocalWeights, as_folder
from ponder.models.endpoint import Endpoint
from ponder.models.vllm import pool
from ponder.models.vllm.chat import VllmChat, VllmClient
from ponder.models.vllm.pool import ServerGroup
from ponder.models.vllm.server import Launch, Weights, check_vllm

# Flags that have a setting of their own, or that Ponder sets.
OWN_FLAGS = {
    "model": 'id = "…" names the weights',
    "served_model_name": 'label = "…" next to id names the model in figures',
    "host": "servers run on this machine; the model `endpoint` asks one elsewhere",
    "port": "port = {} next to id",
    "dtype": "dtype = {} next to id",
    "tensor_parallel_size": "tensor_parallel = {} next to id",
    "revision": "revision = {} next to id",
    "lora_modules": 'lora = "…" next to id names the adapter\'s folder',
    "enable_lora": 'lora = "…" next to id names the adapter\'s folder',
    "generation_config": "temperature, top_p and top_k next to id say how to sample",
}
# Flags that change speed or memory, not what is written, and so are not in an attempt's key.
SPEED = {
    "block_size",
    "cpu_offload_gb",
    "data_parallel_size",
    "disable_log_stats",
    "distributed_executor_backend",
    "download_dir",
    "enable_chunked_prefill",
    "enable_prefix_caching",
    "enforce_eager",
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "load_format",
    "max_lora_rank",
    "max_model_len",
    "max_num_batched_tokens",
    "max_num_seqs",
    "max_parallel_loading_workers",
    "pipeline_parallel_size",
    "safetensors_load_strategy",
    "swap_space",
}
MAX_LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # values that vLLM's flag accepts
# The prompt of the model `transformers` without a chat template: the messages, joined.
PLAIN_TEMPLATE = (
    "{% for m in messages %}{{ m['content'] }}{% if not loop.last %}\n\n{% endif %}{% endfor %}\n"
)
# Settings in config.json that don't change what a server computes.
VOLATILE = (
    "_name_or_path",
    "transformers_version",
    "dtype",
    "torch_dtype",
    "use_cache",
    "pad_token_id",
)


@dataclass(kw_only=True)
class Vllm(LocalWeights, Served):
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"  # auto: that of the weights
    lora: Path | None = not_in_key(None)  # folder of a LoRA adapter (PEFT), served without merging
    # for the chat template: { enable_thinking = false }
    template: dict[str, Any] = field(default_factory=dict)
    # other flags of vLLM: { max_model_len = 32768 }
    args: dict[str, Any] = field(default_factory=dict)
    tensor_parallel: int = not_in_key(1)  # GPUs that hold one copy of the weights
    # servers, each with `tensor_parallel` GPUs; they share the requests
    replicas: int = not_in_key(1)
    # the interpreter that has vLLM; default: $PONDER_VLLM, else this one
    python: str = not_in_key("")
    port: int | None = not_in_key(None)  # of the first server; default: a free one
    timeout: float = not_in_key(1800.0)  # seconds for one reply
    # where methods train these weights: cpu, cuda; vLLM finds its own
    device: str = not_in_key("cpu")
    concurrency: int = not_in_key(64)  # requests in progress at once, at all servers together

    example: ClassVar[dict[str, Any]] = {"id": "pocket"}

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.tensor_parallel, self.replicas) < 1:
            raise UserError("tensor_parallel and replicas must be at least 1")
        for name, value in self.args.items():
            instead = OWN_FLAGS.get(name.replace("-", "_"))
            if instead:
                message = f"`{name}` can't be in `args`: it has a setting of its own"
                raise UserError(message, hint=instead.format(json.dumps(value, default=str)))
        self._clients: dict[Path, VllmClient] = {}
        self._opening: asyncio.Lock | None = None

    def identity(self) -> dict[str, Any]:
        identity = super().identity()
        identity.pop("args", None)
        in_key = {}
        for name, value in self.args.items():
            if name.replace("-", "_") not in SPEED:
                in_key[name] = value
        if in_key:
            identity["args"] = in_key
        if self.lora:
            identity["lora"] = self._adapter()[1]
        return identity

    def title(self) -> str:
        title = super().title()
        if self.lora:
            title = f"{title} + {self.lora.name}"
        return title

    def gpus(self) -> float:
        return self.tensor_parallel * self.replicas

    def ready(self) -> None:
        super().ready()
        self._check_vllm()
        if self.lora:
            self._adapter()

    def _check_vllm(self) -> None:
        from_variable = not self.python and bool(os.environ.get("PONDER_VLLM"))
        check_vllm(self._python, from_variable=from_variable)

    @property
    def _python(self) -> str:
        return self.python or os.environ.get("PONDER_VLLM") or sys.executable

    def source(self, task: Task) -> Source:
        if self.lora:
            message = f"the weights of {self.title()} are in two parts, which methods can't change"
            hint = "merge the adapter first (peft: merge_and_unload), and leave out `lora`"
            raise UserError(message, hint=hint)
        return super().source(task)

    def weights(self, task: Task) -> Source:
        return super().weights(task)._replace(dtype=self.dtype)

    def with_adapter(self, weights: Path, adapter: Path) -> Self:
        other = self.with_weights(weights)
        other.lora = adapter
        return other

    def start(self, task: Task) -> Iterator[Progress]:
        launch, weights = self._wanted(task)
        group = yield from pool.take(launch, weights)
        group.release()

    def kept_open(self) -> AbstractContextManager[None]:
        return pool.held()

    def _wanted(self, task: Task) -> tuple[Launch, Weights]:
        """Return what to start, and the weights to load."""
        self._check_vllm()
        source = self.weights(task)
        if source.folder.suffix == ".gguf":
            source = source._replace(folder=as_folder(source))
        adapter = None
        if self.lora:
            adapter = self._adapter()
        files = list[tuple[str, str]]()
        if source.folder.is_dir():
            folder = source.folder
            weights = str(folder.resolve())
            content = weights_fingerprint(folder) or f"{weights}@{self.revision}"
            settings = _settings(folder)
            if not source.codec and not _template(folder):
                files.append(("--chat-template", PLAIN_TEMPLATE))
        else:
            weights = str(source.folder)
            content = f"{weights}@{self.revision}"
            settings = {"id": content}
        launch = Launch(
            self._python,
            tuple(self._flags()),
            settings,
            self.replicas,
            self.tensor_parallel,
            self.port,
            tuple(files),
        )
        return launch, Weights(weights, content, adapter)

    def _flags(self) -> list[str]:
        flags = ["--dtype", self.dtype, "--tensor-parallel-size", str(self.tensor_parallel)]
        # Ignore the weights' generation_config.json: the study's sampling settings apply.
        flags += ["--generation-config", "vllm"]
        if self.revision:
            flags += ["--revision", self.revision]
        if self.lora:
            rank = json.loads((self.lora / "adapter_config.json").read_text("utf-8"))["r"]
            max_rank = next((limit for limit in MAX_LORA_RANKS if limit >= rank), rank)
            flags += ["--enable-lora", "--max-lora-rank", str(max_rank)]
        for name, value in self.args.items():
            flag = name.replace("_", "-")
            if value is False:
                flags.append(f"--no-{flag}")
                continue
            flags.append(f"--{flag}")
            if isinstance(value, str):
                flags.append(value)
            elif value is not True:
                flags.append(json.dumps(value))
        return flags

    def _adapter(self) -> tuple[str, str]:
        """Return the adapter's folder, and its name on the server: a hash of its content."""
        assert self.lora is not None
        settings = self.lora / "adapter_config.json"
        weights = self.lora / "adapter_model.safetensors"
        if not settings.is_file() or not weights.is_file():
            message = f"there is no LoRA adapter in {self.lora}"
            hint = f"a folder with {settings.name} and {weights.name}, as peft saves it"
            raise UserError(message, hint=hint)
        content = digest(fingerprint(settings), fingerprint(weights))
        return str(self.lora.resolve()), content.hex()

    async def __aenter__(self) -> Self:
        self._clients = {}
        self._opening = asyncio.Lock()
        return self

    async def __aexit__(self, *error: object) -> None:
        for client in self._clients.values():
            await client.__aexit__(*error)
            await asyncio.to_thread(client.group.release)
        self._clients = {}

    async def complete(self, request: Request) -> Completion:
        source = self.weights(request.task)
        if source.folder not in self._clients:
            assert self._opening is not None
            async with self._opening:
                if source.folder not in self._clients:
                    client = await asyncio.to_thread(self._client, request.task, source.codec)
                    self._clients[source.folder] = await client.__aenter__()
        return await self._clients[source.folder].complete(request)

    def _client(self, task: Task, codec: str) -> VllmClient:
        """Return a client of running servers, which are started if need be."""
        launch, weights = self._wanted(task)
        group = _drained(pool.take(launch, weights))
        name = group.name
        if group.weights.adapter:
            name = group.weights.adapter[1]
        try:
            endpoint = Endpoint(
                id=name,
                url=tuple(f"{server.url}/v1" for server in group.each),
                budget=self.budget,
                temperature=self.temperature,
                top_p=self.top_p,
                concurrency=self.concurrency,
                timeout=self.timeout,
            )
            protocol = VllmChat(
                endpoint,
                group.each[0],
                top_k=self.top_k,
                template=self.template,
                count_prompt=self.prompt_tokens,
                codec_of=codec,
            )
        except (OSError, HTTPException) as error:
            group.release()
            raise ModelFailure(f"vLLM stopped answering: {error}") from None
        return VllmClient(endpoint, protocol, group)


def _drained(starting: Generator[Progress, None, ServerGroup]) -> ServerGroup:
    """Run a generator to its end and return its result."""
    while True:
        try:
            next(starting)
        except StopIteration as end:
            group: ServerGroup = end.value
            return group


def _template(folder: Path) -> str:
    """Return the chat template next to weights; "" if there is none."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text("utf-8")
    path = folder / "tokenizer_config.json"
    if path.is_file():
        return str(json.loads(path.read_text("utf-8")).get("chat_template") or "")
    return ""


def _settings(folder: Path) -> dict[str, Any]:
    """Return what a server can't change with the weights: architecture and chat template."""
    path = folder / "config.json"
    try:
        settings: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        hint = "id is a folder in the Hugging Face format, org/name on the hub, pocket or smollm2"
        raise UserError(f"can't read {path}: {error}", hint=hint) from None
    # Older files have these in two tables; that there are none matters too.
    rope: dict[str, Any] = {}
    rope |= settings.pop("rope_scaling", None) or {}
    rope |= settings.pop("rope_parameters", None) or {}
    theta = rope.pop("rope_theta", settings.pop("rope_theta", None))
    rope = {name: value for name, value in rope.items() if value != "default"}
    for name in VOLATILE:
        settings.pop(name, None)
    settings["rope"] = [theta, rope]
    settings["template"] = _template(folder)
    return settings
