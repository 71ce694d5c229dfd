"""Asks a model whose weights are held by other processes, its hosts, on this machine or others.

A request goes to the host with the fewest in progress. A host may be lost at any time, with its
process or its whole machine; it is then left alone until it answers again, and its requests are
asked elsewhere. That isn't a failure of theirs, so nothing is stored of it. A model that loses
hosts again and again without an answer ends the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Protocol, Self

from ponder.core import Completion, Model, Request, Served, Task, UserError, Wrapped

# of a request, in its order
SENT = ("problem", "messages", "seed", "sample", "turn", "budget", "limit")
AGAIN = 1.0  # seconds until a lost host is looked at again
MAX_LOOKS = 600  # until it is given up
MAX_LOSSES = 5  # of one host in a row, without an answer of any


class HostLost(Exception):
    """The process or the machine of a host is gone. It may come back."""


class Host(Protocol):
    """One process that holds a model's weights."""

    async def open(self) -> None:
        """Wait until it can answer. Raises `HostLost`, or `UserError` if it never can."""

    async def complete(self, task: int, request: Request) -> Completion:
        """Answer a request.

        The task is told by its number: it may hold a whole benchmark. Raises `HostLost`.
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
        self._tasks, self._start, self._replicas = list(tasks), start, replicas

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
            self._in_progress[host] = self._losses[host] = 0
            self._look_after(host)
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
        nobody: Any = None
        # Functions of this process stay here. Local weights bill nothing, and don't call them.
        sent = Request(nobody, *(getattr(request, name) for name in SENT))
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
        """Leave a host alone until it answers again.

        Of all its requests that fail at once, the first says so.
        """
        if host not in self._open:
            return
        self._open.discard(host)
        self._losses[host] += 1
        if self._losses[host] < MAX_LOSSES:
            self._look_after(host)
        else:
            what = f"the process that holds {self.title()} ended {MAX_LOSSES} times without an answer: {why}"
            self._give_up(UserError(what, hint="is there enough memory for the weights?"))

    def _give_up(self, error: Exception) -> None:
        """End the run, unless another host answers."""
        self._error = self._error or error
        self._changed.set()

    def _look_after(self, host: Host) -> None:
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
    """A request as a host gets it, with its task."""
    return replace(request, task=task)
