"""Files to start a plugin from: whole, small, and passing `ponder check` as they are."""

from __future__ import annotations

import keyword
from pathlib import Path

from ponder.core import UserError

TASK = '''"""{title}: say in one sentence what is asked."""

from __future__ import annotations

import random
from dataclasses import dataclass

from ponder.core import answers
from ponder.core import Grade, Problem, Task


@dataclass(frozen=True)
class {cls}(Task):
    highest: int = 9  # every field is a key in the study's [[task]]

    default_sizes = (2, 4, 8)

    def problem(self, size: int, seed: int) -> Problem:
        rng = random.Random(seed)
        numbers = [rng.randint(0, self.highest) for _ in range(size)]
        text = " ".join(map(str, numbers))
        question = f"Which is the largest of {{text}}? Answer in <answer></answer> tags."
        return Problem(text, size, (question,), max(numbers))

    def solve(self, problem: Problem) -> str:
        return f"<answer>{{problem.gold}}</answer>"

    def grade(self, problem: Problem, answer: str) -> Grade:
        said = answers.number(answers.final(answer) or "")
        if said is None:
            return Grade(correct=False, why="no number")
        correct = said == problem.gold
        return Grade(correct=correct, parsed=str(said), why="" if correct else "not the largest")
'''

MODEL = '''"""{title}: say in one sentence what answers."""

from __future__ import annotations

from dataclasses import dataclass

from ponder.core import Bill, Completion, Model, Request


@dataclass
class {cls}(Model):
    words: int = 3  # every field is a key in the study's [[model]]

    async def complete(self, request: Request) -> Completion:
        """Answers with the last words of the question."""
        answer = " ".join(request.messages[-1].content.split()[-self.words :])
        prompt_tokens = sum(len(m.content.split()) for m in request.messages)
        return Completion("", answer, "end", Bill(prompt_tokens, 0, self.words, counted_by="estimate"))
'''

METHOD = '''"""{title}: say in one sentence what becomes cheaper."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ponder.core import Completion, Message, Method, Model, Request, Wrapped


@dataclass(frozen=True)
class {cls}(Method):
    words: str = "Be brief."  # every field is a key in the study's `method`

    def apply(self, model: Model) -> Model:
        return _Told(model, self.words)


class _Told(Wrapped):
    def __init__(self, inner: Model, words: str) -> None:
        super().__init__(inner)
        self._words = words

    async def complete(self, request: Request) -> Completion:
        messages = (Message("system", self._words), *request.messages)
        return await self.inner.complete(replace(request, messages=messages))
'''

FIGURE = '''"""{title}: say in one sentence what it shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt

from ponder.core import Figure, Outcome, Tables
from ponder.figures import by_series, flat, themed, values
from ponder.stats.accuracy import by_size
from ponder.stats.columns import columns


@dataclass(frozen=True)
class {cls}(Figure):
    colour: str = "#1f6fb4"  # every field is a key in the study's [[figure]]

    def estimate(self, outcomes: Sequence[Outcome]) -> Tables:
        rows = [
            flat(series=series, size=row.size, tokens=row.tokens)
            for series, part in by_series(outcomes)
            for row in by_size(columns(part))
        ]
        return {{"sizes": rows}}

    def draw(self, tables: Tables) -> alt.TopLevelMixin:
        shown = alt.Chart(values(tables["sizes"]))
        points = shown.mark_point(color=self.colour).encode(x="size:Q", y="tokens:Q", shape="series:N")
        ranges = shown.mark_rule(color=self.colour).encode(x="size:Q", y="tokens_low:Q", y2="tokens_high:Q")
        return themed(points + ranges, title="{title}")
'''

CACHE = '''"""Evicts the tokens with the smallest values ({title}): say in one sentence what is evicted."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ponder.caches import CacheView
from ponder.core import Policy


@dataclass(frozen=True)
class {cls}(Policy):
    def score(self, view: CacheView) -> Tensor:
        """Rows × heads × columns; the lowest scores are evicted first."""
        return view.values.norm(dim=-1)
'''

TEMPLATES = {"task": TASK, "model": MODEL, "cache": CACHE, "method": METHOD, "figure": FIGURE}


def scaffold(kind: str, name: str, folder: Path) -> Path:
    """Write NAME.py and return its path; an existing file is never overwritten."""
    if not name.isidentifier() or keyword.iskeyword(name) or name != name.lower():
        raise UserError(f"`{name}` can't be a plugin's name", hint="lower-case letters, digits and _, such as my_task")
    path = folder / f"{name}.py"
    if path.exists():
        raise UserError(f"{path} is there already", hint="choose another name, or move the file away")
    title = name.replace("_", " ").capitalize()
    path.write_text(TEMPLATES[kind].format(cls=title.title().replace(" ", ""), title=title), "utf-8")
    return path
