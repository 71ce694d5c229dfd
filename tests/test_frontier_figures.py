"""The figures of the frontier and of budgets: what is drawn and said, and names that keep off each
other.
"""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace

import made_up
import numpy as np
import pytest
from scipy import stats
from test_figures import domains, every, spec, svg
from test_frontier import MADE_UP, attempts

from ponder.core import Figure, Outcome, UserError
from ponder.core.nouns import CountedBy
from ponder.figures import COLOURS
from ponder.figures._label_placement import LETTER, LINE, Frame, place_labels
from ponder.figures._published import published
from ponder.figures.accuracy import Accuracy
from ponder.figures.budget import Budget
from ponder.figures.effort import Effort
from ponder.figures.frontier import Frontier
from ponder.results.charts import draw_figure


def test_the_frontier_is_drawn_and_said() -> None:
    outcomes = attempts()
    figure = Frontier()
    found = draw_figure("frontier", figure, outcomes)
    assert found.picture.png.startswith(b"\x89PNG")
    assert [p["panel"] for p in found.tables["panels"]] == ["execution", "tents"]
    rows = [r for r in found.tables["variants"] if r["panel"] == "tents"]
    assert [r["variant"] for r in rows] == list(MADE_UP)
    dpo = next(r for r in rows if r["variant"] == "pocket + dpo")
    own = [
        o for o in outcomes if o.label.task == "tents" and o.label.model.startswith("pocket + dpo")
    ]
    assert dpo["tokens"] == pytest.approx(
        np.mean([o.thinking_tokens + o.answer_tokens for o in own])
    )
    assert dpo["accuracy"] == pytest.approx(np.mean([o.correct for o in own]))
    assert (dpo["seeds"], dpo["attempts"], dpo["problems"], dpo["made_tokens"]) == (3, 240, 80, 3e6)
    assert len([s for s in found.tables["seeds"] if s["panel"] == "tents"]) == 10
    assert dpo["difference"] == pytest.approx(dpo["accuracy"] - rows[0]["accuracy"])
    said = [s for s in found.findings if s.startswith("tents: ")]
    chances = {r["variant"].removeprefix("pocket + "): r["frontier_chance"] for r in rows}
    perhaps = ", ".join(f"{name} ({c:.0%})" for name, c in chances.items() if 0.05 < c < 0.95)
    assert said[0] == f"tents: on the frontier: perhaps {perhaps}."
    assert any(
        "sft raises tokens by" in s
        and "it never repays the 1,500,000 tokens it cost to make; one training seed" in s
        for s in said
    )
    assert any(
        s.startswith("tents: dpo cuts tokens by ") and "3,000,000 tokens it cost to make after" in s
        for s in said
    )


def test_the_axis_of_accuracy_ends_just_beyond_the_intervals() -> None:
    outcomes = attempts(tasks=("tents",))
    rows = Frontier().estimate(outcomes)["variants"]
    low = min(row["accuracy_low"] for row in rows)
    high = max(row["accuracy_high"] for row in rows)
    begin, end = domains(spec(Frontier(), outcomes), "y")[0]
    assert low - 0.1 * (high - low) < begin < low
    assert high < end < high + 0.1 * (high - low)


def test_numbers_hang_neither_on_order_nor_on_other_variants() -> None:
    outcomes = attempts(tasks=("tents",))
    tables = Frontier(reference="pocket").estimate(outcomes)
    backwards = Frontier(reference="pocket").estimate(outcomes[::-1])
    numbers = [sorted(str({**v, "colour": ""}) for v in t["variants"]) for t in (tables, backwards)]
    assert numbers[0] == numbers[1]
    fewer = Frontier().estimate([o for o in outcomes if "merge" not in o.label.model])["variants"]
    for row in fewer:
        [same] = (r for r in tables["variants"] if r["variant"] == row["variant"])
        for name in set(row) - {
            "frontier_chance",
            "on_frontier",
            "q_value",
            "comparisons",
            "verdict",
            "colour",
        }:
            assert row[name] == (
                pytest.approx(same[name]) if isinstance(row[name], float) else same[name]
            )


def test_panels_by_size_and_the_reference() -> None:
    outcomes = attempts(problems=5)
    tables = Frontier(by="size", reference="pocket + dpo").estimate(outcomes)
    assert [p["panel"] for p in tables["panels"]] == [
        "execution 8",
        "execution 16",
        "tents 8",
        "tents 16",
    ]
    assert [r["variant"] for r in tables["variants"] if r["verdict"] is None] == [
        "pocket + dpo"
    ] * 4
    with pytest.raises(UserError, match=r"this study has no model `pocket \+ dop`") as error:
        Frontier(reference="pocket + dop").estimate(outcomes)
    assert error.value.hint == "did you mean `pocket + dpo`?"
    with pytest.raises(UserError, match="`tents_effort` has no tokens and accuracy by model"):
        Frontier(overlay="tents_effort").estimate(outcomes)
    with pytest.raises(UserError, match="margin"):
        Frontier(margin=5)


def test_published_points() -> None:
    found = draw_figure("frontier", Frontier(overlay="long2short"), attempts(tasks=("tents",)))
    rows = {(r["benchmark"], r["model"]): r for r in found.tables["published"]}
    assert len(rows) == len(published("long2short")) == 20
    assert rows["MATH500", "k1.5-shortest"]["aes"] == pytest.approx(676 / 1320 - 5 * 5.9 / 94.1)
    assert rows["MATH500", "k1.5-short w/ rl"]["aes"] == pytest.approx(123 / 1320 + 3 * 0.5 / 94.1)
    assert rows["AIME2024", "Claude 3.5"]["tokens_per_right"] == pytest.approx(629 / 0.16)
    assert not rows["AIME2024", "k1.5-short w/ merge"]["on_frontier"]
    assert len(found.spec["vconcat"]) == 2
    said = next(s for s in found.findings if s.startswith("AIME2024"))
    assert "chance on 30 problems: k1.5-shortest (−37.4), gpt-4-0513 (−54.0)" in said
    for (benchmark, _), row in rows.items():
        if row["difference"]:
            n, long = (500, 0.941) if benchmark == "MATH500" else (30, 0.633)
            pooled = (long + row["accuracy"]) / 2
            p_value = 2 * stats.norm.sf(
                abs(row["difference"]) / math.sqrt(2 * pooled * (1 - pooled) / n)
            )
            if not 0.04 < p_value < 0.07:  # where two good tests may disagree
                assert (row["difference_high"] < 0 or row["difference_low"] > 0) == (p_value < 0.05)


def test_budgets_are_drawn_and_said() -> None:
    found = draw_figure("budget", Budget(), attempts())
    assert found.picture.png.startswith(b"\x89PNG")
    areas = {r["variant"]: r for r in found.tables["variants"] if r["panel"] == "tents"}
    most = found.tables["panels"][1]["most"]
    line = [
        (b["budget"], b["accuracy"])
        for b in found.tables["budgets"]
        if (b["panel"], b["variant"]) == ("tents", "pocket")
    ]
    area = (
        sum((after[0] - before[0]) * before[1] for before, after in itertools.pairwise(line)) / most
    )
    # 80 attempts: no step is passed over
    assert area == pytest.approx(areas["pocket"]["auc"], abs=1e-9)
    gain = areas["pocket + length_rl"]
    assert gain["auc_gain"] == pytest.approx(gain["auc"] - areas["pocket"]["auc"])
    assert any(
        s.startswith("tents: most accurate under a budget, as measured: pocket-short up to ")
        for s in found.findings
    )
    # Beyond chance by itself, but not as one of twelve comparisons.
    assert gain["p_value"] < 0.05 < gain["q_value"]
    assert "tents: above pocket on average over budgets, beyond chance: none." in found.findings
    figure = Budget(reference="pocket + sft")
    tables = figure.estimate(attempts())
    areas = {r["variant"]: r for r in tables["variants"] if r["panel"] == "tents"}
    said = next(
        s
        for s in figure.findings(tables)
        if s.startswith("tents: above sft on average over budgets, beyond")
    )
    for row in areas.values():
        if row["auc_gain"] is not None:
            assert (f"{row['label']} by +" in said) == (
                row["q_value"] <= 0.05 and row["auc_gain"] > 0
            )
    assert "length_rl by +" in said
    capped = Budget(most=50, scale="linear")
    tables = capped.estimate(attempts())
    assert max(b["budget"] for b in tables["budgets"]) == 50
    capped.draw(tables).to_dict()


def test_names_keep_off_each_other_and_off_dots() -> None:
    rng = np.random.default_rng(8)
    frame = Frame((0.0, 1000.0), (0.0, 1.0), 430, 300)
    points = [
        {"label": f"variant number {i}", "tokens": t, "accuracy": a}
        for i, (t, a) in enumerate(
            zip(rng.uniform(300, 500, 8).tolist(), rng.uniform(0.4, 0.8, 8).tolist(), strict=True)
        )
    ]
    boxes, dots = [], [frame.pixel(p["tokens"], p["accuracy"]) for p in points]
    for p in place_labels(points, frame, []):
        x, y = frame.pixel(p["text_x"], p["text_y"])
        width = LETTER * len(p["label"])
        left = x - {"left": 0, "center": width / 2, "right": width}[p["align"]]
        boxes.append((left, y - LINE / 2, left + width, y + LINE / 2))
    assert all(
        left >= 0 and top >= 0 and right <= 430 and bottom <= 300
        for left, top, right, bottom in boxes
    )
    for (a, b), (c, d) in itertools.combinations(((box[:2], box[2:]) for box in boxes), 2):
        assert b[0] <= c[0] or d[0] <= a[0] or b[1] <= c[1] or d[1] <= a[1]
    assert not any(
        left < x < right and top < y < bottom for left, top, right, bottom in boxes for x, y in dots
    )


def models(*tokens: int, counted_by: CountedBy = "server") -> list[Outcome]:
    """Models a, b, c, each with ten answers of as many tokens; every other one is right."""
    return [
        made_up.outcome(
            "t",
            name,
            2,
            f"p{p}",
            "wrong" if p % 2 else "right",
            thinking_tokens=0,
            answer_tokens=n,
            counted_by=counted_by,
        )
        for name, n in zip("abc", tokens, strict=False)
        for p in range(10)
    ]


@pytest.mark.parametrize("reference", ["", "b"])
def test_a_model_has_one_colour_in_all_figures(reference: str) -> None:
    rows = models(100, 200, 300)
    [colours] = {
        tuple(s["range"])
        for s in every(spec(Accuracy(), rows), "scale")
        if s.get("domain") == ["a", "b", "c"]
    }
    assert colours == tuple(COLOURS[:3])
    failed = [o._replace(ended="failed") if o.label.model == "a" else o for o in rows]
    for figure in (Frontier(reference=reference), Budget(reference=reference)):
        assert [v["colour"] for v in figure.estimate(rows)["variants"]] == COLOURS[:3]
        assert [v["colour"] for v in figure.estimate(failed)["variants"]] == COLOURS[1:3]
        drawn = every(spec(figure, rows), "scale")
        assert {tuple(s["range"]) for s in drawn if len(s.get("domain", ())) == 3} == {
            tuple(COLOURS[:3])
        }


def test_no_label_of_an_axis_of_few_tokens_is_there_twice() -> None:
    for most in (1, 3, 4, 7):
        for figure in (Frontier(), Budget(scale="linear"), Budget()):
            picture = svg(figure, models(1, most))
            axes = re.findall(r"role-axis-label.*?</g>", picture, re.DOTALL)
            assert axes
            for labels in (re.findall(r">([^<>]+)</text>", axis) for axis in axes):
                assert len(labels) == len(set(labels))


@pytest.mark.parametrize("figure", [Frontier(), Budget(), Effort()])
def test_estimated_tokens_are_said_below_the_title(figure: Figure) -> None:
    def notes(rows: list[Outcome]) -> str:
        wide = [*rows, *(made_up.changed(o, size=4) for o in rows)]
        return " ".join(line for text in every(spec(figure, wide), "subtitle") for line in text)

    assert "estimate" not in notes(models(100, 200))
    assert "tokens are estimates" in notes(models(100, 200, counted_by="estimate"))
    some = [
        o._replace(counted_by="estimate") if p % 2 else o for p, o in enumerate(models(100, 200))
    ]
    number = "10 of 20" if isinstance(figure, Effort) else "20 of 40"  # of a model, of all
    assert f"tokens of {number} attempts are estimates" in notes(some)


def with_rate(o: Outcome, rate: int) -> Outcome:
    """The same attempt with another rate of training; at one of them, what was right is wrong."""
    seed = o.cell.training_seeds[0]
    cell = made_up.cell("tents", "pocket", o.size, [("dpo", {"rate": rate, "seed": seed})])
    label = replace(o.label, variant=f"{o.label.variant} rate={rate}", methods=f"dpo rate={rate}")
    right = o.correct ^ (rate == 2)
    return o._replace(cell=cell, label=label, ended="right" if right else "wrong")


def test_pooled_seeds_are_declared() -> None:
    recipe = [
        with_rate(o, rate)
        for rate in range(4)
        for o in attempts(tasks=("tents",))
        if o.label.variant == "pocket + dpo"
    ]
    alone, together = (Frontier(pool_seeds=pool).estimate(recipe) for pool in (False, True))
    assert (
        "accuracy is assumed to vary between training seeds equally, in log odds, in 4 variants"
        in (Frontier(pool_seeds=True).findings(together)[1])
    )
    assert any(
        "pooled seeds" in line
        for line in str(Frontier(pool_seeds=True).draw(together).to_dict()).split("'")
    )
    widths = [
        [r["difference_high"] - r["difference_low"] for r in t["variants"][1:]]
        for t in (alone, together)
    ]
    assert np.mean(widths[1]) < np.mean(widths[0])
    three = Frontier(pool_seeds=True).estimate(
        [o for o in recipe if "rate=3" not in o.label.variant]
    )
    assert three["panels"][0]["seeds_pooled"].startswith(
        "`pool_seeds` has no effect: it needs 4 variants with the same"
    )
    assert [r["difference_low"] for r in three["variants"][1:]] == [
        r["difference_low"] for r in alone["variants"][1:3]
    ]
