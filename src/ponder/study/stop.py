"""The study key `stop`: what an adaptive run has to find out, and how precisely."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ponder.core import Measure, UserError
from ponder.study.labels import setting_label

if TYPE_CHECKING:
    from ponder.stats.designs.max_size import Search
    from ponder.study.cell import StudyCell
    from ponder.study.study import StudySpec

Goal = Literal[
    "critical_size", "max_size", "best", "cheapest", "frontier", "difference", "accuracy"
]
MIN_SIZES = 4  # with fewer, a ladder has nothing to leave out
EXAMPLE = 'stop = { goal = "max_size", target = 0.8, largest = 4096 }'


@dataclass(frozen=True)
class StopRule:
    """When an adaptive run ends: `decide` once the answer is clear, `margin` once it is precise.

    A margin is in points of accuracy (0.03: 3 points); for a critical size it is a fraction of the
    size. The goal `max_size` has neither: its run chooses the sizes, and ends when the interval of
    the largest size with the accuracy `target` is narrow. The goal `cheapest` looks for the
    cheapest setting that is not worse than the reference by more than `margin`, or whose accuracy
    is at least `floor`.
    """

    margin: float | None = None
    decide: bool = False
    # default: what the study's figures show
    goal: Literal[
        "", "critical_size", "max_size", "best", "cheapest", "frontier", "difference", "accuracy"
    ] = ""
    target: float = 0.8  # of `max_size`: the accuracy at the size that is searched for
    largest: int = 4096  # of `max_size`: the largest size that is asked
    floor: float | None = None  # of `cheapest`: the accuracy that is good enough
    # of `cheapest`: the label of the setting to compare with; default: the most accurate
    reference: str = ""
    # of `cheapest`: what is saved; default: money if all prices are known, else output tokens
    by: Measure | None = None

    def __post_init__(self) -> None:
        if self.margin is not None and not 0 < self.margin < 1:
            raise UserError(
                f"margin must be between 0 and 1, not {self.margin}",
                hint="stop = { margin = 0.03 }",
            )
        if self.goal == "max_size":
            self._check_max_size()
            return
        self._check_cheapest()
        if self.target != StopRule.target or self.largest != StopRule.largest:
            raise UserError("`target` and `largest` belong to the goal `max_size`", hint=EXAMPLE)
        if self.margin is None and self.floor is None and not self.decide:
            hint = "stop = { decide = true }, or stop = { margin = 0.03 }"
            raise UserError("`stop` needs a `margin` or `decide = true`", hint=hint)

    def _check_max_size(self) -> None:
        if self.margin is not None or self.decide:
            raise UserError("the goal `max_size` has no `margin` and no `decide`", hint=EXAMPLE)
        self.search()  # checks `target` and `largest`

    def _check_cheapest(self) -> None:
        if self.goal != "cheapest":
            if self.floor is not None or self.reference or self.by:
                raise UserError(
                    "`floor`, `reference` and `by` belong to the goal `cheapest`",
                    hint='stop = { goal = "cheapest", margin = 0.02 }',
                )
            return
        if (self.margin is None) == (self.floor is None) or self.decide:
            raise UserError(
                "the goal `cheapest` has either a `margin` or a `floor`",
                hint='stop = { goal = "cheapest", margin = 0.02 }',
            )
        if self.floor is None:
            return
        if not 0 < self.floor < 1:
            raise UserError(
                f"floor is an accuracy between 0 and 1, not {self.floor}", hint="floor = 0.9"
            )
        if self.reference:
            raise UserError(
                "a floor needs no reference: every setting is compared with the floor",
                hint="give a `margin` to compare with a setting",
            )

    def search(self) -> Search:
        """Return the design of the goal `max_size`."""
        # imports NumPy, which nothing else here needs
        from ponder.stats.designs.max_size import Search

        return Search(target=self.target, high=self.largest)

    def goal_of(self, study: StudySpec) -> Goal:
        """Return the goal of a study's run: as written, or what its figures show."""
        cells = study.cells
        goal = self.goal or _default_goal(study, self)
        if goal == "critical_size":
            task = _task_with_few_sizes(cells)
            if task:
                message = f"the critical size needs at least {MIN_SIZES} sizes above 0"
                raise UserError(
                    f"{message}, and `{task}` has fewer",
                    hint='name more sizes, or another goal: goal = "best"',
                )
        if goal in ("best", "cheapest", "frontier", "difference"):
            arms = len(contestants(cells))
            compared = "several"
            if goal == "difference":
                compared = "two"
            if arms < 2 or (goal == "difference" and arms > 2):
                hint = f'goal = "{_default_goal(study, self)}"'
                if goal == "cheapest":
                    hint = 'sweep a setting of the model, such as effort = ["low", "high"]'
                raise UserError(
                    f"`{goal}` compares {compared} models or variants, and the study has {arms}",
                    hint=hint,
                )
        if goal == "frontier" and not self.decide:
            hint = 'stop = { decide = true }, or another goal: goal = "best"'
            raise UserError("the frontier has no margin: it is decided or not", hint=hint)
        if goal == "accuracy" and self.margin is None:
            message = "there is nothing to decide about one model at so few sizes"
            hint = "say how precisely to measure its accuracy: stop = { margin = 0.03 }"
            raise UserError(message, hint=hint)
        return goal


def contestants(cells: Sequence[StudyCell]) -> dict[str, list[StudyCell]]:
    """Return the cells of each variant by its label.

    If there is only one variant, return those of each task, such as the same plan in larger turns.
    Tasks that ask the same problems, in other words, are settings too: each variant with each of
    them.
    """
    variants: dict[bytes, list[StudyCell]] = {}
    tasks: dict[bytes, list[StudyCell]] = {}
    both: dict[tuple[bytes, bytes], list[StudyCell]] = {}
    for cell in cells:
        variants.setdefault(cell.variant_key, []).append(cell)
        tasks.setdefault(cell.task_key, []).append(cell)
        both.setdefault((cell.variant_key, cell.task_key), []).append(cell)
    if len(variants) == 1:
        return {arm[0].label.task: arm for arm in tasks.values()}
    if len(tasks) > 1 and _ask_the_same(list(tasks.values())):
        return {setting_label(arm[0].label): arm for arm in both.values()}
    return {arm[0].label.variant: arm for arm in variants.values()}


def _ask_the_same(tasks: Sequence[Sequence[StudyCell]]) -> bool:
    """Return whether tasks have the same problems, as far as the first of each size tells."""
    first_problems = []
    for task_cells in tasks:
        first_problems.append({cell.size: next(cell.asked()).id for cell in task_cells})
    return all(problems == first_problems[0] for problems in first_problems)


def _default_goal(study: StudySpec, stop: StopRule) -> Goal:
    """Return the goal of a study that names none, from its figures and the number of variants."""
    figures = {table["name"] for table in study.figure}
    if figures & {"accuracy", "effort"} and not _task_with_few_sizes(study.cells):
        return "critical_size"
    arms = len(contestants(study.cells))
    if arms == 1:
        return "accuracy"
    if arms == 2:
        return "difference"
    if stop.decide and "frontier" in figures:
        return "frontier"
    return "best"


def _task_with_few_sizes(cells: Sequence[StudyCell]) -> str:
    """Return the label of a task with too few sizes for a critical size; "" if there is none."""
    tasks: dict[bytes, list[StudyCell]] = {}
    for cell in cells:
        tasks.setdefault(cell.task_key, []).append(cell)
    for task_cells in tasks.values():
        sizes = {cell.size for cell in task_cells}
        if len(sizes) < MIN_SIZES or min(sizes) <= 0:
            return task_cells[0].label.task
    return ""
