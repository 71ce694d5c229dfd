"""Starts the page's server, and ends it in order: streams first, then the process that estimates.

Everybody on this machine can connect to it, so connections are limited before anything is known of
who connects: in number, and in the time until a request has arrived. Beyond the limit a new
connection takes the place of the one that has waited longest, so that connections without a request
can't keep a browser out.

Who may ask the page's server, and what a browser may do with its answers.

A token is needed, on this machine's own address too, which every user of the machine can reach: the
address that `ponder view` prints holds it once, and a cookie from then on. A host name that isn't
this machine's is refused, so that a web site can't read the page by pointing its own name at it
(DNS rebinding). The content security policy allows our own script and style files and nothing else:
text of a model that got past the escaping would still not run.
"""

from __future__ import annotations

import asyncio
import errno
import hmac
import ipaddress
import logging
import os
import secrets
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import uvicorn
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from ponder.core import UserError
from ponder.results.study import Study
from ponder.results.view.app import View
from ponder.results.view.stores import opened

REQUEST_SECONDS = 10.0  # until the headers of a request have arrived
MOST_CONNECTIONS = 1024
OTHER_FILES = 128  # file descriptors that are left for everything else, such as stores
MOST_MESSAGES = 100  # that asyncio may log
ACCEPTED_AT_ONCE = 16  # connections; the limit counts one only some turns of the event loop later


def bound(host: str, port: int) -> socket.socket:
    """Open a socket that listens; port 0 takes any that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen()
    except (OSError, OverflowError) as error:
        listening.close()
        why = getattr(error, "strerror", None) or str(error)
        in_use = getattr(error, "errno", None) in (errno.EADDRINUSE, errno.EACCES)
        hint = (
            "use another: --port 0 takes any free one"
            if in_use
            else "--host is an address of this machine"
        )
        raise UserError(f"can't serve on {host}, port {port}: {why}", hint=hint) from None
    return listening


def page_server(
    view: View,
    host: str,
    token: str,
    most_connections: int | None = None,
    request_seconds: float = REQUEST_SECONDS,
) -> uvicorn.Server:
    """Return the server of a page, ready to run.

    By default it holds as many connections as it may open files.
    """
    most = _connection_limit() if most_connections is None else most_connections

    class Connection(_Connection):
        most_connections = most
        seconds = request_seconds

    settings = uvicorn.Config(
        Guard(view.application(), host, token),
        http=Connection,
        loop="asyncio",
        backlog=ACCEPTED_AT_ONCE,
        log_level="error",  # warnings are about malformed requests, which anybody can send
        lifespan="off",
        ws="none",
        access_log=False,
        timeout_graceful_shutdown=2,
    )
    server = uvicorn.Server(settings)
    view.stopping = lambda: server.should_exit
    return server


def _connection_limit() -> int:
    """Return how many connections may be open, so that file descriptors are left for everything
    else.
    """
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return MOST_CONNECTIONS
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return max(ACCEPTED_AT_ONCE, min(MOST_CONNECTIONS, files - OTHER_FILES))


class _Connection(H11Protocol):
    """A connection with a deadline for its request; while it waits, a newer one may replace it."""

    most_connections: int
    seconds: float
    _deadline: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._deadline = self.loop.call_later(self.seconds, self._close)
        if len(self.connections) > self.most_connections:
            others = (other for other in self.connections if isinstance(other, _Connection))
            waiting = [other for other in others if other.waiting and other is not self]
            longest = min(
                waiting,
                key=lambda other: other._deadline.when() if other._deadline else 0,
                default=self,
            )
            longest._close()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self.waiting:
            self._cancel()

    def on_response_complete(self) -> None:
        self._cancel()
        if not self.transport.is_closing():
            self._deadline = self.loop.call_later(self.seconds, self._close)
        super().on_response_complete()  # begins the next request if it has arrived
        if not self.waiting:
            self._cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        super().connection_lost(exc)

    def _close(self) -> None:
        self.connections.discard(self)
        self.transport.abort()

    def _cancel(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def serve(
    listening: socket.socket,
    host: str,
    stores: Sequence[Path],
    given: Sequence[Study],
    told: Callable[[str], Any],
) -> None:
    """Serve until interrupted. `told` gets the address to open, with its token."""
    token = secrets.token_urlsafe(24)
    view = View(opened(stores), given)
    server = page_server(view, host, token)
    # A browser that keeps its connection open at the end is no error.
    logging.getLogger("uvicorn.error").addFilter(lambda _: not server.should_exit)
    # Without file descriptors asyncio would say so thousands of times a second.
    logging.getLogger("asyncio").addFilter(_FirstTime())
    view.estimates.warm()
    shown_host = host
    if host == "0.0.0.0":  # noqa: S104 all addresses of this machine
        shown_host = socket.gethostname()
    elif ":" in host:
        shown_host = f"[{host}]"
    told(f"http://{shown_host}:{listening.getsockname()[1]}/?token={token}")
    # The server sends itself the signal again that ended it, after the streams are closed; the rest
    # is to be ended too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        server.run(sockets=[listening])
    except KeyboardInterrupt:
        pass  # the usual way to end it
    finally:
        view.close()


class _FirstTime(logging.Filter):
    """Lets each message pass once."""

    def __init__(self) -> None:
        super().__init__()
        self._messages: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if message in self._messages or len(self._messages) >= MOST_MESSAGES:
            return False
        self._messages.add(message)
        return True


@contextmanager
def opening_file(address: str) -> Iterator[Path]:
    """Yield a file that leads a browser to the address; it is removed at the end.

    Only this user can read it. On a browser's command line the address would show its token to
    everybody (`ps`).
    """
    page = '<!doctype html><meta charset="utf-8"><title>Ponder</title><meta name="referrer" content="no-referrer">'
    page += f'<meta http-equiv="refresh" content="0; url={escape(address)}"><a href="{escape(address)}">Ponder</a>\n'
    with tempfile.TemporaryDirectory(prefix="ponder-view-") as folder:  # mode 0700
        file = Path(folder) / "open.html"
        with os.fdopen(
            os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
        ) as written:
            written.write(page)
        yield file


POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass
class Guard:
    """Checks each request, and adds the headers to each response."""

    app: ASGIApp
    host: str  # as the server is bound
    token: str

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self._answer(scope)(scope, receive, guarded)

    def _answer(self, scope: Scope) -> ASGIApp:
        if not self._known(Headers(scope=scope).get("host", "")):
            return PlainTextResponse(
                "This host name is not served here; use the address that ponder view printed.", 421
            )
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("Nothing can be changed here.", 405, {"Allow": "GET, HEAD"})
        request = Request(scope)
        if self._same(request.cookies.get(self._cookie(scope), "")):
            return self.app
        if self._same(request.query_params.get("token", "")):
            return self._admit(scope)
        return PlainTextResponse(
            "A token is needed: open the address that ponder view printed.", 403
        )

    def _same(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.token.encode())

    def _cookie(self, scope: Scope) -> str:
        # ports of a host share their cookies
        return f"ponder-{scope['server'][1] if scope.get('server') else 0}"

    def _admit(self, scope: Scope) -> ASGIApp:
        """Keep the token in a cookie, and take it out of the address, which people share."""
        query = [
            (k, v) for k, v in parse_qsl(scope["query_string"].decode("latin-1")) if k != "token"
        ]
        path = "/" + scope["path"].lstrip("/")  # `//name` would lead to another host
        answer = RedirectResponse(path + (f"?{urlencode(query)}" if query else ""), 303)
        # Lax: the file that `ponder view` opens in a browser is another site, from which a strict
        # one isn't sent.
        answer.set_cookie(self._cookie(scope), self.token, httponly=True, samesite="lax")
        return answer

    def _known(self, host: str) -> bool:
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        name = name.strip("[]").lower()
        if name == "localhost" or _is_loopback(name):
            return True
        if _is_loopback(self.host) or self.host == "localhost":
            return False
        mine = {self.host.lower(), socket.gethostname().lower(), socket.getfqdn().lower()}
        return name in mine or _is_address(name)  # no name, so nobody can have pointed it here


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_loopback(name: str) -> bool:
    return _is_address(name) and ipaddress.ip_address(name).is_loopback
