"""Groups students that were trained on selected traces, by how and how many were selected."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from ponder.core import Basis, Cell, Outcome, UserError
from ponder.figures import Row, basis, flat
from ponder.figures._variants import other_settings, owners, panels, seeds_pooled, setting
from ponder.stats.frontier import Variant, accuracy_difference, difference_p, fraction
from ponder.stats.paired import paired_difference
from ponder.study.labels import Beneath, beneath, cells_of, in_words, panel_label

UNTRAINED = "untrained"
REWARD = "reward"
RANDOM = "random"
ALL = "all"
CURATED = "right and short"  # what a person might keep
# Recorded when a student is trained.
MADE = (
    "selected",
    "selected_tokens",
    "selected_right",
    "selected_sound",
    "selected_one_teacher",
    "score_low",
    "score_high",
    "reward_parameters",
)
# Settings of `sft` that only a reward uses: they name a line if they vary between lines of one
# rule.
SCORING = ("cut", "threshold", "tolerance", "match_length")
RULES = {
    "exact": "exact scores",  # no ties, where other lines of the study have some
    "filter": "filter",
    "filter_shortest": "filter + shortest",
    "per_problem": "best per problem",
    "match_length": "match length",
}


class Selected(NamedTuple):
    """How the traces of a student were selected."""

    line: str  # its name in the legend: how the traces were selected, and other settings that vary
    by: str  # how the traces were selected
    reward: str
    settings: str  # other settings that vary
    number: float  # of traces asked for; 0 for the untrained student


@dataclass(frozen=True, slots=True)
class Student:
    """A model trained on traces that were selected in one way, with all its training seeds."""

    selected: Selected
    variant: Variant
    made: Mapping[str, float | None]  # what `MADE` names, averaged over its seeds
    basis: Basis

    def record(self, panel: str) -> Row:
        accuracy = fraction(self.variant, self.variant.correct)
        return flat(
            panel=panel,
            line=self.selected.line,
            by=self.selected.by,
            reward=self.selected.reward,
            rest=self.selected.settings,
            number=self.selected.number,
            accuracy=accuracy,
            **self.made,
            seeds=len(self.variant.seeds),
            attempts=accuracy.attempts,
            problems=accuracy.problems,
            basis=self.basis,
        )

    def minus(self, other: Student, panel: str) -> Row:
        """Return this student's results minus another's, paired by problem.

        The row also has the interval over problems alone.
        """
        first = self.variant
        second = other.variant
        over_problems = paired_difference(
            first.by_problem(first.correct), second.by_problem(second.correct)
        )
        tokens = self.made["selected_tokens"]
        other_tokens = other.made["selected_tokens"]
        seeds = len(first.seeds)
        if other.selected.by != UNTRAINED:
            seeds = min(seeds, len(second.seeds))
        return flat(
            panel=panel,
            line=self.selected.line,
            number=self.selected.number,
            less=other.selected.line,
            less_by=other.selected.by,
            less_number=other.selected.number,
            difference=accuracy_difference(first, second),
            p_value=difference_p(first, second),
            problems_only_low=over_problems.low,
            problems_only_high=over_problems.high,
            token_ratio=tokens / other_tokens if tokens and other_tokens else None,
            seeds=seeds,
            basis=Basis((*self.basis.cells, *other.basis.cells)),
        )


@dataclass(frozen=True, slots=True)
class StudentPanel:
    title: str
    group: str  # the student model, if there are several, and the task or its size
    pool: str  # the traces to select from; "" if the study has one pool
    problems: int
    rests_on: str
    pooled: str
    seeds_pooled: str  # "" unless asked for
    students: tuple[Student, ...]  # by line and number, rewards by size; the untrained one first
    basis: Basis

    def record(self) -> Row:
        return {
            "panel": self.title,
            "group": self.group,
            "pool": self.pool,
            "problems": self.problems,
            "rests_on": self.rests_on,
            "pooled": self.pooled,
            "seeds_pooled": self.seeds_pooled,
            "basis": self.basis,
        }

    def baseline(self, student: Student, by: str) -> Student | None:
        """Return the student of as many traces that were selected otherwise.

        If there are several, the one with the same other settings.
        """
        candidates = []
        for other in self.students:
            same_number = other.selected.number == student.selected.number
            if other.selected.by == by and (same_number or by in (UNTRAINED, ALL)):
                candidates.append(other)

        def order(other: Student) -> tuple[bool, str]:
            return other.selected.settings != student.selected.settings, other.selected.line

        return min(candidates, key=order, default=None)


def student_panels(
    outcomes: Sequence[Outcome],
    chosen: str,
    number: str,
    by: Literal["task", "size"],
    pool_seeds: bool = False,
) -> Iterator[StudentPanel]:
    """Yield one panel per student model, pool of traces, and task or size.

    `chosen` and `number` are the names of the settings that say how traces were selected, and how
    many. Students under best-of-n are left out.
    """
    trained = []
    for outcome in outcomes:
        under_best_of = any(use.name == "best_of" for use in outcome.cell.chain)
        selected_by = setting(outcome, chosen)
        if not under_best_of and selected_by is not None and _number(outcome, chosen, number):
            trained.append(outcome)
    if not any(outcome.answered for outcome in trained):
        raise UserError(
            "no student was trained on selected traces, which this figure draws",
            hint='give a model the method `sft`: by = ["reward", "random"], '
            "number = [100, 1000], seed = [1, 2, 3]",
        )
    student_of = beneath(outcomes, lambda cell: owners(cell, chosen), seeds=False)
    groups: dict[tuple[Beneath, str], list[Outcome]] = {}
    for outcome in trained:
        group = (student_of[outcome.cell.model_key], _pool(outcome.cell, chosen))
        groups.setdefault(group, []).append(outcome)
    several_students = len({student for student, _ in groups}) > 1
    several_pools = len({pool for _, pool in groups}) > 1
    naming = _naming(trained, chosen)
    for student, pool in sorted(groups, key=lambda group: (group[0].name, group[1])):
        selections: dict[str, Selected] = {}
        made: dict[str, dict[tuple[int, ...], Mapping[str, float]]] = {}
        attempts: dict[str, list[Outcome]] = {}
        group_attempts = groups[student, pool]
        selected_of = _selections(group_attempts, chosen, number, naming)
        for outcome in group_attempts:
            selected = selected_of(outcome)
            key = f"{selected.line} {selected.number}"
            selections[key] = selected
            # the same in every attempt of a seed
            made.setdefault(key, {})[outcome.cell.training_seeds] = outcome.made
            attempts.setdefault(key, []).append(outcome)
        for outcome in outcomes:
            if outcome.cell.variant_key == student.key and setting(outcome, chosen) is None:
                selections[UNTRAINED] = Selected(UNTRAINED, UNTRAINED, "", "", 0)
                attempts.setdefault(UNTRAINED, []).append(outcome)
        for panel in panels(attempts, by, pool=pool_seeds):
            students = []
            for variant in panel.data.variants:
                name = variant.name
                students.append(
                    Student(
                        selected=selections[name],
                        variant=variant,
                        made=_mean_of_seeds(made.get(name, {})),
                        basis=basis(panel.outcomes[name]),
                    )
                )
            students.sort(key=_order)
            if not students or students[-1].selected.by == UNTRAINED:
                continue
            title = panel_label(panel.title, model=student.name if several_students else "")
            pool_name = pool if several_pools else ""
            yield StudentPanel(
                title=panel_label(title, extra=[pool_name]),
                group=title,
                pool=pool_name,
                problems=panel.data.problems,
                rests_on=panel.rests_on,
                pooled=panel.pooled,
                seeds_pooled=seeds_pooled(panel.data) if pool_seeds else "",
                students=tuple(students),
                basis=basis(panel.attempts),
            )


def _order(student: Student) -> tuple[Any, ...]:
    selected = student.selected
    parameters = student.made["reward_parameters"] or 0
    return (
        selected.by != UNTRAINED,
        selected.by,
        parameters,
        selected.line,
        selected.number,
    )


class _Naming(NamedTuple):
    """What a line's name has to say, in all panels of a study."""

    several_rewards: bool  # the line is named by its reward
    with_ties: bool  # some scores tie, so a line without ties says so


def _naming(trained: Sequence[Outcome], chosen: str) -> _Naming:
    rewards = set()
    with_ties = False
    for cell in cells_of(outcome for outcome in trained if setting(outcome, chosen) == REWARD):
        rewards.add(_reward(cell, chosen))
        if other_settings(cell, chosen).get("tolerance"):
            with_ties = True
    return _Naming(len(rewards) > 1, with_ties)


def _selections(attempts: Sequence[Outcome], chosen: str, number: str, naming: _Naming) -> Any:
    """Return a function that says how the traces of an attempt's student were selected.

    Students that differ in more than the seed are different.
    """
    settings: dict[bytes, dict[str, Any]] = {}
    scoring: dict[str, dict[bytes, dict[str, Any]]] = {}  # settings of rewards, by rule
    for outcome in attempts:
        model = outcome.cell.model_key
        if model in settings:
            continue
        settings[model] = other_settings(outcome.cell, chosen, number)
        if setting(outcome, chosen) == REWARD:
            rule = _rule(settings[model], naming.with_ties)
            scoring.setdefault(rule, {})[model] = {
                key: value for key, value in settings[model].items() if key in SCORING
            }
    settings_text = in_words(settings, but=("seed", "reward", "rule", *SCORING))
    scoring_text: dict[bytes, str] = {}
    for of_rule in scoring.values():
        scoring_text |= in_words(of_rule)

    def selected(outcome: Outcome) -> Selected:
        model = outcome.cell.model_key
        by = str(setting(outcome, chosen))
        rule = _rule(settings[model], naming.with_ties)
        if by == "right" and rule == "filter_shortest":
            by = CURATED
        reward = ""
        line = by
        texts = [settings_text[model]]
        if by == REWARD:
            reward = _reward(outcome.cell, chosen)
            texts = [RULES.get(rule, rule), settings_text[model], scoring_text[model]]
            if naming.several_rewards:
                line = reward
        text = ", ".join(text for text in texts if text)
        if text:
            line = f"{line}, {text}"
        return Selected(line, by, reward, text, _number(outcome, chosen, number))

    return selected


def _rule(settings: Mapping[str, Any], with_ties: bool) -> str:
    """Return how a student's scores were used; "" for the highest first."""
    default = "match_length" if settings.get("match_length") else "top"
    rule = settings.get("rule", default)
    if rule != "top":
        return str(rule)
    return "exact" if with_ties and not settings.get("tolerance") else ""


def _pool(cell: Cell, chosen: str) -> str:
    """Return the traces that there were to select from: those of a file, or of teachers."""
    settings: dict[str, Any] = {}
    for owner in owners(cell, chosen):
        settings |= cell.owners[owner].settings
    teachers = settings.get("teachers") or ()
    return str(settings.get("data") or ", ".join(map(str, teachers)))


def _reward(cell: Cell, chosen: str) -> str:
    reward = None
    for owner in owners(cell, chosen)[:1]:
        reward = cell.owners[owner].settings.get("reward")
    return reward_name(reward)


def reward_name(reward: Any) -> str:
    """Return a reward's title, or its name and settings if only its identity is known."""
    if not isinstance(reward, Mapping):
        return str(reward or REWARD)
    words = [str(reward["name"])]
    for key, value in reward.items():
        if key != "name":
            words.append(f"{key}={value}")
    return " ".join(words)


def _number(outcome: Outcome, chosen: str, number: str) -> float:
    """Return the number of traces asked for, or selected if the student is trained on all."""
    asked_for = setting(outcome, number)
    selected = outcome.made.get("selected")
    if setting(outcome, chosen) == ALL:
        return float(selected or asked_for or 0)
    return float(asked_for or selected or 0)


def _mean_of_seeds(
    made: Mapping[tuple[int, ...], Mapping[str, float]],
) -> dict[str, float | None]:
    """Average over training seeds what was recorded when a student was trained."""
    means: dict[str, float | None] = {}
    for name in MADE:
        recorded = [notes[name] for notes in made.values() if notes.get(name) is not None]
        means[name] = math.fsum(sorted(recorded)) / len(recorded) if recorded else None
    return means
