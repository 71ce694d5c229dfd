"""Generates problems of any reasoning-gym dataset (Stojanovski et al. 2025); size = its curriculum level.

Reasoning-gym seeds item i of a dataset with `seed + i`, so neighbouring seeds share most of their items. Here every
problem comes from a dataset of one item, with a hashed seed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from reasoning_gym.coaching.base_curriculum import BaseCurriculum
from reasoning_gym.factory import CURRICULA, DATASETS, create_dataset

from ponder.core import Grade, Problem, Task, UserError, answers, digest
from ponder.core.plugins import nearest

SYSTEM = "Solve the problem. End with the final answer alone in <answer></answer> tags."


@dataclass(frozen=True)
class Gym(Task):
    dataset: str  # its name in reasoning-gym
    vary: str = ""  # the curriculum attribute that the size sets; default: all of them
    options: dict[str, Any] = field(default_factory=dict)  # settings of the dataset

    example: ClassVar[dict[str, Any]] = {"dataset": "chain_sum"}

    def __post_init__(self) -> None:
        if self.dataset not in DATASETS:
            raise UserError(f"reasoning-gym has no dataset `{self.dataset}`", hint=nearest(self.dataset, DATASETS))
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
        attributes = self._curriculum().attributes
        return max(len(a.levels) for name, a in attributes.items() if self.vary in ("", name))

    def sizes(self) -> tuple[int, ...]:
        return tuple(range(self._levels()))

    def check_size(self, size: int) -> None:
        if not 0 <= size < self._levels():
            hint = f"its levels are 0 to {self._levels() - 1}"
            raise UserError(f"{self.dataset} has no level {size}", hint=hint)

    def _settings(self, size: int) -> dict[str, Any]:
        if self.dataset not in CURRICULA:
            return self.options
        curriculum = self._curriculum()
        if self.vary:
            curriculum.set_attr_level(self.vary, size)
        else:
            curriculum.set_global_level(size)
        settings = vars(curriculum.generate_configuration())
        return {k: v for k, v in settings.items() if k not in ("seed", "size")} | self.options

    def _dataset(self, size: int, seed: int) -> Any:
        return create_dataset(self.dataset, seed=seed, size=1, **self._settings(size))

    def problem(self, size: int, seed: int) -> Problem:
        seed %= 2**31  # some datasets pass the seed to NumPy, which takes 32 bits
        item = self._dataset(size, seed)[0]
        return Problem(
            id=digest(self.dataset, item["question"]).hex(),
            size=size,
            turns=(item["question"],),
            gold={"answer": item["answer"], "seed": seed},
            system=SYSTEM,
        )

    def solve(self, problem: Problem) -> str:
        return f"<answer>{problem.gold['answer']}</answer>"

    def grade(self, problem: Problem, answer: str) -> Grade:
        parsed = answers.final(answer)
        if parsed is None:
            return Grade(correct=False, why="no answer")
        dataset = self._dataset(problem.size, problem.gold["seed"])
        score = float(dataset.score_answer(parsed, dataset[0]))
        return Grade(score >= 1, parsed, "" if score >= 1 else "wrong answer", {"score": score})
