"""Plots final task accuracy against tokens, with one labelled point per number of steps per turn.

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

from ponder.core import Figure, Outcome, Records, Tables, TokenKind
from ponder.figures import (
    INK,
    MUTED,
    basis,
    counts,
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
from ponder.figures._labels import Frame, lettering, place_labels
from ponder.figures._tokens import (
    TITLES,
    Tokens,
    counted,
    overlay_notes,
    token_findings,
    token_kind,
)
from ponder.stats.accuracy import accuracy, mean
from ponder.stats.columns import clusters
from ponder.stats.turn_length import TurnLength, independent, turn_length
from ponder.study.labels import pooled, task_series_labels

ROLLOUTS = 20  # per published point, about
ONE_PANEL, SEVERAL_PANELS = (460, 320), (320, 300)  # pixels


@dataclass(frozen=True)
class Tradeoff(Figure):
    overlay: Literal["", "execution_tradeoff"] = ""  # published points to draw as well
    # which to count; auto: thinking if every model reports it, else output
    tokens: Tokens = "output"

    needs: ClassVar[dict[str, str]] = {"per_turn": "use the task `execution`"}

    def estimate(self, outcomes: Sequence[Outcome]) -> Tables:
        tables: Tables = {"summary": [], "points": []}
        groups: dict[tuple[str, int], dict[int, list[Outcome]]] = {}
        asked = with_details(outcomes, "per_turn")
        kind = token_kind(asked, self.tokens)
        names = task_series_labels(asked, ("per_turn",))
        for o in asked:
            groups.setdefault((names[o.cell], o.size), {}).setdefault(
                o.details["per_turn"], []
            ).append(o)
        # panels in the study's order of models
        models = list(dict.fromkeys(model for model, _ in groups))
        for model, steps in sorted(groups, key=lambda panel: (models.index(panel[0]), panel[1])):
            by_turn = groups[model, steps]
            everything = [o for part in by_turn.values() for o in part]
            record = {"series": model, "steps": steps, "rests_on": counts(everything)}
            record |= {"pooled": pooled(by_turn.values(), ("per_turn",))}
            right, by_plan = _by_plan(by_turn)
            record |= _tested(turn_length(right, paired=by_plan))
            tables["summary"].append(
                {**record, **counted(asked, self.tokens), "basis": basis(everything)}
            )
            for per_turn, part in sorted(by_turn.items()):
                tables["points"].append(_point(model, steps, per_turn, part, kind))
        return tables

    def findings(self, tables: Tables) -> list[str]:
        sentences = token_findings(tables["summary"]) + pooled_findings(tables["summary"], "series")
        overlay = published(self.overlay) if self.overlay else []
        for row in [row for row in tables["summary"] if _comparable(overlay, row)][:1]:
            sentences += [
                f"{note.capitalize()}." for note in overlay_notes("output", row["token_kind"])
            ]
        for row in tables["summary"]:
            points = _points(tables, row)
            if len(points) > 1:
                where = f"{row['series']}, {row['steps']} steps"
                sentences += [f"{where}: {row['compared']}.", f"{where}: {_verdict(row, points)}."]
                cheapest = min(points, key=lambda p: p["tokens"])
                sentences.append(f"{where}: fewest tokens with {_phrase(cheapest)}.")
            if others := _published(overlay, row["steps"]):
                sentences.append(others)
        return sentences

    def draw(self, tables: Tables) -> alt.TopLevelMixin:
        rows = [row for row in tables["summary"] if _points(tables, row)]
        overlay = published(self.overlay) if self.overlay else []
        panels = [_panel(tables, row, overlay, first=row is rows[0]) for row in rows]
        if len(panels) == 1:
            return themed(panels[0])
        columns = 2 if len(panels) <= 4 else 3
        return themed(
            alt.concat(*panels, columns=columns, spacing=24).resolve_scale(
                x="independent", y="shared"
            )
        )


def _by_plan(by_turn: dict[int, list[Outcome]]) -> tuple[dict[int, dict[str, float]], bool]:
    """Each turn length's accuracy on each plan; on each problem, unpaired, if an attempt records no
    plan.
    """
    answered = {k: [o for o in part if o.answered] for k, part in by_turn.items()}
    paired = all("plan" in o.details for part in answered.values() for o in part)
    right: dict[int, dict[str, list[bool]]] = {}
    for k, part in answered.items():
        for o in part:
            right.setdefault(k, {}).setdefault(
                o.details["plan"] if paired else o.problem, []
            ).append(o.correct)
    return {
        k: {name: sum(one) / len(one) for name, one in own.items()} for k, own in right.items()
    }, paired


def _tested(test: TurnLength | None) -> dict[str, Any]:
    """What is tested of a panel, as columns."""
    if test is None:
        return {"compared": ""}
    by = (
        f"compared on the same {test.problems} plans"
        if test.paired
        else "compared as independent problems, not by plan"
    )
    columns = flat(p_any=test.p_any, per_doubling=test.slope, p_trend=test.p_trend)
    return {**columns, "could_be_best": list(test.could_be_best), "compared": f"turn lengths {by}"}


def _verdict(row: dict[str, Any], points: Records) -> str:
    """The best turn length if the test tells it from every other, and the trend."""
    could = row["could_be_best"]
    lead = [p for p in points if p["per_turn"] in could]
    if len(could) == 1:
        said = f"most accurate with {_phrase(lead[0])}"
    else:
        said = f"{', '.join(map(str, could))} per turn can't be told apart as the most accurate"
    trend = f"{span(row, 'per_doubling', '+.1%')} accuracy per doubling of the turn, p = {row['p_trend']:.2g}"
    return f"{said}; {trend}; p = {row['p_any']:.2g} for any difference"


def _published(overlay: Records, steps: int) -> str:
    """The same test on the published points of as many steps, if each is of `ROLLOUTS` rollouts."""
    points = sorted((int(r["per_turn"]), r["accuracy"]) for r in overlay if r["steps"] == steps)
    if len(points) < 2:
        return ""
    lengths, accuracies = zip(*points, strict=True)
    test = independent(lengths, np.array(accuracies), np.full(len(points), float(ROLLOUTS)))
    could = ", ".join(map(str, test.could_be_best))
    said = (
        f"most accurate with {could}"
        if test.best
        else f"{could} per turn can't be told apart as the most accurate"
    )
    return (
        f"Published, if each point is {ROLLOUTS} rollouts: {said}; "
        f"p = {test.p_trend:.2g} for the trend, p = {test.p_any:.2g} for any difference."
    )


def _points(tables: Tables, row: dict[str, Any]) -> Records:
    """The points of one panel that have an answer."""
    own = [
        p for p in tables["points"] if (p["series"], p["steps"]) == (row["series"], row["steps"])
    ]
    return [p for p in own if p["accuracy"] is not None]


def _comparable(overlay: Records, row: dict[str, Any]) -> Records:
    """The published points of as many steps as a panel."""
    return [r for r in overlay if r["steps"] == row["steps"] and r["tokens"] is not None]


def _panel(tables: Tables, row: dict[str, Any], overlay: Records, *, first: bool) -> Any:
    size = ONE_PANEL if len(tables["summary"]) == 1 else SEVERAL_PANELS
    # A logarithmic axis has no 0: a model that reports no tokens of this kind is drawn at 1.
    points = [
        {**p, "tokens": max(p["tokens"], 1), "source": "measured", "label": str(p["per_turn"])}
        for p in _points(tables, row)
    ]
    silent = [p["label"] for p in points if p["tokens"] == 1]
    others = _comparable(overlay, row)
    points += [{**r, "source": "published", "label": f"{r['per_turn']:g}"} for r in others]
    frame = _frame(points, size)
    scale = alt.Scale(type="log", domain=[10**end for end in frame.x], nice=False)
    x = alt.X(
        "tokens:Q",
        title=f"{TITLES[row['token_kind']]} per rollout, log scale",
        scale=scale,
        axis=alt.Axis(tickCount=6, format=",", labelOverlap="greedy", labelSeparation=6),
    )
    y = percent("accuracy", "final task accuracy" if first else None)
    colour, shape = _colour(tables), _shape(bool(overlay))
    placed = place_labels(points, frame)
    layers = []
    for source in ("published", "measured"):
        own = [p for p in placed if p["source"] == source]
        paint: Any = colour if source == "measured" else alt.value(MUTED)
        shown = alt.Chart().mark_rule(opacity=0.6)
        dots = alt.Chart().mark_point(filled=True, size=70, opacity=1)
        bars = [
            shown.encode(x=x, y=percent("accuracy_low"), y2="accuracy_high:Q", color=paint),
            shown.encode(x=alt.X("tokens_low:Q"), x2="tokens_high:Q", y=y, color=paint),
        ]
        tooltip = ["source:N", "per_turn:Q", "accuracy:Q", "tokens:Q", "attempts:Q"]
        marks = [
            *(bars if source == "measured" else []),
            dots.encode(x=x, y=y, color=paint, shape=shape, tooltip=tooltip),
        ]
        if own:
            layers.append(alt.layer(*marks, *lettering("tokens", alt.value(INK)), data=values(own)))
    notes = [
        f"after {row['steps']} steps; labels: steps per turn",
        f"{row['rests_on']}; bars: 95 % intervals",
    ]
    notes.append(row["pooled"])
    notes += overlay_notes("output", row["token_kind"]) if others else []
    notes += [f"at 1: no {TITLES[row['token_kind']]} reported"] if silent else []
    return alt.layer(
        *layers, width=size[0], height=size[1], title=heading(row["series"], notes, size[0])
    )


def _frame(points: Records, size: tuple[int, int]) -> Frame:
    """Logarithmic in tokens, as wide as the points, their intervals and the overlay."""
    ends = [p.get(f"tokens_{e}") or p["tokens"] for p in points for e in ("low", "high")]
    first, last = log10(min(ends)), log10(max(ends))
    margin = 0.1 * (last - first) or 0.3
    return Frame((first - margin, last + margin), (0.0, 1.0), *size, log=True)


def _colour(tables: Tables) -> alt.Color:
    """One scale for all panels."""
    turns = sorted({p["per_turn"] for p in tables["points"]})
    legend = alt.Legend(title="steps per turn", values=turns, format="d")
    # Viridis ends in a yellow that is hard to see on white.
    scale = alt.Scale(
        type="log",
        scheme=alt.SchemeParams("viridis", extent=[0, 0.9]),
        domain=[turns[0], turns[-1]],
    )
    return alt.Color("per_turn:Q", scale=scale, legend=legend)


def _shape(overlay: bool) -> alt.Shape:
    legend = alt.Legend(title=None, orient="right") if overlay else None
    scale = alt.Scale(domain=["measured", "published"], range=["circle", "diamond"])
    return alt.Shape("source:N", scale=scale, legend=legend)


def _phrase(point: dict[str, Any]) -> str:
    right, tokens = span(point, "accuracy", ".0%"), span(point, "tokens", ",.0f")
    return f"{point['per_turn']} per turn, accuracy {right} for {tokens} tokens"


def _point(
    model: str, steps: int, per_turn: int, part: Sequence[Outcome], kind: TokenKind
) -> dict[str, Any]:
    answered = sorted((o for o in part if o.answered), key=lambda o: (o.size, o.problem, o.sample))
    problem = clusters(answered)
    right = accuracy(np.array([o.correct for o in answered], dtype=np.bool_), problem)
    tokens = mean(np.array([o.tokens(kind) for o in answered], dtype=np.float64), problem)
    rests_on = {
        "attempts": right.attempts,
        "problems": right.problems,
        "failed": len(part) - len(answered),
    }
    named = {"series": model, "steps": steps, "per_turn": per_turn}
    return flat(**named, accuracy=right, tokens=tokens, **rests_on, basis=basis(part))
