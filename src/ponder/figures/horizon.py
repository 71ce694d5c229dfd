"""Plots task accuracy and turn accuracy along a rollout, one panel per number of steps per turn,
with the horizon.

After Sinha et al. (2025). Task accuracy is the fraction of rollouts without an error so far
(Kaplan-Meier estimate); turn accuracy judges each turn from the model's own previous answer. The
horizon is the step at which task accuracy falls below the target. Beside it stands the horizon that
a constant step accuracy up to the first error predicts. Turn accuracy after a right answer and
after a wrong one shows self-conditioning in the model's own rollouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import altair as alt

from ponder.core import Figure, Outcome, Records, Tables, UserError, renamed
from ponder.figures import (
    COLOURS,
    MUTED,
    basis,
    counts,
    curve_records,
    flat,
    heading,
    percent,
    pooled_findings,
    published,
    span,
    themed,
    values,
    with_details,
)
from ponder.stats.horizon import horizon, rollouts
from ponder.study.labels import cells_of, distinctions, model_labels, pooled, task_labels

TASK, TURN = "task accuracy (no error so far)", "turn accuracy"
OTHERS, PUBLISHED = "task accuracy, other panels", "published"
# columns of panels: pixels of each
SIZES = {1: (500, 300), 2: (330, 220), 3: (240, 170), 4: (200, 140)}
STEPS = ",.0f"  # steps are whole numbers


@dataclass(frozen=True)
class Horizon(Figure):
    target: float = renamed("share", 0.5)  # task accuracy that defines the horizon
    overlay: Literal["", "execution_horizon"] = ""  # published horizons to mark as well

    needs: ClassVar[dict[str, str]] = {"per_turn": "use the task `execution`"}

    def __post_init__(self) -> None:
        if not 0 < self.target < 1:
            raise UserError(
                f"target lies between 0 and 1, not at {self.target}", hint="target = 0.5"
            )

    def estimate(self, outcomes: Sequence[Outcome]) -> Tables:
        tables: Tables = {"summary": [], "turns": [], "survival": []}
        groups: dict[tuple[str, int, str], list[Outcome]] = {}
        asked = with_details(outcomes, "per_turn")
        others = distinctions(cells_of(asked), ("per_turn",), of="task")
        model_of, task_of = model_labels(asked), task_labels(asked)
        for o in asked:
            named = (model_of[o.cell.model_key], o.details["per_turn"], task_of[o.cell.task_key])
            groups.setdefault(named, []).append(o)
        tasks_of: dict[tuple[str, int], dict[str, str]] = {}
        for (model, per_turn, task), part in groups.items():
            tasks_of.setdefault((model, per_turn), {})[task] = others[part[0].cell]
        models = list(dict.fromkeys(model for model, _, _ in groups))
        for model, per_turn, task in sorted(groups, key=lambda k: (models.index(k[0]), *k[1:])):
            part = groups[model, per_turn, task]
            result = horizon(rollouts(part), target=self.target)
            name = f"{per_turn} step{'s' if per_turn > 1 else ''} per turn"
            if len(tasks := tasks_of[model, per_turn]) > 1:
                told_apart = all(tasks.values()) and len(set(tasks.values())) == len(tasks)
                name = f"{name}, {tasks[task] if told_apart else task}"
            series = f"{model}, {name}" if len(models) > 1 else name
            labels: dict[str, Any] = {
                "series": series,
                "model": model,
                "per_turn": per_turn,
                "basis": basis(part),
            }
            tables["summary"].append(
                flat(
                    **labels,
                    panel=name,
                    horizon=result.horizon,
                    predicted=result.predicted,
                    at_end=result.at_end,
                    step_accuracy=result.step_accuracy,
                    after_right=result.after_right,
                    after_wrong=result.after_wrong,
                    constancy_p=result.trend.p_value,
                    turn_accuracy=result.trend.direction,
                    rests_on=counts(part),
                    pooled=pooled([part]),
                )
            )
            tables["survival"] += curve_records(result.survival, **labels)
            for row in result.rows:
                estimates = {
                    "index": row.index,
                    "task": row.task,
                    "turn": row.turn,
                    "unparsed": row.unparsed,
                }
                tables["turns"].append(flat(**labels, first=row.first, last=row.last, **estimates))
        return tables

    def findings(self, tables: Tables) -> list[str]:
        sentences = pooled_findings(tables["summary"], "series")
        for row in tables["summary"]:
            predicted = (
                f"predicted from a constant step accuracy of {span(row, 'step_accuracy', '.4f')}"
            )
            trend = f"turn accuracy along the rollout: {row['turn_accuracy']}"
            steps = span(row, "predicted", STEPS)
            sentences.append(
                f"{row['model']}, {row['panel']}: horizon {_reach(row)} steps; {steps} {predicted}; {trend}."
            )
            if row["horizon"] is None and row["at_end"] is not None:
                right = span(row, "at_end", ".0%")
                sentences.append(
                    f"{row['model']}, {row['panel']}: {right} of rollouts have no error at the last step."
                )
            if row["after_wrong"] is not None:
                sentences.append(f"{row['model']}, {row['panel']}: {_conditioned(row)}.")
        return sentences

    def draw(self, tables: Tables) -> alt.TopLevelMixin:
        rows = tables["summary"]
        models = list(dict.fromkeys(r["model"] for r in rows))
        columns = min(4, max(sum(r["model"] == m for r in rows) for m in models))
        # published: one step per turn
        first = min(r["per_turn"] for r in rows) if self.overlay else None
        width = max(430, columns * SIZES[columns][0])
        grids = []
        for model in models:
            own = [r for r in rows if r["model"] == model]
            panels = [
                self._panel(
                    tables,
                    row,
                    SIZES[columns],
                    overlay=row["per_turn"] == first,
                    left=i % columns == 0,
                )
                for i, row in enumerate(own)
            ]
            grid = alt.concat(*panels, columns=columns, spacing=18, title=heading(model, [], width))
            grids.append(grid.resolve_scale(x="shared", y="shared"))
        notes = [
            f"horizon: the first step at which task accuracy is below {self.target:.0%} (dashed)"
        ]
        notes.append(
            "predicted: the horizon if step accuracy stayed as it is up to the first error"
        )
        notes.append(
            "after right or wrong answers: turn accuracy there; bands and bars: 95 % intervals"
        )
        if self.overlay:
            notes.append(
                "published: horizons of other models at one step per turn, without thinking"
            )
        title = heading("Accuracy along a rollout", notes, width)
        return themed(alt.vconcat(*grids, title=title).resolve_scale(x="shared", y="shared"))

    def _panel(
        self,
        tables: Tables,
        row: dict[str, Any],
        size: tuple[int, int],
        *,
        overlay: bool,
        left: bool,
    ) -> Any:
        own = {
            name: [r for r in tables[name] if r["series"] == row["series"]]
            for name in ("survival", "turns")
        }
        colour = self._colour(len(tables["summary"]))
        x, last = (
            alt.X(f"{field}:Q", title="step", axis=alt.Axis(tickCount=6))
            for field in ("size", "last")
        )
        task, turn = _chart(own["survival"], TASK), _chart(own["turns"], TURN)
        others = _chart([r for r in tables["survival"] if r["series"] != row["series"]], OTHERS)
        target = alt.Chart(values([{"target": self.target}])).mark_rule(
            color=MUTED, strokeDash=[4, 3]
        )
        tooltip = ["first:Q", "last:Q", "turn:Q", "index:Q", "task:Q", "unparsed:Q"]
        thin = others.mark_line(strokeWidth=0.8, interpolate="step-after", opacity=0.8)
        band = task.mark_area(opacity=0.18, interpolate="step-after")
        line = task.mark_line(strokeWidth=2, interpolate="step-after")
        dots = turn.mark_point(filled=True, size=16, opacity=1)
        layers = [
            thin.encode(x=x, y=percent("value"), detail="series:N", color=colour),
            target.encode(y=percent("target")),
            band.encode(x=x, y=percent("low"), y2="high:Q", color=colour),
            line.encode(x=x, y=percent("value", "accuracy" if left else None), color=colour),
            turn.mark_rule(opacity=0.5).encode(
                x=last, y=percent("turn_low"), y2="turn_high:Q", color=colour
            ),
            dots.encode(x=last, y=percent("turn"), color=colour, tooltip=tooltip),
        ]
        if overlay:
            marks = [
                {"model": r["model"], "size": r["horizon"], "target": 0.5}
                for r in published(self.overlay)
            ]
            diamonds = _chart(marks, PUBLISHED).mark_point(shape="diamond", size=45)
            layers.append(
                diamonds.encode(
                    x=x, y=percent("target"), color=colour, tooltip=["model:N", "size:Q"]
                )
            )
        reach = [f"horizon {_reach(row)}", f"predicted {span(row, 'predicted', STEPS)}"]
        if row["after_wrong"] is not None:
            reach.append(f"after right answers {span(row, 'after_right', '.0%')}")
            reach.append(f"after wrong ones {span(row, 'after_wrong', '.0%')}")
        title = heading(row["panel"], [*reach, row["rests_on"], row["pooled"]], size[0])
        title.fontSize = 12
        return alt.layer(*layers, width=size[0], height=size[1], title=title)

    def _colour(self, panels: int) -> alt.Color:
        """One colour per measure, the same in all panels."""
        colours = {TASK: COLOURS[0], TURN: COLOURS[1]}
        colours |= {OTHERS: "#b9bfc5"} if panels > 1 else {}
        colours |= {PUBLISHED: MUTED} if self.overlay else {}
        legend = alt.Legend(
            title=None, orient="bottom", symbolOpacity=1, columns=2 if panels < 3 else 4
        )
        scale = alt.Scale(domain=list(colours), range=list(colours.values()))
        return alt.Color("measure:N", scale=scale, legend=legend)


def _chart(rows: Records, measure: str) -> alt.Chart:
    return alt.Chart(values([{**r, "measure": measure} for r in rows]))


def _conditioned(row: dict[str, Any]) -> str:
    right, wrong = (span(row, name, ".0%") for name in ("after_right", "after_wrong"))
    return f"turn accuracy {right} after a right answer, {wrong} after a wrong one"


def _reach(row: dict[str, Any]) -> str:
    """The horizon with its interval; a bound if no task accuracy below the target was seen."""
    return (
        span(row, "horizon", STEPS)
        if row["horizon"] is not None
        else f"not reached, at least {row['horizon_low']:,.0f}"
    )
