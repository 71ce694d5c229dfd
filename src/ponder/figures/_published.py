"""Published accuracies: their binomial intervals, which of their differences exceed chance, and
their muted panel.

Papers print one accuracy per point and no answers, so the answers to a benchmark's problems are
taken as independent.
"""

from __future__ import annotations

import itertools
from typing import Any

import altair as alt

from ponder.core import Estimate, Records, UserError
from ponder.figures import INK, MUTED, flat, published, values
from ponder.figures._labels import lettering
from ponder.figures._log import SIZE, log_axes, log_frame, log_placed
from ponder.figures._variants import signed
from ponder.stats.grid import binomial
from ponder.stats.paired import newcombe

PROBLEMS = {"AIME24": 30, "AIME2024": 30, "MATH500": 500, "GPQA-D": 198}
PAIRED = (
    "All were asked the same problems, so chance is smaller than binomial; how much smaller, only answers paired by "
    "problem would tell."
)


def on_benchmark(accuracy: float, benchmark: str) -> Estimate:
    """A published accuracy with its binomial interval."""
    return binomial(accuracy, PROBLEMS[benchmark])


def beyond_chance(difference: Estimate) -> bool:
    return difference.low > 0 or difference.high < 0


def split_by_chance(differences: dict[str, Estimate]) -> tuple[str, str]:
    """In words: the named differences that are beyond chance, and those within it."""
    named = {
        f"{name} ({signed(apart.value)})": beyond_chance(apart)
        for name, apart in differences.items()
    }
    beyond, within = (
        ", ".join(n for n, clear in named.items() if clear == wanted) for wanted in (True, False)
    )
    return beyond or "none", within or "none"


def selected(overlay: str, x: str, name: str) -> Records:
    """Accuracies on MATH500 after training on selected traces: from the paper's figure, else from
    its table.
    """
    rows = published(overlay)
    if not {x, name, "accuracy_table"} <= rows[0].keys():
        key, known = {
            "samples": ("overlay", "prm_selection_samples"),
            "parameters": ("overlay_size", "prm_selection_size"),
        }[x]
        raise UserError(f"`{overlay}` has no accuracy by {x}", hint=f'{key} = "{known}"')
    records = []
    for r in rows:
        from_figure = r["accuracy"] is not None
        named = {
            "name": r[name],
            "family": r.get("family", r[name]),
            x: r[x],
            "from_figure": from_figure,
        }
        accuracy = on_benchmark(r["accuracy"] if from_figure else r["accuracy_table"], "MATH500")
        records.append(flat(**named, accuracy=accuracy, table=r["accuracy_table"]))
    return records


def within_chance(rows: Records) -> str:
    """Which differences between labelled points chance could explain, and how far the paper agrees
    with itself.
    """
    pairs = [sorted(pair, key=lambda r: -r["accuracy"]) for pair in itertools.combinations(rows, 2)]
    apart = {
        f"{a['label']} over {b['label']}": newcombe(
            *(on_benchmark(r["accuracy"], "MATH500") for r in (a, b))
        )
        for a, b in pairs
    }
    within = {name: d for name, d in apart.items() if not beyond_chance(d)}
    twice = [
        r["accuracy"] - r["table"] for r in rows if r["from_figure"] and r["table"] is not None
    ]
    return (
        f"MATH500, published: {len(within)} of {len(pairs)} differences are within binomial chance on "
        f"{PROBLEMS['MATH500']} problems: {split_by_chance(within)[1]}, in points. The paper's figure and its table "
        f"differ by {signed(min(twice))} to {signed(max(twice))} points for the same students, each trained once. "
        f"{PAIRED}"
    )


def published_panel(rows: Records, x: str, title: str) -> Any:
    """Labelled points on MATH500, muted: filled from the figure, hollow from the table, a line
    through each family.
    """
    frame = log_frame(rows, x, air=0.24)
    across, y = log_axes(frame, x, title, [r[x] for r in rows])
    fill = alt.condition("datum.from_figure", alt.value(MUTED), alt.value("white"))
    families = [
        [r for r in rows if r["family"] == f] for f in dict.fromkeys(r["family"] for r in rows)
    ]
    joined = alt.Chart(values([r for own in families if len(own) > 1 for r in own]))
    bars = alt.Chart().mark_rule(color=MUTED, opacity=0.4, clip=True)
    dots = alt.Chart().mark_point(size=60, opacity=1, color=MUTED, strokeWidth=1.5)
    tooltip = [
        "name:N",
        f"{x}:Q",
        *(alt.Tooltip(f"{f}:Q", format=".3f") for f in ("accuracy", "table")),
    ]
    layers = [
        joined.mark_line(color=MUTED, strokeWidth=1.4).encode(x=across, y=y, detail="family:N"),
        bars.encode(x=across, y=alt.Y("accuracy_low:Q"), y2="accuracy_high:Q"),
        dots.encode(x=across, y=y, fill=fill, tooltip=tooltip),
        *lettering(x, alt.value(INK)),
    ]
    note = "one training run per point (hollow: from a table); bars: binomial 95 % intervals, 500 problems"
    head = alt.TitleParams("MATH500, published", subtitle=note, fontSize=12, frame="group")
    named = values(log_placed(rows, x, frame, families))
    return alt.layer(*layers, data=named, width=SIZE[0], height=SIZE[1], title=head)
