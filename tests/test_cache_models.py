"""Caches on any model: exact, or refused with a reason; and the model is as it was afterwards."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import threading
from dataclasses import dataclass

import pytest

torch = pytest.importorskip("torch")

from architectures import VARIANTS, second_turn, tiny_model
from pruned import PROMPT, ragged, tiny
from transformers import AutoTokenizer, DynamicCache, GPT2Config, GPT2LMHeadModel, pipeline

from ponder.core import Policy, UserError
from ponder.kvcache import (
    CacheBudget,
    SelectCache,
    SlotCache,
    exactness,
)
from ponder.models.pocket import SHIPPED
from ponder.policies.full import Full
from ponder.policies.h2o import H2o
from ponder.policies.last_query import LastQuery
from ponder.policies.random import Random
from ponder.policies.snapkv import Snapkv
from ponder.policies.streaming import Streaming

SNAPKV = Snapkv(queries=6, pool=3)
GREEDY = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0}


def budget(**settings) -> CacheBudget:
    return CacheBudget(
        **{"budget": 24, "window": 5, "ratio": 0.5, "sinks": 2, "question": False} | settings
    )


# The whole matrix is in benchmarks/cache_matrix.py; here is one architecture of each kind.
@pytest.mark.filterwarnings("ignore:.*have a sliding window")
@pytest.mark.parametrize(
    ("kind", "variant", "attention"),
    [
        ("gemma2", "", "eager"),  # softcap, sliding windows
        ("gpt_oss", "", "eager"),  # attention sinks
        ("mistral", "", "sdpa"),
        ("gpt2", "", "eager"),
        ("opt", "", "sdpa"),  # its language model calls the decoder past the model around it
        ("llama4_text", "", "sdpa"),  # chunked attention
        ("lfm2", "", "sdpa"),  # convolutions
        ("qwen2", "sliding window", "sdpa"),
        ("gemma3", "", "eager"),  # images; masks that are made outside of the decoder
    ],
)
def test_exact(kind, variant, attention) -> None:
    model = tiny_model(kind, variant)
    model.set_attn_implementation(attention)
    for policy, more in (
        (H2o(), {"granularity": "head"}),
        (SNAPKV, {}),
        (Streaming(), {"ratio": None}),
    ):
        measured = exactness(model, policy, budget(**more), tokens=16)
        assert measured.exact, (policy, measured)
        assert measured.error < 1e-4


def test_compressed_keys() -> None:
    """MLA caches latents: attention can be summed, but recent queries can't be compared with them."""
    model = tiny_model("deepseek_v3")
    for policy in (H2o(), Random()):
        assert exactness(model, policy, budget(granularity="layer"), tokens=16).exact
    with pytest.raises(UserError, match=r"`snapkv` needs keys, .* compressed"):
        exactness(model, SNAPKV, budget(), tokens=16)


def test_attention_that_is_not_revealed() -> None:
    model = tiny_model("gptj")
    assert exactness(model, Random(), budget(), tokens=16).exact
    with pytest.raises(UserError, match="`h2o` needs attention, which this model doesn't reveal"):
        SelectCache(model, H2o(), budget())


LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0] * 8,
    "long_factor": [4.0] * 8,
}
MORE = {
    "gemma3_text": {"both directions": {"use_bidirectional_attention": True}},
    "phi3": {
        "longrope": {
            "rope_parameters": LONGROPE,
            "original_max_position_embeddings": 16,
            "sliding_window": None,
        },
    },
}


@pytest.mark.parametrize(
    ("kind", "variant", "message"),
    [
        ("mistral", "sliding window", "no layer of this model has a cache that grows"),
        ("bloom", "", "ALiBi"),
        ("mamba", "", "has no KV cache"),
        ("gemma3_text", "both directions", "attends in both directions"),
        ("phi3", "longrope", "drops its cache when the text has more than 16 tokens"),
    ],
)
def test_refused(kind, variant, message, monkeypatch) -> None:
    monkeypatch.setitem(VARIANTS, kind, VARIANTS.get(kind, {}) | MORE.get(kind, {}))
    with pytest.raises(UserError, match=message):
        SelectCache(tiny_model(kind, variant), Streaming(), budget())


def test_an_architecture_that_was_not_tested_is_refused() -> None:
    model = tiny()
    model.config.model_type = "brand_new"
    with pytest.raises(UserError, match=r"(?s)`brand_new`.*exactness.*untested=True"):
        SelectCache(model, Streaming(), budget())
    SelectCache(model, Streaming(), budget(), untested=True)


def test_the_text_model_of_a_multimodal_one_must_be_tested_too() -> None:
    model = tiny_model("llava")
    SelectCache(model, Streaming(), budget())
    model.config.text_config.model_type = "jetmoe"  # on which a pruned cache was found wrong
    with pytest.raises(UserError, match="architecture `jetmoe`"):
        SelectCache(model, Streaming(), budget())


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
        LONGROPE
        | {
            "short_factor": [1.0] * 4,
            "long_factor": [4.0] * 4,
            "original_max_position_embeddings": 30,
        },
    ],
    ids=lambda rope: rope["rope_type"],
)
def test_rotary_embeddings_that_change_with_the_length_are_refused(rope) -> None:
    model = tiny(rope_parameters=rope, max_position_embeddings=30)
    assert exactness(model, H2o(), budget(), tokens=16).exact  # as long as they don't
    with pytest.raises(UserError, match="rotary embeddings of this model changed"):
        exactness(model, H2o(), budget(), tokens=20)
    if rope["rope_type"] == "longrope":  # they change once
        ids = torch.randint(2, 97, (1, 32), generator=torch.Generator().manual_seed(0))
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        assert exactness(model, H2o(), budget(), inputs, tokens=16).exact
        slots, one = SlotCache(model, H2o(), None), SelectCache(model, H2o(), None)
        with torch.no_grad():
            model(ids, past_key_values=one)
            slots.join(one, seed=0)
            model(ids[:, :5], past_key_values=(short := SelectCache(model, H2o(), None)))
        with pytest.raises(UserError, match="rotary embeddings of this model changed"):
            slots.join(short, seed=0)


def test_recurrent_layers_that_start_anew_are_refused() -> None:
    model, ids = tiny_model("jamba"), torch.arange(2, 9)[None]
    cache = SelectCache(model, Streaming(), budget())
    with torch.no_grad():
        model(ids, past_key_values=cache)
        model(ids[:, :1], past_key_values=cache)
        with pytest.raises(UserError, match="several further tokens"):
            model(ids, past_key_values=cache)


@pytest.mark.parametrize("add_cross_attention", [True, False])
def test_cross_attention_is_refused(add_cross_attention) -> None:
    small = {
        "vocab_size": 97,
        "n_embd": 32,
        "n_layer": 1,
        "n_head": 4,
        "bos_token_id": 1,
        "eos_token_id": None,
    }
    model, ids = (
        GPT2LMHeadModel(GPT2Config(**small, add_cross_attention=add_cross_attention)),
        torch.arange(2, 9)[None],
    )
    cache = SelectCache(model, H2o(), budget())
    with torch.no_grad():
        model(ids, past_key_values=cache)
        with pytest.raises(UserError, match="cross-attention"):
            model(ids, past_key_values=cache, encoder_hidden_states=torch.zeros(1, 3, 32))


def test_a_model_around_a_model_is_refused() -> None:
    wrapped = torch.compile(tiny(), backend="eager")
    with pytest.raises(UserError, match="OptimizedModule isn't a transformers model") as caught:
        SelectCache(wrapped, Streaming(), budget())
    assert "the transformers model that it wraps" in caught.value.hint


def test_sliding_windows_are_named_in_a_warning() -> None:
    with pytest.warns(UserWarning, match="2 of 4 layers have a sliding window"):
        SelectCache(tiny_model("gemma2"), Streaming(), budget())


def test_an_unknown_argument_of_attention_is_refused() -> None:
    model, ids = tiny(), torch.arange(2, 9)[None]
    cache = SelectCache(model, Streaming(), budget())
    with pytest.raises(UserError, match="`position_bias`"), torch.no_grad():
        model(ids, past_key_values=cache, position_bias=torch.zeros(1))
    # and the cache is incomplete
    with pytest.raises(UserError, match="raised an error"), torch.no_grad():
        model(ids, past_key_values=cache)
    cache = SelectCache(model, Streaming(), budget())
    with pytest.raises(UserError, match="sliding window can't be pruned"), torch.no_grad():
        model(ids, past_key_values=cache, sliding_window=4)


def test_another_kernel_is_refused() -> None:
    model = tiny()
    model.config._attn_implementation = "flex_attention"
    with pytest.raises(UserError, match=r"not with `flex_attention`"):
        SelectCache(model, Streaming(), budget())


def state(model) -> list:
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
    return [
        hooks,
        model.config._attn_implementation,
        sorted(vars(model)),
        sorted(vars(model.model)),
    ]


def test_nothing_stays_in_the_model() -> None:
    model, inputs = tiny("eager"), ragged()
    model(**inputs, output_attentions=True)  # for which transformers has hooks of its own
    before = state(model)
    cache = SelectCache(model, H2o(), budget())
    model.generate(**inputs, past_key_values=cache, **GREEDY)
    assert model.config._attn_implementation == "eager"
    weights = model(**inputs, output_attentions=True).attentions
    assert weights[0].shape == (4, 6, PROMPT, PROMPT)
    kept = copy.deepcopy(cache)
    del cache
    assert state(model) != before
    del kept
    gc.collect()
    assert state(model) == before


def test_after_an_error_the_attention_is_the_models_own() -> None:
    model = tiny()
    cache = SelectCache(model, H2o(), budget(question=True))
    with pytest.raises(UserError, match="no token could be evicted"), torch.no_grad():
        model(torch.arange(2, 40)[None], past_key_values=cache)
    assert model.config._attn_implementation == "sdpa"
    with pytest.raises(UserError, match="what it holds is incomplete"):
        model(torch.tensor([[5]]), past_key_values=cache)


@pytest.mark.parametrize(
    "next_pass", ["with the same cache", "with a new cache", "with transformers' cache"]
)
def test_after_an_interrupt_the_attention_is_the_models_own(next_pass) -> None:
    """Ctrl-C, after which torch calls no hooks."""
    model, ids = tiny(), torch.arange(2, 16)[None]
    cache = SelectCache(model, H2o(), budget())

    def interrupt(*_) -> None:
        raise KeyboardInterrupt

    with torch.no_grad():
        expected = model(ids).logits
        model(ids, past_key_values=cache)
        handle = model.model.layers[1].register_forward_pre_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            model(ids[:, :1], past_key_values=cache)
        handle.remove()
        if next_pass == "with the same cache":
            with pytest.raises(UserError, match="hasn't ended, so what it holds is incomplete"):
                model(ids[:, :1], past_key_values=cache)
        elif next_pass == "with a new cache":
            fresh = SelectCache(model, H2o(), budget(), kernel="stock")
            assert torch.equal(model(ids, past_key_values=fresh).logits, expected)
        else:
            received = cache.layers[0].accumulated.clone()
            assert torch.equal(model(ids).logits, expected)
            assert torch.equal(cache.layers[0].accumulated, received)
    assert model.config._attn_implementation == "sdpa"


def test_a_cache_that_is_in_use_is_refused() -> None:
    model, ids = tiny(), torch.arange(2, 16)[None]
    cache, refused = SelectCache(model, H2o(), budget()), []

    def again(*_) -> None:
        try:
            cache.decoder(ids, past_key_values=cache)
        except UserError as error:
            refused.append(error.what)

    def on_another_thread(*_) -> None:
        thread = threading.Thread(target=again)
        thread.start()
        thread.join()

    handle = model.model.layers[1].register_forward_pre_hook(on_another_thread)
    with torch.no_grad():
        logits = model(ids, past_key_values=cache).logits
        handle.remove()
        assert torch.allclose(logits, model(ids).logits, atol=1e-5)
    assert len(refused) == 1
    assert "hasn't ended" in refused[0]


def test_a_copy_of_the_model_has_no_cache() -> None:
    model, inputs = tiny(), ragged()
    cache = SelectCache(model, H2o(), budget())
    stored = io.BytesIO()
    torch.save(model, stored)
    stored.seek(0)
    expected = model.generate(**inputs, past_key_values=copy.deepcopy(cache), **GREEDY)
    for other in (copy.deepcopy(model), torch.load(stored, weights_only=False)):
        with pytest.raises(UserError, match="made for another model"):
            other(**inputs, past_key_values=cache)
        own = SelectCache(other, H2o(), budget())
        assert torch.equal(other.generate(**inputs, past_key_values=own, **GREEDY), expected)
        assert own.decoder.config._attn_implementation == "sdpa"
    with pytest.raises(UserError, match="can't be pickled"):
        pickle.dumps(cache)


def test_inference_mode_can_be_left() -> None:
    model, ids = tiny(), torch.arange(2, 16)[None]
    caches = [SelectCache(model, H2o(), budget()) for _ in range(2)]
    for cache, mode in zip(caches, (torch.inference_mode, torch.no_grad), strict=True):
        for part in (ids, *ids[:, :6].split(1, 1)):
            with mode():
                model(part, past_key_values=cache)
    with torch.no_grad():
        for token in ids.split(1, 1):
            logits = [model(token, past_key_values=cache).logits for cache in caches]
    assert caches[0].lengths[0] < caches[0].seen_tokens[0]
    assert torch.equal(*logits)


def test_dropout_is_the_models_own() -> None:
    model, ids = tiny(attention_dropout=0.5).train(), torch.arange(2, 16)[None]
    cache = SelectCache(model, Streaming(), budget())
    with torch.no_grad():
        model(ids, past_key_values=cache)
        first, second = (
            model(ids[:, :1], past_key_values=copy.deepcopy(cache)).logits for _ in range(2)
        )
    assert not torch.equal(first, second)


def test_attentions_are_returned_with_a_pruned_cache() -> None:
    model, ids = tiny("eager"), torch.arange(2, 9)[None]
    cache = SelectCache(model, Streaming(), budget())
    with torch.no_grad():
        model(ids, past_key_values=cache)
        ours = model(ids[:, :1], past_key_values=cache, output_attentions=True).attentions
    assert [w.shape for w in ours] == [(1, 6, 1, 8)] * 3
    assert ours[0].sum().item() == pytest.approx(6)


def test_two_caches_take_turns_on_one_model() -> None:
    model, ids = tiny(), torch.arange(2, 14)[None]

    def steps(*caches):
        """Logits of each cache, fed in turn."""
        every = [[] for _ in caches]
        with torch.no_grad():
            for part in (ids, *([ids[:, n % 12 : n % 12 + 1] for n in range(20)])):
                for cache, logits in zip(caches, every, strict=True):
                    logits.append(model(part, past_key_values=cache).logits[0, -1])
        return [torch.stack(logits) for logits in every]

    def cache(policy, kernel):
        return SelectCache(model, policy, budget(), kernel=kernel)

    together = steps(cache(H2o(), "grouped"), cache(Streaming(), "stock"), DynamicCache())
    apart = [
        *steps(cache(H2o(), "grouped")),
        *steps(cache(Streaming(), "stock")),
        *steps(DynamicCache()),
    ]
    for one, other in zip(together, apart, strict=True):
        assert torch.equal(one, other)


def test_a_copy_goes_its_own_way() -> None:
    model, ids = tiny(), torch.arange(2, 32)[None]
    prefix = SelectCache(model, H2o(), budget())
    with torch.no_grad():
        model(ids, past_key_values=prefix)
        again = [copy.deepcopy(prefix) for _ in range(2)]
        del prefix
        for _ in range(12):
            logits = [model(ids[:, :1], past_key_values=cache).logits for cache in again]
        other = model(ids[:, 5:6], past_key_values=again[0]).logits
        assert again[0].seen_tokens == [43]
        assert again[1].seen_tokens == [42]
        straight = SelectCache(model, H2o(), budget())
        model(ids, past_key_values=straight)
        for _ in range(12):
            expected = model(ids[:, :1], past_key_values=straight).logits
    assert torch.equal(logits[0], expected)
    assert torch.equal(logits[1], expected)
    assert not torch.equal(other, expected)
    with pytest.raises(UserError, match="share their buffers"):
        copy.copy(straight)


@pytest.mark.parametrize("policy", [H2o(), LastQuery(), Streaming()], ids=lambda p: p.plugin_name())
@pytest.mark.parametrize("ratio", [0.5, None])
def test_a_second_turn_with_padding_of_its_own(policy, ratio) -> None:
    measured = second_turn(tiny(), policy, budget(ratio=ratio, budget=18))
    assert measured.prunings >= 2
    assert measured.error < 1e-4
    assert measured.effect > 0.1


def test_a_second_turn_with_padding_is_refused_where_a_mask_serves_other_layers() -> None:
    with pytest.raises(UserError, match="padding in the middle of a text"):
        second_turn(tiny_model("lfm2"), Streaming(), budget(budget=18))


def test_a_prompt_in_chunks_is_protected() -> None:
    model, inputs = tiny(), ragged()
    whole, chunked = (SelectCache(model, Random(), CacheBudget(24, 3, 0.2)) for _ in range(2))
    said = model.generate(**inputs, past_key_values=whole, **GREEDY)
    assert torch.equal(
        said, model.generate(**inputs, past_key_values=chunked, prefill_chunk_size=5, **GREEDY)
    )
    for row, pads in enumerate((inputs["attention_mask"] == 0).sum(1).tolist()):
        held = set(chunked.positions[0, row, 0, : chunked.lengths[row]].tolist())
        assert set(range(pads, PROMPT)) <= held


def test_sinks_of_a_short_prompt_are_the_first_tokens() -> None:
    model = tiny()
    cache = SelectCache(model, Random(), CacheBudget(12, 3, 0.1, sinks=4))
    model.generate(torch.tensor([[7]]), past_key_values=cache, **GREEDY)
    assert cache.positions[0, 0, 0, :4].tolist() == [0, 1, 2, 3]


@dataclass(frozen=True)
class Broken(Policy):
    value: float = float("nan")

    def score(self, view):
        return torch.full(view.positions.shape, self.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_scores_that_are_not_numbers_are_refused(value) -> None:
    cache = SelectCache(tiny(), Broken(value), budget())
    with pytest.raises(UserError, match="returned a score that isn't a finite number"):
        cache.decoder(torch.arange(2, 40)[None], past_key_values=cache)


@pytest.mark.parametrize(
    ("policy", "limit", "kernel", "message"),
    [
        (H2o, budget(), "grouped", r"such as Snapkv\(\), not <class"),
        ("h2o", budget(), "grouped", r"such as Snapkv\(\), not 'h2o'"),
        (H2o(), 24, "grouped", r"such as CacheBudget\(.*, not 24"),
        (H2o(), budget(), "group", "kernel `group` is unknown"),
    ],
)
def test_wrong_arguments(policy, limit, kernel, message) -> None:
    with pytest.raises(UserError, match=message):
        SelectCache(tiny(), policy, limit, kernel=kernel)


def test_padding_queries_have_no_part_in_scores() -> None:
    """A row that is mostly padding is scored as it would be alone."""
    model, inputs = tiny("eager"), ragged()
    for policy in (H2o(), Snapkv(queries=12, pool=1)):
        together, alone = (SelectCache(model, policy, None) for _ in range(2))
        with torch.no_grad():
            positions = (inputs["attention_mask"].cumsum(1) - 1).clamp(min=0)
            model(**inputs, position_ids=positions, past_key_values=together)
            model(inputs["input_ids"][2:3, 9:], past_key_values=alone)
        scores = [
            policy.score(
                c._view(c.pruned_layers[1], slice(0, len(c.lengths)), c.positions[0, :, :, :n], n)
            )
            for c, n in ((together, PROMPT), (alone, PROMPT - 9))
        ]
        expected = scores[1][0] * (5 / 12 if policy.queries else 1)  # of 12 queries, 5 are real
        if policy.queries:
            expected = scores[1][0] * 5 / 12
        assert torch.allclose(scores[0][2, :, 9:], expected, atol=1e-5)
        assert not scores[0][2, :, :9].any()


def test_padding_after_a_text_asks_nothing() -> None:
    model, ids = tiny("eager"), torch.arange(2, 16)[None]
    mask = torch.ones_like(ids)
    mask[:, 10:] = 0
    scores = []
    for policy, n in ((Snapkv(queries=8, pool=1), 14), (Snapkv(queries=4, pool=1), 10)):
        cache = SelectCache(model, policy, None)
        with torch.no_grad():
            model(ids[:, :n], attention_mask=mask[:, :n], past_key_values=cache)
        view = cache._view(cache.pruned_layers[1], slice(0, 1), cache.positions[0, :, :, :n], n)
        scores.append(policy.score(view)[..., :10])
    assert torch.allclose(scores[0] * 2, scores[1], atol=1e-6)  # of 8 queries, 4 are real


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (
            {"attention_mask": torch.ones(1, 7)},
            "has 7 columns; 7 tokens were read before, and 7 are new",
        ),
        ({"attention_mask": torch.ones(1, 1, 7, 14)}, "rows × tokens"),
        ({"attention_mask": torch.tensor([[0] + [1] * 13])}, "hides other tokens than before"),
        (
            {
                "input_ids": torch.tensor([[5]]),
                "attention_mask": torch.tensor([[1] * 5 + [0] + [1] * 2]),
            },
            "hides other tokens than before",
        ),
        ({"input_ids": torch.ones(2, 7, dtype=torch.long)}, "has 1 rows, and the batch has 2"),
    ],
)
def test_a_pass_that_does_not_fit_is_refused(inputs, message) -> None:
    model, ids = tiny(), torch.arange(2, 9)[None]
    cache = SelectCache(model, Streaming(), budget())
    with torch.no_grad():
        model(ids, past_key_values=cache)
        with pytest.raises(UserError, match=message):
            model(**{"input_ids": ids} | inputs, past_key_values=cache)


def test_padding_without_its_mask_is_refused() -> None:
    model, inputs = tiny(), ragged()
    cache = SelectCache(model, Streaming(), budget())
    with torch.no_grad():
        model(**inputs, past_key_values=cache)
        with pytest.raises(UserError, match="padding was read before"):
            model(inputs["input_ids"][:, :1], past_key_values=cache)


def test_a_cache_of_another_model_is_refused() -> None:
    model, other, ids = tiny(), tiny(), torch.arange(2, 9)[None]
    cache = SelectCache(model, Streaming(), budget())
    with pytest.raises(UserError, match="made for another model"):
        other(ids, past_key_values=cache)
    second = SelectCache(other, Streaming(), budget())
    with pytest.raises(UserError, match="made for another model"):
        other(ids, past_key_values=cache)
    with pytest.raises(UserError, match="made for another model"):
        second.update(torch.zeros(1, 2, 1, 8), torch.zeros(1, 2, 1, 8), 0)


def test_a_pipeline_with_two_prompts_is_refused() -> None:
    model, tokenizer = tiny(vocab_size=2048), AutoTokenizer.from_pretrained(SHIPPED)
    cache = SelectCache(model, Streaming(), budget())
    ask = pipeline("text-generation", model=model, tokenizer=tokenizer)
    with pytest.raises(UserError, match="make a new SelectCache for another prompt"):
        ask(["0 1 2 3", "4 5 6"], past_key_values=cache, **GREEDY)


def test_recent_queries_are_a_copy() -> None:
    model = tiny()
    cache = SelectCache(model, SNAPKV, None)
    with torch.no_grad():
        model(torch.arange(2, 90)[None], past_key_values=cache)
        for _ in range(3):
            model(torch.tensor([[5]]), past_key_values=cache)
    for layer in cache.pruned_layers:
        assert layer.queries.shape == (1, 6, 6, 8)
        assert layer.queries.untyped_storage().nbytes() <= 2 * layer.queries.nbytes


def test_a_full_cache_is_hardly_larger_than_transformers_own() -> None:
    model = tiny(num_hidden_layers=1)
    cache, peak = SelectCache(model, Full(), None), 0.0
    with torch.no_grad():
        model(torch.ones(1, 500, dtype=torch.long), past_key_values=cache)
        for _ in range(120):
            model(torch.tensor([[5]]), past_key_values=cache)
            peak = max(peak, cache.layers[0].keys.shape[2] / cache.lengths[0])
    assert peak <= 1.1


def test_pruning_at_every_step_overwrites_one_column() -> None:
    model = tiny()
    cache = SelectCache(model, Streaming(), CacheBudget(20, 5, sinks=2, question=False))
    with torch.no_grad():
        model(torch.arange(2, 22)[None], past_key_values=cache)
        layer = cache.layers[0]
        keys, where = layer.keys[0, :, :20].clone(), layer.keys.data_ptr()
        model(torch.tensor([[5]]), past_key_values=cache)
    changed = (layer.keys[0, :, :20] != keys).any(-1).any(0)
    assert changed.nonzero().flatten().tolist() == [2]  # the oldest token that isn't a sink
    assert layer.keys.data_ptr() == where
    assert cache.positions[0, 0, 0, :20].tolist() == [0, 1, 20, *range(3, 20)]
    assert cache.lengths == [20]
