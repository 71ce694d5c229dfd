"""`ponder compare`: two models on the same problems, with a verdict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ponder.cli import complete
from ponder.cli.model_option import load
from ponder.cli.options import FILE, columns, command, say, study_options, tell
from ponder.core import UserError
from ponder.core.text import number

if TYPE_CHECKING:
    from ponder.core import Outcome, Prices, Records, Tables
    from ponder.results.results import Results
    from ponder.results.study import Study
    from ponder.study.cell import StudyCell


class Model(NamedTuple):
    """One of the two: a study's variant, or one training seed of it, in a store."""

    label: str
    cells: list[StudyCell]
    store: Path
    outcomes: list[Outcome]

    @property
    def prices(self) -> Prices | None:
        """None too if a method asks another model, whose part of the cost outcomes don't hold."""
        return None if any(cell.asks() for cell in self.cells) else self.cells[0].model.prices


@click.command()
@study_options
@click.argument("a", required=False)
@click.argument("b", required=False)
@click.option("--margin", type=click.FloatRange(0, 1, True, True), default=0.03, show_default=True,
              help="The loss of accuracy that is tolerable, as a fraction.")  # fmt: skip
@click.option("--tokens", type=click.Choice(["auto", "output", "thinking", "answer"]), default="auto",
              show_default=True, help="Which to count; auto: thinking if both report it, else output.")  # fmt: skip
@click.option(
    "--b-study",
    metavar="STUDY",
    shell_complete=complete.studies,
    help="Where B is, if not in STUDY.",
)
@click.option(
    "--b-store",
    type=FILE,
    help="The file that holds the attempts of B.  [default: that of --store]",
)
@click.option(
    "--figure", type=FILE, help="Draw differences by size to this file: .png, .svg or .pdf."
)
@click.option("--disagree", type=int, metavar="SIZE",
              help="Show the attempts at the problems of this size that only one of them got right.")  # fmt: skip
def compare(
    study: str, store: Path, settings: tuple[str, ...], models: tuple[str, ...], as_json: bool,
    a: str | None, b: str | None, margin: float, tokens: Any, b_study: str | None, b_store: Path | None,
    figure: Path | None, disagree: int | None,
) -> None:  # fmt: skip
    """Compare two models of STUDY on the problems that both answered.

    A is the reference, B is compared with it: B less A, or B over A, each with an interval, a
    p-value, and that corrected for all of them. A and B are labels as `ponder plan` prints them;
    they may be left out if the study has two models. All training seeds of a variant count
    together; with its seed, one is meant. With --b-study and --b-store, B comes from another study
    or another store: problems are matched by their content.
    """
    if figure and figure.suffix not in (".png", ".svg", ".pdf"):
        raise UserError(f"a figure is a .png, .svg or .pdf file, not `{figure}`", where="--figure")
    loaded = load(study, settings, models)
    other = load(b_study, (), ()) if b_study else loaded
    results_a, results_b = loaded.results(store), other.results(b_store or store)
    a, b = _two(
        results_a.study, results_b.study, a, b, same=b_study is None and b_store in (None, store)
    )
    run_a = command("run", study, settings, store, models)
    run_b = (
        command("run", b_study, (), b_store or store)
        if b_study
        else command("run", study, settings, b_store or store, models)
    )
    first, second = _model(results_a, a, run_a), _model(results_b, b, run_b)
    tasks = _by_task(first, second)
    elsewhere = [
        *(("--b-study", b_study) if b_study else ()),
        *(("--b-store", str(b_store)) if b_store else ()),
    ]
    again = command("compare", study, settings, store, models, (a, b, *elsewhere))
    if disagree is not None:
        from ponder.cli.disagreements import disagreements, disagreements_text

        found = disagreements(first, second, tasks, disagree)
        say(found, as_json, lambda: disagreements_text(found, disagree))
        return
    if loaded.stop or other.stop:
        tell(
            "ADAPTIVE RUN: these intervals are those of a fixed number of problems; `ponder run` prints the valid one"
        )
    tables = _tables(first, second, tasks, margin, tokens)
    if figure:
        _draw(tables, figure)
    say(tables, as_json, lambda: text(tables, f"{again} --disagree SIZE"))


def _two(
    study: Study, other: Study, a: str | None, b: str | None, *, same: bool
) -> tuple[str, str]:
    """The labels, or the study's two models."""
    known = list(dict.fromkeys(cell.label.variant for cell in study.cells))
    others = list(dict.fromkeys(cell.label.variant for cell in other.cells))
    if a is None and same and len(known) == 2:
        a, b = known
    elif a is None and not same and len(known) == len(others) == 1:
        a, b = known[0], others[0]
    if a is None or b is None:
        what = "name two models" if a is None else f"name the model that `{a}` is compared with"
        listed = ", ".join(f"`{name}`" for name in dict.fromkeys([*known, *others]))
        raise UserError(f"{what}: ponder compare STUDY A B", hint=f"known: {listed}")
    if same and a == b:
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
    chosen = set(cells)
    outcomes = [o for o in results.outcomes if o.cell in chosen]
    if not any(o.answered for o in outcomes):
        raise UserError(f"{results.store} has no answers of `{label}`", hint=f"run it first: {run}")
    return Model(label, cells, results.store, outcomes)


def _by_task(first: Model, second: Model) -> dict[str, tuple[list[Outcome], list[Outcome]]]:
    """The outcomes of both, by task: the tasks that both were asked, or the only ones that they
    have.
    """
    from ponder.study.labels import task_labels

    names = [task_labels(model.outcomes) for model in (first, second)]
    common = [task for task in names[0] if task in names[1]]
    if not common and len(names[0]) == len(names[1]) == 1:
        return {next(iter(names[0].values())): (first.outcomes, second.outcomes)}
    if not common:
        asked = [", ".join(of_model.values()) for of_model in names]
        what = f"`{first.label}` was asked {asked[0]}, and `{second.label}` {asked[1]}"
        raise UserError(what, hint="compare models that were asked the same task")
    tasks: dict[str, tuple[list[Outcome], list[Outcome]]] = {
        names[0][task]: ([], []) for task in common
    }
    for side, model in enumerate((first, second)):
        for o in model.outcomes:
            if o.cell.task_key in common:
                tasks[names[0][o.cell.task_key]][side].append(o)
    for of_model, model in zip(names, (first, second), strict=True):
        if left := [name for task, name in of_model.items() if task not in common]:
            tell(f"LEFT OUT: {', '.join(left)}, which only `{model.label}` was asked")
    return tasks


def _tables(
    first: Model,
    second: Model,
    tasks: dict[str, tuple[list[Outcome], list[Outcome]]],
    margin: float,
    tokens: Any,
) -> Tables:
    from ponder.figures._units import token_columns, token_kind
    from ponder.figures.compare import compared_tables
    from ponder.stats.compare import compare_tasks

    every = [
        o._replace(label=replace(o.label, model=side))
        for pair in tasks.values()
        for side, part in zip("AB", pair, strict=True)
        for o in part
    ]
    prices = first.prices, second.prices
    if prices[0] and prices[1] and prices[0].currency != prices[1].currency:
        prices = None, None
    results = compare_tasks(list(tasks.values()), margin, token_kind(every, tokens), prices)
    if not any(results):
        what = f"`{first.label}` and `{second.label}` answered no problem in common"
        hint = "give both the same task, sizes, `seed` and `problems`; problems are matched by their content"
        raise UserError(what, hint=hint)
    names = first.label, second.label
    if first.label == second.label:
        names = f"{first.label} in {first.store}", f"{second.label} in {second.store}"
    tables = compared_tables(names, tasks, results)
    for panel in tables["panels"]:
        panel.update(token_columns(every, tokens))
    currency = prices[0].currency if prices[0] else ""
    tables["comparisons"] = [{**record, "currency": currency} for record in tables["comparisons"]]
    return tables


def _draw(tables: Tables, path: Path) -> None:
    from ponder.figures.compare import compared_chart
    from ponder.results.charts import draw

    chart = draw("compare", compared_chart(tables).to_dict())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        {".png": chart.png, ".svg": chart.svg.encode(), ".pdf": chart.pdf}[path.suffix]
    )
    tell(f"drawn: {path}")


def text(tables: Tables, show: str) -> str:
    """For each task the rows, what is left out, the sizes, and the verdict."""
    from ponder.figures._units import TITLES, token_findings
    from ponder.figures.compare import in_common
    from ponder.stats.columns import FEWEST_PAIRS

    first = tables["comparisons"][0]
    parts = [f"A: {first['a']}\nB: {first['b']}", *token_findings(tables["panels"])]
    for record, panel in zip(tables["comparisons"], tables["panels"], strict=True):
        rows, sizes, omitted = (
            [r for r in tables[name] if r["task"] == record["task"]]
            for name in ("rows", "sizes", "omitted")
        )
        head = ("", "A", "B", "B less A, or B over A", "p", "corrected")
        lines = [_row(r, record["currency"], few=record["problems"] < FEWEST_PAIRS) for r in rows]
        parts.append(f"{record['task']}: {in_common(record)}; {TITLES[panel['token_kind']]}")
        parts.append(columns([head, *lines], numbers=2))
        notes = [f"{r['quantity']}: {r['note']}" for r in rows if r["note"]]
        notes += [f"no {r['quantity']}: {r['why']}" for r in omitted]
        if notes:
            parts.append("\n".join(notes))
        parts.append(
            _sizes(
                sizes,
                show,
                int(max(record["attempts_a"], record["attempts_b"])) > record["problems"],
            )
        )
        parts.append(f"{record['sentence']}.")
    return "\n\n".join(parts)


def _row(r: dict[str, Any], currency: str, *, few: bool) -> tuple[str, ...]:
    """Return a quantity as the cells of the table; without an interval and p-values if there are
    too few problems.
    """

    def form(value: float | None) -> str:
        if value is None:
            return "?"
        if r["quantity"] == "accuracy":
            return f"{100 * value:.1f}"
        return (
            f"{value:.4g}"
            if r["quantity"].startswith("money")
            else f"{value:,.3g}"
            if value < 100
            else f"{value:,.0f}"
        )

    def estimate(side: str) -> str:
        value, low, high = (form(r[f"{side}{end}"]) for end in ("", "_low", "_high"))
        unit = " %" if r["quantity"] == "accuracy" else ""
        return f"{value}{unit} [{low}, {high}]"

    name = (
        r["quantity"] if not r["quantity"].startswith("money") else f"{currency} per right answer"
    )
    sides = (name, estimate("a"), estimate("b"))
    if few:
        return *sides, "–", "–", "–"
    return *sides, effect(r), small(r["p_value"]), small(r["q_value"])


def effect(r: dict[str, Any]) -> str:
    from ponder.figures._variants import points

    if not r["is_ratio"]:
        return points(r, "effect")
    ends = (r[f"effect{end}"] for end in ("", "_low", "_high"))
    value, low, high = (
        "?" if end is None else f"{end:.3f}" if end < 10 else number(end) for end in ends
    )
    return f"× {value} [{low}, {high}]"


def small(p: float | None) -> str:
    return "?" if p is None else "< 0.001" if p < 0.001 else f"{p:.2g}"


def _sizes(sizes: Records, show: str, several: bool) -> str:
    """The table by size, and how to see what it counts."""
    from ponder.stats.columns import FEWEST_PAIRS

    word = "more often right" if several else "alone right"
    head = (
        "size",
        "problems",
        "A",
        "B",
        "B less A, points",
        "tokens, B over A",
        f"A {word}",
        f"B {word}",
    )
    rows = []
    for r in sizes:
        ratio = "–"
        if r["ratio"] is not None:
            low, high = (
                "?" if r[e] is None else f"{r[e]:.2f}" for e in ("ratio_low", "ratio_high")
            )
            ratio = f"× {r['ratio']:.2f} [{low}, {high}]" + (
                " extrapolated" if r["extrapolated"] else ""
            )
        apart = [_points(r[f"difference{end}"]) for end in ("", "_low", "_high")]
        difference = apart[0]
        if r["problems"] >= FEWEST_PAIRS:
            difference = f"{apart[0]} [{apart[1]}, {apart[2]}]"
        own = [f"{r[side]:.0%}" for side in "ab"]
        rows.append(
            (
                f"{r['size']:g}",
                r["problems"],
                *own,
                difference,
                ratio,
                r["only_a"],
                r["only_b"],
            )
        )
    table = columns([head, *rows], numbers=8)
    return (
        f"{table}\nto see those attempts: {show}"
        if any(r["only_a"] + r["only_b"] for r in sizes)
        else table
    )


def _points(fraction: float) -> str:
    whole = round(100 * fraction)
    return f"{whole:+d}".replace("-", "−") if whole else "0"
