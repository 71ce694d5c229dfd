"""Uses other processes, here or on other machines: to hold a model's weights and prepare models.

A request goes to the host with the fewest requests in progress. A host may be lost at any time,
with its process or its whole machine; it then gets no requests until it answers again, and those it
had go to other hosts. That isn't a failure of the attempts, so nothing is stored of it. A model
that loses hosts again and again without an answer ends the run.
"""

from __future__ import annotations

import asyncio
import math
import os
import pickle
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from ponder import __version__
from ponder.core import (
    Completion,
    Model,
    Progress,
    Request,
    Served,
    Task,
    UserError,
    Wrapped,
    plugins,
)
from ponder.core.metering import METER, CapReached, Meter
from ponder.models import models_folder
from ponder.run.caps import MOST, Account, Ledger, LedgerTill

# the fields of a request that are sent to a host
SENT = ("problem", "messages", "seed", "sample", "turn", "budget", "limit")
AGAIN = 1.0  # seconds until a lost host is tried again
MAX_LOOKS = 600  # tries until it is given up
MAX_LOSSES = 5  # of one host in a row, without an answer of any host


class HostLost(Exception):
    """The process or the machine of a host is gone. It may come back."""


class Host(Protocol):
    """One process that holds a model's weights."""

    async def open(self) -> None:
        """Wait until it can answer. Raises `HostLost`, or `UserError` if it never can."""

    async def complete(self, task: int, request: Request) -> Completion:
        """Answer a request.

        The task is named by its number: it may hold a whole benchmark. Raises `HostLost`.
        """

    def close(self) -> None:
        """End the process."""


class Hosted(Wrapped, Served):
    """A model that hosts answer for. They start what it needs."""

    def __init__(
        self, inner: Model, tasks: Sequence[Task], start: Callable[[], Host], replicas: int
    ) -> None:
        super().__init__(inner)
        self.concurrency = inner.concurrency * replicas
        self._tasks = list(tasks)
        self._start = start
        self._replicas = replicas

    async def __aenter__(self) -> Self:
        """Start the hosts, and wait until one of them can answer."""
        self._in_progress: dict[Host, int] = {}
        self._losses: dict[Host, int] = {}
        self._open: set[Host] = set()
        self._changed = asyncio.Event()
        self._error: Exception | None = None
        self._opening: set[asyncio.Task[None]] = set()
        for _ in range(self._replicas):
            host = self._start()
            self._in_progress[host] = 0
            self._losses[host] = 0
            self._reopen(host)
        try:
            await self._least_busy()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for task in self._opening:
            task.cancel()
        for host in self._in_progress:
            host.close()

    async def complete(self, request: Request) -> Completion:
        number = next(i for i, task in enumerate(self._tasks) if task is request.task)
        # The task and the functions that watch a request stay here. Local weights bill nothing,
        # and don't call these.
        no_task: Any = None
        sent = Request(no_task, **{name: getattr(request, name) for name in SENT})
        while True:
            host = await self._least_busy()
            self._in_progress[host] += 1
            try:
                completion = await host.complete(number, sent)
            except HostLost as lost:
                self._lost(host, lost)
            else:
                self._losses = dict.fromkeys(self._losses, 0)
                return completion
            finally:
                self._in_progress[host] -= 1

    async def _least_busy(self) -> Host:
        while not self._open:
            if self._error:
                raise self._error
            self._changed.clear()
            await self._changed.wait()
        return min(self._open, key=lambda host: self._in_progress[host])

    def _lost(self, host: Host, why: HostLost) -> None:
        """Send a host no more requests until it answers again.

        Of its requests that fail together, only the first counts as a loss.
        """
        if host not in self._open:
            return
        self._open.discard(host)
        self._losses[host] += 1
        if self._losses[host] < MAX_LOSSES:
            self._reopen(host)
        else:
            process = f"the process that holds {self.title()}"
            error = UserError(
                f"{process} ended {MAX_LOSSES} times without an answer: {why}",
                hint="is there enough memory for the weights?",
            )
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """End the run, unless another host answers."""
        self._error = self._error or error
        self._changed.set()

    def _reopen(self, host: Host) -> None:
        """Open a host in the background."""
        task = asyncio.create_task(self._until_open(host))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _until_open(self, host: Host) -> None:
        """Wait until a host can answer.

        A lost one may take minutes to come back, on another machine.
        """
        for _ in range(MAX_LOOKS):
            try:
                await host.open()
            except HostLost as lost:
                why = str(lost)
                await asyncio.sleep(AGAIN)
            except Exception as error:
                self._give_up(error)
                return
            else:
                self._open.add(host)
                self._changed.set()
                return
        hint = "are its nodes up? Run again to resume"
        self._give_up(UserError(f"no node holds {self.title()} any more: {why}", hint=hint))


def received(request: Request, task: Task) -> Request:
    """Return a request as a host gets it, with its task."""
    return replace(request, task=task)


def packed(*objects: Any) -> bytes:
    """Pickle objects for another process, with the environment that it needs to use them."""
    surroundings = {
        "version": __version__,
        "folder": Path.cwd(),
        "models": models_folder().absolute(),
        "files": plugins.from_files(),  # modules that can't be imported by their names
    }
    try:
        return pickle.dumps((surroundings, pickle.dumps(objects)))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        message = f"a task, model or method can't be sent to another process: {error}"
        hint = 'write it in a file of its own: name = "./mine.py"'
        raise UserError(message, hint=hint) from None


def unpacked(sent: bytes, node: str = "") -> Any:
    """Return the objects, in the other process; `node` names its machine in errors."""
    surroundings, objects = pickle.loads(sent)  # noqa: S301 from our own run
    shared = "the study's folder must be on storage that every node shares: docs/gpus.md"
    if surroundings["version"] != __version__:
        message = f"Ponder {__version__} is installed, and the run has {surroundings['version']}"
        raise UserError(message, where=node, hint="install the same version on every node")
    os.environ["PONDER_MODELS"] = str(surroundings["models"])
    if surroundings["folder"].is_dir():
        os.chdir(surroundings["folder"])  # paths in a study may be relative
    for path in surroundings["files"]:
        if not path.is_file():
            raise UserError(f"there is no file {path}", where=node, hint=shared)
        plugins.from_path(path)
    return pickle.loads(objects)  # noqa: S301


def making(sent: bytes, node: str = "") -> Iterator[Progress | Account | Exception]:
    """Yield the progress of `Method.make` in the other process, then what it has spent.

    An error is yielded too, in a form that can be sent.
    """
    till = LedgerTill(Ledger())
    try:
        method, model, allowance = unpacked(sent, node)
        if allowance is not None and allowance.tokens != MOST:
            till.ledger.max_tokens = allowance.tokens
        if allowance is not None and not math.isinf(allowance.cost):
            till.ledger.max_cost = allowance.cost
        METER.set(Meter(till))
        yield from method.make(model)
    except CapReached:
        yield till.account()
    except Exception as error:
        yield till.account()
        yield sendable(error)
    else:
        yield till.account()


def sendable(error: Exception) -> Exception:
    """Return the error itself if it can be sent, else one that says the same."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301
    except Exception:
        return RuntimeError("".join(traceback.format_exception(error)))
    if isinstance(error, UserError):
        return error
    error.add_note("".join(traceback.format_exception(error)))  # a traceback is not sent
    return error
