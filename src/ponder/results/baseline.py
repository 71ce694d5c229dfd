"""A baseline: one model's attempts without their texts, in a small file that a repository can hold.

    ponder baseline mine.toml prod -o baseline.json
    ponder compare mine.toml --baseline baseline.json

CI then asks only the new model. The file has a line per problem, with its content's id and its
attempts, and for each cell the identity of its problems: the task with its settings and version,
the size and the seed. Attempts at other problems are not compared: that is an error, which names
what differs. A digest shows whether the file is as it was written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ponder import __version__
from ponder.core import (
    Bill,
    Cell,
    Completion,
    CountedBy,
    Ended,
    Label,
    Model,
    Outcome,
    Request,
    UserError,
)
from ponder.core.jsonl import decode, unpacked
from ponder.core.keys import digest
from ponder.core.nouns import BILLED_COST
from ponder.study.cell import StudyCell

FORMAT = 1
REWRITE = "write it again: ponder baseline STUDY MODEL -o {path}"
NO_DETAILS: Mapping[str, Any] = {}


class BaselineAttempt(msgspec.Struct, array_like=True):
    """One attempt, as a list in the file."""

    sample: int
    ended: Ended
    prompt_tokens: int
    cached_tokens: int
    thinking_tokens: int
    answer_tokens: int
    seconds: float
    cost: float | None  # None if unknown


class BaselineProblem(msgspec.Struct, array_like=True):
    """One problem, as a list in the file: the id of its content, and its attempts."""

    id: str
    attempts: list[BaselineAttempt]


class BaselineCell(msgspec.Struct):
    """The attempts at one size of a task."""

    task: dict[str, Any]  # settings that are not defaults, version, size and seed of the problems
    memory: dict[str, Any]
    training_seeds: list[int]
    counted_by: CountedBy
    problems: list[BaselineProblem] = []

    @property
    def size(self) -> int:
        return int(self.task["size"])


class BaselineFile(msgspec.Struct):
    """The content of the file."""

    ponder_baseline: int  # version of the format
    ponder: str  # version that wrote it
    written: str  # date
    study: str
    label: str
    model: dict[str, Any]
    methods: list[Any]
    currency: str  # of costs
    digest: str
    cells: list[BaselineCell]


@dataclass(kw_only=True)
class BaselineModel(Model):
    """The model of a baseline. It can't be asked: its attempts are in the file."""

    digest: str = ""

    async def complete(self, request: Request) -> Completion:
        raise UserError(f"a baseline's model can't be asked problem {request.problem.id}")


@dataclass(frozen=True, eq=False, kw_only=True)
class RecordedCell(Cell):
    """A cell of a baseline: its costs are those that were recorded, not computed from prices."""

    seeds: tuple[int, ...] = ()

    @cached_property
    def training_seeds(self) -> tuple[int, ...]:
        return self.seeds

    @cached_property
    def key(self) -> bytes:
        return digest(super().key.hex(), self.seeds)

    def cost(self, bill: Bill) -> float | None:
        return bill.cost


class Matched(NamedTuple):
    """The attempts of a baseline that a study can be compared with."""

    outcomes: list[Outcome]
    problems: dict[bytes, set[str]]  # by the source of a cell
    notes: list[str]  # what is left out


@dataclass(frozen=True)
class Baseline:
    """A baseline that was read from a file."""

    path: Path
    content: BaselineFile

    @property
    def label(self) -> str:
        return self.content.label

    def notes(self, cells: Sequence[StudyCell]) -> list[str]:
        """Return what a reader should know of a comparison of these cells with the baseline."""
        notes = []
        for cell in cells:
            spec = _plain(cell.spec())
            if (spec["model"], spec["methods"]) == (self.content.model, self.content.methods):
                notes.append(
                    f"`{cell.label.model}` has the settings of the baseline, so only chance or "
                    "another version of the model behind them can make a difference"
                )
                break
        if self.content.ponder != __version__:
            notes.append(
                f"Ponder {self.content.ponder} graded the baseline, and this is {__version__}: "
                "if grading has changed between them, write it again"
            )
        return notes

    def matched(self, cells: Sequence[StudyCell]) -> Matched:
        """Return the attempts at the problems that these cells ask.

        Raise `UserError` if a task of the same name has other settings or another version, or if
        no problems are in common.
        """
        identities: dict[str, StudyCell] = {}
        for cell in cells:
            identities.setdefault(_identity(*_of_cell(cell)), cell)
        outcomes: list[Outcome] = []
        problems: dict[bytes, set[str]] = {}
        unmatched = []
        matched = set()
        for recorded in self.content.cells:
            identity = _identity(recorded.task, recorded.memory)
            if identity not in identities:
                unmatched.append(recorded)
                continue
            matched.add(identity)
            cell = identities[identity]
            outcomes += self._outcomes(recorded, cell)
            problems.setdefault(cell.source, set()).update(
                problem.id for problem in recorded.problems
            )
        only_in_study = [cell for name, cell in identities.items() if name not in matched]
        self._check(unmatched, only_in_study)
        if not outcomes:
            raise self._nothing_in_common(cells)
        return Matched(outcomes, problems, _left_out(unmatched, only_in_study))

    def _outcomes(self, recorded: BaselineCell, cell: StudyCell) -> Iterator[Outcome]:
        """Yield the attempts at the problems of a study's cell."""
        label = self.label
        model = BaselineModel(label=label, digest=self.content.digest)
        read_cell = RecordedCell(
            task=cell.task,
            size=cell.size,
            model=model,
            memory=cell.memory,
            seed=cell.seed,
            seeds=tuple(recorded.training_seeds),
        )
        labels = Label(task=cell.label.task, base=label, model=label, variant=label)
        for problem in recorded.problems:
            for attempt in problem.attempts:
                details = NO_DETAILS
                if attempt.cost is not None:
                    details = {BILLED_COST: attempt.cost}
                yield Outcome(
                    cell=read_cell,
                    label=labels,
                    problem=problem.id,
                    sample=attempt.sample,
                    ended=attempt.ended,
                    why="",
                    prompt_tokens=attempt.prompt_tokens,
                    thinking_tokens=attempt.thinking_tokens,
                    answer_tokens=attempt.answer_tokens,
                    seconds=attempt.seconds,
                    counted_by=recorded.counted_by,
                    details=details,
                    cached_tokens=attempt.cached_tokens,
                )

    def _check(self, unmatched: Iterable[BaselineCell], cells: Iterable[StudyCell]) -> None:
        """Raise `UserError` if a task of the study differs from that of the baseline."""
        for recorded in unmatched:
            for cell in cells:
                task, memory = _of_cell(cell)
                if task["name"] != recorded.task["name"] or cell.size != recorded.size:
                    continue
                differences = _differences(recorded.task | recorded.memory, task | memory)
                raise UserError(
                    f"its task `{task['name']}` has other problems than the study's: {differences}",
                    where=str(self.path),
                    hint=f"undo that change, or {REWRITE.format(path=self.path)}",
                )

    def _nothing_in_common(self, cells: Sequence[StudyCell]) -> UserError:
        recorded_sizes = [(cell.task["name"], cell.size) for cell in self.content.cells]
        asked_sizes = [(cell.task.plugin_name(), cell.size) for cell in cells]
        return UserError(
            f"this baseline of the study `{self.content.study}` has {_listed(recorded_sizes)}, "
            f"and this study asks {_listed(asked_sizes)}",
            where=str(self.path),
            hint=f"name the study that it was written from, or {REWRITE.format(path=self.path)}",
        )


def _left_out(recorded: Sequence[BaselineCell], cells: Sequence[StudyCell]) -> list[str]:
    """Return a note on what only the baseline has, and one on what only the study asks."""
    notes = []
    if recorded:
        sizes = _listed([(cell.task["name"], cell.size) for cell in recorded])
        notes.append(f"left out: {sizes}, which only the baseline has")
    if cells:
        sizes = _listed([(cell.task.plugin_name(), cell.size) for cell in cells])
        notes.append(f"left out: {sizes}, which the baseline doesn't have")
    return notes


def _listed(sizes: Iterable[tuple[str, int]]) -> str:
    """Return tasks with their sizes: `tents of size 16, 20 and chain_sum of size 4`."""
    by_task: dict[str, list[int]] = {}
    for task, size in sizes:
        by_task.setdefault(task, []).append(size)
    texts = []
    for task, numbers in by_task.items():
        distinct = ", ".join(map(str, sorted(set(numbers))))
        texts.append(f"`{task}` of size {distinct}")
    return " and ".join(texts)


def _of_cell(cell: StudyCell) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the identity of a cell's problems and its memory between turns, as JSON."""
    spec = _plain(cell.spec())
    return spec["task"], spec["memory"]


def _identity(task: Mapping[str, Any], memory: Mapping[str, Any]) -> str:
    return digest(task, memory).hex()


def _plain(value: Any) -> Any:
    """Return a value as JSON represents it: tuples become lists, and so on."""
    return json.loads(json.dumps(value, default=str))


def _differences(recorded: Mapping[str, Any], current: Mapping[str, Any]) -> str:
    """Say which settings of a task differ between the baseline and the study."""
    texts = []
    for key in sorted(recorded.keys() | current.keys()):
        if recorded.get(key) != current.get(key):
            in_baseline = f"{_value(recorded, key)} in the baseline"
            texts.append(f"`{key}` is {in_baseline} and {_value(current, key)} in the study")
    return ", ".join(texts)


def _value(settings: Mapping[str, Any], key: str) -> str:
    if key not in settings:
        return "its default"
    return json.dumps(settings[key], ensure_ascii=False)


def write_baseline(
    path: Path,
    study: str,
    label: str,
    cells: Sequence[StudyCell],
    outcomes: Sequence[Outcome],
) -> None:
    """Write the attempts of a model's cells to a file."""
    by_cell: dict[Cell, list[Outcome]] = {cell: [] for cell in cells}
    for outcome in outcomes:
        by_cell[outcome.cell].append(outcome)
    written_cells = []
    for cell, attempts in by_cell.items():
        if attempts:
            written_cells.append(_written(cell, attempts))
    spec = _plain(cells[0].spec())
    currencies = set[str]().union(*(cell.currencies() for cell in cells))
    content = BaselineFile(
        ponder_baseline=FORMAT,
        ponder=__version__,
        written=datetime.now(UTC).strftime("%Y-%m-%d"),
        study=study,
        label=label,
        model=spec["model"],
        methods=spec["methods"],
        currency=" and ".join(sorted(currencies)),
        digest="",
        cells=written_cells,
    )
    content.digest = _digest(content)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_text(content), "utf-8")


def _written(cell: Cell, outcomes: Sequence[Outcome]) -> BaselineCell:
    spec = _plain(cell.spec())
    problems: dict[str, BaselineProblem] = {}
    for outcome in outcomes:
        cost = outcome.cost if outcome.answered else None
        attempt = BaselineAttempt(
            sample=outcome.sample,
            ended=outcome.ended,
            prompt_tokens=outcome.prompt_tokens,
            cached_tokens=outcome.cached_tokens,
            thinking_tokens=outcome.thinking_tokens,
            answer_tokens=outcome.answer_tokens,
            seconds=_rounded(outcome.seconds),
            cost=None if cost is None else _rounded(cost),
        )
        problem = problems.setdefault(outcome.problem, BaselineProblem(outcome.problem, []))
        problem.attempts.append(attempt)
    return BaselineCell(
        task=spec["task"],
        memory=spec["memory"],
        training_seeds=list(cell.training_seeds),
        counted_by=outcomes[0].counted_by,
        problems=list(problems.values()),
    )


def _rounded(value: float) -> float:
    """Return a number with five significant digits, which keeps the file small."""
    return float(f"{value:.5g}")


def _text(content: BaselineFile) -> str:
    """Return the file as JSON with a line per problem, so that changes to it can be read."""
    table = msgspec.to_builtins(content)
    cells = table.pop("cells")
    lines = ["{"]
    for key, value in table.items():
        lines.append(f" {json.dumps(key)}: {_compact(value)},")
    blocks = []
    for cell in cells:
        problem_lines = [f"   {_compact(problem)}" for problem in cell.pop("problems")]
        problems = ",\n".join(problem_lines)
        opening = _compact(cell).removesuffix("}")
        blocks.append(f'  {opening}, "problems": [\n{problems}\n  ]}}')
    lines += [' "cells": [', ",\n".join(blocks), " ]", "}\n"]
    return "\n".join(lines)


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _digest(content: BaselineFile) -> str:
    """Return a digest of everything in the file but the digest itself."""
    values = msgspec.to_builtins(content)
    del values["digest"]
    return digest(values).hex()


def read_baseline(path: Path) -> Baseline:
    """Read a baseline; raise `UserError` if it isn't one, is damaged, or has a newer version."""
    where = str(path)
    hint = REWRITE.format(path=path)
    try:
        with path.open("rb") as file:
            raw = unpacked(file, where, hint)
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror}", hint=hint) from None
    version = _version(raw)
    if version is None:
        raise UserError("this is not a baseline, or it is damaged", where=where, hint=hint)
    if version > FORMAT:
        raise UserError(
            f"a newer Ponder wrote this baseline (version {version} of the format, "
            f"and this is Ponder {__version__}, which reads version {FORMAT})",
            where=where,
            hint=f"pip install --upgrade ponder-lab, or {hint}",
        )
    content = decode(raw, BaselineFile, where, hint)
    if content.digest != _digest(content):
        raise UserError("it was changed or damaged after it was written", where=where, hint=hint)
    return Baseline(path, content)


def _version(raw: bytes) -> int | None:
    """Return the version of a baseline's format; None if the file is something else."""
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    version = value.get("ponder_baseline") if isinstance(value, dict) else None
    return version if isinstance(version, int) else None
