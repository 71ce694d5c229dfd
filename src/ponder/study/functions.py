"""`@ponder.task` and `@ponder.model`: a function becomes a plugin of this process, which studies
can name.

Parameters after `*` are the plugin's settings; each needs a default. A changed function is another
task or model: its source text is part of an attempt's key. What it calls is not: if you change
that, give the function another name.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any, ClassVar, TypeVar, get_type_hints, overload

from ponder.core import (
    Bill,
    Completion,
    Grade,
    Model,
    Plugin,
    Problem,
    Request,
    Task,
    UserError,
    digest,
    not_in_key,
    plugins,
)
from ponder.core.text import count
from ponder.tasks.reading import final, same, split_thinking

Function = Callable[..., Any]
P = TypeVar("P", bound=Plugin)
TASK = "def NAME(size, seed, *, setting=default)"
MODEL = "def NAME(prompt, *, setting=default)"
GRADE = "grade=lambda answer, right: …"


@overload
def task(function: Function, /) -> type[Task]: ...
@overload
def task(
    *,
    sizes: tuple[int, ...] = (),
    unit: str = "",
    grade: Callable[[str, Any], bool] | None = None,
    name: str = "",
) -> Callable[[Function], type[Task]]: ...
def task(function: Function | None = None, /, **options: Any) -> Any:
    """Make a task of a function `(size, seed)` that returns a prompt and the right answer.

        @ponder.task(sizes=(2, 4, 8), unit="letters")
        def backwards(size, seed, *, letters="abc"):
            word = "".join(random.Random(seed).choices(letters, k=size))
            return f"Write {word} backwards.", word[::-1]

    An answer is right if the last thing that the reply gives as its answer, such as the text in
    `<answer>` tags, equals the right one; `grade=lambda answer, right: …` judges the whole reply by
    a rule of its own.
    """
    return _decorated("task", _task, function, options)


@overload
def model(function: Function, /) -> type[Model]: ...
@overload
def model(*, concurrency: int = 1, name: str = "") -> Callable[[Function], type[Model]]: ...
def model(function: Function | None = None, /, **options: Any) -> Any:
    """Make a model of a function that takes a prompt and returns a reply.

        @ponder.model
        def parrot(prompt, *, temperature=1.0):
            return prompt

    A function whose first parameter is called `messages` gets the whole conversation, as `{"role":
    …, "content": …}`. It may be `async`. `<think>…</think>` in the reply is its thinking. Tokens
    are estimated from the length of texts; a function that knows better returns a
    `ponder.core.Completion`.
    """
    return _decorated("model", _model, function, options)


def _decorated(
    kind: str, make: Callable[..., Any], function: Function | None, options: dict[str, Any]
) -> Any:
    """For both forms: `@ponder.task` and `@ponder.task(…)`."""
    _, *known = inspect.signature(make).parameters
    for option in options:
        if option not in known:
            hint = f"{plugins.nearest(option, known)} (a setting of the {kind} is a parameter of the function, after `*`)"
            raise UserError(f"@ponder.{kind} has no option `{option}`", hint=hint)
    return make(function) if function is not None else lambda given: make(given, **options)


def _check(function: Any, what: str, takes: int, form: str) -> None:
    """Raise `UserError` unless this is a function that can be called with so many positional
    arguments.
    """
    if not inspect.isroutine(function):
        raise UserError(f"{what} must be a function, not {function!r:.60}", hint=form)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a built-in function that doesn't say
        return
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    any_number = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    needed = sum(p.default is p.empty for p in places)
    if needed > takes or (takes > len(places) and not any_number):
        given = ", ".join(p.name for p in places) or "no parameters"
        raise UserError(
            f"{what} takes {given}; it is called with {count(takes, 'value')}", hint=form
        )


def _task(
    function: Function,
    sizes: tuple[int, ...] = (1,),
    unit: str = "",
    grade: Callable[[str, Any], bool] | None = None,
    name: str = "",
) -> type[Task]:
    what = f"the task `{getattr(function, '__name__', name)}`"
    _check(function, what, 2, TASK)
    if grade is not None:
        _check(grade, f"the grader of {what}", 2, GRADE)
    if isinstance(sizes, int | str) or not all(type(size) is int for size in sizes):
        raise UserError(
            f"sizes are several whole numbers, not {sizes!r:.60}", hint="sizes=(2, 4, 8)"
        )
    own = {"functions": (function, grade), "code": _code(function, grade), "tried": set()}
    return _registered(
        "tasks", _FunctionTask, function, name, {**own, "default_sizes": tuple(sizes), "unit": unit}
    )


def _model(function: Function, concurrency: int = 1, name: str = "") -> type[Model]:
    _check(function, f"the model `{getattr(function, '__name__', name)}`", 1, MODEL)
    own = {"function": staticmethod(function), "code": _code(function)}
    at_once = ("concurrency", int, not_in_key(concurrency))
    return _registered("models", _FunctionModel, function, name, own, at_once)


def _registered(
    kind: str,
    base: type[P],
    function: Function,
    name: str,
    own: dict[str, Any],
    *more: tuple[str, type, Any],
) -> type[P]:
    name = name or function.__name__
    fields = [
        (key, type_, dataclasses.field(default=default))
        for key, type_, default in _settings(function)
    ]
    fields += more
    made: type[P] = dataclasses.make_dataclass(
        name, fields, bases=(base,), namespace={**own, "__doc__": function.__doc__}, frozen=base is _FunctionTask,
        kw_only=True,
    )  # fmt: skip
    made.__module__ = getattr(function, "__module__", made.__module__)
    made.plugin_name = classmethod(lambda _: name)  # type: ignore[assignment,method-assign]
    plugins.register(kind, name, made)
    return made


def _settings(function: Function) -> list[tuple[str, Any, Any]]:
    """Return the settings of a function: its keyword-only parameters with types and defaults."""
    hints = get_type_hints(function)
    settings = []
    for key, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY:
            if parameter.default is parameter.empty:
                hint = f"write `{key}=VALUE` in the function's head"
                raise UserError(
                    f"the setting `{key}` of `{function.__name__}` needs a default", hint=hint
                )
            if isinstance(parameter.default, list | dict | set):
                what = f"the default of `{key}` can be changed: {parameter.default!r:.60}"
                raise UserError(what, hint=f"write `{key}=None`, or a tuple, a number or text")
            settings.append((key, hints.get(key, type(parameter.default)), parameter.default))
    return settings


def _code(*functions: Function | None) -> str:
    """What tells a function from another of the same name: its text, or its code where there is no
    text.
    """
    texts = []
    for function in filter(None, functions):
        try:
            texts.append(inspect.getsource(function))
        except (OSError, TypeError):
            code = getattr(function, "__code__", None)
            texts.append(
                f"{code.co_code!r}{code.co_consts!r}{code.co_names!r}" if code else repr(function)
            )
    return digest(*texts).hex()[:16]


@dataclass(frozen=True)
class _FunctionTask(Task):
    """The base of tasks made of functions."""

    functions: ClassVar[
        tuple[Function, Callable[[str, Any], bool] | None]
    ]  # makes a problem; judges, if not by default
    code: ClassVar[str]
    # sizes of which a problem was made twice, to see whether it is the same
    tried: ClassVar[set[int]]

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), "code": self.code}

    def problem(self, size: int, seed: int) -> Problem:
        problem = self._made(size, seed)
        if size not in self.tried:
            self.tried.add(size)
            if self._made(size, seed).id != problem.id:
                what = f"the task `{self.plugin_name()}` makes different problems of the same size and seed"
                raise UserError(
                    what, hint="draw from random.Random(seed), so that a run can resume"
                )
        return problem

    def _made(self, size: int, seed: int) -> Problem:
        make, _ = self.functions
        made = make(size, seed, **_values(self, make))
        if isinstance(made, Problem):
            return made
        try:
            prompt, gold = made
        except (TypeError, ValueError):
            what = f"the task `{self.plugin_name()}` must return a prompt and the right answer, not {made!r:.80}"
            raise UserError(what, hint="return prompt, answer") from None
        if not isinstance(prompt, str):
            what = f"the prompt of the task `{self.plugin_name()}` must be text, not {prompt!r:.80}"
            raise UserError(what, hint="return prompt, answer")
        return Problem(id=digest(prompt, gold).hex(), size=size, turns=(prompt,), gold=gold)

    def solve(self, problem: Problem) -> str:
        return f"<answer>{problem.gold}</answer>"

    def grade(self, problem: Problem, answer: str) -> Grade:
        _, judge = self.functions
        if judge:
            correct = bool(judge(answer, problem.gold))
            return Grade(correct=correct, parsed=answer, why="" if correct else "wrong answer")
        said = final(answer)
        if said is None:
            return Grade(correct=False, why="no answer")
        correct = same(said, str(problem.gold))
        return Grade(correct=correct, parsed=said, why="" if correct else "wrong answer")


@dataclass(kw_only=True)
class _FunctionModel(Model):
    """The base of models made of functions."""

    function: ClassVar[Function]
    code: ClassVar[str]

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), "code": self.code}

    async def complete(self, request: Request) -> Completion:
        first = next(iter(inspect.signature(self.function).parameters), "")
        messages = [{"role": m.role, "content": m.content} for m in request.messages]
        given: Any = messages if first == "messages" else request.messages[-1].content
        settings, started = _values(self, self.function), perf_counter()
        if inspect.iscoroutinefunction(self.function):
            reply = await self.function(given, **settings)
        else:
            reply = await asyncio.to_thread(self.function, given, **settings)
        if isinstance(reply, Completion):
            return reply
        if not isinstance(reply, str):
            what = f"the model `{self.plugin_name()}` must return text, not {type(reply).__name__}"
            raise UserError(what, hint="return the reply as a str")
        thinking, answer = split_thinking(reply)
        prompt = sum(len(m["content"]) for m in messages)
        said, thought, answered = (
            -(-length // 4) for length in (prompt, len(thinking), len(answer))
        )
        return Completion(
            thinking,
            answer,
            "end",
            Bill(said, thought, answered, perf_counter() - started, "estimate"),
        )


def _values(plugin: Plugin, function: Function) -> Mapping[str, Any]:
    return {key: getattr(plugin, key) for key, _, _ in _settings(function)}
