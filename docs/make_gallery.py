"""Makes docs/gallery.md and its pictures from runs of the studies below with the pocket model.

    python docs/make_gallery.py [STORE]

STORE may hold the studies already; all of them take about ten minutes of CPU time, and need the
extra `torch`.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import ponder
from ponder.core import plugins
from ponder.results.charts import draw

HERE = Path(__file__).parent
NOTE = (
    "<!-- Written by docs/make_gallery.py from runs with the pocket model. "
    "Change the script, not this page. -->"
)
WIDTH, COLOURS = 1600, 96  # of a picture: together they are to stay below 1.5 MB
LENGTH = 220  # characters of what a figure found, at least

# Figure, and more words if it is drawn twice: the study that draws it, a built-in one or a file in
# docs/gallery.
STUDIES = {
    "effort": "effort",
    "accuracy": "effort",
    "tradeoff": "execution",
    "horizon": "execution",
    "accuracy with a target": "longest-turn",
    "self_conditioning": "self-conditioning",
    "frontier": "gallery/variants.toml",
    "cost": "gallery/settings.toml",
    "budget": "gallery/variants.toml",
    "latency": "gallery/variants.toml",
    "compare": "gallery/variants.toml",
    "samples": "gallery/samples.toml",
    "best_of": "gallery/picked.toml",
    "selection": "gallery/traces.toml",
    "heatmap": "gallery/eviction.toml",
    "cache": "gallery/eviction.toml",
    "fidelity": "fidelity",
}

HEAD = """\
Every figure that Ponder draws, from a run of the [pocket model](reference/pocket.md), which ships
with it, and the study that draws it. Run the same study with another `[[model]]` table to see your
own model. Figures are named in a study's `[[figure]]` tables;
[their settings](reference/figures.md) and [what their numbers mean](statistics.md) have pages of
their own, and [your own figure](extend.md#a-figure) is one file. Click a picture to enlarge it."""


def main(store: Path) -> None:
    parts = ["# Gallery of figures", NOTE, HEAD]
    of_study: dict[str, ponder.Results] = {}
    for title, name in STUDIES.items():
        figure = title.partition(" ")[0]
        if name not in of_study:
            path = str(HERE / name) if name.endswith(".toml") else name
            of_study[name] = ponder.Study.load(path).run(store=store)
        results = of_study[name]
        file = title.replace(" ", "_")
        _picture(results, figure, file)
        parts.append(_section(title, figure, file, name, results.findings(figure)))
        sys.stdout.write(f"{title}\n")
    (HERE / "gallery.md").write_text("\n\n".join(parts) + "\n", "utf-8")


def _picture(results: ponder.Results, figure: str, file: str) -> None:
    """Save a figure as a PNG that is small in bytes: few colours, and no wider than a page."""
    from PIL import Image

    drawn = draw(figure, results.chart(figure).to_dict())
    picture = Image.open(io.BytesIO(drawn.png)).convert("RGB")
    picture.thumbnail((WIDTH, 10 * WIDTH), Image.Resampling.LANCZOS)
    # An octree, because the default merges the colours of small dots: blue became the green of
    # another variant.
    reduced = picture.quantize(COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    reduced.save(HERE / "gallery" / f"{file}.png", optimize=True)


def _section(title: str, figure: str, file: str, study: str, findings: list[str]) -> str:
    about = plugins.names("figures")[figure]
    if study.endswith(".toml"):
        link = f"[`{study}`]({study})"
        path = f"docs/{study}"
    else:
        link = f"[`{study}`](reference/studies.md#{study})"
        path = study
    settings = f"[Settings](reference/figures.md#{figure})"
    commands = f"`ponder run {path}`, then `ponder report {path}`"
    alternative = f"The figure {figure}: {about[0].lower()}{about[1:].removesuffix('.')}"
    paragraphs = [
        f"## {title}",
        f"{about} {settings}. Drawn by {link}: {commands}.",
        f"[![{alternative}](gallery/{file}.png)](gallery/{file}.png)",
        f"> {_brief(findings)}",
    ]
    return "\n\n".join(paragraphs)


def _brief(findings: list[str]) -> str:
    """Return the beginning of a figure's findings, in whole clauses."""
    clauses = []
    for finding in findings:
        if not finding.startswith("Pooled over"):
            clauses += finding.removesuffix(".").split("; ")
    text = clauses[0]
    for clause in clauses[1:]:
        if len(text) >= LENGTH:
            break
        text = f"{text}; {clause}"
    return f"{text}."


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent / "reports" / "gallery.db")
