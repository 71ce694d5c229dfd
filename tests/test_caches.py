"""Caches that forget: the same logits as a full recompute that masks what was forgotten, and only the right ones go."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from transformers import AttentionInterface, AttentionMaskInterface, LlamaConfig, LlamaForCausalLM
from transformers.masking_utils import sdpa_mask

from ponder.caches import CacheBudget, SelectCache, SlotCache
from ponder.caches.full import Full
from ponder.caches.h2o import H2o
from ponder.caches.last_query import LastQuery
from ponder.caches.random import Random
from ponder.caches.rkv import Rkv
from ponder.caches.sepllm import Sepllm
from ponder.caches.snapkv import Snapkv
from ponder.caches.streaming import Streaming
from ponder.core import UserError, plugins

VOCABULARY, PROMPT, NEW = 97, 14, 40
POLICIES = [Streaming(), Random(), H2o(), LastQuery(), Snapkv(queries=6, pool=3), Rkv(queries=4), Sepllm((3, 5, 8, 13))]


def tiny(attention: str = "sdpa", **settings):
    torch.manual_seed(0)
    config = LlamaConfig(
        **{
            "vocab_size": VOCABULARY,
            "hidden_size": 48,
            "intermediate_size": 64,
            "num_hidden_layers": 3,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "max_position_embeddings": 512,
            "initializer_range": 0.15,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": None,
            **settings,
        }
    )
    model = LlamaForCausalLM(config).eval()
    model.set_attn_implementation(attention)
    return model


def ragged(rows: int = 4) -> dict:
    """Prompts of different lengths, padded on the left."""
    ids = torch.randint(2, VOCABULARY, (rows, PROMPT), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    for row in range(rows):
        pads = [0, 3, 9, 5][row % 4]
        ids[row, :pads], mask[row, :pads] = 0, 0
    return {"input_ids": ids, "attention_mask": mask}


class Watched(SelectCache):
    """Keeps, for every step, which tokens each layer and head could look at."""

    def settle(self, ids, hidden, mask) -> None:
        new = hidden.shape[1]
        if self.lengths:
            self.looked.append(self.places[..., : self.lengths[0]].clone())
        else:
            self.looked = []
        self.cuts = getattr(self, "cuts", 0)
        super().settle(ids, hidden, mask)
        self.cuts += self.lengths[0] < (self.looked[-1].shape[-1] if self.looked else 0) + new


def explicit(module, query, key, value, attention_mask, scaling, looked, **_):
    """Attention over everything, where each query's view is given: layers × rows × heads × queries × keys."""
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    allowed = looked[module.layer_idx % len(looked)].repeat_interleave(query.shape[1] // looked.shape[2], 1)
    weights = (query @ key.mT * scaling).masked_fill(~allowed, -torch.inf).softmax(-1)
    return (weights.nan_to_num(0) @ value).transpose(1, 2), None


AttentionInterface.register("explicit", explicit)
AttentionMaskInterface.register("explicit", sdpa_mask)


def recomputed(said, inputs, looked) -> torch.Tensor:
    """The logits at each step, from one pass over all tokens with the views that the cache had."""
    rows, n = said.shape
    pads = (inputs["attention_mask"] == 0).sum(1)
    layers, _, heads, _ = looked[0].shape
    allowed = torch.zeros(layers, rows, heads, n, n, dtype=torch.bool)
    for place in range(n):
        if place < PROMPT:
            allowed[..., place, : place + 1] = True
        else:
            view = looked[place - PROMPT].long()
            allowed[..., place, :].scatter_(-1, view, True)
            allowed[..., place, place] = True
    for row in range(rows):
        allowed[:, row, ..., : int(pads[row])] = False
    positions = (torch.arange(n) - pads[:, None]).clamp(min=0)
    with torch.no_grad():
        return tiny("explicit")(said, position_ids=positions, looked=allowed, use_cache=False).logits[:, PROMPT - 1 :]


@pytest.mark.parametrize("share", ["model", "layer", "head"])
@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.plugin_name())
@pytest.mark.parametrize(("attention", "kernel"), [("sdpa", "stock"), ("eager", "stock"), ("sdpa", "grouped")])
def test_logits_are_those_of_a_full_recompute(attention, kernel, policy, share) -> None:
    model, inputs = tiny(attention), ragged()
    keep = CacheBudget(budget=24, window=5, ratio=0.5, sinks=2, question=False, granularity=share)
    cache = Watched(model, policy, keep, kernel=kernel)
    out = model.generate(
        **inputs,
        past_key_values=cache,
        max_new_tokens=NEW,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
    )
    assert cache.cuts >= 3
    assert max(cache.lengths) < 24
    ours = torch.stack(out.logits, dim=1)
    theirs = recomputed(out.sequences[:, :-1], inputs, cache.looked)
    assert (ours - theirs).abs().max() < 1e-5


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_nothing_changes_while_nothing_is_forgotten(attention) -> None:
    model, inputs = tiny(attention), ragged()
    ask = {"max_new_tokens": NEW, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    stock = torch.stack(model.generate(**inputs, **ask).logits)
    for policy in (Full(), Streaming(), H2o(), Snapkv()):
        cache = SelectCache(model, policy, CacheBudget(budget=200, window=20, ratio=0.5), kernel="stock")
        ours = torch.stack(model.generate(**inputs, past_key_values=cache, **ask).logits)
        assert torch.equal(ours, stock)


def test_what_is_protected_stays() -> None:
    model, inputs = tiny(), ragged()
    keep = CacheBudget(budget=32, window=4, ratio=0.1)
    cache = SelectCache(model, Random(), keep)
    model.generate(**inputs, past_key_values=cache, max_new_tokens=60, do_sample=False)
    pads = (inputs["attention_mask"] == 0).sum(1).tolist()
    for row, length in enumerate(cache.lengths):
        left = set(cache.places[0, row, 0, :length].tolist())
        assert set(range(pads[row], PROMPT)) <= left
        assert not left & set(range(pads[row]))
        assert set(range(cache.seen[row] - 4, cache.seen[row])) <= left
    assert max(max(held) for held in cache.held) == 32


def test_the_answer_stays() -> None:
    model, inputs = tiny(), ragged(1)
    cache = SelectCache(model, Streaming(), CacheBudget(budget=24, window=2, ratio=0.2))
    said = model.generate(**inputs, past_key_values=cache, max_new_tokens=60, do_sample=False)[0]
    first = int(said[PROMPT + 5])
    cache = SelectCache(model, Streaming(), CacheBudget(budget=24, window=2, ratio=0.2))
    cache.end_of_thinking = first
    model.generate(**inputs, past_key_values=cache, max_new_tokens=30, do_sample=False)
    ends = next(n for n, token in enumerate(said.tolist()) if n >= PROMPT and token == first)
    left = set(cache.places[0, 0, 0, : cache.lengths[0]].tolist())
    assert set(range(ends, cache.seen[0])) <= left


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
        for chunk in (inputs["input_ids"][:, :9], inputs["input_ids"][:, 9:10], inputs["input_ids"][:, 10:]):
            model(chunk, past_key_values=cache)
        stock = tiny("eager")(inputs["input_ids"], output_attentions=True).attentions
    for layer, theirs in zip(cache.cut, stock, strict=True):
        grouped = theirs.view(1, 2, 3, PROMPT, PROMPT).mean(2).sum(2)
        assert torch.allclose(layer.received[:, :, :PROMPT], grouped, atol=1e-5)


def test_rows_of_a_batch_are_scored_apart() -> None:
    """R-KV's own code took every row's redundancy from the first."""
    model, inputs = tiny(), ragged()
    keep = CacheBudget(budget=24, window=5, ratio=0.5)
    for policy in POLICIES:
        together = SelectCache(model, policy, keep)
        said = model.generate(**inputs, past_key_values=together, max_new_tokens=NEW, do_sample=False)
        row = 0  # the one without padding: alone it is cut at the same steps
        alone = SelectCache(model, policy, keep)
        one = {k: v[row : row + 1] for k, v in inputs.items()}
        assert torch.equal(
            model.generate(**one, past_key_values=alone, max_new_tokens=NEW, do_sample=False)[0], said[row]
        )


@pytest.mark.parametrize("share", ["model", "head"])
@pytest.mark.parametrize("policy", [*POLICIES, None], ids=lambda p: p.plugin_name() if p else "full")
def test_rows_join_and_leave_at_any_step(policy, share) -> None:
    model = tiny()
    keep = CacheBudget(budget=24, window=5, ratio=0.5, granularity=share) if policy else None
    prompts = [
        torch.randint(2, VOCABULARY, (1, n), generator=torch.Generator().manual_seed(n)) for n in (7, 12, 4, 9, 15)
    ]

    def alone(prompt):
        cache = SelectCache(model, policy or Full(), keep)
        return model.generate(prompt, past_key_values=cache, max_new_tokens=NEW, do_sample=False)[0, prompt.shape[1] :]

    with torch.no_grad():
        slots, said, waiting, running = SlotCache(model, policy or Full(), keep), {}, list(enumerate(prompts)), []
        for step in range(400):
            if waiting and step % 7 == 0:
                number, prompt = waiting.pop(0)
                one = SelectCache(model, policy or Full(), keep)
                logits = model(prompt, past_key_values=one).logits[0, -1]
                slots.join(one, seed=0)
                running.append(number)
                said[number] = [int(logits.argmax())]
            if not running:
                break
            ids = torch.tensor([[said[number][-1]] for number in running])
            places = torch.tensor(slots.seen)[:, None]
            logits = model(ids, attention_mask=slots.mask(), position_ids=places, past_key_values=slots).logits[:, -1]
            for row in reversed(range(len(running))):
                said[running[row]].append(int(logits[row].argmax()))
                if len(said[running[row]]) == NEW:
                    slots.leave(row)
                    running[row] = running[-1]
                    running.pop()
    for number, prompt in enumerate(prompts):
        assert said[number] == alone(prompt).tolist()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"budget": 8, "window": 8}, "smaller than the budget"),
        ({"budget": 8, "window": 2, "ratio": 0}, "above 0"),
        ({"budget": 8, "window": 2, "ratio": 1.5}, "at most 1"),
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


def test_beams_and_assisted_decoding_are_refused() -> None:
    model, inputs = tiny(), ragged(1)
    cache = SelectCache(model, Streaming(), CacheBudget(budget=40, window=3, ratio=0.5))
    with pytest.raises(UserError, match="beams"):
        model.generate(**inputs, past_key_values=cache, max_new_tokens=5, num_beams=2, do_sample=False)
    cache = SelectCache(model, Streaming(), CacheBudget(budget=40, window=3, ratio=0.5))
    with pytest.raises(UserError, match="wound back"):
        model.generate(**inputs, past_key_values=cache, max_new_tokens=9, prompt_lookup_num_tokens=3, do_sample=False)


def test_every_policy_is_tested() -> None:
    assert {p.plugin_name() for p in POLICIES} | {"full"} <= set(plugins.names("caches"))
