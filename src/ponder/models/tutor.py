"""Writes worked solutions in the pocket model's words, by rule: right ones, or with one consistent error.

It is a teacher for experiments on which traces to train on: all its traces have one style and length, and only their
quality differs. With `slip = "carry"` it forgets every carry or borrow from tens to hundreds on `execution`, and
continues from the wrong sum. A few of its answers are right all the same: the sum never crossed a hundred, or two
errors cancelled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ponder.core import Bill, Completion, Model, ModelFailure, Request, Task, UserError, not_in_key, seed_from
from ponder.models.pocket import Pocket, codec_for
from ponder.models.pocket.codec import ANSWER, EOS, PocketCodec
from ponder.models.pocket.execution import added, digits, number


@dataclass(kw_only=True)
class Tutor(Model):
    slip: Literal["", "carry"] = ""  # what it does wrong every time: carry, it forgets the one from tens to hundreds
    fraction: float = 1.0  # of the problems on which it does so; it solves the others right
    concurrency: int = not_in_key(64)  # answers in progress at once

    def __post_init__(self) -> None:
        if not 0 <= self.fraction <= 1:
            raise UserError(f"fraction is a number from 0 to 1, not {self.fraction}", hint="fraction = 0.75")

    def check(self, task: Task, size: int) -> None:
        codec_for(task.plugin_name()).check(task, size)
        if self.slip and task.plugin_name() != "execution":
            what = f"slip = {self.slip!r} is an error in sums, and {task.plugin_name()} has none"
            raise UserError(what, hint="leave out `slip`, or use the task execution")

    def codec_name(self, task: Task) -> str:  # noqa: ARG002 it has no other
        return Pocket.plugin_name()

    async def complete(self, request: Request) -> Completion:
        codec = codec_for(request.task.plugin_name())
        example = codec.lesson(request)
        if example is None:
            raise ModelFailure("the tutor can't solve this problem")
        said = _without_carry(codec, example.said) if self.slips(request) else example.said
        tokens = codec.encode(said)
        thinking, answer, thought = codec.reply(request, tokens)
        bill = Bill(len(example.prompt), thought, len(said) - thought, counted_by="tokenizer")
        return Completion(thinking, answer, "end", bill, tokens=tokens)

    def slips(self, request: Request) -> bool:
        """Whether it makes its error on this problem: all tutors agree on the order in which problems are affected."""
        return bool(self.slip) and seed_from("tutor", request.problem.id) < self.fraction * 2**63


def _without_carry(codec: PocketCodec, said: list[str]) -> list[str]:
    """The reply with each sum as it comes out if the carry from tens to hundreds is dropped."""
    first, *steps = codec.steps(said[: said.index(ANSWER)])
    words, total = first, _total(first)
    for step, key, value, *_ in steps:
        units, tens = added(total, int(value))[:2]
        sums = [units, tens[:2], *digits(total)[2:]]
        words, total = [*words, step, key, value, *sums], _total(sums)
    return [*words, ANSWER, *digits(total), EOS]


def _total(words: list[str]) -> int:
    total = number(words)
    assert total is not None
    return total
