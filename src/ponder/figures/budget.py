"""Draws accuracy under a budget of tokens against the budget, one line per variant, with the area
under each line.

This is OAA_t of OptimalThinkingBench (Aggarwal et al. 2025) at every budget at once, computed from
stored attempts: an answer counts if it is right and took no more tokens than the budget. A model
that is told its budget may do better. The area under a line (AUC) is its accuracy averaged over all
budgets up to the largest.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import altair as alt
import numpy as np

from ponder.core import Figure, ModelLabel, Outcome, Records, Tables, UserError
from ponder.figures import basis, flat, percent, pooled_findings, span, themed, values
from ponder.figures._tokens import TITLES, Tokens, counted, token_findings, token_kind
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

PLACES = 100  # points per line, at most
WIDTH = 430  # pixels of a panel


@dataclass(frozen=True)
class Budget(Figure):
    reference: ModelLabel = ""  # the model that others are compared with; "": the study's first
    by: Literal["task", "size"] = "task"  # one panel per task, or per size of each task
    most: int = 0  # the largest budget in tokens; 0: the most that any attempt took
    scale: Literal["log", "linear"] = "log"  # of the budget's axis
    # which to count; auto: thinking if every model reports it, else output
    tokens: Tokens = "output"

    def __post_init__(self) -> None:
        if self.most < 0:
            raise UserError(
                f"most is a number of tokens, not {self.most}",
                hint="leave it out to see every budget",
            )

    def estimate(self, outcomes: Sequence[Outcome]) -> Tables:
        tables: Tables = {"panels": [], "variants": [], "budgets": []}
        chosen = chosen_variant(outcomes, self.reference)
        reference, short = variant_labels(outcomes)[chosen], short_names(outcomes, chosen)
        painted = colours(short)
        for panel in panels(by_variant(outcomes), self.by, token_kind(outcomes, self.tokens)):
            title, data = panel.title, panel.data
            most = self.most or max([1, *(int(v.tokens.max()) for v in data.variants)])
            record = {
                "panel": title,
                "reference": reference,
                "most": most,
                "problems": data.problems,
            }
            record |= {
                "cut_short": cut_short(data, short),
                "pooled": panel.pooled,
                **counted(outcomes, self.tokens),
            }
            record["estimated"] = panel.estimated
            record |= {
                "rests_on": panel.rests_on,
                "reference_label": short[reference],
                "basis": basis(panel.attempts),
            }
            tables["panels"].append(record)
            ref = next((v for v in data.variants if v.name == reference), None)
            for variant in data.variants:
                area = budget_area(variant, most)
                gain = area_difference(variant, ref, most) if ref and variant is not ref else None
                p = area_p(variant, ref, most) if ref and variant is not ref else None
                rests = {
                    "seeds": len(variant.seeds),
                    "attempts": area.attempts,
                    "problems": area.problems,
                }
                named = {"panel": title, "variant": variant.name, "label": short[variant.name]}
                named |= {
                    "colour": painted[variant.name],
                    "basis": basis(panel.outcomes[variant.name]),
                }
                tables["variants"].append(
                    flat(**named, auc=area, auc_gain=gain, p_value=p, **rests)
                )
                budgets = _places(variant, most)
                for budget, right in zip(budgets, under_budget(variant, budgets), strict=True):
                    row = flat(
                        panel=title,
                        variant=variant.name,
                        budget=budget,
                        accuracy=right,
                        basis=named["basis"],
                    )
                    tables["budgets"].append(row)
        tables["variants"] = corrected(tables["variants"])
        return tables

    def findings(self, tables: Tables) -> list[str]:
        sentences = token_findings(tables["panels"]) + cut_findings(tables["panels"])
        sentences += pooled_findings(tables["panels"], "panel")
        for panel in with_answers(tables["panels"]):
            own = [v for v in tables["variants"] if v["panel"] == panel["panel"]]
            areas = ", ".join(
                f"{v['label']} {span(v, 'auc', '.0%')}"
                for v in sorted(own, key=lambda v: -v["auc"])
            )
            sentences.append(
                f"{panel['panel']}: accuracy averaged over all budgets up to {panel['most']:,} "
                f"{TITLES[panel['token_kind']]}: {areas}."
            )
            if leaders := _leaders(
                tables["budgets"], panel, {v["variant"]: v["label"] for v in own}
            ):
                sentences.append(
                    f"{panel['panel']}: most accurate under a budget, as measured: {leaders}."
                )
            compared = [v for v in own if v.get("auc_gain_low") is not None]
            clear = [v for v in compared if differs(v) and v["auc_gain"] > 0]
            above = [f"{v['label']} by {points(v, 'auc_gain')} ({tested(v)})" for v in clear]
            if compared:
                sentences.append(
                    f"{panel['panel']}: above {panel['reference_label']} on average over budgets, beyond chance: "
                    f"{', '.join(above) or 'none'}."
                )
        return sentences

    def draw(self, tables: Tables) -> alt.TopLevelMixin:
        shown = [self._panel(tables, panel) for panel in with_answers(tables["panels"])]
        note = [
            "An answer counts if it is right and within the budget. AUC: accuracy averaged over all budgets.",
            "Bands: simultaneous, over problems and seeds: in 95 % of cases a whole true line is inside its band.",
        ]
        title = alt.TitleParams(
            "Accuracy under a budget of tokens: higher and earlier is better", subtitle=note
        )
        grid = alt.concat(*shown, columns=2, spacing={"row": 110, "column": 70}, bounds="flush")
        return themed(grid.resolve_scale(color="independent").properties(title=title))

    def _panel(self, tables: Tables, panel: dict[str, Any]) -> Any:
        own = [v for v in tables["variants"] if v["panel"] == panel["panel"]]
        entry = {v["variant"]: f"{v['label']}: {span(v, 'auc', '.0%')}" for v in own}
        lines = [
            {**b, "line": entry[b["variant"]]}
            for b in tables["budgets"]
            if b["panel"] == panel["panel"]
        ]
        if self.scale == "log":
            lines = [b for b in lines if b["budget"] > 0]
        scale = alt.Scale(domain=list(entry.values()), range=[v["colour"] for v in own])
        legend = alt.Legend(
            title="AUC", orient="bottom", columns=2, symbolOpacity=1, symbolType="stroke"
        )
        colour = alt.Color("line:N", scale=scale, legend=legend)
        ends = [min((b["budget"] for b in lines), default=1), panel["most"]]
        across = (
            alt.Scale(type="log", domain=ends, nice=False)
            if self.scale == "log"
            else alt.Scale(domain=ends)
        )
        named = f"budget in {TITLES[panel['token_kind']]}" + (
            ", log scale" if self.scale == "log" else ""
        )
        axis = alt.Axis(format="~s", tickCount=6, labelOverlap="greedy", labelSeparation=6)
        x = alt.X("budget:Q", title=named, scale=across, axis=axis)
        band = alt.Chart().mark_area(interpolate="step-after", opacity=0.1)
        line = alt.Chart().mark_line(interpolate="step-after", strokeWidth=1.8)
        layers = [
            band.encode(x=x, y=percent("accuracy_low"), y2="accuracy_high:Q", color=colour),
            line.encode(x=x, y=percent("accuracy", "accuracy within the budget"), color=colour),
        ]
        return alt.layer(
            *layers, data=values(lines), width=WIDTH, height=300, title=panel_title(panel, WIDTH)
        )


def _places(variant: Variant, most: int) -> list[float]:
    """The budgets at which a variant's line steps up, thinned if there are many, and both ends."""
    steps = np.unique(variant.tokens[variant.correct & (variant.tokens <= most)])
    thinned = np.unique(
        np.linspace(0, len(steps) - 1, min(PLACES, len(steps))).round().astype(np.int64)
    )
    return sorted({0.0, *steps[thinned].tolist(), float(most)})


def _leaders(budgets: Records, panel: dict[str, Any], short: dict[str, str]) -> str:
    """Who leads up to which budget; a lead over less than a tenth of a budget is left out."""
    own = sorted((b for b in budgets if b["panel"] == panel["panel"]), key=lambda b: b["budget"])
    so_far: dict[str, float] = {}
    leads: list[tuple[str, float]] = []  # and from which budget on
    for b in own:
        so_far[b["variant"]] = b["accuracy"]
        first = max(so_far, key=lambda name: so_far[name])
        if so_far[first] > 0 and (not leads or so_far[first] > so_far[leads[-1][0]]):
            if leads and b["budget"] < 1.1 * leads[-1][1]:
                leads.pop()
            if not leads or leads[-1][0] != first:
                leads.append((first, b["budget"]))
    said = [
        f"{short[name]} up to {end:,.0f} tokens"
        for (name, _), (_, end) in itertools.pairwise(leads)
    ]
    last = [short[name] for name, _ in leads[-1:]]
    return ", ".join([*said, *(f"{name} beyond" if said else name for name in last)])
