"""Training with `transformers.Trainer` in processes of its own: the same losses and weights as with
the loop, what is refused before it starts, and that it ends and resumes with Ponder.

Two processes, FSDP, adapters and rewards: `test_trainer_processes.py`, which `make engines` runs.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file
from tiny import open_loop, texts, tiny

from ponder.core import Model, TrainingProblems, UserError
from ponder.methods.dpo import Dpo
from ponder.methods.length_rl import LengthRl
from ponder.methods.sft import Sft
from ponder.methods.shortest import Shortest
from ponder.models.pocket import Pocket
from ponder.rewards.trained import Trained
from ponder.tasks.execution import Execution
from ponder.training import launch, trainer_engine
from ponder.training.launch import Launch, started
from ponder.training.loop import (
    Objective,
    Step,
    TokenExample,
    TrainingSettings,
    Unit,
    check_first_loss,
    negative_log_likelihood,
    with_reference,
)
from ponder.training.made_models import WeightMethod
from ponder.training.reward import RewardSettings

TASK = Execution(dictionary=6, per_turn=0)
ON = (TrainingProblems(TASK, 2, 0, 4),)
TRAINER = TrainingSettings(engine="trainer")
MODEL = Pocket(style="long", temperature=1.0, budget=128)
DPO = Dpo(train_on=ON, problems=8, n=4, longer=1.0, batch=4, beta=0.3, rate=1e-4)
RL = LengthRl(train_on=ON, iterations=2, problems=2, n=3, pool=6, rate=1e-4)


def losses(method: WeightMethod, model: Model = MODEL) -> list[tuple[int | None, int, float]]:
    """Make a model; return the iteration, if any, the step and the loss of each step."""
    reported = {}
    for progress in method.make(model):
        if "loss" in progress:
            reported[progress.get("iteration"), progress["step"]] = progress["loss"]
    return [(*step, loss) for step, loss in reported.items()]


def weights(method: WeightMethod, model: Model = MODEL) -> torch.Tensor:
    made = load_file(method.folder(model) / "model.safetensors")
    return torch.cat([made[name].float().flatten() for name in sorted(made)])


def cost(method: WeightMethod) -> dict[str, float]:
    made = json.loads((method.folder(MODEL) / "made.json").read_text("utf-8"))
    return {name: number for name, number in made["cost"].items() if name != "seconds"}


@pytest.mark.parametrize("method", [DPO, RL], ids=["dpo", "length_rl"])
def test_losses_weights_and_bill_are_those_of_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: WeightMethod
) -> None:
    monkeypatch.setenv("PONDER_MODELS", str(tmp_path))
    other = replace(method, engine="trainer")
    ours, theirs = losses(method), losses(other)
    assert len(ours) == len(theirs) >= 4
    for (*step, loss), (*other_step, other_loss) in zip(ours, theirs, strict=True):
        assert other_step == step
        assert other_loss == pytest.approx(loss, abs=2e-4)
    torch.testing.assert_close(weights(other), weights(method), rtol=0, atol=1e-5)
    start = load_file(MODEL.source(TASK).folder / "model.safetensors")
    moved = load_file(other.folder(MODEL) / "model.safetensors")
    assert max((moved[name].float() - start[name].float()).abs().max() for name in start) > 1e-4
    assert cost(other) == cost(method)
    assert not (other.folder(MODEL) / "trainer").exists()
    # its card is right
    assert MODEL.with_weights(other.folder(MODEL)).identity() != MODEL.identity()


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
        Launch.of(replace(TRAINER, launch=config(tmp_path, **content)), "cpu")
    if content.get("distributed_type") == "FSDP":
        assert "use_cpu: true" not in error.value.hint  # it would be refused
    with pytest.raises(UserError, match="can't read the accelerate config"):
        Launch.of(replace(TRAINER, launch=tmp_path / "none.yaml"), "cpu")


def test_how_many_processes_and_where(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(launch, "devices", lambda: 4)
    assert Launch.of(TRAINER, "cpu") == Launch(1, cpu=True)
    assert Launch.of(replace(TRAINER, processes=4, precision="bfloat16"), "cuda") == Launch(
        4, False, None, "bfloat16"
    )
    with pytest.raises(UserError, match="processes = 5 needs 5 GPUs, and this machine has 4 GPUs"):
        Launch.of(replace(TRAINER, processes=5), "cuda")
    with pytest.raises(UserError) as error:
        Launch.of(
            replace(
                TRAINER, launch=config(tmp_path, num_processes=8, distributed_type="DEEPSPEED")
            ),
            "cpu",
        )
    assert error.value.hint == "num_processes: 4; or leave out `launch` to train in one process"
    path = config(tmp_path, num_processes=4, distributed_type="FSDP")
    given = Launch.of(replace(TRAINER, launch=path), "cpu")
    assert given == Launch(4, False, path, sharding="FSDP")
    assert str(path) in given.command(tmp_path, "m")
    two = Launch.of(
        replace(TRAINER, launch=config(tmp_path, num_processes=2, distributed_type="MULTI_CPU")),
        "cpu",
    )
    assert (two.processes, two.cpu) == (2, True)
    # accelerate starts one process for MULTI_CPU, so another config is written.
    written = Path(two.command(tmp_path / "..", "m")[4])
    assert "MULTI_GPU" in written.read_text("utf-8")
    assert two.environment(1)["ACCELERATE_USE_CPU"] == "true"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"processes": 2}, 'hint: engine = "trainer"'),
        ({"args": {"bf16": True}}, "need several processes"),
        (
            {"engine": "trainer", "processes": -1},
            "processes must be at least 1, not -1\nhint: one per GPU",
        ),
        (
            {"engine": "trainer", "processes": 2, "launch": Path("a.yaml")},
            "is not used with `launch`",
        ),
    ],
)
def test_settings_that_make_no_sense(settings: dict, message: str) -> None:
    with pytest.raises(UserError) as error:
        LengthRl(**settings)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"learning_rate": 1.0}, "`learning_rate` is set by `rate`"),
        ({"logging_steps": 8}, "`logging_steps` can't be changed"),
        ({"report_too": "wandb"}, "did you mean `report_to`?"),
        ({"lerning_rate": 1.0}, "hint: learning_rate has a name here: rate"),
    ],
)
def test_arguments_that_are_not_passed_on(args: dict, message: str) -> None:
    with pytest.raises(UserError) as error:
        trainer_engine.check(replace(TRAINER, args=args), "cpu")
    assert message in str(error.value)
    assert error.value.where == f"args.{next(iter(args))}"
    trainer_engine.check(replace(TRAINER, args={"report_to": "wandb"}), "cpu")


def test_the_engine_of_old_studies_is_an_error_that_names_the_new_one(ponder, write) -> None:
    study = """
    samples = 1
    [[task]]
    name = "execution"
    [[model]]
    name = "pocket"
    method = [[{ name = "dpo", engine = "trl" }]]
    """
    result = ponder("plan", write("s.toml", study))
    assert result.exit_code
    assert "trainer" in result.output


def test_micro_batches_have_every_unit_once_and_are_equally_many() -> None:
    units = [Unit((text,)) for text in texts(12)]
    steps = [Step(range(5), 5.0), Step(range(5, 12), 7.0), Step([3], 1.0)]
    for limit, number in ((10**6, 1), (60, 1), (60, 3), (1, 4), (10**6, 2)):
        batches = trainer_engine.micro_batches(units, steps, limit, number)
        per_step, left = divmod(len(batches), 3)
        assert not left
        assert per_step % number == 0
        for n, step in enumerate(steps):
            own = batches[n * per_step :][:per_step]
            counted = [batch for batch in own if batch.weight]
            assert sorted(i for batch in counted for i in batch.units) == sorted(step.units)
            assert {batch.weight for batch in counted} == {1 / step.divisor}
            for batch in counted:
                longest = max(len(units[i]) for i in batch.units)
                assert longest * len(batch.units) <= limit or len(batch.units) == 1


def test_the_engine_is_in_the_key_unless_it_is_the_default() -> None:
    plain = Shortest(train_on=ON)
    assert plain.folder(MODEL) == replace(plain, engine="ponder").folder(MODEL)
    other = replace(plain, engine="trainer")
    assert other.folder(MODEL) != plain.folder(MODEL)
    assert replace(other, processes=2).folder(MODEL) == other.folder(MODEL)
    assert replace(other, args={"optim": "adafactor"}).folder(MODEL) != other.folder(MODEL)
    own = Trained().trained_on(ON, "task", 1)
    assert Trained(training={"engine": "ponder"}).trained_on(ON, "task", 1) == own
    theirs = Trained(training={"engine": "trainer"}).trained_on(ON, "task", 1)
    assert theirs != own
    both = {"engine": "trainer", "processes": 2}
    assert Trained(training=both).trained_on(ON, "task", 1) == theirs
    assert RewardSettings().engine == Sft(teachers=(MODEL,)).engine == "ponder"


def pairs() -> list[Unit]:
    both = zip(texts(4, seed=1), texts(4, seed=2), strict=True)
    return [Unit((a, TokenExample(a.prompt, b.said))) for a, b in both]


def test_a_loss_of_dpo_by_hand() -> None:
    """Half of −log σ(0.3 · (2 − 1)) and −log σ(0.3 · (−1 − 0.5))."""
    units = with_reference(pairs()[:2], [[-5.0, -6.0], [-7.0, -8.0]])
    scores = torch.tensor([[-3.0, -5.0], [-8.0, -7.5]])
    loss = replace(DPO, beta=0.3).objective().loss(scores, units) / 2
    assert loss.item() == pytest.approx((0.554355 + 0.943249) / 2, abs=1e-5)


def test_another_reference_than_the_model_before_training_is_refused(tmp_path: Path) -> None:
    """As under FSDP, where processes other than the first may have a reference without weights."""
    training = open_loop(tiny(), DPO, tmp_path)
    training.score = lambda units: open_loop(tiny(seed=4), DPO, tmp_path).score(units)
    before = training.trainable()["lm_head.weight"].clone()
    steps = [Step(range(4), 4.0)]
    with pytest.raises(UserError, match=r"the first loss is .* must be 0\.6931: the reference has"):
        list(training.train(pairs(), steps, DPO.objective()))
    assert torch.equal(training.trainable()["lm_head.weight"], before)
    own = open_loop(tiny(), DPO, tmp_path).train(pairs(), steps, DPO.objective())
    assert next(own)["loss"] == pytest.approx(0.6931)


def test_bfloat16_may_round_the_first_loss() -> None:
    exact = TrainingSettings()
    rounded = TrainingSettings(precision="bfloat16")
    adapter = TrainingSettings(lora=4)
    goal = DPO.objective()
    for settings, dtype in ((exact, "torch.float32"), (rounded, "float32"), (adapter, "bfloat16")):
        check_first_loss(0.6940, goal, settings, dtype, "")
    for settings, dtype in ((rounded, "float32"), (adapter, "bfloat16")):
        check_first_loss(0.75, goal, settings, dtype, "")
    with pytest.raises(UserError, match=r"is 0\.75"):
        check_first_loss(0.75, goal, exact, "float32", "")
    with pytest.raises(UserError, match=r"is 3\.6,"):
        check_first_loss(3.6, goal, rounded, "float32", "")
    check_first_loss(3.6, Objective(negative_log_likelihood), exact, "float32", "")


def test_a_loss_that_is_no_number_stops(tmp_path: Path) -> None:
    from ponder.training.trainer_worker import Follow

    job = SimpleNamespace(
        settings=TRAINER,
        launch=Launch(1, cpu=True),
        folder=tmp_path,
        objective=DPO.objective(),
    )
    trainer = SimpleNamespace(job=job, network=SimpleNamespace(dtype="float32"))
    follow = Follow(trainer)
    state = SimpleNamespace(global_step=7, is_world_process_zero=True)
    follow.on_log(None, state, None, {"loss": 0.5, "grad_norm": 1.0})
    for logs in ({"loss": float("nan")}, {"loss": 1.0, "grad_norm": float("inf")}):
        with pytest.raises(UserError, match=r"is (nan|inf) at step 7"):
            follow.on_log(None, state, None, logs)
    first = SimpleNamespace(global_step=1, is_world_process_zero=True)
    with pytest.raises(UserError, match=r"the first loss is 0\.5, and must be 0\.6931"):
        follow.on_log(None, first, None, {"loss": 0.5})
    (line,) = (tmp_path / "steps.jsonl").read_text("utf-8").splitlines()
    assert json.loads(line)["loss"] == 0.5


def test_why_it_failed(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    command = [sys.executable, "-c", "import os; print('no room'); os.abort()"]
    with started(command, os.environ, log) as process:
        process.wait()
    assert process.returncode == -signal.SIGABRT
    failure = trainer_engine._failure(tmp_path, process.returncode)
    assert failure.what == "training ended with signal 6: no room"
    assert str(log) in failure.hint
    known = {"what": "OutOfMemoryError: CUDA out of memory", "where": "", "hint": ""}
    (tmp_path / "failure.json").write_text(json.dumps(known), "utf-8")
    assert "micro_tokens" in trainer_engine._failure(tmp_path, 1).hint


def test_processes_end_when_ponder_stops_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "END_SECONDS", 600.0)
    code = "from ponder.training.launch import end_with_parent; end_with_parent(); import time; time.sleep(600)"
    with started([sys.executable, "-c", code], os.environ, tmp_path / "log") as process:
        pass
    assert process.returncode == 1
