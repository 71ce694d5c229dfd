"""One attempt with its texts: what was asked, thought and answered, the grade and why, the bill,
and the request.

The pages and the report show it through their templates, a notebook and a terminal as it prints
itself.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import Any

from ponder.core import Attempt, Completion, Drawing, Judgement, Message, Request
from ponder.core.capabilities import Drawable, history_message, parse_turns, right_answer
from ponder.methods.prompt import prompted
from ponder.study.cell import StudyCell

MOST_TURNS = 200  # that a page shows


@dataclass(frozen=True, repr=False)
class Transcript:
    """An attempt of a study."""

    cell: StudyCell
    attempt: Attempt
    id: int = 0  # row of the attempt in the store
    problem_row: int = 0  # row of its problem

    @property
    def model(self) -> str:
        """The model's label."""
        return self.cell.label.model

    @property
    def task(self) -> str:
        """The task's label."""
        return self.cell.label.task

    @property
    def ended(self) -> str:
        return self.attempt.ended

    @cached_property
    def budget(self) -> int | None:
        """The maximum of completion tokens per turn, with every call that the methods make."""
        limit = self.cell.turn_limit(0, None)
        return limit.completion_tokens if limit else None

    @cached_property
    def drawings(self) -> list[Drawing]:
        """The task's own pictures; none if it has none or can't draw this answer."""
        task = self.cell.task
        if not isinstance(task, Drawable):
            return []
        try:
            return list(
                task.drawings(self.attempt.problem, [c.answer for c in self.attempt.completions])
            )
        except Exception:  # a plugin's picture must not hide the transcript
            return []

    @cached_property
    def parsed(self) -> str | None:
        """The answer that the task reads in the reply, as text or JSON; None if it finds none."""
        replies = [completion.answer for completion in self.attempt.completions]
        return _shown(parse_turns(self.cell.task, self.attempt.problem, replies))

    @cached_property
    def gold(self) -> str | None:
        """The right answer, as text or JSON."""
        return _shown(right_answer(self.cell.task, self.attempt.problem))

    @property
    def cost(self) -> float | None:
        return self.cell.cost(self.attempt.bill)

    @property
    def judgement(self) -> Judgement | None:
        """What a judge said of the last reply; None if none has given a verdict."""
        replies = self.attempt.completions
        judgement = replies[-1].judgement if replies else None
        return judgement if judgement and judgement.judge else None

    @property
    def currency(self) -> str:
        prices = self.cell.model.prices
        return prices.currency if prices else "USD"

    @property
    def turns(self) -> list[tuple[int, str, Completion | None]]:
        """Each turn's number, its question, and the reply; None if there is none."""
        turns = []
        replies = self.attempt.completions
        for number, question in enumerate(self.attempt.problem.turns[:MOST_TURNS]):
            reply = replies[number] if number < len(replies) else None
            turns.append((number + 1, question, reply))
        return turns

    @property
    def hidden_turns(self) -> int:
        return max(0, len(self.attempt.problem.turns) - MOST_TURNS)

    def request(self) -> str:
        """Return the last request as JSON: the messages, the seed and the model's settings."""
        cell = self.cell
        problem = self.attempt.problem
        last = max(0, min(len(self.attempt.completions), len(problem.turns)) - 1)
        messages = (
            *problem.opening(),
            *cell.memory.visible(list(self._past(last))),
            Message("user", problem.turns[last]),
        )
        seed = cell.attempt_seed(problem, self.attempt.sample, last)
        request = Request(cell.task, problem, messages, seed, turn=last)
        data = {
            "model": dict(cell.model_settings),
            "methods": [{"name": use.name, **use.settings} for use in cell.chain],
            "seed": seed,
            "messages": [
                {"role": message.role, "content": message.content}
                for message in prompted(cell.methods, request).messages
            ],
        }
        return json.dumps(data, indent=1, ensure_ascii=False, default=str)

    @property
    def heading(self) -> str:
        """Who was asked what, how it ended, and the tokens it took."""
        ended = self.ended
        if self.attempt.why:
            ended = f"{ended}: {self.attempt.why}"
        bill = self.attempt.bill
        tokens = f"{bill.thinking_tokens:,} thinking + {bill.answer_tokens:,} answer tokens"
        return f"{self.model} on {self.task}, size {self.attempt.problem.size}: {ended}; {tokens}"

    def show(self) -> None:
        """Print it."""
        sys.stdout.write(f"{self}\n")

    def messages(self) -> Iterator[tuple[str, str]]:
        """Yield every message with its kind: system, user, thinking, answer, or the judge's."""
        if self.attempt.problem.system:
            yield "system", self.attempt.problem.system
        for question, reply in zip(
            self.attempt.problem.turns, self.attempt.completions, strict=False
        ):
            yield "user", question
            if reply.thinking and reply.measures.get("summarized"):
                yield "summary of the thinking", reply.thinking
            elif reply.thinking:
                yield "thinking", reply.thinking
            yield "answer", reply.answer
        if self.judgement:
            yield "judge", self.judgement.text

    def __str__(self) -> str:
        lines = [self.heading]
        for kind, text in self.messages():
            lines.append(f"\n[{kind}]\n{text}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Transcript: {self.heading}>"

    def _repr_html_(self) -> str:
        html = f"<b>{escape(self.heading)}</b>"
        for kind, text in self.messages():
            opened = "" if "thinking" in kind else " open"
            html += f"<details{opened}><summary>{kind}</summary>"
            html += f"<pre style='white-space:pre-wrap'>{escape(text)}</pre></details>"
        return html

    def _past(self, turns: int) -> Iterator[Message]:
        for question, reply in zip(
            self.attempt.problem.turns[:turns], self.attempt.completions, strict=False
        ):
            yield Message("user", question)
            yield history_message(self.cell.task, self.cell.memory, reply)


def _shown(answer: Any) -> str | None:
    if answer is None or isinstance(answer, str):
        return answer
    return json.dumps(answer, ensure_ascii=False, default=str)
