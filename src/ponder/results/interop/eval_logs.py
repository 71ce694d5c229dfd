"""What the logs of other evaluation programs have in common: problems, replies, and the scores of
several scorers.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import msgspec

from ponder.core import Completion, Problem, UserError
from ponder.core.jsonl import NESTED, check_values
from ponder.core.text import plain

T = TypeVar("T")
DAMAGED = "copy it again, or leave it out: the other logs can be imported without it"
LARGE = "a sample this large can't be imported: write the log without its events, or leave it out"


class Score(NamedTuple):
    """One scorer's judgement of one reply."""

    value: float | None  # None: not scored, which is not wrong
    answer: str = ""  # the answer that the scorer has read; "" if it read none or doesn't say
    why: str = ""  # why there is no value


class Sample(NamedTuple):
    """One reply of a log."""

    problem: Problem
    epoch: int  # from 0
    completion: Completion
    scores: Mapping[str, Score]
    error: str = ""  # why there is no reply
    limit: str = ""  # what cut it short, such as `token`


@dataclass(kw_only=True)
class Log(ABC):
    """A log that can be read more than once."""

    path: Path
    task: str
    model: str
    run: str  # equal for a run and its retries, different for any other run
    created: str
    settings: Mapping[str, Any] = field(default_factory=dict)  # how the model was asked
    scorers: tuple[str, ...] = ()  # the headline one first
    tell_answers: tuple[str, ...] = ()  # scorers that name the answer of every reply that has one

    # Whether each problem was asked equally often; only then do k samples of it mean something.
    even: ClassVar[bool] = True

    @abstractmethod
    def samples(self, size: str = "") -> Iterator[Sample]:
        """Yield its samples.

        `size` is the key of the metadata that holds a problem's size; "": all have size 0.
        """


def decode(content: bytes, kind: type[T], where: str, hint: str = DAMAGED) -> T:
    """Decode JSON as a type. A log may hold NaN, which JSON proper doesn't have: no score."""
    check_values(content, where, LARGE)
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return msgspec.convert(json.loads(content), kind)
    except RecursionError:
        raise UserError(f"this log can't be read: {NESTED}", where=where, hint=hint) from None
    except ValueError as error:  # also msgspec's
        raise UserError(
            f"this log can't be read: {plain(error, 'an object')}", where=where, hint=hint
        ) from None


def size_of(metadata: Mapping[str, Any], key: str, where: str) -> int:
    """Return a problem's size: a whole number, also one inside a text, such as `Level 5`."""
    if not key:
        return 0
    if key not in metadata:
        keys = ", ".join(metadata) or "nothing"
        raise UserError(
            f"there is no `{key}`, the size that --size asks for",
            where=where,
            hint=f"it has {keys}",
        )
    value = metadata[key]
    number = re.fullmatch(r"\D*(\d{1,15})(?:\.0+)?\D*", str(value))
    if isinstance(value, bool) or not number:
        message = f"`{key}` is {json.dumps(value, default=str)[:60]}, which is not a size"
        raise UserError(
            message, where=where, hint="--size needs whole numbers, or texts with one number"
        )
    return int(number[1])
