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
from collections.abc import Iterator
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
from ponder.models.vllm import servers as vllm_servers
from ponder.models.vllm.client import VllmClient
from ponder.models.vllm.server import Launch, Weights, check_vllm
from ponder.models.vllm.servers import ServerGroup

# Flags that have a setting of their own, or that Ponder sets.
OWN_FLAGS = {
    "model": 'id = "…" names the weights',
    "served_model_name": 'label = "…" beside id names the model in figures',
    "host": "servers run on this machine; the model `endpoint` asks one elsewhere",
    "port": "port = {} beside id",
    "dtype": "dtype = {} beside id",
    "tensor_parallel_size": "tensor_parallel = {} beside id",
    "revision": "revision = {} beside id",
    "lora_modules": 'lora = "…" beside id names the adapter\'s folder',
    "enable_lora": 'lora = "…" beside id names the adapter\'s folder',
    "generation_config": "temperature, top_p and top_k beside id say how to sample",
}
# Flags that change speed or memory, not what is written, and so are not in an attempt's key.
SPEED = {
    "gpu_memory_utilization", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "enforce_eager", "block_size",
    "swap_space", "cpu_offload_gb", "enable_prefix_caching", "enable_chunked_prefill", "pipeline_parallel_size",
    "data_parallel_size", "distributed_executor_backend", "load_format", "download_dir", "max_lora_rank",
    "kv_cache_memory_bytes", "disable_log_stats", "max_parallel_loading_workers", "safetensors_load_strategy",
}  # fmt: skip
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # largest ranks of an adapter that vLLM can be told
# As `transformers` asks a model without a chat template: the messages, joined.
PLAIN_TEMPLATE = (
    "{% for m in messages %}{{ m['content'] }}{% if not loop.last %}\n\n{% endif %}{% endfor %}\n"
)
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
            if instead := OWN_FLAGS.get(name.replace("-", "_")):
                hint = instead.format(json.dumps(value, default=str))
                raise UserError(
                    f"`{name}` can't be in `args`: it has a setting of its own", hint=hint
                )
        self._clients: dict[Path, VllmClient] = {}
        self._opening: asyncio.Lock | None = None

    def identity(self) -> dict[str, Any]:
        identity = super().identity()
        identity.pop("args", None)
        if changing := {k: v for k, v in self.args.items() if k.replace("-", "_") not in SPEED}:
            identity["args"] = changing
        return identity | ({"lora": self._adapter()[1]} if self.lora else {})

    def title(self) -> str:
        return super().title() + (f" + {self.lora.name}" if self.lora else "")

    def gpus(self) -> float:
        return self.tensor_parallel * self.replicas

    def ready(self) -> None:
        super().ready()
        self._check_vllm()
        if self.lora:
            self._adapter()

    def _check_vllm(self) -> None:
        check_vllm(
            self._python, from_variable=not self.python and bool(os.environ.get("PONDER_VLLM"))
        )

    @property
    def _python(self) -> str:
        return self.python or os.environ.get("PONDER_VLLM") or sys.executable

    def source(self, task: Task) -> Source:
        if self.lora:
            what = f"the weights of {self.title()} are in two parts, which methods can't change"
            raise UserError(
                what, hint="merge the adapter first (peft: merge_and_unload), and leave out `lora`"
            )
        return super().source(task)

    def weights(self, task: Task) -> Source:
        return super().weights(task)._replace(dtype=self.dtype)

    def with_adapter(self, weights: Path, adapter: Path) -> Self:
        other = self.with_weights(weights)
        other.lora = adapter
        return other

    def start(self, task: Task) -> Iterator[Progress]:
        servers = yield from vllm_servers.take(*self._wanted(task))
        servers.release()

    def kept_open(self) -> AbstractContextManager[None]:
        return vllm_servers.held()

    def _wanted(self, task: Task) -> tuple[Launch, Weights]:
        """What to start, and the weights to load."""
        self._check_vllm()
        source = self.weights(task)
        if source.folder.suffix == ".gguf":
            source = source._replace(folder=as_folder(source))
        folder = source.folder if source.folder.is_dir() else None
        weights = str(folder.resolve() if folder else source.folder)
        known = (weights_fingerprint(folder) if folder else None) or f"{weights}@{self.revision}"
        adapter = self._adapter() if self.lora else None
        plain = folder is not None and not source.codec and not _template(folder)
        launch = Launch(
            self._python,
            tuple(self._flags()),
            _settings(folder) if folder else {"id": known},
            self.replicas,
            self.tensor_parallel,
            self.port,
            (("--chat-template", PLAIN_TEMPLATE),) if plain else (),
        )
        return launch, Weights(weights, known, adapter)

    def _flags(self) -> Iterator[str]:
        yield from ("--dtype", self.dtype, "--tensor-parallel-size", str(self.tensor_parallel))
        # nothing is sampled otherwise than the study says
        yield from ("--generation-config", "vllm")
        if self.revision:
            yield from ("--revision", self.revision)
        if self.lora:
            rank = json.loads((self.lora / "adapter_config.json").read_text("utf-8"))["r"]
            yield from (
                "--enable-lora",
                "--max-lora-rank",
                str(next((r for r in RANKS if r >= rank), rank)),
            )
        for name, value in self.args.items():
            flag = name.replace("_", "-")
            if value is False:
                yield f"--no-{flag}"
            else:
                yield f"--{flag}"
                if value is not True:
                    yield value if isinstance(value, str) else json.dumps(value)

    def _adapter(self) -> tuple[str, str]:
        """The adapter's folder, and its name on the server: a hash of its content."""
        assert self.lora is not None
        files = [self.lora / name for name in ("adapter_config.json", "adapter_model.safetensors")]
        if not all(file.is_file() for file in files):
            hint = (
                "a folder with adapter_config.json and adapter_model.safetensors, as peft saves it"
            )
            raise UserError(f"there is no LoRA adapter in {self.lora}", hint=hint)
        return str(self.lora.resolve()), digest(*map(fingerprint, files)).hex()

    async def __aenter__(self) -> Self:
        self._clients, self._opening = {}, asyncio.Lock()
        return self

    async def __aexit__(self, *error: object) -> None:
        for client in self._clients.values():
            await client.__aexit__(*error)
            await asyncio.to_thread(client.servers.release)
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
        """A client of running servers, which are started if need be."""
        servers = _drained(vllm_servers.take(*self._wanted(task)))
        settings: dict[str, Any] = {
            "id": servers.weights.adapter[1] if servers.weights.adapter else servers.name,
            "url": tuple(f"{server.url}/v1" for server in servers.each),
            "servers": servers,
            "budget": self.budget,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "template": self.template,
            "codec_of": codec,
            "count_prompt": self.prompt_tokens,
            "concurrency": self.concurrency,
            "timeout": self.timeout,
        }
        try:
            return VllmClient(**settings)
        except (OSError, HTTPException) as error:
            servers.release()
            raise ModelFailure(f"vLLM stopped answering: {error}") from None


def _drained(starting: Any) -> ServerGroup:
    try:
        while True:
            next(starting)
    except StopIteration as end:
        servers: ServerGroup = end.value
        return servers


def _template(folder: Path) -> str:
    """The chat template beside weights; "" if there is none."""
    if (path := folder / "chat_template.jinja").is_file():
        return path.read_text("utf-8")
    path = folder / "tokenizer_config.json"
    return (
        str(json.loads(path.read_text("utf-8")).get("chat_template") or "")
        if path.is_file()
        else ""
    )


def _settings(folder: Path) -> dict[str, Any]:
    """What a server can't change with the weights: the model's settings and its chat template."""
    path = folder / "config.json"
    try:
        settings: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        hint = "id is a folder in the Hugging Face format, org/name on the hub, pocket or smollm2"
        raise UserError(f"can't read {path}: {error}", hint=hint) from None
    # Older files have these apart; that there are none matters too.
    rope = {
        **(settings.pop("rope_scaling", None) or {}),
        **(settings.pop("rope_parameters", None) or {}),
    }
    theta = rope.pop("rope_theta", settings.pop("rope_theta", None))
    rope = {key: value for key, value in rope.items() if value != "default"}
    known = {key: value for key, value in settings.items() if key not in VOLATILE}
    return known | {"rope": [theta, rope], "template": _template(folder)}
