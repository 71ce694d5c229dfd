"""What figures of variants share: settings of methods, panels of variants, differences in words.

Two methods of a chain may have a setting of the same name, so a figure that is asked for `window`
refuses to guess: `compress.window` says which one is meant. A name that no method has is looked up
among an attempt's details.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import altair as alt

from ponder.core import Cell, Outcome, Records, Resource, UserError
from ponder.figures import COLOURS, Row, counts, ends, wrapped
from ponder.figures._units import estimated
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

NOTES = ("estimated", "pooled", "seeds_pooled", "cut_short", "reason")  # columns of a panel


# Settings of the methods that a model was put under.


def setting(outcome: Outcome, name: str) -> Any:
    """Return a setting of a method (`window` or `compress.window`), else a detail, else None."""
    dotted = dotted_name(outcome.cell, name)
    if dotted:
        return outcome.cell.settings[dotted]
    return outcome.details.get(name)


def setting_reader(name: str) -> Callable[[Outcome], Any]:
    """Return `setting` for many outcomes: the methods of a cell are searched once."""
    names: dict[Cell, str] = {}

    def read(outcome: Outcome) -> Any:
        cell = outcome.cell
        if cell not in names:
            names[cell] = dotted_name(cell, name)
        dotted = names[cell]
        return cell.settings[dotted] if dotted else outcome.details.get(name)

    return read


def dotted_name(cell: Cell, name: str) -> str:
    """Return the full name of a method's setting in `Cell.settings`; "" if no method has it."""
    method, _, key = name.rpartition(".")
    having = []
    for owner, use in cell.owners.items():
        if key in use.settings and method in ("", use.name):
            having.append(owner)
    if not having:
        return ""
    if not method and len(having) > 1:
        methods = dict.fromkeys(cell.owners[owner].name for owner in having)
        raise UserError(
            f"`{name}` is a setting of {len(having)} methods of the chain "
            f"{' + '.join(cell.owners)}",
            hint=f"write {' or '.join(f'`{method}.{key}`' for method in methods)}",
        )
    return f"{having[-1]}.{key}"


def owners(cell: Cell, *names: str) -> list[str]:
    """Return the methods of the chain that have these settings, named as in `Cell.owners`."""
    methods = dict.fromkeys(_owner(cell, name) for name in names)
    return [owner for owner in methods if owner]


def _owner(cell: Cell, name: str) -> str:
    dotted = dotted_name(cell, name)
    key = name.rpartition(".")[2]
    return dotted.removesuffix(f".{key}")


def other_settings(cell: Cell, *names: str) -> dict[str, Any]:
    """Return the other settings of the methods that have these.

    If there are several such methods, a setting is named with its method: `compress.budget`.
    """
    taken = {dotted_name(cell, name) for name in names}
    methods = owners(cell, *names)
    settings = {}
    for owner in methods:
        use = cell.owners[owner]
        for key, value in use.settings.items():
            if f"{owner}.{key}" not in taken:
                settings[key if len(methods) == 1 else f"{use.name}.{key}"] = value
    return settings


# Panels of variants.


class Panel(NamedTuple):
    """The variants of a task, or of one size of it, by their names."""

    title: str
    outcomes: Mapping[str, Sequence[Outcome]]  # of each variant
    data: Variants  # on the problems that all of them answered; none if there are no such problems

    @property
    def attempts(self) -> list[Outcome]:
        return list(itertools.chain.from_iterable(self.outcomes.values()))

    @property
    def rests_on(self) -> str:
        """The attempts that it is based on, in words."""
        return rests_on(self.attempts, self.data.left_out)

    @property
    def pooled(self) -> str:
        """The sizes and settings that one of its variants pools, in words."""
        return pooled(self.outcomes.values())

    @property
    def estimated(self) -> str:
        """How many of its token counts are estimates, in words."""
        return estimated(self.attempts)


def rests_on(outcomes: Sequence[Outcome], left_out: int) -> str:
    """Say how many attempts a panel is based on, and how many problems it leaves out."""
    text = counts(outcomes)
    if left_out:
        text += f", {left_out:,} problems that not all answered left out"
    return text


def panels(
    outcomes: Mapping[str, Sequence[Outcome]],
    by: Literal["task", "size"],
    resource: Resource = "output",
    pool: bool = False,
) -> Iterator[Panel]:
    """Yield the panels that have answers, of variants by their names.

    `pool` pools the training seeds of each recipe.
    """
    for title, by_name in by_panel(outcomes, by):
        data = variants(by_name, resource)
        if pool:
            recipes = {name: _recipe(attempts[0].cell) for name, attempts in by_name.items()}
            data = pool_seeds(data, recipes)
        if data.variants or data.left_out:
            yield Panel(title, by_name, data)


def _recipe(cell: Cell) -> tuple[bytes | str, ...]:
    """Return a variant's base model and the names of its methods; their settings may differ."""
    return (cell.base_key, *(use.name for use in cell.chain))


def by_variant(outcomes: Iterable[Outcome]) -> dict[str, list[Outcome]]:
    """Group attempts by variant, under its name: all training seeds of a model together."""
    outcomes = list(outcomes)
    names = variant_labels(outcomes)
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(names[outcome.cell.variant_key], []).append(outcome)
    return groups


def by_panel(
    outcomes: Mapping[str, Sequence[Outcome]], by: Literal["task", "size"]
) -> Iterator[tuple[str, dict[str, list[Outcome]]]]:
    """Group named attempts by task, or by task and size, under the panel's title."""
    tasks = task_labels(itertools.chain.from_iterable(outcomes.values()))
    groups: dict[tuple[str, int], dict[str, list[Outcome]]] = {}
    for name, attempts in outcomes.items():
        for outcome in attempts:
            size = outcome.size if by == "size" else 0
            group = groups.setdefault((tasks[outcome.cell.task_key], size), {})
            group.setdefault(name, []).append(outcome)
    for task, size in sorted(groups):
        title = panel_label(task, size if by == "size" else None)
        yield title, groups[task, size]


def cut_short(data: Variants, short: Mapping[str, str]) -> str:
    """Say what a comparison leaves out, and because of which variants.

    "" if every variant answered every problem. `short` has the variants' short names.
    """
    problems = data.problems + data.left_out
    absent = [name for name, missing in data.missing.items() if missing >= problems]
    lacking = []
    for name, missing in data.missing.items():
        if name in short and name not in absent:
            lacking.append((missing, name))
    clauses = []
    if lacking:
        causes = []
        for missing, name in sorted(lacking, reverse=True)[:3]:
            causes.append(f"{short[name]} has no answer to {missing:,}")
        if len(lacking) > 3:
            causes.append(f"{len(lacking) - 3} more lack some")
        clauses.append(
            f"only {data.problems:,} of {problems:,} problems are compared, those that all "
            f"variants answered: {', '.join(causes)}"
        )
    if absent:
        names = ", ".join(short[name] for name in absent)
        verb = "has" if len(absent) == 1 else "have"
        clauses.append(f"{names} {verb} no answers and can't be compared")
    return "; ".join(clauses)


def cut_findings(panels: Records) -> list[str]:
    """Return sentences on what is left out, which come before any result."""
    return [f"{panel['panel']}: {panel['cut_short']}." for panel in panels if panel["cut_short"]]


def with_answers(panels: Records) -> Records:
    """Return the panels in which there is something to compare."""
    return [panel for panel in panels if panel["problems"]]


def panel_title(panel: Row, width: int) -> alt.TitleParams:
    """Return a panel's title: its name, the attempts it is based on, and further notes."""
    lines = wrapped(panel["rests_on"], int(width / 5.1))
    for name in NOTES:
        lines += wrapped(panel.get(name, ""), int(width / 5.1))
    return alt.TitleParams(panel["panel"], subtitle=lines, fontSize=12, frame="group")


def short_names(outcomes: Sequence[Outcome], reference: bytes) -> dict[str, str]:
    """Name each variant by its methods alone, if it has the same base model as the reference."""
    names = variant_labels(outcomes)
    short = short_variant_labels(outcomes, reference)
    return {names[key]: short[key] for key in names}


def colours(variants: Iterable[str]) -> dict[str, str]:
    """Return the colour of each variant, in the study's order.

    Without training seeds, its model has the same colour in other figures.
    """
    return dict(zip(variants, itertools.cycle(COLOURS), strict=False))


def seeds_pooled(data: Variants) -> str:
    """Say which variants' training seeds are pooled."""
    pools = dict.fromkeys(variant.pool for variant in data.variants if variant.pool)
    if not pools:
        return (
            f"`pool_seeds` has no effect: it needs {LEAST_ARMS} variants with the same methods and "
            "at least two training seeds each"
        )
    arms = " and ".join(str(pool.arms) for pool in pools)
    return (
        "pooled seeds (`pool_seeds`): accuracy is assumed to vary between training seeds equally, "
        f"in log odds, in {arms} variants; if one varies more, its interval is too narrow"
    )


# Differences in words.


def points(row: Row, name: str) -> str:
    """Write a difference of accuracies: `+2.5 points [−1.0, +6.0]`."""
    value, low, high = map(signed, ends(row, name))
    return f"{value} points [{low}, {high}]"


def signed(fraction: float) -> str:
    """Write a fraction in points, with a minus as long as the plus."""
    return f"{100 * fraction:+.1f}".replace("-", "−")


def corrected(rows: Records) -> Records:
    """Add `q_value`: each `p_value`, corrected for all of them; None where nothing is compared."""
    compared = [row["p_value"] for row in rows if row["p_value"] is not None]
    adjusted = iter(benjamini_hochberg(compared))
    with_q = []
    for row in rows:
        q = None if row["p_value"] is None else next(adjusted)
        with_q.append({**row, "q_value": q, "comparisons": len(compared)})
    return with_q


def differs(row: Row) -> bool:
    """Tell whether a difference is beyond chance, corrected for the figure's comparisons."""
    return row["q_value"] is not None and row["q_value"] <= FALSE_RATE


def verb_of(row: Row, name: str) -> str:
    """Return the verb for a corrected difference: the first `beats` the second, or …"""
    if not differs(row):
        return "can't be told from"
    return "beats" if row[name] > 0 else "is worse than"


def tested(row: Row) -> str:
    """Write the p-value, and the corrected one if there are several comparisons."""
    p = _p_value(row["p_value"])
    if row["comparisons"] == 1:
        return f"p {p}"
    return f"p {p}, q {_p_value(row['q_value'])} for {row['comparisons']} comparisons"


def _p_value(p: float) -> str:
    return f"= {p:.2g}" if p >= 0.001 else "< 0.001"
