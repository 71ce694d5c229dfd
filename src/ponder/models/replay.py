"""Replays answers from a JSONL file, such as one that `ponder export --format jsonl` writes.

Each line has `problem` (its id) and `answer`, and may have `sample`, `turn`, `thinking`, `stop` and
the bill's tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Literal, Self

import msgspec

from ponder.core import (
    Bill,
    Completion,
    CountedBy,
    IgnoresMessages,
    Model,
    ModelFailure,
    Request,
    UserError,
    not_in_key,
)
from ponder.core.jsonl import RELATIVE, decode

EXAMPLE = Path(__file__).parent / "replay_example.jsonl"
LINE = '{"problem": "its id", "answer": "42", "thinking_tokens": 310}'


class StoredReply(msgspec.Struct):
    """One line of the file."""

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
class Replay(Model, IgnoresMessages):
    file: Path  # JSONL, relative to the study's folder
    concurrency: int = not_in_key(64)  # answers in progress at once

    example: ClassVar[dict[str, Any]] = {"file": str(EXAMPLE)}

    def title(self) -> str:
        return self.file.stem

    async def __aenter__(self) -> Self:
        # Byte offsets instead of texts, so that memory doesn't grow with the length of the answers.
        self._offsets: dict[tuple[str, int, int], int] = {}
        try:
            with self.file.open("rb") as lines:
                self._index(lines)
            self._lines = self.file.open("rb")
        except OSError as error:
            raise UserError(f"can't read {self.file}: {error.strerror}", hint=RELATIVE) from None
        return self

    def _index(self, lines: BinaryIO) -> None:
        offset = 0
        for number, line in enumerate(lines, 1):
            if line.strip():
                reply = decode(line, StoredReply, f"{self.file}:{number}", LINE)
                self._offsets[reply.problem, reply.sample, reply.turn] = offset
            offset += len(line)

    async def __aexit__(self, *error: object) -> None:
        self._lines.close()

    async def complete(self, request: Request) -> Completion:
        key = (request.problem.id, request.sample, request.turn)
        if key not in self._offsets:
            sample = f"sample {request.sample}, turn {request.turn}"
            raise ModelFailure(f"{self.file.name} has no answer to this problem ({sample})")
        self._lines.seek(self._offsets[key])
        reply = decode(self._lines.readline(), StoredReply, str(self.file), LINE)
        bill = Bill(
            reply.prompt_tokens,
            reply.thinking_tokens,
            reply.answer_tokens,
            reply.seconds,
            reply.counted_by,
        )
        return Completion(reply.thinking, reply.answer, reply.stop, bill)
