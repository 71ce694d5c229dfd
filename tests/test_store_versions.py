"""Stores of former versions: they read the same, are upgraded when written to, and their keys stay valid."""

from __future__ import annotations

import asyncio
import csv
import json
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ponder import Study
from ponder.core import Outcome
from ponder.run.grading import grade_again
from ponder.run.plan import plan
from ponder.run.run import run
from ponder.run.run_stats import Tally
from ponder.store import schema
from ponder.store.store import Store

DATA = Path(__file__).parent / "data"  # a store of version 2, its two studies, and what the code of then exported
FORMER = {"said": "parsed", "filled": "history_turns", "errors": "error_rate"}
STUDIES = ("conversation", "merged")


def old(name: str) -> Study:
    return Study.load(str(DATA / f"{name}.toml"))


def version_2(path: Path) -> None:
    shutil.copy(DATA / "version2.db", path)


def version_3(path: Path) -> None:
    """The same attempts, more samples of one study, and one interrupted conversation."""
    shutil.copy(DATA / "version3.db", path)


def version_4(path: Path) -> None:
    """The same studies, run again: every row but those of the runs has a digest."""
    shutil.copy(DATA / "version4.db", path)


def version_1(path: Path) -> None:
    """As version 2 without measurements, which is why it knows of no made model."""
    version_2(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        made = "SELECT id FROM attempt WHERE details LIKE '%made_%'"
        db.execute(f"DELETE FROM turn WHERE attempt IN ({made})")
        db.execute("DELETE FROM attempt WHERE details LIKE '%made_%'")
        db.execute("ALTER TABLE turn DROP COLUMN measures")
        db.execute("PRAGMA user_version = 1")


def version_of(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        return int(db.execute("PRAGMA user_version").fetchone()[0])


def exported(name: str, version: int = 2) -> list[dict[str, Any]]:
    """The rows that the old code exported, with details under their new names."""
    with (DATA / f"{name}.csv").open() as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        details = json.loads(row["details"])
        row["made"] = {k.removeprefix("made_"): v for k, v in details.items() if k.startswith("made_")}
        row["details"] = {FORMER.get(k, k): v for k, v in details.items() if not k.startswith("made_")}
    return [row for row in rows if version > 1 or not row["made"]]


def as_exported(outcome: Outcome) -> dict[str, Any]:
    texts = {name: str(value) for name, value in outcome._asdict().items()}
    details = {k: v for k, v in outcome.details.items() if not k.startswith("made_")}
    row = {**texts, "details": details, "made": dict(outcome.made)}
    return {name: row[name] for name in (*Outcome._fields[:13], "details", "made")}


def read(path: Path, name: str, *, lock: bool = False) -> list[dict[str, Any]]:
    with Store(path, lock=lock) as store:
        return [as_exported(outcome) for outcome in store.outcomes(old(name).cells)]


def without_settings(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "settings"} for row in rows]


@pytest.mark.parametrize("name", STUDIES)
@pytest.mark.parametrize(("make", "version"), [(version_3, 3), (version_2, 2), (version_1, 1)])
def test_an_old_store_reads_the_same_and_is_not_changed_by_reading(tmp_path, make, version, name) -> None:
    make(tmp_path / "old.db")
    before = (tmp_path / "old.db").read_bytes()
    assert read(tmp_path / "old.db", name) == without_settings(exported(name, version))
    assert plan(old(name), tmp_path / "old.db").total.stored > 0
    assert (tmp_path / "old.db").read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["old.db"]


@pytest.mark.parametrize(("make", "version"), [(version_3, 3), (version_2, 2), (version_1, 1)])
def test_writing_upgrades_an_old_store(tmp_path, make, version) -> None:
    make(tmp_path / "old.db")
    Store(tmp_path / "old.db", lock=True).close()
    assert version_of(tmp_path / "old.db") == schema.VERSION
    for name in STUDIES:
        for lock in (False, True):
            assert read(tmp_path / "old.db", name, lock=lock) == without_settings(exported(name, version))


@pytest.mark.parametrize("make", [version_4, version_3, version_2])
@pytest.mark.parametrize("name", STUDIES)
def test_keys_of_an_old_store_are_still_valid(tmp_path, name, make) -> None:
    make(tmp_path / "old.db")
    tally = Tally()
    with Store(tmp_path / "old.db", lock=True) as store:
        asyncio.run(run(old(name), store, tally))
        assert tally.done == 0
        for cell in old(name).cells:
            stored = list(store.attempts(cell))
            assert len(stored) == cell.samples * (cell.problems or 0)
            for done, problem in zip(stored[:: cell.samples], cell.asked(), strict=True):
                kept = done.attempt.problem
                assert (kept.id, kept.system, kept.turns, kept.history, kept.gold) == (
                    problem.id, problem.system, problem.turns, problem.history, problem.gold,
                )  # fmt: skip


@pytest.mark.parametrize("make", [version_2, version_1])
def test_grades_of_an_old_store_are_those_of_today(tmp_path, make) -> None:
    make(tmp_path / "old.db")
    with Store(tmp_path / "old.db", lock=True) as store:
        cells = old("conversation").cells
        before = list(store.outcomes(cells))
        assert grade_again(old("conversation"), store) == 6  # attempts at `execution`, which now record their plan
        after = list(store.outcomes(cells))
    plans = [o.details.get("plan") for o in after]
    assert [plan is None for plan in plans] == ["per_turn" not in o.details for o in before]
    assert [o._replace(details={k: v for k, v in o.details.items() if k != "plan"}) for o in after] == before


def test_a_run_without_a_digest_is_whole_and_the_next_run_has_one(tmp_path, ponder) -> None:
    version_4(tmp_path / "old.db")
    before = {name: read(tmp_path / "old.db", name) for name in STUDIES}
    assert [len(rows) for rows in before.values()] == [18, 8]

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
        assert [digest is None for (digest,) in db.execute("SELECT digest FROM study")] == [True, True, False]
        db.execute("UPDATE study SET resolved = replace(resolved, 'oracle', 'pocket') WHERE digest IS NOT NULL")
    checked = ponder("store", "check", str(tmp_path / "old.db"))
    assert checked.exit_code == 1
    assert "study 3: it has changed since it was written" in checked.stdout


def test_details_of_other_tasks_keep_their_names(tmp_path) -> None:
    version_2(tmp_path / "old.db")
    details = {"said": 1, "errors": ["mine"]}
    with closing(sqlite3.connect(tmp_path / "old.db", isolation_level=None)) as db:
        chain_sums = "SELECT id FROM cell WHERE json_extract(spec, '$.task.name') = 'chain_sum'"
        db.execute(f"UPDATE attempt SET details = ? WHERE cell IN ({chain_sums})", (json.dumps(details),))
    for lock in (False, True):
        with Store(tmp_path / "old.db", lock=lock) as store:
            sums = [o for o in store.outcomes(old("conversation").cells) if o.task == "chain_sum"]
        assert [o.details for o in sums] == [details] * 12


def test_an_upgrade_that_is_killed_leaves_the_old_store(tmp_path) -> None:
    version_1(tmp_path / "old.db")
    upgrade = f"""
import os, signal, sqlite3
from pathlib import Path
from ponder.store.store import Store
from ponder.run.run_stats import Tally
class Killed(sqlite3.Connection):
    def executescript(self, script):
        self.create_function("kill", 0, lambda: os.kill(os.getpid(), signal.SIGKILL))
        return super().executescript(script.replace("PRAGMA user_version", "SELECT kill(); PRAGMA user_version"))
connect = sqlite3.connect
sqlite3.connect = lambda *args, **kwargs: connect(*args, **kwargs, factory=Killed)
Store(Path({str(tmp_path / "old.db")!r}), lock=True)
"""
    assert subprocess.run([sys.executable, "-c", upgrade], check=False).returncode == -signal.SIGKILL
    assert version_of(tmp_path / "old.db") == 1
    for lock in (False, True):
        assert read(tmp_path / "old.db", "conversation", lock=lock) == without_settings(exported("conversation", 1))
    assert version_of(tmp_path / "old.db") == schema.VERSION


def test_an_interrupted_conversation_of_an_old_store_is_resumed(tmp_path) -> None:
    version_3(tmp_path / "old.db")
    wider = Study.load(str(DATA / "conversation.toml"), ["samples=3"])
    for lock in (False, True):
        with Store(tmp_path / "old.db", lock=lock) as store:
            [turns] = [turns for cell in wider.cells for turns in store.begun(cell).values()]
            assert [turn.stop for turn in turns] == ["length", "end"]
            assert {turn.bill.cached_tokens for turn in turns} == {0}
    tally = Tally()
    with Store(tmp_path / "old.db", lock=True) as store:
        asyncio.run(run(wider, store, tally))
    assert tally.done == 1
