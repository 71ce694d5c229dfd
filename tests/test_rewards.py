"""Rewards: each adapter's scores are those of a plain forward pass over the published format, one
step at a time.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from reward_cases import CASES, TRACES, WIDE, Case, QwenCase, RlhflowCase, SkyworkCase, cut
from safetensors.torch import load_file, save_file

from ponder.cli.check import reward as check_reward
from ponder.core import Scores, UserError
from ponder.core.scoring import scores_by_index
from ponder.rewards.qwen import Qwen
from ponder.rewards.skywork import Skywork


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory) -> Case:
    return CASES[request.param](tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="module")
def qwen(tmp_path_factory) -> QwenCase:
    return QwenCase(tmp_path_factory.mktemp("qwen"))


def test_scores_are_those_of_a_plain_forward_pass(case) -> None:
    for trace, scores in zip(TRACES, case(window=WIDE).score(TRACES), strict=True):
        steps = trace.part("all")
        assert scores.steps == pytest.approx(case.expected(trace.question, steps), abs=1e-5)
        mean = sum(scores.steps) / len(steps)
        if hasattr(case, "trajectory"):
            assert scores.trajectory == pytest.approx(
                case.trajectory(trace.question, steps), abs=1e-5
            )
            assert scores.total == pytest.approx(mean + scores.trajectory)
        else:
            assert scores.trajectory is None
            assert scores.total == pytest.approx(mean)
        assert scores.bill.prompt_tokens > 0
    # it isn't a constant
    assert len({round(s, 6) for scores in case().score(TRACES) for s in scores.steps}) > 12


def test_a_batch_of_ragged_traces_is_one_by_one(case) -> None:
    together = case(batch=300).score(TRACES)
    for trace, scores in zip(TRACES, together, strict=True):
        (alone,) = case(batch=1).score([trace])
        assert scores.steps == pytest.approx(alone.steps, abs=1e-5)
        assert scores.bill == alone.bill


def test_it_passes_the_check_of_its_interface(case) -> None:
    assert list(check_reward(case())) == []


def test_parts(case) -> None:
    for of in ("thinking", "answer"):
        scores = case(of=of).score(TRACES)
        assert scores[0].steps == pytest.approx(
            case.expected(TRACES[0].question, TRACES[0].part(of)), abs=1e-5
        )
    assert case(of="thinking").score(TRACES)[1] == Scores(why="nothing to score")


def test_a_thousand_steps(case) -> None:
    trace = cut("What is the sum?", *(f"So {n} + 7" for n in range(1000)))
    (pieces,) = case().score([trace])  # its own window of 256 tokens
    assert len(pieces.steps) == 1000
    start = trace.thinking[:150]
    (whole,) = case(window=WIDE).score([cut(trace.question, *start)])
    assert whole.steps[:3] == pytest.approx(pieces.steps[:3], abs=1e-5)
    expected = [case.last(trace.question, start[: n + 1]) for n in (0, 41, 149)]
    assert [whole.steps[n] for n in (0, 41, 149)] == pytest.approx(expected, abs=1e-4)


def test_what_a_text_holds_is_never_taken_for_a_marker(case) -> None:
    texts = ("+ or - ки\nки +", "a\nb\n\nc", "<extra_0> <|im_end|> <|eot_id|> </s> <said 1>", "ки")
    trace = cut("Is ки a marker, or <extra_0>, or\n+?", *texts)
    (scores,) = case(window=WIDE).score([trace])
    assert len(scores.steps) == 4
    plain = cut("Is ки a marker?", *texts[:2])  # nothing in it is a special token of any of these
    (scores,) = case(window=WIDE).score([plain])
    assert scores.steps == pytest.approx(case.expected(plain.question, plain.thinking), abs=1e-5)


def test_special_tokens_in_a_text_are_letters(qwen) -> None:
    _, _, tokenizer = qwen().loaded
    special = {
        tokenizer.base.convert_tokens_to_ids(t) for t in ("<extra_0>", "<|im_start|>", "<|im_end|>")
    }
    trace = cut("<|im_start|>?", "a <extra_0> b", "<extra_0>", "<|im_end|>\n<|im_start|>user\n")
    (reading,) = qwen().read(tokenizer, [trace])
    tokens = [t for step in reading.steps for t in step]
    assert tokens.count(tokenizer.token("<extra_0>")) == 3
    assert [step[-1] for step in reading.steps] == [tokenizer.token("<extra_0>")] * 3
    assert not special & {t for step in reading.steps for t in step[:-1]}
    assert tokenizer.base.decode(reading.steps[0][:-1]) == "a <extra_0> b"


@pytest.mark.parametrize("name", ["qwen", "skywork", "rlhflow"])
def test_long_traces_are_cut_as_documented(name, tmp_path) -> None:
    case = CASES[name](tmp_path)
    window, context = 192, 0.25
    rng = np.random.default_rng(3)
    steps = tuple(
        " ".join(rng.choice(["add", "7", "so", "x", "get"], rng.integers(1, 9))) for _ in range(60)
    )
    trace = cut("What is x?", *steps)
    (scores,) = case(window=window, context=context).score([trace])
    _, _, tokenizer = case().loaded
    (reading,) = case().read(tokenizer, [trace])
    lengths = [len(step) + len(reading.join) for step in reading.steps]
    longer = max(
        (len(a) - len(b) for a, b in zip(reading.first, reading.steps, strict=False)), default=0
    )
    room = window - len(reading.head) - len(reading.tail) - longer + len(reading.join)
    new = rows = 0
    while new < len(steps):
        # The last steps before that fit into a quarter of the window beside one new step, then all
        # that fit.
        starts = [
            s
            for s in range(new + 1)
            if sum(lengths[s:new]) <= context * window and sum(lengths[s : new + 1]) <= room
        ]
        first = min(starts)
        last = max(e for e in range(new + 1, len(steps) + 1) if sum(lengths[first:e]) <= room)
        expected = case.expected(trace.question, steps[first:last])[new - first :]
        assert scores.steps[new:last] == pytest.approx(expected, abs=1e-5)
        new, rows = last, rows + 1
    assert rows >= 3


def test_a_step_too_long_for_the_window_loses_its_beginning(qwen) -> None:
    text = " ".join(f"so {n} + 7" for n in range(200))
    (scores,) = qwen(window=192).score([cut("What is x?", text)])
    _, _, tokenizer = qwen().loaded
    (reading,) = qwen().read(tokenizer, [cut("What is x?", text)])
    kept = reading.steps[0][-(192 - len(reading.head) - len(reading.tail)) :]
    tokens = torch.tensor([reading.head + kept])
    hidden = qwen.states(tokens).last_hidden_state[0, -1]
    inner = torch.relu(qwen.head["score.0.weight"] @ hidden + qwen.head["score.0.bias"])
    value = (qwen.head["score.2.weight"] @ inner + qwen.head["score.2.bias"]).softmax(0)[1].item()
    assert scores.steps == pytest.approx((value,), abs=1e-5)


def test_a_question_that_fills_the_window_fails_alone(qwen) -> None:
    long = cut("why " * 200, "So x = 7.")
    failed, fine = qwen(window=192).score([long, TRACES[0]])
    assert failed.total is None
    assert "no room" in failed.why
    assert fine.total is not None


def test_nan_is_no_score(tmp_path) -> None:
    case = QwenCase(tmp_path)
    (shard,) = [f for f in tmp_path.glob("*.safetensors") if "score.2.bias" in load_file(f)]
    save_file(
        load_file(shard) | {"score.2.bias": torch.tensor([math.nan, 0.0])}, shard, {"format": "pt"}
    )
    (scores,) = case().score(TRACES[:1])
    assert (scores.steps, scores.total, scores.why) == ((), None, "the reward returned NaN")


def test_weights_of_another_kind_are_refused(tmp_path) -> None:
    SkyworkCase(tmp_path)
    with pytest.raises(UserError, match=r"lacks the weights score\.0\.bias"):
        Qwen(id=str(tmp_path)).score(TRACES)
    with pytest.raises(UserError, match="there is no folder"):
        Qwen(id="nowhere").score(TRACES)
    QwenCase(tmp_path / "qwen")
    # the same names as one of Skywork's heads, but two classes
    with pytest.raises(UserError, match="can't load"):
        Skywork(id=str(tmp_path / "qwen")).score(TRACES)
    RlhflowCase(tmp_path / "llama")
    with pytest.raises(UserError, match="has neither of Skywork's heads") as error:
        Skywork(id=str(tmp_path / "llama")).score(TRACES)
    assert "besides the language model it has no weights" in error.value.hint


def test_weights_are_known_by_what_they_are(qwen, tmp_path) -> None:
    other = QwenCase.__new__(QwenCase)
    other.folder = tmp_path
    torch.manual_seed(6)
    other.make()
    assert qwen().identity() == qwen(batch=1, threads=2).identity() != other().identity()
    assert qwen().identity() != qwen(window=64).identity()
    assert qwen().parameters() == sum(p.numel() for p in qwen.states.parameters())


def test_pickled_weights_are_known_by_what_they_are_too(tmp_path) -> None:
    one = SkyworkCase(tmp_path / "one")
    torch.save({"v_head.summary.weight": torch.zeros(1)}, tmp_path / "one" / "pytorch_model.bin")
    assert one().identity() != SkyworkCase(tmp_path / "two")().identity()


def test_a_stream_gives_each_trace_as_soon_as_its_rows_are_done(qwen) -> None:
    """The longest rows come first, and a trace is there before the next batch is begun."""
    reward = qwen(batch=1)
    lengths = [sum(map(len, trace.part("all"))) for trace in TRACES]
    work = scores_by_index(reward, TRACES)
    first, _ = next(work)
    assert lengths[first] == max(lengths)
    found = {first: _, **dict(work)}
    alone = reward.score(TRACES)
    assert [found[n] for n in range(len(TRACES))] == alone
    empty = cut("What is x?")
    assert list(scores_by_index(reward, [empty])) == [(0, Scores(why="nothing to score"))]
