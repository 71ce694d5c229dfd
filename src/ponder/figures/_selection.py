"""What figures of students share that were trained on chosen traces."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ponder.core import Outcome, UserError
from ponder.figures import flat, model_alone, setting, settings_of
from ponder.figures._variants import panels
from ponder.stats.frontier import Variant, accuracy_difference, share
from ponder.stats.grid import paired_difference

Row = dict[str, Any]
UNTRAINED, REWARD, RANDOM, ALL = "untrained", "reward", "random", "all"
MADE = ("selected", "selected_tokens", "selected_right", "reward_parameters")  # of a trained student's details


@dataclass(frozen=True, slots=True)
class Student:
    """One trained on traces chosen in one way, all its training seeds together."""

    line: str  # how they were chosen, with what tells it from others chosen so
    by: str
    reward: str
    rest: str  # settings that vary beside the choice
    number: float  # of traces asked for; 0 for the untrained student
    variant: Variant
    made: Mapping[str, float | None]  # means of its seeds

    def record(self, panel: str) -> Row:
        right = share(self.variant, self.variant.correct)
        named = {"panel": panel, "line": self.line, "by": self.by, "reward": self.reward, "number": self.number}
        rests = {"seeds": len(self.variant.seeds), "attempts": right.attempts, "problems": right.problems}
        return flat(**named, accuracy=right, **self.made, **rests)

    def less(self, other: Student, panel: str) -> Row:
        """Set against another problem by problem; also with the interval that problems alone would give."""
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
    students: tuple[Student, ...]  # by line and number, rewards by size; an untrained one first

    def record(self) -> Row:
        return {"panel": self.title, "problems": self.problems, "rests_on": self.rests_on}

    def baseline(self, student: Student, by: str) -> Student | None:
        """The student that as many traces chosen otherwise made, with the same other settings where there is one."""
        others = [s for s in self.students if s.by == by and (s.number == student.number or by in (UNTRAINED, ALL))]
        return min(others, key=lambda s: (s.rest != student.rest, s.line), default=None)


def students(outcomes: Sequence[Outcome], chosen: str, number: str, by: Literal["task", "size"]) -> Iterator[Panel]:
    """A panel for each student, and each task or size of it. Best of n has another `by`, and no place here."""
    some = [o for o in outcomes if setting(o, chosen) is not None and "pick" not in settings_of(o)]
    trained = [o for o in some if _number(o, chosen, number)]
    if not any(o.status != "failed" for o in trained):
        raise UserError(
            "no student was trained on chosen traces, which this figure draws",
            hint='give a model the method `sft`: by = ["reward", "random"], number = [100, 1000], seed = [1, 2, 3]',
        )
    several = len({model_alone(o) for o in trained}) > 1
    for name in sorted({model_alone(o) for o in trained}):
        own = [o for o in trained if model_alone(o) == name]
        of: dict[str, dict[str, Any]] = {}
        asked = []
        for o, how in zip(own, _chosen(own, chosen, number), strict=True):
            key = f"{how['line']} {how['number']}"
            made = of.setdefault(key, {**how, "made": {}})["made"]
            made[o.seeds] = o.made  # the same in every attempt of a seed
            asked.append(o._replace(variant=key))
        if bare := [o for o in outcomes if o.model == name and setting(o, chosen) is None]:
            of[UNTRAINED] = {"line": UNTRAINED, "by": UNTRAINED, "reward": "", "rest": "", "number": 0, "made": {}}
            asked += [o._replace(variant=UNTRAINED) for o in bare]
        for title, data, rests_on in panels(asked, by):
            found = sorted((_student(variant, **of[variant.name]) for variant in data.variants), key=_place)
            if found[-1].by != UNTRAINED:
                yield Panel(f"{name} | {title}" if several else title, data.problems, rests_on, tuple(found))


def _place(student: Student) -> tuple[Any, ...]:
    size = student.made["reward_parameters"] or 0
    return student.by != UNTRAINED, student.by, size, student.line, student.number


def _chosen(own: Sequence[Outcome], chosen: str, number: str) -> Iterator[dict[str, Any]]:
    """How each was chosen. Students that differ in any other setting are not seeds of one another."""
    rests = rest_of(own, {chosen, number, "seed", "reward"})
    rewards = {reward_name(o) for o in own if setting(o, chosen) == REWARD}
    for o, rest in zip(own, rests, strict=True):
        by = str(setting(o, chosen))
        reward = reward_name(o) if by == REWARD else ""
        line = ", ".join(part for part in (reward if len(rewards) > 1 and reward else by, rest) if part)
        yield {"line": line, "by": by, "reward": reward, "rest": rest, "number": _number(o, chosen, number)}


def rest_of(own: Sequence[Outcome], but: set[str]) -> list[str]:
    """Of each outcome the other settings that vary among them."""
    beside = sorted({k for o in own for k in settings_of(o)} - but)
    varied = [k for k in beside if len({str(settings_of(o).get(k)) for o in own}) > 1]
    return [
        ", ".join(_said(k, settings_of(o)[k]) for k in varied if settings_of(o).get(k) not in (None, False))
        for o in own
    ]


def _said(name: str, value: object) -> str:
    name = name.replace("_", " ")
    return name if value is True else f"{name} {value}"


def reward_name(outcome: Outcome) -> str:
    """Of the reward that chose: its title, or the name and the settings that its identity has."""
    reward = settings_of(outcome).get("reward")
    if isinstance(reward, Mapping):
        return " ".join([str(reward["name"]), *(f"{k}={v}" for k, v in reward.items() if k != "name")])
    return str(reward or REWARD)


def _number(outcome: Outcome, chosen: str, number: str) -> float:
    asked, got = setting(outcome, number), outcome.made.get("selected")
    # Whoever takes all is asked for no number.
    return float((got or asked if setting(outcome, chosen) == ALL else asked or got) or 0)


def _student(variant: Variant, made: dict[Any, Mapping[str, Any]], **named: Any) -> Student:
    means = {}
    for name in MADE:
        known = sorted(d[name] for d in made.values() if d.get(name) is not None)
        means[name] = math.fsum(known) / len(known) if known else None
    return Student(**named, variant=variant, made=means)


def traces(number: float) -> str:
    return f"{number:,.0f} traces"


def compared(row: Row, name: str) -> str:
    """What the interval of a difference allows to say of the first against the second."""
    return "beats" if row[f"{name}_low"] > 0 else "is worse than" if row[f"{name}_high"] < 0 else "isn't told from"
