"""Draws pass@k and maj@k against the number of samples k, one colour per model, from the samples of
each problem.

pass@k, how often at least one of k samples is right, is the unbiased estimator of Chen et al. 2021
(Codex). maj@k, how often the majority vote of k samples is right (self-consistency, Wang et al.
2022), is computed the same way: over all subsets of k of the stored samples, ties split evenly, so
nothing more is asked. Both have 95 % intervals clustered by problem. The tables have the tokens
that k samples take, or their cost or seconds, and the figure can be drawn against these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import altair as alt
import numpy as np

from ponder.core import Estimate, Figure, Measure, Outcome, Records, Resource, Tables, UserError
from ponder.figures import (
    Row,
    basis,
    counts,
    flat,
    interval_tooltips,
    pooled_findings,
    rows_of,
    series_colour,
    span,
    themed,
    values,
)
from ponder.figures._label_placement import SIZE, log_axes, log_frame
from ponder.figures._units import (
    Amounts,
    Tokens,
    amount_columns,
    token_findings,
)
from ponder.figures._variants import panel_title
from ponder.stats.accuracy import mean
from ponder.stats.columns import clusters, one_series
from ponder.stats.samples import Votes, majority_at, pass_at
from ponder.study.labels import model_labels, panel_label, pooled, task_labels

PASS_AT_K = "pass@k: at least one is right"  # noqa: S105
MAJORITY = "maj@k: the majority vote is right"
TITLE = "Accuracy of k samples per problem"


@dataclass(frozen=True)
class Samples(Figure):
    by: Literal["task", "size"] = "task"  # one panel per task, or per size of each task
    # x axis: the number of samples, or the tokens, the money or the seconds that they take
    against: Literal["samples", "tokens", "cost", "seconds"] = "samples"
    # which to count; auto: thinking if every model reports it, else output
    tokens: Tokens = "output"

    counts_votes: ClassVar[bool] = True

    def estimate(self, outcomes: Sequence[Outcome]) -> Tables:
        tables: Tables = {"panels": [], "samples": []}
        measure: Measure = "tokens"
        if self.against in ("cost", "seconds"):
            measure = self.against
        measured = amount_columns(outcomes, measure, self.tokens)
        amounts = Amounts.of(measured)
        names = model_labels(outcomes)
        for title, attempts in self._panels(outcomes):
            by_model: dict[str, list[Outcome]] = {}
            for outcome in attempts:
                by_model.setdefault(names[outcome.cell.model_key], []).append(outcome)
            panel = {
                "panel": title,
                "rests_on": counts(attempts),
                "pooled": pooled(by_model.values()),
                **measured,
                "basis": basis(attempts),
            }
            tables["panels"].append(panel)
            for model, model_attempts in by_model.items():
                sampled = basis(model_attempts)
                for row in _rows(one_series(model_attempts), amounts.resource):
                    if self.against != "samples" and not row["tokens"]:
                        raise UserError(
                            f"`{model}` took no {amounts.noun}, and a logarithmic axis has no 0",
                            hint='against = "samples"',
                        )
                    tables["samples"].append(
                        {"panel": title, "model": model, **row, "basis": sampled}
                    )
        return amounts.named(tables)

    def _panels(self, outcomes: Sequence[Outcome]) -> Iterator[tuple[str, list[Outcome]]]:
        """Yield the title and the outcomes of each panel that has answers."""
        tasks = task_labels(outcomes)
        panels: dict[str, list[Outcome]] = {}
        for outcome in outcomes:
            size = outcome.size if self.by == "size" else None
            title = panel_label(tasks[outcome.cell.task_key], size)
            panels.setdefault(title, []).append(outcome)
        for title, attempts in panels.items():
            if any(outcome.answered for outcome in attempts):
                yield title, attempts

    def findings(self, tables: Tables) -> list[str]:
        sentences = token_findings(tables["panels"])
        sentences += pooled_findings(tables["panels"], "panel")
        for panel in tables["panels"]:
            amounts = Amounts.of(panel)
            by_model: dict[str, Records] = {}
            for row in rows_of(tables["samples"], panel):
                by_model.setdefault(row["model"], []).append(row)
            for model, rows in by_model.items():
                sentences.append(f"{panel['panel']}: {model}: {_summary(rows, amounts)}.")
        return sentences

    def draw(self, tables: Tables) -> alt.TopLevelMixin:
        models = list(dict.fromkeys(row["model"] for row in tables["samples"]))
        charts = [self._panel(tables, panel, models) for panel in tables["panels"]]
        note = (
            "Over all subsets of k of the samples of each problem. "
            "Bands: 95 % intervals over problems, pointwise."
        )
        grid = alt.concat(*charts, columns=2, spacing={"row": 60, "column": 70})
        return themed(grid.properties(title=alt.TitleParams(TITLE, subtitle=note)))

    def _panel(self, tables: Tables, panel: Row, models: list[str]) -> Any:
        rows = rows_of(tables["samples"], panel)
        points: Records = []
        amounts = Amounts.of(panel)
        for row in rows:
            points += _points(row, amounts.noun)
        if self.against == "samples":
            x_field = "k"
            x_title = "samples per problem, k"
        else:
            x_field = amounts.noun
            x_title = f"{amounts.title} per problem"
        frame = log_frame(points, x_field, air=0.04)
        ticks = [row[x_field] for row in rows]
        form = ".3~s" if x_field in ("k", "tokens") else amounts.tick_form
        x, y = log_axes(frame, x_field, f"{x_title} (log scale)", ticks, form)
        colour = series_colour(models)
        legend = alt.Legend(
            title=None, orient="top", columns=2, symbolType="stroke", symbolSize=400, offset=10
        )
        scale = alt.Scale(domain=[PASS_AT_K, MAJORITY], range=[[5, 3], [1, 0]])
        dash = alt.StrokeDash("line:N", scale=scale, legend=legend)
        tooltip = [
            "series:N",
            "line:N",
            "k:Q",
            *interval_tooltips("accuracy", ".3f"),
            alt.Tooltip(f"{amounts.noun}:Q", format=amounts.tick_form),
            "problems:Q",
        ]
        chart = alt.Chart()
        layers = [
            chart.mark_area(opacity=0.1).encode(
                x=x, y=alt.Y("accuracy_low:Q"), y2="accuracy_high:Q", color=colour, detail="line:N"
            ),
            chart.mark_line(strokeWidth=1.8).encode(x=x, y=y, color=colour, strokeDash=dash),
            chart.mark_point(filled=True, size=40, opacity=1).encode(
                x=x, y=y, color=colour, detail="line:N", tooltip=tooltip
            ),
        ]
        return alt.layer(
            *layers,
            data=values(points),
            width=SIZE[0],
            height=SIZE[1],
            title=panel_title(panel, SIZE[0]),
        )


def _rows(samples: Sequence[Outcome], resource: Resource) -> Iterator[Row]:
    """Yield pass@k, maj@k and the tokens of k samples, for k = 1, 2, 4, … and all samples.

    A row is computed from the problems that have at least k samples.
    """
    problem = clusters(samples)
    by_problem: dict[int, list[Outcome]] = {}
    for number, outcome in zip(problem.tolist(), samples, strict=True):
        by_problem.setdefault(number, []).append(outcome)
    tried = []
    right = []
    votes = []
    for number in sorted(by_problem):
        group = by_problem[number]
        tried.append(len(group))
        right.append(sum(outcome.correct for outcome in group))
        votes.append(_votes(group))
    sample_count = np.array(tried, dtype=np.int64)
    right_count = np.array(right, dtype=np.int64)
    tokens = np.array([outcome.used(resource) for outcome in samples], dtype=np.float64)
    has_votes = _has_votes(samples)
    largest = int(sample_count.max(initial=0))
    for k in _numbers(largest):
        passed = pass_at(sample_count, right_count, k)
        voted = None
        if k == 1:  # one sample is its own majority
            voted = passed
        elif has_votes:
            voted = majority_at(votes, k)
        enough = sample_count[problem] >= k
        row = flat(pass_at_k=passed, maj_at_k=None, maj_at_k_low=None, maj_at_k_high=None)
        if voted:
            row |= flat(maj_at_k=voted)
        spent = _times(mean(tokens[enough], problem[enough]), k)
        sample_columns = {
            "samples": passed.attempts,
            "problems": passed.problems,
            "of_problems": len(by_problem),
        }
        yield {"k": k, **row, **flat(tokens=spent), **sample_columns}


def _has_votes(samples: Sequence[Outcome]) -> bool:
    """Tell whether votes can be counted.

    Without ballots nobody can say who voted for what; if nothing was graded, there was nothing to
    vote for.
    """
    if any("ballot" in outcome.details for outcome in samples):
        return True
    return not any(outcome.ended in ("right", "wrong") for outcome in samples)


def _numbers(largest: int) -> list[int]:
    """Return 1, 2, 4, … and the largest number of samples."""
    numbers = []
    k = 1
    while k < largest:
        numbers.append(k)
        k *= 2
    if largest:
        numbers.append(largest)
    return numbers


def _votes(samples: Sequence[Outcome]) -> Votes:
    """Count the samples of a problem that gave the same answer, right and wrong answers apart."""
    counter: Counter[tuple[bool, Any]] = Counter()
    for outcome in samples:
        if "ballot" in outcome.details:
            counter[outcome.correct, outcome.details["ballot"]] += 1
    right = []
    wrong = []
    for (correct, _), number in sorted(counter.items()):
        if correct:
            right.append(number)
        else:
            wrong.append(number)
    return Votes(len(samples), tuple(right), tuple(wrong))


def _times(tokens: Estimate, k: int) -> Estimate:
    return replace(tokens, value=k * tokens.value, low=k * tokens.low, high=k * tokens.high)


def _summary(rows: Records, amounts: Amounts) -> str:
    """Write pass@1, and pass@k and maj@k with the most samples."""
    clause = f"pass@1 {span(rows[0], 'pass_at_k', '.1%')}"
    last = rows[-1]
    k = last["k"]
    if k == 1:
        return f"{clause}; pass@k and maj@k need `samples = 2` or more in the study"
    clause += f"; of {k} samples pass@{k} {span(last, 'pass_at_k', '.1%')}"
    if last["maj_at_k"] is not None:
        clause += f" and maj@{k} {span(last, 'maj_at_k', '.1%')}"
    else:
        clause += ", and no majority vote, because turns don't vote"
    clause += f" for {span(last, amounts.noun, amounts.form)} {amounts.unit} per problem"
    if last["problems"] < last["of_problems"]:
        clause += (
            f", on the {last['problems']:,} of {last['of_problems']:,} problems that have so many "
            "samples"
        )
    return clause


def _points(row: Row, amount: str) -> Iterator[Row]:
    """Yield a row of the table as a point on each of its two lines."""
    for line, name in ((PASS_AT_K, "pass_at_k"), (MAJORITY, "maj_at_k")):
        if row[name] is not None:
            yield {
                "series": row["model"],
                "line": line,
                "k": row["k"],
                amount: row[amount],
                "problems": row["problems"],
                "basis": row["basis"],
                "accuracy": row[name],
                "accuracy_low": row[f"{name}_low"],
                "accuracy_high": row[f"{name}_high"],
            }
