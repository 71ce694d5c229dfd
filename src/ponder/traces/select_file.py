"""Selects from a file of scored traces, in memory that doesn't grow with their texts."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ponder.core import Problem, Progress, UserError
from ponder.traces import TraceFile
from ponder.traces.score_file import check_output, encoded, open_file, skipped_lines
from ponder.traces.selection import Choice, Scored, Selection, Selector

EVERY = 1000  # traces per report of progress


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
            if count % EVERY == 0:
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
                    message = f"scores of two rewards can't be ranked together: `{first_reward}` and `{reward}`"
                    raise UserError(
                        message,
                        where=str(self.source.path),
                        hint="score the whole file with one of them",
                    )
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
