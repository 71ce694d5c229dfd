"""Shows charts inline in a notebook, offline and live; Altair's own renderers load Vega from the
network.

Each output is a sandboxed frame that holds Vega, the chart and its picture: 1 MB more in the
notebook file per chart. Beside it stands the PNG, for programs that show no HTML, such as
nbconvert's PDF writer.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from html import escape
from typing import Any

from ponder.results.charts import draw
from ponder.results.html_pages import document

MARGIN = 60  # pixels around the chart, for the padding and the line that explains the mouse


@dataclass(frozen=True)
class Shown:
    """A chart as a notebook displays it."""

    chart: Any

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return renderer(self.chart.to_dict())


def show(chart: Any) -> Shown:
    """Display an Altair chart in a notebook, offline, with tooltips and zoom."""
    return Shown(chart)


def renderer(spec: dict[str, Any], **_: Any) -> dict[str, str]:
    """Render a chart for a notebook: `altair.renderers.enable("ponder")` uses this for all."""
    chart = draw("chart", spec)
    width, height = (length + MARGIN for length in chart.size)
    inside = escape(document("chart.html", title=chart.name, chart=chart))
    # the script's hash holds whatever the host's charset
    inside = inside.encode("ascii", "xmlcharrefreplace").decode()
    frame = f'<iframe sandbox="allow-scripts" width="{width}" height="{height}" frameborder="0" srcdoc="{inside}">'
    return {"text/html": f"{frame}</iframe>", "image/png": base64.b64encode(chart.png).decode()}
