"""The average of two models, beside mergekit's `linear`: CPU time, peak memory, and whether the bits are the same.

Each is a process of its own that averages two random Llamas of about 300 MB in bfloat16, one in shards of 100 MB and
one in shards of 70 MB. What a start costs is shown beside the total. scripts/bench-peers installs mergekit.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from measured import Cost, cost, table, verdict

HERE = Path(__file__).parent
MERGEKIT_PYTHON = HERE.parent / ".venv-mergekit/bin/python"
SHARES = ((0.5, 0.5), (0.3, 0.7))
MAKE = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM
shape = dict(hidden_size=1024, intermediate_size=2816, num_attention_heads=16, num_key_value_heads=4)
config = LlamaConfig(num_hidden_layers=8, vocab_size=32000, **shape)
for folder, shard in (("one", "100MB"), ("two", "70MB")):
    LlamaForCausalLM(config).bfloat16().save_pretrained(folder, max_shard_size=shard)
"""
AVERAGE = """
import sys
from pathlib import Path
from ponder.training.weights import average
one, two, into, *shares = sys.argv[1:]
if shares:
    average([Path(one), Path(two)], list(map(float, shares)), Path(into))
"""


def same(one: Path, two: Path) -> bool:
    """Whether two models hold the same tensors, bit by bit."""
    from ponder.training.weights import (
        tensors,
    )  # once nothing is measured any more: a child begins with its parent's peak

    first, second = tensors(one), tensors(two)
    return first.keys() == second.keys() and all(
        (a.kind, a.shape) == (b.kind, b.shape)
        and all(mine == theirs for mine, theirs in zip(a.blocks(), b.blocks(), strict=True))
        for a, b in ((first[name], second[name]) for name in first)
    )


def main() -> None:
    commands = {"ponder": [sys.executable, "-c", AVERAGE]}
    if MERGEKIT_PYTHON.exists():
        commands["mergekit"] = [str(MERGEKIT_PYTHON), str(HERE / "peers/mergekit_linear.py")]
    else:
        print("mergekit is left out: scripts/bench-peers installs it", file=sys.stderr)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def took(who: str, *shares: float) -> Cost:
            words = [str(share) for share in shares]
            return cost([*commands[who], "one", "two", "".join([who, *words]), *words], folder, OMP_NUM_THREADS="1")

        cost([sys.executable, "-c", MAKE], folder)
        starts = {who: took(who) for who in commands}
        for shares in SHARES:
            found = {who: took(who, *shares) for who in commands}
            rows = [[who, *(f"{x:.1f}" for x in (*found[who], *starts[who]))] for who in commands]
            print(f"shares {shares[0]} and {shares[1]}")
            print(table(rows, ["", "CPU s", "peak MB", "start: CPU s", "peak MB"]))
            ours, start = found["ponder"], starts["ponder"]
            print(verdict("memory beyond the start", ours.peak_mb - start.peak_mb, 5, " MB"))
            if theirs := found.get("mergekit"):
                print(verdict("CPU time, of mergekit's", ours.cpu_seconds / theirs.cpu_seconds, 0.5))
                print(verdict("peak memory, of mergekit's", ours.peak_mb / theirs.peak_mb, 0.1))
        if "mergekit" in commands:
            pairs = [[folder / f"{who}{one}{two}" for who in commands] for one, two in SHARES]
            print(verdict("averages that differ in a bit", sum(not same(*pair) for pair in pairs), 0))


if __name__ == "__main__":
    main()
