"""Hashes: keys of attempts, seeds of random numbers, and fingerprints of files. The same on every machine."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from ponder.core.errors import UserError


def digest(*parts: Any) -> bytes:
    """16 bytes that depend on every part."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def seed_from(*parts: Any) -> int:
    """A 63-bit seed hashed from its parts, so that neighbouring indices share nothing."""
    return int.from_bytes(digest(*parts)[:8], "big") >> 1


def fingerprint(path: Path) -> str:
    """A file's content as 32 hexadecimal digits."""
    try:
        state = path.stat()
        return _fingerprint(path, state.st_mtime_ns, state.st_size)
    except OSError as error:
        hint = "the path is relative to the study's folder"
        raise UserError(f"can't read {path}: {error.strerror}", hint=hint) from None


@lru_cache
def _fingerprint(path: Path, *state: int) -> str:  # noqa: ARG001 a changed file is read again
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
