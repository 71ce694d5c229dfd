"""`ponder plan --power`: how many problems, samples and training seeds an answer needs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ponder.cli.options import columns
from ponder.core import UserError
from ponder.core.text import count
from ponder.run.progress import short
from ponder.stats.power import (
    Components,
    guessed,
    power_of,
    problems_for_margin,
    problems_for_width,
)

if TYPE_CHECKING:
    from ponder.core import Outcome
    from ponder.results.study import Study
    from ponder.study.cell import StudyCell

SAMPLES, SEEDS = (1, 2, 4, 8), (2, 3, 5, 8)
GUESSES = ("accuracy", "discordant", "within", "seeds", "tokens")


@dataclass(frozen=True)
class Goal:
    """A width of an accuracy's interval, or a margin of the difference to the first model."""

    margin: float | None
    width: float | None

    def problems(self, c: Components, samples: int, seeds: int) -> float:
        if self.width is not None:
            return problems_for_width(c, self.width, samples, seeds)
        return problems_for_margin(c, self.margin or 0.0, samples, seeds)

    def reached(self, c: Components, problems: int, samples: int, seeds: int) -> str:
        """What a run of this size would show."""
        if self.width is not None:
            half = c.half(problems, samples, seeds)
            return "no interval" if math.isinf(half) else f"{200 * half:.1f} points wide"
        if math.isinf(c.half(problems, samples, seeds)):
            return "power 0 %"
        return f"power {100 * power_of(c, self.margin or 0.0, problems, samples, seeds):.0f} %"


@dataclass(frozen=True)
class Need:
    """What one model on one task needs."""

    model: str
    task: str
    basis: str
    components: Components
    problems: int  # that the study has, of all sizes
    sizes: int
    samples: int
    seeds: int
    most: int | None  # problems that a fixed set has
    # of one attempt, prompts included: models without training seeds, and with
    tokens: tuple[float, float] | None
    cost: tuple[float, float] | None
    needed: float  # problems, with the study's samples and seeds
    reached: str  # what the study as it is would show


def needs(study: Study, path: Path, goal: Goal, guess: dict[str, float] | None) -> list[Need]:
    """For every model on every task; of a margin, for every model but the first."""
    variants = {cell.variant_key: cell.label.variant for cell in study.cells}
    keys = list(variants)
    if goal.width is None and len(keys) < 2:
        raise UserError(
            "a margin needs two models",
            hint="--width 0.1 plans the interval of one model's accuracy",
        )
    outcomes = [] if guess is not None else _stored(study, path)
    found = []
    for task_key, task in {cell.task_key: cell.label.task for cell in study.cells}.items():
        cells: dict[bytes, list[StudyCell]] = {key: [] for key in keys}
        for cell in study.cells:
            if cell.task_key == task_key:
                cells[cell.variant_key].append(cell)
        for key in keys if goal.width is not None else keys[1:]:
            pair = [key] if goal.width is not None else [keys[0], key]
            if not all(cells[one] for one in pair) or study.chooses_sizes:
                continue
            own = [
                [o for o in outcomes if (o.cell.variant_key, o.cell.task_key) == (one, task_key)]
                for one in pair
            ]
            found.append(_need(variants[key], task, [cells[one] for one in pair], own, goal, guess))
    if not found:
        raise UserError(
            "there is nothing to plan: the run decides itself how many attempts it makes"
        )
    return found


def _stored(study: Study, path: Path) -> list[Outcome]:
    from ponder.store.store import Store

    hint = (
        "--guess accuracy=0.7 plans without; `ponder plan STUDY --probe 20` asks 20 per cell first"
    )
    if not path.is_file():
        raise UserError(f"there is no store {path} to plan from", hint=hint)
    with Store(path) as store:
        outcomes = [o for o in store.outcomes(study.cells) if o.answered]
    if not outcomes:
        raise UserError(f"{path} has no answers to plan from", hint=hint)
    return outcomes


def _need(
    label: str,
    task: str,
    cells: Sequence[list[StudyCell]],
    outcomes: Sequence[list[Outcome]],
    goal: Goal,
    guess: dict[str, float] | None,
) -> Need:
    last = cells[-1]
    seeds = max(len({cell.training_seeds for cell in own}) for own in cells)
    sizes = {cell.size: cell for cell in last}
    fixed = [_available(cell) for cell in sizes.values()]
    problems, samples = sum(_asked(cell) for cell in sizes.values()), last[0].quota.samples
    components, basis = _components(label, task, cells, outcomes, guess)
    trained = [len({cell.training_seeds for cell in own}) > 1 for own in cells]
    prices = [own[0].model.prices for own in cells]
    guess_tokens = guess.get("tokens") if guess else None
    tokens = [_mean_tokens(part) if part else guess_tokens for part in outcomes]
    cost = [
        _mean_cost(p, part) if part and p else None
        for p, part in zip(prices, outcomes, strict=True)
    ]
    return Need(
        model=label,
        task=task,
        basis=basis,
        components=components,
        problems=problems,
        sizes=len(sizes),
        samples=samples,
        seeds=seeds,
        most=sum(n for n in fixed if n is not None) if None not in fixed else None,
        tokens=_parted(tokens, trained),
        cost=_parted(cost, trained),
        needed=goal.problems(components, samples, seeds),
        reached=goal.reached(components, problems, samples, seeds),
    )


def _parted(amounts: Sequence[float | None], trained: Sequence[bool]) -> tuple[float, float] | None:
    """The sums over models without training seeds and with; None if one is unknown."""
    known = [amount for amount in amounts if amount is not None]
    if len(known) < len(amounts):
        return None
    plain, seeded = (
        math.fsum(n for n, t in zip(known, trained, strict=True) if t is which)
        for which in (False, True)
    )
    return plain, seeded


def _components(
    label: str,
    task: str,
    cells: Sequence[list[StudyCell]],
    outcomes: Sequence[list[Outcome]],
    guess: dict[str, float] | None,
) -> tuple[Components, str]:
    from ponder.stats.frontier import variants
    from ponder.stats.power import of_one, of_two

    if guess is not None:
        trained = sum(len({cell.training_seeds for cell in own}) > 1 for own in cells)
        known = {key: guess[key] for key in ("discordant", "within", "seeds") if key in guess}
        both = guessed(guess.get("accuracy", 0.5), trained=trained, **known)
        return both[len(cells) - 1], "a guess"
    data = variants({str(number): part for number, part in enumerate(outcomes)})
    if len(data.variants) < len(cells) or data.problems < 2:
        what = f"`{label}` has too few answers to plan from" + (f" on {task}" if task else "")
        raise UserError(
            what,
            hint="`ponder plan STUDY --probe 20` asks 20 per cell first; --guess accuracy=0.7 plans without",
        )
    found = of_one(data.variants[0]) if len(cells) == 1 else of_two(*data.variants)
    attempts = sum(len(v.correct) for v in data.variants)
    return found, f"{count(attempts, 'attempt')} at {count(data.problems, 'problem')}"


def _asked(cell: StudyCell) -> int:
    return (
        cell.quota.problems
        if cell.task.fixed() is None and cell.quota.problems
        else sum(1 for _ in cell.asked())
    )


def _available(cell: StudyCell) -> int | None:
    """How many problems a fixed set has; None: any number can be made."""
    return (
        None
        if cell.task.fixed() is None
        else sum(1 for _ in cell.task.problems(cell.size, cell.seed))
    )


def _mean_tokens(outcomes: Sequence[Outcome]) -> float:
    return math.fsum(o.prompt_tokens + o.tokens("output") for o in outcomes) / len(outcomes)


def _mean_cost(prices: Any, outcomes: Sequence[Outcome]) -> float:
    from ponder.core import Bill

    bills = (
        Bill(o.prompt_tokens, o.thinking_tokens, o.answer_tokens, cached_tokens=o.cached_tokens)
        for o in outcomes
    )
    return math.fsum(map(prices.cost, bills)) / len(outcomes)


def read_guess(text: str) -> dict[str, float]:
    """`accuracy=0.7,discordant=0.1` as a table."""
    from ponder.core.plugins import nearest

    guess = {}
    for part in text.split(","):
        key, _, value = (word.strip() for word in part.partition("="))
        if key not in GUESSES:
            raise UserError(
                f"there is no guess `{key}`", where="--guess", hint=nearest(key, GUESSES)
            )
        try:
            guess[key] = float(value)
        except ValueError:
            raise UserError(f"`{value}` is not a number", where=f"--guess {key}") from None
        if not 0 <= guess[key] <= (1e9 if key == "tokens" else 1):
            raise UserError(f"{key} is a fraction from 0 to 1, not {value}", where="--guess")
    accuracy = guess.get("accuracy", 0.5)
    # one model is right, the other wrong: each in half of these problems
    most = 2 * min(accuracy, 1 - accuracy)
    if guess.get("discordant", 0) > most + 1e-9:
        what = f"models with an accuracy of {accuracy:g} can't disagree on more than {most:g} of the problems"
        raise UserError(what, where="--guess discordant")
    return guess


def design_rows(need: Need, goal: Goal) -> list[dict[str, Any]]:
    """Samples against problems, at the same precision; a range if stored attempts can't tell
    between from within.
    """
    rows, seeds = [], enough_seeds(need, goal)
    for samples in SAMPLES:
        most = goal.problems(need.components, samples, seeds)
        least = (
            most
            if need.components.separate
            else goal.problems(need.components.all_within, samples, seeds)
        )
        problems = [None if math.isinf(n) else int(n) for n in (least, most)]
        attempts = None if problems[1] is None else problems[1] * samples
        rows.append(
            {
                "samples": samples,
                "problems_low": problems[0],
                "problems": problems[1],
                "attempts": attempts,  # of each model
                "tokens": _in_all(need.tokens, attempts, seeds),
                "cost": _in_all(need.cost, attempts, seeds),
            }
        )
    return rows


def _in_all(amounts: tuple[float, float] | None, attempts: int | None, seeds: int) -> float | None:
    return (
        None
        if amounts is None or attempts is None
        else attempts * (amounts[0] + seeds * amounts[1])
    )


def enough_seeds(need: Need, goal: Goal) -> int:
    """The study's training seeds, or if they are too few, the fewest that are enough."""
    tried = (
        [need.seeds, *(seeds for seeds in SEEDS if seeds > need.seeds)]
        if need.components.trained
        else [1]
    )
    return next(
        (s for s in tried if math.isfinite(goal.problems(need.components, need.samples, s))),
        need.seeds,
    )


def power_json(found: Sequence[Need], goal: Goal) -> dict[str, Any]:
    def record(need: Need) -> dict[str, Any]:
        variances = dataclasses.asdict(need.components) | {"total": need.components.total}
        needed = None if math.isinf(need.needed) else int(need.needed)
        designs = {"designs": design_rows(need, goal), "by_seeds": _by_seeds(need, goal)}
        return dataclasses.asdict(need) | {"components": variances, "needed": needed} | designs

    return {"margin": goal.margin, "width": goal.width, "needs": [record(need) for need in found]}


def _by_seeds(need: Need, goal: Goal) -> list[dict[str, Any]]:
    if not need.components.trained:
        return []
    numbers = [(seeds, goal.problems(need.components, need.samples, seeds)) for seeds in SEEDS]
    return [{"seeds": seeds, "problems": None if math.isinf(n) else int(n)} for seeds, n in numbers]


def power_text(found: Sequence[Need], goal: Goal, study: Study) -> str:
    """The needs of all models, the designs for the most demanding one, and what to do."""
    first = next(iter(study.cells)).label.variant
    wanted = (
        f"an interval of accuracy {100 * goal.width:g} points wide"
        if goal.width is not None
        else f"to show `not worse than {first} by more than {100 * (goal.margin or 0):g} points` in 80 % of runs, if "
        "it is as good: n = 7.85 · Var(d) / δ², and more where training seeds vary"
    )
    several = len({need.task for need in found}) > 1
    head = (
        "model",
        *(("task",) if several else ()),
        "from",
        "variance",
        "between",
        "within",
        "seeds' sd",
    )
    rows = [_line(need, several) for need in found]
    table = columns(
        [(*head, "problems", "samples", "this study", "problems needed"), *rows], numbers=8
    )
    hardest = max(
        found,
        key=lambda need: (need.needed, goal.problems(need.components, need.samples, SEEDS[-1])),
    )
    parts = [
        f"wanted: {wanted}",
        table,
        _designs(hardest, goal),
        _seeds(hardest, goal),
        _advice(hardest, goal),
    ]
    return "\n\n".join(part for part in parts if part)


def _number(n: float | None) -> str:
    return "never" if n is None or math.isinf(n) else f"{n:,.0f}"


def _line(need: Need, several: bool) -> tuple[Any, ...]:
    c = need.components
    parts = (f"{c.between:.3f}", f"{c.within + c.within_trained:.3f}") if c.separate else ("?", "?")
    spread = f"{100 * math.sqrt(c.seeds / max(1, c.trained)):.1f} points" if c.trained else "–"
    named = (need.model, *((need.task,) if several else ()), need.basis)
    return (
        *named,
        f"{c.total:.3f}",
        *parts,
        spread,
        need.problems,
        need.samples,
        need.reached,
        _number(need.needed),
    )


def _designs(need: Need, goal: Goal) -> str:
    rows = design_rows(need, goal)
    each = " of each model" if goal.width is None else ""
    head = [
        "samples",
        "problems",
        f"attempts{each}" + (" and seed" if need.components.trained else ""),
    ]
    if not need.components.separate:
        head[-1] += ", at most"
    head += ["tokens in all"] * (need.tokens is not None) + ["cost in all"] * (
        need.cost is not None
    )
    lines: list[Sequence[Any]] = []
    for row in rows:
        low, high = _number(row["problems_low"]), _number(row["problems"])
        line: list[Any] = [
            row["samples"],
            high if low == high else f"{low} to {high}",
            row["attempts"],
        ]
        line += [None if row["tokens"] is None else short(round(row["tokens"]))] * (
            need.tokens is not None
        )
        line += [None if row["cost"] is None else f"{row['cost']:.2f}"] * (need.cost is not None)
        lines.append(line)
    told = f"for {need.model}: samples against problems, at the same precision"
    told += (
        f", with {count(enough_seeds(need, goal), 'training seed')}"
        if need.components.trained
        else ""
    )
    if not need.components.separate:
        told += (
            " (one sample per problem is stored, which can't tell how much a second one would add)"
        )
    return f"{told}\n{columns([head, *lines], numbers=len(head))}"


def _seeds(need: Need, goal: Goal) -> str:
    rows = _by_seeds(need, goal)
    if not rows:
        return ""
    lines = [(row["seeds"], _number(row["problems"])) for row in rows]
    return f"for {need.model}: training seeds, with {count(need.samples, 'sample')}\n" + columns(
        [("seeds", "problems"), *lines], numbers=2
    )


def _advice(need: Need, goal: Goal) -> str:
    """What to set, in one line."""
    if need.needed <= need.problems:
        return f"this study is large enough: {count(need.problems, 'problem')}, {_number(need.needed)} needed"
    if math.isinf(need.needed):
        seeds = enough_seeds(need, goal)
        problems = goal.problems(need.components, need.samples, seeds)
        if math.isfinite(problems):
            return f"train {seeds} seeds and ask {problems:,.0f} problems: with {need.seeds} no number is enough"
        return "training seeds differ too much for this: none of these numbers of seeds is enough"
    if need.most is not None and need.needed > need.most:
        return _fixed(need, goal)
    single = goal.problems(need.components, 1, need.seeds)
    per_size = math.ceil(single / need.sizes)
    each = f" ({need.sizes} sizes: {need.sizes * per_size:,} in all)" if need.sizes > 1 else ""
    return (
        f"set problems = {per_size}{each} and samples = 1: at equal cost, new problems always tell more than further "
        "samples of the same ones"
    )


def _fixed(need: Need, goal: Goal) -> str:
    assert need.most is not None
    for samples in (1, 2, 4, 8, 16, 32, 64):
        if (
            samples > need.samples
            and goal.problems(need.components, samples, need.seeds) <= need.most
        ):
            return f"the set has {need.most:,} problems, so set samples = {samples}"
    if not need.components.separate:
        return (
            f"the set has {need.most:,} problems, too few for one sample each; store 2 samples per problem to see "
            "whether more would do"
        )
    return f"the set has {need.most:,} problems, which no number of samples makes enough: take a larger one too"
