"""Generates execution traces with errors in the pocket model's words, and each step's true label.

`ponder.recipes.pocket_reward` trains on them. An error is a wrong start, a wrong value, a wrong
digit, a carry dropped or added, another key, a step left out or done twice; or an answer that
differs from the thinking. The steps after an error continue from its wrong sum. Labels are those of
the reward `oracle`: in each pass, steps are right up to the first error.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
Positions: TypeAlias = set[int]  # of words in a step
Faults: TypeAlias = dict[int, set[Fault]]  # the errors of each step of a pass
Plan: TypeAlias = Sequence[tuple[int, str]]  # each step's number and key


@dataclass
class _Pass:
    """One pass over the steps of a problem."""

    steps: list[Words]  # the first is the sum so far
    false: list[Positions]  # for each step, the words that don't follow
    total: int  # the sum at its end


def traces(seed: int, *, test: bool = False) -> Iterator[Steps]:
    """Yield endless traces of all three styles, of training problems or of held-out ones."""
    codec = CODECS["execution"]
    rng = random.Random(seed_from("faults", seed, test))
    curriculum = Curriculum(grown=0, tail_steps=48)
    while True:
        request = codec.draw(rng, 0, curriculum)
        if codec.held_out(request.problem) == test:
            yield trace(request, rng.choice(STYLES), rng)


def trace(request: Request, style: Style, rng: random.Random, *, often: bool = False) -> Steps:
    """Return a reply with errors, a few or many.

    Its facts hold the `labels` of the steps, and in `false` the positions of the words that don't
    follow from those before them; in the answer they count from its first digit, and -1 is the end
    of thinking.
    """
    problem = request.problem
    table = dictionary(problem)
    turns = [message for message in request.messages if message.role != "system"]
    past = turns[:-1]
    last = turns[-1]
    start = 0
    if past:
        start = parse_answer(request.task, problem, past[-1].content) or 0
    done = 0  # steps of earlier turns
    for message in past:
        if message.role == "user":
            done += len(keys_in(message.content))
    plan = list(enumerate(keys_in(last.content), done + 1))

    right_pass = _write_pass(start, plan, style, {}, table, rng)
    passes = rng.randint(1, REPEATS) if style == "wordy" else 1
    thinking = list[Words]()
    labels = list[bool]()
    false = list[Positions]()
    total = start
    ended_early = False  # whether a pass lacks its last step
    for n in range(passes):
        faults = _faults(len(plan), often, rng)
        written = _write_pass(start, plan, style, faults, table, rng)
        labels += _labels(written.steps, right_pass.steps)
        previous_ended_early = ended_early
        ended_early = written.steps[-1][0] != step_word(plan[-1][0])
        if n:
            written.steps[0] = [AGAIN, *written.steps[0]]
            written.false[0] = {position + 1 for position in written.false[0]}
            if previous_ended_early:
                written.false[0].add(0)
        thinking += written.steps
        false += written.false
        total = written.total

    answer = digits(total)
    if rng.random() < MISSAID:
        answer = _changed(answer, range(4), rng)
    false_in_answer = _differ(answer, digits(total))
    if ended_early:
        false_in_answer.add(-1)
    false.append(false_in_answer)
    text = CODECS["execution"].text(request, answer)
    correct = request.task.grade(problem, text).correct
    facts = {
        "codec": "pocket",
        "task": "execution",
        "problem": problem,
        "style": style,
        "correct": correct,
        "labels": [*labels, correct],
        "false": false,
    }
    thinking_texts = tuple(" ".join(step) for step in thinking)
    return Steps(problem.id, last.content, thinking_texts, (text,), facts)


def _labels(steps: Sequence[Words], right_steps: Sequence[Words]) -> list[bool]:
    """Return which steps are right: those before the first that differs."""
    labels = []
    right = True
    for n, step in enumerate(steps):
        right = right and n < len(right_steps) and step == right_steps[n]
        labels.append(right)
    return labels


def _faults(steps: int, often: bool, rng: random.Random) -> Faults:
    """Draw the errors of a pass."""
    if often:
        faults: Faults = {}
        for step in range(steps):
            faults[step] = {fault for fault in FAULTS if rng.random() < OFTEN}
        return faults
    if rng.random() < SOUND:
        return {}
    count = 1 if rng.random() < ONE else 2
    return {rng.randrange(steps): {rng.choice(FAULTS)} for _ in range(count)}


def _write_pass(
    total: int, plan: Plan, style: Style, faults: Faults, table: dict[str, int], rng: random.Random
) -> _Pass:
    """Do the steps of a plan once, with these errors."""
    written_digits = 2 if style == "short" else len(PLACES)
    first = digits(total)
    if any("start" in kinds for kinds in faults.values()):
        first = _changed(first, range(len(PLACES)), rng)
    steps = [first]
    false = [_differ(first, digits(total))]
    total = _total(first)
    last_step = plan[0][0] - 1
    for n, (step, right_key) in enumerate(plan):
        kinds = faults.get(n, set())
        if "skip" in kinds:
            continue
        key = right_key
        if "key" in kinds and len(table) > 1:
            key = rng.choice([other_key for other_key in table if other_key != right_key])
        value = table[key]
        if "value" in kinds:
            value = _mistaken(value, table, rng)
        times = 2 if "twice" in kinds else 1
        for _ in range(times):
            sums = added(total, value)
            false_digits = Positions()
            if "carry" in kinds:
                position = rng.randrange(written_digits)
                sums = _carried(total, value, position, rng)
                false_digits.add(position)
            if "digit" in kinds:
                changed = _changed(sums, range(written_digits), rng)
                false_digits |= _differ(changed, sums)
                sums = changed
            words = [step_word(step), key, value_word(value)]
            right_words = [step_word(last_step + 1), right_key, value_word(table[key])]
            steps.append([*words, *sums[:written_digits]])
            false_words = _differ(words, right_words)
            for position in false_digits:
                false_words.add(len(words) + position)
            false.append(false_words)
            total = _total(sums)
            last_step = step
    return _Pass(steps, false, total)


def _differ(left: Words, right: Words) -> Positions:
    """Return the positions of the words that differ."""
    positions = Positions()
    for position, (left_word, right_word) in enumerate(zip(left, right, strict=True)):
        if left_word != right_word:
            positions.add(position)
    return positions


def _total(words: Words) -> int:
    total = number(words)
    assert total is not None
    return total


def _mistaken(value: int, table: dict[str, int], rng: random.Random) -> int:
    """Return a wrong value: another key's, a near one, the negative, or any."""
    of_another_key = rng.choice(list(table.values()))
    near = rng.choice([value - 10, value - 1, value + 1, value + 10])
    wrong = rng.choice([of_another_key, near, -value, rng.randint(-VALUES, VALUES)])
    if wrong != value and abs(wrong) <= VALUES:
        return wrong
    return (value + VALUES) % (2 * VALUES) - VALUES + 1


def _changed(words: Words, positions: Sequence[int], rng: random.Random) -> Words:
    """Return the words with another digit at one of the positions; its carry stays."""
    position = rng.choice(positions)
    word = words[position]
    digit = rng.choice([digit for digit in range(10) if str(digit) != word[1]])
    changed = list(words)
    changed[position] = f"{word[0]}{digit}{word[2:]}"
    return changed


def _carried(total: int, value: int, position: int, rng: random.Random) -> Words:
    """Return a sum with the carry of one digit dropped or added, and the higher digits after it."""
    words = added(total, value)
    flag = words[position][2:]
    wrong_carry = 0
    if flag == FLAGS[0]:
        wrong_carry = rng.choice((-1, 1))
    sign = -1 if value < 0 else 1
    unit = 10 ** (position + 1)
    higher_value = sign * (abs(value) // unit) + wrong_carry
    higher = added(total // unit, higher_value)
    words[position] = f"{words[position][:2]}{FLAGS[wrong_carry]}"
    for n in range(position + 1, len(PLACES)):
        words[n] = f"{PLACES[n]}{higher[n - position - 1][1:]}"
    return words
