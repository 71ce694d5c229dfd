"""Accuracy against the number of traces trained on, one line per way to choose them: does the reward beat chance?

After ReasonFlux-PRM (arXiv 2506.18896, figure 6), which has one run a point, the human choice at one number only, and
no random choice. Here each line has a 95 % band over problems and training seeds, and below it stands what the reward
gains over a random choice of as many traces, paired by problem.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import altair as alt

from ponder.core import Figure, Outcome, Records, Tables
from ponder.figures import SOLVED, themed, values
from ponder.figures._log import SIZE, log_axes, log_frame
from ponder.figures._published import published_panel, selected, within_noise
from ponder.figures._selection import ALL, RANDOM, REWARD, UNTRAINED, Panel, compared, students, traces
from ponder.figures._variants import points, signed

Row = dict[str, Any]
OWN = {
    UNTRAINED: "#3c4248",
    RANDOM: "#e8802f",
    "longest": "#2c9c69",
    "shortest": "#8a5fbf",
    "right": "#c8483f",
    ALL: "#7a6a58",
}
ACROSS = "number of traces (log scale)"
STEP = 0.018  # of the width, between marks at one place
EQUAL = 0.05  # by how much two numbers of tokens may differ and still be called equal
REWARDS = ("#6db5e6", "#1f6fb4", "#0d3f70", "#8a97e6", "#2aa7a0")  # of several, from the smallest on


@dataclass(frozen=True)
class Scaling(Figure):
    chosen: str = "by"  # the setting that says how traces were chosen
    number: str = "number"  # the setting that says how many
    by: Literal["task", "size"] = "task"  # what a panel is
    overlay: str = ""  # published points to draw beside: `prm_selection_samples`

    example: ClassVar[dict[str, Any]] = {"chosen": "history_turns", "number": "per_turn"}

    def estimate(self, outcomes: Sequence[Outcome]) -> Tables:
        tables: Tables = {"panels": [], "students": [], "differences": [], "published": []}
        for panel in students(outcomes, self.chosen, self.number, self.by):
            tables["panels"].append(panel.record())
            tables["students"] += [s.record(panel.title) for s in panel.students]
            tables["differences"] += _differences(panel)
        if self.overlay:
            tables["published"] = selected(self.overlay, "samples", "selector")
        return tables

    def findings(self, tables: Tables) -> list[str]:
        found = []
        for panel in (p["panel"] for p in tables["panels"]):
            own = [d for d in tables["differences"] if d["panel"] == panel]
            for line in dict.fromkeys(d["line"] for d in own):
                part = [d for d in own if d["line"] == line]
                chance = [d for d in part if d["less_by"] == RANDOM]
                first = [d for d in part if d["number"] == part[0]["number"] and d["less_by"] != RANDOM]
                if chance:
                    asked = [s for s in tables["students"] if (s["panel"], s["number"]) == (panel, chance[0]["number"])]
                    found.append(f"{panel}: {_gains(chance)}. {_at_first(chance[0], asked)}. {_tokens(chance)}.")
                if first:
                    told = ", ".join(f"{_named(d)} {points(d, 'difference')}" for d in first)
                    found.append(f"{panel}: {line} with {traces(first[0]['number'])}, less {told}.")
            if short := [
                s for s in tables["students"] if s["panel"] == panel and (s["selected"] or s["number"]) < s["number"]
            ]:
                told = ", ".join(f"{s['line']} {s['selected']:,.0f} of {s['number']:,.0f}" for s in short)
                found.append(f"{panel}: there were fewer traces than asked for: {told}.")
        if tables["published"]:
            found.append(within_noise(_labelled(tables["published"])))
        return found

    def draw(self, tables: Tables) -> alt.TopLevelMixin:
        scale = _colours(tables["students"])
        shown = [self._panel(tables, panel, scale) for panel in tables["panels"]]
        if tables["published"]:
            shown.append(published_panel(_labelled(tables["published"]), "samples", ACROSS))
        note = "bands and bars: 95 % intervals over problems and training seeds"
        title = alt.TitleParams("Accuracy by number of traces trained on", subtitle=note)
        return themed(alt.concat(*shown, columns=2, spacing={"row": 60, "column": 70}).properties(title=title))

    def _panel(self, tables: Tables, panel: Row, scale: alt.Scale) -> Any:
        own = [s for s in tables["students"] if s["panel"] == panel["panel"]]
        frame = log_frame([{**s, "number": s["number"] or own[-1]["number"]} for s in own], "number")
        step = STEP * (frame.x[1] - frame.x[0])
        lines, marks, bare = _parts(own, step)
        ticks = [s["number"] for s in own if s["number"]]
        gains = [d for d in tables["differences"] if (d["panel"], d["less_by"]) == (panel["panel"], RANDOM)]
        x, y = log_axes(frame, "number", "" if gains else ACROSS, ticks)
        legend = alt.Legend(title=None, orient="top", columns=9, symbolOpacity=1, offset=10)
        colour = alt.Color("line:N", scale=scale, legend=legend)
        tooltip = ["line:N", *(f"{f}:Q" for f in ("number", "accuracy", "accuracy_low", "accuracy_high", "seeds"))]
        low = alt.Y("accuracy_low:Q")
        line, mark, rule = (alt.Chart(values(part)) for part in (lines, marks, bare))
        layers = [
            rule.mark_rect(opacity=0.08).encode(y=low, y2="accuracy_high:Q", color=colour),
            rule.mark_rule(strokeDash=[5, 3], strokeWidth=1.4).encode(y=y, color=colour),
            line.mark_area(opacity=0.13, clip=True).encode(x=x, y=low, y2="accuracy_high:Q", color=colour),
            line.mark_line(strokeWidth=2).encode(x=x, y=y, color=colour),
            line.mark_point(filled=True, size=42, opacity=1).encode(x=x, y=y, color=colour, tooltip=tooltip),
            mark.mark_rule(strokeWidth=1.4).encode(x=x, y=low, y2="accuracy_high:Q", color=colour),
            mark.mark_point(filled=True, size=90, opacity=1, shape="diamond").encode(
                x=x, y=y, color=colour, tooltip=tooltip
            ),
        ]
        title = alt.TitleParams(panel["panel"], subtitle=panel["rests_on"], fontSize=12, frame="group")
        main = alt.layer(*layers, width=SIZE[0], height=SIZE[1], title=title)
        return (
            alt.vconcat(main, _gain_panel(_abreast(gains, step), x.copy().title(ACROSS), colour), spacing=12)
            if gains
            else main
        )


def _differences(panel: Panel) -> Records:
    """What each student of a reward gains over each other way to choose as many traces, over all, and over none."""
    others = dict.fromkeys(s.by for s in panel.students if s.by != REWARD)
    found = []
    for student in (s for s in panel.students if s.by == REWARD):
        baselines = [panel.baseline(student, by) for by in others]
        found += [student.less(other, panel.title) for other in baselines if other]
    return found


def _gains(chance: Records) -> str:
    told = ", ".join(f"{points(d, 'difference')} at {traces(d['number'])}" for d in chance)
    pooled = f"over {chance[0]['seeds']} training seeds" if chance[0]["seeds"] > 1 else "from one training seed"
    return f"{chance[0]['line']} less {chance[0]['less']}, paired by problem, {pooled}: {told}"


def _at_first(row: Row, asked: Records) -> str:
    """Whether the reward beats chance at the smallest number, and what may explain it."""
    said = [f"At the smallest number it {compared(row, 'difference')} {row['less']}"]
    if row["difference_low"] <= 0 <= row["difference_high"]:
        alone = f"if training didn't vary, the interval would be [{signed(row['problems_only_low'])}, "
        alone += f"{signed(row['problems_only_high'])}], so "
        clear = row["problems_only_low"] > 0 or row["problems_only_high"] < 0
        said.append(alone + ("more training seeds may tell" if clear else "it takes more problems to tell"))
    right = {s["line"]: s["selected_right"] for s in asked}
    if None not in (shares := [right[row["line"]], right[row["less"]]]):
        said.append("of the traces chosen {:.0%} were right, and {:.0%} of the random ones".format(*shares))
    if row["seeds"] <= 1:
        said.append("one training seed doesn't show how training varies")
    return "; ".join(said)


def _tokens(chance: Records) -> str:
    ratios = [d["token_ratio"] for d in chance]
    if None in ratios:
        return "Whether both were trained on equally many tokens wasn't recorded"
    if all(1 / (1 + EQUAL) <= ratio <= 1 + EQUAL for ratio in ratios):
        return f"Both were trained on equally many tokens, within {EQUAL:.0%}"
    ends = dict.fromkeys(f"{ratio:.2f}" for ratio in (min(ratios), max(ratios)))
    return f"It was trained on {' to '.join(ends)} times the tokens of {chance[0]['less']}, which may be part of it"


def _named(row: Row) -> str:
    return f"{row['less']} ({traces(row['less_number'])})" if row["less_by"] == ALL else str(row["less"])


def _labelled(rows: Records) -> Records:
    """Names of published points; a family's points have their numbers too."""
    several = [r["family"] for r in rows]
    return [
        {**r, "label": f"{r['name']}, {r['samples'] / 1000:g}k" if several.count(r["family"]) > 1 else r["name"]}
        for r in rows
    ]


def _parts(own: Records, step: float) -> tuple[Records, Records, Records]:
    """Lines, marks for what was tried with one number only (abreast where they meet), and the untrained student."""
    tried = [s["line"] for s in own]
    lines = [s for s in own if s["number"] and tried.count(s["line"]) > 1]
    marks: Records = []
    for s in own:
        if s["number"] and s not in lines:
            on_line = any(o["number"] == s["number"] for o in lines)
            beside = on_line + sum(m["asked"] == s["number"] for m in marks)
            marks.append({**s, "asked": s["number"], "number": s["number"] * 10 ** (step * beside)})
    return lines, marks, [s for s in own if not s["number"]]


def _abreast(gains: Records, step: float) -> Records:
    lines = list(dict.fromkeys(d["line"] for d in gains))
    middle = (len(lines) - 1) / 2
    return [{**d, "number": d["number"] * 10 ** (step * (lines.index(d["line"]) - middle))} for d in gains]


def _gain_panel(gains: Records, x: alt.X, colour: alt.Color) -> Any:
    axis = alt.Axis(labelExpr="datum.value ? format(100 * datum.value, '+') : '0'", tickCount=4)
    y = alt.Y("difference:Q", title=["reward less", "random, points"], axis=axis)
    shown = alt.Chart(values(gains))
    layers = [
        alt.Chart(values([{"zero": 0}])).mark_rule(color=OWN[RANDOM], strokeWidth=1.4).encode(y="zero:Q"),
        shown.mark_rule(strokeWidth=1.4).encode(x=x, y=alt.Y("difference_low:Q"), y2="difference_high:Q", color=colour),
        shown.mark_point(filled=True, size=42, opacity=1).encode(x=x, y=y, color=colour),
    ]
    return alt.layer(*layers, width=SIZE[0], height=90)


def _colours(students: Records) -> alt.Scale:
    """Blue for rewards, from the smallest on, and for each of the others its own."""
    known = [UNTRAINED, REWARD, *list(OWN)[1:]]

    def place(s: Row) -> tuple[Any, ...]:
        return known.index(s["by"]) if s["by"] in known else len(known), s["reward_parameters"] or 0, s["line"]

    several = len({s["line"] for s in students if s["by"] == REWARD}) > 1
    blues, spare = itertools.cycle(REWARDS if several else (SOLVED,)), itertools.cycle(("#d670ad", "#5b6770"))
    found: dict[str, str] = {}
    for s in sorted(students, key=place):
        if s["line"] not in found:
            found[s["line"]] = next(blues) if s["by"] == REWARD else OWN.get(s["line"]) or next(spare)
    return alt.Scale(domain=list(found), range=list(found.values()))
