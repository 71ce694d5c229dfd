"""Secrets by name: a setting is `$NAME`, a variable holds the value, and texts show the name only.

A study is stored, printed and shared, so it must not contain a key or a password. `EnvVar` is a
setting that names a variable; `check_url`, `check_headers` and `check_body` refuse secrets that are
written out. `Secrets` reads the variables and removes their values from every text that comes back.
"""

from __future__ import annotations

import os
import re
from base64 import b32encode, b64encode
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Self
from urllib.parse import parse_qsl, quote, urlsplit

from ponder.core.errors import UserError

REFERENCE = re.compile(r"\$(?:\{([^\W\d]\w*)\}|([^\W\d]\w*))")  # $NAME or ${NAME}
_HEADER_VALUE = re.compile(
    rf"(?:(?:Bearer|Basic|Token|Api-?Key|Key) )?(?:{REFERENCE.pattern})", re.IGNORECASE
)
_HEADER_NAME = re.compile(r"[\w!#$%&'*+.^`|~-]+", re.ASCII)
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f]")  # all but tabs: a header can't contain them
_SECRET_HEADER = re.compile(
    r"key|token|secret|auth|cookie|passw|passphrase|credential|signature|jwt", re.IGNORECASE
)
_SECRET_FIELD = re.compile(
    r"secret|passw|passphrase|credential|authorization|bearer|jwt|^auth$|(api|access|auth)[-_]?token"
    r"|(api|private|access|subscription|account|auth|client|service|license|signing|encryption|master|ssh)[-_]?key",
    re.IGNORECASE,
)
_SECRET_PARAMETER = re.compile(r"^(key|code|sig|signature|sas|pass|pwd)$", re.IGNORECASE)
# A field `…_token` is a secret unless the word before it names a token of a vocabulary.
_VOCABULARY = {
    "eos", "bos", "pad", "unk", "cls", "sep", "mask", "stop", "start", "begin", "end", "special",
    "image", "audio", "video", "think", "thinking", "reasoning", "tool", "first", "last", "next",
    "forced",
}  # fmt: skip
_LONG = 12  # characters; a shorter value may be a word
_START = 8  # characters of a long value that are recognized where the rest is cut off
# A character by its number, in JSON or a program's output, in a URL, in HTML. One pattern of all is
# 10 times slower.
_ESCAPES = (r"\\[ux][0-9a-fA-F]{2}", r"%[0-9a-fA-F]{2}", r"&(?:#|[a-z]+;)")
_LETTER = re.compile("[A-Za-z0-9]")
_NO_LETTERS = re.compile("[^A-Za-z0-9]+")
_HTML_NAMES = {'"': "quot", "'": "apos", "&": "amp", "<": "lt", ">": "gt"}
# The forms of the keys that providers issue, and of logins. One without a digit is a name, or
# `sk-your-own-api-key`.
_KEY = re.compile(
    r"""(?<![A-Za-z0-9])(?:
    sk-(?:ant|proj|or|svcacct|admin)-[A-Za-z0-9_-]{16,} | sk-(?:[A-Za-z0-9_-]*[-_])?[A-Za-z0-9]{16,}
    | (?:hf|fw|r8|gsk|gh[pousr])_[A-Za-z0-9]{20,} | (?:xai|csk|pplx)-[A-Za-z0-9]{20,}
    | AKIA[A-Z0-9]{16}
    | (?:AIza|glpat-|nvapi-|tgp_v1_|github_pat_|xox[abops]-)[A-Za-z0-9_-]{20,}
    | eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}
    | (?:Bearer|Basic)[ ]+[A-Za-z0-9+/_.=~-]{12,})""",
    re.VERBOSE,
)
# How they begin. To search a text for these is 10 times faster than for the whole pattern.
_KEY_STARTS = (
    "sk-", "hf_", "fw_", "r8_", "gsk_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "xai-", "csk-",
    "pplx-", "AKIA", "AIza", "glpat-", "nvapi-", "tgp_v1_", "github_pat_", "xox", "eyJ", "Bearer ",
    "Basic ",
)  # fmt: skip
_HEADER_LOGIN = re.compile(r"(?:Bearer|Basic|Token|Api-?Key)\s+(?!\$)\S", re.IGNORECASE)
_RANDOM = re.compile(r"[A-Za-z0-9]{32,}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
# Fields that aren't secret, even among credentials.
_OPEN_FIELDS = {"type", "name", "provider", "region", "user", "username"}


class EnvVar(str):
    """The name of an environment variable that holds a secret, written `$NAME`.

    The secret itself is refused.
    """

    __slots__ = ()

    def __new__(cls, text: Any) -> Self:
        if not (isinstance(text, str) and text[:1] == "$" and text[1:].isidentifier()):
            # The text isn't repeated: it may be a secret, and error messages end up in logs.
            raise UserError(
                "a study must not contain an API key, "
                "only the name of an environment variable that holds it",
                hint='key = "$NAME", and export NAME=… in the shell',
            )
        return super().__new__(cls, text)

    def read(self) -> str:
        """Return the value of the variable."""
        return _read(self[1:])


def _read(name: str) -> str:
    # Strip the newline that `export KEY="$(cat file)"` and env files may leave.
    value = os.environ.get(name, "").strip()
    if not value:
        raise UserError(f"the environment variable {name} is not set", hint=f"export {name}=…")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise UserError(f"the environment variable {name} is not UTF-8", hint=f"export {name}=…")
    return value


def _characters(value: str) -> list[str]:
    """Return the characters of a value; backslashes that follow each other are one."""
    return re.findall(r"\\+|.", value, flags=re.DOTALL)


def _in_any_form(characters: str) -> str:
    """Return a pattern of a character as it is, and as JSON, HTML, a URL or a log may write it."""
    character = characters[0]
    units = re.findall("....", character.encode("utf-16-be").hex())
    octets = [f"{octet:02x}" for octet in character.encode()]
    escapes = [
        "".join(rf"\\{{1,4}}u{unit}" for unit in units),
        "".join(rf"\\{{1,4}}x{octet}" for octet in octets),
        "".join(f"%(?:25)*{octet}" for octet in octets),
        f"&(?:amp;)*#(?:0*{ord(character)}|x0*{ord(character):x});",
    ]
    if character in _HTML_NAMES:
        escapes.append(f"&(?:amp;)*{_HTML_NAMES[character]};")
    if character == "\t":
        escapes.append(r"\\{1,4}t")
    if character == " ":
        escapes.append("[+]")
    escaped = f"(?i:{'|'.join(escapes)})"
    if character == "\\":  # each level of quoting doubles them
        return rf"(?:{escaped}|\\){{{len(characters)},{4 * len(characters)}}}"
    if character.isalnum() and character.isascii():
        return f"(?:{character}|{escaped})"
    return rf"(?:\\{{0,4}}{re.escape(character)}|{escaped})"


@lru_cache(maxsize=512)
def _pattern(characters: str) -> re.Pattern[str]:
    return re.compile(_in_any_form(characters), re.IGNORECASE)


def _in_base64(value: str) -> list[str]:
    """Return the base64 characters that a value alone determines, for each of three alignments."""
    content = value.encode()
    aligned = []
    for before in range(3):
        text = b64encode(bytes(before) + content).decode()
        first = (0, 2, 3)[before]
        last = (before + len(content)) * 8 // 6
        aligned.append(text[first:last])
    return aligned


class _Forms:
    """Replaces a value in whatever form a text contains it."""

    def __init__(self, value: str) -> None:
        self._value = value
        self._start_word = _longest_word(value[:_START]).lower()
        forms = [_in_any_form(character) for character in _characters(value)]
        # A short value may be a word: if EMPTY is one, `empty` stays.
        self._any_form = re.compile(
            "".join(forms), re.IGNORECASE if len(value) >= _LONG else re.NOFLAG
        )
        # A substring of each form in hex or base64, and the form.
        self._packed: list[tuple[str, re.Pattern[str]]] = []
        self._start: re.Pattern[str] | None = None
        self._shortest_start = _LONG  # letters
        # Forms to search for among the letters and digits of a text alone.
        self._letters: list[str] = []
        if len(value) < _LONG:
            return
        self._start = re.compile("".join(forms[:_START]), re.IGNORECASE)
        octets = [f"{octet:02x}" for octet in value.encode()]
        for separator in ("", " ", ":"):
            form = separator.join(octets)
            self._packed.append((form[:_LONG], re.compile(form, re.IGNORECASE)))
        self._letters = _letter_forms(value)
        self._shortest_start = max(_START, len(_letters(value[:_LONG])))
        for text in _in_base64(value):
            form = text.replace("+", "[+-]").replace("/", "[/_]")  # in either alphabet
            around = "[A-Za-z0-9+/_-]{0,3}"  # the characters that hold the first and last bits
            self._packed.append(
                (_longest_word(text).lower(), re.compile(f"{around}{form}{around}={{0,2}}"))
            )

    def redact(self, text: str, name: str, *, escapes: bool, cut: bool) -> str:
        """Return the text with the name instead of the value.

        `escapes` says that it contains escaped characters, `cut` that it may contain only the start
        of the value.
        """
        text = text.replace(self._value, name)
        lowered = text.lower()
        # Searching 10 kB takes 4 µs for a word, 1.5 ms for all forms.
        if escapes or self._start_word in lowered:
            text = self._any_form.sub(lambda _: name, text)
            if cut:
                text = self._without_start(text, name)
        for substring, form in self._packed:
            if substring in lowered:
                text = form.sub(lambda _: name, text)
        return text

    def redact_letters(self, text: str, name: str) -> str:
        """Return the text without the value, even if other characters separate its letters.

        At the end of the text the start of the value is enough: a token budget may have cut off the
        rest.
        """
        letters = _letters(text)
        spans = []
        for form in self._letters:
            start = letters.find(form)
            while start >= 0:
                spans.append((start, start + len(form)))
                start = letters.find(form, start + len(form))
            start = _cut_off(letters, form, self._shortest_start)
            if start >= 0:
                spans.append((start, len(letters)))
        if not spans:
            return text
        positions = [letter.start() for letter in _LETTER.finditer(text)]
        next_start = len(positions)
        for start, end in sorted(spans, reverse=True):
            last = min(end, next_start) - 1  # forms may overlap
            text = text[: positions[start]] + name + text[positions[last] + 1 :]
            next_start = start
        return text

    def _without_start(self, text: str, name: str) -> str:
        """Return the text with the name instead of the start of the value, however far it goes."""
        if self._start is None:
            return text
        match = self._start.search(text)
        while match:
            end = match.end()
            for character in _characters(self._value)[_START:]:
                following = _pattern(character).match(text, end)
                if following is None:
                    break
                end = following.end()
            text = text[: match.start()] + name + text[end:]
            match = self._start.search(text, match.start() + len(name))
        return text


def _letters(text: str) -> str:
    return _NO_LETTERS.sub("", text).lower()


def _letter_forms(value: str) -> list[str]:
    """Return the letters and digits of a value, plain and in the encodings that programs print."""
    octets = value.encode()
    forms = [
        value,
        octets.hex(),
        "".join(f"0x{octet:02x}" for octet in octets),
        "".join(f"u{octet:x}" for octet in octets),
        "".join(f"{octet:03o}" for octet in octets),
        "".join(f"{octet}" for octet in octets),
        # The characters after these depend on the octets that follow.
        b32encode(octets).decode()[: len(octets) * 8 // 5],
        *_in_base64(value),
    ]
    spellings = [_letters(form) for form in forms]
    return [spelling for spelling in spellings if len(spelling) >= _LONG]


def _cut_off(letters: str, form: str, shortest: int) -> int:
    """Return where a text's end becomes the start of a form, -1 if it doesn't.

    `shortest` is the fewest letters of the form that count.
    """
    for length in range(len(form) - 1, shortest - 1, -1):
        if letters.endswith(form[:length]):
            return len(letters) - length
    return -1


def _longest_word(text: str) -> str:
    return max(re.findall("[A-Za-z0-9_-]+", text), key=len, default="")


class Secrets:
    """The variables that settings refer to: fills in their values, and redacts them in texts."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}  # by value, the longest value first
        self._forms: dict[str, _Forms] = {}  # by value

    def hide(self, value: str, name: str) -> str:
        """Register a value that texts shall show as `$NAME`, and return it."""
        names = {**self._names, value: f"${name}"}
        self._names = dict(sorted(names.items(), key=lambda item: -len(item[0])))
        self._forms[value] = _Forms(value)
        return value

    def fill(self, text: str) -> str:
        """Return the text with each `$NAME` or `${NAME}` replaced by its value."""

        def value_of(reference: re.Match[str]) -> str:
            name = reference[1] or reference[2]
            return self.hide(_read(name), name)

        return REFERENCE.sub(value_of, text)

    def fill_url(self, url: str) -> str:
        """Return a URL with its references filled in, percent-encoded before an @ or after a ?."""
        at = url.find("@")
        query = url.find("?")

        def value_of(reference: re.Match[str]) -> str:
            name = reference[1] or reference[2]
            value = self.hide(_read(name), name)
            in_login = reference.end() <= at
            in_query = -1 < query < reference.start()
            if in_login or in_query:
                return self.hide(quote(value, safe=""), name)
            return value

        return REFERENCE.sub(value_of, url)

    def fill_json(self, value: Any) -> Any:
        """Return JSON in which each text that is exactly `$NAME` is replaced by its value."""
        if isinstance(value, Mapping):
            return {key: self.fill_json(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.fill_json(item) for item in value]
        if isinstance(value, str) and REFERENCE.fullmatch(value):
            return self.fill(value)
        return value

    def redact(self, text: str, shortest: int = 4) -> str:
        """Return the text with every secret of at least `shortest` characters as its `$NAME`.

        A small `shortest` is for error messages, in which a program may have cut a secret off.
        """
        escapes = any(re.search(escape, text) for escape in _ESCAPES)
        for value, name in self._names.items():
            if len(value) >= shortest:
                text = self._forms[value].redact(text, name, escapes=escapes, cut=shortest < _LONG)
                text = self._forms[value].redact_letters(text, name)
        return text


def _has_key(text: str) -> bool:
    """Return whether a text contains something in the form of an API key, whatever it is called."""
    return any(re.search("[0-9]", key) for key in _KEY.findall(text)) or "PRIVATE KEY-----" in text


def without_keys(text: str) -> str:
    """Return a text with `[key]` for whatever has the form of a provider's API key."""
    if not any(start in text for start in _KEY_STARTS):
        return text
    return _KEY.sub(_without_key, text)


def _without_key(match: re.Match[str]) -> str:
    if re.search("[0-9]", match[0]):
        return "[key]"
    return match[0]


def check_texts(
    value: Any, hint: str = 'write "$NAME" instead, and export NAME=… in the shell'
) -> None:
    """Raise `UserError` for a text that looks like an API key.

    It isn't repeated: error messages end up in logs.
    """
    if isinstance(value, str) and _has_key(value):
        raise UserError("this looks like an API key, which a study must not contain", hint=hint)
    if isinstance(value, Mapping):
        for name, inner in value.items():
            check_texts(str(name), hint)
            check_texts(inner, hint)
    elif isinstance(value, list | tuple):
        for inner in value:
            check_texts(inner, hint)


def check_url(url: str) -> None:
    """Raise `UserError` for a URL that contains a password, or a key as a parameter."""
    try:
        parts = urlsplit(url)
        user, _, password = parts.netloc.rpartition("@")[0].partition(":")
        secrets = []
        if "@" in parts.netloc:
            secrets.append(password or user)
        for name, value in parse_qsl(parts.query):
            if _SECRET_PARAMETER.search(name) or _secret(name):
                secrets.append(value)
    except ValueError:
        raise UserError("the URL is not valid", hint='url = "http://127.0.0.1:8000/v1"') from None
    if not all(REFERENCE.fullmatch(secret) for secret in secrets):
        raise UserError(
            "a study must not contain a password or a key, not in a URL either",
            hint='url = "https://user:$NAME@host/v1", and export NAME=… in the shell',
        )
    check_texts(url, 'url = "https://host/v1?name=$NAME", and export NAME=… in the shell')


def check_headers(headers: Mapping[str, str]) -> None:
    """Raise `UserError` for a header that is secret by its name but isn't read from a variable."""
    for name, value in headers.items():
        if _SECRET_HEADER.search(name) and not _HEADER_VALUE.fullmatch(value):
            hint = (
                f'headers = {{ {name} = "$NAME" }} or "Bearer $NAME", '
                "and export NAME=… in the shell"
            )
            raise UserError(f"a study must not contain the value of the header `{name}`", hint=hint)
        if _HEADER_LOGIN.match(value) or _has_key(value) or _has_random_word(value):
            hint = f'headers = {{ {name} = "$NAME" }}, and export NAME=… in the shell'
            raise UserError(
                f"the header `{name}` looks like a key, which a study must not contain", hint=hint
            )


def _has_random_word(value: str) -> bool:
    """Return whether a header's value contains random characters, except in an address."""
    for word in _RANDOM.findall(re.sub(r"\w+://\S+", "", value)):
        digits = len(re.findall("[0-9]", word))
        if 4 <= digits <= len(word) - 4 and len(set(word)) >= 8 and not _COMMIT.fullmatch(word):
            return True
    return False


def check_sendable(headers: Mapping[str, str]) -> None:
    """Raise `UserError` for a header that HTTP can't send.

    The value isn't repeated: it may be a secret.
    """
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise UserError(
                f"{name!r} can't be the name of a header", hint="letters, digits and hyphens"
            )
        if _CONTROL.search(value):
            hint = "is the variable's value on one line?"
            raise UserError(
                f"the header `{name}` contains a line break or another control character", hint=hint
            )


def check_body(body: Any) -> None:
    """Raise `UserError` for a field that is secret by its name but isn't read from a variable."""
    for name, value in _fields(body):
        if _secret(name) and any(not REFERENCE.fullmatch(text) for text in _texts(value)):
            hint = f'{name} = "$NAME", and export NAME=… in the shell'
            raise UserError(f"a study must not contain the value of the field `{name}`", hint=hint)
    check_texts(body)


def _secret(name: str) -> bool:
    """Return whether a field of this name holds a secret."""
    if _SECRET_FIELD.search(name):
        return True
    if not name.lower().endswith("token"):
        return False
    before = name.lower().removesuffix("token").rstrip("-_.")
    return re.split("[-_.]", before)[-1] not in _VOCABULARY


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
    """Yield every text in a value, except in fields that are never secret."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            if name not in _OPEN_FIELDS:
                yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)
