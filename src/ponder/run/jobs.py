"""Keeps a run's batch jobs in its store, with what their requests reserve under the caps.

A request is in the store before it is sent, with the most that it may cost, and leaves it in the
transaction that stores its answer. So whenever a process is killed, each request that was sent is
counted once: with its job, or with its answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from ponder.core import Job, Jobs, Observer, Request
from ponder.run.caps import NOTHING, Ledger, Money
from ponder.run.progress import Tally
from ponder.store.store import JobRequest, Store, StoredJob
from ponder.store.writer import Writer


class JobObserver(Observer):
    """Observes the calls of one turn, which may be requests in jobs."""

    attempt = ""  # that the turn belongs to: cell, problem and sample

    def in_job(self, request_id: str, request: Request) -> Money:
        """Note that a request is in a stored job; return the most that it may cost."""
        raise NotImplementedError

    def out_of_job(self, request_id: str, request: Request) -> None:
        """Note that a request in a job has its answer, or an error."""
        raise NotImplementedError


class OpenRequests:
    """The requests in jobs that earlier runs have sent, by attempt."""

    def __init__(self, store: Store, ledger: Ledger, study: str) -> None:
        self.jobs = store.jobs()
        self._ledger = ledger
        self._amounts: dict[str, dict[str, Money]] = defaultdict(dict)
        for job in self.jobs:
            for request in job.requests:
                amount = NOTHING  # of other studies, or in runs without caps
                if job.study == study and ledger.jobs != NOTHING:
                    amount = Money(request.tokens, request.cost)
                self._amounts[request.attempt][request.id] = amount

    def take(self, attempt: str) -> dict[str, Money]:
        """Remove and return the requests of an attempt, with what they reserve.

        A call will wait for them.
        """
        return self._amounts.pop(attempt, {})

    def give_back(self, attempt: str, requests: Mapping[str, Money], *, counted: bool) -> None:
        """Put requests back that got no answer, because their jobs stay open.

        `counted` is whether the ledger still counts them as requests of earlier runs.
        """
        for request_id, amount in requests.items():
            self._amounts[attempt][request_id] = amount
            if not counted:
                self._ledger.jobs = self._ledger.jobs.plus(amount)

    def forget(self, job: StoredJob) -> None:
        """Forget a job that its provider never got."""
        for request in job.requests:
            amount = self._amounts[request.attempt].pop(request.id, NOTHING)
            self._ledger.jobs = self._ledger.jobs.minus(amount)


class StoredJobs(Jobs):
    """The jobs of one model in a run."""

    def __init__(
        self,
        earlier: OpenRequests,
        writer: Writer,
        tally: Tally,
        study: str,
        label: str,
    ) -> None:
        self._earlier = earlier
        self._writer = writer
        self._tally = tally
        self._study = study
        self._label = label
        self._stored: dict[str, StoredJob] = {job.id: job for job in earlier.jobs}

    def open_jobs(self, server: str) -> Sequence[Job]:
        jobs = []
        for job in self._stored.values():
            if job.server == server:
                requests = tuple(request.id for request in job.requests)
                jobs.append(Job(job.id, server, job.created, requests, job.remote))
        return jobs

    async def record(self, job: Job, requests: Mapping[str, Request]) -> None:
        rows = []
        for request_id, request in requests.items():
            observer = request.observer
            assert isinstance(observer, JobObserver)
            reserved = observer.in_job(request_id, request)
            row = JobRequest(request_id, observer.attempt, reserved.tokens, reserved.cost)
            rows.append(row)
        stored = StoredJob(job.id, self._study, job.server, job.remote, job.created, tuple(rows))
        self._stored[job.id] = stored
        await self._writer.put_job(stored)

    async def confirm(self, job: Job) -> None:
        stored = self._stored[job.id]._replace(remote=job.remote)
        self._stored[job.id] = stored
        await self._writer.put_job(stored)

    async def forget(self, job: Job) -> None:
        stored = self._stored.pop(job.id)
        self._earlier.forget(stored)
        await self._writer.put_job(stored._replace(requests=()))

    def answered(self, request_id: str, request: Request) -> None:
        observer = request.observer
        assert isinstance(observer, JobObserver)
        observer.out_of_job(request_id, request)

    def waiting(self, requests: int) -> None:
        self._tally.in_jobs[self._label] = requests
