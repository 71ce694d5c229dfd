"""Writes worked solutions in the pocket model's words, by rule, right or with one consistent error.

It is a teacher for experiments on which traces to train on: all its traces have one style and
length, and only their quality differs. With `slip = "carry"` it forgets every carry or borrow from
tens to hundreds on `execution`, and continues from the wrong sum. A few of its answers are right
all the same: the sum never crossed a hundred, or two errors cancelled.
"""

from __future__ import annotations

from dataclasses import dataclass

from ponder.core import Bill, Completion, ModelFailure, Request, Task, UserError, WithCodec
from ponder.models._slipping import Slipping
from ponder.models.pocket import Pocket, codec_for
from ponder.models.pocket.codec import ANSWER, EOS, PocketCodec
from ponder.models.pocket.execution import added, digits, number


@dataclass(kw_only=True)
class Tutor(Slipping, WithCodec):
    def check(self, task: Task, size: int) -> None:
        codec_for(task.plugin_name()).check(task, size)
        if self.slip and task.plugin_name() != "execution":
            message = f"slip = {self.slip!r} is an error in sums, and {task.plugin_name()} has none"
            raise UserError(message, hint="leave out `slip`, or use the task execution")

    def codec_name(self, task: Task) -> str:  # noqa: ARG002 it has no other
        return Pocket.plugin_name()

    async def complete(self, request: Request) -> Completion:
        codec = codec_for(request.task.plugin_name())
        example = codec.lesson(request)
        if example is None:
            raise ModelFailure("the tutor can't solve this problem")
        words = example.reply
        if self.slips(request):
            words = _without_carry(codec, words)
        tokens = codec.encode(words)
        thinking, answer, thinking_tokens = codec.reply(request, tokens)
        bill = Bill(
            prompt_tokens=len(example.prompt),
            thinking_tokens=thinking_tokens,
            answer_tokens=len(words) - thinking_tokens,
            counted_by="tokenizer",
        )
        return Completion(thinking, answer, "end", bill, tokens=tokens)


def _without_carry(codec: PocketCodec, reply: list[str]) -> list[str]:
    """Return the reply with each sum as it is without the carry from tens to hundreds."""
    start, *steps = codec.steps(reply[: reply.index(ANSWER)])
    words = [*start]
    total = _total(start)
    for step, key, value, *_ in steps:
        units, tens = added(total, int(value))[:2]
        sums = [units, tens[:2], *digits(total)[2:]]
        words += [step, key, value, *sums]
        total = _total(sums)
    return [*words, ANSWER, *digits(total), EOS]


def _total(words: list[str]) -> int:
    total = number(words)
    assert total is not None
    return total
