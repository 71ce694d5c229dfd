"""What a figure's axes measure: tokens (thinking, answer or both), money or seconds, and the unit of
problem sizes.

A figure counts the same kind of tokens for all of its models. A model that reasons in its reply
reports no thinking tokens: on an axis of thinking tokens all its attempts would be at 0.

A cost is what an attempt cost by the server's own report or at the model's prices, with every call
that its methods made, a judge's included. Seconds are those of all calls of an attempt, from
sending to the end of the reply, so they include the server's queue. `work_seconds` would leave it
out, but few servers report them, and of an attempt with several calls only a mean is kept.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ponder.core import Measure, Outcome, Records, Resource, Tables, TokenKind, UserError
from ponder.core.nouns import cost_of
from ponder.core.text import number, plural
from ponder.figures import Row
from ponder.study.labels import cells_of, model_labels
from ponder.study.prices import HINT

Tokens: TypeAlias = Literal["auto", "output", "thinking", "answer"]
TITLES: dict[TokenKind, str] = {
    "output": "output tokens (thinking + answer)",
    "thinking": "thinking tokens",
    "answer": "answer tokens",
}
# A model counts as reporting thinking if this fraction of its attempts has some. Not "any": budget
# forcing turns the replies that it cuts into thinking, and only those. Output tokens are right for
# a model that often answers at once.
REPORTS = 0.9
SECONDS_NOTE = (
    "Seconds are those of all calls of an answer, with the server's queue, so they depend on how "
    "many were in progress at once."
)
PRICE_DOCS = "docs/endpoints.md#prices"
LEVELS = "levels"  # the unit of sizes that are only ranks: level 4 isn't twice level 2


# Columns of tables that hold amounts, with the ends of their intervals. Their names say the resource
# if it isn't tokens: `cost_per_right`, `geometric_mean_cost_low`.
TOKEN_COLUMN = re.compile(r"^(without_)?tokens(?=_|$)")
AMOUNT_COLUMN = re.compile(r"^(budget|most|median|geometric_mean|quantile_90)(?=_low$|_high$|$)")


def amount_columns(outcomes: Sequence[Outcome], measure: Measure, tokens: Tokens) -> Row:
    """Return columns of a figure's table that say what it measures, for `Amounts.of`.

    Raise `UserError` if that is unknown of an attempt.
    """
    if measure == "cost":
        currency = _currency(outcomes)
        for outcome in outcomes:
            if outcome.answered and outcome.cost is None:
                raise _without_cost(outcome)
        return {"measure": measure, "currency": currency}
    if measure == "seconds":
        _check_seconds(outcomes)
        return {"measure": measure}
    return token_columns(outcomes, tokens)


@dataclass(frozen=True)
class Amounts:
    """How a figure names and writes what it measures."""

    resource: Resource
    currency: str = ""

    @classmethod
    def of(cls, panel: Row) -> Amounts:
        """Return those of a row with the columns of `amount_columns`."""
        return cls(panel.get("measure") or panel["token_kind"], panel.get("currency", ""))

    @property
    def are_tokens(self) -> bool:
        return self.resource not in ("cost", "seconds")

    @property
    def noun(self) -> str:
        """What is measured, and the column that holds it: `tokens`, `cost` or `seconds`."""
        return "tokens" if self.are_tokens else self.resource

    @property
    def title(self) -> str:
        """The unit on an axis: `output tokens (thinking + answer)`, `USD`, `seconds`."""
        if self.resource == "cost":
            return self.currency
        if self.resource == "seconds":
            return "seconds"
        return TITLES[self.resource]

    @property
    def answer_title(self) -> str:
        """The unit on an axis of single answers: `output tokens (…)`, `USD per answer`."""
        return self.title if self.are_tokens else f"{self.title} per answer"

    @property
    def short_unit(self) -> str:
        """The unit where the kind of tokens is known: `tokens`, `USD`, `seconds`."""
        return "tokens" if self.are_tokens else self.title

    @property
    def unit(self) -> str:
        """The unit in a sentence: `output tokens`, `USD`, `seconds`."""
        return self.title.partition(" (")[0]

    @property
    def form(self) -> str:
        """The format of an amount for `span`: whole tokens; else three significant digits."""
        return ",.0f" if self.are_tokens else ""

    @property
    def tick_form(self) -> str:
        """The format of an amount for Vega, without an exponent or a prefix such as µ."""
        return ",.0f" if self.are_tokens else ",.3~r"

    def text(self, amount: float) -> str:
        """Write an amount, without its unit."""
        return f"{amount:,.0f}" if self.are_tokens else number(amount)

    def worded(self, text: str) -> str:
        """Return a text about tokens as one about what is measured: `cost per right answer`."""
        return text.replace("tokens", self.noun)

    def column(self, name: str) -> str:
        """Return the name of a column that would hold tokens: `cost_low` for `tokens_low`."""
        if self.are_tokens:
            return name
        name = TOKEN_COLUMN.sub(rf"\1{self.resource}", name)
        return AMOUNT_COLUMN.sub(rf"\1_{self.resource}", name)

    def named(self, tables: Tables) -> Tables:
        """Return tables whose columns say what was measured. Published numbers are tokens."""
        if self.are_tokens:
            return tables
        renamed: Tables = {}
        for table, rows in tables.items():
            renamed[table] = rows
            if table != "published":
                renamed[table] = [self._named(row) for row in rows]
        return renamed

    def _named(self, row: Row) -> Row:
        named = {self.column(name): value for name, value in row.items()}
        if self.resource == "cost" and named.keys() != row.keys():
            named["currency"] = self.currency
        return named


OUTPUT_TOKENS = Amounts("output")


def no_overlay(overlay: str, measure: Measure) -> None:
    """Raise `UserError` if published tokens would be drawn on an axis of something else."""
    if overlay and measure != "tokens":
        raise UserError(
            f"`{overlay}` has published tokens, which can't be drawn by {measure}",
            hint='leave out `overlay`, or set measure = "tokens"',
        )


def _without_cost(outcome: Outcome) -> UserError:
    """Return the error for an attempt whose cost is unknown."""
    cell = outcome.cell
    name = outcome.label.model
    if cost_of(outcome.bill, cell.model.prices) is None:
        message = f"the cost of `{name}` is unknown: it has no prices"
        if cell.model.server():
            return UserError(
                f"{message}, and not every reply says what it cost", hint=f"{HINT}; {PRICE_DOCS}"
            )
        hint = "prices = { input = 0.5, output = 2.0 }, per million tokens, in its [[model]]"
        return UserError(message, hint=f"say what it costs you: {hint}; {PRICE_DOCS}")
    asked = " or ".join(f"`{model.title()}`" for model in cell.asks() if model.prices is None)
    return UserError(
        f"the cost of `{name}` is unknown: {asked}, which it asks, has no prices",
        hint="pip install 'ponder-lab[prices]' knows the prices of many providers; a judge with "
        f"other `prices` in its table is another judge, which a run asks anew; {PRICE_DOCS}",
    )


def _currency(outcomes: Sequence[Outcome]) -> str:
    """Return the currency of all costs; raise `UserError` if there are several."""
    models: dict[str, str] = {}
    for cell, label in cells_of(outcomes).items():
        for currency in cell.currencies():
            models.setdefault(currency, label.model)
    if len(models) > 1:
        listed = ", ".join(f"`{model}` in {currency}" for currency, model in models.items())
        raise UserError(
            f"costs are in different currencies: {listed}",
            hint=f"give all `prices` in one currency; {PRICE_DOCS}",
        )
    return next(iter(models), "")


def _check_seconds(outcomes: Sequence[Outcome]) -> None:
    """Raise `UserError` if no answer of a model has seconds, as those of batch jobs."""
    seconds: dict[bytes, float] = {}
    for outcome in outcomes:
        if outcome.answered:
            model = outcome.cell.model_key
            seconds[model] = max(seconds.get(model, 0.0), outcome.seconds)
    names = model_labels(outcomes)
    for model, most in seconds.items():
        if not most:
            raise UserError(
                f"`{names[model]}` has no seconds: its answers came from batch jobs, from a file, "
                "or from a model that doesn't measure them",
                hint='measure = "tokens", or "cost" if it has prices',
            )


def token_kind(outcomes: Sequence[Outcome], tokens: Tokens) -> TokenKind:
    """Return the tokens to count.

    "auto": thinking tokens if every model reports them, else output tokens for all.
    """
    if tokens != "auto":
        return tokens
    return "output" if _without_thinking(outcomes) else "thinking"


def token_columns(outcomes: Sequence[Outcome], tokens: Tokens) -> Row:
    """Return columns of a figure's table: the tokens that it counts, and why `auto` chose them."""
    fractions = _without_thinking(outcomes) if tokens == "auto" else {}
    never = [model for model, fraction in fractions.items() if not fraction]
    reasons = []
    if never:
        verb = "report" if len(never) > 1 else "reports"
        reasons.append(f"{_listed(never)} {verb} no thinking tokens")
    for model, fraction in fractions.items():
        if fraction:
            reasons.append(
                f"{model} reports thinking tokens in only {fraction:.0%} of its attempts"
            )
    return {"token_kind": token_kind(outcomes, tokens), "token_kind_why": ", and ".join(reasons)}


def token_findings(records: Records) -> list[str]:
    """Return a sentence if `auto` chose output tokens, or if seconds may be another run's."""
    for record in records:
        if record.get("token_kind_why"):
            title = TITLES[record["token_kind"]]
            return [f"Tokens are {title} for all models: {record['token_kind_why']}."]
        if record.get("measure") == "seconds":
            return [SECONDS_NOTE]
    return []


def estimated(outcomes: Sequence[Outcome]) -> str:
    """Say how many token counts are estimates from the text, not a server's or a tokenizer's."""
    counted_by = Counter(outcome.counted_by for outcome in outcomes if outcome.answered)
    estimates = counted_by["estimate"]
    if not estimates:
        return ""
    if estimates == counted_by.total():
        return "tokens are estimates"
    return f"tokens of {estimates:,} of {counted_by.total():,} attempts are estimates"


def overlay_notes(published: TokenKind, kind: TokenKind) -> list[str]:
    """Return a note if published numbers count other tokens than the axis they are drawn on."""
    if published == kind:
        return []
    return [f"published: {TITLES[published]}, on an axis of {TITLES[kind]}"]


def _without_thinking(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Return the fraction of attempts with thinking tokens, of each model that reports none.

    A model reports none if that fraction is below `REPORTS`.
    """
    answered: Counter[bytes] = Counter()
    with_thinking: Counter[bytes] = Counter()
    for outcome in outcomes:
        if outcome.answered:
            answered[outcome.cell.model_key] += 1
            with_thinking[outcome.cell.model_key] += outcome.thinking_tokens > 0
    names = model_labels(outcomes)
    fractions = {names[model]: with_thinking[model] / answered[model] for model in answered}
    return {name: fractions[name] for name in sorted(fractions) if fractions[name] < REPORTS}


def _listed(names: Sequence[str]) -> str:
    listed = list(names[:3])
    if len(names) > 3:
        listed.append(f"{len(names) - 3} more")
    if len(listed) == 1:
        return listed[0]
    return f"{', '.join(listed[:-1])} and {listed[-1]}"


def unit_of(outcomes: Sequence[Outcome], unit: str) -> str:
    """Return what sizes count: `unit`, in the plural, or else the unit of the outcomes' tasks."""
    if unit:
        return unit if unit.endswith("s") else plural(unit)
    by_task = set()
    for cell, label in cells_of(outcomes).items():
        if cell.task.unit:
            by_task.add((label.task, cell.task.unit))
    units = {task_unit for _, task_unit in by_task}
    if len(units) > 1:
        return ", ".join(f"{task}: {task_unit}" for task, task_unit in sorted(by_task))
    return next(iter(units), "")


def singular(unit: str) -> str:
    """Return the singular, as in `tokens per cell`."""
    return unit.removesuffix("s") or "unit of size"


def with_unit(size: str, unit: str) -> str:
    """Write a size: `16 cells`, `1 cell`, `level 3`, or `size 16` if there is no unit."""
    if not unit:
        return f"size {size}"
    if unit == LEVELS:
        return f"{singular(unit)} {size}"
    return f"{size} {singular(unit) if size == '1' else unit}"


def size_title(unit: str, *notes: str) -> str:
    """Return the title of an axis of sizes, such as `problem size (cells, log scale)`."""
    inside = ", ".join(note for note in (unit, *notes) if note)
    return f"problem size ({inside})" if inside else "problem size"
