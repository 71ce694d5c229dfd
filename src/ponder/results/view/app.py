"""The pages and their addresses.

/                                  the studies of every store
/STORE/STUDY                       its figures, findings and tables; filters in the address
/STORE/STUDY/attempts?…            a list; sorted, filtered and searched by its address
/STORE/STUDY/attempt/ID?…          a transcript, between its neighbours in that list
/STORE/STUDY/live                  server-sent events while a run writes
"""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from functools import cache
from typing import Any
from urllib.parse import quote, urlencode

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from ponder import __version__
from ponder.core import UserError
from ponder.results.charts import DrawnFigure
from ponder.results.html_pages import ASSETS, asset, templates
from ponder.results.study import Study
from ponder.results.view import pages
from ponder.results.view.estimates import Estimates, FigureRequest, figure_request
from ponder.results.view.queries import Query, chosen_cells
from ponder.results.view.stores import ViewedStore
from ponder.results.view.studies import ViewedStudy, progress, study_named

POLL = 0.25  # seconds; one look takes 10 µs
# seconds after which a line is sent though nothing changed, so that a dead connection is noticed
BEAT = 15.0
WINDOW = 60.0  # seconds over which the rate is measured
KINDS = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}


class View:
    """The page's server: the stores, the studies whose files were given, and the estimates made so
    far.
    """

    def __init__(self, stores: dict[str, ViewedStore], given: Sequence[Study] = ()) -> None:
        self.stores = stores
        self.given = given
        self.estimates = Estimates()
        self.stopping: Callable[[], bool] = lambda: False  # whether streams should end
        self._templates = templates()
        self._templates.globals |= {
            "version": __version__,
            "url": pages.address,
            "static": _static_address,
        }

    def application(self) -> Starlette:
        study = "/{store}/{study}"
        routes = [
            Route("/", self._page(self.home)),
            Route("/-/{file}", self.static),
            Route(f"{study}", self._page(self.study)),
            Route(f"{study}/figures", self._page(self.figures)),
            Route(f"{study}/attempts", self._page(self.attempts)),
            Route(f"{study}/attempt/{{id:int}}", self._page(self.attempt)),
            Route(f"{study}/compared", self._page(self.compared)),
            Route(f"{study}/compare", self._page(self.compare)),
            Route(f"{study}/figure/{{name}}.{{ending}}", self._page(self.picture)),
            Route(f"{study}/table/{{name}}/{{table}}.csv", self._page(self.table)),
            Route(f"{study}/live", self.live),
        ]
        handlers: dict[Any, Any] = {HTTPException: self.refused, Exception: self.broken}
        return Starlette(routes=routes, exception_handlers=handlers)

    def _page(self, page: Callable[[Request], Response]) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            try:
                return await run_in_threadpool(page, request)
            except UserError as error:
                return self._render(
                    "view/error.html", status=409, title="This can't be shown", error=error
                )

        return answer

    def _render(self, template: str, status: int = 200, **values: Any) -> HTMLResponse:
        return HTMLResponse(self._templates.get_template(template).render(values), status)

    async def refused(self, _: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        # Starlette's own words
        message = "there is no such page" if error.detail == "Not Found" else str(error.detail)
        problem = UserError(message, hint="start at the list of studies")
        return self._render("view/error.html", error.status_code, title="Not found", error=problem)

    async def broken(self, _: Request, error: Exception) -> Response:
        problem = UserError(
            f"{type(error).__name__}: {error}",
            hint="this is a bug in Ponder or in a plugin; please report it",
        )
        return self._render("view/error.html", 500, title="Something is wrong here", error=problem)

    def _study(self, request: Request) -> ViewedStudy:
        store = self.stores.get(request.path_params["store"])
        study = None
        if store:
            study = study_named(store, request.path_params["study"], self.given)
        if not study:
            raise HTTPException(404, "there is no such study here")
        if study.study is None:
            raise UserError(f"the study {study.name} can't be read: {study.error}")
        return study

    def close(self) -> None:
        self.estimates.close()
        for store in self.stores.values():
            store.close()

    def home(self, request: Request) -> Response:  # noqa: ARG002 as every page
        shelves = pages.shelves(self.stores.values(), self.given)
        stored_names = {card["study"].name for shelf in shelves for card in shelf.studies}
        not_run = [study.name for study in self.given if study.name not in stored_names]
        return self._render("view/home.html", title="Studies", shelves=shelves, not_run=not_run)

    def study(self, request: Request) -> Response:
        study = self._study(request)
        full_query = Query.read(request.url.query)
        query = full_query.of_cells()
        ready = self.estimates.ready(self._figure_request(study, query))
        figures = None
        tuning = None
        if ready is not None:
            figures = pages.figures(study, query, ready.figures)
            tuning = pages.tuning(study, ready)
        return self._render(
            "view/study.html",
            title=study.title,
            study=study,
            query=query,
            figures=figures,
            tuning=tuning,
            **pages.study_page(study, query, left_out=pages.left_out(full_query)),
        )

    def _download_request(self, study: ViewedStudy, request: Request) -> FigureRequest:
        """Return the figures of a download: the study's, or the comparison of two named models."""
        names = request.query_params
        if "a" in names and "b" in names:
            two = pages.chosen_pair(study, names["a"], names["b"])
            if two:
                return pages.pair_request(study, two)
        return self._figure_request(study, Query.read(request.url.query))

    def _figure_request(self, study: ViewedStudy, query: Query) -> FigureRequest:
        cells, _ = chosen_cells(study, query.chosen)
        if len(cells) == len(study.cells):
            return figure_request(study, None)
        return figure_request(study, sorted(cells))

    def figures(self, request: Request) -> Response:
        study = self._study(request)
        query = Query.read(request.url.query).of_cells()
        estimated = self.estimates.estimated(self._figure_request(study, query))
        return self._render(
            "figures.html",
            study=study,
            figures=pages.figures(study, query, estimated.figures),
            tuning=pages.tuning(study, estimated),
        )

    def attempts(self, request: Request) -> Response:
        study = self._study(request)
        query = Query.read(request.url.query)
        return self._render(
            "view/attempts.html",
            title=f"Attempts · {study.title}",
            study=study,
            query=query,
            **pages.attempts_page(study, query),
        )

    def attempt(self, request: Request) -> Response:
        study = self._study(request)
        query = Query.read(request.url.query)
        values = pages.attempt_page(study, query, request.path_params["id"])
        if values is None:
            raise HTTPException(404, "this study has no such attempt")
        title = f"Attempt {request.path_params['id']} · {study.title}"
        return self._render("view/attempt.html", title=title, study=study, query=query, **values)

    def compare(self, request: Request) -> Response:
        study = self._study(request)
        names = request.query_params
        two = pages.chosen_pair(study, names.get("a", ""), names.get("b", ""))
        if two is None:
            raise UserError("this study has only one model", hint="a comparison needs two")
        ready = self.estimates.ready(pages.pair_request(study, two))
        figures = None
        if ready is not None:
            figures = self._compared(study, two, ready.figures)
        return self._render(
            "view/compare.html",
            title=f"{two.b} and {two.a}",
            study=study,
            figures=figures,
            tuning=None,
            command=pages.compare_command(study, two),
            two=two,
            variants=pages.variant_names(study),
            kinds=pages.disagreements(study, two),
        )

    @staticmethod
    def _compared(
        study: ViewedStudy, two: pages.Pair, drawn: Sequence[DrawnFigure]
    ) -> list[dict[str, Any]]:
        return pages.figures(study, pages.pair_query(two), drawn, f"?{urlencode(two._asdict())}")

    def compared(self, request: Request) -> Response:
        study = self._study(request)
        names = request.query_params
        two = pages.chosen_pair(study, names.get("a", ""), names.get("b", ""))
        if two is None:
            raise HTTPException(404, "there is nothing to compare")
        estimated = self.estimates.estimated(pages.pair_request(study, two))
        figures = self._compared(study, two, estimated.figures)
        return self._render("figures.html", study=study, figures=figures, tuning=None)

    def picture(self, request: Request) -> Response:
        study = self._study(request)
        name = request.path_params["name"]
        ending = request.path_params["ending"]
        if ending not in pages.PICTURES:
            raise HTTPException(404, f"there is no picture of the kind {ending}")
        content = self.estimates.picture(self._download_request(study, request), name, ending)
        return _file(content, pages.PICTURES[ending], f"{study.name}-{name}.{ending}")

    def table(self, request: Request) -> Response:
        study = self._study(request)
        name = request.path_params["name"]
        table = request.path_params["table"]
        text = self.estimates.table(self._download_request(study, request), name, table)
        return _file(text.encode(), "text/csv; charset=utf-8", f"{study.name}-{name}-{table}.csv")

    async def live(self, request: Request) -> Response:
        study = await run_in_threadpool(self._study, request)
        return _events(study.store, study.name, self.given, self.stopping)

    async def static(self, request: Request) -> Response:
        name = request.path_params["file"]
        if name not in _static():
            raise HTTPException(404, "there is no such file")
        kind, plain, packed = _static()[name]
        headers = {
            "Cache-Control": "private, max-age=31536000, immutable",
            "Vary": "Accept-Encoding",
        }
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(packed, headers=headers | {"Content-Encoding": "gzip"}, media_type=kind)
        return Response(plain, headers=headers, media_type=kind)


class Rate:
    """Attempts per second over the last minute."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def add(self, answered: int, now: float) -> float | None:
        """Note a count, and return the rate once it can be known."""
        self._seen.append((now, answered))
        while len(self._seen) > 2 and now - self._seen[0][0] > WINDOW:
            self._seen.popleft()
        began, answered_then = self._seen[0]
        if now - began < 1 or answered <= answered_then:
            return None
        return (answered - answered_then) / (now - began)


def _events(
    store: ViewedStore, name: str, given: Sequence[Study], stopping: Callable[[], bool]
) -> StreamingResponse:
    """Stream events for as long as somebody listens."""

    def look(rate: Rate) -> str:
        study = study_named(store, name, given)
        if study is None or study.study is None:
            return "{}"
        return json.dumps(progress(study, rate.add(study.answered, time.monotonic())))

    async def events() -> AsyncIterator[str]:
        rate = Rate()
        last_state = None
        sent = time.monotonic()
        while not stopping():
            state = (store.version, store.running)
            if state != last_state:
                last_state = state
                began = time.monotonic()
                yield f"data: {await run_in_threadpool(look, rate)}\n\n"
                sent = time.monotonic()
                # At most a tenth of one core goes into looking, however large the store is.
                await asyncio.sleep(min(10.0, max(POLL, 9 * (sent - began))))
            elif time.monotonic() - sent > BEAT:
                sent = time.monotonic()
                yield ": still here\n\n"
            await asyncio.sleep(POLL)

    return StreamingResponse(events(), media_type="text/event-stream")


def _file(content: bytes, kind: str, name: str) -> Response:
    return Response(
        content,
        media_type=kind,
        headers={"Content-Disposition": f"attachment; filename*=utf-8''{quote(name)}"},
    )


@cache
def _static() -> dict[str, tuple[str, bytes, bytes]]:
    """Return the files that pages load, with and without compression: Vega is 822 kB, or 280."""
    files = {}
    for name in ("vega.js", *(path.name for path in ASSETS.iterdir())):
        content = asset(name).encode()
        kind = KINDS[name.rpartition(".")[2]]
        files[name] = (kind, content, gzip.compress(content, 9))
    return files


@cache
def _static_address(name: str) -> str:
    """With a digest of the file, so that a browser may keep it for good."""
    import zlib

    return f"/-/{name}?{zlib.crc32(_static()[name][1]):08x}"
