"""Plots task accuracy and turn accuracy along a rollout, one panel per number of steps per turn,
with the horizon.

After Sinha et al. (2025). Task accuracy is the fraction of rollouts without an error so far
(Kaplan-Meier estimate). Turn accuracy takes the model's previous answer as correct and judges the
next turn alone. The horizon is the first step at which task accuracy is below the target. It is
compared with the horizon predicted from a constant step accuracy, estimated up to the first error.
Turn accuracy after a right answer and after a wrong one shows self-conditioning in the model's own
rollouts. In the table of turns, `index` is the fraction of answers that are correct, whatever came
before.
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
    Row,
    basis,
    counts,
    curve_records,
    flat,
    heading,
    percent,
    pooled_findings,
    rows_of,
    span,
    themed,
    values,
    with_details,
)
from ponder.figures._published import published
from ponder.stats.horizon import horizon, rollouts
from ponder.study.labels import cells_of, distinctions, model_labels, pooled, task_labels

TASK = "task accuracy (no error so far)"
TURN = "turn accuracy"
OTHERS = "task accuracy, other panels"
PUBLISHED = "published"
# Width and height of a panel in pixels, by the number of panels in a row.
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
        recorded = with_details(outcomes, "per_turn")
        task_settings = distinctions(cells_of(recorded), ("per_turn",), of="task")
        model_names = model_labels(recorded)
        task_names = task_labels(recorded)
        groups: dict[str, dict[int, dict[str, list[Outcome]]]] = {}
        for outcome in recorded:
            by_steps = groups.setdefault(model_names[outcome.cell.model_key], {})
            by_task = by_steps.setdefault(outcome.details["per_turn"], {})
            by_task.setdefault(task_names[outcome.cell.task_key], []).append(outcome)
        for model, by_steps in groups.items():
            for per_turn, by_task in sorted(by_steps.items()):
                # Name a task by the settings that vary, or in full if these don't tell it apart.
                short_names = {}
                for task, attempts in by_task.items():
                    short_names[task] = task_settings[attempts[0].cell]
                distinct = set(short_names.values())
                if "" in distinct or len(distinct) < len(short_names):
                    short_names = {task: task for task in by_task}
                for task, attempts in sorted(by_task.items()):
                    panel = f"{per_turn} step{'s' if per_turn > 1 else ''} per turn"
                    if len(by_task) > 1:
                        panel = f"{panel}, {short_names[task]}"
                    series = f"{model}, {panel}" if len(groups) > 1 else panel
                    labels = {
                        "series": series,
                        "model": model,
                        "per_turn": per_turn,
                        "basis": basis(attempts),
                    }
                    self._add_rows(tables, labels, panel, attempts)
        return tables

    def _add_rows(
        self, tables: Tables, labels: Row, panel: str, attempts: Sequence[Outcome]
    ) -> None:
        """Add the rows of one panel to the tables."""
        result = horizon(rollouts(attempts), target=self.target)
        summary = flat(
            **labels,
            panel=panel,
            horizon=result.horizon,
            predicted=result.predicted,
            at_end=result.at_end,
            step_accuracy=result.step_accuracy,
            after_right=result.after_right,
            after_wrong=result.after_wrong,
            constancy_p=result.trend.p_value,
            turn_accuracy=result.trend.direction,
            rests_on=counts(attempts),
            pooled=pooled([attempts]),
        )
        tables["summary"].append(summary)
        tables["survival"] += curve_records(result.survival, **labels)
        for turn in result.rows:
            row = flat(
                **labels,
                first=turn.first,
                last=turn.last,
                index=turn.index,
                task=turn.task,
                turn=turn.turn,
                unparsed=turn.unparsed,
            )
            tables["turns"].append(row)

    def findings(self, tables: Tables) -> list[str]:
        sentences = pooled_findings(tables["summary"], "series")
        for row in tables["summary"]:
            panel = f"{row['model']}, {row['panel']}"
            sentences.append(
                f"{panel}: horizon {_horizon_text(row)} steps; {span(row, 'predicted', STEPS)} predicted "
                f"from a constant step accuracy of {span(row, 'step_accuracy', '.4f')}; "
                f"turn accuracy along the rollout: {row['turn_accuracy']}."
            )
            if row["horizon"] is None and row["at_end"] is not None:
                at_end = span(row, "at_end", ".0%")
                sentences.append(f"{panel}: {at_end} of rollouts have no error at the last step.")
            if row["after_wrong"] is not None:
                sentences.append(
                    f"{panel}: turn accuracy {span(row, 'after_right', '.0%')} after a right "
                    f"answer, {span(row, 'after_wrong', '.0%')} after a wrong one."
                )
        return sentences

    def draw(self, tables: Tables) -> alt.TopLevelMixin:
        by_model: dict[str, Records] = {}
        for row in tables["summary"]:
            by_model.setdefault(row["model"], []).append(row)
        columns = min(4, max(map(len, by_model.values())))
        width = max(430, columns * SIZES[columns][0])
        fewest_steps = min(row["per_turn"] for row in tables["summary"])
        grids = []
        for model, rows in by_model.items():
            panels = []
            for i, row in enumerate(rows):
                # Published horizons are for one step per turn.
                overlay = bool(self.overlay) and row["per_turn"] == fewest_steps
                y_title = "accuracy" if i % columns == 0 else None
                panels.append(
                    self._panel(tables, row, SIZES[columns], overlay=overlay, y_title=y_title)
                )
            grid = alt.concat(*panels, columns=columns, spacing=18, title=heading(model, [], width))
            grids.append(grid.resolve_scale(x="shared", y="shared"))
        notes = [
            f"horizon: the first step at which task accuracy is below {self.target:.0%} (dashed)",
            "predicted: the horizon if step accuracy stayed as it is up to the first error",
            "after right or wrong answers: turn accuracy there; bands and bars: 95 % intervals",
        ]
        if self.overlay:
            notes.append(
                "published: horizons of other models at one step per turn, without thinking"
            )
        title = heading("Accuracy along a rollout", notes, width)
        return themed(alt.vconcat(*grids, title=title).resolve_scale(x="shared", y="shared"))

    def _panel(
        self,
        tables: Tables,
        summary: Row,
        size: tuple[int, int],
        *,
        overlay: bool,
        y_title: str | None,
    ) -> Any:
        survival = rows_of(tables["survival"], summary)
        other_survival = [row for row in tables["survival"] if row["basis"] != summary["basis"]]
        task = _chart(survival, TASK)
        turn = _chart(rows_of(tables["turns"], summary), TURN)
        others = _chart(other_survival, OTHERS)
        target = alt.Chart(values([{"target": self.target}]))
        colour = self._colour(len(tables["summary"]))
        axis = alt.Axis(tickCount=6)
        x = alt.X("size:Q", title="step", axis=axis)
        last = alt.X("last:Q", title="step", axis=axis)
        tooltip = ["first:Q", "last:Q", "turn:Q", "index:Q", "task:Q", "unparsed:Q"]
        layers = [
            others.mark_line(strokeWidth=0.8, interpolate="step-after", opacity=0.8).encode(
                x=x, y=percent("value"), detail="series:N", color=colour
            ),
            target.mark_rule(color=MUTED, strokeDash=[4, 3]).encode(y=percent("target")),
            task.mark_area(opacity=0.18, interpolate="step-after").encode(
                x=x, y=percent("low"), y2="high:Q", color=colour
            ),
            task.mark_line(strokeWidth=2, interpolate="step-after").encode(
                x=x, y=percent("value", y_title), color=colour
            ),
            turn.mark_rule(opacity=0.5).encode(
                x=last, y=percent("turn_low"), y2="turn_high:Q", color=colour
            ),
            turn.mark_point(filled=True, size=16, opacity=1).encode(
                x=last, y=percent("turn"), color=colour, tooltip=tooltip
            ),
        ]
        if overlay:
            marks = []
            for row in published(self.overlay):
                marks.append({"model": row["model"], "size": row["horizon"], "target": 0.5})
            diamonds = _chart(marks, PUBLISHED).mark_point(shape="diamond", size=45)
            layers.append(
                diamonds.encode(
                    x=x, y=percent("target"), color=colour, tooltip=["model:N", "size:Q"]
                )
            )
        notes = [
            f"horizon {_horizon_text(summary)}",
            f"predicted {span(summary, 'predicted', STEPS)}",
        ]
        if summary["after_wrong"] is not None:
            notes.append(f"after right answers {span(summary, 'after_right', '.0%')}")
            notes.append(f"after wrong ones {span(summary, 'after_wrong', '.0%')}")
        notes += [summary["rests_on"], summary["pooled"]]
        title = heading(summary["panel"], notes, size[0])
        title.fontSize = 12
        return alt.layer(*layers, width=size[0], height=size[1], title=title)

    def _colour(self, panels: int) -> alt.Color:
        """Return the colour encoding: one colour per measure, the same in all panels."""
        colours = {TASK: COLOURS[0], TURN: COLOURS[1]}
        if panels > 1:
            colours[OTHERS] = "#b9bfc5"
        if self.overlay:
            colours[PUBLISHED] = MUTED
        columns = 2 if panels < 3 else 4
        legend = alt.Legend(title=None, orient="bottom", symbolOpacity=1, columns=columns)
        scale = alt.Scale(domain=list(colours), range=list(colours.values()))
        return alt.Color("measure:N", scale=scale, legend=legend)


def _chart(rows: Records, measure: str) -> alt.Chart:
    """Return an empty chart of these rows, all of which the legend names as one measure."""
    return alt.Chart(values([{**row, "measure": measure} for row in rows]))


def _horizon_text(row: Row) -> str:
    """Write the horizon, or a lower bound if task accuracy never fell below the target."""
    if row["horizon"] is not None:
        return span(row, "horizon", STEPS)
    return f"not reached, at least {row['horizon_low']:,.0f}"
