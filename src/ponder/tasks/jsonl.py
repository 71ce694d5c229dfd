"""Asks your own problems from a JSONL file: each line has `prompt` and `answer`, and may have
`size` and `id`.

It may also have `system` (a system message), `history` (the messages before the prompt, each with
`role` and `content`) and `facts` (kept with each attempt).

`grader` says how replies are graded; what `answer` means depends on it:

- `answer`: a number or a short text, found in the reply and compared by its kind, as below;
- `json`: an object or a list. The fields of the reply's JSON must be equal; `fields` may allow a
  tolerance or any order. Fields that `answer` lacks don't count;
- `regex`: a regular expression that the reply must match somewhere;
- `tests`: Python that tests the code in the reply, such as `assert add(2, 3) == 5`;
- `python`: whatever your `function` takes: it is called with the reply and `answer`;
- `judge`: a reference answer, or nothing. The model `judge` decides by the `rubric`, and by that of
  the line if it has one. It is billed apart. `labels` are people's verdicts on some replies, by
  which accuracy is corrected for the judge's errors.

A line may have a `solution`, a right reply for `ponder show` and the model `oracle`. The grader is
not in the key of attempts: after a change, `ponder regrade` grades stored replies again.

A short answer is what stands in `<answer>` tags or `\\boxed{}`, after "answer is", in bold, or in
the sentence that concludes it; numbers and words that the prompt already has are told from what the
reply adds. It is compared by what the right answer is. Numbers: by value, as `1,440`, `3/4`,
`0.75`, "seven" or with a unit, but not with another unit of the same kind than the one asked for;
in lowest terms, as a fraction or as a decimal if the prompt says so. `yes` and `no`, `true` and
`false`: also a sentence that affirms or denies the question. A letter, or the text of an option
that the prompt lists: either of the two. Lists (`3, 7, 9`): item by item, in order, with or without
brackets. Other texts: without case, articles, marks such as `**` and spaces around punctuation. A
reply that wavers is unparsed.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

from ponder.core import (
    Completion,
    Grade,
    Judged,
    Model,
    ParsesAnswers,
    Problem,
    Request,
    Task,
    UserError,
    digest,
    error_at,
    fingerprint,
    not_in_key,
)
from ponder.core.capabilities import GRADER, JUDGED, LABEL, ComparesAnswers, SlowGrading
from ponder.core.jsonl import records
from ponder.tasks.grading.grader import Grader, ShortAnswers, short_answer
from ponder.tasks.grading.json_fields import JsonFields
from ponder.tasks.grading.judge import Judge, verdict
from ponder.tasks.grading.labels import Labels, key, read_labels
from ponder.tasks.grading.line import ProblemLine
from ponder.tasks.grading.python_function import EXAMPLE as FUNCTION
from ponder.tasks.grading.python_function import PythonFunction
from ponder.tasks.grading.regex import Regex
from ponder.tasks.grading.unit_tests import UnitTests
from ponder.tasks.reading import same

EXAMPLE = Path(__file__).parent / "jsonl_example.jsonl"
LINE = '{"prompt": "2 + 2?", "answer": 4, "size": 2}'
JUDGE = 'judge = { name = "endpoint", id = "…", url = "https://…/v1", key = "$KEY", budget = 1024 }'
# The grader that each setting belongs to.
BELONGS = {
    "fields": "json",
    "seconds": "tests",
    "function": "python",
    "judge": "judge",
    "rubric": "judge",
    "labels": "judge",
}


@dataclass(frozen=True)
class Jsonl(Task, ParsesAnswers, ComparesAnswers, Judged, SlowGrading):
    file: Path  # relative to the study's folder
    # appended to every prompt, such as "Work step by step, then put the answer in \\boxed{}."
    instruction: str = ""
    # how replies are graded
    grader: Literal["answer", "json", "regex", "tests", "python", "judge"] = not_in_key("answer")
    # of `json`: by how much a number may be off, or "set" for a list in any order, as in
    # { total = 0.01, tags = "set" }
    fields: dict[str, float | Literal["set"]] | None = not_in_key(None)
    seconds: float = not_in_key(5.0)  # of `tests`: CPU time that the code of one reply may take
    function: Path | None = not_in_key(
        None
    )  # of `python`: a file and a function, "checks.py:polite"
    judge: Model | None = not_in_key(None)  # of `judge`: a table as in [[model]]
    rubric: str = not_in_key("")  # of `judge`: what makes a reply right
    # of `judge`: JSONL with people's verdicts on some replies
    labels: Path | None = not_in_key(None)

    example: ClassVar[dict[str, Any]] = {"file": str(EXAMPLE)}

    def __post_init__(self) -> None:
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        for name, grader in BELONGS.items():
            if getattr(self, name) != defaults[name] and self.grader != grader:
                raise UserError(
                    f"`{name}` belongs to the grader `{grader}`, and this one is `{self.grader}`",
                    hint=f'grader = "{grader}"',
                )
        self._grader  # noqa: B018 raises if a setting is missing or wrong

    @cached_property
    def _grader(self) -> Grader:
        if self.grader == "json":
            return JsonFields(self.fields or {})
        if self.grader == "regex":
            return Regex()
        if self.grader == "tests":
            return UnitTests(self.seconds)
        if self.grader == "python":
            if self.function is None:
                raise UserError("the grader `python` needs a `function`", hint=FUNCTION)
            return PythonFunction(self.function)
        if self.grader == "judge":
            if self.judge is None:
                raise UserError("the grader `judge` needs a model as `judge`", hint=JUDGE)
            return Judge(self.judge, self.rubric)
        return ShortAnswers()

    def fixed(self) -> list[Problem]:
        return self._problems

    @cached_property
    def _problems(self) -> list[Problem]:
        self._labels  # noqa: B018 raises if they are wrong, before anything is asked
        return [problem for problem, _ in self._lines.values()]

    @cached_property
    def _lines(self) -> dict[str, tuple[Problem, ProblemLine]]:
        """The problem of each line, and the line, by the problem's id."""
        by_id: dict[str, tuple[Problem, ProblemLine]] = {}
        for where, line in records(self.file, ProblemLine, LINE):
            with error_at(where):
                self._grader.check(line)
            problem = line.problem(self.instruction)
            if problem.id in by_id:
                message = f"the id {problem.id!r} occurs twice"
                raise UserError(message, where=where, hint="give each problem its own id")
            by_id[problem.id] = (problem, line)
        if isinstance(self._grader, JsonFields):
            self._grader.check_rules(line for _, line in by_id.values())
        return by_id

    def _line(self, problem: Problem) -> ProblemLine:
        _, line = self._lines[problem.id]
        return line

    def problem(self, size: int, seed: int) -> Problem:
        of_size = [problem for problem in self._problems if problem.size == size]
        return of_size[seed % len(of_size)]

    def solve(self, problem: Problem) -> str:
        if self.grader == "answer":
            return f"<answer>{problem.gold}</answer>"
        solution = self._grader.solution(self._line(problem))
        if not solution:
            raise UserError(
                f"the problem `{problem.id}` has no `solution`, so no right reply is known",
                where=str(self.file),
                hint='add "solution": "…" to its line',
            )
        return solution

    def parse(self, problem: Problem, answer: str) -> Any:
        if self.grader in ("answer", "json"):
            return self.grade(problem, answer).parsed
        return answer or None

    def same_answer(self, one: Any, other: Any) -> bool:
        if self.grader == "answer":
            return same(one, other)
        return bool(one == other)

    def is_slow(self) -> bool:
        return self.grader in ("regex", "tests", "python")

    def grade(self, problem: Problem, answer: str) -> Grade:
        if self.grader == "answer":
            return short_answer(problem, answer)
        grade = self._grader.grade(self._line(problem), answer)
        return replace(grade, details={**grade.details, GRADER: self.grader_id()})

    def grader_id(self) -> str:
        if self.grader == "answer":
            return ""
        return self._grader_id

    @cached_property
    def _grader_id(self) -> str:
        labels = fingerprint(self.labels) if self.labels else ""
        return digest(self.grader, self._grader.identity(), labels).hex()[:12]

    # A judge.

    def asks(self) -> Model | None:
        return self.judge

    def judge_id(self) -> str:
        return digest(self._grader.identity()).hex()[:12]

    def judge_request(self, problem: Problem, answer: str, seed: int) -> Request:
        assert isinstance(self._grader, Judge)
        return self._grader.request(problem, self._line(problem), answer, seed)

    def verdict(self, reply: Completion) -> bool:
        return verdict(reply)

    def grade_judged(self, problem: Problem, answer: str, *, right: bool) -> Grade:
        details: dict[str, Any] = {GRADER: self.grader_id(), JUDGED: right}
        label = self._labels.get(key(problem.id, answer))
        if label is not None:
            details[LABEL] = label
        why = "" if right else "the judge says so"
        return Grade(right, answer, why, details)

    def label_count(self) -> int:
        return len(self._labels)

    @cached_property
    def _labels(self) -> Labels:
        if self.labels is None:
            return {}
        return read_labels(self.labels, self._lines)
