"""The batch jobs of two providers: their pages, and how requests, states and results are written.

OpenAI takes a file with a request per line, and writes two: replies and errors. Anthropic takes the
requests in the body, and writes one file. OpenAI's jobs carry Ponder's id as metadata. Anthropic's
have none, so a job is recognised by the ids of its requests, which are known when it has ended.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import aiohttp
import msgspec

from ponder.core import Job
from ponder.models.endpoint.anthropic import STATUS
from ponder.models.endpoint.failures import NoAnswer
from ponder.models.endpoint.reply import Malformed, as_count, decode_json
from ponder.models.endpoint.stream import lines, read_all

if TYPE_CHECKING:
    from ponder.models.endpoint.client import Client

METADATA = "ponder_job"  # the key of Ponder's id in OpenAI's metadata
CLOCK_ERROR = 3600.0  # seconds that the provider's clock may be behind this one
PAGE = 100  # jobs per page of a list


class BatchLine(NamedTuple):
    """The result of one request of a job: a response, or why there is none."""

    status: int  # HTTP status; 0 if the request was not processed
    content: bytes = b""
    why: str = ""  # why the request was not processed
    earlier: bool = False  # whether an earlier process has sent the job


class JobState(NamedTuple):
    """Whether a job has ended, and where its results are or why it was refused."""

    ended: bool
    pages: tuple[str, ...] = ()  # of its results
    # why it was refused as a whole, by the line of the request; None: no line in particular
    errors: Mapping[int | None, str] = {}
    too_many: bool = False  # whether it was refused because too much waits already


class JobSearch(NamedTuple):
    """The outcome of looking for a job at its provider."""

    remote: str = ""  # the provider's id, if it was found
    undecided: bool = False  # whether it may be a job whose requests can't be read yet


class BatchApi(ABC):
    """The pages of a provider's batch jobs."""

    max_requests: ClassVar[int]
    max_bytes: ClassVar[int]

    def __init__(self, client: Client) -> None:
        self._client = client

    @abstractmethod
    def line(self, name: str, payload: bytes) -> bytes:
        """Return a request of a job; `name` is its id in the results."""

    @abstractmethod
    async def create(self, job: Job, requests: Sequence[bytes]) -> str:
        """Send a job and return the provider's id."""

    @abstractmethod
    async def find(self, job: Job, other_ids: Collection[str]) -> JobSearch:
        """Look for a job that may have been sent; `other_ids` are those of known other jobs."""

    @abstractmethod
    async def state(self, remote: str) -> JobState:
        """Ask the provider for the state of a job."""

    @abstractmethod
    def read_line(self, content: bytes) -> tuple[str, BatchLine]:
        """Return the id of a request and its result; raise `msgspec.DecodeError`."""

    async def results(self, state: JobState) -> AsyncIterator[tuple[str, BatchLine]]:
        """Yield the results of a job that has ended, by the ids of their requests."""
        for page in state.pages:
            async with self._open("GET", page) as response:
                try:
                    async for content in lines(response.content.iter_any()):
                        try:
                            named_line = self.read_line(content)
                        except (msgspec.DecodeError, UnicodeDecodeError):
                            continue  # an empty line, or one that can't be read
                        yield named_line
                except (aiohttp.ClientError, OSError) as error:
                    raise NoAnswer(self._client.shown(f"lost the results: {error}")) from None

    @asynccontextmanager
    async def _open(
        self, method: str, page: str, query: Mapping[str, str] | None = None, data: Any = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        async with self._client.open_page(method, page, query or {}, data) as response:
            yield response

    async def _json(
        self, method: str, page: str, query: Mapping[str, str] | None = None, data: Any = None
    ) -> dict[str, Any]:
        async with self._open(method, page, query, data) as response:
            try:
                content = await read_all(response.content.iter_any())
                table = decode_json(content, msgspec.json.Decoder(dict[str, Any]))
            except (Malformed, aiohttp.ClientError, OSError) as error:
                raise NoAnswer(self._client.shown(str(error)), billed=True) from None
        return table

    async def _jobs_since(
        self, page: str, after: str, since: float
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield the jobs that were created since a moment, the newest first."""
        query = {"limit": str(PAGE)}
        while True:
            table = await self._json("GET", page, query)
            for job in table.get("data") or []:
                if _seconds(job.get("created_at")) < since:
                    return
                yield job
            if not table.get("has_more") or not table.get("last_id"):
                return
            query[after] = str(table["last_id"])


def _seconds(moment: Any) -> float:
    """Return a timestamp in seconds since 1970, from a number or an RFC 3339 text."""
    if isinstance(moment, str):
        return datetime.fromisoformat(moment).timestamp()
    return float(moment or 0)


class _Response(msgspec.Struct):
    status_code: int = 0
    body: msgspec.Raw = msgspec.Raw(b"{}")


class _OpenAILine(msgspec.Struct):
    custom_id: str
    response: _Response | None = None
    error: Any = None


class OpenAIBatches(BatchApi):
    """OpenAI's batches, of chat completions or responses."""

    max_requests = 50_000
    max_bytes = 200 * 10**6
    _decoder = msgspec.json.Decoder(_OpenAILine)

    def line(self, name: str, payload: bytes) -> bytes:
        page = f"/v1/{self._client.protocol.page}"
        head = {"custom_id": name, "method": "POST", "url": page}
        return msgspec.json.encode({**head, "body": msgspec.Raw(payload)})

    async def create(self, job: Job, requests: Sequence[bytes]) -> str:
        form = aiohttp.FormData()
        form.add_field("purpose", "batch")
        content = b"\n".join(requests) + b"\n"
        form.add_field("file", content, filename=f"ponder-{job.id}.jsonl")
        file = await self._json("POST", "files", data=form)
        body = {
            "input_file_id": file.get("id"),
            "endpoint": f"/v1/{self._client.protocol.page}",
            "completion_window": "24h",
            "metadata": {METADATA: job.id},
        }
        batch = await self._json("POST", "batches", data=msgspec.json.encode(body))
        return _remote(batch)

    async def find(self, job: Job, other_ids: Collection[str]) -> JobSearch:  # noqa: ARG002 the metadata tell
        async for batch in self._jobs_since("batches", "after", job.created - CLOCK_ERROR):
            if (batch.get("metadata") or {}).get(METADATA) == job.id:
                return JobSearch(_remote(batch))
        return JobSearch()

    async def state(self, remote: str) -> JobState:
        batch = await self._json("GET", f"batches/{remote}")
        status = batch.get("status")
        if status == "failed":
            return _refused_by_openai(batch)
        pages = []
        for field in ("output_file_id", "error_file_id"):
            if batch.get(field):
                pages.append(f"files/{batch[field]}/content")
        return JobState(status in ("completed", "expired", "cancelled"), tuple(pages))

    def read_line(self, content: bytes) -> tuple[str, BatchLine]:
        line = self._decoder.decode(content)
        if line.response is None:
            return line.custom_id, BatchLine(0, why=_message(line.error))
        body = bytes(line.response.body)
        return line.custom_id, BatchLine(line.response.status_code, body)


def _refused_by_openai(batch: Mapping[str, Any]) -> JobState:
    errors: dict[int | None, str] = {}
    too_many = False
    for error in (batch.get("errors") or {}).get("data") or []:
        number = as_count(error.get("line")) or None
        errors.setdefault(number, _message(error))
        too_many = too_many or error.get("code") == "token_limit_exceeded"
    return JobState(ended=True, errors=errors or {None: "it gives no reason"}, too_many=too_many)


class _Result(msgspec.Struct):
    type: str
    message: msgspec.Raw = msgspec.Raw(b"{}")
    error: msgspec.Raw = msgspec.Raw(b"{}")


class _AnthropicLine(msgspec.Struct):
    custom_id: str
    result: _Result


class AnthropicBatches(BatchApi):
    """Anthropic's message batches."""

    max_requests = 100_000
    max_bytes = 250 * 10**6  # 256 MB with what is around the requests
    _decoder = msgspec.json.Decoder(_AnthropicLine)

    def line(self, name: str, payload: bytes) -> bytes:
        return msgspec.json.encode({"custom_id": name, "params": msgspec.Raw(payload)})

    async def create(self, job: Job, requests: Sequence[bytes]) -> str:  # noqa: ARG002 it has no metadata
        content = b'{"requests":[' + b",".join(requests) + b"]}"
        return _remote(await self._json("POST", "messages/batches", data=content))

    async def find(self, job: Job, other_ids: Collection[str]) -> JobSearch:
        undecided = False
        async for batch in self._jobs_since(
            "messages/batches", "after_id", job.created - CLOCK_ERROR
        ):
            remote = _remote(batch)
            counts = batch.get("request_counts") or {}
            if remote in other_ids or sum(counts.values()) != len(job.requests):
                continue
            if batch.get("processing_status") != "ended":
                undecided = True
                continue
            if batch.get("archived_at"):
                continue
            async for name, _ in self.results(await self.state(remote)):
                if name.startswith(f"{job.id}-"):
                    return JobSearch(remote)
                break
        return JobSearch(undecided=undecided)

    async def state(self, remote: str) -> JobState:
        batch = await self._json("GET", f"messages/batches/{remote}")
        # Not `results_url`: the key would be sent wherever it leads.
        page = f"messages/batches/{remote}/results"
        return JobState(batch.get("processing_status") == "ended", (page,))

    def read_line(self, content: bytes) -> tuple[str, BatchLine]:
        line = self._decoder.decode(content)
        return line.custom_id, _anthropic_result(line.result)


def _anthropic_result(result: _Result) -> BatchLine:
    """Return the result of one request of a job of Anthropic's."""
    if result.type == "succeeded":
        return BatchLine(200, bytes(result.message))
    if result.type == "errored":
        body = msgspec.json.decode(result.error, type=dict[str, Any])
        error = body.get("error") or {}
        status = STATUS.get(error.get("type", ""), 400)
        return BatchLine(status, bytes(result.error))
    return BatchLine(0, why=f"the batch job has {result.type}")


def _remote(batch: Mapping[str, Any]) -> str:
    """Return the provider's id of a job."""
    remote = batch.get("id")
    # It becomes a part of an address.
    if not isinstance(remote, str) or not remote.replace("_", "").replace("-", "").isalnum():
        raise NoAnswer("the server's reply has no id of a batch job", billed=True)
    return remote


def _message(error: Any) -> str:
    if not isinstance(error, Mapping):
        return str(error)
    return f"{error.get('code')}: {error.get('message')}"
