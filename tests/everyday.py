"""Reports for tests: one by Ponder's own figures, one of hostile texts, and one by the figure
plugin that this file is.

The plugin draws everyday Altair charts, one per value of `kind`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
from click.testing import CliRunner

from ponder.cli import main
from ponder.core import Figure, Outcome, Tables

EVIL = "</pre></script><script>document.title='broken'</script><img src=x onerror=alert(1)>\"'&lt;"
STUDY = """
title = "Does <b>it</b> break?"
question = "Q"
problems = 6
[[task]]
name = "chain_sum"
size = [2, 4, 8, 16, 32]
[[model]]
name = "oracle"
label = "one <i>model</i>"
critical_size = 8
budget = 2500
[[model]]
name = "oracle"
label = "another"
error = 0.5
[[figure]]
name = "effort"
unit = "term"
[[figure]]
name = "accuracy"
unit = "term"
"""
ROWS = [
    {"a": n, "b": n * n % 17, "c": "xyz"[n % 3], "d": f"2024-0{1 + n % 9}-11", "e": n + 3}
    for n in range(1, 25)
]
XY = {"x": "a:Q", "y": "b:Q"}


def _own_selection(base: Any) -> Any:
    brush = alt.selection_interval(encodings=["x"])
    return base.mark_circle().encode(**XY, opacity=alt.when(brush).then(alt.value(1)).otherwise(alt.value(0.1))).add_params(brush)  # fmt: skip


CHARTS: dict[str, Callable[[Any], Any]] = {
    "bar": lambda base: base.mark_bar().encode(x="c:N", y="sum(b):Q", color="c:N"),
    "histogram": lambda base: base.mark_bar().encode(x=alt.X("b:Q").bin(maxbins=8), y="count()"),
    "boxplot": lambda base: base.mark_boxplot().encode(x="c:N", y="b:Q", color="c:N"),
    "error_bars": lambda base: base.mark_errorbar(extent="stdev").encode(x="c:N", y="b:Q") + base.mark_point().encode(x="c:N", y="mean(b):Q"),
    "scatter": lambda base: base.mark_point().encode(**XY, color="c:N", shape="c:N", size="e:Q"),
    "logarithmic": lambda base: base.mark_circle().encode(x=alt.X("a:Q").scale(type="log"), y="b:Q"),
    "lines": lambda base: base.mark_line(point=True).encode(x="d:T", y="mean(b):Q", color="c:N", strokeDash="c:N"),
    "area": lambda base: base.mark_area().encode(x="a:Q", y=alt.Y("b:Q").stack("normalize"), color="c:N"),
    "heatmap": lambda base: base.mark_rect().encode(x="a:O", y="c:N", color="mean(b):Q", tooltip=["a:O", "b:Q"]) + base.mark_text().encode(x="a:O", y="c:N", text="b:Q"),
    "facet": lambda base: base.mark_point().encode(**XY, color="c:N").facet("c:N", columns=2).resolve_scale(y="independent"),
    "repeat": lambda base: base.mark_point().encode(x=alt.X(alt.repeat("column"), type="quantitative"), y="b:Q").repeat(column=["a", "e"]),
    "concat": lambda base: (base.mark_point().encode(**XY) | base.mark_line().encode(x="a:Q", y="e:Q")).resolve_scale(x="shared", y="shared"),
    "layered": lambda base: base.mark_area(opacity=0.3).encode(**XY) + base.mark_line().encode(**XY) + base.mark_rule().encode(x="mean(a):Q") + base.mark_point().encode(**XY, color="c:N"),
    "text": lambda base: base.mark_text(font="Comic Sans MS").encode(**XY, text="c:N"),
    "pie": lambda base: base.mark_arc().encode(theta="sum(b):Q", color="c:N"),
    "regression": lambda base: base.mark_point().encode(**XY) + base.transform_regression("a", "b").mark_line().encode(**XY),
    "own_selection": _own_selection,
}  # fmt: skip


@dataclass(frozen=True)
class Everyday(Figure):
    """Draws a chart from the list."""

    kind: str

    def estimate(self, outcomes: Sequence[Outcome]) -> Tables:
        return {
            "counts": [
                {"kind": self.kind, "attempts": len(outcomes)},
                {"kind": "<b>only here</b>", "more": None},
            ]
        }

    def draw(self, tables: Tables) -> alt.TopLevelMixin:
        chart: alt.TopLevelMixin = CHARTS[self.kind](
            alt.Chart(alt.InlineData(values=ROWS))
        ).properties(title=self.kind)
        return chart

    def findings(self, tables: Tables) -> list[str]:
        return [f"finding <b>{n}</b>" for n in range(7)]


def write_reports(folder: Path) -> None:
    """Run the three studies and write their reports; NAME.json lists the files of each."""
    (folder / "s.toml").write_text(STUDY)
    figures = [f'[[figure]]\nname = "{__file__}"\nkind = "{kind}"\n' for kind in CHARTS]
    (folder / "everyday.toml").write_text(STUDY.partition("[[figure]]")[0] + "".join(figures))
    _write_evil(folder)
    here = Path.cwd()
    try:
        os.chdir(folder)
        for study in ("s", "everyday", "evil"):
            for verb in ("run", "report"):
                done = CliRunner().invoke(
                    main, [verb, f"{study}.toml", "--json"], catch_exceptions=False
                )
                assert done.exit_code == 0, done.output
            (folder / f"{study}.json").write_text(done.stdout)
    finally:
        os.chdir(here)


def _write_evil(folder: Path) -> None:
    lines = [
        {"problem": "x", "thinking": EVIL, "answer": EVIL},
        {"problem": "y", "answer": "z" * 300_000},
    ]
    (folder / "answers.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    problems = [
        {"id": n, "prompt": EVIL, "answer": "1", "size": size} for size, n in enumerate("xy", 1)
    ]
    (folder / "problems.jsonl").write_text("\n".join(json.dumps(p) for p in problems))
    label = json.dumps(f'{EVIL}"}}]</script>')
    (folder / "evil.toml").write_text(
        f'title = "t"\n[[task]]\nname = "jsonl"\nfile = "problems.jsonl"\n[[model]]\nname = "replay"\nlabel = {label}\n'
        'file = "answers.jsonl"\n[[figure]]\nname = "accuracy"\n',
    )
