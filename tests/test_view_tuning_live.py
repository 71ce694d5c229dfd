"""The section on the cheapest setting in a browser: on a phone, sorted, and up to a transcript."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from chromium import Tab, launched, needs_chromium
from playwright.sync_api import Browser, expect
from test_view_live import Opened
from test_view_tuning import tuned
from viewed import fill, served

from ponder.results.report import report
from ponder.results.tuning import Choice

pytestmark = needs_chromium
PATHS = ("/ponder/tuned", "/ponder/long-names")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of two studies, one of them with labels that are longer than a phone is wide, and a
    report.
    """
    folder = tmp_path_factory.mktemp("tuned")
    of = tuned(figure=[{"name": "accuracy"}])
    fill(folder / "ponder.db", of)
    endpoint = {"name": "endpoint", "url": "http://127.0.0.1:9/v1", "id": "provider/model-" * 5}
    models = [{**endpoint, "effort": effort} for effort in ("low", "high")]
    goal = {"goal": "cheapest", "floor": 0.01}
    fill(folder / "ponder.db", tuned("long-names", model=models, problems=40, stop=goal))
    report(of.results(folder / "ponder.db"), folder)
    return folder


@pytest.fixture(scope="module")
def address(folder) -> Iterator[str]:
    with served(folder / "ponder.db") as address:
        yield address


@pytest.fixture(scope="module")
def browser(address) -> Iterator[Browser]:
    del address  # the store is written before the browser starts
    with launched() as browser:
        yield browser


@pytest.fixture(autouse=True)
def _closed(browser: Browser) -> Iterator[None]:
    yield
    for context in browser.contexts:
        context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_cut_on_a_phone(browser, address, scheme) -> None:
    size = {"width": 390, "height": 844}
    for path in PATHS:
        opened = Opened(browser, address + path, viewport=size, is_mobile=True, color_scheme=scheme)
        page = opened.page
        section = page.locator("#tuning")
        expect(section).to_be_visible()
        page.evaluate(
            "document.querySelectorAll('#tuning details').forEach((one) => { one.open = true; })"
        )
        assert opened.sideways() <= 0, path
        wide = """() => [...document.querySelectorAll("#tuning *")].filter((one) =>
            one.offsetParent && one.getBoundingClientRect().right > 390).map((one) => one.outerHTML)"""
        assert page.evaluate(wide) == []
        overflowing = """() => [...document.querySelectorAll(".table:has(.settings), .choice")].filter(
            (one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.outerHTML)"""
        assert page.evaluate(overflowing) == []
        folded = section.locator(".settings td[data-title]").first
        title = folded.evaluate("(one) => getComputedStyle(one, '::before').content")
        assert title == '"accuracy %"'
        assert opened.complaints == []


def test_settings_sort_by_their_values(browser, address) -> None:
    opened = Opened(browser, f"{address}/ponder/tuned")
    first = opened.page.locator(".settings tbody tr td:first-child a").first
    tokens = opened.page.locator(".settings th button").nth(3)
    expect(tokens).to_have_text("tokens")
    expect(first).to_have_text("short")
    tokens.click()
    expect(first).to_have_text("short")  # 711 tokens; as text, 2,121 would come first
    tokens.click()
    expect(first).to_have_text("long")
    assert opened.complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_verdicts_differ_without_colours(browser, address, scheme) -> None:
    page = Opened(browser, f"{address}/ponder/tuned", color_scheme=scheme).page
    expect(page.locator("#tuning")).to_be_visible()
    looks = {}
    for choice in get_args(Choice):
        style = page.evaluate(
            """(name) => {
                const one = document.createElement("span");
                one.className = `choice ${name}`;
                document.querySelector("#tuning").append(one);
                const [style, mark] = [getComputedStyle(one), getComputedStyle(one, "::before")];
                const filled = style.backgroundColor !== "rgba(0, 0, 0, 0)";
                return [mark.content, style.borderTopStyle, filled].join();
            }""",
            choice.replace(" ", "-"),
        )
        assert style not in looks, (choice, looks.get(style))
        looks[style] = choice
    assert len(looks) == len(get_args(Choice))


def test_the_answer_follows_the_run_and_stays_unfolded(browser, tmp_path) -> None:
    path, of = tmp_path / "ponder.db", tuned()
    fill(path, of, of.cells[:1])
    with served(path) as address:
        opened = Opened(browser, f"{address}/ponder/tuned")
        opened.page.clock.install()
        opened.page.reload()
        page = opened.page
        section = page.locator("#tuning")
        expect(section.locator(".state")).to_have_text("so far")
        section.locator("summary", has_text="What the verdicts mean").click()
        fill(path, of, of.cells[1:])
        expect(page.locator(".live .done")).to_contain_text("240")
        page.clock.run_for(10_000)  # figures are estimated anew at most every ten seconds
        expect(section.locator(".state")).to_have_count(0)
        expect(section.locator(".settings tr.chosen")).to_have_count(1)
        expect(section.locator(".meanings")).to_be_visible()
        assert opened.complaints == []


def test_from_a_report_to_both_replies(browser, folder) -> None:
    opened = Tab(browser, (folder / "report.html").as_uri())
    page = opened.page
    page.locator(".places a", has_text="Verdict").click()
    page.locator(".step-up summary").click()
    reader = page.locator("#reader")
    verdicts = (r"The answer is wrong", r"The answer is right")
    for number, verdict in enumerate(verdicts):
        page.locator(".step-up .pairs").first.locator("a").nth(number).click()
        expect(reader.locator(".verdict")).to_have_text(re.compile(verdict))
        reader.locator("[data-close]").click()
    page.locator(".settings a").first.click()
    expect(reader.locator("h1")).to_contain_text("119 attempts")
    assert opened.complaints == []
