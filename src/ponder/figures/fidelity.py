"""Draws how far each eviction policy's predictions drift from those of the full cache, on the same
texts.

The drift is the mean Kullback-Leibler divergence per token, in nats. Each policy is also compared
with `reference`, paired by text, because every policy drifts more on some texts than on others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import altair as alt
import numpy as np

from ponder.core import Figure, Outcome, Tables, UserError
from ponder.figures import (
    COLOURS,
    basis,
    counts,
    flat,
    heading,
    pooled_findings,
    span,
    themed,
    values,
)
from ponder.figures._settings import beside, owners, setting
from ponder.stats.accuracy import mean
from ponder.stats.columns import clusters
from ponder.study.labels import (
    beneath,
    cells_of,
    in_words,
    model_labels,
    panel_label,
    pooled,
    task_labels,
)

WIDTH = 420  # pixels of a panel


@dataclass(frozen=True)
class Fidelity(Figure):
    detail: str = "kl"  # the detail that records the drift
    by: str = "policy"  # the setting that names the policy
    reference: str = "random"  # the policy that the others are compared with

    needs: ClassVar[dict[str, str]] = {
        "detail": 'method = [{ name = "compress", …, fidelity = "only" }]'
    }
    example: ClassVar[dict[str, Any]] = {"detail": "per_turn"}

    def estimate(self, outcomes: Sequence[Outcome]) -> Tables:
        measured = [o for o in outcomes if o.details.get(self.detail) is not None and o.answered]
        if not measured:
            hint = 'method = [{ name = "compress", …, fidelity = "only" }]'
            raise UserError(
                f"no attempt records `{self.detail}`, which this figure draws", hint=hint
            )
        panels: dict[str, dict[tuple[str, str], list[Outcome]]] = {}
        full = beneath(outcomes, lambda cell: owners(cell, self.by))
        others = in_words({cell.model_key: beside(cell, self.by) for cell in cells_of(measured)})
        tasks, models = task_labels(measured), model_labels(measured)
        for o in measured:
            policy, model = setting(o, self.by), o.cell.model_key
            panel = panel_label(tasks[o.cell.task_key], o.size, model=full[model].name)
            point = (models[model] if policy is None else str(policy), others[model])
            panels.setdefault(panel, {}).setdefault(point, []).append(o)
        tables: Tables = {"summary": [], "points": []}
        for panel, groups in sorted(panels.items()):
            everything = [o for part in groups.values() for o in part]
            record = {
                "panel": panel,
                "rests_on": counts(everything),
                "pooled": pooled(groups.values(), (self.by,)),
            }
            tables["summary"].append({**record, "basis": basis(everything)})
            points = [
                self._point(panel, policy, rest, part, groups.get((self.reference, rest), []))
                for (policy, rest), part in sorted(groups.items())
            ]
            tables["points"] += sorted(
                points, key=lambda p: (p["settings"], p["drift"], p["policy"])
            )
        return tables

    def _point(
        self, panel: str, policy: str, rest: str, part: Sequence[Outcome], other: Sequence[Outcome]
    ) -> Any:
        part = sorted(part, key=lambda o: (o.problem, o.sample))
        ours = {(o.problem, o.sample): float(o.details[self.detail]) for o in part}
        theirs = {(o.problem, o.sample): float(o.details[self.detail]) for o in other}
        shared = [key for key in ours if key in theirs]
        less: Any = None
        if shared and policy != self.reference:
            pairs = np.array([ours[key] - theirs[key] for key in shared])
            texts = np.unique([key[0] for key in shared], return_inverse=True)[1]
            less = mean(pairs, texts.astype(np.int64), least=-math.inf)
        drift = mean(np.array(list(ours.values())), clusters(part))
        record = flat(
            panel=panel,
            policy=policy,
            settings=rest,
            drift=drift,
            texts=len({o.problem for o in part}),
        )
        empty = {"less": None, "less_low": None, "less_high": None}
        return {**record, **(flat(less=less) if less is not None else empty), "basis": basis(part)}

    def findings(self, tables: Tables) -> list[str]:
        sentences = pooled_findings(tables["summary"], "panel")
        for panel in dict.fromkeys(p["panel"] for p in tables["points"]):
            for rest in dict.fromkeys(
                p["settings"] for p in tables["points"] if p["panel"] == panel
            ):
                points = [
                    p for p in tables["points"] if p["panel"] == panel and p["settings"] == rest
                ]
                best = points[0]
                where = f"{panel}{rest and ', '}{rest}"
                said = (
                    f"{where}: {best['policy']} drifts least, {span(best, 'drift')} nats per token"
                )
                better = [
                    p["policy"] for p in points if p["less_high"] is not None and p["less_high"] < 0
                ]
                worse = [
                    p["policy"] for p in points if p["less_low"] is not None and p["less_low"] > 0
                ]
                if any(p["policy"] == self.reference for p in points):
                    said += f"; less drift than {self.reference}, paired by text: {', '.join(better) or 'none'}"
                    said += f"; more: {', '.join(worse)}" if worse else ""
                sentences.append(said + ".")
        return sentences

    def draw(self, tables: Tables) -> alt.TopLevelMixin:
        points = tables["points"]
        order = [p["policy"] for p in sorted(points, key=lambda p: p["drift"])]
        y = alt.Y("policy:N", sort=list(dict.fromkeys(order)), title=None)
        names = sorted({p["settings"] for p in points})
        legend = (
            alt.Legend(title=None, orient="bottom", columns=2, labelLimit=400)
            if len(names) > 1
            else None
        )
        colour = alt.Color(
            "settings:N", scale=alt.Scale(domain=names, range=COLOURS), legend=legend
        )
        offset = alt.YOffset("settings:N", sort=names)
        few = alt.Axis(tickCount=7)  # more labels would touch at the ends
        x = alt.X(
            "drift:Q",
            title="drift (KL divergence, nats per token)",
            scale=alt.Scale(zero=True),
            axis=few,
        )
        tooltip = [
            "policy:N",
            "settings:N",
            alt.Tooltip("drift:Q", format=".4f"),
            alt.Tooltip("less:Q", format="+.4f"),
        ]
        charts = []
        for row in tables["summary"]:
            base = alt.Chart(values([p for p in points if p["panel"] == row["panel"]]))
            bars = base.mark_rule(strokeWidth=1.4).encode(
                x=alt.X("drift_low:Q"), x2="drift_high:Q", y=y, yOffset=offset, color=colour
            )
            dots = base.mark_point(filled=True, size=46, opacity=1).encode(
                x=x, y=y, yOffset=offset, color=colour, tooltip=tooltip
            )
            title = heading(row["panel"], [row["rests_on"], row["pooled"]], WIDTH)
            title.fontSize = 12
            charts.append(
                alt.layer(bars, dots).properties(width=WIDTH, height=alt.Step(11), title=title)
            )
        note = "Bars: 95 % intervals over texts."
        head = alt.TitleParams(
            "Drift of the predictions from the full cache: less is better", subtitle=note
        )
        return themed(alt.vconcat(*charts, spacing=30).properties(title=head))
