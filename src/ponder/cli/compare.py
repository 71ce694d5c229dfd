"""`ponder compare`: two models on the same problems, with a verdict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import click

from ponder.cli import complete
from ponder.cli.options import FILE, command, load, study_options
from ponder.cli.output import bold, say, table, tell, wrap
from ponder.core import UserError
from ponder.core.text import count, interval

if TYPE_CHECKING:
    from ponder.core import Attempt, Outcome, Records, Tables
    from ponder.results.results import Results
    from ponder.results.study import Study
    from ponder.study.cell import StudyCell

# The outcomes of A and of B on each task, by the task's label.
Pairs: TypeAlias = "dict[str, tuple[list[Outcome], list[Outcome]]]"
FRACTION = click.FloatRange(0, 1, min_open=True, max_open=True)
LONGEST = 600  # characters of a text that --disagree prints; --json has all of it


class Model(NamedTuple):
    """One of the two: a study's variant, or one training seed of it, in a store."""

    label: str
    cells: list[StudyCell]
    store: Path
    outcomes: list[Outcome]

    @property
    def currencies(self) -> set[str]:
        """The currencies of what its attempts cost."""
        names = set()
        for cell in self.cells:
            names |= cell.currencies()
        return names


@click.command(epilog="Example: ponder compare long2short long 'long + length_rl'")
@study_options
@click.argument("a", required=False)
@click.argument("b", required=False)
@click.option(
    "--margin",
    type=FRACTION,
    default=0.03,
    show_default=True,
    help="Tolerable loss of accuracy, as a fraction.",
)
@click.option(
    "--tokens",
    type=click.Choice(["auto", "output", "thinking", "answer"]),
    default="auto",
    show_default=True,
    help="Tokens to count; auto: thinking if both report it, else output.",
)
@click.option(
    "--b-study",
    metavar="STUDY",
    shell_complete=complete.studies,
    help="Study of B, if it is another one.",
)
@click.option("--b-store", type=FILE, help="Store of B.  [default: that of --store]")
@click.option("--figure", type=FILE, help="Draw differences by size to a .png, .svg or .pdf file.")
@click.option(
    "--disagree",
    type=int,
    metavar="SIZE",
    help="Show the attempts at the problems of a size that only one got right.",
)
def compare(
    study: str,
    store: Path,
    settings: tuple[str, ...],
    models: tuple[str, ...],
    as_json: bool,
    a: str | None,
    b: str | None,
    margin: float,
    tokens: Any,
    b_study: str | None,
    b_store: Path | None,
    figure: Path | None,
    disagree: int | None,
) -> None:
    """Compare two models of STUDY on the problems that both answered.

    A is the reference: each row shows B − A or B / A with an interval, a p-value, and a p-value
    adjusted for all rows. A and B are labels as `ponder plan` prints them; they may be left out if
    the study has two models. A label without a training seed stands for all seeds of the variant.
    With --b-study and --b-store, B comes from another study or another store: problems are matched
    by their content.
    """
    if figure and figure.suffix not in (".png", ".svg", ".pdf"):
        raise UserError(f"a figure is a .png, .svg or .pdf file, not `{figure}`", where="--figure")
    study_a = load(study, settings, models)
    study_b = load(b_study, (), ()) if b_study else study_a
    store_b = b_store or store
    results_a = study_a.results(store)
    results_b = study_b.results(store_b)
    same_run = b_study is None and b_store in (None, store)
    a, b = _labels(results_a.study, results_b.study, a, b, same_run=same_run)
    run_a = command("run", study, settings, store, models)
    run_b = command("run", study, settings, store_b, models)
    if b_study:
        run_b = command("run", b_study, (), store_b)
    first = _model(results_a, a, run_a)
    second = _model(results_b, b, run_b)
    tasks = _by_task(first, second)
    if disagree is not None:
        records = disagreements(first, second, tasks, disagree)
        say(records, as_json, lambda: disagreements_text(records, disagree))
        return
    if study_a.stop or study_b.stop:
        tell(
            "this was an adaptive run: the intervals below assume a fixed number of problems; "
            "`ponder run` prints the valid ones"
        )
    tables = _tables(first, second, tasks, margin, tokens)
    if figure:
        _draw(tables, figure)
    arguments = [a, b]
    if b_study:
        arguments += ["--b-study", b_study]
    if b_store:
        arguments += ["--b-store", str(b_store)]
    this_command = command("compare", study, settings, store, models, arguments)
    say(tables, as_json, lambda: text(tables, f"{this_command} --disagree SIZE"))


def _labels(
    study_a: Study, study_b: Study, a: str | None, b: str | None, *, same_run: bool
) -> tuple[str, str]:
    """Return the labels of A and B: those given, or the study's two models."""
    variants_a = list(dict.fromkeys(cell.label.variant for cell in study_a.cells))
    variants_b = list(dict.fromkeys(cell.label.variant for cell in study_b.cells))
    if a is None and same_run and len(variants_a) == 2:
        a, b = variants_a
    elif a is None and not same_run and len(variants_a) == len(variants_b) == 1:
        a = variants_a[0]
        b = variants_b[0]
    if a is None or b is None:
        missing = "name two models" if a is None else f"name the model to compare `{a}` with"
        variants = dict.fromkeys([*variants_a, *variants_b])
        names = ", ".join(f"`{name}`" for name in variants)
        raise UserError(f"{missing}: ponder compare STUDY A B", hint=f"known: {names}")
    if same_run and a == b:
        raise UserError(
            f"`{a}` can't be compared with itself",
            hint="name another model, or another store: --b-store",
        )
    return a, b


def _model(results: Results, label: str, run: str) -> Model:
    """Return a model's attempts in a store; `run` is the command that would ask it."""
    from ponder.study.labels import cells_called, unknown_name

    study_cells = results.study.cells
    if cells_called(study_cells, "variant", label):
        cells = cells_called(results.cells, "variant", label)
    elif cells_called(study_cells, "model", label):
        cells = cells_called(results.cells, "model", label)
    else:
        raise unknown_name(study_cells, "model", label)
    of_model = set(cells)
    outcomes = [outcome for outcome in results.outcomes if outcome.cell in of_model]
    if not any(outcome.answered for outcome in outcomes):
        raise UserError(f"{results.store} has no answers of `{label}`", hint=f"run it first: {run}")
    return Model(label, cells, results.store, outcomes)


def _by_task(first: Model, second: Model) -> Pairs:
    """Return the outcomes of both by task: the tasks of both, or the only task of each."""
    from ponder.study.labels import task_labels

    names_a = task_labels(first.outcomes)
    names_b = task_labels(second.outcomes)
    common = [task for task in names_a if task in names_b]
    if not common and len(names_a) == len(names_b) == 1:
        (name,) = names_a.values()
        return {name: (first.outcomes, second.outcomes)}
    if not common:
        raise UserError(
            f"`{first.label}` was asked {', '.join(names_a.values())}, "
            f"and `{second.label}` {', '.join(names_b.values())}",
            hint="compare models that were asked the same task",
        )
    pairs: Pairs = {}
    for task in common:
        of_a = [outcome for outcome in first.outcomes if outcome.cell.task_key == task]
        of_b = [outcome for outcome in second.outcomes if outcome.cell.task_key == task]
        pairs[names_a[task]] = (of_a, of_b)
    for names, model in ((names_a, first), (names_b, second)):
        unmatched = [name for task, name in names.items() if task not in common]
        if unmatched:
            tell(f"left out: {', '.join(unmatched)}, which only `{model.label}` was asked")
    return pairs


def _tables(first: Model, second: Model, tasks: Pairs, margin: float, tokens: Any) -> Tables:
    """Return every number of the comparison, as the figure `compare` draws it."""
    from ponder.figures._units import token_columns, token_kind
    from ponder.figures.compare import compared_tables
    from ponder.stats.compare import MONEY_PER_RIGHT, compare_tasks

    outcomes = []
    for of_a, of_b in tasks.values():
        for side, side_outcomes in (("A", of_a), ("B", of_b)):
            for outcome in side_outcomes:
                outcomes.append(outcome._replace(label=replace(outcome.label, model=side)))
    currencies = first.currencies | second.currencies
    kind = token_kind(outcomes, tokens)
    results = compare_tasks(list(tasks.values()), margin, kind, money=len(currencies) == 1)
    if not any(results):
        raise UserError(
            f"`{first.label}` and `{second.label}` answered no problem in common",
            hint="give both the same task, sizes, `seed` and `problems`; "
            "problems are matched by their content",
        )
    names = (first.label, second.label)
    if first.label == second.label:
        names = (f"{first.label} in {first.store}", f"{second.label} in {second.store}")
    tables = compared_tables(names, tasks, results)
    has_money = any(row["quantity"] == MONEY_PER_RIGHT for row in tables["rows"])
    currency = "".join(currencies) if has_money else ""
    for panel in tables["panels"]:
        panel.update(token_columns(outcomes, tokens))
    for record in tables["comparisons"]:
        record["currency"] = currency
    return tables


def _draw(tables: Tables, path: Path) -> None:
    """Draw the comparison by size to a file."""
    from ponder.figures.compare import compared_chart
    from ponder.results.charts import draw

    chart = draw("compare", compared_chart(tables).to_dict())
    contents = {".png": chart.png, ".svg": chart.svg.encode(), ".pdf": chart.pdf}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(contents[path.suffix])
    tell(f"drawn: {path}")


def text(tables: Tables, show: str) -> str:
    """Return for each task the table of quantities, notes, the table by size, and the verdict.

    `show` is the command that prints the attempts on which A and B disagree.
    """
    from ponder.figures._units import TITLES, token_findings
    from ponder.figures.compare import in_common
    from ponder.stats.columns import FEWEST_PAIRS

    first = tables["comparisons"][0]
    paragraphs = [f"A: {first['a']}\nB: {first['b']}", *token_findings(tables["panels"])]
    for record, panel in zip(tables["comparisons"], tables["panels"], strict=True):
        task = record["task"]
        rows = [row for row in tables["rows"] if row["task"] == task]
        sizes = [row for row in tables["sizes"] if row["task"] == task]
        omitted = [row for row in tables["omitted"] if row["task"] == task]
        lines: list[tuple[str, ...]] = [("", "A", "B", "B − A or B / A", "p", "adjusted p")]
        too_few = record["problems"] < FEWEST_PAIRS
        for row in rows:
            lines.append(_quantity(row, record["currency"], too_few=too_few))
        notes = [f"{row['quantity']}: {row['note']}" for row in rows if row["note"]]
        notes += [f"no {row['quantity']}: {row['why']}" for row in omitted]
        counted = f"{in_common(record)}; {TITLES[panel['token_kind']]}"
        paragraphs.append(wrap(f"{bold(task)}: {counted}"))
        paragraphs.append(table(lines, numbers=3))
        if notes:
            paragraphs.append("\n".join(wrap(note, indent="  ") for note in notes))
        paragraphs.append(_sizes(sizes, show))
        paragraphs.append(bold(wrap(f"{record['sentence']}.")))
    return "\n\n".join(paragraphs)


def _quantity(row: dict[str, Any], currency: str, *, too_few: bool) -> tuple[str, ...]:
    """Return a quantity as the cells of the table; without an effect if problems are too few."""
    name = row["quantity"]
    if name.startswith("money"):
        name = f"{currency} per right answer"
    a = _estimate(row, "a")
    b = _estimate(row, "b")
    if too_few:
        return name, a, b, "–", "–", "–"
    return name, a, b, effect(row), small(row["p_value"]), small(row["q_value"])


def _estimate(row: dict[str, Any], side: str) -> str:
    """Return the estimate of A or B with its interval."""
    percent = row["quantity"] == "accuracy"
    value, low, high = interval(
        row[side], row[f"{side}_low"], row[f"{side}_high"], scale=100 if percent else 1
    )
    unit = " %" if percent else ""
    return f"{value}{unit} [{low}, {high}]"


def effect(row: dict[str, Any]) -> str:
    """Return the difference or the ratio of B and A with its interval."""
    ends = (row["effect"], row["effect_low"], row["effect_high"])
    if row["is_ratio"]:
        value, low, high = interval(*ends)
        return f"× {value} [{low}, {high}]"
    value, low, high = interval(*ends, scale=100, signed=True)
    return f"{value} points [{low}, {high}]"


def small(p: float | None) -> str:
    """Return a p-value."""
    if p is None:
        return "?"
    if p < 0.001:
        return "< 0.001"
    return f"{p:.2g}"


def _sizes(sizes: Records, show: str) -> str:
    """Return the table by size, and the command that shows the problems it counts."""
    from ponder.stats.columns import FEWEST_PAIRS

    rows: list[tuple[Any, ...]] = [
        ("size", "problems", "A", "B", "B − A", "tokens, B / A", "A wins", "B wins")
    ]
    for row in sizes:
        difference = (row["difference"], row["difference_low"], row["difference_high"])
        value, low, high = interval(*difference, scale=100, signed=True)
        points = value
        if row["problems"] >= FEWEST_PAIRS:
            points = f"{value} [{low}, {high}]"
        ratio = "–"
        if row["ratio"] is not None:
            value, low, high = interval(row["ratio"], row["ratio_low"], row["ratio_high"])
            ratio = f"× {value} [{low}, {high}]"
            if row["extrapolated"]:
                ratio += " *"
        accuracies = (f"{row['a']:.0%}", f"{row['b']:.0%}")
        size = f"{row['size']:g}"
        wins = (row["only_a"], row["only_b"])
        rows.append((size, row["problems"], *accuracies, points, ratio, *wins))
    lines = [table(rows, numbers=8)]
    if any(row["extrapolated"] for row in sizes if row["ratio"] is not None):
        lines.append("*: extrapolated from the other sizes")
    if any(row["only_a"] + row["only_b"] for row in sizes):
        lines.append(wrap("wins: problems that one model got right more often than the other"))
        lines.append(f"to see those attempts: {show}")
    return "\n".join(lines)


def disagreements(first: Model, second: Model, tasks: Pairs, size: int) -> list[dict[str, Any]]:
    """Return a record per problem of a size that one model got right more often than the other."""
    records = []
    sizes = set()
    for task, (of_a, of_b) in tasks.items():
        sizes |= {outcome.size for outcome in of_a}
        rates_a = _rates(of_a, size)
        rates_b = _rates(of_b, size)
        common = sorted(rates_a.keys() & rates_b.keys())
        differing = [problem for problem in common if rates_a[problem] != rates_b[problem]]
        attempts_a = _attempts(first, of_a, size, set(differing))
        attempts_b = _attempts(second, of_b, size, set(differing))
        for problem in differing:
            records.append(
                {
                    "task": task,
                    "size": size,
                    "problem": problem,
                    "right": "A" if rates_a[problem] > rates_b[problem] else "B",
                    "a": attempts_a[problem],
                    "b": attempts_b[problem],
                }
            )
    if size not in sizes:
        raise UserError(
            f"no problem has size {size}",
            where="--disagree",
            hint=f"sizes: {', '.join(map(str, sorted(sizes)))}",
        )
    return records


def _rates(outcomes: list[Outcome], size: int) -> dict[str, float]:
    """Return the fraction of correct samples of each problem of a size."""
    correct: dict[str, list[bool]] = {}
    for outcome in outcomes:
        if outcome.size == size and outcome.answered:
            correct.setdefault(outcome.problem, []).append(outcome.correct)
    return {problem: sum(samples) / len(samples) for problem, samples in correct.items()}


def _attempts(
    model: Model, outcomes: list[Outcome], size: int, problems: set[str]
) -> dict[str, list[dict[str, Any]]]:
    """Return the texts of a model's attempts at some problems, by problem."""
    from ponder.store.store import Store

    texts: dict[str, list[dict[str, Any]]] = {problem: [] for problem in problems}
    cells_of_task = {outcome.cell for outcome in outcomes}
    with Store(model.store) as store:
        for cell in model.cells:
            if cell.size != size or cell not in cells_of_task:
                continue
            for stored in store.attempts(cell):
                attempt = stored.attempt
                if attempt.problem.id in problems and attempt.ended != "failed":
                    texts[attempt.problem.id].append(_attempt_json(attempt, cell.label.model))
    return texts


def _attempt_json(attempt: Attempt, model: str) -> dict[str, Any]:
    thinking = [completion.thinking for completion in attempt.completions if completion.thinking]
    return {
        "model": model,
        "sample": attempt.sample,
        "ended": attempt.ended,
        "why": attempt.why,
        "thinking_tokens": attempt.bill.thinking_tokens,
        "answer_tokens": attempt.bill.answer_tokens,
        "question": attempt.problem.turns[-1],
        "thinking": "\n".join(thinking),
        "answer": attempt.completions[-1].answer if attempt.completions else "",
    }


def disagreements_text(records: list[dict[str, Any]], size: int) -> str:
    """Return the attempts that `disagreements` returned, each with the end of its answer."""
    problems = count(len(records), "problem")
    paragraphs = [f"{problems} of size {size} that one got right more often than the other"]
    for record in records:
        attempts = [("A", attempt) for attempt in record["a"]]
        attempts += [("B", attempt) for attempt in record["b"]]
        heading = f"{record['task']}, problem {record['problem']}: {record['right']} is right"
        lines = [bold(heading), _cut(attempts[0][1]["question"])]
        for side, attempt in attempts:
            ended = attempt["ended"]
            if attempt["why"]:
                ended += f": {attempt['why']}"
            tokens = attempt["thinking_tokens"] + attempt["answer_tokens"]
            lines.append(f"{side} {attempt['model']}, {ended}, {tokens:,} tokens")
            lines.append(_cut(attempt["answer"]))
        paragraphs.append("\n".join(lines))
    return "\n\n".join(paragraphs)


def _cut(text: str) -> str:
    """Return a text that fits on a screen. A long one keeps its end, where the answer is."""
    if len(text) > LONGEST:
        start = text[: LONGEST // 3]
        end = text[-(LONGEST - len(start)) :]
        text = f"{start} … ({len(text):,} characters; --json has all) … {end}"
    return "\n".join(f"    {line}" for line in text.splitlines())
