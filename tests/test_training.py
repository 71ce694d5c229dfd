"""The optimizer loop: the same step however it is split, and whenever it was interrupted."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tiny import END, flat, gradients, learn, open_loop, plain_score, steps, texts, tiny
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from ponder.core import UserError
from ponder.models._torch_engine import Loaded
from ponder.rewards._windows import batches
from ponder.training import loop
from ponder.training.loop import (
    Loop,
    Objective,
    TokenExample,
    TrainingSettings,
    Unit,
    log_probabilities,
)
from ponder.training.loop import negative_log_likelihood as likelihood


def units(number: int, **how) -> list[Unit]:
    return [Unit((text,)) for text in texts(number, **how)]


def weights(training: Loop) -> torch.Tensor:
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
    found = []
    for micro_tokens in (10**6, 60):
        training = open_loop(
            tiny(), TrainingSettings(rate=0.01, micro_tokens=micro_tokens, clip=0.5), tmp_path
        )
        assert len(training._micro_batches(some)) == (1 if micro_tokens > 60 else 6)
        seen, loss = gradients(training), learn(training, some, likelihood, 13.0)
        found.append((flat(seen[0]), loss, weights(training), training.tokens))
    (one, loss, after, tokens), (many, loss_of_many, after_many, tokens_of_many) = found
    torch.testing.assert_close(many, one, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(after_many, after, rtol=1e-4, atol=1e-5)
    assert loss_of_many == pytest.approx(loss)
    assert tokens == tokens_of_many == sum(len(unit.texts[0]) for unit in some)
    assert one.norm() == pytest.approx(0.5, rel=1e-3)


def test_a_step_is_what_plain_torch_makes_of_it(tmp_path) -> None:
    settings = TrainingSettings(rate=0.02, weight_decay=0.1, clip=0.0)
    training, other, some = open_loop(tiny(), settings, tmp_path), tiny().model, texts(5)
    rule = torch.optim.AdamW(other.parameters(), lr=0.01, weight_decay=0.1)
    for _ in range(3):
        learn(training, [Unit((text,)) for text in some], likelihood, 5.0, factor=0.5)
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
    training = open_loop(Loaded(tmp_path, forgetful, None), TrainingSettings(), tmp_path)
    some = units(4)
    assert training.score(some) == training.score(some)


def test_both_precisions_in_one_process(tmp_path) -> None:
    some, losses = units(6), {}
    for precision in ("float32", "bfloat16", "float32"):
        training = open_loop(tiny(), TrainingSettings(precision=precision), tmp_path)
        losses[precision] = learn(training, some, likelihood, 6.0)
        assert {p.dtype for p in training.trainable().values()} == {torch.float32}
    assert losses["bfloat16"] != losses["float32"]
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.02)


def test_a_training_that_is_not_resumable_starts_with_a_new_optimizer(tmp_path) -> None:
    settings = TrainingSettings(rate=0.01)
    training, some = open_loop(tiny(), settings, tmp_path), units(3)
    seen = []
    training.optimizer.register_step_pre_hook(
        lambda *_: seen.append(bool(training.optimizer.state))
    )
    for _ in range(2):
        list(training.train(some, steps(1, 3, settings) * 2, LIKELIHOOD, resumable=False))
    assert seen == [False, True, False, True]
    assert not list(tmp_path.iterdir())


LIKELIHOOD = Objective(likelihood)
SIX = [unit for step in range(6) for unit in units(4, seed=step)]


def test_a_training_goes_on_where_it_was_saved(tmp_path, monkeypatch) -> None:
    settings = TrainingSettings(rate=0.01)

    def trained(folder: Path) -> tuple[Loop, list[int]]:
        folder.mkdir(exist_ok=True)
        training = open_loop(tiny(), settings, folder)
        reports = training.train(SIX, steps(6, 4, settings), LIKELIHOOD)
        return training, [report["step"] for report in reports]

    whole, taken = trained(tmp_path / "whole")
    assert taken == [1, 2, 3, 4, 5, 6]
    monkeypatch.setattr(loop, "SAVE_SECONDS", -1.0)  # at every step
    short = open_loop(tiny(), settings, tmp_path)
    reports = short.train(SIX, steps(6, 4, settings), LIKELIHOOD)
    assert [next(reports)["step"] for _ in range(4)] == [1, 2, 3, 4]
    again, taken = trained(tmp_path)
    assert taken == [4, 5, 6]
    assert torch.equal(weights(again), weights(whole))
    assert again.tokens == whole.tokens == sum(len(unit.texts[0]) for unit in SIX)


@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_a_loss_that_is_no_number_stops_and_keeps_good_weights(tmp_path, monkeypatch, clip) -> None:
    """Steps so large that the next one finds nothing but infinities."""
    monkeypatch.setattr(loop, "SAVE_SECONDS", -1.0)
    settings = TrainingSettings(rate=0.01, clip=clip)
    training = open_loop(tiny(), settings, tmp_path)
    planned = steps(6, 4, settings)
    planned[2:] = [step._replace(factor=1e38) for step in planned[2:]]
    with pytest.raises(
        UserError, match=r"the loss is (nan|inf) at step 4; the last good weights are in "
    ) as error:
        list(training.train(SIX, planned, LIKELIHOOD))
    assert "rate" in error.value.hint
    kept = open_loop(tiny(), settings, tmp_path)
    kept.resume()
    assert kept.step == 2
    assert all(math.isfinite(row[0]) for row in kept.score(units(4)))


def test_a_gradient_that_is_no_number_stops_too(tmp_path) -> None:
    """Its loss is one: that of a root at 0."""
    training = open_loop(tiny(), TrainingSettings(), tmp_path)
    before = weights(training)
    with pytest.raises(
        UserError, match=r"the gradient is (nan|inf) at step 1; no weights have been saved yet"
    ):
        learn(
            training,
            units(2),
            lambda scores, _: ((scores - scores.detach()) ** 2).sum().sqrt(),
            1.0,
        )
    assert torch.equal(weights(training), before)


@pytest.mark.parametrize("tied", [False, True])
def test_a_low_rank_change_is_all_that_changes(tmp_path, tied) -> None:
    training = open_loop(
        tiny(tie_word_embeddings=tied), TrainingSettings(rate=0.05, lora=2), tmp_path
    )
    base = {
        n: p.detach().clone()
        for n, p in training.network.module.named_parameters()
        if "lora_" not in n
    }
    assert all("lora_" in name for name in training.trainable())
    for step in range(3):
        learn(training, units(4, seed=step), likelihood, 4.0)
        training.write(tmp_path / "made")
    for name, p in training.network.module.named_parameters():
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
            training._scores([Unit((text,))])[0, 0], plain_score(made, text), rtol=1e-4, atol=1e-4
        )
