"""Compares eviction policies with kvpress's: drift from the full cache on the same texts, and time per token.

Both prune the same model's cache from 128 columns to 96. The column `protected` has our defaults: each head evicts for
itself, and the question, four sinks and the last 16 tokens are protected. kvpress doesn't protect the question, so the
column beside its own protects what it protects, with the same granularity. It needs another version of transformers, so
times are multiples of the stock full cache's in the same environment. scripts/bench-peers installs it.

Remaining differences: kvpress doesn't keep columns in order, so after its first pruning `streaming` no longer knows
which columns are sinks; its `snapkv` gives all queries of the window the rotary embedding of the last one; its `h2o`
sees only the last query's attention.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

import torch
from measured import cost, record, table
from transformers import AutoModelForCausalLM, DynamicCache

from ponder.caches import CacheBudget, SelectCache, drift
from ponder.caches.full import Full
from ponder.caches.h2o import H2o
from ponder.caches.last_query import LastQuery
from ponder.caches.random import Random
from ponder.caches.snapkv import Snapkv
from ponder.caches.streaming import Streaming
from ponder.core import Policy, Request
from ponder.models.pocket import CODECS, SHIPPED
from ponder.tasks.tents import Tents

HERE = Path(__file__).parent
KVPRESS_PYTHON = HERE.parent / ".venv-kvpress/bin/python"
SIZE, TEXTS, LONGEST = 64, 4, 500
TARGET, INTERVAL = 96, 32


def budget(
    window: int, sinks: int, granularity: Literal["layer", "head"] = "head", *, question: bool = False
) -> CacheBudget:
    """Prune at target + interval columns, with the ratio that leaves the target."""
    ratio = (TARGET - window + 0.5) / (TARGET + INTERVAL - window)
    return CacheBudget(TARGET + INTERVAL, window, ratio, sinks=sinks, question=question, granularity=granularity)


OURS = budget(window=16, sinks=4, question=True)
# With what kvpress protects, and its granularity, under the same policy.
POLICIES: dict[str, tuple[Policy, CacheBudget]] = {
    "streaming": (Streaming(), budget(window=1, sinks=4)),
    "random": (Random(), budget(window=1, sinks=0)),
    "last_query": (LastQuery(), budget(window=1, sinks=0, granularity="layer")),
    "snapkv": (Snapkv(queries=INTERVAL - 1), budget(window=INTERVAL - 1, sinks=0)),
    "h2o": (H2o(), budget(window=1, sinks=0)),
}
Text = tuple[list[int], list[int]]  # a prompt and its reply


def texts(model: Any) -> list[Text]:
    """The model's own replies to puzzles."""
    task, spoken, found = Tents(), CODECS["tents"], list[Text]()
    for problem in itertools.islice(task.problems(SIZE, seed=1), TEXTS):
        prompt = spoken.encode(spoken.prompt(Request.first_turn(task, problem)))
        cache = SelectCache(model, Full(), None)
        ids = torch.tensor([prompt])
        said = model.generate(
            ids, attention_mask=torch.ones_like(ids), past_key_values=cache, max_new_tokens=LONGEST, do_sample=False
        )
        found.append((prompt, said[0, len(prompt) :].tolist()))
    return found


def seconds_per_token(model: Any, given: list[Text], policy: Policy | None) -> float:
    """CPU time with a pruned cache, or with the stock full cache."""
    spent, tokens = 0.0, 0
    for prompt, said in given:
        cache: Any = SelectCache(model, policy, OURS) if policy else DynamicCache()
        model.set_attn_implementation("ponder" if policy else "sdpa")
        model(torch.tensor([prompt]), past_key_values=cache)
        began = time.process_time()
        for token in said[:-1]:
            model(torch.tensor([[token]]), past_key_values=cache)
        spent += time.process_time() - began
        tokens += len(said) - 1
    return spent / tokens


def mean_kl(model: Any, given: list[Text], policy: Policy, limits: CacheBudget) -> float:
    drifts = [drift(model, *text, policy, limits) for text in given]
    return sum(d.kl * d.tokens for d in drifts) / sum(d.tokens for d in drifts)


@torch.inference_mode()
def main() -> None:
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(SHIPPED, dtype="float32").eval()
    given = texts(model)
    theirs = kvpress(given)
    stock, rows = seconds_per_token(model, given, None), []
    for name, (policy, alike) in POLICIES.items():
        kls = [mean_kl(model, given, policy, limits) for limits in (OURS, alike)]
        time_a_token = seconds_per_token(model, given, policy) / stock
        row = [name, *(f"{kl:.3f}" for kl in kls), f"{time_a_token:.2f}×"]
        if theirs:
            other = theirs[name]["seconds"] / theirs["full"]["seconds"]
            row += [f"{theirs[name]['kl']:.3f}", f"{other:.2f}×"]
            packages = ["torch", "transformers", ".venv-kvpress/kvpress", ".venv-kvpress/transformers"]
            what = f"{name}: CPU per token, of the stock cache's"
            record("Caches", what, "×", time_a_token, "kvpress", other, packages=packages)
            what = f"{name}: KL from the full cache, protecting what kvpress does"
            record("Caches", what, "nats", kls[1], "kvpress", theirs[name]["kl"], packages=packages)
        rows.append(row)
    prompts, said = ([len(part) for part in parts] for parts in zip(*given, strict=True))
    print(
        f"prompts of {min(prompts)} to {max(prompts)} tokens, texts of {min(said)} to {max(said)}; KL in nats per token"
    )
    heads = ["policy", "protected KL", "KL", "time"]
    print(table(rows, [*heads, "kvpress KL", "kvpress time"] if theirs else heads))
    times = f"{1000 * stock:.1f}" + (f" and {1000 * theirs['full']['seconds']:.1f}" if theirs else "")
    print(f"time: relative to the stock full cache's with the same transformers, {times} ms per token")


def kvpress(given: list[Text]) -> dict[str, dict[str, float]]:
    if not KVPRESS_PYTHON.exists():
        print("kvpress isn't installed, so it is left out: scripts/bench-peers installs it", file=sys.stderr)
        return {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        order = {"model": str(SHIPPED), "texts": given, "target": TARGET, "interval": INTERVAL}
        (folder / "order.json").write_text(json.dumps(order))
        cost([str(KVPRESS_PYTHON), str(HERE / "peers/kvpress_drift.py"), "order.json", "results.json"], folder)
        results: dict[str, dict[str, float]] = json.loads((folder / "results.json").read_text())
    return results


if __name__ == "__main__":
    main()
