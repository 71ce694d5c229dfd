"""Grades a JSON answer field by field, and says which fields are wrong.

The reply may have other text around its JSON, and further fields in it. A field is right if its
value is equal: the same text, the same list in the same order, the same number. `fields` is laxer
for some: `{ total = 0.01, tags = "set" }` lets `total` be off by 0.01 and reads `tags` as a list in
any order. A dot leads into an object: `"customer.age" = 1`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ponder.core import Grade, UserError, plugins
from ponder.core.json_text import LIST, OBJECT, json_values
from ponder.core.text import as_json
from ponder.tasks.grading.grader import Grader, need_answer, wrong_answer
from ponder.tasks.grading.line import ProblemLine

# The tolerance of a number, or "set" for a list in any order, by the path of the field.
Rules = Mapping[str, float | Literal["set"]]
ROOT = "the answer"  # the name, in errors, of the value that all fields are in


@dataclass(frozen=True)
class JsonFields(Grader):
    rules: Rules = field(default_factory=dict)

    def check(self, line: ProblemLine) -> None:
        need_answer(line)
        if not isinstance(line.answer, dict | list):
            hint = '{"prompt": "…", "answer": {"total": 42.5, "tags": ["new", "paid"]}}'
            raise wrong_answer(line, "an object or a list", hint)

    def check_rules(self, lines: Iterator[ProblemLine]) -> None:
        """Raise `UserError` for a rule of a field that no answer has, or of another kind."""
        values: dict[str, Any] = {}
        for line in lines:
            values.update(_paths(line.answer))
        for path, rule in self.rules.items():
            if path not in values:
                message = f"no `answer` in the file has the field `{path}`"
                raise UserError(message, hint=plugins.nearest(path, values))
            value = values[path]
            if rule == "set" and not isinstance(value, list):
                raise UserError(f'`{path}` is not a list, so it can\'t be a "set"')
            if rule != "set" and not _is_number(value):
                raise UserError(f"`{path}` is not a number, so it has no tolerance")

    def grade(self, line: ProblemLine, reply: str) -> Grade:
        parsed = find(reply, line.answer)
        if parsed is None:
            kind = "object" if isinstance(line.answer, dict) else "list"
            return Grade(correct=False, why=f"no JSON {kind} in the reply")
        wrong = list(self._wrong("", line.answer, parsed))
        if not wrong:
            return Grade(correct=True, parsed=parsed)
        why = f"wrong: {', '.join(wrong)}"
        return Grade(correct=False, parsed=parsed, why=why, details={"wrong_fields": wrong})

    def solution(self, line: ProblemLine) -> str:
        return f"```json\n{as_json(line.answer)}\n```"

    def identity(self) -> Any:
        return dict(self.rules)

    def _wrong(self, path: str, expected: Any, value: Any) -> Iterator[str]:
        """Yield the paths at which a value differs from the expected one."""
        rule = self.rules.get(path)
        name = path or ROOT
        if rule == "set":
            if not isinstance(value, list) or not _same_items(expected, value):
                yield name
        elif rule is not None:
            if not _is_number(value) or not _close(value, expected, float(rule)):
                yield name
        elif isinstance(expected, dict):
            if not isinstance(value, dict):
                yield name
                return
            for key, inner in expected.items():
                inner_path = f"{path}.{key}" if path else key
                if key not in value:
                    yield f"{inner_path} (missing)"
                else:
                    yield from self._wrong(inner_path, inner, value[key])
        elif not _equal(expected, value):
            yield name


def find(reply: str, expected: Any) -> Any:
    """Return the last JSON value in a reply that has the kind of the expected one; None if none.

    Of several objects, the last with one of the expected fields.
    """
    if isinstance(expected, list):
        lists = list(json_values(reply, LIST))
        return lists[-1] if lists else None
    last = None
    with_field = None
    for value in json_values(reply, OBJECT):
        last = value
        if not expected or any(key in value for key in expected):
            with_field = value
    return last if with_field is None else with_field


def _paths(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every field of an object with its path."""
    if isinstance(value, dict):
        for key, inner in value.items():
            inner_path = f"{path}.{key}" if path else key
            yield inner_path, inner
            yield from _paths(inner, inner_path)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _close(first: float, second: float, tolerance: float) -> bool:
    try:
        # With some slack, because 0.3 - 0.2 is less than 0.1.
        return abs(first - second) <= tolerance * (1 + 1e-9)
    except OverflowError:  # a whole number of a thousand digits
        return False


def _equal(first: Any, second: Any) -> bool:
    """Return whether two values are equal as JSON: `true` is not 1, and 1 is 1.0."""
    if isinstance(first, list) and isinstance(second, list):
        if len(first) != len(second):
            return False
        return all(map(_equal, first, second))
    if isinstance(first, dict) and isinstance(second, dict):
        if first.keys() != second.keys():
            return False
        return all(_equal(first[key], second[key]) for key in first)
    if isinstance(first, str) and isinstance(second, str):
        return first.strip() == second.strip()
    if isinstance(first, bool) or isinstance(second, bool):
        return first is second
    return bool(first == second)


def _same_items(expected: list[Any], items: list[Any]) -> bool:
    """Return whether two lists have the same items, in any order."""
    if len(expected) != len(items):
        return False
    unmatched = list(expected)
    for item in items:
        for index, candidate in enumerate(unmatched):
            if _equal(candidate, item):
                del unmatched[index]
                break
        else:
            return False
    return True
