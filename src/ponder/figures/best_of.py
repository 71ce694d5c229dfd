"""Draws accuracy against the number of samples n, one line per way to pick one of the n answers,
below pass@n.

After ReasonFlux-PRM (arXiv 2506.18896, figure 5), which has no intervals, no vote weighted by the
reward and no pass@n. pass@n, how often at least one of n samples is right, is estimated from the
model's own samples; it bounds what picking can reach. Majority votes are run by the method `vote`,
because outcomes hold no answers to count. Each training seed of a model has a panel of its own; the
seeds of a reward that is trained on the model's samples are one line. Below, for each reward: how
often it ranks a right sample above a wrong one of the same problem, and its calibration.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import altair as alt
import numpy as np

from ponder.core import Cell, Estimate, Figure, Outcome, Records, Tables, TokenKind, UserError
from ponder.figures import (
    MUTED,
    basis,
    counts,
    flat,
    pooled_findings,
    published,
    span,
    themed,
    values,
)
from ponder.figures._log import SIZE, log_axes, log_frame
from ponder.figures._published import PROBLEMS, on_benchmark, split_by_chance
from ponder.figures._selection import reward_name
from ponder.figures._separation import Scored, separation_chart, separation_findings, separations
from ponder.figures._tokens import Tokens, counted, token_findings, token_kind
from ponder.figures._variants import compared, corrected, panel_title, panels, points, tested
from ponder.stats.columns import Ints, summed
from ponder.stats.frontier import (
    Variant,
    Variants,
    accuracy_difference,
    difference_p,
    fraction,
    mean_tokens,
)
from ponder.stats.paired import newcombe
from ponder.stats.samples import gap_closed, pass_at, pass_by_problem
from ponder.study.labels import beneath, cells_of, in_words, panel_label, pooled

Row = dict[str, Any]
ONE, MAJORITY, PASS = "one sample", "majority vote", "pass@n"
OWN = {PASS: "#3c4248", MAJORITY: "#e8802f"}
PICKERS = (
    *("#1f6fb4", "#2c9c69", "#8a5fbf", "#c8483f", "#5aa9dd", "#8fd0ae"),
    *("#c3a8e6", "#ef9f97", "#7a6a58", "#b8a98f", "#d670ad", "#5b6770"),
)
ACROSS = "samples per problem, n (log scale)"
GREYS = ["#3c4248", "#7b828a", "#a2a9b0", "#c0a48a"]  # published lines
TITLE = "Accuracy of one answer picked from n samples: higher is better"
SAME = ", same samples"  # after a variant's name: the majority vote of its own samples
UNKNOWN = Estimate(math.nan, math.nan, math.nan, 0, 0)
SMALL = (250, 230)  # pixels of a published panel


@dataclass(frozen=True)
class BestOf(Figure):
    by: Literal["task", "size"] = "task"  # one panel per task, or per size of each task
    overlay: Literal["", "prm_best_of_n"] = ""  # published lines to draw below
    # which to count; auto: thinking if every model reports it, else output
    tokens: Tokens = "output"

    def estimate(self, outcomes: Sequence[Outcome]) -> Tables:
        tables: Tables = {
            name: []
            for name in ("panels", "pickers", "passes", "rewards", "calibration", "published")
        }
        kind = token_kind(outcomes, self.tokens)
        for panel in _asked(outcomes, self.by, kind):
            title, data = panel.title, panel.data
            single = next((v for v in data.variants if v.name == ONE), None)
            record = {
                "panel": title,
                "problems": data.problems,
                "rests_on": panel.rests_on,
                "pooled": panel.pooled,
            }
            record |= counted(outcomes, self.tokens)
            record["samples"] = int(_tried(single).max()) if single else 0
            every = [o for own in panel.outcomes.values() for o in own]
            tables["panels"].append({**record, "basis": basis(every)})
            rows = []
            for v in data.variants:
                if v.name in panel.named:
                    row = _picker(title, v, data, panel.named, single)
                    row |= {
                        "reward_tokens": panel.read.get(v.name),
                        "basis": basis(panel.outcomes[v.name]),
                    }
                    rows.append(row)
            tables["pickers"] += sorted(rows, key=lambda r: (r["picker"], r["n"]))
            if single:
                passes = _passes(title, single, {r["n"] for r in rows})
                tables["passes"] += [{**row, "basis": basis(panel.outcomes[ONE])} for row in passes]
            separated, bins = separations(title, panel.scored)
            tables["rewards"] += separated
            tables["calibration"] += bins
        tables["pickers"] = corrected(tables["pickers"])
        if self.overlay:
            tables["published"] = _published(self.overlay)
        return tables

    def findings(self, tables: Tables) -> list[str]:
        sentences = token_findings(tables["panels"]) + pooled_findings(tables["panels"], "panel")
        for panel in tables["panels"]:
            own = [r for r in tables["pickers"] if r["panel"] == panel["panel"]]
            passes = {p["n"]: p for p in tables["passes"] if p["panel"] == panel["panel"]}
            for picker in dict.fromkeys(r["picker"] for r in own):
                rows = [r for r in own if r["picker"] == picker]
                if picker != MAJORITY:
                    sentences += [
                        f"{panel['panel']}: {said}." for said in _against(rows, panel["token_kind"])
                    ]
            most = max((r["n"] for r in own), default=0)
            last = [r for r in own if r["n"] == most]
            if most in passes and 1 in passes:
                told = ", ".join(f"{r['picker']} {span(r, 'closed', '.0%')}" for r in last)
                sentences.append(
                    f"{panel['panel']}: fraction of the gap from one sample ({passes[1]['accuracy']:.0%}) to "
                    f"pass@{most:g} ({passes[most]['accuracy']:.0%}) that is closed: {told}."
                )
            elif own:
                sentences.append(
                    f"{panel['panel']}: pass@{most:g} can't be estimated: it needs {most:g} samples per problem of the "
                    f"model alone, and there are {panel['samples']}."
                )
            rewards = [r for r in tables["rewards"] if r["panel"] == panel["panel"]]
            sentences += [f"{said}." for said in separation_findings(rewards)]
        for benchmark in dict.fromkeys(r["benchmark"] for r in tables["published"]):
            sentences.append(
                _leads([r for r in tables["published"] if r["benchmark"] == benchmark])
            )
        return sentences

    def draw(self, tables: Tables) -> alt.TopLevelMixin:
        pickers = sorted({r["picker"] for r in tables["pickers"]} - {MAJORITY})
        names = [PASS, *pickers, MAJORITY]
        palette = [OWN.get(name) or PICKERS[i % len(PICKERS)] for i, name in enumerate(names, -1)]
        scale = alt.Scale(domain=names, range=palette)
        rows: list[Any] = []
        if tables["panels"]:
            shown = [_panel(tables, panel, scale) for panel in tables["panels"]]
            rows.append(alt.concat(*shown, columns=2, spacing={"row": 60, "column": 70}))
        if tables["rewards"]:
            rows.append(separation_chart(tables["rewards"], tables["calibration"], scale))
        if tables["published"]:
            rows.append(_published_row(tables["published"]))
        note = [
            "Bands: 95 % intervals over problems, at each n by itself (pointwise).",
            "pass@n: at least one of n samples is right, which is the most that picking can reach.",
        ]
        grid = alt.vconcat(*rows, spacing=40).resolve_scale(
            color="independent", shape="independent"
        )
        return themed(grid.properties(title=alt.TitleParams(TITLE, subtitle=note)))


class _Panel(NamedTuple):
    """What was picked from the samples of one model."""

    title: str
    data: Variants
    outcomes: Mapping[str, Sequence[Outcome]]  # of each variant
    rests_on: str
    pooled: str
    # each variant's picker and n; those on the same samples aren't in it
    named: dict[str, tuple[str, int]]
    read: dict[str, float]  # what the reward has read and written for each variant
    scored: list[Scored]


def _asked(
    outcomes: Sequence[Outcome], by: Literal["task", "size"], tokens: TokenKind
) -> Iterator[_Panel]:
    """The panels of each model that samples are picked from, or of every model, if none is."""
    picked = [o for o in outcomes if _picks(o.cell)]
    rewards = {
        reward_name(cell.chain[-1].settings["reward"])
        for cell in cells_of(picked)
        if _picks(cell) == "best_of"
    }
    sampled = beneath(outcomes, lambda cell: [*cell.owners][-1:] if _picks(cell) else ())
    models = sorted(
        {sampled[o.cell.model_key] for o in picked or outcomes}, key=lambda model: model.name
    )
    for model in models:
        own = [o for o in picked if sampled[o.cell.model_key] == model]
        named: dict[str, tuple[str, int]] = {}
        real: dict[str, list[Outcome]] = {}
        if alone := [o for o in outcomes if not _picks(o.cell) and o.cell.model_key == model.key]:
            real[ONE] = alone
        cells = {cell.model_key: cell for cell in cells_of(own) if _picks(cell) == "best_of"}
        rests = in_words(
            {key: cell.chain[-1].settings for key, cell in cells.items()},
            but=("n", "pick", "reward", "seed"),
        )
        scored: list[Scored] = []
        for o in own:
            settings = o.cell.chain[-1].settings
            picker, n = MAJORITY, settings["n"]
            if o.cell.model_key in rests:
                picker = _picker_name(settings, len(rewards) > 1, rests[o.cell.model_key])
                scored.append(Scored(o, reward_name(settings["reward"]), picker))
            named[f"{picker} {n}"] = (picker, n)
            real.setdefault(f"{picker} {n}", []).append(o)
        every = dict(real)
        for name, added in _on_the_same_samples(scored, named, len(rewards) > 1, rests).items():
            every[name] = [*every.get(name, ()), *added]
        for panel in panels(every, by, tokens):
            if panel.data.variants:
                cells_here = cells_of(panel.attempts)
                asked = {
                    name: [o for o in own if o.cell in cells_here] for name, own in real.items()
                }
                left_out = panel.data.left_out
                yield _Panel(
                    title=panel_label(panel.title, model=model.name if len(models) > 1 else ""),
                    data=panel.data,
                    outcomes=panel.outcomes,
                    rests_on=counts([o for own in asked.values() for o in own])
                    + (
                        f", {left_out:,} problems that not all answered left out"
                        if left_out
                        else ""
                    ),
                    pooled=pooled(asked.values()),
                    named=named,
                    read=_reward_tokens(panel.outcomes),
                    scored=[one for one in scored if one.outcome.cell in cells_here],
                )


def _on_the_same_samples(
    scored: Sequence[Scored],
    named: dict[str, tuple[str, int]],
    several: bool,
    rests: Mapping[bytes, str],
) -> dict[str, list[Outcome]]:
    """What a majority vote picks from the samples of each attempt and, if no attempt does, a vote
    by odds.

    Both are recorded by `best_of`. Votes by odds are added to `named`.
    """
    run = {(one.reward, one.outcome.cell.chain[-1].settings["pick"]) for one in scored}
    added: dict[str, list[Outcome]] = {}
    for o, reward, picker in scored:
        if "right_by_majority" not in o.details:
            continue
        settings = o.cell.chain[-1].settings
        n = settings["n"]
        majority = o._replace(ended="right" if o.details["right_by_majority"] else "wrong")
        added.setdefault(f"{picker} {n}{SAME}", []).append(majority)
        if settings["pick"] == "best" and (reward, "odds") not in run:
            by_odds = _picker_name({**settings, "pick": "odds"}, several, rests[o.cell.model_key])
            named[f"{by_odds} {n}"] = (by_odds, n)
            voted = o._replace(ended="right" if o.details["right_by_odds"] else "wrong")
            added.setdefault(f"{by_odds} {n}", []).append(voted)
            added.setdefault(f"{by_odds} {n}{SAME}", []).append(majority)
    return added


def _reward_tokens(outcomes: Mapping[str, Sequence[Outcome]]) -> dict[str, float]:
    """The tokens per answer that the reward of each variant has read and written, where that is
    recorded.
    """
    means = {}
    for variant, own in outcomes.items():
        tokens = [
            o.details["reward_prompt_tokens"] + o.details["reward_completion_tokens"]
            for o in own
            if "reward_prompt_tokens" in o.details
        ]
        if tokens:
            means[variant] = sum(tokens) / len(tokens)
    return means


def _picks(cell: Cell) -> str:
    """The last method of the chain, if it picks from n samples; else ""."""
    last = cell.chain[-1].name if cell.chain else ""
    return last if last in ("vote", "best_of") else ""


def _picker_name(settings: Mapping[str, Any], several: bool, rest: str) -> str:
    reward = reward_name(settings["reward"]) if several else "reward"
    name = {"best": "best by", "vote": "vote weighted by", "odds": "vote by odds of"}[
        settings["pick"]
    ] + f" {reward}"
    return ", ".join(part for part in (name, rest) if part)


def _tried(variant: Variant) -> Ints:
    return np.bincount(variant.problem).astype(np.int64)


def _right(variant: Variant) -> Ints:
    return summed(variant.correct, variant.problem).astype(np.int64)


def _picker(
    title: str,
    variant: Variant,
    data: Variants,
    named: dict[str, tuple[str, int]],
    single: Variant | None,
) -> Row:
    picker, n = named[variant.name]
    right, tokens = fraction(variant, variant.correct), mean_tokens(variant)
    same = next((v for v in data.variants if v.name == variant.name + SAME), None)
    majority = same or next((v for v in data.variants if named.get(v.name) == (MAJORITY, n)), None)
    gain = accuracy_difference(variant, majority) if majority and variant is not majority else None
    closed = times = None
    if single:
        enough = _tried(single) >= n
        tried, correct = _tried(single)[enough], _right(single)[enough]
        picked = variant.by_problem(variant.correct)[enough]
        closed = gap_closed(correct / tried, picked, pass_by_problem(tried, correct, n))
        alone = mean_tokens(single).value
        times = tokens.value / alone if alone else None
    rests: Row = {
        "attempts": right.attempts,
        "problems": right.problems,
        "seeds": len(variant.seeds),
    }
    rests |= {
        "same_samples": same is not None,
        "made_tokens": variant.made_tokens,
        "made_seconds": variant.made_seconds,
    }
    record = flat(
        panel=title, picker=picker, n=n, accuracy=right, tokens=tokens, times_tokens=times, **rests
    )
    p = difference_p(variant, majority) if majority and gain else None
    return record | flat(gain=gain or UNKNOWN, p_value=p, closed=closed or UNKNOWN)


def _passes(title: str, single: Variant, asked: set[int]) -> Records:
    """pass@n for n = 1, 2, 4, … and for the n that were asked, as far as there are samples."""
    tried, right = _tried(single), _right(single)
    most = min(int(tried.max()), max(asked, default=int(tried.max())))
    numbers = sorted({2**i for i in range(most.bit_length())} | {n for n in asked if n <= most})
    passes = [(n, pass_at(tried, right, n)) for n in numbers]
    return [
        flat(panel=title, n=n, accuracy=p, attempts=p.attempts, problems=p.problems)
        for n, p in passes
    ]


def _against(rows: Records, kind: TokenKind) -> Iterator[str]:
    known = [r for r in rows if r["gain"] is not None]
    if known:
        last = known[-1]
        cost = (
            f", for {last['times_tokens']:.1f} times the {kind} tokens of one sample"
            if last["times_tokens"]
            else ""
        )
        read = (
            f" and {last['reward_tokens']:,.0f} that the reward reads and writes"
            if last["reward_tokens"]
            else ""
        )
        told = (
            f"{points(last, 'gain')}, {tested(last)}, {_paired(last)}{cost}{read if cost else ''}"
        )
        yield f"with n = {last['n']}, {last['picker']} {compared(last, 'gain')} {MAJORITY}: {told}{_made(last)}"


def _paired(row: Row) -> str:
    how = "of the same samples" if row["same_samples"] else "paired by problem"
    return f"{how} and over {row['seeds']} training seeds" if row["seeds"] > 1 else how


def _made(row: Row) -> str:
    """What training the reward took, once, if Ponder trained it."""
    if not row["made_tokens"]:
        return ""
    tokens, seconds = row["made_tokens"], row["made_seconds"]
    return (
        f"; made once, with {tokens:,.0f} tokens sampled and trained on and {seconds:.0f} s of CPU"
    )


def _panel(tables: Tables, panel: Row, scale: alt.Scale) -> Any:
    lines = [r for r in tables["pickers"] if r["panel"] == panel["panel"]]
    passes = [{**p, "picker": PASS} for p in tables["passes"] if p["panel"] == panel["panel"]]
    frame = log_frame([*lines, *passes], "n", air=0.04)
    x, y = log_axes(frame, "n", ACROSS, [r["n"] for r in (*lines, *passes)])
    legend = alt.Legend(title=None, orient="top", columns=6, symbolOpacity=1, offset=10)
    colour = alt.Color("picker:N", scale=scale, legend=legend)
    tooltip = [
        "picker:N",
        *(
            f"{f}:Q"
            for f in (
                "n",
                "accuracy",
                "accuracy_low",
                "accuracy_high",
                "gain",
                "closed",
                "reward_tokens",
            )
        ),
    ]
    picked, above, low = (
        alt.Chart(values(lines)),
        alt.Chart(values(passes)),
        alt.Y("accuracy_low:Q"),
    )
    layers = [
        above.mark_area(opacity=0.08).encode(x=x, y=low, y2="accuracy_high:Q", color=colour),
        above.mark_line(strokeWidth=1.8, strokeDash=[5, 3]).encode(x=x, y=y, color=colour),
        above.mark_point(size=30, opacity=1, fill="white").encode(
            x=x, y=y, color=colour, tooltip=tooltip[:5]
        ),
        picked.mark_area(opacity=0.12).encode(x=x, y=low, y2="accuracy_high:Q", color=colour),
        picked.mark_line(strokeWidth=2).encode(x=x, y=y, color=colour),
        picked.mark_point(filled=True, size=42, opacity=1).encode(
            x=x, y=y, color=colour, tooltip=tooltip
        ),
    ]
    return alt.layer(*layers, width=SIZE[0], height=SIZE[1], title=panel_title(panel, SIZE[0]))


def _published(overlay: str) -> Records:
    rows = published(overlay)
    if not {"selector", "benchmark", "n"} <= rows[0].keys():
        raise UserError(f"`{overlay}` has no accuracy by n", hint='overlay = "prm_best_of_n"')
    named = ("selector", "benchmark", "n")
    return [
        flat(**{k: r[k] for k in named}, accuracy=on_benchmark(r["accuracy"], r["benchmark"]))
        for r in rows
    ]


def _leads(own: Records) -> str:
    """Which published leads over majority vote, with the most samples, exceed chance."""
    most, benchmark = max(r["n"] for r in own), own[0]["benchmark"]
    last = {r["selector"]: on_benchmark(r["accuracy"], benchmark) for r in own if r["n"] == most}
    votes = last.pop(MAJORITY)
    beyond, within = split_by_chance(
        {selector: newcombe(right, votes) for selector, right in last.items()}
    )
    return (
        f"{benchmark}, published: leads over {MAJORITY} with n = {most:g} in points, beyond binomial chance on "
        f"{PROBLEMS[benchmark]} problems: {beyond}; within it: {within}."
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
            lines.mark_point(filled=True, size=40, opacity=1).encode(
                x=x, y=y, color=colour, shape=shape
            ),
        ]
        note = f"{PROBLEMS[benchmark]} problems; band: binomial 95 % of {MAJORITY}"
        title = alt.TitleParams(
            f"{benchmark}, published", subtitle=note, fontSize=12, frame="group"
        )
        shown.append(alt.layer(*layers, width=SMALL[0], height=SMALL[1], title=title))
    return alt.concat(*shown, columns=3, spacing=40)
