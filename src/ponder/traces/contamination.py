"""Finds traces whose question is one that a model will be evaluated on.

Look for runs of at least eight words that a question shares with an evaluation problem. If these
runs cover half of the problem's words, the trace is contaminated. Runs of 13 words, as for GPT-3
(Brown et al. 2020), are longer than many questions. A single shared run of eight is often just a
phrase ("find the number of ordered pairs of positive integers"), hence the fraction, as for Tülu 3
(Lambert et al. 2024): among the 570 problems of MATH-500, AIME24 and AMC23, counting any shared run
would confuse 70 with another problem, requiring half of the words confuses 2, and 52 have no run of
13. Runs that occur in many of the problems belong to their prompt and don't count. A question of
fewer than eight words must be equal as a whole. Problems of Ponder's tasks are also recognised by
their id.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from ponder.core import Problem, Task, UserError, digest, lines, plugins
from ponder.core.text import plain
from ponder.traces import NAMES, Trace
from ponder.traces.ngrams import Hashes, ngrams, normalized, words

GENERATED = 200  # problems per size, for a task that generates them
_MARKS = re.compile(r"([^\w\s\x00-\x7f]{30})[^\w\s\x00-\x7f]+")
# A run of words that occurs in a larger fraction of the problems, and in three, belongs to their
# prompt.
PROMPT = 0.05


class EvaluationSet:
    """Evaluation problems, and whether a trace is about one of them."""

    def __init__(self, problems: Iterable[Problem], min_run: int = 8, overlap: float = 0.5) -> None:
        self.min_run = min_run
        self.overlap = overlap
        self._ids: set[str] = set()
        self._texts: set[bytes] = set()
        self._runs: list[Hashes] = []  # of each problem that is long enough
        for problem in problems:
            self._add(problem)
        self._counts = self._not_prompt()  # for each problem, which of its runs count
        # The problems that each run occurs in.
        self._problems: dict[int, list[int]] = defaultdict(list)
        for number, runs in enumerate(self._runs):
            for run in set(runs[self._counts[number]].tolist()):
                self._problems[run].append(number)

    def _add(self, problem: Problem) -> None:
        text = "\n".join(problem.turns)
        if problem.id:
            self._ids.add(problem.id)
        self._texts.add(digest(normalized(text)))
        words_in_text = _words(text)
        if len(words_in_text) >= self.min_run:
            self._runs.append(ngrams(words_in_text, self.min_run))

    def _not_prompt(self) -> list[npt.NDArray[np.bool_]]:
        """Return for each problem which of its runs don't belong to a shared prompt."""
        occurrences = Counter[int]()
        for runs in self._runs:
            occurrences.update(set(runs.tolist()))
        limit = max(2, PROMPT * len(self._runs))
        not_prompt = []
        for runs in self._runs:
            rare = [occurrences[run] <= limit for run in runs.tolist()]
            not_prompt.append(np.array(rare))
        return not_prompt

    def contains(self, trace: Trace) -> bool:
        """Return whether a trace's question is one of the problems, or overlaps with one."""
        if self._ids and problem_id(trace) in self._ids:
            return True
        if digest(normalized(trace.question)) in self._texts:
            return True
        words_in_question = _words(trace.question)
        if not self._problems or len(words_in_question) < self.min_run:
            return False
        runs = ngrams(words_in_question, self.min_run)
        candidates = set[int]()
        for run in runs.tolist():
            candidates.update(self._problems.get(run, ()))
        return any(self._shared(problem, runs) >= self.overlap for problem in candidates)

    def _shared(self, problem: int, runs: Hashes) -> float:
        """Return the fraction of a problem's words that lie in one of the runs.

        Words of a shared prompt don't count.
        """
        counts = self._counts[problem]
        shared = counts & np.isin(self._runs[problem], runs)
        not_in_prompt = ~self._words_in(~counts)
        covered = self._words_in(shared) & not_in_prompt
        countable = self._words_in(counts) & not_in_prompt
        return float(covered.sum() / max(1, countable.sum()))

    def _words_in(self, runs: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return which words lie in one of the runs; run n begins at word n."""
        inside: npt.NDArray[np.bool_] = np.convolve(runs, np.ones(self.min_run)) > 0.5
        return inside


def _words(text: str) -> list[bytes]:
    # At most 30 marks in a row, as in Unicode's stream-safe format: `normalize` sorts them in
    # quadratic time.
    limited = _MARKS.sub(r"\1 ", text)
    return words(unicodedata.normalize("NFKC", limited))


def problem_id(trace: Trace) -> str:
    """Return the id of the Ponder problem that a trace is about; "" if it names none."""
    problem = trace.extra.get("problem", trace.extra.get("problem_id"))
    if isinstance(problem, Problem):
        return problem.id
    if isinstance(problem, Mapping):
        return str(problem.get("id", ""))
    return str(problem or "")


def problems(name: str, folder: Path) -> Iterator[Problem]:
    """Return the problems of a JSONL file of questions or of a task.

    A task is named as `math500`, `tents:36`, or `tents:36:7` for the seed 7.
    """
    if name.endswith(".jsonl"):
        return _from_file(folder / name)
    return _from_task(name)


def _from_file(path: Path) -> Iterator[Problem]:
    columns = ", ".join(f"`{column}`" for column in NAMES["question"])
    hint = f"each line is an object with {columns}"
    for where, line in lines(path):
        try:
            row = msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise UserError(plain(error, "an object"), where=where, hint=hint) from None
        question = _question(row)
        if question is None:
            raise UserError("there is no question in this line", where=where, hint=hint)
        # Without an id: those of other datasets may be mere numbers.
        yield Problem("", 0, (question,))


def _question(row: Mapping[str, Any]) -> str | None:
    for column in NAMES["question"]:
        value = row.get(column)
        if isinstance(value, str) and value.strip():
            return value
    return None


def _from_task(name: str) -> Iterator[Problem]:
    plugin, *numbers = name.split(":")
    if len(numbers) > 2 or not all(number.isdecimal() for number in numbers):
        hint = "TASK, TASK:SIZE, TASK:SIZE:SEED or a .jsonl file"
        raise UserError(f"`{name}` doesn't name evaluation problems", hint=hint)
    try:
        task: Task = plugins.load("tasks", plugin, Path())()
    except TypeError:
        hint = "name a .jsonl file with its questions"
        raise UserError(f"task `{plugin}` needs settings", hint=hint) from None
    is_generated = task.fixed() is None
    if is_generated and not numbers:
        example = (task.sizes() or (1,))[0]
        hint = f"name a size, {plugin}:{example}, or a study that asks its problems"
        raise UserError(f"task `{plugin}` generates any number of problems", hint=hint)

    sizes = task.sizes()
    seed = 0
    if numbers:
        sizes = (int(numbers[0]),)
    if len(numbers) == 2:
        seed = int(numbers[1])
    for size in sizes:
        task.check_size(size)
        generated = task.problems(size, seed)
        if is_generated:
            yield from itertools.islice(generated, GENERATED)
        else:
            yield from generated
