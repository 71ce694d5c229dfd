"""What a plan says before a run is what the run then spends, and the progress line says how far it
has come.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import ponder as ponder_api
from ponder import Study
from ponder.core import Attempt, Bill, Retry, UserError
from ponder.run import progress
from ponder.run.caps import PROMPT_TOLERANCE, Money
from ponder.run.interrupt import Stop
from ponder.run.plan import (
    Range,
    counts,
    plan,
    probe,
)
from ponder.run.progress import Tally
from ponder.run.run import run
from ponder.store.store import Store
from ponder.tasks.chain_sum import ChainSum


def study_of(task: dict[str, Any], **model: Any) -> Study:
    return Study(
        task=[task], model=[{"name": "oracle", "spread": 0, **model}], problems=4, samples=3
    )


def spent(study: Study, path: Path) -> Bill:
    with Store(path, lock=True) as store:
        asyncio.run(run(study, store, Tally()))
        return store.spent(study.cells)[1]


CONVERSATION = {"name": "execution", "size": 40, "per_turn": 5, "dictionary": 5}
COUNTING = """
from dataclasses import dataclass
from ponder.core import Bill, Completion, Model, Request
CALLS = []
@dataclass(kw_only=True)
class Counting(Model):
    budget: int = 400
    def max_tokens(self):
        return self.budget
    async def complete(self, request: Request) -> Completion:
        CALLS.append(request)
        budget = min(self.budget, request.budget or self.budget)
        # The worst tokenizer: a token per byte of what it is asked; of its own texts, three bytes per token.
        sizes = [(m.role, len(m.content.encode())) for m in request.messages]
        prompt = sum(min(size, self.budget) if role == "assistant" else size for role, size in sizes)
        answer = "<answer>" + "x" * 3 * budget
        return Completion("", answer, "length", Bill(prompt, 0, budget, counted_by="estimate"))
"""


@pytest.mark.parametrize(
    "task", [{"name": "chain_sum", "size": [2, 30]}, CONVERSATION, {**CONVERSATION, "window": 2}]
)
@pytest.mark.parametrize(
    ("method", "calls"),
    [
        ([], 1),
        ([{"name": "vote", "n": 8}], 8),
        ([{"name": "best_of", "n": 3, "reward": {"name": "oracle"}, "cut": "task"}], 3),
        ([{"name": "budget_force", "think": 20, "answer": 30}], 2),
        ([{"name": "budget_force", "think": 20, "answer": 30}, {"name": "vote", "n": 3}], 6),
    ],
    ids=["plain", "vote", "best_of", "budget_force", "chain"],
)
def test_at_most_bounds_every_call(tmp_path, monkeypatch, task, method, calls) -> None:
    """A model that always uses its whole budget, with a tokenizer that makes a token of every byte."""
    (tmp_path / "counting_model.py").write_text(COUNTING)
    monkeypatch.delitem(sys.modules, "counting_model", raising=False)
    model = {
        "name": "./counting_model.py",
        "prices": {"input": 1.0, "output": 4.0},
        "method": method,
    }
    study = Study(task=[task], model=[model], problems=4, samples=3, folder=tmp_path)
    result = plan(study, tmp_path / "s.db").total
    bill = spent(study, tmp_path / "s.db")
    asked = sys.modules["counting_model"].CALLS
    turns = 8 if task["name"] == "execution" else 1
    assert result.calls == len(asked) == calls * turns * result.attempts
    assert result.tokens.low <= bill.tokens <= result.tokens.at_most
    # the rest: what a template may add, and a reward may read
    assert bill.tokens > 0.25 * result.tokens.at_most
    assert result.cost.low <= study.cells[0].model.prices.cost(bill) <= result.cost.at_most
    one, tally = dataclasses.replace(study, problems=1, samples=1), Tally()
    at_most = plan(one, tmp_path / "capped.db").total.tokens.at_most
    with Store(tmp_path / "capped.db", lock=True) as store:
        asyncio.run(run(dataclasses.replace(one, max_tokens=at_most), store, tally))
    # a cap of this size is never reached
    assert (tally.done, tally.ledger.capped) == (len(study.cells), False)


def test_at_most_looks_at_the_longest_prompt(tmp_path, monkeypatch) -> None:
    (tmp_path / "counting_model.py").write_text(COUNTING)
    monkeypatch.delitem(sys.modules, "counting_model", raising=False)
    prompts = ["1+1?", "x" * 9000, "2+2?"]
    lines = (json.dumps({"prompt": prompt, "answer": 2}) for prompt in prompts)
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    task, model = {"name": "jsonl", "file": "a.jsonl"}, {"name": "./counting_model.py"}
    study = Study(task=[task], model=[model], folder=tmp_path)
    at_most = plan(study, tmp_path / "s.db").total.tokens.at_most or 0
    assert spent(study, tmp_path / "s.db").tokens <= at_most < 3 * 12_500


def test_at_most_counts_what_a_reward_reads(tmp_path) -> None:
    judge = {"name": "judge", "model": {"name": "oracle", "budget": 300, "tokens_at_zero": 250}}
    method = {"name": "best_of", "n": 3, "reward": judge}
    study = study_of(
        {"name": "chain_sum", "size": 4}, budget=200, tokens_at_zero=150, method=[[], [method]]
    )
    plain, judged = (f.tokens.at_most or 0 for f in plan(study, tmp_path / "s.db").forecasts)
    spent(study, tmp_path / "s.db")
    with Store(tmp_path / "s.db") as store:
        paid, judged_paid = (store.spent([cell])[1].total_tokens for cell in study.cells)
    assert plain >= paid
    # so that without the reward's reading it would be wrong
    assert judged >= judged_paid > 3 * plain


def test_before_anything_is_known(tmp_path) -> None:
    study = study_of({"name": "chain_sum", "size": 2}, budget=1000)
    (forecast,) = plan(study, tmp_path / "none.db").forecasts
    prompt = len(next(study.cells[0].asked()).turns[0])
    longest_prompt = math.ceil(PROMPT_TOLERANCE * (prompt + 16 + 64))
    assert forecast.tokens == Range(12 * (prompt // 4), None, 12 * (longest_prompt + 1000))
    assert (forecast.basis, forecast.cost, forecast.to_run) == ("prompts alone", None, 12)
    assert not (tmp_path / "none.db").exists()


def test_stored_attempts_tell_what_is_left_to_spend(tmp_path) -> None:
    prices = {"input": 2e6, "output": 1e6, "currency": "EUR"}
    study = study_of(
        {"name": "chain_sum", "size": [2, 4]}, prices=prices, tokens_at_zero=10, tokens_per_size=20
    )
    bill = spent(study, tmp_path / "s.db")
    wider = dataclasses.replace(study, problems=8)
    planned = plan(wider, tmp_path / "s.db")
    (forecast,) = planned.forecasts
    assert (forecast.attempts, forecast.stored, forecast.to_run) == (48, 24, 24)
    assert (forecast.basis, planned.currency) == ("24 stored", "EUR")
    assert forecast.tokens.expected == pytest.approx(bill.tokens, rel=0.01)  # as many again
    assert forecast.cost.expected == pytest.approx(
        2 * bill.prompt_tokens + bill.thinking_tokens + bill.answer_tokens
    )
    # the attempts differ in their prompts only
    assert 0.9 * bill.tokens < forecast.tokens.low <= bill.tokens
    assert forecast.tokens.at_most > 24_000_000


def test_low_is_a_prediction(tmp_path) -> None:
    """What half of a study took predicts the other half: in most cases more than `low`, and about
    `expected`.
    """
    above, ratios = 0, []
    for seed in range(40):
        model = {"spread": 1.0, "tokens_at_zero": 100, "tokens_per_size": 0}
        study = Study(
            task=[{"name": "chain_sum", "size": [2, 3]}],
            model=[{"name": "oracle", **model}],
            problems=20,
            seed=seed,
        )
        first = spent(dataclasses.replace(study, problems=10), tmp_path / f"{seed}.db").tokens
        forecast = plan(study, tmp_path / f"{seed}.db").total.tokens
        rest = spent(study, tmp_path / f"{seed}.db").tokens - first
        above += rest >= forecast.low
        ratios.append(rest / (forecast.expected or 1))
        assert 0 < forecast.low < 0.9 * (forecast.expected or 0)
    assert above >= 36
    assert 0.9 < sum(ratios) / 40 < 1.2


def test_sizes_without_attempts_are_guessed_from_the_nearest(tmp_path) -> None:
    study = study_of({"name": "chain_sum", "size": [2, 40]}, tokens_at_zero=0, tokens_per_size=100)
    spent(study, tmp_path / "s.db")
    wider = dataclasses.replace(study, task=[{"name": "chain_sum", "size": [2, 3, 39, 40]}])
    forecast = plan(wider, tmp_path / "s.db").total
    assert forecast.tokens.expected == pytest.approx(12 * (200 + 4000 + 2 * 30), rel=0.1)
    assert plan(wider, tmp_path / "s.db").forecasts[0].basis == "24 stored, also for other sizes"


def test_failed_attempts_are_still_to_run(tmp_path) -> None:
    study = study_of({"name": "chain_sum", "size": 2})
    spent(study, tmp_path / "s.db")
    with Store(tmp_path / "s.db", lock=True) as store:
        store._db.execute("UPDATE attempt SET status = 'failed', digest = NULL WHERE id <= 5")
    (forecast,) = plan(study, tmp_path / "s.db").forecasts
    assert (forecast.stored, forecast.to_run) == (7, 5)
    with Store(tmp_path / "s.db") as store:
        assert counts(study.cells, store) == (5, 7)


def test_a_line_for_each_model_and_task(tmp_path, folder, write) -> None:
    write(
        "a.jsonl",
        "\n".join(
            f'{{"prompt": "{n}+1?", "answer": {n + 1}, "size": {1 + n % 2}}}' for n in range(7)
        ),
    )
    study = Study(
        task=[{"name": "chain_sum", "size": [2, 4]}, {"name": "jsonl", "file": "a.jsonl"}],
        model=[{"name": "oracle", "error": [0.0, 0.5]}, {"name": "endpoint", "id": "m"}],
        folder=folder,
        samples=2,
    )
    planned = plan(study, tmp_path / "none.db")
    forecasts = planned.forecasts
    assert [(f.model, f.task, f.cells, f.attempts) for f in forecasts[:2]] == [
        ("oracle error=0.0", "chain_sum", 2, 80),
        ("oracle error=0.0", "jsonl", 2, 14),
    ]
    assert (forecasts[4].model, forecasts[4].tokens.at_most, forecasts[4].calls) == (
        "m",
        None,
        None,
    )
    assert len(forecasts) == 6
    assert (planned.total.attempts, planned.total.tokens.at_most) == (3 * (80 + 14), None)


def test_a_run_that_chooses_the_sizes_has_no_expected_number(tmp_path) -> None:
    study = Study(
        task=[{"name": "execution", "per_turn": 0}],
        model=[{"name": "oracle", "error": [0.0, 0.5]}],
        stop={"goal": "max_size"},
    )
    planned = plan(study, tmp_path / "none.db")
    assert [(f.attempts, f.tokens.expected, f.basis) for f in planned.forecasts] == [
        (0, None, "the run decides")
    ] * 2
    assert planned.forecasts[0].calls == 1000  # it ends after a thousand attempts at the latest


def test_the_table(write, ponder) -> None:
    prices = "prices = { input = 1.0, output = 4.0, currency = 'EUR' }"
    model = f'[[model]]\nname = "oracle"\nbudget = 1000\nmethod = [[], {{ name = "vote", n = 8 }}]\n{prices}\n'
    task = '[[task]]\nname = "chain_sum"\nsize = 4\n'
    write(
        "s.toml",
        f"problems = 5\nmax_tokens = 20000\n{task}{model}".replace("[[], {", "[[], [{").replace(
            "}]", "}]]"
        ),
    )
    result = ponder("plan", "s.toml")
    assert result.exit_code == 0, result.stderr
    head, plain, vote, total, cap, hint = result.stdout.splitlines()
    assert "EUR: low" in head
    assert plain.split()[:2] == ["oracle", "chain_sum"]
    assert (plain.split()[-7], vote.split()[-7], total.split()[-7]) == ("5", "40", "45")  # calls
    assert total.startswith("total")
    assert cap == "max_tokens: 20k; a run may stop there"
    assert "ponder plan s.toml --probe 2" in hint
    before = json.loads(ponder("plan", "s.toml", "--json").stdout)
    result = ponder("plan", "s.toml", "--probe", "2", "--json")
    assert result.exit_code == 0, result.stderr
    probed = json.loads(result.stdout)
    assert (before["total"]["stored"], probed["total"]["stored"], probed["total"]["to_run"]) == (
        0,
        4,
        6,
    )
    assert before["total"]["tokens"]["expected"] is None
    low, expected, at_most = probed["total"]["tokens"].values()
    assert 0 < low < expected < at_most
    # what was probed is kept
    assert json.loads(ponder("run", "s.toml", "--json").stdout)["stored_before"] == 4


def test_a_probe_trains_on_what_the_study_trains_on() -> None:
    """With fewer problems of its own, a smaller study would train on some that the whole study
    asks.
    """
    model = {"name": "pocket", "method": {"name": "shortest", "problems": 4}}
    study = Study(
        task=[{"name": "execution", "size": 2, "dictionary": 6}],
        model=[model],
        problems=7,
        samples=3,
    )
    (probed,) = probe(study, 2)
    assert (probed.quota.problems, probed.quota.samples, probed.key) == (2, 1, study.cells[0].key)
    assert [train.asked for train in probed.methods[0].train_on] == [7]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("cap", "ends"),
    [
        (10_000_000, "the study fits"),
        (30_000, "a run may stop there"),
        (1, "a run will stop there"),
    ],
)
def test_a_plan_says_whether_a_cap_will_stop_the_run(write, ponder, cap, ends) -> None:
    model = '[[model]]\nname = "oracle"\nbudget = 10000\n'
    write(
        "s.toml",
        f'problems = 5\nmax_tokens = {cap}\n[[task]]\nname = "chain_sum"\nsize = 4\n{model}',
    )
    [note] = [
        line
        for line in ponder("plan", "s.toml").stdout.splitlines()
        if line.startswith("max_tokens")
    ]
    assert note.endswith(f"; {ends}")


def test_a_reply_without_a_limit_is_told_with_what_limits_it(write, ponder) -> None:
    model = '[[model]]\nname = "endpoint"\nid = "m"\nprobe = false\n'
    write("s.toml", '[[task]]\nname = "chain_sum"\nsize = 2\n' + model)
    note = "at most: unknown, because nothing limits a reply of `m`; give its [[model]] a `budget`, in tokens"
    assert note in ponder("plan", "s.toml").stdout
    assert "nothing limits" not in ponder("plan", "s.toml", "--set", "model.budget=100").stdout


def test_one_currency(write, ponder) -> None:
    model = '[[model]]\nname = "oracle"\nlabel = "{0}"\nprices = {{ input = 1.0, output = 4.0, currency = "{0}" }}\n'
    write(
        "s.toml",
        f'[[task]]\nname = "chain_sum"\n{model.format("EUR")}critical_size = 9\n{model.format("USD")}',
    )
    result = ponder("plan", "s.toml")
    assert result.exit_code == 2
    assert "different currencies: EUR, USD" in result.stderr


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


def tally_of(**counts: Any) -> Tally:
    tally = Tally(
        planned=100, right=20, wrong=10, unparsed=4, truncated=4, failed=2, currency="EUR", **counts
    )
    tally.ledger.spent = Money(12_345, 1.5)
    tally.started = 0.0
    return tally


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """What the clock of the line of progress shows: 8,000 seconds after a run's start."""
    now = [8000.0]
    monkeypatch.setattr(progress, "monotonic", lambda: now[0])
    return now


def test_the_line_of_progress(clock) -> None:
    line = progress.line(tally_of())
    assert line.startswith("█" * 6 + "░" * 10 + " 40/100  3:20:00 left")
    assert line.endswith(
        "12.3k tokens, 1.50 EUR  right 20  wrong 10  unparsed 4  truncated 4  failed 2  0.3/min"
    )
    making = Tally(making={"a": {"model": "a", "train_loss": 0.5}})
    assert progress.line(making) == "model a  train loss 0.5"
    done = Tally(planned=10, right=10, started=clock[0] - 2.5)
    assert progress.line(done) == "█" * 16 + " 10/10  0 tokens  right 10  4/s"


def test_the_time_left_does_not_count_the_making_of_models(clock, monkeypatch) -> None:
    tally = tally_of()
    clock[0] = 400.0
    assert "40/100  10:00 left" in progress.line(tally)
    for clock[0] in (400.0, 500.0, 1000.0):
        tally.report("sft", {"step": int(clock[0])})
        assert "left" not in progress.line(tally)
        assert progress.line(tally).endswith(f"failed 2  6.0/min  making sft: step {clock[0]:.0f}")
    tally.report("sft", None)
    assert "40/100  10:00 left" in progress.line(tally)
    # Meanwhile another model answers: then the time counts.
    tally.report("dpo", {"step": 1})
    clock[0] = 1200.0
    tally.count(Attempt(ChainSum().problem(2, 1), 0, "right", "", ()))
    clock[0] = 1300.0
    tally.report("dpo", None)
    assert tally.asking_seconds(clock[0]) == 600.0


def test_the_line_of_progress_tells_troubles() -> None:
    tally = tally_of()
    for kind, why in (
        ("rate limit", "HTTP 429: slow down"),
        ("timeout", "no reply"),
        ("timeout", "no\n\x1b[2Jreply"),
    ):
        tally.retried(Retry(kind, why, billed=False, wait=0.5))  # type: ignore[arg-type]
    assert progress.line(tally).endswith(
        "retries: 1 rate limit, 2 timeouts  last: no \\x1b[2Jreply"
    )


@pytest.mark.parametrize("width", [20, 60, 79, 100, 200])
def test_the_line_of_progress_fits_the_terminal(width) -> None:
    tally = tally_of()
    tally.retried(
        Retry(
            "error", "no connection to http://127.0.0.1:9/v1: " + "x" * 300, billed=False, wait=0.5
        )
    )
    line = progress.line(tally, width)
    assert len(line) <= width
    assert line.startswith("█" * 6 + "░" * 10)
    assert ("last: no connection" in line) == (width == 200)


def test_the_line_of_progress_is_cut_between_words(clock) -> None:
    tally = tally_of()
    tally.retried(
        Retry(
            "error", "no connection to the server at http://127.0.0.1:9/v1", billed=False, wait=0.5
        )
    )
    words = progress.line(tally).replace("  ", " ").split(" ")
    for width in range(40, 220):
        shown = progress.line(tally, width).removesuffix("…").replace("  ", " ").split(" ")
        assert [word.rstrip(",:") for word in shown] == [
            word.rstrip(",:") for word in words[: len(shown)]
        ]
    making = Tally(making={"a": {"model": "a", "train_loss": 0.5, "seconds": 1234}})
    assert progress.line(making, 24) == "model a  train loss 0.5"


def test_a_run_that_stops_says_what_it_waits_for() -> None:
    async def stopping() -> tuple[str, str]:
        stop = Stop()
        tally = tally_of(stop=stop)
        tally.ledger.calls = 3
        stop.ask()
        after_an_error = progress.line(tally)
        stop.signal = 2
        return after_an_error, progress.line(tally)

    after_an_error, after_a_signal = asyncio.run(stopping())
    assert "40/100  stopping: waiting for 3 calls  12.3k" in after_an_error
    assert "40/100  stopping: waiting for 3 calls, Ctrl-C again drops them" in after_a_signal


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (950, "950"), (1000, "1k"), (12_345, "12.3k"), (4_560_000, "4.56M"), (2e9, "2G")],
)
def test_short_numbers(number, text) -> None:
    assert progress.short(number) == text


def test_the_last_state_stays_in_a_log(capsys) -> None:
    tally = Tally(planned=4)
    with progress.shown(tally):
        tally.right = 3
    assert capsys.readouterr().err.splitlines()[-1].startswith("█" * 12 + "░" * 4 + " 3/4")


def local(**settings: Any) -> Study:
    model = {"name": "transformers", "id": "pocket", "budget": 60, **settings}
    return Study(task=[{"name": "tents", "size": [16]}], model=[model], problems=4, samples=2)


def weights(folder: Path, parameters: int) -> str:
    """A folder whose one tensor has this many elements, says its header."""
    header = json.dumps(
        {"__metadata__": {}, "a": {"dtype": "F32", "shape": [parameters], "data_offsets": [0, 0]}}
    )
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header.encode())
    return str(folder)


def test_how_long_local_weights_take(tmp_path) -> None:
    pytest.importorskip("torch")
    folder = weights(tmp_path / "weights", 10**9)
    for settings, speed in (  # of 8 × 60 tokens
        ({}, 5),  # 10e9 floating-point operations per second, two per parameter and token
        ({"threads": 4}, 20),
        ({"device": "cuda", "concurrency": 3}, 100),  # 30 ms per step
        # 200 GB per step
        ({"device": "cuda", "concurrency": 3, "id": "org/big-100B-chat", "dtype": "bfloat16"}, 15),
        ({"id": "org/nobody-knows"}, None),
    ):
        result = plan(local(**{"id": folder, **settings}), tmp_path / "s.db")
        found = result.forecasts[0].duration
        assert (found and found.seconds) == (speed and pytest.approx(480 / speed))
        assert result.warning() == ""


def test_more_than_a_day_is_warned_about(write, ponder, tmp_path, capsys) -> None:
    pytest.importorskip("torch")
    study = '[[task]]\nname = "tents"\nsize = 16\n[[model]]\nname = "transformers"\nid = "{}"\nbudget = 8192\n'
    write("s.toml", "problems = 50\n" + study.format(weights(tmp_path / "big", 8 * 10**9)))
    result = ponder("plan", "s.toml")
    assert result.exit_code == 0
    said = "warning: this may take up to 8 days; `big (transformers)` alone: 409,600 tokens at 0.6 per second, "
    assert said + "a guess from 8 billion parameters on cpu" in result.stderr
    assert 'hint: name = "vllm" serves the same weights faster' in result.stderr
    forecast = json.loads(ponder("plan", "s.toml", "--json").stdout)["forecasts"][0]
    assert forecast["duration"]["seconds"] == pytest.approx(655360)
    run = ponder("run", "s.toml")  # these weights are none, but the warning comes first
    assert (run.exit_code, said in run.stderr) == (2, True)
    model = {"name": "transformers", "id": str(tmp_path / "big"), "budget": 8192}
    with pytest.raises(UserError):
        ponder_api.Study({"name": "tents", "size": 16}, model, problems=50).run(
            store=tmp_path / "s.db"
        )
    assert said in capsys.readouterr().err
    write("s.toml", study.format("pocket"))
    assert "warning" not in ponder("plan", "s.toml").stderr


def test_how_long_it_takes_is_read_from_stored_attempts(tmp_path) -> None:
    pytest.importorskip("torch")
    study, path = local(), tmp_path / "s.db"
    first = dataclasses.replace(study, problems=2)
    with Store(path, lock=True) as store:
        asyncio.run(run(first, store, Tally()))
        done = list(store.outcomes(first.cells))
        (written, seconds), bill = store.speed(first.cells), store.spent(first.cells)[1]
    tokens = bill.thinking_tokens + bill.answer_tokens
    assert written == pytest.approx(tokens / bill.tokens)
    took = sum((o.thinking_tokens + o.answer_tokens) * o.details["seconds_per_token"] for o in done)
    assert seconds == pytest.approx(took / tokens)
    (forecast,) = plan(study, path).forecasts
    assert forecast.duration.seconds == pytest.approx(forecast.tokens.expected * written * seconds)
    assert forecast.duration.how.endswith("per second, as stored")
    assert not forecast.duration.at_most


def test_files_that_are_no_weights_make_no_forecast(write, ponder, folder) -> None:
    (folder / "weights").mkdir()
    (folder / "weights" / "config.json").write_text('{"model_type": "llama"}')
    pointer = "version https://git-lfs.example/spec/v1\noid sha256:0\nsize 1\n"
    (folder / "weights" / "model.safetensors").write_text(pointer)
    write(
        "s.toml",
        '[[task]]\nname = "chain_sum"\nsize = 2\n[[model]]\nname = "transformers"\nid = "./weights"\n',
    )
    refused = ponder("plan", "s.toml")
    assert refused.exit_code == 2
    assert (
        "model.safetensors is a Git LFS pointer, not weights\nhint: git -C weights lfs pull"
        in refused.stderr
    )
    (folder / "weights" / "model.safetensors").write_text("nothing")
    result = ponder("plan", "s.toml", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["forecasts"][0].get("duration") is None


def test_two_names_of_one_model_are_refused(ponder, write) -> None:
    study = (
        'problems = 2\n[[task]]\nname = "chain_sum"\nsize = [2, 3]\n[[model]]\nname = "oracle"\n'
    )
    write(
        "s.toml",
        study + 'label = "old"\n[[model]]\nname = "oracle"\nlabel = "new"\nconcurrency = 3\n',
    )
    error = "models `old` and `new` have the same settings, so they would share their attempts"
    for verb in ("plan", "run"):
        refused = ponder(verb, "s.toml")
        assert (refused.exit_code, refused.stderr.count(error)) == (2, 1), verb
    write(
        "s.toml", study + 'label = "old"\n[[model]]\nname = "oracle"\nlabel = "new"\nerror = 0.1\n'
    )
    assert ponder("plan", "s.toml").exit_code == 0
