"""The pocket model: the same numbers as in transformers, the same text whoever shares the batch, real answers."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from ponder.core import Message, Request, UserError
from ponder.models.pocket import SHIPPED, Pocket
from ponder.models.pocket import vocabulary as v
from ponder.models.pocket.engine import Engine, Row
from ponder.study import Study
from ponder.tasks.chain_sum import ChainSum
from ponder.tasks.tents import Puzzle, Tents


def prompts(size: int, n: int, seed: int = 5) -> list[list[int]]:
    problems = itertools.islice(Tents().problems(size, seed), n)
    return [v.encode(v.prompt(Puzzle.from_id(p.gold))) for p in problems]


def written(asked: list[list[int]], rows: int = 16, temperature: float = 0.0, budget: int = 400) -> list[list[int]]:
    engine, said = Engine(SHIPPED, rows), {}
    waiting = list(enumerate(asked))
    while waiting or engine.busy:
        while waiting and engine.room:
            number, prompt = waiting.pop(0)
            engine.join(
                Row(prompt, budget, temperature, number, lambda row, number=number: said.update({number: row.said}))
            )
        if engine.busy:
            engine.step()
    return [said[number] for number in range(len(asked))]


class Recorded(Row):
    """A row that keeps its logits."""

    def choose(self, logits):
        self.logits = [*getattr(self, "logits", []), logits.copy()]
        return super().choose(logits)


@pytest.fixture(scope="module")
def reference():
    transformers = pytest.importorskip("transformers")
    return transformers.AutoModelForCausalLM.from_pretrained(SHIPPED, dtype="float32").eval()


def test_logits_are_those_of_transformers(reference) -> None:
    import torch

    for prompt in prompts(25, 5):
        engine = Engine(SHIPPED, 16)
        row = Recorded(prompt, 120, 0.0, 1, lambda row: None)
        engine.join(row)
        while engine.busy:
            engine.step()
        with torch.no_grad():
            theirs = reference(torch.tensor([prompt + row.said[:-1]])).logits[0, len(prompt) - 1 :].numpy()
        assert np.abs(np.array(row.logits) - theirs).max() < 1e-4


def test_greedy_text_is_that_of_transformers(reference) -> None:
    import torch

    for size, n in ((16, 120), (25, 80)):
        asked = prompts(size, n)
        for prompt, ours in zip(asked, written(asked, rows=64), strict=True):
            with torch.no_grad():
                # Each of our tokens must be their likeliest after all that came before it.
                theirs = reference(torch.tensor([prompt + ours[:-1]])).logits[0, len(prompt) - 1 :].argmax(-1).tolist()
            assert theirs == ours


def test_the_tokenizer_is_ours() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(SHIPPED / "tokenizer.json"))
    words = v.prompt(Puzzle.from_id("4x4:_cia,1,1,0,1,1,0,1,1"))
    assert tokenizer.encode(" ".join(words)).ids == v.encode(words)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_text_depends_on_its_seed_alone(temperature) -> None:
    asked = prompts(20, 12) + prompts(16, 12)
    together = written(asked, rows=16, temperature=temperature)
    crowded = written(asked + prompts(36, 20), rows=64, temperature=temperature)[:24]
    assert together == crowded
    assert (together != written(asked, rows=16, temperature=0.5)) or not temperature


def test_it_solves_puzzles_and_gives_out(write, ponder) -> None:
    write(
        "s.toml", 'problems = 30\nseed = 11\n[[task]]\nname = "tents"\nsize = [16, 100]\n[[model]]\nname = "pocket"\n'
    )
    assert ponder("run", "s.toml").exit_code == 0
    from ponder.store import Store

    with Store(Path("ponder.db")) as store:
        found = list(store.outcomes(Study.load("s.toml").cells))
    right = {size: sum(o.correct for o in found if o.size == size) for size in (16, 100)}
    assert right[16] >= 24
    assert right[100] <= 10
    assert {o.counted_by for o in found} == {"tokenizer"}
    tokens = {size: sum(o.thinking_tokens for o in found if o.size == size) for size in (16, 100)}
    assert tokens[100] > 2 * tokens[16]


def test_budget() -> None:
    problem = Tents().problem(36, 1)
    request = Request(Tents(), problem, (Message("user", problem.turns[0]),), 1, budget=20)

    async def ask():
        async with Pocket() as model:
            return await model.complete(request)

    said = asyncio.run(ask())
    assert said.stop == "length"
    assert said.bill.thinking_tokens + said.bill.answer_tokens == 20


def test_it_refuses_what_it_has_no_words_for() -> None:
    with pytest.raises(UserError, match="no words for tents of size 400"):
        Pocket().check(Tents(), 400)
    with pytest.raises(UserError, match="no words for chain_sum") as caught:
        Pocket().check(ChainSum(), 2)
    assert "sides up to 12" in caught.value.hint


def test_a_damaged_checkpoint_is_named(tmp_path, write, ponder) -> None:
    shutil.copytree(SHIPPED, tmp_path / "w")
    weights = bytearray((tmp_path / "w" / "model.safetensors").read_bytes())
    weights[-1000] ^= 255
    (tmp_path / "w" / "model.safetensors").write_bytes(weights)
    write("s.toml", f'[[task]]\nname = "tents"\nsize = 16\n[[model]]\nname = "pocket"\nweights = "{tmp_path / "w"}"\n')
    result = ponder("run", "s.toml")
    assert result.exit_code == 2
    assert "model.safetensors is damaged" in result.stderr
    result = ponder("run", "s.toml", "--set", "model.weights=/nowhere")
    assert result.exit_code == 2
    assert "/nowhere holds no pocket model" in result.stderr


def test_the_card_says_how_it_was_made() -> None:
    card = json.loads((SHIPPED / "card.json").read_text())
    assert {"digest", "recipe", "trained", "test", "limits"} <= card.keys()
