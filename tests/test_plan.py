"""What a plan says before a run is what the run then spends, and the progress line says how far it has come."""

from __future__ import annotations

import asyncio
import dataclasses
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from ponder.core import Bill
from ponder.runner import progress
from ponder.runner.plan import Forecast, plan
from ponder.runner.run import Tally, run
from ponder.runner.store import Store
from ponder.runner.study import Study


def study_of(task: dict[str, Any], **model: Any) -> Study:
    return Study(task=[task], model=[{"name": "oracle", "spread": 0, **model}], problems=4, samples=3)


def spent(study: Study, path: Path) -> Bill:
    with Store(path, lock=True) as store:
        asyncio.run(run(study, store, Tally()))
        return store.spent(study.cells)[1]


def test_the_budget_bounds_what_is_not_known(tmp_path) -> None:
    study = study_of({"name": "chain_sum", "size": 2}, budget=1000)
    (forecast,) = plan(study, tmp_path / "none.db")
    problem = next(study.cells[0].asked())
    prompt = round(len(problem.turns[0]) / 4)
    assert forecast == Forecast("oracle", "chain_sum", 1, 12, 0, 12 * (prompt + 1000), "budget (at most)", None)
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize("memory", [{}, {"window": 2}])
def test_a_conversation_sends_its_history_again(tmp_path, memory) -> None:
    task = {"name": "execution", "size": 40, "per_turn": 5, "dictionary": 5, "history_turns": 2, **memory}
    study = study_of(task, budget=100)
    (forecast,) = plan(study, tmp_path / "s.db")
    prompts = (forecast.tokens or 0) / 12 - 6 * 100  # six turns are asked
    paid = spent(study, tmp_path / "s.db").prompt_tokens / 12
    replies = 1 + 4 * 2 if memory else 15  # answers that are shown again, of five tokens at most
    assert paid - 5 * replies <= prompts <= paid + 6


def test_stored_attempts_tell_what_is_left_to_spend(tmp_path) -> None:
    prices = {"input": 2e6, "output": 1e6}
    study = study_of({"name": "chain_sum", "size": 2}, prices=prices, tokens_at_zero=10, tokens_per_size=20)
    bill = spent(study, tmp_path / "s.db")
    wider = dataclasses.replace(study, problems=8)
    (forecast,) = plan(wider, tmp_path / "s.db")
    assert (forecast.attempts, forecast.stored, forecast.to_run) == (24, 12, 12)
    assert forecast.basis == "stored attempts"
    prompt, thinking, answer = (round(n / 12) for n in (bill.prompt_tokens, bill.thinking_tokens, bill.answer_tokens))
    assert thinking == 50
    assert forecast.tokens == 12 * (prompt + thinking + answer)
    assert forecast.cost == 12 * (2 * prompt + thinking + answer)


def test_failed_attempts_are_still_to_run(tmp_path) -> None:
    study = study_of({"name": "chain_sum", "size": 2})
    spent(study, tmp_path / "s.db")
    with Store(tmp_path / "s.db", lock=True) as store:
        store._db.execute("UPDATE attempt SET status = 'failed', digest = NULL WHERE id <= 5")
    (forecast,) = plan(study, tmp_path / "s.db")
    assert (forecast.stored, forecast.to_run) == (7, 5)


def test_a_line_for_each_model_and_task(tmp_path, folder, write) -> None:
    write("a.jsonl", "\n".join(f'{{"prompt": "{n}+1?", "answer": {n + 1}, "size": {1 + n % 2}}}' for n in range(7)))
    search = {"name": "execution", "search": "max", "per_turn": 0}
    study = Study(
        task=[{"name": "chain_sum", "size": [2, 4]}, {"name": "jsonl", "file": "a.jsonl"}, search],
        model=[{"name": "oracle", "error": [0.0, 0.5]}, {"name": "endpoint", "id": "m"}],
        folder=folder,
        samples=2,
    )
    forecasts = plan(study, tmp_path / "none.db")
    assert [(f.model, f.task, f.cells, f.attempts) for f in forecasts[:2]] == [
        ("oracle error=0.0", "chain_sum", 2, 80),
        ("oracle error=0.0", "jsonl", 2, 14),
    ]
    assert [(f.attempts, f.tokens, f.basis) for f in forecasts if f.task == "execution"] == [
        (0, None, "the search decides")
    ] * 3
    assert (forecasts[6].model, forecasts[6].tokens, forecasts[6].basis) == ("m", None, "unknown")
    assert len(forecasts) == 9


def test_every_problem_of_a_fixed_set_is_asked(tmp_path, folder, write) -> None:
    write("a.jsonl", "\n".join(f'{{"prompt": "{n}+1?", "answer": {n + 1}}}' for n in range(30)))
    task = [{"name": "jsonl", "file": "a.jsonl"}]
    study = Study(task=task, model=[{"name": "oracle"}], folder=folder)
    assert [p.turns[0] for p in study.cells[0].asked()] == [f"{n}+1?" for n in range(30)]
    spent(study, tmp_path / "s.db")
    with Store(tmp_path / "s.db") as store:
        assert len(list(store.outcomes(study.cells))) == 30
    few = Study(task=task, model=[{"name": "oracle"}], folder=folder, problems=7)
    assert list(few.cells[0].asked()) == list(islice(study.cells[0].asked(), 7))


def test_the_line_of_progress() -> None:
    tally = Tally(planned=100, right=20, wrong=10, unparsed=4, truncated=4, failed=2, tokens=12_345, cost=1.5)
    tally.started = monotonic() - 8000
    line = progress.line(tally)
    assert line.startswith("█" * 10 + "░" * 14 + " 40/100  0.3/min  3:20:0")
    assert line.endswith("left  12.3k tokens  1.50 spent  right 20  wrong 10  unparsed 4  truncated 4  failed 2")
    tally.making = {"model": "a", "train_loss": 0.5}
    assert progress.line(tally) == "model a  train loss 0.5"
    done = Tally(planned=10, right=10)
    done.started = monotonic() - 2.5
    assert (
        progress.line(done) == "█" * 24 + " 10/10  4/s  0 tokens  right 10  wrong 0  unparsed 0  truncated 0  failed 0"
    )


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (950, "950"), (1000, "1k"), (12_345, "12.3k"), (4_560_000, "4.56M"), (2e9, "2G")]
)
def test_short_numbers(number, text) -> None:
    assert progress.short(number) == text


def test_the_last_state_stays_in_a_log(capsys) -> None:
    tally = Tally(planned=4)
    with progress.shown(tally):
        tally.right = 3
    assert capsys.readouterr().err.splitlines()[-1].startswith("█" * 18 + "░" * 6 + " 3/4")
