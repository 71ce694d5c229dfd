"""Writes a study's attempts for other programs: CSV, Parquet, JSONL, traces to train on, or a log
for Inspect's viewer.

CSV and Parquet have one row per attempt with every column of `Outcome`, the answer that the task
reads in the reply (`parsed`) and the right one (`gold`), and no texts; each setting that differs
between cells of the study has a column of its own too, such as `task.mode`. JSONL has one line per
turn with its texts, both answers, its details and, if the task judges turns, the turn's own grade;
the model `replay` can answer from it. Traces are what `ponder score`, `ponder prepare reward` and
the method `sft` read, with the problem, so that its task can check steps. An Inspect log has room
for one model, so each model has one.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from ponder import __version__
from ponder.core import (
    Attempt,
    Cell,
    Completion,
    Grade,
    Outcome,
    Records,
    Request,
    Task,
    UserError,
    digest,
)
from ponder.core.capabilities import Conversation, changes_weights, parse_turns, right_answer
from ponder.core.wrapped import codec_name
from ponder.results import html_pages
from ponder.results.study import Study
from ponder.results.transcript import Transcript
from ponder.store.store import Done, Store
from ponder.study.cell import StudyCell
from ponder.study.labels import differing, flattened
from ponder.traces import Trace, trace_of

if TYPE_CHECKING:
    from ponder.results.results import Results

# of files that aren't called after their format
ENDINGS = {"inspect": "json", "traces": "traces.jsonl"}
# The columns of CSV and Parquet, with their types.
COLUMNS: dict[str, type] = {
    "task": str,
    "model": str,
    "size": int,
    "problem": str,
    "sample": int,
    "ended": str,
    "correct": bool,
    "why": str,
    "prompt_tokens": int,
    "thinking_tokens": int,
    "answer_tokens": int,
    "seconds": float,
    "counted_by": str,
    "details": str,
    "attempt": int,
    "base": str,
    "methods": str,
    "variant": str,
    "seeds": str,
    "made": str,
    "cached_tokens": int,
    "unit": str,
    "task_settings": str,
    "model_settings": str,
    "cost": float,
    "currency": str,
}
ANSWERS = ("parsed", "gold")  # and those that are read from the texts
STDOUT = Path("-")  # for formats of one text file
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")  # of texts that a spreadsheet would run
BATCH = 1000  # rows of a Parquet file that are in memory together


def write(results: Results, form: str, path: Path | None = None) -> tuple[list[Path], int]:
    """Write the attempts and return the files and the number of attempts.

    The path `-` is standard output.
    """
    with Store(results.store) as store:
        if not any(True for _ in store.outcomes(results.study.cells)):
            raise results.no_answers()
        return write_attempts(results.study, store, form, path)


def write_attempts(
    study: Study, store: Store, form: str, path: Path | None
) -> tuple[list[Path], int]:
    """Write the attempts of an open store."""
    path = path or Path(f"{study.name}.{ENDINGS.get(form, form)}")
    try:
        if form == "inspect":
            return _inspect(study, store, path)
        writers: dict[str, Callable[[Study, Store, Path], int]]
        writers = {"csv": _csv, "jsonl": _jsonl, "parquet": _parquet, "traces": _traces}
        return [path], writers[form](study, store, path)
    except BrokenPipeError:  # the reader of standard output has enough
        raise
    except OSError as error:
        raise UserError(
            f"can't write {path}: {error.strerror}", hint="name another file with -o"
        ) from None


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    if path == STDOUT:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    else:
        with path.open("wb") as file:
            yield file


def rows(study: Study, store: Store, columns: Mapping[str, type]) -> Iterator[dict[str, Any]]:
    """Yield outcomes with plain values: a table or a list becomes JSON.

    `columns` are further ones, for settings.
    """
    for cell in study.cells:
        of_cell: dict[str, Any] = {}
        for outcome in store.outcomes([cell]):
            if not of_cell:
                of_cell = {name: _json(value) for name, value in _settings(outcome.cell).items()}
                settings = flattened(outcome.cell.settings)
                for name, kind in columns.items():
                    of_cell[name] = _as(kind, settings.get(name))
            stored = store.attempt(outcome.attempt)
            answers = _answers(cell, stored.attempt) if stored else dict.fromkeys(ANSWERS)
            yield _plain_row(outcome) | answers | of_cell


def _plain_row(outcome: Outcome) -> dict[str, Any]:
    """Return the columns of an attempt that are no settings."""
    label = outcome.label
    of_cell: dict[str, Any] = {
        "task": label.task,
        "model": label.model,
        "base": label.base,
        "variant": label.variant,
    }
    of_cell |= {
        "size": outcome.size,
        "unit": outcome.cell.task.unit,
        "seeds": _json(outcome.cell.training_seeds),
    }
    of_attempt = {name: getattr(outcome, name) for name in COLUMNS if hasattr(outcome, name)}
    of_attempt |= {"details": _json(outcome.details), "made": _json(outcome.made)}
    of_attempt["currency"] = ""
    if of_attempt["cost"] is not None:
        of_attempt["currency"] = " and ".join(sorted(outcome.cell.currencies()))
    return of_attempt | of_cell


def _answers(cell: StudyCell, attempt: Attempt) -> dict[str, str | None]:
    """Return the answer that the task reads in a reply and the right one, as text or JSON."""
    transcript = Transcript(cell, attempt)
    return {"parsed": transcript.parsed, "gold": transcript.gold}


def _settings(cell: Cell) -> dict[str, Any]:
    """Return the settings of a task, a model and its methods, as the columns that hold them all."""
    methods = [{"name": use.name, "settings": dict(use.settings)} for use in cell.chain]
    return {
        "methods": methods,
        "task_settings": dict(cell.task_settings),
        "model_settings": dict(cell.model_settings),
    }


def setting_columns(cells: Sequence[StudyCell]) -> dict[str, type]:
    """Return a column for each setting that differs between cells, with its type."""
    columns: dict[str, type] = {}
    for name, values in differing(cell.settings for cell in cells).items():
        kinds = {type(value) for value in values if value is not None}
        if kinds in ({bool}, {int}, {float}):
            columns[name] = kinds.pop()
        elif kinds == {int, float}:
            columns[name] = float
        else:
            columns[name] = str
    return columns


def _as(kind: type, value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    if kind is str:
        return _json(value)
    return kind(value)


def _json(value: Any) -> str:
    return json.dumps(value, default=_plain)


def _plain(value: Any) -> Any:
    """Convert what JSON doesn't know: read-only tables, and settings such as paths."""
    if isinstance(value, Mapping):
        return dict(value)
    return str(value)


def _csv(study: Study, store: Store, path: Path) -> int:
    written = 0
    columns = setting_columns(study.cells)
    with _opened(path) as file:
        table = csv.DictWriter(codecs.getwriter("utf-8")(file), (*COLUMNS, *ANSWERS, *columns))
        table.writeheader()
        for row in rows(study, store, columns):
            table.writerow(inert(row))
            written += 1
    return written


def csv_text(records: Records) -> str:
    """Return a table of a figure as the text of a CSV file."""
    text = io.StringIO()
    rows = csv.DictWriter(
        text, html_pages.columns(records), extrasaction="ignore", lineterminator="\n"
    )
    rows.writeheader()
    rows.writerows(map(inert, records))
    return text.getvalue()


def inert(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of a CSV file whose texts no spreadsheet runs.

    Texts that look like formulas get an apostrophe; numbers written as text stay as they are.
    """
    safe = {}
    for name, value in row.items():
        safe[name] = f"'{value}" if _is_formula(value) else value
    return safe


def _is_formula(value: Any) -> bool:
    if not (isinstance(value, str) and value.startswith(FORMULA_STARTS)):
        return False
    try:
        float(value)
    except ValueError:
        return True
    return False


def _parquet(study: Study, store: Store, path: Path) -> int:
    try:
        import polars
    except ModuleNotFoundError:
        raise UserError(
            "Parquet needs the package polars", hint="pip install 'ponder-lab[parquet]'"
        ) from None
    from polars.io.plugins import register_io_source

    kinds = {int: polars.Int64, float: polars.Float64, bool: polars.Boolean}
    columns = setting_columns(study.cells)
    types = COLUMNS | dict.fromkeys(ANSWERS, str) | columns
    schema = {name: kinds.get(kind, polars.String) for name, kind in types.items()}
    remaining_rows = rows(study, store, columns)
    written = 0
    failed = list[UserError]()

    def frames(*_: Any) -> Iterator[polars.DataFrame]:
        nonlocal written
        try:
            while batch := list(islice(remaining_rows, BATCH)):
                written += len(batch)
                yield polars.DataFrame(batch, schema)
        except UserError as error:  # polars would wrap it
            failed.append(error)

    register_io_source(frames, schema=schema).sink_parquet(path, row_group_size=BATCH)
    if failed:
        raise failed[0]
    return written


def _jsonl(study: Study, store: Store, path: Path) -> int:
    """Write one line per turn, in the form that the model `replay` reads."""
    attempts = 0
    with _opened(path) as file:
        for cell in study.cells:
            of_cell: dict[str, Any] = {
                "task": cell.label.task,
                "model": cell.label.model,
                "size": cell.size,
            }
            of_cell |= _encoded(cell)
            for done in store.attempts(cell):
                attempts += 1
                for turn in _turns(cell.task, done.attempt):
                    file.write(msgspec.json.encode(of_cell | turn) + b"\n")
    return attempts


def _traces(study: Study, store: Store, path: Path) -> int:
    """Write one line per reply that has a text: question, thinking, answer and facts about them."""
    for cell in study.cells:
        first = next(iter(store.attempts(cell)), None)
        if first and len(first.attempt.problem.turns) > 1:
            message = f"{cell.label.task} is asked in several turns"
            hint = "--format jsonl has a line per turn"
            raise UserError(f"{message}, and a trace is one question with its answer", hint=hint)
    written = 0
    with _opened(path) as file:
        for done in _attempts(study.cells, store):
            if done.attempt.ended == "failed":
                continue
            trace = _trace(done.cell, done.attempt)
            if trace.thinking or trace.answer:
                record = trace.record() | {"stop": done.attempt.completions[0].stop}
                file.write(msgspec.json.encode(record) + b"\n")
                written += 1
    return written


def _trace(cell: StudyCell, attempt: Attempt) -> Trace:
    reply = attempt.completions[0]
    facts = {"teacher": cell.label.model, "correct": attempt.correct, "gold": attempt.problem.gold}
    if all(map(changes_weights, cell.methods)):  # else the bill may be that of several replies
        facts["tokens"] = reply.bill.thinking_tokens + reply.bill.answer_tokens
    request = Request.first_turn(cell.task, attempt.problem)
    codec = codec_name(cell.model, cell.task)
    return trace_of(request, reply.thinking, reply.answer, codec, **facts)


def _turns(task: Task, attempt: Attempt) -> Iterator[dict[str, Any]]:
    """Yield the lines of an attempt, one per turn.

    If the task judges turns, a line has the turn's own grade, and as details what the model
    measured in it; else it has those of the attempt, as in CSV.
    """
    problem = attempt.problem
    answers = [reply.answer for reply in attempt.completions]
    grades: Sequence[Grade] = ()
    if isinstance(task, Conversation):
        grades = task.turn_grades(problem, answers)
    for turn, reply in enumerate(attempt.completions):
        line: dict[str, Any] = {"problem": problem.id, "sample": attempt.sample, "turn": turn}
        line |= {"ended": attempt.ended, "correct": attempt.correct, "why": attempt.why}
        if not grades:
            line["parsed"] = parse_turns(task, problem, answers)
        line["gold"] = right_answer(task, problem)
        if grades:
            line |= _graded(grades[turn])
            line["attempt_correct"] = attempt.correct
        line["prompt"] = problem.turns[turn]
        line["thinking"] = reply.thinking
        line["answer"] = reply.answer
        line["stop"] = reply.stop
        line |= msgspec.to_builtins(reply.bill)
        if reply.judgement and reply.judgement.judge:
            line["judge_right"] = reply.judgement.right
            line["judge_text"] = reply.judgement.text
        line["details"] = dict(reply.measures if grades else attempt.details)
        yield line


def _graded(grade: Grade) -> dict[str, Any]:
    return {"correct": grade.correct, "why": grade.why, "parsed": grade.parsed, **grade.details}


def _encoded(cell: StudyCell) -> dict[str, msgspec.Raw]:
    columns = _settings(cell).items()
    return {
        name: msgspec.Raw(msgspec.json.encode(value, enc_hook=_plain)) for name, value in columns
    }


def _attempts(cells: Iterable[StudyCell], store: Store) -> Iterator[Done]:
    return (done for cell in cells for done in store.attempts(cell))


def _inspect(study: Study, store: Store, path: Path) -> tuple[list[Path], int]:
    """Write one log for each model that has answers; return the files and the number of answers."""
    models: dict[bytes, list[StudyCell]] = {}
    for cell in study.cells:
        models.setdefault(cell.model_key, []).append(cell)
    paths = [path]
    if len(models) > 1:
        paths = _file_names(path, [cells[0].label.model for cells in models.values()])
    written = []
    answers = 0
    with store.snapshot():
        for file, cells in zip(paths, models.values(), strict=True):
            if len(models) == 1 or any(outcome.answered for outcome in store.outcomes(cells)):
                answers += _inspect_log(study, cells, store, file)
                written.append(file)
    return written, answers


def _file_names(path: Path, labels: Sequence[str]) -> list[Path]:
    """Return a path for the file of each label, with characters that every file system takes."""
    names: dict[str, Path] = {}
    for label in labels:
        safe = safe_name(label)
        name = f"{path.stem}-{safe}"
        number = 1
        while name.casefold() in names:
            number += 1
            name = f"{path.stem}-{safe}-{number}"
        names[name.casefold()] = path.with_name(f"{name}{path.suffix}")
    return list(names.values())


def safe_name(label: str) -> str:
    """Return a label as part of a file's name."""
    return re.sub(r"[^\w.=+-]+", "-", label).strip("-.")[:100] or "unnamed"


def _inspect_log(study: Study, cells: list[StudyCell], store: Store, path: Path) -> int:
    """Write version 2 of Inspect's JSON log, without failed attempts; return the answers."""
    with path.open("w", encoding="utf-8") as file:
        answers = [o for o in store.outcomes(cells) if o.answered]
        file.write(
            f'{json.dumps(_inspect_head(study, cells, answers), default=str)[:-1]}, "samples": ['
        )
        separator = ""
        for done in _attempts(cells, store):
            if done.attempt.ended != "failed":
                file.write(separator + json.dumps(_inspect_sample(done), default=str))
                separator = ",\n"
        file.write("]}")
    return len(answers)


def _inspect_head(
    study: Study, cells: list[StudyCell], answers: Sequence[Outcome]
) -> dict[str, Any]:
    written_at = datetime.now(UTC).isoformat(timespec="seconds")
    model = cells[0].label.model
    samples = len(answers)
    right = sum(outcome.correct for outcome in answers)
    tokens = [(o.prompt_tokens, o.thinking_tokens, o.answer_tokens) for o in answers]
    usage = (
        _usage(*(sum(column) for column in zip(*tokens, strict=True)))
        if tokens
        else _usage(0, 0, 0)
    )
    accuracy = {"name": "accuracy", "value": right / max(1, samples), "params": {}}
    scores = [
        {"name": "ponder", "scorer": "ponder", "params": {}, "metrics": {"accuracy": accuracy}}
    ]
    return {
        "version": 2,
        "status": "success",
        "eval": {
            "eval_id": digest(study.name, model, written_at).hex(), "run_id": digest(study.name).hex(), "created": written_at,
            "task": cells[0].label.task, "task_id": study.name, "task_version": cells[0].task.version,
            "task_args": _task_args(cells), "model": model, "model_args": dict(cells[0].model_settings),
            "dataset": {"name": study.name, "samples": samples}, "config": {"epochs": study.samples},
            "packages": {"ponder": __version__},
            "metadata": {"study": study.resolved(), "methods": [use._asdict() for use in cells[0].chain]},
        },
        "results": {"total_samples": samples, "completed_samples": samples, "scores": scores},
        "stats": {"started_at": written_at, "completed_at": written_at, "model_usage": {model: usage}},
    }  # fmt: skip


def _inspect_sample(done: Done) -> dict[str, Any]:
    attempt = done.attempt
    problem = attempt.problem
    last = attempt.completions[-1]
    bill = attempt.bill
    usage = _usage(bill.prompt_tokens, bill.thinking_tokens, bill.answer_tokens)
    score = {
        "value": "C" if attempt.correct else "I",
        "answer": _answers(done.cell, attempt)["parsed"],
        "explanation": attempt.why or None,
    }
    choice = {
        "message": {"role": "assistant", "content": _inspect_content(last)},
        "stop_reason": "max_tokens" if last.stop == "length" else "stop",
    }
    return {
        "id": problem.id, "epoch": attempt.sample + 1, "input": problem.turns[0], "target": json.dumps(problem.gold),
        "messages": _inspect_messages(attempt), "scores": {"ponder": score},
        "output": {"model": done.cell.label.model, "choices": [choice], "usage": usage},
        "metadata": {
            "size": problem.size, "ended": attempt.ended, "task": done.cell.label.task,
            "task_settings": dict(done.cell.task_settings),
        },
        "store": {}, "events": [],
        "model_usage": {done.cell.label.model: usage}, "attachments": {},
    }  # fmt: skip


def _task_args(cells: Sequence[StudyCell]) -> dict[str, Any]:
    """Return the settings of the task, or of several by their labels."""
    by_task = {cell.label.task: dict(cell.task_settings) for cell in cells}
    return by_task if len(by_task) > 1 else next(iter(by_task.values()))


def _usage(prompt: int, thinking: int, answer: int) -> dict[str, int]:
    return {
        "input_tokens": prompt, "output_tokens": thinking + answer,
        "reasoning_tokens": thinking, "total_tokens": prompt + thinking + answer,
    }  # fmt: skip


def _inspect_messages(attempt: Attempt) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [
        {"role": m.role, "content": m.content} for m in attempt.problem.opening()
    ]
    for question, reply in zip(attempt.problem.turns, attempt.completions, strict=False):
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "content": _inspect_content(reply)})
    return messages


def _inspect_content(reply: Completion) -> Any:
    if not reply.thinking:
        return reply.answer
    return [
        {"type": "reasoning", "reasoning": reply.thinking},
        {"type": "text", "text": reply.answer},
    ]
