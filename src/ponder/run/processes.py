"""Makes preparations in several processes of this machine: `--jobs N`.

A process per preparation: `python -m ponder.run.processes` reads what to make, and writes its
progress. It ends when its standard input does, so at once if the run is killed; what it has made so
far is resumed by the next run.
"""

from __future__ import annotations

import asyncio
import pickle
import signal
import struct
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

from ponder.core import Method, Model, UserError
from ponder.run.caps import Money
from ponder.run.executors import Report
from ponder.run.workers import making, packed
from ponder.study.cell import Resources, StudyCell
from ponder.training.launch import end_with_parent


@dataclass
class Processes:
    """Makes up to `jobs` things at once. Models are asked in the run's own process."""

    jobs: int | None

    async def make(
        self,
        method: Method,
        model: Model,
        needs: Resources,  # noqa: ARG002 the interface's
        report: Report,
        allowance: Money | None = None,
    ) -> None:
        sent = packed(method, model, allowance)
        with tempfile.TemporaryFile() as errors:
            command = [sys.executable, "-P", "-m", __name__]
            pipe = asyncio.subprocess.PIPE
            process = await asyncio.create_subprocess_exec(
                *command, stdin=pipe, stdout=pipe, stderr=errors
            )
            try:
                await _listen(process, sent, report)
            finally:
                if process.returncode is None:
                    process.kill()
                code = await process.wait()
            if code:
                process_title = f"the process that made `{method.title()}` for {model.title()}"
                raise UserError(
                    f"{process_title} {_ended(code, errors)}",
                    hint="is there enough memory for so many at once? Run again to resume",
                )

    def hosted(self, cells: Sequence[StudyCell], model: Model) -> Model:  # noqa: ARG002 the interface's
        return model

    def queue(self, cell: StudyCell) -> str:
        return cell.model.server()


async def _listen(process: asyncio.subprocess.Process, sent: bytes, report: Report) -> None:
    """Send a process what to make, and report its progress until it ends."""
    assert process.stdin
    assert process.stdout
    try:
        process.stdin.write(struct.pack("!Q", len(sent)) + sent)
        await process.stdin.drain()
        while True:
            (size,) = struct.unpack("!Q", await process.stdout.readexactly(8))
            content = await process.stdout.readexactly(size)
            message = pickle.loads(content)  # noqa: S301 from our own process
            if isinstance(message, Exception):
                raise message
            report(message)
    except (asyncio.IncompleteReadError, ConnectionError):  # it has ended
        await process.wait()


def _ended(code: int, errors: IO[bytes]) -> str:
    """Describe how a process ended, with the last line of its standard error."""
    errors.seek(0)
    last_line = errors.read().decode(errors="replace").strip().rpartition("\n")[2]
    ending = f"ended with exit code {code}"
    if code < 0:
        ending = f"was killed by {signal.Signals(-code).name}"
    if last_line:
        ending += f": {last_line}"
    return ending


def _serve() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run, which decides what ends
    out = sys.stdout.buffer
    sys.stdout = sys.stderr  # what a plugin prints must not get into the messages
    (size,) = struct.unpack("!Q", sys.stdin.buffer.read(8))
    sent = sys.stdin.buffer.read(size)
    end_with_parent()
    for message in making(sent):
        content = pickle.dumps(message)
        out.write(struct.pack("!Q", len(content)) + content)
        out.flush()


if __name__ == "__main__":
    _serve()
