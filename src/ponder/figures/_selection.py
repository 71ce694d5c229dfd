"""Groups students that were trained on selected traces: how the traces were selected, how many, and by which reward."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ponder.core import Outcome, UserError
from ponder.figures import flat
from ponder.figures._settings import beneath, beside, in_words, owners, setting
from ponder.figures._variants import panels, pooled_in_panels, seeds_pooled
from ponder.stats.frontier import Variant, accuracy_difference, difference_p, fraction
from ponder.stats.grid import paired_difference

Row = dict[str, Any]
UNTRAINED, REWARD, RANDOM, ALL = "untrained", "reward", "random", "all"
MADE = ("selected", "selected_tokens", "selected_right", "reward_parameters")  # recorded when a student is trained


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

    def record(self, panel: str) -> Row:
        right = fraction(self.variant, self.variant.correct)
        named = {"panel": panel, "line": self.line, "by": self.by, "reward": self.reward, "rest": self.rest}
        rests = {"seeds": len(self.variant.seeds), "attempts": right.attempts, "problems": right.problems}
        return flat(**named, number=self.number, accuracy=right, **self.made, **rests)

    def less(self, other: Student, panel: str) -> Row:
        """This student less another, paired by problem; also with the interval over problems alone."""
        first, second = self.variant, other.variant
        alone = paired_difference(first.by_problem(first.correct), second.by_problem(second.correct))
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
        )


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    problems: int
    rests_on: str
    pooled: str
    seeds_pooled: str  # "" unless asked for
    students: tuple[Student, ...]  # by line and number, rewards by size; the untrained one first

    def record(self) -> Row:
        names = ("problems", "rests_on", "pooled", "seeds_pooled")
        return {"panel": self.title, **{name: getattr(self, name) for name in names}}

    def baseline(self, student: Student, by: str) -> Student | None:
        """The student of as many traces that were selected otherwise, with the same other settings if there is one."""
        others = [s for s in self.students if s.by == by and (s.number == student.number or by in (UNTRAINED, ALL))]
        return min(others, key=lambda s: (s.rest != student.rest, s.line), default=None)


def students(
    outcomes: Sequence[Outcome], chosen: str, number: str, by: Literal["task", "size"], pool: bool = False
) -> Iterator[Panel]:
    """One panel per student model, and per task or size of it. Students under best-of-n are left out."""
    single = [o for o in outcomes if o.method("best_of") is None]
    trained = [o for o in single if setting(o, chosen) is not None and _number(o, chosen, number)]
    if not any(o.status != "failed" for o in trained):
        raise UserError(
            "no student was trained on selected traces, which this figure draws",
            hint='give a model the method `sft`: by = ["reward", "random"], number = [100, 1000], seed = [1, 2, 3]',
        )
    untrained = beneath(outcomes, lambda o: owners(o, chosen), pooled=True)
    names = sorted({untrained[o.model] for o in trained})
    for name in names:
        own = [o for o in trained if untrained[o.model] == name]
        kinds: dict[str, dict[str, Any]] = {}
        asked = []
        for o, kind in zip(own, _kinds(own, chosen, number), strict=True):
            key = f"{kind['line']} {kind['number']}"
            made = kinds.setdefault(key, {**kind, "made": {}})["made"]
            made[o.seeds] = o.made  # the same in every attempt of a seed
            asked.append(o._replace(variant=key))
        if bare := [o for o in outcomes if o.variant == name and setting(o, chosen) is None]:
            kinds[UNTRAINED] = {"line": UNTRAINED, "by": UNTRAINED, "reward": "", "rest": "", "number": 0, "made": {}}
            asked += [o._replace(variant=UNTRAINED) for o in bare]
        pools = pooled_in_panels(asked, by)
        for title, data, rests_on in panels(asked, by, pool=pool):
            group = sorted((_student(variant, **kinds[variant.name]) for variant in data.variants), key=_place)
            if group and group[-1].by != UNTRAINED:
                full_title = f"{name} | {title}" if len(names) > 1 else title
                told = seeds_pooled(data) if pool else ""
                yield Panel(full_title, data.problems, rests_on, pools[title], told, tuple(group))


def _place(student: Student) -> tuple[Any, ...]:
    size = student.made["reward_parameters"] or 0
    return student.by != UNTRAINED, student.by, size, student.line, student.number


def _kinds(own: Sequence[Outcome], chosen: str, number: str) -> Iterator[dict[str, Any]]:
    """How the traces of each student were selected. Students that differ in more than the seed are different kinds."""
    rests = in_words({o.model: beside(o, chosen, number) for o in own}, but=("seed", "reward"))
    rewards = {_reward(o, chosen) for o in own if setting(o, chosen) == REWARD}
    for o in own:
        by, rest = str(setting(o, chosen)), rests[o.model]
        reward = _reward(o, chosen) if by == REWARD else ""
        line = ", ".join(part for part in (reward if len(rewards) > 1 and reward else by, rest) if part)
        yield {"line": line, "by": by, "reward": reward, "rest": rest, "number": _number(o, chosen, number)}


def _reward(outcome: Outcome, chosen: str) -> str:
    return reward_name(next((use.settings.get("reward") for use in owners(outcome, chosen)), None))


def reward_name(reward: Any) -> str:
    """A reward's title, or its name and settings if only its identity is known."""
    if isinstance(reward, Mapping):
        return " ".join([str(reward["name"]), *(f"{k}={v}" for k, v in reward.items() if k != "name")])
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
