"""Draws accuracy against the bytes of the KV cache, one line per eviction policy, beside the full
cache.

Both axes have 95 % intervals over problems. Each point is also compared with the full cache, paired
by problem, because both are asked the same problems. The table also has the time per token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import altair as alt
import numpy as np

from ponder.core import Figure, Outcome, Records, Tables, UserError
from ponder.core.text import number
from ponder.figures import (
    COLOURS,
    basis,
    counts,
    flat,
    heading,
    percent,
    pooled_findings,
    span,
    themed,
    values,
)
from ponder.figures._settings import beside, owners, setting, setting_reader
from ponder.figures._variants import points
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


@dataclass(frozen=True)
class Cache(Figure):
    bytes: str = "cache_bytes"  # the detail that records the cache's bytes
    by: str = "policy"  # the setting that gets one line per value
    # the settings that tell the points of a line apart
    labels: tuple[str, ...] = ("ratio", "window", "budget")

    needs: ClassVar[dict[str, str]] = {"bytes": "the model `transformers` records it"}
    example: ClassVar[dict[str, Any]] = {"bytes": "per_turn"}

    def estimate(self, outcomes: Sequence[Outcome]) -> Tables:
        counted = [o for o in outcomes if o.details.get(self.bytes)]
        if not counted:
            raise UserError(
                f"no attempt records `{self.bytes}`, which this figure draws",
                hint="models that a method such as `compress` was applied to record it",
            )
        full_cache_of = beneath(outcomes, lambda cell: owners(cell, self.by))
        policy_of = setting_reader(self.by)
        pruned = {
            o.cell.model_key: beside(o.cell, self.by)
            for o in counted
            if policy_of(o) not in (None, FULL)
        }
        others = in_words(pruned, but=[label.rpartition(".")[2] for label in self.labels])
        tasks, models = task_labels(counted), model_labels(counted)
        groups: dict[tuple[str, int, str], dict[tuple[str, str], list[Outcome]]] = {}
        for o in counted:
            policy = str(policy_of(o) or FULL)
            name = ", ".join(filter(None, (policy, others.get(o.cell.model_key))))
            panel_key = (tasks[o.cell.task_key], o.size, full_cache_of[o.cell.model_key].name)
            groups.setdefault(panel_key, {}).setdefault(
                (name, models[o.cell.model_key]), []
            ).append(o)
        several = len({(task, model) for task, _, model in groups}) < len(groups)
        tables: Tables = {"summary": [], "points": []}
        for (task, size, model), by_point in sorted(groups.items()):
            panel = panel_label(task, size if several else None, model=model)
            whole = [
                o for (policy, _), part in sorted(by_point.items()) if policy == FULL for o in part
            ]
            everything = [o for part in by_point.values() for o in part]
            record = {
                "panel": panel,
                "rests_on": counts(everything),
                "pooled": pooled(by_point.values()),
            }
            tables["summary"].append({**record, "basis": basis(everything)})
            rows = [
                self._point(panel, policy, part, whole)
                for (policy, _), part in sorted(by_point.items())
            ]
            answered = [p for p in rows if p["attempts"]]
            tables["points"] += sorted(answered, key=lambda p: (p["policy"], p["bytes"]))
        return tables

    def _point(
        self, panel: str, policy: str, part: Sequence[Outcome], whole: Sequence[Outcome]
    ) -> dict[str, Any]:
        answered = sorted(
            (o for o in part if o.answered), key=lambda o: (o.size, o.problem, o.sample)
        )
        problem = clusters(answered)
        right = accuracy(np.array([o.correct for o in answered], dtype=np.bool_), problem)
        bytes_ = mean(
            np.array([o.details[self.bytes] for o in answered], dtype=np.float64), problem
        )
        record = flat(panel=panel, policy=policy, accuracy=right, bytes=bytes_)
        for name, detail, scale in MEASURED:
            if told := [o for o in answered if detail in o.details]:
                measured = np.array([scale * o.details[detail] for o in told], dtype=np.float64)
                record |= flat(**{name: mean(measured, clusters(told))})
        if whole and policy != FULL:
            record |= flat(gain=paired_difference(*matched(answered, whole)))
        named = {name: setting(part[0], name) for name in self.labels if policy != FULL}
        said = ", ".join(
            f"{name} {value:g}" for name, value in named.items() if isinstance(value, int | float)
        )
        rests_on: dict[str, Any] = {
            "attempts": right.attempts,
            "problems": right.problems,
            "failed": len(part) - len(answered),
        }
        rests_on["basis"] = basis(part)
        return {
            **record,
            "settings": said,
            **{k: v for k, v in named.items() if v is not None},
            **rests_on,
        }

    def findings(self, tables: Tables) -> list[str]:
        sentences = pooled_findings(tables["summary"], "panel")
        for row in tables["summary"]:
            own = [p for p in tables["points"] if p["panel"] == row["panel"]]
            whole = [p for p in own if p["policy"] == FULL]
            pruned = [p for p in own if p["policy"] != FULL and p.get("gain_high") is not None]
            if not whole or not pruned:
                continue
            full = f"the full cache has {span(whole[0], 'accuracy', '.0%')} accuracy with {_size(whole[0]['bytes'])}"
            equal = [p for p in pruned if p["gain_high"] >= 0]
            if not equal:
                sentences.append(f"{row['panel']}: {full}; every pruned cache is less accurate.")
                continue
            least = min(equal, key=lambda p: p["bytes"])
            name = ", ".join(n for n in (least["policy"], least["settings"]) if n)
            fraction, gain = least["bytes"] / whole[0]["bytes"], points(least, "gain")
            sentences.append(
                f"{row['panel']}: {full}; the smallest cache that isn't shown to be less accurate is {name}, with "
                f"{_size(least['bytes'])} ({fraction:.0%} of the full cache): {gain}, paired by problem."
                f"{_time(least, whole[0])}"
            )
        return sentences

    def draw(self, tables: Tables) -> alt.TopLevelMixin:
        policies = sorted(
            {p["policy"] for p in tables["points"]}, key=lambda name: (name != FULL, name)
        )
        panels = [self._panel(tables["points"], row, policies) for row in tables["summary"]]
        joined = (
            f" A line joins points that differ only in their {self.labels[0]}."
            if self.labels
            else ""
        )
        note = f"Bars: 95 % intervals over problems.{joined}"
        title = alt.TitleParams(
            "Accuracy by size of the KV cache: up and to the left is better", subtitle=note
        )
        return themed(alt.concat(*panels, columns=2, spacing=30).properties(title=title))

    def _panel(self, rows: Records, row: dict[str, Any], policies: list[str]) -> Any:
        own = [p for p in rows if p["panel"] == row["panel"]]
        shown = alt.Chart(values([{**p, "line": self._line(p, own)} for p in own]))
        unit = "datum.value >= 1e6 ? format(datum.value / 1e6, '~g') + ' MB' : format(datum.value / 1e3, '~g') + ' KB'"
        # Vega's own ticks on a logarithmic axis are only powers of ten if the axis is short.
        wide = max(p["bytes"] for p in own) > LOG_FROM * min(p["bytes"] for p in own)
        scale = alt.Scale(type="log" if wide else "linear", nice=False, zero=False, padding=20)
        axis = alt.Axis(labelExpr=unit, labelOverlap="greedy", labelSeparation=8, tickCount=6)
        name = "mean size of the cache" + (" (log scale)" if wide else "")
        x = alt.X("bytes:Q", title=name, scale=scale, axis=axis)
        y = percent("accuracy", "accuracy")
        colour = alt.Color(
            "policy:N",
            scale=alt.Scale(domain=policies, range=["#5b6770", *COLOURS[:7]])
            if FULL in policies
            else alt.Undefined,
            legend=alt.Legend(title=None, orient="bottom", symbolOpacity=1),
        )
        tooltip = [
            "policy:N",
            "settings:N",
            *(alt.Tooltip(f"{f}:Q", format=",.3~s") for f in ("accuracy", "bytes")),
        ]
        tooltip += [
            f"{name}:Q"
            for name in ("kl", "wall_ms", "cpu_ms", "attempts", "problems")
            if any(name in p for p in own)
        ]
        layers = [
            shown.mark_line(strokeWidth=1.2, opacity=0.55).encode(
                x=x, y=y, color=colour, detail="line:N"
            ),
            shown.mark_rule(opacity=0.22).encode(
                x=x, y=percent("accuracy_low"), y2="accuracy_high:Q", color=colour
            ),
            shown.mark_rule(opacity=0.22).encode(
                x=alt.X("bytes_low:Q"), x2="bytes_high:Q", y=y, color=colour
            ),
            shown.mark_point(filled=True, size=46, opacity=1).encode(
                x=x, y=y, color=colour, tooltip=tooltip
            ),
        ]
        title = heading(row["panel"], [row["rests_on"], row["pooled"]], WIDTH)
        title.fontSize = 12
        return alt.layer(*layers, width=WIDTH, height=280, title=title)

    def _line(self, point: dict[str, Any], own: Records) -> str:
        """The name of a point's line: the policy, and the settings that vary besides the first of
        the labels.
        """
        mine = [p for p in own if p["policy"] == point["policy"]]
        rest = [name for name in self.labels[1:] if len({p.get(name) for p in mine}) > 1]
        varied = len({p.get(self.labels[0]) for p in mine}) > 1
        return " ".join([point["policy"], *(str(point.get(name)) for name in rest if varied)])


def _time(pruned: dict[str, Any], whole: dict[str, Any]) -> str:
    """What the smaller cache saves in time, if both were measured."""
    if pruned.get("cpu_ms") is None or whole.get("cpu_ms") is None:
        return ""
    own, full = (span(point, "cpu_ms", ".3g") for point in (pruned, whole))
    return f" A token takes {own} ms of CPU with it, {full} ms with the full cache."


def _size(count: float) -> str:
    return f"{number(count / 1e6)} MB" if count >= 1e6 else f"{number(count / 1e3)} KB"
