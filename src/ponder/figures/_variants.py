"""Groups outcomes into panels of variants, and gives variants short names; shared by the figures of
variants.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import altair as alt

from ponder.core import Cell, Outcome, Records, TokenKind
from ponder.figures import COLOURS, counts, wrapped
from ponder.figures._tokens import estimated
from ponder.stats.corrections import FALSE_RATE, benjamini_hochberg
from ponder.stats.frontier import Variants, pool_seeds, variants
from ponder.stats.seeds import LEAST_ARMS
from ponder.study.labels import (
    panel_label,
    pooled,
    short_variant_labels,
    task_labels,
    variant_labels,
)


class Panel(NamedTuple):
    """The variants of a task, or of one size of it, by their names."""

    title: str
    outcomes: Mapping[str, Sequence[Outcome]]  # of each variant
    data: Variants  # on the problems that all of them answered; none if there are no such problems

    @property
    def attempts(self) -> list[Outcome]:
        return [o for own in self.outcomes.values() for o in own]

    @property
    def rests_on(self) -> str:
        """The attempts that it is based on, in words."""
        left_out = self.data.left_out
        return counts(self.attempts) + (
            f", {left_out:,} problems that not all answered left out" if left_out else ""
        )

    @property
    def pooled(self) -> str:
        """The sizes and settings that one of its variants pools, in words."""
        return pooled(self.outcomes.values())

    @property
    def estimated(self) -> str:
        """How many of its token counts are estimates, in words."""
        return estimated(self.attempts)


def panels(
    outcomes: Mapping[str, Sequence[Outcome]],
    by: Literal["task", "size"],
    tokens: TokenKind = "output",
    pool: bool = False,
) -> Iterator[Panel]:
    """Return the panels that have answers, of variants by their names.

    `pool` pools the training seeds of each recipe.
    """
    for title, named in by_panel(outcomes, by):
        data = variants(named, tokens)
        if pool:
            data = pool_seeds(data, {name: _recipe(own[0].cell) for name, own in named.items()})
        if data.variants or data.left_out:
            yield Panel(title, named, data)


def by_variant(outcomes: Iterable[Outcome]) -> dict[str, list[Outcome]]:
    """Group attempts by variant, under its name: all training seeds of a model together."""
    outcomes = list(outcomes)
    names = variant_labels(outcomes)
    groups: dict[str, list[Outcome]] = {}
    for o in outcomes:
        groups.setdefault(names[o.cell.variant_key], []).append(o)
    return groups


def by_panel(
    outcomes: Mapping[str, Sequence[Outcome]], by: Literal["task", "size"]
) -> Iterator[tuple[str, dict[str, list[Outcome]]]]:
    """Group named attempts by task, or by task and size, under the panel's title."""
    tasks = task_labels(o for own in outcomes.values() for o in own)
    groups: dict[tuple[str, int], dict[str, list[Outcome]]] = {}
    for name, own in outcomes.items():
        for o in own:
            panel = (tasks[o.cell.task_key], o.size if by == "size" else 0)
            groups.setdefault(panel, {}).setdefault(name, []).append(o)
    for task, size in sorted(groups):
        yield panel_label(task, size if by == "size" else None), groups[task, size]


def cut_short(data: Variants, short: Mapping[str, str]) -> str:
    """What a comparison leaves out, and which variants are the cause; "" if every variant answered
    every problem.
    """
    every, clauses = data.problems + data.left_out, []
    present = {name for name in short if data.missing.get(name, 0) < every}
    if lacking := sorted(
        ((n, name) for name, n in data.missing.items() if name in present), reverse=True
    ):
        causes = [f"{short[name]} has no answer to {n:,}" for n, name in lacking[:3]]
        causes += [f"{len(lacking) - 3} more lack some"] if len(lacking) > 3 else []
        clauses.append(
            f"ONLY {data.problems:,} OF {every:,} PROBLEMS are compared, those that all variants answered: "
            + ", ".join(causes)
        )
    if absent := [short[name] for name in data.missing if name not in present]:
        clauses.append(
            f"{', '.join(absent)} {'has' if len(absent) == 1 else 'have'} no answers and can't be compared"
        )
    return "; ".join(clauses)


def cut_findings(records: Sequence[dict[str, Any]]) -> list[str]:
    """Sentences on what is left out, before any result."""
    return [f"{panel['panel']}: {panel['cut_short']}." for panel in records if panel["cut_short"]]


def with_answers(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The panels in which there is something to compare."""
    return [panel for panel in records if panel["problems"]]


def panel_title(panel: dict[str, Any], width: int) -> alt.TitleParams:
    """The title of a panel: its name, the attempts it is based on, what it pools, and what it
    leaves out.
    """
    others = ("estimated", "pooled", "seeds_pooled", "cut_short", "reason")
    notes = (panel["rests_on"], *(panel.get(name, "") for name in others))
    lines = [line for note in notes for line in wrapped(note, int(width / 5.1))]
    return alt.TitleParams(panel["panel"], subtitle=lines, fontSize=12, frame="group")


def short_names(outcomes: Sequence[Outcome], reference: bytes) -> dict[str, str]:
    """A name for each variant: its methods alone, if it has the same base model as the reference."""
    names, short = variant_labels(outcomes), short_variant_labels(outcomes, reference)
    return {names[key]: short[key] for key in names}


def colours(variants: Iterable[str]) -> dict[str, str]:
    """The colour of each variant, in the study's order.

    Without training seeds, its model has the same elsewhere.
    """
    return dict(zip(variants, itertools.cycle(COLOURS), strict=False))


def points(record: dict[str, Any], name: str) -> str:
    """A difference of accuracies in a sentence: `+2.5 points [−1.0, +6.0]`."""
    value, low, high = (signed(record[f"{name}{end}"]) for end in ("", "_low", "_high"))
    return f"{value} points [{low}, {high}]"


def signed(fraction: float) -> str:
    """In points, with a minus as long as the plus."""
    return f"{100 * fraction:+.1f}".replace("-", "−")


def corrected(records: Records) -> Records:
    """The records with `q_value`: their `p_value` (None where nothing is compared), corrected for
    all of them.
    """
    compared = [r["p_value"] for r in records if r["p_value"] is not None]
    q = iter(benjamini_hochberg(compared))
    return [
        {**r, "q_value": None if r["p_value"] is None else next(q), "comparisons": len(compared)}
        for r in records
    ]


def differs(record: dict[str, Any]) -> bool:
    """Whether a difference is beyond chance after the correction for all comparisons of the figure."""
    return record["q_value"] is not None and record["q_value"] <= FALSE_RATE


def compared(record: dict[str, Any], name: str) -> str:
    """What the corrected difference says about the first against the second."""
    if not differs(record):
        return "can't be told from"
    return "beats" if record[name] > 0 else "is worse than"


def tested(record: dict[str, Any]) -> str:
    """The p-value in a sentence, and the corrected one if there are several comparisons."""
    p, q = (_small(record[name]) for name in ("p_value", "q_value"))
    number = record["comparisons"]
    return f"p {p}" if number == 1 else f"p {p}, q {q} for {number} comparisons"


def _small(p: float) -> str:
    return f"= {p:.2g}" if p >= 0.001 else "< 0.001"


def _recipe(cell: Cell) -> tuple[bytes | str, ...]:
    """Return a variant's base model and the names of its methods; their settings may differ."""
    return (cell.base_key, *(use.name for use in cell.chain))


def seeds_pooled(data: Variants) -> str:
    """In words: the variants whose training seeds are pooled."""
    pools = {v.pool: None for v in data.variants if v.pool}
    if not pools:
        return (
            f"`pool_seeds` has no effect: it needs {LEAST_ARMS} variants with the same methods and at least two "
            "training seeds each"
        )
    arms = " and ".join(str(pool.arms) for pool in pools)
    return (
        "POOLED SEEDS (`pool_seeds`): accuracy is assumed to vary between training seeds equally, in log odds, in "
        f"{arms} variants; if one varies more, its interval is too narrow"
    )
