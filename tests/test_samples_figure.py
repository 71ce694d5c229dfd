"""pass@k and maj@k from stored samples: which answers vote together, and the figure that counts
them.
"""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from pathlib import Path

import made_up
import numpy as np
import pytest

from ponder import Study
from ponder.core.capabilities import equal_answers
from ponder.figures.samples import Samples
from ponder.results.charts import draw_figure
from ponder.store.outcomes import with_ballots
from ponder.store.store import Store
from ponder.tasks.chain_sum import ChainSum
from ponder.tasks.math500 import Math500

HALF = [
    *("\\boxed{\\frac12}", "\\boxed{0.5}", "\\boxed{2}", "\\boxed{\\sqrt{4}}", "", "\\boxed{3}")
]


def outcome(
    model, problem, sample, right, ballot=None, *, ended="", tokens=100, task="math500", size=0
):
    details = {} if ballot is None else {"ballot": ballot}
    return made_up.outcome(
        task, model, size, problem, ended or ("right" if right else "wrong"),
        sample=sample, details=details, thinking_tokens=tokens - 9, answer_tokens=9, counted_by="server",
    )  # fmt: skip


def sampled(problems=12, samples=6, model="qwq", seed=1):
    """Samples with a right answer, two wrong ones, and some that don't vote."""
    rng = random.Random(seed)
    drawn = []
    for p, s in itertools.product(range(problems), range(samples)):
        vote = rng.choice([0, 0, 1, 1, 2, None])
        ended = "" if vote is not None else rng.choice(["unparsed", "truncated"])
        drawn.append(
            outcome(model, f"p{p:02}", s, vote == 0, vote, ended=ended, tokens=100 + 10 * p)
        )
    return drawn


def by_counting(votes, k):
    """How often a right answer wins, and is there at all, over all subsets of k."""
    won, there, subsets = 0.0, 0, list(itertools.combinations(votes, k))
    for subset in subsets:
        count = Counter(vote for vote in subset if vote is not None)
        there += 0 in count
        if count and count[0] == max(count.values()):
            won += 1 / sum(n == count[0] for n in count.values())
    return there / len(subsets), won / len(subsets)


def test_the_figure_counts_every_subset_of_the_samples() -> None:
    outcomes = sampled()
    drawn = draw_figure("samples", Samples(), random.Random(2).sample(outcomes, len(outcomes)))
    assert drawn.picture.png.startswith(b"\x89PNG")
    rows = {r["k"]: r for r in drawn.tables["samples"]}
    assert list(rows) == [1, 2, 4, 6]
    votes = [
        [o.details.get("ballot") for o in outcomes if o.problem == f"p{p:02}"] for p in range(12)
    ]
    for k, row in rows.items():
        passed, voted = np.mean([by_counting(own, k) for own in votes], axis=0)
        assert (row["pass_at_k"], row["maj_at_k"]) == pytest.approx((passed, voted))
        assert row["tokens"] == pytest.approx(k * 155)
        assert row["maj_at_k_low"] < row["maj_at_k"] < row["maj_at_k_high"]
        assert (row["samples"], row["problems"]) == (72, 12)
    (said,) = drawn.findings
    assert said.startswith(f"math500: qwq: pass@1 {rows[1]['pass_at_k']:.1%} [")
    assert f"; of 6 samples pass@6 {rows[6]['pass_at_k']:.1%} [" in said
    assert f" and maj@6 {rows[6]['maj_at_k']:.1%} [" in said
    assert said.endswith("] output tokens per problem.")


def test_problems_with_fewer_samples_leave_as_k_grows() -> None:
    outcomes = [o for o in sampled() if o.problem > "p02" or o.sample < 3]
    failed = [outcome("qwq", "p00", 5, right=False, ended="failed")]
    tables = Samples().estimate(outcomes + failed)
    assert [(r["k"], r["problems"]) for r in tables["samples"]] == [
        (1, 12),
        (2, 12),
        (4, 9),
        (6, 9),
    ]
    assert (
        Samples().findings(tables)[0].endswith("on the 9 of 12 problems that have so many samples.")
    )
    assert tables["panels"][0]["rests_on"].endswith("1 failed and left out")


def test_each_model_has_a_line_and_each_task_a_panel() -> None:
    outcomes = sampled() + sampled(model="r1", seed=3)
    outcomes += [made_up.changed(o, task="aime24") for o in sampled(model="r1", samples=1)]
    drawn = draw_figure("samples", Samples(against="tokens"), outcomes)
    assert [p["panel"] for p in drawn.tables["panels"]] == ["math500", "aime24"]
    assert Counter(r["model"] for r in drawn.tables["samples"]) == {"qwq": 4, "r1": 5}
    assert drawn.findings[-1].endswith(
        "; pass@k and maj@k need `samples = 2` or more in the study."
    )
    title = drawn.spec["concat"][0]["layer"][1]["encoding"]["x"]["title"]
    assert title == "output tokens (thinking + answer) per problem (log scale)"


def test_without_ballots_there_is_no_majority_and_without_answers_it_is_wrong() -> None:
    turns = [o._replace(details={}) for o in sampled()]
    tables = Samples().estimate(turns)
    assert [r["maj_at_k"] is None for r in tables["samples"]] == [False, True, True, True]
    assert "no majority vote" in Samples().findings(tables)[0]
    assert draw_figure("samples", Samples(), turns).picture.png
    cut = [
        outcome("qwq", f"p{p}", s, right=False, ended="truncated")
        for p in range(3)
        for s in range(4)
    ]
    assert [r["maj_at_k"] for r in Samples().estimate(cut)["samples"]] == [0, 0, 0]
    assert draw_figure("samples", Samples(), cut).picture.png


def test_answers_that_are_equal_as_mathematics_vote_together() -> None:
    pytest.importorskip("math_verify")
    answers = ["\\frac{1}{2}", None, "0.5", "2", "\\sqrt{4}", "x = 2", "3"]
    assert equal_answers(Math500(file=Path(Math500.example["file"])), answers) == [
        0,
        None,
        0,
        3,
        3,
        3,
        6,
    ]
    assert equal_answers(ChainSum(), ["0.5", "1/2", "0.5"]) == [0, 1, 0]


@pytest.fixture
def stored(write) -> Study:
    """Two problems, six samples of each."""
    pytest.importorskip("math_verify")
    rows = [
        {"problem": "Half of 1?", "answer": "\\frac12"},
        {"problem": "The root of 4?", "answer": "2"},
    ]
    write("a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    replies = [
        {"problem": problem.id, "sample": s, "answer": text, "answer_tokens": 7}
        for problem in Math500(file=Path("a.jsonl")).problems(0, 0)
        for s, text in enumerate(HALF)
    ]
    replies[5]["stop"] = "length"
    write("r.jsonl", "".join(json.dumps(reply) + "\n" for reply in replies))
    replay = {"name": "replay", "file": "r.jsonl"}
    return Study(
        task=[{"name": "math500", "file": "a.jsonl"}],
        model=[replay],
        samples=6,
        figure=[{"name": "samples"}],
    )


def test_stored_samples_are_read_again_for_a_vote(stored, ponder, write) -> None:
    write("s.toml", 'samples = 6\n[[task]]\nname = "math500"\nfile = "a.jsonl"\n[[model]]\nname = "replay"\nfile = "r.jsonl"\n[[figure]]\nname = "samples"\n')  # fmt: skip
    assert ponder("run", "s.toml").exit_code == 0
    with Store(stored.folder / "ponder.db") as store:
        outcomes = with_ballots(store, stored.cells)
        plain = list(store.outcomes(stored.cells))
    votes = {p: [o.details.get("ballot") for o in outcomes if o.problem == p] for p in dict.fromkeys(o.problem for o in outcomes)}  # fmt: skip
    # ½ is right in the first, 2 in the second; the fifth says nothing, and the first problem's last
    # sample is truncated.
    assert list(votes.values()) == [[0, 0, 2, 2, None, None], [2, 2, 0, 0, None, 4]]
    assert [o._replace(details={}) for o in outcomes] == [o._replace(details={}) for o in plain]
    assert not any("ballot" in o.details for o in plain)
    assert ponder("report", "s.toml").exit_code == 0
    table = (stored.folder / "reports" / "s" / "samples-samples.csv").read_text().splitlines()
    assert [line.split(",")[2] for line in table[1:]] == ["1", "2", "4", "6"]
    last = dict(zip(table[0].split(","), table[-1].split(","), strict=True))
    assert (float(last["pass_at_k"]), float(last["maj_at_k"])) == (1.0, 0.5)  # two ties
