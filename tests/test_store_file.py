"""Files that are no stores, empty files, damaged stores and read-only media: every verb says what
is wrong.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path
from sqlite3 import OperationalError
from typing import Any

import pytest
from click.testing import CliRunner

from ponder import Study
from ponder.cli import main
from ponder.core import UserError
from ponder.store import file as store_file
from ponder.store import schema
from ponder.store.store import Store

STUDY = """
problems = 6
samples = 2
[[task]]
name = "execution"
size = [3, 5]
[[task]]
name = "chain_sum"
size = 3
[[model]]
name = "oracle"
error = 0.2
[[figure]]
name = "accuracy"
"""
READING = (
    ("plan", "s.toml"),
    ("report", "s.toml"),
    ("export", "s.toml", "--format", "jsonl"),
    ("export", "s.toml"),
)
VERBS = (*READING, ("run", "s.toml"), ("regrade", "s.toml"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a study in it; no test changes it."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "s.toml").write_text(STUDY)
    done = CliRunner().invoke(
        main, ["run", str(folder / "s.toml"), "--store", str(folder / "ponder.db")]
    )
    assert done.exit_code == 0
    return folder


@pytest.fixture
def copied(whole, folder) -> Path:
    for name in ("s.toml", "ponder.db"):
        shutil.copy(whole / name, folder / name)
    return folder / "ponder.db"


def content(path: Path):
    """Everything that a store holds about the study."""
    cells = Study.load("s.toml").cells
    with Store(path) as store:
        return (
            list(store.outcomes(cells)),
            [list(store.attempts(c)) for c in cells],
            [store.done(c) for c in cells],
        )


def sql(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for statement in statements:
            db.execute(statement)


def no_header(path: Path) -> None:
    path.write_bytes(b"this is no database" * 1000)


def other_tables(path: Path) -> None:
    sql(path, "CREATE TABLE album (id INTEGER)")


def our_names_other_columns(path: Path) -> None:
    sql(
        path,
        *(
            f"CREATE TABLE {t} (id INTEGER)"
            for t in ("study", "cell", "problem", "attempt", "turn")
        ),
    )


def other_version(path: Path) -> None:
    sql(path, "CREATE TABLE album (id INTEGER)", "PRAGMA user_version = 3")


def later_version(path: Path) -> None:
    sql(path, "CREATE TABLE album (id INTEGER)", "PRAGMA user_version = 17")


def version_alone(path: Path) -> None:
    sql(path, "PRAGMA user_version = 2")


@pytest.mark.parametrize(
    "make",
    [no_header, other_tables, our_names_other_columns, other_version, later_version, version_alone],
)
def test_a_file_of_another_kind_is_refused_by_every_verb(make, write, ponder) -> None:
    write("s.toml", STUDY)
    make(Path("ponder.db"))
    before = Path("ponder.db").read_bytes()
    for verb in (*VERBS, ("store", "check"), ("store", "repair", "ponder.db", "-o", "new.db")):
        result = ponder(*verb)
        assert result.exit_code == 2, verb
        assert "not a store" in result.stderr
        assert "hint:" in result.stderr
    assert Path("ponder.db").read_bytes() == before
    assert not list(Path().glob("new.db*"))


def test_an_empty_file_becomes_a_store(write, ponder) -> None:
    write("s.toml", STUDY)
    write("ponder.db", "")
    assert "no answers" in ponder("report", "s.toml").stderr
    assert ponder("store", "check").exit_code == 0
    assert Path("ponder.db").read_bytes() == b""
    assert ponder("run", "s.toml").exit_code == 0
    assert len(content(Path("ponder.db"))[0]) == 36
    assert ponder("store", "check").exit_code == 0


def harmed(raw: bytes, seed: int) -> bytes:
    """The file with garbage in one to four places, from a byte to a page."""
    rng = random.Random(seed)
    data = bytearray(raw)
    for _ in range(rng.choice([1, 1, 2, 4])):
        n = rng.choice([1, 8, 100, 4096])
        start = rng.randrange(len(data) // n) * n
        data[start : start + n] = rng.choice([rng.randbytes(n), bytes(n), b"\xff" * n])
    return bytes(data)


@pytest.mark.parametrize("digests", [True, False])
def test_damage_is_found_and_what_is_whole_is_saved(copied, ponder, digests) -> None:
    if not digests:
        sql(
            copied,
            *(
                f"UPDATE {table} SET digest = NULL"
                for table in ("cell", "problem", "attempt", "turn")
            ),
        )
    good, raw = content(copied), copied.read_bytes()
    outcomes = {(o.cell.key, o.problem, o.sample): o._replace(attempt=0) for o in good[0]}
    texts = {
        (c, d.position, d.attempt.sample): d.attempt
        for c, dones in enumerate(good[1])
        for d in dones
    }
    found = saved = 0
    for seed in range(20 if digests else 10):
        for file in Path().glob("*.db*"):
            file.unlink()
        copied.write_bytes(harmed(raw, seed))
        checked = ponder("store", "check")
        found += checked.exit_code != 0
        assert checked.exit_code in (0, 1, 2)
        for verb in READING[2:] if seed % 10 else VERBS:
            result = ponder(*verb)
            assert result.exit_code in (0, 1, 2)
            assert result.exit_code == 0 or checked.exit_code or "run" in verb
        if digests and checked.exit_code == 0 and seed % 10:
            assert content(copied) == good
        if ponder("store", "repair", "ponder.db", "-o", "new.db").exit_code == 0:
            assert ponder("store", "check", "new.db").exit_code == 0
            new = content(Path("new.db"))
            saved += len(new[0])
            if digests:
                assert all(
                    outcomes[o.cell.key, o.problem, o.sample] == o._replace(attempt=0)
                    for o in new[0]
                )
                for c, dones in enumerate(new[1]):
                    assert all(texts[c, d.position, d.attempt.sample] == d.attempt for d in dones)
    assert found >= (10 if digests else 4)
    assert saved >= (10 if digests else 5) * len(outcomes)


def test_a_changed_answer_is_found_by_its_digest(copied, ponder) -> None:
    sql(copied, "UPDATE turn SET answer = answer || ' ' WHERE attempt = 3 AND position = 1")
    result = ponder("store", "check")
    assert result.exit_code == 1
    assert "turn 1 of attempt 3 has changed since it was written" in result.stdout
    assert result.stderr == "next: ponder store repair ponder.db -o NEW\n"
    exported = ponder("export", "s.toml", "--format", "jsonl")
    assert exported.exit_code == 2
    assert (
        "ponder.db is damaged: turn 1 of attempt 3 has changed since it was written\nhint: `ponder store check ponder.db`"
        in exported.stderr
    )


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE attempt SET correct = 1 - correct WHERE id = 5", "has changed since it was written"),
        ("UPDATE study SET resolved = replace(resolved, 'oracle', 'pocket')", "study 1: it has changed"),
        ("UPDATE study SET name = 'another'", "study 1: it has changed"),
        ("UPDATE study SET started = '2000-01-01'", "study 1: it has changed"),
        ("UPDATE study SET tokens = 1", "study 1: it has changed"),
        ("UPDATE study SET cost = -1.0", "study 1: it has changed"),
        ("UPDATE study SET lost_tokens = 7", "study 1: it has changed"),
        ("UPDATE problem SET body = zeroblob(20) WHERE id = 2", "problem 2: it has changed"),
        ("UPDATE cell SET spec = '{' WHERE id = 1", "cell 1: it has changed"),
        ("DELETE FROM turn WHERE attempt = 4 AND position = 0", "turn 0 of attempt 4 is missing"),
        ("DELETE FROM turn WHERE attempt = 4", "attempt 4 lacks some of its turns"),
        ("DELETE FROM attempt WHERE id = 6", "turns of attempt 6: the attempt is missing"),
        ("DELETE FROM problem WHERE id = 1", "attempt 1 lacks problem 1"),
        ("DELETE FROM cell WHERE id = 1", "attempt 1 lacks cell 1"),
    ],
)  # fmt: skip
def test_check_says_what_is_wrong(copied, ponder, statement, said) -> None:
    sql(copied, statement)
    result = ponder("store", "check")
    assert result.exit_code == 1
    assert said in result.stdout


def test_repair_counts_what_is_lost(copied, ponder) -> None:
    sql(
        copied,
        "UPDATE turn SET answer = 'x' WHERE attempt = 4 AND position = 0",
        "DELETE FROM attempt WHERE id = 9",
    )
    result = ponder("store", "repair", "ponder.db", "-o", "new.db")
    assert result.exit_code == 0
    assert "new.db: 34 attempts saved, 2 lost" in result.stdout
    assert "lost: 1 of execution, size 3, oracle" in result.stdout
    assert [f.name for f in Path().glob("new.db*")] == ["new.db"]
    assert "new.db already exists" in ponder("store", "repair", "ponder.db", "-o", "new.db").stderr
    ponder("run", "s.toml", "--store", "new.db")
    again = content(Path("new.db"))[0]
    assert len(again) == 36


def test_damaged_pages_are_left_to_sqlite(copied, ponder) -> None:
    raw = copied.read_bytes()
    with closing(sqlite3.connect(copied)) as db:
        (page,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'cell'").fetchone()
    copied.write_bytes(raw[: (page - 1) * 4096] + bytes(4096) + raw[page * 4096 :])
    assert "is damaged" in ponder("report", "s.toml").stderr
    refused = ponder("store", "repair", "ponder.db", "-o", "new.db")
    assert refused.exit_code == 2
    assert "table cell can't be read to its end" in refused.stderr
    assert "`sqlite3 ponder.db .recover | sqlite3 recovered.db`" in refused.stderr
    assert not list(Path().glob("new.db*"))
    copied.write_bytes(bytes(4096) + raw[4096:])
    assert "sqlite3 ponder.db .recover" in ponder("report", "s.toml").stderr


@pytest.fixture
def read_only(copied):
    """The folder's content on a file system that can't be written to."""
    if sys.platform != "linux":
        pytest.skip("mounts as Linux does")
    place = Path("ro").absolute()
    place.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "none", place], capture_output=True, check=False
    ).returncode:
        pytest.skip("may not mount")
    try:
        for name in ("s.toml", "ponder.db"):
            shutil.copy(name, place / name)

        def seal() -> Path:
            subprocess.run(["mount", "-o", "remount,ro", place], check=True)
            return place / "ponder.db"

        yield seal
    finally:
        subprocess.run(["umount", place], check=True)


def test_a_store_on_read_only_media_can_be_read(read_only, copied, ponder) -> None:
    good = content(copied)
    sealed = read_only()
    assert content(sealed) == good
    for verb in (*READING, ("store", "check", str(sealed))):
        assert ponder(*verb, *(() if verb[0] == "store" else ("--store", sealed))).exit_code == 0
    result = ponder("run", "s.toml", "--store", sealed)
    assert result.exit_code == 2
    assert "can't open the store" in result.stderr


def test_a_log_on_read_only_media_is_not_ignored(read_only, copied, ponder) -> None:
    """After a kill, the last attempts are in the log, which SQLite can't recover there."""
    with Store(copied, lock=True) as store:
        store.record_study(Study.load("s.toml"))
        shutil.copy("ponder.db-wal", "ro/ponder.db-wal")
    sealed = read_only()
    result = ponder("report", "s.toml", "--store", sealed)
    assert result.exit_code == 2
    assert "the last attempts are in ponder.db-wal" in result.stderr
    assert "copy ponder.db and ponder.db-wal" in result.stderr


def test_a_store_in_use_by_another_program(copied, ponder, monkeypatch) -> None:
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, **{**k, "timeout": 0}))
    sql(copied, "PRAGMA journal_mode = DELETE")
    with closing(connect(copied, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        result = ponder("plan", "s.toml")
    assert result.exit_code == 2
    assert "another program is using ponder.db" in result.stderr


def test_a_full_disk_is_named(tmp_path) -> None:
    with Store(tmp_path / "s.db", lock=True) as store:
        store._db.execute("PRAGMA max_page_count = 12")
        study = Study(
            task=[{"name": "chain_sum", "size": 2}], model=[{"name": "oracle"}], title="x" * 100_000
        )
        with pytest.raises(UserError, match="disk is full"):
            store.record_study(study)


def test_a_store_that_another_process_is_just_creating_is_no_other_file(folder: Path) -> None:
    path = folder / "new.db"

    class Racing(sqlite3.Connection):
        """Between its first look at the file and the next, another process makes it a store, if it
        can.
        """

        def execute(self, sql: str, *more: Any) -> sqlite3.Cursor:
            if "sqlite_master" in sql:
                with (
                    closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as other,
                    suppress(OperationalError),
                ):
                    other.executescript(schema.create())
            return super().execute(sql, *more)

    with closing(sqlite3.connect(path, isolation_level=None, factory=Racing)) as db:
        assert store_file._version(db, path) in (0, schema.VERSION)
        assert not db.in_transaction
