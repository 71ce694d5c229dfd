"""Makes a study from logs of other evaluation programs or of production, and puts their attempts
into a store.

The study has one task for each task of the logs, and one model for each model and way of asking it.
Its keys hold the problems, the scorer and the log's own ids of the runs: importing a log again
changes nothing, and another run of the same evaluation gives more samples, never the same ones
twice. A retry of a run replaces what had failed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ponder.core import Attempt, Ended, Problem, UserError, plugins
from ponder.core.jsonl import NESTED
from ponder.core.settings import toml
from ponder.core.text import count, visible
from ponder.results.export import safe_name
from ponder.results.interop import inspect_log, lm_eval
from ponder.results.interop.eval_logs import DAMAGED, Log, Sample, Score
from ponder.results.interop.request_log import Answers, RequestLogs, is_request_log
from ponder.results.study import Study
from ponder.store.store import Done, Store
from ponder.study.cell import StudyCell
from ponder.study.labels import cells_called
from ponder.study.prices import find_prices, price_lines

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
    # the distinct requests of a production log, for the task `jsonl`
    requests: Path | None = None
    requests_kept: bool = False  # whether that file stays as it was, with answers added by hand
    prices: list[str] = field(default_factory=list)
    log_notes: list[str] = field(default_factory=list)  # about a production log

    def notes(self) -> Iterator[str]:
        """Yield what the user should know, as sentences."""
        for task, scorer in self.scorers.items():
            note = f"{task}: right and wrong by `{scorer}`"
            if self.others[task]:
                note += f"; --scorer takes another: {', '.join(self.others[task])}"
            yield note
        if self.partial:
            scores = count(self.partial, "score")
            yield f"{scores} between wrong and right count as wrong; --right says from where on"
        if self.endings["failed"]:
            failed = count(self.endings["failed"], "attempt")
            yield f"{failed} without a reply or a score: left out, not counted as wrong"
        if self.reworded:
            problems = count(self.reworded, "problem")
            yield f"{problems} asked in different words by different logs: one wording is kept"
        if self.metadata:
            keys = ", ".join(self.metadata)
            yield f"all problems have one size; --size KEY takes it from the log: {keys}"
        for line in self.prices:
            yield f"prices: {line}"
        yield from self.log_notes
        if self.requests_kept:
            yield f"{self.requests} stays as it was: it has answers that this import doesn't"
        elif self.requests:
            yield f"{self.requests} asks the same requests again: task `jsonl`, `file`"


@dataclass
class _Survey:
    """What a first reading of a log finds; a second reading stores its attempts."""

    log: Log
    problems: dict[str, Problem] = field(default_factory=dict)
    problem_bytes: int = 0
    epochs: int = 0
    timed: bool = False  # whether it has the seconds of replies
    scorers: dict[str, None] = field(default_factory=dict)  # that have scored something
    # the scorers that say which answer they read
    tell_answers: set[str] = field(default_factory=set)
    scored: set[tuple[str, str, int]] = field(default_factory=set)  # scorer, problem, epoch

    @classmethod
    def of(cls, log: Log, size: str) -> _Survey:
        survey = cls(log, tell_answers=set(log.tell_answers))
        for sample in log.samples(size):
            survey.keep(sample.problem)
            survey.epochs = max(survey.epochs, sample.epoch + 1)
            survey.timed = survey.timed or sample.completion.bill.seconds > 0
            for name, score in sample.scores.items():
                survey.scorers[name] = None
                if score.answer:
                    survey.tell_answers.add(name)
                if score.value is not None and not sample.error:
                    survey.scored.add((name, sample.problem.id, sample.epoch))
        return survey

    def keep(self, problem: Problem) -> None:
        """Keep a problem; raise `UserError` if all of them take too much memory."""
        if problem.id not in self.problems:
            self.problem_bytes += len(_encoded(problem, self.log.path))
            if self.problem_bytes > MOST_PROBLEMS:
                message = f"its problems take more than {MOST_PROBLEMS >> 20} MB"
                raise UserError(
                    message,
                    where=str(self.log.path),
                    hint="import a part of the log, or leave it out",
                )
        self.problems[problem.id] = problem


@dataclass
class _Model:
    """One model, asked in one way."""

    name: str
    settings: dict[str, Any]
    surveys: list[_Survey] = field(default_factory=list)

    def of(self, task: str) -> dict[str, list[_Survey]]:
        """Return the logs of a task by their run: a run, and its retries."""
        runs: dict[str, list[_Survey]] = {}
        for survey in self.surveys:
            if survey.log.task == task:
                runs.setdefault(survey.log.run, []).append(survey)
        return runs

    def samples(self, task: str) -> int:
        """Return the most samples that a problem of the task has."""
        return sum(max(survey.epochs for survey in run) for run in self.of(task).values())


class Judge(NamedTuple):
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
    answers: Path | None = None,
    ignore: Sequence[str] = (),
) -> Imported:
    """Read logs, write their study and problems, and store their attempts."""
    files = list(dict.fromkeys(_files(paths)))
    request_files = [path for path in files if is_request_log(path)]
    logs = [read(path) for path in files if path not in request_files]
    logs.sort(key=lambda log: (log.created, str(log.path)))
    names = list(dict.fromkeys(log.task for log in logs))
    known_answers = Answers(answers) if answers else None
    requests = RequestLogs(request_files, scorer, known_answers, size, ignore)
    if request_files and requests.task not in names:
        names.append(requests.task)
    elif not request_files and (answers or ignore):
        option = "--answers" if answers else "--ignore"
        raise UserError(f"{option} is for production logs, and there is none among these")
    if out is None:
        stem = safe_name(names[0]) if len(names) == 1 else "imported"
        out = Path(f"{stem}.toml")
    _check_place(out)
    result = Imported(out, len(files))
    with closing(requests):
        if request_files:
            _read_requests(requests, files, result)
            logs += requests.logs
        _import(logs, names, files, store, Judge(scorer, right), size, result)
        result.log_notes = list(requests.notes())
    return result


def _import(
    logs: Sequence[Log],
    tasks: Sequence[str],
    files: Sequence[Path],
    store: Path,
    wanted: Judge,
    size: str,
    result: Imported,
) -> None:
    """Write the study and the problems of logs, and store their attempts."""
    out = result.study
    surveys = [_surveyed(log, size) for log in logs]
    judges: dict[str, Judge] = {}
    problems: dict[str, list[Problem]] = {}
    problem_files: dict[str, Path] = {}
    for task in tasks:
        of_task = [survey for survey in surveys if survey.log.task == task]
        judges[task] = wanted._replace(scorer=_scorer(of_task, wanted.scorer, result))
        problems[task] = _problems(of_task, result)
        problem_files[task] = out.with_name(f"{out.stem}-{safe_name(task)}.jsonl")
        _check_input(problem_files[task], files)
    if not size:
        result.metadata = _possible_sizes(problems.values())
    models = _models(surveys)
    for task, file in problem_files.items():
        file.write_bytes(b"".join(_encoded(problem, file) for problem in problems[task]))
    out.write_text(_study(problem_files, judges, models, problems), "utf-8")
    study = Study.load(str(out))
    find_prices(study.cells)
    result.prices = price_lines(study.cells)
    with Store(store, lock=True) as opened:
        opened.record_study(study)
        for task, judge in judges.items():
            of_task_cells = [cell for cell in study.cells if cell.task.title() == task]
            for label, model in models.items():
                cells = {cell.size: cell for cell in cells_called(of_task_cells, "model", label)}
                attempts = _attempts(model, task, judge, size, result)
                _store(opened, cells, attempts, result)


def _read_requests(requests: RequestLogs, files: Sequence[Path], result: Imported) -> None:
    """Read production logs and write their distinct requests; raise if no reply is graded."""
    result.requests = result.study.with_name(f"{result.study.stem}-requests.jsonl")
    _check_input(result.requests, files)
    requests.read()
    result.requests_kept = not requests.write(result.requests)
    requests.check_graded(result.requests)


def _check_input(path: Path, files: Sequence[Path]) -> None:
    """Raise `UserError` if a file to be written is one of the logs."""
    if any(path.resolve() == file.resolve() for file in files):
        message = f"{path} would be written over, and it is one of the logs"
        raise UserError(message, hint="-o NAME.toml names the study, and with it these files")


def _surveyed(log: Log, size: str) -> _Survey:
    try:
        return _Survey.of(log, size)
    except RecursionError:
        raise UserError(NESTED, where=str(log.path), hint=DAMAGED) from None


def _encoded(problem: Problem, file: Path) -> bytes:
    try:
        return msgspec.json.encode(problem, enc_hook=str) + b"\n"
    except (RecursionError, UnicodeEncodeError) as error:  # the latter: half a surrogate pair
        message = f"problem {problem.id!r:.80} can't be written: {error}"
        raise UserError(
            message, where=str(file), hint="correct it in the log, or leave the log out"
        ) from None


def read(path: Path) -> Log:
    """Open a log of any program that is known."""
    if path.suffix in (".eval", ".json"):
        return inspect_log.read(path)
    if path.suffix == ".jsonl":
        return lm_eval.read(path)
    hint = "logs of Inspect end in .eval or .json, samples of lm-eval and requests in .jsonl"
    raise UserError("this is not a log that can be imported", where=str(path), hint=hint)


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    """Yield the logs that are named, and those in folders that are named."""
    for path in paths:
        if path.is_file():
            yield path
        elif path.is_dir():
            inside = []
            for file in path.rglob("*"):
                if file.suffix == ".eval" or file.match("samples_*.jsonl"):
                    inside.append(file)
            if not inside:
                searched = ".eval files of Inspect and samples_*.jsonl of lm-eval"
                hint = f"a folder is searched for {searched}; name logs of requests one by one"
                raise UserError("there is no log in this folder", where=str(path), hint=hint)
            yield from sorted(inside)
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
    """Return the scorer that the user wants, or the headline one of the task's first log."""
    log = surveys[0].log
    scorers: dict[str, None] = {}
    for survey in surveys:
        scorers |= survey.scorers
    if not scorers:
        hint = "inspect score LOG adds scores"
        raise UserError("nothing in this log is scored", where=str(log.path), hint=hint)
    if wanted and wanted not in scorers:
        hint = plugins.nearest(wanted, scorers)
        raise UserError(f"no log of {log.task} has a scorer `{wanted}`", hint=hint)
    scorer = wanted
    if not scorer:
        scorer = next((name for name in log.scorers if name in scorers), next(iter(scorers)))
    result.scorers[log.task] = scorer
    result.others[log.task] = [name for name in scorers if name != scorer]
    return scorer


def _problems(surveys: Sequence[_Survey], result: Imported) -> list[Problem]:
    """Return the problems of a task, each once."""
    problems: dict[str, Problem] = {}
    for survey in surveys:
        for problem in survey.problems.values():
            first = problems.setdefault(problem.id, problem)
            if (first.gold, first.size) != (problem.gold, problem.size):
                message = f"problem {problem.id} of {survey.log.task} has another target or size"
                hint = "import logs of different data sets one by one, each with its own -o"
                raise UserError(
                    f"{message} than in an earlier log", where=str(survey.log.path), hint=hint
                )
            if first.turns != problem.turns:
                result.reworded += 1
    return sorted(problems.values(), key=_order)


def _order(problem: Problem) -> tuple[int, int, str]:
    """Return what problems are sorted by: size, then ids that are numbers, then others."""
    number = int(problem.id) if problem.id.isdecimal() else 2**62
    return problem.size, number, problem.id


def _possible_sizes(problems: Iterable[Sequence[Problem]]) -> list[str]:
    """Return the keys of the problems' metadata that hold whole numbers."""
    keys: dict[str, None] = {}
    for of_task in problems:
        for problem in of_task:
            for key, value in problem.facts.items():
                if type(value) is int:
                    keys[key] = None
    return list(keys)


def _models(surveys: Iterable[_Survey]) -> dict[str, _Model]:
    """Return the models by their labels.

    A label has the settings that tell two ways of asking one model apart.
    """
    groups: dict[str, _Model] = {}
    for survey in surveys:
        name = survey.log.model
        settings = _without_nulls(survey.log.settings)
        key = json.dumps([name, settings], sort_keys=True, default=str)
        groups.setdefault(key, _Model(name, settings)).surveys.append(survey)
    models: dict[str, _Model] = {}
    for model in groups.values():
        same_name = [other.settings for other in groups.values() if other.name == model.name]
        keys: dict[str, None] = {}
        for settings in same_name:
            keys |= dict.fromkeys(settings)
        words = [model.name]
        for key in keys:
            differs = any(settings.get(key) != same_name[0].get(key) for settings in same_name)
            if differs and key in model.settings:
                words.append(f"{key}={model.settings[key]}")
        models[visible(" ".join(words))] = model
    return models


def _without_nulls(value: Any) -> Any:
    """Return a value without nulls, which TOML doesn't have."""
    if isinstance(value, Mapping):
        table = {}
        for key, inner in value.items():
            if inner is not None:
                table[str(key)] = _without_nulls(inner)
        return table
    if isinstance(value, list):
        return [_without_nulls(inner) for inner in value if inner is not None]
    return value


def _study(
    files: Mapping[str, Path],
    judges: Mapping[str, Judge],
    models: Mapping[str, _Model],
    problems: Mapping[str, Sequence[Problem]],
) -> str:
    """Return the study file."""
    lines = [
        f"{MARK}: its attempts are in the store. Title and figures may be changed.",
        f"title = {toml(' and '.join(files) + ', imported')}",
    ]
    for task, file in files.items():
        judge = judges[task]
        table: dict[str, Any] = {
            "name": "imported",
            "file": file.name,
            "task": task,
            "scorer": judge.scorer,
        }
        if judge.right is not None:
            table["right"] = judge.right
        lines += _table("task", table)
    most_samples = 0
    for label, model in models.items():
        samples = max(model.samples(task) for task in files)
        most_samples = max(most_samples, samples)
        table = {"name": "imported", "id": model.name, "label": label, "samples": samples}
        if model.settings:
            table["settings"] = model.settings
        table["runs"] = list(dict.fromkeys(survey.log.run for survey in model.surveys))
        lines += _table("model", table)
    sizes = set[int]()
    for of_task in problems.values():
        sizes.update(problem.size for problem in of_task)
    figures = ["accuracy"]
    if len(sizes) > 2:
        figures.append("effort")
    if len(models) > 1:
        figures.append("frontier")
    surveys = [survey for model in models.values() for survey in model.surveys]
    if most_samples > 1 and all(survey.log.even for survey in surveys):
        figures.append("samples")
    figures.append("budget")
    if any(survey.timed for survey in surveys):
        figures.append("latency")
    for figure in figures:
        lines += _table("figure", {"name": figure})
    return "\n".join(lines) + "\n"


def _table(kind: str, table: Mapping[str, Any]) -> list[str]:
    """Return the lines of a table in a study file."""
    return ["", f"[[{kind}]]", *(f"{key} = {toml(value)}" for key, value in table.items())]


def _store(
    store: Store, cells: Mapping[int, StudyCell], attempts: Iterator[Attempt], result: Imported
) -> None:
    """Store attempts, each in the cell of its size."""
    positions: dict[int, dict[str, int]] = {}
    answered = {}
    for size, cell in cells.items():
        positions[size] = {problem.id: number for number, problem in enumerate(cell.asked())}
        answered[size] = store.done(cell)
    stored_before = _stored(store, cells)
    batch: list[Done] = []
    for attempt in attempts:
        size = attempt.problem.size
        position = positions[size][attempt.problem.id]
        if attempt.ended == "failed" and (position, attempt.sample) in answered[size]:
            continue  # a retry that was imported before has its answer
        result.endings[attempt.ended] += 1
        batch.append(Done(cells[size], position, attempt))
        if len(batch) >= BATCH:
            store.add(batch)
            batch.clear()
    store.add(batch)
    result.new += _stored(store, cells) - stored_before


def _stored(store: Store, cells: Mapping[int, StudyCell]) -> int:
    """Return how many attempts the store has, failed ones too."""
    return sum(tried for cell in cells.values() for _, _, tried, _ in store.results(cell).values())


def _attempts(
    model: _Model, task: str, judge: Judge, size: str, result: Imported
) -> Iterator[Attempt]:
    """Yield the samples of a model at a task as attempts.

    Of a run and its retries, the last sample with a score wins.
    """
    first = 0  # number of the run's first sample
    for run in model.of(task).values():
        scored = set[tuple[str, int]]()
        for survey in run:
            for scorer, problem, epoch in survey.scored:
                if scorer == judge.scorer:
                    scored.add((problem, epoch))
        tell_answers = any(judge.scorer in survey.tell_answers for survey in run)
        yielded = set[tuple[str, int]]()
        for survey in reversed(run):
            log = survey.log
            for sample in log.samples(size):
                attempt = _attempt(sample, first + sample.epoch, judge, tell_answers, log.path)
                key = (sample.problem.id, sample.epoch)
                if key in yielded or (attempt.ended == "failed" and key in scored):
                    continue
                yielded.add(key)
                if attempt.details.get("score", 0.0) > 0 and not attempt.correct:
                    result.partial += 1
                yield attempt
        first += max(survey.epochs for survey in run)


def _attempt(sample: Sample, number: int, judge: Judge, tell_answers: bool, path: Path) -> Attempt:
    """Return a sample as an attempt. The log's scorer decides what is right, also if it was cut."""
    score = sample.scores.get(judge.scorer, Score(None, why=f"{judge.scorer} gave no score"))
    if sample.error or score.value is None:
        why = sample.error or f"not scored: {score.why}"
        return Attempt(sample.problem, number, "failed", visible(why)[:200], (sample.completion,))
    lowest_right = 1.0 if judge.right is None else judge.right
    if judge.right is None and score.value > 1:
        message = f"`{judge.scorer}` gives scores above 1, such as {score.value:g}"
        hint = "--right N says from which score on an attempt is right"
        raise UserError(message, where=str(path), hint=hint)
    ended: Ended = "wrong"
    why = "wrong answer"
    if score.value >= lowest_right:
        ended = "right"
        why = ""
    elif sample.limit:
        ended = "truncated"
        why = f"{sample.limit} limit"
    elif sample.completion.note:
        ended = "unparsed"
        why = sample.completion.note
    elif tell_answers and not score.answer:
        ended = "unparsed"
        why = "no answer"
    return Attempt(sample.problem, number, ended, why, (sample.completion,), {"score": score.value})
