"""Starts training processes under `accelerate launch`: how many, on which devices, and that none
outlives Ponder.

Checked before anything starts, because accelerate itself is silent about it: `--cpu --num_processes
2` starts one process, FSDP and DeepSpeed are ignored on a CPU, and too few GPUs show only once
every process has loaded its weights.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ponder.core import UserError
from ponder.core.text import count

SHARDED = ("FSDP", "DEEPSPEED", "MEGATRON_LM")
END_SECONDS = 20.0  # for the processes to end by themselves


@dataclass(frozen=True)
class Launch:
    """How many processes, on which devices, and the accelerate config that says more, if there is
    one.
    """

    processes: int
    cpu: bool
    config: Path | None = None
    precision: Literal["float32", "bfloat16"] = "float32"

    @classmethod
    def of(cls, settings: Any, device: str) -> Launch:
        """From the settings `launch` and `processes` of a training; raises `UserError` for what
        can't be started.
        """
        content: dict[str, Any] = {}
        if settings.launch is None:
            launch = cls(settings.processes, device == "cpu", None, settings.precision)
            where = f"processes = {settings.processes}"
        else:
            content = _config(settings.launch)
            cpu = bool(content.get("use_cpu")) or content.get("distributed_type") == "MULTI_CPU"
            launch = cls(content["num_processes"], cpu, settings.launch, settings.precision)
            where = str(settings.launch)
        if not launch.cpu and launch.processes > (there := devices()):
            have = count(there, "GPU") if there else "no GPU"
            hint = "lower the number of processes, or train on the CPU: use_cpu: true in the config"
            if settings.launch is None:
                hint = 'lower `processes`, or train on the CPU: device = "cpu" under [[model]]'
            elif content.get("distributed_type") in SHARDED:  # which a CPU can't do
                fewer = f"num_processes: {there}" if there else "train on a machine with GPUs"
                hint = f"{fewer}; or leave out `launch` to train in one process"
            raise UserError(
                f"{where} needs {count(launch.processes, 'GPU')}, and this machine has {have}",
                hint=hint,
            )
        return launch

    def command(self, folder: Path, module: str, *arguments: str) -> list[str]:
        """Return the command that runs a module in every process.

        Without a config of the user, or on a CPU instead of it, one is written to the folder."""
        config = self.config
        if config is None or self.cpu:
            # On a CPU, several processes start only as MULTI_GPU; the environment then says that
            # there is none.
            kind = "MULTI_GPU" if self.processes > 1 else "NO"
            lines = {
                "compute_environment": "LOCAL_MACHINE",
                "distributed_type": f"'{kind}'",
                "num_machines": 1,
                "num_processes": self.processes,
                "main_process_ip": "127.0.0.1",
                "use_cpu": "false",
            }
            config = folder / "accelerate.yaml"
            config.write_text("".join(f"{key}: {value}\n" for key, value in lines.items()), "utf-8")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        precision = "bf16" if self.precision == "bfloat16" else "no"
        how = [
            "--config_file",
            str(config),
            "--main_process_port",
            port,
            "--mixed_precision",
            precision,
        ]
        how += ["--log_dir", str(folder)]  # torchrun leaves a folder, in /tmp if none is named
        return [sys.executable, "-m", "accelerate.commands.launch", *how, "-m", module, *arguments]

    def environment(self, threads: int) -> dict[str, str]:
        # a folder called `vllm` or `trl` where Ponder was started is not the package
        own = {"PYTHONSAFEPATH": "1"}
        own |= {"TOKENIZERS_PARALLELISM": "false", "TRL_EXPERIMENTAL_SILENCE": "1"}
        own |= {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": str(threads)} if self.cpu else {}
        return {**os.environ, **own}


def devices() -> int:
    """The GPUs, or other accelerators, of this machine."""
    import torch

    return torch.accelerator.device_count()


def _config(path: Path) -> dict[str, Any]:
    """The content of an accelerate config for this machine alone."""
    import yaml

    hint = f"accelerate config --config_file {path} asks questions and writes one"
    try:
        content: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))
    except OSError as error:
        raise UserError(
            f"can't read the accelerate config {path}: {error.strerror}", hint=hint
        ) from None
    except (yaml.YAMLError, UnicodeError) as error:
        first = str(error).splitlines()[0]
        raise UserError(f"{path} is not YAML: {first}", hint=hint) from None
    number = content.get("num_processes") if isinstance(content, dict) else None
    if not isinstance(number, int) or number < 1:
        raise UserError(f"{path} is not an accelerate config: it has no num_processes", hint=hint)
    if content.get("num_machines", 1) != 1:
        what = f"{path} is for {content['num_machines']} machines, and processes are started on this one only"
        raise UserError(what, hint="num_machines: 1")
    kind = str(content.get("distributed_type"))
    if kind in SHARDED and content.get("use_cpu"):
        what = f"{path}: accelerate ignores {kind} on a CPU, where every process would hold the whole model"
        raise UserError(what, hint="use_cpu: false, or distributed_type: MULTI_CPU")
    return content


@contextmanager
def started(
    command: list[str], environment: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Processes that end with the block, and with this process however it ends.

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
    """End this process when its standard input does: the system closes that pipe however the parent
    ends.

    Not PR_SET_PDEATHSIG, which follows the parent's thread and reaches the launcher, but not what
    the launcher started.
    """

    def wait() -> None:
        os.read(0, 1)  # not sys.stdin, whose lock Python wants when it ends
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
