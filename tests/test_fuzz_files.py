"""Damaged files of problems, answers and traces are read, or refused with a `UserError`: no other error, no hang."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from texts import texts

from ponder.core import Problem, UserError
from ponder.core.settings import build
from ponder.models.replay import LINE as REPLY
from ponder.models.replay import Replay
from ponder.tasks._benchmark import LINE as ROW
from ponder.tasks.jsonl import LINE as PROBLEM
from ponder.tasks.jsonl import Jsonl
from ponder.tasks.tents import Puzzle, Tents
from ponder.traces import NAMES, Trace, contamination, read, steps
from ponder.traces.duplicates import fingerprint
from ponder.traces.score_file import encoded

TRACE = '{"question": "2 + 2?", "thinking": "2 and 2", "answer": "4", "tokens": 7, "steps": ["a", "b"]}'
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | texts | st.integers(min_value=2**63)
KEYS = sorted({name for names in NAMES.values() for name in names})
KEYS += [
    "prompt",
    "size",
    "facts",
    "sample",
    "turn",
    "stop",
    "steps",
    "messages",
    "role",
    "content",
    "wrong 1",
    "score",
]
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
)


@st.composite
def damaged(draw: st.DrawFn, line: str) -> bytes:
    """Some lines like a right one: with other values, other keys, and bytes changed."""
    right, written = json.loads(line), []
    for _ in range(draw(st.integers(0, 3))):
        record = right | draw(st.dictionaries(st.sampled_from([*right, *KEYS]), JSON, max_size=3))
        written.append(json.dumps(record, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass"))
    content = draw(st.sampled_from([b"\n", b"\r\n", b"\n\n", b"\x85"])).join(written)
    for _ in range(draw(st.integers(0, 2))):
        start, end = sorted(draw(st.tuples(*[st.integers(0, len(content))] * 2)))
        content = content[:start] + draw(st.binary(max_size=4)) + content[draw(st.sampled_from([start, end])) :]
    return content


def a_file(line: str) -> st.SearchStrategy[bytes]:
    return damaged(line) | st.binary(max_size=60)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged") / "file.jsonl"


def _asked(task: Any) -> None:
    for problem in task.fixed():
        task.check_size(problem.size)
        assert task.problem(problem.size, 0)
        assert isinstance(problem, Problem)
        task.grade(problem, "4")


@given(content=a_file(PROBLEM))
def test_problems(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with suppress(UserError):
        _asked(Jsonl(path))


@given(content=a_file(ROW), suffix=st.sampled_from([".jsonl", ".csv"]))
def test_benchmarks(path: Path, content: bytes, suffix: str) -> None:
    file = path.with_suffix(suffix)
    file.write_bytes(content)
    for name in ("math500", "gpqa"):
        with suppress(UserError):
            made = build("tasks", {"name": name, "file": str(file)}, name, Path())
            assert all(isinstance(problem, Problem) for problem in made.fixed())


@given(content=a_file(REPLY))
def test_stored_replies(path: Path, content: bytes) -> None:
    async def opened() -> None:
        async with Replay(file=path):
            pass

    path.write_bytes(content)
    with suppress(UserError):
        asyncio.run(opened())


@given(content=a_file(TRACE), bad=st.sampled_from(["refuse", "skip"]))
def test_traces(path: Path, content: bytes, bad: Any) -> None:
    path.write_bytes(content)
    traces: list[Trace] = []
    with suppress(UserError):
        traces += read(path, bad)
    known = contamination.EvaluationSet([Problem("p", 0, ("2 + 2?",))])
    for trace in traces:
        for by in ("blank", "sentence"):
            steps(trace, by)
        fingerprint(trace)
        known.contains(trace)
        path.write_bytes(encoded(trace.record()))
        (again,) = read(path)
        assert (again.question, again.id) == (trace.question, trace.id)


@given(content=a_file(TRACE))
def test_evaluation_questions(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with suppress(UserError):
        list(contamination.problems(path.name, path.parent))


@st.composite
def puzzles(draw: st.DrawFn) -> Puzzle:
    width, height = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    cells = draw(st.sets(st.tuples(st.integers(0, height - 1), st.integers(0, width - 1)), max_size=20))
    trees = sum(1 << row * (width + 1) + column for row, column in cells)
    columns, rows = (draw(st.tuples(*[st.integers(0, most)] * n)) for most, n in ((height, width), (width, height)))
    return Puzzle(width, height, trees, columns, rows)


@given(puzzles())
def test_a_game_id_is_read_as_it_was_written(puzzle: Puzzle) -> None:
    assert Puzzle.from_id(puzzle.id) == puzzle


_letters = st.text("_abyz!-", max_size=9)
_sums = st.lists(st.integers(0, 11_000), max_size=12).map(lambda sums: "".join(f",{n}" for n in sums))
_sides = st.integers(0, 99_999)


@given(
    ids=st.lists(st.builds("{}x{}:{}{}".format, _sides | st.integers(1, 4), st.integers(0, 4), _letters, _sums) | texts)
)
def test_files_of_game_ids(path: Path, ids: list[str]) -> None:
    path.write_text("\n".join(ids), "utf-8", "surrogatepass")
    with suppress(UserError):
        _asked(Tents(ids=path))


@given(st.builds("{0}x{0}:{1}{2}".format, st.integers(0, 4), _letters, _sums) | texts)
def test_a_game_id_is_a_puzzle_or_a_value_error(text: str) -> None:
    with suppress(ValueError):
        puzzle = Puzzle.from_id(text)
        assert Puzzle.from_id(puzzle.id) == puzzle
