"""Training with TRL in processes of its own: what is refused before it starts, and that it ends and
resumes with Ponder.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")
pytest.importorskip("trl")

from engines import wait_for
from tiny import texts

from ponder.core import TrainingProblems, UserError
from ponder.methods.length_rl import LengthRl
from ponder.methods.sft import Sft
from ponder.methods.shortest import Shortest
from ponder.models.pocket import Pocket
from ponder.rewards.trained import Trained
from ponder.tasks.execution import Execution
from ponder.training import launch, trl_engine
from ponder.training.launch import Launch, started
from ponder.training.loop import TrainingSettings, Unit, epoch_batch
from ponder.training.reward import RewardSettings
from ponder.training.rollouts import draw_problems

TASK = Execution(dictionary=6, per_turn=0)
ON = (TrainingProblems(TASK, 2, 0, 4),)
TRL = TrainingSettings(engine="trl")

RL = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from test_trl_engine import METHOD, MODEL
for progress in METHOD.make(MODEL):
    if progress.get("step", 0) >= 2:
        os.kill(os.getpid(), signal.SIGKILL)
"""
METHOD = LengthRl(
    train_on=ON,
    iterations=8,
    problems=2,
    n=3,
    pool=6,
    inner=1,
    rate=1e-6,
    engine="trl",
    processes=2,
    free=2,
)
MODEL = Pocket(style="short", temperature=1.0, budget=64)


def processes(word: str) -> list[str]:
    """The running processes whose command has this word."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += [path.parent.name] if word.encode() in path.read_bytes() else []
        except OSError:
            continue
    return found


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="lists processes in /proc")
def test_killed_with_two_processes_it_leaves_none_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PONDER_MODELS", str(tmp_path))
    killed = subprocess.run([sys.executable, "-c", RL, str(Path(__file__).parent)], check=False)
    assert killed.returncode == -signal.SIGKILL
    wait_for(lambda: not processes(str(tmp_path)))
    work = METHOD.folder(MODEL).with_suffix(".part") / "trl"
    before = [json.loads(line) for line in (work / "steps.jsonl").read_text("utf-8").splitlines()]
    assert not METHOD.folder(MODEL).exists()
    assert before[-1]["step"] >= 2

    alone = replace(METHOD, processes=1)
    assert alone.folder(MODEL) == METHOD.folder(MODEL)
    entries, tokens = [], 0
    for _ in alone.make(MODEL):
        if (work / "iterations.jsonl").is_file():
            entries = trl_engine.read_iterations(work, METHOD.iterations)
            lines = (work / "steps.jsonl").read_text("utf-8").splitlines()
            tokens = json.loads(lines[-1])["num_tokens"]
    assert [entry["iteration"] for entry in entries] == list(range(8))
    pool, rates = draw_problems(ON, 6, METHOD.seed), [(0, 0)] * 6
    # both processes know what the other has drawn, and a resumed run what was drawn before it
    for entry in entries:
        assert [p for p, _, _ in entry["rates"]] == METHOD.drawn(pool, rates, entry["iteration"])
        assert {asked for _, _, asked in entry["rates"]} == {3}
        for p, right, asked in entry["rates"]:
            rates[p] = rates[p][0] + right, rates[p][1] + asked
    made = json.loads((METHOD.folder(MODEL) / "made.json").read_text("utf-8"))
    assert made["cost"]["rollout_tokens"] == made["cost"]["training_tokens"] == tokens
    assert made["cost"]["seconds"] > before[-1]["seconds"]
    assert made["recipe"]["engine"] == "trl"
    assert made["notes"]["engine"] == {"trl": "1.16.0", "processes": 1}
    assert len(made["notes"]["iterations"]) == 8
    assert not (METHOD.folder(MODEL) / "trl").exists()
    # its card is right
    assert MODEL.with_weights(METHOD.folder(MODEL)).identity() != MODEL.identity()


def test_supervised_training_is_billed_and_writes_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PONDER_MODELS", str(tmp_path))
    method = Shortest(train_on=ON, problems=4, n=2, batch=2, steps=2, engine="trl")
    entries = list(method.make(MODEL))
    made = json.loads((method.folder(MODEL) / "made.json").read_text("utf-8"))
    assert entries[-1]["step"] == 2
    assert made["cost"]["training_tokens"] > 0
    assert MODEL.with_weights(method.folder(MODEL)).identity() != MODEL.identity()


def config(tmp_path: Path, **content: object) -> Path:
    path = tmp_path / "accelerate.yaml"
    path.write_text("".join(f"{key}: {value}\n" for key, value in content.items()), "utf-8")
    return path


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            {"num_processes": 8, "distributed_type": "FSDP"},
            "needs 8 GPUs, and this machine has no GPU",
        ),
        ({"num_processes": 1, "distributed_type": "NO"}, "needs 1 GPU, and"),
        (
            {"num_processes": 2, "distributed_type": "FSDP", "use_cpu": "true"},
            "accelerate ignores FSDP on a CPU",
        ),
        ({"num_processes": 2, "num_machines": 4}, "is for 4 machines"),
        ({"num_processes": "two"}, "it has no num_processes"),
        ({"a": "[1"}, "is not YAML"),
    ],
)
def test_configs_that_can_not_be_started(
    tmp_path: Path, monkeypatch, content: dict, message: str
) -> None:
    monkeypatch.setattr(launch, "devices", lambda: 0)
    with pytest.raises(UserError, match=message) as error:
        Launch.of(replace(TRL, launch=config(tmp_path, **content)), "cpu")
    if content.get("distributed_type") == "FSDP":
        assert "use_cpu: true" not in error.value.hint  # it would be refused
    with pytest.raises(UserError, match="can't read the accelerate config"):
        Launch.of(replace(TRL, launch=tmp_path / "none.yaml"), "cpu")


def test_how_many_processes_and_where(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(launch, "devices", lambda: 4)
    assert Launch.of(TRL, "cpu") == Launch(1, cpu=True)
    assert Launch.of(replace(TRL, processes=4, precision="bfloat16"), "cuda") == Launch(
        4, False, None, "bfloat16"
    )
    with pytest.raises(UserError, match="processes = 5 needs 5 GPUs, and this machine has 4 GPUs"):
        Launch.of(replace(TRL, processes=5), "cuda")
    with pytest.raises(UserError) as error:
        Launch.of(
            replace(TRL, launch=config(tmp_path, num_processes=8, distributed_type="DEEPSPEED")),
            "cpu",
        )
    assert error.value.hint == "num_processes: 4; or leave out `launch` to train in one process"
    path = config(tmp_path, num_processes=4, distributed_type="FSDP")
    given = Launch.of(replace(TRL, launch=path), "cpu")
    assert given == Launch(4, False, path)
    assert str(path) in given.command(tmp_path, "m")
    two = Launch.of(
        replace(TRL, launch=config(tmp_path, num_processes=2, distributed_type="MULTI_CPU")), "cpu"
    )
    assert (two.processes, two.cpu) == (2, True)
    # accelerate starts one process for MULTI_CPU, so another config is written.
    written = Path(two.command(tmp_path / "..", "m")[4])
    assert "MULTI_GPU" in written.read_text("utf-8")
    assert two.environment(1)["ACCELERATE_USE_CPU"] == "true"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"processes": 2}, "are for TRL"),
        ({"args": {"bf16": True}}, "are for TRL"),
        (
            {"engine": "trl", "processes": -1},
            "processes must be at least 1, not -1\nhint: one per GPU",
        ),
        ({"engine": "trl", "processes": 2, "launch": Path("a.yaml")}, "is not used with `launch`"),
        (
            {"engine": "trl", "sampler": Pocket(), "args": {"use_vllm": True}},
            "can't both draw the samples",
        ),
    ],
)
def test_settings_that_make_no_sense(settings: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        LengthRl(**settings)


@pytest.mark.parametrize(
    ("kind", "args", "message"),
    [
        ("sft", {"learning_rate": 1.0}, "`learning_rate` is set by `rate`"),
        ("dpo", {"max_length": 8}, "`max_length` can't be changed"),
        ("grpo", {"use_vlm": True}, "did you mean `use_vllm`?"),
        ("sft", {"lerning_rate": 1.0}, "hint: learning_rate has a name here: rate"),
        ("reward", {"use_vllm": True}, "TrainingArguments has no argument `use_vllm`"),
    ],
)
def test_arguments_that_are_not_passed_on(kind, args: dict, message: str) -> None:
    with pytest.raises(UserError) as error:
        trl_engine.check(kind, replace(TRL, args=args), "cpu", ("batch", 8, 1))
    assert message in str(error.value)
    assert error.value.where == f"args.{next(iter(args))}"


def test_vllm_is_passed_on_to_grpo_if_it_is_there(monkeypatch) -> None:
    args = {
        "use_vllm": True,
        "vllm_mode": "server",
        "vllm_server_base_url": "http://127.0.0.1:8000",
    }
    asked = []
    monkeypatch.setattr(trl_engine.plugins, "need", lambda package, what: asked.append(package))
    trl_engine.check("grpo", replace(TRL, args=args), "cpu", ("problems", 8, 4))
    assert asked == ["torch", "trl", "vllm"]


def test_another_version_of_trl_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(trl_engine, "version", lambda package: "1.17.0")
    with pytest.raises(
        UserError, match=r"private functions of TRL 1\.16, and 1\.17\.0 is installed"
    ):
        trl_engine.check("sft", TRL, "cpu", ("batch", 8, 1))


def test_the_samples_of_a_problem_are_never_split() -> None:
    def rows(processes: int, problems: int, given: int | None = None, micro: int = 4096) -> int:
        args = {} if given is None else {"per_device_train_batch_size": given}
        settings = replace(TRL, args=args, micro_tokens=micro)
        return trl_engine.per_device(settings, processes, problems, 8, 100, "problems")

    assert rows(1, 16) == 32  # four problems of 8 samples of 100 tokens
    assert rows(2, 16) == 32
    assert rows(2, 6) == 24
    assert rows(1, 7) == 8  # of 7 problems, 5 can't be taken at a time without a rest
    assert rows(1, 16, micro=10) == 8
    assert rows(2, 16, given=16) == 16
    for given in (4, 12, 48, 0):
        with pytest.raises(
            UserError, match="be a multiple of n = 8, so that no problem's samples are split"
        ):
            rows(2, 16, given)
    uneven = LengthRl(train_on=ON, problems=7, engine="trl", processes=2)
    with pytest.raises(
        UserError, match="problems = 7 can't be divided equally among 2 processes"
    ) as error:
        uneven.check(MODEL, TASK)  # before a run
    assert error.value.hint == "problems = 8"
    odd = LengthRl(train_on=ON, problems=8, engine="trl", args={"per_device_train_batch_size": 12})
    with pytest.raises(UserError, match="a multiple of n = 8"):
        next(odd.make(MODEL))


def test_a_step_has_the_rows_of_our_loop() -> None:
    units = [Unit((text,)) for text in texts(12)]
    lengths = [len(unit) for unit in units]
    order = trl_engine.order(lengths, 4, 6, seed=3)
    for step in range(6):
        own = [units[n] for n in order[4 * step : 4 * step + 4]]
        assert {id(unit) for unit in own} == {id(unit) for unit in epoch_batch(units, 4, 3, step)}
        assert [len(unit) for unit in own] == sorted(map(len, own), reverse=True)
    ragged = trl_engine.order(lengths[:7], 4, 7, seed=3)
    assert Counter(ragged) == dict.fromkeys(range(7), 4)


def test_the_engine_is_in_the_key_unless_it_is_the_default() -> None:
    plain = Shortest(train_on=ON)
    assert plain.folder(MODEL) == replace(plain, engine="ponder").folder(MODEL)
    other = replace(plain, engine="trl")
    assert other.folder(MODEL) != plain.folder(MODEL)
    assert replace(other, processes=2).folder(MODEL) == other.folder(MODEL)
    assert replace(other, args={"optim": "adafactor"}).folder(MODEL) != other.folder(MODEL)
    own = Trained().trained_on(ON, "task", 1)
    assert Trained(training={"engine": "ponder"}).trained_on(ON, "task", 1) == own
    theirs = Trained(training={"engine": "trl"}).trained_on(ON, "task", 1)
    assert theirs != own
    assert Trained(training={"engine": "trl", "processes": 2}).trained_on(ON, "task", 1) == theirs
    assert RewardSettings().engine == Sft(teachers=(MODEL,)).engine == "ponder"


def test_a_loss_that_is_no_number_stops(tmp_path: Path) -> None:
    from ponder.training.trl_worker import Log

    job = SimpleNamespace(kind="sft", settings=TRL, launch=Launch(1, cpu=True), folder=tmp_path)
    log, state = Log(job), SimpleNamespace(global_step=7, is_world_process_zero=True)
    log.on_log(None, state, None, {"loss": 0.5, "grad_norm": 1.0, "num_tokens": 12})
    for logs in ({"loss": float("nan")}, {"loss": 1.0, "grad_norm": float("inf")}):
        with pytest.raises(UserError, match=r"is (nan|inf) at step 7"):
            log.on_log(None, state, None, logs)
    (line,) = (tmp_path / "steps.jsonl").read_text("utf-8").splitlines()
    assert json.loads(line)["num_tokens"] == 12


def test_why_it_failed(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    command = [sys.executable, "-c", "import os; print('no room'); os.abort()"]
    with started(command, os.environ, log) as process:
        process.wait()
    assert process.returncode == -signal.SIGABRT
    failure = trl_engine._failure(tmp_path, process.returncode)
    assert failure.what == "training with TRL ended with signal 6: no room"
    assert str(log) in failure.hint
    known = {"what": "OutOfMemoryError: CUDA out of memory", "where": "", "hint": ""}
    (tmp_path / "failure.json").write_text(json.dumps(known), "utf-8")
    assert "micro_tokens" in trl_engine._failure(tmp_path, 1).hint


def test_processes_end_when_ponder_stops_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "END_SECONDS", 600.0)
    code = "from ponder.training.launch import end_with_parent; end_with_parent(); import time; time.sleep(600)"
    with started([sys.executable, "-c", code], os.environ, tmp_path / "log") as process:
        pass
    assert process.returncode == 1
