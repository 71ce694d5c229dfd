"""What a pruned KV cache saves per token, and what the labels of DynTS cost: time and memory.

    python benchmarks/kvcache.py [decode] [steps] [labels]

All times are CPU time of one thread; what is compared takes turns, so that the machine's load hits
all alike. Decoding is measured on a random Llama of SmolLM2-135M's shape, and for batches on one
with a fifth of its layers and vocabulary, whose full cache fits into memory. Caches are filled with
random keys and values, and pruned as often as decoding would have pruned them. A step without
context is the limit: no cache could be faster. Two full caches are compared: transformers' own,
which copies itself at every token, and ours in a buffer; the second comparison shows what eviction
alone gains.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from measured import cost, table, verdict
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from ponder.kvcache import CacheBudget, SelectCache
from ponder.kvcache.attention import PASS
from ponder.kvcache.fidelity import tokens_until_pruning
from ponder.policies.dynts.labels import importance
from ponder.policies.full import Full
from ponder.policies.h2o import H2o
from ponder.policies.random import Random

# from 928 columns to 1,152: about 1k
HELD = CacheBudget(budget=1152, window=256, ratio=0.75, question=False)
CYCLE, STRIDE = 224, 8  # tokens from one pruning to the next, of which every eighth is measured
# Context, batch, part of the model: rounds, steps of a full cache per round. The pruned one has one
# cycle in all.
SETTINGS = {
    (2048, 1, 1): (7, 3),
    (8192, 1, 1): (7, 2),
    (16384, 1, 1): (7, 1),
    (8192, 8, 5): (7, 1),
    (8192, 16, 5): (7, 1),
}
OF_LIMIT = 0.9  # of the speed-up that a cache without any cost would have
BATCH_SPEED_UP = 3.0  # over stock, in batches
STEP = CacheBudget(budget=1024, window=256, question=False)  # pruned at every step
STEP_BAR = 1.15  # of a step without a pruning
ALLOCATED = 1.1  # our full cache's bytes, relative to stock's
TRACE, ANSWER, VOCABULARY = 4096, 256, 2048


def llama(**shape: int) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(max_position_embeddings=32768, **shape)
    return LlamaForCausalLM(config).eval()


def smol(part: int = 1) -> Any:
    """SmolLM2-135M's shape, or a part of it with fewer layers and tokens."""
    return llama(
        hidden_size=576,
        num_hidden_layers=30 // part,
        num_attention_heads=9,
        num_key_value_heads=3,
        intermediate_size=1536,
        vocab_size=49152 // part,
    )


def small() -> Any:
    """7M parameters."""
    return llama(
        hidden_size=256,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        intermediate_size=688,
        vocab_size=VOCABULARY,
    )


def seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


class Decoder:
    """A model with a cache that is filled as if this many tokens had been decoded."""

    def __init__(self, model: Any, cache: Any, context: int, rows: int = 1) -> None:
        self.model, self.cache, self.rows, self.taken = model, cache, rows, list[float]()
        self.pruning, filled = 0.0, 0
        while filled < context:
            pruned = isinstance(cache, SelectCache) and cache.budget is not None
            new = min(context - filled, tokens_until_pruning(cache) if pruned else context)
            self._fill(new)
            filled += new

    def _fill(self, new: int) -> None:
        shape, cache = self.model.config, self.cache
        if isinstance(cache, SelectCache):
            cache.before_forward((self.rows, new), None, None)
            PASS.cache = cache
        for index in range(shape.num_hidden_layers):
            keys, values = torch.randn(2, self.rows, shape.num_key_value_heads, new, shape.head_dim)
            cache.update(keys, values, index)
        if isinstance(cache, SelectCache):
            PASS.cache = None
            for layer in cache.pruned_layers:
                layer.observed = True
            held = cache.max_length
            taken = seconds(lambda: cache.after_forward(None, torch.zeros(self.rows, new, 1)))
            if cache.max_length < held + new:
                self.pruning = taken

    def steps(self, count: int, stride: int = 1) -> None:
        token = torch.full((self.rows, 1), 7)
        for _ in range(count):
            if stride > 1:
                self._fill(stride - 1)
            self.taken.append(seconds(lambda: self.model(token, past_key_values=self.cache)))

    @property
    def megabytes(self) -> float:
        """Allocated for keys and values."""
        return (
            sum(t.nbytes for layer in self.cache.layers for t in (layer.keys, layer.values)) / 1e6
        )


@torch.inference_mode()
def decoding() -> None:
    rows, sizes, verdicts = [], [], []
    for (context, batch, part), (rounds, steps) in SETTINGS.items():
        model = smol(part)
        held = Decoder(model, SelectCache(model, Random(), HELD), context, batch)
        full = Decoder(model, SelectCache(model, Full(), None), context, batch)
        stock = Decoder(model, DynamicCache(), context, batch)
        floor = Decoder(model, DynamicCache(), 1, batch)
        for decoder in (held, full, stock, floor):
            decoder.steps(2)
            decoder.taken.clear()
        for _ in range(rounds):
            held.steps(CYCLE // STRIDE // rounds, STRIDE)
            for decoder in (full, stock, floor):
                decoder.steps(steps)
        pruning = held.pruning  # once per cycle
        ours, mine, theirs = (
            median(held.taken) + pruning / CYCLE,
            median(full.taken),
            median(stock.taken),
        )
        limit = median(floor.taken)
        times = [f"{1000 * t:.0f}" for t in (theirs, mine, ours, limit, pruning)]
        name = f"{context:,} × {batch}"
        rows.append(
            (name, *times, f"{theirs / ours:.2f}×", f"{theirs / limit:.2f}×", f"{mine / ours:.2f}×")
        )
        verdicts.append(
            verdict(
                f"{name}: limit of the speed-up, relative to the speed-up",
                ours / limit,
                1 / OF_LIMIT,
            )
        )
        if batch > 1:
            verdicts.append(
                verdict(f"{name}: time as a fraction of stock's", ours / theirs, 1 / BATCH_SPEED_UP)
            )
        sizes.append((name, *(f"{d.megabytes:.0f}" for d in (stock, full, held))))
        verdicts.append(
            verdict(
                f"{name}: full cache's bytes relative to stock's",
                full.megabytes / stock.megabytes,
                ALLOCATED,
            )
        )
    heads = (
        "context × batch",
        "stock ms",
        "our full",
        "held at 1k",
        "no context",
        "one pruning",
        "vs stock",
        "limit",
        "vs our full",
    )
    print(table(rows, heads))
    print()
    print(table(sizes, ("MB allocated", "stock", "our full", "held at 1k")))
    print("\n", "\n".join(verdicts), sep="")


@torch.inference_mode()
def every_step() -> None:
    """The cost of pruning at every step, beside a cache of the same length that isn't pruned."""
    model, rows, verdicts = smol(), [], []
    for policy, granularity in ((Random(), "model"), (Random(), "head"), (H2o(), "model")):
        limits = replace(STEP, granularity=granularity)
        pruned = Decoder(model, SelectCache(model, policy, limits), STEP.budget)
        plain = Decoder(model, SelectCache(model, policy, None), STEP.budget)
        for _ in range(8):
            for decoder in (pruned, plain):
                decoder.steps(2)
        times = [median(decoder.taken[2:]) for decoder in (plain, pruned)]
        ratio = times[1] / times[0]
        rows.append(
            (
                policy.plugin_name(),
                granularity,
                *(f"{1000 * t:.0f}" for t in times),
                f"{ratio:.2f}×",
            )
        )
        what = f"{policy.plugin_name()}, {granularity}"
        what += ": a step that prunes, relative to one that doesn't"
        verdicts.append(verdict(what, ratio, STEP_BAR))
    print(table(rows, ("policy", "granularity", "a step ms", "and a pruning", "ratio")))
    print("\n", "\n".join(verdicts), sep="")


@torch.inference_mode()
def read(model: Any, how: str) -> None:
    ids = torch.arange(TRACE) * 7919 % VOCABULARY
    if how == "labels":
        importance(model, ids, TRACE - ANSWER)
    elif how == "plain":
        model.base_model(ids[None], use_cache=False)


def labels() -> None:
    with tempfile.TemporaryDirectory() as folder:
        peak = {
            how: cost([sys.executable, __file__, "read", how], Path(folder)).peak_mb
            for how in ("nothing", "plain", "labels")
        }
    model, taken = small(), {"plain": list[float](), "labels": list[float]()}
    for _ in range(5):
        for how, times in taken.items():
            times.append(seconds(lambda how=how: read(model, how)))
    rows = [
        (how, f"{median(times):.2f}", f"{peak[how] - peak['nothing']:.0f}")
        for how, times in taken.items()
    ]
    square = TRACE**2 * 4 / 2**20
    print(table(rows, (f"{TRACE:,} tokens, {ANSWER} of answer", "CPU s", "MB beyond the model")))
    layer_square = square * model.config.num_attention_heads
    print(f"attention matrix of one head: {square:.0f} MB; of one layer: {layer_square:.0f}")
    print()
    print(
        verdict(
            "labels: time as a fraction of a plain pass's",
            median(taken["labels"]) / median(taken["plain"]),
            1.5,
        )
    )
    print(
        verdict(
            "labels: peak memory beyond a plain pass's",
            peak["labels"] - peak["plain"],
            square,
            " MB",
        )
    )


def main(wanted: list[str]) -> None:
    torch.set_num_threads(1)
    if wanted[:1] == ["read"]:  # in a child process, to measure its peak memory
        read(small(), wanted[1])
        return
    # Labels first: a child process inherits its parent's peak, and the other model is larger.
    for name, measure in {"labels": labels, "steps": every_step, "decode": decoding}.items():
        if not wanted or name in wanted:
            measure()
            print()


if __name__ == "__main__":
    main(sys.argv[1:])
