"""Rewards: each adapter's scores are those of a plain forward pass over the published format, one step at a time."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from msgspec import to_builtins
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import (
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2Model,
)

from ponder.cli.check import reward as check_reward
from ponder.core import Request, Reward, Scores, Steps, UserError
from ponder.models.pocket import CODECS
from ponder.models.pocket.codec import ANSWER
from ponder.recipes.faults import traces
from ponder.rewards._states import mean_states
from ponder.rewards._windows import batches, spans
from ponder.rewards.judge import Judge, parse
from ponder.rewards.oracle import Oracle
from ponder.rewards.pocket.log_probs import WithLogProbs
from ponder.rewards.qwen import SYSTEM, Qwen
from ponder.rewards.reasonflux import Reasonflux
from ponder.rewards.rlhflow import Rlhflow
from ponder.rewards.shepherd import Shepherd
from ponder.rewards.skywork import Skywork
from ponder.tasks.execution import Execution
from ponder.tasks.tents import Tents
from ponder.traces import similarity

CORPUS = [
    "Step 1: We add 3 + 4 and get 7. So x = 7.\n\nStep 2: Then 7 - 2 is 5. ки\nThe answer is \\boxed{5}.",
    "What is the sum of all the numbers from 12 to 48? Let me think about it again, slowly. Wait - no. ки ки ки",
    "因此我们得到答案。所以 x 等于 4。 для решения задачи нам нужны числа. ки",
]
SHAPE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
SHAPE |= {"num_key_value_heads": 2, "max_position_embeddings": 256}
WIDE = 10**6  # a window that nothing is too long for
CHATML = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nBe exact.<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
)
LLAMA3 = (
    "<|begin_of_text|>{% for m in messages %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n"
    "{{ m['content'] | trim }}<|eot_id|>{% endfor %}"
)
# As Qwen2 and Llama 3 cut text before they look for pairs.
PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def bytes_tokenizer(folder: Path, template: str, special: list[str], **names: str) -> int:
    tokenizer = Tokenizer(models.BPE())
    cut = pre_tokenizers.Split(Regex(PIECES), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        CORPUS * 5, trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=template, **names)
    made.save_pretrained(folder)
    return len(made)


def sentencepiece_tokenizer(folder: Path) -> int:
    """As Llama 2 and Mistral have it: a space before all, spaces as letters, bytes for what is unknown."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    first = ["<unk>", "<s>", "</s>", *(f"<0x{n:02X}>" for n in range(256))]
    lines = [line for text in CORPUS for line in text.split("\n")]
    tokenizer.train_from_iterator(
        lines * 5, trainers.BpeTrainer(vocab_size=600, special_tokens=first, show_progress=False)
    )
    plain = json.loads(tokenizer.to_str())
    plain["added_tokens"] = plain["added_tokens"][:3]
    plain["pre_tokenizer"] = None
    tokenizer = Tokenizer.from_str(json.dumps(plain))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    made.save_pretrained(folder)
    return len(made)


def qwen2(folder: Path, **head: torch.Tensor) -> Qwen2Model:
    """Weights as published: Qwen2's under `model.`, the head's beside them."""
    size = bytes_tokenizer(
        folder, CHATML, ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<extra_0>"], bos_token="<|endoftext|>"
    )
    states = Qwen2Model(Qwen2Config(vocab_size=size, initializer_range=0.3, **SHAPE)).eval()
    weights = {f"model.{name}": weight for name, weight in states.state_dict().items()} | head
    save_file({name: w.contiguous() for name, w in weights.items()}, folder / "model.safetensors", {"format": "pt"})
    published = json.loads(states.config.to_json_string()) | {
        "architectures": ["Qwen2ForProcessRewardModel"],
        "auto_map": {"AutoModel": "modeling_qwen2_rm.Qwen2ForProcessRewardModel"},
    }
    (folder / "config.json").write_text(json.dumps(published))
    return states


def mlp() -> dict[str, torch.Tensor]:
    shapes = {"score.0.weight": (32, 32), "score.0.bias": (32,), "score.2.weight": (2, 32), "score.2.bias": (2,)}
    return {name: torch.randn(shape) * 0.5 for name, shape in shapes.items()}


class Case:
    """A tiny model in a folder, and the score of the last step of a text by a plain forward pass."""

    reward: type[Reward]

    def __init__(self, folder: Path) -> None:
        torch.manual_seed(5)
        self.folder = folder
        self.make()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)

    def __call__(self, **settings) -> Reward:
        return self.reward(id=str(self.folder), **settings)

    def expected(self, question: str, steps: tuple[str, ...]) -> list[float]:
        return [self.last(question, steps[: n + 1]) for n in range(len(steps))]


class QwenCase(Case):
    reward = Qwen
    system = ({"role": "system", "content": SYSTEM},)

    def make(self) -> None:
        self.head = mlp()
        self.states = qwen2(self.folder, **self.head)

    def last(self, question: str, steps: tuple[str, ...]) -> float:
        said = "<extra_0>".join(steps) + "<extra_0>"
        turns = [*self.system, {"role": "user", "content": question}, {"role": "assistant", "content": said}]
        tokens = self.tokenizer(self.tokenizer.apply_chat_template(turns, tokenize=False))["input_ids"]
        end = len(tokens) - 1 - tokens[::-1].index(self.tokenizer.convert_tokens_to_ids("<extra_0>"))
        hidden = self.states(torch.tensor([tokens])).last_hidden_state[0, end]
        inner = torch.relu(self.head["score.0.weight"] @ hidden + self.head["score.0.bias"])
        return (self.head["score.2.weight"] @ inner + self.head["score.2.bias"]).softmax(0)[1].item()


class ReasonfluxCase(QwenCase):
    reward = Reasonflux
    system = ()

    def trajectory(self, question: str, steps: tuple[str, ...]) -> float:
        return self.last(question, ("\n\n".join(steps),))


class SmallReasonfluxCase(Case):
    reward = Reasonflux

    def make(self) -> None:
        self.states = qwen2(self.folder)
        self.head = torch.nn.Linear(32, 1)
        torch.save(self.head.state_dict(), self.folder / "reward_head.pt")

    def last(self, question: str, steps: tuple[str, ...]) -> float:
        tokens = self.tokenizer(question + "\n\n".join(steps))["input_ids"]
        return self.head(self.states(torch.tensor([tokens])).last_hidden_state[0, -1]).sigmoid().item()

    def expected(self, question: str, steps: tuple[str, ...]) -> list[float]:
        """Read where each step ends in the one text: a point and the gap behind it may be one token."""
        text, found = question + "\n\n".join(steps), []
        coded = self.tokenizer(text, return_offsets_mapping=True)
        values = self.head(self.states(torch.tensor([coded["input_ids"]])).last_hidden_state[0]).sigmoid()[:, 0]
        for n in range(len(steps)):
            end = len(question + "\n\n".join(steps[: n + 1]))
            found.append(values[next(k for k, (_, stop) in enumerate(coded["offset_mapping"]) if stop >= end)].item())
        return found

    def trajectory(self, question: str, steps: tuple[str, ...]) -> float:
        return self.last(question, steps)


class SkyworkCase(Case):
    reward = Skywork

    def make(self) -> None:
        self.head = {"v_head.summary.weight": torch.randn(1, 32) * 0.5, "v_head.summary.bias": torch.randn(1)}
        self.states = qwen2(self.folder, **self.head)

    def last(self, question: str, steps: tuple[str, ...]) -> float:
        tokens = self.tokenizer.encode(self.tokenizer.bos_token + question + "\n")
        for step in steps:  # apart from each other, as the published code encodes them
            tokens += self.tokenizer.encode(step) + self.tokenizer.encode("\n")[-1:]
        hidden = self.states(torch.tensor([tokens])).last_hidden_state[0, -1]
        return (self.head["v_head.summary.weight"][0] @ hidden + self.head["v_head.summary.bias"]).sigmoid().item()


class ShepherdCase(Case):
    reward = Shepherd

    def make(self) -> None:
        size = sentencepiece_tokenizer(self.folder)
        self.model = MistralForCausalLM(MistralConfig(vocab_size=size, initializer_range=0.3, **SHAPE)).eval()
        self.model.save_pretrained(self.folder)

    def last(self, question: str, steps: tuple[str, ...]) -> float:
        text = question + " " + "\n".join(f"Step {n}: {step} ки" for n, step in enumerate(steps, 1))
        tokens = [1, *self.tokenizer(text, add_special_tokens=False)["input_ids"]]
        marker = self.tokenizer("ки", add_special_tokens=False)["input_ids"]
        assert tokens[-1:] == marker  # one token, as in the published tokenizer
        good, bad = (self.tokenizer(sign, add_special_tokens=False)["input_ids"][-1] for sign in "+-")
        return self.model(torch.tensor([tokens])).logits[0, -1, [good, bad]].softmax(0)[0].item()


class RlhflowCase(Case):
    reward = Rlhflow

    def make(self) -> None:
        special = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
        size = bytes_tokenizer(self.folder, LLAMA3, special, bos_token=special[0])
        self.model = LlamaForCausalLM(LlamaConfig(vocab_size=size, initializer_range=0.3, **SHAPE)).eval()
        self.model.save_pretrained(self.folder)

    def last(self, question: str, steps: tuple[str, ...]) -> float:
        turns = []
        for n, step in enumerate(steps):
            turns += [{"role": "user", "content": step if n else f"{question} {step}"}]
            turns += [{"role": "assistant", "content": "+"}]
        tokens = self.tokenizer(self.tokenizer.apply_chat_template(turns, tokenize=False))["input_ids"]
        good, bad = (self.tokenizer.encode(sign)[-1] for sign in "+-")
        return self.model(torch.tensor([tokens])).logits[0, -3, [good, bad]].softmax(0)[0].item()


CASES = {
    "qwen": QwenCase,
    "reasonflux": ReasonfluxCase,
    "reasonflux 1.5B": SmallReasonfluxCase,
    "skywork": SkyworkCase,
    "shepherd": ShepherdCase,
    "rlhflow": RlhflowCase,
}


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory) -> Case:
    return CASES[request.param](tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="module")
def qwen(tmp_path_factory) -> QwenCase:
    return QwenCase(tmp_path_factory.mktemp("qwen"))


def cut(question: str, *steps: str, answer: tuple[str, ...] = (), name: str = "t") -> Steps:
    return Steps(name, question, steps, answer)


TRACES = [
    cut("What is 3 + 4?", "We add 3 + 4 and get 7.", "So x = 7.", answer=("The answer is \\boxed{7}.",)),
    cut("What is 7 - 2?", answer=("Then 7 - 2 is 5.",)),  # no thinking, one step
    cut("求 x。", "因此我们得到答案。", "所以 x 等于 4。", "для решения"),
    cut("Sum 12 to 48?", *(f"Let me think about {n} again.\nWait - no: {n} + {n}." for n in range(9))),
    cut("What is 3 + 4?", "We add 3 + 4 and get 7.", "So x = 7.", answer=("The answer is \\boxed{7}.",)),  # again
]


def test_scores_are_those_of_a_plain_forward_pass(case) -> None:
    for trace, scores in zip(TRACES, case(window=WIDE).score(TRACES), strict=True):
        steps = trace.part("all")
        assert scores.steps == pytest.approx(case.expected(trace.question, steps), abs=1e-5)
        mean = sum(scores.steps) / len(steps)
        if hasattr(case, "trajectory"):
            assert scores.trajectory == pytest.approx(case.trajectory(trace.question, steps), abs=1e-5)
            assert scores.total == pytest.approx(mean + scores.trajectory)
        else:
            assert scores.trajectory is None
            assert scores.total == pytest.approx(mean)
        assert scores.bill.prompt_tokens > 0
    assert len({round(s, 6) for scores in case().score(TRACES) for s in scores.steps}) > 12  # it isn't a constant


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
        assert scores[0].steps == pytest.approx(case.expected(TRACES[0].question, TRACES[0].part(of)), abs=1e-5)
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
    special = {tokenizer.base.convert_tokens_to_ids(t) for t in ("<extra_0>", "<|im_start|>", "<|im_end|>")}
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
    steps = tuple(" ".join(rng.choice(["add", "7", "so", "x", "get"], rng.integers(1, 9))) for _ in range(60))
    trace = cut("What is x?", *steps)
    (scores,) = case(window=window, context=context).score([trace])
    _, _, tokenizer = case().loaded
    (reading,) = case().read(tokenizer, [trace])
    lengths = [len(step) + len(reading.join) for step in reading.steps]
    longer = max((len(a) - len(b) for a, b in zip(reading.first, reading.steps, strict=False)), default=0)
    room = window - len(reading.head) - len(reading.tail) - longer + len(reading.join)
    new = rows = 0
    while new < len(steps):
        # The last steps before that fit into a quarter of the window beside one new step, then all that fit.
        starts = [
            s for s in range(new + 1) if sum(lengths[s:new]) <= context * window and sum(lengths[s : new + 1]) <= room
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
    weights = load_file(tmp_path / "model.safetensors")
    save_file(
        weights | {"score.2.bias": torch.tensor([math.nan, 0.0])}, tmp_path / "model.safetensors", {"format": "pt"}
    )
    (scores,) = case().score(TRACES[:1])
    assert (scores.steps, scores.total, scores.why) == ((), None, "the reward returned NaN")


def test_weights_of_another_kind_are_refused(tmp_path) -> None:
    SkyworkCase(tmp_path)
    with pytest.raises(UserError, match=r"lacks the weights score\.0\.bias"):
        Qwen(id=str(tmp_path)).score(TRACES)
    with pytest.raises(UserError, match="there is no folder"):
        Qwen(id="nowhere").score(TRACES)


class Fixed(Reward):
    """Says what it is told."""

    def rate(self, traces):
        return [Scores(tuple(t.facts["says"]), t.facts.get("whole")) for t in traces]


def says(*scores: float, whole: float | None = None) -> Steps:
    return Steps("t", "q", ("s",) * 3, (), {"says": scores, "whole": whole})


@pytest.mark.parametrize(("aggregate", "total"), [("mean", 0.5), ("min", 0.2), ("last", 0.4), ("product", 0.072)])
def test_totals(aggregate, total) -> None:
    (scores,) = Fixed(aggregate=aggregate).score([says(0.9, 0.2, 0.4)])
    assert scores.total == pytest.approx(total)
    (scores,) = Fixed(aggregate=aggregate, alpha=0.8).score([says(0.9, 0.2, 0.4, whole=0.5)])
    assert scores.total == pytest.approx(total + 0.4)


def test_what_is_no_score_fails_and_says_why() -> None:
    given = [says(0.9, 0.2), says(0.9, math.nan, 0.1), says(0.9, 1.2, 0.1), says(0, 0, 0, whole=-1), says(0, 1, 0.5)]
    found = Fixed().score(given)
    assert [scores.why for scores in found] == [
        "the reward returned 2 scores for 3 steps",
        "the reward returned NaN",
        "the reward returned 1.2, which is not from 0 to 1",
        "the reward returned -1, which is not from 0 to 1",
        "",
    ]
    assert [scores.total for scores in found] == [None, None, None, None, 0.5]


def test_any_number_of_traces_is_scored_a_few_at_a_time() -> None:
    taken = itertools.count()
    endless = (says(0.9, 0.2, 0.4) for _ in taken)
    found = list(itertools.islice(Fixed().scored(endless, batch=4), 6))
    assert len(found) == 6
    assert next(taken) == 8


def test_windows_hold_every_step_once() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        lengths = rng.integers(1, 30, rng.integers(1, 40)).tolist()
        room, context = int(rng.integers(30, 90)), int(rng.integers(0, 40))
        done = 0
        for first, new, last in spans(lengths, room, context):
            assert new == done
            assert first <= new < last
            assert sum(lengths[first:last]) <= room
            assert sum(lengths[first:new]) <= context
            assert last == len(lengths) or sum(lengths[first : last + 1]) > room
            done = last
        assert done == len(lengths)


def test_batches_hold_every_row_once() -> None:
    lengths = np.random.default_rng(2).integers(1, 90, 200).tolist()
    found = batches(lengths, 256)
    assert sorted(n for some in found for n in some) == list(range(200))
    assert all(len(some) * max(lengths[n] for n in some) <= 256 for some in found)
    padding = sum(len(some) * max(lengths[n] for n in some) for some in found) / sum(lengths)
    assert padding < 1.05


SCRIPTED = '''"""A model that says what it is told."""
from dataclasses import dataclass, field
from ponder.core import Bill, Completion, Model, ModelFailure
@dataclass(kw_only=True)
class Scripted(Model):
    says: list[str] = field(default_factory=list)
    async def complete(self, request):
        asked.append(request.messages[-1].content)
        said = self.says[(len(asked) - 1) % len(self.says)]
        if said == "down":
            raise ModelFailure("endpoint down")
        return Completion("", said, "end", Bill(10, 0, 5))
asked = []
'''


def judge(tmp_path: Path, name: str, *says: str, **settings) -> tuple[Judge, list[str]]:
    (tmp_path / f"{name}.py").write_text(SCRIPTED)
    made = Judge(model={"name": str(tmp_path / f"{name}.py"), "says": list(says)}, **settings)
    import sys

    return made, sys.modules[name].asked


def test_a_judge_scores_and_is_billed(tmp_path) -> None:
    reward, asked = judge(
        tmp_path, "judge_one", 'Well: {"a": 1} ```json\n{"steps": [0.9, 0, 1], "whole": 0.5}\n``` done'
    )
    (scores,) = reward.score(TRACES[:1])
    assert scores.steps == (0.9, 0.0, 1.0)
    assert scores.trajectory == 0.5
    assert scores.bill.tokens == 15
    assert "Step 3:\nThe answer is \\boxed{7}." in asked[0]
    assert "3 numbers" in asked[0]


def test_a_judge_that_says_nothing_useful_fails(tmp_path) -> None:
    replies = [
        "I like it.",
        '{"steps": [1], "whole": 1}',
        '{"steps": [1, 2, 0], "whole": 1}',
        '{"steps": [1, 1, 1]}',
        "down",
    ]
    reward, _ = judge(tmp_path, "judge_two", *replies)
    found = reward.score([TRACES[0]] * 5)
    assert [scores.total for scores in found] == [None] * 5
    assert [scores.why for scores in found] == [
        "the judge: no scores in the reply",
        "the judge: 1 scores for 3 steps",
        "the judge: 2 is not a score from 0 to 1",
        "the judge: None is not a score from 0 to 1",
        "the judge: endpoint down",
    ]
    assert found[0].bill.tokens == 15
    assert found[4].bill.tokens == 0


def test_a_judge_reads_long_traces_in_windows(tmp_path) -> None:
    trace = cut("q", *(f"step {n}: " + "x" * 300 for n in range(4)))
    replies = (
        '{"steps": [0.1, 0.2], "whole": 0.3}',
        '{"steps": [0.4], "whole": 0.5}',
        '{"steps": [{"score": 0.6}], "whole": 0.7}',
    )
    reward, asked = judge(tmp_path, "judge_three", *replies, window=200, context=0.5)
    (scores,) = reward.score([trace])
    assert scores.steps == (0.1, 0.2, 0.4, 0.6)
    assert scores.trajectory == 0.7
    assert scores.bill.tokens == 3 * 15
    assert "Those before step 3 are shown" in asked[1]
    assert "step 1: " in asked[1]
    assert "step 0: " not in asked[1]


def test_a_judges_reply_is_read_in_bounded_time() -> None:
    with pytest.raises(ValueError, match="no scores"):
        parse("{" * 20_000, 3)
    with pytest.raises(ValueError, match="not a score from 0 to 1"):
        parse('{"steps": [NaN], "whole": 1}', 1)
    with pytest.raises(UserError, match="has no key `adress`"):
        Judge(model={"name": "endpoint", "id": "x", "adress": "y"})


def test_the_oracle_takes_the_labels_of_a_trace() -> None:
    def known(**facts) -> Scores:
        return Oracle().score([Steps("t", "q", ("a", "b"), ("c",), facts)])[0]

    assert known(labels=[True, 0.5, 0]).steps == (1.0, 0.5, 0.0)
    assert known(label=1).steps == (1.0, 0.0, 0.0)
    assert known(label=-1, correct=True) == Scores((1.0, 1.0, 1.0), 1.0, 2.0)
    assert known().why == "it has no labels"
    assert known(labels=["good"] * 3).total is None
    assert known(labels=[1, 1]).why == "the reward returned 2 scores for 3 steps"
    assert Oracle(tells=lambda trace: [0.25] * 3).score([TRACES[0]])[0].total == 0.25


def right_steps(codec, request: Request) -> list[str]:
    """The pocket model's thinking without an error."""
    said = codec.lesson(request).said
    return codec.split(" ".join(said[: said.index(ANSWER)]))


def test_a_codec_finds_the_first_wrong_step() -> None:
    task, codec = Execution(dictionary=8, per_turn=0), CODECS["execution"]
    request = Request.first_turn(task, task.problem(6, seed=4))
    right = right_steps(codec, request)
    assert len(right) == 7
    assert codec.sound(request, right) == [True] * 7
    assert codec.sound(request, right[:4]) == [True] * 4
    assert codec.sound(request, [*right, right[-1]]) == [True] * 7 + [False]
    wrong = [*right[:3], right[3].rsplit(" ", 1)[0] + " k9", *right[4:]]
    assert codec.sound(request, wrong) == [True] * 3 + [False] * 4
    again = [*wrong, f"<again> {right[0]}", *right[1:]]
    assert codec.sound(request, again) == [True] * 3 + [False] * 4 + [True] * 7


def test_the_oracle_asks_the_codec_that_a_trace_names() -> None:
    task, codec = Execution(dictionary=8, per_turn=0), CODECS["execution"]
    request = Request.first_turn(task, task.problem(6, seed=4))
    right = right_steps(codec, request)
    wrong = (*right[:3], right[3].rsplit(" ", 1)[0] + " k9", *right[4:])
    facts = {"codec": "pocket", "task": "execution", "problem": to_builtins(request.problem)}
    trace = Steps("t", "q", wrong, (task.solve(request.problem),), facts)
    assert Oracle().score([trace])[0].steps == (1.0,) * 3 + (0.0,) * 4 + (1.0,)
    assert Oracle(of="thinking").score([trace])[0].steps == (1.0,) * 3 + (0.0,) * 4
    assert Oracle(of="answer").score([trace])[0].steps == (1.0,)
    missaid = dataclasses.replace(trace, answer=("<answer>123456</answer>",))
    assert Oracle(of="answer").score([missaid])[0].steps == (0.0,)
    # Traces from before they named their codec: not scored, and the key is named.
    del facts["codec"]
    assert Oracle().score([dataclasses.replace(trace, facts=facts)])[0] == Scores(
        why="no labels, and no key `codec` to check it with"
    )
    unknown = dataclasses.replace(trace, facts={**facts, "codec": "endpoint"})  # a model without a codec
    assert Oracle().score([unknown])[0].why == "it has no labels"


def test_injected_errors_are_those_that_the_codec_finds() -> None:
    for trace in itertools.islice(traces(3), 40):
        found = dataclasses.replace(trace, facts={k: v for k, v in trace.facts.items() if k != "labels"})
        assert Oracle().score([found])[0].steps == tuple(map(float, trace.facts["labels"]))


def test_a_codec_checks_tents() -> None:
    task, codec = Tents(), CODECS["tents"]
    request = Request.first_turn(task, task.problem(16, seed=1))
    right = right_steps(codec, request)
    assert len(right) > 10
    assert codec.sound(request, right) == [True] * len(right)
    at = next(n for n, step in enumerate(right) if step.endswith("A"))
    wrong = [*right[:at], right[at][:-1] + ".", *right[at + 1 :]]
    assert codec.sound(request, wrong)[at - 1 : at + 2] == [True, False, False]


def test_log_probabilities_are_added_to_the_states() -> None:
    """Against a plain loop over tokens: the lowest since the pass began, and ten times its exponential."""
    torch.manual_seed(3)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=20, initializer_range=0.5, **SHAPE)).eval()
    begins, ids = (7, 9), torch.tensor([[3, 4, 7, 5, 6, 11, 9, 2, 2], [3, 7, 5, 9, 1, 1, 1, 1, 1]])
    with torch.no_grad():
        extended = WithLogProbs(model, list(begins))(ids).last_hidden_state
        logs = model(ids).logits.log_softmax(-1)
        states = model.base_model(ids).last_hidden_state
    assert torch.allclose(extended[..., :-2], states)
    for row in range(2):
        lowest = 0.0
        for n, token in enumerate(ids[row].tolist()):
            inside = any(t in begins for t in ids[row, :n].tolist())
            if token in begins:
                lowest = 0.0
            elif inside:
                lowest = min(lowest, max(logs[row, n - 1, token].item(), -10.0))
            assert extended[row, n, -2].item() == pytest.approx(lowest, abs=1e-4)
            assert extended[row, n, -1].item() == pytest.approx(10 * math.exp(lowest), abs=1e-4)


def test_mean_states_are_means_of_states(tmp_path) -> None:
    case = SkyworkCase(tmp_path)
    texts = ["So x = 7.", "", "What is the sum of all the numbers?"]
    found = mean_states(str(tmp_path))(texts)
    for text, row in zip(texts, found, strict=True):
        tokens = case.tokenizer(text)["input_ids"]
        mean = case.states(torch.tensor([tokens])).last_hidden_state[0].mean(0) if tokens else torch.zeros(32)
        assert row == pytest.approx(mean.detach().numpy(), abs=1e-5)
    assert similarity(texts, texts[:1], mean_states(str(tmp_path)))[0, 0] == pytest.approx(1.0)


def test_weights_are_known_by_what_they_are(qwen, tmp_path) -> None:
    other = QwenCase.__new__(QwenCase)
    other.folder = tmp_path
    torch.manual_seed(6)
    other.make()
    assert qwen().identity() == qwen(batch=1, threads=2).identity() != other().identity()
    assert qwen().identity() != qwen(window=64).identity()
    assert qwen().parameters() == sum(p.numel() for p in qwen.states.parameters())
