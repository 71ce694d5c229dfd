"""The recipe: traces that are sound, test puzzles that training never sees, and a training that
resumes.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from safetensors.numpy import load_file

from ponder.core import Request, UserError
from ponder.core.capabilities import grade_turns, parse_answer
from ponder.models.pocket import CODECS, WEIGHTS, execution
from ponder.models.pocket import tents_words as v
from ponder.models.pocket.codec import AGAIN, ANSWER, BOS, EOS, THINK, Style
from ponder.models.pocket.execution import added, number
from ponder.models.pocket.tents import Curriculum
from ponder.models.pocket.tents_traces import trace, unsound
from ponder.recipes.network import Shape
from ponder.recipes.pocket import PLAIN, Data, Pretraining, Recipe, train
from ponder.tasks.execution import Execution, dictionary
from ponder.tasks.tents.generator import generate


@pytest.mark.parametrize("side", [3, 4, 5, 6, 7, 8, 10])
def test_traces_are_sound_and_end_in_the_solution(side) -> None:
    solved = 0
    for seed in range(40):
        puzzle = generate(side, side, "easy", random.Random(seed))
        words = trace(puzzle) if v.expressible(puzzle) else None
        if words:
            solved += 1
            end = words.index(ANSWER)
            assert unsound(puzzle, words[:end]) is None
            assert v.grid_text(puzzle, words[end + 1 : -1]).startswith("[[")
            assert words[-1] == EOS
    assert solved >= 36


def test_an_unsound_step_is_found_out() -> None:
    puzzle = generate(5, 5, "easy", random.Random(1))
    words = trace(puzzle)
    assert words
    end = words.index(ANSWER)
    found = 0
    for place in range(end):
        spoken = v.parse_cell(words[place])
        if spoken and spoken[2] in (v.TENTED, v.GRASS):
            row, column, state = spoken
            other = v.cell(row, column, v.GRASS if state == v.TENTED else v.TENTED)
            found += unsound(puzzle, [*words[:place], other, *words[place + 1 : end]]) is not None
    assert found >= 5


EXECUTION = CODECS["execution"]


def asked(per_turn: int, filled: int, seed: int, errors: float = 0.0) -> Request:
    task = Execution(per_turn=per_turn, dictionary=16, history_turns=filled, error_rate=errors)
    return Request.first_turn(task, task.problem(per_turn * (filled + 1), seed))


@pytest.mark.parametrize("style", EXECUTION.styles)
@pytest.mark.parametrize(
    ("per_turn", "filled"), [(1, 0), (4, 0), (3, 5), (1, 40), (24, 1), (96, 0)]
)
def test_lessons_of_execution_end_in_the_right_sum(style, per_turn, filled) -> None:
    for seed in range(20):
        request = asked(per_turn, filled, seed, errors=0.5)
        lesson = EXECUTION.lesson(request, style, random.Random(seed))
        assert lesson.prompt == EXECUTION.prompt(request)
        thinking, text = EXECUTION.read(request, EXECUTION.encode(lesson.reply))
        assert grade_turns(request.task, request.problem, [text]).correct
        clean = EXECUTION.lesson(request, style)
        assert not clean.without_loss
        assert EXECUTION.unsound(request, clean.reply[: clean.reply.index(ANSWER)], style) is None
        assert (EXECUTION.unsound(request, thinking, style) is None) == (not lesson.without_loss)


def test_every_step_of_a_plain_lesson_is_right() -> None:
    for seed in range(30):
        request = asked(6, 2, seed)
        table, start = dictionary(request.problem), request.problem.gold["start"]
        words = EXECUTION.lesson(request).reply
        assert number(words[:4]) == start
        for n, key in enumerate(request.problem.turns[0].split(", ")):
            step, said, value, *total = words[4 + 7 * n : 11 + 7 * n]
            start += table[key]
            assert (step, said, int(value), number(total)) == (f"#{13 + n}", key, table[key], start)


def test_sums_in_tens_complement() -> None:
    assert added(5, -8) == ["u7_", "t9_", "h9_", "k9_"]
    assert added(-3, 8) == ["u5^", "t0^", "h0^", "k0^"]
    assert added(95, 17) == ["u2^", "t1^", "h1", "k0"]
    for total in range(-1500, 1500, 7):
        for value in range(-99, 100, 11):
            assert number(added(total, value)) == total + value
    assert number(["u1", "t2", "k3"]) is None


def test_the_prompt_shows_what_the_history_shows() -> None:
    request = asked(2, 3, 5, errors=1.0)
    words = EXECUTION.prompt(request)
    shown = [
        parse_answer(request.task, request.problem, m.content)
        for m in request.problem.history
        if m.role == "assistant"
    ]
    sums = [
        number(words[i : i + 4])
        for i, word in enumerate(words)
        if word[0] == "u" and word[1:].isdigit()
    ]
    assert sums == shown
    assert [word for word in words if word[0] == "#"] == [f"#{n}" for n in range(1, 9)]
    # Only what is shown is read: a window on the conversation starts to count anew.
    late = Request(request.task, request.problem, request.messages[-3:], 0)
    assert [word for word in EXECUTION.prompt(late) if word[0] == "#"] == [
        f"#{n}" for n in range(1, 5)
    ]


def written(request: Request, style: Style) -> list[str]:
    """The thinking of the style's example without errors."""
    said = EXECUTION.lesson(request, style).reply
    return said[: said.index(ANSWER)]


def test_a_long_lesson_drafts_and_redoes_what_is_wrong() -> None:
    kinds = []
    for seed in range(200):
        request = asked(4, 0, seed)
        lesson = EXECUTION.lesson(request, "long", random.Random(seed))
        draft, careful = written(request, "long"), written(request, "plain")
        assert draft == [*written(request, "short"), "+00", *lesson.reply[-5:-1]]
        passes = [
            one.split() for one in " ".join(lesson.reply[: lesson.reply.index(ANSWER)]).split(AGAIN)
        ]
        assert passes[-1] in (draft, careful)
        assert all(len(one) == len(careful) for one in passes[1:])  # only the first pass is a draft
        wrong = sum(one not in (draft, careful) for one in passes)
        assert bool(wrong) == bool(lesson.without_loss)
        kinds.append((len(passes), len(passes[0]) == len(careful), wrong))
    assert {passes for passes, _, _ in kinds} == {1, 2, 3}
    assert 10 < sum(at_once for _, at_once, _ in kinds) < 60
    assert 30 < sum(wrong > 0 for _, _, wrong in kinds) < 130


def test_a_judged_reply_has_the_solvers_verdicts() -> None:
    request = asked(4, 0, 3)
    draft, careful, answer = (
        written(request, "long"),
        written(request, "plain"),
        EXECUTION.lesson(request).reply[-5:],
    )
    false = [*draft[:-2], f"h{(int(draft[-2][1]) + 1) % 10}", draft[-1]]
    asks, sure = random.Random(0), random.Random(5)
    sure.random = lambda: 0.99  # type: ignore[method-assign] a right pass is not checked again
    asks.random = lambda: 0.0  # type: ignore[method-assign] it is

    def judged(thinking: list[str], rng: random.Random) -> tuple[list[str], set[str], list[str]]:
        example = EXECUTION.judged(request, [*thinking, ANSWER, *answer], rng)
        assert example.prompt == EXECUTION.prompt(request)
        words = example.reply
        return (
            words,
            {words[n] for n in example.without_loss},
            [words[n] for n in sorted(example.verdicts)],
        )

    # A wrong draft is doubted whatever the model said, and redone; its wrong word isn't learned.
    redone = [*false, AGAIN, *careful, ANSWER, *answer], {false[-2]}, [AGAIN]
    assert judged(false, sure) == redone
    assert judged([*false, AGAIN, *careful], sure) == redone
    # A right one is trusted, and what the model went on to write is dropped; unless it is to be
    # checked.
    assert judged([*draft, AGAIN, *careful], sure) == ([*draft, ANSWER, *answer], set(), [ANSWER])
    checked = judged([*draft, AGAIN, *careful], asks)
    assert checked == ([*draft, AGAIN, *careful, AGAIN, *careful, ANSWER, *answer], set(), [AGAIN])
    # Without an end, or with a step left out, there is nothing to judge.
    assert EXECUTION.judged(request, draft, sure) is None
    assert EXECUTION.judged(request, [*draft, AGAIN, *careful[:-7], ANSWER, *answer], asks) is None


def test_training_never_sees_a_test_puzzle() -> None:
    tents = CODECS["tents"]
    four, _, six, *_ = tents.exams
    asked = {
        tuple(tents.prompt(Request.first_turn(four.task, p)))
        for p in itertools.islice(tents.tests(four), 20)
    }
    assert len(asked) == 20
    data = Data(Recipe("tents", Curriculum(smallest=16, largest=16, side=4, tail=0.0), Shape()))
    seen = set()
    for step in range(60):
        words = tents.decode(data.batch(step).tokens.tolist())
        starts = [i for i, word in enumerate(words) if word == BOS]
        seen |= {tuple(words[i : words.index(THINK, i) + 1]) for i in starts}
    assert len(seen) > 100
    assert not seen & asked
    assert all(tents.held_out(p) for p in itertools.islice(tents.tests(six), 5))


def test_training_learns_and_resumes_to_the_same_weights(tmp_path) -> None:
    recipe = Recipe(
        "tents", Curriculum(smallest=9, largest=9, side=3), Shape(), steps=60, tokens=256
    )
    data, straight = Data(recipe), Pretraining(recipe)
    losses = [straight.learn(data.batch(step)) for step in range(8)]
    assert losses[-1] < losses[0]
    broken = Pretraining(recipe)
    for step in range(4):
        broken.learn(data.batch(step))
    broken.save(tmp_path)
    again = Pretraining(recipe)
    again.resume(tmp_path)
    for step in range(4, 8):
        again.learn(data.batch(step))
    for mine, theirs in zip(straight.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    # What was saved is the trained model, in half precision and by the names that transformers
    # gives.
    saved = load_file(tmp_path / "model.safetensors")
    for name, tensor in broken.model.weights().items():
        assert np.array_equal(saved[name], tensor.half().numpy())


def test_training_without_hope_begins_again_once(tmp_path) -> None:
    small = Shape(width=32, layers=1, heads=2, kv_heads=1, head_width=16, inner=32)
    recipe = Recipe(
        "tents", Curriculum(smallest=9, largest=9, side=3), small, tokens=64, patience=2, hope=0.1
    )
    training = train(recipe, tmp_path, save_every=1, test_every=100)
    steps = [next(training) for _ in range(3)]
    # stopped, it knows that it has begun again
    training = train(recipe, tmp_path, save_every=1, test_every=100)
    steps += [next(training) for _ in range(3)]
    assert [(s["step"], s.get("restarted")) for s in steps] == [
        (1, None), (2, True), (1, None), (2, None), (3, None), (4, None)
    ]  # fmt: skip
    assert steps[-1]["tokens"] > 2 * steps[1]["tokens"]  # what the first try took is counted
    with pytest.raises(UserError, match="another recipe or seed"):
        next(train(replace(recipe, seed=2), tmp_path))
    first, second = Pretraining(recipe), Pretraining(recipe, soft=True)
    assert torch.allclose(second.model.blocks[0].q, 0.3 * first.model.blocks[0].q)
    assert torch.equal(second.model.embed.parts, first.model.embed.parts)


def test_training_on_own_replies_weighs_verdicts_and_resumes(tmp_path) -> None:
    drawn = execution.Curriculum(grown=0, per_turn=3, tail=0.0, fresh=1.0)
    how = {"style": "long", "steps": 60, "tokens": 128, "rounds": (2,), "replies": 6}
    recipe = replace(PLAIN, curriculum=drawn, patience=0, matrix_rate=1e-3, **how)
    once, twice = tmp_path / "once", tmp_path / "twice"
    drawn_at = set()
    for folder, stops in ((once, [4]), (twice, [3, 1])):
        for steps in stops:
            training = train(
                recipe, folder, WEIGHTS / "execution-long", save_every=1, test_every=100
            )
            last = [next(training) for _ in range(steps)][-1]
            drawn_at.add((folder / "replies-2.json").stat().st_mtime_ns)
        assert last["step"] == 4
    assert len(drawn_at) == 2  # replies are kept, not drawn again from later weights
    assert (once / "model.safetensors").read_bytes() == (twice / "model.safetensors").read_bytes()
    data = Data(recipe)
    assert data.batch(1).weights is None
    data.listen(once, 2)
    assert data.judged
    weights = {
        w
        for step in range(2, 8)
        if (b := data.batch(step)).weights is not None
        for w in b.weights.tolist()
    }
    assert weights == {1.0, recipe.stress}
