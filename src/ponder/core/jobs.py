"""Batch jobs: requests that wait at a provider for up to a day, and that outlive a run.

A model sends and reads them; a run remembers them in its store, through `Jobs`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ponder.core.nouns import Request


@dataclass(frozen=True)
class Job:
    """Requests that are sent together. Its own id is known before the provider's."""

    id: str
    server: str  # where it was sent
    created: float  # seconds since 1970, just before it was sent
    requests: tuple[str, ...]  # ids of the requests that have no stored answer
    remote: str = ""  # the provider's id; "" until the provider has confirmed the job


class Jobs:
    """Remembers jobs. This base class forgets them: a process that is killed asks again."""

    def open_jobs(self, server: str) -> Sequence[Job]:  # noqa: ARG002 for subclasses
        """Return the jobs at a server that earlier processes have left."""
        return ()

    async def record(self, job: Job, requests: Mapping[str, Request]) -> None:
        """Store a job that is about to be sent, with its requests by their ids."""

    async def confirm(self, job: Job) -> None:
        """Store the provider's id of a job."""

    async def forget(self, job: Job) -> None:
        """Remove a job that its provider never got."""

    def answered(self, request_id: str, request: Request) -> None:
        """Note that a request has its answer, or an error: it leaves its job once that is stored."""

    def waiting(self, requests: int) -> None:
        """Report how many requests wait for a job; 0: none does any more."""
