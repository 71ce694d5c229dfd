"""The section on the cheapest setting, on the live page and in a report: what it says, and that each
of its links leads to the attempts that it counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from test_report import index, transcripts
from viewed import fill, get, served, study

from ponder import Study
from ponder.results.html_pages import templates
from ponder.results.report import report
from ponder.results.tuning_section import MAX_LISTED
from ponder.results.view import pages
from ponder.results.view.estimates import _estimated, figure_request
from ponder.results.view.stores import ViewedStore
from ponder.results.view.studies import study_named

# `long` is right at even positions and `short` at multiples of three, so of 120 problems `long`
# gains 40 and loses 20. `short` fails at one that neither gets right.
LABELS = ("long", "short")


def tuned(name: str = "tuned", **changes: Any) -> Study:
    table = {
        "task": [{"name": "chain_sum", "size": 4}],
        "problems": 120,
        "model": [{"name": "oracle", "label": n, "budget": 9000 + len(n)} for n in LABELS],
        "figure": [],
        "stop": {"goal": "cheapest", "margin": 0.1},
    }
    return study(name, **table | changes)


@pytest.fixture
def store(tmp_path) -> Path:
    fill(tmp_path / "ponder.db", tuned())
    return tmp_path / "ponder.db"


@pytest.fixture
def address(store) -> Iterator[str]:
    with served(store) as address:
        yield address


def text_of(html: str) -> str:
    """The text of a page as it is read."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split())


def section_of(page: str) -> str:
    found = re.search(r'<section class="tuning".*?</section>', page, re.DOTALL)
    return found[0] if found else ""


def figures(address: str, name: str = "tuned", query: str = "") -> str:
    status, _, page = get(address, f"/ponder/{name}/figures{query}")
    assert status == 200
    return page


def rows_of(section: str) -> dict[str, str]:
    """The rows of the table of settings, by their labels."""
    body = section.partition('<table class="settings')[2].partition("</table>")[0]
    rows = re.findall(r'<tr[^>]*><td data-order="([^"]*)">(.*?)</tr>', body)
    return {unescape(label): row for label, row in rows}


def lists_of(section: str) -> list[tuple[int, list[tuple[str, str]]]]:
    """The lists of problems: how many there are, and the addresses of both replies to each."""
    lists = []
    for part in section.split("<h4>")[1:]:
        if number := re.match(r"(\d+) right only with", part):
            links = re.findall(r'<td data-title="[^"]*"><a href="([^"]*)"', part)
            lists.append((int(number[1]), list(zip(links[::2], links[1::2], strict=True))))
    return lists


def test_the_section_says_what_the_tuning_says(address, store) -> None:
    tuning = tuned().results(store).tuning
    section = section_of(figures(address))
    for sentence in tuning.verdict():
        words = text_of(sentence.replace("`", " "))
        assert words.replace(" ,", ",") in text_of(section).replace(" ,", ",")
    heading, *table = tuning.table()
    assert len(table) == 2
    shown = rows_of(section)
    for label, verdict, *values in table:
        row = text_of(shown[label])
        assert all(value in row for value in (verdict, *values)), (label, row)
    for title in heading:
        assert f">{title}</button>" in section
    assert tuning.chosen
    assert f'class="chosen"><td data-order="{tuning.chosen.label}">' in section
    assert "119 attempts, 1 unparsed, 1 failed and left out" in text_of(shown["short"])
    assert "so far" not in section


def test_a_setting_leads_to_the_attempts_it_counts(address) -> None:
    for label, row in rows_of(section_of(figures(address))).items():
        link = re.search(r'href="([^"]*)"', row)
        counted = re.search(r"(\d+) attempts", text_of(row))
        assert link
        assert counted
        page = get(address, unescape(link[1]))[2]
        assert f"<h1>{counted[1]} attempts</h1>" in page
        assert set(re.findall(r'<td class="c-model">([^<]*)', page)) == {label}


def test_each_problem_that_changes_leads_to_both_transcripts(address) -> None:
    section = section_of(figures(address))
    assert "short → long <span" in section
    (gained, gains), (lost, losses) = lists_of(section)
    assert (gained, len(gains)) == (40, MAX_LISTED)
    assert (lost, len(losses)) == (20, 20)
    assert "The first 20 of 40." in section
    assert get(address, "/ponder/tuned/compare?a=short&b=long")[0] == 200
    assert 'href="/ponder/tuned/compare?a=short&amp;b=long"' in section
    for first, second in (gains[0], gains[-1]):
        replies = [get(address, unescape(link))[2] for link in (first, second)]
        assert "The answer is wrong" in replies[0]
        assert "The answer is right" in replies[1]
        problems = [re.findall(r'<p class="note mono">([^<]*)', reply) for reply in replies]
        assert problems[0] == problems[1]
        for reply, other in ((replies[0], second), (replies[1], first)):  # the keys j and k
            assert re.search(rf'rel="(prev|next)" href="{re.escape(other)}"', reply)
    assert "The answer is right" in get(address, unescape(losses[0][0]))[2]


def test_while_the_run_goes_on_it_is_the_answer_so_far(tmp_path) -> None:
    path, of = tmp_path / "ponder.db", tuned()
    with served(path) as address:
        fill(path, of, [])
        assert section_of(figures(address)) == ""
        fill(path, of, of.cells[:1])
        section = section_of(figures(address))
        assert "so far" in section
        assert "of at most 240 attempts" in section
        assert "no answers yet" in section
        assert "<h3>Deploy" not in section
        fill(path, of, of.cells)
        assert "so far" not in section_of(figures(address))


def test_only_that_goal_has_the_section(tmp_path) -> None:
    path = tmp_path / "ponder.db"
    fill(path, study())
    fill(path, tuned())
    with served(path) as address:
        assert section_of(figures(address, "cheaper")) == ""
        assert section_of(figures(address)) != ""
        assert section_of(figures(address, query="?model=short")) == ""
        assert "chosen among all settings" in get(address, "/ponder/tuned?model=short")[2]
        assert "chosen among all settings" not in get(address, "/ponder/tuned")[2]
        assert section_of(get(address, "/ponder/tuned/compared?a=short&b=long")[2]) == ""


def test_a_study_that_was_tuned_has_it_without_a_goal_in_its_file(tmp_path) -> None:
    path = tmp_path / "ponder.db"
    file = tuned(stop=None, figure=[{"name": "accuracy"}])
    fill(path, file)
    with served(path, given=[file]) as address:
        assert section_of(figures(address)) == ""
        fill(path, tuned())
        assert section_of(figures(address)) != ""
        page = file.results(path).report(tmp_path / "report")
        assert section_of(page.read_text()) != ""
        fill(path, file)
        assert section_of(figures(address)) == ""
        page = file.results(path).report(tmp_path / "report")
        assert section_of(page.read_text()) == ""


def test_a_report_holds_the_transcripts_that_its_section_leads_to(store, tmp_path) -> None:
    results = tuned(figure=[{"name": "accuracy"}]).results(store)
    for megabytes in (2.0, 0.001):
        files, _ = report(results, tmp_path / "report", megabytes)
        page = files[0].read_text()
        section = section_of(page)
        held = set(transcripts(page))
        assert "Adaptive run:" not in page  # the section says it
        links = [link for _, pairs in lists_of(section) for pair in pairs for link in pair]
        assert len(links) == 80
        linked = {int(link.removeprefix("#attempt-")) for link in links}
        if megabytes < 1:
            assert len(held) < 240
            assert held <= linked
        else:
            assert linked <= held
        for row in rows_of(section).values():
            basis = re.search(r'href="#behind-(\w+)"', row)
            counted = re.search(r"(\d+) attempts", text_of(row))
            assert basis
            assert counted
            assert index(page)["groups"][basis[1]]["total"] == int(counted[1])
    files, _ = report(results, tmp_path / "report", 0)
    section = section_of(files[0].read_text())
    assert "href" not in section
    assert [number for number, _ in lists_of(section)] == [40, 20]


def test_a_full_run_is_analysed_and_shown_whole(store) -> None:
    results = tuned().results(store)
    assert not results.tuning.adaptive
    assert len(results.outcomes) == results.tuning.attempts == 240
    [decision] = results.decisions
    assert decision.ended


def test_what_to_deploy_is_text(tmp_path) -> None:
    endpoint = {"name": "endpoint", "url": "http://127.0.0.1:9/v1", "budget": 4096}
    models = [{**endpoint, "id": "<b>m</b>", "effort": effort} for effort in ("low", "high")]
    path, of = (
        tmp_path / "ponder.db",
        tuned(model=models, problems=40, stop={"goal": "cheapest", "floor": 0.01}),
    )
    fill(path, of)
    with served(path) as address:
        section = section_of(figures(address))
    chosen = of.results(path).tuning.chosen
    assert chosen
    titles = re.findall(r"<h4>([^<]*)</h4>\n<pre>", section)
    assert titles == ["POST http://127.0.0.1:9/v1/chat/completions", "LiteLLM", "Python"]
    body, litellm, python = (
        unescape(text) for text in re.findall(r"<pre>(.*?)</pre>", section, re.DOTALL)
    )
    effort = chosen.cells[0].model.effort
    assert json.loads(body) == {
        "model": "<b>m</b>",
        "max_tokens": 4096,
        "reasoning_effort": effort,
    }
    assert f'reasoning_effort: "{effort}"' in litellm
    assert "base_url='http://127.0.0.1:9/v1'" in python
    assert f"reasoning_effort='{effort}'" in python
    assert "<b>m" not in section


def test_a_section_that_fails_does_not_hide_the_figures(store, monkeypatch) -> None:
    def broken(cell: object) -> None:
        raise KeyError(cell)

    monkeypatch.setattr("ponder.results.tuning_section.deploy", broken)
    with closing(ViewedStore(store, "ponder")) as viewed_store:
        viewed = study_named(viewed_store, "tuned")
        assert viewed
        shown = _estimated(figure_request(viewed, None, [{"name": "accuracy"}]))
    assert not shown.figures[0].error
    values = pages.tuning(viewed, shown)
    assert values
    assert values["error"].startswith("KeyError")
    page = templates().get_template("figures.html").render(study=viewed, figures=[], tuning=values)
    assert text_of(section_of(page)).endswith(values["error"])
