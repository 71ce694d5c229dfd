"""Secrets by name: a setting says `$NAME`, the environment variable holds the value, and texts show only the name.

A study is stored, printed and shared, so it must not contain a key or a password. `EnvVar` is a setting that names a
variable; `check_url`, `check_headers` and `check_body` refuse secrets that are written out. `Secrets` reads the
variables and removes their values from every text that comes back.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, Self
from urllib.parse import parse_qsl, quote, urlsplit

from ponder.core.errors import UserError

REFERENCE = re.compile(r"\$(?:\{([^\W\d]\w*)\}|([^\W\d]\w*))")  # $NAME or ${NAME}
_VALUE = re.compile(rf"(?:[\w-]+[ =])?(?:{REFERENCE.pattern})")  # $NAME, Bearer $NAME, session=$NAME
_SECRET_HEADER = re.compile(r"key|token|secret|auth|cookie|password", re.IGNORECASE)
_SECRET_FIELD = re.compile(
    r"api[-_]?key|secret|password|authorization|credential|(access|auth|bearer)[-_]?token", re.IGNORECASE
)
_SECRET_PARAMETER = re.compile(rf"{_SECRET_FIELD.pattern}|^(key|token|sig|signature)$", re.IGNORECASE)


class EnvVar(str):
    """The name of an environment variable that holds a secret, written `$NAME`. The secret itself is refused."""

    __slots__ = ()

    def __new__(cls, text: Any) -> Self:
        if not (isinstance(text, str) and text[:1] == "$" and text[1:].isidentifier()):
            # The text isn't repeated: it may be a secret, and error messages end up in logs.
            raise UserError(
                "a study must not contain an API key, only the name of an environment variable that holds it",
                hint='key = "$NAME", and export NAME=… in the shell',
            )
        return super().__new__(cls, text)

    def read(self) -> str:
        """The value of the variable."""
        return _read(self[1:])


def _read(name: str) -> str:
    # Without the newline that `export KEY="$(cat file)"` and env files may leave.
    if not (value := os.environ.get(name, "").strip()):
        raise UserError(f"the environment variable {name} is not set", hint=f"export {name}=…")
    return value


class Secrets:
    """The variables that settings refer to: fills in their values, and takes them out of texts again."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}  # by value, the longest value first

    def hide(self, value: str, name: str) -> str:
        """Remember a value, which texts shall show as `$NAME`."""
        names = {**self._names, value: f"${name}"}
        self._names = dict(sorted(names.items(), key=lambda item: -len(item[0])))
        return value

    def fill(self, text: str) -> str:
        """The text with each `$NAME` or `${NAME}` replaced by its value."""
        return REFERENCE.sub(lambda m: self.hide(_read(m[1] or m[2]), m[1] or m[2]), text)

    def fill_url(self, url: str) -> str:
        """The same for a URL: what stands before an @ or after a ? is percent-encoded."""
        at, query = url.find("@"), url.find("?")

        def value(m: re.Match[str]) -> str:
            name = m[1] or m[2]
            plain = self.hide(_read(name), name)
            return self.hide(quote(plain, safe=""), name) if m.end() <= at or -1 < query < m.start() else plain

        return REFERENCE.sub(value, url)

    def fill_json(self, value: Any) -> Any:
        """JSON in which each text that is `$NAME` and nothing else is replaced by its value."""
        if isinstance(value, Mapping):
            return {key: self.fill_json(one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [self.fill_json(one) for one in value]
        return self.fill(value) if isinstance(value, str) and REFERENCE.fullmatch(value) else value

    def redact(self, text: str, shortest: int = 4) -> str:
        """The text with every secret of at least so many characters replaced by its `$NAME`."""
        for value, name in self._names.items():
            if len(value) >= shortest and value in text:
                text = text.replace(value, name)
        return text


def check_url(url: str) -> None:
    """Raise `UserError` for a URL that contains a password, or a key as a parameter."""
    try:
        parts = urlsplit(url)
        user, _, password = parts.netloc.rpartition("@")[0].partition(":")
        secrets = [password or user] if "@" in parts.netloc else []
        secrets += [value for name, value in parse_qsl(parts.query) if _SECRET_PARAMETER.search(name)]
    except ValueError:
        raise UserError("the URL is not valid", hint='url = "http://127.0.0.1:8000/v1"') from None
    if not all(REFERENCE.fullmatch(secret) for secret in secrets):
        raise UserError(
            "a study must not contain a password or a key, not in a URL either",
            hint='url = "https://user:$NAME@host/v1", and export NAME=… in the shell',
        )


def check_headers(headers: Mapping[str, str]) -> None:
    """Raise `UserError` for a header that holds a secret, going by its name, but doesn't take it from a variable."""
    for name, value in headers.items():
        if _SECRET_HEADER.search(name) and not _VALUE.fullmatch(value):
            hint = f'headers = {{ {name} = "$NAME" }} or "Bearer $NAME", and export NAME=… in the shell'
            raise UserError(f"a study must not contain the value of the header `{name}`", hint=hint)


def check_body(body: Any) -> None:
    """Raise `UserError` for a field that holds a secret, going by its name, but doesn't name a variable."""
    for name, value in _fields(body):
        if isinstance(value, str) and _SECRET_FIELD.search(name) and not REFERENCE.fullmatch(value):
            hint = f'{name} = "$NAME", and export NAME=… in the shell'
            raise UserError(f"a study must not contain the value of the field `{name}`", hint=hint)


def _fields(body: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(body, Mapping):
        for name, value in body.items():
            yield str(name), value
            yield from _fields(value)
    elif isinstance(body, list | tuple):
        for value in body:
            yield from _fields(value)
