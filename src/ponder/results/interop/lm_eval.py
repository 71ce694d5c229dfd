"""Reads the samples files of lm-evaluation-harness: `samples_TASK_TIME.jsonl`, which
`--log_samples` writes.

Each line is a document under one filter; a metric under a filter counts as a scorer, written as the
harness does: `exact_match,strict-match`. The files have no token counts, so tokens are estimated
from the characters, and no word on whether a reply was cut, so no attempt is `truncated`. The
model's name is in `results_TIME.json` beside the file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ponder.core import Completion, Message, Problem, UserError
from ponder.core.jsonl import lines
from ponder.core.text import plain
from ponder.models.endpoint.reply import Reply, bill
from ponder.results.interop.eval_logs import (
    Log,
    Sample,
    Score,
    decode,
    size_of,
)
from ponder.tasks.reading import split_thinking

NAME = re.compile(r"samples_(.+)_(\d{4}-\d\d-\d\dT[\d.:-]+)")
NOTHING = "[invalid]"  # what a filter returns if it finds no answer


class _Line(msgspec.Struct):
    doc_id: int
    doc: dict[str, Any]
    target: Any
    resps: list[Any]
    filtered_resps: list[Any]
    arguments: Any = None
    filter: str = "none"
    metrics: list[str] = []


class _Config(msgspec.Struct):
    gen_kwargs: dict[str, Any] | str | None = None


class _Results(msgspec.Struct):
    model_name: str = ""
    config: _Config = msgspec.field(default_factory=_Config)


@dataclass(kw_only=True)
class LmEvalLog(Log):
    def samples(self, size: str = "") -> Iterator[Sample]:
        by_doc: dict[int, Sample] = {}
        for where, line in _lines(self.path):
            sample = by_doc.get(line[0].doc_id) or _read(line[0], size_of(line[0].doc, size, where))
            by_doc[line[0].doc_id] = sample._replace(scores={**sample.scores, **_scores(*line)})
        yield from by_doc.values()


def read(path: Path) -> LmEvalLog:
    """Open a samples file; raises `UserError` if it isn't one."""
    named = NAME.fullmatch(path.stem)
    task, stamp = (named[1], named[2]) if named else (path.stem.removeprefix("samples_"), "")
    results = path.with_name(f"results_{stamp}.json")
    known = (
        decode(results.read_bytes(), _Results, str(results)) if results.is_file() else _Results()
    )
    scorers = dict.fromkeys(name for _, line in _lines(path) for name in _scores(*line))
    gen = known.config.gen_kwargs
    return LmEvalLog(
        path=path,
        task=task,
        model=known.model_name or path.absolute().parent.name,
        run=path.stem,
        created=stamp,
        settings=gen if isinstance(gen, dict) else {},
        scorers=tuple(scorers),
    )


def _lines(path: Path) -> Iterator[tuple[str, tuple[_Line, dict[str, Any]]]]:
    for where, text in lines(path):
        values = decode(text.encode(), dict[str, Any], where)
        try:
            yield where, (msgspec.convert(values, _Line), values)
        except (
            msgspec.ValidationError,
            UnicodeEncodeError,
        ) as error:  # the latter: half a surrogate pair
            what = f"this is not a line of a samples file: {plain(error, 'an object')}"
            hint = "lm_eval --log_samples writes them: samples_TASK_TIME.jsonl"
            raise UserError(what, where=where, hint=hint) from None


def _scores(line: _Line, values: dict[str, Any]) -> dict[str, Score]:
    found = "" if line.filtered_resps == [NOTHING] else _text(line.filtered_resps)
    scores = {}
    for metric in line.metrics:
        value = values.get(metric)
        number = None
        if isinstance(value, bool | int | float):
            with suppress(OverflowError):  # JSON has integers that no float holds
                number = float(value)
        scores[f"{metric},{line.filter}"] = Score(
            number, found, "" if number is not None else "not scored"
        )
    return scores


def _read(line: _Line, size: int) -> Sample:
    thinking, answer = split_thinking(_text(line.resps))
    messages = _messages(line.arguments)
    system = "\n\n".join(m["content"] for m in messages if m["role"] == "system")
    chat = [
        Message("assistant" if m["role"] == "assistant" else "user", m["content"])
        for m in messages
        if m["role"] != "system"
    ] or [Message("user", "")]
    gold = (
        [str(one) for one in line.target] if isinstance(line.target, list) else [str(line.target)]
    )
    problem = Problem(
        str(line.doc_id), size, (chat[-1].content,), gold, system, tuple(chat[:-1]), line.doc
    )
    characters = sum(len(message.content) for message in problem.opening()) + len(problem.turns[0])
    cost = bill(Reply(thinking, answer, "end", ""), 0.0, prompt_estimate=characters // 4)
    return Sample(problem, 0, Completion(thinking, answer, "end", cost), {})


def _messages(arguments: Any) -> list[dict[str, str]]:
    """The prompt: a chat written as JSON, or a text."""
    prompt = arguments
    while isinstance(prompt, dict | list) and prompt:
        prompt = next(iter(prompt.values())) if isinstance(prompt, dict) else prompt[0]
    text = prompt if isinstance(prompt, str) else ""
    try:
        chat = msgspec.convert(json.loads(text), list[dict[str, Any]])
        return [
            {"role": str(message["role"]), "content": str(message["content"])} for message in chat
        ]
    except (ValueError, KeyError, RecursionError):
        return [{"role": "user", "content": text}]


def _text(replies: Any) -> str:
    """The first reply of a list of lists. Likelihoods of choices stay as they are, as JSON."""
    while isinstance(replies, list) and len(replies) == 1:
        replies = replies[0]
    if isinstance(replies, list) and replies and all(isinstance(one, str) for one in replies):
        return str(replies[0])
    return replies if isinstance(replies, str) else json.dumps(replies)
