"""HTML documents from the templates: self-contained, with live charts, and safe to open whatever a model wrote.

The templates escape every value. A document carries Vega's JavaScript (822 kB) and a content security policy that
allows this script and this style sheet by their hashes and nothing else: if text got past the escaping, the browser
would still refuse to run it.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from ponder.core import Records
from ponder.core.text import visible

HERE = Path(__file__).parent
LIBRARIES = ("vega", "vega-lite", "vega-embed")
MAX_TEXT = 20_000  # characters of one message of a transcript that a page shows


def document(template: str, **values: Any) -> str:
    """Fill in a template."""
    style = (HERE / "templates" / "page.css").read_text("utf-8")
    policy = f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(_script())}"
    return _templates().get_template(template).render(values, style=style, script=_script(), policy=policy)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _script() -> str:
    libraries = [HERE / "vega" / f"{name}.min.js" for name in LIBRARIES]
    return "\n".join(path.read_text("utf-8") for path in (*libraries, HERE / "templates" / "chart.js"))


@cache
def _templates() -> jinja2.Environment:
    return templates()


def templates() -> jinja2.Environment:
    """The templates: every value is escaped, and control characters are shown as symbols."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        autoescape=True,
        finalize=_finalize,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"cell": shown_value, "clipped": _clipped, "columns": columns}
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return environment


def _finalize(value: Any) -> Any:
    return visible(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def columns(records: Records) -> list[str]:
    """The columns of a table whose records may lack some."""
    return list(dict.fromkeys(column for record in records for column in record))


def shown_value(value: Any) -> str:
    """A value as a table shows it."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _clipped(text: str) -> str:
    more = len(text) - MAX_TEXT
    return text if more <= 0 else f"{text[:MAX_TEXT]}\n… {more:,} more characters"
