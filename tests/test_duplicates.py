"""Copies among traces: the better one stays, and prints and bands find as many as Jaccard's
similarity says.
"""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from scored_traces import edited, kept, scored, text

from ponder.traces import Trace
from ponder.traces.duplicates import FingerprintIndex, bands, fingerprint
from ponder.traces.selection import Choice, Scored, select


def test_the_better_of_two_copies_stays() -> None:
    said, question = text(1), f"What is {text(2, 10)}?"
    traces = [
        scored("worse", 0.5, said, question, topic="t"),
        scored("better", 0.9, edited(said, 1), question),
        scored("same", 0.8, edited(said, 1).upper().replace(" ", "\n "), question),
        scored("other", 0.1, text(3), question),  # another way to solve the same
    ]
    traces = [
        Scored(Trace(s.trace.question, s.trace.thinking, "so", id=s.trace.id), s.score)
        for s in traces
    ]
    found = select(traces, Choice())
    assert [one.id for one in found.kept] == ["better", "other"]
    assert [(d.id, d.reason, d.of) for d in found.dropped] == [
        ("same", "duplicate", "better"), ("worse", "near-duplicate", "better")
    ]  # fmt: skip
    assert len(kept(traces, keep_duplicates=True)) == 4
    assert "worse of better" in found.table()


def test_a_trace_that_repeats_itself_is_no_copy_of_the_short_one() -> None:
    """Two passes over the same steps have the same runs of words as one."""
    once, question = text(1, 60), f"What is {text(2, 10)}?"
    traces = [
        Scored(Trace(question, said, "so", id=name), score)
        for name, said, score in (
            ("twice", f"{once} {once}", 0.9),
            ("once", once, 0.8),
            ("again", f"{edited(once, 1)} {once}", 0.7),  # a near-duplicate of the one as long
        )
    ]
    found = select(traces, Choice())
    assert [one.id for one in found.kept] == ["twice", "once"]
    assert [(d.id, d.of) for d in found.dropped] == [("again", "twice")]


def test_what_differs_in_little_but_means_another_thing_is_no_copy() -> None:
    pairs = [
        ("Solve x + 1 = 0.", "x = -1"),
        ("Solve x - 1 = 0.", "x = 1"),
        ("What is 3 + 4?", "7"),
        ("And 5 + 2?", "7"),
    ]
    assert len(kept([Scored(Trace(q, "", a), 1.0) for q, a in pairs])) == 4
    rules = text(5, 300)  # a page of rules in every prompt
    assert (
        len(kept([Scored(Trace(f"{rules} {n}", text(n, 30), "so"), 1.0) for n in range(20)])) == 20
    )


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
        number, copies = compared(
            Trace("?", edited(text(n // 2, 120), n % 2, n), "so") for n in range(count)
        )
        assert number < count  # all pairs would be 319,600 of the largest traces
        assert 0.49 * count < copies <= 0.5 * count
    # Where all share most of their words, each looks at so many in each of twelve buckets, and at
    # no more.
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
            yield Scored(
                Trace(f"{n}?", f"{n} " + " ".join([str(n) * 9000] * 10), "so", id=str(n)), n / 60
            )

    size = len(next(traces()).trace.thinking)
    tracemalloc.start()
    found = select(traces(), Choice(top=10))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found.kept) == 10
    assert size > 90_000
    # the print of one text takes a few times its size while it is made; all would be 60
    assert peak < 20 * size


def test_near_duplicates_are_alike_in_reply_and_as_a_whole() -> None:
    long, short = text("rules", 400), text("reply", 40)
    same_reply = [Scored(Trace(text(n, 200), short, "so", id=str(n)), 1.0) for n in range(2)]
    same_prompt = [Scored(Trace(long, text(n, 30), "so", id=str(n)), 1.0) for n in range(2)]
    same_both = [Scored(Trace(f"{long} {n}", short, "so", id=str(n)), 1.0) for n in range(2)]
    assert [len(kept(pair)) for pair in (same_reply, same_prompt, same_both)] == [2, 2, 1]
    # Replies with a Jaccard similarity of 0.65, and a prompt that makes the whole traces more
    # similar than 0.9.
    for seed in range(5):
        replies = text(seed, 100), edited(text(seed, 100), 4, seed)
        assert (
            len(kept([Scored(Trace(text("rules", 900), said, "so"), 1.0) for said in replies])) == 2
        )
