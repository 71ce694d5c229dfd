"""Plots final task accuracy against tokens, money or seconds, with one labelled point per number of
steps per turn.

Shows whether a model executes a fixed number of steps better in few large turns or in many small
ones. After Sinha et al. (2025), whose points are about 20 rollouts each, without intervals; here
both axes have 95 % intervals. Turn lengths are compared plan by plan, and none is called the best
unless a test tells it from every other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log10
from typing import Any, ClassVar, Literal

import altair as alt
import numpy as np

from ponder.core import Figure, Measure, Outcome, Records, Resource, Tables
from ponder.figures import (
    INK,
    MUTED,
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
    with_details,
)
from ponder.figures._label_placement import Frame, lettering, place_labels
from ponder.figures._published import published
from ponder.figures._units import (
    Amounts,
    Tokens,
    amount_columns,
    no_overlay,
    overlay_notes,
    token_findings,
)
from ponder.stats.accuracy import accuracy, mean
from ponder.stats.columns import clusters
from ponder.stats.turn_length import TurnLength, independent, turn_length
from ponder.study.labels import pooled, task_series_labels

ROLLOUTS = 20  # per published point, about
ONE_PANEL = (460, 320)  # pixels
SEVERAL_PANELS = (320, 300)


@dataclass(frozen=True)
class Tradeoff(Figure):
    overlay: Literal["", "execution_tradeoff"] = ""  # published points to draw as well
    # of an answer, on the axis: its tokens, its cost in money, or its seconds
    measure: Measure = "tokens"
    # which to count; auto: thinking if every model reports it, else output
    tokens: Tokens = "output"

    needs: ClassVar[dict[str, str]] = {"per_turn": "use the task `execution`"}

    def __post_init__(self) -> None:
        no_overlay(self.overlay, self.measure)

    def estimate(self, outcomes: Sequence[Outcome]) -> Tables:
        tables: Tables = {"summary": [], "points": []}
        recorded = with_details(outcomes, "per_turn")
        measured = amount_columns(recorded, self.measure, self.tokens)
        amounts = Amounts.of(measured)
        names = task_series_labels(recorded, ("per_turn",))
        groups: dict[str, dict[int, dict[int, list[Outcome]]]] = {}
        for outcome in recorded:
            by_steps = groups.setdefault(names[outcome.cell], {})
            by_turn = by_steps.setdefault(outcome.size, {})
            by_turn.setdefault(outcome.details["per_turn"], []).append(outcome)
        for series, by_steps in groups.items():
            for steps, by_turn in sorted(by_steps.items()):
                attempts = []
                for turn_attempts in by_turn.values():
                    attempts += turn_attempts
                summary = {
                    "series": series,
                    "steps": steps,
                    "rests_on": counts(attempts),
                    "pooled": pooled(by_turn.values(), ("per_turn",)),
                    **_tested(_turn_length(by_turn)),
                    **measured,
                    "basis": basis(attempts),
                }
                tables["summary"].append(summary)
                for per_turn, turn_attempts in sorted(by_turn.items()):
                    point = _point(turn_attempts, amounts.resource)
                    tables["points"].append(
                        {"series": series, "steps": steps, "per_turn": per_turn, **point}
                    )
        return amounts.named(tables)

    def findings(self, tables: Tables) -> list[str]:
        sentences = token_findings(tables["summary"])
        sentences += pooled_findings(tables["summary"], "series")
        overlay = published(self.overlay) if self.overlay else []
        for summary in tables["summary"]:
            if _comparable(overlay, summary):
                notes = overlay_notes("output", summary["token_kind"])
                sentences += [f"{note.capitalize()}." for note in notes]
                break
        for summary in tables["summary"]:
            points = _points(tables, summary)
            if len(points) > 1:
                panel = f"{summary['series']}, {summary['steps']} steps"
                amounts = Amounts.of(summary)
                cheapest = min(points, key=lambda point: point[amounts.noun])
                sentences.append(f"{panel}: {summary['compared']}.")
                sentences.append(f"{panel}: {_verdict(summary, points)}.")
                least = "lowest cost" if amounts.resource == "cost" else f"fewest {amounts.noun}"
                sentences.append(f"{panel}: {least} with {_phrase(cheapest, amounts)}.")
            test = _published_test(overlay, summary["steps"])
            if test:
                sentences.append(test)
        return sentences

    def draw(self, tables: Tables) -> alt.TopLevelMixin:
        summaries = [summary for summary in tables["summary"] if _points(tables, summary)]
        overlay = published(self.overlay) if self.overlay else []
        panels = []
        for summary in summaries:
            panels.append(_panel(tables, summary, overlay, first=summary is summaries[0]))
        if len(panels) == 1:
            return themed(panels[0])
        columns = 2 if len(panels) <= 4 else 3
        grid = alt.concat(*panels, columns=columns, spacing=24)
        return themed(grid.resolve_scale(x="independent", y="shared"))


def _turn_length(by_turn: dict[int, list[Outcome]]) -> TurnLength | None:
    """Compare turn lengths plan by plan; problem by problem if an attempt records no plan."""
    answered = {}
    for per_turn, attempts in by_turn.items():
        answered[per_turn] = [outcome for outcome in attempts if outcome.answered]
    has_plan = ["plan" in outcome.details for attempts in answered.values() for outcome in attempts]
    paired = all(has_plan)
    accuracies: dict[int, dict[str, float]] = {}
    for per_turn, attempts in answered.items():
        correct: dict[str, list[bool]] = {}
        for outcome in attempts:
            plan = outcome.details["plan"] if paired else outcome.problem
            correct.setdefault(plan, []).append(outcome.correct)
        if correct:
            accuracies[per_turn] = {
                plan: sum(answers) / len(answers) for plan, answers in correct.items()
            }
    return turn_length(accuracies, paired=paired)


def _tested(test: TurnLength | None) -> Row:
    """Return the columns of a test of turn lengths."""
    if test is None:
        return {"compared": ""}
    if test.paired:
        compared = f"turn lengths compared on the same {test.problems} plans"
    else:
        compared = "turn lengths compared as independent problems, not by plan"
    return {
        **flat(p_any=test.p_any, per_doubling=test.slope, p_trend=test.p_trend),
        "could_be_best": list(test.could_be_best),
        "compared": compared,
    }


def _point(attempts: Sequence[Outcome], resource: Resource) -> Row:
    """Return the accuracy and the tokens of rollouts with one turn length."""
    answered = in_problem_order(attempts)
    problem = clusters(answered)
    correct = np.array([outcome.correct for outcome in answered], dtype=np.bool_)
    tokens = np.array([outcome.used(resource) for outcome in answered], dtype=np.float64)
    right = accuracy(correct, problem)
    return flat(
        accuracy=right,
        tokens=mean(tokens, problem),
        attempts=right.attempts,
        problems=right.problems,
        failed=len(attempts) - len(answered),
        basis=basis(attempts),
    )


def _verdict(summary: Row, points: Records) -> str:
    """Name the best turn length if the test tells it from every other, and the trend."""
    could_be_best = summary["could_be_best"]
    if len(could_be_best) == 1:
        [best] = [point for point in points if point["per_turn"] in could_be_best]
        clause = f"most accurate with {_phrase(best, Amounts.of(summary))}"
    else:
        lengths = ", ".join(map(str, could_be_best))
        clause = f"{lengths} per turn can't be told apart as the most accurate"
    trend = span(summary, "per_doubling", "+.1%")
    return (
        f"{clause}; {trend} accuracy per doubling of the turn, p = {summary['p_trend']:.2g}; "
        f"p = {summary['p_any']:.2g} for any difference"
    )


def _published_test(overlay: Records, steps: int) -> str:
    """Test the published points of as many steps, if each is of `ROLLOUTS` rollouts."""
    points = sorted(
        (int(row["per_turn"]), row["accuracy"]) for row in overlay if row["steps"] == steps
    )
    if len(points) < 2:
        return ""
    lengths, accuracies = zip(*points, strict=True)
    test = independent(lengths, np.array(accuracies), np.full(len(points), float(ROLLOUTS)))
    could_be_best = ", ".join(map(str, test.could_be_best))
    clause = f"{could_be_best} per turn can't be told apart as the most accurate"
    if test.best:
        clause = f"most accurate with {could_be_best}"
    return (
        f"Published, if each point is {ROLLOUTS} rollouts: {clause}; "
        f"p = {test.p_trend:.2g} for the trend, p = {test.p_any:.2g} for any difference."
    )


def _points(tables: Tables, summary: Row) -> Records:
    """Return the points of one panel that have an answer."""
    rows = rows_of(tables["points"], summary)
    return [row for row in rows if row["accuracy"] is not None]


def _comparable(overlay: Records, summary: Row) -> Records:
    """Return the published points of as many steps as a panel."""
    same_steps = [row for row in overlay if row["steps"] == summary["steps"]]
    return [row for row in same_steps if row["tokens"] is not None]


def _panel(tables: Tables, summary: Row, overlay: Records, *, first: bool) -> Any:
    width, height = ONE_PANEL if len(tables["summary"]) == 1 else SEVERAL_PANELS
    points: Records = []
    amounts = Amounts.of(summary)
    field = amounts.noun
    rows = _points(tables, summary)
    least = min((row[field] for row in rows if row[field] > 0), default=1.0)
    if amounts.are_tokens:
        least = 1
    silent = False
    for row in rows:
        # A logarithmic axis has no 0: a model that reports no tokens of this kind is drawn at 1.
        amount = max(row[field], least)
        silent = silent or amount > row[field]
        label = str(row["per_turn"])
        points.append({**row, field: amount, "source": "measured", "label": label})
    comparable = _comparable(overlay, summary)
    for row in comparable:
        points.append({**row, "source": "published", "label": f"{row['per_turn']:g}"})
    frame = _frame(points, width, height, field)
    form = "," if amounts.are_tokens else amounts.tick_form
    x = alt.X(
        f"{field}:Q",
        title=f"{amounts.title} per rollout, log scale",
        scale=alt.Scale(type="log", domain=[10**end for end in frame.x], nice=False),
        axis=alt.Axis(tickCount=6, format=form, labelOverlap="greedy", labelSeparation=6),
    )
    y = percent("accuracy", "final task accuracy" if first else None)
    shape = _shape(bool(overlay))
    placed = place_labels(points, frame, x=field)
    layers = []
    for source in ("published", "measured"):
        rows = [row for row in placed if row["source"] == source]
        if not rows:
            continue
        marks: list[Any] = []
        colour: Any = alt.value(MUTED)
        if source == "measured":
            colour = _colour(tables)
            bars = alt.Chart().mark_rule(opacity=0.6)
            marks = [
                bars.encode(x=x, y=percent("accuracy_low"), y2="accuracy_high:Q", color=colour),
                bars.encode(x=alt.X(f"{field}_low:Q"), x2=f"{field}_high:Q", y=y, color=colour),
            ]
        dots = alt.Chart().mark_point(filled=True, size=70, opacity=1)
        tooltip = ["source:N", "per_turn:Q", "accuracy:Q", f"{field}:Q", "attempts:Q"]
        marks.append(dots.encode(x=x, y=y, color=colour, shape=shape, tooltip=tooltip))
        layers.append(alt.layer(*marks, *lettering(field, alt.value(INK)), data=values(rows)))
    notes = [
        f"after {summary['steps']} steps; labels: steps per turn",
        f"{summary['rests_on']}; bars: 95 % intervals",
        summary["pooled"],
    ]
    if comparable:
        notes += overlay_notes("output", summary["token_kind"])
    if silent:
        notes.append(f"at {least:g}: no {amounts.title} reported")
    title = heading(summary["series"], notes, width)
    return alt.layer(*layers, width=width, height=height, title=title)


def _frame(points: Records, width: int, height: int, x: str) -> Frame:
    """Return a frame, logarithmic in x, that holds the points and their intervals."""
    amounts = []
    for point in points:
        amounts.append(point.get(f"{x}_low") or point[x])
        amounts.append(point.get(f"{x}_high") or point[x])
    first = log10(min(amounts))
    last = log10(max(amounts))
    margin = 0.1 * (last - first) or 0.3
    return Frame((first - margin, last + margin), (0.0, 1.0), width, height, log=True)


def _colour(tables: Tables) -> alt.Color:
    """Return one scale for all panels."""
    lengths = sorted({point["per_turn"] for point in tables["points"]})
    legend = alt.Legend(title="steps per turn", values=lengths, format="d")
    # Viridis ends in a yellow that is hard to see on white.
    scale = alt.Scale(
        type="log",
        scheme=alt.SchemeParams("viridis", extent=[0, 0.9]),
        domain=[lengths[0], lengths[-1]],
    )
    return alt.Color("per_turn:Q", scale=scale, legend=legend)


def _shape(overlay: bool) -> alt.Shape:
    legend = alt.Legend(title=None, orient="right") if overlay else None
    scale = alt.Scale(domain=["measured", "published"], range=["circle", "diamond"])
    return alt.Shape("source:N", scale=scale, legend=legend)


def _phrase(point: Row, amounts: Amounts) -> str:
    accuracy_text = span(point, "accuracy", ".0%")
    amount = span(point, amounts.noun, amounts.form)
    return (
        f"{point['per_turn']} per turn, accuracy {accuracy_text} for {amount} {amounts.short_unit}"
    )
