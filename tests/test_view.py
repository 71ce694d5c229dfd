"""The live page without a browser: which attempts its pages show."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from viewed import TABLE, cookie, fill, get, mapped, served, study

from ponder import Study
from ponder.core import ENDINGS, Attempt, Bill, Completion, UserError
from ponder.results.charts import Group
from ponder.results.view import pages
from ponder.results.view.app import Rate
from ponder.results.view.pages import transcript
from ponder.results.view.queries import Query, behind, find, search
from ponder.results.view.stores import Index, ViewedStore
from ponder.results.view.studies import ViewedStudy, progress, studies, study_named
from ponder.run.caps import Recorded
from ponder.store.store import Done, Store
from ponder.tasks.tents.drawing import drawings
from ponder.tasks.tents.puzzle import TENT, Puzzle


@pytest.fixture
def viewed(viewed_store) -> Iterator[ViewedStudy]:
    with closing(ViewedStore(viewed_store, "ponder")) as opened:
        found = study_named(opened, "cheaper")
        assert found
        assert not found.error
        yield found


def ids(text: str) -> list[int]:
    return [int(n) for n in re.findall(r'<tr data-href="/ponder/cheaper/attempt/(\d+)', text)]


# Which attempts.


def test_the_study_has_the_attempts_that_it_asks_for(viewed) -> None:
    assert (viewed.asked, viewed.answered, viewed.failed) == (36, 33, 3)
    assert viewed.state == "stopped"


def test_attempts_of_a_smaller_study_are_not_shown(tmp_path) -> None:
    fill(tmp_path / "ponder.db", study())
    fill(
        tmp_path / "ponder.db",
        study("small", problems=2, model=[{"name": "oracle", "label": "short", "budget": 300}]),
    )
    with closing(ViewedStore(tmp_path / "ponder.db", "ponder")) as store:
        sizes = {one.name: len(one.rows) for one in studies(store)}
    assert sizes == {"cheaper": 36, "small": 6}


def test_filters_choose_what_they_say(viewed) -> None:
    def chosen(text: str) -> list[tuple[str, str, int, str]]:
        rows = find(viewed, Query.read(text)).rows
        cells = [viewed.cells[n] for n in viewed.cell_of[rows]]
        ended = [ENDINGS[n] for n in viewed.index.ended[rows]]
        return [(c.label.model, c.label.task, c.size, e) for c, e in zip(cells, ended, strict=True)]

    assert len(chosen("")) == 36
    assert {row[0] for row in chosen("model=long")} == {"long"}
    assert len(chosen("model=long&model=short")) == 36
    assert {row[1:3] for row in chosen("task=tents&size=16")} == {("tents", 16)}
    assert {row[3] for row in chosen("ended=wrong&ended=failed")} == {"wrong", "failed"}
    assert len(chosen("budget=300")) == 18
    assert len(chosen("variant=short&task=tents")) == 12
    keys = ".".join(cell.key.hex()[:8] for cell in viewed.cells[:2])
    assert {row[:3] for row in chosen(f"cells={keys}")} == {
        (cell.label.model, cell.label.task, cell.size) for cell in viewed.cells[:2]
    }
    assert chosen("model=nobody") == []
    for in_vain in ("budget=301", "cells=ffffffff", "ended=wrongly", "problem=x"):
        assert chosen(in_vain) == []
    found = find(
        viewed,
        Query.read(
            "nonsense=1&model=nobody&model=long&size=16&ended=wrongly&ended=right&problem=x"
        ),
    )
    assert found.unknown == ("model=nobody", "ended=wrongly", "problem=x")
    assert (
        chosen("nonsense=1&model=nobody&model=long&size=16") == chosen("model=long&size=16") != []
    )


def test_right_here_and_wrong_there(viewed) -> None:
    for against in ("any", "short"):
        rows = find(viewed, Query.read(f"against={against}&model=long")).rows
        # `long` is right at 0, 2, 4; `short` is wrong at 1, 2, 4.
        assert sorted({int(viewed.index.positions[p]) for p in viewed.index.problem[rows]}) == [
            2,
            4,
        ]
        assert {ENDINGS[n] for n in viewed.index.ended[rows]} == {"right"}


def test_sorting_and_paging(address, viewed, monkeypatch) -> None:
    for column in ("tokens", "seconds", "thinking", "size", "model"):
        up, down = (find(viewed, Query.read(f"sort={sign}{column}")).rows for sign in ("", "-"))
        assert sorted(up) == sorted(down) == sorted(viewed.rows)
    tokens = viewed.index.tokens[find(viewed, Query.read("sort=-tokens")).rows]
    assert (np.diff(tokens) <= 0).all()
    monkeypatch.setattr("ponder.results.view.queries.PAGE", 10)
    pages = [ids(get(address, f"/ponder/cheaper/attempts?page={n}")[2]) for n in (1, 2, 3, 4)]
    assert [len(page) for page in pages] == [10, 10, 10, 6]
    assert len({n for page in pages for n in page}) == 36
    assert ids(get(address, "/ponder/cheaper/attempts?page=99")[2]) == pages[3]


def test_search_reads_thinking_answers_and_reasons(viewed) -> None:
    rows = find(viewed, Query()).rows
    hits, looked = search(viewed, rows, Query(q="ZEBRA3"), 50, 60)
    assert looked == 36
    assert {int(viewed.index.positions[viewed.index.problem[row]]) for row in hits} == {3}
    assert len(search(viewed, rows, Query(q="timeout"), 50, 60)[0]) == 3
    first, looked = search(viewed, rows, Query(q="zebra"), 5, 60)
    rest, _ = search(viewed, rows, Query(q="zebra", start=looked), 50, 60)
    assert not set(first) & set(rest)
    assert len(first + rest) == 30


def test_a_row_of_a_table_leads_to_as_many_attempts_as_it_rests_on(viewed, viewed_store) -> None:
    """Whatever a figure's table calls `attempts`, its address finds."""
    with Store(viewed_store) as opened:
        outcomes = [o for o in opened.outcomes(study().cells) if o.ended != "failed"]
    compared = 0
    for figure in study().figures:
        for name, rows in figure.estimate(outcomes).items():
            for row in rows:
                if row.get("attempts"):
                    assert len(find(viewed, query_of(row)).rows) == row["attempts"], (name, row)
                    compared += 1
    assert compared > 6


def query_of(row) -> Query:
    """What the address of a row asks for."""
    basis = row["basis"]
    return Query.read(
        behind(Group(tuple(cell.key for cell in basis.cells), basis.ended))
        .address()
        .removeprefix("?")
    )


def test_a_cell_of_a_heat_map_leads_to_its_attempts(tmp_path) -> None:
    fill(tmp_path / "ponder.db", mapped())
    with closing(ViewedStore(tmp_path / "ponder.db", "ponder")) as store:
        viewed = study_named(store, "map")
    assert viewed
    with Store(tmp_path / "ponder.db") as opened:
        tables = mapped().figures[0].estimate(list(opened.outcomes(mapped().cells)))
    assert len(tables["cells"]) == 8
    for row in tables["cells"]:
        cells = {
            viewed.cells[n].label.model for n in viewed.cell_of[find(viewed, query_of(row)).rows]
        }
        assert len(cells) == 1, row
        assert all(str(row[name]) in cells.copy().pop() for name in ("window", "ratio"))


def same(one: Index, other: Index) -> bool:
    columns = ("id", "cell", "problem", "ended", "tokens", "milliseconds", "positions")
    reasons = [[index.reasons[n] for n in index.why] for index in (one, other)]
    return (
        all(np.array_equal(getattr(one, c), getattr(other, c)) for c in columns)
        and reasons[0] == reasons[1]
    )


def fresh(path: Path) -> Index:
    with closing(sqlite3.connect(path)) as db:
        return Index().refreshed(db)


def test_the_index_follows_the_store(tmp_path) -> None:
    path, of = tmp_path / "ponder.db", study()
    fill(path, of, of.cells[:2])
    with closing(ViewedStore(path, "ponder")) as store:
        before = store.index
        assert len(before) == 12
        assert store.index is before  # nothing has changed
        fill(path, of)
        with Store(path, lock=True) as opened:  # another grade for attempts that were stored
            changed = (
                d._replace(attempt=replace(d.attempt, ended="wrong", why="x"))
                for d in opened.attempts(of.cells[0])
            )
            opened.regrade(list(changed))
        assert same(store.index, fresh(path))


def test_reserved_tokens_are_not_shown_as_spent(tmp_path) -> None:
    fill(tmp_path / "ponder.db", study())
    with Store(tmp_path / "ponder.db", lock=True) as store:
        store.add([], store.record_study(study()), Recorded(7000, 1.0, 200, 10_000, 2.0))
    with closing(ViewedStore(tmp_path / "ponder.db", "ponder")) as viewed:
        shown = progress(study_named(viewed, "cheaper"))
    assert (shown["tokens"], shown["held_tokens"]) == (8200, 10_000)
    assert (shown["cost"], shown["held_cost"]) == (1.5, 2.0)
    with served(tmp_path / "ponder.db") as address:
        assert "<b>10k</b> reserved" in get(address, "/ponder/cheaper")[2]


def test_an_index_grows_with_what_a_run_adds_and_repeats(tmp_path) -> None:
    path, of = tmp_path / "ponder.db", study()
    fill(path, of, of.cells[:4])
    old = fresh(path)
    with Store(path, lock=True) as opened:
        for cell in of.cells[3:5]:  # one that failed is asked again, and others are new
            problems = list(enumerate(cell.asked()))
            solved = [
                (n, p, Completion("", cell.task.solve(p), "end", Bill(1, 2, 3)))
                for n, p in problems
            ]
            opened.add(
                [Done(cell, n, Attempt(p, 0, "right", "", (c,))) for n, p, c in solved if n > 4]
            )
    with closing(sqlite3.connect(path)) as db:
        grown = old.refreshed(db)
    assert same(grown, fresh(path))
    assert len(grown) > len(old)


def test_a_mark_of_a_filtered_figure_leads_to_attempts_within_the_filter(address) -> None:
    page = get(address, "/ponder/cheaper/figures?model=long&size=16&size=20")[2]
    [groups, *_] = (
        json.loads(unescape(text)) for text in re.findall(r'data-groups="([^"]*)"', page)
    )
    assert groups
    for link in groups.values():
        shown = get(address, link)[2]
        assert 'class="badge' in shown
        assert set(re.findall(r'<td class="c-model">([^<]*)', shown)) == {"long"}


# Pages.


def test_an_attempt_shows_the_puzzle_with_its_mistakes(address, viewed) -> None:
    cell = next(n for n, c in enumerate(viewed.cells) if c.label.model == "long" and c.size == 16)
    rows = {
        int(viewed.index.positions[viewed.index.problem[r]]): r
        for r in viewed.rows[viewed.cell_of[viewed.rows] == cell]
    }
    texts = {
        p: get(address, f"/ponder/cheaper/attempt/{viewed.index.id[row]}")[2]
        for p, row in rows.items()
    }
    assert "The answer is right." in texts[0]
    assert 'class="wrong"' not in texts[0]
    assert "Show the solution" in texts[0]
    assert "does not have the puzzle" in texts[1]
    assert re.search(r'<td class="wrong" title="(touches|no tree|\d tents in)', texts[3])
    assert "of 2,000 tokens" in texts[0]


def test_an_execution_shows_its_turns_and_the_first_slip(address, viewed) -> None:
    cell = next(n for n, c in enumerate(viewed.cells) if c.label.task == "execution")
    row = viewed.rows[viewed.cell_of[viewed.rows] == cell][1]
    _, _, text = get(address, f"/ponder/cheaper/attempt/{viewed.index.id[row]}")
    assert text.count("← first slip") == 1
    assert "the first wrong sum is in turn 1 of 4" in text
    one = transcript(viewed, int(viewed.index.id[row]))
    assert one
    # no reply has a sum
    assert re.search(r'parsed answer</th><td[^>]*><span class="note">none', text)
    assert re.search(
        r"right answer</th><td[^>]*>" + re.escape(json.dumps(one.attempt.problem.gold["sums"])),
        text,
    )
    messages = json.loads(one.request())["messages"]
    assert [m["role"] for m in messages] == ["system", *["user", "assistant"] * 3, "user"]


def test_steps_that_a_reward_scored_are_coloured(tmp_path) -> None:
    path, of = tmp_path / "ponder.db", study()
    cell, problem = of.cells[0], next(iter(of.cells[0].asked()))
    reply = Completion(
        "one <b>\n\ntwo\n\nthree, then",
        "x",
        "end",
        Bill(1, 2, 3),
        step_scores=((7, 0.9), (12, 0.1)),
    )
    with Store(path, lock=True) as opened:
        opened.record_study(of)
        opened.add([Done(cell, 0, Attempt(problem, 0, "wrong", "", (reply,)))])
        (stored,) = opened.attempts(cell)
    assert stored.attempt.completions == (reply,)
    with served(path) as address:
        text = get(address, "/ponder/cheaper/attempt/1")[2]
    shown = text.partition("<summary>Thinking")[2].partition("</pre>")[0].partition("<pre>")[2]
    assert shown == (
        '<span class="step high" title="score 0.90">one &lt;b&gt;</span>\n\n'
        '<span class="step low" title="score 0.10">two</span>\n\nthree, then'
    )


def test_neighbours_are_those_of_the_list(address) -> None:
    listed = ids(get(address, "/ponder/cheaper/attempts?sort=-tokens&ended=wrong")[2])
    _, _, text = get(address, f"/ponder/cheaper/attempt/{listed[1]}?sort=-tokens&ended=wrong")
    assert f'rel="prev" href="/ponder/cheaper/attempt/{listed[0]}?' in text
    assert f'rel="next" href="/ponder/cheaper/attempt/{listed[2]}?' in text


def test_what_is_not_there_is_not_found(address) -> None:
    for path in (
        "/x",
        "/x/y",
        "/ponder/none",
        "/ponder/cheaper/attempt/99999",
        "/-/../app.py",
        "/-/none.js",
    ):
        assert get(address, path)[0] == 404, path


def test_nothing_run_yet(tmp_path) -> None:
    store = tmp_path / "ponder.db"
    with served(store) as address:
        assert "does not exist yet" in get(address)[2]
        of = study()
        fill(store, of, [])
        assert "0</b> of 36 attempts" in get(address)[2]
        assert get(address, "/ponder/cheaper/attempts")[0] == 200
        figures = get(address, "/ponder/cheaper/figures")[2]
        assert figures.count("no attempt has an answer yet") == 2


def test_figures_and_tables_and_their_filters(address) -> None:
    whole = get(address, "/ponder/cheaper/figures")[2]
    part = get(address, "/ponder/cheaper/figures?model=long")[2]
    assert "short, tests" not in part
    assert '"series":"short, tents"' in whole
    assert '"series":"short' not in part
    assert '"attempt":' in whole  # a dot knows its transcript
    rows = get(address, "/ponder/cheaper/table/accuracy/sizes.csv?model=long")[2].splitlines()
    assert rows[0].startswith("series,")
    assert all(row.startswith(("long", '"long')) for row in rows[1:])
    assert get(address, "/ponder/cheaper/table/accuracy/none.csv")[0] == 409


def test_events_tell_of_another_processs_attempts(tmp_path) -> None:
    import urllib.request

    path, of = tmp_path / "ponder.db", study()
    fill(path, of, of.cells[:1])
    with ExitStack() as stack:
        address = stack.enter_context(served(path))
        request = urllib.request.Request(
            f"{address}/ponder/cheaper/live", headers={"Cookie": cookie(address)}
        )
        events = stack.enter_context(urllib.request.urlopen(request, timeout=300))
        first = json.loads(events.readline().decode().removeprefix("data: "))
        assert first["answered"] == 6
        fill(path, of, of.cells[1:2])
        now = first
        while now["answered"] < 12:  # the study is on record before its attempts are
            if (line := events.readline().decode()).startswith("data: "):
                now = json.loads(line.removeprefix("data: "))
    assert now["answered"] == 12
    assert now["tokens"] == 2000


@pytest.mark.parametrize("words", [[], ["--store", "no.db"], ["effort", "--store", "no.db"]])
def test_a_store_that_is_not_there_is_a_users_mistake(ponder, folder, words) -> None:
    result = ponder("view", "--no-open", "--port", "0", *words)
    assert result.exit_code == 2
    store = "no.db" if words else "ponder.db"
    assert (
        f"there is no store {store}\nhint: `ponder run {words[0] if len(words) > 2 else 'STUDY'}"
        in result.stderr
    )
    assert not list(folder.iterdir())


def test_the_pace_of_a_run_and_the_time_left(tmp_path) -> None:
    rate = Rate()
    assert rate.add(0, 100.0) is None
    per_second = rate.add(15, 130.0)
    assert per_second == 0.5
    of = study()
    fill(tmp_path / "ponder.db", of, of.cells[:1])
    with closing(ViewedStore(tmp_path / "ponder.db", "")) as store:
        [viewed] = studies(store)
        now = progress(viewed, per_second)
        unknown = progress(viewed)
    assert (now["asked"], now["answered"]) == (36, 6)
    assert (now["per_minute"], now["seconds_left"]) == (30.0, 60)
    assert (unknown["per_minute"], unknown["seconds_left"]) == (None, None)


def test_a_port_in_use_is_a_users_mistake(address) -> None:
    from ponder.results.view.server import bound

    with pytest.raises(UserError, match="can't serve"):
        bound("127.0.0.1", int(address.rpartition(":")[2]))
    with pytest.raises(UserError, match="--host is an address of this machine"):
        bound("192.0.2.1", 0)  # kept for documentation: nobody has it


def test_two_models_side_by_side(address, viewed) -> None:
    two = pages.chosen_pair(viewed, "", "")
    assert two == ("long", "short")
    assert pages.chosen_pair(viewed, "short", "") == ("short", "long")
    only_long, only_short = pages.disagreements(viewed, two)
    index = viewed.index
    # Per task and size `long` is right at 0, 2, 4 and `short` at 0, 3; `short` failed at 5.
    assert (only_long["total"], only_short["total"]) == (6, 3)
    for kind, right in ((only_long, "a"), (only_short, "b")):
        for row in kind["rows"]:
            assert row["a"]["problem_row"] == row["b"]["problem_row"]
            assert [row[side]["ended"] == "right" for side in "ab"] == [
                right == side for side in "ab"
            ]
        query = Query.read(kind["query"].removeprefix("?"))
        assert len(set(index.problem[find(viewed, query).rows].tolist())) == kind["total"]
    _, _, text = get(address, "/ponder/cheaper/compare?a=short&b=long")
    assert "Only B right" in text
    assert text.count("<option selected>") == 2
    figure = get(address, "/ponder/cheaper/compared?a=long&b=short")[2]
    assert "accuracy, B \\u2212 A" in figure  # the chart is JSON


def test_tents_that_touch_or_stand_alone_are_marked() -> None:
    puzzle = Puzzle.from_id("4x4:_cia,1,1,0,1,1,0,1,1")
    grid = puzzle.solve()
    assert grid
    (right, _) = drawings(puzzle, grid)
    assert not [mark for row in right.rows for mark in row if mark.kind == "wrong"]
    y, x = next((y, x) for y, row in enumerate(grid) for x, cell in enumerate(row) if cell == TENT)
    beside = next(
        (j, i)
        for j in range(4)
        for i in range(4)
        if abs(j - y) <= 1 and abs(i - x) <= 1 and grid[j][i] == 3
    )
    grid[beside[0]][beside[1]] = TENT
    (answer, solution) = drawings(puzzle, grid)
    assert "touches another tent" in answer.rows[y][x].why
    assert "touches another tent" in answer.rows[beside[0]][beside[1]].why
    assert answer.rows[beside[0]][-1].kind == "wrong"
    assert (solution.name, solution.rows[beside[0]][beside[1]].text) == ("solution", "·")


ADAPTIVE = """
problems = 30
stop = { decide = true }
[[task]]
name = "execution"
per_turn = 0
size = [4, 9, 20, 45, 100]
[[model]]
name = "oracle"
critical_size = 25
steepness = 6
budget = 4000
[[figure]]
name = "accuracy"
"""


def test_an_adaptive_run_that_has_answered_its_question_is_complete(write, ponder) -> None:
    write("s.toml", ADAPTIVE)
    assert ponder("run", "s.toml").exit_code == 0
    with closing(ViewedStore(Path("ponder.db"), "ponder")) as store:
        (shown,) = studies(store)
        assert shown.state == "complete"
        assert shown.asked == shown.answered < 150
    write("t.toml", ADAPTIVE)
    ponder("run", "t.toml", "--set", "seed=5", "--set", "max_tokens=5000")
    with closing(ViewedStore(Path("ponder.db"), "ponder")) as store:
        stopped = study_named(store, "t")
        assert stopped.state.startswith("stopped")
        assert stopped.asked == 150


def test_what_an_address_asks_in_vain_is_said(address) -> None:
    page = get(address, "/ponder/cheaper?model=nobody&ended=wrong&q=zebra")[2]
    assert "No attempt of this study has model=nobody." in page
    assert "Left out here: ended=wrong, q=zebra." in page
    listed = get(address, "/ponder/cheaper/attempts?size=16&size=17&ended=nonsense")[2]
    assert "No attempt of this study has size=17, ended=nonsense." in listed
    assert "<h1>0 attempts</h1>" in listed
    assert "No attempt of this study" not in get(address, "/ponder/cheaper?model=long")[2]
    for page in ("/ponder/cheaper", "/ponder/cheaper/attempts"):
        shown = get(address, f"{page}?foo=1&model=long")[2]
        assert "This study can't be filtered by foo; that part of the address is left out." in shown
        assert "No attempt of this study" not in shown


def test_home_names_a_study_that_was_given_and_not_run(viewed_store) -> None:
    given = [Study.load("effort"), study()]
    with served(viewed_store, given=given) as address:
        assert "Not run with this store yet: effort." in get(address)[2]


def test_an_address_that_makes_no_sense_is_a_users_mistake(address) -> None:
    for wrong, told in (
        ("compare?a=long&b=shrt", "did you mean `short`?"),
        ("compared?a=nobody", "known: long, short"),
    ):
        status, _, page = get(address, f"/ponder/cheaper/{wrong}")
        assert (status, told in page) == (409, True), page
    assert "there is no such page" in get(address, "/ponder/cheaper/attempt/zzz")[2]


def test_a_comparison_can_be_downloaded_and_repeated_in_a_terminal(address, viewed_store) -> None:
    page = get(address, "/ponder/cheaper/compare?a=long&b=short")[2]
    assert f"ponder compare cheaper.toml long short --store {viewed_store}</code>" in page
    figure = get(address, "/ponder/cheaper/compared?a=long&b=short")[2]
    assert "/ponder/cheaper/figure/compare.pdf?a=long&amp;b=short" in figure
    (table, *_) = re.findall(r'href="(/ponder/cheaper/table/compare/[^"]*)"', figure)
    status, headers, text = get(address, table.replace("&amp;", "&"))
    assert (status, headers["content-type"]) == (200, "text/csv; charset=utf-8")
    assert len(text.splitlines()) > 1
    assert get(address, table.partition("?")[0])[0] == 409  # the study itself has no such figure


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE attempt SET status = 'x'",
        "UPDATE study SET tokens = 'x'",
        "UPDATE problem SET position = 'x' WHERE id = 1",
    ],
)
def test_a_damaged_store_is_shown_as_damaged_next_to_others(tmp_path, damage) -> None:
    good, bad = tmp_path / "good.db", tmp_path / "bad.db"
    for path in (good, bad):
        fill(path, study())
    with closing(sqlite3.connect(bad)) as db, db:
        db.execute("PRAGMA ignore_check_constraints = ON")
        db.execute(damage)
    with served(good, bad) as address:
        status, _, page = get(address, "/")
    assert status == 200
    assert "Which is cheaper?" in page
    assert "bad.db is damaged" in page
    assert "ponder store check" in page


def test_a_stored_study_of_too_many_cells_is_not_built(tmp_path) -> None:
    path = tmp_path / "ponder.db"
    fill(path, study())
    many = {**TABLE, "task": [{"name": "tents", "size": list(range(4, 1004))}]}
    many["model"] = [{"name": "oracle", "budget": list(range(1, 1001))}]
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE study SET resolved = ?", (json.dumps(many),))
    with served(path) as address:
        status, _, page = get(address, "/")
    assert status == 200
    assert "it has 1,000,000 cells" in page
