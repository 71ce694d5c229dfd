"""The weights of several models in one, read and written block by block: in a few MB of memory, however large they are.

After Kimi k1.5 (arXiv 2501.12599, section 2.4), which averages a long-thinking and a short-thinking model. The average
has the bits of mergekit's `linear`, for up to four models and numbers above 1e-38, without torch. TIES, DARE and SLERP
are mergekit's own.

A model is a folder in the Hugging Face format. A safetensors file is a JSON header that says what lies where, then the
numbers, so it is written from shapes alone, one tensor after the other.
"""

from __future__ import annotations

import filecmp
import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ponder.core import UserError

Floats: TypeAlias = NDArray[np.float32]

# Numbers at a time. Arrays of more than 128 kB go back to the system and come anew, at two to three times the time.
BLOCK = 16384
FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}  # what can be averaged, and torch's words for it
SAME = ("model_type", "num_attention_heads", "num_key_value_heads")  # in two configs; shapes tell the rest
MODEL = "a model is a folder with config.json, tokenizer.json and model.safetensors"
INDEX, UNFINISHED = "model.safetensors.index.json", "unfinished"
# Of a model's folder: other weights, a training's state, and what is said of these weights and of no others.
OWN = (
    *("*.safetensors", "*.index.json", "*.bin", "*.pt", "*.pth", "*.new", "*.gguf", "*.jsonl", "optimizer*", "lock"),
    *("README.md", "card.json", "made.json", "recipe.json", "dynts.json", "trainer_state.json"),
)


@dataclass(frozen=True, slots=True)
class Tensor:
    """Where a tensor lies."""

    name: str
    kind: str  # of its numbers, in the words of safetensors: F32, BF16, …
    shape: tuple[int, ...]
    path: Path
    start: int  # place of its first byte
    size: int  # in bytes

    @property
    def width(self) -> int:
        """Bytes a number."""
        return max(1, self.size // max(1, math.prod(self.shape)))

    def blocks(self) -> Iterator[bytes]:
        """What it holds, `BLOCK` numbers at a time. Read, not mapped: mapped pages stay in memory."""
        with self.path.open("rb") as file:
            file.seek(self.start)
            for place in range(0, self.size, BLOCK * self.width):
                yield file.read(min(BLOCK * self.width, self.size - place))


Content: TypeAlias = Callable[[Tensor], Iterator[bytes | memoryview]]


def tensors(folder: Path) -> dict[str, Tensor]:
    """Where a model's tensors lie, in the order of its files; none is read."""
    if (folder / INDEX).is_file():
        files = sorted(set(_read(folder / INDEX)["weight_map"].values()))
    else:
        files = ["model.safetensors"]
    return {tensor.name: tensor for name in files for tensor in _listed(folder / name)}


def _listed(path: Path) -> list[Tensor]:
    try:
        with path.open("rb") as file:
            begin = 8 + int.from_bytes(file.read(8), "little")
            there = os.fstat(file.fileno()).st_size
            header: dict[str, Any] = json.loads(file.read(min(begin, there) - 8))
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror}", hint=MODEL) from None
    except ValueError:
        raise UserError(f"{path} is no safetensors file, or damaged") from None
    header.pop("__metadata__", None)
    found = []
    for name, entry in header.items():
        start, end = (begin + offset for offset in entry["data_offsets"])
        found.append(Tensor(name, entry["dtype"], tuple(entry["shape"]), path, start, end - start))
    found.sort(key=lambda tensor: tensor.start)
    if found and found[-1].start + found[-1].size != there:
        raise UserError(f"{path} is cut off or damaged", hint="copy it again")
    return found


def _read(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"can't read {path}: {error}", hint=MODEL) from None
    return content


def mismatch(first: Path, second: Path) -> str | None:
    """The first difference that forbids averaging two models, in words."""
    one, two = (_read(folder / "config.json") for folder in (first, second))
    for key in SAME:
        if one.get(key) != two.get(key):
            return f"{key} is {one.get(key)} in {first} and {two.get(key)} in {second}"
    return _other_words(first, second) or _other_tensors(first, second)


def _other_words(first: Path, second: Path) -> str | None:
    for name in ("tokenizer.json", "vocab.json", "tokenizer.model"):
        one, two = first / name, second / name
        if not (one.is_file() and two.is_file()):
            continue
        if filecmp.cmp(one, two, shallow=False):
            return None
        if name == "tokenizer.model":
            return f"{one} and {two} differ"
        words, others = _words(one), _words(two)
        for token in sorted(words.keys() | others.keys()):
            if words.get(token) != others.get(token):
                said = (f"{w[token]!r}" if token in w else "missing" for w in (words, others))
                return f"token {token} is {next(said)} in {first} and {next(said)} in {second}"
        return None
    return None


def _words(path: Path) -> dict[int, str]:
    """The vocabulary that a tokenizer's file lists."""
    content = _read(path)
    listed = content["model"]["vocab"] if path.name == "tokenizer.json" else content
    # A unigram model's is a list of words with their scores.
    pairs = listed.items() if isinstance(listed, dict) else ((entry[0], token) for token, entry in enumerate(listed))
    words = {token: word for word, token in pairs}
    return words | {added["id"]: added["content"] for added in content.get("added_tokens", ())}


def _other_tensors(first: Path, second: Path) -> str | None:
    own, others = tensors(first), tensors(second)
    for name, one in own.items():
        two = _of(others, name)
        if two is None:
            return f"{second} has no {name}, which {first} has"
        if one.shape != two.shape:
            return f"{name} has the shape {list(one.shape)} in {first} and {list(two.shape)} in {second}"
        if one.kind != two.kind and not {one.kind, two.kind} <= FLOATS.keys():
            return f"{name} is {one.kind} in {first} and {two.kind} in {second}"
    for name, two in others.items():
        if name not in own and not _tied(two, others):
            return f"{first} has no {name}, which {second} has"
    return None


def _of(model: dict[str, Tensor], name: str) -> Tensor | None:
    """A model's tensor; its embeddings for an output layer that isn't in its files, because the two are one."""
    if name in model or not name.endswith("lm_head.weight"):
        return model.get(name)
    return next((tensor for other, tensor in model.items() if other.endswith("embed_tokens.weight")), None)


def _tied(tensor: Tensor, model: dict[str, Tensor]) -> bool:
    """Whether it is an output layer that says the same as the embeddings."""
    rest = {name: other for name, other in model.items() if name != tensor.name}
    other = _of(rest, tensor.name)
    if other is None or (other.kind, other.shape) != (tensor.kind, tensor.shape):
        return False
    return all(one == two for one, two in zip(tensor.blocks(), other.blocks(), strict=True))


def average(folders: Sequence[Path], shares: Sequence[float], into: Path, *, shard_bytes: int = 5_000_000_000) -> None:
    """Write the weighted mean of models as a model like the first: its kind of numbers, its tokenizer, its config."""
    _check(folders, shares)
    models, parts = [tensors(folder) for folder in folders], [np.float32(share) for share in shares]
    whole = sum(parts, np.float32(0))

    def averaged(tensor: Tensor) -> Iterator[bytes | memoryview]:
        same = [found for model in models if (found := _of(model, tensor.name))]
        for blocks in zip(*(each.blocks() for each in same), strict=True):
            if tensor.kind in FLOATS:
                terms = [_floats(block, each.kind) for block, each in zip(blocks, same, strict=True)]
                yield _rounded(_mean(terms, parts, whole), tensor.kind).data
            elif any(block != blocks[0] for block in blocks):
                raise UserError(f"{tensor.name} differs and can't be averaged: its numbers are {tensor.kind}")
            else:
                yield blocks[0]

    with _finished(into) as folder:
        _write(folder, models[0].values(), averaged, shard_bytes)
        _copy_rest(folders[0], folder)


def combine(
    method: Literal["ties", "dare", "slerp"],
    folders: Sequence[Path],
    shares: Sequence[float],
    into: Path,
    *,
    base: Path | None = None,
    density: float = 0.5,
    seed: int = 0,
) -> None:
    """Mix models as mergekit does: `ties` and `dare` mix what they changed of a base, `slerp` turns one to the other.

    TIES (Yadav et al. 2023) keeps the largest `density` of the changes, DARE (Yu et al. 2023) a random `density`.
    Unlike mergekit alone it computes in float32, whatever the models are stored in.
    """
    _check(folders, shares, *([base] if base else []))
    if (method == "slerp") != (base is None):
        what = "slerp takes no base" if base else f"{method} needs the base that the models were trained from"
        raise UserError(what, hint="ties and dare take a base, slerp takes none")
    if method == "slerp" and len(folders) != 2:
        raise UserError(f"slerp takes two models, not {len(folders)}", hint="ties and dare take any number")
    if not 0 < density <= 1:
        raise UserError(f"density is a share above 0 and at most 1, not {density}", hint="density = 0.5")
    try:
        import torch
        from mergekit.config import MergeConfiguration
        from mergekit.io.tasks import LoaderCache
        from mergekit.merge import MergeOptions, run_merge
    except ImportError:
        raise UserError(f"{method} needs mergekit", hint="pip install mergekit") from None

    parts = [share / sum(shares) for share in shares]

    def named(folder: Path) -> dict[str, Any]:  # a mere name would be split at + and @
        return {"model": {"path": str(folder)}}

    kind = next(FLOATS[tensor.kind] for tensor in tensors(folders[0]).values() if tensor.kind in FLOATS)
    order = {
        "merge_method": {"dare": "dare_linear"}.get(method, method),
        "base_model": named(base or folders[0]),
        "models": [
            {"model": named(folder), "parameters": {} if method == "slerp" else {"weight": part, "density": density}}
            for folder, part in zip(folders, parts, strict=True)
        ],
        "parameters": {"t": parts[1]} if method == "slerp" else {},
        "dtype": "float32",
        "out_dtype": kind,
    }
    options = MergeOptions(copy_tokenizer=False, write_model_card=False, quiet=True)
    with _finished(into) as folder, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            run_merge(MergeConfiguration.model_validate(order), str(folder), options)
        finally:
            LoaderCache().loaders.clear()  # it would know a folder by its name, whatever is written there later
        _copy_rest(folders[0], folder)


def _check(folders: Sequence[Path], shares: Sequence[float], *also: Path) -> None:
    if len(folders) != len(shares):
        raise UserError(f"{len(folders)} models and {len(shares)} shares", hint="give each model its share")
    for share in shares:
        if not 0 <= share <= 1:
            raise UserError(f"a share is from 0 to 1, not {share}", hint="equal shares make the plain average")
    if not any(shares):
        raise UserError("all shares are 0", hint="equal shares make the plain average")
    for folder in (*folders[1:], *also):
        if found := mismatch(folders[0], folder):
            raise UserError(found, hint="models can be averaged that were trained from the same one")


def _mean(terms: Sequence[Floats], shares: Sequence[np.float32], whole: np.float32) -> Floats:
    with np.errstate(invalid="ignore", over="ignore"):
        total = terms[0] * shares[0] + np.float32(0)  # a sum that starts from 0 is never -0
        for term, share in zip(terms[1:], shares[1:], strict=True):
            total = _plus(total, term, share)
        return total if whole == 1 else total / whole


def _plus(total: Floats, term: Floats, share: np.float32) -> Floats:
    """total + term × share, rounded once, as the processor's fused operation does for torch and so for mergekit."""
    if math.frexp(share)[0] in (0, 0.5):  # a product with a power of two needs no rounding
        return total + term * share
    product = term.astype(np.float64)
    product *= share  # 48 bits, so exact
    exact = product + total
    found = exact.astype(np.float32)
    # Rounded to 53 bits and then to 24, a sum can be off where the first rounding ends half-way between two floats.
    half = np.flatnonzero((exact.view(np.int64) & 0x1FFFFFFF) == 0x10000000)
    if half.size:
        a, b, sums = total[half].astype(np.float64), product[half], exact[half]
        part = sums - a
        lost = (a - (sums - part)) + (b - part)  # by the first rounding
        found[half] = np.where(lost == 0, sums, np.nextafter(sums, np.copysign(np.inf, lost)))
    return found


def _floats(block: bytes, kind: str) -> Floats:
    if kind == "BF16":  # the upper half of a float
        bits = np.frombuffer(block, "<u2").astype("<u4")
        bits <<= 16
        return bits.view(np.float32)
    return np.frombuffer(block, FLOATS[kind]).astype(np.float32, copy=False)


def _rounded(numbers: Floats, kind: str) -> NDArray[Any]:
    if kind != "BF16":
        return numbers.astype(FLOATS[kind], copy=False)
    bits = numbers.view(np.uint32)
    found = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2")  # to the nearest, ties to even
    found[np.isnan(numbers)] = 0x7FC0  # which rounding can turn into a number
    return found


def _write(folder: Path, found: Iterable[Tensor], content: Content, shard_bytes: int) -> None:
    """Tensors as weights of a model, in as many files as it takes."""
    shards: list[list[Tensor]] = [[]]
    room = shard_bytes
    for tensor in found:
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
        where = {tensor.name: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
        index = {"metadata": {"total_size": total}, "weight_map": where}
        (folder / INDEX).write_text(json.dumps(index, indent=1) + "\n", "utf-8")
    for name, shard in zip(names, shards, strict=True):
        _write_shard(folder / name, shard, content)


def _write_shard(path: Path, shard: list[Tensor], content: Content) -> None:
    shard.sort(key=lambda tensor: -tensor.width)  # so that each begins at a multiple of its width, as readers want it
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    place = 0
    for tensor in shard:
        offsets = [place, place := place + tensor.size]
        header[tensor.name] = {"dtype": tensor.kind, "shape": tensor.shape, "data_offsets": offsets}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in shard:
            for block in content(tensor):
                file.write(block)
        file.flush()
        os.fsync(file.fileno())  # on the disk before it gets its name


def _copy_rest(source: Path, folder: Path) -> None:
    """What a model needs besides its weights."""
    for path in source.iterdir():
        if path.is_file() and not any(path.match(pattern) for pattern in OWN):
            shutil.copyfile(path, folder / path.name)


@contextmanager
def _finished(into: Path) -> Iterator[Path]:
    """A folder to write to, whose files move up at the end, the config last: what has none loads nowhere."""
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
