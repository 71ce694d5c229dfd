"""Reads production logs: JSONL files with a request to a model and its reply on each line.

A distinct request is a problem, several replies to it are samples, and a model asked with other
settings is another model, so that models and settings are compared on the requests that they share.
Which replies are right is read from the log (`right`, `score`, `feedback`, …), or from a file with
the answers. A reply that neither grades is left out: it is not wrong. `requests_file`
has the distinct requests for the task `jsonl`, which asks them of other models.

The files are read three times, line by line. In memory are the distinct requests, and a few numbers
for each line. Keys of providers are removed from all texts; headers and metadata are never stored.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, NamedTuple

import msgspec

from ponder.core import Bill, Completion, Message, Problem, Request, UserError, digest, plugins
from ponder.core.jsonl import raw_lines, records
from ponder.core.secrets import without_keys
from ponder.core.text import count, encodable, visible
from ponder.models.endpoint import PROTOCOLS, Endpoint
from ponder.models.endpoint.dials import EFFORTS
from ponder.models.endpoint.protocol import Protocol
from ponder.models.endpoint.reply import Malformed, Reply, bill
from ponder.results.interop import request_records as shapes
from ponder.results.interop.eval_logs import Log, Sample, Score, decode, size_of
from ponder.results.interop.request_records import Exchange, Unusable
from ponder.tasks.grading.line import ProblemLine
from ponder.tasks.imported import Imported
from ponder.tasks.jsonl import LINE, Jsonl

EXAMPLE = (
    '{"request": {"model": "m", "messages": […]}, "response": {"choices": […], "usage": {…}}, '
    '"right": true}'
)
HINT = f"a line is {EXAMPLE}; docs/interop.md lists other shapes"
MAX_MODELS = 50  # each of which becomes a model of the study
MAX_TEXT = 256 << 20  # bytes of all distinct requests, which are in memory together
UNFINISHED = "cut off at the end of a file"
UNNAMED = "unnamed model"


class Position(NamedTuple):
    """The position of a line in the files of a log."""

    file: int
    offset: int
    number: int
    request: Position | None = None  # of the request, if a batch has it in another line


class Entry(NamedTuple):
    """A line with a request and its reply."""

    position: Position
    graded_by: frozenset[str]
    failed: bool


class LoggedModel(NamedTuple):
    """A model with one combination of settings, and the lines of the log in which it replies."""

    name: str
    settings: dict[str, Any]
    entries: list[Entry]


class Answers:
    """The right answers to some requests, from a file of the task `jsonl`."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._task = Jsonl(file=path)
        self._problems: dict[Any, Problem] = {}
        for where, line in records(path, dict[str, Any], LINE):
            if line.get("answer") in (None, ""):
                continue  # not answered yet
            try:
                problem = msgspec.convert(line, ProblemLine).problem("")
            except msgspec.ValidationError as error:
                raise UserError(str(error), where=where, hint=LINE) from None
            if line.get("id"):
                self._problems[problem.id] = problem
            self._problems[problem.system, problem.history, problem.turns[0]] = problem
        if not self._problems:
            hint = f"add `answer` to its lines: {LINE}"
            raise UserError("no line of this file has an answer", where=str(path), hint=hint)

    def find(self, problem: Problem) -> Problem | None:
        """Return the problem of this file that a request poses; None if the file doesn't have it.

        A problem matches by its id or by its texts. One without a system message matches any.
        """
        question = problem.turns[0]
        keys = (
            problem.id,
            (problem.system, problem.history, question),
            ("", problem.history, question),
        )
        for key in keys:
            if key in self._problems:
                return self._problems[key]
        return None

    def score(self, problem: Problem, reply: str) -> Score:
        """Return whether a reply is right."""
        answered = self.find(problem)
        if answered is None:
            return Score(None, why=f"{self.name} has no answer to it")
        verdict = self._task.grade(answered, reply)
        parsed = "" if verdict.parsed is None else str(verdict.parsed)
        return Score(float(verdict.correct), parsed)


@dataclass
class RequestLogs:
    """A production log, in one file or several."""

    files: Sequence[Path]
    scorer: str = ""  # the field or file that says which replies are right
    answers: Answers | None = None
    size: str = ""
    ignore: Sequence[str] = ()
    logs: list[RequestLog] = field(default_factory=list)
    lines: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    ungraded: int = 0  # replies that the scorer doesn't grade
    redacted: int = 0  # distinct requests from which a key was removed
    without_unit: int = 0  # lines with a duration in seconds or milliseconds
    # fields of requests that don't make another model, in the order of the log
    other_fields: dict[str, None] = field(default_factory=dict)
    problems: dict[str, Problem] = field(default_factory=dict)
    _text_bytes: int = 0
    _open: dict[int, BinaryIO] = field(default_factory=dict)
    _unreadable: dict[str, Any] = field(
        default_factory=dict
    )  # grades that say neither right nor wrong

    @property
    def task(self) -> str:
        """What the study calls the log."""
        if len(self.files) == 1 and self.files[0].stem != "requests":
            return self.files[0].stem
        return "log"

    def read(self) -> None:
        """Read the log once: find the models, the distinct requests, and who graded the replies."""
        models: dict[str, LoggedModel] = {}
        graded = Counter[str]()
        for position, record in self._all_records():
            entry, name, settings = self._survey(position, record)
            if entry is None:
                continue
            key = json.dumps([name, settings], sort_keys=True)
            model = models.setdefault(key, LoggedModel(name, settings, []))
            model.entries.append(entry)
            graded.update(entry.graded_by)
        if not self.lines:
            raise UserError(f"{self.files[0]} is empty", hint=HINT)
        if not models:
            message = f"nothing in this log can be imported: {self._skipped_text()}"
            raise UserError(message, where=str(self.files[0]), hint=HINT)
        if len(models) > MAX_MODELS:
            raise self._too_many_models(list(models.values()))
        self.scorer = self._choose_scorer(graded)
        scorers = (self.scorer, *(name for name in graded if name != self.scorer))
        run = self._run()
        for model in sorted(models.values(), key=_order):
            positions = []
            for entry in model.entries:
                if entry.failed or self.scorer in entry.graded_by:
                    positions.append(entry.position)
                else:
                    self.ungraded += 1
            log = RequestLog(
                path=self.files[0],
                task=self.task,
                model=model.name,
                run=run,
                created="",
                settings=model.settings,
                scorers=scorers,
                tell_answers=(self.answers.name,) if self.answers else (),
                source=self,
                positions=positions,
            )
            if positions:
                self.logs.append(log)

    def check_graded(self, requests_file: Path) -> None:
        """Raise `UserError` if nothing says which replies are right."""
        if self.scorer:
            return
        where = str(self.files[0])
        if self.answers:
            message = f"{self.answers.name} has the answer to none of its requests"
            hint = f"{requests_file} has its requests: answer these"
            raise UserError(message, where=where, hint=hint)
        if self._unreadable:
            name, value = next(iter(self._unreadable.items()))
            value = visible(str(value))[:60]
            message = f"`{name}` is `{value}` in this log, which says neither right nor wrong"
            hint = "true and false, 1 and 0, or numbers with --right N; or the answers: --answers"
            raise UserError(message, where=where, hint=hint)
        message = "nothing in this log says which replies are right, so there is no accuracy"
        hint = (
            f"add `answer` to lines of {requests_file}, which has its "
            f"{count(len(self.problems), 'distinct request')}, and import again with --answers "
            f"{requests_file}; or add `right` (true or false) to lines of the log"
        )
        raise UserError(message, where=where, hint=hint)

    def write(self, path: Path) -> bool:
        """Write the distinct requests as a file of the task `jsonl`, with the answers known.

        A file to which answers were added by hand stays. Return whether it was written.
        """
        content = b"".join(self._request_line(problem) for problem in self.problems.values())
        if path.is_file() and path.read_bytes() != content and self._has_answers(path):
            return False
        path.write_bytes(content)
        return True

    def _has_answers(self, path: Path) -> bool:
        try:
            Answers(path)
        except UserError:
            return False
        return True

    def _request_line(self, problem: Problem) -> bytes:
        line: dict[str, Any] = {"id": problem.id, "prompt": problem.turns[0]}
        if problem.system:
            line["system"] = problem.system
        if problem.history:
            line["history"] = problem.history
        if problem.size:
            line["size"] = problem.size
        if problem.gold:
            line["answer"] = problem.gold[0]
        return msgspec.json.encode(line) + b"\n"

    def close(self) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()

    def notes(self) -> Iterator[str]:
        """Yield sentences about lines that were skipped, left out or changed."""
        if self.skipped:
            yield f"skipped: {self._skipped_text()}"
        if self.ungraded:
            replies = count(self.ungraded, "reply")
            yield f"{replies} that `{self.scorer}` doesn't grade: left out, not counted as wrong"
        estimated = sum(log.estimated for log in self.logs)
        if estimated:
            replies = count(estimated, "reply")
            yield f"{replies} without a full `usage`: tokens are estimated from their characters"
        untimed = sum(log.untimed for log in self.logs)
        if untimed:
            note = f"{count(untimed, 'reply')} without times: their seconds are 0"
            if self.without_unit:
                note += "; a duration needs its unit: latency_seconds or latency_ms"
            yield note
        if self.redacted:
            requests = count(self.redacted, "distinct request")
            yield f"keys of providers were removed from {requests}"
        if self.other_fields:
            fields = visible(", ".join(sorted(self.other_fields)))[:200]
            yield f"fields of requests that don't make another model: {fields}"

    def record(self, position: Position) -> dict[str, Any]:
        """Read the record at a position."""
        where = f"{self.files[position.file]}:{position.number}"
        file = self._open.get(position.file)
        if file is None:
            file = self.files[position.file].open("rb")
            self._open[position.file] = file
        file.seek(position.offset)
        record = decode(file.readline(), dict[str, Any], where)
        if position.request is None:
            return record
        return {**self.record(position.request), **record}

    def problem(self, record: dict[str, Any], exchange: Exchange, where: str) -> Problem:
        """Return the problem that a request poses; equal requests get the same object."""
        prompt = shapes.prompt(exchange.request)
        system = _clean(prompt.system)
        question = _clean(prompt.question)
        history = tuple(Message(turn.role, _clean(turn.content)) for turn in prompt.history)
        turns = [[turn.role, turn.content] for turn in history]
        name = digest(system, turns, question).hex()
        if name in self.problems:
            return self.problems[name]
        size = 0
        if self.size:
            metadata = record.get("metadata")
            inner = metadata if isinstance(metadata, dict) else {}
            size = size_of({**record, **inner}, self.size, where)
        problem = Problem(name, size, (question,), None, system, history)
        if self.answers:
            answered = self.answers.find(problem)
            if answered is not None:
                size = size or answered.size
                problem = replace(problem, gold=[answered.gold], size=size)
        self._text_bytes += len(question) + len(system)
        self._text_bytes += sum(len(message.content) for message in history)
        if self._text_bytes > MAX_TEXT:
            message = f"its distinct requests take more than {MAX_TEXT >> 20} MB"
            raise UserError(message, where=where, hint="import a part of the log")
        if (system, history, question) != prompt:
            self.redacted += 1
        self.problems[name] = problem
        return problem

    def _all_records(self) -> Iterator[tuple[Position, dict[str, Any]]]:
        """Yield the records of all files; at the end, those that a batch has in two lines."""
        requests: dict[str, Position] = {}
        replies: dict[str, Position] = {}
        for position, record in self._file_records():
            half = shapes.half_of(record)
            if not half:
                yield position, record
                continue
            halves = requests if half == "request" else replies
            name = shapes.id_of(record)
            if name in halves:
                message = f"the `custom_id` {name!r} occurs twice"
                where = f"{self.files[position.file]}:{position.number}"
                raise UserError(message, where=where, hint="import one batch at a time")
            halves[name] = position
        for name, position in replies.items():
            if name in requests:
                joined = position._replace(request=requests.pop(name))
                yield joined, self.record(joined)
            else:
                self.skipped[shapes.NO_REQUEST] += 1
        if requests:
            self.skipped[shapes.NO_REPLY] += len(requests)

    def _file_records(self) -> Iterator[tuple[Position, dict[str, Any]]]:
        for index, path in enumerate(self.files):
            offset = 0
            with path.open("rb") as file:
                for number, line in enumerate(raw_lines(file, str(path)), 1):
                    if line.strip():
                        self.lines += 1
                        record = self._decoded(line, f"{path}:{number}")
                        if record is not None:
                            yield Position(index, offset, number), record
                    offset += len(line)

    def _decoded(self, line: bytes, where: str) -> dict[str, Any] | None:
        """Return the record of a line; None if it is the last one and still being written."""
        hint = "a line is one object"
        if line.lstrip().startswith(b"["):
            hint = f"{hint}: jq -c '.[]' makes lines of a list"
        try:
            return decode(line, dict[str, Any], where, f"{hint}; correct this line or delete it")
        except UserError:
            if line.endswith(b"\n") or self.lines == 1:
                raise
            self.skipped[UNFINISHED] += 1
            return None

    def _survey(
        self, position: Position, record: dict[str, Any]
    ) -> tuple[Entry | None, str, dict[str, Any]]:
        """Return a record's entry with its model and settings; no entry if it is skipped."""
        where = f"{self.files[position.file]}:{position.number}"
        try:
            exchange = shapes.exchange(record)
            problem = self.problem(record, exchange, where)
        except Unusable as unusable:
            self.skipped[str(unusable)] += 1
            return None, "", {}
        names = set()
        for name, value in shapes.grades(exchange.record, self.scorer).items():
            if shapes.grade(value) is None:
                self._unreadable.setdefault(name, value)
            else:
                names.add(name)
        if self.answers and problem.gold is not None:
            names.add(self.answers.name)
        for name in shapes.other_fields(exchange.request):
            if len(self.other_fields) < 100:
                self.other_fields[name] = None
        settings: dict[str, Any] = {}
        for name, value in shapes.settings(exchange.request).items():
            if name not in self.ignore:
                settings[name] = _clean(value)[:100] if isinstance(value, str) else value
        if shapes.latency_without_unit(exchange.record):
            self.without_unit += 1
        entry = Entry(position, _interned(frozenset(names)), bool(exchange.error))
        return entry, _model_name(exchange), settings

    def _choose_scorer(self, graded: Mapping[str, int]) -> str:
        """Return the field or file that says which replies are right; "" if none does."""
        if self.scorer:
            if self.scorer not in graded and self.scorer not in self._unreadable:
                names = [*graded, *self._unreadable]
                message = f"no line of this log has a field `{self.scorer}`"
                hint = plugins.nearest(self.scorer, names) if names else HINT
                raise UserError(message, where=str(self.files[0]), hint=hint)
            return self.scorer if self.scorer in graded else ""
        if self.answers:
            return self.answers.name if self.answers.name in graded else ""
        for name in (*shapes.GRADES, *graded):
            if name in graded:
                return name
        return ""

    def _too_many_models(self, models: Sequence[LoggedModel]) -> UserError:
        """Return an error that names the settings with the most values."""
        values: dict[str, set[str]] = {"model": {model.name for model in models}}
        for model in models:
            for name, value in model.settings.items():
                values.setdefault(name, set()).add(str(value))
        counts = Counter({name: len(distinct) for name, distinct in values.items()})
        largest = counts.most_common(3)
        listed = ", ".join(f"{name} ({number:,} values)" for name, number in largest)
        message = f"it has {len(models):,} ways of asking, more than {MAX_MODELS}: {listed}"
        hint = "import the lines of a few models"
        setting = largest[0][0]
        if setting != "model":
            hint = f"--ignore {setting} makes no other model of each value"
        return UserError(message, where=str(self.files[0]), hint=hint)

    def _run(self) -> str:
        """Return an id of the log that stays the same when lines are added."""
        first_lines = []
        for path in self.files:
            with path.open("rb") as file:
                first_lines.append(digest(file.readline().decode("utf-8", "replace")).hex())
        return digest(*sorted(first_lines)).hex()[:16]

    def _skipped_text(self) -> str:
        reasons = []
        for reason, number in self.skipped.most_common():
            reasons.append(f"{count(number, 'line')} {reason}")
        return "; ".join(reasons)


@dataclass(kw_only=True)
class RequestLog(Log):
    """The lines of one model with one combination of settings."""

    even: ClassVar[bool] = False
    source: RequestLogs
    positions: list[Position]
    estimated: int = 0  # replies without token counts
    untimed: int = 0  # replies without times

    def samples(self, size: str = "") -> Iterator[Sample]:  # noqa: ARG002 known to the source
        samples = Counter[str]()
        self.estimated = 0
        self.untimed = 0
        for position in self.positions:
            record = self.source.record(position)
            exchange = shapes.exchange(record)
            problem = self.source.problem(record, exchange, "")
            number = samples[problem.id]
            samples[problem.id] += 1
            yield self._sample(exchange, problem, number)

    def _sample(self, exchange: Exchange, problem: Problem, number: int) -> Sample:
        seconds, first_token = shapes.seconds(exchange)
        if exchange.reply is None:
            return _failed(problem, number, exchange.error, seconds)
        protocol = _protocol(exchange.protocol, self.model)
        request = Request(_task(), problem, (), 0)
        try:
            reply = protocol.read_body(request, _body(exchange.reply))
        except Malformed as error:
            return _failed(problem, number, str(error), seconds)
        characters = len(problem.turns[0])
        for message in problem.opening():
            characters += len(message.content)
        paid = bill(reply, seconds, None, max(1, characters // 4))
        if paid.cost is None:
            paid = replace(paid, cost=shapes.cost(exchange.record))
        if paid.counted_by == "estimate":
            self.estimated += 1
        if not seconds:
            self.untimed += 1
        measures = dict(reply.measures)
        if first_token:
            measures["first_token_seconds"] = first_token
        scores: dict[str, Score] = {}
        for name, value in shapes.grades(exchange.record, self.source.scorer).items():
            scores[name] = Score(shapes.grade(value), why="not graded")
        if self.source.answers:
            answer = self.source.answers.score(problem, reply.answer)
            scores[self.source.answers.name] = answer
        limit = "token" if reply.stop == "length" else ""
        completion = _completion(reply, paid, measures)
        return Sample(problem, number, completion, scores, limit=limit)


def is_request_log(path: Path) -> bool:
    """Return whether a file is a production log, and not samples of lm-eval."""
    if path.suffix != ".jsonl" or path.name.startswith("samples_"):
        return False
    with path.open("rb") as file:
        for line in raw_lines(file, str(path)):
            if line.strip():
                return not (b'"doc_id"' in line and b'"resps"' in line)
    return True


def _clean(text: str) -> str:
    """Return a text that can be stored, without keys of providers."""
    return without_keys(encodable(text))


def _body(reply: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(reply)
    except UnicodeEncodeError:  # half a surrogate exchange
        return json.dumps(reply).encode()


def _completion(reply: Reply, paid: Bill, measures: dict[str, float]) -> Completion:
    if reply.summarized and reply.thinking:
        measures["summarized"] = 1.0
    return Completion(
        without_keys(reply.thinking or reply.refusal),
        without_keys(reply.answer),
        reply.stop,
        paid,
        measures,
        note=reply.note,
    )


def _failed(problem: Problem, number: int, why: str, seconds: float) -> Sample:
    completion = Completion("", "", "end", Bill(seconds=seconds))
    return Sample(problem, number, completion, {}, error=_clean(why) or "error")


def _model_name(exchange: Exchange) -> str:
    """Return the model that was asked for, or else the one that answered."""
    tables = [exchange.request]
    if exchange.reply is not None:
        tables.append(exchange.reply)
    for table in tables:
        for name in ("model", "modelVersion"):
            if isinstance(table.get(name), str) and table[name]:
                return _clean(visible(table[name]))[:100]
    return UNNAMED


def _order(model: LoggedModel) -> tuple[Any, ...]:
    """Return the key that models are sorted by: the name, then how hard the model thinks."""
    effort = model.settings.get("effort")
    rank = EFFORTS.index(effort) if effort in EFFORTS else -1
    think = model.settings.get("think", 0)
    return model.name, rank, think, json.dumps(model.settings, sort_keys=True)


@cache
def _protocol(name: str, model: str) -> Protocol:
    return PROTOCOLS[name](Endpoint(id=model, protocol=name, budget=1))  # type: ignore[arg-type]


@cache
def _task() -> Imported:
    return Imported(Path("log"))


@cache
def _interned(names: frozenset[str]) -> frozenset[str]:
    return names


def files_of(paths: Iterable[Path]) -> list[Path]:
    """Return those of the paths that are production logs."""
    return [path for path in paths if is_request_log(path)]
