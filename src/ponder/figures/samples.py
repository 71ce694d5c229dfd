"""Draws pass@k and maj@k against the number of samples k, one colour per model, from the samples of
each problem.

pass@k, how often at least one of k samples is right, is the unbiased estimator of Chen et al. 2021
(Codex). maj@k, how often the majority vote of k samples is right (self-consistency, Wang et al.
2022), is computed the same way: over all subsets of k of the stored samples, ties split evenly, so
nothing more is asked. Both have 95 % intervals clustered by problem. The tables have the tokens
that k samples take, and the figure can be drawn against these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import altair as alt
import numpy as np

from ponder.core import Estimate, Figure, Outcome, Records, Tables
from ponder.figures import basis, counts, flat, pooled_findings, series_colour, span, themed, values
from ponder.figures._log import SIZE, log_axes, log_frame
from ponder.figures._tokens import TITLES, Tokens, counted, token_findings, token_kind
from ponder.figures._variants import panel_title
from ponder.stats.accuracy import mean
from ponder.stats.columns import clusters, one_series
from ponder.stats.samples import Votes, majority_at, pass_at
from ponder.study.labels import model_labels, panel_label, pooled, task_labels

Row = dict[str, Any]
PASS, MAJORITY = "pass@k: at least one is right", "maj@k: the majority vote is right"
TITLE = "Accuracy of k samples per problem"


@dataclass(frozen=True)
class Samples(Figure):
    by: Literal["task", "size"] = "task"  # one panel per task, or per size of each task
    # x axis: the number of samples, or the tokens that they take
    against: Literal["samples", "tokens"] = "samples"
    # which to count; auto: thinking if every model reports it, else output
    tokens: Tokens = "output"

    counts_votes: ClassVar[bool] = True

    def estimate(self, outcomes: Sequence[Outcome]) -> Tables:
        tables: Tables = {"panels": [], "samples": []}
        kind, names = token_kind(outcomes, self.tokens), model_labels(outcomes)
        for title, part in _panels(outcomes, self.by):
            models: dict[str, list[Outcome]] = {}
            for o in part:
                models.setdefault(names[o.cell.model_key], []).append(o)
            record = {"panel": title, "rests_on": counts(part), "pooled": pooled(models.values())}
            tables["panels"].append(
                {**record, **counted(outcomes, self.tokens), "basis": basis(part)}
            )
            for model, own in models.items():
                rows = one_series(own)
                for row in _rows(rows, kind):
                    tables["samples"].append(
                        {"panel": title, "model": model, **row, "basis": basis(own)}
                    )
        return tables

    def findings(self, tables: Tables) -> list[str]:
        sentences = token_findings(tables["panels"]) + pooled_findings(tables["panels"], "panel")
        for panel in tables["panels"]:
            own = [r for r in tables["samples"] if r["panel"] == panel["panel"]]
            for model in dict.fromkeys(r["model"] for r in own):
                rows = [r for r in own if r["model"] == model]
                told = _told(rows, TITLES[panel["token_kind"]].partition(" (")[0])
                sentences.append(f"{panel['panel']}: {model}: {told}.")
        return sentences

    def draw(self, tables: Tables) -> alt.TopLevelMixin:
        models = list(dict.fromkeys(r["model"] for r in tables["samples"]))
        shown = [self._panel(tables, panel, models) for panel in tables["panels"]]
        note = "Over all subsets of k of the samples of each problem. Bands: 95 % intervals over problems, pointwise."
        grid = alt.concat(*shown, columns=2, spacing={"row": 60, "column": 70})
        return themed(grid.properties(title=alt.TitleParams(TITLE, subtitle=note)))

    def _panel(self, tables: Tables, panel: Row, models: list[str]) -> Any:
        own = [r for r in tables["samples"] if r["panel"] == panel["panel"]]
        lines = [line for r in own for line in _lines(r)]
        x = "k" if self.against == "samples" else "tokens"
        named = (
            "samples per problem, k" if x == "k" else f"{TITLES[panel['token_kind']]} per problem"
        )
        frame = log_frame(lines, x, air=0.04)
        across, up = log_axes(frame, x, f"{named} (log scale)", [r[x] for r in own])
        colour = series_colour(models)
        legend = alt.Legend(
            title=None, orient="top", columns=2, symbolType="stroke", symbolSize=400, offset=10
        )
        dashes = alt.Scale(domain=[PASS, MAJORITY], range=[[5, 3], [1, 0]])
        dash = alt.StrokeDash("line:N", scale=dashes, legend=legend)
        numbers = [alt.Tooltip(f"accuracy{e}:Q", format=".3f") for e in ("", "_low", "_high")]
        tooltip = [
            "series:N",
            "line:N",
            "k:Q",
            *numbers,
            alt.Tooltip("tokens:Q", format=",.0f"),
            "problems:Q",
        ]
        chart = alt.Chart()
        layers = [
            chart.mark_area(opacity=0.1).encode(
                x=across,
                y=alt.Y("accuracy_low:Q"),
                y2="accuracy_high:Q",
                color=colour,
                detail="line:N",
            ),
            chart.mark_line(strokeWidth=1.8).encode(x=across, y=up, color=colour, strokeDash=dash),
            chart.mark_point(filled=True, size=40, opacity=1).encode(
                x=across, y=up, color=colour, detail="line:N", tooltip=tooltip
            ),
        ]
        return alt.layer(
            *layers,
            data=values(lines),
            width=SIZE[0],
            height=SIZE[1],
            title=panel_title(panel, SIZE[0]),
        )


def _panels(outcomes: Sequence[Outcome], by: str) -> Iterator[tuple[str, list[Outcome]]]:
    """The outcomes of each panel that has answers, with its title."""
    tasks = task_labels(outcomes)
    groups: dict[str, list[Outcome]] = {}
    for o in outcomes:
        title = panel_label(tasks[o.cell.task_key], o.size if by == "size" else None)
        groups.setdefault(title, []).append(o)
    return ((title, part) for title, part in groups.items() if any(o.answered for o in part))


def _rows(rows: Sequence[Outcome], kind: Any) -> Iterator[Row]:
    """For k = 1, 2, 4, … and all samples: pass@k, maj@k and the tokens of k samples, for problems
    that have so many.
    """
    problem = clusters(rows)
    by_problem: list[list[Outcome]] = [[] for _ in range(len(set(problem.tolist())))]
    for number, o in zip(problem.tolist(), rows, strict=True):
        by_problem[number].append(o)
    tried = np.array([len(part) for part in by_problem], dtype=np.int64)
    right = np.array([sum(o.correct for o in part) for part in by_problem], dtype=np.int64)
    votes = [_votes(part) for part in by_problem]
    # Without ballots nobody can say who voted for what; if nothing was graded, there was nothing to
    # vote for.
    known = any("ballot" in o.details for o in rows) or not any(
        o.ended in ("right", "wrong") for o in rows
    )
    spent = np.array([o.tokens(kind) for o in rows], dtype=np.float64)
    most = int(tried.max(initial=0))
    for k in sorted({2**i for i in range(most.bit_length())} | {most} - {0}):
        passed = pass_at(tried, right, k)
        # One sample is its own majority.
        voted = passed if k == 1 else majority_at(votes, k) if known else None
        enough = tried[problem] >= k
        tokens = _times(mean(spent[enough], problem[enough]), k)
        rests = {
            "samples": passed.attempts,
            "problems": passed.problems,
            "of_problems": len(by_problem),
        }
        empty = dict.fromkeys(("maj_at_k", "maj_at_k_low", "maj_at_k_high"))
        yield flat(
            k=k,
            pass_at_k=passed,
            **({"maj_at_k": voted} if voted else empty),
            tokens=tokens,
            **rests,
        )


def _votes(samples: Sequence[Outcome]) -> Votes:
    ballots = [(o.correct, o.details["ballot"]) for o in samples if "ballot" in o.details]
    count = Counter(ballots)
    right, wrong = (
        tuple(n for (correct, _), n in sorted(count.items()) if correct == c) for c in (True, False)
    )
    return Votes(len(samples), right, wrong)


def _times(one: Estimate, k: int) -> Estimate:
    return replace(one, value=k * one.value, low=k * one.low, high=k * one.high)


def _told(rows: Records, tokens: str) -> str:
    one, last = rows[0], rows[-1]
    said = f"pass@1 {span(one, 'pass_at_k', '.1%')}"
    if last["k"] == 1:
        return f"{said}; pass@k and maj@k need `samples = 2` or more in the study"
    said += f"; of {last['k']} samples pass@{last['k']} {span(last, 'pass_at_k', '.1%')}"
    voted = f"maj@{last['k']} {span(last, 'maj_at_k', '.1%')}"
    said += (
        f" and {voted}"
        if last["maj_at_k"] is not None
        else ", and no majority vote, because turns don't vote"
    )
    said += f" for {span(last, 'tokens', ',.0f')} {tokens} per problem"
    if last["problems"] < last["of_problems"]:
        said += f", on the {last['problems']:,} of {last['of_problems']:,} problems that have so many samples"
    return said


def _lines(row: Row) -> Iterator[Row]:
    """A row of the table as a point on each of its two lines."""
    for line, name in ((PASS, "pass_at_k"), (MAJORITY, "maj_at_k")):
        if row[name] is not None:
            accuracy = {f"accuracy{end}": row[f"{name}{end}"] for end in ("", "_low", "_high")}
            shared = {key: row[key] for key in ("k", "tokens", "problems", "basis")}
            yield {"series": row["model"], "line": line, **shared, **accuracy}
