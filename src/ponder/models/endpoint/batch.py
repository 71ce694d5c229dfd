"""Sends an endpoint's requests in batch jobs, which take up to a day and cost half.

The life of a job:

1. Requests wait in a queue until none has come for a moment, or until a job is full.
2. The job gets an id of its own, and is stored with its requests (`Jobs.record`).
3. It is sent. The provider's id is stored (`Jobs.confirm`).
4. Its state is polled until it has ended, however long that takes: `timeout` doesn't apply.
5. Its results are read, in any order. A reply is that of an ordinary call. A line with an error is
   an ordinary error: a request that may succeed goes into the next job, within `retries`, and so do
   those that have expired.

A process may be killed at any moment. A request's id is a digest of what is sent, so the next run,
which makes the same requests again, finds those that are in stored jobs and waits for them there.
Killed between 2 and 3, a job may have been sent or not. It is then looked for in the provider's
list of jobs: its id is in every request's id there. Only if it isn't in that list, its requests are
sent again.

The two providers' pages and formats are in `batch_apis.py`.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import time
from asyncio import sleep
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from ponder.core import Job, Jobs, Request, UserError
from ponder.models.endpoint.batch_apis import BatchApi, BatchLine, JobState
from ponder.models.endpoint.failures import Kind, NoAnswer, WrongServer

if TYPE_CHECKING:
    from ponder.models.endpoint.client import Client

T = TypeVar("T")
COLLECT_SECONDS = 3.0  # without a new request, after which a job is sent
FIRST_POLL = 2.0  # seconds from sending a job to its first poll,
LONGEST_POLL = 60.0  # and between two polls at most
# Seconds after which a job that was sent appears in its provider's list of jobs.
LISTING_DELAY = 60.0
STAYS_OPEN = "run again to resume: answers of jobs that were sent are read then"


@dataclass(eq=False)
class _Waiting:
    """A request that waits for its line in a job's results."""

    payload: bytes
    request: Request
    line: asyncio.Future[BatchLine]

    def fail(self, error: Exception) -> None:
        if not self.line.done():
            self.line.set_exception(error)


@dataclass(eq=False)
class _OpenJob:
    """A job that is stored, and the requests of this process that wait for it."""

    job: Job
    waiting: dict[str, _Waiting] = field(default_factory=dict)
    task: asyncio.Task[None] | None = None
    earlier: bool = False  # whether an earlier process stored it
    refused: bool = False  # whether its requests wait for room in a later job


class Batches:
    """The batch jobs of one endpoint."""

    def __init__(self, client: Client, api: BatchApi, jobs: Jobs, server: str) -> None:
        self._client = client
        self._api = api
        self._jobs = jobs
        self._server = server
        self._max_requests = api.max_requests
        self._queue: dict[str, _Waiting] = {}
        self._waiting_count = 0  # requests in the queue or in a job
        self._arrived = asyncio.Event()
        # the job of each request; a request that is in no job goes to the queue
        self._open: dict[str, _OpenJob] = {}
        self._remotes: set[str] = set()  # the provider's ids of the jobs in the store
        for job in jobs.open_jobs(server):
            self._add(_OpenJob(job, earlier=True))
        self._sending: set[asyncio.Task[str]] = set()
        self._submitting = asyncio.create_task(self._submit())

    def _add(self, open_job: _OpenJob) -> None:
        for request_id in open_job.job.requests:
            self._open[request_id] = open_job
        if open_job.job.remote:
            self._remotes.add(open_job.job.remote)

    async def close(self) -> None:
        """Stop waiting. Jobs stay open; one that is being sent is sent, and its id is stored."""
        self._submitting.cancel()
        tasks: set[asyncio.Task[Any]] = {self._submitting, *self._sending}
        try:
            if self._sending:
                await asyncio.wait(self._sending)
        finally:
            for open_job in self._open.values():
                if open_job.task:
                    tasks.add(open_job.task)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    # A request

    async def ask(self, payload: bytes, request: Request) -> BatchLine:
        """Return the line of a request in the results of a job; raise `NoAnswer` if it has none."""
        request_id = self._free_id(payload, request)
        waiting = _Waiting(payload, request, asyncio.get_running_loop().create_future())
        open_job = self._open.get(request_id)
        if open_job is None:
            self._queue[request_id] = waiting
            self._arrived.set()
        else:
            open_job.waiting[request_id] = waiting
            self._follow(open_job)
        self._waiting_count += 1
        self._jobs.waiting(self._waiting_count)
        try:
            line = await waiting.line
        finally:
            self._queue.pop(request_id, None)
            open_job = self._open.get(request_id)
            if open_job:
                open_job.waiting.pop(request_id, None)
            self._waiting_count -= 1
            self._jobs.waiting(self._waiting_count)
        self._open.pop(request_id, None)
        self._jobs.answered(request_id, request)
        return line

    def _free_id(self, payload: bytes, request: Request) -> str:
        """Return an id for a request, which is the same in every process.

        Equal requests that wait at the same time get different ids.
        """
        text = f"{self._server} {request.seed} {request.sample} {request.turn} "
        content_digest = hashlib.sha256(text.encode() + payload).hexdigest()[:32]
        for number in itertools.count():
            request_id = f"{content_digest}-{number}"
            open_job = self._open.get(request_id)
            waits = request_id in self._queue or (open_job and request_id in open_job.waiting)
            if not waits:
                return request_id
        raise AssertionError("unreachable")

    # 1: the queue

    async def _submit(self) -> None:
        """Send a job whenever no new request has come for a moment, or a job is full."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while len(self._queue) < self._max_requests:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._arrived.wait(), COLLECT_SECONDS)
                if not self._arrived.is_set():
                    break
                self._arrived.clear()
            requests = self._next_requests()
            if requests:
                self._start(requests)
            if self._queue:
                self._arrived.set()

    def _next_requests(self) -> dict[str, _Waiting]:
        """Take requests for one job from the queue."""
        requests: dict[str, _Waiting] = {}
        size = 0
        for request_id, waiting in list(self._queue.items()):
            size += len(waiting.payload) + 300  # with what the line has around it
            if requests and (len(requests) == self._max_requests or size > self._api.max_bytes):
                break
            del self._queue[request_id]
            try:
                waiting.request.observer.sent(waiting.request)
            except Exception as error:  # the run stops, or a cap is reached
                waiting.fail(error)
                continue
            requests[request_id] = waiting
        return requests

    # 2 to 5: a job

    def _start(self, requests: dict[str, _Waiting]) -> None:
        job = Job(uuid4().hex[:12], self._server, time.time(), tuple(requests))
        open_job = _OpenJob(job, requests)
        self._add(open_job)
        # Before anything is awaited: the requests that are stored are those that are sent.
        to_store = {}
        lines = []
        for request_id, waiting in requests.items():
            to_store[request_id] = waiting.request
            lines.append(self._api.line(f"{job.id}-{request_id}", waiting.payload))
        begin = partial(self._begin, open_job, to_store, lines)
        open_job.task = asyncio.create_task(self._run_job(open_job, begin))

    def _follow(self, open_job: _OpenJob) -> None:
        """Wait for the results of a job that is in the store already."""
        if open_job.task is None or open_job.task.done():
            begin = partial(self._begin_again, open_job)
            open_job.task = asyncio.create_task(self._run_job(open_job, begin))

    async def _run_job(self, open_job: _OpenJob, begin: Callable[[], Awaitable[bool]]) -> None:
        """Send a job and read its results; an error fails every request that waits for it."""
        try:
            if await begin():
                await self._finish(open_job)
        except Exception as error:
            for waiting in list(open_job.waiting.values()):
                waiting.fail(error)

    async def _begin(
        self, open_job: _OpenJob, requests: dict[str, Request], lines: Sequence[bytes]
    ) -> bool:
        """Store a new job and send it; return False if nobody waits for it any more."""
        if not open_job.waiting:
            return False
        await self._jobs.record(open_job.job, requests)
        sending = asyncio.create_task(self._send(open_job, lines))
        self._sending.add(sending)
        sending.add_done_callback(self._sending.discard)
        await asyncio.shield(sending)
        await sleep(FIRST_POLL)
        return True

    async def _begin_again(self, open_job: _OpenJob) -> bool:
        """Return whether a stored job was sent; if it was not, its requests go to the queue."""
        await sleep(COLLECT_SECONDS)  # until others have come that wait for it too
        if open_job.job.remote:
            return True
        return await self._find_again(open_job)

    async def _finish(self, open_job: _OpenJob) -> None:
        """Wait until a job has ended, and read its results."""
        try:
            state = await self._ended(open_job)
            if state.too_many:
                await self._make_room(open_job, state)
            elif state.errors:
                self._refuse(open_job, state)
            else:
                await self._read(open_job, state)
        except WrongServer as error:
            job = f"the batch job {open_job.job.remote}"
            hint = (
                "with the key that sent it, its answers can be read; "
                "`ponder run --release-lost` forgets it, and asks again"
            )
            raise UserError(f"{job} can't be read: {error.what}", hint=hint) from None

    async def _send(self, open_job: _OpenJob, lines: Sequence[bytes]) -> str:
        """Send a job, and store the provider's id."""
        job = open_job.job
        remote: str | None = None
        tries = 0
        while remote is None:
            try:
                remote = await self._api.create(job, lines)
            except NoAnswer as failure:
                pause, why = self._client.back_off(failure, tries)
                if not pause:
                    raise UserError(f"a batch job can't be sent: {why}", hint=STAYS_OPEN) from None
                await sleep(pause)
                if failure.kind != "rate limit":  # else it may have been sent
                    remote = await self._find(job)
                tries += 1
        await self._confirm(open_job, remote)
        return remote

    async def _confirm(self, open_job: _OpenJob, remote: str) -> None:
        open_job.job = replace(open_job.job, remote=remote)
        self._remotes.add(remote)
        await self._jobs.confirm(open_job.job)

    async def _find(self, job: Job) -> str | None:
        """Return the provider's id of a job; None if the provider doesn't have it."""
        pause = FIRST_POLL
        while True:
            search = await self._patiently(partial(self._api.find, job, self._remotes))
            if search.remote:
                return search.remote
            age = time.time() - job.created
            if not search.undecided and age > LISTING_DELAY:
                return None
            await sleep(pause)
            pause = min(LONGEST_POLL, 1.5 * pause)

    async def _find_again(self, open_job: _OpenJob) -> bool:
        """Find a job that was stored and perhaps not sent; else put its requests in the queue."""
        remote = await self._find(open_job.job)
        if remote:
            await self._confirm(open_job, remote)
            return True
        await self._jobs.forget(open_job.job)
        self._requeue(open_job)
        return False

    def _requeue(self, open_job: _OpenJob) -> None:
        """End a job that has cost nothing; its requests go into the next one."""
        self._release(open_job)
        self._queue |= open_job.waiting
        open_job.waiting = {}
        self._arrived.set()

    def _release(self, open_job: _OpenJob) -> None:
        """Forget which job the requests of a job are in, so that they are sent again."""
        for request_id in open_job.job.requests:
            if self._open.get(request_id) is open_job:
                del self._open[request_id]

    async def _ended(self, open_job: _OpenJob) -> JobState:
        """Poll a job until it has ended."""
        pause = FIRST_POLL
        while True:
            state = await self._patiently(partial(self._api.state, open_job.job.remote))
            if state.ended:
                return state
            await sleep(pause)
            pause = min(LONGEST_POLL, 1.5 * pause)

    async def _read(self, open_job: _OpenJob, state: JobState) -> None:
        """Read a job's results, and give each line to the request that waits for it."""

        async def read() -> set[str]:
            """Return the requests that waited when reading began and have no line."""
            missing = set(open_job.waiting)
            async for name, line in self._api.results(state):
                job_id, _, request_id = name.partition("-")
                if job_id != open_job.job.id:
                    continue
                missing.discard(request_id)
                waiting = open_job.waiting.pop(request_id, None)
                if waiting and not waiting.line.done():
                    waiting.line.set_result(line._replace(earlier=open_job.earlier))
                    await sleep(0)  # let it be stored before all others are read
            return missing

        # Again for requests that came while the results were read, after their lines.
        while open_job.waiting:
            for request_id in await self._patiently(read):
                waiting = open_job.waiting.pop(request_id, None)
                if waiting is None:
                    continue
                self._open.pop(request_id, None)
                self._jobs.answered(request_id, waiting.request)
                why = f"the results of the batch job {open_job.job.remote} lack this request"
                waiting.fail(NoAnswer(why, billed=True))

    async def _make_room(self, open_job: _OpenJob, state: JobState) -> None:
        """Send the requests of a job again, which was refused because too much is enqueued.

        If other jobs are in progress, wait until one ends; if not, make the next job half as large.
        """
        in_progress = set[asyncio.Task[None]]()
        for other in self._open.values():
            if other is not open_job and other.task and not other.refused:
                in_progress.add(other.task)
        if in_progress:
            open_job.refused = True
            await asyncio.wait(in_progress, return_when=asyncio.FIRST_COMPLETED)
        elif len(open_job.job.requests) == 1:
            self._refuse(open_job, state)
            return
        else:
            self._max_requests = len(open_job.job.requests) // 2
        self._requeue(open_job)

    def _refuse(self, open_job: _OpenJob, state: JobState) -> None:
        """Fail the requests because of which the provider refused a job; send the others again.

        A refused job costs nothing.
        """
        if not state.too_many and set(state.errors) == {None}:
            reason = self._client.shown(state.errors[None])
            raise UserError(f"the server refuses a batch job: {reason}")
        errors = state.errors
        if open_job.earlier:
            # Its first requests may have left the store, so the line numbers no longer fit.
            errors = {}
        self._release(open_job)
        for number, request_id in enumerate(open_job.job.requests, 1):
            waiting = open_job.waiting.pop(request_id, None)
            if waiting is None:
                continue
            self._jobs.answered(request_id, waiting.request)
            why = errors.get(number) or errors.get(None) or "others in its job"
            message = self._client.shown(f"the server refuses a batch job: {why}")
            kind: Kind = "rate limit" if state.too_many else "error"
            waiting.fail(NoAnswer(message, kind, passing=number not in errors))

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat a call that only reads, until it succeeds; give up after `retries` in a row."""
        tries = 0
        while True:
            try:
                return await call()
            except NoAnswer as failure:
                pause, why = self._client.back_off(failure, tries)
                if not pause:
                    raise UserError(f"a batch job can't be read: {why}", hint=STAYS_OPEN) from None
                await sleep(pause)
                tries += 1
