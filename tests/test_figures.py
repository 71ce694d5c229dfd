"""The figures on accuracy, effort and execution: their tables against numbers worked out by hand,
and their charts.
"""

from __future__ import annotations

import json
import re
from typing import Any

import made_up
import pytest
import vl_convert

from ponder import Study
from ponder.core import Figure, Outcome, UserError
from ponder.figures import COLOURS, MUTED, SOLVED, TRUNCATED, UNPARSED, WRONG, span, wrapped
from ponder.figures.accuracy import Accuracy
from ponder.figures.effort import Effort
from ponder.figures.horizon import Horizon
from ponder.figures.self_conditioning import SelfConditioning
from ponder.figures.tradeoff import Tradeoff
from ponder.stats.accuracy import wilson

LONG_NAME = "endpoint deepseek-ai/DeepSeek-R1-Distill-Qwen-32B temperature=0.6 + compress policy=rkv budget=512"


def outcome(
    size: int,
    problem: int,
    *,
    model: str = "m",
    correct: bool = True,
    ended: str = "",
    tokens: int = 100,
    **details: Any,
) -> Outcome:
    ended = ended or ("right" if correct else "wrong")
    why = "" if ended == "right" else "wrong grid"
    spent = {"thinking_tokens": tokens, "answer_tokens": 20, "counted_by": "server"}
    return made_up.outcome(
        "t", model, size, f"p{problem}", ended, why=why, details=details, **spent
    )


def puzzles(model: str = "m", truncated: int = 0) -> list[Outcome]:
    """Ten tokens per cell; all 8 solved at 16 and 25 cells, none at 36 and 49; some of the last cut
    short.
    """
    rows = [
        outcome(s, p, model=model, correct=s < 30, tokens=10 * s)
        for s in (16, 25, 36, 49)
        for p in range(8)
    ]
    return rows[: len(rows) - truncated] + [
        o._replace(ended="truncated") for o in rows[len(rows) - truncated :]
    ]


def rollout(
    per_turn: int, first_error: int | None, problem: int, model: str = "m", turns: int = 8
) -> Outcome:
    """Every turn adds 2; from `first_error` on the sum is one too high."""
    true = [2 * t for t in range(1, turns + 1)]
    parsed = [s + (first_error is not None and t >= first_error) for t, s in enumerate(true, 1)]
    details = {"parsed": parsed, "true": true, "start": 0, "per_turn": per_turn}
    tokens = 1000 // per_turn + problem
    return outcome(
        8 * per_turn, problem, model=model, correct=first_error is None, tokens=tokens, **details
    )


def next_turns(
    history: int, error_rate: float, right: int, of: int = 20, model: str = "m"
) -> list[Outcome]:
    details = {"history_turns": history, "error_rate": error_rate, "true": [7]}
    return [
        outcome(
            history + 1,
            i + int(1000 * error_rate),
            model=model,
            parsed=[7 if i < right else 8],
            **details,
        )
        for i in range(of)
    ]


def spec(figure: Figure, outcomes: list[Outcome]) -> dict[str, Any]:
    drawn: dict[str, Any] = figure.draw(figure.estimate(outcomes)).to_dict()
    return drawn


def svg(figure: Figure, outcomes: list[Outcome]) -> str:
    return str(vl_convert.vegalite_to_svg(json.dumps(spec(figure, outcomes))))


def points(picture: str, colour: str) -> list[str]:
    """The paths of the marks in a colour; those of the legend are not marks."""
    marks = re.findall(r'<path[^>]*aria-roledescription="point"[^>]*>', picture)
    return [re.search(r' d="([^"]*)"', mark)[1] for mark in marks if f'stroke="{colour}"' in mark]  # type: ignore[index]


def every(node: Any, key: str) -> list[Any]:
    """Every value of a key, anywhere in a chart."""
    if isinstance(node, dict):
        return [v for k, v in node.items() if k == key] + [
            x for v in node.values() for x in every(v, key)
        ]
    return [x for v in node for x in every(v, key)] if isinstance(node, list) else []


def data(chart: dict[str, Any], key: str, value: str) -> list[Any]:
    """The chart's data sets whose first row has this value."""
    return [rows for rows in chart["datasets"].values() if rows and rows[0].get(key) == value]


def domains(chart: dict[str, Any], channel: str) -> list[list[Any]]:
    """The different scale domains of a channel."""
    found = [
        e[channel]["scale"]["domain"]
        for e in every(chart, "encoding")
        if "scale" in e.get(channel, {})
    ]
    return [d for i, d in enumerate(found) if d not in found[:i]]


def test_effort_tables_by_hand() -> None:
    rows = [
        *puzzles(truncated=3),
        outcome(16, 8, ended="failed"),
        outcome(16, 9, ended="unparsed", tokens=160),
    ]
    tables = Effort(unit="cell").estimate(rows)
    assert len(tables["attempts"]) == 33
    kinds = [p["outcome"] for p in tables["attempts"]]
    assert [kinds.count(k) for k in ("solved", "wrong", "unparsed", "truncated", "failed")] == [
        16,
        13,
        1,
        3,
        0,
    ]
    fits = {f["fitted_to"]: f for f in tables["fits"]}
    line = fits["solved, as published"]
    assert (line["tokens_per_size"], line["tokens_at_zero"]) == pytest.approx((10, 0), abs=1e-9)
    assert fits["solved"]["exponent"] == pytest.approx(1, abs=1e-6)
    sizes = {(r["fitted_to"], r["size"]): r for r in tables["sizes"]}
    assert sizes["solved", 25]["geometric_mean"] == pytest.approx(250, rel=1e-4)
    assert (sizes["all", 49]["truncated"], sizes["all", 49]["extrapolated"]) == (3 / 8, True)
    assert [r["budget"] for r in tables["by_budget"]] == [61, 91, 122, 183, 245, 490]
    assert tables["by_budget"][0]["critical_size"] is None  # no attempt took so little
    [summary] = tables["summary"]
    assert 25 <= summary["critical_size"] <= 36
    assert "1 failed and left out" in summary["rests_on"]
    [sentence] = Effort().findings(tables)
    assert "accuracy falls below 50 % at" in sentence
    assert "all attempts: 2" in sentence
    assert (
        "solved ones: 250 [250, 250] thinking tokens at 25 cells (geometric mean), growing as size^1 [1, 1]"
        in sentence
    )
    assert "extrapolated from 49 cells on" in sentence
    assert "as published: 10 [10, 10] thinking tokens per cell" in sentence
    assert "fail" not in sentence


@pytest.mark.parametrize("others", [[], ["b"], ["b", "c", LONG_NAME]])
def test_one_triangle_per_truncated_attempt_however_many_models(others: list[str]) -> None:
    # The first model has none, so that panels differ in the outcomes that they show.
    rows = [
        *puzzles("a", truncated=0 if others else 3),
        *(o for m in others for o in puzzles(m, truncated=3)),
    ]
    picture, many = svg(Effort(), rows), len(others) or 1
    # three corners
    assert [path.count("L") for path in points(picture, TRUNCATED)] == [2] * 3 * many
    assert all("A" in path for path in points(picture, SOLVED))  # circles
    assert all(path.count("L") == 0 and "h" in path for path in points(picture, WRONG))  # squares
    assert len(points(picture, SOLVED)) == 16 * (1 + len(others))
    assert len(points(picture, WRONG)) == 16 * (1 + len(others)) - 3 * many


def test_effort_legend_is_solved_wrong_truncated_and_the_lines() -> None:
    chart = spec(Effort(overlay="tents_effort"), [*puzzles("a"), *puzzles("b", truncated=3)])
    for channel in ("shape", "fill", "stroke"):
        assert domains(chart, channel) == [["solved", "wrong", "truncated"]]
    curves = [f"all: {c}" for c in ("geometric mean", "90 % quantile")] + ["solved: geometric mean"]
    assert domains(chart, "color") == [[*curves, "solved: straight line", "published"]]
    # without published lines, no straight one
    assert domains(spec(Effort(), puzzles()), "color") == [curves]
    assert [p["title"]["text"] for p in chart["concat"]] == [["a"], ["b"]]
    legend = svg(Effort(), puzzles(truncated=3))
    assert "failed" not in legend
    assert "published" not in legend
    assert domains(spec(Effort(), puzzles()[:16]), "fill") == [["solved"]]


def test_unparsed_attempts_have_a_mark_of_their_own() -> None:
    rows = [*puzzles(truncated=3), outcome(36, 9, ended="unparsed", tokens=360)]
    assert len(points(svg(Effort(), rows), UNPARSED)) == 1
    assert domains(spec(Effort(), rows), "shape") == [["solved", "wrong", "unparsed", "truncated"]]


def said(
    tokens: dict[int, tuple[int, ...]], cap: int, right: int = 2
) -> tuple[str, dict[str, Any]]:
    """What `effort` says and draws of attempts by size; up to size `right` they are right unless
    they reach the cap.
    """
    rows = [
        outcome(s, p, correct=s <= right, ended="truncated" if t >= cap else "", tokens=min(t, cap))
        for s, own in tokens.items()
        for p, t in enumerate(own)
    ]
    [sentence] = Effort().findings(Effort(unit="term").estimate(rows))
    return sentence, spec(Effort(unit="term"), rows)


def bands(chart: dict[str, Any]) -> int:
    """Of critical sizes."""
    return sum(mark.get("type") == "rect" for mark in every(chart, "mark"))


def test_effort_quotes_no_fit_to_attempts_that_are_mostly_truncated() -> None:
    tokens = {2: (90, 700, 700), 3: (80, 700, 700), 4: (590, 700, 700), 6: (595, 700, 700)}
    sentence, chart = said(tokens, cap=600)
    assert "8 of 12 attempts were truncated at 600 tokens: too many for a fit" in sentence
    assert not re.search(r"geometric mean|size\^|extrapolated|effort over", sentence)
    assert max(float(n.replace(",", "")) for n in re.findall(r"\d[\d,.]*\d|\d", sentence)) == 600
    assert not data(chart, "fit", "all")
    law = Effort().estimate(
        [outcome(s, p, tokens=t) for s, own in tokens.items() for p, t in enumerate(own)]
    )
    assert law["summary"][0]["no_fit"] == ""  # the same tokens, none truncated


def test_effort_quotes_no_fit_to_two_problems_per_size() -> None:
    sentence, chart = said({2: (50, 90), 4: (60, 110)}, cap=600)
    assert sentence.startswith(
        "m: accuracy falls below 50 % near 2.83 terms, but its interval covers every size asked"
    )
    assert "; too few attempts for a fit" in sentence
    assert not re.search(r"\?|geometric mean|size\^", sentence)
    assert not data(chart, "fit", "all")
    assert bands(chart) == 0
    _, clear = said(
        {2: (50, 90, 70) * 5, 3: (50, 80, 90) * 5, 4: (60, 110, 90) * 5, 6: (60, 110, 90) * 5},
        600,
        right=3,
    )
    assert bands(clear) == 1


def test_effort_of_replies_of_a_few_tokens() -> None:
    # an eighth of their budget is less than one token
    sentence, _ = said({2: (1, 2, 3), 4: (2, 3, 4)}, cap=600)
    assert "all attempts: 1.82 [0.258, 12.8] thinking tokens at 2 terms" in sentence


def test_an_open_end_of_an_interval_is_in_words() -> None:
    assert span({"x": 79.9, "x_low": 64.0, "x_high": None}, "x") == "79.9 [64, no upper bound]"
    assert span({"x": 3.7, "x_low": None, "x_high": None}, "x") == "3.7 (no interval)"
    assert span({"x": None, "x_low": 60.0, "x_high": None}, "x") == "beyond 60"
    assert span({"x": None, "x_low": 0.0, "x_high": None}, "x") == "unknown"


def test_lines_do_not_break_inside_intervals() -> None:
    note = "all attempts: 435 [422, 448] tokens, 90 % within 643 [609, no upper bound] and so on"
    for letters in range(26, 80):
        lines = wrapped(note, letters)
        assert " ".join(lines) == note
        assert all(
            line.count("[") == line.count("]") and not line.startswith(("[", "%")) for line in lines
        )


def test_effort_draws_published_lines_and_attempts_on_one_full_scale() -> None:
    chart = spec(Effort(overlay="tents_effort"), [*puzzles("a"), *puzzles("b")])
    assert domains(chart, "y") == [[0, pytest.approx(1.1 * 47500)]]
    assert domains(chart, "x") == [[0, pytest.approx(1.04 * 100)]]
    [lines] = data(chart, "line", "published")
    assert len(lines) == 10  # both ends of five lines
    assert domains(spec(Effort(), puzzles()), "y") == [[0, pytest.approx(1.1 * 490)]]


def test_effort_never_moves_a_point_sideways() -> None:
    chart = spec(Effort(), puzzles(truncated=3))
    # `dx` is the distance of one label from its line
    assert every(chart, "xOffset") == every(chart, "dx")[1:] == []
    across = {
        m[1]
        for m in re.finditer(
            r'aria-roledescription="point" transform="translate\(([\d.]+)', svg(Effort(), puzzles())
        )
    }
    assert len(across) == 4


def test_accuracy_by_hand() -> None:
    rows = [outcome(16, p, correct=p < 14) for p in range(20)] + [
        outcome(25, p, correct=False) for p in range(20)
    ]
    tables = Accuracy(unit="cell").estimate([*rows, outcome(25, 20, ended="failed")])
    first, second = tables["sizes"]
    assert (first["accuracy"], first["attempts"], first["tokens"]) == (0.7, 20, 100)
    assert (second["accuracy"], second["accuracy_high"], second["failed"]) == (
        0,
        wilson(0, 20, 0.95)[1],
        1,
    )
    [sentence] = Accuracy().findings(tables)
    assert (
        sentence
        == f"m: accuracy {first['accuracy']:.0%} [{first['accuracy_low']:.0%}, {first['accuracy_high']:.0%}] at 16 cells and 0% [0%, 16%] at 25 cells."
    )


def test_accuracy_tells_the_local_estimate_and_an_unsteady_fall() -> None:
    def said(*right: int) -> list[str]:
        rows = [
            outcome(s, p, correct=p < n)
            for s, n in zip((16, 25, 36, 49, 64), right, strict=True)
            for p in range(20)
        ]
        return Accuracy().findings(Accuracy(unit="cell").estimate(rows))

    [sentence] = said(20, 18, 10, 2, 0)
    assert re.search(
        r"; below 50 % from 35.5 \[\d.*\] cells \(35.5 \[\d.*\] by the three nearest sizes alone\)\.$",
        sentence,
    )
    _, doubt = said(4, 8, 12, 16, 20)
    assert doubt.startswith(
        "m: accuracy does not fall steadily with size: 20% at 16 cells and 100% at 64 cells (p"
    )


def test_accuracy_has_ticks_at_the_sizes_asked_and_names_what_is_published() -> None:
    chart = spec(Accuracy(overlay="tents_success"), [*puzzles("a"), *puzzles("b")])
    ticks = [e["x"]["axis"]["values"] for e in every(chart, "encoding") if "axis" in e.get("x", {})]
    assert ticks
    assert all(t == [16, 25, 36, 49] for t in ticks)
    assert domains(chart, "color") == [["a", "b", "published"]]
    scale = next(
        e["color"]["scale"] for e in every(chart, "encoding") if "field" in e.get("color", {})
    )
    assert scale["range"] == [*COLOURS[:2], MUTED]
    [[low, high]] = domains(chart, "x")
    assert low < 16
    assert high > 100  # the largest size published
    assert domains(spec(Accuracy(), puzzles()), "color") == [["m"]]


def test_accuracy_draws_a_size_of_zero() -> None:
    rows = [outcome(s, p, correct=s < 2) for s in (0, 1, 2) for p in range(4)]
    assert every(spec(Accuracy(), rows), "type").count("log") == 0


def test_horizon_by_hand() -> None:
    # Of ten rollouts, six are wrong from turn 3 on: survival is 0.4 from there, below one half at
    # step 3 · 2.
    rows = [rollout(2, 3 if p < 6 else None, p) for p in range(10)] + [
        rollout(1, None, p) for p in range(10)
    ]
    tables = Horizon().estimate(rows)
    one, two = tables["summary"]
    assert (one["series"], two["series"]) == ("1 step per turn", "2 steps per turn")
    assert (one["horizon"], two["horizon"]) == (None, 6)
    # six errors in 6 · 3 + 4 · 8 turns at risk
    assert two["step_accuracy"] == pytest.approx((44 / 50) ** 0.5)
    assert (two["after_right"], two["after_wrong"]) == (pytest.approx(34 / 40), 1)
    survival = {r["size"]: r["value"] for r in tables["survival"] if r["series"] == two["series"]}
    assert (survival[0], survival[6]) == (1, pytest.approx(0.4))
    third = [r for r in tables["turns"] if r["series"] == two["series"]][2]
    assert (third["last"], third["task"], third["turn"]) == (
        6,
        pytest.approx(0.4),
        pytest.approx(0.4),
    )
    assert Horizon(target=0.3).estimate(rows)["summary"][1]["horizon"] is None
    first, end, second, after = Horizon().findings(tables)
    assert first.startswith("m, 1 step per turn: horizon not reached, at least 8 steps;")
    assert end.startswith("m, 1 step per turn: 100% [")
    assert second.startswith("m, 2 steps per turn: horizon 6 [")
    assert after.startswith("m, 2 steps per turn: turn accuracy 85% [")


def test_horizon_has_a_panel_with_intervals_per_series_and_model() -> None:
    rows = [
        rollout(k, 3 if p < 6 else None, p, m)
        for m in ("b", "a")
        for k in (1, 2, 4)
        for p in range(10)
    ]
    chart = spec(Horizon(overlay="execution_horizon"), rows)
    # in the study's order
    assert [grid["title"]["text"] for grid in chart["vconcat"]] == [["b"], ["a"]]
    for grid in chart["vconcat"]:
        titles = [panel["title"]["text"] for panel in grid["concat"]]
        assert titles == [["1 step per turn"], ["2 steps per turn"], ["4 steps per turn"]]
        for panel in grid["concat"]:
            marks = [layer["mark"]["type"] for layer in panel["layer"]]
            assert marks.count("area") == 1
            assert marks.count("rule") == 2  # the target, and the bars of turn accuracy
        assert ['"diamond"' in json.dumps(panel) for panel in grid["concat"]] == [
            True,
            False,
            False,
        ]
    [names] = domains(chart, "color")
    assert names == [
        "task accuracy (no error so far)",
        "turn accuracy",
        "task accuracy, other panels",
        "published",
    ]
    [diamonds] = data(chart, "measure", "published")
    assert len(diamonds) == 7


def test_horizon_tells_tasks_of_one_turn_size_apart() -> None:
    rows = [
        made_up.changed(rollout(2, None, p), task=t)
        for t in ("execution mode=cot", "execution mode=answer")
        for p in range(3)
    ]
    assert len({r["series"] for r in Horizon().estimate(rows)["summary"]}) == 2


def test_an_old_setting_of_horizon_names_the_new_one(write: Any) -> None:
    task = '[[task]]\nname = "execution"\nsize = 4\n[[model]]\nname = "oracle"\n'
    write("s.toml", f'{task}[[figure]]\nname = "horizon"\nshare = 0.8\n')
    with pytest.raises(UserError, match="target"):
        _ = Study.load("s.toml").figures
    with pytest.raises(UserError, match="between 0 and 1"):
        Horizon(target=1.0)


def test_tradeoff_by_hand() -> None:
    rows = [rollout(4, 2 if p < 2 else None, p) for p in range(8)]
    failed = rollout(4, None, 9)._replace(ended="failed")
    [point] = Tradeoff().estimate([*rows, failed])["points"]
    # Tokens: 250 + problem of thinking and 20 of answer, on average 250 + 3.5 + 20.
    assert (point["accuracy"], point["tokens"], point["attempts"], point["failed"]) == (
        0.75,
        273.5,
        8,
        1,
    )
    assert (point["steps"], point["per_turn"]) == (32, 4)


def test_tradeoff_puts_models_side_by_side_on_one_accuracy_axis() -> None:
    steps = {"b": 180, "a": 120}
    rows = [
        made_up.changed(rollout(k, None, p, m), size=steps[m])
        for m in steps
        for k in (1, 2, 4)
        for p in range(4)
    ]
    chart = spec(Tradeoff(overlay="execution_tradeoff"), rows)
    assert [p["title"]["text"] for p in chart["concat"]] == [["b"], ["a"]]
    assert chart["columns"] == 2
    assert chart["resolve"]["scale"] == {"x": "independent", "y": "shared"}
    assert domains(chart, "y") == [[0, 1]]
    assert domains(chart, "color") == [[1, 4]]
    assert domains(chart, "shape") == [["measured", "published"]]
    (low, high), (_, own) = domains(chart, "x")
    assert low < 270
    # published points are of 180 steps, and drawn only in the panel that has as many
    assert high > 30000 > own > 1020
    assert {r["label"] for rows in data(chart, "source", "measured") for r in rows} == {
        "1",
        "2",
        "4",
    }
    assert {r["label"] for rows in data(chart, "source", "published") for r in rows} == {
        "10",
        "20",
        "90",
        "180",
    }


def test_self_conditioning_calls_a_fall_in_accuracy_a_positive_drop() -> None:
    rows = [
        *next_turns(0, 0.0, 20),
        *next_turns(59, 0.0, 18),
        *next_turns(59, 0.5, 10),
        *next_turns(59, 1.0, 19),
    ]
    tables = SelfConditioning().estimate(rows)
    assert [
        (p["history_turns"], p["error_rate"], p["turn_accuracy"]) for p in tables["points"]
    ] == [
        (0, 0.0, 1.0),
        (59, 0.0, 0.9),
        (59, 0.5, 0.5),
        (59, 1.0, 0.95),
    ]
    effects = [(e["effect"], e["error_rate"], pytest.approx(e["drop"])) for e in tables["effects"]]
    # Long context against a fresh start; self-conditioning against a true history of the same
    # length.
    assert effects == [
        ("long context", 0.0, 0.1),
        ("self-conditioning", 0.5, 0.4),
        ("self-conditioning", 1.0, -0.05),
    ]
    first, second, _ = SelfConditioning().findings(tables)
    assert first.startswith("m: long context lowers turn accuracy by 10% [")
    assert second.endswith("after 59 turns with 50% wrong.")


def test_self_conditioning_without_a_fresh_start_claims_no_long_context() -> None:
    tables = SelfConditioning().estimate([*next_turns(59, 0.0, 18), *next_turns(59, 0.5, 10)])
    assert [e["effect"] for e in tables["effects"]] == ["self-conditioning"]
    assert "higher and flatter is better" in json.dumps(
        spec(SelfConditioning(), next_turns(59, 0.0, 18))
    )


def test_the_largest_size_by_hand() -> None:
    rows = [outcome(s, p, correct=s < 9) for s in (1, 2, 4, 8, 16, 32) for p in range(20)]
    figure = Accuracy(target=0.8)
    tables = figure.estimate(rows)
    [summary] = tables["summary"]
    assert 8 <= summary["max_turn_low"] <= summary["max_turn"] <= summary["max_turn_high"] <= 16
    assert [(r["size"], r["accuracy"], r["attempts"]) for r in tables["sizes"]][3:5] == [
        (8, 1.0, 20),
        (16, 0.0, 20),
    ]
    assert figure.findings(tables)[0].startswith("m: the largest size with 80% accuracy is ")
    assert "further right is better" in json.dumps(spec(figure, rows))
    wrong = [o._replace(ended="wrong") for o in rows]
    assert figure.findings(Accuracy(target=0.8, unit="steps").estimate(wrong)) == [
        "m: the largest size with 80% accuracy is fewer than 1 steps."
    ]


EVERY: list[tuple[Figure, list[Outcome]]] = [
    (Effort(overlay="tents_effort"), puzzles()),
    (Accuracy(overlay="tents_success"), puzzles()),
    (Accuracy(target=0.8), puzzles()),
    (Horizon(overlay="execution_horizon"), [rollout(k, 3, p) for k in (1, 2) for p in range(4)]),
    (Tradeoff(), [rollout(k, 3, p) for k in (1, 2) for p in range(4)]),
    (SelfConditioning(), [*next_turns(0, 0.0, 2, 4), *next_turns(9, 0.5, 2, 4)]),
]


@pytest.mark.parametrize(("figure", "rows"), EVERY, ids=[type(f).__name__ for f, _ in EVERY])
def test_a_figure_draws_little_and_much(figure: Figure, rows: list[Outcome]) -> None:
    names = ["a", "gpt + tools", "c", LONG_NAME]
    four = [made_up.changed(o, model=m) for m in names for o in rows]
    wrong = [o._replace(ended="wrong", details={**o.details, "parsed": [None] * 8}) for o in rows]
    nothing = [made_up.changed(o, model="b", ended="failed") for o in rows]
    for outcomes in (
        rows[:1],
        [o for o in rows if o.size == rows[0].size],
        wrong,
        [*rows, *nothing],
    ):
        assert svg(figure, outcomes).startswith("<svg")
    text = re.sub(r"<[^>]*>|\s", "", svg(figure, four))  # a long name is broken into lines
    assert all(name.replace(" ", "") in text for name in names)
