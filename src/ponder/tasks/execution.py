"""Generates long-horizon execution problems: keep a running sum over a plan, turn by turn (Sinha et
al. 2025).

Each step names a key, whose value is looked up in a dictionary and added to the sum. Plan and
dictionary are given, so only execution is tested. Size = steps in all, of which `per_turn` are
asked at once; the answer to each turn is the sum so far. `history_turns` and `error_rate` give a
history with injected errors, to measure self-conditioning. Whatever the `per_turn` (0 excepted),
one size and seed give the same plans, so that turn lengths are compared plan by plan.

Differences from the paper: each problem has its own dictionary unless `shared`; the prompts are
ours, with right worked examples (two of the published ones are wrong); the last answer tag counts,
not the first; a reply without a number is wrong even if the turn adds 0; an injected error is never
0, so `error_rate` is the true rate of wrong sums.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Literal

from ponder.core import Drawing, Grade, Mark, Message, Problem, Task, UserError, digest, renamed
from ponder.core.capabilities import Addends, CheckedSteps, Conversation, Drawable, ParsesAnswers
from ponder.core.contracts import generated_problems
from ponder.tasks._equations import states_a_sum, true_sums, up_to_the_first_error
from ponder.tasks.reading import final_number

WORDS = """
about above actor acute admit adopt adult after again agent agree ahead alarm album alert alike
alive allow alone along alter among angel anger angle apple apply arena argue arise array aside
asset audio avoid award aware badly baker basic basis beach began begin being below bench birth
black blame blind block blood board boost bound brain brand bread break breed brief bring broad
broke brown build built buyer cabin cable carry catch cause chain chair chart chase cheap check
chest chief child china civil claim class clean clear click clock close coach coast could count
court cover craft crash cream crime cross crowd crown curve cycle daily dance dealt death delay
depth doing doubt dozen draft drama drawn dream dress drink drive eager early earth eight elect
empty enemy enjoy enter entry equal error event every exact exist extra faith false fault fiber
field fifth fifty fight final first fixed flash fleet floor fluid focus force forth found frame
fresh front fruit fully funny giant given glass globe going grace grade grand grant grass great
green gross group grown guard guess guest guide happy heart heavy hence horse hotel house human
ideal image index inner input issue joint judge known label large laser later laugh layer learn
lease least leave legal level light limit local logic loose lower lucky lunch magic major maker
march match maybe mayor meant media metal might minor minus mixed model money month moral motor
mount mouse mouth movie music needs never night noise north noted novel nurse occur ocean offer
often order other ought paint panel paper party peace phase phone photo piece pilot pitch place
plain plane plant plate point pound power press price pride prime print prior prize proof proud
prove queen quick quiet quite radio raise range rapid ratio reach ready
""".split()  # noqa: SIM905 three hundred words read better so

EXAMPLE = {"apple": 5, "banana": 0, "cherry": 7, "grape": -4, "kiwi": 2, "mango": -1}
LARGEST = 100_000  # steps; a problem of 0.9 MB, made in 0.1 s
INJECTED = 10  # largest error of a wrong sum in the given history; the smallest is 1

RULES = """\
Keep a running sum. It starts at 0. Each message names one or more keys; look up the value of \
each key in the dictionary and add it to the sum. The sum goes on from message to message.
{how}

Example, with the dictionary {example}:
{shots}

Now the real task. The dictionary is:
{dictionary}"""

HOW = {
    "answer": "Reply with the sum so far as <answer>N</answer> and nothing else.",
    "thinking": "Reply with the sum so far as <answer>N</answer> and nothing else.",
    "cot": "In every reply, first write out each step (the key, its value, and the new sum), then "
    "the sum so far between <answer> and </answer>.",
}
# In every turn, because a small chat model that is told once, in the system message, stops after a
# turn or two.
WORK = "\nWork step by step, then write the sum so far between <answer> and </answer>."


@dataclass(frozen=True)
class Execution(Task, Conversation, ParsesAnswers, Drawable, CheckedSteps, Addends):
    per_turn: int = 1  # steps per turn; 0: all steps in a single turn
    # answer only, steps in the reply, or steps in the thinking
    mode: Literal["answer", "cot", "thinking"] = "thinking"
    dictionary: int = 100  # entries in the dictionary
    values: int = 99  # values are drawn from -values to values
    shared: bool = False  # one dictionary for all problems, as in the paper
    # turns that the given history shows as already answered
    history_turns: int = renamed("filled", 0)
    # probability that the sum shown for such a turn is wrong
    error_rate: float = renamed("errors", 0.0)

    default_sizes = (12, 24, 60)
    unit = "steps"

    def __post_init__(self) -> None:
        if not 0 <= self.error_rate <= 1:
            message = f"error_rate is a fraction from 0 to 1, not {self.error_rate}"
            raise UserError(message, hint="error_rate = [0.0, 0.5, 1.0]")
        if not 1 <= self.dictionary <= len(WORDS):
            raise UserError(
                f"dictionary must be from 1 to {len(WORDS)} words, not {self.dictionary}"
            )
        if self.values < 1 or self.per_turn < 0 or self.history_turns < 0:
            raise UserError(
                "values must be at least 1, and per_turn and history_turns not negative"
            )
        if max(self.values, self.per_turn, self.history_turns) > LARGEST:
            raise UserError(f"values, per_turn and history_turns must be at most {LARGEST:,}")

    def check_size(self, size: int) -> None:
        if size > LARGEST:
            raise UserError(
                f"execution has at most {LARGEST:,} steps, not {size:,}", hint="size = [12, 24, 60]"
            )
        if size < 1 or size % (self.per_turn or size):
            hint = "size = 12"
            if size >= 1:
                divisors = [n for n in range(1, size + 1) if size % n == 0]
                near_sizes = range(max(1, size - self.per_turn), size + self.per_turn + 1)
                multiples = [n for n in near_sizes if n % self.per_turn == 0]
                hint = f"{size} steps: per_turn = {divisors}; or size = {multiples}"
            raise UserError(
                f"{size} steps can't be divided into turns of {self.per_turn}", hint=hint
            )
        if self.history_turns >= size // (self.per_turn or size):
            hint = f"size = {(self.history_turns + 1) * max(1, self.per_turn)}"
            raise UserError(
                f"all turns are in the history (history_turns = {self.history_turns})", hint=hint
            )

    def identity(self) -> dict[str, Any]:
        # The prompt of this mode alone has changed, and the plans of these turn lengths: other
        # attempts stay valid.
        identity = super().identity()
        if self.mode == "cot":
            identity["prompt"] = 2
        if self.per_turn > 1:
            identity["plans"] = 2
        return identity

    def problems(self, size: int, seed: int) -> Iterator[Problem]:
        """Yield the same plans for turns of any length.

        `per_turn = 0` keeps the plans that models were trained on.
        """
        plans = replace(self, per_turn=1) if self.per_turn > 1 else self
        return generated_problems(self, plans.identity(), size, seed)

    def problem(self, size: int, seed: int) -> Problem:
        rng = random.Random(seed)
        dictionary_rng = random.Random("shared") if self.shared else rng
        table = make_dictionary(dictionary_rng, self.dictionary, self.values)
        keys = rng.choices(list(table), k=size)
        per_turn = self.per_turn or size
        turns = [keys[start : start + per_turn] for start in range(0, size, per_turn)]
        increments = [sum([table[key] for key in turn]) for turn in turns]
        messages = [", ".join(turn) for turn in turns]
        if self.mode == "cot":
            messages = [message + WORK for message in messages]

        history_sums = self._history_sums(increments[: self.history_turns], rng)
        history = []
        for message, total in zip(messages, history_sums, strict=False):
            history.append(Message("user", message))
            history.append(Message("assistant", f"<answer>{total}</answer>"))
        start_sum = history_sums[-1] if history_sums else 0
        sums = list(accumulate(increments[self.history_turns :], initial=start_sum))
        return Problem(
            id=digest(table, keys, per_turn, self.mode, history_sums).hex(),
            size=size,
            turns=tuple(messages[self.history_turns :]),
            gold={"sums": sums[1:], "start": start_sum},
            system=_system(table, self.mode, per_turn),
            history=tuple(history),
            facts={
                "seed": seed,
                "per_turn": per_turn,
                "history_turns": self.history_turns,
                "error_rate": self.error_rate,
                "plan": digest(table, keys).hex(),
            },
        )

    def _history_sums(self, increments: Sequence[int], rng: random.Random) -> list[int]:
        """Return the sums that the history shows.

        An error changes one of them; later sums don't include it.
        """
        sums = []
        for total in accumulate(increments):
            error = 0
            if rng.random() < self.error_rate:
                sign = rng.choice((-1, 1))
                error = sign * rng.randint(1, INJECTED)
            sums.append(total + error)
        return sums

    def solve(self, problem: Problem) -> str:
        return self.solve_turn(problem, len(problem.turns) - 1)

    def solve_turn(self, problem: Problem, turn: int) -> str:
        return f"<answer>{problem.gold['sums'][turn]}</answer>"

    def addends(self, problem: Problem, turn: int) -> list[tuple[str, int]]:
        table = dictionary(problem)
        sums = [problem.gold["start"], *problem.gold["sums"]]
        terms = [("", sums[turn])]
        for key in keys_in(problem.turns[turn]):
            value = table[key]
            terms.append((f"{key} is {value}", value))
        return terms

    @classmethod
    def sound_steps(cls, problem: Problem, steps: Sequence[str]) -> list[bool] | None:
        """Return which steps precede the first false sum or value (`apple is 5`)."""
        table = dictionary(problem)

        def is_right(step: str) -> bool:
            if not true_sums(step):
                return False
            looked_up = re.findall(r"'?(\w+)'? is '?(-?\d+)\b", step)
            return all(table.get(key, int(value)) == int(value) for key, value in looked_up)

        if not any(map(states_a_sum, steps)):
            return None
        return up_to_the_first_error(steps, is_right)

    def grade(self, problem: Problem, answer: str) -> Grade:
        return self.grade_turns(problem, [answer] * len(problem.turns))

    def grade_turns(self, problem: Problem, answers: Sequence[str]) -> Grade:
        """Grade a conversation: right if the sum of every turn is.

        All sums are stored as details, for the horizon.
        """
        true_totals = problem.gold["sums"]
        parsed = [_number(text) for text in answers]
        details = {
            "parsed": parsed,
            "true": true_totals,
            "start": problem.gold["start"],
            "per_turn": problem.facts["per_turn"],
            # Older stores have other names for these facts, so they come from the settings.
            "history_turns": self.history_turns,
            "error_rate": self.error_rate,
            "plan": problem.facts.get("plan") or _plan(problem),
        }
        if parsed == list(true_totals):
            return Grade(True, parsed, "", details)
        why = "wrong sum"
        for total, true_total in zip(parsed, true_totals, strict=False):
            if total != true_total:
                why = _why_wrong(total)
                break
        if all(total is None for total in parsed):
            return Grade(False, None, why, details)
        return Grade(False, parsed, why, details)

    def turn_grades(self, problem: Problem, answers: Sequence[str]) -> list[Grade]:
        """Grade each turn: right if its sum is.

        The first turn also records what all share: the dictionary, the plan and the start.
        """
        shared = {
            "start": problem.gold["start"],
            "plan": _plan(problem),
            "dictionary": dictionary(problem),
        }
        grades = []
        for text, true_total in zip(answers, problem.gold["sums"], strict=False):
            total = _number(text)
            correct = total == true_total
            why = "" if correct else _why_wrong(total)
            grades.append(Grade(correct, total, why, {"true": true_total} | shared))
            shared = {}
        return grades

    def drawings(self, problem: Problem, answers: Sequence[str]) -> list[Drawing]:
        """Draw a row per turn: keys with their values, the model's sum and the true one."""
        table = dictionary(problem)
        previous = problem.gold["start"]
        first_slip = 0  # the turn; 0: none
        rows = []
        for n, (message, true_total) in enumerate(
            zip(problem.turns, problem.gold["sums"], strict=True), 1
        ):
            total = _number(answers[n - 1]) if n <= len(answers) else None
            note = Mark("")
            if total != true_total and not first_slip:
                first_slip = n
                note = Mark("← first slip", "wrong")
            steps = "  ".join(f"{key} {table.get(key, 0):+d}" for key in keys_in(message))
            row = (
                Mark(str(n), "note"),
                Mark(steps),
                _compared(total, true_total),
                Mark(f"{true_total:,}"),
                Mark(f"{true_total - previous:+,}"),
                note,
            )
            rows.append(row)
            previous = true_total
        heads = ("turn", "keys and values", "model", "true sum", "adds", "")
        caption = "every sum is right"
        if first_slip:
            caption = f"the first wrong sum is in turn {first_slip} of {len(rows)}"
        return [Drawing("turns", tuple(rows), heads, caption)]

    def right_answer(self, problem: Problem) -> list[int]:
        return list(problem.gold["sums"])

    def parse(self, problem: Problem, answer: str) -> int | None:  # noqa: ARG002 the answer is enough
        return _number(answer)

    def history_entry(self, answer: str) -> str:
        number = _number(answer)
        if number is None:
            return "No answer."
        return f"<answer>{number}</answer>"


def make_dictionary(rng: random.Random, words: int, values: int) -> dict[str, int]:
    """Return a random dictionary of words with values from -values to values."""
    keys = rng.sample(WORDS, words)
    return {key: rng.randint(-values, values) for key in keys}


def dictionary(problem: Problem) -> dict[str, int]:
    """Return the dictionary in a problem's system message, for models with their own prompt."""
    entries = re.findall(r"'(\w+)': (-?\d+)", problem.system.rsplit("\n", 1)[-1])
    return {key: int(value) for key, value in entries}


def keys_in(message: str) -> list[str]:
    """Return the keys that a user's message names, for models with their own prompt."""
    return message.partition("\n")[0].split(", ")


def _plan(problem: Problem) -> str:
    """Return the id of a plan, the same for every turn length.

    It is read from the messages, as older stores don't have it.
    """
    questions = [message.content for message in problem.history if message.role == "user"]
    questions += problem.turns
    keys = []
    for question in questions:
        keys += keys_in(question)
    return digest(dictionary(problem), keys).hex()


# Lines of the worked examples. A small model that has answered goes on with them, and answers
# another question.
_COPIED = re.compile(r"\(anew, from 0\)(?:\s*user:)?|^[ \t]*user:", re.MULTILINE)


def _number(text: str) -> int | None:
    """Return the integer that a reply gives as its answer; `1,234` and `12.0` count.

    Where the reply goes on as the examples in the prompt do, its first answer counts.
    """
    for section in _COPIED.split(text, maxsplit=20):
        number = final_number(section)
        if number is not None:
            return int(number) if number.denominator == 1 else None
    return None


def _why_wrong(total: int | None) -> str:
    return "no number" if total is None else "wrong sum"


def _compared(total: int | None, true_total: int) -> Mark:
    """Draw the model's sum, marked as right or wrong."""
    if total is None:
        return Mark("–", "wrong", "no number")
    if total == true_total:
        return Mark(f"{total:,}", "right")
    return Mark(f"{total:,}", "wrong", f"off by {total - true_total:+,}")


def _system(table: dict[str, int], mode: str, per_turn: int) -> str:
    """Return the system message: rules, worked examples and dictionary."""
    groups = (1,) if per_turn == 1 else (2, 3, 6)
    shots = "\n(anew, from 0)\n".join(_shot(group, mode) for group in groups)
    return RULES.format(how=HOW[mode], example=EXAMPLE, shots=shots, dictionary=table)


def _shot(group: int, mode: str) -> str:
    """Return the worked example: its six keys in turns of `group`, each with the right reply."""
    keys = list(EXAMPLE)
    total = 0
    lines = []
    for start in range(0, len(keys), group):
        turn = keys[start : start + group]
        reply = ""
        for key in turn:
            value = EXAMPLE[key]
            if mode == "cot":
                reply += f"{key} is {value}: {total} + {value} = {total + value}. "
            total += value
        lines.append(f"user: {', '.join(turn)}")
        lines.append(f"you: {reply}<answer>{total}</answer>")
    return "\n".join(lines)
