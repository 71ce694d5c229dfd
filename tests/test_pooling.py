"""No figure pools attempts of different settings in silence: it splits by the setting, or says what
it pools.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import made_up
import pytest

from ponder.cli.check import _outcomes, _shortened
from ponder.core import Figure, Label, Outcome, Prices, Tables, plugins
from ponder.figures import by_series
from ponder.figures.best_of import BestOf
from ponder.figures.budget import Budget
from ponder.figures.frontier import Frontier
from ponder.figures.heatmap import Heatmap
from ponder.figures.horizon import Horizon
from ponder.figures.samples import Samples
from ponder.figures.selection import Selection
from ponder.figures.self_conditioning import SelfConditioning
from ponder.figures.tradeoff import Tradeoff
from ponder.study.labels import differing, distinctions, pooled

MODES = ("answer", "cot")
PRICES = Prices(1.0, 2.0)
ASH, ELM = "ash", "elm"  # values of a setting that no figure draws


def outcome(
    task: str = "t",
    model: str = "m",
    size: int = 8,
    problem: str = "p0",
    right: bool = True,
    **columns: Any,
):
    details = {"per_turn": 2, "parsed": [1, 2], "true": [1, 2 if right else 3], "start": 0}
    details |= {"history_turns": 0, "error_rate": 0.0}
    columns = {"details": details, **columns}
    return made_up.outcome(task, model, size, problem, "right" if right else "wrong", **columns)


# The method that a figure draws, if it is one of methods.
PRUNED = ("compress", {"policy": "h2o", "window": 8, "ratio": 0.5})
DRAWS = {
    "heatmap": PRUNED,
    "cache": PRUNED,
    "fidelity": PRUNED,
    "selection": ("sft", {"by": "random", "number": 10, "seed": 1}),
    "best_of": ("best_of", {"n": 2, "pick": "best", "reward": "r"}),
}


def made(name: str, wood: str = "") -> list[Outcome]:
    """Attempts by a model with the method that a figure draws, or else one that trains, which may
    have this `wood`.
    """
    method, settings = DRAWS.get(name, ("shortest", {"seed": 1, "problems": 4}))
    methods = [(method, {**settings, **({"wood": wood} if wood else {})})]
    text = f"{method}{f' wood={wood}' if wood else ''}"
    label = Label("task", "model", f"model + {text}", f"model + {text}", text)
    details = {"cache_bytes": 9.0, "kl": 0.5}
    found = []
    for o in map(_shortened, _outcomes()[:24]):
        cell = made_up.cell("task", "model", o.size, methods)
        found.append(o._replace(cell=cell, label=label, details={**o.details, **details}))
    return found


def by_task(name: str, wood: str) -> list[Outcome]:
    """Attempts as a study labels and describes them whose task has this `wood`."""
    task = made_up.cell("task", task_settings={"wood": wood}).task
    attempts = made(name)
    if name == "compare":  # needs two models
        other = Label("task", "other", "other", "other")
        attempts += [
            o._replace(cell=made_up.cell("task", "other", o.size), label=other) for o in attempts
        ]
    return [
        o._replace(
            cell=replace(o.cell, task=task), label=replace(o.label, task=f"task wood={wood}")
        )
        for o in attempts
    ]


def by_model(name: str, wood: str) -> list[Outcome]:
    model, base = (
        made_up.cell(model_settings={"name": "model", "wood": wood}).model,
        f"model wood={wood}",
    )
    label = Label("task", base, f"{base} + method", f"{base} + method", "method")
    return [o._replace(cell=replace(o.cell, model=model), label=label) for o in made(name)]


def by_method(name: str, wood: str) -> list[Outcome]:
    return made(name, wood)


def said(spec: dict[str, Any], findings: Sequence[str]) -> tuple[bool, bool]:
    """Whether a title of the chart says what is pooled, and whether a finding does."""
    titles = json.dumps(_titles(spec))
    text = f"pooled over wood = {ASH}, {ELM}"
    return text in titles, any(text in sentence.lower() for sentence in findings)


def _titles(spec: Any) -> list[Any]:
    if isinstance(spec, dict):
        own = [spec["title"]] if "title" in spec else []
        return own + [
            title
            for key, value in spec.items()
            if key not in ("values", "datasets")
            for title in _titles(value)
        ]
    return [title for one in spec for title in _titles(one)] if isinstance(spec, list) else []


def numbers(tables: Tables, *names: str) -> set[str]:
    """The rows of a figure's tables, without texts: names differ between a figure of one setting
    and of two.
    """
    rows = [row for name, rows in tables.items() if name in names or not names for row in rows]
    return {
        json.dumps({k: v for k, v in row.items() if not isinstance(v, str)}, sort_keys=True)
        for row in rows
    }


@pytest.mark.parametrize("attempts", [by_task, by_model, by_method])
@pytest.mark.parametrize("name", plugins.files("figures"))
def test_every_figure_splits_by_a_setting_or_says_that_it_pools(name: str, attempts) -> None:
    cls = plugins.load("figures", name)
    figure = cls(**({} if name in DRAWS else cls.example))
    ash, elm = attempts(name, ASH), attempts(name, ELM)
    if name == "cost":
        ash, elm = made_up.priced(ash, PRICES), made_up.priced(elm, PRICES)
    tables = figure.estimate([*ash, *elm])
    spec = figure.draw(tables).to_dict(validate=False)
    if said(spec, figure.findings(tables)) == (True, True):
        return
    # Split: each value is named, and every number is one that its attempts alone have.
    drawn = str(spec)
    assert f"={ASH}" in drawn or f" {ASH}" in drawn
    assert f"={ELM}" in drawn or f" {ELM}" in drawn
    alone = [figure.estimate(part) for part in (ash, elm)]
    main = [n for n in ("summary", "sizes", "points", "cells", "students") if tables.get(n)]
    # variants of one task are compared with each other, which gives further numbers
    if attempts is by_task:
        assert numbers(tables, *main) == numbers(alone[0], *main) | numbers(alone[1], *main)


def test_the_trade_off_of_two_modes_has_a_panel_each() -> None:
    def asked(mode: str, per_turn: int, right: bool) -> list[Outcome]:
        settings = {"name": "execution", "mode": mode, "per_turn": per_turn}
        label, details = f"execution mode={mode} per_turn={per_turn}", {"per_turn": per_turn}
        return [
            outcome(label, problem=f"p{i}", right=right, details=details, task_settings=settings)
            for i in range(4)
        ]

    both = [o for n in (1, 2) for o in (*asked("answer", n, False), *asked("cot", n, True))]
    tables = Tradeoff().estimate(both)
    assert [row["series"] for row in tables["summary"]] == ["m, mode=answer", "m, mode=cot"]
    assert {(p["series"], p["per_turn"], p["accuracy"], p["attempts"]) for p in tables["points"]} == {
        ("m, mode=answer", 1, 0.0, 4), ("m, mode=answer", 2, 0.0, 4), ("m, mode=cot", 1, 1.0, 4), ("m, mode=cot", 2, 1.0, 4)
    }  # fmt: skip
    assert {row["pooled"] for row in tables["summary"]} == {""}
    panels = [row["panel"] for row in Horizon().estimate(rollouts())["summary"]]
    assert panels == ["2 steps per turn, mode=answer", "2 steps per turn, mode=cot"]


def rollouts() -> list[Outcome]:
    named = [
        (f"execution mode={mode}", {"name": "execution", "mode": mode})
        for mode in ("answer", "cot")
    ]
    return [
        outcome(label, problem=f"p{i}", task_settings=settings)
        for label, settings in named
        for i in range(4)
    ]


def test_self_conditioning_has_a_line_per_setting() -> None:
    tables = SelfConditioning().estimate(rollouts())
    assert [row["series"] for row in tables["summary"]] == ["m, mode=answer", "m, mode=cot"]


@pytest.mark.parametrize("figure", [Frontier(), Budget(), BestOf(), Samples(), Horizon(), SelfConditioning(), Heatmap(x="history_turns", y="error_rate", sizes="together")])  # fmt: skip
def test_pooled_sizes_are_said(figure: Figure) -> None:
    sizes = [16, 25, 36, 64, 100]
    tables = figure.estimate(
        [outcome(size=size, problem=f"{size}/{i}") for size in sizes for i in range(3)]
    )
    assert figure.findings(tables)[0] == "Pooled over size = 16–100."
    assert "pooled over size = 16–100" in str(figure.draw(tables).to_dict())
    alone = figure.estimate([outcome(size=16, problem=f"{i}") for i in range(3)])
    assert "ooled" not in str(figure.draw(alone).to_dict()) + str(figure.findings(alone))


def test_by_size_pools_no_sizes() -> None:
    figure = Frontier(by="size")
    tables = figure.estimate(
        [outcome(size=size, problem=f"{size}/{i}") for size in (16, 25) for i in range(3)]
    )
    assert "ooled" not in str(figure.findings(tables))


def test_votes_of_different_settings_are_one_line_that_says_so() -> None:
    """`best_of` has one line for all majority votes."""
    votes = [
        outcome(problem=f"p{i}", methods=[("vote", {"n": 2, "at": at})])
        for at in (0.5, 1.0)
        for i in range(3)
    ]
    tables = BestOf().estimate(votes)
    assert [panel["pooled"] for panel in tables["panels"]] == ["pooled over at = 0.5, 1.0"]


def test_training_seeds_are_pooled_without_a_word_and_rewards_of_one_name_are_not() -> None:
    def student(seed: int, reward: str) -> list[Outcome]:
        settings = {"by": "reward", "number": 10, "reward": reward, "seed": seed}
        return [outcome(problem=f"p{i}", methods=[("sft", settings)]) for i in range(4)]

    seeds = Selection().estimate([*student(1, "qwen"), *student(2, "qwen")])
    assert [panel["pooled"] for panel in seeds["panels"]] == [""]
    assert [row["seeds"] for row in seeds["students"]] == [2]
    sizes = [*student(1, "qwen"), *(made_up.changed(o, size=25) for o in student(1, "qwen"))]
    tables = Selection().estimate(sizes)
    assert "Pooled over size = 8, 25." in Selection().findings(tables)
    assert "pooled over size = 8, 25" in str(Selection().draw(tables).to_dict())
    two = Selection().estimate([*student(1, "qwen"), *student(1, "qwen at=2")])
    assert [row["line"] for row in two["students"]] == ["qwen", "qwen at=2"]


def test_outcomes_of_two_studies_with_the_same_labels_are_two_series() -> None:
    cool, warm = ({"name": "endpoint", "temperature": t} for t in (0.0, 1.0))
    both = [outcome(problem=f"p{i}", model_settings=s) for s in (cool, warm) for i in range(2)]
    series = dict(by_series(both))
    assert list(series) == ["m temperature=0.0", "m temperature=1.0"]
    assert [len(part) for part in series.values()] == [2, 2]
    assert list(dict(by_series(both[:2]))) == ["m"]


def test_dotted_names() -> None:
    methods = [("vote", {"n": 2}), ("budget_force", {"think": 9}), ("vote", {"n": 8})]
    cell = made_up.cell(
        methods=methods, task_settings={"mode": "cot"}, model_settings={"temperature": 1}
    )
    assert dict(cell.settings) == {
        "task.name": "t", "task.mode": "cot", "task.remember": "visible", "task.window": None,
        "model.name": "m", "model.temperature": 1, "vote.n": 2, "budget_force.think": 9, "vote[1].n": 8,
    }  # fmt: skip


def test_what_differs_is_what_differs_between_those_that_have_it() -> None:
    tables = [{"a": 2, "b": {"c": [1]}}, {"a": 10, "b": {"c": [1]}}, {"b": {"c": [1]}, "d": None}]
    assert differing(tables) == {"a": [2, 10]}


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ([{"a": 1}, {"a": 1}], ""),
        ([{"a": True}, {"a": False}], "pooled over a = False, True"),
        ([{"a": n} for n in (9, 1, 5, 3, 7)], "pooled over a = 1–9"),
        ([{"a": n} for n in "zyxwvu"], "pooled over a = u, v, w, x, 2 more"),
        ([{"a": 1, "b": "x"}, {"a": 2, "b": None}], "pooled over a = 1, 2; b = None, x"),
        (
            [{"name": "tents"}, {"name": "gym", "dataset": "x"}],
            "pooled over task.name = gym, tents",
        ),
        ([{"a": {"long": "x" * 99}}, {"a": {}}], f"pooled over long = None, {'x' * 39}…"),
    ],
)
def test_what_is_pooled_in_words(settings: Sequence[dict[str, Any]], text: str) -> None:
    part = [outcome(task_settings=table) for table in settings]
    assert pooled([part]) == pooled([part[::-1]]) == text
    assert pooled([[one] for one in part]) == ""


def test_a_setting_of_the_same_name_is_named_in_full() -> None:
    part = [outcome(task_settings={"wide": n}, methods=[("compress", {"wide": n})]) for n in (1, 2)]
    assert pooled([part]) == "pooled over compress.wide = 1, 2; task.wide = 1, 2"
    assert pooled([part], ("compress.wide",)) == "pooled over wide = 1, 2"
    bare = [*part, outcome(task_settings={"wide": 1})]
    assert "methods = compress, none" in pooled([bare])
    cells = [o.cell for o in part]
    assert [*distinctions(cells, ("wide",)).values()] == ["", ""]
    assert [*distinctions(cells, of="task").values()] == ["wide=1", "wide=2"]


STUDY = """
problems = 3
[[task]]
name = "execution"
size = 2
mode = "answer"
[[task]]
name = "execution"
size = 2
mode = "cot"
[[model]]
name = "oracle"
[[model]]
name = "oracle"
error = 1
[[figure]]
name = "tradeoff"
"""


def test_the_plan_and_the_report_have_a_line_per_setting(write, ponder) -> None:
    write("s.toml", STUDY)
    lines = {
        (model, f"execution mode={mode}")
        for model in ("oracle error=0.0", "oracle error=1")
        for mode in MODES
    }
    plan = json.loads(ponder("plan", "s.toml", "--json").stdout)
    assert {
        (line["model"], line["task"]): line["attempts"] for line in plan["forecasts"]
    } == dict.fromkeys(lines, 3)
    ponder("run", "s.toml")
    assert ponder("report", "s.toml", "-o", "out").exit_code == 0
    page = Path("out/report.html").read_text()
    table = page[page.index("How the attempts") :].partition("</table>")[0]
    rows = [
        re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)
        for row in re.findall(r"<tr>.*?</tr>", table, re.DOTALL)
    ]
    named = [[*filter(None, re.sub(r"<[^>]+>", "|", row[0]).split("|"))] for row in rows if row]
    shown = {
        (*names, row[2], "wrong" in row[1])
        for names, row in zip(named, filter(None, rows), strict=True)
    }
    assert shown == {(*line, "3", "=1" in line[0]) for line in lines}
    # what the lists of attempts are made from
    index = page[page.index('type="application/json"') :]
    assert all(f'"execution mode={mode}"' in index for mode in MODES)
    with Path("out/tradeoff-points.csv").open() as file:
        points = {(row["series"], row["attempts"]) for row in csv.DictReader(file)}
    assert points == {
        (f"{model}, mode={mode}", "3")
        for model in ("oracle error=0.0", "oracle error=1")
        for mode in MODES
    }


def test_a_map_over_two_settings_of_a_task_is_one_map_per_other_setting() -> None:
    """A study labels each of its cells as another task."""
    cells = [(mode, turns, rate) for mode in MODES for turns in (4, 8) for rate in (0.0, 0.5)]
    outcomes = [
        outcome(
            f"execution mode={mode} history_turns={turns} error_rate={rate}",
            problem=f"p{i}",
            details={"history_turns": turns, "error_rate": rate},
            task_settings={
                "name": "execution",
                "mode": mode,
                "history_turns": turns,
                "error_rate": rate,
            },
        )
        for mode, turns, rate in cells
        for i in range(3)
    ]
    tables = Heatmap(x="history_turns", y="error_rate").estimate(outcomes)
    assert [(p["panel"], p["cells"], p["pooled"]) for p in tables["panels"]] == [
        (f"m | execution mode={mode}", 4, "") for mode in MODES
    ]
