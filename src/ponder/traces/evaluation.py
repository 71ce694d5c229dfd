"""Traces whose question is one that a model will be evaluated on.

By the words that they share: of an evaluation problem's words, those that stand in runs of eight which the trace's
question holds too. Runs of 13, as for GPT-3 (Brown et al. 2020), are longer than many a question; a single shared run
of eight is often a phrase ("find the number of ordered pairs of positive integers"), so half of the problem must be
there, as for Tülu 3 (Lambert et al. 2024). Among the 570 problems of MATH-500, AIME24 and AMC23, one run of eight takes
70 for another problem, half of the words 2; 52 have no run of 13. Runs that many of the problems share are their prompt
and don't count. A question of fewer than eight words must be the same as a whole. Problems of Ponder's tasks are also
known by their id.
"""

from __future__ import annotations

import itertools
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ponder.core import Problem, Task, UserError, digest, lines, plugins
from ponder.traces import NAMES, Trace
from ponder.traces.words import Codes, plain, runs, words

NUMBER = 200  # problems of one size, of a task that makes its own
PROMPT = 0.05  # share of the problems, and at least three: a run that more of them hold belongs to their prompt


class Evaluation:
    """The problems, and which of them a trace is about."""

    def __init__(self, problems: Iterable[Problem], length: int = 8, share: float = 0.5) -> None:
        self.length, self.share = length, share
        self._known: set[str] = set()
        self._same: set[bytes] = set()
        self._runs: list[Codes] = []
        for problem in problems:
            text = "\n".join(problem.turns)
            self._known |= {problem.id} - {""}
            self._same.add(digest(plain(text)))
            if len(found := _words(text)) >= length:
                self._runs.append(runs(found, length))
        held = Counter(code for some in self._runs for code in set(some.tolist()))
        most = max(2, PROMPT * len(self._runs))
        self._holders: dict[int, list[int]] = defaultdict(list)
        self._own = [np.array([held[code] <= most for code in some.tolist()]) for some in self._runs]
        for n, (some, own) in enumerate(zip(self._runs, self._own, strict=True)):
            for code in set(some[own].tolist()):
                self._holders[code].append(n)

    def holds(self, trace: Trace) -> bool:
        if self._known and problem_id(trace) in self._known:
            return True
        if digest(plain(trace.question)) in self._same:
            return True
        found = _words(trace.question)
        if not self._holders or len(found) < self.length:
            return False
        codes = runs(found, self.length)
        near = {n for code in codes.tolist() for n in self._holders.get(code, ())}
        return any(self._shared(n, codes) >= self.share for n in near)

    def _shared(self, number: int, codes: Codes) -> float:
        """Of the words in the problem's own runs, the share that stands in runs which the other text holds."""
        own = self._own[number]
        shared = own & np.isin(self._runs[number], codes)
        of_runs = np.ones(self.length)
        return float((np.convolve(shared, of_runs) > 0.5).sum() / (np.convolve(own, of_runs) > 0.5).sum())


def _words(text: str) -> list[bytes]:
    return words(unicodedata.normalize("NFKC", text))


def problem_id(trace: Trace) -> str:
    """The id of the Ponder problem that a trace says it is about."""
    found = trace.extra.get("problem", trace.extra.get("problem_id"))
    return str(found.get("id", "") if isinstance(found, Mapping) else found or "")


def problems(name: str, folder: Path) -> Iterator[Problem]:
    """Of a JSONL file of questions, or of a task: `math500`, `tents:36`, or `tents:36:7` for the seed 7."""
    if name.endswith(".jsonl"):
        return _of_file(folder / name)
    return _of_task(name)


def _of_file(path: Path) -> Iterator[Problem]:
    for where, line in lines(path):
        hint = f"each line is an object with {', '.join(f'`{n}`' for n in NAMES['question'])}"
        try:
            row = msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise UserError(str(error), where=where, hint=hint) from None
        question = next((row[n] for n in NAMES["question"] if isinstance(row.get(n), str) and row[n].strip()), None)
        if question is None:
            raise UserError("there is no question here", where=where, hint=hint)
        yield Problem("", 0, (question,))  # another set's ids may be anything, 1 and 2 and 3


def _of_task(name: str) -> Iterator[Problem]:
    task, *numbers = name.split(":")
    if len(numbers) > 2 or not all(number.isdecimal() for number in numbers):
        raise UserError(f"`{name}` names no problems", hint="task, task:size or task:size:seed; or a .jsonl file")
    try:
        made: Task = plugins.load("tasks", task)()
    except TypeError:
        raise UserError(f"task `{task}` needs settings", hint="name a .jsonl file of its questions") from None
    if made.fixed() is None and not numbers:
        hint = f"name a size, {task}:{(made.sizes() or (1,))[0]}; or the study that asks them"
        raise UserError(f"task `{task}` makes problems without end", hint=hint)
    sizes, seed = ([int(numbers[0])] if numbers else made.sizes()), int(numbers[1]) if len(numbers) == 2 else 0
    for size in sizes:
        made.check_size(size)
        yield from itertools.islice(made.problems(size, seed), NUMBER if made.fixed() is None else None)
