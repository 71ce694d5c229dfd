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
    Row,
    basis,
    flat,
    pooled_findings,
    rows_of,
    span,
    themed,
    values,
)
from ponder.figures._label_placement import SIZE, log_axes, log_frame
from ponder.figures._published import (
    PROBLEMS,
    by_benchmark,
    published,
    split_by_chance,
    with_interval,
)
from ponder.figures._reward_separation import (
    Scored,
    separation_chart,
    separation_findings,
    separations,
)
from ponder.figures._students import reward_name
from ponder.figures._units import Tokens, token_columns, token_findings, token_kind
from ponder.figures._variants import (
    corrected,
    panel_title,
    panels,
    points,
    rests_on,
    tested,
    verb_of,
)
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

ONE_SAMPLE = "one sample"
MAJORITY = "majority vote"
PASS_AT_N = "pass@n"  # noqa: S105
FIXED_COLOURS = {PASS_AT_N: "#3c4248", MAJORITY: "#e8802f"}
PICKER_COLOURS = (
    *("#1f6fb4", "#2c9c69", "#8a5fbf", "#c8483f", "#5aa9dd", "#8fd0ae"),
    *("#c3a8e6", "#ef9f97", "#7a6a58", "#b8a98f", "#d670ad", "#5b6770"),
)
GREYS = ["#3c4248", "#7b828a", "#a2a9b0", "#c0a48a"]  # published lines
X_TITLE = "samples per problem, n (log scale)"
TITLE = "Accuracy of one answer picked from n samples: higher is better"
# Appended to a variant's name: a majority vote of the samples that the variant picked from.
SAME_SAMPLES = ", same samples"
UNKNOWN = Estimate(math.nan, math.nan, math.nan, 0, 0)
SMALL = (250, 230)  # pixels of a published panel
# Names of pickers, by the setting `pick` of the method `best_of`; the reward's name follows.
PICKERS = {"best": "best by", "vote": "vote weighted by", "odds": "vote by odds of"}


class Picker(NamedTuple):
    """A way to pick one answer from n samples."""

    name: str
    n: int

    @property
    def variant(self) -> str:
        return f"{self.name} {self.n}"


@dataclass(frozen=True)
class BestOf(Figure):
    by: Literal["task", "size"] = "task"  # one panel per task, or per size of each task
    overlay: Literal["", "prm_best_of_n"] = ""  # published lines to draw below
    # which to count; auto: thinking if every model reports it, else output
    tokens: Tokens = "output"

    def estimate(self, outcomes: Sequence[Outcome]) -> Tables:
        names = ("panels", "pickers", "passes", "rewards", "calibration", "published")
        tables: Tables = {name: [] for name in names}
        for panel in _panels(outcomes, self.by, token_kind(outcomes, self.tokens)):
            by_name = {variant.name: variant for variant in panel.data.variants}
            single = by_name.get(ONE_SAMPLE)
            attempts: list[Outcome] = []
            for variant_attempts in panel.outcomes.values():
                attempts += variant_attempts
            panel_row = {
                "panel": panel.title,
                "problems": panel.data.problems,
                "rests_on": panel.rests_on,
                "pooled": panel.pooled,
                **token_columns(outcomes, self.tokens),
                "samples": int(_samples_by_problem(single).max()) if single else 0,
                "basis": basis(attempts),
            }
            tables["panels"].append(panel_row)
            rows = []
            for variant in panel.data.variants:
                picker = panel.pickers.get(variant.name)
                if picker:
                    row = _picker_row(panel.title, picker, variant, by_name)
                    row["reward_tokens"] = _reward_tokens(panel.outcomes[variant.name])
                    row["basis"] = basis(panel.outcomes[variant.name])
                    rows.append(row)
            rows.sort(key=lambda row: (row["picker"], row["n"]))
            tables["pickers"] += rows
            if single:
                single_basis = basis(panel.outcomes[ONE_SAMPLE])
                for row in _pass_at_n_rows(panel.title, single, {row["n"] for row in rows}):
                    tables["passes"].append({**row, "basis": single_basis})
            rewards, bins = separations(panel.title, panel.scored)
            tables["rewards"] += rewards
            tables["calibration"] += bins
        tables["pickers"] = corrected(tables["pickers"])
        if self.overlay:
            tables["published"] = _published_rows(self.overlay)
        return tables

    def findings(self, tables: Tables) -> list[str]:
        sentences = token_findings(tables["panels"])
        sentences += pooled_findings(tables["panels"], "panel")
        for panel in tables["panels"]:
            title = panel["panel"]
            rows = rows_of(tables["pickers"], panel)
            by_picker: dict[str, Records] = {}
            for row in rows:
                by_picker.setdefault(row["picker"], []).append(row)
            for picker, picker_rows in by_picker.items():
                compared = [row for row in picker_rows if row["gain"] is not None]
                if picker != MAJORITY and compared:
                    clause = _against_majority(compared[-1], panel["token_kind"])
                    sentences.append(f"{title}: {clause}.")
            if rows:
                pass_rows = rows_of(tables["passes"], panel)
                sentences.append(f"{title}: {_gap(rows, pass_rows, panel['samples'])}.")
            for sentence in separation_findings(rows_of(tables["rewards"], panel)):
                sentences.append(f"{sentence}.")
        for benchmark, group in by_benchmark(tables["published"]).items():
            sentences.append(_published_leads(benchmark, group))
        return sentences

    def draw(self, tables: Tables) -> alt.TopLevelMixin:
        pickers = sorted({row["picker"] for row in tables["pickers"]} - {MAJORITY})
        colour_of = {PASS_AT_N: FIXED_COLOURS[PASS_AT_N]}
        for i, picker in enumerate(pickers):
            colour_of[picker] = PICKER_COLOURS[i % len(PICKER_COLOURS)]
        colour_of[MAJORITY] = FIXED_COLOURS[MAJORITY]
        scale = alt.Scale(domain=list(colour_of), range=list(colour_of.values()))
        rows: list[Any] = []
        if tables["panels"]:
            charts = [_panel_chart(tables, panel, scale) for panel in tables["panels"]]
            rows.append(alt.concat(*charts, columns=2, spacing={"row": 60, "column": 70}))
        if tables["rewards"]:
            rows.append(
                separation_chart(tables["panels"], tables["rewards"], tables["calibration"], scale)
            )
        if tables["published"]:
            rows.append(_published_charts(tables["published"]))
        note = [
            "Bands: 95 % intervals over problems, at each n by itself (pointwise).",
            "pass@n: at least one of n samples is right, which is the most that picking can reach.",
        ]
        grid = alt.vconcat(*rows, spacing=40)
        grid = grid.resolve_scale(color="independent", shape="independent")
        return themed(grid.properties(title=alt.TitleParams(TITLE, subtitle=note)))


# Panels.


class _Panel(NamedTuple):
    """The variants that pick from the samples of one model, on one task or size."""

    title: str
    data: Variants
    outcomes: Mapping[str, Sequence[Outcome]]  # of each variant
    rests_on: str
    pooled: str
    # of each variant, but not of the majority votes named with `SAME_SAMPLES`
    pickers: Mapping[str, Picker]
    scored: list[Scored]


def _panels(
    outcomes: Sequence[Outcome], by: Literal["task", "size"], tokens: TokenKind
) -> Iterator[_Panel]:
    """Yield the panels of each model whose samples are picked from.

    If the study picks from none, yield those of every model, for pass@n.
    """
    picked = [outcome for outcome in outcomes if _picking_method(outcome.cell)]
    rewards = set()
    for cell in cells_of(picked):
        if _picking_method(cell) == "best_of":
            rewards.add(reward_name(cell.chain[-1].settings["reward"]))
    several_rewards = len(rewards) > 1
    # For each model, the one that its samples come from: without the last method, if that picks.
    sampled_model = beneath(
        outcomes, lambda cell: [*cell.owners][-1:] if _picking_method(cell) else ()
    )
    models = {sampled_model[outcome.cell.model_key] for outcome in picked or outcomes}
    for model in sorted(models, key=lambda model: model.name):
        attempts: dict[str, list[Outcome]] = {}  # as stored, by variant
        for outcome in outcomes:
            if not _picking_method(outcome.cell) and outcome.cell.model_key == model.key:
                attempts.setdefault(ONE_SAMPLE, []).append(outcome)
        of_model = [o for o in picked if sampled_model[o.cell.model_key] == model]
        settings_text = _settings_text(of_model)
        pickers: dict[str, Picker] = {}
        scored: list[Scored] = []
        for outcome in of_model:
            settings = outcome.cell.chain[-1].settings
            name = MAJORITY
            if outcome.cell.model_key in settings_text:
                text = settings_text[outcome.cell.model_key]
                name = _picker_name(settings, settings["pick"], several_rewards, text)
                scored.append(Scored(outcome, reward_name(settings["reward"]), name))
            picker = Picker(name, settings["n"])
            pickers[picker.variant] = picker
            attempts.setdefault(picker.variant, []).append(outcome)
        with_same_samples = {name: list(group) for name, group in attempts.items()}
        _add_same_samples(with_same_samples, pickers, scored, several_rewards, settings_text)
        for panel in panels(with_same_samples, by, tokens):
            if not panel.data.variants:
                continue
            cells = cells_of(panel.attempts)
            stored_by_variant = {}
            stored = []
            for name, group in attempts.items():
                stored_by_variant[name] = [outcome for outcome in group if outcome.cell in cells]
                stored += stored_by_variant[name]
            yield _Panel(
                title=panel_label(panel.title, model=model.name if len(models) > 1 else ""),
                data=panel.data,
                outcomes=panel.outcomes,
                rests_on=rests_on(stored, panel.data.left_out),
                pooled=pooled(stored_by_variant.values()),
                pickers=pickers,
                scored=[attempt for attempt in scored if attempt.outcome.cell in cells],
            )


def _picking_method(cell: Cell) -> str:
    """Return the last method of the chain, if it picks from n samples; else ""."""
    last = cell.chain[-1].name if cell.chain else ""
    return last if last in ("vote", "best_of") else ""


def _settings_text(attempts: Sequence[Outcome]) -> dict[bytes, str]:
    """Return the settings of `best_of` that vary, as text for the picker's name, by model key."""
    settings = {}
    for cell in cells_of(attempts):
        if _picking_method(cell) == "best_of":
            settings[cell.model_key] = cell.chain[-1].settings
    return in_words(settings, but=("n", "pick", "reward", "seed"))


def _picker_name(
    settings: Mapping[str, Any], pick: str, several_rewards: bool, settings_text: str
) -> str:
    reward = reward_name(settings["reward"]) if several_rewards else "reward"
    name = f"{PICKERS[pick]} {reward}"
    return f"{name}, {settings_text}" if settings_text else name


def _add_same_samples(
    attempts: dict[str, list[Outcome]],
    pickers: dict[str, Picker],
    scored: Sequence[Scored],
    several_rewards: bool,
    settings_text: Mapping[bytes, str],
) -> None:
    """Add attempts that other pickers would have made from the same samples.

    `best_of` records whether a majority vote of an attempt's samples is right, and whether a vote
    by odds is, which is added only if the study doesn't run it.
    """
    run_by_study = {
        (attempt.reward, attempt.outcome.cell.chain[-1].settings["pick"]) for attempt in scored
    }
    for outcome, reward, name in scored:
        details = outcome.details
        if "right_by_majority" not in details:
            continue
        settings = outcome.cell.chain[-1].settings
        n = settings["n"]
        majority = outcome._replace(ended="right" if details["right_by_majority"] else "wrong")
        attempts.setdefault(Picker(name, n).variant + SAME_SAMPLES, []).append(majority)
        if settings["pick"] == "best" and (reward, "odds") not in run_by_study:
            text = settings_text[outcome.cell.model_key]
            by_odds = Picker(_picker_name(settings, "odds", several_rewards, text), n)
            pickers[by_odds.variant] = by_odds
            voted = outcome._replace(ended="right" if details["right_by_odds"] else "wrong")
            attempts.setdefault(by_odds.variant, []).append(voted)
            attempts.setdefault(by_odds.variant + SAME_SAMPLES, []).append(majority)


# Rows.


def _samples_by_problem(variant: Variant) -> Ints:
    """Return the number of samples of each problem."""
    return np.bincount(variant.problem).astype(np.int64)


def _right_by_problem(variant: Variant) -> Ints:
    """Return the number of right samples of each problem."""
    return summed(variant.correct, variant.problem).astype(np.int64)


def _picker_row(
    panel: str, picker: Picker, variant: Variant, by_name: Mapping[str, Variant]
) -> Row:
    """Return a picker's accuracy and tokens, with its gain over a majority vote of n samples.

    `closed` is the fraction of the gap from one sample to pass@n that it closes.
    """
    same_samples = by_name.get(variant.name + SAME_SAMPLES)
    majority = same_samples or by_name.get(Picker(MAJORITY, picker.n).variant)
    gain = UNKNOWN
    p_value = None
    if majority and variant is not majority:
        gain = accuracy_difference(variant, majority)
        p_value = difference_p(variant, majority)
    tokens = mean_tokens(variant)
    closed = UNKNOWN
    times_tokens = None
    single = by_name.get(ONE_SAMPLE)
    if single:
        enough = _samples_by_problem(single) >= picker.n
        tried = _samples_by_problem(single)[enough]
        right = _right_by_problem(single)[enough]
        picked = variant.by_problem(variant.correct)[enough]
        closed = gap_closed(right / tried, picked, pass_by_problem(tried, right, picker.n))
        single_tokens = mean_tokens(single).value
        if single_tokens:
            times_tokens = tokens.value / single_tokens
    accuracy = fraction(variant, variant.correct)
    return flat(
        panel=panel,
        picker=picker.name,
        n=picker.n,
        accuracy=accuracy,
        tokens=tokens,
        times_tokens=times_tokens,
        attempts=accuracy.attempts,
        problems=accuracy.problems,
        seeds=len(variant.seeds),
        same_samples=same_samples is not None,
        made_tokens=variant.made_tokens,
        made_seconds=variant.made_seconds,
        gain=gain,
        p_value=p_value,
        closed=closed,
    )


def _reward_tokens(attempts: Sequence[Outcome]) -> float | None:
    """Return the mean tokens per attempt that the reward model read and wrote, if recorded."""
    tokens = []
    for outcome in attempts:
        details = outcome.details
        if "reward_prompt_tokens" in details:
            tokens.append(details["reward_prompt_tokens"] + details["reward_completion_tokens"])
    return sum(tokens) / len(tokens) if tokens else None


def _pass_at_n_rows(panel: str, single: Variant, picked: set[int]) -> Records:
    """Return pass@n for n = 1, 2, 4, … and for each n in `picked`, up to the largest of these."""
    tried = _samples_by_problem(single)
    right = _right_by_problem(single)
    largest = int(tried.max())
    if picked:
        largest = min(largest, max(picked))
    numbers = {2**i for i in range(largest.bit_length())}
    numbers |= {n for n in picked if n <= largest}
    rows = []
    for n in sorted(numbers):
        accuracy = pass_at(tried, right, n)
        row = flat(
            panel=panel,
            n=n,
            accuracy=accuracy,
            attempts=accuracy.attempts,
            problems=accuracy.problems,
        )
        rows.append(row)
    return rows


def _published_rows(overlay: str) -> Records:
    records = published(overlay)
    if not {"selector", "benchmark", "n"} <= records[0].keys():
        raise UserError(f"`{overlay}` has no accuracy by n", hint='overlay = "prm_best_of_n"')
    rows = []
    for record in records:
        row = flat(
            selector=record["selector"],
            benchmark=record["benchmark"],
            n=record["n"],
            accuracy=with_interval(record["accuracy"], record["benchmark"]),
        )
        rows.append(row)
    return rows


# Sentences.


def _against_majority(row: Row, kind: TokenKind) -> str:
    """Compare a picker with a majority vote of as many samples."""
    pairing = "of the same samples" if row["same_samples"] else "paired by problem"
    if row["seeds"] > 1:
        pairing += f" and over {row['seeds']} training seeds"
    clause = (
        f"with n = {row['n']}, {row['picker']} {verb_of(row, 'gain')} {MAJORITY}: "
        f"{points(row, 'gain')}, {tested(row)}, {pairing}"
    )
    if row["times_tokens"]:
        clause += f", for {row['times_tokens']:.1f} times the {kind} tokens of one sample"
        if row["reward_tokens"]:
            clause += f" and {row['reward_tokens']:,.0f} that the reward reads and writes"
    if row["made_tokens"]:
        clause += (
            f"; trained once, with {row['made_tokens']:,.0f} tokens sampled and trained on and "
            f"{row['made_seconds']:.0f} s of CPU"
        )
    return clause


def _gap(rows: Records, pass_rows: Records, samples: int) -> str:
    """Say how much of the gap from one sample to pass@n each picker closes, with the largest n."""
    n = max(row["n"] for row in rows)
    pass_at_n = {row["n"]: row["accuracy"] for row in pass_rows}
    if n not in pass_at_n or 1 not in pass_at_n:
        return (
            f"pass@{n:g} can't be estimated: it needs {n:g} samples per problem of the model "
            f"alone, and there are {samples}"
        )
    closed = [f"{row['picker']} {span(row, 'closed', '.0%')}" for row in rows if row["n"] == n]
    return (
        f"fraction of the gap from one sample ({pass_at_n[1]:.0%}) to pass@{n:g} "
        f"({pass_at_n[n]:.0%}) that is closed: {', '.join(closed)}"
    )


def _published_leads(benchmark: str, rows: Records) -> str:
    """Say which published leads over majority vote, with the most samples, exceed chance."""
    n = max(row["n"] for row in rows)
    accuracy = {}
    for row in rows:
        if row["n"] == n:
            accuracy[row["selector"]] = with_interval(row["accuracy"], benchmark)
    majority = accuracy.pop(MAJORITY)
    leads = {selector: newcombe(right, majority) for selector, right in accuracy.items()}
    beyond, within = split_by_chance(leads)
    return (
        f"{benchmark}, published: leads over {MAJORITY} with n = {n:g} in points, beyond binomial "
        f"chance on {PROBLEMS[benchmark]} problems: {beyond}; within it: {within}."
    )


# Charts.


def _panel_chart(tables: Tables, panel: Row, scale: alt.Scale) -> Any:
    picker_rows = rows_of(tables["pickers"], panel)
    pass_rows = [{**row, "picker": PASS_AT_N} for row in rows_of(tables["passes"], panel)]
    rows = [*picker_rows, *pass_rows]
    frame = log_frame(rows, "n", air=0.04)
    x, y = log_axes(frame, "n", X_TITLE, [row["n"] for row in rows])
    low = alt.Y("accuracy_low:Q")
    legend = alt.Legend(title=None, orient="top", columns=6, symbolOpacity=1, offset=10)
    colour = alt.Color("picker:N", scale=scale, legend=legend)
    tooltip = ["picker:N", "n:Q", "accuracy:Q", "accuracy_low:Q", "accuracy_high:Q"]
    picker_tooltip = [*tooltip, "gain:Q", "closed:Q", "reward_tokens:Q"]
    pass_chart = alt.Chart(values(pass_rows))
    picker_chart = alt.Chart(values(picker_rows))
    layers = [
        pass_chart.mark_area(opacity=0.08).encode(x=x, y=low, y2="accuracy_high:Q", color=colour),
        pass_chart.mark_line(strokeWidth=1.8, strokeDash=[5, 3]).encode(x=x, y=y, color=colour),
        pass_chart.mark_point(size=30, opacity=1, fill="white").encode(
            x=x, y=y, color=colour, tooltip=tooltip
        ),
        picker_chart.mark_area(opacity=0.12).encode(x=x, y=low, y2="accuracy_high:Q", color=colour),
        picker_chart.mark_line(strokeWidth=2).encode(x=x, y=y, color=colour),
        picker_chart.mark_point(filled=True, size=42, opacity=1).encode(
            x=x, y=y, color=colour, tooltip=picker_tooltip
        ),
    ]
    return alt.layer(*layers, width=SIZE[0], height=SIZE[1], title=panel_title(panel, SIZE[0]))


def _published_charts(rows: Records) -> Any:
    """Draw a panel per benchmark, with a grey line per selector."""
    selectors = list(dict.fromkeys(row["selector"] for row in rows))
    legend = alt.Legend(title=None, orient="top", columns=4, offset=10)
    shapes = alt.Scale(domain=selectors, range=["circle", "square", "triangle-up", "cross"])
    shape = alt.Shape("selector:N", scale=shapes, legend=legend)
    colour = alt.Color("selector:N", scale=alt.Scale(domain=selectors, range=GREYS), legend=legend)
    charts = []
    for benchmark, group in by_benchmark(rows).items():
        majority = [row for row in group if row["selector"] == MAJORITY]
        without_intervals = []
        for row in group:
            accuracy = row["accuracy"]
            without_intervals.append({**row, "accuracy_high": accuracy, "accuracy_low": accuracy})
        frame = log_frame([*without_intervals, *majority], "n")
        x, y = log_axes(frame, "n", X_TITLE, [row["n"] for row in group])
        band = alt.Chart(values(majority)).mark_area(color=MUTED, opacity=0.12)
        lines = alt.Chart(values(group))
        layers = [
            band.encode(x=x, y=alt.Y("accuracy_low:Q"), y2="accuracy_high:Q"),
            lines.mark_line(strokeWidth=1.4).encode(x=x, y=y, color=colour),
            lines.mark_point(filled=True, size=40, opacity=1).encode(
                x=x, y=y, color=colour, shape=shape
            ),
        ]
        title = alt.TitleParams(
            f"{benchmark}, published",
            subtitle=f"{PROBLEMS[benchmark]} problems; band: binomial 95 % of {MAJORITY}",
            fontSize=12,
            frame="group",
        )
        charts.append(alt.layer(*layers, width=SMALL[0], height=SMALL[1], title=title))
    return alt.concat(*charts, columns=3, spacing=40)
