"""Models: one a file. Here is what those share that write their texts on this machine."""

from __future__ import annotations

import asyncio
import hashlib
import json
import queue
import threading
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ponder.core import UserError

if TYPE_CHECKING:
    from ponder.models.pocket.engine import Row


@lru_cache
def making_cost(folder: Path) -> dict[str, float]:
    """What the weights in a folder cost to make from others, and what was measured on the way, if Ponder made them."""
    path = folder / "made.json"
    made = json.loads(path.read_text("utf-8")) if path.is_file() else {"cost": {}, "measures": {}}
    return {name: float(value) for name, value in {**made["cost"], **made["measures"]}.items()}


def check_digest(folder: Path) -> None:
    """Raise `UserError` if the weights in a folder are not those that its card describes."""
    card = json.loads((folder / "card.json").read_text("utf-8"))
    if hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest() != card["digest"]:
        what = f"{folder / 'model.safetensors'} is damaged: its digest is not the one in card.json"
        raise UserError(what, hint="install Ponder again, or make the folder again")


class Writer(Protocol):
    """Writes many texts at once: rows join whenever there is room, and leave when they are done."""

    @property
    def busy(self) -> bool: ...

    @property
    def room(self) -> bool: ...

    def join(self, row: Row) -> None: ...

    def step(self) -> None: ...


class BatchWorker:
    """A writer at work, in a thread of its own from the first text on."""

    def __init__(self, writer: Callable[[], Writer]) -> None:
        self._writer = writer
        self._asked: queue.SimpleQueue[Row | None] = queue.SimpleQueue()
        self._waiting: set[asyncio.Future[Row]] = set()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)

    async def write(self, row: Row) -> Row:
        if self._error:
            raise self._error
        self._loop = asyncio.get_running_loop()
        written: asyncio.Future[Row] = self._loop.create_future()

        def tell(row: Row) -> None:
            if not written.done():  # nobody waits any more if the run was interrupted
                written.set_result(row)

        row.done = lambda row: self._loop.call_soon_threadsafe(tell, row)  # it runs in the writer's thread
        self._waiting.add(written)
        if not self._thread.ident:
            self._thread.start()
        self._asked.put(row)
        try:
            return await written
        finally:
            self._waiting.discard(written)

    async def close(self) -> None:
        self._asked.put(None)
        if self._thread.ident:
            await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        """Write texts until told to stop: take in what was asked whenever a row is free."""
        try:
            writer = self._writer()
            while True:
                while writer.room and (not writer.busy or not self._asked.empty()):
                    if (row := self._asked.get()) is None:
                        return
                    writer.join(row)
                if writer.busy:  # a text may end with its first word
                    writer.step()
        except Exception as error:
            self._error = error
            self._loop.call_soon_threadsafe(self._fail)

    def _fail(self) -> None:
        """Tell all who wait; nobody who comes later need wait."""
        for written in self._waiting:
            if not written.done():
                written.set_exception(self._error or RuntimeError("the writer stopped"))
