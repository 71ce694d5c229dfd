"""Plots the accuracy of the next turn against the fraction of wrong answers in the history
(self-conditioning).

After Sinha et al. (2025): the history is filled with true or perturbed sums, and only the next turn
is asked. The drop in accuracy from a fresh conversation to a long correct history is the effect of
the long context; the further drop with wrong sums in the history is self-conditioning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import altair as alt
import numpy as np

from ponder.core import Estimate, Figure, Outcome, Tables
from ponder.figures import (
    basis,
    counts,
    flat,
    heading,
    percent,
    pooled_findings,
    series_colour,
    span,
    themed,
    values,
    with_details,
)
from ponder.stats.accuracy import accuracy
from ponder.stats.columns import clusters
from ponder.stats.paired import newcombe
from ponder.study.labels import pooled, task_series_labels

DRAWN = ("history_turns", "error_rate")
WIDTH, HEIGHT = 460, 300  # pixels
ASIDE = 0.01  # of the axis, between the intervals of two series


@dataclass(frozen=True)
class SelfConditioning(Figure):
    needs: ClassVar[dict[str, str]] = {"history_turns": "use the task `execution`"}

    def estimate(self, outcomes: Sequence[Outcome]) -> Tables:
        tables: Tables = {"summary": [], "points": [], "effects": []}
        groups: dict[str, dict[tuple[int, float], list[Outcome]]] = {}
        asked = with_details(outcomes, "history_turns")
        names = task_series_labels(asked, DRAWN)
        for o in asked:
            history = (o.details["history_turns"], o.details["error_rate"])
            groups.setdefault(names[o.cell], {}).setdefault(history, []).append(o)
        for model, histories in groups.items():
            everything = [o for part in histories.values() for o in part]
            record = {
                "series": model,
                "rests_on": counts(everything),
                "pooled": pooled(histories.values(), DRAWN),
            }
            tables["summary"].append({**record, "basis": basis(everything)})
            measured = {history: _next_turn(part) for history, part in sorted(histories.items())}
            for (turns, rate), right in measured.items():
                row = {"series": model, "history_turns": turns, "error_rate": rate}
                row["basis"] = basis(histories[turns, rate])
                tables["points"].append(flat(**row, turn_accuracy=right, attempts=right.attempts))
                effect, baseline = (
                    ("self-conditioning", (turns, 0.0)) if rate else ("long context", (0, 0.0))
                )
                if turns and baseline in measured:
                    tables["effects"].append(
                        flat(**row, effect=effect, drop=newcombe(measured[baseline], right))
                    )
        return tables

    def findings(self, tables: Tables) -> list[str]:
        sentences = pooled_findings(tables["summary"], "series")
        for row in tables["effects"]:
            wrong = f" with {row['error_rate']:.0%} wrong" if row["error_rate"] else ""
            history = f"after {row['history_turns']} turns{wrong}"
            sentences.append(
                f"{row['series']}: {row['effect']} lowers turn accuracy by {span(row, 'drop', '.0%')} {history}."
            )
        return sentences

    def draw(self, tables: Tables) -> alt.TopLevelMixin:
        series = [r["series"] for r in tables["summary"]]
        aside = {name: ASIDE * (i - (len(series) - 1) / 2) for i, name in enumerate(series)}
        shown_points = [
            {**p, "place": p["error_rate"] + aside[p["series"]]} for p in tables["points"]
        ]
        later = [p for p in shown_points if p["history_turns"]] or shown_points
        fresh = [p for p in tables["points"] if not p["history_turns"]]
        colour = series_colour(series)
        x = alt.X(
            "place:Q",
            title="fraction of wrong sums in the history",
            scale=alt.Scale(domain=[-0.04, 1.04], nice=False),
            axis=alt.Axis(format="%", values=sorted({p["error_rate"] for p in later})),
        )
        y = percent("turn_accuracy", "accuracy of the next turn")
        low, high = percent("turn_accuracy_low"), "turn_accuracy_high:Q"
        shown, start = alt.Chart(values(later)), alt.Chart(values(fresh))
        tooltip = ["series:N", "history_turns:Q", "error_rate:Q", "turn_accuracy:Q", "attempts:Q"]
        lengths = sorted({p["history_turns"] for p in later})
        legend = (
            alt.Legend(title="turns in the history", orient="bottom") if len(lengths) > 1 else None
        )
        dashes = alt.StrokeDash("history_turns:N", legend=legend)
        layers = [
            start.mark_rule(strokeDash=[3, 3]).encode(y=y, color=colour, tooltip=tooltip),
            shown.mark_line().encode(x=x, y=y, color=colour, strokeDash=dashes),
            shown.mark_rule().encode(x=x, y=low, y2=high, color=colour),
            shown.mark_point(filled=True, size=55, opacity=1).encode(
                x=x, y=y, color=colour, tooltip=tooltip
            ),
        ]
        notes = [
            ", ".join(filter(None, (f"{r['series']}: {r['rests_on']}", r["pooled"])))
            for r in tables["summary"]
        ]
        asked = f"asked after {' or '.join(map(str, lengths))} turns; bars: 95 % intervals"
        notes.append(f"{asked}; dashed: the first turn of a fresh conversation" if fresh else asked)
        title = heading(
            "Accuracy after errors in the history (higher and flatter is better)", notes, WIDTH
        )
        return themed(alt.layer(*layers, width=WIDTH, height=HEIGHT, title=title))


def _next_turn(part: Sequence[Outcome]) -> Estimate:
    """Accuracy of the first turn asked; its true sum starts from the last sum shown, right or
    wrong.
    """
    answered = sorted((o for o in part if o.answered), key=lambda o: (o.size, o.problem, o.sample))
    right = [o.details["parsed"][0] == o.details["true"][0] for o in answered]
    return accuracy(np.array(right, dtype=np.bool_), clusters(answered))
