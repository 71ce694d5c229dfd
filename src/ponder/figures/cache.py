"""Accuracy against the bytes of the KV cache, one line per policy: how much of it can be thrown away?

Both axes have 95 % intervals. Each point is also set against the full cache problem by problem, because the two share
how hard the problems are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import altair as alt
import numpy as np

from ponder.core import Figure, Outcome, Records, Tables, UserError
from ponder.figures import COLOURS, counts, flat, model_alone, percent, setting, span, themed, values
from ponder.stats.accuracy import accuracy, mean
from ponder.stats.columns import clusters
from ponder.stats.grid import matched, paired_difference

FULL = "full"


@dataclass(frozen=True)
class Cache(Figure):
    bytes: str = "cache_bytes"  # the detail that counts them
    by: str = "policy"  # the setting with a line for each of its values
    labels: tuple[str, ...] = ("ratio", "window", "budget")  # the settings that tell a line's points apart

    example: ClassVar[dict[str, Any]] = {"bytes": "per_turn"}

    def estimate(self, outcomes: Sequence[Outcome]) -> Tables:
        counted = [o for o in outcomes if o.details.get(self.bytes)]
        if not counted:
            raise UserError(
                f"no attempt records `{self.bytes}`, which this figure draws",
                hint="it goes with a model whose cache a method prunes",
            )
        groups: dict[tuple[str, int, str], dict[tuple[str, str], list[Outcome]]] = {}
        for o in counted:
            point = (str(setting(o, self.by) or FULL), o.model)
            groups.setdefault((o.task, o.size, model_alone(o)), {}).setdefault(point, []).append(o)
        several = len({(task, model) for task, _, model in groups}) < len(groups)
        tables: Tables = {"summary": [], "points": []}
        for (task, size, model), points in sorted(groups.items()):
            panel = f"{model} | {f'{task} {size}' if several else task}"
            whole = [o for (policy, _), part in sorted(points.items()) if policy == FULL for o in part]
            everything = [o for part in points.values() for o in part]
            tables["summary"].append({"panel": panel, "rests_on": counts(everything)})
            found = [self._point(panel, policy, part, whole) for (policy, _), part in sorted(points.items())]
            found = [p for p in found if p["attempts"]]
            tables["points"] += sorted(found, key=lambda p: (p["policy"], p["bytes"]))
        return tables

    def _point(self, panel: str, policy: str, part: Sequence[Outcome], whole: Sequence[Outcome]) -> dict[str, Any]:
        answered = sorted((o for o in part if o.status != "failed"), key=lambda o: (o.size, o.problem, o.sample))
        problem = clusters(answered)
        right = accuracy(np.array([o.correct for o in answered], dtype=np.bool_), problem)
        bytes_ = mean(np.array([o.details[self.bytes] for o in answered], dtype=np.float64), problem)
        record = flat(panel=panel, policy=policy, accuracy=right, bytes=bytes_)
        if told := [o for o in answered if "kl" in o.details]:
            record |= flat(kl=mean(np.array([o.details["kl"] for o in told], dtype=np.float64), clusters(told)))
        if whole and policy != FULL:
            record |= flat(gain=paired_difference(*matched(answered, whole)))
        named = {name: setting(part[0], name) for name in self.labels if policy != FULL}
        said = ", ".join(f"{name} {value:g}" for name, value in named.items() if isinstance(value, int | float))
        rests_on = {"attempts": right.attempts, "problems": right.problems, "failed": len(part) - len(answered)}
        return {**record, "settings": said, **{k: v for k, v in named.items() if v is not None}, **rests_on}

    def findings(self, tables: Tables) -> list[str]:
        found = []
        for row in tables["summary"]:
            points = [p for p in tables["points"] if p["panel"] == row["panel"]]
            whole = [p for p in points if p["policy"] == FULL]
            pruned = [p for p in points if p["policy"] != FULL and p.get("gain_high") is not None]
            if not whole or not pruned:
                continue
            full = f"the full cache is right in {span(whole[0], 'accuracy', '.0%')} with {_size(whole[0]['bytes'])}"
            equal = [p for p in pruned if p["gain_high"] >= 0]
            if not equal:
                found.append(f"{row['panel']}: {full}; every pruned cache is right less often.")
                continue
            least = min(equal, key=lambda p: p["bytes"])
            name = ", ".join(n for n in (least["policy"], least["settings"]) if n)
            share, gain = least["bytes"] / whole[0]["bytes"], span(least, "gain", "+.0%")
            found.append(
                f"{row['panel']}: {full}; the smallest not shown to be worse is {name}, with {_size(least['bytes'])} "
                f"({share:.0%}): it gains {gain}, paired by problem."
            )
        return found

    def draw(self, tables: Tables) -> alt.TopLevelMixin:
        policies = sorted({p["policy"] for p in tables["points"]}, key=lambda name: (name != FULL, name))
        panels = [self._panel(tables["points"], row, policies) for row in tables["summary"]]
        note = "95 % intervals on both axes; the means of all attempts"
        title = alt.TitleParams("Accuracy by bytes of the KV cache", subtitle=note)
        return themed(alt.concat(*panels, columns=2, spacing=30).properties(title=title))

    def _panel(self, points: Records, row: dict[str, Any], policies: list[str]) -> Any:
        own = [p for p in points if p["panel"] == row["panel"]]
        shown = alt.Chart(values([{**p, "line": self._line(p, own)} for p in own]))
        unit = "datum.value >= 1e6 ? format(datum.value / 1e6, '~g') + ' MB' : format(datum.value / 1e3, '~g') + ' KB'"
        scale = alt.Scale(type="log", nice=False, padding=20)
        axis = alt.Axis(labelExpr=unit, values=_ticks(own), labelOverlap="greedy", labelSeparation=8)
        x = alt.X("bytes:Q", title="mean bytes of the cache (log scale)", scale=scale, axis=axis)
        y = percent("accuracy", "accuracy")
        colour = alt.Color(
            "policy:N",
            scale=alt.Scale(domain=policies, range=["#5b6770", *COLOURS[:7]]) if FULL in policies else alt.Undefined,
            legend=alt.Legend(title=None, orient="bottom", symbolOpacity=1),
        )
        tooltip = ["policy:N", "settings:N", *(alt.Tooltip(f"{f}:Q", format=",.3~s") for f in ("accuracy", "bytes"))]
        tooltip += [f"{name}:Q" for name in ("kl", "attempts", "problems") if any(name in p for p in own)]
        layers = [
            shown.mark_line(strokeWidth=1.4, opacity=0.7).encode(x=x, y=y, color=colour, detail="line:N"),
            shown.mark_rule(opacity=0.35).encode(x=x, y=percent("accuracy_low"), y2="accuracy_high:Q", color=colour),
            shown.mark_rule(opacity=0.35).encode(x=alt.X("bytes_low:Q"), x2="bytes_high:Q", y=y, color=colour),
            shown.mark_point(filled=True, size=46, opacity=1).encode(x=x, y=y, color=colour, tooltip=tooltip),
        ]
        title = alt.TitleParams(row["panel"], subtitle=row["rests_on"], fontSize=12)
        return alt.layer(*layers, width=420, height=280, title=title)

    def _line(self, point: dict[str, Any], points: Records) -> str:
        """Points that differ only in the first of the labels: a line through all would wander."""
        mine = [p for p in points if p["policy"] == point["policy"]]
        rest = [name for name in self.labels[1:] if len({p.get(name) for p in mine}) > 1]
        varied = len({p.get(self.labels[0]) for p in mine}) > 1
        return " ".join([point["policy"], *(str(point.get(name)) for name in rest if varied)])


def _ticks(points: Records) -> list[float]:
    """1, 2 and 5 times the powers of ten that the points span, or their ends where there is none between them."""
    low, high = min(p["bytes"] for p in points), max(p["bytes"] for p in points)
    found = [n * 10.0**power for power in range(16) for n in (1, 2, 5)]
    return [tick for tick in found if low * 0.8 <= tick <= high * 1.25] or sorted({low, high})


def _size(count: float) -> str:
    return f"{count / 1e6:,.3g} MB" if count >= 1e6 else f"{count / 1e3:,.3g} KB"
