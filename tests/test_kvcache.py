"""Caches that evict: the same logits as a full recompute that masks the evicted tokens, and the
right tokens evicted.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from pruned import NEW, POLICIES, PROMPT, ragged, tiny

from ponder.core import UserError, plugins
from ponder.kvcache import (
    CacheBudget,
    SelectCache,
    drift,
    exactness,
)
from ponder.policies.full import Full
from ponder.policies.h2o import H2o
from ponder.policies.last_query import LastQuery
from ponder.policies.random import Random
from ponder.policies.sepllm import Sepllm
from ponder.policies.snapkv import Snapkv
from ponder.policies.streaming import Streaming


@pytest.mark.parametrize("granularity", ["model", "layer", "head"])
@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.plugin_name())
@pytest.mark.parametrize(
    ("attention", "kernel"), [("sdpa", "stock"), ("eager", "stock"), ("sdpa", "grouped")]
)
def test_logits_are_those_of_a_full_recompute(attention, kernel, policy, granularity) -> None:
    budget = CacheBudget(
        budget=24, window=5, ratio=0.5, sinks=2, question=False, granularity=granularity
    )
    measured = exactness(tiny(attention), policy, budget, kernel=kernel)
    assert measured.prunings >= 3
    assert measured.error < 1e-4
    assert measured.effect > 0.1


@pytest.mark.parametrize("granularity", ["model", "head"])
@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.plugin_name())
def test_logits_are_those_of_a_full_recompute_if_every_step_prunes(policy, granularity) -> None:
    budget = CacheBudget(budget=20, window=5, sinks=2, question=False, granularity=granularity)
    measured = exactness(tiny(), policy, budget)
    assert measured.prunings > 20
    assert measured.error < 1e-4
    assert measured.effect > 0.1


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_below_the_budget_nothing_changes(attention) -> None:
    model, inputs = tiny(attention), ragged()
    ask = {
        "max_new_tokens": NEW,
        "do_sample": False,
        "return_dict_in_generate": True,
        "output_logits": True,
    }
    stock = torch.stack(model.generate(**inputs, **ask).logits)
    for policy in (Full(), Streaming(), H2o(), Snapkv()):
        cache = SelectCache(
            model, policy, CacheBudget(budget=200, window=20, ratio=0.5), kernel="stock"
        )
        ours = torch.stack(model.generate(**inputs, past_key_values=cache, **ask).logits)
        assert torch.equal(ours, stock)


def test_protected_tokens_are_never_evicted() -> None:
    model, inputs = tiny(), ragged()
    budget = CacheBudget(budget=32, window=4, ratio=0.1)
    cache = SelectCache(model, Random(), budget)
    model.generate(**inputs, past_key_values=cache, max_new_tokens=60, do_sample=False)
    pads = (inputs["attention_mask"] == 0).sum(1).tolist()
    for row, length in enumerate(cache.lengths):
        left = set(cache.positions[0, row, 0, :length].tolist())
        assert set(range(pads[row], PROMPT)) <= left
        assert not left & set(range(pads[row]))
        assert set(range(cache.seen_tokens[row] - 4, cache.seen_tokens[row])) <= left
    assert max(max(held) for held in cache.held) == 32


def test_sinks_are_the_first_tokens_after_the_padding() -> None:
    model, inputs = tiny(), ragged()
    cache = SelectCache(
        model, Streaming(), CacheBudget(budget=24, window=4, ratio=0.3, sinks=2, question=False)
    )
    model.generate(**inputs, past_key_values=cache, max_new_tokens=40, do_sample=False)
    for row, pads in enumerate((inputs["attention_mask"] == 0).sum(1).tolist()):
        held = cache.positions[0, row, 0, : cache.lengths[row]].tolist()
        assert held[:2] == [pads, pads + 1]
        assert held[2] > PROMPT  # everything else in the prompt is evicted


def test_the_answer_is_never_evicted() -> None:
    model, inputs = tiny(), ragged(1)
    cache = SelectCache(model, Streaming(), CacheBudget(budget=24, window=2, ratio=0.2))
    said = model.generate(**inputs, past_key_values=cache, max_new_tokens=60, do_sample=False)[0]
    first = int(said[PROMPT + 5])
    cache = SelectCache(
        model, Streaming(), CacheBudget(budget=24, window=2, ratio=0.2), end_of_thinking=first
    )
    model.generate(**inputs, past_key_values=cache, max_new_tokens=30, do_sample=False)
    ends = next(n for n, token in enumerate(said.tolist()) if n >= PROMPT and token == first)
    left = set(cache.positions[0, 0, 0, : cache.lengths[0]].tolist())
    assert set(range(ends, cache.seen_tokens[0])) <= left


def test_at_every_step_the_cache_stays_at_its_budget() -> None:
    model = tiny()
    cache = SelectCache(model, LastQuery(), CacheBudget(budget=20, window=3))
    model.generate(**ragged(), past_key_values=cache, max_new_tokens=30, do_sample=False)
    assert cache.lengths == [20] * 4
    assert cache.token_bytes == 3 * 2 * 2 * 8 * 4


def test_h2o_sums_all_attention() -> None:
    model, inputs = tiny("eager"), ragged(1)
    cache = SelectCache(model, H2o(), None)
    with torch.no_grad():
        for chunk in (
            inputs["input_ids"][:, :9],
            inputs["input_ids"][:, 9:10],
            inputs["input_ids"][:, 10:],
        ):
            model(chunk, past_key_values=cache)
        stock = tiny("eager")(inputs["input_ids"], output_attentions=True).attentions
    for layer, theirs in zip(cache.pruned_layers, stock, strict=True):
        grouped = theirs.view(1, 2, 3, PROMPT, PROMPT).mean(2).sum(2)
        assert torch.allclose(layer.accumulated[:, :, :PROMPT], grouped, atol=1e-5)


def test_rows_of_a_batch_are_scored_apart() -> None:
    """R-KV's own code took every row's redundancy from the first."""
    model, inputs = tiny(), ragged()
    budget = CacheBudget(budget=24, window=5, ratio=0.5)
    for policy in POLICIES:
        together = SelectCache(model, policy, budget)
        said = model.generate(
            **inputs, past_key_values=together, max_new_tokens=NEW, do_sample=False
        )
        row = 0  # the one without padding: alone it is pruned at the same steps
        alone = SelectCache(model, policy, budget)
        one = {k: v[row : row + 1] for k, v in inputs.items()}
        assert torch.equal(
            model.generate(**one, past_key_values=alone, max_new_tokens=NEW, do_sample=False)[0],
            said[row],
        )


def test_h2o_scores_move_with_their_tokens() -> None:
    """After a pruning, each column still has the attention that its own token received."""
    model, ids = tiny(), ragged(1)["input_ids"]
    full, pruned = (
        SelectCache(model, H2o(), budget)
        for budget in (None, CacheBudget(14, 4, 0.5, question=False))
    )
    with torch.no_grad():
        model(ids, past_key_values=full)
        model(ids, past_key_values=pruned)
    assert pruned.lengths[0] < PROMPT
    at = pruned.positions[0, 0, 0, : pruned.lengths[0]].long()
    for ours, theirs in zip(pruned.pruned_layers, full.pruned_layers, strict=True):
        assert torch.allclose(ours.accumulated[0, :, : len(at)], theirs.accumulated[0][:, at])
        assert not ours.accumulated[0, :, len(at) :].any()


def test_drift_is_the_divergence_from_the_full_cache() -> None:
    """One pruning, then one token: its distribution against the full cache's, in nats."""
    model, ids = tiny(), ragged(1)["input_ids"][0].tolist()
    budget = CacheBudget(PROMPT, 3, 0.2, sinks=0, question=False)
    measured = drift(model, ids, [7, 9], Streaming(), budget)
    with torch.no_grad():
        logs = []
        for policy, limits in ((Full(), None), (Streaming(), budget)):
            cache = SelectCache(model, policy, limits)
            first = model(torch.tensor([ids]), past_key_values=cache).logits[0, -1]
            second = model(torch.tensor([[7]]), past_key_values=cache).logits[0, -1]
            logs.append(torch.stack([first, second]).log_softmax(-1))
    full, pruned = logs
    each = torch.nn.functional.kl_div(pruned, full, reduction="none", log_target=True).sum(-1)
    assert each[0] == pytest.approx(0, abs=1e-6)  # predicted before the pruning
    assert measured.kl == pytest.approx(each.mean().item(), rel=1e-4)
    assert each[1] > 1e-3
    assert measured.agrees == (full.argmax(-1) == pruned.argmax(-1)).float().mean()
    assert measured.tokens == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"budget": 8, "window": 8}, "smaller than the budget"),
        ({"budget": 8, "window": 2, "ratio": 0}, "above 0"),
        ({"budget": 8, "window": 2, "ratio": 1.5}, "at most 1"),
        ({"budget": 8, "window": 2, "granularity": "heads"}, "granularity `heads` is unknown"),
        ({"budget": 8, "window": 2, "ratio_of": "al"}, "ratio_of `al` is unknown"),
        ({"budget": 8, "window": 2, "allocation": "adkv"}, "allocation `adkv` is unknown"),
    ],
)
def test_wrong_settings(settings, message) -> None:
    with pytest.raises(UserError, match=message):
        CacheBudget(**settings)


def test_a_question_that_fills_the_budget_is_refused() -> None:
    model = tiny()
    cache = SelectCache(model, Streaming(), CacheBudget(budget=18, window=4, ratio=0.5))
    with pytest.raises(UserError, match="14 tokens of the prompt are protected"):
        model.generate(**ragged(), past_key_values=cache, max_new_tokens=5, do_sample=False)


@pytest.mark.parametrize("question", [True, False])
def test_sinks_that_fill_the_budget_are_refused(question) -> None:
    cache = SelectCache(tiny(), Streaming(), CacheBudget(12, 3, sinks=9, question=question))
    with pytest.raises(UserError, match="9 sinks are protected"), torch.no_grad():
        cache.decoder(torch.tensor([[7, 8]]), past_key_values=cache)


def test_a_cache_says_what_it_holds() -> None:
    model, inputs = tiny(), ragged()
    for policy in (Streaming(), Full()):
        cache = SelectCache(
            model, policy, CacheBudget(budget=32, window=8, ratio=0.9, question=False)
        )
        assert (
            repr(cache)
            == f"SelectCache({type(policy).__name__}: holds 0 of 0 tokens in each row, empty)"
        )
        model.generate(
            **inputs, past_key_values=cache, max_new_tokens=40, do_sample=False, eos_token_id=None
        )
        assert repr(cache).startswith(
            f"SelectCache({type(policy).__name__}: holds {cache.max_length} of "
        )
        assert (cache.max_length == max(cache.seen_tokens)) == (policy == Full())


def test_beams_and_assisted_decoding_are_refused() -> None:
    model, inputs = tiny(), ragged(1)
    cache = SelectCache(model, Streaming(), CacheBudget(budget=40, window=3, ratio=0.5))
    with pytest.raises(UserError, match="beam search"):
        model.generate(
            **inputs, past_key_values=cache, max_new_tokens=5, num_beams=2, do_sample=False
        )
    cache = SelectCache(model, Streaming(), CacheBudget(budget=40, window=3, ratio=0.5))
    with pytest.raises(UserError, match="can't be cropped"):
        model.generate(
            **inputs,
            past_key_values=cache,
            max_new_tokens=9,
            prompt_lookup_num_tokens=3,
            do_sample=False,
        )


def test_a_pruning_keeps_the_highest_scores_and_the_window() -> None:
    """The whole engine on one row: 12 tokens at a budget of 12, half of the 6 evictable ones are
    kept.
    """
    model, ids = tiny(), torch.tensor([[5, 3, 9, 9, 3, 9, 9, 3, 9, 9, 9, 9]])
    cache = SelectCache(model, Sepllm((3,)), CacheBudget(12, 4, 0.5, sinks=2, question=False))
    with torch.no_grad():
        model(ids, past_key_values=cache)
    assert cache.positions[0, 0, 0, : cache.lengths[0]].tolist() == [0, 1, 4, 6, 7, 8, 9, 10, 11]
    assert cache.held == [[12]]


def test_every_policy_is_tested() -> None:
    assert {p.plugin_name() for p in POLICIES} | {"full"} <= set(plugins.names("policies"))
