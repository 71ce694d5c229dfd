"""Asks GPQA-Diamond (Rein et al. 2023): 198 graduate-level science questions with four choices
each.

The order of the choices is drawn at random once per question, and is the same in every study. The
dataset is gated: accept its terms on the hub, then run `hf auth login`; or use a local file. Its
authors ask not to publish the questions on the open web. Ponder's reports quote them, so don't
publish a report of this task.
"""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any, ClassVar

from ponder.core import Grade, Problem, digest, seed_from
from ponder.tasks._benchmark import PROBLEM, Benchmark, DataRow, facts, text
from ponder.tasks.reading import choice

LETTERS = "ABCD"
STEP_BY_STEP = "Please reason step by step, and put the letter of your choice within \\boxed{}."


class Gpqa(Benchmark):
    dataset = "Idavidrein/gpqa"
    patterns = ("gpqa_diamond.csv",)
    count = 198
    example: ClassVar[dict[str, Any]] = {"file": str(Path(__file__).parent / "gpqa_example.jsonl")}

    def from_row(self, row: DataRow, where: str) -> Problem:
        question = text(row, where, *PROBLEM)
        right = text(row, where, "answer", "correct answer")
        wrong = [text(row, where, f"wrong {n}", f"incorrect answer {n}") for n in (1, 2, 3)]
        choices = sorted([right, *wrong])
        random.Random(seed_from("gpqa", question)).shuffle(choices)
        options = []
        for letter, option in zip(LETTERS, choices, strict=True):
            options.append(f"{letter}) {option}")
        prompt = "\n\n".join([question, "\n".join(options), STEP_BY_STEP])
        gold = LETTERS[choices.index(right)]
        return Problem(digest(prompt, gold).hex(), 0, (prompt,), gold, facts=facts(row))

    def solve(self, problem: Problem) -> str:
        return f"\\boxed{{{problem.gold}}}"

    def grade(self, problem: Problem, answer: str) -> Grade:
        options = dict(re.findall(r"(?m)^([A-D])\) (.*)$", problem.turns[0]))
        parsed = choice(answer, options)
        if parsed is None:
            return Grade(correct=False, why="no answer")
        correct = parsed == problem.gold
        return Grade(correct=correct, parsed=parsed, why="" if correct else "wrong choice")
