"""Damaged files of problems, answers and traces are read, or refused with a `UserError`: no other
error, no hang.
"""

from __future__ import annotations

import asyncio
import copy
import gzip
import io
import json
import os
import random
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import msgspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from texts import texts
from viewed import TABLE, fill, study

from ponder import Study
from ponder.core import Problem, UserError
from ponder.core.jsonl import MOST_UNPACKED, check_values
from ponder.core.settings import build, toml
from ponder.models import _llama_server, _local_weights
from ponder.models.replay import LINE as REPLY
from ponder.models.replay import Replay
from ponder.results.interop import importing, inspect_log, lm_eval
from ponder.results.view.stores import ViewedStore
from ponder.results.view.studies import studies
from ponder.rewards import skywork
from ponder.store.store import Store
from ponder.tasks._benchmark import LINE as ROW
from ponder.tasks.jsonl import EXAMPLE as JSONL_EXAMPLE
from ponder.tasks.jsonl import LINE as PROBLEM
from ponder.tasks.jsonl import Jsonl
from ponder.tasks.tents import Puzzle, Tents
from ponder.traces import NAMES, Trace, TraceFile, contamination, read, steps
from ponder.traces.duplicates import fingerprint
from ponder.traces.score_file import Scoring, encoded
from ponder.traces.trace_file import rows
from ponder.training import weights as training_weights

TRACE = (
    '{"question": "2 + 2?", "thinking": "2 and 2", "answer": "4", "tokens": 7, "steps": ["a", "b"]}'
)
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | texts | st.integers(min_value=2**63)
)
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
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
    ),
)


@st.composite
def damaged(draw: st.DrawFn, line: str) -> bytes:
    """Some lines like a right one: with other values, other keys, and bytes changed."""
    right, written = json.loads(line), []
    for _ in range(draw(st.integers(0, 3))):
        record = right | draw(st.dictionaries(st.sampled_from([*right, *KEYS]), JSON, max_size=3))
        written.append(
            json.dumps(record, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")
        )
    content = draw(st.sampled_from([b"\n", b"\r\n", b"\n\n", b"\x85"])).join(written)
    for _ in range(draw(st.integers(0, 2))):
        start, end = sorted(draw(st.tuples(*[st.integers(0, len(content))] * 2)))
        content = (
            content[:start]
            + draw(st.binary(max_size=4))
            + content[draw(st.sampled_from([start, end])) :]
        )
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


def test_a_file_that_never_ends_is_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.jsonl"
    os.mkfifo(pipe)
    for endless in (pipe, Path("/dev/zero")):
        with pytest.raises(UserError, match="a pipe or a device"):
            Jsonl(endless).fixed()
        with pytest.raises(UserError, match="a pipe or a device"):
            Jsonl(endless).identity()


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
    cells = draw(
        st.sets(st.tuples(st.integers(0, height - 1), st.integers(0, width - 1)), max_size=20)
    )
    trees = sum(1 << row * (width + 1) + column for row, column in cells)
    columns, rows = (
        draw(st.tuples(*[st.integers(0, most)] * n))
        for most, n in ((height, width), (width, height))
    )
    return Puzzle(width, height, trees, columns, rows)


@given(puzzles())
def test_a_game_id_is_read_as_it_was_written(puzzle: Puzzle) -> None:
    assert Puzzle.from_id(puzzle.id) == puzzle


_letters = st.text("_abyz!-", max_size=9)
_sums = st.lists(st.integers(0, 11_000), max_size=12).map(
    lambda sums: "".join(f",{n}" for n in sums)
)
_sides = st.integers(0, 99_999)


@given(
    ids=st.lists(
        st.builds(
            "{}x{}:{}{}".format, _sides | st.integers(1, 4), st.integers(0, 4), _letters, _sums
        )
        | texts
    )
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


# Seeded mutations of real files, for every reader of files that others have written.

LOGS = Path(__file__).parent / "data" / "logs"
MUTATIONS = 2000 if os.environ.get("PONDER_FIRE") else 40
DEEP = 20_000
RAW = {  # JSON that Python can't write
    "@deep list": "[" * DEEP + "]" * DEEP,
    "@deep object": '{"a":' * DEEP + "1" + "}" * DEEP,
    "@nearly deep": "[" * 900 + "]" * 900,
    "@unclosed": "[" * DEEP,
    "@huge": "9" * 5000,
    "@float": "1e999",
    "@nan": "NaN",
    "@surrogate": '"\\ud800"',
}
WRONG = [
    None,
    True,
    False,
    0,
    -1,
    2**63,
    -(2**70),
    0.5,
    1e300,
    "",
    "x",
    "\x00\x1b\u202e",
    "7" * 5000,
    [],
    {},
    [[]],
    [None],
]
WRONG += [{"a": 1}, [{}], {"type": "text"}, {"role": 1, "content": None}, *RAW]
BYTES = [
    b"[",
    b"{",
    b'"',
    b"\xff",
    b"\x00",
    b"\xef\xbb\xbf",
    b"\r",
    b"\n",
    b"-",
    b"9" * 400,
    b"[" * 3000,
    b"\xed\xa0\x80",
]


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each list or object inside a value, with each of its keys."""
    for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if isinstance(inner, dict | list):
            yield from places(inner)


def wrong_values(chance: random.Random, text: str) -> bytes:
    """JSON with some values replaced, removed or added."""
    value = json.loads(text)
    for _ in range(chance.choice([1, 1, 1, 3])):
        inside, key = chance.choice([*places(value), ([value], 0)])
        if chance.random() < 0.2:
            del inside[key]
        else:
            inside[key] = copy.deepcopy(chance.choice(WRONG))
        if not isinstance(value, dict | list) or not value:
            break
    written = json.dumps(value)
    for name, raw in RAW.items():
        written = written.replace(f'"{name}"', raw)
    return written.encode("utf-8", "surrogatepass")


def wrong_bytes(chance: random.Random, content: bytes) -> bytes:
    """Bytes cut off, changed, added, removed or moved."""
    changed = bytearray(content)
    how = chance.choice(["cut", "flip", "set", "insert", "remove", "copy"])
    if how == "cut":
        return content[: chance.randrange(len(content) + 1)]
    for _ in range(chance.choice([1, 1, 4, 30])):
        at = chance.randrange(len(changed) or 1)
        other = chance.randrange(len(changed) or 1)
        if how == "flip" and changed:
            changed[at] ^= 1 << chance.randrange(8)
        elif how == "set" and changed:
            changed[at] = chance.randrange(256)
        elif how == "insert":
            changed[at:at] = chance.choice(BYTES)
        elif how == "remove":
            del changed[at : at + chance.randrange(40)]
        else:
            changed[at : at + 20] = changed[other : other + 20]
    return bytes(changed)


def wrong_json(chance: random.Random, content: bytes) -> bytes:
    return (
        wrong_values(chance, content.decode())
        if chance.random() < 0.7
        else wrong_bytes(chance, content)
    )


def wrong_lines(chance: random.Random, content: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    at = chance.randrange(len(lines))
    lines[at] = wrong_json(chance, lines[at].rstrip(b"\n")) + b"\n"
    return b"".join(lines)


def wrong_zip(chance: random.Random, content: bytes) -> bytes:
    """A zip file with a wrong member, packed in any way, or with wrong bytes."""
    if chance.random() < 0.4:
        return wrong_bytes(chance, content)
    written = io.BytesIO()
    ways = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
    with (
        zipfile.ZipFile(io.BytesIO(content)) as old,
        zipfile.ZipFile(written, "w", chance.choice(ways)) as new,
    ):
        names = old.namelist()
        wrong = chance.choice(names)
        for name in names:
            member = inspect_log._member(old, name, LOGS / "sums.eval")
            new.writestr(name, wrong_json(chance, member) if name == wrong else member)
    return written.getvalue() if chance.random() < 0.8 else wrong_bytes(chance, written.getvalue())


def wrong_gzip(chance: random.Random, content: bytes) -> bytes:
    if chance.random() < 0.5:
        return wrong_bytes(chance, gzip.compress(content))
    return gzip.compress(wrong_lines(chance, content))


TRACES = (
    f"{TRACE}\n" * 2
    + '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'
)


def samples(path: Path) -> None:
    list(importing.read(path).samples("level"))
    list(importing.read(path).samples())


def imported(path: Path) -> None:
    importing.import_logs([path], path.with_suffix(".db"), path.with_suffix(".toml"))


def traces(path: Path) -> None:
    list(read(path))


def benchmark(path: Path) -> None:
    list(build("tasks", {"name": "math500", "file": str(path)}, "math500", Path()).fixed())


def replayed(path: Path) -> None:
    async def opened() -> None:
        async with Replay(file=path):
            pass

    asyncio.run(opened())


def scored(path: Path) -> None:
    source = path.with_name("traces.jsonl")
    source.write_text(TRACES)
    list(Scoring(TraceFile(source), build("rewards", {"name": "oracle"}, "reward", Path()), path))


def studied(path: Path) -> None:
    _ = Study.load(str(path)).cells
    _ = Study.load(str(path)).figures


def stored(path: Path) -> None:
    of = study()
    with Store(path) as store:
        list(store.outcomes(of.cells))
        for cell in of.cells:
            list(store.attempts(cell))
    with closing(ViewedStore(path, "ponder")) as viewed:
        for shown in studies(viewed):
            _ = shown.state, shown.tokens, shown.title


def weights(path: Path) -> None:
    folder = path.parent / "model"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    path.replace(folder / "model.safetensors")
    model = build("models", {"name": "transformers", "id": str(folder)}, "model", Path())
    assert model.identity()
    model.tokens_per_second(Jsonl(JSONL_EXAMPLE))
    training_weights.tensors(folder)
    assert skywork.tensor_names(str(folder)) is not None


def configured(path: Path) -> None:
    folder = path.parent / "model"
    folder.mkdir(exist_ok=True)
    path.replace(folder / "config.json")
    (folder / "model.safetensors").write_bytes(a_tensor())
    build("models", {"name": "transformers", "id": str(folder)}, "model", Path()).identity()
    _local_weights.own_dtype(folder)


def gguf(path: Path) -> None:
    _llama_server.weights(str(path))
    model = build("models", {"name": "transformers", "id": str(path)}, "model", Path())
    assert model.identity()
    model.tokens_per_second(Jsonl(JSONL_EXAMPLE))


def a_tensor() -> bytes:
    header = json.dumps({"a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(16)


def a_parquet_file() -> bytes:
    polars = pytest.importorskip("polars")
    written = io.BytesIO()
    polars.DataFrame(
        {"question": ["a", "b"], "thinking": ["c" * 99, "d"], "answer": ["4", None]}
    ).write_parquet(written)
    return written.getvalue()


def a_store() -> bytes:
    with TemporaryDirectory() as folder:
        fill(Path(folder) / "ponder.db", study())
        return (Path(folder) / "ponder.db").read_bytes()


class Reader(NamedTuple):
    name: str  # of the file
    content: Callable[[], bytes]
    wrong: Callable[[random.Random, bytes], bytes]
    read: Callable[[Path], object]
    fraction: float = 1.0  # of the mutations, for a slow one


STUDY = json.dumps(TABLE | {"stop": {"margin": 0.03}})
SCORE = b'{"question": "2 + 2?", "thinking": "a", "answer": "4", "score": 1.0, "step_scores": [1], "scored_by": "x"}\n'
INSPECT_ZIP, INSPECT_JSON = (LOGS / "sums.eval").read_bytes, (LOGS / "sums.json").read_bytes
LM_EVAL = next(LOGS.glob("samples_*")).read_bytes
READERS = {
    "Inspect .eval": Reader("a.eval", INSPECT_ZIP, wrong_zip, samples),
    "Inspect .json": Reader("a.json", INSPECT_JSON, wrong_json, samples),
    "Inspect, imported": Reader("a.json", INSPECT_JSON, wrong_json, imported, 0.5),
    "lm-eval": Reader("samples_a.jsonl", LM_EVAL, wrong_lines, samples),
    "lm-eval, imported": Reader("samples_a.jsonl", LM_EVAL, wrong_lines, imported, 0.5),
    "traces": Reader("a.jsonl", TRACES.encode, wrong_lines, traces),
    "traces .gz": Reader("a.jsonl.gz", TRACES.encode, wrong_gzip, traces),
    "traces .json": Reader("a.json", f"[{TRACE}, {TRACE}]".encode, wrong_json, traces),
    "traces .json.gz": Reader("a.json.gz", f"{TRACE}\n".encode, wrong_gzip, traces),
    "traces .parquet": Reader("a.parquet", a_parquet_file, wrong_bytes, traces, 0.1),
    "problems": Reader(
        "a.jsonl", f"{PROBLEM}\n".encode, wrong_lines, lambda path: _asked(Jsonl(path))
    ),
    "benchmark": Reader("a.jsonl", f"{ROW}\n".encode, wrong_lines, benchmark),
    "benchmark .csv": Reader(
        "a.csv", 'problem,answer\n"1 + 1?",2\n'.encode, wrong_bytes, benchmark
    ),
    "replies": Reader("a.jsonl", f"{REPLY}\n".encode, wrong_lines, replayed),
    "scores": Reader("scored.jsonl", lambda: SCORE, wrong_lines, scored),
    "study": Reader("a.toml", lambda: toml(json.loads(STUDY)).encode(), wrong_bytes, studied),
    "store": Reader("ponder.db", a_store, wrong_bytes, stored, 0.5),
    "safetensors": Reader("a.safetensors", a_tensor, wrong_bytes, weights),
    "config.json": Reader(
        "a.json", b'{"model_type": "llama", "dtype": "float32"}'.strip, wrong_json, configured
    ),
    "GGUF": Reader("a.gguf", (b"GGUF" + bytes(60)).strip, wrong_bytes, gguf),
}


@pytest.mark.parametrize("name", READERS)
def test_every_reader_of_foreign_files(tmp_path: Path, name: str) -> None:
    reader = READERS[name]
    content = reader.content()
    for seed in range(round(MUTATIONS * reader.fraction)):
        folder = tmp_path / str(seed)
        folder.mkdir()
        (folder / reader.name).write_bytes(reader.wrong(random.Random(f"{name} {seed}"), content))
        try:
            reader.read(folder / reader.name)
        except UserError:
            pass
        except BaseException as error:
            error.add_note(f"mutation {seed} of {name}")
            raise
        shutil.rmtree(folder)


def test_what_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    zeros = b'{"a": "' + b"0" * MOST_UNPACKED + b'"}'
    too_much = f"more than {MOST_UNPACKED >> 20} MB"
    for name in ("a.jsonl.gz", "a.json.gz"):
        (tmp_path / name).write_bytes(gzip.compress(zeros, 1))
        with pytest.raises(UserError, match=too_much):
            traces(tmp_path / name)
    for number, pack in (
        (zipfile.ZIP_DEFLATED, b""),
        (inspect_log.ZSTANDARD, zstandard.compress(zeros)),
    ):
        with zipfile.ZipFile(
            tmp_path / "a.eval", "w", zipfile.ZIP_STORED if pack else number
        ) as file:
            file.writestr("header.json", pack or zeros)
            file.getinfo("header.json").compress_type = number  # in the directory at the end
        with pytest.raises(UserError, match=f"header.json: it unpacks to {too_much}"):
            samples(tmp_path / "a.eval")


def test_a_parquet_file_that_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    polars = pytest.importorskip("polars")
    polars.DataFrame({"question": ["a" * (MOST_UNPACKED + 1)]}).write_parquet(
        tmp_path / "a.parquet"
    )
    assert (tmp_path / "a.parquet").stat().st_size < 100_000
    with pytest.raises(UserError, match="a row takes more than 128 MB"):
        traces(tmp_path / "a.parquet")


@pytest.mark.parametrize("seed", [290, 614])
def test_a_panic_of_polars_is_a_users_error(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(wrong_bytes(random.Random(f"traces .parquet {seed}"), a_parquet_file()))
    with pytest.raises(UserError, match="can't read it as Parquet"):
        traces(path)


def test_an_encrypted_log_says_so(tmp_path: Path) -> None:
    content = bytearray((LOGS / "sums.eval").read_bytes())
    for mark, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = content.find(mark)
        while at >= 0:
            content[at + flags] |= 1
            at = content.find(mark, at + 4)
    (tmp_path / "a.eval").write_bytes(content)
    with pytest.raises(UserError, match="it is encrypted"):
        samples(tmp_path / "a.eval")


MANY_LISTS = b'{"question": "q", "answer": "a", "x": [' + b"[]," * 3_000_000 + b"1]}"


def test_a_record_of_too_many_values_is_refused_before_it_is_decoded(tmp_path, monkeypatch) -> None:
    """A megabyte of brackets takes fifty in memory."""
    monkeypatch.setattr(msgspec.json, "decode", lambda *_, **__: pytest.fail("it was decoded"))
    packed = tmp_path / "a.jsonl.gz"
    packed.write_bytes(gzip.compress(MANY_LISTS, 1))
    plain = tmp_path / "a.json"
    plain.write_bytes(b"[" + MANY_LISTS + b"]")
    for path in (packed, plain):
        with pytest.raises(UserError, match="more than 5,000,000 values"):
            list(rows(path))
    log = tmp_path / "a.eval"
    with zipfile.ZipFile(log, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("header.json", MANY_LISTS)
    with pytest.raises(UserError, match="more than 5,000,000 values"):
        inspect_log.read(log)


def test_text_with_many_commas_is_no_record_of_many_values() -> None:
    check_values(b"one, two and three, or so. " * 1_000_000, "a.jsonl:1", "")


def test_blank_lines_end(tmp_path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b"\n" * 1_100_000))
    with pytest.raises(UserError, match="more than 1,000,000 blank lines"):
        list(rows(path))


def test_the_problems_of_a_log_are_bounded(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("ponder.results.interop.importing.MOST_PROBLEMS", 4000)
    line = {
        "doc": {},
        "target": "a",
        "resps": [["a"]],
        "filtered_resps": ["a"],
        "arguments": "q" * 500,
    }
    path = tmp_path / "samples_sums_2024.jsonl"
    path.write_text("".join(json.dumps({"doc_id": n, **line}) + "\n" for n in range(20)), "utf-8")
    with pytest.raises(UserError, match="its problems take more than"):
        importing._Survey.of(lm_eval.read(path), "")


def test_a_score_that_no_float_holds_is_not_scored(tmp_path) -> None:
    line = {
        "doc_id": 0,
        "doc": {},
        "target": "a",
        "resps": [["a"]],
        "filtered_resps": ["a"],
        "metrics": ["match"],
    }
    path = tmp_path / "samples_sums_2024.jsonl"
    path.write_text(json.dumps({**line, "match": 10**400}), "utf-8")
    (sample,) = lm_eval.read(path).samples()
    assert sample.scores["match,none"].value is None
