"""Conversations: what is shown again, what is billed, and what a killed run keeps."""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from itertools import accumulate
from pathlib import Path

import pytest

from ponder import Study
from ponder.core import Bill, Completion, Message, Model, Problem, Request
from ponder.methods.vote import Vote
from ponder.store.store import Store
from ponder.tasks.execution import EXAMPLE, Execution, _shot, dictionary

STUDY = """
problems = {problems}
[[task]]
name = "execution"
size = 12
per_turn = 2
dictionary = 5
{task}
[[model]]
name = "endpoint"
id = "served"
url = "{url}"
concurrency = 8
"""


def attempts(study: str):
    with Store(Path("ponder.db")) as store:
        return [done.attempt for cell in Study.load(study).cells for done in store.attempts(cell)]


@pytest.mark.parametrize(
    ("task", "replies", "messages"),
    [
        ("", "So <answer>", 1 + 2 * 5 + 1),
        ('remember = "answers"', "<answer>", 1 + 2 * 5 + 1),
        ('remember = "all"', "<think>adding up</think>\nSo <answer>", 1 + 2 * 5 + 1),
        ("window = 2", "So <answer>", 1 + 2 * 2 + 1),
    ],
)
def test_what_is_shown_again(serve, write, ponder, task, replies, messages) -> None:
    served = serve()
    write("s.toml", STUDY.format(problems=1, url=served.url, task=task))
    assert ponder("run", "s.toml").exit_code == 0
    bodies = served.state()["bodies"]
    assert len(bodies) == 6
    last = bodies[-1]["messages"]
    assert len(last) == messages
    assert last[0]["role"] == "system"
    assert all(m["content"].startswith(replies) for m in last if m["role"] == "assistant")
    (attempt,) = attempts("s.toml")
    assert attempt.correct
    assert attempt.details["parsed"] == attempt.details["true"]


def test_every_turn_is_billed(serve, write, ponder) -> None:
    write("s.toml", STUDY.format(problems=2, url=serve().url, task=""))
    ponder("run", "s.toml")
    for attempt in attempts("s.toml"):
        assert [c.bill.thinking_tokens for c in attempt.completions] == [100] * 6
        assert (
            attempt.bill.prompt_tokens,
            attempt.bill.thinking_tokens,
            attempt.bill.answer_tokens,
        ) == (240, 600, 120)


def test_policies_have_keys_of_their_own() -> None:
    def key(**task: object) -> bytes:
        (cell,) = Study(
            task=[{"name": "execution", "size": 12, **task}], model=[{"name": "oracle"}]
        ).cells
        return cell.key

    assert key() == key(remember="visible") != key(remember="all")
    assert key(window=3) != key(window=4)
    cells = Study(
        task=[{"name": "execution", "size": 12, "window": [1, 4]}], model=[{"name": "oracle"}]
    ).cells
    assert [c.label.task for c in cells] == ["execution window=1", "execution window=4"]


def test_killed_in_mid_conversation(serve, write, folder, ponder) -> None:
    served = serve(hold_after=40)
    study = STUDY.format(problems=20, url=served.url, task="").replace("size = 12", "size = 60")
    write("s.toml", study.replace("concurrency = 8", "concurrency = 3"))
    command = [sys.executable, "-c", "from ponder.cli import main; main()", "run", "s.toml"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    served.wait(held=3)
    with closing(sqlite3.connect("file:ponder.db?mode=ro", uri=True)) as db:
        while db.execute("SELECT COUNT(*) FROM turn").fetchone() < (40,):
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert db.execute("SELECT COUNT(*) FROM attempt WHERE status = 'open'").fetchone() == (3,)
    before = served.release()["requests"]
    assert ponder("run", "s.toml", "--set", "model.concurrency=20").exit_code == 0
    assert served.state()["requests"] - before == 600 - 40  # no finished turn is asked again
    finished = attempts("s.toml")
    assert len(finished) == 20
    assert all(a.correct and len(a.completions) == 30 for a in finished)
    assert all(c.thinking == "adding up" for a in finished for c in a.completions)


def test_every_turn_has_a_seed_of_its_own(serve, write, ponder) -> None:
    served = serve()
    write("s.toml", "samples = 2\n" + STUDY.format(problems=2, url=served.url, task=""))
    assert ponder("run", "s.toml").exit_code == 0
    assert len({body["seed"] for body in served.state()["bodies"]}) == 2 * 2 * 6


def test_seeds_are_the_same_in_every_run(serve, write, ponder) -> None:
    served = serve()
    write("s.toml", STUDY.format(problems=2, url=served.url, task=""))
    for store in ("a.db", "b.db"):
        assert ponder("run", "s.toml", "--store", store).exit_code == 0
    seeds = [body["seed"] for body in served.state()["bodies"]]
    assert sorted(seeds[:12]) == sorted(seeds[12:])


def test_a_truncated_turn_makes_the_conversation_wrong(write, ponder) -> None:
    problem = next(Execution().problems(2, 0))
    lines = [
        {"problem": problem.id, "turn": t, "answer": f"<answer>{s}</answer>", "stop": stop}
        for t, (s, stop) in enumerate(zip(problem.gold["sums"], ("length", "end"), strict=True))
    ]
    write("a.jsonl", "\n".join(json.dumps(line) for line in lines))
    write(
        "s.toml",
        'problems = 1\n[[task]]\nname = "execution"\nsize = 2\n[[model]]\nname = "replay"\nfile = "a.jsonl"\n',
    )
    assert ponder("run", "s.toml").exit_code == 0
    (attempt,) = attempts("s.toml")
    assert attempt.ended == "truncated"


def test_a_failure_in_mid_conversation_keeps_its_turns(folder, write, ponder) -> None:
    write(
        "s.toml",
        'problems = 1\n[[task]]\nname = "execution"\nsize = 4\n[[model]]\nname = "replay"\nfile = "a.jsonl"\n',
    )
    problem = next(Execution().problems(4, 0))
    replies = [
        {"problem": problem.id, "turn": t, "answer": f"<answer>{s}</answer>", "thinking_tokens": 7}
        for t, s in enumerate(problem.gold["sums"])
    ]
    write("a.jsonl", "\n".join(json.dumps(x) for x in replies[:2]))
    key = Study.load("s.toml").cells[0].key
    result = ponder("run", "s.toml")
    assert result.exit_code == 1
    (failed,) = attempts("s.toml")
    assert (failed.ended, len(failed.completions)) == ("failed", 2)
    # The same cell once the model has recovered: the two turns that it had are not asked again.
    write("a.jsonl", "\n".join(json.dumps(x) for x in replies[2:]))
    with closing(sqlite3.connect("ponder.db")) as db, db:
        db.execute(
            "UPDATE cell SET key = ? WHERE key = ?", (Study.load("s.toml").cells[0].key, key)
        )
    assert ponder("run", "s.toml").exit_code == 0
    (attempt,) = attempts("s.toml")
    assert attempt.correct
    assert attempt.bill.thinking_tokens == 28


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("per_turn = 5", "12 steps can't be divided into turns of 5"),
        ("window = 0", "window is a number of turns, at least 1, not 0"),
        ("window = -1", "window is a number of turns"),
        ("error_rate = 1.5", "error_rate is a fraction from 0 to 1, not 1.5"),
        ("error_rate = -0.1", "error_rate is a fraction from 0 to 1, not -0.1"),
        ("errors = 0.5", "has no key `errors`\nhint: it is now called `error_rate`"),
        ("filled = 1", "has no key `filled`\nhint: it is now called `history_turns`"),
        ('remember = "thoughts"', "there is no choice 'thoughts'"),
        ("history_turns = 6", "all turns are in the history (history_turns = 6)"),
        ("dictionary = 0", "dictionary must be from 1 to"),
        ("dictionary = 9999", "dictionary must be from 1 to"),
    ],
)
def test_mistakes(write, ponder, task, message) -> None:
    study = STUDY.format(problems=1, url="http://127.0.0.1:9/v1", task=task)
    name = task.partition(" ")[0]
    lines = [x for x in study.splitlines() if not x.startswith(name) or x == task]
    write("s.toml", "\n".join(lines))
    result = ponder("run", "s.toml")
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize(
    ("reply", "number"),
    [
        ("<answer>12</answer>", 12),
        ("<answer>12</answer>, or rather <answer>13</answer>", 13),
        ("<answer>1,234</answer>", 1234),
        ("<answer>-7.0</answer>", -7),
        ("<answer>7.5</answer>", None),
        ("<answer></answer>", None),
        ("12", 12),
        ("it is 12", 12),
        ("it is 12 or 13", None),
        ("", None),
    ],
)
def test_what_counts_as_a_number(reply, number) -> None:
    task = Execution()
    assert task.parse(task.problem(1, 1), reply) == number


def test_grades_turn_by_turn() -> None:
    task = Execution(per_turn=2)
    problem = task.problem(6, 3)
    sums = problem.gold["sums"]
    right = [f"<answer>{s}</answer>" for s in sums]
    assert task.grade_turns(problem, right).correct
    slipped = task.grade_turns(problem, [right[0], "<answer>99999</answer>", right[2]])
    assert (slipped.correct, slipped.why) == (False, "wrong sum")
    assert slipped.details["parsed"] == [sums[0], 99999, sums[2]]
    silent = task.grade_turns(problem, [right[0], "hm", right[2]])
    assert (silent.correct, silent.why, silent.parsed) == (
        False,
        "no number",
        [sums[0], None, sums[2]],
    )
    assert task.grade_turns(problem, ["", "", ""]).parsed is None


def test_filled_histories() -> None:
    true = Execution(history_turns=9, error_rate=0.0).problem(10, 1)
    assert len(true.turns) == 1
    assert len(true.history) == 18
    wrong = Execution(history_turns=999, error_rate=0.5, dictionary=5).problem(1000, 2)
    table = Execution(dictionary=5)
    shown = [int(m.content[8:-9]) for m in wrong.history if m.role == "assistant"]
    clean = Execution(history_turns=999, error_rate=0.0, dictionary=5).problem(1000, 2)
    truth = [int(m.content[8:-9]) for m in clean.history if m.role == "assistant"]
    off = [a - b for a, b in zip(shown, truth, strict=True)]
    assert 430 < sum(o != 0 for o in off) < 570
    assert max(map(abs, off)) <= 10
    always = Execution(history_turns=999, error_rate=1.0, dictionary=5).problem(1000, 2)
    said = [int(m.content[8:-9]) for m in always.history if m.role == "assistant"]
    # an injected error is never 0
    assert not any(a == b for a, b in zip(said, _true_sums(always), strict=True))
    assert wrong.gold["start"] == shown[-1]  # the live turn is judged from what was shown
    assert wrong.gold["sums"][0] - shown[-1] == clean.gold["sums"][0] - truth[-1]
    assert table.problem(2, 1) != table.problem(2, 2)


def _true_sums(problem: Problem) -> list[int]:
    table = dictionary(problem)
    asked = [m.content.split(", ") for m in problem.history if m.role == "user"]
    return list(accumulate(sum(table[key] for key in turn) for turn in asked))


def test_shared_dictionary() -> None:
    def shown(shared: bool, seed: int) -> str:
        return Execution(shared=shared).problem(3, seed).system.partition("The dictionary is:")[2]

    assert shown(True, 1) == shown(True, 2)
    assert shown(False, 1) != shown(False, 2)


@pytest.mark.parametrize("group", [1, 2, 3, 6])
@pytest.mark.parametrize("mode", ["answer", "cot"])
def test_the_worked_examples_are_right(group, mode) -> None:
    total = 0
    for asked, told in zip(*[iter(_shot(group, mode).splitlines())] * 2, strict=True):
        total += sum(EXAMPLE[key] for key in asked.removeprefix("user: ").split(", "))
        assert told.endswith(f"<answer>{total}</answer>")
    assert total == 9


def test_vote(serve, write, ponder) -> None:
    served = serve()
    write(
        "s.toml",
        STUDY.format(problems=2, url=served.url, task="") + 'method = [{ name = "vote", n = 7 }]\n',
    )
    assert ponder("run", "s.toml").exit_code == 0
    assert served.state()["requests"] == 2 * 6 * 7
    assert {a.bill.thinking_tokens for a in attempts("s.toml")} == {6 * 7 * 100}


def test_vote_takes_the_majority() -> None:
    said = ["hm", "<answer>2</answer>", "<answer>1</answer>", "2", "1,000", "<answer>2.0</answer>"]

    class Scripted(Model):
        async def complete(self, request: Request) -> Completion:
            return Completion("", said[next(self.place)], "end", Bill(1, 0, 1))

    model = Scripted()
    model.place = iter(range(6))  # type: ignore[attr-defined]
    task = Execution()
    problem = task.problem(1, 1)
    request = Request(task, problem, (Message("user", "x"),), 1)
    answer = asyncio.run(Vote(6).apply(model).complete(request))
    assert answer.answer == "<answer>2</answer>"
    assert answer.bill == Bill(6, 0, 6)
