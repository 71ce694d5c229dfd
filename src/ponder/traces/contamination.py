"""Finds traces whose question is one that a model will be evaluated on.

Look for runs of at least eight words that a question shares with an evaluation problem. If these runs cover half of the
problem's words, the trace is contaminated. Runs of 13 words, as for GPT-3 (Brown et al. 2020), are longer than many
questions. A single shared run of eight is often just a phrase ("find the number of ordered pairs of positive
integers"), hence the fraction, as for Tülu 3 (Lambert et al. 2024): among the 570 problems of MATH-500, AIME24 and
AMC23, counting any shared run would confuse 70 with another problem, requiring half of the words confuses 2, and 52
have no run of 13. Runs that occur in many of the problems belong to their prompt and don't count. A question of fewer
than eight words must be equal as a whole. Problems of Ponder's tasks are also recognised by their id.
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

from ponder.core import Problem, Task, UserError, digest, lines, plugins
from ponder.core.text import plain
from ponder.traces import NAMES, Trace
from ponder.traces.ngrams import Hashes, ngrams, normalized, words

GENERATED = 200  # problems per size, for a task that generates them
_MARKS = re.compile(r"([^\w\s\x00-\x7f]{30})[^\w\s\x00-\x7f]+")
PROMPT = 0.05  # a run of words that occurs in a larger fraction of the problems, and in three, belongs to their prompt


class EvaluationSet:
    """Evaluation problems, and whether a trace is about one of them."""

    def __init__(self, problems: Iterable[Problem], min_run: int = 8, overlap: float = 0.5) -> None:
        self.min_run, self.overlap = min_run, overlap
        self._ids: set[str] = set()
        self._texts: set[bytes] = set()
        self._runs: list[Hashes] = []  # of each problem that is long enough
        for problem in problems:
            text = "\n".join(problem.turns)
            self._ids |= {problem.id} - {""}
            self._texts.add(digest(normalized(text)))
            if len(spelled := _words(text)) >= min_run:
                self._runs.append(ngrams(spelled, min_run))
        occurs_in = Counter(run for runs in self._runs for run in set(runs.tolist()))
        most = max(2, PROMPT * len(self._runs))
        # Which runs of each problem aren't its prompt, and which problems have a run.
        self._counts = [np.array([occurs_in[run] <= most for run in runs.tolist()]) for runs in self._runs]
        self._problems: dict[int, list[int]] = defaultdict(list)
        for n, (runs, counts) in enumerate(zip(self._runs, self._counts, strict=True)):
            for run in set(runs[counts].tolist()):
                self._problems[run].append(n)

    def contains(self, trace: Trace) -> bool:
        if self._ids and problem_id(trace) in self._ids:
            return True
        if digest(normalized(trace.question)) in self._texts:
            return True
        spelled = _words(trace.question)
        if not self._problems or len(spelled) < self.min_run:
            return False
        runs = ngrams(spelled, self.min_run)
        near = {n for run in runs.tolist() for n in self._problems.get(run, ())}
        return any(self._overlap(n, runs) >= self.overlap for n in near)

    def _overlap(self, problem: int, runs: Hashes) -> float:
        """The fraction of a problem's words, without those of its prompt, that lie in one of the given runs."""
        counts = self._counts[problem]
        shared = counts & np.isin(self._runs[problem], runs)
        words_of_a_run = np.ones(self.min_run)
        covered, own, prompt = (np.convolve(each, words_of_a_run) > 0.5 for each in (shared, counts, ~counts))
        return float((covered & ~prompt).sum() / max(1, (own & ~prompt).sum()))


def _words(text: str) -> list[bytes]:
    # At most 30 marks in a row, as in Unicode's stream-safe format: `normalize` sorts them in quadratic time.
    return words(unicodedata.normalize("NFKC", _MARKS.sub(r"\1 ", text)))


def problem_id(trace: Trace) -> str:
    """The id of the Ponder problem that a trace is about; "" if it names none."""
    problem = trace.extra.get("problem", trace.extra.get("problem_id"))
    if isinstance(problem, Problem):
        return problem.id
    return str(problem.get("id", "") if isinstance(problem, Mapping) else problem or "")


def problems(name: str, folder: Path) -> Iterator[Problem]:
    """The problems of a JSONL file of questions or of a task: `math500`, `tents:36`, or `tents:36:7` for the seed 7."""
    if name.endswith(".jsonl"):
        return _from_file(folder / name)
    return _from_task(name)


def _from_file(path: Path) -> Iterator[Problem]:
    for where, line in lines(path):
        hint = f"each line is an object with {', '.join(f'`{n}`' for n in NAMES['question'])}"
        try:
            row = msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise UserError(plain(error, "an object"), where=where, hint=hint) from None
        question = next((row[n] for n in NAMES["question"] if isinstance(row.get(n), str) and row[n].strip()), None)
        if question is None:
            raise UserError("there is no question in this line", where=where, hint=hint)
        yield Problem("", 0, (question,))  # without an id: those of other datasets may be mere numbers


def _from_task(name: str) -> Iterator[Problem]:
    task, *numbers = name.split(":")
    if len(numbers) > 2 or not all(number.isdecimal() for number in numbers):
        raise UserError(
            f"`{name}` doesn't name evaluation problems", hint="TASK, TASK:SIZE, TASK:SIZE:SEED or a .jsonl file"
        )
    try:
        made: Task = plugins.load("tasks", task, Path())()
    except TypeError:
        raise UserError(f"task `{task}` needs settings", hint="name a .jsonl file with its questions") from None
    if made.fixed() is None and not numbers:
        hint = f"name a size, {task}:{(made.sizes() or (1,))[0]}, or a study that asks its problems"
        raise UserError(f"task `{task}` generates any number of problems", hint=hint)
    sizes, seed = ([int(numbers[0])] if numbers else made.sizes()), int(numbers[1]) if len(numbers) == 2 else 0
    for size in sizes:
        made.check_size(size)
        yield from itertools.islice(made.problems(size, seed), GENERATED if made.fixed() is None else None)
