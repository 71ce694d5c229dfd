"""Turn accuracy against the share of error_rate in the history: does a model slip more after seeing its own slips?

After Sinha et al. 2025: histories are history_turns with true or perturbed sums and only the next turn is asked. The drop from
a fresh start to a true history is the effect of a long context alone; what error_rate add to it is self-conditioning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt
import numpy as np

from ponder.core import Estimate, Figure, Outcome, Tables
from ponder.figures import COLOURS, counts, flat, percent, span, themed, values, with_details
from ponder.stats.accuracy import accuracy
from ponder.stats.columns import clusters
from ponder.stats.difference import difference


@dataclass(frozen=True)
class SelfConditioning(Figure):
    def estimate(self, outcomes: Sequence[Outcome]) -> Tables:
        tables: Tables = {"summary": [], "points": [], "effects": []}
        groups: dict[str, dict[tuple[int, float], list[Outcome]]] = {}
        for o in with_details(outcomes, "history_turns"):
            place = (o.details["history_turns"], o.details["error_rate"])
            groups.setdefault(o.model, {}).setdefault(place, []).append(o)
        for model, places in sorted(groups.items()):
            found = {place: _first_turn(part) for place, part in sorted(places.items())}
            tables["summary"].append(
                {"series": model, "rests_on": counts([o for part in places.values() for o in part])}
            )
            for (history_turns, error_rate), right in found.items():
                row = flat(
                    series=model,
                    history_turns=history_turns,
                    error_rate=error_rate,
                    turn_accuracy=right,
                    attempts=right.attempts,
                )
                tables["points"].append(row)
                long = found.get((history_turns, 0.0))
                if history_turns and error_rate == 0 and (0, 0.0) in found:
                    drop = difference(found[0, 0.0], right)
                    tables["effects"].append(
                        flat(
                            series=model,
                            history_turns=history_turns,
                            error_rate=error_rate,
                            effect="long context",
                            drop=drop,
                        )
                    )
                elif history_turns and error_rate and long:
                    drop = difference(long, right)
                    tables["effects"].append(
                        flat(
                            series=model,
                            history_turns=history_turns,
                            error_rate=error_rate,
                            effect="self-conditioning",
                            drop=drop,
                        )
                    )
        return tables

    def findings(self, tables: Tables) -> list[str]:
        return [
            f"{row['series']}: {row['effect']} costs {span(row, 'drop', '.0%')} of turn accuracy after {row['history_turns']} "
            f"turns" + (f" with {row['error_rate']:.0%} wrong." if row["error_rate"] else ".")
            for row in tables["effects"]
        ]

    def draw(self, tables: Tables) -> alt.TopLevelMixin:
        names = [r["series"] for r in tables["summary"]]
        later = [p for p in tables["points"] if p["history_turns"]] or tables["points"]
        fresh = [p for p in tables["points"] if not p["history_turns"]]
        scale = alt.Scale(domain=names, range=COLOURS)
        colour = alt.Color("series:N", scale=scale, legend=alt.Legend(title=None, orient="bottom"))
        x = alt.X("error_rate:Q", title="share of wrong sums in the history", axis=alt.Axis(format="%"))
        y = percent("turn_accuracy", "accuracy of the next turn")
        low, high = percent("turn_accuracy_low"), "turn_accuracy_high:Q"
        shown, start = alt.Chart(values(later)), alt.Chart(values(fresh))
        tooltip = ["series:N", "history_turns:Q", "error_rate:Q", "turn_accuracy:Q", "attempts:Q"]
        dashes = alt.StrokeDash("history_turns:N", legend=alt.Legend(title="turns in the history", orient="bottom"))
        layers = [
            start.mark_rule(strokeDash=[3, 3]).encode(y=y, color=colour, tooltip=tooltip),
            shown.mark_line().encode(x=x, y=y, color=colour, strokeDash=dashes),
            shown.mark_rule().encode(x=x, y=low, y2=high, color=colour),
            shown.mark_point(filled=True, size=55, opacity=1).encode(x=x, y=y, color=colour, tooltip=tooltip),
        ]
        subtitle = [f"{r['series']}: {r['rests_on']}" for r in tables["summary"]]
        if fresh:
            subtitle.append("dashed: the first turn of a fresh conversation")
        title = alt.TitleParams("Errors in the history and the next turn", subtitle=subtitle)
        return themed(alt.layer(*layers, width=460, height=300, title=title))


def _first_turn(part: Sequence[Outcome]) -> Estimate:
    """How often the first turn asked is right, given the sum that was shown before it."""
    answered = sorted(o for o in part if o.status != "failed")
    right = [o.details["said"][0] == o.details["true"][0] for o in answered]
    return accuracy(np.array(right, dtype=np.bool_), clusters(answered))
