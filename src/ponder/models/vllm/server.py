"""Starts one vLLM server on this machine, loads weights into it, and reads its log if it fails.

It ends with this process, however that ends, and if it fails, the error has the cause from its log.
`pool.py` keeps servers running from one model to the next.
"""
# ruff: noqa: S603 the user chooses the interpreter

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache
from http.client import HTTPConnection, HTTPException
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from ponder.core import UserError
from ponder.core.text import encodable
from ponder.models.vllm import watchdog

MODULE = "vllm.entrypoints.openai.api_server"
OLDEST = (0, 11)  # the first release that returns token ids as asked here
INSTALL = (
    'pip install vllm, or python = "…/bin/python" (or $PONDER_VLLM): the interpreter of an'
    " environment that has it"
)
OTHER_PYTHON = (
    "PONDER_VLLM=…/bin/python: the interpreter of an environment that has vLLM;"
    ' or python = "…" under [[model]]'
)
# Variables of torchrun and accelerate; a server is not a worker of the training that starts it.
LAUNCHER_VARIABLES = re.compile(
    r"(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)$|MASTER_(ADDR|PORT)$|(TORCHELASTIC|ACCELERATE)_"
)
PROBE = "What is 17 + 25? Let x₁ = 3.5; écrivez « oui », 你好\n\tif x >= 0: return None"


class Weights(NamedTuple):
    """The weights in a server."""

    path: str  # or `org/name` on the hub
    fingerprint: str
    # a LoRA adapter's folder, and its fingerprint, which is its name
    adapter: tuple[str, str] | None = None


@dataclass(frozen=True)
class Launch:
    """How a server is started.

    Models that differ only in their weights can use one server in turn.
    """

    python: str  # the interpreter that has vLLM
    flags: tuple[str, ...]
    settings: Mapping[str, Any] = field(compare=False)  # the model's own, chat template included
    replicas: int = 1
    gpus: int = 1  # per server
    port: int | None = None
    # flags whose value is the path of a file with this text
    files: tuple[tuple[str, str], ...] = ()

    def serves(self, other: Launch) -> bool:
        """Return whether its server can load the other's weights.

        Config files of one architecture leave out different defaults, so only the settings in both
        are compared.
        """
        both = self.settings.keys() & other.settings.keys()
        if self != other or not both:
            return False
        return all(self.settings[name] == other.settings[name] for name in both)


@lru_cache
def check_vllm(python: str, *, from_variable: bool = False) -> None:
    """Raise `UserError` unless an interpreter has a usable vLLM, which is not imported.

    `from_variable`: the interpreter is that of $PONDER_VLLM.
    """
    name = python
    hint = INSTALL
    if from_variable:
        name = f"{python} ($PONDER_VLLM)"
        hint = OTHER_PYTHON
    script = "import importlib.util as u; s = u.find_spec('vllm'); print((s and s.origin) or '')"
    try:
        # Not in the current folder: one that is called `vllm` would be imported.
        done = subprocess.run(
            [python, "-c", script], capture_output=True, text=True, check=False, cwd="/"
        )
    except OSError as error:
        raise UserError(f"can't run {name}: {error.strerror}", hint=hint) from None
    origin = done.stdout.strip()
    if done.returncode or not origin:
        message = f"{name} has no vLLM"
        if done.stderr:
            message = f"{message}: {done.stderr.strip()[-200:]}"
        raise UserError(message, hint=hint)
    try:
        text = (Path(origin).parent / "_version.py").read_text("utf-8")
        version = text.partition("version = '")[2].partition("'")[0]
        numbers = tuple(int(number) for number in version.split(".")[:2])
    except (OSError, ValueError):
        return  # a build of its own; what it lacks will show
    if numbers < OLDEST:
        needed = f"{OLDEST[0]}.{OLDEST[1]}"
        message = f"{name} has vLLM {version}, which is too old: {needed} is needed"
        raise UserError(message, hint=f"pip install 'vllm>={needed}'")


class VllmServer:
    """One process, at one port."""

    def __init__(self, launch: Launch, number: int, name: str, weights: Weights) -> None:
        self._launch = launch
        self._number = number  # among the replicas
        self._name = name
        self._folder = Path(tempfile.mkdtemp(prefix="ponder-vllm-"))
        self._port = launch.port + number if launch.port else _free_port()
        self._check_port()
        self._weights = weights
        self.restarts = 0
        self._start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def _check_port(self) -> None:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", self._port))
            except OSError as error:
                message = f"port {self._port} can't be used for vLLM: {error.strerror}"
                raise UserError(message, hint="leave out `port`, and a free one is found") from None

    def _start(self) -> None:
        command = [sys.executable, "-I", watchdog.__file__]
        command += [self._launch.python, "-m", MODULE, "--model", self._weights.path]
        command += ["--host", "127.0.0.1", "--port", str(self._port)]
        command += ["--served-model-name", self._name]
        command += self._launch.flags
        for flag, text in self._launch.files:
            path = self._folder / flag.strip("-")
            path.write_text(text, "utf-8")
            command += [flag, str(path)]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._folder,  # where no folder is called `vllm`, which Python would import
                env=self._environment(),
                start_new_session=True,  # so that Ctrl-C ends the run first
            )

    @property
    def log(self) -> Path:
        return self._folder / "vllm.log"

    def _environment(self) -> dict[str, str]:
        environment = {"VLLM_HOST_IP": "127.0.0.1"}
        for name, value in os.environ.items():
            if not LAUNCHER_VARIABLES.match(name):
                environment[name] = value
        environment |= {
            "VLLM_SERVER_DEV_MODE": "1",  # the pages that load other weights
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
            "VLLM_NO_USAGE_STATS": "1",
            "PYTHONUNBUFFERED": "1",
        }
        if self._launch.replicas > 1:
            start = self._number * self._launch.gpus
            end = start + self._launch.gpus
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            gpus = [str(number) for number in range(end)]
            if visible:
                gpus = visible.split(",")
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[start:end])
        return environment

    def healthy(self) -> bool:
        """Return whether it answers; raise `UserError` if another server has its port."""
        try:
            self.get("/health")
            models = self.get("/v1/models")
        except (OSError, HTTPException):
            return False
        names = _names(models)
        if self._name not in names:
            serves = names[:200] or "no model"
            message = f"the server at {self.url} serves {serves}, not the one started there"
            hint = "another server has taken the port: leave out `port`, or choose another"
            raise UserError(message, hint=hint)
        return True

    def check_tokens(self) -> None:
        """Raise `UserError` if its token ids differ from those of the weights' tokenizer.json."""
        path = Path(self._weights.path) / "tokenizer.json"
        if not path.is_file() or find_spec("tokenizers") is None:
            return
        from tokenizers import Tokenizer

        expected = Tokenizer.from_file(str(path)).encode(PROBE, add_special_tokens=False).ids
        body = {"model": self._name, "prompt": PROBE, "add_special_tokens": False}
        tokens = self.post("/tokenize", body)["tokens"]
        if tokens != expected:
            message = (
                f"vLLM's token ids don't match {path}: {tokens[:8]}… instead of {expected[:8]}…"
            )
            raise UserError(message, hint="does `args` name another tokenizer?")

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def failure(self, message: str) -> UserError:
        """Return the error for a server that ended, with the cause that its log names."""
        why, hint = cause(self.log.read_text("utf-8", "replace"), self._process.poll())
        return UserError(f"{message}: {encodable(why)} (log: {self.log})", hint=hint)

    def load(self, weights: Weights) -> bool:
        """Replace the weights, or the adapter on them; return whether that worked."""
        before = self._weights
        self._weights = weights
        try:
            if before[:2] != weights[:2]:
                if before.adapter or weights.adapter:
                    return False  # weights can't be reloaded below an adapter
                arguments = {"weights_path": weights.path}
                self.post("/collective_rpc", {"method": "reload_weights", "kwargs": arguments})
            elif before.adapter and weights.adapter:
                self._replace_adapter(before.adapter, weights.adapter)
            # else replies mix the old weights' cache and the new weights
            self.post("/reset_prefix_cache")
            self.check_tokens()
        except (OSError, HTTPException, UserError):
            return False
        return True

    def _replace_adapter(self, old: tuple[str, str], new: tuple[str, str]) -> None:
        # Not `load_inplace`: vLLM 0.32 then reads the files again whenever it generates, and a
        # missing file ends its engine; and its prefix cache can't distinguish two adapters of one
        # name and path.
        if old[1] != new[1]:
            self.load_adapter(new)
            self.post("/v1/unload_lora_adapter", {"lora_name": old[1]})

    def load_adapter(self, adapter: tuple[str, str]) -> None:
        """Serve a LoRA adapter under its fingerprint."""
        path, name = adapter
        try:
            self.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": path})
        except (OSError, HTTPException) as error:
            message = f"vLLM can't load the adapter {path}: {error}"
            hint = "a folder with adapter_config.json and adapter_model.safetensors"
            raise UserError(message, hint=hint) from None

    def restart(self, weights: Weights | None = None) -> None:
        self.stop(keep_log=True)
        self._weights = weights or self._weights
        self._start()

    def stop(self, *, keep_log: bool = False) -> None:
        """End it with all its processes: SIGTERM, and SIGKILL if that is ignored."""
        assert self._process.stdin is not None
        keep_log = keep_log or self.ended  # by itself: its log says why
        self._process.stdin.close()  # the watchdog does the rest
        self._process.wait()
        if not keep_log:
            shutil.rmtree(self._folder, ignore_errors=True)

    def get(self, page: str) -> Any:
        return self._ask("GET", page)

    def post(self, page: str, body: Mapping[str, Any] | None = None) -> Any:
        return self._ask("POST", page, json.dumps(body or {}))

    def _ask(self, method: str, page: str, body: str | None = None) -> Any:
        """Return a page's JSON, None if it isn't JSON; raise `OSError` or `HTTPException`."""
        with closing(HTTPConnection("127.0.0.1", self._port, timeout=600)) as connection:
            connection.request(method, page, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            content = response.read().decode("utf-8", "replace")
        if response.status != 200:
            raise OSError(f"HTTP {response.status}: {encodable(content)[:300]}")
        try:
            return json.loads(content)
        except ValueError:
            return None


def _names(models: Any) -> str:
    """Return the names in a list of models, which may be anything."""
    if not isinstance(models, dict) or not isinstance(models.get("data"), list):
        return ""
    names = [str(model.get("id")) for model in models["data"] if isinstance(model, dict)]
    return ", ".join(names)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# Why a server ended. The last lines of its log only say that an engine failed; the cause is the
# first exception, mostly a worker's, before the exceptions of the processes that waited for it. A
# line of the log: (Worker pid=17) ERROR 11-17 12:10:39 [executor.py:953] ValueError: …
_PREFIX = re.compile(r"^(?:\([^)]*\) )?(?:(?:ERROR|WARNING|INFO) [\d-]+ [\d:]+ \[[^\]]*\] ?)?")
_EXCEPTION = re.compile(r"^(?:[\w.]+\.)?(\w*(?:Error|Exception|Interrupt)): (.+)")
_FOLLOWS = re.compile(
    r"initialization failed|failed to start|EngineDeadError|See (?:the )?(?:stack trace|root cause)"
)
_MEMORY = (
    r"out of memory|memory for|[Ff]ree memory|KV cache|cache blocks|[Aa]vailable memory"
    r"|gpu_memory_utilization"
)
_UNKNOWN_WEIGHTS = (
    r"not recognize this architecture|not supported|[Ss]afetensor|deserializing|state_dict"
    r"|Repo id|config\.json"
)
_HINTS = {
    r"[Aa]ddress already in use": "leave out `port`, and a free one is found",
    r"unrecognized arguments|invalid choice|argument --": (
        "`args` holds flags of vLLM: args = { max_model_len = 8192 }"
    ),
    r"attention configuration|head size": (
        "this vLLM has no attention kernel for these weights on this machine"
    ),
    r"max_model_len|max seq len|context length": "args = { max_model_len = 8192 }",
    _MEMORY: (
        "args = { gpu_memory_utilization = 0.8, max_model_len = 8192 }, or more GPUs;"
        " on a CPU $VLLM_CPU_KVCACHE_SPACE"
    ),
    _UNKNOWN_WEIGHTS: (
        "`id` must be weights that this vLLM can load: a folder in the Hugging Face format,"
        " or org/name on the hub"
    ),
}


def cause(log: str, code: int | None) -> tuple[str, str]:
    """Return what went wrong, from a server's log and exit code, and a hint."""
    lines = [_PREFIX.sub("", line) for line in log.splitlines()]
    why = _first_exception(lines) or _ending(lines, code)
    for pattern, hint in _HINTS.items():
        if re.search(pattern, why):
            return why[:400], hint
    return why[:400], "see the end of its log"


def _first_exception(lines: list[str]) -> str:
    for number, line in enumerate(lines):
        if line.startswith("api_server.py: error: "):
            return line.removeprefix("api_server.py: error: ")
        match = _EXCEPTION.match(line)
        if match is None or _FOLLOWS.search(line):
            continue
        if "validation error" in line and number + 1 < len(lines):
            return lines[number + 1].strip().removeprefix("Value error, ")
        return f"{match[1]}: {match[2]}"
    return ""


def _ending(lines: list[str], code: int | None) -> str:
    if code in (137, -9):
        return (
            "it was killed (SIGKILL), which is what Linux does to a process when memory runs out:"
            " out of memory"
        )
    for line in reversed(lines):
        if line.strip():
            return f"it ended with code {code}: {line.strip()}"
    return f"it ended with code {code}: its log is empty"
