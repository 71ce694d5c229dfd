"""The figure of picked answers draws what was counted, and published numbers beside it."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import made_up
import numpy as np
import pytest
from made_up import variants_of
from test_selection_figures import bare, outcome

from ponder.figures._published import published
from ponder.figures.best_of import BestOf
from ponder.results.charts import draw_figure
from ponder.stats.frontier import accuracy_difference


def picked(ns=(2, 8), samples=8, problems=50, *, rewards=("pocket",), model="pocket", before=()):
    """Answers that one of n independent samples gives: the best if any is right, a majority if most
    are.
    """
    rng = np.random.default_rng(7)
    chance = rng.beta(0.8, 0.7, problems)
    found = [
        outcome(model, f"p{i}", rng.random() < p, before, sample=s, tokens=91)
        for i, p in enumerate(chance)
        for s in range(samples)
    ]
    for n, (i, p) in itertools.product(ns, enumerate(chance)):
        right = int(rng.binomial(n, p))
        votes = right > n / 2
        cost = {"tokens": 100 * n - 9}
        found.append(outcome(model, f"p{i}", votes, (*before, ("vote", {"n": n})), **cost))
        for reward in rewards:
            by = {"n": n, "reward": reward}
            found.append(
                outcome(
                    model, f"p{i}", right, (*before, ("best_of", {**by, "pick": "best"})), **cost
                )
            )
            weighted = votes or (right and rng.random() < 0.5)
            found.append(
                outcome(
                    model, f"p{i}", weighted, (*before, ("best_of", {**by, "pick": "vote"})), **cost
                )
            )
    return found


def test_best_of_draws_what_was_counted() -> None:
    outcomes = picked()
    found = draw_figure("best_of", BestOf(), outcomes)
    assert found.picture.png.startswith(b"\x89PNG")
    rows = {(r["picker"], r["n"]): r for r in found.tables["pickers"]}
    assert set(rows) == set(
        itertools.product(("best by reward", "vote weighted by reward", "majority vote"), (2, 8))
    )
    data = {v.name: v for v in variants_of(outcomes).variants}
    best, votes = data["pocket + best_of n=8 reward=pocket pick=best"], data["pocket + vote n=8"]
    apart, row = accuracy_difference(best, votes), rows["best by reward", 8]
    assert [row[f"gain{e}"] for e in ("", "_low", "_high")] == [apart.value, apart.low, apart.high]
    assert row["accuracy"] == pytest.approx(best.correct.mean())
    assert row["times_tokens"] == pytest.approx(8.0)
    assert rows["majority vote", 8]["gain"] is None
    by_problem = data["pocket"].correct.reshape(50, 8)
    assert [p["n"] for p in found.tables["passes"]] == [1, 2, 4, 8]
    one, _, _, every = (p["accuracy"] for p in found.tables["passes"])
    assert (one, every) == pytest.approx((by_problem.mean(), by_problem.any(axis=1).mean()))
    assert row["closed"] == pytest.approx((row["accuracy"] - one) / (every - one))
    said = found.findings
    assert said[0].startswith("tents: with n = 8, best by reward beats majority vote: +")
    assert said[0].endswith("paired by problem, for 8.0 times the output tokens of one sample.")
    assert said[2].startswith(
        f"tents: fraction of the gap from one sample ({one:.0%}) to pass@8 ({every:.0%}) that is closed: best by"
    )


def test_what_the_reward_reads_is_shown_apart() -> None:
    outcomes = picked()
    by_reward = {"reward_prompt_tokens": 300, "reward_completion_tokens": 20, "reward_cost": 0.1}
    told = [
        o._replace(details=by_reward) if made_up.settings_of(o, "best_of") else o for o in outcomes
    ]
    plain, apart = BestOf().estimate(outcomes), BestOf().estimate(told)
    assert {r["reward_tokens"] for r in plain["pickers"]} == {None}
    assert {(r["picker"] == "majority vote", r["reward_tokens"]) for r in apart["pickers"]} == {
        (True, None),
        (False, 320),
    }
    assert [r["tokens"] for r in plain["pickers"]] == [r["tokens"] for r in apart["pickers"]]
    (said, *_) = BestOf().findings(apart)
    assert said.endswith(
        "for 8.0 times the output tokens of one sample and 320 that the reward reads and writes."
    )


def test_more_samples_would_tell_more() -> None:
    tables = BestOf().estimate(picked(samples=4))
    assert [p["n"] for p in tables["passes"]] == [1, 2, 4]
    closed = {(r["picker"], r["n"]): r["closed"] for r in tables["pickers"]}
    assert closed["best by reward", 8] is None
    assert closed["best by reward", 2] is not None
    said = BestOf().findings(tables)[-1]
    assert said == (
        "tents: pass@8 can't be estimated: it needs 8 samples per problem of the model alone, and there are 4."
    )


def test_pickers_models_and_rewards_stand_apart() -> None:
    outcomes = picked(rewards=("pocket-s", "pocket-l")) + picked(
        before=[("sft", {"by": "reward", "seed": 1})]
    )
    trained = ("length_rl", {"n": 8, "rate": 1e-4})  # it has an n too, and picks nothing
    outcomes += bare("pocket", samples=2, methods=[trained])
    tables = BestOf().estimate(outcomes)
    assert [p["panel"] for p in tables["panels"]] == [
        "pocket | tents",
        "pocket + sft by=reward seed=1 | tents",
    ]
    assert all(r["attempts"] == r["problems"] == 50 for r in tables["pickers"])
    own = {r["picker"] for r in tables["pickers"] if r["panel"] == "pocket | tents"}
    assert own == {"majority vote"} | {
        f"{how} by pocket-{size}" for how in ("best", "vote weighted") for size in "sl"
    }
    assert BestOf().estimate(random.Random(1).sample(outcomes, len(outcomes))) == tables
    # Alone, a model has its pass@n.
    alone = BestOf().estimate([o for o in outcomes if o.label.model == "pocket"])
    assert (alone["pickers"], [p["n"] for p in alone["passes"]]) == ([], [1, 2, 4, 8])


def test_published_best_of() -> None:
    rows = published("prm_best_of_n")
    assert len(rows) == 48
    assert all(0.3 < r["accuracy"] < 0.93 for r in rows)
    found = draw_figure("best_of", BestOf(overlay="prm_best_of_n"), picked())
    said = {s.partition(",")[0]: s for s in found.findings if ", published: " in s}
    assert list(said) == ["AIME24", "MATH500", "GPQA-D"]
    assert "on 30 problems: none; within it: ReasonFlux-PRM-7B (+6.7)" in said["AIME24"]
    assert (
        "on 500 problems: ReasonFlux-PRM-7B (+6.4); within it: Qwen2.5-Math-PRM-72B (+4.0)"
        in said["MATH500"]
    )
    assert [p["title"]["text"] for p in found.spec["vconcat"][1]["concat"]] == [
        f"{b}, published" for b in said
    ]


@pytest.mark.parametrize(
    ("kind", "one", "eight"), [("output", 100, 800), ("thinking", 91, 791), ("answer", 9, 9)]
)
def test_best_of_counts_what_it_is_asked_to(kind, one, eight) -> None:
    tables = BestOf(tokens=kind).estimate(picked())
    rows = {(r["picker"], r["n"]): r for r in tables["pickers"]}
    assert rows["majority vote", 8]["tokens"] == eight
    assert rows["majority vote", 8]["times_tokens"] == pytest.approx(eight / one)
    assert f"times the {kind} tokens of one sample" in BestOf(tokens=kind).findings(tables)[0]


def test_best_of_says_why_it_counts_output() -> None:
    chat = [o._replace(thinking_tokens=0) for o in picked()]
    said = BestOf(tokens="auto").findings(BestOf(tokens="auto").estimate(chat))
    assert said[0].startswith("Tokens are output tokens (thinking + answer) for all models: ")
    none = BestOf(tokens="thinking").estimate(chat)
    assert {r["times_tokens"] for r in none["pickers"]} == {None}
    assert not any("times the" in sentence for sentence in BestOf(tokens="thinking").findings(none))


def scored(auc_of: dict[str, float], same: float, problems=60, n=4):
    """Attempts with the scores of their samples: of each reward a fraction of problems is ranked
    right.
    """
    rng = np.random.default_rng(4)
    found = []
    for i, (reward, good) in itertools.product(range(problems), auc_of.items()):
        ranked = rng.random() < good
        details = {"distinct_thinkings": 1.0 if rng.random() < same else 3.0, "wrong_samples": 1.0}
        details |= {"wrong_in_answer": float(rng.random() < same)}
        details |= {
            f"right_by_{rule}": float(i % 3 < at) for at, rule in enumerate(("majority", "odds"), 1)
        }
        for k in range(n):
            high = (k > 0) == ranked  # the first sample is wrong
            score = 0.8 if high else 0.2
            details |= {f"right_{k}": float(k > 0), f"total_{k}": score, f"probability_{k}": score}
        methods = [("best_of", {"n": n, "reward": reward, "pick": "best", "seed": 1})]
        found.append(outcome("pocket", f"p{i}", ranked, methods)._replace(details=details))
        found.append(outcome("pocket", f"p{i}", True, [("vote", {"n": n})]))
    return found


def test_a_reward_is_shown_with_what_it_can_tell_apart() -> None:
    found = draw_figure("best_of", BestOf(), scored({"made": 1.0, "shipped": 0.5}, same=0.95))
    rows = {r["reward"]: r for r in found.tables["rewards"]}
    assert rows["made"]["auc"] == 1.0
    assert rows["shipped"]["auc_low"] < 0.5 < rows["shipped"]["auc_high"]
    assert rows["made"]["pairs"] == 180
    assert {(b["reward"], b["low"], b["right"]) for b in found.tables["calibration"]} >= {
        ("made", 0.5, 1.0),
        ("made", 0.1, 0.0),
    }
    said = " ".join(found.findings)
    assert "made ranks a right sample above a wrong one of the same problem in 100%" in said
    assert "so it can tell them apart" in said
    assert "so it can't be shown to tell them apart" in said
    assert (
        "Such samples differ only in the answer, so a reward that looks for errors in the steps"
        in said
    )
    assert found.picture.png.startswith(b"\x89PNG")


def test_rules_are_compared_on_the_same_samples() -> None:
    outcomes = scored({"made": 0.9}, same=0.1)
    tables = BestOf().estimate(outcomes)
    rows = {r["picker"]: r for r in tables["pickers"]}
    best, odds = rows["best by reward"], rows["vote by odds of reward"]
    assert set(rows) == {"best by reward", "vote by odds of reward", "majority vote"}
    assert rows["majority vote"]["accuracy"] == 1.0  # as run, on samples of its own
    right = np.mean([o.correct for o in outcomes if made_up.settings_of(o, "best_of")])
    # The majority of the same samples is right in a third of the attempts, a vote by odds in two
    # thirds.
    assert (best["accuracy"], best["gain"]) == (pytest.approx(right), pytest.approx(right - 1 / 3))
    assert (odds["accuracy"], odds["gain"]) == (pytest.approx(2 / 3), pytest.approx(1 / 3))
    assert "points [+" in BestOf().findings(tables)[0]
    assert "of the same samples" in BestOf().findings(tables)[0]
    assert tables["panels"][0]["rests_on"] == "120 attempts at 60 problems"
    assert BestOf().estimate(random.Random(1).sample(outcomes, len(outcomes))) == tables
    # If votes by odds were run, they are shown as run.
    voted = [by_odds(o) for o in outcomes]
    both = outcomes + [o for o in voted if "right_by_odds" in o.details]
    rows = {r["picker"]: r for r in BestOf().estimate(both)["pickers"]}
    assert rows["vote by odds of reward"]["accuracy"] == pytest.approx(right)


def by_odds(o):
    """The same attempt, as if it had picked by odds."""
    if not made_up.settings_of(o, "best_of"):
        return o
    return o._replace(cell=replace(o.cell, methods=(replace(o.cell.methods[-1], pick="odds"),)))


def test_where_steps_differ_the_figure_says_so() -> None:
    tables = BestOf().estimate(scored({"made": 0.0}, same=0.1))
    said = " ".join(BestOf().findings(tables))
    assert "so it ranks them the wrong way round" in said
    assert "most wrong samples differ from the right ones in their steps" in said
    assert "can't help" not in said


def test_attempts_without_scores_say_nothing_of_the_reward() -> None:
    tables = BestOf().estimate(picked())
    assert (tables["rewards"], tables["calibration"]) == ([], [])
