"""Writes a study's problems for RL libraries: a taskset for verifiers, or a dataset for TRL.

Every record holds the problem and the settings of its task, and the libraries call back into Ponder
to grade a reply: the prompt and its parser stay together. `test` has the problems that the study
asks; `train` has others of the same tasks and sizes, so that what is trained can be measured by the
study.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from ponder.core import Grade, Problem, Task, UserError
from ponder.core.capabilities import grade_turns, solve_turns
from ponder.core.settings import build
from ponder.results.study import Study
from ponder.tasks.reading import split_thinking

Split: TypeAlias = Literal["train", "test"]
SPLITS: tuple[Split, ...] = ("train", "test")
MODULE = '''"""Problems of the Ponder study `{study}` as a taskset of verifiers. Written by `ponder export`."""

from pathlib import Path

from ponder.results.interop.verifiers import Environment, Problems

__all__ = ["Environment", "Taskset"]


class Taskset(Problems):
    folder = Path(__file__).parent
'''
PROJECT = """[project]
name = "{name}"
version = "0.1.0"
dependencies = ["verifiers>=0.4"]  # and Ponder, installed beside it

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
"""


@dataclass(frozen=True)
class Record:
    """A problem, and the task that grades it."""

    task: dict[str, Any]
    problem: Problem

    def grade(self, replies: Sequence[str]) -> Grade:
        """Grade the replies of a model, one per turn, without the thinking in them."""
        return grade_turns(
            self._task, self.problem, [split_thinking(reply)[1] for reply in replies]
        )

    def solution(self) -> Grade:
        """Grade the task's own solution."""
        return self.grade(solve_turns(self._task, self.problem))

    def text(self) -> str:
        return msgspec.json.encode(self, enc_hook=str).decode()

    @property
    def _task(self) -> Task:
        return _task(msgspec.json.encode(self.task))


@lru_cache(64)
def _task(settings: bytes) -> Task:
    task: Task = build("tasks", msgspec.json.decode(settings), "task", Path())
    return task


def decode(text: str | bytes) -> Record:
    return msgspec.json.decode(text, type=Record)


def read(folder: Path, split: Split) -> Iterator[Record]:
    """Yield the records of an exported taskset."""
    with (folder / f"{split}.jsonl").open("rb") as lines:
        yield from map(decode, lines)


def export(
    study: Study, form: Literal["verifiers", "trl"], folder: Path | None, number: int
) -> tuple[list[Path], int]:
    """Write a folder, and return its files and the number of problems.

    `number` is that of training problems per task and size.
    """
    records = {"train": list(_training(study, number)), "test": list(_asked(study))}
    folder = folder or Path(f"{study.name}-{form}")
    if folder.is_file():
        hint = "-o FOLDER names another place"
        raise UserError(f"{folder} is a file, and a folder is written", hint=hint)
    if form == "trl":
        for record in (*records["train"], *records["test"]):
            if len(record.problem.turns) > 1:
                message = f"problems of `{record.task['name']}` have several turns"
                hint = "--format verifiers can hold them"
                raise UserError(f"{message}, and a row of TRL's has one", hint=hint)
        files = _trl(records, folder)
    else:
        files = _verifiers(study.name, records, folder)
    return files, len(records["train"]) + len(records["test"])


def _asked(study: Study) -> Iterator[Record]:
    """Yield the problems that the study asks, each once."""
    sources = set[bytes]()
    for cell in study.cells:
        if cell.source not in sources and not study.chooses_sizes:
            sources.add(cell.source)
            for problem in cell.asked():
                yield _record(cell.task, problem)


def _training(study: Study, number: int) -> Iterator[Record]:
    """Yield problems that the study doesn't ask; a fixed set, such as a benchmark, has none."""
    for training in study.training_problems:
        for problem in islice(training.problems(study.seed), number):
            yield _record(training.task, problem)


def _record(task: Task, problem: Problem) -> Record:
    """Return a problem with the settings that build an equal task; files have absolute paths."""
    table: dict[str, Any] = {"name": task.plugin_name()}
    for field in dataclasses.fields(task):  # type: ignore[arg-type]
        value = getattr(task, field.name)
        if isinstance(value, Path):
            value = str(value.absolute())
        if value is not None:
            table[field.name] = value
    return Record(table, problem)


def _verifiers(study: str, records: Mapping[str, Sequence[Record]], folder: Path) -> list[Path]:
    """Write a package that `pip install` takes, and that verifiers finds by its name."""
    words = re.sub(r"[^a-z0-9]+", "_", study.lower())
    package = f"ponder_{words}"
    inside = folder / package
    inside.mkdir(parents=True, exist_ok=True)
    project = folder / "pyproject.toml"
    project.write_text(PROJECT.format(name=package.replace("_", "-")), "utf-8")
    module = inside / "__init__.py"
    module.write_text(MODULE.format(study=study), "utf-8")
    files = [project, module]
    for split in SPLITS:
        file = inside / f"{split}.jsonl"
        file.write_text("".join(f"{record.text()}\n" for record in records[split]), "utf-8")
        files.append(file)
    return files


def _trl(records: Mapping[str, Sequence[Record]], folder: Path) -> list[Path]:
    """Write rows with a chat as prompt, and the record for `ponder.results.interop.trl.correct`."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for split in SPLITS:
        file = folder / f"{split}.jsonl"
        file.unlink(missing_ok=True)
        if records[split]:
            lines = [msgspec.json.encode(_row(record)) + b"\n" for record in records[split]]
            file.write_bytes(b"".join(lines))
            files.append(file)
    return files


def _row(record: Record) -> dict[str, Any]:
    problem = record.problem
    chat = [{"role": m.role, "content": m.content} for m in problem.opening()]
    chat.append({"role": "user", "content": problem.turns[0]})
    return {"prompt": chat, "problem": record.text(), "id": problem.id, "size": problem.size}
