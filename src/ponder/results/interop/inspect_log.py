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
from typing import Any

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


class _Whole(_Header):
    """A `.json` log."""

    samples: list[_Sample] | None = None


@dataclass(kw_only=True)
class InspectLog(Log):
    def samples(self, size: str = "") -> Iterator[Sample]:
        for sample in self._samples():
            yield _read(sample, self.model, size, str(self.path))

    def _samples(self) -> Iterator[_Sample]:
        if self.path.suffix == ".json":
            yield from decode(self.path.read_bytes(), _Whole, str(self.path)).samples or []
            return
        with _opened(self.path) as file:
            # a sample that was written twice counts as it was written last
            for name in file.NameToInfo:
                if name.startswith("samples/"):
                    yield decode(_member(file, name, self.path), _Sample, f"{self.path}: {name}")


def read(path: Path) -> InspectLog:
    """Open a log; raises `UserError` if it isn't one."""
    header = _header(path)
    spec, results = header.eval, header.results or _Results()
    declared = [scorer.name for scorer in spec.scorers or ()]
    first = [results.headline.scorer] if results.headline and results.headline.scorer else []
    scored = [result.scorer or result.name for result in results.scores]
    asked = {**spec.model_generate_config, **header.plan.config, **spec.task_args_passed}
    asked |= {"solver": spec.solver} if spec.solver else {}
    asked |= spec.solver_args or {}
    return InspectLog(
        path=path,
        task=spec.task.rpartition("/")[2] or "task",
        model=spec.model,
        run=spec.task_id or spec.eval_id,
        created=spec.created,
        settings=asked,
        scorers=tuple(dict.fromkeys([*first, *declared, *scored])),
    )


def _header(path: Path) -> _Header:
    if path.suffix == ".json":
        return decode(path.read_bytes(), _Header, str(path))
    with _opened(path) as file:
        # A run that was killed has only what it wrote at its start.
        name = next((n for n in ("header.json", "_journal/start.json") if n in file.NameToInfo), "")
        if not name:
            what = "this is a zip file, but not a log of Inspect"
            raise UserError(
                what, where=str(path), hint="an .eval file holds header.json and samples/"
            )
        return decode(_member(file, name, path), _Header, f"{path}: {name}")


def _opened(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except (*BROKEN_ZIP, NotImplementedError):
        what = "this is not a log of Inspect, or it is damaged"
        raise UserError(what, where=str(path), hint="an .eval file is a zip file") from None


def _member(file: zipfile.ZipFile, name: str, path: Path) -> bytes:
    info, where = file.getinfo(name), f"{path}: {name}"
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
    where = f"{where}: sample {sample.id}, epoch {sample.epoch}"
    choice = sample.output.choices[0] if sample.output.choices else None
    limit = (
        sample.limit.type
        if sample.limit
        else "token"
        if choice and choice.stop_reason in CUT
        else ""
    )
    thinking, answer = _said(sample, choice)
    said = Reply(thinking, answer, "length" if limit else "end", "")
    cost = _bill(sample, model, said)
    scores = {
        name: one
        for given, score in _scores(sample).items()
        for name, one in _flat(given, score).items()
    }
    return Sample(
        _problem(sample, size_of(sample.metadata, size, where)),
        sample.epoch - 1,
        Completion(thinking, answer, said.stop, cost),
        scores,
        sample.error.message or "error" if sample.error else "",
        limit,
    )


def _problem(sample: _Sample, size: int) -> Problem:
    given = [_Message("user", sample.input)] if isinstance(sample.input, str) else sample.input
    texts = [(message.role, _text(message, sample.attachments)) for message in given] or [
        ("user", "")
    ]
    system = "\n\n".join(text for role, text in texts if role == "system")
    chat = [(role, text) for role, text in texts if role != "system"] or [("user", "")]
    history = tuple(
        Message("assistant" if role == "assistant" else "user", text) for role, text in chat[:-1]
    )
    gold = [sample.target] if isinstance(sample.target, str) else sample.target
    return Problem(str(sample.id), size, (chat[-1][1],), gold, system, history, sample.metadata)


def _said(sample: _Sample, choice: _Choice | None) -> tuple[str, str]:
    """Thinking and answer: the answer is the last reply's text, the thinking everything that was
    written before it.
    """
    given = (
        [sample.input]
        if isinstance(sample.input, str)
        else [_text(m, sample.attachments) for m in sample.input]
    )
    texts = [_text(message, sample.attachments) for message in sample.messages]
    # What was asked comes first, perhaps after a system message that a solver has added.
    start = (
        next((i for i, text in enumerate(texts, 1) if i >= len(given) and text == given[-1]), 0)
        if given
        else 0
    )
    written = [m for m in sample.messages[start:] if m.role != "system"]
    last = (
        choice.message
        if choice
        else next((m for m in reversed(written) if m.role == "assistant"), None)
    )
    if last is None:
        return "", ""
    before = written[: max((i for i, m in enumerate(written) if m.role == "assistant"), default=0)]
    parts = []
    for message in before:
        text = _text(message, sample.attachments)
        parts += [
            _reasoning(message, sample.attachments),
            f"[{message.role}] {text}" if text else "",
        ]
    thinking = "\n\n".join(part for part in [*parts, _reasoning(last, sample.attachments)] if part)
    return encodable(thinking), encodable(_text(last, sample.attachments))


def _text(message: _Message, attached: Mapping[str, str]) -> str:
    if isinstance(message.content, str):
        return _resolved(message.content, attached)
    parts = (part for part in message.content if part.get("type") != "reasoning")
    return "".join(
        _resolved(str(p.get("text", "")), attached)
        if p.get("type") == "text"
        else f"[{p.get('type')}]"
        for p in parts
    )


def _reasoning(message: _Message, attached: Mapping[str, str]) -> str:
    if isinstance(message.content, str):
        return ""
    parts = (part for part in message.content if part.get("type") == "reasoning")
    return "\n\n".join(
        _resolved(str(p.get("summary" if p.get("redacted") else "reasoning") or ""), attached)
        for p in parts
    )


def _resolved(text: str, attached: Mapping[str, str]) -> str:
    return attached.get(text.removeprefix(ATTACHED), text) if text.startswith(ATTACHED) else text


def _bill(sample: _Sample, model: str, said: Reply) -> Bill:
    """The tokens of the model that was evaluated; those of a model that graded it are left out."""
    usage = sample.model_usage.get(model)
    counts = [_counts(u) for u in ([usage] if usage else sample.model_usage.values())]
    counted = {
        "prompt_tokens": sum(prompt for prompt, _, _, _ in counts),
        "completion_tokens": sum(completion for _, completion, _, _ in counts),
        "completion_tokens_details": {
            "reasoning_tokens": sum(thinking for _, _, thinking, _ in counts)
        },
        "prompt_tokens_details": {"cached_tokens": sum(cached for _, _, _, cached in counts)},
    }
    return bill(replace(said, usage=read_usage(counted)), sample.total_time or 0.0)


def _counts(usage: _Usage) -> tuple[int, int, int, int]:
    """Return prompt tokens, completion tokens, and how many of these were thinking and of those
    came from a cache.

    Inspect passes on what a provider counts. Some count reasoning inside the output tokens, others
    (Grok) beside them, where only the total tells. Newer logs count tokens of a cache beside the
    input, older ones may count them inside.
    """
    reasoning = usage.reasoning_tokens or 0
    cached = usage.input_tokens_cache_read or 0
    prompt = usage.input_tokens
    if usage.total_tokens - prompt - usage.output_tokens not in (0, reasoning):
        prompt += cached + (usage.input_tokens_cache_write or 0)
    completion = max(usage.output_tokens, usage.total_tokens - prompt)
    if reasoning > completion:  # so it was counted beside, and there is no total
        completion = usage.output_tokens + reasoning
    thinking = max(reasoning, completion - usage.output_tokens)
    return prompt, completion, thinking, cached


def _scores(sample: _Sample) -> dict[str, _Score]:
    return sample.scores or ({"score": sample.score} if sample.score else {})


def _flat(name: str, score: _Score) -> dict[str, Score]:
    """A scorer that returns several values counts as several: `grade.style`."""
    values = (
        {f"{name}.{key}": one for key, one in score.value.items()}
        if isinstance(score.value, dict)
        else {}
    )
    return {one: _score(value, score) for one, value in (values or {name: score.value}).items()}


def _score(value: Any, score: _Score) -> Score:
    number = _number(value)
    answer = "" if value == "N" else score.answer or ""  # N: no answer
    return Score(
        number,
        answer,
        "" if number is not None else score.reason or score.explanation or "not scored",
    )


def _number(value: Any) -> float | None:
    """A score as a number, as Inspect itself reads it; None if there is none."""
    if isinstance(value, str):
        known = VALUES.get(value, VALUES.get(value.lower()))
        if known is not None:
            return known
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool | int | float) and math.isfinite(value):
        return float(value)
    return None
