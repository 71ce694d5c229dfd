"""Grades attempts: what the task says of the answers, and how the attempt ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ponder.core import Attempt, Completion, Ended, Task, UserError
from ponder.core.capabilities import FromLog, grade_turns
from ponder.store.store import Store, reward_part
from ponder.study.study import StudySpec

NOTES = ("empty reply", "content filter", "refusal")  # as models write them into `Completion.note`
IMPORT_AGAIN = "`ponder import LOG --scorer NAME` takes another scorer of the log"


def graded(task: Task, attempt: Attempt) -> Attempt:
    """The attempt with its grade.

    A truncated attempt is wrong: the user paid for it and got nothing.
    """
    grade = grade_turns(task, attempt.problem, [c.answer for c in attempt.completions])
    truncated = any(c.stop == "length" for c in attempt.completions)
    # A server that says why it gave no answer knows better than the grader. Of a stored attempt,
    # its reason tells.
    noted = attempt.completions[-1].note or (attempt.why if attempt.why in NOTES else "")
    why = noted if grade.parsed is None else ""
    ended: Ended = "right" if grade.correct else "wrong"
    if truncated:
        ended = "truncated"
    elif grade.parsed is None:
        ended = "unparsed"
    details = {**grade.details, **_measured(attempt.completions), **reward_part(attempt.bill)}
    return replace(attempt, ended=ended, why=why or grade.why, details=details)


def _measured(turns: Sequence[Completion]) -> dict[str, float]:
    """The model's measurements, averaged over the turns."""
    names = dict.fromkeys(name for turn in turns for name in turn.measures)
    return {name: sum(t.measures.get(name, 0.0) for t in turns) / len(turns) for name in names}


def grade_again(study: StudySpec, store: Store) -> int:
    """Grade the stored answers of a study again with the current graders; returns how many grades
    changed.
    """
    changed = 0
    cells = [cell for cell in study.cells if not isinstance(cell.task, FromLog)]
    if not cells:
        raise UserError(
            "these attempts were graded by the program whose log they come from", hint=IMPORT_AGAIN
        )
    for cell in cells:
        changes = [
            done._replace(attempt=new)
            for done in store.attempts(cell)
            if done.attempt.ended != "failed"
            and (new := graded(cell.task, done.attempt)) != done.attempt
        ]
        store.regrade(changes)
        changed += len(changes)
    return changed
