"""Is a pruned cache exact on every architecture in transformers that generates text, or refused
with a reason?

    python benchmarks/cache_matrix.py [MODEL_TYPE ...] [--jsonl FILE]     measures; about five CPU
    minutes for all
    python benchmarks/cache_matrix.py --docs --jsonl FILE                 writes what was measured

Each tiny random model generates under several policies, granularities and kernels, in a batch with
left padding, and its logits are compared with a recompute that masks what was evicted
(`ponder.kvcache.exactness`). The table goes to docs/findings/architectures.md, and the list of
architectures that `SelectCache` accepts to src/ponder/kvcache/tested_architectures.py: those on
which every run was exact or refused.
"""

from __future__ import annotations

import json
import sys
import textwrap
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

from architectures import architectures, rows_that_join, second_turn, tiny_model

from ponder.core import CacheBudget, UserError
from ponder.kvcache.exactness import Exactness, exactness, stock_error
from ponder.policies.h2o import H2o
from ponder.policies.random import Random
from ponder.policies.rkv import Rkv
from ponder.policies.snapkv import Snapkv
from ponder.policies.streaming import Streaming

TRANSFORMERS = transformers.__version__
DOCS, TESTED = (
    ROOT / "docs/findings/architectures.md",
    ROOT / "src/ponder/kvcache/tested_architectures.py",
)
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


def verdict(measure: Callable[[], Exactness]) -> tuple[str, float | str]:
    """What a cache does on a model: exact, refused, wrong or crash, with a number or a reason."""
    try:
        measured = measure()
    except UserError as error:
        return "refused", error.what
    except Exception as error:
        return "crash", f"{type(error).__name__}: {str(error).strip()[:120]}"
    if not measured.error < 1e-3:
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
        why = f"the small model doesn't generate with its own cache: {type(error).__name__}"
        return row | {"untried": why}
    if off > 1e-3:
        return row | {"stock": off}
    runs: dict[str, tuple[str, float | str]] = {}
    for policy, granularity, attention, kernel, ratio in COMBINATIONS:
        budget = CacheBudget(24, 5, ratio, sinks=2, question=False, granularity=granularity)
        when = "step" if ratio is None else "ratio"
        name = f"{policy.plugin_name()}/{granularity}/{attention}/{kernel}/{when}"
        try:
            model.set_attn_implementation(attention)
        except ValueError:
            runs[name] = "unavailable", f"transformers has no {attention} for it"
            continue
        settings = {"kernel": kernel, "tokens": 30, "untested": True}
        runs[name] = verdict(partial(exactness, model, policy, budget, **settings))
    budget = CacheBudget(18, 5, 0.5, sinks=2, question=False)
    runs["second turn"] = verdict(partial(second_turn, model, Streaming(), budget))
    runs["rows that join"] = verdict(partial(rows_that_join, model, H2o(), budget))
    return row | {"stock": off, "runs": runs}


def summary(row: dict[str, Any]) -> str:
    """One line for people: what holds for an architecture."""
    if row.get("stock", 0.0) > 1e-3:
        return "refused: transformers' own cache differs from a recompute, so nothing can be said"
    if "untried" in row:
        return f"refused: {row['untried']}"
    runs = {name: tuple(run) for name, run in row["runs"].items()}
    if bad := sorted({what for what, _ in runs.values()} & {"wrong", "crash", "insensitive"}):
        return f"refused: {' and '.join(bad)} with some settings"
    reasons = {why for name, (what, why) in runs.items() if what == "refused" and "/" in name}
    if not any(what == "exact" for what, _ in runs.values()):
        return f"refused: {min(reasons)}"
    if any("compressed" in why for why in reasons):
        limits = (
            "no policy that compares recent queries with keys, which this model caches compressed"
        )
    elif any("reveal" in why for why in reasons):
        limits = "no policy that needs attention, which this model doesn't reveal"
    else:
        limits = "every policy"
    if runs["second turn"][0] == "refused":
        limits += "; no padding in the middle of a text"
    if runs["rows that join"][0] == "refused":
        limits += "; no continuous batching"
    return f"exact: {limits}"


def write_docs(rows: list[dict[str, Any]]) -> None:
    """The list of tested architectures, and the table in the documentation."""
    summaries = dict.fromkeys(architectures(), "refused: not run") | {
        (r["kind"], r["variant"]): summary(r) for r in rows
    }
    bad = {kind for (kind, _), text in summaries.items() if "settings" in text}
    exact = sorted(
        {kind for (kind, _), text in summaries.items() if text.startswith("exact")} - bad
    )
    listing = textwrap.fill(", ".join(f'"{kind}"' for kind in exact), 96, break_on_hyphens=False)
    TESTED.write_text(
        f'''"""The architectures on which pruned caches were found exact.

Written by benchmarks/cache_matrix.py.
"""

from __future__ import annotations

TRANSFORMERS = "{TRANSFORMERS}"
# fmt: off
EXACT = frozenset({{
{textwrap.indent(listing, "    ")},
}})
# fmt: on
''',
        "utf-8",
    )
    groups: dict[str, list[str]] = defaultdict(list)
    for (kind, variant), text in sorted(summaries.items()):
        groups[text].append(f"`{kind}`" + (f" ({variant})" if variant else ""))
    errors = []
    for row in rows:
        if row["kind"] in exact:
            for outcome, error in row.get("runs", {}).values():
                if outcome == "exact":
                    errors.append(error)
    table = ["| a pruned cache is | architectures |", "|---|---|"]
    table += [f"| {text} | {', '.join(names)} |" for text, names in sorted(groups.items())]
    largest = (
        f"the largest difference of a logit is {max(errors):.0e} of the logits' standard deviation"
    )
    table += [
        "",
        (
            f"{len(exact)} architectures, {len(errors)} comparisons: {largest} "
            f"(transformers {TRANSFORMERS})."
        ),
    ]
    page = DOCS.read_text("utf-8")
    before, _, rest = page.partition("<!-- matrix -->\n")
    _, _, after = rest.partition("<!-- end of matrix -->\n")
    DOCS.write_text(
        before + "<!-- matrix -->\n" + "\n".join(table) + "\n<!-- end of matrix -->\n" + after,
        "utf-8",
    )


def main(wanted: list[str]) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    out = Path(wanted.pop(wanted.index("--jsonl") + 1)) if "--jsonl" in wanted else None
    if "--docs" in wanted:
        rows = [json.loads(line) for line in (out or Path()).read_text().splitlines()]
        # the latest of each
        write_docs([*{(row["kind"], row["variant"]): row for row in rows}.values()])
        return
    names = [w for w in wanted if not w.startswith("--")]
    for kind, variant in architectures():
        if names and kind not in names:
            continue
        began = time.process_time()
        row = tried(kind, variant)
        if out:
            with out.open("a") as file:
                file.write(json.dumps(row) + "\n")
        print(
            f"{kind} {variant}".ljust(36),
            summary(row),
            f"({time.process_time() - began:.1f} s)",
            flush=True,
        )
        for name, (what, why) in row.get("runs", {}).items():
            if what in ("wrong", "crash", "insensitive"):
                print("     ", what, name, why)


if __name__ == "__main__":
    main(sys.argv[1:])
