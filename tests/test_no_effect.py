"""Settings that a server ignores are found and not drawn twice; those that it obeys are."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up import outcome

from ponder import Study, compare
from ponder.core import Basis, Outcome
from ponder.results.results import Results
from ponder.stats.no_effect import Effect, effect


def simulated(
    rng: np.random.Generator,
    problems: int,
    *,
    ratio: float = 1.0,
    sigma: float = 0.35,
    accuracy: float = 1.0,
    loss: float = 0.0,
    samples: int = 1,
) -> tuple[list[Outcome], list[Outcome]]:
    """Attempts under two settings whose tokens differ by a factor, and whose accuracy by `loss`."""
    settings: tuple[list[Outcome], list[Outcome]] = ([], [])
    for number in range(problems):
        median = 400 * math.exp(0.5 * rng.standard_normal())
        for model, attempts, factor, right in (
            ("first", settings[0], 1.0, accuracy),
            ("second", settings[1], ratio, accuracy - loss),
        ):
            for sample in range(samples):
                tokens = round(median * factor * math.exp(sigma * rng.standard_normal()))
                ended = "right" if rng.random() < right else "wrong"
                attempts.append(
                    outcome(
                        model=model,
                        problem=f"p{number}",
                        sample=sample,
                        ended=ended,
                        thinking_tokens=max(1, tokens),
                        answer_tokens=10,
                    )
                )
    return settings


def shown(runs: int, problems: int, **settings: Any) -> Counter[str]:
    rng = np.random.default_rng(3)
    counts: Counter[str] = Counter()
    for _ in range(runs):
        found = effect(*simulated(rng, problems, **settings))
        assert found is not None
        counts[found.shown] += 1
    return counts


def test_a_setting_that_changes_tokens_by_a_quarter_is_never_taken_for_an_ignored_one() -> None:
    for problems in (40, 100):
        for sigma in (0.2, 0.35, 0.5):
            assert shown(40, problems, ratio=1.25, sigma=sigma)["none"] == 0
            assert shown(40, problems, ratio=0.8, sigma=sigma)["none"] == 0


def test_a_setting_that_loses_accuracy_with_the_same_tokens_is_not_taken_for_an_ignored_one() -> (
    None
):
    assert shown(60, 100, sigma=0.1, accuracy=0.9, loss=0.2)["none"] == 0


def test_an_ignored_setting_is_found_with_enough_attempts() -> None:
    # Rates of 200 runs, one attempt per problem: 0.3 and 0.9 for 40 and 100 problems, sigma 0.2.
    assert shown(40, 100, sigma=0.2)["none"] > 30
    assert 0 < shown(40, 40, sigma=0.2)["none"] < 30
    assert shown(20, 100, sigma=0.35, samples=4)["none"] > 15
    # A difference is found by chance in at most 5 % of runs.
    assert shown(100, 40, accuracy=0.8)["some"] <= 11


def pair_of(*tokens: tuple[int, int], ended: str = "right") -> Effect | None:
    """The effect that attempts with these tokens show, one pair of them per problem."""
    settings = []
    for model in (0, 1):
        attempts = []
        for number, lengths in enumerate(tokens):
            attempts.append(
                outcome(
                    model=f"m{model}",
                    problem=f"p{number}",
                    sample=0,
                    ended=ended,
                    thinking_tokens=lengths[model],
                    answer_tokens=5,
                )
            )
        settings.append(attempts)
    return effect(*settings)


def test_replies_that_are_all_the_same_are_certain() -> None:
    same = [(400 + n, 400 + n) for n in range(5)]
    found = pair_of(*same)
    assert found is not None
    assert (found.shown, found.identical) == ("none", 5)
    # One that differs leaves five problems too few to say.
    found = pair_of(*same[:4], (400, 401))
    assert found is not None
    assert (found.shown, found.identical) == ("open", 0)
    assert pair_of(*same[:4]) is None  # too few for anything
    # Replies cut off at the same budget say nothing.
    assert pair_of(*[(512, 512)] * 40, ended="truncated") is None


def test_thinking_that_is_there_or_not_is_an_effect_whatever_the_tokens() -> None:
    thinks, not_ = simulated(np.random.default_rng(0), 100, sigma=0.01)
    found = effect(thinks, not_)
    assert found is not None
    assert found.shown == "none"
    moved = []
    for one in not_:
        total = one.thinking_tokens + one.answer_tokens
        moved.append(one._replace(thinking_tokens=0, answer_tokens=total))
    found = effect(thinks, moved)
    assert found is not None
    assert found.shown == "some"


def test_more_comparisons_need_more_evidence() -> None:
    settings = simulated(np.random.default_rng(1), 100, sigma=0.2)
    alone = effect(*settings)
    of_many = effect(*settings, comparisons=200)
    assert alone is not None
    assert of_many is not None
    assert (alone.shown, of_many.shown) == ("none", "open")
    assert of_many.ratio.high > alone.ratio.high


# Studies


@pytest.fixture
def study(serve, tmp_path: Path) -> Callable[..., Results]:
    """Run a study of one endpoint, which honours the dial or not."""

    def run(honours: bool, problems: int = 60, **dials: Any) -> Results:
        lengths = {"median": 400, "sigma": 0.15}
        server = serve(lengths=lengths, honours=honours)
        model = {"name": "endpoint", "id": "m", "url": server.url, "provider": "vllm", **dials}
        made = Study(
            task={"name": "chain_sum", "size": 3},
            model=model,
            figure=[{"name": "accuracy"}, {"name": "compare"}],
            problems=problems,
            samples=2,
        )
        return made.run(store=tmp_path / "dials.db", progress=False)

    return run


def drawn_models(results: Results, figure: str = "accuracy") -> set[str]:
    """The models behind the rows of a figure's tables."""
    cells = set()
    for rows in results.estimates(figure).values():
        for row in rows:
            basis = row["basis"]
            assert isinstance(basis, Basis)
            cells |= set(basis.cells)
    return {cell.label.model for cell in cells}  # type: ignore[attr-defined]


def test_an_effort_that_a_server_ignores_is_drawn_once(study, capsys, tmp_path: Path) -> None:
    results = study(honours=False, effort=["low", "high"])
    [note] = results.dial_notes
    assert note.startswith("`effort` has no effect on m: effort=low and effort=high wrote ")
    assert note.endswith("; only effort=low is drawn")
    assert note in capsys.readouterr().err
    assert drawn_models(results) == {"m effort=low"}
    sentence = f"{note}."
    assert results.findings("accuracy")[0] == sentence
    # Attempts, comparisons and exports still have both.
    assert len(results.outcomes) == 2 * 60 * 2
    assert {row["model"] for row in results.summary()} == {"m effort=low", "m effort=high"}
    assert drawn_models(results, "compare") == {"m effort=low", "m effort=high"}
    assert "m effort=high" in repr(compare(results))
    # The page draws one and says why; a filter for the other shows that one.
    page = results.report(tmp_path / "report").read_text("utf-8")
    assert "`effort` has no effect on m: " in page
    high = {cell.key for cell in results.cells if cell.label.model == "m effort=high"}
    tables = results.draw("accuracy", high).tables
    assert tables is not None
    assert any(tables.values())


def test_an_effort_that_a_server_honours_is_drawn_as_two(study, capsys) -> None:
    results = study(honours=True, problems=20, effort=["low", "high"])
    assert results.dial_notes == []
    assert "effect" not in capsys.readouterr().err
    assert drawn_models(results) == {"m effort=low", "m effort=high"}


def test_budgets_beyond_what_a_model_thinks_are_one_and_shorter_ones_are_not(study) -> None:
    results = study(honours=True, think=[100, 5000, 9000], budget=20_000)
    [note] = results.dial_notes
    assert note.startswith("`think` has no effect on m: think=5000 and think=9000 wrote ")
    assert drawn_models(results) == {"m think=100", "m think=5000"}


def test_what_is_not_decided_yet_is_said_and_drawn(study) -> None:
    body = {"chat_template_kwargs": {"enable_thinking": [True, False]}}
    results = study(honours=False, problems=6, body=body)
    [note] = results.dial_notes
    assert note.startswith("no effect of `enable_thinking` on m is seen yet: enable_thinking=True")
    assert note.endswith("; more problems or samples would tell")
    assert drawn_models(results) == {"m enable_thinking=True", "m enable_thinking=False"}


def test_what_is_sampled_is_no_dial(study) -> None:
    results = study(honours=False, body={"top_k": [20, 40]})
    assert results.dial_effects == ()
    assert drawn_models(results) == {"m top_k=20", "m top_k=40"}


def test_a_figure_that_names_an_ignored_setting_gets_it(study) -> None:
    results = study(honours=False, effort=["low", "high"])
    named = Study(
        **{
            key: value
            for key, value in results.study.resolved().items()
            if key not in ("figure", "name")
        },
        figure={"name": "frontier", "reference": "m effort=high"},
    ).results(results.store)
    assert drawn_models(named, "frontier") == {"m effort=low", "m effort=high"}


def test_run_and_report_say_so(serve, write, ponder) -> None:
    server = serve(lengths={"median": 400, "sigma": 0.15})
    write(
        "s.toml",
        f"""
problems = 60
samples = 2
[[task]]
name = "chain_sum"
size = 3
[[model]]
name = "endpoint"
id = "m"
url = "{server.url}"
effort = ["low", "high"]
[[figure]]
name = "accuracy"
""",
    )
    ran = ponder("run", "s.toml")
    assert "`effort` has no effect on m: " in ran.stderr
    reported = ponder("report", "s.toml", "--json")
    assert "`effort` has no effect on m: " in reported.stderr
    csv = next(file for file in json.loads(reported.stdout)["files"] if file.endswith(".csv"))
    assert "effort=high" not in Path(csv).read_text("utf-8")


def test_a_run_without_dials_loads_nothing_that_tests_or_draws(folder) -> None:
    """NumPy and Jinja take 15 MB and a quarter of a second."""
    program = """
import sys
from ponder.cli import main
sys.argv = ["ponder", "run", "s.toml"]
try:
    main()
except SystemExit as end:
    assert not end.code
assert not {"numpy", "jinja2", "altair"} & sys.modules.keys()
"""
    table = '[[task]]\nname = "chain_sum"\nsize = 2\n[[model]]\nname = "oracle"\n'
    (folder / "s.toml").write_text(f"problems = 2\n{table}")
    subprocess.run([sys.executable, "-c", program], check=True)
