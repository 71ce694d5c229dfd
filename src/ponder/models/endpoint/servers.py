"""Shares the requests of one model among several servers.

A request goes to the server with the fewest requests in progress. One that gives no answer is set
aside, for longer each time it fails in a row, and then gets a single request to show that it is
back. So is one that knows no such model or refuses the key, unless all of them do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from yarl import URL

from ponder.core import UserError
from ponder.models.endpoint.counting import ServerTokenizer
from ponder.models.endpoint.failures import WrongServer

LONGEST_ASIDE = 60.0  # seconds that a server is set aside, unless it asks for more


@dataclass(eq=False)
class Server:
    """One server of a model."""

    url: str  # as the study names it
    asked: URL  # the page that answers, with the secrets filled in
    models: URL  # the list of models
    headers: Mapping[str, str]
    tokenizer: ServerTokenizer = field(repr=False)
    props: URL | None = None  # llama.cpp's page about itself
    calls: int = 0  # requests in progress
    failures: int = 0  # in a row
    back: float = 0.0  # when it may be asked again, on the loop's clock
    has_answered: bool = False  # with a reply, at least once
    wrong: WrongServer | None = None  # why no request can be sent to it, since it last answered

    def free(self) -> bool:
        """Whether it may be asked: one that failed gets one request at a time until it answers."""
        return asyncio.get_running_loop().time() >= self.back and not (self.failures and self.calls)

    def set_aside(self, seconds: float) -> None:
        """Ask others for so many seconds, or longer if it has failed before."""
        self.failures += 1
        seconds = seconds or min(LONGEST_ASIDE, 0.25 * 2.0 ** min(self.failures, 10))
        self.back = asyncio.get_running_loop().time() + seconds

    def answered(self) -> None:
        self.failures, self.back, self.wrong = 0, 0.0, None
        self.has_answered = True


class Servers:
    def __init__(self, servers: Sequence[Server]) -> None:
        self.all = tuple(servers)

    @contextmanager
    def chosen(self) -> Iterator[Server]:
        """The server to ask next, for as long as it is asked.

        If all are set aside, the one that is back first.
        """
        free = [server for server in self.all if server.free()]
        server = min(free, key=lambda s: s.calls) if free else min(self.all, key=lambda s: s.back)
        server.calls += 1
        try:
            yield server
        finally:
            server.calls -= 1

    def check(self, errors: Sequence[UserError | None]) -> None:
        """Raise `UserError` if every server has an error."""
        told = [error for error in errors if error]
        if len(told) == len(self.all):
            raise UserError("; ".join(error.what for error in told), hint=told[0].hint)

    def another(self) -> bool:
        """Whether, after a failure, another server can be asked at once."""
        return len(self.all) > 1 and any(server.free() for server in self.all)
