"""A study under fire: endpoint faults, kills, full disks, damage, all at seeded moments.

After each, what is stored is exactly what an undisturbed run stores, nothing is there that was not
answered, and the server has billed no more than the cap. `make fire` makes many more of each.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ponder import Study
from ponder.store.store import Store

LONG = bool(os.environ.get("PONDER_FIRE"))
KILLS = 50 if LONG else 6
SEEDS = range(20 if LONG else 2)
STUDY = """
problems = {problems}
samples  = 2
{cap}
[[task]]
name = "chain_sum"
size = [2, 4]
digits = 5
[[task]]
name = "execution"
size = 6
per_turn = 2
dictionary = 6
[[model]]
name        = "endpoint"
id          = "served"
url         = "{url}"
budget      = 1000
concurrency = {concurrency}
timeout     = 2
retries     = 12
{model}
[[figure]]
name = "accuracy"
"""
# what streams measure, which differs from run to run
TIMES = ("first_token_seconds", "decode_seconds", "tokens_per_second")
LENGTHS = {"lengths": {"median": 200, "sigma": 1.0}, "seconds_per_token": 2e-5}


def faults_of(rng: random.Random) -> dict:
    """A mix of endpoint faults, from mild to bad.

    Few are ignored, because each of those takes the whole timeout.
    """
    mix = {
        fault: rng.choice([0.0, 0.02, 0.1]) for fault in ("429", "500", "drop", "cut", "malformed")
    }
    return {**mix, "ignore": rng.choice([0.0, 0.005]), "retry_after": "0.01", **LENGTHS}


def outcomes(store: str) -> dict[tuple, tuple]:
    """What a store holds, without what differs from run to run: row ids and seconds."""
    with Store(Path(store)) as opened:
        rows = [
            o._replace(attempt=0, seconds=0.0) for o in opened.outcomes(Study.load("s.toml").cells)
        ]
    details = {id(o): {k: v for k, v in o.details.items() if k not in TIMES} for o in rows}
    return {
        (o.label.task, o.label.model, o.size, o.problem, o.sample): (*o[4:11], details[id(o)])
        for o in rows
    }


def texts(store: str) -> dict[tuple, tuple]:
    with Store(Path(store)) as opened:
        cells = Study.load("s.toml").cells
        return {
            (cell.key, done.position, done.attempt.sample): tuple(
                (c.thinking, c.answer, c.stop, c.bill.tokens) for c in done.attempt.completions
            )
            for cell in cells
            for done in opened.attempts(cell)
            if done.attempt.ended != "failed"
        }


def check(ponder, store: str, truth: str) -> None:
    """The store is whole, and each attempt in it is exactly as the undisturbed run has it."""
    assert ponder("store", "check", store).exit_code == 0
    kept, right = texts(store), texts(truth)
    assert kept == {key: right[key] for key in kept}
    answered = {key: value for key, value in outcomes(store).items() if value[0] != "failed"}
    everything = outcomes(truth)
    assert answered == {key: everything[key] for key in answered}


@pytest.mark.parametrize("seed", SEEDS)
def test_faults_and_kills(serve, write, ponder, running, seed) -> None:
    rng = random.Random(seed)
    served = serve(**faults_of(rng))
    model = "stream = true" if seed % 2 else ""
    settings = {"url": served.url, "concurrency": rng.choice([2, 8, 32]), "model": model, "cap": ""}
    write("s.toml", STUDY.format(problems=30, **settings))
    for _ in range(KILLS):
        answered = served.state().get("answered", 0)
        with running("run", "s.toml") as process:
            wait_for_answers(served, process, answered + rng.randint(1, 60))
            process.send_signal(signal.SIGKILL)
    served.calm()
    assert ponder("run", "s.toml").exit_code == 0
    assert ponder("run", "s.toml", "--store", "truth.db").exit_code == 0
    check(ponder, "ponder.db", "truth.db")
    assert outcomes("ponder.db") == outcomes("truth.db")
    for store in ("ponder.db", "truth.db"):
        assert ponder("report", "s.toml", "--store", store, "-o", f"report-{store}").exit_code == 0
    first, second = (
        sorted(Path(f"report-{store}").glob("*.csv")) for store in ("ponder.db", "truth.db")
    )
    assert [file.read_text() for file in first] == [file.read_text() for file in second]


def wait_for_answers(served, process: subprocess.Popen[str], answers: int) -> None:
    """Until the server has given so many answers, or the run has ended."""
    while process.poll() is None and served.state().get("answered", 0) < answers:
        pass


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cap_under_fire(serve, write, ponder, running, seed) -> None:
    """Kills, timeouts and lost replies: the server bills them, and the cap counts them."""
    rng = random.Random(100 + seed)
    served = serve(**faults_of(rng))
    method = rng.choice(["", 'method = { name = "vote", n = 3 }'])
    settings = {
        "url": served.url,
        "concurrency": rng.choice([4, 32]),
        "model": method,
        "cap": "max_tokens = 60000",
    }
    write("s.toml", STUDY.format(problems=40, **settings))
    for _ in range(KILLS // 3):
        answered = served.state().get("answered", 0)
        with running("run", "s.toml") as process:
            wait_for_answers(served, process, answered + rng.randint(1, 40))
            process.send_signal(signal.SIGKILL)
    for _ in range(3):
        assert ponder("run", "s.toml").exit_code in (0, 1)
    assert served.state()["billed_tokens"] <= 60_000
    served.calm()
    assert ponder("run", "s.toml", "--set", "max_tokens=100000000").exit_code == 0
    assert (
        ponder("run", "s.toml", "--set", "max_tokens=100000000", "--store", "truth.db").exit_code
        == 0
    )
    check(ponder, "ponder.db", "truth.db")
    assert outcomes("ponder.db") == outcomes("truth.db")


def test_two_runs_at_once(serve, write, ponder, running) -> None:
    served = serve(**LENGTHS, hold_after=40)
    patient = STUDY.replace("timeout     = 2", "timeout     = 1800")
    write("s.toml", patient.format(problems=20, url=served.url, concurrency=8, model="", cap=""))
    with running("run", "s.toml") as process:
        served.wait(held=8)
        for _ in range(5):
            second = ponder("run", "s.toml")
            assert second.exit_code == 2
            assert "another run is writing" in second.stderr
            assert ponder("plan", "s.toml").exit_code == 0
            assert ponder("report", "s.toml").exit_code == 0  # reading meanwhile is fine
        served.release()
        process.communicate()
    assert process.returncode == 0
    # sizes of one turn, and conversations of three
    assert served.state()["answered"] == 2 * 2 * 20 + 2 * 3 * 20
    served.calm()
    assert ponder("run", "s.toml", "--store", "truth.db").exit_code == 0
    check(ponder, "ponder.db", "truth.db")


@pytest.fixture
def small_disk(tmp_path):
    """A disk of two megabytes; skipped where mounting one isn't permitted."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(disk)]
    if (
        not shutil.which("mount")
        or subprocess.run(mount, capture_output=True, check=False).returncode
    ):
        pytest.skip("mounting a small disk isn't permitted here")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_full_disk(serve, write, ponder, small_disk, seed) -> None:
    rng = random.Random(seed)
    served = serve(**LENGTHS, thinking=rng.randbytes(4000).hex())
    write("s.toml", STUDY.format(problems=200, url=served.url, concurrency=16, model="", cap=""))
    store = str(small_disk / "ponder.db")
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * rng.randrange(0, 1_200_000))
    full = ponder("run", "s.toml", "--store", store)
    assert full.exit_code == 2
    assert "the disk is full" in full.stderr
    assert "Traceback" not in full.stderr
    again = ponder("run", "s.toml", "--store", store)
    assert again.exit_code == 2
    filler.unlink()
    served.calm()
    assert ponder("run", "s.toml", "--store", store, "--set", "problems=30").exit_code in (0, 2)
    assert ponder("run", "s.toml", "--store", "truth.db").exit_code == 0
    shutil.copytree(small_disk, "copy")
    check(ponder, "copy/ponder.db", "truth.db")
    assert outcomes("copy/ponder.db")


@pytest.mark.parametrize("seed", range(200 if LONG else 12))
def test_damage(truth_store, folder, ponder, seed) -> None:
    """Garbage somewhere in the file: no traceback, and what is saved from it is true."""
    rng = random.Random(seed)
    content = bytearray(truth_store.read_bytes())
    for _ in range(rng.choice([1, 1, 3, 20])):
        at, length = rng.randrange(len(content)), rng.choice([1, 16, 512, 4096])
        content[at : at + length] = rng.randbytes(min(length, len(content) - at))
    Path("ponder.db").write_bytes(content)
    shutil.copy(truth_store.parent / "s.toml", "s.toml")
    for words in (
        ["plan", "s.toml"],
        ["report", "s.toml"],
        ["export", "s.toml"],
        ["store", "check", "ponder.db"],
    ):
        result = ponder(*words)
        assert result.exit_code in (0, 1, 2), result.output
    assert ponder("store", "repair", "ponder.db", "-o", "saved.db").exit_code in (0, 1, 2)
    if Path("saved.db").exists():
        assert ponder("store", "check", "saved.db").exit_code == 0
        saved, right = texts("saved.db"), texts(str(truth_store))
        assert saved == {key: right[key] for key in saved}


@pytest.fixture(scope="module")
def truth_store(tmp_path_factory) -> Path:
    """A store of a run of the oracle, with conversations."""
    folder = tmp_path_factory.mktemp("truth")
    study = STUDY.format(problems=20, url="http://127.0.0.1:9/v1", concurrency=8, model="", cap="")
    head, model = study[: study.index("[[model]]")], '[[model]]\nname = "oracle"\nerror = 0.2\n'
    (folder / "s.toml").write_text(f'{head}{model}[[figure]]\nname = "accuracy"\n')
    command = [
        sys.executable,
        "-c",
        "from ponder.cli import main; main()",
        "run",
        "s.toml",
        "--json",
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["done"] == 120
    return folder / "ponder.db"
