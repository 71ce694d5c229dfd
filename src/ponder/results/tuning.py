"""`ponder.tune`: the cheapest setting that is good enough, with the reasons, in words and as JSON.

A study whose `stop` has the goal `cheapest` is asked adaptively (`run/adaptive.py`), and its design
(`stats/designs/cheapest.py`) is repeated here on what is stored. If the store has every attempt of
every setting, or they were imported, there were no interim analyses, and the intervals are narrower.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from ponder.core import Estimate, FromLog, Measure, Outcome, Resource, UserError
from ponder.core.text import count, interval, number, percent_text, points, rounded_up
from ponder.results.routing import routing_json
from ponder.results.study import STORE, Study
from ponder.run.adaptive import Trial, trials
from ponder.run.progress import short
from ponder.stats.columns import Floats
from ponder.stats.designs.cheapest import Cheapest, Standing
from ponder.stats.routing import Routing, routing
from ponder.stats.settings import Change, SettingSummary, changes, summarise
from ponder.store.store import Store
from ponder.study.cell import StudyCell

if TYPE_CHECKING:
    from ponder.results.results import Results

Choice: TypeAlias = Literal[
    "chosen",
    "good",
    "too weak",
    "probably too weak",
    "more expensive",
    "no effect",
    "undecided",
    "no answers",
]
MARGIN = 0.02  # tolerable loss of accuracy, by default
DAYS_PER_MONTH = 30.4
AS_MUCH = 0.005  # savings that round to 0 %
MANY = 100  # times the problems of the study: nobody will ask as many
RESOURCES: dict[Measure, Resource] = {"tokens": "output", "cost": "cost", "seconds": "seconds"}


@dataclass(frozen=True)
class Setting:
    """A setting that was compared: how good it is, what it takes, and whether to deploy it."""

    label: str
    cells: tuple[StudyCell, ...]
    choice: Choice
    summary: SettingSummary
    difference: Estimate | None  # in accuracy to the reference, valid at every analysis
    saving: Estimate | None  # fraction that the chosen setting saves beside this one
    # That would decide: 0 if it is decided, infinite if no number of them would or `MANY` times the
    # study's, None if too few are answered to tell.
    more_problems: float | None = 0.0
    same_as: str = ""  # the setting whose replies its replies equal, if its dial has no effect

    @property
    def is_variant(self) -> bool:
        """Whether its label names a model with methods, and not also a task (another prompt)."""
        return self.label == self.cells[0].label.variant

    def verdict(self) -> str:
        """Return the setting's verdict in the words of the table."""
        if self.choice == "no effect":
            return f"no effect: as {self.same_as}"
        if self.choice == "good":
            if self.saving is not None and abs(self.saving.value) < AS_MUCH:
                return "good, at the same cost"
            return "good, but more expensive"
        return self.choice

    def as_json(self) -> dict[str, Any]:
        """Return the setting as JSON."""
        data = dataclasses.asdict(self.summary)
        data |= {"setting": self.label, "choice": self.choice, "same_as": self.same_as}
        data["difference"] = self.difference and dataclasses.asdict(self.difference)
        data["saving"] = self.saving and dataclasses.asdict(self.saving)
        data["more_problems"] = self.more_problems
        return data


@dataclass(frozen=True)
class Step:
    """Two settings next to each other in cost, and the problems that only one gets right."""

    first: str
    second: str
    changes: tuple[Change, ...]

    @property
    def gained(self) -> list[Change]:
        return [change for change in self.changes if change.gained]

    @property
    def lost(self) -> list[Change]:
        return [change for change in self.changes if not change.gained]


class Column(NamedTuple):
    """A column of the table of settings: an estimate of each."""

    title: str
    estimates: Sequence[Estimate | None]
    scale: float = 1.0

    def text(self, i: int) -> tuple[str, str]:
        """Return the value and the interval of a setting."""
        estimate = self.estimates[i]
        if estimate is None or not estimate.attempts:
            return "–", ""
        value, low, high = interval(estimate.value, estimate.low, estimate.high, scale=self.scale)
        return value, f"[{low}, {high}]"


@dataclass(frozen=True)
class Tuning:
    """Which setting to deploy, with the comparison of all settings that it is computed from."""

    settings: tuple[Setting, ...]  # the cheapest first
    steps: tuple[Step, ...]
    reference: str  # setting that the choice is compared with; "" if there is none
    by: Measure
    currency: str
    margin: float
    floor: float | None
    attempts: int  # made so far
    full_plan: int  # attempts of every setting at every problem
    ended: bool  # False: the run may go on, and this is the answer so far
    adaptive: bool  # False: all attempts were there before, so there were no interim analyses
    # What sending each problem to the setting it needs would save; None: too few problems,
    # or the run may go on.
    routing: Routing | None = None

    @property
    def chosen(self) -> Setting | None:
        """The cheapest setting that is surely good enough, if there is one."""
        for setting in self.settings:
            if setting.choice == "chosen":
                return setting
        return None

    def by_label(self, label: str) -> Setting | None:
        """Return the setting with a label."""
        for setting in self.settings:
            if setting.label == label:
                return setting
        return None

    def _with_choice(self, choice: Choice) -> list[Setting]:
        return [setting for setting in self.settings if setting.choice == choice]

    # --- In words ---

    def verdict(self, volume: float | None = None) -> list[str]:
        """Return the verdict in sentences; `volume` is a number of requests per day."""
        chosen = self.chosen
        if chosen is None:
            return self._no_choice()
        sentences = [self._choice_sentence(chosen)]
        if volume:
            sentences.append(self._volume_sentence(chosen, volume))
        undecided = self._undecided_sentence(chosen)
        if undecided:
            sentences.append(undecided)
        return sentences

    def _choice_sentence(self, chosen: Setting) -> str:
        other = self.by_label(self.reference)
        if other is None or other is chosen:
            clause = self._too_weak_clause()
            return f"`{chosen.label}` is the cheapest that is surely good enough{clause}."
        saved = self._saving_clause(other.saving)
        if self.floor is not None:
            accuracy = percent_text(chosen.summary.accuracy)
            return (
                f"`{chosen.label}` is right in at least {self.floor:.0%} (accuracy {accuracy}), "
                f"and {saved} `{other.label}`."
            )
        assert chosen.difference is not None
        quality = f"its accuracy is not worse by more than {100 * self.margin:g} points"
        if chosen.difference.low > 0:
            quality = "it is more often right"
        difference = _points_text(chosen.difference)
        return f"`{chosen.label}` {saved} `{other.label}`, and {quality} (difference {difference})."

    def _too_weak_clause(self) -> str:
        clauses = []
        choices: tuple[Choice, ...] = ("too weak", "probably too weak")
        for choice in choices:
            weak = [f"`{setting.label}`" for setting in self._with_choice(choice)]
            if weak:
                verb = "is" if len(weak) == 1 else "are"
                clauses.append(f"{', '.join(weak)} {verb} {choice}")
        return f": {', '.join(clauses)}" if clauses else ""

    def _saving_clause(self, saving: Estimate | None) -> str:
        """Return the middle of `low` … `high`: "costs 71 % [66, 75] less than"."""
        verbs = {"cost": "costs", "tokens": "uses", "seconds": "takes"}
        nouns = {"cost": "", "tokens": " output tokens", "seconds": " time"}
        assert saving is not None
        if max(abs(saving.low), abs(saving.high)) < AS_MUCH:
            equal = {"cost": "costs as much", "tokens": "uses as many output tokens"}
            return f"{equal.get(self.by, 'takes as long')} as"
        if saving.value < 0:
            flipped = Estimate(
                -saving.value, -saving.high, -saving.low, saving.attempts, saving.problems
            )
            more = f"{percent_text(flipped)} more{nouns[self.by]} than"
            return f"{verbs[self.by]} {more}"
        less = "fewer" if self.by == "tokens" else "less"
        return f"{verbs[self.by]} {percent_text(saving)} {less}{nouns[self.by]} than"

    def _volume_sentence(self, chosen: Setting, volume: float) -> str:
        requests = volume * DAYS_PER_MONTH
        other = self.by_label(self.reference) or chosen
        other_amount = self.amount(other.summary)
        chosen_amount = self.amount(chosen.summary)
        if other_amount is None or chosen_amount is None:
            return ""
        amount = f"{self.amount_text(requests * chosen_amount.value)} a month"
        if other is not chosen:
            amount += f" instead of {self.amount_text(requests * other_amount.value)}"
        return f"At {volume:,.0f} requests a day that is about {amount}."

    def _undecided_sentence(self, chosen: Setting) -> str:
        """Say what it takes to decide about settings that would be cheaper than the choice."""
        undecided = []
        for setting in self.settings:
            if setting is chosen:
                break
            if setting.choice == "undecided":
                undecided.append(setting)
        if not undecided:
            return ""
        names = _names(undecided, "or")
        return f"Undecided: whether the cheaper {names} would do; {self._needed(undecided)}."

    def _no_choice(self) -> list[str]:
        answered = [setting for setting in self.settings if setting.summary.accuracy.attempts]
        best = max(answered, key=lambda setting: setting.summary.accuracy.value)
        accuracy = percent_text(best.summary.accuracy)
        if all(setting.choice == "too weak" for setting in self.settings):
            reached = f"the most accurate, `{best.label}`, is right in {accuracy}"
            return [f"No setting is right in {self.floor:.0%}: {reached}."]
        undecided = [s for s in self.settings if s.choice == "undecided"]
        if not undecided:
            undecided = [s for s in self.settings if s.choice == "probably too weak"]
        silent = [s for s in self.settings if s.choice == "no answers"]
        if silent:
            verb = "has" if len(silent) == 1 else "have"
            question = f"Can't tell yet: {_names(silent, 'and')} {verb} no answers yet"
        elif len(undecided) == 1:
            question = f"Can't tell yet whether `{undecided[0].label}` is good enough"
            question += f": {self._needed(undecided)}"
        else:
            question = f"Can't tell yet which of {_names(undecided, 'and')} is good enough"
            question += f": {self._needed(undecided)}"
        most_accurate = f"`{best.label}` is the most accurate"
        if any(
            s.summary.accuracy.value == best.summary.accuracy.value for s in answered if s != best
        ):
            most_accurate = f"no setting is more accurate than `{best.label}`"
        return [f"{question}.", f"Until then, {most_accurate} ({accuracy})."]

    def _needed(self, undecided: Sequence[Setting]) -> str:
        """Say how many more problems would decide about these settings, and what they take."""
        by_problems: dict[float, list[Setting]] = {}
        hopeless = []
        clauses = []
        for setting in undecided:
            if setting.more_problems is None:
                return "too few problems have answers of all of them to say how many would decide"
            if math.isinf(setting.more_problems):
                hopeless.append(setting)
            else:
                by_problems.setdefault(rounded_up(setting.more_problems), []).append(setting)
        differ = len(by_problems) > 1 or bool(hopeless)
        for problems in sorted(by_problems):
            settings = by_problems[problems]
            about = f" about {_names(settings, 'and')}" if differ else ""
            amount = self.amount_text(self._amount_of(problems, settings))
            problems_text = count(int(problems), "more problem")
            clauses.append(f"about {problems_text} would decide{about}, and take about {amount}")
        if hopeless:
            limit = "the margin" if self.floor is None else "the floor"
            names = f"{_names(hopeless, 'and')} {'is' if len(hopeless) == 1 else 'are'}"
            clauses.append(f"{names} so close to {limit} that {MANY} times the problems wouldn't")
        return "; ".join(clauses)

    def _amount_of(self, problems: float, settings: Sequence[Setting]) -> float:
        """Return what so many more problems take of these settings and of the reference."""
        names = {setting.label for setting in settings} | {self.reference}
        amount = 0.0
        for setting in self.settings:
            per_answer = self.amount(setting.summary)
            if setting.label in names and per_answer is not None:
                answers = setting.summary.accuracy.attempts
                asked = max(1, setting.summary.accuracy.problems)
                amount += problems * per_answer.value * answers / asked
        return amount

    def amount(self, summary: SettingSummary) -> Estimate | None:
        """Return the mean amount per answer of what is saved: tokens, money or seconds."""
        if self.by == "cost":
            return summary.cost
        if self.by == "seconds":
            return summary.seconds
        return summary.tokens

    def amount_text(self, amount: float) -> str:
        """Return an amount with its unit."""
        if self.by == "cost":
            return f"{number(amount)} {self.currency}"
        if self.by == "seconds":
            return f"{amount:,.0f} seconds"
        return f"{short(amount)} tokens"

    def columns(self) -> list[Column]:
        """Return the columns of the table of settings."""
        summaries = [setting.summary for setting in self.settings]
        columns = [
            Column("accuracy %", [summary.accuracy for summary in summaries], scale=100.0),
            Column("tokens", [summary.tokens for summary in summaries]),
        ]
        if any(summary.cost is not None for summary in summaries):
            columns.append(Column(self.currency, [summary.cost for summary in summaries]))
        unit = {"tokens": "tokens", "cost": self.currency, "seconds": "seconds"}[self.by]
        columns += [
            Column("p50 s", [summary.seconds_p50 for summary in summaries]),
            Column("p95 s", [summary.seconds_p95 for summary in summaries]),
            Column(f"{unit} per right answer", [summary.per_right for summary in summaries]),
        ]
        return columns

    def _units(self) -> dict[str, str]:
        """Return the units of the settings' estimates."""
        unit = {"tokens": "output tokens", "cost": self.currency, "seconds": "seconds"}[self.by]
        units = {
            "accuracy": "fraction of answers that are right",
            "tokens": "output tokens per answer",
            "seconds": "seconds per answer",
            "seconds_p50": "seconds",
            "seconds_p95": "seconds",
            "per_right": f"{unit} per right answer",
            "difference": f"accuracy minus that of {self.reference or 'the reference'}",
            "saving": f"fraction of the setting's {unit} that the chosen one saves",
            "more_problems": "problems of all sizes together",
        }
        if self.currency:
            units["cost"] = f"{self.currency} per answer"
        return units

    def table(self) -> list[list[str]]:
        """Return the settings with their estimates as text, a heading first."""
        columns = self.columns()
        rows = [["setting", "verdict", *(column.title for column in columns)]]
        for i, setting in enumerate(self.settings):
            row = [setting.label, setting.verdict()]
            for column in columns:
                row.append(" ".join(column.text(i)).rstrip())
            rows.append(row)
        return rows

    def __repr__(self) -> str:
        lines = [" ".join(self.verdict())]
        lines += ["  ".join(row) for row in self.table()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        html = f"<p><b>{escape(' '.join(self.verdict()))}</b></p><table>"
        for row in self.table():
            cells = "".join(f"<td>{escape(text)}</td>" for text in row)
            html += f"<tr>{cells}</tr>"
        return f"{html}</table>"

    def as_json(self, volume: float | None = None) -> dict[str, Any]:
        """Return everything as JSON."""
        steps = []
        for step in self.steps:
            steps.append(
                {
                    "first": step.first,
                    "second": step.second,
                    "gained": [change._asdict() for change in step.gained],
                    "lost": [change._asdict() for change in step.lost],
                }
            )
        return {
            "verdict": self.verdict(volume),
            "chosen": self.chosen.label if self.chosen else None,
            "reference": self.reference,
            "by": self.by,
            "currency": self.currency,
            "margin": self.margin,
            "floor": self.floor,
            "units": self._units(),
            "settings": [setting.as_json() for setting in self.settings],
            "steps": steps,
            "routing": routing_json(self.routing) if self.routing else None,
            "attempts": self.attempts,
            "full_plan": self.full_plan,
            "ended": self.ended,
            "adaptive": self.adaptive,
        }


def tune(
    study: Study,
    *,
    margin: float | None = None,
    floor: float | None = None,
    reference: str = "",
    by: Measure | None = None,
    store: str | Path = STORE,
    stored: bool = False,
    progress: bool = True,
) -> Tuning:
    """Find the cheapest setting of a study that is good enough, and what it saves.

    The settings are the study's models, methods and swept keys. Good enough is an accuracy that is
    not worse than that of `reference` (a label; default: the most accurate setting) by more than
    `margin` (default: 0.02), or at least `floor`. `by` is what to save: "tokens", "cost" or
    "seconds". Problems are asked as long as they inform; with `stored` none are.
    """
    study = with_goal(study, margin, floor, reference, by)
    if stored or is_log(study):
        return study.results(store).tuning
    return study.run(store=store, progress=progress).tuning


def is_log(study: Study) -> bool:
    """Return whether all answers come from another program's log, so that nothing can be asked."""
    return all(isinstance(cell.model, FromLog) for cell in study.cells)


def with_goal(
    study: Study, margin: float | None, floor: float | None, reference: str, by: str | None
) -> Study:
    """Return a study whose run looks for its cheapest setting."""
    stop: dict[str, Any] = {"goal": "cheapest"}
    if study.stop and study.stop.get("goal") == "cheapest":
        stop = dict(study.stop)
    if margin is not None and floor is not None:
        message = "a setting is good enough by a margin or by a floor, not both"
        raise UserError(message, hint="leave out --margin or --floor")
    if floor is not None:
        stop.pop("margin", None)
        stop.pop("reference", None)
        stop["floor"] = floor
    if margin is not None:
        stop.pop("floor", None)
        stop["margin"] = margin
    if "margin" not in stop and "floor" not in stop:
        stop["margin"] = MARGIN
    if reference:
        stop["reference"] = reference
    if by:
        stop["by"] = by
    return dataclasses.replace(study, stop=stop)


def as_last_tuned(results: Results) -> Results:
    """Return the results of a study as `ponder tune` ran it, if that was its last run.

    The goal is then in the store and not in the study file.
    """
    if results.study.stop is not None:
        return results
    with Store(results.store) as store:
        stop = store.last_run(results.study.name).get("stop")
    study = tuned_study(results.study, stop)
    if study is results.study:
        return results
    return dataclasses.replace(results, study=study)


def tuned_study(study: Study, stop: Any) -> Study:
    """Return a study without `stop` with that of its last run, if its goal is `cheapest`."""
    if study.stop is not None or not isinstance(stop, dict) or stop.get("goal") != "cheapest":
        return study
    tuned = dataclasses.replace(study, stop=stop)
    try:
        trials(tuned)
    except UserError:  # the file has changed since
        return study
    return tuned


def tuning(results: Results) -> Tuning:
    """Return the cheapest setting that is good enough, from what the store holds."""
    [state] = results.replayed  # a study with this goal has one trial
    trial = state.trial
    scores = state.scores
    design = trial.design
    assert isinstance(design, Cheapest)
    outcomes = results.outcomes
    if any(cell.quota.samples > 1 for cell in results.cells):
        outcomes = results.voting_outcomes  # these show where a setting's answers disagree
    if not any(o.answered for o in outcomes):
        raise results.no_answers()
    standing = design.standing(scores)
    by_cell: dict[bytes, list[Outcome]] = {}
    for o in outcomes:
        by_cell.setdefault(o.cell.key, []).append(o)
    by_arm = []
    for arm in trial.arms:
        attempts = []
        for cell in arm:
            attempts += by_cell.get(cell.key, [])
        by_arm.append(attempts)
    order = _order_by_cost(scores)
    reference = _reference(design, standing, scores, order)
    equal_settings = _equal_settings(results, trial)
    settings = []
    priced = all(cell.model.prices is not None for cell in itertools.chain(*trial.arms))
    for i in order:
        summary = summarise(by_arm[i], RESOURCES[trial.by], priced=priced)
        settings.append(
            _setting(i, trial, design, standing, scores, summary, reference, equal_settings)
        )
    steps = []
    for i, j in itertools.pairwise(order):
        changed = changes(by_arm[i], by_arm[j])
        steps.append(Step(trial.names[i], trial.names[j], tuple(changed)))
    chosen = None
    if standing.choice is not None:
        chosen = trial.names[standing.choice]
    routes = None
    if state.ended:  # it takes as long as all else here, and a live page recomputes often
        routes = routing(
            dict(zip(trial.names, by_arm, strict=True)),
            lambda o: o.used(RESOURCES[trial.by]),
            design.margin,
            single=chosen,
        )
    currencies = {cell.model.prices.currency for cell in results.study.cells if cell.model.prices}
    return Tuning(
        settings=tuple(settings),
        steps=tuple(steps),
        reference="" if reference is None else trial.names[reference],
        by=trial.by,
        currency=next(iter(currencies), ""),
        margin=design.margin,
        floor=design.floor,
        attempts=len(outcomes),
        full_plan=len(outcomes) if trial.is_log else trial.attempts_at_most(),
        ended=state.ended,
        adaptive=state.adaptive,
        routing=routes,
    )


def _order_by_cost(scores: Sequence[Floats]) -> list[int]:
    """Return the settings, the cheapest first, on the problems that all were asked."""
    size = min(len(score) for score in scores)
    means = []
    for score in scores:
        amounts = score[:size, 1]
        answered = amounts[~np.isnan(amounts)]
        means.append(float(answered.mean()) if len(answered) else math.inf)
    return sorted(range(len(scores)), key=lambda i: means[i])


def _reference(
    design: Cheapest, standing: Standing, scores: Sequence[Floats], order: Sequence[int]
) -> int | None:
    """Return the setting to compare the choice with.

    That is the reference of the design, or else the most accurate of those that cost more than the
    choice.
    """
    if design.reference is not None:
        return design.reference
    choice = standing.choice
    candidates = list(order)
    if choice is not None:
        candidates = list(order[order.index(choice) + 1 :])
    if not candidates:
        return None
    # Of equally accurate ones the most expensive: it saves most.
    return max(candidates, key=lambda i: (_mean_accuracy(scores[i]), order.index(i)))


def _equal_settings(results: Results, trial: Trial) -> dict[int, str]:
    """Map each setting whose dial has no effect to the label of the setting that it equals."""
    index = {}
    for i, arm in enumerate(trial.arms):
        index[arm[0].variant_key] = i
    equal_settings = {}
    for effect in results.dial_effects:
        second = index.get(effect.pair.second.variant_key)
        first = index.get(effect.pair.first.variant_key)
        if effect.shown == "none" and first is not None and second is not None:
            equal_settings[second] = trial.names[first]
    return equal_settings


def _setting(
    i: int,
    trial: Trial,
    design: Cheapest,
    standing: Standing,
    scores: Sequence[Floats],
    summary: SettingSummary,
    reference: int | None,
    equal_settings: dict[int, str],
) -> Setting:
    choice: Choice = "undecided"
    if not summary.accuracy.attempts:
        choice = "no answers"
    elif i == standing.choice:
        choice = "chosen"
    elif standing.quality[i] == "weak":
        choice = "too weak"
    elif i in equal_settings:
        choice = "no effect"
    elif standing.quality[i] == "good":
        choice = "good"
    elif standing.choice is not None and design.extra_cost_errors(scores, i, standing.choice) > 0:
        choice = "more expensive"
    difference = None
    if reference is not None and i != reference:
        difference = design.difference(scores, i, reference)
    saving = None
    if standing.choice is not None and i != standing.choice:
        saving = design.saving(scores, standing.choice, i)
    more: float | None = 0.0
    if choice == "undecided":
        rival = _rival(design, scores, i)
        if not standing.asked[i] and design.shortfall(scores, i, rival) > 0:
            choice = "probably too weak"
        more = design.problems_to_decide(scores, i, rival)
        if more is not None:
            if more > MANY * design.problems:
                more = math.inf
            more *= trial.problems_at_once(i)
    return Setting(
        label=trial.names[i],
        cells=trial.arms[i],
        choice=choice,
        summary=summary,
        difference=difference,
        saving=saving,
        more_problems=more,
        same_as=equal_settings.get(i, ""),
    )


def _rival(design: Cheapest, scores: Sequence[Floats], i: int) -> int | None:
    """Return the setting that `i` must not be worse than: the reference, or the best other one."""
    if design.floor is not None:
        return None
    if design.reference is not None:
        return design.reference
    others = [j for j in range(len(scores)) if j != i]
    return max(others, key=lambda j: _mean_accuracy(scores[j]))


def _mean_accuracy(scores: Floats) -> float:
    """Return the mean accuracy on the answered problems; −∞ if there are none."""
    answered = scores[~np.isnan(scores[:, 0]), 0]
    if not len(answered):
        return -math.inf
    return float(answered.mean())


def _names(settings: Sequence[Setting], conjunction: Literal["and", "or"]) -> str:
    """List the labels of settings: `a`, `b` and `c`."""
    *names, last = [f"`{setting.label}`" for setting in settings]
    if not names:
        return last
    return f"{', '.join(names)} {conjunction} {last}"


def _points_text(difference: Estimate) -> str:
    value = points(difference.value)
    return f"{value} [{points(difference.low)}, {points(difference.high)}]"
