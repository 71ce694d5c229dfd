"""What figures of a model's variants share: their panels, their reference and their short names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from ponder.core import Outcome, UserError
from ponder.core.plugins import nearest
from ponder.figures import counts
from ponder.stats.frontier import Variants, variants


def panels(outcomes: Sequence[Outcome], by: Literal["task", "size"]) -> Iterator[tuple[str, Variants, str]]:
    """The title of each panel that has answers, its variants, and what it rests on."""
    groups: dict[tuple[str, int], list[Outcome]] = {}
    for o in outcomes:
        groups.setdefault((o.task, o.size if by == "size" else 0), []).append(o)
    for (task, size), part in sorted(groups.items()):
        data = variants(part)
        if data.variants:
            left_out = f", {data.left_out:,} problems that not all answered left out" if data.left_out else ""
            yield f"{task} {size}" if by == "size" else task, data, counts(part) + left_out


def reference_of(outcomes: Sequence[Outcome], name: str) -> str:
    """The variant that others are set against: the one named, or the study's first."""
    known = dict.fromkeys(o.variant for o in outcomes)
    if name and name not in known:
        raise UserError(f"the reference `{name}` is no model of this study", hint=nearest(name, known))
    return name or next(iter(known))


def short_names(names: Sequence[str], reference: str) -> dict[str, str]:
    """Names without the model that the reference is, or is made of."""
    base = reference.partition(" + ")[0] + " + "
    return {name: name.removeprefix(base) for name in names}


def points(record: dict[str, Any], name: str) -> str:
    """A difference of shares in a sentence."""
    value, low, high = (signed(record[f"{name}{end}"]) for end in ("", "_low", "_high"))
    return f"{value} points [{low}, {high}]"


def signed(share: float) -> str:
    """In points, with a minus as long as the plus."""
    return f"{100 * share:+.1f}".replace("-", "−")
