"""One attempt: odd replies, slow graders, graders and models that raise.

What was answered is stored.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

import pytest
from test_run import outcomes, stored, study_for, wait_until

from ponder import Study
from ponder.run.interrupt import Stop
from ponder.run.progress import Tally
from ponder.run.run import run
from ponder.store.store import Store


@pytest.mark.parametrize(
    ("raw", "status", "thinking"),
    [
        ('{"choices": [{"message": {"content": ""}}]}', "unparsed", ""),
        ('{"choices": [{"message": {"content": null, "reasoning": "hm"}, "finish_reason": "length"}]}', "truncated", "hm"),
        ('{"choices": [{"message": {"content": "caf\xe9 \xff"}}]}', "unparsed", ""),  # not UTF-8
        ('{"choices": [{"message": {"content": "\\ud800 without its pair"}}]}', "unparsed", ""),
        ('{"choices": [{"message": {"content": "<think>a<think>b</think></think><answer>1</answer>"}}]}', "wrong", "ab"),
        ('{"choices": [{"message": {"content": [{"type": "text", "text": "<answer>1</answer>"}]}}]}', "wrong", ""),
        ('{"choices": [{"message": {"content": "' + "x" * 10_000_000 + '"}}]}', "unparsed", ""),
    ],
    ids=["empty", "truncated", "latin-1", "surrogate", "nested", "parts", "huge"],
)  # fmt: skip
def test_odd_texts_are_graded_and_stored(
    serve, write, ponder, folder, raw, status, thinking
) -> None:
    (folder / "raw.json").write_text(raw, "latin-1")
    served = serve(raw_file=str(folder / "raw.json"))
    write("s.toml", study_for(served, problems=1))
    result = ponder("run", "s.toml")
    assert result.exit_code == 0, result.stderr[-500:]
    assert {o.ended for o in outcomes("s.toml")} == {status}
    with Store(Path("ponder.db")) as store:
        (done,) = store.attempts(Study.load("s.toml").cells[0])
    assert done.attempt.completions[0].thinking == thinking


@pytest.mark.parametrize(
    ("message", "reason", "why"),
    [
        ('{"content": null}', "content_filter", "content filter"),
        ('{"content": ""}', "stop", "empty reply"),
        ('{"content": null, "refusal": "I can\'t"}', "stop", "refusal"),
    ],
)
def test_an_empty_reply_says_why(serve, write, ponder, folder, message, reason, why) -> None:
    raw = f'{{"choices": [{{"message": {message}, "finish_reason": "{reason}"}}]}}'
    (folder / "raw.json").write_text(raw)
    served = serve(raw_file=str(folder / "raw.json"))
    write("s.toml", study_for(served, problems=3))
    result = ponder("run", "s.toml", "--json")
    assert result.exit_code == 0
    assert f"unparsed 6: {why}" in result.stderr
    assert {(o.ended, o.why) for o in outcomes("s.toml")} == {("unparsed", why)}
    assert served.state()["requests"] == 6  # asked once each
    assert json.loads(ponder("regrade", "s.toml", "--json").stdout)["changed"] == 0


SLOW = ", SlowGrading"
GRADING = """
import threading
from ponder.core import SlowGrading
from ponder.tasks.chain_sum import ChainSum
THREADS = set()
class Watched(ChainSum{slow}):
    def grade(self, problem, answer):
        THREADS.add(threading.current_thread() is threading.main_thread())
        return super().grade(problem, answer)
"""


@pytest.mark.parametrize(("slow", "answer"), [(True, "1"), (False, "x" * 20_000), (False, "1")])
def test_grading_that_may_take_long_leaves_the_loop(folder, monkeypatch, slow, answer) -> None:
    for name in ("watched_sums", "says_it"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (folder / "watched_sums.py").write_text(GRADING.format(slow=SLOW * slow))
    model = "from dataclasses import dataclass\nfrom ponder.core import Bill, Completion, Model\n@dataclass\n"
    model += "class Says(Model):\n    answer: str\n    async def complete(self, request):\n"
    (folder / "says_it.py").write_text(
        model + "        return Completion('', self.answer, 'end', Bill())\n"
    )
    models = [{"name": "./says_it.py", "answer": answer}]
    study = Study(
        task=[{"name": "./watched_sums.py", "size": 2}], model=models, problems=3, folder=folder
    )
    with Store(Path("g.db"), lock=True) as store:
        asyncio.run(run(study, store, Tally()))
    on_the_loop = slow is False and answer == "1"
    assert {on_the_loop} == sys.modules["watched_sums"].THREADS


def test_a_vote_on_slow_grades_leaves_the_loop(folder, monkeypatch) -> None:
    monkeypatch.delitem(sys.modules, "watched_sums", raising=False)
    (folder / "watched_sums.py").write_text(GRADING.format(slow=SLOW))
    model = {"name": "oracle", "method": {"name": "vote", "n": 3}}
    study = Study(
        task=[{"name": "./watched_sums.py", "size": 2}], model=[model], problems=3, folder=folder
    )
    with Store(Path("v.db"), lock=True) as store:
        asyncio.run(run(study, store, Tally()))
    assert {False} == sys.modules["watched_sums"].THREADS


WAITING = """
import time
from pathlib import Path
from ponder.core import SlowGrading
from ponder.tasks.chain_sum import ChainSum
class Waiting(ChainSum{slow}):
    def grade(self, problem, answer):
        while not Path("go").exists():
            time.sleep(0.01)
        if Path("go").read_text() == "raise":
            raise ZeroDivisionError("a bug in the grader")
        return super().grade(problem, answer)
"""


def waiting_study(served, write, name: str, *, slow: bool = True) -> None:
    write(f"{name}.py", WAITING.format(slow=SLOW * slow))
    study = (
        study_for(served, problems=40)
        .replace('"chain_sum"', f'"./{name}.py"')
        .replace("[2, 4]", "4")
    )
    write("s.toml", study.replace("digits = 5", ""))


def test_answers_are_stored_while_graders_are_busy(serve, write, ponder, running) -> None:
    served = serve()
    waiting_study(served, write, "waiting_sums")
    with running("run", "s.toml") as process:
        served.wait(answered=32)
        wait_until(lambda: stored("SELECT COUNT(*) FROM turn") == 32)
        process.send_signal(signal.SIGKILL)
    write("go", "")
    assert ponder("run", "s.toml").exit_code == 0
    assert [o.correct for o in outcomes("s.toml")] == [True] * 40
    assert served.state()["answered"] == 40  # nothing that was answered is asked again


@pytest.mark.parametrize("slow", [True, False])
def test_a_grader_that_raises_loses_no_answer(serve, write, ponder, monkeypatch, slow) -> None:
    served = serve()
    monkeypatch.delitem(sys.modules, "raising_sums", raising=False)
    waiting_study(served, write, "raising_sums", slow=slow)
    write("go", "raise")
    result = ponder("run", "s.toml")
    assert result.exit_code == 2
    assert (
        "the grader of task `raising_sums` raised ZeroDivisionError: a bug in the grader"
        in result.stderr
    )
    assert outcomes("s.toml") == []
    write("go", "")
    assert ponder("run", "s.toml").exit_code == 0
    assert [o.correct for o in outcomes("s.toml")] == [True] * 40
    assert served.state()["answered"] == 40


def test_a_reason_with_half_a_surrogate_is_stored(folder) -> None:
    source = "from dataclasses import dataclass\nfrom ponder.core import Model, ModelFailure\n@dataclass\n"
    source += "class Odd(Model):\n    async def complete(self, request):\n"
    (folder / "odd_model.py").write_text(
        source + "        raise ModelFailure('bad ' + chr(0xd800) + ' news')\n"
    )
    study = Study(
        task=[{"name": "chain_sum", "size": 2}],
        model=[{"name": "./odd_model.py"}],
        problems=3,
        folder=folder,
    )
    with Store(Path("odd.db"), lock=True) as store:
        asyncio.run(run(study, store, Tally()))
        assert [o.why for o in store.outcomes(study.cells)] == ["bad \ufffd news"] * 3


def test_a_local_conversation_stops_between_two_turns(folder) -> None:
    source = "from dataclasses import dataclass\nfrom ponder.core import Bill, Completion, Model\nSTOPS = []\n@dataclass\n"
    source += "class Slow(Model):\n    async def complete(self, request):\n        STOPS[0].ask()\n"
    (folder / "stopping_model.py").write_text(
        source + "        return Completion('', '1', 'end', Bill(1, 1, 1))\n"
    )
    task = {"name": "execution", "size": 4, "dictionary": 6}
    study = Study(task=[task], model=[{"name": "./stopping_model.py"}], problems=3, folder=folder)
    assert study.cells
    stop, tally = Stop(), Tally()
    sys.modules["stopping_model"].STOPS.append(stop)
    with Store(Path("l.db"), lock=True) as store:
        asyncio.run(run(study, store, tally, stop))
        assert [len(turns) for turns in store.begun(study.cells[0]).values()] == [1]
    assert tally.done == 0


def test_a_crash_in_a_model_is_no_answer(folder) -> None:
    study = Study(
        task=[{"name": "chain_sum", "size": 2}],
        model=[{"name": "./crashing.py"}],
        problems=3,
        folder=folder,
    )
    (folder / "crashing.py").write_text(
        '"""A model that crashes."""\n'
        "from dataclasses import dataclass\n"
        "from ponder.core import Completion, Model, Request\n"
        "@dataclass\n"
        "class Crashing(Model):\n"
        "    async def complete(self, request: Request) -> Completion:\n"
        "        raise ZeroDivisionError('bug')\n"
    )
    tally = Tally()
    with Store(Path("c.db"), lock=True) as store:
        asyncio.run(run(study, store, tally))
        failed = list(store.outcomes(study.cells))
    assert [(o.ended, o.why) for o in failed] == [("failed", "ZeroDivisionError: bug")] * 3
