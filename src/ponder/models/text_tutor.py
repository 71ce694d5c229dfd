"""Writes worked solutions of sums in plain text, by rule: a teacher for chat models (`sft`).

It knows what is to be added (`Addends`: `chain_sum` and `execution`) and writes one paragraph per
addition. The style `steps` states each sum; `parts` adds tens and units separately, then both, and
checks the result by subtracting. With `slip = "carry"` it forgets every carry and borrow between
units and tens, and continues from the wrong sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ponder.core import Addends, Bill, Completion, Request, Task, UserError
from ponder.models._slipping import Slipping


@dataclass(kw_only=True)
class TextTutor(Slipping):
    # states each sum, or works it out in parts and checks it
    style: Literal["steps", "parts"] = "steps"

    def check(self, task: Task, size: int) -> None:  # noqa: ARG002 the interface's
        if not isinstance(task, Addends):
            what = f"{task.plugin_name()} isn't a sum, and text_tutor writes nothing else"
            raise UserError(what, hint="use the task chain_sum or execution")

    def title(self) -> str:
        wrong = f", {self.slip} forgotten in {self.fraction:.0%}" if self.slip else ""
        return f"{self.plugin_name()} ({self.style}{wrong})"

    async def complete(self, request: Request) -> Completion:
        assert isinstance(request.task, Addends)
        (_, total), *terms = request.task.addends(request.problem, request.turn)
        slips = self.slips(request)
        paragraphs = []
        for lookup, number in terms:
            new = without_carry(total, number) if slips else total + number
            work = (
                stated(total, number, new)
                if self.style == "steps"
                else in_parts(total, number, new)
            )
            paragraphs.append(f"{lookup}: {work}" if lookup else work)
            total = new
        answer = "\n\n".join([*paragraphs, f"<answer>{total}</answer>"])
        bill = Bill(
            sum(len(m.content) for m in request.messages) // 4,
            0,
            len(answer) // 3,
            counted_by="estimate",
        )
        return Completion("", answer, "end", bill)


def stated(total: int, number: int, result: int) -> str:
    return f"{total} {'-' if number < 0 else '+'} {abs(number)} = {result}"


def in_parts(total: int, number: int, result: int) -> str:
    """An addition with tens and units apart, and its check."""
    tens, units = _tens(total) + _tens(number), _units(total) + _units(number)
    work = (
        stated(_tens(total), _tens(number), tens),
        stated(_units(total), _units(number), units),
        stated(tens, units, result),
    )
    return f"{', '.join(work)}. So {stated(total, number, result)}. Check: {stated(result, -number, total)}."


def without_carry(total: int, number: int) -> int:
    """The sum if the carry, or the borrow, between units and tens is forgotten."""
    sign = -1 if total + number < 0 else 1
    tens, units = _tens(total) + _tens(number), _units(total) + _units(number)
    return sign * (sign * tens + sign * units % 10)


def _units(number: int) -> int:
    return abs(number) % 10 * (-1 if number < 0 else 1)


def _tens(number: int) -> int:
    """All but the units."""
    return number - _units(number)
