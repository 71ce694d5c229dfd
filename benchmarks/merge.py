"""The average of two models, beside mergekit's `linear`: CPU time, peak memory, and whether the
bits are the same.

Each is a process of its own that averages two random Llamas of about 300 MB in bfloat16, one in
shards of 100 MB and one in shards of 70 MB. The start is shown beside the total: it imports
everything, PyTorch too, and Ponder's averages two tiny models once. `ponder run` has PyTorch in
memory anyway, so what counts is the memory beyond the start. scripts/bench-peers installs mergekit.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from measured import Cost, cost, table, verdict

HERE = Path(__file__).parent
MERGEKIT_PYTHON = HERE.parent / ".venv-mergekit/bin/python"
WEIGHTS = ((0.5, 0.5), (0.3, 0.7))
MAKE = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM
config = LlamaConfig(
    hidden_size=1024,
    intermediate_size=2816,
    num_attention_heads=16,
    num_key_value_heads=4,
    num_hidden_layers=8,
    vocab_size=32000,
)
for folder, shard in (("one", "100MB"), ("two", "70MB")):
    LlamaForCausalLM(config).bfloat16().save_pretrained(folder, max_shard_size=shard)
tiny = LlamaConfig(
    hidden_size=8,
    intermediate_size=8,
    num_attention_heads=2,
    num_hidden_layers=1,
    vocab_size=8,
)
LlamaForCausalLM(tiny).bfloat16().save_pretrained("tiny")
"""
AVERAGE = """
import sys
from pathlib import Path
from ponder.training.weights import average
one, two, into, *weights = sys.argv[1:]
average([Path("tiny"), Path("tiny")], [0.5, 0.5], Path("tiny mean"))
if weights:
    average([Path(one), Path(two)], list(map(float, weights)), Path(into))
"""


def same(one: Path, two: Path) -> bool:
    """Return whether two models hold the same tensors, bit by bit."""
    # Imported when nothing is measured any more: a child process starts with its parent's peak.
    from ponder.training.weights import tensors

    first = tensors(one)
    second = tensors(two)
    if first.keys() != second.keys():
        return False
    for name, tensor in first.items():
        other_tensor = second[name]
        if (tensor.kind, tensor.shape) != (other_tensor.kind, other_tensor.shape):
            return False
        for block, other_block in zip(tensor.blocks(), other_tensor.blocks(), strict=True):
            if block != other_block:
                return False
    return True


def main() -> None:
    commands = {"ponder": [sys.executable, "-c", AVERAGE]}
    if MERGEKIT_PYTHON.exists():
        commands["mergekit"] = [str(MERGEKIT_PYTHON), str(HERE / "peers/mergekit_linear.py")]
    else:
        print("mergekit is left out: scripts/bench-peers installs it", file=sys.stderr)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def took(who: str, *weights: float) -> Cost:
            words = [str(weight) for weight in weights]
            return cost(
                [*commands[who], "one", "two", "".join([who, *words]), *words],
                folder,
                OMP_NUM_THREADS="1",
            )

        cost([sys.executable, "-c", MAKE], folder)
        starts = {who: took(who) for who in commands}
        for weights in WEIGHTS:
            found = {who: took(who, *weights) for who in commands}
            rows = []
            for who in commands:
                numbers = (*found[who], *starts[who])
                rows.append([who, *(f"{number:.1f}" for number in numbers)])
            print(f"weights {weights[0]} and {weights[1]}")
            print(table(rows, ["", "CPU s", "peak MB", "start: CPU s", "peak MB"]))
            ours, start = found["ponder"], starts["ponder"]
            print(verdict("memory beyond the start", ours.peak_mb - start.peak_mb, 5, " MB"))
            if theirs := found.get("mergekit"):
                print(
                    verdict("CPU time, of mergekit's", ours.cpu_seconds / theirs.cpu_seconds, 0.5)
                )
                beyond = theirs.peak_mb - starts["mergekit"].peak_mb
                print(
                    verdict(
                        "memory beyond the start, of mergekit's",
                        (ours.peak_mb - start.peak_mb) / beyond,
                        0.1,
                    )
                )
        if "mergekit" in commands:
            pairs = [[folder / f"{who}{one}{two}" for who in commands] for one, two in WEIGHTS]
            print(
                verdict("averages that differ in a bit", sum(not same(*pair) for pair in pairs), 0)
            )


if __name__ == "__main__":
    main()
