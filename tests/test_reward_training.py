"""Trainer a reward: targets by hand, the published defect, the loss as computed directly, and what
the pocket one finds.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from msgspec import json as msgspec_json
from msgspec import to_builtins
from safetensors.torch import load_file
from tiny import tiny
from transformers import AutoModel, AutoTokenizer

from ponder.core import Reward, Scores, Source, Steps, UserError
from ponder.models._torch_engine import load_anew
from ponder.models.pocket import CODECS
from ponder.models.pocket.execution import Curriculum
from ponder.recipes import faults
from ponder.recipes.pocket_reward import example_of
from ponder.rewards._weights import SafeTokenizer
from ponder.rewards.oracle import Oracle, true_labels
from ponder.rewards.pocket import WEIGHTS, Pocket
from ponder.rewards.trained import Trained
from ponder.training.reward import RewardSettings, joint_loss, settings, train, units
from ponder.training.targets import Target, Targets, aligned_steps, coherence, mixed, trajectory

# Texts as points: so every cosine is known.
POINTS = {"q": (1, 0), "a": (1, 0), "b": (0, 1), "c": (1, 1), "x": (1, 0), "y": (-1, 0)}


def points(texts):
    return np.array([POINTS[text] for text in texts], float)


def of(thinking: str, answer: str = "", **facts) -> Steps:
    return Steps(facts.pop("id", "one"), "q", tuple(thinking), tuple(answer), facts)


class Says(Reward):
    """What a trace's `says` says."""

    def rate(self, traces):
        return [
            Scores(tuple(t.facts["says"])) if "says" in t.facts else Scores(why="silent")
            for t in traces
        ]


def test_alignment_by_hand() -> None:
    root = math.sqrt(0.5)
    assert aligned_steps(of("abc", "xb"), "all", "best", points)[:3] == pytest.approx([1, 1, root])
    # Never back: `a` after `b` belongs to `b`.
    assert aligned_steps(of("aba", "xb"), "thinking", "monotone", points) == pytest.approx(
        [1, 1, 0]
    )
    assert aligned_steps(of("aba", "xb"), "thinking", "best", points) == pytest.approx([1, 1, 1])
    assert np.isnan(aligned_steps(of("ab"), "all", "best", points)).all()  # there is no answer
    # there is no thinking
    assert np.isnan(aligned_steps(of("", "ab"), "all", "best", points)).all()


def test_coherence_by_hand() -> None:
    found = coherence(of("ab"), "all", ["b", "y"], 0.5, points)
    # The question is like `a` (1), like `b` 0, like `y` -1; `a` is like `b` 0.
    first = math.log(math.exp(2) / (math.exp(0) + math.exp(-2)))
    second = math.log(math.exp(0) / (math.exp(0) + math.exp(-2)))
    assert found == pytest.approx([first, second])
    assert np.isnan(coherence(of("ab"), "all", [], 0.5, points)).all()


def test_mixing_by_hand() -> None:
    found = mixed(
        np.array([[0.7, math.nan, math.nan], [0.8, 0.3, math.nan], [-2.0, math.nan, math.nan]])
    )
    weights = [math.exp(r) for r in (0.7, 0.8, -2.0)]
    assert found[0] == pytest.approx(
        (0.7 * weights[0] + 0.8 * weights[1] - 2 * weights[2]) / sum(weights)
    )
    assert found[1] == 0.3
    assert math.isnan(found[2])


def test_published_targets_reward_incoherence_and_ours_do_not() -> None:
    """A step whose predecessor is less like it must not be worth more, all else alike."""
    pile = [of("a", "x", id="like", says=[0.8]), of("b", "b", id="unlike", says=[0.8])]
    pile += [of("x", "x", id=f"other {n}") for n in range(8)]
    worth = {}
    for published in (True, False):
        found = Targets(published=published, tau=0.5, others=8).of(
            pile, Says(of="thinking"), points
        )
        worth[published] = [float(target.steps[0]) for target in found]
    # Both are aligned fully and of the same quality; `a` follows from the question and `b` doesn't.
    assert worth[True][1] > worth[True][0]
    assert worth[False][1] < worth[False][0]
    # The same on a grid: the published form falls somewhere as coherence rises, ours never does.
    published = [mixed(np.array([[0.7], [0.8], [c]]))[0] for c in np.linspace(-6, 0, 50)]
    ours = [mixed(np.array([[0.7], [0.8], [c]]))[0] for c in np.linspace(0, 1, 50)]
    assert min(np.diff(published)) < 0 < min(np.diff(ours))
    assert published[int(4 / 6 * 49)] > published[int(5.5 / 6 * 49)]


def test_targets_are_shares_and_labels_are_taken_as_they_are() -> None:
    pile = [of("abc", "xb", id=str(n), labels=[1, 0, 1, 0.5, 1]) for n in range(3)]
    for target in Targets().of(pile, Oracle(), points):
        assert ((target.steps >= 0) & (target.steps <= 1)).all()
    [target, *_] = Targets(targets="labels").of(pile, Oracle())
    assert target.steps.tolist() == [1, 0, 1, 0.5, 1]


def test_trajectory_targets() -> None:
    assert trajectory(of("a", template_accuracy=0.25, correct=True)) == 0.25
    assert trajectory(
        of("a", template_answers=["\\boxed{4}", "5", "4"], gold="4")
    ) == pytest.approx(2 / 3)
    assert trajectory(of("a", correct=False)) == 0
    assert trajectory(of("a"), Scores((0.1,), 0.9)) == 0.9
    assert math.isnan(trajectory(of("a")))
    with pytest.raises(UserError, match="fraction from 0 to 1"):
        trajectory(of("a", template_accuracy=3))


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    loaded = tiny(3, folder)
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    return folder


def pile(number: int = 24) -> list[Steps]:
    """Steps are right if they begin with an even word."""
    rng = random.Random(1)

    def some() -> str:
        return " ".join(f"w{rng.randrange(2, 24)}" for _ in range(rng.randint(1, 5)))

    found = []
    for n in range(number):
        thinking, answer = (
            [some() for _ in range(rng.randint(1, 6))],
            [some() for _ in range(rng.randint(1, 2))],
        )
        labels = [int(step.split()[0][1:]) % 2 == 0 for step in thinking + answer]
        found.append(
            Steps(
                str(n),
                some(),
                tuple(thinking),
                tuple(answer),
                {"labels": labels, "correct": labels[-1]},
            )
        )
    return found


@pytest.mark.parametrize("loss", ["squared", "cross-entropy"])
def test_the_loss_is_the_published_one(model: Path, loss: str) -> None:
    traces = pile(5)
    targets = [
        Target(np.linspace(0.1, 0.9, len(t.part("all"))), 0.1 * n) for n, t in enumerate(traces)
    ]
    targets[1].steps[0] = math.nan  # isn't known, and isn't counted
    targets[2] = Target(targets[2].steps)
    loaded = load_anew(Source(model))
    found = units(Trained(id=str(model)), SafeTokenizer(loaded.tokenizer), traces, targets, 128)
    torch.manual_seed(0)
    logits = [torch.randn(len(unit.data.steps), 2, dtype=torch.float64) for unit in found]
    recipe = RewardSettings(step_weight=0.7, trajectory_weight=0.2, loss=loss)

    def error(logit: float, wanted: float) -> float:
        said = 1 / (1 + math.exp(-logit))
        return (
            (said - wanted) ** 2
            if loss == "squared"
            else -wanted * math.log(said) - (1 - wanted) * math.log(1 - said)
        )

    total = 0.0
    for rows, target in zip(logits, targets, strict=True):
        known = [
            (float(row[0]), y)
            for row, y in zip(rows, target.steps, strict=True)
            if not math.isnan(y)
        ]
        total += 0.7 * sum(error(*pair) for pair in known) / len(known)
        if not math.isnan(target.trajectory):
            total += 0.2 * error(float(rows[-1, 1]), target.trajectory)
    assert joint_loss(recipe, torch.cat(logits), found).item() == pytest.approx(total, rel=1e-6)


def test_training_lowers_the_loss_and_goes_on_after_a_stop(model: Path, tmp_path: Path) -> None:
    recipe = RewardSettings(
        targets="labels", rate=3e-3, head_rate=0.03, epochs=12, batch=8, loss="squared"
    )
    reader = Trained(id=str(model))
    losses = [report["loss"] for report in train(reader, pile(), tmp_path / "whole", recipe)]
    assert len(losses) == 36
    assert np.mean(losses[-3:]) < 0.6 * np.mean(losses[:3])
    stopped = train(reader, pile(), tmp_path / "stopped", recipe)
    for report in stopped:
        if report["step"] == 10:
            stopped.gi_frame.f_locals["engine"].save()  # what a training does every twenty seconds
        if report["step"] == 13:
            break
    stopped.close()
    again = [report["step"] for report in train(reader, pile(), tmp_path / "stopped", recipe)]
    assert again[0] == 11
    assert not (tmp_path / "stopped" / "training.pt").exists()
    scores = [Trained(id=str(tmp_path / name)).score(pile()) for name in ("whole", "stopped")]
    for one, other in zip(*scores, strict=True):
        assert one.steps == pytest.approx(other.steps, abs=1e-6)
        assert one.trajectory == pytest.approx(other.trajectory, abs=1e-6)
    right = [s for trace, one in zip(pile(), scores[0], strict=True) for s, y in zip(one.steps, trace.facts["labels"], strict=True) if y]  # fmt: skip
    wrong = [s for trace, one in zip(pile(), scores[0], strict=True) for s, y in zip(one.steps, trace.facts["labels"], strict=True) if not y]  # fmt: skip
    assert np.mean(right) > np.mean(wrong) + 0.3


def test_the_trained_reward_is_a_plain_forward_pass(model: Path, tmp_path: Path) -> None:
    list(
        train(
            Trained(id=str(model)),
            pile(),
            tmp_path,
            RewardSettings(targets="labels", head_rate=0.1, epochs=2),
        )
    )
    states, spoken = (
        AutoModel.from_pretrained(tmp_path).eval(),
        AutoTokenizer.from_pretrained(tmp_path),
    )
    heads = load_file(tmp_path / "heads.safetensors")
    for trace, scores in zip(pile(6), Trained(id=str(tmp_path)).score(pile(6)), strict=True):
        for n in range(len(scores.steps)):
            text = " ".join([trace.question, *trace.part("all")[: n + 1]])
            with torch.no_grad():
                last = states(torch.tensor([spoken(text)["input_ids"]])).last_hidden_state[0, -1]
            step, whole = (last @ heads["weight"].T + heads["bias"]).sigmoid().tolist()
            assert scores.steps[n] == pytest.approx(step, abs=1e-5)
        assert scores.trajectory == pytest.approx(whole, abs=1e-5)


def test_what_cannot_be_learnt_is_refused(model: Path, tmp_path: Path) -> None:
    nothing = [replace(trace, facts={}) for trace in pile(3)]
    for targets in ("labels", "mixed"):  # steps have alignment and coherence without any label
        with pytest.raises(UserError, match="no trace has a label to train on: it has no labels"):
            list(train(Trained(id=str(model)), nothing, tmp_path, RewardSettings(targets=targets)))
    assert not list(tmp_path.iterdir())
    with pytest.raises(UserError, match="isn't a trained reward"):
        Trained(id=str(model)).score(pile(1))
    with pytest.raises(UserError, match="did you mean `epochs`"):
        settings("x", {"epoch": 3})
    with pytest.raises(UserError, match="tau must be above 0"):
        settings("x", {"tau": 0.0})
    reader, recipe = settings("x", {"epochs": 3, "of": "thinking", "batch": 4})
    assert (reader.of, reader.batch, recipe.epochs, recipe.batch) == ("thinking", None, 3, 4)


def test_train_reward_on_the_command_line(ponder, write, model: Path, tmp_path: Path) -> None:
    lines = []
    for trace in pile(10):
        record = {"question": trace.question, "thinking": "\n\n".join(trace.thinking)}
        record |= {"answer": "\n\n".join(trace.answer), **trace.facts}
        lines.append(json.dumps(record))
    write("traces.jsonl", "\n".join(lines))
    done = ponder(
        "prepare",
        "reward",
        "traces.jsonl",
        "--from",
        model,
        "-o",
        "made",
        "--set",
        "epochs=1",
        "--json",
    )
    assert done.exit_code == 0, done.output
    scored = ponder(
        "score", "traces.jsonl", "--reward", "trained", "--set", "id=made", "-o", "scored.jsonl"
    )
    assert scored.exit_code == 0, scored.output
    first = json.loads(Path("scored.jsonl").read_text().splitlines()[0])
    assert len(first["step_scores"]) == len(pile(1)[0].part("all"))
    for key, hint in (
        ("steps", "it has `epochs` instead"),
        ("learning_rate", "here it is called `rate`"),
    ):
        wrong = ponder(
            "prepare", "reward", "traces.jsonl", "--from", model, "-o", "other", "--set", f"{key}=2"
        )
        assert (wrong.exit_code, wrong.stderr.partition("hint: ")[2]) == (2, f"{hint}\n")
    done = ponder("prepare", "reward", "traces.jsonl", "-o", "made")
    assert done.exit_code == 2
    assert "Missing option '--from'" in done.output


def some(number: int) -> list[Steps]:
    return list(itertools.islice(faults.traces(5, test=True), number))


def test_faults_have_the_labels_that_the_oracle_finds() -> None:
    for found in some(150):
        assert CODECS["execution"].held_out(found.facts["problem"])
        blind = replace(found, facts={k: v for k, v in found.facts.items() if k != "labels"})
        assert list(true_labels(blind)) == list(found.facts["labels"])


def test_words_that_do_not_follow_are_marked() -> None:
    """A lesson without any is the one that is taught; the first fault is the first word that is not
    as taught.
    """
    spoken, rng = CODECS["execution"], random.Random(3)
    clean = faulty = 0
    while clean < 10 or faulty < 40:
        request = spoken.draw(rng, 0, Curriculum(grown=0))
        made = example_of(faults.trace(request, "plain", rng))
        taught = spoken.lesson(request)
        first = next(
            (n for n, (a, b) in enumerate(zip(made.reply, taught.reply, strict=False)) if a != b),
            None,
        )
        assert first == min(made.without_loss, default=None)
        clean, faulty = clean + (first is None), faulty + (first is not None)


def auc(scores, right) -> float:
    order, right = np.argsort(np.argsort(scores)), np.array(right, bool)
    return (order[right].sum() - right.sum() * (right.sum() - 1) / 2) / (
        right.sum() * (~right).sum()
    )


@pytest.mark.parametrize(("size", "least"), [("small", 0.65), ("medium", 0.9), ("large", 0.9)])
def test_shipped_weights_tell_sound_traces_from_faulty_ones(size, least) -> None:
    reward, found = Pocket(size=size), some(300)
    rated = reward.score(found)
    assert not any(scores.why for scores in rated)
    labels = [trace.facts["labels"] for trace in found]
    assert auc([min(scores.steps) for scores in rated], [all(row) for row in labels]) > least
    steps = [s for scores in rated for s in scores.steps]
    assert auc(steps, [y for row in labels for y in row]) > least
    assert (
        auc([scores.trajectory for scores in rated], [trace.facts["correct"] for trace in found])
        > least
    )
    card = json.loads((WEIGHTS / size / "card.json").read_text())
    assert card["parameters"] == reward.parameters()
    assert card["first_error"]["gain"]["low"] > 0


def test_pocket_scores_do_not_depend_on_neighbours_or_on_how_a_trace_was_stored() -> None:
    reward, found = Pocket(), some(40)
    together = reward.score(found)
    for trace, scores in zip(found, together, strict=True):
        stored = msgspec_json.decode(msgspec_json.encode(to_builtins(trace.facts["problem"])))
        [alone] = reward.score([replace(trace, facts={**trace.facts, "problem": stored})])
        assert alone.steps == pytest.approx(scores.steps, abs=1e-5)
        assert alone.trajectory == pytest.approx(scores.trajectory, abs=1e-5)


def test_odd_pocket_traces() -> None:
    [plain] = [t for t in some(40) if t.facts["style"] == "plain" and len(t.thinking) > 3][:1]
    bare = replace(plain, thinking=())
    one = replace(plain, thinking=plain.thinking[:1], answer=())
    again = [f"<again> {plain.thinking[0]}", *plain.thinking[1:]]
    long = replace(plain, thinking=(*plain.thinking, *again * (1000 // len(again) + 1)))
    strange = replace(plain, thinking=("Let me think.",))
    other = replace(plain, facts={"task": "tents"})
    broken = replace(plain, facts={**plain.facts, "problem": {"size": "?"}})
    scores = Pocket().score([bare, one, long, strange, other, broken])
    assert [len(s.steps) for s in scores] == [1, 1, len(long.part("all")), 0, 0, 0]
    assert all(s.total is not None for s in scores[:3])
    assert scores[3].why == "the pocket model has no token for 'Let'"
    assert "task" in scores[4].why
    assert scores[5].why
    assert Pocket(of="thinking").score([bare])[0].why == "nothing to score"
