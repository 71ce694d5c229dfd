"""Model `vllm` with a real vLLM on this machine's CPU, where `make engines` has installed it:
minutes, not seconds.

`test_vllm.py` holds the same code to the same rules with a stand-in, on every machine.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from engines import VLLM, answered, ask, sums, wait_for

from ponder.core import Request, TrainingProblems
from ponder.models.pocket import Pocket
from ponder.models.transformers import Transformers
from ponder.models.vllm import Vllm
from ponder.models.vllm.pool import stop_all
from ponder.tasks.chain_sum import ChainSum
from ponder.tasks.execution import Execution

pytestmark = [
    pytest.mark.skipif(not VLLM.exists(), reason="make engines installs vLLM"),
    pytest.mark.xdist_group("vllm"),  # one server at a time: each takes 3.4 GB
]
ARGS = {"enforce_eager": True, "max_num_seqs": 16, "max_model_len": 1024}
PLANS = Execution(dictionary=6, per_turn=0)


@pytest.fixture(autouse=True, scope="module")
def environment() -> Iterator[None]:
    small = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**small, "PONDER_VLLM": str(VLLM), "HF_HUB_OFFLINE": "1"}.items():
            patch.setenv(name, value)
        yield
        stop_all()


def group(pid: int) -> list[int]:
    """The processes of a group that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, leader = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(leader) == pid and state != "Z":
            found.append(int(path.parent.name))
    return found


def serving() -> list[int]:
    """The groups of the vLLM servers on this machine that were started from this environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[:1] == [str(VLLM).encode()] and b"vllm.entrypoints.openai.api_server" in words:
            found.append(int(path.parent.name))
    return found


def test_pocket_weights_as_shipped_and_other_weights_in_the_running_server() -> None:
    requests = [
        Request.first_turn(PLANS, p) for size in (4, 8) for p in islice(PLANS.problems(size, 3), 8)
    ]
    model, began = Vllm(id="pocket", dtype="float32", args=ARGS), serving()
    for style in ("plain", "long", "plain"):
        shipped = Pocket(style=style)
        asked = model if style == "plain" else model.with_weights(shipped.source(PLANS).folder)
        replies, own = ask(asked, requests), ask(shipped, requests)
        assert [list(reply.tokens) for reply in replies] == [reply.tokens for reply in own]
        assert [r.bill.thinking_tokens for r in replies] == [r.bill.thinking_tokens for r in own]
    assert len(serving()) == len(began) + 1


def test_a_killed_server_leaves_nothing_and_is_started_again() -> None:
    requests = [Request.first_turn(PLANS, p) for p in islice(PLANS.problems(4, 3), 4)]
    model = Vllm(id="pocket", dtype="float32", args=ARGS)
    before = ask(model, requests)
    (server,) = serving()
    old = group(server)
    assert len(old) >= 3  # server, engine, worker
    os.kill(server, signal.SIGKILL)
    assert [r.tokens for r in ask(model, requests)] == [r.tokens for r in before]
    assert not set(old) & set(group(server))
    stop_all()
    assert serving() == []


def test_a_start_that_is_killed_leaves_nothing(tmp_path) -> None:
    script = f"""
from ponder.models.vllm import Vllm
from ponder.tasks.execution import Execution
for _ in Vllm(id="pocket", dtype="float32", args={ARGS!r}).start(Execution(dictionary=6, per_turn=0)):
    pass
"""
    with subprocess.Popen([sys.executable, "-c", script]) as ponder:
        # its engine is starting
        wait_for(lambda: any(len(group(server)) > 1 for server in serving()))
        (server,) = serving()
        ponder.kill()
    wait_for(lambda: not group(server))


def test_a_run_that_is_killed_leaves_nothing(running, write, folder) -> None:
    flags = ", ".join(f"{name} = {json.dumps(value)}" for name, value in ARGS.items())
    task = '[[task]]\nname = "execution"\ndictionary = 6\nper_turn = 0\nsize = [8, 16]\n'
    model = f'[[model]]\nname = "vllm"\nid = "pocket"\ndtype = "float32"\nconcurrency = 4\nargs = {{ {flags} }}\n'
    write("s.toml", f"problems = 60\n{task}{model}")
    stop_all()
    with running("run", "s.toml") as run:
        wait_for(lambda: answered(folder / "ponder.db", folder / "s.toml") > 0)
        (server,) = serving()
        assert len(group(server)) >= 3
        run.kill()
    wait_for(lambda: not group(server))
    assert 0 < answered(folder / "ponder.db", folder / "s.toml") < 120


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory) -> Path:
    from ponder.models._local_weights import as_folder

    os.environ["PONDER_MODELS"] = str(tmp_path_factory.mktemp("smollm2"))
    return as_folder(Transformers(id="smollm2").source(ChainSum()))


def test_a_real_chat_model_writes_what_transformers_writes(smollm2) -> None:
    model = Vllm(id=str(smollm2), dtype="float32", budget=32, args=ARGS)
    replies, own = ask(model, sums(6)), ask(Transformers(id=str(smollm2), budget=32), sums(6))
    # The last bits of sums differ, so that two of six may part at a close call.
    assert sum(list(a.tokens) == list(b.tokens) for a, b in zip(replies, own, strict=True)) >= 4
    assert [a.bill.prompt_tokens for a in replies] == [b.bill.prompt_tokens for b in own]


@pytest.mark.parametrize(
    "engine", [{}, {"engine": "trainer", "processes": 2}], ids=["ponder", "trainer"]
)
def test_length_rl_of_a_real_model(smollm2, models, engine) -> None:
    from ponder.methods.length_rl import LengthRl

    stop_all()
    settings = engine | {
        "iterations": 2,
        "problems": 2,
        "n": 4,
        "pool": 4,
        "inner": 1,
        "lora": 4,
        "rate": 1e-4,
        "micro_tokens": 512,
    }
    method = LengthRl(
        **settings, sampler=Vllm(id=str(smollm2), dtype="float32", budget=24, args=ARGS)
    )
    method = method.with_training((TrainingProblems(ChainSum(), 2, 1),))
    base = Transformers(id=str(smollm2), budget=24)
    made = json.loads((method.apply(base).source(ChainSum()).folder / "made.json").read_text())
    first, second = made["notes"]["iterations"]
    assert 0 < first["tokens"] <= 24
    assert 0 < second["tokens"] <= 24
    assert made["cost"]["rollout_tokens"] > 0
    assert made["notes"]["sampler"] == "adapter"


def tuned(base: Path, folder: Path, seed: int) -> None:
    """A random adapter, and beside it the weights into which it is merged."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model = get_peft_model(
        plain, LoraConfig(r=4, lora_alpha=32, target_modules=["q_proj", "v_proj"])
    )
    for name, weights in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weights, std=0.05)
    model.save_pretrained(folder / "adapter")
    model.merge_and_unload().save_pretrained(folder / "merged")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (folder / "merged" / name).write_bytes((base / name).read_bytes())


def test_adapters_are_served_without_merging_one_after_another(smollm2, tmp_path) -> None:
    """The second replaces the first in the running server, and nothing of the first is left in its
    prefix cache.
    """
    model, asked = Vllm(id=str(smollm2), dtype="float32", budget=16, args=ARGS), sums(4)
    written = [list(reply.tokens) for reply in ask(Transformers(id=str(smollm2), budget=16), asked)]
    servers = []
    for seed in (1, 2):
        tuned(smollm2, tmp_path / str(seed), seed)
        replies = ask(model.with_adapter(smollm2, tmp_path / str(seed) / "adapter"), asked)
        servers.append(serving())
        own = ask(Transformers(id=str(tmp_path / str(seed) / "merged"), budget=16), asked)
        assert sum(list(a.tokens) == list(b.tokens) for a, b in zip(replies, own, strict=True)) >= 3
        assert sum(list(reply.tokens) in written for reply in replies) <= 1
        written += [list(reply.tokens) for reply in replies]
    assert servers[0] == servers[1]
