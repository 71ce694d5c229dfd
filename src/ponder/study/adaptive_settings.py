"""The study key `stop`: what an adaptive run has to find out, and how precisely."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ponder.core import UserError

if TYPE_CHECKING:
    from ponder.study.cell import StudyCell
    from ponder.study.study import StudySpec

Question = Literal["critical_size", "best", "frontier", "difference", "accuracy"]
FEWEST_SIZES = 4  # with fewer, a ladder has nothing to leave out


@dataclass(frozen=True)
class Stopping:
    """`{ margin = 0.03 }` ends a run when the answer is known to within a margin, `{ decide = true
    }` when it is clear.

    A margin is in points of accuracy (0.03: 3 points); of a critical size it is a fraction of the
    size.
    """

    margin: float | None = None
    decide: bool = False
    of: Literal["", "critical_size", "best", "frontier", "difference", "accuracy"] = (
        ""  # default: what the study's figures show
    )

    def __post_init__(self) -> None:
        if self.margin is not None and not 0 < self.margin < 1:
            raise UserError(
                f"margin must be between 0 and 1, not {self.margin}",
                hint="stop = { margin = 0.03 }",
            )
        if self.margin is None and not self.decide:
            hint = "stop = { decide = true }, or stop = { margin = 0.03 }"
            raise UserError("`stop` needs a `margin` or `decide = true`", hint=hint)

    def question(self, study: StudySpec) -> Question:
        """What the run has to find out: as given, or what the figures show of a study of this
        shape.
        """
        cells = [cell for cell in study.cells if cell.quota.adaptive]
        question: Question = self.of or _shape(study, cells)
        if not cells:
            raise UserError("a search decides itself when to stop", hint="remove `stop`")
        if question == "critical_size" and (few := _few_sizes(cells)):
            what = f"the critical size needs at least {FEWEST_SIZES} sizes above 0, and `{few}` has fewer"
            raise UserError(what, hint='name more sizes, or another question: of = "best"')
        arms = len(contestants(cells))
        if question in ("best", "frontier", "difference") and (
            arms < 2 or (question == "difference" and arms != 2)
        ):
            what = f"`{question}` compares {'two' if question == 'difference' else 'several'} models or variants"
            raise UserError(
                f"{what}, and the study has {arms}", hint=f'of = "{_shape(study, cells)}"'
            )
        if question == "frontier" and not self.decide:
            hint = 'stop = { decide = true }, or another question: of = "best"'
            raise UserError("the frontier has no margin: it is decided or not", hint=hint)
        if question == "accuracy" and self.margin is None:
            what = "there is nothing to decide about one model at so few sizes"
            raise UserError(
                what, hint="say how precisely to measure its accuracy: stop = { margin = 0.03 }"
            )
        return question


def contestants(cells: Sequence[StudyCell]) -> dict[str, list[StudyCell]]:
    """The cells of each variant; if there is only one, those of each task, such as the same plan in
    larger turns.
    """
    variants: dict[bytes, list[StudyCell]] = {}
    tasks: dict[bytes, list[StudyCell]] = {}
    for cell in cells:
        variants.setdefault(cell.variant_key, []).append(cell)
        tasks.setdefault(cell.task_key, []).append(cell)
    if len(variants) > 1:
        return {arm[0].label.variant: arm for arm in variants.values()}
    return {arm[0].label.task: arm for arm in tasks.values()}


def _shape(study: StudySpec, cells: Sequence[StudyCell]) -> Question:
    by_size = {table["name"] for table in study.figure} & {"accuracy", "effort"}
    if by_size and not _few_sizes(cells):
        return "critical_size"
    arms = len(contestants(cells))
    if (
        arms > 2
        and study.stopping
        and study.stopping.decide
        and any(t["name"] == "frontier" for t in study.figure)
    ):
        return "frontier"
    return "best" if arms > 2 else "difference" if arms == 2 else "accuracy"


def _few_sizes(cells: Sequence[StudyCell]) -> str:
    """A task with too few sizes for a critical size; "" if there is none."""
    tasks: dict[bytes, list[StudyCell]] = {}
    for cell in cells:
        tasks.setdefault(cell.task_key, []).append(cell)
    for of_task in tasks.values():
        sizes = {cell.size for cell in of_task}
        if len(sizes) < FEWEST_SIZES or min(sizes) <= 0:
            return of_task[0].label.task
    return ""
