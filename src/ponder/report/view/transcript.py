"""One attempt with its texts: what was asked, thought and answered, the grade and why, the bill, and the request."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import msgspec

from ponder.core import Attempt, Bill, Completion, Drawing, Message, Problem
from ponder.report.page import ended
from ponder.report.view.studies import ViewedStudy
from ponder.runner.cells import Cell
from ponder.runner.schema import ATTEMPT, PROBLEM, TURN, verify, verify_attempt, verify_turn
from ponder.runner.store import REWARD
from ponder.runner.store_file import DamagedStore

MOST_TURNS = 200  # that a page shows


@dataclass(frozen=True)
class Transcript:
    """An attempt of a study."""

    id: int
    problem_row: int
    cell: Cell
    attempt: Attempt

    @property
    def ended(self) -> str:
        return ended(self.attempt)

    @cached_property
    def budget(self) -> int | None:
        """The most completion tokens that one turn may take, with every call that the methods make."""
        limit = self.cell.turn_limit(0, None)
        return limit.completion_tokens if limit else None

    @cached_property
    def drawings(self) -> list[Drawing]:
        """The task's own pictures; none if it has none or can't draw this answer."""
        try:
            return list(self.cell.task.drawings(self.attempt.problem, [c.answer for c in self.attempt.completions]))
        except Exception:  # a plugin's picture must not hide the transcript
            return []

    @property
    def cost(self) -> float | None:
        prices = self.cell.model.prices
        return prices.cost(self.attempt.bill) + self.attempt.bill.reward_cost if prices else None

    @property
    def turns(self) -> list[tuple[int, str, Completion | None]]:
        """Each turn's number, what was asked, and the reply; None if there is none."""
        asked, replies = self.attempt.problem.turns, self.attempt.completions
        some = [*replies, *([None] * (len(asked) - len(replies)))]
        return list(zip(range(1, len(asked) + 1), asked, some, strict=False))[:MOST_TURNS]

    @property
    def hidden_turns(self) -> int:
        return max(0, len(self.attempt.problem.turns) - MOST_TURNS)

    def request(self) -> str:
        """What the model was last sent, as JSON: the messages, the seed, and its settings."""
        cell, problem = self.cell, self.attempt.problem
        last = max(0, min(len(self.attempt.completions), len(problem.turns)) - 1)
        messages = (
            *problem.opening(),
            *cell.memory.visible(list(self._past(last))),
            Message("user", problem.turns[last]),
        )
        data = {
            "model": dict(cell.model_settings),
            "methods": [{"name": use.name, **use.settings} for use in cell.methods_used],
            "seed": cell.attempt_seed(problem, self.attempt.sample, last),
            "messages": [{"role": m.role, "content": m.content} for m in messages],
        }
        return json.dumps(data, indent=1, ensure_ascii=False, default=str)

    def _past(self, turns: int) -> Iterator[Message]:
        for asked, reply in zip(self.attempt.problem.turns[:turns], self.attempt.completions, strict=False):
            yield Message("user", asked)
            yield self.cell.memory.reply(self.cell.task, reply)


def transcript(study: ViewedStudy, attempt: int) -> Transcript | None:
    """Read one attempt; None if the study has none with this id."""
    sql = f"SELECT digest, {ATTEMPT} FROM attempt WHERE id = ?"  # noqa: S608 our own text
    with study.store.reading() as db:
        found = db.execute(sql, (attempt,)).fetchone()
        cell = next((c for c in study.cells if found and study.index.cells.get(c.key) == found[1]), None)
        if not found or not cell:
            return None
        try:
            check, *row = found
            verify_attempt(f"attempt {attempt}", row, check)
            _, problem_row, sample, status, correct, why, details, *_ = row
            sql = f"SELECT digest, {PROBLEM} FROM problem WHERE id = ?"  # noqa: S608 our own text
            check, *given = db.execute(sql, (problem_row,)).fetchone()
            verify(f"problem {given[2]}", given, check)
            problem = msgspec.json.decode(zlib.decompress(given[3]), type=Problem)
            sql = f"SELECT digest, {TURN} FROM turn WHERE attempt = ? ORDER BY position"  # noqa: S608 our own text
            turns = tuple(_turn(row, check) for check, *row in db.execute(sql, (attempt,)))
            graded = Attempt(problem, sample, status, bool(correct), why, turns, json.loads(details or "{}"))
            return Transcript(attempt, problem_row, cell, graded)
        except (zlib.error, ValueError, TypeError, msgspec.MsgspecError) as error:
            raise DamagedStore(study.store.path, str(error)) from None


def _turn(row: list[Any], check: int | None) -> Completion:
    verify_turn(row, check)
    _, _, thinking, answer, stop, *bill, measures = row
    measured = json.loads(measures or "{}")
    rewards = [measured.pop(name, 0) for name in REWARD]
    said = zlib.decompress(thinking).decode() if thinking else ""
    return Completion(said, answer, stop, replace(Bill(*bill), **dict(zip(REWARD, rewards, strict=True))), measured)
