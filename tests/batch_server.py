"""The batch jobs of OpenAI's and Anthropic's APIs, for the fake server.

A job is answered when it is created: each line is a call of the server's protocol, and is billed
then. It stays in progress until `GET /release` if the fault `hold_jobs` is set.

Faults of jobs: `job_errors` (fractions of the lines, by what they end with: a status, `expired` or
`missing`; each line only the first time it is sent), `job_failed` (errors of OpenAI's validation,
for the first job), `lose_job` (the first job is created, and the connection is gone before its id
is sent), `hold_results` (results stop after so many lines until `GET /release`), `gone_results`
(results can't be read any more), `max_job` and `max_enqueued` (a job of OpenAI's fails because too
many tokens are enqueued: it has more lines, or those in progress have). Results are in reverse
order.
"""

from __future__ import annotations

import itertools
import json
import time
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

NUMBERS = itertools.count(1)


def rfc(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat().replace("+00:00", "Z")


class Refused(Exception):
    """A line that the API refuses."""


class BatchServer:
    """Both providers' jobs. `server` is the fake server, which answers the lines."""

    def __init__(self, server: Any, protocols: dict[str, Any]) -> None:
        self.server = server
        self.protocols = protocols  # by page
        self.files: dict[str, bytes] = {}
        self.jobs: dict[str, dict[str, Any]] = {}  # as the API shows them
        self.results: dict[str, list[tuple[str, int, Any]]] = {}  # of Anthropic's jobs
        self.seen: set[str] = set()  # lines, without the job's id

    def add_to(self, router: web.UrlDispatcher) -> None:
        router.add_post("/v1/files", self.upload)
        router.add_get("/v1/files/{id}/content", self.content)
        router.add_post("/v1/batches", self.create_openai)
        router.add_get("/v1/batches", self.list_openai)
        router.add_get("/v1/batches/{id}", self.get_openai)
        router.add_post("/v1/messages/batches", self.create_anthropic)
        router.add_get("/v1/messages/batches", self.list_anthropic)
        router.add_get("/v1/messages/batches/{id}", self.get_anthropic)
        router.add_get("/v1/messages/batches/{id}/results", self.results_anthropic)

    @property
    def ended(self) -> bool:
        return self.server.released or not self.server.faults.get("hold_jobs")

    async def answer(self, page: str, name: str, body: dict[str, Any]) -> tuple[int, Any]:
        """The status of a line, 0 if it has expired, and the body of its response."""
        protocol = self.protocols[page]
        key = name.partition("-")[2]
        first = key not in self.seen
        self.seen.add(key)
        await self.server.count(lines=1)
        if first:
            draw = self.server.random.random()
            for fault, fraction in self.server.faults.get("job_errors", {}).items():
                draw -= fraction
                if draw < 0:
                    await self.server.count(**{f"lines_{fault}": 1})
                    if fault == "missing":
                        return -1, None
                    if fault == "expired":
                        return 0, None
                    error = {"error": {"message": f"fault {fault}", "type": "fault"}}
                    return int(fault), protocol.error(int(fault), f"fault {fault}") or error
        try:
            messages = protocol.messages(body)
            length = self.server.length(protocol, messages, body)
            reply = self.server.said(protocol, messages, length, body)
        except web.HTTPException as refused:
            return refused.status, json.loads(refused.text or "{}")
        await self.server.count(billed=1, billed_tokens=length.tokens, answered=1)
        return 200, reply

    async def created(self, request: web.Request) -> None:
        """Count a job; the fault `lose_job` drops the connection that would tell its id."""
        await self.server.count(jobs=1)
        if self.server.counts["jobs"] <= self.server.faults.get("lose_job", 0):
            if self.server.faults.get("hold_lost") and not self.server.released:
                await self.server.count(lost_job=1)
                async with self.server.changed:
                    await self.server.changed.wait_for(lambda: self.server.released)
            assert request.transport is not None
            request.transport.abort()

    # OpenAI

    async def upload(self, request: web.Request) -> web.Response:
        form = await request.post()
        if form.get("purpose") != "batch":
            return web.json_response({"error": {"message": "purpose"}}, status=400)
        file = form["file"]
        assert isinstance(file, web.FileField)
        return web.json_response(self.file(file.file.read(), file.filename, "batch"))

    def file(self, content: bytes, name: str, purpose: str) -> dict[str, Any]:
        number = f"file-{next(NUMBERS)}"
        self.files[number] = content
        return {
            "id": number,
            "object": "file",
            "bytes": len(content),
            "created_at": int(time.time()),
            "filename": name,
            "purpose": purpose,
            "status": "processed",
        }

    async def content(self, request: web.Request) -> web.StreamResponse:
        return await self.stream(request, self.files[request.match_info["id"]].splitlines())

    async def stream(self, request: web.Request, lines: list[bytes]) -> web.StreamResponse:
        if self.server.faults.get("gone_results"):
            return web.json_response({"error": {"message": "No such File object"}}, status=404)
        response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
        await response.prepare(request)
        await self.server.count(downloads=1)
        for number, line in enumerate(lines):
            if number == self.server.faults.get("hold_results") and not self.server.released:
                await self.server.count(held_results=1)
                async with self.server.changed:
                    await self.server.changed.wait_for(lambda: self.server.released)
            await response.write(line + b"\n")
        return response

    async def create_openai(self, request: web.Request) -> web.Response:
        body = await request.json()
        lines = [json.loads(line) for line in self.files[body["input_file_id"]].splitlines()]
        number = f"batch_{next(NUMBERS)}"
        now = int(time.time())
        job = {
            "id": number,
            "object": "batch",
            "endpoint": body["endpoint"],
            "errors": None,
            "input_file_id": body["input_file_id"],
            "completion_window": body["completion_window"],
            "status": "completed",
            "output_file_id": None,
            "error_file_id": None,
            "created_at": now,
            "expires_at": now + 86400,
            "metadata": body.get("metadata"),
            "request_counts": {"total": len(lines), "completed": 0, "failed": 0},
        }
        self.jobs[number] = job
        errors = []
        if self.server.counts["jobs"] == 0:
            errors = self.server.faults.get("job_failed", [])
        enqueued = len(lines)
        for other in self.jobs.values():
            if not self.ended and other["status"] != "failed" and other is not job:
                enqueued += other["request_counts"]["total"]
        too_large = len(lines) > self.server.faults.get("max_job", len(lines))
        if too_large or enqueued > self.server.faults.get("max_enqueued", enqueued):
            await self.server.count(too_many=1)
            errors = [{"code": "token_limit_exceeded", "message": "Enqueued token limit reached"}]
        if errors:
            job |= {"status": "failed", "errors": {"object": "list", "data": errors}}
        else:
            await self.answer_openai(job, lines)
        await self.created(request)
        return web.json_response(self.shown(job))

    async def answer_openai(self, job: dict[str, Any], lines: list[dict[str, Any]]) -> None:
        output = []
        failed = []
        for line in reversed(lines):
            assert line["url"] == job["endpoint"]
            status, body = await self.answer(line["url"], line["custom_id"], line["body"])
            result: dict[str, Any] = {"id": "batch_req_1", "custom_id": line["custom_id"]}
            if status > 0:
                response = {"status_code": status, "request_id": "req_1", "body": body}
                result |= {"response": response, "error": None}
            else:
                error = {"code": "batch_expired", "message": "This request expired."}
                result |= {"response": None, "error": error}
                job["status"] = "expired" if status == 0 else job["status"]
            if status == 200:
                output.append(json.dumps(result))
            elif status >= 0:
                failed.append(json.dumps(result))
        job["request_counts"] |= {"completed": len(output), "failed": len(failed)}
        for field, results in (("output_file_id", output), ("error_file_id", failed)):
            if results:
                content = "\n".join(results).encode()
                job[field] = self.file(content, "out.jsonl", "batch_output")["id"]

    def shown(self, job: dict[str, Any]) -> dict[str, Any]:
        if self.ended or job["status"] == "failed":
            return job
        return job | {"status": "in_progress", "output_file_id": None, "error_file_id": None}

    async def get_openai(self, request: web.Request) -> web.Response:
        await self.server.count(polls=1)
        job = self.jobs.get(request.match_info["id"])
        if job is None:
            return web.json_response({"error": {"message": "No batch found"}}, status=404)
        return web.json_response(self.shown(job))

    async def list_openai(self, request: web.Request) -> web.Response:
        await self.server.count(listed_jobs=1)
        return web.json_response(self.page(request, "after", self.shown))

    def page(self, request: web.Request, after: str, shown: Any) -> dict[str, Any]:
        jobs = list(reversed(self.jobs.values()))
        names = [job["id"] for job in jobs]
        start = names.index(request.query[after]) + 1 if after in request.query else 0
        data = [shown(job) for job in jobs[start : start + 2]]  # two on a page
        ids = [job["id"] for job in data]
        return {
            "object": "list",
            "data": data,
            "first_id": ids[0] if ids else None,
            "last_id": ids[-1] if ids else None,
            "has_more": start + 2 < len(jobs),
        }

    # Anthropic

    async def create_anthropic(self, request: web.Request) -> web.Response:
        body = await request.json()
        number = f"msgbatch_{next(NUMBERS)}"
        results = []
        for line in reversed(body["requests"]):
            assert len(line["custom_id"]) <= 64
            status, said = await self.answer("/v1/messages", line["custom_id"], line["params"])
            results.append((line["custom_id"], status, said))
        self.results[number] = results
        now = time.time()
        kinds = [self.kind(status) for _, status, _ in results]
        url = f"{request.scheme}://{request.host}/v1/messages/batches/{number}/results"
        self.jobs[number] = {
            "id": number,
            "type": "message_batch",
            "processing_status": "ended",
            "request_counts": {
                "processing": 0,
                **{
                    kind: kinds.count(kind)
                    for kind in ("succeeded", "errored", "canceled", "expired")
                },
            },
            "ended_at": rfc(now),
            "created_at": rfc(now),
            "expires_at": rfc(now + 86400),
            "archived_at": None,
            "cancel_initiated_at": None,
            "results_url": url,
        }
        await self.created(request)
        return web.json_response(self.shown_anthropic(self.jobs[number]))

    def kind(self, status: int) -> str:
        if status == 200:
            return "succeeded"
        return "errored" if status > 0 else "expired"

    def shown_anthropic(self, job: dict[str, Any]) -> dict[str, Any]:
        if self.ended:
            return job
        total = sum(job["request_counts"].values())
        counts = dict.fromkeys(job["request_counts"], 0) | {"processing": total}
        waiting = {"processing_status": "in_progress", "ended_at": None, "results_url": None}
        return job | waiting | {"request_counts": counts}

    async def get_anthropic(self, request: web.Request) -> web.Response:
        await self.server.count(polls=1)
        job = self.jobs.get(request.match_info["id"])
        if job is None:
            error = self.protocols["/v1/messages"].error(404, "no such batch")
            return web.json_response(error, status=404)
        return web.json_response(self.shown_anthropic(job))

    async def list_anthropic(self, request: web.Request) -> web.Response:
        await self.server.count(listed_jobs=1)
        return web.json_response(self.page(request, "after_id", self.shown_anthropic))

    async def results_anthropic(self, request: web.Request) -> web.StreamResponse:
        lines = []
        for name, status, said in self.results[request.match_info["id"]]:
            result: dict[str, Any] = {"type": self.kind(status)}
            if status == 200:
                result["message"] = said
            elif status > 0:
                result["error"] = said
            elif status < 0:
                continue
            lines.append(json.dumps({"custom_id": name, "result": result}).encode())
        return await self.stream(request, lines)
