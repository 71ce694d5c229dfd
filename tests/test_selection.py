"""Selection: what is kept and why, up to which limit, and with lengths matched, against plain
computations.
"""

from __future__ import annotations

import random
import re

import msgspec
import numpy as np
import pytest
from scipy.stats import spearmanr
from scored_traces import WORDS, edited, kept, scored, text

from ponder.core import Problem, UserError
from ponder.traces import Trace
from ponder.traces.selection import Choice, Scored, matched, rank_correlation, select, ties

# Ranking and limits


def test_the_best_are_kept() -> None:
    traces = [
        scored("c", 0.5),
        scored("a", 0.7),
        scored("d", 0.9),
        scored("b", 0.6),
        scored("e", None),
    ]
    traces.append(scored("f", float("nan")))
    found = select(traces, Choice(top=3))
    assert [(one.id, one.rank, one.index, one.score) for one in found.kept] == [
        ("d", 1, 2, 0.9), ("a", 2, 1, 0.7), ("b", 3, 3, 0.6)
    ]  # fmt: skip
    assert found.counts == {"unscored": 2, "beyond the top 3": 1}
    assert found.kept[1].reason == "score ranks 2 of 4"
    assert kept(reversed(traces), top=3) == ["d", "a", "b"]


def test_ties_go_by_the_seed_and_not_by_the_order_or_the_id() -> None:
    """Saturated scores: forty right traces, the longer the closer to 1, and ten wrong ones."""
    traces = [scored(f"{n:02}", 0.995 + n / 10_000, text(n, 40 + n)) for n in range(40)]
    traces += [scored(f"wrong{n}", n / 20) for n in range(10)]
    assert kept(traces, top=5) == ["39", "38", "37", "36", "35"]
    drawn = [kept(traces, top=5, tolerance=0.01, seed=seed) for seed in range(40)]
    assert drawn[0] == kept(reversed(traces), top=5, tolerance=0.01)
    every = [name for names in drawn for name in names]
    assert not [name for name in every if name.startswith("wrong")]
    # each of the forty may be drawn, and few are not in forty draws of five
    assert len(set(every)) > 35
    assert abs(np.mean([int(name) for name in every]) - 19.5) < 3  # and none before the others
    assert kept(traces, top=42, tolerance=0.01)[40:] == ["wrong9", "wrong8"]
    found = select(traces, Choice(top=5, tolerance=0.01))
    assert found.tied == 40
    assert "40  traces tie with the last one kept; kept scores: 0.99" in found.table()
    # Samples of one problem share its id, and have lots of their own.
    same = [scored("p", 1.0, text(n), question="?") for n in range(30)]
    picks = {
        tuple(sorted(one.index for one in select(same, Choice(top=3, seed=seed)).kept))
        for seed in range(9)
    }
    assert len(picks) > 6


def test_a_tie_reaches_from_its_best_and_no_further() -> None:
    """Otherwise a chain of small differences would tie the best with the worst."""
    assert ties([0.1, 0.9, 0.8, 0.75, 0.5, 0.45], 0.1) == [0.1, 0.9, 0.9, 0.75, 0.5, 0.5]
    assert ties([0.3, 0.3, 0.2], 0.0) == [0.3, 0.3, 0.2]


def test_one_trace_per_problem() -> None:
    """Each problem's first by score or length; the problems at random, so that easy ones have no
    advantage.
    """
    traces = [
        scored(f"{n}{k}", score, text(f"{n}{k}", length), f"problem {n}?", tokens=length)
        for n in range(12)
        for k, score, length in (
            ("long", 0.9 + n / 1000, 90 + n),
            ("short", 0.8, 30 + n),
            ("wrong", 0.1, 10),
        )
    ]
    best = kept(traces, per_problem=True)
    assert sorted(best) == sorted(f"{n}long" for n in range(12))
    assert best[:4] != kept(traces, per_problem=True, seed=1)[:4]
    assert best[:4] == kept(reversed(traces), per_problem=True, top=4)
    short = kept(traces, by="shortest", threshold=0.5, per_problem=True)
    assert sorted(short) == sorted(f"{n}short" for n in range(12))
    assert short[:4] != [f"{n}short" for n in range(4)]
    found = select(traces, Choice(by="shortest", threshold=0.5, per_problem=True))
    assert found.counts == {"below the threshold": 12, "beyond 1 of its problem": 12}
    assert found.kept[0].reason == "is shortest of its problem's traces"
    # A problem's id counts, not the text of the question.
    task = [Problem(name, 1, ("Add.",)) for name in "ab"]
    given = [
        Scored(Trace("Add.", text(n), "so", extra={"problem": task[n % 2]}), n / 4)
        for n in range(4)
    ]
    assert sorted(one.index for one in select(given, Choice(per_problem=True)).kept) == [2, 3]


def test_a_threshold_takes_all_above_it() -> None:
    traces = [scored("a", 0.7), scored("b", 0.2), scored("c", 0.5)]
    found = select(traces, Choice(threshold=0.5))
    assert [one.id for one in found.kept] == ["a", "c"]
    assert found.counts == {"below the threshold": 1}


def test_topics_and_teachers_have_their_share() -> None:
    traces = [
        scored(f"{topic}{n}", n / 10, topic=topic, teacher=f"t{n % 2}")
        for topic in "xy"
        for n in range(4)
    ]
    assert sorted(kept(traces, per_topic=1)) == ["x3", "y3"]
    assert [one[1] for one in kept(traces, per_teacher=1)] == ["3", "2"]  # the best of t1 and of t0
    assert [one[1] for one in kept(traces, top=3, per_topic=2)] == ["3", "3", "2"]
    found = select(traces, Choice(teacher="t0", per_topic=1))
    assert sorted(one.id for one in found.kept) == ["x2", "y2"]
    assert found.counts == {"another teacher": 4, "beyond 1 of its topic": 2}


def test_baselines_need_no_score() -> None:
    traces = [scored(f"{n:02}", None, text(n, 20 + n), tokens=20 + n) for n in range(40)]
    assert kept(traces, by="longest", top=3) == ["39", "38", "37"]
    assert kept(traces, by="shortest", top=2) == ["00", "01"]
    assert kept(traces, by="all") == [f"{n:02}" for n in range(40)]
    first, second = kept(traces, by="random", top=10), kept(traces, by="random", top=10, seed=1)
    assert first == kept(traces, by="random", top=10)
    assert first[:5] == kept(traces, by="random", top=5)
    assert sorted(first) != sorted(second)
    with pytest.raises(UserError, match="no trace has a score"):
        select(traces, Choice(top=1))


def test_random_draws_each_of_many_samples_of_a_problem_alike() -> None:
    """Samples of one problem share its id; they must not come in a lump."""
    traces = [scored(f"p{n}", None, text(100 * n + k)) for n in range(10) for k in range(10)]
    for seed in range(5):
        assert len(set(kept(traces, by="random", top=20, seed=seed))) > 4


def test_an_equal_budget_of_tokens() -> None:
    traces = [scored(f"{n}", n / 10, tokens=10 * n) for n in range(1, 8)]
    for by in ("reward", "longest", "shortest", "random"):
        found = select(traces, Choice(by=by, budget_tokens=100))
        assert found.tokens == sum(10 * int(one.id) for one in found.kept) <= 100
        assert found.counted_by == "traces"
    found = select(traces, Choice(budget_tokens=100))
    # 70, and the next would make 130: the order isn't left for a fit
    assert [one.id for one in found.kept] == ["7"]
    assert found.counts == {"beyond the token budget": 6}


def test_tokens_are_estimated_for_all_or_none() -> None:
    traces = [scored("a", 1.0, "word " * 40, tokens=7), scored("b", 0.5, "因此我们得到答案")]
    found = select(traces, Choice())
    assert found.counted_by == "estimate"
    assert [one.tokens for one in found.kept] == [round((200 + 4) / 4), round((3 * 8 + 4) / 4)]


def test_an_interval_is_the_inequality_that_it_solves() -> None:
    pytest.importorskip("math_verify")
    trace = Trace("Where?", text(1), answer="It is \\boxed{(1,2)}.", gold="1 < x < 2", id="a")
    assert kept([Scored(trace, 0.5)], right=True) == ["a"]


def test_right_ones_only() -> None:
    given = {"answer": "So it is \\boxed{7}."}
    traces = [
        Scored(Trace(f"{n}?", text(n), **{**given, **more}, id=str(n)), 0.5)
        for n, more in enumerate(
            [
                {"correct": True},
                {"correct": False, "gold": "7"},
                {"gold": "7"},
                {"gold": 7.0},
                {"gold": "8"},
                {"gold": "We add, and get \\boxed{7}."},
                {},
                {"gold": ["7"]},
                {"gold": "7", "answer": ""},
            ]
        )
    ]
    found = select(traces, Choice(right=True))
    assert sorted(one.id for one in found.kept) == ["0", "2", "3", "5"]
    assert found.counts == {"wrong": 3, "no reference answer to check it against": 2}


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"top": 0}, "top must be at least 1"),
        ({"alike": 1.5}, "alike must be above 0 and at most 1"),
        ({"overlap": 0.0}, "overlap must be above 0"),
        ({"min_run": 0}, "min_run must be at least 1"),
        ({"tolerance": -0.1}, "tolerance is a difference of two scores, not -0.1"),
        ({"by": "longest", "match_length": True}, "match_length ranks by reward"),
        ({"teacher": "r1o"}, "did you mean `r1`"),
        ({"per_topic": 2}, "no trace has a topic"),
        ({"without": ("tens",)}, "did you mean `tents`"),
        ({"without": ("tents",)}, "name a size, tents:16"),
        ({"without": ("tents:a",)}, "doesn't name evaluation problems"),
        ({"without": ("jsonl",)}, "needs settings"),
        ({"without": ("none.jsonl",)}, "can't read none.jsonl"),
    ],
)
def test_mistakes(how, message) -> None:
    with pytest.raises(UserError) as error:
        select([scored("a", 1.0, teacher="r1")], Choice(**how))
    assert message in str(error.value)


def test_no_traces() -> None:
    with pytest.raises(UserError, match="there are no traces"):
        select([], Choice())


def test_a_choice_reads_from_toml() -> None:
    table = {"by": "random", "top": 5, "without": ["math500", "tents:36"], "match_length": False}
    assert msgspec.convert(table, Choice) == Choice(
        by="random", top=5, without=("math500", "tents:36")
    )


def test_the_rules_of_a_choice_are_those_that_apply() -> None:
    asked, other = WORDS[:20], WORDS[100:]
    traces = [scored("a", 1.0, question=" ".join([*asked[:9], *other[:11]]))]
    problem = [Problem("", 0, (" ".join(asked),))]
    assert len(select(traces, Choice(), problem).kept) == 1
    assert select(traces, Choice(overlap=0.4), problem).counts == {"in the evaluation set": 1}
    assert len(select(traces, Choice(overlap=0.4, min_run=10), problem).kept) == 1
    half = [
        scored("a", 0.9, text(1, 100)),
        scored("b", 0.5, edited(text(1, 100), 7), scored("a", 1.0).trace.question),
    ]
    assert len(kept(half)) == 2
    assert len(kept(half, alike=0.4)) == 1


# Length


def test_a_selection_by_length_is_none_once_lengths_are_matched() -> None:
    rng = random.Random(3)
    lengths = [int(rng.lognormvariate(7, 1)) + 10 for _ in range(2000)]
    traces = [
        scored(f"{n:04}", float(tokens), str(n), f"{n}?", tokens=tokens)
        for n, tokens in enumerate(lengths)
    ]
    mean = sum(lengths) / len(lengths)
    plain = select(traces, Choice(top=200, keep_duplicates=True))
    assert plain.with_length == pytest.approx((1.0, 1.0))
    assert plain.tokens / 200 > 2.5 * mean
    even = select(traces, Choice(top=200, keep_duplicates=True, match_length=True))
    assert even.with_length[0] == pytest.approx(1.0)
    assert abs(even.with_length[1]) < 0.01
    assert even.tokens / 200 < 1.15 * mean  # a mean of 200 such lengths strays by a tenth
    assert even.tokens_before == pytest.approx(mean)


def test_the_table_says_how_score_and_length_go_together() -> None:
    traces = [scored(f"{n}", float(n), text(n), f"{n}?", tokens=10 + n) for n in range(20)]
    line = "1.00  rank correlation of score and length"
    assert select(traces, Choice(top=5)).table().splitlines()[-1].endswith(line)
    matched = select(traces, Choice(top=5, match_length=True)).table().splitlines()[-1]
    assert re.search(re.escape(line) + r", -?0\.\d\d after matching lengths$", matched)
    assert "rank correlation" not in select(traces, Choice(top=5, by="random")).table()


def test_what_is_good_for_its_length_is_found() -> None:
    rng = random.Random(4)
    lengths = [int(rng.lognormvariate(7, 1)) + 10 for _ in range(2000)]
    good = [rng.random() < 0.1 for _ in lengths]
    scores = [
        np.log(tokens) + 0.3 * is_good + rng.gauss(0, 0.05)
        for tokens, is_good in zip(lengths, good, strict=True)
    ]
    best = np.argsort(matched(scores, lengths))[-200:]
    assert np.mean([good[n] for n in best]) > 0.85
    assert np.mean([good[n] for n in np.argsort(scores)[-200:]]) < 0.3
    assert np.mean([lengths[n] for n in best]) < 1.2 * np.mean(lengths)


def test_lengths_are_matched_within_a_teacher() -> None:
    """One teacher is longer and always scores higher; each is ranked among its own traces of
    similar length.

    Ranked together, the other teacher would be kept only at lengths that it alone has.
    """
    rng = random.Random(5)
    traces = []
    for n in range(400):
        long = n % 2
        tokens = rng.randrange(100, 200) + 50 * long
        name, good = f"{n:03}", rng.random()
        traces.append(
            scored(name, good + 5 * long, name, f"{n}?", tokens=tokens, teacher=f"t{long}")
        )
    found = select(traces, Choice(per_teacher=20, match_length=True, keep_duplicates=True))
    for teacher in (0, 1):
        chosen = [one.score - 5 * teacher for one in found.kept if int(one.id) % 2 == teacher]
        assert len(chosen) == 20
        assert np.mean(chosen) > 0.85
        lengths = [one.tokens for one in found.kept if int(one.id) % 2 == teacher]
        # where both teachers have traces
        assert sum(150 <= tokens < 200 for tokens in lengths) >= 5


@pytest.mark.parametrize("count", [1, 2, 7, 150])
def test_matched_against_a_plain_count(count) -> None:
    rng = random.Random(count)
    lengths = [rng.randrange(40) for _ in range(count)]
    scores = [rng.randrange(6) / 5 for _ in range(count)]
    order = sorted(range(count), key=lambda n: lengths[n])
    reach = max(1, count // 20)
    for at, n in enumerate(order):
        half = min(reach, at, count - 1 - at)
        around = [scores[m] for m in order[at - half : at + half + 1]]
        below = sum(s < scores[n] for s in around) + sum(s == scores[n] for s in around) / 2
        assert matched(scores, lengths)[n] == pytest.approx(below / len(around))


def test_rank_correlation_is_spearmans() -> None:
    rng = random.Random(8)
    left = [rng.randrange(12) for _ in range(60)]
    right = [value + rng.randrange(9) for value in left]
    assert rank_correlation(left, right) == pytest.approx(spearmanr(left, right).statistic)
    assert rank_correlation([1, 1, 1], [1, 2, 3]) == 0.0
