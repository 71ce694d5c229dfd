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
        """The grade of the task's own solution."""
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
    """The records of an exported taskset."""
    with (folder / f"{split}.jsonl").open("rb") as lines:
        yield from map(decode, lines)


def export(
    study: Study, form: Literal["verifiers", "trl"], folder: Path | None, number: int
) -> tuple[list[Path], int]:
    """Write a folder; returns its files and the number of problems.

    `number`: training problems per task and size.
    """
    records = {"train": list(_training(study, number)), "test": list(_asked(study))}
    folder = folder or Path(f"{study.name}-{form}")
    if folder.is_file():
        raise UserError(
            f"{folder} is a file, and a folder is written", hint="-o FOLDER names another place"
        )
    several = next((r for one in records.values() for r in one if len(r.problem.turns) > 1), None)
    if form == "trl" and several:
        what = (
            f"problems of `{several.task['name']}` have several turns, and a row of TRL's has one"
        )
        raise UserError(what, hint="--format verifiers can hold them")
    files = _trl(records, folder) if form == "trl" else _verifiers(study.name, records, folder)
    return files, sum(map(len, records.values()))


def _asked(study: Study) -> Iterator[Record]:
    """The problems that the study asks, each once."""
    seen = set[bytes]()
    for cell in study.cells:
        if cell.source not in seen and not study.chooses_sizes:
            seen.add(cell.source)
            yield from (_record(cell.task, problem) for problem in cell.asked())


def _training(study: Study, number: int) -> Iterator[Record]:
    """Problems that the study doesn't ask; a fixed set, such as a benchmark, has none."""
    for one in study.training_problems:
        yield from (
            _record(one.task, problem) for problem in islice(one.problems(study.seed), number)
        )


def _record(task: Task, problem: Problem) -> Record:
    """With what builds an equal task elsewhere. A file is named by its whole path."""
    fields = dataclasses.fields(task)  # type: ignore[arg-type]
    values = {f.name: getattr(task, f.name) for f in fields if getattr(task, f.name) is not None}
    paths = {key: str(value.absolute()) for key, value in values.items() if isinstance(value, Path)}
    return Record({"name": task.plugin_name(), **values, **paths}, problem)


def _verifiers(study: str, records: Mapping[str, Sequence[Record]], folder: Path) -> list[Path]:
    """A package that `pip install` takes, and that verifiers finds by its name."""
    package = f"ponder_{re.sub(r'[^a-z0-9]+', '_', study.lower())}"
    inside = folder / package
    inside.mkdir(parents=True, exist_ok=True)
    project, module = folder / "pyproject.toml", inside / "__init__.py"
    project.write_text(PROJECT.format(name=package.replace("_", "-")), "utf-8")
    module.write_text(MODULE.format(study=study), "utf-8")
    files = [inside / f"{split}.jsonl" for split in SPLITS]
    for file in files:
        file.write_text("".join(f"{record.text()}\n" for record in records[file.stem]), "utf-8")
    return [project, module, *files]


def _trl(records: Mapping[str, Sequence[Record]], folder: Path) -> list[Path]:
    """Rows with a prompt as a chat, and the record for `ponder.results.interop.trl.correct`."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for split in SPLITS:
        (file := folder / f"{split}.jsonl").unlink(missing_ok=True)
        if rows := [_row(record) for record in records[split]]:
            file.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
            files.append(file)
    return files


def _row(record: Record) -> dict[str, Any]:
    problem = record.problem
    chat = [{"role": m.role, "content": m.content} for m in problem.opening()]
    chat.append({"role": "user", "content": problem.turns[0]})
    return {"prompt": chat, "problem": record.text(), "id": problem.id, "size": problem.size}
