"""`ponder plan --power`: how many problems, samples and training seeds an answer needs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ponder.cli.output import bold, table, wrap
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

# The numbers of samples and of training seeds that are tabulated.
SAMPLES = (1, 2, 4, 8)
SEEDS = (2, 3, 5, 8)
GUESSES = ("accuracy", "discordant", "within", "seeds", "tokens")
FROM_GUESS = "--guess accuracy=0.7 plans without"
FROM_PROBE = "`ponder plan STUDY --probe 20` asks 20 per cell first"


@dataclass(frozen=True)
class Goal:
    """The width of an accuracy's interval, or a margin of the difference to the first model."""

    margin: float | None
    width: float | None

    def problems(self, components: Components, samples: int, seeds: int) -> float:
        """Return how many problems reach the goal; infinity if no number does."""
        if self.width is not None:
            return problems_for_width(components, self.width, samples, seeds)
        return problems_for_margin(components, self.margin or 0.0, samples, seeds)

    def reached(self, components: Components, problems: int, samples: int, seeds: int) -> str:
        """Return what a run of this size would show."""
        half_width = components.half(problems, samples, seeds)
        if self.width is not None:
            if math.isinf(half_width):
                return "no interval"
            return f"{200 * half_width:.1f} points wide"
        if math.isinf(half_width):
            return "power 0 %"
        power = power_of(components, self.margin or 0.0, problems, samples, seeds)
        return f"power {100 * power:.0f} %"


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
    # Of one attempt, prompts included: of models without training seeds, and of those with.
    tokens: tuple[float, float] | None
    cost: tuple[float, float] | None
    needed: float  # problems, with the study's samples and seeds
    reached: str  # what the study as it is would show


def needs(study: Study, path: Path, goal: Goal, guess: dict[str, float] | None) -> list[Need]:
    """Return the need of every model on every task; for a margin, without the first model."""
    variants = {cell.variant_key: cell.label.variant for cell in study.cells}
    keys = list(variants)
    if goal.width is None and len(keys) < 2:
        raise UserError(
            "a margin needs two models",
            hint="--width 0.1 plans the interval of one model's accuracy",
        )
    outcomes = [] if guess is not None else _stored(study, path)
    results = []
    tasks = {cell.task_key: cell.label.task for cell in study.cells}
    for task_key, task in tasks.items():
        cells: dict[bytes, list[StudyCell]] = {key: [] for key in keys}
        for cell in study.cells:
            if cell.task_key == task_key:
                cells[cell.variant_key].append(cell)
        task_outcomes = [outcome for outcome in outcomes if outcome.cell.task_key == task_key]
        for key in keys:
            if goal.width is not None:
                compared = [key]
            elif key != keys[0]:
                compared = [keys[0], key]
            else:
                continue
            if study.chooses_sizes or not all(cells[variant] for variant in compared):
                continue
            by_variant = []
            for variant in compared:
                by_variant.append([o for o in task_outcomes if o.cell.variant_key == variant])
            compared_cells = [cells[variant] for variant in compared]
            results.append(_need(variants[key], task, compared_cells, by_variant, goal, guess))
    if not results:
        raise UserError(
            "there is nothing to plan: the run decides itself how many attempts it makes"
        )
    return results


def _stored(study: Study, path: Path) -> list[Outcome]:
    """Return the answered attempts of a study in a store."""
    from ponder.store.store import Store

    hint = f"{FROM_GUESS}; {FROM_PROBE}"
    if not path.is_file():
        raise UserError(f"there is no store {path} to plan from", hint=hint)
    with Store(path) as store:
        outcomes = [outcome for outcome in store.outcomes(study.cells) if outcome.answered]
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
    """Return what a model needs, given the cells and outcomes of one or two variants."""
    seeds_by_variant = _seeds_by_variant(cells)
    seeds = max(seeds_by_variant)
    trained = [number > 1 for number in seeds_by_variant]
    by_size = {cell.size: cell for cell in cells[-1]}
    problems = sum(_asked(cell) for cell in by_size.values())
    samples = cells[-1][0].quota.samples
    available: int | None = 0
    for cell in by_size.values():
        of_size = _available(cell)
        if of_size is None:
            available = None
        elif available is not None:
            available += of_size
    components, basis = _components(label, task, cells, outcomes, guess)
    tokens: list[float | None] = []
    costs: list[float | None] = []
    for variant_outcomes in outcomes:
        if variant_outcomes:
            tokens.append(_mean_tokens(variant_outcomes))
        else:
            tokens.append(guess.get("tokens") if guess else None)
        costs.append(_mean_cost(variant_outcomes))
    return Need(
        model=label,
        task=task,
        basis=basis,
        components=components,
        problems=problems,
        sizes=len(by_size),
        samples=samples,
        seeds=seeds,
        most=available,
        tokens=_by_training(tokens, trained),
        cost=_by_training(costs, trained),
        needed=goal.problems(components, samples, seeds),
        reached=goal.reached(components, problems, samples, seeds),
    )


def _by_training(
    amounts: Sequence[float | None], trained: Sequence[bool]
) -> tuple[float, float] | None:
    """Return the sums over models without training seeds and with; None if one is unknown."""
    untrained_sum = 0.0
    trained_sum = 0.0
    for amount, is_trained in zip(amounts, trained, strict=True):
        if amount is None:
            return None
        if is_trained:
            trained_sum += amount
        else:
            untrained_sum += amount
    return untrained_sum, trained_sum


def _seeds_by_variant(cells: Sequence[list[StudyCell]]) -> list[int]:
    """Return how many training seeds each variant has."""
    numbers = []
    for variant in cells:
        seeds = {cell.training_seeds for cell in variant}
        numbers.append(len(seeds))
    return numbers


def _components(
    label: str,
    task: str,
    cells: Sequence[list[StudyCell]],
    outcomes: Sequence[list[Outcome]],
    guess: dict[str, float] | None,
) -> tuple[Components, str]:
    """Return the components of the variance, and what they were estimated from."""
    from ponder.stats.frontier import variants
    from ponder.stats.power import of_one, of_two

    if guess is not None:
        trained = sum(number > 1 for number in _seeds_by_variant(cells))
        guesses = {key: guess[key] for key in ("discordant", "within", "seeds") if key in guess}
        one_or_two = guessed(guess.get("accuracy", 0.5), trained=trained, **guesses)
        return one_or_two[len(cells) - 1], "a guess"
    data = variants({str(number): variant for number, variant in enumerate(outcomes)})
    if len(data.variants) < len(cells) or data.problems < 2:
        message = f"`{label}` has too few answers to plan from"
        if task:
            message += f" on {task}"
        raise UserError(message, hint=f"{FROM_PROBE}; {FROM_GUESS}")
    if len(cells) == 1:
        components = of_one(data.variants[0])
    else:
        components = of_two(*data.variants)
    attempts = sum(len(variant.correct) for variant in data.variants)
    return components, f"{count(attempts, 'attempt')} at {count(data.problems, 'problem')}"


def _asked(cell: StudyCell) -> int:
    """Return how many problems a cell asks."""
    if cell.task.fixed() is None and cell.quota.problems:
        return cell.quota.problems
    return sum(1 for _ in cell.asked())


def _available(cell: StudyCell) -> int | None:
    """Return how many problems a fixed set has; None if a task generates any number."""
    if cell.task.fixed() is None:
        return None
    return sum(1 for _ in cell.task.problems(cell.size, cell.seed))


def _mean_tokens(outcomes: Sequence[Outcome]) -> float:
    tokens = [outcome.prompt_tokens + outcome.tokens("output") for outcome in outcomes]
    return math.fsum(tokens) / len(outcomes)


def _mean_cost(outcomes: Sequence[Outcome]) -> float | None:
    """Return the mean cost of an attempt; None if there is none, or one's cost is unknown."""
    costs = []
    for outcome in outcomes:
        cost = outcome.cost
        if cost is None:
            return None
        costs.append(cost)
    return math.fsum(costs) / len(costs) if costs else None


def read_guess(text: str) -> dict[str, float]:
    """Return the table that `accuracy=0.7,discordant=0.1` stands for."""
    from ponder.core.plugins import nearest

    guess = {}
    for setting in text.split(","):
        key, _, value = (side.strip() for side in setting.partition("="))
        if key not in GUESSES:
            raise UserError(
                f"there is no guess `{key}`", where="--guess", hint=nearest(key, GUESSES)
            )
        try:
            guess[key] = float(value)
        except ValueError:
            raise UserError(f"`{value}` is not a number", where=f"--guess {key}") from None
        largest = 1e9 if key == "tokens" else 1
        if not 0 <= guess[key] <= largest:
            raise UserError(f"{key} is a fraction from 0 to 1, not {value}", where="--guess")
    accuracy = guess.get("accuracy", 0.5)
    # One model is right, the other wrong: each in half of these problems.
    max_discordant = 2 * min(accuracy, 1 - accuracy)
    if guess.get("discordant", 0) > max_discordant + 1e-9:
        raise UserError(
            f"models with an accuracy of {accuracy:g} can't disagree "
            f"on more than {max_discordant:g} of the problems",
            where="--guess discordant",
        )
    return guess


def design_rows(need: Need, goal: Goal) -> list[dict[str, Any]]:
    """Return problems, attempts and costs for several numbers of samples, at the same precision.

    Problems are a range if stored attempts can't separate variance between and within problems.
    """
    rows = []
    seeds = enough_seeds(need, goal)
    for samples in SAMPLES:
        high = goal.problems(need.components, samples, seeds)
        low = high
        if not need.components.separate:
            low = goal.problems(need.components.all_within, samples, seeds)
        problems = None if math.isinf(high) else int(high)
        attempts = None if problems is None else problems * samples
        rows.append(
            {
                "samples": samples,
                "problems_low": None if math.isinf(low) else int(low),
                "problems": problems,
                "attempts": attempts,  # of each model
                "tokens": _in_total(need.tokens, attempts, seeds),
                "cost": _in_total(need.cost, attempts, seeds),
            }
        )
    return rows


def _in_total(
    amounts: tuple[float, float] | None, attempts: int | None, seeds: int
) -> float | None:
    """Return tokens or cost of all models and seeds; None if unknown."""
    if amounts is None or attempts is None:
        return None
    untrained, trained = amounts
    return attempts * (untrained + seeds * trained)


def enough_seeds(need: Need, goal: Goal) -> int:
    """Return the study's training seeds, or if they are too few, the fewest that are enough."""
    candidates = [1]
    if need.components.trained:
        candidates = [need.seeds, *(seeds for seeds in SEEDS if seeds > need.seeds)]
    for seeds in candidates:
        if math.isfinite(goal.problems(need.components, need.samples, seeds)):
            return seeds
    return need.seeds


def power_json(results: Sequence[Need], goal: Goal) -> dict[str, Any]:
    """Return the needs of all models as JSON."""
    records = []
    for need in results:
        record = dataclasses.asdict(need)
        record["components"] = dataclasses.asdict(need.components)
        record["components"]["total"] = need.components.total
        record["needed"] = None if math.isinf(need.needed) else int(need.needed)
        record["designs"] = design_rows(need, goal)
        record["by_seeds"] = _seed_rows(need, goal)
        records.append(record)
    return {"margin": goal.margin, "width": goal.width, "needs": records}


def _seed_rows(need: Need, goal: Goal) -> list[dict[str, Any]]:
    """Return the problems needed for several numbers of training seeds."""
    if not need.components.trained:
        return []
    rows = []
    for seeds in SEEDS:
        problems = goal.problems(need.components, need.samples, seeds)
        rows.append({"seeds": seeds, "problems": None if math.isinf(problems) else int(problems)})
    return rows


def power_text(results: Sequence[Need], goal: Goal, study: Study) -> str:
    """Return the needs of all models, the designs for the most demanding one, and what to do."""
    first = next(iter(study.cells)).label.variant
    if goal.width is not None:
        target = f"goal: an interval of accuracy {100 * goal.width:g} points wide"
    else:
        target = (
            f"goal: to show `not worse than {first} by more than {100 * (goal.margin or 0):g} "
            "points` in 80 % of runs, if it is as good: n = 7.85 · Var(d) / δ², "
            "and more where training seeds vary"
        )

    def demand(need: Need) -> tuple[float, float]:
        return need.needed, goal.problems(need.components, need.samples, SEEDS[-1])

    hardest = max(results, key=demand)
    paragraphs = [wrap(target), _needs_table(results), _designs(hardest, goal)]
    if hardest.components.trained:
        paragraphs.append(_seeds(hardest, goal))
    paragraphs.append(bold(wrap(_advice(hardest, goal))))
    return "\n\n".join(paragraphs)


def _needs_table(results: Sequence[Need]) -> str:
    """Return the variance of each model and the problems that it needs."""
    several_tasks = len({need.task for need in results}) > 1
    heading = ["model", "from", "variance", "between", "within", "seeds' sd"]
    heading += ["problems", "samples", "this study", "problems needed"]
    if several_tasks:
        heading.insert(1, "task")
    rows: list[list[Any]] = [heading]
    for need in results:
        components = need.components
        between = "?"
        within = "?"
        if components.separate:
            between = f"{components.between:.3f}"
            within = f"{components.within + components.within_trained:.3f}"
        spread = "–"
        if components.trained:
            spread = f"{100 * math.sqrt(components.seeds / components.trained):.1f} points"
        row: list[Any] = [need.model, need.basis, f"{components.total:.3f}", between, within]
        row += [spread, need.problems, need.samples, need.reached, _number(need.needed)]
        if several_tasks:
            row.insert(1, need.task)
        rows.append(row)
    return table(rows, numbers=8)


def _number(n: float | None) -> str:
    if n is None or math.isinf(n):
        return "never"
    return f"{n:,.0f}"


def _designs(need: Need, goal: Goal) -> str:
    """Return the table of samples against problems."""
    attempts = "attempts"
    if goal.width is None:
        attempts += " of each model"
    if need.components.trained:
        attempts += " and seed"
    if not need.components.separate:
        attempts += ", at most"
    heading = ["samples", "problems", attempts]
    if need.tokens is not None:
        heading.append("tokens in all")
    if need.cost is not None:
        heading.append("cost in all")
    rows: list[list[Any]] = [heading]
    for design in design_rows(need, goal):
        low = _number(design["problems_low"])
        high = _number(design["problems"])
        problems = high if low == high else f"{low} to {high}"
        row: list[Any] = [design["samples"], problems, design["attempts"]]
        if need.tokens is not None:
            tokens = design["tokens"]
            row.append(None if tokens is None else short(round(tokens)))
        if need.cost is not None:
            cost = design["cost"]
            row.append(None if cost is None else f"{cost:.2f}")
        rows.append(row)
    title = f"for {need.model}: samples against problems, at the same precision"
    if need.components.trained:
        title += f", with {count(enough_seeds(need, goal), 'training seed')}"
    if not need.components.separate:
        title += (
            " (one sample per problem is stored, which can't tell how much a second one would add)"
        )
    return f"{wrap(title)}\n{table(rows, numbers=len(heading))}"


def _seeds(need: Need, goal: Goal) -> str:
    """Return the table of training seeds against problems."""
    rows: list[tuple[Any, ...]] = [("seeds", "problems")]
    for row in _seed_rows(need, goal):
        rows.append((row["seeds"], _number(row["problems"])))
    title = f"for {need.model}: training seeds, with {count(need.samples, 'sample')}"
    return f"{title}\n{table(rows, numbers=2)}"


def _advice(need: Need, goal: Goal) -> str:
    """Return what to set, in one sentence."""
    if need.needed <= need.problems:
        problems = count(need.problems, "problem")
        return f"this study is large enough: {problems}, {_number(need.needed)} needed"
    if math.isinf(need.needed):
        seeds = enough_seeds(need, goal)
        enough = goal.problems(need.components, need.samples, seeds)
        if math.isfinite(enough):
            return (
                f"train {seeds} seeds and ask {enough:,.0f} problems: "
                f"with {need.seeds} no number is enough"
            )
        return "training seeds differ too much for this: none of these numbers of seeds is enough"
    if need.most is not None and need.needed > need.most:
        return _advice_for_fixed_set(need, goal)
    single = goal.problems(need.components, 1, need.seeds)
    per_size = math.ceil(single / need.sizes)
    setting = f"problems = {per_size}"
    if need.sizes > 1:
        setting += f" ({need.sizes} sizes: {need.sizes * per_size:,} in all)"
    return (
        f"set {setting} and samples = 1: at equal cost, new problems always tell more than further "
        "samples of the same ones"
    )


def _advice_for_fixed_set(need: Need, goal: Goal) -> str:
    """Return what to set where a fixed set has too few problems for one sample each."""
    assert need.most is not None
    available = f"the set has {need.most:,} problems"
    for samples in (1, 2, 4, 8, 16, 32, 64):
        if samples <= need.samples:
            continue
        if goal.problems(need.components, samples, need.seeds) <= need.most:
            return f"{available}, so set samples = {samples}"
    if not need.components.separate:
        return (
            f"{available}, too few for one sample each; store 2 samples per problem to see "
            "whether more would do"
        )
    return f"{available}, which no number of samples makes enough: use a larger set as well"
