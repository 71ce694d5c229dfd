"""Balances the requests of one model over several servers, and checks the names they answer under.

A request goes to the server with the fewest requests in progress. One that gives no answer is set
aside, for longer each time it fails in a row, and then gets a single request to show that it is
back. So is one that knows no such model or refuses the key, unless all of them do.

A server may give the same model another name: with its date (`gpt-4o-2024-08-06`), with or without
its path, in other capitals. A server whose model list has the requested name may answer under an
alias of it. Any other name is a warning.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from yarl import URL

from ponder.core import UserError
from ponder.models.endpoint.counting import ServerTokenizer
from ponder.models.endpoint.failures import WrongServer

MAX_ASIDE = 60.0  # seconds that a server is set aside, unless it asks for more
MAX_NAMES = 100  # names that are checked, since they come from outside
_LATEST = re.compile(r"[-:]latest$")
_DATE = re.compile(r"[-@_](v?\d{3,8}|\d{4}-\d\d(-\d\d)?|\d\d-\d\d(-?\d\d(\d\d)?)?)$")


@dataclass(eq=False)
class Server:
    """One server of a model."""

    url: str  # as in the study
    page: URL  # the page that answers, with the secrets filled in
    models: URL  # the list of models
    headers: Mapping[str, str]
    tokenizer: ServerTokenizer = field(repr=False)
    props: URL | None = None  # llama.cpp's page about itself
    calls: int = 0  # requests in progress
    failures: int = 0  # in a row
    back: float = 0.0  # when it may be used again, on the loop's clock
    has_answered: bool = False  # with a reply, at least once
    wrong: WrongServer | None = None  # why it rejects every request, since it last answered

    def free(self) -> bool:
        """Return whether it may be used; after a failure, one request at a time."""
        if asyncio.get_running_loop().time() < self.back:
            return False
        return not (self.failures and self.calls)

    def set_aside(self, seconds: float) -> None:
        """Use other servers for some seconds; 0: for longer with every failure."""
        self.failures += 1
        if not seconds:
            seconds = min(MAX_ASIDE, 0.25 * 2.0 ** min(self.failures, 10))
        self.back = asyncio.get_running_loop().time() + seconds

    def answered(self) -> None:
        self.failures = 0
        self.back = 0.0
        self.wrong = None
        self.has_answered = True


class Servers:
    """All servers of a model."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self.all = tuple(servers)

    @contextmanager
    def chosen(self) -> Iterator[Server]:
        """Choose the server for a request, which is in progress until the block ends.

        If all are set aside, it is the one that is back first.
        """
        free = [server for server in self.all if server.free()]
        if free:
            server = min(free, key=lambda server: server.calls)
        else:
            server = min(self.all, key=lambda server: server.back)
        server.calls += 1
        try:
            yield server
        finally:
            server.calls -= 1

    def check(self, errors: Sequence[UserError | None]) -> None:
        """Raise `UserError` if every server has an error."""
        failures = [error for error in errors if error]
        if len(failures) == len(self.all):
            raise UserError("; ".join(error.what for error in failures), hint=failures[0].hint)

    def another(self) -> bool:
        """Return whether, after a failure, another server can be used at once."""
        return len(self.all) > 1 and any(server.free() for server in self.all)


class ServedNames:
    """The names under which the servers of one model answer."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._seen = set[tuple[str, str]]()
        self._accepted = dict[str, str]()  # by server

    def new(self, url: str, name: str) -> bool:
        """Return whether this server answers under this name for the first time."""
        if (url, name) in self._seen or len(self._seen) >= MAX_NAMES:
            return False
        self._seen.add((url, name))
        return True

    def warning(self, url: str, name: str, *, alias: bool = False) -> str:
        """Return a warning if a name is another model's, or differs from other servers'; or ""."""
        if not alias and not alike(name, self._model):
            stored = f"its answers are stored as those of `{self._model}`"
            return f"{url} answers as `{name}`, and {stored}"
        different = list[str]()
        for server, accepted in self._accepted.items():
            if server != url and not alike(accepted, name):
                different.append(f"{server} as `{accepted}`")
        self._accepted[url] = name
        if not different:
            return ""
        names = ", ".join([*different, f"{url} as `{name}`"])
        return f"the servers of `{self._model}` answer as different models: {names}"


def alike(name: str, other_name: str) -> bool:
    """Return whether two names may be one model's: the same but for path, capitals and date."""
    name = _short(name)
    other_name = _short(other_name)
    if name == other_name:
        return True
    return _DATE.sub("", name) == other_name or name == _DATE.sub("", other_name)


def _short(name: str) -> str:
    last_part = re.split(r"[/\\]", name.lower())[-1]
    return _LATEST.sub("", last_part.removesuffix(".gguf"))
