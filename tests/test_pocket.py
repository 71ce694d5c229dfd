"""The pocket model: logits equal those of transformers, replies don't depend on the batch, and
answers are right.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from ponder import Study
from ponder.core import Message, Outcome, Request, Task, UserError
from ponder.models._batch import Generation, generate_all
from ponder.models.pocket import CODECS, SHIPPED, WEIGHTS, Pocket, read_card
from ponder.models.pocket.engine import NumpyEngine
from ponder.store.store import Store
from ponder.tasks.chain_sum import ChainSum
from ponder.tasks.execution import Execution
from ponder.tasks.tents import Tents

FOLDERS = sorted(WEIGHTS.iterdir())
TENTS = Tents()


def prompts(size: int, n: int, seed: int = 5, task: Task = TENTS) -> list[list[int]]:
    problems = itertools.islice(task.problems(size, seed), n)
    return [CODECS[task.plugin_name()].prompt_ids(Request.first_turn(task, p)) for p in problems]


def written(
    asked: list[list[int]],
    rows: int = 16,
    temperature: float = 0.0,
    budget: int = 400,
    weights: Path = SHIPPED,
) -> list[list[int]]:
    generations = [
        Generation(prompt, budget, temperature, seed) for seed, prompt in enumerate(asked)
    ]
    *_, complete = generate_all(NumpyEngine(weights, rows), generations)
    assert complete == len(asked)
    return [generation.tokens for generation in generations]


class Recorded(Generation):
    """A generation that keeps its logits."""

    def choose(self, logits):
        self.logits = [*getattr(self, "logits", []), logits.copy()]
        return super().choose(logits)


@pytest.fixture(scope="module", params=FOLDERS, ids=lambda weights: weights.name)
def weights(request) -> Path:
    return request.param


@pytest.fixture(scope="module")
def reference(weights):
    transformers = pytest.importorskip("transformers")
    return transformers.AutoModelForCausalLM.from_pretrained(weights, dtype="float32").eval()


def some(weights: Path, n: int) -> list[list[int]]:
    """Prompts for the task of some weights, small and larger."""
    if read_card(weights)["task"] == "tents":
        return prompts(16, n) + prompts(25, n)
    task = Execution(per_turn=3, dictionary=16, history_turns=2)
    return prompts(9, n, task=task) + prompts(6, n, task=Execution(per_turn=0, dictionary=16))


def off_by(weights: Path, prompt: list[int], exact) -> float:
    """The largest error of our logits against double precision, as a fraction of the largest logit."""
    import torch

    row = Recorded(prompt, 120)
    list(generate_all(NumpyEngine(weights, 16), [row]))
    with torch.no_grad():
        theirs = (
            exact(torch.tensor([prompt + row.tokens[:-1]])).logits[0, len(prompt) - 1 :].numpy()
        )
    return float(np.abs(np.array(row.logits) - theirs).max() / np.abs(theirs).max())


def test_logits_are_those_of_transformers(weights, reference) -> None:
    exact = reference.double()  # in 32 bits it has errors of its own
    # Measured on two machines: up to 1e-5, that is 4e-4 of logits up to 46.
    assert max(off_by(weights, prompt, exact) for prompt in some(weights, 4)) < 2e-5
    reference.float()


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_heads_may_share_keys_and_values(kv_heads, tmp_path) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from ponder.recipes.network import Llama, Shape

    torch.manual_seed(kv_heads)
    shape = Shape(width=32, layers=2, heads=4, kv_heads=kv_heads, head_width=12, inner=48)
    model = Llama(CODECS["tents"], shape)
    for weights in model.blocks.parameters():
        weights.data.normal_(0, 0.3)
    model.save(tmp_path)
    exact = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype="float64").eval()
    assert max(off_by(tmp_path, prompt, exact) for prompt in prompts(16, 3)) < 2e-5


def test_greedy_text_is_that_of_transformers(weights, reference) -> None:
    import torch

    asked = some(weights, 80)
    for prompt, ours in zip(asked, written(asked, rows=64, weights=weights), strict=True):
        with torch.no_grad():
            # Each of our tokens must be their likeliest after all that came before it.
            theirs = (
                reference(torch.tensor([prompt + ours[:-1]]))
                .logits[0, len(prompt) - 1 :]
                .argmax(-1)
                .tolist()
            )
        assert theirs == ours


def test_the_tokenizer_is_ours(weights) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(weights / "tokenizer.json"))
    codec = CODECS[read_card(weights)["task"]]
    for prompt in some(weights, 2):
        assert tokenizer.encode(" ".join(codec.decode(prompt))).ids == prompt
    assert tokenizer.get_vocab() == codec.index


@pytest.mark.parametrize("temperature", [0.0, 2.5])  # at 1 it is so sure that texts are those of 0
def test_a_text_depends_on_its_seed_alone(temperature) -> None:
    asked = prompts(20, 12) + prompts(16, 12)
    together = written(asked, rows=16, temperature=temperature)
    crowded = written(asked + prompts(36, 20), rows=64, temperature=temperature)[:24]
    assert together == crowded
    assert (together != written(asked, rows=16, temperature=0.5)) or not temperature


def test_it_solves_small_puzzles_and_fails_at_large_ones(write, ponder) -> None:
    write(
        "s.toml",
        'problems = 30\nseed = 11\n[[task]]\nname = "tents"\nsize = [16, 100]\n[[model]]\nname = "pocket"\n',
    )
    assert ponder("run", "s.toml").exit_code == 0
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


def test_it_refuses_what_its_vocabulary_does_not_cover() -> None:
    with pytest.raises(UserError, match="no vocabulary for tents of size 400"):
        Pocket().check(Tents(), 400)
    with pytest.raises(UserError, match="no vocabulary for chain_sum") as caught:
        Pocket().check(ChainSum(), 2)
    assert "sides up to 12" in caught.value.hint


def test_it_refuses_execution_that_it_was_not_trained_on() -> None:
    Pocket().check(Execution(dictionary=16), 24)
    for task, size, what in (
        (Execution(), 24, "can't read a dictionary of 100 words"),
        (Execution(dictionary=16), 97, "no vocabulary for 97 steps"),
        (Execution(dictionary=16, values=999), 24, "no vocabulary for values up to 999"),
        (Execution(dictionary=16, mode="answer"), 24, "mode = 'answer'"),
    ):
        with pytest.raises(UserError, match=what) as caught:
            Pocket().check(task, size)
        assert "up to 96 steps" in caught.value.hint
    with pytest.raises(UserError, match="no pocket model for tents") as caught:
        Pocket(style="short").check(Tents(), 16)
    assert caught.value.hint == "for tents there is plain"
    for style in ("long", "short", "wordy"):
        Pocket(style=style).check(Execution(dictionary=16), 24)


def run(write, ponder, task: str, style: str = "plain", problems: int = 30) -> list[Outcome]:
    """Outcomes of a study of execution with a dictionary of 16 words."""
    head = (
        f'problems = {problems}\nseed = 11\n[[task]]\nname = "execution"\ndictionary = 16\n{task}\n'
    )
    write("s.toml", f'{head}[[model]]\nname = "pocket"\nstyle = "{style}"\n')
    assert ponder("run", "s.toml").exit_code == 0
    with Store(Path("ponder.db")) as store:
        return list(store.outcomes(Study.load("s.toml").cells))


def share(outcomes: list[Outcome], size: int) -> float:
    found = [o.correct for o in outcomes if o.size == size]
    return sum(found) / len(found)


def test_it_executes_short_plans_and_fails_at_long_ones(write, ponder) -> None:
    found = run(write, ponder, "size = [2, 4, 96]\nper_turn = 0")
    assert share(found, 2) >= 0.9
    assert share(found, 4) >= 0.9
    assert share(found, 96) <= 0.5
    assert {o.thinking_tokens for o in found if o.size == 4} == {32}


def test_styles_trade_tokens_for_accuracy(write, ponder) -> None:
    plain, long, short, wordy = (
        run(write, ponder, "size = [4, 12]\nper_turn = 0", style)
        for style in ("plain", "long", "short", "wordy")
    )
    tokens = [sum(o.thinking_tokens for o in found) for found in (wordy, long, plain, short)]
    assert tokens == sorted(tokens, reverse=True)
    assert tokens[0] > 2 * tokens[2]
    assert min(share(long, 12), share(plain, 12), share(wordy, 12)) >= 0.8
    assert share(short, 4) >= 0.9
    assert share(short, 12) <= 0.4


def test_it_executes_plans_over_several_turns(write, ponder) -> None:
    found = run(write, ponder, "size = 12\nper_turn = [1, 3]", problems=15)
    assert share(found, 12) >= 0.8
    assert {len(o.details["parsed"]) for o in found} == {4, 12}


def test_a_damaged_checkpoint_is_named(weights, tmp_path, write, ponder) -> None:
    shutil.copytree(weights, tmp_path / "w")
    weights = bytearray((tmp_path / "w" / "model.safetensors").read_bytes())
    weights[-1000] ^= 255
    (tmp_path / "w" / "model.safetensors").write_bytes(weights)
    write(
        "s.toml",
        f'[[task]]\nname = "tents"\nsize = 16\n[[model]]\nname = "pocket"\nweights = "{tmp_path / "w"}"\n',
    )
    result = ponder("run", "s.toml")
    assert result.exit_code == 2
    assert "model.safetensors is damaged" in result.stderr
    result = ponder("run", "s.toml", "--set", "model.weights=/nowhere")
    assert result.exit_code == 2
    assert "/nowhere holds no pocket model" in result.stderr


def test_the_card_says_how_it_was_made(weights) -> None:
    card = json.loads((weights / "card.json").read_text())
    assert {
        "task",
        "style",
        "digest",
        "recipe",
        "trained",
        "test",
        "seeds",
        "limits",
    } <= card.keys()
    assert card["seeds"][0]["digest"] == card["digest"]
