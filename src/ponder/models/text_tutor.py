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
            message = f"{task.plugin_name()} isn't a sum, and text_tutor writes nothing else"
            raise UserError(message, hint="use the task chain_sum or execution")

    def title(self) -> str:
        style: str = self.style
        if self.slip:
            style = f"{style}, {self.slip} forgotten in {self.fraction:.0%}"
        return f"{self.plugin_name()} ({style})"

    async def complete(self, request: Request) -> Completion:
        assert isinstance(request.task, Addends)
        (_, total), *terms = request.task.addends(request.problem, request.turn)
        slips = self.slips(request)
        paragraphs = []
        for lookup, number in terms:
            result = total + number
            if slips:
                result = without_carry(total, number)
            if self.style == "steps":
                work = stated(total, number, result)
            else:
                work = in_parts(total, number, result)
            if lookup:
                work = f"{lookup}: {work}"
            paragraphs.append(work)
            total = result
        answer = "\n\n".join([*paragraphs, f"<answer>{total}</answer>"])
        prompt_tokens = sum(len(message.content) for message in request.messages) // 4
        bill = Bill(prompt_tokens, 0, len(answer) // 3, counted_by="estimate")
        return Completion("", answer, "end", bill)


def stated(total: int, number: int, result: int) -> str:
    sign = "-" if number < 0 else "+"
    return f"{total} {sign} {abs(number)} = {result}"


def in_parts(total: int, number: int, result: int) -> str:
    """Return an addition with tens and units separately, and its check."""
    tens = _tens(total) + _tens(number)
    units = _units(total) + _units(number)
    work = (
        stated(_tens(total), _tens(number), tens),
        stated(_units(total), _units(number), units),
        stated(tens, units, result),
    )
    conclusion = stated(total, number, result)
    check = stated(result, -number, total)
    return f"{', '.join(work)}. So {conclusion}. Check: {check}."


def without_carry(total: int, number: int) -> int:
    """Return the sum without the carry, or the borrow, between units and tens."""
    sign = -1 if total + number < 0 else 1
    tens = _tens(total) + _tens(number)
    units = _units(total) + _units(number)
    return sign * (sign * tens + sign * units % 10)


def _units(number: int) -> int:
    sign = -1 if number < 0 else 1
    return sign * (abs(number) % 10)


def _tens(number: int) -> int:
    """Return all but the units."""
    return number - _units(number)
