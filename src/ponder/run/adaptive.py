"""Adaptive runs: ask in rounds where attempts still inform, until the study's goal is reached.

A trial is one question of the study (the critical size of a model, the best of several variants)
with its design, from `stats.designs`. A round is decided by the answers to the first problems of
each cell, as many as the rounds before asked for. So a run that resumes, `plan` and the report
repeat the decisions exactly from the store, and attempts that the store holds beyond them, from a
full run, change nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from ponder.core import Estimate, FromLog, Measure, UserError, error_at
from ponder.core.errors import Location
from ponder.core.text import count, number
from ponder.stats.columns import FEWEST_PAIRS, Floats
from ponder.stats.designs.best_arm import Best
from ponder.stats.designs.cheapest import Cheapest
from ponder.stats.designs.critical_size import Ladder
from ponder.stats.designs.frontier import Frontier
from ponder.stats.designs.max_size import Search
from ponder.stats.designs.sequential import Paired, Precise
from ponder.study.cell import StudyCell
from ponder.study.labels import unknown_name
from ponder.study.prices import HINT
from ponder.study.stop import Goal, StopRule, contestants

if TYPE_CHECKING:
    from ponder.store.store import Store
    from ponder.study.study import StudySpec


class Result(NamedTuple):
    """What a cell's attempts at one problem came to."""

    right: int
    answers: int
    attempts: int  # some may have failed
    amount: float  # of all answers together: output tokens, money or seconds


# Returns a cell's results, numbered in the order of `StudyCell.order`.
Reader = Callable[[StudyCell], Mapping[int, Result]]
# Goals that compare models.
ACROSS_MODELS = ("best", "cheapest", "frontier", "difference")


class MaxSize(NamedTuple):
    """The largest size with a given accuracy: `Search` as a design whose arms are sizes."""

    search: Search
    sizes: tuple[int, ...]

    def next(self, scores: Sequence[Floats]) -> list[int]:
        """Return how many more problems to ask at each size."""
        additional = dict.fromkeys(self.sizes, 0)
        for size, attempts in self.search.next(self._results(scores)):
            additional[size] = attempts
        return list(additional.values())

    def estimate(self, scores: Sequence[Floats]) -> Estimate:
        """Return the size at which accuracy falls to the target, with its interval."""
        return self.search.estimate(self._results(scores))

    def _results(self, scores: Sequence[Floats]) -> dict[int, tuple[int, int]]:
        """Return the right answers and the answers at each size."""
        results = {}
        for size, score in zip(self.sizes, scores, strict=True):
            answered = score[np.isfinite(score)]
            results[size] = (int(answered.sum()), len(answered))
        return results


Design = Ladder | MaxSize | Best | Cheapest | Frontier | Paired | Precise


class Round(NamedTuple):
    """Cells with as many problems as they should have after this round."""

    cells: list[StudyCell]
    attempts: int  # still without an answer


class Rounds(Protocol):
    """What a run needs of a trial: whom it asks, and what it asks next."""

    @property
    def arms(self) -> Sequence[Sequence[StudyCell]]: ...

    @property
    def across_models(self) -> bool: ...

    def rounds(self, store: Store) -> Iterator[Round]:
        """Yield what to ask next. The caller asks and stores each round before the next one."""


class _Totals(NamedTuple):
    """Attempts of a trial's first problems."""

    planned: int
    stored: int  # failed ones included
    answered: int


@dataclass(frozen=True)
class Trial:
    """A question with its design.

    An arm is one size of a ladder, or a variant with all its sizes and training seeds. What the
    design counts as a problem is one problem of every cell of an arm; if the cells have different
    numbers of problems, it is a problem of one of them, in an order that takes from each in
    proportion.
    """

    goal: Goal
    title: str
    names: tuple[str, ...]  # of the arms
    arms: tuple[tuple[StudyCell, ...], ...]
    design: Design
    by: Measure = "tokens"  # what the second column of the scores counts

    @property
    def across_models(self) -> bool:
        return self.goal in ACROSS_MODELS

    @property
    def is_log(self) -> bool:
        """Whether all attempts are from another program's log."""
        return all(isinstance(cell.model, FromLog) for arm in self.arms for cell in arm)

    def rounds(self, store: Store) -> Iterator[Round]:
        """Yield what to ask next until the design ends.

        The caller asks and stores each round before it takes the next one. If part of a round was
        not asked, the run is ending, and if none of it was answered, the next round would be the
        same: both end the trial here. So does a model that answers nothing: without its answers
        nothing is decided.
        """
        counts = [0] * len(self.arms)
        answered = 0
        read = reader(store, self.by)
        while True:
            additional = self.design.next(self.scores(read, counts))
            if not any(additional):
                return
            counts = _sums(counts, additional)
            totals = self._totals(read, counts)
            if totals.answered < totals.planned:
                yield Round(self.asked(counts), totals.planned - totals.answered)
                read = reader(store, self.by)
                totals = self._totals(read, counts)
            if totals.stored < totals.planned or totals.answered == answered:
                return
            if self._has_silent_model(read, counts):
                return
            answered = totals.answered

    def replay(self, store: Store) -> tuple[list[int], bool]:
        """Return how many problems of each arm the design has asked, and whether it has ended."""
        return self.replay_from(reader(store, self.by))

    def replay_from(self, read: Reader) -> tuple[list[int], bool]:
        """Do what `replay` does with results that may have been read already."""
        counts = [0] * len(self.arms)
        answered = 0
        while True:
            additional = self.design.next(self.scores(read, counts))
            if not any(additional):
                return counts, True
            counts = _sums(counts, additional)
            totals = self._totals(read, counts)
            if totals.stored < totals.planned or totals.answered == answered:
                return counts, False
            if self._has_silent_model(read, counts):
                return counts, False
            answered = totals.answered

    def asked(self, counts: Sequence[int]) -> list[StudyCell]:
        """Return the cells of each arm, with as many problems as `counts` has for the arm."""
        cells = []
        for arm, problems in zip(self.arms, counts, strict=True):
            for cell, first in zip(arm, problems_by_cell(arm, problems), strict=True):
                if first:
                    cells.append(cell.first(first))
        return cells

    def scores(self, read: Reader, counts: Sequence[int]) -> list[Floats]:
        """Return for each arm the accuracy on its first problems, an array of that length.

        Accuracy is the mean over the arm's tasks, sizes and training seeds. For the frontier and
        for the cheapest setting, the arrays have a second column: the mean output tokens, money or
        seconds.
        """
        scores = []
        for arm, problems in zip(self.arms, counts, strict=True):
            score = _scores(arm, read, problems)
            scores.append(score if self.goal in ("cheapest", "frontier") else score[:, 0])
        return scores

    def is_complete(self, read: Reader) -> bool:
        """Return whether the store has every attempt that the design may ask for."""
        everything = [_problems_of(arm) for arm in self.arms]
        totals = self._totals(read, everything)
        return totals.stored >= totals.planned

    def problems_at_once(self, i: int) -> int:
        """Return how many problems, one of each size, the design counts as one problem of an arm."""
        arm = self.arms[i]
        if len({cell.count for cell in arm}) > 1:
            return 1
        return len({cell.source for cell in arm})

    def attempts_at_most(self) -> int:
        """Return the most attempts that the design may ask for."""
        if isinstance(self.design, MaxSize):
            return self.design.search.most
        return sum(cell.quota.samples * cell.count for arm in self.arms for cell in arm)

    def _has_silent_model(self, read: Reader, counts: Sequence[int]) -> bool:
        """Return whether a model that is compared has answered none of three problems or more."""
        if not self.across_models:
            return False
        for arm, problems in zip(self.arms, counts, strict=True):
            if problems < FEWEST_PAIRS:
                continue
            if not any(result.answers for cell in arm for result in read(cell).values()):
                return True
        return False

    def _totals(self, read: Reader, counts: Sequence[int]) -> _Totals:
        planned = 0
        stored = 0
        answered = 0
        for arm, problems in zip(self.arms, counts, strict=True):
            for cell, first in zip(arm, problems_by_cell(arm, problems), strict=True):
                if not first:
                    continue
                planned += min(first, cell.count) * cell.quota.samples
                for rank, result in read(cell).items():
                    if rank < first:
                        stored += result.attempts
                        answered += result.answers
        return _Totals(planned, stored, answered)


def _sums(counts: Sequence[int], additional: Sequence[int]) -> list[int]:
    return [n + m for n, m in zip(counts, additional, strict=True)]


def reader(store: Store, by: Measure = "tokens") -> Reader:
    """Return a reader that reads each cell once: results don't change until something is asked."""
    cache: dict[bytes, Mapping[int, Result]] = {}

    def read(cell: StudyCell) -> Mapping[int, Result]:
        if cell.key not in cache:
            by_position = store.results(cell)
            bills = store.bills(cell) if by != "tokens" else {}
            by_rank = {}
            for rank, position in enumerate(cell.order):
                if position not in by_position:
                    continue
                right, answers, attempts, tokens = by_position[position]
                amount = float(tokens)
                if by == "seconds" and position in bills:
                    amount = bills[position].seconds
                if by == "cost" and position in bills:
                    amount = cell.cost(bills[position]) or 0.0
                by_rank[rank] = Result(right, answers, attempts, amount)
            cache[cell.key] = by_rank
        return cache[cell.key]

    return read


def problems_by_cell(arm: Sequence[StudyCell], problems: int) -> list[int]:
    """Return how many problems of each cell the first `problems` problems of an arm are."""
    if len({cell.count for cell in arm}) == 1:
        return [problems] * len(arm)
    numbers = [0] * len(arm)
    for problem in _interleaved(arm)[:problems]:
        for cell, _ in problem:
            numbers[cell] += 1
    return numbers


def _problems_of(arm: Sequence[StudyCell]) -> int:
    """Return how many problems an arm has, as the design counts them."""
    if len({cell.count for cell in arm}) == 1:
        return arm[0].count
    return len(_interleaved(arm))


def _interleaved(arm: Sequence[StudyCell]) -> list[list[tuple[int, int]]]:
    """Return the problems of cells that have different numbers of them, each asked separately.

    A problem is a list of cells with its rank in them: those of all training seeds.
    """
    by_source: dict[bytes, list[int]] = {}
    for i, cell in enumerate(arm):
        by_source.setdefault(cell.source, []).append(i)
    placed = []
    for group, cells in enumerate(by_source.values()):
        number = arm[cells[0]].count
        for rank in range(number):
            placed.append(((rank + 0.5) / number, group, [(i, rank) for i in cells]))
    placed.sort(key=lambda problem: problem[:2])
    return [problem for _, _, problem in placed]


def _scores(arm: Sequence[StudyCell], read: Reader, problems: int) -> Floats:
    """Return problems × (accuracy, amount); nan unless every cell of a problem has an answer.

    A mean over the cells that have one would compare arms at different sizes where attempts failed.
    """
    scores = np.full((problems, 2), math.nan)
    if not problems:
        return scores
    if len({cell.count for cell in arm}) == 1:
        layout = [[(i, rank) for i in range(len(arm))] for rank in range(problems)]
    else:
        layout = _interleaved(arm)[:problems]
    results = [read(cell) for cell in arm]
    for problem, places in enumerate(layout):
        answered = []
        for cell, rank in places:
            result = results[cell].get(rank)
            if result is not None and result.answers:
                answered.append((result.right / result.answers, result.amount / result.answers))
        if len(answered) == len(places):
            scores[problem] = np.mean(answered, axis=0)
    return scores


def trials(study: StudySpec) -> list[Trial]:
    """Return the trials of a study with `stop`; none if it has no `stop`."""
    rule = study.stop_rule
    if rule is None:
        return []
    location = Location(study.where, "stop")
    with error_at(location):
        goal = rule.goal_of(study)
    if goal not in ACROSS_MODELS:
        return _trials_of_each_model(goal, rule, study.cells)
    arms = contestants(study.cells)
    counts = sorted({_problems_of(arm) for arm in arms.values()})
    if len(counts) > 1:
        numbers = ", ".join(map(str, counts))
        raise UserError(
            f"its settings have different numbers of problems: {numbers}",
            where=location,
            hint="set `problems` to the smallest",
        )
    by: Measure = "tokens"
    if goal == "cheapest":
        with error_at(location):
            by = amount_counted(rule.by, study.cells)
            _check_reference(rule, study.cells, arms)
    design = _design_across_models(goal, rule, counts[0], arms)
    return [Trial(goal, "", tuple(arms), tuple(tuple(arm) for arm in arms.values()), design, by)]


def amount_counted(by: Measure | None, cells: Sequence[StudyCell]) -> Measure:
    """Return what is saved; money can't be if the prices of a model are unknown."""
    unpriced = [cell.label.model for cell in cells if cell.model.prices is None]
    if by is None:
        return "tokens" if unpriced else "cost"
    if by == "cost" and unpriced:
        raise UserError(f"the prices of `{unpriced[0]}` are unknown", hint=HINT)
    return by


def _check_reference(
    rule: StopRule, cells: Sequence[StudyCell], arms: Mapping[str, Sequence[StudyCell]]
) -> None:
    if rule.reference and rule.reference not in arms:
        error = unknown_name(cells, "variant", rule.reference)
        hint = error.hint or f"known: {', '.join(f'`{name}`' for name in arms)}"
        raise UserError(f"there is no setting `{rule.reference}` to compare with", hint=hint)


def _design_across_models(
    goal: Goal, rule: StopRule, problems: int, arms: Mapping[str, Sequence[StudyCell]]
) -> Design:
    if goal == "frontier":
        return Frontier(problems)
    if goal == "best":
        return Best(problems, rule.margin)
    if goal == "cheapest":
        reference = None
        if rule.reference:
            reference = list(arms).index(rule.reference)
        cells = next(iter(arms.values()))
        answers = cells[0].quota.samples * len(cells)
        return Cheapest(problems, rule.margin or 0.0, rule.floor, reference, answers)
    if rule.decide:  # with both keys, the margin is the smallest difference that matters
        return Paired(problems, effect=rule.margin)
    return Paired(problems, rule.margin)


def _trials_of_each_model(goal: Goal, rule: StopRule, cells: Sequence[StudyCell]) -> list[Trial]:
    """Return a trial for each model on each task, whose arms are the task's sizes."""
    groups: dict[tuple[bytes, bytes], list[StudyCell]] = {}
    for cell in cells:
        groups.setdefault((cell.model_key, cell.task_key), []).append(cell)
    trials = []
    for group in groups.values():
        group.sort(key=lambda cell: cell.size)
        sizes = tuple(cell.size for cell in group)
        problems = max(cell.count for cell in group)
        samples = group[0].quota.samples
        design: Design
        if goal == "max_size":
            design = MaxSize(rule.search(), sizes)
        elif goal == "critical_size":
            design = Ladder(sizes, problems, samples, rule.margin)
        else:
            design = Precise(problems, rule.margin or 0.0, samples)
        label = group[0].label
        trials.append(
            Trial(
                goal,
                f"{label.model} on {label.task}",
                names=tuple(str(size) for size in sizes),
                arms=tuple((cell,) for cell in group),
                design=design,
            )
        )
    return trials


class Replayed(NamedTuple):
    """A trial as far as the store has it."""

    trial: Trial
    counts: list[int]  # problems of each arm that are analysed
    scores: list[Floats]
    ended: bool
    adaptive: bool = True  # False: they are analysed once, since everything had been asked

    def cells(self) -> list[StudyCell]:
        """Return the trial's cells with the problems that are analysed, and no others."""
        return self.trial.asked(self.counts)

    def decision(self) -> Decision:
        """Return what the trial has found so far."""
        text, estimate = _verdict(self.trial, self.scores)
        if not self.ended:
            text = "undecided so far"
        attempts = 0
        for cell in self.cells():
            attempts += cell.quota.samples * (cell.quota.problems or 0)
        at_most = self.trial.attempts_at_most()
        return Decision(self.trial.goal, text, estimate, self.ended, attempts, at_most)


def replayed(study: StudySpec, store: Store) -> list[Replayed]:
    """Repeat the decisions of a study's trials on what is stored.

    If the store has every attempt at every setting of `cheapest`, or they were imported, the run
    decided nothing about them: they are analysed once, and the intervals are narrower.
    """
    states = []
    for trial in trials(study):
        read = reader(store, trial.by)
        design = trial.design
        if isinstance(design, Cheapest) and (trial.is_log or trial.is_complete(read)):
            once = replace(trial, design=replace(design, analyses=1))
            counts = [design.problems] * len(trial.arms)
            scores = once.scores(read, counts)
            states.append(Replayed(once, counts, scores, ended=True, adaptive=False))
            continue
        counts, ended = trial.replay_from(read)
        states.append(Replayed(trial, counts, trial.scores(read, counts), ended))
    return states


@dataclass(frozen=True)
class Decision:
    """What a trial has found, with the attempts that it asked for and the most it may ask for."""

    goal: Goal
    text: str
    estimate: Estimate | None
    ended: bool
    attempts: int
    at_most: int


def decisions(study: StudySpec, store: Store) -> list[Decision]:
    """Return what each trial of a study has found so far."""
    return [state.decision() for state in replayed(study, store)]


def asked_cells(study: StudySpec, store: Store) -> tuple[StudyCell, ...]:
    """Return a study's cells with the problems that its designs asked, and no others."""
    return tuple(cell for state in replayed(study, store) for cell in state.cells())


def open_attempts(study: StudySpec, store: Store | None) -> dict[bytes, int]:
    """Return by cell key the most attempts that a run may still make, if there are any.

    Where the run chooses the sizes, all are counted at the largest size, which takes the most.
    """
    upper_bounds: dict[bytes, int] = {}
    for trial in trials(study):
        counts, ended = [0] * len(trial.arms), False
        if store:
            counts, ended = trial.replay(store)
        if ended:
            continue
        if isinstance(trial.design, MaxSize):
            cells = [cell for arm in trial.arms for cell in arm]
            stored = store.spent(cells)[0] if store else 0
            upper_bounds[cells[-1].key] = max(0, trial.attempts_at_most() - stored)
            continue
        for arm, problems in zip(trial.arms, counts, strict=True):
            dropped = trial.across_models and problems < max(counts)
            if dropped:
                continue
            for cell in arm:
                stored = store.spent([cell])[0] if store else 0
                upper_bounds[cell.key] = cell.quota.samples * cell.count - stored
    return upper_bounds


def describe(study: StudySpec) -> str:
    """Describe what a run with `stop` will find out, as `plan` prints it."""
    rule = study.stop_rule
    assert rule is not None
    study_trials = trials(study)
    first = study_trials[0]
    points = "" if rule.margin is None else f"{100 * rule.margin:g} points"
    if first.goal == "max_size":
        titles = _listed([trial.title for trial in study_trials])
        return f"the largest size that {titles} solves with {rule.target:.0%} accuracy"
    if first.goal == "critical_size":
        precision = "as precisely as the full ladder"
        if rule.margin is not None:
            precision = f"to within {100 * rule.margin:g} %"
        titles = _listed([trial.title for trial in study_trials])
        return f"the critical size of {titles}, {precision}"
    if first.goal == "best":
        end = "until one is clearly the best"
        if rule.margin is not None:
            end = f"to pick one within {points} of the best"
        return f"the best of {len(first.arms)} ({_listed(first.names)}), {end}"
    if first.goal == "cheapest":
        enough = f"not worse than {rule.reference or 'the best'} by more than {points}"
        if rule.floor is not None:
            enough = f"right in at least {rule.floor:.0%}"
        return f"the cheapest of {len(first.arms)} ({_listed(first.names)}) that is {enough}"
    if first.goal == "frontier":
        return f"which of {len(first.arms)} are on the frontier of accuracy and tokens"
    if first.goal == "difference":
        end = f"to within {points}"
        if rule.decide:
            end = "until it is clear"
            if points:
                end += f" ({points} matter)"
        return f"the difference between {first.names[0]} and {first.names[1]}, {end}"
    return f"the accuracy of each cell, to within {points}"


def _verdict(trial: Trial, scores: Sequence[Floats]) -> tuple[str, Estimate | None]:
    """Return what the answers say, in a sentence, with an interval that is valid for such a run."""
    design: Any = trial.design
    if trial.goal in ("critical_size", "max_size"):
        size = design.estimate(scores)
        accuracy = 0.5 if trial.goal == "critical_size" else design.search.target
        at_size = f"{_size_text(size)} {trial.arms[0][0].task.unit}".rstrip()
        return f"{trial.title}: accuracy falls below {100 * accuracy:g} % at {at_size}", size
    if trial.goal == "best":
        return _verdict_on_best(trial, design, scores)
    if trial.goal == "cheapest":
        return _verdict_on_cheapest(trial, design, scores), None
    if trial.goal == "frontier":
        return _verdict_on_frontier(trial, design, scores), None
    if trial.goal == "difference":
        return _verdict_on_difference(trial, design, scores)
    precise = 0
    for score in scores:
        if design.next([score]) == [0] and len(score) < design.problems:
            precise += 1
    cells = count(len(scores), "cell")
    return f"{trial.title}: {precise} of {cells} known to within the margin", None


def _verdict_on_cheapest(trial: Trial, design: Cheapest, scores: Sequence[Floats]) -> str:
    choice = design.standing(scores).choice
    if choice is None:
        return "no setting is surely good enough"
    return f"{trial.names[choice]} is the cheapest that is surely good enough"


def _verdict_on_frontier(trial: Trial, design: Frontier, scores: Sequence[Floats]) -> str:
    candidates: list[str] = []
    dominated: list[str] = []
    for name, is_candidate in zip(trial.names, design.left(scores), strict=True):
        group = candidates if is_candidate else dominated
        group.append(name)
    text = f"{len(candidates)} of {len(scores)} may be on the frontier: {', '.join(candidates)}"
    if dominated:
        text += f"; dominated: {', '.join(dominated)}"
    return text


def _verdict_on_difference(
    trial: Trial, design: Paired, scores: Sequence[Floats]
) -> tuple[str, Estimate]:
    explanations = {
        "clear": "the difference is clear",
        "small": f"a difference of {100 * (design.effect or 0):g} points is excluded",
        "futile": "no clear difference, and the rest of the problems would hardly show one",
        "precise": "known to within the margin",
        "": "no clear difference on all problems",
    }
    difference = design.difference(scores)
    explanation = explanations[design.why(scores)]
    first, second = trial.names
    return f"{first} minus {second}: {_points(difference)}; {explanation}", difference


def _verdict_on_best(
    trial: Trial, design: Best, scores: Sequence[Floats]
) -> tuple[str, Estimate | None]:
    means = []
    for score in scores:
        has_answers = np.isfinite(score).any()
        means.append(float(np.nanmean(score)) if has_answers else math.nan)
    candidates = np.flatnonzero(design.left(scores)).tolist()
    candidates.sort(key=lambda arm: -means[arm])
    if len(candidates) > 1:
        names = _listed([trial.names[arm] for arm in candidates], 6)
        may_be = f"{len(candidates)} of {len(scores)} may be the best"
        return f"{may_be}, and all problems were asked: {names}", None
    best = candidates[0]
    remaining_arms = [arm for arm in range(len(scores)) if arm != best]
    # The runner-up is the best of those that were dropped last.
    runner_up = max(remaining_arms, key=lambda arm: (len(scores[arm]), means[arm], -arm))
    lead = design.lead(scores, best, runner_up)
    rank = "the best"
    if design.margin is not None:
        rank = f"within {100 * design.margin:g} points of the best"
    ahead = f"ahead of {trial.names[runner_up]} by {_points(lead)}"
    return f"{trial.names[best]} is {rank}: {ahead}", lead


def _listed(names: Sequence[str], limit: int = 3) -> str:
    text = ", ".join(names[:limit])
    return f"{text}, …" if len(names) > limit else text


def _size_text(size: Estimate) -> str:
    if math.isnan(size.value):
        return f"more than {number(size.low)}" if size.low else f"less than {number(size.high)}"
    low = number(size.low) if size.low else "–"
    high = number(size.high) if math.isfinite(size.high) else "–"
    return f"{number(size.value)} [{low}, {high}]"


def _points(difference: Estimate) -> str:
    value, low, high = (100 * n for n in (difference.value, difference.low, difference.high))
    return f"{value:+.1f} points [{low:+.1f}, {high:+.1f}]"
