"""Stops a run early without losing what was paid for.

Asked once (Ctrl-C, SIGTERM or SIGHUP), a run starts nothing new and gives the calls in progress
`grace` seconds to be answered. Asked twice, or when the time is over, it drops them. Either way,
everything that was answered is stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

T = TypeVar("T")
GRACE = 30.0  # seconds
SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]


class Stopped(Exception):
    """The run was asked to stop before this was sent or made."""


class Stop:
    """Whether a run has been asked to stop, and why."""

    def __init__(self, grace: float = GRACE, on_first_signal: Callable[[], object] = bool) -> None:
        self.grace = grace
        self._on_first_signal = on_first_signal
        self.asked = False
        self.error: Exception | None = None  # the error that stops the run
        self.signal: int | None = None  # the signal that stops it
        self._asked, self._now = asyncio.Event(), asyncio.Event()

    def ask(self, why: Exception | None = None) -> None:
        """Start nothing new. The first error is the one that is raised in the end."""
        self.error = self.error or why
        self.asked = True
        self._asked.set()

    def on_signal(self, number: int) -> None:
        """Start nothing new; the second time, drop what is in progress."""
        if self.signal is not None:
            self._now.set()
            return
        self.signal = number
        self.ask()
        self._on_first_signal()

    @contextlib.contextmanager
    def on_signals(self) -> Iterator[None]:
        """Listen for signals while the block runs.

        Where that isn't possible, in a thread, they act as usual.
        """
        loop = asyncio.get_running_loop()
        installed = []
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:  # `nohup` ignores SIGHUP
                    loop.add_signal_handler(number, self.on_signal, number)
                    installed.append(number)
        try:
            yield
        finally:
            for number in installed:
                loop.remove_signal_handler(number)

    async def unless_asked(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something, but end it at once if the run is asked to stop: raises `Stopped`."""
        task, stop = asyncio.create_task(work), asyncio.create_task(self._asked.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise Stopped
            return task.result()
        finally:
            task.cancel()
            stop.cancel()
            await asyncio.wait({task, stop})

    async def out_of_time(self) -> None:
        """Return when the run must drop what is in progress."""
        await self._asked.wait()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._now.wait(), self.grace)
