"""Draws accuracy after training on selected traces, against the number of traces and against the
reward's size.

After ReasonFlux-PRM (arXiv 2506.18896, figure 6), which has one training run per point, the human
selection at one number only, and no random selection. Here every point has a 95 % interval over
problems and training seeds, a strip below the first panel shows what the reward gains over as many
random traces, and the largest reward is compared with the smallest, both paired by problem. The
second panel is drawn if a study compares rewards of several sizes. A study may select from several
pools of traces, by different teachers: each has panels of its own, and one more panel compares the
pools at the smallest number. Where a reward selects worse than chance, the panel says why.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import altair as alt

from ponder.core import Figure, Outcome, Records, Tables
from ponder.figures import SOLVED, pooled_findings, themed, values
from ponder.figures._labels import Frame, lettering
from ponder.figures._log import SIZE, log_axes, log_frame, log_placed
from ponder.figures._published import published_panel, selected, within_chance
from ponder.figures._selection import (
    ALL,
    CURATED,
    RANDOM,
    REWARD,
    UNTRAINED,
    Panel,
    students,
    traces,
)
from ponder.figures._selection_pools import by_pool, reason, shown_alone
from ponder.figures._variants import compared, corrected, panel_title, points, signed, tested

Row = dict[str, Any]
OWN = {
    UNTRAINED: "#3c4248",
    RANDOM: "#e8802f",
    "longest": "#2c9c69",
    "shortest": "#8a5fbf",
    "right": "#c8483f",
    CURATED: "#e39a94",
    ALL: "#7a6a58",
}
REWARDS = ("#6db5e6", "#1f6fb4", "#0d3f70")  # if there are several, from the smallest on
# If scores are used in other ways than the highest first.
RULED = ("#8fd0c2", "#d670ad", "#a79be8", "#12876f", "#5b6770", "#c2b13a")
BY_NUMBER = "number of traces (log scale)"
BY_SIZE = "parameters of the reward model (log scale)"
NARROW = 300  # pixels of a panel by size, if there are several
STEP = 0.018  # of a panel's width, between marks that would cover each other
EQUAL = 0.05  # relative difference up to which two numbers of tokens are called equal


@dataclass(frozen=True)
class Selection(Figure):
    chosen: str = "by"  # the setting that says how traces were selected
    number: str = "number"  # the setting that says how many
    by: Literal["task", "size"] = "task"  # one row of panels per task, or per size of each task
    # published points by number of traces, drawn below
    overlay: Literal["", "prm_selection_samples"] = ""
    # published points by size of the reward, drawn below
    overlay_size: Literal["", "prm_selection_size"] = ""
    # take accuracy to vary equally between the seeds of 4 or more students
    pool_seeds: bool = False

    needs: ClassVar[dict[str, str]] = {
        "chosen": 'method = [{ name = "sft", by = ["reward", "random"], number = [100, 1000], seed = [1, 2, 3] }]',
    }
    example: ClassVar[dict[str, Any]] = {"chosen": "history_turns", "number": "per_turn"}

    def estimate(self, outcomes: Sequence[Outcome]) -> Tables:
        tables: Tables = {
            "panels": [],
            "students": [],
            "differences": [],
            "published": [],
            "published_sizes": [],
        }
        for panel in students(outcomes, self.chosen, self.number, self.by, self.pool_seeds):
            tables["panels"].append(panel.record())
            tables["students"] += [s.record(panel.title) for s in panel.students]
            tables["differences"] += [*_over_baselines(panel), *_larger_over_smaller(panel)]
        tables["differences"] = corrected(tables["differences"])
        for record in tables["panels"]:
            record["reason"] = reason(record["panel"], tables["students"], tables["differences"])
        if self.overlay:
            tables["published"] = _with_numbers(selected(self.overlay, "samples", "selector"))
        if self.overlay_size:
            sizes = selected(self.overlay_size, "parameters", "reward")
            tables["published_sizes"] = [{**r, "label": r["name"]} for r in sizes]
        return tables

    def findings(self, tables: Tables) -> list[str]:
        sentences = pooled_findings(tables["panels"], "panel")
        sentences += [
            f"{p['panel']}: {p['seeds_pooled']}." for p in tables["panels"] if p["seeds_pooled"]
        ]
        for panel in (p["panel"] for p in tables["panels"]):
            own = [d for d in tables["differences"] if d["panel"] == panel]
            named = [s for s in tables["students"] if s["panel"] == panel]
            for line in dict.fromkeys(d["line"] for d in own):
                sentences += [
                    f"{panel}: {said}."
                    for said in _of_line([d for d in own if d["line"] == line], named)
                ]
            sentences += [
                f"{panel}, {traces(d['number'])}: {_larger(d)}."
                for d in own
                if d["less_by"] == REWARD
            ]
            unsized = sorted(
                {s["line"] for s in named if s["by"] == REWARD and not s["reward_parameters"]}
            )
            if unsized and _by_size(named):
                sentences.append(
                    f"{panel}: rewards of unknown size, not drawn by size: {', '.join(unsized)}."
                )
            if short := [s for s in named if (s["selected"] or s["number"]) < s["number"]]:
                told = ", ".join(
                    f"{s['line']} {s['selected']:,.0f} of {s['number']:,.0f}" for s in short
                )
                sentences.append(f"{panel}: fewer traces than asked for: {told}.")
        sentences += [f"{p['panel']}: {p['reason']}." for p in tables["panels"] if p["reason"]]
        for name in ("published", "published_sizes"):
            sentences += [within_chance(tables[name])] if tables[name] else []
        return sentences

    def draw(self, tables: Tables) -> alt.TopLevelMixin:
        legend = alt.Legend(title=None, orient="top", columns=6, symbolOpacity=1, offset=10)
        colour = alt.Color("line:N", scale=_colours(tables["students"]), legend=legend)
        rows = [_row(tables, panel, colour) for panel in shown_alone(tables)]
        for compared_pools in by_pool(tables, colour):
            if len(rows[-1]) == 1:  # beside a panel that has none by size
                rows[-1].append(compared_pools)
            else:
                rows.append([compared_pools])
        drawn = (("published", "samples", BY_NUMBER), ("published_sizes", "parameters", BY_SIZE))
        below = [
            published_panel(tables[name], x, title) for name, x, title in drawn if tables[name]
        ]
        if below:
            rows.append(below)
        note = (
            "Bands and bars: 95 % intervals over problems and training seeds, at each number by itself. "
            "Marks for one number stand side by side."
        )
        title = alt.TitleParams(
            "Accuracy after training on selected traces: higher is better", subtitle=note
        )
        return themed(
            alt.vconcat(*(alt.hconcat(*row, spacing=40) for row in rows), spacing=50).properties(
                title=title
            )
        )


def _over_baselines(panel: Panel) -> Records:
    """What each student of a reward gains over every other selection of as many traces, over all,
    and over none.
    """
    others = dict.fromkeys(s.by for s in panel.students if s.by != REWARD)
    rewarded = [s for s in panel.students if s.by == REWARD]
    pairs = [(s, panel.baseline(s, by)) for s in rewarded for by in others]
    return [student.minus(other, panel.title) for student, other in pairs if other]


def _larger_over_smaller(panel: Panel) -> Iterator[Row]:
    """What the student of the largest reward gains over that of the smallest, with as many traces."""
    for group in _by_size([s.record(panel.title) for s in panel.students]).values():
        smallest, largest = (
            next(s for s in panel.students if (s.line, s.number) == (r["line"], r["number"]))
            for r in (group[0], group[-1])
        )
        yield largest.minus(smallest, panel.title)


def _by_size(own: Records) -> dict[tuple[float, str], Records]:
    """Students of rewards of several sizes that differ in nothing else, from the smallest on."""
    groups: dict[tuple[float, str], Records] = {}
    sized = [s for s in own if s["by"] == REWARD and s["reward_parameters"]]
    for s in sorted(
        sized, key=lambda s: (s["number"], s["rest"], s["reward_parameters"], s["line"])
    ):
        groups.setdefault((s["number"], s["rest"]), []).append(s)
    return {
        key: g
        for key, g in groups.items()
        if g[0]["reward_parameters"] < g[-1]["reward_parameters"]
    }


def _of_line(own: Records, named: Records) -> Iterator[str]:
    """What one way to select by reward gains: over random at every number, and over the rest at the
    smallest.
    """
    over_random = [d for d in own if d["less_by"] == RANDOM]
    if over_random:
        asked = [s for s in named if s["number"] == over_random[0]["number"]]
        yield f"{_gains(over_random)}. {_at_first(over_random[0], asked)}. {_tokens(over_random)}"
    first = [
        d for d in own if d["number"] == own[0]["number"] and d["less_by"] not in (RANDOM, REWARD)
    ]
    if first:
        told = ", ".join(f"{_baseline_name(d)} {points(d, 'difference')}" for d in first)
        yield f"{own[0]['line']} with {traces(own[0]['number'])}, less {told}"


def _gains(over_random: Records) -> str:
    first = over_random[0]
    told = ", ".join(f"{points(d, 'difference')} at {traces(d['number'])}" for d in over_random)
    pooled = (
        f"over {first['seeds']} training seeds" if first["seeds"] > 1 else "from one training seed"
    )
    return f"{first['line']} less {first['less']}, paired by problem, {pooled}: {told}"


def _at_first(row: Row, asked: Records) -> str:
    """Whether the reward beats random selection at the smallest number, and what may explain it."""
    said = [
        f"At the smallest number it {compared(row, 'difference')} {row['less']} ({tested(row)})"
    ]
    if row["difference_low"] <= 0 <= row["difference_high"]:
        ends = f"[{signed(row['problems_only_low'])}, {signed(row['problems_only_high'])}]"
        clear = row["problems_only_low"] > 0 or row["problems_only_high"] < 0
        needed = "more training seeds may tell" if clear else "more problems are needed to tell"
        said.append(
            f"without the variation between trainings the interval would be {ends}, so {needed}"
        )
    right = {s["line"]: s["selected_right"] for s in asked}
    sound = {s["line"]: s["selected_sound"] for s in asked}
    if None not in (fractions := [right[row["line"]], right[row["less"]]]):
        said.append(
            "{:.0%} of the selected traces were right, and {:.0%} of the random ones".format(
                *fractions
            )
        )
    if None not in (fractions := [sound[row["line"]], sound[row["less"]]]):
        said.append(
            "{:.0%} were right in every step, and {:.0%} of the random ones".format(*fractions)
        )
    if row["seeds"] <= 1:
        said.append("one training seed doesn't show how much training varies")
    return "; ".join(said)


def _tokens(over_random: Records) -> str:
    ratios = [d["token_ratio"] for d in over_random]
    if None in ratios:
        return "Whether both were trained on as many tokens wasn't recorded"
    if all(1 / (1 + EQUAL) <= ratio <= 1 + EQUAL for ratio in ratios):
        return f"Both were trained on as many tokens, within {EQUAL:.0%}"
    ends = dict.fromkeys(f"{ratio:.2f}" for ratio in (min(ratios), max(ratios)))
    return f"It was trained on {' to '.join(ends)} times the tokens of {over_random[0]['less']}, which may explain part"


def _larger(row: Row) -> str:
    return (
        f"the largest reward, {row['line']}, {compared(row, 'difference')} the smallest, {row['less']}: "
        f"{points(row, 'difference')}, {tested(row)}, paired by problem; each size is one reward model, so the "
        "interval doesn't cover how much training a reward varies"
    )


def _baseline_name(row: Row) -> str:
    return (
        f"{row['less']} ({traces(row['less_number'])})"
        if row["less_by"] == ALL
        else str(row["less"])
    )


def _with_numbers(rows: Records) -> Records:
    """Labels of published points; if a family has several points, with their numbers of traces."""
    families = [r["family"] for r in rows]
    return [
        {
            **r,
            "label": f"{r['name']}, {r['samples'] / 1000:g}k"
            if families.count(r["family"]) > 1
            else r["name"],
        }
        for r in rows
    ]


def _row(tables: Tables, panel: Row, colour: alt.Color) -> list[Any]:
    """The panels of one task: by number of traces, and for each number with several rewards, by
    their size.
    """
    own = [s for s in tables["students"] if s["panel"] == panel["panel"]]
    gains = [
        d for d in tables["differences"] if (d["panel"], d["less_by"]) == (panel["panel"], RANDOM)
    ]
    frame = log_frame([{**s, "number": s["number"] or own[-1]["number"]} for s in own], "number")
    shown = [_by_number_panel(panel, own, gains, frame, colour)]
    groups = _by_size(own)
    numbers = list(dict.fromkeys(number for number, _ in groups))
    for number in numbers:
        sized = [s for (n, _), group in groups.items() if n == number for s in group]
        random = [s for s in own if (s["by"], s["number"]) == (RANDOM, number)]
        width = SIZE[0] if len(numbers) == 1 else NARROW
        shown.append(_by_size_panel(sized, random, number, replace(frame, width=width), colour))
    return shown


def _by_number_panel(
    panel: Row, own: Records, gains: Records, frame: Frame, colour: alt.Color
) -> Any:
    step = STEP * (frame.x[1] - frame.x[0])
    lines, marks, untrained = _parts(own, step)
    x, y = log_axes(
        frame, "number", "" if gains else BY_NUMBER, [s["number"] for s in own if s["number"]]
    )
    tooltip = [
        "line:N",
        *(f"{f}:Q" for f in ("number", "accuracy", "accuracy_low", "accuracy_high", "seeds")),
    ]
    low = alt.Y("accuracy_low:Q")
    line, mark, rule = (alt.Chart(values(part)) for part in (lines, marks, untrained))
    layers = [
        rule.mark_rect(opacity=0.08).encode(y=low, y2="accuracy_high:Q", color=colour),
        rule.mark_rule(strokeDash=[5, 3], strokeWidth=1.4).encode(y=y, color=colour),
        line.mark_area(opacity=0.13, clip=True).encode(
            x=x, y=low, y2="accuracy_high:Q", color=colour
        ),
        line.mark_line(strokeWidth=2).encode(x=x, y=y, color=colour),
        line.mark_point(filled=True, size=42, opacity=1).encode(
            x=x, y=y, color=colour, tooltip=tooltip
        ),
        mark.mark_rule(strokeWidth=1.4).encode(x=x, y=low, y2="accuracy_high:Q", color=colour),
        mark.mark_point(filled=True, size=90, opacity=1, shape="diamond").encode(
            x=x, y=y, color=colour, tooltip=tooltip
        ),
    ]
    main = alt.layer(*layers, width=SIZE[0], height=SIZE[1], title=panel_title(panel, SIZE[0]))
    if not gains:
        return main
    strip = _gain_strip(_abreast(gains, step), x.copy().title(BY_NUMBER), colour)
    return alt.vconcat(main, strip, spacing=12)


def _parts(own: Records, step: float) -> tuple[Records, Records, Records]:
    """Lines; marks for what was tried with one number only, side by side; and the untrained
    student.
    """
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
    return [
        {**d, "number": d["number"] * 10 ** (step * (lines.index(d["line"]) - middle))}
        for d in gains
    ]


def _gain_strip(gains: Records, x: alt.X, colour: alt.Color) -> Any:
    axis = alt.Axis(labelExpr="datum.value ? format(100 * datum.value, '+') : '0'", tickCount=4)
    y = alt.Y("difference:Q", title=["gain over", "random, points"], axis=axis)
    shown = alt.Chart(values(gains))
    layers = [
        alt.Chart(values([{"zero": 0}]))
        .mark_rule(color=OWN[RANDOM], strokeWidth=1.4)
        .encode(y="zero:Q"),
        shown.mark_rule(strokeWidth=1.4).encode(
            x=x, y=alt.Y("difference_low:Q"), y2="difference_high:Q", color=colour
        ),
        shown.mark_point(filled=True, size=42, opacity=1).encode(x=x, y=y, color=colour),
    ]
    return alt.layer(*layers, width=SIZE[0], height=90)


def _by_size_panel(
    sized: Records, random: Records, number: float, beside: Frame, colour: alt.Color
) -> Any:
    across = log_frame(sized, "reward_parameters", air=0.25).x
    frame = replace(beside, x=across)
    x, y = log_axes(frame, "reward_parameters", BY_SIZE, [s["reward_parameters"] for s in sized])
    shown, low = alt.Chart(), alt.Y("accuracy_low:Q")
    chance = alt.Chart(values(random))
    lines = [list(part) for _, part in itertools.groupby(sized, key=lambda s: s["rest"])]
    tooltip = [
        "line:N",
        *(f"{f}:Q" for f in ("reward_parameters", "accuracy", "accuracy_low", "accuracy_high")),
    ]
    joined = alt.Chart(values(sized)).mark_line(strokeWidth=1, opacity=0.6, color=SOLVED)
    layers = [
        chance.mark_rect(opacity=0.13, clip=True).encode(y=low, y2="accuracy_high:Q", color=colour),
        chance.mark_rule(strokeWidth=1.6, clip=True).encode(y=y, color=colour),
        joined.encode(x=x, y=y, detail="rest:N"),
        shown.mark_rule(strokeWidth=1.4).encode(x=x, y=low, y2="accuracy_high:Q", color=colour),
        shown.mark_point(filled=True, size=70, opacity=1).encode(
            x=x, y=y, color=colour, tooltip=tooltip
        ),
        *lettering("reward_parameters", colour),
    ]
    named = log_placed(
        [{**s, "label": s["line"]} for s in sized], "reward_parameters", frame, lines
    )
    note = f"students of {traces(number)}; line and band: as many at random"
    title = alt.TitleParams(
        "by size of the reward model", subtitle=note, fontSize=12, frame="group"
    )
    return alt.layer(
        *layers, data=values(named), width=frame.width, height=frame.height, title=title
    )


def _colours(records: Records) -> alt.Scale:
    """Blue for rewards, from the smallest on, and for each of the others its own colour."""
    known = [UNTRAINED, REWARD, *list(OWN)[1:]]

    def place(s: Row) -> tuple[Any, ...]:
        return (
            known.index(s["by"]) if s["by"] in known else len(known),
            s["reward_parameters"] or 0,
            s["line"],
        )

    several = len({s["line"] for s in records if s["by"] == REWARD}) > 1
    blues, ruled = itertools.cycle(REWARDS if several else (SOLVED,)), itertools.cycle(RULED)
    spare = itertools.cycle(("#9c4f7f", "#93a1ad"))
    palette: dict[str, str] = {}
    for s in sorted(records, key=place):
        if s["line"] not in palette:
            rewarded = next(ruled if s["rest"] else blues) if s["by"] == REWARD else ""
            palette[s["line"]] = rewarded or OWN.get(s["line"]) or next(spare)
    return alt.Scale(domain=list(palette), range=list(palette.values()))
