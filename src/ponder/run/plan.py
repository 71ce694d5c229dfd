"""Forecasts what a run of a study would ask and spend, before anything is spent.

Three numbers per model and task. At most: every call takes its whole budget, with all calls of the
methods and all of the history that a conversation sends again; every prompt is as long as the
longest of its size that was looked at, and a quarter longer, as a cap reserves it. Expected: from
the attempts that the store holds, size by size. Low: the lower end of the interval of the expected
value, or if nothing is stored, prompts with empty replies.

A duration is forecast for models on this machine that know their speed: from the tokens, and the
speed of the stored attempts (`seconds_per_token`) or the model's own guess. Prompts, trainings and
rewards are not counted.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ponder.core import (
    Bill,
    Judged,
    Limit,
    Message,
    Prepared,
    Prices,
    Problem,
    Request,
    Spend,
    UserError,
    capabilities,
)
from ponder.core.capabilities import judge_of_task
from ponder.core.text import count
from ponder.methods.prompt import prompted
from ponder.run.caps import (
    Money,
    check,
    currency,
    priced,
    priced_at_most,
    tolerated,
)
from ponder.store.store import Store
from ponder.study.cell import StudyCell
from ponder.study.check import some_problems
from ponder.study.prices import find_prices, price_lines, restore_prices
from ponder.study.study import StudySpec

DAY = 86_400.0
HINT = (
    'name = "vllm" serves the same weights faster and '
    'name = "endpoint" asks a server (neither can `compress`); '
    "`ponder run --ray` shares the work among machines"
)
CHARACTERS_PER_TOKEN = 4  # of an ordinary prompt


class Range(NamedTuple):
    """A forecast; None: unknown, or no limit."""

    low: float
    expected: float | None
    at_most: float | None


class Duration(NamedTuple):
    """A rough time, and how it was reckoned."""

    seconds: float
    at_most: bool  # every reply as long as its budget, because nothing is stored
    how: str


@dataclass(frozen=True)
class Forecast:
    """What one model on one task still has to be asked, and what that will take."""

    model: str
    task: str
    cells: int
    attempts: int  # that the study asks for; where the run chooses the sizes, those made so far
    stored: int  # of those, the ones already answered
    calls: int | None  # at most, without retries; None: unknown
    tokens: Range  # still to spend, prompt tokens included
    cost: Range | None  # the same in money; None: the model has no prices
    basis: str  # what the expected number is from
    duration: Duration | None = None  # of the replies, on this machine; None: unknown
    exceeds_budget: bool = False  # whether its server has billed more than any budget allows

    @property
    def to_run(self) -> int:
        return self.attempts - self.stored


@dataclass(frozen=True)
class Plan:
    """The forecasts of a study, their sum, and what its caps leave."""

    forecasts: list[Forecast]
    total: Forecast
    currency: str
    spent: Money  # by earlier runs of the study, if the caps count them
    # at most, for samples that methods train on before anything is asked; None: no limit.
    making: Spend | None
    # Of models with prices, `reward_tokens` and `reward_cost` are the tokens and their price.
    trainings: int = 0  # before anything is asked
    stop: str = ""  # what an adaptive run will find out
    prices: Sequence[str] = ()  # each model's, with source and date
    price_warnings: Sequence[str] = ()  # where sources differ

    def warning(self) -> str:
        """Return a warning and a hint if it will take more than a day; else ""."""
        return _day_warning([(forecast.model, forecast.duration) for forecast in self.forecasts])


def slow_warning(study: StudySpec, cells: Sequence[StudyCell], store: Store) -> str:
    """Return a warning if replies will take more than a day, as far as models know their speed."""
    timed = [group for group in _groups(cells) if isinstance(group[0].model, capabilities.Forecast)]
    if not timed:
        return ""
    open_attempts, _ = _adaptive(study, store)
    durations = []
    for group in timed:
        forecast = _forecast(group, store, open_attempts, study.chooses_sizes)
        durations.append((forecast.model, forecast.duration))
    return _day_warning(durations)


def counts(cells: Sequence[StudyCell], store: Store) -> tuple[int, int]:
    """Return how many attempts are still to be made and how many are stored.

    Those that `stop` decides on are not among the first.
    """
    fixed = [cell for cell in cells if not cell.quota.adaptive]
    planned = sum(cell.quota.samples * cell.count for cell in fixed)
    return planned - store.spent(fixed)[0], store.spent(cells)[0]


def plan(study: StudySpec, path: Path) -> Plan:
    """Forecast each model on each task, given what the store at a path already holds."""
    store = Store(path) if _holds_something(path) else None
    try:
        if store:
            restore_prices(study.cells, store.found_prices(study.name))
        warnings = find_prices(study.cells)
        check(study.cells, study.max_tokens, study.max_cost)
        open_attempts, stop = _adaptive(study, store)
        forecasts = [
            _forecast(cells, store, open_attempts, study.chooses_sizes)
            for cells in _groups(study.cells)
        ]
        spent = Money()
        if store and study.cap_per == "study":
            spent = Money(*store.spent_by_runs(study.name))
            spent = spent.plus(Money(*store.held_by_jobs(study.name)))
    finally:
        if store:
            store.close()
    making, trainings = _making(study)
    return Plan(
        forecasts,
        _total(forecasts),
        currency(study.cells),
        spent,
        making,
        trainings,
        stop,
        price_lines(study.cells),
        warnings,
    )


def saved(study: StudySpec, path: Path) -> Forecast | None:
    """Return what the attempts that an adaptive run left out would take, or None if unknown."""
    if study.chooses_sizes:
        return None
    return plan(dataclasses.replace(study, stop=None, max_tokens=None, max_cost=None), path).total


def _adaptive(study: StudySpec, store: Store | None) -> tuple[dict[bytes, int], str]:
    """Return by cell key the most that an adaptive run may still ask, and what it will find out."""
    if study.stop is None:
        return {}, ""
    from ponder.run.adaptive import describe, open_attempts  # imports NumPy

    return open_attempts(study, store), describe(study)


def _making(study: StudySpec) -> tuple[Spend | None, int]:
    """Return the most that methods sample to train on, and how many models they train.

    What several models share is counted once.
    """
    methods = {}
    for cell in study.cells:
        for method in cell.methods:
            if isinstance(method, Prepared):
                methods[method.folder(cell.model)] = (method, cell.model)
    limits: dict[Path, Limit] = {}
    trainings = 0
    for folder, (method, model) in methods.items():
        limits |= method.sampling_limits(model)
        if method.training_seed() is not None and folder in method.missing_outputs(model):
            trainings += 1
    total = Spend()
    for sampling_limit in limits.values():
        limit = sampling_limit()
        if limit is None:
            return None, trainings
        total = total.plus(limit)
    return total, trainings


def _holds_something(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _groups(cells: Sequence[StudyCell]) -> Iterable[list[StudyCell]]:
    """Yield the cells of each model on each task."""
    for _, group in itertools.groupby(cells, key=lambda cell: (cell.model_key, cell.task_key)):
        yield list(group)


class _CellForecast(NamedTuple):
    """What one cell still asks, and what the store tells of it."""

    cell: StudyCell
    attempts: int  # still to make
    answered: int
    mean: Money | None  # of those answered
    variance: float  # of the tokens of those answered


def _forecast(
    cells: list[StudyCell],
    store: Store | None,
    open_attempts: Mapping[bytes, int],
    chooses_sizes: bool,
) -> Forecast:
    """Forecast one model on one task."""
    rows = [_cell_forecast(cell, store, open_attempts) for cell in cells]
    stored = sum(row.answered for row in rows)
    first = cells[0]
    prices = first.model.prices
    if chooses_sizes:
        attempts = stored
        low, expected, basis = Money(), None, "the run decides"
    else:
        attempts = stored + sum(row.attempts for row in rows)
        low, expected, basis = _expected(rows, prices)
    limit = _limit(rows)
    bound = limit and priced_at_most(limit, prices)
    exceeds_budget = bool(bound and expected and expected.tokens > bound.tokens)
    if exceeds_budget:
        bound = None
    cost = None
    if any(model.prices for model in (first.model, *first.other_models())):
        cost = Range(low.cost, expected and expected.cost, bound and bound.cost)
    return Forecast(
        model=first.label.model,
        task=first.label.task,
        cells=len(cells),
        attempts=attempts,
        stored=stored,
        calls=limit and limit.calls,
        tokens=Range(low.tokens, expected and expected.tokens, bound and bound.tokens),
        cost=cost,
        basis=basis,
        duration=_duration(cells, store, expected and expected.tokens, limit),
        exceeds_budget=exceeds_budget,
    )


def _cell_forecast(
    cell: StudyCell, store: Store | None, open_attempts: Mapping[bytes, int]
) -> _CellForecast:
    answered, bill = store.spent([cell]) if store else (0, Bill())
    attempts = cell.quota.samples * cell.count - answered
    if cell.quota.adaptive:
        attempts = open_attempts.get(cell.key, 0)
    if not answered or store is None:
        return _CellForecast(cell, attempts, 0, None, 0.0)
    total = priced(bill, cell.model.prices)
    mean = Money(round(total.tokens / answered), total.cost / answered)
    mean_square = store.sum_of_squares(cell) / answered
    variance = max(0.0, mean_square - (bill.tokens / answered) ** 2)
    # What a reward reads varies as what the model writes.
    with_reward = total.tokens / max(1, bill.tokens)
    return _CellForecast(cell, attempts, answered, mean, variance * with_reward**2)


def _expected(
    rows: Sequence[_CellForecast], prices: Prices | None
) -> tuple[Money, Money | None, str]:
    """Return the low and the expected amount, and what they are computed from."""
    measured = [row for row in rows if row.mean]
    if not measured:
        prompts = Spend()
        for row in rows:
            if row.attempts:
                prompt = _prompts(row.cell, next(row.cell.asked()))
                prompts = prompts.plus(prompt.times(row.attempts))
        return priced_at_most(prompts, prices), None, "prompts alone"
    tokens = 0
    cost = 0.0
    variance = 0.0
    for row in rows:
        nearest = row if row.mean else _nearest_size(row, measured)
        mean = nearest.mean or Money()
        tokens += row.attempts * mean.tokens
        cost += row.attempts * mean.cost
        # Of one attempt nothing is known about the spread: it may be as large as the value.
        spread = nearest.variance if nearest.answered > 1 else float(mean.tokens) ** 2
        variance += row.attempts * (1 + row.attempts / nearest.answered) * spread
    low = math.exp(-2 * math.sqrt(variance) / max(1, tokens))  # two standard errors, on a log scale
    basis = f"{sum(row.answered for row in rows):,} stored"
    if len(measured) < len(rows):
        basis += ", also for other sizes"
    return Money(round(low * tokens), low * cost), Money(tokens, cost), basis


def _nearest_size(row: _CellForecast, measured: Sequence[_CellForecast]) -> _CellForecast:
    """Return the measured cell whose size is nearest on a log scale."""

    def distance(candidate: _CellForecast) -> float:
        return abs(math.log((candidate.cell.size + 1) / (row.cell.size + 1)))

    return min(measured, key=distance)


def _limit(rows: Sequence[_CellForecast]) -> Spend | None:
    """Return the most that these cells may still take; None if a reply has no limit."""
    total = Spend()
    for row in rows:
        if not row.attempts:
            continue
        largest: Spend | None = None
        for problem in some_problems(row.cell):
            limit = attempt_limit(row.cell, problem)
            if limit is None:
                return None
            if largest is None or _all_tokens(limit) > _all_tokens(largest):
                largest = limit
        if largest:
            total = total.plus(largest.times(row.attempts))
    return total


def _all_tokens(limit: Spend) -> int:
    return limit.tokens + limit.reward_tokens


def attempt_limit(cell: StudyCell, problem: Problem) -> Spend | None:
    """Return the most that one attempt may take; None if a reply has no limit.

    That is each turn with its calls, and a history whose replies take their whole budget.
    """
    total = Spend()
    history: list[Message] = []
    reply_limit = cell.reply_limit
    for turn, text in enumerate(problem.turns):
        question = Message("user", text)
        visible = cell.memory.visible(history)
        request = Request(cell.task, problem, (*problem.opening(), *visible, question), seed=0)
        replies = sum(message.role == "assistant" for message in visible)
        prompt_tokens = request.prompt_limit + replies * (reply_limit or 0)
        limit = tolerated(cell.turn_limit(prompt_tokens, None))
        if limit is None or (turn and reply_limit is None):
            return None
        total = total.plus(limit)
        history += [question, Message("assistant", "")]
    judging = _judging_limit(cell, problem)
    if judging is None:
        return None
    return total.plus(judging)


def _judging_limit(cell: StudyCell, problem: Problem) -> Spend | None:
    """Return the most that judging one attempt may take; None if there is no limit."""
    judge = judge_of_task(cell.task)
    if judge is None:
        return Spend()
    assert isinstance(cell.task, Judged)
    reply = cell.model.max_tokens()
    if reply is None:
        return None
    # Encoded for another model, a text may take more tokens.
    prompt = cell.task.judge_request(problem, "", 0).prompt_limit + math.ceil(1.25 * reply)
    limit = judge.turn_limit(prompt)
    if limit is None:
        return None
    return tolerated(limit.as_reward(judge.prices))


def _prompts(cell: StudyCell, problem: Problem) -> Spend:
    """Return what the prompts of one attempt take at least, if every reply is empty."""
    total = Spend()
    history: list[Message] = []
    for turn, text in enumerate(problem.turns):
        question = Message("user", text)
        messages = (*problem.opening(), *cell.memory.visible(history), question)
        request = Request(cell.task, problem, messages, seed=0, turn=turn)
        asked = prompted(cell.methods, request)
        characters = sum(len(message.content) for message in asked.messages)
        total = total.plus(Spend(characters // CHARACTERS_PER_TOKEN))
        history += [question, Message("assistant", "")]
    return total


def _total(forecasts: Sequence[Forecast]) -> Forecast:
    """Return the sum of forecasts. What is unknown of one is unknown of the sum."""
    costs = [f.cost for f in forecasts if f.cost]
    calls = [f.calls for f in forecasts]
    return Forecast(
        model="total",
        task="",
        cells=sum(f.cells for f in forecasts),
        attempts=sum(f.attempts for f in forecasts),
        stored=sum(f.stored for f in forecasts),
        calls=None if None in calls else sum(n or 0 for n in calls),
        tokens=_sum([f.tokens for f in forecasts]),
        cost=_sum(costs) if costs else None,
        basis="",
    )


def _sum(ranges: Sequence[Range]) -> Range:
    low, expected, at_most = zip(*ranges, strict=True)
    return Range(
        sum(low),
        None if None in expected else sum(expected),
        None if None in at_most else sum(at_most),
    )


def probe(study: StudySpec, attempts: int) -> tuple[StudyCell, ...]:
    """Return the study's cells, each with only this many attempts: what `ponder plan --probe` asks.

    Cells, not a smaller study: its methods would train on other problems.
    """
    if study.chooses_sizes:
        message = "the goal `max_size` can't be probed: the run chooses the sizes"
        raise UserError(message, where=study.where)
    probed = []
    for cell in study.cells:
        if cell.quota.adaptive:
            reduced = cell.first(attempts)
        else:
            reduced = cell.with_quota(problems=min(attempts, cell.quota.problems or attempts))
        probed.append(reduced.with_quota(samples=1))
    return tuple(probed)


def _duration(
    cells: Sequence[StudyCell], store: Store | None, expected: float | None, limit: Spend | None
) -> Duration | None:
    """Forecast how long the replies of one model on one task will take; None if unknown."""
    cell = cells[0]
    if not isinstance(cell.model, capabilities.Forecast):
        return None
    measured = store.speed(cells) if store else None
    if expected is not None and measured:
        fraction, seconds = measured
        tokens = expected * fraction
        how = f"{tokens:,.0f} tokens at {1 / seconds:,.1f} per second, as stored"
        return Duration(tokens * seconds, at_most=False, how=how)
    guess = cell.model.tokens_per_second(cell.task)
    if guess is None or limit is None:
        return None
    speed, basis = guess
    tokens = limit.completion_tokens
    how = f"{tokens:,.0f} tokens at {speed:,.1f} per second, {basis}"
    return Duration(tokens / speed, at_most=True, how=how)


def _day_warning(durations: Sequence[tuple[str, Duration | None]]) -> str:
    """Return a warning and a hint if all replies together take more than a day; else ""."""
    total = 0.0
    is_bound = False
    slowest = ""
    longest = Duration(0.0, at_most=False, how="")
    for model, duration in durations:
        if duration is None:
            continue
        total += duration.seconds
        is_bound = is_bound or duration.at_most
        if duration.seconds > longest.seconds:
            slowest = model
            longest = duration
    if total <= DAY:
        return ""
    days = count(max(1, round(total / DAY)), "day")
    up_to = "up to " if is_bound else ""
    alone = f"`{slowest}` alone: {longest.how}"
    return f"warning: this may take {up_to}{days}; {alone}\nhint: {HINT}"
