"""Preparations in other processes: at once where they may be, nothing twice, resumed, and the same
as in one.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import virtual_time
from engines import alive, wait_for

import ponder
from ponder import Study
from ponder.core import UserError, plugins
from ponder.run import progress
from ponder.run.executors import executing
from ponder.run.interrupt import Stop
from ponder.run.prepare import Preparations, prepare
from ponder.run.processes import Processes
from ponder.run.progress import Tally
from ponder.run.run import run
from ponder.run.workers import packed
from ponder.store.store import Store

METHOD = str(Path(__file__).parent / "data/shared_training.py")


def study_of(folder: Path, *chains: list[dict[str, Any]]) -> Study:
    named = [[{"name": METHOD, "path": str(folder), **link} for link in chain] for chain in chains]
    model = {"name": "oracle", "tokens_at_zero": 500, "method": named}
    return Study(task=[{"name": "chain_sum", "size": [2]}], model=[model], problems=2)


def log(folder: Path) -> list[str]:
    """What was made, in its order, without process ids."""
    return [line.rpartition(" ")[0] for line in (folder / "log.txt").read_text().splitlines()]


class InTurn:
    """Makes one step of everything in turn, in this process; the order doesn't depend on time."""

    def __init__(self, jobs: int | None) -> None:
        self.jobs, self.most, self._now = jobs, 0, 0

    async def make(self, method, model, needs, report, allowance) -> None:
        self._now += 1
        self.most = max(self.most, self._now)
        for report_of_step in method.make(model):
            report(report_of_step)
            await asyncio.sleep(0.01)
        self._now -= 1


@pytest.fixture
def made_in_turn(monkeypatch) -> Callable[[Study, int | None], InTurn]:
    """Makes what a study needs without threads, which would end in any order."""

    async def here(work: Callable[..., Any], *given: Any) -> Any:
        return work(*given)

    def made(study: Study, jobs: int | None) -> InTurn:
        async def all_of_them() -> None:
            preparations = Preparations(there, Stop(), lambda *_: None)
            await asyncio.gather(*(preparations.model(cell) for cell in study.cells))

        there = InTurn(jobs)
        virtual_time.run(all_of_them())
        return there

    monkeypatch.setattr(asyncio, "to_thread", here)
    return made


def test_others_begin_when_the_shared_samples_are_there(tmp_path, made_in_turn) -> None:
    assert made_in_turn(study_of(tmp_path, [{"seed": [1, 2, 3], "steps": 5}]), None).most == 3
    events = log(tmp_path)
    assert events[:2] == ["begin made-1", "sample"]
    assert set(events[2:4]) == {"begin made-2", "begin made-3"}  # before the first has ended
    assert sorted(events[4:]) == ["end made-1", "end made-2", "end made-3"]


@pytest.mark.parametrize("jobs", [1, 2])
def test_no_more_at_once_than_jobs(tmp_path, made_in_turn, jobs) -> None:
    assert made_in_turn(study_of(tmp_path, [{"seed": [1, 2, 3, 4]}]), jobs).most == jobs
    assert log(tmp_path).count("sample") == 1


def test_what_two_chains_start_from_is_made_once_and_first(tmp_path, made_in_turn) -> None:
    first = {"seed": 1}
    study = study_of(tmp_path, [first], [first, {"seed": 2}], [first, {"seed": 3}])
    made_in_turn(study, None)
    events = log(tmp_path)
    assert events[:3] == ["begin made-1", "sample", "end made-1"]
    assert set(events[3:5]) == {"begin made-1-made-2", "begin made-1-made-3"}
    assert len(events) == 7


def test_prepare_in_two_processes(tmp_path) -> None:
    study = study_of(tmp_path, [{"seed": [1, 2]}])
    labels = ["oracle + shared_training seed=1", "oracle + shared_training seed=2"]
    reports = list(prepare(study, Processes(2)))
    for label in labels:
        steps = [
            report["step"]
            for report in reports
            if report.get("model") == label and "step" in report
        ]
        assert steps == [1, 2, 3]
        assert {"ready": label} in reports
    pids = {line.rpartition(" ")[2] for line in (tmp_path / "log.txt").read_text().splitlines()}
    assert len(pids) == 2
    assert str(os.getpid()) not in pids
    assert sorted(map(str, prepare(study, Processes(2)))) == sorted(
        str({"ready": label}) for label in labels
    )


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        ("killed", UserError, r"`shared_training` for oracle was killed by SIGKILL"),
        ("refused", UserError, r"nothing to train on"),
        ("broken", ZeroDivisionError, r"a fault of the method"),
    ],
)
def test_a_preparation_that_fails_says_why_and_is_resumed(tmp_path, fault, error, message) -> None:
    study = study_of(tmp_path, [{"seed": 1, "fault": fault}])
    with pytest.raises(error, match=message) as raised:
        list(prepare(study, Processes(2)))
    if fault == "broken":
        # its traceback, from the other process
        assert "shared_training.py" in "".join(raised.value.__notes__)
    assert [r["step"] for r in prepare(study, Processes(2)) if "step" in r] == [3]


def test_a_run_prepares_while_it_asks_and_a_stop_ends_the_processes(tmp_path) -> None:
    study = study_of(tmp_path, [], [{"seed": 1}], [{"seed": 2, "fault": "slow"}])
    tally = Tally()

    async def stopped(store: Store) -> None:
        stop = Stop()

        async def when_slow() -> None:
            while tally.done < 4 or not any(  # noqa: ASYNC110
                report.get("step") == 2 for report in list(tally.making.values())
            ):
                await asyncio.sleep(0.01)
            stop.ask()

        await asyncio.gather(run(study, store, tally, stop, executor=Processes(2)), when_slow())

    with Store(tmp_path / "s.db", lock=True) as store:
        asyncio.run(stopped(store))
    assert (tally.right, tally.making) == (4, {})
    for line in (tmp_path / "log.txt").read_text().splitlines():
        with pytest.raises(ProcessLookupError):
            os.kill(int(line.rpartition(" ")[2]), 0)


@pytest.mark.parametrize("fault", ["", "slow"])  # slow: it never reports again
def test_no_process_is_left_behind_by_a_killed_run(tmp_path, fault: str) -> None:
    link = {"seed": 1, "steps": 10**6, "fault": fault}
    script = f"""
from pathlib import Path
from test_preparations import study_of
from ponder.run.prepare import prepare
from ponder.run.processes import Processes
for _ in prepare(study_of(Path({str(tmp_path)!r}), [{link}]), Processes(2)):
    print("report", flush=True)
"""
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        for _ in range(4):  # two of samples, two of steps
            assert process.stdout.readline()
        process.kill()
    child = int((tmp_path / "log.txt").read_text().split()[-1])
    wait_for(lambda: not alive(child))


def test_weights_are_the_same_wherever_they_are_made(models, monkeypatch, tmp_path) -> None:
    pytest.importorskip("torch")
    small = {"problems": 6, "n": 3, "temperature": 2.0, "batch": 3, "epochs": 1}
    method = {"name": "shortest", **small, "rate": [1e-4, 1e-3]}  # of the same samples
    task = {"name": "execution", "dictionary": 6, "per_turn": 0, "size": 2}

    def digests(folder: Path, jobs: int) -> dict[str, str]:
        monkeypatch.setenv("PONDER_MODELS", str(folder))
        study = Study(task=[task], model=[{"name": "pocket", "method": method}], problems=2)
        with executing(study.cells, jobs=jobs) as where:
            list(prepare(study, where))
        assert len(list(folder.glob("samples-*"))) == 1
        files = folder.glob("*/model.safetensors")
        return {file.parent.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}

    assert len(alone := digests(tmp_path / "alone", 1)) == 2
    assert digests(tmp_path / "together", 2) == alone


def test_what_cannot_be_sent_is_refused() -> None:
    @ponder.model
    def unsendable(prompt: str) -> str:
        return prompt

    try:
        with pytest.raises(UserError, match="can't be sent to another process") as error:
            packed(plugins.load("models", "unsendable")())
        assert "./mine.py" in error.value.hint
    finally:
        plugins._registered.pop(("models", "unsendable"))


def test_several_preparations_in_one_line() -> None:
    reports = {
        "a": {"model": "a", "method": "sft", "step": 5, "of": 9, "loss": 0.5},
        "b": {"waits_for": "room"},
    }
    assert progress.line(Tally(making=reports)) == "making 2:  a: step 5/9  b: waits for room"
    shown = progress.line(Tally(making=reports, planned=10, right=5))
    assert "5/10" in shown
    assert "making a: step 5/9  making b: waits for room" in shown


def test_jobs_and_ray_are_refused_together(ponder, folder) -> None:
    wrong = ponder("prepare", "long2short", "--jobs", "2", "--ray", "auto")
    assert wrong.exit_code == 2
    assert "give --jobs or --ray, not both" in wrong.output
    with pytest.raises(UserError, match="jobs must be at least 1"), executing([], jobs=0):
        pass
