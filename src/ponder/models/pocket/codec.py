"""Translates between a task and a pocket model, whose vocabulary is one token per word, made for that task.

A `PocketCodec` renders a request as words, turns a reply back into the text that the task grades, and generates the
examples that a model is trained on. Each word is declared with the parts of its meaning (`b3?`: column b, row 3, open),
and words that share a part share that part of their embedding in training. The vocabulary is also written as a Hugging
Face tokenizer.
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

Style: TypeAlias = Literal["plain", "long", "short", "wordy"]

PAD, BOS, EOS, THINK, ANSWER = "<pad>", "<bos>", "<eos>", "<think>", "</think>"
AGAIN = "<again>"  # starts another pass over the same steps


@dataclass(frozen=True)
class Example:
    """A training example in words: the prompt, and the reply (thinking, `ANSWER`, answer, `EOS`)."""

    prompt: list[str]
    said: list[str]  # the reply
    apart: frozenset[int] = frozenset()  # indices in the reply without a loss: deliberate errors, questions of a drill
    verdicts: frozenset[int] = frozenset()  # indices of the words that trust or doubt a pass


@dataclass(frozen=True)
class EvalSet:
    """Held-out problems of one kind, to measure a model on."""

    label: str
    task: Task
    size: int
    key: tuple[int, ...]  # its problems' seeds are hashed from this
    glance: int  # token budget of a quick check during training: the length of the longest examples


class PocketCodec(ABC):
    """The vocabulary of one task, its prompts and replies, and the training examples."""

    task: ClassVar[str]
    styles: ClassVar[tuple[Style, ...]] = ("plain",)
    can: ClassVar[str]  # what the vocabulary covers, for hints
    taught: ClassVar[str]  # what the models are trained on, for the card
    exams: ClassVar[tuple[EvalSet, ...]]  # measured for the card
    glances: ClassVar[tuple[EvalSet, ...]]  # measured during training
    limits: ClassVar[tuple[str, ...]]  # known limits, for the card
    begins: ClassVar[str]  # regular expression of the words that start a step of the thinking

    def __init__(self, words: Sequence[tuple[str, tuple[str, ...]]]) -> None:
        self.words = [word for word, _ in words]
        self.parts = [parts for _, parts in words]
        self.index = {word: index for index, word in enumerate(self.words)}
        self._last: tuple[Any, dict[Style, list[str]]] = None, {}

    def encode(self, words: Iterable[str]) -> list[int]:
        return [self.index[word] for word in words]

    def decode(self, tokens: Iterable[int]) -> list[str]:
        return [self.words[token] for token in tokens]

    def held_out(self, problem: Problem) -> bool:
        """Whether a problem is reserved for testing, and so never trained on."""
        return seed_from("pocket", problem.id) % 10 == 0

    def tests(self, exam: EvalSet, seed: int = 0) -> Iterator[Problem]:
        """Distinct held-out problems, until no new ones turn up: there are only 240 Tents puzzles of 4×4."""
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
        """Raise `UserError` for a task or size that the vocabulary doesn't cover."""

    @abstractmethod
    def prompt(self, request: Request) -> list[str]:
        """The request as words, up to `THINK`; `ModelFailure` if the vocabulary doesn't cover it."""

    @abstractmethod
    def text(self, request: Request, answer: Sequence[str]) -> str:
        """The answer's words as text that the task can grade."""

    def answer_words(self, request: Request, answer: str) -> list[str]:  # noqa: ARG002 for subclasses
        """The text of an answer as words again, for a reward that reads it; its plain words if it is no answer."""
        return answer.split()

    @abstractmethod
    def draw(self, rng: random.Random, step: int, curriculum: Any) -> Request:
        """A random request to train on, at a step of the training."""

    def practise(self, rng: random.Random, step: int, curriculum: Any, style: Style) -> Example | None:
        """A random example, at a step of the training; None if the problem drawn is held out or has no example."""
        request = self.draw(rng, step, curriculum)
        return None if self.held_out(request.problem) else self.lesson(request, style, rng)

    @abstractmethod
    def lesson(self, request: Request, style: Style = "plain", rng: random.Random | None = None) -> Example | None:
        """The request with a complete, right reply; None if the codec can't generate one."""

    def judged(self, request: Request, said: Sequence[str], rng: random.Random) -> Example | None:  # noqa: ARG002
        """An example around a sampled reply, with the right verdicts on its passes; None if there are none to give."""
        return None

    def unsound(self, request: Request, thinking: Sequence[str], style: Style = "plain") -> str | None:
        """The first word of the thinking that is wrong or doesn't follow; None if there is none.

        By default, the first that differs from the example.
        """
        right = self._right(request, style)
        if thinking == right:
            return None
        return next((a for a, b in zip(thinking, right, strict=False) if a != b), EOS)

    def _right(self, request: Request, style: Style) -> list[str]:
        """The thinking of the example; those of the last request are kept: steps are checked one after the other."""
        key = request.problem.id, request.messages
        if self._last[0] != key:
            self._last = key, {}
        kept = self._last[1]
        if style not in kept:
            taught = self.lesson(request, style)
            kept[style] = taught.said[: taught.said.index(ANSWER)] if taught else []
        return kept[style]

    def steps(self, thinking: Iterable[str]) -> list[list[str]]:
        """Thinking, split where a step starts."""
        steps: list[list[str]] = []
        for word in thinking:
            if not steps or re.fullmatch(self.begins, word):
                steps.append([])
            steps[-1].append(word)
        return steps

    def prompt_ids(self, request: Request) -> list[int]:
        return self.encode(self.prompt(request))

    def reply(self, request: Request, ids: Sequence[int]) -> tuple[str, str, int]:
        words, answer = self.read(request, ids)
        return " ".join(words), answer, len(words)

    def split(self, thinking: str) -> list[str]:
        return [" ".join(step) for step in self.steps(thinking.split())]

    def sound(self, request: Request, steps: Sequence[str], style: str = "") -> list[bool]:
        """The steps of a pass are right up to its first word that is wrong or doesn't follow.

        Without a style, the one counts for each pass in which the most steps are right: trained and merged models mix
        them.
        """
        kinds = [kind for kind in self.styles if style in ("", kind)]
        starts = [n for n, step in enumerate(steps) if n == 0 or step.startswith(AGAIN)]
        passes = [steps[start:end] for start, end in zip(starts, [*starts[1:], len(steps)], strict=True)]
        return [right for one in passes for right in max((self._sound(request, one, k) for k in kinds), key=sum)]

    def _sound(self, request: Request, steps: Sequence[str], style: Style) -> list[bool]:
        """The steps of one pass."""
        verdicts: list[bool] = []
        words: list[str] = []
        right, ended = True, False
        for step in steps:
            words += [word for word in step.split() if word != AGAIN]
            if right:
                fault = self.unsound(request, words, style)
                # `EOS`: right so far but unfinished, unless it was finished before: then the words since are wrong.
                right = fault is None or (fault == EOS and not ended)
                ended = fault is None
            verdicts.append(right)
        return verdicts

    def read(self, request: Request, ids: Sequence[int]) -> tuple[list[str], str]:
        """The words of the thinking, and the answer as text, from a reply's token ids."""
        words = self.decode(ids)
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
            # Special tokens are dropped when decoding with `skip_special_tokens`, and the thinking must not be.
            "added_tokens": [{"id": self.index[word], "content": word, **special} for word in (PAD, BOS, EOS)],
            "normalizer": None,
            "pre_tokenizer": {"type": "WhitespaceSplit"},
            "post_processor": None,
            "decoder": None,
            "model": {"type": "WordLevel", "vocab": self.index, "unk_token": PAD},
        }
