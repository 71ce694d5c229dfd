"""Selects from a file of scored traces, in memory that doesn't grow with their texts."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ponder.core import Problem, Progress, UserError
from ponder.traces import TraceFile
from ponder.traces.score_file import check_output, encoded, open_file, skipped_lines
from ponder.traces.selection import Choice, Scored, Selection, Selector

EVERY = 1000  # traces per report of progress


@dataclass
class Selecting:
    """Writes the traces to keep, the best first, each with the reason; iterating does the work and yields progress."""

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
        return {"file": str(self.out), **self.selection.summary(), "skipped": len(self.source.skipped)}

    def table(self) -> str:
        """The summary as text, one fact per line."""
        return "\n".join([*skipped_lines(self.source), self.selection.table()])

    def _scored(self) -> Iterator[Scored]:
        mark: str | None = None
        for trace in self.source:
            score, by = trace.extra.get("score"), str(trace.extra.get("scored_by", ""))
            if score is not None and (isinstance(score, bool) or not isinstance(score, int | float)):
                if self.source.bad == "refuse":
                    what = f"trace {trace.id}: score must be a number, not {score!r:.40}"
                    raise UserError(what, where=str(self.source.path))
                score = None
            if score is not None and self.how.needs_scores:
                mark = by if mark is None else mark
                if by != mark:
                    what = f"scores of two rewards can't be ranked together: `{mark}` and `{by}`"
                    raise UserError(what, where=str(self.source.path), hint="score the whole file with one of them")
            yield Scored(trace, score)

    def _write(self) -> None:
        kept = {one.index: one for one in self.selection.kept}
        # Read in the order of the source and written in order of rank, through a file: texts may not fit into memory.
        with open_file(self.out, "wb") as file, tempfile.TemporaryFile(dir=self.out.parent) as spool:
            spans: dict[int, tuple[int, int]] = {}  # by rank: start and length of the line
            for index, trace in enumerate(self.source):
                if one := kept.get(index):
                    chosen = {k: v for k, v in asdict(one).items() if k in ("rank", "score", "tokens", "reason")}
                    line = encoded({**trace.record(), "chosen": chosen})
                    spans[one.rank] = spool.tell(), len(line)
                    spool.write(line)
            for _, (start, length) in sorted(spans.items()):
                spool.seek(start)
                file.write(spool.read(length))
