"""How many problems, samples and seeds an answer needs: by formula, by hand, and by simulation."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from ponder.stats.frontier import Variant
from ponder.stats.power import (
    Components,
    guessed,
    of_one,
    of_two,
    power_of,
    problems_for_margin,
    problems_for_width,
)

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import coverage_compare as simulated


def made(right: np.ndarray) -> Variant:
    """From problems × samples."""
    return simulated.variant(right[None].astype(bool))


@pytest.mark.parametrize(("discordant", "problems"), [(0.05, 437), (0.1, 873), (0.2, 1745)])
def test_the_formula(discordant: float, problems: int) -> None:
    """n = 7.85 · Var(d) / δ², at the margin of 3 points; four samples of one chance cut it to a
    quarter.
    """
    c = Components(0.0, discordant)
    assert problems_for_margin(c, 0.03) == pytest.approx(problems, abs=1)
    assert problems_for_margin(c, 0.03, 4) == pytest.approx(problems / 4, abs=1)
    assert problems_for_margin(Components(discordant, 0.0), 0.03, 4) == pytest.approx(
        problems, abs=1
    )
    assert power_of(c, 0.03, problems) == pytest.approx(0.8, abs=0.001)
    assert problems_for_margin(c, 0.03, difference=-0.03) == math.inf
    assert problems_for_margin(c, 0.03, difference=0.03) == pytest.approx(problems / 4, abs=1)


def test_a_width() -> None:
    half = 1.959964 * math.sqrt(0.21 / 323)
    assert 2 * half <= 0.1
    assert problems_for_width(Components(0.105, 0.105), 0.1) == 323


def test_components_by_hand() -> None:
    first = np.array([[1, 1], [1, 0], [0, 0], [1, 1], [0, 1], [1, 1], [0, 0], [1, 0]])
    second = np.array([[1, 1], [0, 0], [0, 1], [1, 0], [0, 0], [0, 1], [1, 0], [1, 1]])
    c = of_two(made(first), made(second))
    apart = first.mean(axis=1) - second.mean(axis=1)
    within = [x.var(axis=1, ddof=1).mean() for x in (first, second)]
    assert c.within == pytest.approx(sum(within))
    assert c.between == pytest.approx(max(0.0, apart.var(ddof=1) - sum(within) / 2))
    alone = of_one(made(np.vstack([first, 1 - first])))
    assert alone.within == pytest.approx(within[0])
    assert alone.between == pytest.approx(
        np.vstack([first, 1 - first]).mean(axis=1).var(ddof=1) - within[0] / 2
    )


def test_agreement_on_few_problems_is_no_agreement_for_ever() -> None:
    ones = np.ones((20, 1))
    c = of_two(made(ones), made(ones))
    assert not c.separate
    assert c.total == pytest.approx(2 / 22)
    assert of_one(made(ones)).total > 0.05
    assert c.all_within.of_problem(4) == pytest.approx(c.total / 4)


def test_components_are_what_was_drawn() -> None:
    rng = np.random.default_rng(4)
    one, other = simulated.chances(rng, 20_000, 0.3)
    models = [made(rng.random((20_000, 3)) < p[:, None]) for p in (one, other)]
    c = of_two(*models)
    assert c.between == pytest.approx((one - other).var(), rel=0.2)
    assert c.within == pytest.approx((one * (1 - one) + other * (1 - other)).mean(), rel=0.05)


def test_training_seeds() -> None:
    """Of the seeds' variance, problems buy nothing; of one seed nothing is known."""
    c = Components(0.02, 0.05, 0.05, seeds=0.0004, trained=1)
    assert problems_for_margin(c, 0.03, 2, 1) == math.inf
    assert problems_for_margin(c, 0.03, 2, 3) == math.inf
    needed = [problems_for_margin(c, 0.03, 2, seeds) for seeds in (8, 12, 20)]
    assert math.inf > needed[0] > needed[1] > needed[2]
    # The root of a variance with two degrees of freedom is on average 0.886 of the true one.
    wide = stats.t.ppf(0.975, 2) * math.sqrt(0.0004 / 3)
    assert c.half(1e12, 2, 3) == pytest.approx(0.886 * wide, rel=0.02)
    rng = np.random.default_rng(5)
    spread = []
    for _ in range(60):
        odds = rng.normal(1, 1.5, 400) + rng.normal(0, 0.3, (5, 1))
        seeded = simulated.variant(
            rng.random((5, 400, 1)) < 1 / (1 + np.exp(-odds[..., None])), seeds=5
        )
        spread.append(of_one(seeded).seeds)
    slope = 0.155  # of accuracy in log odds, where problems vary so much
    assert math.sqrt(np.mean(spread)) == pytest.approx(0.3 * slope, rel=0.15)


def test_predicted_power_is_reached() -> None:
    """`benchmarks/coverage.py compare` is the long form.

    At R = 200 the error of 80 % is 2.8 points.
    """
    for samples, seeds, spread in ((1, (1, 1), 0.0), (4, (1, 1), 0.0), (2, (5, 5), 0.05)):
        (told, reached, _, _), *rest = simulated.power(200, 6, samples, seeds, spread)
        assert 0.71 < reached < 0.9, told
        for told, ratio, _, _ in rest:
            assert 0.8 < ratio < 1.25, told


def test_a_guess() -> None:
    alone, both = guessed(0.7, within=0.4)
    assert alone.total == pytest.approx(0.21)
    assert alone.within == pytest.approx(0.084)
    assert both.total == pytest.approx(0.21)
    assert guessed(0.7, discordant=0.1)[1].total == pytest.approx(0.1)
    trained = guessed(0.7, seeds=0.02, trained=2)[1]
    assert (trained.seeds, trained.within, trained.trained) == (pytest.approx(0.0008), 0.0, 2)


STUDY = """
problems = 10
samples = 2
[[task]]
name = "chain_sum"
size = [4, 8]
[[model]]
name = "oracle"
label = "old"
error = 0.3
prices = { input = 0.1, output = 1.0 }
[[model]]
name = "oracle"
label = "new"
error = 0.25
prices = { input = 0.1, output = 1.0 }
"""


def test_the_command(ponder, write) -> None:
    study = write("mine.toml", STUDY)
    told = ponder("plan", study, "--power")
    assert told.exit_code == 2
    assert "there is no store ponder.db to plan from" in told.stderr
    ponder("run", study)
    data = json.loads(ponder("plan", study, "--power", "--margin", "0.05", "--json").stdout)
    [need] = data["needs"]
    c = need["components"]
    variance = c["between"] + c["within"] / 2
    assert need["needed"] == pytest.approx(7.85 * variance / 0.05**2, abs=2)
    one, two = need["designs"][:2]
    assert one["attempts"] <= two["attempts"]
    assert two["problems"] == need["needed"]
    assert one["cost"] == pytest.approx(one["attempts"] * need["cost"][0])
    text = ponder("plan", study, "--power", "--margin", "0.05").stdout
    assert f"set problems = {math.ceil(one['problems'] / 2)} (2 sizes: " in text
    assert "power " in text
    wide = json.loads(ponder("plan", study, "--width", "0.2", "--json").stdout)
    assert [n["model"] for n in wide["needs"]] == ["old", "new"]
    assert "this study is large enough" in ponder("plan", study, "--width", "0.9").stdout


def test_guesses_and_single_samples(ponder, write) -> None:
    study = write("mine.toml", STUDY.replace("samples = 2", "samples = 1"))
    guess = ponder(
        "plan", study, "--power", "--guess", "accuracy=0.7,discordant=0.1,within=1,tokens=100"
    )
    assert "873" in guess.stdout
    assert "175k" in guess.stdout  # 873 problems, two models
    ponder("run", study)
    single = ponder("plan", study, "--power").stdout
    assert "can't tell how much a second one would add" in single
    assert " to " in single
    [need] = json.loads(ponder("plan", study, "--power", "--json").stdout)["needs"]
    ranges = [design for design in need["designs"] if design["problems_low"] < design["problems"]]
    assert ranges
    assert all(design["attempts"] == design["problems"] * design["samples"] for design in ranges)
    for words, said in (
        (
            ("--guess", "accuracy=0.7,discordant=0.9"),
            "--guess discordant: models with an accuracy of 0.7 can't disagree on more than 0.6 of",
        ),
        (("--guess", "acuracy=1"), "there is no guess `acuracy`\nhint: did you mean `accuracy`?"),
        (("--guess", "accuracy=x"), "--guess accuracy: `x` is not a number"),
        (("--guess", "accuracy=7"), "accuracy is a fraction from 0 to 1, not 7"),
        (("--margin", "0.1", "--width", "0.1"), "give --margin or --width, not both"),
    ):
        told = ponder("plan", study, "--power", *words)
        assert told.exit_code == 2
        assert said in told.stderr
    alone = write("one.toml", STUDY[: STUDY.rindex("[[model]]")])
    assert "an interval of accuracy 10 points wide" in ponder("plan", alone, "--power").stdout
    assert "a margin needs two models" in ponder("plan", alone, "--margin", "0.03").stderr


def test_a_fixed_set_runs_out(ponder, write) -> None:
    rows = [{"problem": f"{i} + 1?", "answer": str(i + 1)} for i in range(30)]
    write("set.jsonl", "\n".join(map(json.dumps, rows)))
    task = '[[task]]\nname = "aime24"\nfile = "set.jsonl"\n'
    models = STUDY[STUDY.index("[[model]]") :]
    study = write("mine.toml", f"samples = 1\n{task}{models}")
    guess = ("--guess", "accuracy=0.7,within=1")
    assert (
        "the set has 30 problems, so set samples = "
        in ponder("plan", study, *guess, "--margin", "0.1").stdout
    )
    assert (
        "which no number of samples makes enough"
        in ponder("plan", study, "--guess", "accuracy=0.7").stdout
    )


@pytest.mark.parametrize("accuracy", [0.99, 0.999, 1.0])
def test_few_problems_are_never_enough_for_a_small_margin(accuracy: float) -> None:
    """Below 125 problems, Tango's interval reaches 3 points even if the two models never differ."""
    one, two = guessed(accuracy)
    assert problems_for_margin(two, 0.03) >= 125
    assert problems_for_width(one, 0.05) >= 73
