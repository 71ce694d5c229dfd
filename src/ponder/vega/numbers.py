"""Numbers on axes: which ones are marked, and how they are written, as Vega marks and writes them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_UP, Context, Decimal

from ponder.vega.unknown import Unknown

Write = Callable[[float], str]
SPECIFIER = re.compile(r"([+-]?)(,?)(?:\.(\d+))?(~?)([defgprs%]?)")
PREFIXES = "yzafpnµm kMGTPEZY"


def step(low: float, high: float, count: float) -> float:
    """The distance between marks: 1, 2 or 5 times a power of ten; 0 if there are none."""
    if not (high > low and count > 0):
        return 0.0
    wanted = (high - low) / count
    power = math.floor(math.log10(wanted))
    error = wanted / 10.0**power
    factor = 10 if error >= math.sqrt(50) else 5 if error >= math.sqrt(10) else 2 if error >= math.sqrt(2) else 1
    return factor * 10.0**power if power >= 0 else -(10.0**-power) / factor  # below 1, its reciprocal, which is exact


def ticks(low: float, high: float, count: float) -> list[float]:
    """About so many round numbers from low to high."""
    if low == high:
        return [low]
    size = step(low, high, count)
    if not size:
        return []
    scaled = (low / size, high / size) if size > 0 else (low * -size, high * -size)
    first, last = math.ceil(scaled[0] - 1e-9), math.floor(scaled[1] + 1e-9)
    if last < first and 0.5 <= count < 2:
        return ticks(low, high, 2 * count)
    return [i * size if size > 0 else i / -size for i in range(first, last + 1)]


def log_ticks(low: float, high: float, count: int) -> list[float]:
    """Whole multiples of powers of ten, or of many powers some."""
    first, last = math.log10(low), math.log10(high)
    if last - first >= count:
        return [10.0**power for power in ticks(first, last, min(last - first, count))]
    powers = range(math.floor(first), math.ceil(last) + 1)
    found = [k * 10.0**p if p >= 0 else k / 10.0**-p for p in powers for k in range(1, 10)]
    found = [value for value in found if low <= value <= high]
    return found if 2 * len(found) >= count else ticks(low, high, count)


def rounded_ends(low: float, high: float, count: int = 10) -> tuple[float, float]:
    """The ends moved out to round numbers."""
    before = 0.0
    for _ in range(10):
        size = step(low, high, count)
        if size in (before, 0.0):
            break
        scaled = (low / size, high / size) if size > 0 else (low * -size, high * -size)
        ends = math.floor(scaled[0]), math.ceil(scaled[1])
        low, high = (ends[0] * size, ends[1] * size) if size > 0 else (ends[0] / -size, ends[1] / -size)
        before = size
    return low, high


@dataclass(frozen=True)
class Format:
    """A number format of d3, such as `,.0f`, `.3~s` or `%`; without fill, alignment, width or currency."""

    sign: str = ""
    comma: bool = False
    precision: int | None = None
    trim: bool = False
    type: str = ""

    @classmethod
    def parse(cls, specifier: str) -> Format:
        found = SPECIFIER.fullmatch(specifier)
        if not found:
            raise Unknown(f"the number format `{specifier}`")
        sign, comma, precision, trim, kind = found.groups()
        return cls(sign, bool(comma), int(precision) if precision else None, bool(trim), kind)

    def __call__(self, value: float) -> str:
        if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "∞" if value > 0 else "−∞"
        text, suffix = _unsigned(abs(value), self)
        whole, point, part = text.partition(".")
        tail = ""
        if "e" in text:
            whole, point, part = text.partition("e")[0].partition(".")
            tail = "e" + text.partition("e")[2]
        if self.trim or not self.type:
            part = part.rstrip("0")
        if self.comma:
            whole = f"{int(whole):,}"
        negative = value < 0 and (self.sign == "+" or any(c in "123456789" for c in whole + part))
        return (
            ("−" if negative else "+" if self.sign == "+" else "")
            + whole
            + (point if part else "")
            + part
            + tail
            + suffix
        )


def _unsigned(value: float, form: Format) -> tuple[str, str]:
    precision = form.precision if form.precision is not None else 6 if form.type else 12
    if form.type == "d":
        return str(math.floor(value + 0.5)), ""
    if form.type in ("f", "%"):
        exact = Decimal(value) * (100 if form.type == "%" else 1) if form.type == "f" else Decimal(value * 100)
        return f"{exact.quantize(Decimal(1).scaleb(-precision), ROUND_HALF_UP, Context(prec=400)):f}", form.type.strip(
            "f"
        )
    if form.type == "e":
        number = _significant(value, precision + 1)
        power = number.adjusted() if number else 0
        return f"{number.scaleb(-power):f}e{power:+d}", ""
    number = _significant(value * 100 if form.type == "p" else value, max(1, precision))
    power = number.adjusted() if number else 0
    if form.type == "s":
        third = _third(power)
        return f"{number.scaleb(-3 * third):f}", PREFIXES[third + 8].strip()
    if form.type in ("", "g") and not -7 < power < max(1, precision):
        return f"{number.scaleb(-power):f}e{power:+d}", ""
    return f"{number:f}", "%" if form.type == "p" else ""


def _significant(value: float, digits: int) -> Decimal:
    found = Context(prec=digits, rounding=ROUND_HALF_UP).create_decimal(value)
    return found.quantize(Decimal(1).scaleb((found.adjusted() if found else 0) - digits + 1), context=Context(prec=60))


def tick_format(specifier: str | None, low: float, high: float, count: float) -> Write:
    """As many digits as tell the marks of a linear axis apart, unless the format says how many."""
    form = Format.parse(",f" if specifier is None else specifier)
    if form.precision is not None or form.type == "d":
        return form
    size = step(low, high, count)
    small = _power(-1 / size if size < 0 else size)
    most = max(abs(low), abs(high))
    if form.type in ("f", "%"):
        return replace(form, precision=max(0, -small - 2 * (form.type == "%")))
    if form.type == "s":
        third = _third(_power(most))
        plain = replace(form, type="f", precision=max(0, 3 * third - small))
        return lambda value: plain(value * 10.0 ** (-3 * third)) + PREFIXES[third + 8].strip()
    digits = max(0, _power(most - abs(-1 / size if size < 0 else size)) - small) + 1
    return replace(form, precision=digits - (form.type == "e"))


def _third(power: int) -> int:
    """Of which power of a thousand there is a prefix."""
    return max(-8, min(8, power // 3))


def _power(value: float) -> int:
    return Decimal(repr(abs(value))).adjusted() if value else 0


def log_format(specifier: str | None, marks: Sequence[float], *, count: int, skip: bool) -> Write:
    """All digits that a number has; on a crowded axis only the first multiples of each power of ten are written."""
    form = Format.parse(specifier or ",")
    if form.precision is None and form.type != "d":
        form = replace(form, precision=12 - {"%": 2, "e": 1}.get(form.type, 0), trim=True)
    most = max(1.0, 10.0 * count / len(marks)) if marks else 1.0

    def write(value: float) -> str:
        lead = value / 10.0 ** math.floor(math.log10(value) + 0.5)
        return form(value) if (10 * lead if 10 * lead < 9.5 else lead) <= most else ""

    return write if skip else form
