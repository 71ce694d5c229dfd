"""Averaged weights come out whole or not at all, and take no memory to speak of."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from safetensors.torch import save_file
from test_weights import bare, held, llama, mean, same_bits

from ponder.training.weights import average, convert

# The limit on a file's size stands for whatever ends a run half-way; that it can be counted on.
STOPPED = """
import resource, signal, sys
from pathlib import Path
from ponder.training.weights import average
how, one, two, into = sys.argv[1:]
signal.signal(signal.SIGXFSZ, getattr(signal, how))
resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
average([Path(one), Path(two)], [0.5, 0.5], Path(into))
"""


@pytest.mark.parametrize(("how", "code"), [("SIG_IGN", 1), ("SIG_DFL", -25)])
@pytest.mark.parametrize("before", [False, True])
def test_stopped_half_way(tmp_path: Path, how: str, code: int, before: bool) -> None:
    one, two, into = llama(tmp_path / "one", 1), llama(tmp_path / "two", 2), tmp_path / "into"
    if before:
        average([one, two], [0.3, 0.7], into)
        kept = held(into)
    command = [sys.executable, "-c", STOPPED, how, *map(str, (one, two, into))]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == code, ended.stderr
    if before:
        assert same_bits(held(into), kept)
    else:
        assert not list(into.glob("*.json")) + list(into.glob("*.safetensors"))
    killed = how == "SIG_DFL"
    assert (into / "unfinished" / "model.safetensors").exists() == killed
    assert not (into / "unfinished" / "config.json").exists()
    average([one, two], [0.5, 0.5], into)
    assert not (into / "unfinished").exists()
    assert same_bits(held(into), mean([held(one), held(two)], [0.5, 0.5]))


def test_the_config_comes_last(tmp_path: Path) -> None:
    one, into = llama(tmp_path / "one", 1), tmp_path / "into"
    average([one, one], [1, 1], into)
    (into / "generation_config.json").unlink()
    (into / "generation_config.json").mkdir()  # where no file can move to
    with pytest.raises(IsADirectoryError):
        average([one, one], [0.3, 0.7], into)
    assert not (into / "config.json").exists()


# The peak of this process alone: what getrusage tells begins with its parent's.
GROWTH = """
import re, sys
from pathlib import Path
from ponder.training.weights import average
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024
one, two, few, into = map(Path, sys.argv[1:])
average([few, few], [0.3, 0.7], into)  # loads what is loaded once
before = peak()
average([one, two], [0.3, 0.7], into, shard_bytes=50_000_000)
print(peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks Linux for the peak")
def test_memory_does_not_grow_with_the_model(tmp_path: Path) -> None:
    shape = (2048, 4096)  # 16 MB in bfloat16
    for name, each in (("one", 2), ("two", 3)):
        (folder := bare(tmp_path / name)).joinpath("model.safetensors").unlink()
        where = {f"w{n}": f"model-{n // each}.safetensors" for n in range(5)}
        for file in set(where.values()):
            save_file(
                {w: torch.ones(shape, dtype=torch.bfloat16) for w in where if where[w] == file},
                folder / file,
            )
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    bare(tmp_path / "few", w=torch.ones(9, dtype=torch.bfloat16))
    command = [
        sys.executable,
        "-c",
        GROWTH,
        *(str(tmp_path / name) for name in ("one", "two", "few", "into")),
    ]
    growth = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert growth < 8_000_000  # of 84 MB, and half of one tensor


def test_weights_are_stored_in_another_dtype(tmp_path: Path) -> None:
    folder = llama(tmp_path / "one", 1)
    before, config = held(folder), json.loads((folder / "config.json").read_text())
    save_file(
        before | {"counts": torch.arange(5, dtype=torch.int32)},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    convert(folder, "bfloat16")
    assert same_bits(
        held(folder),
        {n: w.bfloat16() for n, w in before.items()}
        | {"counts": torch.arange(5, dtype=torch.int32)},
    )
    assert json.loads((folder / "config.json").read_text()) == {**config, "dtype": "bfloat16"}
    at = (folder / "model.safetensors").stat().st_mtime_ns
    convert(folder, "bfloat16")
    assert (folder / "model.safetensors").stat().st_mtime_ns == at
