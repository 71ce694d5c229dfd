"""Checks a plugin against its interface by running it: the command `ponder check`.

There is one function per kind of plugin, which yields a message for each violation. A `UserError`
or `ModelFailure` on the way means that the plugin could not be run here (no weights, no server),
which is never reported as a pass. The tests run the same functions on every plugin that ships.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import math
import random
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from ponder.cli import describe
from ponder.core import (
    Cell,
    Completion,
    Ended,
    Figure,
    Fitted,
    Grade,
    Label,
    LengthReward,
    Method,
    Model,
    ModelFailure,
    Outcome,
    Plugin,
    Policy,
    Prepared,
    Prices,
    Problem,
    Progress,
    Request,
    Reward,
    Scores,
    Steps,
    Task,
    TrainingProblems,
    UserError,
    plugins,
)
from ponder.core.capabilities import FromLog, grade_turns, solve_turns
from ponder.core.scoring import fitted_to
from ponder.core.settings import assign, build, toml
from ponder.models.oracle import Oracle

if TYPE_CHECKING:
    from ponder.kvcache import CacheView

# Replies that no task may grade as right, and that no grader may fail on.
JUNK = (
    "",
    " ",
    "\x00",
    "I don't know.",
    "<answer></answer>",
    "[[",
    "[[]]",
    "[" * 5000,
    "[[1,2],[3]]",
    '{"a": 1}',
    "NaN",
    "\\boxed{",
    "1e999",
    "-" * 1000,
    "9" * 5000,
    "</think><think>",
    "<script>alert(1)</script>",
    "\ud800",
    "[[true]]",
)
# Settings of `compress` under which a policy is tried.
POLICY_SETTINGS = {"budget": 64, "window": 16, "ratio": 0.5, "fidelity": "only"}


class Result(NamedTuple):
    """How a check ended."""

    plugin: str  # its kind and name
    failures: list[str]
    not_run: str = ""  # why it could not be run, or not to the end

    @property
    def outcome(self) -> Literal["passed", "failed", "not run"]:
        if self.failures:
            return "failed"
        if self.not_run:
            return "not run"
        return "passed"

    def text(self) -> str:
        messages = list(self.failures)
        if self.not_run:
            messages.append(f"could not be run: {self.not_run}")
        if not messages:
            messages.append("passed")
        return "\n".join(f"{self.plugin}: {message}" for message in messages)


def check(kind: str, name: str, settings: Sequence[str] = ()) -> Result:
    """Run a plugin with its example settings, changed by `settings`, and report violations."""
    if kind == "studies" or name.endswith(".toml"):
        raise UserError(
            f"{name} is a study, not a plugin",
            hint=f"ponder plan {name} checks it, and asks nothing",
        )
    kind, plugin = describe.find(kind, name)
    table = {"name": name, **plugin.example}
    for setting in settings:
        assign({"plugin": [table]}, f"plugin.{setting}")
    failures = list(_docstring(plugin))
    not_run = ""
    try:
        failures.extend(CHECKS[kind](build(kind, table, name, Path())))
    except (UserError, ModelFailure) as error:
        not_run = _not_run(error, plugin, table)
    except ModuleNotFoundError as error:
        not_run = f"it needs a package that isn't installed: {error.name}"
    except Exception as error:  # whatever a plugin raises is a finding
        frame = traceback.extract_tb(error.__traceback__)[-1]
        line = f"{Path(frame.filename).name}, line {frame.lineno}"
        failures.append(f"raised {error!r} in {frame.name} ({line})")
    return Result(f"{plugins.KINDS[kind].noun} {name}", failures, not_run)


def _not_run(
    error: UserError | ModelFailure, plugin: type[Plugin], table: Mapping[str, Any]
) -> str:
    """Return why a plugin could not be run, with the example settings that may be to blame."""
    if not isinstance(error, UserError):
        return str(error)
    examples = []
    for key, value in plugin.example.items():
        if isinstance(value, str) and table[key] == value:
            examples.append(key)
    if not examples:
        return error.in_terminal()
    tried = ", ".join(f"{key} = {toml(table[key])}" for key in examples)
    return f"{error.what}\nhint: it was tried with {tried}; give your own: --set {examples[0]}=…"


def _docstring(plugin: type[Plugin]) -> Iterator[str]:
    docstring = inspect.getdoc(inspect.getmodule(plugin)) or ""
    summary = docstring.partition("\n\n")[0]
    if not summary.endswith((".", "?")):
        yield "the file's docstring must begin with one whole sentence, which `ponder list` shows"


def task(task: Task) -> Iterator[str]:
    """Check a task's problems and its grading at its default sizes, at most eight."""
    sizes = task.sizes()
    if not sizes:
        yield "it must say which sizes to use when a study names none: `default_sizes`"
    for size in sizes[:8]:
        task.check_size(size)
        for message in _task_at(task, size):
            yield f"size {size}: {message}"


def _task_at(task: Task, size: int) -> Iterator[str]:
    problem = task.problem(size, seed=1)
    if problem != task.problem(size, seed=1):
        yield "the same seed gave two different problems"
    if problem.size != size:
        yield f"the problem says its size is {problem.size}"
    if msgspec.json.decode(msgspec.json.encode(problem), type=Problem) != problem:
        yield "the problem changes when it is stored: use JSON values, with lists and not tuples"

    solution = grade_turns(task, problem, solve_turns(task, problem))
    if not solution.correct or solution.parsed is None:
        yield f"its own solution is graded wrong: {solution.why}"
    yield from _junk(task, problem)

    problems = list(itertools.islice(task.problems(size, seed=1), 10))
    ids = {p.id for p in problems}
    if len(ids) < len(problems):
        yield "problems repeat"
    ids_of_next_seed = {p.id for p in itertools.islice(task.problems(size, seed=2), 10)}
    if task.fixed() is None and len(ids) == 10 and len(ids & ids_of_next_seed) > 5:
        yield "neighbouring seeds share problems"

    graded_right = []
    for other_problem in problems:
        same_turns = len(other_problem.turns) == len(problem.turns)
        if same_turns and other_problem.gold != problem.gold:
            grade = grade_turns(task, problem, solve_turns(task, other_problem))
            graded_right.append(grade.correct)
    if graded_right and all(graded_right):
        yield "the solution of any other problem is graded right"


def _junk(task: Task, problem: Problem) -> Iterator[str]:
    for text in JUNK:
        try:
            grade = grade_turns(task, problem, [text] * len(problem.turns))
        except Exception as error:  # the point of the check
            yield f"grading {text[:20]!r} raised {error!r}"
            continue
        if grade != Grade(False, grade.parsed, grade.why, grade.details) or not grade.why:
            yield f"junk {text[:20]!r} must be graded wrong, with a reason"


def model(model: Model) -> Iterator[str]:
    """Check a model's description and its reply to one problem."""
    if not inspect.iscoroutinefunction(model.complete):
        yield "`complete` must be `async def`"
        return
    if model.concurrency < 1:
        yield "`concurrency` must be at least 1"
    if not model.title():
        yield "`title` must name it for legends"
    msgspec.json.encode(model.identity(), enc_hook=str)
    if isinstance(model, FromLog):
        return
    completion = _first_answer(model)
    if not isinstance(completion, Completion):
        yield f"`complete` must return a Completion, not {type(completion).__name__}"
    elif completion.bill.tokens <= 0:
        yield "the completion must have a bill: tokens of the prompt, the thinking and the answer"


def _first_answer(model: Model) -> Any:
    """Return its reply to the first problem that it can answer, whatever the task."""
    last_error: Exception = UserError("there is no task that it can answer")
    for name in plugins.names("tasks"):
        try:
            table = {"name": name, **plugins.load("tasks", name).example}
            task: Task = build("tasks", table, name, Path())
            size = task.sizes()[0]
            model.check(task, size)
            return _ask(model, Request.first_turn(task, next(task.problems(size, seed=0))))
        except (UserError, ModelFailure) as error:
            last_error = error
    raise last_error


def _ask(model: Model, request: Request) -> Any:
    async def ask() -> Any:
        async with model:
            return await model.complete(request)

    return asyncio.run(ask())


def policy(policy: Policy) -> Iterator[str]:
    """Check a policy's scores on random tensors, then its work in a real cache by `compress`."""
    from transformers import AutoConfig, AutoTokenizer

    unknown = sorted(set(policy.needs) - {"attention", "rope"})
    if unknown:
        yield f'`needs` may name "attention" and "rope", not "{unknown[0]}"'

    on_model, on_task, _ = plugins.load("methods", "compress").tried_on
    model = build("models", on_model, "tried_on", Path())
    folder = model.source(build("tasks", on_task, "tried_on", Path())).folder
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    fitted = fitted_to(policy, folder, tokenizer)
    # A policy that must know the whole text beforehand can't score one that is being written.
    with suppress(UserError):
        yield from _scores(fitted, config.hidden_size)

    name = policy.plugin_name()
    if name not in plugins.names("policies"):
        name = inspect.getfile(type(policy))
    table = {"name": "compress", "policy": name, **POLICY_SETTINGS}
    yield from method(build("methods", table, name, Path()))


def _scores(policy: Policy, hidden_size: int) -> Iterator[str]:
    import torch

    scores = policy.score(_random_view(policy, hidden_size, slice(None)))
    rows, heads, n = VIEW_SHAPE
    right_shape = scores.shape in ((rows, heads, n), (rows, 1, n))
    if not right_shape or not scores.float().isfinite().all():
        yield (
            "`score` must return finite numbers, rows × heads (or 1) × tokens, "
            f"not {tuple(scores.shape)}"
        )
        return
    alone = policy.score(_random_view(policy, hidden_size, slice(1, None)))
    if not torch.allclose(alone.float(), scores[1:].float(), atol=1e-6):
        yield "a row's scores must not depend on the other rows of its batch"


# Rows, heads and tokens of the cache that a policy scores.
VIEW_SHAPE = (2, 5, 24)


def _random_view(policy: Policy, hidden_size: int, rows: slice) -> CacheView:
    """Return the given rows of a cache of random keys, values and queries."""
    import torch

    from ponder.kvcache import CacheView

    batch, heads, n = VIEW_SHAPE
    width = 32
    torch.manual_seed(1)
    ids = torch.randint(9, 99, (batch, n))
    features = None
    if isinstance(policy, Fitted):
        hidden = torch.randn(batch, n, hidden_size)
        features = policy.token_features(hidden, ids)
    if features is not None:
        features = features[rows, None]
    keys = torch.randn(batch, heads, n, width)
    values = torch.randn(batch, heads, n, width)
    queries = None
    if policy.queries:
        queries = torch.randn(batch, heads, policy.queries, width)[rows]
    accumulated = None
    if "attention" in policy.needs:
        accumulated = torch.rand(batch, heads, n)[rows]
    frequencies = None
    if "rope" in policy.needs:
        frequencies = 10000.0 ** -torch.linspace(0, 1, width // 2)
    return CacheView(
        layer=0,
        keys=keys[rows],
        values=values[rows],
        queries=queries,
        accumulated=accumulated,
        scaling=width**-0.5,
        positions=torch.arange(n, dtype=torch.int32).expand(batch, 1, n)[rows],
        padding=torch.zeros(batch, 1, n, dtype=torch.bool)[rows],
        ids=ids[:, None][rows],
        features=features,
        seen_tokens=n,
        seeds=torch.arange(batch)[rows],
        frequencies=frequencies,
    )


def length_reward(reward: LengthReward) -> Iterator[str]:
    """Check a length reward on three groups of samples, early and late in a training."""
    groups = (
        ([True], [9]),
        ([True, False, True], [10, 10, 10]),
        ([False, False], [3, 8]),
    )
    for (correct, tokens), progress in itertools.product(groups, (0.0, 0.99)):
        rewards = reward.rewards(correct, tokens, progress)
        if len(rewards) != len(tokens) or not all(map(math.isfinite, rewards)):
            yield f"`rewards` must return one finite number per sample, not {rewards}"
            continue
        for value, is_correct in zip(rewards, correct, strict=True):
            if value > 0 and not is_correct:
                yield "a wrong answer must not be rewarded for its length"
                break


def reward(reward: Reward) -> Iterator[str]:
    """Check a process reward's scores of five traces, scored together and one by one."""
    question = "What is 3 + 4?"
    facts = {"labels": [1, 0, 0.5], "correct": True}
    plain: dict[str, Any] = {
        "question": question,
        "thinking": ("We add 3 and 4.", "That is 8."),
        "answer": ("It is 7.",),
        "facts": facts,
    }
    plain.update(reward.tried_on)
    thousand_steps = tuple(f"Again: 3 + 4 = {n}." for n in range(1000))
    traces = [
        Steps("plain", **plain),
        Steps("no thinking", question, (), ("7", "as said", "7"), facts),
        Steps(
            "another language", "3 加 4 是多少？", ("三加四。", "等于七。"), ("所以是 7。",), facts
        ),
        Steps("empty", question, (), ()),
        Steps("long", question, thousand_steps, ("7",)),
    ]
    together = reward.score(traces)
    for trace, scores in zip(traces, together, strict=True):
        if scores.total is None and not scores.why:
            yield f"trace `{trace.id}`: without a total there must be a reason"
    if together[0].total is None:
        yield f"an ordinary trace is not scored: {together[0].why}"
    alone = [reward.score([trace])[0] for trace in traces]
    if not all(_alike(a, b) for a, b in zip(together, alone, strict=True)):
        yield "a trace's scores must not depend on the traces next to it"
    msgspec.json.encode(reward.identity(), enc_hook=str)


def _alike(a: Scores, b: Scores) -> bool:
    if len(a.steps) != len(b.steps) or a.why != b.why:
        return False
    pairs = list(zip(a.steps, b.steps, strict=True))
    pairs.append((a.trajectory or 0.0, b.trajectory or 0.0))
    return all(abs(x - y) < 1e-4 for x, y in pairs)


def method(method: Method) -> Iterator[str]:
    """Check that a method's model answers, and is billed and priced as the model it wraps."""
    on_model, on_task, size = method.tried_on
    inner: Model = build("models", on_model, "tried_on", Path())
    task: Task = build("tasks", on_task, "tried_on", Path())
    if isinstance(method, Prepared):
        method = method.with_training((TrainingProblems(task, size, 0, 1),))
    cheaper = method.apply(inner)
    if not isinstance(cheaper, Model):
        yield "`apply` must return a model"
        return
    completion = _ask(cheaper, Request.first_turn(task, task.problem(size, seed=1), seed=1))
    if completion.bill.tokens <= 0:
        yield "the tokens that its model spends must be billed"
    if cheaper.prices != inner.prices or cheaper.concurrency < 1:
        yield "its model must keep the prices, and a concurrency of at least 1"


# Values of a task's setting that no figure draws.
SETTINGS = ("birch", "larch")


def figure(figure: Figure) -> Iterator[str]:
    """Check a figure's tables, chart and findings on made-up attempts."""
    outcomes = _outcomes()
    shortened = [_shortened(outcome) for outcome in outcomes]
    two_settings = []
    for value in SETTINGS:
        two_settings += [_with_setting(outcome, value) for outcome in outcomes[:24]]
    cases = {
        "many attempts": outcomes,
        "one size": outcomes[:12],
        "one attempt": outcomes[:1],
        "two variants": outcomes + shortened,
        "two settings": two_settings,
    }
    for name, case in cases.items():
        tables = figure.estimate(case)
        if figure.estimate(random.Random(1).sample(case, len(case))) != tables:
            yield f"{name}: its numbers depend on the order of the attempts"
        if msgspec.json.decode(msgspec.json.encode(tables, enc_hook=str)) != tables:
            yield f"{name}: its tables must hold plain values, and None for what is unknown"
        chart = figure.draw(tables).to_dict()
        findings = figure.findings(tables)
        # A figure that splits by a setting names its values; one that reports what it pools names
        # them too.
        if name == "two settings" and any(tables.values()):
            text = f"{chart}{findings}"
            if not all(value in text for value in SETTINGS):
                yield (
                    "it pools attempts of different settings without saying so: "
                    "use `by_series`, or say `pooled`"
                )


@dataclass(frozen=True)
class _MadeUpTask(Task):
    """A task that is never asked."""

    wood: str = ""

    @classmethod
    def plugin_name(cls) -> str:
        return "task"

    def problem(self, size: int, seed: int) -> Problem:
        return Problem(f"{size}/{seed}", size, ("?",))

    def solve(self, problem: Problem) -> str:  # noqa: ARG002 the interface's
        return "!"

    def grade(self, problem: Problem, answer: str) -> Grade:
        return Grade(answer == self.solve(problem), answer)


@dataclass(frozen=True)
class _MadeUpTraining(Prepared, Method):
    """A method that is never applied."""

    seed: int = 0

    @classmethod
    def plugin_name(cls) -> str:
        return "shortest"

    def make(self, model: Model) -> Iterator[Progress]:  # noqa: ARG002 the interface's
        yield from ()

    def training_seed(self) -> int:
        return self.seed

    def apply(self, model: Model) -> Model:
        return model


def _outcomes() -> list[Outcome]:
    """Return made-up attempts of an oracle at eight sizes, with every way to end."""
    oracle = Oracle(critical_size=20, prices=Prices(1.0, 8.0))
    rng = random.Random(1)
    label = Label("task", "model", "model", "model")
    outcomes: list[Outcome] = []
    for size in (4, 8, 12, 16, 24, 32, 48, 64):
        cell = Cell(_MadeUpTask(), size, oracle)
        for problem, sample in itertools.product(range(6), range(2)):
            ended: Ended = "right"
            parsed: int | None = size
            why = ""
            if rng.random() >= oracle.chance(size):
                ended = rng.choice(["wrong", "unparsed", "truncated", "failed"])
                parsed = None
                why = "made up"
            tokens = round(oracle.mean_tokens(size) * rng.uniform(0.7, 1.4))
            details = {
                "parsed": [parsed],
                "true": [size],
                "start": 0,
                "per_turn": size,
                "history_turns": problem % 2,
                "error_rate": 0.5 * sample,
            }
            outcome = Outcome(
                cell=cell,
                label=label,
                problem=f"{size}/{problem}",
                sample=sample,
                ended=ended,
                why=why,
                prompt_tokens=50,
                thinking_tokens=tokens,
                answer_tokens=9,
                seconds=0.1,
                counted_by="server",
                details=details,
                attempt=len(outcomes) + 1,
            )
            outcomes.append(outcome)
    return outcomes


def _with_setting(outcome: Outcome, value: str) -> Outcome:
    """Return the same attempt at a task with a setting of this value, labelled as in a study."""
    cell = replace(outcome.cell, task=_MadeUpTask(wood=value))
    return outcome._replace(cell=cell, label=replace(outcome.label, task=f"task wood={value}"))


def _shortened(outcome: Outcome) -> Outcome:
    """Return the same attempt by a model that a trained method made shorter."""
    cell = replace(outcome.cell, methods=(_MadeUpTraining(seed=1),))
    label = Label("task", "model", "model + shortest seed=1", "model + shortest", "shortest")
    return outcome._replace(
        cell=cell,
        label=label,
        attempt=outcome.attempt + 10_000,
        thinking_tokens=round(0.6 * outcome.thinking_tokens),
        made={"training_tokens": 1000.0, "seconds": 9.0},
    )


CHECKS: dict[str, Callable[[Any], Iterator[str]]] = {
    "tasks": task,
    "models": model,
    "policies": policy,
    "rewards": reward,
    "length_rewards": length_reward,
    "methods": method,
    "figures": figure,
}
