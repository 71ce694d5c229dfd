"""Classifies failed tries at an endpoint: worth repeating, perhaps billed, or a setting to change.

A refusal (429, 500, 503) costs nothing. A timeout, a connection that is cut, a gateway's error or a
garbled reply may hide an answer that the model has written, so it is counted as billed.
"""

from __future__ import annotations

import email.utils
import html
import json
import os
import re
import time
from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

import aiohttp

from ponder.core import UserError

Kind: TypeAlias = Literal["rate limit", "timeout", "error"]

RETRIED = {408, 409, 425, 429}  # HTTP statuses that are retried, besides every 5xx
TIMED_OUT = {408, 504, 524}  # the server, or a proxy before it, has waited for the model in vain
MAYBE_BILLED = TIMED_OUT | {502}
# Error codes that come as a rate limit (429), but that waiting doesn't cure.
NO_CREDIT = {
    "insufficient_quota",
    "insufficient_balance",
    "billing_hard_limit_reached",
    "billing_not_active",
}
# How servers phrase that they refuse a field, or its value: OpenAI, vLLM, FastAPI, Anthropic.
_REFUSES_FIELD = re.compile(
    r"unsupported|not supported|n't support|not support|not permitted|not allowed|unrecognized"
    r"|unknown|unexpected|deprecated|only the default|extra (?:inputs|fields)",
    re.IGNORECASE,
)
# How they phrase their token limit: of prompt and reply together, or of the reply alone.
_CONTEXT = re.compile(
    r"maximum context length (?:is|of) (\d+)|context (?:size|window|length)\D{0,20}(\d+)",
    re.IGNORECASE,
)
_LONGEST_REPLY = re.compile(
    r"at most (\d+) (?:completion|output) tokens|range of max_tokens is \[\d+, ?(\d+)\]"
    r"|> (\d+), which is the maximum",
    re.IGNORECASE,
)
_PROMPT = re.compile(
    r"(\d+) (?:input tokens|prompt tokens|in the messages|tokens from the input)"
    r"|resulted in (\d+)|request \((\d+) tokens",
    re.IGNORECASE,
)
_NOT_HTTP = re.compile(r"HTTP request (?:was sent )?to (?:an )?HTTPS", re.IGNORECASE)


class WrongServer(UserError):
    """A server that rejects every request: another key, page, model or address is needed."""


class NoAnswer(Exception):
    """A try that gave no answer."""

    def __init__(
        self,
        why: str,
        kind: Kind = "error",
        *,
        billed: bool = False,
        wait: float = 0.0,
        passing: bool = True,
    ) -> None:
        super().__init__(why)
        self.kind = kind
        self.billed = billed  # whether the server may have billed it
        self.wait = wait  # seconds that the server asks for
        self.passing = passing  # whether another try may succeed


class Refusal(NamedTuple):
    """A server's error: its HTTP status, its message, and its code or type in lower case."""

    status: int
    message: str
    codes: tuple[str, ...] = ()
    field: str = ""  # the field of the request that it is about
    wait: float = 0.0  # seconds that its body asks to wait; 0 if it doesn't say

    def __str__(self) -> str:
        return f"HTTP {self.status}: {self.message}"


def is_web_page(content_type: str, content: bytes) -> bool:
    """Return whether a response is a page for people, not data."""
    start = content.lstrip()[:9].lower()
    return content_type == "text/html" or start.startswith((b"<!doctype", b"<html"))


def refuses_field(refusal: Refusal, field: str) -> bool:
    """Return whether a server refuses a request because of this field."""
    quoted = rf"['\"`]{field}['\"`]|^{field}\b"
    is_named = refusal.field == field or re.search(quoted, refusal.message) is not None
    return is_named and _REFUSES_FIELD.search(refusal.message) is not None


class Room(NamedTuple):
    """A server's limit of tokens, those of the prompt if it reports them, and a hint."""

    limit: int
    prompt: int
    hint: str


def room_for_reply(message: str) -> Room | None:
    """Return the limit that an error message says a request exceeds; None if it names none."""
    limit = _first_number(_LONGEST_REPLY, message)
    if limit:
        return Room(limit, 0, f"budget = {limit}: the server's limit for a reply")
    limit = _first_number(_CONTEXT, message)
    if not limit:
        return None
    prompt = _first_number(_PROMPT, message)
    if prompt >= limit:
        remedy = "ask smaller problems, or start the server with more context"
        return Room(limit, prompt, f"the prompt alone has {prompt:,} tokens: {remedy}")
    if prompt:
        usage = f"of its {limit:,} tokens for prompt and reply this prompt takes {prompt:,}"
        hint = f"budget = {limit - prompt} at most: {usage}, and others may take more"
        return Room(limit, prompt, hint)
    return Room(limit, 0, f"a `budget` well below {limit:,}: the prompt needs room too")


def budget_to_change(refusal: Refusal, budget: int | None) -> tuple[str, str] | None:
    """Return what a server refuses, and a hint, if it is the budget; else None.

    It is if the budget exceeds the limit that the error names, and the prompt alone does not.
    """
    room = room_for_reply(refusal.message)
    if room is None or budget is None:
        return None
    if budget >= room.limit > room.prompt:
        return f"refuses a budget of {budget:,} tokens", room.hint
    return None


def _first_number(pattern: re.Pattern[str], text: str) -> int:
    """Return the number in the first match; 0 if there is none."""
    match = pattern.search(text)
    if match is None:
        return 0
    return int(next(number for number in match.groups() if number))


def speaks_https(message: str) -> bool:
    """Return whether an error message says that the server expects https, not http."""
    return bool(_NOT_HTTP.search(message))


def no_connection(error: aiohttp.ClientConnectorError) -> str:
    """Return why no connection was made, in plain words."""
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"the host is unknown ({error.strerror or 'its name was not found'})"
    if isinstance(error, aiohttp.ClientSSLError) or not error.errno or error.errno < 0:
        return str(error)
    return os.strerror(error.errno).lower()


def connection_hint(error: Exception, url: str) -> str:
    """Return what to do about a server that can't be reached."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        remedy = "SSL_CERT_FILE=FILE names the certificates to trust"
        return f"this machine doesn't trust its certificate: {remedy}"
    if isinstance(error, aiohttp.ClientSSLError):
        return f'if the server speaks http, not https: url = "http{url.removeprefix("https")}"'
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "is `url` right?"
    connected = not isinstance(error, aiohttp.ClientConnectorError | TimeoutError)
    if connected and url.startswith("http://"):
        return f'if the server speaks https, not http: url = "https{url.removeprefix("http")}"'
    return "is the server running (one that loads a model may need minutes), and is `url` right?"


def refused(status: int, why: str, wait: float) -> NoAnswer:
    """Return the failure for an HTTP status other than 200, and the wait that the server asks."""
    if status not in RETRIED and status < 500:
        return NoAnswer(why, passing=False)  # 400, 413, 422: the request itself is wrong
    kind: Kind = "error"
    if status == 429:
        kind = "rate limit"
    elif status in TIMED_OUT:
        kind = "timeout"
    return NoAnswer(why, kind, billed=status in MAYBE_BILLED, wait=wait)


def broken(error: Exception, why: str) -> NoAnswer:
    """Return the failure for a response that didn't come, or was cut."""
    if isinstance(error, TimeoutError):
        has_connected = not isinstance(error, aiohttp.ConnectionTimeoutError)
        return NoAnswer(why, "timeout", billed=has_connected)
    return NoAnswer(why, billed=not isinstance(error, aiohttp.ClientConnectorError))


def retry_after(headers: Mapping[str, str]) -> float:
    """Return the seconds that the headers of a response ask to wait, or 0."""
    try:
        return max(0.0, float(headers["Retry-After-Ms"]) / 1000)
    except (KeyError, ValueError):
        pass
    header = headers.get("Retry-After", "")
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        moment = email.utils.parsedate_to_datetime(header).timestamp()
    except (ValueError, OverflowError):
        return 0.0
    return max(0.0, moment - time.time())


def read_error(status: int, content: bytes) -> Refusal:
    """Return the error in a body: the message of JSON, the title of a web page, else the text."""
    text = content.decode("utf-8", "replace").strip()
    if is_web_page("", content):
        title = re.search(r"<title[^>]*>(.*?)</title>", text, re.IGNORECASE | re.DOTALL)
        if title is None:
            return Refusal(status, "a web page")
        return Refusal(status, f'a web page titled "{" ".join(html.unescape(title[1]).split())}"')
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return Refusal(status, text)
    error = body
    if isinstance(body, Mapping):
        error = body.get("error", body)
    if isinstance(error, str):
        return Refusal(status, error)
    if not isinstance(error, Mapping):
        return Refusal(status, text)
    message = error.get("message") or error.get("detail")
    if not isinstance(message, str):
        message = text
    codes = [error.get("code"), error.get("type")]
    lower_codes = tuple(code.lower() for code in codes if isinstance(code, str))
    field = error.get("param")
    if not isinstance(field, str):
        field = ""
    return Refusal(status, message, lower_codes, field)
