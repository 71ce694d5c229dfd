"""Draws accuracy against the bytes of the KV cache, one line per eviction policy, next to the full
cache.

Both axes have 95 % intervals over problems. Each point is also compared with the full cache, paired
by problem, because both are asked the same problems. The table also has the time per token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import altair as alt
import numpy as np

from ponder.core import Estimate, Figure, Outcome, Records, Tables, UserError
from ponder.core.text import number
from ponder.figures import (
    COLOURS,
    Row,
    basis,
    counts,
    flat,
    heading,
    in_problem_order,
    percent,
    pooled_findings,
    rows_of,
    span,
    themed,
    values,
)
from ponder.figures._variants import other_settings, owners, points, setting, setting_reader
from ponder.stats.accuracy import accuracy, mean
from ponder.stats.columns import clusters
from ponder.stats.paired import matched, paired_difference
from ponder.study.labels import beneath, in_words, model_labels, panel_label, pooled, task_labels

FULL = "full"  # the policy that evicts nothing, and a model without a policy
WIDTH = 420  # pixels of a panel
# Columns of the table, the details of attempts that they average, and the factor to the column's
# unit.
MEASURED = (
    ("kl", "kl", 1),
    ("wall_ms", "seconds_per_token", 1000),
    ("cpu_ms", "cpu_seconds_per_token", 1000),
)
LOG_FROM = 4  # ratio of the largest cache to the smallest from which the axis is logarithmic
BYTES = (
    "datum.value >= 1e6 ? format(datum.value / 1e6, '~g') + ' MB'"
    " : format(datum.value / 1e3, '~g') + ' KB'"
)


@dataclass(frozen=True)
class Cache(Figure):
    bytes: str = "cache_bytes"  # the detail that records the cache's bytes
    by: str = "policy"  # the setting that gets one line per value
    # settings that tell the points of a policy apart; a line joins points that differ in the first
    labels: tuple[str, ...] = ("ratio", "window", "budget")

    needs: ClassVar[dict[str, str]] = {"bytes": "the model `transformers` records it"}
    example: ClassVar[dict[str, Any]] = {"bytes": "per_turn"}

    def estimate(self, outcomes: Sequence[Outcome]) -> Tables:
        recorded = [outcome for outcome in outcomes if outcome.details.get(self.bytes)]
        if not recorded:
            raise UserError(
                f"no attempt records `{self.bytes}`, which this figure draws",
                hint="models that a method such as `compress` was applied to record it",
            )
        tables: Tables = {"summary": [], "points": []}
        for panel, by_point in self._panels(outcomes, recorded):
            attempts = _concatenated(by_point.values())
            summary = {
                "panel": panel,
                "rests_on": counts(attempts),
                "pooled": pooled(by_point.values()),
                "basis": basis(attempts),
            }
            tables["summary"].append(summary)
            full_cache = _concatenated(by_point[point] for point in by_point if point[0] == FULL)
            rows = []
            for (policy, _), point_attempts in by_point.items():
                row = self._point(panel, policy, point_attempts, full_cache)
                if row["attempts"]:
                    rows.append(row)
            tables["points"] += sorted(rows, key=lambda row: (row["policy"], row["bytes"]))
        return tables

    def _panels(
        self, outcomes: Sequence[Outcome], recorded: Sequence[Outcome]
    ) -> list[tuple[str, dict[tuple[str, str], list[Outcome]]]]:
        """Return each panel's title and its attempts by point, sorted.

        A point is a policy, named with its settings that vary, and a model. A panel is a task, a
        size, and a model without the method that prunes its cache.
        """
        full_cache_of = beneath(outcomes, lambda cell: owners(cell, self.by))
        policy_of = setting_reader(self.by)
        policy_settings = {}
        for outcome in recorded:
            if policy_of(outcome) not in (None, FULL):
                policy_settings[outcome.cell.model_key] = other_settings(outcome.cell, self.by)
        labels = [label.rpartition(".")[2] for label in self.labels]
        settings_texts = in_words(policy_settings, but=labels)
        tasks = task_labels(recorded)
        models = model_labels(recorded)
        groups: dict[tuple[str, int, str], dict[tuple[str, str], list[Outcome]]] = {}
        for outcome in recorded:
            model = outcome.cell.model_key
            policy = str(policy_of(outcome) or FULL)
            if settings_texts.get(model):
                policy = f"{policy}, {settings_texts[model]}"
            panel = (tasks[outcome.cell.task_key], outcome.size, full_cache_of[model].name)
            by_point = groups.setdefault(panel, {})
            by_point.setdefault((policy, models[model]), []).append(outcome)
        several_sizes = len({(task, model) for task, _, model in groups}) < len(groups)
        panels = []
        for (task, size, model_name), by_point in sorted(groups.items()):
            title = panel_label(task, size if several_sizes else None, model=model_name)
            panels.append((title, dict(sorted(by_point.items()))))
        return panels

    def _point(
        self, panel: str, policy: str, attempts: Sequence[Outcome], full_cache: Sequence[Outcome]
    ) -> Row:
        """Return a policy's accuracy and cache bytes, with the paired gain over the full cache."""
        answered = in_problem_order(attempts)
        correct = np.array([outcome.correct for outcome in answered], dtype=np.bool_)
        estimate = accuracy(correct, clusters(answered))
        row = flat(
            panel=panel, policy=policy, accuracy=estimate, bytes=_mean_detail(answered, self.bytes)
        )
        for column, detail, factor in MEASURED:
            measured = [outcome for outcome in answered if detail in outcome.details]
            if measured:
                row |= flat(**{column: _mean_detail(measured, detail, factor)})
        settings = {}
        if policy != FULL:
            if full_cache:
                row |= flat(gain=paired_difference(*matched(answered, full_cache)))
            settings = {name: setting(attempts[0], name) for name in self.labels}
        numbers = []
        for name, value in settings.items():
            if isinstance(value, int | float):
                numbers.append(f"{name} {value:g}")
        row["settings"] = ", ".join(numbers)
        for name, value in settings.items():
            if value is not None:
                row[name] = value
        row["attempts"] = estimate.attempts
        row["problems"] = estimate.problems
        row["failed"] = len(attempts) - len(answered)
        row["basis"] = basis(attempts)
        return row

    def findings(self, tables: Tables) -> list[str]:
        sentences = pooled_findings(tables["summary"], "panel")
        for summary in tables["summary"]:
            rows = rows_of(tables["points"], summary)
            full_caches = [row for row in rows if row["policy"] == FULL]
            pruned = [row for row in rows if row.get("gain_high") is not None]
            if not full_caches or not pruned:
                continue
            full = full_caches[0]
            sentence = (
                f"{summary['panel']}: the full cache has {span(full, 'accuracy', '.0%')} accuracy "
                f"with {_size(full['bytes'])}"
            )
            as_accurate = [row for row in pruned if row["gain_high"] >= 0]
            if not as_accurate:
                sentences.append(f"{sentence}; every pruned cache is less accurate.")
                continue
            smallest = min(as_accurate, key=lambda row: row["bytes"])
            name = smallest["policy"]
            if smallest["settings"]:
                name = f"{name}, {smallest['settings']}"
            fraction = smallest["bytes"] / full["bytes"]
            sentences.append(
                f"{sentence}; the smallest cache that isn't shown to be less accurate is {name}, "
                f"with {_size(smallest['bytes'])} ({fraction:.0%} of the full cache): "
                f"{points(smallest, 'gain')}, paired by problem.{_time(smallest, full)}"
            )
        return sentences

    def draw(self, tables: Tables) -> alt.TopLevelMixin:
        policies = sorted({row["policy"] for row in tables["points"]})
        if FULL in policies:
            policies.remove(FULL)
            policies.insert(0, FULL)
        panels = [self._panel_chart(tables["points"], row, policies) for row in tables["summary"]]
        note = "Bars: 95 % intervals over problems."
        if self.labels:
            note += f" A line joins points that differ only in their {self.labels[0]}."
        title = alt.TitleParams(
            "Accuracy by size of the KV cache: up and to the left is better", subtitle=note
        )
        return themed(alt.concat(*panels, columns=2, spacing=30).properties(title=title))

    def _panel_chart(self, table: Records, summary: Row, policies: list[str]) -> Any:
        rows = rows_of(table, summary)
        smallest = min(row["bytes"] for row in rows)
        largest = max(row["bytes"] for row in rows)
        # On a short logarithmic axis, Vega's ticks would be powers of ten only.
        log = largest > LOG_FROM * smallest
        x = alt.X(
            "bytes:Q",
            title="mean size of the cache" + (" (log scale)" if log else ""),
            scale=alt.Scale(type="log" if log else "linear", nice=False, zero=False, padding=20),
            axis=alt.Axis(labelExpr=BYTES, labelOverlap="greedy", labelSeparation=8, tickCount=6),
        )
        y = percent("accuracy", "accuracy")
        scale: Any = alt.Undefined
        if FULL in policies:
            scale = alt.Scale(domain=policies, range=["#5b6770", *COLOURS[:7]])
        legend = alt.Legend(title=None, orient="bottom", symbolOpacity=1)
        colour = alt.Color("policy:N", scale=scale, legend=legend)
        tooltip: list[Any] = ["policy:N", "settings:N"]
        tooltip.append(alt.Tooltip("accuracy:Q", format=",.3~s"))
        tooltip.append(alt.Tooltip("bytes:Q", format=",.3~s"))
        for name in ("kl", "wall_ms", "cpu_ms", "attempts", "problems"):
            if any(name in row for row in rows):
                tooltip.append(f"{name}:Q")
        chart = alt.Chart(values([{**row, "line": self._line(row, rows)} for row in rows]))
        layers = [
            chart.mark_line(strokeWidth=1.2, opacity=0.55).encode(
                x=x, y=y, color=colour, detail="line:N"
            ),
            chart.mark_rule(opacity=0.22).encode(
                x=x, y=percent("accuracy_low"), y2="accuracy_high:Q", color=colour
            ),
            chart.mark_rule(opacity=0.22).encode(
                x=alt.X("bytes_low:Q"), x2="bytes_high:Q", y=y, color=colour
            ),
            chart.mark_point(filled=True, size=46, opacity=1).encode(
                x=x, y=y, color=colour, tooltip=tooltip
            ),
        ]
        title = heading(summary["panel"], [summary["rests_on"], summary["pooled"]], WIDTH)
        title.fontSize = 12
        return alt.layer(*layers, width=WIDTH, height=280, title=title)

    def _line(self, point: Row, rows: Records) -> str:
        """Name the line that a point is on: its policy, and the other labels that vary.

        A line joins points that differ in the first label. If that doesn't vary, the policy has one
        line.
        """
        same_policy = [row for row in rows if row["policy"] == point["policy"]]

        def varies(name: str) -> bool:
            return len({row.get(name) for row in same_policy}) > 1

        name = str(point["policy"])
        if varies(self.labels[0]):
            for label in self.labels[1:]:
                if varies(label):
                    name += f" {point.get(label)}"
        return name


def _concatenated(groups: Iterable[Sequence[Outcome]]) -> list[Outcome]:
    attempts: list[Outcome] = []
    for group in groups:
        attempts += group
    return attempts


def _mean_detail(attempts: Sequence[Outcome], detail: str, factor: float = 1) -> Estimate:
    """Return the mean of a number that attempts record in `details`, times a factor."""
    measured = [factor * outcome.details[detail] for outcome in attempts]
    return mean(np.array(measured, dtype=np.float64), clusters(attempts))


def _time(pruned: Row, full: Row) -> str:
    """Say how long a token takes with the smaller cache and with the full one, if measured."""
    if pruned.get("cpu_ms") is None or full.get("cpu_ms") is None:
        return ""
    return (
        f" A token takes {span(pruned, 'cpu_ms', '.3g')} ms of CPU with it, "
        f"{span(full, 'cpu_ms', '.3g')} ms with the full cache."
    )


def _size(count: float) -> str:
    return f"{number(count / 1e6)} MB" if count >= 1e6 else f"{number(count / 1e3)} KB"
