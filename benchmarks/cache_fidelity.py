"""Compares eviction policies with kvpress's on a language model and real texts: drift, and time per
token.

SmolLM2-135M-Instruct reads 2,048 tokens of each of twelve texts from Debian's documentation. The
first 128 count as the prompt; whenever a cache has 512 columns it is pruned to 384. Four ways of
pruning are compared with the full cache:

- kvpress as it comes: its presses with their defaults in its `DecodingPress`;
- kvpress in order: the same, but what is kept stays in the order of the text, not in that of top-k;
- ours alike: our policies with kvpress's protection, granularity and settings;
- ours: our policies with our defaults, the prompt, four sinks and the last 64 tokens protected, one
  decision for all
  heads.

kvpress needs another version of transformers, so it runs in an environment of its own
(`scripts/bench-peers`), and times are multiples of the stock full cache's in the same environment.
What was measured on a text is kept in reports/cache_fidelity: run the command again to resume, and
remove that folder to measure anew. About 40 CPU minutes.

The stage `changed` switches single differences between our policies and kvpress's.
"""

from __future__ import annotations

import gzip
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from measured import ROOT, cost, record, table
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from ponder.core import Policy, Source
from ponder.kvcache import CacheBudget, SelectCache, fidelity
from ponder.models._local_weights import as_folder, packaged
from ponder.policies.expected_attention import ExpectedAttention
from ponder.policies.h2o import H2o
from ponder.policies.keydiff import Keydiff
from ponder.policies.knorm import Knorm
from ponder.policies.lagkv import Lagkv
from ponder.policies.last_query import LastQuery
from ponder.policies.random import Random
from ponder.policies.snapkv import Snapkv
from ponder.policies.streaming import Streaming

HERE = Path(__file__).parent
KVPRESS_PYTHON = ROOT / ".venv-kvpress/bin/python"
KEPT = ROOT / "reports/cache_fidelity"
TOKENS, PROMPT, TARGET, INTERVAL, EVERY = 2048, 128, 384, 128, 4
# Plain text of different kinds, by Debian package: rules, guides, questions and answers, a
# constitution, a dictionary, a conference paper, tutorials with code. `apt-get download` needs no
# root; nothing is installed.
GIT, PERL = "usr/share/doc/git-doc", "usr/share/perl/5.36.0/pod"
TEXTS = {
    "policy": ("debian-policy", "usr/share/doc/debian-policy/policy.txt.gz"),
    "faq": ("debian-faq", "usr/share/doc/debian/FAQ/debian-faq.en.txt.gz"),
    "constitution": ("doc-debian", "usr/share/doc/debian/constitution.txt.gz"),
    "jargon": ("jargon-text", "usr/share/doc/jargon-text/jargon.txt.gz"),
    "git-bisect-paper": ("git-doc", f"{GIT}/git-bisect-lk2009.txt"),
    "perl-references": ("perl-doc", f"{PERL}/perlreftut.pod"),
    "developers-reference": (
        "developers-reference",
        "usr/share/developers-reference/developers-reference.txt.gz",
    ),
    "git-manual": ("git-doc", f"{GIT}/user-manual.txt"),
    "git-maintain": ("git-doc", f"{GIT}/howto/maintain-git.txt"),
    "git-patches": ("git-doc", f"{GIT}/SubmittingPatches.txt"),
    "perl-governance": ("perl-doc", f"{PERL}/perlgov.pod"),
    "perl-portability": ("perl-doc", f"{PERL}/perlport.pod"),
}


def budget(
    window: int,
    sinks: int = 0,
    granularity: Literal["model", "layer", "head"] = "head",
    *,
    question: bool = False,
) -> CacheBudget:
    """Prune at target + interval columns, with the ratio that leaves the target."""
    fixed = window + (PROMPT if question else sinks)
    ratio = (TARGET - fixed + 0.5) / (TARGET + INTERVAL - fixed)
    return CacheBudget(
        TARGET + INTERVAL, window, ratio, sinks=sinks, question=question, granularity=granularity
    )


DEFAULT = budget(window=64, sinks=4, granularity="model", question=True)
# With what kvpress protects, its granularity, and its settings. Our window is at least 1.
ALIKE: dict[str, tuple[Policy, CacheBudget]] = {
    "random": (Random(), budget(window=1)),
    "streaming": (Streaming(), budget(window=1, sinks=4)),
    "snapkv": (Snapkv(queries=64, pool=5), budget(window=64)),
    "h2o": (H2o(), budget(window=1)),
    "last_query": (LastQuery(), budget(window=1, granularity="layer")),
    "knorm": (Knorm(), budget(window=1)),
    "keydiff": (Keydiff(), budget(window=1)),
    "expected_attention": (ExpectedAttention(), budget(window=1, sinks=4)),
    "lagkv": (Lagkv(), budget(window=1, sinks=4)),
}
OURS = {name: (type(policy)(), DEFAULT) for name, (policy, _) in ALIKE.items()}
IN_ORDER = ", in order"


# `alike` with one thing changed.
CHANGED: dict[str, tuple[Policy, CacheBudget]] = {
    "random, redrawn": (Random(redraw=True), budget(window=1)),
    "random, 4 sinks": (Random(), budget(window=1, sinks=4)),
    "random, redrawn, 4 sinks": (Random(redraw=True), budget(window=1, sinks=4)),
    "snapkv, no pooling": (Snapkv(queries=64, pool=1), budget(window=64)),
    "h2o, last query only": (LastQuery(), budget(window=1)),
}


def passages(tokenizer: Any) -> dict[str, list[int]]:
    """Of each text, so many tokens from the first paragraph after a third of it, beyond its
    contents.
    """
    ids = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for package in dict.fromkeys(package for package, _ in TEXTS.values()):
            subprocess.run(["apt-get", "download", "-qq", package], cwd=folder, check=True)
            [archive] = folder.glob(f"{package}_*.deb")
            subprocess.run(["dpkg-deb", "-x", str(archive), str(folder / package)], check=True)
        for title, (package, path) in TEXTS.items():
            file = folder / package / path
            text = (
                gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
            ).decode("utf-8")
            start = text.index("\n\n", len(text) // 3) + 2
            ids[title] = tokenizer(text[start : start + 8 * TOKENS])["input_ids"][:TOKENS]
            assert len(ids[title]) == TOKENS, f"{title} is too short"
    return ids


def drifts(
    model: Any, ids: list[int], policies: dict[str, tuple[Policy, CacheBudget]]
) -> dict[str, dict[str, float]]:
    rows = fidelity(model, None, [ids], policies, DEFAULT, prompt=PROMPT, every=EVERY).rows
    return {row.policy: {"kl": row.kl, "same": row.agrees} for row in rows}


def kvpress(
    folder: Path, ids: list[int], presses: Sequence[str], timed: Sequence[str]
) -> dict[str, Any]:
    """The same from kvpress, and its seconds per token."""
    order = {
        "model": str(folder),
        "ids": ids,
        "target": TARGET,
        "interval": INTERVAL,
        "first": PROMPT - 1,
        "every": EVERY,
        "presses": presses,
        "timed": timed,
        "seed": sum(ids),
    }
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "order.json").write_text(json.dumps(order))
        peer = [
            str(KVPRESS_PYTHON),
            str(HERE / "peers/kvpress_drift.py"),
            "order.json",
            "results.json",
        ]
        cost(peer, Path(name))
        results: dict[str, Any] = json.loads((Path(name) / "results.json").read_text())
    # It compares from the first pruning on; before it, the predictions are the full cache's.
    equal = len(range(PROMPT - 1, TARGET, EVERY))
    compared = equal + results["compared"]
    for row in results["drift"].values():
        row["kl"], row["same"] = row["kl"] / compared, (row["same"] + equal) / compared
    return results


@torch.inference_mode()
def seconds_per_token(
    model: Any, ids: list[int], pruned: tuple[Policy, CacheBudget] | None
) -> float:
    """CPU time of a step: with a cache that is pruned at the last of them, or with the stock cache
    of a long text.
    """
    start = TARGET if pruned else TOKENS - INTERVAL
    cache: Any = SelectCache(model, *pruned, prompt=PROMPT) if pruned else DynamicCache()
    model(torch.tensor([ids[:start]]), past_key_values=cache, logits_to_keep=1)
    began = time.process_time()
    for token in ids[start : start + INTERVAL]:
        model(torch.tensor([[token]]), past_key_values=cache)
    return (time.process_time() - began) / INTERVAL


class Kept:
    """Measurements of one text, kept in a file as soon as they are made."""

    def __init__(self, title: str) -> None:
        self.path = KEPT / f"{title}.json"
        self.rows: dict[str, Any] = json.loads(self.path.read_text()) if self.path.exists() else {}

    def missing(self, way: str, names: Sequence[str]) -> list[str]:
        return [name for name in names if name not in self.rows.get(way, {})]

    def add(self, way: str, rows: dict[str, Any]) -> None:
        self.rows.setdefault(way, {}).update(rows)
        KEPT.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.rows, indent=1))


@dataclass(frozen=True)
class Stage:
    """What is measured on how many of the texts."""

    texts: int
    kvpress: Sequence[str] = ()
    alike: Sequence[str] = ()
    ours: Sequence[str] = ()
    changed: Sequence[str] = ()
    timed: Sequence[str] = ()


WIDE, REST = list(ALIKE)[:4], list(ALIKE)[4:]
# The presses that aren't named here with `in order` keep the same tokens in any order.
STAGES = {
    "changed": Stage(3, kvpress=["random, seed=0"], changed=list(CHANGED), ours=WIDE),
    "wide": Stage(12, kvpress=WIDE, alike=WIDE),
    "times": Stage(1, timed=["full", *WIDE]),
    "rest": Stage(
        3,
        kvpress=[*REST, *(f"{name}{IN_ORDER}" for name in ("streaming", "snapkv", "h2o", "lagkv"))],
        alike=REST,
    ),
}


def measure(model: Any, folder: Path, title: str, ids: list[int], stage: Stage) -> None:
    kept, installed = Kept(title), KVPRESS_PYTHON.exists()
    if installed and (presses := kept.missing("kvpress", stage.kvpress)):
        kept.add("kvpress", kvpress(folder, ids, presses, [])["drift"])
    if installed and (names := kept.missing("kvpress seconds", stage.timed)):
        results = kvpress(folder, ids, [], names)
        kept.add("kvpress seconds", results["seconds"])
        kept.add("kvpress chunked", results["chunked"])
    ways = {
        "alike": (ALIKE, stage.alike),
        "ours": (OURS, stage.ours),
        "changed": (CHANGED, stage.changed),
    }
    # In one call, so that the full cache reads the text once.
    missing = {
        (way, name): pruned[name]
        for way, (pruned, names) in ways.items()
        for name in kept.missing(way, names)
    }
    if missing:
        rows = drifts(model, ids, {f"{way}: {name}": one for (way, name), one in missing.items()})
        for way, name in missing:
            kept.add(way, {name: rows[f"{way}: {name}"]})
    for name in kept.missing("seconds", stage.timed):
        kept.add("seconds", {name: seconds_per_token(model, ids, ALIKE.get(name))})


def mean(values: Sequence[float]) -> tuple[float, float]:
    """The mean over texts and its standard error."""
    n, middle = len(values), math.fsum(values) / len(values)
    return middle, math.sqrt(math.fsum((v - middle) ** 2 for v in values) / max(1, n - 1) / n)


Way: TypeAlias = tuple[str, str]  # as in `Kept.rows`: kvpress, alike, ours or random, and a policy


def column(texts: Sequence[Kept], way: Way, what: str = "kl") -> dict[str, float]:
    """What was measured in one way, by text."""
    rows = {text.path.stem: text.rows.get(way[0], {}).get(way[1]) for text in texts}
    return {title: row[what] for title, row in rows.items() if row}


def cell(values: dict[str, float], others: dict[str, float] | None = None) -> str:
    """Mean and standard error over texts, or those of the differences text by text, and how many
    texts.
    """
    if others is not None:
        values = {
            title: value - others[title] for title, value in values.items() if title in others
        }
    if not values:
        return "—"
    middle, error = mean(list(values.values()))
    spread = f" ± {error:.4f}" if len(values) > 1 else ""
    return f"{middle:{'' if others is None else '+'}.4f}{spread} ({len(values)})"


def show(texts: Sequence[Kept]) -> None:
    heads = [
        "kvpress",
        "in order",
        "ours alike",
        "ours",
        "alike − kvpress",
        "alike − in order",
        "ours − kvpress",
    ]
    rows, same = [], []
    for name in ALIKE:
        ways: list[Way] = [
            ("kvpress", name),
            ("kvpress", f"{name}{IN_ORDER}"),
            ("alike", name),
            ("ours", name),
        ]
        kvpress, in_order, alike, own = (column(texts, way) for way in ways)
        differences = [cell(alike, kvpress), cell(alike, in_order), cell(own, kvpress)]
        rows.append([name, *map(cell, (kvpress, in_order, alike, own)), *differences])
        agreements = [list(column(texts, way, "same").values()) for way in ways]
        cells = ["{:.1%} ± {:.1%}".format(*mean(a)) if len(a) > 1 else "—" for a in agreements]
        same.append([name, *cells])
    print(
        "KL from the full cache, nats per token; mean ± standard error (texts), "
        "differences text by text"
    )
    print(table(rows, ["policy", *heads]))
    print("\nSame most likely token")
    print(table(same, ["policy", *heads[:4]]))


def show_changed(texts: Sequence[Kept]) -> None:
    texts = [text for text in texts if "changed" in text.rows]
    rows = []
    for policy in ("random", "snapkv", "h2o"):
        base = column(texts, ("alike", policy))
        ways: dict[str, Way] = {f"{policy}, ours alike": ("alike", policy)}
        ways |= {name: ("changed", name) for name in CHANGED if name.startswith(policy)}
        names = [
            name
            for name in ("random", "random, seed=0", "snapkv", "h2o")
            if name.startswith(policy)
        ]
        ways |= {f"{name}, kvpress": ("kvpress", name) for name in names}
        rows += [
            [title, cell(kls := column(texts, way)), cell(kls, base)] for title, way in ways.items()
        ]
    print(f"\nOne difference at a time; {len(texts)} texts")
    print(table(rows, ["way", "KL", "less ours alike"]))


def show_times(text: Kept) -> None:
    own, other = text.rows.get("seconds", {}), text.rows.get("kvpress seconds", {})
    if "full" not in own or "full" not in other:
        return
    names = [name for name in ALIKE if name in own and name in other]
    rows = [[n, f"{own[n] / own['full']:.2f}×", f"{other[n] / other['full']:.2f}×"] for n in names]
    full = f"{1000 * own['full']:.0f} and {1000 * other['full']:.0f} ms"
    print(
        f"\nCPU per token, of the stock full cache's with {TOKENS} tokens "
        f"in the same environment ({full})"
    )
    print(table(rows, ["policy", "ours alike", "kvpress"]))


def keep_rows(texts: Sequence[Kept]) -> None:
    packages = ["torch", "transformers", ".venv-kvpress/kvpress", ".venv-kvpress/transformers"]
    own, other = (texts[0].rows.get(way, {}) for way in ("seconds", "kvpress seconds"))
    for name in ALIKE:
        alike, theirs = (column(texts, (way, name)) for way in ("alike", "kvpress"))
        if len(both := alike.keys() & theirs.keys()) > 1:
            our_mean, _ = mean([alike[title] for title in sorted(both)])
            their_mean, _ = mean([theirs[title] for title in sorted(both)])
            what = f"{name}: KL from the full cache, protecting what kvpress does"
            record("Caches", what, "nats", our_mean, "kvpress", their_mean, packages=packages)
        if name in own and name in other:
            what = f"{name}: CPU per token, of the stock full cache's at {TOKENS:,} tokens"
            record(
                "Caches",
                what,
                "×",
                own[name] / own["full"],
                "kvpress",
                other[name] / other["full"],
                packages=packages,
            )


def main(stages: Sequence[str]) -> None:
    torch.set_num_threads(1)
    if not KVPRESS_PYTHON.exists():
        print(
            "kvpress isn't installed, so it is left out: scripts/bench-peers installs it",
            file=sys.stderr,
        )
    weights = packaged("smollm2")
    assert weights
    folder = as_folder(Source(weights))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    texts = passages(tokenizer)
    for stage in stages:
        for title, ids in list(texts.items())[: STAGES[stage].texts]:
            measure(model, folder, title, ids, STAGES[stage])
    kept = [Kept(title) for title in TEXTS]
    show(kept)
    show_changed(kept)
    show_times(kept[0])
    keep_rows(kept)


if __name__ == "__main__":
    main(sys.argv[1:] or list(STAGES))
