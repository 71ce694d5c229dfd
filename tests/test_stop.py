"""A run that is asked to stop finishes what is paid for; nothing that was answered is lost."""

from __future__ import annotations

import asyncio
import itertools
import signal
import sqlite3
import subprocess
import threading
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest

from ponder import Study
from ponder.core import Attempt, UserError
from ponder.run.caps import Recorded
from ponder.store.store import Done, Store
from ponder.store.writer import MAX_WAITING, Writer

STUDY = """
problems = 100000
[[task]]
name = "chain_sum"
size = 4
digits = 5
[[model]]
name = "endpoint"
id = "served"
url = "{url}"
concurrency = 8
"""
TURNS = """
problems = 100
[[task]]
name = "execution"
size = 6
dictionary = 6
[[model]]
name = "endpoint"
id = "served"
url = "{url}"
concurrency = 4
"""


def outcomes(study: str) -> list:
    with Store(Path("ponder.db")) as store:
        return list(store.outcomes(Study.load(study).cells))


def wait_for_a_line(process: subprocess.Popen[str], text: str) -> None:
    assert process.stderr is not None
    assert any(text in line for line in process.stderr)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_waits_for_the_calls_in_progress(serve, write, running, number) -> None:
    served = serve(hold_after=50)
    write("s.toml", STUDY.format(url=served.url))
    with running("run", "s.toml", "--grace", "600") as process:
        served.wait(held=8)
        process.send_signal(number)
        wait_for_a_line(process, "stopping: waiting for 8 calls")
        served.release()
        _, talk = process.communicate()
    assert process.returncode == 128 + number
    assert "interrupted; run the same command again to resume" in talk
    assert "Traceback" not in talk
    assert len(outcomes("s.toml")) == served.state()["answered"] == 58


def test_a_second_signal_drops_them(serve, write, running) -> None:
    served = serve(hold_after=50)
    write("s.toml", STUDY.format(url=served.url))
    with running("run", "s.toml", "--grace", "600") as process:
        served.wait(held=8)
        process.send_signal(signal.SIGTERM)
        wait_for_a_line(process, "stopping")
        process.send_signal(signal.SIGTERM)
        _, talk = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert "8 calls without an answer may have been billed: how much, only the server knows" in talk
    assert "Traceback" not in talk
    assert len(outcomes("s.toml")) == served.state()["answered"] == 50


def test_no_grace(serve, write, running) -> None:
    served = serve(hold_after=20)
    write("s.toml", STUDY.format(url=served.url))
    with running("run", "s.toml", "--grace", "0") as process:
        served.wait(held=8)
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert process.returncode == 130
    assert len(outcomes("s.toml")) == 20


def test_a_conversation_stops_between_two_turns(serve, write, running, ponder) -> None:
    served = serve(hold_after=50)
    write("s.toml", TURNS.format(url=served.url))
    with running("run", "s.toml", "--grace", "600") as process:
        served.wait(held=4)
        process.send_signal(signal.SIGINT)
        wait_for_a_line(process, "stopping")
        served.release()
        process.communicate()
    assert served.state()["answered"] == 54
    with closing(sqlite3.connect("ponder.db")) as db:
        assert db.execute("SELECT COUNT(*) FROM turn").fetchone() == (54,)
    assert ponder("run", "s.toml").exit_code == 0
    assert served.state()["answered"] == 600  # each turn once


def test_an_error_in_one_model_keeps_the_answers_of_another(serve, write, ponder) -> None:
    """They run at the same time; one that refuses the key ends the run, after what the other has in
    progress.
    """
    # which waits for a ninth request
    held, refusing = serve(hold_after=0), serve(always=401, together=9)
    first, second = STUDY.format(url=held.url), STUDY.format(url=refusing.url)
    write("s.toml", first + second[second.index("[[model]]") :].replace('"served"', '"other"'))

    def refuse_then_answer() -> None:
        held.wait(held=8)
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(f"{refusing.url}/chat/completions", data=b"{}")
        held.release()

    threading.Thread(target=refuse_then_answer).start()
    result = ponder("run", "s.toml")
    assert result.exit_code == 2
    assert "wants a key" in result.stderr
    assert "made and stored" in result.stderr
    kept = [o for o in outcomes("s.toml") if o.label.model == "served"]
    assert len(kept) == held.state()["answered"] >= 8


def test_a_dead_server_is_found_before_another_is_asked(serve, write, ponder) -> None:
    served = serve()
    first, second = STUDY.format(url=served.url), STUDY.format(url="http://127.0.0.1:9/v1")
    write("s.toml", first + second[second.index("[[model]]") :].replace('"served"', '"other"'))
    result = ponder("run", "s.toml")
    assert result.exit_code == 2
    assert "http://127.0.0.1:9/v1" in result.stderr
    assert "requests" not in served.state()


def test_models_with_servers_of_their_own_run_at_the_same_time(serve, write, ponder) -> None:
    """Each answers only when the other has been asked."""
    both = [serve(hold_after=0), serve(hold_after=0)]
    first, second = (STUDY.format(url=served.url).replace("100000", "10") for served in both)
    write("s.toml", first + second[second.index("[[model]]") :].replace('"served"', '"other"'))

    def release() -> None:
        for served in both:
            served.wait(held=8)
        for served in both:
            served.release()

    threading.Thread(target=release).start()
    assert ponder("run", "s.toml").exit_code == 0
    assert [served.state()["answered"] for served in both] == [10, 10]


def test_variants_on_one_server_run_one_after_another(serve, write, ponder) -> None:
    served = serve()
    method = 'method = [[], [{ name = "budget_force", think = 1000 }]]'
    write("s.toml", STUDY.format(url=served.url).replace("100000", "30") + method)
    assert ponder("run", "s.toml").exit_code == 0
    assert served.state()["most_in_flight"] <= 8
    assert served.state()["answered"] == 60


@pytest.fixture
def cell():
    return Study(task=[{"name": "chain_sum", "size": 2}], model=[{"name": "oracle"}]).cells[0]


def attempts(cell, number: int) -> list[Done]:
    problems = itertools.islice(cell.task.problems(2, 0), number)
    return [
        Done(cell, n, Attempt(problem, 0, "right", "", ())) for n, problem in enumerate(problems)
    ]


def nothing_spent() -> Recorded:
    return Recorded(0, 0.0, 0, 0, 0.0)


def recorded(store: Store) -> int:
    """The number of a run whose spending a writer may record."""
    return store.record_study(
        Study(task=[{"name": "chain_sum", "size": 2}], model=[{"name": "oracle"}])
    )


def test_what_arrives_during_the_last_write_is_written_too(folder, cell) -> None:
    writing, go_on = threading.Event(), threading.Event()

    async def write(store: Store) -> None:
        add = store.add

        def slow(batch, *spent) -> None:
            writing.set()
            go_on.wait()
            add(batch, *spent)

        store.add = slow  # type: ignore[method-assign]
        first, second = attempts(cell, 2)
        async with Writer(store, recorded(store), nothing_spent) as writer:
            await writer.put(first)
            assert await asyncio.to_thread(writing.wait, 60)
            await writer.put(second)
            # which comes after the writer is told to end
            asyncio.get_running_loop().call_soon(go_on.set)

    with Store(folder / "w.db", lock=True) as store:
        asyncio.run(write(store))
        assert len(list(store.outcomes([cell]))) == 2


def test_an_answer_is_committed_before_the_run_ends(folder, cell) -> None:
    """What another process can read survives `kill -9`."""

    async def write(store: Store) -> None:
        async with Writer(store, recorded(store), nothing_spent) as writer:
            await writer.put(attempts(cell, 1)[0])
            await writer.flush()
            with closing(sqlite3.connect(folder / "w.db")) as db:
                assert db.execute("SELECT COUNT(*) FROM attempt").fetchone() == (1,)

    with Store(folder / "w.db", lock=True) as store:
        asyncio.run(write(store))


def test_the_disk_is_told_to_keep_what_was_answered(folder, cell) -> None:
    async def write(store: Store) -> list[int]:
        kept, sync, synced = [], store.sync, threading.Event()

        def counting() -> None:
            kept.append(store.spent([cell])[0])
            sync()
            synced.set()

        store.sync = counting  # type: ignore[method-assign]
        async with Writer(store, recorded(store), nothing_spent) as writer:
            await writer.put(attempts(cell, 1)[0])
            assert await asyncio.to_thread(synced.wait, 60)
            while_running = list(kept)
            await writer.put(attempts(cell, 2)[1])
        return [while_running[-1], kept[-1]]

    with Store(folder / "w.db", lock=True) as store:
        assert asyncio.run(write(store)) == [1, 2]


def test_a_model_faster_than_the_disk_has_to_wait(folder, cell) -> None:
    largest = 0

    async def write(store: Store) -> None:
        nonlocal largest
        add = store.add

        def watched(batch, *spent) -> None:
            nonlocal largest
            largest = max(largest, len(batch))
            add(batch, *spent)

        store.add = watched  # type: ignore[method-assign]
        async with Writer(store, recorded(store), nothing_spent) as writer:
            for done in attempts(cell, 3 * MAX_WAITING):
                await writer.put(done)

    with Store(folder / "w.db", lock=True) as store:
        asyncio.run(write(store))
        assert store.spent([cell])[0] == 20
    assert largest == MAX_WAITING


def test_an_error_of_the_disk_reaches_the_run(folder, cell) -> None:
    async def write(store: Store) -> None:
        def full(*batch) -> None:
            raise UserError("the disk is full")

        store.add = full  # type: ignore[method-assign]
        async with Writer(store, recorded(store), nothing_spent) as writer:
            for done in attempts(cell, 2 * MAX_WAITING):
                await writer.put(done)

    with (
        Store(folder / "w.db", lock=True) as store,
        pytest.raises(UserError, match="the disk is full"),
    ):
        asyncio.run(asyncio.wait_for(write(store), 60))
