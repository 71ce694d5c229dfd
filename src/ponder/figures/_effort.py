"""What `effort` says: its tables of fits, and the clauses that its picture and its findings share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ponder.core import Basis, Estimate, Outcome, Records, Tables
from ponder.core.text import number
from ponder.figures import basis, curve_records, flat, span
from ponder.figures._units import at, one
from ponder.stats.columns import Columns
from ponder.stats.effort import EXTRAPOLATED, Effort, PowerLaw

SURE = 0.05  # below this p-value, a bend or a lack of fit is reported
WIDEST = 100  # numbers whose interval spans more than this factor are in the tables only


def compared_at(fits: Effort, critical: Estimate) -> float:
    """The size at which all attempts and the solved ones are compared: near the critical size, else
    in the middle.
    """
    if fits.on_all is None:
        return math.nan
    sizes = [s.size for s in fits.on_all.sizes]
    solved = {s.size for s in fits.on_solved.sizes} if fits.on_solved else set()
    both = [size for size in sizes if size in solved] or sizes
    if math.isnan(critical.value):
        return both[len(both) // 2]
    return min(both, key=lambda size: abs(math.log(size / critical.value)))


def no_fits(data: Columns, fits: Effort, where: float) -> dict[str, str]:
    """Columns of the summary: why the fit to all attempts, or to the solved ones, is neither quoted
    nor drawn.

    "" if it is. The other tables keep its numbers.
    """
    law, cut, why = fits.on_all, data.tokens[data.truncated], ""
    beyond = law is None or (
        all(s.extrapolated for s in law.sizes) and _tokens(law, where).value > cut.max(initial=0)
    )
    wide = law is not None and not _quotable(law, where)
    if len(cut) and (beyond or (wide and len(cut) > EXTRAPOLATED * len(data))):
        cap = f"{'' if cut.min() == cut.max() else 'up to '}{cut.max():,.0f} tokens"
        verb = "was" if len(cut) == 1 else "were"
        why = (
            f"{len(cut):,} of {len(data):,} attempts {verb} truncated at {cap}: too many for a fit"
        )
    elif wide:
        why = "too few attempts for a fit"
    few = fits.on_solved is not None and not _quotable(fits.on_solved, where)
    return {"no_fit": why, "no_fit_to_solved": "too few solved attempts for a fit" if few else ""}


def _tokens(law: PowerLaw, where: float) -> Estimate:
    """At the size that is quoted; in the middle if this fit has no such size."""
    return next(
        (s.tokens for s in law.sizes if s.size == where), law.sizes[len(law.sizes) // 2].tokens
    )


def _quotable(law: PowerLaw, where: float) -> bool:
    return _narrow(_tokens(law, where).low, _tokens(law, where).high)


def _narrow(low: float | None, high: float | None) -> bool:
    return bool(low and high and high <= WIDEST * low)


def shown_curves(tables: Tables) -> Records:
    """The curves of the fits that are quoted."""
    unfit = {
        (r["series"], on_all): r[why]
        for r in tables["summary"]
        for on_all, why in ((True, "no_fit"), (False, "no_fit_to_solved"))
    }
    return [r for r in tables["curves"] if not unfit[r["series"], r["fit"].startswith("all")]]


def fit_tables(series: str, fits: Effort, outcomes: Sequence[Outcome]) -> Tables:
    """The coefficients of every fit, its numbers at each size, and its curves."""
    tables: Tables = {"fits": [], "sizes": [], "curves": []}
    on_all, on_solved = basis(outcomes), basis(outcomes, ("right",))
    for name, law, rests_on in (
        ("all", fits.on_all, on_all),
        ("solved", fits.on_solved, on_solved),
    ):
        if law:
            tables["fits"].append({**_coefficients(series, name, law), "basis": rests_on})
            tables["sizes"] += _sizes(series, name, law, rests_on)
            beyond = min((s.size for s in law.sizes if s.extrapolated), default=math.inf)
            for curve, drawn_as in ((law.curve, name), (law.upper, f"{name}, 90 %")):
                points = curve_records(curve, series=series, fit=drawn_as, basis=rests_on)
                tables["curves"] += [{**r, "extrapolated": r["size"] >= beyond} for r in points]
    if line := fits.line_on_solved:
        numbers = {"tokens_per_size": line.slope, "tokens_at_zero": line.intercept}
        tables["fits"].append(
            flat(series=series, fitted_to="solved, as published", **numbers, basis=on_solved)
        )
        tables["curves"] += curve_records(
            line.curve, series=series, fit="line", extrapolated=False, basis=on_solved
        )
    if peak := fits.peak:
        numbers = {"peak": peak.size, "exponent_before": peak.before, "exponent_after": peak.after}
        named = {"series": series, "fitted_to": "all, with a peak"}
        tables["fits"].append(flat(**named, **numbers, peak_p=peak.p_value, basis=on_all))
    return tables


def _coefficients(series: str, name: str, law: PowerLaw) -> dict[str, Any]:
    bend = law.bend or Estimate(math.nan, -math.inf, math.inf, 0, 0)
    tests = {"bend_p": law.bend_p, "lack_of_fit_p": law.lack_of_fit_p}
    rests = {
        "attempts": law.exponent.attempts,
        "problems": law.exponent.problems,
        "without_tokens": law.left_out,
    }
    return flat(series=series, fitted_to=name, exponent=law.exponent, bend=bend, **tests, **rests)


def _sizes(series: str, name: str, law: PowerLaw, fitted: Basis) -> Records:
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
            basis=Basis((cell for cell in fitted.cells if cell.size == s.size), fitted.ended),
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
    clauses, where = [_accuracy(tables, summary)], summary["compared_at"]
    tokens = f" {summary['token_kind']} tokens"
    unfit = {"all": summary["no_fit"], "solved": summary["no_fit_to_solved"]}
    for name, said in (("all", "all attempts"), ("solved", "solved ones")):
        fit = next((r for r in own["fits"] if r["fitted_to"] == name), None)
        row = next((r for r in own["sizes"] if (r["fitted_to"], r["size"]) == (name, where)), None)
        if fit and row and not unfit[name]:
            size = at(format(where, "g"), summary["unit"])
            note = ", extrapolated" if row["extrapolated"] else ""
            mean = f"{span(row, 'geometric_mean')}{tokens} at {size} (geometric mean{note})"
            sure = name == "all" and _narrow(row["quantile_90_low"], row["quantile_90_high"])
            within = f", 90 % within {span(row, 'quantile_90')}" if sure else ""
            clauses.append(f"{said}: {mean}{within}{_growth(fit)}")
    clauses += [why for why in unfit.values() if why][:1]
    if unfit["all"]:
        return clauses
    clauses.append(f"effort over all attempts: {summary['effort']}")
    return clauses + _extrapolated(own["sizes"], summary["unit"])


def details(tables: Tables, summary: dict[str, Any]) -> list[str]:
    """What the findings say besides: the published line, critical sizes by budget, and where the
    fit falls short.
    """
    own, unit, tokens = _own(tables, summary), summary["unit"], f"{summary['token_kind']} tokens"
    clauses = []
    for fit in own["fits"]:
        if fit["fitted_to"] == "solved, as published" and not summary["no_fit_to_solved"]:
            slope = span(fit, "tokens_per_size")
            clauses.append(
                f"a straight line through solved attempts, as published: {slope} {tokens} per {one(unit)}"
            )
        tested = (
            fit["fitted_to"] == "all" and not summary["no_fit"] and fit["lack_of_fit_p"] is not None
        )
        if tested and fit["lack_of_fit_p"] < SURE:
            clauses.append(
                f"the curve misses the means of some sizes (lack of fit, {_p(fit['lack_of_fit_p'])})"
            )
        if fit["fitted_to"] == "all" and fit["without_tokens"]:
            clauses.append(f"left out of the fit: {fit['without_tokens']:,} without {tokens}")
    budgets = [r for r in own["by_budget"] if r["budget"]]  # an eighth of 7 tokens is none
    most = max((r["budget"] for r in budgets), default=0.0)
    halves = [r for r in budgets if math.log2(most / r["budget"]) % 1 < 0.01]  # the table has more
    known = [r for r in halves if r["critical_size"] is not None and not anywhere(tables, r)]
    if len(known) > 1:
        sizes = [f"{at(span(r, 'critical_size'), unit)} within {r['budget']:,.0f}" for r in known]
        clauses.append(f"critical size by budget: {', '.join(sizes)} {tokens}")
    return clauses


def _p(value: float) -> str:
    return "p < 0.001" if value < 0.001 else f"p = {value:.2g}"


def _own(tables: Tables, summary: dict[str, Any]) -> Tables:
    return {
        name: [r for r in tables[name] if r["series"] == summary["series"]]
        for name in ("fits", "sizes", "by_budget")
    }


def anywhere(tables: Tables, row: dict[str, Any]) -> bool:
    """Whether the interval of a critical size covers every size that its series was asked."""
    asked = [p["size"] for p in tables["attempts"] if p["series"] == row["series"]]
    low, high = row["critical_size_low"] or 0.0, row["critical_size_high"]
    return low <= min(asked, default=0) and (high is None or high >= max(asked, default=0))


def _accuracy(tables: Tables, summary: dict[str, Any]) -> str:
    if summary["critical_size"] is None:
        return "accuracy does not cross 50 % within the sizes asked"
    if anywhere(tables, summary):
        size = at(number(summary["critical_size"]), summary["unit"])
        return f"accuracy falls below 50 % near {size}, but its interval covers every size asked"
    return f"accuracy falls below 50 % at {at(span(summary, 'critical_size'), summary['unit'])}"


def _growth(fit: dict[str, Any]) -> str:
    """Nothing if the tokens at ten times the size could be one number or WIDEST times as many."""
    low, high = fit["exponent_low"], fit["exponent_high"]
    if low is None or high is None or high - low > math.log10(WIDEST):
        return ""
    return f", {'growing' if fit['exponent'] > 0 else 'falling'} as size^{span(fit, 'exponent')}"


def _extrapolated(sizes: Sequence[dict[str, Any]], unit: str) -> list[str]:
    beyond = [r["size"] for r in sizes if r["fitted_to"] == "all" and r["extrapolated"]]
    if not beyond:
        return []
    return [
        f"extrapolated from {at(format(beyond[0], 'g'), unit)} on: more than 20 % of the attempts are truncated"
    ]
