"""Accuracy against the number of samples, by who picks the answer: what does a reward add to counting votes?

After ReasonFlux-PRM (arXiv 2506.18896, figure 5), which has no intervals, no vote weighted by the reward and no pass@n.
Above the lines stands pass@n, how often a right answer was there to be picked, from the model's own samples; each
training seed of a model is a panel of its own. Majority votes are asked, not counted: outcomes hold no answers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import altair as alt
import numpy as np

from ponder.core import Estimate, Figure, Outcome, Records, Tables, UserError
from ponder.figures import MUTED, flat, published, settings_of, span, themed, values
from ponder.figures._log import SIZE, log_axes, log_frame
from ponder.figures._published import PROBLEMS, beyond_noise, binomial
from ponder.figures._selection import compared, rest_of, reward_name
from ponder.figures._variants import panels, points, signed
from ponder.stats.columns import Ints, summed
from ponder.stats.frontier import Variant, Variants, accuracy_difference, mean_tokens, share
from ponder.stats.samples import gap_closed, pass_at, pass_by_problem

Row = dict[str, Any]
ONE, MAJORITY, PASS = "one sample", "majority vote", "pass@n"
OWN = {PASS: "#3c4248", MAJORITY: "#e8802f"}
PICKERS = ("#1f6fb4", "#2c9c69", "#8a5fbf", "#c8483f", "#5aa9dd", "#7a6a58")
ACROSS = "samples n (log scale)"
GREYS = ["#3c4248", "#7b828a", "#a2a9b0", "#c0a48a"]  # of published lines
UNKNOWN = Estimate(math.nan, math.nan, math.nan, 0, 0)
SMALL = (250, 230)  # pixels of a published panel


@dataclass(frozen=True)
class BestOf(Figure):
    by: Literal["task", "size"] = "task"  # what a panel is
    overlay: str = ""  # published lines to draw below: `prm_best_of_n`

    def estimate(self, outcomes: Sequence[Outcome]) -> Tables:
        tables: Tables = {"panels": [], "pickers": [], "passes": [], "published": []}
        for title, data, rests_on, named in _asked(outcomes, self.by):
            bare = next((v for v in data.variants if v.name == ONE), None)
            record = {"panel": title, "problems": data.problems, "rests_on": rests_on}
            tables["panels"].append({**record, "samples": int(_tried(bare).max()) if bare else 0})
            rows = [_picker(title, v, data, named, bare) for v in data.variants if v is not bare]
            tables["pickers"] += sorted(rows, key=lambda r: (r["picker"], r["n"]))
            tables["passes"] += _passes(title, bare, {r["n"] for r in rows}) if bare else []
        if self.overlay:
            tables["published"] = _published(self.overlay)
        return tables

    def findings(self, tables: Tables) -> list[str]:
        found = []
        for panel in tables["panels"]:
            own = [r for r in tables["pickers"] if r["panel"] == panel["panel"]]
            passes = {p["n"]: p for p in tables["passes"] if p["panel"] == panel["panel"]}
            for picker in dict.fromkeys(r["picker"] for r in own):
                rows = [r for r in own if r["picker"] == picker]
                if picker != MAJORITY:
                    found += [f"{panel['panel']}: {said}." for said in _against(rows)]
            most = max((r["n"] for r in own), default=0)
            last = [r for r in own if r["n"] == most]
            if most in passes and 1 in passes:
                told = ", ".join(f"{r['picker']} {span(r, 'closed', '.0%')}" for r in last)
                found.append(
                    f"{panel['panel']}: of the way from one sample ({passes[1]['accuracy']:.0%}) to pass@{most:g} "
                    f"({passes[most]['accuracy']:.0%}), closed: {told}."
                )
            elif own:
                found.append(
                    f"{panel['panel']}: pass@{most:g} isn't known: it takes {most:g} samples of the model alone, and "
                    f"there are {panel['samples']}."
                )
        for benchmark in dict.fromkeys(r["benchmark"] for r in tables["published"]):
            found.append(_published_said([r for r in tables["published"] if r["benchmark"] == benchmark]))
        return found

    def draw(self, tables: Tables) -> alt.TopLevelMixin:
        pickers = sorted({r["picker"] for r in tables["pickers"]} - {MAJORITY})
        names = [PASS, *pickers, MAJORITY]
        palette = [OWN.get(name) or PICKERS[i % len(PICKERS)] for i, name in enumerate(names, -1)]
        scale = alt.Scale(domain=names, range=palette)
        rows: list[Any] = []
        if tables["panels"]:
            shown = [_panel(tables, panel, scale) for panel in tables["panels"]]
            rows.append(alt.concat(*shown, columns=2, spacing={"row": 60, "column": 70}))
        if tables["published"]:
            rows.append(_published_row(tables["published"]))
        note = "bands: 95 % intervals over problems; pass@n: a right answer is among n samples"
        grid = alt.vconcat(*rows, spacing=40).resolve_scale(color="independent", shape="independent")
        return themed(grid.properties(title=alt.TitleParams("Accuracy by who picks from n samples", subtitle=note)))


def _asked(
    outcomes: Sequence[Outcome], by: Literal["task", "size"]
) -> Iterator[tuple[str, Variants, str, dict[str, tuple[str, int]]]]:
    """For each model that something picks from, or else for each model: its panels, and what their variants are."""
    picked = [o for o in outcomes if _picks(o)]
    rewards = {reward_name(o) for o in picked if "pick" in settings_of(o)}
    several = len({_alone(o) for o in picked or outcomes}) > 1
    for model in sorted({_alone(o) for o in picked or outcomes}):
        own = [o for o in picked if _alone(o) == model]
        by_reward = [o for o in own if "pick" in settings_of(o)]
        votes = [o for o in own if "pick" not in settings_of(o)]
        named: dict[str, tuple[str, int]] = {}
        asked = [o._replace(variant=ONE) for o in outcomes if not _picks(o) and o.model == model]
        rests = [*rest_of(by_reward, {"n", "pick", "reward"}), *("" for _ in votes)]
        for o, rest in zip([*by_reward, *votes], rests, strict=True):
            picker = _picker_name(o, len(rewards) > 1, rest)
            key = f"{picker} {settings_of(o)['n']}"
            named[key] = (picker, settings_of(o)["n"])
            asked.append(o._replace(variant=key))
        for title, data, rests_on in panels(asked, by):
            yield f"{model} | {title}" if several else title, data, rests_on, named


def _picks(outcome: Outcome) -> bool:
    last = outcome.model.rpartition(" + ")[2]
    return "n" in settings_of(outcome) and ("pick" in settings_of(outcome) or last.split(" ")[0] == "vote")


def _alone(outcome: Outcome) -> str:
    """The model that was asked n times."""
    return outcome.model.rpartition(" + ")[0] if _picks(outcome) else outcome.model


def _picker_name(outcome: Outcome, several: bool, rest: str) -> str:
    if "pick" not in settings_of(outcome):
        return MAJORITY
    reward = reward_name(outcome) if several else "reward"
    name = f"best by {reward}" if settings_of(outcome)["pick"] == "best" else f"vote weighted by {reward}"
    return ", ".join(part for part in (name, rest) if part)


def _tried(variant: Variant) -> Ints:
    return np.bincount(variant.problem).astype(np.int64)


def _right(variant: Variant) -> Ints:
    return summed(variant.correct, variant.problem).astype(np.int64)


def _picker(
    title: str, variant: Variant, data: Variants, named: dict[str, tuple[str, int]], bare: Variant | None
) -> Row:
    picker, n = named[variant.name]
    right, tokens = share(variant, variant.correct), mean_tokens(variant)
    majority = next((v for v in data.variants if named.get(v.name) == (MAJORITY, n)), None)
    gain = accuracy_difference(variant, majority) if majority and variant is not majority else None
    closed = times = None
    if bare:
        enough = _tried(bare) >= n
        tried, correct = _tried(bare)[enough], _right(bare)[enough]
        picked = variant.by_problem(variant.correct)[enough]
        closed = gap_closed(correct / tried, picked, pass_by_problem(tried, correct, n))
        times = tokens.value / mean_tokens(bare).value
    rests = {"attempts": right.attempts, "problems": right.problems}
    record = flat(panel=title, picker=picker, n=n, accuracy=right, tokens=tokens, times_tokens=times, **rests)
    return record | flat(gain=gain or UNKNOWN, closed=closed or UNKNOWN)


def _passes(title: str, bare: Variant, asked: set[int]) -> Records:
    """pass@n for 1, 2, 4, … and for what was asked, as far as there are samples."""
    tried, right = _tried(bare), _right(bare)
    most = min(int(tried.max()), max(asked, default=int(tried.max())))
    numbers = sorted({2**i for i in range(most.bit_length())} | {n for n in asked if n <= most})
    found = []
    for n in numbers:
        chance = pass_at(tried, right, n)
        found.append(flat(panel=title, n=n, accuracy=chance, attempts=chance.attempts, problems=chance.problems))
    return found


def _against(rows: Records) -> Iterator[str]:
    known = [r for r in rows if r["gain"] is not None]
    if known:
        last = known[-1]
        cost = f", for {last['times_tokens']:.1f} times the tokens of one sample" if last["times_tokens"] else ""
        told = f"{points(last, 'gain')}, paired by problem{cost}"
        yield f"with n = {last['n']}, {last['picker']} {compared(last, 'gain')} {MAJORITY}: {told}"


def _panel(tables: Tables, panel: Row, scale: alt.Scale) -> Any:
    lines = [r for r in tables["pickers"] if r["panel"] == panel["panel"]]
    passes = [{**p, "picker": PASS} for p in tables["passes"] if p["panel"] == panel["panel"]]
    frame = log_frame([*lines, *passes], "n", air=0.04)
    x, y = log_axes(frame, "n", ACROSS, [r["n"] for r in (*lines, *passes)])
    legend = alt.Legend(title=None, orient="top", columns=6, symbolOpacity=1, offset=10)
    colour = alt.Color("picker:N", scale=scale, legend=legend)
    tooltip = ["picker:N", *(f"{f}:Q" for f in ("n", "accuracy", "accuracy_low", "accuracy_high", "gain", "closed"))]
    picked, above, low = alt.Chart(values(lines)), alt.Chart(values(passes)), alt.Y("accuracy_low:Q")
    layers = [
        above.mark_area(opacity=0.08).encode(x=x, y=low, y2="accuracy_high:Q", color=colour),
        above.mark_line(strokeWidth=1.8, strokeDash=[5, 3]).encode(x=x, y=y, color=colour),
        above.mark_point(size=30, opacity=1, fill="white").encode(x=x, y=y, color=colour, tooltip=tooltip[:5]),
        picked.mark_area(opacity=0.12).encode(x=x, y=low, y2="accuracy_high:Q", color=colour),
        picked.mark_line(strokeWidth=2).encode(x=x, y=y, color=colour),
        picked.mark_point(filled=True, size=42, opacity=1).encode(x=x, y=y, color=colour, tooltip=tooltip),
    ]
    title = alt.TitleParams(panel["panel"], subtitle=panel["rests_on"], fontSize=12, frame="group")
    return alt.layer(*layers, width=SIZE[0], height=SIZE[1], title=title)


def _published(overlay: str) -> Records:
    rows = published(overlay)
    if not {"selector", "benchmark", "n"} <= rows[0].keys():
        raise UserError(f"`{overlay}` has no accuracy by n", hint='overlay = "prm_best_of_n"')
    named = ("selector", "benchmark", "n")
    return [flat(**{k: r[k] for k in named}, accuracy=binomial(r["accuracy"], r["benchmark"])) for r in rows]


def _published_said(own: Records) -> str:
    """Which leads over majority vote with the most samples are more than chance."""
    most = max(r["n"] for r in own)
    last = {r["selector"]: r["accuracy"] for r in own if r["n"] == most}
    votes, benchmark = last.pop(MAJORITY), own[0]["benchmark"]
    told: dict[bool, list[str]] = {True: [], False: []}
    for selector, right in last.items():
        told[beyond_noise(right, votes, benchmark)].append(f"{selector} ({signed(right - votes)})")
    clear, within = (", ".join(told[known]) or "none" for known in (True, False))
    return (
        f"{benchmark}, published: of the leads over {MAJORITY} with n = {most:g} in points, beyond binomial noise on "
        f"{PROBLEMS[benchmark]} problems: {clear}; within it: {within}."
    )


def _published_row(rows: Records) -> Any:
    names = list(dict.fromkeys(r["selector"] for r in rows))
    legend = alt.Legend(title=None, orient="top", columns=4, offset=10)
    shapes = alt.Scale(domain=names, range=["circle", "square", "triangle-up", "cross"])
    shape = alt.Shape("selector:N", scale=shapes, legend=legend)
    colour = alt.Color("selector:N", scale=alt.Scale(domain=names, range=GREYS), legend=legend)
    shown = []
    for benchmark in dict.fromkeys(r["benchmark"] for r in rows):
        own = [r for r in rows if r["benchmark"] == benchmark]
        votes = [r for r in own if r["selector"] == MAJORITY]
        narrow = [{**r, "accuracy_high": r["accuracy"], "accuracy_low": r["accuracy"]} for r in own]
        frame = log_frame([*narrow, *votes], "n")
        x, y = log_axes(frame, "n", ACROSS, [r["n"] for r in own])
        lines = alt.Chart(values(own))
        band = alt.Chart(values(votes)).mark_area(color=MUTED, opacity=0.12)
        layers = [
            band.encode(x=x, y=alt.Y("accuracy_low:Q"), y2="accuracy_high:Q"),
            lines.mark_line(strokeWidth=1.4).encode(x=x, y=y, color=colour),
            lines.mark_point(filled=True, size=40, opacity=1).encode(x=x, y=y, color=colour, shape=shape),
        ]
        note = f"{PROBLEMS[benchmark]} problems; band: binomial, of {MAJORITY}"
        title = alt.TitleParams(f"{benchmark}, published", subtitle=note, fontSize=12, frame="group")
        shown.append(alt.layer(*layers, width=SMALL[0], height=SMALL[1], title=title))
    return alt.concat(*shown, columns=3, spacing=40)
