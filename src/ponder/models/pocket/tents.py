"""Translates Tents for the pocket model, and draws the easy puzzles that it is trained on."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from ponder.core import ModelFailure, Problem, Request, Task, UserError
from ponder.core.capabilities import parse_answer
from ponder.models.pocket import tents_words as v
from ponder.models.pocket.codec import EvalSet, Example, PocketCodec, Style
from ponder.models.pocket.tents_traces import trace, unsound
from ponder.tasks.tents import Puzzle, Tents, shape
from ponder.tasks.tents.generator import generate, possible


@dataclass(frozen=True)
class Curriculum:
    side: int = 8  # longest side
    smallest: int = 12  # largest area at the start of training …
    largest: int = 64  # … and from step `grown` on
    grown: int = 920
    tail: float = 0.05  # fraction of the puzzles, once grown, that have any shape up to `tail_area`
    tail_area: int = 100


def _exam(side: int) -> EvalSet:
    return EvalSet(f"{side}×{side}", Tents(), side * side, (side, side), 12 * side * side)


class TentsCodec(PocketCodec):
    task = "tents"
    can = f"it solves tents with sides up to {v.SIDE}, such as size = [16, 25, 36, 49, 64]"
    taught = "easy Tents puzzles generated during training, with the task's deductions as thinking"
    begins = rf"{v.TREES}|{v.ROWS}|{v.COLS}|.+=\d+|.+{v.TREE}"
    exams = tuple(_exam(side) for side in (4, 5, 6, 7, 8, 9, 10))
    glances = tuple(_exam(side) for side in (4, 5, 6, 7))
    limits = (
        (
            f"Its vocabulary covers sides up to {v.SIDE}. It was trained on easy puzzles only,"
            " without the tricky rules."
        ),
        "Sides above 8 are a twentieth of its training, and no puzzle has an area above 100.",
        (
            "It never trained on 4×4, 4×5 or 5×4, of which there are few,"
            " nor on a tenth of all others."
        ),
    )

    def __init__(self) -> None:
        super().__init__(v.all_words())

    def held_out(self, problem: Problem) -> bool:
        """Return whether a puzzle is reserved for testing.

        All of 4×4, 4×5 and 5×4 are: there are so few that a study would ask puzzles that were
        trained on.
        """
        puzzle = Puzzle.from_id(problem.gold)
        if sorted((puzzle.width, puzzle.height)) in ([4, 4], [4, 5]):
            return True
        return super().held_out(problem)

    def check(self, task: Task, size: int) -> None:
        if isinstance(task, Tents) and task.ids:
            return
        sides = shape(size)
        if not isinstance(task, Tents) or sides is None or max(sides) > v.SIDE:
            message = f"the pocket model has no vocabulary for {task.plugin_name()} of size {size}"
            raise UserError(message, hint=self.can)

    def prompt(self, request: Request) -> list[str]:
        puzzle = Puzzle.from_id(request.problem.gold)
        if not v.expressible(puzzle):
            raise ModelFailure("the pocket model has no vocabulary for this puzzle")
        return v.prompt(puzzle)

    def text(self, request: Request, answer: Sequence[str]) -> str:
        return v.grid_text(Puzzle.from_id(request.problem.gold), answer)

    def answer_words(self, request: Request, answer: str) -> list[str]:
        grid = parse_answer(request.task, request.problem, answer)
        if grid is None:
            return answer.split()
        return v.tent_words(grid)

    def draw(self, rng: random.Random, step: int, curriculum: Curriculum) -> Request:
        """Return a random easy puzzle; large and square shapes are likelier."""
        grown = min(1.0, step / curriculum.grown)
        area = curriculum.smallest + grown * (curriculum.largest - curriculum.smallest)
        longest_side = curriculum.side
        if grown == 1 and rng.random() < curriculum.tail:
            area = curriculum.tail_area
            longest_side = v.SIDE

        sides = range(2, longest_side + 1)
        shapes = [(w, h) for w in sides for h in sides if w * h <= area and possible(w, h, "easy")]
        weights = [w * h * math.sqrt(min(w, h) / max(w, h)) for w, h in shapes]
        width, height = rng.choices(shapes, weights)[0]
        puzzle = generate(width, height, "easy", rng)
        problem = Problem(puzzle.id, width * height, ("",), gold=puzzle.id)
        return Request.first_turn(Tents(), problem)

    def lesson(
        self,
        request: Request,
        style: Style = "plain",  # noqa: ARG002
        rng: random.Random | None = None,  # noqa: ARG002
    ) -> Example | None:
        puzzle = Puzzle.from_id(request.problem.gold)
        if not v.expressible(puzzle):
            return None
        reply = trace(puzzle)
        if reply is None:
            return None
        return Example(v.prompt(puzzle), reply)

    def unsound(
        self,
        request: Request,
        thinking: Sequence[str],
        style: Style = "plain",  # noqa: ARG002
    ) -> str | None:
        return unsound(Puzzle.from_id(request.problem.gold), thinking)
