"""Figures read base, methods, seeds and cost from columns: labels of any spelling, chains of
methods, real studies.
"""

from __future__ import annotations

from pathlib import Path

import made_up
import numpy as np
import pytest

from ponder import Study
from ponder.core import Outcome, UserError
from ponder.figures._variants import other_settings, owners, setting
from ponder.figures.budget import Budget
from ponder.figures.cache import Cache
from ponder.figures.frontier import Frontier
from ponder.figures.heatmap import Heatmap
from ponder.store.store import Store
from ponder.study.labels import beneath, in_words

# A method that "trains": it changes nothing but says what making its weights cost.
TRAINS = '''"""Trains nothing, and says what it cost."""
from dataclasses import dataclass
from ponder.core import Method, Model, Prepared, Wrapped


@dataclass(frozen=True)
class Practise(Method, Prepared):
    seed: int = 1

    def make(self, model: Model):
        yield from ()

    def apply(self, model: Model) -> Model:
        return Costly(model)

    def training_seed(self) -> int:
        return self.seed


class Costly(Wrapped):
    async def complete(self, request):
        return await self.inner.complete(request)

    def made(self, task):
        return {"rollout_tokens": 400.0, "training_tokens": 600.0, "seconds": 2.0}
'''
STUDY = """
problems = 6
[[task]]
name = "chain_sum"
size = 4
[[model]]
name = "oracle"
label = "gpt + tools"
tokens_at_zero = 500
method = [
  [],
  [{ name = "./practise.py", seed = [1, 2, 3] }],
  [{ name = "./practise.py", seed = [1, 2, 3] }, { name = "budget_force", think = 50 }],
]
[[model]]
name = "oracle"
label = "gpt"
tokens_at_zero = 100
[[figure]]
name = "frontier"
"""


def ran(write, ponder) -> list[Outcome]:
    write("practise.py", TRAINS)
    write("s.toml", STUDY)
    result = ponder("run", "s.toml")
    assert result.exit_code == 0, result.output
    with Store(Path("ponder.db")) as store:
        return list(store.outcomes(Study.load("s.toml").cells))


def test_a_study_of_trained_and_forced_models_under_a_label_with_a_plus(write, ponder) -> None:
    outcomes = ran(write, ponder)
    figure = Frontier()
    tables = figure.estimate(outcomes)
    rows = {r["variant"]: r for r in tables["variants"]}
    # The label is drawn whole; methods alone name the variants of the reference; `gpt` is another
    # model.
    assert [r["label"] for r in tables["variants"]] == [
        "gpt + tools",
        "practise",
        "practise + budget_force",
        "gpt",
    ]
    assert tables["panels"][0]["reference_label"] == "gpt + tools"
    forced = rows["gpt + tools + practise + budget_force"]
    # Three trainings are one variant with three seeds, and what they cost stays known after a
    # further method.
    assert (forced["seeds"], forced["attempts"], forced["made_tokens"], forced["made_seconds"]) == (
        3,
        18,
        1000,
        2,
    )
    assert [s["seed"] for s in tables["seeds"] if s["variant"] == forced["variant"]] == [
        "1",
        "2",
        "3",
    ]
    assert (rows["gpt + tools"]["made_tokens"], rows["gpt"]["made_tokens"]) == (0, 0)
    said = next(
        s for s in figure.findings(tables) if "practise + budget_force" in s and "repays" in s
    )
    assert "repays the 1,000 tokens it cost to make" in said
    spec = str(figure.draw(tables).to_dict())
    assert "'label': 'gpt + tools'" in spec
    assert "'label': 'tools'" not in spec
    under = Budget().estimate(outcomes)
    assert {v["variant"]: v["label"] for v in under["variants"]} == {
        v: r["label"] for v, r in rows.items()
    }


def answered(cell, tokens, right=True, problems=4):
    """Outcomes as the store gives them, of a cell whose training would take minutes."""
    bill = (5, tokens, 2, 0.1, "tokenizer")
    ended = "right" if right else "wrong"
    return [
        Outcome(cell, cell.label, f"p{i}", 0, ended, "", *bill, {}, made={"training_tokens": 7.0})
        for i in range(problems)
    ]


def test_seeds_of_an_earlier_training_are_seeds_of_the_chain() -> None:
    chains = [[], [{"name": "shortest", "seed": [1, 2, 3]}, {"name": "dpo", "rate": [1e-4, 2e-4]}]]
    model = {"name": "pocket", "style": "long", "temperature": 1.0, "method": chains}
    study = Study(
        task=[{"name": "execution", "dictionary": 16, "size": 4}],
        model=[model],
        train=[{"name": "execution", "dictionary": 16, "size": 8}],
    )
    outcomes = [o for tokens, cell in enumerate(study.cells, 100) for o in answered(cell, tokens)]
    data = made_up.variants_of(outcomes)
    assert [(v.name.split(" + ")[1:], v.seeds) for v in data.variants[1:]] == [
        (["shortest", f"dpo rate={rate}"], ((1, 1), (2, 1), (3, 1))) for rate in (0.0001, 0.0002)
    ]
    assert data.variants[1].made_tokens == 7
    # `seed` and `rate` belong to both methods of the chain, `think` to none.
    last = outcomes[-1]
    assert setting(last, "shortest.seed") == 3
    assert setting(last, "dpo.rate") == 2e-4
    assert setting(last, "think") is None
    with pytest.raises(
        UserError, match=r"`rate` is a setting of 2 methods of the chain shortest \+ dpo"
    ) as error:
        setting(last, "rate")
    assert error.value.hint == "write `shortest.rate` or `dpo.rate`"


def chained(*uses, base="m", model="", details=None, problem="p0", right=True):
    label = model or " + ".join([base, *(f"{name} {settings}" for name, settings in uses)])
    names = {"model": label, "variant": label}
    ended = "right" if right else "wrong"
    return made_up.outcome(
        "tents", base, 8, problem, ended, methods=uses, label=names, details=details or {}
    )


def test_settings_are_looked_up_by_method_and_details_are_the_fallback() -> None:
    both = chained(
        ("compress", {"window": 8, "budget": 64}), ("chunk", {"window": 99}), details={"bytes": 3}
    )
    assert [
        setting(both, name) for name in ("compress.window", "chunk.window", "budget", "bytes")
    ] == [8, 99, 64, 3]
    assert setting(both, "chunk.budget") is None
    assert other_settings(both.cell, "budget") == {"window": 8}
    assert other_settings(both.cell, "budget", "chunk.window") == {"compress.window": 8}
    twice = chained(("sft", {"by": "all"}), ("sft", {"by": "random"}))
    assert setting(twice, "sft.by") == "random"
    with pytest.raises(UserError, match="2 methods"):
        setting(twice, "by")


def test_only_settings_that_differ_are_said() -> None:
    tables = {
        "a": {"n": 1, "sinks": 0, "match_length": True},
        "b": {"n": 1, "sinks": 4, "match_length": False},
    }
    assert in_words(tables) == {"a": "sinks 0, match length", "b": "sinks 4"}
    assert in_words(tables, but=("sinks",)) == {"a": "match length", "b": ""}


def test_the_model_beneath_a_method() -> None:
    trained = ("dpo", {"seed": 1, "rate": 2})
    cut = ("compress", {"policy": "h2o"})
    outcomes = [
        chained(base="gpt + tools"),
        chained(cut, base="gpt + tools"),
        chained(trained, base="gpt + tools", model="the trained one"),
        chained(trained, cut, base="gpt + tools"),
        chained(("dpo", {"seed": 2, "rate": 2}), cut, base="gpt + tools"),
    ]
    below = beneath(outcomes, lambda cell: owners(cell, "policy"))
    assert list(dict.fromkeys(below[o.cell.model_key].name for o in outcomes)) == [
        "gpt + tools",
        "the trained one",
        "gpt + tools + dpo seed=2",  # never asked by itself, so its name says what sets it apart
    ]
    pooled = beneath(outcomes, lambda cell: owners(cell, "policy"), seeds=False)
    assert {pooled[o.cell.model_key].name for o in outcomes[2:]} == {"the trained one"}


def mapped(windows=(8, 16), other=99, trained=()):
    rng = np.random.default_rng(1)
    cells = [(w, r) for w in windows for r in (0.1, 0.5)]
    chains = [(), *((("compress", {"policy": "h2o", "window": w, "ratio": r}),) for w, r in cells)]
    chains = [(*trained, *chain, ("chunk", {"window": other})) for chain in chains]
    return [
        chained(
            *chain,
            problem=f"p{i}",
            right=rng.random() < 0.5,
            base="gpt + tools",
            details={"cache_bytes": 10.0},
        )
        for chain in chains
        for i in range(12)
    ]


def test_a_heat_map_of_a_chain_asks_which_window_is_meant() -> None:
    with pytest.raises(UserError, match="`window` is a setting of 2 methods") as error:
        Heatmap().estimate(mapped())
    assert "`compress.window`" in error.value.hint
    figure = Heatmap(y="compress.window")
    tables = figure.estimate(mapped())
    # never 99, though that comes last
    assert sorted({c["compress.window"] for c in tables["cells"]}) == [8, 16]
    [panel] = tables["panels"]
    assert panel["panel"] == "gpt + tools + chunk {'window': 99} | tents | h2o"
    assert [row["without"] for row in tables["without"]] == ["full"]
    spec = str(figure.draw(tables).to_dict())
    assert "'title': 'local window size'" in spec
    assert "'title': 'Pass@1'" in spec


def test_the_full_cache_of_another_model_is_not_compared() -> None:
    trained = mapped(trained=(("dpo", {"rate": 1}),))
    figure = Heatmap(y="compress.window")
    both = figure.estimate(mapped() + trained)
    alone = figure.estimate(trained)
    assert len(both["panels"]) == 2
    [row] = (r for r in both["without"] if "dpo" in r["panel"])
    assert {k: row[k] for k in ("accuracy", "gain")} == {
        k: alone["without"][0][k] for k in ("accuracy", "gain")
    }
    points = Cache(labels=("ratio", "compress.window")).estimate(mapped() + trained)["points"]
    assert len({p["panel"] for p in points}) == 2
    assert sum(p["policy"] == "full" for p in points) == 2
