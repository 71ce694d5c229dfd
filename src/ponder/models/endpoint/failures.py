"""Why a try at an endpoint gave no answer: whether it is worth repeating, whether the server may
have billed it, and what the user can change if it will never work.

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
from typing import Any, Literal, NamedTuple, TypeAlias

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
# Fields of a request that some models refuse, and what to change in the study.
REFUSED_FIELDS = {
    "temperature": "leave out `temperature`, or set one that the model accepts",
    "top_p": "leave out `top_p`, or set one that the model accepts",
    "reasoning_effort": "leave out `effort`, or set one that the model accepts",
    "seed": "send_seed = false",
    "stream_options": "stream = false",
}
# How servers say that they refuse a field, or its value: OpenAI, vLLM, FastAPI, Anthropic.
_REFUSES_FIELD = re.compile(
    r"unsupported|not supported|n't support|not support|not permitted|not allowed|unrecognized|unknown|unexpected"
    r"|deprecated|only the default|extra (?:inputs|fields)",
    re.IGNORECASE,
)
# How they name the most tokens: of prompt and reply together, or of the reply alone.
_CONTEXT = re.compile(
    r"maximum context length (?:is|of) (\d+)|context (?:size|window|length)\D{0,20}(\d+)",
    re.IGNORECASE,
)
_LONGEST_REPLY = re.compile(
    r"at most (\d+) (?:completion|output) tokens|range of max_tokens is \[\d+, ?(\d+)\]|> (\d+), which is the maximum",
    re.IGNORECASE,
)
_PROMPT = re.compile(
    r"(\d+) (?:input tokens|prompt tokens|in the messages|tokens from the input)"
    r"|resulted in (\d+)|request \((\d+) tokens",
    re.IGNORECASE,
)
_NOT_HTTP = re.compile(r"HTTP request (?:was sent )?to (?:an )?HTTPS", re.IGNORECASE)


class WrongServer(UserError):
    """A server that no request can be sent to as the study says: another key, page, model or
    address is needed.
    """


class NoAnswer(Exception):
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
        self.kind, self.billed = kind, billed
        self.wait = wait  # seconds that the server asks for
        self.passing = passing  # whether another try may succeed


class Refusal(NamedTuple):
    """A server's error: its HTTP status, its message, and its code or type in lower case."""

    status: int
    message: str
    codes: tuple[str, ...] = ()
    field: str = ""  # the field of the request that it is about

    def __str__(self) -> str:
        return f"HTTP {self.status}: {self.message}"


def read_refusal(status: int, content: bytes) -> Refusal:
    """Return the error in the body of a response: of JSON its message, of a web page its title,
    else the text.
    """
    text = content.decode("utf-8", "replace").strip()
    if is_web_page("", content):
        title = re.search(r"<title[^>]*>(.*?)</title>", text, re.IGNORECASE | re.DOTALL)
        named = f' titled "{" ".join(html.unescape(title[1]).split())}"' if title else ""
        return Refusal(status, f"a web page{named}")
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return Refusal(status, text)
    error = body.get("error", body) if isinstance(body, Mapping) else body
    if not isinstance(error, Mapping):
        return Refusal(status, error if isinstance(error, str) else text)
    message = error.get("message") or error.get("detail")
    codes = [code.lower() for key in ("code", "type") if isinstance(code := error.get(key), str)]
    field = error.get("param")
    return Refusal(
        status,
        message if isinstance(message, str) else text,
        tuple(codes),
        field if isinstance(field, str) else "",
    )


def status_inside(error: Any) -> int:
    """Return the HTTP status of an error that came in a response with status 200; 0 if it has none."""
    if isinstance(error, str) and error.lower().startswith("unexpected endpoint"):
        return 404  # LM Studio's, for a page that it doesn't have
    code = error.get("code", error.get("status")) if isinstance(error, Mapping) else None
    if isinstance(code, str) and code.isdecimal():
        code = int(code[:4])
    return code if isinstance(code, int) and 400 <= code < 600 else 0


def is_web_page(content_type: str, content: bytes) -> bool:
    """Return whether a response is a page for people, not data."""
    return content_type == "text/html" or content.lstrip()[:9].lower().startswith(
        (b"<!doctype", b"<html")
    )


def setting_to_change(
    refusal: Refusal, sent: Mapping[str, Any], budget_field: str
) -> tuple[str, str] | None:
    """Return which setting makes a server refuse every request, and a hint; None if others may
    succeed.

    `sent` is the body of the request that was refused.
    """
    status, message, codes, _ = refusal
    if status == 402 or NO_CREDIT.intersection(codes):
        return "has no credit left", 'add credit to the account, or name another key: key = "$NAME"'
    if status not in (400, 422):
        return None
    budget = sent.get(budget_field)
    room = room_for_reply(message)
    if room is not None and budget is not None and budget >= room.limit > room.prompt:
        return f"refuses a budget of {budget:,} tokens", room.hint
    other = "max_completion_tokens" if budget_field == "max_tokens" else "max_tokens"
    if budget is not None and _refuses(refusal, budget_field) and room is None:
        return f"refuses the field `{budget_field}`", f'budget_field = "{other}"'
    for field, hint in REFUSED_FIELDS.items():
        if field in sent and _refuses(refusal, field):
            return f"refuses the field `{field}`", hint
    return None


def _refuses(refusal: Refusal, field: str) -> bool:
    named = refusal.field == field or re.search(rf"['\"`]{field}['\"`]|^{field}\b", refusal.message)
    return bool(named and _REFUSES_FIELD.search(refusal.message))


class Room(NamedTuple):
    """The most tokens that a server takes, those of the prompt as far as it says, and what to do
    about it.
    """

    limit: int
    prompt: int
    hint: str


def room_for_reply(message: str) -> Room | None:
    """Return the limit that a server says a request exceeds; None if its message names none."""
    if limit := _first_number(_LONGEST_REPLY, message):
        return Room(limit, 0, f"budget = {limit}: the server's most for a reply")
    limit = _first_number(_CONTEXT, message)
    if not limit:
        return None
    prompt = _first_number(_PROMPT, message)
    if prompt >= limit:
        hint = f"the prompt alone has {prompt:,} tokens: ask smaller problems, or start the server with more context"
        return Room(limit, prompt, hint)
    if prompt:
        both = f"of its {limit:,} tokens for prompt and reply this prompt takes {prompt:,}"
        return Room(
            limit, prompt, f"budget = {limit - prompt} at most: {both}, and others may take more"
        )
    return Room(limit, 0, f"a `budget` well below {limit:,}: the prompt needs room too")


def _first_number(pattern: re.Pattern[str], text: str) -> int:
    found = pattern.search(text)
    return int(next(number for number in found.groups() if number)) if found else 0


def speaks_https(message: str) -> bool:
    """Return whether a server says that it was asked by http and wants https."""
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
        return "this machine doesn't trust its certificate: SSL_CERT_FILE=FILE names the certificates to trust"
    if isinstance(error, aiohttp.ClientSSLError):
        return f'if the server speaks http, not https: url = "http{url.removeprefix("https")}"'
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "is `url` right?"
    if url.startswith("http://") and not isinstance(
        error, aiohttp.ClientConnectorError | TimeoutError
    ):
        return f'if the server speaks https, not http: url = "https{url.removeprefix("http")}"'
    return "is the server running (one that loads a model may need minutes), and is `url` right?"


def refused(status: int, why: str, after: str | None) -> NoAnswer:
    """A response with an HTTP status that is not 200; `after` is its Retry-After."""
    if status not in RETRIED and status < 500:
        return NoAnswer(why, passing=False)  # 400, 413, 422: the request itself is wrong
    kind: Kind = "rate limit" if status == 429 else "timeout" if status in TIMED_OUT else "error"
    return NoAnswer(why, kind, billed=status in MAYBE_BILLED, wait=retry_after(after))


def broken(error: Exception, why: str) -> NoAnswer:
    """No response, or half of one."""
    if isinstance(error, TimeoutError):
        return NoAnswer(
            why, "timeout", billed=not isinstance(error, aiohttp.ConnectionTimeoutError)
        )
    return NoAnswer(why, billed=not isinstance(error, aiohttp.ClientConnectorError))


def retry_after(header: str | None) -> float:
    """Seconds that a Retry-After header (a number or a date) asks to wait; 0 if it asks nothing."""
    if not header:
        return 0.0
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(header).timestamp() - time.time())
    except (ValueError, OverflowError):
        return 0.0
