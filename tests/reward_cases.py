"""Tiny checkpoints with the published files of reward models, their scores by a plain forward pass,
and traces to score.

Files, keys of the configs and names of the tensors are those on the hub: sharded safetensors (Qwen,
ReasonFlux 7B, RLHFlow), one pickled file with the language model's own output layer (Skywork),
pickled shards (Math-Shepherd), and a head in a file of its own (ReasonFlux 1.5B). All are in
bfloat16.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from transformers import (
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from ponder.core import Reward, Steps
from ponder.rewards.qwen import SYSTEM, Qwen
from ponder.rewards.reasonflux import Reasonflux
from ponder.rewards.rlhflow import Rlhflow
from ponder.rewards.shepherd import Shepherd
from ponder.rewards.skywork import Skywork

CORPUS = [
    "Step 1: We add 3 + 4 and get 7. So x = 7.\n\nStep 2: Then 7 - 2 is 5. ки\nThe answer is \\boxed{5}.",
    "What is the sum of all the numbers from 12 to 48? Let me think about it again, slowly. Wait - no. ки ки ки",
    "因此我们得到答案。所以 x 等于 4。 для решения задачи нам нужны числа. ки",
]
SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
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
PIECES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def bytes_tokenizer(folder: Path, template: str, special: list[str], **names: str) -> int:
    tokenizer = Tokenizer(models.BPE())
    cut = pre_tokenizers.Split(Regex(PIECES), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [cut, pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        CORPUS * 5,
        trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False),
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=template, **names)
    made.save_pretrained(folder)
    return len(made)


def sentencepiece_tokenizer(folder: Path) -> int:
    """As Llama 2 and Mistral have it: a space before all, spaces as letters, bytes for what is
    unknown.
    """
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
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    made.save_pretrained(folder)
    return len(made)


def publish(
    folder: Path, weights: dict[str, torch.Tensor], config: dict, shards: int, kind: str
) -> None:
    """Write weights as they are on the hub, in one file or in shards with an index."""
    weights = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in weights.items()}
    stem, ending = ("model", "safetensors") if kind == "safetensors" else ("pytorch_model", "bin")
    names = (
        [f"{stem}-{n + 1:05}-of-{shards:05}.{ending}" for n in range(shards)]
        if shards > 1
        else [f"{stem}.{ending}"]
    )
    for n, name in enumerate(names):
        part = {key: weights[key] for key in list(weights)[n::shards]}
        if kind == "safetensors":
            save_file(part, folder / name, {"format": "pt"})
        else:
            torch.save(part, folder / name)
    if shards > 1:
        places = {key: names[k % shards] for k, key in enumerate(weights)}
        total = sum(tensor.nbytes for tensor in weights.values())
        index = {"metadata": {"total_size": total}, "weight_map": places}
        (folder / f"{stem}.{ending}.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(config))


def config_of(model: torch.nn.Module, **more) -> dict:
    """A config as transformers 4 wrote it: without what it has learnt since."""
    config = json.loads(model.config.to_json_string())
    for new in ("rope_parameters", "layer_types", "dtype", "transformers_version"):
        config.pop(new, None)
    return {
        **config,
        "rope_theta": 10000.0,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.37.0",
        **more,
    }


QWEN_PRM = {
    "architectures": ["Qwen2ForProcessRewardModel"],
    "auto_map": {
        "AutoConfig": "configuration_qwen2_rm.Qwen2RMConfig",
        "AutoModel": "modeling_qwen2_rm.Qwen2ForProcessRewardModel",
    },
    "sliding_window": 131072,
    "use_sliding_window": False,
    "use_mrope": False,
    "tie_word_embeddings": False,
}
SKYWORK = {
    "architectures": ["Qwen2ForPrmModel"],
    "auto_map": {
        "AutoConfig": "configuration_qwen2_rm.Qwen2RMConfig",
        "AutoModel": "modeling_qwen2_rm.Qwen2ForRewardModel",
    },
    "end_token_id": 0,
    "sliding_window": None,
    "use_sliding_window": False,
}
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<extra_0>"]


def qwen2(folder: Path) -> torch.nn.Module:
    """A tokenizer in the folder, and a language model for it with weights that bfloat16 holds
    exactly.
    """
    size = bytes_tokenizer(folder, CHATML, SPECIAL, bos_token="<|endoftext|>")
    return exact(Qwen2ForCausalLM(Qwen2Config(vocab_size=size, initializer_range=0.3, **SHAPE)))


def exact(model: torch.nn.Module) -> torch.nn.Module:
    """With weights that bfloat16 holds exactly; not its buffers, which are no part of a checkpoint."""
    for weight in model.parameters():
        weight.data = weight.data.to(torch.bfloat16).float()
    return model.eval()


def rounded(**head: torch.Tensor) -> dict[str, torch.Tensor]:
    return {name: weight.to(torch.bfloat16).float() for name, weight in head.items()}


def mlp() -> dict[str, torch.Tensor]:
    shapes = {
        "score.0.weight": (32, 32),
        "score.0.bias": (32,),
        "score.2.weight": (2, 32),
        "score.2.bias": (2,),
    }
    return rounded(**{name: torch.randn(shape) * 0.5 for name, shape in shapes.items()})


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
        model = qwen2(self.folder)
        self.states = model.model
        weights = {
            name: weight for name, weight in model.state_dict().items() if name != "lm_head.weight"
        }
        publish(
            self.folder, {**weights, **self.head}, config_of(model, **QWEN_PRM), 4, "safetensors"
        )

    def last(self, question: str, steps: tuple[str, ...]) -> float:
        said = "<extra_0>".join(steps) + "<extra_0>"
        turns = [
            *self.system,
            {"role": "user", "content": question},
            {"role": "assistant", "content": said},
        ]
        tokens = self.tokenizer(self.tokenizer.apply_chat_template(turns, tokenize=False))[
            "input_ids"
        ]
        end = (
            len(tokens) - 1 - tokens[::-1].index(self.tokenizer.convert_tokens_to_ids("<extra_0>"))
        )
        hidden = self.states(torch.tensor([tokens])).last_hidden_state[0, end]
        inner = torch.relu(self.head["score.0.weight"] @ hidden + self.head["score.0.bias"])
        return (
            (self.head["score.2.weight"] @ inner + self.head["score.2.bias"]).softmax(0)[1].item()
        )


class ReasonfluxCase(QwenCase):
    reward = Reasonflux
    system = ()

    def trajectory(self, question: str, steps: tuple[str, ...]) -> float:
        return self.last(question, ("\n\n".join(steps),))


class SmallReasonfluxCase(Case):
    reward = Reasonflux

    def make(self) -> None:
        model = qwen2(self.folder)
        self.states = model.model
        weights = {
            name: weight for name, weight in model.state_dict().items() if name != "lm_head.weight"
        }
        config = config_of(model, architectures=["Qwen2ForCausalLM"], tie_word_embeddings=True)
        publish(self.folder, weights, config, 1, "safetensors")
        self.head = torch.nn.Linear(32, 1)
        torch.save(self.head.state_dict(), self.folder / "reward_head.pt")

    def last(self, question: str, steps: tuple[str, ...]) -> float:
        tokens = self.tokenizer(question + "\n\n".join(steps))["input_ids"]
        return (
            self.head(self.states(torch.tensor([tokens])).last_hidden_state[0, -1]).sigmoid().item()
        )

    def expected(self, question: str, steps: tuple[str, ...]) -> list[float]:
        """Read where each step ends in the one text: a point and the gap behind it may be one
        token.
        """
        text, found = question + "\n\n".join(steps), []
        coded = self.tokenizer(text, return_offsets_mapping=True)
        values = self.head(
            self.states(torch.tensor([coded["input_ids"]])).last_hidden_state[0]
        ).sigmoid()[:, 0]
        for n in range(len(steps)):
            end = len(question + "\n\n".join(steps[: n + 1]))
            found.append(
                values[
                    next(k for k, (_, stop) in enumerate(coded["offset_mapping"]) if stop >= end)
                ].item()
            )
        return found

    def trajectory(self, question: str, steps: tuple[str, ...]) -> float:
        return self.last(question, steps)


class SkyworkCase(Case):
    reward = Skywork
    tied = False

    def make(self) -> None:
        self.head = rounded(**self.weights_of_head())
        model = qwen2(self.folder)
        self.states = model.model
        config = config_of(model, **SKYWORK, tie_word_embeddings=self.tied)
        publish(self.folder, {**model.state_dict(), **self.head}, config, 1, "bin")

    def weights_of_head(self) -> dict[str, torch.Tensor]:
        return {
            "v_head.summary.weight": torch.randn(1, 32) * 0.5,
            "v_head.summary.bias": torch.randn(1),
        }

    def value(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.head["v_head.summary.weight"][0] @ hidden + self.head["v_head.summary.bias"]

    def last(self, question: str, steps: tuple[str, ...]) -> float:
        tokens = self.tokenizer.encode(self.tokenizer.bos_token + question + "\n")
        for step in steps:  # apart from each other, as the published code encodes them
            tokens += self.tokenizer.encode(step) + self.tokenizer.encode("\n")[-1:]
        return (
            self.value(self.states(torch.tensor([tokens])).last_hidden_state[0, -1])
            .sigmoid()
            .item()
        )


class SmallSkyworkCase(SkyworkCase):
    tied = True


class SkyworkRewardModelCase(SkyworkCase):
    """The head of the class that Skywork's configs name: Qwen2ForRewardModel."""

    def weights_of_head(self) -> dict[str, torch.Tensor]:
        shapes = {
            "score.0.weight": (32, 32),
            "score.0.bias": (32,),
            "score.2.weight": (1, 32),
            "score.2.bias": (1,),
        }
        return {name: torch.randn(shape) * 0.5 for name, shape in shapes.items()}

    def value(self, hidden: torch.Tensor) -> torch.Tensor:
        inner = torch.relu(self.head["score.0.weight"] @ hidden + self.head["score.0.bias"])
        return self.head["score.2.weight"][0] @ inner + self.head["score.2.bias"]


class ShepherdCase(Case):
    reward = Shepherd

    def make(self) -> None:
        size = sentencepiece_tokenizer(self.folder)
        self.model = exact(
            MistralForCausalLM(MistralConfig(vocab_size=size, initializer_range=0.3, **SHAPE))
        )
        config = config_of(self.model, architectures=["MistralForCausalLM"], sliding_window=4096)
        publish(self.folder, self.model.state_dict(), config, 2, "bin")

    def last(self, question: str, steps: tuple[str, ...]) -> float:
        text = question + " " + "\n".join(f"Step {n}: {step} ки" for n, step in enumerate(steps, 1))
        tokens = [1, *self.tokenizer(text, add_special_tokens=False)["input_ids"]]
        marker = self.tokenizer("ки", add_special_tokens=False)["input_ids"]
        assert tokens[-1:] == marker  # one token, as in the published tokenizer
        good, bad = (
            self.tokenizer(sign, add_special_tokens=False)["input_ids"][-1] for sign in "+-"
        )
        return self.model(torch.tensor([tokens])).logits[0, -1, [good, bad]].softmax(0)[0].item()


class RlhflowCase(Case):
    reward = Rlhflow

    def make(self) -> None:
        special = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
        size = bytes_tokenizer(self.folder, LLAMA3, special, bos_token=special[0])
        self.model = exact(
            LlamaForCausalLM(LlamaConfig(vocab_size=size, initializer_range=0.3, **SHAPE))
        )
        config = config_of(
            self.model, architectures=["LlamaForCausalLM"], tie_word_embeddings=False
        )
        publish(self.folder, self.model.state_dict(), config, 4, "safetensors")

    def last(self, question: str, steps: tuple[str, ...]) -> float:
        turns = []
        for n, step in enumerate(steps):
            turns += [{"role": "user", "content": step if n else f"{question} {step}"}]
            turns += [{"role": "assistant", "content": "+"}]
        tokens = self.tokenizer(self.tokenizer.apply_chat_template(turns, tokenize=False))[
            "input_ids"
        ]
        good, bad = (self.tokenizer.encode(sign)[-1] for sign in "+-")
        return self.model(torch.tensor([tokens])).logits[0, -3, [good, bad]].softmax(0)[0].item()


CASES = {
    "qwen": QwenCase,
    "reasonflux": ReasonfluxCase,
    "reasonflux 1.5B": SmallReasonfluxCase,
    "skywork": SkyworkCase,
    "skywork 1.5B": SmallSkyworkCase,
    "skywork as a reward model": SkyworkRewardModelCase,
    "shepherd": ShepherdCase,
    "rlhflow": RlhflowCase,
}


def cut(question: str, *steps: str, answer: tuple[str, ...] = (), name: str = "t") -> Steps:
    return Steps(name, question, steps, answer)


TRACES = [
    cut(
        "What is 3 + 4?",
        "We add 3 + 4 and get 7.",
        "So x = 7.",
        answer=("The answer is \\boxed{7}.",),
    ),
    cut("What is 7 - 2?", answer=("Then 7 - 2 is 5.",)),  # no thinking, one step
    cut("求 x。", "因此我们得到答案。", "所以 x 等于 4。", "для решения"),
    cut(
        "Sum 12 to 48?",
        *(f"Let me think about {n} again.\nWait - no: {n} + {n}." for n in range(9)),
    ),
    # again
    cut(
        "What is 3 + 4?",
        "We add 3 + 4 and get 7.",
        "So x = 7.",
        answer=("The answer is \\boxed{7}.",),
    ),
]
