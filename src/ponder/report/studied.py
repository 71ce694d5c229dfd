"""What is to be shown of a study: its outcomes, and its figures, with intervals that hold for the way it was run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, NamedTuple

from ponder.core import Figure, Outcome
from ponder.runner.ballots import with_ballots
from ponder.runner.cells import Cell
from ponder.runner.store import Store
from ponder.runner.study import Study

if TYPE_CHECKING:
    from ponder.runner.adaptive import Decision


class Studied(NamedTuple):
    """A study as the store has it."""

    cells: Sequence[Cell]  # of an adaptive run, with the problems that were asked
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


def _adaptive(study: Study, store: Store) -> tuple[Sequence[Cell], Sequence[Decision]]:
    if study.stop is None:
        return study.cells, ()
    from ponder.runner.adaptive import asked_cells, decisions

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


def currency(cells: Sequence[Cell]) -> str:
    """The currency of the models' prices; "" if they have none, or several."""
    names = {cell.model.prices.currency for cell in cells if cell.model.prices}
    return names.pop() if len(names) == 1 else ""
