"""What some plugins can do beside what their interface asks of all: small classes to inherit next to `Task` or `Model`.

    class Execution(Task, Conversation, Drawable):

The functions below ask a plugin for such an ability, and say what holds for a plugin without it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ponder.core.contracts import Task
from ponder.core.nouns import Completion, Grade, Memory, Message, Problem

if TYPE_CHECKING:
    from ponder.core.drawing import Drawing

LONG_ANSWER = 10_000  # characters that any built-in grader reads within a millisecond


class Conversation(ABC):
    """A task whose turns each have an answer."""

    @abstractmethod
    def solve_turn(self, problem: Problem, turn: int) -> str:
        """Return a right answer to one turn."""

    @abstractmethod
    def grade_turns(self, problem: Problem, answers: Sequence[str]) -> Grade:
        """Judge all answers together."""

    def turn_grades(self, problem: Problem, answers: Sequence[str]) -> Sequence[Grade]:  # noqa: ARG002 for subclasses
        """Judge each turn by itself, for exports; empty if only all turns together are judged."""
        return ()

    def history_entry(self, answer: str) -> str:
        """Return what is kept of a reply in the history under `remember = "answers"`."""
        return answer


class ParsesAnswers(ABC):
    """A task that reads an answer without grading it: grading is slow, or judges all turns at once."""

    @abstractmethod
    def parse(self, problem: Problem, answer: str) -> Any:
        """Return the answer of one turn as JSON, right or wrong; None if there is no answer."""


class ComparesAnswers(ABC):
    """A task in which two parsed answers may be the same though they aren't equal, such as 0.5 and 1/2."""

    @abstractmethod
    def same_answer(self, one: Any, other: Any) -> bool:
        """Return whether two parsed answers are the same, and so vote together."""


class SlowGrading:
    """A task whose `grade` may take longer than a millisecond for a short answer: it is called in a thread."""


class Drawable:
    """A task that shows its problems and answers to a reader."""

    def drawings(self, problem: Problem, answers: Sequence[str]) -> Sequence[Drawing]:  # noqa: ARG002 for subclasses
        """Draw the problem with the answers of its turns; the first is shown, others can be chosen."""
        return ()

    def right_answer(self, problem: Problem) -> Any:
        """Return the right answer as JSON, if `gold` is more than that."""
        return problem.gold


class CheckedSteps(ABC):
    """A task that checks the steps of a solution."""

    @classmethod
    @abstractmethod
    def sound_steps(cls, problem: Problem, steps: Sequence[str]) -> Sequence[bool] | None:
        """Return for each step whether it and all before it are right; None if the text can't be checked."""


class Addends(ABC):
    """A task whose answers are sums. Teachers that write worked solutions use it."""

    @abstractmethod
    def addends(self, problem: Problem, turn: int) -> Sequence[tuple[str, int]]:
        """Return the terms of a turn's sum in order: how each number was obtained ("" if it is given), and it."""


class WithWarning(ABC):
    """A task with settings that are allowed but may be a mistake."""

    @abstractmethod
    def warning(self) -> str:
        """Describe what looks like a mistake; "" if nothing does."""


class FromLog:
    """A task or model whose attempts another program made: they are only in the store, with the grades of its log."""


def solve_turn(task: Task, problem: Problem, turn: int) -> str:
    """Return a right answer to one turn of a problem."""
    if isinstance(task, Conversation):
        return task.solve_turn(problem, turn)
    return task.solve(problem)


def solve_turns(task: Task, problem: Problem) -> list[str]:
    """Return a right answer to each turn of a problem."""
    return [solve_turn(task, problem, turn) for turn in range(len(problem.turns))]


def grade_turns(task: Task, problem: Problem, answers: Sequence[str]) -> Grade:
    """Judge the answers of all turns; the last one counts if the task isn't a conversation."""
    if isinstance(task, Conversation):
        return task.grade_turns(problem, answers)
    return task.grade(problem, answers[-1])


def parse_answer(task: Task, problem: Problem, answer: str) -> Any:
    """Return the answer of one turn as JSON, right or wrong; None if there is no answer."""
    if isinstance(task, ParsesAnswers):
        return task.parse(problem, answer)
    return task.grade(problem, answer).parsed


def parse_turns(task: Task, problem: Problem, answers: Sequence[str]) -> Any:
    """Return the answer of a whole attempt as JSON, right or wrong; None if there is no answer."""
    if not answers:
        return None
    if len(problem.turns) > 1:
        return grade_turns(task, problem, answers).parsed
    return parse_answer(task, problem, answers[-1])


def right_answer(task: Task, problem: Problem) -> Any:
    """Return the right answer as JSON, to be shown next to what `parse_turns` finds."""
    if isinstance(task, Drawable):
        return task.right_answer(problem)
    return problem.gold


def same_answer(task: Task, one: Any, other: Any) -> bool:
    """Return whether two parsed answers are the same."""
    if isinstance(task, ComparesAnswers):
        return task.same_answer(one, other)
    return bool(one == other)


def grades_slowly(task: Task, answers: Iterable[str]) -> bool:
    """Return whether these answers should be graded in a thread, so that a run's other calls don't wait."""
    return isinstance(task, SlowGrading) or sum(map(len, answers)) > LONG_ANSWER


def history_message(task: Task, memory: Memory, completion: Completion) -> Message:
    """Return a completion as it stands in the history of later turns."""
    text = completion.answer
    if memory.remember == "answers" and isinstance(task, Conversation):
        text = task.history_entry(completion.answer)
    elif memory.remember == "all" and completion.thinking:
        text = f"<think>{completion.thinking}</think>\n{completion.answer}"
    return Message("assistant", text)
