"""Budgets divided by layer and head: still exact, as many tokens as without, and empty columns
count as nothing.
"""

from __future__ import annotations

import copy
from typing import ClassVar

import pytest

torch = pytest.importorskip("torch")

from architectures import second_turn, tiny_model
from pruned import NEW, POLICIES, ragged, tiny

from ponder.core import UserError
from ponder.kvcache import (
    CacheBudget,
    SelectCache,
    drift,
    exactness,
)
from ponder.kvcache.allocation import columns_per_head, falling_linearly
from ponder.methods.compress import Compress
from ponder.policies.h2o import H2o
from ponder.policies.lagkv import Lagkv
from ponder.policies.snapkv import Snapkv
from ponder.policies.streaming import Streaming

DIVIDED = [("pyramid", "layer"), ("pyramid", "head"), ("adakv", "head")]


def budget(allocation: str, granularity: str = "head", **settings) -> CacheBudget:
    usual = {"budget": 24, "window": 5, "ratio": 0.5, "sinks": 2, "question": False}
    return CacheBudget(**usual | settings, granularity=granularity, allocation=allocation)


@pytest.mark.parametrize(("allocation", "granularity"), DIVIDED)
@pytest.mark.parametrize(
    ("attention", "kernel"), [("sdpa", "stock"), ("eager", "stock"), ("sdpa", "grouped")]
)
def test_logits_are_those_of_a_full_recompute(attention, kernel, allocation, granularity) -> None:
    for policy in (H2o(), Snapkv(queries=6, pool=3), Streaming()):
        measured = exactness(
            tiny(attention), policy, budget(allocation, granularity), kernel=kernel
        )
        assert measured.prunings >= 3
        assert measured.error < 1e-4
        assert measured.effect > 0.1


@pytest.mark.parametrize("policy", [*POLICIES, Lagkv(lag=4)], ids=lambda p: p.plugin_name())
def test_with_any_policy_at_every_step(policy) -> None:
    one_head_per_query = tiny(num_key_value_heads=6)
    measured = exactness(one_head_per_query, policy, budget("adakv", ratio=None), tokens=24)
    assert measured.prunings > 10
    assert measured.error < 1e-4
    assert measured.effect > 0.1


@pytest.mark.parametrize("allocation", ["pyramid", "adakv"])
def test_padding_in_the_middle_and_compressed_keys(allocation) -> None:
    assert second_turn(tiny(), H2o(), budget(allocation)).exact
    assert exactness(tiny_model("deepseek_v3"), H2o(), budget(allocation), tokens=16).exact


def test_numbers_that_fall_linearly() -> None:
    # the last is a twentieth of the mean
    assert falling_linearly(3, mean=20, largest=100) == [39, 20, 1]
    assert falling_linearly(3, mean=20, largest=30) == [30, 20, 10]  # the first has no more to keep
    # 19.5, 13.2, 6.8, .5, and what rounding loses
    assert falling_linearly(4, mean=10, largest=100) == [20, 14, 6, 0]
    assert falling_linearly(1, mean=10, largest=100) == [10]
    assert falling_linearly(3, mean=10, largest=4) == [10, 10, 10]


def test_the_highest_scores_of_a_layer_decide() -> None:
    inf = torch.inf
    scores = torch.tensor([[[[0.9, 0.8, 0.7, 0.1, inf], [0.2, 0.3, 0.05, 0.04, inf]]]])
    assert columns_per_head("adakv", scores, 3).tolist() == [
        [[4, 2]]
    ]  # six of ten: .9, .8, .7, .3 and what must be kept
    scores[..., 0, 0] = -inf  # padding, or empty
    assert columns_per_head("adakv", scores, 3).tolist() == [[[3, 3]]]
    # Twelve of 32; the second head has the lower scores, and a minimum of 1 + int(.2 · (6 - 1)).
    scores = torch.cat(
        [torch.arange(32.0).view(2, 16).flip(0)[:, :15], torch.full((2, 1), inf)], 1
    )[None, None]
    assert columns_per_head("adakv", scores, 6).tolist() == [[[10, 2]]]
    equal = torch.ones(1, 1, 4, 8)
    assert columns_per_head("adakv", equal, 3).tolist() == [[[3, 3, 3, 3]]]


@pytest.mark.parametrize(("allocation", "granularity"), DIVIDED)
def test_as_many_tokens_as_in_an_even_cache(allocation, granularity) -> None:
    model, caches = tiny(), []
    prompt = ragged(1)["input_ids"]
    for name in ("even", allocation):
        cache = SelectCache(model, H2o(), budget(name, granularity, question=True, budget=32))
        model.generate(prompt, past_key_values=cache, max_new_tokens=NEW, do_sample=False)
        caches.append(cache)
    even, cache = caches
    assert cache.held == even.held  # tokens per head, in which bytes are counted
    assert cache.peaks[0] > even.peaks[0] == max(even.held[0])
    assert cache.tokens == even.max_length < cache.max_length
    filled = ~cache.empty[..., : cache.max_length]
    counts = filled.sum(-1)
    assert int(counts.sum()) == counts.numel() * even.max_length
    assert int(counts.max()) == cache.max_length
    assert int(counts.min()) < even.max_length
    if allocation == "pyramid":
        by_layer = counts[:, 0, 0].tolist()
        assert by_layer == sorted(by_layer, reverse=True)
    seen, positions = cache.seen_tokens[0], cache.positions[..., : cache.max_length]
    for index in torch.cartesian_prod(*(torch.arange(n) for n in counts.shape)).tolist():
        held = positions[tuple(index)][filled[tuple(index)]].tolist()
        assert held == sorted(set(held))
        assert set(range(prompt.shape[1])) | set(range(seen - 5, seen)) <= set(held)


class Watching(Snapkv):
    """SnapKV that remembers how many real columns it was shown, on average over heads."""

    shown: ClassVar[list[float]] = []

    def score(self, view):
        scores = super().score(view)
        self.shown.append(float((~view.padding).sum(-1).float().mean()))
        assert not scores[view.padding].any()  # attention to what isn't there
        return scores


def test_policies_are_shown_empty_columns_as_padding() -> None:
    model, prompt = tiny(), ragged(1)["input_ids"]
    Watching.shown.clear()
    cache = SelectCache(model, Watching(queries=6, pool=1), budget("adakv"))
    model.generate(prompt, past_key_values=cache, max_new_tokens=NEW, do_sample=False)
    assert cache.peaks[0] > 24
    assert Watching.shown == [24] * len(Watching.shown)
    assert len(Watching.shown) >= 3 * 3


def test_a_copy_goes_its_own_way() -> None:
    model, prompt = tiny(), ragged(1)["input_ids"]
    cache = SelectCache(model, H2o(), budget("adakv"))
    with torch.no_grad():
        model(torch.cat([prompt, prompt], 1), past_key_values=cache)
        assert cache.extra[0] > 0
        again = copy.deepcopy(cache)
        tokens = [torch.full((1, 1), 5 + n) for n in range(20)]
        first, second = (
            [model(t, past_key_values=c).logits for t in tokens] for c in (cache, again)
        )
    assert torch.equal(torch.cat(first), torch.cat(second))


def test_drift_reads_in_chunks() -> None:
    model, ids = (
        tiny(),
        torch.randint(2, 97, (60,), generator=torch.Generator().manual_seed(3)).tolist(),
    )
    divided = budget("adakv")
    chunks = drift(model, ids[:10], ids[10:], H2o(), divided)
    cache, expected = (
        SelectCache(model, H2o(), divided),
        model(torch.tensor([ids])).logits[0].log_softmax(-1),
    )
    with torch.no_grad():
        said = [model(torch.tensor([ids[:10]]), past_key_values=cache).logits[0, -1]]
        said += [
            model(torch.tensor([[i]]), past_key_values=cache).logits[0, -1] for i in ids[10:-1]
        ]
        own = torch.stack(said).log_softmax(-1)
        kl = (expected[9:-1].exp() * (expected[9:-1] - own)).sum(-1).mean()
    assert chunks.kl == pytest.approx(float(kl), rel=1e-3)
    assert chunks.peak == cache.token_bytes * cache.peaks[0] > cache.token_bytes * 24


@pytest.mark.filterwarnings("ignore:.*have a sliding window")
def test_what_is_refused() -> None:
    with pytest.raises(UserError, match="can't be used with") as caught:
        CacheBudget(24, 5, allocation="adakv", granularity="layer")
    assert caught.value.hint == 'granularity = "head"'
    with pytest.raises(UserError, match="can't be used with") as caught:
        Compress(policy="h2o", budget=24, window=5, allocation="pyramid")
    assert caught.value.hint == 'granularity = "layer" or granularity = "head"'
    for kind, message in (
        ("gemma2", "full attention in all layers"),
        ("falcon", "reveals its attention"),
    ):
        with pytest.raises(UserError, match=message):
            SelectCache(tiny_model(kind), Streaming(), budget("pyramid"))
    assert "allocation" not in Compress(policy="h2o", budget=24, window=5).identity()
    divided = Compress(policy="h2o", budget=24, window=5, granularity="head", allocation="adakv")
    assert divided.identity()["allocation"] == "adakv"
