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

from ponder.core import Figure, Outcome, Records, Tables, UserError
from ponder.figures import (
    COLOURS,
    Row,
    basis,
    counts,
    flat,
    heading,
    pooled_findings,
    rows_of,
    span,
    themed,
    values,
)
from ponder.figures._variants import other_settings, owners, setting
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
HINT = 'method = [{ name = "compress", …, fidelity = "only" }]'


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
        measured = []
        for outcome in outcomes:
            if outcome.answered and outcome.details.get(self.detail) is not None:
                measured.append(outcome)
        if not measured:
            raise UserError(
                f"no attempt records `{self.detail}`, which this figure draws", hint=HINT
            )
        full_cache_of = beneath(outcomes, lambda cell: owners(cell, self.by))
        settings = in_words(
            {cell.model_key: other_settings(cell, self.by) for cell in cells_of(measured)}
        )
        tasks = task_labels(measured)
        models = model_labels(measured)
        panels: dict[str, dict[tuple[str, str], list[Outcome]]] = {}
        for outcome in measured:
            model = outcome.cell.model_key
            policy = setting(outcome, self.by)
            if policy is None:
                policy = models[model]
            title = panel_label(
                tasks[outcome.cell.task_key], outcome.size, model=full_cache_of[model].name
            )
            by_point = panels.setdefault(title, {})
            by_point.setdefault((str(policy), settings[model]), []).append(outcome)
        tables: Tables = {"summary": [], "points": []}
        for title, by_point in sorted(panels.items()):
            attempts = []
            for point_attempts in by_point.values():
                attempts += point_attempts
            summary = {
                "panel": title,
                "rests_on": counts(attempts),
                "pooled": pooled(by_point.values(), (self.by,)),
                "basis": basis(attempts),
            }
            tables["summary"].append(summary)
            rows = []
            for (policy, setting_text), point_attempts in sorted(by_point.items()):
                reference = by_point.get((self.reference, setting_text), [])
                if policy == self.reference:
                    reference = []
                row = self._point(point_attempts, reference)
                rows.append({"panel": title, "policy": policy, "settings": setting_text, **row})
            rows.sort(key=lambda row: (row["settings"], row["drift"], row["policy"]))
            tables["points"] += rows
        return tables

    def _point(self, attempts: Sequence[Outcome], reference: Sequence[Outcome]) -> Row:
        """Return a policy's drift, and the difference to the reference's on the same texts."""
        attempts = sorted(attempts, key=lambda outcome: (outcome.problem, outcome.sample))
        drifts = self._by_text(attempts)
        row = flat(
            drift=mean(np.array(list(drifts.values())), clusters(attempts)),
            texts=len({outcome.problem for outcome in attempts}),
            less=None,
            less_low=None,
            less_high=None,
            basis=basis(attempts),
        )
        reference_drifts = self._by_text(reference)
        shared = [text for text in drifts if text in reference_drifts]
        if shared:
            differences = np.array([drifts[text] - reference_drifts[text] for text in shared])
            problems = [problem for problem, _ in shared]
            _, clusters_of_texts = np.unique(problems, return_inverse=True)
            difference = mean(differences, clusters_of_texts.astype(np.int64), least=-math.inf)
            row |= flat(less=difference)
        return row

    def _by_text(self, attempts: Sequence[Outcome]) -> dict[tuple[str, int], float]:
        drifts = {}
        for outcome in attempts:
            drifts[outcome.problem, outcome.sample] = float(outcome.details[self.detail])
        return drifts

    def findings(self, tables: Tables) -> list[str]:
        sentences = pooled_findings(tables["summary"], "panel")
        for summary in tables["summary"]:
            by_settings: dict[str, Records] = {}
            for row in rows_of(tables["points"], summary):
                by_settings.setdefault(row["settings"], []).append(row)
            for settings, rows in by_settings.items():
                name = f"{summary['panel']}, {settings}" if settings else summary["panel"]
                sentences.append(f"{name}: {self._ranking(rows)}.")
        return sentences

    def _ranking(self, rows: Records) -> str:
        """Say which policy drifts least, and which drift less or more than the reference."""
        least = rows[0]
        clause = f"{least['policy']} drifts least, {span(least, 'drift')} nats per token"
        better = []
        worse = []
        for row in rows:
            if row["less_high"] is not None and row["less_high"] < 0:
                better.append(row["policy"])
            if row["less_low"] is not None and row["less_low"] > 0:
                worse.append(row["policy"])
        if any(row["policy"] == self.reference for row in rows):
            clause += (
                f"; less drift than {self.reference}, paired by text: {', '.join(better) or 'none'}"
            )
            if worse:
                clause += f"; more: {', '.join(worse)}"
        return clause

    def draw(self, tables: Tables) -> alt.TopLevelMixin:
        points = tables["points"]
        by_drift = sorted(points, key=lambda row: row["drift"])
        policies = list(dict.fromkeys(row["policy"] for row in by_drift))
        settings = sorted({row["settings"] for row in points})
        legend = None
        if len(settings) > 1:
            legend = alt.Legend(title=None, orient="bottom", columns=2, labelLimit=400)
        colour = alt.Color(
            "settings:N", scale=alt.Scale(domain=settings, range=COLOURS), legend=legend
        )
        x = alt.X(
            "drift:Q",
            title="drift (KL divergence, nats per token)",
            scale=alt.Scale(zero=True),
            axis=alt.Axis(tickCount=7),  # more labels would touch at the ends
        )
        y = alt.Y("policy:N", sort=policies, title=None)
        offset = alt.YOffset("settings:N", sort=settings)
        tooltip = [
            "policy:N",
            "settings:N",
            alt.Tooltip("drift:Q", format=".4f"),
            alt.Tooltip("less:Q", format="+.4f"),
        ]
        charts = []
        for summary in tables["summary"]:
            chart = alt.Chart(values(rows_of(points, summary)))
            bars = chart.mark_rule(strokeWidth=1.4).encode(
                x=alt.X("drift_low:Q"), x2="drift_high:Q", y=y, yOffset=offset, color=colour
            )
            dots = chart.mark_point(filled=True, size=46, opacity=1).encode(
                x=x, y=y, yOffset=offset, color=colour, tooltip=tooltip
            )
            title = heading(summary["panel"], [summary["rests_on"], summary["pooled"]], WIDTH)
            title.fontSize = 12
            charts.append(
                alt.layer(bars, dots).properties(width=WIDTH, height=alt.Step(11), title=title)
            )
        title = alt.TitleParams(
            "Drift of the predictions from the full cache: less is better",
            subtitle="Bars: 95 % intervals over texts.",
        )
        return themed(alt.vconcat(*charts, spacing=30).properties(title=title))
