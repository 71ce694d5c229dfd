"""Draws two models on the same problems: difference in accuracy and ratio of tokens, money or
seconds by size, with a verdict.

A is the reference; a difference is B − A, a ratio B / A. `ponder compare` prints the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import altair as alt

from ponder.core import Figure, Measure, ModelLabel, Outcome, Records, Tables, UserError
from ponder.core.text import count, rounded_up
from ponder.figures import (
    COLOURS,
    INK,
    MUTED,
    Row,
    basis,
    flat,
    heading,
    interval_tooltips,
    pooled_findings,
    rows_of,
    themed,
    values,
)
from ponder.figures._units import (
    OUTPUT_TOKENS,
    Amounts,
    Tokens,
    amount_columns,
    size_title,
    token_findings,
    unit_of,
)
from ponder.figures._variants import points
from ponder.stats.columns import FEWEST_PAIRS
from ponder.stats.compare import PairComparison, compare_tasks
from ponder.stats.compare import Row as Quantity
from ponder.stats.corrections import FALSE_RATE
from ponder.study.labels import chosen_variant, pooled, task_labels, variant_labels

WIDTH = 400  # pixels
HEIGHT = 260
RATIO_TICKS = (
    *(0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    *(1, 1.1, 1.2, 1.5, 2, 3, 5, 10, 20),
)


@dataclass(frozen=True)
class Compare(Figure):
    a: ModelLabel = ""  # the reference; "": the study's first model
    b: ModelLabel = ""  # the model compared with it; "": the study's first other one
    margin: float = 0.03  # the loss of accuracy that is tolerable, as a fraction
    # of an answer: its tokens, its cost in money, or its seconds
    measure: Measure = "tokens"
    tokens: Tokens = "auto"  # which to count; auto: thinking if both models report it, else output

    compares_two: ClassVar[bool] = True

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
            return compared_tables(("", ""), {}, [])
        b = chosen_variant(outcomes, self.b) if self.b else b""
        a = chosen_variant(outcomes, self.a, but=b)
        b = b or chosen_variant(outcomes, but=a)
        both = [outcome for outcome in outcomes if outcome.cell.variant_key in (a, b)]
        task_of = task_labels(both)
        tasks: dict[str, tuple[list[Outcome], list[Outcome]]] = {}
        for task in sorted(task_of.values()):
            tasks[task] = ([], [])
        for outcome in both:
            of_a, of_b = tasks[task_of[outcome.cell.task_key]]
            side = of_b if outcome.cell.variant_key == b else of_a
            side.append(outcome)
        measured = amount_columns(both, self.measure, self.tokens)
        amounts = Amounts.of(measured)
        results = compare_tasks(list(tasks.values()), self.margin, amounts.resource)
        tables = compared_tables((names[a], names[b]), tasks, results, amounts)
        for panel in tables["panels"]:
            sides = tasks[panel["task"]]
            panel.update(measured)
            panel["pooled"] = pooled(side for side in sides if side)
        return tables

    def findings(self, tables: Tables) -> list[str]:
        if not tables["comparisons"]:
            return ["Nothing is compared: no two models answered the same problems."]
        sentences = token_findings(tables["panels"])
        several = len(tables["comparisons"]) > 1
        for comparison in tables["comparisons"]:
            task = f"{comparison['task']}: " if several else ""
            models = f"A is {comparison['a']}, B is {comparison['b']}"
            sentences.append(f"{task}{comparison['sentence']} ({models}).")
            sentences.append(f"{task}{in_common(comparison)}.")
            ratios = _clear_ratios(rows_of(tables["rows"], comparison))
            if ratios:
                sentences.append(f"{task}B / A, beyond chance after correction: {ratios}.")
        return sentences + pooled_findings(tables["panels"], "task")

    def draw(self, tables: Tables) -> alt.TopLevelMixin:
        return compared_chart(tables)


# Tables and sentences; `ponder compare` prints them.


def compared_tables(
    names: tuple[str, str],
    tasks: Mapping[str, tuple[Sequence[Outcome], Sequence[Outcome]]],
    results: Sequence[PairComparison | None],
    amounts: Amounts = OUTPUT_TOKENS,
) -> Tables:
    """Return one row per task, per quantity of a task, per size, and per quantity left out.

    `panels` has a row per task too, with the unit of its sizes.
    """
    tables: Tables = {"comparisons": [], "rows": [], "sizes": [], "omitted": [], "panels": []}
    for (task, (of_a, of_b)), result in zip(tasks.items(), results, strict=True):
        if result is None:
            continue
        attempts = [*of_a, *of_b]
        both = basis(attempts)
        tables["comparisons"].append({**_comparison(names, task, result, amounts), "basis": both})
        tables["panels"].append({"task": task, "unit": unit_of(of_a, ""), "basis": both})
        for quantity in result.rows:
            row = flat(
                task=task,
                quantity=amounts.worded(quantity.quantity),
                is_ratio=quantity.ratio,
                a=quantity.first,
                b=quantity.second,
                effect=quantity.effect,
                p_value=quantity.p_value,
                q_value=quantity.q_value,
                note=quantity.note,
                basis=both,
            )
            tables["rows"].append(row)
        for at_size in result.by_size:
            row = {"ratio": None, "ratio_low": None, "ratio_high": None}
            row |= flat(
                task=task,
                size=at_size.size,
                a=at_size.first,
                b=at_size.second,
                difference=at_size.difference,
                ratio=at_size.tokens,
                only_a=at_size.only_first,
                only_b=at_size.only_second,
                problems=at_size.first.problems,
                extrapolated=at_size.extrapolated,
                basis=basis(o for o in attempts if o.size == at_size.size),
            )
            tables["sizes"].append(row)
        for omitted, why in result.omitted:
            row = {"task": task, "quantity": amounts.worded(omitted), "why": amounts.worded(why)}
            tables["omitted"].append({**row, "basis": both})
    return tables


def _comparison(names: tuple[str, str], task: str, result: PairComparison, amounts: Amounts) -> Row:
    row: Row = {"task": task, "a": names[0], "b": names[1], "problems": result.problems}
    for name in ("attempts", "seeds", "left_out", "failed"):
        of_a, of_b = getattr(result, name)
        row[f"{name}_a"] = of_a
        row[f"{name}_b"] = of_b
    row["margin"] = result.margin
    row["verdict"] = result.verdict
    row["more_problems"] = None
    if not math.isinf(result.more_problems):
        row["more_problems"] = int(result.more_problems)
    components = result.components
    row["variance_between"] = components.between if components.separate else None
    row["variance"] = components.total
    row["sentence"] = verdict_sentence(result, amounts)
    return row


def verdict_sentence(result: PairComparison, amounts: Amounts = OUTPUT_TOKENS) -> str:
    """Say what the comparison shows of B against A."""
    accuracy = result.rows[0]
    tokens = result.row("tokens")
    difference = points(flat(effect=accuracy.effect), "effect")
    margin = f"{100 * result.margin:g} points"
    end = f"; {_ratio_clause(tokens, amounts)}" if tokens else ""
    if result.problems < FEWEST_PAIRS:
        problems = count(result.problems, "problem")
        return f"Can't tell: {problems} in common, and an interval needs {FEWEST_PAIRS}"
    if result.verdict == "above":
        return f"B is better than A: {difference}{end}"
    if result.verdict == "not below":
        cost = _at_ratio(tokens, amounts)
        return f"B is not worse than A by more than {margin}{cost}: {difference}{end}"
    if result.verdict == "slightly below":
        cost = _at_ratio(tokens, amounts)
        return f"B is worse than A, but by less than {margin}{cost}: {difference}{end}"
    if result.verdict == "below":
        return f"B is worse than A: {difference}{end}"
    needed = _more_problems(result)
    if accuracy.p_value <= FALSE_RATE:
        return (
            f"Can't tell: {difference}, which doesn't withstand the correction for all "
            f"comparisons; {needed}{end}"
        )
    return (
        f"Can't tell: {difference}, which excludes neither 0 nor a loss of {margin}; {needed}{end}"
    )


def _at_ratio(tokens: Quantity | None, amounts: Amounts) -> str:
    """Return ` at 44% fewer tokens` or ` at 44% lower cost`, if that is beyond chance."""
    if tokens is None or not tokens.differs:
        return ""
    ratio = tokens.effect.value
    fewer, more = ("lower", "higher") if amounts.resource == "cost" else ("fewer", "more")
    if ratio < 1:
        return f" at {1 - ratio:.0%} {fewer} {amounts.noun}"
    if ratio < 3:
        return f" at {ratio - 1:.0%} {more} {amounts.noun}"
    return f" at {ratio:.1f} times the {amounts.noun}"


def _ratio_clause(tokens: Quantity, amounts: Amounts) -> str:
    effect = tokens.effect
    interval = f"{effect.value:.2f} [{effect.low:.2f}, {effect.high:.2f}]"
    clause = f"its {amounts.noun} are {interval} times those of A"
    if amounts.resource == "cost":
        clause = f"its cost is {interval} times that of A"
    if not tokens.differs:
        clause += ", which chance explains"
    return clause


def _more_problems(result: PairComparison) -> str:
    """Say how many more problems would decide."""
    if math.isfinite(result.more_problems):
        problems = count(rounded_up(result.more_problems), "more problem")
        return f"about {problems} would decide in 80 % of runs, if the difference is as measured"
    if result.components.trained:
        return (
            "no number of problems would decide: training seeds differ too much, "
            "so train more of them"
        )
    return "no number of problems would decide, if the difference is as measured"


def in_common(comparison: Row) -> str:
    """Say how many problems are compared, and what is left out."""
    text = (
        f"{count(comparison['problems'], 'problem')} in common; "
        f"attempts: A {comparison['attempts_a']:,}, B {comparison['attempts_b']:,}"
    )
    for side in ("a", "b"):
        seeds = comparison[f"seeds_{side}"]
        if seeds > 1:
            text += f"; {side.upper()} has {seeds} training seeds"
        elif seeds == 1:
            text += (
                f"; {side.upper()} has one training seed, so nothing is known about how "
                "training varies"
            )
    several_seeds = max(comparison["seeds_a"], comparison["seeds_b"]) > 1
    omissions = []
    for side, other in (("A", "B"), ("B", "A")):
        problems = comparison[f"left_out_{side.lower()}"]
        if problems:
            why = f"{other} did not answer"
            if several_seeds:
                why = "not every seed of both answered"
            omissions.append(f"{count(problems, 'problem')} of {side} that {why}")
    for side in ("a", "b"):
        failed = comparison[f"failed_{side}"]
        if failed:
            omissions.append(f"{count(failed, 'failed attempt')} of {side.upper()}")
    if omissions:
        text += f". Left out: {', '.join(omissions)}"
    return text


def _clear_ratios(rows: Records) -> str:
    """List the ratios that are beyond chance after the correction for all comparisons."""
    clear = []
    for row in rows:
        if row["is_ratio"] and row["q_value"] <= FALSE_RATE:
            clear.append(f"{row['quantity']} × {_ratio(row)}")
    return ", ".join(clear)


def _ratio(row: Row) -> str:
    return f"{row['effect']:.2f} [{_end(row['effect_low'])}, {_end(row['effect_high'])}]"


def _end(value: float | None) -> str:
    return "?" if value is None else f"{value:.2f}"


# Charts.


def compared_chart(tables: Tables) -> alt.TopLevelMixin:
    """Draw tables that may have been made from two stores."""
    charts = []
    for comparison, panel in zip(tables["comparisons"], tables["panels"], strict=True):
        amounts = Amounts.of(panel)
        sizes = rows_of(tables["sizes"], comparison)
        quantities = {row["quantity"]: row for row in rows_of(tables["rows"], comparison)}
        with_interval = [row for row in sizes if row["problems"] >= FEWEST_PAIRS]
        charts.append(
            _accuracy_panel(comparison, panel, with_interval or sizes, quantities["accuracy"])
        )
        with_ratio = [row for row in sizes if row["ratio"] is not None]
        if with_ratio:
            charts.append(_tokens_panel(panel, with_ratio, quantities.get(amounts.noun)))
    if not charts:
        nothing = alt.Chart(values([{"text": "no two models answered the same problems"}]))
        return themed(
            nothing.mark_text(color=INK).encode(text="text:N"), title="Nothing to compare"
        )
    first = tables["comparisons"][0]
    title = alt.TitleParams(
        "B compared with A on the same problems",
        subtitle=[f"A: {first['a']}", f"B: {first['b']}"],
    )
    return themed(alt.concat(*charts, columns=2, spacing=50).properties(title=title))


def _size_axis(panel: Row, rows: Records) -> alt.X:
    sizes = [row["size"] for row in rows]
    if len(sizes) == 1:  # a benchmark has one size, which is just a number
        return alt.X("size:Q", axis=None)
    # Sizes at the very edge would have half of their bars cut off.
    if min(sizes) > 0:
        domain = [min(sizes) / 1.08, max(sizes) * 1.08]
        scale = alt.Scale(type="log", domain=domain, nice=False)
        title = size_title(panel["unit"], "log scale")
    else:
        domain = [min(sizes) - 1, max(sizes) + 1]
        scale = alt.Scale(type="linear", domain=domain, nice=False)
        title = size_title(panel["unit"])
    axis = alt.Axis(values=sizes, format="~g", labelOverlap="greedy", labelSeparation=5, grid=False)
    return alt.X("size:Q", title=title, scale=scale, axis=axis)


def _accuracy_panel(comparison: Row, panel: Row, sizes: Records, overall: Row) -> Any:
    """Draw the difference in accuracy at each size, over a band of the overall difference."""
    margin = comparison["margin"]
    low = min(-1.5 * margin, *(row["difference_low"] for row in sizes))
    high = max(1.5 * margin, *(row["difference_high"] for row in sizes))
    scale = alt.Scale(domain=[low, high], nice=True)
    axis = alt.Axis(labelExpr="replace(format(100 * datum.value, '+~r'), '+0', '0')")
    x = _size_axis(panel, sizes)
    y = alt.Y("difference:Q", title="accuracy, B − A (points)", scale=scale, axis=axis)
    dash_scale = alt.Scale(domain=["0", "margin"], range=[[1, 0], [4, 3]])
    dash = alt.StrokeDash("what:N", scale=dash_scale, legend=None)
    lines = [{"difference": 0.0, "what": "0"}, {"difference": -margin, "what": "margin"}]
    tooltip = [
        "size:Q",
        *interval_tooltips("difference", "+.3f"),
        "problems:Q",
        "only_a:Q",
        "only_b:Q",
    ]
    layers: list[Any] = []
    if len(sizes) > 1:
        band = alt.Chart(values([overall])).mark_rect(opacity=0.15, color=COLOURS[0])
        middle = alt.Chart(values([overall])).mark_rule(color=COLOURS[0])
        layers.append(band.encode(y=alt.Y("effect_low:Q", scale=scale), y2="effect_high:Q"))
        layers.append(middle.encode(y=alt.Y("effect:Q", scale=scale)))
    chart = alt.Chart(values(sizes))
    layers += [
        alt.Chart(values(lines))
        .mark_rule(strokeWidth=1.2)
        .encode(y=y, strokeDash=dash, color=alt.value("#3c4248")),
        chart.mark_rule(color=COLOURS[0], strokeWidth=1.6).encode(
            x=x, y=alt.Y("difference_low:Q", scale=scale), y2="difference_high:Q"
        ),
        chart.mark_point(filled=True, size=55, color=COLOURS[0], opacity=1).encode(
            x=x, y=y, tooltip=tooltip
        ),
    ]
    bars = "Bar: 95 %."
    if len(sizes) > 1:
        bars = "Bars: 95 % at each size alone. Band: all sizes."
    notes = [
        comparison["sentence"],
        in_common(comparison),
        f"{bars} Dashed: the margin, {100 * margin:g} points.",
    ]
    title = heading(f"Accuracy, {comparison['task']}", notes, WIDTH)
    return alt.layer(*layers, width=WIDTH, height=HEIGHT, title=title)


def _tokens_panel(panel: Row, sizes: Records, overall: Row | None) -> Any:
    """Draw the ratio of tokens at each size."""
    amounts = Amounts.of(panel)
    bounds = []
    for row in sizes:
        bounds += [row[name] for name in ("ratio_low", "ratio_high") if row[name]]
    domain = [min([0.9, *bounds]) / 1.02, max([1.1, *bounds]) * 1.02]
    scale = alt.Scale(type="log", domain=domain, nice=False)
    x = _size_axis(panel, sizes)
    y = alt.Y(
        "ratio:Q",
        title=f"{amounts.answer_title}, B / A (log scale)",
        scale=scale,
        axis=alt.Axis(format="~g", labelOverlap="greedy", values=list(RATIO_TICKS)),
    )
    colour = COLOURS[2]
    chart = alt.Chart(values(sizes))
    if len(sizes) > 1:
        interval = chart.mark_area(opacity=0.15, color=colour)
        line = chart.mark_line(color=colour, strokeWidth=1.8)
        notes_end = "Band: 95 %, at each size alone."
    else:
        interval = chart.mark_rule(color=colour, strokeWidth=1.6)
        line = chart.mark_point(opacity=0)
        notes_end = "Bar: 95 %."
    fill = alt.condition("datum.extrapolated", alt.value("white"), alt.value(colour))
    layers = [
        alt.Chart(values([{"ratio": 1.0}]))
        .mark_rule(color=MUTED, strokeWidth=1.2)
        .encode(y=alt.Y("ratio:Q", scale=scale)),
        interval.encode(x=x, y=alt.Y("ratio_low:Q", scale=scale), y2="ratio_high:Q"),
        line.encode(x=x, y=y),
        chart.mark_point(size=45, filled=True, opacity=1, stroke=colour).encode(
            x=x, y=y, fill=fill, tooltip=["size:Q", *interval_tooltips("ratio", ".3f")]
        ),
    ]
    notes = []
    if overall:
        notes.append(f"Over all problems: {_ratio(overall)}.")
    notes.append(f"Ratio of geometric means; truncated attempts are censored. {notes_end}")
    if any(row["extrapolated"] for row in sizes):
        notes.append(
            "White: more than 20 % of the attempts of one model were truncated, so the ratio is "
            "extrapolated."
        )
    return alt.layer(
        *layers, width=WIDTH, height=HEIGHT, title=heading(amounts.noun.capitalize(), notes, WIDTH)
    )
