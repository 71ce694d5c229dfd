"""Vega's expressions, as far as figures use them: `datum.value >= 1e6 ? format(datum.value, '~s') : 'few'`."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from ponder.vega.numbers import Format
from ponder.vega.unknown import Unknown

Row = Mapping[str, Any]
Code = Callable[[Row], Any]
TOKEN = re.compile(
    r"\s*(?:(\d+\.?\d*(?:e[+-]?\d+)?|\.\d+)|('[^']*'|\"[^\"]*\")|([A-Za-z_]\w*)|([=!]==?|[<>]=?|&&|\|\||.))"
)
LEVELS = (("||",), ("&&",), ("==", "===", "!=", "!=="), ("<", "<=", ">", ">="), ("+", "-"), ("*", "/", "%"))
COMPARED = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "format": lambda value, specifier: Format.parse(specifier)(value),
    "replace": lambda text, old, new: _text(text).replace(old, new, 1),
    "isValid": lambda value: value is not None,
    "round": lambda value: math.floor(value + 0.5),
    **{name: getattr(math, name) for name in ("floor", "ceil", "sqrt", "log", "exp", "pow")},
    "abs": abs,
    "min": min,
    "max": max,
}
WORDS = {"true": True, "false": False, "null": None}


@cache
def compiled(text: str) -> Code:
    """A function of a row, which the expression calls `datum`."""
    parser = _Parser(text)
    code = parser.choice()
    if parser.tokens:
        raise Unknown(f"the expression `{text}`")
    return code


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = [found.group().strip() for found in TOKEN.finditer(text.strip())]

    def take(self, *wanted: str) -> str:
        """The next token if it is one of those wanted, or else nothing."""
        return self.tokens.pop(0) if self.tokens and self.tokens[0] in wanted else ""

    def need(self, wanted: str) -> None:
        if not self.take(wanted):
            raise Unknown(f"the expression `{self.text}`")

    def choice(self) -> Code:
        test = self.binary(0)
        if not self.take("?"):
            return test
        yes = self.choice()
        self.need(":")
        no = self.choice()
        return lambda row: yes(row) if test(row) else no(row)

    def binary(self, level: int) -> Code:
        if level == len(LEVELS):
            return self.unary()
        left = self.binary(level + 1)
        while sign := self.take(*LEVELS[level]):
            left = _joined(sign, left, self.binary(level + 1))
        return left

    def unary(self) -> Code:
        if sign := self.take("!", "-", "+"):
            value = self.unary()
            return {"!": lambda row: not value(row), "-": lambda row: -value(row), "+": lambda row: +value(row)}[sign]
        return self.atom()

    def atom(self) -> Code:
        if self.take("("):
            inner = self.choice()
            self.need(")")
            return inner
        token = self.tokens.pop(0) if self.tokens else ""
        if token[:1] in ("'", '"') and len(token) > 1:
            return lambda _: token[1:-1]
        if token[:1].isdigit() or token[:1] == ".":
            number = float(token)
            return lambda _: number
        if token in WORDS:
            return lambda _: WORDS[token]
        if token == "datum":  # noqa: S105
            return self.field()
        if token in FUNCTIONS and self.take("("):
            given = [self.choice()]
            while self.take(","):
                given.append(self.choice())
            self.need(")")
            return lambda row: FUNCTIONS[token](*(value(row) for value in given))
        raise Unknown(f"`{token}` in the expression `{self.text}`")

    def field(self) -> Code:
        bracket = self.take("[")
        if not bracket:
            self.need(".")
        name = self.tokens.pop(0) if self.tokens else ""
        if bracket:
            self.need("]")
            name = name.strip("'\"")
        return lambda row: row.get(name)


def _joined(sign: str, left: Code, right: Code) -> Code:
    if sign == "||":
        return lambda row: left(row) or right(row)
    if sign == "&&":
        return lambda row: left(row) and right(row)
    if sign in COMPARED:
        return lambda row: None not in (a := left(row), b := right(row)) and COMPARED[sign](a, b)
    if sign[1:]:
        return lambda row: (left(row) == right(row)) == (sign[0] == "=")
    if sign == "+":
        return lambda row: _sum(left(row), right(row))
    work = {"-": operator.sub, "*": operator.mul, "/": operator.truediv, "%": math.fmod}[sign]

    def result(row: Row) -> Any:
        try:
            return work(left(row), right(row))
        except (TypeError, ZeroDivisionError):
            raise Unknown(f"an expression with `{sign}` of what can't be reckoned with") from None

    return result


def _sum(left: Any, right: Any) -> Any:
    return _text(left) + _text(right) if isinstance(left, str) or isinstance(right, str) else left + right


def _text(value: Any) -> str:
    return value if isinstance(value, str) else Format()(value) if isinstance(value, int | float) else str(value)
