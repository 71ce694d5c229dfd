"""Translates the execution task for the pocket model: a dictionary, numbered steps, and sums digit by digit.

A sum is four digits in ten's complement, lowest first. Each is a word with its place and its carry (`u7^`: units 7,
carry 1; `t3_`: tens 3, borrow 1), so that adding a value takes one small look-up per word. -37 is `u3 t6 h9 k9`.

A prompt lists the dictionary, then each turn's steps by number and key, and after each earlier turn the sum that the
history shows, right or wrong. The thinking starts with the last sum; the rest depends on the style:

- plain: each step as its number, its key, the key's value, and the new sum.
- short: like plain, but with only the lower two digits of each sum; carries beyond them are not written down.
- long: a draft, which is like short and ends with `+00` and the whole sum, then a verdict: `</think>` if the model
  trusts the sum, `<again>` if it doubts it. After a doubt comes a careful pass, like plain, with a verdict of its own,
  up to three passes; the last one counts. One example in seven starts with a careful pass at once, and a right pass is
  checked once more in three of ten, so that a method that shortens has several ways to choose from.
- wordy: like plain, repeated up to four times, needed or not: a wasteful teacher for the study `selection`. In the
  examples, a single pass is enough for one in five; after two passes that agree, half of them stop.

The long style is trained twice. First on examples in which some passes contain a deliberate error, to learn the form;
then on its own sampled passes (`judged`), where the solver says which verdict is right.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ponder.core import ModelFailure, Request, Task, UserError
from ponder.core.capabilities import parse_answer
from ponder.models.pocket.codec import AGAIN, ANSWER, BOS, EOS, PAD, THINK, EvalSet, Example, PocketCodec, Style
from ponder.tasks.execution import WORDS, Execution, dictionary, keys_in, make_dictionary

STEPS = 96  # most steps in a problem
ENTRIES = 24  # most entries in a dictionary
VALUES = 99  # largest value
PASSES, REPEATS = 3, 4  # most passes in a long example, and in a wordy one
CAREFUL = 0.15  # fraction of long examples that start with a careful pass
RECHECK = 0.3  # fraction of right passes, the last excepted, after which comes another
SLIPS, WORDY_SLIPS = 0.3, 0.2  # fraction of passes, the last excepted, with a deliberate error
ONCE = 0.2  # fraction of wordy examples that stop after a right first pass
ENOUGH = 0.5  # fraction that stop after two passes that agree
UNWRITTEN = 0.7  # fraction of a draft's errors that are in the carries it doesn't write down
PLACES = "uthk"
Pass: TypeAlias = Literal["plain", "short", "draft"]  # how one pass is written
Steps: TypeAlias = Sequence[tuple[int, str, int]]  # number, key and value
KINDS: dict[Style, Pass] = {"plain": "plain", "short": "short", "long": "draft", "wordy": "plain"}  # of a first pass
FLAGS = {0: "", 1: "^", -1: "_"}


def step_word(step: int) -> str:
    return f"#{step}"


def value_word(value: int) -> str:
    return f"{value:+03d}"


def added(total: int, value: int) -> list[str]:
    """The digits of a sum after adding a value, each with its carry."""
    words, carry, sign = [], 0, -1 if value < 0 else 1
    for n, place in enumerate(PLACES):
        digit = total // 10**n % 10 + sign * (abs(value) // 10**n % 10) + carry
        carry = digit // 10
        words.append(f"{place}{digit % 10}{FLAGS[carry]}")
    return words


def digits(total: int) -> list[str]:
    return added(total, 0)


def number(words: Sequence[str]) -> int | None:
    """The number that four digits represent; None if they aren't four digits."""
    if [word[0] for word in words] != list(PLACES):
        return None
    total: int = sum(int(word[1]) * 10**n for n, word in enumerate(words))
    return total if total < 5000 else total - 10_000


def _words() -> list[tuple[str, tuple[str, ...]]]:
    """Each word, with the parts of its meaning."""
    values = range(-VALUES, VALUES + 1)
    return [
        *((word, (word,)) for word in (PAD, BOS, EOS, THINK, ANSWER, AGAIN)),
        *((word, ("key", word, *(f"{n}{letter}" for n, letter in enumerate(word)))) for word in WORDS),
        *(
            (value_word(v), ("value", f"tens {int(v / 10)}", f"units {int(math.fmod(v, 10))}", f"{v < 0}"))
            for v in values
        ),
        *((step_word(n), ("step", f"step {n // 10}.", f"step .{n % 10}")) for n in range(1, STEPS + 1)),
        *(
            (f"{place}{digit}{flag}", (f"place {place}", f"digit {digit}", f"carry {flag}"))
            for place in PLACES
            for digit in range(10)
            for flag in FLAGS.values()
        ),
    ]


@dataclass(frozen=True)
class Curriculum:
    grown: int = 600  # training step from which on all sizes occur
    per_turn: int = 8  # most steps per turn
    before: int = 24  # most steps in earlier turns
    fresh: float = 0.4  # fraction of problems without earlier turns
    tail: float = 0.25  # fraction, once grown, with up to `tail_steps` steps in all
    tail_steps: int = 80
    drills: float = 0.5  # initial fraction of look-up drills, falling to 0; without them, looking up is learned late

    def at(self, step: int) -> float:
        """How far the sizes have grown, from 0 to 1."""
        return min(1.0, step / self.grown) if self.grown else 1.0


ALONE = tuple((per_turn, 1) for per_turn in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64))  # steps per turn, turns
TURNS = ((1, 24), (2, 12), (3, 8), (4, 6), (8, 3), (12, 2), (8, 6), (16, 3), (24, 2))


def _exam(per_turn: int, turns: int) -> EvalSet:
    task, steps = Execution(per_turn=per_turn, dictionary=16), per_turn * turns
    return EvalSet(f"{per_turn} × {turns}", task, steps, (per_turn, turns), 32 * per_turn + 48)


class ExecutionCodec(PocketCodec):
    task = "execution"
    styles = ("plain", "long", "short", "wordy")
    exams = tuple(_exam(*kind) for kind in ALONE + TURNS)
    glances = tuple(_exam(*kind) for kind in ((2, 1), (4, 1), (8, 1), (16, 1), (24, 1), (48, 1), (4, 6)))
    limits = (
        f"Its vocabulary covers {STEPS} steps in all, values up to {VALUES} and dictionaries of {ENTRIES} entries.",
        "More than 8 steps per turn, or 24 in earlier turns, are a quarter of its training; more than 80 in all, none.",
        "Other training seeds are as good up to 16 steps per turn, not beyond (24 steps: .07, .93; 48: .47, 1.00).",
        "The long style is trained on few problems with earlier turns, and fails on them.",
        "It was trained on right histories only, so a history with errors is outside its training distribution.",
    )
    can = f'it executes up to {STEPS} steps: dictionary = {ENTRIES}, values = {VALUES}, mode = "thinking", or less'
    begins = rf"#\d+|{AGAIN}"
    taught = "execution problems generated during training, with every step written out"

    def __init__(self) -> None:
        super().__init__(_words())

    def check(self, task: Task, size: int) -> None:
        if not isinstance(task, Execution):
            what = f"the pocket model has no vocabulary for {task.plugin_name()}"
        elif size > STEPS:
            what = f"the pocket model has no vocabulary for {size} steps"
        elif task.dictionary > ENTRIES:
            what = f"the pocket model can't read a dictionary of {task.dictionary} words"
        elif task.values > VALUES:
            what = f"the pocket model has no vocabulary for values up to {task.values}"
        elif task.mode != "thinking":
            what = f"the pocket model always thinks, so mode = {task.mode!r} can't be asked"
        else:
            return
        raise UserError(what, hint=self.can)

    def prompt(self, request: Request) -> list[str]:
        words, step = [BOS], 0
        for key, value in dictionary(request.problem).items():
            words += [key, value_word(value)]
        for message in request.messages:
            if message.role == "user":
                for key in keys_in(message.content):
                    step += 1
                    words += [step_word(step), key]
            elif message.role == "assistant":
                shown = parse_answer(request.task, request.problem, message.content)
                words += [] if shown is None else digits(shown)
        words.append(THINK)
        if unknown := [word for word in words if word not in self.index]:
            raise ModelFailure(f"the word {unknown[0]!r} is not in the pocket model's vocabulary")
        return words

    def text(self, request: Request, answer: Sequence[str]) -> str:  # noqa: ARG002 the words are enough
        total = number(answer)
        return " ".join(answer) if total is None else f"<answer>{total}</answer>"

    def answer_words(self, request: Request, answer: str) -> list[str]:
        total = parse_answer(request.task, request.problem, answer)
        return answer.split() if total is None else digits(total)

    def draw(self, rng: random.Random, step: int, curriculum: Curriculum) -> Request:
        c, grown = curriculum, curriculum.at(step)
        if grown == 1 and rng.random() < c.tail:
            per_turn = round(math.exp(rng.uniform(0, math.log(c.tail_steps))))
            before = rng.randint(0, c.tail_steps - per_turn)
        else:
            per_turn = rng.randint(1, round(2 + grown * (c.per_turn - 2)))
            before = rng.randint(1, round(4 + grown * (c.before - 4)))
        history_turns = 0 if rng.random() < max(c.fresh, 1 - 2 * grown) else math.ceil(before / per_turn)
        history_turns = min(history_turns, c.tail_steps // per_turn - 1)
        task = Execution(
            per_turn=per_turn, dictionary=rng.randint(3, round(4 + grown * (ENTRIES - 4))), history_turns=history_turns
        )
        return Request.first_turn(task, task.problem((history_turns + 1) * per_turn, rng.getrandbits(63)))

    def practise(self, rng: random.Random, step: int, curriculum: Curriculum, style: Style) -> Example | None:
        """Early in training often a look-up drill: keys of a dictionary, each followed by its value."""
        grown = curriculum.at(step)
        if rng.random() >= curriculum.drills * (1 - grown):
            return super().practise(rng, step, curriculum, style)
        table = make_dictionary(rng, rng.randint(3, round(4 + grown * (ENTRIES - 4))), VALUES)
        asked = rng.choices(list(table), k=16)
        prompt = [BOS, *(word for key, value in table.items() for word in (key, value_word(value))), THINK]
        reply = [word for key in asked for word in (key, value_word(table[key]))]
        return Example(prompt, reply, frozenset(range(0, len(reply), 2)))

    def lesson(self, request: Request, style: Style = "plain", rng: random.Random | None = None) -> Example | None:
        if (asked := self._asked(request)) is None:
            return None
        passes = {"long": _passes, "wordy": _repeated}.get(style) if rng else None
        thinking, wrong = passes(*asked, rng) if passes and rng else _pass(*asked, KINDS[style])
        return Example(self.prompt(request), [*thinking, ANSWER, *_end(*asked), EOS], frozenset(wrong))

    def judged(self, request: Request, said: Sequence[str], rng: random.Random) -> Example | None:
        """A sampled long reply up to the first verdict that the solver contradicts, then continued as it should be.

        Sampled words that are wrong have no loss. Only the verdicts on drafts are marked: after a careful step either
        the next step or the verdict follows, and a weight on verdicts would teach the model to stop early. None if the
        reply has no end, or a pass has too few or too many words.
        """
        if ANSWER not in said or said[-1] != EOS or (asked := self._asked(request)) is None:
            return None
        end, draft, careful = _end(*asked), _pass(*asked, "draft")[0], _pass(*asked, "plain")[0]
        words, wrong, verdicts = list[str](), set[int](), set[int]()
        passes = _split(said[: said.index(ANSWER)])
        for n, one in enumerate(passes, 1):
            true = max(draft, careful, key=lambda words: _shared(words, one))
            wrong |= {len(words) + place for place, word in enumerate(one) if true[place : place + 1] != [word]}
            words += one
            if len(one) != len(true):
                return None
            verdicts |= {len(words)} if true is draft else set()
            if number(one[-4:]) == number(end) and (n >= PASSES or rng.random() >= RECHECK):
                break
            words.append(AGAIN)
            if n == len(passes) or n + 1 >= PASSES:
                words += careful
                break
        return Example(self.prompt(request), [*words, ANSWER, *end, EOS], frozenset(wrong), frozenset(verdicts))

    def unsound(self, request: Request, thinking: Sequence[str], style: Style = "plain") -> str | None:
        """A pass of the long style may be a draft or a careful one."""
        kinds: dict[Style, tuple[Style, ...]] = {"long": ("plain", "long"), "wordy": ("plain",)}
        for one in _split(thinking):
            kind = max(kinds.get(style, (style,)), key=lambda kind: _shared(self._right(request, kind), one))
            if fault := super().unsound(request, one, kind):
                return fault
        return None

    def _asked(self, request: Request) -> tuple[int, Steps] | None:
        """The sum to start from, and the steps to do; None if the history doesn't show a sum."""
        *past, now = [m for m in request.messages if m.role != "system"]
        shown = parse_answer(request.task, request.problem, past[-1].content) if past else 0
        if shown is None:
            return None
        table, done = dictionary(request.problem), sum(len(keys_in(m.content)) for m in past if m.role == "user")
        return shown, [(n, key, table[key]) for n, key in enumerate(keys_in(now.content), done + 1)]


def _end(total: int, steps: Steps) -> list[str]:
    """The digits of the right sum."""
    return digits(total + sum(value for _, _, value in steps))


def _split(thinking: Sequence[str]) -> list[list[str]]:
    """The words of each pass."""
    return [words.split() for words in " ".join(thinking).split(AGAIN)]


def _shared(words: Sequence[str], others: Sequence[str]) -> int:
    """How many words two passes have in common at their start."""
    pairs = zip(words, others, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(words), len(others)))


def _passes(total: int, steps: Steps, rng: random.Random) -> tuple[list[str], set[int]]:
    """The words of a long example's passes, and the indices of those that are deliberately wrong."""
    words, wrong = list[str](), set[int]()
    kind: Pass = "plain" if rng.random() < CAREFUL else "draft"
    for left in reversed(range(PASSES)):
        one, errors = _pass(total, steps, kind, rng if left and rng.random() < SLIPS else None)
        wrong |= {len(words) + place for place in errors}
        words += one
        if not left or (not errors and rng.random() >= RECHECK):
            break
        words.append(AGAIN)
        kind = "plain"
    return words, wrong


def _repeated(total: int, steps: Steps, rng: random.Random) -> tuple[list[str], set[int]]:
    """The same for a wordy example."""
    words, wrong, right = list[str](), set[int](), number(_end(total, steps))
    ends = list[int | None]()
    while True:
        slips = rng.random() < WORDY_SLIPS and len(ends) < REPEATS - 1
        one, errors = _pass(total, steps, "plain", rng if slips else None)
        wrong |= {len(words) + place for place in errors}
        words += one
        ends.append(number(one[-4:]))
        sure = ONCE if len(ends) == 1 else ENOUGH if ends[-1] == ends[-2] else 0.0
        if len(ends) == REPEATS or (ends[-1] == right and rng.random() < sure):
            return words, wrong
        words.append(AGAIN)


def _pass(total: int, steps: Steps, kind: Pass, slips: random.Random | None = None) -> tuple[list[str], set[int]]:
    """All steps once: the words, and the indices of those that are deliberately wrong, if it is to slip."""
    words, wrong, shown = digits(total), set[int](), 4 if kind == "plain" else 2
    slip = slips.randrange(len(steps)) if slips else None
    if slips and kind == "draft" and slips.random() < UNWRITTEN:
        slip = len(steps)
    for n, (step, key, value) in enumerate(steps):
        looked_up, off = _slip(value, shown, slips) if slips and n == slip else (value, 0)
        follows = added(total, looked_up)
        total += looked_up + off
        sums = digits(total) if off else follows
        words += [step_word(step), key, value_word(looked_up)]
        wrong |= {len(words) - 1} if looked_up != value else set()
        wrong |= _differ(sums[:shown], follows, len(words))
        words += sums[:shown]
    if kind == "draft":
        words.append(value_word(0))  # nothing more to add: without a word between, copying the digits is learned late
        claim = digits(total + slips.choice((-200, -100, 100, 200)) if slips and slip == len(steps) else total)
        wrong |= _differ(claim, digits(total), len(words))
        words += claim
    return words, wrong


def _differ(words: Sequence[str], others: Sequence[str], start: int) -> set[int]:
    """The indices of the words that differ, counted from `start`."""
    return {start + n for n, (word, other) in enumerate(zip(words, others, strict=False)) if word != other}


def _slip(value: int, shown: int, rng: random.Random) -> tuple[int, int]:
    """A deliberate error: a wrong value, or the right value and an offset of the sum in a digit that is shown."""
    if rng.random() < 0.5:
        return rng.choice([v for v in range(-VALUES, VALUES + 1) if v != value]), 0
    return value, rng.choice((-1, 1)) * 10 ** rng.randrange(min(3, shown))
