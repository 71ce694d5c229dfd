"""Draws two models on the same problems: difference in accuracy and ratio of tokens by size, with a
verdict.

A is the reference; a difference is B less A, a ratio B over A. `ponder compare` prints the numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from ponder.core import Figure, ModelLabel, Outcome, Records, Tables, UserError
from ponder.figures import COLOURS, INK, MUTED, heading, pooled_findings, themed, values
from ponder.figures._compared import compared_findings, compared_tables, end, in_common
from ponder.figures._tokens import TITLES, Tokens, counted, token_findings, token_kind
from ponder.figures._units import size_title, unit_of
from ponder.stats.columns import FEWEST_PAIRS
from ponder.stats.compare import compare_tasks
from ponder.study.labels import chosen_variant, pooled, task_labels, variant_labels

WIDTH, HEIGHT = 400, 260


@dataclass(frozen=True)
class Compare(Figure):
    a: ModelLabel = ""  # the reference; "": the study's first model
    b: ModelLabel = ""  # the model compared with it; "": the study's first other one
    margin: float = 0.03  # the loss of accuracy that is tolerable, as a fraction
    tokens: Tokens = "auto"  # which to count; auto: thinking if both models report it, else output

    def __post_init__(self) -> None:
        if not 0 < self.margin < 1:
            raise UserError(
                f"margin is a fraction between 0 and 1, not {self.margin:g}", hint="margin = 0.03"
            )
        if self.a and self.a == self.b:
            raise UserError(
                f"`{self.a}` can't be compared with itself",
                hint="give `a` and `b` different models",
            )

    def estimate(self, outcomes: Sequence[Outcome]) -> Tables:
        names = variant_labels(outcomes)
        if len(names) < 2:
            return compared_tables(("", ""), {}, []) | {"panels": []}
        b = chosen_variant(outcomes, self.b) if self.b else b""
        a = chosen_variant(outcomes, self.a, but=b)
        b = b or chosen_variant(outcomes, but=a)
        both = [o for o in outcomes if o.cell.variant_key in (a, b)]
        task_of = task_labels(both)
        tasks: dict[str, tuple[list[Outcome], list[Outcome]]] = {
            task: ([], []) for task in sorted(task_of.values())
        }
        for o in both:
            side = 1 if o.cell.variant_key == b else 0
            tasks[task_of[o.cell.task_key]][side].append(o)
        results = compare_tasks(list(tasks.values()), self.margin, token_kind(both, self.tokens))
        tables = compared_tables((names[a], names[b]), tasks, results)
        for record in tables["comparisons"]:
            sides = tasks[record["task"]]
            panel = {
                "task": record["task"],
                "unit": unit_of(sides[0], ""),
                **counted(both, self.tokens),
            }
            panel |= {"pooled": pooled(side for side in sides if side), "basis": record["basis"]}
            tables["panels"].append(panel)
        return tables

    def findings(self, tables: Tables) -> list[str]:
        if not tables["comparisons"]:
            return ["Nothing is compared: no two models answered the same problems."]
        first = token_findings(tables["panels"]) + compared_findings(tables)
        return first + pooled_findings(tables["panels"], "task")

    def draw(self, tables: Tables) -> alt.TopLevelMixin:
        return drawn(tables)


def drawn(tables: Tables) -> alt.TopLevelMixin:
    """The chart of tables that may have been made from two stores."""
    shown = []
    for record, panel in zip(tables["comparisons"], tables["panels"], strict=True):
        sizes = [r for r in tables["sizes"] if r["task"] == record["task"]]
        [whole] = [
            r for r in tables["rows"] if r["task"] == record["task"] and r["quantity"] == "accuracy"
        ]
        with_interval = [r for r in sizes if r["problems"] >= FEWEST_PAIRS]
        shown.append(_accuracy(record, panel, with_interval or sizes, whole))
        with_ratio = [r for r in sizes if r["ratio"] is not None]
        if with_ratio:
            tokens = [
                r
                for r in tables["rows"]
                if r["task"] == record["task"] and r["quantity"] == "tokens"
            ]
            shown.append(_tokens(panel, with_ratio, tokens))
    if not shown:
        nothing = alt.Chart(values([{"text": "no two models answered the same problems"}]))
        return themed(
            nothing.mark_text(color=INK).encode(text="text:N"), title="Nothing to compare"
        )
    first = tables["comparisons"][0]
    names = [f"A: {first['a']}", f"B: {first['b']}"]
    title = alt.TitleParams("B compared with A on the same problems", subtitle=names)
    return themed(alt.concat(*shown, columns=2, spacing=50).properties(title=title))


def _x(panel: dict[str, Any], sizes: Records) -> alt.X:
    places = [r["size"] for r in sizes]
    if len(places) == 1:  # a benchmark's one size is no size
        return alt.X("size:Q", axis=None)
    logarithmic = min(places) > 0
    # Sizes at the very edge would have half of their bars cut off.
    room = (
        [min(places) / 1.08, max(places) * 1.08]
        if logarithmic
        else [min(places) - 1, max(places) + 1]
    )
    scale = alt.Scale(type="log" if logarithmic else "linear", domain=room, nice=False)
    axis = alt.Axis(
        values=places, format="~g", labelOverlap="greedy", labelSeparation=5, grid=False
    )
    return alt.X(
        "size:Q",
        title=size_title(panel["unit"], "log scale" if logarithmic else ""),
        scale=scale,
        axis=axis,
    )


def _accuracy(
    record: dict[str, Any], panel: dict[str, Any], sizes: Records, whole: dict[str, Any]
) -> Any:
    x = _x(panel, sizes)
    low = min(-1.5 * record["margin"], *(r["difference_low"] for r in sizes))
    high = max(1.5 * record["margin"], *(r["difference_high"] for r in sizes))
    up = alt.Scale(domain=[low, high], nice=True)
    axis = alt.Axis(labelExpr="replace(format(100 * datum.value, '+~r'), '+0', '0')")
    y = alt.Y("difference:Q", title="accuracy, B less A (points)", scale=up, axis=axis)
    band = alt.Chart(values([whole])).mark_rect(opacity=0.15, color=COLOURS[0])
    over_all = [
        band.encode(y=alt.Y("effect_low:Q", scale=up), y2="effect_high:Q"),
        alt.Chart(values([whole]))
        .mark_rule(color=COLOURS[0])
        .encode(y=alt.Y("effect:Q", scale=up)),
    ]
    lines = [{"difference": 0.0, "what": "0"}, {"difference": -record["margin"], "what": "margin"}]
    rule = alt.Chart(values(lines)).mark_rule(strokeWidth=1.2)
    dash = alt.StrokeDash(
        "what:N", scale=alt.Scale(domain=["0", "margin"], range=[[1, 0], [4, 3]]), legend=None
    )
    points = alt.Chart(values(sizes))
    numbers = [alt.Tooltip(f"difference{e}:Q", format="+.3f") for e in ("", "_low", "_high")]
    tooltip = ["size:Q", *numbers, "problems:Q", "only_a:Q", "only_b:Q"]
    layers = [
        *(over_all if len(sizes) > 1 else ()),
        rule.encode(y=y, strokeDash=dash, color=alt.value("#3c4248")),
        points.mark_rule(color=COLOURS[0], strokeWidth=1.6).encode(
            x=x, y=alt.Y("difference_low:Q", scale=up), y2="difference_high:Q"
        ),
        points.mark_point(filled=True, size=55, color=COLOURS[0], opacity=1).encode(
            x=x, y=y, tooltip=tooltip
        ),
    ]
    notes = [
        record["sentence"],
        in_common(record),
        ("Bars: 95 % at each size alone. Band: all sizes." if len(sizes) > 1 else "Bar: 95 %.")
        + f" Dashed: the margin, {100 * record['margin']:g} points.",
    ]
    return alt.layer(
        *layers,
        width=WIDTH,
        height=HEIGHT,
        title=heading(f"Accuracy, {record['task']}", notes, WIDTH),
    )


def _tokens(panel: dict[str, Any], sizes: Records, rows: Records) -> Any:
    x = _x(panel, sizes)
    ends = [r[bound] for r in sizes for bound in ("ratio_low", "ratio_high") if r[bound]]
    up = alt.Scale(
        type="log", domain=[min([0.9, *ends]) / 1.02, max([1.1, *ends]) * 1.02], nice=False
    )
    axis = alt.Axis(
        format="~g",
        labelOverlap="greedy",
        values=[
            0.05,
            0.1,
            0.2,
            0.3,
            0.4,
            0.5,
            0.6,
            0.7,
            0.8,
            0.9,
            1,
            1.1,
            1.2,
            1.5,
            2,
            3,
            5,
            10,
            20,
        ],
    )
    y = alt.Y(
        "ratio:Q", title=f"{TITLES[panel['token_kind']]}, B over A (log scale)", scale=up, axis=axis
    )
    colour = COLOURS[2]
    curve = alt.Chart(values(sizes))
    tooltip = ["size:Q", *(alt.Tooltip(f"ratio{e}:Q", format=".3f") for e in ("", "_low", "_high"))]
    shape = alt.condition("datum.extrapolated", alt.value("white"), alt.value(colour))
    marks = (
        [
            curve.mark_area(opacity=0.15, color=colour),
            curve.mark_line(color=colour, strokeWidth=1.8),
        ]
        if len(sizes) > 1
        else [curve.mark_rule(color=colour, strokeWidth=1.6), curve.mark_point(opacity=0)]
    )
    layers = [
        alt.Chart(values([{"ratio": 1.0}]))
        .mark_rule(color=MUTED, strokeWidth=1.2)
        .encode(y=alt.Y("ratio:Q", scale=up)),
        marks[0].encode(x=x, y=alt.Y("ratio_low:Q", scale=up), y2="ratio_high:Q"),
        marks[1].encode(x=x, y=y),
        curve.mark_point(size=45, filled=True, opacity=1, stroke=colour).encode(
            x=x, y=y, fill=shape, tooltip=tooltip
        ),
    ]
    overall = [
        f"Over all problems: {r['effect']:.2f} [{end(r['effect_low'])}, {end(r['effect_high'])}]."
        for r in rows
    ]
    drawn_as = "Band: 95 %, at each size alone." if len(sizes) > 1 else "Bar: 95 %."
    notes = [*overall, "Ratio of geometric means; truncated attempts are censored. " + drawn_as]
    if any(r["extrapolated"] for r in sizes):
        notes.append(
            "White: more than 20 % of the attempts of one model were truncated, so the ratio is extrapolated."
        )
    return alt.layer(*layers, width=WIDTH, height=HEIGHT, title=heading("Tokens", notes, WIDTH))
