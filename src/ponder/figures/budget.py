"""Accuracy under a budget against the budget, one line per variant: who is best if answers must come in so many tokens?

OAA_t of OptimalThinkingBench (Aggarwal et al. 2025) at every budget at once, from attempts already made: an answer
counts if it is right and took no more than the budget. A model that is told its budget may do better. The area under
a line, AUC, is its accuracy averaged over all budgets up to the largest.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import altair as alt
import numpy as np

from ponder.core import Figure, Outcome, Records, Tables, UserError
from ponder.figures import COLOURS, flat, percent, span, themed, values
from ponder.figures._variants import panels, points, reference_of, short_names
from ponder.stats.frontier import Variant, area_difference, budget_area, under_budget

PLACES = 100  # of a line, at most


@dataclass(frozen=True)
class Budget(Figure):
    reference: str = ""  # the model that others are set against; "" is the study's first
    by: Literal["task", "size"] = "task"  # what a panel is
    most: int = 0  # the largest budget; 0 is the most tokens that any attempt took
    scale: Literal["log", "linear"] = "log"  # of the budget

    def __post_init__(self) -> None:
        if self.most < 0:
            raise UserError(f"most is a number of tokens, not {self.most}", hint="leave it out to see every budget")

    def estimate(self, outcomes: Sequence[Outcome]) -> Tables:
        tables: Tables = {"panels": [], "variants": [], "budgets": []}
        reference = reference_of(outcomes, self.reference)
        for title, data, rests_on in panels(outcomes, self.by):
            most = self.most or max(1, *(int(v.tokens.max()) for v in data.variants))
            named = {"panel": title, "reference": reference, "most": most, "problems": data.problems}
            tables["panels"].append({**named, "rests_on": rests_on})
            ref = next((v for v in data.variants if v.name == reference), None)
            for variant in data.variants:
                area = budget_area(variant, most)
                gain = area_difference(variant, ref, most) if ref and variant is not ref else None
                rests = {"seeds": len(variant.seeds), "attempts": area.attempts, "problems": area.problems}
                tables["variants"].append(flat(panel=title, variant=variant.name, auc=area, auc_gain=gain, **rests))
                budgets = _places(variant, most)
                for budget, right in zip(budgets, under_budget(variant, budgets), strict=True):
                    tables["budgets"].append(flat(panel=title, variant=variant.name, budget=budget, accuracy=right))
        return tables

    def findings(self, tables: Tables) -> list[str]:
        found = []
        for panel in tables["panels"]:
            own = [v for v in tables["variants"] if v["panel"] == panel["panel"]]
            short = short_names([v["variant"] for v in own], panel["reference"])
            ranked = sorted(own, key=lambda v: -v["auc"])
            said = ", ".join(f"{short[v['variant']]} {span(v, 'auc', '.0%')}" for v in ranked)
            found.append(f"{panel['panel']}: right on average over all budgets up to {panel['most']:,} tokens: {said}.")
            if leaders := _leaders(tables["budgets"], panel, short):
                found.append(f"{panel['panel']}: as measured, most often right is {leaders}.")
            compared = [v for v in own if v.get("auc_gain_low") is not None]
            told = [f"{short[v['variant']]} by {points(v, 'auc_gain')}" for v in compared if v["auc_gain_low"] > 0]
            if compared:
                ref = short.get(panel["reference"], panel["reference"])
                found.append(
                    f"{panel['panel']}: on average over budgets surely above {ref}: {', '.join(told) or 'none'}."
                )
        return found

    def draw(self, tables: Tables) -> alt.TopLevelMixin:
        names = list(dict.fromkeys(v["variant"] for v in tables["variants"]))
        reference = tables["panels"][0]["reference"] if tables["panels"] else ""
        names.sort(key=lambda name: name != reference)
        shown = [self._panel(tables, panel, names) for panel in tables["panels"]]
        note = "bands: 95 % intervals over problems and training seeds; AUC: accuracy averaged over all budgets"
        title = alt.TitleParams("Accuracy under a budget of tokens", subtitle=note)
        grid = alt.concat(*shown, columns=2, spacing={"row": 110, "column": 70}, bounds="flush")
        return themed(grid.resolve_scale(color="independent").properties(title=title))

    def _panel(self, tables: Tables, panel: dict[str, Any], names: list[str]) -> Any:
        own = [v for v in tables["variants"] if v["panel"] == panel["panel"]]
        short = short_names([v["variant"] for v in own], panel["reference"])
        entry = {v["variant"]: f"{short[v['variant']]}: {span(v, 'auc', '.0%')}" for v in own}
        lines = [{**b, "line": entry[b["variant"]]} for b in tables["budgets"] if b["panel"] == panel["panel"]]
        if self.scale == "log":
            lines = [b for b in lines if b["budget"] > 0]
        palette = dict(zip(names, ["#3c4248", *COLOURS[:7]] * len(names), strict=False))
        scale = alt.Scale(domain=list(entry.values()), range=[palette[name] for name in entry])
        legend = alt.Legend(title="AUC", orient="bottom", columns=2, symbolOpacity=1, symbolType="stroke")
        colour = alt.Color("line:N", scale=scale, legend=legend)
        ends = [min((b["budget"] for b in lines), default=1), panel["most"]]
        across = alt.Scale(type="log", domain=ends, nice=False) if self.scale == "log" else alt.Scale(domain=ends)
        named = "budget in tokens" + (" (log scale)" if self.scale == "log" else "")
        x = alt.X("budget:Q", title=named, scale=across, axis=alt.Axis(format="~s", tickCount=6))
        band = alt.Chart().mark_area(interpolate="step-after", opacity=0.1)
        line = alt.Chart().mark_line(interpolate="step-after", strokeWidth=1.8)
        layers = [
            band.encode(x=x, y=percent("accuracy_low"), y2="accuracy_high:Q", color=colour),
            line.encode(x=x, y=percent("accuracy", "right within the budget"), color=colour),
        ]
        title = alt.TitleParams(panel["panel"], subtitle=panel["rests_on"], fontSize=12, frame="group")
        return alt.layer(*layers, data=values(lines), width=430, height=300, title=title)


def _places(variant: Variant, most: int) -> list[float]:
    """The budgets at which a variant's line steps up, or where there are many, every so many steps; and both ends."""
    steps = np.unique(variant.tokens[variant.correct & (variant.tokens <= most)])
    some = np.unique(np.linspace(0, len(steps) - 1, min(PLACES, len(steps))).round().astype(np.int64))
    return sorted({0.0, *steps[some].tolist(), float(most)})


def _leaders(budgets: Records, panel: dict[str, Any], short: dict[str, str]) -> str:
    """Who is ahead up to which budget; a lead over less than a tenth of a budget is passed over."""
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
    said = [f"{short[name]} up to {end:,.0f} tokens" for (name, _), (_, end) in itertools.pairwise(leads)]
    last = [short[name] for name, _ in leads[-1:]]
    return ", ".join([*said, *(f"then {name}" if said else name for name in last)])
