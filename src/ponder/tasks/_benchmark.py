"""Reads a published benchmark, a fixed set of problems, from the Hugging Face hub or from a file.

Ponder ships none of them. A benchmark is read when its problems are first needed, so a study that
names one can be loaded without it. It is identified by the content of its problems, not by where
they came from.
"""

from __future__ import annotations

import csv
import itertools
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from ponder.core import Grade, Problem, Task, UserError, digest, not_in_key, plugins
from ponder.core.capabilities import ComparesAnswers, ParsesAnswers, SlowGrading, WithWarning
from ponder.core.jsonl import RELATIVE, records
from ponder.core.parquet import parquet_rows
from ponder.tasks.reading import differs, expressions, final, need_maths

DataRow: TypeAlias = dict[str, Any]  # column names in lower case
# If a dataset on the hub has several, the first of these is read.
FORMATS = (".jsonl", ".csv", ".parquet")
# Columns that are kept with each problem.
FACTS = ("id", "unique_id", "record id", "subject", "level", "subdomain", "url")
LINE = '{"problem": "What is 2 + 2?", "answer": "4"}'
OWN_SET = 'name = "jsonl" asks a set of your own, under its own name'
STEP_BY_STEP = "\n\nPlease reason step by step, and put your final answer within \\boxed{}."


@dataclass(frozen=True)
class Benchmark(Task, WithWarning):
    # JSONL, CSV or parquet, relative to the study's folder; default: from the hub
    file: Path | None = not_in_key(None)
    revision: str = not_in_key("main")  # branch, tag or commit of the dataset on the hub
    digest: str = not_in_key("")  # raise an error unless the problems have this digest

    dataset: ClassVar[str]  # its id on the hub
    # Of its files there.
    patterns: ClassVar[tuple[str, ...]] = tuple(f"*{ending}" for ending in FORMATS)
    count: ClassVar[int]  # number of problems
    default_sizes = (0,)

    def __post_init__(self) -> None:
        if self.file is not None and not self.file.is_file():
            raise UserError(f"there is no file {self.file}", hint=RELATIVE)

    @abstractmethod
    def from_row(self, row: DataRow, where: str) -> Problem:
        """Return the problem in one row of the data; `where` is the row's place, for errors."""

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), "problems": self._digest}

    def sizes(self) -> tuple[int, ...]:
        return self.default_sizes

    def check_size(self, size: int) -> None:
        if size not in self.default_sizes:
            raise UserError(f"{self.plugin_name()} has no sizes", hint="leave `size` out")

    def fixed(self) -> Sequence[Problem]:
        # A dataset from the hub must be complete, so its number of problems needs no reading.
        count = None if self.file else self.count
        return _LazyProblems(lambda: self._problems, count)

    def warning(self) -> str:
        if self.file is None:
            return ""
        name = self.plugin_name()
        stem = re.sub(r"[^a-z0-9]", "", self.file.stem.casefold())
        tasks = [task for task in plugins.names("tasks") if task in stem]
        if tasks and name not in tasks:
            return (
                f"task `{name}` reads {self.file.name}, which is named like the task `{tasks[0]}`"
            )
        if len(self._problems) < self.count:
            problems = f"{len(self._problems)} problems, where {name} has {self.count}"
            return f"task `{name}`: {self.file.name} has {problems}\nhint: {OWN_SET}"
        return ""

    def problem(self, size: int, seed: int) -> Problem:  # noqa: ARG002 all have one size
        return self._problems[seed % len(self._problems)]

    @cached_property
    def _digest(self) -> str:
        """Return the problems' digest.

        A digest that problems from the hub must have is taken as it is, so that they needn't be
        read.
        """
        if self.digest and not self.file:
            return self.digest
        return _digest(self._problems)

    @cached_property
    def _problems(self) -> list[Problem]:
        by_id: dict[str, Problem] = {}
        paths = [self.file] if self.file else self._from_hub()
        for path in paths:
            for where, row in _rows(path):
                problem = self.from_row(row, where)
                if problem.id in by_id:
                    raise UserError("this problem occurs twice", where=where)
                by_id[problem.id] = problem
        problems = list(by_id.values())
        where = str(self.file or f"{self.dataset} on the hub")
        if not problems:
            raise UserError("no problems", where=where)
        if not self.file and len(problems) != self.count:
            hint = f'download it as one file, and set file = "{self.plugin_name()}.jsonl"'
            raise UserError(f"{len(problems)} problems, not {self.count}", where=where, hint=hint)
        if self.file and len(problems) > self.count:
            message = (
                f"{len(problems)} problems, but {self.plugin_name()} has {self.count}: "
                "this is another set"
            )
            raise UserError(message, where=where, hint=OWN_SET)
        if self.digest:
            actual_digest = _digest(problems)
            if actual_digest != self.digest:
                raise UserError(
                    f"the problems' digest is {actual_digest}, not {self.digest}", where=where
                )
        return problems

    def _from_hub(self) -> list[Path]:
        """Download the dataset's files; raise `UserError` with another way if that fails."""
        name = self.plugin_name()
        page = f"https://huggingface.co/datasets/{self.dataset}"
        alternative = f'download it from {page}, and set file = "{name}.jsonl" (docs/benchmarks.md)'
        try:
            from huggingface_hub import snapshot_download
        except ModuleNotFoundError:
            message = (
                f"reading {name} from the hub needs a package that isn't installed: huggingface_hub"
            )
            raise UserError(
                message, hint=f"pip install huggingface_hub; or {alternative}"
            ) from None
        try:
            # Without a network it returns what it downloaded before.
            folder = snapshot_download(
                self.dataset,
                repo_type="dataset",
                revision=self.revision,
                allow_patterns=list(self.patterns),
            )
        except (OSError, ValueError) as error:  # the base classes of all its errors
            first_line = str(error).strip().partition("\n")[0] or type(error).__name__
            raise UserError(
                f"can't get {self.dataset} from the hub: {first_line}", hint=alternative
            ) from None
        for ending in FORMATS:
            paths = sorted(Path(folder).rglob(f"*{ending}"))
            if paths:
                return paths
        patterns = " or ".join(self.patterns)
        raise UserError(
            f"{self.dataset} on the hub has no file that matches {patterns}", hint=alternative
        )


class Maths(ParsesAnswers, ComparesAnswers, SlowGrading):
    """What a benchmark inherits before `Benchmark` if its answers are mathematical expressions."""

    example: ClassVar[dict[str, Any]] = {"file": str(Path(__file__).parent / "maths_example.jsonl")}

    def __post_init__(self) -> None:
        super().__post_init__()  # type: ignore[misc]
        need_maths()  # before tokens are spent on answers that can't be compared

    def from_row(self, row: DataRow, where: str) -> Problem:
        prompt = text(row, where, *PROBLEM) + STEP_BY_STEP
        gold = text(row, where, "answer")
        return Problem(digest(prompt, gold).hex(), 0, (prompt,), gold, facts=facts(row))

    def solve(self, problem: Problem) -> str:
        return f"\\boxed{{{problem.gold}}}"

    def grade(self, problem: Problem, answer: str) -> Grade:
        parsed = final(answer)
        if not parsed:
            return Grade(correct=False, why="no answer")
        why = ""
        for reading in expressions(parsed):
            why = differs(reading, problem.gold)
            if not why:
                break
        return Grade(correct=not why, parsed=parsed, why=why)

    def parse(self, problem: Problem, answer: str) -> str | None:  # noqa: ARG002 without comparing, which is slow
        return final(answer) or None

    def same_answer(self, one: str, other: str) -> bool:
        pairs = itertools.product(expressions(one), expressions(other))
        return any(not differs(*pair) for pair in pairs)


class _LazyProblems(Sequence[Problem]):
    """The problems, read when they are first needed."""

    def __init__(self, read: Callable[[], list[Problem]], count: int | None) -> None:
        self._read = read
        self._count = count

    def __len__(self) -> int:
        if self._count is not None:
            return self._count
        return len(self._read())

    def __getitem__(self, index: Any) -> Any:
        return self._read()[index]


def _digest(problems: Sequence[Problem]) -> str:
    return digest([problem.id for problem in problems]).hex()


PROBLEM = ("problem", "prompt", "question")  # column names of the question


def text(row: DataRow, where: str, *names: str) -> str:
    """Return the text in the first of these columns; raise `UserError` if there is none."""
    values = [row[name] for name in names if row.get(name) is not None]
    value = values[0] if values else None
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # some benchmarks write 27 as 27.0
    if (
        isinstance(value, bool)
        or not isinstance(value, str | int | float)
        or not str(value).strip()
    ):
        columns = " or ".join(f"`{name}`" for name in names)
        raise UserError(f"{columns} is missing, or is not text", where=where, hint=LINE)
    return str(value).strip()


def facts(row: DataRow) -> dict[str, Any]:
    """Return the columns that are kept with a problem."""
    return {column: row[column] for column in FACTS if isinstance(row.get(column), str | int)}


def _rows(path: Path) -> Iterator[tuple[str, DataRow]]:
    """Yield each row of a file, with its place for errors."""
    readers = {".jsonl": _jsonl, ".csv": _csv, ".parquet": _parquet}
    if path.suffix not in readers:
        raise UserError(
            f"{path.name} is not {', '.join(readers)}",
            hint="docs/benchmarks.md describes the format",
        )
    for where, row in readers[path.suffix](path):
        yield where, {str(key).strip().lower(): value for key, value in row.items()}


def _jsonl(path: Path) -> Iterator[tuple[str, DataRow]]:
    yield from records(path, dict[str, Any], LINE)


def _csv(path: Path) -> Iterator[tuple[str, DataRow]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        try:
            for row in reader:
                yield f"{path}:{reader.line_num}", row
        except (csv.Error, UnicodeDecodeError) as error:
            raise UserError(str(error), where=f"{path}:{reader.reader.line_num}") from None


def _parquet(path: Path) -> Iterator[tuple[str, DataRow]]:
    for number, row in enumerate(parquet_rows(path), 1):
        yield f"{path}, row {number}", row
