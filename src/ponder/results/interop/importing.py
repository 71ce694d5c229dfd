"""Makes a study from logs of other evaluation programs, and puts their attempts into a store.

The study has one task for each task of the logs, and one model for each model and way of asking it.
Its keys hold the problems, the scorer and the log's own ids of the runs: importing a log again
changes nothing, and another run of the same evaluation gives more samples, never the same ones
twice. A retry of a run replaces what had failed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from ponder.core import Attempt, Ended, Problem, UserError, plugins
from ponder.core.jsonl import NESTED
from ponder.core.settings import toml
from ponder.core.text import count, visible
from ponder.results.export import safe_name
from ponder.results.interop import inspect_log, lm_eval
from ponder.results.interop.eval_logs import DAMAGED, Log, Sample, Score
from ponder.results.study import Study
from ponder.store.store import Done, Store
from ponder.study.cell import StudyCell
from ponder.study.labels import cells_called

MARK = "# Written by `ponder import`"  # so that only its own files are written over
BATCH = 500  # attempts that are in memory together
MOST_PROBLEMS = 256 << 20  # bytes of all problems of an import, which are in memory together


@dataclass
class Imported:
    """What an import has read and stored."""

    study: Path
    logs: int
    scorers: dict[str, str] = field(default_factory=dict)  # by task
    # the scorers that were not taken, by task
    others: dict[str, list[str]] = field(default_factory=dict)
    endings: Counter[str] = field(default_factory=Counter)
    new: int = 0
    partial: int = 0  # scores between wrong and right
    reworded: int = 0  # problems that logs ask in different words
    metadata: list[str] = field(default_factory=list)  # keys that could be the size

    def notes(self) -> Iterator[str]:
        """What the user should know."""
        for task, scorer in self.scorers.items():
            others = ", ".join(self.others[task])
            yield f"{task}: right and wrong by `{scorer}`" + (
                f"; --scorer takes another: {others}" if others else ""
            )
        if self.partial:
            yield f"{count(self.partial, 'score')} between wrong and right count as wrong; --right says from where on"
        if self.endings["failed"]:
            yield f"{count(self.endings['failed'], 'attempt')} without a score: left out, not counted as wrong"
        if self.reworded:
            yield f"{count(self.reworded, 'problem')} asked in different words by different logs: one wording is kept"
        if self.metadata:
            yield f"all problems have one size; --size KEY takes it from the log: {', '.join(self.metadata)}"


@dataclass
class _Survey:
    """What a first reading of a log finds, so that a second one can store its attempts one by one."""

    log: Log
    problems: dict[str, Problem] = field(default_factory=dict)
    problem_bytes: int = 0
    epochs: int = 0
    scorers: dict[str, None] = field(default_factory=dict)  # that have scored something
    # the scorers that say which answer they read
    tell_answers: set[str] = field(default_factory=set)
    scored: set[tuple[str, str, int]] = field(default_factory=set)  # scorer, problem, epoch

    @classmethod
    def of(cls, log: Log, size: str) -> _Survey:
        survey = cls(log)
        for sample in log.samples(size):
            survey.keep(sample.problem)
            survey.epochs = max(survey.epochs, sample.epoch + 1)
            for name, score in sample.scores.items():
                survey.scorers[name] = None
                survey.tell_answers |= {name} if score.answer else set()
                if score.value is not None and not sample.error:
                    survey.scored.add((name, sample.problem.id, sample.epoch))
        return survey

    def keep(self, problem: Problem) -> None:
        """Keep a problem; raise `UserError` if all of them take too much memory."""
        if problem.id not in self.problems:
            self.problem_bytes += len(_encoded(problem, self.log.path))
            if self.problem_bytes > MOST_PROBLEMS:
                what = f"its problems take more than {MOST_PROBLEMS >> 20} MB"
                raise UserError(
                    what, where=str(self.log.path), hint="import a part of the log, or leave it out"
                )
        self.problems[problem.id] = problem


@dataclass
class _Model:
    """One model, asked in one way."""

    name: str
    settings: dict[str, Any]
    surveys: list[_Survey] = field(default_factory=list)

    def of(self, task: str) -> dict[str, list[_Survey]]:
        """Its logs of a task by their run: a run, and its retries."""
        runs: dict[str, list[_Survey]] = {}
        for survey in self.surveys:
            if survey.log.task == task:
                runs.setdefault(survey.log.run, []).append(survey)
        return runs

    def samples(self, task: str) -> int:
        """The most samples that a problem of the task has."""
        return sum(max(survey.epochs for survey in run) for run in self.of(task).values())


@dataclass(frozen=True)
class Judge:
    """What makes an attempt right."""

    scorer: str
    right: float | None  # the lowest score; None: 1, and none may be higher


def import_logs(
    paths: Sequence[Path],
    store: Path,
    out: Path | None = None,
    scorer: str = "",
    right: float | None = None,
    size: str = "",
) -> Imported:
    """Read logs, write their study and problems, and store their attempts."""
    logs = sorted(
        (read(path) for path in _files(paths)), key=lambda log: (log.created, str(log.path))
    )
    names = list(dict.fromkeys(log.task for log in logs))
    out = out or Path(f"{safe_name(names[0]) if len(names) == 1 else 'imported'}.toml")
    _check_place(out)
    result = Imported(out, len(logs))
    surveys = [_surveyed(log, size) for log in logs]
    tasks = {name: [survey for survey in surveys if survey.log.task == name] for name in names}
    judges = {task: Judge(_scorer(mine, scorer, result), right) for task, mine in tasks.items()}
    problems = {task: _problems(mine, result) for task, mine in tasks.items()}
    if not size:
        known = (p.facts.items() for mine in problems.values() for p in mine)
        result.metadata = list(
            dict.fromkeys(key for facts in known for key, value in facts if type(value) is int)
        )
    models = _models(surveys)
    files = {task: out.with_name(f"{out.stem}-{safe_name(task)}.jsonl") for task in tasks}
    for task, file in files.items():
        file.write_bytes(b"".join(_encoded(problem, file) for problem in problems[task]))
    out.write_text(_study(files, judges, models, problems), "utf-8")
    study = Study.load(str(out))
    with Store(store, lock=True) as opened:
        opened.record_study(study)
        for task, judge in judges.items():
            cells = [cell for cell in study.cells if cell.task.title() == task]
            for label, model in models.items():
                mine = {cell.size: cell for cell in cells_called(cells, "model", label)}
                _store(opened, mine, _attempts(model, task, judge, size, result), result)
    return result


def _surveyed(log: Log, size: str) -> _Survey:
    try:
        return _Survey.of(log, size)
    except RecursionError:
        raise UserError(NESTED, where=str(log.path), hint=DAMAGED) from None


def _encoded(problem: Problem, file: Path) -> bytes:
    try:
        return msgspec.json.encode(problem, enc_hook=str) + b"\n"
    except (RecursionError, UnicodeEncodeError) as error:  # the latter: half a surrogate pair
        what = f"problem {problem.id!r:.80} can't be written: {error}"
        raise UserError(
            what, where=str(file), hint="correct it in the log, or leave the log out"
        ) from None


def read(path: Path) -> Log:
    """Open a log of any program that is known."""
    if path.suffix in (".eval", ".json"):
        return inspect_log.read(path)
    if path.suffix == ".jsonl":
        return lm_eval.read(path)
    hint = "logs of Inspect end in .eval or .json, samples of lm-eval in .jsonl"
    raise UserError("this is not a log that can be imported", where=str(path), hint=hint)


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    """The logs that are named, and those in folders that are named."""
    for path in paths:
        if path.is_dir():
            inside = sorted(
                p for p in path.rglob("*") if p.suffix == ".eval" or p.match("samples_*.jsonl")
            )
            if not inside:
                hint = (
                    "a folder is searched for .eval files of Inspect and samples_*.jsonl of lm-eval"
                )
                raise UserError("there is no log in this folder", where=str(path), hint=hint)
            yield from inside
        elif path.is_file():
            yield path
        else:
            raise UserError(f"there is no file {path}")


def _check_place(out: Path) -> None:
    if out.suffix != ".toml":
        raise UserError(f"{out} must end in .toml: it will be a study", hint=f"-o {out.stem}.toml")
    if out.exists() and not out.read_text("utf-8", "replace").startswith(MARK):
        raise UserError(
            f"{out} wasn't written by an import, so it stays",
            hint="-o NAME.toml names another file",
        )


def _scorer(surveys: Sequence[_Survey], wanted: str, result: Imported) -> str:
    """The scorer that is asked for, or the headline one of the task's first log."""
    log, known = (
        surveys[0].log,
        list(dict.fromkeys(name for survey in surveys for name in survey.scorers)),
    )
    if not known:
        raise UserError(
            "nothing in this log is scored",
            where=str(log.path),
            hint="inspect score LOG adds scores",
        )
    if wanted and wanted not in known:
        raise UserError(
            f"no log of {log.task} has a scorer `{wanted}`", hint=plugins.nearest(wanted, known)
        )
    headline = next((name for name in log.scorers if name in known), known[0])
    result.scorers[log.task] = wanted or headline
    result.others[log.task] = [name for name in known if name != result.scorers[log.task]]
    return result.scorers[log.task]


def _problems(surveys: Sequence[_Survey], result: Imported) -> list[Problem]:
    """The problems of a task, each once."""
    problems: dict[str, Problem] = {}
    for survey in surveys:
        for problem in survey.problems.values():
            known = problems.setdefault(problem.id, problem)
            if (known.gold, known.size) != (problem.gold, problem.size):
                what = f"problem {problem.id} of {survey.log.task} has another target or size than in an earlier log"
                hint = "import logs of different data sets one by one, each with its own -o"
                raise UserError(what, where=str(survey.log.path), hint=hint)
            result.reworded += known.turns != problem.turns
    return sorted(
        problems.values(), key=lambda p: (p.size, int(p.id) if p.id.isdecimal() else 2**62, p.id)
    )


def _models(surveys: Iterable[_Survey]) -> dict[str, _Model]:
    """The models by their labels.

    A label has the settings that tell two ways of asking one model apart.
    """
    groups: dict[str, _Model] = {}
    for survey in surveys:
        name, settings = survey.log.model, _plain(survey.log.settings)
        key = json.dumps([name, settings], sort_keys=True, default=str)
        groups.setdefault(key, _Model(name, settings)).surveys.append(survey)
    models: dict[str, _Model] = {}
    for model in groups.values():
        alike = [other.settings for other in groups.values() if other.name == model.name]
        keys = dict.fromkeys(key for settings in alike for key in settings)
        differing = [key for key in keys if any(one.get(key) != alike[0].get(key) for one in alike)]
        shown = [f"{key}={model.settings[key]}" for key in differing if key in model.settings]
        models[visible(" ".join([model.name, *shown]))] = model
    return models


def _plain(value: Any) -> Any:
    """A value without nulls, which TOML doesn't have."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items() if inner is not None}
    return (
        [_plain(inner) for inner in value if inner is not None]
        if isinstance(value, list)
        else value
    )


def _study(
    files: Mapping[str, Path],
    judges: Mapping[str, Judge],
    models: Mapping[str, _Model],
    problems: Mapping[str, Sequence[Problem]],
) -> str:
    """The study file."""
    samples = {label: max(model.samples(task) for task in files) for label, model in models.items()}
    lines = [
        f"{MARK}: its attempts are in the store. Title and figures may be changed.",
        f"title = {toml(' and '.join(files) + ', imported')}",
    ]
    for task, file in files.items():
        judge = judges[task]
        about = {"name": "imported", "file": file.name, "task": task, "scorer": judge.scorer}
        lines += _table("task", about | ({} if judge.right is None else {"right": judge.right}))
    for label, model in models.items():
        runs = list(dict.fromkeys(survey.log.run for survey in model.surveys))
        table: dict[str, Any] = {
            "name": "imported",
            "id": model.name,
            "label": label,
            "samples": samples[label],
        }
        lines += _table(
            "model",
            table | ({"settings": model.settings} if model.settings else {}) | {"runs": runs},
        )
    sizes = {problem.size for mine in problems.values() for problem in mine}
    figures = {"accuracy": True, "effort": len(sizes) > 2, "frontier": len(models) > 1}
    figures |= {"samples": max(samples.values()) > 1, "budget": True}
    for figure in (name for name, drawn in figures.items() if drawn):
        lines += _table("figure", {"name": figure})
    return "\n".join(lines) + "\n"


def _table(kind: str, table: Mapping[str, Any]) -> list[str]:
    return ["", f"[[{kind}]]", *(f"{key} = {toml(value)}" for key, value in table.items())]


def _store(
    store: Store, cells: Mapping[int, StudyCell], attempts: Iterator[Attempt], result: Imported
) -> None:
    """Store attempts, each in the cell of its size."""
    places = {size: {p.id: i for i, p in enumerate(cell.asked())} for size, cell in cells.items()}
    there, before = {size: store.done(cell) for size, cell in cells.items()}, _stored(store, cells)
    batch: list[Done] = []
    for attempt in attempts:
        size = attempt.problem.size
        position = places[size][attempt.problem.id]
        if attempt.ended == "failed" and (position, attempt.sample) in there[size]:
            continue  # a retry that was imported before has its answer
        result.endings[attempt.ended] += 1
        batch.append(Done(cells[size], position, attempt))
        if len(batch) >= BATCH:
            store.add(batch)
            batch.clear()
    store.add(batch)
    result.new += _stored(store, cells) - before


def _stored(store: Store, cells: Mapping[int, StudyCell]) -> int:
    """How many attempts the store has, failed ones too."""
    return sum(tried for cell in cells.values() for _, _, tried, _ in store.results(cell).values())


def _attempts(
    model: _Model, task: str, judge: Judge, size: str, result: Imported
) -> Iterator[Attempt]:
    """The samples of a model at a task as attempts.

    Of a run and its retries, the last sample with a score wins.
    """
    first = 0  # number of the run's first sample
    for run in model.of(task).values():
        scored = {
            (problem, epoch)
            for survey in run
            for name, problem, epoch in survey.scored
            if name == judge.scorer
        }
        tell_answers = any(judge.scorer in survey.tell_answers for survey in run)
        given = set[tuple[str, int]]()
        for log in (survey.log for survey in reversed(run)):
            for sample in log.samples(size):
                attempt = _attempt(sample, first + sample.epoch, judge, tell_answers, log.path)
                key = (sample.problem.id, sample.epoch)
                if key not in given and (attempt.ended != "failed" or key not in scored):
                    given.add(key)
                    result.partial += attempt.details.get("score", 0.0) > 0 and not attempt.correct
                    yield attempt
        first += max(survey.epochs for survey in run)


def _attempt(sample: Sample, number: int, judge: Judge, tell_answers: bool, path: Path) -> Attempt:
    """How a sample ended. The log's scorer says what is right, also of a reply that was cut."""
    score = sample.scores.get(judge.scorer, Score(None, why=f"{judge.scorer} gave no score"))
    if sample.error or score.value is None:
        why = sample.error or f"not scored: {score.why}"
        return Attempt(sample.problem, number, "failed", visible(why)[:200], (sample.completion,))
    if judge.right is None and score.value > 1:
        what = f"`{judge.scorer}` gives scores above 1, such as {score.value:g}"
        raise UserError(
            what, where=str(path), hint="--right N says from which score on an attempt is right"
        )
    ended: Ended
    if score.value >= (1 if judge.right is None else judge.right):
        ended, why = "right", ""
    elif sample.limit:
        ended, why = "truncated", f"{sample.limit} limit"
    elif tell_answers and not score.answer:
        ended, why = "unparsed", "no answer"
    else:
        ended, why = "wrong", "wrong answer"
    return Attempt(sample.problem, number, ended, why, (sample.completion,), {"score": score.value})
