"""One line of a user's JSONL file."""

from __future__ import annotations

from typing import Any

import msgspec

from ponder.core import Message, Problem, digest


class ProblemLine(msgspec.Struct, forbid_unknown_fields=True):
    """One line of the file."""

    prompt: str
    # The right answer. Each grader accepts other kinds of JSON.
    answer: Any = msgspec.UNSET
    size: int = 0
    id: str = ""
    system: str = ""
    history: tuple[Message, ...] = ()  # earlier messages
    facts: dict[str, Any] = {}
    solution: str = ""  # a right reply, if it doesn't follow from the answer
    rubric: str = ""  # of this line, for a judge, after the task's

    @property
    def expected(self) -> Any:
        """The answer; None if the line has none."""
        if self.answer is msgspec.UNSET:
            return None
        return self.answer

    def problem(self, instruction: str) -> Problem:
        """Return the problem, with an instruction appended to its prompt."""
        gold = self.expected
        if isinstance(gold, str | int | float) and not isinstance(gold, bool):
            gold = str(gold)
        content: list[Any] = [self.prompt, str(gold)]
        if self.history:
            content.append([[message.role, message.content] for message in self.history])
        name = self.id or digest(*content).hex()
        prompt = self.prompt
        if instruction:
            prompt = f"{prompt}\n\n{instruction}"
        turns = (prompt,)
        return Problem(name, self.size, turns, gold, self.system, self.history, self.facts)
