"""The recipe: traces that are sound, test puzzles that training never sees, and a training that resumes."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from ponder.models.pocket import vocabulary as v
from ponder.models.pocket.engine import safetensors
from ponder.models.pocket.measure import puzzles
from ponder.models.pocket.recipe import Data, Recipe, Training, held_out
from ponder.models.pocket.traces import trace, unsound
from ponder.tasks.tents.generator import generate


@pytest.mark.parametrize("side", [3, 4, 5, 6, 7, 8, 10])
def test_traces_are_sound_and_end_in_the_solution(side) -> None:
    solved = 0
    for seed in range(40):
        puzzle = generate(side, side, "easy", random.Random(seed))
        words = trace(puzzle) if v.expressible(puzzle) else None
        if words:
            solved += 1
            end = words.index(v.ANSWER)
            assert unsound(puzzle, words[:end]) is None
            assert v.grid_text(puzzle, words[end + 1 : -1]).startswith("[[")
            assert words[-1] == v.EOS
    assert solved >= 36


def test_an_unsound_step_is_found_out() -> None:
    puzzle = generate(5, 5, "easy", random.Random(1))
    words = trace(puzzle)
    assert words
    end = words.index(v.ANSWER)
    found = 0
    for place in range(end):
        spoken = v.place(words[place])
        if spoken and spoken[2] in (v.TENTED, v.GRASS):
            row, column, state = spoken
            other = v.cell(row, column, v.GRASS if state == v.TENTED else v.TENTED)
            found += unsound(puzzle, [*words[:place], other, *words[place + 1 : end]]) is not None
    assert found >= 5


def test_training_never_sees_a_test_puzzle() -> None:
    asked = {tuple(v.prompt(p)) for p in itertools.islice(puzzles(4, 4), 20)}
    assert len(asked) == 20
    data = Data(Recipe(smallest=16, largest=16, side=4, tail=0.0))
    seen = set()
    for step in range(60):
        words = v.decode(data.batch(step).tokens.tolist())
        starts = [i for i, word in enumerate(words) if word == v.BOS]
        seen |= {tuple(words[i : words.index(v.THINK, i) + 1]) for i in starts}
    assert len(seen) > 100
    assert not seen & asked
    assert all(held_out(p) for p in itertools.islice(puzzles(6, 6), 5))


def test_training_learns_and_resumes_to_the_same_weights(tmp_path) -> None:
    recipe = Recipe(steps=60, tokens=256, smallest=9, largest=9, side=3)
    data, straight = Data(recipe), Training(recipe)
    losses = [straight.learn(data.batch(step)) for step in range(8)]
    assert losses[-1] < losses[0]
    broken = Training(recipe)
    for step in range(4):
        broken.learn(data.batch(step))
    broken.save(tmp_path)
    again = Training(recipe)
    again.resume(tmp_path)
    for step in range(4, 8):
        again.learn(data.batch(step))
    for mine, theirs in zip(straight.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    # What was saved is the trained model, in half precision and by the names that transformers gives.
    saved = safetensors(tmp_path / "model.safetensors")
    for name, tensor in broken.model.weights().items():
        assert np.array_equal(saved[name], tensor.half().float().numpy())
