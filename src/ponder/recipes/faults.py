"""Generates execution traces with errors in the pocket model's words, and the true label of every step.

`ponder.recipes.pocket_reward` trains on them. An error is a wrong start, a wrong value, a wrong digit, a carry dropped
or added, another key, a step left out or done twice; or an answer that differs from the thinking. The steps after an
error continue from its wrong sum. Labels are those of the reward `oracle`: in each pass, steps are right up to the
first error.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

from ponder.core import Request, Steps, seed_from
from ponder.core.capabilities import parse_answer
from ponder.models.pocket import CODECS
from ponder.models.pocket.codec import AGAIN, Style
from ponder.models.pocket.execution import (
    FLAGS,
    PLACES,
    REPEATS,
    VALUES,
    Curriculum,
    added,
    digits,
    number,
    step_word,
    value_word,
)
from ponder.tasks.execution import dictionary, keys_in

Fault: TypeAlias = Literal["start", "value", "digit", "carry", "key", "skip", "twice"]
FAULTS: tuple[Fault, ...] = ("start", "value", "digit", "carry", "key", "skip", "twice")
SOUND = 0.4  # fraction of passes without an error
ONE = 0.7  # fraction of the others with one error; else two
OFTEN = 0.15  # probability of each kind of error in each step, in traces with many errors
MISSAID = 0.08  # fraction of answers that differ from the thinking
STYLES: tuple[Style, ...] = ("plain", "plain", "plain", "wordy", "short")

Words: TypeAlias = list[str]
Places: TypeAlias = set[int]  # positions of words in a step
Faults: TypeAlias = dict[int, set[Fault]]  # the errors of each step of a pass
Plan: TypeAlias = Sequence[tuple[int, str]]  # each step's number and key


def traces(seed: int, *, test: bool = False) -> Iterator[Steps]:
    """Endless traces of all three styles, of training problems or of held-out ones."""
    rng, grown = random.Random(seed_from("faults", seed, test)), Curriculum(grown=0, tail_steps=48)
    while True:
        request = CODECS["execution"].draw(rng, 0, grown)
        if CODECS["execution"].held_out(request.problem) == test:
            yield trace(request, rng.choice(STYLES), rng)


def trace(request: Request, style: Style, rng: random.Random, *, often: bool = False) -> Steps:
    """A reply with errors, a few or many.

    Its facts hold the `labels` of the steps, and in `false` the positions of the words that don't follow from those
    before them; in the answer they count from its first digit, and -1 is the end of thinking.
    """
    problem, table = request.problem, dictionary(request.problem)
    *past, now = (m for m in request.messages if m.role != "system")
    start = (parse_answer(request.task, problem, past[-1].content) or 0) if past else 0
    done = sum(len(keys_in(m.content)) for m in past if m.role == "user")
    plan = list(enumerate(keys_in(now.content), done + 1))
    true = _pass(start, plan, style, {}, table, rng)[0]
    thinking, labels, false, end, early = list[Words](), list[bool](), list[Places](), start, False
    for n in range(rng.randint(1, REPEATS) if style == "wordy" else 1):
        said, off, end = _pass(start, plan, style, _faults(len(plan), often, rng), table, rng)
        right = True
        for place, step in enumerate(said):
            right = right and place < len(true) and step == true[place]
            labels.append(right)
        thinking += [[AGAIN, *said[0]], *said[1:]] if n else said
        false += [{place + 1 for place in off[0]} | ({0} if early else set()), *off[1:]] if n else off
        early = said[-1][0] != step_word(plan[-1][0])
    answer = _changed(digits(end), range(4), rng) if rng.random() < MISSAID else digits(end)
    false.append(_differ(answer, digits(end)) | ({-1} if early else set()))
    text = CODECS["execution"].text(request, answer)
    correct = request.task.grade(problem, text).correct
    facts = {"codec": "pocket", "task": "execution", "problem": problem, "style": style, "correct": correct}
    facts |= {"labels": [*labels, correct], "false": false}
    return Steps(problem.id, now.content, tuple(" ".join(step) for step in thinking), (text,), facts)


def _faults(steps: int, often: bool, rng: random.Random) -> Faults:
    """Draw the errors of a pass."""
    if often:
        return {n: {fault for fault in FAULTS if rng.random() < OFTEN} for n in range(steps)}
    if rng.random() < SOUND:
        return {}
    return {rng.randrange(steps): {rng.choice(FAULTS)} for _ in range(1 if rng.random() < ONE else 2)}


def _pass(
    total: int, plan: Plan, style: Style, faults: Faults, table: dict[str, int], rng: random.Random
) -> tuple[list[Words], list[Places], int]:
    """One pass: its steps, starting with the sum so far; the words that don't follow; and the sum at its end."""
    shown = 2 if style == "short" else len(PLACES)
    first = digits(total)
    if any("start" in kinds for kinds in faults.values()):
        first = _changed(first, range(len(PLACES)), rng)
    said, false, last = [first], [_differ(first, digits(total))], plan[0][0] - 1
    total = _total(first)
    for n, (step, asked) in enumerate(plan):
        kinds = faults.get(n, set())
        if "skip" in kinds:
            continue
        key = rng.choice([k for k in table if k != asked]) if "key" in kinds and len(table) > 1 else asked
        value = _mistaken(table[key], table, rng) if "value" in kinds else table[key]
        for _ in range(2 if "twice" in kinds else 1):
            follows = added(total, value)
            sums, off = follows, Places()
            if "carry" in kinds:
                sums, off = _carried(total, value, place := rng.randrange(shown), rng), {place}
            if "digit" in kinds:
                changed = _changed(sums, range(shown), rng)
                sums, off = changed, off | _differ(changed, sums)
            words = [step_word(step), key, value_word(value)]
            should = [step_word(last + 1), asked, value_word(table[key])]
            said.append([*words, *sums[:shown]])
            false.append(_differ(words, should) | {3 + place for place in off})
            total, last = _total(sums), step
    return said, false, total


def _differ(words: Words, others: Words) -> Places:
    return {n for n, (a, b) in enumerate(zip(words, others, strict=True)) if a != b}


def _total(words: Words) -> int:
    total = number(words)
    assert total is not None
    return total


def _mistaken(value: int, table: dict[str, int], rng: random.Random) -> int:
    """A wrong value: another key's, a near one, the negative, or any."""
    near = [value + off for off in (-10, -1, 1, 10)]
    wrong = rng.choice([rng.choice(list(table.values())), rng.choice(near), -value, rng.randint(-VALUES, VALUES)])
    return wrong if wrong != value and abs(wrong) <= VALUES else (value + VALUES) % (2 * VALUES) - VALUES + 1


def _changed(words: Words, places: Sequence[int], rng: random.Random) -> Words:
    """The words with another digit at one of the places; its carry stays."""
    place = rng.choice(places)
    word = words[place]
    digit = rng.choice([d for d in range(10) if str(d) != word[1]])
    return [*words[:place], f"{word[0]}{digit}{word[2:]}", *words[place + 1 :]]


def _carried(total: int, value: int, place: int, rng: random.Random) -> Words:
    """A sum with the carry of one place dropped or added, and the higher places computed from it."""
    words, rest = added(total, value), 10 ** (place + 1)
    carry = next(c for c, flag in FLAGS.items() if flag == words[place][2:])
    wrong = 0 if carry else rng.choice((-1, 1))
    sign = -1 if value < 0 else 1
    above = added(total // rest, sign * (abs(value) // rest) + wrong)[: len(PLACES) - place - 1]
    higher = [f"{PLACES[place + 1 + n]}{word[1:]}" for n, word in enumerate(above)]
    return [*words[:place], f"{words[place][:2]}{FLAGS[wrong]}", *higher]
