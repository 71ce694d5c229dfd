"""A damaged study gives cells or a `UserError`: no other error, and no hang."""

from __future__ import annotations

import copy
import dataclasses
import datetime
from contextlib import suppress
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from texts import texts

from ponder import Study
from ponder.core import UserError, plugins
from ponder.core.settings import assign

GOOD: list[dict[str, Any]] = [
    {
        "title": "t",
        "problems": 3,
        "samples": 2,
        "seed": 7,
        "max_tokens": 1000,
        "task": [
            {"name": "chain_sum", "size": [2, 4], "digits": [1, 2]},
            {"name": "execution", "size": 12, "per_turn": [1, 3], "remember": "answers", "window": 2},
        ],
        "model": [
            {"name": "oracle", "error": [0.0, 0.5], "method": [{"name": "vote", "samples": 3}]},
            {"name": "endpoint", "id": "m", "url": "http://127.0.0.1:1/v1", "key": "$KEY", "budget": 100},
        ],
        "figure": [{"name": "effort"}],
    },
    {
        "task": [{"name": "tents", "size": 16, "difficulty": "easy"}, {"name": "execution", "per_turn": 0}],
        "train": [{"name": "chain_sum", "size": 3}],
        "model": [{"name": "oracle", "label": "o", "method": [[{"name": "budget_force", "think": [10, 20]}], []]}],
    },
    {
        "task": [{"name": "execution", "per_turn": 0}],
        "stop": {"goal": "max_size", "target": 0.5, "largest": 16},
        "model": [{"name": "oracle"}],
    },
    {
        "task": [{"name": "jsonl", "file": "problems.jsonl"}, {"name": "gym", "dataset": "chain_sum", "size": [0, 1]}],
        "model": [{"name": "replay", "file": "replies.jsonl", "prices": {"input": 1.0, "output": 2.0}}],
        "figure": [{"name": "accuracy", "overlay": "tents_success"}],
    },
]  # fmt: skip
NAMES = sorted(
    name for kind in ("tasks", "models", "methods", "figures") for name in plugins.names(kind)
)
KEYS = [
    "name",
    "size",
    "goal",
    "target",
    "largest",
    "remember",
    "window",
    "method",
    "label",
    "budget",
    "per_turn",
    "id",
]
KEYS += [
    "key",
    "url",
    "file",
    "prices",
    "options",
    "dataset",
    "vary",
    "values",
    "ids",
    "model",
    "weight",
    "other",
    "x",
]
VALUES = st.recursive(
    st.booleans()
    | st.integers(-3, 20)
    | st.sampled_from([10**6, 10**12, 2**63, 10**400, -(10**30)])
    | st.floats()
    | st.sampled_from(
        [
            *NAMES,
            "max",
            "answers",
            "$KEY",
            "",
            ".",
            "../x.py",
            "a.toml",
            "\x00",
            "http://x",
            "tricky",
        ]
    )
    | st.text(st.characters(), max_size=4)
    | st.just(datetime.date(2026, 1, 1)),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3)
    ),
    max_leaves=6,
)


def _places(table: Any) -> list[tuple[Any, Any]]:
    """Every place in a study where there is a value, as (container, key)."""
    entries = list(
        table.items()
        if isinstance(table, dict)
        else enumerate(table)
        if isinstance(table, list)
        else ()
    )
    return [place for key, value in entries for place in [(table, key), *_places(value)]]


@st.composite
def damaged(draw: st.DrawFn) -> dict[str, Any]:
    study: dict[str, Any] = copy.deepcopy(draw(st.sampled_from(GOOD)))
    for _ in range(draw(st.integers(1, 3))):
        if not (places := _places(study)):
            break
        table, key = draw(st.sampled_from(places))
        if isinstance(table, dict) and draw(st.booleans()):
            table[draw(st.sampled_from(KEYS))] = draw(VALUES)
        elif draw(st.integers(0, 3)):
            table[key] = draw(VALUES)
        else:
            del table[key]
    return study


def _cells(content: dict[str, Any]) -> None:
    with suppress(UserError):
        study = Study.from_table(content, where="s.toml", folder=Path(__file__).parent / "data")
        study.resolved()
        study.check()
        for cell in study.cells:
            with suppress(UserError):  # the file of its problems is not there
                cell.key.hex()
                cell.spec()


@given(
    damaged()
    | st.dictionaries(
        st.sampled_from(["task", "model", "figure", "train", "seed", "problems"]), VALUES
    )
)
def test_a_study_has_cells_or_is_refused(content: dict[str, Any]) -> None:
    _cells(content)


SETTINGS = [
    (kind, name, field.name)
    for kind in ("task", "model", "method")
    for name in plugins.names(f"{kind}s")
    for field in dataclasses.fields(plugins.load(f"{kind}s", name))
]


@given(st.sampled_from(SETTINGS), VALUES)
def test_any_setting_of_any_plugin(setting: tuple[str, str, str], value: Any) -> None:
    kind, name, key = setting
    table = {"name": name, **plugins.load(f"{kind}s", name).example, key: value}
    content: dict[str, Any] = {
        "task": [{"name": "chain_sum", "size": 2}],
        "model": [{"name": "oracle"}],
    }
    content |= (
        {"model": [{"name": "oracle", "method": [table]}]} if kind == "method" else {kind: [table]}
    )
    _cells(content)


@given(damaged(), st.lists(texts | st.builds("{}{}={}".format, st.sampled_from(["task", "model[1]", "model[9]", "seed", "figure", "title", "x"]), st.sampled_from(["", ".name", ".size", ".x", "[0]", "[0].name", "[٣].size", "."]), texts), max_size=3))  # fmt: skip
def test_settings_are_applied_or_refused(content: dict[str, Any], settings: list[str]) -> None:
    with suppress(UserError):
        for setting in settings:
            assign(content, setting)
