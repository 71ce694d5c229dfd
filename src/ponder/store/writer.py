"""Stores attempts while a run goes on, in a thread: each batch is what arrived while the one before
was written.

Two levels of safety, because the safer one costs more. An answer is committed within milliseconds
of its arrival, which `kill -9` can't undo: the operating system has the bytes. Four times a second
the disk is told to keep them, which a power cut can't undo.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from time import monotonic
from typing import Self

from ponder.core import UserError
from ponder.store.store import Done, Recorded, Store, StoredJob

SYNC_SECONDS = 0.25
MAX_WAITING = (
    # attempts that may wait to be written; a model that answers faster than the disk can write has
    # to wait
    64
)


class Writer:
    """Takes attempts and stores them.

    However the run ends, everything that was put here is stored.
    """

    def __init__(self, store: Store, run: int, spent: Callable[[], Recorded]) -> None:
        self._store, self._run, self._spent = store, run, spent
        self.stored = 0  # attempts that have ended and are committed
        self._batch: list[Done] = []
        self._jobs: list[StoredJob] = []
        self._arrived, self._changed = asyncio.Event(), asyncio.Event()
        # how often somebody asked to have everything stored, and up to which it is
        self._asked = self._kept = 0
        self._ended = False
        # A thread of its own: graders may keep all those of the loop busy.
        self._thread = ThreadPoolExecutor(1)

    async def __aenter__(self) -> Self:
        self.work = asyncio.create_task(self._write())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._ended = True
        self._arrived.set()
        await self.work

    async def put(self, done: Done) -> None:
        self._batch.append(done)
        self._arrived.set()
        if len(self._batch) >= MAX_WAITING:
            await self._until(lambda: len(self._batch) < MAX_WAITING)
        if self.work.done():
            await self.work  # raises the error that ended it, such as a full disk

    async def put_job(self, job: StoredJob) -> None:
        """Store a job, and wait until it is stored."""
        self._jobs.append(job)
        await self.flush()

    async def flush(self) -> None:
        """Wait until everything is stored: attempts, and what the run has spent by now."""
        self._asked += 1
        mine = self._asked
        self._arrived.set()
        await self._until(lambda: self._kept >= mine)
        if self.work.done():
            await self.work

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition() and not self.work.done():
            self._changed.clear()
            await self._changed.wait()

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        synced = monotonic()
        try:
            ended = False
            while not ended or self._batch:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._arrived.wait(), SYNC_SECONDS)
                self._arrived.clear()
                # before the rest is looked at: what was spent by the end is stored too
                ended = self._ended
                batch = self._batch
                self._batch = []
                jobs = self._jobs
                self._jobs = []
                requests = self._asked
                sync = ended or monotonic() - synced >= SYNC_SECONDS
                spent = None
                if batch or sync or requests > self._kept:
                    spent = self._spent()
                await loop.run_in_executor(self._thread, self._commit, batch, spent, jobs, sync)
                if sync:
                    synced = monotonic()
                self._kept = requests
                self._changed.set()
        finally:
            self._changed.set()
            self._thread.shutdown()

    def _commit(
        self, batch: list[Done], spent: Recorded | None, jobs: list[StoredJob], sync: bool
    ) -> None:
        if spent:
            try:
                self._store.add(batch, self._run, spent, jobs)
                self._count(batch)
            except UserError:
                raise
            except Exception as error:  # one of them can't be stored; that must not lose the others
                self._one_by_one(batch, error)
        if sync:
            self._store.sync()

    def _count(self, committed: list[Done]) -> None:
        self.stored += sum(done.attempt.ended != "open" for done in committed)

    def _one_by_one(self, batch: list[Done], error: Exception) -> None:
        for done in batch:
            try:
                self._store.add([done])
                self._count([done])
            except UserError:
                raise
            except Exception as reason:
                error = reason
        raise UserError(
            f"an attempt can't be stored: {type(error).__name__}: {error}",
            hint="the others are stored; is a value of the task or model not JSON?",
        ) from error
