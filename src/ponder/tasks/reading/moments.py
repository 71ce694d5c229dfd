"""Reads dates and times of day: "21 July 1969", "March 1st", "10:05 p.m."."""

from __future__ import annotations

import re
from typing import NamedTuple

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = (
    r"(jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    r"|nov(?:ember)?|dec(?:ember)?)\.?"
)
_DAY = r"(\d{1,2})(?:st|nd|rd|th)?"
_MONTH_FIRST = re.compile(
    rf"\b{_MONTH}\s{{1,3}}(?:the\s)?{_DAY}\b(?:,?\s{{1,3}}(\d{{4}})\b)?", re.IGNORECASE
)
_DAY_FIRST = re.compile(
    rf"\b{_DAY}\.?\s{{1,3}}(?:of\s)?{_MONTH}\b(?:,?\s{{1,3}}(\d{{4}})\b)?", re.IGNORECASE
)
_NUMERIC = re.compile(r"\b(\d{4})-(\d{2})-(\d{2})\b")
_CLOCK = re.compile(
    r"\b(\d{1,2})[:.](\d{2})(?::\d{2})?\s?([ap])\.?\s?m\b\.?|\b(\d{1,2}):(\d{2})\b(?!:)",
    re.IGNORECASE,
)
_HOUR = re.compile(r"(?<![:.\d])(\d{1,2})\s?([ap])\.?\s?m\b\.?", re.IGNORECASE)


class Moment(NamedTuple):
    """A date, whose year may be missing (0), or a time of day, whose half may be unknown."""

    first: int  # month, or hour from 0 to 23
    second: int  # day, or minute
    third: int  # year, or 1 if the half of the day is known
    is_time: bool

    def matches(self, right: Moment) -> bool:
        """Return whether this is the right moment, as far as both say it."""
        if self.is_time != right.is_time or self.second != right.second:
            return False
        # "7:45" and "7:45 PM", but "19:45" is only one of them
        if self.is_time and not (self.third and right.third):
            return self.first == right.first or (
                max(self.first, right.first) - 12 == min(self.first, right.first)
            )
        if self.is_time:
            return self.first == right.first
        return self.first == right.first and (
            self.third == right.third or not (self.third and right.third)
        )

    def __str__(self) -> str:
        if self.is_time:
            return f"{self.first}:{self.second:02}"
        day = f"{_MONTHS[self.first - 1].title()} {self.second}"
        return f"{day}, {self.third}" if self.third else day


def moments(text: str) -> list[Moment]:
    """Return the dates and times in a text, in order."""
    text = text[:20_000]
    spans: dict[int, Moment] = {}
    for match in _MONTH_FIRST.finditer(text):
        spans[match.start()] = _date(match[1], match[2], match[3])
    for match in _DAY_FIRST.finditer(text):
        spans[match.start()] = _date(match[2], match[1], match[3])
    for match in _NUMERIC.finditer(text):
        spans[match.start()] = Moment(int(match[2]), int(match[3]), int(match[1]), is_time=False)
    for match in _HOUR.finditer(text):
        spans[match.start()] = _time(match[1], "0", match[2])
    for match in _CLOCK.finditer(text):
        spans[match.start()] = _time(match[1] or match[4], match[2] or match[5], match[3])
    return [spans[start] for start in sorted(spans) if _exists(spans[start])]


def moment(text: str) -> Moment | None:
    """Return the date or time that a right answer is; None if it is something else."""
    stated = moments(text) if len(text) <= 40 else []
    if len(stated) != 1:
        return None
    remaining = text
    for form in (_MONTH_FIRST, _DAY_FIRST, _NUMERIC, _CLOCK, _HOUR):
        remaining = form.sub("", remaining, count=1)
    return (
        None
        if re.search(r"\w", re.sub(r"\b(?:on|at|the|in)\b", "", remaining, flags=re.IGNORECASE))
        else stated[0]
    )


def _date(month: str, day: str, year: str | None) -> Moment:
    return Moment(_MONTHS.index(month[:3].lower()) + 1, int(day), int(year or 0), is_time=False)


def _time(hour: str, minute: str, half: str | None) -> Moment:
    if half is None:
        return Moment(int(hour), int(minute), int(int(hour) > 12), is_time=True)
    return Moment(int(hour) % 12 + (12 if half.lower() == "p" else 0), int(minute), 1, is_time=True)


def _exists(moment: Moment) -> bool:
    if moment.is_time:
        return moment.first <= 24 and moment.second < 60
    return 1 <= moment.first <= 12 and 1 <= moment.second <= 31
