"""Model `vllm`, from the start of a server to its end, with a stand-in that has vLLM's flags and
pages.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from engines import FAKE, alive, answered, ask, done, fake_vllm, sums, wait_for

from ponder import Study
from ponder.core import ModelFailure, Progress, Request, UserError
from ponder.methods.merge import Merge
from ponder.models.pocket import Pocket
from ponder.models.vllm import PLAIN_TEMPLATE, Vllm, pool
from ponder.models.vllm.pool import stop_all
from ponder.models.vllm.server import check_vllm
from ponder.run.progress import Tally, line
from ponder.run.run import run
from ponder.store.store import Store
from ponder.tasks.chain_sum import ChainSum
from ponder.tasks.execution import Execution
from ponder.tasks.tents import Tents

PLANS = Execution(dictionary=6, per_turn=0)


@pytest.fixture
def fake(tmp_path, monkeypatch) -> Iterator[Callable[..., Path]]:
    """Make this machine have the stand-in, with faults; returns the file in which it writes what it
    did.
    """
    record = tmp_path / "record"

    def have(**faults: Any) -> Path:
        monkeypatch.setenv("FAKE_VLLM", json.dumps({"record": str(record), **faults}))
        return record

    monkeypatch.setenv("PONDER_VLLM", fake_vllm(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # a server that died leaves its log
    have()
    yield have
    stop_all()


def plans(number: int, size: int = 4) -> list[Request]:
    return [
        Request.first_turn(PLANS, p, seed=n)
        for n, p in enumerate(islice(PLANS.problems(size, 3), number))
    ]


@pytest.fixture
def words(tmp_path) -> Path:
    """A folder that looks like a chat model: a vocabulary of characters, and `</think>` as a token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    folder = tmp_path / "weights"
    folder.mkdir()
    letters = [chr(n) for n in range(32, 127)] + ["\n", "\t", "?unk"]
    vocabulary = Tokenizer(
        models.WordLevel({letter: n for n, letter in enumerate(letters)}, unk_token="?unk")
    )
    vocabulary.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    vocabulary.decoder = decoders.Fuse()
    vocabulary.add_tokens(["<think>", "</think>"])
    vocabulary.save(str(folder / "tokenizer.json"))
    settings = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64}
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def test_pocket_weights_as_shipped_are_asked_by_token_ids(fake) -> None:
    record, requests = fake(), plans(6)
    replies, own = ask(Vllm(id="pocket"), requests), ask(Pocket(), requests)
    assert [list(r.tokens) for r in replies] == [r.tokens for r in own]
    for reply, other in zip(replies, own, strict=True):
        assert (reply.thinking, reply.answer, reply.stop) == (
            other.thinking,
            other.answer,
            other.stop,
        )
        counts = [
            (b.prompt_tokens, b.thinking_tokens, b.answer_tokens) for b in (reply.bill, other.bill)
        ]
        assert counts[0] == counts[1]
        assert reply.bill.counted_by == "server"
    ((_, _, given),) = done(record, "started")
    assert given["model"].endswith("weights/execution")
    assert (given["host"], given["dtype"], given["tensor-parallel-size"]) == (
        "127.0.0.1",
        "auto",
        "1",
    )
    assert given["generation-config"] == "vllm"


def test_a_budget_beyond_the_context_is_cut_to_what_is_left(fake) -> None:
    (request,) = plans(1)
    prompt = len(Pocket.codec("execution").prompt_ids(request))
    model = Vllm(id="pocket", args={"max_model_len": prompt + 7})
    (reply,) = ask(model, [request])
    assert (len(reply.tokens), reply.stop) == (7, "length")
    (reply,) = ask(Vllm(id="pocket", budget=3, args={"max_model_len": prompt + 7}), [request])
    assert (len(reply.tokens), reply.stop) == (3, "length")


def test_thinking_is_counted_in_the_ids(fake, words) -> None:
    record = fake()
    for reply in ask(Vllm(id=str(words), template={"enable_thinking": True}), sums(3)):
        assert (reply.thinking, reply.answer[:8]) == ("We add.", "<answer>")
        assert reply.bill.thinking_tokens == len("We add.") + 1
        assert reply.bill.thinking_tokens + reply.bill.answer_tokens == len(reply.tokens)
        assert len(reply.prompt) == reply.bill.prompt_tokens
    assert {str(more) for *_, more in done(record, "asked")} == {"{'enable_thinking': True}"}
    ((_, _, given),) = done(record, "started")
    # there is no template beside these weights
    assert Path(given["chat-template"]).read_text() == PLAIN_TEMPLATE


def test_other_weights_are_loaded_into_the_running_server(fake) -> None:
    record, requests = fake(), plans(4)
    folders = [Pocket(style=style).source(PLANS).folder for style in ("long", "short")]
    model = Vllm(id="pocket")
    ask(model, requests)
    for style, folder in zip(("long", "short"), folders, strict=True):
        own = ask(Pocket(style=style), requests)
        assert [list(r.tokens) for r in ask(model.with_weights(folder), requests)] == [
            r.tokens for r in own
        ]
    ask(model.with_weights(folders[1]).at_temperature(1.0), requests)  # the weights are there
    assert len(done(record, "started")) == 1
    assert done(record, "reload") == [[str(folder)] for folder in folders]
    assert len(done(record, "reset")) == 2  # or the prefix cache would hold the old weights' states


def test_where_weights_can_not_be_loaded_the_server_is_started_again(fake) -> None:
    record, requests = fake(no_reload=500), plans(2)
    folder = Pocket(style="long").source(PLANS).folder
    ask(Vllm(id="pocket"), requests)
    own = ask(Pocket(style="long"), requests)
    assert [list(r.tokens) for r in ask(Vllm(id=str(folder)), requests)] == [r.tokens for r in own]
    assert [given["model"] for _, _, given in done(record, "started")][1:] == [str(folder)]


def test_other_flags_or_another_architecture_need_another_server(fake, words) -> None:
    record = fake()
    ask(Vllm(id="pocket"), plans(1))
    ask(
        Vllm(
            id="pocket", args={"enforce_eager": True, "max_num_seqs": 4, "async_scheduling": False}
        ),
        plans(1),
    )
    ask(Vllm(id=str(words)), sums(1))
    starts = done(record, "started")
    assert [given.get("max-num-seqs") for _, _, given in starts] == [None, "4", None]
    assert (starts[1][2]["enforce-eager"], starts[1][2]["no-async-scheduling"]) == ("true", "true")
    # Nobody used the others any more, and they might hold the memory that the next one needs.
    assert len(pool._running) == 1
    assert [alive(pid) for pid, _, _ in starts] == [False, False, True]


def test_it_is_stopped_when_nobody_uses_it(fake, monkeypatch) -> None:
    record = fake()
    model = Vllm(id="pocket")
    monkeypatch.setattr(pool, "IDLE_SECONDS", 0.01)
    with model.kept_open():
        ask(model, plans(1))
        ask(model, plans(1))
        assert len(done(record, "started")) == 1
    ((server, engine, _),) = done(record, "started")
    wait_for(lambda: not any(map(alive, (server, engine))))
    assert not pool._running


STUDY = """
problems = 4
[[task]]
name = "execution"
dictionary = 6
per_turn = 0
size = [3, 5]
[[model]]
name = "vllm"
id = "pocket"
"""


@pytest.mark.parametrize("killed", ["ponder", "keeper", "server"])
def test_nothing_is_left_behind(fake, tmp_path, killed: str) -> None:
    """`kill -9` of any of the processes ends the others: Ponder, the one that watches, vLLM, vLLM's
    engine.
    """
    record, up = fake(), tmp_path / "up"
    script = f"""
import pathlib, time
from ponder.models.vllm import Vllm
from ponder.tasks.execution import Execution
for _ in Vllm(id="pocket").start(Execution(dictionary=6, per_turn=0)):
    pass
pathlib.Path({str(up)!r}).touch()
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", script]) as ponder:
        wait_for(up.exists)
        ((server, engine, _),) = done(record, "started")
        keeper = int(Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill({"ponder": ponder.pid, "keeper": keeper, "server": server}[killed], signal.SIGKILL)
        wait_for(lambda: not any(map(alive, (server, engine, keeper))))
        ponder.kill()


def test_a_run_killed_in_the_middle_leaves_nothing_and_resumes(
    fake, running, ponder, write, folder
) -> None:
    record = fake(hold_after=50)
    write("s.toml", STUDY.replace("problems = 4", "problems = 200"))
    with running("run", "s.toml") as run:
        wait_for(lambda: answered(folder / "ponder.db", folder / "s.toml") > 0)
        ((server, engine, _),) = done(record, "started")
        run.kill()
    wait_for(lambda: not any(map(alive, (server, engine))))
    before = answered(folder / "ponder.db", folder / "s.toml")
    assert 0 < before <= 50
    fake()
    result = ponder("run", "s.toml", "--json", "--set", "problems=100")
    assert result.exit_code == 0, result.output
    tally = json.loads(result.stdout)
    assert tally["done"] + tally["stored_before"] == 200
    assert tally["stored_before"] > 0


def test_a_study_runs_and_ends_its_server(fake, ponder, write) -> None:
    record = fake()
    write("s.toml", STUDY + '[[model]]\nname = "pocket"\n')
    result = ponder("run", "s.toml", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["done"] == 16
    ponder("run", "s.toml")
    assert len(done(record, "asked")) == 8


def test_a_server_that_dies_is_started_again_once(fake, tmp_path) -> None:
    record, requests = fake(die_after=3, die_once=str(tmp_path / "died")), plans(8)
    own = ask(Pocket(), requests)
    assert [list(r.tokens) for r in ask(Vllm(id="pocket", concurrency=2), requests)] == [
        r.tokens for r in own
    ]
    starts = done(record, "started")
    assert len(starts) == 2
    assert not alive(starts[0][1])  # the engine of the dead one
    stop_all()
    record.unlink()
    fake(die_after=3)
    with pytest.raises(UserError, match=r"vLLM died, and again .*killed") as error:
        ask(Vllm(id="pocket", concurrency=1), requests)
    assert "gpu_memory_utilization" in error.value.hint
    assert len(done(record, "started")) == 2


def test_one_that_died_while_nobody_used_it(fake) -> None:
    record, requests = fake(), plans(1)
    before = ask(Vllm(id="pocket"), requests)
    ((server, *_),) = done(record, "started")
    os.kill(server, signal.SIGKILL)
    assert [r.tokens for r in ask(Vllm(id="pocket"), requests)] == [r.tokens for r in before]
    assert len(done(record, "started")) == 2


def test_replicas_share_the_load_and_the_gpus(fake, monkeypatch) -> None:
    record = fake()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    model = Vllm(id="pocket", replicas=2, tensor_parallel=2)
    assert len(ask(model, plans(4))) == 4
    starts = done(record, "started")
    assert len({given["port"] for _, _, given in starts}) == 2
    seen = [Path(f"/proc/{pid}/environ").read_text().split("\0") for pid, _, _ in starts]
    # they start at the same time
    assert sorted([e for e in env if e.startswith("CUDA_V")] for env in seen) == [
        ["CUDA_VISIBLE_DEVICES=4,5"],
        ["CUDA_VISIBLE_DEVICES=6,7"],
    ]


@pytest.fixture
def adapter(tmp_path) -> Path:
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text('{"r": 12}')
    (folder / "adapter_model.safetensors").write_bytes(b"adapter")
    return folder


def test_an_adapter_is_served_without_merging(fake, words, adapter) -> None:
    record = fake()
    model = Vllm(id=str(words), lora=adapter)
    ask(model, sums(1))
    assert done(record, "adapter") == [[str(adapter), "16"]]
    ((asked, *_),) = done(record, "asked")
    assert asked == model.identity()["lora"]
    assert model.title() == "weights (vllm) + adapter"
    with pytest.raises(UserError, match="in two parts"):
        model.source(ChainSum())
    (adapter / "adapter_model.safetensors").write_bytes(b"another")
    assert model.identity()["lora"] != asked
    with pytest.raises(UserError, match="no LoRA adapter"):
        Vllm(id=str(words), lora=words).identity()


def test_what_is_in_the_key(words, tmp_path) -> None:
    one = Vllm(id=str(words)).identity()
    moved = shutil.copytree(words, tmp_path / "moved")
    speed = {
        "max_num_seqs": 3,
        "gpu_memory_utilization": 0.5,
        "enforce_eager": True,
        "max-model-len": 64,
    }
    same = Vllm(
        id=str(moved),
        python="p",
        port=81,
        replicas=3,
        tensor_parallel=2,
        concurrency=5,
        timeout=9,
        args=speed,
    )
    assert same.identity() == one
    assert one == {"name": "vllm", "id": one["id"]}
    different = [
        Vllm(id=str(words), **settings).identity()
        for settings in (
            {"dtype": "float32"},
            {"args": {"quantization": "fp8"}},
            {"template": {"a": 1}},
            {"top_k": 4},
        )
    ]
    assert len({json.dumps(identity) for identity in [one, *different]}) == 5
    (moved / "model.safetensors").rename(moved / "model-00001-of-00002.safetensors")
    (moved / "model-00002-of-00002.safetensors").write_bytes(bytes(10**6))
    shards = Vllm(id=str(moved)).identity()["id"]
    with (moved / "model-00002-of-00002.safetensors").open("r+b") as file:
        file.seek(400_000)
        file.write(b"x" * 20_000)
    assert shards != Vllm(id=str(moved)).identity()["id"] != str(moved)
    assert Vllm(id="org/name", revision="v2").identity() == {
        "name": "vllm",
        "id": "org/name",
        "revision": "v2",
    }


def test_methods_that_make_weights_work_on_it(fake, models) -> None:
    from ponder.core import TrainingProblems

    record = fake()
    model = Vllm(id="pocket").with_weights(Pocket(style="long").source(PLANS).folder)
    merge = Merge(other=Pocket(style="short")).with_training((TrainingProblems(PLANS, 4, 1),))
    merged = merge.apply(model)
    (reply,) = ask(merged, plans(1))
    (own,) = ask(Pocket(weights=merge.folder(model)), plans(1))
    assert list(reply.tokens) == own.tokens
    assert len(done(record, "started")) == 1
    assert merged.made(PLANS)["training_tokens"] == 0


def test_length_rl_samples_through_it_with_the_weights_of_each_iteration(fake, models) -> None:
    from ponder.core import TrainingProblems
    from ponder.methods.length_rl import LengthRl

    record = fake()
    settings = {
        "iterations": 2,
        "problems": 2,
        "n": 2,
        "pool": 4,
        "inner": 1,
        "rate": 1e-3,
        "seed": 1,
    }
    method = LengthRl(**settings, sampler=Vllm(id="pocket", budget=200)).with_training(
        (TrainingProblems(PLANS, 3, 1),)
    )
    model = Pocket(style="long")
    made = json.loads((method.apply(model).source(PLANS).folder / "made.json").read_text())
    assert len(made["notes"]["iterations"]) == 2
    assert len(done(record, "started")) == 1
    # the first iteration's weights are those that it was started with
    assert len(done(record, "reload")) == 1
    first, second = (
        [weights for _, weights, _ in done(record, "asked")][:4],
        done(record, "asked")[4:],
    )
    assert len(second) == 4
    assert len(set(first)) == len({weights for _, weights, _ in second}) == 1
    assert first[0] != second[0][1]


@pytest.mark.parametrize("refused", [False, True])
def test_length_rl_replaces_the_adapter_in_the_running_server(fake, models, refused) -> None:
    from ponder.core import TrainingProblems
    from ponder.methods.length_rl import LengthRl

    record = fake(no_adapter=refused)
    settings = {
        "iterations": 3,
        "problems": 2,
        "n": 2,
        "pool": 4,
        "inner": 1,
        "rate": 1e-3,
        "seed": 1,
        "lora": 4,
    }
    method = LengthRl(**settings, sampler=Vllm(id="pocket", budget=60)).with_training(
        (TrainingProblems(PLANS, 3, 1),)
    )
    model = Pocket(style="long")
    notes = json.loads((method.apply(model).source(PLANS).folder / "made.json").read_text())[
        "notes"
    ]
    asked, starts = done(record, "asked"), [given for _, _, given in done(record, "started")]
    assert len(asked) == 12
    if refused:  # then the adapter is merged into the weights
        assert "can't be served: vLLM can't load the adapter" in notes["sampler"]
        assert ["enable-lora" in given for given in starts] == [True, False]
        assert len({weights for _, weights, _ in asked}) == 3
        return
    assert notes["sampler"] == "adapter"
    assert len(starts) == 1
    assert (starts[0]["model"], starts[0]["max-lora-rank"]) == (
        str(model.source(PLANS).folder),
        "8",
    )
    assert done(record, "reload") == []
    # Each iteration asks for its own adapter, by a name of its own; that of the iteration before is
    # gone, as is its cache.
    names = [name for name, _, _ in asked]
    assert [len({*names[n : n + 4]}) for n in (0, 4, 8)] == [1, 1, 1]
    assert len({*names}) == len(done(record, "adapter")) == 3
    assert [name for (name,) in done(record, "unloaded")] == [names[0], names[4]]
    order = [json.loads(line)[0] for line in record.read_text().splitlines()]
    for n in (i for i, kind in enumerate(order) if kind == "unloaded"):
        assert order[n + 1] == "reset"


@pytest.mark.parametrize(
    "settings", [{"processes": 2}, {"lora": 4}], ids=["two processes", "adapter"]
)
def test_length_rl_in_several_processes_samples_through_it(fake, models, settings) -> None:
    pytest.importorskip("torch")
    from ponder.core import TrainingProblems, seed_from
    from ponder.methods.length_rl import LengthRl
    from ponder.models._torch_engine import load_light
    from ponder.training.rollouts import Rollouts, draw_problems

    record, on = fake(), (TrainingProblems(PLANS, 3, 1),)
    settings = {
        "iterations": 2,
        "problems": 2,
        "n": 3,
        "pool": 4,
        "inner": 1,
        "rate": 1e-3,
        "engine": "trainer",
        **settings,
    }
    method = LengthRl(**settings, sampler=Vllm(id="pocket", budget=80)).with_training(on)
    model = Pocket(style="long")
    made = json.loads((method.apply(model).source(PLANS).folder / "made.json").read_text())
    assert len(made["notes"]["iterations"]) == 2
    # One server gets the weights of each iteration.
    ((_, _, given),) = done(record, "started")
    asked = done(record, "asked")
    assert len(asked) == 2 * 2 * 3
    if "lora" in settings:
        assert made["notes"]["sampler"] == "adapter"
        assert given["model"] == str(model.source(PLANS).folder)
        assert [len({name for name, _, _ in part}) for part in (asked[:6], asked[6:], asked)] == [
            1,
            1,
            2,
        ]
        assert done(record, "reload") == []
    else:
        assert [
            len({weights for _, weights, _ in part}) for part in (asked[:6], asked[6:], asked)
        ] == [1, 1, 2]
        assert len(done(record, "reload")) == 1
    assert made["cost"]["rollout_tokens"] == sum(
        len(prompt) + n for n, prompt in done(record, "prompt")
    )
    (environment,) = done(record, "environment")
    assert not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "ACCELERATE_USE_CPU"} & {*environment[0]}
    # In the first iteration the weights are the model's own, with which the same samples are drawn
    # without training.
    pool = draw_problems(on, 4, method.seed)
    problems = [pool[p] for p in method.drawn(pool, [(0, 0)] * 4, 0)]
    sampler = (
        Vllm(id="pocket", budget=80).with_weights(model.source(PLANS).folder).at_temperature(1.0)
    )
    own = Rollouts(
        sampler,
        load_light(model.source(PLANS)),
        problems,
        3,
        seed_from("rl", method.seed, 0),
        models / "own",
    )
    list(own)
    assert made["notes"]["iterations"][0] == method.summary(own.samples, [])


def test_a_training_on_a_gpu_stops_servers_that_nobody_uses(fake) -> None:
    pytest.importorskip("torch")
    from ponder.models._gpu_memory import make_room, stop_servers

    record, model = fake(), Vllm(id="pocket")

    async def asked_twice() -> None:
        async with model:
            await model.complete(plans(1)[0])
            make_room("cuda")
            await model.complete(plans(1)[0])

    asyncio.run(asked_twice())
    ((server, engine, _),) = done(record, "started")
    make_room("cpu")
    with model.kept_open():
        stop_servers("cuda")
        assert all(map(alive, (server, engine)))
        make_room("cuda")
        assert not any(map(alive, (server, engine)))


def test_an_adapter_on_other_weights_needs_a_start(fake, words, adapter, tmp_path) -> None:
    record = fake()
    ask(Vllm(id=str(words), lora=adapter), sums(1))
    other = shutil.copytree(words, tmp_path / "other")
    (other / "model.safetensors").write_bytes(b"other weights")
    ask(Vllm(id=str(other), lora=adapter), sums(1))
    assert [given["model"] for _, _, given in done(record, "started")] == [str(words), str(other)]
    assert done(record, "reload") == []
    assert len(done(record, "adapter")) == 2


def test_an_endpoint_can_not_sample_for_length_rl() -> None:
    from ponder.methods.length_rl import LengthRl
    from ponder.models.endpoint import Endpoint

    with pytest.raises(UserError, match="no local weights"):
        LengthRl(sampler=Endpoint(id="m")).check(Pocket(), PLANS)


def test_samples_of_another_tokenizer_are_not_trained_on(fake, words, models) -> None:
    from tiny import tiny

    from ponder.training.rollouts import Rollouts, TrainingProblem

    task = ChainSum()
    problems = [TrainingProblem(task, task.problem(2, 1))]
    models.mkdir(parents=True)
    with pytest.raises(UserError, match="but the weights to train read") as error:
        list(Rollouts(Vllm(id=str(words)), tiny(), problems, 1, 0, models / "samples"))
    assert "tokenizer" in error.value.hint


# ---- what can go wrong


def test_without_vllm(tmp_path, monkeypatch) -> None:
    for python, why in ((str(tmp_path / "none"), "can't run"), ("/bin/false", "has no vLLM")):
        with pytest.raises(UserError, match=why) as error:
            Vllm(id="pocket", python=python).ready()
        assert "pip install vllm" in error.value.hint
        monkeypatch.setenv("PONDER_VLLM", python)
        with pytest.raises(UserError, match=why) as error:
            Vllm(id="pocket").ready()
        assert f"{python} ($PONDER_VLLM)" in error.value.what
        assert error.value.hint.startswith("PONDER_VLLM=")
    monkeypatch.delenv("PONDER_VLLM", raising=False)
    monkeypatch.chdir(FAKE)  # a folder with that name is no package of this interpreter
    check_vllm.cache_clear()
    with pytest.raises(UserError, match="has no vLLM"):
        Vllm(id="pocket").ready()


def test_an_old_vllm_is_refused(tmp_path) -> None:
    package = tmp_path / "old" / "vllm"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    python = Path(fake_vllm(tmp_path))
    python.write_text(python.read_text().replace(str(FAKE), str(package.parent)))
    for version, refused in (("0.8.5", True), ("0.11.0", False), ("1.0.dev", False)):
        (package / "_version.py").write_text(f"__version__ = version = '{version}'\n")
        check_vllm.cache_clear()
        if refused:
            with pytest.raises(UserError, match=r"vLLM 0\.8\.5, which is too old"):
                check_vllm(str(python))
        else:
            check_vllm(str(python))


def test_progress_names_the_model_not_its_folder(fake, write) -> None:
    seen = list[Progress]()

    class Watched(Tally):
        def report(self, label: str, progress: Progress | None) -> None:
            seen.extend([progress] if progress else [])
            super().report(label, progress)

    fake()
    study = Study.load(write("s.toml", STUDY + 'label = "mine"\n'))
    with Store(Path("ponder.db"), lock=True) as store:
        asyncio.run(run(study, store, Watched()))
    assert line(Tally(making={"mine": seen[0]})) == "model mine  vLLM starting  seconds 0"
    assert {*seen[-1]} == {"model", "vLLM", "seconds"}


def test_why_it_did_not_start(fake, ponder, write) -> None:
    lines = [
        "(Worker pid=3) ERROR 11-17 12:10:39 [x.py:953] ValueError: Free memory on device is less than desired",
        "RuntimeError: Engine core initialization failed. See root cause above.",
    ]
    fake(fail=lines)
    write("s.toml", STUDY)
    result = ponder("run", "s.toml")
    assert result.exit_code == 2
    assert (
        "\ns.toml: model `pocket (vllm)`: vLLM did not start: ValueError: Free memory on device"
        in result.stderr
    )
    assert "hint: args = { gpu_memory_utilization" in result.stderr
    log = Path(result.stderr.partition("(log: ")[2].partition(")")[0])
    assert lines[0] in log.read_text()


def test_weights_that_it_can_not_load(fake, words, tmp_path) -> None:
    record, damaged = fake(), shutil.copytree(words, tmp_path / "damaged")
    (damaged / "model.safetensors").unlink()
    (damaged / "model.safetensors").mkdir()
    ask(Vllm(id=str(words)), sums(1))
    for _ in range(2):  # refused by the running server, then by one that is started with them
        with pytest.raises(
            UserError, match=r"vLLM did not start: IsADirectoryError: .*model\.safetensors"
        ):
            ask(Vllm(id=str(damaged)), sums(1))
    assert not pool._running
    assert [given["model"] for _, _, given in done(record, "started")] == [
        str(words),
        str(damaged),
        str(damaged),
    ]
    (damaged / "config.json").write_text("{")
    with pytest.raises(UserError, match=r"can't read .*config\.json"):
        ask(Vllm(id=str(damaged)), sums(1))


def test_an_adapter_that_is_not_there_is_known_before_a_run(fake, ponder, write) -> None:
    fake()
    write("s.toml", STUDY + 'lora = "none"\n')
    for verb in ("plan", "run"):
        result = ponder(verb, "s.toml")
        assert result.exit_code == 2
        assert result.stderr.startswith(
            "s.toml: model `pocket (vllm) + none`: there is no LoRA adapter in none\n"
        )


def test_a_port_that_is_taken(fake) -> None:
    fake()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(
            UserError, match="can't be used for vLLM: Address already in use"
        ) as error:
            ask(Vllm(id="pocket", port=other.getsockname()[1]), plans(1))
    assert "leave out `port`" in error.value.hint


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ({"other_name": "another"}, "serves another, not the one started there"),
        ({"answers_as": "another"}, r"the server at .* answers as `another`, not as `ponder-"),
        ({"other_ids": True}, "token ids don't match"),
        (
            {"other_prompt": True},
            r"was sent the prompt \[.* and read \[0, .* its token ids don't match",
        ),
    ],
)
def test_another_server_or_another_tokenizer(fake, fault, why) -> None:
    fake(**fault)
    with pytest.raises(UserError, match=why):
        ask(Vllm(id="pocket"), plans(1))
    if "other_name" in fault or "other_ids" in fault:  # it never started
        assert not pool._running


def test_a_server_without_token_ids(fake, slept) -> None:
    fake(no_ids=True)
    with pytest.raises(ModelFailure, match="returned no token ids"):
        ask(Vllm(id="pocket"), plans(1))


@pytest.mark.parametrize(
    ("settings", "why", "hint"),
    [
        ({"args": {"port": 18555}}, "setting of its own", "port = 18555 next to id"),
        (
            {"args": {"tensor-parallel-size": 3}},
            "setting of its own",
            "tensor_parallel = 3 next to id",
        ),
        ({"args": {"dtype": "float16"}}, "setting of its own", 'dtype = "float16" next to id'),
        (
            {"args": {"enable_lora": True}},
            "setting of its own",
            'lora = "…" next to id names the adapter\'s folder',
        ),
        ({"replicas": 0}, "at least 1", ""),
        ({"temperature": -1.0}, "not be negative", ""),
    ],
)
def test_what_is_refused(settings, why, hint) -> None:
    with pytest.raises(UserError, match=why) as error:
        Vllm(id="pocket", **settings)
    assert error.value.hint == hint


def test_weights_that_are_not_there(tmp_path) -> None:
    with pytest.raises(UserError, match="no weights at"):
        Vllm(id=str(tmp_path / "none")).ready()
    with pytest.raises(UserError, match="no vocabulary"):
        Vllm(id="pocket").check(ChainSum(), 2)
    Vllm(id="pocket").check(Tents(), 16)
