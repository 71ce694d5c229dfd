"""What the figure `best_of` shows of each reward: whether it tells right samples from wrong ones,
and why not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import altair as alt

from ponder.core import Outcome, Records
from ponder.figures import MUTED, basis, flat, span, values
from ponder.stats.separation import ScoredSamples, separation

Row = dict[str, Any]
SMALL = (250, 200)  # pixels of a panel
CHANCE = 0.5
MOSTLY = 0.5  # fraction of the wrong samples from which on "mostly" is said


def picked(outcome: Outcome) -> ScoredSamples | None:
    """The samples of an attempt, as `best_of` recorded them; None if it didn't."""
    known = outcome.details
    if "distinct_thinkings" not in known:
        return None
    numbers = [n for n in range(int(outcome.cell.chain[-1].settings["n"])) if f"right_{n}" in known]
    return ScoredSamples(
        problem=(outcome.size, outcome.problem),
        totals=tuple(known[f"total_{n}"] for n in numbers),
        probabilities=tuple(known[f"probability_{n}"] for n in numbers),
        right=tuple(bool(known[f"right_{n}"]) for n in numbers),
        thinkings=known["distinct_thinkings"],
        wrong=known["wrong_samples"],
        wrong_in_answer=known["wrong_in_answer"],
    )


class Scored(NamedTuple):
    """An attempt whose samples a reward has scored."""

    outcome: Outcome
    reward: str
    picker: str  # the name of its line, for its colour


def separations(panel: str, scored: Sequence[Scored]) -> tuple[Records, Records]:
    """For each reward how well it separates samples, and its calibration; with the most samples
    that it was given.
    """
    groups: dict[str, list[tuple[Outcome, ScoredSamples]]] = {}
    pickers: dict[str, str] = {}
    for o, reward, picker in scored:
        if o.answered and (one := picked(o)):
            groups.setdefault(reward, []).append((o, one))
            pickers[reward] = min(picker, pickers.get(reward, picker))
    rows: Records = []
    bins: Records = []
    for reward in sorted(groups):
        most = max(_samples(o) for o, _ in groups[reward])
        with_most = [(o, one) for o, one in groups[reward] if _samples(o) == most]
        found = separation([one for _, one in with_most])
        scored_by = basis(o for o, _ in with_most)
        named = {
            "panel": panel,
            "reward": reward,
            "picker": pickers[reward],
            "n": most,
            "pairs": found.pairs,
        }
        names = ("auc", "same_thinking", "thinkings", "wrong_in_answer", "said", "right", "brier")
        rests = {"attempts": found.right.attempts, "problems": found.right.problems}
        rows.append(
            flat(
                **named, **{name: getattr(found, name) for name in names}, **rests, basis=scored_by
            )
        )
        for bin_ in found.bins:
            bins.append(
                flat(
                    panel=panel,
                    reward=reward,
                    picker=pickers[reward],
                    **bin_._asdict(),
                    basis=scored_by,
                )
            )
    return rows, bins


def _samples(outcome: Outcome) -> int:
    return int(outcome.cell.chain[-1].settings["n"])


def separation_findings(rows: Records) -> Iterator[str]:
    """Sentences on one panel: each reward's AUC and calibration, and what the samples leave to tell
    apart.
    """
    for row in rows:
        verdict = _verdict(row)
        yield (
            f"{row['panel']}: {row['reward']} ranks a right sample above a wrong one of the same problem in "
            f"{span(row, 'auc', '.0%')} of {row['pairs']:,} pairs (AUC; 50 % is chance), so it {verdict}; it gives a "
            f"sample {span(row, 'said', '.0%')} on average, and {span(row, 'right', '.0%')} are right (squared error "
            f"{span(row, 'brier', '.2f')})"
        )
    if rows and (why := _why(rows[0])):
        yield f"{rows[0]['panel']}: {why}"


def _verdict(row: Row) -> str:
    if row["auc"] is None:
        return "has nothing to rank"
    if row["auc_low"] is not None and row["auc_low"] > CHANCE:
        return "can tell them apart"
    backwards = row["auc_high"] is not None and row["auc_high"] < CHANCE
    return "ranks them the wrong way round" if backwards else "can't be shown to tell them apart"


def _why(row: Row) -> str:
    """What the samples of a problem differ in, and which rewards that leaves out."""
    if row["wrong_in_answer"] is None:
        return ""
    same = f"all {row['n']} samples of a problem have the same thinking in {span(row, 'same_thinking', '.0%')} of attempts"
    shared = f"{span(row, 'wrong_in_answer', '.0%')} of the wrong samples have the thinking of a right one, word for word"
    if row["wrong_in_answer"] > MOSTLY:
        return (
            f"{same}, and {shared}. Such samples differ only in the answer, so a reward that looks for errors in the "
            "steps finds the same steps in both and can't help; only one that has learned how this model gets from its "
            "last step to the answer can"
        )
    return f"{same}, and {shared}: most wrong samples differ from the right ones in their steps, where a reward can see it"


def separation_chart(rows: Records, bins: Records, scale: alt.Scale) -> Any:
    """For each panel the AUC of its rewards, and their calibration."""
    shown = []
    for panel in dict.fromkeys(r["panel"] for r in rows):
        own, told = ([r for r in part if r["panel"] == panel] for part in (rows, bins))
        shown += [_auc(panel, own, scale), _calibration(panel, told, scale)]
    return alt.concat(*shown, columns=2, spacing={"row": 40, "column": 70})


def _auc(panel: str, own: Records, scale: alt.Scale) -> Any:
    names = [r["reward"] for r in own]
    low = min([0.4, *(r["auc_low"] for r in own if r["auc_low"] is not None)])
    x = alt.X(
        "auc:Q", title="AUC within a problem", scale=alt.Scale(domain=[low - 0.02, 1.0], nice=False)
    )
    y = alt.Y("reward:N", title=None, sort=names, axis=alt.Axis(labelLimit=160))
    colour = alt.Color("picker:N", scale=scale, legend=None)
    base = alt.Chart(values(own))
    line = (
        alt.Chart(values([{"auc": CHANCE}])).mark_rule(color=MUTED, strokeDash=[4, 3]).encode(x=x)
    )
    tips = ["reward:N", *(f"{f}:Q" for f in ("auc", "auc_low", "auc_high", "pairs"))]
    bars = base.mark_rule(strokeWidth=2).encode(
        x=alt.X("auc_low:Q"), x2="auc_high:Q", y=y, color=colour
    )
    dots = base.mark_point(filled=True, size=70, opacity=1).encode(
        x=x, y=y, color=colour, tooltip=tips
    )
    note = "dashed: chance; bars: 95 % over problems"
    title = alt.TitleParams(
        f"{panel}: right above wrong", subtitle=note, fontSize=12, frame="group"
    )
    return alt.layer(line, bars, dots, width=SMALL[0], height=max(60, 34 * len(own)), title=title)


def _calibration(panel: str, told: Records, scale: alt.Scale) -> Any:
    percent = alt.Axis(format="%", tickCount=5)
    ends = alt.Scale(domain=[0, 1])
    x = alt.X("said:Q", title="probability that the reward gives", scale=ends, axis=percent)
    y = alt.Y("right:Q", title="samples that are right", scale=ends, axis=percent)
    colour = alt.Color("picker:N", scale=scale, legend=None)
    diagonal = alt.Chart(values([{"said": 0, "right": 0}, {"said": 1, "right": 1}]))
    base = alt.Chart(values(told))
    tips = [
        "reward:N",
        *(f"{f}:Q" for f in ("said", "right", "right_low", "right_high", "samples")),
    ]
    layers = [
        diagonal.mark_line(color=MUTED, strokeDash=[4, 3]).encode(x=x, y=y),
        base.mark_rule(strokeWidth=1.5).encode(
            x=x, y=alt.Y("right_low:Q"), y2="right_high:Q", color=colour
        ),
        base.mark_line(strokeWidth=1.5).encode(x=x, y=y, color=colour, detail="reward:N"),
        base.mark_point(filled=True, size=50, opacity=1).encode(
            x=x, y=y, color=colour, tooltip=tips
        ),
    ]
    note = "dashed: calibrated; bars: 95 % over problems"
    title = alt.TitleParams(f"{panel}: calibration", subtitle=note, fontSize=12, frame="group")
    return alt.layer(*layers, width=SMALL[0], height=SMALL[1], title=title)
