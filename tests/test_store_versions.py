"""Stores of the version before: they read the same, are upgraded when written to, and their keys
stay valid.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from ponder import Study
from ponder.core import Outcome, UserError
from ponder.run.plan import plan
from ponder.run.progress import Tally
from ponder.run.run import run
from ponder.store import schema
from ponder.store.store import Store

DATA = Path(__file__).parent / "data"  # a store of version 4, and its two studies
ATTEMPTS = {"conversation": 18, "merged": 8}
STUDIES = tuple(ATTEMPTS)


def old(name: str) -> Study:
    return Study.load(str(DATA / f"{name}.toml"))


def version_4(path: Path) -> None:
    """The same studies, run again: every row but those of the runs has a digest."""
    shutil.copy(DATA / "version4.db", path)


def version_of(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        return int(db.execute("PRAGMA user_version").fetchone()[0])


def read(path: Path, name: str, *, lock: bool = False) -> list[Outcome]:
    with Store(path, lock=lock) as store:
        return list(store.outcomes(old(name).cells))


@pytest.mark.parametrize("name", STUDIES)
def test_an_old_store_is_not_changed_by_reading(tmp_path, name) -> None:
    version_4(tmp_path / "old.db")
    before = (tmp_path / "old.db").read_bytes()
    assert len(read(tmp_path / "old.db", name)) == ATTEMPTS[name]
    assert plan(old(name), tmp_path / "old.db").total.stored > 0
    assert (tmp_path / "old.db").read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["old.db"]


def test_writing_upgrades_an_old_store(tmp_path) -> None:
    version_4(tmp_path / "old.db")
    before = {name: read(tmp_path / "old.db", name) for name in STUDIES}
    Store(tmp_path / "old.db", lock=True).close()
    assert version_of(tmp_path / "old.db") == schema.VERSION
    for lock in (False, True):
        assert {name: read(tmp_path / "old.db", name, lock=lock) for name in STUDIES} == before


@pytest.mark.parametrize("name", STUDIES)
def test_keys_of_an_old_store_are_still_valid(tmp_path, name) -> None:
    version_4(tmp_path / "old.db")
    tally = Tally()
    with Store(tmp_path / "old.db", lock=True) as store:
        asyncio.run(run(old(name), store, tally))
        assert tally.done == 0
        for cell in old(name).cells:
            stored = list(store.attempts(cell))
            assert len(stored) == cell.quota.samples * (cell.quota.problems or 0)
            for done, problem in zip(stored[:: cell.quota.samples], cell.asked(), strict=True):
                kept = done.attempt.problem
                assert (kept.id, kept.system, kept.turns, kept.history, kept.gold) == (
                    problem.id, problem.system, problem.turns, problem.history, problem.gold,
                )  # fmt: skip


def test_what_making_a_model_cost_is_read_from_an_old_store(tmp_path) -> None:
    version_4(tmp_path / "old.db")
    with Store(tmp_path / "old.db") as store:
        made = [outcome.made for outcome in store.outcomes(old("merged").cells)]
    assert any("seconds" in cost for cost in made)


@pytest.mark.parametrize("lock", [True, False])
def test_a_store_of_ponder_0_1_is_refused_and_not_changed(tmp_path, lock) -> None:
    version_4(tmp_path / "old.db")
    with closing(sqlite3.connect(tmp_path / "old.db")) as db:
        db.execute("PRAGMA user_version = 3")
    before = (tmp_path / "old.db").read_bytes()
    with pytest.raises(
        UserError, match=r"written by Ponder 0\.1 \(store version 3; this one reads 4 and later\)"
    ):
        Store(tmp_path / "old.db", lock=lock)
    assert (tmp_path / "old.db").read_bytes() == before


def test_a_run_without_a_digest_is_whole_and_the_next_run_has_one(tmp_path, ponder) -> None:
    version_4(tmp_path / "old.db")
    before = {name: read(tmp_path / "old.db", name) for name in STUDIES}

    def undigested() -> int:
        checked = ponder("store", "check", str(tmp_path / "old.db"), "--json")
        assert checked.exit_code == 0
        return int(json.loads(checked.stdout)["without_digest"])

    assert undigested() == 2  # the runs of the two studies
    with Store(tmp_path / "old.db", lock=True) as store:
        asyncio.run(run(old("conversation"), store, Tally()))
    assert version_of(tmp_path / "old.db") == schema.VERSION
    assert {name: read(tmp_path / "old.db", name) for name in STUDIES} == before
    assert undigested() == 2
    with closing(sqlite3.connect(tmp_path / "old.db", isolation_level=None)) as db:
        assert [digest is None for (digest,) in db.execute("SELECT digest FROM study")] == [
            True,
            True,
            False,
        ]
        db.execute(
            "UPDATE study SET resolved = replace(resolved, 'oracle', 'pocket') WHERE digest IS NOT NULL"
        )
    checked = ponder("store", "check", str(tmp_path / "old.db"))
    assert checked.exit_code == 1
    assert "study 3: it has changed since it was written" in checked.stdout


def test_an_upgrade_that_is_killed_leaves_the_old_store(tmp_path) -> None:
    version_4(tmp_path / "old.db")
    before = read(tmp_path / "old.db", "conversation")
    upgrade = f"""
import os, signal, sqlite3
from pathlib import Path
from ponder.store.store import Store
from ponder.run.progress import Tally
class Killed(sqlite3.Connection):
    def executescript(self, script):
        self.create_function("kill", 0, lambda: os.kill(os.getpid(), signal.SIGKILL))
        return super().executescript(script.replace("PRAGMA user_version", "SELECT kill(); PRAGMA user_version"))
connect = sqlite3.connect
sqlite3.connect = lambda *args, **kwargs: connect(*args, **kwargs, factory=Killed)
Store(Path({str(tmp_path / "old.db")!r}), lock=True)
"""
    assert (
        subprocess.run([sys.executable, "-c", upgrade], check=False).returncode == -signal.SIGKILL
    )
    assert version_of(tmp_path / "old.db") == 4
    for lock in (False, True):
        assert read(tmp_path / "old.db", "conversation", lock=lock) == before
    assert version_of(tmp_path / "old.db") == schema.VERSION
