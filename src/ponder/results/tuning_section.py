"""The section of a page that answers which setting to deploy, for the live page and the report.

It holds texts, numbers and ids alone: the live page gets it from another process.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ponder.core import ANSWERED, Basis, Outcome
from ponder.core.text import count
from ponder.results.charts import Group
from ponder.results.deploy import deploy
from ponder.results.routing import routing_sentences, routing_table
from ponder.results.tuning import Choice, Setting, Tuning

if TYPE_CHECKING:
    from ponder.results.results import Results
    from ponder.stats.settings import Change

MAX_LISTED = 20  # problems that a page lists of those that a setting gains, or loses
# the name of each verdict in the table, and its meaning
MEANINGS: dict[Choice, tuple[str, str]] = {
    "chosen": ("chosen", "the cheapest that is surely good enough"),
    "good": ("good, but …", "surely good enough too, at the same cost or a higher one"),
    "too weak": ("too weak", "surely not good enough"),
    "probably too weak": (
        "probably too weak",
        "below what is good enough, and more problems would hardly show that it is not",
    ),
    "more expensive": (
        "more expensive",
        "surely more expensive than the chosen one, so it was not asked further",
    ),
    "no effect": (
        "no effect",
        "its replies are like those of another setting: the server ignores what differs",
    ),
    "no answers": ("no answers", "nothing is known about it yet, or all of its attempts failed"),
    "undecided": ("undecided", "neither surely good enough nor surely too weak"),
}


class Value(NamedTuple):
    """An estimate in the table of settings."""

    text: str
    interval: str
    order: float  # what its column is sorted by


class SettingRow(NamedTuple):
    """A setting in the table."""

    label: str
    choice: Choice
    verdict: str
    endings: str  # how many attempts, and how many of them ended without a parsed answer
    basis: str  # of the attempts, a key of `groups`
    values: Sequence[Value]


class LinkedReply(NamedTuple):
    """An attempt at a problem that a step gains or loses."""

    attempt: int
    ended: str
    tokens: int


class ChangedProblem(NamedTuple):
    """A problem at which two settings differ in accuracy, with a reply of each."""

    problem: str
    size: int
    first: LinkedReply
    second: LinkedReply


class ChangedProblems(NamedTuple):
    """The problems that the more expensive setting of a step gains, or those that it loses."""

    title: str
    total: int
    listed: Sequence[ChangedProblem]


class StepLists(NamedTuple):
    """Two settings next to each other in cost, and what the more expensive one changes."""

    first: str
    second: str
    lists: Sequence[ChangedProblems]


class TuningSection(NamedTuple):
    """The texts and numbers of a `Tuning` that a page shows."""

    verdict: Sequence[str]
    so_far: str  # how many attempts were made so far; "" once the run has ended
    criterion: str
    headings: Sequence[str]
    rows: Sequence[SettingRow]
    meanings: Mapping[str, tuple[str, str]]  # of the choices in the table
    steps: Sequence[StepLists]
    routing: Sequence[str]  # whether routing is worth it, in sentences; empty if unknown
    policies: Sequence[Sequence[str]]  # ways to route, a heading first; empty if not worth it
    deployed: str  # the chosen setting; "" if there is none yet
    deployment: Sequence[tuple[str, str]]  # titles and texts
    basis: str  # how many attempts the answer is computed from
    groups: Mapping[str, Group]  # attempts by the `basis` of rows

    def replies(self) -> Iterator[tuple[int, int]]:
        """Yield the ids of the two attempts at each problem that is listed."""
        for step in self.steps:
            for changed in step.lists:
                for problem in changed.listed:
                    yield problem.first.attempt, problem.second.attempt


def looks_for_cheapest(results: Results) -> bool:
    """Return whether the study's goal is its cheapest setting."""
    rule = results.study.stop_rule
    return rule is not None and rule.goal == "cheapest"


def tuning_section(results: Results) -> TuningSection:
    """Return the section for a study with the goal `cheapest` that has answers."""
    tuning = results.tuning
    outcomes = {outcome.attempt: outcome for outcome in results.outcomes}
    groups = {}
    rows = []
    columns = tuning.columns()
    for i, setting in enumerate(tuning.settings):
        basis = Basis(setting.cells, ANSWERED)
        groups[str(basis)] = Group(tuple(cell.key for cell in basis.cells), basis.ended)
        values = []
        for column in columns:
            estimate = column.estimates[i]
            order = math.inf
            if estimate is not None and not math.isnan(estimate.value):
                order = estimate.value
            values.append(Value(*column.text(i), order))
        row = SettingRow(
            setting.label,
            setting.choice,
            setting.verdict(),
            _endings(setting),
            str(basis),
            values,
        )
        rows.append(row)
    steps = []
    for step in tuning.steps:
        gained = _changed(f"right only with {step.second}", step.gained, outcomes)
        lost = _changed(f"right only with {step.first}", step.lost, outcomes)
        steps.append(StepLists(step.first, step.second, (gained, lost)))
    sentences: list[str] = []
    policies: list[list[str]] = []
    if tuning.routing is not None:
        sentences = routing_sentences(tuning.routing)
        if tuning.routing.worth != "no":
            policies = routing_table(tuning.routing, tuning.by, tuning.currency)
    chosen = tuning.chosen
    deployed = ""
    deployment: list[tuple[str, str]] = []
    if chosen is not None:
        deployed = chosen.label
        deployment = deploy(chosen.cells[0]).sections()
    return TuningSection(
        verdict=tuning.verdict(),
        so_far=_so_far(tuning),
        criterion=_criterion(tuning, results),
        headings=[column.title for column in columns],
        rows=rows,
        meanings={row.choice: MEANINGS[row.choice] for row in rows},
        steps=steps,
        routing=sentences,
        policies=policies,
        deployed=deployed,
        deployment=deployment,
        basis=_basis(tuning),
        groups=groups,
    )


def _endings(setting: Setting) -> str:
    summary = setting.summary
    texts = [count(summary.accuracy.attempts, "attempt")]
    if summary.truncated:
        texts.append(f"{summary.truncated:,} truncated")
    if summary.unparsed:
        texts.append(f"{summary.unparsed:,} unparsed")
    if summary.failed:
        texts.append(f"{summary.failed:,} failed and left out")
    return ", ".join(texts)


def _so_far(tuning: Tuning) -> str:
    if tuning.ended:
        return ""
    return f"{tuning.attempts:,} of at most {count(tuning.full_plan, 'attempt')}"


def _criterion(tuning: Tuning, results: Results) -> str:
    """Define good enough, and name what the settings are ordered by."""
    rule = results.study.stop_rule
    assert rule is not None
    reference = f"`{rule.reference}`" if rule.reference else "the most accurate setting"
    good = f"not worse than {reference} by more than {100 * tuning.margin:g} points of accuracy"
    if tuning.floor is not None:
        good = f"right in at least {tuning.floor:.0%}"
    amounts = {"tokens": "output tokens", "cost": "money", "seconds": "seconds"}
    return f"Good enough: {good}. Cheapest: by {amounts[tuning.by]} per answer."


def _basis(tuning: Tuning) -> str:
    plan = count(tuning.full_plan, "attempt")
    if not tuning.adaptive:
        return f"From all {plan} of the full plan."
    return (
        f"From {tuning.attempts:,} of the full plan's {plan}. The intervals in the verdict are "
        "valid although the run chose when to end; those in the table are for a fixed number of "
        "problems."
    )


def _changed(
    title: str, changes: Sequence[Change], outcomes: Mapping[int, Outcome]
) -> ChangedProblems:
    listed = []
    for change in changes[:MAX_LISTED]:
        first = _reply(change.first, outcomes, right=not change.gained)
        second = _reply(change.second, outcomes, right=change.gained)
        listed.append(ChangedProblem(change.problem, change.size, first, second))
    return ChangedProblems(title, len(changes), listed)


def _reply(attempts: Sequence[int], outcomes: Mapping[int, Outcome], *, right: bool) -> LinkedReply:
    """Return the first of a problem's attempts that is right, or if `right` is false, wrong."""
    for attempt in attempts:
        outcome = outcomes[attempt]
        if outcome.correct == right:
            return LinkedReply(attempt, outcome.ended, outcome.tokens("output"))
    raise AssertionError("a problem that changes has a right attempt and a wrong one")
