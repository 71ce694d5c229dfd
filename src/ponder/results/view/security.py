"""Who may ask the page's server, and what a browser may do with its answers.

A token is needed, on this machine's own address too, which every user of the machine can reach: the
address that `ponder view` prints holds it once, and a cookie from then on. A host name that isn't
this machine's is refused, so that a web site can't read the page by pointing its own name at it
(DNS rebinding). The content security policy allows our own script and style files and nothing else:
text of a model that got past the escaping would still not run.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
