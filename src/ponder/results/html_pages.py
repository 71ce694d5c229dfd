"""HTML documents from the templates: self-contained, with live charts, and safe to open whatever a
model wrote.

The templates escape every value. A document carries Vega's JavaScript (822 kB) and a content
security policy that allows this script and this style sheet by their hashes and nothing else: if
text got past the escaping, the browser would still refuse to run it.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from ponder.core import Completion, Records
from ponder.core.text import number, visible
from ponder.run.progress import money_text, short

HERE = Path(__file__).parent
ASSETS = HERE / "assets"  # scripts and the style sheet, of documents and of the live page
LIBRARIES = ("vega", "vega-lite", "vega-embed")
LOW, HIGH = 0.35, 0.65  # scores of steps that are coloured as doubtful, or as good
MAX_TEXT = 200_000  # characters of one message of a transcript that a page shows


def document(template: str, scripts: Sequence[str] = ("vega.js", "chart.js"), **values: Any) -> str:
    """Fill in a template. The document holds these scripts, in this order."""
    style = asset("page.css")
    script = "\n".join(map(asset, scripts))
    policy = (
        f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}"
    )
    return rendered(template, **values, style=style, script=script, policy=policy)


def rendered(template: str, **values: Any) -> str:
    """Fill in a template, as part of a document."""
    return _templates().get_template(template).render(values)


@cache
def asset(name: str) -> str:
    """Return a script or the style sheet; `vega.js` is Vega, Vega-Lite and Vega-Embed together."""
    if name != "vega.js":
        return (ASSETS / name).read_text("utf-8")
    libraries = [HERE / "vega" / f"{library}.min.js" for library in LIBRARIES]
    return "\n".join(file.read_text("utf-8") for file in libraries)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _templates() -> jinja2.Environment:
    return templates()


def templates() -> jinja2.Environment:
    """Return the templates: every value is escaped, and control characters are shown as symbols."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        autoescape=True,
        finalize=_finalize,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "cell": shown_value,
        "clipped": _clipped,
        "columns": columns,
        "short": short,
        "money": money_text,
        "clock": clock,
        "clauses": clauses,
        "readable": readable,
        "steps": scored_steps,
    }
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return environment


def _finalize(value: Any) -> Any:
    return visible(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def columns(records: Records) -> list[str]:
    """Return the columns of a table whose records may lack some, without `basis`."""
    names: dict[str, None] = {}
    for record in records:
        names |= dict.fromkeys(record)
    return [name for name in names if name != "basis"]


def shown_value(value: Any) -> str:
    """Return a value as a table shows it."""
    if value is None:
        return "–"
    if isinstance(value, float):
        if abs(value) >= 1000 or value == int(value):
            return f"{value:,.0f}"
        return number(value)
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def _clipped(text: str) -> str:
    excess = len(text) - MAX_TEXT
    return text if excess <= 0 else f"{text[:MAX_TEXT]}\n… {excess:,} more characters"


def clock(seconds: float) -> str:
    """Format a duration: `45 s`, `12 min`, `3 h 20 min`."""
    if seconds < 1:
        return f"{seconds:.2f} s"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


def scored_steps(reply: Completion) -> Iterator[tuple[str, str, str]]:
    """Yield the steps of the thinking, each with its score's style and its score.

    Text between steps has neither.
    """
    thinking = _clipped(reply.thinking)
    start = 0
    for end, score in reply.step_scores:
        text = thinking[start:end]
        step = text.lstrip()
        yield text[: len(text) - len(step)], "", ""
        style = "middle"
        if score < LOW:
            style = "low"
        elif score > HIGH:
            style = "high"
        yield step, style, f"{score:.2f}"
        start = end
    yield thinking[start:], "", ""


def readable(data: Any) -> str:
    """Return details or settings as indented JSON."""
    return json.dumps(data, indent=1, default=str, ensure_ascii=False)


def clauses(sentence: str) -> list[str]:
    """Split a long finding at its semicolons: a page shows the clauses as a list."""
    split = sentence.split("; ")
    if len(split) > 2:
        return split
    return [sentence]
