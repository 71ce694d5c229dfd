"""Generates problems of any reasoning-gym dataset (Stojanovski et al. 2025); size = its curriculum
level.

Reasoning-gym seeds item i of a dataset with `seed + i`, so neighbouring seeds share most of their
items. Here every problem comes from a dataset of one item, with a hashed seed.

Some of its scorers evaluate the answer as Python: `eval` in four, SymPy's `parse_expr` in five. So
scorers run in a subprocess of limited CPU time and memory, where `eval` reads nothing but literals,
and an expression with any other names than those of mathematics is wrong.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar

from reasoning_gym.coaching.base_curriculum import BaseCurriculum
from reasoning_gym.factory import CURRICULA, DATASETS, create_dataset

from ponder.core import Grade, Problem, Task, UserError, digest, seed_from
from ponder.core.capabilities import Drawable, ParsesAnswers, SlowGrading
from ponder.core.plugins import nearest
from ponder.tasks.reading import readings
from ponder.tasks.subprocess_call import CallFailed, SubprocessFunction, serve

SYSTEM = (
    "Solve the problem. Work step by step, then write the final answer alone between <answer> and "
    "</answer>."
)
MOST_SHOTS = 100


@dataclass(frozen=True)
class Gym(Task, ParsesAnswers, SlowGrading, Drawable):
    dataset: str  # its name in reasoning-gym
    vary: str = ""  # the curriculum attribute that the size sets; default: all of them
    options: dict[str, Any] = field(default_factory=dict)  # settings of the dataset
    shots: int = 0  # examples in the prompt: other problems of the same level with their answers

    version = 2  # another prompt
    example: ClassVar[dict[str, Any]] = {"dataset": "chain_sum"}
    unit = "levels"

    def __post_init__(self) -> None:
        if self.dataset not in DATASETS:
            raise UserError(
                f"reasoning-gym has no dataset `{self.dataset}`",
                hint=nearest(self.dataset, DATASETS),
            )
        if not 0 <= self.shots <= MOST_SHOTS:
            raise UserError(f"shots must be from 0 to {MOST_SHOTS}, not {self.shots}")
        if self.vary and self.vary not in self._curriculum().attributes:
            hint = nearest(self.vary, self._curriculum().attributes)
            raise UserError(f"{self.dataset} has no curriculum attribute `{self.vary}`", hint=hint)

    def _curriculum(self) -> BaseCurriculum:
        if self.dataset not in CURRICULA:
            hint = "choose a dataset with a curriculum, or set `options` and size = 0"
            raise UserError(f"{self.dataset} has no curriculum, so no size", hint=hint)
        return CURRICULA[self.dataset]()

    def _levels(self) -> int:
        if self.dataset not in CURRICULA:
            return 1
        levels = []
        for name, attribute in self._curriculum().attributes.items():
            if self.vary in ("", name):
                levels.append(len(attribute.levels))
        return max(levels)

    def sizes(self) -> tuple[int, ...]:
        return tuple(range(self._levels()))

    def check_size(self, size: int) -> None:
        if not 0 <= size < self._levels():
            hint = f"its levels are 0 to {self._levels() - 1}"
            raise UserError(f"{self.dataset} has no level {size}", hint=hint)

    def _settings(self, size: int) -> dict[str, Any]:
        """Return the dataset's settings at a level."""
        if self.dataset not in CURRICULA:
            return self.options
        curriculum = self._curriculum()
        if self.vary:
            curriculum.set_attr_level(self.vary, size)
        else:
            curriculum.set_global_level(size)
        settings = dict(vars(curriculum.generate_configuration()))
        settings.pop("seed", None)
        settings.pop("size", None)
        return settings | self.options

    def _dataset(self, size: int, seed: int) -> Any:
        try:
            return create_dataset(self.dataset, seed=seed, size=1, **self._settings(size))
        except (
            AssertionError,
            TypeError,
            ValueError,
        ) as error:  # how its datasets refuse their settings
            message = f"reasoning-gym refuses the settings of {self.dataset}: {error}"
            raise UserError(message, hint="set them with options = { … }") from None

    def problem(self, size: int, seed: int) -> Problem:
        seed %= 2**31  # some datasets pass the seed to NumPy, which takes 32 bits
        item = self._dataset(size, seed)[0]
        return Problem(
            id=digest(self.dataset, item["question"]).hex(),
            size=size,
            turns=(item["question"],),
            gold={"answer": item["answer"], "seed": seed},
            system=SYSTEM + self._examples(size, item["question"]),
        )

    def _examples(self, size: int, question: str) -> str:
        """Return solved problems for the prompt of another question."""
        examples = list[str]()
        for n in range(10 * self.shots):
            if len(examples) == self.shots:
                break
            item = self._dataset(size, seed_from("shot", n) % 2**31)[0]
            if item["question"] != question:
                examples.append(
                    f"\n\nExample:\n{item['question']}\n<answer>{item['answer']}</answer>"
                )
        return "".join(examples)

    def solve(self, problem: Problem) -> str:
        return f"<answer>{problem.gold['answer']}</answer>"

    def grade(self, problem: Problem, answer: str) -> Grade:
        texts = readings(answer, like=str(problem.gold["answer"]), question=problem.turns[0])
        if not texts:
            return Grade(correct=False, why="no answer")
        score = 0.0
        try:
            for text in texts:
                text_score = _scorer.call(
                    self.dataset, self.vary, self.options, problem.size, problem.gold, text
                )
                score = max(score, text_score)
                if score >= 1:
                    break
        except CallFailed as failed:
            return Grade(correct=False, why=f"the scorer of reasoning-gym {failed}")
        correct = score >= 1
        why = "" if correct else "wrong answer"
        return Grade(correct, texts[0], why, {"score": score})

    def parse(self, problem: Problem, answer: str) -> str | None:  # without scoring, which is slow
        texts = readings(answer, like=str(problem.gold["answer"]), question=problem.turns[0])
        return texts[0] if texts else None

    def right_answer(self, problem: Problem) -> str:
        return str(problem.gold["answer"])

    def score(self, size: int, gold: dict[str, Any], answer: str) -> float:
        """Return reasoning-gym's score of an answer. It may run code in the answer: use `grade`."""
        dataset = self._dataset(size, gold["seed"])
        # A few datasets choose from sets, so the answer is another one in each process: the stored
        # one counts.
        entry = {**dataset[0], "answer": gold["answer"]}
        score = float(dataset.score_answer(answer, entry))
        if not math.isfinite(score):
            return 0.0
        return score


_scorer = SubprocessFunction("ponder.tasks.gym")
EVALUATE = (
    "algorithmic.string_insertion",
    "algorithmic.spiral_matrix",
    "algorithmic.binary_matrix",
    "games.n_queens",
)
PARSE = ("games.countdown", "games.puzzle24")  # and those that call sympy.parse_expr
NAMES = {
    "sin",
    "cos",
    "tan",
    "sec",
    "csc",
    "cot",
    "sinh",
    "cosh",
    "tanh",
    "asin",
    "acos",
    "atan",
    "exp",
    "log",
    "ln",
}
NAMES |= {"sqrt", "Abs", "abs", "pi", "Rational"}


def _parse_expr(parse: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `parse_expr` that refuses all names but those of mathematics."""

    def checked(text: str, *arguments: Any, **settings: Any) -> Any:
        names = set(re.findall(r"[^\W\d]\w*", text))
        if re.search(r"[\"'_@\\]", text) or any(
            len(name) > 1 and name not in NAMES for name in names
        ):
            raise ValueError("not an expression")
        return parse(text, *arguments, **settings)

    return checked


def _serve() -> None:
    """Serve calls of the scorers, with `eval` and `parse_expr` replaced."""
    import sympy

    for name in EVALUATE:
        vars(import_module(f"reasoning_gym.{name}"))["eval"] = ast.literal_eval
    parse = _parse_expr(sympy.parse_expr)
    sympy.parse_expr = parse
    for name in PARSE:
        vars(import_module(f"reasoning_gym.{name}"))["parse_expr"] = parse
    serve(lambda dataset, vary, options, *answer: Gym(dataset, vary, options).score(*answer))


if __name__ == "__main__":
    _serve()
