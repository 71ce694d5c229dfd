"""Generates long-horizon execution problems: keep a running sum over a plan, turn by turn (Sinha et al. 2025).

Each step names a key, whose value is looked up in a dictionary and added to the sum. Plan and dictionary are given, so
only execution is tested. Size = steps in all, of which `per_turn` are asked at once; the answer to each turn is the sum
so far. `history_turns` and `error_rate` give a history with injected errors, to measure self-conditioning. Whatever the
`per_turn` (0 excepted), one size and seed give the same plans, so that turn lengths are compared plan by plan.

Differences from the paper: each problem has its own dictionary unless `shared`; the prompts are ours, with right worked
examples (two of the published ones are wrong); the last answer tag counts, not the first; a reply without a number is
wrong even if the turn adds 0; an injected error is never 0, so `error_rate` is the true rate of wrong sums.
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
about above actor acute admit adopt adult after again agent agree ahead alarm album alert alike alive allow alone along
alter among angel anger angle apple apply arena argue arise array aside asset audio avoid award aware badly baker basic
basis beach began begin being below bench birth black blame blind block blood board boost bound brain brand bread break
breed brief bring broad broke brown build built buyer cabin cable carry catch cause chain chair chart chase cheap check
chest chief child china civil claim class clean clear click clock close coach coast could count court cover craft crash
cream crime cross crowd crown curve cycle daily dance dealt death delay depth doing doubt dozen draft drama drawn dream
dress drink drive eager early earth eight elect empty enemy enjoy enter entry equal error event every exact exist extra
faith false fault fiber field fifth fifty fight final first fixed flash fleet floor fluid focus force forth found frame
fresh front fruit fully funny giant given glass globe going grace grade grand grant grass great green gross group grown
guard guess guest guide happy heart heavy hence horse hotel house human ideal image index inner input issue joint judge
known label large laser later laugh layer learn lease least leave legal level light limit local logic loose lower lucky
lunch magic major maker march match maybe mayor meant media metal might minor minus mixed model money month moral motor
mount mouse mouth movie music needs never night noise north noted novel nurse occur ocean offer often order other ought
paint panel paper party peace phase phone photo piece pilot pitch place plain plane plant plate point pound power press
price pride prime print prior prize proof proud prove queen quick quiet quite radio raise range rapid ratio reach ready
""".split()  # noqa: SIM905 three hundred words read better so

EXAMPLE = {"apple": 5, "banana": 0, "cherry": 7, "grape": -4, "kiwi": 2, "mango": -1}
LARGEST = 100_000  # steps; a problem of 0.9 MB, made in 0.1 s
INJECTED = 10  # largest error of a wrong sum in the given history; the smallest is 1

RULES = """\
Keep a running sum. It starts at 0. Each message names one or more keys; look up the value of each key in the \
dictionary and add it to the sum. The sum goes on from message to message.
{how}

Example, with the dictionary {example}:
{shots}

Now the real task. The dictionary is:
{dictionary}"""

HOW = {
    "answer": "Reply with the sum so far as <answer>N</answer> and nothing else.",
    "thinking": "Reply with the sum so far as <answer>N</answer> and nothing else.",
    "cot": "In every reply, first write out each step (the key, its value, and the new sum), then the sum so far "
    "between <answer> and </answer>.",
}
# In every turn, because a small chat model that is told once, in the system message, stops after a turn or two.
WORK = "\nWork step by step, then write the sum so far between <answer> and </answer>."


@dataclass(frozen=True)
class Execution(Task, Conversation, ParsesAnswers, Drawable, CheckedSteps, Addends):
    per_turn: int = 1  # steps per turn; 0: all steps in a single turn
    mode: Literal["answer", "cot", "thinking"] = "thinking"  # answer only, steps in the reply, or steps in the thinking
    dictionary: int = 100  # entries in the dictionary
    values: int = 99  # values are drawn from -values to values
    shared: bool = False  # one dictionary for all problems, as in the paper
    history_turns: int = renamed("filled", 0)  # turns that the given history shows as already answered
    error_rate: float = renamed("errors", 0.0)  # probability that the sum shown for such a turn is wrong

    default_sizes = (12, 24, 60)
    unit = "steps"

    def __post_init__(self) -> None:
        if not 0 <= self.error_rate <= 1:
            what = f"error_rate is a fraction from 0 to 1, not {self.error_rate}"
            raise UserError(what, hint="error_rate = [0.0, 0.5, 1.0]")
        if not 1 <= self.dictionary <= len(WORDS):
            raise UserError(f"dictionary must be from 1 to {len(WORDS)} words, not {self.dictionary}")
        if self.values < 1 or self.per_turn < 0 or self.history_turns < 0:
            raise UserError("values must be at least 1, and per_turn and history_turns not negative")
        if max(self.values, self.per_turn, self.history_turns) > LARGEST:
            raise UserError(f"values, per_turn and history_turns must be at most {LARGEST:,}")

    def check_size(self, size: int) -> None:
        if size > LARGEST:
            raise UserError(f"execution has at most {LARGEST:,} steps, not {size:,}", hint="size = [12, 24, 60]")
        if size < 1 or size % (self.per_turn or size):
            near = [n for n in range(max(1, size - self.per_turn), size + self.per_turn + 1) if n % self.per_turn == 0]
            hint = f"{size} steps: per_turn = {[k for k in range(1, size + 1) if size % k == 0]}" if size > 0 else ""
            what = f"{size} steps can't be divided into turns of {self.per_turn}"
            raise UserError(what, hint=f"{hint}; or size = {near}" if near and hint else "size = 12")
        if self.history_turns >= size // (self.per_turn or size):
            hint = f"size = {(self.history_turns + 1) * max(1, self.per_turn)}"
            raise UserError(f"all turns are in the history (history_turns = {self.history_turns})", hint=hint)

    def identity(self) -> dict[str, Any]:
        # The prompt of this mode alone has changed, and the plans of these turn lengths: other attempts stay valid.
        changed = ({"prompt": 2} if self.mode == "cot" else {}) | ({"plans": 2} if self.per_turn > 1 else {})
        return super().identity() | changed

    def problems(self, size: int, seed: int) -> Iterator[Problem]:
        """Yield the same plans for turns of any length. `per_turn = 0` keeps the plans that models were trained on."""
        plans = replace(self, per_turn=1) if self.per_turn > 1 else self
        return generated_problems(self, plans.identity(), size, seed)

    def problem(self, size: int, seed: int) -> Problem:
        rng = random.Random(seed)
        table = make_dictionary(random.Random("shared") if self.shared else rng, self.dictionary, self.values)
        keys = rng.choices(list(table), k=size)
        per_turn = self.per_turn or size
        turns = [keys[i : i + per_turn] for i in range(0, size, per_turn)]
        shown = self._shown([sum(table[k] for k in turn) for turn in turns[: self.history_turns]], rng)
        history, work = [], WORK if self.mode == "cot" else ""
        for turn, total in zip(turns, shown, strict=False):
            history += [Message("user", ", ".join(turn) + work), Message("assistant", f"<answer>{total}</answer>")]
        start = shown[-1] if shown else 0
        live = turns[self.history_turns :]
        sums = list(accumulate((sum(table[k] for k in turn) for turn in live), initial=start))
        return Problem(
            id=digest(table, keys, per_turn, self.mode, shown).hex(),
            size=size,
            turns=tuple(", ".join(turn) + work for turn in live),
            gold={"sums": sums[1:], "start": start},
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

    def _shown(self, added: Sequence[int], rng: random.Random) -> list[int]:
        """The sums that the given history shows. An error changes one of them; later sums don't include it."""
        wrong = (rng.choice((-1, 1)) * rng.randint(1, INJECTED) if rng.random() < self.error_rate else 0 for _ in added)
        return [true + off for true, off in zip(accumulate(added), wrong, strict=True)]

    def solve(self, problem: Problem) -> str:
        return self.solve_turn(problem, len(problem.turns) - 1)

    def solve_turn(self, problem: Problem, turn: int) -> str:
        return f"<answer>{problem.gold['sums'][turn]}</answer>"

    def addends(self, problem: Problem, turn: int) -> list[tuple[str, int]]:
        table, sums = dictionary(problem), (problem.gold["start"], *problem.gold["sums"])
        return [("", sums[turn]), *((f"{key} is {table[key]}", table[key]) for key in keys_in(problem.turns[turn]))]

    @classmethod
    def sound_steps(cls, problem: Problem, steps: Sequence[str]) -> list[bool] | None:
        """Steps are right up to the first false sum, or the first value that isn't the key's (`apple is 5`)."""
        table = dictionary(problem)

        def right(step: str) -> bool:
            looked_up = re.findall(r"'?(\w+)'? is '?(-?\d+)\b", step)
            return true_sums(step) and all(table.get(key, int(value)) == int(value) for key, value in looked_up)

        return up_to_the_first_error(steps, right) if any(map(states_a_sum, steps)) else None

    def grade(self, problem: Problem, answer: str) -> Grade:
        return self.grade_turns(problem, [answer] * len(problem.turns))

    def grade_turns(self, problem: Problem, answers: Sequence[str]) -> Grade:
        """Right if the sum of every turn is right; all sums are stored as details, for the horizon."""
        gold, parsed = problem.gold, [_number(text) for text in answers]
        details = {"parsed": parsed, "true": gold["sums"], "start": gold["start"]}
        # Older stores have other names for the other facts, so those come from the settings.
        details |= {"per_turn": problem.facts["per_turn"]}
        details |= {"history_turns": self.history_turns, "error_rate": self.error_rate}
        details |= {"plan": problem.facts.get("plan") or _plan(problem)}
        wrong = next((n for n, (one, true) in enumerate(zip(parsed, gold["sums"], strict=False)) if one != true), None)
        if wrong is None and len(parsed) == len(gold["sums"]):
            return Grade(True, parsed, "", details)
        why = "no number" if wrong is not None and parsed[wrong] is None else "wrong sum"
        return Grade(False, None if all(one is None for one in parsed) else parsed, why, details)

    def turn_grades(self, problem: Problem, answers: Sequence[str]) -> list[Grade]:
        """Right if the sum is. The first turn also records what all share: the dictionary, the plan and the start."""
        shared = {"start": problem.gold["start"], "plan": _plan(problem), "dictionary": dictionary(problem)}
        grades = []
        for text, true in zip(answers, problem.gold["sums"], strict=False):
            parsed = _number(text)
            why = "" if parsed == true else "no number" if parsed is None else "wrong sum"
            grades.append(Grade(parsed == true, parsed, why, {"true": true} | shared))
            shared = {}
        return grades

    def drawings(self, problem: Problem, answers: Sequence[str]) -> list[Drawing]:
        """A row per turn: its keys with their values, the model's sum, the true one, and where it first went wrong."""
        table, before, slipped, rows = dictionary(problem), problem.gold["start"], 0, []
        for n, (asked, true) in enumerate(zip(problem.turns, problem.gold["sums"], strict=True), 1):
            parsed = _number(answers[n - 1]) if n <= len(answers) else None
            steps = "  ".join(f"{key} {table.get(key, 0):+d}" for key in keys_in(asked))
            slip = parsed != true and not slipped
            slipped = n if slip else slipped
            note = Mark("← first slip", "wrong") if slip else Mark("")
            sums = (_compared(parsed, true), Mark(f"{true:,}"), Mark(f"{true - before:+,}"))
            rows.append((Mark(str(n), "note"), Mark(steps), *sums, note))
            before = true
        heads = ("turn", "keys and values", "model", "true sum", "adds", "")
        caption = f"the first wrong sum is in turn {slipped} of {len(rows)}" if slipped else "every sum is right"
        return [Drawing("turns", tuple(rows), heads, caption)]

    def right_answer(self, problem: Problem) -> list[int]:
        return list(problem.gold["sums"])

    def parse(self, problem: Problem, answer: str) -> int | None:  # noqa: ARG002 the answer is enough
        return _number(answer)

    def history_entry(self, answer: str) -> str:
        number = _number(answer)
        return "No answer." if number is None else f"<answer>{number}</answer>"


def make_dictionary(rng: random.Random, words: int, values: int) -> dict[str, int]:
    return {word: rng.randint(-values, values) for word in rng.sample(WORDS, words)}


def dictionary(problem: Problem) -> dict[str, int]:
    """The dictionary in a problem's system message, for models that render their own prompt."""
    entries = re.findall(r"'(\w+)': (-?\d+)", problem.system.rsplit("\n", 1)[-1])
    return {key: int(value) for key, value in entries}


def keys_in(message: str) -> list[str]:
    """The keys that a user's message names, for models that render their own prompt."""
    return message.partition("\n")[0].split(", ")


def _plan(problem: Problem) -> str:
    """The id of a plan, the same for every turn length; read from the messages, as older stores don't have it."""
    asked = [m.content for m in problem.history if m.role == "user"] + list(problem.turns)
    return digest(dictionary(problem), [key for message in asked for key in keys_in(message)]).hex()


# Lines of the worked examples. A small model that has answered goes on with them, and answers another question.
_COPIED = re.compile(r"\(anew, from 0\)(?:\s*user:)?|^[ \t]*user:", re.MULTILINE)


def _number(text: str) -> int | None:
    """Return the integer that a reply gives as its answer; `1,234` and `12.0` count.

    Where the reply goes on as the examples in the prompt do, its first answer counts.
    """
    numbers = map(final_number, _COPIED.split(text, maxsplit=20))
    number = next((number for number in numbers if number is not None), None)
    return int(number) if number is not None and number.denominator == 1 else None


def _compared(parsed: int | None, true: int) -> Mark:
    """The model's sum, marked."""
    if parsed is None:
        return Mark("–", "wrong", "no number")
    return (
        Mark(f"{parsed:,}", "right") if parsed == true else Mark(f"{parsed:,}", "wrong", f"off by {parsed - true:+,}")
    )


def _system(table: dict[str, int], mode: str, per_turn: int) -> str:
    shots = "\n(anew, from 0)\n".join(_shot(group, mode) for group in ((1,) if per_turn == 1 else (2, 3, 6)))
    return RULES.format(how=HOW[mode], example=EXAMPLE, shots=shots, dictionary=table)


def _shot(group: int, mode: str) -> str:
    """The worked example: its six keys in turns of `group`, each with the right reply."""
    keys, total, lines = list(EXAMPLE), 0, []
    for i in range(0, len(keys), group):
        turn = keys[i : i + group]
        steps = []
        for key in turn:
            steps.append(f"{key} is {EXAMPLE[key]}: {total} + {EXAMPLE[key]} = {total + EXAMPLE[key]}.")
            total += EXAMPLE[key]
        worked = " ".join(steps) + " " if mode == "cot" else ""
        lines += [f"user: {', '.join(turn)}", f"you: {worked}<answer>{total}</answer>"]
    return "\n".join(lines)
