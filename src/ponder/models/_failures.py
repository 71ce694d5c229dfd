"""Why a try at an endpoint gave no answer: whether it is worth repeating, and whether the server may have billed it.

A refusal (429, 500, 503) costs nothing. A timeout, a connection that is cut, a gateway's error or a garbled reply may
hide an answer that the model has written, so it is counted as billed.
"""

from __future__ import annotations

import email.utils
import time
from typing import Literal, TypeAlias

import aiohttp

from ponder.core import UserError

Kind: TypeAlias = Literal["rate limit", "timeout", "error"]

RETRIED = {408, 409, 425, 429}  # HTTP statuses that are retried, besides every 5xx
TIMED_OUT = {408, 504, 524}  # the server, or a proxy before it, has waited for the model in vain
MAYBE_BILLED = TIMED_OUT | {502}


class WrongServer(UserError):
    """A server that no request can be sent to as the study says: another key, page, model or address is needed."""


class NoAnswer(Exception):
    def __init__(
        self, why: str, kind: Kind = "error", *, billed: bool = False, wait: float = 0.0, passing: bool = True
    ) -> None:
        super().__init__(why)
        self.kind, self.billed = kind, billed
        self.wait = wait  # seconds that the server asks for
        self.passing = passing  # whether another try may succeed


def refused(status: int, why: str, after: str | None) -> NoAnswer:
    """A response with an HTTP status that is not 200; `after` is its Retry-After."""
    if status not in RETRIED and status < 500:
        return NoAnswer(why, passing=False)  # 400, 413, 422: the request itself is wrong
    kind: Kind = "rate limit" if status == 429 else "timeout" if status in TIMED_OUT else "error"
    return NoAnswer(why, kind, billed=status in MAYBE_BILLED, wait=retry_after(after))


def broken(error: Exception, why: str) -> NoAnswer:
    """No response, or half of one."""
    if isinstance(error, TimeoutError):
        return NoAnswer(why, "timeout", billed=not isinstance(error, aiohttp.ConnectionTimeoutError))
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
