"""How far each cache policy drifts from the full cache, on the same texts, and whether it beats chance.

The drift is the mean Kullback-Leibler divergence a token, in nats. Each policy is also set against `reference` text by
text, because all of them drift more on some texts than on others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import altair as alt
import numpy as np

from ponder.core import Figure, Outcome, Tables, UserError
from ponder.figures import COLOURS, counts, flat, model_alone, settings_of, span, themed, values
from ponder.stats.accuracy import mean
from ponder.stats.columns import clusters

SETTINGS = (
    "budget",
    "window",
    "ratio",
    "share",
)  # of `compress`; those that a study sweeps tell a policy's points apart


@dataclass(frozen=True)
class Fidelity(Figure):
    detail: str = "kl"  # what the attempts record
    reference: str = "random"  # the policy that the others are set against

    example: ClassVar[dict[str, Any]] = {"detail": "per_turn"}

    def estimate(self, outcomes: Sequence[Outcome]) -> Tables:
        found = [o for o in outcomes if o.details.get(self.detail) is not None and o.status != "failed"]
        if not found:
            hint = 'method = [{ name = "compress", …, fidelity = "only" }]'
            raise UserError(f"no attempt records `{self.detail}`, which this figure draws", hint=hint)
        panels: dict[str, dict[tuple[str, str], list[Outcome]]] = {}
        varies = [k for k in SETTINGS if len({settings_of(o).get(k) for o in found}) > 1]
        for o in found:
            rest = [f"{k} {settings_of(o)[k]}" for k in varies if settings_of(o).get(k) is not None]
            which = (str(settings_of(o).get("policy", o.model)), ", ".join(rest))
            panels.setdefault(f"{model_alone(o)} | {o.task} {o.size}", {}).setdefault(which, []).append(o)
        tables: Tables = {"summary": [], "points": []}
        for panel, groups in sorted(panels.items()):
            everything = [o for part in groups.values() for o in part]
            tables["summary"].append({"panel": panel, "rests_on": counts(everything)})
            points = [
                self._point(panel, policy, rest, part, groups.get((self.reference, rest), []))
                for (policy, rest), part in sorted(groups.items())
            ]
            tables["points"] += sorted(points, key=lambda p: (p["settings"], p["drift"], p["policy"]))
        return tables

    def _point(self, panel: str, policy: str, rest: str, part: Sequence[Outcome], other: Sequence[Outcome]) -> Any:
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
        record = flat(panel=panel, policy=policy, settings=rest, drift=drift, texts=len({o.problem for o in part}))
        empty = {"less": None, "less_low": None, "less_high": None}
        return {**record, **(flat(less=less) if less is not None else empty)}

    def findings(self, tables: Tables) -> list[str]:
        found = []
        for panel in dict.fromkeys(p["panel"] for p in tables["points"]):
            for rest in dict.fromkeys(p["settings"] for p in tables["points"] if p["panel"] == panel):
                points = [p for p in tables["points"] if p["panel"] == panel and p["settings"] == rest]
                best = points[0]
                said = (
                    f"{panel}{rest and ', '}{rest}: {best['policy']} drifts least, {span(best, 'drift')} nats a token"
                )
                told = [p for p in points if p["less_high"] is not None and p["less_high"] < 0]
                worse = [p for p in points if p["less_low"] is not None and p["less_low"] > 0]
                if any(p["policy"] == self.reference for p in points):
                    names = ", ".join(p["policy"] for p in told) or "none"
                    said += f"; better than {self.reference} text by text: {names}"
                    said += f"; worse: {', '.join(p['policy'] for p in worse)}" if worse else ""
                found.append(said + ".")
        return found

    def draw(self, tables: Tables) -> alt.TopLevelMixin:
        points = tables["points"]
        order = [p["policy"] for p in sorted(points, key=lambda p: p["drift"])]
        y = alt.Y("policy:N", sort=list(dict.fromkeys(order)), title=None)
        colour = alt.Color(
            "settings:N",
            scale=alt.Scale(range=COLOURS),
            legend=alt.Legend(title=None, orient="bottom", columns=1, labelLimit=400),
        )
        offset = alt.YOffset("settings:N")
        x = alt.X("drift:Q", title="drift from the full cache (KL, nats a token)", scale=alt.Scale(zero=True))
        tooltip = ["policy:N", "settings:N", alt.Tooltip("drift:Q", format=".4f"), alt.Tooltip("less:Q", format="+.4f")]
        charts = []
        for row in tables["summary"]:
            base = alt.Chart(values([p for p in points if p["panel"] == row["panel"]]))
            bars = base.mark_rule(strokeWidth=1.4).encode(
                x=alt.X("drift_low:Q"), x2="drift_high:Q", y=y, yOffset=offset, color=colour
            )
            dots = base.mark_point(filled=True, size=46, opacity=1).encode(
                x=x, y=y, yOffset=offset, color=colour, tooltip=tooltip
            )
            title = alt.TitleParams(row["panel"], subtitle=row["rests_on"])
            charts.append(alt.layer(bars, dots).properties(width=420, height=alt.Step(11), title=title))
        return themed(alt.vconcat(*charts))
