"""Scores a file of traces with a reward, and selects from a scored file.

The memory that both need doesn't grow with the texts. If interrupted, scoring resumes: each score
is appended to the output as soon as it is known. When all are there, the output is put into the
order of the source. A scored record names the reward that scored it, with its settings: Ponder does
not resume from scores made with another reward, another way of splitting steps, or another file.
Copies of a trace are scored once.
"""

from __future__ import annotations

import inspect
import tempfile
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

from ponder.core import Problem, Progress, Reward, Scores, UserError, digest, fingerprint
from ponder.core.scoring import scores_by_index
from ponder.traces import Trace, TraceFile, read, steps
from ponder.traces.selection import Choice, Scored, Selection, Selector
from ponder.traces.split import By
from ponder.traces.trace_file import is_hub

# What scoring adds to a record.
SCORE_KEYS = ("score", "step_scores", "trajectory", "score_why", "scored_by")
BATCH = 1024  # traces that a reward gets at once; it sorts them by length
CHARACTERS = 1_000_000  # long traces come in smaller batches, which end here
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
    _lines: dict[bytes, _Line] = field(default_factory=dict)  # each trace's last line in the output
    _written: list[bytes] = field(default_factory=list)  # the key of each line of the output

    def __iter__(self) -> Iterator[Progress]:
        check_output(self.source.path, self.out)
        yield from self._read()
        self._resume()
        copies = Counter(self._order)
        self.scored_before = sum(copies[key] for key, line in self._lines.items() if line.scored)
        self._started = monotonic()
        yield self._progress()
        with open_file(self.out, "ab") as file:
            for batch in batches(self._unscored_traces()):
                split_traces = [steps(trace, self.by) for _, trace in batch]
                for n, scores in scores_by_index(self.reward, split_traces):
                    key, trace = batch[n]
                    self._count(scores, copies[key])
                    self._write(file, key, trace, scores)
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

    def _unscored_traces(self) -> Iterator[tuple[bytes, Trace]]:
        """Yield the traces to score with their keys, each once."""
        done = {key for key, line in self._lines.items() if line.scored}
        for trace in self.source:
            key = _key(trace.record())
            if key not in done:
                done.add(key)
                yield key, trace

    def _progress(self) -> Progress:
        scored_now = self.scored + self.unscored.total()
        scored = self.scored_before + scored_now
        progress: Progress = {"scored": f"{scored:,} of {self.traces:,}"}
        if scored_now:
            per_second = scored_now / max(monotonic() - self._started, 1e-9)
            seconds_left = round((self.traces - scored) / per_second)
            progress["per second"] = f"{per_second:.3g}"
            progress["left"] = timedelta(seconds=seconds_left)
        return progress

    def summary(self) -> dict[str, Any]:
        return {
            "file": str(self.out),
            "traces": self.traces,
            "scored": self.scored,
            "scored_before": self.scored_before,
            "unscored": dict(self.unscored),
            "skipped": len(self.source.skipped),
            "tokens": self.tokens,
            "formats": dict(self.source.formats),
        }

    def table(self) -> str:
        """Return the summary as text, one fact per line."""
        rows = skipped_lines(self.source)
        for kind, count in self.source.formats.most_common():
            rows.append(f"{count:10,}  read as {kind}")
        rows.append(f"{self.scored:10,}  scored")
        if self.scored_before:
            rows.append(f"{self.scored_before:10,}  scored by an earlier run")
        for why, count in self.unscored.most_common():
            rows.append(f"{count:10,}  not scored: {why}")
        return "\n".join(rows)

    @cached_property
    def mark(self) -> str:
        """Return what identifies the reward with its settings, and how steps are split."""
        reward_class = type(self.reward)
        source = ""
        if not reward_class.__module__.startswith("ponder."):
            source = fingerprint(Path(inspect.getfile(reward_class)))
        identity = digest(self.reward.identity(), source, self.by).hex()[:12]
        return f"{self.reward.title()} {identity}"

    def _resume(self) -> None:
        """Find the lines that the output holds, and remove an incomplete last line."""
        self._lines = {}
        self._written = []
        if not self.out.is_file():
            return
        source_keys = set(self._order)
        start = 0
        with open_file(self.out, "rb+") as file:
            for line in file:
                record = _record(line)
                key = _key(record)
                complete = line.endswith(b"\n")
                if complete:
                    same_reward = record.get("scored_by") == self.mark
                    resumable = same_reward and "score" in record and key in source_keys
                else:
                    resumable = self._began(line)
                if not resumable:
                    message = (
                        "this line was not written by the same reward from the same file, so"
                        " scoring can't resume"
                    )
                    hint = "-o names another file; or delete this one to score again"
                    raise UserError(
                        message, where=f"{self.out}:{len(self._written) + 1}", hint=hint
                    )
                if complete:
                    self._lines[key] = _Line(start, len(line), record["score"] is not None)
                    self._written.append(key)
                    start += len(line)
            file.truncate(start)

    def _began(self, line: bytes) -> bool:
        """Return whether an incomplete line is the beginning of a trace's line."""
        for trace in read(self.source.path, "skip", self.source.columns):
            beginning = encoded(_without_scores(trace.record())).removesuffix(b"}\n")
            if line[: len(beginning)] == beginning[: len(line)]:
                return True
        return False

    def _count(self, scores: Scores, copies: int) -> None:
        self.tokens += scores.bill.tokens
        if scores.total is None:
            self.unscored[scores.why] += copies
        else:
            self.scored += copies

    def _write(self, file: IO[bytes], key: bytes, trace: Trace, scores: Scores) -> None:
        """Append a trace with its scores to the output."""
        record = _without_scores(trace.record())
        record["score"] = scores.total
        if scores.total is None:
            record["score_why"] = scores.why
        else:
            record["step_scores"] = scores.steps
            record["trajectory"] = scores.trajectory
        record["scored_by"] = self.mark
        line = encoded(record)
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


def batches(traces: Iterable[tuple[Key, Trace]]) -> Iterator[list[tuple[Key, Trace]]]:
    """Yield batches of one trace, two, four, … so that the first scores are there at once."""
    batch = list[tuple[Key, Trace]]()
    characters = 0
    limit = 1
    for key, trace in traces:
        batch.append((key, trace))
        characters += len(trace.thinking) + len(trace.answer)
        if len(batch) >= limit or characters >= CHARACTERS:
            yield batch
            batch = []
            characters = 0
            limit = min(2 * limit, BATCH)
    if batch:
        yield batch


def _key(record: dict[str, Any]) -> bytes:
    """Return a hash of a trace's content, without its scores."""
    return blake2b(encoded(_without_scores(record)), digest_size=16).digest()


def _record(line: bytes) -> dict[str, Any]:
    """Return the record in a line; an empty one if the line is malformed."""
    try:
        record: dict[str, Any] = msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
    return record


def _without_scores(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in SCORE_KEYS}


def encoded(record: dict[str, Any]) -> bytes:
    return msgspec.json.encode(record) + b"\n"


def skipped_lines(source: TraceFile, limit: int = 5) -> list[str]:
    """Return the first lines that were skipped, as text, and how many more there are."""
    lines = [f"skipped {line}" for line in source.skipped[:limit]]
    if len(source.skipped) > limit:
        lines.append(f"skipped {len(source.skipped) - limit:,} more lines")
    return lines


def check_output(source: Path, out: Path) -> None:
    """Raise `UserError` unless the source can be read twice and the output is another file."""
    if source.exists() and not (source.is_file() or source.is_dir()):
        raise UserError(
            f"{source} is not a regular file",
            hint="traces are read twice: write them to a file first",
        )
    if not is_hub(source) and out.resolve() == source.resolve():
        raise UserError(
            f"{out} would be overwritten while it is read", hint="-o names another file"
        )


def open_file(path: Path, mode: str) -> IO[bytes]:
    try:
        return path.open(mode)
    except OSError as error:
        raise UserError(
            f"can't write {path}: {error.strerror}", hint="-o names another file"
        ) from None


@dataclass
class Selecting:
    """Writes the traces to keep, the best first, each with the reason.

    Iterating does the work and yields progress.
    """

    source: TraceFile
    how: Choice
    out: Path
    asked: Iterable[Problem] = ()  # evaluation problems in addition to `how.without`
    selection: Selection = field(init=False)  # known after iterating

    def __iter__(self) -> Iterator[Progress]:
        check_output(self.source.path, self.out)
        selector = Selector(self.how, self.asked)
        yield {"read": "0"}
        for count, scored in enumerate(self._scored(), 1):
            selector.add(scored)
            if count % READ == 0:
                yield {"read": f"{count:,}"}
        self.selection = selector.selection()
        if self.selection.kept:
            self._write()
        read = len(self.selection.kept) + len(self.selection.dropped)
        yield {"read": f"{read:,}", "kept": f"{len(self.selection.kept):,}"}

    def summary(self) -> dict[str, Any]:
        summary = {"file": str(self.out)} | self.selection.summary()
        summary["skipped"] = len(self.source.skipped)
        return summary

    def table(self) -> str:
        """Return the summary as text, one fact per line."""
        return "\n".join([*skipped_lines(self.source), self.selection.table()])

    def _scored(self) -> Iterator[Scored]:
        """Yield each trace with its score; raise `UserError` if two rewards made the scores."""
        first_reward: str | None = None
        for trace in self.source:
            score = trace.extra.get("score")
            if isinstance(score, bool) or not isinstance(score, int | float | None):
                if self.source.bad == "refuse":
                    message = f"trace {trace.id}: score must be a number, not {score!r:.40}"
                    raise UserError(message, where=str(self.source.path))
                score = None
            if score is not None and self.how.needs_scores:
                reward = str(trace.extra.get("scored_by", ""))
                if first_reward is None:
                    first_reward = reward
                if reward != first_reward:
                    rewards = f"`{first_reward}` and `{reward}`"
                    message = f"scores of two rewards can't be ranked together: {rewards}"
                    hint = "score the whole file with one of them"
                    raise UserError(message, where=str(self.source.path), hint=hint)
            yield Scored(trace, score)

    def _write(self) -> None:
        """Write the kept traces."""
        kept_traces = {kept.index: kept for kept in self.selection.kept}
        # Read in the order of the source and written in order of rank, through a file: texts may
        # not fit into memory.
        with (
            open_file(self.out, "wb") as file,
            tempfile.TemporaryFile(dir=self.out.parent) as spool,
        ):
            spans: dict[int, tuple[int, int]] = {}  # by rank: start and length of the line
            for index, trace in enumerate(self.source):
                kept = kept_traces.get(index)
                if kept is None:
                    continue
                record = trace.record()
                record["chosen"] = {
                    "rank": kept.rank,
                    "score": kept.score,
                    "tokens": kept.tokens,
                    "reason": kept.reason,
                }
                line = encoded(record)
                spans[kept.rank] = (spool.tell(), len(line))
                spool.write(line)
            for rank in sorted(spans):
                start, length = spans[rank]
                spool.seek(start)
                file.write(spool.read(length))
