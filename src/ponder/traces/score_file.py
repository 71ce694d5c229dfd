"""Scores a file of traces with a reward, in memory that doesn't grow with their texts; resumes if interrupted.

Each score is appended to the output as soon as it is known. When all are there, the output is put into the order of the
source. A scored record names the reward that scored it, with its settings: Ponder does not resume from scores made with
another reward, another way of splitting steps, or another file. Copies of a trace are scored once.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from time import monotonic
from typing import IO, Any, NamedTuple, TypeVar

import msgspec

from ponder.core import Progress, Reward, Scores, UserError, digest, fingerprint
from ponder.core.scoring import scores_by_index
from ponder.traces import Trace, TraceFile, read, steps
from ponder.traces.rows import is_hub
from ponder.traces.segments import By

OWN = ("score", "step_scores", "trajectory", "score_why", "scored_by")  # the keys that scoring adds to a record
BATCH = 1024  # traces that a reward gets at once, sorted by length there, or
CHARACTERS = 1_000_000  # fewer if they are long
READ = 1000  # traces between two reports while the source is read
Key = TypeVar("Key")


class _Line(NamedTuple):
    """Where a trace's line is in the output."""

    start: int
    length: int
    scored: bool


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
    _order: list[bytes] = field(default_factory=list)  # the key of each trace of the source
    _lines: dict[bytes, _Line] = field(default_factory=dict)  # the last line of each trace in the output
    _written: list[bytes] = field(default_factory=list)  # the key of each line of the output

    def __iter__(self) -> Iterator[Progress]:
        check_output(self.source.path, self.out)
        yield from self._read()
        self._resume()
        times = Counter(self._order)
        self.scored_before = sum(times[key] for key, line in self._lines.items() if line.scored)
        self._started = monotonic()
        yield self._progress()
        with open_file(self.out, "ab") as file:
            for batch in batches(self._left()):
                for n, scores in scores_by_index(self.reward, [steps(trace, self.by) for _, trace in batch]):
                    key, trace = batch[n]
                    self._write(file, key, self._line(trace, scores, times[key]), scores)
                    yield self._progress()
        if self._written != self._order:
            self._sort()

    def _read(self) -> Iterator[Progress]:
        """Read the whole source, so that a malformed record raises before anything is spent."""
        self._order = []
        for trace in self.source:
            self._order.append(_key(trace.record()))
            if len(self._order) % READ == 0:
                yield {"read": f"{len(self._order):,}"}
        self.traces = len(self._order)
        if not self.traces:
            raise UserError(f"there are no traces in {self.source.path}")

    def _left(self) -> Iterator[tuple[bytes, Trace]]:
        """The traces to score, each once."""
        done = {key for key, line in self._lines.items() if line.scored}
        for trace in self.source:
            if (key := _key(trace.record())) not in done:
                done.add(key)
                yield key, trace

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
        return {"file": str(self.out), **counts, **more, "formats": dict(self.source.formats)}

    def table(self) -> str:
        """The summary as text, one fact per line."""
        rows = [(number, f"read as {kind}") for kind, number in self.source.formats.most_common()]
        rows += [(self.scored, "scored"), (self.scored_before, "scored by an earlier run")]
        rows += [(number, f"not scored: {why}") for why, number in self.unscored.most_common()]
        lines = [f"{number:10,}  {what}" for number, what in rows if number or what == "scored"]
        return "\n".join([*skipped_lines(self.source), *lines])

    @cached_property
    def mark(self) -> str:
        """Identifies the reward with its settings, and how steps are split."""
        kind = type(self.reward)
        source = "" if kind.__module__.startswith("ponder.") else fingerprint(Path(inspect.getfile(kind)))
        return f"{self.reward.title()} {digest(self.reward.identity(), source, self.by).hex()[:12]}"

    def _resume(self) -> None:
        """Find the lines that the output holds. An incomplete last line is removed."""
        self._lines, self._written = {}, []
        if not self.out.is_file():
            return
        known, start = set(self._order), 0
        with open_file(self.out, "rb+") as file:
            for line in file:
                record = _record(line)
                key = _key(record)
                complete = line.endswith(b"\n")
                ours = record.get("scored_by") == self.mark and "score" in record and key in known
                if not (ours if complete else self._began(line)):
                    what = "this line was not written by the same reward from the same file, so scoring can't resume"
                    hint = "-o names another file; or delete this one to score again"
                    raise UserError(what, where=f"{self.out}:{len(self._written) + 1}", hint=hint)
                if complete:
                    self._lines[key] = _Line(start, len(line), record["score"] is not None)
                    self._written.append(key)
                    start += len(line)
            file.truncate(start)

    def _began(self, line: bytes) -> bool:
        """Whether an incomplete line is the beginning of a trace's line."""
        return any(_starts(line, trace) for trace in read(self.source.path, "skip", self.source.columns))

    def _write(self, file: IO[bytes], key: bytes, line: bytes, scores: Scores) -> None:
        self._lines[key] = _Line(file.tell(), len(line), scores.total is not None)
        self._written.append(key)
        file.write(line)
        file.flush()

    def _sort(self) -> None:
        """Put the output into the order of the source, each trace with its last line."""
        new = self.out.with_name(f"{self.out.name}.new")
        with open_file(self.out, "rb") as old, open_file(new, "wb") as file:
            for key in self._order:
                old.seek(self._lines[key].start)
                file.write(old.read(self._lines[key].length))
        new.replace(self.out)

    def _line(self, trace: Trace, scores: Scores, times: int) -> bytes:
        self.tokens += scores.bill.tokens
        if scores.total is None:
            self.unscored[scores.why] += times
            own: dict[str, Any] = {"score": None, "score_why": scores.why}
        else:
            self.scored += times
            own = {"score": scores.total, "step_scores": scores.steps, "trajectory": scores.trajectory}
        return encoded({**_bare(trace.record()), **own, "scored_by": self.mark})


def batches(traces: Iterable[tuple[Key, Trace]]) -> Iterator[list[tuple[Key, Trace]]]:
    """Batches of one trace, two, four, and so on, so that the first scores are there at once."""
    batch, size, most = list[tuple[Key, Trace]](), 0, 1
    for key, trace in traces:
        batch.append((key, trace))
        size += len(trace.thinking) + len(trace.answer)
        if len(batch) >= most or size >= CHARACTERS:
            yield batch
            batch, size, most = [], 0, min(2 * most, BATCH)
    if batch:
        yield batch


def _key(record: dict[str, Any]) -> bytes:
    """Identifies a trace by all of its content, whether it was scored or not."""
    return blake2b(encoded(_bare(record)), digest_size=16).digest()


def _record(line: bytes) -> dict[str, Any]:
    try:
        record: dict[str, Any] = msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
    return record


def _starts(line: bytes, trace: Trace) -> bool:
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
    if not is_hub(source) and out.resolve() == source.resolve():
        raise UserError(f"{out} would be overwritten while it is read", hint="-o names another file")


def open_file(path: Path, mode: str) -> IO[bytes]:
    try:
        return path.open(mode)
    except OSError as error:
        raise UserError(f"can't write {path}: {error.strerror}", hint="-o names another file") from None
