"""Holds any plugin to its contract: what `ponder check` does for a user's file, and the tests for all built-in ones."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import itertools
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from ponder.cli import describe
from ponder.core import (
    Figure,
    Grade,
    LengthReward,
    Message,
    Method,
    Model,
    Outcome,
    Plugin,
    Policy,
    Problem,
    Request,
    Reward,
    Scores,
    Steps,
    Task,
    TrainingProblems,
    UserError,
)
from ponder.core.settings import build
from ponder.models.oracle import Oracle
from ponder.models.pocket import SHIPPED

JUNK = (
    "", " ", "\x00", "I don't know.", "<answer></answer>", "[[", "[[]]", "[" * 5000, "[[1,2],[3]]", '{"a": 1}', "NaN",
    "\\boxed{", "1e999", "-" * 1000, "9" * 5000, "</think><think>", "<script>alert(1)</script>", "\ud800", "[[true]]",
)  # fmt: skip


def check(name: str) -> tuple[str, list[str]]:
    """The kind of a plugin, and each way in which it breaks its contract."""
    kind, plugin = describe.find(name)
    checks: dict[str, Callable[[Any], Iterator[str]]] = {
        "tasks": task, "models": model, "caches": cache, "rewards": reward, "length_rewards": length, "methods": method,
        "figures": figure,
    }  # fmt: skip
    plain = name if name.endswith(".py") else name.rpartition("/")[2]
    settings = {"name": plain, **plugin.example}
    return kind[:-1], [*any_plugin(plugin), *checks[kind](build(kind, settings, f"{name} example", Path()))]


def any_plugin(plugin: type[Plugin]) -> Iterator[str]:
    first = (inspect.getdoc(inspect.getmodule(plugin)) or "").partition("\n")[0]
    if not first.endswith((".", "?")):
        yield "the file's docstring must begin with one whole sentence: `ponder list` shows it"


def task(task: Task) -> Iterator[str]:
    sizes = task.sizes()
    if not sizes:
        yield "it must name the sizes to ask when a study names none: `default_sizes`"
    for size in sizes[:8]:
        task.check_size(size)
        problem = task.problem(size, seed=1)
        if problem != task.problem(size, seed=1):
            yield f"size {size}: the same seed gave two different problems"
        if problem.size != size:
            yield f"size {size}: the problem says its size is {problem.size}"
        if msgspec.json.decode(msgspec.json.encode(problem), type=Problem) != problem:
            yield f"size {size}: the problem changes when it is stored: keep to JSON, with lists and not tuples"
        solution = task.grade_turns(problem, [task.solve_turn(problem, t) for t in range(len(problem.turns))])
        if not solution.correct or solution.parsed is None:
            yield f"size {size}: its own solution is graded wrong: {solution.why}"
        yield from _junk(task, problem)
        some = [p.id for p in itertools.islice(task.problems(size, seed=1), 10)]
        if len(set(some)) < len(some):
            yield f"size {size}: problems repeat"
        others = [p.id for p in itertools.islice(task.problems(size, seed=2), 10)]
        if task.fixed() is None and len(some) == 10 and len({*some} & {*others}) > 5:
            yield f"size {size}: neighbouring seeds share problems"


def _junk(task: Task, problem: Problem) -> Iterator[str]:
    for text in JUNK:
        try:
            grade = task.grade_turns(problem, [text] * len(problem.turns))
        except Exception as error:  # the point of the check
            yield f"size {problem.size}: grading {text[:20]!r} raised {error!r}"
            continue
        if grade != Grade(False, grade.parsed, grade.why, grade.details) or not grade.why:
            yield f"size {problem.size}: junk {text[:20]!r} must be wrong, and the grade must say why"


def model(model: Model) -> Iterator[str]:
    if not inspect.iscoroutinefunction(model.complete):
        yield "`complete` must be `async def`"
    if model.concurrency < 1:
        yield "`concurrency` must be at least 1"
    if not model.title():
        yield "`title` must name it for legends"
    msgspec.json.encode(model.identity(), enc_hook=str)


def cache(policy: Policy) -> Iterator[str]:
    import torch
    from transformers import AutoTokenizer

    from ponder.caches import CacheView

    rows, heads, n, width = 2, 5, 24, 32
    policy = policy.fitted(SHIPPED, AutoTokenizer.from_pretrained(SHIPPED))
    torch.manual_seed(1)
    ids = torch.randint(9, 99, (rows, n))
    features = policy.token_features(torch.randn(rows, n, heads * width), ids)
    whole = CacheView(
        layer=0,
        keys=torch.randn(rows, heads, n, width),
        values=torch.randn(rows, heads, n, width),
        queries=torch.randn(rows, heads, policy.queries, width) if policy.queries else None,
        accumulated=torch.rand(rows, heads, n) if policy.accumulates else None,
        scaling=width**-0.5,
        positions=torch.arange(n, dtype=torch.int32).expand(rows, 1, n),
        padding=torch.zeros(rows, 1, n, dtype=torch.bool),
        ids=ids[:, None],
        features=None if features is None else features[:, None],
        seen_tokens=n,
        seeds=torch.arange(rows),
    )
    try:
        scores = policy.score(whole)
    except UserError:  # it says that it can't, and why
        return
    if scores.shape not in ((rows, heads, n), (rows, 1, n)) or not scores.float().isfinite().all():
        yield f"`score` must give finite numbers, rows × heads (or 1) × columns, not {tuple(scores.shape)}"
        return
    parts = {f.name: getattr(whole, f.name) for f in dataclasses.fields(whole)}
    alone: dict[str, Any] = {k: v[1:] if isinstance(v, torch.Tensor) else v for k, v in parts.items()}
    if not torch.allclose(policy.score(CacheView(**alone)).float(), scores[1:].float(), atol=1e-6):
        yield "a row's scores must not depend on the other rows of its batch"


def length(reward: LengthReward) -> Iterator[str]:
    for right, tokens in (([True], [9]), ([True, False, True], [10, 10, 10]), ([False, False], [3, 8])):
        for progress in (0.0, 0.99):
            found = reward.rewards(right, tokens, progress)
            if len(found) != len(tokens) or not all(math.isfinite(number) for number in found):
                yield f"`rewards` must give a finite number for each sample, not {found}"
            if any(more > 0 and not ok for more, ok in zip(found, right, strict=True)):
                yield "a wrong answer must not be rewarded for its length"


def reward(reward: Reward) -> Iterator[str]:
    facts = {"labels": [1, 0, 0.5], "correct": True}
    plain: dict[str, Any] = {"question": "What is 3 + 4?", "thinking": ("We add 3 and 4.", "That is 8.")}
    plain |= {"answer": ("It is 7.",), "facts": facts}
    traces = [
        Steps("plain", **{**plain, **reward.tried_on}),
        Steps("no thinking", "What is 3 + 4?", (), ("7", "as said", "7"), facts),
        Steps("another language", "3 加 4 是多少？", ("三加四。", "等于七。"), ("所以是 7。",), facts),
        Steps("nothing", "What is 3 + 4?", (), ()),
        Steps("long", "What is 3 + 4?", tuple(f"Again: 3 + 4 = {n}." for n in range(1000)), ("7",)),
    ]
    try:
        found = reward.score(traces)
    except UserError:  # it says that it can't, and why
        return
    for trace, scores in zip(traces, found, strict=True):
        if scores.total is None and not scores.why:
            yield f"{trace.id}: a trace without a total must say why"
    if found[0].total is None:
        yield f"an ordinary trace is not scored: {found[0].why}"
    alone = [reward.score([trace])[0] for trace in traces]
    if not all(_alike(a, b) for a, b in zip(found, alone, strict=True)):
        yield "a trace's scores must not depend on the traces beside it"
    msgspec.json.encode(reward.identity(), enc_hook=str)


def _alike(a: Scores, b: Scores) -> bool:
    pairs = [*zip(a.steps, b.steps, strict=False), (a.trajectory or 0.0, b.trajectory or 0.0)]
    return len(a.steps) == len(b.steps) and a.why == b.why and all(abs(x - y) < 1e-4 for x, y in pairs)


def method(method: Method) -> Iterator[str]:
    on_model, on_task, size = method.tried_on
    inner: Model = build("models", on_model, "tried_on", Path())
    task: Task = build("tasks", on_task, "tried_on", Path())
    method = method.with_training((TrainingProblems(task, size, 0, 1),))
    cheaper = method.apply(inner)
    if not isinstance(cheaper, Model):
        yield "`apply` must return a model"
        return
    problem = task.problem(size, seed=1)
    request = Request(task, problem, tuple(Message("user", t) for t in problem.turns), seed=1)
    completion = asyncio.run(_ask(cheaper, request))
    if completion.bill.tokens <= 0:
        yield "what its model spends must be billed"
    if cheaper.prices != inner.prices or cheaper.concurrency < 1:
        yield "its model must keep the prices and be askable"


async def _ask(model: Model, request: Request) -> Any:
    async with model:
        return await model.complete(request)


def figure(figure: Figure) -> Iterator[str]:
    outcomes = _outcomes()
    for name, some in {
        "many attempts": outcomes,
        "one size": outcomes[:12],
        "one attempt": outcomes[:1],
    }.items():
        tables = figure.estimate(some)
        if figure.estimate(random.Random(1).sample(some, len(some))) != tables and name != "one attempt":
            yield f"{name}: its numbers depend on the order of the attempts"
        if msgspec.json.decode(msgspec.json.encode(tables)) != tables:
            yield f"{name}: its tables must hold plain values, and None for what is unknown"
        figure.draw(tables).to_dict()
        figure.findings(tables)


def _outcomes() -> list[Outcome]:
    """What an oracle does on eight sizes, with every way to end."""
    oracle, rng = Oracle(critical_size=20), random.Random(1)
    found = []
    for size, problem, sample in itertools.product((4, 8, 12, 16, 24, 32, 48, 64), range(6), range(2)):
        right = rng.random() < oracle.chance(size)
        status: Any = "graded" if right else rng.choice(["graded", "unparsed", "truncated", "failed"])
        tokens = round(oracle.mean_tokens(size) * rng.uniform(0.7, 1.4))
        why = "" if right else "made up"
        details = {
            "parsed": [size if right else None],
            "true": [size],
            "start": 0,
            "per_turn": size,
            "history_turns": problem % 2,
        }
        details |= {"error_rate": 0.5 * sample}
        graded = (f"{size}/{problem}", sample, status, right, why)
        found.append(Outcome("task", "model", size, *graded, 50, tokens, 9, 0.1, "server", details))
    return found
