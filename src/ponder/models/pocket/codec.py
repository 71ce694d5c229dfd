"""What a pocket model reads and writes: words of its own, one token each, for one task.

A `PocketCodec` renders a request as words, reads an answer back into the text that the task grades, and writes the
lessons that a model learns it from. Each word is given with the parts of its meaning (`b3?`: column b, row 3, open), so
that what is learnt of one word is learnt of those that share a part. The same table is written as a Hugging Face
tokenizer.
"""

from __future__ import annotations

import json
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

from ponder.core import Problem, Request, Task, seed_from

Style: TypeAlias = Literal["plain", "long", "short"]

PAD, BOS, EOS, THINK, ANSWER = "<pad>", "<bos>", "<eos>", "<think>", "</think>"
AGAIN = "<again>"  # begins another pass over the same steps


@dataclass(frozen=True)
class Example:
    """A request in words, and what to say to it: thinking, `ANSWER`, answer, `EOS`."""

    prompt: list[str]
    said: list[str]
    apart: frozenset[int] = (
        frozenset()
    )  # places of said words that aren't learnt: slips on purpose, questions of a drill


@dataclass(frozen=True)
class EvalSet:
    """Problems of one kind that a model is measured on."""

    label: str
    task: Task
    size: int
    key: tuple[int, ...]  # what its seeds are hashed from
    glance: int  # tokens for a quick look: so many as the longest lessons have


class PocketCodec(ABC):
    """The words of one task, and what is said in them."""

    task: ClassVar[str]
    styles: ClassVar[tuple[Style, ...]] = ("plain",)
    can: ClassVar[str]  # what it has words for, as a hint
    taught: ClassVar[str]  # what its models learn from
    exams: ClassVar[tuple[EvalSet, ...]]  # what the card says of a model
    glances: ClassVar[tuple[EvalSet, ...]]  # what is looked at while it trains
    limits: ClassVar[tuple[str, ...]]
    begins: ClassVar[str]  # the words with which a step of the thinking begins, as a pattern

    def __init__(self, words: Sequence[tuple[str, tuple[str, ...]]]) -> None:
        self.words = [word for word, _ in words]
        self.parts = [parts for _, parts in words]
        self.index = {word: index for index, word in enumerate(self.words)}

    def encode(self, words: Iterable[str]) -> list[int]:
        return [self.index[word] for word in words]

    def decode(self, tokens: Iterable[int]) -> list[str]:
        return [self.words[token] for token in tokens]

    def held_out(self, problem: Problem) -> bool:
        """Whether a problem belongs to the test, and so never to training."""
        return seed_from("pocket", problem.id) % 10 == 0

    def tests(self, exam: EvalSet, seed: int = 0) -> Iterator[Problem]:
        """Different held-out problems of an exam, until there seem to be no more: of 4×4 Tents there are 240."""
        seen: set[str] = set()
        index = repeats = 0
        while repeats < 1000:
            problem = exam.task.problem(exam.size, seed_from("pocket test", *exam.key, seed, index))
            index += 1
            repeats += 1
            if self.held_out(problem) and problem.id not in seen:
                seen.add(problem.id)
                repeats = 0
                yield problem

    @abstractmethod
    def check(self, task: Task, size: int) -> None:
        """Raise `UserError` for what there are no words for."""

    @abstractmethod
    def prompt(self, request: Request) -> list[str]:
        """The request, up to the word after which the model thinks; `ModelFailure` where words are missing."""

    @abstractmethod
    def text(self, request: Request, answer: Sequence[str]) -> str:
        """The answer's words as the text that the task grades."""

    @abstractmethod
    def draw(self, rng: random.Random, step: int, curriculum: Any) -> Request:
        """Something to learn from at a step of the training."""

    def practise(self, rng: random.Random, step: int, curriculum: Any, style: Style) -> Example | None:
        """One lesson at a step of the training; None if what was drawn is held out or can't be taught."""
        request = self.draw(rng, step, curriculum)
        return None if self.held_out(request.problem) else self.lesson(request, style, rng)

    @abstractmethod
    def lesson(self, request: Request, style: Style = "plain", rng: random.Random | None = None) -> Example | None:
        """The request with every step towards its answer, or None where it can't be taught."""

    def unsound(self, request: Request, thinking: Sequence[str], style: Style = "plain") -> str | None:
        """The first word of some thinking that is false or doesn't follow; unless overridden, that isn't as taught."""
        taught = self.lesson(request, style)
        right = taught.said[: taught.said.index(ANSWER)] if taught else []
        if thinking == right:
            return None
        return next((a for a, b in zip(thinking, right, strict=False) if a != b), EOS)

    def steps(self, thinking: Iterable[str]) -> list[list[str]]:
        """Thinking, cut where a step begins."""
        found: list[list[str]] = []
        for word in thinking:
            if not found or re.fullmatch(self.begins, word):
                found.append([])
            found[-1].append(word)
        return found

    def prompt_ids(self, request: Request) -> list[int]:
        return self.encode(self.prompt(request))

    def reply(self, request: Request, ids: Sequence[int]) -> tuple[str, str, int]:
        words, answer = self.read(request, ids)
        return " ".join(words), answer, len(words)

    def split(self, thinking: str) -> list[str]:
        return [" ".join(step) for step in self.steps(thinking.split())]

    def sound(self, request: Request, steps: Sequence[str], style: str = "plain") -> list[bool]:
        """A step is right up to the first word of its pass that is false or doesn't follow."""
        verdicts: list[bool] = []
        words: list[str] = []
        right, ended = True, False
        for step in steps:
            if step.startswith(AGAIN):
                words, right, ended = [], True, False
            words += [word for word in step.split() if word != AGAIN]
            if right:
                fault = self.unsound(request, words, "short" if style == "short" else "plain")
                # The end of the text is what unfinished thinking lacks; after complete thinking it is an error.
                right = fault is None or (fault == EOS and not ended)
                ended = fault is None
            verdicts.append(right)
        return verdicts

    def read(self, request: Request, said: Sequence[int]) -> tuple[list[str], str]:
        """What was thought, and the answer's text, from the tokens that a model wrote."""
        words = self.decode(said)
        ended = words[-1:] == [EOS]
        words = words[:-1] if ended else words
        thinking = words[: words.index(ANSWER)] if ANSWER in words else words
        answer = words[len(thinking) + 1 :]
        return thinking, self.text(request, answer) if ended and answer else " ".join(answer)

    def write_tokenizer(self, folder: Path) -> None:
        names = {"pad_token": PAD, "bos_token": BOS, "eos_token": EOS}
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **names}
        (folder / "tokenizer.json").write_text(json.dumps(self._tokenizer(), indent=1) + "\n", "utf-8")
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n", "utf-8")

    def _tokenizer(self) -> dict[str, Any]:
        """`tokenizer.json` as Hugging Face's `tokenizers` reads it."""
        special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            # Thinking must stay readable when special tokens are left out of the text, so only these three are special.
            "added_tokens": [{"id": self.index[word], "content": word, **special} for word in (PAD, BOS, EOS)],
            "normalizer": None,
            "pre_tokenizer": {"type": "WhitespaceSplit"},
            "post_processor": None,
            "decoder": None,
            "model": {"type": "WordLevel", "vocab": self.index, "unk_token": PAD},
        }
