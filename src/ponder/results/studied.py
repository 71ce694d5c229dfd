"""What is to be shown of a study: its outcomes, and its figures, with intervals that hold for the way it was run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ponder.core import Figure, Outcome, plugins
from ponder.core.settings import Table
from ponder.store.equal_answers import with_ballots
from ponder.store.file import connect, errors
from ponder.store.store import Store
from ponder.study.cell import StudyCell
from ponder.study.study import Study
from ponder.tasks._benchmark import Benchmark

if TYPE_CHECKING:
    from ponder.run.adaptive import Decision

S = TypeVar("S", bound=Study)
STORED_CELLS = "SELECT key, spec FROM cell ORDER BY id DESC"  # the newest first
NOT_STORED = "not stored"  # the digest of a benchmark that the store has no attempt at


class Studied(NamedTuple):
    """A study as the store has it."""

    cells: Sequence[StudyCell]  # of an adaptive run, with the problems that were asked
    outcomes: list[Outcome]
    figures: list[tuple[str, Figure]]  # with names of their own: a second `effort` is `effort-2`
    decisions: Sequence[Decision]  # what an adaptive run has found

    def suited(self, figure: Figure) -> Figure:
        """A figure with intervals for an adaptive run, if it was one and the figure has them."""
        return _suited(figure, self.decisions)


def studied(study: Study, store: Store, voting: bool | None = None) -> Studied:
    """Read a study. `voting`: outcomes say which answers are equal, which is slow; by default if a figure needs it."""
    cells, decisions = _adaptive(study, store)
    voting = any(figure.counts_votes for figure in study.figures) if voting is None else voting
    outcomes = with_ballots(store, cells) if voting else list(store.outcomes(cells))
    figures = [(name, _suited(figure, decisions)) for name, figure in _named(study.figures)]
    return Studied(cells, outcomes, figures, decisions)


def _adaptive(study: Study, store: Store) -> tuple[Sequence[StudyCell], Sequence[Decision]]:
    if study.stop is None:
        return study.cells, ()
    from ponder.run.adaptive import asked_cells, decisions

    return asked_cells(study, store), decisions(study, store)


def _suited(figure: Figure, decisions: Sequence[Decision]) -> Figure:
    of_sizes = any(decision.of == "critical_size" for decision in decisions)
    adaptable = any(f.name == "adaptive" for f in fields(figure))  # type: ignore[arg-type]
    return replace(figure, adaptive=True) if of_sizes and adaptable else figure  # type: ignore[type-var]


def _named(figures: Sequence[Figure]) -> Iterator[tuple[str, Figure]]:
    seen: Counter[str] = Counter()
    for figure in figures:
        name = figure.plugin_name()
        seen[name] += 1
        yield (name if seen[name] == 1 else f"{name}-{seen[name]}"), figure


def currency(cells: Sequence[StudyCell]) -> str:
    """The currency of the models' prices; "" if they have none, or several."""
    names = {cell.model.prices.currency for cell in cells if cell.model.prices}
    return names.pop() if len(names) == 1 else ""


def looked_at(study: S, store: Path) -> S:
    """Return the study for a command that only reads the store at a path: no data set is read for it.

    A benchmark is identified by a digest of its problems. The cells of its attempts hold that digest, so a study
    that is only looked at takes it from there, instead of reading the problems from the hub.
    """
    if not hub_benchmarks(study) or not store.is_file():
        return study
    with errors(store, writing=False):
        db = connect(store, write=False)
        try:
            cells = db.execute(STORED_CELLS).fetchall()
        finally:
            db.close()
    return without_data_sets(study, cells)


def hub_benchmarks(study: Study) -> list[str]:
    """Return the names of the study's benchmarks whose problems are known only after reading them from the hub."""
    names = [table["name"] for table in (*study.task, *study.train) if _is_from_hub(table)]
    return list(dict.fromkeys(names))


def _is_from_hub(table: Table) -> bool:
    name = table.get("name")
    if name not in plugins.names("tasks"):  # a file, or a mistake that is reported elsewhere
        return False
    kind = plugins.load("tasks", name)
    return issubclass(kind, Benchmark) and not table.get("file") and not table.get("digest")


def without_data_sets(study: S, cells: Sequence[tuple[bytes, str]]) -> S:
    """Return the study with the digests of its benchmarks as these stored cells (key, spec) have them.

    If the store has attempts at several versions of a benchmark, the newest that this study's models answered counts.
    """
    keys = {key for key, _ in cells}
    for name in hub_benchmarks(study):
        digests = list(dict.fromkeys(digest for _, spec in cells for digest in _digests(spec, name)))
        versions = [_with_digest(study, name, digest) for digest in digests or [NOT_STORED]]
        study = next((version for version in versions if _has_attempts(version, name, keys)), versions[0])
    return study


def _has_attempts(study: Study, name: str, keys: set[bytes]) -> bool:
    return any(cell.key in keys for cell in study.cells if cell.task.plugin_name() == name)


def _with_digest(study: S, name: str, digest: str) -> S:
    def filled(tables: Sequence[Table]) -> list[Table]:
        return [
            {**table, "digest": digest} if table.get("name") == name and _is_from_hub(table) else table
            for table in tables
        ]

    return replace(study, task=filled(study.task), train=filled(study.train))


def _digests(spec: str, name: str) -> Iterator[str]:
    """Yield the digests of a benchmark's problems that a cell's JSON holds, also of what its methods train on."""
    if name not in spec:
        return
    try:
        pending: list[Any] = [json.loads(spec)]
    except (ValueError, RecursionError):
        return  # `ponder store check` says so
    while pending:
        value = pending.pop()
        if isinstance(value, Mapping):
            problems = value.get("problems")
            if value.get("name") == name and isinstance(problems, str):
                yield problems
            pending += value.values()
        elif isinstance(value, list):
            pending += value
