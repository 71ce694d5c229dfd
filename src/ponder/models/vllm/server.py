"""One vLLM server on this machine: its process, its pages, and the weights that it is given.

It ends with this process, however that ends, and if it fails, the error has the cause from its log.
`servers.py` keeps servers running from one model to the next.
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
from ponder.models import _watchdog

MODULE = "vllm.entrypoints.openai.api_server"
OLDEST = (0, 11)  # the first release that returns token ids as asked here
INSTALL = 'pip install vllm, or python = "…/bin/python" (or $PONDER_VLLM): the interpreter of an environment that has it'
ANOTHER = 'PONDER_VLLM=…/bin/python: the interpreter of an environment that has vLLM; or python = "…" under [[model]]'
# What torchrun and accelerate tell the process that starts a server, which is no part of that
# training.
OF_A_LAUNCHER = re.compile(
    r"(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)$|MASTER_(ADDR|PORT)$|(TORCHELASTIC|ACCELERATE)_"
)
PROBE = "What is 17 + 25? Let x₁ = 3.5; écrivez « oui », 你好\n\tif x >= 0: return None"


class Weights(NamedTuple):
    """What a server holds."""

    path: str  # or `org/name` on the hub
    fingerprint: str
    # a LoRA adapter's folder, and its fingerprint, which is its name
    adapter: tuple[str, str] | None = None


@dataclass(frozen=True)
class Launch:
    """What a server is started with.

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
        """Whether its server can take the other's weights: files of one architecture leave out
        different defaults.
        """
        both = self.settings.keys() & other.settings.keys()
        return (
            self == other
            and bool(both)
            and all(self.settings[key] == other.settings[key] for key in both)
        )


@lru_cache
def check_vllm(python: str, *, from_variable: bool = False) -> None:
    """Raise `UserError` unless this interpreter, perhaps from $PONDER_VLLM, has a usable vLLM. vLLM
    isn't imported.
    """
    named, hint = (f"{python} ($PONDER_VLLM)", ANOTHER) if from_variable else (python, INSTALL)
    ask = "import importlib.util as u; s = u.find_spec('vllm'); print((s and s.origin) or '')"
    try:
        # Not in the current folder: one that is called `vllm` would be found there.
        done = subprocess.run(
            [python, "-c", ask], capture_output=True, text=True, check=False, cwd="/"
        )
    except OSError as error:
        raise UserError(f"can't run {named}: {error.strerror}", hint=hint) from None
    where = done.stdout.strip()
    if done.returncode or not where:
        raise UserError(
            f"{named} has no vLLM{': ' + done.stderr.strip()[-200:] if done.stderr else ''}",
            hint=hint,
        )
    try:
        text = (Path(where).parent / "_version.py").read_text("utf-8")
        version = text.partition("version = '")[2].partition("'")[0]
        parts = tuple(int(part) for part in version.split(".")[:2])
    except (OSError, ValueError):
        return  # a build of its own; what it lacks will show
    if parts < OLDEST:
        needed = ".".join(map(str, OLDEST))
        what = f"{named} has vLLM {version}, which is too old: {needed} is needed"
        raise UserError(what, hint=f"pip install 'vllm>={needed}'")


class VllmServer:
    """One process, at one port."""

    def __init__(self, launch: Launch, number: int, name: str, weights: Weights) -> None:
        self._launch, self._number, self._name = launch, number, name
        self._folder = Path(tempfile.mkdtemp(prefix="ponder-vllm-"))
        self._port = launch.port + number if launch.port else _free_port()
        self._check_port()
        self._weights, self.restarts = weights, 0
        self._start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def _check_port(self) -> None:
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                other.bind(("127.0.0.1", self._port))
            except OSError as error:
                what = f"port {self._port} can't be used for vLLM: {error.strerror}"
                raise UserError(what, hint="leave out `port`, and a free one is found") from None

    def _start(self) -> None:
        flags = [*self._launch.flags]
        for flag, text in self._launch.files:
            path = self._folder / flag.strip("-")
            path.write_text(text, "utf-8")
            flags += [flag, str(path)]
        place = [
            "--host",
            "127.0.0.1",
            "--port",
            str(self._port),
            "--served-model-name",
            self._name,
        ]
        command = [self._launch.python, "-m", MODULE, "--model", self._weights.path, *place, *flags]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", _watchdog.__file__, *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._folder,  # where no folder is called `vllm`, which Python would import
                env=self._environment(),
                start_new_session=True,  # so that Ctrl-C ends the run first
            )

    @property
    def _log(self) -> Path:
        return self._folder / "vllm.log"

    def _environment(self) -> dict[str, str]:
        ours = {
            "VLLM_SERVER_DEV_MODE": "1",  # the pages that load other weights
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
            "VLLM_NO_USAGE_STATS": "1",
            "PYTHONUNBUFFERED": "1",
        }
        if self._launch.replicas > 1:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            mine = range(self._number * self._launch.gpus, (self._number + 1) * self._launch.gpus)
            all_of_them = visible.split(",") if visible else [str(n) for n in range(mine.stop)]
            ours["CUDA_VISIBLE_DEVICES"] = ",".join(all_of_them[mine.start : mine.stop])
        inherited = {
            name: value for name, value in os.environ.items() if not OF_A_LAUNCHER.match(name)
        }
        return {"VLLM_HOST_IP": "127.0.0.1", **inherited, **ours}

    def healthy(self) -> bool:
        """Whether it answers; raises `UserError` if another server does in its place."""
        try:
            self.get("/health")
            listed = self.get("/v1/models")
        except (OSError, HTTPException):
            return False
        if self._name not in (served := _names(listed)):
            what = f"the server at {self.url} serves {served[:200] or 'no model'}, not the one started there"
            raise UserError(
                what, hint="another server has taken the port: leave out `port`, or choose another"
            )
        return True

    def check_tokens(self) -> None:
        """Raise `UserError` if it makes other token ids of a text than the tokenizer beside the
        weights.
        """
        path = Path(self._weights.path) / "tokenizer.json"
        if not path.is_file() or find_spec("tokenizers") is None:
            return
        from tokenizers import Tokenizer

        own = Tokenizer.from_file(str(path)).encode(PROBE, add_special_tokens=False).ids
        body = {"model": self._name, "prompt": PROBE, "add_special_tokens": False}
        if (theirs := self.post("/tokenize", body)["tokens"]) != own:
            what = f"vLLM's token ids don't match {path}: {theirs[:8]}… instead of {own[:8]}…"
            raise UserError(what, hint="does `args` name another tokenizer?")

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def failure(self, what: str) -> UserError:
        """The error for a server that ended, with the cause that its log names."""
        why, hint = cause(self._log.read_text("utf-8", "replace"), self._process.poll())
        return UserError(f"{what}: {encodable(why)} (log: {self._log})", hint=hint)

    def load(self, weights: Weights) -> bool:
        """Replace the weights, or the adapter on them; whether that worked."""
        before, self._weights = self._weights, weights
        try:
            if before[:2] != weights[:2]:
                if before.adapter or weights.adapter:
                    return False  # weights can't be reloaded below an adapter
                self.post(
                    "/collective_rpc",
                    {"method": "reload_weights", "kwargs": {"weights_path": weights.path}},
                )
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
        # missing one ends its engine; and its prefix cache can't tell two adapters of one name and
        # path apart.
        if old[1] != new[1]:
            self.load_adapter(new)
            self.post("/v1/unload_lora_adapter", {"lora_name": old[1]})

    def load_adapter(self, adapter: tuple[str, str]) -> None:
        """Serve a LoRA adapter under its fingerprint."""
        try:
            self.post("/v1/load_lora_adapter", {"lora_name": adapter[1], "lora_path": adapter[0]})
        except (OSError, HTTPException) as error:
            what = f"vLLM can't load the adapter {adapter[0]}: {error}"
            raise UserError(
                what, hint="a folder with adapter_config.json and adapter_model.safetensors"
            ) from None

    def restart(self, weights: Weights | None = None) -> None:
        self.stop(keep_log=True)
        self._weights = weights or self._weights
        self._start()

    def stop(self, *, keep_log: bool = False) -> None:
        """End it with all its processes: SIGTERM, and SIGKILL if that is ignored."""
        assert self._process.stdin is not None
        keep_log = keep_log or self.ended  # by itself: its log says why
        self._process.stdin.close()  # the keeper does the rest
        self._process.wait()
        if not keep_log:
            shutil.rmtree(self._folder, ignore_errors=True)

    def get(self, page: str) -> Any:
        return self._ask("GET", page)

    def post(self, page: str, body: Mapping[str, Any] | None = None) -> Any:
        return self._ask("POST", page, json.dumps(body or {}))

    def _ask(self, method: str, page: str, body: str | None = None) -> Any:
        """The JSON that a page answers, None if it is none; raises `OSError` or `HTTPException`."""
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


def _names(listed: Any) -> str:
    """The names in a list of models, which may be anything."""
    data = listed.get("data") if isinstance(listed, dict) else None
    return (
        ", ".join(str(one.get("id")) for one in data if isinstance(one, dict))
        if isinstance(data, list)
        else ""
    )


def _free_port() -> int:
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        port: int = any_port.getsockname()[1]
        return port


# Why a server ended. The last lines of its log only say that an engine failed; the cause is the
# first exception, mostly a worker's, before the exceptions of the processes that waited for it. A
# line of the log: (Worker pid=17) ERROR 11-17 12:10:39 [executor.py:953] ValueError: …
_PREFIX = re.compile(r"^(?:\([^)]*\) )?(?:(?:ERROR|WARNING|INFO) [\d-]+ [\d:]+ \[[^\]]*\] ?)?")
_EXCEPTION = re.compile(r"^(?:[\w.]+\.)?(\w*(?:Error|Exception|Interrupt)): (.+)")
_FOLLOWS = re.compile(
    r"initialization failed|failed to start|EngineDeadError|See (?:the )?(?:stack trace|root cause)"
)
_HINTS = (
    (r"[Aa]ddress already in use", "leave out `port`, and a free one is found"),
    (
        r"unrecognized arguments|invalid choice|argument --",
        "`args` holds flags of vLLM: args = { max_model_len = 8192 }",
    ),
    (
        r"attention configuration|head size",
        "this vLLM has no attention kernel for these weights on this machine",
    ),
    (r"max_model_len|max seq len|context length", "args = { max_model_len = 8192 }"),
    (
        r"out of memory|memory for|[Ff]ree memory|KV cache|cache blocks|[Aa]vailable memory|gpu_memory_utilization",
        "args = { gpu_memory_utilization = 0.8, max_model_len = 8192 }, or more GPUs; on a CPU $VLLM_CPU_KVCACHE_SPACE",
    ),
    (
        r"not recognize this architecture|not supported|[Ss]afetensor|deserializing|state_dict|Repo id|config\.json",
        "`id` must be weights that this vLLM can load: a folder in the Hugging Face format, or org/name on the hub",
    ),
)


def cause(log: str, code: int | None) -> tuple[str, str]:
    """What went wrong, and a hint."""
    lines = [_PREFIX.sub("", line) for line in log.splitlines()]
    why = _first_exception(lines) or _ending(lines, code)
    hint = next(
        (hint for pattern, hint in _HINTS if re.search(pattern, why)), "its log has the rest"
    )
    return why[:400], hint


def _first_exception(lines: list[str]) -> str:
    for n, line in enumerate(lines):
        if line.startswith("api_server.py: error: "):
            return line.removeprefix("api_server.py: error: ")
        if (match := _EXCEPTION.match(line)) and not _FOLLOWS.search(line):
            if "validation error" in line and n + 1 < len(lines):
                return lines[n + 1].strip().removeprefix("Value error, ")
            return f"{match[1]}: {match[2]}"
    return ""


def _ending(lines: list[str], code: int | None) -> str:
    if code in (137, -9):
        return "it was killed (SIGKILL), which is what Linux does to a process when memory runs out: out of memory"
    last = next((line.strip() for line in reversed(lines) if line.strip()), "its log is empty")
    return f"it ended with code {code}: {last}"
