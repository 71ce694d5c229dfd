"""The gate of `ponder compare --fail-if`: its conditions, its sentence, and files for a forge."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ponder.core import UserError
from ponder.core.plugins import nearest
from ponder.core.text import points, printable

if TYPE_CHECKING:
    from ponder.cli.sides import ComparedModel
    from ponder.core import Outcome, Tables
    from ponder.stats.gate import Condition, Judgement

# The outcomes of A and of B on each task, by the task's label.
Tasks: TypeAlias = "Mapping[str, tuple[list[Outcome], list[Outcome]]]"

WORSE = "worse"
INCONCLUSIVE = "inconclusive"
THRESHOLD = re.compile(
    r"(?P<quantity>[a-z]+)\s*(?P<side>[<>])\s*(?P<limit>[+−-]?\d+(?:\.\d+)?)\s*(?P<unit>%|points)?"
)
QUANTITIES = ("accuracy", "tokens", "cost", "seconds")
EXAMPLES = "--fail-if worse, --fail-if 'tokens > +10%', --fail-if 'accuracy < -2'"


@dataclass(frozen=True)
class Gate:
    """The conditions under which a comparison fails, as the options of `ponder compare` state them."""

    conditions: Sequence[Condition]
    fails_if_inconclusive: bool
    margin: float
    tokens: Literal["auto", "output", "thinking", "answer"]

    @classmethod
    def read(cls, texts: Sequence[str], margin: float, tokens: Any) -> Gate:
        """Read the texts of `--fail-if`."""
        conditions = [_condition(text) for text in dict.fromkeys(texts) if text != INCONCLUSIVE]
        if texts and not conditions:
            raise UserError(
                "`inconclusive` needs another condition, which it says can't be told",
                where="--fail-if",
                hint="--fail-if worse --fail-if inconclusive",
            )
        return cls(conditions, INCONCLUSIVE in texts, margin, tokens)

    @property
    def needs_costs(self) -> bool:
        return any(condition.quantity == "cost" for condition in self.conditions)

    def judged(
        self,
        tasks: Tasks,
        fraction: float | None = None,
    ) -> GateResult:
        """Judge each condition on each task.

        `fraction` is how much of its problems an adaptive run has asked, or None if it wasn't
        adaptive.
        """
        from ponder.figures._units import token_kind
        from ponder.stats.gate import judge
        from ponder.stats.ratios import pair

        outcomes = []
        for of_a, of_b in tasks.values():
            outcomes += [*of_a, *of_b]
        kind = token_kind(outcomes, self.tokens)
        pairs = [pair(of_a, of_b, kind, money=self.needs_costs) for of_a, of_b in tasks.values()]
        judgements = judge(pairs, self.conditions, self.margin, fraction)
        return GateResult(self, dict(zip(tasks, judgements, strict=True)))


@dataclass(frozen=True)
class GateResult:
    """The judgement of each condition of a gate, by task."""

    gate: Gate
    by_task: Mapping[str, Sequence[Judgement]]

    @property
    def failing(self) -> list[tuple[str, Judgement]]:
        """The task and the judgement of each condition that the gate fails for."""
        statuses = ["fail"]
        if self.gate.fails_if_inconclusive:
            statuses.append("inconclusive")
        return self._with_status(*statuses)

    def _with_status(self, *statuses: str) -> list[tuple[str, Judgement]]:
        matching = []
        for task, judgements in self.by_task.items():
            for judgement in judgements:
                if judgement.status in statuses:
                    matching.append((task, judgement))
        return matching

    @property
    def decided(self) -> bool:
        """Whether an adaptive run ends: a condition fails, or none is likely to."""
        if self._with_status("fail"):
            return True
        inconclusive = self._with_status("inconclusive")
        if self.gate.fails_if_inconclusive:
            return not inconclusive
        return all(judgement.unlikely for _, judgement in inconclusive)

    def sentence(self) -> str:
        """Say whether the gate passes, and by what numbers."""
        if self.failing:
            return f"The gate fails: {self._listed(self.failing)}."
        open_conditions = self._with_status("inconclusive")
        if open_conditions:
            return (
                f"The gate passes, but can't tell about {self._listed(open_conditions)} "
                "(--fail-if inconclusive would fail)."
            )
        return f"The gate passes: {self._listed(self._with_status('pass'))}."

    def _listed(self, judgements: Iterable[tuple[str, Judgement]]) -> str:
        texts = []
        for task, judgement in judgements:
            on_task = f" on {task}" if len(self.by_task) > 1 else ""
            measured = self.measured(judgement)
            texts.append(f"`{judgement.condition.text}`{on_task}: {measured}")
        return "; ".join(texts)

    def measured(self, judgement: Judgement) -> str:
        """Return the number with its interval, and how it lies to the limit or the margin."""
        if judgement.effect is None:
            return judgement.why
        number = effect_text(judgement)
        margin = f"{100 * self.gate.margin:g} points"
        if judgement.verdict is not None:
            explanations = {
                "above": "better",
                "not below": f"not worse by more than {margin}",
                "slightly below": f"worse, but by less than {margin}",
                "below": f"worse, and perhaps by more than {margin}",
                "open": f"which excludes neither 0 nor a loss of {margin}",
            }
            return f"{number}, {explanations[judgement.verdict]}"
        limit = limit_text(judgement.condition)
        side = "above" if judgement.condition.above else "below"
        if judgement.status == "fail":
            return f"{number}, all of it {side} {limit}"
        if judgement.status == "pass":
            return f"{number}, none of it {side} {limit}"
        return f"{number}, an interval that contains {limit}"

    def json(self) -> dict[str, Any]:
        from ponder.figures import flat

        checks = []
        for task, judgements in self.by_task.items():
            for judgement in judgements:
                check: dict[str, Any] = {
                    "task": task,
                    "condition": judgement.condition.text,
                    "status": judgement.status,
                    "measured": self.measured(judgement),
                }
                if judgement.effect:
                    check |= flat(effect=judgement.effect)
                checks.append(check)
        return {"passes": not self.failing, "sentence": self.sentence(), "checks": checks}


def _condition(text: str) -> Condition:
    from ponder.stats.gate import WORSE as WORSE_CONDITION
    from ponder.stats.gate import Condition

    if text == WORSE:
        return WORSE_CONDITION
    match = THRESHOLD.fullmatch(text.strip())
    quantity: Any = match["quantity"] if match else re.split(r"[\s<>=]", text.strip())[0]
    if quantity not in QUANTITIES:
        raise UserError(
            f"there is no condition `{text}`",
            where="--fail-if",
            hint=nearest(quantity, [WORSE, INCONCLUSIVE, *(f"{name} > …" for name in QUANTITIES)])
            + f"; for example {EXAMPLES}",
        )
    if not match:
        raise UserError(
            f"`{text}` is not QUANTITY > LIMIT or QUANTITY < LIMIT",
            where="--fail-if",
            hint=f"for example {EXAMPLES}",
        )
    limit = float(match["limit"].replace("−", "-"))
    above = match["side"] == ">"
    if quantity == "accuracy":
        if match["unit"] == "%":
            raise UserError(
                "a limit of accuracy is in points, not in percent",
                where="--fail-if",
                hint="--fail-if 'accuracy < -2' fails at a loss of more than 2 points",
            )
        return Condition(text, quantity, above, limit / 100)
    if match["unit"] != "%":
        raise UserError(
            f"a limit of {quantity} is a change in percent",
            where="--fail-if",
            hint=f"--fail-if '{quantity} {match['side']} {limit:+g}%'",
        )
    if limit <= -100:
        raise UserError(f"{quantity} can't fall by {-limit:g} %", where="--fail-if")
    return Condition(text, quantity, above, 1 + limit / 100)


def check_measures(conditions: Iterable[Condition], models: Sequence[ComparedModel]) -> None:
    """Raise `UserError` if a condition is about costs or seconds that a model doesn't have."""
    for condition in conditions:
        if condition.quantity == "cost":
            _check_costs(condition, models)
        for model in models:
            recorded = any(outcome.seconds for outcome in model.outcomes)
            if condition.quantity == "seconds" and model.outcomes and not recorded:
                raise UserError(
                    f"`{condition.text}`: no seconds were recorded of `{model.label}` in "
                    f"{model.file}",
                    where="--fail-if",
                    hint="leave out that condition",
                )


def _check_costs(condition: Condition, models: Sequence[ComparedModel]) -> None:
    from ponder.study.prices import HINT

    for model in models:
        if not model.costs_known:
            raise UserError(
                f"`{condition.text}` needs the prices of both models, and `{model.label}` in "
                f"{model.file} has none",
                where="--fail-if",
                hint=HINT,
            )
    currencies = set[str]().union(*(model.currencies for model in models))
    if len(currencies) > 1:
        raise UserError(
            f"`{condition.text}` can't compare costs in {' and '.join(sorted(currencies))}",
            where="--fail-if",
            hint="give both models prices in one currency",
        )


def effect_text(judgement: Judgement) -> str:
    """Return what was measured: `accuracy −4.0 points [−9.2, +1.1]`, `tokens +23 % [+19, +27]`."""
    effect = judgement.effect
    assert effect is not None
    quantity = judgement.condition.quantity
    if quantity in ("verdict", "accuracy"):
        ends = f"[{points(effect.low)}, {points(effect.high)}]"
        return f"accuracy {points(effect.value)} points {ends}"
    # Changes in percent have the digits of percentage points.
    ends = f"[{points(effect.low - 1)}, {points(effect.high - 1)}]"
    return f"{quantity} {points(effect.value - 1)} % {ends}"


def limit_text(condition: Condition) -> str:
    """Return a condition's limit: `+10 %`, `−2 points`."""
    if condition.quantity == "accuracy":
        return f"{100 * condition.limit:+g} points".replace("-", "−")
    return f"{100 * (condition.limit - 1):+.4g} %".replace("-", "−")


# Files for a forge.


def write_junit(path: Path, judged: GateResult, study: str, names: tuple[str, str]) -> None:
    """Write JUnit XML with one test case per task and condition.

    A condition that can't be told is skipped, or an error with `--fail-if inconclusive`.
    """
    from xml.etree import ElementTree

    failing = judged.failing
    cases = []
    skipped = 0
    for task, judgements in judged.by_task.items():
        for judgement in judgements:
            case = ElementTree.Element(
                "testcase",
                classname=printable(f"{study}.{task}"),
                name=printable(f"fails if {judgement.condition.text}"),
                time="0",
            )
            message = printable(judged.measured(judgement))
            if (task, judgement) in failing:
                attributes = {"message": message, "type": judgement.status}
                failure = ElementTree.SubElement(case, "failure", attributes)
                failure.text = printable(f"A: {names[0]}\nB: {names[1]}\n{message}")
            elif judgement.status == INCONCLUSIVE:
                ElementTree.SubElement(case, "skipped", message=f"inconclusive: {message}")
                skipped += 1
            else:
                ElementTree.SubElement(case, "system-out").text = message
            cases.append(case)
    counts = {
        "tests": str(len(cases)),
        "failures": str(len(failing)),
        "errors": "0",
        "skipped": str(skipped),
        "time": "0",
    }
    suites = ElementTree.Element("testsuites", name="ponder compare")
    suite_name = printable(f"{names[1]} against {names[0]}")
    suite = ElementTree.SubElement(suites, "testsuite", {"name": suite_name, **counts})
    suite.extend(cases)
    ElementTree.indent(suites)
    path.parent.mkdir(parents=True, exist_ok=True)
    ElementTree.ElementTree(suites).write(path, "utf-8", xml_declaration=True)


def markdown_summary(
    tables: Tables,
    judged: GateResult | None,
    asked_text: str,
    rows: Mapping[str, Sequence[Sequence[str]]],
    show: str,
) -> str:
    """Return a summary for a forge: the verdict, the conditions, the numbers, and transcripts.

    `rows` has the table of each task; `show` is the command that prints transcripts.
    """
    from ponder.figures.compare import in_common

    comparisons = tables["comparisons"]
    first = comparisons[0]
    paragraphs = []
    if judged:
        paragraphs.append(f"**{_escaped(judged.sentence())}**")
    for record in comparisons:
        task = f"{record['task']}: " if len(comparisons) > 1 else ""
        paragraphs.append(_escaped(f"{task}{record['sentence']}."))
    paragraphs.append(_escaped(f"A is {first['a']}, B is {first['b']}."))
    if asked_text:
        paragraphs.append(f"This adaptive run {asked_text}.")
    if judged:
        conditions = [("task", "fails if", "B against A", "result")]
        for task, judgements in judged.by_task.items():
            for judgement in judgements:
                measured = judged.measured(judgement)
                conditions.append((task, judgement.condition.text, measured, judgement.status))
        paragraphs.append(_table(conditions))
    for record in comparisons:
        paragraphs.append(_escaped(f"{record['task']}: {in_common(record)}."))
        paragraphs.append(_table(rows[record["task"]]))
    paragraphs.append(f"Attempts at the problems that only one of them got right: `{show}`")
    return "\n\n".join(paragraphs) + "\n"


def _table(rows: Sequence[Sequence[str]]) -> str:
    lines = []
    for number, row in enumerate(rows):
        lines.append(f"| {' | '.join(_escaped(cell) for cell in row)} |")
        if number == 0:
            lines.append(f"|{'---|' * len(row)}")
    return "\n".join(lines)


def _escaped(text: str) -> str:
    """Return text that Markdown shows as it is; what is in backticks is shown as code."""
    escaped = ""
    for number, piece in enumerate(re.split("(`[^`]*`)", printable(text).replace("\n", " "))):
        special = r"([|<*_\[\]])"
        if number % 2:  # in code, a backslash would be shown, but for a bar in a table
            special = r"(\|)"
        escaped += re.sub(special, r"\\\1", piece)
    return escaped
