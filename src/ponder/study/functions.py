"""`@ponder.task` and `@ponder.model`: decorators that make a plugin of a function.

Studies of the same process can name it. Parameters after `*` are the plugin's settings; each needs
a default. A changed function is another task or model: its source text is part of an attempt's key.
Functions that it calls are not: if you change one of these, give the plugin another name.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import math
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
    """Decorate a function, or return a decorator: for `@ponder.task` and `@ponder.task(…)`."""
    _, *names = inspect.signature(make).parameters
    for option in options:
        if option not in names:
            nearest = plugins.nearest(option, names)
            hint = f"{nearest} (a setting of the {kind} is a parameter of the function, after `*`)"
            raise UserError(f"@ponder.{kind} has no option `{option}`", hint=hint)
    if function is not None:
        return make(function)
    return lambda decorated: make(decorated, **options)


def _check(function: Any, owner: str, arguments: int, form: str) -> None:
    """Raise `UserError` unless a function can be called with a number of positional arguments."""
    if not inspect.isroutine(function):
        raise UserError(f"{owner} must be a function, not {function!r:.60}", hint=form)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a built-in function without a signature
        return
    names = []
    required = 0
    any_number = False
    for parameter in parameters:
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
            required += parameter.default is parameter.empty
        elif parameter.kind is parameter.VAR_POSITIONAL:
            any_number = True
    if required > arguments or (arguments > len(names) and not any_number):
        signature = ", ".join(names) or "no parameters"
        raise UserError(
            f"{owner} takes {signature}; it is called with {count(arguments, 'value')}", hint=form
        )


def _task(
    function: Function,
    sizes: tuple[int, ...] = (1,),
    unit: str = "",
    grade: Callable[[str, Any], bool] | None = None,
    name: str = "",
) -> type[Task]:
    title = f"the task `{getattr(function, '__name__', name)}`"
    _check(function, title, 2, TASK)
    if grade is not None:
        _check(grade, f"the grader of {title}", 2, GRADE)
    if isinstance(sizes, int | str) or not all(type(size) is int for size in sizes):
        raise UserError(
            f"sizes are several whole numbers, not {sizes!r:.60}", hint="sizes=(2, 4, 8)"
        )
    attributes = {
        "functions": (function, grade),
        "code": _code(function, grade),
        "repeated_sizes": set(),
        "default_sizes": tuple(sizes),
        "unit": unit,
    }
    return _registered("tasks", _FunctionTask, function, name, attributes)


def _model(function: Function, concurrency: int = 1, name: str = "") -> type[Model]:
    _check(function, f"the model `{getattr(function, '__name__', name)}`", 1, MODEL)
    attributes = {"function": staticmethod(function), "code": _code(function)}
    concurrency_field = ("concurrency", int, not_in_key(concurrency))
    return _registered("models", _FunctionModel, function, name, attributes, concurrency_field)


def _registered(
    kind: str,
    base: type[P],
    function: Function,
    name: str,
    attributes: dict[str, Any],
    *extra_fields: tuple[str, type, Any],
) -> type[P]:
    """Make a plugin class whose fields are the function's settings, and register it."""
    name = name or function.__name__
    fields = []
    for key, type_, default in _settings(function):
        fields.append((key, type_, dataclasses.field(default=default)))
    fields += extra_fields
    plugin: type[P] = dataclasses.make_dataclass(
        name,
        fields,
        bases=(base,),
        namespace={**attributes, "__doc__": function.__doc__},
        frozen=base is _FunctionTask,
        kw_only=True,
    )
    plugin.__module__ = getattr(function, "__module__", plugin.__module__)
    plugin.plugin_name = classmethod(lambda _: name)  # type: ignore[assignment,method-assign]
    plugins.register(kind, name, plugin)
    return plugin


def _settings(function: Function) -> list[tuple[str, Any, Any]]:
    """Return the settings of a function: its keyword-only parameters with types and defaults."""
    hints = get_type_hints(function)
    settings = []
    for key, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is not parameter.KEYWORD_ONLY:
            continue
        default = parameter.default
        if default is parameter.empty:
            hint = f"write `{key}=VALUE` in the function's head"
            raise UserError(
                f"the setting `{key}` of `{function.__name__}` needs a default", hint=hint
            )
        if isinstance(default, list | dict | set):
            message = f"the default of `{key}` can be changed: {default!r:.60}"
            raise UserError(message, hint=f"write `{key}=None`, or a tuple, a number or text")
        settings.append((key, hints.get(key, type(default)), default))
    return settings


def _code(*functions: Function | None) -> str:
    """Return a digest of functions: of their source, or of their byte code if there is none."""
    texts = []
    for function in filter(None, functions):
        try:
            text = inspect.getsource(function)
        except (OSError, TypeError):
            text = repr(function)
            code = getattr(function, "__code__", None)
            if code:
                text = f"{code.co_code!r}{code.co_consts!r}{code.co_names!r}"
        texts.append(text)
    return digest(*texts).hex()[:16]


@dataclass(frozen=True)
class _FunctionTask(Task):
    """The base of tasks made of functions."""

    # one that makes a problem, and one that grades a reply, unless the default grading is used
    functions: ClassVar[tuple[Function, Callable[[str, Any], bool] | None]]
    code: ClassVar[str]
    # sizes of which a problem was made twice, to check that it is the same
    repeated_sizes: ClassVar[set[int]]

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), "code": self.code}

    def problem(self, size: int, seed: int) -> Problem:
        problem = self._generate(size, seed)
        if size not in self.repeated_sizes:
            self.repeated_sizes.add(size)
            if self._generate(size, seed).id != problem.id:
                title = f"the task `{self.plugin_name()}`"
                raise UserError(
                    f"{title} makes different problems of the same size and seed",
                    hint="draw from random.Random(seed), so that a run can resume",
                )
        return problem

    def _generate(self, size: int, seed: int) -> Problem:
        make, _ = self.functions
        result = make(size, seed, **_values(self, make))
        if isinstance(result, Problem):
            return result
        title = f"the task `{self.plugin_name()}`"
        hint = "return prompt, answer"
        try:
            prompt, gold = result
        except (TypeError, ValueError):
            message = f"{title} must return a prompt and the right answer, not {result!r:.80}"
            raise UserError(message, hint=hint) from None
        if not isinstance(prompt, str):
            raise UserError(f"the prompt of {title} must be text, not {prompt!r:.80}", hint=hint)
        return Problem(id=digest(prompt, gold).hex(), size=size, turns=(prompt,), gold=gold)

    def solve(self, problem: Problem) -> str:
        return f"<answer>{problem.gold}</answer>"

    def grade(self, problem: Problem, answer: str) -> Grade:
        _, judge = self.functions
        parsed: str | None = answer
        if judge:
            correct = bool(judge(answer, problem.gold))
        else:
            parsed = final(answer)
            if parsed is None:
                return Grade(correct=False, why="no answer")
            correct = same(parsed, str(problem.gold))
        why = ""
        if not correct:
            why = "wrong answer"
        return Grade(correct=correct, parsed=parsed, why=why)


@dataclass(kw_only=True)
class _FunctionModel(Model):
    """The base of models made of functions."""

    function: ClassVar[Function]
    code: ClassVar[str]

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), "code": self.code}

    async def complete(self, request: Request) -> Completion:
        argument: Any = request.messages[-1].content
        first_parameter = next(iter(inspect.signature(self.function).parameters), "")
        if first_parameter == "messages":
            argument = [{"role": m.role, "content": m.content} for m in request.messages]
        settings = _values(self, self.function)
        started = perf_counter()
        if inspect.iscoroutinefunction(self.function):
            reply = await self.function(argument, **settings)
        else:
            reply = await asyncio.to_thread(self.function, argument, **settings)
        if isinstance(reply, Completion):
            return reply
        if not isinstance(reply, str):
            message = (
                f"the model `{self.plugin_name()}` must return text, not {type(reply).__name__}"
            )
            raise UserError(message, hint="return the reply as a str")
        thinking, answer = split_thinking(reply)
        prompt_length = sum(len(message.content) for message in request.messages)
        bill = Bill(
            prompt_tokens=_estimated_tokens(prompt_length),
            thinking_tokens=_estimated_tokens(len(thinking)),
            answer_tokens=_estimated_tokens(len(answer)),
            seconds=perf_counter() - started,
            counted_by="estimate",
        )
        return Completion(thinking, answer, "end", bill)


def _estimated_tokens(characters: int) -> int:
    return math.ceil(characters / 4)


def _values(plugin: Plugin, function: Function) -> Mapping[str, Any]:
    return {key: getattr(plugin, key) for key, _, _ in _settings(function)}
