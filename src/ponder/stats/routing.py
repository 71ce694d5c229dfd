"""Estimates what sending each request to the setting it needs would save, from stored attempts.

    by_setting = {"low": low_outcomes, "high": high_outcomes}
    routing(by_setting, lambda o: o.tokens("output"), margin=0.02).worth

Three policies are compared on the problems that all settings answered, paired by problem. The best
single setting is the cheapest whose accuracy is within the margin of the most accurate one. The
oracle picks for each problem the cheapest setting that is right, and if none is, the cheapest. A
rule sends a request to the expensive one of two settings where a sign says so: the problem's size
or prompt length, which cost nothing to know, or the cheap setting's own first answer, whose call is
paid too.

With one sample per problem the oracle profits from luck: an answer that was right by chance counts
as one that would be right again. It is an upper bound. With several samples it also chooses by all
samples but one and is scored on that one, which is what is left of the bound without luck.

A rule's values are cross-validated: its threshold is chosen on nine tenths of the problems and scored
on the last tenth, five times over. The threshold to deploy is chosen on all problems, and so is the
best of all rules. Their intervals hold for every threshold at once, and for the best one for every
pair, sign and threshold at once (single-step max-t), because otherwise the best of many would look
better than it is. benchmarks/coverage_routing.py has their coverage.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from ponder.core import Estimate, Outcome
from ponder.stats.accuracy import mean, problem_means
from ponder.stats.columns import Bools, Floats, Ints
from ponder.stats.corrections import level_for_all
from ponder.stats.paired import paired_difference
from ponder.stats.ratios import Log
from ponder.stats.samples import gap_closed, over_problems

FEWEST_PROBLEMS = 20  # in common, for two problems in each fold
MIN_COVERAGE = 0.5  # fraction of the problems of the setting that answered most
FOLDS = 10
SPLITS = 5
THRESHOLDS = 20  # quantiles of a sign that are tried as its threshold
MIN_ORACLE_SAVING = 0.05  # below this, no rule is worth it
# Fraction of the margin that a chosen candidate may lose as measured: choosing by all of it would
# leave nothing to the noise of the test.
CHOICE_FRACTION = 0.5
DRAWS = 2000  # of the largest error among all candidates

# The signs, of a request or of the first answer to it, by which a rule escalates. `disagree of 2`:
# two cheap answers differ; `agreement`: the fraction of a vote's samples that its winner got.
Sign: TypeAlias = Literal[
    "size",
    "prompt_tokens",
    "thinking_tokens",
    "unparsed",
    "truncated",
    "unparsed or truncated",
    "disagree of 2",
    "disagree of 3",
    "agreement",
    "none",
]
# "yes": the best rule is shown to save, and not to be worse by more than the margin; "no": the
# oracle saves little, or the best rule may save nothing; "unclear": it saves, but may be worse.
Worth: TypeAlias = Literal["yes", "no", "unclear"]
Cost: TypeAlias = Callable[[Outcome], float]


@dataclass(frozen=True, slots=True)
class Rule:
    """Says when the expensive setting of a pair answers instead of the cheap one."""

    sign: Sign
    threshold: float | None = None

    @property
    def asks_first(self) -> bool:
        """Whether the cheap setting is always asked and paid."""
        return self.sign not in ("size", "prompt_tokens", "none")

    def text(self) -> str:
        """Return the sign with its threshold."""
        if self.threshold is None:
            return self.sign
        relation = "<" if self.sign == "agreement" else ">="
        return f"{self.sign} {relation} {self.threshold:g}"

    def escalate(self) -> dict[str, Any]:
        """Return the settings of the method `escalate` that apply the rule; {} for no routing."""
        if self.sign == "none":
            return {}
        if self.sign.startswith("disagree of "):
            return {"when": ["disagree"], "n": int(self.sign[-1])}
        return {"when": self.text().split(" or ")}


@dataclass(frozen=True, slots=True)
class Scored:
    """Accuracy and cost of a policy, and how both differ from the best single setting."""

    accuracy: Estimate
    cost: Estimate  # mean per request, with every call
    difference: Estimate  # in accuracy, policy − best single setting
    saving: Estimate  # 1 − cost / cost of the best single setting


@dataclass(frozen=True, slots=True)
class Route:
    """A rule for one pair of settings; its numbers are cross-validated."""

    cheap: str
    expensive: str  # equal to `cheap` if no routing was best
    rule: Rule  # with the threshold that is chosen on all problems
    scored: Scored
    escalated: Estimate  # fraction of requests that the expensive setting answers


@dataclass(frozen=True, slots=True)
class Routing:
    """What routing could save at one task, and how much of it rules reach."""

    problems: int
    settings: tuple[str, ...]  # from the cheapest to the most expensive
    margin: float
    single: str  # the best single setting, chosen on all problems
    single_accuracy: Estimate
    single_cost: Estimate
    oracle: Scored  # an upper bound, which profits from luck
    held_out_oracle: Scored | None  # without luck; None if there is one sample per problem
    routes: tuple[Route, ...]  # each sign for each pair, the largest saving first
    best: Route  # the best of them all, or no routing
    reached: Estimate  # the fraction of the oracle's saving that `best` reaches
    worth: Worth


def routing(
    outcomes_by_setting: Mapping[str, Sequence[Outcome]],
    cost: Cost,
    margin: float = 0.02,
    single: str | None = None,
) -> Routing | None:
    """Compare routing with the best single setting; None if all settings share too few problems.

    `cost` returns what an attempt cost: tokens, money or seconds. `single` names the setting to
    compare with; by default it is chosen. Attempts that failed don't count, nor do settings that
    answered less than half as many problems as another.
    """
    settings = _settings(outcomes_by_setting, cost)
    names = [setting.name for setting in settings]
    if len(settings) < 2 or settings[0].problems < FEWEST_PROBLEMS:
        return None
    if single is not None and single not in names:
        return None
    singles = _Candidates([_alone(setting) for setting in settings])
    candidates = _Candidates([*_all_candidates(settings), *singles.candidates])
    folds = _Folds(settings[0].size)
    reference = None
    if single is not None:
        reference = names.index(single)
    choice = _Choice(singles, folds, margin, reference)
    attempts = sum(len(setting.outcomes) for setting in settings) // len(settings)
    compare = _Comparison(choice, singles, attempts)

    routes = [compare.route(candidates.subset(rows)) for rows in candidates.families()]
    routes.sort(key=lambda route: -route.scored.saving.value)
    best = compare.route(candidates)
    lucky, held_out = _oracles(settings)
    oracle = compare.oracle(lucky)
    held_out_oracle = None
    if held_out is not None:
        held_out_oracle = compare.oracle(held_out)
    single_accuracy, single_cost = compare.single()
    return Routing(
        problems=settings[0].problems,
        settings=tuple(names),
        margin=margin,
        single=names[choice.single_on_all()],
        single_accuracy=single_accuracy,
        single_cost=single_cost,
        oracle=oracle,
        held_out_oracle=held_out_oracle,
        routes=tuple(routes),
        best=best,
        reached=compare.reached(candidates, held_out or lucky),
        worth=_worth(oracle, best, margin),
    )


def _worth(oracle: Scored, best: Route, margin: float) -> Worth:
    if oracle.saving.value < MIN_ORACLE_SAVING or best.scored.saving.low <= 0:
        return "no"
    if best.scored.difference.low > -margin:
        return "yes"
    return "unclear"


# --- The attempts ---


@dataclass(frozen=True)
class _Setting:
    """The attempts of a setting at the common problems, sorted by problem."""

    name: str
    outcomes: Sequence[Outcome]
    problem: Ints  # of each attempt
    correct: Floats  # 0 or 1, of each attempt
    cost: Floats  # of each attempt
    size: Floats  # of each problem

    @property
    def problems(self) -> int:
        return len(self.size)

    @property
    def accuracy_by_problem(self) -> Floats:
        return problem_means(self.correct, self.problem)

    @property
    def cost_by_problem(self) -> Floats:
        return problem_means(self.cost, self.problem)

    def by_problem(self) -> Iterator[slice]:
        """Yield for each problem the rows of its attempts."""
        ends = np.searchsorted(self.problem, np.arange(self.problems + 1))
        for start, stop in itertools.pairwise(ends.tolist()):
            yield slice(start, stop)


def _settings(outcomes_by_setting: Mapping[str, Sequence[Outcome]], cost: Cost) -> list[_Setting]:
    """Return the settings at the problems that all answered, the cheapest first.

    Settings that an adaptive run has asked few problems are left out, because only those problems
    would be common to all.
    """
    by_setting: dict[str, dict[tuple[bytes, int, str], list[Outcome]]] = {}
    for name, outcomes in outcomes_by_setting.items():
        by_problem = by_setting.setdefault(name, {})
        for outcome in outcomes:
            if outcome.answered:
                key = (outcome.cell.task_key, outcome.size, outcome.problem)
                by_problem.setdefault(key, []).append(outcome)
    if not by_setting:
        return []
    most_problems = max(len(by_problem) for by_problem in by_setting.values())
    for name in list(by_setting):
        if len(by_setting[name]) < MIN_COVERAGE * most_problems:
            del by_setting[name]
    common = sorted(set.intersection(*(set(answered) for answered in by_setting.values())))
    sizes = np.array([size for _, size, _ in common], dtype=np.float64)
    settings = []
    for name, by_problem in by_setting.items():
        rows: list[Outcome] = []
        problem: list[int] = []
        for index, key in enumerate(common):
            # An order that doesn't depend on that of the outcomes.
            samples = sorted(by_problem[key], key=lambda o: (o.cell.key, o.sample, o.attempt))
            rows += samples
            problem += [index] * len(samples)
        settings.append(
            _Setting(
                name=name,
                outcomes=rows,
                problem=np.array(problem, dtype=np.int64),
                correct=np.array([o.correct for o in rows], dtype=np.float64),
                cost=np.array([cost(o) for o in rows], dtype=np.float64),
                size=sizes,
            )
        )
    if common:
        settings.sort(key=lambda setting: (float(setting.cost_by_problem.mean()), setting.name))
    return settings


# --- Policies that could be deployed ---


class _Candidate(NamedTuple):
    """A rule with its threshold, and its accuracy and cost on each problem, a mean of samples."""

    cheap: str
    expensive: str
    rule: Rule
    accuracy: Floats
    cost: Floats
    escalated: Floats

    @property
    def family(self) -> tuple[str, str, Sign]:
        """The key that candidates share if they differ in their threshold alone."""
        return self.cheap, self.expensive, self.rule.sign


def _alone(setting: _Setting) -> _Candidate:
    return _Candidate(
        setting.name,
        setting.name,
        Rule("none"),
        setting.accuracy_by_problem,
        setting.cost_by_problem,
        np.zeros(setting.problems),
    )


def _all_candidates(settings: Sequence[_Setting]) -> Iterator[_Candidate]:
    """Yield every rule with every threshold for every pair of settings."""
    for cheap, expensive in itertools.combinations(settings, 2):
        yield from _before_asking(cheap, expensive, "size", cheap.size)
        prompt_tokens = np.array([o.prompt_tokens for o in cheap.outcomes], dtype=np.float64)
        lengths = problem_means(prompt_tokens, cheap.problem)
        yield from _before_asking(cheap, expensive, "prompt_tokens", lengths)
        for rule, is_signed in _signs(cheap):
            yield _after_answer(cheap, expensive, rule, is_signed)
        yield from _disagreeing(cheap, expensive)


def _thresholds(values: Floats) -> list[float]:
    """Return thresholds to try: for each, some requests are below, and some are not."""
    distinct = np.unique(values)
    if len(distinct) > THRESHOLDS:
        fractions = np.arange(1, THRESHOLDS) / THRESHOLDS
        distinct = np.unique(np.quantile(values, fractions, method="higher"))
    return [value for value in distinct.tolist() if value > values.min()]


def _before_asking(
    cheap: _Setting, expensive: _Setting, sign: Sign, values: Floats
) -> Iterator[_Candidate]:
    """Yield rules that are decided before any call, so that only one is paid.

    `values` has the sign of each problem, such as its size.
    """
    for threshold in _thresholds(values):
        escalates = values >= threshold
        yield _Candidate(
            cheap.name,
            expensive.name,
            Rule(sign, threshold),
            np.where(escalates, expensive.accuracy_by_problem, cheap.accuracy_by_problem),
            np.where(escalates, expensive.cost_by_problem, cheap.cost_by_problem),
            escalates.astype(np.float64),
        )


def _signs(cheap: _Setting) -> Iterator[tuple[Rule, Bools]]:
    """Yield rules by the sign of a cheap answer, and which of the attempts have the sign."""
    unparsed = np.array([o.ended == "unparsed" for o in cheap.outcomes])
    truncated = np.array([o.ended == "truncated" for o in cheap.outcomes])
    if unparsed.any():
        yield Rule("unparsed"), unparsed
    if truncated.any():
        yield Rule("truncated"), truncated
    if unparsed.any() and truncated.any():
        yield Rule("unparsed or truncated"), unparsed | truncated
    thinking = np.array([o.thinking_tokens for o in cheap.outcomes], dtype=np.float64)
    for threshold in _thresholds(thinking):
        yield Rule("thinking_tokens", threshold), thinking >= threshold
    if all("agreement" in o.details for o in cheap.outcomes):
        agreement = np.array([o.details["agreement"] for o in cheap.outcomes], dtype=np.float64)
        for threshold in _thresholds(agreement):
            yield Rule("agreement", threshold), agreement < threshold


def _after_answer(cheap: _Setting, expensive: _Setting, rule: Rule, is_signed: Bools) -> _Candidate:
    """Return a rule that the cheap answer decides; both calls are paid where it has the sign."""
    right_if_escalated = expensive.accuracy_by_problem[cheap.problem]
    extra_cost = expensive.cost_by_problem[cheap.problem]
    correct = np.where(is_signed, right_if_escalated, cheap.correct)
    cost = cheap.cost + np.where(is_signed, extra_cost, 0.0)
    return _Candidate(
        cheap.name,
        expensive.name,
        rule,
        problem_means(correct, cheap.problem),
        problem_means(cost, cheap.problem),
        problem_means(is_signed, cheap.problem),
    )


def _disagreeing(cheap: _Setting, expensive: _Setting) -> Iterator[_Candidate]:
    """Yield rules that ask the cheap setting n times, and escalate unless all answers are equal.

    Each is averaged over every subset of n of the stored samples.
    """
    if not any("ballot" in o.details for o in cheap.outcomes):
        return
    signs: tuple[tuple[int, Sign], ...] = ((2, "disagree of 2"), (3, "disagree of 3"))
    groups = list(cheap.by_problem())
    for n, sign in signs:
        if min(group.stop - group.start for group in groups) < n:
            return
        accuracy = np.empty(cheap.problems)
        escalated = np.empty(cheap.problems)
        for problem, group in enumerate(groups):
            answers = [_answer(o) for o in cheap.outcomes[group]]
            correct = cheap.correct[group]
            agreeing = 0
            right = 0.0
            subsets = list(itertools.combinations(range(len(answers)), n))
            for samples in subsets:
                first = answers[samples[0]]
                if first is not None and all(answers[sample] == first for sample in samples):
                    agreeing += 1
                    right += correct[samples[0]]
            escalated[problem] = 1 - agreeing / len(subsets)
            by_expensive = escalated[problem] * expensive.accuracy_by_problem[problem]
            accuracy[problem] = right / len(subsets) + by_expensive
        cost = n * cheap.cost_by_problem + escalated * expensive.cost_by_problem
        yield _Candidate(cheap.name, expensive.name, Rule(sign), accuracy, cost, escalated)


def _answer(outcome: Outcome) -> int | None:
    """Return a number that is the same for equal answers; None if there is no answer."""
    if outcome.ended in ("truncated", "unparsed"):
        return None
    ballot: int | None = outcome.details.get("ballot")
    return ballot


# --- The oracle ---


class _Policy(NamedTuple):
    """The accuracy, the cost and the escalated fraction of a policy on each problem."""

    accuracy: Floats
    cost: Floats
    escalated: Floats


def _oracles(settings: Sequence[_Setting]) -> tuple[_Policy, _Policy | None]:
    """Return the oracle that chooses by the answers it is scored on, and one that doesn't.

    The second is None if there is one sample per problem.
    """
    samples = _fewest_samples(settings)
    shape = (len(settings), settings[0].problems, samples)
    right = np.empty(shape)
    cost = np.empty(shape)
    for index, setting in enumerate(settings):
        for problem, group in enumerate(setting.by_problem()):
            first = slice(group.start, group.start + samples)
            right[index, problem] = setting.correct[first]
            cost[index, problem] = setting.cost[first]
    lucky = _chosen_per_problem(right, cost, right, cost)
    if samples < 2:
        return lucky, None
    other_right = right.sum(axis=2, keepdims=True) - right
    other_cost = cost.sum(axis=2, keepdims=True) - cost
    return lucky, _chosen_per_problem(other_right, other_cost, right, cost)


def _fewest_samples(settings: Sequence[_Setting]) -> int:
    return min(int(np.bincount(setting.problem).min()) for setting in settings)


def _chosen_per_problem(
    shown_right: Floats, shown_cost: Floats, right: Floats, cost: Floats
) -> _Policy:
    """Return the policy that picks for each sample the setting that was most often right.

    If several were, it picks the cheapest of them. It chooses by `shown_right` and `shown_cost`,
    and is scored on `right` and `cost`. All arrays are settings × problems × samples.
    """
    most_right = shown_right == shown_right.max(axis=0)
    picked = np.where(most_right, shown_cost, np.inf).argmin(axis=0)[None]
    accuracy = np.take_along_axis(right, picked, axis=0)[0].mean(axis=1)
    mean_cost = np.take_along_axis(cost, picked, axis=0)[0].mean(axis=1)
    return _Policy(accuracy, mean_cost, (picked[0] > 0).mean(axis=1))


# --- Cross-validation ---


class _Folds:
    """Several splits of the problems into folds, in which sizes are spread evenly."""

    def __init__(self, size: Floats) -> None:
        rng = np.random.default_rng(31)
        problems = len(size)
        self.of_problem: list[Ints] = []
        for _ in range(SPLITS):
            order = np.lexsort((rng.random(problems), size))
            fold = np.empty(problems, dtype=np.int64)
            fold[order] = np.arange(problems) % FOLDS
            self.of_problem.append(fold)

    def training_means(self, rows: Floats) -> list[Floats]:
        """Return for each split the means over the problems outside each fold.

        `rows` is candidates × problems; the means are candidates × folds.
        """
        totals = rows.sum(axis=1, keepdims=True)
        means = []
        for fold in self.of_problem:
            is_in_fold = fold[:, None] == np.arange(FOLDS)
            outside = len(fold) - is_in_fold.sum(axis=0)
            means.append((totals - rows @ is_in_fold) / outside)
        return means


class _Candidates:
    """Candidates as matrices, candidates × problems."""

    def __init__(self, candidates: Sequence[_Candidate]) -> None:
        self.candidates = candidates
        self.accuracy = np.array([candidate.accuracy for candidate in candidates])
        self.cost = np.array([candidate.cost for candidate in candidates])
        self.escalated = np.array([candidate.escalated for candidate in candidates])

    def families(self) -> list[list[int]]:
        """Return the candidates that differ in their threshold alone, by position."""
        families: dict[tuple[str, str, Sign], list[int]] = {}
        for index, candidate in enumerate(self.candidates):
            if candidate.rule.sign != "none":
                families.setdefault(candidate.family, []).append(index)
        return list(families.values())

    def policy(self, row: int) -> _Policy:
        return _Policy(self.accuracy[row], self.cost[row], self.escalated[row])

    def subset(self, rows: Sequence[int]) -> _Candidates:
        return _Candidates([self.candidates[row] for row in rows])


class _Choice:
    """Chooses the cheapest candidate that is accurate enough: on all problems, or in each fold."""

    def __init__(
        self, singles: _Candidates, folds: _Folds, margin: float, reference: int | None
    ) -> None:
        self._folds = folds
        self._singles = singles
        self._allowed = CHOICE_FRACTION * margin
        self._reference = reference

    def single_on_all(self) -> int:
        """Return the position of the setting to compare with."""
        if self._reference is not None:
            return self._reference
        return self.on_all(self._singles)

    def on_all(self, candidates: _Candidates) -> int:
        """Return the position of the candidate that is chosen on all problems."""
        needed = self._needed(self._singles.accuracy.mean(axis=1))
        accuracy = candidates.accuracy.mean(axis=1)
        return _cheapest(accuracy, candidates.cost.mean(axis=1), needed)

    def policy(self, candidates: _Candidates) -> _Policy:
        """Return the policy that uses on each problem the candidate chosen on the other folds."""
        single_accuracies = self._folds.training_means(self._singles.accuracy)
        accuracies = self._folds.training_means(candidates.accuracy)
        costs = self._folds.training_means(candidates.cost)
        problems = candidates.accuracy.shape[1]
        everywhere = np.arange(problems)
        total = np.zeros((3, problems))
        for split, fold in enumerate(self._folds.of_problem):
            chosen_rows = np.empty(FOLDS, dtype=np.int64)
            for k in range(FOLDS):
                needed = self._needed(single_accuracies[split][:, k])
                training_accuracy = accuracies[split][:, k]
                chosen_rows[k] = _cheapest(training_accuracy, costs[split][:, k], needed)
            rows = chosen_rows[fold]
            total[0] += candidates.accuracy[rows, everywhere]
            total[1] += candidates.cost[rows, everywhere]
            total[2] += candidates.escalated[rows, everywhere]
        accuracy, cost, escalated = total / SPLITS
        return _Policy(accuracy, cost, escalated)

    def _needed(self, single_accuracy: Floats) -> float:
        if self._reference is not None:
            return float(single_accuracy[self._reference]) - self._allowed
        return float(single_accuracy.max()) - self._allowed


def _cheapest(accuracy: Floats, cost: Floats, needed: float) -> int:
    """Return the cheapest candidate with the accuracy needed, or else the most accurate."""
    needed = min(needed, float(accuracy.max())) - 1e-9  # despite rounding
    return int(np.where(accuracy >= needed, cost, np.inf).argmin())


# --- Estimates ---


class _Comparison:
    """Compares policies with the best single setting, problem by problem."""

    def __init__(self, choice: _Choice, singles: _Candidates, attempts: int) -> None:
        self._choice = choice
        self._single = singles.policy(choice.single_on_all())
        self._problems = len(self._single.cost)
        self._attempts = attempts

    def single(self) -> tuple[Estimate, Estimate]:
        """Return the accuracy and the cost of the best single setting."""
        accuracy = over_problems(self._single.accuracy, self._attempts)
        return accuracy, _mean_cost(self._single.cost, 0.95)

    def oracle(self, policy: _Policy) -> Scored:
        return self._score(policy, policy, 0.95, 0.95)

    def route(self, candidates: _Candidates) -> Route:
        """Return the route that is chosen among candidates, with its numbers."""
        row = self._choice.on_all(candidates)
        candidate = candidates.candidates[row]
        deployed = candidates.policy(row)
        held_out = self._held_out(candidates, row)
        level = _level_for_all(candidates.accuracy - self._single.accuracy)
        log_costs = _log_influences(candidates.cost, self._single.cost)
        cost_level = _level_for_all(log_costs)
        escalated = over_problems(deployed.escalated, self._problems, level=level)
        return Route(
            cheap=candidate.cheap,
            expensive=candidate.expensive,
            rule=candidate.rule,
            scored=self._score(deployed, held_out, level, cost_level),
            escalated=_with_value(escalated, float(held_out.escalated.mean())),
        )

    def _held_out(self, candidates: _Candidates, row: int) -> _Policy:
        """Return the policy of a candidate's rule with thresholds chosen on the other folds."""
        family = candidates.candidates[row].family
        rows = []
        for index, candidate in enumerate(candidates.candidates):
            if candidate.family == family:
                rows.append(index)
        return self._choice.policy(candidates.subset(rows))

    def _score(
        self, deployed: _Policy, held_out: _Policy, level: float, cost_level: float
    ) -> Scored:
        """Return intervals for the policy on all problems, around its values on held-out ones."""
        single = self._single
        if np.array_equal(deployed.cost, single.cost):  # it is the single setting
            difference = Estimate(0.0, 0.0, 0.0, self._problems, self._problems)
            saving = difference
        else:
            difference = paired_difference(deployed.accuracy, single.accuracy, level)
            saving = _saving(deployed.cost, single.cost, cost_level)
        accuracy = over_problems(deployed.accuracy, self._attempts, level=level)
        held_out_difference = float((held_out.accuracy - single.accuracy).mean())
        return Scored(
            accuracy=_with_value(accuracy, float(held_out.accuracy.mean())),
            cost=_with_value(_mean_cost(deployed.cost, cost_level), float(held_out.cost.mean())),
            difference=_with_value(difference, held_out_difference),
            saving=_with_value(saving, _fraction_saved(held_out.cost, single.cost)),
        )

    def reached(self, candidates: _Candidates, oracle: _Policy) -> Estimate:
        """Return the fraction of the oracle's saving that the chosen candidate reaches."""
        single_cost = float(self._single.cost.mean())
        oracle_saving = single_cost - float(oracle.cost.mean())
        if single_cost <= 0 or oracle_saving <= 0:
            return Estimate(math.nan, -math.inf, math.inf, self._problems, self._problems)
        row = self._choice.on_all(candidates)
        level = _level_for_all(candidates.cost - self._single.cost)
        # In units of the mean cost, because the interval counts on values about 1; negative,
        # because a gap is closed upwards.
        start = -self._single.cost / single_cost
        deployed = -candidates.cost[row] / single_cost
        best = -oracle.cost / single_cost
        interval = gap_closed(start, deployed, best, level)
        held_out_cost = float(self._held_out(candidates, row).cost.mean())
        return _with_value(interval, (single_cost - held_out_cost) / oracle_saving)


def _level_for_all(influences: Floats) -> float:
    """Return the level of each candidate's interval at which all of them hold together.

    `influences` is candidates × problems: what each problem adds to each estimate.
    """
    centred = influences - influences.mean(axis=1, keepdims=True)
    spread = np.sqrt((centred**2).sum(axis=1))
    varies = spread > 1e-9 * float(np.abs(influences).max())
    if not varies.any():
        return 0.95
    return level_for_all(centred[varies] / spread[varies, None], replicates=DRAWS)


def _with_value(interval: Estimate, value: float) -> Estimate:
    """Return an interval with another value, which it is widened to hold."""
    low = min(interval.low, value)
    high = max(interval.high, value)
    return Estimate(value, low, high, interval.attempts, interval.problems)


def _mean_cost(cost: Floats, level: float) -> Estimate:
    return mean(cost, np.arange(len(cost)), level)


def _fraction_saved(cost: Floats, reference: Floats) -> float:
    if reference.mean() <= 0:
        return math.nan
    return 1 - float(cost.mean() / reference.mean())


def _saving(cost: Floats, reference: Floats, level: float) -> Estimate:
    """Return 1 − mean cost / mean cost of the reference, on the same problems."""
    if cost.mean() <= 0 or reference.mean() <= 0:
        return Estimate(math.nan, -math.inf, 1.0, len(cost), len(cost))
    ratio = _log_mean(cost).over(_log_mean(reference))(level)
    return Estimate(1 - ratio.value, 1 - ratio.high, 1 - ratio.low, len(cost), len(cost))


def _log_mean(cost: Floats) -> Log:
    n = len(cost)
    value = float(cost.mean())
    return Log(math.log(value), (cost / value - 1) / n, parameters=1, attempts=n, problems=n)


def _log_influences(cost: Floats, reference: Floats) -> Floats:
    """Return what each problem adds to the logarithm of each cost ratio."""
    means = cost.mean(axis=1, keepdims=True)
    scale = np.where(means > 0, means, 1.0)
    return np.asarray(cost / scale - reference / (reference.mean() or 1.0))
