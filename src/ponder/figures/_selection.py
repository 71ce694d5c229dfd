"""Groups students that were trained on selected traces: how the traces were selected, how many, and
by which reward.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ponder.core import Basis, Cell, Outcome, UserError
from ponder.figures import basis, flat
from ponder.figures._settings import beside, owners, setting
from ponder.figures._variants import panels, seeds_pooled
from ponder.stats.frontier import Variant, accuracy_difference, difference_p, fraction
from ponder.stats.paired import paired_difference
from ponder.study.labels import Beneath, beneath, cells_of, in_words, panel_label

Row = dict[str, Any]
UNTRAINED, REWARD, RANDOM, ALL = "untrained", "reward", "random", "all"
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


@dataclass(frozen=True, slots=True)
class Student:
    """A model trained on traces that were selected in one way, with all its training seeds."""

    line: str  # its name in the legend: how the traces were selected, and other settings that vary
    by: str  # how the traces were selected
    reward: str
    rest: str  # other settings that vary
    number: float  # of traces asked for; 0 for the untrained student
    variant: Variant
    made: Mapping[str, float | None]  # averaged over its seeds
    basis: Basis

    def record(self, panel: str) -> Row:
        right = fraction(self.variant, self.variant.correct)
        named = {
            "panel": panel,
            "line": self.line,
            "by": self.by,
            "reward": self.reward,
            "rest": self.rest,
        }
        rests = {
            "seeds": len(self.variant.seeds),
            "attempts": right.attempts,
            "problems": right.problems,
        }
        return flat(
            **named, number=self.number, accuracy=right, **self.made, **rests, basis=self.basis
        )

    def minus(self, other: Student, panel: str) -> Row:
        """Return this student's results minus another's, paired by problem; also the interval over
        problems alone.
        """
        first, second = self.variant, other.variant
        alone = paired_difference(
            first.by_problem(first.correct), second.by_problem(second.correct)
        )
        tokens = [s.made["selected_tokens"] for s in (self, other)]
        return flat(
            panel=panel,
            line=self.line,
            number=self.number,
            less=other.line,
            less_by=other.by,
            less_number=other.number,
            difference=accuracy_difference(first, second),
            p_value=difference_p(first, second),
            problems_only_low=alone.low,
            problems_only_high=alone.high,
            token_ratio=tokens[0] / tokens[1] if tokens[0] and tokens[1] else None,
            seeds=min(len(s.variant.seeds) for s in (self, other) if s.by != UNTRAINED),
            basis=Basis((*self.basis.cells, *other.basis.cells)),
        )


@dataclass(frozen=True, slots=True)
class Panel:
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
        names = ("problems", "rests_on", "pooled", "seeds_pooled", "basis")
        named = {"panel": self.title, "group": self.group, "pool": self.pool}
        return {**named, **{name: getattr(self, name) for name in names}}

    def baseline(self, student: Student, by: str) -> Student | None:
        """The student of as many traces that were selected otherwise, with the same other settings
        if there is one.
        """
        others = [
            s
            for s in self.students
            if s.by == by and (s.number == student.number or by in (UNTRAINED, ALL))
        ]
        return min(others, key=lambda s: (s.rest != student.rest, s.line), default=None)


def students(
    outcomes: Sequence[Outcome],
    chosen: str,
    number: str,
    by: Literal["task", "size"],
    pool_seeds: bool = False,
) -> Iterator[Panel]:
    """Yield one panel per student model, pool of traces, and task or size. Students under best-of-n
    are left out.

    `chosen` and `number` are the names of the settings that say how traces were selected, and how
    many.
    """
    single = [o for o in outcomes if not any(use.name == "best_of" for use in o.cell.chain)]
    trained = [o for o in single if setting(o, chosen) is not None and _number(o, chosen, number)]
    if not any(o.answered for o in trained):
        raise UserError(
            "no student was trained on selected traces, which this figure draws",
            hint='give a model the method `sft`: by = ["reward", "random"], number = [100, 1000], seed = [1, 2, 3]',
        )
    untrained = beneath(outcomes, lambda cell: owners(cell, chosen), seeds=False)
    groups: dict[tuple[Beneath, str], list[Outcome]] = {}
    for o in trained:
        groups.setdefault((untrained[o.cell.model_key], _pool(o.cell, chosen)), []).append(o)
    several_students = len({student for student, _ in groups}) > 1
    several_pools = len({pool_name for _, pool_name in groups}) > 1
    rewarded = [o for o in trained if setting(o, chosen) == REWARD]
    rewards = {_reward(cell, chosen) for cell in cells_of(rewarded)}
    tied = any(beside(cell, chosen).get("tolerance") for cell in cells_of(rewarded))
    for student, pool_name in sorted(groups, key=lambda group: (group[0].name, group[1])):
        own = groups[student, pool_name]
        kinds: dict[str, dict[str, Any]] = {}
        named: dict[str, list[Outcome]] = {}
        for o, kind in zip(own, _kinds(own, chosen, number, len(rewards) > 1, tied), strict=True):
            key = f"{kind['line']} {kind['number']}"
            made = kinds.setdefault(key, {**kind, "made": {}})["made"]
            made[o.cell.training_seeds] = o.made  # the same in every attempt of a seed
            named.setdefault(key, []).append(o)
        bare = [
            o for o in outcomes if o.cell.variant_key == student.key and setting(o, chosen) is None
        ]
        if bare:
            kinds[UNTRAINED] = {
                "line": UNTRAINED,
                "by": UNTRAINED,
                "reward": "",
                "rest": "",
                "number": 0,
                "made": {},
            }
            named[UNTRAINED] = bare
        for panel in panels(named, by, pool=pool_seeds):
            shown = []
            for variant in panel.data.variants:
                basis_of = basis(panel.outcomes[variant.name])
                shown.append(_student(variant, basis=basis_of, **kinds[variant.name]))
            shown.sort(key=_place)
            if shown and shown[-1].by != UNTRAINED:
                place = panel_label(panel.title, model=student.name if several_students else "")
                of_pool = pool_name if several_pools else ""
                yield Panel(
                    title=panel_label(place, more=[of_pool]),
                    group=place,
                    pool=of_pool,
                    problems=panel.data.problems,
                    rests_on=panel.rests_on,
                    pooled=panel.pooled,
                    seeds_pooled=seeds_pooled(panel.data) if pool_seeds else "",
                    students=tuple(shown),
                    basis=basis(panel.attempts),
                )


def _place(student: Student) -> tuple[Any, ...]:
    size = student.made["reward_parameters"] or 0
    return student.by != UNTRAINED, student.by, size, student.line, student.number


def _kinds(
    own: Sequence[Outcome], chosen: str, number: str, several: bool, tied: bool
) -> Iterator[dict[str, Any]]:
    """How the traces of each student were selected. Students that differ in more than the seed are
    different kinds.

    `several`: whether the study has several rewards, so that a line is named by its reward; `tied`:
    whether it has scores that tie, so that a line without ties says so.
    """
    others = {}
    rules: dict[str, dict[bytes, dict[str, Any]]] = {}
    for o in own:
        model = o.cell.model_key
        if model in others:
            continue
        others[model] = beside(o.cell, chosen, number)
        if setting(o, chosen) == REWARD:
            scoring = {key: value for key, value in others[model].items() if key in SCORING}
            rules.setdefault(_rule(others[model], tied), {})[model] = scoring
    rests = in_words(others, but=("seed", "reward", "rule", *SCORING))
    scored = {
        model: words for tables in rules.values() for model, words in in_words(tables).items()
    }
    for o in own:
        model = o.cell.model_key
        by, rule = str(setting(o, chosen)), _rule(others[model], tied)
        reward = _reward(o.cell, chosen) if by == REWARD else ""
        if by == "right" and rule == "filter_shortest":
            by = CURATED
        named = (RULES.get(rule, rule), rests[model], scored[model]) if reward else (rests[model],)
        rest = ", ".join(part for part in named if part)
        line = ", ".join(part for part in (reward if several and reward else by, rest) if part)
        yield {
            "line": line,
            "by": by,
            "reward": reward,
            "rest": rest,
            "number": _number(o, chosen, number),
        }


def _rule(settings: Mapping[str, Any], tied: bool) -> str:
    """How a student's scores were used; "" for the highest first."""
    rule = settings.get("rule", "match_length" if settings.get("match_length") else "top")
    if rule == "top":
        return "exact" if tied and not settings.get("tolerance") else ""
    return str(rule)


def _pool(cell: Cell, chosen: str) -> str:
    """The traces that there were to select from: those of a file, or of teachers."""
    settings = {
        key: value
        for owner in owners(cell, chosen)
        for key, value in cell.owners[owner].settings.items()
    }
    return str(settings.get("data") or ", ".join(map(str, settings.get("teachers") or ())))


def _reward(cell: Cell, chosen: str) -> str:
    return reward_name(
        next((cell.owners[owner].settings.get("reward") for owner in owners(cell, chosen)), None)
    )


def reward_name(reward: Any) -> str:
    """A reward's title, or its name and settings if only its identity is known."""
    if isinstance(reward, Mapping):
        return " ".join(
            [str(reward["name"]), *(f"{k}={v}" for k, v in reward.items() if k != "name")]
        )
    return str(reward or REWARD)


def _number(outcome: Outcome, chosen: str, number: str) -> float:
    asked, got = setting(outcome, number), outcome.made.get("selected")
    # A student that is trained on all traces is given no number.
    return float((got or asked if setting(outcome, chosen) == ALL else asked or got) or 0)


def _student(variant: Variant, made: dict[Any, Mapping[str, Any]], **named: Any) -> Student:
    means = {}
    for name in MADE:
        known = sorted(d[name] for d in made.values() if d.get(name) is not None)
        means[name] = math.fsum(known) / len(known) if known else None
    return Student(**named, variant=variant, made=means)


def traces(number: float) -> str:
    return f"{number:,.0f} traces"
