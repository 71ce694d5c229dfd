"""`ponder.compare`: two models of a study on the same problems."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any

from ponder.core import Records, Tables, UserError, plugins
from ponder.core.settings import build
from ponder.results.notebook import renderer
from ponder.results.results import Results
from ponder.study.labels import variant_labels


@dataclass(frozen=True)
class Comparison:
    """What two models' answers to the same problems say. Differences are b less a, ratios b over a."""

    findings: list[str]  # the verdict of each task, then the numbers behind it
    tables: Tables  # every number with its interval and p-value, by table
    chart: Any  # Altair

    @property
    def rows(self) -> Records:
        """Accuracy, tokens, critical size and cost of a right answer, compared."""
        return self.tables["rows"]

    def __repr__(self) -> str:
        return "\n".join(self.findings)

    def _repr_html_(self) -> str:
        sentences = "".join(f"<li>{escape(sentence)}</li>" for sentence in self.findings)
        return f"{renderer(self.chart.to_dict())['text/html']}<ul>{sentences}</ul>"


def compare(results: Results, a: str = "", b: str = "", *, margin: float = 0.03) -> Comparison:
    """Compare model b with model a, the reference, on the problems that both answered.

    They are named by the labels of `results.summary()`, training seeds left out; a study of two models needs no names.
    The verdict is better, worse, not worse by more than `margin`, or how many more problems would tell. The command
    `ponder compare` does the same, also for two stores.
    """
    if not isinstance(results, Results):
        raise UserError(f"results are compared, not {results!r:.60}", hint="ponder.compare(study.results(), a, b)")
    known = variant_labels(results.outcomes).values()
    for label in filter(None, (a, b)):
        if label not in known:
            raise UserError(f"there are no attempts of a model `{label}`", hint=plugins.nearest(label, known))
    figure = build("figures", {"name": "compare", "a": a, "b": b, "margin": margin}, "compare", results.study.folder)
    tables = figure.estimate(results.outcomes)
    return Comparison(figure.findings(tables), tables, figure.draw(tables))
