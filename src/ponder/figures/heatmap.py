"""Draws accuracy over two settings of a method as heat maps, and tells whether the best cell is
more than luck.

After DynTS (2026), whose maps of local window size against retention ratio print one number per
cell and take the largest. Here each cell has its interval, every cell that could be the best is
outlined, and a sentence says whether cells differ by more than sampling noise. Attempts of the same
model without the method, such as those with a full cache, are given above the map.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Literal

import altair as alt
import numpy as np

from ponder.core import Basis, Cell, Figure, Outcome, Records, Tables, UserError
from ponder.figures import basis, counts, flat, pooled_findings, published, span, themed, values
from ponder.figures._settings import beside, owners, setting_reader
from ponder.figures._variants import points
from ponder.stats.accuracy import accuracy
from ponder.stats.columns import clusters
from ponder.stats.grid import Grid, from_accuracies, grid
from ponder.stats.paired import matched, paired_difference
from ponder.study.labels import beneath, cells_of, distinctions, in_words, panel_label, pooled

Panel = dict[str, Any]
FULL = "full"  # the policy that evicts nothing: it has the settings, but they do nothing
PER_ROW = 4  # panels
CELL = (56, 40)  # pixels
INKS = ("#16181b", "white")  # on light cells and on dark ones
AXIS_TITLES = {"window": "local window size"}  # other settings have their own names


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
        x_of, y_of = setting_reader(self.x), setting_reader(self.y)
        for title, task, part, others in self._grouped(outcomes):
            # Sorted, because the order of the problems decides which random shuffle each of them
            # gets.
            answered = sorted(
                (o for o in part if o.answered), key=lambda o: f"{o.size} {o.problem}"
            )
            at = [(y_of(o), x_of(o)) for o in answered]
            ys, xs = (_levels(taken) for taken in zip(*at, strict=True))
            row, column = np.array([(ys.index(y), xs.index(x)) for y, x in at], dtype=np.int64).T
            right = np.array([o.correct for o in answered], dtype=np.bool_)
            mapped = grid(row, column, clusters(answered), right)
            said = pooled([part], (self.x, self.y, self.by))
            places: dict[tuple[int, int], list[Outcome]] = {}
            for o, place in zip(
                answered, zip(row.tolist(), column.tolist(), strict=True), strict=True
            ):
                places.setdefault(place, []).append(o)
            behind = {place: basis(own) for place, own in places.items()}
            self._tabulate(
                tables, title, task, "measured", mapped, ys, xs, counts(part), said, behind
            )
            best = mapped.cells[mapped.best]
            of_best = [
                o
                for o, place in zip(answered, at, strict=True)
                if place == (ys[best.row], xs[best.column])
            ]
            tables["without"] += [
                _without(title, name, ref, of_best, len(mapped.cells)) for name, ref in others
            ]
        for (model, method, benchmark), rows in _maps(self.overlay):
            xs, ys = (_levels([r[_key(name)] for r in rows]) for name in (self.x, self.y))
            accuracies = np.full((len(ys), len(xs)), np.nan)
            for r in rows:
                accuracies[ys.index(r[_key(self.y)]), xs.index(r[_key(self.x)])] = r["accuracy"]
            mapped = from_accuracies(accuracies, round(rows[0]["problems"] * rows[0]["samples"]))
            asked = f"{rows[0]['samples']:.0f} answers to each of {rows[0]['problems']:.0f} questions per cell"
            title = f"{model} | {benchmark} | {method}, published"
            self._tabulate(tables, title, benchmark, "published", mapped, ys, xs, asked)
        return tables

    def _grouped(
        self, outcomes: Sequence[Outcome]
    ) -> list[tuple[str, str, list[Outcome], list[tuple[str, list[Outcome]]]]]:
        """Each map's title and task, its attempts, and those of the same model without the methods
        that are mapped.
        """
        maps: dict[tuple[str, int, str, str], list[Outcome]] = {}
        without: dict[tuple[str, int, str], list[Outcome]] = {}
        axes = (self.x, self.y, self.by)
        x_of, y_of, policy_of = map(setting_reader, axes)
        whole, task_of = beneath(outcomes, lambda cell: owners(cell, *axes)), _tasks(outcomes, axes)
        for o in outcomes:
            asked = (
                task_of[o.cell],
                o.size if self.sizes == "apart" else 0,
                whole[o.cell.model_key].name,
            )
            policy = policy_of(o)
            if x_of(o) is None or y_of(o) is None or policy == FULL:
                without.setdefault(asked, []).append(o)
            else:
                maps.setdefault((*asked, "" if policy is None else str(policy)), []).append(o)
        if not any(o.answered for part in maps.values() for o in part):
            raise UserError(
                f"no attempt was made under both `{self.x}` and `{self.y}`, which this figure draws",
                hint=f"give a model a method that sweeps them: {_key(self.y)} = [16, 32], {_key(self.x)} = [0.1, 0.3]",
            )
        several = len({(task, model) for task, _, model, _ in maps}) < len(
            {key[:3] for key in maps}
        )
        titled = []
        for (task, size, model, policy), part in sorted(maps.items()):
            rests = in_words({cell.model_key: beside(cell, *axes) for cell in cells_of(part)})
            first = part[0].cell
            methods = " and ".join(first.owners[owner].name for owner in owners(first, *axes))
            others = without.get((task, size, model), [])
            compared = [(FULL if policy else f"no {methods}", others)] if others else []
            shown_size = size if several else None
            for rest in sorted(set(rests.values())):
                own = [o for o in part if rests[o.cell.model_key] == rest]
                title = panel_label(task, shown_size, model=model, more=[policy, rest])
                if any(o.answered for o in own):
                    titled.append((title, panel_label(task, shown_size), own, compared))
        return titled

    def _tabulate(
        self,
        tables: Tables,
        title: str,
        task: str,
        source: str,
        mapped: Grid,
        ys: list[Any],
        xs: list[Any],
        rests_on: str,
        pooled: str = "",
        behind: Mapping[tuple[int, int], Basis] | None = None,  # None: published
    ) -> None:
        best, second = mapped.cells[mapped.best], mapped.cells[mapped.runner_up]
        mean = float(np.mean([c.accuracy.value for c in mapped.cells]))
        best_place = {self.y: ys[best.row], self.x: xs[best.column]}
        record = flat(
            panel=title,
            task=task,
            source=source,
            **{f"best_{name}": value for name, value in best_place.items()},
            best=best.accuracy,
            runner_up=second.accuracy,
            above_mean=best.accuracy.value - mean,
            luck=mapped.luck,
            may_be_best=mapped.in_set,
            cells=len(mapped.cells),
            p_value=mapped.p_value,
            attempts_needed=mapped.needed,
            **{f"{self.y}_fraction": mapped.row.fraction, f"{self.y}_p": mapped.row.p_value},
            **{f"{self.x}_fraction": mapped.column.fraction, f"{self.x}_p": mapped.column.p_value},
            interaction_fraction=mapped.interaction.fraction,
            interaction_p=mapped.interaction.p_value,
            noise_fraction=mapped.noise,
            chi_square=mapped.chi_square,
            slack=mapped.slack,
            tied=sum(abs(c.accuracy.value - best.accuracy.value) < 1e-9 for c in mapped.cells),
            compared=mapped.compared,
            rests_on=rests_on,
            pooled=pooled,
        )
        if behind is not None:
            record["basis"] = Basis(cell for own in behind.values() for cell in own.cells)
        tables["panels"].append(record)
        for place in mapped.cells:
            row = flat(
                panel=title,
                **{self.y: ys[place.row], self.x: xs[place.column]},
                accuracy=place.accuracy,
                p_best=place.p_best,
                may_be_best=place.in_set,
                best=abs(place.accuracy.value - best.accuracy.value) < 1e-9,
                attempts=place.accuracy.attempts,
            )
            if behind is not None:
                row["basis"] = behind[place.row, place.column]
            tables["cells"].append(row)

    def findings(self, tables: Tables) -> list[str]:
        sentences = pooled_findings(tables["panels"], "panel")
        for panel in tables["panels"]:
            sentences.append(
                f"{panel['panel']}: {self._best(panel)}; {self._structure(panel)}.{_needed(panel)}"
            )
            sentences += [
                _against(panel, row) for row in tables["without"] if row["panel"] == panel["panel"]
            ]
        slacks = [p["slack"] for p in tables["panels"] if p["source"] == "published"]
        if slacks:
            fractions = " / ".join(f"{s:.0%}" for s in slacks)
            sentences.append(
                "For published maps we have only the percentages, so answers are taken as independent. That overstates "
                "noise between cells that were asked the same questions, and understates it if a setting suits some "
                f"questions only. To show structure, the {len(slacks)} maps would need noise below {fractions} of that."
            )
        return sentences

    def _best(self, panel: Panel) -> str:
        right = span(panel, "best", ".0%")
        place = (
            f"{self.y} {_said(panel[f'best_{self.y}'])}, {self.x} {_said(panel[f'best_{self.x}'])}"
        )
        if panel["tied"] > 1:
            said = (
                f"{panel['tied']} cells tie for the best with {right} accuracy, one of them {place}"
            )
        else:
            said = f"the best cell ({place}) has {right} accuracy"
        if panel["cells"] == 1:
            return said
        if panel["may_be_best"] == 1:
            return f"{said}, and no other cell could be the best"
        return f"{said}, but {panel['may_be_best']} of {panel['cells']} cells could be the best"

    def _structure(self, panel: Panel) -> str:
        if panel["p_value"] is None:
            return "too few problems were answered in every cell to compare cells"
        if panel["cells"] == 1:
            return "there is no other cell to compare it with"
        parts = [
            f"{part} {panel[f'{part}_fraction']:.0%}{_p(panel[f'{part}_p'], ' (', ')')}"
            for part in (self.y, self.x, "interaction")
            if panel[f"{part}_fraction"] is not None
        ]
        if panel["p_value"] < 0.05:
            sources = f"; variance between cells: {', '.join(parts)}, noise {panel['noise_fraction'] or 0:.0%}"
            return f"cells differ by more than sampling noise ({_p(panel['p_value'])}){sources if parts else ''}"
        noise = "binomial noise" if panel["source"] == "published" else "sampling noise"
        lines = [
            (name, panel[f"{name}_p"])
            for name in (self.y, self.x)
            if panel[f"{name}_p"] is not None
        ]
        clear = [f"{name} ({_p(p)})" for name, p in lines if p < 0.05 / len(lines)]
        said = f"the map shows no structure beyond {noise} ({_p(panel['p_value'])})"
        if clear:
            return f"{said}, but accuracy does vary with {' and '.join(clear)}"
        if lines and panel["source"] == "published":
            said += f", nor a trend by {' or '.join(f'{name} ({_p(p)})' for name, p in lines)} whatever the noise"
        luck, above = 100 * panel["luck"], 100 * panel["above_mean"]
        equal = f"the best of {panel['cells']} equal cells would lie {luck:.1f} points above their mean by luck"
        return f"{said}: {equal}, and this one lies {above:.1f} above it"

    def draw(self, tables: Tables) -> alt.TopLevelMixin:
        rows = []
        for source in ("measured", "published"):
            panels = [p for p in tables["panels"] if p["source"] == source]
            for i in range(0, len(panels), PER_ROW):
                row = panels[i : i + PER_ROW]
                # One legend for the panels beside each other that share a scale.
                followed = [self._scale_of(a) == self._scale_of(b) for a, b in pairwise(row)]
                drawn = (
                    self._panel(tables, p, legend=not f)
                    for p, f in zip(row, [*followed, False], strict=True)
                )
                rows.append(alt.hconcat(*drawn, spacing=26).resolve_scale(color="independent"))
        note = [
            "Pass@1 (accuracy of one attempt) in %, with its 95 % interval.",
            "Outlined: could be the best cell (95 % confidence set). Bold: the highest.",
        ]
        if any(p["source"] == "published" for p in tables["panels"]):
            note.append(
                "Intervals of published maps are binomial: each answer is taken as independent."
            )
        head = f"Accuracy by {_axis_title(self.y)} and {_axis_title(self.x)}: darker is better"
        title = alt.TitleParams(head, subtitle=note)
        return themed(alt.vconcat(*rows, spacing=26).properties(title=title))

    def _scale_of(self, panel: Panel) -> tuple[str, ...]:
        """Panels for which this is the same share one colour scale."""
        return (panel["source"], panel["task"]) if self.scale == "task" else (panel["panel"],)

    def _panel(self, tables: Tables, panel: Panel, *, legend: bool) -> Any:
        cells = [c for c in tables["cells"] if c["panel"] == panel["panel"]]
        alike = {p["panel"] for p in tables["panels"] if self._scale_of(p) == self._scale_of(panel)}
        low, high = _ends([c for c in tables["cells"] if c["panel"] in alike])
        xs, ys = (_levels([c[name] for c in cells]) for name in (self.x, self.y))
        shown = [_printed(c, self.x, self.y, (low, high)) for c in cells]
        axis = alt.Axis(labelAngle=0, ticks=False, domain=False, grid=False)
        band = alt.Scale(paddingInner=0.07, paddingOuter=0.04)
        x = alt.X(
            "column:N",
            sort=[_said(v) for v in xs],
            title=_axis_title(self.x),
            axis=axis,
            scale=band,
        )
        aligned = alt.Axis(labelAngle=0, ticks=False, domain=False, grid=False, minExtent=32)
        y = alt.Y(
            "row:N",
            sort=[_said(v) for v in reversed(ys)],
            title=_axis_title(self.y),
            axis=aligned,
            scale=band,
        )
        colour = alt.Color(
            "accuracy:Q",
            scale=alt.Scale(scheme="yellowgreenblue", domain=[low, high]),
            legend=alt.Legend(
                title="Pass@1",
                titleFontWeight="normal",
                format=".0%",
                gradientThickness=8,
                gradientLength=CELL[1] * len(ys) - 24,
                tickCount=4,
                offset=8,
            )
            if legend
            else None,
        )
        base = alt.Chart(values(shown))
        tooltip = [
            alt.Tooltip("row:N", title=self.y),
            alt.Tooltip("column:N", title=self.x),
            *(alt.Tooltip(f"accuracy{e}:Q", format=".3f") for e in ("", "_low", "_high")),
            alt.Tooltip("p_best:Q", title="p if it were the best", format=".3f"),
            "attempts:Q",
        ]
        ink = alt.condition("datum.dark", alt.value(INKS[1]), alt.value(INKS[0]))
        layers = [
            base.mark_rect(cornerRadius=2).encode(x=x, y=y, color=colour, tooltip=tooltip),
            base.transform_filter("datum.may_be_best")
            .mark_rect(filled=False, stroke=INKS[0], strokeWidth=1.8, cornerRadius=2)
            .encode(x=x, y=y),
            base.mark_text(dy=9, fontSize=9).encode(x=x, y=y, text="interval:N", color=ink),
        ]
        for best in (False, True):
            cell = base.transform_filter(f"datum.best === {str(best).lower()}")
            number = cell.mark_text(
                dy=-6, fontSize=13 if best else 12, fontWeight="bold" if best else "normal"
            )
            layers.append(number.encode(x=x, y=y, text="value:N", color=ink))
        title = alt.TitleParams(
            panel["panel"], subtitle=_under(panel, tables["without"]), fontSize=12
        )
        return alt.layer(*layers, width=CELL[0] * len(xs), height=CELL[1] * len(ys), title=title)


def _tasks(outcomes: Sequence[Outcome], axes: Sequence[str]) -> dict[Cell, str]:
    """Name the task of each cell, without the settings that are an axis: a map has several of their
    values.
    """
    others = distinctions(cells_of(outcomes), axes, of="task")
    names = {}
    for cell, label in cells_of(outcomes).items():
        drawn = any(f"task.{_key(axis)}" in cell.settings for axis in axes)
        names[cell] = (
            f"{cell.settings['task.name']} {others[cell]}".strip() if drawn else label.task
        )
    return names


def _key(name: str) -> str:
    """A setting's own name: `window` for `compress.window`."""
    return name.rpartition(".")[2]


def _axis_title(name: str) -> str:
    return AXIS_TITLES.get(_key(name), _key(name).replace("_", " "))


def _levels(taken: Iterable[Any]) -> list[Any]:
    """The values of a setting in order, numbers by size."""
    return sorted(
        set(taken), key=lambda v: (isinstance(v, str), str(v) if isinstance(v, str) else v)
    )


def _maps(overlay: str) -> list[tuple[tuple[str, str, str], Records]]:
    """Published maps by model, method and benchmark, in the order of the file."""
    maps: dict[tuple[str, str, str], Records] = {}
    for r in published(overlay) if overlay else []:
        maps.setdefault((r["model"], r["method"], r["benchmark"]), []).append(r)
    return list(maps.items())


def _without(
    title: str, name: str, part: Sequence[Outcome], best: Sequence[Outcome], cells: int
) -> dict[str, Any]:
    answered = [o for o in part if o.answered]
    right = accuracy(np.array([o.correct for o in answered], dtype=np.bool_), clusters(answered))
    # The best cell was picked from many, so its interval is corrected for as many comparisons
    # (Bonferroni).
    gain = paired_difference(*matched(best, answered), level=1 - 0.05 / cells)
    return flat(
        panel=title,
        without=name,
        accuracy=right,
        gain=gain,
        rests_on=counts(part),
        basis=basis(part),
    )


def _against(panel: Panel, row: dict[str, Any]) -> str:
    picked = f", corrected for picking it from {panel['cells']} cells" if panel["cells"] > 1 else ""
    return (
        f"{panel['panel']}: the best cell less the {_reference(row)} ({span(row, 'accuracy', '.0%')}): "
        f"{points(row, 'gain')}, paired by problem{picked}."
    )


def _reference(row: dict[str, Any]) -> str:
    return "full cache" if row["without"] == FULL else f"model with {row['without']}"


def _needed(panel: Panel) -> str:
    if panel["may_be_best"] == 1 or panel["p_value"] is None:
        return ""
    if panel["tied"] > 1 or panel["attempts_needed"] is None:
        return " Cells that tie can't be told apart with any number of attempts."
    needed = float(f"{panel['attempts_needed']:.2g}")
    return f" About {needed:,.0f} attempts per cell would tell it from the runner-up, if its lead is real."


def _p(p: float | None, before: str = "", after: str = "") -> str:
    if p is None:
        return ""
    return f"{before}{'p < 0.001' if p < 0.001 else f'p = {p:.2g}' if p < 0.995 else 'p > 0.99'}{after}"


def _said(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _ends(cells: Records) -> tuple[float, float]:
    """The ends of the colour scale."""
    low, high = min(c["accuracy"] for c in cells), max(c["accuracy"] for c in cells)
    return (low, high) if high - low > 1e-9 else (low - 0.01, high + 0.01)


def _printed(cell: dict[str, Any], x: str, y: str, ends: tuple[float, float]) -> dict[str, Any]:
    dark = (cell["accuracy"] - ends[0]) / (ends[1] - ends[0]) > 0.55
    shown = {
        "row": _said(cell[y]),
        "column": _said(cell[x]),
        "value": f"{100 * cell['accuracy']:.1f}",
        "interval": f"[{100 * cell['accuracy_low']:.0f}, {100 * cell['accuracy_high']:.0f}]",
        "dark": dark,
    }
    return {**cell, **shown}


def _under(panel: Panel, without: Records) -> list[str]:
    """The lines under a panel's title."""
    told = _p(panel["p_value"], "; cells differ: ")
    said = [f"{panel['may_be_best']} of {panel['cells']} cells could be the best{told}"]
    said += textwrap.wrap(panel["pooled"], 60)
    own = [r for r in without if r["panel"] == panel["panel"]]
    return said + [f"{_reference(r)}: {span(r, 'accuracy', '.0%')}" for r in own]
