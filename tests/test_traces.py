"""Traces: read with any of the common field names, split into steps, steps aligned."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from ponder.core import Request, UserError
from ponder.models.pocket import CODECS
from ponder.models.pocket.codec import ANSWER
from ponder.tasks.execution import Execution
from ponder.traces import Trace, align, hashed, read, similarity, steps, trace_of, understand
from ponder.traces.split import paragraphs, sentences


def parse(record: dict) -> Trace:
    (reading,) = understand(record)
    return reading.trace


def trace_file(folder: Path, *lines: str | bytes | dict) -> Path:
    path = folder / "traces.jsonl"
    coded = [
        line
        if isinstance(line, bytes)
        else (line if isinstance(line, str) else json.dumps(line)).encode()
        for line in lines
    ]
    path.write_bytes(b"\n".join(coded) + b"\n")
    return path


FINE = {"question": "1 + 1?", "thinking": "one and one", "answer": "2"}


def test_other_names_are_understood() -> None:
    for record in (
        {"problem": "q", "reasoning": "t", "response": "a", "answer": "gold"},
        {"prompt": "q", "completion": "<think>t</think>a"},
        {"instruction": "q", "output": "t</think>\na"},
        {"question": "q", "thinking_trajectories": ["t"], "attempt": "a", "solution": "gold"},
        {"problem": "q", "deepseek_reasoning": "t", "deepseek_solution": "a", "ground_truth_solution": "gold"},
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}, {"role": "assistant", "content": "<think>t</think>a"}]},
        {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "<think>t</think>a"}]},
    ):  # fmt: skip
        trace = parse(record)
        assert (trace.question, trace.thinking, trace.answer) == ("q", "t", "a")
    known = parse(
        {
            **FINE,
            "id": 7,
            "model": "r1",
            "subject": "algebra",
            "ground_truth": "2",
            "is_correct": True,
            "tokens": 9,
            "x": [1],
        }
    )
    assert known.id == "7"
    assert (known.teacher, known.topic, known.gold, known.correct, known.tokens) == (
        "r1",
        "algebra",
        "2",
        True,
        9,
    )
    assert known.extra == {"x": [1]}
    assert parse(known.record()) == known
    responded = parse({"problem": "q", "response": "a", "answer": "gold"})
    assert (responded.answer, responded.gold) == ("a", "gold")
    assert parse(responded.record()) == responded


def test_copies_share_their_id() -> None:
    assert parse(FINE).id == parse({**FINE, "x": 1}).id != parse({**FINE, "answer": "3"}).id


BAD = {
    "not JSON": '{"question": ',
    "no object": "[1, 2]",
    "no question": {"thinking": "t", "answer": "a"},
    "nothing said": {"question": "q", "answer": "  "},
    "a number for a text": {"question": 3, "answer": "a"},
    "correct by hearsay": {**FINE, "correct": "yes"},
    "half a character": b'{"question": "\xff", "answer": "a"}',
    "a message without shape": {"messages": ["hi"]},
}


@pytest.mark.parametrize("name", BAD)
def test_malformed_lines_are_refused_by_number_or_skipped(name, tmp_path) -> None:
    path = trace_file(tmp_path, FINE, "", BAD[name], {**FINE, "answer": "3"})
    with pytest.raises(UserError) as error:
        list(read(path))
    assert error.value.where == f"{path}:3"
    assert "skip" in error.value.hint
    found = read(path, bad="skip")
    assert [trace.answer for trace in found] == ["2", "3"]
    assert len(found.skipped) == 1
    assert found.skipped[0].startswith(f"{path}:3: ")
    assert len(list(found)) == 2
    assert len(found.skipped) == 1  # counted afresh each time


def test_only_a_line_feed_ends_a_line(tmp_path) -> None:
    text = "one\u2028two\x85three\x0bfour"
    path = tmp_path / "t.jsonl"
    path.write_bytes(
        b"\xef\xbb\xbf"
        + json.dumps({**FINE, "answer": text}, ensure_ascii=False).encode()
        + b"\r\n"
    )
    assert [trace.answer for trace in read(path)] == [text]


def test_a_file_is_read_one_trace_at_a_time(tmp_path) -> None:
    path = trace_file(tmp_path, *[FINE] * 3, "broken")
    assert len(list(itertools.islice(read(path), 3))) == 3
    with pytest.raises(UserError, match="can't read"):
        list(read(tmp_path / "none.jsonl"))


def test_paragraphs() -> None:
    assert paragraphs("a\nb\n\n\n c\r\n \t\r\nd\n\n") == ("a\nb", "c", "d")
    assert paragraphs(" \n\n ") == ()


def test_sentences() -> None:
    text = "We get 3.14, not 2.5. So, e.g. Dr. Smith has approx. five... maybe. Wait! Is it?  Yes (see Eq. 2). I asked J. Doe.\n1. First item."
    assert sentences(text) == (
        "We get 3.14, not 2.5.",
        "So, e.g. Dr. Smith has approx. five... maybe.",
        "Wait!",
        "Is it?",
        "Yes (see Eq. 2).",
        "I asked J. Doe.",
        "1. First item.",
    )
    assert sentences("So we get x. Then y.") == ("So we get x.", "Then y.")
    assert sentences("因此 x=3。然后我们得到 y！对吗？“好。”结束") == (
        "因此 x=3。",
        "然后我们得到 y！",
        "对吗？",
        "“好。”",
        "结束",
    )
    assert sentences("Это так. Потому что 2 + 2 = 4. و هذا صحيح؟ نعم.") == (
        "Это так.",
        "Потому что 2 + 2 = 4.",
        "و هذا صحيح؟",
        "نعم.",
    )
    assert sentences("no end") == ("no end",)
    assert sentences("") == ()
    assert len(sentences("So it goes. " * 1000)) == 1000


def test_steps_of_thinking_and_answer_are_apart() -> None:
    trace = Trace("q", "a. B.\n\nc", "d\n\ne", correct=True, extra={"x": 1})
    cut = steps(trace)
    assert (cut.thinking, cut.answer) == (("a. B.", "c"), ("d", "e"))
    assert cut.part("all") == ("a. B.", "c", "d", "e")
    assert cut.facts == {"x": 1, "correct": True}
    assert steps(trace, by="sentence").thinking == ("a.", "B.", "c")
    assert steps(Trace("q", "", "d")).thinking == ()


def test_every_cut_keeps_every_letter() -> None:
    text = "First, 3.5 + 2. Then: 因此。所以！\n\nA.B. said so... Or not? (Yes.) Fig. 3 shows 1.\n2. Second\r\n\r\nend"
    for by in ("blank", "sentence"):
        found = steps(Trace("q", text, ""), by=by).thinking
        assert "".join("".join(found).split()) == "".join(text.split())


def test_steps_as_the_model_marks_them() -> None:
    task, codec = Execution(dictionary=8, per_turn=0), CODECS["execution"]
    request = Request.first_turn(task, task.problem(4, seed=2))
    said = codec.lesson(request).reply
    thinking = " ".join(said[: said.index(ANSWER)])
    named = trace_of(request, thinking, "a", "pocket")
    cut = steps(named, by="task").thinking
    assert " ".join(cut) == thinking
    assert [step.split()[0] for step in cut[1:]] == ["#1", "#2", "#3", "#4"]
    given = parse({"problem": "q", "steps": ["one\n\nstill one", "two"], "label": -1})
    assert steps(given, by="task").answer == ("one\n\nstill one", "two")
    assert len(steps(given).answer) == 3
    assert steps(
        Trace("q", "a|b", "c"), by="task", split=lambda text: text.split("|")
    ).thinking == ("a", "b")


def test_a_trace_without_its_codec_is_refused_by_the_name_of_the_key() -> None:
    """Files written before traces named their codec have a task and a problem."""
    old = Trace("q", "a|b", "c", id="t7", extra={"task": "execution", "problem": {}})
    with pytest.raises(UserError, match="trace t7 has no key `codec`") as error:
        steps(old, by="task")
    assert "blank" in error.value.hint
    for extra, message in (
        (
            {"task": "execution", "codec": "pokket"},
            "model `pokket` has no codec for the task `execution`",
        ),
        ({"task": "gpqa", "codec": "pocket"}, "model `pocket` has no codec for the task `gpqa`"),
        ({"codec": "pocket"}, "no codec for the task ``"),
    ):
        with pytest.raises(UserError, match=message):
            steps(Trace("q", "a|b", "c", extra=extra), by="task")
    assert steps(old).thinking == ("a|b",)  # other ways to split need no codec


def test_like_texts_are_similar() -> None:
    left = [
        "so we add 3 and 4",
        "the triangle has three sides",
        "因此我们得到 x 等于四",
        "",
        "SO  WE ADD 3 and\n4",
    ]
    right = ["We add 3 and 4 to get 7.", "A triangle: three sides.", "所以我们得到 x 等于四。"]
    found = similarity(left, right)
    assert found.shape == (5, 3)
    assert found[:3].argmax(axis=1).tolist() == [0, 1, 2]
    assert found[3].tolist() == [0.0] * 3
    assert found[4] == pytest.approx(found[0])
    assert np.diag(similarity(left[:3], left[:3])) == pytest.approx([1.0] * 3)
    assert similarity([], right).shape == (0, 3)


def test_hashed_counts_words_and_runs_of_letters() -> None:
    for text, pieces in (("ab", 2), ("aaaa", 7), ("a b", 5), ("x", 1), ("", 0)):
        # two words or one; runs of two, three and four letters
        assert (hashed([text]) ** 2).sum() == pytest.approx(pieces)
    both = hashed(["ab cd", "xyz"])
    # no run goes over from one text to the next
    assert both[0] == pytest.approx(hashed(["ab cd"])[0])
    assert both[1] == pytest.approx(hashed(["xyz"])[0])
    assert np.flatnonzero(hashed(["ab"])[0]).tolist() == [249, 1191]  # the same on every machine


def cheapest(cost: np.ndarray) -> float:
    """Over every path there is."""
    rows, columns = cost.shape

    def least(i: int, j: int) -> float:
        ways = [
            (a, b) for a, b in ((i + 1, j), (i, j + 1), (i + 1, j + 1)) if a < rows and b < columns
        ]
        return cost[i, j] + (min(least(*way) for way in ways) if ways else 0.0)

    return least(0, 0)


def test_warping_finds_the_cheapest_path() -> None:
    from ponder.traces.alignment import _warped

    rng = np.random.default_rng(1)
    for _ in range(60):
        cost = rng.random((rng.integers(1, 6), rng.integers(1, 6)))
        path = _warped(cost)
        assert path[0] == (0, 0)
        assert path[-1] == (cost.shape[0] - 1, cost.shape[1] - 1)
        assert all(
            (b[0] - a[0], b[1] - a[1]) in {(0, 1), (1, 0), (1, 1)}
            for a, b in itertools.pairwise(path)
        )
        assert sum(cost[place] for place in path) == pytest.approx(cheapest(cost))


def test_alignment_goes_forward_or_takes_the_best() -> None:
    similar = np.array([[0.9, 0.1, 0.0], [0.2, 0.1, 0.8], [0.1, 0.9, 0.0], [0.0, 0.2, 0.9]])
    assert align(similar, "best") == (0, 2, 1, 2)
    assert align(similar, "monotone") == (0, 1, 1, 2) or align(similar) == (0, 0, 1, 2)
    assert align(np.ones((1, 4))) == (0,)
    assert align(np.zeros((3, 0))) == ()
    thousand = np.repeat(np.eye(5), 200, axis=0)
    assert align(thousand) == tuple(n // 200 for n in range(1000))
