"""Starts training processes with `accelerate launch`, and ends them when Ponder ends.

Checked before anything starts, because accelerate itself is silent about it: `--cpu --num_processes
2` starts one process, FSDP and DeepSpeed are ignored on a CPU, and too few GPUs show only once
every process has loaded its weights.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ponder.core import UserError
from ponder.core.text import count

SHARDED = ("FSDP", "DEEPSPEED", "MEGATRON_LM")
END_SECONDS = 20.0  # for the processes to end by themselves


@dataclass(frozen=True)
class Launch:
    """How many processes, on which devices, and the user's accelerate config, if there is one."""

    processes: int
    cpu: bool
    config: Path | None = None
    precision: Literal["float32", "bfloat16"] = "float32"
    sharding: str = ""  # FSDP or DEEPSPEED, if the config says so

    @classmethod
    def of(cls, settings: Any, device: str) -> Launch:
        """Return how a training's settings `launch` and `processes` start it.

        Raise `UserError` for what can't be started.
        """
        if settings.launch is None:
            launch = cls(settings.processes, device == "cpu", None, settings.precision)
            where = f"processes = {settings.processes}"
        else:
            content = _config(settings.launch)
            kind = str(content.get("distributed_type"))
            launch = cls(
                processes=content["num_processes"],
                cpu=bool(content.get("use_cpu")) or kind == "MULTI_CPU",
                config=settings.launch,
                precision=settings.precision,
                sharding=kind if kind in SHARDED else "",
            )
            where = str(settings.launch)
        available = devices()
        if not launch.cpu and launch.processes > available:
            have = count(available, "GPU") if available else "no GPU"
            raise UserError(
                f"{where} needs {count(launch.processes, 'GPU')}, and this machine has {have}",
                hint=launch._hint(available),
            )
        return launch

    def _hint(self, available: int) -> str:
        """Return what to do where there are too few GPUs."""
        if self.config is None:
            return 'lower `processes`, or train on the CPU: device = "cpu" under [[model]]'
        if not self.sharding:
            return "lower num_processes, or train on the CPU: use_cpu: true in the config"
        # A CPU can't share a model among processes.
        alternative = "leave out `launch` to train in one process"
        if available:
            return f"num_processes: {available}; or {alternative}"
        return f"train on a machine with GPUs; or {alternative}"

    def command(self, folder: Path, module: str, *arguments: str) -> list[str]:
        """Return the command that runs a module in every process.

        Without a config of the user, or on a CPU instead of it, one is written to the folder.
        """
        config = self.config
        if config is None or self.cpu:
            # On a CPU, several processes start only as MULTI_GPU; the environment then says that
            # there is none.
            kind = "MULTI_GPU" if self.processes > 1 else "NO"
            lines = [
                "compute_environment: LOCAL_MACHINE",
                f"distributed_type: '{kind}'",
                "num_machines: 1",
                f"num_processes: {self.processes}",
                "main_process_ip: 127.0.0.1",
                "use_cpu: false",
            ]
            config = folder / "accelerate.yaml"
            config.write_text("\n".join(lines) + "\n", "utf-8")
        precision = "bf16" if self.precision == "bfloat16" else "no"
        options = ["--config_file", str(config)]
        options += ["--main_process_port", str(_free_port())]
        options += ["--mixed_precision", precision]
        # torchrun leaves a folder, in /tmp if none is named
        options += ["--log_dir", str(folder)]
        launcher = [sys.executable, "-m", "accelerate.commands.launch", *options]
        return [*launcher, "-m", module, *arguments]

    def environment(self, threads: int) -> dict[str, str]:
        """Return the environment of the processes."""
        environment = dict(os.environ)
        # A folder called `transformers` where Ponder was started is not the package.
        environment["PYTHONSAFEPATH"] = "1"
        environment["TOKENIZERS_PARALLELISM"] = "false"
        if self.cpu:
            environment["ACCELERATE_USE_CPU"] = "true"
            environment["OMP_NUM_THREADS"] = str(threads)
        return environment


def _free_port() -> int:
    """Return a port that nobody uses.

    It is below those that the system gives to outgoing connections: until the launcher listens on
    it, which takes seconds, one of them could take it.
    """
    for _ in range(100):
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as unused, suppress(OSError):
            unused.bind(("127.0.0.1", port))
            return port
    raise UserError("no port between 20000 and 32000 is free for the training processes")


def devices() -> int:
    """Return the number of GPUs, or other accelerators, of this machine."""
    import torch

    return torch.accelerator.device_count()


def _config(path: Path) -> dict[str, Any]:
    """Return the content of an accelerate config for this machine alone."""
    import yaml

    hint = f"accelerate config --config_file {path} asks questions and writes one"
    try:
        content: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))
    except OSError as error:
        raise UserError(
            f"can't read the accelerate config {path}: {error.strerror}", hint=hint
        ) from None
    except (yaml.YAMLError, UnicodeError) as error:
        first_line = str(error).splitlines()[0]
        raise UserError(f"{path} is not YAML: {first_line}", hint=hint) from None
    number = None
    if isinstance(content, dict):
        number = content.get("num_processes")
    if not isinstance(number, int) or number < 1:
        raise UserError(f"{path} is not an accelerate config: it has no num_processes", hint=hint)
    machines = content.get("num_machines", 1)
    if machines != 1:
        raise UserError(
            f"{path} is for {machines} machines, and processes are started on this one only",
            hint="num_machines: 1",
        )
    kind = str(content.get("distributed_type"))
    if kind in SHARDED and content.get("use_cpu"):
        raise UserError(
            f"{path}: accelerate ignores {kind} on a CPU, where every process would hold the "
            "whole model",
            hint="use_cpu: false, or distributed_type: MULTI_CPU",
        )
    return content


@contextmanager
def started(
    command: list[str], environment: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Start processes that end with the block, and with this process however it ends.

    They hold the reading end of a pipe as standard input, see `end_with_parent`.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 our own command
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # Ctrl-C is for Ponder, which then ends them
        )
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def end_with_parent() -> None:
    """End this process when its standard input ends, which it does however the parent ends.

    Not PR_SET_PDEATHSIG, which follows the parent's thread and reaches the launcher, but not what
    the launcher started.
    """

    def wait() -> None:
        os.read(0, 1)  # not sys.stdin, whose lock Python wants when it ends
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
