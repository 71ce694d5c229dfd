"""Bars of accuracy by task and model, side by side, each with its interval and its number."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import altair as alt

from ponder.core import Records, Tables
from ponder.figures import heading, series_colour, values
from ponder.figures._units import LEVELS, at

BAR = 22  # pixels, with the space to the next
LABEL = 32  # letters in a line of a group's label


def bars(tables: Tables, models: Sequence[str], width: int) -> Any:
    """A group of bars per task and size, a bar per model; `models` is the order of their colours."""
    measured = _grouped([r for r in tables["sizes"] if r["accuracy"] is not None])
    groups = list(dict.fromkeys(r["group"] for r in measured))
    # A label that Vega cuts off would lose the level at its end.
    up = alt.Axis(
        labelExpr=r"split(datum.label, '\n')", labelLimit=0, title=None, ticks=False, labelPadding=8
    )
    y = alt.Y("group:N", sort=groups, axis=up, scale=alt.Scale(paddingInner=0.3, paddingOuter=0.15))
    beside = alt.YOffset("series:N", sort=models, scale=alt.Scale(paddingInner=0.15))
    x = alt.X(
        "accuracy:Q", title="accuracy", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%")
    )
    colour = series_colour(models)
    numbers = [alt.Tooltip(f"accuracy{e}:Q", format=".3f") for e in ("", "_low", "_high")]
    tooltip = [
        "model:N",
        "task:N",
        "size:Q",
        *numbers,
        "attempts:Q",
        "problems:Q",
        "unparsed:Q",
        "truncated:Q",
    ]
    shown = alt.Chart()
    layers = [
        shown.mark_bar(opacity=0.75).encode(
            y=y, yOffset=beside, x=x, color=colour, tooltip=tooltip
        ),
        shown.mark_rule(color="#222", strokeWidth=1.3).encode(
            y=y, yOffset=beside, x=alt.X("accuracy_low:Q"), x2="accuracy_high:Q"
        ),
        shown.mark_text(align="left", dx=5, fontSize=11, color="#222").encode(
            y=y,
            yOffset=beside,
            x=alt.X("accuracy_high:Q"),
            text=alt.Text("accuracy:Q", format=".0%"),
        ),
    ]
    notes = [f"{r['series']}: {r['rests_on']}" for r in tables["summary"]]
    title = heading(
        "Accuracy by task" if len(groups) > 1 else f"Accuracy on {groups[0]}".replace("\n", " "),
        notes,
        width,
    )
    height = alt.Step(BAR, **{"for": "offset"})
    return alt.layer(*layers, data=values(measured), width=width, height=height, title=title)


def _grouped(rows: Records) -> Records:
    """Rows with the name of their group, by task in the study's order, then by size."""
    tasks = list(dict.fromkeys(r["task"] for r in rows))
    sizes = {task: {r["size"] for r in rows if r["task"] == task} for task in tasks}
    ordered = sorted(rows, key=lambda r: (tasks.index(r["task"]), r["size"]))
    return [
        {**r, "series": r["model"], "group": _name(r, alone=len(sizes[r["task"]]) == 1)}
        for r in ordered
    ]


def _name(row: dict[str, Any], *, alone: bool) -> str:
    """A benchmark's one size is no size, and a level is named even if it is the only one."""
    if alone and not row["unit"]:
        return textwrap.fill(row["task"], LABEL)
    joined = " " if row["unit"] == LEVELS else ", "
    return textwrap.fill(f"{row['task']}{joined}{at(format(row['size'], 'g'), row['unit'])}", LABEL)
