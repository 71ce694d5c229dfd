"""`ponder.kvcache.fidelity`: a table of drifts, worked out again from single texts."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from transformers import LlamaConfig, LlamaForCausalLM

from ponder.core import Request, Source, UserError
from ponder.kvcache import (
    CacheBudget,
    SelectCache,
    drift,
    fidelity,
)
from ponder.models._torch_engine import load
from ponder.models.pocket import WEIGHTS
from ponder.models.transformers import Transformers
from ponder.policies.knorm import Knorm
from ponder.policies.random import Random
from ponder.policies.snapkv import Snapkv
from ponder.tasks.tents import Tents

BUDGET = CacheBudget(40, 8, 0.5)


class Letters:
    """A tokenizer of one token per letter."""

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [1] * add_special_tokens + [3 + ord(letter) % 60 for letter in text]}


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    small = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=64, num_hidden_layers=2, initializer_range=0.3, **small)
    ).eval()


TEXTS = [
    "the quick brown fox jumps over the lazy dog " * 3,
    "pack my box with five dozen liquor jugs, he said. " * 3,
]


def test_rows_are_means_over_texts_with_their_standard_errors(model) -> None:
    table = fidelity(model, Letters(), TEXTS, ["knorm", "random", "snapkv"], BUDGET, prompt=10)
    ids = [Letters()(text)["input_ids"] for text in TEXTS]
    by_policy = {
        name: [drift(model, text[:10], text[10:], policy, BUDGET) for text in ids]
        for name, policy in (("knorm", Knorm()), ("random", Random()), ("snapkv", Snapkv()))
    }
    assert table.reference == "random"
    assert [row.policy for row in table.rows] == list(by_policy)
    for row in table.rows:
        a, b = by_policy[row.policy]
        reference = [one.kl for one in by_policy["random"]]
        assert row.kl == pytest.approx((a.kl + b.kl) / 2)
        assert row.kl_se == pytest.approx(abs(a.kl - b.kl) / 2)  # of two: half their distance
        assert row.agrees == pytest.approx((a.agrees + b.agrees) / 2)
        less = [a.kl - reference[0], b.kl - reference[1]]
        assert row.less == pytest.approx(sum(less) / 2)
        assert row.less_se == pytest.approx(abs(less[0] - less[1]) / 2)
        assert (row.texts, row.tokens) == (2, sum(map(len, ids)) - 20)
    assert len({round(row.kl, 6) for row in table.rows}) == 3
    lines = str(table).splitlines()
    assert lines[0].endswith("KL less random's")
    assert [line.split()[0] for line in lines[1:4]] == list(by_policy)
    assert "2 texts" in lines[-1]


def test_bytes_are_those_of_a_cache_that_reads_token_by_token(model) -> None:
    ids = Letters()(TEXTS[0])["input_ids"]
    cache = SelectCache(model, Random(), BUDGET, prompt=10)
    with torch.no_grad():
        model(torch.tensor([ids[:10]]), past_key_values=cache)
        for token in ids[10:-1]:
            model(torch.tensor([[token]]), past_key_values=cache)
    measured = drift(model, ids[:10], ids[10:], Random(), BUDGET)
    assert measured.bytes == pytest.approx(
        cache.token_bytes * sum(cache.held[0]) / len(cache.held[0])
    )
    assert measured.peak == cache.token_bytes * 40
    # 2 layers × 2 heads × keys and values of 8 numbers of 4 bytes
    assert cache.token_bytes == 2 * 2 * 2 * 8 * 4


def test_one_text_has_no_standard_error_and_pairs_have_their_own_prompt(model) -> None:
    whole = Letters()(TEXTS[0])["input_ids"]
    [row] = fidelity(
        model, Letters(), [(TEXTS[0][:20], TEXTS[0][20:])], {"short": Snapkv(4)}, BUDGET
    ).rows
    assert math.isnan(row.kl_se)
    assert row.policy == "short"
    assert row.kl == pytest.approx(drift(model, whole[:21], whole[21:], Snapkv(4), BUDGET).kl)


def test_policies_may_have_budgets_of_their_own(model) -> None:
    small = CacheBudget(24, 4, 0.5, sinks=2, question=False, granularity="head")
    table = fidelity(
        model,
        Letters(),
        TEXTS,
        {"snapkv": Snapkv(4), "small": (Snapkv(4), small)},
        BUDGET,
        prompt=10,
    )
    ids = [Letters()(text)["input_ids"] for text in TEXTS]
    for row, budget in zip(table.rows, (BUDGET, small), strict=True):
        alone = [drift(model, text[:10], text[10:], Snapkv(4), budget) for text in ids]
        assert [one.kl for one in row.by_text] == pytest.approx([one.kl for one in alone], rel=1e-4)
        assert [one.bytes for one in row.by_text] == pytest.approx([one.bytes for one in alone])
        assert row.kl == pytest.approx(sum(one.kl for one in row.by_text) / 2)
    assert table.rows[0].kl != pytest.approx(table.rows[1].kl, rel=0.01)


@pytest.mark.parametrize("every", [1, 3, 7])
def test_predictions_are_compared_after_every_nth_token(model, every) -> None:
    """From the last token of the prompt on, whatever the chunks; texts may be token ids."""
    ids, budget = Letters()(TEXTS[0])["input_ids"], CacheBudget(40, 8, 0.5, question=False)
    with torch.no_grad():
        full = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        cache = SelectCache(model, Snapkv(4), budget, prompt=10)
        logits = [
            model(torch.tensor([[token]]), past_key_values=cache).logits[0, -1]
            for token in ids[:-1]
        ]
    own = torch.stack(logits).log_softmax(-1)
    expected, own = full[9:-1:every], own[9::every]
    [row] = fidelity(
        model, Letters(), [ids], {"snapkv": Snapkv(4)}, budget, prompt=10, every=every
    ).rows
    assert row.kl == pytest.approx(
        float((expected.exp() * (expected - own)).sum(-1).mean()), rel=1e-3
    )
    assert row.agrees == pytest.approx(
        float((expected.argmax(-1) == own.argmax(-1)).float().mean())
    )
    assert row.tokens == len(own)
    assert (
        fidelity(model, Letters(), [tuple(ids)], ["snapkv"], budget, prompt=10).rows[0].tokens
        == len(ids) - 10
    )
    assert row.bytes == pytest.approx(drift(model, ids[:10], ids[10:], Snapkv(4), budget).bytes)


def test_the_full_cache_is_what_it_is_compared_with(model) -> None:
    table = fidelity(model, Letters(), TEXTS[:1], ["full", "snapkv"], BUDGET, prompt=10)
    full, snapkv = table.rows
    assert (full.kl, full.agrees) == (0, 1)
    assert snapkv.kl > 0
    assert "nan" not in str(table)
    assert str(table).splitlines()[-1].startswith("1 text, ")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"texts": ["short"]}, "text 0 has 6 tokens"),
        ({"texts": []}, "no texts"),
        ({"policies": []}, "no policies"),
        ({"policies": ["snapvk"]}, "`snapvk` is unknown"),
        ({"policies": [Snapkv(), Snapkv(8)]}, "same name"),
        ({"reference": "h2o"}, "`h2o` isn't measured"),
        ({"every": 0}, "at least 1"),
        ({"texts": TEXTS[0]}, "one text, not a list"),
        ({"policies": ["oracle"]}, "attention of a text's answer"),
    ],
)
def test_mistakes(model, given, message) -> None:
    given = dict(given)
    texts, policies = given.pop("texts", TEXTS), given.pop("policies", ["knorm"])
    with pytest.raises(UserError, match=message):
        fidelity(model, Letters(), texts, policies, BUDGET, **given)


def test_a_cache_can_be_made_during_another_s_forward_pass(model) -> None:
    made = []
    layer = model.model.layers[0]
    hook = layer.register_forward_hook(
        lambda *_: made.append(SelectCache(model, Snapkv(), BUDGET, prompt=10))
    )
    try:
        ids = torch.tensor([Letters()(TEXTS[0])["input_ids"]])
        first = SelectCache(model, Snapkv(), CacheBudget(400, 8, 0.5))
        with torch.no_grad():
            model(ids, past_key_values=first)
            hook.remove()
            model(ids[:, :30], past_key_values=made[0])
            model(ids[:, 30:60], past_key_values=made[0])
    finally:
        hook.remove()
    assert len(made) == 1
    assert made[0].lengths[0] < 60
    assert model.config._attn_implementation == "sdpa"


async def _answered(model: Transformers, request: Request):
    async with model:
        return await model.complete(request)


def test_fidelity_only_records_the_pruned_cache_s_bytes() -> None:
    import asyncio

    task = Tents()
    request = Request.first_turn(task, task.problem(25, 1))
    budget = CacheBudget(96, 16, 0.5)
    measured = {}
    for fidelity_ in ("only", "also"):
        reply = asyncio.run(
            _answered(Transformers(id="pocket").with_policy(Snapkv(), budget, fidelity_), request)
        )
        measured[fidelity_] = reply.measures
    full = asyncio.run(_answered(Transformers(id="pocket"), request)).measures
    assert measured["only"]["cache_peak"] <= full["cache_peak"] * 97 / 100
    prompt = load(Source(Path(WEIGHTS / "tents"), codec="pocket")).prompt(request)
    assert measured["only"]["cache_peak"] == pytest.approx(
        full["cache_peak"] / _length(full, prompt) * 96
    )
    assert measured["also"]["cache_bytes"] < full["cache_bytes"]


def test_replies_over_the_full_cache_are_kept_as_long_as_their_weights() -> None:
    import asyncio

    task = Tents()
    request = Request.first_turn(task, task.problem(16, 1))
    model = Transformers(id="pocket").with_policy(Snapkv(), CacheBudget(96, 16, 0.5), "only")
    load.cache_clear()
    for _ in range(2):
        asyncio.run(_answered(model, request))
        assert len(load(model.source(task)).full_cache_replies) == 1
    load.cache_clear()
    assert load(model.source(task)).full_cache_replies == {}


def _length(full, prompt) -> float:
    """Tokens of the full cache at its end, from its mean: it grew by one from the prompt on."""
    # mean = size · (start + end) / 2 and peak = size · end
    start = len(prompt)
    ratio = full["cache_bytes"] / full["cache_peak"]  # (start + end) / (2 · end)
    return start / (2 * ratio - 1)
