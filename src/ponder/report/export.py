"""A study's attempts for other programs: CSV, JSONL, Parquet, or a log that Inspect's viewer opens."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from ponder import __version__
from ponder.core import Attempt, Outcome, UserError, digest
from ponder.runner.store import Done, Store
from ponder.runner.study import Study


def write(study: Study, store: Store, form: str, path: Path | None = None) -> tuple[Path, int]:
    """Write the attempts and return the file and how many there are. CSV and Parquet hold no texts."""
    endings = {"inspect": "json"}
    path = path or Path(f"{study.name}.{endings.get(form, form)}")
    writers: dict[str, Callable[[Study, Store, Path], int]] = {
        "csv": _csv, "jsonl": _jsonl, "parquet": _parquet, "inspect": _inspect,
    }  # fmt: skip
    try:
        return path, writers[form](study, store, path)
    except OSError as error:
        raise UserError(f"can't write {path}: {error.strerror}", hint="-o names another file") from None


def _rows(study: Study, store: Store) -> Iterator[dict[str, Any]]:
    for outcome in store.outcomes(study.cells):
        found = {name: json.dumps(dict(getattr(outcome, name))) for name in ("details", "settings")}
        yield outcome._asdict() | found


def _csv(study: Study, store: Store, path: Path) -> int:
    written = 0
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.DictWriter(file, Outcome._fields)
        rows.writeheader()
        for row in _rows(study, store):
            rows.writerow(row)
            written += 1
    return written


def _parquet(study: Study, store: Store, path: Path) -> int:
    try:
        import polars
    except ModuleNotFoundError:
        raise UserError("Parquet needs the package polars", hint="pip install 'ponder[parquet]'") from None
    frame = polars.DataFrame(list(_rows(study, store)))
    frame.write_parquet(path)
    return len(frame)


def _jsonl(study: Study, store: Store, path: Path) -> int:
    """A line a turn, in the form that the model `replay` reads."""
    n = 0
    with path.open("wb") as file:
        for done in _attempts(study, store):
            n += 1
            for turn, said in enumerate(done.attempt.completions):
                attempt, cell = done.attempt, done.cell
                where = {"task": cell.task_label, "model": cell.model_label, "size": cell.size}
                tried = {"problem": attempt.problem.id, "sample": attempt.sample, "turn": turn}
                graded = {"status": attempt.status, "correct": attempt.correct, "why": attempt.why}
                texts = {"prompt": attempt.problem.turns[turn], "thinking": said.thinking, "answer": said.answer}
                line = where | tried | graded | texts | {"stop": said.stop} | msgspec.to_builtins(said.bill)
                file.write(msgspec.json.encode(line) + b"\n")
    return n


def _attempts(study: Study, store: Store) -> Iterator[Done]:
    return (done for cell in study.cells for done in store.attempts(cell))


def _inspect(study: Study, store: Store, path: Path) -> int:
    """Version 2 of Inspect's JSON log. It holds one model a file, so a study of several asks for one."""
    models = {c.model_label for c in study.cells}
    if len(models) > 1:
        raise UserError(
            f"an Inspect log holds one model, and {study.name} has {len(models)}",
            hint="export one: keep one [[model]] in a copy of the study",
        )
    samples = [
        _inspect_sample(done, i) for i, done in enumerate(_attempts(study, store)) if done.attempt.status != "failed"
    ]
    now = datetime.now(UTC).isoformat(timespec="seconds")
    right = sum(s["scores"]["ponder"]["value"] == "C" for s in samples)
    model, task = next(iter(models)), study.cells[0].task_label
    log = {
        "version": 2,
        "status": "success",
        "eval": {
            "eval_id": digest(study.name, now).hex(), "run_id": digest(study.name).hex(), "created": now, "task": task,
            "task_id": study.name, "task_version": study.cells[0].task.version, "task_args": {}, "model": model,
            "model_args": {}, "dataset": {"name": study.name, "samples": len(samples)},
            "config": {"epochs": study.samples}, "packages": {"ponder": __version__},
            "metadata": {"study": study.resolved()},
        },
        "results": {
            "total_samples": len(samples), "completed_samples": len(samples),
            "scores": [{
                "name": "ponder", "scorer": "ponder", "params": {},
                "metrics": {"accuracy": {"name": "accuracy", "value": right / max(1, len(samples)), "params": {}}},
            }],
        },
        "stats": {"started_at": now, "completed_at": now, "model_usage": {}},
        "samples": samples,
    }  # fmt: skip
    path.write_text(json.dumps(log, default=str), "utf-8")
    return len(samples)


def _inspect_sample(done: Done, number: int) -> dict[str, Any]:
    attempt, problem = done.attempt, done.attempt.problem
    last = attempt.completions[-1]
    bill = attempt.bill
    usage = {
        "input_tokens": bill.prompt_tokens, "output_tokens": bill.thinking_tokens + bill.answer_tokens,
        "reasoning_tokens": bill.thinking_tokens, "total_tokens": bill.tokens,
    }  # fmt: skip
    score = {
        "value": "C" if attempt.correct else "I",
        "answer": last.answer,
        "explanation": attempt.why or None,
    }
    choice = {
        "message": {"role": "assistant", "content": _inspect_content(last.thinking, last.answer)},
        "stop_reason": "max_tokens" if last.stop == "length" else "stop",
    }
    return {
        "id": problem.id, "epoch": attempt.sample + 1, "input": problem.turns[0], "target": json.dumps(problem.gold),
        "messages": _inspect_messages(attempt), "scores": {"ponder": score},
        "output": {"model": done.cell.model_label, "choices": [choice], "usage": usage},
        "metadata": {"size": problem.size, "status": attempt.status, "number": number}, "store": {}, "events": [],
        "model_usage": {done.cell.model_label: usage}, "attachments": {},
    }  # fmt: skip


def _inspect_messages(attempt: Attempt) -> list[dict[str, Any]]:
    problem = attempt.problem
    messages = [{"role": m.role, "content": m.content} for m in problem.opening()]
    for asked, said in zip(problem.turns, attempt.completions, strict=False):
        messages.append({"role": "user", "content": asked})
        messages.append({"role": "assistant", "content": _inspect_content(said.thinking, said.answer)})
    return messages


def _inspect_content(thinking: str, answer: str) -> Any:
    if not thinking:
        return answer
    return [{"type": "reasoning", "reasoning": thinking}, {"type": "text", "text": answer}]
