"""Tokens by outcome, which `effort` shows where a task has one size; and one colour per model in
all panels.
"""

from __future__ import annotations

import json
from typing import Any

import made_up
import pytest
from test_figures import every, outcome, puzzles, spec, svg

from ponder.core import Outcome
from ponder.figures import COLOURS
from ponder.figures.accuracy import Accuracy
from ponder.figures.effort import Effort


def benchmark(model: str = "m", task: str = "math500") -> list[Outcome]:
    """Ten problems solved with 100 to 190 tokens, six missed with 300 to 350, two cut at 400."""
    tokens = [*range(100, 200, 10), *range(300, 360, 10), 400, 400]
    rows = [
        outcome(
            0,
            n,
            correct=n < 10,
            tokens=spent,
            ended="truncated" if spent == 400 else "",
            model=model,
        )
        for n, spent in enumerate(tokens)
    ]
    return [made_up.changed(o, task=task, unit="") for o in rows]


def test_medians_of_solved_and_wrong_attempts() -> None:
    tables = Effort().estimate(benchmark())
    rows = {r["outcome"]: r for r in tables["outcomes"]}
    assert {k: (r["median"], r["attempts"]) for k, r in rows.items()} == {
        "solved": (145, 10), "wrong": (325, 6), "truncated": (None, 2),
    }  # fmt: skip
    assert 100 <= rows["solved"]["median_low"] < 145 < rows["solved"]["median_high"] <= 190
    assert tables["fits"] == tables["curves"] == []
    low, high = (rows["solved"][f"median_{end}"] for end in ("low", "high"))
    [said] = Effort().findings(tables)
    assert said.startswith(
        f"m: the median of solved attempts is 145 [{low:g}, {high:g}] thinking tokens, of wrong ones"
    )
    assert "size" not in said
    [said] = Effort(unit="levels").findings(Effort(unit="levels").estimate(benchmark()))
    assert said.startswith("m: the median of solved attempts at level 0 is 145")
    everything_cut = Effort().estimate([o for o in benchmark() if o.ended == "truncated"])
    assert Effort().findings(everything_cut) == ["m: every attempt was truncated."]


def test_unparsed_attempts_have_a_strip_of_their_own() -> None:
    rows = [
        o._replace(ended="unparsed") if o.thinking_tokens in (340, 350) else o for o in benchmark()
    ]
    tables = Effort().estimate(rows)
    medians = {r["outcome"]: (r["median"], r["attempts"]) for r in tables["outcomes"]}
    assert medians == {
        "solved": (145, 10),
        "wrong": (315, 4),
        "unparsed": (345, 2),
        "truncated": (None, 2),
    }
    assert "of wrong ones 315 [" in Effort().findings(tables)[0]
    assert "of unparsed ones 345 " in Effort().findings(tables)[0]
    [points] = [own for own in spec(Effort(), rows)["datasets"].values() if "why" in own[0]]
    assert {(p["outcome"], round(p["place"])) for p in points} == {
        ("solved", 0), ("wrong", 1), ("unparsed", 2), ("truncated", 3),
    }  # fmt: skip


def test_a_strip_per_outcome_with_its_attempts_where_they_belong() -> None:
    chart = spec(Effort(), [*benchmark("a"), *benchmark("b")])
    assert [layer["mark"]["type"] for layer in chart["layer"]] == ["point", "rule", "tick"]
    [points] = [rows for rows in chart["datasets"].values() if "why" in rows[0]]
    assert len(points) == 36
    strips = {(p["label"], p["outcome"], round(p["place"])) for p in points}
    assert {strip[1:] for strip in strips} == {("solved", 0), ("wrong", 1), ("truncated", 2)}
    assert len(strips) == 6
    picture = svg(Effort(), [*benchmark("a"), *benchmark("b")])
    assert picture.count('aria-roledescription="point"') >= 36
    assert "NaN" not in picture


def test_an_interval_that_is_unknown_is_not_drawn() -> None:
    # one problem says nothing of others
    one_solved = [o for o in benchmark() if not o.correct or o.problem == "p0"]
    chart = spec(Effort(), one_solved)
    rules, ticks = (chart["datasets"][layer["data"]["name"]] for layer in chart["layer"][1:])
    assert ([r["outcome"] for r in rules], [r["outcome"] for r in ticks]) == (
        ["wrong"],
        ["solved", "wrong"],
    )


def test_panels_with_and_without_sizes_are_drawn_together() -> None:
    chart = spec(Effort(), [*puzzles("a"), *benchmark("a"), *puzzles("b"), *benchmark("b")])
    panels, strips = chart["vconcat"]
    assert [p["title"]["text"] for p in panels["concat"]] == [["a, t"], ["b, t"]]
    assert strips["layer"][2]["mark"]["type"] == "tick"
    said = Effort().findings(Effort().estimate([*puzzles("a"), *benchmark("a")]))
    assert ["median" in sentence for sentence in said] == [False, True]


def test_one_size_under_a_published_line_keeps_its_axis() -> None:
    assert "tick" not in json.dumps(
        every(spec(Effort(overlay="tents_effort"), benchmark()), "mark")
    )


def colours(chart: Any) -> list[dict[str, str]]:
    """The colour of each name, panel by panel."""
    scales = [
        next(e["color"]["scale"] for e in every(panel, "encoding") if "scale" in e.get("color", {}))
        for panel in chart["vconcat"]
    ]
    return [dict(zip(scale["domain"], scale["range"], strict=True)) for scale in scales]


@pytest.mark.parametrize("more", [[], ["sums"]])
def test_a_model_has_one_colour_in_all_panels_of_accuracy(more: list[str]) -> None:
    sized = [
        made_up.changed(o, task=task)
        for task in ("tents", *more)
        for m in ("a", "b")
        for o in puzzles(m)
    ]
    chart = spec(Accuracy(), [*benchmark("b"), *sized, *benchmark("c")])
    above, below = colours(chart)
    assert above == below == {"b": COLOURS[0], "a": COLOURS[1], "c": COLOURS[2]}
    drawn = {
        r["series"]: r["drawn_as"]
        for rows in chart["datasets"].values()
        for r in rows
        if "drawn_as" in r
    }
    assert drawn == {f"{m}, {task}": m for m in "ab" for task in ("tents", *more)}
    dashes = [
        e["strokeDash"]["scale"]["domain"] for e in every(chart, "encoding") if "strokeDash" in e
    ]
    assert dashes == ([["tents", "sums"]] if more else [])


def test_without_bars_every_series_has_a_colour_of_its_own() -> None:
    rows = [
        made_up.changed(o, task=task)
        for task in ("tents", "sums")
        for m in ("a", "b")
        for o in puzzles(m)
    ]
    chart = spec(Accuracy(), rows)
    scale = next(
        e["color"]["scale"] for e in every(chart, "encoding") if "scale" in e.get("color", {})
    )
    assert len(set(scale["range"])) == 4
