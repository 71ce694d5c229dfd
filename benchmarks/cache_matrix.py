"""Is a pruned cache exact on every architecture in transformers that generates text, or refused with a reason?

    python benchmarks/cache_matrix.py [MODEL_TYPE ...] [--jsonl FILE] [--docs]

Each tiny random model generates under several policies, granularities and kernels, in a batch with left padding, and
its logits are compared with a recompute that masks what was evicted (`ponder.caches.exactness`). With `--docs` the
table goes to docs/caches-for-transformers.md, and the list of tested architectures to src/ponder/caches/_tested.py.
"""

from __future__ import annotations

import json
import re
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from architectures import architectures, second_turn, tiny_model

from ponder.caches._exact import Exactness, exactness, stock_error
from ponder.caches.h2o import H2o
from ponder.caches.random import Random
from ponder.caches.rkv import Rkv
from ponder.caches.snapkv import Snapkv
from ponder.caches.streaming import Streaming
from ponder.core import CacheBudget, UserError

SNAPKV, RKV = Snapkv(queries=6, pool=3), Rkv(queries=4)
# Policy, granularity, attention, kernel, ratio: each pair of neighbours at least once.
COMBINATIONS = [
    (Streaming(), "model", "sdpa", "stock", 0.5),
    (Streaming(), "model", "sdpa", "grouped", None),
    (H2o(), "head", "sdpa", "grouped", 0.5),
    (H2o(), "layer", "eager", "stock", None),
    (SNAPKV, "model", "eager", "grouped", 0.5),
    (SNAPKV, "head", "sdpa", "stock", 0.5),
    (Random(), "layer", "eager", "grouped", 0.5),
    (RKV, "head", "eager", "stock", None),
]


def verdict(measure: Callable[[], Exactness], off: float) -> tuple[str, float | str]:
    """What a cache does on a model: exact, refused, wrong or crash, with a number or a reason."""
    try:
        measured = measure()
    except UserError as error:
        return "refused", error.what
    except Exception as error:
        return "crash", f"{type(error).__name__}: {str(error).strip()[:120]}"
    if not measured.error < max(1e-3, 2 * off):
        return "wrong", measured.error
    return ("exact" if measured.effect > 1e-2 else "insensitive"), measured.error


def tried(kind: str, variant: str) -> dict[str, Any]:
    """Every combination on one architecture."""
    row: dict[str, Any] = {"kind": kind, "variant": variant}
    try:
        model = tiny_model(kind, variant)
    except Exception as error:
        return row | {"untried": f"no small model of it could be made: {type(error).__name__}"}
    try:
        off = stock_error(model)
    except Exception as error:
        return row | {"untried": f"the small model doesn't generate with its own cache: {type(error).__name__}"}
    runs: dict[str, tuple[str, float | str]] = {}
    for policy, granularity, attention, kernel, ratio in COMBINATIONS:
        budget = CacheBudget(24, 5, ratio, sinks=2, question=False, granularity=granularity)
        name = f"{policy.plugin_name()}/{granularity}/{attention}/{kernel}/{'step' if ratio is None else 'ratio'}"
        try:
            model.set_attn_implementation(attention)
        except ValueError:
            runs[name] = "unavailable", f"transformers has no {attention} for it"
            continue
        settings = {"kernel": kernel, "tokens": 30, "untested": True}
        runs[name] = verdict(partial(exactness, model, policy, budget, **settings), off)
    budget = CacheBudget(18, 5, 0.5, sinks=2, question=False)
    runs["second turn"] = verdict(partial(second_turn, model, Streaming(), budget), off)
    return row | {"stock": off, "runs": runs}


def main(wanted: list[str]) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    out = Path(wanted.pop(wanted.index("--jsonl") + 1)) if "--jsonl" in wanted else None
    names = [w for w in wanted if not w.startswith("--")]
    for kind, variant in architectures():
        if names and kind not in names:
            continue
        began = time.process_time()
        row = tried(kind, variant)
        if out:
            with out.open("a") as file:
                file.write(json.dumps(row) + "\n")
        counts: dict[str, list[str]] = defaultdict(list)
        for name, (what, why) in row.get("runs", {}).items():
            counts[what].append(f"{name}: {why:.1e}" if isinstance(why, float) else f"{name}: {why}")
        print(
            f"{kind:22} {variant:15}",
            row.get("untried", ""),
            {w: len(n) for w, n in counts.items()},
            f"stock {row.get('stock', 0):.0e}",
            f"{time.process_time() - began:.1f} s",
            flush=True,
        )
        for what in ("wrong", "crash", "insensitive", "refused"):
            for line in dict.fromkeys(re.sub(r"^\S+: ", "", n) if what == "refused" else n for n in counts[what]):
                print("     ", what, line[:200])


if __name__ == "__main__":
    main(sys.argv[1:])
