"""Translates the execution task for the pocket model: sums digit by digit.

A sum is four digits in ten's complement, lowest first. Each is a word with its place and its carry
(`u7^`: units 7, carry 1; `t3_`: tens 3, borrow 1), so that adding a value takes one small look-up
per word. -37 is `u3 t6 h9 k9`.

A prompt lists the dictionary, then each turn's steps by number and key, and after each earlier turn
the sum that the history shows, right or wrong. The thinking starts with the last sum; the rest
depends on the style:

- plain: each step as its number, its key, the key's value, and the new sum.
- short: like plain, but with only the lower two digits of each sum; carries beyond them are not
  written down.
- long: a draft, which is like short and ends with `+00` and the whole sum, then a verdict:
  `</think>` if the model trusts the sum, `<again>` if it doubts it. After a doubt comes a careful
  pass, like plain, with a verdict of its own, up to three passes; the last one counts. One example
  in seven starts with a careful pass at once, and a right pass is checked once more in three of
  ten, so that a method that shortens has several ways to choose from.
- wordy: like plain, repeated up to four times, needed or not: a wasteful teacher for the study
  `selection`. In the examples, a single pass is enough for one in five; after two passes that
  agree, half of them stop.

The long style is trained twice. First on examples in which some passes contain a deliberate error,
to learn the form; then on its own sampled passes (`judged`), where the solver says which verdict is
right.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ponder.core import ModelFailure, Request, Task, UserError
from ponder.core.capabilities import parse_answer
from ponder.models.pocket.codec import (
    AGAIN,
    ANSWER,
    BOS,
    EOS,
    PAD,
    THINK,
    EvalSet,
    Example,
    PocketCodec,
    Style,
)
from ponder.tasks.execution import WORDS, Execution, dictionary, keys_in, make_dictionary

STEPS = 96  # most steps in a problem
ENTRIES = 24  # most entries in a dictionary
VALUES = 99  # largest value
PASSES = 3  # most passes in a long example
REPEATS = 4  # most passes in a wordy example
CAREFUL = 0.15  # fraction of long examples that start with a careful pass
RECHECK = 0.3  # fraction of right passes, the last excepted, after which comes another
SLIPS = 0.3  # fraction of a long example's passes, the last excepted, with a deliberate error
WORDY_SLIPS = 0.2  # the same for a wordy example
ONCE = 0.2  # fraction of wordy examples that stop after a right first pass
ENOUGH = 0.5  # fraction that stop after two passes that agree
UNWRITTEN = 0.7  # fraction of a draft's errors that are in the carries it doesn't write down
PLACES = "uthk"
Pass: TypeAlias = Literal["plain", "short", "draft"]  # how one pass is written
Steps: TypeAlias = Sequence[tuple[int, str, int]]  # number, key and value
FIRST_PASS: dict[Style, Pass] = {
    "plain": "plain",
    "short": "short",
    "long": "draft",
    "wordy": "plain",
}
FLAGS = {0: "", 1: "^", -1: "_"}


def step_word(step: int) -> str:
    return f"#{step}"


def value_word(value: int) -> str:
    return f"{value:+03d}"


def added(total: int, value: int) -> list[str]:
    """Return the digits of a sum after adding a value, each with its carry."""
    words = []
    carry = 0
    sign = -1 if value < 0 else 1
    for n, letter in enumerate(PLACES):
        total_digit = total // 10**n % 10
        value_digit = sign * (abs(value) // 10**n % 10)
        digit = total_digit + value_digit + carry
        carry = digit // 10
        words.append(f"{letter}{digit % 10}{FLAGS[carry]}")
    return words


def digits(total: int) -> list[str]:
    return added(total, 0)


def number(words: Sequence[str]) -> int | None:
    """Return the number that four digits represent; None if they aren't four digits."""
    if [word[0] for word in words] != list(PLACES):
        return None
    total: int = sum(int(word[1]) * 10**n for n, word in enumerate(words))
    if total >= 5000:
        total -= 10_000
    return total


def _all_words() -> list[tuple[str, tuple[str, ...]]]:
    """Return each word with its features."""
    special_words = (PAD, BOS, EOS, THINK, ANSWER, AGAIN)
    words: list[tuple[str, tuple[str, ...]]] = [(special, (special,)) for special in special_words]
    for key in WORDS:
        letters = [f"{n}{letter}" for n, letter in enumerate(key)]
        words.append((key, ("key", key, *letters)))
    for value in range(-VALUES, VALUES + 1):
        tens = int(value / 10)
        units = int(math.fmod(value, 10))
        words.append(
            (value_word(value), ("value", f"tens {tens}", f"units {units}", f"{value < 0}"))
        )
    for step in range(1, STEPS + 1):
        features = ("step", f"step {step // 10}.", f"step .{step % 10}")
        words.append((step_word(step), features))
    for letter, digit, flag in itertools.product(PLACES, range(10), FLAGS.values()):
        features = (f"place {letter}", f"digit {digit}", f"carry {flag}")
        words.append((f"{letter}{digit}{flag}", features))
    return words


@dataclass(frozen=True)
class Curriculum:
    grown: int = 600  # training step from which on all sizes occur
    per_turn: int = 8  # most steps per turn
    before: int = 24  # most steps in earlier turns
    fresh: float = 0.4  # fraction of problems without earlier turns
    tail: float = 0.25  # fraction, once grown, with up to `tail_steps` steps in all
    tail_steps: int = 80
    # Initial fraction of look-up drills, falling to 0; without them, looking up is learned late.
    drills: float = 0.5

    def at(self, step: int) -> float:
        """Return how far the sizes have grown, from 0 to 1."""
        if not self.grown:
            return 1.0
        return min(1.0, step / self.grown)


# Steps per turn, and turns.
ALONE = tuple((per_turn, 1) for per_turn in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64))
TURNS = ((1, 24), (2, 12), (3, 8), (4, 6), (8, 3), (12, 2), (8, 6), (16, 3), (24, 2))


def _exam(per_turn: int, turns: int) -> EvalSet:
    task = Execution(per_turn=per_turn, dictionary=16)
    label = f"{per_turn} × {turns}"
    return EvalSet(label, task, per_turn * turns, (per_turn, turns), 32 * per_turn + 48)


class ExecutionCodec(PocketCodec):
    task = "execution"
    styles = ("plain", "long", "short", "wordy")
    exams = tuple(_exam(*kind) for kind in ALONE + TURNS)
    glances = tuple(
        _exam(*kind) for kind in ((2, 1), (4, 1), (8, 1), (16, 1), (24, 1), (48, 1), (4, 6))
    )
    limits = (
        (
            f"Its vocabulary covers {STEPS} steps in all, values up to {VALUES} and dictionaries of"
            f" {ENTRIES} entries."
        ),
        (
            "More than 8 steps per turn, or 24 in earlier turns, are a quarter of its training;"
            " more than 80 in all, none."
        ),
        (
            "Other training seeds are as good up to 16 steps per turn, not beyond"
            " (24 steps: .07, .93; 48: .47, 1.00)."
        ),
        "The long style is trained on few problems with earlier turns, and fails on them.",
        (
            "It was trained on right histories only, so a history with errors is outside its"
            " training distribution."
        ),
    )
    can = (
        f"it executes up to {STEPS} steps: dictionary = {ENTRIES}, values = {VALUES},"
        ' mode = "thinking", or less'
    )
    begins = rf"#\d+|{AGAIN}"
    taught = "execution problems generated during training, with every step written out"

    def __init__(self) -> None:
        super().__init__(_all_words())

    def check(self, task: Task, size: int) -> None:
        if not isinstance(task, Execution):
            message = f"the pocket model has no vocabulary for {task.plugin_name()}"
        elif size > STEPS:
            message = f"the pocket model has no vocabulary for {size} steps"
        elif task.dictionary > ENTRIES:
            message = f"the pocket model can't read a dictionary of {task.dictionary} words"
        elif task.values > VALUES:
            message = f"the pocket model has no vocabulary for values up to {task.values}"
        elif task.mode != "thinking":
            message = f"the pocket model always thinks, so mode = {task.mode!r} can't be asked"
        else:
            return
        raise UserError(message, hint=self.can)

    def prompt(self, request: Request) -> list[str]:
        words = [BOS]
        step = 0
        for key, value in dictionary(request.problem).items():
            words += [key, value_word(value)]
        for message in request.messages:
            if message.role == "user":
                for key in keys_in(message.content):
                    step += 1
                    words += [step_word(step), key]
            elif message.role == "assistant":
                total = parse_answer(request.task, request.problem, message.content)
                if total is not None:
                    words += digits(total)
        words.append(THINK)
        for word in words:
            if word not in self.index:
                raise ModelFailure(f"the word {word!r} is not in the pocket model's vocabulary")
        return words

    def text(self, request: Request, answer: Sequence[str]) -> str:  # noqa: ARG002 the words are enough
        total = number(answer)
        if total is None:
            return " ".join(answer)
        return f"<answer>{total}</answer>"

    def answer_words(self, request: Request, answer: str) -> list[str]:
        total = parse_answer(request.task, request.problem, answer)
        if total is None:
            return answer.split()
        return digits(total)

    def draw(self, rng: random.Random, step: int, curriculum: Curriculum) -> Request:
        """Return a random request; more steps, turns and entries as training goes on."""
        grown = curriculum.at(step)
        if grown == 1 and rng.random() < curriculum.tail:
            per_turn = round(math.exp(rng.uniform(0, math.log(curriculum.tail_steps))))
            steps_before = rng.randint(0, curriculum.tail_steps - per_turn)
        else:
            per_turn = rng.randint(1, round(2 + grown * (curriculum.per_turn - 2)))
            steps_before = rng.randint(1, round(4 + grown * (curriculum.before - 4)))
        history_turns = math.ceil(steps_before / per_turn)
        if rng.random() < max(curriculum.fresh, 1 - 2 * grown):
            history_turns = 0
        history_turns = min(history_turns, curriculum.tail_steps // per_turn - 1)
        task = Execution(
            per_turn=per_turn,
            dictionary=rng.randint(3, self._most_entries(grown)),
            history_turns=history_turns,
        )
        problem = task.problem((history_turns + 1) * per_turn, rng.getrandbits(63))
        return Request.first_turn(task, problem)

    def _most_entries(self, grown: float) -> int:
        return round(4 + grown * (ENTRIES - 4))

    def practise(
        self, rng: random.Random, step: int, curriculum: Curriculum, style: Style
    ) -> Example | None:
        """Return a random example; early in training often a look-up drill.

        A drill lists keys of a dictionary, each followed by its value.
        """
        grown = curriculum.at(step)
        if rng.random() >= curriculum.drills * (1 - grown):
            return super().practise(rng, step, curriculum, style)
        entries = rng.randint(3, self._most_entries(grown))
        table = make_dictionary(rng, entries, VALUES)
        prompt = [BOS]
        for key, value in table.items():
            prompt += [key, value_word(value)]
        prompt.append(THINK)
        reply = []
        for key in rng.choices(list(table), k=16):
            reply += [key, value_word(table[key])]
        return Example(prompt, reply, frozenset(range(0, len(reply), 2)))

    def lesson(
        self, request: Request, style: Style = "plain", rng: random.Random | None = None
    ) -> Example | None:
        work = self._work(request)
        if work is None:
            return None
        total, steps = work
        if rng and style == "long":
            thinking, wrong = _long_passes(total, steps, rng)
        elif rng and style == "wordy":
            thinking, wrong = _wordy_passes(total, steps, rng)
        else:
            thinking, wrong = _pass(total, steps, FIRST_PASS[style])
        reply = [*thinking, ANSWER, *_end(total, steps), EOS]
        return Example(self.prompt(request), reply, frozenset(wrong))

    def judged(self, request: Request, reply: Sequence[str], rng: random.Random) -> Example | None:
        """Return a sampled long reply up to its first wrong verdict, and then the right reply.

        Sampled words that are wrong have no loss. Only the verdicts on drafts are marked: after a
        careful step either the next step or the verdict follows, and a weight on verdicts would
        teach the model to stop early. None if the reply has no end, or a pass has too few or too
        many words.
        """
        work = self._work(request)
        if ANSWER not in reply or reply[-1] != EOS or work is None:
            return None
        total, steps = work
        end = _end(total, steps)
        draft, _ = _pass(total, steps, "draft")
        careful, _ = _pass(total, steps, "plain")
        words = list[str]()
        wrong = set[int]()
        verdicts = set[int]()
        passes = _split(reply[: reply.index(ANSWER)])
        for n, written in enumerate(passes, 1):
            right = _most_alike([draft, careful], written)
            if len(written) != len(right):
                return None
            wrong |= _differ(written, right, len(words))
            words += written
            if right is draft:
                verdicts.add(len(words))
            if number(written[-4:]) == number(end) and (n >= PASSES or rng.random() >= RECHECK):
                break
            words.append(AGAIN)
            if n == len(passes) or n + 1 >= PASSES:
                words += careful
                break
        return Example(
            self.prompt(request), [*words, ANSWER, *end, EOS], frozenset(wrong), frozenset(verdicts)
        )

    def unsound(
        self, request: Request, thinking: Sequence[str], style: Style = "plain"
    ) -> str | None:
        """Return the first word of the thinking that is wrong or doesn't follow; else None.

        A pass of the long style may be a draft or a careful one.
        """
        styles: tuple[Style, ...] = (style,)
        if style == "long":
            styles = ("plain", "long")
        elif style == "wordy":
            styles = ("plain",)
        for written in _split(thinking):
            shared = [_shared(self._right_thinking(request, kind), written) for kind in styles]
            pass_style = styles[shared.index(max(shared))]
            fault = super().unsound(request, written, pass_style)
            if fault:
                return fault
        return None

    def _work(self, request: Request) -> tuple[int, Steps] | None:
        """Return the sum to start from, and the steps to do; None if the history has no sum."""
        *past, last = [message for message in request.messages if message.role != "system"]
        total = 0
        if past:
            total = parse_answer(request.task, request.problem, past[-1].content)
        if total is None:
            return None
        done = sum(len(keys_in(message.content)) for message in past if message.role == "user")
        table = dictionary(request.problem)
        steps = [(n, key, table[key]) for n, key in enumerate(keys_in(last.content), done + 1)]
        return total, steps


def _end(total: int, steps: Steps) -> list[str]:
    """Return the digits of the right sum."""
    return digits(total + sum(value for _, _, value in steps))


def _split(thinking: Sequence[str]) -> list[list[str]]:
    """Return the words of each pass."""
    return [words.split() for words in " ".join(thinking).split(AGAIN)]


def _most_alike(passes: Sequence[list[str]], written: Sequence[str]) -> list[str]:
    """Return the pass that has the most words in common with the one written, at its start."""
    return max(passes, key=lambda words: _shared(words, written))


def _shared(left: Sequence[str], right: Sequence[str]) -> int:
    """Return how many words two passes have in common at their start."""
    count = 0
    for left_word, right_word in zip(left, right, strict=False):
        if left_word != right_word:
            break
        count += 1
    return count


def _long_passes(total: int, steps: Steps, rng: random.Random) -> tuple[list[str], set[int]]:
    """Return the words of a long example's passes, and the indices of deliberate errors."""
    words = list[str]()
    wrong = set[int]()
    kind: Pass = "plain" if rng.random() < CAREFUL else "draft"
    for n in range(1, PASSES + 1):
        is_last = n == PASSES
        slips = not is_last and rng.random() < SLIPS
        written, errors = _pass(total, steps, kind, rng if slips else None)
        wrong |= {len(words) + index for index in errors}
        words += written
        if is_last or (not errors and rng.random() >= RECHECK):
            break
        words.append(AGAIN)
        kind = "plain"
    return words, wrong


def _wordy_passes(total: int, steps: Steps, rng: random.Random) -> tuple[list[str], set[int]]:
    """Return the words of a wordy example's passes, and the indices of deliberate errors."""
    words = list[str]()
    wrong = set[int]()
    right_end = number(_end(total, steps))
    ends = list[int | None]()
    while True:
        slips = rng.random() < WORDY_SLIPS and len(ends) < REPEATS - 1
        written, errors = _pass(total, steps, "plain", rng if slips else None)
        wrong |= {len(words) + index for index in errors}
        words += written
        ends.append(number(written[-4:]))
        stops = 0.0
        if len(ends) == 1:
            stops = ONCE
        elif ends[-1] == ends[-2]:
            stops = ENOUGH
        if len(ends) == REPEATS or (ends[-1] == right_end and rng.random() < stops):
            return words, wrong
        words.append(AGAIN)


def _pass(
    total: int, steps: Steps, kind: Pass, rng: random.Random | None = None
) -> tuple[list[str], set[int]]:
    """Do all steps once; return the words, and the indices of those that are deliberately wrong.

    A generator makes the pass slip: one word is wrong.
    """
    words = digits(total)
    wrong = set[int]()
    written_digits = 4 if kind == "plain" else 2
    slips_at = None
    if rng:
        slips_at = rng.randrange(len(steps))
        if kind == "draft" and rng.random() < UNWRITTEN:
            slips_at = len(steps)
    for n, (step, key, value) in enumerate(steps):
        written_value = value
        offset = 0
        if rng and n == slips_at:
            written_value, offset = _slip(value, written_digits, rng)
        follows = added(total, written_value)
        total += written_value + offset
        sums = digits(total) if offset else follows
        words += [step_word(step), key, value_word(written_value)]
        if written_value != value:
            wrong.add(len(words) - 1)
        wrong |= _differ(sums[:written_digits], follows, len(words))
        words += sums[:written_digits]
    if kind == "draft":
        # Nothing more to add: without a word between, copying the digits is learned late.
        words.append(value_word(0))
        claimed = total
        if rng and slips_at == len(steps):
            claimed += rng.choice((-200, -100, 100, 200))
        claimed_digits = digits(claimed)
        wrong |= _differ(claimed_digits, digits(total), len(words))
        words += claimed_digits
    return words, wrong


def _differ(left: Sequence[str], right: Sequence[str], start: int) -> set[int]:
    """Return the indices of the words that differ, counted from `start`."""
    pairs = enumerate(zip(left, right, strict=False), start)
    return {index for index, (left_word, right_word) in pairs if left_word != right_word}


def _slip(value: int, written_digits: int, rng: random.Random) -> tuple[int, int]:
    """Return a deliberate error: a value, and an offset of the sum in a digit that is written.

    Either the value is wrong or the offset isn't 0.
    """
    if rng.random() < 0.5:
        others = [v for v in range(-VALUES, VALUES + 1) if v != value]
        return rng.choice(others), 0
    sign = rng.choice((-1, 1))
    return value, sign * 10 ** rng.randrange(min(3, written_digits))
