"""What `effort` says: its tables of fits, and the clauses that its picture and its findings share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ponder.core import Estimate, Records, Tables
from ponder.figures import curve_records, flat, span
from ponder.figures._units import at, one
from ponder.stats.effort import Effort, PowerLaw

SURE = 0.05  # below this p-value, a bend or a lack of fit is reported


def compared_at(fits: Effort, critical: Estimate) -> float:
    """The size at which all attempts and the solved ones are compared: near the critical size, else in the middle."""
    if fits.on_all is None:
        return math.nan
    sizes = [s.size for s in fits.on_all.sizes]
    solved = {s.size for s in fits.on_solved.sizes} if fits.on_solved else set()
    both = [size for size in sizes if size in solved] or sizes
    if math.isnan(critical.value):
        return both[len(both) // 2]
    return min(both, key=lambda size: abs(math.log(size / critical.value)))


def fit_tables(series: str, fits: Effort) -> Tables:
    """The coefficients of every fit, its numbers at each size, and its curves."""
    tables: Tables = {"fits": [], "sizes": [], "curves": []}
    for name, law in (("all", fits.on_all), ("solved", fits.on_solved)):
        if law:
            tables["fits"].append(_coefficients(series, name, law))
            tables["sizes"] += _sizes(series, name, law)
            beyond = min((s.size for s in law.sizes if s.extrapolated), default=math.inf)
            for curve, drawn_as in ((law.curve, name), (law.upper, f"{name}, 90 %")):
                points = curve_records(curve, series=series, fit=drawn_as)
                tables["curves"] += [{**r, "extrapolated": r["size"] >= beyond} for r in points]
    if line := fits.line_on_solved:
        numbers = {"tokens_per_size": line.slope, "tokens_at_zero": line.intercept}
        tables["fits"].append(flat(series=series, fitted_to="solved, as published", **numbers))
        tables["curves"] += curve_records(line.curve, series=series, fit="line", extrapolated=False)
    if peak := fits.peak:
        numbers = {"peak": peak.size, "exponent_before": peak.before, "exponent_after": peak.after}
        tables["fits"].append(flat(series=series, fitted_to="all, with a peak", **numbers, peak_p=peak.p_value))
    return tables


def _coefficients(series: str, name: str, law: PowerLaw) -> dict[str, Any]:
    bend = law.bend or Estimate(math.nan, -math.inf, math.inf, 0, 0)
    tests = {"bend_p": law.bend_p, "lack_of_fit_p": law.lack_of_fit_p}
    rests = {"attempts": law.exponent.attempts, "problems": law.exponent.problems, "without_tokens": law.left_out}
    return flat(series=series, fitted_to=name, exponent=law.exponent, bend=bend, **tests, **rests)


def _sizes(series: str, name: str, law: PowerLaw) -> Records:
    return [
        flat(
            series=series,
            fitted_to=name,
            size=s.size,
            geometric_mean=s.tokens,
            quantile_90=s.upper,
            spread=s.spread,
            truncated=s.truncated,
            extrapolated=s.extrapolated,
            attempts=s.tokens.attempts,
            problems=s.tokens.problems,
        )
        for s in law.sizes
    ]


def trend(fits: Effort) -> str:
    """The verdict; a peak with its interval, and whether the growth itself grows."""
    if peak := fits.peak:
        before, after = (span(flat(e=e), "e") for e in (peak.before, peak.after))
        where = span(flat(peak=peak.size), "peak")
        return f"falls after a peak near {where}: size^{before} before, size^{after} after ({_p(peak.p_value)})"
    law = fits.on_all
    if fits.verdict != "rises" or law is None or law.bend is None or not law.bend_p < SURE:
        return fits.verdict
    pace = "ever faster" if law.bend.value > 0 else "ever more slowly"
    return f"rises, {pace} than a power law ({_p(law.bend_p)})"


def headlines(tables: Tables, summary: dict[str, Any]) -> list[str]:
    """What all attempts say, then the solved ones, then the trend."""
    own = _own(tables, summary)
    clauses, tokens, where = [_accuracy(summary)], f" {summary['token_kind']} tokens", summary["compared_at"]
    for name, said in (("all", "all attempts"), ("solved", "solved ones")):
        fit = next((r for r in own["fits"] if r["fitted_to"] == name), None)
        row = next((r for r in own["sizes"] if (r["fitted_to"], r["size"]) == (name, where)), None)
        if fit and row:
            size = at(format(where, "g"), summary["unit"])
            note = ", extrapolated" if row["extrapolated"] else ""
            mean = f"{span(row, 'geometric_mean')}{tokens} at {size} (geometric mean{note})"
            within = f", 90 % within {span(row, 'quantile_90')}" if name == "all" else ""
            clauses.append(f"{said}: {mean}{within}, {_growth(fit)}")
    clauses.append(f"effort over all attempts: {summary['effort']}")
    return clauses + _extrapolated(own["sizes"], summary["unit"])


def details(tables: Tables, summary: dict[str, Any]) -> list[str]:
    """What the findings say besides: the published line, critical sizes by budget, and where the fit falls short."""
    own, unit, tokens = _own(tables, summary), summary["unit"], f"{summary['token_kind']} tokens"
    clauses = []
    for fit in own["fits"]:
        if fit["fitted_to"] == "solved, as published":
            slope = span(fit, "tokens_per_size")
            clauses.append(f"a straight line through solved attempts, as published: {slope} {tokens} per {one(unit)}")
        if fit["fitted_to"] == "all" and fit["lack_of_fit_p"] is not None and fit["lack_of_fit_p"] < SURE:
            clauses.append(f"the curve misses the means of some sizes (lack of fit, {_p(fit['lack_of_fit_p'])})")
        if fit["fitted_to"] == "all" and fit["without_tokens"]:
            clauses.append(f"left out of the fit: {fit['without_tokens']:,} without {tokens}")
    most = max((r["budget"] for r in own["by_budget"]), default=0.0)
    halves = [r for r in own["by_budget"] if math.log2(most / r["budget"]) % 1 < 0.01]  # the table has more
    known = [r for r in halves if r["critical_size"] is not None]
    if len(known) > 1:
        sizes = [f"{at(span(r, 'critical_size'), unit)} within {r['budget']:,.0f}" for r in known]
        clauses.append(f"critical size by budget: {', '.join(sizes)} {tokens}")
    return clauses


def _p(value: float) -> str:
    return "p < 0.001" if value < 0.001 else f"p = {value:.2g}"


def _own(tables: Tables, summary: dict[str, Any]) -> Tables:
    return {
        name: [r for r in tables[name] if r["series"] == summary["series"]] for name in ("fits", "sizes", "by_budget")
    }


def _accuracy(summary: dict[str, Any]) -> str:
    if summary["critical_size"] is None:
        return "accuracy does not cross 50 % within the sizes asked"
    return f"accuracy falls below 50 % at {at(span(summary, 'critical_size'), summary['unit'])}"


def _growth(fit: dict[str, Any]) -> str:
    return f"{'growing' if fit['exponent'] > 0 else 'falling'} as size^{span(fit, 'exponent')}"


def _extrapolated(sizes: Sequence[dict[str, Any]], unit: str) -> list[str]:
    beyond = [r["size"] for r in sizes if r["fitted_to"] == "all" and r["extrapolated"]]
    if not beyond:
        return []
    return [f"extrapolated from {at(format(beyond[0], 'g'), unit)} on: more than 20 % of the attempts are truncated"]
