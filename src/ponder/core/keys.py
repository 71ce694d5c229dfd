"""Hashes for keys, seeds and files. They are the same on every machine and in every process."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from ponder.core.errors import UserError
from ponder.core.jsonl import RELATIVE, check_ends

# Large weights are sampled: this many blocks of this many bytes are hashed per shard.
BLOCKS = 64
BLOCK_BYTES = 2**16


def digest(*parts: Any) -> bytes:
    """Return a 16-byte hash of JSON values."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def seed_from(*parts: Any) -> int:
    """Return a 63-bit seed hashed from its parts, so that neighbouring indices are unrelated."""
    return int.from_bytes(digest(*parts)[:8], "big") >> 1


def fingerprint(path: Path) -> str:
    """Return a hash of a file's content, as 32 hexadecimal digits."""
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
    """Return a hash of the weights in a folder or a GGUF file; None if there are none."""
    if folder.suffix == ".gguf":
        return fingerprint(folder)
    single = folder / "model.safetensors"
    if single.is_file():
        return fingerprint(single)
    hashes = []
    for path in sorted(folder.glob("model-*.safetensors")):
        state = path.stat()
        hashes.append(_sampled(path, state.st_mtime_ns, state.st_size))
    if not hashes:
        return None
    return digest(*hashes).hex()


@lru_cache
def _sampled(path: Path, _: int, size: int) -> str:
    """Return a hash of a file's size and of blocks spread over it: 60 GB would take a minute."""
    hashed = hashlib.blake2b(str(size).encode(), digest_size=16)
    with path.open("rb") as file:
        for n in range(BLOCKS):
            file.seek(n * max(0, size - BLOCK_BYTES) // (BLOCKS - 1))
            hashed.update(file.read(BLOCK_BYTES))
    return hashed.hexdigest()
