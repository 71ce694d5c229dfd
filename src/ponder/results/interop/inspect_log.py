"""Reads logs of Inspect, `.eval` and `.json`, without the package `inspect-ai`.

An `.eval` file is a zip of JSON files, one per sample, so that only one sample is in memory. Newer
ones are packed with Zstandard, which Python's zipfile can open from 3.14 on; before that it takes
the package `zstandard`.
"""

from __future__ import annotations

import lzma
import math
import struct
import sys
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ponder.core import Bill, Completion, Message, Problem, UserError, plugins
from ponder.core.jsonl import unpacked
from ponder.core.text import encodable
from ponder.models.endpoint.chat import read_usage
from ponder.models.endpoint.reply import Reply, bill
from ponder.results.interop.eval_logs import DAMAGED, LARGE, Log, Sample, Score, decode, size_of

ZSTANDARD = 93  # the compression method's number in a zip
ENCRYPTED = 1  # the flag of a member
BROKEN_ZIP = (
    zipfile.BadZipFile,
    OSError,
    EOFError,
    ValueError,
    RuntimeError,
    zlib.error,
    lzma.LZMAError,
    struct.error,
)
CUT = ("max_tokens", "model_length")  # reasons to stop that mean a reply is not complete
VALUES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
ATTACHED = "attachment://"  # begins a text that stands elsewhere in the sample


class _Scorer(msgspec.Struct):
    name: str


class _Spec(msgspec.Struct):
    task: str
    model: str
    created: str = ""
    task_id: str = ""
    eval_id: str = ""
    task_args_passed: dict[str, Any] = {}
    model_generate_config: dict[str, Any] = {}
    solver: str | None = None
    solver_args: dict[str, Any] | None = None
    scorers: list[_Scorer] | None = None


class _Headline(msgspec.Struct):
    scorer: str = ""


class _Result(msgspec.Struct):
    name: str
    scorer: str = ""


class _Results(msgspec.Struct):
    headline: _Headline | None = None
    scores: list[_Result] = []


class _Plan(msgspec.Struct):
    config: dict[str, Any] = {}


class _Header(msgspec.Struct):
    eval: _Spec
    plan: _Plan = msgspec.field(default_factory=_Plan)
    results: _Results | None = None


class _Message(msgspec.Struct):
    role: str
    content: str | list[dict[str, Any]] = ""


class _Choice(msgspec.Struct):
    message: _Message
    stop_reason: str = "stop"


class _Output(msgspec.Struct):
    choices: list[_Choice] = []


class _Usage(msgspec.Struct):
    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    reasoning_tokens: int | None = None
    input_tokens_cache_read: int | None = None
    input_tokens_cache_write: int | None = None


class _Score(msgspec.Struct):
    value: Any = None
    answer: str | None = None
    explanation: str | None = None
    reason: str | None = None


class _Error(msgspec.Struct):
    message: str = ""


class _Limit(msgspec.Struct):
    type: str = ""


class _Sample(msgspec.Struct):
    """The fields that are read. Others, such as the events, are skipped without being built."""

    id: int | str
    epoch: int
    input: str | list[_Message]
    target: str | list[str] = ""
    messages: list[_Message] = []
    output: _Output = msgspec.field(default_factory=_Output)
    scores: dict[str, _Score] | None = None
    score: _Score | None = None  # of old logs
    metadata: dict[str, Any] = {}
    model_usage: dict[str, _Usage] = {}
    error: _Error | None = None
    limit: _Limit | None = None
    total_time: float | None = None
    attachments: dict[str, str] = {}


class _WholeLog(_Header):
    """A `.json` log."""

    samples: list[_Sample] | None = None


@dataclass(kw_only=True)
class InspectLog(Log):
    def samples(self, size: str = "") -> Iterator[Sample]:
        for sample in self._samples():
            yield _read(sample, self.model, size, str(self.path))

    def _samples(self) -> Iterator[_Sample]:
        if self.path.suffix == ".json":
            yield from decode(self.path.read_bytes(), _WholeLog, str(self.path)).samples or []
            return
        with _opened(self.path) as file:
            # a sample that was written twice counts as it was written last
            for name in file.NameToInfo:
                if name.startswith("samples/"):
                    yield decode(_member(file, name, self.path), _Sample, f"{self.path}: {name}")


def read(path: Path) -> InspectLog:
    """Open a log; raise `UserError` if it isn't one."""
    header = _header(path)
    spec = header.eval
    settings = {**spec.model_generate_config, **header.plan.config, **spec.task_args_passed}
    if spec.solver:
        settings["solver"] = spec.solver
    settings |= spec.solver_args or {}
    return InspectLog(
        path=path,
        task=spec.task.rpartition("/")[2] or "task",
        model=spec.model,
        run=spec.task_id or spec.eval_id,
        created=spec.created,
        settings=settings,
        scorers=_scorers(header),
    )


def _header(path: Path) -> _Header:
    if path.suffix == ".json":
        return decode(path.read_bytes(), _Header, str(path))
    with _opened(path) as file:
        # A run that was killed has only what it wrote at its start.
        name = next((n for n in ("header.json", "_journal/start.json") if n in file.NameToInfo), "")
        if not name:
            message = "this is a zip file, but not a log of Inspect"
            raise UserError(
                message, where=str(path), hint="an .eval file holds header.json and samples/"
            )
        return decode(_member(file, name, path), _Header, f"{path}: {name}")


def _scorers(header: _Header) -> tuple[str, ...]:
    """Return the names of a log's scorers: the headline one first, then as they are declared."""
    results = header.results or _Results()
    names: dict[str, None] = {}
    if results.headline and results.headline.scorer:
        names[results.headline.scorer] = None
    for scorer in header.eval.scorers or ():
        names[scorer.name] = None
    for result in results.scores:
        names[result.scorer or result.name] = None
    return tuple(names)


def _opened(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except (*BROKEN_ZIP, NotImplementedError):
        message = "this is not a log of Inspect, or it is damaged"
        raise UserError(message, where=str(path), hint="an .eval file is a zip file") from None


def _member(file: zipfile.ZipFile, name: str, path: Path) -> bytes:
    info = file.getinfo(name)
    where = f"{path}: {name}"
    if info.flag_bits & ENCRYPTED:
        raise UserError(
            "it is encrypted",
            where=where,
            hint="unpack it with its password, and zip it again without",
        )
    try:
        if info.compress_type == ZSTANDARD and sys.version_info < (3, 14):
            plugins.need("zstandard", "reading this log")
            return _zstandard(info, path)
        with file.open(info) as packed:
            return unpacked(packed, where, LARGE)
    except (
        NotImplementedError
    ) as error:  # a compression, or a version of zip, that this Python doesn't know
        raise UserError(str(error), where=where, hint=DAMAGED) from None
    except BROKEN_ZIP as error:
        raise UserError(f"it is damaged: {error}", where=where, hint=DAMAGED) from None


def _zstandard(info: zipfile.ZipInfo, path: Path) -> bytes:
    import zstandard

    where = f"{path}: {info.filename}"
    with path.open("rb") as raw:
        # the lengths of the name and of what follows it, in the member's own header
        raw.seek(info.header_offset + 26)
        name, extra = (int.from_bytes(raw.read(2), "little") for _ in range(2))
        raw.seek(name + extra, 1)
        packed = raw.read(info.compress_size)
    try:
        with zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True) as content:
            return unpacked(content, where, LARGE)
    except zstandard.ZstdError as error:
        raise UserError(f"it is damaged: {error}", where=where, hint=DAMAGED) from None


def _read(sample: _Sample, model: str, size: str, where: str) -> Sample:
    choice = sample.output.choices[0] if sample.output.choices else None
    limit = ""
    if sample.limit:
        limit = sample.limit.type
    elif choice and choice.stop_reason in CUT:
        limit = "token"
    error = ""
    if sample.error:
        error = sample.error.message or "error"
    thinking, answer = _reply(sample, choice)
    reply = Reply(thinking, answer, "length" if limit else "end", "")
    scores: dict[str, Score] = {}
    for scorer, score in _scores(sample).items():
        scores |= _flat(scorer, score)
    where = f"{where}: sample {sample.id}, epoch {sample.epoch}"
    return Sample(
        _problem(sample, size_of(sample.metadata, size, where)),
        sample.epoch - 1,
        Completion(thinking, answer, reply.stop, _bill(sample, model, reply)),
        scores,
        error,
        limit,
    )


def _reply(sample: _Sample, choice: _Choice | None) -> tuple[str, str]:
    """Return thinking and answer: the last reply's text, and everything written before it."""
    written = _written(sample)
    replies = [number for number, message in enumerate(written) if message.role == "assistant"]
    if choice:
        last = choice.message
    elif replies:
        last = written[replies[-1]]
    else:
        return "", ""
    before = written[: replies[-1]] if replies else []
    thoughts = []
    for message in before:
        thoughts.append(_reasoning(message, sample.attachments))
        text = _text(message, sample.attachments)
        if text:
            thoughts.append(f"[{message.role}] {text}")
    thoughts.append(_reasoning(last, sample.attachments))
    thinking = "\n\n".join(thought for thought in thoughts if thought)
    return encodable(thinking), encodable(_text(last, sample.attachments))


def _written(sample: _Sample) -> list[_Message]:
    """Return the messages after the question, without system messages."""
    questions = [_text(message, sample.attachments) for message in _input(sample)]
    start = 0
    if questions:
        # The question comes first, perhaps after a system message that a solver has added.
        for number, message in enumerate(sample.messages, 1):
            if number >= len(questions) and _text(message, sample.attachments) == questions[-1]:
                start = number
                break
    return [message for message in sample.messages[start:] if message.role != "system"]


def _problem(sample: _Sample, size: int) -> Problem:
    """Return what a sample asks: its last message, with the messages before it as history."""
    system = []
    chat = []
    for message in _input(sample):
        text = _text(message, sample.attachments)
        if message.role == "system":
            system.append(text)
        elif message.role == "assistant":
            chat.append(Message("assistant", text))
        else:
            chat.append(Message("user", text))
    if not chat:
        chat.append(Message("user", ""))
    gold = [sample.target] if isinstance(sample.target, str) else sample.target
    return Problem(
        id=str(sample.id),
        size=size,
        turns=(chat[-1].content,),
        gold=gold,
        system="\n\n".join(system),
        history=tuple(chat[:-1]),
        facts=sample.metadata,
    )


def _input(sample: _Sample) -> list[_Message]:
    if isinstance(sample.input, str):
        return [_Message("user", sample.input)]
    return sample.input


def _text(message: _Message, attached: Mapping[str, str]) -> str:
    """Return a message's text, without its reasoning; what is not a text becomes `[image]`."""
    if isinstance(message.content, str):
        return _resolved(message.content, attached)
    texts = []
    for item in message.content:
        kind = item.get("type")
        if kind == "text":
            texts.append(_resolved(str(item.get("text", "")), attached))
        elif kind != "reasoning":
            texts.append(f"[{kind}]")
    return "".join(texts)


def _reasoning(message: _Message, attached: Mapping[str, str]) -> str:
    """Return a message's reasoning, or the summary of one that the provider keeps back."""
    if isinstance(message.content, str):
        return ""
    texts = []
    for item in message.content:
        if item.get("type") == "reasoning":
            key = "summary" if item.get("redacted") else "reasoning"
            texts.append(_resolved(str(item.get(key) or ""), attached))
    return "\n\n".join(texts)


def _resolved(text: str, attached: Mapping[str, str]) -> str:
    """Return a text, or the attachment that it stands for."""
    if not text.startswith(ATTACHED):
        return text
    return attached.get(text.removeprefix(ATTACHED), text)


class _Counts(NamedTuple):
    prompt: int
    completion: int
    thinking: int  # of the completion
    cached: int  # of the prompt


def _bill(sample: _Sample, model: str, reply: Reply) -> Bill:
    """Return the tokens of the evaluated model, without those of a model that graded it."""
    usages = list(sample.model_usage.values())
    if model in sample.model_usage:
        usages = [sample.model_usage[model]]
    prompt = 0
    completion = 0
    thinking = 0
    cached = 0
    for usage in usages:
        counts = _counts(usage)
        prompt += counts.prompt
        completion += counts.completion
        thinking += counts.thinking
        cached += counts.cached
    counted = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "completion_tokens_details": {"reasoning_tokens": thinking},
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    return bill(replace(reply, usage=read_usage(counted)), sample.total_time or 0.0)


def _counts(usage: _Usage) -> _Counts:
    """Return the tokens of one model's calls.

    Inspect passes on what a provider counts. Some count reasoning inside the output tokens, others
    (Grok) next to them, where only the total tells. Newer logs count tokens of a cache next to the
    input, older ones may count them inside.
    """
    reasoning = usage.reasoning_tokens or 0
    cached = usage.input_tokens_cache_read or 0
    prompt = usage.input_tokens
    if usage.total_tokens - prompt - usage.output_tokens not in (0, reasoning):
        prompt += cached + (usage.input_tokens_cache_write or 0)
    completion = max(usage.output_tokens, usage.total_tokens - prompt)
    if reasoning > completion:  # so it was counted separately, and there is no total
        completion = usage.output_tokens + reasoning
    thinking = max(reasoning, completion - usage.output_tokens)
    return _Counts(prompt, completion, thinking, cached)


def _scores(sample: _Sample) -> dict[str, _Score]:
    if sample.scores:
        return sample.scores
    if sample.score:
        return {"score": sample.score}
    return {}


def _flat(name: str, score: _Score) -> dict[str, Score]:
    """Return a scorer's values by name; each of several has its own: `grade.style`."""
    if not isinstance(score.value, dict) or not score.value:
        return {name: _score(score.value, score)}
    return {f"{name}.{key}": _score(value, score) for key, value in score.value.items()}


def _score(value: Any, score: _Score) -> Score:
    answer = score.answer or ""
    if value == "N":  # no answer
        answer = ""
    number = _number(value)
    if number is not None:
        return Score(number, answer)
    return Score(None, answer, score.reason or score.explanation or "not scored")


def _number(value: Any) -> float | None:
    """Return a score as a number, as Inspect itself reads it; None if it is not one."""
    if isinstance(value, str):
        letter = VALUES.get(value, VALUES.get(value.lower()))
        if letter is not None:
            return letter
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool | int | float) and math.isfinite(value):
        return float(value)
    return None
