"""Plots tokens, money or seconds against problem size, with a fitted power law and the size at which
accuracy falls below 50 %.

The tokens are thinking tokens, or output tokens (thinking + answer) if a model reasons in its reply
and so reports no thinking. A task of one size, such as a benchmark, has no trend: its tokens are
shown by outcome, with their medians.

The curve is the geometric mean of a censored lognormal power law with a bend, through all attempts,
with a 95 % band and the 90 % quantile; next to it the curve of the solved attempts, which shows
what success took. Both are pale where more than 20 % of the attempts were truncated. The tables
also have the critical size under smaller budgets.

After figure 2 of Estermann & Wattenhofer (2025), who fit a straight line to the solved attempts
only. An overlay shows their lines, and the same line through these attempts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import altair as alt
import numpy as np

from ponder.core import Basis, Estimate, Figure, Measure, Outcome, Records, Resource, Tables
from ponder.core.text import number
from ponder.figures import (
    INK,
    MUTED,
    SOLVED,
    Row,
    basis,
    by_series,
    counts,
    curve_records,
    flat,
    heading,
    in_problem_order,
    interval_tooltips,
    rows_of,
    span,
    themed,
    values,
)
from ponder.figures._label_placement import Frame, label_lines, lettering
from ponder.figures._outcome_strips import (
    MAX_POINTS,
    OUTCOMES,
    outcome_clause,
    outcome_marks,
    outcome_rows,
    strips,
)
from ponder.figures._published import by_model, published
from ponder.figures._units import (
    Amounts,
    Tokens,
    amount_columns,
    estimated,
    no_overlay,
    overlay_notes,
    singular,
    size_title,
    token_findings,
    unit_of,
    with_unit,
)
from ponder.stats.columns import Columns, columns
from ponder.stats.critical import critical_size
from ponder.stats.designs.critical_size import LEVEL, after_ladder
from ponder.stats.effort import EXTRAPOLATED, PowerLaw, by_budget, effort
from ponder.stats.effort import Effort as Fits

SIGNIFICANT = 0.05  # below this p-value, a bend or a lack of fit is reported
# If high / low of an interval is larger than this, the number is in the tables only: it is neither
# quoted in a sentence nor drawn.
MAX_INTERVAL_RATIO = 100
ADAPTIVE = "adaptive run: more near the critical size"
MAX_LISTED = 100_000  # rows of the table of attempts; `ponder export` has every attempt
ONE_PANEL = (520, 330)  # pixels
SEVERAL_PANELS = (400, 280)
DARK = "#444444"
# For each fit: its name in the legend, its colour and its dashes.
LINES = {
    "all": ("all: geometric mean", DARK, [1, 0]),
    "all, 90 %": ("all: 90 % quantile", DARK, [6, 3]),
    "solved": ("solved: geometric mean", SOLVED, [1, 0]),
    "line": ("solved: straight line", SOLVED, [2, 2]),
    "published": ("published", MUTED, [2, 2]),
}


@dataclass(frozen=True)
class Effort(Figure):
    overlay: Literal["", "tents_effort"] = ""  # published lines to draw as well
    unit: str = ""  # what size counts, such as "cells"; default: the task's own unit
    # of an answer, on the axis: its tokens, its cost in money, or its seconds
    measure: Measure = "tokens"
    # which to count; auto: thinking if every model reports it, else output (thinking + answer)
    tokens: Tokens = "auto"
    # intervals that stay valid if earlier results chose the sizes; set if `stop` finds critical sizes
    adaptive: bool = False

    def __post_init__(self) -> None:
        no_overlay(self.overlay, self.measure)

    def estimate(self, outcomes: Sequence[Outcome]) -> Tables:
        names = ("summary", "fits", "sizes", "by_budget", "curves", "outcomes", "attempts")
        tables: Tables = {name: [] for name in names}
        measured = amount_columns(outcomes, self.measure, self.tokens)
        amounts = Amounts.of(measured)
        stride = math.ceil(len(outcomes) / MAX_LISTED)
        level = LEVEL if self.adaptive else 0.95
        for series, attempts in by_series(outcomes):
            data = columns(attempts, amounts.resource)
            unit = unit_of(attempts, self.unit)
            fits = effort(data)
            critical = critical_size(data, level)
            size = after_ladder(data) if self.adaptive else critical.size
            quoted_size = _quoted_size(fits, size)
            notes = [counts(attempts), estimated(attempts), ADAPTIVE if self.adaptive else ""]
            summary = flat(
                series=series,
                critical_size=size,
                lapse=critical.lapse,
                effort=_trend(fits),
                compared_at=quoted_size,
                no_fit=_why_no_fit(data, fits.on_all, quoted_size, amounts),
                no_fit_to_solved=_why_no_fit_to_solved(fits.on_solved, quoted_size),
                rests_on="; ".join(note for note in notes if note),
                unit=unit,
                **measured,
                basis=basis(attempts),
            )
            tables["summary"].append(summary)
            if len(np.unique(data.size)) == 1 and not self.overlay:
                tables["outcomes"] += outcome_rows(series, data, unit, attempts)
            else:
                _add_fits(tables, series, fits, attempts)
                for budget, critical_at in by_budget(data, size, level, whole=amounts.are_tokens):
                    row = flat(
                        series=series,
                        budget=budget,
                        critical_size=critical_at,
                        basis=summary["basis"],
                    )
                    tables["by_budget"].append(row)
            for outcome in _listed(attempts, amounts.resource, stride):
                tables["attempts"].append(_attempt_row(series, outcome, amounts.resource))
        return amounts.named(tables)

    def findings(self, tables: Tables) -> list[str]:
        sentences = token_findings(tables["summary"])
        if self.overlay:
            notes = overlay_notes("thinking", tables["summary"][0]["token_kind"])
            sentences += [f"{note.capitalize()}." for note in notes]
        for summary in tables["summary"]:
            medians = rows_of(tables["outcomes"], summary)
            if medians:
                clauses = [outcome_clause(medians, Amounts.of(summary))]
            else:
                clauses = [*_headlines(tables, summary), *_details(tables, summary)]
            sentences.append(f"{summary['series']}: {'; '.join(clauses)}.")
        return sentences

    def draw(self, tables: Tables) -> alt.TopLevelMixin:
        overlay = published(self.overlay) if self.overlay else []
        # One legend for all panels: an outcome that only one of them has must look the same in
        # each.
        present = {attempt["outcome"] for attempt in tables["attempts"]}
        endings = [ending for ending in OUTCOMES if ending in present]
        with_fits: Tables = {**tables, "summary": [], "attempts": []}
        with_strips: Tables = {"outcomes": tables["outcomes"], "summary": [], "attempts": []}
        for summary in tables["summary"]:
            one_size = rows_of(tables["outcomes"], summary)
            group = with_strips if one_size else with_fits
            group["summary"].append(summary)
            group["attempts"] += _attempts(tables, summary)
        charts = []
        if with_fits["summary"]:
            charts.append(self._panels(with_fits, endings, overlay))
        if with_strips["summary"]:
            charts.append(strips(with_strips, endings, ONE_PANEL[0]))
        if len(charts) == 1:
            return themed(charts[0])
        return themed(alt.vconcat(*charts, spacing=40))

    def _panels(self, tables: Tables, endings: Sequence[str], overlay: Records) -> Any:
        """Draw a panel per series; panels with the same unit have the same x axis."""
        sizes: dict[str, list[float]] = {}
        for summary in tables["summary"]:
            of_unit = sizes.setdefault(summary["unit"], [row["size"] for row in overlay])
            of_unit += [attempt["size"] for attempt in _attempts(tables, summary)]
        amounts = Amounts.of(tables["summary"][0])
        field = amounts.noun
        most = max((row[field] for row in [*tables["attempts"], *overlay]), default=0)
        if amounts.are_tokens:
            most = max(1, most)
        width, height = ONE_PANEL if len(tables["summary"]) == 1 else SEVERAL_PANELS
        panels = []
        for summary in tables["summary"]:
            axes = _Axes(
                max_size=1.04 * max([1, *sizes[summary["unit"]]]),
                max_amount=1.1 * most or 1.0,
                width=width,
                height=height,
                unit=summary["unit"],
                field=field,
                title=amounts.answer_title,
            )
            panels.append(_panel(tables, summary, axes, endings, overlay))
        if len(panels) == 1:
            return panels[0]
        # Sizes in different units, such as 30 cells and 30 steps, don't share an axis.
        x: Any = "shared" if len(sizes) == 1 else "independent"
        return alt.concat(*panels, columns=2, spacing=30).resolve_scale(x=x, y="shared")


# Tables.


def _quoted_size(fits: Fits, critical: Estimate) -> float:
    """Return the size whose tokens are quoted, of all attempts and of the solved ones.

    It is the measured size nearest to the critical size, or the middle one if that is unknown.
    """
    if fits.on_all is None:
        return math.nan
    sizes = [fitted.size for fitted in fits.on_all.sizes]
    if fits.on_solved:
        solved = {fitted.size for fitted in fits.on_solved.sizes}
        sizes = [size for size in sizes if size in solved] or sizes
    if math.isnan(critical.value):
        return sizes[len(sizes) // 2]
    return min(sizes, key=lambda size: abs(math.log(size / critical.value)))


def _why_no_fit(data: Columns, law: PowerLaw | None, quoted_size: float, amounts: Amounts) -> str:
    """Say why the fit to all attempts is neither quoted nor drawn; "" if it is."""
    truncated_at = data.tokens[data.truncated]
    wide = law is not None and not _is_quotable(law, quoted_size)
    if len(truncated_at):
        extrapolated = law is None or (
            all(fitted.extrapolated for fitted in law.sizes)
            and _tokens_at(law, quoted_size).value > truncated_at.max()
        )
        too_many = len(truncated_at) > EXTRAPOLATED * len(data)
        if extrapolated or (wide and too_many):
            cap = f"{amounts.text(float(truncated_at.max()))} {amounts.short_unit}"
            if truncated_at.min() != truncated_at.max():
                cap = f"up to {cap}"
            verb = "was" if len(truncated_at) == 1 else "were"
            return (
                f"{len(truncated_at):,} of {len(data):,} attempts {verb} truncated at {cap}: "
                "too many for a fit"
            )
    return "too few attempts for a fit" if wide else ""


def _why_no_fit_to_solved(law: PowerLaw | None, quoted_size: float) -> str:
    """Say why the fit to solved attempts is neither quoted nor drawn; "" if it is."""
    if law is not None and not _is_quotable(law, quoted_size):
        return "too few solved attempts for a fit"
    return ""


def _tokens_at(law: PowerLaw, size: float) -> Estimate:
    """Return a fit's tokens at a size, or at its middle size if this one wasn't fitted."""
    for fitted in law.sizes:
        if fitted.size == size:
            return fitted.tokens
    return law.sizes[len(law.sizes) // 2].tokens


def _is_quotable(law: PowerLaw, size: float) -> bool:
    tokens = _tokens_at(law, size)
    return _is_narrow(tokens.low, tokens.high)


def _is_narrow(low: float | None, high: float | None) -> bool:
    return bool(low and high and high <= MAX_INTERVAL_RATIO * low)


def _add_fits(tables: Tables, series: str, fits: Fits, attempts: Sequence[Outcome]) -> None:
    """Add the coefficients of every fit, its numbers at each size, and its curves."""
    all_basis = basis(attempts)
    solved_basis = basis(attempts, ("right",))
    if fits.on_all:
        _add_power_law(tables, series, "all", fits.on_all, all_basis)
    if fits.on_solved:
        _add_power_law(tables, series, "solved", fits.on_solved, solved_basis)
    line = fits.line_on_solved
    if line:
        row = flat(
            series=series,
            fitted_to="solved, as published",
            tokens_per_size=line.slope,
            tokens_at_zero=line.intercept,
            basis=solved_basis,
        )
        tables["fits"].append(row)
        tables["curves"] += curve_records(
            line.curve, series=series, fit="line", extrapolated=False, basis=solved_basis
        )
    peak = fits.peak
    if peak:
        row = flat(
            series=series,
            fitted_to="all, with a peak",
            peak=peak.size,
            exponent_before=peak.before,
            exponent_after=peak.after,
            peak_p=peak.p_value,
            basis=all_basis,
        )
        tables["fits"].append(row)


def _add_power_law(tables: Tables, series: str, name: str, law: PowerLaw, fit_basis: Basis) -> None:
    """Add the coefficients of a power law, its numbers at each size, and its two curves."""
    coefficients = flat(
        series=series,
        fitted_to=name,
        exponent=law.exponent,
        bend=law.bend or Estimate(math.nan, -math.inf, math.inf, 0, 0),
        bend_p=law.bend_p,
        lack_of_fit_p=law.lack_of_fit_p,
        attempts=law.exponent.attempts,
        problems=law.exponent.problems,
        without_tokens=law.left_out,
        basis=fit_basis,
    )
    tables["fits"].append(coefficients)
    extrapolated_from = math.inf
    for at_size in law.sizes:
        if at_size.extrapolated:
            extrapolated_from = min(extrapolated_from, at_size.size)
        cells = [cell for cell in fit_basis.cells if cell.size == at_size.size]
        row = flat(
            series=series,
            fitted_to=name,
            size=at_size.size,
            geometric_mean=at_size.tokens,
            quantile_90=at_size.upper,
            spread=at_size.spread,
            truncated=at_size.truncated,
            extrapolated=at_size.extrapolated,
            attempts=at_size.tokens.attempts,
            problems=at_size.tokens.problems,
            basis=Basis(cells, fit_basis.ended),
        )
        tables["sizes"].append(row)
    for curve, fit in ((law.curve, name), (law.upper, f"{name}, 90 %")):
        for row in curve_records(curve, series=series, fit=fit, basis=fit_basis):
            row["extrapolated"] = row["size"] >= extrapolated_from
            tables["curves"].append(row)


def _trend(fits: Fits) -> str:
    """Describe how tokens change with size: the verdict, with its peak or bend if there is one."""
    peak = fits.peak
    if peak:
        row = flat(size=peak.size, before=peak.before, after=peak.after)
        return (
            f"falls after a peak near {span(row, 'size')}: size^{span(row, 'before')} before, "
            f"size^{span(row, 'after')} after ({_p(peak.p_value)})"
        )
    law = fits.on_all
    if fits.verdict != "rises" or law is None or law.bend is None or not law.bend_p < SIGNIFICANT:
        return fits.verdict
    pace = "ever faster" if law.bend.value > 0 else "ever more slowly"
    return f"rises, {pace} than a power law ({_p(law.bend_p)})"


def _listed(outcomes: Sequence[Outcome], resource: Resource, stride: int) -> list[Outcome]:
    """Return one of every `stride` attempts for the table, and the last and the longest one."""
    answered = in_problem_order(outcomes)
    if stride <= 1 or not answered:
        return answered
    used = [outcome.used(resource) for outcome in answered]
    listed = {*range(0, len(answered), stride), len(answered) - 1, used.index(max(used))}
    return [answered[i] for i in sorted(listed)]


def _attempt_row(series: str, outcome: Outcome, resource: Resource) -> Row:
    return {
        "series": series,
        "size": outcome.size,
        "tokens": outcome.used(resource),
        "outcome": "solved" if outcome.correct else outcome.ended,
        "why": outcome.why or "right",
        "problem": outcome.problem[:60],
        "sample": outcome.sample,
        "attempt": outcome.attempt,
    }


# Sentences, also under the panels' titles.


def _headlines(tables: Tables, summary: Row) -> list[str]:
    """Write accuracy, the tokens of all attempts and of the solved ones, and the trend."""
    no_fit = {"all": summary["no_fit"], "solved": summary["no_fit_to_solved"]}
    fits = _by_fit(tables["fits"], summary)
    sizes = _by_fit(tables["sizes"], summary)
    clauses = [_accuracy(tables, summary)]
    for name, subject in (("all", "all attempts"), ("solved", "solved ones")):
        if no_fit[name] or name not in fits:
            continue
        for row in sizes.get(name, []):
            if row["size"] == summary["compared_at"]:
                tokens = _tokens_clause(row, summary)
                clauses.append(f"{subject}: {tokens}{_growth(fits[name][0])}")
    reasons = [reason for reason in no_fit.values() if reason]
    clauses += reasons[:1]
    if no_fit["all"]:
        return clauses
    clauses.append(f"effort over all attempts: {summary['effort']}")
    extrapolated = [row["size"] for row in sizes.get("all", []) if row["extrapolated"]]
    if extrapolated:
        size = with_unit(format(extrapolated[0], "g"), summary["unit"])
        clauses.append(f"extrapolated from {size} on: more than 20 % of the attempts are truncated")
    return clauses


def _by_fit(rows: Records, summary: Row) -> dict[str, Records]:
    """Group the rows of a series by their column `fitted_to`."""
    groups: dict[str, Records] = {}
    for row in rows_of(rows, summary):
        groups.setdefault(row["fitted_to"], []).append(row)
    return groups


def _tokens_clause(row: Row, summary: Row) -> str:
    """Write the tokens at a size: the geometric mean, and for all attempts the 90 % quantile."""
    amounts = Amounts.of(summary)
    size = with_unit(format(row["size"], "g"), summary["unit"])
    note = "geometric mean"
    if row["extrapolated"]:
        note += ", extrapolated"
    mean = span(row, amounts.column("geometric_mean"))
    clause = f"{mean} {amounts.unit} at {size} ({note})"
    quantile = amounts.column("quantile_90")
    if row["fitted_to"] == "all" and _is_narrow(row[f"{quantile}_low"], row[f"{quantile}_high"]):
        clause += f", 90 % within {span(row, quantile)}"
    return clause


def _details(tables: Tables, summary: Row) -> list[str]:
    """Write the clauses that only the findings have: straight line, lack of fit, and budgets."""
    unit = summary["unit"]
    amounts = Amounts.of(summary)
    clauses = []
    for fit in rows_of(tables["fits"], summary):
        if fit["fitted_to"] == "solved, as published" and not summary["no_fit_to_solved"]:
            clauses.append(
                "a straight line through solved attempts, as published: "
                f"{span(fit, amounts.column('tokens_per_size'))} {amounts.unit} "
                f"per {singular(unit)}"
            )
        if fit["fitted_to"] == "all":
            p_value = fit["lack_of_fit_p"]
            if not summary["no_fit"] and p_value is not None and p_value < SIGNIFICANT:
                clauses.append(
                    f"the curve misses the means of some sizes (lack of fit, {_p(p_value)})"
                )
            without = fit[amounts.column("without_tokens")]
            if without:
                lacking = amounts.unit if amounts.are_tokens else amounts.noun
                clauses.append(f"left out of the fit: {without:,} without {lacking}")
    # The smallest budget is an eighth of the largest, which may round down to 0.
    budget = amounts.column("budget")
    budgets = [row for row in rows_of(tables["by_budget"], summary) if row[budget]]
    largest = max((row[budget] for row in budgets), default=0.0)
    sizes = []
    for row in budgets:
        # Quote 1/2, 1/4 and 1/8 of the largest budget; the table has others too.
        is_halving = math.log2(largest / row[budget]) % 1 < 0.01
        if not is_halving or row["critical_size"] is None:
            continue
        if not _covers_every_size(tables, row, summary):
            size = with_unit(span(row, "critical_size"), unit)
            sizes.append(f"{size} within {amounts.text(row[budget])}")
    if len(sizes) > 1:
        clauses.append(f"critical size by budget: {', '.join(sizes)} {amounts.unit}")
    return clauses


def _p(value: float) -> str:
    return "p < 0.001" if value < 0.001 else f"p = {value:.2g}"


def _attempts(tables: Tables, summary: Row) -> Records:
    """Return the listed attempts of a series."""
    return [row for row in tables["attempts"] if row["series"] == summary["series"]]


def _covers_every_size(tables: Tables, row: Row, summary: Row) -> bool:
    """Return whether the interval of a critical size covers every size of its series."""
    sizes = [attempt["size"] for attempt in _attempts(tables, summary)]
    low = row["critical_size_low"] or 0.0
    high = row["critical_size_high"]
    return low <= min(sizes, default=0) and (high is None or high >= max(sizes, default=0))


def _accuracy(tables: Tables, summary: Row) -> str:
    if summary["critical_size"] is None:
        return "accuracy does not cross 50 % within the sizes asked"
    if _covers_every_size(tables, summary, summary):
        size = with_unit(number(summary["critical_size"]), summary["unit"])
        return f"accuracy falls below 50 % near {size}, but its interval covers every size asked"
    size = with_unit(span(summary, "critical_size"), summary["unit"])
    return f"accuracy falls below 50 % at {size}"


def _growth(fit: Row) -> str:
    """Write the exponent, unless it is too uncertain.

    It is if the tokens at ten times a size would have an interval wider than `MAX_INTERVAL_RATIO`.
    """
    low = fit["exponent_low"]
    high = fit["exponent_high"]
    if low is None or high is None or high - low > math.log10(MAX_INTERVAL_RATIO):
        return ""
    verb = "growing" if fit["exponent"] > 0 else "falling"
    return f", {verb} as size^{span(fit, 'exponent')}"


# Charts.


@dataclass(frozen=True)
class _Axes:
    """Axes that show every attempt of the panels with one unit, and the overlay."""

    max_size: float
    max_amount: float
    width: int  # pixels
    height: int
    unit: str  # of sizes
    field: str  # of the y axis: `tokens`, `cost` or `seconds`
    title: str  # of the y axis

    def x(self, field: str = "size") -> alt.X:
        scale = alt.Scale(domain=[0, self.max_size], nice=False)
        ticks = min(10, int(self.max_size))  # at whole sizes only
        return alt.X(
            f"{field}:Q", title=size_title(self.unit), scale=scale, axis=alt.Axis(tickCount=ticks)
        )

    def y(self, field: str = "") -> alt.Y:
        scale = alt.Scale(domain=[0, self.max_amount], nice=False)
        axis = alt.Axis(tickCount=8)
        return alt.Y(f"{field or self.field}:Q", title=self.title, scale=scale, axis=axis)


def _panel(
    tables: Tables, summary: Row, axes: _Axes, endings: Sequence[str], overlay: Records
) -> Any:
    attempts = _attempts(tables, summary)
    stride = max(1, math.ceil(len(attempts) / MAX_POINTS))
    points = attempts[::stride]
    fits = _drawn_fits(tables, overlay=bool(overlay))
    layers = _critical_size(tables, summary, axes)
    layers.append(_points(points, endings, axes))
    if overlay:
        layers.append(_overlay(overlay, points, fits, axes))
    layers += _curves(_quoted_curves(tables, summary), fits, axes)
    rests_on = summary["rests_on"]
    if len(points) < len(attempts):
        rests_on += f", {len(points):,} of them drawn"
    notes = [rests_on, *_headlines(tables, summary)]
    if overlay:
        notes += overlay_notes("thinking", summary["token_kind"])
    title = heading(summary["series"], notes, axes.width)
    return alt.layer(*layers, width=axes.width, height=axes.height, title=title)


def _quoted_curves(tables: Tables, summary: Row) -> Records:
    """Return the curves of a series' fits that are reliable enough to be quoted and drawn."""
    curves = []
    for row in rows_of(tables["curves"], summary):
        is_fit_to_all = row["fit"] in ("all", "all, 90 %")
        if not summary["no_fit" if is_fit_to_all else "no_fit_to_solved"]:
            curves.append(row)
    return curves


def _drawn_fits(tables: Tables, *, overlay: bool) -> list[str]:
    """Return the fits that the legend of every panel names."""
    fits = set()
    for summary in tables["summary"]:
        for row in _quoted_curves(tables, summary):
            fits.add(row["fit"])
    fits.discard("line")
    if overlay:
        fits |= {"line", "published"}
    return [fit for fit in LINES if fit in fits]


def _critical_size(tables: Tables, summary: Row, axes: _Axes) -> list[Any]:
    """Draw the critical size and its interval, over the whole height."""
    if summary["critical_size"] is None:
        return []
    chart = alt.Chart(values([summary]))
    tooltip = interval_tooltips("critical_size", ".1f")
    layers = []
    bounded = None not in (summary["critical_size_low"], summary["critical_size_high"])
    if bounded and not _covers_every_size(tables, summary, summary):
        layers.append(
            chart.mark_rect(color=MUTED, opacity=0.2, clip=True).encode(
                x=axes.x("critical_size_low"), x2="critical_size_high:Q", tooltip=tooltip
            )
        )
    if summary["critical_size"] > 0.8 * axes.max_size:
        text = chart.mark_text(align="right", dx=-5, color=INK, fontSize=10)
    else:
        text = chart.mark_text(align="left", dx=5, color=INK, fontSize=10)
    middle = axes.x("critical_size")
    layers += [
        chart.mark_rule(color=MUTED, strokeDash=[4, 3]).encode(x=middle, tooltip=tooltip),
        text.encode(x=middle, y=alt.value(axes.height - 8), text=alt.value("50 % right")),
    ]
    return layers


def _points(points: Records, endings: Sequence[str], axes: _Axes) -> Any:
    """Draw one mark per attempt, the rarer outcomes on top."""
    marks = alt.Chart(values(sorted(points, key=lambda point: endings.index(point["outcome"]))))
    return marks.mark_point(size=26, opacity=0.55, strokeWidth=1.2).encode(
        x=axes.x(), y=axes.y(), **outcome_marks(endings, axes.field)
    )


def _lines(rows: Records, fits: Sequence[str], axes: _Axes, y: str = "") -> Any:
    """Draw lines that the legend names by their column `fit`, pale where extrapolated."""
    legend = alt.Legend(
        title=None, orient="bottom", symbolType="stroke", symbolSize=300, clipHeight=18, columns=2
    )
    names, colours, dashes = zip(*(LINES[fit] for fit in fits), strict=True)
    colour_scale = alt.Scale(domain=list(names), range=list(colours))
    dash_scale = alt.Scale(domain=list(names), range=list(dashes))
    opacity_scale = alt.Scale(domain=[False, True], range=[1, 0.35])
    named = [{**row, "line": LINES[row["fit"]][0]} for row in rows]
    return (
        alt.Chart(values(named))
        .mark_line(strokeWidth=2, clip=True)
        .encode(
            x=axes.x(),
            y=axes.y(y),
            detail="model:N",
            color=alt.Color("line:N", scale=colour_scale, legend=legend),
            strokeDash=alt.StrokeDash("line:N", scale=dash_scale, legend=legend),
            opacity=alt.Opacity("extrapolated:N", scale=opacity_scale, legend=None),
        )
    )


def _curves(curves: Records, fits: Sequence[str], axes: _Axes) -> list[Any]:
    """Draw the curves of the fits, and the bands of the geometric means."""
    layers: list[Any] = []
    rows: Records = []
    for fit in fits:
        curve = [row for row in curves if row["fit"] == fit and row["value"] is not None]
        fitted = [row for row in curve if not row["extrapolated"]]
        extrapolated = [row for row in curve if row["extrapolated"]]
        rows += fitted
        if extrapolated and fitted:  # the pale line starts where the other ends
            rows.append({**fitted[-1], "extrapolated": True})
        rows += extrapolated
        if curve and fit in ("all", "solved"):
            band = [row for row in curve if row["low"] is not None and row["high"] is not None]
            area = alt.Chart(values(band)).mark_area(color=LINES[fit][1], opacity=0.16, clip=True)
            layers.append(area.encode(x=axes.x(), y=axes.y("low"), y2="high:Q"))
    if not rows:
        return []
    return [*layers, _lines(rows, fits, axes, "value")]


def _overlay(records: Records, points: Records, fits: Sequence[str], axes: _Axes) -> Any:
    """Draw published lines, on the same axes, each with its model's name."""
    frame = Frame((0, axes.max_size), (0, axes.max_amount), axes.width, axes.height)
    avoid = []  # each point, as a line without length
    for point in points:
        position = (point["size"], point["tokens"])
        avoid.append([position, position])
    labels = label_lines(by_model(records), frame, "size", "tokens", avoid)
    text = alt.layer(*lettering("size", alt.value(INK), "tokens"), data=values(labels))
    rows = [{**record, "fit": "published", "extrapolated": False} for record in records]
    return alt.layer(_lines(rows, fits, axes), text)
