"""Averages the weights of several models block by block, in a few MB of memory.

After Kimi k1.5 (arXiv 2501.12599, section 2.4), which averages a long-thinking and a short-thinking
model. The average has the same bits as mergekit's `linear` for up to four models. TIES, DARE and
SLERP are mergekit's own. A model is a folder in the Hugging Face format.
"""

from __future__ import annotations

import filecmp
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from safetensors import SafetensorError, safe_open

from ponder.core import UserError

# Numbers read at a time. Blocks of more than 128 kB are slower: their memory is returned to the
# system each time.
BLOCK = 16384
# Dtypes that can be averaged.
FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# Settings that must agree; shapes are compared tensor by tensor.
SAME = ("model_type", "num_attention_heads", "num_key_value_heads")
MODEL = "a model is a folder with config.json, tokenizer.json and model.safetensors"
SHARD = 5_000_000_000  # bytes of weights per file
INDEX = "model.safetensors.index.json"
UNFINISHED = "unfinished"
# Files of a model's weights or of its training, which are not copied to a model made from it.
NOT_COPIED = (
    "*.safetensors",
    "*.index.json",
    "*.bin",
    "*.pt",
    "*.pth",
    "*.new",
    "*.gguf",
    "*.jsonl",
    "optimizer*",
    "lock",
    "README.md",
    "card.json",
    "made.json",
    "recipe.json",
    "trainer_state.json",
)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor is in a safetensors file."""

    name: str
    kind: str  # dtype as safetensors spells it: F32, BF16, …
    shape: tuple[int, ...]
    width: int  # bytes per number
    path: Path
    start: int  # position of its first byte
    size: int  # in bytes

    def blocks(self) -> Iterator[bytearray]:
        """Yield its bytes, `BLOCK` numbers at a time."""
        # Not safe_open's slices, which hold what they read until the file is closed: on two models
        # of 300 MB they took 103 MB mapped and 239 MB with `pread`, this takes 1 MB.
        with self.path.open("rb") as file:
            file.seek(self.start)
            for position in range(0, self.size, BLOCK * self.width):
                yield bytearray(file.read(min(BLOCK * self.width, self.size - position)))


Content: TypeAlias = Callable[[StoredTensor], Iterator[bytes | bytearray | memoryview]]


def tensors(folder: Path) -> dict[str, StoredTensor]:
    """Return a model's tensors in the order of its files; their data is not read."""
    if (folder / INDEX).is_file():
        files = sorted(set(_read(folder / INDEX)["weight_map"].values()))
    else:
        files = ["model.safetensors"]
    by_name: dict[str, StoredTensor] = {}
    for file in files:
        for tensor in _stored(folder / file):
            by_name[tensor.name] = tensor
    return by_name


def _stored(path: Path) -> list[StoredTensor]:
    """Return the tensors of one safetensors file, in the order of their data."""
    views = []
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.offset_keys():
                views.append((name, file.get_slice(name).get_dtype(), file.get_tensor(name)))
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror or error}", hint=MODEL) from None
    except SafetensorError as error:
        message = f"{path} is truncated or not a safetensors file: {error}"
        raise UserError(message, hint="copy or download it again") from None
    # The library has checked that the data follows the header without gaps, up to the file's end.
    start = path.stat().st_size - sum(view.nbytes for _, _, view in views)
    stored = []
    for name, kind, view in views:
        stored.append(
            StoredTensor(name, kind, tuple(view.shape), view.itemsize, path, start, view.nbytes)
        )
        start += view.nbytes
    return stored


def _read(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"can't read {path}: {error}", hint=MODEL) from None
    return content


def mismatch(first: Path, second: Path) -> str | None:
    """Return why two models can't be averaged, or None if they can."""
    first_config = _read(first / "config.json")
    second_config = _read(second / "config.json")
    for key in SAME:
        first_value = first_config.get(key)
        second_value = second_config.get(key)
        if first_value != second_value:
            return f"{key} is {first_value} in {first} and {second_value} in {second}"
    return _vocabulary_mismatch(first, second) or _tensor_mismatch(first, second)


def _vocabulary_mismatch(first: Path, second: Path) -> str | None:
    for name in ("tokenizer.json", "vocab.json", "tokenizer.model"):
        first_file = first / name
        second_file = second / name
        if not (first_file.is_file() and second_file.is_file()):
            continue
        if filecmp.cmp(first_file, second_file, shallow=False):
            return None
        if name == "tokenizer.model":
            return f"{first_file} and {second_file} differ"
        first_tokens = _vocabulary(first_file)
        second_tokens = _vocabulary(second_file)
        for token in sorted(first_tokens.keys() | second_tokens.keys()):
            if first_tokens.get(token) != second_tokens.get(token):
                first_text = _token_text(first_tokens, token)
                second_text = _token_text(second_tokens, token)
                return f"token {token} is {first_text} in {first} and {second_text} in {second}"
        return None
    return None


def _token_text(tokens: dict[int, str], token: int) -> str:
    if token not in tokens:
        return "missing"
    return repr(tokens[token])


def _vocabulary(path: Path) -> dict[int, str]:
    """Return token ids and their texts, from tokenizer.json or vocab.json."""
    content = _read(path)
    vocabulary: Any = content
    if path.name == "tokenizer.json":
        vocabulary = content["model"]["vocab"]
    texts: dict[int, str] = {}
    if isinstance(vocabulary, dict):
        for text, token in vocabulary.items():
            texts[token] = text
    else:  # a unigram model's list of (text, score)
        for token, entry in enumerate(vocabulary):
            texts[token] = entry[0]
    for added in content.get("added_tokens", ()):
        texts[added["id"]] = added["content"]
    return texts


def _tensor_mismatch(first: Path, second: Path) -> str | None:
    first_tensors = tensors(first)
    second_tensors = tensors(second)
    for name, tensor in first_tensors.items():
        counterpart = _find(second_tensors, name)
        if counterpart is None:
            return f"{second} has no {name}, which {first} has"
        if tensor.shape != counterpart.shape:
            shape = list(tensor.shape)
            second_shape = list(counterpart.shape)
            return f"{name} has the shape {shape} in {first} and {second_shape} in {second}"
        kinds = {tensor.kind, counterpart.kind}
        if len(kinds) > 1 and not kinds <= FLOATS.keys():
            return f"{name} is {tensor.kind} in {first} and {counterpart.kind} in {second}"
    for name, tensor in second_tensors.items():
        if name not in first_tensors and not _tied(tensor, second_tensors):
            return f"{first} has no {name}, which {second} has"
    return None


def _find(model: dict[str, StoredTensor], name: str) -> StoredTensor | None:
    """Return a model's tensor; its embeddings for an output layer that is tied to them."""
    if name in model or not name.endswith("lm_head.weight"):
        return model.get(name)
    for stored_name, tensor in model.items():
        if stored_name.endswith("embed_tokens.weight"):
            return tensor
    return None


def _tied(tensor: StoredTensor, model: dict[str, StoredTensor]) -> bool:
    """Return whether it is an output layer with the same weights as the embeddings."""
    without_it = dict(model)
    del without_it[tensor.name]
    embeddings = _find(without_it, tensor.name)
    if embeddings is None:
        return False
    if embeddings.kind != tensor.kind or embeddings.shape != tensor.shape:
        return False
    blocks = zip_longest(tensor.blocks(), embeddings.blocks())
    return all(block == embedding_block for block, embedding_block in blocks)


def average(
    folders: Sequence[Path], weights: Sequence[float], into: Path, *, shard_bytes: int = SHARD
) -> None:
    """Write the weighted mean of models, with the first model's dtypes, tokenizer and config."""
    _check(folders, weights)
    models = [tensors(folder) for folder in folders]
    factors = torch.tensor(weights, dtype=torch.float32)

    def averaged(tensor: StoredTensor) -> Iterator[bytes | bytearray | memoryview]:
        counterparts = []
        for model in models:
            stored = _find(model, tensor.name)
            assert stored is not None  # `_check` has compared the models
            counterparts.append(stored)
        for blocks in zip(*(stored.blocks() for stored in counterparts), strict=True):
            if tensor.kind in FLOATS:
                total = torch.zeros(len(blocks[0]) // counterparts[0].width)
                for block, stored, factor in zip(blocks, counterparts, factors, strict=True):
                    numbers = torch.frombuffer(block, dtype=FLOATS[stored.kind])
                    total.addcmul_(numbers.float(), factor)
                yield _bytes(total / factors.sum(), tensor.kind)
            elif any(block != blocks[0] for block in blocks):
                raise UserError(
                    f"{tensor.name} differs and can't be averaged: its dtype is {tensor.kind}"
                )
            else:
                yield blocks[0]

    with _finished(into) as folder:
        _write(folder, models[0].values(), averaged, shard_bytes)
        _copy_other_files(folders[0], folder)


def _bytes(numbers: torch.Tensor, kind: str) -> memoryview:
    """Return the bytes of numbers in a dtype."""
    return numbers.to(FLOATS[kind]).view(torch.uint8).numpy().data


def convert(folder: Path, dtype: str) -> None:
    """Store a model's floating-point weights in another dtype, which its config then names."""
    kinds = {torch_dtype: kind for kind, torch_dtype in FLOATS.items()}
    kind = kinds[getattr(torch, dtype)]
    width = FLOATS[kind].itemsize
    old = tensors(folder)
    new = []
    for tensor in old.values():
        converted = tensor
        if tensor.kind in FLOATS:
            size = tensor.size // tensor.width * width
            converted = replace(tensor, kind=kind, width=width, size=size)
        new.append(converted)
    config = _read(folder / "config.json")
    if new == list(old.values()) and config.get("dtype") == dtype:
        return

    def cast(tensor: StoredTensor) -> Iterator[bytes | bytearray | memoryview]:
        before = old[tensor.name]
        for block in before.blocks():
            if before.kind == tensor.kind:
                yield block
            else:
                yield _bytes(torch.frombuffer(block, dtype=FLOATS[before.kind]), kind)

    with _finished(folder) as work:
        _write(work, new, cast, SHARD)
        config["dtype"] = dtype
        (work / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")


def combine(
    method: Literal["ties", "dare", "slerp"],
    folders: Sequence[Path],
    weights: Sequence[float],
    into: Path,
    *,
    base: Path | None = None,
    density: float = 0.5,
    seed: int = 0,
) -> None:
    """Merge models with mergekit.

    `ties` and `dare` add up the models' changes to a base, `slerp` interpolates two models. TIES
    (Yadav et al. 2023) keeps the largest `density` of the changes, DARE (Yu et al. 2023) a random
    `density`. Computed in float32, whatever the models are stored in, which is not mergekit's
    default.
    """
    _check(folders, weights, base)
    if (method == "slerp") != (base is None):
        message = f"{method} needs the base that the models were trained from"
        if base:
            message = "slerp takes no base"
        raise UserError(message, hint="ties and dare take a base, slerp takes none")
    if method == "slerp" and len(folders) != 2:
        raise UserError(
            f"slerp takes two models, not {len(folders)}", hint="ties and dare take any number"
        )
    if not 0 < density <= 1:
        raise UserError(
            f"density is a fraction above 0 and at most 1, not {density}", hint="density = 0.5"
        )
    try:
        from mergekit.config import MergeConfiguration
        from mergekit.io.tasks import LoaderCache
        from mergekit.merge import MergeOptions, run_merge
    except ImportError:
        raise UserError(f"{method} needs mergekit", hint="pip install mergekit") from None

    kinds = [tensor.kind for tensor in tensors(folders[0]).values() if tensor.kind in FLOATS]
    order: dict[str, Any] = {
        "merge_method": {"dare": "dare_linear"}.get(method, method),
        "base_model": _mergekit_model(base or folders[0]),
        "models": [],
        "parameters": {},
        "dtype": "float32",
        "out_dtype": str(FLOATS[kinds[0]]).removeprefix("torch."),
    }
    if method == "slerp":
        order["parameters"] = {"t": weights[1] / sum(weights)}
    for folder, weight in zip(folders, weights, strict=True):
        parameters = {}
        if method != "slerp":
            parameters = {"weight": weight / sum(weights), "density": density}
        order["models"].append({"model": _mergekit_model(folder), "parameters": parameters})
    options = MergeOptions(copy_tokenizer=False, write_model_card=False, quiet=True)
    with _finished(into) as work, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            run_merge(MergeConfiguration.model_validate(order), str(work), options)
        finally:
            # Its key is the folder's path, whose content may change later.
            LoaderCache().loaders.clear()
        _copy_other_files(folders[0], work)


def _mergekit_model(folder: Path) -> dict[str, Any]:
    """Return how mergekit is told of a model; it would split a plain string at + and @."""
    return {"model": {"path": str(folder)}}


def _check(folders: Sequence[Path], weights: Sequence[float], base: Path | None = None) -> None:
    """Raise `UserError` unless the models and their base can be merged with these weights."""
    if len(folders) != len(weights):
        raise UserError(
            f"{len(folders)} models and {len(weights)} weights", hint="give each model one weight"
        )
    for weight in weights:
        if not 0 <= weight <= 1:
            raise UserError(
                f"a weight is from 0 to 1, not {weight}",
                hint="equal weights give the plain average",
            )
    if not any(weights):
        raise UserError("all weights are 0", hint="equal weights give the plain average")
    compared = list(folders[1:])
    if base is not None:
        compared.append(base)
    for folder in compared:
        why = mismatch(folders[0], folder)
        if why:
            raise UserError(
                why, hint="models can be averaged if they were trained from the same model"
            )


def _write(
    folder: Path, stored: Iterable[StoredTensor], content: Content, shard_bytes: int
) -> None:
    """Write tensors as the weights of a model, in as many files as needed."""
    shards: list[list[StoredTensor]] = [[]]
    room = shard_bytes
    for tensor in stored:
        if shards[-1] and tensor.size > room:
            shards.append([])
            room = shard_bytes
        shards[-1].append(tensor)
        room -= tensor.size
    if len(shards) == 1:
        _write_shard(folder / "model.safetensors", shards[0], content)
        return
    total = 0
    file_names: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file_name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        for tensor in shard:
            total += tensor.size
            file_names[tensor.name] = file_name
        _write_shard(folder / file_name, shard, content)
    index = {"metadata": {"total_size": total}, "weight_map": file_names}
    (folder / INDEX).write_text(json.dumps(index, indent=1) + "\n", "utf-8")


def _write_shard(path: Path, shard: list[StoredTensor], content: Content) -> None:
    """Write one safetensors file: the header's length, the header as JSON, the data."""
    # By hand, because the library's save_file needs every tensor of the file in memory.
    # The order aligns each tensor to its width, as readers expect.
    shard.sort(key=lambda tensor: -tensor.width)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in shard:
        start = end
        end = start + tensor.size
        header[tensor.name] = {
            "dtype": tensor.kind,
            "shape": tensor.shape,
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in shard:
            for block in content(tensor):
                file.write(block)
        file.flush()
        os.fsync(file.fileno())  # on the disk before it gets its final name


def _copy_other_files(source: Path, folder: Path) -> None:
    """Copy what a model needs besides its weights."""
    for path in source.iterdir():
        if path.is_file() and not any(path.match(pattern) for pattern in NOT_COPIED):
            shutil.copyfile(path, folder / path.name)


@contextmanager
def _finished(into: Path) -> Iterator[Path]:
    """Yield a folder whose files move to `into` at the end, config.json last.

    A model can't be loaded without it.
    """
    work = into / UNFINISHED
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        yield work
        for old in (into / "config.json", *into.glob("model*.safetensors"), into / INDEX):
            old.unlink(missing_ok=True)
        for path in sorted(work.iterdir(), key=lambda path: path.name == "config.json"):
            path.replace(into / path.name)
    finally:
        shutil.rmtree(work)
