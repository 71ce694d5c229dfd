"""Cache policies: scores worked out by hand, and how many tokens a budget keeps."""

from __future__ import annotations

import dataclasses
import math
from functools import partial

import pytest

torch = pytest.importorskip("torch")

from pruned import tiny

from ponder.core import UserError
from ponder.kvcache import CacheBudget, CacheView, SelectCache
from ponder.kvcache.rope import frequencies
from ponder.policies.expected_attention import ExpectedAttention
from ponder.policies.full import Full
from ponder.policies.h2o import H2o
from ponder.policies.keydiff import Keydiff
from ponder.policies.knorm import Knorm
from ponder.policies.lagkv import Lagkv
from ponder.policies.last_query import LastQuery
from ponder.policies.random import Random
from ponder.policies.rkv import Rkv
from ponder.policies.sepllm import Sepllm
from ponder.policies.snapkv import Snapkv
from ponder.policies.streaming import Streaming
from ponder.policies.triattention import Triattention


def view(**given) -> CacheView:
    """One row and one head of four columns, unless given; `queries` and `keys` as nested lists of D
    numbers.
    """
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
    # Keys of 0, log 2, 0, log 2 and queries of 1: weights of 1, 2, 1, 2 among the columns that a
    # query may see.
    attention = view(keys=[[0.0], [LOG2], [0.0], [LOG2]], queries=[[[1.0], [1.0]]]).attention()
    assert attention.shape == (1, 1, 1, 2, 4)
    assert attention[0, 0, 0].tolist() == [
        pytest.approx([1 / 4, 2 / 4, 1 / 4, 0]),  # the query of position 2
        pytest.approx([1 / 6, 2 / 6, 1 / 6, 2 / 6]),
    ]
    padded = torch.tensor([[[True, False, False, False]]])
    attention = view(
        keys=[[0.0], [LOG2], [0.0], [LOG2]], queries=[[[1.0]]], padding=padded, scaling=2.0
    ).attention()
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
    # the ends have one neighbour
    pooled = [(a + b) / 2, (a + b + c) / 3, (b + c + d) / 3, (c + d) / 2]
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
    # Cosines to 0, 1 and 3 are 1, but each key's newest near-duplicate (3; for 3 itself, 1) isn't
    # counted.
    similar = torch.tensor([[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]]).float().mean(0)
    redundancy = similar.softmax(0)
    assert Rkv(weight=0.0, pool=1).score(given).flatten().tolist() == pytest.approx(
        (-redundancy).tolist()
    )
    score = Rkv(weight=0.25, pool=1).score(given).flatten().tolist()
    # the query attends evenly
    assert score == pytest.approx((0.25 / 4 - 0.75 * redundancy).tolist())
    # Below the threshold nothing is a near-duplicate, and all similarities count.
    assert Rkv(weight=0.0, pool=1, alike=1.5).score(given).flatten().tolist() == pytest.approx(
        (-torch.tensor([2 / 4, 2 / 4, 0, 2 / 4]).softmax(0)).tolist()
    )


def test_rkv_takes_the_largest_attention_of_a_group_and_of_neighbours() -> None:
    given = view(keys=[[0.0], [LOG2], [0.0], [0.0]], queries=[[[1.0]], [[0.0]]])
    # Heads attend (1, 2, 1, 1) / 5 and evenly: the larger are 1/4, 2/5, 1/4, 1/4.
    assert Rkv(weight=1.0, pool=1).score(given).flatten().tolist() == pytest.approx(
        [0.25, 0.4, 0.25, 0.25]
    )
    assert Rkv(weight=1.0, pool=3).score(given).flatten().tolist() == pytest.approx(
        [0.4, 0.4, 0.4, 0.25]
    )


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


def test_random_keeps_a_uniform_sample_of_the_text_or_redrawn_mostly_recent_tokens() -> None:
    def mean_position(policy: Random) -> float:
        """Of the 40 tokens that are kept of 1,600, pruned 40 times from 80 to 40."""
        kept = torch.arange(40)
        for seen in range(80, 1601, 40):
            positions = torch.cat([kept, torch.arange(seen - 40, seen)])
            scores = policy.score(
                view(keys=[[0.0]] * 80, positions=positions[None, None], seen_tokens=seen)
            )
            kept = positions[scores.flatten().topk(40).indices.sort().values]
        return float(kept.float().mean())

    assert 650 < mean_position(Random()) < 950  # uniform: 800 ± 73
    # half of them survive each pruning: 1,540 ± 10
    assert mean_position(Random(redraw=True)) > 1500
    assert Random(redraw=True).identity() == {"name": "random", "redraw": True}
    # Two rows of different lengths that are pruned together are scored as each alone.
    rows = [torch.arange(at, at + 4) for at in (0, 40)]
    both = Random(redraw=True).score(
        dataclasses.replace(
            view(positions=torch.stack(rows)[:, None]), seeds=torch.zeros(2, dtype=torch.long)
        )
    )
    alone = [
        Random(redraw=True).score(view(positions=row[None, None], seen_tokens=int(row[-1]) + 1))
        for row in rows
    ]
    assert torch.equal(both, torch.cat(alone))
    assert Random().identity() == {"name": "random"}


def test_knorm_is_minus_the_length_of_the_key() -> None:
    assert Knorm().score(view(keys=[[3.0, 4.0], [0.0, 1.0]])).flatten().tolist() == [-5, -1]


def test_keydiff_is_minus_the_cosine_to_the_average_direction() -> None:
    # Scaled to length 1 the keys add up to (3, 1); padding doesn't count.
    keys = [[9.0, -9.0], [1.0, 0.0], [0.0, 2.0], [5.0, 0.0], [1.0, 0.0]]
    padding = torch.tensor([[[True, False, False, False, False]]])
    score = Keydiff().score(view(keys=keys, padding=padding)).flatten().tolist()
    assert score[1:] == pytest.approx(
        [-3 / math.sqrt(10), -1 / math.sqrt(10), -3 / math.sqrt(10), -3 / math.sqrt(10)]
    )


def test_lagkv_ranks_each_block_by_the_range_of_the_next() -> None:
    # The last block's channels range over 0 to 1 and 0 to 2, so the first two keys are (0, 1) and
    # (1, 1) of that range: deviations of 0.71 and 0. The newest block is kept longest, its latest
    # token last.
    keys = [[0.0, 2.0], [1.0, 2.0], [0.0, 0.0], [1.0, 2.0]]
    assert Lagkv(lag=2).score(view(keys=keys)).flatten().tolist() == pytest.approx(
        [1, 0.5, 1.5, 1.75]
    )
    # Values count as much as keys do: these outweigh the difference between the keys.
    values = torch.tensor([[[[0.5, 1.0], [0.0, 8.0], [0.0, 0.0], [1.0, 2.0]]]])
    score = Lagkv(lag=2).score(view(keys=keys, values=values)).flatten().tolist()
    assert score[:2] == pytest.approx([0.5, 1])


@pytest.mark.parametrize("columns", [5, 8, 9])
def test_lagkv_gives_padded_rows_the_scores_of_the_same_row_alone(columns) -> None:
    keys = torch.randn(columns, 4, generator=torch.Generator().manual_seed(3)).tolist()
    alone = Lagkv(lag=3).score(view(keys=keys)).flatten().tolist()
    pads = 4
    positions = torch.arange(columns + pads)[None, None] - pads
    padded = view(
        keys=[[7.0] * 4] * pads + keys,
        padding=positions < 0,
        positions=positions,
        seen_tokens=columns,
    )
    assert Lagkv(lag=3).score(padded).flatten().tolist()[pads:] == pytest.approx(alone)


def test_expected_attention_rotates_recent_queries_onward() -> None:
    # A query of 1 (as a complex number), rotated by a quarter turn and by half a turn: their mean
    # is (i - 1) / 2.
    quarter = torch.tensor([math.pi / 2])
    given = view(keys=[[1.0, 0.0], [0.0, 1.0]], queries=[[[1.0, 0.0]]], frequencies=quarter)
    weights = torch.tensor([-0.5, 0.5]).softmax(0).tolist()
    assert ExpectedAttention(ahead=2).score(given).flatten().tolist() == pytest.approx(weights)
    # Times the value's length.
    given = dataclasses.replace(given, values=torch.tensor([[[[6.0, 8.0], [0.0, 1.0]]]]))
    assert ExpectedAttention(ahead=2).score(given).flatten().tolist() == pytest.approx(
        [10 * weights[0], weights[1]]
    )


def test_expected_attention_grows_with_half_the_variance_of_the_logits() -> None:
    # No rotation; the queries give the first key 2 and -2: mean 0, variance 4, so exp(2) against
    # exp(0).
    queries = [[[1.0, 0.0], [-1.0, 0.0]]]
    given = view(keys=[[2.0, 0.0], [0.0, 2.0]], queries=queries, frequencies=torch.zeros(1))
    e2 = math.exp(2)
    assert ExpectedAttention().score(given).flatten().tolist() == pytest.approx(
        [2 * e2 / (1 + e2), 2 / (1 + e2)]
    )
    assert ExpectedAttention(covariance=False).score(given).flatten().tolist() == pytest.approx(
        [1, 1]
    )


def test_triattention_is_the_centre_s_logit_and_the_scatter_times_the_key_s_length() -> None:
    # The older query, a quarter turn on, equals the last: both are i. One token further on, the
    # centre is i · i = -1.
    quarter = torch.tensor([math.pi / 2])
    given = view(
        keys=[[1.0, 0.0], [0.0, 1.0]], queries=[[[1.0, 0.0], [0.0, 1.0]]], frequencies=quarter
    )
    assert Triattention(doublings=0).score(given).flatten().tolist() == pytest.approx(
        [-1, 0], abs=1e-6
    )
    # Two further on it is -i; distances of 1 and 2 together give (-1 - i) / 2.
    assert Triattention(doublings=1).score(given).flatten().tolist() == pytest.approx(
        [-0.5, -0.5], abs=1e-6
    )
    # Queries of 1 and -1 have their centre at 0 and scatter by 1.
    given = view(
        keys=[[3.0, 4.0], [0.0, 1.0]],
        queries=[[[1.0, 0.0], [-1.0, 0.0]]],
        frequencies=torch.zeros(1),
    )
    assert Triattention().score(given).flatten().tolist() == pytest.approx([5, 1])


def test_future_queries_are_where_the_model_itself_would_rotate_them() -> None:
    from transformers import LlamaConfig, LlamaModel
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    model = LlamaModel(
        LlamaConfig(vocab_size=8, hidden_size=32, num_hidden_layers=1, num_attention_heads=4)
    )
    query = torch.randn(1, 4, 1, 8, generator=torch.Generator().manual_seed(1)).expand(
        -1, -1, 12, -1
    )
    rotated, _ = apply_rotary_pos_emb(
        query, query, *model.rotary_emb(query, torch.arange(12)[None])
    )
    given = dataclasses.replace(
        view(keys=[[0.0] * 8] * 6), queries=rotated[:, :, 3:6], frequencies=frequencies(model)
    )
    # two query heads per key-value head
    given = dataclasses.replace(given, keys=torch.zeros(1, 2, 6, 8))
    ahead = given.future_queries(torch.tensor([4]))  # after position 5
    assert ahead.shape == (1, 2, 2, 3, 8)
    expected = rotated[0, :, 9].view(2, 2, 1, 8).expand(-1, -1, 3, -1)
    assert torch.allclose(ahead[0], expected, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_frequencies_of_a_model_in_half_precision(dtype) -> None:
    model = tiny().to(dtype)
    for policy in (ExpectedAttention(queries=6, ahead=4), Triattention(queries=6)):
        cache = SelectCache(model, policy, CacheBudget(12, 3, 0.5, sinks=1, question=False))
        with torch.no_grad():
            model(torch.arange(2, 22)[None], past_key_values=cache)
        assert cache.lengths[0] < 20


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (partial(Snapkv, queries=0), "`snapkv` needs at least one recent query, not 0"),
        (partial(Triattention, queries=-1), "at least one recent query, not -1"),
        (partial(Snapkv, pool=4), "odd number of columns, not 4"),
        (partial(Rkv, pool=0), "odd number of columns, not 0"),
    ],
)
def test_wrong_settings_of_policies(make, message) -> None:
    with pytest.raises(UserError, match=message):
        make()


def test_models_that_rotate_otherwise_have_no_frequencies() -> None:
    from transformers import CohereConfig, CohereModel, GPT2Config, GPT2Model, PhiConfig, PhiModel

    small = {
        "vocab_size": 8,
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "pad_token_id": 0,
    }
    small |= {"bos_token_id": 1, "eos_token_id": 2}
    assert frequencies(CohereModel(CohereConfig(**small))) is None  # pairs of neighbours
    assert frequencies(PhiModel(PhiConfig(**small, partial_rotary_factor=0.5))) is None
    assert (
        frequencies(
            GPT2Model(
                GPT2Config(
                    n_embd=32, n_layer=1, n_head=4, vocab_size=8, bos_token_id=1, eos_token_id=2
                )
            )
        )
        is None
    )


@pytest.mark.parametrize(
    "policy",
    [
        Knorm(),
        Keydiff(),
        Lagkv(lag=4),
        ExpectedAttention(queries=16, ahead=8),
        Triattention(queries=16),
    ],
    ids=lambda policy: policy.plugin_name(),
)
def test_a_padded_row_has_the_scores_that_it_has_alone(policy) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    small = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, num_hidden_layers=2, **small)).eval()
    ids, pads = torch.randint(3, 64, (2, 18)), 6
    mask = torch.ones_like(ids)
    mask[0, :pads] = 0

    def scores(ids, mask):
        cache = SelectCache(model, policy, CacheBudget(1000, 3, granularity="head"))
        with torch.no_grad():
            model(
                ids,
                attention_mask=mask,
                position_ids=(mask.cumsum(1) - 1).clamp(min=0),
                past_key_values=cache,
            )
        n = ids.shape[1]
        view = cache._view(
            cache.pruned_layers[1], slice(0, len(ids)), cache.positions[1, :, :, :n], n
        )
        return policy.score(view)[0]

    alone, padded = scores(ids[:1, pads:], mask[:1, pads:]), scores(ids, mask)[:, pads:]
    if isinstance(policy, Lagkv):  # scores above 1 give the order of the newest block by position
        alone, padded = (part[..., : -policy.lag] for part in (alone, padded))
    assert alone.std() > 0
    assert torch.allclose(padded, alone, atol=1e-5)


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
        (
            CacheBudget(100, 20, 0.5, ratio_of="all"),
            100,
            10,
            40,
        ),  # half of the 80 before the window, 10 protected ones included
        (CacheBudget(100, 20, 0.5, ratio_of="all"), 100, 60, 60),
        (CacheBudget(100, 20, 0.5, ratio_of="all"), 99, 10, None),
    ],
)
def test_how_many_are_kept(budget, length, protected, kept) -> None:
    assert budget.kept(length, protected) == kept
