"""What the benchmarks share: a fixed set of problems, from the hub or from a file, and known by what it says.

Ponder ships none of them. A set is read when its problems are asked for, so a study that names one loads without it.
"""

from __future__ import annotations

import csv
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import msgspec

from ponder.core import Grade, Problem, Task, UserError, answers, digest, lines, not_in_key

Row: TypeAlias = dict[str, Any]  # keys in lower case
FORMATS = (".jsonl", ".csv", ".parquet")  # of those a dataset has on the hub, the first is read
FACTS = ("id", "unique_id", "record id", "subject", "level", "subdomain", "url")
STEP_BY_STEP = "\n\nPlease reason step by step, and put your final answer within \\boxed{}."


@dataclass(frozen=True)
class Benchmark(Task):
    # Where the problems come from can't change an answer; what they say can, and is the identity.
    file: Path | None = not_in_key(None)  # JSONL, CSV or parquet, relative to the study's folder; if not given, the hub
    revision: str = not_in_key("main")  # of the dataset on the hub: a branch, a tag or a commit
    digest: str = not_in_key("")  # that the problems must have, from whatever source; if not given, any

    dataset: ClassVar[str]  # its name on the hub
    patterns: ClassVar[tuple[str, ...]] = tuple(f"*{ending}" for ending in FORMATS)  # its files there
    count: ClassVar[int]  # problems in it
    default_sizes = (0,)

    def __post_init__(self) -> None:
        if self.file is not None and not self.file.is_file():
            raise UserError(f"there is no file {self.file}", hint="the path is relative to the study's folder")

    @abstractmethod
    def from_row(self, row: Row, where: str) -> Problem: ...

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), "problems": self._digest}

    def sizes(self) -> tuple[int, ...]:
        return self.default_sizes

    def check_size(self, size: int) -> None:
        if size not in self.default_sizes:
            raise UserError(f"{self.plugin_name()} has no sizes", hint="leave out size")

    def fixed(self) -> Sequence[Problem]:
        return _Unread(lambda: self._problems)

    def problem(self, size: int, seed: int) -> Problem:  # noqa: ARG002 all are of one size
        return self._problems[seed % len(self._problems)]

    @cached_property
    def _digest(self) -> str:
        return _digest(self._problems)

    @cached_property
    def _problems(self) -> list[Problem]:
        found: dict[str, Problem] = {}
        for path in [self.file] if self.file else self._from_hub():
            for where, row in _rows(path):
                problem = self.from_row(row, where)
                if problem.id in found:
                    raise UserError("this problem has stood here before", where=where)
                found[problem.id] = problem
        problems = list(found.values())
        where = str(self.file or f"{self.dataset} on the hub")
        if not problems:
            raise UserError("there are no problems here", where=where)
        if not self.file and len(problems) != self.count:
            hint = f'get the set as one file and point to it: file = "{self.plugin_name()}.jsonl"'
            raise UserError(f"{len(problems)} problems, not {self.count}", where=where, hint=hint)
        if self.digest and self.digest != (theirs := _digest(problems)):
            raise UserError(f"the problems' digest is {theirs}, not {self.digest}", where=where)
        return problems

    def _from_hub(self) -> list[Path]:
        name = self.plugin_name()
        page = f"https://huggingface.co/datasets/{self.dataset}"
        other = f'get it from {page} and point to it: file = "{name}.jsonl" (docs/benchmarks.md)'
        try:
            from huggingface_hub import snapshot_download
        except ModuleNotFoundError:
            what = f"{name} comes from the hub, which needs a package that isn't installed: huggingface_hub"
            raise UserError(what, hint=f"pip install huggingface_hub; or {other}") from None
        try:
            # It lists the files there, takes those that match, and without a network what it took before.
            folder = Path(
                snapshot_download(
                    self.dataset, repo_type="dataset", revision=self.revision, allow_patterns=list(self.patterns)
                )
            )
        except (OSError, ValueError) as error:  # which all of its own errors are
            said = str(error).strip().partition("\n")[0] or type(error).__name__
            raise UserError(f"can't get {self.dataset} from the hub: {said}", hint=other) from None
        for ending in FORMATS:
            if found := sorted(folder.rglob(f"*{ending}")):
                return found
        raise UserError(f"{self.dataset} on the hub has no file like {' or '.join(self.patterns)}", hint=other)


class Maths(Benchmark):
    """A benchmark with a mathematical expression for an answer."""

    example: ClassVar[dict[str, Any]] = {"file": str(Path(__file__).parent / "maths_example.jsonl")}

    def __post_init__(self) -> None:
        super().__post_init__()
        answers.need_maths()  # before anything is spent on answers that then can't be compared

    def from_row(self, row: Row, where: str) -> Problem:
        prompt, gold = text(row, where, *PROBLEM) + STEP_BY_STEP, text(row, where, "answer")
        return Problem(digest(prompt, gold).hex(), 0, (prompt,), gold, facts=facts(row))

    def solve(self, problem: Problem) -> str:
        return f"\\boxed{{{problem.gold}}}"

    def grade(self, problem: Problem, answer: str) -> Grade:
        if not (said := answers.final(answer)):
            return Grade(correct=False, why="no answer")
        why = answers.differs(said, problem.gold)
        return Grade(correct=not why, parsed=said, why=why)


class _Unread(Sequence[Problem]):
    """A fixed set that is read when it is first looked at."""

    def __init__(self, read: Callable[[], list[Problem]]) -> None:
        self._read = read

    def __len__(self) -> int:
        return len(self._read())

    def __getitem__(self, at: Any) -> Any:
        return self._read()[at]


def _digest(problems: Sequence[Problem]) -> str:
    return digest([p.id for p in problems]).hex()


PROBLEM = ("problem", "prompt", "question")


def text(row: Row, where: str, *names: str) -> str:
    """What a row says under the first of some names that it has."""
    found = next((row[name] for name in names if row.get(name) is not None), None)
    if isinstance(found, float) and found.is_integer():
        found = int(found)  # some sets write 27 as 27.0
    if isinstance(found, bool) or not isinstance(found, str | int | float) or not str(found).strip():
        hint = '{"problem": "What is 2 + 2?", "answer": "4"}'
        raise UserError(f"no {' or '.join(f'`{n}`' for n in names)} here, or it is no text", where=where, hint=hint)
    return str(found).strip()


def facts(row: Row) -> dict[str, Any]:
    return {k: row[k] for k in FACTS if isinstance(row.get(k), str | int)}


def _rows(path: Path) -> Iterator[tuple[str, Row]]:
    """Each row of a file, with its place for an error message."""
    readers = {".jsonl": _jsonl, ".csv": _csv, ".parquet": _parquet}
    if path.suffix not in readers:
        raise UserError(f"{path.name} is none of {', '.join(readers)}", hint="docs/benchmarks.md has the format")
    for where, row in readers[path.suffix](path):
        yield where, {str(key).strip().lower(): value for key, value in row.items()}


def _jsonl(path: Path) -> Iterator[tuple[str, Row]]:
    for where, line in lines(path):
        try:
            yield where, msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            hint = '{"problem": "What is 2 + 2?", "answer": "4"}'
            raise UserError(str(error), where=where, hint=hint) from None


def _csv(path: Path) -> Iterator[tuple[str, Row]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        try:
            for row in reader:
                yield f"{path}:{reader.line_num}", row
        except (csv.Error, UnicodeDecodeError) as error:
            raise UserError(str(error), where=f"{path}:{reader.reader.line_num}") from None


def _parquet(path: Path) -> Iterator[tuple[str, Row]]:
    try:
        import polars
    except ModuleNotFoundError:
        what = f"{path.name} needs a package that isn't installed: polars"
        raise UserError(what, hint="pip install 'ponder[parquet]'") from None
    try:
        table = polars.read_parquet(path)
    except (OSError, polars.exceptions.PolarsError) as error:
        raise UserError(f"this is not parquet: {error}", where=str(path)) from None
    for n, row in enumerate(table.iter_rows(named=True), 1):
        yield f"{path}, row {n}", row
