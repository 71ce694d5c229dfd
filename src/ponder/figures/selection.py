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

from ponder.core import Estimate, Figure, Outcome, Records, Tables, UserError
from ponder.figures import INK, MUTED, SOLVED, Row, flat, pooled_findings, themed, values
from ponder.figures._label_placement import (
    SIZE,
    Frame,
    lettering,
    log_axes,
    log_frame,
    place_labels,
)
from ponder.figures._published import (
    PAIRING_CAVEAT,
    PROBLEMS,
    beyond_chance,
    published,
    split_by_chance,
    with_interval,
)
from ponder.figures._students import (
    ALL,
    CURATED,
    RANDOM,
    REWARD,
    UNTRAINED,
    StudentPanel,
    student_panels,
)
from ponder.figures._variants import (
    corrected,
    differs,
    panel_title,
    points,
    signed,
    tested,
    verb_of,
)
from ponder.stats.paired import newcombe

LINE_COLOURS = {
    UNTRAINED: "#3c4248",
    RANDOM: "#e8802f",
    "longest": "#2c9c69",
    "shortest": "#8a5fbf",
    "right": "#c8483f",
    CURATED: "#e39a94",
    ALL: "#7a6a58",
}
REWARD_COLOURS = ("#6db5e6", "#1f6fb4", "#0d3f70")  # if there are several, from the smallest on
# If scores are used in other ways than the highest first.
RULE_COLOURS = ("#8fd0c2", "#d670ad", "#a79be8", "#12876f", "#5b6770", "#c2b13a")
SPARE_COLOURS = ("#9c4f7f", "#93a1ad")
BY_NUMBER = "number of traces (log scale)"
BY_SIZE = "parameters of the reward model (log scale)"
NARROW = 300  # pixels of a panel by size, if there are several
STEP = 0.018  # of a panel's width, between marks that would cover each other
EQUAL = 0.05  # relative difference up to which two numbers of tokens are called equal
# more of one teacher than among random traces, from which on the teacher may be what was selected
LOPSIDED = 0.15
SATURATED = 0.05  # relative range of scores below which a reward ranks noise
MATH = "MATH500"  # the benchmark of the published points


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
        names = ("panels", "students", "differences", "published", "published_sizes")
        tables: Tables = {name: [] for name in names}
        for panel in student_panels(outcomes, self.chosen, self.number, self.by, self.pool_seeds):
            tables["panels"].append(panel.record())
            for student in panel.students:
                tables["students"].append(student.record(panel.title))
            tables["differences"] += _over_baselines(panel)
            tables["differences"] += _largest_over_smallest(panel)
        tables["differences"] = corrected(tables["differences"])
        for panel_row in tables["panels"]:
            panel_row["reason"] = _why_worse_than_random(tables, panel_row)
        if self.overlay:
            tables["published"] = _published_by_number(self.overlay)
        if self.overlay_size:
            tables["published_sizes"] = _published_by_size(self.overlay_size)
        return tables

    def findings(self, tables: Tables) -> list[str]:
        sentences = pooled_findings(tables["panels"], "panel")
        for panel in tables["panels"]:
            if panel["seeds_pooled"]:
                sentences.append(f"{panel['panel']}: {panel['seeds_pooled']}.")
        for panel in tables["panels"]:
            students = _rows_of(tables["students"], panel)
            differences = _rows_of(tables["differences"], panel)
            sentences += _panel_findings(panel["panel"], students, differences)
        for panel in tables["panels"]:
            if panel["reason"]:
                sentences.append(f"{panel['panel']}: {panel['reason']}.")
        for name in ("published", "published_sizes"):
            if tables[name]:
                sentences.append(_published_differences(tables[name]))
        return sentences

    def draw(self, tables: Tables) -> alt.TopLevelMixin:
        legend = alt.Legend(title=None, orient="top", columns=6, symbolOpacity=1, offset=10)
        colour = alt.Color("line:N", scale=_colours(tables["students"]), legend=legend)
        rows = [_panels(tables, panel, colour) for panel in _drawn_by_number(tables)]
        for chart in _pool_panels(tables, colour):
            if len(rows[-1]) == 1:  # next to a panel that has none by size
                rows[-1].append(chart)
            else:
                rows.append([chart])
        published_panels = []
        if tables["published"]:
            published_panels.append(_published_panel(tables["published"], "samples", BY_NUMBER))
        if tables["published_sizes"]:
            published_panels.append(
                _published_panel(tables["published_sizes"], "parameters", BY_SIZE)
            )
        if published_panels:
            rows.append(published_panels)
        note = (
            "Bands and bars: 95 % intervals over problems and training seeds, at each number by "
            "itself. Marks for one number stand side by side."
        )
        title = alt.TitleParams(
            "Accuracy after training on selected traces: higher is better", subtitle=note
        )
        grid = alt.vconcat(*(alt.hconcat(*row, spacing=40) for row in rows), spacing=50)
        return themed(grid.properties(title=title))


# Tables.


def _rows_of(rows: Records, panel: Row) -> Records:
    """Return the rows of a panel, by its title: pools share the untrained student's cells."""
    return [row for row in rows if row["panel"] == panel["panel"]]


def _over_baselines(panel: StudentPanel) -> Iterator[Row]:
    """Yield what each student of a reward gains over every other way to select as many traces.

    Among them are all traces, and none.
    """
    baselines = dict.fromkeys(student.selected.by for student in panel.students)
    baselines.pop(REWARD, None)
    for student in panel.students:
        if student.selected.by != REWARD:
            continue
        for by in baselines:
            baseline = panel.baseline(student, by)
            if baseline:
                yield student.minus(baseline, panel.title)


def _largest_over_smallest(panel: StudentPanel) -> Iterator[Row]:
    """Yield what the student of the largest reward gains over that of the smallest."""
    student_of = {student.basis: student for student in panel.students}
    records = [student.record(panel.title) for student in panel.students]
    for group in _by_reward_size(records):
        smallest = student_of[group[0]["basis"]]
        largest = student_of[group[-1]["basis"]]
        yield largest.minus(smallest, panel.title)


def _by_reward_size(students: Records) -> list[Records]:
    """Group students of rewards of several sizes that differ in nothing else, smallest first."""

    def order(student: Row) -> tuple[Any, ...]:
        return student["number"], student["rest"], student["reward_parameters"], student["line"]

    sized = [row for row in students if row["by"] == REWARD and row["reward_parameters"]]
    groups: dict[tuple[float, str], Records] = {}
    for row in sorted(sized, key=order):
        groups.setdefault((row["number"], row["rest"]), []).append(row)
    several_sizes = []
    for group in groups.values():
        if group[0]["reward_parameters"] < group[-1]["reward_parameters"]:
            several_sizes.append(group)
    return several_sizes


def _why_worse_than_random(tables: Tables, panel: Row) -> str:
    """Say why the reward's highest scores are worse than random traces; "" unless they are."""
    students = {}
    for row in _rows_of(tables["students"], panel):
        students[row["line"], row["number"]] = row
    for row in _rows_of(tables["differences"], panel):
        if row["less_by"] != RANDOM or row["difference"] >= 0 or not differs(row):
            continue
        student = students[row["line"], row["number"]]
        random = students[row["less"], row["less_number"]]
        causes = [*_saturated_scores(student), *_one_teacher(student, random)]
        if causes:
            return (
                f"{row['line']} is worse than random with {_traces(row['number'])}: "
                f"{', and '.join(causes)}"
            )
    return ""


def _saturated_scores(student: Row) -> Iterator[str]:
    low = student["score_low"]
    high = student["score_high"]
    if student["by"] != REWARD or low is None or high is None:
        return
    if high - low < SATURATED * abs(high):
        clause = (
            f"its traces score {low:.4f} to {high:.4f}, so it ranks differences that say nothing"
        )
        if student["selected_right"] is not None:
            clause += f", though {student['selected_right']:.0%} of them are right"
        yield clause


def _one_teacher(student: Row, random: Row) -> Iterator[str]:
    fraction = student["selected_one_teacher"]
    by_chance = random["selected_one_teacher"]
    if fraction is not None and by_chance is not None and fraction > by_chance + LOPSIDED:
        yield f"{fraction:.0%} of them are one teacher's (random: {by_chance:.0%})"


def _published_by_number(overlay: str) -> Records:
    rows = _published_rows(overlay, "samples", "selector", 'overlay = "prm_selection_samples"')
    families = [row["family"] for row in rows]
    for row in rows:
        row["label"] = row["name"]
        if families.count(row["family"]) > 1:
            row["label"] = f"{row['name']}, {row['samples'] / 1000:g}k"
    return rows


def _published_by_size(overlay: str) -> Records:
    rows = _published_rows(overlay, "parameters", "reward", 'overlay_size = "prm_selection_size"')
    for row in rows:
        row["label"] = row["name"]
    return rows


def _published_rows(overlay: str, x: str, name: str, hint: str) -> Records:
    """Return published accuracies on MATH500: from the paper's figure, else from its table."""
    records = published(overlay)
    if not {x, name, "accuracy_table"} <= records[0].keys():
        raise UserError(f"`{overlay}` has no accuracy by {x}", hint=hint)
    rows = []
    for record in records:
        from_figure = record["accuracy"] is not None
        accuracy = record["accuracy"] if from_figure else record["accuracy_table"]
        columns = {
            "name": record[name],
            "family": record.get("family", record[name]),
            x: record[x],
            "from_figure": from_figure,
            "accuracy": with_interval(accuracy, MATH),
            "table": record["accuracy_table"],
        }
        rows.append(flat(**columns))
    return rows


# Sentences.


def _traces(number: float) -> str:
    return f"{number:,.0f} traces"


def _panel_findings(title: str, students: Records, differences: Records) -> Iterator[str]:
    by_line: dict[str, Records] = {}
    for row in differences:
        by_line.setdefault(row["line"], []).append(row)
    for rows in by_line.values():
        for clause in _line_clauses(rows, students):
            yield f"{title}: {clause}."
    for row in differences:
        if row["less_by"] == REWARD:
            yield f"{title}, {_traces(row['number'])}: {_larger_reward(row)}."
    unsized = set()
    for student in students:
        if student["by"] == REWARD and not student["reward_parameters"]:
            unsized.add(student["line"])
    if unsized and _by_reward_size(students):
        names = ", ".join(sorted(unsized))
        yield f"{title}: rewards of unknown size, not drawn by size: {names}."
    short = []
    for student in students:
        selected = student["selected"] or student["number"]
        if selected < student["number"]:
            short.append(f"{student['line']} {selected:,.0f} of {student['number']:,.0f}")
    if short:
        yield f"{title}: fewer traces than asked for: {', '.join(short)}."


def _line_clauses(rows: Records, students: Records) -> Iterator[str]:
    """Yield what one way to select by reward gains.

    Over random selection at every number, over the others at the smallest number.
    """
    first = rows[0]
    over_random = [row for row in rows if row["less_by"] == RANDOM]
    if over_random:
        smallest = over_random[0]
        same_number = [row for row in students if row["number"] == smallest["number"]]
        yield (
            f"{_gains(over_random)}. {_at_smallest_number(smallest, same_number)}. "
            f"{_training_tokens(over_random)}"
        )
    gains = []
    for row in rows:
        if row["number"] == first["number"] and row["less_by"] not in (RANDOM, REWARD):
            baseline = row["less"]
            if row["less_by"] == ALL:
                baseline = f"{baseline} ({_traces(row['less_number'])})"
            gains.append(f"{baseline} {points(row, 'difference')}")
    if gains:
        yield f"{first['line']} with {_traces(first['number'])}, minus {', '.join(gains)}"


def _gains(over_random: Records) -> str:
    first = over_random[0]
    seeds = "from one training seed"
    if first["seeds"] > 1:
        seeds = f"over {first['seeds']} training seeds"
    gains = [f"{points(row, 'difference')} at {_traces(row['number'])}" for row in over_random]
    return f"{first['line']} minus {first['less']}, paired by problem, {seeds}: {', '.join(gains)}"


def _at_smallest_number(row: Row, students: Records) -> str:
    """Say whether the reward beats random selection, and what may explain it."""
    verb = verb_of(row, "difference")
    clauses = [f"At the smallest number it {verb} {row['less']} ({tested(row)})"]
    if row["difference_low"] <= 0 <= row["difference_high"]:
        low = row["problems_only_low"]
        high = row["problems_only_high"]
        needed = "more problems are needed to tell"
        if low > 0 or high < 0:
            needed = "more training seeds may tell"
        clauses.append(
            "without the variation between trainings the interval would be "
            f"[{signed(low)}, {signed(high)}], so {needed}"
        )
    by_line = {student["line"]: student for student in students}
    selected = by_line[row["line"]]
    random = by_line[row["less"]]
    if selected["selected_right"] is not None and random["selected_right"] is not None:
        clauses.append(
            f"{selected['selected_right']:.0%} of the selected traces were right, and "
            f"{random['selected_right']:.0%} of the random ones"
        )
    if selected["selected_sound"] is not None and random["selected_sound"] is not None:
        clauses.append(
            f"{selected['selected_sound']:.0%} were right in every step, and "
            f"{random['selected_sound']:.0%} of the random ones"
        )
    if row["seeds"] <= 1:
        clauses.append("one training seed doesn't show how much training varies")
    return "; ".join(clauses)


def _training_tokens(over_random: Records) -> str:
    """Say whether both students were trained on as many tokens."""
    ratios = [row["token_ratio"] for row in over_random]
    if None in ratios:
        return "Whether both were trained on as many tokens wasn't recorded"
    if all(1 / (1 + EQUAL) <= ratio <= 1 + EQUAL for ratio in ratios):
        return f"Both were trained on as many tokens, within {EQUAL:.0%}"
    lowest = f"{min(ratios):.2f}"
    highest = f"{max(ratios):.2f}"
    factor = lowest if lowest == highest else f"{lowest} to {highest}"
    return (
        f"It was trained on {factor} times the tokens of {over_random[0]['less']}, "
        "which may explain part"
    )


def _larger_reward(row: Row) -> str:
    return (
        f"the largest reward, {row['line']}, {verb_of(row, 'difference')} the smallest, "
        f"{row['less']}: {points(row, 'difference')}, {tested(row)}, paired by problem; each size "
        "is one reward model, so the interval doesn't cover how much training a reward varies"
    )


def _published_differences(rows: Records) -> str:
    """Say which published differences chance could explain, and how far the paper agrees."""
    within: dict[str, Estimate] = {}
    pairs = list(itertools.combinations(rows, 2))
    for pair in pairs:
        higher, lower = sorted(pair, key=lambda row: -row["accuracy"])
        difference = newcombe(
            with_interval(higher["accuracy"], MATH), with_interval(lower["accuracy"], MATH)
        )
        if not beyond_chance(difference):
            within[f"{higher['label']} over {lower['label']}"] = difference
    _, listed = split_by_chance(within)
    disagreements = []
    for row in rows:
        if row["from_figure"] and row["table"] is not None:
            disagreements.append(row["accuracy"] - row["table"])
    return (
        f"{MATH}, published: {len(within)} of {len(pairs)} differences are within binomial chance "
        f"on {PROBLEMS[MATH]} problems: {listed}, in points. The paper's figure and its table "
        f"differ by {signed(min(disagreements))} to {signed(max(disagreements))} points for the "
        f"same students, each trained once. {PAIRING_CAVEAT}"
    )


# Charts.


def _drawn_by_number(tables: Tables) -> Records:
    """Return the panels that are drawn by number.

    If there are several pools, those with several numbers, rewards or rules, if there are any.
    """
    several = []
    for panel in tables["panels"]:
        lines = []
        reward_lines = set()
        for student in _rows_of(tables["students"], panel):
            lines.append(student["line"])
            if student["by"] == REWARD:
                reward_lines.add(student["line"])
        several.append(len(set(lines)) < len(lines) or len(reward_lines) > 1)
    drawn = []
    for panel, has_several in zip(tables["panels"], several, strict=True):
        if has_several or not panel["pool"] or not any(several):
            drawn.append(panel)
    return drawn


def _panels(tables: Tables, panel: Row, colour: alt.Color) -> list[Any]:
    """Draw a task by number of traces, and each number with several rewards by their size."""
    students = _rows_of(tables["students"], panel)
    differences = _rows_of(tables["differences"], panel)
    over_random = [row for row in differences if row["less_by"] == RANDOM]
    # the untrained student has no number, but its interval must fit
    numbered = [{**row, "number": row["number"] or students[-1]["number"]} for row in students]
    frame = log_frame(numbered, "number")
    charts = [_by_number_panel(panel, students, over_random, frame, colour)]
    by_number: dict[float, Records] = {}
    for group in _by_reward_size(students):
        by_number.setdefault(group[0]["number"], []).extend(group)
    width = SIZE[0] if len(by_number) == 1 else NARROW
    for number, sized in by_number.items():
        random = [row for row in students if row["by"] == RANDOM and row["number"] == number]
        charts.append(_by_size_panel(sized, random, number, replace(frame, width=width), colour))
    return charts


def _by_number_panel(
    panel: Row, students: Records, over_random: Records, frame: Frame, colour: alt.Color
) -> Any:
    step = STEP * (frame.x[1] - frame.x[0])
    untrained = [row for row in students if not row["number"]]
    trained = [row for row in students if row["number"]]
    lines, marks = _lines_and_marks(trained, step)
    x_title = "" if over_random else BY_NUMBER
    x, y = log_axes(frame, "number", x_title, [row["number"] for row in trained])
    low = alt.Y("accuracy_low:Q")
    tooltip = ["line:N", "number:Q", "accuracy:Q", "accuracy_low:Q", "accuracy_high:Q", "seeds:Q"]
    line = alt.Chart(values(lines))
    mark = alt.Chart(values(marks))
    rule = alt.Chart(values(untrained))
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
    chart = alt.layer(*layers, width=SIZE[0], height=SIZE[1], title=panel_title(panel, SIZE[0]))
    if not over_random:
        return chart
    strip = _gain_strip(over_random, step, x.copy().title(BY_NUMBER), colour)
    return alt.vconcat(chart, strip, spacing=12)


def _lines_and_marks(trained: Records, step: float) -> tuple[Records, Records]:
    """Return lines, and marks for what was tried with one number only, side by side."""
    names = [row["line"] for row in trained]
    lines: Records = []
    marks: Records = []
    for row in trained:
        if names.count(row["line"]) > 1:
            lines.append(row)
    for row in trained:
        if names.count(row["line"]) > 1:
            continue
        number = row["number"]
        taken = sum(mark["asked"] == number for mark in marks)
        if any(other["number"] == number for other in lines):
            taken += 1
        marks.append({**row, "asked": number, "number": number * 10 ** (step * taken)})
    return lines, marks


def _gain_strip(over_random: Records, step: float, x: alt.X, colour: alt.Color) -> Any:
    """Draw the gains over random traces, those at one number next to each other."""
    lines = list(dict.fromkeys(row["line"] for row in over_random))
    gains = []
    for row in over_random:
        aside = step * (lines.index(row["line"]) - (len(lines) - 1) / 2)
        gains.append({**row, "number": row["number"] * 10**aside})
    axis = alt.Axis(labelExpr="datum.value ? format(100 * datum.value, '+') : '0'", tickCount=4)
    y = alt.Y("difference:Q", title=["gain over", "random, points"], axis=axis)
    zero = alt.Chart(values([{"zero": 0}]))
    chart = alt.Chart(values(gains))
    layers = [
        zero.mark_rule(color=LINE_COLOURS[RANDOM], strokeWidth=1.4).encode(y="zero:Q"),
        chart.mark_rule(strokeWidth=1.4).encode(
            x=x, y=alt.Y("difference_low:Q"), y2="difference_high:Q", color=colour
        ),
        chart.mark_point(filled=True, size=42, opacity=1).encode(x=x, y=y, color=colour),
    ]
    return alt.layer(*layers, width=SIZE[0], height=90)


def _by_size_panel(
    sized: Records, random: Records, number: float, by_number: Frame, colour: alt.Color
) -> Any:
    """Draw students by the size of their reward, on the accuracy axis of the panel by number."""
    frame = replace(by_number, x=log_frame(sized, "reward_parameters", air=0.25).x)
    parameters = [row["reward_parameters"] for row in sized]
    x, y = log_axes(frame, "reward_parameters", BY_SIZE, parameters)
    low = alt.Y("accuracy_low:Q")
    tooltip = ["line:N", "reward_parameters:Q", "accuracy:Q", "accuracy_low:Q", "accuracy_high:Q"]
    chart = alt.Chart()
    chance = alt.Chart(values(random))
    joined = alt.Chart(values(sized))
    layers = [
        chance.mark_rect(opacity=0.13, clip=True).encode(y=low, y2="accuracy_high:Q", color=colour),
        chance.mark_rule(strokeWidth=1.6, clip=True).encode(y=y, color=colour),
        joined.mark_line(strokeWidth=1, opacity=0.6, color=SOLVED).encode(
            x=x, y=y, detail="rest:N"
        ),
        chart.mark_rule(strokeWidth=1.4).encode(x=x, y=low, y2="accuracy_high:Q", color=colour),
        chart.mark_point(filled=True, size=70, opacity=1).encode(
            x=x, y=y, color=colour, tooltip=tooltip
        ),
        *lettering("reward_parameters", colour),
    ]
    lines: dict[str, Records] = {}
    for row in sized:
        lines.setdefault(row["rest"], []).append(row)
    labelled = place_labels(
        [{**row, "label": row["line"]} for row in sized],
        frame,
        lines=list(lines.values()),
        x="reward_parameters",
    )
    title = alt.TitleParams(
        "by size of the reward model",
        subtitle=f"students of {_traces(number)}; line and band: as many at random",
        fontSize=12,
        frame="group",
    )
    return alt.layer(
        *layers, data=values(labelled), width=frame.width, height=frame.height, title=title
    )


def _pool_panels(tables: Tables, colour: alt.Color) -> Iterator[Any]:
    """Draw for each student and task the accuracy in each pool, at the smallest number.

    Only lines that several pools have are drawn.
    """
    groups: dict[str, Records] = {}
    for panel in tables["panels"]:
        groups.setdefault(panel["group"], []).append(panel)
    for panels in groups.values():
        if not any(panel["pool"] for panel in panels):
            continue
        students = []
        for panel in panels:
            for row in _rows_of(tables["students"], panel):
                students.append({**row, "pool": panel["pool"]})
        numbers = [row["number"] for row in students if row["by"] not in (ALL, UNTRAINED)]
        smallest = min(numbers)
        candidates = [row for row in students if row["number"] == smallest or row["by"] == ALL]
        lines = [row["line"] for row in candidates]
        compared = [row for row in candidates if lines.count(row["line"]) > 1]
        if compared:
            pools = [panel["pool"] for panel in panels]
            yield _pool_panel(compared, pools, smallest, colour)


def _pool_panel(students: Records, pools: list[str], number: float, colour: alt.Color) -> Any:
    x = alt.X(
        "pool:N",
        title="traces to select from",
        sort=pools,
        axis=alt.Axis(labelAngle=0, labelLimit=200),
    )
    offset = alt.XOffset("line:N")
    y = alt.Y(
        "accuracy:Q",
        title="accuracy",
        axis=alt.Axis(format="%", tickCount=6),
        scale=alt.Scale(domain=[0, 1]),
    )
    tooltip = ["pool:N", "line:N", "number:Q", "accuracy:Q", "accuracy_low:Q", "accuracy_high:Q"]
    chart = alt.Chart(values(students))
    layers = [
        chart.mark_rule(strokeWidth=1.4).encode(
            x=x, xOffset=offset, y=alt.Y("accuracy_low:Q"), y2="accuracy_high:Q", color=colour
        ),
        chart.mark_point(filled=True, size=60, opacity=1).encode(
            x=x, xOffset=offset, y=y, color=colour, tooltip=tooltip
        ),
    ]
    note = _traces(number)
    if any(student["by"] == ALL for student in students):
        note += f"; `{ALL}` is the whole pool"
    title = alt.TitleParams("by pool", subtitle=note, fontSize=12, frame="group")
    return alt.layer(*layers, width=SIZE[0], height=SIZE[1], title=title)


def _published_panel(rows: Records, x_field: str, x_title: str) -> Any:
    """Draw labelled grey points: filled from the figure, hollow from the table.

    A line joins the points of each family.
    """
    frame = log_frame(rows, x_field, air=0.24)
    x, y = log_axes(frame, x_field, x_title, [row[x_field] for row in rows])
    families: dict[str, Records] = {}
    for row in rows:
        families.setdefault(row["family"], []).append(row)
    in_families = []
    for family in families.values():
        if len(family) > 1:
            in_families += family
    fill = alt.condition("datum.from_figure", alt.value(MUTED), alt.value("white"))
    tooltip = [
        "name:N",
        f"{x_field}:Q",
        alt.Tooltip("accuracy:Q", format=".3f"),
        alt.Tooltip("table:Q", format=".3f"),
    ]
    joined = alt.Chart(values(in_families))
    bars = alt.Chart().mark_rule(color=MUTED, opacity=0.4, clip=True)
    dots = alt.Chart().mark_point(size=60, opacity=1, color=MUTED, strokeWidth=1.5)
    layers = [
        joined.mark_line(color=MUTED, strokeWidth=1.4).encode(x=x, y=y, detail="family:N"),
        bars.encode(x=x, y=alt.Y("accuracy_low:Q"), y2="accuracy_high:Q"),
        dots.encode(x=x, y=y, fill=fill, tooltip=tooltip),
        *lettering(x_field, alt.value(INK)),
    ]
    note = (
        "one training run per point (hollow: from a table); "
        f"bars: binomial 95 % intervals, {PROBLEMS[MATH]} problems"
    )
    title = alt.TitleParams(f"{MATH}, published", subtitle=note, fontSize=12, frame="group")
    labelled = place_labels(rows, frame, lines=list(families.values()), x=x_field)
    return alt.layer(*layers, data=values(labelled), width=SIZE[0], height=SIZE[1], title=title)


def _colours(students: Records) -> alt.Scale:
    """Return blue for rewards, from the smallest on, and for every other line its own colour."""
    ways = [UNTRAINED, REWARD, *list(LINE_COLOURS)[1:]]

    def order(student: Row) -> tuple[int, float, str]:
        way = ways.index(student["by"]) if student["by"] in ways else len(ways)
        return way, student["reward_parameters"] or 0, student["line"]

    reward_lines = {student["line"] for student in students if student["by"] == REWARD}
    blues = itertools.cycle(REWARD_COLOURS if len(reward_lines) > 1 else (SOLVED,))
    rules = itertools.cycle(RULE_COLOURS)
    spare = itertools.cycle(SPARE_COLOURS)
    palette: dict[str, str] = {}
    for student in sorted(students, key=order):
        line = student["line"]
        if line in palette:
            continue
        if student["by"] == REWARD:
            palette[line] = next(rules if student["rest"] else blues)
        elif line in LINE_COLOURS:
            palette[line] = LINE_COLOURS[line]
        else:
            palette[line] = next(spare)
    return alt.Scale(domain=list(palette), range=list(palette.values()))
