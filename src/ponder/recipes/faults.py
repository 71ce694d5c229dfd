"""Execution in the pocket model's words with faults that nobody puts right, and the true label of every step.

A fault is a wrong start, a value looked up wrongly, a wrong digit, a carry dropped or made up, another key, a step left
out or done twice; or an answer that is not what was thought. What comes after it goes on from the wrong sum. Labels are
those of the reward `oracle`: a step is right until the first that is not as it should be, anew in each pass.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

from ponder.core import Request, Steps, seed_from
from ponder.models.pocket import CODECS
from ponder.models.pocket.codec import AGAIN, Style
from ponder.models.pocket.execution import (
    FLAGS,
    PASSES,
    PLACES,
    VALUES,
    Curriculum,
    added,
    digits,
    number,
    step_word,
    value_word,
)
from ponder.tasks.execution import dictionary

Fault: TypeAlias = Literal["start", "value", "digit", "carry", "key", "skip", "twice"]
FAULTS: tuple[Fault, ...] = ("start", "value", "digit", "carry", "key", "skip", "twice")
SOUND = 0.4  # share of passes without a fault
ONE = 0.7  # share of the others with one; else two
FOND = 0.15  # chance of each fault in each step, in the traces of one who makes them all the time
MISSAID = 0.08  # share of answers that are not what was thought
STYLES: tuple[Style, ...] = ("plain", "plain", "plain", "long", "short")

Words: TypeAlias = list[str]
Places: TypeAlias = set[int]  # of words in a step
Faults: TypeAlias = dict[int, set[Fault]]  # by step of a pass
Plan: TypeAlias = Sequence[tuple[int, str]]  # each step's number and key


def traces(seed: int, *, test: bool = False) -> Iterator[Steps]:
    """Without end, of all three styles: to learn from, or of held-out problems."""
    rng, grown = random.Random(seed_from("faults", seed, test)), Curriculum(grown=0, tail_steps=48)
    while True:
        request = CODECS["execution"].draw(rng, 0, grown)
        if CODECS["execution"].held_out(request.problem) == test:
            yield trace(request, rng.choice(STYLES), rng)


def trace(request: Request, style: Style, rng: random.Random, *, fond: bool = False) -> Steps:
    """What a faulty model says to a request, now and then or all the time.

    Its facts have the `labels` of the steps, and in `false` those places of its words that don't follow from the words
    before them, be they right or wrong; the answer's are counted from its first digit, and -1 is the end of thinking.
    """
    problem, table = request.problem, dictionary(request.problem)
    *past, now = (m for m in request.messages if m.role != "system")
    start = (request.task.parse(problem, past[-1].content) or 0) if past else 0
    done = sum(len(m.content.split(", ")) for m in past if m.role == "user")
    plan = list(enumerate(now.content.split(", "), done + 1))
    true = _pass(start, plan, style, {}, table, rng)[0]
    thinking, labels, false, end, early = list[Words](), list[bool](), list[Places](), start, False
    for n in range(rng.randint(1, PASSES) if style == "long" else 1):
        said, off, end = _pass(start, plan, style, _faults(len(plan), fond, rng), table, rng)
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


def _faults(steps: int, fond: bool, rng: random.Random) -> Faults:
    """Which steps of a pass have which."""
    if fond:
        return {n: {fault for fault in FAULTS if rng.random() < FOND} for n in range(steps)}
    if rng.random() < SOUND:
        return {}
    return {rng.randrange(steps): {rng.choice(FAULTS)} for _ in range(1 if rng.random() < ONE else 2)}


def _pass(
    total: int, plan: Plan, style: Style, faults: Faults, table: dict[str, int], rng: random.Random
) -> tuple[list[Words], list[Places], int]:
    """All steps once, the sum that they begin with first; which words don't follow; and the sum that they end in."""
    shown = 2 if style == "short" else len(PLACES)
    first = digits(total)
    if any("start" in some for some in faults.values()):
        first = _changed(first, range(len(PLACES)), rng)
    found, false, last = [first], [_differ(first, digits(total))], plan[0][0] - 1
    total = _total(first)
    for n, (step, asked) in enumerate(plan):
        some = faults.get(n, set())
        if "skip" in some:
            continue
        key = rng.choice([k for k in table if k != asked]) if "key" in some and len(table) > 1 else asked
        value = _mistaken(table[key], table, rng) if "value" in some else table[key]
        for _ in range(2 if "twice" in some else 1):
            follows = added(total, value)
            sums, off = follows, Places()
            if "carry" in some:
                sums, off = _carried(total, value, place := rng.randrange(shown), rng), {place}
            if "digit" in some:
                changed = _changed(sums, range(shown), rng)
                sums, off = changed, off | _differ(changed, sums)
            said = [step_word(step), key, value_word(value)]
            should = [step_word(last + 1), asked, value_word(table[key])]
            found.append([*said, *sums[:shown]])
            false.append(_differ(said, should) | {3 + place for place in off})
            total, last = _total(sums), step
    return found, false, total


def _differ(words: Words, others: Words) -> Places:
    return {n for n, (a, b) in enumerate(zip(words, others, strict=True)) if a != b}


def _total(words: Words) -> int:
    total = number(words)
    assert total is not None
    return total


def _mistaken(value: int, table: dict[str, int], rng: random.Random) -> int:
    """Another value: of another key, near it, of the other sign, or any."""
    near = [value + off for off in (-10, -1, 1, 10)]
    wrong = rng.choice([rng.choice(list(table.values())), rng.choice(near), -value, rng.randint(-VALUES, VALUES)])
    return wrong if wrong != value and abs(wrong) <= VALUES else (value + VALUES) % (2 * VALUES) - VALUES + 1


def _changed(words: Words, places: Sequence[int], rng: random.Random) -> Words:
    """With another digit at one of the places, and what it carries as it was."""
    place = rng.choice(places)
    word = words[place]
    digit = rng.choice([d for d in range(10) if str(d) != word[1]])
    return [*words[:place], f"{word[0]}{digit}{word[2:]}", *words[place + 1 :]]


def _carried(total: int, value: int, place: int, rng: random.Random) -> Words:
    """A sum with the carry of one place dropped, or made up, and the higher places worked out from that."""
    words, rest = added(total, value), 10 ** (place + 1)
    carry = next(c for c, flag in FLAGS.items() if flag == words[place][2:])
    wrong = 0 if carry else rng.choice((-1, 1))
    sign = -1 if value < 0 else 1
    above = added(total // rest, sign * (abs(value) // rest) + wrong)[: len(PLACES) - place - 1]
    higher = [f"{PLACES[place + 1 + n]}{word[1:]}" for n, word in enumerate(above)]
    return [*words[:place], f"{words[place][:2]}{FLAGS[wrong]}", *higher]
