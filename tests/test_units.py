"""Sizes in the task's own unit, bars where size means nothing, and comparisons that are cut short."""

from __future__ import annotations

import asyncio
import itertools
from math import log
from typing import Any

import made_up
import pytest
from test_figures import data, every, puzzles, spec, svg
from test_frontier import outcome as answer
from test_tokens import titles

from ponder import Study
from ponder.core import Outcome
from ponder.figures.accuracy import SIDE_BY_SIDE, WIDTH, Accuracy
from ponder.figures.budget import Budget
from ponder.figures.effort import Effort
from ponder.figures.frontier import Frontier
from ponder.run.progress import Tally
from ponder.run.run import run
from ponder.store.store import Store


def asked(
    task: str, unit: str, sizes: tuple[int, ...], models: tuple[str, ...] = ("m",)
) -> list[Outcome]:
    return [
        made_up.changed(o, task=task, unit=unit, size=s)
        for m in models
        for s in sizes
        for o in puzzles(m)[:8]
    ]


def test_an_outcome_has_its_tasks_unit(folder: Any) -> None:
    tasks = {"chain_sum": ("terms", 4), "execution": ("steps", 4), "tents": ("cells", 16)}
    study = Study(
        task=[{"name": name, "size": size} for name, (_, size) in tasks.items()],
        model=[{"name": "oracle"}],
        problems=1,
    )
    with Store(folder / "s.db", lock=True) as store:
        asyncio.run(run(study, store, Tally()))
        units = {o.label.task: o.cell.task.unit for o in store.outcomes(study.cells)}
    assert units == {name: unit for name, (unit, _) in tasks.items()}


@pytest.mark.parametrize("unit", ["cells", "steps", ""])
def test_axes_and_findings_have_the_tasks_unit(unit: str) -> None:
    rows = [made_up.changed(o, unit=unit) for o in puzzles()]
    inside = f"{unit}, log scale" if unit else "log scale"
    assert f"problem size ({inside})" in titles(Accuracy(), rows)
    assert (f"problem size ({unit})" if unit else "problem size") in titles(Effort(), rows)
    [said] = Accuracy().findings(Accuracy().estimate(rows))
    assert ("at size 16" if not unit else f"at 16 {unit}") in said
    inside = f"{unit}, log scale" if unit else "log scale"
    assert f"problem size ({inside})" in titles(Accuracy(target=0.8), rows)


@pytest.mark.parametrize("given", ["word", "words"])
def test_a_figures_unit_is_stronger_than_the_tasks(given: str) -> None:
    rows = [made_up.changed(o, unit="cells") for o in puzzles()]
    assert "problem size (words, log scale)" in titles(Accuracy(unit=given), rows)
    assert "problem size (words)" in titles(Effort(unit=given), rows)
    assert "problem size (words, log scale)" in titles(Accuracy(unit=given, target=0.8), rows)
    assert "tokens per word;" in Effort().findings(Effort(unit=given).estimate(rows))[0]


def test_tasks_of_different_units_have_different_axes_of_effort() -> None:
    rows = [made_up.changed(o, task="tents", unit="cells") for o in puzzles()] + asked(
        "sums", "terms", (2, 4)
    )
    chart = spec(Effort(), rows)
    assert chart["resolve"]["scale"]["x"] == "independent"
    ends = [
        e["x"]["scale"]["domain"][1] for e in every(chart, "encoding") if "scale" in e.get("x", {})
    ]
    assert {round(end / 1.04) for end in ends} == {49, 4}
    assert "problem size (tents: cells, sums: terms, log scale)" in titles(Accuracy(), rows)


@pytest.mark.parametrize(
    ("task", "unit", "sizes", "groups"),
    [
        ("math500", "", (0,), ["math500"]),
        ("gym", "levels", (0,), ["gym level 0"]),
        ("gym", "levels", (0, 1, 2), ["gym level 0", "gym level 1", "gym level 2"]),
        ("tents", "cells", (25,), ["tents, 25 cells"]),
    ],
)
def test_where_size_means_nothing_accuracy_has_bars(
    task: str, unit: str, sizes: Any, groups: list[str]
) -> None:
    rows = asked(task, unit, sizes, ("a", "b"))
    rows = [
        o._replace(ended="right" if o.label.model == "a" or o.problem < "p2" else "wrong")
        for o in rows
    ]
    chart = spec(Accuracy(), rows)
    assert [layer["mark"]["type"] for layer in chart["layer"]] == ["bar", "rule", "text"]
    [drawn] = data(chart, "series", "a")
    assert [(r["group"], r["series"], r["accuracy"]) for r in drawn] == [
        (group, *model) for group, model in itertools.product(groups, [("a", 1.0), ("b", 0.25)])
    ]
    for layer in chart["layer"]:  # side by side, all three layers alike
        assert (layer["encoding"]["y"]["field"], layer["encoding"]["yOffset"]["field"]) == (
            "group",
            "series",
        )
    assert chart["layer"][1]["encoding"]["x"]["field"] == "accuracy_low"
    said = Accuracy().findings(Accuracy().estimate(rows))
    assert len(said) == 2
    assert all(f"level {size}" in said[0] for size in sizes) == (unit == "levels")
    assert ("size 0" in said[0]) is False


def test_a_long_label_of_bars_is_broken_not_cut() -> None:
    picture = svg(
        Accuracy(), asked("gym dataset=number_sorting vary=numbers_count", "levels", (0, 1))
    )
    assert "…" not in picture
    assert all(f"level {n}<" in picture for n in (0, 1))


def test_sizes_that_mean_something_keep_their_curve() -> None:
    curve = [layer["mark"]["type"] for layer in spec(Accuracy(), puzzles())["layer"]]
    assert curve == ["area", "line", "rule", "point"]
    levels = [layer["mark"]["type"] for layer in spec(Accuracy(unit="levels"), puzzles())["layer"]]
    assert levels == ["bar", "rule", "text"]
    both = spec(Accuracy(), [*puzzles(), *asked("math500", "", (0,))])
    assert [chart["layer"][0]["mark"]["type"] for chart in both["vconcat"]] == ["area", "bar"]


def test_the_intervals_of_two_models_stand_side_by_side() -> None:
    chart = spec(Accuracy(), [*puzzles("a"), *puzzles("b")])
    [drawn] = [rows for rows in chart["datasets"].values() if "place" in rows[0]]
    low, high = next(
        e["x"]["scale"]["domain"] for e in every(chart, "encoding") if "scale" in e.get("x", {})
    )
    for size in (16, 25, 36, 49):
        a, b = (r["place"] for r in drawn if r["size"] == size)
        assert low < a < size < b < high
        assert WIDTH * log(b / a) / log(high / low) == pytest.approx(SIDE_BY_SIDE)
    [alone] = [
        rows for rows in spec(Accuracy(), puzzles())["datasets"].values() if "place" in rows[0]
    ]
    assert all(r["place"] == r["size"] for r in alone)


def compared(answered: dict[str, int], of: int = 10) -> list[Outcome]:
    return [
        answer(model, f"p{i}", 100, True, ended="" if i < n else "failed")
        for model, n in answered.items()
        for i in range(of)
    ]


@pytest.mark.parametrize("figure", [Frontier(), Budget()], ids=["frontier", "budget"])
def test_a_comparison_that_a_variant_cuts_short_says_which_and_by_how_much(figure: Any) -> None:
    tables = figure.estimate(compared({"a": 10, "a + dpo": 3, "a + sft": 9}))
    assert tables["panels"][0]["problems"] == 3
    said = figure.findings(tables)[0]
    assert said == (
        "tents: only 3 of 10 problems are compared, those that all variants answered: dpo has no answer to 7, "
        "sft has no answer to 1."
    )
    assert "only 3 of 10 problems" in str(figure.draw(tables).to_dict())
    full = figure.estimate(compared({"a": 10, "a + dpo": 10}))
    assert not any("ONLY" in sentence for sentence in figure.findings(full))


@pytest.mark.parametrize("figure", [Frontier(), Budget()], ids=["frontier", "budget"])
def test_a_variant_without_answers_cuts_nothing_but_is_named(figure: Any) -> None:
    tables = figure.estimate(compared({"a": 10, "a + sft": 10, "a + dpo": 0}))
    assert tables["panels"][0]["problems"] == 10
    assert figure.findings(tables)[0] == "tents: dpo has no answers and can't be compared."


@pytest.mark.parametrize("figure", [Frontier(), Budget()], ids=["frontier", "budget"])
def test_a_comparison_without_common_problems_is_not_passed_over(figure: Any) -> None:
    rows = compared({"a": 10}) + [
        o._replace(problem=f"q{i}") for i, o in enumerate(compared({"a + sft": 10}))
    ]
    tables = figure.estimate(rows)
    assert "only 0 of 20 problems" in figure.findings(tables)[0]
    figure.draw(tables).to_dict()
