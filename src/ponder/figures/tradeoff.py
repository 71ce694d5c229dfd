"""Final task accuracy against output tokens, one labelled point per steps-per-turn: few large turns or many small ones?

After Sinha et al. 2025, whose points are about 20 rollouts each and have no intervals; here both axes have one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np

from ponder.core import Figure, Outcome, Records, Tables
from ponder.figures import MUTED, counts, flat, percent, published, span, themed, values, with_details
from ponder.stats.accuracy import accuracy, mean
from ponder.stats.columns import clusters


@dataclass(frozen=True)
class Tradeoff(Figure):
    overlay: str = ""  # published numbers to draw beside: `execution_tradeoff`

    def estimate(self, outcomes: Sequence[Outcome]) -> Tables:
        tables: Tables = {"summary": [], "points": []}
        groups: dict[tuple[str, int], dict[int, list[Outcome]]] = {}
        for o in with_details(outcomes, "per_turn"):
            groups.setdefault((o.model, o.size), {}).setdefault(o.details["per_turn"], []).append(o)
        for (model, steps), by_turn in sorted(groups.items()):
            everything = [o for part in by_turn.values() for o in part]
            tables["summary"].append({"series": model, "steps": steps, "rests_on": counts(everything)})
            for per_turn, part in sorted(by_turn.items()):
                tables["points"].append(_point(model, steps, per_turn, part))
        return tables

    def findings(self, tables: Tables) -> list[str]:
        found = []
        for row in tables["summary"]:
            points = [p for p in tables["points"] if (p["series"], p["steps"]) == (row["series"], row["steps"])]
            points = [p for p in points if p["accuracy"] is not None]
            if len(points) > 1:
                best, cheapest = max(points, key=lambda p: p["accuracy"]), min(points, key=lambda p: p["tokens"])
                said = f"most often right with {_said(best)}; cheapest with {_said(cheapest)}"
                found.append(f"{row['series']}, {row['steps']} steps: {said}.")
        return found

    def draw(self, tables: Tables) -> alt.TopLevelMixin:
        panels = [self._panel(tables, row) for row in tables["summary"]]
        return themed(panels[0] if len(panels) == 1 else alt.concat(*panels, columns=2))

    def _panel(self, tables: Tables, row: dict[str, Any]) -> Any:
        points = [p for p in tables["points"] if (p["series"], p["steps"]) == (row["series"], row["steps"])]
        x = alt.X(
            "tokens:Q", title="output tokens a rollout (log scale)", scale=alt.Scale(type="log", nice=False, padding=30)
        )
        y_title = f"task accuracy after {row['steps']} steps"
        y = percent("accuracy", y_title)
        colour = alt.Color(
            "per_turn:Q",
            scale=alt.Scale(scheme="viridis", type="log"),
            legend=alt.Legend(title="steps a turn", values=[p["per_turn"] for p in points], format="d"),
        )
        shown = alt.Chart(values(points))
        dots = shown.mark_point(filled=True, size=70, opacity=1)
        layers = [
            shown.mark_rule(opacity=0.6).encode(x=x, y=percent("accuracy_low"), y2="accuracy_high:Q", color=colour),
            shown.mark_rule(opacity=0.6).encode(x=alt.X("tokens_low:Q"), x2="tokens_high:Q", y=y, color=colour),
            dots.encode(x=x, y=y, color=colour, tooltip=["per_turn:Q", "accuracy:Q", "tokens:Q", "attempts:Q"]),
            shown.mark_text(dx=9, dy=-9, fontSize=11).encode(x=x, y=y, text="per_turn:Q"),
        ]
        if self.overlay:
            layers += _overlay(published(self.overlay), row["steps"], x, y)
        title = alt.TitleParams(row["series"], subtitle=[row["rests_on"], "95 % intervals on both axes"])
        return alt.layer(*layers, width=460, height=320, title=title)


def _said(point: dict[str, Any]) -> str:
    right, tokens = span(point, "accuracy", ".0%"), span(point, "tokens", ",.0f")
    return f"{point['per_turn']} a turn, {right} right for {tokens} tokens"


def _point(model: str, steps: int, per_turn: int, part: Sequence[Outcome]) -> dict[str, Any]:
    answered = sorted(o for o in part if o.status != "failed")
    problem = clusters(answered)
    right = accuracy(np.array([o.correct for o in answered], dtype=np.bool_), problem)
    tokens = mean(np.array([o.thinking_tokens + o.answer_tokens for o in answered], dtype=np.float64), problem)
    rests_on = {"attempts": right.attempts, "problems": right.problems, "failed": len(part) - len(answered)}
    return flat(series=model, steps=steps, per_turn=per_turn, accuracy=right, tokens=tokens, **rests_on)


def _overlay(records: Records, steps: int, x: alt.X, y: alt.Y) -> list[alt.Chart]:
    """Published points whose tokens are known, for the same number of steps."""
    shown = alt.Chart(values([r for r in records if r["steps"] == steps and r["tokens"] is not None]))
    tooltip = ["model:N", "per_turn:Q", "accuracy:Q", "tokens:Q"]
    return [
        shown.mark_point(color=MUTED, shape="diamond", size=50).encode(x=x, y=y, tooltip=tooltip),
        shown.mark_text(color=MUTED, dx=9, dy=9, fontSize=10).encode(x=x, y=y, text="per_turn:Q"),
    ]
