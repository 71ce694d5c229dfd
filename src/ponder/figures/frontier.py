"""Draws accuracy against tokens, money or seconds, one labelled dot per variant, with the frontier of
the best accuracy for the tokens.

After Kimi k1.5 (2025), whose figure has a bare dot per model. Here both axes have 95 % intervals
over problems and training seeds, a dot is filled in proportion to its probability of being on the
frontier, and what a variant cost to make is compared with what it saves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import altair as alt
import numpy as np

from ponder.core import Estimate, Figure, Measure, ModelLabel, Outcome, Records, Tables, UserError
from ponder.figures import (
    INK,
    MUTED,
    Row,
    basis,
    ends,
    flat,
    pooled_findings,
    rows_of,
    span,
    themed,
    values,
)
from ponder.figures._label_placement import Frame, lettering, place_labels
from ponder.figures._published import (
    PAIRING_CAVEAT,
    PROBLEMS,
    by_benchmark,
    published,
    split_by_chance,
    with_interval,
)
from ponder.figures._units import (
    Amounts,
    Tokens,
    amount_columns,
    token_findings,
)
from ponder.figures._variants import (
    by_variant,
    colours,
    corrected,
    cut_findings,
    cut_short,
    differs,
    panel_title,
    panels,
    points,
    seeds_pooled,
    short_names,
    tested,
    with_answers,
)
from ponder.stats.frontier import (
    Comparison,
    Variant,
    VariantSummary,
    aes,
    on_frontier,
    summarize,
    verdict,
)
from ponder.stats.paired import newcombe
from ponder.study.labels import chosen_variant, variant_labels

PUBLISHED_REFERENCE = "k1.5-long"
SURE = 0.95  # probability from which a variant is called on the frontier, or off it
SIZE = (430, 300)  # pixels of a panel
GRID: dict[str, Any] = {
    "columns": 2,
    "spacing": {"row": 110, "column": 70},
    "bounds": "flush",
}
TOOLTIP = (
    "tokens",
    "accuracy",
    "frontier_chance",
    "tokens_per_right",
    "difference",
    "p_value",
    "q_value",
    "ratio",
    "aes",
    "break_even",
)


@dataclass(frozen=True)
class Frontier(Figure):
    reference: ModelLabel = ""  # the model that others are compared with; "": the study's first
    by: Literal["task", "size"] = "task"  # one panel per task, or per size of each task
    # loss of accuracy up to which a variant counts as being as good as the reference
    margin: float = 0.05
    gain: float = 3.0  # AES: weight of a relative gain in accuracy
    loss: float = 5.0  # AES: weight of a relative loss in accuracy
    overlay: Literal["", "long2short"] = ""  # published points to draw below
    # of an answer, on the axis: its tokens, its cost in money, or its seconds
    measure: Measure = "tokens"
    # which to count; auto: thinking if every model reports it, else output
    tokens: Tokens = "output"
    # take accuracy to vary equally between the seeds of 4 or more variants of one recipe
    pool_seeds: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.margin < 1:
            raise UserError(
                f"margin is a fraction above 0 and below 1, not {self.margin}", hint="margin = 0.05"
            )

    def estimate(self, outcomes: Sequence[Outcome]) -> Tables:
        tables: Tables = {"panels": [], "variants": [], "seeds": [], "published": []}
        reference_key = chosen_variant(outcomes, self.reference)
        reference = variant_labels(outcomes)[reference_key]
        short = short_names(outcomes, reference_key)
        colour_of = colours(short)
        measured = amount_columns(outcomes, self.measure, self.tokens)
        amounts = Amounts.of(measured)
        for panel in panels(by_variant(outcomes), self.by, amounts.resource, self.pool_seeds):
            data = panel.data
            panel_row = {
                "panel": panel.title,
                "reference": reference,
                "problems": data.problems,
                "rests_on": panel.rests_on,
                "cut_short": cut_short(data, short),
                "pooled": panel.pooled,
                **measured,
                "estimated": panel.estimated,
                "seeds_pooled": seeds_pooled(data) if self.pool_seeds else "",
                "reference_label": short[reference],
                "basis": basis(panel.attempts),
            }
            tables["panels"].append(panel_row)
            summaries = summarize(data, reference, gain=self.gain, loss=self.loss)
            for variant, summary in zip(data.variants, summaries, strict=True):
                attempts = panel.outcomes[variant.name]
                row = _variant_row(panel.title, variant, summary)
                row["label"] = short[variant.name]
                row["colour"] = colour_of[variant.name]
                row["basis"] = basis(attempts)
                tables["variants"].append(row)
                tables["seeds"] += _seed_rows(panel.title, variant, attempts)
        tables["variants"] = corrected(tables["variants"])
        for row in tables["variants"]:
            row["verdict"] = self._verdict(row)
        if self.overlay:
            tables["published"] = self._published_rows()
        return amounts.named(tables)

    def _verdict(self, row: Row) -> str | None:
        if row["p_value"] is None:
            return None
        difference = Estimate(*ends(row, "difference"), row["attempts"], row["problems"])
        return verdict(difference, self.margin, differs(row))

    def _published_rows(self) -> Records:
        records = published(self.overlay)
        if "tokens" not in records[0] or not any(r.get("benchmark") in PROBLEMS for r in records):
            raise UserError(
                f"`{self.overlay}` has no tokens and accuracy by model",
                hint='overlay = "long2short"',
            )
        rows = []
        for benchmark, group in by_benchmark(records).items():
            [reference] = [r for r in group if r["model"] == PUBLISHED_REFERENCE]
            tokens = np.array([record["tokens"] for record in group])
            accuracies = np.array([record["accuracy"] for record in group])
            scores = aes(
                tokens / reference["tokens"],
                accuracies,
                np.array(reference["accuracy"]),
                self.gain,
                self.loss,
            )
            on = on_frontier(tokens, accuracies)
            reference_accuracy = with_interval(reference["accuracy"], benchmark)
            for i, record in enumerate(group):
                accuracy = with_interval(record["accuracy"], benchmark)
                row = flat(
                    benchmark=benchmark,
                    model=record["model"],
                    family=record["family"],
                    tokens=record["tokens"],
                    accuracy=accuracy,
                    tokens_per_right=record["tokens"] / record["accuracy"],
                    on_frontier=bool(on[i]),
                    aes=float(scores[i]),
                    difference=newcombe(accuracy, reference_accuracy),
                )
                rows.append(row)
        return rows

    def findings(self, tables: Tables) -> list[str]:
        sentences = token_findings(tables["panels"])
        sentences += cut_findings(tables["panels"])
        sentences += pooled_findings(tables["panels"], "panel")
        for panel in tables["panels"]:
            if panel["seeds_pooled"]:
                sentences.append(f"{panel['panel']}: {panel['seeds_pooled']}.")
        for panel in with_answers(tables["panels"]):
            for headline in self.headlines(tables, panel):
                sentences.append(f"{panel['panel']}: {headline}.")
            variants = rows_of(tables["variants"], panel)
            if len(variants) == 1:
                clause = _alone(variants[0], panel)
            else:
                clause = _on_frontier(variants)
            sentences.append(f"{panel['panel']}: {clause}.")
            for row in variants:
                if row["verdict"]:
                    clause = self._against(row, panel)
                    sentences.append(f"{panel['panel']}: {clause}.")
        for benchmark, rows in by_benchmark(tables["published"]).items():
            sentences.append(_published_differences(benchmark, rows))
        return sentences

    def headlines(self, tables: Tables, panel: Row) -> list[str]:  # noqa: ARG002 for subclasses
        """Return further sentences on a panel, without its name and the full stop."""
        return []

    def _against(self, row: Row, panel: Row) -> str:
        """Compare a variant with the reference: tokens, accuracy, and what it cost to make."""
        reference = panel["reference_label"]
        amounts = Amounts.of(panel)
        margin = f"{100 * self.margin:g} points"
        worst = f"{-100 * row['difference_low']:.1f} points"
        verdict = {
            "above": f"more accurate than {reference}",
            "not below": f"as accurate as {reference} to within {margin}",
            "slightly below": f"less accurate than {reference}, but by less than {margin}",
            "below": f"less accurate than {reference}",
            "open": f"not distinguishable from {reference}, but it may be {worst} below",
        }[row["verdict"]]
        clause = (
            f"{row['label']} {_change(row, amounts.noun)} and is {verdict}: "
            f"{points(row, 'difference')}, {tested(row)}"
        )
        if row["made_tokens"] and amounts.resource == "cost":
            clause += f"; it took {row['made_tokens']:,.0f} tokens to make, which have no price"
        elif row["made_tokens"]:
            cost = f"the {row['made_tokens']:,.0f} tokens it cost to make"
            if amounts.resource == "seconds":
                cost = f"the {row['made_seconds']:,.0f} seconds it took to make"
            if row["break_even"] is None:
                clause += f"; it never repays {cost}"
            else:
                answers = span(row, "break_even", ",.0f").replace("no upper bound", "never")
                clause += f"; it repays {cost} after {answers} answers"
        if row["seeds"] == 1:
            clause += "; one training seed doesn't show how much training varies"
        return clause

    def draw(self, tables: Tables) -> alt.TopLevelMixin:
        colour_of = {row["variant"]: row["colour"] for row in tables["variants"]}
        scale = alt.Scale(domain=list(colour_of), range=list(colour_of.values()))
        grids = []
        panels = [_panel(tables, panel, scale) for panel in with_answers(tables["panels"])]
        if panels:
            grids.append(alt.concat(*panels, **GRID))
        if tables["published"]:
            groups = by_benchmark(tables["published"])
            charts = [_published_panel(name, rows) for name, rows in groups.items()]
            grids.append(alt.concat(*charts, **GRID))
        note = [
            (
                "Bars: 95 % intervals over problems and training seeds (small dots). "
                "Dashed line: frontier as measured."
            ),
            "The fuller a dot, the more likely its variant is on the frontier.",
        ]
        title = alt.TitleParams(
            f"Accuracy by {_noun(tables)} per answer: up and to the left is better", subtitle=note
        )
        return themed(alt.vconcat(*grids, spacing=34).properties(title=title))


def _noun(tables: Tables) -> str:
    """Return what a figure measures: `tokens`, `cost` or `seconds`."""
    for panel in tables["panels"]:
        return Amounts.of(panel).noun
    return "tokens"


def _variant_row(panel: str, variant: Variant, summary: VariantSummary) -> Row:
    comparison = {}
    for field in fields(Comparison):  # None for the reference
        comparison[field.name] = getattr(summary.against, field.name, None)
    return flat(
        panel=panel,
        variant=variant.name,
        tokens=summary.tokens,
        accuracy=summary.accuracy,
        on_frontier=summary.on_frontier,
        frontier_chance=summary.frontier_chance,
        tokens_per_right=summary.tokens_per_right,
        **comparison,
        made_tokens=variant.made_tokens,
        made_seconds=variant.made_seconds,
        seeds=len(variant.seeds),
        attempts=summary.accuracy.attempts,
        problems=summary.accuracy.problems,
    )


def _seed_rows(panel: str, variant: Variant, attempts: Sequence[Outcome]) -> Records:
    """Return the tokens and the accuracy of each training seed."""
    tokens = variant.by_seed(variant.tokens)
    correct = variant.by_seed(variant.correct)
    rows = []
    for i, seeds in enumerate(variant.seeds):
        row = {
            "panel": panel,
            "variant": variant.name,
            "seed": ", ".join(map(str, seeds)),
            "tokens": float(tokens[i].mean()),
            "accuracy": float(correct[i].mean()),
            "basis": basis(o for o in attempts if o.cell.training_seeds == seeds),
        }
        rows.append(row)
    return rows


def _alone(row: Row, panel: Row) -> str:
    """Describe a variant that is compared with no other."""
    amounts = Amounts.of(panel)
    return (
        f"{row['label']}: accuracy {span(row, 'accuracy', '.1%')}, "
        f"{span(row, amounts.noun, amounts.form)} {amounts.unit} per answer, "
        f"{span(row, amounts.column('tokens_per_right'), amounts.form)} per right answer"
    )


def _on_frontier(rows: Records) -> str:
    """Say which variants are surely, perhaps or surely not on the frontier."""
    groups: dict[str, list[str]] = {"surely": [], "perhaps": [], "surely not": []}
    for row in rows:
        name = row["label"]
        chance = row["frontier_chance"]
        if chance is None:
            groups["perhaps"].append(name)
        elif chance >= SURE:
            groups["surely"].append(name)
        elif chance > 1 - SURE:
            groups["perhaps"].append(f"{name} ({chance:.0%})")
        else:
            groups["surely not"].append(name)
    clauses = [f"{how} {', '.join(names)}" for how, names in groups.items() if names]
    return f"on the frontier: {'; '.join(clauses)}"


def _change(row: Row, noun: str) -> str:
    """Say by how much a variant cuts or raises the tokens, the cost or the seconds."""
    ratio, low, high = ends(row, "ratio")
    if ratio is None:
        return f"can't be compared by {noun}"
    if low is None or high is None:
        return f"takes {ratio:.2f} times the {noun}"
    if ratio <= 1:
        verb = "cuts"
        changes = [round(100 * (1 - end)) for end in (ratio, low, high)]
    else:
        verb = "raises"
        changes = [round(100 * (end - 1)) for end in (ratio, low, high)]
    smallest, largest = sorted(changes[1:])
    return f"{verb} {noun} by {changes[0]} % [{smallest}, {largest}]".replace("-", "−")


def _published_differences(benchmark: str, rows: Records) -> str:
    """Say which published differences exceed the chance of two independent samples of problems."""
    differences = {}
    for row in rows:
        if row["model"] != PUBLISHED_REFERENCE:
            differences[row["model"]] = Estimate(*ends(row, "difference"), 0, 0)
    beyond, within = split_by_chance(differences)
    return (
        f"{benchmark}, published: differences to {PUBLISHED_REFERENCE} in points, beyond binomial "
        f"chance on {PROBLEMS[benchmark]} problems: {beyond}; within it: {within}. {PAIRING_CAVEAT}"
    )


def _panel(tables: Tables, panel: Row, scale: alt.Scale) -> Any:
    variants = rows_of(tables["variants"], panel)
    seeds = rows_of(tables["seeds"], panel)
    amounts = Amounts.of(panel)
    field = amounts.noun
    frame = _frame(variants, field)
    steps = _steps(variants, frame, field)
    x, y = _axes(frame, amounts.title, field)
    colour = alt.Color("variant:N", scale=scale, legend=None)
    fill = alt.Fill("variant:N", scale=scale, legend=None)
    fill_opacity = alt.FillOpacity(
        "frontier_chance:Q", scale=alt.Scale(domain=[0, 1], range=[0, 1]), legend=None
    )
    tooltip: list[Any] = ["variant:N"]
    for name in TOOLTIP:
        tooltip.append(alt.Tooltip(f"{amounts.column(name)}:Q", format=",.3~r"))
    # the data are given once, to the layers together: Altair copies them with every chart
    chart = alt.Chart()
    bars = chart.mark_rule(opacity=0.45, clip=True)
    small_dots = alt.Chart(values(seeds)).mark_point(filled=True, size=16, opacity=0.45, clip=True)
    layers = [
        _frontier_line(steps, x, y, field),
        bars.encode(x=x, y=alt.Y("accuracy_low:Q"), y2="accuracy_high:Q", color=colour),
        bars.encode(x=alt.X(f"{field}_low:Q"), x2=f"{field}_high:Q", y=y, color=colour),
        small_dots.encode(x=x, y=y, color=colour),
        chart.mark_point(filled=True, size=80, opacity=1, color="white").encode(x=x, y=y),
        chart.mark_point(size=80, opacity=1, strokeWidth=1.8).encode(
            x=x, y=y, color=colour, fill=fill, fillOpacity=fill_opacity, tooltip=tooltip
        ),
        *lettering(field, colour),
    ]
    return alt.layer(
        *layers,
        data=values(place_labels(variants, frame, steps, seeds, x=field)),
        width=SIZE[0],
        height=SIZE[1],
        title=panel_title(panel, SIZE[0]),
    )


def _published_panel(benchmark: str, rows: Records) -> Any:
    frame = _frame(rows)
    steps = _steps(rows, frame)
    labelled = [{**row, "label": row["model"]} for row in rows]
    x, y = _axes(frame)
    bars = alt.Chart().mark_rule(color=MUTED, opacity=0.35, clip=True)
    dots = alt.Chart().mark_point(size=50, opacity=1, color=MUTED, strokeWidth=1.5)
    fill = alt.condition("datum.family == 'k1.5'", alt.value(MUTED), alt.value("white"))
    tooltip = ["model:N", "tokens:Q", "accuracy:Q", "aes:Q", "difference:Q"]
    layers = [
        _frontier_line(steps, x, y),
        bars.encode(x=x, y=alt.Y("accuracy_low:Q"), y2="accuracy_high:Q"),
        dots.encode(x=x, y=y, fill=fill, tooltip=tooltip),
        *lettering("tokens", alt.value(INK)),
    ]
    note = (
        "Kimi k1.5 (filled) and others; bars: binomial 95 % intervals, "
        f"{PROBLEMS[benchmark]} problems"
    )
    title = alt.TitleParams(f"{benchmark}, published", subtitle=note, fontSize=12, frame="group")
    return alt.layer(
        *layers,
        data=values(place_labels(labelled, frame, steps)),
        width=SIZE[0],
        height=SIZE[1],
        title=title,
    )


def _frame(rows: Records, x: str = "tokens") -> Frame:
    """Return a frame with tokens from 0, and accuracy as far as the intervals go."""
    most = max(row[x] for row in rows)
    furthest = max(row.get(f"{x}_high") or most for row in rows)
    right = max(1.12 * most, min(1.03 * furthest, 1.5 * most)) or 1.0
    low = min(row["accuracy_low"] for row in rows)
    high = max(row["accuracy_high"] for row in rows)
    margin = 0.04 * (high - low)
    return Frame((0.0, right), (max(0.0, low - margin), high + margin), *SIZE)


def _axes(frame: Frame, unit: str = "tokens", field: str = "tokens") -> tuple[alt.X, alt.Y]:
    # Vega would round the ends of the axes, and the labels would no longer stand where they were
    # placed. No format of the ticks of tokens: whole numbers would label 0.5 and 1 alike.
    axis = alt.Axis(tickCount=6, labelOverlap="greedy", labelSeparation=4)
    if field != "tokens":
        axis.format = ",~r"
    x = alt.X(
        f"{field}:Q",
        title=f"mean {unit} per answer",
        scale=alt.Scale(domain=list(frame.x), nice=False, zero=False),
        axis=axis,
    )
    y = alt.Y(
        "accuracy:Q",
        title="accuracy",
        scale=alt.Scale(domain=list(frame.y), nice=False, zero=False),
        axis=alt.Axis(format="%", tickCount=6),
    )
    return x, y


def _steps(rows: Records, frame: Frame, x: str = "tokens") -> Records:
    """Return the corners of the frontier as measured: the best accuracy for so many tokens."""
    best = sorted((row[x], row["accuracy"]) for row in rows if row["on_frontier"])
    least, _ = best[0]
    _, last_accuracy = best[-1]
    corners = [(least, frame.y[0]), *best, (frame.x[1], last_accuracy)]
    return [{x: amount, "accuracy": accuracy} for amount, accuracy in corners]


def _frontier_line(steps: Records, x: alt.X, y: alt.Y, field: str = "tokens") -> Any:
    line = alt.Chart(values(steps)).mark_line(
        interpolate="step-after", color=MUTED, strokeWidth=1, strokeDash=[3, 3]
    )
    return line.encode(x=x, y=y, order=f"{field}:Q")
