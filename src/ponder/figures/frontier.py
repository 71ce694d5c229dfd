"""Draws accuracy against tokens, one labelled dot per variant, with the frontier of the best
accuracy for the tokens.

After Kimi k1.5 (2025), whose figure has a bare dot per model. Here both axes have 95 % intervals
over problems and training seeds, a dot is filled in proportion to its probability of being on the
frontier, and what a variant cost to make is compared with what it saves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import altair as alt
import numpy as np

from ponder.core import Estimate, Figure, ModelLabel, Outcome, Records, Tables, UserError
from ponder.figures import INK, MUTED, basis, flat, pooled_findings, published, span, themed, values
from ponder.figures._labels import Frame, lettering, place_labels
from ponder.figures._published import PAIRED, PROBLEMS, on_benchmark, split_by_chance
from ponder.figures._tokens import TITLES, Tokens, counted, token_findings, token_kind
from ponder.figures._variants import (
    by_variant,
    colours,
    corrected,
    cut_findings,
    cut_short,
    differs,
    panel_title,
    panels,
    points,
    seeds_pooled,
    short_names,
    tested,
    with_answers,
)
from ponder.stats.frontier import (
    Comparison,
    Variant,
    VariantSummary,
    aes,
    on_frontier,
    summarize,
    verdict,
)
from ponder.stats.paired import newcombe
from ponder.study.labels import chosen_variant, variant_labels

Row = dict[str, Any]
PUBLISHED_REFERENCE = "k1.5-long"
SURE = 0.95  # probability from which a variant is called on the frontier, or off it
SIZE = (430, 300)  # pixels of a panel
SHOWN = (
    "tokens",
    "accuracy",
    "frontier_chance",
    "tokens_per_right",
    "difference",
    "p_value",
    "q_value",
    "ratio",
    "aes",
    "break_even",
)


@dataclass(frozen=True)
class Frontier(Figure):
    reference: ModelLabel = ""  # the model that others are compared with; "": the study's first
    by: Literal["task", "size"] = "task"  # one panel per task, or per size of each task
    # loss of accuracy up to which a variant counts as being as good as the reference
    margin: float = 0.05
    gain: float = 3.0  # AES: weight of a relative gain in accuracy
    loss: float = 5.0  # AES: weight of a relative loss in accuracy
    overlay: Literal["", "long2short"] = ""  # published points to draw below
    # which to count; auto: thinking if every model reports it, else output
    tokens: Tokens = "output"
    # take accuracy to vary equally between the seeds of 4 or more variants of one recipe
    pool_seeds: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.margin < 1:
            raise UserError(
                f"margin is a fraction above 0 and below 1, not {self.margin}", hint="margin = 0.05"
            )

    def estimate(self, outcomes: Sequence[Outcome]) -> Tables:
        tables: Tables = {"panels": [], "variants": [], "seeds": [], "published": []}
        chosen = chosen_variant(outcomes, self.reference)
        reference, short = variant_labels(outcomes)[chosen], short_names(outcomes, chosen)
        painted = colours(short)
        kind = token_kind(outcomes, self.tokens)
        for panel in panels(by_variant(outcomes), self.by, kind, self.pool_seeds):
            title, data = panel.title, panel.data
            record = {
                "panel": title,
                "reference": reference,
                "problems": data.problems,
                "rests_on": panel.rests_on,
            }
            record |= {
                "cut_short": cut_short(data, short),
                "pooled": panel.pooled,
                **counted(outcomes, self.tokens),
            }
            record["estimated"] = panel.estimated
            record["seeds_pooled"] = seeds_pooled(data) if self.pool_seeds else ""
            tables["panels"].append(
                {**record, "reference_label": short[reference], "basis": basis(panel.attempts)}
            )
            summaries = summarize(data, reference, gain=self.gain, loss=self.loss)
            for variant, summary in zip(data.variants, summaries, strict=True):
                own = panel.outcomes[variant.name]
                named = {
                    "label": short[variant.name],
                    "colour": painted[variant.name],
                    "basis": basis(own),
                }
                tables["variants"].append({**_record(title, variant, summary), **named})
                tables["seeds"] += _seeds(title, variant, own)
        tables["variants"] = [
            {**r, "verdict": self._verdict(r)} for r in corrected(tables["variants"])
        ]
        if self.overlay:
            tables["published"] = self._published(published(self.overlay))
        return tables

    def _verdict(self, row: Row) -> str | None:
        if row["p_value"] is None:
            return None
        value, low, high = (row[f"difference{end}"] for end in ("", "_low", "_high"))
        return verdict(
            Estimate(value, low, high, row["attempts"], row["problems"]), self.margin, differs(row)
        )

    def _published(self, records: Records) -> Records:
        if "tokens" not in records[0] or not any(r.get("benchmark") in PROBLEMS for r in records):
            raise UserError(
                f"`{self.overlay}` has no tokens and accuracy by model",
                hint='overlay = "long2short"',
            )
        rows = []
        for benchmark in dict.fromkeys(r["benchmark"] for r in records):
            own = [r for r in records if r["benchmark"] == benchmark]
            ref = next(r for r in own if r["model"] == PUBLISHED_REFERENCE)
            tokens, right = (np.array([r[name] for r in own]) for name in ("tokens", "accuracy"))
            scores = aes(
                tokens / ref["tokens"], right, np.array(ref["accuracy"]), self.gain, self.loss
            )
            for r, score, here in zip(
                own, scores.tolist(), on_frontier(tokens, right).tolist(), strict=True
            ):
                accuracy, of_ref = (on_benchmark(x["accuracy"], benchmark) for x in (r, ref))
                rows.append(
                    flat(
                        **{name: r[name] for name in ("benchmark", "model", "family", "tokens")},
                        accuracy=accuracy,
                        tokens_per_right=r["tokens"] / r["accuracy"],
                        on_frontier=here,
                        aes=score,
                        difference=newcombe(accuracy, of_ref),
                    )
                )
        return rows

    def findings(self, tables: Tables) -> list[str]:
        sentences = token_findings(tables["panels"]) + cut_findings(tables["panels"])
        sentences += pooled_findings(tables["panels"], "panel")
        sentences += [
            f"{p['panel']}: {p['seeds_pooled']}." for p in tables["panels"] if p["seeds_pooled"]
        ]
        for panel in with_answers(tables["panels"]):
            own = [v for v in tables["variants"] if v["panel"] == panel["panel"]]
            alone = len(own) == 1
            sentences.append(
                f"{panel['panel']}: {_alone(own[0], panel) if alone else _frontier(own)}."
            )
            compared = [v for v in own if v["verdict"]]
            sentences += [
                f"{panel['panel']}: {self._against(v, panel['reference_label'])}." for v in compared
            ]
        for benchmark in dict.fromkeys(r["benchmark"] for r in tables["published"]):
            sentences.append(
                _beyond_chance([r for r in tables["published"] if r["benchmark"] == benchmark])
            )
        return sentences

    def _against(self, row: Row, reference: str) -> str:
        margin, worst = (
            f"{100 * self.margin:g} points",
            f"{-100 * row['difference_low']:.1f} points",
        )
        verdict = {
            "above": f"more accurate than {reference}",
            "not below": f"as accurate as {reference} to within {margin}",
            "slightly below": f"less accurate than {reference}, but by less than {margin}",
            "below": f"less accurate than {reference}",
            "open": f"not distinguishable from {reference}, but it may be {worst} below",
        }[row["verdict"]]
        said = f"{row['label']} {_change(row)} and is {verdict}: {points(row, 'difference')}, {tested(row)}"
        if row["made_tokens"]:
            cost = f"the {row['made_tokens']:,.0f} tokens it cost to make"
            after = span(row, "break_even", ",.0f").replace("no upper bound", "never")
            never = row["break_even"] is None
            said += (
                f"; it never repays {cost}"
                if never
                else f"; it repays {cost} after {after} answers"
            )
        return said + (
            "; one training seed doesn't show how much training varies" if row["seeds"] == 1 else ""
        )

    def draw(self, tables: Tables) -> alt.TopLevelMixin:
        painted = {v["variant"]: v["colour"] for v in tables["variants"]}
        scale = alt.Scale(domain=list(painted), range=list(painted.values()))
        rows = []
        layout = {"columns": 2, "spacing": {"row": 110, "column": 70}, "bounds": "flush"}
        if panels := with_answers(tables["panels"]):
            rows.append(alt.concat(*(_panel(tables, panel, scale) for panel in panels), **layout))
        if tables["published"]:
            benchmarks = list(dict.fromkeys(r["benchmark"] for r in tables["published"]))
            shown = [
                _published_panel([r for r in tables["published"] if r["benchmark"] == b])
                for b in benchmarks
            ]
            rows.append(alt.concat(*shown, **layout))
        note = [
            "Bars: 95 % intervals over problems and training seeds (small dots). Dashed line: frontier as measured.",
            "The fuller a dot, the more likely its variant is on the frontier.",
        ]
        title = alt.TitleParams(
            "Accuracy by tokens per answer: up and to the left is better", subtitle=note
        )
        return themed(alt.vconcat(*rows, spacing=34).properties(title=title))


def _panel(tables: Tables, panel: Row, scale: alt.Scale) -> Any:
    own = [v for v in tables["variants"] if v["panel"] == panel["panel"]]
    seeds = [s for s in tables["seeds"] if s["panel"] == panel["panel"]]
    frame = _frame(own)
    line = _steps(own, frame)
    x, y = _axes(frame, TITLES[panel["token_kind"]])
    colour, fill = (
        channel("variant:N", scale=scale, legend=None) for channel in (alt.Color, alt.Fill)
    )
    # the data are given once, to the layers together: Altair copies them with every chart
    shown = alt.Chart()
    bars = shown.mark_rule(opacity=0.45, clip=True)
    tooltip = ["variant:N", *(alt.Tooltip(f"{f}:Q", format=",.3~r") for f in SHOWN)]
    dots = {"x": x, "y": y, "color": colour}
    opacity = alt.FillOpacity(
        "frontier_chance:Q", scale=alt.Scale(domain=[0, 1], range=[0, 1]), legend=None
    )
    layers = [
        _frontier_line(line, x, y),
        bars.encode(x=x, y=alt.Y("accuracy_low:Q"), y2="accuracy_high:Q", color=colour),
        bars.encode(x=alt.X("tokens_low:Q"), x2="tokens_high:Q", y=y, color=colour),
        alt.Chart(values(seeds))
        .mark_point(filled=True, size=16, opacity=0.45, clip=True)
        .encode(**dots),
        shown.mark_point(filled=True, size=80, opacity=1, color="white").encode(x=x, y=y),
        shown.mark_point(size=80, opacity=1, strokeWidth=1.8).encode(
            **dots, fill=fill, fillOpacity=opacity, tooltip=tooltip
        ),
        *lettering("tokens", colour),
    ]
    named = values(place_labels(own, frame, line, seeds))
    title = panel_title(panel, SIZE[0])
    return alt.layer(*layers, data=named, width=SIZE[0], height=SIZE[1], title=title)


def _record(panel: str, variant: Variant, summary: VariantSummary) -> Row:
    against = {f.name: getattr(summary.against, f.name, None) for f in fields(Comparison)}
    return flat(
        panel=panel,
        variant=variant.name,
        tokens=summary.tokens,
        accuracy=summary.accuracy,
        on_frontier=summary.on_frontier,
        frontier_chance=summary.frontier_chance,
        tokens_per_right=summary.tokens_per_right,
        **against,
        made_tokens=variant.made_tokens,
        made_seconds=variant.made_seconds,
        seeds=len(variant.seeds),
        attempts=summary.accuracy.attempts,
        problems=summary.accuracy.problems,
    )


def _seeds(panel: str, variant: Variant, outcomes: Sequence[Outcome]) -> Records:
    rows = []
    for i, seeds in enumerate(variant.seeds):
        tokens, right = (
            float(variant.by_seed(c)[i].mean()) for c in (variant.tokens, variant.correct)
        )
        named = {"panel": panel, "variant": variant.name, "seed": ", ".join(map(str, seeds))}
        own = basis(o for o in outcomes if o.cell.training_seeds == seeds)
        rows.append({**named, "tokens": tokens, "accuracy": right, "basis": own})
    return rows


def _alone(row: Row, panel: Row) -> str:
    """What there is to say of a variant that is compared with no other."""
    kind = TITLES[panel["token_kind"]].partition(" (")[0]
    accuracy, tokens = span(row, "accuracy", ".1%"), span(row, "tokens", ",.0f")
    per_right = span(row, "tokens_per_right", ",.0f")
    return f"{row['label']}: accuracy {accuracy}, {tokens} {kind} per answer, {per_right} per right answer"


def _frontier(own: Records) -> str:
    said: dict[str, list[str]] = {"surely": [], "perhaps": [], "surely not": []}
    for name, chance in ((v["label"], v["frontier_chance"]) for v in own):
        if chance is None or 1 - SURE < chance < SURE:
            said["perhaps"].append(name if chance is None else f"{name} ({chance:.0%})")
        else:
            said["surely" if chance >= SURE else "surely not"].append(name)
    return "on the frontier: " + "; ".join(
        f"{how} {', '.join(names)}" for how, names in said.items() if names
    )


def _change(row: Row) -> str:
    ends = [row["ratio"], row["ratio_low"], row["ratio_high"]]
    if any(end is None for end in ends):
        return f"takes {row['ratio']:.2f} times the tokens"
    cut = row["ratio"] <= 1
    value, *interval = (round(100 * (1 - end if cut else end - 1)) for end in ends)
    low, high = sorted(interval)
    return f"{'cuts' if cut else 'raises'} tokens by {value} % [{low}, {high}]".replace("-", "−")


def _beyond_chance(own: Records) -> str:
    """Which published differences exceed what two independent samples of as many problems show by
    chance.
    """
    apart = {
        r["model"]: Estimate(r["difference"], r["difference_low"], r["difference_high"], 0, 0)
        for r in own
        if r["model"] != PUBLISHED_REFERENCE
    }
    beyond, within = split_by_chance(apart)
    return (
        f"{own[0]['benchmark']}, published: differences to {PUBLISHED_REFERENCE} in points, beyond binomial chance on "
        f"{PROBLEMS[own[0]['benchmark']]} problems: {beyond}; within it: {within}. {PAIRED}"
    )


def _frame(own: Records) -> Frame:
    """Tokens from 0; accuracy as far as the intervals go, with a margin."""
    most = max(p["tokens"] for p in own)
    far = max(p.get("tokens_high") or most for p in own)
    low, high = min(p["accuracy_low"] for p in own), max(p["accuracy_high"] for p in own)
    air = 0.04 * (high - low)
    return Frame(
        (0.0, max(1.12 * most, min(1.03 * far, 1.5 * most), 1.0)),
        (max(0.0, low - air), high + air),
        *SIZE,
    )


def _axes(frame: Frame, tokens: str = "tokens") -> tuple[alt.X, alt.Y]:
    # Vega would round the ends of the axes, and the labels would no longer stand where they were
    # placed.
    across, up = (
        alt.Scale(domain=list(ends), nice=False, zero=False) for ends in (frame.x, frame.y)
    )
    # No format of the ticks: whole numbers would label 0.5 and 1 alike.
    x = alt.X(
        "tokens:Q", title=f"mean {tokens} per answer", scale=across, axis=alt.Axis(tickCount=6)
    )
    return x, alt.Y(
        "accuracy:Q", title="accuracy", scale=up, axis=alt.Axis(format="%", tickCount=6)
    )


def _steps(own: Records, frame: Frame) -> Records:
    """The frontier as measured: the best accuracy for so many tokens."""
    on = sorted((p["tokens"], p["accuracy"]) for p in own if p["on_frontier"])
    corners = [(on[0][0], frame.y[0]), *on, (frame.x[1], on[-1][1])]
    return [{"tokens": tokens, "accuracy": right} for tokens, right in corners]


def _frontier_line(steps: Records, x: alt.X, y: alt.Y) -> Any:
    line = alt.Chart(values(steps)).mark_line(
        interpolate="step-after", color=MUTED, strokeWidth=1, strokeDash=[3, 3]
    )
    return line.encode(x=x, y=y, order="tokens:Q")


def _published_panel(own: Records) -> Any:
    frame = _frame(own)
    line = _steps(own, frame)
    named = place_labels([{**r, "label": r["model"]} for r in own], frame, line)
    x, y = _axes(frame)
    bars = alt.Chart().mark_rule(color=MUTED, opacity=0.35, clip=True)
    dots = alt.Chart().mark_point(size=50, opacity=1, color=MUTED, strokeWidth=1.5)
    fill = alt.condition("datum.family == 'k1.5'", alt.value(MUTED), alt.value("white"))
    layers = [
        _frontier_line(line, x, y),
        bars.encode(x=x, y=alt.Y("accuracy_low:Q"), y2="accuracy_high:Q"),
        dots.encode(
            x=x,
            y=y,
            fill=fill,
            tooltip=["model:N", "tokens:Q", "accuracy:Q", "aes:Q", "difference:Q"],
        ),
        *lettering("tokens", alt.value(INK)),
    ]
    problems = PROBLEMS[own[0]["benchmark"]]
    note = f"Kimi k1.5 (filled) and others; bars: binomial 95 % intervals, {problems} problems"
    title = alt.TitleParams(
        f"{own[0]['benchmark']}, published", subtitle=note, fontSize=12, frame="group"
    )
    return alt.layer(*layers, data=values(named), width=SIZE[0], height=SIZE[1], title=title)
