"""Selection: what is kept and why; duplicates, evaluation problems and lengths against plain computations."""

from __future__ import annotations

import json
import random
import tracemalloc
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np
import pytest
from scipy.stats import spearmanr

from ponder.core import Problem, UserError
from ponder.rewards.oracle import Oracle
from ponder.tasks.chain_sum import ChainSum
from ponder.traces import Trace, read
from ponder.traces.contamination import EvaluationSet, problems
from ponder.traces.duplicates import FingerprintIndex, bands, fingerprint
from ponder.traces.length_matching import matched, rank_correlation
from ponder.traces.ngrams import ngrams, words
from ponder.traces.score_file import Scoring
from ponder.traces.select_file import Selecting
from ponder.traces.selection import Choice, Scored, select

# Words that don't repeat, so that a trace made of them is like no other.
WORDS = [a + b + c for a in "bdfgklmnprst" for b in "aeiou" for c in "bdfgklmnprst"]


def text(seed: int | str, count: int = 80) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=count))


def scored(name: str, score: float | None, said: str = "", question: str = "", **more) -> Scored:
    """A trace like no other, where nothing else is said."""
    question, said = question or f"{name}: {text(name, 12)}?", said or text(f"{name} thinks")
    return Scored(Trace(question, said, f"so {name}", id=name, **more), score)


def kept(traces, **how) -> list[str]:
    return [one.id for one in select(traces, Choice(**how)).kept]


# Ranking and limits


def test_the_best_are_kept_and_equals_go_by_id() -> None:
    traces = [scored("c", 0.5), scored("a", 0.5), scored("d", 0.9), scored("b", 0.5), scored("e", None)]
    traces.append(scored("f", float("nan")))
    found = select(traces, Choice(top=3))
    assert [(one.id, one.rank, one.index, one.score) for one in found.kept] == [
        ("d", 1, 2, 0.9), ("a", 2, 1, 0.5), ("b", 3, 3, 0.5)
    ]  # fmt: skip
    assert found.counts == {"unscored": 2, "beyond the top 3": 1}
    assert found.kept[1].reason == "score ranks 2 of 4"
    assert kept(reversed(traces), top=3) == ["d", "a", "b"]


def test_a_threshold_takes_all_above_it() -> None:
    traces = [scored("a", 0.7), scored("b", 0.2), scored("c", 0.5)]
    found = select(traces, Choice(threshold=0.5))
    assert [one.id for one in found.kept] == ["a", "c"]
    assert found.counts == {"below the threshold": 1}


def test_topics_and_teachers_have_their_share() -> None:
    traces = [scored(f"{topic}{n}", n / 10, topic=topic, teacher=f"t{n % 2}") for topic in "xy" for n in range(4)]
    assert kept(traces, per_topic=1) == ["x3", "y3"]
    assert kept(traces, per_teacher=1) == ["x3", "x2"]  # the best of t1 and of t0
    assert kept(traces, top=3, per_topic=2) == ["x3", "y3", "x2"]
    found = select(traces, Choice(teacher="t0", per_topic=1))
    assert [one.id for one in found.kept] == ["x2", "y2"]
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
    assert [one.id for one in found.kept] == ["7"]  # 70, and the next would make 130: the order isn't left for a fit
    assert found.counts == {"beyond the token budget": 6}


def test_tokens_are_estimated_for_all_or_none() -> None:
    traces = [scored("a", 1.0, "word " * 40, tokens=7), scored("b", 0.5, "因此我们得到答案")]
    found = select(traces, Choice())
    assert found.counted_by == "estimate"
    assert [one.tokens for one in found.kept] == [round((200 + 4) / 4), round((3 * 8 + 4) / 4)]


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
    assert [one.id for one in found.kept] == ["0", "2", "3", "5"]
    assert found.counts == {"wrong": 3, "no reference answer to check it against": 2}


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"top": 0}, "top must be at least 1"),
        ({"alike": 1.5}, "alike must be above 0 and at most 1"),
        ({"overlap": 0.0}, "overlap must be above 0"),
        ({"min_run": 0}, "min_run must be at least 1"),
        ({"by": "longest", "match_length": True}, "match_length ranks by reward"),
        ({"teacher": "r2"}, "did you mean `r1`"),
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
    assert msgspec.convert(table, Choice) == Choice(by="random", top=5, without=("math500", "tents:36"))


# Copies


def edited(said: str, changes: int, seed: int = 0) -> str:
    found, rng = said.split(), random.Random(seed)
    for at in rng.sample(range(len(found)), changes):
        found[at] = f"new{at}"
    return " ".join(found)


def test_the_better_of_two_copies_stays() -> None:
    said, question = text(1), f"What is {text(2, 10)}?"
    traces = [
        scored("worse", 0.5, said, question, topic="t"),
        scored("better", 0.9, edited(said, 1), question),
        scored("same", 0.9, edited(said, 1).upper().replace(" ", "\n "), question),
        scored("other", 0.1, text(3), question),  # another way to solve the same
    ]
    traces = [Scored(Trace(s.trace.question, s.trace.thinking, "so", id=s.trace.id), s.score) for s in traces]
    found = select(traces, Choice())
    assert [one.id for one in found.kept] == ["better", "other"]
    assert [(d.id, d.reason, d.of) for d in found.dropped] == [
        ("same", "duplicate", "better"), ("worse", "near-duplicate", "better")
    ]  # fmt: skip
    assert len(kept(traces, keep_duplicates=True)) == 4
    assert "worse of better" in found.table()


def test_what_differs_in_little_but_means_another_thing_is_no_copy() -> None:
    pairs = [
        ("Solve x + 1 = 0.", "x = -1"),
        ("Solve x - 1 = 0.", "x = 1"),
        ("What is 3 + 4?", "7"),
        ("And 5 + 2?", "7"),
    ]
    assert len(kept([Scored(Trace(q, "", a), 1.0) for q, a in pairs])) == 4
    rules = text(5, 300)  # a page of rules in every prompt
    assert len(kept([Scored(Trace(f"{rules} {n}", text(n, 30), "so"), 1.0) for n in range(20)])) == 20


def test_copies_in_a_script_without_spaces() -> None:
    said = "首先我们把三个数字加在一起然后除以二得到平均值再检查一次结果是否正确因此答案等于四十二并且没有其他解"
    other = "这个问题可以用几何方法解决画一条从顶点到底边的垂线利用勾股定理求出高度最后计算面积得到二十四平方米"
    traces = [Scored(Trace("求解", said, a, id=a), s) for a, s in (("好", 0.9), ("对", 0.5))]
    traces.append(Scored(Trace("求解", other, "好", id="else"), 0.1))
    found = select(traces, Choice())
    assert [one.id for one in found.kept] == ["好", "else"]
    assert found.counts == {"near-duplicate": 1}


def shingles(said: str) -> set[tuple[str, ...]]:
    found = said.split()
    return {tuple(found[n : n + 5]) for n in range(len(found) - 4)}


@pytest.mark.parametrize("length", [40, 400])  # fewer runs than places, and more
def test_prints_agree_as_often_as_jaccard_says(length) -> None:
    for changes in (0.01, 0.03, 0.1):
        exact, printed = [], []
        for seed in range(30):
            left = text(seed, length)
            right = edited(left, max(1, int(changes * length)), seed)
            a, b = shingles(left), shingles(right)
            exact.append(len(a & b) / len(a | b))
            prints = [fingerprint(Trace("", said, "")).bins for said in (left, right)]
            printed.append((prints[0] == prints[1]).mean())
        assert np.mean(printed) == pytest.approx(np.mean(exact), abs=0.03)
        assert np.abs(np.subtract(printed, exact)).max() < 0.3


def test_bands_miss_one_pair_in_a_hundred_at_the_threshold() -> None:
    for alike in (0.3, 0.5, 0.8, 0.95, 1.0):
        rows, count = bands(alike)
        assert (1 - alike**rows) ** count <= 0.01
        assert rows * count <= 192
    assert bands(0.8) == (5, 12)


def compared(traces) -> tuple[int, int]:
    index, copies = FingerprintIndex(0.8), 0
    for trace in traces:
        mark = fingerprint(trace)
        if index.nearest(mark):
            copies += 1
        else:
            index.add(mark)
    return index.compared, copies


def test_comparisons_grow_with_the_pile_and_not_with_its_square(monkeypatch) -> None:
    for count in (200, 400, 800):
        number, copies = compared(Trace("?", edited(text(n // 2, 120), n % 2, n), "so") for n in range(count))
        assert number < count  # all pairs would be 319,600 of the largest traces
        assert 0.49 * count < copies <= 0.5 * count
    # Where all share most of their words, each looks at so many in each of twelve buckets, and at no more.
    alike = [Trace("?", f"{text(0, 60)} {text(n, 25)}", "so") for n in range(300)]
    without_bound, copies = compared(alike)
    monkeypatch.setattr("ponder.traces.duplicates.DEPTH", 2)
    number, _ = compared(alike)
    assert copies < 10
    assert number < 300 * 12 * 2 < without_bound


def test_no_text_is_held() -> None:
    """Neither of those kept nor of the others: a traces is mostly larger than memory."""

    def traces():
        for n in range(60):
            yield Scored(Trace(f"{n}?", f"{n} " + " ".join([str(n) * 9000] * 10), "so", id=str(n)), n / 60)

    size = len(next(traces()).trace.thinking)
    tracemalloc.start()
    found = select(traces(), Choice(top=10))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found.kept) == 10
    assert size > 90_000
    assert peak < 20 * size  # the print of one text takes a few times its size while it is made; all would be 60


# Evaluation problems

ASKED = (
    "Find the number of ordered pairs of positive integers $(a, b)$ such that the least common multiple of $a$ and $b$ "
    "is $2^3 \\cdot 5^7$ and their sum is odd."
)


def holds(question: str, *problems: str, **settings) -> bool:
    evaluation = EvaluationSet([Problem("", 0, (p,)) for p in problems or (ASKED,)], **settings)
    return evaluation.contains(Trace(question, "", "so"))


def test_an_evaluation_problem_is_known_by_its_words() -> None:
    assert holds(ASKED)
    assert holds(
        "PROBLEM 4 —  " + ASKED.replace("$", "").replace("(a, b)", r"\((a,b)\)").upper() + " Think step by step."
    )
    assert holds(ASKED.replace("multiple", "MULTIPLES"))  # one word edited
    assert holds(ASKED[: len(ASKED) * 3 // 4])
    assert holds("Ｆind" + ASKED[4:])
    assert not holds(ASKED[: len(ASKED) // 3])


def test_overlap_is_a_fraction_of_the_problems_words() -> None:
    """Of twenty words, ten are shared in one run: exactly half."""
    asked, other = WORDS[:20], WORDS[100:]

    def shares(count: int, **settings) -> bool:
        return holds(" ".join([*asked[:count], *other[: 20 - count]]), " ".join(asked), **settings)

    assert shares(10)
    assert not shares(9)
    assert shares(9, overlap=0.45)
    assert not shares(10, overlap=0.55)
    assert not shares(10, min_run=11)  # no run is long enough
    assert shares(5, min_run=5, overlap=0.25)
    assert not shares(5, overlap=0.25)
    # Two runs of eight, apart from each other: 16 of 20 words, but half of them if only one counts.
    apart = " ".join([*asked[:8], *other[:5], *asked[12:]])
    assert holds(apart, " ".join(asked), overlap=0.8)
    assert not holds(apart, " ".join(asked), overlap=0.81)


def test_the_rules_of_a_choice_are_those_that_apply() -> None:
    asked, other = WORDS[:20], WORDS[100:]
    traces = [scored("a", 1.0, question=" ".join([*asked[:9], *other[:11]]))]
    problem = [Problem("", 0, (" ".join(asked),))]
    assert len(select(traces, Choice(), problem).kept) == 1
    assert select(traces, Choice(overlap=0.4), problem).counts == {"in the evaluation set": 1}
    assert len(select(traces, Choice(overlap=0.4, min_run=10), problem).kept) == 1
    half = [scored("a", 0.9, text(1, 100)), scored("b", 0.5, edited(text(1, 100), 7), scored("a", 1.0).trace.question)]
    assert len(kept(half)) == 2
    assert len(kept(half, alike=0.4)) == 1


def test_near_duplicates_are_alike_in_reply_and_as_a_whole() -> None:
    long, short = text("rules", 400), text("reply", 40)
    same_reply = [Scored(Trace(text(n, 200), short, "so", id=str(n)), 1.0) for n in range(2)]
    same_prompt = [Scored(Trace(long, text(n, 30), "so", id=str(n)), 1.0) for n in range(2)]
    same_both = [Scored(Trace(f"{long} {n}", short, "so", id=str(n)), 1.0) for n in range(2)]
    assert [len(kept(pair)) for pair in (same_reply, same_prompt, same_both)] == [2, 2, 1]
    # Replies with a Jaccard similarity of 0.65, and a prompt that makes the whole traces more similar than 0.9.
    for seed in range(5):
        replies = text(seed, 100), edited(text(seed, 100), 4, seed)
        assert len(kept([Scored(Trace(text("rules", 900), said, "so"), 1.0) for said in replies])) == 2


def test_a_phrase_in_common_is_chance() -> None:
    chance = "Find the number of ordered pairs of positive integers $(x, y)$ such that $x^2 + y^2 = 2025$ and $x < y$."
    assert not holds(chance)
    assert holds(chance, overlap=0.2)
    assert not holds("Compute the least common multiple of 12 and 18.")


def test_short_questions_must_be_the_same() -> None:
    assert holds("what is  2 + 2?", "What is 2 + 2?")
    assert not holds("What is 2 - 2?", "What is 2 + 2?")
    assert not holds("What is 2 + 2 + 3?", "What is 2 + 2?")


def test_a_prompt_that_all_problems_share_is_none_of_them() -> None:
    prompt = "Please reason step by step and put your final answer within the box at the end."
    asked = [f"What is {text(n, 9)}? {prompt}" for n in range(10)]
    assert not holds(f"Why {text(77, 9)}? {prompt}", *asked)
    assert holds(asked[3].replace("?", " now?"), *asked)


def test_chinese_problems() -> None:
    asked = "一个长方形的长是宽的三倍，它的周长是四十八厘米，求这个长方形的面积。"
    assert holds(asked.replace("，", " ").replace("。", ""), asked)
    assert not holds("一个圆的半径是三厘米，求这个圆的面积和周长各是多少。", asked)


def test_generated_problems_are_known_by_their_id() -> None:
    asked = list(islice(ChainSum().problems(6, 0), 3))
    practised = next(ChainSum().problems(6, 1))
    assert {p.id for p in asked} < {p.id for p in problems("chain_sum:6", Path())}
    assert {p.id for p in asked}.isdisjoint(p.id for p in problems("chain_sum:6:1", Path()))
    traces = [
        Scored(
            Trace("In pocket words", text(1), "so", id="whole", extra={"problem": msgspec.to_builtins(asked[0])}), 1.0
        ),
        Scored(Trace("In other words", text(2), "so", id="named", extra={"problem_id": asked[1].id}), 1.0),
        Scored(Trace(asked[2].turns[0], text(3), "so", id="quoted"), 1.0),
        Scored(Trace(practised.turns[0], text(4), "so", id="another", extra={"problem_id": practised.id}), 1.0),
    ]
    found = select(traces, Choice(without=("chain_sum:6",)))
    assert [one.id for one in found.kept] == ["another"]
    assert found.counts == {"in the evaluation set": 3}
    assert [one.id for one in select(traces, Choice(), asked).kept] == ["another"]  # as a method passes them


def test_ngrams_of_words() -> None:
    left, right = ngrams(words("one two three four"), 3), ngrams(words("ONE, two: three! five"), 3)
    assert len(left) == 2
    assert left[0] == right[0]
    assert left[1] != right[1]
    assert ngrams(words("one"), 3)[0] != ngrams(words("two"), 3)[0]
    assert len(ngrams([], 3)) == 0
    assert ngrams(words("one two"), 2)[0] != ngrams(words("two one"), 2)[0]


# Length


def test_a_selection_by_length_is_none_once_lengths_are_matched() -> None:
    rng = random.Random(3)
    lengths = [int(rng.lognormvariate(7, 1)) + 10 for _ in range(2000)]
    traces = [scored(f"{n:04}", float(tokens), str(n), f"{n}?", tokens=tokens) for n, tokens in enumerate(lengths)]
    mean = sum(lengths) / len(lengths)
    plain = select(traces, Choice(top=200, keep_duplicates=True))
    assert plain.with_length == pytest.approx((1.0, 1.0))
    assert plain.tokens / 200 > 2.5 * mean
    even = select(traces, Choice(top=200, keep_duplicates=True, match_length=True))
    assert even.with_length[0] == pytest.approx(1.0)
    assert abs(even.with_length[1]) < 0.01
    assert even.tokens / 200 < 1.15 * mean  # a mean of 200 such lengths strays by a tenth
    assert even.tokens_before == pytest.approx(mean)


def test_what_is_good_for_its_length_is_found() -> None:
    rng = random.Random(4)
    lengths = [int(rng.lognormvariate(7, 1)) + 10 for _ in range(2000)]
    good = [rng.random() < 0.1 for _ in lengths]
    scores = [
        np.log(tokens) + 0.3 * is_good + rng.gauss(0, 0.05) for tokens, is_good in zip(lengths, good, strict=True)
    ]
    best = np.argsort(matched(scores, lengths))[-200:]
    assert np.mean([good[n] for n in best]) > 0.85
    assert np.mean([good[n] for n in np.argsort(scores)[-200:]]) < 0.3
    assert np.mean([lengths[n] for n in best]) < 1.2 * np.mean(lengths)


def test_lengths_are_matched_within_a_teacher() -> None:
    """One teacher is long and scores high; each has its best for its length, which across both would be the other's."""
    rng = random.Random(5)
    traces = []
    for n in range(400):
        long = n % 2
        tokens = rng.randrange(100, 200) + 80 * long
        name, good = f"{n:03}", rng.random()
        traces.append(scored(name, good + 5 * long, name, f"{n}?", tokens=tokens, teacher=f"t{long}"))
    found = select(traces, Choice(per_teacher=20, match_length=True, keep_duplicates=True))
    for teacher in (0, 1):
        chosen = [one.score - 5 * teacher for one in found.kept if int(one.id) % 2 == teacher]
        assert len(chosen) == 20
        assert np.mean(chosen) > 0.85


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


# Files and the command line


def records(count: int = 6) -> list[dict]:
    return [
        {
            "id": f"t{n}",
            "problem": f"Question {n}: {text(n, 10)}?",
            "response": f"<think>{text(n + 50)}\n\n{text(n + 90)}</think>so {n}",
            "labels": [True, n % 2 == 0, n / 10],
            "correct": n % 3 > 0,
            "source": "s1",
        }
        for n in range(count)
    ]


def lines_of(rows) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def read_json(name: str) -> list[dict]:
    return [json.loads(line) for line in Path(name).read_text("utf-8").splitlines()]


REWARD = '''
"""A reward for a test: the share of steps that stand before a long word."""
from pathlib import Path
from dataclasses import dataclass
from ponder.core import Bill, Reward, Scores

@dataclass(frozen=True, kw_only=True)
class Mine(Reward):
    def rate(self, traces):
        with Path("asked.txt").open("a") as file:
            file.writelines(trace.id + "\\n" for trace in traces)
        down = Path("down.txt").exists()
        return [
            Scores(why="the judge is down") if down and trace.id in ("t1", "t3")
            else Scores(tuple(len(step) % 7 / 7 for step in trace.part(self.of)), bill=Bill(3))
            for trace in traces
        ]
'''


def test_score_writes_what_the_reward_says(ponder, write) -> None:
    write("traces.jsonl", lines_of(records()))
    result = ponder("score", "traces.jsonl", "--reward", "oracle", "--set", "alpha=0.5")
    assert result.exit_code == 0
    assert result.stdout == "traces.scored.jsonl\n"
    assert "6  scored" in result.stderr
    for given, found in zip(records(), read_json("traces.scored.jsonl"), strict=True):
        labels = [float(label) for label in given["labels"]]
        assert found["step_scores"] == labels
        assert found["trajectory"] == float(given["correct"])
        assert found["score"] == pytest.approx(sum(labels) / 3 + 0.5 * given["correct"])
        assert found["scored_by"].startswith("oracle ")
        assert found["question"] == given["problem"]
        assert found["source"] == "s1"
        assert "score_why" not in found


def test_score_says_where_a_line_is_broken(ponder, write) -> None:
    rows = lines_of(records(3)) + '{"id": 1, \n{"question": "?"}\n' + lines_of([{"question": "a?", "answer": "b"}])
    write("traces.jsonl", rows)
    result = ponder("score", "traces.jsonl", "--reward", "oracle")
    assert result.exit_code == 2
    assert "traces.jsonl:4: " in result.stderr
    assert not Path("traces.scored.jsonl").exists()
    result = ponder("score", "traces.jsonl", "--reward", "oracle", "--bad", "skip", "--json")
    assert json.loads(result.stdout) == {
        "file": "traces.scored.jsonl", "traces": 4, "scored": 3, "scored_before": 0,
        "unscored": {"it has no labels": 1}, "skipped": 2, "tokens": 0,
    }  # fmt: skip
    assert "skipped traces.jsonl:5: it has neither thinking nor an answer" in result.stderr
    assert "1  not scored: it has no labels" in result.stderr
    last = read_json("traces.scored.jsonl")[-1]
    assert last["score"] is None
    assert last["score_why"] == "it has no labels"


def test_scoring_resumes_where_it_stopped(ponder, write) -> None:
    write("traces.jsonl", lines_of(records()))
    write("reward_that_counts.py", REWARD)
    words = ("score", "traces.jsonl", "--reward", "./reward_that_counts.py", "--json")
    assert json.loads(ponder(*words).stdout)["tokens"] == 6 * 3
    whole = Path("traces.scored.jsonl").read_bytes()
    Path("asked.txt").unlink()
    # Killed in the middle of the fourth line.
    lines = whole.splitlines(keepends=True)
    Path("traces.scored.jsonl").write_bytes(b"".join(lines[:3]) + lines[3][:40])
    summary = json.loads(ponder(*words).stdout)
    assert (summary["scored"], summary["scored_before"]) == (3, 3)
    assert Path("asked.txt").read_text().split() == ["t3", "t4", "t5"]
    assert Path("traces.scored.jsonl").read_bytes() == whole
    assert json.loads(ponder(*words).stdout)["scored_before"] == 6
    assert Path("traces.scored.jsonl").read_bytes() == whole


@pytest.mark.parametrize("content", ["my notes", "my notes\n", '{"question": "Who?"}', "{}\n", "[1]\n"])
def test_a_file_that_is_something_else_is_left_alone(ponder, write, content) -> None:
    write("traces.jsonl", lines_of(records()))
    write("notes.txt", content)
    result = ponder("score", "traces.jsonl", "--reward", "oracle", "-o", "notes.txt")
    assert result.exit_code == 2
    assert "notes.txt:1: this line was not written by the same reward" in result.stderr
    assert Path("notes.txt").read_text() == content


def test_traces_without_a_score_are_scored_again(ponder, write) -> None:
    write("traces.jsonl", lines_of(records()))
    write("reward_that_fails.py", REWARD)
    words = ("score", "traces.jsonl", "--reward", "./reward_that_fails.py", "--json")
    write("down.txt", "")
    assert json.loads(ponder(*words).stdout)["unscored"] == {"the judge is down": 2}
    half = Path("traces.scored.jsonl").read_bytes().splitlines(keepends=True)
    Path("traces.scored.jsonl").write_bytes(b"".join(half[:5]))
    Path("down.txt").unlink()
    Path("asked.txt").unlink()
    summary = json.loads(ponder(*words).stdout)
    assert (summary["scored"], summary["scored_before"], summary["unscored"]) == (3, 3, {})
    assert Path("asked.txt").read_text().split() == ["t1", "t3", "t5"]
    found = read_json("traces.scored.jsonl")
    assert [row["id"] for row in found] == [f"t{n}" for n in range(6)]
    assert all(row["score"] is not None for row in found)
    assert sorted(p.name for p in Path().glob("*scored*")) == ["traces.scored.jsonl"]


@pytest.mark.parametrize("change", ["settings", "steps", "file", "shorter", "source"])
def test_scoring_does_not_resume_from_other_scores(ponder, write, change) -> None:
    rows = records()
    write("traces.jsonl", lines_of(rows))
    write(f"reward_for_{change}.py", REWARD)
    words = ["score", "traces.jsonl", "--reward", f"./reward_for_{change}.py"]
    assert ponder(*words).exit_code == 0
    before = Path("traces.scored.jsonl").read_bytes()
    if change == "file":
        rows[2]["response"] = "something else"
    write("traces.jsonl", lines_of(rows[:4] if change == "shorter" else rows))
    if change == "source":
        write(f"reward_for_{change}.py", REWARD + "# another\n")
    more = {"settings": ["--set", "alpha=2.0"], "steps": ["--by", "sentence"]}.get(change, [])
    result = ponder(*words, *more)
    assert result.exit_code == 2
    where = {"file": 3, "shorter": 5}.get(change, 1)
    assert (
        f"traces.scored.jsonl:{where}: this line was not written by the same reward from the same file" in result.stderr
    )
    assert Path("traces.scored.jsonl").read_bytes() == before


def test_a_file_scored_by_another_reward_is_scored_again(ponder, write) -> None:
    write("traces.jsonl", lines_of([{**row, "score": 0.123, "step_scores": [9]} for row in records()]))
    assert ponder("score", "traces.jsonl", "--reward", "oracle").exit_code == 0
    first = ponder("score", "traces.scored.jsonl", "--reward", "oracle", "--set", "alpha=0.0", "-o", "again.jsonl")
    assert first.exit_code == 0
    for given, found in zip(records(), read_json("again.jsonl"), strict=True):
        assert found["score"] == pytest.approx(sum(map(float, given["labels"])) / 3)


def test_long_files_are_scored_in_batches(folder, monkeypatch) -> None:
    Path("traces.jsonl").write_text(lines_of(records(25)))
    monkeypatch.setattr("ponder.traces.score_file.BATCH", 10)
    reports = list(Scoring(read(Path("traces.jsonl")), Oracle(), Path("out.jsonl")))
    assert [report["scored"] for report in reports] == ["0 of 25", "10 of 25", "20 of 25", "25 of 25"]
    monkeypatch.setattr("ponder.traces.score_file.CHARACTERS", 1)
    one = Scoring(read(Path("traces.jsonl")), Oracle(), Path("one.jsonl"))
    assert len(list(one)) == 26
    assert Path("one.jsonl").read_bytes() == Path("out.jsonl").read_bytes()


def test_select_from_a_file(ponder, write) -> None:
    rows = records()
    write("traces.jsonl", lines_of([*rows, {**rows[4], "id": "t4 again"}]))
    ponder("score", "traces.jsonl", "--reward", "oracle")
    write("asked.jsonl", lines_of([{"problem": rows[2]["problem"]}]))
    result = ponder("select", "traces.scored.jsonl", "--top", "2", "--right", "--without", "asked.jsonl", "--json")
    assert result.exit_code == 0
    summary = json.loads(result.stdout)
    assert summary["dropped"] == {"wrong": 2, "in the evaluation set": 1, "duplicate": 1, "beyond the top 2": 1}
    assert "1  dropped: duplicate (t4 again of t4)" in result.stderr
    found = read_json("traces.chosen.jsonl")
    assert [row["id"] for row in found] == ["t4", "t5"]  # 1 + (1 + 1 + 0.4) / 3, then 1 + (1 + 0 + 0.5) / 3
    assert found[1]["chosen"] == {
        "rank": 2, "score": pytest.approx(1.5), "tokens": summary["tokens"] - found[0]["chosen"]["tokens"],
        "reason": "score ranks 3 of 4",
    }  # fmt: skip
    assert found[1]["thinking"] == rows[5]["response"].partition("</think>")[0].removeprefix("<think>")
    again = ponder("select", "traces.chosen.jsonl", "--top", "1", "-o", "one.jsonl")  # a selection can be chosen from
    assert again.stdout == "one.jsonl\n"
    assert [row["id"] for row in read_json("one.jsonl")] == ["t4"]


def test_select_leaves_out_what_a_study_asks(ponder, write) -> None:
    asked = next(ChainSum().problems(4, 7))
    rows = [{"id": "asked", "question": "In pocket words.", "answer": "so", "score": 1.0, "problem_id": asked.id}]
    rows += [{"id": "other", "question": "Another?", "answer": "yes", "score": 0.5}]
    write("scored.jsonl", lines_of(rows))
    write("mine.toml", 'seed = 7\nproblems = 3\n[[task]]\nname = "chain_sum"\nsize = 4\n[[model]]\nname = "oracle"\n')
    result = ponder("select", "scored.jsonl", "--by", "all", "--without", "mine.toml")
    assert result.exit_code == 0
    assert [row["id"] for row in read_json("scored.chosen.jsonl")] == ["other"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["score", "traces.jsonl", "--reward", "orakle"], "did you mean `oracle`?"),
        (["score", "traces.jsonl", "--reward", "oracle", "--set", "alfa=1"], "did you mean `alpha`?"),
        (["score", "none.jsonl", "--reward", "oracle"], "can't read none.jsonl"),
        (["score", "traces.jsonl", "--reward", "oracle", "-o", "traces.jsonl"], "would be overwritten"),
        (["score", "traces.jsonl", "--reward", "oracle", "-o", "no/where.jsonl"], "can't write no/where.jsonl"),
        (["score", "empty.jsonl", "--reward", "oracle"], "there are no traces in empty.jsonl"),
        (["select", "traces.jsonl"], "nothing says how many to keep"),
        (["select", "traces.jsonl", "--top", "2"], "no trace has a score"),
        (["select", "two.jsonl", "--top", "2"], "scores of two rewards can't be ranked together: `a 1` and `b 2`"),
        (["select", "odd.jsonl", "--top", "2"], "trace x: score must be a number, not 'high'"),
        (["select", "two.jsonl", "--by", "random", "--threshold", "7"], "scores of two rewards"),
        (["select", "one.jsonl", "--threshold", "7"], "no trace is left"),
        (
            ["select", "traces.jsonl", "--by", "all", "--without", "broken.jsonl"],
            "broken.jsonl:1: there is no question",
        ),
    ],
)
def test_mistakes_on_the_command_line(ponder, write, words, message) -> None:
    trace = {"question": "?", "answer": "a", "id": "x"}
    write("traces.jsonl", lines_of(records(2)))
    write("empty.jsonl", "\n")
    write("two.jsonl", lines_of([{**trace, "score": 1, "scored_by": by} for by in ("a 1", "b 2")]))
    write("one.jsonl", lines_of([{**trace, "score": 1}]))
    write("odd.jsonl", lines_of([{**trace, "score": "high"}, {**trace, "score": 1, "answer": "b"}]))
    write("broken.jsonl", '{"text": "no question"}\n')
    result = ponder(*words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not result.stdout
    assert not list(Path().glob("*.chosen.jsonl"))


def test_an_odd_score_can_be_passed_over(folder) -> None:
    trace = {"question": "?", "answer": "a"}
    Path("odd.jsonl").write_text(lines_of([{**trace, "score": "high"}, {**trace, "score": 1, "answer": "b"}]))
    selecting = Selecting(read(Path("odd.jsonl"), bad="skip"), Choice(top=5), Path("out.jsonl"))
    assert list(selecting)[-1] == {"read": "2", "kept": "1"}
    assert selecting.selection.counts == {"unscored": 1}
    assert len(read_json("out.jsonl")) == 1


def test_a_file_without_any_score_exits_with_1(ponder, write) -> None:
    write("traces.jsonl", lines_of([{"question": "?", "answer": "a"}]))
    result = ponder("score", "traces.jsonl", "--reward", "oracle")
    assert result.exit_code == 1
    assert "1  not scored: it has no labels" in result.stderr
