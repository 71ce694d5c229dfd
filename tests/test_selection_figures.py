"""Figures of chosen traces, against counting by hand, SciPy and the intervals of other figures."""

from __future__ import annotations

import itertools
import math
import random

import made_up
import numpy as np
import pytest
from made_up import variants_of
from scipy import stats

from ponder.core import UserError
from ponder.figures.best_of import BestOf
from ponder.figures.selection import Selection
from ponder.results.charts import draw_figure
from ponder.stats.frontier import accuracy_difference, fraction

SIZES = {"pocket-s": 4e4, "pocket-m": 2.5e5, "pocket-l": 1.6e6}


def outcome(model, problem, right, methods=(), *, made=None, sample=0, tokens=90):
    """An attempt by a model: its base's label, and each method of its chain with its settings."""
    return made_up.outcome(
        "tents", model, 8, problem, "right" if right else "wrong",
        methods=methods, made=made or {}, sample=sample, thinking_tokens=tokens, answer_tokens=9, prompt_tokens=50,
    )  # fmt: skip


def student(
    by,
    number,
    skill,
    rng,
    *,
    seeds=(1, 2, 3),
    problems=60,
    spread=0.0,
    made=True,
    tokens=200.0,
    **more,
):
    """Attempts of students trained on traces selected in one way; problems are the harder the later
    they come.
    """
    model, before = more.pop("model", "student"), more.pop("before", ())
    found = []
    for seed in seeds:
        lucky = rng.normal(0, spread) if spread else 0.0
        methods = (*before, ("sft", {"by": by, "number": number, "seed": seed, **more}))
        facts = {"selected": number, "selected_tokens": tokens * number} if made else {}
        if by == "reward" and str(more.get("reward")) in SIZES:
            facts |= {"reward_parameters": SIZES[str(more["reward"])]}
        if made:
            facts |= {"selected_right": 0.9 if by == "reward" else 0.6}
        for i in range(problems):
            right = rng.random() < 1 / (1 + math.exp(-skill - lucky - 2 + 4 * i / problems))
            found.append(outcome(model, f"p{i:02}", right, methods, made=facts))
    return found


def sft(outcome):
    return made_up.settings_of(outcome, "sft")


def bare(model="student", skill=-1.5, problems=60, samples=1, seed=9, methods=()):
    rng = np.random.default_rng(seed)
    chance = [1 / (1 + math.exp(-skill - 2 + 4 * i / problems)) for i in range(problems)]
    return [
        outcome(model, f"p{i:02}", rng.random() < chance[i], methods, sample=s)
        for i in range(problems)
        for s in range(samples)
    ]


def pile(gain=1.5, rewards=("pocket-m",), **more):
    rng = np.random.default_rng(3)
    found = bare(more.get("model", "student"))
    for number, skill in ((100, -0.5), (1000, 0.5)):
        found += student("random", number, skill, rng, **more)
        for k, reward in enumerate(rewards, 1):
            found += student(
                "reward", number, skill + gain * k / len(rewards), rng, reward=reward, **more
            )
    found += student("longest", 100, -0.7, rng, **more)
    return found + student("all", 4000, 1.0, rng, **more)


def test_students_are_drawn_as_counted() -> None:
    outcomes = pile()
    found = draw_figure("selection", Selection(), outcomes)
    assert found.picture.png.startswith(b"\x89PNG")
    rows = {(s["line"], s["number"]): s for s in found.tables["students"]}
    assert next(iter(rows)) == ("untrained", 0)
    assert set(rows) == {("untrained", 0), ("all", 4000), ("longest", 100)} | {
        (line, n) for line in ("random", "reward") for n in (100, 1000)
    }
    data = {v.name: v for v in variants_of(outcomes).variants}
    chosen = data["student + sft by=reward number=100 reward=pocket-m"]
    by_chance = data["student + sft by=random number=100"]
    row = rows["reward", 100]
    right = fraction(chosen, chosen.correct)
    assert [row[f"accuracy{e}"] for e in ("", "_low", "_high")] == [
        right.value,
        right.low,
        right.high,
    ]
    assert (row["seeds"], row["attempts"], row["problems"], row["selected"]) == (3, 180, 60, 100)
    own = [o.correct for o in outcomes if sft(o).get("by") == "reward" and sft(o)["number"] == 100]
    assert row["accuracy"] == pytest.approx(np.mean(own))
    apart = accuracy_difference(chosen, by_chance)
    [gain] = (d for d in found.tables["differences"] if (d["less"], d["number"]) == ("random", 100))
    assert [gain[f"difference{e}"] for e in ("", "_low", "_high")] == [
        apart.value,
        apart.low,
        apart.high,
    ]
    # Baselines with another number of traces: all of them, and none.
    compared = [(d["number"], d["less"], d["less_number"]) for d in found.tables["differences"]]
    assert compared == [
        (100, "untrained", 0), (100, "all", 4000), (100, "longest", 100), (100, "random", 100),
        (1000, "untrained", 0), (1000, "all", 4000), (1000, "random", 1000),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("made_up", "said"),
    [
        ({}, "it beats random (p "),
        (
            {},
            " for 7 comparisons); 90% of the selected traces were right, and 60% of the random ones. Both were trained",
        ),
        ({"gain": -1.5}, "it is worse than random"),
        ({"gain": 0.0}, "it can't be told from random (p = "),
        ({"gain": 0.0}, "); without the variation between trainings the interval would be [−"),
        ({"gain": 0.0}, "], so more problems are needed to tell"),
        ({"gain": 1.0, "spread": 1.3}, "], so more training seeds may tell"),
        ({"made": False}, "Whether both were trained on as many tokens wasn't recorded"),
        ({"seeds": (1,)}, "one training seed doesn't show how much training varies"),
    ],
)
def test_what_is_said_at_the_smallest_number(made_up, said: str) -> None:
    found = Selection().findings(Selection().estimate(pile(**made_up)))
    assert found[0].startswith("tents: reward minus random, paired by problem, ")
    assert said in found[0]


def test_unequal_tokens_are_said() -> None:
    rng = np.random.default_rng(5)
    outcomes = student("random", 100, 0, rng) + student("random", 300, 0, rng)
    outcomes += student("reward", 100, 0, rng, tokens=290.0) + student(
        "reward", 300, 0, rng, tokens=240.0
    )
    [said] = Selection().findings(Selection().estimate(outcomes))
    assert said.endswith(
        "It was trained on 1.20 to 1.45 times the tokens of random, which may explain part."
    )


def test_all_is_the_whole_pool_and_fewer_than_asked_for_is_said() -> None:
    rng = np.random.default_rng(8)
    outcomes = (
        student("reward", 100, 1, rng)
        + student("random", 100, 0, rng)
        + student("right", 100, 1, rng)
    )
    outcomes += [o._replace(made={"selected": 4000}) for o in student("all", 100, 1, rng)]
    for i, o in enumerate(outcomes):
        if sft(o)["by"] == "right":
            outcomes[i] = o._replace(made={"selected": 70 + sft(o)["seed"]})
    tables = Selection().estimate(outcomes)
    assert {s["line"]: s["number"] for s in tables["students"]} == {
        "all": 4000,
        "random": 100,
        "reward": 100,
        "right": 100,
    }
    assert (
        Selection().findings(tables)[-1] == "tents: fewer traces than asked for: right 72 of 100."
    )
    # Where only the untrained student answered, there is nothing to draw.
    outcomes += [made_up.changed(o, task="execution", ended="failed") for o in outcomes] + [
        made_up.changed(o, task="execution") for o in bare()
    ]
    assert [p["panel"] for p in Selection().estimate(outcomes)["panels"]] == ["tents"]


def test_only_seeds_are_pooled() -> None:
    rng = np.random.default_rng(6)
    outcomes = [
        o for rate in (1e-4, 3e-4) for o in student("random", 100, rate * 5000, rng, rate=rate)
    ]
    for size in ("s", "l"):  # a reward's identity, as a study hands it on
        outcomes += student(
            "reward", 100, 1, rng, rate=3e-4, reward={"name": "pocket", "size": size}
        )
    outcomes += bare("teacher", 3) + bare(skill=2, methods=[("dpo", {"seed": 1})])
    trained = ("sft", {"by": "random", "number": 100, "seed": 1, "rate": 1e-4})
    outcomes += bare(skill=5, methods=[trained, ("best_of", {"n": 4, "pick": "best"})])
    tables = Selection().estimate(outcomes)
    lines = {s["line"]: s["seeds"] for s in tables["students"]}
    assert lines == {
        "random, rate 0.0001": 3,
        "random, rate 0.0003": 3,
        "pocket size=l, rate 0.0003": 3,
        "pocket size=s, rate 0.0003": 3,
    }
    assert {d["less"] for d in tables["differences"]} == {"random, rate 0.0003"}


def test_numbers_hang_on_no_order_and_students_stand_apart() -> None:
    outcomes = pile(rewards=tuple(SIZES))
    outcomes += pile(gain=0.3, model="other")
    figure = Selection()
    tables = figure.estimate(outcomes)
    assert figure.estimate(random.Random(1).sample(outcomes, len(outcomes))) == tables
    assert [p["panel"] for p in tables["panels"]] == ["other | tents", "student | tents"]
    figure.draw(tables).to_dict()


def test_failed_attempts_take_their_problem_along() -> None:
    outcomes = pile()
    outcomes[200] = outcomes[200]._replace(ended="failed")
    [panel] = Selection().estimate(outcomes)["panels"]
    assert panel["problems"] == 59
    assert panel["rests_on"].endswith(
        "1 failed and left out, 1 problems that not all answered left out"
    )


def test_a_study_without_chosen_traces_is_told_how_to_have_them() -> None:
    with pytest.raises(UserError, match="no student was trained on selected traces") as error:
        Selection().estimate(bare())
    assert "`sft`" in error.value.hint
    for figure, hint in (
        (Selection(overlay="prm_selection_size"), 'overlay = "prm_selection_samples"'),
        (Selection(overlay_size="prm_selection_samples"), 'overlay_size = "prm_selection_size"'),
        (BestOf(overlay="long2short"), 'overlay = "prm_best_of_n"'),
    ):
        with pytest.raises(UserError, match="has no accuracy by") as error:
            figure.estimate(pile())
        assert error.value.hint == hint


def test_a_second_panel_compares_rewards_by_size() -> None:
    outcomes = pile(rewards=(*SIZES, "a judge"))
    figure = Selection(overlay="prm_selection_samples", overlay_size="prm_selection_size")
    found = draw_figure("selection", figure, outcomes)
    assert found.picture.png.startswith(b"\x89PNG")
    sizes = {
        s["line"]: s["reward_parameters"] for s in found.tables["students"] if s["by"] == "reward"
    }
    assert sizes == {"a judge": None, **SIZES}
    data = {v.name: v for v in variants_of(outcomes).variants}
    large, small = (
        data[f"student + sft by=reward number=100 reward=pocket-{size}"] for size in "ls"
    )
    [row] = (
        d for d in found.tables["differences"] if d["less_by"] == "reward" and d["number"] == 100
    )
    apart = accuracy_difference(large, small)
    ends = [row[f"difference{e}"] for e in ("", "_low", "_high")]
    assert (row["line"], row["less"], ends) == (
        "pocket-l",
        "pocket-s",
        [apart.value, apart.low, apart.high],
    )
    how = "beats" if apart.low > 0 else "can't be told from"
    said = [s for s in found.findings if s.startswith("tents, 100 traces: ")]
    assert said[0].startswith(
        f"tents, 100 traces: the largest reward, pocket-l, {how} the smallest, pocket-s: "
    )
    assert "tents: rewards of unknown size, not drawn by size: a judge." in found.findings
    # One panel by number, one by size for each number of traces, and the published points of both
    # below.
    measured, below = (row["hconcat"] for row in found.spec["vconcat"])
    assert [panel["title"]["subtitle"].split(";")[0] for panel in measured[1:]] == [
        "students of 100 traces",
        "students of 1,000 traces",
    ]
    assert [panel["title"]["text"] for panel in below] == ["MATH500, published"] * 2
    drawn, chance = (
        found.spec["datasets"][c["data"]["name"]] for c in (measured[1], measured[1]["layer"][1])
    )
    assert [s["line"] for s in drawn] == ["pocket-s", "pocket-m", "pocket-l"]
    assert [(s["by"], s["number"]) for s in chance] == [("random", 100)]


def test_without_several_sizes_there_is_one_panel() -> None:
    for outcomes in (pile(), [o for o in pile() if sft(o).get("by") != "reward"]):
        tables = Selection().estimate(outcomes)
        assert not [d for d in tables["differences"] if d["less_by"] == "reward"]
        [row] = Selection().draw(tables).to_dict()["vconcat"]
        assert len(row["hconcat"]) == 1
    # A reward that also matches lengths has the size of the same reward: it is no larger one.
    rng = np.random.default_rng(3)
    outcomes = pile() + student("reward", 100, 1, rng, reward="pocket-m", match_length=True)
    tables = Selection().estimate(outcomes)
    assert {s["line"] for s in tables["students"] if s["by"] == "reward"} == {
        "reward",
        "reward, match length",
    }
    assert len(Selection().draw(tables).to_dict()["vconcat"][0]["hconcat"]) == 1


def test_published_points() -> None:
    found = draw_figure("selection", Selection(overlay="prm_selection_samples"), pile())
    rows = {(r["name"], r["samples"]): r for r in found.tables["published"]}
    assert len(rows) == 6
    assert (rows["ReasonFlux-PRM-7B", 10000]["accuracy"], rows["random", 1000]["from_figure"]) == (
        0.915,
        False,
    )
    names = {
        row: f"{row[0]}, {row[1] / 1000:g}k" if "ReasonFlux" in row[0] else row[0] for row in rows
    }
    said = found.findings[-1]
    assert said.startswith(
        "MATH500, published: 3 of 15 differences are within binomial chance on 500 problems: "
    )
    assert "differ by −1.5 to −1.0 points for the same students" in said
    _agrees(said, [(names[key], r["accuracy"]) for key, r in rows.items()])
    sizes = Selection(overlay_size="prm_selection_size")
    tables = sizes.estimate(pile())
    assert {r["name"]: r["parameters"] for r in tables["published_sizes"]}[
        "Qwen2.5-Math-PRM-72B"
    ] == 72e9
    _agrees(
        sizes.findings(tables)[-1], [(r["name"], r["accuracy"]) for r in tables["published_sizes"]]
    )


def _agrees(said: str, points: list[tuple[str, float]]) -> None:
    """With the pooled z test of two shares of 500, but where two good tests may disagree."""
    for (a, right), (b, other) in itertools.combinations(points, 2):
        pooled = (right + other) / 2
        p_value = 2 * stats.norm.sf(abs(right - other) / math.sqrt(2 * pooled * (1 - pooled) / 500))
        within = f"{a} over {b} (" in said or f"{b} over {a} (" in said
        assert within == (p_value > 0.05) or 0.04 < p_value < 0.07, (a, b, p_value)


STYLES, FAULTS = ("good", "wordy"), ("faults 75 %",)


def two_pools():
    """A pool on which exact scores are worse than random, and two on which the reward pays."""
    rng, found = np.random.default_rng(4), bare()
    facts = {"selected": 30, "selected_tokens": 3e3, "selected_right": 1.0, "selected_sound": 1.0}
    facts |= {"score_low": 1.9991, "score_high": 1.9996, "selected_one_teacher": 0.9}
    by_chance = {**facts, "selected_one_teacher": 0.4, "selected_right": 0.6, "selected_sound": 0.5}

    def add(by, skill, known, number=30, **more):
        made = known | ({"reward_parameters": SIZES[more["reward"]]} if "reward" in more else {})
        found.extend(o._replace(made=made) for o in student(by, number, skill, rng, **more))

    scored = {"reward": "pocket-l", "cut": "task", "threshold": 1.9, "tolerance": 0.1}
    for teachers, number in ((STYLES, 30), (STYLES, 100), (FAULTS, 30), (("faults 50 %",), 30)):
        add("random", 0, by_chance, number, teachers=teachers, rule="top", tolerance=0.0)
        if teachers != STYLES:
            add("reward", 3, facts, teachers=teachers, rule="top", **scored)
            add("right", 1, facts, teachers=teachers, rule="top")
    add("reward", 3, facts, teachers=FAULTS, rule="top", **{**scored, "reward": "pocket-s"})
    for rule, skill in (
        ("filter", 1),
        ("filter_shortest", 2),
        ("per_problem", 1),
        ("match_length", 0),
    ):
        add("reward", skill, facts, teachers=STYLES, rule=rule, **scored)
    add(
        "reward",
        -3,
        facts,
        teachers=STYLES,
        rule="top",
        **{**scored, "tolerance": 0.0, "threshold": None},
    )
    add("right", 1, facts, teachers=STYLES, rule="top")
    add("right", 2, facts, teachers=STYLES, rule="filter_shortest")
    return found


def test_pools_of_traces_stand_apart_and_rules_name_lines() -> None:
    outcomes = two_pools()
    found = draw_figure("selection", Selection(), outcomes)
    names = ["tents | faults 50 %", "tents | faults 75 %", "tents | good, wordy"]
    assert [p["panel"] for p in found.tables["panels"]] == names
    lines = {
        panel: {s["line"] for s in found.tables["students"] if s["panel"] == panel}
        for panel in names
    }
    assert lines[names[0]] == {"untrained", "random", "right", "pocket-l"}
    assert lines[names[1]] == {"untrained", "random", "right", "pocket-l", "pocket-s"}
    assert lines[names[2]] == {"untrained", "random", "right", "right and short"} | {
        f"pocket-l, {rule}"
        for rule in (
            "exact scores",
            "filter",
            "filter + shortest",
            "best per problem",
            "match length",
        )
    }
    # A selection is compared with others from its own pool only.
    own = {(s["panel"], s["line"], s["number"]): s["accuracy"] for s in found.tables["students"]}
    for d in found.tables["differences"]:
        less = (
            own[d["panel"], d["line"], d["number"]] - own[d["panel"], d["less"], d["less_number"]]
        )
        assert d["difference"] == pytest.approx(less)
    baselines = {
        d["less"] for d in found.tables["differences"] if d["line"] == "pocket-l, filter + shortest"
    }
    assert baselines == {"untrained", "random", "right", "right and short"}
    # Only pools with several numbers or sizes have panels by number; all are in the panel by pool,
    # with what they share.
    first, last = (row["hconcat"] for row in found.spec["vconcat"])
    titles = [
        first[0]["vconcat"][0]["title"]["text"],
        first[1]["title"]["text"],
        last[0]["vconcat"][0]["title"]["text"],
    ]
    assert titles == [names[1], "by size of the reward model", names[2]]
    shown = found.spec["datasets"][last[1]["data"]["name"]]
    assert {(s["pool"], s["line"]) for s in shown} == {
        (pool, line)
        for pool, lines in (
            ("faults 50 %", ("random", "right", "pocket-l")),
            ("good, wordy", ("random", "right")),
        )
        for line in lines
    } | {("faults 75 %", line) for line in ("random", "right", "pocket-l")}
    assert {s["number"] for s in shown} == {30}
    figure = Selection()
    tables = figure.estimate(outcomes)
    assert figure.estimate(random.Random(1).sample(outcomes, len(outcomes))) == tables


def test_where_the_reward_loses_it_is_said_why() -> None:
    found = Selection().estimate(two_pools())
    reasons = {p["panel"]: p["reason"] for p in found["panels"]}
    assert reasons == {
        "tents | faults 50 %": "",
        "tents | faults 75 %": "",
        "tents | good, wordy": "pocket-l, exact scores is worse than random with 30 traces: its traces score 1.9991 to "
        "1.9996, so it ranks differences that say nothing, though 100% of them are right, and 90% of them are one "
        "teacher's (random: 40%)",
    }
    told = Selection().findings(found)
    assert f"tents | good, wordy: {reasons['tents | good, wordy']}." in told
    assert "100% were right in every step, and 50% of the random ones" in next(
        s for s in told if "pocket-l minus" in s
    )
    # No reason is made up for a reward that isn't worse, nor from facts that weren't recorded.
    bare_facts = [o._replace(made={"selected": 30}) for o in two_pools()]
    assert not any(p["reason"] for p in Selection().estimate(bare_facts)["panels"])
