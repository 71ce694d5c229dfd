"""Answers from a JSONL file, such as `ponder export --format jsonl` writes: a run again, without a model.

A line holds `problem` (its id) and `answer`, and may hold `sample`, `turn`, `thinking`, `stop` and the bill's tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Literal, Self

import msgspec

from ponder.core import Bill, Completion, CountedBy, Model, ModelFailure, Request, UserError, not_in_key

EXAMPLE = Path(__file__).parent / "replay_example.jsonl"


class Line(msgspec.Struct):
    problem: str
    answer: str
    sample: int = 0
    turn: int = 0
    thinking: str = ""
    stop: Literal["end", "length"] = "end"
    prompt_tokens: int = 0
    thinking_tokens: int = 0
    answer_tokens: int = 0
    seconds: float = 0.0
    counted_by: CountedBy = "estimate"


@dataclass(kw_only=True)
class Replay(Model):
    file: Path  # relative to the study's folder
    concurrency: int = not_in_key(64)

    example: ClassVar[dict[str, Any]] = {"file": str(EXAMPLE)}

    def title(self) -> str:
        return self.file.stem

    async def __aenter__(self) -> Self:
        # Places in the file, not texts, so that a file of any size fits in memory.
        self._places: dict[tuple[str, int, int], int] = {}
        try:
            self._lines: BinaryIO = self.file.open("rb")
        except OSError as error:
            hint = "the path is relative to the study's folder"
            raise UserError(f"can't read {self.file}: {error.strerror}", hint=hint) from None
        place = 0
        for n, text in enumerate(self._lines, 1):
            if text.strip():
                line = _line(text, f"{self.file}:{n}")
                self._places[line.problem, line.sample, line.turn] = place
            place += len(text)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._lines.close()

    async def complete(self, request: Request) -> Completion:
        key = (request.problem.id, request.sample, request.turn)
        if key not in self._places:
            raise ModelFailure(f"{self.file.name} has no answer to this problem (sample {request.sample})")
        self._lines.seek(self._places[key])
        line = _line(self._lines.readline(), str(self.file))
        tokens = (line.prompt_tokens, line.thinking_tokens, line.answer_tokens)
        return Completion(line.thinking, line.answer, line.stop, Bill(*tokens, line.seconds, line.counted_by))


def _line(text: bytes, where: str) -> Line:
    try:
        return msgspec.json.decode(text, type=Line)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        hint = '{"problem": "its id", "answer": "42", "thinking_tokens": 310}'
        raise UserError(str(error), where=where, hint=hint) from None
