"""Notices servers that answer as another model than the one that was asked for.

A server may give the same model another name: with its date (`gpt-4o-2024-08-06`), with or without
its path, in other capitals. A server whose model list has the name that was asked for may answer
under an alias of it.
"""

from __future__ import annotations

import re

MOST = 100  # names that are looked at, since they come from outside
_LATEST = re.compile(r"[-:]latest$")
_DATE = re.compile(r"[-@_](v?\d{3,8}|\d{4}-\d\d(-\d\d)?|\d\d-\d\d(-?\d\d(\d\d)?)?)$")


def alike(one: str, other: str) -> bool:
    """Whether two names may be the same model's: the same last part, one of them perhaps with a
    date.
    """
    one, other = (
        _LATEST.sub("", re.split(r"[/\\]", name.lower())[-1].removesuffix(".gguf"))
        for name in (one, other)
    )
    return one == other or _DATE.sub("", one) == other or one == _DATE.sub("", other)


class ServedNames:
    """The names under which the servers of one model answer."""

    def __init__(self, asked: str) -> None:
        self._asked = asked
        self._heard = set[tuple[str, str]]()
        self._accepted = dict[str, str]()  # by server

    def new(self, url: str, name: str) -> bool:
        """Whether this server answers under this name for the first time."""
        if (url, name) in self._heard or len(self._heard) >= MOST:
            return False
        self._heard.add((url, name))
        return True

    def warning(self, url: str, name: str, *, alias: bool = False) -> str:
        """What is odd about a name, if anything: it is another model's, or another server's is."""
        if not alias and not alike(name, self._asked):
            return (
                f"{url} answers as `{name}`, and its answers are stored as those of `{self._asked}`"
            )
        others = {
            other: said
            for other, said in self._accepted.items()
            if other != url and not alike(said, name)
        }
        self._accepted[url] = name
        if not others:
            return ""
        each = ", ".join(f"{server} as `{said}`" for server, said in [*others.items(), (url, name)])
        return f"the servers of `{self._asked}` answer as different models: {each}"
