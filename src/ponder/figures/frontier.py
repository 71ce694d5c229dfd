"""Accuracy against tokens, one named dot per variant: which are on the frontier, and is a shorter one as good?

After Kimi k1.5 (2025), whose figure has a bare dot per model. Here both axes have 95 % intervals over problems and
training seeds, a dot is filled as far as it is likely to be on the frontier, and what a variant cost to make is set
against what it saves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import altair as alt
import numpy as np

from ponder.core import Estimate, Figure, Outcome, Records, Tables, UserError
from ponder.figures import COLOURS, MUTED, flat, published, span, themed, values
from ponder.figures._labels import Frame, lettering, place_labels
from ponder.figures._variants import panels, points, reference_of, short_names, signed
from ponder.stats.accuracy import wilson
from ponder.stats.difference import difference
from ponder.stats.frontier import Comparison, Variant, VariantSummary, aes, on_frontier, standings

Row = dict[str, Any]
PUBLISHED_REFERENCE = "k1.5-long"
PROBLEMS = {"MATH500": 500, "AIME2024": 30}  # of the published benchmarks
SURE = 0.95  # chance of being on the frontier, or off it
SIZE = (430, 300)  # pixels of a panel
SHOWN = ("tokens", "accuracy", "frontier_chance", "tokens_per_right", "difference", "ratio", "aes", "break_even")


@dataclass(frozen=True)
class Frontier(Figure):
    reference: str = ""  # the model that others are set against; "" is the study's first
    by: Literal["task", "size"] = "task"  # what a panel is
    margin: float = 0.05  # accuracy that a variant may lose and still count as good as the reference
    gain: float = 3.0  # AES: what a relative gain in accuracy counts
    loss: float = 5.0  # AES: what a relative loss counts
    overlay: str = ""  # published points to draw below: `long2short`

    def __post_init__(self) -> None:
        if not 0 < self.margin < 1:
            raise UserError(f"margin is a share above 0 and below 1, not {self.margin}", hint="margin = 0.05")

    def estimate(self, outcomes: Sequence[Outcome]) -> Tables:
        tables: Tables = {"panels": [], "variants": [], "seeds": [], "published": []}
        reference = reference_of(outcomes, self.reference)
        for title, data, rests_on in panels(outcomes, self.by):
            record = {"panel": title, "reference": reference, "problems": data.problems, "rests_on": rests_on}
            tables["panels"].append(record)
            found = standings(data, reference, gain=self.gain, loss=self.loss, margin=self.margin)
            for variant, standing in zip(data.variants, found, strict=True):
                tables["variants"].append(_record(title, variant, standing))
                tables["seeds"] += _seeds(title, variant)
        if self.overlay:
            tables["published"] = self._published(published(self.overlay))
        return tables

    def _published(self, records: Records) -> Records:
        if not any(r.get("benchmark") in PROBLEMS for r in records):
            raise UserError(f"`{self.overlay}` has no tokens and accuracy by model", hint='overlay = "long2short"')
        found = []
        for benchmark in dict.fromkeys(r["benchmark"] for r in records):
            own = [r for r in records if r["benchmark"] == benchmark]
            ref = next(r for r in own if r["model"] == PUBLISHED_REFERENCE)
            tokens, right = (np.array([r[name] for r in own]) for name in ("tokens", "accuracy"))
            scores = aes(tokens / ref["tokens"], right, np.array(ref["accuracy"]), self.gain, self.loss)
            for r, score, here in zip(own, scores.tolist(), on_frontier(tokens, right).tolist(), strict=True):
                share, of_ref = (_binomial(x["accuracy"], PROBLEMS[benchmark]) for x in (r, ref))
                found.append(
                    flat(
                        **{name: r[name] for name in ("benchmark", "model", "family", "tokens")},
                        accuracy=share,
                        tokens_per_right=r["tokens"] / r["accuracy"],
                        on_frontier=here,
                        aes=score,
                        difference=difference(share, of_ref),
                    )
                )
        return found

    def findings(self, tables: Tables) -> list[str]:
        found = []
        for panel in tables["panels"]:
            own = [v for v in tables["variants"] if v["panel"] == panel["panel"]]
            short = short_names([v["variant"] for v in own], panel["reference"])
            if len(own) > 1:
                found.append(f"{panel['panel']}: {_frontier(own, short)}.")
            found += [f"{panel['panel']}: {self._against(v, short, panel['reference'])}." for v in own if v["verdict"]]
        for benchmark in dict.fromkeys(r["benchmark"] for r in tables["published"]):
            found.append(_beyond_noise([r for r in tables["published"] if r["benchmark"] == benchmark]))
        return found

    def _against(self, row: Row, short: dict[str, str], reference: str) -> str:
        ref, margin = short.get(reference, reference), f"{100 * self.margin:g} points"
        said = f"{short[row['variant']]} {_change(row)} at {points(row, 'difference')}"
        worst = f"{-100 * row['difference_low']:.1f} points"
        said += {
            "above": f", right more often than {ref}",
            "not below": f", not told from {ref} and less than {margin} below it",
            "slightly below": f", below {ref} but by less than {margin}",
            "below": f", below {ref}",
            "open": f", not told from {ref}, but it may be {worst} below",
        }[row["verdict"]]
        if row["made_tokens"]:
            never = row["break_even"] is None
            answers = "never" if never else f"after {span(row, 'break_even', ',.0f').replace('?', 'never')} answers"
            said += f"; it pays for its {row['made_tokens']:,.0f} tokens of making {answers}"
        return said + ("; one training seed doesn't show how training varies" if row["seeds"] == 1 else "")

    def draw(self, tables: Tables) -> alt.TopLevelMixin:
        names = list(dict.fromkeys(v["variant"] for v in tables["variants"]))
        reference = tables["panels"][0]["reference"] if tables["panels"] else ""
        short = short_names(names, reference)
        names.sort(key=lambda name: name != reference)
        scale = alt.Scale(domain=names, range=["#3c4248", *COLOURS[:7]])
        rows = []
        if tables["panels"]:
            measured = [self._panel(tables, panel, short, scale) for panel in tables["panels"]]
            rows.append(alt.concat(*measured, columns=2, spacing={"row": 110, "column": 70}, bounds="flush"))
        if tables["published"]:
            benchmarks = list(dict.fromkeys(r["benchmark"] for r in tables["published"]))
            shown = [_published_panel([r for r in tables["published"] if r["benchmark"] == b]) for b in benchmarks]
            rows.append(alt.concat(*shown, columns=2, spacing={"row": 110, "column": 70}, bounds="flush"))
        note = [
            "bars: 95 % intervals over problems and training seeds (small dots)",
            "line: frontier as measured; a dot is filled as far as it is likely to be on the frontier",
        ]
        title = alt.TitleParams("Accuracy by tokens", subtitle=note)
        return themed(alt.vconcat(*rows, spacing=34).properties(title=title))

    def _panel(self, tables: Tables, panel: Row, short: dict[str, str], scale: alt.Scale) -> Any:
        own = [v for v in tables["variants"] if v["panel"] == panel["panel"]]
        seeds = [s for s in tables["seeds"] if s["panel"] == panel["panel"]]
        frame = _frame(own)
        line = _steps(own, frame)
        named = place_labels([{**v, "label": short[v["variant"]]} for v in own], frame, line, seeds)
        x, y = _axes(frame)
        colour, fill = (channel("variant:N", scale=scale, legend=None) for channel in (alt.Color, alt.Fill))
        shown = alt.Chart()  # the data stand once, with the layers: Altair copies them at every step
        bars = shown.mark_rule(opacity=0.45, clip=True)
        tooltip = ["variant:N", *(alt.Tooltip(f"{f}:Q", format=",.3~r") for f in SHOWN)]
        dots = {"x": x, "y": y, "color": colour}
        layers = [
            _frontier_line(line, x, y),
            bars.encode(x=x, y=alt.Y("accuracy_low:Q"), y2="accuracy_high:Q", color=colour),
            bars.encode(x=alt.X("tokens_low:Q"), x2="tokens_high:Q", y=y, color=colour),
            alt.Chart(values(seeds)).mark_point(filled=True, size=16, opacity=0.45, clip=True).encode(**dots),
            shown.mark_point(filled=True, size=80, opacity=1, color="white").encode(x=x, y=y),
            shown.mark_point(size=80, opacity=1, strokeWidth=1.8).encode(
                **dots,
                fill=fill,
                fillOpacity=alt.FillOpacity(
                    "frontier_chance:Q", scale=alt.Scale(domain=[0, 1], range=[0, 1]), legend=None
                ),
                tooltip=tooltip,
            ),
            *lettering("tokens", colour),
        ]
        title = alt.TitleParams(panel["panel"], subtitle=panel["rests_on"], fontSize=12, frame="group")
        return alt.layer(*layers, data=values(named), width=SIZE[0], height=SIZE[1], title=title)


def _record(panel: str, variant: Variant, standing: VariantSummary) -> Row:
    against = {f.name: getattr(standing.against, f.name, None) for f in fields(Comparison)}
    return flat(
        panel=panel,
        variant=variant.name,
        tokens=standing.tokens,
        accuracy=standing.accuracy,
        on_frontier=standing.on_frontier,
        frontier_chance=standing.frontier_chance,
        tokens_per_right=standing.tokens_per_right,
        **against,
        made_tokens=variant.made_tokens,
        made_seconds=variant.made_seconds,
        seeds=len(variant.seeds),
        attempts=standing.accuracy.attempts,
        problems=standing.accuracy.problems,
    )


def _seeds(panel: str, variant: Variant) -> Records:
    found = []
    for i, seed in enumerate(variant.seeds):
        own = variant.seed == i
        tokens, right = float(variant.tokens[own].mean()), float(variant.correct[own].mean())
        found.append({"panel": panel, "variant": variant.name, "seed": seed, "tokens": tokens, "accuracy": right})
    return found


def _binomial(share: float, problems: int) -> Estimate:
    return Estimate(share, *wilson(share, problems, 0.95), problems, problems)


def _frontier(own: Records, short: dict[str, str]) -> str:
    said: dict[str, list[str]] = {"surely": [], "perhaps": [], "surely not": []}
    for name, chance in ((short[v["variant"]], v["frontier_chance"]) for v in own):
        if chance is None or 1 - SURE < chance < SURE:
            said["perhaps"].append(name if chance is None else f"{name} ({chance:.0%})")
        else:
            said["surely" if chance >= SURE else "surely not"].append(name)
    return "on the frontier: " + "; ".join(f"{how} {', '.join(names)}" for how, names in said.items() if names)


def _change(row: Row) -> str:
    ends = [row["ratio"], row["ratio_low"], row["ratio_high"]]
    if any(end is None for end in ends):
        return f"takes {row['ratio']:.2f} times the tokens"
    cut = row["ratio"] <= 1
    value, *interval = (round(100 * (1 - end if cut else end - 1)) for end in ends)
    low, high = sorted(interval)
    return f"{'cuts' if cut else 'raises'} tokens by {value} % [{low}, {high}]".replace("-", "−")


def _beyond_noise(own: Records) -> str:
    """Which published differences are more than two independent samples of so many problems would show by chance."""
    beyond: list[str] = []
    within: list[str] = []
    for r in own:
        if r["model"] != PUBLISHED_REFERENCE:
            clear = r["difference_low"] > 0 or r["difference_high"] < 0
            (beyond if clear else within).append(f"{r['model']} ({signed(r['difference'])})")
    return (
        f"{own[0]['benchmark']}, published: of the differences to {PUBLISHED_REFERENCE} in points, beyond binomial "
        f"noise on {PROBLEMS[own[0]['benchmark']]} problems: {', '.join(beyond) or 'none'}; within it: "
        f"{', '.join(within) or 'none'}. All were asked the same problems, so noise is smaller than that, but how much "
        "smaller only answers paired by problem would tell."
    )


def _frame(own: Records) -> Frame:
    """Tokens from 0; accuracy as far as intervals go, with some air."""
    most = max(p["tokens"] for p in own)
    far = max(p.get("tokens_high") or most for p in own)
    low, high = min(p["accuracy_low"] for p in own), max(p["accuracy_high"] for p in own)
    air = 0.04 * (high - low)
    return Frame((0.0, max(1.12 * most, min(1.03 * far, 1.5 * most), 1.0)), (max(0.0, low - air), high + air), *SIZE)


def _axes(frame: Frame) -> tuple[alt.X, alt.Y]:
    # Vega would round the ends, and names would no longer stand where they were placed.
    across, up = (alt.Scale(domain=list(ends), nice=False, zero=False) for ends in (frame.x, frame.y))
    x = alt.X("tokens:Q", title="mean tokens an answer", scale=across, axis=alt.Axis(format=",.0f", tickCount=6))
    return x, alt.Y("accuracy:Q", title="accuracy", scale=up, axis=alt.Axis(format="%", tickCount=6))


def _steps(own: Records, frame: Frame) -> Records:
    """The frontier as measured: the accuracy to be had for so many tokens."""
    on = sorted((p["tokens"], p["accuracy"]) for p in own if p["on_frontier"])
    corners = [(on[0][0], frame.y[0]), *on, (frame.x[1], on[-1][1])]
    return [{"tokens": tokens, "accuracy": right} for tokens, right in corners]


def _frontier_line(steps: Records, x: alt.X, y: alt.Y) -> Any:
    line = alt.Chart(values(steps)).mark_line(interpolate="step-after", color=MUTED, strokeWidth=1, strokeDash=[3, 3])
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
        dots.encode(x=x, y=y, fill=fill, tooltip=["model:N", "tokens:Q", "accuracy:Q", "aes:Q", "difference:Q"]),
        *lettering("tokens", alt.value("#5f6368")),
    ]
    problems = PROBLEMS[own[0]["benchmark"]]
    note = f"Kimi k1.5 (filled) and others; bars: binomial 95 % intervals for {problems} problems"
    title = alt.TitleParams(f"{own[0]['benchmark']}, published", subtitle=note, fontSize=12, frame="group")
    return alt.layer(*layers, data=values(named), width=SIZE[0], height=SIZE[1], title=title)
