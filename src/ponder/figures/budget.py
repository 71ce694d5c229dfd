"""Draws accuracy under a budget of tokens, money or seconds against the budget, one line per variant,
with the area under each line.

This is OAA_t of OptimalThinkingBench (Aggarwal et al. 2025) at every budget at once, computed from
stored attempts: an answer counts if it is right and took no more tokens than the budget. A model
that is told its budget may do better. The area under a line (AUC) is its accuracy averaged over all
budgets up to the largest. A budget of money is a spending limit per answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import altair as alt
import numpy as np

from ponder.core import Figure, Measure, ModelLabel, Outcome, Records, Tables, UserError
from ponder.figures import (
    Row,
    basis,
    flat,
    percent,
    pooled_findings,
    rows_of,
    span,
    themed,
    values,
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
    short_names,
    tested,
    with_answers,
)
from ponder.stats.frontier import Variant, area_difference, area_p, budget_area, under_budget
from ponder.study.labels import chosen_variant, variant_labels

POINTS = 100  # points per line, at most
WIDTH = 430  # pixels of a panel


@dataclass(frozen=True)
class Budget(Figure):
    reference: ModelLabel = ""  # the model that others are compared with; "": the study's first
    by: Literal["task", "size"] = "task"  # one panel per task, or per size of each task
    most: float = 0  # the largest budget, of `measure`; 0: the most that any attempt took
    scale: Literal["log", "linear"] = "log"  # of the budget's axis
    # of an answer, on the axis: its tokens, its cost in money, or its seconds
    measure: Measure = "tokens"
    # which to count; auto: thinking if every model reports it, else output
    tokens: Tokens = "output"

    def __post_init__(self) -> None:
        whole = self.measure != "tokens" or self.most % 1 == 0
        if not 0 <= self.most < math.inf or not whole:
            raise UserError(
                f"most is a number of {self.measure}, not {self.most:g}",
                hint="leave it out to see every budget",
            )

    def estimate(self, outcomes: Sequence[Outcome]) -> Tables:
        tables: Tables = {"panels": [], "variants": [], "budgets": []}
        reference_key = chosen_variant(outcomes, self.reference)
        reference = variant_labels(outcomes)[reference_key]
        short = short_names(outcomes, reference_key)
        colour_of = colours(short)
        measured = amount_columns(outcomes, self.measure, self.tokens)
        amounts = Amounts.of(measured)
        for panel in panels(by_variant(outcomes), self.by, amounts.resource):
            data = panel.data
            largest = self.most
            if not largest:
                largest = max((float(variant.tokens.max()) for variant in data.variants), default=0)
            largest = largest or 1.0  # where no attempt took anything
            if amounts.are_tokens:
                largest = int(largest)
            panel_row = {
                "panel": panel.title,
                "reference": reference,
                "most": largest,
                "problems": data.problems,
                "cut_short": cut_short(data, short),
                "pooled": panel.pooled,
                **measured,
                "estimated": panel.estimated,
                "rests_on": panel.rests_on,
                "reference_label": short[reference],
                "basis": basis(panel.attempts),
            }
            tables["panels"].append(panel_row)
            by_name = {variant.name: variant for variant in data.variants}
            for variant in data.variants:
                area = budget_area(variant, largest)
                gain = None
                p_value = None
                if reference in by_name and variant.name != reference:
                    gain = area_difference(variant, by_name[reference], largest)
                    p_value = area_p(variant, by_name[reference], largest)
                variant_row = flat(
                    panel=panel.title,
                    variant=variant.name,
                    label=short[variant.name],
                    colour=colour_of[variant.name],
                    basis=basis(panel.outcomes[variant.name]),
                    auc=area,
                    auc_gain=gain,
                    p_value=p_value,
                    seeds=len(variant.seeds),
                    attempts=area.attempts,
                    problems=area.problems,
                )
                tables["variants"].append(variant_row)
                budgets = _budgets(variant, largest)
                for budget, accuracy in zip(budgets, under_budget(variant, budgets), strict=True):
                    row = flat(
                        panel=panel.title,
                        variant=variant.name,
                        budget=budget,
                        accuracy=accuracy,
                        basis=variant_row["basis"],
                    )
                    tables["budgets"].append(row)
        tables["variants"] = corrected(tables["variants"])
        return amounts.named(tables)

    def findings(self, tables: Tables) -> list[str]:
        sentences = token_findings(tables["panels"])
        sentences += cut_findings(tables["panels"])
        sentences += pooled_findings(tables["panels"], "panel")
        for panel in with_answers(tables["panels"]):
            variants = rows_of(tables["variants"], panel)
            by_area = sorted(variants, key=lambda variant: -variant["auc"])
            areas = [f"{variant['label']} {span(variant, 'auc', '.0%')}" for variant in by_area]
            amounts = Amounts.of(panel)
            most = amounts.text(panel[amounts.column("most")])
            sentences.append(
                f"{panel['panel']}: accuracy averaged over all budgets up to {most} "
                f"{amounts.title}: {', '.join(areas)}."
            )
            leaders = _leaders(rows_of(tables["budgets"], panel), variants, amounts)
            if leaders:
                sentences.append(
                    f"{panel['panel']}: most accurate under a budget, as measured: {leaders}."
                )
            compared = [row for row in variants if row.get("auc_gain_low") is not None]
            above = []
            for row in compared:
                if differs(row) and row["auc_gain"] > 0:
                    above.append(f"{row['label']} by {points(row, 'auc_gain')} ({tested(row)})")
            if compared:
                sentences.append(
                    f"{panel['panel']}: above {panel['reference_label']} on average over budgets, "
                    f"beyond chance: {', '.join(above) or 'none'}."
                )
        return sentences

    def draw(self, tables: Tables) -> alt.TopLevelMixin:
        charts = [self._panel(tables, panel) for panel in with_answers(tables["panels"])]
        note = [
            (
                "An answer counts if it is right and within the budget. "
                "AUC: accuracy averaged over all budgets."
            ),
            (
                "Bands: simultaneous, over problems and seeds: "
                "in 95 % of cases a whole true line is inside its band."
            ),
        ]
        limit = "a budget of tokens"
        if self.measure == "cost":
            limit = "a spending limit per answer"
        elif self.measure == "seconds":
            limit = "a limit of seconds per answer"
        title = alt.TitleParams(
            f"Accuracy under {limit}: higher and earlier is better", subtitle=note
        )
        grid = alt.concat(*charts, columns=2, spacing={"row": 110, "column": 70}, bounds="flush")
        return themed(grid.resolve_scale(color="independent").properties(title=title))

    def _panel(self, tables: Tables, panel: Row) -> Any:
        legend_entry = {}
        palette = []
        for variant in rows_of(tables["variants"], panel):
            legend_entry[variant["basis"]] = f"{variant['label']}: {span(variant, 'auc', '.0%')}"
            palette.append(variant["colour"])
        lines = []
        amounts = Amounts.of(panel)
        budget = amounts.column("budget")
        for row in rows_of(tables["budgets"], panel):
            if self.scale == "linear" or row[budget] > 0:
                lines.append({**row, "line": legend_entry[row["basis"]]})
        legend = alt.Legend(
            title="AUC", orient="bottom", columns=2, symbolOpacity=1, symbolType="stroke"
        )
        scale = alt.Scale(domain=list(legend_entry.values()), range=palette)
        colour = alt.Color("line:N", scale=scale, legend=legend)
        most = panel[amounts.column("most")]
        smallest = min((row[budget] for row in lines), default=1)
        title = f"budget in {amounts.answer_title}"
        form = "~s" if amounts.are_tokens else amounts.tick_form
        if self.scale == "log":
            x_scale = alt.Scale(type="log", domain=[smallest, most], nice=False)
            title += ", log scale"
        else:
            x_scale = alt.Scale(domain=[smallest, most])
        axis = alt.Axis(format=form, tickCount=6, labelOverlap="greedy", labelSeparation=6)
        x = alt.X(f"{budget}:Q", title=title, scale=x_scale, axis=axis)
        band = alt.Chart().mark_area(interpolate="step-after", opacity=0.1)
        line = alt.Chart().mark_line(interpolate="step-after", strokeWidth=1.8)
        layers = [
            band.encode(x=x, y=percent("accuracy_low"), y2="accuracy_high:Q", color=colour),
            line.encode(x=x, y=percent("accuracy", "accuracy within the budget"), color=colour),
        ]
        return alt.layer(
            *layers, data=values(lines), width=WIDTH, height=300, title=panel_title(panel, WIDTH)
        )


def _budgets(variant: Variant, largest: float) -> list[float]:
    """Return the budgets at which a variant's line steps up, thinned if many, and both ends."""
    steps = np.unique(variant.tokens[variant.correct & (variant.tokens <= largest)])
    positions = np.linspace(0, len(steps) - 1, min(POINTS, len(steps)))
    thinned = np.unique(positions.round().astype(np.int64))
    return sorted({0.0, *steps[thinned].tolist(), float(largest)})


def _leaders(budgets: Records, variants: Records, amounts: Amounts) -> str:
    """Say which variant leads up to which budget.

    A lead over less than a tenth of a budget is left out.
    """
    accuracy: dict[str, float] = {}  # of each variant, at the budget so far
    leaders: list[str] = []
    starts: list[float] = []  # the budget from which each of them leads
    budget = amounts.column("budget")
    for row in sorted(budgets, key=lambda row: row[budget]):
        accuracy[row["basis"]] = row["accuracy"]
        first = max(accuracy, key=lambda variant: accuracy[variant])
        if accuracy[first] <= 0 or (leaders and accuracy[first] <= accuracy[leaders[-1]]):
            continue
        if leaders and row[budget] < 1.1 * starts[-1]:
            leaders.pop()
            starts.pop()
        if not leaders or leaders[-1] != first:
            leaders.append(first)
            starts.append(row[budget])
    if not leaders:
        return ""
    label = {variant["basis"]: variant["label"] for variant in variants}
    clauses = []
    for leader, end in zip(leaders[:-1], starts[1:], strict=True):
        clauses.append(f"{label[leader]} up to {amounts.text(end)} {amounts.short_unit}")
    last = label[leaders[-1]]
    clauses.append(f"{last} beyond" if clauses else last)
    return ", ".join(clauses)
