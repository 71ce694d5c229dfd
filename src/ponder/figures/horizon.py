"""Task and turn accuracy along a rollout, and the horizon: the step at which fewer than half of the rollouts are right.

After Sinha et al. 2025. Task accuracy is the survival of the first error (Kaplan-Meier) with its band; turn accuracy
judges each turn by the model's own last answer. Beside the measured horizon stands the one that a constant step
accuracy would give, and whether it is constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from ponder.core import Figure, Outcome, Tables, UserError
from ponder.figures import (
    COLOURS,
    MUTED,
    counts,
    curve_records,
    flat,
    percent,
    published,
    span,
    themed,
    values,
    with_details,
)
from ponder.stats.horizon import horizon, rollouts

MOST_BANDS = 4  # with more series than this, bands hide each other


@dataclass(frozen=True)
class Horizon(Figure):
    share: float = 0.5  # of the rollouts that must still be right
    overlay: str = ""  # published horizons to mark: `execution_horizon`

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise UserError(f"share lies between 0 and 1, not at {self.share}", hint="share = 0.5")

    def estimate(self, outcomes: Sequence[Outcome]) -> Tables:
        tables: Tables = {"summary": [], "turns": [], "survival": []}
        groups: dict[tuple[str, int, str], list[Outcome]] = {}
        for o in with_details(outcomes, "per_turn"):
            groups.setdefault((o.model, o.details["per_turn"], o.task), []).append(o)
        several = len({model for model, _, _ in groups}) > 1
        for (model, per_turn, task), part in sorted(groups.items()):
            found = horizon(rollouts(part), share=self.share)
            named = task.replace("execution ", "") if "=" in task else f"{per_turn} a turn"
            labels = {"series": f"{model}, {named}" if several else named}
            tables["summary"].append(
                flat(
                    **labels,
                    model=model,
                    per_turn=per_turn,
                    horizon=found.horizon,
                    predicted=found.predicted,
                    step_accuracy=found.step_accuracy,
                    constancy_p=found.trend.p_value,
                    turn_accuracy=found.trend.direction,
                    rests_on=counts(part),
                )
            )
            tables["survival"] += curve_records(found.survival, **labels)
            for row in found.rows:
                estimates = {"index": row.index, "task": row.task, "turn": row.turn, "unparsed": row.unparsed}
                tables["turns"].append(flat(**labels, first=row.first, last=row.last, **estimates))
        return tables

    def findings(self, tables: Tables) -> list[str]:
        found = []
        for row in tables["summary"]:
            if row["horizon"] is None:
                reach = f"is still right in {self.share:.0%} of its rollouts at the end"
            else:
                reach = f"keeps {self.share:.0%} of its rollouts right for {span(row, 'horizon')} steps"
            constant = f"a step accuracy of {span(row, 'step_accuracy', '.4f')}, if constant"
            steady = f"{constant}, predicts {span(row, 'predicted')}"
            found.append(f"{row['model']}, {row['series']}: {reach}; {steady} (turn accuracy: {row['turn_accuracy']}).")
        return found

    def draw(self, tables: Tables) -> alt.TopLevelMixin:
        names = [r["series"] for r in tables["summary"]]
        few = len(names) <= len(COLOURS)
        scale = alt.Scale(domain=names, range=COLOURS) if few else alt.Scale(domain=names, scheme="viridis")
        colour = alt.Color("series:N", scale=scale, sort=names, legend=alt.Legend(title=None, symbolOpacity=1))
        models = list(dict.fromkeys(r["model"] for r in tables["summary"]))
        note = ["grey diamonds: published horizons, one step a turn, no thinking"] if self.overlay else []
        title = alt.TitleParams(", ".join(models), subtitle=[*_subtitle(tables), *note])
        panels = alt.vconcat(self._survival(tables, colour), self._turns(tables, colour)).properties(title=title)
        return themed(panels)

    def _survival(self, tables: Tables, colour: alt.Color) -> Any:
        x = alt.X("size:Q", title="step")
        shown = alt.Chart(values(tables["survival"]))
        layers: list[alt.Chart] = []
        if len(tables["summary"]) <= MOST_BANDS:
            band = shown.mark_area(opacity=0.13, interpolate="step-after")
            layers.append(band.encode(x=x, y=percent("low"), y2="high:Q", color=colour))
        line = shown.mark_line(interpolate="step-after", strokeWidth=1.8)
        half = alt.Chart(values([{"share": self.share}])).mark_rule(color=MUTED, strokeDash=[4, 3])
        layers += [
            half.encode(y=percent("share")),
            line.encode(x=x, y=percent("value", "task accuracy"), color=colour),
        ]
        if self.overlay:
            marks = [{"model": r["model"], "size": r["horizon"], "share": 0.5} for r in published(self.overlay)]
            point = alt.Chart(values(marks)).mark_point(shape="diamond", color=MUTED, size=50)
            layers.append(point.encode(x=x, y=percent("share"), tooltip=["model:N", "size:Q"]))
        return alt.layer(*layers, width=500, height=230)

    def _turns(self, tables: Tables, colour: alt.Color) -> Any:
        x = alt.X("last:Q", title="step")
        shown = alt.Chart(values(tables["turns"]))
        layers: list[alt.Chart] = []
        if len(tables["summary"]) <= MOST_BANDS:
            rules = shown.mark_rule(opacity=0.4)
            layers.append(rules.encode(x=x, y=percent("turn_low"), y2="turn_high:Q", color=colour))
        tooltip = ["series:N", "first:Q", "last:Q", "turn:Q", "index:Q", "task:Q", "unparsed:Q"]
        points = shown.mark_line(point=alt.OverlayMarkDef(size=22), strokeWidth=1)
        layers.append(points.encode(x=x, y=percent("turn", "turn accuracy"), color=colour, tooltip=tooltip))
        return alt.layer(*layers, width=500, height=170)


def _subtitle(tables: Tables) -> list[str]:
    rows = tables["summary"]
    if len(rows) > MOST_BANDS:
        return [f"{len(rows)} series; their horizons and intervals are in the table"]
    return [
        f"{r['series']}: horizon {span(r, 'horizon')} steps, {span(r, 'predicted')} if constant; {r['rests_on']}"
        for r in rows
    ]
