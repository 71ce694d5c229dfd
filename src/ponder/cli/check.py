"""Checks a plugin against its interface by running it: `ponder check` on a user's file, and the
tests on every plugin.

Each function here takes one plugin and yields what is wrong with it. A `UserError` or
`ModelFailure` on the way means that the plugin could not be run here (no weights, no server), which
is never reported as a pass.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import itertools
import math
import random
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

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

JUNK = (
    "", " ", "\x00", "I don't know.", "<answer></answer>", "[[", "[[]]", "[" * 5000, "[[1,2],[3]]", '{"a": 1}', "NaN",
    "\\boxed{", "1e999", "-" * 1000, "9" * 5000, "</think><think>", "<script>alert(1)</script>", "\ud800", "[[true]]",
)  # fmt: skip
# under which a policy is tried
POLICY_SETTINGS = {"budget": 64, "window": 16, "ratio": 0.5, "fidelity": "only"}


class Result(NamedTuple):
    """How a check ended."""

    plugin: str  # its kind and name
    failures: list[str]
    not_run: str = ""  # why it could not be run, or not to the end

    @property
    def outcome(self) -> Literal["passed", "failed", "not run"]:
        return "failed" if self.failures else "not run" if self.not_run else "passed"

    def text(self) -> str:
        stopped = [f"could not be run: {self.not_run}"] if self.not_run else []
        return "\n".join(
            f"{self.plugin}: {line}" for line in [*self.failures, *stopped] or ["passed"]
        )


def check(kind: str, name: str, settings: Sequence[str] = ()) -> Result:
    """Run a plugin with its example settings and those given, and say what is wrong with it."""
    if kind == "studies" or name.endswith(".toml"):
        raise UserError(
            f"{name} is a study, not a plugin",
            hint=f"ponder plan {name} checks it, and asks nothing",
        )
    kind, plugin = describe.find(kind, name)
    table = {"name": name, **plugin.example}
    for setting in settings:
        assign({"plugin": [table]}, f"plugin.{setting}")
    failures, not_run = list(_docstring(plugin)), ""
    try:
        failures.extend(CHECKS[kind](build(kind, table, name, Path())))
    except (UserError, ModelFailure) as error:
        not_run = _not_run(error, plugin, table)
    except ModuleNotFoundError as error:
        not_run = f"it needs a package that isn't installed: {error.name}"
    except Exception as error:  # whatever a plugin raises is a finding
        place = traceback.extract_tb(error.__traceback__)[-1]
        failures.append(
            f"raised {error!r} in {place.name} ({Path(place.filename).name}, line {place.lineno})"
        )
    return Result(f"{plugins.KINDS[kind].noun} {name}", failures, not_run)


def _not_run(
    error: UserError | ModelFailure, plugin: type[Plugin], table: Mapping[str, Any]
) -> str:
    """Why it could not be run, and the settings to give if those of its example are to blame."""
    examples = [
        key
        for key, value in plugin.example.items()
        if table[key] == value and isinstance(value, str)
    ]
    if not isinstance(error, UserError):
        return str(error)
    if not examples:
        return error.in_terminal()
    tried = ", ".join(f"{key} = {toml(table[key])}" for key in examples)
    return f"{error.what}\nhint: it was tried with {tried}; give your own: --set {examples[0]}=…"


def _docstring(plugin: type[Plugin]) -> Iterator[str]:
    first = (inspect.getdoc(inspect.getmodule(plugin)) or "").partition("\n\n")[0]
    if not first.endswith((".", "?")):
        yield "the file's docstring must begin with one whole sentence, which `ponder list` shows"


def task(task: Task) -> Iterator[str]:
    sizes = task.sizes()
    if not sizes:
        yield "it must say which sizes to use when a study names none: `default_sizes`"
    for size in sizes[:8]:
        task.check_size(size)
        problem = task.problem(size, seed=1)
        if problem != task.problem(size, seed=1):
            yield f"size {size}: the same seed gave two different problems"
        if problem.size != size:
            yield f"size {size}: the problem says its size is {problem.size}"
        if msgspec.json.decode(msgspec.json.encode(problem), type=Problem) != problem:
            yield f"size {size}: the problem changes when it is stored: use JSON values, with lists and not tuples"
        solution = grade_turns(task, problem, solve_turns(task, problem))
        if not solution.correct or solution.parsed is None:
            yield f"size {size}: its own solution is graded wrong: {solution.why}"
        yield from _junk(task, problem)
        problems = list(itertools.islice(task.problems(size, seed=1), 10))
        ids = {p.id for p in problems}
        if len(ids) < len(problems):
            yield f"size {size}: problems repeat"
        others = {p.id for p in itertools.islice(task.problems(size, seed=2), 10)}
        if task.fixed() is None and len(ids) == 10 and len(ids & others) > 5:
            yield f"size {size}: neighbouring seeds share problems"
        wrong = [
            p for p in problems if p.gold != problem.gold and len(p.turns) == len(problem.turns)
        ]
        if wrong and all(grade_turns(task, problem, solve_turns(task, p)).correct for p in wrong):
            yield f"size {size}: the solution of any other problem is graded right"


def _junk(task: Task, problem: Problem) -> Iterator[str]:
    for text in JUNK:
        try:
            grade = grade_turns(task, problem, [text] * len(problem.turns))
        except Exception as error:  # the point of the check
            yield f"size {problem.size}: grading {text[:20]!r} raised {error!r}"
            continue
        if grade != Grade(False, grade.parsed, grade.why, grade.details) or not grade.why:
            yield f"size {problem.size}: junk {text[:20]!r} must be graded wrong, with a reason"


def model(model: Model) -> Iterator[str]:
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
    """Its reply to the first problem that it can answer, whatever the task."""
    last: Exception = UserError("there is no task that it can answer")
    for name in plugins.names("tasks"):
        try:
            task: Task = build(
                "tasks", {"name": name, **plugins.load("tasks", name).example}, name, Path()
            )
            size = task.sizes()[0]
            model.check(task, size)
            return _ask(model, Request.first_turn(task, next(task.problems(size, seed=0))))
        except (UserError, ModelFailure) as error:
            last = error
    raise last


def _ask(model: Model, request: Request) -> Any:
    async def ask() -> Any:
        async with model:
            return await model.complete(request)

    return asyncio.run(ask())


def policy(policy: Policy) -> Iterator[str]:
    """Its scores on random tensors, then its work in a real cache, through the method that every
    policy is used by.
    """
    from transformers import AutoConfig, AutoTokenizer

    on_model, on_task, _ = plugins.load("methods", "compress").tried_on
    folder = (
        build("models", on_model, "tried_on", Path())
        .source(build("tasks", on_task, "tried_on", Path()))
        .folder
    )
    unknown = sorted(set(policy.needs) - {"attention", "rope"})
    if unknown:
        yield f'`needs` may name "attention" and "rope", not "{unknown[0]}"'
    fitted = fitted_to(
        policy, folder, AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    )
    # a policy that must know the whole text beforehand can't score one being written
    with suppress(UserError):
        yield from _scores(
            fitted, AutoConfig.from_pretrained(folder, trust_remote_code=False).hidden_size
        )
    own = policy.plugin_name()
    name = own if own in plugins.names("policies") else inspect.getfile(type(policy))
    yield from method(
        build("methods", {"name": "compress", "policy": name, **POLICY_SETTINGS}, name, Path())
    )


def _scores(policy: Policy, hidden: int) -> Iterator[str]:
    import torch

    from ponder.kvcache import CacheView

    rows, heads, n, width = 2, 5, 24, 32
    torch.manual_seed(1)
    ids = torch.randint(9, 99, (rows, n))
    features = (
        policy.token_features(torch.randn(rows, n, hidden), ids)
        if isinstance(policy, Fitted)
        else None
    )
    whole = CacheView(
        layer=0,
        keys=torch.randn(rows, heads, n, width),
        values=torch.randn(rows, heads, n, width),
        queries=torch.randn(rows, heads, policy.queries, width) if policy.queries else None,
        accumulated=torch.rand(rows, heads, n) if "attention" in policy.needs else None,
        scaling=width**-0.5,
        positions=torch.arange(n, dtype=torch.int32).expand(rows, 1, n),
        padding=torch.zeros(rows, 1, n, dtype=torch.bool),
        ids=ids[:, None],
        features=None if features is None else features[:, None],
        seen_tokens=n,
        seeds=torch.arange(rows),
        frequencies=10000.0 ** -torch.linspace(0, 1, width // 2)
        if "rope" in policy.needs
        else None,
    )
    scores = policy.score(whole)
    if scores.shape not in ((rows, heads, n), (rows, 1, n)) or not scores.float().isfinite().all():
        yield f"`score` must return finite numbers, rows × heads (or 1) × tokens, not {tuple(scores.shape)}"
        return
    parts = {f.name: getattr(whole, f.name) for f in dataclasses.fields(whole)}
    by_row = {
        k: v[1:] for k, v in parts.items() if isinstance(v, torch.Tensor) and k != "frequencies"
    }
    alone: dict[str, Any] = parts | by_row
    if not torch.allclose(policy.score(CacheView(**alone)).float(), scores[1:].float(), atol=1e-6):
        yield "a row's scores must not depend on the other rows of its batch"


def length_reward(reward: LengthReward) -> Iterator[str]:
    for right, tokens in (
        ([True], [9]),
        ([True, False, True], [10, 10, 10]),
        ([False, False], [3, 8]),
    ):
        for progress in (0.0, 0.99):
            given = reward.rewards(right, tokens, progress)
            if len(given) != len(tokens) or not all(math.isfinite(number) for number in given):
                yield f"`rewards` must return one finite number per sample, not {given}"
            elif any(more > 0 and not correct for more, correct in zip(given, right, strict=True)):
                yield "a wrong answer must not be rewarded for its length"


def reward(reward: Reward) -> Iterator[str]:
    facts = {"labels": [1, 0, 0.5], "correct": True}
    plain: dict[str, Any] = {
        "question": "What is 3 + 4?",
        "thinking": ("We add 3 and 4.", "That is 8."),
    }
    plain |= {"answer": ("It is 7.",), "facts": facts}
    traces = [
        Steps("plain", **{**plain, **reward.tried_on}),
        Steps("no thinking", "What is 3 + 4?", (), ("7", "as said", "7"), facts),
        Steps(
            "another language", "3 加 4 是多少？", ("三加四。", "等于七。"), ("所以是 7。",), facts
        ),
        Steps("empty", "What is 3 + 4?", (), ()),
        Steps("long", "What is 3 + 4?", tuple(f"Again: 3 + 4 = {n}." for n in range(1000)), ("7",)),
    ]
    together = reward.score(traces)
    for trace, scores in zip(traces, together, strict=True):
        if scores.total is None and not scores.why:
            yield f"trace `{trace.id}`: without a total there must be a reason"
    if together[0].total is None:
        yield f"an ordinary trace is not scored: {together[0].why}"
    alone = [reward.score([trace])[0] for trace in traces]
    if not all(_alike(a, b) for a, b in zip(together, alone, strict=True)):
        yield "a trace's scores must not depend on the traces beside it"
    msgspec.json.encode(reward.identity(), enc_hook=str)


def _alike(a: Scores, b: Scores) -> bool:
    pairs = [*zip(a.steps, b.steps, strict=False), (a.trajectory or 0.0, b.trajectory or 0.0)]
    return (
        len(a.steps) == len(b.steps) and a.why == b.why and all(abs(x - y) < 1e-4 for x, y in pairs)
    )


def method(method: Method) -> Iterator[str]:
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
        yield "what its model spends must be billed"
    if cheaper.prices != inner.prices or cheaper.concurrency < 1:
        yield "its model must keep the prices, and a concurrency of at least 1"


SETTINGS = ("birch", "larch")  # values of a setting that no figure draws


def figure(figure: Figure) -> Iterator[str]:
    outcomes = _outcomes()
    cases = {"many attempts": outcomes, "one size": outcomes[:12], "one attempt": outcomes[:1]}
    cases["two variants"] = [*outcomes, *map(_shortened, outcomes)]
    cases["two settings"] = [_with_setting(o, value) for value in SETTINGS for o in outcomes[:24]]
    for name, case in cases.items():
        tables = figure.estimate(case)
        if figure.estimate(random.Random(1).sample(case, len(case))) != tables:
            yield f"{name}: its numbers depend on the order of the attempts"
        if msgspec.json.decode(msgspec.json.encode(tables, enc_hook=str)) != tables:
            yield f"{name}: its tables must hold plain values, and None for what is unknown"
        spec, findings = figure.draw(tables).to_dict(), figure.findings(tables)
        # A figure that splits by a setting names its values, and one that says what it pools names
        # them too.
        if (
            name == "two settings"
            and any(tables.values())
            and not all(v in f"{spec}{findings}" for v in SETTINGS)
        ):
            yield "it pools attempts of different settings without saying so: use `by_series`, or say `pooled`"


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
    """What an oracle does at eight sizes, with every way to end."""
    oracle, rng = Oracle(critical_size=20), random.Random(1)
    label = Label("task", "model", "model", "model")
    outcomes: list[Outcome] = []
    for size in (4, 8, 12, 16, 24, 32, 48, 64):
        cell = Cell(_MadeUpTask(), size, oracle)
        for problem, sample in itertools.product(range(6), range(2)):
            right = rng.random() < oracle.chance(size)
            ended: Ended = (
                "right" if right else rng.choice(["wrong", "unparsed", "truncated", "failed"])
            )
            tokens = round(oracle.mean_tokens(size) * rng.uniform(0.7, 1.4))
            details = {
                "parsed": [size if right else None],
                "true": [size],
                "start": 0,
                "per_turn": size,
            }
            details |= {"history_turns": problem % 2, "error_rate": 0.5 * sample}
            outcomes.append(
                Outcome(
                    cell=cell,
                    label=label,
                    problem=f"{size}/{problem}",
                    sample=sample,
                    ended=ended,
                    why="" if right else "made up",
                    prompt_tokens=50,
                    thinking_tokens=tokens,
                    answer_tokens=9,
                    seconds=0.1,
                    counted_by="server",
                    details=details,
                    attempt=len(outcomes) + 1,
                )
            )
    return outcomes


def _with_setting(outcome: Outcome, value: str) -> Outcome:
    """The same attempt at a task with a setting of this value, as a study labels it."""
    cell = replace(outcome.cell, task=_MadeUpTask(wood=value))
    return outcome._replace(cell=cell, label=replace(outcome.label, task=f"task wood={value}"))


def _shortened(outcome: Outcome) -> Outcome:
    """The same attempt by a model that a trained method made shorter."""
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
