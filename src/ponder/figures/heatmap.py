"""Draws accuracy over two settings of a method as heat maps, and tells whether the best cell is
more than luck.

After DynTS (2026), whose maps of local window size against retention ratio print one number per
cell and take the largest. Here each cell has its interval, every cell that could be the best is
outlined, and a sentence says whether cells differ by more than sampling noise. Attempts of the same
model without the method, such as those with a full cache, are given above the map.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar, Literal

import altair as alt
import numpy as np

from ponder.core import Basis, Cell, Figure, Outcome, Records, Tables, UserError
from ponder.figures import (
    Row,
    basis,
    counts,
    flat,
    interval_tooltips,
    pooled_findings,
    rows_of,
    span,
    themed,
    values,
)
from ponder.figures._published import published
from ponder.figures._variants import other_settings, owners, points, setting_reader
from ponder.stats.accuracy import accuracy
from ponder.stats.columns import clusters
from ponder.stats.grid import Grid, from_accuracies, grid
from ponder.stats.paired import matched, paired_difference
from ponder.study.labels import beneath, cells_of, distinctions, in_words, panel_label, pooled

FULL = "full"  # the policy that evicts nothing: it has the settings, but they do nothing
PER_ROW = 4  # panels
CELL = (56, 40)  # pixels
INKS = ("#16181b", "white")  # on light cells and on dark ones
AXIS_TITLES = {"window": "local window size"}  # other settings have their own names
TIE = 1e-9  # accuracies closer than this are equal


@dataclass
class Map:
    """The attempts of one map, and those of the same model without the methods that it maps."""

    title: str
    task: str
    attempts: list[Outcome]
    reference: str  # what the model without the methods is called
    without: list[Outcome]


@dataclass
class Tabulated:
    """A map's statistics, with the values of its rows and columns."""

    title: str
    task: str
    source: Literal["measured", "published"]
    grid: Grid
    ys: list[Any]
    xs: list[Any]
    rests_on: str
    pooled: str = ""
    basis: Basis | None = None  # None: published
    # by row and column
    cell_bases: dict[tuple[int, int], Basis] = field(default_factory=dict)


@dataclass(frozen=True)
class Heatmap(Figure):
    # the setting across, or a detail that attempts record; `compress.ratio` if two methods have it
    x: str = "ratio"
    y: str = "window"  # the setting upwards
    by: str = "policy"  # the setting that gets one panel per value
    sizes: Literal["apart", "together"] = "apart"  # one panel per size, or all sizes in one
    scale: Literal["task", "panel"] = "task"  # whether the panels of a task share one colour scale
    overlay: Literal["", "dynts_window_ratio"] = ""  # published maps to draw below

    needs: ClassVar[dict[str, str]] = {
        "x": 'method = [{ name = "compress", …, window = [16, 32], ratio = [0.1, 0.3] }]',
        "y": 'method = [{ name = "compress", …, window = [16, 32], ratio = [0.1, 0.3] }]',
    }
    example: ClassVar[dict[str, Any]] = {"x": "history_turns", "y": "error_rate"}

    def estimate(self, outcomes: Sequence[Outcome]) -> Tables:
        tables: Tables = {"panels": [], "cells": [], "without": []}
        for measured in self._maps(outcomes):
            by_cell = self._by_cell(measured.attempts)
            tabulated = self._grid(measured, by_cell)
            self._add(tables, tabulated)
            if measured.without:
                mapped = tabulated.grid
                best = mapped.cells[mapped.best]
                best_cell = by_cell[tabulated.ys[best.row], tabulated.xs[best.column]]
                row = _without(measured, best_cell, len(mapped.cells))
                tables["without"].append(row)
        for published_map in self._published_maps():
            self._add(tables, published_map)
        return tables

    def _maps(self, outcomes: Sequence[Outcome]) -> list[Map]:
        """Group attempts into maps: by task, size, model and policy, and by other settings."""
        axes = (self.x, self.y, self.by)
        x_of = setting_reader(self.x)
        y_of = setting_reader(self.y)
        policy_of = setting_reader(self.by)
        model_beneath = beneath(outcomes, lambda cell: owners(cell, *axes))
        task_of = _tasks(outcomes, axes)
        groups: dict[tuple[str, int, str, str], list[Outcome]] = {}
        without: dict[tuple[str, int, str], list[Outcome]] = {}
        for outcome in outcomes:
            size = outcome.size if self.sizes == "apart" else 0
            model = model_beneath[outcome.cell.model_key].name
            panel = (task_of[outcome.cell], size, model)
            policy = policy_of(outcome)
            if x_of(outcome) is None or y_of(outcome) is None or policy == FULL:
                without.setdefault(panel, []).append(outcome)
            else:
                key = (*panel, "" if policy is None else str(policy))
                groups.setdefault(key, []).append(outcome)
        panels = {(task, size, model) for task, size, model, _ in groups}
        several_sizes = len({(task, model) for task, _, model in panels}) < len(panels)
        maps = []
        for (task, size, model, policy), attempts in sorted(groups.items()):
            settings = in_words(
                {cell.model_key: other_settings(cell, *axes) for cell in cells_of(attempts)}
            )
            first = attempts[0].cell
            methods = [first.owners[owner].name for owner in owners(first, *axes)]
            shown_size = size if several_sizes else None
            for text in sorted(set(settings.values())):
                matching = [o for o in attempts if settings[o.cell.model_key] == text]
                if not any(outcome.answered for outcome in matching):
                    continue
                measured = Map(
                    title=panel_label(task, shown_size, model=model, extra=[policy, text]),
                    task=panel_label(task, shown_size),
                    attempts=matching,
                    reference=FULL if policy else f"no {' and '.join(methods)}",
                    without=without.get((task, size, model), []),
                )
                maps.append(measured)
        if not maps:
            raise UserError(
                f"no attempt was made under both `{self.x}` and `{self.y}`, "
                "which this figure draws",
                hint="give a model a method that sweeps them: "
                f"{_key(self.y)} = [16, 32], {_key(self.x)} = [0.1, 0.3]",
            )
        return maps

    def _by_cell(self, attempts: Sequence[Outcome]) -> dict[tuple[Any, Any], list[Outcome]]:
        """Group the answered attempts by the values of `y` and `x`."""
        x_of = setting_reader(self.x)
        y_of = setting_reader(self.y)
        by_cell: dict[tuple[Any, Any], list[Outcome]] = {}
        for outcome in _shuffle_order(attempts):
            by_cell.setdefault((y_of(outcome), x_of(outcome)), []).append(outcome)
        return by_cell

    def _grid(self, measured: Map, by_cell: dict[tuple[Any, Any], list[Outcome]]) -> Tabulated:
        """Compare the cells of a map on the same problems."""
        ys = _levels(y for y, _ in by_cell)
        xs = _levels(x for _, x in by_cell)
        x_of = setting_reader(self.x)
        y_of = setting_reader(self.y)
        answered = _shuffle_order(measured.attempts)
        row = np.array([ys.index(y_of(outcome)) for outcome in answered], dtype=np.int64)
        column = np.array([xs.index(x_of(outcome)) for outcome in answered], dtype=np.int64)
        correct = np.array([outcome.correct for outcome in answered], dtype=np.bool_)
        cell_bases = {}
        for (y, x), attempts in by_cell.items():
            cell_bases[ys.index(y), xs.index(x)] = basis(attempts)
        return Tabulated(
            title=measured.title,
            task=measured.task,
            source="measured",
            grid=grid(row, column, clusters(answered), correct),
            ys=ys,
            xs=xs,
            rests_on=counts(measured.attempts),
            pooled=pooled([measured.attempts], (self.x, self.y, self.by)),
            basis=basis(answered),
            cell_bases=cell_bases,
        )

    def _published_maps(self) -> list[Tabulated]:
        """Return the published maps, by model, method and benchmark, in the order of the file."""
        groups: dict[tuple[str, str, str], Records] = {}
        for record in published(self.overlay) if self.overlay else []:
            key = (record["model"], record["method"], record["benchmark"])
            groups.setdefault(key, []).append(record)
        maps = []
        for (model, method, benchmark), records in groups.items():
            xs = _levels(record[_key(self.x)] for record in records)
            ys = _levels(record[_key(self.y)] for record in records)
            accuracies = np.full((len(ys), len(xs)), np.nan)
            for record in records:
                row = ys.index(record[_key(self.y)])
                column = xs.index(record[_key(self.x)])
                accuracies[row, column] = record["accuracy"]
            samples = records[0]["samples"]
            problems = records[0]["problems"]
            tabulated = Tabulated(
                title=f"{model} | {benchmark} | {method}, published",
                task=benchmark,
                source="published",
                grid=from_accuracies(accuracies, round(problems * samples)),
                ys=ys,
                xs=xs,
                rests_on=f"{samples:.0f} answers to each of {problems:.0f} questions per cell",
            )
            maps.append(tabulated)
        return maps

    def _add(self, tables: Tables, tabulated: Tabulated) -> None:
        """Add a map's row and those of its cells to the tables."""
        mapped = tabulated.grid
        best = mapped.cells[mapped.best]
        accuracies = [cell.accuracy.value for cell in mapped.cells]
        ties = [abs(value - best.accuracy.value) < TIE for value in accuracies]
        columns: Row = {
            "panel": tabulated.title,
            "task": tabulated.task,
            "source": tabulated.source,
            f"best_{self.y}": tabulated.ys[best.row],
            f"best_{self.x}": tabulated.xs[best.column],
            "best": best.accuracy,
            "runner_up": mapped.cells[mapped.runner_up].accuracy,
            "above_mean": best.accuracy.value - float(np.mean(accuracies)),
            "luck": mapped.luck,
            "may_be_best": mapped.in_set,
            "cells": len(mapped.cells),
            "p_value": mapped.p_value,
            "attempts_needed": mapped.needed,
            f"{self.y}_fraction": mapped.row.fraction,
            f"{self.y}_p": mapped.row.p_value,
            f"{self.x}_fraction": mapped.column.fraction,
            f"{self.x}_p": mapped.column.p_value,
            "interaction_fraction": mapped.interaction.fraction,
            "interaction_p": mapped.interaction.p_value,
            "noise_fraction": mapped.noise,
            "chi_square": mapped.chi_square,
            "slack": mapped.slack,
            "tied": sum(ties),
            "compared": mapped.compared,
            "rests_on": tabulated.rests_on,
            "pooled": tabulated.pooled,
        }
        panel = flat(**columns)
        if tabulated.basis:
            panel["basis"] = tabulated.basis
        tables["panels"].append(panel)
        for cell, tied in zip(mapped.cells, ties, strict=True):
            columns = {
                "panel": tabulated.title,
                self.y: tabulated.ys[cell.row],
                self.x: tabulated.xs[cell.column],
                "accuracy": cell.accuracy,
                "p_best": cell.p_best,
                "may_be_best": cell.in_set,
                "best": tied,
                "attempts": cell.accuracy.attempts,
            }
            row = flat(**columns)
            if tabulated.cell_bases:
                row["basis"] = tabulated.cell_bases[cell.row, cell.column]
            tables["cells"].append(row)

    def findings(self, tables: Tables) -> list[str]:
        sentences = pooled_findings(tables["panels"], "panel")
        slacks = []
        for panel in tables["panels"]:
            sentences.append(
                f"{panel['panel']}: {self._best(panel)}; {self._structure(panel)}.{_needed(panel)}"
            )
            for row in _without_rows(tables, panel):
                sentences.append(f"{panel['panel']}: {_gain(panel, row)}.")
            if panel["source"] == "published":
                slacks.append(f"{panel['slack']:.0%}")
        if slacks:
            sentences.append(
                "For published maps we have only the percentages, so answers are taken as "
                "independent. That overstates noise between cells that were asked the same "
                "questions, and understates it if a setting suits some questions only. To show "
                f"structure, the {len(slacks)} maps would need noise below {' / '.join(slacks)} of "
                "that."
            )
        return sentences

    def _best(self, panel: Row) -> str:
        """Name the best cell, and say how many cells could be the best."""
        right = span(panel, "best", ".0%")
        y = _text(panel[f"best_{self.y}"])
        x = _text(panel[f"best_{self.x}"])
        cell = f"{self.y} {y}, {self.x} {x}"
        if panel["tied"] > 1:
            clause = (
                f"{panel['tied']} cells tie for the best with {right} accuracy, one of them {cell}"
            )
        else:
            clause = f"the best cell ({cell}) has {right} accuracy"
        if panel["cells"] == 1:
            return clause
        if panel["may_be_best"] == 1:
            return f"{clause}, and no other cell could be the best"
        return f"{clause}, but {panel['may_be_best']} of {panel['cells']} cells could be the best"

    def _structure(self, panel: Row) -> str:
        """Say whether cells differ by more than noise, and along which axis."""
        if panel["p_value"] is None:
            return "too few problems were answered in every cell to compare cells"
        if panel["cells"] == 1:
            return "there is no other cell to compare it with"
        if panel["p_value"] < 0.05:
            clause = f"cells differ by more than sampling noise ({_p(panel['p_value'])})"
            sources = []
            for name in (self.y, self.x, "interaction"):
                fraction = panel[f"{name}_fraction"]
                p_value = panel[f"{name}_p"]
                if fraction is not None:
                    p = "" if p_value is None else f" ({_p(p_value)})"
                    sources.append(f"{name} {fraction:.0%}{p}")
            if sources:
                noise = panel["noise_fraction"] or 0
                clause += f"; variance between cells: {', '.join(sources)}, noise {noise:.0%}"
            return clause
        is_published = panel["source"] == "published"
        noise = "binomial noise" if is_published else "sampling noise"
        clause = f"the map shows no structure beyond {noise} ({_p(panel['p_value'])})"
        trends = {}
        for name in (self.y, self.x):
            if panel[f"{name}_p"] is not None:
                trends[name] = panel[f"{name}_p"]
        clear = [f"{name} ({_p(p)})" for name, p in trends.items() if p < 0.05 / len(trends)]
        if clear:
            return f"{clause}, but accuracy does vary with {' and '.join(clear)}"
        if trends and is_published:
            names = " or ".join(f"{name} ({_p(p)})" for name, p in trends.items())
            clause += f", nor a trend by {names} whatever the noise"
        return (
            f"{clause}: the best of {panel['cells']} equal cells would lie "
            f"{100 * panel['luck']:.1f} points above their mean by luck, and this one lies "
            f"{100 * panel['above_mean']:.1f} above it"
        )

    def draw(self, tables: Tables) -> alt.TopLevelMixin:
        rows = []
        for source in ("measured", "published"):
            panels = [panel for panel in tables["panels"] if panel["source"] == source]
            for i in range(0, len(panels), PER_ROW):
                row = panels[i : i + PER_ROW]
                # One legend for the panels next to each other that share a scale: the last has it.
                scales = [self._scale_of(panel) for panel in row]
                has_legend = [scale != following for scale, following in pairwise(scales)]
                has_legend.append(True)
                charts = []
                for panel, legend in zip(row, has_legend, strict=True):
                    charts.append(self._panel(tables, panel, legend=legend))
                rows.append(alt.hconcat(*charts, spacing=26).resolve_scale(color="independent"))
        note = [
            "Pass@1 (accuracy of one attempt) in %, with its 95 % interval.",
            "Outlined: could be the best cell (95 % confidence set). Bold: the highest.",
        ]
        if any(panel["source"] == "published" for panel in tables["panels"]):
            note.append(
                "Intervals of published maps are binomial: each answer is taken as independent."
            )
        text = f"Accuracy by {_axis_title(self.y)} and {_axis_title(self.x)}: darker is better"
        title = alt.TitleParams(text, subtitle=note)
        return themed(alt.vconcat(*rows, spacing=26).properties(title=title))

    def _scale_of(self, panel: Row) -> tuple[str, ...]:
        """Return the key of a panel's colour scale; panels with the same key share it."""
        if self.scale == "task":
            return panel["source"], panel["task"]
        return (panel["panel"],)

    def _panel(self, tables: Tables, panel: Row, *, legend: bool) -> Any:
        cells = _cells(tables, panel)
        accuracies = []
        for other in tables["panels"]:
            if self._scale_of(other) == self._scale_of(panel):
                accuracies += [cell["accuracy"] for cell in _cells(tables, other)]
        low = min(accuracies)
        high = max(accuracies)
        if high - low <= TIE:
            low -= 0.01
            high += 0.01
        columns = [_text(value) for value in _levels(cell[self.x] for cell in cells)]
        rows = [_text(value) for value in _levels(cell[self.y] for cell in cells)]
        width = CELL[0] * len(columns)
        height = CELL[1] * len(rows)
        band = alt.Scale(paddingInner=0.07, paddingOuter=0.04)
        x = alt.X(
            "column:N",
            sort=columns,
            title=_axis_title(self.x),
            axis=alt.Axis(labelAngle=0, ticks=False, domain=False, grid=False),
            scale=band,
        )
        y = alt.Y(
            "row:N",
            sort=rows[::-1],
            title=_axis_title(self.y),
            axis=alt.Axis(labelAngle=0, ticks=False, domain=False, grid=False, minExtent=32),
            scale=band,
        )
        colour_legend = None
        if legend:
            colour_legend = alt.Legend(
                title="Pass@1",
                titleFontWeight="normal",
                format=".0%",
                gradientThickness=8,
                gradientLength=height - 24,
                tickCount=4,
                offset=8,
            )
        colour = alt.Color(
            "accuracy:Q",
            scale=alt.Scale(scheme="yellowgreenblue", domain=[low, high]),
            legend=colour_legend,
        )
        tooltip = [
            alt.Tooltip("row:N", title=self.y),
            alt.Tooltip("column:N", title=self.x),
            *interval_tooltips("accuracy", ".3f"),
            alt.Tooltip("p_best:Q", title="p if it were the best", format=".3f"),
            "attempts:Q",
        ]
        ink = alt.condition("datum.dark", alt.value(INKS[1]), alt.value(INKS[0]))
        chart = alt.Chart(values([self._printed(cell, low, high) for cell in cells]))
        could_be_best = chart.transform_filter("datum.may_be_best")
        layers = [
            chart.mark_rect(cornerRadius=2).encode(x=x, y=y, color=colour, tooltip=tooltip),
            could_be_best.mark_rect(
                filled=False, stroke=INKS[0], strokeWidth=1.8, cornerRadius=2
            ).encode(x=x, y=y),
            chart.mark_text(dy=9, fontSize=9).encode(x=x, y=y, text="interval:N", color=ink),
            chart.transform_filter("datum.best === false")
            .mark_text(dy=-6, fontSize=12, fontWeight="normal")
            .encode(x=x, y=y, text="value:N", color=ink),
            chart.transform_filter("datum.best === true")
            .mark_text(dy=-6, fontSize=13, fontWeight="bold")
            .encode(x=x, y=y, text="value:N", color=ink),
        ]
        title = alt.TitleParams(
            panel["panel"],
            subtitle=_subtitle(panel, _without_rows(tables, panel)),
            fontSize=12,
        )
        return alt.layer(*layers, width=width, height=height, title=title)

    def _printed(self, cell: Row, low: float, high: float) -> Row:
        """Add the texts that are printed on a cell, and whether it is dark."""
        return {
            **cell,
            "row": _text(cell[self.y]),
            "column": _text(cell[self.x]),
            "value": f"{100 * cell['accuracy']:.1f}",
            "interval": f"[{100 * cell['accuracy_low']:.0f}, {100 * cell['accuracy_high']:.0f}]",
            "dark": (cell["accuracy"] - low) / (high - low) > 0.55,
        }


def _shuffle_order(attempts: Iterable[Outcome]) -> list[Outcome]:
    """Return the answered attempts, sorted by size and problem.

    The order of the problems decides which random shuffle each of them gets.
    """
    answered = [outcome for outcome in attempts if outcome.answered]
    return sorted(answered, key=lambda outcome: f"{outcome.size} {outcome.problem}")


def _tasks(outcomes: Sequence[Outcome], axes: Sequence[str]) -> dict[Cell, str]:
    """Name the task of each cell, without the settings that are an axis of the map."""
    distinct = distinctions(cells_of(outcomes), axes, of="task")
    names = {}
    for cell, label in cells_of(outcomes).items():
        names[cell] = label.task
        if any(f"task.{_key(axis)}" in cell.settings for axis in axes):
            names[cell] = f"{cell.settings['task.name']} {distinct[cell]}".strip()
    return names


def _key(name: str) -> str:
    """Return a setting's own name: `window` for `compress.window`."""
    return name.rpartition(".")[2]


def _axis_title(name: str) -> str:
    return AXIS_TITLES.get(_key(name), _key(name).replace("_", " "))


def _levels(settings: Iterable[Any]) -> list[Any]:
    """Return the values of a setting in order: numbers by size, then texts."""

    def order(value: Any) -> tuple[bool, Any]:
        return isinstance(value, str), value

    return sorted(set(settings), key=order)


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _cells(tables: Tables, panel: Row) -> Records:
    """Return the rows of a map's cells. Published maps have no attempts, but distinct titles."""
    if "basis" in panel:
        measured = [cell for cell in tables["cells"] if "basis" in cell]
        return rows_of(measured, panel)
    return [cell for cell in tables["cells"] if cell["panel"] == panel["panel"]]


def _without_rows(tables: Tables, panel: Row) -> Records:
    return [row for row in tables["without"] if row["panel"] == panel["panel"]]


def _without(measured: Map, best_cell: Sequence[Outcome], cells: int) -> Row:
    """Compare the best cell with the attempts without the mapped methods."""
    answered = [outcome for outcome in measured.without if outcome.answered]
    correct = np.array([outcome.correct for outcome in answered], dtype=np.bool_)
    # The best cell was picked from many, so its interval is corrected for as many comparisons
    # (Bonferroni).
    gain = paired_difference(*matched(best_cell, answered), level=1 - 0.05 / cells)
    return flat(
        panel=measured.title,
        without=measured.reference,
        accuracy=accuracy(correct, clusters(answered)),
        gain=gain,
        rests_on=counts(measured.without),
        basis=basis(measured.without),
    )


def _gain(panel: Row, row: Row) -> str:
    """Say what the best cell gains over the model without the mapped methods."""
    clause = (
        f"the best cell minus the {_reference(row)} ({span(row, 'accuracy', '.0%')}): "
        f"{points(row, 'gain')}, paired by problem"
    )
    if panel["cells"] > 1:
        clause += f", corrected for picking it from {panel['cells']} cells"
    return clause


def _reference(row: Row) -> str:
    return "full cache" if row["without"] == FULL else f"model with {row['without']}"


def _needed(panel: Row) -> str:
    """Say how many attempts would tell the best cell from the runner-up."""
    if panel["may_be_best"] == 1 or panel["p_value"] is None:
        return ""
    if panel["tied"] > 1 or panel["attempts_needed"] is None:
        return " Cells that tie can't be told apart with any number of attempts."
    needed = float(f"{panel['attempts_needed']:.2g}")
    return (
        f" About {needed:,.0f} attempts per cell would tell it from the runner-up, if its lead is "
        "real."
    )


def _p(p: float) -> str:
    if p < 0.001:
        return "p < 0.001"
    return f"p = {p:.2g}" if p < 0.995 else "p > 0.99"


def _subtitle(panel: Row, without: Records) -> list[str]:
    """Return the lines under a panel's title."""
    line = f"{panel['may_be_best']} of {panel['cells']} cells could be the best"
    if panel["p_value"] is not None:
        line += f"; cells differ: {_p(panel['p_value'])}"
    lines = [line, *textwrap.wrap(panel["pooled"], 60)]
    for row in without:
        lines.append(f"{_reference(row)}: {span(row, 'accuracy', '.0%')}")
    return lines
