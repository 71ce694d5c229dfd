"""Charts are drawn as Vega draws them: the same marks at the same places, the same numbers, names and colours.

Vega itself, as vl-convert has it, is the reference, for every figure there is and for axes made up at random.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import re
import sys
import xml.etree.ElementTree as ET
from functools import cache

import altair as alt
import pytest
import test_frontier
import test_maps
import test_selection_figures
import vl_convert
from vega_svg import SVG, differences, ours, vega

from ponder import check, plugins, report
from ponder.core import Figure, UserError
from ponder.figures.accuracy import Accuracy
from ponder.figures.best_of import BestOf
from ponder.figures.cache import Cache
from ponder.figures.effort import Effort
from ponder.figures.frontier import Frontier
from ponder.figures.heatmap import Heatmap
from ponder.figures.horizon import Horizon
from ponder.figures.reward_size import RewardSize
from ponder.figures.scaling import Scaling
from ponder.figures.tradeoff import Tradeoff
from ponder.vega import Unknown, png, svg
from ponder.vega.text import ASCENT, DESCENT, width

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"


@cache
def outcomes() -> list:
    return check._outcomes()


def several(found):
    """The same attempts by two models."""
    return [*found, *(o._replace(model="another <model> & more", correct=o.size < 12) for o in found)]


MORE = {
    "accuracy, published": lambda: (Accuracy(overlay="tents_success"), several(outcomes())),
    "effort, published": lambda: (Effort(overlay="tents_effort"), outcomes()),
    "effort of two": lambda: (Effort(), several(outcomes())),
    "horizon, published": lambda: (Horizon(overlay="execution_horizon"), outcomes()),
    "horizon of few": lambda: (Horizon(), [o for o in outcomes() if o.size < 20]),
    "tradeoff, published": lambda: (Tradeoff(overlay="execution_tradeoff"), outcomes()),
    "frontier": lambda: (Frontier(overlay="long2short"), test_frontier.attempts(problems=8)),
    "budget": lambda: (plugins.load("figures", "budget")(), test_frontier.attempts(problems=8)),
    "budget, linear": lambda: (plugins.load("figures", "budget")(scale="linear"), test_frontier.attempts(problems=8)),
    "heatmap": lambda: (Heatmap(overlay="dynts_window_ratio"), test_maps.attempts()),
    "heatmap, one scale": lambda: (Heatmap(scale="shared"), test_maps.attempts()),
    "cache": lambda: (Cache(), test_maps.attempts()),
    "scaling": lambda: (Scaling(overlay="prm_selection_samples"), test_selection_figures.pile()),
    "reward_size": lambda: (RewardSize(overlay="prm_selection_size"), test_selection_figures.pile()),
    "best_of": lambda: (BestOf(overlay="prm_best_of_n"), test_selection_figures.picked()),
}
FIGURES = [*plugins.files("figures"), *MORE]


@cache
def spec(name: str) -> dict:
    """The chart of a figure."""
    if name in MORE:
        figure, found = MORE[name]()
    else:
        plugin = plugins.load("figures", name)
        figure, found = plugin(**plugin.example), outcomes()
    return figure.draw(figure.estimate(found)).to_dict()


def by_vega(chart: dict) -> str:
    return vl_convert.vegalite_to_svg(json.dumps(chart))


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_what_vega_draws(name: str) -> None:
    assert differences(ours(svg(spec(name))), vega(by_vega(spec(name)))) == []


def boxes(drawn: str) -> list[tuple[str, tuple[float, float, float, float], bool]]:
    """Every text, where it stands in the picture, and whether it is a mark."""
    found = []

    def walk(node: ET.Element, x: float, y: float, mark: bool) -> None:
        if node.get("transform", "").startswith("translate"):
            across, down = map(float, re.findall(r"-?[\d.]+", node.get("transform")))
            x, y = x + across, y + down
        mark = mark or "marks" in node.get("class", "").split()
        if node.tag == f"{SVG}text":
            size, text = float(node.get("font-size")), node.text
            long = width(text, size, node.get("font-weight", "normal"))
            start = {"middle": -long / 2, "end": -long}.get(node.get("text-anchor"), 0.0)
            left, at = x + float(node.get("x")), y + float(node.get("y"))
            if "rotate" in node.get("transform", ""):
                box = (left - ASCENT * size, at - start - long, left + DESCENT * size, at - start)
            else:
                box = (left + start, at - ASCENT * size, left + start + long, at + DESCENT * size)
            found.append((text, box, mark))
        for child in node:
            walk(child, x, y, mark)

    walk(ET.fromstring(drawn), 0.0, 0.0, False)
    return found


@pytest.mark.parametrize("name", FIGURES)
def test_no_text_is_cut_off_or_covered(name: str) -> None:
    drawn = svg(spec(name))
    wide, high = (float(ET.fromstring(drawn).get(k)) for k in ("width", "height"))
    found = boxes(drawn)
    for text, (left, top, right, bottom), _ in found:
        assert 0 <= left <= right <= wide, text
        assert 0 <= top <= bottom <= high, text
    guides = [(text, box) for text, box, mark in found if not mark]
    for (text, a), (other, b) in itertools.combinations(guides, 2):
        apart = a[2] <= b[0] + 0.5 or b[2] <= a[0] + 0.5 or a[3] <= b[1] + 0.5 or b[3] <= a[1] + 0.5
        assert apart, (text, other)


def test_boxes_see_what_is_wrong() -> None:
    chart = alt.Chart(alt.InlineData([{"a": 1}])).mark_point().encode(x="a:Q").properties(title="T").to_dict()
    [title] = (box for text, box, _ in boxes(svg(chart)) if text == "T")
    assert title[0] == pytest.approx(5, abs=1)
    assert title[2] - title[0] == pytest.approx(width("T", 13, "bold"))


def random_axis(rng: random.Random) -> dict:
    """A small chart with numbers of any size along its axis."""
    log = rng.random() < 0.5
    low = rng.choice([0.0, 1.0, -1.0]) * 10 ** rng.uniform(-4, 5)
    values = [low, low + 10 ** rng.uniform(-3, 6)]
    if log:
        low = 10 ** rng.uniform(-3, 5)
        values = [low, low * 10 ** rng.uniform(0.05, 5)]
    scale = {"type": "log"} if log else {}
    if rng.random() < 0.5:
        scale["nice"] = rng.random() < 0.5
    if rng.random() < 0.3:
        scale["padding"] = rng.choice([5, 20])
    elif rng.random() < 0.3:
        scale["domain"] = values
    if not log and rng.random() < 0.5:
        scale["zero"] = rng.random() < 0.5
    axis = {"tickCount": rng.choice([2, 4, 6, 12])} if rng.random() < 0.5 else {}
    if rng.random() < 0.5:
        axis["format"] = rng.choice([",.0f", "%", ".2f", "~s", ".3~s", "d", "+", ".1e", ",.3~r"])
    mark = rng.choice(["point", "line", "rule"])
    field = {"field": "v", "type": "quantitative", "scale": scale, "axis": axis}
    data = {"values": [{"v": value} for value in values]}
    return {"data": data, "mark": mark, "width": 900, "height": 20, "encoding": {"x": field}}


@pytest.mark.parametrize("seed", range(4))
def test_axes_are_vegas(seed: int) -> None:
    """Domains, ticks and labels of 60 axes; where a mark stands shows the domain."""
    rng = random.Random(seed)
    charts = [random_axis(rng) for _ in range(60)]
    whole = {"$schema": SCHEMA, "vconcat": charts}
    mine, theirs = ours(svg(whole)), vega(by_vega(whole))
    for chart, (_, labels), (_, others) in zip(charts, mine.axes, theirs.axes, strict=True):
        shown = dict(others)
        assert {text for text, _ in labels} <= shown.keys(), (chart, labels, others)
        assert len(labels) >= len(others) / 4, (chart, labels, others)
    for chart, (_, drawn), (_, other) in zip(charts, mine.marks, theirs.marks, strict=True):
        places = [place for (one, _) in drawn for place in one]
        assert places == pytest.approx([place for (one, _) in other for place in one], abs=0.5), chart


FORMATS = ["", "d", ",d", ".0f", ",.2f", ".2~f", ".1%", "%", ".0%", "e", ".2e", "g", ".3g", ".3~g", "r", ",.3~r", "s"]
FORMATS += [".3s", ".3~s", "~s", "p", ".2p", "+", "+.4f", "+.1%", ",", "~g"]


def test_numbers_are_written_as_vega_writes_them() -> None:
    rng = random.Random(1)
    values = [0, 1, -1, 0.5, 1.5, 2.5, -0.5, 0.125, 999.95, 1000, 1234567.891, 0.1 + 0.2, 1e-7, 123e-8, 1e15, -0.001]
    values += [rng.choice([1, -1]) * 10 ** rng.uniform(-9, 9) for _ in range(60)]
    rows = {"values": [{"v": value} for value in values]}
    layers = [
        {"mark": "text", "encoding": {"text": {"field": "v", "type": "quantitative", "format": form}}}
        for form in FORMATS
    ]
    chart = {"$schema": SCHEMA, "data": rows, "layer": layers, "width": 10, "height": 10}
    mine, theirs = (
        [text.text for text in ET.fromstring(drawn).iter(f"{SVG}text")] for drawn in (svg(chart), by_vega(chart))
    )
    wrong = [
        (form, value, one, other)
        for (form, value), one, other in zip(itertools.product(FORMATS, values), mine, theirs, strict=True)
        if one != other
    ]
    assert wrong == []


EXPRESSIONS = [
    "datum.a > 1 && datum.b == 'x'",
    "datum.a === 2 || !datum.c",
    "datum['a'] * 2 + 1 >= 5 ? true : false",
    "replace(format(1e9 * datum.a, '.3~s'), 'G', 'B') == '2B'",
    "(datum.a + 1) % 2 != 0",
    "-datum.a < -1.5",
    "abs(datum.a - 3) <= 1 && datum.b !== 'y'",
    "'n' + datum.a == 'n2'",
    "1 + 2 * 3 - 4 / 2 == 5 && datum.a",
]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expressions_mean_what_they_mean_to_vega(expression: str) -> None:
    rows = [{"a": a, "b": b, "c": c} for a in (0, 1, 2, 3) for b in "xy" for c in (True, False)]
    rows = [{"i": i, **row} for i, row in enumerate(rows)]
    x = {"field": "i", "type": "quantitative"}
    chart = {"$schema": SCHEMA, "data": {"values": rows}, "mark": "point", "encoding": {"x": x}}
    chart |= {"transform": [{"filter": expression}]}
    assert differences(ours(svg(chart)), vega(by_vega(chart))) == []
    assert 0 < len(ours(svg(chart)).marks[0][1]) < len(rows)


def tooltips(drawn: str) -> list[str]:
    return [title.text for title in ET.fromstring(drawn).iter(f"{SVG}title")]


def test_tooltips_say_what_a_mark_shows() -> None:
    rows = [{"a": 1234.5678, "b": "x", "c": None}]
    tooltip = ["b:N", alt.Tooltip("a:Q", format=",.1f", title="tokens"), "a:Q", "c:Q"]
    chart = alt.Chart(alt.InlineData(rows)).mark_point().encode(x="a:Q", tooltip=tooltip)
    assert tooltips(svg(chart.to_dict())) == ["b: x\ntokens: 1,234.6\na: 1234.5678\nc: –"]


EVIL = "</text></svg><script>alert(1)</script>\"'&amp;\x00\x1b\ud800"


def test_what_the_data_say_stays_text() -> None:
    rows = [{"a": 1, "b": EVIL}]
    chart = alt.Chart(alt.InlineData(rows)).mark_point().encode(x="a:Q", y="b:N", color="b:N", tooltip="b:N")
    both = (chart + chart.mark_text().encode(text="b:N")).properties(title=alt.TitleParams(EVIL, subtitle=[EVIL]))
    drawn = svg(both.to_dict())
    kept = EVIL[:-3] + 3 * "\ufffd"
    assert not [node for node in ET.fromstring(drawn).iter() if "script" in node.tag]
    assert [text for text, *_ in boxes(drawn)].count(kept) >= 3
    assert tooltips(drawn)[0] == f"b: {kept}"
    assert png(drawn, 1).startswith(b"\x89PNG")


def test_a_picture_is_the_same_every_time() -> None:
    first, again = (svg(json.loads(json.dumps(spec("frontier")))) for _ in range(2))
    assert first == again
    assert png(first) == png(again)


def test_text_is_as_wide_as_it_was_measured() -> None:
    """In the picture itself: black pixels of a word, from its first to its last."""
    word = "HHHHHHHHHHHHHHHHHHHH"
    drawn = f'<svg xmlns="http://www.w3.org/2000/svg" width="400" height="20"><text y="15" font-size="12">{word}</text></svg>'
    wide = _black(png(drawn, 1), 400)
    assert wide == pytest.approx(width(word, 12), abs=2.5)


def _black(picture: bytes, wide: int) -> int:
    import struct
    import zlib

    at, data = 8, b""
    while at < len(picture):
        length, kind = struct.unpack_from(">L4s", picture, at)
        data += picture[at + 8 : at + 8 + length] if kind == b"IDAT" else b""
        at += 12 + length
    rows = zlib.decompress(data)
    # Only rows without a filter, or above the letters, are plain; opaque pixels anywhere bound the word.
    line = 1 + 4 * wide
    before, opaque = bytearray(4 * wide), set()
    for start in range(0, len(rows), line):
        kind, row = rows[start], bytearray(rows[start + 1 : start + line])
        for i in range(len(row)):
            left, up, corner = row[i - 4] if i > 3 else 0, before[i], before[i - 4] if i > 3 else 0
            guess = left + up - corner
            near = min((left, up, corner), key=lambda value: abs(value - guess))
            row[i] = (row[i] + (0, left, up, (left + up) // 2, near)[kind]) % 256
        opaque |= {i for i in range(wide) if row[4 * i + 3] > 60}
        before = row
    return max(opaque) - min(opaque) + 1


UNKNOWN = {
    "mark": ({"mark": "bar"}, "the mark `bar`"),
    "mark's look": ({"mark": {"type": "line", "interpolate": "monotone"}}, "the interpolation `monotone`"),
    "channel": ({"encoding": {"theta": {"field": "a"}}}, "`theta` of an encoding of the mark `point`"),
    "aggregate": ({"encoding": {"x": {"aggregate": "mean", "field": "a"}}}, "`aggregate` of the channel `x`"),
    "transform": ({"transform": [{"fold": ["a"]}]}, "`fold` of transform"),
    "scale": (
        {"encoding": {"x": {"field": "a", "type": "quantitative", "scale": {"type": "sqrt"}}}},
        "the scale `sqrt`",
    ),
    "axis": ({"encoding": {"x": {"field": "a", "type": "quantitative", "axis": {"zindex": 1}}}}, "`zindex` of an axis"),
    "time": ({"encoding": {"x": {"field": "a", "type": "temporal"}}}, "the type `temporal`"),
    "expression": ({"transform": [{"filter": "year(datum.a) > 1"}]}, "`year` in the expression `year(datum.a) > 1`"),
    "sort": ({"encoding": {"x": {"field": "a", "type": "nominal", "sort": "-y"}}}, "the order `-y`"),
    "backward": (
        {"encoding": {"x": {"field": "a", "type": "quantitative", "scale": {"domain": [2, 1]}}}},
        "the domain `[2, 1]`",
    ),
    "no scale": ({"encoding": {"color": {"field": "a", "scale": None}}}, "the channel `color` without a scale"),
    "nested": ({"encoding": {"x": {"field": "a.b", "type": "quantitative"}}}, "the nested field `a.b`"),
    "fields": ({"encoding": {"detail": [{"field": "a"}, {"field": "b"}]}}, "several fields as detail"),
    "stacked": ({"mark": "area"}, "an area other than from y to y2"),
    "binned": ({"mark": "rect"}, "a rectangle without an end along x"),
    "param": ({"encoding": {"color": {"condition": {"param": "p", "value": 1}, "value": 2}}}, "`param` of a condition"),
    "two axes": ({"resolve": {"scale": {"y": "independent"}}}, "`resolve` of a chart"),
    "mark's expression": ({"mark": {"type": "point", "size": {"expr": "datum.a"}}}, "an expression as a mark's size"),
    "part": ({"projection": {}}, "`projection` of a chart"),
    "configuration": ({"config": {"bar": {}}}, "`bar` of the configuration"),
    "text as numbers": ({"data": {"values": [{"a": "7"}]}}, "text as numbers"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_not_drawn_is_named(name: str) -> None:
    more, said = UNKNOWN[name]
    chart = {"data": {"values": [{"a": 1}]}, "mark": "point", "encoding": {"x": {"field": "a", "type": "quantitative"}}}
    assert svg(chart)
    with pytest.raises(Unknown, match=re.escape(said)):
        svg(chart | more)


class Bars(Figure):
    """A figure that asks for more."""

    def estimate(self, outcomes):
        return {"rows": [{"size": size} for size in sorted({o.size for o in outcomes})]}

    def draw(self, tables):
        return alt.Chart(alt.InlineData(tables["rows"])).mark_bar().encode(x="size:O", y="size:Q")


def test_vega_draws_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    found = report.draw("bars", Bars(), outcomes())
    assert "mark-rect" in found.svg
    assert found.png.startswith(b"\x89PNG")
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(UserError, match="the figure bars asks for the mark `bar`") as error:
        report.draw("bars", Bars(), outcomes())
    assert error.value.hint == "pip install 'ponder[vega]'"


def test_one_value_and_none() -> None:
    """A scale of one number puts it in its middle, and without rows there are no ticks."""
    for rows, places in (([{"a": 3}], [150.0]), ([], [])):
        x = {"field": "a", "type": "quantitative", "scale": {"zero": False, "nice": False}}
        chart = {"data": {"values": rows}, "mark": "point", "encoding": {"x": x}, "width": 300, "height": 40}
        shown = ours(svg(chart))
        assert [mark[0][0] for mark in shown.marks[0][1]] == places
        assert len(shown.axes[0][1]) == len(rows)
    assert math.isfinite(float(ET.fromstring(svg({"vconcat": [], "title": "nothing"})).get("width")))
