"""Accuracy against the size of the reward that chose the traces, by their number: does a larger one choose better?

After ReasonFlux-PRM (arXiv 2506.18896, figure 6), which sets rewards of several makers beside each other, one run each.
Here a rule with its band shows as many traces chosen at random, all intervals are over problems and training seeds, and
the largest reward is set against the smallest problem by problem.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import altair as alt

from ponder.core import Figure, Outcome, Records, Tables
from ponder.figures import SOLVED, themed, values
from ponder.figures._labels import Frame, lettering
from ponder.figures._log import log_axes, log_frame, log_placed
from ponder.figures._published import published_panel, selected, within_noise
from ponder.figures._selection import RANDOM, REWARD, Panel, compared, students, traces
from ponder.figures._variants import points

Row = dict[str, Any]
SIZE = (300, 240)  # pixels of a panel
CHANCE = "#e8802f"
ACROSS = "parameters of the reward (log scale)"


@dataclass(frozen=True)
class RewardSize(Figure):
    chosen: str = "by"  # the setting that says how traces were chosen
    number: str = "number"  # the setting that says how many
    by: Literal["task", "size"] = "task"  # what a row of panels is
    overlay: str = ""  # published points to draw below: `prm_selection_size`

    example: ClassVar[dict[str, Any]] = {"chosen": "history_turns", "number": "per_turn"}

    def estimate(self, outcomes: Sequence[Outcome]) -> Tables:
        tables: Tables = {"panels": [], "students": [], "differences": [], "published": []}
        for panel in students(outcomes, self.chosen, self.number, self.by):
            tables["panels"].append(panel.record())
            tables["students"] += [s.record(panel.title) for s in panel.students if s.by in (REWARD, RANDOM)]
            tables["differences"] += _differences(panel)
        if self.overlay:
            tables["published"] = selected(self.overlay, "parameters", "reward")
        return tables

    def findings(self, tables: Tables) -> list[str]:
        found = []
        for panel in (p["panel"] for p in tables["panels"]):
            own = [d for d in tables["differences"] if d["panel"] == panel]
            for number, part in itertools.groupby(own, key=lambda d: d["number"]):
                rows = list(part)
                by_chance = [f"{d['line']} {points(d, 'difference')}" for d in rows if d["less_by"] == RANDOM]
                if by_chance:
                    found.append(f"{panel}, {traces(number)}: less {RANDOM}: {', '.join(by_chance)}.")
                found += [f"{panel}, {traces(number)}: {_larger(d)}." for d in rows if d["less_by"] == REWARD]
            rewards = [s for s in tables["students"] if s["panel"] == panel and s["by"] == REWARD]
            if unknown := ", ".join(sorted({s["line"] for s in rewards if _sizeless(s)})):
                found.append(f"{panel}: not drawn, because their parameters aren't known: {unknown}.")
            if not rewards:
                found.append(f"{panel}: no traces were chosen by a reward, so nothing is drawn.")
        if tables["published"]:
            found.append(within_noise(_labelled(tables["published"])))
        return found

    def draw(self, tables: Tables) -> alt.TopLevelMixin:
        rows: list[Any] = []
        for panel in tables["panels"]:
            own = [s for s in tables["students"] if s["panel"] == panel["panel"] and not _sizeless(s)]
            sized = [s for s in own if s["by"] == REWARD]
            if sized:
                everywhere = [
                    {**s, "reward_parameters": s["reward_parameters"] or sized[0]["reward_parameters"]} for s in own
                ]
                frame = log_frame(everywhere, "reward_parameters", size=SIZE, air=0.2)
                numbers = sorted({s["number"] for s in sized})
                shown = [_panel([s for s in own if s["number"] == n], n, frame) for n in numbers]
                title = alt.TitleParams(panel["panel"], subtitle=panel["rests_on"], fontSize=12)
                rows.append(alt.concat(*shown, columns=3, spacing=40).properties(title=title))
        if tables["published"]:
            rows.append(published_panel(_labelled(tables["published"]), "parameters", ACROSS))
        note = [
            "dots: traces chosen by a reward; line: as many at random",
            "95 % intervals over problems and training seeds",
        ]
        title = alt.TitleParams("Accuracy by size of the reward", subtitle=note)
        return themed(alt.vconcat(*rows, spacing=30).properties(title=title))


def _sizeless(student: Row) -> bool:
    return student["by"] == REWARD and not student["reward_parameters"]


def _differences(panel: Panel) -> Records:
    """At each number: each reward less a random choice, and the largest reward less the smallest."""
    found = []
    chosen = sorted((s for s in panel.students if s.by == REWARD), key=lambda s: s.number)
    for _, part in itertools.groupby(chosen, key=lambda s: s.number):
        rewards = sorted(part, key=lambda s: (s.made["reward_parameters"] or 0, s.line))
        found += [s.less(other, panel.title) for s in rewards if (other := panel.baseline(s, RANDOM))]
        sized = [s for s in rewards if s.made["reward_parameters"]]
        if sized and sized[0].made["reward_parameters"] != sized[-1].made["reward_parameters"]:
            found.append(sized[-1].less(sized[0], panel.title))
    return found


def _larger(row: Row) -> str:
    return (
        f"the largest reward, {row['line']}, {compared(row, 'difference')} the smallest, {row['less']}: "
        f"{points(row, 'difference')}, paired by problem; each size is one reward, so how its own training varies is "
        "not in the interval"
    )


def _labelled(rows: Records) -> Records:
    return [{**r, "label": r["name"]} for r in rows]


def _panel(own: Records, number: float, frame: Frame) -> Any:
    sized = [{**s, "label": s["line"]} for s in own if s["by"] == REWARD]
    sizes = [s["reward_parameters"] for s in sized]
    x, y = log_axes(frame, "reward_parameters", ACROSS, sizes)
    chance = alt.Chart(values([s for s in own if s["by"] == RANDOM]))
    shown, low = alt.Chart(), alt.Y("accuracy_low:Q")
    shares = ("accuracy", "accuracy_low", "accuracy_high")
    tooltip = ["line:N", *(f"{name}:Q" for name in ("reward_parameters", *shares, "seeds"))]
    layers = [
        chance.mark_rect(opacity=0.13, color=CHANCE, clip=True).encode(y=low, y2="accuracy_high:Q"),
        chance.mark_rule(strokeWidth=1.6, color=CHANCE, clip=True).encode(y=y),
        shown.mark_rule(strokeWidth=1.4, color=SOLVED).encode(x=x, y=low, y2="accuracy_high:Q"),
        shown.mark_point(filled=True, size=70, opacity=1, color=SOLVED).encode(x=x, y=y, tooltip=tooltip),
        *lettering("reward_parameters", alt.value(SOLVED)),
    ]
    line = sorted(sized, key=lambda s: s["reward_parameters"]) if len(set(sizes)) == len(sizes) else []
    layers.insert(2, alt.Chart(values(line)).mark_line(strokeWidth=1, opacity=0.5, color=SOLVED).encode(x=x, y=y))
    named = values(log_placed(sized, "reward_parameters", frame, [line]))
    title = alt.TitleParams(traces(number), fontSize=11, frame="group")
    return alt.layer(*layers, data=named, width=SIZE[0], height=SIZE[1], title=title)
