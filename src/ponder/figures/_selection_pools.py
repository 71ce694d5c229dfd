"""Compares pools of traces, and says why selecting by reward does worse than chance where it does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import altair as alt

from ponder.core import Records, Tables
from ponder.figures import values
from ponder.figures._log import SIZE
from ponder.figures._selection import ALL, RANDOM, REWARD, UNTRAINED, traces
from ponder.figures._variants import differs

Row = dict[str, Any]
# more of one teacher than among random traces, from which on the teacher may be what was selected
LOPSIDED = 0.15


def shown_alone(tables: Tables) -> Records:
    """The panels that are drawn by number: of several pools those with several numbers, rewards or
    rules.
    """
    several = set()
    for panel in (p["panel"] for p in tables["panels"]):
        own = [s for s in tables["students"] if s["panel"] == panel]
        lines, rewarded = [s["line"] for s in own], {s["line"] for s in own if s["by"] == REWARD}
        several |= {panel} if len(set(lines)) < len(lines) or len(rewarded) > 1 else set()
    return [p for p in tables["panels"] if p["panel"] in several or not p["pool"] or not several]


def by_pool(tables: Tables, colour: alt.Color) -> Iterator[Any]:
    """A panel per student and task: accuracy in each pool, at the smallest number, for what several
    pools have.
    """
    for group in dict.fromkeys(p["group"] for p in tables["panels"] if p["pool"]):
        pools = {p["panel"]: p["pool"] for p in tables["panels"] if p["group"] == group}
        own = [{**s, "pool": pools[s["panel"]]} for s in tables["students"] if s["panel"] in pools]
        least = min(s["number"] for s in own if s["by"] not in (ALL, UNTRAINED))
        asked = [s for s in own if s["number"] == least or s["by"] == ALL]
        lines = [s["line"] for s in asked]
        shown = [s for s in asked if lines.count(s["line"]) > 1]
        if shown:
            yield _pools_panel(shown, list(pools.values()), least, colour)


def _pools_panel(shown: Records, pools: list[str], least: float, colour: alt.Color) -> Any:
    x = alt.X(
        "pool:N",
        title="traces to select from",
        sort=pools,
        axis=alt.Axis(labelAngle=0, labelLimit=200),
    )
    beside = alt.XOffset("line:N")
    y = alt.Y(
        "accuracy:Q",
        title="accuracy",
        axis=alt.Axis(format="%", tickCount=6),
        scale=alt.Scale(domain=[0, 1]),
    )
    tooltip = [
        "pool:N",
        "line:N",
        *(f"{f}:Q" for f in ("number", "accuracy", "accuracy_low", "accuracy_high")),
    ]
    chart = alt.Chart(values(shown))
    layers = [
        chart.mark_rule(strokeWidth=1.4).encode(
            x=x, xOffset=beside, y=alt.Y("accuracy_low:Q"), y2="accuracy_high:Q", color=colour
        ),
        chart.mark_point(filled=True, size=60, opacity=1).encode(
            x=x, xOffset=beside, y=y, color=colour, tooltip=tooltip
        ),
    ]
    note = (
        f"{traces(least)}; `{ALL}` is the whole pool"
        if any(s["by"] == ALL for s in shown)
        else traces(least)
    )
    title = alt.TitleParams("by pool", subtitle=note, fontSize=12, frame="group")
    return alt.layer(*layers, width=SIZE[0], height=SIZE[1], title=title)


def reason(panel: str, students: Records, differences: Records) -> str:
    """Why the reward's highest scores are worse than as many random traces, in words; "" unless one
    is.
    """
    own = {(s["line"], s["number"]): s for s in students if s["panel"] == panel}
    lost = [
        d
        for d in differences
        if d["panel"] == panel and d["less_by"] == RANDOM and d["difference"] < 0 and differs(d)
    ]
    for d in lost:
        chosen, chance = own[d["line"], d["number"]], own[d["less"], d["less_number"]]
        causes = [*_saturated(chosen), *_one_teacher(chosen, chance)]
        if causes:
            return f"{d['line']} is worse than random with {traces(d['number'])}: {', and '.join(causes)}"
    return ""


def _saturated(chosen: Row) -> Iterator[str]:
    low, high = chosen["score_low"], chosen["score_high"]
    if chosen["by"] == REWARD and low is not None and high is not None:
        right = chosen["selected_right"]
        if high - low < 0.05 * abs(high):
            though = f", though {right:.0%} of them are right" if right is not None else ""
            yield f"its traces score {low:.4f} to {high:.4f}, so it ranks differences that say nothing{though}"


def _one_teacher(chosen: Row, chance: Row) -> Iterator[str]:
    share, by_chance = chosen["selected_one_teacher"], chance["selected_one_teacher"]
    if share is not None and by_chance is not None and share > by_chance + LOPSIDED:
        yield f"{share:.0%} of them are one teacher's (random: {by_chance:.0%})"
