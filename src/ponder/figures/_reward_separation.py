"""What `best_of` shows of each reward: how well it tells right samples from wrong ones, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import altair as alt

from ponder.core import Outcome, Records
from ponder.figures import MUTED, Row, basis, flat, rows_of, span, values
from ponder.stats.separation import ScoredSamples, separation

SMALL = (250, 200)  # pixels of a panel
CHANCE = 0.5
MOSTLY = 0.5  # fraction of the wrong samples above which most of them are meant
PERCENT = alt.Axis(format="%", tickCount=5)


class Scored(NamedTuple):
    """An attempt whose samples a reward has scored."""

    outcome: Outcome
    reward: str
    picker: str  # the name of its line, for its colour


def separations(panel: str, scored: Sequence[Scored]) -> tuple[Records, Records]:
    """Return how well each reward separates samples, and its calibration.

    A reward is judged by the attempts with the most samples.
    """
    groups: dict[str, dict[int, list[Outcome]]] = {}
    pickers: dict[str, str] = {}
    for outcome, reward, picker in scored:
        if outcome.answered and "distinct_thinkings" in outcome.details:
            by_number = groups.setdefault(reward, {})
            by_number.setdefault(_sample_count(outcome), []).append(outcome)
            pickers[reward] = min(picker, pickers.get(reward, picker))
    rows: Records = []
    bins: Records = []
    for reward, by_number in sorted(groups.items()):
        n, attempts = max(by_number.items())
        result = separation([_samples(outcome) for outcome in attempts])
        scored_by = basis(attempts)
        row = flat(
            panel=panel,
            reward=reward,
            picker=pickers[reward],
            n=n,
            pairs=result.pairs,
            auc=result.auc,
            same_thinking=result.same_thinking,
            thinkings=result.thinkings,
            wrong_in_answer=result.wrong_in_answer,
            said=result.said,
            right=result.right,
            brier=result.brier,
            attempts=result.right.attempts,
            problems=result.right.problems,
            basis=scored_by,
        )
        rows.append(row)
        for calibration in result.bins:
            row = flat(
                panel=panel,
                reward=reward,
                picker=pickers[reward],
                **calibration._asdict(),
                basis=scored_by,
            )
            bins.append(row)
    return rows, bins


def _sample_count(outcome: Outcome) -> int:
    return int(outcome.cell.chain[-1].settings["n"])


def _samples(outcome: Outcome) -> ScoredSamples:
    """Return the samples of an attempt, as `best_of` recorded them."""
    details = outcome.details
    numbers = [n for n in range(_sample_count(outcome)) if f"right_{n}" in details]
    return ScoredSamples(
        problem=(outcome.size, outcome.problem),
        totals=tuple(details[f"total_{n}"] for n in numbers),
        probabilities=tuple(details[f"probability_{n}"] for n in numbers),
        right=tuple(bool(details[f"right_{n}"]) for n in numbers),
        thinkings=details["distinct_thinkings"],
        wrong=details["wrong_samples"],
        wrong_in_answer=details["wrong_in_answer"],
    )


def separation_findings(rows: Records) -> Iterator[str]:
    """Yield sentences on one panel: each reward's AUC and calibration, and how samples differ."""
    for row in rows:
        yield (
            f"{row['panel']}: {row['reward']} ranks a right sample above a wrong one of the same "
            f"problem in {span(row, 'auc', '.0%')} of {row['pairs']:,} pairs (AUC; 50 % is "
            f"chance), so it {_verdict(row)}; it gives a sample {span(row, 'said', '.0%')} on "
            f"average, and {span(row, 'right', '.0%')} are right (squared error "
            f"{span(row, 'brier', '.2f')})"
        )
    if rows and rows[0]["wrong_in_answer"] is not None:
        yield f"{rows[0]['panel']}: {_sample_differences(rows[0])}"


def _verdict(row: Row) -> str:
    if row["auc"] is None:
        return "has nothing to rank"
    if row["auc_low"] is not None and row["auc_low"] > CHANCE:
        return "can tell them apart"
    if row["auc_high"] is not None and row["auc_high"] < CHANCE:
        return "ranks them the wrong way round"
    return "can't be shown to tell them apart"


def _sample_differences(row: Row) -> str:
    """Say what the samples of a problem differ in, and which rewards can see that."""
    clause = (
        f"all {row['n']} samples of a problem have the same thinking in "
        f"{span(row, 'same_thinking', '.0%')} of attempts, and "
        f"{span(row, 'wrong_in_answer', '.0%')} of the wrong samples have the thinking of a right "
        "one, word for word"
    )
    if row["wrong_in_answer"] > MOSTLY:
        return (
            f"{clause}. Such samples differ only in the answer, so a reward that looks for errors "
            "in the steps finds the same steps in both and can't help; only one that has learned "
            "how this model gets from its last step to the answer can"
        )
    return (
        f"{clause}: most wrong samples differ from the right ones in their steps, where a reward "
        "can see it"
    )


def separation_chart(panels: Records, rows: Records, bins: Records, scale: alt.Scale) -> Any:
    """Draw for each panel the AUC of its rewards, and their calibration."""
    charts = []
    for panel in panels:
        rewards = rows_of(rows, panel)
        if rewards:
            charts.append(_auc_panel(panel["panel"], rewards, scale))
            charts.append(_calibration_panel(panel["panel"], rows_of(bins, panel), scale))
    return alt.concat(*charts, columns=2, spacing={"row": 40, "column": 70})


def _auc_panel(title: str, rows: Records, scale: alt.Scale) -> Any:
    lows = [row["auc_low"] for row in rows if row["auc_low"] is not None]
    x_scale = alt.Scale(domain=[min([0.4, *lows]) - 0.02, 1.0], nice=False)
    x = alt.X("auc:Q", title="AUC within a problem", scale=x_scale)
    names = [row["reward"] for row in rows]
    y = alt.Y("reward:N", title=None, sort=names, axis=alt.Axis(labelLimit=160))
    colour = alt.Color("picker:N", scale=scale, legend=None)
    chance = alt.Chart(values([{"auc": CHANCE}]))
    chart = alt.Chart(values(rows))
    tooltip = ["reward:N", "auc:Q", "auc_low:Q", "auc_high:Q", "pairs:Q"]
    layers = [
        chance.mark_rule(color=MUTED, strokeDash=[4, 3]).encode(x=x),
        chart.mark_rule(strokeWidth=2).encode(
            x=alt.X("auc_low:Q"), x2="auc_high:Q", y=y, color=colour
        ),
        chart.mark_point(filled=True, size=70, opacity=1).encode(
            x=x, y=y, color=colour, tooltip=tooltip
        ),
    ]
    title_params = alt.TitleParams(
        f"{title}: right above wrong",
        subtitle="dashed: chance; bars: 95 % over problems",
        fontSize=12,
        frame="group",
    )
    height = max(60, 34 * len(rows))
    return alt.layer(*layers, width=SMALL[0], height=height, title=title_params)


def _calibration_panel(title: str, bins: Records, scale: alt.Scale) -> Any:
    unit_interval = alt.Scale(domain=[0, 1])
    x = alt.X(
        "said:Q", title="probability that the reward gives", scale=unit_interval, axis=PERCENT
    )
    y = alt.Y("right:Q", title="samples that are right", scale=unit_interval, axis=PERCENT)
    colour = alt.Color("picker:N", scale=scale, legend=None)
    diagonal = alt.Chart(values([{"said": 0, "right": 0}, {"said": 1, "right": 1}]))
    chart = alt.Chart(values(bins))
    tooltip = ["reward:N", "said:Q", "right:Q", "right_low:Q", "right_high:Q", "samples:Q"]
    layers = [
        diagonal.mark_line(color=MUTED, strokeDash=[4, 3]).encode(x=x, y=y),
        chart.mark_rule(strokeWidth=1.5).encode(
            x=x, y=alt.Y("right_low:Q"), y2="right_high:Q", color=colour
        ),
        chart.mark_line(strokeWidth=1.5).encode(x=x, y=y, color=colour, detail="reward:N"),
        chart.mark_point(filled=True, size=50, opacity=1).encode(
            x=x, y=y, color=colour, tooltip=tooltip
        ),
    ]
    title_params = alt.TitleParams(
        f"{title}: calibration",
        subtitle="dashed: calibrated; bars: 95 % over problems",
        fontSize=12,
        frame="group",
    )
    return alt.layer(*layers, width=SMALL[0], height=SMALL[1], title=title_params)
