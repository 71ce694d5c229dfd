"""One process, two, and two that share the weights (FSDP), beside each other: losses and weights.

A minute or more of CPU per method: `make engines` runs it, or PONDER_ENGINES=1 and pytest.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from engines import wait_for
from safetensors.torch import load_file
from test_reward_training import pile
from test_trainer_engine import DPO, MODEL, ON, RL, cost, losses, weights
from tiny import tiny, tokenizer

from ponder.methods.sft import Sft
from ponder.methods.shortest import Shortest
from ponder.models.pocket import Pocket
from ponder.rewards.trained import Trained
from ponder.training import launch
from ponder.training.made_models import WeightMethod
from ponder.training.reward import RewardSettings, train

pytestmark = pytest.mark.skipif("PONDER_ENGINES" not in os.environ, reason="make engines runs it")

HERE = Path(__file__).parent
SHIPPED = HERE.parent / "src" / "ponder" / "studies" / "fsdp.yaml"
SFT = Sft(train_on=ON, teachers=(Pocket(style="short"),), pool=8, batch=4, epochs=2, rate=1e-4)
SHORTEST = Shortest(train_on=ON, problems=8, n=2, batch=4, rate=1e-4)
METHODS = {"sft": SFT, "shortest": SHORTEST, "dpo": DPO, "length_rl": RL}


@pytest.fixture
def fsdp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The settings that shard weights over two processes with the config that ships."""
    config = SHIPPED.read_text("utf-8").replace("num_processes: 8", "num_processes: 2")
    path = tmp_path / "fsdp.yaml"
    path.write_text(config, "utf-8")
    monkeypatch.setattr(launch, "devices", lambda: 2)
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "cpu")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE / "fsdp_on_cpu"), *sys.path]))
    args = {"gradient_checkpointing": False, "dataloader_pin_memory": False}
    return {"engine": "trainer", "launch": path, "args": args}


def check_equal(
    one: WeightMethod, other: WeightMethod, loss: float = 2e-4, weight: float = 1e-4
) -> None:
    """Make both models and compare the losses of all steps, the weights and the bill."""
    for (*step, ours), (*other_step, theirs) in zip(losses(one), losses(other), strict=True):
        assert other_step == step
        assert theirs == pytest.approx(ours, abs=loss), step
    torch.testing.assert_close(weights(other), weights(one), rtol=0, atol=weight)
    assert cost(other) == cost(one)


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PONDER_MODELS", str(tmp_path / "models"))


@pytest.mark.parametrize("name", METHODS)
def test_two_processes(name: str) -> None:
    method = METHODS[name]
    check_equal(method, replace(method, engine="trainer", processes=2, micro_tokens=300))


@pytest.mark.parametrize("name", METHODS)
def test_two_processes_that_share_the_weights(name: str, fsdp: dict[str, Any]) -> None:
    method = METHODS[name]
    other = replace(method, **fsdp)
    check_equal(method, other)
    made = json.loads((other.folder(MODEL) / "made.json").read_text("utf-8"))
    assert made["notes"]["engine"]["processes"] == 2


@pytest.mark.parametrize("name", METHODS)
def test_an_adapter_on_shared_weights(name: str, fsdp: dict[str, Any]) -> None:
    method = replace(METHODS[name], lora=4)
    check_equal(method, replace(method, **fsdp))


@pytest.mark.parametrize("name", ["sft", "dpo"])
def test_bfloat16_on_shared_weights(name: str, fsdp: dict[str, Any]) -> None:
    method = replace(METHODS[name], precision="bfloat16")
    check_equal(method, replace(method, **fsdp), loss=0.05, weight=2e-3)


def test_weights_that_one_process_reads_for_all(fsdp: dict[str, Any]) -> None:
    path = fsdp["launch"]
    config = path.read_text("utf-8")
    assert "fsdp_cpu_ram_efficient_loading: false" in config
    path.write_text(config.replace("loading: false", "loading: true"), "utf-8")
    check_equal(DPO, replace(DPO, **fsdp))


def trained_reward(
    folder: Path, engine: dict[str, Any]
) -> tuple[dict[int, float], dict[str, torch.Tensor]]:
    """Train a reward; return the losses by step, and all weights."""
    settings = RewardSettings(
        targets="labels", rate=3e-3, head_rate=0.03, epochs=2, batch=8, **engine
    )
    reported = {}
    for progress in train(Trained(id=str(folder.parent / "model")), pile(), folder, settings):
        if "loss" in progress:
            reported[progress["step"]] = progress["loss"]
    made = load_file(folder / "model.safetensors") | load_file(folder / "heads.safetensors")
    return reported, made


@pytest.mark.parametrize("kind", ["two processes", "fsdp"])
def test_a_reward(tmp_path: Path, kind: str, request: pytest.FixtureRequest) -> None:
    tiny().model.save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    engine = {"engine": "trainer", "processes": 2}
    if kind == "fsdp":
        engine = request.getfixturevalue("fsdp")
    ours, our_weights = trained_reward(tmp_path / "one", {})
    theirs, their_weights = trained_reward(tmp_path / "other", engine)
    assert len(ours) == 6
    assert theirs == pytest.approx(ours, abs=2e-4)
    assert their_weights.keys() == our_weights.keys()
    for name, weight in their_weights.items():
        torch.testing.assert_close(weight, our_weights[name], rtol=0, atol=1e-4)


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from test_trainer_processes import LONG, MODEL
for progress in LONG.make(MODEL):
    if progress.get("step", 0) >= 5:
        os.kill(os.getpid(), signal.SIGKILL)
"""
LONG = replace(
    DPO, steps=60, engine="trainer", processes=2, args={"save_steps": 2, "save_total_limit": 2}
)


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
    killed = subprocess.run([sys.executable, "-c", KILLED, str(Path(__file__).parent)], check=False)
    assert killed.returncode == -signal.SIGKILL
    wait_for(lambda: not processes(str(tmp_path)))
    assert not LONG.folder(MODEL).exists()
    log = LONG.folder(MODEL).with_suffix(".part") / "trainer" / "steps.jsonl"
    before = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    assert before[-1]["step"] >= 5

    alone = replace(LONG, processes=1)
    assert alone.folder(MODEL) == LONG.folder(MODEL)
    again = losses(alone)
    assert 1 < again[0][1] <= before[-1]["step"] + 1
    assert again[-1][1] == 60
    ours = replace(DPO, steps=60)
    whole = losses(ours)
    # An adaptive optimizer enlarges the differences of the last bits over many steps.
    assert [loss for _, _, loss in again[:10]] == pytest.approx(
        [loss for _, _, loss in whole[again[0][1] - 1 :][:10]], abs=2e-3
    )
    assert cost(alone) == cost(ours)
    made = json.loads((alone.folder(MODEL) / "made.json").read_text("utf-8"))
    assert made["cost"]["seconds"] > before[-1]["seconds"]
    assert made["recipe"]["engine"] == "trainer"
    assert made["notes"]["engine"]["processes"] == 1


def test_killed_while_weights_are_shared_it_resumes(fsdp: dict[str, Any]) -> None:
    args = {**fsdp["args"], "save_steps": 2}
    method = replace(DPO, **{**fsdp, "args": args})
    making = method.make(MODEL)
    for progress in making:
        if progress.get("step", 0) >= 3:
            break
    making.close()  # ends the processes, as Ctrl-C does
    again = losses(method)
    assert again[0][1] > 1
    whole = losses(DPO)
    assert [loss for _, _, loss in again] == pytest.approx(
        [loss for _, _, loss in whole[-len(again) :]], abs=2e-4
    )
    torch.testing.assert_close(weights(method), weights(DPO), rtol=0, atol=1e-4)
