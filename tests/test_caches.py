"""Caches that evict: the same logits as a full recompute that masks the evicted tokens, and the right tokens evicted."""

from __future__ import annotations

import dataclasses
import math

import pytest

torch = pytest.importorskip("torch")

from transformers import AttentionInterface, AttentionMaskInterface, LlamaConfig, LlamaForCausalLM
from transformers.masking_utils import sdpa_mask

from ponder.caches import CacheBudget, CacheView, SelectCache, SlotCache, drift
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
    """Records, for every step, which tokens each layer and head could attend to."""

    def after_forward(self, ids, hidden, mask) -> None:
        new = hidden.shape[1]
        if self.lengths:
            self.visible.append(self.positions[..., : self.lengths[0]].clone())
        else:
            self.visible = []
        self.prunings = getattr(self, "prunings", 0)
        super().after_forward(ids, hidden, mask)
        self.prunings += self.lengths[0] < (self.visible[-1].shape[-1] if self.visible else 0) + new


def explicit(module, query, key, value, attention_mask, scaling, visible, **_):
    """Attention over everything, where each query's visible keys are given: layers × rows × heads × queries × keys."""
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    allowed = visible[module.layer_idx % len(visible)].repeat_interleave(query.shape[1] // visible.shape[2], 1)
    weights = (query @ key.mT * scaling).masked_fill(~allowed, -torch.inf).softmax(-1)
    return (weights.nan_to_num(0) @ value).transpose(1, 2), None


AttentionInterface.register("explicit", explicit)
AttentionMaskInterface.register("explicit", sdpa_mask)


def recomputed(said, inputs, visible) -> torch.Tensor:
    """The logits at each step, from one pass over all tokens with the views that the cache had."""
    rows, n = said.shape
    pads = (inputs["attention_mask"] == 0).sum(1)
    layers, _, heads, _ = visible[0].shape
    allowed = torch.zeros(layers, rows, heads, n, n, dtype=torch.bool)
    for place in range(n):
        if place < PROMPT:
            allowed[..., place, : place + 1] = True
        else:
            view = visible[place - PROMPT].long()
            allowed[..., place, :].scatter_(-1, view, True)
            allowed[..., place, place] = True
    for row in range(rows):
        allowed[:, row, ..., : int(pads[row])] = False
    positions = (torch.arange(n) - pads[:, None]).clamp(min=0)
    with torch.no_grad():
        return tiny("explicit")(said, position_ids=positions, visible=allowed, use_cache=False).logits[:, PROMPT - 1 :]


@pytest.mark.parametrize("granularity", ["model", "layer", "head"])
@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.plugin_name())
@pytest.mark.parametrize(("attention", "kernel"), [("sdpa", "stock"), ("eager", "stock"), ("sdpa", "grouped")])
def test_logits_are_those_of_a_full_recompute(attention, kernel, policy, granularity) -> None:
    model, inputs = tiny(attention), ragged()
    budget = CacheBudget(budget=24, window=5, ratio=0.5, sinks=2, question=False, granularity=granularity)
    cache = Watched(model, policy, budget, kernel=kernel)
    out = model.generate(
        **inputs,
        past_key_values=cache,
        max_new_tokens=NEW,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
    )
    assert cache.prunings >= 3
    assert max(cache.lengths) < 24
    ours = torch.stack(out.logits, dim=1)
    theirs = recomputed(out.sequences[:, :-1], inputs, cache.visible)
    assert (ours - theirs).abs().max() < 1e-5


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_below_the_budget_nothing_changes(attention) -> None:
    model, inputs = tiny(attention), ragged()
    ask = {"max_new_tokens": NEW, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    stock = torch.stack(model.generate(**inputs, **ask).logits)
    for policy in (Full(), Streaming(), H2o(), Snapkv()):
        cache = SelectCache(model, policy, CacheBudget(budget=200, window=20, ratio=0.5), kernel="stock")
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
    cache = SelectCache(model, Streaming(), CacheBudget(budget=24, window=4, ratio=0.3, sinks=2, question=False))
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
    cache = SelectCache(model, Streaming(), CacheBudget(budget=24, window=2, ratio=0.2))
    cache.end_of_thinking = first
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
        for chunk in (inputs["input_ids"][:, :9], inputs["input_ids"][:, 9:10], inputs["input_ids"][:, 10:]):
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
        said = model.generate(**inputs, past_key_values=together, max_new_tokens=NEW, do_sample=False)
        row = 0  # the one without padding: alone it is pruned at the same steps
        alone = SelectCache(model, policy, budget)
        one = {k: v[row : row + 1] for k, v in inputs.items()}
        assert torch.equal(
            model.generate(**one, past_key_values=alone, max_new_tokens=NEW, do_sample=False)[0], said[row]
        )


@pytest.mark.parametrize("granularity", ["model", "head"])
@pytest.mark.parametrize("policy", [*POLICIES, None], ids=lambda p: p.plugin_name() if p else "full")
def test_rows_join_and_leave_at_any_step(policy, granularity) -> None:
    model = tiny()
    budget = CacheBudget(budget=24, window=5, ratio=0.5, granularity=granularity) if policy else None
    prompts = [
        torch.randint(2, VOCABULARY, (1, n), generator=torch.Generator().manual_seed(n)) for n in (7, 12, 4, 9, 15)
    ]

    def alone(prompt):
        cache = SelectCache(model, policy or Full(), budget)
        return model.generate(prompt, past_key_values=cache, max_new_tokens=NEW, do_sample=False)[0, prompt.shape[1] :]

    with torch.no_grad():
        slots, said, waiting, running = SlotCache(model, policy or Full(), budget), {}, list(enumerate(prompts)), []
        for step in range(400):
            if waiting and step % 7 == 0:
                number, prompt = waiting.pop(0)
                one = SelectCache(model, policy or Full(), budget)
                logits = model(prompt, past_key_values=one).logits[0, -1]
                slots.join(one, seed=0)
                running.append(number)
                said[number] = [int(logits.argmax())]
            if not running:
                break
            ids = torch.tensor([[said[number][-1]] for number in running])
            positions = torch.tensor(slots.seen_tokens)[:, None]
            logits = model(ids, attention_mask=slots.mask(), position_ids=positions, past_key_values=slots).logits[
                :, -1
            ]
            for row in reversed(range(len(running))):
                said[running[row]].append(int(logits[row].argmax()))
                if len(said[running[row]]) == NEW:
                    slots.leave(row)
                    running[row] = running[-1]
                    running.pop()
    for number, prompt in enumerate(prompts):
        assert said[number] == alone(prompt).tolist()


def slots_of(model, policy, budget, prompts: int = 3) -> SlotCache:
    """A cache with rows of different lengths and seeds, after five steps."""
    slots = SlotCache(model, policy, budget)
    slots.end_of_thinking = 50
    with torch.no_grad():
        for row in range(prompts):
            one = SelectCache(model, policy, budget)
            prompt = torch.randint(2, 40, (1, 6 + row), generator=torch.Generator().manual_seed(row))
            model(prompt, past_key_values=one)
            slots.join(one, seed=5 + row)
        for step in range(5):
            feed(model, slots, [40 + step + row for row in range(prompts)])
    return slots


def feed(model, slots: SlotCache, tokens: list[int]) -> None:
    positions = torch.tensor(slots.seen_tokens)[:, None]
    ids = torch.tensor(tokens)[:, None]
    with torch.no_grad():
        model(ids, attention_mask=slots.mask(), position_ids=positions, past_key_values=slots)


def row_state(slots: SlotCache, row: int) -> list:
    length, seen = slots.lengths[row], slots.seen_tokens[row]
    by_token = [t[row, :seen].tolist() for t in (slots.ids, slots.protected, slots.padding)]
    facts = [length, seen, slots.held[row], slots.seeds[row].item(), slots.answering[row].item()]
    by_layer = []
    for layer in slots.pruned_layers:
        by_layer += [layer.keys[row, :, :length].tolist(), layer.values[row, :, :length].tolist()]
        by_layer += [layer.queries[row].tolist()] if layer.queries is not None else []
        by_layer += [layer.accumulated[row, :, :length].tolist()] if layer.accumulated is not None else []
    return [by_token, facts, slots.positions[:, row, :, :length].tolist(), by_layer]


@pytest.mark.parametrize("policy", [H2o(), Snapkv(queries=4, pool=1)], ids=lambda p: p.plugin_name())
def test_when_a_row_leaves_the_last_one_takes_its_number(policy) -> None:
    slots = slots_of(tiny(), policy, CacheBudget(budget=30, window=5, ratio=0.5))
    first, middle, last = (row_state(slots, row) for row in range(3))
    assert slots.seeds.tolist() == [5, 6, 7]
    slots.leave(0)
    assert [row_state(slots, row) for row in range(2)] == [last, middle]
    slots.leave(1)
    assert [row_state(slots, row) for row in range(len(slots.lengths))] == [last]
    assert first != last


def test_the_answer_of_each_row_is_never_evicted() -> None:
    model = tiny()
    slots = slots_of(model, Streaming(), CacheBudget(budget=24, window=2, ratio=0.2), prompts=2)
    feed(model, slots, [50, 3])  # the thinking of the first row ends
    end = slots.seen_tokens[0] - 1
    for _ in range(14):
        feed(model, slots, [3, 3])
    held = [set(slots.positions[0, row, 0, : slots.lengths[row]].tolist()) for row in range(2)]
    assert set(range(end, slots.seen_tokens[0])) <= held[0]
    assert not set(range(end + 1, slots.seen_tokens[1])) <= held[1]  # the second row is still thinking
    assert slots.answering.tolist() == [True, False]


def test_h2o_scores_move_with_their_tokens() -> None:
    """After a pruning, each column still has the attention that its own token received."""
    model, ids = tiny(), ragged(1)["input_ids"]
    full, pruned = (SelectCache(model, H2o(), budget) for budget in (None, CacheBudget(14, 4, 0.5, question=False)))
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
    with pytest.raises(UserError, match="beam search"):
        model.generate(**inputs, past_key_values=cache, max_new_tokens=5, num_beams=2, do_sample=False)
    cache = SelectCache(model, Streaming(), CacheBudget(budget=40, window=3, ratio=0.5))
    with pytest.raises(UserError, match="can't be cropped"):
        model.generate(**inputs, past_key_values=cache, max_new_tokens=9, prompt_lookup_num_tokens=3, do_sample=False)


# Scores worked out by hand


def view(**given) -> CacheView:
    """One row and one head of four columns, unless given; `queries` and `keys` as nested lists of D numbers."""
    keys = torch.tensor(given.pop("keys", [[0.0]] * 4))[None, None]
    n = keys.shape[2]
    queries = given.pop("queries", None)
    facts = {
        "layer": 0,
        "keys": keys,
        "values": keys,
        "queries": None if queries is None else torch.tensor(queries)[None],  # heads × w × D
        "accumulated": None,
        "scaling": 1.0,
        "positions": torch.arange(n)[None, None],
        "padding": torch.zeros(1, 1, n, dtype=torch.bool),
        "ids": torch.full((1, 1, n), 9),
        "features": None,
        "seen_tokens": n,
        "seeds": torch.zeros(1, dtype=torch.long),
    }
    return CacheView(**facts | given)


LOG2 = math.log(2.0)


def test_recent_queries_attend_as_worked_out_by_hand() -> None:
    # Keys of 0, log 2, 0, log 2 and queries of 1: weights of 1, 2, 1, 2 among the columns that a query may see.
    attention = view(keys=[[0.0], [LOG2], [0.0], [LOG2]], queries=[[[1.0], [1.0]]]).attention()
    assert attention.shape == (1, 1, 1, 2, 4)
    assert attention[0, 0, 0].tolist() == [
        pytest.approx([1 / 4, 2 / 4, 1 / 4, 0]),  # the query of position 2
        pytest.approx([1 / 6, 2 / 6, 1 / 6, 2 / 6]),
    ]
    padded = torch.tensor([[[True, False, False, False]]])
    attention = view(keys=[[0.0], [LOG2], [0.0], [LOG2]], queries=[[[1.0]]], padding=padded, scaling=2.0).attention()
    assert attention.flatten().tolist() == pytest.approx([0, 4 / 9, 1 / 9, 4 / 9])


def test_snapkv_averages_attention_over_queries_heads_and_neighbours() -> None:
    # Two query heads, one of which attends evenly; by head, then by query: position 2, position 3.
    given = view(keys=[[0.0], [LOG2], [0.0], [LOG2]], queries=[[[1.0], [1.0]], [[0.0], [0.0]]])
    received = [
        (1 / 4 + 1 / 6 + 1 / 3 + 1 / 4) / 4,
        (2 / 4 + 2 / 6 + 1 / 3 + 1 / 4) / 4,
        (1 / 4 + 1 / 6 + 1 / 3 + 1 / 4) / 4,
        (0 + 2 / 6 + 0 + 1 / 4) / 4,
    ]
    assert Snapkv(queries=2, pool=1).score(given).flatten().tolist() == pytest.approx(received)
    a, b, c, d = received
    pooled = [(a + b) / 2, (a + b + c) / 3, (b + c + d) / 3, (c + d) / 2]  # the ends have one neighbour
    assert Snapkv(queries=2, pool=3).score(given).flatten().tolist() == pytest.approx(pooled)


def test_last_query_is_the_attention_of_the_last_query() -> None:
    given = view(keys=[[0.0], [LOG2], [0.0], [LOG2]], queries=[[[1.0]], [[0.0]]])
    expected = [(1 / 6 + 1 / 4) / 2, (2 / 6 + 1 / 4) / 2, (1 / 6 + 1 / 4) / 2, (2 / 6 + 1 / 4) / 2]
    assert LastQuery().score(given).flatten().tolist() == pytest.approx(expected)


def test_sepllm_evicts_the_oldest_but_separators_last() -> None:
    given = view(ids=torch.tensor([[[3, 9, 9, 3, 9]]]), keys=[[0.0]] * 5, seen_tokens=20)
    given = dataclasses.replace(given, positions=torch.tensor([[[0, 4, 9, 12, 19]]]))
    assert Sepllm((3,)).score(given).flatten().tolist() == [20, 4, 9, 32, 19]
    # Even the oldest separator scores above the newest other token.
    assert Sepllm((3, 9)).score(given).flatten().tolist() == [20, 24, 29, 32, 39]


def test_rkv_spares_the_newest_of_near_duplicates() -> None:
    # Columns 0, 1 and 3 have the same key; column 2 is orthogonal to them.
    given = view(keys=[[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [3.0, 0.0]], queries=[[[0.0, 0.0]]])
    # Cosines to 0, 1 and 3 are 1, but each key's newest near-duplicate (3; for 3 itself, 1) isn't counted.
    similar = torch.tensor([[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]]).float().mean(0)
    redundancy = similar.softmax(0)
    assert Rkv(weight=0.0, pool=1).score(given).flatten().tolist() == pytest.approx((-redundancy).tolist())
    score = Rkv(weight=0.25, pool=1).score(given).flatten().tolist()
    assert score == pytest.approx((0.25 / 4 - 0.75 * redundancy).tolist())  # the query attends evenly
    # Below the threshold nothing is a near-duplicate, and all similarities count.
    assert Rkv(weight=0.0, pool=1, alike=1.5).score(given).flatten().tolist() == pytest.approx(
        (-torch.tensor([2 / 4, 2 / 4, 0, 2 / 4]).softmax(0)).tolist()
    )


def test_rkv_takes_the_largest_attention_of_a_group_and_of_neighbours() -> None:
    given = view(keys=[[0.0], [LOG2], [0.0], [0.0]], queries=[[[1.0]], [[0.0]]])
    # Heads attend (1, 2, 1, 1) / 5 and evenly: the larger are 1/4, 2/5, 1/4, 1/4.
    assert Rkv(weight=1.0, pool=1).score(given).flatten().tolist() == pytest.approx([0.25, 0.4, 0.25, 0.25])
    assert Rkv(weight=1.0, pool=3).score(given).flatten().tolist() == pytest.approx([0.4, 0.4, 0.4, 0.25])


def test_streaming_h2o_and_full() -> None:
    accumulated = torch.tensor([[[3.0, 1.0, 2.0, 0.5]]])
    assert Streaming().score(view()).flatten().tolist() == [0, 1, 2, 3]
    assert H2o().score(view(accumulated=accumulated)).tolist() == accumulated.tolist()
    assert Full().score(view()).flatten().tolist() == [0] * 4


def test_random_draws_by_seed_and_position() -> None:
    def scores(policy=Random(), **given) -> list[float]:  # noqa: B008
        return policy.score(view(keys=[[0.0]] * 50, **given)).flatten().tolist()

    assert scores() == scores()
    assert len(set(scores())) == 50
    assert scores(seeds=torch.ones(1, dtype=torch.long)) != scores()
    assert scores(Random(seed=1)) != scores()
    assert scores(layer=1) != scores()
    shifted = scores(positions=torch.arange(1, 51)[None, None])
    assert shifted[:-1] == scores()[1:]  # a token keeps its score when columns move


@pytest.mark.parametrize(
    ("budget", "length", "protected", "kept"),
    [
        (CacheBudget(100, 20, 0.5), 99, 10, None),  # not full yet
        (CacheBudget(100, 20, 0.5), 100, 10, 10 + 35),  # half of the 70 that may be evicted
        (CacheBudget(100, 20, 0.5), 120, 10, 10 + 45),
        (CacheBudget(100, 20, 0.33), 100, 0, 26),  # 26.4, rounded down
        (CacheBudget(100, 20, 1.0), 100, 10, 80),
        (CacheBudget(100, 20), 100, 10, None),  # at its budget, which it may hold
        (CacheBudget(100, 20), 101, 10, 80),
        (CacheBudget(100, 20), 101, 90, 90),  # more are protected than fit
    ],
)
def test_how_many_are_kept(budget, length, protected, kept) -> None:
    assert budget.kept(length, protected) == kept


def test_a_pruning_keeps_the_highest_scores_and_the_window() -> None:
    """The whole engine on one row: 12 tokens at a budget of 12, half of the 6 evictable ones are kept."""
    model, ids = tiny(), torch.tensor([[5, 3, 9, 9, 3, 9, 9, 3, 9, 9, 9, 9]])
    cache = SelectCache(model, Sepllm((3,)), CacheBudget(12, 4, 0.5, sinks=2, question=False))
    with torch.no_grad():
        model(ids, past_key_values=cache)
    assert cache.positions[0, 0, 0, : cache.lengths[0]].tolist() == [0, 1, 4, 6, 7, 8, 9, 10, 11]
    assert cache.held == [[12]]


def test_every_policy_is_tested() -> None:
    assert {p.plugin_name() for p in POLICIES} | {"full"} <= set(plugins.names("caches"))
