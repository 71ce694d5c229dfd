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
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from ponder.core import Job, Jobs, Request, UserError
from ponder.models.endpoint.batch_apis import BatchApi, Line, State
from ponder.models.endpoint.failures import Kind, NoAnswer, WrongServer

if TYPE_CHECKING:
    from ponder.models.endpoint.client import Client

T = TypeVar("T")
QUIET = 3.0  # seconds without a new request after which a job is sent
FIRST_POLL = 2.0  # seconds from sending a job to its first poll,
LONGEST_POLL = 60.0  # and between two polls at most
# Seconds after which a job that was sent is in its provider's list of jobs.
LISTED = 60.0
STAYS_OPEN = "run again to resume: answers of jobs that were sent are read then"


@dataclass(eq=False)
class _Waiting:
    """A request that waits for its line in a job's results."""

    payload: bytes
    request: Request
    line: asyncio.Future[Line]

    def fail(self, error: Exception) -> None:
        if not self.line.done():
            self.line.set_exception(error)


@dataclass(eq=False)
class _OpenJob:
    """A job that is stored, and the requests of this process that wait for it."""

    job: Job
    waiting: dict[str, _Waiting] = field(default_factory=dict)
    task: asyncio.Task[None] | None = None


class Batches:
    """The batch jobs of one endpoint."""

    def __init__(self, client: Client, api: BatchApi, jobs: Jobs, server: str) -> None:
        self._client = client
        self._api = api
        self._jobs = jobs
        self._server = server
        self._max_requests = api.max_requests
        self._queue: dict[str, _Waiting] = {}
        self._asked = 0  # requests that wait, in the queue or for a job
        self._arrived = asyncio.Event()
        # by request; one that is in no stored job goes to the queue
        self._open: dict[str, _OpenJob] = {}
        self._remotes: set[str] = set()  # the providers' ids of known jobs
        for job in jobs.open_jobs(server):
            self._add(_OpenJob(job))
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

    async def ask(self, payload: bytes, request: Request) -> Line:
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
        self._asked += 1
        self._jobs.waiting(self._asked)
        try:
            line = await waiting.line
        finally:
            self._queue.pop(request_id, None)
            open_job = self._open.get(request_id)
            if open_job:
                open_job.waiting.pop(request_id, None)
            self._asked -= 1
            self._jobs.waiting(self._asked)
        self._open.pop(request_id, None)
        self._jobs.answered(request_id, request)
        return line

    def _free_id(self, payload: bytes, request: Request) -> str:
        """Return the id of a request, the same in every process.

        Of equal requests that wait at the same time, each has another.
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
                    await asyncio.wait_for(self._arrived.wait(), QUIET)
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
        open_job.task = asyncio.create_task(self._guarded(open_job, new=True))

    def _follow(self, open_job: _OpenJob) -> None:
        """Wait for a job that an earlier process has sent."""
        if open_job.task is None or open_job.task.done():
            open_job.task = asyncio.create_task(self._guarded(open_job, new=False))

    async def _guarded(self, open_job: _OpenJob, *, new: bool) -> None:
        """Work on a job to its end; an error is that of every request that waits for it."""
        try:
            await self._work(open_job, new=new)
        except Exception as error:
            for waiting in list(open_job.waiting.values()):
                waiting.fail(error)

    async def _work(self, open_job: _OpenJob, *, new: bool) -> None:
        if new:
            requests = {name: waiting.request for name, waiting in open_job.waiting.items()}
            await self._jobs.record(open_job.job, requests)
            sending = asyncio.create_task(self._send(open_job))
            self._sending.add(sending)
            sending.add_done_callback(self._sending.discard)
            await asyncio.shield(sending)
            await sleep(FIRST_POLL)
        else:
            await sleep(QUIET)  # until others have come that wait for it too
            if not open_job.job.remote and not await self._find_again(open_job):
                return
        state = await self._ended(open_job)
        if state.errors:
            self._refuse(open_job, state)
            return
        await self._read(open_job, state)

    async def _send(self, open_job: _OpenJob) -> str:
        """Send a job, and store the provider's id."""
        job = open_job.job
        lines = []
        for request_id, waiting in open_job.waiting.items():
            lines.append(self._api.line(f"{job.id}-{request_id}", waiting.payload))
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
            if not search.undecided and age > LISTED:
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
        for request_id in open_job.job.requests:
            self._open.pop(request_id, None)
        self._queue |= open_job.waiting
        open_job.waiting = {}
        self._arrived.set()
        return False

    async def _ended(self, open_job: _OpenJob) -> State:
        """Poll a job until it has ended."""
        pause = FIRST_POLL
        while True:
            try:
                state = await self._patiently(partial(self._api.state, open_job.job.remote))
            except WrongServer as error:
                job = f"the batch job {open_job.job.remote}"
                hint = (
                    "with the key that sent it, its answers can be read; "
                    "`ponder run --release-lost` forgets it, and asks again"
                )
                raise UserError(f"{job} can't be read: {error.what}", hint=hint) from None
            if state.ended:
                return state
            await sleep(pause)
            pause = min(LONGEST_POLL, 1.5 * pause)

    async def _read(self, open_job: _OpenJob, state: State) -> None:
        """Give each line of a job's results to the request that waits for it."""

        async def read() -> None:
            async for name, line in self._api.results(state):
                job_id, _, request_id = name.partition("-")
                waiting = open_job.waiting.pop(request_id, None)
                if waiting and job_id == open_job.job.id and not waiting.line.done():
                    waiting.line.set_result(line)
                    await sleep(0)  # let it be stored before all others are read

        await self._patiently(read)
        for request_id, waiting in list(open_job.waiting.items()):
            self._open.pop(request_id, None)
            self._jobs.answered(request_id, waiting.request)
            why = f"the results of the batch job {open_job.job.remote} lack this request"
            waiting.fail(NoAnswer(why, billed=True))
        open_job.waiting = {}

    def _refuse(self, open_job: _OpenJob, state: State) -> None:
        """End a job that its provider has not begun, which costs nothing.

        Requests that it names are refused; the others go into the next job.
        """
        if state.too_many:
            self._max_requests = max(1, len(open_job.job.requests) // 2)
        elif None in state.errors and len(state.errors) == 1:
            shown = self._client.shown(state.errors[None])
            raise UserError(f"the server refuses a batch job: {shown}")
        for number, request_id in enumerate(open_job.job.requests, 1):
            self._open.pop(request_id, None)
            waiting = open_job.waiting.pop(request_id, None)
            if waiting is None:
                continue
            self._jobs.answered(request_id, waiting.request)
            why = state.errors.get(number) or state.errors.get(None) or "others in its job"
            shown = self._client.shown(f"the server refuses a batch job: {why}")
            kind: Kind = "rate limit" if state.too_many else "error"
            waiting.fail(NoAnswer(shown, kind, passing=number not in state.errors))

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
