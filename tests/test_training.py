"""The optimiser loop: the same step however it is cut up, on how many processes, and whenever it
was interrupted.
"""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file
from tiny import END, flat, gradients, plain_score, texts, tiny
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from ponder.core import UserError
from ponder.models._torch_engine import Loaded
from ponder.rewards._windows import batches
from ponder.training import loop
from ponder.training.loop import (
    TokenExample,
    Trainer,
    TrainingSettings,
    Unit,
    likelihood,
    log_probabilities,
)


def units(number: int, **how) -> list[Unit]:
    return [Unit((text,)) for text in texts(number, **how)]


def weights(training: Trainer) -> torch.Tensor:
    return flat({name: p.detach().clone() for name, p in training.trainable().items()})


def test_ragged_texts_in_one_batch_score_as_each_does_alone() -> None:
    model, some = (
        tiny().model,
        [*texts(9), TokenExample([5], [END]), TokenExample([7] * 20, [3] * 20)],
    )
    with torch.no_grad():
        together = log_probabilities(model, some)
        alone = torch.stack([plain_score(model, text) for text in some])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)
    assert len({round(score, 3) for score in alone.tolist()}) == len(some)


def test_a_score_is_that_of_sampling_at_a_temperature() -> None:
    model, (text,) = tiny().model, texts(1)
    logits = model(torch.tensor([[*text.prompt, *text.said]])).logits[0] / 2.5
    alone = [
        logits[len(text.prompt) + n - 1].log_softmax(-1)[token] for n, token in enumerate(text.said)
    ]
    torch.testing.assert_close(log_probabilities(model, [text], 2.5)[0], torch.stack(alone).sum())


@pytest.mark.parametrize("limit", [1, 40, 100, 10**6])
def test_batches_hold_every_unit_once_and_no_more_than_the_limit(limit) -> None:
    some = [Unit(tuple(texts(2, seed=n))) for n in range(30)]
    found = list(batches([len(unit) for unit in some], limit))
    assert sorted(place for batch in found for place in batch) == list(range(30))
    for batch in found:
        filled = 2 * len(batch) * max(len(text) for place in batch for text in some[place].texts)
        assert filled <= limit or len(batch) == 1
    longest = [max(len(some[place]) for place in batch) for batch in found]
    assert longest == sorted(longest, reverse=True)
    assert len(list(batches([len(unit) for unit in some], 10**6))) == 1


def test_small_passes_make_the_same_step_as_one(tmp_path) -> None:
    some = units(13)
    steps = []
    for micro_tokens in (10**6, 60):
        training = Trainer(
            tiny(), TrainingSettings(rate=0.01, micro_tokens=micro_tokens, clip=0.5), tmp_path
        )
        assert len(training._micro_batches(some)) == (1 if micro_tokens > 60 else 6)
        seen, loss = gradients(training), training.learn(some, likelihood, 13.0)
        steps.append((flat(seen[0]), loss, weights(training), training.tokens))
    (one, loss, after, tokens), (many, loss_of_many, after_many, tokens_of_many) = steps
    torch.testing.assert_close(many, one, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(after_many, after, rtol=1e-4, atol=1e-5)
    assert loss_of_many == pytest.approx(loss)
    assert tokens == tokens_of_many == sum(len(unit.texts[0]) for unit in some)
    assert one.norm() == pytest.approx(0.5, rel=1e-3)


def test_a_step_is_what_plain_torch_makes_of_it(tmp_path) -> None:
    settings = TrainingSettings(rate=0.02, weight_decay=0.1, clip=0.0)
    training, other, some = Trainer(tiny(), settings, tmp_path), tiny().model, texts(5)
    rule = torch.optim.AdamW(other.parameters(), lr=0.01, weight_decay=0.1)
    for _ in range(3):
        training.learn([Unit((text,)) for text in some], likelihood, 5.0, factor=0.5)
        loss = -sum(plain_score(other, text) for text in some) / 5
        loss.backward()
        rule.step()
        rule.zero_grad()
    torch.testing.assert_close(
        weights(training), flat(dict(other.named_parameters())), rtol=1e-3, atol=1e-4
    )


def test_the_rate_warms_up_and_falls() -> None:
    settings = TrainingSettings(warm_up=0.2)
    factors = [settings.factor(step, 20) for step in range(20)]
    assert factors[:4] == pytest.approx(
        [(n + 1) / 4 * (0.5 + 0.5 * math.cos(math.pi * n / 20)) for n in range(4)]
    )
    assert factors[4:] == sorted(factors[4:], reverse=True)
    assert 0 < factors[-1] < 0.01
    steady = TrainingSettings(warm_up=0.0, decay=False)
    assert {steady.factor(step, 9) for step in range(9)} == {1.0}


def test_what_a_model_forgets_at_random_in_training_it_does_not_forget_here(tmp_path) -> None:
    torch.manual_seed(1)
    forgetful = GPT2LMHeadModel(
        GPT2Config(vocab_size=24, n_positions=64, n_embd=16, n_layer=1, n_head=2)
    )
    assert forgetful.config.resid_pdrop > 0
    training = Trainer(Loaded(tmp_path, forgetful, None), TrainingSettings(), tmp_path)
    some = units(4)
    assert training.score_all(some) == training.score_all(some)


def test_both_precisions_in_one_process(tmp_path) -> None:
    some, losses = units(6), {}
    for precision in ("float32", "bfloat16", "float32"):
        training = Trainer(tiny(), TrainingSettings(precision=precision), tmp_path)
        losses[precision] = training.learn(some, likelihood, 6.0)
        assert {p.dtype for p in training.trainable().values()} == {torch.float32}
    assert losses["bfloat16"] != losses["float32"]
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.02)


def test_forgetting_leaves_nothing_behind(tmp_path) -> None:
    training, some = Trainer(tiny(), TrainingSettings(rate=0.01), tmp_path), units(3)
    for _ in range(4):
        training.reset_optimizer()
        assert not training.optimizer.state
        training.learn(some, likelihood, 3.0)
    assert len(training.accelerator._optimizers) == 1


def test_a_training_goes_on_where_it_was_saved(tmp_path, monkeypatch) -> None:
    def trained(steps: int, folder: Path, resume: bool = False) -> Trainer:
        folder.mkdir(exist_ok=True)
        training = Trainer(tiny(), TrainingSettings(rate=0.01), folder)
        assert bool(training.resume()) == resume
        for _ in training.run(steps, lambda step: units(4, seed=step), likelihood, len):
            pass
        return training

    whole = trained(6, tmp_path / "whole")
    monkeypatch.setattr(loop, "SAVE_SECONDS", -1.0)  # at every step
    short = Trainer(tiny(), TrainingSettings(rate=0.01), tmp_path)
    reports = short.run(6, lambda step: units(4, seed=step), likelihood, len)
    assert [next(reports)["step"] for _ in range(4)] == [1, 2, 3, 4]
    again = trained(6, tmp_path, resume=True)
    assert torch.equal(weights(again), weights(whole))
    assert (
        again.tokens
        == whole.tokens
        == sum(len(u.texts[0]) for step in range(6) for u in units(4, seed=step))
    )


@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_a_loss_that_is_no_number_stops_and_keeps_good_weights(tmp_path, monkeypatch, clip) -> None:
    """Steps so large that the second one finds nothing but infinities."""
    monkeypatch.setattr(loop, "SAVE_SECONDS", -1.0)
    training = Trainer(tiny(), TrainingSettings(rate=0.01, clip=clip), tmp_path)
    assert len(list(training.run(2, lambda step: units(4, seed=step), likelihood, len))) == 2
    for group in training.optimizer.param_groups:
        group["rate"] = 1e36
    with pytest.raises(
        UserError, match=r"the loss is (nan|inf) at step 4; the last good weights are in "
    ) as error:
        list(training.run(9, lambda step: units(4, seed=step), likelihood, len))
    assert "rate" in error.value.hint
    kept = Trainer(tiny(), TrainingSettings(rate=0.01), tmp_path)
    kept.resume()
    assert kept.step == 2
    assert all(math.isfinite(row[0]) for row in kept.score_all(units(4)))


def test_a_gradient_that_is_no_number_stops_too(tmp_path) -> None:
    """Its loss is one: that of a root at 0."""
    training = Trainer(tiny(), TrainingSettings(), tmp_path)
    before = weights(training)
    with pytest.raises(
        UserError, match=r"the gradient is (nan|inf) at step 1; no weights have been saved yet"
    ):
        training.learn(
            units(2), lambda scores, _: ((scores - scores.detach()) ** 2).sum().sqrt(), 1.0
        )
    assert torch.equal(weights(training), before)


@pytest.mark.parametrize("tied", [False, True])
def test_a_low_rank_change_is_all_that_changes(tmp_path, tied) -> None:
    training = Trainer(
        tiny(tie_word_embeddings=tied), TrainingSettings(rate=0.05, lora=2), tmp_path
    )
    base = {n: p.detach().clone() for n, p in training.plain.named_parameters() if "lora_" not in n}
    assert all("lora_" in name for name in training.trainable())
    for step in range(3):
        training.learn(units(4, seed=step), likelihood, 4.0)
        training.write(tmp_path / "made")
    for name, p in training.plain.named_parameters():
        if "lora_" not in name:
            assert torch.equal(p, base[name]), name
    assert all(p.abs().max() > 0 for p in training.trainable().values())
    original, made = (
        tiny(tie_word_embeddings=tied).model,
        AutoModelForCausalLM.from_pretrained(tmp_path / "made"),
    )
    learnt = {name.removeprefix("base_model.model."): p for name, p in training.trainable().items()}
    changed = 0
    for name, p in original.named_parameters():
        stem = name.removesuffix(".weight")
        a, b = (learnt.get(f"{stem}.lora_{side}.default.weight") for side in "AB")
        wanted = p if a is None else p + 2.0 * b @ a  # alpha is twice the rank
        changed += a is not None
        torch.testing.assert_close(made.get_parameter(name), wanted, rtol=1e-5, atol=1e-6)
    assert changed == 14  # seven matrices in each of two layers
    text = texts(1)[0]
    with torch.no_grad():
        torch.testing.assert_close(
            training.scores([Unit((text,))])[0, 0], plain_score(made, text), rtol=1e-4, atol=1e-4
        )


TWO = """
import sys, torch
from pathlib import Path
from tiny import texts, tiny
from ponder.training.loop import TrainingSettings, Trainer, Unit, likelihood
training = Trainer(tiny(), TrainingSettings(rate=0.01, micro_tokens=70), Path(sys.argv[1]))
losses = [training.learn([Unit((t,)) for t in texts(12, seed=n)], likelihood, 12.0) for n in range(2)]
training.save(losses=losses, processes=training.accelerator.num_processes)
training.write(Path(sys.argv[1]))
"""


@pytest.fixture
def own_port() -> Iterator[int]:
    """A port that nobody else is given meanwhile, though a server may still listen at it."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def test_two_processes_make_the_same_steps_as_one(tmp_path, own_port) -> None:
    port = str(own_port)
    shared = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "ACCELERATE_USE_CPU": "true",
    }
    paths = {
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
        "OMP_NUM_THREADS": "1",
    }
    running = [
        subprocess.Popen(
            [sys.executable, "-c", TWO, str(tmp_path)],
            env={**os.environ, **shared, **paths, "RANK": rank, "LOCAL_RANK": rank},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    for process in running:
        _, talk = process.communicate(timeout=600)
        assert process.returncode == 0, talk
    assert torch.load(tmp_path / "training.pt")["processes"] == 2
    alone = Trainer(tiny(), TrainingSettings(rate=0.01, micro_tokens=70), tmp_path)
    for step in range(2):
        some = units(12, seed=step)
        assert len(alone._micro_batches(some)) % 2  # so that one of the two has to idle
        alone.learn(some, likelihood, 12.0)
    for name, made in load_file(tmp_path / "model.safetensors").items():
        torch.testing.assert_close(
            made, alone.plain.get_parameter(name).detach(), rtol=0, atol=1e-5
        )
