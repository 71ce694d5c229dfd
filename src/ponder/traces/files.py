"""Files of traces, scored and chosen from, in memory that doesn't grow with their texts.

A scored record says which reward scored it: so a file that was begun is gone on with, and the scores of two rewards are
never ranked together.
"""

from __future__ import annotations

import inspect
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import cached_property
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import IO, Any

import msgspec

from ponder.core import Problem, Progress, Reward, Scores, UserError, digest, fingerprint
from ponder.traces import Trace, TraceFile, read, steps
from ponder.traces.segments import By
from ponder.traces.selection import Choice, Scored, Selection, select

OWN = ("score", "step_scores", "trajectory", "score_why", "scored_by")  # what scoring adds to a record
AT_ONCE = 1024  # traces that a reward gets together, or
CHARACTERS = 1_000_000  # fewer where they are long, so that what is scored is soon on disk


@dataclass
class Scoring:
    """The scores of a pile, written as they come; iterating does the work, and says now and then how it stands."""

    pile: TraceFile
    reward: Reward
    out: Path
    by: By = "blank"
    traces: int = 0  # in the pile
    before: int = 0  # of them scored before
    scored: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    tokens: int = 0  # that the reward read and wrote
    _started: float = 0.0

    def __iter__(self) -> Iterator[Progress]:
        _apart(self.pile.path, self.out)
        self.traces = sum(1 for _ in self.pile)  # a malformed line is refused before anything is spent
        if not self.traces:
            raise UserError(f"there are no traces in {self.pile.path}")
        held, self.before = self._begun()
        self._started = monotonic()
        yield self._report()
        if self.before < held:
            new = self.out.with_name(f"{self.out.name}.new")
            with _opened(new, "wb") as file:
                yield from self._write(self._held(), file)
            new.replace(self.out)
        with _opened(self.out, "ab") as file:
            yield from self._write(((trace, None) for trace in islice(self.pile, held, None)), file)

    def _report(self) -> Progress:
        now = self.scored + self.failed.total()
        a_second = now / max(monotonic() - self._started, 1e-9)
        left = self.traces - self.before - now
        report: Progress = {"scored": f"{self.before + now:,} of {self.traces:,}"}
        if now:
            report |= {"a second": f"{a_second:.3g}", "left": timedelta(seconds=round(left / a_second))}
        return report

    def summary(self) -> dict[str, Any]:
        counts = {"traces": self.traces, "scored": self.scored, "scored_before": self.before}
        more = {"failed": dict(self.failed), "skipped": len(self.pile.skipped), "tokens": self.tokens}
        return {"file": str(self.out), **counts, **more}

    def table(self) -> str:
        """The same for a reader."""
        rows = [(self.scored, "scored"), (self.before, "scored before")]
        rows += [(number, f"without a score: {why}") for why, number in self.failed.most_common()]
        lines = [f"{number:10,}  {what}" for number, what in rows if number or what == "scored"]
        return "\n".join([*few("skipped", self.pile.skipped), *lines])

    @cached_property
    def mark(self) -> str:
        """Names the reward with its settings, and the cut."""
        kind = type(self.reward)
        source = "" if kind.__module__.startswith("ponder.") else fingerprint(Path(inspect.getfile(kind)))
        return f"{self.reward.title()} {digest(self.reward.identity(), source, self.by).hex()[:12]}"

    def _begun(self) -> tuple[int, int]:
        """How many traces the file holds, and how many of them with a score. A line that was cut short is cut off."""
        if not self.out.is_file():
            return 0, 0
        held = scored = end = 0
        traces = iter(read(self.pile.path, self.pile.bad))
        with _opened(self.out, "rb+") as file:
            for line in file:
                trace, whole = next(traces, None), line.endswith(b"\n")
                if trace is None or not (self._wrote(line, trace) if whole else _began(line, trace)):
                    what = "this is not what this reward would write of this pile"
                    hint = "-o names another file; or delete this one, to score anew"
                    raise UserError(what, where=f"{self.out}:{held + 1}", hint=hint)
                if whole:
                    held, scored, end = held + 1, scored + (_record(line)["score"] is not None), end + len(line)
            file.truncate(end)
        return held, scored

    def _wrote(self, line: bytes, trace: Trace) -> bool:
        record = _record(line)
        return record.get("scored_by") == self.mark and _bare(record) == _bare(trace.record()) and "score" in record

    def _held(self) -> Iterator[tuple[Trace, bytes | None]]:
        """What the file holds, without the lines that have no score: a judge that was down may be up again."""
        with _opened(self.out, "rb") as file:
            for line, trace in zip(file, read(self.pile.path, self.pile.bad), strict=False):
                yield trace, None if _record(line)["score"] is None else line

    def _write(self, traces: Iterable[tuple[Trace, bytes | None]], file: IO[bytes]) -> Iterator[Progress]:
        """Each trace with its line, scored if it has none."""
        for some in _chunks(traces):
            new = [trace for trace, line in some if line is None]
            scores = iter(self.reward.score([steps(trace, self.by) for trace in new]))
            for trace, line in some:
                file.write(line or self._line(trace, next(scores)))
            file.flush()
            yield self._report()

    def _line(self, trace: Trace, scores: Scores) -> bytes:
        self.tokens += scores.bill.tokens
        if scores.total is None:
            self.failed[scores.why] += 1
            said: dict[str, Any] = {"score": None, "score_why": scores.why}
        else:
            self.scored += 1
            said = {"score": scores.total, "step_scores": scores.steps, "trajectory": scores.trajectory}
        return _encoded({**_bare(trace.record()), **said, "scored_by": self.mark})


def choose(pile: TraceFile, how: Choice, out: Path, asked: Iterable[Problem] = ()) -> Selection:
    """Select from a file of scored traces, and write those kept, the best first, each with why."""
    _apart(pile.path, out)
    selection = select(_scores(pile, how), how, asked)
    kept = {one.place: one for one in selection.kept}
    if not kept:
        return selection
    # Gone through in their order and written in another, and the texts may be more than memory holds.
    with _opened(out, "wb") as file, tempfile.TemporaryFile(dir=out.parent) as spool:
        found: dict[int, tuple[int, int]] = {}
        for place, trace in enumerate(pile):
            if one := kept.get(place):
                chosen = {k: v for k, v in asdict(one).items() if k in ("rank", "score", "tokens", "reason")}
                line = _encoded({**trace.record(), "chosen": chosen})
                found[one.rank] = spool.tell(), len(line)
                spool.write(line)
        for _, (start, length) in sorted(found.items()):
            spool.seek(start)
            file.write(spool.read(length))
    return selection


def few(what: str, lines: Sequence[str], most: int = 5) -> list[str]:
    """The first of many lines, and how many more there are."""
    more = [f"{what} {len(lines) - most:,} more"] if len(lines) > most else []
    return [f"{what} {line}" for line in lines[:most]] + more


def _scores(pile: TraceFile, how: Choice) -> Iterator[Scored]:
    mark: str | None = None
    for trace in pile:
        score, by = trace.extra.get("score"), str(trace.extra.get("scored_by", ""))
        if score is not None and (isinstance(score, bool) or not isinstance(score, int | float)):
            if pile.bad == "refuse":
                raise UserError(f"trace {trace.id}: score can't be {score!r:.40}", where=str(pile.path))
            score = None
        if score is not None and how.needs_scores:
            mark = by if mark is None else mark
            if by != mark:
                what = f"scores of two rewards can't be ranked together: `{mark}` and `{by}`"
                raise UserError(what, where=str(pile.path), hint="ponder score the whole pile with one of them")
        yield Scored(trace, score)


def _chunks(traces: Iterable[tuple[Trace, bytes | None]]) -> Iterator[list[tuple[Trace, bytes | None]]]:
    some, size = list[tuple[Trace, bytes | None]](), 0
    for trace, line in traces:
        some.append((trace, line))
        size += len(trace.thinking) + len(trace.answer)
        if len(some) == AT_ONCE or size >= CHARACTERS:
            yield some
            some, size = [], 0
    if some:
        yield some


def _record(line: bytes) -> dict[str, Any]:
    try:
        record: dict[str, Any] = msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.MsgspecError:
        return {}
    return record


def _began(line: bytes, trace: Trace) -> bool:
    """Whether a line without an end is the beginning of a trace's."""
    own = _encoded(_bare(trace.record()))[:-2]
    return line[: len(own)] == own[: len(line)]


def _bare(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in OWN}


def _encoded(record: dict[str, Any]) -> bytes:
    return msgspec.json.encode(record) + b"\n"


def _apart(pile: Path, out: Path) -> None:
    if pile.exists() and not (pile.is_file() or pile.is_dir()):
        raise UserError(f"{pile} is no file", hint="traces are gone through more than once: write them to a file first")
    if out.resolve() == pile.resolve():
        raise UserError(f"{out} would be written over while it is read", hint="-o names another file")


def _opened(path: Path, mode: str) -> IO[bytes]:
    try:
        return path.open(mode)
    except OSError as error:
        raise UserError(f"can't write {path}: {error.strerror}", hint="-o names another file") from None
