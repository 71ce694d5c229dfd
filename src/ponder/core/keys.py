"""Hashes for keys, seeds and files. They are the same on every machine and in every process."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from ponder.core.errors import UserError
from ponder.core.jsonl import RELATIVE, check_ends

# of each shard of large weights, this many blocks of so many bytes are hashed
BLOCKS, BLOCK = 64, 2**16


def digest(*parts: Any) -> bytes:
    """A 16-byte hash of JSON values."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def seed_from(*parts: Any) -> int:
    """A 63-bit seed hashed from its parts, so that neighbouring indices give unrelated seeds."""
    return int.from_bytes(digest(*parts)[:8], "big") >> 1


def fingerprint(path: Path) -> str:
    """A hash of a file's content, as 32 hexadecimal digits."""
    try:
        check_ends(path)
        state = path.stat()
        return _fingerprint(path, state.st_mtime_ns, state.st_size)
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror}", hint=RELATIVE) from None


@lru_cache
def _fingerprint(path: Path, *state: int) -> str:  # noqa: ARG001 so that a changed file is read again
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def weights_fingerprint(folder: Path) -> str | None:
    """A hash of the weights in a folder or a GGUF file, wherever they are; None if there are none."""
    if folder.suffix == ".gguf":
        return fingerprint(folder)
    if (whole := folder / "model.safetensors").is_file():
        return fingerprint(whole)
    shards = sorted(folder.glob("model-*.safetensors"))
    hashes = [_sampled(path, path.stat().st_mtime_ns, path.stat().st_size) for path in shards]
    return digest(*hashes).hex() if hashes else None


@lru_cache
def _sampled(path: Path, _: int, size: int) -> str:
    """A hash of a file's size, its beginning and blocks spread over it: all of 60 GB would take a
    minute.
    """
    hashed = hashlib.blake2b(str(size).encode(), digest_size=16)
    with path.open("rb") as file:
        for n in range(BLOCKS):
            file.seek(n * max(0, size - BLOCK) // (BLOCKS - 1))
            hashed.update(file.read(BLOCK))
    return hashed.hexdigest()
