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
    """Open a samples file; raise `UserError` if it isn't one."""
    task = path.stem.removeprefix("samples_")
    stamp = ""
    name = NAME.fullmatch(path.stem)
    if name:
        task = name[1]
        stamp = name[2]
    results = _Results()
    results_file = path.with_name(f"results_{stamp}.json")
    if results_file.is_file():
        results = decode(results_file.read_bytes(), _Results, str(results_file))
    scorers: dict[str, None] = {}
    for _, line in _lines(path):
        scorers |= dict.fromkeys(_scores(*line))
    settings = results.config.gen_kwargs
    return LmEvalLog(
        path=path,
        task=task,
        model=results.model_name or path.absolute().parent.name,
        run=path.stem,
        created=stamp,
        settings=settings if isinstance(settings, dict) else {},
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
            message = f"this is not a line of a samples file: {plain(error, 'an object')}"
            hint = "lm_eval --log_samples writes them: samples_TASK_TIME.jsonl"
            raise UserError(message, where=where, hint=hint) from None


def _scores(line: _Line, values: dict[str, Any]) -> dict[str, Score]:
    """Return the metrics of a line under its filter, by the harness's names for them."""
    answer = _text(line.filtered_resps)
    if line.filtered_resps == [NOTHING]:
        answer = ""
    scores = {}
    for metric in line.metrics:
        value = values.get(metric)
        score = Score(None, answer, "not scored")
        if isinstance(value, bool | int | float):
            with suppress(OverflowError):  # JSON has integers that no float holds
                score = Score(float(value), answer)
        scores[f"{metric},{line.filter}"] = score
    return scores


def _read(line: _Line, size: int) -> Sample:
    """Return the reply to a document, without scores: each line of the document adds some."""
    thinking, answer = split_thinking(_text(line.resps))
    system = []
    chat = []
    for message in _messages(line.arguments):
        if message["role"] == "system":
            system.append(message["content"])
        elif message["role"] == "assistant":
            chat.append(Message("assistant", message["content"]))
        else:
            chat.append(Message("user", message["content"]))
    if not chat:
        chat.append(Message("user", ""))
    targets = line.target if isinstance(line.target, list) else [line.target]
    problem = Problem(
        id=str(line.doc_id),
        size=size,
        turns=(chat[-1].content,),
        gold=[str(target) for target in targets],
        system="\n\n".join(system),
        history=tuple(chat[:-1]),
        facts=line.doc,
    )
    characters = len(problem.turns[0])
    for opening in problem.opening():
        characters += len(opening.content)
    cost = bill(Reply(thinking, answer, "end", ""), 0.0, prompt_estimate=characters // 4)
    return Sample(problem, 0, Completion(thinking, answer, "end", cost), {})


def _messages(arguments: Any) -> list[dict[str, str]]:
    """Return the prompt as messages: it is a chat written as JSON, or a text."""
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
    """Return the first reply of a list of lists; likelihoods of choices as JSON."""
    while isinstance(replies, list) and len(replies) == 1:
        replies = replies[0]
    if isinstance(replies, list) and replies and all(isinstance(reply, str) for reply in replies):
        return str(replies[0])
    return replies if isinstance(replies, str) else json.dumps(replies)
