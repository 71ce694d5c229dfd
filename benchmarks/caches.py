"""What a pruned KV cache saves per token, and what the labels of DynTS cost: time and memory.

    python benchmarks/caches.py [decode] [labels]

All times are CPU time of one thread. Decoding is measured on a random Llama of SmolLM2-135M's shape; its caches are
filled with random keys and values, and pruned as often as decoding would have pruned them. Two full caches are
compared: transformers' own, which copies itself at every token, and ours in a buffer. The second comparison is the fair
one: its gain comes from eviction alone, the rest from the buffer and the kernel. A step without context is the lower
bound.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
from measured import cost, table, verdict
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from ponder.caches import CacheBudget, SelectCache
from ponder.caches._fidelity import tokens_until_pruning
from ponder.caches.dynts.labels import importance
from ponder.caches.full import Full
from ponder.caches.random import Random

HELD = CacheBudget(budget=1152, window=256, ratio=0.75, question=False)  # from 928 columns to 1,152: about 1k
CYCLE = 224  # tokens from one pruning to the next
ROUNDS, STEPS = 7, 4  # steps of a full cache per round; the pruned one takes one cycle over all rounds
BARS = {
    2048: (1.4, None),
    8192: (3.0, 1.5),
    16384: (5.0, 2.3),
}  # required speed-up over the stock full cache, and over ours
TRACE, ANSWER, VOCABULARY = 4096, 256, 2048


def llama(**shape: int) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(max_position_embeddings=32768, **shape)
    return LlamaForCausalLM(config).eval()


def smol() -> Any:
    return llama(
        hidden_size=576,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        intermediate_size=1536,
        vocab_size=49152,
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


def fill(model: Any, cache: Any, context: int) -> None:
    """Fill a cache as if this many tokens had been decoded."""
    shape, filled = model.config, 0
    while filled < context:
        pruned = isinstance(cache, SelectCache) and cache.budget is not None
        new = min(context - filled, tokens_until_pruning(cache) if pruned else context)
        for index in range(shape.num_hidden_layers):
            keys, values = torch.randn(2, 1, shape.num_key_value_heads, new, shape.head_dim)
            cache.update(keys, values, index)
        if isinstance(cache, SelectCache):
            cache.after_forward(None, torch.zeros(1, new, shape.hidden_size), None)
        filled += new


def buffered(cache: Any) -> float:
    """MB allocated for keys and values."""
    return sum(t.nbytes for layer in cache.layers for t in (layer.keys, layer.values)) / 1e6


class Decoder:
    """A model with a filled cache."""

    def __init__(self, model: Any, cache: Any, context: int) -> None:
        self.model, self.cache, self.taken = model, cache, list[float]()
        fill(model, cache, context)

    def steps(self, count: int) -> None:
        kernel = "sdpa" if isinstance(self.cache, DynamicCache) else "ponder"
        self.model.set_attn_implementation(kernel)
        token = torch.tensor([[7]])
        for _ in range(count):
            self.taken.append(seconds(lambda: self.model(token, past_key_values=self.cache)))


@torch.inference_mode()
def decoding() -> None:
    model, rows, sizes, verdicts = smol(), [], [], []
    for context, (stock_bar, full_bar) in BARS.items():
        held = Decoder(model, SelectCache(model, Random(), HELD), context)
        full = Decoder(model, SelectCache(model, Full(), None), context)
        stock = Decoder(model, DynamicCache(), context)
        floor = Decoder(model, DynamicCache(), 1)
        for decoder in (held, full, stock, floor):
            decoder.steps(2)
            decoder.taken.clear()
        for _ in range(ROUNDS):
            held.steps(CYCLE // ROUNDS)
            for decoder in (full, stock, floor):
                decoder.steps(STEPS)
        # One step of the cycle ends with a pruning; its extra time is divided among the steps.
        pruning = max(held.taken) - median(held.taken)
        ours, mine, theirs = median(held.taken) + pruning / CYCLE, median(full.taken), median(stock.taken)
        times = [f"{1000 * t:.0f}" for t in (theirs, mine, ours, median(floor.taken))]
        rows.append((f"{context:,}", *times, f"{1000 * pruning:.0f}", f"{theirs / ours:.1f}×", f"{mine / ours:.1f}×"))
        verdicts.append(
            verdict(
                f"pruned cache's time as a fraction of the stock full cache's at {context:,}",
                ours / theirs,
                1 / stock_bar,
            )
        )
        if full_bar:
            verdicts.append(
                verdict(
                    f"pruned cache's time as a fraction of our full cache's at {context:,}", ours / mine, 1 / full_bar
                )
            )
        columns = held.cache.held[0][-CYCLE:]
        config = model.config
        a_token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 4 / 1e6
        assert held.cache.token_bytes / 1e6 == a_token
        whole = a_token * full.cache.seen_tokens[0]
        sizes.append(
            (
                f"{context:,}",
                f"{whole:.1f}",
                f"{buffered(stock.cache):.1f}",
                f"{a_token * mean(columns):.1f}",
                f"{a_token * max(columns):.1f}",
                f"{buffered(held.cache):.1f}",
                f"{whole / buffered(held.cache):.1f}×",
            )
        )
        verdicts.append(
            verdict(
                f"allocated as a fraction of the formula's peak at {context:,}",
                buffered(held.cache) / a_token / max(columns),
                1.1,
            )
        )
    heads = (
        "context",
        "stock full ms",
        "our full ms",
        "pruned to 1k ms",
        "no context ms",
        "one pruning ms",
        "vs stock",
        "vs our full",
    )
    print(table(rows, heads))
    print()
    print("MB by formula (2 × layers × heads × width × 4 bytes × columns), and MB allocated")
    heads = ("context", "full", "stock allocated", "pruned, mean", "peak", "allocated", "ratio")
    print(table(sizes, heads))
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
    rows = [(how, f"{median(times):.2f}", f"{peak[how] - peak['nothing']:.0f}") for how, times in taken.items()]
    square = TRACE**2 * 4 / 2**20
    print(table(rows, (f"{TRACE:,} tokens, {ANSWER} of answer", "CPU s", "MB beyond the model")))
    print(
        f"attention matrix of one head: {square:.0f} MB; of one layer: {square * model.config.num_attention_heads:.0f}"
    )
    print()
    print(
        verdict("labels: time as a fraction of a plain pass's", median(taken["labels"]) / median(taken["plain"]), 1.5)
    )
    print(verdict("labels: peak memory beyond a plain pass's", peak["labels"] - peak["plain"], square, " MB"))


def main(wanted: list[str]) -> None:
    torch.set_num_threads(1)
    if wanted[:1] == ["read"]:  # in a child process, to measure its peak memory
        read(small(), wanted[1])
        return
    # Labels first: a child process inherits its parent's peak, and the other model is larger.
    for name, measure in {"labels": labels, "decode": decoding}.items():
        if not wanted or name in wanted:
            measure()
            print()


if __name__ == "__main__":
    main(sys.argv[1:])
