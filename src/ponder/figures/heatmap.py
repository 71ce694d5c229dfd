"""Accuracy over two settings of a method, one map a panel: which cells may be the best, and is the map more than noise?

After DynTS (2026), whose maps of local window against retention ratio print one number a cell and take the largest.
Here each cell has its interval, the cells that can't be excluded as the best are outlined, and a sentence says whether
cells differ by more than sampling noise. Attempts without the two settings, such as a full cache, stand above the map.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import altair as alt
import numpy as np

from ponder.core import Figure, Outcome, Records, Tables, UserError
from ponder.figures import counts, flat, model_alone, published, setting, settings_of, span, themed, values
from ponder.stats.accuracy import accuracy
from ponder.stats.columns import clusters
from ponder.stats.grid import Grid, from_shares, grid, matched, paired_difference

Panel = dict[str, Any]
FULL = "full"  # the policy that throws nothing away: it has the settings, and they do nothing
A_ROW = 4  # panels
CELL = (56, 40)  # pixels
INKS = ("#16181b", "white")  # on light and on dark


@dataclass(frozen=True)
class Heatmap(Figure):
    x: str = "ratio"  # the setting along each row, or a detail that the task records
    y: str = "window"  # the setting along each column
    by: str = "policy"  # the setting with a panel for each of its values
    sizes: Literal["apart", "together"] = "apart"  # a panel for each size, or one for all
    scale: Literal["panel", "shared"] = "panel"  # of the colours
    overlay: str = ""  # published maps to draw below: `dynts_window_ratio`

    example: ClassVar[dict[str, Any]] = {"x": "history_turns", "y": "error_rate"}

    def estimate(self, outcomes: Sequence[Outcome]) -> Tables:
        tables: Tables = {"panels": [], "cells": [], "without": []}
        for title, part, others in self._grouped(outcomes):
            answered = [o for o in part if o.status != "failed"]
            xs, ys = (_levels([setting(o, name) for o in answered]) for name in (self.x, self.y))
            row = np.array([ys.index(setting(o, self.y)) for o in answered], dtype=np.int64)
            column = np.array([xs.index(setting(o, self.x)) for o in answered], dtype=np.int64)
            right = np.array([o.correct for o in answered], dtype=np.bool_)
            found = grid(row, column, clusters(answered), right)
            self._tabulate(tables, title, "measured", found, ys, xs, counts(part))
            best = found.cells[found.best]
            of_best = [
                o for o in answered if (setting(o, self.y), setting(o, self.x)) == (ys[best.row], xs[best.column])
            ]
            tables["without"] += [_without(title, name, ref, of_best, len(found.cells)) for name, ref in others]
        for (model, method, benchmark), rows in _maps(self.overlay):
            xs, ys = (_levels([r[name] for r in rows]) for name in (self.x, self.y))
            shares = np.full((len(ys), len(xs)), np.nan)
            for r in rows:
                shares[ys.index(r[self.y]), xs.index(r[self.x])] = r["accuracy"]
            found = from_shares(shares, round(rows[0]["problems"] * rows[0]["samples"]))
            asked = f"{rows[0]['samples']:.0f} answers to each of {rows[0]['problems']:.0f} questions a cell"
            self._tabulate(tables, f"{model} | {benchmark} | {method}, published", "published", found, ys, xs, asked)
        return tables

    def _grouped(self, outcomes: Sequence[Outcome]) -> list[tuple[str, list[Outcome], list[tuple[str, list[Outcome]]]]]:
        """Each map's title, its attempts, and the attempts at the same problems that have no place on it."""
        maps: dict[tuple[Any, ...], dict[tuple[str, tuple[str, ...]], list[Outcome]]] = {}
        without: dict[tuple[Any, ...], dict[str, list[Outcome]]] = {}
        own = {self.x, self.y, self.by}
        for o in outcomes:
            asked = (o.task, o.size if self.sizes == "apart" else 0, model_alone(o))
            policy = setting(o, self.by)
            if setting(o, self.x) is None or setting(o, self.y) is None or policy == FULL:
                name = FULL if policy == FULL else o.model.partition(" + ")[2] or FULL
                without.setdefault(asked, {}).setdefault(name, []).append(o)
            else:
                rest = tuple(f"{k} {v}" for k, v in sorted(settings_of(o).items()) if k not in own)
                maps.setdefault(asked, {}).setdefault(("" if policy is None else str(policy), rest), []).append(o)
        if not any(o.status != "failed" for groups in maps.values() for part in groups.values() for o in part):
            raise UserError(
                f"no attempt was made under both `{self.x}` and `{self.y}`, which this figure draws",
                hint=f"give a model a method with lists of them: {self.y} = [16, 32], {self.x} = [0.1, 0.3]",
            )
        several = len({(task, model) for task, _, model in maps}) < len(maps)
        found = []
        for (task, size, model), groups in sorted(maps.items()):
            for (policy, rest), part in sorted(groups.items()):
                same = set.intersection(*(set(others) for p, others in groups if p == policy))
                varied = ", ".join(said for said in rest if said not in same)
                title = " | ".join(n for n in (model, f"{task} {size}" if several else task, policy, varied) if n)
                if any(o.status != "failed" for o in part):
                    found.append((title, part, sorted(without.get((task, size, model), {}).items())))
        return found

    def _tabulate(
        self, tables: Tables, title: str, source: str, found: Grid, ys: list[Any], xs: list[Any], rests_on: str
    ) -> None:
        best, second = found.cells[found.best], found.cells[found.runner_up]
        mean = float(np.mean([c.accuracy.value for c in found.cells]))
        place = {self.y: ys[best.row], self.x: xs[best.column]}
        record = flat(
            panel=title,
            source=source,
            **{f"best_{name}": value for name, value in place.items()},
            best=best.accuracy,
            runner_up=second.accuracy,
            above_mean=best.accuracy.value - mean,
            luck=found.luck,
            may_be_best=found.in_set,
            cells=len(found.cells),
            p_value=found.p_value,
            attempts_needed=found.needed,
            **{f"{self.y}_share": found.row.share, f"{self.y}_p": found.row.p_value},
            **{f"{self.x}_share": found.column.share, f"{self.x}_p": found.column.p_value},
            interaction_share=found.interaction.share,
            interaction_p=found.interaction.p_value,
            noise_share=found.noise,
            chi_square=found.chi_square,
            slack=found.slack,
            tied=sum(abs(c.accuracy.value - best.accuracy.value) < 1e-9 for c in found.cells),
            compared=found.compared,
            rests_on=rests_on,
        )
        tables["panels"].append(record)
        for cell in found.cells:
            tables["cells"].append(
                flat(
                    panel=title,
                    **{self.y: ys[cell.row], self.x: xs[cell.column]},
                    accuracy=cell.accuracy,
                    p_best=cell.p_best,
                    may_be_best=cell.in_set,
                    best=abs(cell.accuracy.value - best.accuracy.value) < 1e-9,
                    attempts=cell.accuracy.attempts,
                )
            )

    def findings(self, tables: Tables) -> list[str]:
        found = []
        for panel in tables["panels"]:
            found.append(f"{panel['panel']}: {self._best(panel)}; {self._structure(panel)}.{_needed(panel)}")
            found += [_against(panel, row) for row in tables["without"] if row["panel"] == panel["panel"]]
        slacks = [p["slack"] for p in tables["panels"] if p["source"] == "published"]
        if slacks:
            shares = " / ".join(f"{s:.0%}" for s in slacks)
            found.append(
                "Of published maps only the shares are known, so answers are taken as independent: too much noise "
                "where all cells were asked the same questions, too little where a setting suits some questions only. "
                f"To show structure, the {len(slacks)} maps would need noise below {shares} of that."
            )
        return found

    def _best(self, panel: Panel) -> str:
        right = span(panel, "best", ".0%")
        place = f"{self.y} {_said(panel[f'best_{self.y}'])}, {self.x} {_said(panel[f'best_{self.x}'])}"
        if panel["tied"] > 1:
            said = f"{panel['tied']} cells tie for the best with {right} right, one of them {place}"
        else:
            said = f"the best cell ({place}) is right in {right}"
        if panel["cells"] == 1:
            return said
        if panel["may_be_best"] == 1:
            return f"{said}, and every other cell can be excluded as the best"
        return f"{said}, but {panel['may_be_best']} of {panel['cells']} cells may be the best"

    def _structure(self, panel: Panel) -> str:
        if panel["p_value"] is None:
            return "too few problems were answered in every cell to compare cells"
        if panel["cells"] == 1:
            return "one cell is no map"
        parts = [
            f"{part} {panel[f'{part}_share']:.0%}{_p(panel[f'{part}_p'], ' (', ')')}"
            for part in (self.y, self.x, "interaction")
            if panel[f"{part}_share"] is not None
        ]
        if panel["p_value"] < 0.05:
            shares = f"; of the variance between cells, {', '.join(parts)}, noise {panel['noise_share']:.0%}"
            return f"the map shows more than sampling noise ({_p(panel['p_value'])}){shares if parts else ''}"
        noise = "binomial noise" if panel["source"] == "published" else "sampling noise"
        lines = [(name, panel[f"{name}_p"]) for name in (self.y, self.x) if panel[f"{name}_p"] is not None]
        clear = [f"{name} ({_p(p)})" for name, p in lines if p < 0.05 / len(lines)]
        said = f"the map shows no structure beyond {noise} ({_p(panel['p_value'])})"
        if clear:
            return f"{said}, though by {' and '.join(clear)} it does"
        if lines and panel["source"] == "published":
            said += f", nor beyond noise of any size by {' or '.join(f'{name} ({_p(p)})' for name, p in lines)}"
        luck, above = 100 * panel["luck"], 100 * panel["above_mean"]
        equal = f"the best of {panel['cells']} equal cells would lie {luck:.1f} points above their mean by luck"
        return f"{said}: {equal}, this one lies {above:.1f} above it"

    def draw(self, tables: Tables) -> alt.TopLevelMixin:
        rows = []
        for source in ("measured", "published"):
            panels = [self._panel(tables, p) for p in tables["panels"] if p["source"] == source]
            for i in range(0, len(panels), A_ROW):
                line = alt.hconcat(*panels[i : i + A_ROW], spacing=26)
                rows.append(line.resolve_scale(color="shared" if self.scale == "shared" else "independent"))
        outlined = f"Outlined: may be the best {self.y} and {self.x} (95 % confidence set); bold: the highest."
        note = ["Accuracy in % with its 95 % interval.", outlined]
        if any(p["source"] == "published" for p in tables["panels"]):
            note.append("Published maps print no intervals: theirs are binomial, each answer taken as independent.")
        title = alt.TitleParams(f"Accuracy by {self.y} and {self.x}", subtitle=note)
        return themed(alt.vconcat(*rows, spacing=26).properties(title=title))

    def _panel(self, tables: Tables, panel: Panel) -> Any:
        cells = [c for c in tables["cells"] if c["panel"] == panel["panel"]]
        low, high = _ends(tables["cells"] if self.scale == "shared" else cells)
        xs, ys = (_levels([c[name] for c in cells]) for name in (self.x, self.y))
        shown = [_printed(c, self.x, self.y, (low, high)) for c in cells]
        axis = alt.Axis(labelAngle=0, ticks=False, domain=False, grid=False)
        band = alt.Scale(paddingInner=0.07, paddingOuter=0.04)
        x = alt.X("column:N", sort=[_said(v) for v in xs], title=self.x, axis=axis, scale=band)
        aligned = alt.Axis(labelAngle=0, ticks=False, domain=False, grid=False, minExtent=32)
        y = alt.Y("row:N", sort=[_said(v) for v in reversed(ys)], title=self.y, axis=aligned, scale=band)
        colour = alt.Color(
            "accuracy:Q",
            scale=alt.Scale(scheme="yellowgreenblue", domain=[low, high]),
            legend=alt.Legend(
                title=None,
                format=".0%",
                gradientThickness=8,
                gradientLength=CELL[1] * len(ys) - 6,
                tickCount=4,
                offset=8,
            ),
        )
        base = alt.Chart(values(shown))
        tooltip = [
            alt.Tooltip("row:N", title=self.y),
            alt.Tooltip("column:N", title=self.x),
            *(alt.Tooltip(f"accuracy{e}:Q", format=".3f") for e in ("", "_low", "_high")),
            alt.Tooltip("p_best:Q", title="p, if it is the best", format=".3f"),
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
            some = base.transform_filter(f"datum.best === {str(best).lower()}")
            number = some.mark_text(dy=-6, fontSize=13 if best else 12, fontWeight="bold" if best else "normal")
            layers.append(number.encode(x=x, y=y, text="value:N", color=ink))
        title = alt.TitleParams(panel["panel"], subtitle=_under(panel, tables["without"]), fontSize=12)
        return alt.layer(*layers, width=CELL[0] * len(xs), height=CELL[1] * len(ys), title=title)


def _levels(found: Sequence[Any]) -> list[Any]:
    """The values of a setting in order: of their size if they are numbers."""
    return sorted(set(found), key=lambda v: (isinstance(v, str), str(v) if isinstance(v, str) else v))


def _maps(overlay: str) -> list[tuple[tuple[str, str, str], Records]]:
    """Published maps, each a model, a method and a benchmark, in the order of the file."""
    maps: dict[tuple[str, str, str], Records] = {}
    for r in published(overlay) if overlay else []:
        maps.setdefault((r["model"], r["method"], r["benchmark"]), []).append(r)
    return list(maps.items())


def _without(title: str, name: str, part: Sequence[Outcome], best: Sequence[Outcome], cells: int) -> dict[str, Any]:
    answered = [o for o in part if o.status != "failed"]
    right = accuracy(np.array([o.correct for o in answered], dtype=np.bool_), clusters(answered))
    # The best of so many cells is held to so many times the care.
    gain = paired_difference(*matched(best, answered), level=1 - 0.05 / cells)
    return flat(panel=title, without=name, accuracy=right, gain=gain, rests_on=counts(part))


def _against(panel: Panel, row: dict[str, Any]) -> str:
    picked = f", corrected for the pick from {panel['cells']} cells" if panel["cells"] > 1 else ""
    gain = span(row, "gain", "+.0%")
    return (
        f"{panel['panel']}: against the {row['without']} cache ({span(row, 'accuracy', '.0%')}) the best cell gains "
        f"{gain}, paired by problem{picked}."
    )


def _needed(panel: Panel) -> str:
    if panel["may_be_best"] == 1 or panel["p_value"] is None:
        return ""
    if panel["tied"] > 1 or panel["attempts_needed"] is None:
        return " No number of attempts tells apart cells that tie."
    needed = float(f"{panel['attempts_needed']:.2g}")
    return f" About {needed:,.0f} attempts a cell would tell it from the runner-up, if its lead is real."


def _p(p: float | None, before: str = "", after: str = "") -> str:
    if p is None:
        return ""
    return f"{before}{'p < 0.001' if p < 0.001 else f'p = {p:.2g}' if p < 0.995 else 'p > 0.99'}{after}"


def _said(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _ends(cells: Records) -> tuple[float, float]:
    """Where the colours begin and end."""
    shares = [c["accuracy"] for c in cells]
    low, high = min(shares), max(shares)
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
    told = _p(panel["p_value"], "; structure: ")
    said = [f"{panel['may_be_best']} of {panel['cells']} cells may be the best{told}"]
    own = [r for r in without if r["panel"] == panel["panel"]]
    return said + [f"{r['without']} cache: {span(r, 'accuracy', '.0%')}" for r in own]
