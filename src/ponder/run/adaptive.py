"""Adaptive runs: asks in rounds, where attempts still inform, and ends when the study's question is
answered.

A trial is one question (the critical size of a model, the best of several variants) with its
design, from `stats`. Each round is decided by the answers to the first problems of each cell, as
many as the rounds before asked for. So the decisions are repeated exactly from the store, by a run
that resumes, by `plan` and by the report; and attempts that the store holds beyond them, from a
full run, change nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ponder.core import Estimate, UserError, error_at
from ponder.core.errors import Location
from ponder.core.text import count, number
from ponder.stats.columns import Floats
from ponder.stats.designs.best_arm import Best
from ponder.stats.designs.critical_size import Ladder
from ponder.stats.designs.frontier import Frontier
from ponder.stats.designs.sequential import Paired, Precise
from ponder.study.adaptive_settings import Question, Stopping, contestants
from ponder.study.cell import StudyCell

if TYPE_CHECKING:
    from ponder.store.store import Store
    from ponder.study.study import StudySpec

Design = Ladder | Best | Frontier | Paired | Precise
Reader = Callable[
    [StudyCell], Mapping[int, tuple[int, int, int, int]]
]  # as `Store.results`, in the order of `Cell.order`
ACROSS = ("best", "frontier", "difference")  # questions that compare models


class Round(NamedTuple):
    """What a round asks: cells with as many problems as they should have by its end, and the
    attempts that lack.
    """

    cells: list[StudyCell]
    attempts: int


@dataclass(frozen=True)
class Trial:
    """A question with its design.

    An arm is a size of a ladder, or a variant with all its sizes and training seeds.
    """

    question: Question
    title: str
    names: tuple[str, ...]  # of the arms
    arms: tuple[tuple[StudyCell, ...], ...]
    design: Design

    @property
    def across_models(self) -> bool:
        return self.question in ACROSS

    def rounds(self, store: Store) -> Iterator[Round]:
        """What to ask next, until the design ends.

        If a round leaves something unasked, the run is at its end.
        """
        counts, read = [0] * len(self.arms), _reader(store)
        while any(more := self.design.next(self.scores(read, counts))):
            counts = [n + m for n, m in zip(counts, more, strict=True)]
            if attempts := self._lacking(read, counts)[0]:
                yield Round(self.asked(counts), attempts)
                read = _reader(store)
                if self._lacking(read, counts)[1]:
                    return

    def replay(self, store: Store) -> tuple[list[int], bool]:
        """How many problems of each arm the design has asked by now, and whether it has ended."""
        counts, read = [0] * len(self.arms), _reader(store)
        while any(more := self.design.next(self.scores(read, counts))):
            counts = [n + m for n, m in zip(counts, more, strict=True)]
            if self._lacking(read, counts)[1]:
                return counts, False
        return counts, True

    def asked(self, counts: Sequence[int]) -> list[StudyCell]:
        """The cells of the arms with so many problems each."""
        return [
            cell.first(n) for arm, n in zip(self.arms, counts, strict=True) for cell in arm if n
        ]

    def scores(self, read: Reader, counts: Sequence[int]) -> list[Floats]:
        """By arm: the accuracy on each of its first problems, the mean of its tasks, sizes and
        training seeds.

        For the frontier, with the mean output tokens in a second column.
        """
        both = [_scores(arm, read, n) for arm, n in zip(self.arms, counts, strict=True)]
        return both if self.question == "frontier" else [score[:, 0] for score in both]

    def _lacking(self, read: Reader, counts: Sequence[int]) -> tuple[int, int]:
        """Attempts without an answer, and those of them that were never asked: the others failed."""
        unanswered = unasked = 0
        for arm, problems in zip(self.arms, counts, strict=True):
            for cell in arm if problems else ():
                results = [result for rank, result in read(cell).items() if rank < problems]
                wanted = min(problems, cell.count) * cell.quota.samples
                unanswered += wanted - sum(answers for _, answers, _, _ in results)
                unasked += wanted - sum(asked for _, _, asked, _ in results)
        return unanswered, unasked


def _reader(store: Store) -> Reader:
    """Reads the results of each cell once: they don't change until something is asked.

    They are numbered by when an adaptive run asks them.
    """
    known: dict[bytes, Mapping[int, tuple[int, int, int, int]]] = {}

    def read(cell: StudyCell) -> Mapping[int, tuple[int, int, int, int]]:
        if cell.key not in known:
            results = store.results(cell)
            ranked = enumerate(cell.order)
            known[cell.key] = {
                rank: results[position] for rank, position in ranked if position in results
            }
        return known[cell.key]

    return read


def _scores(arm: Sequence[StudyCell], read: Reader, problems: int) -> Floats:
    """Problems × (accuracy, output tokens); nan unless every cell has an answer.

    A mean over those that have one would compare arms at different sizes where attempts failed.
    """
    total, known = np.zeros((problems, 2)), np.zeros((problems, 1))
    for cell in arm if problems else ():
        for rank, (right, answers, _, tokens) in read(cell).items():
            if rank < problems and answers:
                total[rank] += right / answers, tokens / answers
                known[rank] += 1
    return np.where(known == len(arm), total / len(arm), math.nan)


def trials(study: StudySpec) -> list[Trial]:
    """The questions of a study with `stop`."""
    stopping = study.stopping
    if stopping is None:
        return []
    with error_at(Location(study.where, "stop")):
        question = stopping.question(study)
    cells = [cell for cell in study.cells if cell.quota.adaptive]
    if question in ACROSS:
        if len(counts := {cell.count for cell in cells}) > 1:
            what = f"its tasks have different numbers of problems: {', '.join(map(str, sorted(counts)))}"
            raise UserError(
                what,
                where=Location(study.where, "stop"),
                hint="set `problems` to the smallest, or remove `stop`",
            )
        arms = contestants(cells)
        design = _across(question, stopping, max(cell.count for cell in cells))
        return [Trial(question, "", tuple(arms), tuple(map(tuple, arms.values())), design)]
    return list(_within(question, stopping, cells))


def _across(question: Question, stopping: Stopping, problems: int) -> Design:
    if question == "frontier":
        return Frontier(problems)
    if question == "best":
        return Best(problems, stopping.margin)
    # With both keys, the margin is the smallest difference that matters.
    return (
        Paired(problems, effect=stopping.margin)
        if stopping.decide
        else Paired(problems, stopping.margin)
    )


def _within(question: Question, stopping: Stopping, cells: Sequence[StudyCell]) -> Iterator[Trial]:
    groups: dict[tuple[bytes, bytes], list[StudyCell]] = {}
    for cell in cells:
        groups.setdefault((cell.model_key, cell.task_key), []).append(cell)
    for own in groups.values():
        own.sort(key=lambda cell: cell.size)
        problems, sizes = max(cell.count for cell in own), tuple(cell.size for cell in own)
        design = (
            Ladder(sizes, problems, own[0].quota.samples, stopping.margin)
            if question == "critical_size"
            else Precise(problems, stopping.margin or 0.0, own[0].quota.samples)
        )
        yield Trial(
            question,
            f"{own[0].label.model} on {own[0].label.task}",
            tuple(map(str, sizes)),
            tuple((cell,) for cell in own),
            design,
        )


@dataclass(frozen=True)
class Decision:
    """What a trial has found, with the attempts that it asked for and those of the full plan."""

    of: Question
    text: str
    estimate: Estimate | None
    ended: bool
    attempts: int
    at_most: int


def decisions(study: StudySpec, store: Store) -> list[Decision]:
    """What each trial of a study has found so far."""
    found = []
    for trial in trials(study):
        counts, ended = trial.replay(store)
        text, estimate = _verdict(trial, trial.scores(_reader(store), counts))
        made = sum(cell.quota.samples * (cell.quota.problems or 0) for cell in trial.asked(counts))
        most = sum(cell.quota.samples * cell.count for arm in trial.arms for cell in arm)
        found.append(
            Decision(
                trial.question, text if ended else "undecided so far", estimate, ended, made, most
            )
        )
    return found


def asked_cells(study: StudySpec, store: Store) -> tuple[StudyCell, ...]:
    """The cells of a study with the problems that its designs asked, without those that they left
    out.
    """
    fixed = [cell for cell in study.cells if not cell.quota.adaptive]
    return tuple(
        fixed + [cell for trial in trials(study) for cell in trial.asked(trial.replay(store)[0])]
    )


def open_cells(study: StudySpec, store: Store | None) -> set[bytes]:
    """The keys of the cells that a run may still ask more of."""
    still: set[bytes] = set()
    for trial in trials(study):
        counts, ended = trial.replay(store) if store else ([0] * len(trial.arms), False)
        last = max(counts)
        for arm, n in zip(trial.arms, counts, strict=True):
            if not ended and (n == last or not trial.across_models):  # a dropped variant has fewer
                still.update(cell.key for cell in arm)
    return still


def describe(study: StudySpec) -> str:
    """What a run with `stop` will find out, as `plan` prints it."""
    stopping, found = study.stopping, trials(study)
    assert stopping is not None
    question, margin = found[0].question, stopping.margin
    points = "" if margin is None else f"{100 * margin:g} points"
    if question == "critical_size":
        goal = (
            "as precisely as the full ladder" if margin is None else f"to within {100 * margin:g} %"
        )
        return f"the critical size of {_listed([trial.title for trial in found])}, {goal}"
    if question == "best":
        goal = (
            "until one is clearly the best"
            if margin is None
            else f"to pick one within {points} of the best"
        )
        return f"the best of {len(found[0].arms)} ({_listed(found[0].names)}), {goal}"
    if question == "frontier":
        return f"which of {len(found[0].arms)} are on the frontier of accuracy and tokens"
    if question == "difference":
        goal = (
            f"to within {points}"
            if not stopping.decide
            else f"until it is clear{points and f' ({points} matter)'}"
        )
        return f"the difference between {found[0].names[0]} and {found[0].names[1]}, {goal}"
    return f"the accuracy of each cell, to within {points}"


def _verdict(trial: Trial, scores: Sequence[Floats]) -> tuple[str, Estimate | None]:
    """What the answers say, in a sentence, with an interval that is valid for such a run."""
    design: Any = trial.design
    if trial.question == "critical_size":
        size = design.estimate(scores)
        return (
            f"{trial.title}: accuracy falls below 50 % at {_span(size)} {trial.arms[0][0].task.unit}".rstrip(),
            size,
        )
    if trial.question == "best":
        return _best(trial, design, scores)
    if trial.question == "frontier":
        left = design.left(scores)
        names, gone = (
            [name for name, keep in zip(trial.names, left, strict=True) if keep == k]
            for k in (True, False)
        )
        others = f"; dominated: {', '.join(gone)}" if gone else ""
        return (
            f"{len(names)} of {len(scores)} may be on the frontier: {', '.join(names)}{others}",
            None,
        )
    if trial.question == "difference":
        apart, why = design.difference(scores), design.why(scores)
        first, second = trial.names
        said = {
            "clear": "the difference is clear",
            "small": f"a difference of {100 * (design.effect or 0):g} points is excluded",
            "futile": "no clear difference, and the rest of the problems would hardly show one",
            "precise": "known to within the margin",
            "": "no clear difference on all problems",
        }[why]
        return f"{first} minus {second}: {_points(apart)}; {said}", apart
    known = sum(design.next([score]) == [0] and len(score) < design.problems for score in scores)
    return (
        f"{trial.title}: {known} of {count(len(scores), 'cell')} known to within the margin",
        None,
    )


def _best(trial: Trial, design: Best, scores: Sequence[Floats]) -> tuple[str, Estimate | None]:
    means = [float(np.nanmean(score)) if np.isfinite(score).any() else math.nan for score in scores]
    left = sorted(np.flatnonzero(design.left(scores)).tolist(), key=lambda k: -means[k])
    top = left[0]
    if len(left) > 1:
        names = _listed([trial.names[k] for k in left], 6)
        return (
            f"{len(left)} of {len(scores)} may be the best, and all problems were asked: {names}",
            None,
        )
    others = [k for k in range(len(scores)) if k != top]
    next_best = max(others, key=lambda k: (len(scores[k]), means[k], -k))  # of those dropped last
    lead = design.lead(scores, top, next_best)
    word = (
        "the best"
        if design.margin is None
        else f"within {100 * design.margin:g} points of the best"
    )
    return (
        f"{trial.names[top]} is {word}: ahead of {trial.names[next_best]} by {_points(lead)}",
        lead,
    )


def _listed(names: Sequence[str], most: int = 3) -> str:
    return ", ".join([*names[:most], *(["…"] if len(names) > most else [])])


def _span(found: Estimate) -> str:
    if math.isnan(found.value):
        return f"more than {number(found.low)}" if found.low else f"less than {number(found.high)}"
    low, high = (
        number(found.low) if found.low else "–",
        number(found.high) if math.isfinite(found.high) else "–",
    )
    return f"{number(found.value)} [{low}, {high}]"


def _points(found: Estimate) -> str:
    value, low, high = (100 * n for n in (found.value, found.low, found.high))
    return f"{value:+.1f} points [{low:+.1f}, {high:+.1f}]"
