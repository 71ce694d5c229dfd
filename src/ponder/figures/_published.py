"""Published accuracies beside measured ones: which of their differences chance could make, and their muted panel."""

from __future__ import annotations

import itertools
from typing import Any

import altair as alt

from ponder.core import Estimate, Records, UserError
from ponder.figures import MUTED, flat, published, values
from ponder.figures._labels import lettering
from ponder.figures._log import SIZE, log_axes, log_frame, log_placed
from ponder.figures._variants import signed
from ponder.stats.accuracy import wilson
from ponder.stats.difference import difference

PROBLEMS = {"AIME24": 30, "MATH500": 500, "GPQA-D": 198}
INK = "#5f6368"


def binomial(share: float, benchmark: str) -> Estimate:
    problems = PROBLEMS[benchmark]
    return Estimate(share, *wilson(share, problems, 0.95), problems, problems)


def beyond_noise(first: float, second: float, benchmark: str) -> bool:
    """Whether two shares differ by more than two independent samples of the benchmark's problems would by chance."""
    apart = difference(binomial(first, benchmark), binomial(second, benchmark))
    return apart.low > 0 or apart.high < 0


def selected(overlay: str, x: str, name: str) -> Records:
    """Accuracies on MATH500 after training on selected traces: off a figure, or where it has none, out of a table."""
    found = published(overlay)
    if not {x, name, "accuracy_table"} <= found[0].keys():
        known = {"samples": "prm_selection_samples", "parameters": "prm_selection_size"}[x]
        raise UserError(f"`{overlay}` has no accuracy by {x}", hint=f'overlay = "{known}"')
    rows = []
    for r in found:
        off_figure = r["accuracy"] is not None
        named = {"name": r[name], "family": r.get("family", r[name]), x: r[x], "off_figure": off_figure}
        right = binomial(r["accuracy"] if off_figure else r["accuracy_table"], "MATH500")
        rows.append(flat(**named, accuracy=right, table=r["accuracy_table"]))
    return rows


def within_noise(rows: Records) -> str:
    """Which differences between labelled points chance could make, and how far the paper agrees with itself."""
    pairs = [sorted(pair, key=lambda r: -r["accuracy"]) for pair in itertools.combinations(rows, 2)]
    within = [(a, b) for a, b in pairs if not beyond_noise(a["accuracy"], b["accuracy"], "MATH500")]
    said = [f"{a['label']} over {b['label']} ({signed(a['accuracy'] - b['accuracy'])})" for a, b in within]
    twice = [r["accuracy"] - r["table"] for r in rows if r["off_figure"] and r["table"] is not None]
    return (
        f"MATH500, published: of {len(pairs)} differences {len(within)} are within binomial noise on "
        f"{PROBLEMS['MATH500']} problems: {', '.join(said) or 'none'}, in points. The paper's figure and its table "
        f"differ by {signed(min(twice))} to {signed(max(twice))} points for the same students, each trained once. "
        "All were asked the same problems, so noise is smaller than binomial; how much, only their answers would tell."
    )


def published_panel(rows: Records, x: str, title: str) -> Any:
    """Labelled points on MATH500, muted: filled off the figure, hollow out of the table, lines through a family."""
    frame = log_frame(rows, x, air=0.24)
    across, y = log_axes(frame, x, title, [r[x] for r in rows])
    fill = alt.condition("datum.off_figure", alt.value(MUTED), alt.value("white"))
    families = [[r for r in rows if r["family"] == f] for f in dict.fromkeys(r["family"] for r in rows)]
    joined = alt.Chart(values([r for own in families if len(own) > 1 for r in own]))
    bars = alt.Chart().mark_rule(color=MUTED, opacity=0.4, clip=True)
    dots = alt.Chart().mark_point(size=60, opacity=1, color=MUTED, strokeWidth=1.5)
    tooltip = ["name:N", f"{x}:Q", *(alt.Tooltip(f"{f}:Q", format=".3f") for f in ("accuracy", "table"))]
    layers = [
        joined.mark_line(color=MUTED, strokeWidth=1.4).encode(x=across, y=y, detail="family:N"),
        bars.encode(x=across, y=alt.Y("accuracy_low:Q"), y2="accuracy_high:Q"),
        dots.encode(x=across, y=y, fill=fill, tooltip=tooltip),
        *lettering(x, alt.value(INK)),
    ]
    note = "one run a point (hollow: from a table); bars: binomial 95 % intervals for 500 problems"
    head = alt.TitleParams("MATH500, published", subtitle=note, fontSize=12, frame="group")
    named = values(log_placed(rows, x, frame, families))
    return alt.layer(*layers, data=named, width=SIZE[0], height=SIZE[1], title=head)
