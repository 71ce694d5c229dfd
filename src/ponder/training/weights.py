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

# Numbers read at a time; blocks of more than 128 kB are returned to the system each time, which is
# slower.
BLOCK = 16384
# what can be averaged
FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# settings that must agree; shapes tell the rest
SAME = ("model_type", "num_attention_heads", "num_key_value_heads")
MODEL = "a model is a folder with config.json, tokenizer.json and model.safetensors"
SHARD = 5_000_000_000  # bytes of weights per file
INDEX, UNFINISHED = "model.safetensors.index.json", "unfinished"
# Files that belong to one model's weights, or to its training, and are not copied to a model made
# from it.
OWN = (
    *(
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
    ),
    *("README.md", "card.json", "made.json", "recipe.json", "trainer_state.json"),
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
        """Its bytes, `BLOCK` numbers at a time."""
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
    return {tensor.name: tensor for name in files for tensor in _stored(folder / name)}


def _stored(path: Path) -> list[StoredTensor]:
    try:
        with safe_open(path, framework="pt") as file:
            views = [
                (name, file.get_slice(name).get_dtype(), file.get_tensor(name))
                for name in file.offset_keys()
            ]
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror or error}", hint=MODEL) from None
    except SafetensorError as error:
        what = f"{path} is truncated or not a safetensors file: {error}"
        raise UserError(what, hint="copy or download it again") from None
    # The library has checked that the data follows the header without gaps, up to the end of the
    # file.
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
    one, two = (_read(folder / "config.json") for folder in (first, second))
    for key in SAME:
        if one.get(key) != two.get(key):
            return f"{key} is {one.get(key)} in {first} and {two.get(key)} in {second}"
    return _vocabulary_mismatch(first, second) or _tensor_mismatch(first, second)


def _vocabulary_mismatch(first: Path, second: Path) -> str | None:
    for name in ("tokenizer.json", "vocab.json", "tokenizer.model"):
        one, two = first / name, second / name
        if not (one.is_file() and two.is_file()):
            continue
        if filecmp.cmp(one, two, shallow=False):
            return None
        if name == "tokenizer.model":
            return f"{one} and {two} differ"
        own, other = _vocabulary(one), _vocabulary(two)
        for token in sorted(own.keys() | other.keys()):
            if own.get(token) != other.get(token):
                here, there = (f"{v[token]!r}" if token in v else "missing" for v in (own, other))
                return f"token {token} is {here} in {first} and {there} in {second}"
        return None
    return None


def _vocabulary(path: Path) -> dict[int, str]:
    """Return token ids and their texts, from tokenizer.json or vocab.json."""
    content = _read(path)
    listed = content["model"]["vocab"] if path.name == "tokenizer.json" else content
    # A unigram model's vocabulary is a list of (text, score).
    pairs = (
        listed.items()
        if isinstance(listed, dict)
        else ((entry[0], token) for token, entry in enumerate(listed))
    )
    texts = {token: text for text, token in pairs}
    return texts | {added["id"]: added["content"] for added in content.get("added_tokens", ())}


def _tensor_mismatch(first: Path, second: Path) -> str | None:
    own, others = tensors(first), tensors(second)
    for name, one in own.items():
        two = _find(others, name)
        if two is None:
            return f"{second} has no {name}, which {first} has"
        if one.shape != two.shape:
            shapes = list(one.shape), list(two.shape)
            return f"{name} has the shape {shapes[0]} in {first} and {shapes[1]} in {second}"
        if one.kind != two.kind and not {one.kind, two.kind} <= FLOATS.keys():
            return f"{name} is {one.kind} in {first} and {two.kind} in {second}"
    for name, two in others.items():
        if name not in own and not _tied(two, others):
            return f"{first} has no {name}, which {second} has"
    return None


def _find(model: dict[str, StoredTensor], name: str) -> StoredTensor | None:
    """Return a model's tensor; its embeddings for an output layer that is tied to them."""
    if name in model or not name.endswith("lm_head.weight"):
        return model.get(name)
    return next(
        (tensor for other, tensor in model.items() if other.endswith("embed_tokens.weight")), None
    )


def _tied(tensor: StoredTensor, model: dict[str, StoredTensor]) -> bool:
    """Return whether it is an output layer with the same weights as the embeddings."""
    rest = {name: other for name, other in model.items() if name != tensor.name}
    other = _find(rest, tensor.name)
    if other is None or (other.kind, other.shape) != (tensor.kind, tensor.shape):
        return False
    return all(one == two for one, two in zip_longest(tensor.blocks(), other.blocks()))


def average(
    folders: Sequence[Path], weights: Sequence[float], into: Path, *, shard_bytes: int = SHARD
) -> None:
    """Write the weighted mean of models, with the first model's dtypes, tokenizer and config."""
    _check(folders, weights)
    models = [tensors(folder) for folder in folders]
    parts = torch.tensor(weights, dtype=torch.float32)

    def averaged(tensor: StoredTensor) -> Iterator[bytes | bytearray | memoryview]:
        same = [stored for model in models if (stored := _find(model, tensor.name))]
        for blocks in zip(*(stored.blocks() for stored in same), strict=True):
            if tensor.kind in FLOATS:
                terms = [
                    torch.frombuffer(b, dtype=FLOATS[s.kind])
                    for b, s in zip(blocks, same, strict=True)
                ]
                total = torch.zeros(len(terms[0]))
                for term, part in zip(terms, parts, strict=True):
                    total.addcmul_(term.float(), part)
                yield (total / parts.sum()).to(FLOATS[tensor.kind]).view(torch.uint8).numpy().data
            elif any(block != blocks[0] for block in blocks):
                raise UserError(
                    f"{tensor.name} differs and can't be averaged: its dtype is {tensor.kind}"
                )
            else:
                yield blocks[0]

    with _finished(into) as folder:
        _write(folder, models[0].values(), averaged, shard_bytes)
        _copy_rest(folders[0], folder)


def convert(folder: Path, dtype: str) -> None:
    """Store a model's floating-point weights in another dtype, in the same folder; its config names
    that dtype.
    """
    kind = next(name for name, known in FLOATS.items() if known == getattr(torch, dtype))
    old, width = tensors(folder), FLOATS[kind].itemsize
    new = [
        replace(tensor, kind=kind, width=width, size=tensor.size // tensor.width * width)
        if tensor.kind in FLOATS
        else tensor
        for tensor in old.values()
    ]
    config = _read(folder / "config.json")
    if new == list(old.values()) and config.get("dtype") == dtype:
        return

    def cast(tensor: StoredTensor) -> Iterator[bytes | bytearray | memoryview]:
        before = old[tensor.name]
        for block in before.blocks():
            if before.kind == tensor.kind:
                yield block
            else:
                yield (
                    torch.frombuffer(block, dtype=FLOATS[before.kind])
                    .to(FLOATS[kind])
                    .view(torch.uint8)
                    .numpy()
                    .data
                )

    with _finished(folder) as work:
        _write(work, new, cast, SHARD)
        (work / "config.json").write_text(
            json.dumps({**config, "dtype": dtype}, indent=2) + "\n", "utf-8"
        )


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
    """Merge models with mergekit: `ties` and `dare` add up their changes to a base, `slerp`
    interpolates two.

    TIES (Yadav et al. 2023) keeps the largest `density` of the changes, DARE (Yu et al. 2023) a
    random `density`. Computed in float32, whatever the models are stored in, which is not
    mergekit's default.
    """
    _check(folders, weights, *([base] if base else []))
    if (method == "slerp") != (base is None):
        what = (
            "slerp takes no base"
            if base
            else f"{method} needs the base that the models were trained from"
        )
        raise UserError(what, hint="ties and dare take a base, slerp takes none")
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

    parts = [weight / sum(weights) for weight in weights]

    def named(folder: Path) -> dict[str, Any]:  # mergekit would split a plain string at + and @
        return {"model": {"path": str(folder)}}

    kind = next(
        FLOATS[tensor.kind] for tensor in tensors(folders[0]).values() if tensor.kind in FLOATS
    )
    order = {
        "merge_method": {"dare": "dare_linear"}.get(method, method),
        "base_model": named(base or folders[0]),
        "models": [
            {
                "model": named(folder),
                "parameters": {} if method == "slerp" else {"weight": part, "density": density},
            }
            for folder, part in zip(folders, parts, strict=True)
        ],
        "parameters": {"t": parts[1]} if method == "slerp" else {},
        "dtype": "float32",
        "out_dtype": str(kind).removeprefix("torch."),
    }
    options = MergeOptions(copy_tokenizer=False, write_model_card=False, quiet=True)
    with _finished(into) as folder, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            run_merge(MergeConfiguration.model_validate(order), str(folder), options)
        finally:
            # its key is the folder's path, whose content may change later
            LoaderCache().loaders.clear()
        _copy_rest(folders[0], folder)


def _check(folders: Sequence[Path], weights: Sequence[float], *also: Path) -> None:
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
    for folder in (*folders[1:], *also):
        if why := mismatch(folders[0], folder):
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
    names = [f"model-{n:05}-of-{len(shards):05}.safetensors" for n in range(1, len(shards) + 1)]
    if len(shards) == 1:
        names = ["model.safetensors"]
    else:
        total = sum(tensor.size for shard in shards for tensor in shard)
        where = {
            tensor.name: name for name, shard in zip(names, shards, strict=True) for tensor in shard
        }
        index = {"metadata": {"total_size": total}, "weight_map": where}
        (folder / INDEX).write_text(json.dumps(index, indent=1) + "\n", "utf-8")
    for name, shard in zip(names, shards, strict=True):
        _write_shard(folder / name, shard, content)


def _write_shard(path: Path, shard: list[StoredTensor], content: Content) -> None:
    """Write one safetensors file: the header's length, the header as JSON, the data."""
    # By hand, because the library's save_file needs every tensor of the file in memory.
    # aligns each tensor to its width, as readers expect
    shard.sort(key=lambda tensor: -tensor.width)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in shard:
        offsets = [end, end := end + tensor.size]
        header[tensor.name] = {"dtype": tensor.kind, "shape": tensor.shape, "data_offsets": offsets}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in shard:
            for block in content(tensor):
                file.write(block)
        file.flush()
        os.fsync(file.fileno())  # on the disk before it gets its final name


def _copy_rest(source: Path, folder: Path) -> None:
    """Copy what a model needs besides its weights."""
    for path in source.iterdir():
        if path.is_file() and not any(path.match(pattern) for pattern in OWN):
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
