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
_HEADER_VALUE = re.compile(rf"(?:(?:Bearer|Basic|Token|Api-?Key|Key) )?(?:{REFERENCE.pattern})", re.IGNORECASE)
_HEADER_NAME = re.compile(r"[\w!#$%&'*+.^`|~-]+", re.ASCII)
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f]")  # all but tabs: a header can't contain them
_SECRET_HEADER = re.compile(r"key|token|secret|auth|cookie|passw|passphrase|credential|signature|jwt", re.IGNORECASE)
_SECRET_FIELD = re.compile(
    r"secret|passw|passphrase|credential|authorization|bearer|jwt|^auth$|(api|access|auth)[-_]?token"
    r"|(api|private|access|subscription|account|auth|client|service|license|signing|encryption|master|ssh)[-_]?key",
    re.IGNORECASE,
)
_SECRET_PARAMETER = re.compile(r"^(key|code|sig|signature|sas|pass|pwd)$", re.IGNORECASE)
# A field `…_token` is a secret, unless the word before names a token of a vocabulary.
_VOCABULARY = {
    "eos", "bos", "pad", "unk", "cls", "sep", "mask", "stop", "start", "begin", "end", "special", "image", "audio",
    "video", "think", "thinking", "reasoning", "tool", "first", "last", "next", "forced",
}  # fmt: skip
_OPEN_FIELDS = {"type", "name", "provider", "region", "user", "username"}  # not secret, even among credentials


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
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise UserError(f"the environment variable {name} is not UTF-8", hint=f"export {name}=…")
    return value


def _in_any_form(value: str) -> re.Pattern[str]:
    """Matches a value as it is, and as JSON, a program's output or a URL may write it."""

    def form(found: re.Match[str]) -> str:
        if found[0][0] == "\\":  # each level of quoting doubles them
            return rf"(?:(?i:\\u005c|%5c)|\\){{{len(found[0])},{4 * len(found[0])}}}"
        encoded, escape = quote(found[0], safe="", errors="replace"), rf"\\{{1,3}}u{ord(found[0]):04x}"
        if found[0].isalnum() and found[0].isascii():
            return f"(?:{found[0]}|(?i:{escape}))"
        return rf"(?:\\{{0,3}}{re.escape(found[0])}|(?i:{escape}|{encoded}{'|[+]' if found[0] == ' ' else ''}))"

    return re.compile(re.sub(r"\\+|.", form, value, flags=re.DOTALL))


class Secrets:
    """The variables that settings refer to: fills in their values, and takes them out of texts again."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}  # by value, the longest value first
        self._forms: dict[str, tuple[str, re.Pattern[str]]] = {}  # by value: a part that stays as it is, and all forms

    def hide(self, value: str, name: str) -> str:
        """Remember a value, which texts shall show as `$NAME`."""
        names = {**self._names, value: f"${name}"}
        self._names = dict(sorted(names.items(), key=lambda item: -len(item[0])))
        part = max(re.findall("[A-Za-z0-9]+", value), key=len, default="")
        self._forms[value] = part, _in_any_form(value)
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
        escapes = "\\u0" in text
        for value, name in self._names.items():
            if len(value) < shortest:
                continue
            if value in text:
                text = text.replace(value, name)
            part, forms = self._forms[value]
            if escapes or part in text:  # a search for the part takes 4 µs for 10 kB, for all forms 150 µs
                text = forms.sub(name, text)
        return text


def check_url(url: str) -> None:
    """Raise `UserError` for a URL that contains a password, or a key as a parameter."""
    try:
        parts = urlsplit(url)
        user, _, password = parts.netloc.rpartition("@")[0].partition(":")
        secrets = [password or user] if "@" in parts.netloc else []
        secrets += [value for name, value in parse_qsl(parts.query) if _SECRET_PARAMETER.search(name) or _secret(name)]
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
        if _SECRET_HEADER.search(name) and not _HEADER_VALUE.fullmatch(value):
            hint = f'headers = {{ {name} = "$NAME" }} or "Bearer $NAME", and export NAME=… in the shell'
            raise UserError(f"a study must not contain the value of the header `{name}`", hint=hint)


def check_sendable(headers: Mapping[str, str]) -> None:
    """Raise `UserError` for a header that HTTP can't send. The value isn't repeated: it may be a secret."""
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise UserError(f"{name!r} can't be the name of a header", hint="letters, digits and hyphens")
        if _CONTROL.search(value):
            hint = "is the variable's value on one line?"
            raise UserError(f"the header `{name}` contains a line break or another control character", hint=hint)


def check_body(body: Any) -> None:
    """Raise `UserError` for a field that holds a secret, going by its name, but doesn't name a variable."""
    for name, value in _fields(body):
        if _secret(name) and any(not REFERENCE.fullmatch(text) for text in _texts(value)):
            hint = f'{name} = "$NAME", and export NAME=… in the shell'
            raise UserError(f"a study must not contain the value of the field `{name}`", hint=hint)


def _secret(name: str) -> bool:
    """Whether a field of this name holds a secret."""
    before, token, after = name.lower().rpartition("token")
    return bool(_SECRET_FIELD.search(name)) or (
        bool(token) and not after and re.split("[-_.]", before.rstrip("-_."))[-1] not in _VOCABULARY
    )


def _fields(body: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(body, Mapping):
        for name, value in body.items():
            yield str(name), value
            if name != "properties":  # of a JSON schema: names of fields that the model shall write
                yield from _fields(value)
    elif isinstance(body, list | tuple):
        for value in body:
            yield from _fields(value)


def _texts(value: Any) -> Iterator[str]:
    """Every text in a value, but not those that are no secret."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, one in value.items():
            if name not in _OPEN_FIELDS:
                yield from _texts(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(one)
