"""`ponder compare`: two models on the same problems, with a verdict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ponder.cli import complete
from ponder.cli.gate import Gate, check_measures, markdown_summary, write_junit
from ponder.cli.options import FILE, command, load, study_options
from ponder.cli.output import bold, say, table, tell, wrap
from ponder.cli.sides import sides_from_stores, sides_with_baseline
from ponder.core import UserError
from ponder.core.text import count, interval

if TYPE_CHECKING:
    from ponder.cli.gate import GateResult
    from ponder.cli.sides import ComparedModel, Sides
    from ponder.core import Attempt, Outcome, Records, Tables

STDOUT = Path("-")
FRACTION = click.FloatRange(0, 1, min_open=True, max_open=True)
LONGEST = 600  # characters of a text that --disagree prints; --json has all of it


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
@click.option(
    "--baseline",
    type=FILE,
    help="A is in this file, which `ponder baseline` wrote; then name only B.",
)
@click.option(
    "--run",
    "runs",
    is_flag=True,
    help="With --baseline: first ask B, until the conditions of --fail-if are decided.",
)
@click.option("--figure", type=FILE, help="Draw differences by size to a .png, .svg or .pdf file.")
@click.option(
    "--disagree",
    type=int,
    metavar="SIZE",
    help="Show the attempts at the problems of a size that only one got right.",
)
@click.option(
    "--fail-if",
    "fail_if",
    multiple=True,
    metavar="CONDITION",
    help="Exit with code 1 if worse, 'tokens > +10%', 'cost > +10%', 'seconds > +10%', "
    "'accuracy < -2' or inconclusive. May be repeated.",
)
@click.option("--junit", type=FILE, help="Write the conditions as test cases, in JUnit XML.")
@click.option(
    "--markdown",
    type=FILE,
    help="Write a summary for a pull request; - prints it instead of the tables.",
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
    baseline: Path | None,
    runs: bool,
    figure: Path | None,
    disagree: int | None,
    fail_if: tuple[str, ...],
    junit: Path | None,
    markdown: Path | None,
) -> None:
    """Compare two models of STUDY on the problems that both answered.

    A is the reference: each row shows B − A or B / A with an interval, a p-value, and a p-value
    adjusted for all rows. A and B are labels as `ponder plan` prints them; they may be left out if
    the study has two models. A label without a training seed stands for all seeds of the variant.
    With --b-study and --b-store, B comes from another study or another store: problems are matched
    by their content.

    With --fail-if it is a gate: exit code 1 and a sentence if a condition is met, and code 0
    otherwise. `worse` is the verdict that B is worse than A, and not by less than --margin. A limit
    counts as exceeded if the whole interval is beyond it; if the interval contains it, the
    condition is inconclusive.
    """
    if figure and figure.suffix not in (".png", ".svg", ".pdf"):
        raise UserError(f"a figure is a .png, .svg or .pdf file, not `{figure}`", where="--figure")
    gate = Gate.read(fail_if, margin, tokens)
    _check_options(gate, baseline, runs, disagree, junit, markdown, as_json)
    if baseline:
        if b or b_study or b_store:
            hint = "ponder compare STUDY B --baseline FILE"
            raise UserError("A is the baseline, so only B is named", hint=hint)
        loaded = load(study, settings, models)
        run_b = command("run", study, settings, store, models)
        sides = sides_with_baseline(loaded, store, baseline, a, gate, run_b, asks=runs)
    else:
        sides = sides_from_stores(study, settings, models, (store, b_store), (a, b), b_study)
        check_measures(gate.conditions, (sides.first, sides.second))
    if disagree is not None:
        records = disagreements(sides, disagree)
        say(records, as_json, lambda: disagreements_text(records, disagree))
        return
    tables = _tables(sides, gate)
    if figure:
        _draw(tables, figure)
    judged = None
    if gate.conditions:
        judged = gate.judged(sides.tasks, sides.fraction)
        tables["gate"] = [judged.json() | {"asked": sides.asked_text}]
    if junit and judged:
        write_junit(junit, judged, Path(study).stem, sides.names)
    this_command = command("compare", study, settings, store, models, sides.arguments)
    show = f"{this_command} --disagree SIZE"
    if markdown:
        summary = markdown_summary(tables, judged, sides.asked_text, _quantities(tables), show)
        _write_markdown(markdown, summary)
    if markdown != STDOUT:
        say(tables, as_json, lambda: text(tables, show, sides.asked_text, judged))
    if judged and (as_json or markdown == STDOUT):
        tell(judged.sentence())
    if judged and judged.failing:
        raise click.exceptions.Exit(1)


def _check_options(
    gate: Gate,
    baseline: Path | None,
    runs: bool,
    disagree: int | None,
    junit: Path | None,
    markdown: Path | None,
    as_json: bool,
) -> None:
    """Raise `UserError` for options that don't go together."""
    if junit and not gate.conditions:
        raise UserError("--junit needs a condition", hint="--fail-if worse")
    if runs and not (baseline and gate.conditions):
        raise UserError(
            "--run needs --baseline and --fail-if: it asks B until the conditions are decided",
            hint="`ponder run STUDY` asks both models",
        )
    if as_json and markdown == STDOUT:
        raise UserError("--json and --markdown - both print to standard output", hint="name a file")
    if disagree is not None and (gate.conditions or markdown):
        raise UserError(
            "--disagree prints attempts, and judges nothing",
            hint="leave out --disagree, or --fail-if and --markdown",
        )


def _tables(sides: Sides, gate: Gate) -> Tables:
    """Return every number of the comparison, as the figure `compare` draws it."""
    from ponder.figures._units import token_columns, token_kind
    from ponder.figures.compare import compared_tables
    from ponder.stats.compare import MONEY_PER_RIGHT, compare_tasks
    from ponder.stats.designs.sequential import ANALYSES

    tasks = sides.tasks
    outcomes = []
    for of_a, of_b in tasks.values():
        for side, side_outcomes in (("A", of_a), ("B", of_b)):
            for outcome in side_outcomes:
                outcomes.append(outcome._replace(label=replace(outcome.label, model=side)))
    results = compare_tasks(
        list(tasks.values()),
        gate.margin,
        token_kind(outcomes, gate.tokens),
        money=len(sides.currencies) == 1,
        planned=bool(gate.conditions),
        analyses=1 if sides.fraction is None else ANALYSES,
    )
    if not any(results):
        raise UserError(
            f"`{sides.first.label}` and `{sides.second.label}` answered no problem in common",
            hint="give both the same task, sizes, `seed` and `problems`; "
            "problems are matched by their content",
        )
    tables = compared_tables(sides.names, tasks, results)
    has_money = any(row["quantity"] == MONEY_PER_RIGHT for row in tables["rows"])
    currency = "".join(sides.currencies) if has_money else ""
    for panel in tables["panels"]:
        panel.update(token_columns(outcomes, gate.tokens))
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


def _write_markdown(path: Path, summary: str) -> None:
    if path == STDOUT:
        click.echo(summary, nl=False)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(summary, "utf-8")


def text(tables: Tables, show: str, asked: str, judged: GateResult | None) -> str:
    """Return for each task the table of quantities, notes, the table by size, and the verdict.

    `show` is the command that prints the attempts on which A and B disagree; `asked` says how much
    an adaptive run has asked.
    """
    from ponder.figures._units import TITLES, token_findings
    from ponder.figures.compare import in_common

    first = tables["comparisons"][0]
    quantities = _quantities(tables)
    paragraphs = [f"A: {first['a']}\nB: {first['b']}", *token_findings(tables["panels"])]
    for record, panel in zip(tables["comparisons"], tables["panels"], strict=True):
        task = record["task"]
        rows = [row for row in tables["rows"] if row["task"] == task]
        sizes = [row for row in tables["sizes"] if row["task"] == task]
        omitted = [row for row in tables["omitted"] if row["task"] == task]
        notes = [f"{row['quantity']}: {row['note']}" for row in rows if row["note"]]
        notes += [f"no {row['quantity']}: {row['why']}" for row in omitted]
        counted = f"{in_common(record)}; {TITLES[panel['token_kind']]}"
        paragraphs.append(wrap(f"{bold(task)}: {counted}"))
        paragraphs.append(table(quantities[task], numbers=3))
        if notes:
            paragraphs.append("\n".join(wrap(note, indent="  ") for note in notes))
        paragraphs.append(_sizes(sizes, show))
        paragraphs.append(bold(wrap(f"{record['sentence']}.")))
    if asked:
        paragraphs.append(wrap(f"This adaptive run {asked}."))
    if judged:
        paragraphs.append(bold(wrap(judged.sentence())))
    return "\n\n".join(paragraphs)


def _quantities(tables: Tables) -> dict[str, list[tuple[str, ...]]]:
    """Return for each task the rows of the table of quantities, the heading first."""
    from ponder.stats.columns import FEWEST_PAIRS

    lines: dict[str, list[tuple[str, ...]]] = {}
    for record in tables["comparisons"]:
        of_task: list[tuple[str, ...]] = [("", "A", "B", "B − A or B / A", "p", "adjusted p")]
        too_few = record["problems"] < FEWEST_PAIRS
        for row in tables["rows"]:
            if row["task"] == record["task"]:
                of_task.append(_quantity(row, record["currency"], too_few=too_few))
        lines[record["task"]] = of_task
    return lines


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


def disagreements(sides: Sides, size: int) -> list[dict[str, Any]]:
    """Return a record per problem of a size that one model got right more often than the other."""
    records = []
    sizes = set()
    for task, (of_a, of_b) in sides.tasks.items():
        sizes |= {outcome.size for outcome in of_a}
        rates_a = _rates(of_a, size)
        rates_b = _rates(of_b, size)
        common = sorted(rates_a.keys() & rates_b.keys())
        differing = [problem for problem in common if rates_a[problem] != rates_b[problem]]
        attempts_a = _attempts(sides.first, of_a, size, set(differing))
        attempts_b = _attempts(sides.second, of_b, size, set(differing))
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
    model: ComparedModel, outcomes: list[Outcome], size: int, problems: set[str]
) -> dict[str, list[dict[str, Any]]]:
    """Return a model's attempts at some problems, by problem, with their texts if it has them."""
    from ponder.store.store import Store

    texts: dict[str, list[dict[str, Any]]] = {problem: [] for problem in problems}
    if not model.cells:
        for outcome in outcomes:
            if outcome.size == size and outcome.problem in problems and outcome.answered:
                texts[outcome.problem].append(_outcome_json(outcome, model.label))
        return texts
    cells_of_task = {outcome.cell for outcome in outcomes}
    with Store(model.file) as store:
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


def _outcome_json(outcome: Outcome, model: str) -> dict[str, Any]:
    """Return what a baseline has of an attempt: everything but its texts."""
    return {
        "model": model,
        "sample": outcome.sample,
        "ended": outcome.ended,
        "why": outcome.why,
        "thinking_tokens": outcome.thinking_tokens,
        "answer_tokens": outcome.answer_tokens,
        "question": "",
        "thinking": "",
        "answer": "",
    }


def disagreements_text(records: list[dict[str, Any]], size: int) -> str:
    """Return the attempts that `disagreements` returned, each with the end of its answer."""
    problems = count(len(records), "problem")
    paragraphs = [f"{problems} of size {size} that one got right more often than the other"]
    for record in records:
        attempts = [("A", attempt) for attempt in record["a"]]
        attempts += [("B", attempt) for attempt in record["b"]]
        heading = f"{record['task']}, problem {record['problem']}: {record['right']} is right"
        questions = [attempt["question"] for _, attempt in attempts if attempt["question"]]
        lines = [bold(heading), _cut(questions[0])]
        for side, attempt in attempts:
            ended = attempt["ended"]
            if attempt["why"]:
                ended += f": {attempt['why']}"
            tokens = attempt["thinking_tokens"] + attempt["answer_tokens"]
            lines.append(f"{side} {attempt['model']}, {ended}, {tokens:,} tokens")
            if attempt["question"]:
                lines.append(_cut(attempt["answer"]))
            else:
                lines.append("    a baseline has no texts")
        paragraphs.append("\n".join(lines))
    return "\n\n".join(paragraphs)


def _cut(text: str) -> str:
    """Return a text that fits on a screen. A long one keeps its end, where the answer is."""
    if len(text) > LONGEST:
        start = text[: LONGEST // 3]
        end = text[-(LONGEST - len(start)) :]
        text = f"{start} … ({len(text):,} characters; --json has all) … {end}"
    return "\n".join(f"    {line}" for line in text.splitlines())
