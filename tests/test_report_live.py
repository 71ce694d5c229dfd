"""Pages in a browser: live charts under the page's own policy, with tooltips, zoom and legends, and
nothing else runs.

These are apart from the other tests of the report: Playwright runs an event loop that a study's run
can't share.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import altair as alt
import pytest
from chromium import Tab, launched, needs_chromium
from everyday import CHARTS, EVIL, write_reports
from playwright.sync_api import Browser, expect

import ponder as package
from ponder.results.charts import draw
from ponder.results.html_pages import document
from ponder.results.notebook import renderer

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reports")
    write_reports(folder)
    return folder


@pytest.fixture(scope="module")
def browser(reports: Path) -> Iterator[Browser]:
    del reports  # is written before the browser starts
    with launched() as browser:
        yield browser


@pytest.fixture(autouse=True)
def _closed(browser: Browser) -> Iterator[None]:
    yield
    for context in browser.contexts:
        context.close()


class Opened(Tab):
    def __init__(self, browser: Browser, path: Path, init: str = "", **context: Any) -> None:
        super().__init__(browser, path.resolve().as_uri(), init, **context)

    def live(self) -> Any:
        """The charts, once each of them has been drawn."""
        charts = self.page.locator("figure.chart")
        expect(charts.locator("svg")).to_have_count(charts.count())
        return charts

    def hover(self, mark: Any) -> Any:
        """Point at a mark, and return its tooltip."""
        mark.scroll_into_view_if_needed()
        box = mark.bounding_box()
        self.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, steps=4)
        return self.page.locator("#vg-tooltip-element.visible")


def axis_labels(chart: Any) -> list[str]:
    return sorted(chart.locator(".role-axis-label text").all_text_contents())


def test_everyday_charts_are_live(reports, browser) -> None:
    opened = Opened(browser, reports / "reports/everyday/report.html")
    charts = opened.live()
    assert opened.complaints == []
    assert charts.count() == len(CHARTS)
    captions = dict(zip(CHARTS, charts.locator("figcaption").all_text_contents(), strict=True))
    zoomed = {kind for kind, caption in captions.items() if "zoom" in caption}
    highlighted = {kind for kind, caption in captions.items() if "legend" in caption}
    assert zoomed == {
        "scatter",
        "logarithmic",
        "lines",
        "area",
        "facet",
        "repeat",
        "concat",
        "layered",
        "text",
        "regression",
    }
    assert highlighted == {"bar", "scatter", "lines", "area", "facet", "layered", "pie"}
    for kind, mark in (
        ("bar", "rect"),
        ("heatmap", "rect"),
        ("scatter", "symbol"),
        ("layered", "symbol"),
    ):
        chart = charts.nth(list(CHARTS).index(kind))
        expect(opened.hover(chart.locator(f".mark-{mark}.role-mark path").first)).to_contain_text(
            "b"
        )
    assert opened.complaints == []


def test_a_live_chart_looks_like_its_picture(reports, browser) -> None:
    """Interaction adds nothing that is seen before the first click: same size, same marks, same
    opacity.
    """
    page = reports / "reports/everyday/report.html"
    charts = Opened(browser, page).live()
    for number, kind in enumerate(CHARTS):
        svg = (page.parent / f"everyday{f'-{number + 1}' if number else ''}.svg").read_text()
        live = charts.nth(number).locator("svg").evaluate("element => element.outerHTML")
        for counted in (
            'aria-roledescription="point"',
            'aria-roledescription="bar"',
            'opacity="0.7"',
            'opacity="0.3"',
        ):
            assert live.count(counted) == svg.count(counted), (kind, counted)


def test_tooltip_zoom_and_legend(reports, browser) -> None:
    opened = Opened(browser, reports / "reports/s/report.html")
    effort = opened.live().first
    assert opened.requests == [(reports / "reports/s/report.html").resolve().as_uri()]
    point = effort.locator(".mark-symbol.role-mark path").last
    expect(opened.hover(point)).to_contain_text("tokens")
    expect(opened.hover(point)).to_be_visible()

    before, scrolled = axis_labels(effort), opened.page.evaluate("scrollY")
    opened.page.mouse.wheel(0, 50)  # the wheel alone scrolls the page
    opened.until(lambda: opened.page.evaluate("scrollY") == scrolled + 50)
    opened.settle()
    assert axis_labels(effort) == before
    opened.hover(point)
    opened.page.keyboard.down("Control")
    opened.page.mouse.wheel(0, -300)
    opened.page.keyboard.up("Control")
    opened.until(lambda: axis_labels(effort) != before)
    box = effort.locator("svg").bounding_box()
    opened.page.mouse.dblclick(box["x"] + box["width"] / 4, box["y"] + box["height"] / 2)
    opened.until(lambda: axis_labels(effort) == before)

    def faded() -> int:
        opacities = effort.locator(".role-mark path").evaluate_all(
            "all => all.map(e => +e.getAttribute('opacity'))"
        )
        return sum(0 < opacity < 0.12 for opacity in opacities)

    entry = effort.locator(".role-legend-label text").filter(has_text="solved").first
    assert faded() == 0
    entry.click()
    opened.until(lambda: faded() > 0)
    entry.click()
    opened.until(lambda: faded() == 0)
    assert opened.complaints == []


def test_without_javascript_the_pictures_are_there(reports, browser) -> None:
    page = Opened(browser, reports / "reports/s/report.html", java_script_enabled=False).page
    pictures = page.locator("figure.chart img")
    assert pictures.count() == 2
    assert all(pictures.nth(n).bounding_box()["height"] > 200 for n in range(2))
    assert page.locator("figure.chart svg").count() == 0


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_never_scrolls_sideways(reports, browser, width) -> None:
    for study in ("s", "everyday"):
        opened = Opened(browser, reports / f"reports/{study}/report.html")
        opened.page.set_viewport_size({"width": width, "height": 844})
        opened.live()
        opened.page.wait_for_function(f"innerWidth === {width}")
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize(
    ("change", "tries"),
    [({"mark": "nothing"}, 2), ({"data": {"url": "data.json"}}, 0)],
    ids=["no such mark", "data from elsewhere"],
)
def test_a_chart_that_fails_leaves_its_picture(tmp_path, browser, change, tries) -> None:
    good = {
        "data": {"values": [{"a": 1}]},
        "mark": "point",
        "encoding": {"x": {"field": "a", "type": "quantitative"}},
    }
    fine = document("chart.html", title="x", chart=draw("x", good))
    bad = document("chart.html", title="x", chart=draw("x", good)._replace(spec=good | change))
    figure = bad[bad.index("<figure") : bad.index("</figure>")]
    (tmp_path / "x.html").write_text(fine.replace("<figure", f"{figure}</figure>\n<figure", 1))
    opened = Opened(browser, tmp_path / "x.html")
    first, second = opened.page.locator("figure").nth(0), opened.page.locator("figure").nth(1)
    expect(second.locator("svg")).to_have_count(1)
    opened.until(lambda: len(opened.complaints) >= tries)
    opened.settle()
    assert len(opened.complaints) == tries
    assert (first.locator("img").count(), first.locator("svg").count()) == (1, 0)
    assert len(opened.requests) == 1


def test_a_chart_that_can_not_be_made_interactive_is_drawn_as_it_is(tmp_path, browser) -> None:
    spec = {
        "data": {"values": [{"a": 1, "b": 2}]}, "mark": "point", "params": [{"name": "zoom_0", "value": 5}],
        "encoding": {"x": {"field": "a", "type": "quantitative"}, "y": {"field": "b", "type": "quantitative"}},
    }  # fmt: skip
    (tmp_path / "x.html").write_text(document("chart.html", title="x", chart=draw("x", spec)))
    opened = Opened(browser, tmp_path / "x.html")
    assert opened.live().locator(".mark-symbol path").count() == 1
    assert opened.page.locator("figcaption").text_content() == ""


def test_a_hostile_page_runs_nothing_but_vega(reports, browser) -> None:
    opened = Opened(browser, reports / "reports/evil/report.html")
    chart = opened.live()
    assert opened.page.title() == "t"
    assert opened.page.locator("img:visible").count() == 0
    # the label, as text in the legend
    assert "</script><script>document.title" in chart.text_content()
    opened.page.locator("#held a").click()
    for number in (0, 1):
        opened.page.locator("#reader tr[data-href] a").nth(number).click()
        expect(opened.page.locator("#reader .message.answer pre")).to_contain_text(
            "</pre></script>" if not number else "zzz"
        )
        opened.page.locator("#reader [data-back]").click()
    assert opened.page.title() == "t"
    assert opened.page.locator("#reader img").count() == 0
    assert opened.complaints == []


def test_the_policy_stops_what_the_escaping_would_let_through(reports, browser, tmp_path) -> None:
    page = (reports / "reports/s/report.html").read_text()
    bad = "<script>document.title='broken'</script><img src=x onerror=\"document.title='broken'\"><style>h1{color:red}</style>"
    (tmp_path / "bad.html").write_text(
        page.replace("<h1>", f"{bad}<p style='color:red' id=styled>x</p><h1>", 1)
    )
    opened = Opened(browser, tmp_path / "bad.html")
    opened.live()
    assert opened.page.title() == "Does <b>it</b> break?"
    assert (
        opened.page.evaluate("() => fetch('data:,x').then(() => 'loaded', () => 'refused')")
        == "refused"
    )
    colour = "id => getComputedStyle(document.querySelector(id)).color"
    assert opened.page.evaluate(colour, "#styled") != "rgb(255, 0, 0)"
    assert opened.page.evaluate(colour, "h1") != "rgb(255, 0, 0)"
    assert "unsafe" not in opened.page.locator("meta[http-equiv]").get_attribute("content")
    opened.until(
        lambda: len([said for said in opened.complaints if "Content Security Policy" in said]) >= 4
    )


def test_the_policy_holds_inside_a_transcript(reports, browser, tmp_path) -> None:
    page = (reports / "reports/s/report.html").read_text()
    bad = "<p>here</p><ul class='same'></ul><script>document.title='broken'</script><img src=x onerror=\"document.title='broken'\">"
    block = base64.b64encode(
        zlib.compress(json.dumps(dict.fromkeys(range(1, 61), bad)).encode())
    ).decode()
    path = tmp_path / "bad.html"
    path.write_text(re.sub(r'(class="texts">)[^<]*', rf"\1{block}", page))
    opened = Opened(browser, path)
    opened.page.goto(f"{path.as_uri()}#attempt-7")
    expect(opened.page.locator("#reader p", has_text="here")).to_be_visible()
    opened.until(lambda: any("Content Security Policy" in said for said in opened.complaints))
    opened.page.wait_for_function("document.querySelector('#reader img').complete")
    opened.settle()
    assert opened.page.title() == "Does <b>it</b> break?"


def test_from_a_dot_to_its_transcript_inside_the_file(reports, browser) -> None:
    opened = Opened(browser, reports / "reports/s/report.html")
    page, effort = opened.page, opened.live().first
    expect(effort.locator("figcaption")).to_contain_text("Click a mark")
    dot = effort.locator(".mark-symbol.role-mark path[aria-label]").last
    label = dot.get_attribute("aria-label")
    dot.click(force=True)
    reader = page.locator("#reader")
    expect(reader).to_be_visible()
    if "#near" in page.evaluate("location.hash"):  # dots lie on each other: a list
        reader.locator("tr[data-href] a").last.click()
    expect(reader.locator(".verdict")).to_be_visible()
    size = re.search(r"problem size \(terms\): (\d+)", label)
    assert size
    expect(reader.locator("h1")).to_contain_text(f"chain_sum, size {size[1]} another")
    expect(reader.locator(".same .here")).to_have_count(1)
    page.keyboard.press("Escape")
    expect(page).to_have_url(re.compile("#page$"))  # set a moment after the dialog is gone
    expect(reader).to_be_hidden()
    page.go_back()
    expect(reader.locator(".verdict")).to_be_visible()
    page.keyboard.press("Escape")
    assert opened.complaints == []
    assert len(set(opened.requests)) == 1  # the file itself


def test_a_mark_and_a_table_row_open_the_attempts_behind_them(reports, browser) -> None:
    opened = Opened(browser, reports / "reports/s/report.html")
    page, reader = opened.page, opened.page.locator("#reader")
    accuracy = opened.live().nth(1)
    accuracy.scroll_into_view_if_needed()
    box = accuracy.locator(".mark-symbol.role-mark path").last.bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(reader.locator("h1")).to_contain_text("6 attempts")
    expect(reader.locator("tr[data-href]")).to_have_count(6)
    for key in ("j", "j", "Enter"):
        page.keyboard.press(key)
    expect(reader.locator(".pages")).to_contain_text("2 of 6")
    page.keyboard.press("k")
    expect(reader.locator(".pages")).to_contain_text("1 of 6")
    reader.locator("[data-close]").click()
    page.locator("details.estimates summary", has_text="attempts").first.click()
    page.locator("details.estimates[open] a").first.click()
    expect(reader.locator(".verdict")).to_be_visible()
    reader.locator("[data-close]").click()
    page.get_by_text("longest wrong").first.click()
    expect(reader.locator("h1")).to_contain_text("longest wrong")
    tokens = [int(n.replace(",", "")) for n in reader.locator(".number").all_text_contents()]
    assert tokens == sorted(tokens, reverse=True)
    assert set(reader.locator(".badge").all_text_contents()) <= {"wrong", "unparsed", "truncated"}
    assert opened.complaints == []


def test_a_browser_that_cannot_unpack_says_so(reports, browser, tmp_path) -> None:
    path = reports / "reports/s/report.html"
    opened = Opened(browser, path, init="delete window.DecompressionStream")
    opened.page.goto(f"{path.as_uri()}#attempt-7")
    expect(opened.page.locator("#reader")).to_contain_text("it lacks DecompressionStream")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_gets_narrower_charts_with_text_of_the_same_size(reports, browser, scheme) -> None:
    opened = Opened(
        browser,
        reports / "reports/s/report.html",
        color_scheme=scheme,
        viewport={"width": 390, "height": 844},
    )
    for chart in opened.live().all():
        svg = chart.locator("svg")
        drawn = [float(n) for n in svg.get_attribute("viewBox").split()]
        assert svg.bounding_box()["width"] >= 0.93 * drawn[2]  # not shrunken
        assert svg.bounding_box()["width"] <= 390
    background = "getComputedStyle(document.body).backgroundColor"
    assert opened.page.evaluate(background) == (
        "rgb(23, 25, 28)" if scheme == "dark" else "rgb(255, 255, 255)"
    )
    ink = opened.page.locator(".role-axis-label text").first.get_attribute("fill")
    assert (ink == "#c3c8cd") == (scheme == "dark")
    opened.page.goto(f"{(reports / 'reports/s/report.html').as_uri()}#attempt-7")
    expect(opened.page.locator("#reader .verdict")).to_be_visible()
    wide = "document.querySelector('#reader').scrollWidth"
    assert opened.page.evaluate(wide) <= 390
    assert opened.complaints == []


def test_paper_gets_the_pictures_in_dark_ink(reports, browser) -> None:
    opened = Opened(browser, reports / "reports/s/report.html", color_scheme="dark")
    opened.live()
    opened.page.emulate_media(media="print", color_scheme="dark")
    expect(opened.page.locator("figure.chart img:visible")).to_have_count(2)
    expect(opened.page.locator("figure.chart svg:visible")).to_have_count(0)
    assert (
        opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
        == "rgb(255, 255, 255)"
    )
    expect(
        opened.page.locator("header:visible, details:not([open]):visible, figcaption:visible")
    ).to_have_count(0)


def test_charts_in_a_notebook_are_live_and_offline(tmp_path, browser) -> None:
    chart = (
        alt.Chart(alt.InlineData(values=[{"a": 1, "c": EVIL}]))
        .mark_point()
        .encode(x="a:Q", color="c:N")
    )
    bundle = package.show(chart)._repr_mimebundle_(include=None, exclude=None)
    assert bundle == renderer(chart.to_dict())
    assert 'sandbox="allow-scripts"' in bundle["text/html"]
    # two charts in one notebook
    (tmp_path / "notebook.html").write_text(bundle["text/html"] + bundle["text/html"])
    opened = Opened(browser, tmp_path / "notebook.html")
    assert len(opened.page.frames) == 3
    for frame in opened.page.frames[1:]:
        expect(frame.locator("figure.chart svg")).to_have_count(1)
        assert frame.evaluate("document.documentElement.scrollHeight <= innerHeight")
        assert frame.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert opened.complaints == []
    assert [
        url for url in opened.requests if not url.startswith(("file:", "data:", "about:"))
    ] == []
