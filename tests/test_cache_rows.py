"""Rows of a cache join and leave at any step, and each is pruned as it would be alone."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from pruned import NEW, POLICIES, VOCABULARY, tiny

from ponder.core import Policy
from ponder.kvcache import CacheBudget, SelectCache, SlotCache
from ponder.policies.full import Full
from ponder.policies.h2o import H2o
from ponder.policies.snapkv import Snapkv
from ponder.policies.streaming import Streaming


@pytest.mark.parametrize(
    ("policy", "granularity", "allocation"),
    [
        *(
            (policy, granularity, "even")
            for policy in [*POLICIES, None]
            for granularity in ("model", "head")
        ),
        *(
            (H2o(), "head", "adakv"),
            (Snapkv(queries=6, pool=3), "head", "adakv"),
            (H2o(), "layer", "pyramid"),
        ),
    ],
    ids=lambda value: value.plugin_name() if isinstance(value, Policy) else value or "full",
)
def test_rows_join_and_leave_at_any_step(policy, granularity, allocation) -> None:
    model = tiny()
    budget = (
        CacheBudget(24, 5, 0.5, granularity=granularity, allocation=allocation) if policy else None
    )
    prompts = [
        torch.randint(2, VOCABULARY, (1, n), generator=torch.Generator().manual_seed(n))
        for n in (7, 12, 4, 9, 15)
    ]

    def alone(prompt):
        cache = SelectCache(model, policy or Full(), budget)
        return model.generate(prompt, past_key_values=cache, max_new_tokens=NEW, do_sample=False)[
            0, prompt.shape[1] :
        ]

    with torch.no_grad():
        slots, said, waiting, running = (
            SlotCache(model, policy or Full(), budget),
            {},
            list(enumerate(prompts)),
            [],
        )
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
            logits = model(
                ids, attention_mask=slots.mask(), position_ids=positions, past_key_values=slots
            ).logits[:, -1]
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
    slots = SlotCache(model, policy, budget, end_of_thinking=50)
    with torch.no_grad():
        for row in range(prompts):
            one = SelectCache(model, policy, budget)
            prompt = torch.randint(
                2, 40, (1, 6 + row), generator=torch.Generator().manual_seed(row)
            )
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
        by_layer += (
            [layer.accumulated[row, :, :length].tolist()] if layer.accumulated is not None else []
        )
    return [by_token, facts, slots.positions[:, row, :, :length].tolist(), by_layer]


@pytest.mark.parametrize(
    "policy",
    [*POLICIES, Snapkv(queries=30, pool=3)],
    ids=lambda p: f"{p.plugin_name()}-{p.queries}",
)
def test_rows_that_are_pruned_together_are_scored_apart(policy) -> None:
    """They reach the budget in the same step, after different numbers of tokens."""
    model, budget = tiny(), CacheBudget(20, 4, 0.5, sinks=1, question=False)
    texts = [
        torch.randint(2, VOCABULARY, (n,), generator=torch.Generator().manual_seed(n))
        for n in (32, 64)
    ]

    def read(row, tokens) -> SelectCache:
        cache = SelectCache(model, policy, budget)
        with torch.no_grad():
            model(texts[row][None, :20], past_key_values=cache)
            for token in texts[row][20:tokens]:
                model(token.view(1, 1), past_key_values=cache)
        return cache

    # the second has been pruned four times by then
    slots, starts = SlotCache(model, policy, budget), (20, 52)
    for row, start in enumerate(starts):
        slots.join(read(row, start), seed=0)
    assert slots.lengths[0] == slots.lengths[1]
    for step in range(12):
        feed(model, slots, [int(texts[row][start + step]) for row, start in enumerate(starts)])
    for row, text in enumerate(texts):
        alone = read(row, len(text))
        assert slots.seen_tokens[row] == alone.seen_tokens[0]
        held = [
            cache.positions[0, r, 0, : cache.lengths[r]].tolist()
            for cache, r in ((slots, row), (alone, 0))
        ]
        assert held[0] == held[1]


@pytest.mark.parametrize(
    "policy", [H2o(), Snapkv(queries=4, pool=1)], ids=lambda p: p.plugin_name()
)
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
    # the second row is still thinking
    assert not set(range(end + 1, slots.seen_tokens[1])) <= held[1]
    assert slots.answering.tolist() == [True, False]
