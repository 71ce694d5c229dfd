"""Builds the URL, the headers and the body of a request, and a preview for people to read.

What is sent has the secrets filled in; the preview has their names instead.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from yarl import URL

from ponder.core import Request, UserError
from ponder.core.secrets import REFERENCE, Secrets, check_sendable
from ponder.models.endpoint.protocol import Protocol
from ponder.models.endpoint.providers import PROVIDERS, provider_of_key

if TYPE_CHECKING:
    from ponder.models.endpoint import Endpoint


def connect(
    endpoint: Endpoint, protocol: Protocol, server_url: str, secrets: Secrets
) -> tuple[URL, dict[str, str]]:
    """Return a server's URL and the headers to send, with the secrets filled in."""
    key = ""
    if endpoint.key:
        key = secrets.fill(endpoint.key)
        _check_key(key, endpoint, server_url)
    headers = {"Content-Type": "application/json", **protocol.headers(key)}
    for name, value in endpoint.headers.items():
        headers[name] = secrets.fill(value)
    example = 'url = "http://127.0.0.1:8000/v1"'
    try:
        url = URL(secrets.fill_url(server_url))
    except ValueError:  # its text contains the URL
        raise UserError(f"{server_url} is not a valid URL", hint=example) from None
    if not url.host:
        raise UserError(f"{server_url} names no server", hint=example)
    if url.user or url.password:
        if "Authorization" in headers:
            message = "a request has one login: that in `url` or the key"
            raise UserError(message, hint="leave out one of the two")
        login = b64encode(f"{url.user or ''}:{url.password or ''}".encode()).decode()
        headers["Authorization"] = f"Basic {secrets.hide(login, 'LOGIN')}"
        url = url.with_user(None)
    if REFERENCE.search(server_url.partition("?")[2]):
        # percent-encoded as in the errors of aiohttp
        secrets.hide(url.raw_query_string, "QUERY")
    check_sendable(headers)
    return url, headers


def _check_key(key: str, endpoint: Endpoint, server_url: str) -> None:
    """Raise `UserError` if a key is another provider's, before it is sent there."""
    owner = provider_of_key(key)
    provider = endpoint.provider_name
    if owner and owner != provider and provider and PROVIDERS[provider].host:
        message = f"{endpoint.key} holds a key of {owner}, and {server_url} is {provider}'s"
        raise UserError(message, hint=f'key = "$NAME" names the variable with a key of {provider}')


def merged(fields: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with the fields of both, nested tables merged too; `overrides` win."""
    result = dict(fields)
    for name, value in overrides.items():
        inner = result.get(name)
        if isinstance(value, Mapping) and isinstance(inner, Mapping):
            result[name] = merged(inner, value)
        else:
            result[name] = value
    return result


class Preview(NamedTuple):
    """A request as it would be sent, with the names of secrets in their place."""

    url: str
    headers: dict[str, str]
    body: dict[str, Any]

    def text(self) -> str:
        lines = [f"POST {self.url}"]
        for name, value in self.headers.items():
            lines.append(f"{name}: {value}")
        body = msgspec.json.format(msgspec.json.encode(self.body), indent=2)
        return "\n".join([*lines, "", body.decode()])


def preview(endpoint: Endpoint, protocol: Protocol, request: Request) -> Preview:
    """Return what a client would send for a request to the first server; nothing is sent."""
    address, _, query = endpoint.urls[0].partition("?")
    parameters = []
    if query:
        parameters.append(query)
    for name, value in protocol.query.items():
        parameters.append(f"{name}={value}")
    url = f"{address.rstrip('/')}/{protocol.page}"
    if parameters:
        url = f"{url}?{'&'.join(parameters)}"
    headers = {"Content-Type": "application/json", **protocol.headers(endpoint.key or "")}
    headers |= endpoint.headers
    budget = smaller_budget(endpoint.budget, request.budget)
    fields = merged(protocol.payload(request, budget), endpoint.body)
    # through JSON, because messages are objects of Ponder's
    body = msgspec.json.decode(msgspec.json.encode(fields))
    return Preview(url, headers, body)


def smaller_budget(*budgets: int | None) -> int | None:
    """Return the smallest of some budgets, None among them being no limit."""
    limits = [budget for budget in budgets if budget is not None]
    return min(limits, default=None)
