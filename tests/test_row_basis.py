"""The attempts behind a row of a figure's table are exactly those that it counts, for every figure."""

from __future__ import annotations

from typing import Any

import pytest

from ponder.core import Basis, Ended, Outcome, plugins
from ponder.results.export import csv_text
from ponder.store.store import Store
from ponder.study.study import StudySpec

STUDY = """
problems = 4
samples = 2
[[task]]
name = "execution"
size = [6, 8, 10, 12]
per_turn = [1, 2]
history_turns = [0, 2]
[[model]]
name = "oracle"
error = [0.05, 0.3]
prices = { input = 1.0, output = 4.0 }
method = [[], [{ name = "budget_force", think = 400 }]]
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory) -> list[Outcome]:
    """Attempts with every ending.

    Each problem has an answer, because figures that pair problems leave others out.
    """
    from click.testing import CliRunner

    from ponder.cli import main

    folder = tmp_path_factory.mktemp("basis")
    (folder / "s.toml").write_text(STUDY)
    store = folder / "ponder.db"
    done = CliRunner().invoke(main, ["run", str(folder / "s.toml"), "--store", str(store)])
    assert done.exit_code == 0, done.output
    with Store(store) as opened:
        stored = list(opened.outcomes(StudySpec.load(str(folder / "s.toml")).cells))
    assert len(stored) == 4 * 2 * 2 * 2 * 2 * 4 * 2
    endings: list[Ended] = ["failed", "unparsed", "truncated", "wrong", "right"]
    changed = []
    for number, outcome in enumerate(stored):
        if outcome.sample == 1:
            outcome = outcome._replace(ended=endings[number % len(endings)])  # noqa: PLW2901
        changed.append(outcome)
    assert {o.ended for o in changed} == set(endings)
    return changed


def selected(outcomes: list[Outcome], basis: Basis) -> list[Outcome]:
    cells = set(basis.cells)
    return [o for o in outcomes if o.cell in cells and (not basis.ended or o.ended in basis.ended)]


def counted(row: dict[str, Any]) -> int | None:
    """How many attempts a row says that it counts."""
    if "attempts_a" in row:
        return row["attempts_a"] + row["attempts_b"]
    return row.get("attempts")


@pytest.mark.parametrize("name", plugins.files("figures"))
def test_a_row_counts_the_attempts_that_its_cells_and_endings_select(
    name: str, outcomes: list[Outcome]
) -> None:
    figure = plugins.load("figures", name)
    tables = figure(**figure.example).estimate(outcomes)
    rows = [(table, row) for table, rows in tables.items() for row in rows if "attempt" not in row]
    assert rows
    for table, row in rows:
        behind = selected(outcomes, row["basis"])
        assert behind, (table, row)
        # without the problems that have fewer samples than n
        if table == "passes" and row["n"] > 1:
            assert len(behind) >= counted(row), row
        elif counted(row) is not None:
            assert len(behind) == counted(row), (table, row)
    assert "basis" not in "".join(csv_text(rows) for rows in tables.values() if rows)


@pytest.mark.parametrize("name", plugins.files("figures"))
def test_the_marks_of_a_chart_carry_the_id_alone(name: str, outcomes: list[Outcome]) -> None:
    from ponder.results.charts import draw_figure
    from ponder.results.report import chart_data

    kind = plugins.load("figures", name)
    drawn = draw_figure(name, kind(**kind.example), outcomes)
    ids = {row["basis"] for rows in chart_data(drawn.spec) for row in rows if "basis" in row}
    assert ids <= drawn.groups.keys()
    assert ids or any("attempt" in row for rows in chart_data(drawn.spec) for row in rows)
    assert all(type(text) is str and len(text) == 10 for text in ids)
