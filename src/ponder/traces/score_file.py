"""Scores a file of traces with a reward, in memory that doesn't grow with the file; resumes if interrupted.

Each scored record names the reward that scored it, with its settings. Ponder does not resume from scores made with
another reward, another way of splitting steps, or another file.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import IO, Any

import msgspec

from ponder.core import Progress, Reward, Scores, UserError, digest, fingerprint
from ponder.traces import Trace, TraceFile, read, steps
from ponder.traces.segments import By

OWN = ("score", "step_scores", "trajectory", "score_why", "scored_by")  # the keys that scoring adds to a record
BATCH = 1024  # traces that a reward gets at once, or
CHARACTERS = 1_000_000  # fewer if they are long, so that scores are soon on disk


@dataclass
class Scoring:
    """Writes each trace with its scores to a file; iterating does the work and yields progress."""

    source: TraceFile
    reward: Reward
    out: Path
    by: By = "blank"  # how traces are split into steps
    traces: int = 0  # in the source
    scored_before: int = 0  # by an earlier run
    scored: int = 0
    unscored: Counter[str] = field(default_factory=Counter)  # by reason
    tokens: int = 0  # that the reward read and wrote
    _started: float = 0.0

    def __iter__(self) -> Iterator[Progress]:
        check_output(self.source.path, self.out)
        self.traces = sum(1 for _ in self.source)  # so that a malformed line raises before anything is spent
        if not self.traces:
            raise UserError(f"there are no traces in {self.source.path}")
        written, self.scored_before = self._resume()
        self._started = monotonic()
        yield self._progress()
        if self.scored_before < written:
            new = self.out.with_name(f"{self.out.name}.new")
            with open_file(new, "wb") as file:
                yield from self._write(self._written(), file)
            new.replace(self.out)
        with open_file(self.out, "ab") as file:
            yield from self._write(((trace, None) for trace in islice(self.source, written, None)), file)

    def _progress(self) -> Progress:
        now = self.scored + self.unscored.total()
        per_second = now / max(monotonic() - self._started, 1e-9)
        left = self.traces - self.scored_before - now
        progress: Progress = {"scored": f"{self.scored_before + now:,} of {self.traces:,}"}
        if now:
            progress |= {"per second": f"{per_second:.3g}", "left": timedelta(seconds=round(left / per_second))}
        return progress

    def summary(self) -> dict[str, Any]:
        counts = {"traces": self.traces, "scored": self.scored, "scored_before": self.scored_before}
        more = {"unscored": dict(self.unscored), "skipped": len(self.source.skipped), "tokens": self.tokens}
        return {"file": str(self.out), **counts, **more}

    def table(self) -> str:
        """The summary as text, one fact per line."""
        rows = [(self.scored, "scored"), (self.scored_before, "scored by an earlier run")]
        rows += [(number, f"not scored: {why}") for why, number in self.unscored.most_common()]
        lines = [f"{number:10,}  {what}" for number, what in rows if number or what == "scored"]
        return "\n".join([*skipped_lines(self.source), *lines])

    @cached_property
    def mark(self) -> str:
        """Identifies the reward with its settings, and how steps are split."""
        kind = type(self.reward)
        source = "" if kind.__module__.startswith("ponder.") else fingerprint(Path(inspect.getfile(kind)))
        return f"{self.reward.title()} {digest(self.reward.identity(), source, self.by).hex()[:12]}"

    def _resume(self) -> tuple[int, int]:
        """How many traces the output holds, and how many of them have a score. An incomplete last line is removed."""
        if not self.out.is_file():
            return 0, 0
        written = scored = end = 0
        traces = iter(read(self.source.path, self.source.bad))
        with open_file(self.out, "rb+") as file:
            for line in file:
                trace, complete = next(traces, None), line.endswith(b"\n")
                if trace is None or not (self._wrote(line, trace) if complete else _starts(line, trace)):
                    what = "this line was not written by the same reward from the same file, so scoring can't resume"
                    hint = "-o names another file; or delete this one to score again"
                    raise UserError(what, where=f"{self.out}:{written + 1}", hint=hint)
                if complete:
                    scored += _record(line)["score"] is not None
                    written, end = written + 1, end + len(line)
            file.truncate(end)
        return written, scored

    def _wrote(self, line: bytes, trace: Trace) -> bool:
        record = _record(line)
        return record.get("scored_by") == self.mark and _bare(record) == _bare(trace.record()) and "score" in record

    def _written(self) -> Iterator[tuple[Trace, bytes | None]]:
        """The output's traces and lines; None for a line without a score, which is scored again."""
        with open_file(self.out, "rb") as file:
            for line, trace in zip(file, read(self.source.path, self.source.bad), strict=False):
                yield trace, None if _record(line)["score"] is None else line

    def _write(self, traces: Iterable[tuple[Trace, bytes | None]], file: IO[bytes]) -> Iterator[Progress]:
        """Write each trace's line; score the traces that have none."""
        for batch in _batches(traces):
            new = [trace for trace, line in batch if line is None]
            scores = iter(self.reward.score([steps(trace, self.by) for trace in new]))
            for trace, line in batch:
                file.write(line or self._line(trace, next(scores)))
            file.flush()
            yield self._progress()

    def _line(self, trace: Trace, scores: Scores) -> bytes:
        self.tokens += scores.bill.tokens
        if scores.total is None:
            self.unscored[scores.why] += 1
            own: dict[str, Any] = {"score": None, "score_why": scores.why}
        else:
            self.scored += 1
            own = {"score": scores.total, "step_scores": scores.steps, "trajectory": scores.trajectory}
        return encoded({**_bare(trace.record()), **own, "scored_by": self.mark})


def _batches(traces: Iterable[tuple[Trace, bytes | None]]) -> Iterator[list[tuple[Trace, bytes | None]]]:
    batch, size = list[tuple[Trace, bytes | None]](), 0
    for trace, line in traces:
        batch.append((trace, line))
        size += len(trace.thinking) + len(trace.answer)
        if len(batch) == BATCH or size >= CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _record(line: bytes) -> dict[str, Any]:
    try:
        record: dict[str, Any] = msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.MsgspecError:
        return {}
    return record


def _starts(line: bytes, trace: Trace) -> bool:
    """Whether an incomplete line is the beginning of a trace's line."""
    own = encoded(_bare(trace.record()))[:-2]
    return line[: len(own)] == own[: len(line)]


def _bare(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in OWN}


def encoded(record: dict[str, Any]) -> bytes:
    return msgspec.json.encode(record) + b"\n"


def skipped_lines(source: TraceFile, most: int = 5) -> list[str]:
    """The first lines that were skipped, as text, and how many more there are."""
    more = [f"skipped {len(source.skipped) - most:,} more lines"] if len(source.skipped) > most else []
    return [f"skipped {line}" for line in source.skipped[:most]] + more


def check_output(source: Path, out: Path) -> None:
    """Raise `UserError` unless the source can be read twice and the output is another file."""
    if source.exists() and not (source.is_file() or source.is_dir()):
        raise UserError(f"{source} is not a regular file", hint="traces are read twice: write them to a file first")
    if out.resolve() == source.resolve():
        raise UserError(f"{out} would be overwritten while it is read", hint="-o names another file")


def open_file(path: Path, mode: str) -> IO[bytes]:
    try:
        return path.open(mode)
    except OSError as error:
        raise UserError(f"can't write {path}: {error.strerror}", hint="-o names another file") from None
