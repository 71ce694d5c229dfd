"""Averaged weights are the bits that torch would give, and what can't be averaged is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from ponder.core import UserError
from ponder.training.weights import average, combine, mismatch, tensors

TOKENS = ["<pad>", "one", "two", "three"]


def llama(folder: Path, seed: int, dtype: str = "float32", shard: str = "1GB", **shape) -> Path:
    """A small model of random weights, with a tokenizer's file beside it."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "intermediate_size": 44, "num_hidden_layers": 2, "vocab_size": 66}
    config = LlamaConfig(**{"num_attention_heads": 4, "num_key_value_heads": 2, **sizes, **shape})
    model = LlamaForCausalLM(config)
    for weights in model.parameters():  # norms are all ones otherwise
        torch.nn.init.normal_(weights)
    model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size=shard)
    words(folder, TOKENS)
    return folder


def words(folder: Path, tokens: Sequence[str], added: Sequence[str] = ()) -> None:
    listed = [{"id": len(tokens) + n, "content": word} for n, word in enumerate(added)]
    content = {
        "added_tokens": listed,
        "model": {"type": "BPE", "vocab": {word: n for n, word in enumerate(tokens)}},
    }
    (folder / "tokenizer.json").write_text(json.dumps(content))


def bare(folder: Path, **found) -> Path:
    """As little as makes a model."""
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    save_file(found, folder / "model.safetensors")
    return folder


def held(folder: Path) -> dict:
    return {
        name: tensor
        for path in folder.glob("model*.safetensors")
        for name, tensor in load_file(path).items()
    }


def mean(models: Sequence[dict], shares: Sequence[float]) -> dict:
    """All at once in memory, with torch's fused multiply-add: what mergekit's `linear` does."""
    parts = torch.tensor(shares)
    found = {}
    for name, first in models[0].items():
        total = torch.zeros(first.shape)
        for model, part in zip(models, parts, strict=True):
            total.addcmul_(model[name], part)
        found[name] = (total / parts.sum()).to(first.dtype)
    return found


def same_bits(one: dict, two: dict) -> bool:
    bits = {2: torch.int16, 4: torch.int32}
    return one.keys() == two.keys() and all(
        tensor.dtype == two[name].dtype
        and torch.equal(tensor.view(bits[tensor.itemsize]), two[name].view(bits[tensor.itemsize]))
        for name, tensor in one.items()
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    "shares", [(0.5, 0.5), (0.3, 0.7), (1, 0), (0.9, 0.35, 0.2), (0.1, 0.4, 0.3, 0.2)]
)
def test_the_average_is_torchs_to_the_last_bit(
    tmp_path: Path, dtype: str, shares: tuple[float, ...]
) -> None:
    shards = ["20KB", "1GB", "9KB", "33KB"]
    folders = [llama(tmp_path / f"{n}", n, dtype, shards[n]) for n in range(len(shares))]
    average(folders, shares, tmp_path / "whole")
    expected = mean([held(folder) for folder in folders], shares)
    assert same_bits(held(tmp_path / "whole"), expected)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "whole", dtype="auto")
    assert same_bits(dict(loaded.state_dict()), expected)
    assert expected["lm_head.weight"].dtype == getattr(torch, dtype)


def test_a_large_average_is_written_in_shards(tmp_path: Path) -> None:
    folders = [llama(tmp_path / "a", 1, shard="9KB"), llama(tmp_path / "b", 2)]
    average(folders, [0.3, 0.7], tmp_path / "c", shard_bytes=30_000)
    shards = sorted((tmp_path / "c").glob("*.safetensors"))
    assert [path.name for path in shards] == [
        f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)
    ]
    index = json.loads((tmp_path / "c" / "model.safetensors.index.json").read_text())
    sizes = [sum(t.nbytes for t in load_file(path).values()) for path in shards]
    assert max(sizes) <= 30_000
    assert index["metadata"]["total_size"] == sum(sizes)
    expected = mean([held(folder) for folder in folders], [0.3, 0.7])
    assert same_bits(
        dict(AutoModelForCausalLM.from_pretrained(tmp_path / "c").state_dict()), expected
    )
    # Where it lies is told without reading it.
    assert {name: (t.path.name, t.shape) for name, t in tensors(tmp_path / "c").items()} == {
        name: (index["weight_map"][name], tuple(tensor.shape)) for name, tensor in expected.items()
    }
    # Another model in the same place leaves nothing of it.
    average(folders, [1, 1], tmp_path / "c")
    assert [path.name for path in (tmp_path / "c").glob("model*")] == ["model.safetensors"]
    assert same_bits(held(tmp_path / "c"), mean([held(folder) for folder in folders], [1, 1]))


def nearest(exact: Fraction) -> np.float32:
    near = np.float32(float(exact))
    around = [near, np.nextafter(near, np.float32(-9)), np.nextafter(near, np.float32(9))]
    return min(around, key=lambda f: (abs(Fraction(float(f)) - exact), int(f.view(np.int32)) & 1))


def test_a_sum_is_rounded_once(tmp_path: Path) -> None:
    """Products a hair beside half a bit: in 64 bits the hair is lost, and half a bit goes to even."""
    terms = []
    for odd in range(2**23 + 1, 2**23 + 60_000, 2):
        for hair in range(-15, 16, 2):
            number = (2**33 + hair) * pow(odd, -1, 2**34) % 2**34
            if number < 2**24:
                terms.append((odd / 2**24, number / 2**33))
    off = 0
    for n, (share, term) in enumerate(terms[:24]):
        for sign in (1, -1):
            other = np.float32(sign * (1.1 + n / 99) / (1 - share))
            start = np.float32(other * np.float32(1 - share))
            exact = Fraction(float(start)) + Fraction(term) * Fraction(share)
            folder = tmp_path / f"{n}{sign}"
            folder.mkdir()
            one = bare(folder / "one", w=torch.tensor([float(other)]))
            two = bare(folder / "two", w=torch.tensor([term]))
            average([one, two], [1 - share, share], folder / "mean")
            assert held(folder / "mean")["w"].numpy()[0] == nearest(exact)
            off += np.float32(float(start) + term * share) != nearest(exact)
    assert off > 5


def test_special_numbers(tmp_path: Path) -> None:
    listed = [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 3e38, -3e38, 65504]
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        one = torch.tensor([x for x in listed for _ in listed]).to(dtype)
        two = torch.tensor([x for _ in listed for x in listed]).to(dtype)
        folders = [bare(tmp_path / f"{dtype} {n}", w=tensor) for n, tensor in enumerate((one, two))]
        average(folders, [0.3, 0.7], tmp_path / f"{dtype}")
        expected = mean([{"w": one}, {"w": two}], [0.3, 0.7])["w"]
        found = held(tmp_path / f"{dtype}")["w"]
        number = ~expected.isnan()
        assert torch.equal(found.isnan(), expected.isnan())
        assert same_bits({"w": found[number]}, {"w": expected[number]})


def test_kinds_of_numbers_may_differ(tmp_path: Path) -> None:
    torch.manual_seed(0)
    one = {
        "a": torch.randn(5).bfloat16(),
        "b": torch.randn(3),
        "n": torch.arange(3),
        "none": torch.zeros(0, 4),
    }
    two = {
        "a": torch.randn(5),
        "b": torch.randn(3).half(),
        "n": torch.arange(3),
        "none": torch.zeros(0, 4),
    }
    bare(tmp_path / "1", a=one["a"])
    save_file({name: one[name] for name in ("b", "n", "none")}, tmp_path / "1" / "rest.safetensors")
    index = {
        "weight_map": {
            name: "model.safetensors" if name == "a" else "rest.safetensors" for name in one
        }
    }
    (tmp_path / "1" / "model.safetensors.index.json").write_text(json.dumps(index))
    average([tmp_path / "1", bare(tmp_path / "2", **two)], [0.3, 0.6], tmp_path / "3")
    found = held(tmp_path / "3")
    assert all(tensor.start % tensor.width == 0 for tensor in tensors(tmp_path / "3").values())
    assert torch.equal(found.pop("n"), torch.arange(3))
    assert found.pop("none").shape == (0, 4)
    assert same_bits(found, mean([{k: model[k] for k in "ab"} for model in (one, two)], [0.3, 0.6]))
    # A nan stays one, though its bits would overflow.
    bare(
        tmp_path / "4",
        **two | {"a": torch.full((5,), 2**31 - 1, dtype=torch.int32).view(torch.float32)},
    )
    average([tmp_path / "1", tmp_path / "4"], [0.5, 0.5], tmp_path / "5")
    assert held(tmp_path / "5")["a"].isnan().all()
    bare(tmp_path / "6", **two | {"n": torch.arange(1, 4)})
    with pytest.raises(UserError, match="n differs and can't be averaged: its dtype is I64"):
        average([tmp_path / "1", tmp_path / "6"], [1, 1], tmp_path / "7")


def test_what_belongs_to_the_first_model_comes_along(tmp_path: Path) -> None:
    one, two = llama(tmp_path / "one", 1), llama(tmp_path / "two", 2)
    along = {
        "generation_config.json",
        "config.json",
        "tokenizer.json",
        "special.txt",
        "chat_template.jinja",
    }
    own = {
        "card.json",
        "made.json",
        "recipe.json",
        "log.jsonl",
        "training.pt",
        "optimizer.bin",
        "more.safetensors",
    }
    for name in (along | own) - {"config.json", "tokenizer.json"}:
        (one / name).write_text(name)
    (one / "checkpoint-1").mkdir()
    (two / "chat_template.jinja").write_text("another")
    average([one, two], [0.5, 0.5], tmp_path / "mean")
    assert {path.name for path in (tmp_path / "mean").iterdir()} == along | {"model.safetensors"}
    assert all(
        (tmp_path / "mean" / name).read_bytes() == (one / name).read_bytes() for name in along
    )


def test_tied_weights(tmp_path: Path) -> None:
    tied, apart = (
        llama(tmp_path / "tied", 1, tie_word_embeddings=True),
        llama(tmp_path / "apart", 2),
    )
    stored, other = held(tied), held(apart)
    assert "lm_head.weight" not in stored
    # The embeddings of one stand for its output layer.
    assert mismatch(apart, tied) is None
    average([apart, tied], [0.3, 0.7], tmp_path / "mean")
    filled = stored | {"lm_head.weight": stored["model.embed_tokens.weight"]}
    assert same_bits(held(tmp_path / "mean"), mean([other, filled], [0.3, 0.7]))
    # The other way round there is no place for an output layer of its own.
    assert mismatch(tied, apart) == f"{tied} has no lm_head.weight, which {apart} has"
    # But there is for one that only repeats the embeddings.
    (twice := tmp_path / "twice").mkdir()
    shutil.copy(apart / "config.json", twice)
    other["lm_head.weight"] = other["model.embed_tokens.weight"].clone()
    save_file(other, twice / "model.safetensors")
    average([tied, twice], [0.3, 0.7], tmp_path / "again")
    assert same_bits(held(tmp_path / "again"), mean([stored, other], [0.3, 0.7]))


def test_what_forbids_averaging(tmp_path: Path) -> None:
    one, two = llama(tmp_path / "one", 1), llama(tmp_path / "two", 2, shard="9KB")
    assert mismatch(one, two) is None
    deep, wide = (
        llama(tmp_path / "deep", 1, num_hidden_layers=3),
        llama(tmp_path / "wide", 1, intermediate_size=48),
    )
    heads = llama(tmp_path / "heads", 1, num_attention_heads=8, head_dim=4, num_key_value_heads=4)
    down = "model.layers.0.mlp.down_proj.weight"
    missing = "model.layers.2.input_layernorm.weight"
    for other, said in {
        deep: f"{one} has no {missing}, which {deep} has",
        wide: f"{down} has the shape [32, 44] in {one} and [32, 48] in {wide}",
        heads: f"num_attention_heads is 4 in {one} and 8 in {heads}",
    }.items():
        assert mismatch(one, other) == said
        with pytest.raises(UserError) as error:
            average([one, two, other], [1, 1, 1], tmp_path / "none")
        assert str(error.value).startswith(said)
    assert mismatch(deep, one) == f"{one} has no {missing}, which {deep} has"
    assert not (tmp_path / "none").exists()


def test_words_must_be_the_same(tmp_path: Path) -> None:
    one, two = llama(tmp_path / "one", 1), llama(tmp_path / "two", 2)
    words(two, TOKENS[:2] + TOKENS[:1:-1])
    assert mismatch(one, two) == f"token 2 is 'two' in {one} and 'three' in {two}"
    words(two, TOKENS, ["four"])
    assert mismatch(one, two) == f"token 4 is missing in {one} and 'four' in {two}"
    words(two, TOKENS[:3], ["three"])  # the same, said otherwise
    assert mismatch(one, two) is None
    pieces = {
        "type": "Unigram",
        "vocab": [[word, -0.5] for word in ("<pad>", "One", "two", "three")],
    }
    (two / "tokenizer.json").write_text(json.dumps({"model": pieces}))
    assert mismatch(one, two) == f"token 1 is 'one' in {one} and 'One' in {two}"
    (two / "tokenizer.json").unlink()
    assert mismatch(one, two) is None
    (one / "tokenizer.model").write_bytes(b"1")
    (two / "tokenizer.model").write_bytes(b"2")
    assert mismatch(one, two) == f"{one / 'tokenizer.model'} and {two / 'tokenizer.model'} differ"


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ([0.5, 1.5], "a weight is from 0 to 1, not 1.5"),
        ([-0.1, 1], "a weight is from 0 to 1, not -0.1"),
        ([float("nan"), 1], "a weight is from 0 to 1, not nan"),
        ([0, 0], "all weights are 0"),
        ([1, 1, 1], "2 models and 3 weights"),
    ],
)
def test_wrong_shares(tmp_path: Path, shares: list[float], said: str) -> None:
    folders = [bare(tmp_path / name, w=torch.ones(2)) for name in "ab"]
    with pytest.raises(UserError, match=said):
        average(folders, shares, tmp_path / "c")
    with pytest.raises(UserError, match=said):
        combine("slerp", folders, shares, tmp_path / "c")


def test_damaged_files_are_told(tmp_path: Path) -> None:
    one, two = bare(tmp_path / "a", w=torch.ones(9)), bare(tmp_path / "b", w=torch.ones(9))
    path = two / "model.safetensors"
    content = path.read_bytes()
    for left in (-4, 30, 0):
        path.write_bytes(content[:left])
        with pytest.raises(UserError, match="is truncated or not a safetensors file"):
            average([one, two], [1, 1], tmp_path / "c")
    path.unlink()
    with pytest.raises(UserError, match=r"can't read .*model.safetensors: No such file"):
        average([one, two], [1, 1], tmp_path / "c")
    with pytest.raises(UserError, match=r"can't read .*config.json"):
        average([one, tmp_path / "nowhere"], [1, 1], tmp_path / "c")
