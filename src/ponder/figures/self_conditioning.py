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
    in_problem_order,
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
WIDTH = 460  # pixels
HEIGHT = 300
ASIDE = 0.01  # of the axis, between the intervals of two series


@dataclass(frozen=True)
class SelfConditioning(Figure):
    needs: ClassVar[dict[str, str]] = {"history_turns": "use the task `execution`"}

    def estimate(self, outcomes: Sequence[Outcome]) -> Tables:
        tables: Tables = {"summary": [], "points": [], "effects": []}
        recorded = with_details(outcomes, "history_turns")
        names = task_series_labels(recorded, DRAWN)
        groups: dict[str, dict[tuple[int, float], list[Outcome]]] = {}
        for outcome in recorded:
            history = (outcome.details["history_turns"], outcome.details["error_rate"])
            by_history = groups.setdefault(names[outcome.cell], {})
            by_history.setdefault(history, []).append(outcome)
        for series, by_history in groups.items():
            attempts = []
            for history_attempts in by_history.values():
                attempts += history_attempts
            summary = {
                "series": series,
                "rests_on": counts(attempts),
                "pooled": pooled(by_history.values(), DRAWN),
                "basis": basis(attempts),
            }
            tables["summary"].append(summary)
            measured = {}
            for history in sorted(by_history):
                measured[history] = _next_turn_accuracy(by_history[history])
            for (turns, rate), turn_accuracy in measured.items():
                row = {
                    "series": series,
                    "history_turns": turns,
                    "error_rate": rate,
                    "basis": basis(by_history[turns, rate]),
                }
                tables["points"].append(
                    flat(**row, turn_accuracy=turn_accuracy, attempts=turn_accuracy.attempts)
                )
                if rate:
                    effect = "self-conditioning"
                    baseline = (turns, 0.0)
                else:
                    effect = "long context"
                    baseline = (0, 0.0)
                if turns and baseline in measured:
                    drop = newcombe(measured[baseline], turn_accuracy)
                    tables["effects"].append(flat(**row, effect=effect, drop=drop))
        return tables

    def findings(self, tables: Tables) -> list[str]:
        sentences = pooled_findings(tables["summary"], "series")
        for row in tables["effects"]:
            history = f"after {row['history_turns']} turns"
            if row["error_rate"]:
                history += f" with {row['error_rate']:.0%} wrong"
            drop = span(row, "drop", ".0%")
            sentences.append(
                f"{row['series']}: {row['effect']} lowers turn accuracy by {drop} {history}."
            )
        return sentences

    def draw(self, tables: Tables) -> alt.TopLevelMixin:
        series = [summary["series"] for summary in tables["summary"]]
        points = []
        for row in tables["points"]:
            aside = ASIDE * (series.index(row["series"]) - (len(series) - 1) / 2)
            points.append({**row, "place": row["error_rate"] + aside})
        later = [row for row in points if row["history_turns"]] or points
        fresh = [row for row in tables["points"] if not row["history_turns"]]
        lengths = sorted({row["history_turns"] for row in later})
        colour = series_colour(series)
        rates = sorted({row["error_rate"] for row in later})
        x = alt.X(
            "place:Q",
            title="fraction of wrong sums in the history",
            scale=alt.Scale(domain=[-0.04, 1.04], nice=False),
            axis=alt.Axis(format="%", values=rates),
        )
        y = percent("turn_accuracy", "accuracy of the next turn")
        legend = None
        if len(lengths) > 1:
            legend = alt.Legend(title="turns in the history", orient="bottom")
        dashes = alt.StrokeDash("history_turns:N", legend=legend)
        tooltip = ["series:N", "history_turns:Q", "error_rate:Q", "turn_accuracy:Q", "attempts:Q"]
        chart = alt.Chart(values(later))
        layers = [
            alt.Chart(values(fresh))
            .mark_rule(strokeDash=[3, 3])
            .encode(y=y, color=colour, tooltip=tooltip),
            chart.mark_line().encode(x=x, y=y, color=colour, strokeDash=dashes),
            chart.mark_rule().encode(
                x=x, y=percent("turn_accuracy_low"), y2="turn_accuracy_high:Q", color=colour
            ),
            chart.mark_point(filled=True, size=55, opacity=1).encode(
                x=x, y=y, color=colour, tooltip=tooltip
            ),
        ]
        notes = []
        for summary in tables["summary"]:
            note = f"{summary['series']}: {summary['rests_on']}"
            if summary["pooled"]:
                note += f", {summary['pooled']}"
            notes.append(note)
        note = f"asked after {' or '.join(map(str, lengths))} turns; bars: 95 % intervals"
        if fresh:
            note += "; dashed: the first turn of a fresh conversation"
        notes.append(note)
        title = heading(
            "Accuracy after errors in the history (higher and flatter is better)", notes, WIDTH
        )
        return themed(alt.layer(*layers, width=WIDTH, height=HEIGHT, title=title))


def _next_turn_accuracy(attempts: Sequence[Outcome]) -> Estimate:
    """Return the accuracy of the first turn asked.

    Its true sum starts from the last sum shown, right or wrong.
    """
    answered = in_problem_order(attempts)
    right = []
    for outcome in answered:
        right.append(outcome.details["parsed"][0] == outcome.details["true"][0])
    return accuracy(np.array(right, dtype=np.bool_), clusters(answered))
