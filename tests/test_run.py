"""The run loop against a real server: nothing is lost, paid for twice, or counted as an answer that
isn't one.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import itertools
import json
import random
import re
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from ponder import Study
from ponder.core import Attempt, UserError
from ponder.run.interrupt import Stop
from ponder.run.progress import Tally
from ponder.run.run import _Feed, run
from ponder.store.store import Store

STUDY = """
problems = {problems}
{extra}
[[task]]
name = "chain_sum"
size = [2, 4]
digits = 5
[[model]]
name = "endpoint"
id = "served"
url = "{url}"
concurrency = 32
retries = 12
{model}
"""


def study_for(served, *, problems: int = 100, extra: str = "", model: str = "") -> str:
    return STUDY.format(problems=problems, extra=extra, url=served.url, model=model)


def outcomes(study: str) -> list:
    with Store(Path("ponder.db")) as store:
        return list(store.outcomes(Study.load(study).cells))


def stored(sql: str) -> int:
    """A count from the store while a run writes to it; 0 before there is one."""
    try:
        with closing(sqlite3.connect("file:ponder.db?mode=ro", uri=True)) as db:
            (count,) = db.execute(sql).fetchone()
            return int(count)
    except sqlite3.OperationalError:
        return 0


def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.02)


def test_a_run_through_faults_ends_complete(serve, write, ponder) -> None:
    served = serve(
        **{"429": 0.2, "drop": 0.05, "malformed": 0.02, "500": 0.03, "retry_after": "0.01"}
    )
    write("s.toml", study_for(served))
    result = ponder("run", "s.toml", "--json")
    assert result.exit_code == 0, result.stderr
    state = served.state()
    assert min(state[fault] for fault in ("429", "drop", "malformed", "500")) > 0
    finished = outcomes("s.toml")
    assert len(finished) == 200
    assert {o.ended for o in finished} == {"right"}
    assert {(o.thinking_tokens, o.answer_tokens, o.counted_by) for o in finished} == {
        (100, 20, "server")
    }
    assert state["answered"] == 200  # nothing is paid for twice


def test_an_answer_that_never_comes_is_asked_for_again(serve, write, ponder) -> None:
    served = serve(ignore_first=1)
    write("s.toml", study_for(served, problems=1, model="timeout = 1"))
    assert ponder("run", "s.toml").exit_code == 0
    served.wait(hung_up=1)
    assert [o.correct for o in outcomes("s.toml")] == [True, True]


def test_running_again_asks_nothing(serve, write, ponder) -> None:
    served = serve()
    write("s.toml", study_for(served, problems=20))
    assert ponder("run", "s.toml").exit_code == 0
    assert ponder("run", "s.toml").exit_code == 0
    assert served.state()["requests"] == 40
    write("s.toml", study_for(served, problems=25, extra="samples = 2"))
    assert ponder("run", "s.toml").exit_code == 0  # a wider study asks only what is new
    assert served.state()["requests"] == 100
    assert served.state()["repeated"] == 50


def test_kill_nine_loses_nothing_stored(serve, write, folder, ponder, running) -> None:
    served = serve(hold_after=100)
    write("s.toml", study_for(served, problems=400).replace("concurrency = 32", "concurrency = 4"))
    with running("run", "s.toml") as process:
        served.wait(held=4)
        wait_until(lambda: stored("SELECT COUNT(*) FROM attempt") == 100)
        process.send_signal(signal.SIGKILL)
    served.release()
    before = {(o.size, o.problem): o for o in outcomes("s.toml")}
    assert len(before) == 100
    asked_before = served.state()["requests"]
    assert ponder("run", "s.toml", "--set", "model.concurrency=64").exit_code == 0
    after = {(o.size, o.problem): o for o in outcomes("s.toml")}
    assert len(after) == 800
    assert {k: after[k] for k in before} == before
    assert served.state()["requests"] - asked_before == 700


def test_two_runs_on_one_store(serve, write, ponder) -> None:
    write("s.toml", study_for(serve(), problems=3))
    with Store(Path("ponder.db"), lock=True):
        result = ponder("run", "s.toml")
    assert result.exit_code == 2
    assert "another run is writing to ponder.db" in result.stderr
    assert "hint: wait until that run has ended" in result.stderr
    assert ponder("run", "s.toml").exit_code == 0


def test_an_endpoint_that_is_down_is_an_error_at_once(write, ponder) -> None:
    write("s.toml", STUDY.format(problems=100, extra="", url="http://127.0.0.1:9/v1", model=""))
    result = ponder("run", "s.toml")
    assert result.exit_code == 2
    assert "\ns.toml: model `served`: no connection to http://127.0.0.1:9/v1" in result.stderr
    assert outcomes("s.toml") == []


def test_an_endpoint_that_goes_down_stops_the_run(write, ponder) -> None:
    dead = STUDY.format(problems=100, extra="", url="http://127.0.0.1:9/v1", model="probe = false")
    write("s.toml", dead.replace("retries = 12", "retries = 0"))
    result = ponder("run", "s.toml")
    assert result.exit_code == 2
    assert re.search(
        r"^s\.toml: model `served`: the last \d+ attempts failed: no connection",
        result.stderr,
        re.MULTILINE,
    )
    assert {o.ended for o in outcomes("s.toml")} == {"failed"}
    assert "has no answers to" in ponder("report", "s.toml").stderr


def test_failed_attempts_are_retried_and_never_wrong(serve, write, ponder) -> None:
    write("s.toml", study_for(serve(always=400, text="context too long"), problems=3))
    result = ponder("run", "s.toml", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["failed"] == 6
    assert "again to retry" in result.stderr
    assert outcomes("s.toml")[0].why == "HTTP 400: context too long"
    served = serve()
    # The same cells, as if the endpoint had recovered: only its address differs, so it is put under
    # the old key.
    with closing(sqlite3.connect("ponder.db")) as db, db:
        db.execute("UPDATE cell SET key = zeroblob(id)")
    write("s.toml", study_for(served, problems=3))
    keys = [c.key for c in Study.load("s.toml").cells]
    with closing(sqlite3.connect("ponder.db")) as db, db:
        db.executemany(
            "UPDATE cell SET key = ? WHERE id = ?", [(k, i + 1) for i, k in enumerate(keys)]
        )
    assert ponder("run", "s.toml").exit_code == 0
    assert [o.ended for o in outcomes("s.toml")] == ["right"] * 6


@pytest.mark.parametrize(
    ("status", "says"), [(401, "wants a key"), (404, "knows no such page or model")]
)
def test_wrong_settings_stop_the_run_at_once(serve, write, ponder, status, says) -> None:
    served = serve(always=status)
    write("s.toml", study_for(served))
    result = ponder("run", "s.toml")
    assert result.exit_code == 2
    assert says in result.stderr
    assert served.state()["requests"] <= 32


def test_keys_come_from_the_environment(serve, write, ponder, monkeypatch) -> None:
    served = serve()
    write("s.toml", study_for(served, problems=1, model='key = "$PONDER_TEST_KEY"'))
    monkeypatch.delenv("PONDER_TEST_KEY", raising=False)
    result = ponder("run", "s.toml")
    assert result.exit_code == 2
    assert "the environment variable PONDER_TEST_KEY is not set" in result.stderr
    monkeypatch.setenv("PONDER_TEST_KEY", "secret-123")
    assert ponder("run", "s.toml").exit_code == 0
    assert served.state()["bodies"][0]["authorization"] == "Bearer secret-123"
    assert b"secret-123" not in Path("ponder.db").read_bytes()


def test_many_are_in_flight_at_once(serve, write, ponder) -> None:
    served = serve(together=256)  # answers nobody before all of them have asked
    write(
        "s.toml", study_for(served, problems=300).replace("concurrency = 32", "concurrency = 256")
    )
    assert ponder("run", "s.toml").exit_code == 0
    assert served.state()["most_in_flight"] == 256


def test_full_disk(serve, write, ponder, monkeypatch) -> None:
    served = serve(thinking=random.Random(1).randbytes(10_000).hex())  # which doesn't compress away
    write("s.toml", study_for(served, problems=50))
    assert ponder("run", "s.toml", "--set", "problems=5").exit_code == 0
    connect = sqlite3.connect

    def small(*args, **kwargs):
        db = connect(*args, **kwargs)
        db.execute("PRAGMA max_page_count = 120")  # SQLite then says what it says of a full disk
        return db

    monkeypatch.setattr(sqlite3, "connect", small)
    result = ponder("run", "s.toml")
    assert result.exit_code == 2
    assert "the disk is full" in result.stderr
    assert "everything stored so far is kept" in result.stderr
    monkeypatch.setattr(sqlite3, "connect", connect)
    kept = len(outcomes("s.toml"))
    assert kept >= 10
    assert ponder("run", "s.toml").exit_code == 0
    assert len(outcomes("s.toml")) == 100


def test_a_task_that_changed_without_a_new_version_is_refused(folder, monkeypatch) -> None:
    source = "from ponder.tasks.chain_sum import ChainSum\nclass Own(ChainSum):\n    def problem(self, size, seed):\n"
    source += "        return super().problem(size, seed + {0})\n"

    def asked(change: int, samples: int) -> None:
        monkeypatch.delitem(sys.modules, "own_sums", raising=False)
        (folder / "own_sums.py").write_text(source.format(change))
        importlib.invalidate_caches()
        study = Study(
            task=[{"name": "./own_sums.py", "size": 2}],
            model=[{"name": "oracle"}],
            problems=3,
            samples=samples,
            folder=folder,
        )
        with Store(Path("o.db"), lock=True) as store:
            asyncio.run(run(study, store, Tally()))

    asked(0, samples=1)
    asked(0, samples=2)
    with pytest.raises(UserError, match="but the store has"):
        asked(1, samples=3)


def test_tables_that_overlap_are_asked_once(serve, write, ponder) -> None:
    served = serve()
    write(
        "s.toml",
        study_for(served, problems=5) + '[[task]]\nname = "chain_sum"\nsize = [4, 6]\ndigits = 5\n',
    )
    assert ponder("run", "s.toml").exit_code == 0
    assert served.state()["answered"] == 15
    assert len(outcomes("s.toml")) == 15


def test_problems_that_take_long_to_make_do_not_delay_the_first(monkeypatch) -> None:
    clock = itertools.count()  # each look at the clock finds that a second has passed
    monkeypatch.setattr("ponder.run.run.monotonic", lambda: next(clock))
    made = []

    async def first() -> None:
        jobs = (made.append(n) or n for n in range(1000))
        assert await _Feed(jobs, Stop()).next() == 0  # type: ignore[arg-type]

    asyncio.run(first())
    assert len(made) == 1


def test_a_store_that_fails_ends_a_run_that_waits(folder) -> None:
    """Every call hangs, so nothing would be put into the store for hours."""
    source = "import asyncio\nfrom dataclasses import dataclass\nfrom ponder.core import Model\n@dataclass\n"
    source += "class Hanging(Model):\n    async def complete(self, request):\n        await asyncio.Event().wait()\n"
    (folder / "hanging_model.py").write_text(source)
    study = Study(
        task=[{"name": "chain_sum"}], model=[{"name": "./hanging_model.py"}], folder=folder
    )

    def full(*batch) -> None:
        raise UserError("the disk is full")

    with Store(Path("h.db"), lock=True) as store:
        store.add = full  # type: ignore[method-assign]
        with pytest.raises(UserError, match="the disk is full"):
            asyncio.run(asyncio.wait_for(run(study, store, Tally()), 60))


def test_only_failures_in_a_row_stop_a_run(folder) -> None:
    """Half of the attempts fail, one after another with the other half: busy, not down."""
    source = '"""Fails every other time."""\nfrom dataclasses import dataclass\nfrom itertools import count\n'
    source += (
        "from ponder.core import Bill, Completion, Model, ModelFailure\nN = count()\n@dataclass\n"
    )
    source += "class Busy(Model):\n    async def complete(self, request):\n"
    source += "        if next(N) % 2:\n            raise ModelFailure('busy')\n"
    (folder / "busy_model.py").write_text(
        source + "        return Completion('', '1', 'end', Bill())\n"
    )
    study = Study(
        task=[{"name": "chain_sum", "size": 2}],
        model=[{"name": "./busy_model.py"}],
        problems=80,
        folder=folder,
    )
    tally = Tally()
    with Store(Path("b.db"), lock=True) as store:
        asyncio.run(run(study, store, tally))
    assert (tally.failed, tally.wrong) == (40, 40)


def test_replay_gives_the_same_grades(serve, write, ponder) -> None:
    def grades(study: str) -> list:
        columns = ("size", "problem", "sample", "ended", "why", "thinking_tokens", "answer_tokens")
        return [tuple(getattr(o, column) for column in columns) for o in outcomes(study)]

    write("s.toml", study_for(serve(), problems=10))
    ponder("run", "s.toml")
    ponder("export", "s.toml", "--format", "jsonl", "-o", "answers.jsonl")
    task = '[[task]]\nname = "chain_sum"\nsize = [2, 4]\ndigits = 5\n'
    write("r.toml", f'problems = 10\n{task}[[model]]\nname = "replay"\nfile = "answers.jsonl"\n')
    assert ponder("run", "r.toml").exit_code == 0
    assert grades("r.toml") == grades("s.toml")
    # two problems have no answer in the file
    assert ponder("run", "r.toml", "--set", "problems=11").exit_code == 1


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet", "inspect"])
def test_export(serve, write, ponder, form) -> None:
    write("s.toml", study_for(serve(), problems=5))
    ponder("run", "s.toml")
    result = json.loads(ponder("export", "s.toml", "--format", form, "--json").stdout)
    assert result["rows"] == 10
    assert Path(result["file"]).stat().st_size > 500


def test_memory_is_not_held_by_finished_attempts(folder) -> None:
    """Attempts leave memory with each batch: after a run nothing holds them."""
    study = Study(
        task=[{"name": "chain_sum", "size": 4}], model=[{"name": "oracle"}], problems=3000
    )
    most = 0
    with Store(folder / "m.db", lock=True) as store:
        add = store.add

        def watched(batch, *spent) -> None:
            nonlocal most
            add(batch, *spent)
            most = max(most, sum(type(o) is Attempt for o in gc.get_objects()))

        store.add = watched  # type: ignore[method-assign]
        asyncio.run(run(study, store, Tally()))
    assert 0 < most < 1500
