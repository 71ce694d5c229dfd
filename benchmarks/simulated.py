"""Writes stores of simulated attempts for the benchmarks: any number of them, in minutes, through
the store's writer.

    python benchmarks/simulated.py STUDY ATTEMPTS FOLDER

The problems are the tasks' own. Accuracy falls and tokens grow with size; problems differ in
difficulty; some attempts are truncated, unparsed or failed. Texts have four bytes a token. Of a
million attempts, a tenth is written so; the rest are copies of them under other problems.
"""

from __future__ import annotations

import math
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from itertools import accumulate, islice
from pathlib import Path
from random import Random
from typing import Any

STUDIES = {
    "effort": """
problems = {problems}
samples  = 5
[[task]]
name = "chain_sum"
size = [4, 6, 8, 12, 16, 24, 32, 48, 64, 96]
[[model]]
name = "oracle"
budget = 1000
[[figure]]
name = "effort"
[[figure]]
name = "accuracy"
[[figure]]
name = "budget"
""",
    "frontier": """
problems = {problems}
samples  = 4
[[task]]
name       = "execution"
dictionary = 16
per_turn   = 0
size       = [6, 16]
[[train]]
name       = "execution"
dictionary = 16
per_turn   = 0
size       = [4, 8]
[[model]]
label  = "long"
name   = "pocket"
style  = "long"
method = [
  [],
  [{{ name = "merge", other = {{ name = "pocket", style = "short" }}, weight = [0.25, 0.5] }}],
  [{{ name = "shortest", seed = [1, 2, 3, 4, 5] }}],
  [{{ name = "dpo", seed = [1, 2, 3, 4, 5] }}],
  [{{ name = "length_rl", seed = [1, 2, 3, 4, 5] }}],
]
[[model]]
label = "short"
name  = "pocket"
style = "short"
[[figure]]
name = "frontier"
by   = "size"
[[figure]]
name = "budget"
""",
    "grid": """
problems = {problems}
samples  = 4
[[task]]
name = "tents"
size = 25
[[model]]
name = "transformers"
id   = "pocket"
[[model]]
name   = "transformers"
id     = "pocket"
budget = 400
[[model.method]]
name   = "compress"
policy = ["random", "streaming", "snapkv", "dynts"]
budget = 96
window = [8, 16, 32, 48]
ratio  = [0.1, 0.2, 0.3, 0.4, 0.5]
[[figure]]
name = "heatmap"
[[figure]]
name = "cache"
""",
    "horizon": """
problems = {problems}
samples  = 4
[[task]]
name       = "execution"
size       = 64
per_turn   = [1, 2, 4, 8, 16, 32, 64]
dictionary = 16
mode       = "answer"
[[model]]
name = "oracle"
[[figure]]
name = "tradeoff"
[[figure]]
name = "horizon"
""",
    "samples": """
problems = {problems}
samples  = 16
[[task]]
name = "chain_sum"
size = [8, 16, 32, 64]
[[model]]
name = "oracle"
budget = 1000
[[figure]]
name = "samples"
[[figure]]
name = "effort"
""",
}
CELLS = {"effort": 10, "frontier": 38, "grid": 81, "horizon": 7, "samples": 4}
SAMPLES = {"effort": 5, "frontier": 4, "grid": 4, "horizon": 4, "samples": 16}
SENTENCE = (
    "so the next row needs one more tent here because column four is full "
    "and then we look at 17 again : "
)
WORDS = SENTENCE.split()


def write_store(study: str, attempts: int, folder: Path) -> None:
    """Write `study.toml` and its store into a folder, in a process of its own."""
    subprocess.run([sys.executable, __file__, study, str(attempts), str(folder)], check=True)


def _write(study: str, attempts: int, folder: Path) -> None:
    from ponder import Study
    from ponder.store.store import Store

    copies = 10 if attempts >= 1_000_000 else 1
    problems = math.ceil(attempts / copies / CELLS[study] / SAMPLES[study])
    path = folder / "study.toml"
    path.write_text(STUDIES[study].format(problems=problems))
    loaded = Study.load(str(path))
    assert len(loaded.cells) == CELLS[study]
    with Store(folder / "ponder.db", lock=True) as store:
        loaded_id = store.record_study(loaded)
        for number, cell in enumerate(loaded.cells):
            done = _attempts(cell, number)
            while batch := list(islice(done, 2000)):
                store.add(batch, loaded_id, (0, 0.0, 0))

    path.write_text(STUDIES[study].format(problems=copies * problems))
    _copy(folder / "ponder.db", copies, problems)


def _copy(path: Path, copies: int, problems: int) -> None:
    """Repeat everything under other problems.

    Turns lose their check sums, which a report doesn't read.
    """
    from ponder.store.schema import ATTEMPT, TURN, digest

    db = sqlite3.connect(path)
    db.create_function("digest", -1, digest, deterministic=True)
    last = {
        table: db.execute(f"SELECT MAX(id) FROM {table}").fetchone()[0]
        for table in ("problem", "attempt")
    }
    turn = TURN.replace("attempt,", "attempt + :n * :attempt,")
    row = ATTEMPT.replace("problem,", "problem + :n * :problem,")
    for n in range(1, copies):
        shift = {"n": n, "problems": problems, **last}
        db.execute(
            """INSERT INTO problem
               SELECT id + :n * :problem, source, position + :n * :problems, :n || name, body,
               digest(source, position + :n * :problems, :n || name, body)
               FROM problem WHERE id <= :problem""",
            shift,
        )
        db.execute(
            f"""INSERT INTO attempt (id, {ATTEMPT}, digest)
                SELECT id + :n * :attempt, {row}, digest({row})
                FROM attempt WHERE id <= :attempt""",
            shift,
        )
        db.execute(
            f"INSERT INTO turn ({TURN}) SELECT {turn} FROM turn WHERE attempt <= :attempt", shift
        )
        db.commit()
    db.close()


def _attempts(cell: Any, number: int) -> Iterator[Any]:
    from ponder.store.store import Done

    trait = 0.12 * math.sin(1 + number)  # of the variant, the same at every problem
    rng = Random(number)
    for position, problem in enumerate(cell.asked()):
        easy = Random(position).gauss(0, 0.6) + trait
        for sample in range(cell.quota.samples):
            yield Done(cell, position, _attempt(cell, problem, sample, easy, rng))


def _attempt(cell: Any, problem: Any, sample: int, easy: float, rng: Random) -> Any:
    from ponder.core import Attempt, Bill, Completion

    if rng.random() < 0.001:
        return Attempt(problem, sample, "failed", "timeout", ())
    turns, budget = len(problem.turns), cell.model.max_tokens() or 2000
    silent = getattr(cell.task, "mode", "") == "answer"
    chance = 1 / (1 + math.exp(-(2.5 + 2 * easy - 1.2 * math.log(problem.size / 12))))
    rights = list(
        accumulate(
            (rng.random() < chance ** (1 / turns) for _ in range(turns)), lambda a, b: a and b
        )
    )
    replies, ended = [], ""
    for right in rights:
        wanted = (
            0
            if silent
            else round(30 * (problem.size / turns) ** 0.7 * math.exp(rng.gauss(-easy / 4, 0.5)))
        )
        thinking = min(wanted, budget)
        if wanted > budget:
            ended = "truncated"
        answer = str(_answer(problem, len(replies), right, rng))
        bill = Bill(
            120 + 8 * problem.size, thinking, 2 + len(answer) // 4, thinking / 400, "tokenizer"
        )
        measures = (
            {"cache_bytes": 960.0 * rng.randint(60, 140), "cache_peak": 157440.0}
            if cell.methods
            else {}
        )
        measures = measures if cell.task.plugin_name() == "tents" else {}
        replies.append(
            Completion(
                _prose(thinking, rng),
                answer,
                "length" if wanted > budget else "end",
                bill,
                measures,
            )
        )
    if not ended and rng.random() < 0.01:
        ended = "unparsed"
    why = ended
    if not ended:
        ended = "right" if rights[-1] else "wrong"
        why = "" if rights[-1] else "wrong sum"
    details = {**_details(cell, problem, replies), **replies[-1].measures}
    return Attempt(problem, sample, ended, why, tuple(replies), details)


_PROSE = " ".join(Random(0).choices(WORDS, k=200_000))


def _prose(tokens: int, rng: Random) -> str:
    start = rng.randrange(len(_PROSE) - 4 * tokens)
    return _PROSE[start : start + 4 * tokens]


def _answer(problem: Any, turn: int, right: bool, rng: Random) -> str:
    if isinstance(problem.gold, dict) and "sums" in problem.gold:
        return str(problem.gold["sums"][turn] + (0 if right else 7))
    if problem.turns and "tent" in problem.turns[0].lower():
        return str([[rng.randint(0, 2) for _ in range(5)] for _ in range(5)])
    return f"<answer>{12345 if right else rng.randint(0, 9)}</answer>"


def _details(cell: Any, problem: Any, replies: list[Any]) -> dict[str, Any]:
    """What the grader of `execution` records; to let it read every answer takes longer than all the
    rest.
    """
    if cell.task.plugin_name() != "execution":
        return {}
    shared = {"true": problem.gold["sums"], "start": problem.gold["start"]}
    shared |= {
        name: problem.facts[name] for name in ("per_turn", "history_turns", "error_rate", "plan")
    }
    return {"parsed": [int(reply.answer) for reply in replies], **shared}


if __name__ == "__main__":
    _write(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
