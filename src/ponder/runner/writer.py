"""Stores attempts while a run goes on, in a thread: each batch is what arrived while the one before was written.

Two levels of safety, because the safer one costs more. An answer is committed within milliseconds of its arrival, which
`kill -9` can't undo: the operating system has the bytes. Four times a second the disk is told to keep them, which a
power cut can't undo.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Self

from ponder.runner.store import Done, Store

SYNC_SECONDS = 0.25
MOST = 64  # attempts that may wait to be written; a model that answers faster than the disk can write has to wait


class Writer:
    """Takes attempts and stores them. However the run ends, everything that was put here is stored."""

    def __init__(self, store: Store, run: int, spent: Callable[[], tuple[int, float, int]]) -> None:
        self._store, self._run, self._spent = store, run, spent
        self._batch: list[Done] = []
        self._arrived, self._changed = asyncio.Event(), asyncio.Event()
        self._writing = self._ended = False

    async def __aenter__(self) -> Self:
        self._work = asyncio.create_task(self._write())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._ended = True
        self._arrived.set()
        await self._work

    async def put(self, done: Done) -> None:
        self._batch.append(done)
        self._arrived.set()
        if len(self._batch) >= MOST:
            await self._until(lambda: len(self._batch) < MOST)
        if self._work.done():
            await self._work  # raises the error that ended it, such as a full disk

    async def flush(self) -> None:
        """Wait until everything is stored."""
        await self._until(lambda: not self._batch and not self._writing)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition() and not self._work.done():
            self._changed.clear()
            await self._changed.wait()

    async def _write(self) -> None:
        synced = monotonic()
        try:
            while self._batch or not self._ended:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._arrived.wait(), SYNC_SECONDS)
                self._arrived.clear()
                batch, self._batch, self._writing = self._batch, [], True
                sync = self._ended or monotonic() - synced >= SYNC_SECONDS
                await asyncio.to_thread(self._commit, batch, sync)
                synced = monotonic() if sync else synced
                self._writing = False
                self._changed.set()
        finally:
            self._changed.set()

    def _commit(self, batch: list[Done], sync: bool) -> None:
        if batch or sync:
            self._store.add(batch, self._run, self._spent())
        if sync:
            self._store.sync()
