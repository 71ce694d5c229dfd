"""Groups outcomes into panels of variants, and gives variants short names; shared by the figures of variants."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from ponder.core import Outcome, UserError
from ponder.core.plugins import nearest
from ponder.figures import counts
from ponder.stats.frontier import Variants, variants


def panels(outcomes: Sequence[Outcome], by: Literal["task", "size"]) -> Iterator[tuple[str, Variants, str]]:
    """The title of each panel that has answers, its variants, and the attempts it is based on."""
    groups: dict[tuple[str, int], list[Outcome]] = {}
    for o in outcomes:
        groups.setdefault((o.task, o.size if by == "size" else 0), []).append(o)
    for (task, size), part in sorted(groups.items()):
        data = variants(part)
        if data.variants:
            left_out = f", {data.left_out:,} problems that not all answered left out" if data.left_out else ""
            yield f"{task} {size}" if by == "size" else task, data, counts(part) + left_out


def reference_of(outcomes: Sequence[Outcome], name: str) -> str:
    """The variant that others are compared with: the one named, or the study's first."""
    known = dict.fromkeys(o.variant for o in outcomes)
    if name and name not in known:
        raise UserError(f"the reference `{name}` is no model of this study", hint=nearest(name, known))
    return name or next(iter(known))


def short_names(outcomes: Sequence[Outcome], reference: str) -> dict[str, str]:
    """A name for each variant: its methods alone, if it has the same base model as the reference."""
    base = next(o.base for o in outcomes if o.variant == reference)
    return {o.variant: o.variant.removeprefix(f"{base} + ") if o.base == base else o.variant for o in outcomes}


def points(record: dict[str, Any], name: str) -> str:
    """A difference of accuracies in a sentence: `+2.5 points [−1.0, +6.0]`."""
    value, low, high = (signed(record[f"{name}{end}"]) for end in ("", "_low", "_high"))
    return f"{value} points [{low}, {high}]"


def signed(fraction: float) -> str:
    """In points, with a minus as long as the plus."""
    return f"{100 * fraction:+.1f}".replace("-", "−")


def compared(record: dict[str, Any], name: str) -> str:
    """What the interval of a difference says about the first against the second."""
    low, high = record[f"{name}_low"], record[f"{name}_high"]
    return "beats" if low > 0 else "is worse than" if high < 0 else "can't be told from"
