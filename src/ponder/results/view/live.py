"""Server-sent events: how far a study is, whenever its store has changed. The run is another process."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from ponder.core import ENDINGS
from ponder.results.view.index import FAILED, OPEN
from ponder.results.view.stores import ViewedStore
from ponder.results.view.studies import ViewedStudy, study_named
from ponder.study.study import Study

POLL = 0.25  # seconds; one look takes 10 µs
BEAT = 15.0  # seconds after which a line is sent though nothing changed, so that a dead connection is noticed
WINDOW = 60.0  # seconds over which the rate is measured
FAILURES = 5


class Rate:
    """Attempts per second over the last minute."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def add(self, answered: int, now: float) -> float | None:
        """Note a count; the rate, once it can be known."""
        self._seen.append((now, answered))
        while len(self._seen) > 2 and now - self._seen[0][0] > WINDOW:
            self._seen.popleft()
        (then, before) = self._seen[0]
        elapsed = now - then
        return (answered - before) / elapsed if elapsed >= 1 and answered > before else None


def progress(study: ViewedStudy, rate: float | None = None) -> dict[str, Any]:
    """How far a study is, as JSON."""
    index, rows = study.index, study.rows
    ended = {name: int((index.ended[rows] == n).sum()) for n, name in enumerate(ENDINGS) if n != OPEN}
    left = None if study.asked is None else max(0, study.asked - study.answered)
    failed = rows[index.ended[rows] == FAILED][-FAILURES:][::-1]
    return {
        "state": study.state,
        "asked": study.asked,
        "answered": study.answered,
        "ended": ended,
        "tokens": study.runs.tokens,
        "cost": round(study.runs.cost, 4),
        "held_tokens": study.runs.held_tokens,
        "held_cost": round(study.runs.held_cost, 4),
        "currency": study.currency,
        "per_minute": None if rate is None else round(60 * rate, 1),
        "seconds_left": None if not rate or left is None else round(left / rate),
        "failures": [{"id": int(index.id[row]), "why": index.reasons[index.why[row]][:200]} for row in failed.tolist()],
        "version": list(study.version),
    }


def stream(store: ViewedStore, name: str, given: Sequence[Study], stopping: Callable[[], bool]) -> StreamingResponse:
    """Events for as long as somebody listens."""

    def look(rate: Rate) -> str:
        study = study_named(store, name, given)
        if study is None or study.study is None:
            return "{}"
        return json.dumps(progress(study, rate.add(study.answered, time.monotonic())))

    async def events() -> AsyncIterator[str]:
        rate, seen, sent, running = Rate(), None, time.monotonic(), None
        while not stopping():
            now = (store.version, store.running)
            if now != (seen, running):
                (seen, running), began = now, time.monotonic()
                yield f"data: {await run_in_threadpool(look, rate)}\n\n"
                sent = time.monotonic()
                # At most a tenth of one core goes into looking, however large the store is.
                await asyncio.sleep(min(10.0, max(POLL, 9 * (sent - began))))
            elif time.monotonic() - sent > BEAT:
                sent = time.monotonic()
                yield ": still here\n\n"
            await asyncio.sleep(POLL)

    return StreamingResponse(events(), media_type="text/event-stream")
