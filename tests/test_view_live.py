"""The live page in a browser: from a dot to its transcript, filters, keys, phones, and text that
means harm.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from chromium import PATIENCE, Tab, launched, needs_chromium
from playwright.sync_api import Browser, expect
from viewed import TOKEN, fill, mapped, served, study

from ponder.results.view.server import opening_file

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, of = tmp_path_factory.mktemp("view") / "ponder.db", study(figure=[{"name": "effort"}])
    fill(path, of, of.cells[:-1])
    fill(path, mapped())
    return path


@pytest.fixture(scope="module")
def address(store) -> Iterator[str]:
    with served(store) as address:
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


def admitted(address: str) -> Any:
    """The state of a browser that has opened the printed address."""
    page = urlsplit(address)
    cookie = {"name": f"ponder-{page.port}", "value": TOKEN, "domain": page.hostname, "path": "/"}
    return {"cookies": [cookie]}


class Opened(Tab):
    def __init__(self, browser: Browser, address: str, **context: Any) -> None:
        super().__init__(browser, address, storage_state=admitted(address), **context)

    def chart(self) -> Any:
        chart = self.page.locator("figure.chart svg").first
        expect(chart).to_be_visible()
        expect(self.page.locator("figcaption").first).to_contain_text("Click a mark")
        return chart

    def sideways(self) -> int:
        """How far the page can be scrolled sideways, in pixels."""
        wide: int = self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        return wide


def test_from_home_to_a_study_to_a_dot_to_its_transcript(browser, address) -> None:
    opened = Opened(browser, address)
    page = opened.page
    page.get_by_text("Which is cheaper?").click()
    chart = opened.chart()
    dot = chart.locator(".mark-symbol.role-mark path").first
    label = dot.get_attribute("aria-label")
    assert label
    dot.click(force=True)
    page.wait_for_url(re.compile("/attempts?/?"))
    several = "/attempts" in page.url  # dots lie on each other: a list
    if several:
        page.locator("tr[data-href] a").first.click()
    expect(page.locator(".verdict")).to_be_visible()
    expect(page.locator("body")).to_contain_text("Bill")
    for _ in range(1 + several):
        page.go_back()
    opened.chart()
    assert opened.complaints == []
    assert all(url.startswith(address) for url in opened.requests)


def test_a_filter_redraws_from_fewer_attempts_and_has_an_address(browser, address) -> None:
    opened = Opened(browser, f"{address}/ponder/cheaper")
    page = opened.page
    expect(opened.chart()).to_contain_text("short")
    page.locator("details.facet summary", has_text="model").click()
    page.locator(".menu a", has_text="long").click()
    page.wait_for_url("**/cheaper?model=long")
    expect(opened.chart()).not_to_contain_text("short")
    page.locator("a.chip").click()
    page.wait_for_url(re.compile(r"/cheaper\??$"))
    expect(opened.chart()).to_contain_text("short")
    page.locator("details.estimates summary").nth(2).click()
    page.locator("details.estimates[open] a[aria-label]").first.click()
    expect(page.locator("h1")).to_contain_text("attempts")
    assert opened.complaints == []


def test_a_cell_of_a_heat_map_leads_to_its_attempts(browser, address) -> None:
    opened = Opened(browser, f"{address}/ponder/map")
    cell = opened.chart().locator(".mark-rect.role-mark path").first
    box = cell.bounding_box()
    opened.page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    opened.page.wait_for_url("**/map/attempts?*")
    expect(opened.page.locator("h1")).to_have_text("6 attempts")
    assert len({row.inner_text() for row in opened.page.locator("td.c-model").all()}) == 1
    assert opened.complaints == []


def test_hostile_text_does_nothing(browser, address) -> None:
    opened = Opened(browser, f"{address}/ponder/cheaper/attempt/1")
    expect(opened.page.locator("pre", has_text="␛[31m").first).to_be_visible()
    opened.page.goto(f"{address}/ponder/cheaper/attempts?ended=failed")
    assert "owned" not in opened.page.title()
    assert opened.page.locator("img").count() == 0
    assert opened.complaints == []


def test_keys(browser, address) -> None:
    opened = Opened(browser, f"{address}/ponder/cheaper/attempts?sort=-tokens")
    page = opened.page
    for key in ("j", "j", "k"):
        page.keyboard.press(key)
    expect(page.locator("tr.chosen")).to_have_count(1)
    expect(page.locator("tr[data-href]").first).to_have_class("chosen")
    wanted = page.locator("tr[data-href]").first.get_attribute("data-href")
    page.keyboard.press("Enter")
    page.wait_for_url(f"{address}{wanted}")
    page.keyboard.press("j")
    expect(page.locator(".pages span")).to_contain_text("2 of")
    page.wait_for_load_state()
    page.keyboard.press("?")
    expect(page.locator("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_be_hidden()
    page.keyboard.press("u")
    page.wait_for_url("**/attempts?sort=-tokens")
    page.keyboard.press("/")
    page.keyboard.type("zebra3\n")
    expect(page.locator(".note[role=status]")).to_contain_text("found in the first")
    assert opened.complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_needs_no_sideways_scrolling(browser, address, scheme) -> None:
    size = {"width": 390, "height": 844}
    opened = Opened(browser, address, viewport=size, is_mobile=True, color_scheme=scheme)
    for path in (
        "/",
        "/ponder/cheaper",
        "/ponder/cheaper/attempts?sort=-tokens",
        "/ponder/cheaper/attempt/1",
    ):
        opened.page.goto(address + path)
        if path.endswith("cheaper"):
            assert opened.chart().bounding_box()["width"] <= 390
        assert opened.sideways() <= 0, path
    dark = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert dark == ("rgb(23, 25, 28)" if scheme == "dark" else "rgb(255, 255, 255)")
    assert opened.complaints == []


def test_a_running_study_updates_by_itself(browser, address, store) -> None:
    opened = Opened(browser, f"{address}/ponder/cheaper")
    expect(opened.page.locator(".live .done")).to_contain_text("28 of 36")
    of = study(figure=[{"name": "effort"}])
    fill(store, of, of.cells[-1:])
    expect(opened.page.locator(".live .done")).to_contain_text("33 of 36")
    expect(opened.page.locator(".failures li")).to_have_count(3)
    assert opened.complaints == []


BUSY_RUN = """
window.EventSource = class { constructor() { window.source = this; } close() {} };
window.asked = 0;
const real = window.fetch;
window.fetch = (address) => { window.asked += address.includes("/figures"); return real(address); };
"""
CHANGE = """(n) => source.onmessage({ data: JSON.stringify({ state: "running", asked: 36, answered: 28, ended: {}, failures: [],
    seconds_left: null, version: [n] }) })"""


def test_figures_follow_a_run_that_never_pauses(browser, address) -> None:
    page = browser.new_context(storage_state=admitted(address)).new_page()
    page.set_default_timeout(PATIENCE)
    page.clock.install(time="2026-01-01T12:00:00")
    page.clock.pause_at("2026-01-01T12:00:01")  # from now on, time passes only as the test says
    page.add_init_script(BUSY_RUN)
    page.goto(f"{address}/ponder/cheaper")
    before = page.evaluate("asked")
    counted = page.locator("#by-model td:nth-child(3)").first
    page.evaluate("document.querySelector('#by-model td:nth-child(3)').textContent = 'old'")
    for n in range(60):  # half a minute
        page.evaluate(CHANGE, n)
        page.clock.run_for(500)
    assert page.evaluate("asked") - before == 3
    expect(counted).to_have_text(re.compile(r"\d+"))


def test_charts_can_be_read_on_a_dark_phone(browser, address) -> None:
    page = Opened(browser, f"{address}/ponder/cheaper", color_scheme="dark").page
    spec = {"title": {"text": "B compared with A on the same problems"}, "mark": "point"}
    spec["encoding"] = {
        "color": {"field": "x", "scale": {"scheme": {"name": "viridis", "extent": [0, 0.9]}}}
    }
    themed = page.evaluate("(spec) => ponderTheme(spec, 330, 330)", spec)
    assert len(themed["title"]["text"]) == 2
    assert themed["encoding"]["color"]["scale"]["scheme"]["extent"] == [0.25, 1]


def test_a_long_drawing_shows_its_first_mistake(browser, address) -> None:
    page = Opened(browser, f"{address}/ponder/cheaper").page
    rows = "".join(
        f"<tr><td{' class=wrong' if n in (60, 70) else ''}>{n}</td></tr>" for n in range(90)
    )
    drawing = f"<section class=drawings><div class=table><table class=drawing>{rows}</table></div></section>"
    page.evaluate(
        "(html) => { document.querySelector('main').innerHTML = html; ponderMistake(); }", drawing
    )
    box, wrong = (
        page.locator(one).first.bounding_box() for one in (".drawings .table", "td.wrong")
    )
    assert box["y"] < wrong["y"] < box["y"] + box["height"] - wrong["height"]


def test_a_wrong_token_sees_nothing(browser, store) -> None:
    with served(store) as address:
        opened = Tab(browser, f"{address}/?token=wrong")
        assert "A token is needed" in opened.page.inner_text("body")
        opened.page.goto(f"{address}/?token={TOKEN}")
        expect(opened.page.get_by_text("Which is cheaper?")).to_be_visible()
        assert "token" not in opened.page.url
        assert opened.page.evaluate("document.cookie") == ""  # no script can read it
        opened.page.reload()
        expect(opened.page.get_by_text("Which is cheaper?")).to_be_visible()


def test_the_file_that_is_opened_leads_to_the_page(browser, store) -> None:
    with served(store) as address, opening_file(f"{address}/?token={TOKEN}") as file:
        opened = Tab(browser, file.as_uri())
        expect(opened.page.get_by_text("Which is cheaper?")).to_be_visible()
        assert opened.page.url == f"{address}/"
        opened.page.reload()
        expect(opened.page.get_by_text("Which is cheaper?")).to_be_visible()
        assert not opened.complaints
